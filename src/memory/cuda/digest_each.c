/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/digest.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "memory/cuda/late.h"
#include "memory/cuda/lower.h"
#include "memory/cuda/memory.h"
#include "memory/cuda/scratch.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

/*
 * Digests of 128 bits, of short pieces, each by itself. A kernel finds the eight numbers that each
 * piece comes to and leaves them in the staging, where the host makes a digest of them: 64 bytes
 * for 4,096. What is behind the last whole piece comes there as it is, and all of it does where the
 * device has no scratch.
 */
enum {
    PIECE = FY_CUDA_DIGESTED,
    NUMBERS_BYTES = FY_CUDA_HASH_LANES * 8,
    AT_ONCE = 128, /* pieces */
    STRIPE = 64,
    /* Which bytes of the secret numbers meet at the end, and from the secret's end the other way
     * round; and how far before that the last stripe's lie. */
    MERGED_FROM = 11,
    LAST_FROM = 7
};

_Static_assert((int)PIECE == (int)FY_DIGESTED_BYTES, "kernels make the verb's digests");
_Static_assert((AT_ONCE + 1) * PIECE <= FY_CUDA_STAGING_BYTES, "the staging holds it");
_Static_assert(AT_ONCE *PIECE <= FY_CUDA_PACKED_BYTES, "and so does the scratch");

typedef struct late_digests {
    fy_cuda_late late;
    char *out;
    size_t n;
    fy_exec_part parts[];
} late_digests;

/* What comes next of all parts. */
typedef struct reading {
    const fy_exec_part *part;
    uint64_t at; /* in the part */
} reading;

/*
 * The host's part
 */

typedef struct each_job {
    fy_cuda_job job;
    char *out;
    uint64_t n_pieces; /* whose numbers are in the staging */
    uint64_t bytes;    /* that are behind those, and have digests, too */
} each_job;

static void put_digest(char **out_inout, uint64_t low, uint64_t high)
{
    memcpy(*out_inout, &low, sizeof low);
    memcpy(*out_inout + sizeof low, &high, sizeof high);
    *out_inout += FY_DIGEST_BYTES;
}

static void run_each(fy_cuda_job *job, bool failed)
{
    const each_job *one = (const each_job *)job;
    const char *at = job->queue->staging;
    char *out = one->out;
    for (uint64_t i = 0; !failed && i < one->n_pieces; i++, at += NUMBERS_BYTES) {
        XXH_ALIGN(64) xxh_u64 numbers[FY_CUDA_HASH_LANES];
        const xxh_u8 *end = XXH3_kSecret + sizeof XXH3_kSecret;
        memcpy(numbers, at, sizeof numbers);
        put_digest(
            &out, XXH3_mergeAccs(numbers, XXH3_kSecret + MERGED_FROM, PIECE * XXH_PRIME64_1),
            XXH3_mergeAccs(numbers, end - NUMBERS_BYTES - MERGED_FROM, ~(PIECE * XXH_PRIME64_2)));
    }
    for (uint64_t n, left = failed ? 0 : one->bytes; left > 0; left -= n, at += n) {
        n = fy_min(left, PIECE);
        XXH128_hash_t hash = XXH3_128bits(at, (size_t)n);
        put_digest(&out, hash.low64, hash.high64);
    }
}

/*
 * The device's
 */

static void set_up(fy_cuda_each *one)
{
    XXH3_state_t state;
    const unsigned char *end = XXH3_kSecret + sizeof XXH3_kSecret;
    (void)XXH3_128bits_reset(&state);
    memcpy(one->begin, state.acc, sizeof one->begin);
    memcpy(one->secret, XXH3_kSecret, sizeof one->secret);
    memcpy(one->scramble, end - STRIPE, sizeof one->scramble);
    memcpy(one->last, end - STRIPE - LAST_FROM, sizeof one->last);
    one->factor = XXH_PRIME32_1;
}

static void take(reading *r, uint64_t n)
{
    r->at += n;
    if (r->at == r->part->bytes) {
        r->part++;
        r->at = 0;
    }
}

/* The next bytes, to memory without gaps, of the device or pinned. */
static ferry_status gather(fy_exec_queue *queue, reading *r, uint64_t bytes, uint64_t to,
                           ferry_error *error)
{
    for (uint64_t n; bytes > 0; bytes -= n, to += n) {
        const fy_exec_part *part = r->part;
        uint64_t first = part->first + r->at;
        n = fy_min(bytes, part->bytes - r->at);
        fy_area flat = fy_area_flat(0, first + n);
        if (n > 0) {
            FY_TRY(fy_cuda_move(queue, &flat, (void *)(uintptr_t)(to - first), &part->area,
                                part->base, first, n, error));
        }
        take(r, n);
    }
    return FERRY_OK;
}

