/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/ucx/print.h"
#include "transport/ucx/ucx.h"

#include "base/alloc.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* What a context prints of itself; NULL where there is no memory for it. */
static char *print_of(ucp_context_h context)
{
    char *info = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&info, &bytes);
    if (stream == NULL) {
        return NULL;
    }
    ucp_context_print_info(context, stream);
    if (fclose(stream) != 0) {
        free(info);
        return NULL;
    }
    return info;
}

/*
 * UCX's TCP waits in connect(), under the engine's lock, until the other machine answers: for one
 * that goes silent in that moment the kernel gives up after two minutes, and no deadline of ours is
 * kept until then. A setting makes it go on in the background. Who has set it has chosen.
 */
static ucs_status_t connect_in_background(ucp_config_t *config)
{
    unsigned major, minor, release;
    if (getenv("UCX_TCP_CONN_NB") != NULL) {
        return UCS_OK;
    }
    ucp_get_version(&major, &minor, &release);
    bool has_prefixes = major > 1 || minor >= 17; /* names of settings within this call */
    return ucp_config_modify(config, has_prefixes ? "TCP_CONN_NB" : "CONN_NB", "y");
}

static ucs_status_t make_one(bool has_tcp, ucp_context_h *context_out)
{
    ucp_config_t *config;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK) {
        return status;
    }
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .name = "ferry",
    };
    if (has_tcp) {
        status = connect_in_background(config);
    }
    if (status == UCS_OK) {
        status = ucp_init(&params, config, context_out);
    }
    ucp_config_release(config);
    return status;
}

/* UCX complains on stderr of settings for what it does not use, so where it takes no TCP there is
 * another context, made without them. */
static ucs_status_t make_context(ucp_context_h *context_out)
{
    ucs_status_t status = make_one(true, context_out);
    if (status != UCS_OK) {
        return status;
    }
    char *info = print_of(*context_out);
    bool has_tcp = info != NULL && fy_ucx_names_tcp(info);
    free(info);
    if (!has_tcp) {
        ucp_cleanup(*context_out);
        *context_out = NULL;
        status = make_one(false, context_out);
    }
    return status;
}

/*
 * UCX ends the process where it gets no descriptor or no address space at a bad moment, so what it
 * takes for a context, a worker and its first connections must be there before.
 */
enum { LEAST_DESCRIPTORS = 24 };
#define LEAST_SPACE ((size_t)64 << 20)

static ferry_status check_limits(ferry_error *error)
{
    int taken[LEAST_DESCRIPTORS];
    int n_taken = 0;
    struct rlimit limit = {0};
    while (n_taken < LEAST_DESCRIPTORS &&
           (taken[n_taken] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) {
        n_taken++;
    }
    for (int i = 0; i < n_taken; i++) {
        (void)close(taken[i]);
    }
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    if (n_taken < LEAST_DESCRIPTORS) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "UCX needs %d descriptors to begin with, and this process may open only %d "
                       "more of its %llu: raise RLIMIT_NOFILE (ulimit -n)",
                       LEAST_DESCRIPTORS, n_taken, (unsigned long long)limit.rlim_cur);
    }
    void *space = mmap(NULL, LEAST_SPACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (space == MAP_FAILED) {
        (void)getrlimit(RLIMIT_AS, &limit);
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "UCX needs %zu MiB of address space to begin with, which this process has "
                       "not left of its %llu MiB: raise RLIMIT_AS (ulimit -v)",
                       LEAST_SPACE >> 20, (unsigned long long)limit.rlim_cur >> 20);
    }
    (void)munmap(space, LEAST_SPACE);
    return FERRY_OK;
}

/*
 * Whether UCX reads and writes memory of CUDA devices, by what it says itself: it has a module for
 * that, finds the driver, and UCX_TLS does not leave it out. Before 1.20 it takes all memory for
 * that of the device whose context is current, and breaks devices where it is another one's.
 */
static bool has_cuda(ucp_context_h context)
{
    unsigned major, minor, release;
    ucp_context_attr_t attributes = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    ucp_get_version(&major, &minor, &release);
    return (major > 1 || minor >= 20) && ucp_context_query(context, &attributes) == UCS_OK &&
           (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
}

static _Atomic bool process_has_cuda; /* as probe has found it */

static bool probe(char *why, size_t why_bytes)
{
    ucp_context_h context;
    ferry_error limits;
    if (check_limits(&limits) != FERRY_OK) {
        (void)snprintf(why, why_bytes, "%s", limits.message);
        return false;
    }
    ucs_status_t status = make_context(&context);
    if (status != UCS_OK) {
        (void)snprintf(why, why_bytes,
                       "UCX finds no transport that can be used here (%s): UCX_TLS and "
                       "UCX_NET_DEVICES choose among them",
                       ucs_status_string(status));
        return false;
    }
    atomic_store(&process_has_cuda, has_cuda(context));
    ucp_cleanup(context);
    return true;
}

static ferry_status read_mode(fy_ucx_mode *mode_out, ferry_error *error)
{
    const char *text = getenv("FERRY_UCX_MODE");
    if (text == NULL || text[0] == '\0' || strcmp(text, "auto") == 0) {
        *mode_out = FY_UCX_AUTO;
    } else if (strcmp(text, "am") == 0) {
        *mode_out = FY_UCX_MESSAGES;
    } else if (strcmp(text, "rma") == 0) {
        *mode_out = FY_UCX_RMA;
    } else {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "FERRY_UCX_MODE is \"%.40s\": am, rma or auto", text);
    }
    return FERRY_OK;
}

