/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "service/star.h"

#include "base/alloc.h"
#include "world/agree.h"

#include <string.h>

static size_t count_peers(const fy_star *star)
{
    const ferry_world *world = star->service->world;
    return world->rank == 0 ? (size_t)world->n_ranks - 1 : 1;
}

static void forget(fy_star *star)
{
    for (size_t i = 0; star->in != NULL && i < count_peers(star); i++) {
        fy_pack_cleanup(&star->in[i]);
    }
    fy_pack_cleanup(&star->box);
}

/* out is cleared, for it only borrows; false: the exchange failed, and with it the world. */
static bool exchange(fy_star *star)
{
    ferry_error why;
    bool worked =
        fy_star_exchange(star->service, star->talks, star->out, star->in, &why) == FERRY_OK;
    memset(star->out, 0, count_peers(star) * sizeof *star->out);
    return worked;
}

static int all_gather(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                      const size_t **lengths_out)
{
    const fy_star *star = context;
    return (int)ferry_world_all_gather_v(star->service->world, bytes, n_bytes, all_out, lengths_out,
                                         NULL);
}

static void add(fy_star *star, uint32_t rank, const void *bytes, size_t n_bytes)
{
    fy_pack *box = &star->box;
    if (box->failed || !FY_RESERVE(box->bytes, box->capacity, box->used + n_bytes + 1)) {
        box->failed = true;
        return;
    }
    if (n_bytes > 0) {
        memcpy(box->bytes + box->used, bytes, n_bytes);
    }
    box->used += n_bytes;
    star->lengths[rank] = n_bytes;
}

/* A message that nobody had memory for is an empty one, which its reader takes for that. */
static int gather(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                  const size_t **lengths_out)
{
    fy_star *star = context;
    const ferry_world *world = star->service->world;
    forget(star);
    if (world->rank != 0) {
        star->out[0] = (fy_pack){.bytes = (unsigned char *)bytes, .used = n_bytes};
        return exchange(star) ? 0 : -1;
    }
    if (!exchange(star)) {
        return -1;
    }
    add(star, 0, bytes, n_bytes);
    for (uint32_t rank = 1; rank < world->n_ranks; rank++) {
        const fy_pack *message = &star->in[rank - 1];
        add(star, rank, message->bytes, message->failed ? 0 : message->used);
    }
    *all_out = star->box.bytes;
    *lengths_out = star->box.failed ? fy_no_lengths(world->n_ranks) : star->lengths;
    return 0;
}

static int scatter(void *context, const void *all, const size_t *lengths, const void **mine_out,
                   size_t *n_bytes_out)
{
    fy_star *star = context;
    const ferry_world *world = star->service->world;
    const char *at = all;
    bool is_root = world->rank == 0;
    forget(star);
    for (uint32_t rank = 0; is_root && rank < world->n_ranks; rank++) {
        if (rank > 0) {
            star->out[rank - 1] = (fy_pack){.bytes = (unsigned char *)at, .used = lengths[rank]};
        }
        at += lengths[rank];
    }
    if (!exchange(star)) {
        return -1;
    }
    const fy_pack *message = is_root ? NULL : &star->in[0];
    *mine_out = is_root ? all : (const void *)message->bytes;
    *n_bytes_out = is_root ? lengths[0] : message->failed ? 0 : message->used;
    return 0;
}

ferry_status fy_star_open(fy_star *star, ferry_service *service, ferry_status before,
                          ferry_exchange *exchange_out, ferry_error *error)
{
    const ferry_world *world = service->world;
    ferry_status status = before;
    *star = (fy_star){.service = service};
    star->talks = fy_alloc_zeroed(count_peers(star), sizeof *star->talks);
    star->out = fy_alloc_zeroed(count_peers(star), sizeof *star->out);
    star->in = fy_alloc_zeroed(count_peers(star), sizeof *star->in);
    star->lengths = fy_alloc_zeroed(world->n_ranks, sizeof *star->lengths);
    bool has_memory =
        star->talks != NULL && star->out != NULL && star->in != NULL && star->lengths != NULL;
    FY_THEN(status, fy_check_memory(has_memory, "messages between ranks", error));
    *exchange_out = (ferry_exchange)FERRY_EXCHANGE_INIT;
    exchange_out->context = star;
    exchange_out->rank = world->rank;
    exchange_out->n_ranks = world->n_ranks;
    exchange_out->all_gather = all_gather;
    exchange_out->gather = gather;
    exchange_out->scatter = scatter;
    return fy_agree(service->world, status, error);
}

void fy_star_cleanup(fy_star *star)
{
    forget(star);
    fy_free(star->talks);
    fy_free(star->out);
    fy_free(star->in);
    fy_free(star->lengths);
}
