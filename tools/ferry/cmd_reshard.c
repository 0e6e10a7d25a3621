/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"
#include "reshard.h"
#include "steps.h"
#include "terminal.h"
#include "work_progress.h"

#include <stdio.h>
#include <string.h>

static const char help[] =
    "Usage: ferry reshard [OPTION]... SRC --to LAYOUT --out DST\n"
    "\n"
    "Writes a checkpoint in another parallel layout, in bounded memory: a logical one, as the\n"
    "Hugging Face ecosystem writes it, becomes a sharded one, a folder with one safetensors file\n"
    "for each rank; that becomes one for other ranks; and back. SRC is a safetensors file, an\n"
    "index file, or a folder of either kind. DST must not exist; it appears when everything is\n"
    "written and synced, and a run that fails leaves nothing there.\n";

static const char more_help[] =
    "\n"
    "Sizes are numbers of bytes, or of K, M or G for KiB, MiB or GiB.\n"
    "\n"
    "Which tensors:\n"
    "  A tensor is taken if its name fits an --include, or there is none, and if it fits no\n"
    "  pattern of --exclude. The order does not matter. A pattern that fits no tensor of the\n"
    "  result is an error, and so is one of --exclude for scales that --quantize makes.\n"
    "\n"
    "Other files:\n"
    "  What else lies in the folder of SRC is copied along; in config.json --cast changes\n"
    "  torch_dtype, and --quantize or --dequantize quantization_config. Weights in other formats,\n"
    "  folders, and links that lead out of the checkpoint (but for those to the blobs of the "
    "hub's\n"
    "  cache) are not, and a note on stderr names them.\n"
    "\n"
    "Boxes:\n"
    "  A layout file may say in boxes which part of which tensor lies where in which parameter of\n"
    "  a rank, as a side of a spec does: what a serving engine fuses, stacks, pads or transposes.\n"
    "  A rank's file then holds the rank's parameters. What nothing gives is zero. Such a folder\n"
    "  is a source like any other. Codes may become values on that way, by --dequantize or\n"
    "  where a parameter says so, and values codes, likewise or by --quantize: scales lie where\n"
    "  boxes say, or in a parameter beside that with the codes.\n"
    "\n"
    "An earlier result:\n"
    "  With --onto OLD the result is the same, but what OLD holds already is compared and not\n"
    "  written: of a version in which little has changed, little is. Its files share blocks with\n"
    "  those of OLD where the file system can do that. Elsewhere a file in which nothing differs\n"
    "  becomes a hard link to that of OLD, so neither must be changed in place, only removed or\n"
    "  replaced; a file in which something differs is written whole. Nothing is written to OLD;\n"
    "  a link counts in the number of links of its file, and in the time that its status changed.\n"
    "  OLD is refused, also with --dry-run, if it has other files, tensors, dtypes or shapes. A "
    "run\n"
    "  with it begins anew.\n"
    "\n"
    "Quantization:\n"
    "  A value is its code times the scale of its block. Scales are a tensor beside their weight,\n"
    "  NAME_scale_inv (of mxfp8 and nvfp4 NAME_scale), and cut like it, in blocks; a mesh that\n"
    "  cuts a weight inside a block is refused. Norms, embeddings, heads and routers stay as they\n"
    "  are where no PATTERN says otherwise.\n"
    "\n"
    "What is printed:\n"
    "  What was read and written, how long it took until all was synced, and at which rate; GB\n"
    "  are 10^9 bytes. Checksums that a sharded source has recorded are compared; those of a\n"
    "  sharded result are recorded. Tensors that no built-in rule of a short form knows are given\n"
    "  whole to every rank of their stage, and a note on stderr names some. On a terminal stderr\n"
    "  shows the progress meanwhile; NO_COLOR in the environment takes the colours away.\n"
    "\n"
    "Interruption:\n"
    "  A run that is interrupted or fails leaves what it has done beside DST, in a folder with "
    "the\n"
    "  hidden name .DST.ferry-partial, and says so; the same command goes on from there. On "
    "SIGINT,\n"
    "  SIGTERM or SIGHUP the command dies of that signal when it has put all in order. Nothing of\n"
    "  the folder is trusted but tensors whose bytes were read again. If source, layout or "
    "options\n"
    "  are others, or with --restart, a run begins anew and removes what it finds; where that was\n"
    "  not asked for, a note says why. To give up, remove the folder. One of another user, or one\n"
    "  that others may write into, is refused.\n"
    "\n"
    "Exit status:\n"
    "  0 done, 1 the work failed (one sentence on stderr), 2 wrong usage; 128 and the number of a\n"
    "  signal that ended it, as a shell counts\n"
    "\n"
    "Examples:\n"
    "  ferry reshard llama --to tp=4 --out llama-tp4\n"
    "  ferry reshard llama-tp4 --to tp=8,pp=2 --out llama-tp8-pp2 --dry-run\n"
    "  ferry reshard llama --to tp=4 --out llama-tp4 --html llama-tp4.html\n"
    "  ferry reshard llama-tp4 --to other/ferry.layout.json --out llama-other --restart\n"
    "  ferry reshard llama-tp4 --to server-boxes.json --out llama-server\n"
    "  ferry reshard llama-new --to tp=4 --onto llama-tp4 --out llama-new-tp4\n"
    "  ferry reshard llama-tp4 --to hf --cast bf16 --out llama-bf16\n"
    "  ferry reshard llama --to tp=4 --quantize f8e4m3:128x128 --out llama-fp8-tp4\n"
    "  ferry reshard DeepSeek-V3 --to hf --dequantize --out DeepSeek-V3-bf16\n";

