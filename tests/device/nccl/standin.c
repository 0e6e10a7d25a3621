/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A libnccl.so.2 for machines without a device, on the stand-in for the CUDA driver. Ranks of a
 * communicator are threads or processes, which meet in a file in memory: a collective is work on a
 * stream that waits there for that of all others, until its communicator is aborted. It is as
 * strict as NCCL, or stricter where that says nothing: a communicator that is used while something
 * of it is in progress, after its end, or by a blocking configuration ends the process; ranks that
 * make different calls never get to an end; two ranks on one device are refused. A call may be in
 * progress for a while before its work is on the stream.
 *
 * Variables: STANDIN_NCCL_VERSION, "22803"; STANDIN_NCCL_SHARED: ranks may share a device;
 * STANDIN_NCCL_FAIL, "ncclAllReduce:3": that call of it fails; STANDIN_NCCL_KILL: rank 1 is killed
 * in that call; STANDIN_NCCL_LOSE, "5": the fifth collective of a process fails at its rank;
 * STANDIN_NCCL_HANG, "5": it never ends and says nothing; STANDIN_NCCL_LEAKS, a file: a line for
 * each communicator that is open when the process ends.
 */
#include "device/nccl/standin.h"

#include "device/standin/standin.h"

#include <cuda.h>

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST_RANKS = 32,
    SLOT_BYTES = 1 << 16,
    NAP_NS = 20000,
    DIED = 70,
    RUN = 64,
    NAPS_OF_LOSS = 500
};
static const unsigned MAGIC = 0xcafebeef;

typedef enum verb { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER } verb;
static const char *const verb_names[] = {"all-reduce", "all-gather", "reduce-scatter"};

/* What ranks see of one of them. */
typedef struct seat {
    _Atomic int has_come, is_final;
    _Atomic uint64_t n_reached; /* barriers */
    CUuuid device;
    verb what; /* of the collective at hand, as what follows */
    int type;
    size_t n;
} seat;

typedef struct meeting {
    _Atomic int verdict; /* a result for all ranks */
    seat seats[MOST_RANKS];
} meeting;

struct ncclComm {
    struct ncclComm *next;
    int rank, n_ranks, device;
    ncclUniqueId id;
    meeting *meeting;
    char *slots;
    uint64_t n_barriers; /* of the work, one after the other */
    _Atomic int state;   /* an ncclResult_t */
    _Atomic int is_aborted, n_under_way;
    bool is_final, is_closed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the list */
static struct ncclComm *comms;
static _Atomic uint64_t n_collectives;

static void nap(void)
{
    const struct timespec moment = {.tv_nsec = NAP_NS};
    nanosleep(&moment, NULL);
}

__attribute__((noreturn, format(printf, 2, 3))) static void die(const struct ncclComm *comm,
                                                                const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "stand-in for libnccl.so.2: rank %d: ", comm == NULL ? -1 : comm->rank);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    _exit(DIED);
}

/* "name:number": whether it is this call; counters are by variable, since each names one call. */
static bool is_now(const char *variable, const char *name, _Atomic uint64_t *n_calls)
{
    const char *text = getenv(variable);
    size_t length = strlen(name);
    return text != NULL && strncmp(text, name, length) == 0 && text[length] == ':' &&
           ++*n_calls == strtoull(text + length + 1, NULL, 10);
}

/* What every call begins with. */
static int enter(const char *name)
{
    static _Atomic uint64_t n_fail, n_kill;
    const char *rank = getenv("RANK");
    if (rank != NULL && strcmp(rank, "1") == 0 && is_now("STANDIN_NCCL_KILL", name, &n_kill)) {
        (void)raise(SIGKILL);
    }
    return is_now("STANDIN_NCCL_FAIL", name, &n_fail) ? ncclSystemError : ncclSuccess;
}

