/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Autotune: which modes and blocks are tried at which size, and what is chosen. All ranks take the
 * same decisions, because they look at nothing but times that all of them have.
 */
#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"
#include "collective/kernel.h"
#include "collective/library.h"
#include "collective/tune_heat.h"
#include "collective/tune_table.h"
#include "host/room.h"
#include "world/agree.h"
#include "world/bell.h"

#include <string.h>

enum {
    LEAST_BYTES = 8 << 10,
    MOST_MODES = FERRY_MIXED_N_MODES - FERRY_MIXED_FUSED_WAITS_MULTICAST,
    MOST_BLOCKS = 6, /* that are tried for a mode */
    N_BEST = 2,      /* modes for which they are */
    MOST_TRIALS = N_BEST * MOST_BLOCKS,
    MOST_LOOKS = 4, /* at how many calls make a sample */
};
_Static_assert(MOST_MODES + MOST_TRIALS + 2 * N_BEST <= FY_MOST_ENTRANTS, "all of a size");

static const uint64_t DEFAULT_BYTES = (uint64_t)64 << 20;

static const double POINT_SECONDS = 10e-3; /* what a mode and a size may take in a heat */
static const double LONG_SECONDS = 8e-3;   /* calls from here on are few, and need no company */
static const double OP_SECONDS = 5;        /* of an operation, before it hurries */
static const double FAR = 2;               /* times the best: no candidate any more */
static const double FAR_OF_LONG = 1.3;
static const double GROWS = 1.5; /* at twice the bytes: they are what takes the time */
static const double WINS = 0.97; /* less than this is no victory */

/* What is remembered of a mode from size to size of one operation. */
typedef struct mode_past {
    double seconds;       /* at the size before; 0: none */
    uint32_t block_lines; /* that was the fastest there */
    uint32_t n_behind;    /* sizes in a row at which it was far behind, and not for its waits */
} mode_past;

typedef struct search {
    ferry_mixed_comm *comm;
    fy_tuning *tuning;
    uint64_t most_bytes;
    ferry_buffer memory[2]; /* as they were allocated */
    fy_course course;
    mode_past past[FERRY_MIXED_N_MODES];
    uint32_t last_choice; /* FERRY_MIXED_MODE_DEFAULT: none */
    /* Of the present size: modes first, then blocks that are tried, then the finals. */
    fy_entrant entrants[FY_MOST_ENTRANTS];
    size_t n_modes, n_in; /* those that are not far behind come first */
} search;

static bool is_left_out(const search *s, uint32_t mode)
{
    return s->past[mode].n_behind >= 2;
}

/* Calls that take long, or have taken too long until now, are made no more often than they must. */
static bool takes_long(const search *s, const fy_entrant *best)
{
    return best->least >= LONG_SECONDS || s->course.spent >= OP_SECONDS;
}

/*
 * Times of modes
 */

static void enter_modes(search *s)
{
    s->n_modes = 0;
    for (size_t i = 0; i < s->comm->n_modes; i++) {
        uint32_t mode = s->comm->modes[i];
        if (mode != FERRY_MIXED_AUTOTUNE && !is_left_out(s, mode)) {
            s->entrants[s->n_modes++] = (fy_entrant){.mode = mode, .n_calls = 1};
        }
    }
}

static uint32_t rounds_for(const fy_entrant *best)
{
    enum { LEAST_ROUNDS = 3, MOST_ROUNDS = 20 };
    double rounds = POINT_SECONDS / (best->seconds * best->n_calls);
    return rounds < LEAST_ROUNDS  ? LEAST_ROUNDS
           : rounds > MOST_ROUNDS ? MOST_ROUNDS
                                  : (uint32_t)rounds;
}

/*
 * A look tells how many calls make a sample. What runs for the first time takes longer than it ever
 * will again, and a sample of a single call is mostly the ranks' coming together: so there is a
 * second look, and another one for as long as it finds that more calls fit in.
 */
