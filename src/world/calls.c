/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */

/* The public calls that join a world and talk in it: checks of arguments, then the table. */
#include "base/alloc.h"
#include "base/config.h"
#include "base/hash.h"
#include "base/options.h"
#include "world/agree.h"
#include "world/grow.h"
#include "world/meeting.h"
#include "world/order.h"
#include "world/world.h"

#include <ferry/group.h>

#include <math.h>
#include <string.h>

/*
 * Joining
 */

static ferry_status check_numbers(const char *call, uint32_t rank, uint32_t n_ranks,
                                  ferry_error *error)
{
    if (n_ranks == 0 || rank >= n_ranks) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%s: rank %u of %u", call, rank, n_ranks);
    }
    if (n_ranks > FERRY_MAX_RANKS) {
        return fy_fail(error, FERRY_ERR_LIMIT, "%s: %u ranks; a world has at most %u", call,
                       n_ranks, FERRY_MAX_RANKS);
    }
    return FERRY_OK;
}

/*
 * After the ranks have met, or not (status says): makes the world. file is the one they met in, or
 * NULL; it has served when the world is made, and also when that failed.
 */
static ferry_status join(ferry_status status, fy_meeting *meeting, fy_settings *settings,
                         const char *file, ferry_world **world_out, ferry_error *error)
{
    if (status != FERRY_OK) {
        fy_settings_cleanup(settings);
        fy_meeting_cleanup(meeting);
        return status;
    }
    uint32_t rank = meeting->rank;
    ferry_world *world = NULL;
    status = fy_world_create_processes(meeting, settings, 0, &world, error);
    meeting->listener = -1; /* the world took it over */
    fy_meeting_cleanup(meeting);
    if (file != NULL && rank == 0) {
        fy_meet_file_done(file);
    }
    /* Nobody returns before the file is gone: the next world may meet under the same path. */
    if (file != NULL && status == FERRY_OK) {
        status = ferry_world_barrier(world, error);
        if (status != FERRY_OK) {
            fy_world_fail(world, FERRY_ERR_PEER_LOST, rank, "rank %u did not end the join", rank);
            ferry_world_destroy(world);
        }
    }
    if (status == FERRY_OK) {
        world->is_being_made = false;
        *world_out = world;
    }
    return status;
}

ferry_status ferry_world_create(const ferry_world_options *options, ferry_world **world_out,
                                ferry_error *error)
{
    FY_TRY(
        fy_check_use(world_out != NULL, "ferry_world_create needs a place for the world", error));
    fy_settings settings;
    FY_TRY(fy_settings_init(&settings, options, error));
    ferry_status status = FERRY_OK;
    /* A copy: others may change the environment while the ranks meet. */
    const char *set = fy_config_text("FERRY_RENDEZVOUS");
    char *file = set == NULL ? NULL : fy_strdup(set);
    fy_meeting meeting = FY_MEETING_INIT;
    if (set != NULL && file == NULL) {
        status = fy_fail_no_memory(error, "a world");
    } else {
        status = fy_meet_environment(&meeting, &settings, error);
    }
    status = join(status, &meeting, &settings, file, world_out, error);
    fy_free(file);
    return status;
}

ferry_status ferry_world_create_from_file(const char *path, uint32_t rank, uint32_t n_ranks,
                                          const ferry_world_options *options,
                                          ferry_world **world_out, ferry_error *error)
{
    FY_TRY(fy_check_use(path != NULL && path[0] != '\0' && world_out != NULL,
                        "ferry_world_create_from_file needs a path and a place for the world",
                        error));
    FY_TRY(check_numbers("ferry_world_create_from_file", rank, n_ranks, error));
    fy_settings settings;
    FY_TRY(fy_settings_init(&settings, options, error));
    fy_meeting meeting = FY_MEETING_INIT;
    ferry_status status = fy_meet_file(&meeting, path, rank, n_ranks, &settings, error);
    return join(status, &meeting, &settings, path, world_out, error);
}

ferry_status ferry_world_create_from_bootstrap(const ferry_bootstrap *bootstrap,
                                               const ferry_world_options *options,
                                               ferry_world **world_out, ferry_error *error)
{
    ferry_bootstrap own;
    FY_TRY(fy_take_bootstrap(bootstrap, &own, error));
    FY_TRY(fy_check_use(own.all_gather != NULL && world_out != NULL,
                        "ferry_world_create_from_bootstrap needs a bootstrap that starts as "
                        "FERRY_BOOTSTRAP_INIT, its all_gather, and a place for the world",
                        error));
    FY_TRY(check_numbers("ferry_world_create_from_bootstrap", own.rank, own.n_ranks, error));
    fy_settings settings;
    FY_TRY(fy_settings_init(&settings, options, error));
    fy_meeting meeting = FY_MEETING_INIT;
    ferry_status status = fy_meet_bootstrap(&meeting, &own, &settings, error);
    return join(status, &meeting, &settings, NULL, world_out, error);
}

