/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Random models and parallel sizes, described twice: as a spec with a mesh and rules, and as what
 * each rank says of its own parameters. Both ways must give one plan, and planning among ranks
 * (centralized and local, over an exchange between threads) must give each rank its part of it.
 * Both ways also give the ranks the same shards, and the same plan, or none, when ranks are lost.
 */
#include <ferry/ferry.h>
#include <ferry/shard.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "seed %llu: line %d: %s: %s\n", (unsigned long long)current_seed,      \
                    __LINE__, #condition, error.message);                                          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static unsigned long long current_seed;
static ferry_error error;
static uint64_t state;

static uint32_t pick(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

/* One side's mesh, [["pp", pp], ["dp", dp], ["ep", ep], ["tp", tp]] from first. */
typedef struct side {
    uint32_t first, pp, dp, ep, tp;
} side;

enum { N_KINDS = 6, HIDDEN = 24, N_EXPERTS = 4, MAX_WORLD = 64 };

typedef struct kind {
    const char *name;
    uint64_t shape[2];
    uint32_t n_dims;
    int dim; /* -1: replicated */
    uint64_t stride;
    bool packed;
    bool expert;
} kind;

static const kind kinds[N_KINDS] = {
    {"qkv.weight", {48, HIDDEN}, 2, 0, 1, false, false},
    {"proj.weight", {HIDDEN, 48}, 2, 1, 1, false, false},
    {"fc1.weight", {96, HIDDEN}, 2, 0, 2, false, false},
    {"norm.weight", {HIDDEN, 0}, 1, -1, 1, false, false},
    {"in_proj.weight", {48 + 24, HIDDEN}, 2, 0, 1, true, false},
    {"experts.weight", {48, HIDDEN}, 2, 0, 1, false, true},
};

static uint32_t n_layers;

static uint32_t world_of(const side *s)
{
    return s->first + s->pp * s->dp * s->ep * s->tp;
}

/* The spec. */

static size_t add_tensors(char *text, size_t used)
{
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        for (uint32_t k = 0; k < N_KINDS; k++) {
            uint32_t n_copies = kinds[k].expert ? N_EXPERTS : 1;
            for (uint32_t e = 0; e < n_copies; e++) {
                char number[16] = "";
                if (kinds[k].expert) {
                    snprintf(number, sizeof number, "%u", e);
                }
                used += (size_t)sprintf(
                    text + used,
                    "%s{\"name\":\"layers.%u.%s%s\",\"dtype\":\"bf16\",\"shape\":[%llu",
                    used > 0 && text[used - 1] == '}' ? "," : "", layer, kinds[k].name, number,
                    (unsigned long long)kinds[k].shape[0]);
                if (kinds[k].n_dims == 2) {
                    used += (size_t)sprintf(text + used, ",%llu",
                                            (unsigned long long)kinds[k].shape[1]);
                }
                used += (size_t)sprintf(text + used, "]}");
            }
        }
    }
    return used;
}

static size_t add_side(char *text, size_t used, const char *name, const side *s)
{
    used += (size_t)sprintf(
        text + used,
        "\"%s\":{\"mesh\":[[\"pp\",%u],[\"dp\",%u],[\"ep\",%u],[\"tp\",%u]],\"first_rank\":%u,"
        "\"stages\":[{\"match\":\"layers.{}.*\",\"count\":%u,\"axis\":\"pp\"},"
        "{\"match\":\"*.experts.weight{}\",\"count\":%d,\"axis\":\"ep\"}],\"rules\":[",
        name, s->pp, s->dp, s->ep, s->tp, s->first, n_layers, N_EXPERTS);
    used += (size_t)sprintf(
        text + used,
        "{\"match\":\"*.qkv.weight\",\"shard\":[{\"dim\":0,\"axis\":\"tp\"}]},"
        "{\"match\":\"*.proj.weight\",\"shard\":[{\"dim\":1,\"axis\":\"tp\"}]},"
        "{\"match\":\"*.fc1.weight\",\"shard\":[{\"dim\":0,\"axis\":\"tp\",\"stride\":2}]},"
        "{\"match\":\"*.in_proj.weight\",\"shard\":[{\"dim\":0,\"axis\":\"tp\",\"blocks\":[48,24]}]"
        "},"
        "{\"match\":\"*.experts.*\",\"shard\":[{\"dim\":0,\"axis\":\"tp\"}]},"
        "{\"match\":\"*\"}]}");
    return used;
}

