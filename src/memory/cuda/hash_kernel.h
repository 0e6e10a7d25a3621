/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * XXH3, included by kernels.h. A digest is eight numbers. A stripe of 64 bytes adds to
 * each what depends on the stripe and its place in its block alone, and behind every block of 16
 * stripes all are scrambled. So what a block adds is found for all blocks at once, by as many
 * threads as there are; only adding it and scrambling is done in order, a step for each 1,024
 * bytes. What is left behind the last whole block, and all of short inputs, is the host's:
 * digest.c. Digests of many short pieces of one length need no such care: digest_each.c.
 */
enum {
    HASH_STRIPE = 64,
    HASH_STRIPES = FY_CUDA_HASH_BLOCK / HASH_STRIPE,
    HASH_PAIRS = FY_CUDA_HASH_LANES / 2, /* units of a block */
    HASH_EACH = FY_CUDA_DIGESTED / HASH_STRIPE,
    HASH_AHEAD = 16 /* steps whose sums are under way together */
};

FY_DEVICE uint64_t hash_word(uint32_t low, uint32_t high)
{
    return (uint64_t)high << 32 | low;
}

/* The lower half of a word times its upper half. */
FY_DEVICE uint64_t hash_product(uint64_t word)
{
    return (uint64_t)(uint32_t)word * (uint32_t)(word >> 32);
}

FY_KERNEL(fy_cuda_hash_sums, fy_cuda_hash)
{
    for (uint32_t i = FY_BLOCK * FY_THREADS + FY_THREAD; i < a.n_units;
         i += FY_BLOCKS * FY_THREADS) {
        uint32_t pair = i % HASH_PAIRS;
        uint64_t at = a.from + (uint64_t)(i / HASH_PAIRS) * FY_CUDA_HASH_BLOCK + pair * 16;
        uint64_t even = 0, odd = 0;
        for (uint32_t s = 0; s < HASH_STRIPES; s += FY_CUDA_DEEP) {
            fy_v16 v[FY_CUDA_DEEP];
            FY_UNROLL
            for (uint32_t j = 0; j < FY_CUDA_DEEP; j++) {
                v[j] = fy_load16(at + (s + j) * HASH_STRIPE);
            }
            FY_UNROLL
            for (uint32_t j = 0; j < FY_CUDA_DEEP; j++) {
                uint64_t x = hash_word(v[j].x, v[j].y), y = hash_word(v[j].z, v[j].w);
                even += y + hash_product(x ^ a.secret[s + j + 2 * pair]); /* each has the other's */
                odd += x + hash_product(y ^ a.secret[s + j + 2 * pair + 1]);
            }
        }
        const uint32_t w[4] = {(uint32_t)even, (uint32_t)(even >> 32), (uint32_t)odd,
                               (uint32_t)(odd >> 32)};
        fy_store16(a.sums + (uint64_t)i * 16, v16_of(w));
    }
}

FY_DEVICE uint64_t hash_load(uint64_t at)
{
    fy_v8 v = fy_load8(at);
    return hash_word(v.x, v.y);
}

/* One number's sums of up to HASH_AHEAD blocks from `first` on. */
FY_DEVICE void hash_ahead(uint64_t sums, uint32_t first, uint32_t n, uint64_t out[HASH_AHEAD])
{
    FY_UNROLL
    for (uint32_t k = 0; k < HASH_AHEAD; k++) {
        uint64_t at = sums + (uint64_t)(first + k) * FY_CUDA_HASH_LANES * 8;
        out[k] = first + k < n ? hash_load(at) : 0;
    }
}

/* Sums are on their way while those before them are added. */
FY_KERNEL(fy_cuda_hash_chain, fy_cuda_chain)
{
    for (uint32_t i = FY_BLOCK * FY_THREADS + FY_THREAD; i < a.n_digests * FY_CUDA_HASH_LANES;
         i += FY_BLOCKS * FY_THREADS) {
        uint32_t digest = i / FY_CUDA_HASH_LANES, lane = i % FY_CUDA_HASH_LANES;
        uint32_t n = a.digests[digest].n_blocks;
        uint64_t sums = a.digests[digest].sums + lane * 8;
        uint64_t place = a.digests[digest].numbers + lane * 8;
        uint64_t number = a.digests[digest].begins != 0 ? a.begin[lane] : hash_load(place);
        uint64_t secret = a.secret[lane], here[HASH_AHEAD], next[HASH_AHEAD];
        hash_ahead(sums, 0, n, here);
        for (uint32_t first = 0; first < n; first += HASH_AHEAD) {
            hash_ahead(sums, first + HASH_AHEAD, n, next);
            FY_UNROLL
            for (uint32_t k = 0; k < HASH_AHEAD; k++) {
                if (first + k < n) {
                    number += here[k];
                    number = (number ^ number >> 47 ^ secret) * a.factor;
                }
            }
            FY_UNROLL
            for (uint32_t k = 0; k < HASH_AHEAD; k++) {
                here[k] = next[k];
            }
        }
        fy_v8 v = {(uint32_t)number, (uint32_t)(number >> 32)};
        fy_store8(place, v);
    }
}

/*
 * Two numbers of a digest of its own. It is short, and there are many: so nothing is in order but
 * the stripes of each, and the last one, which ends its block too, meets other words.
 */
FY_KERNEL(fy_cuda_hash_each, fy_cuda_each)
{
    for (uint32_t i = FY_BLOCK * FY_THREADS + FY_THREAD; i < a.n_units;
         i += FY_BLOCKS * FY_THREADS) {
        uint32_t lane = i % HASH_PAIRS * 2;
        uint64_t at = a.from + (uint64_t)(i / HASH_PAIRS) * FY_CUDA_DIGESTED + lane * 8;
        uint64_t even = a.begin[lane], odd = a.begin[lane + 1];
        for (uint32_t s = 0; s < HASH_EACH; s += FY_CUDA_DEEP) {
            fy_v16 v[FY_CUDA_DEEP];
            FY_UNROLL
            for (uint32_t j = 0; j < FY_CUDA_DEEP; j++) {
                v[j] = fy_load16(at + (s + j) * HASH_STRIPE);
            }
            FY_UNROLL
            for (uint32_t j = 0; j < FY_CUDA_DEEP; j++) {
                uint64_t x = hash_word(v[j].x, v[j].y), y = hash_word(v[j].z, v[j].w);
                uint32_t word = (s + j) % HASH_STRIPES + lane;
                bool is_last = s + j + 1 == HASH_EACH;
                even += y + hash_product(x ^ (is_last ? a.last[lane] : a.secret[word]));
                odd += x + hash_product(y ^ (is_last ? a.last[lane + 1] : a.secret[word + 1]));
            }
            uint32_t behind = s + FY_CUDA_DEEP;
            if (behind % HASH_STRIPES == 0 && behind < HASH_EACH) {
                even = (even ^ even >> 47 ^ a.scramble[lane]) * a.factor;
                odd = (odd ^ odd >> 47 ^ a.scramble[lane + 1]) * a.factor;
            }
        }
        const uint32_t w[4] = {(uint32_t)even, (uint32_t)(even >> 32), (uint32_t)odd,
                               (uint32_t)(odd >> 32)};
        fy_store16(a.numbers + (uint64_t)i * 16, v16_of(w));
    }
}
