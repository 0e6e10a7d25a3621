/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* STANDIN_PTX: kernels are what a file of PTX says, and not their twin's. */
#include "device/ptx/ptx.h"
#include "device/standin/standin.h"
#include "memory/cuda/arguments.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static ptx_module *module;

/* What was launched, by kernel. */
typedef struct count {
    const char *name;
    _Atomic uint64_t n_launches, n_performed;
} count;

static count counts[] = {
#define COUNT(kernel, type) {.name = #kernel},
    FY_CUDA_KERNELS(COUNT)
#undef COUNT
};
enum { N_COUNTS = sizeof counts / sizeof counts[0] };

/* Lines "KERNEL LAUNCHES INSTRUCTIONS" behind those of other processes. */
static void write_counts(void)
{
    int file = open(getenv("STANDIN_PTX_COUNTS"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    for (size_t i = 0; i < N_COUNTS; i++) {
        dprintf(file, "%s %llu %llu\n", counts[i].name,
                (unsigned long long)atomic_load(&counts[i].n_launches),
                (unsigned long long)atomic_load(&counts[i].n_performed));
    }
    close(file);
}

static char *read_text(const char *path)
{
    enum { MOST_BYTES = 64 << 20 };
    int file = open(path, O_RDONLY | O_CLOEXEC);
    char *text = file < 0 ? NULL : calloc(1, MOST_BYTES + 1);
    size_t used = 0;
    for (ssize_t n = 1; text != NULL && n > 0 && used<MOST_BYTES; used += n> 0 ? (size_t)n : 0) {
        n = read(file, text + used, MOST_BYTES - used);
    }
    if (file >= 0) {
        close(file);
    }
    return text;
}

static void open_module(void)
{
    const char *path = getenv("STANDIN_PTX");
    char said[PTX_SAID_BYTES] = "it cannot be read";
    char *text = read_text(path);
    module = text != NULL ? ptx_module_read(text, said) : NULL;
    free(text);
    if (module == NULL) {
        fprintf(stderr, "stand-in: %s: %s\n", path, said);
        abort();
    }
    if (getenv("STANDIN_QUIET") == NULL) {
        fprintf(stderr, "stand-in: kernels are those of %s\n", path);
    }
    if (getenv("STANDIN_PTX_COUNTS") != NULL) {
        (void)atexit(write_counts);
    }
}

static void *look_up(void *context, uint64_t at, uint32_t bytes, bool writes)
{
    (void)writes;
    return standin_reach(*(const int *)context, at, bytes);
}

static uint32_t look_up_all(void *context, uint64_t at, uint32_t bytes,
                            void *places[PTX_MOST_PLACES])
{
    return standin_reach_all(*(const int *)context, at, bytes, places);
}

static bool is_lost(void *context)
{
    return standin_lost[*(const int *)context] != 0;
}

static void count_launch(const char *name, uint64_t n_performed)
{
    for (size_t i = 0; i < N_COUNTS; i++) {
        if (strcmp(counts[i].name, name) == 0) {
            atomic_fetch_add(&counts[i].n_launches, 1);
            atomic_fetch_add(&counts[i].n_performed, n_performed);
        }
    }
}

bool standin_has_ptx(void)
{
    return getenv("STANDIN_PTX") != NULL;
}

int standin_ptx_version(void)
{
    enum { TWIN = 90 }; /* which has all that kernels for 9.0 have */
    if (!standin_has_ptx()) {
        return TWIN;
    }
    pthread_once(&once, open_module);
    return (int)ptx_module_target(module);
}

CUresult standin_run_ptx(int device, const op *one)
{
    static const CUresult results[] = {[PTX_DONE] = CUDA_SUCCESS,
                                       [PTX_OUTSIDE] = CUDA_ERROR_ILLEGAL_ADDRESS,
                                       [PTX_MISALIGNED] = CUDA_ERROR_MISALIGNED_ADDRESS,
                                       [PTX_WRONG] = CUDA_ERROR_ILLEGAL_INSTRUCTION,
                                       [PTX_LOST] = CUDA_ERROR_ILLEGAL_ADDRESS};
    const char *threads = one->kernel->meets ? getenv("STANDIN_THREADS") : NULL;
    char said[PTX_SAID_BYTES] = "a kernel that the PTX has not";
    pthread_once(&once, open_module);
    const ptx_kernel *kernel = ptx_kernel_find(module, one->kernel->name);
    ptx_launch launch = {.blocks = one->blocks,
                         .threads = threads != NULL ? (uint32_t)atoi(threads) : one->threads,
                         .argument = one->argument,
                         .argument_bytes = one->kernel->argument_bytes,
                         .meets = one->kernel->meets,
                         .order = standin_random(1 << 20),
                         .look_up = look_up,
                         .look_up_all = look_up_all,
                         .is_lost = is_lost,
                         .context = &device};
    ptx_end end = kernel != NULL ? ptx_run(kernel, &launch, said) : PTX_WRONG;
    count_launch(one->kernel->name, launch.n_performed);
    if (end != PTX_DONE) {
        fprintf(stderr, "stand-in: PTX of %s: %s\n", one->kernel->name, said);
    }
    return results[end];
}
