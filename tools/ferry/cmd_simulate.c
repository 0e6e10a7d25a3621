/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "arguments.h"
#include "commands.h"
#include "output.h"
#include "plan.h"
#include "simulate.h"
#include "steps.h"
#include "terminal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "Usage: ferry simulate [OPTION]... SPEC\n"
    "       ferry simulate --names NAMES --cluster CLUSTER [OPTION]... CONFIG\n"
    "\n"
    "Predicts how long a refit takes: of SPEC as it is, and with other sizes of its meshes' axes,\n"
    "on one cluster or several, with slow or lost nodes. Nothing is moved, and no other machine "
    "is\n"
    "needed. SPEC is a JSON file that says how each side cuts the tensors (ferry.spec/1: see\n"
    "examples/ and docs/formats.md).\n";

static const char more_help[] =
    "\n"
    "What is printed:\n"
    "  A row for each case: the ranks, the bytes that travel between them, the bound, the "
    "predicted\n"
    "  time, and whose port takes longest. Nothing is faster than the bound but ranks that pass "
    "on\n"
    "  what they have received. Up to 1,024 ranks the time is that of the schedule; with more, "
    "that\n"
    "  of the busiest port, where ranks that do the same are looked at once: such rows have a *. "
    "What\n"
    "  receivers pass on, in trees or in chains, is counted there, and said; with rates of single "
    "nodes\n"
    "  it is not counted, which is said as well. A layout that is not possible has the reason "
    "instead.\n"
    "\n"
    "Exit status:\n"
    "  0 done, 1 the work failed (one sentence on stderr), 2 wrong usage\n"
    "\n"
    "Examples:\n"
    "  ferry simulate examples/llama-3-70b.json --sweep tp=1,2,4,8\n"
    "  ferry simulate examples/llama-3-70b.json --cluster examples/clusters/8xa100-hdr.json \\\n"
    "      --cluster examples/clusters/8xh100-400g.json --html what-if.html\n"
    "  ferry simulate examples/llama-3-70b.json --fault nic:0=0.5 --fault lost:1 --relabel\n"
    "  ferry simulate --names megatron:vllm --from tp=8,pp=4 --to tp=4 --first-rank 32 \\\n"
    "      --cluster 8xh100-400g config.json\n";

enum {
    OPT_CLUSTER = 256,
    OPT_SWEEP,
    OPT_FIT,
    OPT_FAULT,
    OPT_RELABEL,
    OPT_METHOD,
    OPT_JSON,
    OPT_HTML
};

const option_row simulate_option_rows[] = {
    OPTION_LIST(
        "cluster", "CLUSTER", OPT_CLUSTER,
        "a ferry.cluster/1 file with rates and latency, and perhaps with what a node's CPUs copy "
        "together, or one that ferry has: 8xa100-hdr, 8xh100-400g, gb200-nvl72 or two-hosts-1g; "
        "once for each cluster; default: that of the spec"),
    OPTION_LIST("sweep", "AXIS=SIZES", OPT_SWEEP,
                "the sizes that an axis of the destination's mesh is given, such as tp=1,2,4,8, or "
                "source.tp=2,4 of the source's; all combinations of several"),
    OPTION("fit", "AXIS", OPT_FIT,
           "the axis, such as dp, that is given the size with which a side has as many ranks as "
           "before, whatever --sweep makes of the others"),
    OPTION_LIST(
        "fault", "FAULT", OPT_FAULT,
        "also with a node that is slow or gone, once for each: nic:NODE=SHARE, what crosses its "
        "border has a share of its rate, such as 0.5; slow:NODE=SHARE, its ranks' rates, too; "
        "lost:NODE, plan without its ranks"),
    OPTION("relabel", NULL, OPT_RELABEL,
           "also try the destination's ranks in other orders of its axes, and print the best where "
           "it saves a hundredth or more"),
    OPTION_WORDS("auto schedule classes", "method", "METHOD", OPT_METHOD,
                 "how the time is found: schedule, by the schedule's port model; classes, by the "
                 "busiest port; auto (default), see below"),
    SLOT_BYTES_ROW(""),
    NO_RELAYS_ROW,
    OPTION("html", "FILE", OPT_HTML,
           "write a report to FILE: one HTML page, which fetches nothing, with a line for each "
           "cluster and fault"),
    OPTION_LOUDNESS,
    OPTION("json", NULL, OPT_JSON, "print JSON instead (ferry.simulate/1)"),
    NAMES_ROWS,
    OPTION_END};

