/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Listening, addresses, and connecting: to ranks, strangers, the silent, nobody and oneself. */
#include "base/alloc.h"
#include "world/address.h"
#include "world/auth.h"
#include "world/bell.h"
#include "world/link.h"

#include "support/check.h"
#include "support/emulated.h"
#include "support/port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)

static const unsigned char key[FY_KEY_BYTES] = "the key of these ranks";
static const unsigned char other[FY_KEY_BYTES] = "another key";

/* --- Whoever listens --- */

enum { MOST_LINKS = 80 };

typedef enum manner { RANK, OTHER_KEY, OTHER_VERSION, HTTP, SILENT, HANGS_UP, MANNERS } manner;

typedef struct host {
    pthread_t thread;
    int listener;
    uint16_t port;
    manner manner;
    atomic_bool stop;
    fy_link *links[MOST_LINKS];
    int fds[MOST_LINKS]; /* of strangers */
    size_t n;
    atomic_uint n_ready;
} host;

/* Sends every message back. */
static void serve(fy_link **link)
{
    fy_message message;
    ferry_error error;
    if (fy_link_work(*link, &error) != FERRY_OK) {
        fy_link_destroy(*link);
        *link = NULL;
        return;
    }
    while (fy_link_take(*link, &message)) {
        fy_link_post(*link, message.type + 1, message.payload, message.n_bytes, NULL, 0, NULL);
    }
}

