/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The tasks of a plan: its moves between ranks, on its own cluster.
 *
 * Moves of one sender that read the same box of the same tensor carry the same bytes, which is what
 * relays live on. They are found by visiting the plan again and again, for making moves is cheap
 * and keeping them is not: the first visit notes the hash of what each move reads; where a hash is
 * not the only one in its bucket, the second finds out, exactly, what is read and whether twice;
 * the third makes tasks. The tasks do not depend on hashes, which are of addresses.
 */
#include "plan/core.h"
#include "schedule/tasks.h"

#include "base/alloc.h"
#include "base/index.h"
#include "base/options.h"

/* What a move reads: a box of a tensor in the shard of a rank. */
typedef struct origin {
    const char *tensor;  /* as the plan has it: equal names are one text */
    uint64_t    task_id; /* of the first move that reads it: its content number */
    size_t      box;     /* into boxes[]: all begins, then all lengths */
    uint32_t    from;
    uint32_t    n_dims;
    bool        is_shared;
} origin;

enum { BUCKETS_PER_MOVE = 8, BUCKETS_PER_BYTE = 4, LOOK_AHEAD = 16 };

#define MOST_BUCKETS ((uint64_t)1 << 32)

typedef struct contents {
    /* By task id: the hash of what the move reads, which becomes 1 + the number of its origin; 0:
     * nothing that another move reads. */
    uint64_t    *of_move;
    uint64_t     n_moves;
    size_t      *of_sender; /* [n_ranks + 1]: counts one further up; then where the next one goes */
    uint32_t     n_ranks;
    fy_index     index;
    origin      *origins;
    size_t       n_origins, origin_capacity;
    uint64_t    *boxes;
    size_t       n_boxes, box_capacity;
    ferry_error *error;
} contents;

static void contents_cleanup(contents *c)
{
    fy_free(c->of_move);
    fy_free(c->of_sender);
    fy_index_cleanup(&c->index);
    fy_free(c->origins);
    fy_free(c->boxes);
}

static bool travels(const ferry_move *move)
{
    return move->from != move->to && move->bytes > 0;
}

static const char *source_of(const ferry_move *move)
{
    return move->source == NULL ? move->tensor : move->source;
}

static uint64_t hash_origin(const ferry_move *move)
{
    uint64_t hash = fy_hash_mix((uint64_t)(uintptr_t)source_of(move), move->from);
    for (uint32_t d = 0; d < move->src_n_dims; d++) {
        hash = fy_hash_mix(fy_hash_mix(hash, move->src_begin[d]), move->src_length[d]);
    }
    return hash;
}

/* The first visit. */
static ferry_status note_hash(void *context, const ferry_move *move)
{
    contents *c = context;
    if (travels(move)) {
        uint64_t hash             = hash_origin(move);
        c->of_move[move->task_id] = hash == 0 ? 1 : hash;
        c->of_sender[move->from + 1]++;
    }
    return FERRY_OK;
}

/* Two bits a bucket: met, met again. The table is larger than caches, hence the look ahead. */
typedef struct buckets {
    unsigned char *bits;
    uint64_t       mask; /* number of buckets - 1 */
} buckets;

static unsigned char *byte_of(const buckets *b, uint64_t hash)
{
    return &b->bits[(hash & b->mask) / BUCKETS_PER_BYTE];
}

static uint32_t shift_of(uint64_t hash)
{
    return (uint32_t)(hash % BUCKETS_PER_BYTE) * 2;
}

static void look_ahead(const contents *c, const buckets *b, uint64_t move)
{
    if (move + LOOK_AHEAD < c->n_moves) {
        __builtin_prefetch(byte_of(b, c->of_move[move + LOOK_AHEAD]), 1);
    }
}

/* Clears the hashes that are alone in their bucket; false: no hash is left. */
static bool keep_met_again(contents *c, const buckets *b)
{
    bool any = false;
    for (uint64_t i = 0; i < c->n_moves; i++) {
        uint64_t hash = c->of_move[i];
        look_ahead(c, b, i);
        if (hash != 0) {
            unsigned char *byte  = byte_of(b, hash);
            bool           again = (*byte >> shift_of(hash) & 1) != 0;
            *byte                = (unsigned char)(*byte | (again ? 2u : 1u) << shift_of(hash));
            any                  = any || again;
        }
    }
    for (uint64_t i = 0; i < c->n_moves; i++) {
        uint64_t hash = c->of_move[i];
        look_ahead(c, b, i);
        if ((*byte_of(b, hash) >> shift_of(hash) & 2) == 0) {
            c->of_move[i] = 0;
        }
    }
    return any;
}

