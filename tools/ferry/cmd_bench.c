/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "arguments.h"
#include "bench.h"
#include "bench_mixed_predict.h"
#include "commands.h"
#include "json_text.h"
#include "launch.h"
#include "machine_text.h"
#include "options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "Usage: ferry bench [OPTION]... [NAME]\n"
    "\n"
    "Measures, and prints a table. Without a name it lists what can be measured:\n"
    "\n"
    "  transport           puts, gets, signals and barriers between ranks on this machine\n"
    "  copy                the rate of copying in memory, the limit of all engines here\n"
    "  pack                copies between shapes and types, next to one of contiguous memory\n"
    "  mixed               the mixed collectives: sums and concatenations over ranks and nodes\n";

static const char more_help[] =
    "\n"
    "What is printed:\n"
    "  GB are 10^9 bytes. Ranks are bound to a core each, in turn, unless they are bound\n"
    "  already; those of mixed only where there are as many ranks as cores, or more.\n"
    "\n"
    "  Of transport, a time is of one way: half of there and back. A rate is of windows of 64\n"
    "  messages, or of 64 MiB if that is less, with a flush after each. \"Of one copy\" compares\n"
    "  it with what one thread copies in memory, measured just before each table; messages that\n"
    "  stay in the caches can be faster. All but one sample in a hundred are faster than the\n"
    "  \"slowest 1%\". Where there are few samples, --seconds is too short for that line.\n"
    "\n"
    "  Of copy on devices, rates count what is read. Each time is of eight copies on a queue.\n"
    "\n"
    "  Of pack, rates count what is read, of casts half of what is read and written; \"of a\n"
    "  copy\" compares them with copies of contiguous memory by as many threads, made in turn\n"
    "  with them.\n"
    "\n"
    "  Of mixed, the columns are those of nccl-tests, and all other lines begin with #. Size is\n"
    "  that of the local piece. Out-of-place the output has memory of its own. In-place, the\n"
    "  smaller of input and output is this rank's chunk of the larger; for all-reduce both are\n"
    "  the same memory. Time is that of a call: the median, on the rank where it is longest;\n"
    "  min and max are the shortest and the longest of all ranks. Algbw is the larger of input\n"
    "  and output, a piece or dp pieces, over the time. Busbw is algbw times (W + tp - 2) / W,\n"
    "  for W ranks of which tp sum: what each rank has to take in at least. That is 2 (W - 1) /\n"
    "  W for all-reduce, and (W - 1) / W for all-gather and reduce-scatter. The last line is\n"
    "  the mean of all busbw above it.\n"
    "\n"
    "  #wrong counts elements of all ranks, in a call with whole numbers that must be exact, in\n"
    "  one with random numbers, where as much is allowed as rounding the partial sums can make\n"
    "  (all-gather must keep any bits), and, out-of-place, in the calls that are timed. \"(!)\"\n"
    "  says that ranks which must have the same bits have not. Bytes of --counts are those of\n"
    "  all ranks together, waits those of the rank that waits most, both of a call\n"
    "  out-of-place.\n"
    "\n"
    "  With --memory of devices, \"by\" says whether kernels, the host or, in base modes, NCCL\n"
    "  make the calls of a line, and \"lanes\" how many blocks of a kernel, or threads, have a\n"
    "  part of the message: at most the lanes of the head, and not known of NCCL. Times are the\n"
    "  host's, from before a call until its end is known there. Results are checked as they are\n"
    "  in the devices' memory. --counts also has how many elements devices have copied or\n"
    "  summed. With --costs the calls are those of kernels, of 160 blocks if nothing else is\n"
    "  said.\n"
    "\n"
    "Exit status:\n"
    "  0 done, 1 the work failed or an element was wrong (a sentence on stderr), 2 wrong\n"
    "  usage\n"
    "\n"
    "Examples:\n"
    "  ferry bench transport\n"
    "  ferry bench transport --ranks 16 --transport shm --sizes 4K:4M --json\n"
    "  ferry launch -n 2 -- ferry bench transport --transport ucx\n"
    "  ferry bench copy --seconds 2\n"
    "  ferry bench pack --threads 2 --sizes 512:64K\n"
    "  ferry bench pack --memory cuda --json\n"
    "  ferry bench mixed --local-tp 2 --local-dp 2 --check\n"
    "  ferry bench mixed --memory cuda --local-tp 2 --check\n"
    "  ferry bench mixed --ranks 4 -b 8K -e 1M -f 4 -w 5 -n 20 -c\n"
    "  ferry bench mixed --nodes 2 --ranks 4 --op all-reduce --sizes 64K:1M --counts --json\n";

