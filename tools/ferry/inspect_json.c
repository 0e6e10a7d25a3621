/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ferry.inspect/1, streamed to stdout. */
#include "inspect.h"

#include "json_text.h"
#include "plan.h"
#include "steps.h"

#include <stdio.h>

static void print_u64(const char *before, uint64_t value)
{
    printf("%s%llu", before, (unsigned long long)value);
}

static void print_plan(const inspect_plan *p)
{
    char digest[FERRY_DIGEST_BYTES];
    ferry_plan_digest(p->plan, digest, sizeof digest);
    printf(",\n\"digest\":\"%s\",\"world\":%u", digest, ferry_plan_rank_count(p->plan));
    print_u64(",\"moves\":", p->totals.n_moves);
    print_u64(",\"bytes\":{\"moved\":", p->totals.moved_bytes);
    print_u64(",\"local\":", p->totals.local_bytes);
    print_u64(",\"total\":", p->totals.moved_bytes + p->totals.local_bytes);
    printf("}");
}

static ferry_status print_tensors(const inspected *it, ferry_error *error)
{
    printf(",\n\"tensors\":[");
    for (size_t i = 0; i < it->n_chosen; i++) {
        inspect_tensor tensor;
        FY_TRY(inspect_tensor_at(it, i, &tensor, error));
        printf("%s\n {\"name\":", i == 0 ? "" : ",");
        print_json_text(tensor.name);
        printf(",\"shape\":[");
        for (uint32_t d = 0; d < tensor.n_dims; d++) {
            print_u64(d == 0 ? "" : ",", tensor.shape[d]);
        }
        printf("],\"dtype\":");
        print_json_text(tensor.dtype);
        print_u64(",\"bytes\":", tensor.bytes);
        if (it->stats != NULL) {
            inspect_print_stats_json(&it->stats[it->chosen[i]]);
        }
        printf("}");
    }
    printf("]");
    return FERRY_OK;
}

static ferry_status print_files_json(const inspected *it, ferry_error *error)
{
    printf(",\n\"files\":[");
    for (size_t i = 0; i < it->totals.n_files; i++) {
        ferry_checkpoint_file file = FERRY_CHECKPOINT_FILE_INIT;
        FY_TRY(ferry_checkpoint_file_at(it->checkpoint, i, &file, error));
        printf("%s\n {\"name\":", i == 0 ? "" : ",");
        print_json_text(file.name);
        print_u64(",\"bytes\":", file.bytes);
        printf("}");
    }
    printf("]");
    return FERRY_OK;
}

ferry_status inspect_print_json(const inspected *it, const inspect_request *request,
                                ferry_error *error)
{
    printf("{\"format\":\"ferry.inspect/1\",\"kind\":\"%s\"", inspect_kind(it));
    if (it->plan != NULL) {
        print_plan(it->plan);
    }
    if (request->subset != NULL) {
        printf(",\n\"subset\":");
        print_json_text(request->subset);
    }
    ferry_status status = print_tensors(it, error);
    FY_THEN(status, print_files_json(it, error));
    if (status == FERRY_OK && it->checkpoint != NULL) {
        status = inspect_print_about_json(it, request, error);
    }
    printf(",\n\"layout\":");
    if (it->checkpoint == NULL) {
        printf("null");
    } else if (status == FERRY_OK) {
        status = ferry_checkpoint_write_layout(it->checkpoint, write_stream, stdout, error);
    }
    printf("}\n");
    return status;
}
