/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_NODE_SOCKET_H
#define FY_WORLD_NODE_SOCKET_H

#include "base/status.h"
#include "world/interrupt.h"
#include "world/meeting.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * The sockets of a node: unix sockets that pass descriptors, of which the first is that of the
 * shared page. The first rank of a node that comes is its host; the name under which it listens is
 * made of the world's key and name, lies in no file system, and is gone with its process. Packets
 * keep their borders. Both sides prove the key, as on links.
 */
enum { FY_NODE_SOCKET_NAME_BYTES = 64, FY_NONCE_BYTES = 32, FY_PROOF_BYTES = 32 };

/* The name for a world of this name and key, on a node (0, or a faked node's number). */
void fy_node_socket_name(const unsigned char key[FY_KEY_BYTES], const unsigned char world_id[16],
                         uint32_t node, char name[FY_NODE_SOCKET_NAME_BYTES]);

/* Becomes host: *fd_out listens, or is -1 because another rank was first. */
ferry_status fy_node_socket_listen(const char *name, int *fd_out, ferry_error *error);

/*
 * Joins the host that listens under name, as the rank of this slot, and gets the shared page:
 * *fd_out is the connection, *page_fd_out the shared page. Both are -1 when nobody listens (any
 * more): try to be the host then; and when stop ends it, which is asked while it waits.
 */
ferry_status fy_node_socket_join(const char *name, const unsigned char key[FY_KEY_BYTES],
                                 uint32_t slot, int64_t limit_ns, bool (*stop)(void *context),
                                 void *context, int *fd_out, int *page_fd_out, ferry_error *error);

/* The host's side of a connection until it is proven. Sockets do not block. */
typedef struct fy_node_peer {
    int fd;
    int step; /* 0 hello, 1 proof, 2 proven */
    uint32_t slot;
    unsigned char nonce[FY_NONCE_BYTES]; /* own */
    unsigned char peer_nonce[FY_NONCE_BYTES];
} fy_node_peer;

/*
 * Takes the next packet; *proven_out turns true when the other side has proven the key. Anything
 * wrong is an error: close it and forget it.
 */
ferry_status fy_node_socket_admit(fy_node_peer *peer, const unsigned char key[FY_KEY_BYTES],
                                  bool *proven_out, ferry_error *error);

/* The other side's process, as this one's namespace numbers it; 0 if it is in another. */
int32_t fy_node_socket_peer_pid(int socket_fd);

#endif