static void use(const struct ncclComm *comm, const char *name)
{
    pthread_mutex_lock(&lock);
    const struct ncclComm *one = comms;
    while (one != NULL && one != comm) {
        one = one->next;
    }
    pthread_mutex_unlock(&lock);
    if (one == NULL || one->is_closed) {
        die(one, "%s of %s", name, one == NULL ? "no communicator" : "one that is closed");
    }
}

/* With the last that was under way the file goes, where nobody uses it any more. */
static void leave(struct ncclComm *comm)
{
    if (atomic_fetch_sub(&comm->n_under_way, 1) == 1 && comm->is_aborted) {
        munmap(comm->meeting, sizeof(meeting) + (size_t)MOST_RANKS * SLOT_BYTES);
    }
}

/* What goes on when a call has returned. */
static void begin_thread(struct ncclComm *comm, void *(*run)(void *), void *context)
{
    sigset_t all, old;
    pthread_t thread;
    atomic_fetch_add(&comm->n_under_way, 1);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    if (pthread_create(&thread, NULL, run, context) != 0) {
        die(comm, "no thread");
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_detach(thread);
}

/*
 * Versions, ids and words
 */

int ncclGetVersion(int *version)
{
    const char *text = getenv("STANDIN_NCCL_VERSION");
    *version = text == NULL ? 22803 : atoi(text);
    return enter("ncclGetVersion");
}

int ncclGetUniqueId(ncclUniqueId *id)
{
    int result = enter("ncclGetUniqueId");
    int file = memfd_create("standin-nccl", MFD_CLOEXEC);
    if (result != ncclSuccess || file < 0 ||
        ftruncate(file, (off_t)(sizeof(meeting) + (size_t)MOST_RANKS * SLOT_BYTES)) != 0) {
        return ncclSystemError;
    }
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/proc/%d/fd/%d", (int)getpid(), file);
    return ncclSuccess;
}

/* The file is known to all that need it, or nobody needs it: of its maker. */
static void drop_id(const ncclUniqueId *id)
{
    int pid = 0, file = -1;
    if (sscanf(id->internal, "/proc/%d/fd/%d", &pid, &file) == 2 && pid == (int)getpid()) {
        close(file);
    }
}

const char *ncclGetErrorString(int result)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "in progress"};
    return result >= 0 && result <= ncclInProgress ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    return comm != NULL && atomic_load(&comm->state) == ncclInvalidUsage ? "Duplicate GPU detected"
                                                                         : "";
}

/*
 * The start
 */

static bool is_duplicate(const struct ncclComm *comm)
{
    for (int i = 0; i < comm->n_ranks; i++) {
        for (int k = 0; k < i; k++) {
            if (memcmp(&comm->meeting->seats[i].device, &comm->meeting->seats[k].device,
                       sizeof(CUuuid)) == 0) {
                return getenv("STANDIN_NCCL_SHARED") == NULL;
            }
        }
    }
    return false;
}

static bool map_meeting(struct ncclComm *comm)
{
    size_t bytes = sizeof(meeting) + (size_t)MOST_RANKS * SLOT_BYTES;
    int file = open(comm->id.internal, O_RDWR | O_CLOEXEC);
    void *all =
        file < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0) {
        close(file);
    }
    if (all == MAP_FAILED) {
        return false;
    }
    comm->meeting = all;
    comm->slots = (char *)all + sizeof(meeting);
    return true;
}

/* All seats where this is not 0, or the communicator is aborted: whether it was not. */
static bool await_all(const struct ncclComm *comm, size_t place)
{
    for (int i = 0; i < comm->n_ranks && !comm->is_aborted; i++) {
        const _Atomic int *word =
            (const _Atomic int *)(const void *)((const char *)&comm->meeting->seats[i] + place);
        while (*word == 0 && !comm->is_aborted) {
            nap();
        }
    }
    return !comm->is_aborted;
}

static void *start(void *context)
{
    struct ncclComm *comm = context;
    atomic_store(&comm->meeting->seats[comm->rank].has_come, 1);
    if (await_all(comm, offsetof(seat, has_come))) {
        atomic_store(&comm->state, is_duplicate(comm) ? ncclInvalidUsage : ncclSuccess);
    }
    if (comm->rank == 0) {
        drop_id(&comm->id);
    }
    leave(comm);
    return NULL;
}

