/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "rank_threads.h"

#include "transport/transport.h"

#include "support/emulated.h"
#include "support/random.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Engine shm among processes, on kernels that deny something: a filter of system calls plays them.
 */

/* What a rank's kernel denies. */
typedef struct denial {
    long call;       /* 0: nothing */
    int answer;      /* an errno */
    uint32_t advice; /* of madvise: only this one; 0: any */
} denial;

enum { POPULATE_WRITE = 23 };

static bool deny(const denial *what)
{
    /* Third argument, low half; every machine that ferry runs on is little endian. */
    uint32_t advice_at = offsetof(struct seccomp_data, args) + 2 * sizeof(uint64_t);

    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)what->call, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, advice_at),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, what->advice, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JA | BPF_K, what->advice == 0 ? 0 : 1, 0, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)what->answer),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = COUNT_OF(filter), .filter = filter};
    return what->call == 0 || (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
                               prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* A rank's process: ends with 0 if nothing was wrong. */
static void run_process(rank_thread *self, const char *path, const denial *denied)
{
    snprintf(self->wrong, sizeof self->wrong, "rank %u: the kernel takes no filter", self->rank);
    if (deny(denied)) {
        self->wrong[0] = '\0';
        ferry_status status = ferry_world_create_from_file(path, self->rank, self->n_ranks, NULL,
                                                           &self->world, &self->error);
        if (status != FERRY_OK) {
            snprintf(self->wrong, sizeof self->wrong, "rank %u: %s", self->rank,
                     self->error.message);
        } else {
            rank_thread_main(self);
        }
    }
    if (self->wrong[0] != '\0') {
        fprintf(stderr, "%s\n", self->wrong);
    }
    exit(self->wrong[0] != '\0');
}

/* Ranks that are processes. Only a victim may end by a signal. */
static void run_processes(uint32_t n_ranks, void (*run)(rank_thread *self), const denial *denied,
                          uint32_t victim)
{
    static const denial nothing = {0};
    char folder[] = "/tmp/ferry-shm-XXXXXX";
    char path[64];
    pid_t pids[MOST_RANKS];
    uint32_t n_wrong = 0;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/ranks", folder);
    fflush(NULL);
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        pids[rank] = fork();
        assert_true(pids[rank] >= 0);
        if (pids[rank] == 0) {
            static rank_thread self;
            self = (rank_thread){.rank = rank, .n_ranks = n_ranks, .run = run};
            run_process(&self, path, denied == NULL ? &nothing : denied);
        }
    }
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        int status;
        assert_int_equal(waitpid(pids[rank], &status, 0), pids[rank]);
        bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && rank == victim;
        n_wrong += !killed && status != 0;
    }
    unlink(path);
    rmdir(folder);
    assert_int_equal(n_wrong, 0);
}

enum { USER_BYTES = 300001, REGION_BYTES = 5 << 20 };

typedef struct setting {
    ferry_transport *transport;
    ferry_region *region;
    ferry_region *own; /* of user memory */
    unsigned char *memory;
    unsigned char keys[MOST_RANKS * FERRY_KEY_BYTES];
    size_t key_bytes;
} setting;

static ferry_status set_up(rank_thread *self, setting *it)
{
    static unsigned char memory[USER_BYTES];
    static unsigned char key[FERRY_KEY_BYTES];
    ferry_error *error = &self->error;
    ferry_buffer buffer = ferry_buffer_of(memory, sizeof memory);
    const void *all = NULL;
    ferry_status status = ferry_transport_open(self->world, "shm", &it->transport, error);
    it->memory = memory;
    if (status == FERRY_OK) {
        status = ferry_region_alloc(it->transport, FERRY_MEMORY_HOST, 0, REGION_BYTES, &it->region,
                                    error);
    }
    if (status == FERRY_OK) {
        status = ferry_region_register(it->transport, &buffer, &it->own, error);
    }
    if (status == FERRY_OK) {
        status = ferry_region_export(it->own, key, sizeof key, &it->key_bytes, error);
    }
    if (status == FERRY_OK) {
        status = ferry_world_all_gather(self->world, key, it->key_bytes, &all, error);
    }
    if (status == FERRY_OK) {
        memcpy(it->keys, all, it->key_bytes * self->n_ranks);
    }
    return status;
}

