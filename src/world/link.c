/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * On the wire: a handshake (auth.h), then either way, numbers little endian:
 *
 *     type (4), length (4), MAC (16); if the length is not 0: payload, MAC (16)
 */
#include "world/link.h"

#include "base/alloc.h"
#include "world/address.h"
#include "world/auth.h"
#include "world/bell.h"
#include "world/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    HEADER_BYTES = 4 + 4 + FY_AUTH_MAC_BYTES,

    /* Room for what comes: at first, and so much that the owner must take before more is read. */
    FIRST_ROOM_BYTES = 1 << 16,
    MOST_WAITING = 8 << 20,
    /* Room to ask the socket to fill. */
    LEAST_READ_BYTES = 1 << 12,
    /* How often it is asked whether all that was sent has been acknowledged. */
    ASK_EVERY_NS = 20000000,
};

typedef struct buffer {
    unsigned char *bytes;
    size_t begin, end, capacity;
} buffer;

struct fy_link {
    int fd;
    bool is_tcp;
    bool is_ready; /* stays true after death */
    bool is_full;  /* the socket took no more */
    fy_handshake handshake;
    unsigned char send_key[FY_KEY_BYTES], receive_key[FY_KEY_BYTES];
    uint64_t n_sent, n_received;
    buffer in, out;
    size_t whole; /* in `in`: messages up to here are whole and proven */
    size_t frame; /* bytes of the one that follows, once its header is proven; or 0 */
    int64_t heard_ns;
    int64_t asked_ns;    /* when it was last asked whether all was acknowledged */
    int64_t waiting_ns;  /* when that was so, or later */
    ferry_status status; /* not OK: dead, and why */
    ferry_error why;
    char peer[128];
};

/* What is queued will never be sent; the reason stays. */
static ferry_status die(fy_link *link, ferry_status status)
{
    link->status = status;
    link->out.end = link->out.begin = 0;
    return status;
}

static ferry_status tell(const fy_link *link, ferry_error *error)
{
    if (error != NULL) {
        *error = link->why;
    }
    return link->status;
}

/* --- Buffers --- */

/* Room for n_bytes more behind what is there. False: no memory, and all is as it was. */
static bool make_room(buffer *b, size_t n_bytes)
{
    size_t used = b->end - b->begin;
    if (b->capacity - b->end >= n_bytes) {
        return true;
    }
    /* Moving costs no more than what has gone since the last time. */
    if (b->begin >= used && b->capacity - used >= n_bytes) {
        if (used > 0) {
            memcpy(b->bytes, b->bytes + b->begin, used);
        }
        b->begin = 0;
        b->end = used;
        return true;
    }
    return FY_RESERVE(b->bytes, b->capacity, b->end + n_bytes);
}

static void free_buffer(buffer *b)
{
    fy_free(b->bytes);
    *b = (buffer){0};
}

static bool append(buffer *b, const void *bytes, size_t n_bytes)
{
    if (!make_room(b, n_bytes)) {
        return false;
    }
    memcpy(b->bytes + b->end, bytes, n_bytes);
    b->end += n_bytes;
    return true;
}

/* --- The socket --- */

/* When nothing was outstanding, what is sent now is the first that the other side must answer. */
static void note_sending(fy_link *link)
{
    int64_t now = fy_now_ns();
    int outstanding;
    if (!link->is_tcp || now - link->asked_ns < ASK_EVERY_NS) {
        return;
    }
    link->asked_ns = now;
    if (ioctl(link->fd, SIOCOUTQ, &outstanding) == 0 && outstanding == 0) {
        link->waiting_ns = now;
    }
}

/* What the socket takes. False: it is broken, and errno says why. */
static bool flush(fy_link *link)
{
    buffer *out = &link->out;
    if (out->begin < out->end && !link->is_full) {
        note_sending(link);
    }
    while (out->begin < out->end && !link->is_full) {
        ssize_t n = send(link->fd, out->bytes + out->begin, out->end - out->begin, MSG_NOSIGNAL);
        if (n >= 0) {
            out->begin += (size_t)n;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM) {
            link->is_full = true;
        } else if (errno != EINTR) {
            return false;
        }
    }
    if (out->begin == out->end) {
        out->begin = out->end = 0;
    }
    return true;
}

