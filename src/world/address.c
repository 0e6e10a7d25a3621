/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/address.h"

#include "world/meeting.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- Text --- */

ferry_status fy_address_parse(const char *text, size_t n_bytes, char host_out[FY_HOST_BYTES],
                              char port_out[FY_PORT_BYTES], ferry_error *error)
{
    const char *host = text;
    const char *colon = memrchr(text, ':', n_bytes);
    size_t length = colon == NULL ? 0 : (size_t)(colon - text);
    size_t n_digits = colon == NULL ? 0 : n_bytes - length - 1;
    size_t digit = 0;
    long port = 0;
    while (digit < n_digits && digit < 6 && colon[1 + digit] >= '0' && colon[1 + digit] <= '9') {
        port = port * 10 + (colon[1 + digit++] - '0');
    }
    if (digit != n_digits || port < 1 || port > 65535 || length == 0) {
        return fy_fail(
            error, FERRY_ERR_INVALID_INPUT,
            "\"%.*s\" is not an address: HOST:PORT is wanted, with a port from 1 to 65535",
            (int)(n_bytes > 300 ? 300 : n_bytes), text);
    }
    bool bracketed = length > 2 && host[0] == '[' && host[length - 1] == ']';
    if (bracketed) {
        host++;
        length -= 2;
    } else if (memchr(host, ':', length) != NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "\"%.*s\" is not an address: an IPv6 address is written [ADDRESS]:PORT",
                       (int)(n_bytes > 300 ? 300 : n_bytes), text);
    }
    if (length >= FY_HOST_BYTES) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "a host name of %zu characters; at most %d are allowed", length,
                       FY_HOST_BYTES - 1);
    }
    memcpy(host_out, host, length);
    host_out[length] = '\0';
    snprintf(port_out, FY_PORT_BYTES, "%ld", port);
    return FERRY_OK;
}

ferry_status fy_address_resolve(const char *host, const char *port, struct addrinfo **list_out,
                                ferry_error *error)
{
    struct addrinfo hints = {
        .ai_flags = AI_NUMERICSERV | (host == NULL ? AI_PASSIVE : 0),
        .ai_family = AF_UNSPEC,
        .ai_socktype = SOCK_STREAM,
    };
    int reason = getaddrinfo(host, port, &hints, list_out);
    if (reason != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "the host \"%s\" is not found: %s",
                       host == NULL ? "" : host,
                       reason == EAI_SYSTEM ? strerror(errno) : gai_strerror(reason));
    }
    return FERRY_OK;
}

/* A copy in which an IPv4 address inside an IPv6 one is an IPv4 address. */
static struct sockaddr_storage unmapped(const struct sockaddr_storage *address)
{
    struct sockaddr_storage copy = *address;
    struct sockaddr_in6 six;
    memcpy(&six, address, sizeof six);
    if (address->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) {
        struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = six.sin6_port};
        memcpy(&four.sin_addr, six.sin6_addr.s6_addr + 12, 4);
        memset(&copy, 0, sizeof copy);
        memcpy(&copy, &four, sizeof four);
    }
    return copy;
}

