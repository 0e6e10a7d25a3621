/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"

#include <ferry/ferry.h>

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "Usage: ferry plan [OPTION]... SPEC\n"
    "\n"
    "Plans how the weights of a sharded model get from one layout to another: which box of which\n"
    "tensor goes from which rank to which. SPEC is a ferry.spec/1 file, or a plan that was saved "
    "with\n"
    "--save. Nothing is moved, and no other machine is needed: a plan of 16,384 ranks is made on "
    "a\n"
    "laptop.\n"
    "\n"
    "Without options it prints a table: the bytes that travel and stay, the busiest ranks, how "
    "well\n"
    "the senders share the work, and the bound that no plan without relays can beat.\n"
    "\n"
    "Options:\n"
    "  --json              print ferry.plan/1 for machines, streamed\n"
    "  --summary           leave the moves out of --json\n"
    "  --rank R            only the moves that rank R sends or receives; ids stay the same\n"
    "  --replica POLICY    how to choose among ranks that hold the same bytes: balanced "
    "(default),\n"
    "                      so that the busiest sender sends as little as possible, or seed, the "
    "rule\n"
    "                      of the reference planner\n"
    "  --subset PATTERN    only destination tensors whose names fit (* any text, ? one byte)\n"
    "  --prove             check the whole printed plan against the spec, with a slow reference "
    "that\n"
    "                      shares no code with the planner; status 1 if a single element is wrong\n"
    "  --save FILE         write the plan's input and digest to FILE: the form to cache\n"
    "  --help              this text\n"
    "\n"
    "Exit status:\n"
    "  0 done, 1 the work failed (one sentence on stderr), 2 wrong usage\n"
    "\n"
    "Examples:\n"
    "  ferry plan examples/llama-3-70b.json\n"
    "  ferry plan examples/kimi-k2-16384.json --rank 5 --json\n";

typedef struct request {
    const char        *path;
    bool               json;
    bool               summary;
    bool               prove;
    bool               has_rank;
    bool               has_planning_option;
    uint32_t           rank;
    const char        *save;
    ferry_plan_options options;
} request;

enum { OPT_JSON = 256, OPT_SUMMARY, OPT_RANK, OPT_REPLICA, OPT_SUBSET, OPT_PROVE, OPT_SAVE };

static const struct option long_options[] = {{"json", no_argument, NULL, OPT_JSON},
                                             {"summary", no_argument, NULL, OPT_SUMMARY},
                                             {"rank", required_argument, NULL, OPT_RANK},
                                             {"replica", required_argument, NULL, OPT_REPLICA},
                                             {"subset", required_argument, NULL, OPT_SUBSET},
                                             {"prove", no_argument, NULL, OPT_PROVE},
                                             {"save", required_argument, NULL, OPT_SAVE},
                                             {NULL, 0, NULL, 0}};

static bool parse_rank(const char *text, uint32_t *rank_out)
{
    char *end;
    errno                    = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value >= FERRY_MAX_RANKS) {
        return false;
    }
    *rank_out = (uint32_t)value;
    return true;
}

static int parse_policy(const char *text, request *r)
{
    if (strcmp(text, "balanced") == 0) {
        r->options.replica = FERRY_REPLICA_BALANCED;
    } else if (strcmp(text, "seed") == 0) {
        r->options.replica = FERRY_REPLICA_SEED;
    } else {
        return fail_usage("plan", "--replica takes balanced or seed, not \"%s\"", text);
    }
    r->has_planning_option = true;
    return EXIT_DONE;
}

static int apply_option(int option, request *r)
{
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
    case OPT_REPLICA:
        return parse_policy(optarg, r);
    case OPT_SUBSET:
        r->options.subset      = optarg;
        r->has_planning_option = true;
        return EXIT_DONE;
    case OPT_PROVE:
        r->prove = true;
        return EXIT_DONE;
    case OPT_SAVE:
        r->save = optarg;
        return EXIT_DONE;
    default:
        return EXIT_USAGE;
    }
}

