/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/host.h"

#include "base/log.h"
#include "world/agree.h"

static ferry_world *world_of(const fy_host *host)
{
    return host->world;
}

static bool same_node(const fy_host *host, uint32_t peer)
{
    return fy_world_same_node(world_of(host), peer);
}

static ferry_status agree(const fy_host *host, ferry_status status, ferry_error *error)
{
    return fy_agree(world_of(host), status, error);
}

static ferry_status all_gather(const fy_host *host, const void *bytes, size_t n_bytes,
                               const void **all_out, const size_t **lengths_out, ferry_error *error)
{
    return ferry_world_all_gather_v(world_of(host), bytes, n_bytes, all_out, lengths_out, error);
}

static ferry_status wait(const fy_host *host, bool (*ready)(void *context),
                         int64_t (*sleep_ns)(void *context), void *context, int64_t limit_ns,
                         ferry_error *error)
{
    return fy_world_wait(world_of(host), ready, sleep_ns, context, limit_ns, error);
}

static ferry_status state(const fy_host *host, ferry_error *error)
{
    const fy_failure *failure = world_of(host)->failure;
    return fy_failed(failure) ? fy_failure_get(failure, NULL, error) : FERRY_OK;
}

void fy_report_lost(ferry_world *world, uint32_t peer, const char *sentence)
{
    if (world->ops->suspect != NULL) {
        world->ops->suspect(world, peer, sentence);
    } else {
        fy_world_fail(world, FERRY_ERR_PEER_LOST, peer, "%s", sentence);
    }
}

static bool never(void *context)
{
    (void)context;
    return false;
}

enum { VERDICT_DEADLINES = 4 };

ferry_status fy_world_verdict(ferry_world *world, ferry_status status, ferry_error *error)
{
    if (status != FERRY_ERR_PEER_LOST) {
        return status;
    }
    /* As long as it may take to know whether the rank lives: see fy_control_silence_counts. */
    if (!fy_failed(world->failure)) {
        fy_world_wait(world, never, NULL, NULL, VERDICT_DEADLINES * world->settings.deadline_ns,
                      NULL);
    }
    return fy_failed(world->failure) ? fy_failure_get(world->failure, NULL, error) : status;
}

static void lost(const fy_host *host, uint32_t peer, const char *sentence)
{
    fy_report_lost(world_of(host), peer, sentence);
}

static void ring(const fy_host *host)
{
    fy_bell_ring(world_of(host)->bell);
}

static ferry_status watch(const fy_host *host, int fd, void (*ready)(void *context), void *context,
                          ferry_error *error)
{
    ferry_world *world = world_of(host);
    if (world->ops->watch == NULL) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "a world of threads has no thread of its own that watches descriptors");
    }
    return world->ops->watch(world, fd, ready, context, error);
}

static void unwatch(const fy_host *host, int fd)
{
    ferry_world *world = world_of(host);
    if (world->ops->watch != NULL) {
        world->ops->unwatch(world, fd);
    }
}

static const fy_memory_kind *memory(uint32_t kind)
{
    return fy_memory_row(kind);
}

static void log_line(ferry_log_level level, const char *line)
{
    fy_log(level, "%s", line);
}

fy_host fy_host_of(ferry_world *world)
{
    return (fy_host){.abi = FY_ENGINE_ABI,
                     .rank = world->rank,
                     .n_ranks = world->n_ranks,
                     .deadline_ns = world->settings.deadline_ns,
                     .world = world,
                     .same_node = same_node,
                     .agree = agree,
                     .all_gather = all_gather,
                     .wait = wait,
                     .state = state,
                     .lost = lost,
                     .ring = ring,
                     .watch = watch,
                     .unwatch = unwatch,
                     .memory = memory,
                     .log = log_line};
}
