/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What cuda.h promises of the driver, as far as ferry relies on it: the stand-in must keep it, and
 * a real driver shows whether this reading is right. A difference is a fault of the stand-in. Cases
 * whose names are given as arguments, or all; each says ok or what was different. Lines that begin
 * with "seen" are no promises: what the driver of this machine does where cuda.h leaves it open.
 */
#include <cuda.h>

#include "memory/cuda/arguments.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CALLS(X)                                                                                   \
    X(cuInit, 2000)                                                                                \
    X(cuDriverGetVersion, 2020)                                                                    \
    X(cuGetErrorName, 6000)                                                                        \
    X(cuDeviceGet, 2000)                                                                           \
    X(cuDeviceGetCount, 2000)                                                                      \
    X(cuDeviceGetAttribute, 2000)                                                                  \
    X(cuDeviceGetName, 2000)                                                                       \
    X(cuDevicePrimaryCtxRetain, 7000)                                                              \
    X(cuDevicePrimaryCtxRelease, 11000)                                                            \
    X(cuCtxPushCurrent, 4000)                                                                      \
    X(cuCtxPopCurrent, 4000)                                                                       \
    X(cuCtxGetCurrent, 4000)                                                                       \
    X(cuCtxGetStreamPriorityRange, 5050)                                                           \
    X(cuStreamCreate, 2000)                                                                        \
    X(cuStreamCreateWithPriority, 5050)                                                            \
    X(cuStreamDestroy, 4000)                                                                       \
    X(cuStreamGetCtx, 9020)                                                                        \
    X(cuStreamIsCapturing, 10000)                                                                  \
    X(cuStreamBeginCapture, 10010)                                                                 \
    X(cuStreamEndCapture, 10000)                                                                   \
    X(cuStreamGetCaptureInfo, 12030)                                                               \
    X(cuThreadExchangeStreamCaptureMode, 10010)                                                    \
    X(cuUserObjectCreate, 11030)                                                                   \
    X(cuUserObjectRelease, 11030)                                                                  \
    X(cuGraphRetainUserObject, 11030)                                                              \
    X(cuGraphInstantiate, 12000)                                                                   \
    X(cuGraphLaunch, 10000)                                                                        \
    X(cuGraphExecDestroy, 10000)                                                                   \
    X(cuGraphDestroy, 10000)                                                                       \
    X(cuStreamQuery, 2000)                                                                         \
    X(cuStreamSynchronize, 2000)                                                                   \
    X(cuStreamWaitEvent, 3020)                                                                     \
    X(cuStreamWaitValue64, 11070)                                                                  \
    X(cuStreamWriteValue64, 11070)                                                                 \
    X(cuEventCreate, 2000)                                                                         \
    X(cuEventDestroy, 4000)                                                                        \
    X(cuEventRecord, 2000)                                                                         \
    X(cuEventQuery, 2000)                                                                          \
    X(cuEventSynchronize, 2000)                                                                    \
    X(cuEventElapsedTime, 12080)                                                                   \
    X(cuLaunchHostFunc, 10000)                                                                     \
    X(cuMemAlloc, 3020)                                                                            \
    X(cuMemFree, 3020)                                                                             \
    X(cuMemHostAlloc, 2020)                                                                        \
    X(cuMemFreeHost, 2000)                                                                         \
    X(cuMemHostRegister, 6050)                                                                     \
    X(cuMemHostUnregister, 4000)                                                                   \
    X(cuMemGetAddressRange, 3020)                                                                  \
    X(cuPointerGetAttribute, 4000)                                                                 \
    X(cuPointerGetAttributes, 7000)                                                                \
    X(cuIpcGetMemHandle, 4010)                                                                     \
    X(cuIpcOpenMemHandle, 11000)                                                                   \
    X(cuIpcCloseMemHandle, 4010)                                                                   \
    X(cuDeviceCanAccessPeer, 4000)                                                                 \
    X(cuCtxEnablePeerAccess, 4000)                                                                 \
    X(cuDeviceGetUuid, 11040)                                                                      \
    X(cuMemcpyAsync, 4000)                                                                         \
    X(cuMemsetD8Async, 3020)                                                                       \
    X(cuLibraryLoadData, 12000)                                                                    \
    X(cuLibraryGetKernel, 12000)                                                                   \
    X(cuKernelGetFunction, 12000)                                                                  \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050)                                           \
    X(cuKernelGetParamInfo, 12040)                                                                 \
    X(cuMemCreate, 10020)                                                                          \
    X(cuMemRelease, 10020)                                                                         \
    X(cuMemGetAllocationGranularity, 10020)                                                        \
    X(cuMemAddressReserve, 10020)                                                                  \
    X(cuMemAddressFree, 10020)                                                                     \
    X(cuMemMap, 10020)                                                                             \
    X(cuMemUnmap, 10020)                                                                           \
    X(cuMemSetAccess, 10020)                                                                       \
    X(cuMemExportToShareableHandle, 10020)                                                         \
    X(cuMemImportFromShareableHandle, 10020)                                                       \
    X(cuMulticastCreate, 12010)                                                                    \
    X(cuMulticastAddDevice, 12010)                                                                 \
    X(cuMulticastBindMem, 12010)                                                                   \
    X(cuMulticastUnbind, 12010)                                                                    \
    X(cuMulticastGetGranularity, 12010)                                                            \
    X(cuLaunchKernel, 4000)

static struct {
#define FIELD(name, version) __typeof__(&name) name;
    CALLS(FIELD)
#undef FIELD
} cu;

extern const unsigned char fy_cuda_fatbin[], fy_cuda_fatbin_later[];

static CUcontext context;
static CUstream stream, second;
static CUdeviceptr device; /* BYTES of it */
static char *pinned;       /* BYTES of it */
enum { BYTES = 1 << 20, PATIENCE_MS = 2000, CASE_MS = 20000 };
static unsigned n_wrong;
static bool is_wrong;

static void wrong(int line, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    printf("  line %d: ", line);
    vprintf(format, values);
    printf("\n");
    va_end(values);
    is_wrong = true;
}

static const char *name_of(CUresult result)
{
    const char *name = NULL;
    return cu.cuGetErrorName(result, &name) == CUDA_SUCCESS && name != NULL ? name : "?";
}

#define WANT(wanted, call)                                                                         \
    do {                                                                                           \
        CUresult want_got = (call);                                                                \
        if (want_got != (wanted)) {                                                                \
            wrong(__LINE__, "%s is %s, not %s", #call, name_of(want_got), name_of(wanted));        \
        }                                                                                          \
    } while (0)
#define GOOD(call) WANT(CUDA_SUCCESS, call)
#define SO(condition)                                                                              \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            wrong(__LINE__, "not so: %s", #condition);                                             \
        }                                                                                          \
    } while (0)

static CUdeviceptr address(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

static void nap_ms(long ms)
{
    struct timespec moment = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&moment, NULL);
}

/*
 * Cases
 */

static void case_versions(void)
{
    int version = 0;
    GOOD(cu.cuDriverGetVersion(&version));
    SO(version >= 12000);
    WANT(CUDA_ERROR_INVALID_VALUE, cu.cuDriverGetVersion(NULL));
    WANT(CUDA_ERROR_INVALID_VALUE, cu.cuInit(1));
    GOOD(cu.cuInit(0));
    printf("seen: driver of CUDA %d.%d\n", version / 1000, version % 1000 / 10);
}

static void case_devices(void)
{
    int n = 0, value = 0;
    CUdevice one;
    char name[128];
    GOOD(cu.cuDeviceGetCount(&n));
    SO(n >= 1);
    WANT(CUDA_ERROR_INVALID_DEVICE, cu.cuDeviceGet(&one, n));
    WANT(CUDA_ERROR_INVALID_DEVICE, cu.cuDeviceGet(&one, -1));
    GOOD(cu.cuDeviceGet(&one, 0));
    GOOD(cu.cuDeviceGetName(name, sizeof name, one));
    GOOD(cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, one));
    SO(value == 1);
    GOOD(cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, one));
    SO(value == 1);
    GOOD(cu.cuDeviceGetAttribute(&value,
                                 CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, one));
    SO(value == 1);
    WANT(CUDA_ERROR_INVALID_DEVICE,
         cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, n + 5));
    printf("seen: device 0 is %s\n", name);
}

