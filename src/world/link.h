/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_LINK_H
#define FY_WORLD_LINK_H

#include "base/status.h"
#include "world/meeting.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A control connection between two ranks over a stream socket, TCP or unix. Both sides prove the
 * key by challenge before either believes a byte; then every message carries a MAC over its number,
 * its type and its payload, under a key of this connection and direction: nothing can be forged,
 * repeated, left out or reordered. Nothing is hidden. Sockets do not block; the owner's loop polls.
 *
 * A link is used by one thread at a time.
 */
typedef struct fy_link fy_link;

/* The longest payload: collectives split theirs. */
enum { FY_LINK_PAYLOAD_BYTES = 1 << 20 };

typedef struct fy_message {
    uint32_t type;
    const unsigned char *payload; /* until the next call with this link */
    size_t n_bytes;
} fy_message;

/*
 * A link over a connected socket, which it takes over (also on failure). The side that accepted is
 * the server. Handshake messages travel during fy_link_work.
 */
ferry_status fy_link_create(int fd, bool server, const unsigned char key[FY_KEY_BYTES],
                            fy_link **link_out, ferry_error *error);
void fy_link_destroy(fy_link *link); /* closes the socket; what is queued is dropped */

/*
 * Connects to the first of "HOST:PORT,HOST:PORT" where somebody proves the key, trying all again
 * (with pauses that grow from 5 ms to 200 ms) until limit_ns have passed; the link is ready. The
 * sentence says what became of each address: refused, no answer, not a ferry rank, wrong secret
 * (FERRY_ERR_DENIED, at once), another protocol version. stop (optional) is asked between pauses
 * and ends it with FERRY_ERR_STOPPED.
 */
ferry_status fy_link_open(const char *addresses, const unsigned char key[FY_KEY_BYTES],
                          int64_t limit_ns, bool (*stop)(void *context), void *context,
                          fy_link **link_out, ferry_error *error);
/*
 * The same, where somebody listened before: when all addresses refuse, nobody does any more, and
 * that is an error at once.
 */
ferry_status fy_link_reopen(const char *addresses, const unsigned char key[FY_KEY_BYTES],
                            int64_t limit_ns, bool (*stop)(void *context), void *context,
                            fy_link **link_out, ferry_error *error);

int fy_link_fd(const fy_link *link);
bool fy_link_ready(const fy_link *link);   /* the handshake is done */
short fy_link_events(const fy_link *link); /* for poll: POLLIN, and POLLOUT when needed */

/*
 * Reads and writes what the socket allows. FERRY_ERR_PEER_LOST when the other side has closed or
 * vanished, FERRY_ERR_DENIED when it failed the challenge or a MAC was wrong,
 * FERRY_ERR_INVALID_INPUT when it does not speak this protocol; the link is then dead and only to
 * be destroyed. Messages that came whole before can still be taken.
 */
ferry_status fy_link_work(fy_link *link, ferry_error *error);

/* The next whole message; false if there is none. */
bool fy_link_take(fy_link *link, fy_message *message_out);

/* Queues a message made of two pieces (either may be empty) and writes what the socket takes. */
ferry_status fy_link_post(fy_link *link, uint32_t type, const void *head, size_t head_bytes,
                          const void *body, size_t body_bytes, ferry_error *error);
size_t fy_link_queued_bytes(const fy_link *link);

/* Takes, or posts and then flushes, within limit_ns: for the steps of joining. */
ferry_status fy_link_receive(fy_link *link, int64_t limit_ns, fy_message *message_out,
                             ferry_error *error);
ferry_status fy_link_drain(fy_link *link, int64_t limit_ns, ferry_error *error);

/* fy_now_ns of the last byte that came. */
int64_t fy_link_heard_ns(const fy_link *link);
/*
 * Whether the other side's kernel still acknowledges what is sent: tells a stopped process from a
 * machine that is gone. True where it cannot be known (unix sockets).
 */
bool fy_link_acknowledged(const fy_link *link, int64_t within_ns);

/* "10.0.0.3:41000" of the other side and of this one, and this one's address alone. */
void fy_link_peer_text(const fy_link *link, char text[128]);
void fy_link_own_host(const fy_link *link, char text[64]);

#endif
