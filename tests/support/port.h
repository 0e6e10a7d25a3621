/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_PORT_H
#define FERRY_TESTS_PORT_H

#include "support/check.h"

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/*
 * A TCP port that stays free as long as the claim is open. It is none of those that the kernel
 * gives to connections, one of which would be another program's a moment later, and the claim is a
 * name that other tests look for: bindings/python/tests/support.py has the same.
 */
static inline uint16_t claim_port(int *claim_out)
{
    enum { N_PORTS = 4000, MOST_FIRST = 15000 };
    static unsigned n_tried;
    unsigned given = 32768;
    FILE *file = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
    if (file != NULL) {
        assert_int_equal(fscanf(file, "%u", &given), 1);
        fclose(file);
    }
    unsigned first = given < MOST_FIRST + N_PORTS ? given - N_PORTS : MOST_FIRST;
    for (int i = 0; i < N_PORTS; i++) {
        unsigned port = first + ((unsigned)getpid() * 31 + n_tried++) % N_PORTS;
        int claim = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        struct sockaddr_un name = {.sun_family = AF_UNIX};
        int length =
            snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "ferry-test-port-%u", port);
        socklen_t bytes =
            (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1) + (socklen_t)length;
        bool mine = bind(claim, (struct sockaddr *)&name, bytes) == 0 &&
                    bind(one, (struct sockaddr *)&there, sizeof there) == 0;
        close(one);
        if (mine) {
            *claim_out = claim;
            return (uint16_t)port;
        }
        close(claim);
    }
    fail_msg("no port is free");
    return 0;
}

#endif