static void welcome(host *h, int fd)
{
    static const char answer[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
    h->fds[h->n] = -1;
    h->links[h->n] = NULL;
    if (h->manner == HANGS_UP) {
        close(fd);
    } else if (h->manner == RANK || h->manner == OTHER_KEY) {
        fy_link_create(fd, true, h->manner == RANK ? key : other, &h->links[h->n], NULL);
    } else if (h->manner == OTHER_VERSION) {
        struct pollfd item = {.fd = fd, .events = POLLIN};
        poll(&item, 1, -1); /* then the client's link exists, and keeps its version */
        fy_auth_set_version_for_test(4711);
        fy_link_create(fd, true, key, &h->links[h->n], NULL);
        fy_auth_set_version_for_test(0);
    } else {
        h->fds[h->n] = fd;
        if (h->manner == HTTP) {
            send(fd, answer, sizeof answer - 1, MSG_NOSIGNAL);
        }
    }
    h->n += h->n < MOST_LINKS - 1;
}

static void *host_main(void *context)
{
    host *h = context;
    while (!atomic_load(&h->stop)) {
        struct pollfd items[MOST_LINKS + 1] = {{.fd = h->listener, .events = POLLIN}};
        unsigned n_ready = 0;
        for (size_t i = 0; i < h->n; i++) {
            items[1 + i].fd = h->links[i] == NULL ? -1 : fy_link_fd(h->links[i]);
            items[1 + i].events = h->links[i] == NULL ? 0 : fy_link_events(h->links[i]);
        }
        poll(items, h->n + 1, 10);
        int fd = accept(h->listener, NULL, NULL);
        if (fd >= 0) {
            welcome(h, fd);
        }
        for (size_t i = 0; i < h->n; i++) {
            if (h->links[i] != NULL) {
                serve(&h->links[i]);
            }
            n_ready += h->links[i] != NULL && fy_link_ready(h->links[i]);
        }
        atomic_store(&h->n_ready, n_ready);
    }
    return NULL;
}

static void start_on(host *h, manner how, const char *address, uint16_t port)
{
    ferry_error error;
    *h = (host){.manner = how};
    must(fy_listen(address, port, &h->listener, &h->port, &error), &error);
    assert_int_equal(pthread_create(&h->thread, NULL, host_main, h), 0);
}

static void start(host *h, manner how)
{
    start_on(h, how, NULL, 0);
}

static void end(host *h)
{
    atomic_store(&h->stop, true);
    pthread_join(h->thread, NULL);
    for (size_t i = 0; i < h->n; i++) {
        fy_link_destroy(h->links[i]);
        if (h->links[i] == NULL && h->fds[i] >= 0) {
            close(h->fds[i]);
        }
    }
    close(h->listener);
}

/* Ports on which nobody listens, claimed before any test counts descriptors. */
enum { N_PORTS = 12 };
static uint16_t ports[N_PORTS];

static int claim_ports(void **state)
{
    (void)state;
    for (int i = 0; i < N_PORTS; i++) {
        int claim; /* until this process ends */
        ports[i] = claim_port(&claim);
    }
    return 0;
}

static uint16_t free_port(void)
{
    static int n_given;
    assert_true(n_given < N_PORTS);
    return ports[n_given++];
}

static size_t count_descriptors(void)
{
    size_t n = 0;
    for (int fd = 0; fd < 300; fd++) {
        n += fcntl(fd, F_GETFD) >= 0;
    }
    return n;
}

static void echo(fy_link *link)
{
    ferry_error error;
    fy_message message;
    must(fy_link_post(link, 40, "ping", 4, NULL, 0, &error), &error);
    must(fy_link_receive(link, 60 * SECOND, &message, &error), &error);
    assert_true(message.type == 41 && message.n_bytes == 4);
    assert_memory_equal(message.payload, "ping", 4);
}

/* --- Listening and addresses --- */

static void test_parse(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host, *port, *says;
    } rows[] = {
        {"node1:29500", "node1", "29500", NULL},
        {"10.0.0.3:1", "10.0.0.3", "1", NULL},
        {"[::1]:65535", "::1", "65535", NULL},
        {"[fe80::1%eth0]:80", "fe80::1%eth0", "80", NULL},
        {"", NULL, NULL, "HOST:PORT"},
        {"node1", NULL, NULL, "HOST:PORT"},
        {":29500", NULL, NULL, "HOST:PORT"},
        {"node1:", NULL, NULL, "HOST:PORT"},
        {"node1:0", NULL, NULL, "65535"},
        {"node1:65536", NULL, NULL, "65535"},
        {"node1:29500x", NULL, NULL, "HOST:PORT"},
        {"node1:-1", NULL, NULL, "HOST:PORT"},
        {"node1:11111111111111111111", NULL, NULL, "HOST:PORT"},
        {"::1:29500", NULL, NULL, "[ADDRESS]:PORT"},
        {"[]:29500", "[]", "29500", NULL}, /* a name that is not found */
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char name[FY_HOST_BYTES], port[FY_PORT_BYTES];
        ferry_error error;
        ferry_status status =
            fy_address_parse(rows[i].text, strlen(rows[i].text), name, port, &error);
        check_status(rows[i].text, rows[i].says == NULL ? FERRY_OK : FERRY_ERR_INVALID_INPUT,
                     status, &error);
        if (rows[i].says != NULL) {
            check_says(rows[i].text, rows[i].says, &error);
        } else {
            check_row(rows[i].text, strcmp(name, rows[i].host) == 0);
            check_row(rows[i].text, strcmp(port, rows[i].port) == 0);
        }
    }
    char long_text[400], name[FY_HOST_BYTES], port[FY_PORT_BYTES];
    ferry_error error;
    memset(long_text, 'x', sizeof long_text);
    memcpy(long_text + 390, ":29500", 6);
    assert_int_equal(fy_address_parse(long_text, 396, name, port, &error), FERRY_ERR_INVALID_INPUT);
    assert_int_equal(fy_address_parse(long_text, 390, name, port, &error), FERRY_ERR_INVALID_INPUT);
}

