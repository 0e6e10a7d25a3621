/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "device/standin/standin.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { MOST_NESTED = 64, VERSION = 13000, N_PROCESSORS = 2 };

standin_context standin_contexts[MOST_DEVICES];
_Atomic int standin_lost[MOST_DEVICES];
_Thread_local bool standin_in_host_function;

static _Atomic pid_t owner; /* who called cuInit; 0: nobody */
static int n_devices = 2;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the start and of retaining */
static _Thread_local standin_context *stack[MOST_NESTED];
static _Thread_local int depth;
static _Atomic uint64_t state;

standin_context *standin_current(void)
{
    return depth > 0 ? stack[depth - 1] : NULL;
}

uint64_t standin_random(uint64_t n)
{
    const uint64_t step = 0x9e3779b97f4a7c15u;
    uint64_t x = atomic_fetch_add(&state, step) + step;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (x ^ x >> 31) % n;
}

/* Of a text "name:number": whether it is this call. */
static bool is_now(const char *text, const char *name, _Atomic uint64_t *n_calls)
{
    size_t length = strlen(name);
    if (text == NULL || strncmp(text, name, length) != 0 || text[length] != ':') {
        return false;
    }
    return ++*n_calls == strtoull(text + length + 1, NULL, 10);
}

static bool fails_now(const char *name)
{
    static _Atomic uint64_t n_calls;
    return is_now(getenv("STANDIN_FAIL"), name, &n_calls);
}

/* STANDIN_KILL=name:number: rank 1 ends there, as a process that is killed. */
static void end_now(const char *name)
{
    static _Atomic uint64_t n_calls;
    const char *rank = getenv("RANK");
    if (rank != NULL && strcmp(rank, "1") == 0 && is_now(getenv("STANDIN_KILL"), name, &n_calls)) {
        (void)raise(SIGKILL);
    }
}

/* STANDIN_HOLD=name: that call waits for all streams, as one of a real driver was seen to do. */
static void hold_up(const char *name)
{
    const char *text = getenv("STANDIN_HOLD");
    for (int d = 0; text != NULL && strcmp(text, name) == 0 && d < n_devices; d++) {
        standin_drain(d);
    }
}

