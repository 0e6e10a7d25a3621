/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What plans register: every rank binds, the tasks are carried out by copying, and each byte of
 * each destination must be the one that the layouts ask for.
 */
#include "rank_threads.h"
#include "service_ends.h"

#include "base/hash.h"

#include <ferry/log.h>
#include <ferry/plan.h>
#include <ferry/shard.h>
#include <ferry/spec.h>

#include <stdlib.h>

enum { MOST_TENSORS = 16 };

/* The memory of one rank on one side. */
typedef struct half {
    ferry_tensors *tensors;
    char *memory[MOST_TENSORS];
    char *back[MOST_TENSORS];
    uint32_t n;
} half;

typedef struct scene {
    ferry_plan *plan;
    half halves[2][MOST_RANKS];
    fy_registry registries[MOST_RANKS];
    bool wants_pairs;
    ferry_side_role side; /* of the visit under way */
    uint32_t rank;
    uint64_t n_elements; /* that were looked at */
    ferry_status wanted[MOST_RANKS];
    ferry_error errors[MOST_RANKS];
} scene;

/* The bits of an element of a tensor, as many as wanted. */
static uint64_t value_of(const char *tensor, uint64_t number)
{
    return fy_hash_mix(fy_hash64(tensor, strlen(tensor)), number);
}

/* Elements are whole bytes or halves of one. */
static void write_element(char *memory, uint64_t at, uint32_t bits, uint64_t value)
{
    if (bits == 4) {
        int shift = at % 2 == 0 ? 0 : 4;
        memory[at / 2] =
            (char)((memory[at / 2] & ~(15 << shift)) | (int)((value & 15) << (unsigned)shift));
        return;
    }
    for (uint32_t b = 0; b < bits / 8; b++) {
        memory[at * (bits / 8) + b] = (char)(value >> (b % 8 * 8));
    }
}

static uint64_t global_of(const ferry_shard *shard, uint32_t dim, uint64_t local)
{
    ferry_error error;
    for (size_t i = 0; i < ferry_shard_piece_count(shard, dim); i++) {
        uint64_t begin, global, length;
        must(ferry_shard_piece_at(shard, dim, i, &begin, &global, &length, &error), &error);
        if (local >= begin && local - begin < length) {
            return global + (local - begin);
        }
    }
    fail_msg("%s: no piece of dimension %u has %llu", shard->tensor, dim,
             (unsigned long long)local);
    return 0;
}

static void unravel(uint64_t number, uint32_t n_dims, const uint64_t *shape, uint64_t *index)
{
    for (uint32_t d = n_dims; d-- > 0;) {
        index[d] = number % shape[d];
        number /= shape[d];
    }
}

static uint64_t ravel(uint32_t n_dims, const uint64_t *shape, const uint64_t *index)
{
    uint64_t number = 0;
    for (uint32_t d = 0; d < n_dims; d++) {
        number = number * shape[d] + index[d];
    }
    return number;
}

/* The value that a destination element must have: that of where it comes from. */
static uint64_t wanted_value(const ferry_shard *shard, const uint64_t *global)
{
    ferry_error error;
    for (size_t i = 0; i < ferry_shard_origin_count(shard); i++) {
        ferry_origin origin = FERRY_ORIGIN_INIT;
        uint64_t in_box[FERRY_MAX_DIMS], from[FERRY_MAX_DIMS];
        bool inside = true;
        must(ferry_shard_origin_at(shard, i, &origin, &error), &error);
        for (uint32_t d = 0; d < shard->n_dims; d++) {
            inside =
                inside && global[d] >= origin.at[d] && global[d] - origin.at[d] < origin.length[d];
            in_box[d] = global[d] - origin.at[d];
        }
        if (inside) {
            unravel(ravel(shard->n_dims, origin.length, in_box), origin.source_n_dims,
                    origin.source_length, from);
            for (uint32_t d = 0; d < origin.source_n_dims; d++) {
                from[d] += origin.begin[d];
            }
            return value_of(origin.source, ravel(origin.source_n_dims, origin.source_global, from));
        }
    }
    fail_msg("%s: an element comes from nowhere", shard->tensor);
    return 0;
}

