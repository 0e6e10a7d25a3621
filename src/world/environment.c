/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/meeting.h"

#include "base/config.h"
#include "base/log.h"

#include <ferry/group.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * Who wins where several ways are offered, and why:
 *
 *   FERRY_RENDEZVOUS is ferry's own and was set on purpose.
 *   The torchrun variables win over PMIx when they are complete, even where PMIX_RANK differs from
 *   RANK: under `srun torchrun` every worker inherits the PMIX_RANK of its node's launcher, and
 *   what was set last describes this process. A RANK that was exported to all ranks by mistake
 *   shows when the second of them finds rank 0's port taken; that sentence then names PMIX_RANK.
 *   When they are incomplete and PMIx is there (mpirun with a WORLD_SIZE that somebody exported by
 *   hand), PMIx knows more, and the variables are left aside with a line in the log.
 */

/* The variables as they are; NULL is unset. */
typedef struct variables {
    const char *rank;
    const char *n_ranks;
    const char *host;
    const char *port;
    const char *own_port;
} variables;

static variables get_variables(void)
{
    return (variables){.rank = getenv("RANK"),
                       .n_ranks = getenv("WORLD_SIZE"),
                       .host = getenv("MASTER_ADDR"),
                       .port = getenv("MASTER_PORT"),
                       .own_port = getenv("FERRY_PORT")};
}

static ferry_status parse_number(const char *name, const char *text, uint32_t least, uint32_t most,
                                 uint32_t *number_out, ferry_error *error)
{
    size_t length = strlen(text);
    unsigned long number = 0;
    /* Of leading zeros there may be any number; ten digits hold every number that is asked for. */
    bool plain = length > 0 && length <= 10 && strspn(text, "0123456789") == length;
    if (plain) {
        number = strtoul(text, NULL, 10);
    }
    if (!plain || number < least || number > most) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "environment variable %s is \"%.40s\", which is not a number from %u to %u",
                       name, text, least, most);
    }
    *number_out = (uint32_t)number;
    return FERRY_OK;
}

static ferry_status parse_ranks(fy_meeting *meeting, const variables *set, ferry_error *error)
{
    uint32_t rank = 0;
    uint32_t n_ranks = 0;
    FY_TRY(parse_number("WORLD_SIZE", set->n_ranks, 1, FERRY_MAX_RANKS, &n_ranks, error));
    FY_TRY(parse_number("RANK", set->rank, 0, FERRY_MAX_RANKS - 1, &rank, error));
    if (rank >= n_ranks) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "RANK is %u, but WORLD_SIZE is %u: ranks are 0 to %u", rank, n_ranks,
                       n_ranks - 1);
    }
    meeting->rank = rank;
    meeting->n_ranks = n_ranks;
    return FERRY_OK;
}

/* n_local_out is 0 where LOCAL_WORLD_SIZE is not set. Nothing else is taken from these. */
static ferry_status check_local(const fy_meeting *meeting, uint32_t *n_local_out,
                                ferry_error *error)
{
    const char *rank_text = getenv("LOCAL_RANK");
    const char *size_text = getenv("LOCAL_WORLD_SIZE");
    uint32_t rank = 0;
    uint32_t n_local = 0;
    ferry_status status = FERRY_OK;
    if (size_text != NULL) {
        status = parse_number("LOCAL_WORLD_SIZE", size_text, 1, FERRY_MAX_RANKS, &n_local, error);
    }
    if (status == FERRY_OK && rank_text != NULL) {
        status = parse_number("LOCAL_RANK", rank_text, 0, FERRY_MAX_RANKS - 1, &rank, error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    if (n_local > meeting->n_ranks) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "LOCAL_WORLD_SIZE is %u, but WORLD_SIZE is %u: one machine cannot have more "
                       "ranks than there are",
                       n_local, meeting->n_ranks);
    }
    uint32_t n_most = n_local > 0 ? n_local : meeting->n_ranks;
    if (rank >= n_most) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "LOCAL_RANK is %u, but %s is %u", rank,
                       n_local > 0 ? "LOCAL_WORLD_SIZE" : "WORLD_SIZE", n_most);
    }
    *n_local_out = n_local;
    return FERRY_OK;
}