static void test_listen(void **state)
{
    (void)state;
    ferry_error error;
    int fd, second = -1;
    uint16_t port, again = 0;
    size_t n = count_descriptors();
    must(fy_listen(NULL, 0, &fd, &port, &error), &error);
    assert_true(port > 0);
    assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0 && (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    const char *const hosts[] = {NULL, "127.0.0.1", "localhost"};
    for (size_t i = 0; i < COUNT_OF(hosts); i++) {
        char number[16];
        check_status("taken", FERRY_ERR_IO, fy_listen(hosts[i], port, &second, &again, &error),
                     &error);
        snprintf(number, sizeof number, "port %u", port);
        check_says("taken", number, &error);
        check_says("taken", "FERRY_PORT", &error);
    }
    check_status("foreign", FERRY_ERR_INVALID_INPUT,
                 fy_listen("192.0.2.77", 0, &second, &again, &error), &error);
    check_says("foreign", "192.0.2.77 is not an address of this machine", &error);
    check_status("unknown", FERRY_ERR_INVALID_INPUT,
                 fy_listen("no such host", 0, &second, &again, &error), &error);
    check_says("unknown", "\"no such host\" is not found", &error);
    assert_true(second == -1 && again == 0);
    close(fd);
    must(fy_listen("127.0.0.1", port, &fd, &again, &error), &error); /* at once */
    assert_int_equal(port, again);
    close(fd);
    assert_int_equal(count_descriptors(), n);
}

static void test_own_addresses(void **state)
{
    (void)state;
    ferry_error error;
    char text[FY_ADDRESSES_BYTES], wanted[32];
    must(fy_own_addresses("node7", 41000, text, &error), &error);
    assert_string_equal(text, "node7:41000");
    must(fy_own_addresses("fd00::7", 41000, text, &error), &error);
    assert_string_equal(text, "[fd00::7]:41000");
    must(fy_own_addresses("[fd00::7]", 41000, text, &error), &error);
    assert_string_equal(text, "[fd00::7]:41000");
    assert_int_equal(fy_own_addresses("a,b", 1, text, &error), FERRY_ERR_INVALID_INPUT);
    assert_int_equal(fy_own_addresses("", 1, text, &error), FERRY_ERR_INVALID_INPUT);

    /* Loopback is there, and nothing but loopback follows it. */
    host h;
    start(&h, RANK);
    must(fy_own_addresses(NULL, h.port, text, &error), &error);
    snprintf(wanted, sizeof wanted, "127.0.0.1:%u", h.port);
    char *loopback = strstr(text, wanted);
    assert_non_null(loopback);
    assert_true(loopback == text || loopback[-1] == ',');
    assert_true(strchr(loopback, ',') == NULL || strncmp(strchr(loopback, ','), ",[::1]", 6) == 0);
    assert_null(strstr(text, "fe80"));
    /* And each of them leads here. */
    for (char *at = strtok(text, ","); at != NULL; at = strtok(NULL, ",")) {
        fy_link *link = NULL;
        must(fy_link_open(at, key, 60 * SECOND, NULL, NULL, &link, &error), &error);
        echo(link);
        fy_link_destroy(link);
    }
    end(&h);
}

/* --- Connecting --- */

static void test_open(void **state)
{
    (void)state;
    size_t n = count_descriptors();
    host h;
    ferry_error error;
    start(&h, RANK);
    const char *const hosts[] = {"127.0.0.1", "localhost", "[::1]"};
    for (size_t i = 0; i < COUNT_OF(hosts); i++) {
        char text[128], own[64], peer[128];
        fy_link *link = NULL;
        snprintf(text, sizeof text, "%s:%u", hosts[i], h.port);
        must(fy_link_open(text, key, 60 * SECOND, NULL, NULL, &link, &error), &error);
        assert_true(fy_link_ready(link));
        echo(link);
        assert_true(fy_link_acknowledged(link, 60 * SECOND));
        fy_link_peer_text(link, peer);
        fy_link_own_host(link, own);
        check_row(hosts[i], i == 1 || strcmp(peer, text) == 0);
        check_row(hosts[i], i == 1 || strcmp(own, i == 0 ? "127.0.0.1" : "::1") == 0);
        fy_link_destroy(link);
    }
    end(&h);
    assert_int_equal(count_descriptors(), n);
}

static void *open_and_echo(void *context)
{
    fy_link *link = NULL;
    ferry_error error;
    fy_message message;
    if (fy_link_open(context, key, 100 * SECOND, NULL, NULL, &link, &error) != FERRY_OK ||
        fy_link_post(link, 1, "x", 1, NULL, 0, &error) != FERRY_OK ||
        fy_link_receive(link, 100 * SECOND, &message, &error) != FERRY_OK) {
        fprintf(stderr, "%s\n", error.message);
        fy_link_destroy(link);
        return NULL;
    }
    return link;
}

/* Many at once, and some of them silent or strangers: none waits for another. */
static void test_many_at_once(void **state)
{
    (void)state;
    enum { N = 64, SILENTS = 8 };
    host h;
    pthread_t threads[N];
    fy_link *links[N];
    int silent[SILENTS];
    char text[64];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    start(&h, RANK);
    address.sin_port = htons(h.port);
    for (size_t i = 0; i < SILENTS; i++) {
        silent[i] = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(connect(silent[i], (struct sockaddr *)&address, sizeof address), 0);
        if (i % 2 == 1) {
            assert_int_equal(send(silent[i], "GET /\r\n", 7, MSG_NOSIGNAL), 7);
        }
    }
    snprintf(text, sizeof text, "127.0.0.1:%u", h.port);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, open_and_echo, text), 0);
    }
    for (size_t i = 0; i < N; i++) {
        pthread_join(threads[i], (void **)&links[i]);
        assert_non_null(links[i]);
    }
    while (atomic_load(&h.n_ready) != N) {
        sched_yield();
    }
    for (size_t i = 0; i < N; i++) {
        fy_link_destroy(links[i]);
    }
    for (size_t i = 0; i < SILENTS; i++) {
        close(silent[i]);
    }
    end(&h);
}