uint64_t reshard_memory_cap(const reshard_request *request)
{
    return request->options.memory_cap_bytes > 0 ? request->options.memory_cap_bytes
                                                 : (uint64_t)256 << 20;
}

/* At --bwlimit nothing is faster, whatever the file system can do. */
static double least_seconds(const reshard_report *report)
{
    const ferry_reshard_totals *t = &report->totals;
    double bytes = (double)t->read_bytes + (double)t->file_bytes + 2 * (double)t->other_bytes;
    uint64_t limit = report->request->bytes_per_s;
    return limit == 0 ? 0 : bytes / (double)limit;
}

static ferry_status estimate(reshard_report *report, ferry_error *error)
{
    work_watch watch;
    const char *onto = report->request->onto;
    FY_TRY(onto == NULL ? FERRY_OK : ferry_reshard_check_onto(report->reshard, onto, error));
    work_watch_begin(&watch, "reshard"); /* a signal shall not leave the file that is tried with */
    ferry_status status =
        ferry_reshard_estimate(report->reshard, report->request->out, &report->estimate, error);
    work_watch_end(&watch);
    work_watch_die();
    report->has_estimate = status == FERRY_OK;
    report->lacks_room = status == FERRY_ERR_IO;
    if (report->lacks_room && onto != NULL) { /* it may have all that there is no room for */
        return FERRY_OK;
    }
    if (report->estimate < least_seconds(report)) {
        report->estimate = least_seconds(report);
    }
    return status == FERRY_ERR_UNSUPPORTED ? FERRY_OK : status;
}

/* How to go on, if a run that did not end well has left something to go on with; else "". */
static const char *tell_left(const reshard_request *r, char *text, size_t text_bytes)
{
    const char *end = r->out + strlen(r->out), *name;
    while (end > r->out && end[-1] == '/') {
        end--;
    }
    for (name = end; name > r->out && name[-1] != '/';) {
        name--;
    }
    text[0] = '\0';
    if (!r->dry_run && ferry_reshard_has_left(r->out)) {
        snprintf(
            text, text_bytes,
            "; what was done is kept in %.*s.%.*s.ferry-partial: the same command goes on from "
            "there, with --restart it begins anew",
            (int)(name - r->out), r->out, (int)(end - name), name);
    }
    return text;
}

/* In one sentence: what happened, and how to go on. What a run that never began found in its place
 * is another's. */