/* More than 0: so many bytes. 0: nothing there now. -1: the link is dead now. */
static ssize_t receive(fy_link *link, void *bytes, size_t n_bytes)
{
    for (;;) {
        ssize_t n = recv(link->fd, bytes, n_bytes, 0);
        if (n > 0) {
            link->heard_ns = fy_now_ns();
            return n;
        }
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return 0;
        }
        const char *during = link->is_ready ? "" : " before it proved the secret";
        if (n == 0) {
            die(link, fy_fail(&link->why, FERRY_ERR_PEER_LOST, "%s closed the connection%s",
                              link->peer, during));
        } else {
            die(link, fy_fail(&link->why, FERRY_ERR_PEER_LOST, "the connection to %s broke%s: %s",
                              link->peer, during, strerror(errno)));
        }
        return -1;
    }
}

/* --- Handshake --- */

static ferry_status become_ready(fy_link *link)
{
    const fy_handshake *h = &link->handshake;
    fy_auth_session_key(h->key, h->role, &h->transcript, link->send_key);
    fy_auth_session_key(h->key, !h->role, &h->transcript, link->receive_key);
    fy_auth_wipe(link->handshake.key, sizeof link->handshake.key);
    if (!make_room(&link->in, FIRST_ROOM_BYTES)) {
        return fy_fail_no_memory(&link->why, "room for control messages");
    }
    link->is_ready = true;
    return FERRY_OK;
}

static ferry_status shake_hands(fy_link *link)
{
    while (!link->is_ready) {
        unsigned char reply[FY_REPLY_BYTES];
        size_t reply_bytes;
        fy_handshake *h = &link->handshake;
        ssize_t n = receive(link, h->bytes + h->n_bytes, fy_handshake_wants(h));
        if (n <= 0) {
            return n == 0 ? FERRY_OK : link->status;
        }
        ferry_status status =
            fy_handshake_advance(h, (size_t)n, link->peer, reply, &reply_bytes, &link->why);
        if (!append(&link->out, reply, reply_bytes) && status == FERRY_OK) {
            status = fy_fail_no_memory(&link->why, "a handshake");
        }
        if (status == FERRY_OK && fy_handshake_wants(h) == 0) {
            status = become_ready(link);
        }
        if (status != FERRY_OK) {
            flush(link); /* the other side learns why, if it can */
            return die(link, status);
        }
    }
    return FERRY_OK;
}

/* --- Messages --- */

static ferry_status deny(fy_link *link)
{
    return fy_fail(&link->why, FERRY_ERR_DENIED,
                   "message %llu from %s carries a wrong MAC: it was changed on its way",
                   (unsigned long long)link->n_received, link->peer);
}

static ferry_status check_header(fy_link *link)
{
    unsigned char mac[FY_AUTH_MAC_BYTES];
    const unsigned char *header = link->in.bytes + link->whole;
    fy_reader reader = fy_reader_of(header, HEADER_BYTES);
    uint32_t type = fy_read_u32(&reader);
    uint32_t length = fy_read_u32(&reader);
    fy_auth_mac_header(link->receive_key, link->n_received, type, length, mac);
    if (!fy_auth_equal(mac, header + 8, sizeof mac)) {
        return deny(link);
    }
    if (length > FY_LINK_PAYLOAD_BYTES) {
        return fy_fail(&link->why, FERRY_ERR_INVALID_INPUT,
                       "%s sends a message of %u bytes; at most %d are allowed", link->peer, length,
                       FY_LINK_PAYLOAD_BYTES);
    }
    link->frame = HEADER_BYTES + length + (length > 0 ? FY_AUTH_MAC_BYTES : 0);
    return FERRY_OK;
}

static ferry_status check_payload(fy_link *link)
{
    unsigned char mac[FY_AUTH_MAC_BYTES];
    const unsigned char *header = link->in.bytes + link->whole;
    fy_reader reader = fy_reader_of(header, HEADER_BYTES);
    uint32_t type = fy_read_u32(&reader);
    uint32_t length = fy_read_u32(&reader);
    if (length > 0) {
        fy_auth_mac_payload(link->receive_key, link->n_received, type, header + HEADER_BYTES,
                            length, mac);
        if (!fy_auth_equal(mac, header + HEADER_BYTES + length, sizeof mac)) {
            return deny(link);
        }
    }
    link->whole += link->frame;
    link->frame = 0;
    link->n_received++;
    return FERRY_OK;
}

