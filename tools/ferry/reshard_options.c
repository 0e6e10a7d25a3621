/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The arguments of `ferry reshard`. */
#include "reshard.h"

#include "arguments.h"
#include "commands.h"
#include "output.h"

#include <string.h>

enum {
    OPT_TO = 256,
    OPT_OUT,
    OPT_ONTO,
    OPT_CAST,
    OPT_QUANTIZE,
    OPT_DEQUANTIZE,
    OPT_NAMES,
    OPT_CONFIG,
    OPT_DRY_RUN,
    OPT_MEMORY_CAP,
    OPT_THREADS,
    OPT_PART_BYTES,
    OPT_RESUME,
    OPT_RESTART,
    OPT_BWLIMIT,
    OPT_HTML,
    OPT_JSON
};

const option_row reshard_option_rows[] = {
    OPTION(
        "to", "LAYOUT", OPT_TO,
        "what to write: hf, one logical checkpoint; a short form such as tp=4,pp=2 for "
        "architectures that ferry knows, of the axes pp, dp, ep and tp; or a ferry.layout/1 file, "
        "such as the ferry.layout.json of a sharded checkpoint"),
    OPTION("out", "DST", OPT_OUT, "the folder to write"),
    OPTION("onto", "OLD", OPT_ONTO,
           "an earlier result of the same LAYOUT: what is equal there is not written again. See "
           "below"),
    PATTERN_ROWS("tensors"),
    OPTION_WORDS("bf16 f16 f32 f8e4m3 f8e5m2", "cast", "TYPE", OPT_CAST,
                 "make all floating tensors bf16, f16, f32, f8e4m3 or f8e5m2, but for scales of "
                 "codes"),
    OPTION("quantize", "FORMAT[=PATTERN]", OPT_QUANTIZE,
           "make the matrices of linear modules in the layers, or those that fit a PATTERN, codes "
           "with a scale for each block: f8e4m3:128x128, or f8e5m2 and other blocks; :pow2 or "
           ":e8m0 behind it for scales that are powers of two; mxfp8; nvfp4"),
    OPTION("dequantize", "[FORMAT]", OPT_DEQUANTIZE,
           "make codes with a scale for each block bf16, or what --cast says; the format is that "
           "of the checkpoint, or as for --quantize"),
    OPTION("names", "NAMES", OPT_NAMES,
           "write the tensors of another naming, as config.json tells them: hf, transformers, "
           "megatron, vllm and others of docs/formats.md; before a colon, that of SRC, which is "
           "otherwise found"),
    OPTION("config", "FILE", OPT_CONFIG, "the config.json for --names; default that of SRC"),
    OPTION(
        "dry-run", NULL, OPT_DRY_RUN,
        "write nothing: print the files that would be written or copied, their bytes, and how long "
        "it would take, from a short try of the file system"),
    OPTION("memory-cap", "SIZE", OPT_MEMORY_CAP,
           "the most memory for buffers, at least 1M; default 256M"),
    OPTION("threads", "N", OPT_THREADS,
           "threads that read, copy and write; default the cores, at most 16"),
    OPTION("bwlimit", "RATE", OPT_BWLIMIT,
           "read and write no more than so many bytes a second, both together: 200M, 1G"),
    OPTION("part-bytes", "SIZE", OPT_PART_BYTES,
           "with --to hf: the most tensor bytes of a file, unless one tensor has more; default "
           "5000000000"),
    OPTION("restart", NULL, OPT_RESTART,
           "begin anew: do not go on with what an earlier run to DST has left"),
    OPTION_HIDDEN("resume", OPT_RESUME), /* what every run does; scripts say it */
    OPTION("html", "FILE", OPT_HTML,
           "write a report to FILE: one HTML page, which fetches nothing, with the files, families "
           "of tensors and types before and after; also of a --dry-run"),
    OPTION_LOUDNESS,
    OPTION("json", NULL, OPT_JSON, "print JSON instead (ferry.reshard/1)"),
    OPTION_END};

static int apply_number_option(int option, reshard_request *r)
{
    switch (option) {
    case OPT_MEMORY_CAP:
        return parse_cap("reshard", "--memory-cap", optarg, &r->options.memory_cap_bytes);
    case OPT_THREADS:
        return parse_count("reshard", "--threads", optarg, MOST_FILE_THREADS,
                           &r->options.n_threads);
    case OPT_BWLIMIT:
        return parse_size("reshard", "--bwlimit", optarg, &r->bytes_per_s);
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
    case OPT_ONTO:
        r->onto = optarg;
        return EXIT_DONE;
    case SHARED_OPT_INCLUDE:
    case SHARED_OPT_EXCLUDE:
    case SHARED_OPT_SUBSET:
        return add_pattern("reshard", option, optarg, &r->options.subset);
    case OPT_CAST:
        r->cast = optarg;
        return parse_cast("reshard", optarg, &r->options.cast);
    case OPT_QUANTIZE:
        r->options.quantize = optarg;
        return EXIT_DONE;
    case OPT_DEQUANTIZE:
        r->options.dequantize = optarg == NULL ? "auto" : optarg;
        return EXIT_DONE;
    case OPT_NAMES:
        r->options.names = optarg;
        return EXIT_DONE;
    case OPT_CONFIG:
        r->options.config_path = optarg;
        return EXIT_DONE;
    case OPT_DRY_RUN:
        r->dry_run = true;
        return EXIT_DONE;
    case OPT_RESUME:
        r->resume = true;
        return EXIT_DONE;
    case OPT_RESTART:
        r->restart = true;
        return EXIT_DONE;
    case OPT_HTML:
        r->html = optarg;
        return *optarg != '\0' ? EXIT_DONE
                               : fail_usage("reshard", "--html takes the name of a file");
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
    if (r->onto != NULL && r->resume) {
        return fail_usage("reshard", "--onto cannot be combined with --resume: it begins anew");
    }
    if (r->resume && r->restart) {
        return fail_usage("reshard",
                          "--resume, which every run does by itself, cannot be combined with "
                          "--restart");
    }
    if (r->options.quantize != NULL && r->options.dequantize != NULL) {
        return fail_usage("reshard", "--quantize cannot be combined with --dequantize: to change "
                                     "the format, do one after the other");
    }
    if (r->options.config_path != NULL && r->options.names == NULL) {
        return fail_usage("reshard", "--config needs --names");
    }
    if (r->options.part_bytes != 0 && strcmp(r->to, "hf") != 0) {
        return fail_usage("reshard", "--part-bytes needs --to hf");
    }
    note_input(r->source);
    note_input(strpbrk(r->to, "./") == NULL ? NULL : r->to); /* a file, and no short form */
    note_input(r->options.config_path);
    return check_output("reshard", "--html", r->html);
}

static int parse(int argc, char **argv, reshard_request *r)
{
    int status = parse_options(&command_reshard, argc, argv, apply_option, r);
    if (status != EXIT_DONE) {
        return status;
    }
    if (optind + 1 != argc) {
        return fail_usage("reshard", "%s",
                          optind == argc ? "a checkpoint is missing"
                                         : "there is more than one checkpoint");
    }
    r->source = argv[optind];
    return check_together(r);
}

int reshard_parse_arguments(int argc, char **argv, reshard_request *request_out)
{
    *request_out = (reshard_request){.options = FERRY_RESHARD_OPTIONS_INIT};
    return parse(argc, argv, request_out);
}
