/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The variables that launched ranks find, and the ports that those name. */
#include "launch.h"

#include "commands.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

static int fail_system(const launch_job *job, const char *what)
{
    char sentence[256];
    snprintf(sentence, sizeof sentence, "%s: %s", what, strerror(errno));
    return fail(job->request->name, sentence);
}

static int set_text(const launch_job *job, const char *name, const char *value)
{
    return setenv(name, value, 1) == 0 ? EXIT_DONE : fail_system(job, name);
}

static int set_number(const launch_job *job, const char *name, uint32_t value)
{
    char text[16];
    snprintf(text, sizeof text, "%u", value);
    return set_text(job, name, text);
}

/* A socket bound to this port of the loopback (0: any that is free), or -1. */
static int bind_loopback(uint16_t port, uint16_t *port_out)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    *port_out = ntohs(address.sin_port);
    return fd;
}

/*
 * Ferry's own port is bound here and the socket handed to rank 0: nobody can take it in between.
 * The descriptor is moved above those that a rank is given.
 */
static int open_listener(launch_job *job, uint16_t *port_out)
{
    int fd = bind_loopback(0, port_out);
    if (fd < 0) {
        return fail_system(job, "no port for the ranks to meet at");
    }
    job->listener = fcntl(fd, F_DUPFD_CLOEXEC, 16);
    close(fd);
    /*
     * For the connections that it accepts: rank 0 listens there anew when ranks meet once more, and
     * those of before may still be on their way out. Not before a free port was chosen, which would
     * be no longer free then.
     */
    int reuses = 1;
    if (job->listener < 0 ||
        setsockopt(job->listener, SOL_SOCKET, SO_REUSEADDR, &reuses, sizeof reuses) != 0 ||
        listen(job->listener, SOMAXCONN) != 0) {
        return fail_system(job, "no socket for the ranks to meet at");
    }
    return EXIT_DONE;
}

/* The lowest port that the kernel hands out by itself. */
static uint16_t lowest_ephemeral(void)
{
    FILE *file = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
    unsigned low = 32768;
    if (file != NULL) {
        if (fscanf(file, "%u", &low) != 1 || low > 65535) {
            low = 32768;
        }
        fclose(file);
    }
    return (uint16_t)low;
}

/*
 * MASTER_PORT belongs to the program, which binds it later. Below the ports that the kernel hands
 * out, nobody gets it by chance meanwhile; a random one keeps two launchers apart.
 */
static int find_port(const launch_job *job, uint16_t *port_out)
{
    enum { FIRST = 10000, TRIES = 64 };
    uint16_t end = lowest_ephemeral();
    for (int i = 0; i <= TRIES; i++) {
        uint16_t random, port = 0;
        if (i < TRIES && end > FIRST &&
            getrandom(&random, sizeof random, 0) == (ssize_t)sizeof random) {
            port = (uint16_t)(FIRST + random % (end - FIRST));
        }
        int fd = bind_loopback(port, port_out);
        if (fd >= 0) {
            close(fd);
            return EXIT_DONE;
        }
    }
    return fail_system(job, "no port is free for MASTER_PORT");
}

static int make_secret(const launch_job *job)
{
    unsigned char bytes[32];
    char text[2 * sizeof bytes + 1];
    for (size_t have = 0; have < sizeof bytes;) {
        ssize_t n = getrandom(bytes + have, sizeof bytes - have, 0);
        if (n < 0 && errno != EINTR) {
            return fail_system(job, "no random bytes for FERRY_SECRET");
        }
        have += n > 0 ? (size_t)n : 0;
    }
    for (size_t i = 0; i < sizeof bytes; i++) {
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    }
    return set_text(job, "FERRY_SECRET", text);
}

static int prepare_here(launch_job *job)
{
    uint16_t master_port = 0, port = 0;
    int status = find_port(job, &master_port);
    if (status == EXIT_DONE) {
        status = set_text(job, "MASTER_ADDR", "127.0.0.1");
    }
    if (status == EXIT_DONE) {
        status = set_number(job, "MASTER_PORT", master_port);
    }
    if (status == EXIT_DONE) {
        status = set_text(job, "GROUP_RANK", "0");
    }
    if (status == EXIT_DONE && getenv("FERRY_SECRET") == NULL) {
        status = make_secret(job);
    }
    unsetenv("FERRY_PORT");
    if (status == EXIT_DONE && getenv("FERRY_RENDEZVOUS") == NULL) {
        status = open_listener(job, &port);
        if (status == EXIT_DONE) {
            status = set_number(job, "FERRY_PORT", port);
        }
    }
    return status;
}

/* Each host has its own launcher: what they must agree on comes from the options. */
static int prepare_hosts(const launch_job *job)
{
    const launch_request *r = job->request;
    int status = set_text(job, "MASTER_ADDR", r->master_host);
    if (status == EXIT_DONE) {
        status = set_text(job, "MASTER_PORT", r->master_port);
    }
    unsetenv("GROUP_RANK"); /* which number this host has is not known */
    if (status == EXIT_DONE && getenv("FERRY_SECRET") == NULL) {
        fprintf(stderr,
                "ferry %s: warning: FERRY_SECRET is not set, so whoever reaches %s port %s can "
                "join; set it to the same on all hosts\n",
                r->name, r->master_host, r->master_port);
    }
    return status;
}

int launch_prepare(launch_job *job)
{
    int status = set_number(job, "WORLD_SIZE", job->request->n_world);
    if (status == EXIT_DONE) {
        status = set_number(job, "LOCAL_WORLD_SIZE", job->request->n_ranks);
    }
    if (status == EXIT_DONE) {
        status = job->request->master_host == NULL ? prepare_here(job) : prepare_hosts(job);
    }
    return status;
}

int launch_set_rank(const launch_job *job, uint32_t local_rank)
{
    int status = set_number(job, "RANK", job->request->first_rank + local_rank);
    if (status == EXIT_DONE) {
        status = set_number(job, "LOCAL_RANK", local_rank);
    }
    if (job->listener >= 0 && local_rank == 0) {
        return status == EXIT_DONE ? set_text(job, "FERRY_LISTEN_FD", "3") : status;
    }
    unsetenv("FERRY_LISTEN_FD");
    return status;
}