/* What each kind of other side leads to, alone. */
static void test_who_answers(void **state)
{
    (void)state;
    static const struct {
        const char *name, *says;
        ferry_status status;
        bool at_once;
    } rows[MANNERS] = {
        [RANK] = {"rank", NULL, FERRY_OK, true},
        [OTHER_KEY] = {"other key", "FERRY_SECRET", FERRY_ERR_DENIED, true},
        [OTHER_VERSION] = {"other version", "version 4711", FERRY_ERR_INVALID_INPUT, true},
        [HTTP] = {"http", "answers, but is not a ferry rank: the port belongs to another program",
                  FERRY_ERR_INVALID_INPUT, false},
        [SILENT] = {"silent", "says nothing", FERRY_ERR_TIMEOUT, false},
        [HANGS_UP] = {"hangs up", "before it proved the secret", FERRY_ERR_TIMEOUT, false},
    };
    for (manner how = RANK; how < MANNERS; how++) {
        size_t n = count_descriptors();
        host h;
        char text[64];
        ferry_error error;
        fy_link *link = NULL;
        start(&h, how);
        snprintf(text, sizeof text, "127.0.0.1:%u", h.port);
        /* Where it ends at once, a limit of years is not waited for; else there is time enough for
         * the other side to do what it does. */
        int64_t limit = rows[how].at_once ? INT64_MAX : 2 * SECOND;
        ferry_status status = fy_link_open(text, key, limit, NULL, NULL, &link, &error);
        check_status(rows[how].name, rows[how].status, status, &error);
        if (status != FERRY_OK) {
            check_says(rows[how].name, rows[how].says, &error);
            check_says(rows[how].name, text, &error);
            check_row(rows[how].name, link == NULL);
        }
        fy_link_destroy(link);
        end(&h);
        assert_int_equal(count_descriptors(), n);
        /* The port is free at once, even where this side was the first to hang up. */
        must(fy_listen(NULL, h.port, &h.listener, &h.port, &error), &error);
        close(h.listener);
    }
}

static void test_no_memory(void **state)
{
    (void)state;
    size_t n = count_descriptors();
    host h;
    char text[64];
    start(&h, SILENT);
    snprintf(text, sizeof text, "127.0.0.1:%u", h.port);
    for (int64_t left = 0; left < 3; left++) { /* the addresses, the link, its queue */
        ferry_error error;
        fy_link *link = NULL;
        fy_alloc_fail_after(left);
        ferry_status status = fy_link_open(text, key, INT64_MAX, NULL, NULL, &link, &error);
        fy_alloc_fail_after(-1);
        check_status("no memory", FERRY_ERR_NO_MEMORY, status, &error);
        assert_null(link);
    }
    end(&h);
    assert_int_equal(count_descriptors(), n);
}