static ferry_status open_worker(fy_ucx *engine, ferry_error *error)
{
    ucs_status_t status = make_context(&engine->context);
    engine->has_module = status == UCS_OK && has_cuda(engine->context);
    fy_ucx_go_inside(engine);
    if (status == UCS_OK) {
        ucp_worker_params_t params = {
            .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
            .thread_mode = UCS_THREAD_MODE_SERIALIZED,
        };
        status = ucp_worker_create(engine->context, &params, &engine->worker);
    }
    if (status == UCS_OK) {
        status = fy_ucx_listen(engine);
    }
    fy_ucx_go_outside(engine);
    if (status != UCS_OK) {
        return fy_fail(
            error, FERRY_ERR_UNSUPPORTED,
            "UCX cannot be opened (%s): UCX_TLS and UCX_NET_DEVICES choose its transports",
            ucs_status_string(status));
    }
    return FERRY_OK;
}

static ferry_status open_own(fy_ucx *engine, ferry_error *error)
{
    uint32_t n_ranks = engine->host->n_ranks;
    engine->peers = fy_alloc_zeroed(n_ranks, sizeof *engine->peers);
    engine->address_at = fy_alloc_zeroed(n_ranks, sizeof *engine->address_at);
    engine->closing = fy_alloc_zeroed(n_ranks, sizeof *engine->closing);
    if (engine->peers == NULL || engine->address_at == NULL || engine->closing == NULL) {
        return fy_fail_no_memory(error, "the peers of the ucx engine");
    }
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        engine->peers[rank].engine = engine;
    }
    engine->may_choose = getenv("UCX_RNDV_THRESH") == NULL;
    FY_TRY(check_limits(error));
    FY_TRY(read_mode(&engine->mode, error));
    return open_worker(engine, error);
}

static bool has_rdma(ucp_context_h context)
{
    char *info = print_of(context);
    bool has = info != NULL && fy_ucx_names_rdma(info);
    free(info);
    return has;
}

enum { CARD_RDMA = 1, CARD_CUDA = 2 };

/* What a rank tells all others: what its UCX has, and its worker's address. */
static ferry_status write_card(fy_ucx *engine, unsigned char **card_out, size_t *bytes_out,
                               ferry_error *error)
{
    ucp_address_t *address;
    size_t bytes;
    if (ucp_worker_get_address(engine->worker, &address, &bytes) != UCS_OK) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "UCX has no address for this rank");
    }
    unsigned char *card = fy_alloc(bytes + 1, 1);
    if (card != NULL) {
        card[0] = (unsigned char)((has_rdma(engine->context) ? CARD_RDMA : 0) |
                                  (engine->has_module ? CARD_CUDA : 0));
        memcpy(card + 1, address, bytes);
    }
    ucp_worker_release_address(engine->worker, address);
    FY_TRY(fy_check_memory(card != NULL, "the address of the ucx engine", error));
    *card_out = card;
    *bytes_out = bytes + 1;
    return FERRY_OK;
}

static ferry_status read_cards(fy_ucx *engine, const unsigned char *all, const size_t *lengths,
                               ferry_error *error)
{
    const fy_host *host = engine->host;
    size_t sum = 0;
    engine->has_cuda = true;
    for (uint32_t rank = 0; rank < host->n_ranks; rank++) {
        if (lengths[rank] < 2) {
            return fy_fail(error, FERRY_ERR_EXCHANGE, "rank %u brings no address of UCX", rank);
        }
        engine->address_at[rank] = sum + 1;
        engine->peers[rank].has_rdma = (all[sum] & CARD_RDMA) != 0;
        engine->has_cuda = engine->has_cuda && (all[sum] & CARD_CUDA) != 0;
        sum += lengths[rank];
    }
    engine->addresses = fy_alloc(sum, 1);
    FY_TRY(fy_check_memory(engine->addresses != NULL, "the addresses of the ucx engine", error));
    memcpy(engine->addresses, all, sum);
    return FERRY_OK;
}