static void case_contexts(void)
{
    CUcontext one = NULL, popped = NULL, same = NULL;
    GOOD(cu.cuCtxGetCurrent(&one));
    SO(one == context);
    GOOD(cu.cuCtxPushCurrent(context));
    GOOD(cu.cuCtxPopCurrent(&popped));
    SO(popped == context);
    GOOD(cu.cuDevicePrimaryCtxRetain(&same, 0));
    SO(same == context);
    GOOD(cu.cuDevicePrimaryCtxRelease(0));
    GOOD(cu.cuCtxPopCurrent(&popped));
    GOOD(cu.cuCtxGetCurrent(&one));
    SO(one == NULL);
    CUdeviceptr none;
    WANT(CUDA_ERROR_INVALID_CONTEXT, cu.cuMemAlloc(&none, 16));
    CUstream no_stream;
    WANT(CUDA_ERROR_INVALID_CONTEXT, cu.cuStreamCreate(&no_stream, CU_STREAM_NON_BLOCKING));
    WANT(CUDA_ERROR_INVALID_CONTEXT, cu.cuCtxPopCurrent(&popped));
    /* Pointers are known without a context. */
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    CUmemorytype type = 0;
    void *places[] = {&type};
    GOOD(cu.cuPointerGetAttributes(1, which, places, device));
    SO(type == CU_MEMORYTYPE_DEVICE);
    GOOD(cu.cuCtxPushCurrent(context));
}

static void case_alloc(void)
{
    CUdeviceptr one = 0, base = 0;
    size_t bytes = 0;
    WANT(CUDA_ERROR_INVALID_VALUE, cu.cuMemAlloc(&one, 0));
    WANT(CUDA_ERROR_OUT_OF_MEMORY, cu.cuMemAlloc(&one, (size_t)1 << 47));
    WANT(CUDA_ERROR_INVALID_VALUE, cu.cuMemFree(device + 16));
    WANT(CUDA_ERROR_INVALID_VALUE, cu.cuMemFree(0x12345678));
    GOOD(cu.cuMemAlloc(&one, 1000));
    SO(one % 256 == 0);
    GOOD(cu.cuMemGetAddressRange(&base, &bytes, one + 999));
    SO(base == one && bytes >= 1000);
    printf("seen: 1000 bytes are an allocation of %zu at a multiple of %llu\n", bytes,
           (unsigned long long)(one & -one));
    GOOD(cu.cuMemFree(one));
    WANT(CUDA_ERROR_INVALID_VALUE, cu.cuMemFree(one));
    GOOD(cu.cuMemAlloc(&one, (size_t)3 << 20));
    printf("seen: 3 MiB are an allocation at a multiple of %llu\n",
           (unsigned long long)(one & -one));
    GOOD(cu.cuMemFree(one));
}

