/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/nvshmem/job.h"

#include "base/alloc.h"
#include "transport/nvshmem/library.h"
#include "transport/nvshmem/work.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

enum { STARTING_DEADLINES = 6, WHY_BYTES = 256 };
static const uint64_t LEAST_POOL_BYTES = (uint64_t)4 << 20;
static const uint64_t USUAL_POOL_BYTES = (uint64_t)1 << 30; /* what NVSHMEM has where nobody says */

fy_nvshmem_job fy_nvshmem_own;

typedef enum job_state {
    JOB_NONE = 0,
    JOB_LIVES = 1,
    JOB_ENDED = 2,       /* its world has failed */
    JOB_NOT_STARTED = 3, /* it did not start: NVSHMEM cannot be started a second time */
} job_state;

/* What a rank tells all others. */
typedef struct job_card {
    uint32_t state; /* job_state */
    uint32_t pe;
    uint64_t token; /* of the job; of one that does not exist yet rank 0's counts */
    uint64_t bytes; /* of the heap, as its environment wants it */
    uint64_t is_of_devices;
    fy_nvshmem_id id;
    char why[WHY_BYTES]; /* it did not start */
} job_card;

/* How far a rank's start is, as it tells all others while they wait. */
typedef struct start_card {
    uint32_t is_done;
    uint32_t status; /* ferry_status */
    char why[WHY_BYTES];
} start_card;

static job_card own = {.state = JOB_NONE};

static pthread_mutex_t claiming = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static uint32_t n_open;                                      /* transports */
static fy_host of_host; /* of the last, whose world is that of all */

/* What the thread is asked, and answers; it may come to it when nobody waits any more. */
static struct starting {
    uint32_t rank, n_ranks, local_rank;
    fy_nvshmem_id id;
    ferry_status status;
    char why[WHY_BYTES];
} asked;

/*
 * On the thread that calls NVSHMEM
 */

static void refuse(ferry_status status, const char *why)
{
    asked.status = status;
    snprintf(asked.why, sizeof asked.why, "%s", why);
}

static void make_id(void)
{
    asked.id = (fy_nvshmem_id){.version = FY_NVSHMEM_VERSION(1, fy_nvshmem_id)};
    if (fy_nvshmem.nvshmemx_get_uniqueid(&asked.id) != 0) {
        refuse(FERRY_ERR_UNSUPPORTED,
               "NVSHMEM finds no address for the start of a job: NVSHMEM_DEBUG=INFO lets it say "
               "more");
    }
}

/* Whether a device that a network card writes to must be told to look, and the host can tell it. */
static bool find_order(int device)
{
    int order = 0, options = 0;
    return fy_nvshmem.cuDeviceGetAttribute(&order, FY_CUDA_WRITES_ORDERING, device) == 0 &&
           fy_nvshmem.cuDeviceGetAttribute(&options, FY_CUDA_FLUSH_OPTIONS, device) == 0 &&
           order < FY_CUDA_ORDERED_FOR_OWNER && (options & FY_CUDA_FLUSH_BY_HOST) != 0;
}

/* Ranks of a node take the devices in turn. */
static bool take_device(void)
{
    char why[WHY_BYTES];
    fy_nvshmem_tools *its = &fy_nvshmem_its;
    int device = 0, n = fy_nvshmem_open_library(why, sizeof why);
    bool good = n > 0 &&
                fy_nvshmem.cuDeviceGet(&device, (int)(asked.local_rank % (uint32_t)n)) == 0 &&
                fy_nvshmem.cuDevicePrimaryCtxRetain(&its->context, device) == 0 &&
                fy_nvshmem.cuCtxPushCurrent_v2(its->context) == 0 &&
                fy_nvshmem.cuStreamCreate(&its->stream, 1 /* not behind stream 0 */) == 0;
    if (!good) {
        refuse(FERRY_ERR_UNSUPPORTED, "the CUDA driver gives no context and stream for NVSHMEM");
        return false;
    }
    its->is_of_device = own.is_of_devices != 0;
    its->must_settle = its->is_of_device && find_order(device);
    fy_nvshmem_own.space = its->is_of_device
                               ? (fy_space){.kind = FERRY_MEMORY_CUDA, .device = device}
                               : (fy_space){.kind = FERRY_MEMORY_HOST};
    return true;
}

