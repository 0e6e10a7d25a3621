/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What was written, or would be, for people. */
#include "reshard.h"

#include "checkpoint_text.h"
#include "name_text.h"
#include "steps.h"
#include "terminal.h"
#include "units.h"

#include <string.h>

static const char *tell_kind(bool is_sharded)
{
    return is_sharded ? "sharded" : "logical";
}

/* What is read and what is made of it: the same lines for a dry run and a real one. */
static void print_head(const reshard_report *report)
{
    const ferry_reshard_totals *t = &report->totals;
    const ferry_checkpoint_totals *s = &report->source;
    char text[3][UNIT_TEXT_BYTES];
    printf("From       %s: %s, %s tensor%s, %s in %s file%s\n", report->request->source,
           tell_kind(s->is_sharded), format_count(s->n_tensors, text[0]), plural(s->n_tensors),
           format_bytes((double)s->file_bytes, text[1]), format_count(s->n_files, text[2]),
           plural(s->n_files));
    printf("To         %s: %s, %s tensor%s, %s in %s file%s\n", report->request->out,
           tell_kind(t->is_sharded), format_count(t->n_tensors, text[0]), plural(t->n_tensors),
           format_bytes((double)t->file_bytes, text[1]), format_count(t->n_files, text[2]),
           plural(t->n_files));
}

static const char *tell_type(ferry_dtype dtype, char text[FERRY_DTYPE_TEXT_BYTES])
{
    ferry_dtype_format(dtype, text, FERRY_DTYPE_TEXT_BYTES);
    return text;
}

/* How many tensors get scales, or lose them, and what they become: one is told of as an example. */
static ferry_status print_changes(const reshard_report *report, ferry_error *error)
{
    size_t n = report->totals.n_quantized + report->totals.n_dequantized;
    bool quantizes = report->totals.n_quantized > 0;
    char text[UNIT_TEXT_BYTES], types[2][FERRY_DTYPE_TEXT_BYTES];
    ferry_reshard_change change = FERRY_RESHARD_CHANGE_INIT;
    if (n == 0) {
        return FERRY_OK;
    }
    FY_TRY(ferry_reshard_change_at(report->reshard, 0, &change, error));
    printf("%s %s tensor%s from %s to %s, in blocks of %llux%llu: ",
           quantizes ? "Quantizes " : "Dequantizes", format_count(n, text), plural(n),
           tell_type(change.from, types[0]), tell_type(change.to, types[1]),
           (unsigned long long)change.block[0], (unsigned long long)change.block[1]);
    print_name(stdout, change.tensor);
    printf(" with ");
    print_name(stdout, change.scales);
    printf("%s\n", n > 1 ? " and so on" : "");
    return FERRY_OK;
}

static ferry_status file_at(const void *of, size_t index, ferry_checkpoint_file *file_out,
                            ferry_error *error)
{
    return ferry_reshard_file_at(of, index, file_out, error);
}

/* What else lies in the source's folder. */
static ferry_status print_others(const reshard_report *report, ferry_error *error)
{
    char text[32];
    for (size_t i = 0; i < report->totals.n_others; i++) {
        ferry_reshard_other other = FERRY_RESHARD_OTHER_INIT;
        FY_TRY(ferry_reshard_other_at(report->reshard, i, &other, error));
        printf(other.left_out == NULL ? "Copies     " : "Leaves out ");
        print_name(stdout, other.name);
        if (other.left_out != NULL) {
            printf(": %s\n", other.left_out);
        } else {
            printf(", %s%s%s%s\n", format_bytes((double)other.bytes, text),
                   other.torch_dtype == NULL ? "" : ", with the torch_dtype ",
                   other.torch_dtype == NULL ? "" : other.torch_dtype,
                   other.quantization_config == NULL    ? ""
                   : *other.quantization_config == '\0' ? ", without its quantization_config"
                                                        : ", with a new quantization_config");
        }
    }
    if (report->totals.other_bytes > 0) {
        printf("Copies     %s in all\n", format_bytes((double)report->totals.other_bytes, text));
    }
    return FERRY_OK;
}

