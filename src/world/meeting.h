/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_MEETING_H
#define FY_WORLD_MEETING_H

#include "base/status.h"
#include "world/settings.h"

#include <ferry/world.h>

#include <stdbool.h>
#include <stdint.h>

/*
 * What every bootstrap finds out: who this rank is, where rank 0 listens, and the key that all
 * ranks of this job share. process.c makes a world of it.
 */
enum { FY_KEY_BYTES = 32, FY_ADDRESSES_BYTES = 512 };

typedef struct fy_meeting {
    uint32_t rank;
    uint32_t n_ranks;
    int64_t since_ns; /* of a newcomer, which looks again and again: since when. 0: since now */
    /* Where rank 0 listens: "HOST:PORT", or several joined by commas, tried in turn. Not on rank 0.
     */
    char addresses[FY_ADDRESSES_BYTES];
    /* On rank 0: a socket that already listens, which the world takes over; else -1. */
    int listener;
    /* All ranks have the same: from the secret, or made by rank 0 where the channel is private. */
    unsigned char key[FY_KEY_BYTES];
} fy_meeting;

#define FY_MEETING_INIT                                                                            \
    {                                                                                              \
        .listener = -1                                                                             \
    }

/* The key of a secret and a job: what tells two jobs with one secret apart goes into job. */
void fy_meeting_key(fy_meeting *meeting, const char *secret, const char *job);
void fy_meeting_cleanup(fy_meeting *meeting); /* closes the listener, wipes the key */

/* A socket that listens on host (NULL: every address) and port (0: any); its port to port_out. */
ferry_status fy_listen(const char *host, uint16_t port, int *fd_out, uint16_t *port_out,
                       ferry_error *error);

/*
 * "10.0.0.3:41000,127.0.0.1:41000": under which others may reach a listener on port: host if given,
 * else every address of this machine that is up, public ones first, loopback last.
 */
ferry_status fy_own_addresses(const char *host, uint16_t port, char text[FY_ADDRESSES_BYTES],
                              ferry_error *error);

/* The bootstraps, one file each. */
ferry_status fy_meet_environment(fy_meeting *meeting, const fy_settings *settings,
                                 ferry_error *error);
ferry_status fy_meet_file(fy_meeting *meeting, const char *path, uint32_t rank, uint32_t n_ranks,
                          const fy_settings *settings, ferry_error *error);
/* Rank 0 calls this once its world is made: removes the file. */
void fy_meet_file_done(const char *path);
ferry_status fy_meet_bootstrap(fy_meeting *meeting, const ferry_bootstrap *bootstrap,
                               const fy_settings *settings, ferry_error *error);
/*
 * For a world that grows: in a file, or (NULL) as the environment says where that names one, or a
 * port. The meeting has rank and n_ranks of a member; n_ranks 0 is a newcomer, which knows neither.
 */
ferry_status fy_meet_growing(fy_meeting *meeting, const char *path, const fy_settings *settings,
                             ferry_error *error);
/*
 * How long a newcomer that has waited so long waits before it looks again: members that come wait
 * for its looks, so they are frequent at first; but it may wait for hours, at a shared folder.
 */
int64_t fy_meet_pause_ns(int64_t waited_ns);
/* The same in a file. */
ferry_status fy_meet_growing_file(fy_meeting *meeting, const char *path,
                                  const fy_settings *settings, ferry_error *error);
/* Through the PMIx plugin. Offered: the variables that mpirun and srun set are there. */
bool fy_pmix_offered(void);
/* What rank 0 published there, into the meeting: its key and addresses, or its own failure. */
ferry_status fy_pmix_take_root(fy_meeting *meeting, const fy_settings *settings, const char *text,
                               ferry_error *error);
ferry_status fy_meet_pmix(fy_meeting *meeting, const fy_settings *settings, ferry_error *error);

/*
 * Makes the world that a meeting describes; takes over listener and settings in any case. epoch is
 * 0, but for a rank alone that goes on from another world.
 */
ferry_status fy_world_create_processes(fy_meeting *meeting, fy_settings *settings, uint32_t epoch,
                                       ferry_world **world_out, ferry_error *error);

#endif