void fy_address_text(const struct sockaddr_storage *address, bool with_port, char *text,
                     size_t text_bytes)
{
    char host[INET6_ADDRSTRLEN + 1 + IF_NAMESIZE];
    char port[FY_PORT_BYTES];
    struct sockaddr_storage plain = unmapped(address);
    socklen_t bytes =
        plain.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    if (plain.ss_family != AF_INET && plain.ss_family != AF_INET6) {
        snprintf(text, text_bytes, "%s", with_port ? "a unix socket" : "");
    } else if (getnameinfo((const struct sockaddr *)&plain, bytes, host, sizeof host, port,
                           sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        snprintf(text, text_bytes, "%s", with_port ? "an unknown address" : "");
    } else if (!with_port) {
        snprintf(text, text_bytes, "%s", host);
    } else {
        snprintf(text, text_bytes, plain.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    }
}

/* --- Listening --- */

enum { BACKLOG = 4096 };

static int listening_socket(const struct addrinfo *address)
{
    int one = 1, zero = 0;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    /* Without it a port would be taken for a minute after its last use. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (address->ai_family == AF_INET6) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    }
    if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) {
        return fd;
    }
    int reason = errno;
    close(fd);
    errno = reason;
    return -1;
}

static ferry_status fail_to_listen(const char *host, uint16_t port, int reason, ferry_error *error)
{
    const char *where = host == NULL ? "this machine" : host;
    switch (reason) {
    case EADDRINUSE:
        return fy_fail(error, FERRY_ERR_IO,
                       "port %u of %s is taken by another program: set FERRY_PORT to a free one",
                       port, where);
    case EADDRNOTAVAIL:
        return fy_fail(
            error, FERRY_ERR_INVALID_INPUT,
            "%s is not an address of this machine: FERRY_HOST must be one of this machine", where);
    case EACCES:
        return fy_fail(
            error, FERRY_ERR_IO,
            "port %u of %s may not be used without root rights: set FERRY_PORT to one above "
            "1023",
            port, where);
    default:
        return fy_fail(error, FERRY_ERR_IO, "cannot listen on port %u of %s: %s", port, where,
                       strerror(reason));
    }
}

/* Every address: a socket for IPv6 takes IPv4 too; where there is no IPv6, one for IPv4. */
static int listen_everywhere(uint16_t port)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct addrinfo item = {
        .ai_family = AF_INET6, .ai_addr = (struct sockaddr *)&six, .ai_addrlen = sizeof six};
    int fd = listening_socket(&item);
    if (fd < 0 && (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL)) {
        item = (struct addrinfo){
            .ai_family = AF_INET, .ai_addr = (struct sockaddr *)&four, .ai_addrlen = sizeof four};
        fd = listening_socket(&item);
    }
    return fd;
}

static ferry_status listen_on_host(const char *host, uint16_t port, int *fd_out, ferry_error *error)
{
    char digits[FY_PORT_BYTES];
    struct addrinfo *list = NULL;
    snprintf(digits, sizeof digits, "%u", port);
    FY_TRY(fy_address_resolve(host, digits, &list, error));
    int fd = -1, reason = EADDRNOTAVAIL;
    for (const struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) {
        fd = listening_socket(a);
        /* That a port is taken says more than that another address of the host is not here. */
        reason = fd < 0 && reason != EADDRINUSE ? errno : reason;
    }
    freeaddrinfo(list);
    *fd_out = fd;
    return fd < 0 ? fail_to_listen(host, port, reason, error) : FERRY_OK;
}

static uint16_t port_of(const struct sockaddr_storage *address)
{
    struct sockaddr_in four;
    struct sockaddr_in6 six;
    memcpy(&four, address, sizeof four);
    memcpy(&six, address, sizeof six);
    return ntohs(address->ss_family == AF_INET6 ? six.sin6_port : four.sin_port);
}

ferry_status fy_listen(const char *host, uint16_t port, int *fd_out, uint16_t *port_out,
                       ferry_error *error)
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;
    int fd = -1;
    ferry_status status = FERRY_OK;
    if (host == NULL) {
        fd = listen_everywhere(port);
        status = fd < 0 ? fail_to_listen(NULL, port, errno, error) : FERRY_OK;
    } else {
        status = listen_on_host(host, port, &fd, error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    if (getsockname(fd, (struct sockaddr *)&address, &length) != 0) {
        status = fail_to_listen(host, port, errno, error);
        close(fd);
        return status;
    }
    *fd_out = fd;
    *port_out = port_of(&address);
    return FERRY_OK;
}

/* --- Own addresses --- */

/* In which order others should try them. */
enum reach { REACH_IPV4, REACH_IPV6, REACH_LINK, REACH_LOOPBACK, REACH_NONE };

static enum reach reach_of(const struct ifaddrs *item)
{
    if (item->ifa_addr == NULL || (item->ifa_flags & IFF_UP) == 0 ||
        (item->ifa_flags & IFF_RUNNING) == 0) {
        return REACH_NONE;
    }
    if (item->ifa_addr->sa_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)item->ifa_addr;
        uint32_t bits = ntohl(four->sin_addr.s_addr);
        return bits >> 24 == 127 ? REACH_LOOPBACK : bits >> 16 == 0xa9fe ? REACH_LINK : REACH_IPV4;
    }
    if (item->ifa_addr->sa_family == AF_INET6) {
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)item->ifa_addr;
        /* One of a link alone means something else on every machine. */
        return IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)  ? REACH_NONE
               : IN6_IS_ADDR_LOOPBACK(&six->sin6_addr) ? REACH_LOOPBACK
                                                       : REACH_IPV6;
    }
    return REACH_NONE;
}

