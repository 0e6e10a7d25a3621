/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_RENDEZVOUS_H
#define FY_WORLD_RENDEZVOUS_H

#include "world/meeting.h"

enum { FY_NOTICE_KEY_BYTES = 2 * FY_KEY_BYTES + 1, FY_NOTICE_BY_BYTES = 200 };

/* What a rendezvous file says. */
typedef struct fy_notice {
    uint32_t n_ranks;
    bool has_secret;
    char key[FY_NOTICE_KEY_BYTES];
    char by[FY_NOTICE_BY_BYTES];
    char addresses[FY_ADDRESSES_BYTES];
} fy_notice;

/* Of a whole file as a text, which is cut into lines; false where it is damaged. */
bool fy_notice_parse(char *text, fy_notice *notice_out);

#endif