/* What the memory of a shard should hold. */
static void write_shard(const ferry_shard *shard, bool is_destination, char *memory)
{
    uint32_t bits = shard->dtype.element_bits;
    for (uint64_t e = shard->flat_begin; e < shard->flat_end; e++) {
        uint64_t index[FERRY_MAX_DIMS], global[FERRY_MAX_DIMS];
        unravel(e, shard->n_dims, shard->local, index);
        for (uint32_t d = 0; d < shard->n_dims; d++) {
            global[d] = global_of(shard, d, index[d]);
        }
        uint64_t value = is_destination
                             ? wanted_value(shard, global)
                             : value_of(shard->tensor, ravel(shard->n_dims, shard->global, global));
        write_element(memory, e - shard->flat_begin, bits, value);
    }
}

static ferry_status make_shard(void *context, const ferry_shard *shard)
{
    scene *s = context;
    half *h = &s->halves[s->side][s->rank];
    ferry_error error;
    bool is_destination = s->side == FERRY_SIDE_DESTINATION;
    size_t n_bytes = (size_t)shard->bytes + 1; /* what lies behind must stay */
    ferry_buffer front, back;
    assert_true(h->n < MOST_TENSORS);
    char *memory = malloc(n_bytes), *second = malloc(n_bytes);
    assert_true(memory != NULL && second != NULL);
    memset(memory, 0, n_bytes);
    memset(second, 0, n_bytes);
    front = ferry_buffer_of(memory, shard->bytes);
    back = ferry_buffer_of(second, shard->bytes);
    if (!is_destination) {
        write_shard(shard, false, memory);
    }
    if (is_destination && s->wants_pairs) {
        must(ferry_tensors_add_pair(h->tensors, shard->tensor, &front, &back, &error), &error);
    } else if (shard->bytes != 0) {
        must(ferry_tensors_add(h->tensors, shard->tensor, &front, &error), &error);
    }
    h->back[h->n] = second;
    h->memory[h->n++] = memory;
    return FERRY_OK;
}

static void make_scene(scene *s, ferry_plan *plan, bool wants_pairs)
{
    ferry_error error;
    memset(s, 0, sizeof *s);
    s->plan = plan;
    s->wants_pairs = wants_pairs;
    for (int side = 0; side < 2; side++) {
        for (s->rank = 0; s->rank < ferry_plan_rank_count(plan); s->rank++) {
            s->side = side == 0 ? FERRY_SIDE_SOURCE : FERRY_SIDE_DESTINATION;
            must(ferry_tensors_create(&s->halves[side][s->rank].tensors, &error), &error);
            must(ferry_plan_visit_shards(plan, s->side, s->rank, make_shard, s, &error), &error);
        }
    }
}

static void drop_scene(scene *s)
{
    for (uint32_t r = 0; r < MOST_RANKS; r++) {
        fy_registry_cleanup(&s->registries[r]);
        for (int side = 0; side < 2; side++) {
            half *h = &s->halves[side][r];
            ferry_tensors_destroy(h->tensors);
            while (h->n > 0) {
                free(h->memory[--h->n]);
                free(h->back[h->n]);
            }
        }
    }
    ferry_plan_destroy(s->plan);
}

static void bind_as_rank(rank_thread *self)
{
    scene *s = self->context;
    expect_status(self, s->wanted[self->rank],
                  fy_bind(&s->registries[self->rank], self->world, s->plan,
                          s->halves[0][self->rank].tensors, s->halves[1][self->rank].tensors,
                          s->wants_pairs, &s->errors[self->rank]));
    if (s->wanted[self->rank] == FERRY_OK) {
        expect_ok(self, fy_check_writers(&s->registries[self->rank], self->rank, &self->error));
        fy_registry_sort(&s->registries[self->rank]);
    }
    expect_ok(self, match_ends(self->world, &s->registries[self->rank], FERRY_OK, &self->error));
}

/* Runs of two areas side by side. */
static void copy_area(const fy_area *to, char *to_base, const fy_area *from, const char *from_base)
{
    fy_area_walk in = fy_area_walk_of(from, 0, from->bytes),
                 out = fy_area_walk_of(to, 0, to->bytes);
    uint64_t in_at = 0, out_at = 0, n_in = 0, n_out = 0;
    for (uint64_t left = from->bytes; left > 0;) {
        assert_true(n_in > 0 || fy_area_next(&in, &in_at, &n_in));
        assert_true(n_out > 0 || fy_area_next(&out, &out_at, &n_out));
        uint64_t n = n_in < n_out ? n_in : n_out;
        memcpy(to_base + out_at, from_base + in_at, (size_t)n);
        in_at += n;
        out_at += n;
        n_in -= n;
        n_out -= n;
        left -= n;
    }
}