/*
 * Collective calls
 */

/* What every call that waits asks first; fine says whether its own arguments are. */
static ferry_status begin(ferry_world *world, bool fine, const char *call, const char *needs,
                          ferry_error *error)
{
    if (world == NULL || !fine) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%s needs a world%s", call, needs);
    }
    FY_TRY(fy_world_check_order(world, call, error));
    return fy_failure_get(world->failure, NULL, error);
}

static void meet(ferry_world *world, fy_joint_call call)
{
    fy_joint_enter(world, call, 0);
    fy_exchange_begin(world);
}

static void part(ferry_world *world)
{
    fy_exchange_end(world);
    fy_joint_leave(world);
}

ferry_status ferry_world_barrier(ferry_world *world, ferry_error *error)
{
    ferry_status status = begin(world, true, "ferry_world_barrier", "", error);
    if (status == FERRY_OK) {
        meet(world, FY_JOINT_BARRIER);
        status = world->ops->barrier(world, error);
        part(world);
    }
    return status;
}

static ferry_status gather(ferry_world *world, fy_joint_call call, const void *bytes,
                           size_t n_bytes, const void **all_out, const size_t **lengths_out,
                           ferry_error *error)
{
    meet(world, call);
    ferry_status status =
        world->ops->gather(world, FY_ALL_GATHER, 0, bytes, n_bytes, all_out, lengths_out, error);
    part(world);
    return status;
}

ferry_status ferry_world_all_gather_v(ferry_world *world, const void *bytes, size_t n_bytes,
                                      const void **all_out, const size_t **lengths_out,
                                      ferry_error *error)
{
    bool fine = (bytes != NULL || n_bytes == 0) && all_out != NULL && lengths_out != NULL;

    FY_TRY(begin(world, fine, "ferry_world_all_gather_v",
                 ", bytes (or none) and places for the results", error));
    return gather(world, FY_JOINT_ALL_GATHER_V, bytes, n_bytes, all_out, lengths_out, error);
}

ferry_status ferry_world_all_gather(ferry_world *world, const void *bytes, size_t n_bytes,
                                    const void **all_out, ferry_error *error)
{
    const void *all;
    const size_t *lengths;
    bool fine = (bytes != NULL || n_bytes == 0) && all_out != NULL;

    FY_TRY(begin(world, fine, "ferry_world_all_gather",
                 ", bytes (or none) and a place for the result", error));
    FY_TRY(gather(world, FY_JOINT_ALL_GATHER, bytes, n_bytes, &all, &lengths, error));
    /* All ranks compare the same numbers, so all say the same. */
    for (uint32_t rank = 1; rank < world->n_ranks; rank++) {
        if (lengths[rank] != lengths[0]) {
            return fy_fail(error, FERRY_ERR_MISUSE,
                           "ferry_world_all_gather: rank 0 gives %zu bytes, rank %u %zu; "
                           "ferry_world_all_gather_v takes different numbers",
                           lengths[0], rank, lengths[rank]);
        }
    }
    *all_out = all;
    return FERRY_OK;
}

ferry_status ferry_world_broadcast(ferry_world *world, uint32_t root, const void *bytes,
                                   size_t n_bytes, const void **bytes_out, size_t *n_bytes_out,
                                   ferry_error *error)
{
    bool is_root = world != NULL && world->rank == root;
    bool fine =
        (!is_root || bytes != NULL || n_bytes == 0) && bytes_out != NULL && n_bytes_out != NULL;

    FY_TRY(begin(world, fine, "ferry_world_broadcast",
                 ", on root bytes (or none), and places for the results", error));
    if (root >= world->n_ranks) {
        return fy_fail(error, FERRY_ERR_MISUSE, "ferry_world_broadcast: root is rank %u of %u",
                       root, world->n_ranks);
    }
    const size_t *lengths;
    meet(world, FY_JOINT_BROADCAST);
    ferry_status status = world->ops->gather(world, FY_BROADCAST, root, is_root ? bytes : NULL,
                                             is_root ? n_bytes : 0, bytes_out, &lengths, error);
    part(world);
    if (status == FERRY_OK) {
        *n_bytes_out = lengths[root];
    }
    return status;
}

/*
 * Messages
 */

