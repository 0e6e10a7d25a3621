/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "collective/suite.h"

#include "support/devices.h"
#include "support/graphs.h"

#include <math.h>
#include <sched.h>
#include <unistd.h>

enum { GUARD = 64, GUARD_BYTE = 0xa5, POISON = 0xc3 };

/* Tensors */

static uint64_t elements_in(const scene *c, const call *what)
{
    return what->rows * what->columns * shape_in_chunks(&c->s, what->op);
}

static uint64_t elements_out(const scene *c, const call *what)
{
    return what->rows * what->columns * shape_out_chunks(&c->s, what->op);
}

static void tell(const scene *c, const call *what, char *text, size_t n_bytes)
{
    static const char *const data[N_DATA] = {"integers", "random", "cancelling", "bits"};
    snprintf(text, n_bytes, "%s %s %llux%llu of %s%s%s, call %llu, seed %llu",
             ferry_mixed_op_name(what->op), ferry_mixed_mode_name(what->mode),
             (unsigned long long)what->rows, (unsigned long long)what->columns, data[what->data],
             what->in_place ? " in place" : "",
             what->form == FORM_RUN    ? ""
             : what->form == FORM_WAIT ? " waited for"
                                       : " tested",
             (unsigned long long)c->n_calls, (unsigned long long)what->seed);
}

/* Room for a tensor between guards, at an odd place of this rank's own. */
static unsigned char *place(const scene *c, unsigned char **area, size_t *area_bytes, size_t bytes,
                            uint64_t seed)
{
    size_t whole = bytes + 2 * ROOM;
    uint64_t random = seed + c->at.rank;
    size_t skew = one_in(&random, 2) ? 0 : random_below(&random, 32);
    if (*area_bytes < whole) {
        free(*area);
        *area = take(c->me, whole);
        *area_bytes = whole;
    }
    memset(*area, GUARD_BYTE, whole);
    return *area + GUARD + skew * dtype_bytes(c->options.dtype) % (ROOM - 2 * GUARD);
}

static void check_guards(const scene *c, const unsigned char *area, const unsigned char *tensor,
                         size_t bytes, const char *which, const char *text)
{
    size_t before = (size_t)(tensor - area), after = bytes + 2 * ROOM - before - bytes;
    size_t wrong = mismatch_byte(area, before, GUARD_BYTE);
    if (wrong < before) {
        fail(c->me, "%s: %s: byte %zu before the %s was written", c->name, text, before - wrong,
             which);
    }
    wrong = mismatch_byte(tensor + bytes, after, GUARD_BYTE);
    if (wrong < after) {
        fail(c->me, "%s: %s: byte %zu behind the %s was written", c->name, text, wrong, which);
    }
}

static uint32_t load(uint32_t dtype, const unsigned char *tensor, uint64_t index)
{
    uint32_t bits = 0;
    memcpy(&bits, tensor + index * dtype_bytes(dtype), dtype_bytes(dtype)); /* little-endian */
    return bits;
}

/* Position of a rank among those that its input is summed with, and their number. */
static uint32_t position_of(const shape *s, const call *what, uint32_t rank, uint32_t *n_out)
{
    if (what->op != FERRY_MIXED_ALL_REDUCE_ALL_GATHER) {
        *n_out = s->w;
        return rank;
    }
    *n_out = s->tp;
    return seat_of(s, rank).tp;
}

static uint32_t input_of(const scene *c, const call *what, uint32_t rank, uint64_t index)
{
    uint32_t n = 1, position = position_of(&c->s, what, rank, &n);
    uint64_t seed = what->seed;
    if (what->op == FERRY_MIXED_ALL_REDUCE_ALL_GATHER) {
        seed += seat_of(&c->s, rank).dp * UINT64_C(0x51ed2701);
    }
    return input_bits(what->data, c->options.dtype, seed, position, n, index);
}

