/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/digest.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "memory/cuda/lower.h"
#include "memory/cuda/scratch.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

/*
 * The device has whole blocks. A digest's slot, in pinned memory, gets the numbers that these come
 * to, and the bytes behind them: at least one, for what is last counts otherwise. With the last
 * stripe before those it is all that XXH3 needs to go on as if it had seen the rest.
 */
enum {
    BLOCK = FY_CUDA_HASH_BLOCK,
    STRIPE = 64,
    GRAIN = 64, /* bytes in a slot lie as they do in their area: so copies go in wide units */
    NUMBERS_BYTES = FY_CUDA_HASH_LANES * 8,
    MOST_BLOCKS = FY_CUDA_SUMS_BYTES / NUMBERS_BYTES /* whose sums there is room for */
};

_Static_assert(NUMBERS_BYTES + GRAIN + STRIPE + BLOCK <= FY_CUDA_SLOT_BYTES, "a slot holds it");
_Static_assert(FY_CUDA_PACKED_BYTES % BLOCK == 0, "what is packed is whole blocks");
_Static_assert(FY_CUDA_HASH_SECRETS * 8 <= XXH3_SECRET_DEFAULT_SIZE, "the secret has as much");

static uint64_t blocks_of(uint64_t bytes)
{
    return bytes == 0 ? 0 : (bytes - 1) / BLOCK;
}

/* The first byte that a slot has of bytes from `first` on. */
static uint64_t slot_begin(uint64_t first, uint64_t bytes)
{
    uint64_t n = blocks_of(bytes);
    return n > 0 ? first + n * BLOCK - STRIPE : first;
}

/* And where in the slot it lies. */
static char *place_in(char *slot, uint64_t begin)
{
    return slot + NUMBERS_BYTES + begin % GRAIN;
}

static char *slot_of(const fy_exec_queue *queue, uint32_t number)
{
    return queue->slots + (size_t)number * FY_CUDA_SLOT_BYTES;
}

/*
 * The host's part
 */

typedef struct digest_job {
    fy_cuda_job job;
    fy_cuda_digests digests; /* all but the launch */
} digest_job;

static uint64_t end_digest(char *slot, uint64_t first, uint64_t bytes)
{
    XXH3_state_t state;
    uint64_t n = blocks_of(bytes);
    const char *rest = place_in(slot, slot_begin(first, bytes));
    (void)XXH3_64bits_reset(&state);
    if (n > 0) {
        memcpy(state.acc, slot, sizeof state.acc);
        state.totalLen = n * BLOCK;
        memcpy(state.buffer + sizeof state.buffer - STRIPE, rest, STRIPE);
        rest += STRIPE;
    }
    (void)XXH3_64bits_update(&state, rest, (size_t)(bytes - n * BLOCK));
    return XXH3_64bits_digest(&state);
}

static void run_digests(fy_cuda_job *job, bool failed)
{
    const fy_cuda_digests *d = &((const digest_job *)job)->digests;
    for (uint32_t i = 0; !failed && i < d->n; i++) {
        *d->out[i] = end_digest(slot_of(job->queue, i), d->first[i], d->bytes[i]);
    }
}

/*
 * The device's
 */

static void set_up(fy_cuda_chain *chain)
{
    XXH3_state_t state;
    (void)XXH3_64bits_reset(&state);
    memcpy(chain->begin, state.acc, sizeof chain->begin);
    memcpy(chain->secret, state.extSecret + state.secretLimit, sizeof chain->secret);
    chain->factor = XXH_PRIME32_1;
}

/* Digests go on over all blocks whose sums are there. */
static ferry_status go_on(fy_exec_queue *queue, ferry_error *error)
{
    fy_cuda_digests *d = &queue->digests;
    uint32_t n = d->chain.n_digests;
    if (n == 0) {
        return FERRY_OK;
    }
    set_up(&d->chain);
    ferry_status status =
        fy_cuda_launch(queue->device, queue->stream, FY_NUMBER_OF_fy_cuda_hash_chain, &d->chain,
                       (uint64_t)n * FY_CUDA_HASH_LANES, 1, error);
    queue->n_issued += status == FERRY_OK;
    d->chain.n_digests = 0;
    d->n_blocks = 0;
    return status;
}

static ferry_status end_all(fy_exec_queue *queue, ferry_error *error)
{
    fy_cuda_digests *d = &queue->digests;
    digest_job *fresh = fy_alloc(1, sizeof *fresh);
    ferry_status status = fy_check_memory(fresh != NULL, "work on a CUDA queue", error);
    FY_THEN(status, go_on(queue, error));
    if (status == FERRY_OK) {
        fresh->digests = *d;
    }
    fy_cuda_forget_digests(queue); /* before the job, which would end them, too */
    if (status != FERRY_OK) {
        fy_free(fresh);
        return status;
    }
    return fy_cuda_add_job(queue, &fresh->job, run_digests, error);
}

ferry_status fy_cuda_end_digests(fy_exec_queue *queue, ferry_error *error)
{
    ferry_error why;
    if (queue->digests.n == 0) {
        return FERRY_OK;
    }
    ferry_status status = end_all(queue, &why);
    if (status != FERRY_OK) {
        fy_cuda_remember(queue, status, &why);
        if (error != NULL) {
            *error = why;
        }
    }
    return status;
}

void fy_cuda_forget_digests(fy_exec_queue *queue)
{
    queue->digests.n = 0;
    queue->digests.n_blocks = 0;
    queue->digests.chain.n_digests = 0;
}

