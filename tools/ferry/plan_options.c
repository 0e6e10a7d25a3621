/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The arguments of `ferry plan`. */
#include "plan.h"

#include "arguments.h"
#include "commands.h"
#include "output.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPT_JSON = 256,
    OPT_SUMMARY,
    OPT_RANK,
    OPT_WITHOUT,
    OPT_PROVE,
    OPT_SAVE,
    OPT_SCHEDULE,
    OPT_DUPLEX,
    OPT_MAX_TASKS,
    OPT_TRACE,
    OPT_HTML
};

const option_row plan_option_rows[] = {
    OPTION_LOUDNESS,
    OPTION("json", NULL, OPT_JSON, "print JSON instead (ferry.plan/1), with every move"),
    OPTION("summary", NULL, OPT_SUMMARY, "leave the moves and batches out of --json"),
    OPTION("rank", "R", OPT_RANK,
           "only the moves and batches that rank R sends or receives, with the numbers that they "
           "have in "
           "the whole plan"),
    REPLICA_ROW,
    PATTERN_ROWS("destination tensors"),
    OPTION_LIST(
        "without", "RANKS", OPT_WITHOUT,
        "plan again after RANKS (3,7) were lost: nothing comes from them or goes to them. Status 1 "
        "if something is wanted that only they held"),
    OPTION("prove", NULL, OPT_PROVE,
           "check every element of every destination shard against the spec, with a second planner "
           "that shares no code with the first; status 1 if a single element is wrong"),
    OPTION(
        "save", "FILE", OPT_SAVE,
        "save the plan to FILE, for ferry plan, run and inspect; small, for it keeps what the plan "
        "follows from, and not its moves"),
    OPTION("html", "FILE", OPT_HTML,
           "write a report to FILE: one HTML page, which fetches nothing, with the traffic, what "
           "each "
           "rank sends and receives, and who holds what of every tensor before and after; with "
           "--schedule also what travels when. FILE is replaced when the page is complete"),
    OPTION_WORDS(
        "optimal first-fit first-fit-half", "schedule", "[RULE]", OPT_SCHEDULE,
        "say in which round everything travels, and predict how long it takes on the spec's "
        "cluster (ferry simulate takes any); see below"),
    OPTION("trace", "FILE", OPT_TRACE,
           "make a schedule, as --schedule does, and write its timeline to FILE: a Chrome trace, "
           "which opens in Perfetto. FILE is replaced when the trace is complete"),
    NAMES_ROWS,
    OPTION_HEADING("A schedule"),
    OPTION_NOTE(
        "  Moves are cut into segments, segments for one receiver fill batches, and batches get\n"
        "  rounds in which a rank sends at most one and receives at most one. Ranks do not wait "
        "for\n"
        "  each other between rounds. RULE is one of\n"
        "\n"
        "  optimal             (default) as many rounds as the busiest rank has batches, which no\n"
        "                      schedule can beat, and batches of sizes that keep the ranks busy; "
        "what\n"
        "                      several ranks want may be passed on by those that have it\n"
        "  first-fit           each batch in the first round that is free, by sender and receiver: "
        "the\n"
        "                      rule of the reference scheduler\n"
        "  first-fit-half      the same where a rank takes part in one batch of a round; implies\n"
        "                      --duplex half\n"
        "\n"
        "  These need --schedule or --trace:\n"),
    OPTION_WORDS("half full", "duplex", "MODE", OPT_DUPLEX,
                 "full (default) if a rank can send and receive at once, or half"),
    SLOT_BYTES_ROW(""),
    OPTION("max-tasks", "N", OPT_MAX_TASKS, "the most segments of a batch; default 10000"),
    NO_RELAYS_ROW,
    OPTION_END};

/* A decimal number that may be followed by something, which *end_out is. */
static bool parse_number(const char *text, unsigned long long *value_out, const char **end_out)
{
    char *end;
    errno = 0;
    *value_out = strtoull(text, &end, 10);
    *end_out = end;
    return *text >= '0' && *text <= '9' && errno == 0;
}

static bool parse_rank(const char *text, uint32_t *rank_out)
{
    unsigned long long value;
    const char *end;
    if (!parse_number(text, &value, &end) || *end != '\0' || value >= FERRY_MAX_RANKS) {
        return false;
    }
    *rank_out = (uint32_t)value;
    return true;
}

static size_t count_commas(const char *text)
{
    size_t n = 0;
    for (; *text != '\0'; text++) {
        n += *text == ',';
    }
    return n;
}

/* "3,7": what planning thinks of the numbers, it says itself. Given again, it adds more ranks. */
static int parse_without(const char *text, plan_request *r)
{
    size_t n = r->planning.n_lost_ranks;
    uint32_t *ranks = realloc(r->lost, (n + count_commas(text) + 1) * sizeof *ranks);
    if (ranks == NULL) {
        return fail("plan", "no memory for a list of ranks");
    }
    r->lost = ranks;
    r->planning.lost_ranks = ranks;
    const char *at = text, *end;
    do {
        unsigned long long value;
        if (!parse_number(at, &value, &end) || (*end != ',' && *end != '\0') ||
            value >= FERRY_MAX_RANKS) {
            return fail_usage("plan", "--without takes a comma-separated list of ranks, not \"%s\"",
                              text);
        }
        ranks[n++] = (uint32_t)value;
        at = end + 1;
    } while (*end == ',');
    r->planning.n_lost_ranks = n;
    r->has_planning_option = true;
    return EXIT_DONE;
}

static int parse_rule(const char *text, plan_request *r)
{
    static const option_word rules[] = {{"optimal", FERRY_SCHEDULE_OPTIMAL},
                                        {"first-fit", FERRY_SCHEDULE_FIRST_FIT},
                                        {"first-fit-half", FERRY_SCHEDULE_FIRST_FIT_HALF},
                                        {NULL, 0}};
    r->has_schedule = true;
    return text == NULL ? EXIT_DONE
                        : parse_word("plan", "--schedule", rules, text, &r->scheduling.rule);
}