tensors scene_tensors(scene *c, const call *what)
{
    size_t element = dtype_bytes(c->options.dtype);
    size_t in_bytes = elements_in(c, what) * element, out_bytes = elements_out(c, what) * element;
    uint64_t in_rows = what->rows * shape_in_chunks(&c->s, what->op);
    uint64_t out_rows = what->rows * shape_out_chunks(&c->s, what->op);
    unsigned char *in, *out;
    if (what->in_place && in_bytes < out_bytes) {
        out = place(c, &c->out, &c->out_bytes, out_bytes, what->seed);
        memset(out, POISON, out_bytes);
        in = out + c->at.dp * in_bytes;
    } else {
        in = place(c, &c->in, &c->in_bytes, in_bytes, what->seed);
        out = in + (out_bytes < in_bytes ? c->at.dp * out_bytes : 0);
    }
    if (!what->in_place) {
        out = place(c, &c->out, &c->out_bytes, out_bytes, what->seed + 77);
        memset(out, POISON, out_bytes);
    }
    for (uint64_t i = 0; i < elements_in(c, what); i++) {
        uint32_t bits = input_of(c, what, c->at.rank, i);
        memcpy(in + i * element, &bits, element);
    }
    return (tensors){.in = {ferry_buffer_of(in, in_bytes), in_rows, what->columns},
                     .out = {ferry_buffer_of(out, out_bytes), out_rows, what->columns}};
}

/* Calls */

/* Whether what a rank has is the exact sum, or the tree's, or near enough. */
static void check_element(scene *c, const call *what, uint32_t chunk, const summands *set,
                          uint64_t index, uint32_t got, const char *text)
{
    uint32_t dtype = c->options.dtype, bits[ORACLE_MOST_RANKS];
    uint32_t whose = shape_in_chunks(&c->s, what->op) > 1 ? c->at.dp : 0;
    uint64_t from = index + whose * what->rows * what->columns;
    double x[ORACLE_MOST_RANKS], sum = 0;
    for (uint32_t i = 0; i < set->n; i++) {
        bits[i] = input_of(c, what, set->ranks[i], from);
        x[i] = widen(dtype, bits[i]);
        sum += x[i];
    }
    uint32_t wanted = set->n == 1 ? bits[0] : round_once(dtype, sum);
    if (set->n == 1 || what->data == DATA_INTEGERS || c->options.deterministic) {
        uint32_t tree = tree_bits(dtype, set, bits);
        c->n_ordered += tree != wanted;
        wanted = what->data == DATA_INTEGERS ? wanted : tree;
        if (got == wanted) {
            return;
        }
    } else if (fabs(widen(dtype, got) - sum) <=
               bound_of(&c->s, what->op, what->mode, dtype, set, x)) {
        return;
    }
    fail(c->me, "%s: %s: chunk %u element %llu is %#x = %g, not %#x = %g, bound %g", c->name, text,
         (unsigned)chunk, (unsigned long long)index, (unsigned)got, widen(dtype, got),
         (unsigned)wanted, set->n == 1 ? x[0] : sum,
         what->data == DATA_RANDOM ? bound_of(&c->s, what->op, what->mode, dtype, set, x) : 0.0);
}

/* The mode that DEFAULT stands for, whose bound counts. */
static uint32_t mode_behind(scene *c, const call *what, const tensors *t)
{
    rank_context *me = c->me;
    uint32_t mode = what->mode;
    if (mode == FERRY_MIXED_MODE_DEFAULT && c->options.use_autotune) {
        mode = FERRY_MIXED_AUTOTUNE;
    }
    if (mode == FERRY_MIXED_AUTOTUNE) {
        must(me,
             ferry_mixed_comm_select_autotune_mode(c->comm, what->op, &t->in, &mode, &me->error));
        expect(me, among(c->modes, c->n_modes, mode) && mode != FERRY_MIXED_AUTOTUNE,
               "autotune takes %u", (unsigned)mode);
    }
    if (mode == FERRY_MIXED_MODE_DEFAULT) {
        mode = c->s.tp > 1 && c->s.dp > 1 ? FERRY_MIXED_BASE_TP_DP : FERRY_MIXED_BASE_ONE;
    }
    return mode;
}