static ferry_spec *make_spec(const side *src, const side *dst)
{
    static char text[1 << 16];
    size_t used = (size_t)sprintf(text, "{\"format\":\"ferry.spec/1\",\"tensors\":[");
    used += add_tensors(text + used, 0);
    used += (size_t)sprintf(text + used, "],");
    used = add_side(text, used, "source", src);
    used += (size_t)sprintf(text + used, ",");
    used = add_side(text, used, "destination", dst);
    sprintf(text + used, "}");
    ferry_spec *spec;
    CHECK(ferry_spec_parse(text, strlen(text), "spec", &spec, &error) == FERRY_OK);
    return spec;
}

/* What the ranks say. */

typedef struct place {
    uint32_t pp, dp, ep, tp;
} place;

static uint32_t rank_at(const side *s, place p)
{
    return s->first + ((p.pp * s->dp + p.dp) * s->ep + p.ep) * s->tp + p.tp;
}

/* The ranks of one stage that differ from p in the axes of a mask: 1 dp, 2 ep, 4 tp. */
static ferry_group *group_of(const side *s, place p, int mask)
{
    uint32_t ranks[MAX_WORLD];
    size_t n = 0;
    for (uint32_t d = 0; d < s->dp; d++) {
        for (uint32_t e = 0; e < s->ep; e++) {
            for (uint32_t t = 0; t < s->tp; t++) {
                bool in = ((mask & 1) != 0 || d == p.dp) && ((mask & 2) != 0 || e == p.ep) &&
                          ((mask & 4) != 0 || t == p.tp);
                if (in) {
                    ranks[n++] = rank_at(s, (place){p.pp, d, e, t});
                }
            }
        }
    }
    ferry_group *group;
    CHECK(ferry_group_create(ranks, n, &group, &error) == FERRY_OK);
    return group;
}

static void add_param(ferry_model *model, const side *s, place p, const kind *k,
                      uint32_t local_layer, uint32_t local_expert, const ferry_prefix_map *map)
{
    char name[64], resolved[FERRY_NAME_BYTES];
    uint64_t sizes[2] = {48 / s->tp, 24 / s->tp};
    uint64_t n_experts = N_EXPERTS;
    snprintf(name, sizeof name, k->expert ? "layers.%u.%s%u" : "layers.%u.%s", local_layer, k->name,
             local_expert);
    ferry_param_description param = FERRY_PARAM_DESCRIPTION_INIT;
    param.n_dims = k->n_dims;
    memcpy(param.shape, k->shape, sizeof k->shape);
    CHECK(ferry_dtype_of(FERRY_BF16, &param.dtype, &error) == FERRY_OK);
    param.allreduce = !k->expert;
    if (k->dim >= 0) {
        param.tensor_model_parallel = true;
        param.has_partition_dim = param.has_partition_stride = true;
        param.partition_dim = (uint32_t)k->dim;
        param.partition_stride = k->stride;
        param.shape[k->dim] /= s->tp;
        param.partition_sizes = k->packed ? sizes : NULL;
        param.n_partition_sizes = k->packed ? 2 : 0;
    }
    ferry_process_groups groups = FERRY_PROCESS_GROUPS_INIT;
    groups.tensor_parallel = group_of(s, p, 4);
    groups.expert_parallel = group_of(s, p, 2);
    groups.data_parallel = group_of(s, p, k->expert ? 1 : k->dim < 0 ? 7 : 3);
    ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
    CHECK(ferry_param_metadata_extract(&param, name, rank_at(s, p), &groups, &n_experts, &m,
                                       &error) == FERRY_OK);
    CHECK(ferry_param_metadata_resolve_name(&m, map, resolved, sizeof resolved, &error) ==
          FERRY_OK);
    CHECK(ferry_model_add(model, &m, &error) == FERRY_OK);
    ferry_group_destroy(groups.tensor_parallel);
    ferry_group_destroy(groups.expert_parallel);
    ferry_group_destroy(groups.data_parallel);
}