static bool begin(void)
{
    fy_nvshmem_attributes attributes = {
        .version = FY_NVSHMEM_VERSION(2, fy_nvshmem_attributes),
        .arguments = {.version = FY_NVSHMEM_VERSION(2, fy_nvshmem_arguments),
                      .id = {.version = FY_NVSHMEM_VERSION(1, fy_nvshmem_id_arguments),
                             .id = &asked.id,
                             .rank = (int)asked.rank,
                             .n_ranks = (int)asked.n_ranks},
                      .device = -1}};
    if (fy_nvshmem.nvshmemx_hostlib_init_attr(FY_NVSHMEM_BY_ID, &attributes) != 0) {
        refuse(FERRY_ERR_UNSUPPORTED, "NVSHMEM does not start: NVSHMEM_DEBUG=INFO lets it say why");
        return false;
    }
    if (fy_nvshmem.nvshmem_my_pe() != (int)asked.rank ||
        fy_nvshmem.nvshmem_n_pes() != (int)asked.n_ranks) {
        refuse(FERRY_ERR_EXCHANGE, "NVSHMEM's PEs are not the ranks of the world");
        return false;
    }
    return true;
}

/*
 * All that the heap has, or the most that it gives by halves: all PEs want the same (compare has
 * seen to it) and get the same answer, so each asks as often as the others.
 */
static bool take_memory(void)
{
    uint64_t bytes = own.bytes;
    char *pool = NULL;
    while (bytes >= LEAST_POOL_BYTES && (pool = fy_nvshmem.nvshmem_malloc(bytes)) == NULL) {
        bytes /= 2;
    }
    if (pool == NULL) {
        refuse(FERRY_ERR_NO_MEMORY, "the symmetric heap of NVSHMEM is smaller than 4 MiB: "
                                    "NVSHMEM_SYMMETRIC_SIZE, such as 4G, says how large it is");
        return false;
    }
    /* Parts of the host's begin on pages, as its heap does; a device's may begin anywhere else. */
    uint64_t skipped = own.is_of_devices ? 0 : -(uint64_t)(uintptr_t)pool & 4095;
    fy_nvshmem_own.pool = pool + skipped;
    fy_nvshmem_own.heap.bytes = (bytes - skipped) & ~(uint64_t)4095;
    fy_nvshmem_its.pool = fy_nvshmem_own.pool;
    fy_nvshmem_its.bytes = fy_nvshmem_own.heap.bytes;
    return true;
}

static void find_mapped(void)
{
    for (uint32_t rank = 0; rank < asked.n_ranks; rank++) {
        bool is_self = rank == asked.rank;
        char *its = is_self ? NULL : fy_nvshmem.nvshmem_ptr(fy_nvshmem_own.pool, (int)rank);
        fy_nvshmem_own.mapped[rank] = its;
        fy_nvshmem_own.has_unmapped = fy_nvshmem_own.has_unmapped || (!is_self && its == NULL);
    }
}

static void start_job(void)
{
    uint64_t offset = 0;
    if (!take_device() || !begin() || !take_memory()) {
        return;
    }
    if (fy_nvshmem_heap_take(&fy_nvshmem_own.heap, FY_NVSHMEM_BOUNCE_BYTES, &offset, NULL) !=
        FERRY_OK) {
        refuse(FERRY_ERR_NO_MEMORY, "there is no memory for pieces of the symmetric heap");
        return;
    }
    fy_nvshmem_its.bounce = fy_nvshmem_own.pool + offset;
    find_mapped();
}

/*
 * Entering
 */

bool fy_nvshmem_is_of_devices(void)
{
    if (own.state != JOB_NONE) { /* whatever the environment has become since */
        return own.is_of_devices != 0;
    }
    const char *kind = getenv("NVSHMEM_HEAP_KIND");
    return kind != NULL && strcasecmp(kind, "DEVICE") == 0;
}