ferry_status ferry_world_send(ferry_world *world, uint32_t to, uint32_t tag, const void *bytes,
                              size_t n_bytes, ferry_error *error)
{
    FY_TRY(begin(world, bytes != NULL || n_bytes == 0, "ferry_world_send", " and bytes (or none)",
                 error));
    if (to >= world->n_ranks) {
        return fy_fail(error, FERRY_ERR_MISUSE, "ferry_world_send: to rank %u of %u", to,
                       world->n_ranks);
    }
    if (n_bytes > FERRY_MESSAGE_BYTES) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "ferry_world_send: a message of %zu bytes; the longest has %d", n_bytes,
                       FERRY_MESSAGE_BYTES);
    }
    return world->ops->send(world, to, tag, bytes, n_bytes, true, error);
}

/* Seconds of a caller as nanoseconds; more than a century is as good as no limit. */
static int64_t limit_to_ns(double seconds, int64_t otherwise_ns)
{
    if (seconds < 0) {
        return otherwise_ns;
    }
    return seconds > 3e9 ? -1 : (int64_t)ceil(seconds * 1e9);
}

ferry_status ferry_world_receive(ferry_world *world, uint32_t from, uint32_t tag,
                                 double limit_seconds, const void **bytes_out, size_t *n_bytes_out,
                                 uint32_t *from_out, ferry_error *error)
{
    bool fine = bytes_out != NULL && n_bytes_out != NULL && !isnan(limit_seconds);

    FY_TRY(begin(world, fine, "ferry_world_receive",
                 ", a number of seconds and places for the message", error));
    if (from >= world->n_ranks && from != FERRY_ANY_RANK) {
        return fy_fail(error, FERRY_ERR_MISUSE, "ferry_world_receive: from rank %u of %u", from,
                       world->n_ranks);
    }
    int64_t limit_ns = limit_to_ns(limit_seconds, world->settings.entry_ns);
    return world->ops->receive(world, from, tag, limit_ns, bytes_out, n_bytes_out, from_out, error);
}

/*
 * Shrinking
 */

/*
 * Of a world that is well all ranks hear so together, for where others make another call nobody
 * would come to them. FERRY_OK: it has failed meanwhile.
 */
static ferry_status refuse_shrink(ferry_world *world, ferry_error *error)
{
    fy_joint_enter(world, FY_JOINT_SHRINK, 0);
    ferry_status status = ferry_world_barrier(world, error);
    fy_joint_leave(world);
    FY_TRY(fy_check_use(status != FERRY_OK,
                        "ferry_world_shrink: the world has not failed; ferry_world_abort ends it",
                        error));
    return status == FERRY_ERR_MISUSE ? status : FERRY_OK;
}

ferry_status ferry_world_shrink(ferry_world *world, uint32_t min_ranks, ferry_world **world_out,
                                ferry_error *error)
{
    FY_TRY(fy_check_use(world != NULL && world_out != NULL,
                        "ferry_world_shrink needs a world and a place for the new one", error));
    FY_TRY(fy_world_check_process(world, error));
    FY_TRY(fy_world_check_order(world, "ferry_world_shrink", error));
    if (min_ranks > world->n_ranks) {
        return fy_fail(error, FERRY_ERR_MISUSE, "ferry_world_shrink: at least %u of %u ranks",
                       min_ranks, world->n_ranks);
    }
    ferry_world *smaller = NULL;
    FY_TRY(fy_failed(world->failure) ? FERRY_OK : refuse_shrink(world, error));
    FY_TRY(world->ops->shrink(world, min_ranks == 0 ? 1 : min_ranks, &smaller, error));
    fy_world_run_shrink_hooks(world, smaller);
    *world_out = smaller;
    return FERRY_OK;
}

/*
 * Growing
 */

/* That a newcomer can be this member. */
static ferry_status check_member(const fy_growth *growth, uint32_t rank, ferry_error *error)
{
    uint32_t member = growth->members[rank];
    if (member >= FERRY_MAX_RANKS) {
        return fy_fail(error, FERRY_ERR_LIMIT, "ferry_world_grow: member %u; there are at most %u",
                       member, FERRY_MAX_RANKS);
    }
    for (uint32_t r = 0; r < rank; r++) {
        if (growth->members[r] == member) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "ferry_world_grow: a newcomer cannot be member %u, which is rank %u",
                           member, r);
        }
    }
    return FERRY_OK;
}