static ferry_model *make_model(const side *s, place p)
{
    ferry_model *model;
    ferry_prefix_map *map;
    uint32_t first = n_layers;
    CHECK(ferry_model_create(&model, &error) == FERRY_OK);
    CHECK(ferry_prefix_map_create(&map, &error) == FERRY_OK);
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        if (layer * s->pp / n_layers != p.pp) {
            continue;
        }
        char local[32], global[32];
        first = layer < first ? layer : first;
        snprintf(local, sizeof local, "layers.%u", layer - first);
        snprintf(global, sizeof global, "layers.%u", layer);
        CHECK(ferry_prefix_map_add(map, local, global, &error) == FERRY_OK);
        for (uint32_t k = 0; k < N_KINDS; k++) {
            uint32_t n_copies = kinds[k].expert ? N_EXPERTS / s->ep : 1;
            for (uint32_t e = 0; e < n_copies; e++) {
                add_param(model, s, p, &kinds[k], layer - first, e, map);
            }
        }
    }
    ferry_prefix_map_destroy(map);
    return model;
}

static void make_models(const side *s, ferry_model **models)
{
    for (uint32_t pp = 0; pp < s->pp; pp++) {
        for (uint32_t dp = 0; dp < s->dp; dp++) {
            for (uint32_t ep = 0; ep < s->ep; ep++) {
                for (uint32_t tp = 0; tp < s->tp; tp++) {
                    place p = {pp, dp, ep, tp};
                    models[rank_at(s, p)] = make_model(s, p);
                }
            }
        }
    }
}

/* An exchange between threads. */

typedef struct hub {
    pthread_barrier_t barrier;
    uint32_t n;
    const void *bytes[MAX_WORLD];
    size_t lengths[MAX_WORLD];
    size_t all_lengths[MAX_WORLD]; /* as all is: stable until everybody calls again */
    char *all;
} hub;

typedef struct member {
    hub *h;
    uint32_t rank;
    const ferry_model *src, *dst;
    ferry_plan_options options;
    bool local;
    ferry_status status;
    ferry_error error;
    ferry_reshard_plan *plan;
} member;