bool fy_nvshmem_probe(char *why, size_t why_bytes)
{
    const char *kind = getenv("NVSHMEM_HEAP_KIND");
    if (kind != NULL && strcasecmp(kind, "SYSMEM") != 0 && !fy_nvshmem_is_of_devices()) {
        snprintf(
            why, why_bytes,
            "NVSHMEM_HEAP_KIND is \"%.40s\": symmetric memory is the host's, SYSMEM, or that of "
            "devices, DEVICE",
            kind);
        return false;
    }
    if (fy_nvshmem_open_library(why, why_bytes) == 0) {
        return false;
    }
    if (own.state == JOB_NONE && fy_nvshmem.nvshmemx_init_status() != 0) {
        snprintf(why, why_bytes,
                 "something else in this process has started NVSHMEM, which has one world per "
                 "process: let ferry start it, or run that in a process of its own");
        return false;
    }
    return true;
}

/* For as long as the process lives: of ranks that have told each other, all note the same. */
static void note_not_started(const char *why)
{
    own.state = JOB_NOT_STARTED;
    snprintf(own.why, sizeof own.why, "%.*s", WHY_BYTES - 1, why);
}

static void tell_late(const fy_host *host, char *why)
{
    snprintf(why, WHY_BYTES,
             "NVSHMEM has not started within %g s on rank %u: not all ranks have got there, or no "
             "network connects them",
             (double)(STARTING_DEADLINES * host->deadline_ns) / 1e9, host->rank);
}

/* On that thread, alone, with a limit. */
static ferry_status have_done(const fy_host *host, void (*call)(void), ferry_error *error)
{
    fy_nvshmem_op op = {.verb = FY_NVSHMEM_CALL, .call = call};
    char why[WHY_BYTES];
    uint64_t number;
    uint32_t pe;
    FY_TRY(fy_nvshmem_post(&op, &number, error));
    ferry_status status =
        fy_nvshmem_await(host, number, STARTING_DEADLINES * host->deadline_ns, &pe, error);
    if (status == FERRY_ERR_TIMEOUT) {
        tell_late(host, why);
        note_not_started(why);
        return fy_fail(error, status, "%s; this process cannot use it any more", why);
    }
    if (status != FERRY_OK) {
        own.state = JOB_ENDED;
        return status;
    }
    return asked.status == FERRY_OK
               ? FERRY_OK
               : fy_fail(error, asked.status, "rank %u: %s", host->rank, asked.why);
}

static ferry_status refuse_ended(uint32_t rank, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                   "engine nvshmem: the world in which rank %u used NVSHMEM has failed, and a "
                   "process has only one: start its process anew, or use another engine",
                   rank);
}

static ferry_status refuse_not_started(uint32_t rank, const char *why, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                   "engine nvshmem: the process of rank %u cannot start NVSHMEM a second time, and "
                   "the first time it did not start (%.*s): start its process anew, or use another "
                   "engine",
                   rank, WHY_BYTES - 1, why);
}

/* One world at a time, which may have several transports. */
static ferry_status claim(const fy_host *host, ferry_error *error)
{
    bool has_failed = false;
    pthread_mutex_lock(&claiming);
    bool is_free = n_open == 0 || of_host.world == host->world;
    if (is_free) {
        n_open++;
        of_host = *host;
    } else {
        has_failed = of_host.state(&of_host, NULL) != FERRY_OK;
    }
    pthread_mutex_unlock(&claiming);
    if (has_failed) {
        return refuse_ended(host->rank, error);
    }
    return is_free ? FERRY_OK
                   : fy_fail(error, FERRY_ERR_UNSUPPORTED,
                             "engine nvshmem: a transport of another world is open in this "
                             "process, and NVSHMEM has one world per process; close that one "
                             "first");
}

static void unclaim(void)
{
    pthread_mutex_lock(&claiming);
    n_open--;
    pthread_mutex_unlock(&claiming);
}

/* "4G", as NVSHMEM reads it: a number, and a letter right behind it. */
static ferry_status read_bytes(uint32_t rank, uint64_t *bytes_out, ferry_error *error)
{
    static const char units[] = "kmgtKMGT";
    const char *text = getenv("NVSHMEM_SYMMETRIC_SIZE");
    if (text == NULL) {
        *bytes_out = USUAL_POOL_BYTES;
        return FERRY_OK;
    }
    char *end;
    double size = strtod(text, &end);
    const char *unit = *end == '\0' ? NULL : strchr(units, *end);
    for (int64_t i = unit == NULL ? -1 : (unit - units) % 4; i >= 0; i--) {
        size *= 1024;
    }
    if (end == text || (*end != '\0' && unit == NULL) || !(size >= 1 && size < 0x1p60)) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "rank %u: NVSHMEM_SYMMETRIC_SIZE is \"%.40s\": it is a number of bytes, or "
                       "one with K, M, G or T right behind it, such as 4G",
                       rank, text);
    }
    *bytes_out = (uint64_t)size;
    return FERRY_OK;
}