/* Where rank 0 listens, and which variable said so. */
typedef struct root_place {
    const char *host;
    const char *port_name;
    uint16_t port;
    bool loopback;
} root_place;

/* The port: torchrun's own store listens at MASTER_PORT while its workers run. */
static ferry_status parse_port(const variables *set, root_place *place_inout, ferry_error *error)
{
    uint32_t port = 0;
    const char *store = getenv("TORCHELASTIC_USE_AGENT_STORE");
    bool taken = store != NULL && (strcasecmp(store, "true") == 0 || strcmp(store, "1") == 0);
    place_inout->port_name = set->own_port != NULL ? "FERRY_PORT" : "MASTER_PORT";
    FY_TRY(parse_number(place_inout->port_name, set->own_port != NULL ? set->own_port : set->port,
                        1, UINT16_MAX, &port, error));
    if (set->own_port == NULL && taken) {
        if (port == UINT16_MAX) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "MASTER_PORT is %u and belongs to torchrun's store, and there is no "
                           "port after it: set FERRY_PORT to a free one",
                           port);
        }
        place_inout->port_name = "MASTER_PORT + 1";
        port++;
    }
    place_inout->port = (uint16_t)port;
    return FERRY_OK;
}

static bool is_loopback(const char *host)
{
    struct in_addr four;
    struct in6_addr six;
    if (inet_pton(AF_INET, host, &four) == 1) {
        return (ntohl(four.s_addr) >> 24) == IN_LOOPBACKNET;
    }
    if (inet_pton(AF_INET6, host, &six) == 1) {
        return IN6_IS_ADDR_LOOPBACK(&six);
    }
    return strcasecmp(host, "localhost") == 0;
}

enum { MOST_HOST_BYTES = 255 };

static ferry_status parse_host(const variables *set, root_place *place_inout, ferry_error *error)
{
    size_t length = strlen(set->host);
    /* A comma would make two addresses of it; a bracket or a blank is in no name. */
    if (length == 0 || length > MOST_HOST_BYTES || strpbrk(set->host, ", \t\r\n[]/@") != NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "environment variable MASTER_ADDR is \"%.80s\", which is not a host name or "
                       "address",
                       set->host);
    }
    place_inout->host = set->host;
    place_inout->loopback = is_loopback(set->host);
    return FERRY_OK;
}

static void write_addresses(fy_meeting *meeting, const root_place *place)
{
    char *text = meeting->addresses;
    size_t bytes = sizeof meeting->addresses;
    unsigned port = place->port;
    if (strcasecmp(place->host, "localhost") == 0) {
        /* What a resolver makes of this name differs between machines and containers. */
        snprintf(text, bytes, "127.0.0.1:%u,[::1]:%u", port, port);
    } else if (strchr(place->host, ':') != NULL) {
        snprintf(text, bytes, "[%s]:%u", place->host, port);
    } else {
        snprintf(text, bytes, "%s:%u", place->host, port);
    }
}

enum { MOST_FD = 65535 };