/* Proves what has come whole. */
static ferry_status check_frames(fy_link *link)
{
    for (;;) {
        size_t there = link->in.end - link->whole;
        ferry_status status = FERRY_OK;
        if (link->frame == 0 && there < HEADER_BYTES) {
            return FERRY_OK;
        }
        if (link->frame == 0) {
            status = check_header(link);
        }
        if (status == FERRY_OK && there < link->frame) {
            return FERRY_OK;
        }
        FY_THEN(status, check_payload(link));
        if (status != FERRY_OK) {
            return status;
        }
    }
}

static bool wants_more(const fy_link *link)
{
    return link->whole - link->in.begin < MOST_WAITING;
}

/* Only a header that is proven makes more room than there was at first. */
static bool make_room_in(fy_link *link)
{
    buffer *in = &link->in;
    size_t there = in->end - link->whole;
    size_t wanted = link->frame > there ? link->frame - there : HEADER_BYTES;
    size_t before = link->whole - in->begin;
    if (wanted < LEAST_READ_BYTES) {
        wanted = LEAST_READ_BYTES;
    }
    bool made = make_room(in, wanted);
    link->whole = in->begin + before;
    return made;
}

static ferry_status receive_frames(fy_link *link)
{
    while (wants_more(link)) {
        if (!make_room_in(link)) {
            return die(link, fy_fail_no_memory(&link->why, "room for control messages"));
        }
        ssize_t n = receive(link, link->in.bytes + link->in.end, link->in.capacity - link->in.end);
        if (n <= 0) {
            return n == 0 ? FERRY_OK : link->status;
        }
        link->in.end += (size_t)n;
        ferry_status status = check_frames(link);
        if (status != FERRY_OK) {
            return die(link, status);
        }
    }
    return FERRY_OK;
}

/* Reads what there is, from either part of the life of a link. */
static ferry_status read_all(fy_link *link)
{
    ferry_status status = shake_hands(link);
    return status == FERRY_OK && link->is_ready ? receive_frames(link) : status;
}

/* The other side may have said why it went before the connection broke. */
static ferry_status fail_to_send(fy_link *link, int reason)
{
    FY_TRY(read_all(link));
    return die(link, fy_fail(&link->why, FERRY_ERR_PEER_LOST, "the connection to %s broke: %s",
                             link->peer, strerror(reason)));
}

/* --- What the header promises --- */

