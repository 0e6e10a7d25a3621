/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What code that adds up stripes by itself must know of XXH3's state: the same in all builds. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/hash.h"

enum { STRIPE = 64 };

void fy_hasher_numbers(const fy_hasher *hasher, uint64_t numbers_out[8],
                       const unsigned char **secret_out)
{
    const XXH3_state_t *state = (const XXH3_state_t *)(const void *)hasher->state;
    memcpy(numbers_out, state->acc, sizeof state->acc);
    *secret_out = state->extSecret;
}

void fy_hasher_resume(fy_hasher *hasher, const uint64_t numbers[8], uint64_t n_stripes,
                      const void *last_stripe)
{
    XXH3_state_t *state = (XXH3_state_t *)(void *)hasher->state;
    memcpy(state->acc, numbers, sizeof state->acc);
    state->totalLen = n_stripes * STRIPE;
    state->nbStripesSoFar = (size_t)(n_stripes % state->nbStripesPerBlock);
    state->bufferedSize = 0;
    /* Fewer bytes than a stripe may follow: the last stripe of all then begins in this one. */
    memcpy(state->buffer + sizeof state->buffer - STRIPE, last_stripe, STRIPE);
}
