/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * `ferry bench mixed`: the mixed collectives between ranks, timed and, if asked for, checked. All
 * ranks walk through the same lines; rank 0 prints them.
 */
#include "bench_mixed_line.h"

#include "commands.h"
#include "plan.h"
#include "steps.h"
#include "units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double PROBE_SECONDS = 0.3;

uint64_t mixed_next_size(const mixed_request *r, uint64_t bytes)
{
    return r->step_bytes != 0 ? bytes + r->step_bytes : bytes * r->step_factor;
}

static ferry_status run_lines(mixed_bench *b, ferry_error *error)
{
    const mixed_request *r = b->request;
    uint32_t element = mixed_element_bytes(b->rank.info.dtype);
    ferry_status status = FERRY_OK;
    for (size_t op = 0; op < b->n_ops; op++) {
        for (uint64_t bytes = r->least; bytes <= r->most; bytes = mixed_next_size(r, bytes)) {
            for (size_t mode = 0; mode < b->n_modes && status == FERRY_OK; mode++) {
                mixed_line line = {.op = b->ops[op],
                                   .mode = b->modes[mode],
                                   .bytes = bytes / element * element,
                                   .count = bytes / element};
                status = mixed_run_line(b, &line, error);
            }
        }
    }
    return status;
}

/* ---- what is predicted ---- */

/* Every third size, and the last: what lies between is predicted by what it does not know. */
static ferry_status time_fit(mixed_bench *b, uint64_t bytes, ferry_error *error)
{
    uint32_t element = mixed_element_bytes(b->rank.info.dtype);
    for (size_t op = 0; op < b->n_ops; op++) {
        for (size_t mode = 0; mode < b->n_modes; mode++) {
            mixed_line line = {.op = b->ops[op],
                               .mode = b->modes[mode],
                               .bytes = bytes / element * element,
                               .count = bytes / element};
            if (mixed_is_by_library(&b->rank.info, line.mode)) {
                continue;
            }
            FY_TRY(mixed_time_line(b, &line, error));
            b->fit[b->n_fit++] = (mixed_sample){line.op, line.mode, line.bytes, line.count,
                                                line.forms[MIXED_OUT_OF_PLACE].seconds};
        }
    }
    return FERRY_OK;
}

static ferry_status time_fits(mixed_bench *b, ferry_error *error)
{
    const mixed_request *r = b->request;
    uint64_t n_sizes = 0;
    size_t stride = 3;
    for (uint64_t bytes = r->least; bytes <= r->most; bytes = mixed_next_size(r, bytes)) {
        n_sizes++;
    }
    while ((n_sizes + stride - 1) / stride + 1 > MIXED_MOST_KNOTS) {
        stride++;
    }
    b->fit = calloc(MIXED_MOST_KNOTS * b->n_ops * b->n_modes, sizeof *b->fit);
    FY_TRY(b->fit == NULL ? mixed_fail(error, FERRY_ERR_NO_MEMORY, "out of memory") : FERRY_OK);
    uint64_t number = 0;
    for (uint64_t bytes = r->least; bytes <= r->most; bytes = mixed_next_size(r, bytes), number++) {
        if (number % stride == 0 || number + 1 == n_sizes) {
            FY_TRY(time_fit(b, bytes, error));
        }
    }
    b->report.off = calloc(n_sizes * b->n_ops * b->n_modes, sizeof *b->report.off);
    return b->report.off == NULL ? mixed_fail(error, FERRY_ERR_NO_MEMORY, "out of memory")
                                 : FERRY_OK;
}

static uint32_t sharing_count(const mixed_bench *b)
{
    bool alone = b->request->join && !b->request->started;
    return alone ? b->rank.info.local_size : b->rank.n_ranks;
}

/* Launchers bind ranks each to some: together they have what any of this node's may use. */
static ferry_status find_processors(mixed_bench *b, ferry_error *error)
{
    const void *all = NULL;
    cpu_set_t together;
    CPU_ZERO(&together);
    FY_TRY(
        ferry_world_all_gather(b->rank.world, &b->rank.processors, sizeof(cpu_set_t), &all, error));
    for (uint32_t rank = 0; rank < sharing_count(b); rank++) {
        cpu_set_t own;
        memcpy(&own, (const char *)all + rank * sizeof own, sizeof own);
        CPU_OR(&together, &together, &own);
    }
    b->costs.processors = (uint32_t)CPU_COUNT(&together);
    return FERRY_OK;
}

/* The handle's own sizes, whoever has chosen them. */
static ferry_status open_sketches(mixed_bench *b, ferry_error *error)
{
    const ferry_mixed_comm_info *info = &b->rank.info;
    ferry_mixed_comm_options o = mixed_options_of(b->request);
    o.world_size = info->world_size;
    o.local_size = info->local_size;
    o.inter_size = info->inter_size;
    o.local_tp_size = info->local_tp_size;
    o.local_dp_size = info->local_dp_size;
    o.inter_tp_size = info->inter_tp_size;
    o.inter_dp_size = info->inter_dp_size;
    o.grid_size = info->grid_size;
    return mixed_sketches_open(&o, info->reach, sharing_count(b), &b->sketches, error);
}

