/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_ADDRESS_H
#define FY_WORLD_ADDRESS_H

#include "base/status.h"
#include "world/link.h"

#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/* Addresses as text and as the system has them. What makes sockets of them is in meeting.h. */

enum { FY_HOST_BYTES = 256, FY_PORT_BYTES = 8 };

/* Takes "HOST:PORT" or "[ADDRESS]:PORT" of n_bytes apart: the brackets go, the port is checked. */
ferry_status fy_address_parse(const char *text, size_t n_bytes, char host_out[FY_HOST_BYTES],
                              char port_out[FY_PORT_BYTES], ferry_error *error);

/* All addresses of a host (NULL: to listen on every one); freeaddrinfo. It may ask the network. */
ferry_status fy_address_resolve(const char *host, const char *port, struct addrinfo **list_out,
                                ferry_error *error);

/*
 * "10.0.0.3:41000", "[fe80::1]:41000", "a unix socket"; an IPv4 address inside an IPv6 one is shown
 * as what it is. Without the port: the address alone, no brackets; empty if it has none.
 */
void fy_address_text(const struct sockaddr_storage *address, bool with_port, char *text,
                     size_t text_bytes);

/* For fy_link_open: whether the other side has proven the key, even if the link failed then. */
bool fy_link_proven(const fy_link *link);

#endif