enum { OPT_JSON = 256, OPT_SECONDS, OPT_RANKS, OPT_SIZES, OPT_THREADS, OPT_MEMORY, OPT_BYTES };

static const option_row rows[] = {
    OPTION("json", NULL, OPT_JSON, "print JSON instead (ferry.bench/1)"),
    OPTION("seconds", "S", OPT_SECONDS, "how long each line is measured; default 0.1"),
    OPTION_HEADING("Of the transport"),
    OPTION(
        "ranks", "N", OPT_RANKS,
        "how many ranks to start; default 2. Ranks 0 and 1 measure, all take part in the barrier. "
        "Each needs 64 MiB of memory, or less where no size is so long"),
    TRANSPORT_ROW(""),
    OPTION("sizes", "RANGE", OPT_SIZES,
           "A:B: sizes in bytes from A on, doubled up to B, of all tables; K, M and G are KiB, MiB "
           "and "
           "GiB"),
    JOIN_ROW,
    OPTION_HEADING("Of mixed"),
    OPTION_NOTE("  --ranks, --transport and --join as above; with inproc the ranks are threads. "
                "The default\n"
                "  is as many ranks as the sizes below multiply to, or 2\n"),
    OPTION("sizes", "RANGE", OPT_SIZES, "A:B: bytes of the local piece, doubled; default 8K:64M"),
    {.name = "min-bytes",
     .value = "SIZE",
     .id = MIXED_OPT_MIN_BYTES,
     .letter = 'b',
     .text = "the smallest piece, instead of --sizes; default 8K"},
    {.name = "max-bytes",
     .value = "SIZE",
     .id = MIXED_OPT_MAX_BYTES,
     .letter = 'e',
     .text = "the largest; default 64M"},
    {.name = "step-factor",
     .value = "N",
     .id = MIXED_OPT_STEP_FACTOR,
     .letter = 'f',
     .text = "each size is N times the one before; default 2"},
    {.name = "step-bytes",
     .value = "SIZE",
     .id = MIXED_OPT_STEP_BYTES,
     .letter = 'i',
     .text = "each size is the one before and SIZE more"},
    {.name = "warmup",
     .value = "N",
     .id = MIXED_OPT_WARMUP,
     .letter = 'w',
     .text = "calls before those that are timed; default 4. Without --iterations at least 2 are "
             "made: they tell how many fit into --seconds"},
    {.name = "iterations",
     .value = "N",
     .id = MIXED_OPT_ITERATIONS,
     .letter = 'n',
     .text = "calls that are timed, each alone; default as many as fit into --seconds, short "
             "ones timed up to 16 together"},
    OPTION(
        "nodes", "N", MIXED_OPT_NODES,
        "spread the ranks over N nodes, whatever machines they are on; default as --inter-tp and "
        "--inter-dp ask for, or as they are"),
    OPTION("local-tp", "N", MIXED_OPT_LOCAL_TP, "tensor-parallel ranks of a node: they sum"),
    OPTION("local-dp", "N", MIXED_OPT_LOCAL_DP,
           "data-parallel ranks of a node: they concatenate; without either all sum"),
    OPTION("inter-tp", "N", MIXED_OPT_INTER_TP, "tensor-parallel nodes"),
    OPTION("inter-dp", "N", MIXED_OPT_INTER_DP, "data-parallel nodes"),
    OPTION_WORDS("f16 bf16 f32", "dtype", "TYPE", MIXED_OPT_DTYPE, "f16, bf16 (default) or f32"),
    OPTION("op", "NAME", MIXED_OPT_OP,
           "one operation, such as all-reduce; default all that there are"),
    OPTION("mode", "NAME", MIXED_OPT_MODE,
           "one mode, such as fused-waits-multicast; default all that there are; or default, or "
           "autotune"),
    {.name = "check",
     .id = MIXED_OPT_CHECK,
     .letter = 'c',
     .text = "check every element of every result"},
    OPTION("counts", NULL, MIXED_OPT_COUNTS, "print what a call moves, and how often it waits"),
    OPTION(
        "predict", NULL, MIXED_OPT_PREDICT,
        "also print what each call should take: by costs of waits and bytes, which are fitted to "
        "calls of some of the sizes before the others are measured"),
    OPTION("costs", "FILE", MIXED_OPT_COSTS,
           "with --predict: start no ranks and measure nothing, but predict by the costs of a "
           "ferry.costs/1 file, such as those of examples/costs"),
    OPTION("save-costs", "FILE", MIXED_OPT_SAVE_COSTS,
           "with --predict: write the costs that were fitted to FILE"),
    OPTION("deterministic", NULL, MIXED_OPT_DETERMINISTIC,
           "one tree of sums, whatever mode and size"),
    OPTION_WORDS("host cuda far", "memory", "KIND", OPT_MEMORY,
                 "where tensors lie: host (default), cuda or far. Ranks of a node take the devices "
                 "in turn, and a kernel makes each call where CUDA devices reach each other's "
                 "memory, else the host; the table says which"),
    OPTION_WORDS("stream host", "order", "ORDER", MIXED_OPT_ORDER,
                 "on devices: stream puts calls on a stream of the rank's device and times them "
                 "until it is done; host makes calls that return when they are over, as ferry tune "
                 "does. Default stream, and host where ranks are threads: streams of one process "
                 "may hold up each other"),
    OPTION("grid", "N", MIXED_OPT_GRID,
           "lanes of each rank: threads, or blocks of a kernel, that share a message; default a "
           "fair share of the cores, or of what the device runs at once"),
    OPTION(
        "max-block", "N", MIXED_OPT_MAX_BLOCK,
        "the longest block of a message that is sent at once, in units of 256 bytes; default what "
        "there is room for"),
    OPTION("min-block", "N", MIXED_OPT_MIN_BLOCK,
           "the shortest block where a message takes several; default 256 units, 64 KiB"),
    OPTION("min-steps", "N", MIXED_OPT_MIN_STEPS,
           "how many blocks a message makes at least where they could be the longest; default 4"),
    OPTION("autotune", NULL, MIXED_OPT_AUTOTUNE,
           "measure first, and add the mode autotune to the table"),
    OPTION("tune-file", "FILE", MIXED_OPT_TUNE_FILE, "the same with what ferry tune has saved"),
    OPTION_HEADING("Of copy and pack"),
    OPTION_WORDS("host cuda far", "memory", "KIND", OPT_MEMORY,
                 "whose memory: host (default); cuda, NVIDIA devices; or far, the test kind"),
    OPTION(
        "bytes", "SIZE", OPT_BYTES,
        "what a copy of pack, or of copy on devices, reads: a power of two, 1M at least; default "
        "128M, and 256M on devices"),
    OPTION_HEADING("Of pack"),
    OPTION("threads", "N", OPT_THREADS, "how many threads share each copy; default 1"),
    OPTION("sizes", "RANGE", OPT_SIZES, "A:B: lengths of rows in bytes, powers of two up to 64K"),
    OPTION_HIDDEN("started", MIXED_OPT_STARTED),
    OPTION_END};

