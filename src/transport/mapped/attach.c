/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/mapped/attach.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"
#include "base/sort.h"
#include "memory/pages.h"
#include "transport/host.h"
#include "transport/mapped/mapped.h"
#include "world/agree.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/uio.h>

/* A call moves at most this much, so that the failure of the world is noticed between calls. */
static const uint64_t CALL_BYTES = (uint64_t)32 << 20;

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
    FY_TRY(fy_check_memory(attach != NULL, "cross-memory attach", error));
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

static void read_tokens(fy_attach *attach, const char *all)
{
    for (uint32_t local = 0; local < attach->n_local; local++) {
        memcpy(&attach->tokens[local], all + attach->world->local_ranks[local] * sizeof(token),
               sizeof(token));
    }
}

ferry_status fy_attach_create(ferry_world *world, fy_attach **attach_out, ferry_error *error)
{
    fy_attach *attach = NULL;
    const void *all;
    ferry_error why = {.message = ""};
    ferry_status status = fy_agree(world, prepare(world, &attach, &why), &why);
    FY_THEN(status, ferry_world_all_gather(world, &attach->own, sizeof attach->own, &all, &why));
    if (status != FERRY_OK) {
        fy_attach_destroy(attach);
        return fy_forward(error, status, &why);
    }
    read_tokens(attach, all);
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
    FY_BISECT(uint32_t, first, 0, attach->n_local, middle,
              attach->world->local_ranks[middle] < peer);
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
                                     : fy_forward(error, FERRY_ERR_PEER_LOST, &sentence);
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

/* Writes the token to where it lies, and the bytes; how many of these, or -1 and errno. */
static ssize_t write_there(int32_t pid, const token *its, void *there, void *here, size_t bytes)
{
    uint64_t value = its->value;
    struct iovec ours[2] = {{&value, sizeof value}, {here, bytes}};
    struct iovec theirs[2] = {{(void *)(uintptr_t)its->address, sizeof value}, {there, bytes}};
    ssize_t moved = process_vm_writev(pid, ours, 2, theirs, 2, 0);
    return moved < 0 ? moved : moved - (ssize_t)sizeof value;
}

static ssize_t read_there(int32_t pid, void *there, void *here, size_t bytes)
{
    struct iovec ours = {here, bytes}, theirs = {there, bytes};
    return process_vm_readv(pid, &ours, 1, &theirs, 1, 0);
}

/* One system call. The kernel may stop early; then the next one says why. */
static ferry_status transfer(const fy_attach *attach, uint32_t peer, bool write, void *there,
                             void *here, uint64_t bytes, uint64_t *moved_out, ferry_error *error)
{
    int32_t pid = attach->world->pid_of(attach->world, peer);
    const token *its = &attach->tokens[local_of(attach, peer)];
    size_t most = (size_t)fy_min(bytes, CALL_BYTES);
    int problem = identify(pid, its);
    *moved_out = 0;
    if (problem == EFAULT) {
        return refuse(attach->world, peer, error);
    }
    if (problem == 0) {
        ssize_t moved =
            write ? write_there(pid, its, there, here, most) : read_there(pid, there, here, most);
        if (moved > 0) {
            *moved_out = (uint64_t)moved;
            return FERRY_OK;
        }
        problem = moved < 0 ? errno : EFAULT;
    }
    return problem == EINTR || problem == EAGAIN
               ? FERRY_OK
               : explain(attach, peer, there, most, problem, error);
}

static ferry_status move(fy_attach *attach, uint32_t peer, bool write, char *there, char *here,
                         uint64_t bytes, ferry_error *error)
{
    if (attach->world->threads) { /* of one process, which need no kernel for it */
        fy_mapped_copy(write ? there : here, write ? here : there, bytes);
        return FERRY_OK;
    }
    for (uint64_t done = 0, moved; done < bytes; done += moved) {
        FY_TRY(
            transfer(attach, peer, write, there + done, here + done, bytes - done, &moved, error));
        if (done + moved < bytes && fy_failed(attach->world->failure)) {
            return fy_failure_get(attach->world->failure, NULL, error);
        }
    }
    return FERRY_OK;
}

ferry_status fy_attach_write(fy_attach *attach, uint32_t peer, void *to, const void *from,
                             uint64_t bytes, ferry_error *error)
{
    return move(attach, peer, true, to, (void *)(uintptr_t)from, bytes, error);
}

ferry_status fy_attach_read(fy_attach *attach, uint32_t peer, void *to, const void *from,
                            uint64_t bytes, ferry_error *error)
{
    return move(attach, peer, false, (void *)(uintptr_t)from, to, bytes, error);
}