/* All ranks are open, or none. */
static ferry_status meet(fy_ucx *engine, ferry_status status, ferry_error *error)
{
    const fy_host *host = engine->host;
    unsigned char *card = NULL;
    size_t bytes = 0;
    const void *all;
    const size_t *lengths;
    FY_THEN(status, write_card(engine, &card, &bytes, error));
    status = host->agree(host, status, error);
    FY_THEN(status, host->all_gather(host, card, bytes, &all, &lengths, error));
    fy_free(card);
    FY_THEN(status, read_cards(engine, all, lengths, error));
    return status;
}

static void free_engine(fy_ucx *engine)
{
    if (engine->context != NULL) {
        ucp_cleanup(engine->context);
    }
    fy_ucx_go_outside(engine);
    if (engine->peers != NULL) {
        for (uint32_t rank = 0; rank < engine->host->n_ranks; rank++) {
            fy_ucx_order_cleanup(&engine->peers[rank].order);
        }
    }
    fy_ucx_pool_cleanup(engine);
    if (engine->has_mutex) {
        pthread_mutex_destroy(&engine->mutex);
    }
    fy_free(engine->peers);
    fy_free(engine->address_at);
    fy_free(engine->addresses);
    fy_free(engine->closing);
    fy_free(engine);
}

static void close_engine(void *state)
{
    fy_ucx *engine = state;
    fy_ucx_wake_close(engine);
    engine->is_closing = true;
    engine->is_dead = engine->is_dead || engine->host->state(engine->host, NULL) != FERRY_OK;
    fy_ucx_go_inside(engine);
    if (engine->worker != NULL) {
        fy_ucx_peers_close(engine);
        if (engine->is_stuck) { /* to destroy it could end the process */
            engine->host->log(FERRY_LOG_WARN, "ucx: a peer takes nothing any more in the middle of "
                                              "connecting: UCX's worker is left behind");
            fy_ucx_go_outside(engine);
            return;
        }
        ucp_worker_destroy(engine->worker);
    }
    free_engine(engine);
}

static ferry_status open_engine(const fy_host *host, void **state_out, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    fy_ucx *engine = fy_alloc_zeroed(1, sizeof *engine);
    fy_ucx nobody = {.host = host};
    if (engine == NULL) {
        status = fy_fail_no_memory(error, "the ucx engine");
        return meet(&nobody, status, error);
    }
    engine->host = host;
    engine->gate = -1;
    engine->timer = -1;
    engine->has_mutex = pthread_mutex_init(&engine->mutex, NULL) == 0;
    if (!engine->has_mutex) {
        status = fy_fail_no_memory(error, "a mutex of the ucx engine");
    } else {
        status = open_own(engine, error);
    }
    status = meet(engine, status, error);
    FY_THEN(status, fy_ucx_wake_open(engine, error));
    if (status != FERRY_OK) {
        close_engine(engine);
        return status;
    }
    *state_out = engine;
    return FERRY_OK;
}

static uint32_t capabilities(void *state, uint32_t peer)
{
    (void)peer;
    const fy_ucx *engine = state;
    return FERRY_CAN_REMOTE_USER_MEMORY | FERRY_CAN_GET |
           (engine->is_watched ? FERRY_CAN_TARGET_PROGRESS : 0u);
}

/* Between ranks all of which have it, for what a region is made known to is asked once for all. */
static uint32_t reach(void *state, uint32_t peer, uint32_t source_kind, uint32_t target_kind)
{
    const fy_ucx *engine = state;
    bool is_known = (source_kind == FERRY_MEMORY_HOST || source_kind == FERRY_MEMORY_CUDA) &&
                    (target_kind == FERRY_MEMORY_HOST || target_kind == FERRY_MEMORY_CUDA);
    bool has_it = engine != NULL ? engine->has_cuda : atomic_load(&process_has_cuda);
    if (!is_known || !has_it) {
        return UINT32_MAX;
    }
    return engine != NULL ? capabilities(state, peer)
                          : FERRY_CAN_REMOTE_USER_MEMORY | FERRY_CAN_GET;
}

static const fy_engine table = {
    .abi = FY_ENGINE_ABI,
    .name = "ucx",
    .summary = "between machines, by UCX: RDMA, TCP and whatever else UCX_TLS names",
    .probe = probe,
    .open = open_engine,
    .close = close_engine,
    .capabilities = capabilities,
    .reach = reach,
    .attach = fy_ucx_attach,
    .release = fy_ucx_release,
    .export_key = fy_ucx_export_key,
    .put = fy_ucx_put,
    .get = fy_ucx_get,
    .put_from = fy_ucx_put_from,
    .get_into = fy_ucx_get_into,
    .flush = fy_ucx_flush,
    .progress = fy_ucx_progress,
    .sleep_ns = fy_ucx_sleep_ns,
    .revoke = fy_ucx_revoke,
    .hurry = fy_ucx_hurry,
    .has_room = fy_ucx_has_room,
    .try_flush = fy_ucx_try_flush,
};

FERRY_API const fy_engine *ferry_engine_plugin(void);

const fy_engine *ferry_engine_plugin(void)
{
    return &table;
}
