/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint has beside tensors: other files, metadata, recorded checksums. */
#include "inspect.h"

#include "checkpoint_text.h"
#include "json_text.h"
#include "name_text.h"
#include "steps.h"
#include "units.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- of all files' tensors ---- */

typedef ferry_status (*shard_visitor)(void *context, const ferry_checkpoint_file *file,
                                      const ferry_checkpoint_shard *shard);

static ferry_status visit_shards(const inspected *it, shard_visitor visitor, void *context,
                                 ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (size_t f = 0; f < it->totals.n_files && status == FERRY_OK; f++) {
        ferry_checkpoint_file file = FERRY_CHECKPOINT_FILE_INIT;
        status = ferry_checkpoint_file_at(it->checkpoint, f, &file, error);
        for (size_t i = 0; i < file.n_tensors && status == FERRY_OK; i++) {
            ferry_checkpoint_shard shard = FERRY_CHECKPOINT_SHARD_INIT;
            status = ferry_checkpoint_shard_at(it->checkpoint, f, i, &shard, error);
            if (status == FERRY_OK && ferry_subset_has(it->subset, shard.tensor)) {
                status = visitor(context, &file, &shard);
            }
        }
    }
    return status;
}

typedef struct shard_count {
    uint64_t n, n_recorded;
} shard_count;

static ferry_status count_shard(void *context, const ferry_checkpoint_file *file,
                                const ferry_checkpoint_shard *shard)
{
    shard_count *count = context;
    (void)file;
    count->n++;
    count->n_recorded += shard->has_checksum;
    return FERRY_OK;
}

/* ---- for people ---- */

enum { MOST_OTHERS = 32, MOST_PAIRS = 32, MOST_VALUE = 60 };

static ferry_status print_others(const inspected *it, ferry_error *error)
{
    size_t n = ferry_checkpoint_other_count(it->checkpoint);
    if (n > 0) {
        printf("\nOther files:\n  %12s  name\n", "bytes");
    }
    for (size_t i = 0; i < n; i++) {
        ferry_checkpoint_other other = FERRY_CHECKPOINT_OTHER_INIT;
        ferry_status status = ferry_checkpoint_other_at(it->checkpoint, i, &other, error);
        char text[UNIT_TEXT_BYTES];
        if (status != FERRY_OK) {
            return status;
        }
        if (!row_is_shown(i, n, MOST_OTHERS)) {
            print_gap(i, n, MOST_OTHERS);
            continue;
        }
        bool is_folder = strchr(other.name, '/') != NULL;
        printf("  %12s  ", is_folder ? "-" : format_bytes((double)other.bytes, text));
        print_name(stdout, other.name);
        printf("%s%s%s\n", other.left_out == NULL ? "" : " (not copied: ",
               other.left_out == NULL ? "" : other.left_out, other.left_out == NULL ? "" : ")");
    }
    return FERRY_OK;
}

/* The begin of a value that is long, in whole characters. */
static void print_value(const char *value)
{
    char text[MOST_VALUE + 1];
    size_t length = strlen(value), shown = length < MOST_VALUE ? length : MOST_VALUE;
    while (shown > 0 && ((unsigned char)value[shown] & 0xc0) == 0x80) {
        shown--;
    }
    memcpy(text, value, shown);
    text[shown] = '\0';
    print_name(stdout, text);
    printf(length > MOST_VALUE ? "... (%zu bytes)\n" : "\n", length);
}

static ferry_status print_metadata(const inspected *it, ferry_error *error)
{
    size_t n = ferry_checkpoint_metadata_count(it->checkpoint);
    if (n > 0) {
        printf("\nMetadata:\n");
    }
    for (size_t i = 0; i < n; i++) {
        const char *key = NULL, *value = NULL;
        FY_TRY(ferry_checkpoint_metadata_at(it->checkpoint, i, &key, &value, error));
        if (!row_is_shown(i, n, MOST_PAIRS)) {
            print_gap(i, n, MOST_PAIRS);
            continue;
        }
        printf("  ");
        print_name(stdout, key);
        printf(": ");
        print_value(value);
    }
    return FERRY_OK;
}