static int parse_arguments(int argc, char **argv, request *r)
{
    int option;
    *r     = (request){.options = FERRY_PLAN_OPTIONS_INIT};
    optind = 1;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":", long_options, NULL)) != -1) {
        if (option == ':') {
            return fail_usage("plan", "%s needs a value", argv[optind - 1]);
        }
        if (option == '?') {
            return fail_usage("plan", "%s is not understood", argv[optind - 1]);
        }
        int status = apply_option(option, r);
        if (status != EXIT_DONE) {
            return status;
        }
    }
    if (optind + 1 != argc) {
        return fail_usage("plan",
                          optind == argc ? "a spec is missing" : "there is more than one spec");
    }
    r->path = argv[optind];
    if (r->summary && !r->json) {
        return fail_usage("plan", "--summary goes with --json");
    }
    if (r->prove && r->options.subset != NULL) {
        return fail_usage("plan", "--prove takes whole plans, so it does not go with --subset");
    }
    return EXIT_DONE;
}

/* A saved plan names its format in its first bytes: ferry writes it so. */
static bool is_saved_plan(const char *path)
{
    static const char begin[] = "{\"format\":\"ferry.saved-plan/";
    char              bytes[sizeof begin - 1];
    FILE             *file  = fopen(path, "rb");
    bool              saved = file != NULL && fread(bytes, 1, sizeof bytes, file) == sizeof bytes &&
                 memcmp(bytes, begin, sizeof bytes) == 0;
    if (file != NULL) {
        fclose(file);
    }
    return saved;
}

static ferry_status open_plan(const request *r, ferry_plan **plan_out, ferry_error *error)
{
    if (is_saved_plan(r->path)) {
        return ferry_plan_load(r->path, plan_out, error);
    }
    ferry_spec  *spec   = NULL;
    ferry_status status = ferry_spec_load(r->path, &spec, error);
    if (status == FERRY_OK) {
        status = ferry_plan_create(spec, &r->options, plan_out, error);
    }
    ferry_spec_destroy(spec);
    return status;
}

static int write_stream(void *context, const char *bytes, size_t n_bytes)
{
    return fwrite(bytes, 1, n_bytes, context) == n_bytes ? 0 : -1;
}

/* The proof reads what a user of --json would read: the plan goes through a file. */
static ferry_status prove(const request *r, const ferry_plan *plan, ferry_proof *proof,
                          ferry_error *error)
{
    const char *folder = getenv("TMPDIR");
    char        path[512];
    snprintf(path, sizeof path, "%s/ferry-plan-XXXXXX", folder == NULL ? "/tmp" : folder);
    int   descriptor = mkstemp(path);
    FILE *file       = descriptor < 0 ? NULL : fdopen(descriptor, "wb");
    if (file == NULL) {
        snprintf(error->message, sizeof error->message, "%.400s: cannot be created: %s", path,
                 strerror(errno));
        return FERRY_ERR_IO;
    }
    ferry_status status = ferry_plan_write_json(plan, NULL, write_stream, file, error);
    if (fclose(file) != 0 && status == FERRY_OK) {
        snprintf(error->message, sizeof error->message, "%.400s: cannot be written", path);
        status = FERRY_ERR_IO;
    }
    if (status == FERRY_OK) {
        status = ferry_prove_plan(r->path, path, proof, error);
    }
    unlink(path);
    return status;
}

static int print_json(const request *r, const ferry_plan *plan)
{
    ferry_error             error;
    ferry_plan_json_options options = FERRY_PLAN_JSON_OPTIONS_INIT;
    options.summary                 = r->summary;
    options.rank                    = r->has_rank ? r->rank : FERRY_ALL_RANKS;
    if (ferry_plan_write_json(plan, &options, write_stream, stdout, &error) != FERRY_OK) {
        return fail("plan", error.message);
    }
    return EXIT_DONE;
}

