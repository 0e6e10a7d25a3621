/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/maker.h"

#include "base/checked.h"
#include "base/sort.h"
#include "checkpoint/cover.h"
#include "checkpoint/maker_blocks.h"
#include "exec/cast.h"

#include <string.h>

enum {
    IN_ORDER_BYTES = 512 << 10, /* of windows for which long stretches are read */
    LEAST_BYTES = 4096,
    SPARSE_BYTES = 16384, /* a hull of this size may have any gaps */
    SPARSE = 4            /* and larger ones at most so many times what is wanted of them */
};

uint64_t fy_maker_room_bytes(const fy_maker_room *room)
{
    return room->window_bytes + room->hull_bytes + room->cast_bytes + room->scales_bytes;
}

void fy_maker_init(fy_maker *m, const fy_boxed *boxed, const fy_layout_job *job, fy_gather *gather,
                   const fy_maker_room *room, char *memory)
{
    *m = (fy_maker){.boxed = boxed,
                    .job = job,
                    .gather = gather,
                    .room = *room,
                    .window = memory,
                    .hull = memory + room->window_bytes,
                    .cast = memory + room->window_bytes + room->hull_bytes};
    m->scales = m->cast + room->cast_bytes;
}

/* ---- a parameter ---- */

static const fy_said_box *box_at(const fy_boxed *boxed, uint32_t parameter, uint32_t i)
{
    return &boxed->side->boxes[boxed->side->parameters[parameter].first_box + i];
}

/* The number in the job of the tensor of a parameter's box. */
static uint32_t tensor_of(const fy_maker *m, uint32_t parameter, uint32_t box)
{
    uint32_t tensor = fy_boxed_tensor_of(m->boxed, box_at(m->boxed, parameter, box));
    return m->number_in_job == NULL ? tensor : m->number_in_job[tensor];
}

void fy_maker_begin(fy_maker *m)
{
    m->reads = m->reads_beside = false;
}

ferry_status fy_maker_end(fy_maker *m, ferry_error *error)
{
    ferry_status status = m->reads ? fy_gather_end(m->gather, error) : FERRY_OK;
    return status == FERRY_OK && m->reads_beside ? fy_gather_end(m->beside, error) : status;
}

/* A box or a fill by its number; false: it has no element. */
static bool nest_of(const fy_boxed *boxed, uint32_t parameter, uint32_t number, fy_nest *nest)
{
    const fy_parameter *p = &boxed->side->parameters[parameter];
    uint32_t bits = p->dtype.element_bits;
    return number < p->n_boxes
               ? fy_nest_of_box(box_at(boxed, parameter, number), bits, nest)
               : fy_nest_of_fill(&boxed->side->fills[p->first_fill + number - p->n_boxes], bits,
                                 nest);
}

/* The shape of a tensor in units of a parameter with such elements. */
static void unit_shape(const fy_tensor *tensor, uint32_t element_bits,
                       uint64_t shape[FERRY_MAX_DIMS])
{
    for (uint32_t d = 0; d < tensor->n_dims; d++) {
        bool is_last = d + 1 == tensor->n_dims;
        shape[d] = tensor->shape[d] / (is_last ? fy_unit_elements(element_bits) : 1);
    }
}

/*
 * How many units of whole rows of a tensor a box takes for each that it wants: rows of the slowest
 * dimension along which it has several. 1: it wants all of them.
 */
static uint64_t row_ratio(const fy_box *hull, const uint64_t *shape, uint32_t n_dims)
{
    uint64_t wanted = 1, whole = 1;
    uint32_t d = 0;
    while (d < n_dims && hull->length[d] == 1) {
        d++;
    }
    for (d++; d < n_dims; d++) {
        wanted *= hull->length[d];
        whole *= shape[d];
    }
    return wanted == 0 ? 1 : fy_ceil_div(whole, wanted);
}