int bench_copy(const bench_request *request)
{
    ferry_error error;
    ferry_machine machine = FERRY_MACHINE_INIT;
    if (request->memory != FERRY_MEMORY_HOST) {
        return bench_copy_devices(request);
    }
    if (ferry_machine_probe(request->seconds, &machine, &error) != FERRY_OK) {
        return fail("bench", error.message);
    }
    if (request->json) {
        printf("{\"format\":\"ferry.bench/1\",\"name\":\"copy\",\"version\":");
        print_json_text(ferry_version());
        printf(",\"machine\":");
        print_machine_json(&machine);
        printf("}\n");
    } else {
        print_machine(&machine);
    }
    return EXIT_DONE;
}

static const struct benchmark {
    const char *name;
    const char *summary;
    bool has_ranks;
    bool has_sizes;
    bool has_threads;
    bool has_memory;
    bool is_mixed; /* starts its ranks itself, from one on, and has options of its own */
    int (*run)(const bench_request *request);
} benchmarks[] = {
    {"transport", "puts, gets, signals and barriers between ranks", true, true, false, false, false,
     bench_transport},
    {"copy", "the rate of copying in memory", false, false, false, true, false, bench_copy},
    {"pack", "copies between shapes and types", false, true, true, true, false, bench_pack},
    {"mixed", "sums and concatenations over ranks and nodes", true, true, false, true, true, NULL},
};
enum { N_BENCHMARKS = sizeof benchmarks / sizeof benchmarks[0] };

