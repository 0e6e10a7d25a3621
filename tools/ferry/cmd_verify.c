/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "arguments.h"
#include "checkpoint_text.h"
#include "commands.h"
#include "json_text.h"
#include "name_text.h"
#include "options.h"
#include "terminal.h"
#include "units.h"
#include "work_progress.h"

#include <ferry/ferry.h>

#include <inttypes.h>
#include <stdio.h>

static const char help[] =
    "Usage: ferry verify [OPTION]... A B\n"
    "\n"
    "Says whether two checkpoints hold the same tensors, whatever their layouts: the same names,\n"
    "shapes and types, and the same bits, in every replica. A and B are safetensors files, index\n"
    "files, or folders of either kind. Metadata and other files do not count; checksums that a\n"
    "sharded checkpoint has recorded are compared too. Of B in boxes, what its boxes hold is\n"
    "compared, parameter by parameter, with their fills; it need not hold all of A. With\n"
    "--include and the like, B is to hold those tensors of A, and nothing else.\n";

static const char more_help[] =
    "\n"
    "Sizes are numbers of bytes, or of K, M or G for KiB, MiB or GiB.\n"
    "\n"
    "What is printed:\n"
    "  One line if they are equal; otherwise one sentence on stderr that names the first tensor,\n"
    "  in the order of A, that differs, the element and both values. With --json the sentence is\n"
    "  also in what is printed. On a terminal stderr shows the progress meanwhile.\n"
    "\n"
    "Exit status:\n"
    "  As of cmp and diff: 0 they are equal, 1 they differ, 2 trouble, such as one that cannot be\n"
    "  read, a checksum that does not fit, or wrong usage; one sentence on stderr says what. 128\n"
    "  and the number of a signal that ended it, as a shell counts\n"
    "\n"
    "Examples:\n"
    "  ferry verify llama llama-tp4\n"
    "  ferry verify llama-tp4 llama-tp8-pp2 --digests\n"
    "  ferry verify model.safetensors copy/model.safetensors --json\n"
    "  ferry verify llama llama-fp8 --quantize f8e4m3:128x128\n"
    "  ferry verify llama llama-layer-0 --include 'model.layers.0.*'\n"
    "  ferry verify llama-megatron-tp8 llama --names hf --config llama/config.json\n";

enum {
    OPT_JSON = 256,
    OPT_DIGESTS,
    OPT_MEMORY_CAP,
    OPT_THREADS,
    OPT_CAST,
    OPT_QUANTIZE,
    OPT_DEQUANTIZE,
    OPT_NAMES,
    OPT_CONFIG
};

static const option_row rows[] = {
    OPTION("digests", NULL, OPT_DIGESTS,
           "a line for each tensor before: XXH3 (64 bits) of its bytes when it is whole, their "
           "number, "
           "and its name"),
    PATTERN_ROWS("tensors"),
    OPTION_WORDS("bf16 f16 f32 f8e4m3 f8e5m2", "cast", "TYPE", OPT_CAST,
                 "whether B is what ferry reshard makes of A with this option; the same of these:"),
    OPTION("quantize", "FORMAT[=PATTERN]", OPT_QUANTIZE, "whether B is A quantized"),
    OPTION("dequantize", "[FORMAT]", OPT_DEQUANTIZE, "whether B is A dequantized"),
    OPTION("names", "NAMES", OPT_NAMES, "whether B is A under these names"),
    OPTION("config", "FILE", OPT_CONFIG, "the config.json that --names needs; default that of A"),
    OPTION("memory-cap", "SIZE", OPT_MEMORY_CAP,
           "the most memory for buffers, at least 1M; default 256M"),
    OPTION("threads", "N", OPT_THREADS,
           "threads that read and compare; default the cores, at most 16"),
    OPTION("json", NULL, OPT_JSON, "print JSON instead (ferry.verify/1), with the digests"),
    OPTION_LOUDNESS,
    OPTION_END};

typedef struct verify_run {
    work_watch watch;
    const char *path[2];
    bool json;
    bool digests;
    bool has_begun; /* the output */
    uint64_t n_printed;
    ferry_verify_options options;
} verify_run;

static int apply_option(int option, void *request)
{
    verify_run *v = request;
    switch (option) {
    case OPT_MEMORY_CAP:
        return parse_cap("verify", "--memory-cap", optarg, &v->options.memory_cap_bytes);
    case OPT_THREADS:
        return parse_count("verify", "--threads", optarg, MOST_FILE_THREADS, &v->options.n_threads);
    case SHARED_OPT_INCLUDE:
    case SHARED_OPT_EXCLUDE:
    case SHARED_OPT_SUBSET:
        return add_pattern("verify", option, optarg, &v->options.subset);
    case OPT_CAST:
        return parse_cast("verify", optarg, &v->options.cast);
    case OPT_QUANTIZE:
        v->options.quantize = optarg;
        return EXIT_DONE;
    case OPT_DEQUANTIZE:
        v->options.dequantize = optarg == NULL ? "auto" : optarg;
        return EXIT_DONE;
    case OPT_NAMES:
        v->options.names = optarg;
        return EXIT_DONE;
    case OPT_CONFIG:
        v->options.config_path = optarg;
        return EXIT_DONE;
    case OPT_JSON:
        v->json = true;
        return EXIT_DONE;
    case OPT_DIGESTS:
        v->digests = true;
        return EXIT_DONE;
    default:
        return EXIT_USAGE;
    }
}

static bool show_progress(void *context, const ferry_work_progress *progress)
{
    verify_run *v = context;
    return work_watch_show(&v->watch, progress);
}

