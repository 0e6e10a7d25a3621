/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* A result in boxes: its layout, the forms of its files, and how its parameters are made. */
#include "checkpoint/reshard.h"

#include "base/checked.h"
#include "base/sort.h"
#include "checkpoint/maker_blocks.h"
#include "checkpoint/reshard_task.h"
#include "checkpoint/st_dtype.h"

#include <string.h>

/* ---- what it is ---- */

/* The tensors as they become, with the numbers of the job. */
static ferry_status list_tensors(const ferry_reshard *c, fy_boxed_tensor **tensors_out,
                                 ferry_error *error)
{
    const ferry_spec *spec = c->job.spec;
    fy_boxed_tensor *tensors = fy_alloc(spec->n_tensors, sizeof *tensors);
    FY_TRY(fy_check_memory(tensors != NULL, "the tensors of a layout", error));
    for (uint32_t t = 0; t < spec->n_tensors; t++) {
        const fy_tensor *tensor = &spec->tensors[t];
        tensors[t] = (fy_boxed_tensor){.name = tensor->name,
                                       .dtype = c->job.changes[t].dtype,
                                       .shape = tensor->shape,
                                       .n_dims = tensor->n_dims,
                                       .is_consumed = tensor->is_source_only};
    }
    *tensors_out = tensors;
    return FERRY_OK;
}

/* The name by which a subset takes a box: scales that are made come with their weights. */
static const char *asked_name(const ferry_reshard *c, const char *tensor)
{
    uint32_t t = fy_spec_find_tensor(c->job.spec, tensor); /* what is not there is told later */
    bool is_made = t != FY_NONE && fy_change_is_made(&c->job.changes[t]);
    return is_made ? c->job.spec->tensors[c->job.changes[t].weight].name : tensor;
}

/* A parameter is wanted with all its tensors, or with none. */
static ferry_status choose_parameter(ferry_reshard *c, const ferry_side *side,
                                     const fy_subset *subset, size_t number, ferry_error *error)
{
    const fy_parameter *p = &side->parameters[number];
    const char *in = NULL, *out = NULL;
    for (uint32_t i = 0; i < p->n_boxes; i++) {
        const char *name = side->tensors[side->boxes[p->first_box + i].tensor].name;
        *(fy_subset_has(subset, asked_name(c, name)) ? &in : &out) = name;
    }
    if (in != NULL && out != NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: the subset \"%s\" has \"%s\", but not \"%s\", and the parameter \"%s\" "
                       "holds both",
                       c->to, c->subset, in, out, p->name);
    }
    c->wants_parameter[number] = p->n_boxes == 0 ? fy_subset_has(subset, p->name) : in != NULL;
    return FERRY_OK;
}

static const char *tensor_name(const void *context, size_t i)
{
    return ((const ferry_reshard *)context)->job.spec->tensors[i].name;
}

static ferry_status check_unused(const ferry_reshard *c, fy_subset *subset, ferry_error *error)
{
    const fy_subset_pattern *unused =
        fy_subset_find_unused(subset, c->job.spec->n_tensors, tensor_name, c);
    return unused == NULL ? FERRY_OK
                          : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                                    "%s: no tensor matches \"%.*s\" of the subset \"%s\"",
                                    c->from->path, (int)unused->length, unused->text, c->subset);
}

static ferry_status choose_parameters(ferry_reshard *c, const ferry_side *sorted,
                                      ferry_error *error)
{
    fy_subset subset;
    size_t n = sorted->n_parameters;
    c->wants_parameter = fy_alloc_zeroed(n, sizeof *c->wants_parameter);
    FY_TRY(fy_check_memory(c->wants_parameter != NULL, "the parameters of a layout", error));
    ferry_status status = fy_subset_create(c->subset, &subset, error);
    for (size_t p = 0; p < n && status == FERRY_OK; p++) {
        status = choose_parameter(c, sorted, &subset, p, error);
    }
    FY_THEN(status, c->subset == NULL ? FERRY_OK : check_unused(c, &subset, error));
    fy_subset_cleanup(&subset);
    return status;
}

static uint32_t tensor_of_box(const ferry_reshard *c, const fy_parameter *p, uint32_t i)
{
    return fy_boxed_tensor_of(c->boxed, &c->boxed->side->boxes[p->first_box + i]);
}

