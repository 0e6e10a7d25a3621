/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/ucx/ucx.h"

#include "base/alloc.h"

static bool add_chunk(fy_ucx *engine)
{
    if (!FY_RESERVE(engine->chunks, engine->chunk_capacity, engine->n_chunks + 1)) {
        return false;
    }
    fy_ucx_op *chunk = fy_alloc_zeroed(FY_UCX_CHUNK, sizeof *chunk);
    if (chunk == NULL) {
        return false;
    }
    for (uint32_t i = FY_UCX_CHUNK; i-- > 0;) {
        chunk[i].engine = engine;
        chunk[i].index = (uint32_t)(engine->n_chunks * FY_UCX_CHUNK) + i;
        chunk[i].next = engine->free_ops;
        engine->free_ops = &chunk[i];
    }
    engine->chunks[engine->n_chunks++] = chunk;
    return true;
}

fy_ucx_op *fy_ucx_op_new(fy_ucx *engine, uint32_t peer, fy_ucx_role role)
{
    if (engine->free_ops == NULL && !add_chunk(engine)) {
        return NULL;
    }
    fy_ucx_op *op = engine->free_ops;
    engine->free_ops = op->next;

    op->next = NULL;
    op->peer = peer;
    op->role = (uint8_t)role;
    op->is_free = false;
    op->is_packed = false;
    op->bytes = 0;
    op->body = NULL;
    op->region = NULL;
    op->kind = FERRY_MEMORY_HOST;
    op->must_meet = false;
    op->header.source = engine->host->rank;
    op->header.after = FY_UCX_NOTHING;
    return op;
}

void fy_ucx_op_free(fy_ucx_op *op)
{
    if (op == NULL) {
        return;
    }
    fy_ucx *engine = op->engine;
    if (op->is_packed) {
        ucp_rkey_buffer_release(op->body);
    }
    op->role = 0;
    op->is_packed = false;
    op->region = NULL;
    op->next = engine->free_ops;
    engine->free_ops = op;
}

fy_ucx_op *fy_ucx_op_find(fy_ucx *engine, uint64_t index, uint32_t peer, fy_ucx_role role)
{
    if (index / FY_UCX_CHUNK >= engine->n_chunks) {
        return NULL;
    }
    fy_ucx_op *op = &engine->chunks[index / FY_UCX_CHUNK][index % FY_UCX_CHUNK];
    return op->role == role && op->peer == peer ? op : NULL;
}

void fy_ucx_pool_cleanup(fy_ucx *engine)
{
    for (size_t i = 0; i < engine->n_chunks * FY_UCX_CHUNK; i++) {
        fy_ucx_op *op = &engine->chunks[i / FY_UCX_CHUNK][i % FY_UCX_CHUNK];
        if (op->is_packed) {
            ucp_rkey_buffer_release(op->body);
        }
    }
    for (size_t i = 0; i < engine->n_chunks; i++) {
        fy_free(engine->chunks[i]);
    }
    fy_free(engine->chunks);
    engine->chunks = NULL;
    engine->n_chunks = 0;
    engine->free_ops = NULL;
}

void fy_ucx_enqueue(fy_ucx_queue *queue, fy_ucx_op *op)
{
    op->next = NULL;
    if (queue->last == NULL) {
        queue->first = op;
    } else {
        queue->last->next = op;
    }
    queue->last = op;
}

fy_ucx_op *fy_ucx_dequeue(fy_ucx_queue *queue)
{
    fy_ucx_op *op = queue->first;
    if (op != NULL) {
        queue->first = op->next;
        if (queue->first == NULL) {
            queue->last = NULL;
        }
        op->next = NULL;
    }
    return op;
}

void fy_ucx_due(fy_ucx_peer *peer)
{
    if (!peer->is_due) {
        peer->is_due = true;
        peer->next_due = peer->engine->due;
        peer->engine->due = peer;
    }
}