/* Who will be in the larger world; members of growth are to be freed. */
static ferry_status list_ranks(const ferry_world *world, const ferry_grow_options *options,
                               fy_growth *growth, ferry_error *error)
{
    growth->members = fy_alloc(growth->n_ranks, sizeof *growth->members);
    FY_TRY(fy_check_memory(growth->members != NULL, "the ranks of a world", error));
    growth->n_first = world->n_first;
    for (uint32_t r = 0; r < growth->n_ranks; r++) {
        bool is_new = r >= world->n_ranks;
        uint32_t number = r - world->n_ranks;
        growth->members[r] = !is_new                    ? world->members[r]
                             : options->members != NULL ? options->members[number]
                                                        : world->n_first + number;
        FY_TRY(is_new ? check_member(growth, r, error) : FERRY_OK);
        if (growth->members[r] >= growth->n_first) {
            growth->n_first = growth->members[r] + 1;
        }
    }
    return FERRY_OK;
}

static ferry_status read_growth(const ferry_world *world, const ferry_grow_options *options,
                                fy_growth *growth, ferry_error *error)
{
    const double most_seconds = 366.0 * 86400;
    uint32_t n_newcomers = options->n_newcomers == 0 ? 1 : options->n_newcomers;
    FY_TRY(fy_check_use(world->threads || options->newcomers_out == NULL,
                        "ferry_world_grow: newcomers_out is for worlds of threads; newcomers of a "
                        "world of processes call ferry_world_join",
                        error));
    if (!(options->join_seconds >= 0 && options->join_seconds <= most_seconds)) {
        return fy_fail(
            error, FERRY_ERR_MISUSE,
            "ferry_world_grow: join_seconds is %g; it must be a number of seconds up to a "
            "year, or zero for the default",
            options->join_seconds);
    }
    if (n_newcomers > FERRY_MAX_RANKS - world->n_ranks) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "ferry_world_grow: %u ranks and %u newcomers; a world has at most %u",
                       world->n_ranks, n_newcomers, FERRY_MAX_RANKS);
    }
    *growth =
        (fy_growth){.n_ranks = world->n_ranks + n_newcomers,
                    .path = options->path,
                    .join_ns = options->join_seconds > 0 ? limit_to_ns(options->join_seconds, 0)
                                                         : world->settings.join_ns,
                    .newcomers_out = options->newcomers_out};
    return list_ranks(world, options, growth, error);
}

/* All members want the same, or nothing happens. */
static ferry_status agree_on_growth(ferry_world *world, const fy_growth *growth,
                                    ferry_status status, ferry_error *error)
{
    uint64_t who = status != FERRY_OK
                       ? 0
                       : fy_hash64(growth->members, growth->n_ranks * sizeof *growth->members);
    uint64_t where = growth->path == NULL ? 0 : fy_hash64(growth->path, strlen(growth->path));
    fy_field fields[] = {
        {.name = "ranks of the larger world", .value = growth->n_ranks, .how = FY_SAME},
        {.name = "the hash of ferry_grow_options.members", .value = who, .how = FY_SAME},
        {.name = "the hash of ferry_grow_options.path", .value = where, .how = FY_SAME},
    };
    return fy_agree_on(world, FY_JOINT_GROW, 0, fields, sizeof fields / sizeof fields[0], status,
                       error);
}

ferry_status ferry_world_grow(ferry_world *world, const ferry_grow_options *options,
                              ferry_world **world_out, ferry_error *error)
{
    ferry_grow_options own;
    fy_growth growth = {0};
    ferry_error why = {.message = ""};
    FY_TRY(
        begin(world, world_out != NULL, "ferry_world_grow", " and a place for the new one", error));
    FY_TRY(fy_world_check_process(world, error));
    FY_TRY(fy_take_grow_options(options, &own, error));
    fy_joint_enter(world, FY_JOINT_GROW, 0);
    ferry_status status = read_growth(world, &own, &growth, &why);
    status = agree_on_growth(world, &growth, status, &why);
    FY_THEN(status, world->ops->grow(world, &growth, world_out, &why));
    fy_joint_leave(world);
    fy_free(growth.members);
    world->has_grown = world->has_grown || status == FERRY_OK;
    return fy_forward(error, status, &why);
}

ferry_status ferry_world_join(const char *path, const ferry_world_options *options,
                              ferry_world **world_out, ferry_error *error)
{
    FY_TRY(fy_check_use(world_out != NULL && (path == NULL || path[0] != '\0'),
                        "ferry_world_join needs a place for the world, and the path of a file or "
                        "NULL",
                        error));
    fy_settings settings;
    FY_TRY(fy_settings_init(&settings, options, error));
    ferry_status status = fy_join_world(path, &settings, world_out, error);
    fy_settings_cleanup(&settings);
    return status;
}