static ferry_status prepare_socket(fy_link *link, ferry_error *error)
{
    struct sockaddr_storage address = {0};
    int one = 1;
    socklen_t length = sizeof address;
    int flags = fcntl(link->fd, F_GETFL);
    if (flags < 0 || fcntl(link->fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        fcntl(link->fd, F_SETFD, FD_CLOEXEC) != 0) {
        return fy_fail(error, FERRY_ERR_IO, "descriptor %d is not a connected socket: %s", link->fd,
                       strerror(errno));
    }
    if (getpeername(link->fd, (struct sockaddr *)&address, &length) != 0) {
        return fy_fail(error, FERRY_ERR_PEER_LOST, "a connection is gone before its handshake: %s",
                       strerror(errno));
    }
    fy_address_text(&address, true, link->peer, sizeof link->peer);
    link->is_tcp = address.ss_family == AF_INET || address.ss_family == AF_INET6;
    if (link->is_tcp) {
        setsockopt(link->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* only slower without */
    }
    return FERRY_OK;
}

ferry_status fy_link_create(int fd, bool server, const unsigned char key[FY_KEY_BYTES],
                            fy_link **link_out, ferry_error *error)
{
    fy_link *link = fy_alloc_zeroed(1, sizeof *link);
    if (link == NULL) {
        close(fd);
        return fy_fail_no_memory(error, "a link");
    }
    link->fd = fd;
    ferry_status status = fy_auth_begin(error);
    FY_THEN(status, prepare_socket(link, error));
    if (status != FERRY_OK) {
        goto out;
    }
    unsigned char hello[FY_HELLO_BYTES];
    link->heard_ns = link->waiting_ns = fy_now_ns();
    fy_handshake_begin(&link->handshake, server ? FY_SERVER : FY_CLIENT, key, hello);
    if (!append(&link->out, hello, sizeof hello)) {
        status = fy_fail_no_memory(error, "a link");
        goto out;
    }
    *link_out = link;
    link = NULL;
out:
    fy_link_destroy(link);
    return status;
}

void fy_link_destroy(fy_link *link)
{
    if (link == NULL) {
        return;
    }
    close(link->fd);
    free_buffer(&link->in);
    free_buffer(&link->out);
    fy_auth_wipe(link, sizeof *link);
    fy_free(link);
}

int fy_link_fd(const fy_link *link)
{
    return link->fd;
}

bool fy_link_ready(const fy_link *link)
{
    return link->is_ready;
}

bool fy_link_proven(const fy_link *link)
{
    return link->handshake.proven;
}

short fy_link_events(const fy_link *link)
{
    if (link->status != FERRY_OK) {
        return 0;
    }
    return (short)((wants_more(link) ? POLLIN : 0) |
                   (link->out.begin < link->out.end ? POLLOUT : 0));
}

ferry_status fy_link_work(fy_link *link, ferry_error *error)
{
    if (link->status != FERRY_OK) {
        return tell(link, error);
    }
    link->is_full = false;
    ferry_status status = read_all(link);
    if (status == FERRY_OK && !flush(link)) {
        status = fail_to_send(link, errno);
    }
    return status == FERRY_OK ? FERRY_OK : tell(link, error);
}

bool fy_link_take(fy_link *link, fy_message *message_out)
{
    if (link->in.begin == link->whole) {
        return false;
    }
    const unsigned char *header = link->in.bytes + link->in.begin;
    fy_reader reader = fy_reader_of(header, HEADER_BYTES);
    uint32_t type = fy_read_u32(&reader);
    uint32_t length = fy_read_u32(&reader);
    link->in.begin += HEADER_BYTES + length + (length > 0 ? FY_AUTH_MAC_BYTES : 0);
    *message_out = (fy_message){.type = type, .payload = header + HEADER_BYTES, .n_bytes = length};
    return true;
}

/* Writes a message behind the queue, where there is room for it. */
static void pack_message(fy_link *link, uint32_t type, const void *head, size_t head_bytes,
                         const void *body, size_t body_bytes)
{
    uint32_t length = (uint32_t)(head_bytes + body_bytes);
    unsigned char *header = link->out.bytes + link->out.end;
    unsigned char *at = header + HEADER_BYTES;
    fy_pack packer = fy_pack_into(header, HEADER_BYTES);
    fy_pack_u32(&packer, type);
    fy_pack_u32(&packer, length);
    fy_auth_mac_header(link->send_key, link->n_sent, type, length, header + packer.used);
    if (head_bytes > 0) {
        memcpy(at, head, head_bytes);
    }
    if (body_bytes > 0) {
        memcpy(at + head_bytes, body, body_bytes);
    }
    link->out.end += HEADER_BYTES + length;
    if (length > 0) {
        fy_auth_mac_payload(link->send_key, link->n_sent, type, at, length, at + length);
        link->out.end += FY_AUTH_MAC_BYTES;
    }
    link->n_sent++;
}

ferry_status fy_link_post(fy_link *link, uint32_t type, const void *head, size_t head_bytes,
                          const void *body, size_t body_bytes, ferry_error *error)
{
    if (link->status != FERRY_OK) {
        return tell(link, error);
    }
    if (!link->is_ready) {
        return fy_fail(error, FERRY_ERR_MISUSE, "a message to %s before the handshake was done",
                       link->peer);
    }
    if (head_bytes > FY_LINK_PAYLOAD_BYTES || body_bytes > FY_LINK_PAYLOAD_BYTES - head_bytes) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "a control message of %zu + %zu bytes; at most %d are allowed", head_bytes,
                       body_bytes, FY_LINK_PAYLOAD_BYTES);
    }
    if (!make_room(&link->out, HEADER_BYTES + head_bytes + body_bytes + FY_AUTH_MAC_BYTES)) {
        return fy_fail_no_memory(error, "a control message");
    }
    pack_message(link, type, head, head_bytes, body, body_bytes);
    if (!flush(link)) {
        fail_to_send(link, errno);
        return tell(link, error);
    }
    return FERRY_OK;
}