/* What a box asks of windows: how many bytes they may have. */
static uint64_t most_bytes(const fy_maker *m, const fy_nest *nest, const fy_tensor *tensor)
{
    uint64_t shape[FERRY_MAX_DIMS];
    fy_box hull;
    unit_shape(tensor, tensor->dtype.element_bits, shape);
    fy_nest_hull(nest, &hull);
    if (!fy_nest_is_in_order(nest, shape)) {
        return m->room.window_bytes;
    }
    uint64_t ratio = row_ratio(&hull, shape, nest->n_dims);
    uint64_t span = m->gather->span_bytes / (ratio > 1 ? 2 * ratio : 1);
    return fy_min(m->room.window_bytes, fy_min(fy_max(span, LEAST_BYTES), IN_ORDER_BYTES));
}

bool fy_maker_shares(const fy_boxed *boxed, uint32_t parameter)
{
    const fy_parameter *p = &boxed->side->parameters[parameter];
    for (uint32_t i = 0; i < p->n_boxes; i++) {
        const fy_said_box *box = box_at(boxed, parameter, i);
        const fy_tensor *tensor = &boxed->spec->tensors[fy_boxed_tensor_of(boxed, box)];
        uint64_t shape[FERRY_MAX_DIMS];
        fy_nest nest;
        fy_box hull;
        if (!fy_nest_of_box(box, p->dtype.element_bits, &nest)) {
            continue;
        }
        unit_shape(tensor, p->dtype.element_bits, shape);
        fy_nest_hull(&nest, &hull);
        if (fy_nest_is_in_order(&nest, shape) && row_ratio(&hull, shape, nest.n_dims) > 1) {
            return true;
        }
    }
    return false;
}

static int compare_items(const void *a, const void *b)
{
    const fy_making_item *x = a, *y = b;
    if (x->first != y->first) {
        return x->first < y->first ? -1 : 1;
    }
    return (x->number > y->number) - (x->number < y->number);
}

static void list_items(fy_making *making, const fy_maker *m)
{
    const fy_parameter *p = &m->boxed->side->parameters[making->parameter];
    uint64_t most = 0;
    for (uint32_t i = 0; i < p->n_boxes + p->n_fills; i++) {
        fy_nest nest;
        if (!nest_of(m->boxed, making->parameter, i, &nest)) {
            continue;
        }
        making->items[making->n_items++] =
            (fy_making_item){.first = nest.offset, .last = fy_nest_last(&nest), .number = i};
        if (i < p->n_boxes) {
            uint32_t t = fy_boxed_tensor_of(m->boxed, box_at(m->boxed, making->parameter, i));
            /* Blocks at the ends of windows are made twice. */
            uint64_t its = fy_maker_makes_blocks(m, tensor_of(m, making->parameter, i))
                               ? m->room.window_bytes
                               : most_bytes(m, &nest, &m->boxed->spec->tensors[t]);
            /* Windows that one box needs long are long; else the box that needs the shortest. */
            most = most == 0 || its > IN_ORDER_BYTES || (its < most && most <= IN_ORDER_BYTES)
                       ? its
                       : most;
        }
    }
    most = most == 0 ? fy_min(m->room.window_bytes, IN_ORDER_BYTES) : most;
    making->step = fy_max(most / making->unit_bytes, 1);
    making->has_gaps = p->n_fills > 0 || p->is_partial;
}

ferry_status fy_making_begin(fy_making *making, const fy_maker *m, uint32_t parameter,
                             ferry_error *error)
{
    const fy_parameter *p = &m->boxed->side->parameters[parameter];
    uint32_t bits = p->dtype.element_bits;
    size_t n = (size_t)p->n_boxes + p->n_fills;
    *making = (fy_making){.parameter = parameter,
                          .unit_bytes = fy_unit_bytes(bits),
                          .n_units = p->elements / fy_unit_elements(bits),
                          .items = fy_alloc(n, sizeof *making->items),
                          .active = fy_alloc(n, sizeof *making->active)};
    if (making->items == NULL || making->active == NULL) {
        return fy_fail_no_memory(error, "the boxes of a parameter");
    }
    if (making->unit_bytes > m->room.hull_bytes || making->unit_bytes > m->room.window_bytes) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "%s: parameter \"%s\" has elements of %u bytes, and a window has room for "
                       "%llu; a larger memory cap makes room",
                       m->boxed->name, p->name, making->unit_bytes,
                       (unsigned long long)fy_min(m->room.hull_bytes, m->room.window_bytes));
    }
    list_items(making, m);
    fy_sort(making->items, making->n_items, sizeof *making->items, compare_items);
    return FERRY_OK;
}