/* The port of a socket that already listens, or a sentence that says what else fd is. */
static ferry_status check_listener(int fd, uint16_t *port_out, ferry_error *error)
{
    struct sockaddr_storage name = {0};
    socklen_t length = sizeof name;
    int kind = 0;
    int listens = 0;
    socklen_t int_bytes = sizeof kind;
    const char *fault = NULL;
    if (fcntl(fd, F_GETFD) < 0) {
        fault = "is not open here: what stands between the launcher and this program closed it";
    } else if (getsockname(fd, (struct sockaddr *)&name, &length) != 0 ||
               getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &int_bytes) != 0) {
        fault = "is not a socket";
    } else if (kind != SOCK_STREAM || (name.ss_family != AF_INET && name.ss_family != AF_INET6)) {
        fault = "is not a TCP socket";
    } else if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &int_bytes) != 0 ||
               listens == 0) {
        fault = "is a socket that does not listen";
    }
    if (fault != NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "FERRY_LISTEN_FD is %d, but that descriptor %s; unset it to let rank 0 open "
                       "a socket itself",
                       fd, fault);
    }
    *port_out = ntohs(name.ss_family == AF_INET ? ((struct sockaddr_in *)&name)->sin_port
                                                : ((struct sockaddr_in6 *)&name)->sin6_port);
    return FERRY_OK;
}

/*
 * Takes over the socket that a launcher opened. The variable goes, so that neither a second world
 * nor a child of this process takes it for theirs.
 */
static ferry_status inherit_listener(fy_meeting *meeting, const char *text, const root_place *place,
                                     ferry_error *error)
{
    uint32_t fd = 0;
    uint16_t port = 0;
    FY_TRY(parse_number("FERRY_LISTEN_FD", text, 0, MOST_FD, &fd, error));
    FY_TRY(check_listener((int)fd, &port, error));
    if (port != place->port) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "FERRY_LISTEN_FD is a socket at port %u, but by %s the other ranks look for "
                       "rank 0 at port %u",
                       port, place->port_name, place->port);
    }
    int flags = fcntl((int)fd, F_GETFL);
    if (fcntl((int)fd, F_SETFD, FD_CLOEXEC) != 0 || flags < 0 ||
        fcntl((int)fd, F_SETFL, flags | O_NONBLOCK) != 0) {
        return fy_fail(error, FERRY_ERR_IO, "FERRY_LISTEN_FD is %u, which cannot be set up: %s", fd,
                       strerror(errno));
    }
    unsetenv("FERRY_LISTEN_FD");
    meeting->listener = (int)fd;
    return FERRY_OK;
}

/* A world of one rank listens to nobody. */
static void drop_inherited(void)
{
    const char *text = getenv("FERRY_LISTEN_FD");
    uint32_t fd = 0;
    uint16_t port = 0;
    if (text != NULL && parse_number("FERRY_LISTEN_FD", text, 0, MOST_FD, &fd, NULL) == FERRY_OK &&
        check_listener((int)fd, &port, NULL) == FERRY_OK) {
        close((int)fd);
        unsetenv("FERRY_LISTEN_FD");
    }
}

static ferry_status open_listener(fy_meeting *meeting, const root_place *place, bool only_here,
                                  ferry_error *error)
{
    ferry_error inner;
    uint16_t port = 0;
    const char *host = !only_here                                  ? NULL
                       : strcasecmp(place->host, "localhost") == 0 ? "127.0.0.1"
                                                                   : place->host;
    ferry_status status = fy_listen(host, place->port, &meeting->listener, &port, &inner);
    if (status == FERRY_OK) {
        return FERRY_OK;
    }
    meeting->listener = -1;
    char doubt[160] = "";
    const char *other = getenv("PMIX_RANK");
    if (other != NULL && strcmp(other, "0") != 0) {
        snprintf(doubt, sizeof doubt,
                 " (PMIX_RANK is %.20s: was RANK=0 meant for this process, or given to all?)",
                 other);
    }
    return fy_fail(error, status,
                   "rank 0 cannot listen where %s says: %.600s, the same on all ranks%s",
                   place->port_name, inner.message, doubt);
}

/*
 * Without a secret whoever reaches the port can join. Where all ranks are on this machine by
 * everything that is known, nobody else need reach it; a launcher that tells rank 0 of a larger job
 * "localhost" also tells how few of its ranks are local.
 */
