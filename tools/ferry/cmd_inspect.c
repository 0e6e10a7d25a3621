/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "arguments.h"
#include "checkpoint_text.h"
#include "commands.h"
#include "inspect.h"
#include "options.h"
#include "plan.h"
#include "steps.h"
#include "terminal.h"
#include "work_progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char help[] =
    "Usage: ferry inspect [OPTION]... PATH\n"
    "\n"
    "Prints what a checkpoint or a plan holds. PATH is a checkpoint (a safetensors file, an index\n"
    "file, a folder of either, or a sharded folder with its ferry.layout.json), a plan that was\n"
    "saved with ferry plan --save, or a ferry.spec/1 file. Of checkpoints only headers are read,\n"
    "but with --stats: they are checked against each other and against the sizes of the files.\n";

static const char more_help[] =
    "\n"
    "What is printed:\n"
    "  Files, other files beside them and whether ferry reshard copies these, metadata, tensors,\n"
    "  types, how many checksums are recorded, and of a sharded checkpoint its layout. Tensors of\n"
    "  one shape and type whose names differ only in numbers between dots are one group: {0-31}\n"
    "  stands for numbers from 0 to 31, and the count says how many tensors there are. Each "
    "tensor\n"
    "  counts once and whole, however it is cut. Types have ferry's names, or the file's own word\n"
    "  where ferry has none. Long lists are shortened in the middle, but not those of --tensors.\n"
    "  With patterns, tensors, types and checksums are those of the tensors that fit; a pattern\n"
    "  that fits none is an error.\n"
    "\n"
    "  Of a plan the tensors are those that its destinations get; a spec is planned as by ferry\n"
    "  plan without options. In --json these have also digest, world, moves and bytes, no files,\n"
    "  and null as their layout, as a logical checkpoint has.\n"
    "\n"
    "Exit status:\n"
    "  0 done, 1 the work failed (one sentence on stderr), 2 wrong usage\n"
    "\n"
    "Examples:\n"
    "  ferry inspect llama\n"
    "  ferry inspect llama-tp4 --json\n"
    "  ferry inspect llama --stats\n"
    "  ferry inspect llama --include 'model.layers.0.*' --exclude '*norm*' --tensors\n"
    "  ferry inspect llama/model-00001-of-00030.safetensors --tensors\n"
    "  ferry inspect examples/llama-tiny.json\n";

enum { OPT_JSON = 256, OPT_TENSORS, OPT_CHECKSUMS, OPT_STATS, OPT_MEMORY_CAP, OPT_THREADS };

static const option_row rows[] = {
    PATTERN_ROWS("tensors"),
    OPTION("tensors", NULL, OPT_TENSORS, "a line for each tensor, not for each group of them"),
    OPTION("checksums", NULL, OPT_CHECKSUMS,
           "the checksums that are recorded of each rank's tensors: XXH3, 64 bits"),
    OPTION("stats", NULL, OPT_STATS,
           "read the data: least, most and mean of the finite elements of each floating tensor, "
           "and how many are NaN or infinite; checksums that are recorded are compared"),
    OPTION("memory-cap", "SIZE", OPT_MEMORY_CAP,
           "with --stats: the most memory for buffers, at least 1M; default 256M"),
    OPTION("threads", "N", OPT_THREADS,
           "with --stats: threads that read; default the cores, at most 16"),
    OPTION("json", NULL, OPT_JSON, "print JSON instead (ferry.inspect/1), with all tensors"),
    OPTION_LOUDNESS,
    OPTION_END};

static int apply_option(int option, void *request)
{
    inspect_request *r = request;
    switch (option) {
    case OPT_MEMORY_CAP:
        return parse_cap("inspect", "--memory-cap", optarg, &r->memory_cap);
    case OPT_THREADS:
        return parse_count("inspect", "--threads", optarg, MOST_FILE_THREADS, &r->n_threads);
    case SHARED_OPT_INCLUDE:
    case SHARED_OPT_EXCLUDE:
    case SHARED_OPT_SUBSET:
        return add_pattern("inspect", option, optarg, &r->subset);
    default:
        r->json = r->json || option == OPT_JSON;
        r->tensors = r->tensors || option == OPT_TENSORS;
        r->checksums = r->checksums || option == OPT_CHECKSUMS;
        r->stats = r->stats || option == OPT_STATS;
        return EXIT_DONE;
    }
}