static bool is_right(int n_ranks, int rank, const ncclConfig_t *config)
{
    return config != NULL && config->size >= 24 && config->magic == MAGIC &&
           config->version >= 21400 && config->version <= 23203 && n_ranks >= 1 &&
           n_ranks <= MOST_RANKS && rank >= 0 && rank < n_ranks;
}

int ncclCommInitRankConfig(ncclComm_t *place, int n_ranks, ncclUniqueId id, int rank,
                           const ncclConfig_t *config)
{
    int result = enter("ncclCommInitRankConfig");
    CUcontext context = NULL;
    *place = NULL;
    if (result != ncclSuccess || !is_right(n_ranks, rank, config) ||
        cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == NULL) {
        return result != ncclSuccess ? result : ncclInvalidArgument;
    }
    if (config->blocking != 0) {
        die(NULL, "a configuration by which calls may block");
    }
    struct ncclComm *comm = calloc(1, sizeof *comm);
    if (comm == NULL) {
        return ncclSystemError;
    }
    comm->rank = rank;
    comm->n_ranks = n_ranks;
    comm->device = standin_current()->device;
    comm->id = id;
    comm->state = ncclInProgress;
    if (!map_meeting(comm) ||
        cuDeviceGetUuid(&comm->meeting->seats[rank].device, comm->device) != CUDA_SUCCESS) {
        free(comm);
        return ncclSystemError;
    }
    pthread_mutex_lock(&lock);
    comm->next = comms;
    comms = comm;
    pthread_mutex_unlock(&lock);
    *place = comm;
    begin_thread(comm, start, comm);
    return ncclInProgress;
}

int ncclCommGetAsyncError(ncclComm_t comm, int *result)
{
    use(comm, "ncclCommGetAsyncError");
    *result = atomic_load(&comm->state);
    return enter("ncclCommGetAsyncError");
}

/*
 * The end
 */

/* What is under way ends by itself; the memory of the communicator stays, for who comes late. */
int ncclCommAbort(ncclComm_t comm)
{
    use(comm, "ncclCommAbort");
    atomic_fetch_add(&comm->n_under_way, 1);
    atomic_store(&comm->is_aborted, 1);
    comm->is_closed = true;
    leave(comm);
    return enter("ncclCommAbort");
}

static void *finalize(void *context)
{
    struct ncclComm *comm = context;
    while (atomic_load(&comm->n_under_way) > 1 && !comm->is_aborted) {
        nap();
    }
    atomic_store(&comm->meeting->seats[comm->rank].is_final, 1);
    if (await_all(comm, offsetof(seat, is_final))) {
        atomic_store(&comm->state, ncclSuccess);
    }
    leave(comm);
    return NULL;
}

int ncclCommFinalize(ncclComm_t comm)
{
    use(comm, "ncclCommFinalize");
    int result = enter("ncclCommFinalize");
    if (result != ncclSuccess || atomic_load(&comm->state) != ncclSuccess) {
        return result != ncclSuccess ? result : ncclInvalidUsage;
    }
    comm->is_final = true;
    atomic_store(&comm->state, ncclInProgress);
    begin_thread(comm, finalize, comm);
    return ncclInProgress;
}

int ncclCommDestroy(ncclComm_t comm)
{
    use(comm, "ncclCommDestroy");
    if (!comm->is_final || atomic_load(&comm->state) != ncclSuccess) {
        die(comm, "ncclCommDestroy, which would block");
    }
    comm->is_closed = true;
    while (atomic_load(&comm->n_under_way) > 0) {
        nap();
    }
    munmap(comm->meeting, sizeof(meeting) + (size_t)MOST_RANKS * SLOT_BYTES);
    return enter("ncclCommDestroy");
}

