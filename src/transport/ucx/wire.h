/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_UCX_WIRE_H
#define FY_UCX_WIRE_H

#include <stddef.h>
#include <stdint.h>

/*
 * The active messages. Each has this header, cut behind what its kind needs, and perhaps a body.
 * All ranks of a world run the same version on the same architecture (the meeting checks that), so
 * the bytes are the struct's.
 */
typedef struct fy_ucx_header {
    uint32_t source; /* rank */
    uint16_t kind;   /* fy_ucx_kind */
    uint16_t after;  /* fy_ucx_after, of a PUT; of a GET 1: its GOT must be a rendezvous */
    uint64_t number; /* of a PUT: its place in the order; else which question this answers */
    uint64_t region;
    uint64_t offset;
    /* What follows a PUT; bytes asked for by a GET and the owner's base in a KEY are in value. */
    uint64_t after_region;
    uint64_t after_offset;
    uint64_t value;
} fy_ucx_header;

enum {
    FY_UCX_SHORT_HEADER = offsetof(fy_ucx_header, after_region),
    FY_UCX_HEADER_BYTES = sizeof(fy_ucx_header),
    FY_UCX_MESSAGE_ID = 1, /* of UCX: all kinds share a handler */
};

typedef enum fy_ucx_kind {
    FY_UCX_PUT = 1,      /* ordered: the body goes to offset of region; may be empty */
    FY_UCX_REACHED = 2,  /* answers a PUT with FY_UCX_ANSWER: value is the PUT's */
    FY_UCX_GET = 3,      /* asks for value bytes at offset of region */
    FY_UCX_GOT = 4,      /* the body is what GET number asked for */
    FY_UCX_ASK_KEY = 5,  /* asks for what RMA needs to reach region */
    FY_UCX_KEY = 6,      /* answers: the body is a packed key, or empty if there is none */
    FY_UCX_FAREWELL = 7, /* the source closes in good order: its silence is no death */
    FY_UCX_HELLO = 8,    /* the source can be sent something; this and the next in meet.c */
    FY_UCX_NAMED = 9,    /* and by any of UCX's ways */
} fy_ucx_kind;

#endif