static ferry_status import(const setting *it, uint32_t peer, ferry_region **region_out,
                           ferry_error *error)
{
    return ferry_region_import(it->transport, it->keys + peer * it->key_bytes, it->key_bytes,
                               region_out, error);
}

static void take_down(setting *it)
{
    ferry_region_free(it->own);
    ferry_region_free(it->region);
    ferry_transport_close(it->transport);
}

/* Symmetric memory: every byte from the previous rank, over all granules, twice. */
static void move_symmetric(rank_thread *self, const setting *it)
{
    static unsigned char source[REGION_BYTES - 64];
    uint32_t next = (self->rank + 1) % self->n_ranks;
    uint32_t previous = (self->rank + self->n_ranks - 1) % self->n_ranks;
    const unsigned char *base = ferry_region_base(it->region);
    ferry_buffer buffer = ferry_buffer_of(source, sizeof source);
    for (uint64_t lap = 1; lap <= 2; lap++) {
        ferry_signal signal = {it->region, 16, lap, FERRY_SIGNAL_SET};
        memset(source, (int)(10 * lap + self->rank), sizeof source);
        expect_ok(self, ferry_transport_put_signal(it->transport, next, it->region, 64, &buffer,
                                                   &signal, NULL, &self->error));
        expect_ok(self, ferry_transport_wait_signal(it->transport, it->region, 16, FERRY_COMPARE_EQ,
                                                    lap, previous, 20, NULL, NULL, &self->error));
        for (size_t i = 0; i < sizeof source; i++) {
            expect(self, base[64 + i] == (unsigned char)(10 * lap + previous));
        }
        expect_ok(self, ferry_world_barrier(self->world, &self->error));
    }
    const unsigned char *there = ferry_region_pointer(it->region, next);
    expect(self, there != NULL && memcmp(there + 64, source, sizeof source) == 0);
}

/* Registered memory of the next rank: put, signal, get. */
static void move_registered(rank_thread *self, const setting *it)
{
    static unsigned char source[USER_BYTES - 2];
    static unsigned char fetched[USER_BYTES];
    uint32_t next = (self->rank + 1) % self->n_ranks;
    uint32_t previous = (self->rank + self->n_ranks - 1) % self->n_ranks;
    ferry_buffer buffer = ferry_buffer_of(source, sizeof source);
    ferry_buffer target = ferry_buffer_of(fetched, sizeof fetched);
    ferry_signal signal = {it->region, 8, 1, FERRY_SIGNAL_ADD};
    ferry_region *imported;
    uint32_t can;
    expect_ok(self, ferry_transport_get_peer(it->transport, next, NULL, &can, &self->error));
    expect(self, (can & FERRY_CAN_REMOTE_USER_MEMORY) != 0);
    expect_ok(self, import(it, next, &imported, &self->error));
    memset(source, (int)self->rank + 1, sizeof source);
    expect_ok(self, ferry_transport_put_signal(it->transport, next, imported, 1, &buffer, &signal,
                                               NULL, &self->error));
    expect_ok(self, ferry_transport_wait_signal(it->transport, it->region, 8, FERRY_COMPARE_GE, 1,
                                                previous, 20, NULL, NULL, &self->error));
    expect(self, it->memory[0] == 0 && it->memory[USER_BYTES - 1] == 0);
    for (size_t i = 1; i < USER_BYTES - 1; i++) {
        expect(self, it->memory[i] == previous + 1);
    }
    expect_ok(self,
              ferry_transport_get(it->transport, next, imported, 0, &target, NULL, &self->error));
    expect(self, fetched[0] == 0 && memcmp(fetched + 1, source, sizeof source) == 0);
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    ferry_region_free(imported);
}

static void run_allowed(rank_thread *self)
{
    static setting it;
    expect_ok(self, set_up(self, &it));
    move_symmetric(self, &it);
    if (self->wrong[0] == '\0') {
        move_registered(self, &it);
    }
    take_down(&it);
}

