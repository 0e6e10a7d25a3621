/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/nvshmem/job.h"

#include "base/alloc.h"
#include "transport/nvshmem/library.h"
#include "transport/nvshmem/work.h"

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
    JOB_ENDED = 2, /* its world has failed, or it did not start */
} job_state;

/* What a rank tells all others. */
typedef struct job_card {
    uint32_t state; /* job_state */
    uint32_t pe;
    uint64_t token; /* of the job; of one that does not exist yet rank 0's counts */
    fy_nvshmem_id id;
} job_card;

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

/* Ranks of a node take the devices in turn. */
static bool take_device(void)
{
    char why[WHY_BYTES];
    void *context = NULL;
    int device = 0, n = fy_nvshmem_open_library(why, sizeof why);
    bool good = n > 0 &&
                fy_nvshmem.cuDeviceGet(&device, (int)(asked.local_rank % (uint32_t)n)) == 0 &&
                fy_nvshmem.cuDevicePrimaryCtxRetain(&context, device) == 0 &&
                fy_nvshmem.cuCtxPushCurrent_v2(context) == 0 &&
                fy_nvshmem.cuStreamCreate(&fy_nvshmem_its.stream, 1 /* not behind stream 0 */) == 0;
    if (!good) {
        refuse(FERRY_ERR_UNSUPPORTED, "the CUDA driver gives no context and stream for NVSHMEM");
    }
    return good;
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

/* "4G", as NVSHMEM reads it. */
static uint64_t wanted_bytes(void)
{
    static const char units[] = "KMGT";
    const char *text = getenv("NVSHMEM_SYMMETRIC_SIZE");
    if (text == NULL) {
        return USUAL_POOL_BYTES;
    }
    char *end;
    double size = strtod(text, &end);
    const char *unit = *end == '\0' ? NULL : strchr(units, *end & ~0x20);
    for (int64_t i = unit == NULL ? -1 : unit - units; i >= 0; i--) {
        size *= 1024;
    }
    return size > 0 && size < 0x1p60 ? (uint64_t)size : USUAL_POOL_BYTES;
}

/*
 * All that the heap has, or the most that it gives by halves: the answer is the same on all PEs, so
 * each asks as often as the others.
 */
static bool take_memory(void)
{
    uint64_t bytes = wanted_bytes();
    char *pool = NULL;
    while (bytes >= LEAST_POOL_BYTES && (pool = fy_nvshmem.nvshmem_malloc(bytes)) == NULL) {
        bytes /= 2;
    }
    if (pool == NULL) {
        refuse(FERRY_ERR_NO_MEMORY, "the symmetric heap of NVSHMEM is smaller than 4 MiB: "
                                    "NVSHMEM_SYMMETRIC_SIZE, such as 4G, says how large it is");
        return false;
    }
    /* Parts begin on pages. */
    uint64_t skipped = -(uint64_t)(uintptr_t)pool & 4095;
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

bool fy_nvshmem_probe(char *why, size_t why_bytes)
{
    const char *kind = getenv("NVSHMEM_HEAP_KIND");
    if (kind != NULL && strcasecmp(kind, "SYSMEM") != 0) {
        snprintf(why, why_bytes,
                 "NVSHMEM_HEAP_KIND is \"%.40s\": ferry's symmetric memory is the host's, SYSMEM",
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

/* On that thread, with a limit. */
static ferry_status have_done(const fy_host *host, void (*call)(void), ferry_error *error)
{
    fy_nvshmem_op op = {.verb = FY_NVSHMEM_CALL, .call = call};
    uint64_t number;
    uint32_t pe;
    int64_t limit_ns = STARTING_DEADLINES * host->deadline_ns;
    FY_TRY(fy_nvshmem_post(&op, &number, error));
    ferry_status status = fy_nvshmem_await(host, number, limit_ns, &pe, error);
    if (status == FERRY_ERR_TIMEOUT) {
        own.state = JOB_ENDED;
        return fy_fail(error, status,
                       "NVSHMEM has not started within %g s on rank %u: not all ranks have got "
                       "there, or no network connects them; this process cannot use it any more",
                       (double)limit_ns / 1e9, host->rank);
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

/* What can be said without the others. */
static ferry_status prepare(const fy_host *host, ferry_error *error)
{
    if (own.state != JOB_NONE) {
        return FERRY_OK;
    }
    uint32_t n_before = 0;
    for (uint32_t rank = 0; rank < host->rank; rank++) {
        n_before += host->same_node(host, rank);
    }
    asked = (struct starting){.rank = host->rank, .n_ranks = host->n_ranks, .local_rank = n_before};
    if (fy_nvshmem_own.mapped == NULL) {
        fy_nvshmem_own.mapped = fy_alloc_zeroed(host->n_ranks, sizeof *fy_nvshmem_own.mapped);
    }
    FY_TRY(fy_check_memory(fy_nvshmem_own.mapped != NULL, "the PEs of NVSHMEM", error));
    if (setenv("NVSHMEM_HEAP_KIND", "SYSMEM", 1) != 0) {
        return fy_fail_no_memory(error, "a variable for NVSHMEM");
    }
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

static ferry_status start(const fy_host *host, const job_card *first, ferry_error *error)
{
    asked.id = first->id;
    own.token = first->token;
    own.pe = host->rank;
    ferry_status status = host->agree(host, have_done(host, start_job, error), error);
    own.state = status == FERRY_OK ? JOB_LIVES : JOB_ENDED;
    return status;
}

ferry_status fy_nvshmem_enter(const fy_host *host, ferry_error *error)
{
    const void *all = NULL;
    const size_t *lengths = NULL;
    ferry_status mine = claim(host, error);
    bool has_claimed = mine == FERRY_OK;
    FY_THEN(mine, prepare(host, error));
    ferry_status status = host->agree(host, mine, error);
    FY_THEN(status, host->all_gather(host, &own, sizeof own, &all, &lengths, error));
    for (uint32_t rank = 0; status == FERRY_OK && rank < host->n_ranks; rank++) {
        if (lengths[rank] != sizeof own) {
            status = fy_fail(error, FERRY_ERR_EXCHANGE, "rank %u says nothing of NVSHMEM", rank);
        }
    }
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
