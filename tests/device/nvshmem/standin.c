/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A libnvshmem_host.so.3 for machines without a device, beside the stand-in for the CUDA driver.
 * PEs are processes of one machine, whose parts of the heap lie in one file in memory. It is as
 * strict as NVSHMEM is where that ends the process: PEs that ask for different lengths, places that
 * are not in the heap, sources that a network does not know, PEs that do not exist, two threads at
 * a time, calls before the start and after the end. What is put at a PE of another node comes late
 * and in any order until a quiet.
 *
 * A heap of devices is memory of the stand-in for the driver, that nobody may touch; PEs of a node
 * have each other's by its handles, where devices reach each other. What a quiet has brought there
 * is seen some time later, or once the driver was told to look.
 *
 * Variables: STANDIN_NODE, how many PEs a node has (all); STANDIN_START=fails or =hangs: what
 * becomes of the start on the last PE; STANDIN_LOSES, "3": from that call on what is put at other
 * nodes never gets there, and a quiet waits for it for ever; STANDIN_SLOW, for how many moments of
 * 50 us a quiet does nothing first; NVSHMEM_SYMMETRIC_SIZE in bytes, or with K or M;
 * NVSHMEM_HEAP_KIND.
 */
#include "device/nvshmem/standin.h"
#include "device/standin/standin.h"

#include <cuda.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MOST_PES = 64, HEAD_BYTES = 1 << 16, NAP_NS = 50000, BY_ID = 8, SET = 9, ADD = 10 };

/* The beginning of the file. */
typedef struct head {
    _Atomic int n_there;  /* PEs that have come */
    _Atomic int n_ready;  /* of a barrier */
    _Atomic int n_passed; /* barriers */
    _Atomic size_t asked[MOST_PES];
    CUipcMemHandle handles[MOST_PES];       /* of a heap of devices */
    _Atomic int unseen[MOST_PES][MOST_PES]; /* puts that are in place, from and to, and not seen */
    _Atomic int looks[MOST_PES];            /* so often a PE's driver was told to look */
} head;

/* What is put at another node, until it is there. */
typedef struct late {
    struct late *next;
    int pe;
    char *to;
    size_t bytes;
    char copy[];
} late;

/* What was put without waiting, before its source is read. */
typedef struct pending {
    struct pending *next;
    int pe;
    char *to;
    const char *from;
    size_t bytes;
} pending;

static struct {
    bool is_there, has_ended;
    pid_t pid;
    int pe, n_pes, per_node;
    head *head;
    char *all;               /* of the file, as nobody else sees it */
    char *windows[MOST_PES]; /* as this process sees the parts of its node */
    bool is_of_devices;
    char *parts[MOST_PES]; /* then where all parts are; nobody else sees that */
    size_t bytes, used;    /* of each part */
} job;

static _Atomic int n_inside;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what is late */
static pending *unread;
static late *waiting;
static late *in_place, **in_place_end = &in_place; /* in that order, and not seen yet */
static uint64_t n_calls;

static void nap(void)
{
    const struct timespec moment = {.tv_nsec = NAP_NS};
    nanosleep(&moment, NULL);
}

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "stand-in for libnvshmem_host.so.3: PE %d: ", job.pe);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, ", exiting...\n");
    va_end(arguments);
    exit(-1);
}

static void enter(const char *name)
{
    if (!job.is_there || job.has_ended || job.pid != getpid()) {
        die("%s %s", name, job.has_ended ? "after the end" : "before the start");
    }
    if (atomic_fetch_add(&n_inside, 1) != 0) {
        die("%s while another thread is in a call", name);
    }
}

static void leave(void)
{
    atomic_fetch_sub(&n_inside, 1);
}

/*
 * The heap
 */

static char *part_of(int pe)
{
    return job.is_of_devices ? job.parts[pe] : job.all + HEAD_BYTES + (size_t)pe * job.bytes;
}

static bool is_near(int pe)
{
    return pe / job.per_node == job.pe / job.per_node;
}

static bool is_mapped(int pe)
{
    return is_near(pe) && job.windows[pe] != NULL;
}

