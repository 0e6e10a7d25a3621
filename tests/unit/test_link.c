/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Links over socket pairs. Where the wire itself matters, the two links hang on a wire of this
 * test, which carries bytes from one to the other and may change, cut or repeat them.
 */
#include "world/link.h"

#include "base/alloc.h"
#include "world/auth.h"

#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CLIENT, SERVER, HELLO = FY_HELLO_BYTES, PROOF = 36, VERDICT = 37, HEADER = 24, MAC = 16 };

static const unsigned char key[FY_KEY_BYTES] = "the key of these ranks";
static const unsigned char other[FY_KEY_BYTES] = "another key";

/* --- The wire --- */

typedef struct wire {
    fy_link *links[2];
    int ends[2]; /* the test's: what links[i] sends comes out of ends[i] */
} wire;

static fy_link *make_link(int fd, bool server, const unsigned char *its_key)
{
    ferry_error error;
    fy_link *link = NULL;
    must(fy_link_create(fd, server, its_key, &link, &error), &error);
    return link;
}

static void make_wire(wire *w, const unsigned char *client_key, const unsigned char *server_key)
{
    for (int side = CLIENT; side <= SERVER; side++) {
        int fds[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        assert_int_equal(fcntl(fds[1], F_SETFL, O_NONBLOCK), 0);
        w->links[side] =
            make_link(fds[0], side == SERVER, side == CLIENT ? client_key : server_key);
        w->ends[side] = fds[1];
    }
}

static void end_wire(wire *w)
{
    for (int side = CLIENT; side <= SERVER; side++) {
        fy_link_destroy(w->links[side]);
        if (w->ends[side] >= 0) {
            close(w->ends[side]);
        }
    }
}

/* Hangs up on one side. */
static void cut(wire *w, int side)
{
    close(w->ends[side]);
    w->ends[side] = -1;
}

/* What a link has sent and nobody has carried yet. */
static size_t collect(const wire *w, int from, unsigned char *bytes, size_t most)
{
    size_t n = 0;
    for (;;) {
        ssize_t got = recv(w->ends[from], bytes + n, most - n, 0);
        if (got <= 0) {
            return n;
        }
        n += (size_t)got;
    }
}

static void deliver(const wire *w, int to, const void *bytes, size_t n_bytes)
{
    if (n_bytes > 0) {
        assert_int_equal(send(w->ends[to], bytes, n_bytes, MSG_NOSIGNAL), (ssize_t)n_bytes);
    }
}

typedef struct outcome {
    ferry_status status[2];
    ferry_error error[2];
} outcome;

/*
 * Lets both sides work and carries everything until all is silent, but byte number `at` of what
 * `from` sends is changed by mask (at < 0: none), and `from` is silent after `most` bytes.
 */
static outcome carry(wire *w, int from, long at, unsigned char mask, size_t most)
{
    outcome o = {.status = {FERRY_OK, FERRY_OK}};
    size_t passed[2] = {0, 0};
    bool moved = true;
    unsigned char bytes[4096];
    while (moved) {
        moved = false;
        for (int side = CLIENT; side <= SERVER; side++) {
            if (o.status[side] == FERRY_OK) {
                o.status[side] = fy_link_work(w->links[side], &o.error[side]);
            }
            size_t n = collect(w, side, bytes, sizeof bytes);
            moved = moved || n > 0;
            if (side == from) {
                if (at >= (long)passed[side] && at < (long)(passed[side] + n)) {
                    bytes[at - (long)passed[side]] ^= mask;
                }
                size_t left = passed[side] < most ? most - passed[side] : 0;
                deliver(w, !side, bytes, n < left ? n : left);
            } else {
                deliver(w, !side, bytes, n);
            }
            passed[side] += n;
        }
    }
    return o;
}

static void shake_hands(wire *w)
{
    make_wire(w, key, key);
    outcome o = carry(w, CLIENT, -1, 0, SIZE_MAX);
    must(o.status[CLIENT], &o.error[CLIENT]);
    must(o.status[SERVER], &o.error[SERVER]);
    assert_true(fy_link_ready(w->links[CLIENT]) && fy_link_ready(w->links[SERVER]));
}

static void post_text(fy_link *link, uint32_t type, const char *text)
{
    ferry_error error;
    must(fy_link_post(link, type, text, 1, text + 1, strlen(text) - 1, &error), &error);
}

static void expect_text(fy_link *link, uint32_t type, const char *text)
{
    fy_message message;
    check_row(text, fy_link_take(link, &message));
    check_row(text, message.type == type && message.n_bytes == strlen(text));
    check_row(text, memcmp(message.payload, text, message.n_bytes) == 0);
}

static void expect_nothing(fy_link *link)
{
    fy_message message;
    assert_false(fy_link_take(link, &message));
}

/* --- Handshake --- */

static void test_handshake(void **state)
{
    (void)state;
    wire w;
    ferry_error error;
    make_wire(&w, key, key);
    assert_false(fy_link_ready(w.links[CLIENT]));
    assert_int_equal(fy_link_events(w.links[CLIENT]), POLLIN | POLLOUT);
    assert_int_equal(fy_link_post(w.links[CLIENT], 1, "x", 1, NULL, 0, &error), FERRY_ERR_MISUSE);
    outcome o = carry(&w, CLIENT, -1, 0, SIZE_MAX);
    must(o.status[CLIENT], &o.error[CLIENT]);
    must(o.status[SERVER], &o.error[SERVER]);
    for (int side = CLIENT; side <= SERVER; side++) {
        assert_true(fy_link_ready(w.links[side]));
        assert_int_equal(fy_link_events(w.links[side]), POLLIN);
        assert_int_equal(fy_link_queued_bytes(w.links[side]), 0);
        assert_true(fy_link_acknowledged(w.links[side], 0));
        expect_nothing(w.links[side]);
    }
    post_text(w.links[CLIENT], 7, "to the server");
    post_text(w.links[SERVER], 8, "to the client");
    carry(&w, CLIENT, -1, 0, SIZE_MAX);
    expect_text(w.links[SERVER], 7, "to the server");
    expect_text(w.links[CLIENT], 8, "to the client");
    char text[128];
    fy_link_peer_text(w.links[CLIENT], text);
    assert_string_equal(text, "a unix socket");
    fy_link_own_host(w.links[CLIENT], text);
    assert_string_equal(text, "");
    end_wire(&w);
}

static void test_wrong_key(void **state)
{
    (void)state;
    wire w;
    make_wire(&w, other, key);
    outcome o = carry(&w, CLIENT, -1, 0, SIZE_MAX);
    for (int side = CLIENT; side <= SERVER; side++) {
        check_status("wrong key", FERRY_ERR_DENIED, o.status[side], &o.error[side]);
        check_says("wrong key", "FERRY_SECRET", &o.error[side]);
        assert_false(fy_link_ready(w.links[side]));
        assert_int_equal(fy_link_events(w.links[side]), 0);
        /* It stays dead, for the same reason. */
        ferry_error error;
        check_status("again", FERRY_ERR_DENIED, fy_link_work(w.links[side], &error), &error);
        assert_string_equal(error.message, o.error[side].message);
        assert_int_equal(fy_link_post(w.links[side], 1, "x", 1, NULL, 0, &error), FERRY_ERR_DENIED);
        assert_int_equal(fy_link_drain(w.links[side], 0, &error), FERRY_ERR_DENIED);
    }
    end_wire(&w);
}

/* A proven peer of another version is told, and tells; one that proves nothing learns nothing. */
static void test_other_version(void **state)
{
    (void)state;
    for (int client_newer = 0; client_newer <= 1; client_newer++) {
        wire w;
        uint32_t ours = fy_auth_version();
        for (int proven = 1; proven >= 0; proven--) {
            int fds[2][2];
            for (int side = CLIENT; side <= SERVER; side++) {
                assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds[side]), 0);
                assert_int_equal(fcntl(fds[side][1], F_SETFL, O_NONBLOCK), 0);
                fy_auth_set_version_for_test((side == CLIENT) == client_newer ? 4711 : 0);
                w.links[side] = make_link(fds[side][0], side == SERVER,
                                          side == CLIENT && !proven ? other : key);
                w.ends[side] = fds[side][1];
            }
            fy_auth_set_version_for_test(0);
            assert_int_equal(fy_auth_version(), ours);
            outcome o = carry(&w, CLIENT, -1, 0, SIZE_MAX);
            for (int side = CLIENT; side <= SERVER; side++) {
                check_status("version", proven ? FERRY_ERR_INVALID_INPUT : FERRY_ERR_DENIED,
                             o.status[side], &o.error[side]);
                check_at((strstr(o.error[side].message, "version 4711") != NULL) == proven, "%s",
                         o.error[side].message);
                char said[2][32];
                snprintf(said[0], sizeof said[0], "version %u:", ours);
                snprintf(said[1], sizeof said[1], "version %u of", ours);
                check_at((strstr(o.error[side].message, said[0]) != NULL ||
                          strstr(o.error[side].message, said[1]) != NULL) == proven,
                         "%s", o.error[side].message);
                assert_false(fy_link_ready(w.links[side]));
            }
            end_wire(&w);
        }
    }
}

