/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the summaries that a PE sends of its batches; the first says which PE and limits. */
#include "fuzz.h"

#include "service/summaries.h"

enum { N_PES = 5 };

static void check_summary(const ferry_summaries *summaries, uint64_t i,
                          const fy_summary_limits *limits, uint32_t source)
{
    ferry_error error;
    const ferry_workload_summary *one = NULL;
    promise(ferry_summaries_at(summaries, i, &one, &error) == FERRY_OK);
    uint32_t to = ferry_workload_summary_destination(one);
    uint32_t n = ferry_workload_summary_task_count(one);
    uint64_t sum = 0;
    promise(ferry_workload_summary_source(one) == source && to < N_PES && to != source);
    promise(n > 0 && n <= limits->max_tasks);
    for (uint32_t t = 0; t < n; t++) {
        uint64_t bytes = 0;
        promise(ferry_workload_summary_task_at(one, t, NULL, &bytes, &error) == FERRY_OK);
        promise(bytes > 0 && bytes <= limits->slot_bytes);
        sum += bytes;
    }
    promise(sum == ferry_workload_summary_total_bytes(one) && sum <= limits->slot_bytes);
    promise(ferry_summaries_find(summaries, source, to, ferry_workload_summary_batch_index(one)) ==
            one);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    ferry_error error = {""};
    ferry_summaries *summaries = NULL;
    fy_announced announced = {.batches = NULL};
    uint32_t source = data[0] % N_PES;
    fy_summary_limits limits = {
        .n_pes = N_PES, .slot_bytes = 1u << data[0] % 24, .max_tasks = 1 + data[0] % 50u};
    fy_reader in = {.at = data + 1, .end = data + size};
    promise(fy_summaries_create(&summaries, &error) == FERRY_OK);
    ferry_status status = fy_summaries_read(summaries, source, &limits, &announced, &in, &error);
    check_sentence(status, &error);
    if (status == FERRY_OK) {
        for (uint64_t i = 0; i < ferry_summaries_count(summaries); i++) {
            check_summary(summaries, i, &limits, source);
        }
        status = fy_summaries_check_received(summaries, (source + 1) % N_PES, &error);
        check_sentence(status, &error);
    }
    ferry_summaries_destroy(summaries);
    return 0;
}