static ferry_status print_dry_run(const reshard_report *report, ferry_error *error)
{
    const ferry_reshard_totals *t = &report->totals;
    char text[3][32];
    FY_TRY(print_files(report->reshard, file_at, t->n_files, t->is_sharded, error));
    printf("\nReads      %s\n", format_bytes((double)t->read_bytes, text[0]));
    printf("Writes     %s\n", format_bytes((double)t->file_bytes, text[1]));
    FY_TRY(print_others(report, error));
    if (report->request->onto != NULL) {
        printf("Onto       %s: what is equal there is compared and not written\n",
               report->request->onto);
    }
    printf("Memory     at most %s for buffers\n",
           format_bytes((double)reshard_memory_cap(report->request), text[2]));
    if (report->has_estimate && report->estimate < 0.1) {
        printf("Takes      less than 100 ms\n");
    } else if (report->has_estimate) {
        printf("Takes      about %s\n", format_seconds(report->estimate, text[0]));
    } else {
        printf("Takes      unknown: %s\n",
               report->lacks_room
                   ? "the disk has no room for all of it, so much depends on what is kept"
                   : "this file system cannot be tried");
    }
    printf("Nothing was written, as --dry-run asks\n");
    return FERRY_OK;
}

static void print_result(const reshard_report *report)
{
    const ferry_reshard_result *r = &report->result;
    uint64_t new = r->written_bytes - r->resumed_bytes - r->kept_bytes;
    char text[3][UNIT_TEXT_BYTES];
    printf("Read       %s\n", format_bytes((double)report->totals.read_bytes, text[0]));
    printf("Written    %s in %s", format_bytes((double)r->written_bytes, text[1]),
           format_seconds(r->seconds, text[0]));
    if (new > 0 && r->seconds > 0) {
        printf(", %s", format_rate((double)new / r->seconds, text[0]));
    }
    printf("; copying took %s of that\n", format_seconds(r->copy_seconds, text[0]));
    if (report->request->onto != NULL) {
        printf("Kept       %s of it as it is in %s, %llu files as links\n",
               format_bytes((double)r->kept_bytes, text[2]), report->request->onto,
               (unsigned long long)r->n_kept_files);
    }
    if (r->resumed_bytes > 0) {
        printf("Resumed    %s of it had been written before\n",
               format_bytes((double)r->resumed_bytes, text[2]));
    }
    if (r->n_checked > 0) {
        printf("Checksums  %s of the source were compared\n", format_count(r->n_checked, text[0]));
    } else {
        printf("Checksums  none of the source were compared\n");
    }
}

ferry_status reshard_print_table(const reshard_report *report, ferry_error *error)
{
    print_head(report);
    FY_TRY(print_changes(report, error));
    if (report->request->dry_run) {
        return print_dry_run(report, error);
    }
    print_result(report);
    return FERRY_OK;
}

enum { NOTED_NAMES = 4 };

/* Those of an index that is newer, or of another package: they have tensors of their own. */
static bool is_safetensors(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot != NULL && strcmp(dot, ".safetensors") == 0;
}

/* What a user might miss in the result. */
static void note_left_out(const reshard_report *report)
{
    for (size_t i = 0; i < report->totals.n_others; i++) {
        ferry_reshard_other other = FERRY_RESHARD_OTHER_INIT;
        if (ferry_reshard_other_at(report->reshard, i, &other, NULL) == FERRY_OK &&
            other.left_out != NULL && !is_safetensors(other.name)) {
            if (terminal_begin_note("reshard")) {
                fputs("not copied: ", stderr);
                print_name(stderr, other.name);
                fprintf(stderr, ": %s\n", other.left_out);
            }
        }
    }
}