static bool is_own(const void *at, size_t bytes)
{
    const char *first = at, *base = job.windows[job.pe];
    return first >= base && first < base + job.used && bytes <= (size_t)(base + job.used - first);
}

/* Where that is at pe; else the process ends. */
static char *find(const char *name, const void *symmetric, size_t bytes, int pe)
{
    if (pe < 0 || pe >= job.n_pes) {
        die("%s: there is no PE %d", name, pe);
    }
    if (!is_own(symmetric, bytes)) {
        die("%s: %zu bytes at %p do not lie in memory of the symmetric heap", name, bytes,
            symmetric);
    }
    return part_of(pe) + ((const char *)symmetric - job.windows[job.pe]);
}

/* What the network reads and writes here. */
static char *find_local(const char *name, const void *local, size_t bytes)
{
    if (!is_own(local, bytes)) {
        die("%s: the network does not know %zu bytes at %p of this PE", name, bytes, local);
    }
    return part_of(job.pe) + ((const char *)local - job.windows[job.pe]);
}

static void wait_for_all(void)
{
    int round = atomic_load(&job.head->n_passed);
    if (atomic_fetch_add(&job.head->n_ready, 1) == job.n_pes - 1) {
        atomic_store(&job.head->n_ready, 0);
        atomic_fetch_add(&job.head->n_passed, 1);
    }
    while (atomic_load(&job.head->n_passed) == round) {
        nap();
    }
}

/*
 * What is late
 */

static uint64_t draw(uint64_t n)
{
    static uint64_t state;
    state += 0x9e3779b97f4a7c15u + (uint64_t)job.pe;
    uint64_t x = (state ^ state >> 30) * 0xbf58476d1ce4e5b9u;
    return (x ^ x >> 27) % n;
}

/* A word arrives as a whole. */
static void arrive(late *one)
{
    if (one->bytes == sizeof(uint64_t) && (uintptr_t)one->to % sizeof(uint64_t) == 0) {
        uint64_t value;
        memcpy(&value, one->copy, sizeof value);
        atomic_store((_Atomic uint64_t *)(void *)one->to, value);
    } else {
        memcpy(one->to, one->copy, one->bytes);
    }
    free(one);
}

/* Under the lock. Into memory of a device: it is seen later. */
static void bring(late *one)
{
    if (!job.is_of_devices) {
        arrive(one);
        return;
    }
    one->next = NULL;
    *in_place_end = one;
    in_place_end = &one->next;
    atomic_fetch_add(&job.head->unseen[job.pe][one->pe], 1);
}

/* Under the lock. The oldest, at random, or all that a PE's driver was told to look for. */
static void show(void)
{
    static int looked[MOST_PES];
    bool asks = false;
    for (int pe = 0; pe < job.n_pes; pe++) {
        int looks = atomic_load(&job.head->looks[pe]);
        asks = asks || looks != looked[pe];
        looked[pe] = looks;
    }
    while (in_place != NULL && (asks || draw(64) == 0)) {
        late *one = in_place;
        int pe = one->pe;
        in_place = one->next;
        in_place_end = in_place == NULL ? &in_place : in_place_end;
        arrive(one);
        atomic_fetch_sub(&job.head->unseen[job.pe][pe], 1);
    }
}

/* The driver was told to look: a sender that is stopped, or gone, is not waited for. */
static void settle(void)
{
    enum { MOST_NAPS = 10000 };
    atomic_fetch_add(&job.head->looks[job.pe], 1);
    for (int pe = 0; pe < job.n_pes; pe++) {
        for (int n = 0; n < MOST_NAPS && atomic_load(&job.head->unseen[pe][job.pe]) > 0; n++) {
            nap();
        }
    }
}

/* One of them, any; false: there is none. */
static bool deliver_one(void)
{
    uint64_t n = 0;
    pthread_mutex_lock(&lock);
    for (late *one = waiting; one != NULL; one = one->next) {
        n++;
    }
    late **link = &waiting;
    for (uint64_t left = n == 0 ? 0 : draw(n); left > 0; left--) {
        link = &(*link)->next;
    }
    late *one = *link;
    if (one != NULL) {
        *link = one->next;
        bring(one); /* under the lock: who finds nothing late finds all in place */
    }
    pthread_mutex_unlock(&lock);
    return one != NULL;
}

