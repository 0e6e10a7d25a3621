/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The arguments that `ferry bench mixed` and `ferry tune` share, and those of the former. */
#include "bench_mixed.h"

#include "arguments.h"
#include "bench_mixed_check.h"
#include "commands.h"
#include "output.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MOST_RANKS = 65536,
    MOST_LANES = 4096,
    MOST_LINES = 1 << 24,
    MOST_STEPS = 1 << 20,
    MOST_CALLS = 1000000,
    MOST_FACTOR = 1 << 20
};
static const uint64_t MOST_BYTES = (uint64_t)1 << 40;

static int parse_dtype(mixed_request *r)
{
    ferry_dtype dtype = {0};
    if (ferry_dtype_parse(optarg, &dtype, NULL) != FERRY_OK ||
        (dtype.kind != FERRY_F16 && dtype.kind != FERRY_BF16 && dtype.kind != FERRY_F32)) {
        return fail_usage(r->command, "--dtype takes f16, bf16 or f32, not \"%s\"", optarg);
    }
    r->dtype = dtype.kind;
    return EXIT_DONE;
}

typedef ferry_status (*parse_name_fn)(const char *text, uint32_t *number_out, ferry_error *error);

static int parse_name(const mixed_request *r, const char *option, parse_name_fn parse,
                      uint32_t *number_out)
{
    ferry_error error;
    if (strcmp(optarg, "all") == 0) {
        *number_out = MIXED_ALL;
        return EXIT_DONE;
    }
    return parse(optarg, number_out, &error) == FERRY_OK
               ? EXIT_DONE
               : fail_usage(r->command, "%s: %s, or all", option, error.message);
}

static const option_word orders[] = {
    {"stream", MIXED_ORDER_STREAM}, {"host", MIXED_ORDER_HOST}, {NULL, 0}};

static int apply_bench_option(int option, mixed_request *r)
{
    int status;
    switch (option) {
    case MIXED_OPT_OP:
        r->mixed_option = "--op";
        return parse_name(r, "--op", ferry_mixed_op_parse, &r->op);
    case MIXED_OPT_MODE:
        r->mixed_option = "--mode";
        status = parse_name(r, "--mode", ferry_mixed_mode_parse, &r->mode);
        r->autotune = r->autotune || r->mode == FERRY_MIXED_AUTOTUNE;
        return status;
    case MIXED_OPT_CHECK:
        r->mixed_option = "--check";
        r->check = true;
        return EXIT_DONE;
    case MIXED_OPT_COUNTS:
        r->mixed_option = "--counts";
        r->counts = true;
        return EXIT_DONE;
    case MIXED_OPT_AUTOTUNE:
        r->mixed_option = "--autotune";
        r->autotune = true;
        return EXIT_DONE;
    case MIXED_OPT_TUNE_FILE:
        r->mixed_option = "--tune-file";
        r->tune_file = optarg;
        r->autotune = true;
        return EXIT_DONE;
    case MIXED_OPT_PREDICT:
        r->mixed_option = "--predict";
        r->predict = true;
        return EXIT_DONE;
    case MIXED_OPT_COSTS:
        r->mixed_option = "--costs";
        r->costs = optarg;
        return EXIT_DONE;
    case MIXED_OPT_SAVE_COSTS:
        r->mixed_option = "--save-costs";
        r->save_costs = optarg;
        return EXIT_DONE;
    case MIXED_OPT_ORDER:
        r->mixed_option = "--order";
        return parse_word(r->command, "--order", orders, optarg, &r->order);
    case MIXED_OPT_STEP_FACTOR:
        r->mixed_option = "--step-factor";
        return parse_within(r->command, "--step-factor", optarg, 2, MOST_FACTOR, &r->step_factor);
    case MIXED_OPT_WARMUP:
        r->mixed_option = "--warmup";
        return parse_within(r->command, "--warmup", optarg, 0, MOST_CALLS, &r->n_warmup);
    default:
        return EXIT_USAGE;
    }
}

