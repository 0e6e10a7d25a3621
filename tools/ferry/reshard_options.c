/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The arguments of `ferry reshard`. */
#include "reshard.h"

#include "arguments.h"
#include "commands.h"

#include <string.h>

enum {
    OPT_TO = 256,
    OPT_OUT,
    OPT_SUBSET,
    OPT_CAST,
    OPT_DRY_RUN,
    OPT_MEMORY_CAP,
    OPT_THREADS,
    OPT_PART_BYTES,
    OPT_RESUME,
    OPT_JSON
};

static const struct option long_options[] = {
    {"to", required_argument, NULL, OPT_TO},
    {"out", required_argument, NULL, OPT_OUT},
    {"subset", required_argument, NULL, OPT_SUBSET},
    {"cast", required_argument, NULL, OPT_CAST},
    {"dry-run", no_argument, NULL, OPT_DRY_RUN},
    {"memory-cap", required_argument, NULL, OPT_MEMORY_CAP},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"part-bytes", required_argument, NULL, OPT_PART_BYTES},
    {"resume", no_argument, NULL, OPT_RESUME},
    {"json", no_argument, NULL, OPT_JSON},
    {NULL, 0, NULL, 0}};

static int parse_cast(reshard_request *r)
{
    static const struct {
        const char *name;
        uint32_t    kind;
    } casts[] = {
        {"bf16", FERRY_BF16}, {"f16", FERRY_F16}, {"f32", FERRY_F32}, {"f8e4m3", FERRY_F8E4M3}};
    for (size_t i = 0; i < sizeof casts / sizeof casts[0]; i++) {
        if (strcmp(optarg, casts[i].name) == 0) {
            r->cast         = casts[i].name;
            r->options.cast = casts[i].kind;
            return EXIT_DONE;
        }
    }
    return fail_usage("reshard", "--cast takes bf16, f16, f32 or f8e4m3, not \"%s\"", optarg);
}

static int apply_number_option(int option, reshard_request *r)
{
    switch (option) {
    case OPT_MEMORY_CAP:
        return parse_cap("reshard", "--memory-cap", optarg, &r->options.memory_cap_bytes);
    case OPT_THREADS:
        return parse_count("reshard", "--threads", optarg, MOST_FILE_THREADS,
                           &r->options.n_threads);
    case OPT_PART_BYTES:
        return parse_size("reshard", "--part-bytes", optarg, &r->options.part_bytes);
    default:
        return EXIT_USAGE;
    }
}

static int apply_option(int option, void *request)
{
    reshard_request *r = request;
    switch (option) {
    case OPT_TO:
        r->to = optarg;
        return EXIT_DONE;
    case OPT_OUT:
        r->out = optarg;
        return EXIT_DONE;
    case OPT_SUBSET:
        r->options.subset = optarg;
        return EXIT_DONE;
    case OPT_CAST:
        return parse_cast(r);
    case OPT_DRY_RUN:
        r->dry_run = true;
        return EXIT_DONE;
    case OPT_RESUME:
        r->resume = true;
        return EXIT_DONE;
    case OPT_JSON:
        r->json = true;
        return EXIT_DONE;
    default:
        return apply_number_option(option, r);
    }
}

/* What each option may say was checked; this is what they say together. */
static int check_together(const reshard_request *r)
{
    if (r->to == NULL || *r->to == '\0') {
        return fail_usage("reshard", "--to LAYOUT is missing: a layout file, a short form such as "
                                     "tp=4,pp=2, or hf");
    }
    if (r->out == NULL || *r->out == '\0') {
        return fail_usage("reshard", "--out DST is missing: the folder to write");
    }
    if (r->options.part_bytes != 0 && strcmp(r->to, "hf") != 0) {
        return fail_usage("reshard", "--part-bytes goes with --to hf");
    }
    return EXIT_DONE;
}

int reshard_parse_arguments(int argc, char **argv, reshard_request *request_out)
{
    reshard_request r      = {.options = FERRY_CONVERSION_OPTIONS_INIT};
    int             status = parse_options("reshard", argc, argv, long_options, apply_option, &r);
    if (status != EXIT_DONE) {
        return status;
    }
    if (optind + 1 != argc) {
        return fail_usage("reshard", "%s",
                          optind == argc ? "a checkpoint is missing"
                                         : "there is more than one checkpoint");
    }
    r.source = argv[optind];
    status   = check_together(&r);
    if (status == EXIT_DONE) {
        *request_out = r;
    }
    return status;
}
