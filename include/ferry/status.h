/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_STATUS_H
#define FERRY_STATUS_H

#include <ferry/export.h>

FERRY_BEGIN_DECLS

/*
 * Every status, its number and its sentence. MISUSE is a mistake in the calling program; every
 * other error is a fact about the input, the machine or the peers. Numbers never change; new ones
 * are appended, so a caller needs a default branch.
 */
#define FERRY_STATUS_MAP(X)                                                                        \
    X(OK, 0, "success")                                                                            \
    X(ERR_MISUSE, 1, "the call breaks the contract of the function")                               \
    X(ERR_INVALID_INPUT, 2, "the input is malformed or contradicts itself")                        \
    X(ERR_INVALID_PLAN, 3, "no exact plan exists for these layouts")                               \
    X(ERR_NO_MEMORY, 4, "memory could not be allocated")                                           \
    X(ERR_LIMIT, 5, "a number exceeds a limit of this version")                                    \
    X(ERR_IO, 6, "a file could not be read or written")                                            \
    X(ERR_DIGEST, 7, "a digest does not match")                                                    \
    X(ERR_UNSUPPORTED, 8, "this build or machine cannot do that")                                  \
    X(ERR_EXCHANGE, 9, "the caller's exchange of messages failed")                                 \
    X(ERR_PROOF, 10, "the plan does not do what the spec asks")                                    \
    X(ERR_STOPPED, 11, "a callback asked to stop")                                                 \
    X(ERR_PEER_LOST, 12, "a rank of the world was lost")                                           \
    X(ERR_TIMEOUT, 13, "a rank showed no progress before the deadline")                            \
    X(ERR_ABORTED, 14, "a rank ended the world")                                                   \
    X(ERR_DENIED, 15, "the other side did not prove the secret")                                   \
    X(ERR_DIFFERENT, 16, "two things that should be equal differ")

typedef enum ferry_status {
#define FERRY_STATUS_ENUM(name, number, text) FERRY_##name = number,
    FERRY_STATUS_MAP(FERRY_STATUS_ENUM)
#undef FERRY_STATUS_ENUM
} ferry_status;

#define FERRY_ERROR_BYTES 1024

/*
 * Caller-owned error text. Every function that can fail takes one, or NULL. It is written only when
 * the call fails: one sentence that names the thing, the numbers and, where there is one, the
 * remedy.
 */
typedef struct ferry_error {
    char message[FERRY_ERROR_BYTES];
} ferry_error;

/* The name of a status without its prefix, such as "ERR_IO"; "ERR_UNKNOWN" for any other number. */
FERRY_API const char *ferry_status_name(ferry_status status);

/* The general sentence of a status; never NULL. */
FERRY_API const char *ferry_status_text(ferry_status status);

FERRY_END_DECLS

#endif