void fy_making_cleanup(fy_making *making)
{
    fy_free(making->items);
    fy_free(making->active);
    *making = (fy_making){0};
}

/* ---- a box in a window ---- */

static char *place_in_window(const fy_maker *m, const fy_nest *nest)
{
    return m->window + (nest->offset - m->begin) * m->making->unit_bytes;
}

static const fy_tensor *tensor_at_work(const fy_maker *m)
{
    return &m->job->problem.tensors[m->tensor];
}

static const fy_change *change_at_work(const fy_maker *m)
{
    return &m->job->changes[m->tensor];
}

static bool is_dequantized(const fy_maker *m)
{
    return !m->keeps_types && change_at_work(m)->kind == FY_DEQUANTIZED;
}

/* Whether elements become others on the way. */
static bool is_changed(const fy_maker *m)
{
    return is_dequantized(m) || (!m->keeps_types && change_at_work(m)->kind == FY_CAST);
}

/* The box of the scales of a hull of codes, which may begin and end within blocks. */
static void find_scales(const fy_maker *m, const fy_box *hull, fy_box *scales)
{
    fy_change_scales_box(&change_at_work(m)->format, tensor_at_work(m)->n_dims, hull, scales);
}

static uint64_t scales_bytes(const fy_maker *m, const fy_box *hull)
{
    fy_box scales;
    find_scales(m, hull, &scales);
    uint64_t each = change_at_work(m)->format.scale_kind == FERRY_F32 ? sizeof(float) : 1;
    return fy_box_volume(scales.length, tensor_at_work(m)->n_dims) * each;
}

/* Whether a hull fits, and is mostly what is wanted. */
static bool fits(const fy_maker *m, const fy_nest *nest)
{
    fy_box hull;
    uint64_t wanted = fy_nest_volume(nest), bits = tensor_at_work(m)->dtype.element_bits, bytes;
    uint64_t changed = is_changed(m) ? m->making->unit_bytes : 0;
    fy_nest_hull(nest, &hull);
    if (fy_maker_makes_blocks(m, m->tensor)) {
        return fy_maker_has_room_for(m, &hull) && fy_maker_wants_blocks(m, nest);
    }
    uint64_t volume = fy_box_volume(hull.length, nest->n_dims); /* of a tensor: no overflow */
    bytes = volume * fy_unit_bytes((uint32_t)bits);
    return bytes <= m->room.hull_bytes && volume * changed <= m->room.cast_bytes &&
           (!is_dequantized(m) || scales_bytes(m, &hull) <= m->room.scales_bytes) &&
           (volume / SPARSE <= wanted || bytes <= SPARSE_BYTES);
}

/* The box of a tensor, its rows side by side. */
static ferry_status gather_hull(fy_gather *gather, uint32_t number, const fy_box *hull, char *to,
                                ferry_error *error)
{
    const fy_tensor *tensor = &gather->job->problem.tensors[number];
    uint32_t n = tensor->n_dims, unit = fy_unit_elements(tensor->dtype.element_bits);
    fy_window window = {.tensor = number,
                        .n_elements = unit * fy_box_volume(hull->length, n),
                        .n_boxes = 1,
                        .boxes = {*hull},
                        .is_tile = true};
    if (n > 0) {
        memcpy(window.shape, tensor->shape, n * sizeof *window.shape);
        window.boxes[0].begin[n - 1] *= unit;
        window.boxes[0].length[n - 1] *= unit;
        window.first = hull->begin[0]; /* they need not come in order, and this tells */
    }
    window.bytes = fy_bytes(window.n_elements, tensor->dtype.element_bits);
    if (fy_job_lacks(gather->job, number)) { /* of a hull not all is wanted */
        memset(to, 0, (size_t)window.bytes);
    }
    return fy_gather_read(gather, &window, to, error);
}

ferry_status fy_maker_gather(fy_maker *m, bool beside, uint32_t tensor, const fy_box *hull,
                             char *to, ferry_error *error)
{
    fy_gather *gather = beside ? m->beside : m->gather;
    bool *reads = beside ? &m->reads_beside : &m->reads;
    FY_TRY(*reads ? fy_gather_turn(gather, tensor, error) : fy_gather_begin(gather, tensor, error));
    *reads = true;
    return gather_hull(gather, tensor, hull, to, error);
}