static bool read_size(const char *text, uint64_t *bytes_out, const char **end_out)
{
    static const char units[] = "KMG";
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    const char *unit = *end == '\0' ? NULL : strchr(units, *end);
    unsigned shift = unit == NULL ? 0 : 10 * (unsigned)(unit - units + 1);
    *bytes_out = (uint64_t)value << shift;
    *end_out = end + (unit != NULL);
    return *text >= '0' && *text <= '9' && errno == 0 && value > 0 && value <= 1ull << 40 &&
           *bytes_out <= 1ull << 40;
}

static int parse_sizes(const char *text, bench_request *r)
{
    const char *end;
    r->sizes_text = text;
    if (!read_size(text, &r->least, &end) || *end != ':' || !read_size(end + 1, &r->most, &end) ||
        *end != '\0' || r->least > r->most) {
        return fail_usage("bench", "--sizes takes two sizes, such as 64:4K or 1M:64M, not \"%s\"",
                          text);
    }
    return EXIT_DONE;
}

static int parse_ranks(const char *text, bench_request *r)
{
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value < 1 || value > 65536) {
        return fail_usage("bench", "--ranks takes a number from 1 to 65536, not \"%s\"", text);
    }
    r->n_ranks = (uint32_t)value;
    return EXIT_DONE;
}

static int parse_threads(const char *text, bench_request *r)
{
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value < 1 || value > 4096) {
        return fail_usage("bench", "--threads takes a number from 1 to 4096, not \"%s\"", text);
    }
    r->n_threads = (uint32_t)value;
    return EXIT_DONE;
}

static const option_word memories[] = {
    {"host", FERRY_MEMORY_HOST}, {"cuda", FERRY_MEMORY_CUDA}, {"far", FERRY_MEMORY_FAR}, {NULL, 0}};

static int parse_copy_bytes(const char *text, bench_request *r)
{
    const uint64_t least = 1 << 20;
    const char *end;
    if (!read_size(text, &r->bytes, &end) || *end != '\0' || r->bytes < least ||
        (r->bytes & (r->bytes - 1)) != 0) {
        return fail_usage("bench", "--bytes takes a power of two from 1M on, not \"%s\"", text);
    }
    return EXIT_DONE;
}