static const struct count_option {
    int option;
    const char *text;
    uint32_t most;
    size_t offset; /* of its field */
} count_options[] = {
    {MIXED_OPT_NODES, "--nodes", MOST_RANKS, offsetof(mixed_request, n_nodes)},
    {MIXED_OPT_LOCAL_TP, "--local-tp", MOST_RANKS, offsetof(mixed_request, local_tp)},
    {MIXED_OPT_LOCAL_DP, "--local-dp", MOST_RANKS, offsetof(mixed_request, local_dp)},
    {MIXED_OPT_INTER_TP, "--inter-tp", MOST_RANKS, offsetof(mixed_request, inter_tp)},
    {MIXED_OPT_INTER_DP, "--inter-dp", MOST_RANKS, offsetof(mixed_request, inter_dp)},
    {MIXED_OPT_GRID, "--grid", MOST_LANES, offsetof(mixed_request, grid)},
    {MIXED_OPT_MAX_BLOCK, "--max-block", MOST_LINES, offsetof(mixed_request, max_block)},
    {MIXED_OPT_MIN_BLOCK, "--min-block", MOST_LINES, offsetof(mixed_request, min_block)},
    {MIXED_OPT_MIN_STEPS, "--min-steps", MOST_STEPS, offsetof(mixed_request, min_steps)},
    {MIXED_OPT_ITERATIONS, "--iterations", MOST_CALLS, offsetof(mixed_request, n_iterations)},
};

static const struct size_option {
    int option;
    const char *text;
    size_t offset; /* of its field */
} size_options[] = {
    {MIXED_OPT_MIN_BYTES, "--min-bytes", offsetof(mixed_request, least)},
    {MIXED_OPT_MAX_BYTES, "--max-bytes", offsetof(mixed_request, most)},
    {MIXED_OPT_STEP_BYTES, "--step-bytes", offsetof(mixed_request, step_bytes)},
};

static int parse_limited_size(const mixed_request *r, const char *option, uint64_t *bytes_out)
{
    int status = parse_size(r->command, option, optarg, bytes_out);
    return status == EXIT_DONE && *bytes_out > MOST_BYTES
               ? fail_usage(r->command, "%s takes at most 1024G, not \"%s\"", option, optarg)
               : status;
}

static int apply_size_option(int option, mixed_request *r)
{
    for (size_t i = 0; i < sizeof size_options / sizeof size_options[0]; i++) {
        const struct size_option *o = &size_options[i];
        if (o->option == option) {
            r->mixed_option = o->text;
            return parse_limited_size(r, o->text, (uint64_t *)(void *)((char *)r + o->offset));
        }
    }
    return apply_bench_option(option, r);
}

int mixed_apply_option(int option, mixed_request *r)
{
    for (size_t i = 0; i < sizeof count_options / sizeof count_options[0]; i++) {
        const struct count_option *o = &count_options[i];
        if (o->option == option) {
            r->mixed_option = o->text;
            return parse_count(r->command, o->text, optarg, o->most,
                               (uint32_t *)(void *)((char *)r + o->offset));
        }
    }
    switch (option) {
    case MIXED_OPT_DTYPE:
        r->mixed_option = "--dtype";
        return parse_dtype(r);
    case MIXED_OPT_DETERMINISTIC:
        r->mixed_option = "--deterministic";
        r->deterministic = true;
        return EXIT_DONE;
    case MIXED_OPT_STARTED:
        r->mixed_option = "--started";
        r->started = true;
        return EXIT_DONE;
    default:
        return apply_size_option(option, r);
    }
}

static uint64_t or_one(uint32_t size)
{
    return size == 0 ? 1 : size;
}

/* Which sizes fit is the library's to say; these are only those that nobody has said. */
static int fill_in_ranks(mixed_request *r)
{
    uint64_t inter = or_one(r->inter_tp) * or_one(r->inter_dp);
    uint64_t local = or_one(r->local_tp) * or_one(r->local_dp);
    uint64_t nodes = r->n_nodes != 0 ? r->n_nodes : inter;
    bool sized = r->local_tp != 0 || r->local_dp != 0 || nodes > 1;
    uint64_t ranks = r->n_ranks != 0 ? r->n_ranks : sized ? nodes * local : 2;
    if (nodes > MOST_RANKS || local > MOST_RANKS || ranks > MOST_RANKS) {
        return fail_usage(r->command, "the sizes make a world of more than %d ranks", MOST_RANKS);
    }
    if (ranks % nodes != 0) {
        return fail_usage(r->command,
                          "the number of ranks, %llu, is not a multiple of that of nodes, %llu",
                          (unsigned long long)ranks, (unsigned long long)nodes);
    }
    r->n_ranks = (uint32_t)ranks;
    r->n_nodes = nodes > 1 || r->n_nodes != 0 ? (uint32_t)nodes : 0;
    return EXIT_DONE;
}

