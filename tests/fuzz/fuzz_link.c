/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A byte that says what is attacked, then the attack: either side of a control connection, before
 * the handshake or after it, by a stranger's bytes; or messages of a proven peer, in pieces of any
 * size and with a byte changed on the way.
 */
#include "fuzz.h"

#include "world/link.h"

#include <fcntl.h>
#include <sys/socket.h>

enum { CLIENT, SERVER, MOST_MESSAGES = 64 };

static const unsigned char key[FY_KEY_BYTES] = "the key of these ranks";

typedef struct wire {
    fy_link *links[2];
    int      ends[2]; /* what links[i] sends comes out of ends[i] */
} wire;

static void open_side(wire *w, int side)
{
    int fds[2];
    promise(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    promise(fcntl(fds[1], F_SETFL, O_NONBLOCK) == 0);
    promise(fy_link_create(fds[0], side == SERVER, key, &w->links[side], NULL) == FERRY_OK);
    w->ends[side] = fds[1];
}

static void close_side(wire *w, int side)
{
    fy_link_destroy(w->links[side]);
    close(w->ends[side]);
}

static ferry_status work(fy_link *link)
{
    ferry_error  error  = {""};
    ferry_status status = fy_link_work(link, &error);
    check_sentence(status, &error);
    promise(status == FERRY_OK || status == FERRY_ERR_DENIED || status == FERRY_ERR_INVALID_INPUT ||
            status == FERRY_ERR_PEER_LOST);
    return status;
}

static size_t collect(const wire *w, int from, unsigned char *bytes, size_t most)
{
    ssize_t n = recv(w->ends[from], bytes, most, 0);
    return n < 0 ? 0 : (size_t)n;
}

/* As much as the socket takes, with work in between; false once the link is dead. */
static bool feed(const wire *w, int to, const unsigned char *bytes, size_t n_bytes)
{
    while (n_bytes > 0) {
        ssize_t n = send(w->ends[to], bytes, n_bytes, MSG_NOSIGNAL);
        if (work(w->links[to]) != FERRY_OK) {
            return false;
        }
        if (n > 0) {
            bytes += n;
            n_bytes -= (size_t)n;
        }
    }
    return true;
}

static void shake_hands(wire *w)
{
    unsigned char bytes[256];
    open_side(w, CLIENT);
    open_side(w, SERVER);
    while (!fy_link_ready(w->links[CLIENT]) || !fy_link_ready(w->links[SERVER])) {
        for (int side = CLIENT; side <= SERVER; side++) {
            promise(work(w->links[side]) == FERRY_OK);
            promise(feed(w, !side, bytes, collect(w, side, bytes, sizeof bytes)));
        }
    }
}

/* Nobody becomes a rank without the key. */
static void attack_handshake(int side, const uint8_t *data, size_t size)
{
    wire       w;
    fy_message message;
    open_side(&w, side);
    bool alive = feed(&w, side, data, size);
    shutdown(w.ends[side], SHUT_WR);
    promise(!alive || work(w.links[side]) == FERRY_ERR_PEER_LOST);
    promise(!fy_link_ready(w.links[side]) && !fy_link_take(w.links[side], &message));
    close_side(&w, side);
}

/* Nobody puts a message between those of ranks. */
static void attack_session(int side, const uint8_t *data, size_t size)
{
    wire       w;
    fy_message message;
    shake_hands(&w);
    feed(&w, side, data, size);
    promise(!fy_link_take(w.links[side], &message));
    close_side(&w, CLIENT);
    close_side(&w, SERVER);
}

typedef struct script {
    const uint8_t *data;
    size_t         size;
    uint32_t       lengths[MOST_MESSAGES];
    uint32_t       n_posted, n_taken;
    uint32_t       changed; /* the message in which a byte is changed */
} script;

static uint32_t next(script *s)
{
    if (s->size == 0) {
        return 0;
    }
    s->size--;
    return *s->data++;
}

static void take_all(script *s, fy_link *link)
{
    fy_message message;
    while (fy_link_take(link, &message)) {
        promise(s->n_taken < s->changed && s->n_taken < s->n_posted);
        promise(message.type == s->n_taken && message.n_bytes == s->lengths[s->n_taken]);
        for (size_t i = 0; i < message.n_bytes; i += 97) {
            promise(message.payload[i] == (unsigned char)s->n_taken);
        }
        s->n_taken++;
    }
}

/* What is taken is what was posted, in order, up to the message that was changed. */
static void play(int from, const uint8_t *data, size_t size)
{
    static unsigned char text[FY_LINK_PAYLOAD_BYTES], bytes[1 << 16];
    wire                 w;
    script               s     = {.data = data, .size = size, .changed = UINT32_MAX};
    bool                 alive = true;
    shake_hands(&w);
    while (s.size > 0 && s.n_posted < MOST_MESSAGES && alive) {
        uint32_t length = next(&s);
        length <<= next(&s) % 13; /* mostly small, and less than the most */
        uint32_t head         = length == 0 ? 0 : next(&s) % (length + 1);
        size_t   piece        = 1 + (size_t)next(&s) * 251 + length / 64; /* few enough */
        uint32_t mask         = next(&s) % 8 == 7 ? next(&s) : 0;
        s.lengths[s.n_posted] = length;
        memset(text, (int)s.n_posted, length);
        promise(fy_link_post(w.links[from], s.n_posted, text, head, text + head, length - head,
                             NULL) == FERRY_OK);
        if (mask != 0) {
            s.changed = s.n_posted;
        }
        s.n_posted++;
        for (bool more = true; more && alive;) {
            promise(work(w.links[from]) == FERRY_OK);
            size_t n = collect(&w, from, bytes, piece < sizeof bytes ? piece : sizeof bytes);
            if (n > 0 && mask != 0) {
                bytes[next(&s) % n] ^= (unsigned char)mask;
                mask = 0;
            }
            alive = feed(&w, !from, bytes, n);
            take_all(&s, w.links[!from]);
            more = n > 0;
        }
    }
    promise(alive ? s.changed == UINT32_MAX && s.n_taken == s.n_posted : s.n_taken == s.changed);
    close_side(&w, CLIENT);
    close_side(&w, SERVER);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    int side = data[0] & 1;
    switch (data[0] >> 1 & 3) {
    case 0:
        attack_handshake(side, data + 1, size - 1);
        break;
    case 1:
        attack_session(side, data + 1, size - 1);
        break;
    default:
        play(side, data + 1, size - 1);
    }
    return 0;
}