static ferry_status look_at_modes(search *s, bool *is_long_out, ferry_error *error)
{
    fy_entrant *e = s->entrants;
    ferry_status status = FERRY_OK;
    for (int i = 0; i < MOST_LOOKS; i++) {
        status = fy_heat_run(&s->course, e, s->n_modes, 1, error);
        if (status != FERRY_OK) {
            break;
        }
        fy_heat_sort(e, s->n_modes, true);
        *is_long_out = takes_long(s, &e[0]);
        if (*is_long_out) {
            break;
        }
        bool more = fy_heat_set_calls(e, s->n_modes);
        fy_heat_clear(e, s->n_modes);
        if (!more && i > 0) {
            break;
        }
    }
    return status;
}

/* Who is far behind in all of his samples stays there; the others are timed at leisure. */
static ferry_status time_modes(search *s, ferry_error *error)
{
    fy_entrant *e = s->entrants;
    bool is_long = false;
    enter_modes(s);
    FY_TRY(look_at_modes(s, &is_long, error));
    ferry_status status = fy_heat_run(&s->course, e, s->n_modes, is_long ? 1 : 3, error);
    fy_heat_sort(e, s->n_modes, true);
    for (s->n_in = 1; s->n_in < s->n_modes; s->n_in++) {
        if (e[s->n_in].least > (is_long ? FAR_OF_LONG : FAR) * e[0].least) {
            break;
        }
    }
    FY_THEN(status, fy_heat_run(&s->course, e, s->n_in, is_long ? 2 : rounds_for(&e[0]), error));
    fy_heat_sort(e, s->n_in, false);
    return status;
}

/*
 * Blocks
 */

/*
 * The largest blocks that make sense, their halves, and so on. With several lanes a block of a
 * whole range would leave a lane without work at the next smaller sizes.
 */
static size_t list_blocks(const search *s, uint32_t blocks[MOST_BLOCKS])
{
    const ferry_mixed_comm *comm = s->comm;
    uint64_t line = FY_MIX_LINE_BYTES / comm->program.element_bytes;
    fy_geometry usual =
        fy_geometry_of(&fy_comm_program(comm)->limits,
                       s->course.bytes / comm->program.element_bytes, comm->program.element_bytes);
    uint64_t range = usual.lane_elements / line;
    uint64_t largest = usual.n_lanes > 1 ? fy_ceil_div(range, 2) : range;
    size_t n = 0;
    largest = fy_min(largest, fy_tuning_most_lines(comm));
    for (uint64_t lines = largest; n < MOST_BLOCKS; lines = fy_ceil_div(lines, 2)) {
        if (lines < fy_comm_program(comm)->limits.min_lines || lines <= 1) {
            break;
        }
        if (lines != usual.block_elements / line) {
            blocks[n++] = (uint32_t)lines;
        }
    }
    return n;
}

/* Of long calls only the block that won at the size before is tried. */
static size_t enter_blocks(search *s, fy_entrant *trials)
{
    uint32_t blocks[MOST_BLOCKS];
    size_t n_blocks = list_blocks(s, blocks), n = 0;
    for (size_t i = 0; i < s->n_in && i < N_BEST; i++) {
        const fy_entrant *e = &s->entrants[i];
        uint32_t last = s->past[e->mode].block_lines;
        bool has_blocks = !fy_mix_library_makes(s->comm->library, e->mode);
        for (size_t k = 0; k < n_blocks && has_blocks; k++) {
            if (!takes_long(s, e) || blocks[k] == last) {
                trials[n++] =
                    (fy_entrant){.mode = e->mode, .block_lines = blocks[k], .n_calls = e->n_calls};
            }
        }
    }
    return n;
}

/* The fastest trial of a mode, if it is a victory; trials are sorted. */
static const fy_entrant *find_winner(const fy_entrant *trials, size_t n, uint32_t mode,
                                     double seconds)
{
    for (size_t i = 0; i < n; i++) {
        if (trials[i].mode == mode && trials[i].block_lines != 0) {
            return trials[i].seconds < WINS * seconds ? &trials[i] : NULL;
        }
    }
    return NULL;
}