static ferry_status drop_unshared(contents *c, bool *any_out)
{
    uint64_t n_buckets = BUCKETS_PER_BYTE;
    while (n_buckets < MOST_BUCKETS && n_buckets / BUCKETS_PER_MOVE < c->n_moves) {
        n_buckets *= 2;
    }
    buckets b = {.bits = fy_alloc_zeroed((size_t)(n_buckets / BUCKETS_PER_BYTE), 1),
                 .mask = n_buckets - 1};
    if (b.bits == NULL) {
        return fy_fail_no_memory(c->error, "the boxes that several ranks want");
    }
    *any_out = keep_met_again(c, &b);
    fy_free(b.bits);
    return FERRY_OK;
}

static bool is_origin(const contents *c, const origin *o, const ferry_move *move)
{
    bool same =
        o->tensor == source_of(move) && o->from == move->from && o->n_dims == move->src_n_dims;
    for (uint32_t d = 0; same && d < o->n_dims; d++) {
        same = c->boxes[o->box + d] == move->src_begin[d] &&
               c->boxes[o->box + o->n_dims + d] == move->src_length[d];
    }
    return same;
}

static origin *find_origin(const contents *c, uint64_t hash, const ferry_move *move)
{
    fy_index_cursor cursor = fy_index_first(&c->index, hash);
    while (cursor.value != FY_INDEX_NONE && !is_origin(c, &c->origins[cursor.value], move)) {
        fy_index_next(&c->index, &cursor);
    }
    return cursor.value == FY_INDEX_NONE ? NULL : &c->origins[cursor.value];
}

static ferry_status add_origin(contents *c, uint64_t hash, const ferry_move *move)
{
    uint32_t n = move->src_n_dims;
    if (c->n_origins >= FY_INDEX_NONE) {
        return fy_fail(
            c->error, FERRY_ERR_LIMIT,
            "more than %u boxes of the plan may have several receivers; plan the tensors "
            "in several subsets",
            FY_INDEX_NONE);
    }
    if (!fy_reserve((void **)&c->origins, &c->origin_capacity, c->n_origins + 1,
                    sizeof *c->origins) ||
        !fy_reserve((void **)&c->boxes, &c->box_capacity, c->n_boxes + 2 * n, sizeof *c->boxes) ||
        !fy_index_insert(&c->index, hash, (uint32_t)c->n_origins)) {
        return fy_fail_no_memory(c->error, "the boxes that several ranks want");
    }
    c->origins[c->n_origins++] = (origin){.tensor  = source_of(move),
                                          .task_id = move->task_id,
                                          .box     = c->n_boxes,
                                          .from    = move->from,
                                          .n_dims  = n};
    for (uint32_t d = 0; d < n; d++) {
        c->boxes[c->n_boxes + d]     = move->src_begin[d];
        c->boxes[c->n_boxes + n + d] = move->src_length[d];
    }
    c->n_boxes += 2 * n;
    return FERRY_OK;
}

/* The second visit. */
static ferry_status find_out(void *context, const ferry_move *move)
{
    contents *c    = context;
    uint64_t  hash = c->of_move[move->task_id];
    if (hash == 0) {
        return FERRY_OK;
    }
    origin *o = find_origin(c, hash, move);
    if (o != NULL) {
        o->is_shared              = true;
        c->of_move[move->task_id] = (uint64_t)(o - c->origins) + 1;
        return FERRY_OK;
    }
    c->of_move[move->task_id] = (uint64_t)c->n_origins + 1;
    return add_origin(c, hash, move);
}

static ferry_status find_contents(const ferry_plan *plan, contents *c, ferry_error *error)
{
    bool any     = false;
    c->error     = error;
    c->n_moves   = plan->totals.n_moves;
    c->n_ranks   = plan->problem.n_ranks;
    c->of_move   = fy_alloc_zeroed((size_t)c->n_moves, sizeof *c->of_move);
    c->of_sender = fy_alloc_zeroed((size_t)c->n_ranks + 1, sizeof *c->of_sender);
    if (c->of_move == NULL || c->of_sender == NULL) {
        return fy_fail_no_memory(error, "the boxes that several ranks want");
    }
    ferry_status status = ferry_plan_visit(plan, FERRY_ALL_RANKS, note_hash, c, NULL, error);
    if (status == FERRY_OK) {
        status = drop_unshared(c, &any);
    }
    if (status == FERRY_OK && any) {
        status = ferry_plan_visit(plan, FERRY_ALL_RANKS, find_out, c, NULL, error);
    }
    return status;
}