/* Whose costs they are, and what shares them: kernels take no processors of the host's. */
static ferry_status describe_costs(mixed_bench *b, ferry_error *error)
{
    bool by_kernels = b->rank.info.kernels;
    b->costs.multicast_objects = b->rank.info.reach == FERRY_MIXED_REACH_OBJECTS;
    if (b->rank.device.kind == FERRY_MEMORY_HOST) {
        snprintf(b->costs.name, sizeof b->costs.name, "this machine");
        return find_processors(b, error);
    }
    snprintf(b->costs.name, sizeof b->costs.name, "this machine's %s devices, by %s",
             mixed_kind_name(b->rank.device.kind), by_kernels ? "kernels" : "the host");
    return by_kernels ? FERRY_OK : find_processors(b, error);
}

/* All ranks measure; rank 0 alone fits, and predicts. */
static ferry_status fit_costs(mixed_bench *b, ferry_error *error)
{
    FY_TRY(describe_costs(b, error));
    FY_TRY(time_fits(b, error));
    if (b->rank.rank != 0) {
        return FERRY_OK;
    }
    FY_TRY(mixed_fit(b->fit, b->n_fit, &b->sketches, &b->costs, error));
    b->report.costs = &b->costs;
    b->report.n_fitted = b->n_fit;
    return b->request->save_costs == NULL
               ? FERRY_OK
               : mixed_costs_save(&b->costs, b->request->save_costs, error);
}

/* ---- what is measured ---- */

typedef const char *(*name_fn)(uint32_t number);

static void list_names(const uint32_t *list, size_t n, name_fn name, char *text, size_t text_bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < n && used < text_bytes; i++) {
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", i > 0 ? ", " : "",
                                 name(list[i]));
    }
}

ferry_status mixed_choose(uint32_t *list, size_t *n, uint32_t wanted, bool is_mode,
                          ferry_error *error)
{
    name_fn name = is_mode ? ferry_mixed_mode_name : ferry_mixed_op_name;
    char text[256];
    if (wanted == MIXED_ALL) {
        return FERRY_OK;
    }
    bool offered = is_mode && wanted == FERRY_MIXED_MODE_DEFAULT;
    for (size_t i = 0; i < *n; i++) {
        offered = offered || list[i] == wanted;
    }
    if (offered) {
        list[0] = wanted;
        *n = 1;
        return FERRY_OK;
    }
    list_names(list, *n, name, text, sizeof text);
    return mixed_fail(error, FERRY_ERR_INVALID_INPUT, "these ranks have no %s %s; they have %s",
                      is_mode ? "mode" : "operation", name(wanted), text);
}

static ferry_status choose_lines(mixed_bench *b, ferry_error *error)
{
    ferry_mixed_comm *comm = b->rank.comm;
    ferry_status status =
        ferry_mixed_comm_get_valid_op_list(comm, b->ops, FERRY_MIXED_N_OPS, &b->n_ops, error);
    FY_THEN(status, ferry_mixed_comm_get_valid_mode_list(comm, b->modes, FERRY_MIXED_N_MODES,
                                                         &b->n_modes, error));
    FY_THEN(status, mixed_choose(b->ops, &b->n_ops, b->request->op, false, error));
    FY_THEN(status, mixed_choose(b->modes, &b->n_modes, b->request->mode, true, error));
    b->rank.is_common = status != FERRY_OK;
    return status;
}

/* ---- memory ---- */

/* Buffers for the largest line. All ranks ask before one of them takes any. */
static ferry_status check_room(mixed_bench *b, uint64_t bytes, ferry_error *error)
{
    ferry_machine machine = FERRY_MACHINE_INIT;
    bool alone = b->request->join && !b->request->started;
    uint64_t n = alone ? b->rank.info.local_size : b->rank.n_ranks;
    ferry_status status = ferry_machine_probe(0, &machine, error);
    FY_THEN(status, ferry_world_barrier(b->rank.world, error));
    /* What devices of the test kind have is the host's memory, too. */
    uint64_t copies = b->rank.device.kind == FERRY_MEMORY_FAR ? 2 : 1;
    uint64_t needed = copies * n * bytes;
    if (status == FERRY_OK && needed > machine.room_bytes) {
        char text[2][32];
        status = mixed_fail(error, FERRY_ERR_NO_MEMORY,
                            "%llu rank%s need%s %s for tensors on this machine, which has %s free; "
                            "ask for less with --sizes or --max-bytes",
                            (unsigned long long)n, plural(n), n == 1 ? "s" : "",
                            format_bytes((double)needed, text[0]),
                            format_bytes((double)machine.room_bytes, text[1]));
    }
    return status;
}