static ferry_status listen_as_root(fy_meeting *meeting, const fy_settings *settings,
                                   const root_place *place, uint32_t n_local, ferry_error *error)
{
    const char *inherited = getenv("FERRY_LISTEN_FD");
    bool only_here = settings->secret == NULL && place->loopback &&
                     (n_local == 0 || n_local == meeting->n_ranks);
    if (settings->secret == NULL && !only_here) {
        fy_log(FERRY_LOG_WARN,
               "there is no FERRY_SECRET: whoever reaches port %u of this machine can join",
               place->port);
    }
    return inherited != NULL ? inherit_listener(meeting, inherited, place, error)
                             : open_listener(meeting, place, only_here, error);
}

/*
 * Only what cannot differ between ranks of one job goes into the key: where they contradict each
 * other (in WORLD_SIZE, or in how the address is spelled), the join finds that out and names them.
 */
static void make_key(fy_meeting *meeting, const fy_settings *settings)
{
    char job[160];
    const char *run = getenv("TORCHELASTIC_RUN_ID");
    snprintf(job, sizeof job, "torchrun %s", run != NULL ? run : "");
    fy_meeting_key(meeting, settings->secret, job);
}

/* The port, of which the ranks' numbers are known, or of a newcomer. */
static ferry_status meet_there(fy_meeting *meeting, const fy_settings *settings,
                               const variables *set, uint32_t n_local, ferry_error *error)
{
    root_place place = {0};
    FY_TRY(parse_port(set, &place, error));
    FY_TRY(parse_host(set, &place, error));
    if (meeting->n_ranks > 0 && meeting->rank == 0) {
        FY_TRY(listen_as_root(meeting, settings, &place, n_local, error));
    }
    write_addresses(meeting, &place);
    make_key(meeting, settings);
    return FERRY_OK;
}

static ferry_status meet_at_port(fy_meeting *meeting, const fy_settings *settings,
                                 const variables *set, ferry_error *error)
{
    uint32_t n_local = 0;
    FY_TRY(parse_ranks(meeting, set, error));
    FY_TRY(check_local(meeting, &n_local, error));
    if (meeting->n_ranks == 1) {
        drop_inherited();
        return FERRY_OK;
    }
    return meet_there(meeting, settings, set, n_local, error);
}

/* A world of one rank has nobody to find. */
static bool is_alone(const variables *set)
{
    return set->n_ranks != NULL && strcmp(set->n_ranks, "1") == 0;
}

static bool is_complete(const variables *set)
{
    bool found = set->host != NULL && (set->port != NULL || set->own_port != NULL);
    return set->rank != NULL && set->n_ranks != NULL && (found || is_alone(set));
}

/* "RANK is 0 and MASTER_PORT is 29500, but WORLD_SIZE and MASTER_ADDR are not set" */
static ferry_status fail_incomplete(const variables *set, ferry_error *error)
{
    const char *const names[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
    const char *const values[] = {set->rank, set->n_ranks, set->host,
                                  set->port != NULL ? set->port : set->own_port};
    char have[300] = "";
    char lack[100] = "";
    size_t n_lack = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t have_bytes = strlen(have);
        size_t lack_bytes = strlen(lack);
        if (values[i] != NULL) {
            const char *name = i == 3 && set->port == NULL ? "FERRY_PORT" : names[i];
            snprintf(have + have_bytes, sizeof have - have_bytes, "%s%s is \"%.40s\"",
                     have_bytes > 0 ? ", " : "", name, values[i]);
        } else {
            snprintf(lack + lack_bytes, sizeof lack - lack_bytes, "%s%s", n_lack > 0 ? ", " : "",
                     names[i]);
            n_lack++;
        }
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s, but %s %s not set: a rank needs all of RANK, WORLD_SIZE, MASTER_ADDR and "
                   "MASTER_PORT; `ferry launch -n N -- PROG` sets them",
                   have, lack, n_lack == 1 ? "is" : "are");
}

