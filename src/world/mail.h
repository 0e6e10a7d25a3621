/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_MAIL_H
#define FY_WORLD_MAIL_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Messages that one rank has not received yet. They lie in order of arrival, and by sender as well:
 * a rank that waits for each of thousands in turn has letters of most of them already.
 */

/* A letter's place in a list. */
typedef struct fy_letter_link {
    struct fy_letter *next;
    struct fy_letter **at; /* what points to this one */
} fy_letter_link;

enum { FY_BY_ARRIVAL, FY_BY_SENDER, FY_LETTER_LISTS };

typedef struct fy_letter {
    fy_letter_link links[FY_LETTER_LISTS];
    uint64_t tag;
    size_t n_bytes;
    uint32_t from;
    _Alignas(max_align_t) unsigned char bytes[]; /* as from malloc, for who receives them */
} fy_letter;

typedef struct fy_letter_list {
    fy_letter *first;
    fy_letter **end; /* where the next one goes; of an empty list anything */
} fy_letter_list;

/* All zero is an empty one. It may not be moved while it has letters. */
typedef struct fy_mail {
    fy_letter_list all;
    fy_letter_list *holes; /* by sender: a power of two of them */
    size_t n_holes;
    size_t n;
    uint64_t bytes; /* that all of them take */
    uint64_t looks; /* at letters, ever: what it has cost to find them */
} fy_mail;

/* NULL: no memory. */
fy_letter *fy_letter_new(uint32_t from, uint64_t tag, const void *bytes, size_t n_bytes);
/* What a letter with so many bytes takes: also empty ones take room. */
uint64_t fy_letter_room(size_t n_bytes);

/* False: no memory, and the letter stays the caller's. */
bool fy_mail_add(fy_mail *mail, fy_letter *letter);
/* The first of this sender (FERRY_ANY_RANK: of any) and tag, for the caller to free; or NULL. */
fy_letter *fy_mail_take(fy_mail *mail, uint32_t from, uint64_t tag);
/* Frees the letters with tags from first to last. */
void fy_mail_forget(fy_mail *mail, uint64_t first, uint64_t last);
void fy_mail_cleanup(fy_mail *mail);

/* FERRY_ERR_TIMEOUT: what was waited for has not come. from: FERRY_ANY_RANK, where any could send
 * it. */
ferry_status fy_mail_fail_late(uint32_t from, uint64_t tag, int64_t limit_ns, ferry_error *error);

#endif
