/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_STEPS_H
#define FERRY_TOOL_STEPS_H

#include <ferry/status.h>

/* Steps that may fail, as the library's own sources say them: the command sees only its headers. */

/* The call, and the end of this function if it fails: where nothing is to be released. */
#define FY_TRY(call)                                                                               \
    do {                                                                                           \
        ferry_status fy_tried = (call);                                                            \
        if (fy_tried != FERRY_OK) {                                                                \
            return fy_tried;                                                                       \
        }                                                                                          \
    } while (0)

/* The call, unless something failed before: where the end of this function releases something. */
#define FY_THEN(status, call)                                                                      \
    do {                                                                                           \
        if ((status) == FERRY_OK) {                                                                \
            (status) = (call);                                                                     \
        }                                                                                          \
    } while (0)

#endif
