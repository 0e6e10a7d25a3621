/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/meeting.h"

#include "world/auth.h"

#include <sodium.h>
#include <string.h>
#include <unistd.h>

/*
 * Two steps, so that a secret may be of any length: BLAKE2b takes keys of at most 64 bytes. The
 * names keep a meeting with a secret apart from every one without.
 */
void fy_meeting_key(fy_meeting *meeting, const char *secret, const char *job)
{
    static const char with[] = "ferry meeting 1: secret ";
    static const char without[] = "ferry meeting 1: open ";
    const char *name = secret != NULL ? with : without;
    unsigned char inner[FY_KEY_BYTES];

    crypto_generichash_state state;
    crypto_generichash_init(&state, NULL, 0, sizeof inner);
    crypto_generichash_update(&state, (const unsigned char *)name, strlen(name));
    if (secret != NULL) {
        crypto_generichash_update(&state, (const unsigned char *)secret, strlen(secret));
    }
    crypto_generichash_final(&state, inner, sizeof inner);
    crypto_generichash(meeting->key, sizeof meeting->key, (const unsigned char *)job, strlen(job),
                       inner, sizeof inner);
    fy_auth_wipe(inner, sizeof inner);
    fy_auth_wipe(&state, sizeof state);
}

void fy_meeting_cleanup(fy_meeting *meeting)
{
    if (meeting->listener >= 0) {
        close(meeting->listener);
    }
    meeting->listener = -1;
    fy_auth_wipe(meeting->key, sizeof meeting->key);
}