/* What is asked for is meant. */
static ferry_status check_quantized(const ferry_reshard *c, const bool *wanted, ferry_error *error)
{
    bool any = c->quantize == NULL || c->boxes_quantize; /* which were looked at one by one */
    for (uint32_t t = 0; t < c->job.spec->n_tensors && !any; t++) {
        const fy_change *change = &c->job.changes[t];
        any = wanted[t] && (change->kind == FY_QUANTIZED || fy_change_is_made(change));
    }
    return any ? FERRY_OK
               : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "%s: has no box of a tensor that is quantized to %s; say which are by "
                         "--quantize FORMAT=PATTERN, or leave the option out",
                         c->to, c->quantize);
}

/* A parameter has one type, also in the words of files; and boxes cut. */
static ferry_status check_words(const ferry_reshard *c, const fy_parameter *p, ferry_error *error)
{
    for (uint32_t i = 0; i < p->n_boxes; i++) {
        uint32_t first = tensor_of_box(c, p, 0), t = tensor_of_box(c, p, i);
        const char *word = fy_reshard_type(c, t).text, *other = fy_reshard_type(c, first).text;
        if (fy_job_model_tensor(&c->job, t)->is_opaque) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: parameter \"%s\" has a box of \"%s\", which is %s: its elements "
                           "are not whole bytes, and it cannot be in boxes",
                           c->to, p->name, c->job.spec->tensors[t].name, word);
        }
        if (strcmp(word, other) != 0) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: parameter \"%s\" has boxes of \"%s\", which is %s, and of \"%s\", "
                           "which is %s",
                           c->to, p->name, c->job.spec->tensors[first].name, other,
                           c->job.spec->tensors[t].name, word);
        }
    }
    return FERRY_OK;
}

static ferry_status check_boxes(const ferry_reshard *c, ferry_error *error)
{
    for (size_t p = 0; p < c->boxed->side->n_parameters; p++) {
        FY_TRY(check_words(c, &c->boxed->side->parameters[p], error));
    }
    return FERRY_OK;
}

/* What no box is of need not be there. */
static void leave_out_rest(ferry_reshard *c, bool *wanted)
{
    ferry_spec *spec = c->job.spec;
    const ferry_side *side = c->boxed->side;
    for (size_t p = 0; p < side->n_parameters; p++) {
        const fy_parameter *parameter = &side->parameters[p];
        for (uint32_t i = 0; c->wants_parameter[p] && i < parameter->n_boxes; i++) {
            wanted[fy_boxed_tensor_of(c->boxed, &side->boxes[parameter->first_box + i])] = true;
        }
    }
    for (uint32_t t = 0; t < spec->n_tensors; t++) {
        spec->tensors[t].is_source_only = !wanted[t];
    }
}

static bool is_zero(const fy_fill *fill)
{
    static const unsigned char zero[sizeof fill->bits];
    return memcmp(fill->bits, zero, sizeof zero) == 0;
}

/* A tensor of a parameter that is cast: FY_NONE. */
static uint32_t find_cast(const ferry_reshard *c, const ferry_side *sorted, const fy_parameter *p)
{
    for (uint32_t i = 0; i < p->n_boxes; i++) {
        const fy_said_box *box = &sorted->boxes[p->first_box + i];
        uint32_t t = fy_spec_find_tensor(c->job.spec, sorted->tensors[box->tensor].name);
        if (t != FY_NONE && c->job.changes[t].kind == FY_CAST) {
            return t;
        }
    }
    return FY_NONE;
}

static ferry_status fail_untyped(const ferry_reshard *c, const fy_parameter *p, uint32_t tensor,
                                 ferry_error *error)
{
    const char *name = c->job.spec->tensors[tensor].name;
    char from[FERRY_DTYPE_TEXT_BYTES], to[FERRY_DTYPE_TEXT_BYTES];
    ferry_dtype_format(c->job.spec->tensors[tensor].dtype, from, sizeof from);
    ferry_dtype_format(c->job.changes[tensor].dtype, to, sizeof to);
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s: parameter \"%s\" has a fill with bits and no \"dtype\", and \"%s\" "
                   "becomes %s of %s by --cast: say \"dtype\": \"%s\", and the bits in it",
                   c->to, p->name, name, to, from, to);
}

/*
 * The bits of a fill are of the parameter's type. Where that is not said it is the one that tensors
 * become, and who wrote the layout may have meant the one that they have. Of a parameter that is
 * left out nobody writes them, so that they need no type: there they are as good as zeros.
 */