static bool is_lost(void)
{
    const char *text = getenv("STANDIN_LOSES");
    return text != NULL && n_calls >= strtoull(text, NULL, 10);
}

/* Under the lock. */
static void add_late(int pe, char *to, const void *from, size_t bytes)
{
    late *one = malloc(sizeof *one + bytes);
    if (one == NULL) {
        die("no memory");
    }
    one->pe = pe;
    one->to = to;
    one->bytes = bytes;
    memcpy(one->copy, from, bytes);
    n_calls++;
    one->next = waiting;
    waiting = one;
}

static void send_late(int pe, char *to, const void *from, size_t bytes)
{
    pthread_mutex_lock(&lock);
    add_late(pe, to, from, bytes);
    pthread_mutex_unlock(&lock);
}

/* Reads the source of one that was put without waiting; false: there is none. */
static bool read_one(void)
{
    pthread_mutex_lock(&lock);
    pending *one = unread;
    if (one != NULL) {
        unread = one->next;
        if (is_mapped(one->pe)) {
            memcpy(one->to, one->from, one->bytes);
        } else {
            add_late(one->pe, one->to, one->from, one->bytes);
        }
    }
    pthread_mutex_unlock(&lock);
    free(one);
    return one != NULL;
}

static void *carry(void *context)
{
    unsigned turn = 0;
    for (;;) {
        nap();
        if (!is_lost()) {
            (void)(turn++ % 4 == 0 && read_one());
            (void)deliver_one();
        }
        pthread_mutex_lock(&lock);
        show();
        pthread_mutex_unlock(&lock);
    }
    return context;
}

/*
 * Starting and ending
 */

void nvshmemx_vendor_get_version_info(int *major, int *minor, int *patch)
{
    *major = 3;
    *minor = 0;
    *patch = 0;
}

int nvshmemx_init_status(void)
{
    return job.is_there && !job.has_ended ? 2 : 0;
}

int nvshmemx_get_uniqueid(standin_id *id)
{
    int file = memfd_create("standin-nvshmem", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, HEAD_BYTES) != 0 ||
        id->version != (1 << 16) + (int)sizeof *id) {
        return 7;
    }
    snprintf(id->internal, sizeof id->internal, "/proc/%d/fd/%d", (int)getpid(), file);
    return 0;
}

static size_t heap_bytes(void)
{
    const char *text = getenv("NVSHMEM_SYMMETRIC_SIZE");
    char *unit = NULL;
    size_t bytes = text == NULL ? (size_t)1 << 30 : strtoull(text, &unit, 10);
    bytes <<= unit == NULL ? 0 : (*unit | 0x20) == 'k' ? 10 : (*unit | 0x20) == 'm' ? 20 : 0;
    return (bytes + 4095) & ~(size_t)4095;
}

static bool open_windows(int file)
{
    for (int pe = 0; pe < job.n_pes; pe++) {
        if (is_near(pe)) {
            off_t at = (off_t)(HEAD_BYTES + (size_t)pe * job.bytes);
            job.windows[pe] = mmap(NULL, job.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, at);
            if (job.windows[pe] == MAP_FAILED) {
                return false;
            }
        }
    }
    return true;
}

/* Where the memory behind a device's address is. */
static char *bytes_of(CUdeviceptr at)
{
    block its;
    return standin_find((void *)(uintptr_t)at, 1, &its) ? its.memory + (at - (uintptr_t)its.base)
                                                        : NULL;
}

