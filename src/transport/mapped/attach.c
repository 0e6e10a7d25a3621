/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/mapped/attach.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"
#include "transport/agree.h"
#include "transport/host.h"
#include "transport/mapped/mapped.h"
#include "transport/pages.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/uio.h>

/* A call moves at most this much, so that the failure of the world is noticed between calls. */
static const uint64_t CALL_BYTES = (uint64_t)32 << 20;

/* And this many pieces: Linux takes 1,024 in one call, of which the first is the token. */
enum { CALL_PIECES = 1023 };

/* Within which the world learns that a process of this node has ended. */
static const int64_t MOMENT_NS = 1000000000;

/*
 * A process id may name another process, in another namespace or after the peer's death. So each
 * rank tells all where a secret number of its own lies, and who reads that there has the right one.
 * It is read again before every call, for the next process of that id could be anybody's.
 *
 * It also ends what may no longer be reached: it lies in a page of its own, which nobody can use
 * once it is revoked, and each call that writes begins by writing it to where it lies. So a rank
 * that was stopped just before such a call, and wakes when it has been given up, writes nothing.
 */
typedef struct token {
    uint64_t address;
    uint64_t value;
} token;

enum { UNKNOWN, ALLOWED, DENIED };

struct fy_attach {
    ferry_world *world;
    token own;
    uint64_t *page; /* where the own one lies */
    bool revoked;
    token *tokens;     /* of the local ranks */
    uint8_t *verdicts; /* of the local ranks */
    uint32_t n_local;
};