static const fy_end *find_send(const fy_registry *registry, uint32_t peer, uint64_t task_id)
{
    for (size_t i = 0; i < registry->sends.n; i++) {
        const fy_end *end = &registry->sends.items[i];
        if (end->peer == peer && end->task_id == task_id) {
            return end;
        }
    }
    return NULL;
}

static void carry_out(scene *s, uint32_t rank)
{
    const fy_registry *registry = &s->registries[rank];
    for (size_t i = 0; i < registry->receives.n; i++) {
        const fy_end *receive = &registry->receives.items[i];
        const fy_registry *peer = &s->registries[receive->peer];
        const fy_end *send = find_send(peer, rank, receive->task_id);
        assert_non_null(send);
        fy_area to = fy_end_area(registry, receive), from = fy_end_area(peer, send);
        assert_int_equal(to.bytes, from.bytes);
        copy_area(&to, fy_held_target(&registry->held[receive->held])->base, &from,
                  peer->held[send->held].front.base);
    }
}

static ferry_status check_shard(void *context, const ferry_shard *shard)
{
    scene *s = context;
    half *h = &s->halves[FERRY_SIDE_DESTINATION][s->rank];
    char *got = s->wants_pairs ? h->back[h->n] : h->memory[h->n];
    char *wanted = calloc((size_t)shard->bytes + 1, 1);
    assert_non_null(wanted);
    write_shard(shard, true, wanted);
    /* Half a byte behind the last element is nobody's. */
    check_at(memcmp(got, wanted, (size_t)shard->bytes + 1) == 0, "%s of rank %u", shard->tensor,
             s->rank);
    s->n_elements += shard->flat_end - shard->flat_begin;
    free(wanted);
    h->n++;
    return FERRY_OK;
}

/* Destinations of a rank: all that have bytes, and what is written there. */
static void check_targets(const scene *s, uint32_t rank)
{
    const fy_registry *registry = &s->registries[rank];
    for (size_t i = 0; i < registry->n_targets; i++) {
        const fy_held *held = &registry->held[registry->targets[i].held];
        assert_int_equal(held->destination, i);
        assert_int_equal(registry->targets[i].bytes, held->front.bytes);
        assert_true(registry->names[registry->targets[i].name] != '\0');
        assert_int_equal(held->back.base != NULL, s->wants_pairs);
    }
}

static uint64_t run_plan(ferry_plan *plan, bool wants_pairs)
{
    static scene s;
    ferry_error error;
    uint32_t n_ranks = ferry_plan_rank_count(plan);
    make_scene(&s, plan, wants_pairs);
    run_ranks(n_ranks, NULL, bind_as_rank, &s);
    for (uint32_t r = 0; r < n_ranks; r++) {
        carry_out(&s, r);
    }
    for (s.rank = 0; s.rank < n_ranks; s.rank++) {
        s.halves[FERRY_SIDE_DESTINATION][s.rank].n = 0;
        must(ferry_plan_visit_shards(plan, FERRY_SIDE_DESTINATION, s.rank, check_shard, &s, &error),
             &error);
        check_targets(&s, s.rank);
    }
    drop_scene(&s);
    return s.n_elements;
}

static ferry_status try_plan(const char *text, const ferry_plan_options *options,
                             ferry_plan **plan_out, ferry_error *error)
{
    ferry_spec *spec = NULL;
    ferry_status status = ferry_spec_parse(text, strlen(text), "spec", &spec, error);
    if (status == FERRY_OK) {
        status = ferry_plan_create(spec, options, plan_out, error);
        ferry_spec_destroy(spec);
    }
    return status;
}