/*
 * NVSHMEM takes the kind of its heap from the environment and from nowhere else. To set a variable
 * is no safe thing where other threads read some at that moment: so it is done once in a process,
 * and not where it is set already.
 */
static ferry_status choose_memory(ferry_error *error)
{
    const char *kind = getenv("NVSHMEM_HEAP_KIND");
    const char *wanted = own.is_of_devices ? "DEVICE" : "SYSMEM";
    bool is_set = kind != NULL && strcmp(kind, wanted) == 0;
    return fy_check_memory(is_set || setenv("NVSHMEM_HEAP_KIND", wanted, 1) == 0,
                           "a variable for NVSHMEM", error);
}

/* What can be said without the others. */
static ferry_status prepare(const fy_host *host, ferry_error *error)
{
    if (own.state != JOB_NONE) {
        return FERRY_OK;
    }
    FY_TRY(read_bytes(host->rank, &own.bytes, error));
    own.is_of_devices = fy_nvshmem_is_of_devices();
    uint32_t n_before = 0;
    for (uint32_t rank = 0; rank < host->rank; rank++) {
        n_before += host->same_node(host, rank);
    }
    asked = (struct starting){.rank = host->rank, .n_ranks = host->n_ranks, .local_rank = n_before};
    if (fy_nvshmem_own.mapped == NULL) {
        fy_nvshmem_own.mapped = fy_alloc_zeroed(host->n_ranks, sizeof *fy_nvshmem_own.mapped);
    }
    FY_TRY(fy_check_memory(fy_nvshmem_own.mapped != NULL, "the PEs of NVSHMEM", error));
    FY_TRY(choose_memory(error));
    if (host->rank != 0) {
        return FERRY_OK;
    }
    if (getrandom(&own.token, sizeof own.token, GRND_NONBLOCK) != (ssize_t)sizeof own.token) {
        own.token = (uintptr_t)host;
    }
    ferry_status status = have_done(host, make_id, error);
    own.id = asked.id;
    return status;
}

/* All ranks see the same cards, and say the same. */
static ferry_status compare(const fy_host *host, const job_card *cards, ferry_error *error)
{
    bool starts = cards[0].state == JOB_NONE;
    for (uint32_t rank = 0; rank < host->n_ranks; rank++) {
        const job_card *card = &cards[rank];
        if (card->state == JOB_ENDED) {
            return refuse_ended(rank, error);
        }
        if (card->state == JOB_NOT_STARTED) {
            return refuse_not_started(rank, card->why, error);
        }
        bool is_same =
            starts ? card->state == JOB_NONE
                   : card->state == JOB_LIVES && card->token == cards[0].token && card->pe == rank;
        if (!is_same) {
            return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                           "engine nvshmem: rank %u and rank 0 are not PEs of one job of NVSHMEM, "
                           "and a process has only one: the ranks that use it first must use it "
                           "always, in the same order",
                           rank);
        }
        if (starts && card->bytes != cards[0].bytes) {
            return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                           "engine nvshmem: NVSHMEM_SYMMETRIC_SIZE is %" PRIu64
                           " bytes on rank %u and %" PRIu64
                           " on rank 0 (1G where it is not set): set it to the same on all ranks",
                           card->bytes, rank, cards[0].bytes);
        }
    }
    return FERRY_OK;
}

/* The job has as many PEs as the world has ranks. */
static ferry_status check_count(const fy_host *host, ferry_error *error)
{
    return asked.n_ranks == host->n_ranks
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_UNSUPPORTED,
                         "engine nvshmem: the job of NVSHMEM has %u PEs, and this world %u ranks",
                         asked.n_ranks, host->n_ranks);
}

