/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the summaries that a rank sends of its batches; the first says which rank and
 * limits. */
#include "fuzz.h"

#include "schedule/reference_summaries.h"

enum { N_RANKS = 5 };

static void check_summary(const ferry_reference_summaries *summaries, uint64_t number,
                          const fy_summary_limits *limits, uint32_t from)
{
    ferry_error error;
    ferry_reference_batch one = FERRY_REFERENCE_BATCH_INIT;
    promise(ferry_reference_summaries_at(summaries, number, &one, &error) == FERRY_OK);
    uint32_t n = ferry_reference_summaries_segment_count(summaries, from, one.to, one.index);
    uint64_t sum = 0;
    promise(one.from == from && one.to < N_RANKS && one.to != from);
    promise(n > 0 && n <= limits->max_tasks);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = 0;
        promise(ferry_reference_summaries_segment_at(summaries, from, one.to, one.index, i, NULL,
                                                     &bytes, &error) == FERRY_OK);
        promise(bytes > 0 && bytes <= limits->slot_bytes);
        sum += bytes;
    }
    promise(sum == one.bytes && sum <= limits->slot_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    ferry_error error = {""};
    ferry_reference_summaries *summaries = NULL;
    fy_announced announced = {.batches = NULL};
    uint32_t from = data[0] % N_RANKS;
    fy_summary_limits limits = {
        .n_ranks = N_RANKS, .slot_bytes = 1u << data[0] % 24, .max_tasks = 1 + data[0] % 50u};
    fy_reader in = {.at = data + 1, .end = data + size};
    promise(fy_summaries_create(&summaries, &error) == FERRY_OK);
    ferry_status status = fy_summaries_read(summaries, from, &limits, &announced, &in, &error);
    check_sentence(status, &error);
    if (status == FERRY_OK) {
        for (uint64_t i = 0; i < ferry_reference_summaries_count(summaries); i++) {
            check_summary(summaries, i, &limits, from);
        }
        status = fy_summaries_check_received(summaries, (from + 1) % N_RANKS, &error);
        check_sentence(status, &error);
    }
    ferry_reference_summaries_destroy(summaries);
    return 0;
}