static int parse_seconds(const char *text, bench_request *r)
{
    char *end;
    r->seconds_text = text;
    r->seconds = strtod(text, &end);
    if (end == text || *end != '\0' || !(r->seconds > 0) || r->seconds > 3600) {
        return fail_usage("bench", "--seconds takes a number above 0 and up to 3600, not \"%s\"",
                          text);
    }
    return EXIT_DONE;
}

static int apply_option(int option, void *request)
{
    bench_request *r = request;
    switch (option) {
    case OPT_JSON:
        r->json = true;
        return EXIT_DONE;
    case OPT_SECONDS:
        return parse_seconds(optarg, r);
    case OPT_RANKS:
        return parse_ranks(optarg, r);
    case SHARED_OPT_TRANSPORT:
        r->transport = optarg;
        return EXIT_DONE;
    case OPT_SIZES:
        return parse_sizes(optarg, r);
    case OPT_THREADS:
        return parse_threads(optarg, r);
    case OPT_MEMORY:
        return parse_word("bench", "--memory", memories, optarg, &r->memory);
    case OPT_BYTES:
        return parse_copy_bytes(optarg, r);
    case SHARED_OPT_JOIN:
        r->join = true;
        return EXIT_DONE;
    default:
        return mixed_apply_option(option, &r->mixed);
    }
}

static int parse(int argc, char **argv, bench_request *r)
{
    int status = parse_options(&command_bench, argc, argv, apply_option, r);
    if (status != EXIT_DONE) {
        return status;
    }
    if (optind + 1 < argc) {
        return fail_usage("bench", "there is more than one name");
    }
    return EXIT_DONE;
}

static int check_together(const bench_request *r, const struct benchmark *benchmark)
{
    if (!benchmark->has_ranks && (r->n_ranks != 0 || r->transport != NULL || r->join)) {
        return fail_usage("bench", "--ranks, --transport and --join cannot be combined with %s",
                          benchmark->name);
    }
    if (!benchmark->has_sizes && r->least != 0) {
        return fail_usage("bench", "--sizes cannot be combined with %s", benchmark->name);
    }
    if (!benchmark->has_threads && r->n_threads != 0) {
        return fail_usage("bench", "--threads cannot be combined with %s", benchmark->name);
    }
    if (!benchmark->has_memory && (r->memory != FERRY_MEMORY_HOST || r->bytes != 0)) {
        return fail_usage("bench", "--memory and --bytes cannot be combined with %s",
                          benchmark->name);
    }
    if (benchmark->is_mixed && r->bytes != 0) {
        return fail_usage("bench", "--bytes cannot be combined with %s", benchmark->name);
    }
    if (r->memory != FERRY_MEMORY_HOST && r->n_threads != 0) {
        return fail_usage("bench", "--threads copy in the host's memory: they cannot be combined "
                                   "with --memory of devices");
    }
    if (benchmark->run == bench_copy && r->memory == FERRY_MEMORY_HOST && r->bytes != 0) {
        return fail_usage("bench", "--bytes of copy goes with --memory of devices");
    }
    if (!benchmark->is_mixed && r->mixed.mixed_option != NULL) {
        return fail_usage("bench", "%s cannot be combined with %s", r->mixed.mixed_option,
                          benchmark->name);
    }
    if (!benchmark->is_mixed && r->n_ranks == 1) {
        return fail_usage("bench", "%s is measured between two ranks at least", benchmark->name);
    }
    if (!benchmark->is_mixed && r->join && r->n_ranks != 0) {
        return fail_usage("bench", "--ranks cannot be combined with a world that is there already "
                                   "(--join, or RANK and WORLD_SIZE in the environment)");
    }
    return EXIT_DONE;
}