CUresult standin_enter(const char *name, bool needs_context)
{
    if (standin_in_host_function) {
        fprintf(stderr, "stand-in: %s in a host function, which may call nothing of CUDA\n", name);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (owner != getpid()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    end_now(name);
    standin_pass();
    hold_up(name);
    CUresult barred = standin_check_unsafe(name);
    if (barred != CUDA_SUCCESS) {
        return barred;
    }
    if (fails_now(name)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const standin_context *here = standin_current();
    if (needs_context && here == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return needs_context ? (CUresult)standin_lost[here->device] : CUDA_SUCCESS;
}

static void choose_seed(void)
{
    const char *text = getenv("STANDIN_SEED");
    uint16_t any = 1;
    if (text != NULL) {
        any = (uint16_t)strtoul(text, NULL, 10);
    } else if (getrandom(&any, sizeof any, GRND_NONBLOCK) != (ssize_t)sizeof any) {
        any = (uint16_t)getpid();
    }
    state = any;
    if (getenv("STANDIN_QUIET") == NULL) {
        fprintf(stderr, "stand-in for libcuda.so.1: STANDIN_SEED=%u\n", (unsigned)any);
    }
}

/* Under the lock. */
static CUresult start(pid_t process)
{
    const char *text = getenv("STANDIN_DEVICES");
    n_devices = text != NULL ? atoi(text) : n_devices;
    n_devices = n_devices < 0 ? 0 : n_devices > MOST_DEVICES ? MOST_DEVICES : n_devices;
    choose_seed();
    for (int d = 0; d < MOST_DEVICES; d++) {
        standin_contexts[d].device = d;
    }
    owner = process;
    return n_devices > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

/* Threads may come here at once: whoever returns finds all of it. */
CUresult CUDAAPI cuInit(unsigned flags)
{
    pid_t here = getpid();
    CUresult result = CUDA_SUCCESS;
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (owner == 0) { /* a child of fork takes no lock, which a thread of its parent may hold */
        pthread_mutex_lock(&lock);
        result = owner == 0 ? start(here) : CUDA_SUCCESS;
        pthread_mutex_unlock(&lock);
    }
    return owner == here ? result : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult CUDAAPI cuDriverGetVersion(int *version)
{
    if (version == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const char *text = getenv("STANDIN_VERSION");
    *version = text != NULL ? atoi(text) : VERSION;
    return CUDA_SUCCESS;
}

/* Names as cuda.h has them, of those that are given here. */
#define ERRORS(X)                                                                                  \
    X(CUDA_SUCCESS, "no error")                                                                    \
    X(CUDA_ERROR_INVALID_VALUE, "invalid argument")                                                \
    X(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                                   \
    X(CUDA_ERROR_NOT_INITIALIZED, "initialization error")                                          \
    X(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")                                  \
    X(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                                         \
    X(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid")                                  \
    X(CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                                        \
    X(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                                        \
    X(CUDA_ERROR_NOT_FOUND, "named symbol not found")                                              \
    X(CUDA_ERROR_NOT_READY, "device not ready")                                                    \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")                      \
    X(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address")                                         \
    X(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered")                    \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,                                                   \
      "part or all of the requested memory range is already mapped")                               \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,                                                       \
      "pointer does not correspond to a registered memory region")                                 \
    X(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed")                                    \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,                                                          \
      "peer access is not supported between these two devices")                                    \
    X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled")                    \
    X(CUDA_ERROR_NOT_PERMITTED, "operation not permitted")                                         \
    X(CUDA_ERROR_NOT_SUPPORTED, "operation not supported")                                         \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing")   \
    X(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state")          \
    X(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a "         \
                                 "capturing stream")                                               \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,                                                       \
      "operation failed due to a previous error during capture")                                   \
    X(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture "    \
                                       "sequences")                                                \
    X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began") \
    X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work")                    \
    X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,                                                         \
      "dependency created on uncaptured work in another stream")                                   \
    X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,                                                          \
      "operation would make the legacy stream depend on a capturing blocking stream")              \
    X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,                                                      \
      "attempt to terminate a thread-local capture sequence from another thread")

CUresult CUDAAPI cuGetErrorName(CUresult result, const char **name)
{
#define NAME(code, text)                                                                           \
    case code:                                                                                     \
        *name = #code;                                                                             \
        return CUDA_SUCCESS;
    switch (result) {
        ERRORS(NAME)
    default:
        *name = NULL;
        return CUDA_ERROR_INVALID_VALUE;
    }
#undef NAME
}

CUresult CUDAAPI cuGetErrorString(CUresult result, const char **string)
{
#define TEXT(code, text)                                                                           \
    case code:                                                                                     \
        *string = text;                                                                            \
        return CUDA_SUCCESS;
    switch (result) {
        ERRORS(TEXT)
    default:
        *string = NULL;
        return CUDA_ERROR_INVALID_VALUE;
    }
#undef TEXT
}

CUresult CUDAAPI cuDeviceGetCount(int *count)
{
    ENTER(cuDeviceGetCount, false);
    if (count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *count = n_devices;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice *device, int number)
{
    ENTER(cuDeviceGet, false);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (number < 0 || number >= n_devices) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *device = number;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    ENTER(cuDeviceGetName, false);
    if (device < 0 || device >= n_devices) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (name == NULL || bytes < 1) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    snprintf(name, (size_t)bytes, "stand-in, which is no device");
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    ENTER(cuDeviceTotalMem, false);
    if (bytes == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (device < 0 || device >= n_devices) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *bytes = (size_t)1 << 30;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    ENTER(cuDeviceCanAccessPeer, false);
    if (can == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (device < 0 || device >= n_devices || peer < 0 || peer >= n_devices) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *can = device != peer && getenv("STANDIN_PEERS") != NULL;
    return CUDA_SUCCESS;
}

static _Atomic bool sees[MOST_DEVICES][MOST_DEVICES];

bool standin_sees(int device, int other)
{
    return device == other || sees[device][other];
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    ENTER(cuCtxEnablePeerAccess, true);
    int here = standin_current()->device;
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (peer == NULL || peer == standin_current() || peer->n_retained == 0) {
        return peer == standin_current() ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_CONTEXT;
    }
    if (getenv("STANDIN_PEERS") == NULL) {
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    }
    return atomic_exchange(&sees[here][peer->device], true) ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
                                                            : CUDA_SUCCESS;
}

int standin_physical(int device)
{
    const char *rank = getenv("STANDIN_TURNS") != NULL ? getenv("RANK") : NULL;
    return rank != NULL ? (device + atoi(rank)) % n_devices : device;
}

/* The same in all processes. */
CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    ENTER(cuDeviceGetUuid, false);
    if (uuid == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (device < 0 || device >= n_devices) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    memset(uuid, 0x5a, sizeof *uuid);
    uuid->bytes[15] = (char)standin_physical(device);
    return CUDA_SUCCESS;
}

/* STANDIN_CAPABILITY: 86 is 8.6. */
static unsigned capability(void)
{
    const char *said = getenv("STANDIN_CAPABILITY");
    return said != NULL ? (unsigned)atoi(said) : 90;
}

CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device)
{
    ENTER(cuDeviceGetAttribute, false);
    if (value == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (device < 0 || device >= n_devices) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = (int)(capability() / 10);
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = (int)(capability() % 10);
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = N_PROCESSORS;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
        *value = 1;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS:
        *value = CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
        *value = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
        *value = getenv("STANDIN_MULTICAST") != NULL;
        return CUDA_SUCCESS;
    default:
        *value = 0;
        return CUDA_SUCCESS;
    }
}

static void (*_Atomic settle)(void);

void standin_on_settle(void (*function)(void))
{
    atomic_store(&settle, function);
}

CUresult CUDAAPI cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
                                            CUflushGPUDirectRDMAWritesScope scope)
{
    ENTER(cuFlushGPUDirectRDMAWrites, true);
    void (*function)(void) = atomic_load(&settle);
    if (target != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX ||
        (scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER &&
         scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (function != NULL) {
        function();
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *place, CUdevice device)
{
    ENTER(cuDevicePrimaryCtxRetain, false);
    if (place == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (device < 0 || device >= n_devices) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    pthread_mutex_lock(&lock);
    standin_contexts[device].n_retained++;
    pthread_mutex_unlock(&lock);
    *place = &standin_contexts[device];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device)
{
    ENTER(cuDevicePrimaryCtxRelease, false);
    if (device < 0 || device >= n_devices) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    pthread_mutex_lock(&lock);
    bool is_retained = standin_contexts[device].n_retained > 0;
    standin_contexts[device].n_retained -= is_retained;
    pthread_mutex_unlock(&lock);
    return is_retained ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext one)
{
    ENTER(cuCtxPushCurrent, false);
    if (one == NULL || depth == MOST_NESTED) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    stack[depth++] = one;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext *place)
{
    ENTER(cuCtxPopCurrent, false);
    if (depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    depth--;
    if (place != NULL) {
        *place = stack[depth];
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext *place)
{
    ENTER(cuCtxGetCurrent, false);
    if (place == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *place = standin_current();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER(cuCtxGetStreamPriorityRange, true);
    if (least != NULL) {
        *least = 0;
    }
    if (greatest != NULL) {
        *greatest = -5;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSynchronize(void)
{
    ENTER(cuCtxSynchronize, true);
    standin_drain(standin_current()->device);
    return (CUresult)standin_lost[standin_current()->device];
}

/*
 * Kernels
 */

enum { MOST_LIBRARIES = 16, FAT_HEADER_BYTES = 16, FAT_ENTRY_BYTES = 32, FAT_PTX = 1 };

/* What code is there for: one that serves this device, or only others, or it is no code. */
static struct CUlib_st {
    bool is_fat, serves;
} libraries[MOST_LIBRARIES];
static _Atomic unsigned n_libraries;

static uint64_t number_at(const unsigned char *bytes, size_t n_bytes)
{
    uint64_t number = 0;
    memcpy(&number, bytes, n_bytes);
    return number;
}

/*
 * A header with the length of what follows; then for each image its kind, the length of its own
 * header, its length, and at 28 what it was compiled for. Machine code serves devices of that major
 * version and at least that minor one; PTX serves all that are not older.
 */
static void read_fatbin(const unsigned char *bytes, struct CUlib_st *library)
{
    static const unsigned char magic[] = {0x50, 0xed, 0x55, 0xba};
    library->is_fat = memcmp(bytes, magic, sizeof magic) == 0;
    const unsigned char *at = bytes + FAT_HEADER_BYTES;
    const unsigned char *end = library->is_fat ? at + number_at(bytes + 8, 8) : at;
    while (at + FAT_ENTRY_BYTES <= end) {
        uint64_t made_for = number_at(at + 28, 4);
        bool is_ptx = number_at(at, 2) == FAT_PTX;
        library->serves |=
            made_for <= capability() && (is_ptx || made_for / 10 == capability() / 10);
        at += number_at(at + 4, 4) + number_at(at + 8, 8);
    }
}

CUresult CUDAAPI cuLibraryLoadData(CUlibrary *place, const void *code, CUjit_option *options,
                                   void **values, unsigned n_options,
                                   CUlibraryOption *library_options, void **library_values,
                                   unsigned n_library_options)
{
    ENTER(cuLibraryLoadData, false);
    (void)options;
    (void)values;
    (void)library_options;
    (void)library_values;
    if (place == NULL || code == NULL || n_options != 0 || n_library_options != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    unsigned number = atomic_fetch_add(&n_libraries, 1);
    if (number >= MOST_LIBRARIES) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    read_fatbin(code, &libraries[number]);
    *place = &libraries[number]; /* drivers look at code when something is asked of it */
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryGetKernel(CUkernel *place, CUlibrary from, const char *name)
{
    ENTER(cuLibraryGetKernel, false);
    if (from < libraries || from >= libraries + MOST_LIBRARIES) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!from->is_fat) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    if (place == NULL || name == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!from->serves) {
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    const twin_kernel *found = twin_find(name);
    if (found == NULL) {
        return CUDA_ERROR_NOT_FOUND;
    }
    *place = (CUkernel)(uintptr_t)found;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuKernelGetFunction(CUfunction *place, CUkernel kernel)
{
    ENTER(cuKernelGetFunction, true);
    if (place == NULL || kernel == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *place = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncLoad(CUfunction function)
{
    ENTER(cuFuncLoad, true);
    return function != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuFuncGetAttribute(int *place, CUfunction_attribute which, CUfunction function)
{
    ENTER(cuFuncGetAttribute, true);
    if (function == NULL || place == NULL || which != CU_FUNC_ATTRIBUTE_PTX_VERSION) {
        return function == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    *place = standin_ptx_version();
    return CUDA_SUCCESS;
}

/* Few, so that launches go round. */
CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n_blocks, CUfunction function,
                                                             int threads, size_t shared_bytes)
{
    enum { BLOCKS_AT_ONCE = 2 };
    ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor, true);
    (void)shared_bytes;
    if (function == NULL || n_blocks == NULL || threads < 1 || threads > 1024) {
        return function == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    *n_blocks = BLOCKS_AT_ONCE;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *bytes)
{
    ENTER(cuKernelGetParamInfo, false);
    if (kernel == NULL || index != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *offset = 0;
    if (bytes != NULL) {
        *bytes = ((const twin_kernel *)kernel)->argument_bytes;
    }
    return CUDA_SUCCESS;
}