/* Codes of a hull become products: what the cast needs for it. */
static ferry_status set_scales(fy_maker *m, const fy_box *hull, fy_cast *cast, ferry_error *error)
{
    const fy_block_format *format = &change_at_work(m)->format;
    bool is_float = format->scale_kind == FERRY_F32;
    uint32_t row = tensor_at_work(m)->n_dims - 2;
    fy_box box;
    find_scales(m, hull, &box);
    cast->overflow = FY_OVERFLOW_PLAIN;
    cast->has_plain_nans = true;
    cast->n_rows = hull->length[row];
    cast->n_columns = hull->length[row + 1];
    cast->from_scales = (fy_cast_scales){
        .values = is_float ? (const float *)(const void *)m->scales : NULL,
        .powers = is_float ? NULL : (const unsigned char *)m->scales,
        .block = {format->block[0], format->block[1]},
        .origin = {hull->begin[row] % format->block[0], hull->begin[row + 1] % format->block[1]},
        .pitch = box.length[row + 1],
        .plane = box.length[row] * box.length[row + 1]};
    return fy_maker_gather(m, true, change_at_work(m)->scales, &box, m->scales, error);
}

/* What the elements of a hull become, side by side as they are. */
static ferry_status change_hull(fy_maker *m, const fy_box *hull, char *to, ferry_error *error)
{
    uint64_t n = fy_box_volume(hull->length, tensor_at_work(m)->n_dims);
    uint32_t to_kind = change_at_work(m)->dtype.kind;
    fy_cast cast = {.from_kind = tensor_at_work(m)->dtype.kind,
                    .to_kind = to_kind,
                    .overflow = fy_cast_usual_overflow(to_kind),
                    .n_rows = 1,
                    .n_columns = n};
    if (is_dequantized(m)) {
        FY_TRY(set_scales(m, hull, &cast, error));
    }
    fy_area in = fy_area_flat(0, n * fy_cast_element_bytes(cast.from_kind));
    fy_area out = fy_area_flat(0, n * fy_cast_element_bytes(cast.to_kind));
    fy_area_cast_cached(&cast, &out, to, &in, m->hull, 0, n);
    return FERRY_OK;
}

/* Loops from `loop` on, with so many bytes in the hull for a turn of each. */
static void copy_loops(const fy_maker *m, const fy_nest *nest, const uint64_t *from_stride,
                       uint32_t loop, char *to, const char *from)
{
    uint64_t unit = m->making->unit_bytes, stride[FERRY_MAX_DIMS];
    uint32_t n = nest->n_loops - loop;
    /* An area has fewer dimensions than there may be loops; and none that stand still. */
    bool is_area = n <= FERRY_MAX_DIMS;
    for (uint32_t i = loop; i < nest->n_loops; i++) {
        is_area = is_area && from_stride[i] > 0;
    }
    if (!is_area) {
        for (uint64_t i = 0; i < nest->count[loop]; i++) {
            copy_loops(m, nest, from_stride, loop + 1, to + i * nest->stride[loop] * unit,
                       from + i * from_stride[loop]);
        }
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        stride[i] = nest->stride[loop + i] * unit;
    }
    fy_area in = fy_area_of(0, unit, n, nest->count + loop, from_stride + loop);
    fy_area out = fy_area_of(0, unit, n, nest->count + loop, stride);
    fy_area_copy_cached(&out, to, &in, from, 0, out.bytes);
}

/* Sets down what the boxes want of a hull. */
static void spread(const fy_maker *m, const fy_nest *nest, const fy_box *hull, const char *from)
{
    uint64_t row[FERRY_MAX_DIMS], from_stride[FY_MAX_LOOPS], pitch = m->making->unit_bytes;
    for (uint32_t d = nest->n_dims; d-- > 0;) {
        row[d] = pitch;
        pitch *= hull->length[d];
    }
    for (uint32_t i = 0; i < nest->n_loops; i++) {
        from_stride[i] = 0;
        for (uint32_t d = 0; d < nest->n_dims; d++) {
            from_stride[i] += nest->step[i][d] * row[d];
        }
    }
    copy_loops(m, nest, from_stride, 0, place_in_window(m, nest), from);
}

