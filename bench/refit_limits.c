/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What the machine can do with the same bytes, beside the service. */
#include "host/copy.h"
#include "refit_bench.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define GIB ((uint64_t)1 << 30)

enum { MAX_THREADS = 256 };

/* ---- copy: threads of rank 0, one on each core ---- */

typedef struct copier {
    struct copy_course *course;
    pthread_t thread;
    uint32_t cpu;
    char *from, *to;
} copier;

typedef struct copy_course {
    pthread_barrier_t barrier; /* the threads, and rank 0's own */
    bool is_over;
    uint32_t n_threads;
    uint64_t bytes; /* of each thread */
    copier copiers[MAX_THREADS];
} copy_course;

static char *map_private(refit_bench *b, uint64_t bytes)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        refit_fail(b, "no memory for copies");
    }
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

static void *copy_in_turns(void *argument)
{
    copier *own = argument;
    copy_course *c = own->course;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(own->cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    memset(own->from, 1, c->bytes); /* by the thread that copies it: near */
    memset(own->to, 2, c->bytes);
    for (;;) {
        pthread_barrier_wait(&c->barrier);
        if (c->is_over) {
            return NULL;
        }
        fy_copy_streaming(own->to, own->from, c->bytes);
        pthread_barrier_wait(&c->barrier);
    }
}

static void run_copy(refit_bench *b, refit_series *s)
{
    copy_course *c = s->own;
    if (b->rank == 0) {
        pthread_barrier_wait(&c->barrier);
        pthread_barrier_wait(&c->barrier);
    }
}

static void end_copy(refit_bench *b, refit_series *s)
{
    copy_course *c = s->own;
    if (b->rank == 0) {
        c->is_over = true;
        pthread_barrier_wait(&c->barrier);
        for (uint32_t i = 0; i < c->n_threads; i++) {
            pthread_join(c->copiers[i].thread, NULL);
            munmap(c->copiers[i].from, c->bytes);
            munmap(c->copiers[i].to, c->bytes);
        }
        pthread_barrier_destroy(&c->barrier);
    }
    free(c);
}

static void prepare_copy(refit_bench *b, refit_series *s)
{
    cpu_set_t allowed;
    copy_course *c = calloc(1, sizeof *c);
    if (c == NULL || sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        refit_fail(b, "copies cannot be measured");
        return;
    }
    c->n_threads = (uint32_t)CPU_COUNT(&allowed);
    c->n_threads = c->n_threads > MAX_THREADS ? MAX_THREADS : c->n_threads;
    c->bytes = GIB / c->n_threads / 4096 * 4096;
    s->bytes = c->bytes * c->n_threads;
    s->own = c;
    s->run = run_copy;
    s->end = end_copy;
    if (b->rank != 0) {
        return;
    }
    pthread_barrier_init(&c->barrier, NULL, c->n_threads + 1);
    for (uint32_t i = 0, cpu = 0; i < c->n_threads; cpu++) {
        if (CPU_ISSET(cpu, &allowed)) {
            c->copiers[i] = (copier){.course = c,
                                     .cpu = cpu,
                                     .from = map_private(b, c->bytes),
                                     .to = map_private(b, c->bytes)};
            if (pthread_create(&c->copiers[i].thread, NULL, copy_in_turns, &c->copiers[i]) != 0) {
                refit_fail(b, "threads that copy cannot be started");
            }
            i++;
        }
    }
}

/* ---- in the ranks' own memory ---- */

static uint64_t here_bytes(const refit_bench *b)
{
    return b->source.bytes < b->destination.bytes ? b->source.bytes : b->destination.bytes;
}

static void run_copy_here(refit_bench *b, refit_series *s)
{
    (void)s;
    fy_copy(b->destination.base, b->source.base, here_bytes(b));
}

/* Four pages side by side, as the copies do it: the memory's own speed, not that of one stream. */
typedef uint64_t lane __attribute__((vector_size(64), aligned(8), may_alias));

static void run_read(refit_bench *b, refit_series *s)
{
    enum { PAGE = 4096 };
    const char *at = b->destination.base;
    lane sum0 = {0}, sum1 = {0}, sum2 = {0}, sum3 = {0};
    for (uint64_t n = b->destination.bytes / (4 * PAGE); n > 0; n--, at += 4 * PAGE) {
        for (int i = 0; i < PAGE; i += (int)sizeof(lane)) {
            sum0 += *(const lane *)(at + i);
            sum1 += *(const lane *)(at + PAGE + i);
            sum2 += *(const lane *)(at + 2 * PAGE + i);
            sum3 += *(const lane *)(at + 3 * PAGE + i);
        }
    }
    sum0 += sum1 + sum2 + sum3;
    *(volatile uint64_t *)&s->wrong_rows = sum0[0] + sum0[7]; /* so that the loads must be done */
    s->wrong_rows = 0;
}

static void end_nothing(refit_bench *b, refit_series *s)
{
    (void)b;
    (void)s;
}

/* ---- cross-memory attach ---- */

/* One system call: pieces [local, local + n_local) here, and those of the peer. */
typedef struct attach_call {
    pid_t pid; /* 0: a copy within this rank, one piece on each side */
    size_t local, n_local, remote, n_remote;
    uint64_t bytes;
} attach_call;

typedef struct attach {
    bool is_read;
    attach_call *calls;
    struct iovec *local, *remote;
    size_t n_calls, n_local, n_remote;
} attach;

typedef struct whereabouts {
    uint64_t pid, source, destination;
} whereabouts;

/* Longer calls do not get faster, and are not cut by the kernel. */
static const uint64_t call_bytes = (uint64_t)64 << 20;

static void add_piece(struct iovec *pieces, size_t *n, bool may_join, char *at, uint64_t bytes)
{
    struct iovec *last = &pieces[*n - 1];
    if (may_join && (char *)last->iov_base + last->iov_len == at) {
        last->iov_len += bytes;
    } else {
        pieces[(*n)++] = (struct iovec){at, bytes};
    }
}

static void add_row(attach *a, pid_t pid, char *local, char *remote, uint64_t bytes)
{
    attach_call *call = a->n_calls == 0 ? NULL : &a->calls[a->n_calls - 1];
    bool is_full = call == NULL || pid == 0 || call->pid != pid || call->bytes >= call_bytes ||
                   a->n_local - call->local == IOV_MAX || a->n_remote - call->remote == IOV_MAX;
    if (is_full) {
        call = &a->calls[a->n_calls++];
        *call = (attach_call){.pid = pid, .local = a->n_local, .remote = a->n_remote};
    }
    add_piece(a->local, &a->n_local, !is_full, local, bytes);
    add_piece(a->remote, &a->n_remote, !is_full, remote, bytes);
    call->n_local = a->n_local - call->local;
    call->n_remote = a->n_remote - call->remote;
    call->bytes += bytes;
}

static uint64_t count_rows(const refit_bench *b, bool is_read)
{
    uint64_t n = 0;
    for (size_t i = 0; i < b->its->n_moves; i++) {
        const refit_move *move = &b->its->moves[i];
        n += (is_read ? move->to : move->from) == (int)b->rank ? move->rows : 0;
    }
    return n;
}

/* Peers in turn, beginning behind this rank, so that not all ranks meet at one. */
static void list_rows(refit_bench *b, attach *a, const whereabouts *all)
{
    int n = b->its->n_ranks, own = (int)b->rank;
    for (int k = 1; k <= n; k++) {
        int peer = (own + k) % n;
        for (size_t i = 0; i < b->its->n_moves; i++) {
            const refit_move *move = &b->its->moves[i];
            if ((a->is_read ? move->to : move->from) != own ||
                (a->is_read ? move->from : move->to) != peer) {
                continue;
            }
            for (uint64_t r = 0; r < move->rows; r++) {
                char *from = (char *)(uintptr_t)all[move->from].source;
                char *to = (char *)(uintptr_t)all[move->to].destination;
                from += refit_row_at(&move->source, r);
                to += refit_row_at(&move->destination, r);
                add_row(a, peer == own ? 0 : (pid_t)all[peer].pid, a->is_read ? to : from,
                        a->is_read ? from : to, move->columns * REFIT_ELEMENT_BYTES);
            }
        }
    }
}

static void call_attach(refit_bench *b, const attach *a, const attach_call *call)
{
    const struct iovec *local = &a->local[call->local], *remote = &a->remote[call->remote];
    if (call->pid == 0) {
        void *to = a->is_read ? local->iov_base : remote->iov_base;
        fy_copy_unfenced(to, a->is_read ? remote->iov_base : local->iov_base, local->iov_len);
        return;
    }
    ssize_t done =
        a->is_read ? process_vm_readv(call->pid, local, call->n_local, remote, call->n_remote, 0)
                   : process_vm_writev(call->pid, local, call->n_local, remote, call->n_remote, 0);
    if (done < 0 || (uint64_t)done != call->bytes) {
        refit_fail(b, done < 0 ? strerror(errno) : "the kernel copied less than asked for");
    }
}

static void run_attach(refit_bench *b, refit_series *s)
{
    const attach *a = s->own;
    for (size_t i = 0; i < a->n_calls; i++) {
        call_attach(b, a, &a->calls[i]);
    }
    fy_copy_fence();
}

static void end_attach(refit_bench *b, refit_series *s)
{
    attach *a = s->own;
    (void)b;
    free(a->calls);
    free(a->local);
    free(a->remote);
    free(a);
}

static void prepare_attach(refit_bench *b, refit_series *s, bool is_read)
{
    ferry_error error;
    const void *all = NULL;
    whereabouts own = {(uint64_t)getpid(), (uintptr_t)b->source.base,
                       (uintptr_t)b->destination.base};
    size_t n = count_rows(b, is_read) + 1;
    attach *a = calloc(1, sizeof *a);
    if (a == NULL) {
        refit_fail(b, "no memory for calls");
        return;
    }
    a->is_read = is_read;
    a->calls = calloc(n, sizeof *a->calls);
    a->local = calloc(n, sizeof *a->local);
    a->remote = calloc(n, sizeof *a->remote);
    if (a->calls == NULL || a->local == NULL || a->remote == NULL) {
        refit_fail(b, "no memory for calls");
    }
    refit_check(b, ferry_world_all_gather(b->world, &own, sizeof own, &all, &error), &error);
    list_rows(b, a, all);
    s->own = a;
    s->run = run_attach;
    s->end = end_attach;
}

bool refit_limit_prepare(refit_bench *b, refit_series *s)
{
    s->end = end_nothing;
    if (strcmp(s->text, "copy") == 0) {
        prepare_copy(b, s);
    } else if (strcmp(s->text, "copy-here") == 0) {
        s->bytes = refit_sum(b, here_bytes(b));
        s->run = run_copy_here;
    } else if (strcmp(s->text, "read") == 0) {
        s->bytes = refit_sum(b, b->destination.bytes);
        s->run = run_read;
    } else if (strcmp(s->text, "attach-write") == 0 || strcmp(s->text, "attach-read") == 0) {
        prepare_attach(b, s, strcmp(s->text, "attach-read") == 0);
    } else {
        return false;
    }
    return true;
}