static void run_without_attach(rank_thread *self)
{
    static setting it;
    ferry_region *imported;
    uint32_t can;
    uint32_t peer = 1 - self->rank;
    expect_ok(self, set_up(self, &it));
    expect_ok(self, ferry_transport_get_peer(it.transport, peer, NULL, &can, &self->error));
    expect(self, (can & FERRY_CAN_REMOTE_USER_MEMORY) == 0);
    expect(self, (can & FERRY_CAN_PEER_POINTER) != 0);
    expect_status(self, FERRY_ERR_UNSUPPORTED, import(&it, peer, &imported, &self->error));
    expect_says(self, "cross-memory attach to rank");
    expect_says(self, "is denied by this kernel");
    /* A rank always reaches its own. */
    expect_ok(self, import(&it, self->rank, &imported, &self->error));
    ferry_region_free(imported);
    move_symmetric(self, &it);
    take_down(&it);
}

static void test_allowed(void **state)
{
    (void)state;
    if (is_left_out(__func__, "reads no memory of another process (process_vm_readv)")) {
        return;
    }
    run_processes(3, run_allowed, NULL, FERRY_ANY_RANK);
}

static void test_attach_denied(void **state)
{
    (void)state;
    if (is_left_out(__func__, "takes no filter of system calls (seccomp)")) {
        return;
    }
    static const int answers[] = {EPERM, ENOSYS};
    for (size_t i = 0; i < COUNT_OF(answers); i++) {
        denial denied = {.call = SYS_process_vm_readv, .answer = answers[i]};
        run_processes(2, run_without_attach, &denied, FERRY_ANY_RANK);
    }
}

/* Linux before 5.14 cannot populate: the memory is there all the same. */
static void test_old_kernel(void **state)
{
    (void)state;
    if (is_left_out(__func__, "takes no filter of system calls (seccomp)")) {
        return;
    }
    denial denied = {.call = SYS_madvise, .answer = EINVAL, .advice = POPULATE_WRITE};
    run_processes(3, run_allowed, &denied, FERRY_ANY_RANK);
}

/* No page can be had: an error on every rank, and not a signal. */
static void run_without_pages(rank_thread *self)
{
    ferry_transport *transport;
    ferry_region *region;
    expect_ok(self, ferry_transport_open(self->world, "shm", &transport, &self->error));
    expect_status(
        self, FERRY_ERR_NO_MEMORY,
        ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, REGION_BYTES, &region, &self->error));
    expect_says(self, "rank 0: 2097152 bytes of memory could not be made present");
    ferry_transport_close(transport);
}

static void test_no_pages(void **state)
{
    (void)state;
    if (is_left_out(__func__, "takes no filter of system calls (seccomp)")) {
        return;
    }
    denial denied = {.call = SYS_madvise, .answer = ENOMEM, .advice = POPULATE_WRITE};
    run_processes(2, run_without_pages, &denied, FERRY_ANY_RANK);
}

/* Memory that its owner unmapped is the caller's mistake, not a signal. */
static void run_unmapped(rank_thread *self)
{
    static unsigned char key[FERRY_KEY_BYTES];
    unsigned char bytes[100] = {0};
    setting it;
    ferry_region *own;
    ferry_region *imported;
    size_t n_bytes;
    const void *all;
    uint32_t peer = 1 - self->rank;
    ferry_error *error = &self->error;
    expect_ok(self, ferry_transport_open(self->world, "shm", &it.transport, error));
    void *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(self, memory != MAP_FAILED);
    ferry_buffer buffer = ferry_buffer_of(memory, 8192);
    ferry_buffer source = ferry_buffer_of(bytes, sizeof bytes);
    expect_ok(self, ferry_region_register(it.transport, &buffer, &own, error));
    expect_ok(self, ferry_region_export(own, key, sizeof key, &n_bytes, error));
    expect_ok(self, ferry_world_all_gather(self->world, key, n_bytes, &all, error));
    expect_ok(self, ferry_region_import(it.transport, (const char *)all + peer * n_bytes, n_bytes,
                                        &imported, error));
    expect(self, munmap((char *)memory + 4096, 4096) == 0);
    expect_ok(self, ferry_world_barrier(self->world, error));
    expect_ok(self, ferry_transport_put(it.transport, peer, imported, 0, &source, NULL, error));
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_transport_put(it.transport, peer, imported, 4050, &source, NULL, error));
    expect_says(self, "are not mapped");
    expect_ok(self, ferry_world_barrier(self->world, error));
    ferry_region_free(imported);
    ferry_region_free(own);
    ferry_transport_close(it.transport);
    munmap(memory, 4096);
}