static void case_pinned(void)
{
    void *one = NULL;
    WANT(CUDA_ERROR_INVALID_VALUE, cu.cuMemFreeHost(&one));
    GOOD(cu.cuMemHostAlloc(&one, 5000, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    memset(one, 1, 5000);
    GOOD(cu.cuMemFreeHost(one));
}

static void case_register(void)
{
    char *one = mmap(NULL, 8 << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    GOOD(cu.cuMemHostRegister(one, 4 << 12, flags));
    WANT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cu.cuMemHostRegister(one, 4 << 12, flags));
    memcpy(one + 100, "what is pinned is read", 23);
    GOOD(cu.cuMemcpyAsync(device, address(one + 100), 23, stream));
    GOOD(cu.cuMemcpyAsync(address(one + 5000), device, 23, stream));
    GOOD(cu.cuStreamSynchronize(stream));
    SO(memcmp(one + 5000, "what is pinned is read", 23) == 0);
    GOOD(cu.cuMemHostUnregister(one));
    WANT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cu.cuMemHostUnregister(one));
    munmap(one, 8 << 12);
}

typedef struct told {
    CUmemorytype type;
    int ordinal;
    CUcontext owner;
    unsigned managed;
    CUdeviceptr begin;
    size_t bytes;
    unsigned long long buffer;
} told;

static told ask(const void *pointer)
{
    CUpointer_attribute which[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_CONTEXT,          CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        CU_POINTER_ATTRIBUTE_BUFFER_ID};
    told t = {.ordinal = -9};
    void *places[] = {&t.type, &t.ordinal, &t.owner, &t.managed, &t.begin, &t.bytes, &t.buffer};
    GOOD(cu.cuPointerGetAttributes(7, which, places, address(pointer)));
    return t;
}

static void case_pointers(void)
{
    char here[64];
    char *registered =
        mmap(NULL, 8 << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    told t = ask((void *)(uintptr_t)(device + 4097));
    SO(t.type == CU_MEMORYTYPE_DEVICE && t.ordinal == 0 && t.owner == context && t.managed == 0);
    SO(t.begin == device && t.bytes == BYTES && t.buffer != 0);
    t = ask(pinned + 100);
    SO(t.type == CU_MEMORYTYPE_HOST && t.managed == 0);
    told l = ask(pinned + BYTES - 1);
    SO(l.buffer == t.buffer && l.begin == t.begin);
    t = ask(here);
    SO(t.type == 0);
    GOOD(cu.cuMemHostRegister(registered, 4 << 12,
                              CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    GOOD(cu.cuMemHostRegister(registered + (4 << 12), 4 << 12,
                              CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    t = ask(registered + 5);
    l = ask(registered + (4 << 12) - 1);
    SO(t.type == CU_MEMORYTYPE_HOST && l.type == CU_MEMORYTYPE_HOST);
    SO(l.buffer == t.buffer && l.begin == t.begin);
    l = ask(registered + (4 << 12)); /* another registration, side by side */
    SO(l.buffer != t.buffer || l.begin != t.begin);
    printf("seen: registered memory: begin %s, %zu bytes, buffer %llu\n",
           t.begin == address(registered) ? "known" : "not known", t.bytes, t.buffer);
    GOOD(cu.cuMemHostUnregister(registered));
    GOOD(cu.cuMemHostUnregister(registered + (4 << 12)));
    t = ask(registered + 5);
    SO(t.type == 0);
    munmap(registered, 8 << 12);
    CUmemorytype type;
    WANT(CUDA_ERROR_INVALID_VALUE,
         cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address(here)));
}

static void case_copies(void)
{
    char here[3000];
    for (int i = 0; i < 3000; i++) {
        pinned[i] = (char)(i * 7);
    }
    GOOD(cu.cuMemcpyAsync(device + 1, address(pinned), 3000, stream));
    GOOD(cu.cuMemcpyAsync(device + 8192, device + 1, 3000, stream));
    GOOD(cu.cuMemcpyAsync(address(here), device + 8192, 3000, stream));
    GOOD(cu.cuStreamSynchronize(stream));
    SO(memcmp(here, pinned, 3000) == 0);
    GOOD(cu.cuMemcpyAsync(device, address(here), 0, stream));
    GOOD(cu.cuMemsetD8Async(device, 0x5a, 77, stream));
    GOOD(cu.cuMemcpyAsync(address(pinned), device, 80, stream));
    GOOD(cu.cuStreamSynchronize(stream));
    SO(pinned[0] == 0x5a && pinned[76] == 0x5a && pinned[77] != 0x5a);
    GOOD(cu.cuMemcpyAsync(address(pinned + 8192), address(pinned), 100, stream)); /* of the host */
    GOOD(cu.cuStreamSynchronize(stream));
    SO(memcmp(pinned + 8192, pinned, 100) == 0);
}

static void case_streams(void)
{
    CUstream one;
    CUcontext owner = NULL;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    int least = 1, greatest = 1;
    WANT(CUDA_ERROR_INVALID_VALUE, cu.cuStreamCreate(&one, 7));
    GOOD(cu.cuCtxGetStreamPriorityRange(&least, &greatest));
    SO(greatest <= least);
    GOOD(cu.cuStreamCreateWithPriority(&one, CU_STREAM_NON_BLOCKING, greatest));
    GOOD(cu.cuStreamGetCtx(one, &owner));
    SO(owner == context);
    GOOD(cu.cuStreamGetCtx(CU_STREAM_LEGACY, &owner));
    SO(owner == context);
    GOOD(cu.cuStreamGetCtx(CU_STREAM_PER_THREAD, &owner));
    SO(owner == context);
    GOOD(cu.cuStreamIsCapturing(one, &capture));
    SO(capture == CU_STREAM_CAPTURE_STATUS_NONE);
    GOOD(cu.cuStreamQuery(one));
    GOOD(cu.cuStreamSynchronize(one));
    GOOD(cu.cuStreamDestroy(one));
    printf("seen: priorities from %d to %d\n", least, greatest);
}

/* A stream waits for a word of pinned memory; what is behind it waits, too. */
static void case_wait_value(void)
{
    _Atomic uint64_t *words = (_Atomic uint64_t *)(void *)pinned;
    words[0] = 4;
    words[1] = 0;
    GOOD(cu.cuStreamWaitValue64(stream, address(&words[0]), 5, CU_STREAM_WAIT_VALUE_GEQ));
    GOOD(cu.cuStreamWriteValue64(stream, address(&words[1]), 77, CU_STREAM_WRITE_VALUE_DEFAULT));
    nap_ms(30);
    SO(words[1] == 0);
    WANT(CUDA_ERROR_NOT_READY, cu.cuStreamQuery(stream));
    words[0] = 6;
    GOOD(cu.cuStreamSynchronize(stream));
    SO(words[1] == 77);
    GOOD(cu.cuStreamQuery(stream));
    WANT(CUDA_ERROR_INVALID_VALUE,
         cu.cuStreamWaitValue64(stream, address(pinned + 4), 5, CU_STREAM_WAIT_VALUE_GEQ));
    GOOD(cu.cuStreamSynchronize(stream));
}

/* What comes before a write of a word is seen by who sees the word. */
static void case_write_order(void)
{
    _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)pinned;
    char *bytes = pinned + 4096;
    for (uint64_t i = 1; i <= 200; i++) {
        GOOD(cu.cuMemsetD8Async(device, (unsigned char)i, 60000, stream));
        GOOD(cu.cuMemcpyAsync(address(bytes), device, 60000, stream));
        GOOD(cu.cuStreamWriteValue64(stream, address(word), i, CU_STREAM_WRITE_VALUE_DEFAULT));
        while (*word != i) {}
        if (bytes[0] != (char)i || bytes[59999] != (char)i || bytes[30000] != (char)i) {
            wrong(__LINE__, "round %d: a word was there before the bytes", (int)i);
            return;
        }
    }
}

static void case_events(void)
{
    _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)pinned;
    CUevent one, timed[2];
    float ms = -1;
    *word = 0;
    GOOD(cu.cuEventCreate(&one, CU_EVENT_DISABLE_TIMING));
    GOOD(cu.cuEventQuery(one)); /* of one that was never recorded */
    GOOD(cu.cuStreamWaitValue64(stream, address(word), 1, CU_STREAM_WAIT_VALUE_GEQ));
    GOOD(cu.cuEventRecord(one, stream));
    WANT(CUDA_ERROR_NOT_READY, cu.cuEventQuery(one));
    GOOD(cu.cuStreamWaitEvent(second, one, 0));
    GOOD(cu.cuMemsetD8Async(device, 1, 100, second));
    nap_ms(10);
    WANT(CUDA_ERROR_NOT_READY, cu.cuStreamQuery(second));
    *word = 1;
    GOOD(cu.cuStreamSynchronize(second));
    GOOD(cu.cuEventQuery(one));
    GOOD(cu.cuEventSynchronize(one));
    GOOD(cu.cuEventDestroy(one));
    GOOD(cu.cuEventCreate(&timed[0], CU_EVENT_DEFAULT));
    GOOD(cu.cuEventCreate(&timed[1], CU_EVENT_DEFAULT));
    GOOD(cu.cuEventRecord(timed[0], stream));
    GOOD(cu.cuMemsetD8Async(device, 1, BYTES, stream));
    GOOD(cu.cuEventRecord(timed[1], stream));
    GOOD(cu.cuEventSynchronize(timed[1]));
    GOOD(cu.cuEventElapsedTime(&ms, timed[0], timed[1]));
    SO(ms >= 0);
    GOOD(cu.cuEventDestroy(timed[0]));
    GOOD(cu.cuEventDestroy(timed[1]));
    /* One that is destroyed while it is to come, does no harm. */
    *word = 0;
    GOOD(cu.cuEventCreate(&one, CU_EVENT_DISABLE_TIMING));
    GOOD(cu.cuStreamWaitValue64(stream, address(word), 1, CU_STREAM_WAIT_VALUE_GEQ));
    GOOD(cu.cuEventRecord(one, stream));
    GOOD(cu.cuEventDestroy(one));
    *word = 1;
    GOOD(cu.cuStreamSynchronize(stream));
}

typedef struct seen_calls {
    _Atomic int n;
    _Atomic bool is_read;
    CUresult inside;
} seen_calls;

static void CUDA_CB count_call(void *what)
{
    ((seen_calls *)what)->n++;
}

static void CUDA_CB call_driver(void *what)
{
    seen_calls *one = what;
    one->inside = cu.cuStreamQuery(stream);
    one->n++;
}

static void CUDA_CB read_bytes(void *what)
{
    seen_calls *one = what;
    one->is_read = pinned[4096] == 9 && pinned[4096 + 99999] == 9;
    memset(pinned + 4096, 3, 100000);
    one->n++;
}

/* Host functions come in the order of the stream, and see and leave what they should. */
static void case_host_functions(void)
{
    seen_calls calls = {0};
    _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)pinned;
    *word = 0;
    WANT(CUDA_ERROR_INVALID_VALUE, cu.cuLaunchHostFunc(stream, NULL, &calls));
    GOOD(cu.cuStreamWaitValue64(stream, address(word), 1, CU_STREAM_WAIT_VALUE_GEQ));
    GOOD(cu.cuLaunchHostFunc(stream, count_call, &calls));
    nap_ms(10);
    SO(calls.n == 0);
    *word = 1;
    GOOD(cu.cuStreamSynchronize(stream));
    SO(calls.n == 1);
    memset(pinned + 4096, 0, 100000);
    GOOD(cu.cuMemsetD8Async(device, 9, 100000, stream));
    GOOD(cu.cuMemcpyAsync(address(pinned + 4096), device, 100000, stream));
    GOOD(cu.cuLaunchHostFunc(stream, read_bytes, &calls));
    GOOD(cu.cuMemcpyAsync(device, address(pinned + 4096), 100000, stream));
    GOOD(cu.cuMemsetD8Async(address(pinned + 4096), 5, 100000, stream));
    GOOD(cu.cuMemcpyAsync(address(pinned + 300000), device, 100000, stream));
    GOOD(cu.cuStreamSynchronize(stream));
    SO(calls.n == 2 && calls.is_read);
    SO(pinned[300000] == 3 && pinned[399999] == 3 && pinned[4096] == 5);
    GOOD(cu.cuLaunchHostFunc(stream, call_driver, &calls));
    GOOD(cu.cuStreamSynchronize(stream));
    SO(calls.n == 3);
    printf("seen: in a host function cuStreamQuery is %s\n", name_of(calls.inside));
}

static void case_capture(void)
{
    CUgraph graph = NULL;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    GOOD(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    GOOD(cu.cuStreamIsCapturing(stream, &capture));
    SO(capture == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    GOOD(cu.cuStreamEndCapture(stream, &graph));
    GOOD(cu.cuStreamIsCapturing(stream, &capture));
    SO(capture == CU_STREAM_CAPTURE_STATUS_NONE);
}

/* What cannot be asked of a stream in a capture makes the capture fail; its end says so. */
static void expect_failed_capture(CUresult wanted)
{
    CUgraph graph = (CUgraph)(uintptr_t)8;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    GOOD(cu.cuStreamIsCapturing(stream, &capture));
    SO(capture == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    WANT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cu.cuMemsetD8Async(device, 1, 10, stream));
    WANT(wanted, cu.cuStreamEndCapture(stream, &graph));
    SO(graph == NULL);
    GOOD(cu.cuStreamSynchronize(stream));
}

static void case_capture_refused(void)
{
    CUgraph graph = NULL;
    WANT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         cu.cuStreamBeginCapture(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_RELAXED));
    WANT(CUDA_ERROR_ILLEGAL_STATE, cu.cuStreamEndCapture(stream, &graph));
    GOOD(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    WANT(CUDA_ERROR_ILLEGAL_STATE, cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    GOOD(cu.cuStreamEndCapture(stream, &graph));
    GOOD(cu.cuGraphDestroy(graph));
    GOOD(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    WANT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.cuStreamSynchronize(stream));
    expect_failed_capture(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    GOOD(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    WANT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.cuStreamQuery(stream));
    expect_failed_capture(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

/* Memory is had beside a capture only by who has said that it is not to be part of it. */
static void case_capture_modes(void)
{
    CUgraph graph = NULL;
    CUdeviceptr other = 0;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    GOOD(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    WANT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.cuMemAlloc(&other, 4096));
    expect_failed_capture(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    GOOD(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    GOOD(cu.cuThreadExchangeStreamCaptureMode(&mode));
    SO(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    GOOD(cu.cuMemAlloc(&other, 4096));
    GOOD(cu.cuStreamQuery(second));
    GOOD(cu.cuThreadExchangeStreamCaptureMode(&mode));
    SO(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
    GOOD(cu.cuStreamEndCapture(stream, &graph));
    GOOD(cu.cuGraphDestroy(graph));
    GOOD(cu.cuMemFree(other));
    mode = (CUstreamCaptureMode)7;
    WANT(CUDA_ERROR_INVALID_VALUE, cu.cuThreadExchangeStreamCaptureMode(&mode));
}

/* An event takes another stream into the capture; and it must come back. */
static void case_capture_events(void)
{
    CUgraph graph = NULL;
    CUevent fork = NULL, joined = NULL;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    GOOD(cu.cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    GOOD(cu.cuEventCreate(&joined, CU_EVENT_DISABLE_TIMING));
    for (int joins = 0; joins < 2; joins++) {
        GOOD(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        GOOD(cu.cuEventRecord(fork, stream));
        GOOD(cu.cuStreamWaitEvent(second, fork, 0));
        GOOD(cu.cuStreamIsCapturing(second, &capture));
        SO(capture == CU_STREAM_CAPTURE_STATUS_ACTIVE);
        GOOD(cu.cuMemsetD8Async(device, 1, 10, second));
        WANT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cu.cuStreamEndCapture(second, &graph));
        if (joins != 0) {
            GOOD(cu.cuEventRecord(joined, second));
            WANT(CUDA_ERROR_CAPTURED_EVENT, cu.cuEventQuery(joined));
            GOOD(cu.cuStreamWaitEvent(stream, joined, 0));
        }
        WANT(joins != 0 ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
             cu.cuStreamEndCapture(stream, &graph));
        GOOD(cu.cuStreamQuery(second));
    }
    GOOD(cu.cuGraphDestroy(graph));
    GOOD(cu.cuEventRecord(fork, second)); /* which no capture has */
    GOOD(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    WANT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cu.cuStreamWaitEvent(stream, fork, 0));
    expect_failed_capture(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    GOOD(cu.cuEventDestroy(fork));
    GOOD(cu.cuEventDestroy(joined));
}

static CUgraphExec end_capture(void)
{
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    GOOD(cu.cuStreamEndCapture(stream, &graph));
    GOOD(cu.cuGraphInstantiate(&exec, graph, 0));
    GOOD(cu.cuGraphDestroy(graph)); /* what was made of it stays */
    return exec;
}

/* Nothing is done in a capture, and all of it at each launch, with what is there then. */
static void case_graphs(void)
{
    seen_calls calls = {0};
    memset(pinned, 1, 300);
    memset(pinned + 4096, 0, 300);
    GOOD(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    GOOD(cu.cuMemcpyAsync(device, address(pinned), 300, stream));
    GOOD(cu.cuMemsetD8Async(device + 100, 9, 100, stream));
    GOOD(cu.cuMemcpyAsync(address(pinned + 4096), device, 300, stream));
    GOOD(cu.cuLaunchHostFunc(stream, count_call, &calls));
    CUgraphExec exec = end_capture();
    GOOD(cu.cuStreamSynchronize(stream));
    SO(calls.n == 0 && pinned[4096] == 0);
    for (int i = 1; i <= 3; i++) {
        memset(pinned, i, 300);
        GOOD(cu.cuGraphLaunch(exec, i == 2 ? second : stream));
        GOOD(cu.cuStreamSynchronize(i == 2 ? second : stream));
        SO(calls.n == i && pinned[4096] == i && pinned[4096 + 150] == 9);
    }
    GOOD(cu.cuGraphLaunch(exec, stream));
    GOOD(cu.cuGraphLaunch(exec, second)); /* behind the other */
    GOOD(cu.cuGraphExecDestroy(exec));    /* when both are over */
    GOOD(cu.cuStreamSynchronize(second));
    SO(calls.n == 5);
}

static _Atomic int n_set;

static void CUDA_CB set_word(void *what)
{
    n_set++;
    *(_Atomic uint64_t *)what = 0;
}

/* A word that the graph itself sets back: each launch waits anew. */
static void case_graph_waits(void)
{
    _Atomic uint64_t *words = (_Atomic uint64_t *)(void *)pinned;
    words[0] = 1;
    words[1] = 0;
    n_set = 0;
    GOOD(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    GOOD(cu.cuLaunchHostFunc(stream, set_word, pinned));
    GOOD(cu.cuStreamWaitValue64(stream, address(&words[0]), 1, CU_STREAM_WAIT_VALUE_GEQ));
    GOOD(cu.cuStreamWriteValue64(stream, address(&words[1]), 7, CU_STREAM_WRITE_VALUE_DEFAULT));
    CUgraphExec exec = end_capture();
    for (int i = 1; i <= 3; i++) {
        words[1] = 0;
        GOOD(cu.cuGraphLaunch(exec, stream));
        for (int ms = 0; ms < PATIENCE_MS && n_set < i; ms++) {
            nap_ms(1);
        }
        nap_ms(5);
        SO(n_set == i && words[0] == 0 && words[1] == 0);
        words[0] = 1;
        GOOD(cu.cuStreamSynchronize(stream));
        SO(words[1] == 7);
    }
    GOOD(cu.cuGraphExecDestroy(exec));
}

static bool comes_to(const seen_calls *calls, int n)
{
    for (int ms = 0; ms < PATIENCE_MS && calls->n < n; ms++) {
        nap_ms(1);
    }
    nap_ms(5);
    return calls->n == n;
}

/* What a graph owns goes with the last that was made of it, and with a capture that has failed. */
static void case_graph_objects(void)
{
    seen_calls gone = {0};
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CUuserObject object = NULL;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    for (int fails = 0; fails < 2; fails++) {
        GOOD(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        GOOD(cu.cuStreamGetCaptureInfo(stream, &capture, NULL, &graph, NULL, NULL, NULL));
        SO(capture == CU_STREAM_CAPTURE_STATUS_ACTIVE && graph != NULL);
        GOOD(cu.cuUserObjectCreate(&object, &gone, count_call, 1,
                                   CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
        GOOD(cu.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
        GOOD(cu.cuMemsetD8Async(device, 1, 10, stream));
        if (fails != 0) {
            WANT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.cuStreamQuery(stream));
            expect_failed_capture(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        } else {
            GOOD(cu.cuStreamEndCapture(stream, &graph));
            GOOD(cu.cuGraphInstantiate(&exec, graph, 0));
            GOOD(cu.cuGraphDestroy(graph));
            SO(comes_to(&gone, 0));
            GOOD(cu.cuGraphLaunch(exec, stream));
            GOOD(cu.cuGraphExecDestroy(exec));
        }
        SO(comes_to(&gone, fails + 1));
    }
    GOOD(cu.cuUserObjectCreate(&object, &gone, count_call, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    GOOD(cu.cuUserObjectRelease(object, 1));
    SO(comes_to(&gone, 3));
}

/*
 * Kernels
 */

static CUlibrary library;

static CUfunction kernel_named(const char *name)
{
    CUkernel kernel = NULL;
    CUfunction function = NULL;
    GOOD(cu.cuLibraryGetKernel(&kernel, library, name));
    GOOD(cu.cuKernelGetFunction(&function, kernel));
    return function;
}

static CUresult launch(CUfunction function, unsigned blocks, unsigned threads, void *argument)
{
    void *arguments[] = {argument};
    return cu.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, NULL);
}

static fy_cuda_copy flat_copy(CUdeviceptr to, CUdeviceptr from, uint32_t unit, uint32_t n_units)
{
    fy_cuda_copy one = {.n_units = n_units};
    one.to.base = to;
    one.from.base = from;
    one.to.unit_bytes = one.from.unit_bytes = unit;
    return one;
}

/* Whether this device has kernels of the code, at the latest when one is asked for. */
static bool serves(const unsigned char *code)
{
    CUlibrary from;
    CUkernel kernel;
    CUfunction function;
    return cu.cuLibraryLoadData(&from, code, NULL, NULL, 0, NULL, NULL, 0) == CUDA_SUCCESS &&
           cu.cuLibraryGetKernel(&kernel, from, "fy_cuda_copy_16") == CUDA_SUCCESS &&
           cu.cuKernelGetFunction(&function, kernel) == CUDA_SUCCESS;
}

/* Machine code is for a major version; what a driver compiles, for all that are not older. */
static void case_code(void)
{
    int major = 0;
    GOOD(cu.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    SO(serves(fy_cuda_fatbin) == (major == 8 || major == 9));
    SO(serves(fy_cuda_fatbin_later) == (major >= 9));
}

static void case_kernels(void)
{
    static const char none[256] = "no code";
    CUlibrary bad;
    CUkernel kernel;
    size_t offset = 9, bytes = 0;
    /* What is no code is found to be so at once, or when something is asked of it. */
    if (cu.cuLibraryLoadData(&bad, none, NULL, NULL, 0, NULL, NULL, 0) == CUDA_SUCCESS) {
        SO(cu.cuLibraryGetKernel(&kernel, bad, "fy_cuda_copy_16") != CUDA_SUCCESS);
    }
    WANT(CUDA_ERROR_NOT_FOUND, cu.cuLibraryGetKernel(&kernel, library, "no_such_kernel"));
#define BYTES_OF(name, type)                                                                       \
    GOOD(cu.cuLibraryGetKernel(&kernel, library, #name));                                          \
    GOOD(cu.cuKernelGetParamInfo(kernel, 0, &offset, &bytes));                                     \
    SO(offset == 0 && bytes == sizeof(type));
    FY_CUDA_KERNELS(BYTES_OF)
#undef BYTES_OF
    fy_cuda_copy one = flat_copy(device + 65536, device, 16, 1000);
    CUfunction copy = kernel_named("fy_cuda_copy_16");
    int n_blocks = 0;
    GOOD(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(&n_blocks, copy, 256, 0));
    SO(n_blocks >= 1 && n_blocks <= 32);
    WANT(CUDA_ERROR_INVALID_VALUE, launch(copy, 0, 256, &one));
    WANT(CUDA_ERROR_INVALID_VALUE, launch(copy, 1, 2000, &one));
    for (int i = 0; i < 16000; i++) {
        pinned[i] = (char)(i * 11 + i / 256);
    }
    GOOD(cu.cuMemcpyAsync(device, address(pinned), 16000, stream));
    GOOD(launch(copy, 3, 256, &one));
    GOOD(cu.cuMemcpyAsync(address(pinned + 65536), device + 65536, 16000, stream));
    GOOD(cu.cuStreamSynchronize(stream));
    SO(memcmp(pinned, pinned + 65536, 16000) == 0);
    /* Pinned memory is reached by kernels at the host's address. */
    memset(pinned + 65536, 0, 16000);
    one = flat_copy(address(pinned + 65536), address(pinned), 16, 1000);
    GOOD(launch(copy, 3, 256, &one));
    memset(&one, 0, sizeof one); /* the argument was copied by the launch */
    GOOD(cu.cuStreamSynchronize(stream));
    SO(memcmp(pinned, pinned + 65536, 16000) == 0);
}

/* A kernel's argument is copied by the capture. */
static void case_graph_kernels(void)
{
    fy_cuda_copy one = flat_copy(device + 65536, device, 16, 1000);
    CUfunction copy = kernel_named("fy_cuda_copy_16");
    GOOD(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    GOOD(cu.cuMemcpyAsync(device, address(pinned), 16000, stream));
    GOOD(launch(copy, 3, 256, &one));
    GOOD(cu.cuMemcpyAsync(address(pinned + 65536), device + 65536, 16000, stream));
    memset(&one, 0, sizeof one);
    CUgraphExec exec = end_capture();
    for (int i = 1; i <= 2; i++) {
        memset(pinned, i, 16000);
        GOOD(cu.cuGraphLaunch(exec, stream));
        GOOD(cu.cuStreamSynchronize(stream));
        SO(memcmp(pinned, pinned + 65536, 16000) == 0);
    }
    GOOD(cu.cuGraphExecDestroy(exec));
}

/*
 * What must not be done while a stream waits
 */

typedef struct attempt {
    const char *name;
    void (*run)(void);
    _Atomic bool is_done;
} attempt;

static CUdeviceptr extra;
static void *extra_pinned;
static char extra_pages[4 << 12] __attribute__((aligned(4096)));
static CUstream extra_stream;

static void try_alloc(void)
{
    (void)cu.cuMemAlloc(&extra, 8 << 20);
}

static void try_free(void)
{
    (void)cu.cuMemFree(extra);
}

static void try_host_alloc(void)
{
    (void)cu.cuMemHostAlloc(&extra_pinned, 1 << 20, CU_MEMHOSTALLOC_PORTABLE);
}

static void try_host_free(void)
{
    (void)cu.cuMemFreeHost(extra_pinned);
}

static void try_register(void)
{
    (void)cu.cuMemHostRegister(extra_pages, sizeof extra_pages, CU_MEMHOSTREGISTER_PORTABLE);
}

static void try_unregister(void)
{
    (void)cu.cuMemHostUnregister(extra_pages);
}

static void try_stream(void)
{
    (void)cu.cuStreamCreateWithPriority(&extra_stream, CU_STREAM_NON_BLOCKING, 0);
}

static void try_pageable_up(void)
{
    static char bytes[300000];
    (void)cu.cuMemcpyAsync(device + 500000, address(bytes), sizeof bytes, second);
}

static void try_pageable_down(void)
{
    static char bytes[300000];
    (void)cu.cuMemcpyAsync(address(bytes), device + 500000, sizeof bytes, second);
}

static void try_kernel(void)
{
    fy_cuda_copy one = flat_copy(device + 65536, device, 16, 100);
    void *arguments[] = {&one};
    (void)cu.cuLaunchKernel(kernel_named("fy_cuda_copy_16"), 1, 1, 1, 256, 1, 1, 0, second,
                            arguments, NULL);
    (void)cu.cuStreamSynchronize(second);
}

static void CUDA_CB say_hello(void *what)
{
    _Atomic int *n = what;
    (*n)++;
}

/* Behind the wait of the first stream there is one, too. */
static void try_host_function(void)
{
    static _Atomic int n;
    n = 0;
    (void)cu.cuLaunchHostFunc(stream, say_hello, &n);
    (void)cu.cuLaunchHostFunc(second, say_hello, &n);
    (void)cu.cuStreamSynchronize(second);
}

static void try_query(void)
{
    (void)cu.cuStreamQuery(stream);
    (void)cu.cuStreamQuery(second);
}

static void try_write(void)
{
    (void)cu.cuStreamWriteValue64(second, address(pinned + 64), 1, CU_STREAM_WRITE_VALUE_DEFAULT);
    (void)cu.cuStreamSynchronize(second);
}

static void try_attributes(void)
{
    CUmemorytype type;
    void *place = &type;
    CUpointer_attribute which = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    (void)cu.cuPointerGetAttributes(1, &which, &place, device);
}

static void *run_attempt(void *what)
{
    attempt *one = what;
    (void)cu.cuCtxPushCurrent(context);
    one->run();
    one->is_done = true;
    return NULL;
}

/* Behind a stream that waits for a word, each call has some time; then the word comes. */
static void case_blocking(void)
{
    static attempt all[] = {{"cuMemAlloc", try_alloc, false},
                            {"cuMemHostAlloc", try_host_alloc, false},
                            {"cuMemHostRegister", try_register, false},
                            {"cuStreamCreate", try_stream, false},
                            {"a kernel on another stream", try_kernel, false},
                            {"a copy from pageable memory, other stream", try_pageable_up, false},
                            {"a copy to pageable memory, other stream", try_pageable_down, false},
                            {"a host function on another stream", try_host_function, false},
                            {"a written word on another stream", try_write, false},
                            {"cuStreamQuery", try_query, false},
                            {"cuMemHostUnregister", try_unregister, false},
                            {"cuMemFreeHost", try_host_free, false},
                            {"cuMemFree", try_free, false}};
    _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)pinned;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        pthread_t thread;
        *word = 0;
        GOOD(cu.cuStreamWaitValue64(stream, address(word), 1, CU_STREAM_WAIT_VALUE_GEQ));
        (void)pthread_create(&thread, NULL, run_attempt, &all[i]);
        for (int ms = 0; ms < 150 && !all[i].is_done; ms++) {
            nap_ms(1);
        }
        printf("seen: while a stream waits, %s %s\n", all[i].name,
               all[i].is_done ? "goes on" : "waits, too");
        *word = 1;
        pthread_join(thread, NULL);
        GOOD(cu.cuStreamSynchronize(stream));
        GOOD(cu.cuStreamSynchronize(second));
    }
    SO(all[4].is_done);
}

/* While a stream waits, and a thread is in cuMemFree: what others may still do. */
static void case_freeing(void)
{
    static attempt all[] = {{"cuPointerGetAttributes", try_attributes, false},
                            {"cuStreamQuery", try_query, false},
                            {"a written word on another stream", try_write, false},
                            {"a kernel on another stream", try_kernel, false},
                            {"a host function on another stream", try_host_function, false},
                            {"cuMemHostAlloc", try_host_alloc, false}};
    static attempt freeing = {"cuMemFree", try_free, false};
    _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)pinned;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        pthread_t freer, thread;
        *word = 0;
        GOOD(cu.cuMemAlloc(&extra, 8 << 20));
        GOOD(cu.cuStreamWaitValue64(stream, address(word), 1, CU_STREAM_WAIT_VALUE_GEQ));
        (void)pthread_create(&freer, NULL, run_attempt, &freeing);
        nap_ms(20);
        (void)pthread_create(&thread, NULL, run_attempt, &all[i]);
        for (int ms = 0; ms < 150 && !all[i].is_done; ms++) {
            nap_ms(1);
        }
        printf("seen: while cuMemFree waits for a stream, %s %s\n", all[i].name,
               all[i].is_done ? "goes on" : "waits, too");
        *word = 1;
        pthread_join(thread, NULL);
        pthread_join(freer, NULL);
        GOOD(cu.cuStreamSynchronize(stream));
        GOOD(cu.cuStreamSynchronize(second));
    }
    GOOD(cu.cuMemFreeHost(extra_pinned));
}

enum { MOST_WAITING = 64 };
static CUstream waiting[MOST_WAITING], other;
static _Atomic int n_waiting;
static int n_beside;
static const char *_Atomic step; /* the call that an attempt is in */

/* How many streams may wait before another one is held up; and whether one can be made then. */
static void try_many(void)
{
    CUresult result = CUDA_SUCCESS;
    n_beside = 0;
    for (int i = 0; i < MOST_WAITING && result == CUDA_SUCCESS; i++) {
        step = "cuStreamWaitValue64";
        GOOD(cu.cuStreamWaitValue64(waiting[i], address(pinned), 1, CU_STREAM_WAIT_VALUE_GEQ));
        n_waiting = i + 1;
        step = "cuMemsetD8Async";
        GOOD(cu.cuMemsetD8Async(device + 1000, 2, 64, other));
        step = "cuStreamQuery";
        result = CUDA_ERROR_NOT_READY;
        for (int ms = 0; ms < 30 && result == CUDA_ERROR_NOT_READY; ms++) {
            nap_ms(1);
            result = cu.cuStreamQuery(other);
        }
        n_beside = result == CUDA_SUCCESS ? i + 1 : n_beside;
    }
    step = "cuStreamCreateWithPriority";
    GOOD(cu.cuStreamCreateWithPriority(&extra_stream, CU_STREAM_NON_BLOCKING, 0));
    step = NULL;
}

/*
 * An attempt among streams that wait, which may itself be held up: after some time the word comes,
 * whatever it is in, and it says in which call that was.
 */
static void beside_many(attempt *one, int priority)
{
    pthread_t thread;
    _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)pinned;
    *word = 0;
    n_waiting = 0;
    GOOD(cu.cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, priority));
    for (int i = 0; i < MOST_WAITING; i++) {
        GOOD(cu.cuStreamCreateWithPriority(&waiting[i], CU_STREAM_NON_BLOCKING, 0));
    }
    (void)pthread_create(&thread, NULL, run_attempt, one);
    for (int ms = 0; ms < PATIENCE_MS && !one->is_done; ms++) {
        nap_ms(1);
    }
    const char *held = one->is_done ? NULL : step;
    if (held != NULL) {
        printf("seen: beside %d streams that wait, %s waits, too\n", n_waiting, held);
    } else {
        printf("seen: beside %d streams that wait, another one of priority %d goes on (of %d)\n",
               n_beside, priority, n_waiting);
    }
    *word = 1;
    pthread_join(thread, NULL);
    for (int i = 0; i < MOST_WAITING; i++) {
        GOOD(cu.cuStreamSynchronize(waiting[i]));
        GOOD(cu.cuStreamDestroy(waiting[i]));
    }
    GOOD(cu.cuStreamSynchronize(other));
    GOOD(cu.cuStreamDestroy(other));
}

static void case_priorities(void)
{
    static attempt one = {"another priority", try_many, false};
    int least = 0, greatest = 0;
    GOOD(cu.cuCtxGetStreamPriorityRange(&least, &greatest));
    beside_many(&one, greatest < 0 ? -1 : 0);
}

static void case_many_streams(void)
{
    static attempt one = {"many streams", try_many, false};
    beside_many(&one, 0);
}

/*
 * Cases that end the device, each in a process of its own
 */

static void case_illegal_address(void)
{
    seen_calls calls = {0};
    fy_cuda_copy one = flat_copy(device, 0x10000, 16, 100);
    (void)launch(kernel_named("fy_cuda_copy_16"), 1, 256, &one);
    (void)cu.cuLaunchHostFunc(stream, count_call, &calls);
    WANT(CUDA_ERROR_ILLEGAL_ADDRESS, cu.cuStreamSynchronize(stream));
    WANT(CUDA_ERROR_ILLEGAL_ADDRESS, cu.cuStreamQuery(stream)); /* and so for good */
    WANT(CUDA_ERROR_ILLEGAL_ADDRESS, cu.cuMemAlloc(&extra, 16));
    nap_ms(50);
    printf("seen: behind an illegal address a host function %s\n",
           calls.n == 0 ? "is not called" : "is called all the same");
    printf("seen: cuCtxPushCurrent then is %s\n", name_of(cu.cuCtxPushCurrent(context)));
}

static void case_misaligned(void)
{
    fy_cuda_copy one = flat_copy(device + 4, device + 65536, 16, 100);
    (void)launch(kernel_named("fy_cuda_copy_16"), 1, 256, &one);
    WANT(CUDA_ERROR_MISALIGNED_ADDRESS, cu.cuStreamSynchronize(stream));
}

/* Device memory is not the host's to touch. */
static void case_host_touch(void)
{
    pid_t child = fork();
    int end = 0;
    if (child == 0) {
        volatile char *place = (volatile char *)(uintptr_t)device;
        (void)*place;
        _exit(0);
    }
    (void)waitpid(child, &end, 0);
    SO(!WIFEXITED(end) || WEXITSTATUS(end) != 0); /* a sanitizer turns signals into a status */
}

static void case_fork(void)
{
    pid_t child = fork();
    int end = 0;
    if (child == 0) {
        int n = 0;
        CUresult result = cu.cuDeviceGetCount(&n);
        CUdeviceptr one;
        CUresult second_result = cu.cuMemAlloc(&one, 16);
        printf("seen: in a forked process cuDeviceGetCount is %s, cuMemAlloc %s\n", name_of(result),
               name_of(second_result));
        fflush(stdout);
        _exit(second_result == CUDA_SUCCESS ? 1 : 0);
    }
    (void)waitpid(child, &end, 0);
    SO(WIFEXITED(end) && WEXITSTATUS(end) == 0);
}

/*
 * Memory of another process
 */

static void fill_device(CUdeviceptr at, unsigned char value, size_t bytes)
{
    GOOD(cu.cuMemsetD8Async(at, value, bytes, stream));
    GOOD(cu.cuStreamSynchronize(stream));
}

static void check_device(CUdeviceptr at, unsigned char value)
{
    memset(pinned, 0, 4096);
    GOOD(cu.cuMemcpyAsync(address(pinned), at, 4096, stream));
    GOOD(cu.cuStreamSynchronize(stream));
    SO((unsigned char)pinned[0] == value && (unsigned char)pinned[4095] == value);
}

enum { SHARED_BYTES = 3 << 20, SHARED_AT = 2 << 20 };

/* What the other process does, with a handle in the environment. */
static void case_ipc_other(void)
{
    CUipcMemHandle handle, none;
    CUdeviceptr one = 0, again = 0;
    const char *text = getenv("CONTRACT_HANDLE");
    if (text == NULL) {
        return;
    }
    for (size_t i = 0; i < sizeof handle; i++) {
        handle.reserved[i] = (char)((text[2 * i] - 'a') << 4 | (text[2 * i + 1] - 'a'));
    }
    memset(&none, 0, sizeof none);
    WANT(CUDA_ERROR_INVALID_VALUE, cu.cuIpcOpenMemHandle(&one, handle, 0));
    SO(cu.cuIpcOpenMemHandle(&one, none, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS);
    GOOD(cu.cuIpcOpenMemHandle(&one, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    GOOD(cu.cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    SO(one == again);
    CUmemorytype type = 0;
    CUdeviceptr begin = 0;
    size_t bytes = 0;
    GOOD(cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, one));
    SO(type == CU_MEMORYTYPE_DEVICE);
    CUresult result = cu.cuMemGetAddressRange(&begin, &bytes, one);
    printf(
        "seen: of memory of another process cuMemGetAddressRange is %s, %zu bytes, %llu before\n",
        name_of(result), bytes, (unsigned long long)(one - begin));
    check_device(one + SHARED_AT, 7);
    GOOD(cu.cuIpcCloseMemHandle(one));
    fill_device(one + SHARED_AT, 9, 4096); /* it is open once more */
    GOOD(cu.cuIpcCloseMemHandle(one));
    SO(cu.cuIpcCloseMemHandle(one) != CUDA_SUCCESS);
}

static void run_other(const CUipcMemHandle *handle)
{
    char text[2 * sizeof *handle + 1];
    int end = 0;
    for (size_t i = 0; i < sizeof *handle; i++) {
        unsigned char byte = (unsigned char)handle->reserved[i];
        text[2 * i] = (char)('a' + (byte >> 4));
        text[2 * i + 1] = (char)('a' + (byte & 15));
    }
    text[2 * sizeof *handle] = '\0';
    (void)setenv("CONTRACT_HANDLE", text, 1);
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "contract", "ipc_other", (char *)NULL);
        _exit(99);
    }
    (void)unsetenv("CONTRACT_HANDLE");
    (void)waitpid(child, &end, 0);
    SO(WIFEXITED(end) && WEXITSTATUS(end) == 0);
}

static void case_ipc(void)
{
    CUdeviceptr one = 0, again = 0;
    CUipcMemHandle handle;
    unsigned is_capable = 0;
    CUuuid first, same;
    GOOD(cu.cuDeviceGetUuid(&first, 0));
    GOOD(cu.cuDeviceGetUuid(&same, 0));
    SO(memcmp(&first, &same, sizeof first) == 0);
    GOOD(cu.cuMemAlloc(&one, SHARED_BYTES));
    GOOD(cu.cuPointerGetAttribute(&is_capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                  one));
    SO(is_capable == 1);
    fill_device(one + SHARED_AT, 7, 4096);
    GOOD(cu.cuIpcGetMemHandle(&handle, one));
    CUresult own = cu.cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    printf("seen: to open one's own memory is %s\n", name_of(own));
    SO(own != CUDA_SUCCESS);
    SO(cu.cuIpcGetMemHandle(&handle, address(pinned)) != CUDA_SUCCESS);
    GOOD(cu.cuIpcGetMemHandle(&handle, one));
    run_other(&handle);
    check_device(one + SHARED_AT, 9);
    GOOD(cu.cuMemFree(one));
}

static void case_peers(void)
{
    int n = 0, can = 0;
    CUcontext peer = NULL;
    GOOD(cu.cuDeviceGetCount(&n));
    WANT(CUDA_ERROR_INVALID_DEVICE, cu.cuCtxEnablePeerAccess(context, 0));
    if (n < 2) {
        printf("seen: there is one device, so no other is reached\n");
        return;
    }
    GOOD(cu.cuDeviceCanAccessPeer(&can, 0, 1));
    GOOD(cu.cuDevicePrimaryCtxRetain(&peer, 1));
    WANT(can != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
         cu.cuCtxEnablePeerAccess(peer, 0));
    if (can != 0) {
        WANT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cu.cuCtxEnablePeerAccess(peer, 0));
    }
    GOOD(cu.cuDevicePrimaryCtxRelease(1));
}

/* At an address of its own, for device 0. */
static void map_somewhere(CUmemGenericAllocationHandle what, size_t bytes, CUdeviceptr *at)
{
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    GOOD(cu.cuMemAddressReserve(at, bytes, bytes, 0, 0));
    GOOD(cu.cuMemMap(*at, bytes, 0, what, 0));
    GOOD(cu.cuMemSetAccess(*at, bytes, &access, 1));
}

/* What is bound, and what is not. One device is in the object, which this process has alone. */
static void bind_and_map(CUmemGenericAllocationHandle object, size_t bytes)
{
    CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle own, hidden;
    CUdeviceptr at = 0, all = 0;
    GOOD(cu.cuMemCreate(&hidden, bytes, &wanted, 0));
    wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    GOOD(cu.cuMemCreate(&own, bytes, &wanted, 0));
    SO(cu.cuMulticastBindMem(object, 0, hidden, 0, bytes, 0) != CUDA_SUCCESS);
    WANT(CUDA_ERROR_INVALID_VALUE, cu.cuMulticastBindMem(object, 1, own, 0, bytes, 0));
    WANT(CUDA_ERROR_INVALID_VALUE, cu.cuMulticastBindMem(object, 0, own, 1, bytes, 0));
    WANT(CUDA_ERROR_INVALID_VALUE, cu.cuMulticastBindMem(object, 0, own, 0, bytes - 1, 0));
    WANT(CUDA_ERROR_INVALID_VALUE, cu.cuMulticastBindMem(object, bytes, own, 0, bytes, 0));
    WANT(CUDA_ERROR_INVALID_VALUE, cu.cuMulticastBindMem(object, 0, own, bytes, bytes, 0));
    GOOD(cu.cuMulticastBindMem(object, 0, own, 0, bytes, 0));
    map_somewhere(own, bytes, &at);
    map_somewhere(object, bytes, &all);
    SO(at != all);
    GOOD(cu.cuMemUnmap(all, bytes));
    GOOD(cu.cuMemUnmap(at, bytes));
    GOOD(cu.cuMemAddressFree(all, bytes));
    GOOD(cu.cuMemAddressFree(at, bytes));
    GOOD(cu.cuMulticastUnbind(object, 0, 0, bytes));
    GOOD(cu.cuMemRelease(own));
    GOOD(cu.cuMemRelease(hidden));
}

static void case_multicast(void)
{
    int can = 0, fd = -1;
    size_t least = 0, best = 0;
    CUmulticastObjectProp wanted = {
        .numDevices = 1, .size = 1, .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    CUmemGenericAllocationHandle object, again;
    GOOD(cu.cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0));
    if (can == 0) {
        printf("seen: device 0 has no multicast objects\n");
        return;
    }
    GOOD(cu.cuMulticastGetGranularity(&least, &wanted, CU_MULTICAST_GRANULARITY_MINIMUM));
    GOOD(cu.cuMulticastGetGranularity(&best, &wanted, CU_MULTICAST_GRANULARITY_RECOMMENDED));
    printf("seen: granularities %zu and %zu\n", least, best);
    SO(least > 0 && best >= least && (least & (least - 1)) == 0 && (best & (best - 1)) == 0);
    WANT(CUDA_ERROR_INVALID_VALUE, cu.cuMulticastCreate(&object, &wanted));
    wanted.size = best;
    WANT(CUDA_ERROR_INVALID_VALUE, cu.cuMulticastCreate(NULL, &wanted));
    GOOD(cu.cuMulticastCreate(&object, &wanted));
    WANT(CUDA_ERROR_INVALID_DEVICE, cu.cuMulticastAddDevice(object, -1));
    GOOD(cu.cuMulticastAddDevice(object, 0));
    GOOD(cu.cuMemExportToShareableHandle(&fd, object, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    GOOD(cu.cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    bind_and_map(object, best);
    bind_and_map(again, best);
    GOOD(cu.cuMemRelease(again));
    GOOD(cu.cuMemRelease(object));
}

typedef struct test_case {
    const char *name;
    void (*run)(void);
    bool alone; /* it leaves the device in no state for others */
} test_case;

static const test_case cases[] = {{"versions", case_versions, false},
                                  {"devices", case_devices, false},
                                  {"contexts", case_contexts, false},
                                  {"alloc", case_alloc, false},
                                  {"pinned", case_pinned, false},
                                  {"register", case_register, false},
                                  {"pointers", case_pointers, false},
                                  {"copies", case_copies, false},
                                  {"streams", case_streams, false},
                                  {"wait_value", case_wait_value, false},
                                  {"write_order", case_write_order, false},
                                  {"events", case_events, false},
                                  {"host_functions", case_host_functions, false},
                                  {"capture", case_capture, false},
                                  {"capture_refused", case_capture_refused, false},
                                  {"capture_modes", case_capture_modes, false},
                                  {"capture_events", case_capture_events, false},
                                  {"graphs", case_graphs, false},
                                  {"graph_kernels", case_graph_kernels, false},
                                  {"graph_waits", case_graph_waits, false},
                                  {"graph_objects", case_graph_objects, false},
                                  {"code", case_code, false},
                                  {"kernels", case_kernels, false},
                                  {"blocking", case_blocking, false},
                                  {"freeing", case_freeing, false},
                                  {"priorities", case_priorities, false},
                                  {"many_streams", case_many_streams, false},
                                  {"ipc", case_ipc, false},
                                  {"peers", case_peers, false},
                                  {"multicast", case_multicast, false},
                                  {"ipc_other", case_ipc_other, true},
                                  {"illegal_address", case_illegal_address, true},
                                  {"misaligned", case_misaligned, true},
                                  {"host_touch", case_host_touch, true},
                                  {"fork", case_fork, true}};

static bool open_driver(void)
{
    void *handle = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult (*get)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
    void *found = handle != NULL ? dlsym(handle, "cuGetProcAddress_v2") : NULL;
    if (found == NULL) {
        printf("there is no driver: %s\n", dlerror());
        return false;
    }
    memcpy(&get, &found, sizeof get);
    bool all = true;
#define GET(name, version)                                                                         \
    found = NULL;                                                                                  \
    if (get(#name, &found, version, 0, NULL) != CUDA_SUCCESS || found == NULL) {                   \
        printf("the driver has no %s\n", #name);                                                   \
        all = false;                                                                               \
    }                                                                                              \
    memcpy(&cu.name, &found, sizeof found);
    CALLS(GET)
#undef GET
    return all;
}

static void set_up(void)
{
    void *base = NULL;
    int major = 0;
    GOOD(cu.cuInit(0));
    GOOD(cu.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    const unsigned char *code = major > 9 ? fy_cuda_fatbin_later : fy_cuda_fatbin;
    GOOD(cu.cuDevicePrimaryCtxRetain(&context, 0));
    GOOD(cu.cuCtxPushCurrent(context));
    GOOD(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    GOOD(cu.cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    GOOD(cu.cuMemAlloc(&device, BYTES));
    GOOD(cu.cuMemHostAlloc(&base, BYTES, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    GOOD(cu.cuLibraryLoadData(&library, code, NULL, NULL, 0, NULL, NULL, 0));
    pinned = base;
}

static _Atomic bool is_over;

static void *run_in_thread(void *what)
{
    const test_case *one = what;
    GOOD(cu.cuCtxPushCurrent(context));
    one->run();
    is_over = true;
    return NULL;
}

static bool ends_within(long ms)
{
    for (; ms > 0 && !is_over; ms--) {
        nap_ms(1);
    }
    return is_over;
}

/*
 * Whatever the driver does, this ends: a case that is held up has the word that streams wait for
 * in the end, and if that does not help, it is the last one: calls of others would not end, either.
 */
static bool run_case(const test_case *one)
{
    pthread_t thread;
    is_wrong = false;
    is_over = false;
    (void)pthread_create(&thread, NULL, run_in_thread, (void *)(uintptr_t)one);
    if (!ends_within(CASE_MS)) {
        wrong(__LINE__, "it is held up");
        *(_Atomic uint64_t *)(void *)pinned = UINT64_MAX;
        if (!ends_within(PATIENCE_MS)) {
            printf("WRONG %s: a call does not come back, and no case follows\n", one->name);
            return false;
        }
    }
    pthread_join(thread, NULL);
    printf("%s %s\n", is_wrong ? "WRONG" : "ok   ", one->name);
    n_wrong += is_wrong;
    return true;
}

/* In a process of its own, which opens the driver by itself. */
static void run_alone(const char *program, const test_case *one)
{
    pid_t child = fork();
    int end = 0;
    if (child == 0) {
        execl(program, program, one->name, (char *)NULL);
        _exit(99);
    }
    (void)waitpid(child, &end, 0);
    n_wrong += !WIFEXITED(end) || WEXITSTATUS(end) != 0;
}

int main(int argc, char **argv)
{
    if (!open_driver()) {
        return 77;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 1) {
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            if (cases[i].alone) {
                run_alone(argv[0], &cases[i]);
            }
        }
    }
    set_up();
    if (is_wrong) {
        return 1;
    }
    bool goes_on = true;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] && goes_on; i++) {
        if (argc == 1 ? !cases[i].alone : strcmp(argv[1], cases[i].name) == 0) {
            goes_on = run_case(&cases[i]);
            n_wrong += !goes_on;
        }
    }
    if (argc == 1) {
        printf("%zu cases, %u wrong\n", sizeof cases / sizeof cases[0], n_wrong);
    }
    fflush(stdout);
    _exit(n_wrong == 0 ? 0 : 1); /* threads of a driver that was lost are not waited for */
}