const char *inspect_kind(const inspected *it)
{
    if (it->checkpoint != NULL) {
        return it->totals.is_sharded ? "sharded" : "logical";
    }
    return it->plan->is_saved ? "plan" : "spec";
}

static ferry_status tensor_at(const inspected *it, size_t index, inspect_tensor *tensor_out,
                              ferry_error *error)
{
    ferry_checkpoint_tensor tensor = FERRY_CHECKPOINT_TENSOR_INIT;
    if (it->checkpoint == NULL) {
        return inspect_plan_tensor_at(it->plan, index, tensor_out, error);
    }
    FY_TRY(ferry_checkpoint_tensor_at(it->checkpoint, index, &tensor, error));
    tensor_out->name = tensor.name;
    tensor_out->dtype = dtype_name(tensor.dtype);
    tensor_out->n_dims = tensor.n_dims;
    tensor_out->bytes = tensor.bytes;
    memcpy(tensor_out->shape, tensor.shape, sizeof tensor_out->shape);
    return FERRY_OK;
}

ferry_status inspect_tensor_at(const inspected *it, size_t index, inspect_tensor *tensor_out,
                               ferry_error *error)
{
    return tensor_at(it, it->chosen[index], tensor_out, error);
}

/* ---- which tensors ---- */

/* Only names last: what else there is of a tensor is overwritten by the next. */
static const char *name_at(const void *context, size_t i)
{
    inspect_tensor tensor;
    return tensor_at(context, i, &tensor, NULL) == FERRY_OK ? tensor.name : NULL;
}

/* A pattern that fits nothing is a mistake that a shorter list would hide. */
static ferry_status check_patterns(const inspected *it, const inspect_request *r,
                                   ferry_error *error)
{
    ferry_error why;
    ferry_status status = ferry_subset_check(it->subset, it->totals.n_tensors, name_at, it, &why);
    if (status != FERRY_OK) {
        snprintf(error->message, sizeof error->message, "%s: %.400s", r->path, why.message);
    }
    return status;
}

ferry_status inspect_choose(inspected *it, const inspect_request *r, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    it->chosen = calloc(it->totals.n_tensors + 1, sizeof *it->chosen);
    if (it->chosen == NULL) {
        return inspect_no_memory(error);
    }
    status = ferry_subset_create(r->subset, &it->subset, error);
    for (size_t i = 0; i < it->totals.n_tensors && status == FERRY_OK; i++) {
        inspect_tensor tensor;
        status = tensor_at(it, i, &tensor, error);
        if (status == FERRY_OK && ferry_subset_has(it->subset, tensor.name)) {
            it->chosen[it->n_chosen++] = i;
            it->chosen_bytes += tensor.bytes;
        }
    }
    if (status != FERRY_OK || r->subset == NULL) {
        return status;
    }
    FY_TRY(check_patterns(it, r, error));
    if (it->n_chosen == 0) {
        snprintf(error->message, sizeof error->message, "%s: the patterns leave no tensor",
                 r->path);
        FY_TRY(FERRY_ERR_INVALID_INPUT);
    }
    return FERRY_OK;
}

/* ---- which kind of file ---- */

/* Whether the text stands anywhere in the rest of the file. */
static bool contains(FILE *file, const char *text)
{
    char window[65536];
    size_t length = strlen(text), kept = 0, n;
    while ((n = fread(window + kept, 1, sizeof window - kept, file)) > 0) {
        n += kept;
        if (memmem(window, n, text, length) != NULL) {
            return true;
        }
        kept = n < length - 1 ? n : length - 1;
        memmove(window, window + n - kept, kept);
    }
    return false;
}

/* What ferry reads as a spec is no longer. */
static const off_t MOST_SPEC_BYTES = 1 << 30;

/*
 * A spec is JSON that names its format. A safetensors file begins with the length of its header: no
 * header is so long that its eight bytes could begin a text.
 */
