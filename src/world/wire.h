/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_WIRE_H
#define FY_WORLD_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/*
 * The control messages between processes, and how numbers travel in them: little endian, no
 * padding. Readers stick: after one read too many everything reads as zero and ok is false, so a
 * message is checked once, at its end. A number has a fixed width, so that a head is as long before
 * it is written as after it; those of plans and services (fy_pack and fy_reader of model/roster.h),
 * which are many and mostly small, take as many bytes as they need.
 */
typedef enum fy_wire_type {
    FY_WIRE_KNOCK = 15,    /* to the root: which world do you make? */
    FY_WIRE_WORLD = 16,    /* from the root: its name, by which the ranks of a node meet */
    FY_WIRE_JOIN = 1,      /* to the root: who I am, what I believe, where I listen */
    FY_WIRE_PLACE = 2,     /* from the root: who your parent is */
    FY_WIRE_ATTACH = 3,    /* to the parent: I am your child */
    FY_WIRE_ATTACHED = 4,  /* to the root: my parent has me */
    FY_WIRE_TABLE = 5,     /* down: who is where */
    FY_WIRE_FAIL = 6,      /* everywhere: the world has failed */
    FY_WIRE_UP = 7,        /* up: a subtree's part of a collective */
    FY_WIRE_DOWN = 8,      /* down: the result of a collective */
    FY_WIRE_SEND = 9,      /* a small message, on its way */
    FY_WIRE_BEAT = 10,     /* a sign of life */
    FY_WIRE_LEAVE = 11,    /* up: my whole subtree leaves */
    FY_WIRE_DONE = 12,     /* down: everybody has left */
    FY_WIRE_QUERY = 13,    /* who has not entered the collective? */
    FY_WIRE_MISSING = 14,  /* the answer, on its way to who asked */
    FY_WIRE_ASK = 17,      /* to anybody's door: how far is this world with you? */
    FY_WIRE_STANDING = 18, /* the answer; from a world that has failed also why */
    FY_WIRE_NEWS = 19,     /* to anybody's door: this world has failed, and the tree may be cut */
    FY_WIRE_WHERE = 20,    /* in the tree: where are you? A small message answers */
} fy_wire_type;

typedef struct fy_wire_reader {
    const unsigned char *bytes;
    size_t left;
    bool ok;
} fy_wire_reader;

static inline fy_wire_reader fy_wire_reader_of(const void *bytes, size_t n_bytes)
{
    return (fy_wire_reader){.bytes = bytes, .left = n_bytes, .ok = true};
}

static inline const unsigned char *fy_wire_read_bytes(fy_wire_reader *reader, size_t n_bytes)
{
    if (!reader->ok || reader->left < n_bytes) {
        reader->ok = false;
        return NULL;
    }
    const unsigned char *at = reader->bytes;
    reader->bytes += n_bytes;
    reader->left -= n_bytes;
    return at;
}

static inline uint64_t fy_wire_read_number(fy_wire_reader *reader, size_t n_bytes)
{
    const unsigned char *at = fy_wire_read_bytes(reader, n_bytes);
    uint64_t value = 0;
    for (size_t i = 0; at != NULL && i < n_bytes; i++) {
        value |= (uint64_t)at[i] << (8 * i);
    }
    return value;
}

static inline uint32_t fy_wire_read_u32(fy_wire_reader *reader)
{
    return (uint32_t)fy_wire_read_number(reader, 4);
}

static inline uint64_t fy_wire_read_u64(fy_wire_reader *reader)
{
    return fy_wire_read_number(reader, 8);
}

/* A text with its length before it, at most text_bytes - 1 long. */
static inline void fy_wire_read_text(fy_wire_reader *reader, char *text, size_t text_bytes)
{
    uint32_t length = fy_wire_read_u32(reader);
    const unsigned char *at = fy_wire_read_bytes(reader, length);
    if (at == NULL || length >= text_bytes || memchr(at, 0, length) != NULL) {
        reader->ok = false;
        text[0] = '\0';
        return;
    }
    memcpy(text, at, length);
    text[length] = '\0';
}

/* Writes into a buffer that the caller knows to be large enough. */
typedef struct fy_wire_packer {
    unsigned char *bytes;
    size_t used;
} fy_wire_packer;

static inline void fy_wire_pack_number(fy_wire_packer *packer, uint64_t value, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        packer->bytes[packer->used++] = (unsigned char)(value >> (8 * i));
    }
}

static inline void fy_wire_pack_u32(fy_wire_packer *packer, uint32_t value)
{
    fy_wire_pack_number(packer, value, 4);
}

static inline void fy_wire_pack_u64(fy_wire_packer *packer, uint64_t value)
{
    fy_wire_pack_number(packer, value, 8);
}

static inline void fy_wire_pack_text(fy_wire_packer *packer, const char *text)
{
    size_t length = strlen(text);
    fy_wire_pack_u32(packer, (uint32_t)length);
    memcpy(packer->bytes + packer->used, text, length);
    packer->used += length;
}

#endif