/* The best modes, each with the usual blocks and with those that have won, against each other. */
static ferry_status run_finals(search *s, const fy_entrant *trials, size_t n_trials,
                               fy_entrant *finals, ferry_error *error)
{
    size_t n = 0, n_best = fy_min(s->n_in, N_BEST);
    for (size_t i = 0; i < n_best; i++) {
        const fy_entrant *e = &s->entrants[i];
        const fy_entrant *winner = find_winner(trials, n_trials, e->mode, e->seconds);
        finals[n++] = (fy_entrant){.mode = e->mode, .n_calls = e->n_calls};
        if (winner != NULL) {
            finals[n++] = (fy_entrant){
                .mode = e->mode, .block_lines = winner->block_lines, .n_calls = e->n_calls};
        }
    }
    if (n == n_best) {
        return FERRY_OK; /* nobody has won */
    }
    FY_TRY(fy_heat_run(&s->course, finals, n, rounds_for(&s->entrants[0]), error));
    for (size_t i = 0, k = 0; i < n_best; i++, k++) {
        fy_entrant *e = &s->entrants[i];
        e->seconds = finals[k].seconds;
        if (k + 1 < n && finals[k + 1].mode == e->mode) {
            k++;
            bool wins = finals[k].seconds < WINS * e->seconds;
            e->seconds = wins ? finals[k].seconds : e->seconds;
            e->block_lines = wins ? finals[k].block_lines : 0;
        }
    }
    return FERRY_OK;
}

static ferry_status time_blocks(search *s, ferry_error *error)
{
    fy_entrant *trials = s->entrants + s->n_modes;
    size_t n = enter_blocks(s, trials);
    if (n == 0) {
        return FERRY_OK;
    }
    uint32_t n_rounds = s->entrants[0].seconds > POINT_SECONDS / MOST_BLOCKS ? 2 : 3;
    ferry_status status = fy_heat_run(&s->course, trials, n, n_rounds, error);
    fy_heat_sort(trials, n, false);
    return status == FERRY_OK ? run_finals(s, trials, n, trials + n, error) : status;
}

/*
 * What follows from the times
 */

/* The one of the size before stays, unless another one is clearly faster. */
static uint32_t choose(const search *s)
{
    const fy_entrant *best = &s->entrants[0];
    size_t n = fy_min(s->n_in, N_BEST);
    for (size_t i = 1; i < n; i++) {
        best = s->entrants[i].seconds < best->seconds ? &s->entrants[i] : best;
    }
    for (size_t i = 0; i < n; i++) {
        const fy_entrant *e = &s->entrants[i];
        if (e->mode == s->last_choice && WINS * e->seconds <= best->seconds) {
            return e->mode;
        }
    }
    return best->mode;
}

/*
 * A mode that is slower for its waits catches up as messages grow. One whose time grows with the
 * bytes, and is far behind all the same, does not.
 */
static void remember(search *s, const fy_entrant *e, double best_seconds)
{
    mode_past *past = &s->past[e->mode];
    bool grows = past->seconds > 0 && e->seconds >= GROWS * past->seconds;
    past->n_behind = grows && e->seconds >= FAR * best_seconds ? past->n_behind + 1 : 0;
    past->seconds = e->seconds;
    past->block_lines = e->block_lines;
}

static void add_timing(search *s, uint32_t mode, const fy_entrant *e, bool is_chosen)
{
    s->tuning->timings[s->tuning->n++] = (ferry_mixed_timing){
        .struct_size = sizeof(ferry_mixed_timing),
        .op = s->course.op,
        .mode = mode,
        .bytes = s->course.bytes,
        .block_lines = e == NULL ? 0 : e->block_lines,
        .seconds = e == NULL ? 0 : e->seconds,
        .chosen = is_chosen,
    };
}