static void test_layouts(void **state)
{
    static const char *const tensors =
        "{\"format\": \"ferry.spec/1\", \"tensors\": ["
        "{\"name\": \"w\", \"shape\": [12, 10], \"dtype\": \"bf16\"},"
        "{\"name\": \"half\", \"shape\": [6, 4, 6], \"dtype\": \"f4\"},"
        "{\"name\": \"odd\", \"shape\": [8, 3], \"dtype\": \"bytes:5\"},"
        "{\"name\": \"scalar\", \"shape\": [], \"dtype\": \"f32\"},"
        "{\"name\": \"empty\", \"shape\": [0, 4], \"dtype\": \"f32\"},"
        "{\"name\": \"tied\", \"shape\": [12, 10], \"dtype\": \"bf16\", \"source\": \"w\"},"
        "{\"name\": \"e.0\", \"shape\": [4, 6], \"dtype\": \"f32\"},"
        "{\"name\": \"e.1\", \"shape\": [4, 6], \"dtype\": \"f32\"},"
        "{\"name\": \"stack\", \"shape\": [2, 4, 6], \"dtype\": \"f32\", \"source\": ["
        "{\"tensor\": \"e.0\", \"begin\": [0, 0], \"shape\": [4, 6], \"at\": [0, 0, 0]},"
        "{\"tensor\": \"e.1\", \"begin\": [0, 0], \"shape\": [4, 6], \"at\": [1, 0, 0]}]}],";
    static const char *const sides[] = {
        "\"source\": {\"mesh\": [[\"dp\", 2], [\"tp\", 2]], \"rules\": [{\"match\": \"w\", "
        "\"shard\": [{\"dim\": 0, \"axis\": \"tp\", \"stride\": 3}], \"flat\": {\"axis\": \"dp\"}},"
        "{\"match\": \"half\", \"shard\": [{\"dim\": 1, \"axis\": \"tp\"}]},"
        "{\"match\": \"e.*\", \"shard\": [{\"dim\": 1, \"axis\": \"tp\"}]}, {\"match\": \"*\"}]},"
        "\"destination\": {\"mesh\": [[\"tp\", 3]], \"rules\": [{\"match\": \"w\", \"shard\": "
        "[{\"dim\": 1, \"axis\": \"tp\"}]}, {\"match\": \"half\", \"shard\": [{\"dim\": 0, "
        "\"axis\": \"tp\"}]}, {\"match\": \"*\"}]}}",
        "\"source\": {\"mesh\": [[\"dp\", 3]], \"rules\": [{\"match\": \"scalar\"}, {\"match\": "
        "\"half\", \"flat\": {\"axis\": \"dp\"}}, {\"match\": \"*\", \"flat\": {\"axis\": "
        "\"dp\"}}]}, \"destination\": {\"first_rank\": 2, \"mesh\": [[\"tp\", 2], [\"dp\", 2]], "
        "\"rules\": [{\"match\": \"tied\", \"shard\": [{\"dim\": 1, \"axis\": \"tp\"}], \"flat\": "
        "{\"axis\": \"dp\"}}, {\"match\": \"stack\", \"shard\": [{\"dim\": 2, \"axis\": \"tp\"}]}, "
        "{\"match\": \"*\"}]}}",
    };
    (void)state;
    for (size_t i = 0; i < 2 * COUNT_OF(sides); i++) {
        char text[8192];
        ferry_plan *plan;
        ferry_error error;
        snprintf(text, sizeof text, "%s%s", tensors, sides[i / 2]);
        must(try_plan(text, NULL, &plan, &error), &error);
        assert_true(run_plan(plan, i % 2 == 1) > 500);
    }
}