/* How many ranks have this output as well, and this rank's number among them. */
static uint32_t replicas_of(const scene *c, const call *what, uint32_t *number_out)
{
    *number_out = c->at.rank;
    switch (what->op) {
    case FERRY_MIXED_REDUCE_SCATTER:
        *number_out = 0;
        return 1;
    case FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE:
        *number_out = c->at.tp;
        return c->s.tp;
    default:
        return c->s.w;
    }
}

/* Small outputs whole; of large ones each replica looks at its share. */
static void check_output(scene *c, const call *what, const unsigned char *out, const char *text)
{
    uint32_t number, n_replicas = replicas_of(c, what, &number);
    uint64_t n = what->rows * what->columns, chunks = shape_out_chunks(&c->s, what->op);
    uint64_t step = n * chunks * c->s.w <= 2000 ? 1 : n_replicas;
    for (uint32_t chunk = 0; chunk < chunks; chunk++) {
        summands set = summands_of(&c->s, what->op, chunk);
        for (uint64_t i = step == 1 ? 0 : number; i < n; i += step) {
            uint32_t got = load(c->options.dtype, out, chunk * n + i);
            check_element(c, what, chunk, &set, i, got, text);
        }
    }
}

static uint64_t digest_of(const unsigned char *bytes, size_t n_bytes)
{
    uint64_t digest = n_bytes;
    for (size_t i = 0; i < n_bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, n_bytes - i < 8 ? n_bytes - i : 8);
        digest = (digest ^ word) * 0x9e3779b97f4a7c15u;
        digest ^= digest >> 29;
    }
    return digest;
}

/* What was only read is as it was; in place, what lies beside the output is too. */
static void check_input(const scene *c, const call *what, const tensors *t, const char *text)
{
    const unsigned char *in = t->in.buffer.base;
    size_t bytes = t->in.buffer.bytes, out_bytes = t->out.buffer.bytes;
    size_t begin = what->in_place ? c->at.dp * out_bytes : bytes;
    size_t end = what->in_place ? begin + out_bytes : bytes;
    if (what->in_place && out_bytes >= bytes) {
        return;
    }
    if (memcmp(in, c->copy, begin) != 0 || memcmp(in + end, c->copy + end, bytes - end) != 0) {
        fail(c->me, "%s: %s: the input has changed", c->name, text);
    }
}

/* What lies between guards, to or from its like in far memory. */
static void carry(scene *c, const ferry_buffer *to, const ferry_buffer *from, size_t bytes)
{
    ferry_box boxes[2] = {FERRY_BOX_INIT, FERRY_BOX_INIT};
    for (int i = 0; i < 2; i++) {
        boxes[i].buffer = i == 0 ? *to : *from;
        boxes[i].n_dims = 1;
        boxes[i].length[0] = bytes;
        boxes[i].stride[0] = 1;
    }
    must(c->me, ferry_box_copy(&boxes[0], &boxes[1], NULL, NULL, &c->me->error));
}

/* Where a call's areas are: of the input and of the output, which are one if it is in place. */
typedef struct areas {
    unsigned char *base[2];
    size_t bytes[2];
    int device[2]; /* of far memory; -1: none, the area itself */
} areas;

/* Some calls are far ones; in these each rank draws for itself where its tensors lie. */
static areas draw_areas(scene *c, const call *what)
{
    uint64_t shared = what->seed ^ UINT64_C(0x5ca1ab1e), random = shared + c->at.rank;
    areas a = {{c->in, c->out}, {c->in_bytes, c->out_bytes}, {-1, -1}};
    bool is_far = c->far != 0 && one_in(&shared, c->far);
    for (int i = 0; i < 2 && is_far; i++) {
        int drawn = (int)random_below(&random, 3) - 1;
        if (device_has_kernels() && drawn >= 0) { /* the handle's, which must reach them */
            drawn = (int)(c->at.rank % 2);
        }
        a.device[i] = drawn < 0 ? -1 : device_number(drawn);
    }
    return a;
}

static int area_of(const areas *a, const ferry_mixed_tensor *tensor)
{
    const unsigned char *at = tensor->buffer.base;
    return a->base[0] != NULL && at >= a->base[0] && at < a->base[0] + a->bytes[0] ? 0 : 1;
}

