/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What a service registers, compares and binds, when memory runs out. */
#include "rank_runs.h"
#include "steps.h"

#include "service/service.h"
#include "world/agree.h"

#include <ferry/plan.h>
#include <ferry/spec.h>

typedef struct scene {
    ferry_world *world;
    ferry_plan *plan;
    ferry_tensors *sources, *destinations;
    fy_registry registry; /* what a step makes */
    fy_registry filled;   /* what a step compares */
    ferry_tensors *tensors;
    bool compared;
} scene;

static char memory[1 << 16];

static ferry_box box_of_rows(uint64_t offset, uint64_t run, uint64_t stride)
{
    ferry_box box = FERRY_BOX_INIT;
    box.buffer = ferry_buffer_of(memory, sizeof memory);
    box.name = "layers.0.weight";
    box.offset = offset;
    box.n_dims = 3;
    for (uint32_t d = 0; d < 3; d++) {
        box.length[d] = d == 2 ? run : 16;
        box.stride[d] = d == 2 ? 1 : d == 1 ? stride : 32 * stride;
    }
    return box;
}

static ferry_status run_register(void *context, ferry_error *error)
{
    scene *s = context;
    ferry_box box = box_of_rows(0, 10, 100);
    ferry_status status = fy_registry_add(&s->registry, false, 7, 1, &box, error);
    if (status != FERRY_OK) {
        return status;
    }
    status = fy_registry_add(&s->registry, true, 7, 1, &box, error);
    if (status != FERRY_OK) {
        fy_registry_cleanup(&s->registry);
    }
    return status;
}

static ferry_status run_tensors(void *context, ferry_error *error)
{
    scene *s = context;
    ferry_tensors *tensors = NULL;
    ferry_buffer buffer = ferry_buffer_of(memory, 100);
    ferry_status status = ferry_tensors_create(&tensors, error);
    for (int i = 0; i < 20 && status == FERRY_OK; i++) {
        char name[2] = {(char)('a' + i), '\0'};
        status = ferry_tensors_add(tensors, name, &buffer, error);
        check_row(name, fy_tensors_count(tensors) == (size_t)i + (status == FERRY_OK));
        check_row(name,
                  (fy_tensors_find(tensors, name, SIZE_MAX) != SIZE_MAX) == (status == FERRY_OK));
    }
    if (status == FERRY_OK) {
        s->tensors = tensors;
    } else {
        ferry_tensors_destroy(tensors);
    }
    return status;
}

static ferry_status run_bind(void *context, ferry_error *error)
{
    scene *s = context;
    return fy_bind(&s->registry, s->world, s->plan, s->sources, s->destinations, false, error);
}

static ferry_status run_compare(void *context, ferry_error *error)
{
    scene *s = context;
    ferry_status status = fy_check_writers(&s->filled, 0, error);
    s->compared = status == FERRY_OK;
    return status;
}

static void describe_scene(const void *context, text_buffer *out)
{
    const scene *s = context;
    char line[160];
    int n = snprintf(line, sizeof line, "%zu held, %zu targets, %zu sends, %zu receives, %zu, %d",
                     s->registry.n_held, s->registry.n_targets, s->registry.sends.n,
                     s->registry.receives.n, fy_tensors_count(s->tensors), s->compared);
    text_append(out, line, (size_t)n);
}

static void give_back_scene(void *context)
{
    scene *s = context;
    fy_registry_cleanup(&s->registry);
    ferry_tensors_destroy(s->tensors);
    s->tensors = NULL;
    s->compared = false;
}

/* The last tensor's bytes come from one in the middle: sources are not visited in order. One is
 * cast on its way, one becomes codes and scales, and so does the last, at its receiver. */
static void make_plan(scene *s)
{
    static const char text[] =
        "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"w{0}\", \"count\": [20], "
        "\"shape\": [12, 10], \"dtype\": \"f32\"}, {\"name\": \"tied\", \"shape\": [12, 10], "
        "\"dtype\": \"f32\", \"source\": \"w3\"}], \"source\": {\"mesh\": [], \"rules\": "
        "[{\"match\": \"*\"}]}, \"destination\": {\"mesh\": [], \"rules\": [{\"match\": \"w1\", "
        "\"dtype\": \"f16\", \"cast\": \"round\"}, {\"match\": \"w2\", \"quantize\": {\"format\": "
        "\"f8e4m3\", \"block\": [4, 5], \"scale\": \"w2.s\"}}, {\"match\": \"tied\", \"quantize\": "
        "{\"format\": \"f8e4m3\", \"block\": [4, 5], \"scale\": \"tied.s\"}}, {\"match\": "
        "\"*\"}]}}";
    ferry_spec *spec = NULL;
    ferry_error error;
    ferry_buffer buffer;
    must(ferry_spec_parse(text, strlen(text), "spec", &spec, &error), &error);
    must(ferry_plan_create(spec, NULL, &s->plan, &error), &error);
    ferry_spec_destroy(spec);
    must(ferry_tensors_create(&s->sources, &error), &error);
    must(ferry_tensors_create(&s->destinations, &error), &error);
    for (int i = 0; i < 20; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        buffer = ferry_buffer_of(memory + i * 480, 480);
        must(ferry_tensors_add(s->sources, name, &buffer, &error), &error);
        buffer = ferry_buffer_of(memory + 10000 + i * 480, i == 1 ? 240 : i == 2 ? 120 : 480);
        must(ferry_tensors_add(s->destinations, name, &buffer, &error), &error);
    }
    buffer = ferry_buffer_of(memory + 20000, 120);
    must(ferry_tensors_add(s->destinations, "tied", &buffer, &error), &error);
    buffer = ferry_buffer_of(memory + 20200, 24);
    must(ferry_tensors_add(s->destinations, "tied.s", &buffer, &error), &error);
    buffer = ferry_buffer_of(memory + 21000, 24);
    must(ferry_tensors_add(s->destinations, "w2.s", &buffer, &error), &error);
}