/* A side of two axes: up to two dimensions cut, evenly or in turns, and a flat cut. */
static void append_side(char *text, size_t n_bytes, const char *name, const uint32_t *n_dims,
                        uint32_t n_tensors, uint64_t *state)
{
    size_t n = strlen(text);
    n += (size_t)snprintf(text + n, n_bytes - n,
                          ", \"%s\": {\"first_rank\": %u, \"mesh\": [[\"a\", %u], [\"b\", %u]], "
                          "\"rules\": [",
                          name, random_below(state, 4), 1 + random_below(state, 4),
                          1 + random_below(state, 3));
    for (uint32_t t = 0; t < n_tensors; t++) {
        uint32_t first = n_dims[t] == 0 ? 0 : random_below(state, n_dims[t] + 1);
        bool cut = first < n_dims[t];
        n +=
            (size_t)snprintf(text + n, n_bytes - n, "%s{\"match\": \"t%u\"", t == 0 ? "" : ", ", t);
        if (cut) {
            n += (size_t)snprintf(text + n, n_bytes - n,
                                  ", \"shard\": [{\"dim\": %u, \"axis\": \"a\", \"stride\": %u}",
                                  first, 1 + random_below(state, 3));
            if (first > 0 && random_below(state, 2) == 0) {
                n += (size_t)snprintf(text + n, n_bytes - n, ", {\"dim\": 0, \"axis\": \"b\"}]");
                cut = false;
            } else {
                n += (size_t)snprintf(text + n, n_bytes - n, "]");
            }
        }
        if ((cut || first == n_dims[t]) && n_dims[t] > 0 && random_below(state, 2) == 0) {
            n += (size_t)snprintf(text + n, n_bytes - n, ", \"flat\": {\"axis\": \"b\"}");
        }
        n += (size_t)snprintf(text + n, n_bytes - n, "}");
    }
    snprintf(text + n, n_bytes - n, "]}");
}

static void test_random(void **state)
{
    static const char *const dtypes[] = {"f32", "bf16", "u8", "bytes:3", "f4", "f4"};
    uint32_t n_good = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        uint64_t random = seed;
        uint32_t n_dims[3], n_tensors = 1 + random_below(&random, 3);
        char text[8192] = "{\"format\": \"ferry.spec/1\", \"tensors\": [";
        ferry_plan *plan;
        ferry_error error;
        for (uint32_t t = 0; t < n_tensors; t++) {
            size_t n = strlen(text);
            uint32_t type = random_below(&random, COUNT_OF(dtypes));
            n_dims[t] = random_below(&random, 4);
            n += (size_t)snprintf(text + n, sizeof text - n, "%s{\"name\": \"t%u\", \"shape\": [",
                                  t == 0 ? "" : ", ", t);
            for (uint32_t d = 0; d < n_dims[t]; d++) {
                n += (size_t)snprintf(text + n, sizeof text - n, "%s%u", d == 0 ? "" : ", ",
                                      type < 4 ? 1 + random_below(&random, 12)
                                               : 4 * (1 + random_below(&random, 4)));
            }
            snprintf(text + n, sizeof text - n, "], \"dtype\": \"%s\"}", dtypes[type]);
        }
        strcat(text, "]");
        append_side(text, sizeof text, "source", n_dims, n_tensors, &random);
        append_side(text, sizeof text, "destination", n_dims, n_tensors, &random);
        strcat(text, "}");
        ferry_status status = try_plan(text, NULL, &plan, &error);
        if (status != FERRY_OK) { /* rows of half bytes */
            check_at(status == FERRY_ERR_INVALID_PLAN, "seed %llu: %s\n%s",
                     (unsigned long long)seed, error.message, text);
            continue;
        }
        run_plan(plan, random_below(&random, 2) == 0);
        n_good++;
    }
    assert_true(n_good > 200);
}

static const char *const small_spec =
    "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"w\", \"shape\": [12, 10], "
    "\"dtype\": \"f32\"}], \"source\": {\"mesh\": [[\"tp\", 3]], \"rules\": [{\"match\": \"*\", "
    "\"shard\": [{\"dim\": 0, \"axis\": \"tp\"}]}]}, \"destination\": {\"mesh\": [[\"tp\", 3]], "
    "\"rules\": [{\"match\": \"*\", \"shard\": [{\"dim\": 1, \"axis\": \"tp\"}]}]}}";

typedef struct refusal {
    const char *name;
    ferry_side_role side;
    bool wants_pairs;
    uint64_t bytes; /* of rank 1; 0: the tensor is missing */
    const char *says;
} refusal;

static const refusal refusals[] = {
    {"no source", FERRY_SIDE_SOURCE, false, 0,
     "w: rank 1 of the plan has 160 bytes of it as a source, but the list of sources"},
    {"no destination", FERRY_SIDE_DESTINATION, false, 0,
     "w: rank 1 of the plan has 192 bytes of it as a destination, but the list"},
    {"short", FERRY_SIDE_SOURCE, false, 159, "but the buffer has 159"},
    {"long", FERRY_SIDE_DESTINATION, false, 193, "192 bytes of it as a destination, but the"},
    {"no pair", FERRY_SIDE_DESTINATION, true, 192, "a back of 0"},
};

