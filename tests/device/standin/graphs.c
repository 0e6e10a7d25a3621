/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "device/standin/standin.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/*
 * Capture of streams, and graphs. A node comes after those that its stream, or an event that it
 * waited for, had come to; beyond that the nodes of a launch come in any order, drawn anew each
 * time, one after the other on the stream of the launch. Where cuda.h lets calls fail that are
 * "potentially unsafe" beside a capture, all of those in the list below do.
 */

enum { MOST_CAPTURES = 16, MOST_MEMBERS = 16, MOST_OBJECTS = 256, POLL_NS = 100000 };

typedef struct node {
    op what;
    node_set before;
} node;

struct CUuserObject_st {
    unsigned n; /* references: of the lock */
    CUhostFn destroy;
    void *context;
};

struct CUgraph_st {
    size_t n, n_owned;
    node nodes[MOST_NODES];
    CUuserObject owned[MOST_OBJECTS]; /* one for each reference */
};

struct CUgraphExec_st {
    struct CUgraph_st *graph; /* its own copy */
    CUevent over;             /* of the last launch */
};

struct capture {
    struct CUstream_st *members[MOST_MEMBERS]; /* the first is where it was begun */
    size_t n_members;
    CUstreamCaptureMode mode;
    pthread_t thread;
    uint64_t number;
    bool is_invalid;
    CUgraph graph;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all of this */
static struct capture *active[MOST_CAPTURES];
static _Thread_local CUstreamCaptureMode mode_here = CU_STREAM_CAPTURE_MODE_GLOBAL;

static void add(node_set *set, size_t number)
{
    set->bits[number / 64] |= (uint64_t)1 << number % 64;
}

static bool has(const node_set *set, size_t number)
{
    return (set->bits[number / 64] >> number % 64 & 1) != 0;
}

static void join_sets(node_set *set, const node_set *other)
{
    for (size_t i = 0; i < sizeof set->bits / sizeof set->bits[0]; i++) {
        set->bits[i] |= other->bits[i];
    }
}

/*
 * What is not allowed beside a capture
 */

/* Whether this thread may make no unsafe call; the captures for which it may not have failed. */
static bool bars(struct capture *one)
{
    bool is_own = pthread_equal(one->thread, pthread_self()) != 0;
    bool it_does = is_own ? one->mode != CU_STREAM_CAPTURE_MODE_RELAXED
                          : one->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                mode_here == CU_STREAM_CAPTURE_MODE_GLOBAL;
    one->is_invalid = one->is_invalid || it_does;
    return it_does;
}

CUresult standin_check_unsafe(const char *name)
{
    static const char *const unsafe[] = {
        "cuMemAlloc",          "cuMemFree",           "cuMemHostAlloc",
        "cuMemFreeHost",       "cuMemHostRegister",   "cuCtxSynchronize",
        "cuEventQuery",        "cuEventSynchronize",  "cuMemHostUnregister",
        "cuStreamQuery",       "cuStreamSynchronize", "cuIpcOpenMemHandle",
        "cuIpcCloseMemHandle", "cuStreamDestroy",     "cuStreamCreateWithPriority"};
    bool is_barred = false, is_unsafe = false;
    for (size_t i = 0; i < sizeof unsafe / sizeof unsafe[0]; i++) {
        is_unsafe = is_unsafe || strcmp(unsafe[i], name) == 0;
    }
    if (!is_unsafe || mode_here == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < MOST_CAPTURES; i++) {
        is_barred = (active[i] != NULL && bars(active[i])) || is_barred;
    }
    pthread_mutex_unlock(&lock);
    return is_barred ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult standin_check_asked(struct CUstream_st *stream)
{
    pthread_mutex_lock(&lock);
    struct capture *one = stream->capture;
    if (one != NULL) {
        one->is_invalid = true;
    }
    pthread_mutex_unlock(&lock);
    return one != NULL ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult standin_check_legacy(int device, bool is_question)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < MOST_CAPTURES; i++) {
        struct capture *one = active[i];
        for (size_t m = 0; one != NULL && m < one->n_members; m++) {
            if (one->members[m]->device == device &&
                (one->members[m]->flags & CU_STREAM_NON_BLOCKING) == 0) {
                one->is_invalid = one->is_invalid || !is_question;
                result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
            }
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    ENTER(cuThreadExchangeStreamCaptureMode, false);
    if (mode == NULL || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUstreamCaptureMode old = mode_here;
    mode_here = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

/*
 * Capture
 */

static void set_free(struct CUgraph_st *graph)
{
    for (size_t i = 0; i < graph->n; i++) {
        free(graph->nodes[i].what.argument);
    }
    for (size_t i = 0; i < graph->n_owned; i++) {
        CUuserObject one = graph->owned[i];
        pthread_mutex_lock(&lock);
        bool is_last = --one->n == 0;
        pthread_mutex_unlock(&lock);
        if (is_last) {
            standin_in_host_function = true; /* as little is allowed there */
            one->destroy(one->context);
            standin_in_host_function = false;
            free(one);
        }
    }
    free(graph);
}

/* Under the lock. */
static void become_member(struct capture *one, struct CUstream_st *stream)
{
    if (stream->capture == NULL && one->n_members < MOST_MEMBERS) {
        one->members[one->n_members++] = stream;
        stream->capture = one;
        stream->tail = (node_set){{0}};
    }
}

CUresult CUDAAPI cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode)
{
    static uint64_t n_begun;
    ENTER(cuStreamBeginCapture, true);
    struct CUstream_st *stream = (uintptr_t)handle <= 1 ? NULL : standin_stream(handle);
    if (stream == NULL || (unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return stream == NULL ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_ERROR_INVALID_VALUE;
    }
    struct capture *fresh = calloc(1, sizeof *fresh);
    struct CUgraph_st *graph = calloc(1, sizeof *graph);
    size_t at = 0;
    pthread_mutex_lock(&lock);
    while (at < MOST_CAPTURES && active[at] != NULL) {
        at++;
    }
    bool is_good = stream->capture == NULL && fresh != NULL && graph != NULL && at < MOST_CAPTURES;
    if (is_good) {
        *fresh = (struct capture){
            .mode = mode, .thread = pthread_self(), .number = ++n_begun, .graph = graph};
        become_member(fresh, stream);
        active[at] = fresh;
    }
    pthread_mutex_unlock(&lock);
    if (!is_good) {
        free(fresh);
        free(graph);
    }
    return is_good ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

static CUstreamCaptureStatus status_of(const struct CUstream_st *stream)
{
    return stream->capture == NULL       ? CU_STREAM_CAPTURE_STATUS_NONE
           : stream->capture->is_invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                         : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *place)
{
    return cuStreamGetCaptureInfo(handle, place, NULL, NULL, NULL, NULL, NULL);
}

/* Nodes and their edges are nobody's business here. */
CUresult CUDAAPI cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *place,
                                        cuuint64_t *number, CUgraph *graph,
                                        const CUgraphNode **nodes, const CUgraphEdgeData **edges,
                                        size_t *n_nodes)
{
    ENTER(cuStreamGetCaptureInfo, true);
    const struct CUstream_st *stream = standin_stream(handle);
    if (stream == NULL || place == NULL || nodes != NULL || edges != NULL || n_nodes != NULL) {
        return stream == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result =
        (uintptr_t)handle <= 1 ? standin_check_legacy(stream->device, true) : CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    *place = status_of(stream);
    if (*place == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        if (number != NULL) {
            *number = stream->capture->number;
        }
        if (graph != NULL) {
            *graph = stream->capture->graph;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* What no other node comes behind must be where the capture was begun. */
static bool is_joined(const struct capture *one)
{
    node_set followed = one->members[0]->tail;
    for (size_t i = 0; i < one->graph->n; i++) {
        join_sets(&followed, &one->graph->nodes[i].before);
    }
    for (size_t i = 0; i < one->graph->n; i++) {
        if (!has(&followed, i)) {
            return false;
        }
    }
    return true;
}

/* Under the lock. */
static CUresult end_of(const struct CUstream_st *stream)
{
    const struct capture *one = stream->capture;
    if (one == NULL) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    if (one->members[0] != stream) {
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (one->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
        !pthread_equal(one->thread, pthread_self())) {
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    if (one->is_invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    return is_joined(one) ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
}

CUresult CUDAAPI cuStreamEndCapture(CUstream handle, CUgraph *place)
{
    ENTER(cuStreamEndCapture, true);
    struct CUstream_st *stream = standin_stream(handle);
    struct capture *gone = NULL;
    if (stream == NULL || place == NULL) {
        return stream == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    *place = NULL;
    pthread_mutex_lock(&lock);
    CUresult result = end_of(stream);
    bool stays = result == CUDA_ERROR_ILLEGAL_STATE ||
                 result == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED ||
                 result == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    for (size_t i = 0; !stays && i < MOST_CAPTURES; i++) {
        if (active[i] == stream->capture) {
            gone = active[i];
            active[i] = NULL;
        }
    }
    for (size_t m = 0; gone != NULL && m < gone->n_members; m++) {
        gone->members[m]->capture = NULL;
    }
    pthread_mutex_unlock(&lock);
    if (gone != NULL && result == CUDA_SUCCESS) {
        *place = gone->graph;
    } else if (gone != NULL) {
        set_free(gone->graph);
    }
    free(gone);
    return result;
}

/* Under the lock. An event that a capture recorded takes its waiters into that capture. */
static CUresult wait_for_event(struct CUstream_st *stream, const op *what)
{
    struct capture *its = NULL;
    for (size_t i = 0; i < MOST_CAPTURES; i++) {
        bool is_it = active[i] != NULL && active[i]->number == what->event->capture;
        its = is_it ? active[i] : its;
    }
    if (what->event->capture == 0 || its == NULL) {
        if (stream->capture != NULL) {
            stream->capture->is_invalid = true;
        }
        return stream->capture != NULL ? CUDA_ERROR_STREAM_CAPTURE_ISOLATION
                                       : CUDA_ERROR_CAPTURED_EVENT;
    }
    if (stream->capture != NULL && stream->capture != its) {
        stream->capture->is_invalid = its->is_invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    become_member(its, stream);
    join_sets(&stream->tail, &what->event->tail);
    return stream->capture == its ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Under the lock. */
static CUresult add_node(struct CUstream_st *stream, const op *what)
{
    struct CUgraph_st *graph = stream->capture->graph;
    if (graph->n == MOST_NODES) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    graph->nodes[graph->n] = (node){.what = *what, .before = stream->tail};
    stream->tail = (node_set){{0}};
    add(&stream->tail, graph->n++);
    return CUDA_SUCCESS;
}

CUresult standin_capture(struct CUstream_st *stream, const op *what, bool *is_captured_out)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    struct capture *one = stream->capture;
    bool is_drawn_in = what->kind == OP_AWAIT && what->event->capture != 0;
    *is_captured_out = one != NULL || is_drawn_in;
    if (one != NULL && one->is_invalid) {
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else if (*is_captured_out && what->kind == OP_AWAIT) {
        result = wait_for_event(stream, what);
    } else if (one != NULL && what->kind == OP_RECORD) {
        what->event->capture = one->number;
        what->event->tail = stream->tail;
    } else if (one != NULL) {
        result = add_node(stream, what);
    } else if (what->kind == OP_RECORD) {
        what->event->capture = 0;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/*
 * Graphs
 */

CUresult CUDAAPI cuUserObjectCreate(CUuserObject *place, void *context, CUhostFn destroy,
                                    unsigned n, unsigned flags)
{
    ENTER(cuUserObjectCreate, false);
    if (place == NULL || destroy == NULL || n == 0 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUuserObject fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *fresh = (struct CUuserObject_st){.n = n, .destroy = destroy, .context = context};
    *place = fresh;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuUserObjectRelease(CUuserObject one, unsigned n)
{
    ENTER(cuUserObjectRelease, false);
    struct CUgraph_st *holder = calloc(1, sizeof *holder);
    if (one == NULL || n != 1 || holder == NULL) {
        free(holder);
        return CUDA_ERROR_INVALID_VALUE;
    }
    holder->owned[holder->n_owned++] = one;
    set_free(holder);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphRetainUserObject(CUgraph graph, CUuserObject one, unsigned n,
                                         unsigned flags)
{
    ENTER(cuGraphRetainUserObject, false);
    if (graph == NULL || one == NULL || n != 1 || flags > CU_GRAPH_USER_OBJECT_MOVE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&lock);
    bool has_room = graph->n_owned < MOST_OBJECTS;
    if (has_room) {
        graph->owned[graph->n_owned++] = one;
        one->n += flags == 0;
    }
    pthread_mutex_unlock(&lock);
    return has_room ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static bool copy_argument(op *what)
{
    void *own = what->argument == NULL ? NULL : malloc(what->kernel->argument_bytes);
    if (own != NULL) {
        memcpy(own, what->argument, what->kernel->argument_bytes);
    }
    bool is_good = own != NULL || what->argument == NULL;
    what->argument = own;
    return is_good;
}

CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *place, CUgraph graph, unsigned long long flags)
{
    ENTER(cuGraphInstantiate, true);
    if (place == NULL || graph == NULL || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphExec fresh = calloc(1, sizeof *fresh);
    struct CUgraph_st *own = malloc(sizeof *own);
    CUevent over = NULL;
    if (fresh == NULL || own == NULL || cuEventCreate(&over, 0) != CUDA_SUCCESS) {
        free(own);
        free(fresh);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *own = *graph;
    bool is_good = true;
    for (size_t i = 0; i < own->n; i++) {
        is_good = copy_argument(&own->nodes[i].what) && is_good;
    }
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < own->n_owned; i++) {
        own->owned[i]->n++;
    }
    pthread_mutex_unlock(&lock);
    *fresh = (struct CUgraphExec_st){.graph = own, .over = over};
    if (!is_good) {
        (void)cuGraphExecDestroy(fresh);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *place = fresh;
    return CUDA_SUCCESS;
}

/* One that may come now, of those that did not yet. */
static size_t draw(const struct CUgraph_st *graph, const node_set *done)
{
    size_t ready[MOST_NODES], n = 0;
    for (size_t i = 0; i < graph->n; i++) {
        node_set both = *done;
        join_sets(&both, &graph->nodes[i].before);
        if (!has(done, i) && memcmp(&both, done, sizeof both) == 0) {
            ready[n++] = i;
        }
    }
    return ready[standin_random(n)];
}

/* A launch is one piece of work; those of one graph come one after the other, on any streams. */
CUresult CUDAAPI cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
    ENTER(cuGraphLaunch, true);
    struct CUstream_st *stream = standin_stream(handle);
    if (exec == NULL || stream == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (stream->capture != NULL) { /* a graph within a graph: not here */
        return standin_check_asked(stream);
    }
    standin_hold(stream, true);
    CUresult result = cuStreamWaitEvent(handle, exec->over, 0);
    node_set done = {{0}};
    for (size_t i = 0; i < exec->graph->n && result == CUDA_SUCCESS; i++) {
        size_t next = draw(exec->graph, &done);
        op what = exec->graph->nodes[next].what;
        add(&done, next);
        result = copy_argument(&what) ? standin_push(handle, &what) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = result == CUDA_SUCCESS ? cuEventRecord(exec->over, handle) : result;
    standin_hold(stream, false);
    return result;
}

/* What was launched goes on to its end; what the graph owns goes then. */
static void *free_later(void *context)
{
    struct CUgraphExec_st *exec = context;
    const struct timespec moment = {.tv_nsec = POLL_NS};
    while (exec->over->n_done < exec->over->n_recorded && !standin_lost[exec->over->device]) {
        nanosleep(&moment, NULL);
    }
    set_free(exec->graph);
    free(exec); /* the event stays for who has just set it */
    return NULL;
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec exec)
{
    ENTER(cuGraphExecDestroy, false);
    pthread_t thread;
    if (exec == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (pthread_create(&thread, NULL, free_later, exec) == 0) {
        pthread_detach(thread);
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphDestroy(CUgraph graph)
{
    ENTER(cuGraphDestroy, false);
    if (graph == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    set_free(graph);
    return CUDA_SUCCESS;
}