static ferry_status check_fills(const ferry_reshard *c, ferry_side *sorted, ferry_error *error)
{
    for (size_t i = 0; i < sorted->n_fills; i++) {
        fy_fill *fill = &sorted->fills[i];
        const fy_parameter *p = &sorted->parameters[fill->parameter];
        uint32_t t = p->dtype.kind != 0 || is_zero(fill) ? FY_NONE : find_cast(c, sorted, p);
        if (t == FY_NONE) {
            continue;
        }
        if (c->wants_parameter[fill->parameter]) {
            return fail_untyped(c, p, t, error);
        }
        fill->n_digits = 0;
        memset(fill->bits, 0, sizeof fill->bits);
    }
    return FERRY_OK;
}

/* What is wanted of a side, before its types are known: fills of the rest need none. */
static ferry_status choose(ferry_reshard *c, ferry_side *side, ferry_error *error)
{
    FY_TRY(side->is_sorted ? FERRY_OK : fy_side_sort(side, error));
    FY_TRY(choose_parameters(c, side, error));
    return check_fills(c, side, error);
}

ferry_status fy_reshard_make_boxed(ferry_reshard *c, ferry_error *error)
{
    fy_boxed_tensor *tensors = NULL;
    ferry_side *side = c->boxes;
    c->boxes = NULL;
    ferry_status status = choose(c, side, error);
    FY_THEN(status, list_tensors(c, &tensors, error));
    if (status != FERRY_OK) {
        ferry_side_destroy(side);
        return status;
    }
    status = fy_boxed_create(side, c->to, tensors, c->job.spec->n_tensors, &c->boxed, error);
    fy_free(tensors);
    FY_THEN(status, fy_boxed_list_ranks(c->boxed, c->wants_parameter, error));
    FY_THEN(status, check_boxes(c, error));
    bool *wanted = fy_alloc_zeroed(c->job.spec->n_tensors, sizeof *wanted);
    FY_THEN(status, fy_check_memory(wanted != NULL, "the tensors of a layout", error));
    if (status == FERRY_OK) {
        leave_out_rest(c, wanted);
        status = check_quantized(c, wanted, error);
    }
    fy_free(wanted);
    return status;
}

uint64_t fy_reshard_least_bytes(const ferry_reshard *c)
{
    const ferry_spec *spec = c->job.spec;
    uint64_t least = 0;
    for (uint32_t t = 0; t < spec->n_tensors; t++) {
        const fy_change *change = &c->job.changes[t];
        bool is_there =
            change->kind == FY_QUANTIZED &&
            (!spec->tensors[t].is_source_only || !spec->tensors[change->scales].is_source_only);
        least = fy_max(least, is_there ? fy_maker_least_bytes(&c->job, t) : 0);
    }
    return least;
}

/* Scales are made of all values of their blocks; those of matrices, without which no code and no
 * other scale is made, of all that there are. */
static void count_values(const ferry_reshard *c, uint64_t *elements)
{
    for (uint32_t t = 0; t < c->job.spec->n_tensors; t++) {
        const fy_change *change = &c->job.changes[t];
        uint64_t n = elements[t];
        if (change->kind != FY_QUANTIZED && !fy_change_is_made(change)) {
            continue;
        }
        const fy_block_format *format = &c->job.changes[change->weight].format;
        uint64_t each = change->kind == FY_QUANTIZED ? 1 : format->block[0] * format->block[1];
        elements[t] = 0;
        if ((n > 0 && fy_format_has_tensor_scale(format)) || !fy_mul(n, each, &n)) {
            n = UINT64_MAX;
        }
        elements[change->weight] = fy_max(elements[change->weight], n);
    }
}

/* At most all of a tensor: which elements several boxes have in common is not worked out. */
ferry_status fy_reshard_count_boxes(ferry_reshard *c, ferry_error *error)
{
    const ferry_side *side = c->boxed->side;
    uint64_t *elements = fy_alloc_zeroed(c->job.spec->n_tensors, sizeof *elements);
    FY_TRY(fy_check_memory(elements != NULL, "what a reshard reads", error));
    for (size_t i = 0; i < side->n_boxes; i++) {
        const fy_said_box *box = &side->boxes[i];
        uint64_t *its = &elements[fy_boxed_tensor_of(c->boxed, box)];
        fy_strided places;
        uint64_t n = 0, last = 0;
        if (c->wants_parameter[box->parameter] && fy_said_box_places(box, &places) &&
            fy_strided_measure(&places, &n, &last) && !fy_add(*its, n, its)) {
            *its = UINT64_MAX;
        }
    }
    count_values(c, elements);
    for (uint32_t t = 0; t < c->job.spec->n_tensors; t++) {
        const fy_tensor *tensor = &c->job.spec->tensors[t];
        uint64_t n = fy_min(elements[t], fy_box_volume(tensor->shape, tensor->n_dims));
        c->totals.read_bytes += fy_ceil_div(n * tensor->dtype.element_bits, 8);
        if (n > 0 && c->job.changes[t].kind == FY_DEQUANTIZED) {
            const fy_tensor *scales = &c->job.spec->tensors[c->job.changes[t].scales];
            n = fy_box_volume(scales->shape, scales->n_dims);
            c->totals.read_bytes += n * (scales->dtype.element_bits / 8);
            if (c->job.changes[t].matrix_scales != FY_NONE) {
                c->totals.read_bytes +=
                    fy_box_volume(tensor->shape, tensor->n_dims - 2) * sizeof(float);
            }
        }
    }
    fy_free(elements);
    return FERRY_OK;
}

