/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "arguments.h"
#include "commands.h"
#include "options.h"
#include "output.h"
#include "tune.h"

#include <stdio.h>
#include <string.h>

static const char help[] =
    "Usage: ferry tune [OPTION]...\n"
    "       ferry tune --show FILE\n"
    "\n"
    "Measures every mode of every operation of the mixed collectives, at pieces of 8 KiB, 16 KiB\n"
    "and so on, and prints which is the fastest at each. What is saved with --out spares programs\n"
    "the measuring: they take the file that FERRY_TUNE_FILE names.\n";

static const char more_help[] =
    "\n"
    "Sizes are numbers of bytes, or of K, M or G for KiB, MiB or GiB.\n"
    "\n"
    "What is printed:\n"
    "  The size is that of the local piece: of the input or, where the input is scattered, of one\n"
    "  of its chunks. Times are of a call: the median, of the rank where it is longest; a mode "
    "with\n"
    "  - was far behind. The mode with * is the one that programs take: the fastest, or the one "
    "of\n"
    "  the size before where none is 3 % faster. Block is what it was fastest with, in lines of "
    "64\n"
    "  bytes; - is the default.\n"
    "\n"
    "Exit status:\n"
    "  0 done, 1 the work failed (a sentence on stderr), 2 wrong usage\n"
    "\n"
    "Examples:\n"
    "  ferry tune --local-tp 2 --local-dp 2 --out tp2dp2.tuning.json\n"
    "  ferry tune --ranks 4 --nodes 2 --dtype f16 --max-bytes 1M --json\n"
    "  ferry tune --show tp2dp2.tuning.json\n";

enum { OPT_OUT = 256, OPT_SHOW, OPT_JSON, OPT_MAX_BYTES, OPT_RANKS, OPT_MEMORY };

static const option_row rows[] = {
    OPTION("out", "FILE", OPT_OUT, "save the table; FILE is replaced when all is measured"),
    OPTION("show", "FILE", OPT_SHOW, "print a saved table; no rank is started"),
    OPTION("json", NULL, OPT_JSON, "print JSON instead (ferry.tuning/1)"),
    OPTION("max-bytes", "SIZE", OPT_MAX_BYTES, "the largest piece, at least 8K; default 64M"),
    OPTION_HEADING("The ranks"),
    OPTION("ranks", "N", OPT_RANKS,
           "how many to start; default as many as the sizes below multiply to, or 2"),
    OPTION("nodes", "N", MIXED_OPT_NODES,
           "spread them over N nodes, whatever machines they are on; default as --inter-tp and "
           "--inter-dp ask for, or as they are"),
    OPTION("local-tp", "N", MIXED_OPT_LOCAL_TP, "tensor-parallel ranks of a node: they sum"),
    OPTION("local-dp", "N", MIXED_OPT_LOCAL_DP, "data-parallel ranks of a node: they concatenate"),
    OPTION("inter-tp", "N", MIXED_OPT_INTER_TP, "tensor-parallel nodes"),
    OPTION("inter-dp", "N", MIXED_OPT_INTER_DP,
           "data-parallel nodes. Inside nodes and between them, of tp and dp one follows from the "
           "other; where neither is given, all sum"),
    OPTION_WORDS("f16 bf16 f32", "dtype", "TYPE", MIXED_OPT_DTYPE, "f16, bf16 (default) or f32"),
    OPTION("deterministic", NULL, MIXED_OPT_DETERMINISTIC,
           "only modes with one tree of sums, whatever the size"),
    OPTION_WORDS("host cuda", "memory", "WHERE", OPT_MEMORY,
                 "where tensors lie: host (default), or cuda: ranks of a node take the devices in "
                 "turn, and a kernel makes each call where the devices reach each other's memory"),
    TRANSPORT_ROW(INPROC_TEXT),
    JOIN_ROW,
    OPTION_HEADING("How messages are cut"),
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
    OPTION_HIDDEN("started", MIXED_OPT_STARTED),
    OPTION_END};

enum { MOST_RANKS = 65536 };

static const option_word memories[] = {
    {"host", FERRY_MEMORY_HOST}, {"cuda", FERRY_MEMORY_CUDA}, {NULL, 0}};

static int parse_most(const char *text, mixed_request *r)
{
    enum { LEAST_BYTES = 8192 };
    int status = parse_size("tune", "--max-bytes", text, &r->max_bytes);
    return status != EXIT_DONE || r->max_bytes >= LEAST_BYTES
               ? status
               : fail_usage("tune",
                            "--max-bytes is at least 8K, the smallest piece that is "
                            "measured, not \"%s\"",
                            text);
}

/* What goes with ranks, and so not with --show, is noted. */
static int apply_option(int option, void *request)
{
    mixed_request *r = request;
    switch (option) {
    case OPT_JSON:
        r->json = true;
        return EXIT_DONE;
    case OPT_SHOW:
        r->show = optarg;
        return *optarg != '\0' ? EXIT_DONE : fail_usage("tune", "--show takes the name of a file");
    case OPT_OUT:
        r->mixed_option = "--out";
        r->out = optarg;
        return *optarg != '\0' ? EXIT_DONE : fail_usage("tune", "--out takes the name of a file");
    case OPT_MAX_BYTES:
        r->mixed_option = "--max-bytes";
        return parse_most(optarg, r);
    case OPT_RANKS:
        r->mixed_option = "--ranks";
        return parse_count("tune", "--ranks", optarg, MOST_RANKS, &r->n_ranks);
    case OPT_MEMORY:
        r->mixed_option = "--memory";
        return parse_word("tune", "--memory", memories, optarg, &r->memory);
    case SHARED_OPT_TRANSPORT:
        r->mixed_option = "--transport";
        r->transport = optarg;
        return EXIT_DONE;
    case SHARED_OPT_JOIN:
        r->mixed_option = "--join";
        r->join = true;
        return EXIT_DONE;
    default:
        return mixed_apply_option(option, r);
    }
}

static int show(const mixed_request *r)
{
    ferry_error error;
    tune_table table;
    if (tune_read(r->show, &table, &error) != FERRY_OK) {
        return fail("tune", error.message);
    }
    if (r->json) {
        tune_print_json(&table);
    } else {
        tune_print_table(&table);
    }
    tune_table_free(&table);
    return EXIT_DONE;
}

static int run(int argc, char **argv)
{
    mixed_request r = {.command = "tune", .dtype = FERRY_BF16};
    int status = parse_options(&command_tune, argc, argv, apply_option, &r);
    if (status != EXIT_DONE) {
        return status;
    }
    if (optind < argc) {
        return fail_usage("tune", "takes no arguments, such as \"%s\"", argv[optind]);
    }
    if (r.show != NULL && r.mixed_option != NULL) {
        return fail_usage("tune", "%s cannot be combined with --show", r.mixed_option);
    }
    if (r.show != NULL) {
        return show(&r);
    }
    status = mixed_check_together(&r);
    if (status == EXIT_DONE && may_write_outputs(r.join)) {
        status = check_output("tune", "--out", r.out);
    }
    return status == EXIT_DONE ? mixed_start(&r, argc, argv, tune_rank) : status;
}

const command command_tune = {.name = "tune",
                              .group = "Ranks and machines",
                              .summary = "find the fastest mode of each collective, and save it",
                              .help = help,
                              .options = rows,
                              .more_help = more_help,
                              .run = run};
