/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * contract [CASE]
 *
 * The stand-in for NVSHMEM ends processes where NVSHMEM does: each case runs two PEs that use it
 * right or wrong, and looks how they end. A stand-in that lets something pass would prove nothing
 * of the engine.
 */
#include "device/nvshmem/standin.h"

#include <cuda.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_PES = 2, BYTES = 4096, LIMIT_SECONDS = 20, EXITS = 255, BY_ID = 8, SET = 9, ADD = 10 };

static standin_id *shared_id; /* between the PEs; its version is 0 until it is made */
static CUstream stream;

static void check(bool is_right, const char *what)
{
    if (!is_right) {
        fprintf(stderr, "not so: %s\n", what);
        _exit(1);
    }
}

static void take_context(void)
{
    CUcontext context;
    CUdevice device;
    check(cuInit(0) == CUDA_SUCCESS && cuDeviceGet(&device, 0) == CUDA_SUCCESS &&
              cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS &&
              cuCtxPushCurrent(context) == CUDA_SUCCESS &&
              cuStreamCreate(&stream, 0) == CUDA_SUCCESS,
          "a context and a stream");
}

static standin_attributes attributes_of(int pe)
{
    return (standin_attributes){.version = (2 << 16) + 144,
                                .arguments_version = (2 << 16) + 128,
                                .id_version = (1 << 16) + 24,
                                .id = shared_id,
                                .rank = pe,
                                .n_ranks = N_PES,
                                .device = -1};
}

/* As a PE of a job; the memory that all have. */
static uint64_t *start(int pe)
{
    standin_id id = {.version = (1 << 16) + 128};
    take_context();
    if (pe == 0) {
        check(nvshmemx_get_uniqueid(&id) == 0, "an id");
        memcpy(shared_id->internal, id.internal, sizeof id.internal);
        __atomic_store_n(&shared_id->version, id.version, __ATOMIC_SEQ_CST);
    }
    while (__atomic_load_n(&shared_id->version, __ATOMIC_SEQ_CST) == 0) {
        usleep(100);
    }
    standin_attributes attributes = attributes_of(pe);
    check(nvshmemx_hostlib_init_attr(BY_ID, &attributes) == 0, "the start");
    check(nvshmem_my_pe() == pe && nvshmem_n_pes() == N_PES, "who this is");
    uint64_t *memory = nvshmem_malloc(BYTES);
    check(memory != NULL, "memory");
    return memory;
}

static void wait_for(uint64_t *word, uint64_t value)
{
    while (__atomic_load_n(word, __ATOMIC_SEQ_CST) < value) { /* the other one may be ahead */
        usleep(100);
    }
}

static void right(int pe)
{
    uint64_t *memory = start(pe);
    bool is_far = getenv("STANDIN_NODE") != NULL;
    uint64_t *source = memory + 8, got = 0;
    check((nvshmem_ptr(memory, 1 - pe) == NULL) == is_far, "who is mapped");
    *source = 77 + (uint64_t)pe;
    nvshmem_putmem(memory, source, sizeof *source, 1 - pe);
    nvshmem_quiet();
    nvshmem_uint64_p(memory + 1, 5, 1 - pe);
    wait_for(memory + 1, 5);
    check(*memory == 77 + 1 - (uint64_t)pe, "a put before a word");
    nvshmemx_signal_op_on_stream(memory + 2, 3, ADD, 1 - pe, stream);
    nvshmemx_signal_op_on_stream(memory + 2, 4, ADD, 1 - pe, stream);
    check(cuStreamSynchronize(stream) == CUDA_SUCCESS, "the stream");
    wait_for(memory + 2, 7);
    nvshmem_getmem(memory + 9, memory + 8, sizeof got, 1 - pe);
    check(memory[9] == 77 + 1 - (uint64_t)pe, "a get");
    check(nvshmem_malloc((size_t)1 << 40) == NULL, "no memory");
    nvshmemx_hostlib_finalize();
}

static void bad_place(int pe)
{
    uint64_t *memory = start(pe), own = 1;
    nvshmem_putmem(&own, memory, sizeof own, 1 - pe);
}