static ferry_status print_shard(void *context, const ferry_checkpoint_file *file,
                                const ferry_checkpoint_shard *shard)
{
    const inspected *it = context;
    char text[UNIT_TEXT_BYTES];
    if (it->totals.is_sharded) {
        printf("  %8u", file->rank);
    }
    if (shard->has_checksum) {
        printf("  %016" PRIx64, shard->checksum);
    } else {
        printf("  %-16s", "none");
    }
    printf("  %12s  ", format_bytes((double)shard->bytes, text));
    print_name(stdout, shard->tensor);
    putchar('\n');
    return FERRY_OK;
}

static ferry_status print_checksums(const inspected *it, const inspect_request *r,
                                    ferry_error *error)
{
    shard_count count = {0};
    char text[2][UNIT_TEXT_BYTES];
    FY_TRY(visit_shards(it, count_shard, &count, error));
    if (count.n_recorded == 0) {
        printf("\nChecksums: none are recorded\n");
    } else {
        printf("\nChecksums: recorded of %s of %s tensor%s of the files\n",
               format_count(count.n_recorded, text[0]), format_count(count.n, text[1]),
               plural(count.n));
    }
    if (!r->checksums || count.n_recorded == 0) {
        return FERRY_OK;
    }
    printf("%s  %-16s  %12s  name\n", it->totals.is_sharded ? "      rank" : "", "xxh3", "bytes");
    return visit_shards(it, print_shard, (void *)(uintptr_t)it, error);
}

ferry_status inspect_print_about(const inspected *it, const inspect_request *request,
                                 ferry_error *error)
{
    FY_TRY(print_others(it, error));
    FY_TRY(print_metadata(it, error));
    return print_checksums(it, request, error);
}

/* ---- for machines ---- */

static ferry_status print_others_json(const inspected *it, ferry_error *error)
{
    printf(",\n\"others\":[");
    for (size_t i = 0; i < ferry_checkpoint_other_count(it->checkpoint); i++) {
        ferry_checkpoint_other other = FERRY_CHECKPOINT_OTHER_INIT;
        FY_TRY(ferry_checkpoint_other_at(it->checkpoint, i, &other, error));
        printf("%s\n {\"name\":", i == 0 ? "" : ",");
        print_json_text(other.name);
        printf(",\"bytes\":%" PRIu64 ",\"left_out\":", other.bytes);
        print_json_text(other.left_out);
        printf("}");
    }
    printf("]");
    return FERRY_OK;
}

static ferry_status print_metadata_json(const inspected *it, ferry_error *error)
{
    printf(",\n\"metadata\":{");
    for (size_t i = 0; i < ferry_checkpoint_metadata_count(it->checkpoint); i++) {
        const char *key = NULL, *value = NULL;
        FY_TRY(ferry_checkpoint_metadata_at(it->checkpoint, i, &key, &value, error));
        printf("%s\n ", i == 0 ? "" : ",");
        print_json_text(key);
        printf(":");
        print_json_text(value);
    }
    printf("}");
    return FERRY_OK;
}

typedef struct shard_list {
    bool is_sharded;
    bool any;
} shard_list;

static ferry_status print_shard_json(void *context, const ferry_checkpoint_file *file,
                                     const ferry_checkpoint_shard *shard)
{
    shard_list *list = context;
    printf("%s\n {\"file\":", list->any ? "," : "");
    print_json_text(file->name);
    if (list->is_sharded) {
        printf(",\"rank\":%u,\"tensor\":", file->rank);
    } else {
        printf(",\"rank\":null,\"tensor\":");
    }
    print_json_text(shard->tensor);
    printf(",\"bytes\":%" PRIu64 ",\"xxh3\":", shard->bytes);
    if (shard->has_checksum) {
        printf("\"%016" PRIx64 "\"}", shard->checksum);
    } else {
        printf("null}");
    }
    list->any = true;
    return FERRY_OK;
}

ferry_status inspect_print_about_json(const inspected *it, const inspect_request *request,
                                      ferry_error *error)
{
    shard_count count = {0};
    shard_list list = {.is_sharded = it->totals.is_sharded};
    ferry_status status = print_others_json(it, error);
    FY_THEN(status, print_metadata_json(it, error));
    FY_THEN(status, visit_shards(it, count_shard, &count, error));
    printf(",\n\"checksums\":%" PRIu64, count.n_recorded);
    if (status == FERRY_OK && request->checksums) {
        printf(",\n\"shards\":[");
        status = visit_shards(it, print_shard_json, &list, error);
        printf("]");
    }
    return status;
}