static int fail_run(const reshard_request *r, const char *sentence, bool has_begun)
{
    char left[2 * FERRY_ERROR_BYTES], whole[3 * FERRY_ERROR_BYTES];
    snprintf(whole, sizeof whole, "%s%s", sentence,
             has_begun ? tell_left(r, left, sizeof left) : "");
    return fail("reshard", whole);
}

static ferry_status write_result(const reshard_request *r, ferry_reshard *reshard,
                                 reshard_report *report, ferry_error *error)
{
    work_watch watch;
    ferry_reshard_run_options options = FERRY_RESHARD_RUN_OPTIONS_INIT;
    options.resume = true;
    options.restart = r->restart;
    options.bytes_per_s = r->bytes_per_s;
    options.onto = r->onto;
    options.progress = work_watch_show;
    options.context = &watch;
    work_watch_begin(&watch, "reshard");
    watch.is_json = r->json;
    ferry_status status = ferry_reshard_run(reshard, r->out, &options, &report->result, error);
    report->has_begun = watch.phase != NULL; /* it has its place before it reports anything */
    if (status == FERRY_ERR_STOPPED) {
        fail_run(r, "interrupted",
                 report->has_begun); /* while further signals still change nothing */
    }
    work_watch_end(&watch);
    if (status == FERRY_ERR_STOPPED) {
        work_watch_die();
    }
    return status;
}

static ferry_status print_report(const reshard_report *report, ferry_error *error)
{
    if (report->request->json) {
        return reshard_print_json(report, error);
    }
    return terminal_loudness() == LOUDNESS_QUIET ? FERRY_OK : reshard_print_table(report, error);
}

static ferry_status work(const reshard_request *r, const ferry_checkpoint *source,
                         ferry_reshard *reshard, reshard_report *report, ferry_error *error)
{
    report->checkpoint = source;
    FY_TRY(ferry_reshard_get_totals(reshard, &report->totals, error));
    report->reshard = reshard;
    FY_TRY(r->dry_run ? estimate(report, error) : write_result(r, reshard, report, error));
    FY_TRY(r->html == NULL ? FERRY_OK : reshard_write_html(report, error));
    FY_TRY(print_report(report, error));
    if (!r->json) {
        reshard_print_note(report); /* a failure has its one sentence for itself */
        reshard_note_unused(report);
    }
    return FERRY_OK;
}

static int run_request(const reshard_request *r)
{
    int status = EXIT_DONE;
    ferry_error error;
    ferry_checkpoint *source = NULL;
    ferry_reshard *reshard = NULL;
    reshard_report report = {.request = r,
                             .source = FERRY_CHECKPOINT_TOTALS_INIT,
                             .totals = FERRY_RESHARD_TOTALS_INIT,
                             .result = FERRY_RESHARD_RESULT_INIT};
    /* The target first: the run would refuse it in the end, when all headers have been read. */
    if (ferry_reshard_check_target(r->out, &error) != FERRY_OK ||
        work_open_checkpoint("reshard", r->source, &source, &error) != FERRY_OK ||
        ferry_checkpoint_get_totals(source, &report.source, &error) != FERRY_OK ||
        ferry_reshard_create(source, r->to, &r->options, &reshard, &error) != FERRY_OK) {
        status = fail("reshard", error.message);
    } else if (work(r, source, reshard, &report, &error) != FERRY_OK) {
        status = fail_run(r, error.message, report.has_begun);
    }
    ferry_reshard_destroy(reshard);
    ferry_checkpoint_destroy(source);
    return status;
}

static int run(int argc, char **argv)
{
    reshard_request r;
    int status = reshard_parse_arguments(argc, argv, &r);
    return status == EXIT_DONE ? run_request(&r) : status;
}

const command command_reshard = {.name = "reshard",
                                 .group = "Checkpoints",
                                 .summary = "write a checkpoint in another layout",
                                 .help = help,
                                 .options = reshard_option_rows,
                                 .more_help = more_help,
                                 .run = run};