static int fail_list(const char *option)
{
    return fail_usage("simulate", "%s can be given %d times at most", option, SIMULATE_MOST_LISTS);
}

static int parse_cluster(simulate_request *r)
{
    if (r->n_clusters == SIMULATE_MOST_LISTS) {
        return fail_list("--cluster");
    }
    r->clusters[r->n_clusters++] = optarg;
    return EXIT_DONE;
}

static bool parse_sizes(const char *text, simulate_sweep *sweep)
{
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        unsigned long long value = strtoull(at, &end, 10);
        if (*at < '0' || *at > '9' || errno != 0 || value == 0 || value > FERRY_MAX_RANKS ||
            sweep->n_sizes == SIMULATE_MOST_VALUES || (*end != ',' && *end != '\0')) {
            return false;
        }
        sweep->sizes[sweep->n_sizes++] = (uint32_t)value;
        at = end;
        if (*at == '\0') {
            return true;
        }
    }
}

/* "tp=1,2", "source.tp=4" */
static int parse_sweep(simulate_request *r)
{
    simulate_sweep sweep = {.is_source = strncmp(optarg, "source.", 7) == 0};
    const char *axis = sweep.is_source                            ? optarg + 7
                       : strncmp(optarg, "destination.", 12) == 0 ? optarg + 12
                                                                  : optarg;
    const char *equals = strchr(axis, '=');
    if (r->n_sweeps == SIMULATE_MOST_LISTS) {
        return fail_list("--sweep");
    }
    if (equals == NULL || equals == axis || equals - axis >= (ptrdiff_t)sizeof sweep.axis ||
        !parse_sizes(equals + 1, &sweep)) {
        return fail_usage("simulate",
                          "--sweep takes an axis and up to %d sizes, such as tp=1,2,4,8 or "
                          "source.tp=2,4, not \"%s\"",
                          SIMULATE_MOST_VALUES, optarg);
    }
    memcpy(sweep.axis, axis, (size_t)(equals - axis));
    for (size_t i = 0; i < r->n_sweeps; i++) {
        if (r->sweeps[i].is_source == sweep.is_source &&
            strcmp(r->sweeps[i].axis, sweep.axis) == 0) {
            return fail_usage("simulate", "--sweep gives sizes to \"%s\" twice: name them in one",
                              sweep.axis);
        }
    }
    r->sweeps[r->n_sweeps++] = sweep;
    return EXIT_DONE;
}

/* "nic:3=0.5", "slow:3=0.5", "lost:3" */
static bool parse_fault_text(const char *text, simulate_fault *fault)
{
    bool is_lost = strncmp(text, "lost:", 5) == 0;
    const char *at = strchr(text, ':');
    char *end;
    *fault = (simulate_fault){.text = text, .is_network = strncmp(text, "nic:", 4) == 0};
    if (at == NULL || at[1] < '0' || at[1] > '9' ||
        (!is_lost && !fault->is_network && strncmp(text, "slow:", 5) != 0)) {
        return false;
    }
    errno = 0;
    unsigned long long node = strtoull(at + 1, &end, 10);
    if (errno != 0 || node >= FERRY_MAX_RANKS || *end != (is_lost ? '\0' : '=')) {
        return false;
    }
    fault->node = (uint32_t)node;
    if (!is_lost) {
        const char *share = end + 1;
        fault->factor = strtod(share, &end);
        return end != share && *end == '\0' && fault->factor > 0 && fault->factor <= 1;
    }
    return true;
}

