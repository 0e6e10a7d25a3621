/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Word number w of the stream is a mix of w: two multiplications and three shifts that map 32 bits
 * one to one, so words differ as their numbers do. Eight of them are made at once.
 */
#include "run_pattern.h"

#include <stdlib.h>
#include <string.h>

enum {
    LANES = 8,
    WORD_BYTES = 4,
    STEP_BYTES = LANES * WORD_BYTES,
    BLOCK_STEPS = 64 /* between two looks at what differs */
};

/* Differs from 0 in every byte. */
static const uint32_t POISON = 0xa5c35a96;

typedef uint32_t lanes __attribute__((vector_size(STEP_BYTES)));
/* The same where memory is not aligned, and is of whatever type. */
typedef uint32_t loose __attribute__((vector_size(STEP_BYTES), aligned(1), may_alias));

/* Of the words whose number has the same upper half. */
typedef struct seeds {
    uint32_t before, after;
} seeds;

static uint64_t mix_64(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

run_key run_key_of(const char *tensor)
{
    uint64_t bits = 0x9e3779b97f4a7c15u;
    for (; *tensor != '\0'; tensor++) {
        bits = mix_64(bits + (unsigned char)*tensor);
    }
    return (run_key){.bits = mix_64(bits)};
}

static seeds seeds_of(run_key key, uint64_t word)
{
    uint64_t bits = mix_64(key.bits + (word >> 32) * 0x9e3779b97f4a7c15u);
    return (seeds){.before = (uint32_t)bits, .after = (uint32_t)(bits >> 32)};
}

/* For a word and for lanes of words alike. */
#define MIX(x, s)                                                                                  \
    do {                                                                                           \
        (x) += (s).before;                                                                         \
        (x) ^= (x) >> 16;                                                                          \
        (x) *= 0x21f0aaadu;                                                                        \
        (x) ^= (x) >> 15;                                                                          \
        (x) *= 0x735a2d97u;                                                                        \
        (x) ^= (x) >> 15;                                                                          \
        (x) ^= (s).after;                                                                          \
    } while (0)

uint8_t run_pattern_byte(run_key key, uint64_t at)
{
    uint64_t number = at / WORD_BYTES;
    uint32_t word = (uint32_t)number;
    seeds s = seeds_of(key, number);
    MIX(word, s);
    uint8_t byte = (uint8_t)(word >> 8 * (at % WORD_BYTES));
    bool has_exponent = key.is_scale && at % WORD_BYTES == WORD_BYTES - 1;
    return has_exponent ? (uint8_t)((byte & 0x3f) + 0x20) : byte;
}

/* ---- many words at once: the numbers stay below 2^32 ---- */

static inline __attribute__((always_inline)) void fill_steps(char *memory, seeds s, uint32_t first,
                                                             uint64_t n_steps, uint32_t flip)
{
    lanes number = {0, 1, 2, 3, 4, 5, 6, 7};
    number += first;
    for (uint64_t i = 0; i < n_steps; i++) {
        lanes x = number;
        MIX(x, s);
        x ^= flip;
        *(loose *)(memory + i * STEP_BYTES) = x;
        number += LANES;
    }
}

/* The number of steps before the block in which something differs. */
static inline __attribute__((always_inline)) uint64_t check_steps(const char *memory, seeds s,
                                                                  uint32_t first, uint64_t n_steps)
{
    lanes number = {0, 1, 2, 3, 4, 5, 6, 7};
    number += first;
    for (uint64_t begin = 0; begin < n_steps; begin += BLOCK_STEPS) {
        uint64_t end = n_steps - begin < BLOCK_STEPS ? n_steps : begin + BLOCK_STEPS;
        lanes differ = {0};
        for (uint64_t i = begin; i < end; i++) {
            lanes x = number;
            MIX(x, s);
            differ |= x ^ *(const loose *)(memory + i * STEP_BYTES);
            number += LANES;
        }
        uint32_t any = 0;
        for (int lane = 0; lane < LANES; lane++) {
            any |= differ[lane];
        }
        if (any != 0) {
            return begin;
        }
    }
    return n_steps;
}

static void fill_plainly(char *memory, seeds s, uint32_t first, uint64_t n_steps, uint32_t flip)
{
    fill_steps(memory, s, first, n_steps, flip);
}

static uint64_t check_plainly(const char *memory, seeds s, uint32_t first, uint64_t n_steps)
{
    return check_steps(memory, s, first, n_steps);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void fill_avx2(char *memory, seeds s, uint32_t first,
                                                      uint64_t n_steps, uint32_t flip)
{
    fill_steps(memory, s, first, n_steps, flip);
}

__attribute__((target("avx2"))) static uint64_t check_avx2(const char *memory, seeds s,
                                                           uint32_t first, uint64_t n_steps)
{
    return check_steps(memory, s, first, n_steps);
}

static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}
#else
#define fill_avx2 fill_plainly
#define check_avx2 check_plainly

static int has_avx2(void)
{
    return 0;
}
#endif

/* ---- any bytes ---- */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Bytes up to the next word that steps can begin with, n_bytes at most. */
static uint64_t head_bytes(uint64_t at, uint64_t n_bytes)
{
    return least((WORD_BYTES - at % WORD_BYTES) % WORD_BYTES, n_bytes);
}

/* Steps from a whole word on, until the bytes or the numbers of 32 bits end. */
static uint64_t count_steps(run_key key, uint64_t at, uint64_t n_bytes)
{
    uint64_t number = at / WORD_BYTES;
    return key.is_scale
               ? 0
               : least(n_bytes / STEP_BYTES, (((uint64_t)1 << 32) - (uint32_t)number) / LANES);
}

static void fill_bytes(char *memory, run_key key, uint64_t at, uint64_t n_bytes, uint32_t flip)
{
    for (uint64_t i = 0; i < n_bytes; i++) {
        uint64_t here = at + i;
        memory[i] = (char)(run_pattern_byte(key, here) ^ flip >> 8 * (here % WORD_BYTES));
    }
}

static uint64_t check_bytes(const char *memory, run_key key, uint64_t at, uint64_t n_bytes)
{
    for (uint64_t i = 0; i < n_bytes; i++) {
        if ((uint8_t)memory[i] != run_pattern_byte(key, at + i)) {
            return i;
        }
    }
    return n_bytes;
}

void run_pattern_fill(void *memory, run_key key, uint64_t at, uint64_t n_bytes, int poison)
{
    uint32_t flip = poison ? POISON : 0;
    char *to = memory;
    for (uint64_t done = 0; done < n_bytes;) {
        uint64_t bytes = head_bytes(at + done, n_bytes - done);
        uint64_t steps = bytes > 0 ? 0 : count_steps(key, at + done, n_bytes - done);
        if (steps > 0) {
            uint64_t number = (at + done) / WORD_BYTES;
            seeds s = seeds_of(key, number);
            bytes = steps * STEP_BYTES;
            (has_avx2() ? fill_avx2 : fill_plainly)(to + done, s, (uint32_t)number, steps, flip);
        } else {
            bytes = bytes > 0 ? bytes : least(STEP_BYTES, n_bytes - done);
            fill_bytes(to + done, key, at + done, bytes, flip);
        }
        done += bytes;
    }
}

uint64_t run_pattern_check(const void *memory, run_key key, uint64_t at, uint64_t n_bytes)
{
    const char *from = memory;
    for (uint64_t done = 0; done < n_bytes;) {
        uint64_t bytes = head_bytes(at + done, n_bytes - done);
        uint64_t steps = bytes > 0 ? 0 : count_steps(key, at + done, n_bytes - done);
        uint64_t right;
        if (steps > 0) {
            uint64_t number = (at + done) / WORD_BYTES;
            seeds s = seeds_of(key, number);
            right =
                (has_avx2() ? check_avx2 : check_plainly)(from + done, s, (uint32_t)number, steps) *
                STEP_BYTES;
            bytes = steps * STEP_BYTES;
        } else {
            bytes = bytes > 0 ? bytes : least(STEP_BYTES, n_bytes - done);
            right = 0;
        }
        if (right < bytes) { /* a block with a wrong byte, or bytes that are few anyway */
            right += check_bytes(from + done + right, key, at + done + right, bytes - right);
        }
        if (right < bytes) {
            return done + right;
        }
        done += bytes;
    }
    return n_bytes;
}