static int all_gather(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                      const size_t **lengths_out)
{
    member *m = context;
    hub *h = m->h;
    h->bytes[m->rank] = bytes;
    h->lengths[m->rank] = n_bytes;
    if (pthread_barrier_wait(&h->barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
        size_t used = 0;
        for (uint32_t r = 0; r < h->n; r++) {
            used += h->lengths[r];
        }
        free(h->all);
        h->all = malloc(used + 1);
        used = 0;
        for (uint32_t r = 0; r < h->n; r++) {
            if (h->lengths[r] > 0) {
                memcpy(h->all + used, h->bytes[r], h->lengths[r]);
            }
            h->all_lengths[r] = h->lengths[r];
            used += h->lengths[r];
        }
    }
    pthread_barrier_wait(&h->barrier);
    *all_out = h->all;
    *lengths_out = h->all_lengths;
    return 0;
}

static void *run_member(void *argument)
{
    member *m = argument;
    ferry_exchange x = FERRY_EXCHANGE_INIT;
    x.context = m;
    x.rank = m->rank;
    x.n_ranks = m->h->n;
    x.all_gather = all_gather;
    m->status = (m->local ? ferry_reshard_plan_build_local : ferry_reshard_plan_build_centralized)(
        m->src, m->dst, NULL, &x, &m->options, &m->plan, &m->error);
    return NULL;
}

/* Comparisons. */

typedef struct move_list {
    ferry_move *moves;
    size_t n;
} move_list;

static ferry_status collect(void *context, const ferry_move *move)
{
    move_list *list = context;
    list->moves = realloc(list->moves, (list->n + 1) * sizeof *list->moves);
    list->moves[list->n++] = *move;
    return FERRY_OK;
}

static bool same_move(const ferry_move *a, const ferry_move *b)
{
    return a->task_id == b->task_id && strcmp(a->tensor, b->tensor) == 0 && a->from == b->from &&
           a->to == b->to && a->n_dims == b->n_dims && a->bytes == b->bytes &&
           memcmp(a->src_begin, b->src_begin, a->n_dims * 8) == 0 &&
           memcmp(a->dst_begin, b->dst_begin, a->n_dims * 8) == 0 &&
           memcmp(a->length, b->length, a->n_dims * 8) == 0;
}

static void compare_plans(const ferry_plan *a, const ferry_plan *b)
{
    char x[33], y[33];
    move_list p = {0}, q = {0};
    ferry_plan_digest(a, x, sizeof x);
    ferry_plan_digest(b, y, sizeof y);
    CHECK(ferry_plan_visit(a, FERRY_ALL_RANKS, collect, &p, NULL, &error) == FERRY_OK);
    CHECK(ferry_plan_visit(b, FERRY_ALL_RANKS, collect, &q, NULL, &error) == FERRY_OK);
    CHECK(p.n == q.n);
    for (size_t i = 0; i < p.n; i++) {
        CHECK(same_move(&p.moves[i], &q.moves[i]));
    }
    CHECK(strcmp(x, y) == 0);
    free(p.moves);
    free(q.moves);
}

static void compare_op(const ferry_transfer_op *op, const ferry_move *move, bool is_send)
{
    CHECK(op->is_send == is_send && op->has_task_id && op->task_id == move->task_id);
    CHECK(op->peer_rank == (is_send ? move->to : move->from));
    CHECK(strcmp(op->param_name, move->tensor) == 0 && op->bytes == move->bytes);
    for (uint32_t d = 0; d < move->n_dims; d++) {
        const ferry_slice *src = is_send ? op->my_slice : op->peer_slice;
        const ferry_slice *dst = is_send ? op->peer_slice : op->my_slice;
        CHECK(src[d].begin == move->src_begin[d] && src[d].length == move->length[d]);
        CHECK(dst[d].begin == move->dst_begin[d] && dst[d].length == move->length[d]);
    }
}

static void compare_ops(const ferry_plan *plan, uint32_t rank, const ferry_reshard_plan *own)
{
    move_list all = {0};
    size_t n_sends = 0, n_recvs = 0;
    char x[33], y[33], text[256];
    ferry_plan_digest(plan, x, sizeof x);
    ferry_reshard_plan_digest(own, y, sizeof y);
    CHECK(strcmp(x, y) == 0);
    CHECK(ferry_plan_visit(plan, FERRY_ALL_RANKS, collect, &all, NULL, &error) == FERRY_OK);
    for (size_t i = 0; i < all.n; i++) {
        ferry_transfer_op op = FERRY_TRANSFER_OP_INIT;
        if (all.moves[i].from == rank) {
            CHECK(ferry_reshard_plan_send_at(own, n_sends++, &op, &error) == FERRY_OK);
            compare_op(&op, &all.moves[i], true);
        }
        if (all.moves[i].to == rank) {
            CHECK(ferry_reshard_plan_receive_at(own, n_recvs++, &op, &error) == FERRY_OK);
            compare_op(&op, &all.moves[i], false);
        }
    }
    CHECK(n_sends == ferry_reshard_plan_send_count(own));
    CHECK(n_recvs == ferry_reshard_plan_receive_count(own));
    CHECK(ferry_reshard_plan_describe(own, text, sizeof text) == strlen(text));
    free(all.moves);
}

static void plan_among_ranks(const ferry_plan *plan, uint32_t n_ranks, ferry_model **src,
                             ferry_model **dst, ferry_plan_options options, bool local)
{
    hub h = {.n = n_ranks};
    member members[MAX_WORLD];
    pthread_t threads[MAX_WORLD];
    pthread_barrier_init(&h.barrier, NULL, n_ranks);
    for (uint32_t r = 0; r < n_ranks; r++) {
        members[r] = (member){
            .h = &h, .rank = r, .src = src[r], .dst = dst[r], .options = options, .local = local};
        pthread_create(&threads[r], NULL, run_member, &members[r]);
    }
    for (uint32_t r = 0; r < n_ranks; r++) {
        pthread_join(threads[r], NULL);
        error = members[r].error;
        CHECK(members[r].status == FERRY_OK);
        compare_ops(plan, r, members[r].plan);
        ferry_reshard_plan_destroy(members[r].plan);
    }
    pthread_barrier_destroy(&h.barrier);
    free(h.all);
}

/* Of ranks that each plan by their own options these must be the same: else all say who differs. */
static void plan_by_other_options(uint32_t n_ranks, ferry_model **src, ferry_model **dst)
{
    static const uint32_t lost = 1 << 20; /* behind the last: it does not change the plan */
    ferry_plan_options other[4];
    for (size_t way = 0; way < 4; way++) {
        other[way] = (ferry_plan_options)FERRY_PLAN_OPTIONS_INIT;
    }
    other[0].replica = FERRY_REPLICA_SEED;
    other[1].subset = "no such tensor";
    other[2].lost_ranks = &lost;
    other[2].n_lost_ranks = 1;
    other[3].struct_size = 1;
    for (size_t way = 0; way < 4; way++) {
        hub h = {.n = n_ranks};
        member members[MAX_WORLD];
        pthread_t threads[MAX_WORLD];
        char who[64];
        snprintf(who, sizeof who, "rank %u plans with other options", n_ranks - 1);
        pthread_barrier_init(&h.barrier, NULL, n_ranks);
        for (uint32_t r = 0; r < n_ranks; r++) {
            members[r] = (member){.h = &h,
                                  .rank = r,
                                  .src = src[r],
                                  .dst = dst[r],
                                  .local = true,
                                  .options = FERRY_PLAN_OPTIONS_INIT};
            members[r].options = r == n_ranks - 1 ? other[way] : members[r].options;
            pthread_create(&threads[r], NULL, run_member, &members[r]);
        }
        for (uint32_t r = 0; r < n_ranks; r++) {
            pthread_join(threads[r], NULL);
            error = members[r].error;
            CHECK(members[r].status == (way == 3 ? FERRY_ERR_MISUSE : FERRY_ERR_INVALID_INPUT));
            CHECK(way == 3 || strstr(members[r].error.message, who) != NULL);
            CHECK(strcmp(members[r].error.message, members[0].error.message) == 0);
        }
        pthread_barrier_destroy(&h.barrier);
        free(h.all);
    }
}

/* What the ranks hold, as text. */

typedef struct held {
    char *lines[1024];
    size_t n;
} held;

static ferry_status describe_shard(void *context, const ferry_shard *shard)
{
    held *h = context;
    char *line = malloc(4096);
    int used = sprintf(line, "%s bits %u bytes %llu flat %d [%llu, %llu)", shard->tensor,
                       shard->dtype.element_bits, (unsigned long long)shard->bytes, shard->is_flat,
                       (unsigned long long)shard->flat_begin, (unsigned long long)shard->flat_end);
    ferry_origin origin = FERRY_ORIGIN_INIT;
    if (ferry_shard_origin_count(shard) > 0) {
        CHECK(ferry_shard_origin_at(shard, 0, &origin, &error) == FERRY_OK);
        used += sprintf(line + used, " from %s", origin.source);
    }
    for (uint32_t d = 0; d < shard->n_dims; d++) {
        used += sprintf(line + used, "; %llu of %llu:", (unsigned long long)shard->local[d],
                        (unsigned long long)shard->global[d]);
        for (size_t i = 0; i < ferry_shard_piece_count(shard, d); i++) {
            uint64_t local, global, length;
            CHECK(ferry_shard_piece_at(shard, d, i, &local, &global, &length, &error) == FERRY_OK);
            used += sprintf(line + used, " %llu-%llu+%llu", (unsigned long long)local,
                            (unsigned long long)global, (unsigned long long)length);
        }
    }
    CHECK(h->n < sizeof h->lines / sizeof h->lines[0] && used < 4096);
    h->lines[h->n++] = line;
    return FERRY_OK;
}

static int compare_lines(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* A spec and a roster list tensors in different orders. */
static void compare_shards(const ferry_plan *a, const ferry_plan *b, uint32_t rank,
                           ferry_side_role which)
{
    static held p, q;
    p.n = q.n = 0;
    CHECK(ferry_plan_visit_shards(a, which, rank, describe_shard, &p, &error) == FERRY_OK);
    CHECK(ferry_plan_visit_shards(b, which, rank, describe_shard, &q, &error) == FERRY_OK);
    CHECK(p.n == q.n);
    if (p.n > 0) {
        qsort(p.lines, p.n, sizeof *p.lines, compare_lines);
        qsort(q.lines, q.n, sizeof *q.lines, compare_lines);
    }
    for (size_t i = 0; i < p.n; i++) {
        CHECK(strcmp(p.lines[i], q.lines[i]) == 0);
        free(p.lines[i]);
        free(q.lines[i]);
    }
}

static void compare_all_shards(const ferry_plan *a, const ferry_plan *b)
{
    for (uint32_t rank = 0; rank < ferry_plan_rank_count(a); rank++) {
        compare_shards(a, b, rank, FERRY_SIDE_SOURCE);
        compare_shards(a, b, rank, FERRY_SIDE_DESTINATION);
    }
}

/* With ranks lost there is the same plan either way, or none for the same kind of reason. */
static bool compare_lost(const ferry_spec *spec, const ferry_roster *roster, uint32_t n_ranks,
                         ferry_plan_options *options, uint32_t *lost, ferry_model **src,
                         ferry_model **dst)
{
    ferry_plan *a = NULL, *b = NULL;
    for (uint32_t r = 0; r < n_ranks; r++) {
        if (pick(n_ranks) < 2) {
            lost[options->n_lost_ranks++] = r;
        }
    }
    options->lost_ranks = lost;
    ferry_status by_spec = ferry_plan_create(spec, options, &a, &error);
    CHECK(ferry_plan_create_from_roster(roster, options, &b, &error) == by_spec);
    CHECK(by_spec == FERRY_OK || by_spec == FERRY_ERR_INVALID_PLAN);
    if (by_spec == FERRY_OK) {
        compare_plans(a, b);
        compare_all_shards(a, b);
        plan_among_ranks(b, n_ranks, src, dst, *options, pick(2) == 0);
    }
    ferry_plan_destroy(a);
    ferry_plan_destroy(b);
    return by_spec == FERRY_OK;
}

static unsigned long long n_planned_again;

static side random_side(uint32_t first)
{
    static const uint32_t tps[] = {1, 2, 4}, eps[] = {1, 2};
    return (side){.first = first,
                  .pp = 1 + pick(2),
                  .dp = 1 + pick(2),
                  .ep = eps[pick(2)],
                  .tp = tps[pick(3)]};
}

static void run_seed(unsigned long long seed)
{
    current_seed = seed;
    state = seed * 0x9e3779b97f4a7c15u + 1;
    n_layers = 2 + pick(2);
    side src = random_side(pick(3)), dst = random_side(pick(2) == 0 ? 0 : 20 + pick(9));
    uint32_t n_ranks = world_of(&src) > world_of(&dst) ? world_of(&src) : world_of(&dst);
    ferry_model *src_models[MAX_WORLD] = {NULL}, *dst_models[MAX_WORLD] = {NULL};
    ferry_spec *spec = make_spec(&src, &dst);
    make_models(&src, src_models);
    make_models(&dst, dst_models);
    ferry_roster *roster;
    CHECK(ferry_roster_create(n_ranks, &roster, &error) == FERRY_OK);
    for (uint32_t r = 0; r < n_ranks; r++) {
        CHECK(ferry_roster_set(roster, r, src_models[r], dst_models[r], &error) == FERRY_OK);
    }
    for (uint32_t policy = FERRY_REPLICA_BALANCED; policy <= FERRY_REPLICA_SEED; policy++) {
        ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
        ferry_plan *a, *b;
        options.replica = policy;
        CHECK(ferry_plan_create(spec, &options, &a, &error) == FERRY_OK);
        CHECK(ferry_plan_create_from_roster(roster, &options, &b, &error) == FERRY_OK);
        compare_plans(a, b);
        plan_among_ranks(b, n_ranks, src_models, dst_models, options, false);
        plan_among_ranks(b, n_ranks, src_models, dst_models, options, true);
        compare_all_shards(a, b);
        uint32_t lost[MAX_WORLD];
        n_planned_again +=
            compare_lost(spec, roster, n_ranks, &options, lost, src_models, dst_models);
        ferry_plan_destroy(a);
        ferry_plan_destroy(b);
    }
    if (n_ranks > 1) {
        plan_by_other_options(n_ranks, src_models, dst_models);
    }
    ferry_roster_destroy(roster);
    ferry_spec_destroy(spec);
    for (uint32_t r = 0; r < MAX_WORLD; r++) {
        ferry_model_destroy(src_models[r]);
        ferry_model_destroy(dst_models[r]);
    }
}

int main(int argc, char **argv)
{
    unsigned long long first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    unsigned long long count = argc > 2 ? strtoull(argv[2], NULL, 10) : 50;
    for (unsigned long long seed = first; seed < first + count; seed++) {
        run_seed(seed);
    }
    printf(
        "%llu seeds from %llu: both descriptions and both ways of planning agree; %llu plans were "
        "made again without ranks\n",
        count, first, n_planned_again);
    return 0;
}
