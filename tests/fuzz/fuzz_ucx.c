/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of the engine over UCX as they come from peers: the handler, the order of puts and the
 * regions are the engine's, and UCX is not there. The input is messages, each with the length of
 * its header and of its body. A header is the next bytes laid over one that makes sense, as often
 * as not, so that more than nonsense is tried. What is written lies in the region; nobody waits for
 * what was not asked. A second region is a device's: the CPU neither reads nor writes it.
 */
#include "fuzz.h"

#include "transport/ucx/ucx.h"

#include <stdarg.h>
#include <sys/mman.h>

enum { N_RANKS = 3, REGION_BYTES = 256, REGION_ID = 4, FAR_ID = 6, N_MESSAGES = 64 };

static ucp_am_recv_callback_t on_message;
static bool is_lost;
static fy_ucx_peer peers[N_RANKS];
static fy_ucx engine;
static unsigned char *far; /* behind a lock */

static bool is_far(const void *at)
{
    return (uintptr_t)at - (uintptr_t)far < REGION_BYTES;
}

/* What a rendezvous is received into, or a message sent from, is done at once. */
ucs_status_t ucp_worker_set_am_recv_handler(ucp_worker_h worker,
                                            const ucp_am_handler_param_t *param)
{
    (void)worker;
    on_message = param->cb;
    return UCS_OK;
}

ucs_status_ptr_t ucp_am_recv_data_nbx(ucp_worker_h worker, void *data, void *buffer, size_t count,
                                      const ucp_request_param_t *param)
{
    (void)worker;
    promise(is_far(buffer) == (param->memory_type == UCS_MEMORY_TYPE_CUDA));
    if (!is_far(buffer)) {
        memcpy(buffer, data, count);
    }
    return NULL;
}

void ucp_request_free(void *request)
{
    (void)request;
}

ucs_status_t ucp_ep_rkey_unpack(ucp_ep_h ep, const void *bytes, ucp_rkey_h *rkey_out)
{
    (void)ep, (void)bytes;
    *rkey_out = NULL;
    return UCS_ERR_UNREACHABLE;
}

void ucp_rkey_destroy(ucp_rkey_h rkey)
{
    (void)rkey;
}

void ucp_rkey_buffer_release(void *buffer)
{
    (void)buffer;
}

ucs_status_t ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params,
                         ucp_mem_h *memory_out)
{
    (void)context, (void)params, (void)memory_out;
    return UCS_ERR_UNSUPPORTED;
}

ucs_status_t ucp_mem_unmap(ucp_context_h context, ucp_mem_h memory)
{
    (void)context, (void)memory;
    return UCS_OK;
}

const char *ucs_status_string(ucs_status_t status)
{
    (void)status;
    return "no UCX";
}

void fy_ucx_lose(fy_ucx *of, uint32_t peer, const char *format, ...)
{
    char text[256];
    va_list arguments;
    promise(of == &engine && peer < N_RANKS);
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    promise(text[0] != '\0');
    is_lost = true;
}

bool fy_ucx_run(fy_ucx *of)
{
    (void)of;
    return false;
}

void fy_ucx_use(fy_ucx *of, fy_space space)
{
    (void)of, (void)space;
}

void fy_ucx_disarm(fy_ucx *of)
{
    (void)of;
}

void fy_ucx_cut(fy_ucx *of)
{
    of->is_dead = true;
}

void fy_ucx_enter(fy_ucx *of)
{
    (void)of;
}

void fy_ucx_leave(fy_ucx *of)
{
    (void)of;
}

/* As in send.c, of what can come here. */
void fy_ucx_finish(fy_ucx_op *op, ucs_status_t status)
{
    uint32_t source = op->peer;
    bool is_in = op->role == FY_UCX_RECEIVING && status == UCS_OK;
    if (op->role == FY_UCX_WAITING || op->role == FY_UCX_READING) {
        promise(peers[source].n_sending > 0);
        peers[source].n_sending--;
        peers[source].n_waiting -= op->role == FY_UCX_WAITING;
    }
    if ((op->role == FY_UCX_RECEIVING || op->role == FY_UCX_REPLYING) && op->region != NULL) {
        op->region->busy--;
    }
    if (is_in) {
        fy_ucx_order_complete(&peers[source].order, op->number);
    }
    fy_ucx_op_free(op);
    if (is_in) {
        fy_ucx_deliver(&engine, source);
    }
}

static void quiet(ferry_log_level level, const char *line)
{
    (void)level, (void)line;
}