/* Among several addresses the one with the right rank is found, whatever the others do. */
static void test_several_addresses(void **state)
{
    (void)state;
    for (manner how = RANK; how < MANNERS; how++) {
        host wrong, right;
        char text[256];
        ferry_error error;
        fy_link *link = NULL;
        start(&wrong, how);
        start(&right, RANK);
        snprintf(text, sizeof text, "127.0.0.1:%u,127.0.0.1:%u,[::1]:%u", free_port(), wrong.port,
                 right.port);
        must(fy_link_open(text, key, 60 * SECOND, NULL, NULL, &link, &error), &error);
        echo(link);
        fy_link_destroy(link);
        end(&wrong);
        end(&right);
    }
}

static void test_wrong_secret_among_several(void **state)
{
    (void)state;
    host wrong;
    char text[256];
    ferry_error error;
    fy_link *link = NULL;
    start(&wrong, OTHER_KEY);
    snprintf(text, sizeof text, "127.0.0.1:%u,127.0.0.1:%u", free_port(), wrong.port);
    check_status("denied", FERRY_ERR_DENIED,
                 fy_link_open(text, key, INT64_MAX, NULL, NULL, &link, &error), &error);
    check_says("denied", "FERRY_SECRET", &error);
    assert_null(link);
    end(&wrong);
}

static void test_nobody(void **state)
{
    (void)state;
    ferry_error error;
    fy_link *link = NULL;
    char text[128], refused[64];
    snprintf(refused, sizeof refused, "127.0.0.1:%u", free_port());
    snprintf(text, sizeof text, "%s,no such host:1", refused);
    check_status("nobody", FERRY_ERR_TIMEOUT,
                 fy_link_open(text, key, SECOND / 10, NULL, NULL, &link, &error), &error);
    check_says("nobody", refused, &error);
    check_says("nobody", "no rank was reached within 0.1 s: ", &error);
    check_says("nobody", "refuses", &error);
    check_says("nobody", "\"no such host\" is not found", &error);
    check_status("unknown", FERRY_ERR_INVALID_INPUT,
                 fy_link_open("no such host:1", key, SECOND / 10, NULL, NULL, &link, &error),
                 &error);
    check_status("no limit", FERRY_ERR_TIMEOUT,
                 fy_link_open(refused, key, 0, NULL, NULL, &link, &error), &error);
    check_status("nobody any more", FERRY_ERR_TIMEOUT,
                 fy_link_reopen(refused, key, INT64_MAX, NULL, NULL, &link, &error), &error);
    check_says("nobody any more", "no rank was reached: 127.0.0.1:", &error);
    check_says("nobody any more", "refuses", &error);
    check_status("malformed", FERRY_ERR_INVALID_INPUT,
                 fy_link_open("127.0.0.1:1,", key, INT64_MAX, NULL, NULL, &link, &error), &error);
    assert_null(link);
}

static bool count_down(void *context)
{
    return --*(int *)context <= 0;
}

static void test_stop(void **state)
{
    (void)state;
    host silent;
    ferry_error error;
    fy_link *link = NULL;
    char text[64];
    start(&silent, SILENT);
    for (int way = 0; way < 2; way++) {
        int asked = 5;
        snprintf(text, sizeof text, "127.0.0.1:%u", way == 0 ? free_port() : silent.port);
        check_status("stop", FERRY_ERR_STOPPED,
                     fy_link_open(text, key, INT64_MAX, count_down, &asked, &link, &error), &error);
    }
    assert_null(link);
    end(&silent);
}

typedef struct late {
    uint16_t port;
    host host;
    int asked;
} late;

/* Starts the rank while another already tries to reach it. */
static bool start_late(void *context)
{
    late *l = context;
    if (++l->asked == 6) {
        start_on(&l->host, RANK, "127.0.0.1", l->port);
    }
    return false;
}

