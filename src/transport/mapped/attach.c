/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/mapped/attach.h"

#include "base/alloc.h"
#include "base/log.h"
#include "transport/agree.h"
#include "transport/host.h"
#include "transport/mapped/mapped.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/uio.h>

/* A call moves at most this much, so that the failure of the world is noticed between calls. */
static const uint64_t PIECE_BYTES = (uint64_t)64 << 20;

/* Within which the world learns that a process of this node has ended. */
static const int64_t MOMENT_NS = 1000000000;

/*
 * A process id may name another process, in another namespace or after the peer's death. So each
 * rank tells all where a secret number of its own lies, and who reads that there has the right one.
 * It is read again before every piece, for the next process of that id could be anybody's; and it
 * goes when the owner's memory may no longer be reached.
 */
typedef struct token {
    uint64_t address;
    uint64_t value;
} token;

enum { UNKNOWN, ALLOWED, DENIED };

struct fy_attach {
    ferry_world *world;
    token        own;
    token       *tokens;   /* of the local ranks */
    uint8_t     *verdicts; /* of the local ranks */
    uint32_t     n_local;
};

static ferry_status prepare(ferry_world *world, fy_attach **attach_out, ferry_error *error)
{
    fy_attach *attach = fy_alloc_zeroed(1, sizeof *attach);
    if (attach == NULL) {
        return fy_fail_no_memory(error, "cross-memory attach");
    }
    attach->world    = world;
    attach->n_local  = world->n_local_ranks;
    attach->tokens   = fy_alloc_zeroed(attach->n_local, sizeof *attach->tokens);
    attach->verdicts = fy_alloc_zeroed(attach->n_local, sizeof *attach->verdicts);
    if (attach->tokens == NULL || attach->verdicts == NULL) {
        fy_attach_destroy(attach);
        return fy_fail_no_memory(error, "cross-memory attach");
    }
    if (getrandom(&attach->own.value, sizeof attach->own.value, GRND_NONBLOCK) < 0) {
        attach->own.value = (uint64_t)fy_now_ns();
    }
    attach->own.address = (uintptr_t)&attach->own.value;
    *attach_out         = attach;
    return FERRY_OK;
}

ferry_status fy_attach_create(ferry_world *world, fy_attach **attach_out, ferry_error *error)
{
    fy_attach   *attach = NULL;
    ferry_error  why    = {.message = ""};
    token        none   = {0};
    ferry_status status = prepare(world, &attach, &why);
    fy_vote      vote   = {.status  = status,
                           .own     = &why,
                           .bytes   = attach == NULL ? &none : &attach->own,
                           .n_bytes = sizeof none};
    fy_votes     votes;
    status = fy_votes_gather(world, &vote, &votes, error);
    if (status == FERRY_OK) {
        status = fy_votes_status(&votes, error);
    }
    if (status != FERRY_OK) {
        fy_attach_destroy(attach);
        return status;
    }
    size_t   at    = 0;
    uint32_t local = 0;
    for (uint32_t rank = 0; rank < world->n_ranks && local < attach->n_local; rank++) {
        size_t      n_bytes;
        const void *bytes = fy_votes_next(&votes, rank, &at, &n_bytes);
        if (rank == world->local_ranks[local] && n_bytes == sizeof none) {
            memcpy(&attach->tokens[local], bytes, sizeof none);
        }
        local += rank == world->local_ranks[local];
    }
    *attach_out = attach;
    return FERRY_OK;
}

void fy_attach_revoke(fy_attach *attach)
{
    explicit_bzero(&attach->own.value, sizeof attach->own.value); /* others read it */
}

void fy_attach_destroy(fy_attach *attach)
{
    if (attach != NULL) {
        fy_attach_revoke(attach);
        fy_free(attach->tokens);
        fy_free(attach->verdicts);
        fy_free(attach);
    }
}

/* The place of a rank among those of this node, or n_local. */
static uint32_t local_of(const fy_attach *attach, uint32_t peer)
{
    uint32_t first = 0;
    uint32_t end   = attach->n_local;
    while (first < end) {
        uint32_t middle = first + (end - first) / 2;
        if (attach->world->local_ranks[middle] < peer) {
            first = middle + 1;
        } else {
            end = middle;
        }
    }
    bool found = first < attach->n_local && attach->world->local_ranks[first] == peer;
    return found ? first : attach->n_local;
}

/* Reads the peer's number: 0 if it is there, else an errno; EFAULT for another process's memory. */
static int identify(int32_t pid, const token *its)
{
    uint64_t     value  = 0;
    struct iovec here   = {.iov_base = &value, .iov_len = sizeof value};
    struct iovec there  = {.iov_base = (void *)(uintptr_t)its->address, .iov_len = sizeof value};
    ssize_t      n_read = process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (n_read < 0) {
        return errno;
    }
    return n_read == (ssize_t)sizeof value && value == its->value ? 0 : EFAULT;
}

/* What a dying peer answers is no verdict. */
static uint8_t prove(const fy_attach *attach, uint32_t peer, const token *its)
{
    int32_t pid = attach->world->pid_of(attach->world, peer);
    if (pid <= 0) {
        fy_log(FERRY_LOG_DEBUG, "cross-memory attach: rank %u has no process id here", peer);
        return DENIED;
    }
    int problem = identify(pid, its);
    if (problem != 0) {
        fy_log(FERRY_LOG_DEBUG, "cross-memory attach to rank %u: %s", peer, strerror(problem));
    }
    return problem == 0 ? ALLOWED : problem == ESRCH ? UNKNOWN : DENIED;
}

