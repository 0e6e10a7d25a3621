/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/node_socket.h"

#include "host/pass.h"
#include "world/bell.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sodium.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Fixed for ever: whatever speaks otherwise is no ferry rank. */
static const unsigned char magic[8] = {'f', 'y', 'l', 'i', 'n', 'e', '0', '1'};

typedef struct hello {
    unsigned char magic[8];
    unsigned char slot[4];
    unsigned char nonce[FY_NONCE_BYTES];
} hello;

typedef struct answer {
    unsigned char magic[8];
    unsigned char nonce[FY_NONCE_BYTES];
    unsigned char proof[FY_PROOF_BYTES];
} answer;

void fy_node_socket_name(const unsigned char key[FY_KEY_BYTES], const unsigned char world_id[16],
                         uint32_t node, char name[FY_NODE_SOCKET_NAME_BYTES])
{
    unsigned char digest[16];
    crypto_generichash_state state;
    crypto_generichash_init(&state, key, FY_KEY_BYTES, sizeof digest);
    crypto_generichash_update(&state, (const unsigned char *)"line", 4);
    crypto_generichash_update(&state, world_id, 16);
    unsigned char number[4] = {(unsigned char)node, (unsigned char)(node >> 8),
                               (unsigned char)(node >> 16), (unsigned char)(node >> 24)};
    crypto_generichash_update(&state, number, sizeof number);
    crypto_generichash_final(&state, digest, sizeof digest);
    char hex[2 * sizeof digest + 1];
    sodium_bin2hex(hex, sizeof hex, digest, sizeof digest);
    snprintf(name, FY_NODE_SOCKET_NAME_BYTES, "ferry-%s", hex);
}

/* A proof of the key by one role over both nonces. */
static void prove(const unsigned char key[FY_KEY_BYTES], const char *role,
                  const unsigned char host[FY_NONCE_BYTES],
                  const unsigned char peer[FY_NONCE_BYTES], uint32_t slot,
                  unsigned char proof[FY_PROOF_BYTES])
{
    unsigned char number[4] = {(unsigned char)slot, (unsigned char)(slot >> 8),
                               (unsigned char)(slot >> 16), (unsigned char)(slot >> 24)};
    crypto_generichash_state state;
    crypto_generichash_init(&state, key, FY_KEY_BYTES, FY_PROOF_BYTES);
    crypto_generichash_update(&state, (const unsigned char *)role, strlen(role));
    crypto_generichash_update(&state, host, FY_NONCE_BYTES);
    crypto_generichash_update(&state, peer, FY_NONCE_BYTES);
    crypto_generichash_update(&state, number, sizeof number);
    crypto_generichash_final(&state, proof, FY_PROOF_BYTES);
}