/* Whether config.json still says that the result has codes, beside what was dequantized. */
static bool is_partly_codes(const reshard_report *report)
{
    bool is = false;
    for (size_t i = 0; report->totals.n_dequantized > 0 && i < report->totals.n_others && !is;
         i++) {
        ferry_reshard_other other = FERRY_RESHARD_OTHER_INIT;
        is = ferry_reshard_other_at(report->reshard, i, &other, NULL) == FERRY_OK &&
             other.quantization_config != NULL && *other.quantization_config != '\0';
    }
    return is;
}

static bool is_weight(const char *name)
{
    static const char tail[] = ".weight";
    size_t n = strlen(name), n_tail = sizeof tail - 1;
    return n > n_tail && strcmp(name + n - n_tail, tail) == 0;
}

/* Loaders look for modules in that list, and such a name is of none. */
static void note_unlisted(const reshard_report *report)
{
    const char *first = NULL;
    size_t n = 0;
    for (size_t i = 0; is_partly_codes(report) && i < report->totals.n_dequantized; i++) {
        ferry_reshard_change change = FERRY_RESHARD_CHANGE_INIT;
        if (ferry_reshard_change_at(report->reshard, i, &change, NULL) == FERRY_OK &&
            !is_weight(change.tensor)) {
            first = n++ == 0 ? change.tensor : first;
        }
    }
    if (n > 0 && terminal_begin_note("reshard")) {
        fprintf(
            stderr,
            "no module is known of %zu dequantized tensor%s, listed in config.json by the whole "
            "name among the modules that are not quantized: ",
            n, plural(n));
        print_name(stderr, first);
        fprintf(stderr, "%s; see that your loader heeds that, or dequantize all\n",
                n > 1 ? " and so on" : "");
    }
}

/* Those with the same reason together, in one note; first is the first of them. */
static void note_unnamed(const reshard_report *report, size_t first, const char *why)
{
    size_t n = 0;
    const char *name, *its;
    for (size_t i = first; (name = ferry_reshard_left_out_at(report->reshard, i, &its)); i++) {
        n += strcmp(why, its) == 0;
    }
    if (!terminal_begin_note("reshard")) {
        return;
    }
    fprintf(stderr, "%zu tensor%s left out, by --names (%s): ", n, n == 1 ? " is" : "s are", why);
    n = 0;
    for (size_t i = first; (name = ferry_reshard_left_out_at(report->reshard, i, &its)); i++) {
        if (strcmp(why, its) == 0 && n++ < NOTED_NAMES) {
            fputs(n == 1 ? "" : ", ", stderr);
            print_name(stderr, name);
        }
    }
    fprintf(stderr, "%s\n", n > NOTED_NAMES ? ", ..." : "");
}

static void note_all_unnamed(const reshard_report *report)
{
    const char *why, *other;
    for (size_t i = 0; ferry_reshard_left_out_at(report->reshard, i, &why) != NULL; i++) {
        size_t before = 0;
        while (before < i && ferry_reshard_left_out_at(report->reshard, before, &other) != NULL &&
               strcmp(why, other) != 0) {
            before++;
        }
        if (before == i) {
            note_unnamed(report, i, why);
        }
    }
}

void reshard_print_note(const reshard_report *report)
{
    size_t n = report->totals.n_replicated;
    if (!report->request->dry_run) { /* which lists them */
        note_left_out(report);
    }
    note_unlisted(report);
    note_all_unnamed(report);
    if (n == 0 || !terminal_begin_note("reshard")) {
        return;
    }
    fprintf(stderr,
            "no built-in rule knows %zu tensor%s, which every rank of a stage gets whole: ", n,
            plural(n));
    for (size_t i = 0; i < n && i < NOTED_NAMES; i++) {
        fputs(i == 0 ? "" : ", ", stderr);
        print_name(stderr, ferry_reshard_replicated_at(report->reshard, i));
    }
    fprintf(stderr, "%s\n", n > NOTED_NAMES ? ", ..." : "");
}