static void record(search *s)
{
    uint32_t choice = choose(s);
    double best = 0;
    for (size_t i = 0; i < s->n_modes; i++) {
        best = s->entrants[i].mode == choice ? s->entrants[i].seconds : best;
    }
    for (size_t i = 0; i < s->comm->n_modes; i++) {
        uint32_t mode = s->comm->modes[i];
        const fy_entrant *found = NULL;
        for (size_t k = 0; k < s->n_modes; k++) {
            found = s->entrants[k].mode == mode ? &s->entrants[k] : found;
        }
        if (found != NULL) {
            remember(s, found, best);
        }
        if (mode != FERRY_MIXED_AUTOTUNE) {
            add_timing(s, mode, found, mode == choice);
        }
    }
    s->last_choice = choice;
}

static ferry_status time_op(search *s, uint32_t op, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    memset(s->past, 0, sizeof s->past);
    s->last_choice = FERRY_MIXED_MODE_DEFAULT;
    s->course.op = op;
    s->course.spent = 0;
    /* What made the tensors, or moved the large ones, on this core was none of the strangers that
     * yielding is given up for. */
    fy_world_forgive_yields(s->comm->world);
    for (uint64_t bytes = LEAST_BYTES; status == FERRY_OK && bytes <= s->most_bytes; bytes *= 2) {
        s->course.bytes = bytes;
        status = time_modes(s, error);
        FY_THEN(status, time_blocks(s, error));
        if (status == FERRY_OK) {
            record(s);
        }
    }
    return status;
}

/*
 * Memory
 */

/* Chunks of the larger one of both tensors, over all operations. */
static uint32_t most_chunks(const ferry_mixed_comm *comm)
{
    uint32_t most = 1;
    for (size_t i = 0; i < comm->n_ops; i++) {
        most = (uint32_t)fy_max(most, fy_mix_op_in_chunks(&comm->program.topology, comm->ops[i]));
        most = (uint32_t)fy_max(most, fy_mix_op_out_chunks(&comm->program.topology, comm->ops[i]));
    }
    return most;
}

static uint64_t wanted_bytes(const ferry_mixed_comm *comm)
{
    uint64_t limit =
        comm->options.autotune_bytes != 0 ? comm->options.autotune_bytes : DEFAULT_BYTES;
    uint64_t bytes = LEAST_BYTES;
    while (bytes <= limit / 2) {
        bytes *= 2;
    }
    return bytes;
}

/* This rank's share of what is free: all ranks of the machine take theirs at the same time. */
static ferry_status find_share(const ferry_world *world, uint64_t *share_out, ferry_error *error)
{
    uint64_t room = 0;
    ferry_status status = fy_room(&room, error);
    *share_out = room / (world->settings.nodes == NULL ? world->n_local_ranks : world->n_ranks);
    return status;
}

/* The largest piece that all ranks have room for. */
static ferry_status agree_on_size(search *s, ferry_error *error)
{
    uint64_t share = 0;
    uint64_t chunks = 2 * (uint64_t)most_chunks(s->comm);
    ferry_status status = find_share(s->comm->world, &share, error);
    status = fy_tune_meet(s->comm, status, NULL, &share, error);
    uint64_t wanted = wanted_bytes(s->comm);
    s->most_bytes = wanted;
    while (s->most_bytes > LEAST_BYTES && s->most_bytes > share / chunks) {
        s->most_bytes /= 2;
    }
    if (status == FERRY_OK && s->most_bytes > share / chunks) {
        status = fy_fail(error, FERRY_ERR_NO_MEMORY,
                         "autotune needs tensors of %llu bytes in each rank, but there is room for "
                         "%llu",
                         (unsigned long long)(s->most_bytes * chunks), (unsigned long long)share);
    } else if (status == FERRY_OK && s->most_bytes < wanted) {
        fy_log(FERRY_LOG_INFO, "autotune: pieces of %llu bytes have no room, %llu is the largest",
               (unsigned long long)wanted, (unsigned long long)s->most_bytes);
    }
    return status;
}