/* Abstract: the name begins with a zero byte and lies in no folder. */
static socklen_t fill_address(struct sockaddr_un *address, const char *name)
{
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    size_t length = strlen(name);
    memcpy(address->sun_path + 1, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

static int new_socket(void)
{
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

ferry_status fy_node_socket_listen(const char *name, int *fd_out, ferry_error *error)
{
    struct sockaddr_un address;
    socklen_t length = fill_address(&address, name);
    int fd = new_socket();
    if (fd < 0) {
        return fy_fail(error, FERRY_ERR_IO, "no unix socket could be made: %s", strerror(errno));
    }
    if (bind(fd, (struct sockaddr *)&address, length) != 0 || listen(fd, 4096) != 0) {
        int reason = errno;
        close(fd);
        if (reason != EADDRINUSE) {
            return fy_fail(error, FERRY_ERR_IO, "the socket of this node could not listen: %s",
                           strerror(reason));
        }
        fd = -1;
    }
    *fd_out = fd;
    return FERRY_OK;
}

enum { LOOK_MS = FY_INTERRUPT_NS / 1000000 };

/* One packet within the limit, exactly n_bytes long. */
static bool receive_packet(int fd, void *packet, size_t n_bytes, int64_t until_ns,
                           bool (*stop)(void *context), void *context)
{
    for (;;) {
        ssize_t got = recv(fd, packet, n_bytes, MSG_TRUNC);
        if (got >= 0) {
            return (size_t)got == n_bytes;
        }
        int64_t left = until_ns - fy_now_ns();
        bool waits = errno == EAGAIN || errno == EINTR;
        if (!waits || left <= 0 || stop(context)) {
            return false;
        }
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        poll(&poll_fd, 1, left < FY_INTERRUPT_NS ? (int)(left / 1000000) + 1 : LOOK_MS);
    }
}

static int connect_once(const char *name)
{
    struct sockaddr_un address;
    socklen_t length = fill_address(&address, name);
    int fd = new_socket();
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, length) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static bool prove_both(int fd, const unsigned char key[FY_KEY_BYTES], uint32_t slot,
                       int64_t until_ns, bool (*stop)(void *context), void *context,
                       bool *denied_out)
{
    hello first;
    memcpy(first.magic, magic, sizeof magic);
    for (size_t i = 0; i < sizeof first.slot; i++) {
        first.slot[i] = (unsigned char)(slot >> (8 * i));
    }
    randombytes_buf(first.nonce, sizeof first.nonce);
    answer second;
    unsigned char expected[FY_PROOF_BYTES];
    if (send(fd, &first, sizeof first, MSG_NOSIGNAL) != (ssize_t)sizeof first ||
        !receive_packet(fd, &second, sizeof second, until_ns, stop, context)) {
        return false;
    }
    prove(key, "host", second.nonce, first.nonce, slot, expected);
    if (memcmp(second.magic, magic, sizeof magic) != 0 ||
        sodium_memcmp(expected, second.proof, sizeof expected) != 0) {
        *denied_out = true;
        return false;
    }
    prove(key, "guest", second.nonce, first.nonce, slot, expected);
    return send(fd, expected, sizeof expected, MSG_NOSIGNAL) == (ssize_t)sizeof expected;
}

ferry_status fy_node_socket_join(const char *name, const unsigned char key[FY_KEY_BYTES],
                                 uint32_t slot, int64_t limit_ns, bool (*stop)(void *context),
                                 void *context, int *fd_out, int *page_fd_out, ferry_error *error)
{
    int64_t until = fy_now_ns() + limit_ns;
    bool denied = false;
    *fd_out = -1;
    *page_fd_out = -1;
    int fd = connect_once(name);
    if (fd < 0) {
        return FERRY_OK; /* the host is gone, or has not begun to listen */
    }
    if (prove_both(fd, key, slot, until, stop, context, &denied)) {
        uint64_t tag;
        int got;
        while ((got = fy_take_descriptor(fd, &tag, page_fd_out)) == 0 && fy_now_ns() < until &&
               !stop(context)) {
            struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
            poll(&poll_fd, 1, LOOK_MS);
        }
        if (got == 1) {
            *fd_out = fd;
            return FERRY_OK;
        }
    }
    close(fd);
    if (denied) {
        return fy_fail(error, FERRY_ERR_DENIED,
                       "another process of this machine listens as the host of this node and does "
                       "not know the key of this world");
    }
    return FERRY_OK;
}

ferry_status fy_node_socket_admit(fy_node_peer *peer, const unsigned char key[FY_KEY_BYTES],
                                  bool *proven_out, ferry_error *error)
{
    union {
        hello first;
        unsigned char proof[FY_PROOF_BYTES];
    } packet;
    *proven_out = false;
    size_t wants = peer->step == 0 ? sizeof packet.first : sizeof packet.proof;
    ssize_t got = recv(peer->fd, &packet, wants, MSG_TRUNC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return FERRY_OK;
    }
    if (got != (ssize_t)wants) {
        return fy_fail(error, FERRY_ERR_DENIED, "a stranger spoke on the socket of this node");
    }
    if (peer->step == 0) {
        if (memcmp(packet.first.magic, magic, sizeof magic) != 0) {
            return fy_fail(error, FERRY_ERR_DENIED, "a stranger spoke on the socket of this node");
        }
        peer->slot = (uint32_t)packet.first.slot[0] | (uint32_t)packet.first.slot[1] << 8 |
                     (uint32_t)packet.first.slot[2] << 16 | (uint32_t)packet.first.slot[3] << 24;
        memcpy(peer->peer_nonce, packet.first.nonce, FY_NONCE_BYTES);
        randombytes_buf(peer->nonce, FY_NONCE_BYTES);
        answer reply;
        memcpy(reply.magic, magic, sizeof magic);
        memcpy(reply.nonce, peer->nonce, FY_NONCE_BYTES);
        prove(key, "host", peer->nonce, peer->peer_nonce, peer->slot, reply.proof);
        peer->step = 1;
        if (send(peer->fd, &reply, sizeof reply, MSG_NOSIGNAL) != (ssize_t)sizeof reply) {
            return fy_fail(error, FERRY_ERR_PEER_LOST, "a rank of this node has gone");
        }
        return FERRY_OK;
    }
    unsigned char expected[FY_PROOF_BYTES];
    prove(key, "guest", peer->nonce, peer->peer_nonce, peer->slot, expected);
    if (sodium_memcmp(expected, packet.proof, sizeof expected) != 0) {
        return fy_fail(error, FERRY_ERR_DENIED, "a process of this node did not prove the key");
    }
    peer->step = 2;
    *proven_out = true;
    return FERRY_OK;
}

int32_t fy_node_socket_peer_pid(int socket_fd)
{
    struct ucred peer;
    socklen_t length = sizeof peer;
    if (getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
        return 0;
    }
    return (int32_t)peer.pid;
}