static ferry_status prepare(ferry_world *world, fy_attach **attach_out, ferry_error *error)
{
    fy_attach *attach = fy_alloc_zeroed(1, sizeof *attach);
    if (attach == NULL) {
        return fy_fail_no_memory(error, "cross-memory attach");
    }
    attach->world = world;
    attach->n_local = world->n_local_ranks;
    attach->tokens = fy_alloc_zeroed(attach->n_local, sizeof *attach->tokens);
    attach->verdicts = fy_alloc_zeroed(attach->n_local, sizeof *attach->verdicts);
    void *page = mmap(NULL, (size_t)fy_page_bytes(), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    attach->page = page == MAP_FAILED ? NULL : page;
    if (attach->tokens == NULL || attach->verdicts == NULL || attach->page == NULL) {
        fy_attach_destroy(attach);
        return fy_fail_no_memory(error, "cross-memory attach");
    }
    if (getrandom(&attach->own.value, sizeof attach->own.value, GRND_NONBLOCK) < 0) {
        attach->own.value = (uint64_t)fy_now_ns();
    }
    attach->page[0] = attach->own.value;
    attach->own.address = (uintptr_t)attach->page;
    *attach_out = attach;
    return FERRY_OK;
}

ferry_status fy_attach_create(ferry_world *world, fy_attach **attach_out, ferry_error *error)
{
    fy_attach *attach = NULL;
    ferry_error why = {.message = ""};
    token none = {0};
    ferry_status status = prepare(world, &attach, &why);
    fy_vote vote = {.status = status,
                    .own = &why,
                    .bytes = attach == NULL ? &none : &attach->own,
                    .n_bytes = sizeof none};
    fy_votes votes;
    status = fy_votes_gather(world, &vote, &votes, error);
    if (status == FERRY_OK) {
        status = fy_votes_status(&votes, error);
    }
    if (status != FERRY_OK) {
        fy_attach_destroy(attach);
        return status;
    }
    size_t at = 0;
    uint32_t local = 0;
    for (uint32_t rank = 0; rank < world->n_ranks && local < attach->n_local; rank++) {
        size_t n_bytes;
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
    if (attach->page != NULL && !attach->revoked) {
        explicit_bzero(attach->page, sizeof *attach->page); /* others read it */
        attach->revoked = mprotect(attach->page, (size_t)fy_page_bytes(), PROT_NONE) == 0;
    }
}

void fy_attach_destroy(fy_attach *attach)
{
    if (attach != NULL) {
        if (fy_failed(attach->world->failure)) {
            fy_attach_revoke(attach);
        }
        /* Where it was revoked its place stays taken: nothing else may ever lie there. */
        if (attach->page != NULL && !attach->revoked) {
            munmap(attach->page, (size_t)fy_page_bytes());
        }
        fy_free(attach->tokens);
        fy_free(attach->verdicts);
        fy_free(attach);
    }
}

/* The place of a rank among those of this node, or n_local. */
static uint32_t local_of(const fy_attach *attach, uint32_t peer)
{
    uint32_t first = 0;
    uint32_t end = attach->n_local;
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
    uint64_t value = 0;
    struct iovec here = {.iov_base = &value, .iov_len = sizeof value};
    struct iovec there = {.iov_base = (void *)(uintptr_t)its->address, .iov_len = sizeof value};
    ssize_t n_read = process_vm_readv(pid, &here, 1, &there, 1, 0);
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

static ferry_status explain(const fy_attach *attach, uint32_t peer, const void *there,
                            uint64_t bytes, int problem, ferry_error *error)
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

/* A place in a list of pieces: n are left, of the first of which skip bytes are done. */
typedef struct cursor {
    const struct iovec *pieces;
    size_t n;
    size_t skip;
} cursor;

static void skip_empty(cursor *at)
{
    while (at->n > 0 && at->pieces->iov_len == at->skip) {
        at->pieces++;
        at->n--;
        at->skip = 0;
    }
}

static void advance(cursor *at, uint64_t bytes)
{
    while (bytes > 0) {
        uint64_t step = fy_min(bytes, at->pieces->iov_len - at->skip);
        at->skip += (size_t)step;
        bytes -= step;
        skip_empty(at);
    }
}

/* The pieces of one call from the cursor on, empty ones left out; the last one may be cut. */
typedef struct window {
    struct iovec pieces[1 + CALL_PIECES]; /* the first is for the token */
    size_t n;
    uint64_t bytes;
} window;

static void open_window(window *out, cursor at, uint64_t most_bytes)
{
    out->n = 0;
    out->bytes = 0;
    for (; at.n > 0 && out->n < CALL_PIECES && out->bytes < most_bytes; at.pieces++, at.n--) {
        size_t bytes = (size_t)fy_min(at.pieces->iov_len - at.skip, most_bytes - out->bytes);
        if (bytes > 0) {
            char *base = (char *)at.pieces->iov_base + at.skip;
            out->pieces[++out->n] = (struct iovec){.iov_base = base, .iov_len = bytes};
        }
        out->bytes += bytes;
        at.skip = 0;
    }
}

/* Writes the token to where it lies, and the pieces; how many bytes of these, or -1 and errno. */
static ssize_t write_there(int32_t pid, const token *its, window *ours, window *theirs)
{
    uint64_t value = its->value;
    ours->pieces[0] = (struct iovec){.iov_base = &value, .iov_len = sizeof value};
    theirs->pieces[0] =
        (struct iovec){.iov_base = (void *)(uintptr_t)its->address, .iov_len = sizeof value};
    ssize_t moved =
        process_vm_writev(pid, ours->pieces, 1 + ours->n, theirs->pieces, 1 + theirs->n, 0);
    return moved < 0 ? moved : moved - (ssize_t)sizeof value;
}

/*
 * One system call from the cursors on. The kernel moves what both lists have, and may stop early;
 * then what is left is asked for again, and it says why.
 */
static ferry_status transfer(const fy_attach *attach, uint32_t peer, bool write, cursor *here,
                             cursor *there, ferry_error *error)
{
    ferry_world *world = attach->world;
    int32_t pid = world->pid_of(world, peer);
    window ours, theirs;
    const token *its = &attach->tokens[local_of(attach, peer)];
    int problem = identify(pid, its);
    if (problem == EFAULT) {
        return refuse(world, peer, error);
    }
    open_window(&ours, *here, CALL_BYTES);
    open_window(&theirs, *there, ours.bytes);
    if (problem == 0) {
        ssize_t moved =
            write ? write_there(pid, its, &ours, &theirs)
                  : process_vm_readv(pid, ours.pieces + 1, ours.n, theirs.pieces + 1, theirs.n, 0);
        if (moved > 0) {
            advance(here, (uint64_t)moved);
            advance(there, (uint64_t)moved);
            return FERRY_OK;
        }
        problem = moved < 0 ? errno : EFAULT;
    }
    if (problem == EINTR || problem == EAGAIN) {
        return FERRY_OK;
    }
    return explain(attach, peer, theirs.pieces[1].iov_base, theirs.pieces[1].iov_len, problem,
                   error);
}

/* Threads of one process need no kernel for it. */
static void copy_pieces(bool write, cursor *here, cursor *there)
{
    while (here->n > 0 && there->n > 0) {
        char *ours = (char *)here->pieces->iov_base + here->skip;
        char *theirs = (char *)there->pieces->iov_base + there->skip;
        size_t bytes = (size_t)fy_min(here->pieces->iov_len - here->skip,
                                      there->pieces->iov_len - there->skip);
        fy_mapped_copy(write ? theirs : ours, write ? ours : theirs, bytes);
        advance(here, bytes);
        advance(there, bytes);
    }
}

ferry_status fy_attach_pieces(fy_attach *attach, uint32_t peer, bool write,
                              const struct iovec *here, size_t n_here, const struct iovec *there,
                              size_t n_there, ferry_error *error)
{
    cursor ours = {.pieces = here, .n = n_here};
    cursor theirs = {.pieces = there, .n = n_there};
    ferry_status status = FERRY_OK;
    skip_empty(&ours);
    skip_empty(&theirs);
    if (attach->world->threads) {
        copy_pieces(write, &ours, &theirs);
        return FERRY_OK;
    }
    while (status == FERRY_OK && ours.n > 0 && theirs.n > 0) {
        status = transfer(attach, peer, write, &ours, &theirs, error);
        if (status == FERRY_OK && ours.n > 0 && fy_failed(attach->world->failure)) {
            status = fy_failure_get(attach->world->failure, NULL, error);
        }
    }
    return status;
}

ferry_status fy_attach_write(fy_attach *attach, uint32_t peer, void *to, const void *from,
                             uint64_t bytes, ferry_error *error)
{
    struct iovec here = {.iov_base = (void *)(uintptr_t)from, .iov_len = (size_t)bytes};
    struct iovec there = {.iov_base = to, .iov_len = (size_t)bytes};
    return fy_attach_pieces(attach, peer, true, &here, 1, &there, 1, error);
}

ferry_status fy_attach_read(fy_attach *attach, uint32_t peer, void *to, const void *from,
                            uint64_t bytes, ferry_error *error)
{
    struct iovec here = {.iov_base = to, .iov_len = (size_t)bytes};
    struct iovec there = {.iov_base = (void *)(uintptr_t)from, .iov_len = (size_t)bytes};
    return fy_attach_pieces(attach, peer, false, &here, 1, &there, 1, error);
}