/* The one whose memory calls are measured on; NULL: they are the host's. */
static const fy_mix_device *device_of(const ferry_mixed_comm *comm)
{
    return comm->kernel != NULL    ? fy_mix_kernel_device(comm->kernel)
           : comm->library != NULL ? fy_mix_library_device(comm->library)
                                   : NULL;
}

/*
 * Ones and numbers near them: nothing that is slow to add. All pages are there afterwards. Memory
 * of a device is zero.
 */
static ferry_status make_tensor(search *s, int which, ferry_buffer *tensor_out, ferry_error *error)
{
    uint64_t bytes = s->most_bytes * most_chunks(s->comm);
    ferry_buffer *memory = &s->memory[which];
    const fy_mix_device *device = device_of(s->comm);
    if (device != NULL) {
        FY_TRY(fy_mix_device_alloc(device, bytes, memory, error));
        *tensor_out = *memory;
        return FERRY_OK;
    }
    char *base = fy_alloc(bytes + FY_MIX_LINE_BYTES, 1);
    FY_TRY(fy_check_memory(base != NULL, "what autotune measures with", error));
    memory->base = base;
    base += (FY_MIX_LINE_BYTES - (uintptr_t)base % FY_MIX_LINE_BYTES) % FY_MIX_LINE_BYTES;
    memset(base, 0x3c, bytes);
    *tensor_out = ferry_buffer_of(base, bytes);
    return FERRY_OK;
}

static void drop_tensor(search *s, int which)
{
    const fy_mix_device *device = device_of(s->comm);
    if (device != NULL) {
        fy_mix_device_free(device, &s->memory[which]);
    } else {
        fy_free(s->memory[which].base);
    }
}

static size_t count_timings(const search *s)
{
    size_t n_sizes = 1;
    for (uint64_t bytes = LEAST_BYTES; bytes < s->most_bytes; bytes *= 2) {
        n_sizes++;
    }
    return s->comm->n_ops * s->comm->n_modes * n_sizes;
}

static ferry_status prepare(search *s, ferry_error *error)
{
    s->tuning = fy_tuning_create(count_timings(s));
    s->course.comm = s->comm;
    FY_TRY(fy_check_memory(s->tuning != NULL, "what autotune measures", error));
    FY_TRY(make_tensor(s, 0, &s->course.in, error));
    return make_tensor(s, 1, &s->course.out, error);
}

static ferry_status time_all(search *s, ferry_error *error)
{
    int64_t begin = fy_now_ns();
    ferry_status status = FERRY_OK;
    for (size_t i = 0; status == FERRY_OK && i < s->comm->n_ops; i++) {
        status = time_op(s, s->comm->ops[i], error);
    }
    if (status != FERRY_OK) {
        /* Others may be within a call that this rank makes no more. */
        fy_comm_break(s->comm, status, "autotune failed on rank %u: %s",
                      s->comm->program.topology.world_rank, error->message);
        return status;
    }
    fy_tuning_index(s->tuning);
    fy_tuning_adopt(s->comm, s->tuning);
    fy_log(FERRY_LOG_INFO, "autotune: %zu times up to %llu bytes in %.1f s", s->tuning->n,
           (unsigned long long)s->most_bytes, (double)(fy_now_ns() - begin) * 1e-9);
    s->tuning = NULL;
    return FERRY_OK;
}

ferry_status fy_tune_run(ferry_mixed_comm *comm, ferry_error *error)
{
    ferry_error own;
    search s = {.comm = comm};
    error = error == NULL ? &own : error;
    ferry_status status = agree_on_size(&s, error);
    FY_THEN(status, fy_agree(comm->world, prepare(&s, error), error));
    FY_THEN(status, time_all(&s, error));
    fy_tune_destroy(s.tuning);
    drop_tensor(&s, 0);
    drop_tensor(&s, 1);
    return status;
}
