/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_SHARED_PAGE_H
#define FY_WORLD_SHARED_PAGE_H

#include "base/status.h"
#include "world/bell.h"
#include "world/gate.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Memory that the ranks of a node share from the start: the proof that they are on one machine, the
 * bells they sleep on, and their barrier. One rank, whichever comes first, makes it and passes it
 * to the others (node_socket.h). It has a slot for every rank of the world, but pages come into
 * being only where ranks of this node write.
 */

/* 128 bytes: two cache lines, for processors that fetch in pairs. */
typedef struct fy_shared_page_slot {
    fy_bell bell;
    _Atomic uint64_t entered;   /* fy_shared_page_word */
    _Atomic uint32_t pid;       /* 0: not here */
    _Atomic uint64_t pid_space; /* the namespace in which pid is its number */
    _Atomic uint64_t call;      /* which call has entered it, and on what: see fy_joint */
    _Atomic uint64_t object;
    fy_gate gate;
    unsigned char unused[72];
} fy_shared_page_slot;
_Static_assert(sizeof(fy_shared_page_slot) == 128, "a slot has cache lines of its own");

typedef struct fy_shared_page {
    uint64_t magic;
    uint64_t id[2]; /* random: ranks that read the same one share memory */
    uint32_t n_slots;
    uint32_t host; /* the slot of the rank that made it */
    unsigned char space0[96];
    /* How many ranks have entered barriers, ever; and how many barriers are over. */
    _Atomic uint64_t arrived;
    _Atomic uint64_t marks[2]; /* what ranks have brought to barriers: see collect.c */
    unsigned char space1[104];
    _Atomic uint64_t released;
    fy_bell bell; /* of those that wait for a barrier's end */
    unsigned char space2[112];
    fy_shared_page_slot slots[];
} fy_shared_page;
_Static_assert(offsetof(fy_shared_page, slots) == 384,
               "the counters have cache lines of their own");

/* An anonymous file with a shared page in it, and its mapping. */
ferry_status fy_shared_page_create(uint32_t n_slots, int *fd_out, fy_shared_page **page_out,
                                   ferry_error *error);
/*
 * Maps a shared page that somebody else made; FERRY_ERR_INVALID_INPUT if it is none. What it says
 * of its length is read here and nowhere else: all who share it can write to it.
 */
ferry_status fy_shared_page_map(int fd, fy_shared_page **page_out, uint32_t *n_slots_out,
                                ferry_error *error);
void fy_shared_page_unmap(fy_shared_page *page, uint32_t n_slots);

/* Writes this process's pid and namespace into its slot. */
void fy_shared_page_sign(fy_shared_page *page, uint32_t slot);
/* The pid of a slot's process as this process sees it; 0 if it is not here or not to be seen. */
int32_t fy_shared_page_pid(const fy_shared_page *page, uint32_t slot);

/* A collective's number and kind in one word, so that both are seen together. */
static inline uint64_t fy_shared_page_word(uint64_t number, uint32_t kind)
{
    return number << 8 | kind;
}

static inline uint64_t fy_shared_page_number(uint64_t word)
{
    return word >> 8;
}

static inline uint32_t fy_shared_page_kind(uint64_t word)
{
    return (uint32_t)(word & 0xff);
}

#endif