/* Of codes or scales that were made, which lie within whole blocks. */
static ferry_status set_down_blocks(fy_maker *m, const fy_nest *nest, const fy_box *hull,
                                    ferry_error *error)
{
    fy_box around;
    const char *made;
    uint64_t at = 0;
    FY_TRY(fy_maker_make_blocks(m, hull, &made, &around, error));
    for (uint32_t d = 0; d < nest->n_dims; d++) {
        at = at * around.length[d] + (hull->begin[d] - around.begin[d]);
    }
    spread(m, nest, &around, made + at * m->making->unit_bytes);
    return FERRY_OK;
}

static ferry_status set_down(fy_maker *m, const fy_nest *nest, ferry_error *error)
{
    fy_box hull;
    fy_nest_hull(nest, &hull);
    if (fy_maker_makes_blocks(m, m->tensor)) {
        return set_down_blocks(m, nest, &hull, error);
    }
    bool is_dense = fy_nest_is_dense(nest, &hull), changes = is_changed(m);
    char *there = place_in_window(m, nest);
    char *to = is_dense && !changes ? there : m->hull;
    FY_TRY(fy_maker_gather(m, false, m->tensor, &hull, to, error));
    if (changes) {
        FY_TRY(change_hull(m, &hull, is_dense ? there : m->cast, error));
    }
    if (!is_dense) {
        spread(m, nest, &hull, changes ? m->cast : m->hull);
    }
    return FERRY_OK;
}

/* The loop that goes furthest in the tensor: without it the hull is small. */
static uint32_t farthest_loop(const fy_maker *m, const fy_nest *nest)
{
    uint64_t most = 0, shape[FERRY_MAX_DIMS];
    uint32_t farthest = 0;
    const fy_parameter *p = &m->boxed->side->parameters[m->making->parameter];
    unit_shape(tensor_at_work(m), p->dtype.element_bits, shape);
    for (uint32_t i = 0; i < nest->n_loops; i++) {
        uint64_t at = 0;
        for (uint32_t d = 0; d < nest->n_dims; d++) {
            at = at * shape[d] + nest->step[i][d];
        }
        if (at > most) {
            most = at;
            farthest = i;
        }
    }
    return farthest;
}

/* What lies in the window, in hulls that fit. */
static ferry_status set_down_box(void *context, fy_nest *nest, ferry_error *error)
{
    fy_maker *m = context;
    FY_TRY(fy_gather_check_stop(m->gather, error));
    if (nest->n_loops == 0 || fits(m, nest)) {
        return set_down(m, nest, error);
    }
    uint32_t loop = farthest_loop(m, nest);
    uint64_t count = nest->count[loop], n = count;
    fy_nest part = *nest;
    while (n > 1 && !fits(m, &part)) {
        n = (n + 1) / 2;
        part = *nest;
        fy_nest_take(&part, loop, 0, n);
    }
    for (uint64_t i = 0, here = 0; i < count; i += here) {
        here = fy_maker_turns_to_line(m, m->tensor, nest, loop, i, fy_min(n, count - i));
        part = *nest;
        fy_nest_take(&part, loop, i, here);
        FY_TRY(set_down_box(m, &part, error));
    }
    return FERRY_OK;
}

/* ---- fills ---- */

static ferry_status set_down_fill(void *context, fy_nest *nest, ferry_error *error)
{
    const fy_maker *m = context;
    uint64_t unit = m->making->unit_bytes, index[FY_MAX_LOOPS] = {0};
    uint32_t n = nest->n_loops, inner = n == 0 ? 0 : n - 1, loop;
    uint64_t count = n == 0 ? 1 : nest->count[inner], stride = n == 0 ? 0 : nest->stride[inner];
    char *at = place_in_window(m, nest);
    (void)error;
    do {
        for (uint64_t i = 0; i < count; i++) {
            memcpy(at + i * stride * unit, m->bits, unit);
        }
        for (loop = inner; loop > 0; loop--) {
            at += nest->stride[loop - 1] * unit;
            if (++index[loop - 1] < nest->count[loop - 1]) {
                break;
            }
            at -= nest->count[loop - 1] * nest->stride[loop - 1] * unit;
            index[loop - 1] = 0;
        }
    } while (loop > 0);
    return FERRY_OK;
}