/* Of a PE's part, on whichever device here it lies on: a network reaches all. */
static bool find_part(int pe)
{
    CUdeviceptr at = 0;
    CUcontext context;
    int n = 0;
    cuDeviceGetCount(&n);
    for (int device = 0; device < n && job.parts[pe] == NULL; device++) {
        if (cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS &&
            cuCtxPushCurrent(context) == CUDA_SUCCESS) {
            if (cuIpcOpenMemHandle(&at, job.head->handles[pe],
                                   CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS) {
                job.parts[pe] = bytes_of(at);
            }
            cuCtxPopCurrent(&context);
        }
    }
    return job.parts[pe] != NULL;
}

/* What this PE adds to a heap of devices; the others do when all are there. */
static bool make_part(void)
{
    CUdeviceptr at = 0;
    if (cuMemAlloc(&at, job.bytes) != CUDA_SUCCESS ||
        cuIpcGetMemHandle(&job.head->handles[job.pe], at) != CUDA_SUCCESS) {
        return false;
    }
    job.windows[job.pe] = (char *)(uintptr_t)at;
    job.parts[job.pe] = bytes_of(at);
    standin_on_settle(settle);
    return true;
}

static void open_parts(void)
{
    CUdeviceptr at;
    for (int pe = 0; pe < job.n_pes; pe++) {
        if (pe != job.pe && is_near(pe) &&
            cuIpcOpenMemHandle(&at, job.head->handles[pe], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) ==
                CUDA_SUCCESS) {
            job.windows[pe] = (char *)(uintptr_t)at;
        }
        if (pe != job.pe && !find_part(pe)) {
            die("the heap of PE %d is nowhere", pe);
        }
    }
}

static bool open_job(const standin_attributes *attributes)
{
    const char *kind = getenv("NVSHMEM_HEAP_KIND");
    const char *node = getenv("STANDIN_NODE");
    int file = open(attributes->id->internal, O_RDWR | O_CLOEXEC);
    job.pid = getpid();
    job.pe = attributes->rank;
    job.n_pes = attributes->n_ranks;
    job.per_node = node == NULL ? job.n_pes : atoi(node);
    job.bytes = heap_bytes();
    job.is_of_devices = kind == NULL || strcasecmp(kind, "SYSMEM") != 0;
    size_t whole = HEAD_BYTES + (job.is_of_devices ? 0 : (size_t)job.n_pes * job.bytes);
    if (file < 0 || ftruncate(file, (off_t)whole) != 0) {
        return false;
    }
    job.all = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    job.head = (head *)(void *)job.all;
    bool good = job.all != MAP_FAILED && (job.is_of_devices ? make_part() : open_windows(file));
    close(file);
    return good;
}

static bool is_right(unsigned flags, const standin_attributes *attributes)
{
    return flags == BY_ID && attributes->version == (2 << 16) + (int)sizeof *attributes &&
           attributes->arguments_version == (2 << 16) + 128 &&
           attributes->id_version == (1 << 16) + 24 && attributes->id != NULL &&
           attributes->rank >= 0 && attributes->rank < attributes->n_ranks &&
           attributes->n_ranks <= MOST_PES;
}

int nvshmemx_hostlib_init_attr(unsigned flags, standin_attributes *attributes)
{
    const char *start = getenv("STANDIN_START");
    CUcontext context = NULL;
    pthread_t thread;
    bool is_last = attributes->rank == attributes->n_ranks - 1;
    if (job.is_there || !is_right(flags, attributes) || cuCtxGetCurrent(&context) != CUDA_SUCCESS ||
        context == NULL || (start != NULL && is_last && strcmp(start, "fails") == 0) ||
        !open_job(attributes)) {
        return 7;
    }
    while (start != NULL && is_last && strcmp(start, "hangs") == 0) {
        nap();
    }
    atomic_fetch_add(&job.head->n_there, 1);
    while (atomic_load(&job.head->n_there) < job.n_pes) {
        nap();
    }
    if (job.is_of_devices) {
        open_parts();
    }
    if (pthread_create(&thread, NULL, carry, NULL) != 0) {
        return 7;
    }
    pthread_detach(thread);
    job.is_there = true;
    return 0;
}

void nvshmemx_hostlib_finalize(void)
{
    enter("nvshmemx_hostlib_finalize");
    wait_for_all();
    job.has_ended = true;
    leave();
}

int nvshmem_my_pe(void)
{
    return job.pe;
}

int nvshmem_n_pes(void)
{
    return job.n_pes;
}

/*
 * Memory
 */

void *nvshmem_malloc(size_t bytes)
{
    enter("nvshmem_malloc");
    atomic_store(&job.head->asked[job.pe], bytes);
    wait_for_all();
    for (int pe = 0; pe < job.n_pes; pe++) {
        size_t its = atomic_load(&job.head->asked[pe]);
        if (its != bytes) {
            die("nvshmem_malloc of %zu bytes, and PE %d wants %zu", bytes, pe, its);
        }
    }
    wait_for_all();
    size_t whole = (bytes + 511) & ~(size_t)511;
    char *place = NULL;
    if (bytes > 0 && whole >= bytes && whole <= job.bytes - job.used) {
        place = job.windows[job.pe] + job.used;
        job.used += whole;
    }
    leave();
    return place;
}

void *nvshmem_ptr(const void *symmetric, int pe)
{
    enter("nvshmem_ptr");
    char *there = find("nvshmem_ptr", symmetric, 1, pe);
    leave();
    return is_mapped(pe) ? job.windows[pe] + (there - part_of(pe)) : NULL;
}

void nvshmem_putmem(void *to, const void *from, size_t bytes, int pe)
{
    enter("nvshmem_putmem");
    char *there = find("nvshmem_putmem", to, bytes, pe);
    if (is_mapped(pe)) {
        memcpy(there, is_own(from, bytes) ? find_local("nvshmem_putmem", from, bytes) : from,
               bytes);
    } else {
        send_late(pe, there, find_local("nvshmem_putmem", from, bytes), bytes);
    }
    leave();
}

/* The source is read some time before the next quiet has returned. */
void nvshmem_putmem_nbi(void *to, const void *from, size_t bytes, int pe)
{
    enter("nvshmem_putmem_nbi");
    char *there = find("nvshmem_putmem_nbi", to, bytes, pe);
    char *here = find_local("nvshmem_putmem_nbi", from, bytes);
    pthread_mutex_lock(&lock);
    pending *one = malloc(sizeof *one);
    if (one == NULL) {
        die("no memory");
    }
    *one = (pending){.pe = pe, .to = there, .from = here, .bytes = bytes, .next = unread};
    unread = one;
    pthread_mutex_unlock(&lock);
    leave();
}

void nvshmem_getmem(void *to, const void *from, size_t bytes, int pe)
{
    enter("nvshmem_getmem");
    char *there = find("nvshmem_getmem", from, bytes, pe);
    char *here = is_mapped(pe) ? to : find_local("nvshmem_getmem", to, bytes);
    memcpy(here, there, bytes);
    leave();
}

void nvshmem_uint64_p(uint64_t *to, const uint64_t value, int pe)
{
    enter("nvshmem_uint64_p");
    send_late(pe, find("nvshmem_uint64_p", to, sizeof value, pe), &value, sizeof value);
    leave();
}

void nvshmem_quiet(void)
{
    const char *slow = getenv("STANDIN_SLOW");
    enter("nvshmem_quiet");
    for (uint64_t left = slow == NULL ? 0 : strtoull(slow, NULL, 10); left > 0; left--) {
        nap();
    }
    while (read_one()) {}
    for (bool more = true; more;) {
        more = is_lost() ? waiting != NULL : deliver_one();
        if (more && is_lost()) {
            nap();
        }
    }
    leave();
}

/* What a signal on a stream does, when the stream comes to it. */
typedef struct on_stream {
    _Atomic uint64_t *word;
    uint64_t value;
    int op;
} on_stream;

static void CUDA_CB raise_word(void *context)
{
    on_stream *one = context;
    if (one->op == ADD) {
        atomic_fetch_add(one->word, one->value);
    } else {
        atomic_store(one->word, one->value);
    }
    free(one);
}

void nvshmemx_signal_op_on_stream(uint64_t *to, uint64_t value, int how, int pe, void *stream)
{
    enter("nvshmemx_signal_op_on_stream");
    on_stream *one = malloc(sizeof *one);
    if (one == NULL || (how != SET && how != ADD)) {
        die("nvshmemx_signal_op_on_stream: %d is no operation", how);
    }
    char *word = find("nvshmemx_signal_op_on_stream", to, sizeof value, pe);
    *one = (on_stream){(_Atomic uint64_t *)(void *)word, value, how};
    if (cuLaunchHostFunc(stream, raise_word, one) != CUDA_SUCCESS) {
        die("nvshmemx_signal_op_on_stream: a stream of no device");
    }
    leave();
}
