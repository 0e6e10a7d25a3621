/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_BYTES_H
#define FY_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Messages as bytes: the one place that knows how numbers and texts travel. Both ends stick: after
 * one write too many, or one read, nothing more happens and `failed` is set, so a message is looked
 * at once, at its end.
 *
 * A number takes as many bytes as it needs: little groups of seven bits, so small ones cost one.
 * Where a head must be as long before it is written as after it, there are numbers of a fixed
 * width, little endian.
 */
typedef struct fy_pack {
    unsigned char *bytes;
    size_t used;
    size_t capacity;
    bool failed;
    bool borrowed; /* the bytes are somebody's, of a fixed capacity */
} fy_pack;

/* Into memory of the caller's; there is nothing to clean up. */
static inline fy_pack fy_pack_into(void *bytes, size_t capacity)
{
    return (fy_pack){.bytes = bytes, .capacity = capacity, .borrowed = true};
}

void fy_pack_number(fy_pack *out, uint64_t value);
void fy_pack_u32(fy_pack *out, uint32_t value);
void fy_pack_u64(fy_pack *out, uint64_t value);
void fy_pack_bytes(fy_pack *out, const void *bytes, size_t n_bytes);
void fy_pack_text(fy_pack *out, const char *text); /* its length before it */
void fy_pack_cleanup(fy_pack *out);

/*
 * The lengths of as many messages without a byte: for a rank 0 that has no memory for a list of its
 * own, but must take part in a scatter. NULL for more than 65,536 ranks.
 */
const size_t *fy_no_lengths(uint32_t n_ranks);

typedef struct fy_reader {
    const unsigned char *at;
    const unsigned char *end;
    bool failed; /* something was missing or out of range */
} fy_reader;

static inline fy_reader fy_reader_of(const void *bytes, size_t n_bytes)
{
    const unsigned char *at = bytes == NULL ? (const unsigned char *)"" : bytes;
    return (fy_reader){.at = at, .end = at + n_bytes};
}

static inline size_t fy_read_left(const fy_reader *in)
{
    return (size_t)(in->end - in->at);
}

/* Whether all was there, and nothing follows. */
static inline bool fy_read_all(const fy_reader *in)
{
    return !in->failed && in->at == in->end;
}

/* At most `most`; 0 once anything has failed. */
uint64_t fy_read_number(fy_reader *in, uint64_t most);
uint32_t fy_read_u32(fy_reader *in);
uint64_t fy_read_u64(fy_reader *in);
const unsigned char *fy_read_bytes(fy_reader *in, size_t n_bytes); /* NULL if they are not there */
/* Borrowed; not zero ended. */
const char *fy_read_text(fy_reader *in, size_t *length_out);
/* A copy that is: at most text_bytes - 1 long, and without a zero in it. */
void fy_read_string(fy_reader *in, char *text, size_t text_bytes);

#endif