static void test_unmapped(void **state)
{
    (void)state;
    if (is_left_out(__func__, "reads no memory of another process (process_vm_readv)")) {
        return;
    }
    run_processes(2, run_unmapped, NULL, FERRY_ANY_RANK);
}

/* Who has closed its transport is out of reach, even where its memory is still mapped. */
static void run_closed(rank_thread *self)
{
    static setting it;
    unsigned char bytes[100] = {1};
    ferry_region *imported;
    ferry_buffer buffer = ferry_buffer_of(bytes, sizeof bytes);
    expect_ok(self, set_up(self, &it));
    expect_ok(self, import(&it, 1 - self->rank, &imported, &self->error));
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    if (self->rank == 1) {
        ferry_transport_close(it.transport);
    }
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    if (self->rank == 0) {
        expect_status(
            self, FERRY_ERR_MISUSE,
            ferry_transport_put(it.transport, 1, imported, 0, &buffer, NULL, &self->error));
        expect_says(self, "rank 1 cannot be reached any more");
        expect_status(
            self, FERRY_ERR_MISUSE,
            ferry_transport_get(it.transport, 1, imported, 0, &buffer, NULL, &self->error));
    }
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    expect(self, it.memory[0] == 0);
    if (self->rank == 0) {
        ferry_transport_close(it.transport);
    }
}

static void test_closed(void **state)
{
    (void)state;
    if (is_left_out(__func__, "reads no memory of another process (process_vm_readv)")) {
        return;
    }
    run_processes(2, run_closed, NULL, FERRY_ANY_RANK);
}

/* So is who has taken back what others might write to, as one that goes on without them does. */
static void run_revoked(rank_thread *self)
{
    static setting it;
    unsigned char bytes[100] = {1};
    ferry_region *imported;
    ferry_buffer buffer = ferry_buffer_of(bytes, sizeof bytes);
    expect_ok(self, set_up(self, &it));
    expect_ok(self, import(&it, 1 - self->rank, &imported, &self->error));
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    if (self->rank == 1) {
        const fy_open_engine *engine = &it.transport->engines[0];
        expect_ok(self, engine->table->revoke(engine->state, &it.own->view, it.own->attachments[0],
                                              &self->error));
    }
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    if (self->rank == 0) {
        expect_status(
            self, FERRY_ERR_MISUSE,
            ferry_transport_put(it.transport, 1, imported, 0, &buffer, NULL, &self->error));
        expect_says(self, "rank 1 cannot be reached any more");
    }
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    expect(self, it.memory[0] == 0);
    ferry_region_free(imported);
    ferry_region_free(it.own);
    ferry_transport_close(it.transport);
}

static void test_revoked(void **state)
{
    (void)state;
    if (is_left_out(__func__, "reads no memory of another process (process_vm_readv)")) {
        return;
    }
    run_processes(2, run_revoked, NULL, FERRY_ANY_RANK);
}

/* A peer that dies while others write to it: all get to know, whatever they were doing. */
enum { VICTIM = 1 };

static void run_death(rank_thread *self)
{
    static setting it;
    static unsigned char source[USER_BYTES];
    ferry_region *imported;
    ferry_buffer buffer = ferry_buffer_of(source, sizeof source);
    ferry_status status = FERRY_OK;
    uint32_t named = FERRY_ANY_RANK;
    expect_ok(self, set_up(self, &it));
    expect_ok(self, import(&it, VICTIM, &imported, &self->error));
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    ferry_signal left = {it.region, 8, 1, FERRY_SIGNAL_ADD}; /* the barrier, which must be whole */
    ferry_buffer none = ferry_buffer_of(NULL, 0);
    if (self->rank == VICTIM) {
        expect_ok(self, ferry_transport_wait_signal(it.transport, it.region, 8, FERRY_COMPARE_GE,
                                                    self->n_ranks - 1, FERRY_ANY_RANK, 100, NULL,
                                                    NULL, &self->error));
        /* Leaves the others time to be in the middle of things. */
        ferry_transport_wait_signal(it.transport, it.region, 0, FERRY_COMPARE_NE, 0, 0, 0.02, NULL,
                                    NULL, NULL);
        raise(SIGKILL);
    }
    expect_ok(self, ferry_transport_put_signal(it.transport, VICTIM, it.region, 0, &none, &left,
                                               NULL, &self->error));
    while (status == FERRY_OK && self->rank == 0) {
        status =
            ferry_transport_put(it.transport, VICTIM, imported, 0, &buffer, NULL, &self->error);
    }
    if (self->rank == 2) {
        status = ferry_transport_wait_signal(it.transport, it.region, 0, FERRY_COMPARE_NE, 0,
                                             VICTIM, -1, NULL, NULL, &self->error);
    }
    while (status == FERRY_OK && self->rank == 3) {
        status =
            ferry_transport_put(it.transport, VICTIM, it.region, 64, &buffer, NULL, &self->error);
    }
    expect(self, status == FERRY_ERR_PEER_LOST);
    expect_says(self, "rank 1");
    expect_status(self, FERRY_ERR_PEER_LOST, ferry_world_state(self->world, &named, &self->error));
    expect(self, named == VICTIM);
    ferry_region_free(imported);
    take_down(&it);
}