/* What only ranks could make of use, while nothing is run; or NULL. */
static const char *needs_ranks(const mixed_request *r)
{
    return r->check                      ? "--check"
           : r->autotune                 ? "--autotune"
           : r->counts                   ? "--counts"
           : r->transport != NULL        ? "--transport"
           : r->n_iterations != 0        ? "--iterations"
           : r->n_warmup != MIXED_WARMUP ? "--warmup"
           : r->order != 0               ? "--order"
           : r->join                     ? "--join"
                                         : NULL;
}

/* Costs of a file say what calls take: there is nothing to measure, nor anybody to join. */
static int check_costs(const mixed_request *r)
{
    const char *needed = needs_ranks(r);
    if (!r->predict && (r->costs != NULL || r->save_costs != NULL)) {
        return fail_usage(r->command, "%s goes with --predict",
                          r->costs != NULL ? "--costs" : "--save-costs");
    }
    if (r->predict && (r->mode == FERRY_MIXED_MODE_DEFAULT || r->mode == FERRY_MIXED_AUTOTUNE)) {
        return fail_usage(r->command,
                          "--predict knows modes of their own: default and autotune are "
                          "some of the others");
    }
    if (r->costs != NULL && r->save_costs != NULL) {
        return fail_usage(r->command, "--save-costs saves what was measured, and with --costs "
                                      "nothing is");
    }
    if (r->costs != NULL && needed != NULL) {
        return fail_usage(r->command,
                          "--costs predicts without ranks: it cannot be combined with %s", needed);
    }
    if (r->costs != NULL && *r->costs == '\0') {
        return fail_usage(r->command, "--costs takes the name of a file");
    }
    return may_write_outputs(r->join) ? check_output(r->command, "--save-costs", r->save_costs)
                                      : EXIT_DONE;
}

/* A line for each byte between two sizes would be no answer, and half of them the same. */
static int check_sizes(const mixed_request *r)
{
    enum { MOST_SIZES = 4096 };
    uint32_t element = mixed_element_bytes(r->dtype);
    if (r->step_bytes % element != 0) {
        return fail_usage(r->command, "--step-bytes is not whole elements of %u bytes", element);
    }
    if (r->predict && r->step_bytes != 0 && (r->most - r->least) / r->step_bytes >= MOST_SIZES) {
        return fail_usage(r->command, "--predict takes up to %d sizes", MOST_SIZES);
    }
    return EXIT_DONE;
}

int mixed_check_together(mixed_request *r)
{
    uint32_t element = mixed_element_bytes(r->dtype);
    bool member = getenv("RANK") != NULL && getenv("WORLD_SIZE") != NULL;
    r->join = r->join || r->started || (member && r->costs == NULL);
    int status = check_costs(r);
    if (status == EXIT_DONE && r->order != 0 && r->memory == FERRY_MEMORY_HOST) {
        return fail_usage(r->command, "--order goes with --memory of devices: on the host there is "
                                      "only one");
    }
    status = status == EXIT_DONE ? check_sizes(r) : status;
    if (status != EXIT_DONE) {
        return status;
    }
    if (r->least != 0 && r->least < element) {
        return fail_usage(r->command, "the smallest size is below one element, which has %u bytes",
                          element);
    }
    if (r->least > r->most) {
        return fail_usage(r->command, "--min-bytes is above --max-bytes, which is 64M if not said");
    }
    if (r->join && !r->started && r->n_ranks != 0) {
        return fail_usage(r->command,
                          "--ranks cannot be combined with a world that is there already "
                          "(--join, or RANK and WORLD_SIZE in the environment)");
    }
    return r->join && !r->started ? EXIT_DONE : fill_in_ranks(r);
}
