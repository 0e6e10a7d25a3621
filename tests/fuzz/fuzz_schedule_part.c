/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a rank's part of a schedule, which rank 0 sends. The first byte says whose part it
 * is to be; the rest is read as it is, and once more with the right hash in front, so that more
 * than hashes is looked at.
 */
#include "fuzz.h"

#include "base/hash.h"
#include "schedule/part.h"

enum { N_RANKS = 4, HASH_BYTES = 16 };

static void check_list(const ferry_schedule *part, uint32_t rank, bool sends, uint64_t *n_inout)
{
    ferry_error error = {""};
    uint64_t last = 0;
    uint32_t n =
        sends ? ferry_schedule_send_count(part, rank) : ferry_schedule_receive_count(part, rank);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t number = 0;
        promise((sends ? ferry_schedule_send_at(part, rank, i, &number, &error)
                       : ferry_schedule_receive_at(part, rank, i, &number, &error)) == FERRY_OK);
        promise(number < part->n_batches && (i == 0 || number > last));
        promise(i == 0 || part->batches[number].round > part->batches[last].round);
        last = number;
    }
    *n_inout += n;
}

static void check_waits(const ferry_schedule *part, uint64_t number)
{
    for (uint64_t i = part->wait_begin[number]; i < part->wait_begin[number + 1]; i++) {
        promise(part->waits[i] < number);
        promise(part->batches[part->waits[i]].to == part->part_rank);
        promise(part->batches[part->waits[i]].round < part->batches[number].round);
    }
}

static void check_batch(const ferry_schedule *part, uint64_t number)
{
    ferry_error error = {""};
    ferry_batch batch = FERRY_BATCH_INIT;
    ferry_segment segment = FERRY_SEGMENT_INIT;
    uint64_t bytes = 0;
    promise(ferry_schedule_batch_at(part, number, &batch, &error) == FERRY_OK);
    promise(batch.from < N_RANKS && batch.to < N_RANKS && batch.from != batch.to);
    promise((batch.from == part->part_rank) != (batch.to == part->part_rank));
    promise(batch.round < part->report.n_rounds && batch.n_segments > 0);
    for (uint32_t i = 0; i < batch.n_segments; i++) {
        promise(ferry_schedule_segment_at(part, batch.first_segment + i, &segment, &error) ==
                FERRY_OK);
        promise(segment.bytes > 0 && segment.first_byte + segment.bytes > segment.first_byte);
        bytes += segment.bytes;
    }
    promise(bytes == batch.bytes && bytes <= part->slot_bytes);
    if (part->wait_begin != NULL) {
        check_waits(part, number);
    }
}

static void read_part(const uint8_t *bytes, size_t n_bytes, uint32_t rank)
{
    ferry_error error = {""};
    ferry_schedule *part = NULL;
    ferry_status status = fy_part_read(bytes, n_bytes, rank, N_RANKS, &part, &error);
    check_sentence(status, &error);
    promise((part != NULL) == (status == FERRY_OK));
    if (part != NULL) {
        double idle = -1;
        uint64_t n = 0;
        for (uint64_t i = 0; i < part->n_batches; i++) {
            check_batch(part, i);
        }
        check_list(part, rank, true, &n);
        check_list(part, rank, false, &n);
        promise(n == part->n_batches && n <= part->report.n_batches);
        promise(ferry_schedule_get_idle(part, rank, &idle, &error) == FERRY_OK && idle >= 0);
    }
    ferry_schedule_destroy(part);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        read_part(data, 0, 0);
        return 0;
    }
    uint32_t rank = data[0] % N_RANKS;
    read_part(data + 1, size - 1, rank);
    uint8_t *hashed = malloc(HASH_BYTES + size);
    promise(hashed != NULL);
    fy_hash128 hash = fy_hash128_of(data + 1, size - 1);
    memcpy(hashed, &hash.low, sizeof hash.low);
    memcpy(hashed + sizeof hash.low, &hash.high, sizeof hash.high);
    memcpy(hashed + HASH_BYTES, data + 1, size - 1);
    read_part(hashed, HASH_BYTES + size - 1, rank);
    free(hashed);
    return 0;
}