/* The ranks are this program again, with the same options. */
static int start_ranks(const bench_request *r, const char *name)
{
    const char *words[16] = {"/proc/self/exe", "bench", name, "--join"};
    size_t n = 4;
    const struct {
        const char *option, *value;
    } options[] = {
        {"--transport", r->transport}, {"--sizes", r->sizes_text}, {"--seconds", r->seconds_text}};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (options[i].value != NULL) {
            words[n++] = options[i].option;
            words[n++] = options[i].value;
        }
    }
    if (r->json) {
        words[n++] = "--json";
    }
    launch_request request = {.name = "bench",
                              .n_ranks = r->n_ranks == 0 ? BENCH_RANKS : r->n_ranks,
                              .grace_seconds = LAUNCH_GRACE_SECONDS,
                              .ranks_explain = true,
                              .program = (char **)words};
    request.n_world = request.n_ranks;
    return launch(&request);
}

/* What mixed has in common with others is parsed with theirs. */
static int run_mixed(const bench_request *r, int argc, char **argv)
{
    const uint64_t least = 8 << 10, most = 64 << 20;
    mixed_request m = r->mixed;
    m.json = r->json;
    m.join = r->join;
    m.n_ranks = r->n_ranks;
    m.transport = r->transport;
    m.seconds = r->seconds;
    m.memory = r->memory;
    if (r->least != 0 && (m.least != 0 || m.most != 0)) {
        return fail_usage("bench", "--sizes does not go with --min-bytes and --max-bytes");
    }
    if (m.step_bytes != 0 && m.step_factor != 0) {
        return fail_usage("bench", "--step-bytes does not go with --step-factor");
    }
    m.least = m.least != 0 ? m.least : r->least != 0 ? r->least : least;
    m.most = m.most != 0 ? m.most : r->least != 0 ? r->most : most;
    m.step_factor = m.step_factor != 0 ? m.step_factor : 2;
    m.max_bytes = m.most;
    int status = mixed_check_together(&m);
    if (status == EXIT_DONE && m.costs != NULL) {
        return mixed_predict_table(&m);
    }
    return status == EXIT_DONE ? mixed_start(&m, argc, argv, bench_mixed) : status;
}

static int run_benchmark(const struct benchmark *benchmark, bench_request *r, int argc, char **argv)
{
    bool member = getenv("RANK") != NULL && getenv("WORLD_SIZE") != NULL;
    r->join = r->join || (benchmark->has_ranks && !benchmark->is_mixed && member);
    int status = check_together(r, benchmark);
    if (status != EXIT_DONE) {
        return status;
    }
    if (benchmark->is_mixed) {
        return run_mixed(r, argc, argv);
    }
    return benchmark->has_ranks && !r->join ? start_ranks(r, benchmark->name) : benchmark->run(r);
}

static int run(int argc, char **argv)
{
    bench_request r = {.seconds = 0.1,
                       .mixed = {.command = "bench",
                                 .dtype = FERRY_BF16,
                                 .op = MIXED_ALL,
                                 .mode = MIXED_ALL,
                                 .n_warmup = MIXED_WARMUP}};
    int status = parse(argc, argv, &r);
    if (status != EXIT_DONE) {
        return status;
    }
    if (optind == argc) {
        printf("What can be measured; see `ferry bench --help`:\n");
        for (size_t i = 0; i < N_BENCHMARKS; i++) {
            printf("  %-12s %s\n", benchmarks[i].name, benchmarks[i].summary);
        }
        return EXIT_DONE;
    }
    for (size_t i = 0; i < N_BENCHMARKS; i++) {
        if (strcmp(argv[optind], benchmarks[i].name) == 0) {
            return run_benchmark(&benchmarks[i], &r, argc, argv);
        }
    }
    return fail_usage("bench", "\"%s\" cannot be measured; `ferry bench` lists what can",
                      argv[optind]);
}

const command command_bench = {.name = "bench",
                               .group = "Ranks and machines",
                               .summary = "measure transports, collectives and memory here",
                               .help = help,
                               .options = rows,
                               .more_help = more_help,
                               .run = run};