/* The tensor, or its like in far memory. */
static ferry_mixed_tensor send_away(scene *c, const areas *a, const ferry_mixed_tensor *tensor)
{
    int i = area_of(a, tensor), device = a->device[i];
    ferry_mixed_tensor there = *tensor;
    if (device < 0) {
        return there;
    }
    ferry_buffer *away = &c->away[i][device];
    if (away->bytes < a->bytes[i]) {
        ferry_memory_free(away);
        must(c->me,
             ferry_memory_alloc(NULL, device_kind(), device, a->bytes[i], away, &c->me->error));
    }
    ferry_buffer here = ferry_buffer_of(a->base[i], a->bytes[i]);
    carry(c, away, &here, a->bytes[i]);
    there.buffer = *away;
    there.buffer.base =
        (unsigned char *)away->base + ((unsigned char *)tensor->buffer.base - a->base[i]);
    there.buffer.bytes = tensor->buffer.bytes;
    return there;
}

/* All of it, so that what was written beside a tensor is seen by whoever looks at the guards. */
static void bring_back(scene *c, const areas *a, const ferry_mixed_tensor *tensor)
{
    int i = area_of(a, tensor), device = a->device[i];
    if (device >= 0) {
        ferry_buffer here = ferry_buffer_of(a->base[i], a->bytes[i]);
        carry(c, &here, &c->away[i][device], a->bytes[i]);
    }
}

/*
 * A stream of ferry's, or one of the caller's: where a driver has such. One that is adopted while a
 * kernel of another rank of this process waits in its channel may be held up by that.
 */
static ferry_queue *open_queue(scene *c, int32_t device, bool adopts)
{
    ferry_queue *queue = NULL;
    if (adopts && device_kind() == FERRY_MEMORY_CUDA && !c->me->engine->threads) {
        c->streams[device] = graphs_stream_of(device);
        must(c->me,
             ferry_queue_adopt(device_kind(), device, c->streams[device], &queue, &c->me->error));
    } else {
        must(c->me, ferry_queue_create(device_kind(), device, &queue, &c->me->error));
    }
    return queue;
}

/* Of a device that both tensors can be used on, or NULL: in host order, as other ranks may be. */
static ferry_queue *draw_queue(scene *c, const call *what, const tensors *t)
{
    const ferry_buffer *in = &t->in.buffer, *out = &t->out.buffer;
    bool in_far = in->kind != FERRY_MEMORY_HOST, out_far = out->kind != FERRY_MEMORY_HOST;
    uint64_t random = what->seed + 99 * (c->at.rank + 1);
    int32_t device = in_far ? in->device : out->device;
    if ((!in_far && !out_far) || (in_far && out_far && in->device != out->device) ||
        one_in(&random, 2)) {
        return NULL;
    }
    if (c->queues[device] == NULL) {
        c->queues[device] = open_queue(c, device, one_in(&random, 2));
    }
    c->n_queued++;
    return c->queues[device];
}

static ferry_status call_there(scene *c, const call *what, const tensors *t)
{
    rank_context *me = c->me;
    ferry_queue *queue = draw_queue(c, what, t);
    ferry_request *request = NULL;
    bool done = false;
    if (what->form == FORM_RUN) {
        ferry_status status =
            ferry_mixed_comm_run(c->comm, what->op, &t->in, &t->out, what->mode, queue, &me->error);
        return status == FERRY_OK && queue != NULL ? ferry_queue_synchronize(queue, &me->error)
                                                   : status;
    }
    ferry_status status = ferry_mixed_comm_start(c->comm, what->op, &t->in, &t->out, what->mode,
                                                 queue, &request, &me->error);
    while (what->form == FORM_TEST && status == FERRY_OK && !done) {
        status = ferry_request_test(request, &done, &me->error);
        sched_yield();
    }
    if (status == FERRY_OK) {
        status = ferry_request_wait(request, &me->error);
    }
    ferry_request_destroy(request);
    return status;
}