/* A handshake that stops after any number of bytes, by silence and by hanging up. */
static void test_truncated_handshakes(void **state)
{
    (void)state;
    for (int from = CLIENT; from <= SERVER; from++) {
        size_t whole = HELLO + (from == CLIENT ? PROOF : VERDICT);
        for (size_t n = 0; n < whole; n++) {
            wire w;
            make_wire(&w, key, key);
            outcome o = carry(&w, from, -1, 0, n);
            check_at(o.status[!from] == FERRY_OK && !fy_link_ready(w.links[!from]), "%zu bytes", n);
            assert_int_equal(fy_link_events(w.links[!from]), POLLIN);
            cut(&w, !from);
            ferry_error error;
            check_status("cut", FERRY_ERR_PEER_LOST, fy_link_work(w.links[!from], &error), &error);
            assert_false(fy_link_ready(w.links[!from]));
            expect_nothing(w.links[!from]);
            end_wire(&w);
        }
        wire w;
        make_wire(&w, key, key);
        carry(&w, from, -1, 0, whole);
        assert_true(fy_link_ready(w.links[!from]));
        end_wire(&w);
    }
}

/* Whoever gets a handshake with one wrong bit believes nothing. */
static void test_flipped_handshakes(void **state)
{
    (void)state;
    for (int from = CLIENT; from <= SERVER; from++) {
        long whole = HELLO + (from == CLIENT ? PROOF : VERDICT);
        for (long at = 0; at < whole; at++) {
            for (int bit = 0; bit < 8; bit++) {
                wire w;
                make_wire(&w, key, key);
                outcome o = carry(&w, from, at, (unsigned char)(1 << bit), SIZE_MAX);
                ferry_status status = o.status[!from];
                check_at(!fy_link_ready(w.links[!from]), "byte %ld bit %d", at, bit);
                check_at(status == FERRY_ERR_DENIED || status == FERRY_ERR_INVALID_INPUT,
                         "byte %ld bit %d: %s", at, bit, o.error[!from].message);
                check_at(at >= 9 || status == FERRY_ERR_INVALID_INPUT, "byte %ld", at);
                /* No flip is taken for another version. */
                check_at(strstr(o.error[!from].message, "speaks") == NULL, "byte %ld", at);
                end_wire(&w);
            }
        }
    }
}