static bool is_spec(const char *path)
{
    static const char end[] = ".index.json";
    size_t length = strlen(path);
    char first[8];
    if (length >= sizeof end - 1 && strcmp(path + length - (sizeof end - 1), end) == 0) {
        return false;
    }
    FILE *file = fopen(path, "rbe");
    if (file == NULL) {
        return false;
    }
    bool is_text = fread(first, 1, sizeof first, file) == sizeof first && first[7] != 0;
    rewind(file);
    bool found = is_text && contains(file, "ferry.spec");
    fclose(file);
    return found;
}

static bool is_plan(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISREG(about.st_mode) &&
           (plan_is_saved(path) || (about.st_size <= MOST_SPEC_BYTES && is_spec(path)));
}

/* ---- the command ---- */

static ferry_status print_it(const inspect_request *r, const inspected *it, ferry_error *error)
{
    if (r->json) {
        return inspect_print_json(it, r, error);
    }
    return terminal_loudness() == LOUDNESS_QUIET ? FERRY_OK : inspect_print_table(it, r, error);
}

static ferry_status show_plan(const inspect_request *r, ferry_error *error)
{
    inspect_plan plan;
    inspect_tensor tensor;
    FY_TRY(inspect_plan_open(r->path, &plan, error));
    ferry_status status = FERRY_OK;
    inspected it = {.plan = &plan, .totals = FERRY_CHECKPOINT_TOTALS_INIT};
    it.totals.n_tensors = plan.n_tensors;
    for (size_t i = 0; i < plan.n_tensors && status == FERRY_OK; i++) {
        status = inspect_plan_tensor_at(&plan, i, &tensor, error);
        it.totals.tensor_bytes += tensor.bytes;
    }
    FY_THEN(status, inspect_choose(&it, r, error));
    FY_THEN(status, print_it(r, &it, error));
    free(it.chosen);
    ferry_subset_destroy(it.subset);
    inspect_plan_close(&plan);
    return status;
}

static ferry_status show_checkpoint(const inspect_request *r, ferry_error *error)
{
    inspected it = {.totals = FERRY_CHECKPOINT_TOTALS_INIT};
    ferry_checkpoint *checkpoint = NULL;
    ferry_status status = work_open_checkpoint("inspect", r->path, &checkpoint, error);
    if (status == FERRY_OK) {
        it.checkpoint = checkpoint;
        status = ferry_checkpoint_get_totals(checkpoint, &it.totals, error);
    }
    FY_THEN(status, inspect_choose(&it, r, error));
    if (status == FERRY_OK && r->stats) {
        status = inspect_measure(checkpoint, r, it.totals.n_tensors, &it.stats, error);
    }
    FY_THEN(status, print_it(r, &it, error));
    free(it.stats);
    free(it.chosen);
    ferry_subset_destroy(it.subset);
    ferry_checkpoint_destroy(checkpoint);
    return status;
}

static int run(int argc, char **argv)
{
    inspect_request r = {.path = NULL};
    ferry_error error;
    int status = parse_options(&command_inspect, argc, argv, apply_option, &r);
    if (status != EXIT_DONE) {
        return status;
    }
    if (optind + 1 != argc) {
        return fail_usage("inspect", "%s",
                          optind == argc ? "a path is missing" : "there is more than one path");
    }
    r.path = argv[optind];
    if ((r.memory_cap != 0 || r.n_threads != 0) && !r.stats) {
        return fail_usage("inspect", "--memory-cap and --threads need --stats");
    }
    bool of_plan = is_plan(r.path);
    if (of_plan && (r.stats || r.checksums)) {
        return fail_usage("inspect", "--stats and --checksums need a checkpoint, and %s is not one",
                          r.path);
    }
    if ((of_plan ? show_plan(&r, &error) : show_checkpoint(&r, &error)) != FERRY_OK) {
        return fail("inspect", error.message);
    }
    return EXIT_DONE;
}

const command command_inspect = {.name = "inspect",
                                 .group = "Checkpoints",
                                 .summary = "show what a checkpoint or a plan holds",
                                 .help = help,
                                 .options = rows,
                                 .more_help = more_help,
                                 .run = run};