__attribute__((destructor)) static void say_leaks(void)
{
    const char *path = getenv("STANDIN_NCCL_LEAKS");
    FILE *file = path == NULL ? NULL : fopen(path, "a");
    for (const struct ncclComm *one = comms; file != NULL && one != NULL; one = one->next) {
        if (!one->is_closed) {
            fprintf(file, "rank %d of %d\n", one->rank, one->n_ranks);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
}

/*
 * Numbers: narrow ones by scaling, and not by moving bits
 */

static size_t bytes_of(int type)
{
    return type == ncclFloat32 ? 4 : 2;
}

static float widen(int type, const void *at)
{
    int mantissa = type == ncclFloat16 ? 10 : 7, bias = type == ncclFloat16 ? 15 : 127;
    int exponents = type == ncclFloat16 ? 31 : 255;
    uint16_t bits;
    float number;
    if (type == ncclFloat32) {
        memcpy(&number, at, sizeof number);
        return number;
    }
    memcpy(&bits, at, sizeof bits);
    int exponent = bits >> mantissa & exponents, fraction = bits & ((1 << mantissa) - 1);
    if (exponent == exponents) {
        number = fraction != 0 ? NAN : INFINITY;
    } else {
        double whole = exponent == 0 ? fraction : fraction + (1 << mantissa);
        number = (float)ldexp(whole, (exponent == 0 ? 1 : exponent) - bias - mantissa);
    }
    return (bits & 0x8000) != 0 ? -number : number;
}

/* To the nearest, of two that are as near the even one. */
static void narrow(int type, float number, void *at)
{
    int mantissa = type == ncclFloat16 ? 10 : 7, bias = type == ncclFloat16 ? 15 : 127;
    int exponents = type == ncclFloat16 ? 31 : 255, exponent = 0;
    uint32_t sign = signbit(number) ? 0x8000 : 0, bits;
    uint32_t infinity = (uint32_t)exponents << mantissa;
    if (type == ncclFloat32) {
        memcpy(at, &number, sizeof number);
        return;
    }
    if (isnan(number)) {
        bits = infinity | 1u << (mantissa - 1);
    } else if (isinf(number)) {
        bits = infinity;
    } else {
        (void)frexp(number, &exponent);
        exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
        double places = nearbyint(ldexp(fabs((double)number), mantissa - exponent));
        bits = ((uint32_t)(exponent + bias - 1) << mantissa) + (uint32_t)places;
        bits = number == 0 ? 0 : bits > infinity ? infinity : bits;
    }
    uint16_t half = (uint16_t)(sign | bits);
    memcpy(at, &half, sizeof half);
}

/*
 * Collectives
 */

typedef struct work {
    struct ncclComm *comm;
    CUstream stream;
    verb what;
    int type;
    uint64_t in, out;
    size_t n; /* elements of the smaller of input and output */
    uint64_t number;
    int reduces;
} work;

static bool is_over(const struct ncclComm *comm)
{
    return comm->is_aborted || standin_lost[comm->device] != 0;
}

/* False: the communicator is aborted, or its device lost. */
static bool meet(struct ncclComm *comm)
{
    uint64_t number = ++comm->n_barriers;
    atomic_store(&comm->meeting->seats[comm->rank].n_reached, number);
    for (int i = 0; i < comm->n_ranks; i++) {
        while (atomic_load(&comm->meeting->seats[i].n_reached) < number && !is_over(comm)) {
            nap();
        }
    }
    return !is_over(comm);
}

static void stay(const struct ncclComm *comm)
{
    while (!is_over(comm)) {
        nap();
    }
}

/* Element i of a slot of all ranks: a ring that begins and turns by where the element lies. */
static void add(const struct ncclComm *comm, int type, size_t i, size_t whole, void *to)
{
    size_t run = whole / RUN;
    int n = comm->n_ranks, at = (int)(run % (size_t)n);
    bool goes_up = run / (size_t)n % 2 == 0;
    char partial[4];
    memcpy(partial, comm->slots + (size_t)at * SLOT_BYTES + i * bytes_of(type), bytes_of(type));
    for (int k = 1; k < n; k++) {
        at = goes_up ? (at + 1) % n : (at + n - 1) % n;
        float sum = widen(type, partial) +
                    widen(type, comm->slots + (size_t)at * SLOT_BYTES + i * bytes_of(type));
        narrow(type, sum, partial);
    }
    memcpy(to, partial, bytes_of(type));
}

/* What a rank makes of elements [first, first + n) of all inputs. */
static void finish_part(const work *w, char *out, size_t first, size_t n)
{
    const struct ncclComm *comm = w->comm;
    size_t bytes = bytes_of(w->type), own = (size_t)comm->rank * w->n;
    for (int i = 0; i < comm->n_ranks && w->what == ALL_GATHER; i++) {
        memcpy(out + ((size_t)i * w->n + first) * bytes, comm->slots + (size_t)i * SLOT_BYTES,
               n * bytes);
    }
    for (size_t i = 0; i < n && w->what != ALL_GATHER; i++) {
        size_t whole = first + i;
        if (w->what == ALL_REDUCE) {
            add(comm, w->type, i, whole, out + whole * bytes);
        } else if (whole >= own && whole < own + w->n) {
            add(comm, w->type, i, whole, out + (whole - own) * bytes);
        }
    }
}

static bool agrees(const work *w)
{
    for (int i = 0; i < w->comm->n_ranks; i++) {
        const seat *its = &w->comm->meeting->seats[i];
        if (its->what != w->what || its->type != w->type || its->n != w->n) {
            fprintf(stderr,
                    "stand-in for libnccl.so.2: rank %d is in %s of %zu of type %d, and rank %d in "
                    "%s of %zu of type %d\n",
                    w->comm->rank, verb_names[w->what], w->n, w->type, i, verb_names[its->what],
                    its->n, its->type);
            return false;
        }
    }
    return true;
}

static size_t elements_in(const work *w)
{
    return w->what == REDUCE_SCATTER ? w->n * (size_t)w->comm->n_ranks : w->n;
}

static size_t elements_out(const work *w)
{
    return w->what == ALL_GATHER ? w->n * (size_t)w->comm->n_ranks : w->n;
}

static void move(const work *w)
{
    struct ncclComm *comm = w->comm;
    size_t bytes = bytes_of(w->type), n = elements_in(w), room = SLOT_BYTES / bytes;
    const char *in = standin_reach(comm->device, w->in, n * bytes);
    char *out = standin_reach(comm->device, w->out, elements_out(w) * bytes);
    if (in == NULL || out == NULL) {
        fprintf(stderr, "stand-in for libnccl.so.2: rank %d: an illegal address\n", comm->rank);
        atomic_store(&standin_lost[comm->device], (int)CUDA_ERROR_ILLEGAL_ADDRESS);
        return;
    }
    for (size_t first = 0; first < n; first += room) {
        size_t part = n - first < room ? n - first : room;
        memcpy(comm->slots + (size_t)comm->rank * SLOT_BYTES, in + first * bytes, part * bytes);
        if (!meet(comm)) {
            return;
        }
        finish_part(w, out, first, part);
        if (!meet(comm)) {
            return;
        }
    }
}

static bool is_the(const char *variable, uint64_t number)
{
    const char *text = getenv(variable);
    return text != NULL && strtoull(text, NULL, 10) == number;
}

static void CUDA_CB perform(void *context)
{
    work *w = context;
    struct ncclComm *comm = w->comm;
    seat *own = &comm->meeting->seats[comm->rank];
    if (is_the("STANDIN_NCCL_LOSE", w->number)) {
        for (int i = 0; i < NAPS_OF_LOSS;
             i++) { /* nobody asks about the call's beginning any more */
            nap();
        }
        atomic_store(&comm->state, ncclRemoteError);
        stay(comm);
    } else if (is_the("STANDIN_NCCL_HANG", w->number)) {
        stay(comm);
    } else {
        own->what = w->what;
        own->type = w->type;
        own->n = w->n;
        if (meet(comm) && !agrees(w)) {
            stay(comm);
        } else if (!is_over(comm) && meet(comm)) {
            move(w);
        }
    }
    free(w);
    leave(comm);
}

/* Counted as under way by who calls. */
static void push(work *w)
{
    op what = {.kind = OP_WORK, .function = perform, .context = w};
    if (standin_push(w->stream, &what) != CUDA_SUCCESS) {
        die(w->comm, "a stream of no device");
    }
}

static void *push_late(void *context)
{
    work *w = context;
    struct ncclComm *comm = w->comm;
    for (uint64_t n = standin_random(20); n > 0; n--) {
        nap();
    }
    push(w);
    atomic_store(&comm->state, ncclSuccess);
    return NULL;
}

static bool is_there(const work *w)
{
    block one;
    size_t bytes = bytes_of(w->type);
    bool known = standin_find((void *)(uintptr_t)w->in, elements_in(w) * bytes, &one) &&
                 one.device == w->comm->device && one.kind != BLOCK_PINNED;
    return known && standin_find((void *)(uintptr_t)w->out, elements_out(w) * bytes, &one) &&
           one.device == w->comm->device;
}

/* In place is where the smaller tensor is this rank's part of the other: else they lie apart. */
static bool is_apart(const work *w)
{
    size_t in = elements_in(w) * bytes_of(w->type), out = elements_out(w) * bytes_of(w->type);
    uint64_t skip = (uint64_t)w->comm->rank * w->n * bytes_of(w->type);
    bool in_place = w->what == ALL_GATHER       ? w->in == w->out + skip
                    : w->what == REDUCE_SCATTER ? w->out == w->in + skip
                                                : w->in == w->out;
    return in_place || w->in + in <= w->out || w->out + out <= w->in;
}

static int begin(const char *name, const work *what)
{
    struct ncclComm *comm = what->comm;
    use(comm, name);
    int result = enter(name);
    if (atomic_load(&comm->state) == ncclInProgress || comm->is_final) {
        die(comm, "%s while another call is in progress, or behind ncclCommFinalize", name);
    }
    if (result != ncclSuccess || atomic_load(&comm->state) != ncclSuccess) {
        return result != ncclSuccess ? result : ncclInvalidUsage;
    }
    const struct CUstream_st *stream = standin_stream(what->stream);
    if (stream == NULL || stream->device != comm->device || what->n == 0 || !is_there(what) ||
        !is_apart(what) ||
        (what->type != ncclFloat16 && what->type != ncclFloat32 && what->type != ncclBfloat16) ||
        (what->reduces != 0 && what->reduces != ncclSum)) {
        return ncclInvalidArgument;
    }
    work *w = malloc(sizeof *w);
    if (w == NULL) {
        return ncclSystemError;
    }
    *w = *what;
    w->number = atomic_fetch_add(&n_collectives, 1) + 1;
    if (standin_random(3) == 0) {
        atomic_store(&comm->state, ncclInProgress);
        begin_thread(comm, push_late, w);
        return ncclInProgress;
    }
    atomic_fetch_add(&comm->n_under_way, 1);
    push(w);
    return ncclSuccess;
}

int ncclAllReduce(const void *in, void *out, size_t n, int type, int operation, ncclComm_t comm,
                  void *stream)
{
    const work w = {comm, stream, ALL_REDUCE, type, (uintptr_t)in, (uintptr_t)out, n, 0, operation};
    return begin("ncclAllReduce", &w);
}

int ncclAllGather(const void *in, void *out, size_t n, int type, ncclComm_t comm, void *stream)
{
    const work w = {comm, stream, ALL_GATHER, type, (uintptr_t)in, (uintptr_t)out, n, 0, 0};
    return begin("ncclAllGather", &w);
}

int ncclReduceScatter(const void *in, void *out, size_t n, int type, int operation, ncclComm_t comm,
                      void *stream)
{
    const work w = {comm, stream, REDUCE_SCATTER, type, (uintptr_t)in, (uintptr_t)out,
                    n,    0,      operation};
    return begin("ncclReduceScatter", &w);
}