/* ---- its files ---- */

/* A parameter's shape is what the side says, or one dimension. */
static ferry_status describe(ferry_reshard *c, uint32_t number, fy_form_tensor *form,
                             ferry_error *error)
{
    const fy_parameter *p = &c->boxed->side->parameters[number];
    fy_out_type type = {.text = fy_st_word_of_kind(p->dtype.kind)};
    if (p->n_boxes > 0) { /* which also knows words of files for what ferry has no name for */
        type =
            fy_reshard_type(c, fy_boxed_tensor_of(c->boxed, &c->boxed->side->boxes[p->first_box]));
    }
    if (type.text == NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: parameter \"%s\" has no box, and files have no word for its dtype",
                       c->to, p->name);
    }
    *form = (fy_form_tensor){.name = p->name,
                             .dtype_text = type.text,
                             .element_bits = p->dtype.element_bits,
                             .n_dims = p->shape == NULL ? 1 : p->n_dims,
                             .shape = p->shape == NULL ? &p->elements : p->shape,
                             .bytes = fy_boxed_bytes(c->boxed, number),
                             .tag = number};
    return FERRY_OK;
}

ferry_status fy_reshard_add_parameters(ferry_reshard *c, ferry_error *error)
{
    const ferry_side *side = c->boxed->side;
    for (uint32_t p = 0; p < side->n_parameters; p++) {
        const fy_rank_list *holders = fy_boxed_holders(c->boxed, p);
        fy_form_tensor form;
        if (!c->wants_parameter[p]) {
            continue;
        }
        FY_TRY(describe(c, p, &form, error));
        for (uint32_t i = 0; i < holders->n; i++) {
            fy_out_file *file = &c->out[fy_boxed_place(c->boxed, holders->ranks[i])];
            FY_TRY(FY_GROW(file->form.tensors, file->capacity, file->form.n_tensors + 1,
                           "the files of a result", error));
            file->form.tensors[file->form.n_tensors++] = form;
        }
    }
    for (uint32_t t = 0; t < c->job.spec->n_tensors; t++) {
        c->totals.n_tensors += c->job.is_wanted[t];
    }
    return FERRY_OK;
}

/* ---- in which order ---- */

/* Parameters that are made in turn: they need parts of the same rows. */
typedef struct unit {
    uint64_t key; /* where they come from */
    uint32_t first, n;
} unit;

typedef struct named {
    const char *name;
    uint32_t rank; /* the first that has it */
    uint32_t number;
} named;

static int compare_named(const void *a, const void *b)
{
    const named *x = a, *y = b;
    int names = strcmp(x->name, y->name);
    if (names != 0) {
        return names;
    }
    if (x->rank != y->rank) {
        return x->rank < y->rank ? -1 : 1;
    }
    return (x->number > y->number) - (x->number < y->number);
}

static int compare_units(const void *a, const void *b)
{
    const unit *x = a, *y = b;
    if (x->key != y->key) {
        return x->key < y->key ? -1 : 1;
    }
    return (x->first > y->first) - (x->first < y->first);
}

/* Files are read as they lie; only what is so large that a thread could be left alone with it at
 * the end comes first. */
static uint64_t key_of(const ferry_reshard *c, uint32_t number)
{
    const fy_parameter *p = &c->boxed->side->parameters[number];
    uint64_t large = c->totals.file_bytes / (8 * (uint64_t)c->buffers.n_threads);
    uint64_t own = fy_boxed_bytes(c->boxed, number), source = 0;
    if (p->n_boxes > 0) {
        uint32_t t = fy_boxed_tensor_of(c->boxed, &c->boxed->side->boxes[p->first_box]);
        size_t leg = c->job.first_leg[t];
        source = leg < c->job.first_leg[t + 1] ? c->job.routes.legs[leg].source : t;
    }
    return own > large ? UINT32_MAX - fy_min(own >> 10, UINT32_MAX) : source + ((uint64_t)1 << 32);
}