static void test_late_listener(void **state)
{
    (void)state;
    late l = {.port = free_port()};
    fy_link *link = NULL;
    char text[64];
    ferry_error error;
    snprintf(text, sizeof text, "127.0.0.1:%u", l.port);
    must(fy_link_open(text, key, 60 * SECOND, start_late, &l, &link, &error), &error);
    echo(link);
    fy_link_destroy(link);
    end(&l.host);
}

/* --- Ways to break --- */

static void tcp_pair(fy_link *links[2])
{
    ferry_error error;
    int listener;
    uint16_t port;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    must(fy_listen("127.0.0.1", 0, &listener, &port, &error), &error);
    address.sin_port = htons(port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    must(fy_link_create(fd, false, key, &links[0], &error), &error);
    must(fy_link_create(accept(listener, NULL, NULL), true, key, &links[1], &error), &error);
    close(listener);
    while (!fy_link_ready(links[0]) || !fy_link_ready(links[1])) {
        must(fy_link_work(links[0], &error), &error);
        must(fy_link_work(links[1], &error), &error);
    }
}

/* A reset, as of a process that was killed with bytes unread: what came before is not lost. */
static void test_reset(void **state)
{
    (void)state;
    fy_link *links[2];
    ferry_error error;
    fy_message message;
    struct linger none = {.l_onoff = 1, .l_linger = 0};
    tcp_pair(links);
    must(fy_link_post(links[0], 5, "the reason", 10, NULL, 0, &error), &error);
    assert_int_equal(setsockopt(fy_link_fd(links[0]), SOL_SOCKET, SO_LINGER, &none, sizeof none),
                     0);
    fy_link_destroy(links[0]);
    ferry_status status = FERRY_OK;
    while (status == FERRY_OK) { /* the first may still be taken by the kernel */
        status = fy_link_post(links[1], 1, "x", 1, NULL, 0, &error);
    }
    check_status("reset", FERRY_ERR_PEER_LOST, status, &error);
    assert_true(fy_link_take(links[1], &message) && message.type == 5);
    assert_memory_equal(message.payload, "the reason", 10);
    assert_int_equal(fy_link_work(links[1], &error), FERRY_ERR_PEER_LOST);
    fy_link_destroy(links[1]);
}

/* A socket that is connected to itself is never taken for a rank. */
static void test_self_connected(void **state)
{
    (void)state;
    ferry_error error;
    fy_link *link = NULL;
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(free_port()),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int server = 0; server <= 1; server++) {
        struct linger none = {.l_onoff = 1, .l_linger = 0};
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
        assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
        must(fy_link_create(fd, server, key, &link, &error), &error);
        ferry_status status = FERRY_OK;
        while (status == FERRY_OK) {
            status = fy_link_work(link, &error);
            assert_false(fy_link_ready(link));
        }
        check_status("itself", FERRY_ERR_INVALID_INPUT, status, &error);
        fy_link_destroy(link);
    }
}

/* --- In a network of its own --- */

static bool set_loopback(bool up)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = up ? IFF_UP : 0};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool done = fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
    close(fd);
    return done;
}

/* Runs in a child; skips the test where the kernel gives no namespaces. */
static void in_own_network(int (*body)(void))
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        bool own = unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0;
        _exit(own && set_loopback(true) ? body() : 77);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        skip();
    }
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* With a single port to connect from, a connection to it is one to itself, every time. */
static int open_the_only_port(void)
{
    ferry_error error;
    fy_link *link = NULL;
    int fd = open("/proc/sys/net/ipv4/ip_local_port_range", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "40000 40000", 11) != 11) {
        return 77;
    }
    close(fd);
    ferry_status status =
        fy_link_open("127.0.0.1:40000", key, SECOND / 5, NULL, NULL, &link, &error);
    if (status != FERRY_ERR_TIMEOUT || strstr(error.message, "refuses") == NULL) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    /* The port is left free. */
    uint16_t port;
    status = fy_listen("127.0.0.1", 40000, &fd, &port, &error);
    if (status != FERRY_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 2;
    }
    close(fd);
    return 0;
}

static void test_open_oneself(void **state)
{
    (void)state;
    in_own_network(open_the_only_port);
}