static bool is_zero(const fy_fill *fill)
{
    static const unsigned char zero[sizeof fill->bits];
    return memcmp(fill->bits, zero, sizeof zero) == 0;
}

/* ---- windows ---- */

/*
 * Where a window should end: behind a box that ends within it, or a whole number of the longest
 * rows that fit, so that the next one does not begin in the midst of one and read it again.
 */
static uint64_t choose_end(const fy_maker *m, const fy_making *making)
{
    uint64_t begin = making->next, end = fy_min(begin + making->step, making->n_units);
    for (size_t i = 0; i < making->n_active; i++) {
        const fy_making_item *item = &making->items[making->active[i]];
        fy_nest nest;
        if (item->first > begin || item->last < begin ||
            !nest_of(m->boxed, making->parameter, item->number, &nest)) {
            continue;
        }
        if (item->last < end) {
            return item->last + 1 - begin >= making->step / 4 ? item->last + 1 : end;
        }
        uint32_t tensor = item->number < m->boxed->side->parameters[making->parameter].n_boxes
                              ? tensor_of(m, making->parameter, item->number)
                              : FY_NONE;
        for (uint32_t l = 0; l < nest.n_loops; l++) {
            uint64_t n = (end - nest.offset) / nest.stride[l];
            n = tensor == FY_NONE ? n : fy_maker_turns_to_line(m, tensor, &nest, l, 0, n);
            uint64_t whole = n * nest.stride[l] + nest.offset;
            if (nest.stride[l] > 1 && whole > begin) {
                return whole;
            }
        }
        return end;
    }
    return end;
}

/* Of the items that may be in the window: those that have begun, without those that have ended. */
static void list_active(fy_making *making, uint64_t begin, uint64_t end)
{
    size_t kept = 0;
    while (making->n_begun < making->n_items && making->items[making->n_begun].first < end) {
        making->active[making->n_active++] = (uint32_t)making->n_begun++;
    }
    for (size_t i = 0; i < making->n_active; i++) {
        if (making->items[making->active[i]].last >= begin) {
            making->active[kept++] = making->active[i];
        }
    }
    making->n_active = kept;
}

static ferry_status set_down_item(fy_maker *m, const fy_making_item *item, ferry_error *error)
{
    const fy_parameter *p = &m->boxed->side->parameters[m->making->parameter];
    fy_nest nest;
    if (item->first >= m->end || !nest_of(m->boxed, m->making->parameter, item->number, &nest)) {
        return FERRY_OK;
    }
    if (item->number < p->n_boxes) {
        m->tensor = tensor_of(m, m->making->parameter, item->number);
        return fy_nest_clip(&nest, m->begin, m->end, set_down_box, m, error);
    }
    const fy_fill *fill = &m->boxed->side->fills[p->first_fill + item->number - p->n_boxes];
    m->bits = fill->bits;
    return is_zero(fill) ? FERRY_OK
                         : fy_nest_clip(&nest, m->begin, m->end, set_down_fill, m, error);
}

ferry_status fy_maker_next(fy_maker *m, fy_making *making, uint64_t *at_out, uint64_t *bytes_out,
                           ferry_error *error)
{
    *bytes_out = 0;
    if (making->next >= making->n_units) {
        return FERRY_OK;
    }
    list_active(making, making->next, fy_min(making->next + making->step, making->n_units));
    m->making = making;
    m->begin = making->next;
    m->end = choose_end(m, making);
    if (making->has_gaps) {
        memset(m->window, 0, (m->end - m->begin) * making->unit_bytes);
    }
    for (size_t i = 0; i < making->n_active; i++) {
        FY_TRY(set_down_item(m, &making->items[making->active[i]], error));
    }
    *at_out = m->begin * making->unit_bytes;
    *bytes_out = (m->end - m->begin) * making->unit_bytes;
    making->next = m->end;
    return FERRY_OK;
}
