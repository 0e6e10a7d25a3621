/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_COLLECTIVE_LIBRARY_STATE_H
#define FY_COLLECTIVE_LIBRARY_STATE_H

#include "collective/library.h"

/* How far a call is. */
typedef enum fy_mix_library_phase {
    FY_MIX_LIBRARY_IDLE = 0, /* none is under way, or its ranks do not all know of each other yet */
    FY_MIX_LIBRARY_MET,      /* they do, and it waits for its turn */
    FY_MIX_LIBRARY_STEPS,    /* some are on the queue */
    FY_MIX_LIBRARY_MARKED    /* all are */
} fy_mix_library_phase;

/* What a handle has of a library: made by library_open.c, used by library.c. */
struct fy_mix_library {
    fy_mix_device on;
    const fy_circles *circles;
    fy_circle *members[FY_MIX_N_GROUPS]; /* NULL: there is none, or it was closed */
    const char *name;                    /* for ever */
    const fy_mix_program *program;       /* the handle's */
    const fy_settings *settings;
    ferry_buffer between; /* what lies between two steps */
    /* Of a call. */
    uint64_t number;
    ferry_mixed_tensor in, out;
    uint64_t n_elements; /* of a piece */
    uint32_t op;
    fy_mix_steps steps;
    fy_mix_library_phase phase;
    fy_mix_tensor_use use[2];
    uint32_t at;              /* the step at hand */
    bool is_called;           /* the library has it, and it is not known to be on the queue */
    bool has_rung;            /* it will be said when the call is over */
    fy_ticket before, ticket; /* of what lies before it on the queue; of its end */
    int64_t since_ns, looked_ns;
};

/* A step on the queue; FERRY_ERR_TIMEOUT without a sentence: not yet. */
ferry_status fy_mix_library_put(fy_mix_library *library, const fy_mix_step *step,
                                ferry_error *error);
/* Ends what is under way: no call comes after it. */
void fy_mix_library_abort(fy_mix_library *library);

#endif