ferry_status fy_attach_check(fy_attach *attach, uint32_t peer, ferry_error *error)
{
    if (attach->world->threads) {
        return FERRY_OK;
    }
    uint32_t local = local_of(attach, peer);
    if (local < attach->n_local && attach->verdicts[local] == UNKNOWN) {
        attach->verdicts[local] = prove(attach, peer, &attach->tokens[local]);
    }
    if (local < attach->n_local && attach->verdicts[local] == ALLOWED) {
        return FERRY_OK;
    }
    if (local < attach->n_local && attach->verdicts[local] == UNKNOWN) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "cross-memory attach to rank %u: its process has ended", peer);
    }
    return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                   "cross-memory attach to rank %u is denied by this kernel (yama, seccomp or "
                   "another user)",
                   peer);
}

static bool never(void *context)
{
    (void)context;
    return false;
}

/*
 * The peer's process has ended. Perhaps because the world has failed, of which the news is still on
 * its way: the world knows best, and is given a deadline to say.
 */
static ferry_status lose(ferry_world *world, uint32_t peer, ferry_error *error)
{
    ferry_error sentence;
    fy_fail(&sentence, FERRY_ERR_PEER_LOST,
            "rank %u is gone: its process ended while rank %u reached for its memory", peer,
            world->rank);
    fy_report_lost(world, peer, sentence.message);
    fy_world_wait(world, never, NULL, NULL, world->settings.deadline_ns, NULL);
    return fy_failed(world->failure) ? fy_failure_get(world->failure, NULL, error)
                                     : fy_fail(error, FERRY_ERR_PEER_LOST, "%s", sentence.message);
}

/*
 * The peer's number is not where it was: the peer has closed its transport; or it is dead, and
 * another process has its id already, of which the world will learn in a moment.
 */
static ferry_status refuse(ferry_world *world, uint32_t peer, ferry_error *error)
{
    int64_t limit_ns =
        world->settings.deadline_ns < MOMENT_NS ? world->settings.deadline_ns : MOMENT_NS;
    fy_world_wait(world, never, NULL, NULL, limit_ns, NULL);
    return fy_failed(world->failure)
               ? fy_failure_get(world->failure, NULL, error)
               : fy_fail(error, FERRY_ERR_MISUSE,
                         "rank %u cannot be reached any more: it has closed its transport", peer);
}

static ferry_status explain(fy_attach *attach, uint32_t peer, const void *there, uint64_t bytes,
                            int problem, ferry_error *error)
{
    switch (problem) {
    case ESRCH:
        return lose(attach->world, peer, error);
    case EFAULT:
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%llu bytes at %p of rank %u, or those here, are not mapped: memory must "
                       "stay while it is registered",
                       (unsigned long long)bytes, there, peer);
    case EPERM:
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "cross-memory attach to rank %u is no longer allowed", peer);
    default:
        return fy_fail(error, FERRY_ERR_IO, "cross-memory attach to rank %u: %s", peer,
                       strerror(problem));
    }
}

typedef ssize_t (*transfer_fn)(pid_t pid, const struct iovec *here, unsigned long n_here,
                               const struct iovec *there, unsigned long n_there,
                               unsigned long flags);

/* The kernel may stop early; what is left is asked for again, and then it says why. */
static ferry_status transfer(fy_attach *attach, uint32_t peer, transfer_fn move, char *here,
                             char *there, uint64_t bytes, ferry_error *error)
{
    ferry_world *world = attach->world;
    const token *its   = &attach->tokens[local_of(attach, peer)];
    int32_t      pid   = world->pid_of(world, peer);
    uint64_t     done  = 0;
    while (done < bytes) {
        int problem = identify(pid, its);
        if (problem == EFAULT) {
            return refuse(world, peer, error);
        }
        if (problem != 0) {
            return explain(attach, peer, there + done, bytes - done, problem, error);
        }
        uint64_t     piece  = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        struct iovec local  = {.iov_base = here + done, .iov_len = (size_t)piece};
        struct iovec remote = {.iov_base = there + done, .iov_len = (size_t)piece};
        ssize_t      moved  = move(pid, &local, 1, &remote, 1, 0);
        if (moved < 0 && (errno == EINTR || errno == EAGAIN)) {
            moved = 0;
        } else if (moved <= 0) {
            problem = moved < 0 ? errno : EFAULT;
            return explain(attach, peer, there + done, bytes - done, problem, error);
        }
        done += (uint64_t)moved;
        if (done < bytes && fy_failed(world->failure)) {
            return fy_failure_get(world->failure, NULL, error);
        }
    }
    return FERRY_OK;
}

ferry_status fy_attach_write(fy_attach *attach, uint32_t peer, void *to, const void *from,
                             uint64_t bytes, ferry_error *error)
{
    if (attach->world->threads) {
        fy_mapped_copy(to, from, bytes);
        return FERRY_OK;
    }
    return transfer(attach, peer, process_vm_writev, (char *)(uintptr_t)from, to, bytes, error);
}

ferry_status fy_attach_read(fy_attach *attach, uint32_t peer, void *to, const void *from,
                            uint64_t bytes, ferry_error *error)
{
    if (attach->world->threads) {
        fy_mapped_copy(to, from, bytes);
        return FERRY_OK;
    }
    return transfer(attach, peer, process_vm_readv, to, (char *)(uintptr_t)from, bytes, error);
}