static void bad_end(int pe)
{
    uint64_t *memory = start(pe);
    nvshmem_putmem((char *)memory + BYTES - 4, memory, 8, 1 - pe);
}

static void bad_source(int pe)
{
    uint64_t *memory = start(pe), own = 1;
    nvshmem_putmem(memory, &own, sizeof own, 1 - pe);
}

static void bad_target(int pe)
{
    uint64_t *memory = start(pe), own = 1;
    nvshmem_getmem(&own, memory, sizeof own, 1 - pe);
}

static void bad_pe(int pe)
{
    uint64_t *memory = start(pe);
    nvshmem_putmem(memory, memory + 8, 8, N_PES);
}

static void unequal(int pe)
{
    (void)start(pe);
    (void)nvshmem_malloc(pe == 0 ? 100 : 200);
}

static void after_end(int pe)
{
    (void)start(pe);
    nvshmemx_hostlib_finalize();
    nvshmem_quiet();
}

static void before_start(int pe)
{
    (void)pe;
    nvshmem_quiet();
}

static void forked(int pe)
{
    (void)start(pe);
    pid_t pid = fork();
    if (pid == 0) {
        nvshmem_quiet();
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

/* The process is right to touch what is the host's, and only that. */
static void touch_device(int pe)
{
    setenv("NVSHMEM_HEAP_KIND", "VIDMEM", 1);
    *start(pe) = 1;
}

/*
 * A heap of devices
 */

static uint64_t read_device(const uint64_t *at)
{
    uint64_t value = 0;
    check(cuMemcpyAsync((CUdeviceptr)(uintptr_t)&value, (CUdeviceptr)(uintptr_t)at, sizeof value,
                        stream) == CUDA_SUCCESS &&
              cuStreamSynchronize(stream) == CUDA_SUCCESS,
          "a copy to the host");
    return value;
}

static void write_device(uint64_t *at, uint64_t value)
{
    check(cuMemcpyAsync((CUdeviceptr)(uintptr_t)at, (CUdeviceptr)(uintptr_t)&value, sizeof value,
                        stream) == CUDA_SUCCESS &&
              cuStreamSynchronize(stream) == CUDA_SUCCESS,
          "a copy from the host");
}

/* PE 0 puts a number, and tells when it is in place; PE 1 looks: it is the number of the rounds in
 * which that was not seen. */
static uint64_t count_unseen(int pe, bool settles)
{
    enum { ROUNDS = 500 };
    uint64_t *memory = start(pe), n_unseen = 0;
    _Atomic int *told = (_Atomic int *)(void *)shared_id->internal; /* nobody needs that any more */
    for (int i = 1; i <= ROUNDS; i++) {
        if (pe == 0) {
            write_device(memory + 8, (uint64_t)i);
            nvshmem_putmem_nbi(memory, memory + 8, sizeof *memory, 1);
            nvshmem_quiet();
            *told = i;
            while (*told != -i) {
                usleep(10);
            }
        } else {
            while (*told != i) {
                usleep(10);
            }
            if (settles) {
                check(cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                                 CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER) ==
                          CUDA_SUCCESS,
                      "a look");
            }
            n_unseen += read_device(memory) != (uint64_t)i;
            *told = -i;
        }
    }
    return n_unseen;
}

static void device_right(int pe)
{
    setenv("NVSHMEM_HEAP_KIND", "DEVICE", 1);
    check(count_unseen(pe, true) == 0, "what was put is seen once the driver was told to look");
}

static void device_unseen(int pe)
{
    setenv("NVSHMEM_HEAP_KIND", "DEVICE", 1);
    uint64_t n = count_unseen(pe, false);
    if (pe == 0) {
        pause(); /* the other one says how it was */
    }
    exit(n > 0 ? EXITS : 0); /* so it should be */
}

/* A source that changes before a quiet may be put as it was, or as it is. */
static void early_source(int pe)
{
    uint64_t *memory = start(pe);
    for (uint64_t i = 1; i < 1000; i++) {
        memory[8] = i;
        nvshmem_putmem_nbi(memory, memory + 8, 8, 1 - pe);
        memory[8] = 0;
        nvshmem_quiet();
        nvshmem_getmem(memory + 9, memory, 8, 1 - pe);
        if (memory[9] == 0) {
            exit(EXITS); /* so it should be */
        }
    }
}

/* A word may overtake what was put before it, unless a quiet stands between. */
static void no_quiet(int pe)
{
    uint64_t *memory = start(pe);
    for (uint64_t i = 1; i < 10000; i++) {
        memory[8] = i;
        nvshmem_putmem(memory, memory + 8, 8, 1 - pe);
        nvshmem_uint64_p(memory + 1, i, 1 - pe);
        wait_for(memory + 1, i);
        if (*memory < i) {
            exit(EXITS); /* so it should be */
        }
        nvshmem_quiet();
    }
}

static void no_context(int pe)
{
    standin_attributes attributes = attributes_of(pe);
    _exit(nvshmemx_hostlib_init_attr(BY_ID, &attributes) == 0 ? 0 : EXITS);
}

static const struct {
    const char *name;
    void (*run)(int pe);
    const char *node; /* STANDIN_NODE */
    int ends;         /* the status of one of the PEs; after it the other one is ended */
    int by;           /* or the signal */
} cases[] = {
    {"right", right, NULL, 0, 0},
    {"right_nodes", right, "1", 0, 0},
    {"bad_place", bad_place, NULL, EXITS, 0},
    {"bad_end", bad_end, NULL, EXITS, 0},
    {"bad_source", bad_source, "1", EXITS, 0},
    {"bad_source_mapped", bad_source, NULL, 0, 0},
    {"bad_target", bad_target, "1", EXITS, 0},
    {"bad_pe", bad_pe, NULL, EXITS, 0},
    {"unequal", unequal, NULL, EXITS, 0},
    {"after_end", after_end, NULL, EXITS, 0},
    {"before_start", before_start, NULL, EXITS, 0},
    {"forked", forked, NULL, EXITS, 0},
    {"touch_device", touch_device, NULL, 0, SIGSEGV},
    {"no_quiet", no_quiet, "1", EXITS, 0},
    {"device_right", device_right, "1", 0, 0},
    {"device_unseen", device_unseen, "1", EXITS, 0},
    {"early_source", early_source, "1", EXITS, 0},
    {"no_context", no_context, NULL, EXITS, 0},
};

static pid_t start_pe(size_t number, int pe)
{
    pid_t pid = fork();
    if (pid == 0) {
        alarm(LIMIT_SECONDS);
        setenv("NVSHMEM_HEAP_KIND", "SYSMEM", 1);
        setenv("NVSHMEM_SYMMETRIC_SIZE", "1048576", 1);
        if (cases[number].node != NULL) {
            setenv("STANDIN_NODE", cases[number].node, 1);
        }
        cases[number].run(pe);
        _exit(0);
    }
    return pid;
}

static bool run_case(size_t number)
{
    pid_t pids[N_PES];
    int status = 0;
    memset(shared_id, 0, sizeof *shared_id);
    for (int pe = 0; pe < N_PES; pe++) {
        pids[pe] = start_pe(number, pe);
    }
    pid_t first = wait(&status);
    bool good = cases[number].by != 0
                    ? WIFSIGNALED(status) && WTERMSIG(status) == cases[number].by
                    : WIFEXITED(status) && WEXITSTATUS(status) == cases[number].ends;
    for (int pe = 0; pe < N_PES; pe++) {
        if (pids[pe] != first) {
            int its = 0;
            if (cases[number].ends != 0 || cases[number].by != 0 || !good) {
                kill(pids[pe], SIGKILL);
            }
            waitpid(pids[pe], &its, 0);
            good = good && (cases[number].ends != 0 || cases[number].by != 0 || its == 0);
        }
    }
    printf("%s %s\n", good ? "ok     " : "FAILED ", cases[number].name);
    fflush(stdout);
    return good;
}

int main(int argc, char **argv)
{
    size_t n_failed = 0, n_run = 0;
    shared_id =
        mmap(NULL, sizeof *shared_id, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (argc < 2 || strcmp(argv[1], cases[i].name) == 0) {
            n_run++;
            n_failed += !run_case(i);
        }
    }
    printf("%zu cases, %zu failed\n", n_run, n_failed);
    return n_failed > 0 || n_run == 0;
}