static int parse_duplex(const char *text, plan_request *r)
{
    static const option_word modes[] = {
        {"half", FERRY_DUPLEX_HALF}, {"full", FERRY_DUPLEX_FULL}, {NULL, 0}};
    r->has_duplex = true;
    r->scheduling_option = "--duplex";
    return parse_word("plan", "--duplex", modes, text, &r->scheduling.duplex);
}

static int parse_max_tasks(const char *text, plan_request *r)
{
    r->scheduling_option = "--max-tasks";
    return parse_count("plan", "--max-tasks", text, UINT32_MAX, &r->scheduling.max_tasks);
}

static int apply_schedule_option(int option, plan_request *r)
{
    switch (option) {
    case OPT_SCHEDULE:
        return parse_rule(optarg, r);
    case OPT_DUPLEX:
        return parse_duplex(optarg, r);
    case SHARED_OPT_SLOT_BYTES:
        r->scheduling_option = "--slot-bytes";
        return parse_size("plan", "--slot-bytes", optarg, &r->scheduling.slot_bytes);
    case OPT_MAX_TASKS:
        return parse_max_tasks(optarg, r);
    case SHARED_OPT_NO_RELAYS:
        r->scheduling.no_relays = true;
        r->scheduling_option = "--no-relays";
        return EXIT_DONE;
    case OPT_TRACE:
        if (*optarg == '\0') {
            return fail_usage("plan", "--trace takes the name of a file");
        }
        r->trace = optarg;
        r->has_schedule = true;
        return EXIT_DONE;
    default:
        return EXIT_USAGE;
    }
}

static int apply_option(int option, void *request)
{
    plan_request *r = request;
    switch (option) {
    case OPT_JSON:
        r->json = true;
        return EXIT_DONE;
    case OPT_SUMMARY:
        r->summary = true;
        return EXIT_DONE;
    case OPT_RANK:
        if (!parse_rank(optarg, &r->rank)) {
            return fail_usage("plan", "--rank takes a rank, not \"%s\"", optarg);
        }
        r->has_rank = true;
        return EXIT_DONE;
    case SHARED_OPT_REPLICA:
    case SHARED_OPT_INCLUDE:
    case SHARED_OPT_EXCLUDE:
    case SHARED_OPT_SUBSET:
        r->has_planning_option = true;
        return apply_planning_option("plan", option, &r->planning);
    case OPT_WITHOUT:
        return parse_without(optarg, r);
    case OPT_PROVE:
        r->prove = true;
        return EXIT_DONE;
    case OPT_SAVE:
        r->save = optarg;
        return *optarg != '\0' ? EXIT_DONE : fail_usage("plan", "--save takes the name of a file");
    case OPT_HTML:
        r->html = optarg;
        return *optarg != '\0' ? EXIT_DONE : fail_usage("plan", "--html takes the name of a file");
    default:
        return names_has_option(option) ? names_apply_option("plan", option, &r->model)
                                        : apply_schedule_option(option, r);
    }
}

/* What each option may say was checked; this is what they say together. */
static int check_together(plan_request *r)
{
    if (r->summary && !r->json) {
        return fail_usage("plan", "--summary needs --json");
    }
    if (r->prove && r->planning.subset != NULL) {
        return fail_usage("plan",
                          "--prove takes whole plans, so it cannot be combined with --include, "
                          "--exclude and --subset");
    }
    if (r->prove && r->planning.n_lost_ranks > 0) {
        return fail_usage("plan",
                          "--prove takes whole plans, so it cannot be combined with --without");
    }
    int status = names_check_together("plan", &r->model);
    if (status != EXIT_DONE) {
        return status;
    }
    if (r->scheduling_option != NULL && !r->has_schedule) {
        return fail_usage("plan", "%s needs --schedule or --trace", r->scheduling_option);
    }
    if (r->scheduling.rule == FERRY_SCHEDULE_FIRST_FIT_HALF) {
        if (r->has_duplex && r->scheduling.duplex == FERRY_DUPLEX_FULL) {
            return fail_usage("plan", "--schedule=first-fit-half is half duplex, so it does not go "
                                      "with --duplex full");
        }
        r->scheduling.duplex = FERRY_DUPLEX_HALF;
    }
    return EXIT_DONE;
}

static int check_outputs(const plan_request *r)
{
    note_input(r->path);
    int status = check_output("plan", "--save", r->save);
    status = status == EXIT_DONE ? check_output("plan", "--trace", r->trace) : status;
    return status == EXIT_DONE ? check_output("plan", "--html", r->html) : status;
}

static int parse(int argc, char **argv, plan_request *r)
{
    int status = parse_options(&command_plan, argc, argv, apply_option, r);
    if (status != EXIT_DONE) {
        return status;
    }
    if (optind + 1 != argc) {
        return fail_usage("plan", "%s",
                          optind == argc    ? "a spec is missing"
                          : r->has_schedule ? "there is more than one spec (a rule follows "
                                              "--schedule after \"=\")"
                                            : "there is more than one spec");
    }
    r->path = argv[optind];
    status = check_together(r);
    return status == EXIT_DONE ? check_outputs(r) : status;
}

int plan_parse_arguments(int argc, char **argv, plan_request *request_out)
{
    *request_out = (plan_request){.planning = FERRY_PLAN_OPTIONS_INIT,
                                  .scheduling = FERRY_SCHEDULE_OPTIONS_INIT};
    return parse(argc, argv, request_out);
}

void plan_request_cleanup(plan_request *request)
{
    free(request->lost);
}