/* Whether the next bytes can be read where they lie. */
static bool lie_flat(const reading *r, uint64_t bytes, uint64_t *address_out)
{
    const fy_exec_part *part = r->part;
    const fy_cuda_place place = {&part->area, (uint64_t)(uintptr_t)part->base};
    return part->bytes - r->at >= bytes &&
           fy_cuda_is_flat(place, part->first + r->at, bytes, address_out) &&
           *address_out % 16 == 0;
}

/* Whole pieces: their numbers, to the staging. */
static ferry_status launch(fy_exec_queue *queue, const fy_cuda_scratch *scratch, reading *r,
                           uint64_t n_pieces, ferry_error *error)
{
    fy_cuda_each one = {.numbers = (uint64_t)(uintptr_t)queue->staging,
                        .n_units = (uint32_t)(n_pieces * (FY_CUDA_HASH_LANES / 2))};
    uint64_t bytes = n_pieces * PIECE;
    if (lie_flat(r, bytes, &one.from)) {
        take(r, bytes);
    } else {
        one.from = scratch->packed;
        FY_TRY(gather(queue, r, bytes, one.from, error));
    }
    set_up(&one);
    FY_TRY(fy_cuda_launch(queue->device, queue->stream, FY_NUMBER_OF_fy_cuda_hash_each, &one,
                          one.n_units, 1, error));
    queue->n_issued++;
    return FERRY_OK;
}

/* scratch: NULL: there is none. */
static ferry_status digest_some(fy_exec_queue *queue, const fy_cuda_scratch *scratch, reading *r,
                                uint64_t bytes, char *out, ferry_error *error)
{
    uint64_t n_pieces = scratch == NULL ? 0 : bytes / PIECE, rest = bytes - n_pieces * PIECE;
    uint64_t behind = (uint64_t)(uintptr_t)queue->staging + n_pieces * NUMBERS_BYTES;
    if (n_pieces > 0) {
        FY_TRY(launch(queue, scratch, r, n_pieces, error));
    }
    FY_TRY(gather(queue, r, rest, behind, error));
    each_job *fresh = fy_alloc(1, sizeof *fresh);
    FY_TRY(fy_check_memory(fresh != NULL, "work on a CUDA queue", error));
    *fresh = (each_job){.out = out, .n_pieces = n_pieces, .bytes = rest};
    return fy_cuda_add_job(queue, &fresh->job, run_each, error);
}

/* As much at once as the staging has room for, in the stream's order. */
static ferry_status digest_all(fy_exec_queue *queue, const late_digests *all, ferry_error *error)
{
    fy_cuda_scratch scratch;
    bool has_scratch = fy_cuda_scratch_of(queue, &scratch);
    reading r = {.part = all->parts};
    uint64_t left = 0;
    char *out = all->out;
    for (size_t i = 0; i < all->n; i++) {
        left += all->parts[i].bytes;
    }
    for (uint64_t n; left > 0; left -= n, out += AT_ONCE * FY_DIGEST_BYTES) {
        n = fy_min(left, AT_ONCE * PIECE);
        FY_TRY(digest_some(queue, has_scratch ? &scratch : NULL, &r, n, out, error));
    }
    return FERRY_OK;
}

static ferry_status check(const fy_exec_queue *queue, const late_digests *all, ferry_error *error)
{
    for (size_t i = 0; i < all->n; i++) {
        const fy_exec_part *part = &all->parts[i];
        uint64_t begin, end;
        fy_cuda_reach reach;
        fy_area_hull(&part->area, &begin, &end);
        FY_TRY(
            fy_cuda_reach_of(queue->device, part->base, begin, end, queue->is_late, &reach, error));
        if (reach != FY_CUDA_OURS && part->bytes > 0) {
            return fy_fail(error, FERRY_ERR_MISUSE, "%p is no memory of a device's", part->base);
        }
    }
    return FERRY_OK;
}

static ferry_status perform(fy_exec_queue *queue, const fy_cuda_late *late, ferry_error *error)
{
    const late_digests *all = (const late_digests *)late;
    uint64_t before;
    FY_TRY(fy_cuda_begin_sound(queue, &before, error));
    ferry_status status = check(queue, all, error);
    FY_THEN(status, digest_all(queue, all, error));
    return fy_cuda_end(queue, before, status, error);
}

ferry_status fy_cuda_digests_of(fy_exec_queue *queue, const fy_exec_part *parts, size_t n,
                                char *digests_out, ferry_error *error)
{
    size_t bytes = sizeof(late_digests) + n * sizeof *parts;
    late_digests *all = fy_alloc(1, bytes);
    FY_TRY(fy_check_memory(all != NULL, "digests on a CUDA queue", error));
    *all = (late_digests){.late = {.perform = perform}, .out = digests_out, .n = n};
    memcpy(all->parts, parts, n * sizeof *parts);
    pthread_mutex_lock(&queue->calls);
    ferry_status status = fy_cuda_do(queue, &all->late, bytes, error);
    pthread_mutex_unlock(&queue->calls);
    fy_free(all);
    return status;
}
