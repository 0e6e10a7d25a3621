/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "arguments.h"
#include "commands.h"
#include "tune.h"

#include <stdio.h>
#include <string.h>

static const char help[] =
    "Usage: ferry tune [OPTION]...\n"
    "       ferry tune --show FILE\n"
    "\n"
    "Measures every mode of every operation of the mixed collectives, at pieces of 8 KiB, 16 KiB\n"
    "and so on, and prints which is the fastest at each. What is saved with --out spares programs\n"
    "the measuring: they take the file that FERRY_TUNE_FILE names.\n"
    "\n"
    "Options:\n"
    "  --out FILE          save the table; FILE is replaced when all is measured\n"
    "  --show FILE         print a saved table; no rank is started\n"
    "  --json              print ferry.tuning/1 for machines\n"
    "  --max-bytes SIZE    the largest piece; default 64M\n"
    "  --help              this text\n"
    "\n"
    "The ranks:\n"
    "  --ranks N           how many to start; default as many as the sizes below multiply to, or\n"
    "                      2\n"
    "  --nodes N           spread them over N nodes, whatever machines they are on; default as\n"
    "                      --inter-tp and --inter-dp ask for, or as they are\n"
    "  --local-tp N        tensor-parallel ranks of a node: they sum\n"
    "  --local-dp N        data-parallel ranks of a node: they concatenate\n"
    "  --inter-tp N        tensor-parallel nodes\n"
    "  --inter-dp N        data-parallel nodes. On each level, where one of the two is given the\n"
    "                      other is the quotient, and where none is all sum\n"
    "  --dtype TYPE        f16, bf16 (default) or f32\n"
    "  --deterministic     only modes with one tree of sums, whatever the size\n"
    "  --transport ENGINE  the engine, such as shm or ucx, with wrappers such as strict:shm; the\n"
    "                      default is the best for each pair. With inproc the ranks are threads\n"
    "                      of one process\n"
    "  --join              start no ranks: be one of a world that mpirun, srun or another\n"
    "                      launcher has started. With RANK and WORLD_SIZE in the environment,\n"
    "                      as under ferry launch, this is so by itself\n"
    "\n"
    "Their handles:\n"
    "  --grid N            lanes of each rank; default a fair share of the cores\n"
    "  --max-block N       the longest block, in lines of 64 bytes; default what there is room\n"
    "                      for\n"
    "  --min-block N       the shortest of a message of several steps; default 256\n"
    "  --min-steps N       of a message whose blocks are the longest; default 4\n"
    "\n"
    "Sizes are numbers of bytes, or of K, M or G for KiB, MiB or GiB.\n"
    "\n"
    "What is printed:\n"
    "  The size is that of the local piece: of the input or, where the input is scattered, of one\n"
    "  of its chunks. Times are microseconds of a call: the median, of the rank where it is\n"
    "  longest. The mode with * is the one that programs take. Block is what it was fastest with,\n"
    "  in lines of 64 bytes; - is the default. A mode without a time was far behind.\n"
    "\n"
    "Exit status:\n"
    "  0 done, 1 the work failed (a sentence on stderr), 2 wrong usage\n"
    "\n"
    "Examples:\n"
    "  ferry tune --local-tp 2 --local-dp 2 --out tp2dp2.tuning.json\n"
    "  ferry tune --ranks 4 --nodes 2 --dtype f16 --max-bytes 1M --json\n"
    "  ferry tune --show tp2dp2.tuning.json\n";

enum { OPT_OUT = 256, OPT_SHOW, OPT_JSON, OPT_MAX_BYTES, OPT_RANKS, OPT_TRANSPORT, OPT_JOIN };

static const struct option long_options[] = {{"out", required_argument, NULL, OPT_OUT},
                                             {"show", required_argument, NULL, OPT_SHOW},
                                             {"json", no_argument, NULL, OPT_JSON},
                                             {"max-bytes", required_argument, NULL, OPT_MAX_BYTES},
                                             {"ranks", required_argument, NULL, OPT_RANKS},
                                             {"transport", required_argument, NULL, OPT_TRANSPORT},
                                             {"join", no_argument, NULL, OPT_JOIN},
                                             MIXED_LONG_OPTIONS,
                                             {NULL, 0, NULL, 0}};

enum { MOST_RANKS = 65536 };

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
        r->out          = optarg;
        return *optarg != '\0' ? EXIT_DONE : fail_usage("tune", "--out takes the name of a file");
    case OPT_MAX_BYTES:
        r->mixed_option = "--max-bytes";
        return parse_size("tune", "--max-bytes", optarg, &r->max_bytes);
    case OPT_RANKS:
        r->mixed_option = "--ranks";
        return parse_count("tune", "--ranks", optarg, MOST_RANKS, &r->n_ranks);
    case OPT_TRANSPORT:
        r->mixed_option = "--transport";
        r->transport    = optarg;
        return EXIT_DONE;
    case OPT_JOIN:
        r->mixed_option = "--join";
        r->join         = true;
        return EXIT_DONE;
    default:
        return mixed_apply_option(option, r);
    }
}

static int show(const mixed_request *r)
{
    ferry_error error;
    tune_table  table;
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
    mixed_request r      = {.command = "tune", .dtype = FERRY_BF16};
    int           status = parse_options("tune", argc, argv, long_options, apply_option, &r);
    if (status != EXIT_DONE) {
        return status;
    }
    if (optind < argc) {
        return fail_usage("tune", "takes no arguments, such as \"%s\"", argv[optind]);
    }
    if (r.show != NULL && r.mixed_option != NULL) {
        return fail_usage("tune", "%s does not go with --show", r.mixed_option);
    }
    if (r.show != NULL) {
        return show(&r);
    }
    status = mixed_check_together(&r);
    return status == EXIT_DONE ? mixed_start(&r, argc, argv, tune_rank) : status;
}

const command command_tune = {.name    = "tune",
                              .summary = "find the fastest mode of each collective, and save it",
                              .help    = help,
                              .run     = run};