/* How many of those of one name, from the first on, take turns. */
static uint32_t count_in_turn(const ferry_reshard *c, const named *all, uint32_t first, uint32_t n)
{
    enum { MOST_BOXES = 1 << 16 };
    const fy_parameter *parameters = c->boxed->side->parameters;
    uint64_t boxes = 0;
    uint32_t count = 1;
    if (!fy_maker_shares(c->boxed, all[first].number)) {
        return 1;
    }
    boxes = parameters[all[first].number].n_boxes;
    while (first + count < n && count < FY_MOST_CELLS_AT_ONCE &&
           strcmp(all[first + count].name, all[first].name) == 0 &&
           fy_maker_shares(c->boxed, all[first + count].number)) {
        boxes += parameters[all[first + count].number].n_boxes;
        if (boxes > MOST_BOXES) {
            break;
        }
        count++;
    }
    return count;
}

static ferry_status arrange(fy_reshard_work *w, named *all, uint32_t n, ferry_error *error)
{
    const ferry_reshard *c = w->reshard;
    unit *units = fy_alloc(n, sizeof *units);
    w->order = fy_alloc(n, sizeof *w->order);
    w->unit_begin = fy_alloc(n + (size_t)1, sizeof *w->unit_begin);
    if (units == NULL || w->order == NULL || w->unit_begin == NULL) {
        fy_free(units);
        return fy_fail_no_memory(error, "the parameters of a reshard");
    }
    for (uint32_t i = 0; i < n;) {
        uint32_t count = count_in_turn(c, all, i, n);
        units[w->n_order++] = (unit){.key = key_of(c, all[i].number), .first = i, .n = count};
        i += count;
    }
    fy_sort(units, w->n_order, sizeof *units, compare_units);
    uint32_t at = 0;
    for (size_t u = 0; u < w->n_order; u++) {
        w->unit_begin[u] = at;
        for (uint32_t i = 0; i < units[u].n; i++) {
            w->order[at++] = all[units[u].first + i].number;
        }
    }
    w->unit_begin[w->n_order] = at;
    fy_free(units);
    return FERRY_OK;
}

ferry_status fy_reshard_order_parameters(fy_reshard_work *w, ferry_error *error)
{
    const ferry_reshard *c = w->reshard;
    const ferry_side *side = c->boxed->side;
    uint32_t n = 0;
    named *all = fy_alloc(side->n_parameters, sizeof *all);
    FY_TRY(fy_check_memory(all != NULL, "the parameters of a reshard", error));
    for (uint32_t p = 0; p < side->n_parameters; p++) {
        if (c->wants_parameter[p]) {
            all[n++] = (named){.name = side->parameters[p].name,
                               .rank = fy_boxed_holders(c->boxed, p)->ranks[0],
                               .number = p};
        }
    }
    fy_sort(all, n, sizeof *all, compare_named);
    ferry_status status = arrange(w, all, n, error);
    fy_free(all);
    return status;
}

/* ---- making ---- */

typedef struct turn {
    fy_making making;
    bool is_there; /* an earlier run has made it */
    uint64_t checksum;
} turn;

/* To all ranks that have it. */
static ferry_status write_window(fy_reshard_work *w, const fy_reshard_worker *worker,
                                 uint32_t number, uint64_t at, uint64_t n_bytes, ferry_error *error)
{
    const ferry_reshard *c = w->reshard;
    const fy_rank_list *holders = fy_boxed_holders(c->boxed, number);
    for (uint32_t i = 0; i < holders->n; i++) {
        uint32_t file = fy_boxed_place(c->boxed, holders->ranks[i]);
        const fy_out_file *out = &c->out[file];
        uint64_t begin = out->form.header_bytes + fy_out_find(out, number)->begin;
        FY_TRY(fy_reshard_write(w, file, begin + at, worker->maker.window, n_bytes, error));
        atomic_fetch_add(&w->done_bytes, n_bytes);
    }
    return FERRY_OK;
}

