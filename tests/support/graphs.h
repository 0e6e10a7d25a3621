/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_GRAPHS_H
#define FERRY_TESTS_GRAPHS_H

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * What a caller of CUDA's does around a capture, on whatever driver there is: its calls are found
 * by name, as cuda.h may not be there. All of them must succeed.
 */
enum { GRAPHS_GLOBAL = 0, GRAPHS_RELAXED = 2, GRAPHS_PINNED = 3 };

static inline int driver_call(const char *name, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d)
{
    static _Thread_local void *library; /* ranks may be threads */
    int (*function)(uintptr_t, uintptr_t, uintptr_t, uintptr_t) = NULL;
    library = library != NULL ? library : dlopen("libcuda.so.1", RTLD_NOW);
    void *found = library != NULL ? dlsym(library, name) : NULL;
    memcpy(&function, &found, sizeof found);
    return function != NULL ? function(a, b, c, d) : -1;
}

static inline void driver_must(const char *name, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d)
{
    int result = driver_call(name, a, b, c, d);
    if (result != 0) {
        fprintf(stderr, "%s returned %d\n", name, result);
        abort();
    }
}

/* The primary context of device 0 is this thread's from here on. */
static inline void *graphs_open_stream(void)
{
    void *context = NULL, *stream = NULL;
    driver_must("cuInit", 0, 0, 0, 0);
    driver_must("cuDevicePrimaryCtxRetain", (uintptr_t)&context, 0, 0, 0);
    driver_must("cuCtxPushCurrent_v2", (uintptr_t)context, 0, 0, 0);
    driver_must("cuStreamCreate", (uintptr_t)&stream, 1, 0, 0);
    return stream;
}

static inline void *graphs_new_stream(void)
{
    void *stream = NULL;
    driver_must("cuStreamCreate", (uintptr_t)&stream, 1, 0, 0);
    return stream;
}

static inline void graphs_close(void *stream)
{
    driver_must("cuStreamDestroy_v2", (uintptr_t)stream, 0, 0, 0);
}

/* A stream of any device, and its end; what is this thread's stays. */
static inline void graphs_enter(int device)
{
    void *context = NULL;
    driver_must("cuInit", 0, 0, 0, 0);
    driver_must("cuDevicePrimaryCtxRetain", (uintptr_t)&context, (uintptr_t)device, 0, 0);
    driver_must("cuCtxPushCurrent_v2", (uintptr_t)context, 0, 0, 0);
}

static inline void graphs_leave(int device)
{
    void *context = NULL;
    driver_must("cuCtxPopCurrent_v2", (uintptr_t)&context, 0, 0, 0);
    driver_must("cuDevicePrimaryCtxRelease_v2", (uintptr_t)device, 0, 0, 0);
}

static inline void *graphs_stream_of(int device)
{
    graphs_enter(device);
    void *stream = graphs_new_stream();
    graphs_leave(device);
    return stream;
}

static inline void graphs_end_stream_of(int device, void *stream)
{
    graphs_enter(device);
    graphs_close(stream);
    graphs_leave(device);
}

/* One that goes on while the other waits: streams share channels, in which one holds up others. */
static inline void *graphs_stream_apart(void *other, void *pinned)
{
    enum { LOOKS = 100000 };
    _Atomic uint64_t *words = (_Atomic uint64_t *)pinned;
    void *stream = NULL;
    atomic_store(&words[0], 0);
    driver_must("cuStreamWaitValue64_v2", (uintptr_t)other, (uintptr_t)pinned, 1, 0);
    for (bool goes_on = false; !goes_on;) {
        stream = graphs_new_stream();
        driver_must("cuMemsetD8Async", (uintptr_t)&words[1], 0, 1, (uintptr_t)stream);
        for (int look = 0; look < LOOKS && !goes_on; look++) {
            goes_on = driver_call("cuStreamQuery", (uintptr_t)stream, 0, 0, 0) == 0;
        }
    }
    atomic_store(&words[0], 1);
    return stream;
}

static inline void graphs_close_stream(void *stream)
{
    void *context = NULL;
    graphs_close(stream);
    driver_must("cuCtxPopCurrent_v2", (uintptr_t)&context, 0, 0, 0);
}

static inline void *graphs_pinned(size_t bytes)
{
    void *base = NULL;
    driver_must("cuMemHostAlloc", (uintptr_t)&base, bytes, GRAPHS_PINNED, 0);
    return base;
}

static inline void graphs_free_pinned(void *base)
{
    driver_must("cuMemFreeHost", (uintptr_t)base, 0, 0, 0);
}

static inline void graphs_copy(void *stream, void *to, const void *from, size_t bytes)
{
    driver_must("cuMemcpyAsync", (uintptr_t)to, (uintptr_t)from, bytes, (uintptr_t)stream);
}

static inline void graphs_begin(void *stream, int mode)
{
    driver_must("cuStreamBeginCapture_v2", (uintptr_t)stream, (uintptr_t)mode, 0, 0);
}

/* What was captured, ready to be launched; n copies of it. */
static inline void graphs_end_n(void *stream, int n, void **execs)
{
    void *graph = NULL;
    driver_must("cuStreamEndCapture", (uintptr_t)stream, (uintptr_t)&graph, 0, 0);
    for (int i = 0; i < n; i++) {
        driver_must("cuGraphInstantiateWithFlags", (uintptr_t)&execs[i], (uintptr_t)graph, 0, 0);
    }
    driver_must("cuGraphDestroy", (uintptr_t)graph, 0, 0, 0);
}

static inline void *graphs_end(void *stream)
{
    void *exec = NULL;
    graphs_end_n(stream, 1, &exec);
    return exec;
}

static inline void graphs_launch(void *exec, void *stream)
{
    driver_must("cuGraphLaunch", (uintptr_t)exec, (uintptr_t)stream, 0, 0);
}

static inline void graphs_synchronize(void *stream)
{
    driver_must("cuStreamSynchronize", (uintptr_t)stream, 0, 0, 0);
}

static inline void graphs_free(void *exec)
{
    driver_must("cuGraphExecDestroy", (uintptr_t)exec, 0, 0, 0);
}

#endif