/* Rank 0, which has asked rank 1 for some bytes and for a key. */
static void set_up(fy_region_view *view, void **region, unsigned char *got, fy_host *host)
{
    *host = (fy_host){.abi = FY_ENGINE_ABI, .n_ranks = N_RANKS, .log = quiet};
    engine = (fy_ucx){.host = host, .peers = peers};
    memset(peers, 0, sizeof peers);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        peers[r].engine = &engine;
    }
    promise(fy_ucx_listen(&engine) == UCS_OK);
    promise(fy_ucx_attach(&engine, view, region, NULL) == FERRY_OK);
    fy_ucx_op *op = fy_ucx_op_new(&engine, 1, FY_UCX_WAITING);
    promise(op != NULL && op->index == 0);
    op->body = got;
    op->bytes = 16;
    peers[1].n_sending = peers[1].n_waiting = 1;
    op = fy_ucx_op_new(&engine, 1, FY_UCX_ASKING);
    promise(op != NULL && op->index == 1);
    op->region = *region;
    peers[1].is_asking = true;
    peers[1].has_greeted = true;
    peers[1].next_number = 5;
    peers[1].n_asked = 2;
}

static const uint8_t *take(const uint8_t **at, const uint8_t *end, size_t n_bytes)
{
    const uint8_t *here = *at;
    size_t left = (size_t)(end - here);
    *at += n_bytes < left ? n_bytes : left;
    return here;
}

/* Messages that are to be sent are dropped, but what they would read is read. */
static void drop_jobs(void)
{
    static volatile unsigned sum;
    for (fy_ucx_op *op = fy_ucx_dequeue(&engine.jobs); op != NULL;
         op = fy_ucx_dequeue(&engine.jobs)) {
        bool goes_far = op->bytes > 0 && is_far(op->body);
        promise(!goes_far || (op->kind == FERRY_MEMORY_CUDA && op->must_meet));
        for (uint64_t i = 0; !goes_far && i < op->bytes; i++) {
            sum = sum + ((unsigned char *)op->body)[i];
        }
        fy_ucx_finish(op, UCS_OK);
    }
}

static void give(const uint8_t **at, const uint8_t *end, uint64_t *next)
{
    uint8_t flags = **at;
    fy_ucx_header header = {.source = 1,
                            .kind = (uint16_t)(1 + flags % 9),
                            .number = flags % 9 == 0 ? (*next)++ : 0,
                            .region = REGION_ID};
    ucp_am_recv_param_t param = {.recv_attr = (flags & 128) != 0 ? UCP_AM_RECV_ATTR_FLAG_RNDV : 0};
    (*at)++;
    uint8_t n_header = *take(at, end, 1);
    uint8_t n_body = *at < end ? *take(at, end, 1) : 0;
    size_t first = *at < end ? *take(at, end, 1) % sizeof header : 0;
    const uint8_t *patch = *at;
    size_t n_patch = n_header % 64u;
    take(at, end, n_patch);
    n_patch = (size_t)(*at - patch);
    n_patch = n_patch < sizeof header - first ? n_patch : sizeof header - first;
    memcpy((char *)&header + first, patch, n_patch);
    const uint8_t *body = take(at, end, n_body);
    size_t n = (size_t)(*at - body);
    void *copy = malloc(n + 1);
    promise(copy != NULL);
    memcpy(copy, body, n);
    size_t header_bytes = (flags & 64) != 0 ? FY_UCX_SHORT_HEADER : sizeof header;
    on_message(&engine, &header, header_bytes, copy, n, &param);
    free(copy);
    drop_jobs();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint64_t guarded[3 * REGION_BYTES / sizeof(uint64_t)];
    unsigned char *memory = (unsigned char *)guarded;
    unsigned char got[16];
    fy_host host;
    void *region = NULL, *far_region = NULL;
    fy_region_view view = {.kind = FY_REGION_SYMMETRIC,
                           .id = REGION_ID,
                           .base = memory + REGION_BYTES,
                           .bytes = REGION_BYTES};
    const uint8_t *at = data, *end = data + size;
    uint64_t next = 0;
    memset(guarded, 0x5a, sizeof guarded);
    is_lost = false;
    if (far == NULL) {
        far = mmap(NULL, REGION_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        promise(far != MAP_FAILED);
    }
    const fy_region_view far_view = {.kind = FY_REGION_REGISTERED,
                                     .id = FAR_ID,
                                     .base = far,
                                     .bytes = REGION_BYTES,
                                     .space = {.kind = FERRY_MEMORY_CUDA}};
    set_up(&view, &region, got, &host);
    promise(fy_ucx_attach(&engine, &far_view, &far_region, NULL) == FERRY_OK);
    for (int i = 0; i < N_MESSAGES && end - at >= 3 && !is_lost; i++) {
        give(&at, end, &next);
    }
    for (size_t i = 0; i < REGION_BYTES; i++) {
        promise(memory[i] == 0x5a && memory[2 * REGION_BYTES + i] == 0x5a);
    }
    promise(is_lost || peers[1].n_answered <= peers[1].n_asked);
    promise(is_lost || peers[1].reached <= peers[1].next_number);
    engine.is_dead = true;
    fy_ucx_release(&engine, &view, region);
    fy_ucx_release(&engine, &far_view, far_region);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        fy_ucx_order_cleanup(&peers[r].order);
    }
    fy_ucx_pool_cleanup(&engine);
    return 0;
}