/* "1.25 GiB"; exact below a KiB. */
static const char *format_bytes(double bytes, char text[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t                   unit    = 0;
    while (bytes >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, 32, unit == 0 ? "%.0f %s" : "%.2f %s", bytes, units[unit]);
    return text;
}

typedef struct row {
    uint32_t         rank;
    ferry_rank_bytes bytes;
} row;

static int compare_busy(const void *a, const void *b)
{
    const row *x = a, *y = b;
    uint64_t   p = x->bytes.in > x->bytes.out ? x->bytes.in : x->bytes.out;
    uint64_t   q = y->bytes.in > y->bytes.out ? y->bytes.in : y->bytes.out;
    if (p != q) {
        return p > q ? -1 : 1;
    }
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static void print_row(const row *r)
{
    char in[32], out[32], local[32];
    printf("  %8u  %12s  %12s  %12s  %12llu\n", r->rank, format_bytes((double)r->bytes.in, in),
           format_bytes((double)r->bytes.out, out), format_bytes((double)r->bytes.local, local),
           (unsigned long long)r->bytes.n_moves);
}

enum { ALL_ROWS = 16, BUSIEST_ROWS = 8 };

static void print_ranks(const char *title, const row *rows, uint32_t n)
{
    printf("\n%s\n", title);
    printf("  %8s  %12s  %12s  %12s  %12s\n", "rank", "in", "out", "local", "moves in");
    for (uint32_t i = 0; i < n; i++) {
        print_row(&rows[i]);
    }
}

static const char *reason_in_words(uint32_t reason)
{
    switch (reason) {
    case FERRY_BOUND_EGRESS:
        return "what this rank must send, however the replicas share the work";
    case FERRY_BOUND_INGRESS:
        return "what this rank must receive";
    case FERRY_BOUND_NODE_EGRESS:
        return "what must leave this rank's node";
    case FERRY_BOUND_NODE_INGRESS:
        return "what must enter this rank's node";
    default:
        return "nothing has to travel";
    }
}

static void print_bound(const ferry_plan_bound *bound)
{
    printf("\nBound: ");
    if (bound->reason == FERRY_BOUND_NONE) {
        printf("%s\n", reason_in_words(bound->reason));
        return;
    }
    if (bound->has_seconds) {
        printf("%.6g s, ", bound->seconds);
    }
    printf("by %s of rank %u: %s\n", ferry_bound_reason_name(bound->reason), bound->rank,
           reason_in_words(bound->reason));
}

static void print_balance(const row *rows, uint32_t n, const ferry_plan_bound *bound)
{
    uint64_t in = 0, out = 0;
    char     text[32], least[32];
    for (uint32_t i = 0; i < n; i++) {
        in  = rows[i].bytes.in > in ? rows[i].bytes.in : in;
        out = rows[i].bytes.out > out ? rows[i].bytes.out : out;
    }
    printf("Busiest receiver: %s\n", format_bytes((double)in, text));
    printf("Busiest sender:   %s", format_bytes((double)out, text));
    if (bound->busiest_bytes > 0) {
        printf(", the least possible is %s: ratio %.4f", format_bytes(bound->busiest_bytes, least),
               (double)out / bound->busiest_bytes);
    }
    printf("\n");
}

static void print_totals(const ferry_plan *plan, const ferry_plan_totals *totals,
                         const ferry_plan_statistics *statistics)
{
    char digest[33], moved[32], local[32], total[32];
    ferry_plan_digest(plan, digest);
    printf("%llu tensors in %llu layout classes, %u ranks, %llu moves\n",
           (unsigned long long)statistics->n_tensors,
           (unsigned long long)statistics->layout_classes, ferry_plan_world_size(plan),
           (unsigned long long)totals->n_moves);
    printf("%s in all: %s between ranks, %s stay on their rank\n",
           format_bytes((double)totals->moved_bytes + (double)totals->local_bytes, total),
           format_bytes((double)totals->moved_bytes, moved),
           format_bytes((double)totals->local_bytes, local));
    printf("digest %s\n", digest);
}

static ferry_status list_rows(const ferry_plan *plan, row *rows, ferry_error *error)
{
    uint32_t n = ferry_plan_world_size(plan);
    for (uint32_t i = 0; i < n; i++) {
        rows[i]             = (row){.rank = i, .bytes = FERRY_RANK_BYTES_INIT};
        ferry_status status = ferry_plan_get_rank_bytes(plan, i, &rows[i].bytes, error);
        if (status != FERRY_OK) {
            return status;
        }
    }
    return FERRY_OK;
}

/* The moves of one rank, for people: one line each. */
static ferry_status print_move(void *context, const ferry_move *move)
{
    char bytes[32];
    (void)context;
    printf("  %10llu  %6u -> %-6u  %12s  %s [", (unsigned long long)move->task_id, move->from,
           move->to, format_bytes((double)move->bytes, bytes), move->tensor);
    for (uint32_t d = 0; d < move->n_dims; d++) {
        printf("%s%llu:%llu", d == 0 ? "" : ", ", (unsigned long long)move->dst_begin[d],
               (unsigned long long)(move->dst_begin[d] + move->length[d]));
    }
    printf("]%s%s\n", move->source == NULL ? "" : " from ",
           move->source == NULL ? "" : move->source);
    return FERRY_OK;
}

static int print_table(const request *r, const ferry_plan *plan)
{
    ferry_error           error;
    ferry_plan_totals     totals     = FERRY_PLAN_TOTALS_INIT;
    ferry_plan_statistics statistics = FERRY_PLAN_STATISTICS_INIT;
    ferry_plan_bound      bound      = FERRY_PLAN_BOUND_INIT;
    uint32_t              n          = ferry_plan_world_size(plan);
    row                  *rows       = calloc(n, sizeof *rows);
    int                   status     = EXIT_DONE;
    if (rows == NULL) {
        return fail("plan", "out of memory");
    }
    if (ferry_plan_get_totals(plan, &totals, &error) != FERRY_OK ||
        ferry_plan_get_statistics(plan, &statistics, &error) != FERRY_OK ||
        ferry_plan_get_bound(plan, &bound, &error) != FERRY_OK ||
        list_rows(plan, rows, &error) != FERRY_OK) {
        status = fail("plan", error.message);
        goto out;
    }
    print_totals(plan, &totals, &statistics);
    if (r->has_rank) {
        print_ranks("This rank:", &rows[r->rank], 1);
        printf("\nIts moves:\n  %10s  %6s    %-6s  %12s  tensor [destination box]\n", "id", "from",
               "to", "bytes");
        if (ferry_plan_visit(plan, r->rank, print_move, NULL, NULL, &error) != FERRY_OK) {
            status = fail("plan", error.message);
            goto out;
        }
    } else if (n <= ALL_ROWS) {
        print_ranks("Every rank:", rows, n);
    } else {
        qsort(rows, n, sizeof *rows, compare_busy);
        print_ranks("The busiest ranks:", rows, BUSIEST_ROWS);
    }
    print_bound(&bound);
    if (!r->has_rank) {
        print_balance(rows, n, &bound);
    }
out:
    free(rows);
    return status;
}

static int check_request(const request *r, const ferry_plan *plan)
{
    char text[128];
    if (r->has_rank && r->rank >= ferry_plan_world_size(plan)) {
        snprintf(text, sizeof text, "rank %u is not in the world of %u ranks", r->rank,
                 ferry_plan_world_size(plan));
        return fail("plan", text);
    }
    return EXIT_DONE;
}

static int run_request(const request *r, const ferry_plan *plan)
{
    ferry_error error;
    ferry_proof proof  = FERRY_PROOF_INIT;
    int         status = check_request(r, plan);
    if (status != EXIT_DONE) {
        return status;
    }
    if (r->prove && prove(r, plan, &proof, &error) != FERRY_OK) {
        return fail("plan", error.message);
    }
    if (r->save != NULL && ferry_plan_save(plan, r->save, &error) != FERRY_OK) {
        return fail("plan", error.message);
    }
    status = r->json ? print_json(r, plan) : print_table(r, plan);
    if (status == EXIT_DONE && r->prove && !r->json) {
        printf("\nProven: %llu moves write every element of %llu destination shards exactly once\n",
               (unsigned long long)proof.n_moves, (unsigned long long)proof.n_destination_shards);
    }
    return status;
}

static int run(int argc, char **argv)
{
    request r;
    int     status = parse_arguments(argc, argv, &r);
    if (status != EXIT_DONE) {
        return status;
    }
    bool saved = is_saved_plan(r.path);
    if (saved && (r.has_planning_option || r.prove)) {
        return fail_usage("plan",
                          "a saved plan has its own --replica and --subset, and --prove needs "
                          "the spec");
    }
    ferry_error error;
    ferry_plan *plan = NULL;
    if (open_plan(&r, &plan, &error) != FERRY_OK) {
        return fail("plan", error.message);
    }
    status = run_request(&r, plan);
    ferry_plan_destroy(plan);
    return status;
}

const command command_plan = {.name    = "plan",
                              .summary = "plan a move between two layouts, and predict it",
                              .help    = help,
                              .run     = run};
