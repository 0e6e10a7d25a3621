/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A byte that says what is attacked, then the attack: either side of a control connection, before
 * the handshake or after it, by a stranger's bytes; or messages of a proven peer, in pieces of any
 * size and with a byte changed on the way.
 */
#include "fuzz.h"

#include "world/link.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/socket.h>

enum { CLIENT, SERVER, MOST_MESSAGES = 32, MOST_PLAYED_BYTES = 1 << 13 };

/*
 * Sockets without a kernel, which is a hundred times as fast: two pipes in memory for each link,
 * behind the calls that links make. The program is linked with --wrap for these.
 */
enum { FIRST_FD = 1 << 20, PIPE_BYTES = 1 << 16 };

typedef struct pipe_buffer {
    unsigned char bytes[PIPE_BYTES];
    size_t used, taken;
    bool is_shut;
} pipe_buffer;

static pipe_buffer to_link[2], from_link[2];

ssize_t __wrap_send(int fd, const void *bytes, size_t n_bytes, int flags);
ssize_t __wrap_recv(int fd, void *bytes, size_t n_bytes, int flags);
int __wrap_fcntl(int fd, int command, ...);
int __wrap_getpeername(int fd, struct sockaddr *address, socklen_t *length);
int __real_close(int fd);
int __wrap_close(int fd);

/* What a pipe takes of it. */
static size_t push(pipe_buffer *p, const void *bytes, size_t n_bytes)
{
    if (p->taken == p->used) {
        p->taken = p->used = 0;
    }
    size_t room = sizeof p->bytes - p->used;
    size_t n = n_bytes < room ? n_bytes : room;
    memcpy(p->bytes + p->used, bytes, n);
    p->used += n;
    return n;
}

static size_t pull(pipe_buffer *p, void *bytes, size_t n_bytes)
{
    size_t there = p->used - p->taken;
    size_t n = n_bytes < there ? n_bytes : there;
    memcpy(bytes, p->bytes + p->taken, n);
    p->taken += n;
    return n;
}

ssize_t __wrap_send(int fd, const void *bytes, size_t n_bytes, int flags)
{
    (void)flags;
    size_t n = push(&from_link[fd - FIRST_FD], bytes, n_bytes);
    errno = EAGAIN;
    return n == 0 ? -1 : (ssize_t)n;
}

ssize_t __wrap_recv(int fd, void *bytes, size_t n_bytes, int flags)
{
    (void)flags;
    pipe_buffer *p = &to_link[fd - FIRST_FD];
    size_t n = pull(p, bytes, n_bytes);
    errno = EAGAIN;
    return n > 0 ? (ssize_t)n : p->is_shut ? 0 : -1;
}

int __wrap_fcntl(int fd, int command, ...)
{
    (void)fd, (void)command;
    return 0;
}

int __wrap_getpeername(int fd, struct sockaddr *address, socklen_t *length)
{
    (void)fd;
    address->sa_family = AF_UNIX;
    *length = sizeof address->sa_family;
    return 0;
}

int __wrap_close(int fd)
{
    return fd >= FIRST_FD ? 0 : __real_close(fd);
}

static const unsigned char key[FY_KEY_BYTES] = "the key of these ranks";

typedef struct wire {
    fy_link *links[2];
} wire;

static void open_side(wire *w, int side)
{
    to_link[side].used = to_link[side].taken = 0;
    from_link[side].used = from_link[side].taken = 0;
    to_link[side].is_shut = false;
    promise(fy_link_create(FIRST_FD + side, side == SERVER, key, &w->links[side], NULL) ==
            FERRY_OK);
}

static void close_side(wire *w, int side)
{
    fy_link_destroy(w->links[side]);
}

static ferry_status work(fy_link *link)
{
    ferry_error error = {""};
    ferry_status status = fy_link_work(link, &error);
    check_sentence(status, &error);
    promise(status == FERRY_OK || status == FERRY_ERR_DENIED || status == FERRY_ERR_INVALID_INPUT ||
            status == FERRY_ERR_PEER_LOST);
    return status;
}

static size_t collect(int from, unsigned char *bytes, size_t most)
{
    return pull(&from_link[from], bytes, most);
}

/* As much as the pipe takes, with work in between; false once the link is dead. */
static bool feed(const wire *w, int to, const unsigned char *bytes, size_t n_bytes)
{
    while (n_bytes > 0) {
        size_t n = push(&to_link[to], bytes, n_bytes);
        bytes += n;
        n_bytes -= n;
        if (work(w->links[to]) != FERRY_OK) {
            return false;
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
            promise(feed(w, !side, bytes, collect(side, bytes, sizeof bytes)));
        }
    }
}

/* Nobody becomes a rank without the key. */
static void attack_handshake(int side, const uint8_t *data, size_t size)
{
    wire w;
    fy_message message;
    open_side(&w, side);
    bool alive = feed(&w, side, data, size);
    to_link[side].is_shut = true;
    promise(!alive || work(w.links[side]) == FERRY_ERR_PEER_LOST);
    promise(!fy_link_ready(w.links[side]) && !fy_link_take(w.links[side], &message));
    close_side(&w, side);
}

/* Nobody puts a message between those of ranks. */
static void attack_session(int side, const uint8_t *data, size_t size)
{
    wire w;
    fy_message message;
    shake_hands(&w);
    feed(&w, side, data, size);
    promise(!fy_link_take(w.links[side], &message));
    close_side(&w, CLIENT);
    close_side(&w, SERVER);
}

typedef struct script {
    const uint8_t *data;
    size_t size;
    uint32_t lengths[MOST_MESSAGES];
    uint32_t n_posted, n_taken;
    uint32_t changed; /* the message in which a byte is changed */
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
    wire w;
    script s = {.data = data, .size = size, .changed = UINT32_MAX};
    bool alive = true;
    size_t left = MOST_PLAYED_BYTES;
    shake_hands(&w);
    while (s.size > 0 && s.n_posted < MOST_MESSAGES && alive) {
        uint32_t length = next(&s);
        length <<= next(&s) % 13; /* mostly small, and less than the most */
        length = length <= left ? length : (uint32_t)left;
        left -= length;
        uint32_t head = length == 0 ? 0 : next(&s) % (length + 1);
        size_t piece = 1 + (size_t)next(&s) * 251 + length / 64; /* few enough */
        uint32_t mask = next(&s) % 8 == 7 ? next(&s) : 0;
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
            size_t n = collect(from, bytes, piece < sizeof bytes ? piece : sizeof bytes);
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