static void refuse_as_rank(rank_thread *self)
{
    const refusal *row = self->context;
    static char memory[3][2][1000], back[1000];
    ferry_tensors *sides[2];
    ferry_plan *plan = NULL;
    fy_registry registry = {0};
    uint64_t bytes[2] = {160, self->rank == 0 ? 192 : self->rank == 1 ? 192 : 96};
    ferry_error *error = &self->error;
    expect_ok(self, try_plan(small_spec, NULL, &plan, error));
    for (int side = 0; side < 2; side++) {
        bool here = self->rank == 1 && side == (int)row->side;
        ferry_buffer buffer = ferry_buffer_of(memory[self->rank][side], bytes[side]);
        buffer.bytes = here ? row->bytes : bytes[side];
        ferry_buffer second = ferry_buffer_of(back, buffer.bytes);
        expect_ok(self, ferry_tensors_create(&sides[side], error));
        if (row->wants_pairs && !here && side == FERRY_SIDE_DESTINATION) {
            expect_ok(self, ferry_tensors_add_pair(sides[side], "w", &buffer, &second, error));
        } else if (!here || row->bytes != 0) {
            expect_ok(self, ferry_tensors_add(sides[side], "w", &buffer, error));
        }
    }
    ferry_status status =
        fy_bind(&registry, self->world, plan, sides[0], sides[1], row->wants_pairs, error);
    expect_status(self, self->rank == 1 ? FERRY_ERR_INVALID_INPUT : FERRY_OK, status);
    if (self->rank == 1) {
        expect_says(self, row->says);
        expect(self, registry.n_held == 0 && registry.plan == NULL && registry.held == NULL);
    }
    fy_registry_cleanup(&registry);
    ferry_tensors_destroy(sides[0]);
    ferry_tensors_destroy(sides[1]);
    ferry_plan_destroy(plan);
}

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(refusals); i++) {
        refusal row = refusals[i];
        run_ranks(3, NULL, refuse_as_rank, &row);
    }
}

static void bind_small_world(rank_thread *self)
{
    ferry_plan *plan = NULL;
    fy_registry registry = {0};
    expect_ok(self, try_plan(small_spec, NULL, &plan, &self->error));
    ferry_status status = fy_bind(&registry, self->world, plan, NULL, NULL, false, &self->error);
    ferry_plan_destroy(plan);
    fy_registry_cleanup(&registry);
    expect_status(self, FERRY_ERR_INVALID_INPUT, status);
    expect_says(self, "the plan is for 3 ranks, but the world has 2");
}

static void test_small_world(void **state)
{
    (void)state;
    run_ranks(2, NULL, bind_small_world, NULL);
}

/* Rank 1 ends; the others go on in a world where rank 2 is 1. */
static void bind_survivors(rank_thread *self)
{
    static char memory[3][2][1000];
    ferry_world *survivors = NULL;
    ferry_tensors *sides[2];
    fy_registry registry = {0};
    ferry_plan *plan = self->context;
    ferry_error *error = &self->error;
    uint64_t bytes[2] = {160, self->rank == 2 ? 96 : 192};
    if (self->rank == 1) {
        ferry_world_abort(self->world, "enough");
        return;
    }
    (void)ferry_world_barrier(self->world, error);
    expect_ok(self, ferry_world_shrink(self->world, 2, &survivors, error));
    for (int side = 0; side < 2; side++) {
        ferry_buffer buffer = ferry_buffer_of(memory[self->rank][side], bytes[side]);
        expect_ok(self, ferry_tensors_create(&sides[side], error));
        expect_ok(self, ferry_tensors_add(sides[side], "w", &buffer, error));
    }
    ferry_status status = fy_bind(&registry, survivors, plan, sides[0], sides[1], false, error);
    fy_registry_cleanup(&registry);
    ferry_tensors_destroy(sides[0]);
    ferry_tensors_destroy(sides[1]);
    ferry_world_destroy(survivors);
    expect_status(self, FERRY_ERR_INVALID_INPUT, status);
    expect_says(self, "rank 1 is gone: plan again without it (lost_ranks)");
}