/* Bytes of a side to memory without gaps, of the device or pinned. */
static ferry_status gather(fy_exec_queue *queue, const fy_cuda_side_of *from, uint64_t first,
                           uint64_t bytes, uint64_t to, ferry_error *error)
{
    fy_area flat = fy_area_flat(0, first + bytes);
    return fy_cuda_move(queue, &flat, (void *)(uintptr_t)(to - first), from->area, from->base,
                        first, bytes, error);
}

/* The last digest that was begun, over n_blocks more that lie side by side. */
static ferry_status sum_blocks(fy_exec_queue *queue, uint64_t from, CUdeviceptr sums,
                               uint32_t n_blocks, bool begins, ferry_error *error)
{
    fy_cuda_digests *d = &queue->digests;
    fy_cuda_chain *chain = &d->chain;
    uint64_t numbers = (uint64_t)(uintptr_t)slot_of(queue, d->n - 1);
    fy_cuda_hash one = {.from = from,
                        .sums = sums + (uint64_t)d->n_blocks * NUMBERS_BYTES,
                        .n_units = n_blocks * (FY_CUDA_HASH_LANES / 2)};
    memcpy(one.secret, XXH3_kSecret, sizeof one.secret);
    FY_TRY(fy_cuda_launch(queue->device, queue->stream, FY_NUMBER_OF_fy_cuda_hash_sums, &one,
                          one.n_units, 1, error));
    queue->n_issued++;
    fy_cuda_digest *last = chain->n_digests > 0 ? &chain->digests[chain->n_digests - 1] : NULL;
    if (last != NULL && last->numbers == numbers) { /* their sums lie behind its others */
        last->n_blocks += n_blocks;
    } else {
        chain->digests[chain->n_digests++] = (fy_cuda_digest){
            .sums = one.sums, .numbers = numbers, .n_blocks = n_blocks, .begins = begins};
    }
    d->n_blocks += n_blocks;
    return FERRY_OK;
}

static ferry_status sum_all(fy_exec_queue *queue, const fy_cuda_scratch *scratch,
                            const fy_cuda_side_of *from, uint64_t first, uint64_t n_blocks,
                            ferry_error *error)
{
    const fy_cuda_place place = {from->area, (uint64_t)(uintptr_t)from->base};
    uint64_t address = 0;
    bool is_flat = n_blocks == 0 || fy_cuda_is_flat(place, first, n_blocks * BLOCK, &address);
    is_flat = is_flat && address % 16 == 0;
    for (uint64_t done = 0, n; done < n_blocks; done += n) {
        if (queue->digests.n_blocks == MOST_BLOCKS) {
            FY_TRY(go_on(queue, error));
        }
        n = fy_min(n_blocks - done, MOST_BLOCKS - queue->digests.n_blocks);
        uint64_t at = address + done * BLOCK;
        if (!is_flat) {
            n = fy_min(n, FY_CUDA_PACKED_BYTES / BLOCK);
            at = scratch->packed;
            FY_TRY(gather(queue, from, first + done * BLOCK, n * BLOCK, at, error));
        }
        FY_TRY(sum_blocks(queue, at, scratch->sums, (uint32_t)n, done == 0, error));
    }
    return FERRY_OK;
}

/* Nobody waits for it: its slot is the next one's. */
static void give_up_last(fy_exec_queue *queue)
{
    fy_cuda_digests *d = &queue->digests;
    const char *slot = slot_of(queue, --d->n);
    uint32_t n = d->chain.n_digests;
    if (n > 0 && d->chain.digests[n - 1].numbers == (uint64_t)(uintptr_t)slot) {
        d->chain.n_digests--;
    }
}

/* The next slot is the digest's. */
static ferry_status begin_digest(fy_exec_queue *queue, const fy_cuda_scratch *scratch,
                                 const fy_cuda_side_of *from, uint64_t first, uint64_t bytes,
                                 uint64_t *hash_out, ferry_error *error)
{
    fy_cuda_digests *d = &queue->digests;
    uint64_t begin = slot_begin(first, bytes), n = first + bytes - begin;
    char *place = place_in(slot_of(queue, d->n), begin);
    d->bytes[d->n] = bytes;
    d->first[d->n] = first;
    d->out[d->n++] = hash_out;
    ferry_status status = sum_all(queue, scratch, from, first, blocks_of(bytes), error);
    if (status == FERRY_OK && n > 0) {
        status = gather(queue, from, begin, n, (uint64_t)(uintptr_t)place, error);
    }
    if (status != FERRY_OK) {
        give_up_last(queue);
    }
    return status;
}

ferry_status fy_cuda_hash_side(fy_exec_queue *queue, const fy_cuda_side_of *from, uint64_t first,
                               uint64_t bytes, uint64_t *hash_out, ferry_error *error)
{
    fy_cuda_scratch scratch;
    if (!from->is_device || !fy_cuda_scratch_of(queue, &scratch)) {
        fy_cuda_side_of here = *from;
        here.is_reached = from->is_device; /* the host reads what is pinned where it lies */
        return fy_cuda_stage_hash(queue, &here, first, bytes, hash_out, error);
    }
    if (queue->digests.n == FY_CUDA_MOST_DIGESTS) {
        FY_TRY(fy_cuda_end_digests(queue, error));
    }
    return begin_digest(queue, &scratch, from, first, bytes, hash_out, error);
}