static void spell(const struct ifaddrs *item, uint16_t port, char *text, size_t text_bytes)
{
    struct sockaddr_storage address = {0};
    if (item->ifa_addr->sa_family == AF_INET) {
        struct sockaddr_in four;
        memcpy(&four, item->ifa_addr, sizeof four);
        four.sin_port = htons(port);
        memcpy(&address, &four, sizeof four);
    } else {
        struct sockaddr_in6 six;
        memcpy(&six, item->ifa_addr, sizeof six);
        six.sin6_port = htons(port);
        memcpy(&address, &six, sizeof six);
    }
    fy_address_text(&address, true, text, text_bytes);
}

/* Appends an address if it fits and leaves `spare` bytes. */
static void append_address(char text[FY_ADDRESSES_BYTES], const char *address, size_t spare)
{
    size_t used = strlen(text);
    if (used + 1 + strlen(address) + spare < FY_ADDRESSES_BYTES) {
        snprintf(text + used, FY_ADDRESSES_BYTES - used, "%s%s", used > 0 ? "," : "", address);
    }
}

static void append_reach(const struct ifaddrs *list, enum reach reach, uint16_t port,
                         char text[FY_ADDRESSES_BYTES])
{
    enum { LOOPBACK_BYTES = sizeof ",127.0.0.1:65535,[::1]:65535" };
    size_t spare = reach == REACH_LOOPBACK ? 0 : LOOPBACK_BYTES;
    for (const struct ifaddrs *item = list; item != NULL; item = item->ifa_next) {
        char address[128];
        if (reach_of(item) == reach) {
            spell(item, port, address, sizeof address);
            append_address(text, address, spare);
        }
    }
}

ferry_status fy_own_addresses(const char *host, uint16_t port, char text[FY_ADDRESSES_BYTES],
                              ferry_error *error)
{
    struct ifaddrs *list;
    if (host != NULL) {
        bool six = strchr(host, ':') != NULL && host[0] != '[';
        if (strlen(host) >= FY_HOST_BYTES || strchr(host, ',') != NULL || host[0] == '\0') {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "\"%.300s\" is not a host name: FERRY_HOST is one name or address",
                           host);
        }
        snprintf(text, FY_ADDRESSES_BYTES, six ? "[%s]:%u" : "%s:%u", host, port);
        return FERRY_OK;
    }
    if (getifaddrs(&list) != 0) {
        return fy_fail(error, FERRY_ERR_IO,
                       "the addresses of this machine are unknown: %s; set FERRY_HOST",
                       strerror(errno));
    }
    text[0] = '\0';
    for (enum reach reach = REACH_IPV4; reach < REACH_NONE; reach++) {
        append_reach(list, reach, port, text);
    }
    freeifaddrs(list);
    if (text[0] == '\0') {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "no network interface of this machine is up, not even lo: set FERRY_HOST");
    }
    return FERRY_OK;
}
