/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* `ferry bench mixed --predict --costs FILE`: what calls would take, of ranks that nobody starts.
 */
#include "bench_mixed_predict.h"

#include "bench_mixed_check.h"
#include "bench_mixed_device.h"
#include "commands.h"
#include "json_text.h"
#include "plan.h"
#include "steps.h"
#include "units.h"

#include <stdio.h>

typedef struct table {
    const mixed_request *request;
    mixed_costs costs;
    mixed_sketches sketches;
    ferry_mixed_comm_options options;
    uint32_t ops[FERRY_MIXED_N_OPS], modes[FERRY_MIXED_N_MODES];
    size_t n_ops, n_modes;
    double tp, dp;
    bool any;
} table;

/* A size that nobody has given is what the other one leaves, and all sum where neither is. */
static uint32_t tp_of(uint32_t size, uint32_t tp, uint32_t dp)
{
    return tp > 0 ? tp : dp > 0 ? size / dp : size;
}

/* Whether kernels make the calls: no cores bound their lanes, and rings are ferry's own there. */
static bool is_by_kernels(const mixed_request *r)
{
    return r->memory == FERRY_MEMORY_CUDA;
}

static uint32_t grid_of(const table *t)
{
    enum { KERNEL_LANES = 160 }; /* unless devices run fewer blocks at once, or ranks share one */
    uint32_t share = t->costs.processors / t->options.local_size;
    return t->request->grid != 0       ? t->request->grid
           : is_by_kernels(t->request) ? KERNEL_LANES
           : share > 1                 ? share
                                       : 1;
}

/* As a handle would choose them: a fair share of the processors that the ranks of a node have. */
static void fill_in_options(table *t)
{
    const mixed_request *r = t->request;
    ferry_mixed_comm_options *o = &t->options;
    *o = mixed_options_of(r);
    o->world_size = r->n_ranks;
    o->inter_size = r->n_nodes == 0 ? 1 : r->n_nodes;
    o->local_size = r->n_ranks / o->inter_size;
    o->local_tp_size = tp_of(o->local_size, r->local_tp, r->local_dp);
    o->inter_tp_size = tp_of(o->inter_size, r->inter_tp, r->inter_dp);
    o->grid_size = grid_of(t);
}

/* A library's collectives on devices are its own, and not the rings of a host or of a kernel. */
static bool lacks_base(const table *t)
{
    return t->costs.overlaps && !is_by_kernels(t->request);
}

static void leave_out_base(table *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_modes; i++) {
        bool is_base = t->modes[i] == FERRY_MIXED_BASE_ONE || t->modes[i] == FERRY_MIXED_BASE_TP_DP;
        if (!is_base || !lacks_base(t)) {
            t->modes[n++] = t->modes[i];
        }
    }
    t->n_modes = n;
}

static ferry_status open_table(table *t, ferry_error *error)
{
    const mixed_request *r = t->request;
    FY_TRY(mixed_costs_load(r->costs, &t->costs, error));
    fill_in_options(t);
    FY_TRY(mixed_sketches_open(&t->options,
                               t->costs.multicast_objects ? FERRY_MIXED_REACH_OBJECTS
                                                          : FERRY_MIXED_REACH_IN_PLACE,
                               t->options.local_size, &t->sketches, error));
    const ferry_mixed_sketch *first = t->sketches.at[0];
    FY_TRY(
        ferry_mixed_sketch_get_valid_op_list(first, t->ops, FERRY_MIXED_N_OPS, &t->n_ops, error));
    FY_TRY(ferry_mixed_sketch_get_valid_mode_list(first, t->modes, FERRY_MIXED_N_MODES, &t->n_modes,
                                                  error));
    leave_out_base(t);
    FY_TRY(mixed_choose(t->ops, &t->n_ops, r->op, false, error));
    FY_TRY(mixed_choose(t->modes, &t->n_modes, r->mode, true, error));
    t->tp = (double)t->options.local_tp_size * t->options.inter_tp_size;
    t->dp = t->options.world_size / t->tp;
    return FERRY_OK;
}