size_t fy_link_queued_bytes(const fy_link *link)
{
    return link->out.end - link->out.begin;
}

static int64_t end_of(int64_t limit_ns)
{
    int64_t now = fy_now_ns();
    return limit_ns > INT64_MAX - now ? INT64_MAX : now + limit_ns;
}

/* Waits until the socket can be worked with, and works. False: the time is over. */
static bool work_until(fy_link *link, int64_t end_ns, ferry_status *status_out, ferry_error *error)
{
    enum { MOST_MS = 60000 };
    struct pollfd item = {.fd = link->fd, .events = fy_link_events(link)};
    int64_t left = end_ns - fy_now_ns();
    int64_t ms = left <= 0 ? 0 : left / 1000000 + 1;
    if (poll(&item, 1, ms > MOST_MS ? MOST_MS : (int)ms) < 0 && errno != EINTR) {
        *status_out =
            fy_fail(error, FERRY_ERR_IO, "cannot wait for %s: %s", link->peer, strerror(errno));
    } else {
        *status_out = fy_link_work(link, error);
    }
    return left > 0;
}

ferry_status fy_link_receive(fy_link *link, int64_t limit_ns, fy_message *message_out,
                             ferry_error *error)
{
    ferry_status status = FERRY_OK;
    int64_t end = end_of(limit_ns);
    bool time_left = true;
    while (!fy_link_take(link, message_out)) {
        if (status != FERRY_OK) {
            return status;
        }
        if (!time_left) {
            return fy_fail(error, FERRY_ERR_TIMEOUT, "%s sent no message within %.3g s", link->peer,
                           (double)limit_ns / 1e9);
        }
        time_left = work_until(link, end, &status, error);
    }
    return FERRY_OK;
}

ferry_status fy_link_drain(fy_link *link, int64_t limit_ns, ferry_error *error)
{
    ferry_status status = link->status == FERRY_OK ? FERRY_OK : tell(link, error);
    int64_t end = end_of(limit_ns);
    bool time_left = true;
    while (status == FERRY_OK && link->out.begin < link->out.end) {
        if (!time_left) {
            return fy_fail(error, FERRY_ERR_TIMEOUT,
                           "%s took no more within %.3g s: %zu bytes are left", link->peer,
                           (double)limit_ns / 1e9, fy_link_queued_bytes(link));
        }
        time_left = work_until(link, end, &status, error);
    }
    return status;
}

int64_t fy_link_heard_ns(const fy_link *link)
{
    return link->heard_ns;
}

/*
 * With nothing in flight there is nothing that a living kernel would have to answer: true, until
 * the owner's next sign of life is sent. A stopped process whose window is full has nothing in
 * flight either; there the kernel asks by probes, of which a living machine answers each before the
 * next is sent.
 */
bool fy_link_acknowledged(const fy_link *link, int64_t within_ns)
{
    struct tcp_info info;
    socklen_t length = sizeof info;
    if (!link->is_tcp || getsockopt(link->fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) {
        return true;
    }
    if (info.tcpi_unacked == 0 && info.tcpi_probes < 2) {
        return true;
    }
    int64_t silent_ns = (int64_t)info.tcpi_last_ack_recv * 1000000;
    int64_t waiting_ns = fy_now_ns() - link->waiting_ns;
    return silent_ns <= within_ns || waiting_ns <= within_ns;
}

void fy_link_peer_text(const fy_link *link, char text[128])
{
    memcpy(text, link->peer, sizeof link->peer);
}

void fy_link_own_host(const fy_link *link, char text[64])
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;
    text[0] = '\0';
    if (getsockname(link->fd, (struct sockaddr *)&address, &length) == 0) {
        fy_address_text(&address, false, text, 64);
    }
}