static void test_strangers(void **state)
{
    (void)state;
    static const struct {
        const char *name, *bytes;
        size_t n_bytes;
    } rows[] = {
        {"one byte", "G", 1},
        {"http", "HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n", 40},
        {"ssh", "SSH-2.0-OpenSSH_9.2\r\n", 21},
        {"zeros", "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24},
        {"almost",
         "\xfe"
         "ferry\x1a\r",
         8},
        {"wrong role",
         "\xfe"
         "ferry\x1a\n\x02",
         9},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        for (int side = CLIENT; side <= SERVER; side++) {
            wire w;
            ferry_error error;
            make_wire(&w, key, key);
            deliver(&w, side, rows[i].bytes, rows[i].n_bytes);
            check_status(rows[i].name, FERRY_ERR_INVALID_INPUT, fy_link_work(w.links[side], &error),
                         &error);
            check_row(rows[i].name, !fy_link_ready(w.links[side]));
            end_wire(&w);
        }
    }
}

/* Whoever sends everything back meets itself. */
static void test_mirror(void **state)
{
    (void)state;
    for (int side = CLIENT; side <= SERVER; side++) {
        for (int same_role = 0; same_role <= 1; same_role++) {
            wire w;
            ferry_error error;
            unsigned char bytes[HELLO];
            make_wire(&w, key, key);
            must(fy_link_work(w.links[side], &error), &error);
            assert_int_equal(collect(&w, side, bytes, sizeof bytes), HELLO);
            bytes[8] ^= (unsigned char)!same_role;
            deliver(&w, side, bytes, sizeof bytes);
            check_status("mirror", FERRY_ERR_INVALID_INPUT, fy_link_work(w.links[side], &error),
                         &error);
            end_wire(&w);
        }
    }
}

/* A stranger that talks on and on is not listened to: the kernel keeps what it sends. */
static void test_nothing_is_kept_for_strangers(void **state)
{
    (void)state;
    static unsigned char noise[1 << 16];
    wire w;
    ferry_error error;
    make_wire(&w, key, key);
    carry(&w, CLIENT, -1, 0, HELLO); /* the server waits for the proof */
    fy_alloc_fail_after(0);          /* and needs no memory for anything that comes instead */
    ssize_t sent = send(w.ends[SERVER], noise, sizeof noise, MSG_NOSIGNAL);
    assert_true(sent > 1000);
    ferry_status status = fy_link_work(w.links[SERVER], &error);
    fy_alloc_fail_after(-1);
    check_status("noise", FERRY_ERR_DENIED, status, &error);
    end_wire(&w);
}

/* --- Messages --- */

static void test_byte_by_byte(void **state)
{
    (void)state;
    wire w;
    outcome o;
    unsigned char bytes[4096];
    make_wire(&w, key, key);
    for (int round = 0; round < 2; round++) {
        for (bool moved = true; moved;) {
            moved = false;
            for (int side = CLIENT; side <= SERVER; side++) {
                must(fy_link_work(w.links[side], &o.error[side]), &o.error[side]);
                size_t n = collect(&w, side, bytes, sizeof bytes);
                for (size_t i = 0; i < n; i++) {
                    deliver(&w, !side, bytes + i, 1);
                    must(fy_link_work(w.links[!side], &o.error[side]), &o.error[side]);
                }
                moved = moved || n > 0;
            }
        }
        if (round == 0) {
            post_text(w.links[CLIENT], 1, "first");
            must(fy_link_post(w.links[CLIENT], 2, NULL, 0, NULL, 0, &o.error[0]), &o.error[0]);
            post_text(w.links[CLIENT], UINT32_MAX, "last");
            post_text(w.links[SERVER], 4, "answer");
        }
    }
    expect_text(w.links[SERVER], 1, "first");
    expect_text(w.links[SERVER], 2, "");
    expect_text(w.links[SERVER], UINT32_MAX, "last");
    expect_nothing(w.links[SERVER]);
    expect_text(w.links[CLIENT], 4, "answer");
    end_wire(&w);
}

/* A wrong bit ends the link; what came whole before it can still be taken, what follows not. */
static void test_flipped_messages(void **state)
{
    (void)state;
    static const char text[] = "forty bytes of which none may be changed";
    enum { WHOLE = HEADER + sizeof text - 1 + MAC };
    for (int from = CLIENT; from <= SERVER; from++) {
        for (long at = 0; at < WHOLE; at++) {
            wire w;
            shake_hands(&w);
            post_text(w.links[from], 1, "before");
            carry(&w, from, -1, 0, SIZE_MAX);
            post_text(w.links[from], 2, text);
            post_text(w.links[from], 3, "behind");
            outcome o = carry(&w, from, at, (unsigned char)(1 << at % 8), SIZE_MAX);
            check_status("flipped", FERRY_ERR_DENIED, o.status[!from], &o.error[!from]);
            check_says("flipped", "message 1 ", &o.error[!from]);
            expect_text(w.links[!from], 1, "before");
            expect_nothing(w.links[!from]);
            end_wire(&w);
        }
    }
}

/* Each row says which recorded messages the server gets, in which order. */
static void test_replay_and_order(void **state)
{
    (void)state;
    static const struct {
        const char *name, *order;
        size_t n_good;
    } rows[] = {
        {"in order", "012", 3}, {"repeated", "001", 1},  {"all again", "0120", 3},
        {"swapped", "102", 0},  {"left out", "02", 1},   {"first left out", "12", 0},
        {"mirrored", "0m", 1},  {"of another", "0x", 1},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        wire w, x;
        unsigned char frames[3][256], mirrored[256], foreign[2][256];
        size_t n[3], n_mirrored, n_foreign = 0;
        shake_hands(&w);
        shake_hands(&x);
        for (uint32_t m = 0; m < 3; m++) {
            post_text(w.links[CLIENT], m, "same text");
            n[m] = collect(&w, CLIENT, frames[m], sizeof frames[m]);
        }
        post_text(w.links[SERVER], 1, "same text");
        n_mirrored = collect(&w, SERVER, mirrored, sizeof mirrored);
        for (uint32_t m = 0; m < 2; m++) {
            post_text(x.links[CLIENT], m, "same text");
            n_foreign = collect(&x, CLIENT, foreign[m], sizeof foreign[m]);
        }
        for (const char *c = rows[i].order; *c != '\0'; c++) {
            const unsigned char *bytes = *c == 'm'   ? mirrored
                                         : *c == 'x' ? foreign[1]
                                                     : frames[*c - '0'];
            deliver(&w, SERVER, bytes,
                    *c == 'm'   ? n_mirrored
                    : *c == 'x' ? n_foreign
                                : n[*c - '0']);
        }
        ferry_error error;
        ferry_status status = fy_link_work(w.links[SERVER], &error);
        check_status(rows[i].name, i == 0 ? FERRY_OK : FERRY_ERR_DENIED, status, &error);
        for (uint32_t m = 0; m < rows[i].n_good; m++) {
            expect_text(w.links[SERVER], m, "same text");
        }
        expect_nothing(w.links[SERVER]);
        end_wire(&w);
        end_wire(&x);
    }
}

static void test_end_in_the_middle(void **state)
{
    (void)state;
    unsigned char bytes[256];
    for (size_t most = 0; most < HEADER + 6 + MAC; most++) {
        wire w;
        ferry_error error;
        shake_hands(&w);
        post_text(w.links[CLIENT], 1, "whole");
        deliver(&w, SERVER, bytes, collect(&w, CLIENT, bytes, sizeof bytes));
        post_text(w.links[CLIENT], 2, "parted");
        collect(&w, CLIENT, bytes, sizeof bytes);
        deliver(&w, SERVER, bytes, most);
        cut(&w, SERVER);
        check_status("cut", FERRY_ERR_PEER_LOST, fy_link_work(w.links[SERVER], &error), &error);
        check_says("cut", "closed the connection", &error);
        /* Sending finds out too, and never by a signal. */
        assert_int_equal(fy_link_post(w.links[SERVER], 1, "x", 1, NULL, 0, &error),
                         FERRY_ERR_PEER_LOST);
        assert_true(fy_link_ready(w.links[SERVER]));
        fy_message message;
        must(fy_link_receive(w.links[SERVER], 0, &message, &error), &error);
        assert_int_equal(message.type, 1);
        assert_int_equal(fy_link_receive(w.links[SERVER], 0, &message, &error),
                         FERRY_ERR_PEER_LOST);
        end_wire(&w);
    }
}

/* What came before a connection broke is there, though sending noticed it first. */
static void test_post_to_nobody(void **state)
{
    (void)state;
    unsigned char bytes[256];
    wire w;
    ferry_error error;
    shake_hands(&w);
    post_text(w.links[CLIENT], 9, "the reason");
    deliver(&w, SERVER, bytes, collect(&w, CLIENT, bytes, sizeof bytes));
    cut(&w, SERVER);
    assert_int_equal(fy_link_post(w.links[SERVER], 1, "x", 1, NULL, 0, &error),
                     FERRY_ERR_PEER_LOST);
    assert_int_equal(fy_link_queued_bytes(w.links[SERVER]), 0);
    expect_text(w.links[SERVER], 9, "the reason");
    end_wire(&w);
}

/* --- Much --- */

static void make_pair(fy_link *links[2])
{
    int fds[2];
    ferry_error error;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    links[CLIENT] = make_link(fds[0], false, key);
    links[SERVER] = make_link(fds[1], true, key);
    while (!fy_link_ready(links[CLIENT]) || !fy_link_ready(links[SERVER])) {
        must(fy_link_work(links[CLIENT], &error), &error);
        must(fy_link_work(links[SERVER], &error), &error);
    }
}

static void fill(unsigned char *bytes, size_t n_bytes, uint32_t seed)
{
    for (size_t i = 0; i < n_bytes; i++) {
        seed = seed * 1664525 + 1013904223;
        bytes[i] = (unsigned char)(seed >> 24);
    }
}

static void test_large_messages(void **state)
{
    (void)state;
    enum { N = 12, MOST = FY_LINK_PAYLOAD_BYTES };
    fy_link *links[2];
    ferry_error error;
    unsigned char *sent = malloc(MOST), *expected = malloc(MOST);
    uint32_t taken[2] = {0, 0};
    assert_true(sent != NULL && expected != NULL);
    make_pair(links);
    assert_int_equal(fy_link_post(links[0], 1, sent, MOST, sent, 1, &error), FERRY_ERR_LIMIT);
    assert_int_equal(fy_link_post(links[0], 1, sent, SIZE_MAX, sent, 2, &error), FERRY_ERR_LIMIT);
    for (uint32_t m = 0; m < N; m++) {
        for (int side = CLIENT; side <= SERVER; side++) {
            fill(sent, MOST - m, m * 2 + (uint32_t)side);
            must(fy_link_post(links[side], m, sent, m * 1000, sent + m * 1000, MOST - m - m * 1000,
                              &error),
                 &error);
        }
    }
    assert_true(fy_link_queued_bytes(links[0]) > 0);
    while (taken[CLIENT] < N || taken[SERVER] < N) {
        for (int side = CLIENT; side <= SERVER; side++) {
            fy_message message;
            must(fy_link_work(links[side], &error), &error);
            while (fy_link_take(links[side], &message)) {
                uint32_t m = taken[side]++;
                fill(expected, MOST - m, m * 2 + (uint32_t)!side);
                assert_true(message.type == m && message.n_bytes == MOST - m);
                assert_memory_equal(message.payload, expected, message.n_bytes);
            }
        }
    }
    for (int side = CLIENT; side <= SERVER; side++) {
        assert_int_equal(fy_link_queued_bytes(links[side]), 0);
        fy_link_destroy(links[side]);
    }
    free(sent);
    free(expected);
}

static void test_many_small_messages(void **state)
{
    (void)state;
    enum { N = 100000 };
    fy_link *links[2];
    ferry_error error;
    uint32_t posted[2] = {0, 0}, taken[2] = {0, 0};
    make_pair(links);
    while (taken[CLIENT] < N || taken[SERVER] < N) {
        for (int side = CLIENT; side <= SERVER; side++) {
            for (int i = 0; i < 700 && posted[side] < N; i++) {
                uint32_t m = posted[side]++;
                must(fy_link_post(links[side], m, &m, m % 5, &m, m % 3, &error), &error);
            }
            fy_message message;
            must(fy_link_work(links[side], &error), &error);
            while (fy_link_take(links[side], &message)) {
                uint32_t m = taken[side]++;
                assert_int_equal(message.type, m);
                assert_int_equal(message.n_bytes, m % 5 + m % 3);
                assert_memory_equal(message.payload, &m, m % 5);
                assert_memory_equal(message.payload + m % 5, &m, m % 3);
            }
        }
    }
    fy_link_destroy(links[CLIENT]);
    fy_link_destroy(links[SERVER]);
}

/* An owner that does not take is not filled without end, and finds everything when it does. */
static void test_slow_owner(void **state)
{
    (void)state;
    enum { N = 40, BYTES = 500000 };
    static unsigned char bytes[BYTES];
    fy_link *links[2];
    ferry_error error;
    fy_message message;
    uint32_t taken = 0;
    make_pair(links);
    for (uint32_t m = 0; m < N; m++) {
        must(fy_link_post(links[CLIENT], m, bytes, BYTES, NULL, 0, &error), &error);
    }
    while ((fy_link_events(links[SERVER]) & POLLIN) != 0) {
        must(fy_link_work(links[SERVER], &error), &error);
        must(fy_link_work(links[CLIENT], &error), &error);
    }
    assert_true(fy_link_queued_bytes(links[CLIENT]) > BYTES);
    while (taken < N) {
        if (fy_link_take(links[SERVER], &message)) {
            assert_int_equal(message.type, taken++);
        } else {
            must(fy_link_work(links[CLIENT], &error), &error);
            must(fy_link_work(links[SERVER], &error), &error);
        }
    }
    must(fy_link_drain(links[CLIENT], 0, &error), &error);
    fy_link_destroy(links[CLIENT]);
    fy_link_destroy(links[SERVER]);
}

static void test_limits_of_waiting(void **state)
{
    (void)state;
    static unsigned char bytes[FY_LINK_PAYLOAD_BYTES];
    fy_link *links[2];
    ferry_error error;
    fy_message message;
    make_pair(links);
    assert_int_equal(fy_link_receive(links[CLIENT], 1000000, &message, &error), FERRY_ERR_TIMEOUT);
    check_says("receive", "no message", &error);
    assert_int_equal(fy_link_receive(links[CLIENT], -5, &message, &error), FERRY_ERR_TIMEOUT);
    post_text(links[SERVER], 3, "late");
    must(fy_link_receive(links[CLIENT], INT64_MAX, &message, &error), &error);
    assert_int_equal(message.type, 3);
    must(fy_link_post(links[CLIENT], 4, bytes, sizeof bytes, NULL, 0, &error), &error);
    assert_int_equal(fy_link_drain(links[CLIENT], 1000000, &error), FERRY_ERR_TIMEOUT);
    check_says("drain", "bytes are left", &error);
    int64_t heard = fy_link_heard_ns(links[SERVER]);
    must(fy_link_work(links[SERVER], &error), &error);
    assert_true(fy_link_heard_ns(links[SERVER]) > heard);
    fy_link_destroy(links[CLIENT]);
    fy_link_destroy(links[SERVER]);
}

/* --- Faults --- */

static size_t count_descriptors(void)
{
    size_t n = 0;
    for (int fd = 0; fd < 200; fd++) {
        n += fcntl(fd, F_GETFD) >= 0;
    }
    return n;
}

static void test_creation_takes_the_socket(void **state)
{
    (void)state;
    int fds[2];
    ferry_error error;
    fy_link *link = NULL;
    size_t n = count_descriptors();
    for (int64_t left = 0; left < 2; left++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
        fy_alloc_fail_after(left);
        ferry_status status = fy_link_create(fds[0], true, key, &link, &error);
        fy_alloc_fail_after(-1);
        check_status("create", FERRY_ERR_NO_MEMORY, status, &error);
        close(fds[1]);
        assert_int_equal(count_descriptors(), n);
    }
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    fy_link_destroy(make_link(fds[0], true, key));
    close(fds[1]);
    assert_int_equal(pipe(fds), 0);
    assert_int_not_equal(fy_link_create(fds[0], true, key, &link, &error), FERRY_OK);
    close(fds[1]);
    assert_null(link);
    assert_int_equal(count_descriptors(), n);
    fy_link_destroy(NULL);
}

/* A message for which there is no memory is not sent, and the link lives on. */
static void test_no_memory(void **state)
{
    (void)state;
    static unsigned char bytes[1 << 17];
    wire w;
    ferry_error error;
    shake_hands(&w);
    fy_alloc_fail_after(0);
    ferry_status status = fy_link_post(w.links[CLIENT], 1, bytes, sizeof bytes, NULL, 0, &error);
    fy_alloc_fail_after(-1);
    check_status("post", FERRY_ERR_NO_MEMORY, status, &error);
    post_text(w.links[CLIENT], 2, "small");
    carry(&w, CLIENT, -1, 0, SIZE_MAX);
    expect_text(w.links[SERVER], 2, "small");
    end_wire(&w);
    for (int64_t left = 0; left < 3; left++) {
        make_wire(&w, key, key);
        fy_alloc_fail_after(left);
        carry(&w, CLIENT, -1, 0, SIZE_MAX);
        fy_alloc_fail_after(-1);
        end_wire(&w);
    }
}

/* Control messages are small, and the next one waits for their answers: none is held back for more.
 */
static void test_small_messages_leave_at_once(void **state)
{
    (void)state;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int fds[2] = {socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), -1};
    assert_int_equal(bind(listener, (struct sockaddr *)&address, length), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &length), 0);
    assert_int_equal(connect(fds[0], (struct sockaddr *)&address, length), 0);
    fds[1] = accept(listener, NULL, NULL);
    assert_true(fds[1] >= 0);
    for (int side = CLIENT; side <= SERVER; side++) {
        int at_once = 0;
        fy_link *link = make_link(fds[side], side == SERVER, key);
        length = sizeof at_once;
        assert_int_equal(getsockopt(fds[side], IPPROTO_TCP, TCP_NODELAY, &at_once, &length), 0);
        check_at(at_once != 0, "side %d", side);
        fy_link_destroy(link);
    }
    close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_handshake),
        cmocka_unit_test(test_wrong_key),
        cmocka_unit_test(test_other_version),
        cmocka_unit_test(test_truncated_handshakes),
        cmocka_unit_test(test_flipped_handshakes),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_mirror),
        cmocka_unit_test(test_nothing_is_kept_for_strangers),
        cmocka_unit_test(test_byte_by_byte),
        cmocka_unit_test(test_flipped_messages),
        cmocka_unit_test(test_replay_and_order),
        cmocka_unit_test(test_end_in_the_middle),
        cmocka_unit_test(test_post_to_nobody),
        cmocka_unit_test(test_large_messages),
        cmocka_unit_test(test_many_small_messages),
        cmocka_unit_test(test_slow_owner),
        cmocka_unit_test(test_limits_of_waiting),
        cmocka_unit_test(test_creation_takes_the_socket),
        cmocka_unit_test(test_small_messages_leave_at_once),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
