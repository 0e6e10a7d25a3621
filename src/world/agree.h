/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_AGREE_H
#define FY_WORLD_AGREE_H

#include "base/bytes.h"
#include "base/status.h"
#include "world/world.h"

/*
 * How ranks agree: each brings how it fared and some fields, and all get one answer. What the ranks
 * of a subtree brought is merged on its way up (agreement.c), so a message is as long in a world of
 * thousands as in one of two.
 */
typedef enum fy_how {
    FY_SAME,   /* must be the same on all ranks that have one */
    FY_LEAST,  /* the least of all */
    FY_MOST,   /* the largest of all */
    FY_SUM,    /* modulo 2^64 */
    FY_AND,    /* bits that all have */
    FY_RANK_0, /* that of rank 0 */
    FY_N_HOWS
} fy_how;

enum { FY_MOST_FIELDS = 40, FY_FIELD_TEXT_BYTES = 256, FY_AGREEMENT_BYTES = 8192 };

typedef struct fy_field {
    const char *name; /* for the sentence, where FY_SAME is not: "<name> is 1 on rank 0 and ..." */
    uint64_t value;   /* this rank's, then everybody's */
    fy_how how;
    const char *text;   /* FY_SAME: compared in place of value; shorter than FY_FIELD_TEXT_BYTES */
    char *text_out;     /* NULL, or FY_FIELD_TEXT_BYTES for what they said; "" where none has one */
    bool has_none;      /* FY_SAME: this rank has no value; what others say is not its concern */
    const char *remedy; /* behind the sentence; NULL: ": it must be the same on all ranks" */
    ferry_status status; /* of a difference; FERRY_OK: FERRY_ERR_INVALID_INPUT */
} fy_field;

/*
 * Collective: one step of `call` on `object`; the same fields in the same order on all ranks.
 * status and *error are this rank's, then everybody's: the first rank's that has failed, with
 * "rank N: " before its sentence; else the first field that is not the same. Fields have their
 * values where FERRY_OK is returned.
 */
ferry_status fy_agree_on(ferry_world *world, fy_joint_call call, uint64_t object, fy_field *fields,
                         size_t n, ferry_status status, ferry_error *error);

/* The same without fields, as a step of the call that this rank is in. */
ferry_status fy_agree(ferry_world *world, ferry_status status, ferry_error *error);

/*
 * agreement.c: what travels.
 */

/* One rank's, into memory of FY_AGREEMENT_BYTES. */
void fy_agreement_pack(uint32_t rank, const fy_field *fields, size_t n, ferry_status status,
                       const char *sentence, fy_pack *out);
/* Puts what `from` and the ranks behind it brought to what is there. A message that makes no sense
 * counts as a failure of `from`. */
void fy_agreement_merge(fy_pack *into, const void *bytes, size_t n_bytes, uint32_t from);
/* The answer: what is there when all ranks' are merged. */
ferry_status fy_agreement_read(const void *bytes, size_t n_bytes, fy_field *fields, size_t n,
                               ferry_error *error);

#endif