ferry_status call_tensors(scene *c, const call *what, const tensors *t)
{
    areas a = draw_areas(c, what);
    tensors there = {.in = send_away(c, &a, &t->in), .out = send_away(c, &a, &t->out)};
    c->n_away +=
        there.in.buffer.kind != FERRY_MEMORY_HOST || there.out.buffer.kind != FERRY_MEMORY_HOST;
    ferry_status status = call_there(c, what, &there);
    if (status == FERRY_OK) {
        bring_back(c, &a, &t->in);
        bring_back(c, &a, &t->out);
    }
    return status;
}

/* Ranks come at different times, and in one process by different orders. */
static void come_late(const scene *c)
{
    rank_context *me = c->me;
    if (c->skew_us > 0 && one_in(&me->random, 4)) {
        usleep(random_below(&me->random, c->skew_us));
    } else if (one_in(&me->random, 4)) {
        sched_yield();
    }
}

static void check_result(scene *c, const call *what, const tensors *t, uint32_t mode,
                         const char *text)
{
    call checked = *what;
    bool in_out = what->in_place && t->out.buffer.bytes > t->in.buffer.bytes;
    checked.mode = mode;
    if (!in_out) {
        check_guards(c, c->in, t->in.buffer.base, t->in.buffer.bytes, "input", text);
    }
    if (in_out || !what->in_place) {
        check_guards(c, c->out, t->out.buffer.base, t->out.buffer.bytes, "output", text);
    }
    check_input(c, what, t, text);
    check_output(c, &checked, t->out.buffer.base, text);
}

static void keep_input(scene *c, const tensors *t)
{
    free(c->copy);
    c->copy = take(c->me, t->in.buffer.bytes);
    memcpy(c->copy, t->in.buffer.base, t->in.buffer.bytes);
}

static void check_call(scene *c, const call *what, const tensors *t, uint32_t mode)
{
    char text[160];
    tell(c, what, text, sizeof text);
    check_result(c, what, t, mode, text);
    if (c->n_logged < MOST_LOGGED) {
        snprintf(c->told[c->n_logged], sizeof c->told[0], "%s", text);
        c->digests[c->n_logged++] = digest_of(t->out.buffer.base, t->out.buffer.bytes);
    }
    c->n_calls++;
}

void scene_check(scene *c, const call *what, const tensors *t)
{
    keep_input(c, t);
    check_call(c, what, t, mode_behind(c, what, t));
}

ferry_status scene_try(scene *c, const call *what)
{
    tensors t = scene_tensors(c, what);
    uint32_t mode = mode_behind(c, what, &t);
    keep_input(c, &t);
    come_late(c);
    ferry_status status = call_tensors(c, what, &t);
    if (status == FERRY_OK) {
        check_call(c, what, &t, mode);
    }
    return status;
}

void scene_call(scene *c, const call *what)
{
    rank_context *me = c->me;
    char text[160];
    if (c->n_logged == MOST_LOGGED) {
        scene_compare(c);
    }
    ferry_status status = scene_try(c, what);
    if (status != FERRY_OK) {
        tell(c, what, text, sizeof text);
        fail(me, "%s: %s: %s: %.600s", c->name, text, ferry_status_name(status), me->error.message);
    }
}

/* All-reduce and what ends with a gather: all ranks have the same; else those of a group. Which it
 * was is in the text, so ranks are compared with those who must have the same in every case. */
void scene_compare(scene *c)
{
    rank_context *me = c->me;
    const void *all = NULL;
    if (c->n_logged == 0) {
        return;
    }
    must(me, ferry_world_all_gather(me->world, c->digests, c->n_logged * sizeof *c->digests, &all,
                                    &me->error));
    const uint64_t *theirs = all;
    for (uint32_t rank = 0; rank < c->s.w; rank++) {
        for (uint32_t i = 0; i < c->n_logged; i++) {
            bool scattered = strncmp(c->told[i], "reduce-scatter", 14) == 0;
            bool same = !scattered || seat_of(&c->s, rank).dp == c->at.dp;
            if (same && theirs[(size_t)rank * c->n_logged + i] != c->digests[i]) {
                fail(me, "%s: %s: rank %u has other bits", c->name, c->told[i], (unsigned)rank);
            }
        }
    }
    c->n_logged = 0;
}