static void test_survivors(void **state)
{
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    ferry_plan *plan;
    ferry_error error;
    (void)state;
    options.join_seconds = 60;
    must(try_plan(small_spec, NULL, &plan, &error), &error);
    run_ranks(3, &options, bind_survivors, plan);
    ferry_plan_destroy(plan);
}

/* ---- ranks that have no part ---- */

typedef struct heard {
    char lines[4][1000];
    size_t n;
} heard;

static void hear(void *context, ferry_log_level level, const char *line)
{
    heard *h = context;
    if (level == FERRY_LOG_WARN && h->n < COUNT_OF(h->lines)) {
        snprintf(h->lines[h->n], sizeof h->lines[0], "%s", line);
        h->n++;
    }
}

static void bind_idle(rank_thread *self)
{
    static char memory[8][2][1000];
    fy_registry registry = {0};
    ferry_tensors *sides[2];
    ferry_error *error = &self->error;
    uint64_t bytes[2] = {160, self->rank == 2 ? 96 : 192};
    for (int side = 0; side < 2; side++) {
        ferry_buffer buffer = ferry_buffer_of(memory[self->rank][side], bytes[side]);
        expect_ok(self, ferry_tensors_create(&sides[side], error));
        expect_ok(self, ferry_tensors_add(sides[side], "w", &buffer, error));
    }
    expect_ok(self,
              fy_bind(&registry, self->world, self->context, sides[0], sides[1], false, error));
    fy_registry_cleanup(&registry);
    ferry_tensors_destroy(sides[0]);
    ferry_tensors_destroy(sides[1]);
}

static void bind_apart(rank_thread *self)
{
    static char memory[8][160];
    fy_registry registry = {0};
    ferry_tensors *tensors;
    ferry_error *error = &self->error;
    ferry_buffer buffer = ferry_buffer_of(memory[self->rank], 160);
    expect_ok(self, ferry_tensors_create(&tensors, error));
    expect_ok(self, ferry_tensors_add(tensors, "w", &buffer, error));
    expect_ok(self, fy_bind(&registry, self->world, self->context, tensors, tensors, false, error));
    fy_registry_cleanup(&registry);
    ferry_tensors_destroy(tensors);
}

/* One line, of rank 0, for all of them; and none where everybody has a part. */
static void test_idle(void **state)
{
    static const char apart[] =
        "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"w\", \"shape\": [40], "
        "\"dtype\": \"f32\"}], \"source\": {\"mesh\": [], \"rules\": [{\"match\": \"*\"}]}, "
        "\"destination\": {\"mesh\": [], \"first_rank\": 2, \"rules\": [{\"match\": \"*\"}]}}";
    heard h = {.n = 0};
    ferry_plan *plan;
    ferry_error error;
    (void)state;
    ferry_log_configure(FERRY_LOG_WARN, hear, &h);
    must(try_plan(small_spec, NULL, &plan, &error), &error);
    run_ranks(3, NULL, bind_idle, plan);
    assert_int_equal(h.n, 0);
    run_ranks(4, NULL, bind_idle, plan);
    assert_int_equal(h.n, 1);
    assert_non_null(strstr(h.lines[0],
                           "rank 3 of this world of 4 has no part in the plan, which is "
                           "of 3 ranks"));
    run_ranks(6, NULL, bind_idle, plan);
    assert_int_equal(h.n, 2);
    assert_non_null(strstr(h.lines[1], "ranks 3-5 of this world of 6 have no part"));
    ferry_plan_destroy(plan);
    must(try_plan(apart, NULL, &plan, &error), &error);
    ferry_log_configure(FERRY_LOG_ERROR, hear, &h);
    run_ranks(3, NULL, bind_apart, plan);
    assert_int_equal(h.n, 2);
    ferry_log_configure(FERRY_LOG_WARN, hear, &h);
    run_ranks(5, NULL, bind_apart, plan);
    assert_int_equal(h.n, 3);
    assert_non_null(strstr(h.lines[2], "ranks 1, 3-4 of this world of 5 have no part"));
    ferry_plan_destroy(plan);
    ferry_log_configure(FERRY_LOG_OFF, NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),   cmocka_unit_test(test_random),
        cmocka_unit_test(test_refusals),  cmocka_unit_test(test_small_world),
        cmocka_unit_test(test_survivors), cmocka_unit_test(test_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