static ferry_status allocate(mixed_bench *b, ferry_error *error)
{
    uint64_t most_in = 0, most_out = 0;
    for (size_t i = 0; i < b->n_ops; i++) {
        mixed_line line = {.op = b->ops[i], .count = b->request->most};
        mixed_case c = mixed_case_of(b, &line, MIXED_INTEGERS); /* of bytes here, not of elements */
        uint64_t in = mixed_in_count(&c), out = mixed_out_count(&c);
        most_in = in > most_in ? in : most_in;
        most_out = out > most_out ? out : most_out;
    }
    uint32_t n = b->request->n_iterations;
    uint64_t most = most_in > most_out ? most_in : most_out;
    b->most_samples = n > MIXED_MOST_SAMPLES ? n : MIXED_MOST_SAMPLES;
    b->samples = calloc(b->most_samples, sizeof *b->samples);
    FY_TRY(b->samples == NULL ? mixed_fail(error, FERRY_ERR_NO_MEMORY, "out of memory") : FERRY_OK);
    FY_TRY(check_room(b, most_in + most_out + most, error));
    FY_TRY(mixed_memory_take(&b->rank, most_in, &b->in, error));
    FY_TRY(mixed_memory_take(&b->rank, most_out, &b->out, error));
    return mixed_memory_take(&b->rank, most, &b->place, error);
}

static ferry_status fill(mixed_bench *b, const mixed_memory *memory, ferry_error *error)
{
    uint32_t element = mixed_element_bytes(b->rank.info.dtype);
    mixed_line line = {.op = FERRY_MIXED_ALL_REDUCE, .count = memory->bytes / element};
    mixed_case c = mixed_case_of(b, &line, MIXED_INTEGERS);
    mixed_fill(&c, memory->host);
    return mixed_memory_send(memory, 0, memory->bytes, error);
}

/* What only devices have: who they are, an order of their own, and lanes that say how many. */
static ferry_status open_devices(mixed_bench *b, ferry_error *error)
{
    const ferry_device *device = &b->rank.device;
    if (device->kind == FERRY_MEMORY_HOST) {
        return FERRY_OK;
    }
    FY_TRY(mixed_devices_gather(&b->rank, &b->report.devices, error));
    return b->report.order == MIXED_ORDER_HOST
               ? FERRY_OK
               : ferry_queue_create((ferry_memory_kind)device->kind, device->index, &b->queue,
                                    error);
}

/*
 * A kernel of one rank that waits for that of another may hold up the stream that the other one's
 * call is on, where both are streams of one process: ranks that are threads do without.
 */
static uint32_t order_of(const mixed_request *r, bool is_thread)
{
    return r->order != 0 ? r->order : is_thread ? MIXED_ORDER_HOST : MIXED_ORDER_STREAM;
}

static ferry_status open_bench(mixed_bench *b, ferry_world *world, ferry_error *error)
{
    ferry_status status = mixed_open(b->request, world, &b->rank, error);
    b->report = (mixed_report){.request = b->request,
                               .rank = &b->rank,
                               .order = order_of(b->request, world != NULL),
                               .machine = FERRY_MACHINE_INIT};
    FY_THEN(status, choose_lines(b, error));
    FY_THEN(status, open_devices(b, error));
    FY_THEN(status, allocate(b, error));
    /* Zeros are sums of nothing. Without a check nothing is filled again: the inputs stay what they
     * are here, and in place the sums of sums grow. */
    FY_THEN(status, fill(b, &b->in, error));
    FY_THEN(status, fill(b, &b->place, error));
    bool is_counted = b->request->predict || b->report.devices != NULL;
    if (status == FERRY_OK && b->rank.rank == 0 && is_counted) {
        status = open_sketches(b, error);
    }
    if (status == FERRY_OK && b->rank.rank == 0) {
        status = ferry_machine_probe(PROBE_SECONDS, &b->report.machine, error);
    }
    return status == FERRY_OK ? ferry_world_barrier(b->rank.world, error) : status;
}

static void free_memory(mixed_bench *b)
{
    mixed_memory_give(&b->in);
    mixed_memory_give(&b->out);
    mixed_memory_give(&b->place);
    free(b->report.devices);
    free(b->samples);
    free(b->fit);
    free(b->report.off);
    mixed_sketches_close(&b->sketches);
}

static ferry_status judge(mixed_bench *b, ferry_error *error)
{
    if (b->n_wrong == 0 && b->n_differ == 0) {
        return FERRY_OK;
    }
    b->rank.is_common = true;
    return mixed_fail(error, FERRY_ERR_DIGEST,
                      "wrong elements: %llu, ranks whose bits differ from those of others: %u; %s",
                      (unsigned long long)b->n_wrong, b->n_differ, b->first_wrong.message);
}

int bench_mixed(const mixed_request *r, ferry_world *world)
{
    ferry_error error = {0};
    mixed_bench b = {.request = r};
    ferry_status status = open_bench(&b, world, &error);
    if (r->predict) {
        FY_THEN(status, fit_costs(&b, &error));
    }
    if (status == FERRY_OK && b.rank.rank == 0) {
        mixed_report_begin(&b.report);
    }
    FY_THEN(status, run_lines(&b, &error));
    if (status == FERRY_OK && b.rank.rank == 0) {
        mixed_report_end(&b.report);
        fflush(stdout);
    }
    FY_THEN(status, judge(&b, &error));
    int exit_status = mixed_close(&b.rank, status, &error);
    ferry_queue_destroy(b.queue);
    free_memory(&b);
    return exit_status;
}