/* What is down leads nowhere. */
static int ask_without_network(void)
{
    ferry_error error;
    char text[FY_ADDRESSES_BYTES];
    if (fy_own_addresses(NULL, 1, text, &error) != FERRY_OK ||
        strcmp(text, "127.0.0.1:1,[::1]:1") != 0) {
        fprintf(stderr, "%s\n", text);
        return 1;
    }
    if (!set_loopback(false)) {
        return 77;
    }
    ferry_status status = fy_own_addresses(NULL, 1, text, &error);
    return status == FERRY_ERR_UNSUPPORTED && strstr(error.message, "FERRY_HOST") != NULL ? 0 : 2;
}

static void test_no_addresses(void **state)
{
    (void)state;
    in_own_network(ask_without_network);
}

/* Packets that vanish are not acknowledged; what had been before is. */
static int lose_the_network(void)
{
    fy_link *links[2];
    ferry_error error;
    tcp_pair(links);
    while (!fy_link_acknowledged(links[1], -1)) {
        poll(NULL, 0, 5); /* until nothing of the handshake is in flight */
    }
    if (!fy_link_acknowledged(links[0], SECOND) || !set_loopback(false)) {
        return 1;
    }
    if (!fy_link_acknowledged(links[0], 0)) {
        return 2; /* nothing is in flight */
    }
    poll(NULL, 0, 600); /* a silence of both sides before is not held against the other */
    int64_t begin = fy_now_ns();
    if (fy_link_post(links[0], 1, "x", 1, NULL, 0, &error) != FERRY_OK) {
        return 3;
    }
    if (!fy_link_acknowledged(links[0], SECOND / 2) && fy_now_ns() - begin < SECOND / 2) {
        return 7;
    }
    if (!fy_link_acknowledged(links[0], 3600 * SECOND)) {
        return 4;
    }
    while (fy_link_acknowledged(links[0], SECOND / 10)) {
        poll(NULL, 0, 5); /* ends, or the test's limit does it */
    }
    if (!fy_link_acknowledged(links[1], -1)) {
        return 5; /* it has sent nothing */
    }
    if (!set_loopback(true)) {
        return 6;
    }
    while (!fy_link_acknowledged(links[0], SECOND / 10)) {
        poll(NULL, 0, 5); /* it is sent again until it arrives */
    }
    fy_link_destroy(links[0]);
    fy_link_destroy(links[1]);
    return 0;
}

static void test_acknowledged(void **state)
{
    (void)state;
    if (is_left_out(__func__, "cannot say what was acknowledged (TCP_INFO)")) {
        return;
    }
    in_own_network(lose_the_network);
}

/* A process that does not read is not a machine that is gone. */
static void test_stopped_process(void **state)
{
    (void)state;
    static unsigned char bytes[FY_LINK_PAYLOAD_BYTES];
    fy_link *links[2];
    ferry_error error;
    tcp_pair(links);
    while (fy_link_queued_bytes(links[0]) < 4 * sizeof bytes) {
        must(fy_link_post(links[0], 1, bytes, sizeof bytes, NULL, 0, &error), &error);
    }
    for (int i = 0; i < 50; i++) {
        assert_true(fy_link_acknowledged(links[0], 10 * SECOND));
        must(fy_link_work(links[0], &error), &error);
        poll(NULL, 0, 2);
    }
    fy_link_destroy(links[0]);
    fy_link_destroy(links[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_listen),
        cmocka_unit_test(test_own_addresses),
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_many_at_once),
        cmocka_unit_test(test_who_answers),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_several_addresses),
        cmocka_unit_test(test_wrong_secret_among_several),
        cmocka_unit_test(test_nobody),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_late_listener),
        cmocka_unit_test(test_reset),
        cmocka_unit_test(test_self_connected),
        cmocka_unit_test(test_open_oneself),
        cmocka_unit_test(test_no_addresses),
        cmocka_unit_test(test_acknowledged),
        cmocka_unit_test(test_stopped_process),
    };
    return cmocka_run_group_tests(tests, claim_ports, NULL);
}