/* Everybody's cards, of that length. */
static ferry_status gather(const fy_host *host, const void *card, size_t n_bytes,
                           const void **all_out, ferry_error *error)
{
    const size_t *lengths = NULL;
    FY_TRY(host->all_gather(host, card, n_bytes, all_out, &lengths, error));
    for (uint32_t rank = 0; rank < host->n_ranks; rank++) {
        if (lengths[rank] != n_bytes) {
            return fy_fail(error, FERRY_ERR_EXCHANGE, "rank %u says nothing of NVSHMEM", rank);
        }
    }
    return FERRY_OK;
}

/* Of the first rank that has failed, or NULL; of the first that waits yet, in *late_out. */
static const start_card *find_failed(const fy_host *host, const start_card *cards,
                                     const start_card **late_out)
{
    *late_out = NULL;
    for (uint32_t rank = 0; rank < host->n_ranks; rank++) {
        if (cards[rank].is_done && cards[rank].status != FERRY_OK) {
            return &cards[rank];
        }
        if (!cards[rank].is_done && *late_out == NULL) {
            *late_out = &cards[rank];
        }
    }
    return NULL;
}

/* Waits for the thread, for a deadline, and says how far it is. */
static ferry_status look(const fy_host *host, uint64_t number, start_card *mine_out,
                         ferry_error *error)
{
    uint32_t pe;
    *mine_out = (start_card){.is_done = 1};
    ferry_status status = fy_nvshmem_await(host, number, host->deadline_ns, &pe, error);
    if (status == FERRY_ERR_TIMEOUT) {
        *mine_out = (start_card){.status = FERRY_ERR_TIMEOUT};
        tell_late(host, mine_out->why);
        return FERRY_OK;
    }
    if (status == FERRY_OK && asked.status != FERRY_OK) {
        mine_out->status = asked.status;
        snprintf(mine_out->why, WHY_BYTES, "rank %u: %.220s", host->rank, asked.why);
    }
    return status;
}

/*
 * The start is collective: where it fails on one rank, others wait in it for ever. So all tell each
 * other once a deadline how far they are, and whoever has failed is the reason, before those that
 * only wait.
 */
static ferry_status await_start(const fy_host *host, uint64_t number, ferry_error *error)
{
    for (int round = 1;; round++) {
        start_card mine;
        const void *all = NULL;
        const start_card *late;
        FY_TRY(look(host, number, &mine, error));
        FY_TRY(gather(host, &mine, sizeof mine, &all, error));
        const start_card *failed = find_failed(host, all, &late);
        if (failed == NULL && late == NULL) {
            return FERRY_OK;
        }
        if (failed == NULL && round == STARTING_DEADLINES) {
            failed = late;
        }
        if (failed != NULL) {
            note_not_started(failed->why);
            return fy_fail(error, (ferry_status)failed->status,
                           "%s; this process cannot use it any more", own.why);
        }
    }
}

static ferry_status start(const fy_host *host, const job_card *first, ferry_error *error)
{
    fy_nvshmem_op op = {.verb = FY_NVSHMEM_CALL, .call = start_job};
    ferry_error why = {.message = ""};
    uint64_t number = 0; /* nothing to wait for */
    asked.id = first->id;
    own.token = first->token;
    own.pe = host->rank;
    ferry_status status = fy_nvshmem_post(&op, &number, &why);
    if (status != FERRY_OK) {
        refuse(status, why.message);
    }
    status = await_start(host, number, error);
    if (own.state == JOB_NONE) {
        own.state = status == FERRY_OK ? JOB_LIVES : JOB_ENDED;
    }
    return status;
}

ferry_status fy_nvshmem_enter(const fy_host *host, ferry_error *error)
{
    const void *all = NULL;
    ferry_status mine = claim(host, error);
    bool has_claimed = mine == FERRY_OK;
    FY_THEN(mine, prepare(host, error));
    ferry_status status = host->agree(host, mine, error);
    FY_THEN(status, gather(host, &own, sizeof own, &all, error));
    FY_THEN(status, compare(host, all, error));
    if (status == FERRY_OK && own.state == JOB_NONE) {
        status = start(host, all, error);
    } else {
        FY_THEN(status, check_count(host, error));
    }
    if (status != FERRY_OK && has_claimed) {
        unclaim();
    }
    return status;
}

void fy_nvshmem_leave(const fy_host *host)
{
    if (host->state(host, NULL) != FERRY_OK) {
        own.state = JOB_ENDED;
    }
    unclaim();
}