static void test_death(void **state)
{
    (void)state;
    if (is_left_out(__func__, "reads no memory of another process (process_vm_readv)")) {
        return;
    }
    for (int i = 0; i < 5; i++) {
        run_processes(4, run_death, NULL, VICTIM);
    }
}

/*
 * Memory that peers map
 */

enum { MAPPED_BYTES = (5 << 20) + 77 };

/* A key of ferry_memory_alloc's, from every rank. */
static ferry_status set_up_mapped(rank_thread *self, setting *it, ferry_buffer *memory)
{
    unsigned char key[FERRY_KEY_BYTES];
    ferry_error *error = &self->error;
    const void *all = NULL;
    ferry_status status = ferry_transport_open(self->world, "shm", &it->transport, error);
    if (status == FERRY_OK) {
        status = ferry_region_alloc(it->transport, FERRY_MEMORY_HOST, 0, REGION_BYTES, &it->region,
                                    error);
    }
    if (status == FERRY_OK) {
        status =
            ferry_memory_alloc(it->transport, FERRY_MEMORY_HOST, 0, MAPPED_BYTES, memory, error);
    }
    if (status == FERRY_OK) {
        status = ferry_region_export(memory->registration, key, sizeof key, &it->key_bytes, error);
    }
    if (status == FERRY_OK) {
        status = ferry_world_all_gather(self->world, key, it->key_bytes, &all, error);
    }
    if (status == FERRY_OK) {
        memcpy(it->keys, all, it->key_bytes * self->n_ranks);
    }
    return status;
}

/* Whether attach is allowed or not, what can be mapped is reached. */
static void run_mapped(rank_thread *self)
{
    static setting it;
    static unsigned char source[MAPPED_BYTES];
    ferry_buffer memory;
    ferry_region *imported;
    uint32_t peer = 1 - self->rank;
    expect_ok(self, set_up_mapped(self, &it, &memory));
    expect_ok(self, import(&it, peer, &imported, &self->error));
    unsigned char *mapped = ferry_region_pointer(imported, peer);
    ferry_buffer buffer = ferry_buffer_of(source, sizeof source);
    expect(self, mapped != NULL);
    memset(source, (int)self->rank + 1, sizeof source);
    expect_ok(self,
              ferry_transport_put(it.transport, peer, imported, 0, &buffer, NULL, &self->error));
    mapped[77] = 99;
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    const unsigned char *own = memory.base;
    for (size_t i = 0; i < MAPPED_BYTES; i++) {
        expect(self, own[i] == (i == 77 ? 99 : peer + 1));
    }
    ferry_region_free(imported);
    ferry_memory_free(&memory);
    ferry_region_free(it.region);
    ferry_transport_close(it.transport);
}

static void test_mapped(void **state)
{
    (void)state;
    if (is_left_out(__func__, "takes no filter of system calls (seccomp)")) {
        return;
    }
    denial no_attach = {.call = SYS_process_vm_readv, .answer = EPERM};
    denial no_advice = {.call = SYS_madvise, .answer = EINVAL, .advice = POPULATE_WRITE};
    run_processes(2, run_mapped, NULL, FERRY_ANY_RANK);
    run_processes(2, run_mapped, &no_attach, FERRY_ANY_RANK);
    run_processes(2, run_mapped, &no_advice, FERRY_ANY_RANK);
}