/* ---- what is printed ---- */

static void begin_json(verify_run *v)
{
    if (v->has_begun) {
        return;
    }
    v->has_begun = true;
    printf("{\"format\":\"ferry.verify/1\",\"version\":");
    print_json_text(ferry_version());
    printf(",\"a\":");
    print_json_text(v->path[0]);
    printf(",\"b\":");
    print_json_text(v->path[1]);
    printf(",\"subset\":");
    if (v->options.subset == NULL) {
        printf("null");
    } else {
        print_json_text(v->options.subset);
    }
    printf(",\n\"tensors\":[");
}

static void print_tensor(void *context, const char *tensor, uint64_t bytes, uint64_t digest)
{
    verify_run *v = context;
    if (v->json) {
        begin_json(v);
        printf("%s\n {\"name\":", v->n_printed == 0 ? "" : ",");
        print_json_text(tensor);
        printf(",\"bytes\":%" PRIu64 ",\"digest\":\"%016" PRIx64 "\"}", bytes, digest);
    } else {
        printf("%016" PRIx64 "  %14" PRIu64 "  ", digest, bytes);
        print_name(stdout, tensor);
        putchar('\n');
    }
    v->n_printed++;
}

static void print_equal(verify_run *v, const ferry_verify_result *r)
{
    if (v->json) {
        begin_json(v);
        printf("],\n\"equal\":true,\"difference\":null,\"n_tensors\":%" PRIu64
               ",\"tensor_bytes\":%" PRIu64 ",\"n_replicas\":%" PRIu64 ",\"checked\":%" PRIu64
               ",\"n_left_out\":%" PRIu64 ",\"seconds\":%.9g}\n",
               r->n_tensors, r->tensor_bytes, r->n_replicas, r->n_checked, r->n_left_out,
               r->seconds);
        return;
    }
    if (terminal_loudness() == LOUDNESS_QUIET) {
        return;
    }
    char text[5][UNIT_TEXT_BYTES];
    printf("equal: %s tensor%s, %s, and %s replica%s, in %s; %s checksum%s compared\n",
           format_count(r->n_tensors, text[0]), plural(r->n_tensors),
           format_bytes((double)r->tensor_bytes, text[1]), format_count(r->n_replicas, text[2]),
           plural(r->n_replicas), format_seconds(r->seconds, text[3]),
           format_count(r->n_checked, text[4]), plural(r->n_checked));
    if (r->n_left_out > 0) {
        bool is_one = r->n_left_out == 1;
        printf("left out: %s tensor%s of %s", format_count(r->n_left_out, text[0]),
               plural(r->n_left_out), v->path[0]);
        if (v->options.names != NULL) {
            printf(" %s no place in the names\n", is_one ? "has" : "have");
        } else {
            printf(" %s in no box of %s\n", is_one ? "is" : "are", v->path[1]);
        }
    }
}

static void print_different(verify_run *v, const ferry_error *error)
{
    if (v->json) {
        begin_json(v);
        printf("],\n\"equal\":false,\"difference\":");
        print_json_text(error->message);
        printf("}\n");
    }
}

/* ---- the command ---- */

static ferry_status verify(verify_run *v, const ferry_checkpoint *a, const ferry_checkpoint *b,
                           ferry_error *error)
{
    ferry_verify_result result = FERRY_VERIFY_RESULT_INIT;
    v->options.progress = show_progress;
    v->options.visitor = v->digests || v->json ? print_tensor : NULL;
    v->options.context = v;
    work_watch_begin(&v->watch, "verify");
    ferry_status status = ferry_checkpoint_verify(a, b, &v->options, &result, error);
    work_watch_end(&v->watch);
    if (status == FERRY_ERR_STOPPED) {
        work_watch_die();
    } else if (status == FERRY_OK) {
        print_equal(v, &result);
    } else if (status == FERRY_ERR_DIFFERENT) {
        print_different(v, error);
    }
    return status;
}

static int run(int argc, char **argv)
{
    verify_run v = {.options = FERRY_VERIFY_OPTIONS_INIT};
    ferry_error error;
    ferry_checkpoint *a = NULL, *b = NULL;
    ferry_status found;
    int status = parse_options(&command_verify, argc, argv, apply_option, &v);
    if (status != EXIT_DONE) {
        return status;
    }
    if (optind + 2 != argc) {
        return fail_usage("verify", "%s",
                          optind == argc       ? "two checkpoints are missing"
                          : optind + 1 == argc ? "the second checkpoint is missing"
                                               : "there are more than two checkpoints");
    }
    if (v.options.config_path != NULL && v.options.names == NULL) {
        return fail_usage("verify", "--config needs --names");
    }
    v.path[0] = argv[optind];
    v.path[1] = argv[optind + 1];
    found = work_open_checkpoint("verify", v.path[0], &a, &error);
    if (found == FERRY_OK) {
        found = work_open_checkpoint("verify", v.path[1], &b, &error);
    }
    if (found == FERRY_OK) {
        found = verify(&v, a, b, &error);
    }
    if (found != FERRY_OK) {
        fail("verify", error.message);
        status = found == FERRY_ERR_DIFFERENT ? EXIT_DIFFERENT : EXIT_TROUBLE;
    }
    ferry_checkpoint_destroy(a);
    ferry_checkpoint_destroy(b);
    return status;
}

const command command_verify = {.name = "verify",
                                .group = "Checkpoints",
                                .summary = "check that two checkpoints hold the same tensors",
                                .help = help,
                                .options = rows,
                                .more_help = more_help,
                                .compares = true,
                                .run = run};