static void begin_table(const table *t)
{
    const ferry_mixed_comm_options *o = &t->options;
    char dtype[FERRY_DTYPE_TEXT_BYTES];
    mixed_dtype_text(o->dtype, dtype);
    if (t->request->json) {
        printf("{\"format\":\"ferry.bench/1\",\"name\":\"mixed\",\"version\":");
        print_json_text(ferry_version());
        printf(",\"ranks\":%u,\"nodes\":%u,\"topology\":{\"local_tp\":%u,\"local_dp\":%u,"
               "\"inter_tp\":%u,\"inter_dp\":%u},\"dtype\":\"%s\",\"deterministic\":%s,"
               "\"grid_size\":%u,\"multicast\":true,\"multicast_objects\":%s,\"memory\":\"%s\","
               "\"costs\":",
               o->world_size, o->inter_size, o->local_tp_size, o->local_size / o->local_tp_size,
               o->inter_tp_size, o->inter_size / o->inter_tp_size, dtype,
               o->deterministic ? "true" : "false", o->grid_size,
               t->costs.multicast_objects ? "true" : "false", mixed_kind_name(t->request->memory));
        mixed_costs_print_json(&t->costs);
        printf(",\"results\":[");
        return;
    }
    printf("# ferry %s, bench mixed: predicted, nothing was run\n", ferry_version());
    printf("# %u rank%s on %u node%s, tp %g x dp %g, %s%s, %u lane%s\n", o->world_size,
           plural(o->world_size), o->inter_size, plural(o->inter_size), t->tp, t->dp, dtype,
           o->deterministic ? ", deterministic" : "", o->grid_size, plural(o->grid_size));
    mixed_costs_print(&t->costs, "# by the costs of ");
    if (lacks_base(t)) {
        printf("# base modes, a library's own there, are left out\n");
    } else if (is_by_kernels(t->request)) {
        printf("# in memory of devices, by kernels\n");
    }
}

static void print_prediction(table *t, const mixed_sample *call, double seconds, bool is_fastest)
{
    double ranks = t->options.world_size;
    double rate = seconds > 0 ? (double)call->bytes * t->dp / seconds : 0;
    double bus = rate * (ranks + t->tp - 2) / ranks;
    if (t->request->json) {
        printf("%s\n{\"op\":\"%s\",\"mode\":\"%s\",\"bytes\":%llu,\"count\":%llu,"
               "\"predicted_us\":%.4f,\"gbytes_per_s\":%.6f,\"bus_gbytes_per_s\":%.6f,"
               "\"fastest\":%s}",
               t->any ? "," : "", ferry_mixed_op_name(call->op), ferry_mixed_mode_name(call->mode),
               (unsigned long long)call->bytes, (unsigned long long)call->count, seconds * 1e6,
               rate / 1e9, bus / 1e9, is_fastest ? "true" : "false");
    } else {
        double us = seconds * 1e6;
        printf("%10llu %10llu  %-22s %9.*f %8.3f %8.3f%s\n", (unsigned long long)call->bytes,
               (unsigned long long)call->count, ferry_mixed_mode_name(call->mode), us < 1e4 ? 2 : 0,
               us, rate / 1e9, bus / 1e9, is_fastest ? " <" : "");
    }
    t->any = true;
}

/* All modes of one size, and which is the fastest. */
static void print_size(table *t, uint32_t op, uint64_t bytes)
{
    uint32_t element = mixed_element_bytes(t->request->dtype);
    double seconds[FERRY_MIXED_N_MODES] = {0};
    size_t best = 0;
    for (size_t i = 0; i < t->n_modes; i++) {
        const mixed_sample call = {op, t->modes[i], bytes / element * element, bytes / element, 0};
        seconds[i] = mixed_predict(&t->costs, &t->sketches, &call);
        best = seconds[i] < seconds[best] ? i : best;
    }
    for (size_t i = 0; i < t->n_modes; i++) {
        const mixed_sample call = {op, t->modes[i], bytes / element * element, bytes / element, 0};
        print_prediction(t, &call, seconds[i], t->n_modes > 1 && i == best);
    }
}

int mixed_predict_table(const mixed_request *r)
{
    table t = {.request = r};
    ferry_error error = {0};
    ferry_status status = open_table(&t, &error);
    if (status == FERRY_OK) {
        begin_table(&t);
    }
    for (size_t op = 0; op < t.n_ops && status == FERRY_OK; op++) {
        if (!r->json) {
            printf("#\n# %s\n#%9s %10s  %-22s %9s %8s %8s\n#%9s %10s  %-22s %9s %8s %8s\n",
                   ferry_mixed_op_name(t.ops[op]), "size", "count", "mode", "predicted", "algbw",
                   "busbw", "(B)", "(elements)", "", "(us)", "(GB/s)", "(GB/s)");
        }
        for (uint64_t bytes = r->least; bytes <= r->most; bytes = mixed_next_size(r, bytes)) {
            print_size(&t, t.ops[op], bytes);
        }
    }
    if (status == FERRY_OK && r->json) {
        printf("\n]}\n");
    }
    mixed_sketches_close(&t.sketches);
    return status == FERRY_OK ? EXIT_DONE : fail(r->command, error.message);
}