/* Three kinds of groups: one box, boxes of one tensor, and boxes that have no rows in common. */
static void fill(scene *s)
{
    ferry_error error;
    for (uint64_t i = 0; i < 8; i++) {
        ferry_box box = box_of_rows(10 * i, 10, 100);
        must(fy_registry_add(&s->filled, false, i, 0, &box, &error), &error);
    }
    for (uint64_t i = 0; i < 2; i++) {
        ferry_box box = FERRY_BOX_INIT;
        box.buffer = ferry_buffer_of(memory, sizeof memory);
        box.offset = 60000 + i;
        box.n_dims = 2;
        box.length[0] = 10;
        box.stride[0] = 200 + 40 * i;
        box.length[1] = 50;
        box.stride[1] = 4;
        must(fy_registry_add(&s->filled, false, 100 + i, 0, &box, &error), &error);
    }
}

static void test_steps(void **state)
{
    static const step steps[] = {
        {"register", run_register, describe_scene, give_back_scene, FERRY_OK},
        {"tensors", run_tensors, describe_scene, give_back_scene, FERRY_OK},
        {"bind", run_bind, describe_scene, give_back_scene, FERRY_OK},
        {"compare", run_compare, describe_scene, give_back_scene, FERRY_OK},
    };
    scene s = {0};
    ferry_error error;
    (void)state;
    must(ferry_world_create_threads(1, NULL, &s.world, &error), &error);
    make_plan(&s);
    fill(&s);
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        run_step(&steps[i], &s);
    }
    fy_registry_cleanup(&s.filled);
    ferry_tensors_destroy(s.sources);
    ferry_tensors_destroy(s.destinations);
    ferry_plan_destroy(s.plan);
    ferry_world_destroy(s.world);
}

/* As a service's ranks agree on what they registered; status is how this one fared before. */
static ferry_status match_ends(ferry_world *world, const fy_registry *registry, ferry_status status,
                               ferry_error *error)
{
    fy_hash128 sum = fy_match_sum(registry, ferry_world_rank(world));
    fy_field fields[] = {{.value = sum.low, .how = FY_SUM}, {.value = sum.high, .how = FY_SUM}};
    status = fy_agree_on(world, FY_JOINT_SERVICE_SCHEDULE, 0, fields, 2, status, error);
    return status == FERRY_OK && (fields[0].value != 0 || fields[1].value != 0)
               ? fy_match_explain(world, registry, error)
               : status;
}

/* Every rank sends to the next one; a refused registration is told to all. */
static ferry_status match(rank_run *self)
{
    const bool *spoilt = self->plan;
    fy_registry registry = {0};
    ferry_error own;
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; i < 20 && status == FERRY_OK; i++) {
        ferry_box box = box_of_rows(i, 10, 100);
        status = fy_registry_add(&registry, true, i, (self->rank + 1) % RUN_RANKS, &box, &own);
        box.length[2] += *spoilt && i == 17;
        if (status == FERRY_OK) {
            status = fy_registry_add(&registry, false, i, (self->rank + RUN_RANKS - 1) % RUN_RANKS,
                                     &box, &own);
        }
    }
    fy_registry_sort(&registry);
    self->error = own;
    status = match_ends(self->world, &registry, status, &self->error);
    fy_registry_cleanup(&registry);
    if (*spoilt && status == FERRY_ERR_INVALID_INPUT) {
        self->wrong = strstr(self->error.message, "task 17 ") == NULL ? "another task" : NULL;
        status = FERRY_OK; /* as it should be */
    }
    return status == FERRY_OK ? ferry_world_barrier(self->world, &self->error) : status;
}

static void test_match(void **state)
{
    (void)state;
    failing_by_thread = true;
    for (int i = 0; i < 2; i++) {
        bool spoilt = i == 1;
        rank_script script = {
            .name = spoilt ? "a mismatch" : "a match", .plan = &spoilt, .run = match};
        run_script(&script, 8);
    }
    failing_by_thread = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_match),
    };
    failing_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