typedef struct maker {
    const contents  *contents;
    ferry_task_list *tasks; /* by sender, as a schedule wants them: sorting gigabytes takes long */
    uint64_t         slot_bytes;
    ferry_error     *error;
} maker;

/* The third visit. */
static ferry_status make_task(void *context, const ferry_move *move)
{
    const maker *m = context;
    if (!travels(move)) {
        return FERRY_OK;
    }
    ferry_task task    = FERRY_TASK_INIT;
    task.task_id       = move->task_id;
    task.from          = move->from;
    task.to            = move->to;
    task.bytes         = move->bytes;
    task.element_bytes = move->dtype.element_bits < 8 ? 1 : move->dtype.element_bits / 8;
    if (task.element_bytes > m->slot_bytes) {
        return fy_fail(m->error, FERRY_ERR_INVALID_INPUT,
                       "%s: an element has %llu bytes, more than a slot of %llu; slots must hold "
                       "at least one element",
                       move->tensor, (unsigned long long)task.element_bytes,
                       (unsigned long long)m->slot_bytes);
    }
    uint64_t number = m->contents->of_move[move->task_id];
    if (number != 0 && m->contents->origins[number - 1].is_shared) {
        task.has_content = true;
        task.content     = m->contents->origins[number - 1].task_id;
    }
    return fy_task_list_put(m->tasks, m->contents->of_sender[move->from]++, &task, m->error);
}

static ferry_status make_tasks(const ferry_plan *plan, const ferry_schedule_options *options,
                               ferry_task_list *tasks, ferry_error *error)
{
    contents     c      = {0};
    maker        m      = {.tasks = tasks, .slot_bytes = options->slot_bytes, .error = error};
    ferry_status status = FERRY_OK;
    if (m.slot_bytes == 0) {
        m.slot_bytes = FERRY_SLOT_BYTES;
    }
    status     = find_contents(plan, &c, error);
    m.contents = &c;
    for (uint32_t rank = 0; rank < c.n_ranks && status == FERRY_OK; rank++) {
        c.of_sender[rank + 1] += c.of_sender[rank];
    }
    if (status == FERRY_OK) {
        status = fy_task_list_resize(tasks, c.of_sender[c.n_ranks], error);
    }
    if (status == FERRY_OK) {
        status = ferry_plan_visit(plan, FERRY_ALL_RANKS, make_task, &m, NULL, error);
    }
    contents_cleanup(&c);
    return status;
}

/* NULL for a plan without a cluster. */
static ferry_status make_cluster(const fy_cluster *from, ferry_cluster **cluster_out,
                                 ferry_error *error)
{
    ferry_cluster *cluster = NULL;
    ferry_status   status  = FERRY_OK;
    if (from->present) {
        ferry_cluster_options options = FERRY_CLUSTER_OPTIONS_INIT;
        options.ranks_per_node        = from->ranks_per_node;
        options.rank_bytes_per_s      = from->rank_rate;
        options.node_bytes_per_s      = from->node_rate;
        options.latency_s             = from->latency_s;
        status                        = ferry_cluster_create(&options, &cluster, error);
    }
    for (size_t i = 0; i < from->n_overrides && status == FERRY_OK; i++) {
        const fy_node_rate *rate = &from->overrides[i];
        status =
            ferry_cluster_set_node(cluster, rate->node, rate->rank_rate, rate->node_rate, error);
    }
    if (status == FERRY_OK) {
        *cluster_out = cluster;
        cluster      = NULL;
    }
    ferry_cluster_destroy(cluster);
    return status;
}

ferry_status ferry_schedule_create_for_plan(const ferry_plan             *plan,
                                            const ferry_schedule_options *options,
                                            ferry_schedule **schedule_out, ferry_error *error)
{
    if (plan == NULL || schedule_out == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_schedule_create_for_plan needs a plan and a place for the schedule");
    }
    ferry_task_list       *tasks   = NULL;
    ferry_cluster         *cluster = NULL;
    ferry_schedule_options own;
    ferry_status           status = fy_take_schedule_options(options, &own, error);
    if (status == FERRY_OK) {
        status = make_cluster(&plan->problem.cluster, &cluster, error);
    }
    if (status == FERRY_OK) {
        status = ferry_task_list_create(plan->problem.n_ranks, &tasks, error);
    }
    if (status == FERRY_OK) {
        status = make_tasks(plan, &own, tasks, error);
    }
    if (status == FERRY_OK) {
        status = fy_schedule_create_taking(tasks, cluster, &own, schedule_out, error);
    }
    ferry_task_list_destroy(tasks);
    ferry_cluster_destroy(cluster);
    return status;
}