static int parse_fault(simulate_request *r)
{
    if (r->n_faults == SIMULATE_MOST_LISTS) {
        return fail_list("--fault");
    }
    if (!parse_fault_text(optarg, &r->faults[r->n_faults])) {
        return fail_usage("simulate",
                          "--fault takes nic:NODE=SHARE or slow:NODE=SHARE with a share above 0 "
                          "and up to 1, or lost:NODE, not \"%s\"",
                          optarg);
    }
    r->n_faults++;
    return EXIT_DONE;
}

static int apply_option(int option, void *request)
{
    static const option_word methods[] = {{"auto", SIMULATE_AUTO},
                                          {"schedule", SIMULATE_SCHEDULE},
                                          {"classes", SIMULATE_CLASSES},
                                          {NULL, 0}};
    simulate_request *r = request;
    switch (option) {
    case OPT_CLUSTER:
        return parse_cluster(r);
    case OPT_SWEEP:
        return parse_sweep(r);
    case OPT_FIT:
        r->fit = optarg;
        return EXIT_DONE;
    case OPT_FAULT:
        return parse_fault(r);
    case OPT_RELABEL:
        r->relabel = true;
        return EXIT_DONE;
    case OPT_METHOD:
        return parse_word("simulate", "--method", methods, optarg, &r->method);
    case SHARED_OPT_SLOT_BYTES:
        return parse_size("simulate", "--slot-bytes", optarg, &r->slot_bytes);
    case SHARED_OPT_NO_RELAYS:
        r->no_relays = true;
        return EXIT_DONE;
    case OPT_JSON:
        r->json = true;
        return EXIT_DONE;
    case OPT_HTML:
        r->html = optarg;
        return *optarg != '\0' ? EXIT_DONE
                               : fail_usage("simulate", "--html takes the name of a file");
    default:
        return names_apply_option("simulate", option, &r->model);
    }
}

int simulate_parse_arguments(int argc, char **argv, simulate_request *request_out)
{
    *request_out = (simulate_request){.method = SIMULATE_AUTO};
    int status = parse_options(&command_simulate, argc, argv, apply_option, request_out);
    if (status != EXIT_DONE) {
        return status;
    }
    if (optind + 1 != argc) {
        return fail_usage("simulate", "%s",
                          optind == argc ? "a spec is missing" : "there is more than one spec");
    }
    request_out->path = argv[optind];
    status = names_check_together("simulate", &request_out->model);
    if (status != EXIT_DONE) {
        return status;
    }
    if (plan_is_saved(request_out->path)) {
        return fail_usage("simulate", "%s is a saved plan: give the spec that it was made from",
                          request_out->path);
    }
    note_input(request_out->path);
    for (size_t i = 0; i < request_out->n_clusters; i++) {
        note_input(request_out->clusters[i]);
    }
    return check_output("simulate", "--html", request_out->html);
}

static int run(int argc, char **argv)
{
    simulate_request r;
    simulate_cases cases = {.n = 0};
    ferry_error error;
    int status = simulate_parse_arguments(argc, argv, &r);
    if (status != EXIT_DONE) {
        return status;
    }
    terminal_clock *clock = terminal_clock_begin("simulating");
    ferry_status done = simulate_run(&r, &cases, &error);
    terminal_clock_end(clock);
    if (done == FERRY_OK && r.html != NULL) {
        done = simulate_write_html(&r, &cases, &error);
    }
    if (done != FERRY_OK) {
        status = fail("simulate", error.message);
    } else if (r.json) {
        simulate_print_json(&r, &cases);
    } else if (terminal_loudness() != LOUDNESS_QUIET) {
        simulate_print_table(&r, &cases);
    }
    free(cases.at);
    return status;
}

const command command_simulate = {.name = "simulate",
                                  .group = "Plan and move",
                                  .summary =
                                      "predict the time of a refit over layouts and clusters",
                                  .help = help,
                                  .options = simulate_option_rows,
                                  .more_help = more_help,
                                  .run = run};