static ferry_status meet_in_file(fy_meeting *meeting, const fy_settings *settings, const char *path,
                                 const variables *set, ferry_error *error)
{
    uint32_t n_local = 0;
    if (path[0] == '\0') {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "environment variable FERRY_RENDEZVOUS is set, but empty; unset it instead");
    }
    if (set->rank == NULL || set->n_ranks == NULL) {
        bool both = set->rank == NULL && set->n_ranks == NULL;
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "FERRY_RENDEZVOUS is \"%.200s\", but %s not set: a rank needs both RANK and "
                       "WORLD_SIZE beside it",
                       path,
                       both                ? "RANK and WORLD_SIZE are"
                       : set->rank == NULL ? "RANK is"
                                           : "WORLD_SIZE is");
    }
    FY_TRY(parse_ranks(meeting, set, error));
    FY_TRY(check_local(meeting, &n_local, error));
    return fy_meet_file(meeting, path, meeting->rank, meeting->n_ranks, settings, error);
}

/*
 * A launcher that started several processes and says so in words of its own, but not how they find
 * each other: each would take itself for all there is.
 */
static ferry_status check_launcher(ferry_error *error)
{
    static const char *const names[] = {"SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "PMI_SIZE"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *text = getenv(names[i]);
        if (text != NULL && strtoul(text, NULL, 10) > 1) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s is \"%.20s\", so this is one of several processes, but nothing says "
                           "how to find the others: start them with srun --mpi=pmix, Open MPI's "
                           "mpirun, torchrun or `ferry launch`, or set RANK, WORLD_SIZE, "
                           "MASTER_ADDR and MASTER_PORT (RANK=0 and WORLD_SIZE=1 to be alone)",
                           names[i], text);
        }
    }
    return FERRY_OK;
}

ferry_status fy_meet_environment(fy_meeting *meeting, const fy_settings *settings,
                                 ferry_error *error)
{
    variables set = get_variables();
    const char *path = getenv("FERRY_RENDEZVOUS");
    const char *pmix = fy_pmix_offered() ? getenv("PMIX_RANK") : NULL;
    if (path != NULL) {
        return meet_in_file(meeting, settings, path, &set, error);
    }
    if (is_complete(&set)) {
        if (pmix != NULL && strcmp(pmix, set.rank) != 0) {
            fy_log(FERRY_LOG_INFO, "RANK is %s and PMIX_RANK is %s: RANK is used", set.rank, pmix);
        }
        return meet_at_port(meeting, settings, &set, error);
    }
    if (pmix != NULL) {
        if (set.rank != NULL || set.n_ranks != NULL) {
            fy_log(FERRY_LOG_WARN,
                   "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not all set: PMIx counts, "
                   "and they do not");
        }
        return fy_meet_pmix(meeting, settings, error);
    }
    if (set.rank != NULL || set.n_ranks != NULL) {
        return fail_incomplete(&set, error);
    }
    FY_TRY(check_launcher(error));
    return fy_fail(
        error, FERRY_ERR_INVALID_INPUT,
        "nothing says where the other ranks are: RANK and WORLD_SIZE are not set, nor is "
        "FERRY_RENDEZVOUS, and no PMIx is offered; start with `ferry launch -n N -- "
        "PROG`, torchrun or mpirun");
}

ferry_status fy_meet_growing(fy_meeting *meeting, const char *path, const fy_settings *settings,
                             ferry_error *error)
{
    variables set = get_variables();
    path = path != NULL ? path : fy_config_text("FERRY_RENDEZVOUS");
    if (path != NULL) {
        return fy_meet_growing_file(meeting, path, settings, error);
    }
    if (set.host == NULL || (set.port == NULL && set.own_port == NULL)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "nothing says where members and newcomers of a world meet: name a file that "
                       "all of them see (FERRY_RENDEZVOUS), or set MASTER_ADDR and FERRY_PORT");
    }
    return meet_there(meeting, settings, &set, 0, error);
}