/* Where nothing leads through /proc and attach is denied too, an import says so. */
#ifdef SYS_readlink
static const denial no_links = {.call = SYS_readlink, .answer = EACCES};
#else
static const denial no_links = {.call = SYS_readlinkat, .answer = EACCES};
#endif

static void run_secretive(rank_thread *self)
{
    static setting it;
    ferry_buffer memory;
    ferry_region *imported;
    uint32_t peer = 1 - self->rank;
    expect_ok(self, set_up_mapped(self, &it, &memory));
    expect(self, deny(&no_links));
    expect_status(self, FERRY_ERR_UNSUPPORTED, import(&it, peer, &imported, &self->error));
    expect_says(self, "is denied by this kernel");
    expect(self,
           (fy_transport_capabilities(it.transport, peer) & FERRY_CAN_REMOTE_USER_MEMORY) == 0);
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    ferry_memory_free(&memory);
    ferry_region_free(it.region);
    ferry_transport_close(it.transport);
}

static void test_secretive(void **state)
{
    (void)state;
    if (is_left_out(__func__, "takes no filter of system calls (seccomp)")) {
        return;
    }
    denial denied = {.call = SYS_process_vm_readv, .answer = EPERM};
    run_processes(2, run_secretive, &denied, FERRY_ANY_RANK);
}

/* A longer file than the process may write would end it by a signal: it is refused before. */
static void run_limited(rank_thread *self)
{
    ferry_transport *transport;
    ferry_buffer memory = ferry_buffer_of(self, 1);
    struct rlimit limit;
    expect_ok(self, ferry_transport_open(self->world, "shm", &transport, &self->error));
    expect(self, getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = 1 << 20;
    expect(self, setrlimit(RLIMIT_FSIZE, &limit) == 0);
    expect_status(
        self, FERRY_ERR_NO_MEMORY,
        ferry_memory_alloc(transport, FERRY_MEMORY_HOST, 0, 2 << 20, &memory, &self->error));
    expect_says(self, "RLIMIT_FSIZE allows 1048576");
    expect(self, memory.base == self);
    expect_ok(self,
              ferry_memory_alloc(transport, FERRY_MEMORY_HOST, 0, 1 << 20, &memory, &self->error));
    ferry_memory_free(&memory);
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    ferry_transport_close(transport);
}

static void test_limited(void **state)
{
    (void)state;
    run_processes(2, run_limited, NULL, FERRY_ANY_RANK);
}

/* One rank that may open nothing more: all hear of it, and nothing is half made. */
static void run_without_descriptors(rank_thread *self)
{
    ferry_transport *transport;
    ferry_region *region = NULL;
    struct rlimit limit, none;
    expect_ok(self, ferry_transport_open(self->world, "shm", &transport, &self->error));
    expect(self, getrlimit(RLIMIT_NOFILE, &limit) == 0);
    none = limit;
    int next = dup(STDERR_FILENO);
    close(next);
    none.rlim_cur = (rlim_t)next;
    expect(self, self->rank == 0 || setrlimit(RLIMIT_NOFILE, &none) == 0);
    expect_status(self, FERRY_ERR_LIMIT,
                  ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 4096, &region, &self->error));
    expect_says(self, "no descriptor is left for symmetric memory (");
    expect_says(self, "raise `ulimit -n`");
    expect(self, region == NULL && setrlimit(RLIMIT_NOFILE, &limit) == 0);
    expect_ok(self,
              ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 4096, &region, &self->error));
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    ferry_region_free(region);
    ferry_transport_close(transport);
}

static void test_without_descriptors(void **state)
{
    (void)state;
    run_processes(2, run_without_descriptors, NULL, FERRY_ANY_RANK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allowed),    cmocka_unit_test(test_attach_denied),
        cmocka_unit_test(test_old_kernel), cmocka_unit_test(test_no_pages),
        cmocka_unit_test(test_unmapped),   cmocka_unit_test(test_closed),
        cmocka_unit_test(test_revoked),    cmocka_unit_test(test_death),
        cmocka_unit_test(test_mapped),     cmocka_unit_test(test_secretive),
        cmocka_unit_test(test_limited),    cmocka_unit_test(test_without_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