/* Whether an earlier run has made it, in all files. */
static ferry_status check_resumed(fy_reshard_work *w, fy_reshard_worker *worker, uint32_t number,
                                  turn *t, ferry_error *error)
{
    const uint64_t *recorded = w->resumed == NULL ? NULL : w->resumed[number];
    const fy_rank_list *holders = fy_boxed_holders(w->reshard->boxed, number);
    t->is_there = recorded != NULL;
    for (uint32_t i = 0; i < holders->n && t->is_there; i++) {
        uint32_t file = fy_boxed_place(w->reshard->boxed, holders->ranks[i]);
        FY_TRY(fy_out_hash_file(w, worker, file, number, &t->checksum, error));
        t->is_there = t->checksum == recorded[0];
    }
    if (t->is_there) {
        fy_out_count_resumed(w, holders->n * fy_boxed_bytes(w->reshard->boxed, number));
    }
    return FERRY_OK;
}

static ferry_status record(fy_reshard_work *w, uint32_t number, const turn *t, ferry_error *error)
{
    const ferry_reshard *c = w->reshard;
    const fy_rank_list *holders = fy_boxed_holders(c->boxed, number);
    if (!t->is_there && w->journal.fd >= 0) {
        FY_TRY(fy_journal_append(&w->journal, number, &t->checksum, 1, error));
        atomic_store(&w->has_records, true);
    }
    for (uint32_t i = 0; i < holders->n; i++) {
        fy_out_file *file = &c->out[fy_boxed_place(c->boxed, holders->ranks[i])];
        fy_out_find(file, number)->checksum = t->checksum;
    }
    return FERRY_OK;
}

/* A window of each in turn: they share what is read. */
static ferry_status make_in_turn(fy_reshard_work *w, fy_reshard_worker *worker,
                                 const uint32_t *numbers, turn *turns, uint32_t n,
                                 ferry_error *error)
{
    bool more = true;
    while (more) {
        more = false;
        for (uint32_t i = 0; i < n; i++) {
            uint64_t at = 0, n_bytes = 0;
            if (turns[i].is_there) {
                continue;
            }
            FY_TRY(fy_gather_check_stop(&worker->gather, error));
            FY_TRY(fy_maker_next(&worker->maker, &turns[i].making, &at, &n_bytes, error));
            fy_hasher_update(&worker->hashers[i], worker->maker.window, (size_t)n_bytes);
            FY_TRY(write_window(w, worker, numbers[i], at, n_bytes, error));
            more = more || n_bytes > 0;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        turns[i].checksum =
            turns[i].is_there ? turns[i].checksum : fy_hasher_end(&worker->hashers[i]);
    }
    return FERRY_OK;
}

static ferry_status begin_turns(fy_reshard_work *w, fy_reshard_worker *worker,
                                const uint32_t *numbers, turn *turns, uint32_t n,
                                ferry_error *error)
{
    for (uint32_t i = 0; i < n; i++) {
        fy_hasher_begin(&worker->hashers[i]);
        FY_TRY(check_resumed(w, worker, numbers[i], &turns[i], error));
        if (!turns[i].is_there) {
            FY_TRY(fy_making_begin(&turns[i].making, &worker->maker, numbers[i], error));
        }
    }
    fy_maker_begin(&worker->maker);
    return FERRY_OK;
}

ferry_status fy_reshard_unit(fy_reshard_work *w, fy_reshard_worker *worker, size_t number,
                             ferry_error *error)
{
    const uint32_t *numbers = w->order + w->unit_begin[number];
    uint32_t n = w->unit_begin[number + 1] - w->unit_begin[number];
    turn *turns = fy_alloc_zeroed(n, sizeof *turns);
    FY_TRY(fy_check_memory(turns != NULL, "the parameters of a reshard", error));
    ferry_status status = begin_turns(w, worker, numbers, turns, n, error);
    FY_THEN(status, make_in_turn(w, worker, numbers, turns, n, error));
    FY_THEN(status, fy_maker_end(&worker->maker, error));
    for (uint32_t i = 0; i < n; i++) {
        FY_THEN(status, record(w, numbers[i], &turns[i], error));
        fy_making_cleanup(&turns[i].making);
    }
    fy_free(turns);
    return status;
}

/* ---- its layout file ---- */

void fy_reshard_write_boxes(const ferry_reshard *c, fy_writer *writer)
{
    fy_write_text(writer, "{\n  \"format\": \"ferry.layout/1\",\n  \"boxes\": ");
    fy_side_write_parameters(writer, c->boxed->side, c->wants_parameter);
    fy_write_text(writer, ",\n  \"tensors\": [");
}
