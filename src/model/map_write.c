/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes ferry.map/1. Tensors of a finished map stand in the order of their names, so those of
 * alike layers and experts are neighbours: as many as possible are one entry with a count, if their
 * boxes are alike but for numbers in the names of sources that go with those of the tensors. Of the
 * boxes of one tensor, those that go on by equal steps are one with a repeat.
 */
#include "model/map.h"

#include "base/sort.h"
#include "base/writer.h"
#include "model/map_name.h"

#include <stdio.h>
#include <string.h>

enum { MOST_LOOPS = 8, MOST_REPEATS = 4, NO_LOOP = 0, PATTERN_BYTES = FERRY_NAME_BYTES + 1024 };

/* One loop of an entry: a number of the name that counts on. */
typedef struct entry_loop {
    uint32_t number; /* which of the name */
    uint32_t count;
} entry_loop;

/* Loops from the inner to the outer one. */
typedef struct entry_grid {
    uint32_t first; /* a tensor */
    uint32_t n_tensors;
    size_t n_loops;
    entry_loop loops[MOST_LOOPS];
} entry_grid;

/* For each number in the name of a box's source the loop that it goes with, from 1 on. */
typedef struct ties {
    unsigned char loop[FY_MAP_MOST_NUMBERS];
} ties;

typedef struct box_loop {
    uint32_t count;
    uint64_t begin[FERRY_MAX_DIMS];
    uint64_t at[FERRY_MAX_DIMS];
    bool moves[FY_MAP_MOST_NUMBERS]; /* numbers of the source's name that count on */
} box_loop;

typedef struct writing {
    const ferry_map *map;
    fy_writer *writer;
    fy_arena arena;
    fy_map_name *source_names, *target_names; /* by their numbers */
    ties *ties;                               /* of each box of the first tensor of an entry */
    fy_feed *sorted;                          /* the boxes of a tensor as they are written */
    ties *sorted_ties;
    size_t capacity;
    char pattern[PATTERN_BYTES];
} writing;

/* Text that a reader would take for a number's place. */
static bool has_braces(const char *name)
{
    for (const char *at = strchr(name, '{'); at != NULL; at = strchr(at + 1, '{')) {
        if (at[1] >= '0' && at[1] <= '9') {
            return true;
        }
    }
    return false;
}

static const fy_map_name *source_name(const writing *w, const fy_feed *feed)
{
    return &w->source_names[feed->tensor];
}

static bool may_count(const writing *w, const fy_tensor *tensor, const char *name)
{
    bool clean = !has_braces(name);
    for (uint32_t i = 0; i < tensor->n_feeds && clean; i++) {
        clean = !has_braces(source_name(w, &tensor->feeds[i])->name);
    }
    return clean;
}

/* Whether number `number` of the name is greater by `by` and all others are equal. */
static bool name_follows(const fy_map_name *a, const fy_map_name *b, uint32_t number, uint64_t by)
{
    if (!fy_map_name_is_alike(a, b)) {
        return false;
    }
    for (uint32_t i = 0; i < a->n_numbers; i++) {
        if (b->numbers[i] != a->numbers[i] + (i == number ? by : 0)) {
            return false;
        }
    }
    return true;
}

static uint32_t source_dims(const writing *w, const fy_feed *feed)
{
    return w->map->sources.tensors[feed->tensor].n_dims;
}

static bool same_place(const fy_feed *a, const fy_feed *b)
{
    return a->n_dims == b->n_dims && memcmp(a->begin, b->begin, sizeof a->begin) == 0 &&
           memcmp(a->at, b->at, sizeof a->at) == 0 &&
           memcmp(a->shape, b->shape, sizeof a->shape) == 0;
}

/*
 * Whether the names of a box's sources go with a loop: each number stays, or rises with it. The
 * first look says which; it must be the same ever after, and no two loops move one number.
 */
static bool sources_follow(const fy_map_name *a, const fy_map_name *b, ties *t, unsigned char loop,
                           uint64_t by, bool is_first)
{
    if (!fy_map_name_is_alike(a, b)) {
        return false;
    }
    for (uint32_t i = 0; i < a->n_numbers; i++) {
        bool rises = b->numbers[i] == a->numbers[i] + by;
        if (is_first && rises && t->loop[i] == NO_LOOP) {
            t->loop[i] = loop;
        }
        if (t->loop[i] == loop ? !rises : b->numbers[i] != a->numbers[i]) {
            return false;
        }
    }
    return true;
}

static bool boxes_follow(writing *w, const fy_tensor *a, const fy_tensor *b, unsigned char loop,
                         uint64_t by, bool is_first)
{
    if (a->n_feeds != b->n_feeds) {
        return false;
    }
    for (uint32_t i = 0; i < a->n_feeds; i++) {
        const fy_feed *x = &a->feeds[i], *y = &b->feeds[i];
        if (!same_place(x, y) || source_dims(w, x) != source_dims(w, y) ||
            !sources_follow(source_name(w, x), source_name(w, y), &w->ties[i], loop, by,
                            is_first)) {
            return false;
        }
    }
    return true;
}

/* Whether the block of tensors number `by` from the first is as the first, moved by a loop. */
static bool block_follows(writing *w, const fy_map_side *side, const fy_map_name *names,
                          const entry_grid *grid, const entry_loop *loop, uint32_t by)
{
    uint32_t size = grid->n_tensors;
    for (uint32_t i = 0; i < size; i++) {
        uint32_t a = grid->first + i, b = grid->first + by * size + i;
        if (!name_follows(&names[a], &names[b], loop->number, by) ||
            !fy_map_is_alike(&side->tensors[a], &side->tensors[b]) ||
            !boxes_follow(w, &side->tensors[a], &side->tensors[b],
                          (unsigned char)(grid->n_loops + 1), by, by == 1 && i == 0)) {
            return false;
        }
    }
    return true;
}

static void forget_loop(writing *w, const fy_tensor *first, unsigned char loop)
{
    for (uint32_t i = 0; i < first->n_feeds; i++) {
        for (uint32_t k = 0; k < FY_MAP_MOST_NUMBERS; k++) {
            w->ties[i].loop[k] = w->ties[i].loop[k] == loop ? NO_LOOP : w->ties[i].loop[k];
        }
    }
}

/* The tensors from a first one on that one entry can stand for. */
static entry_grid find_grid(writing *w, const fy_map_side *side, const fy_map_name *names,
                            uint32_t first)
{
    entry_grid grid = {.first = first, .n_tensors = 1};
    const fy_tensor *tensor = &side->tensors[first];
    memset(w->ties, 0, tensor->n_feeds * sizeof *w->ties);
    if (!may_count(w, tensor, names[first].name)) {
        return grid;
    }
    for (uint32_t i = names[first].n_numbers; i-- > 0 && grid.n_loops < MOST_LOOPS;) {
        entry_loop loop = {.number = names[first].places[i], .count = 1};
        while ((uint64_t)first + (loop.count + 1u) * (uint64_t)grid.n_tensors <= side->n &&
               block_follows(w, side, names, &grid, &loop, loop.count)) {
            loop.count++;
        }
        if (loop.count == 1) {
            forget_loop(w, tensor, (unsigned char)(grid.n_loops + 1));
            continue;
        }
        grid.loops[grid.n_loops++] = loop;
        grid.n_tensors *= loop.count;
    }
    return grid;
}

/*
 * A name with the places of numbers: of number i that of loop place[i], or -1 where it stays as it
 * is.
 */
static const char *print_pattern(writing *w, const fy_map_name *name, const int *place)
{
    size_t used = 0;
    uint32_t number = 0;
    if (name->n_numbers == 0) {
        return name->name;
    }
    for (const char *at = name->text; *at != '\0'; at++) {
        if (*at != FY_MAP_NUMBER) {
            w->pattern[used++] = *at;
            continue;
        }
        unsigned long long value = name->numbers[number];
        int loop = place[number++];
        char *to = w->pattern + used;
        size_t room = sizeof w->pattern - used;
        used += (size_t)(loop < 0     ? snprintf(to, room, "%llu", value)
                         : value == 0 ? snprintf(to, room, "{%d}", loop)
                                      : snprintf(to, room, "{%d+%llu}", loop, value));
    }
    w->pattern[used] = '\0';
    return w->pattern;
}

static void write_numbers(fy_writer *w, const uint64_t *numbers, uint32_t n)
{
    fy_write_text(w, "[");
    for (uint32_t i = 0; i < n; i++) {
        fy_write_text(w, i == 0 ? "" : ",");
        fy_write_u64(w, numbers[i]);
    }
    fy_write_text(w, "]");
}

/* Loops are numbered from the outer one, and kept from the inner one. */
static int loop_place(const entry_grid *grid, size_t loop)
{
    return (int)(grid->n_loops - 1 - loop);
}

static void write_head(writing *w, const entry_grid *grid, const fy_map_name *name,
                       const fy_tensor *tensor)
{
    char dtype[FERRY_DTYPE_TEXT_BYTES];
    int place[FY_MAP_MOST_NUMBERS];
    for (uint32_t i = 0; i < FY_MAP_MOST_NUMBERS; i++) {
        place[i] = -1;
    }
    for (size_t i = 0; i < grid->n_loops; i++) {
        place[grid->loops[i].number] = loop_place(grid, i);
    }
    ferry_dtype_format(tensor->dtype, dtype, sizeof dtype);
    fy_write_text(w->writer, "{\"name\":");
    fy_write_string(w->writer, print_pattern(w, name, place));
    for (size_t i = grid->n_loops; i > 0; i--) {
        fy_write_text(w->writer, i == grid->n_loops ? ",\"count\":[" : ",");
        fy_write_u64(w->writer, grid->loops[i - 1].count);
    }
    fy_write_text(w->writer, grid->n_loops > 0 ? "],\"shape\":" : ",\"shape\":");
    write_numbers(w->writer, tensor->shape, tensor->n_dims);
    fy_write_text(w->writer, ",\"dtype\":");
    fy_write_string(w->writer, dtype);
}

/* The steps from one box to another; false: they cannot be said. */
static bool find_step(const writing *w, const fy_feed *a, const fy_feed *b, box_loop *step)
{
    const fy_map_name *x = source_name(w, a), *y = source_name(w, b);
    *step = (box_loop){.count = 1};
    if (!fy_map_name_is_alike(x, y) || memcmp(a->shape, b->shape, sizeof a->shape) != 0 ||
        source_dims(w, a) != source_dims(w, b)) {
        return false;
    }
    for (uint32_t d = 0; d < FERRY_MAX_DIMS; d++) {
        if (b->begin[d] < a->begin[d] || b->at[d] < a->at[d]) {
            return false;
        }
        step->begin[d] = b->begin[d] - a->begin[d];
        step->at[d] = b->at[d] - a->at[d];
    }
    for (uint32_t i = 0; i < x->n_numbers; i++) {
        step->moves[i] = y->numbers[i] == x->numbers[i] + 1;
        if (!step->moves[i] && y->numbers[i] != x->numbers[i]) {
            return false;
        }
    }
    return true;
}

/* Whether a box is another one, `by` steps further. */
static bool is_moved(const writing *w, size_t a, size_t b, const box_loop *step, uint64_t by)
{
    const fy_feed *x = &w->sorted[a], *y = &w->sorted[b];
    const fy_map_name *m = source_name(w, x), *n = source_name(w, y);
    if (!fy_map_name_is_alike(m, n) || source_dims(w, x) != source_dims(w, y) ||
        memcmp(x->shape, y->shape, sizeof x->shape) != 0 ||
        memcmp(&w->sorted_ties[a], &w->sorted_ties[b], sizeof(ties)) != 0) {
        return false;
    }
    for (uint32_t d = 0; d < FERRY_MAX_DIMS; d++) {
        if (y->begin[d] - x->begin[d] != by * step->begin[d] ||
            y->at[d] - x->at[d] != by * step->at[d]) {
            return false;
        }
    }
    for (uint32_t i = 0; i < m->n_numbers; i++) {
        if (n->numbers[i] != m->numbers[i] + (step->moves[i] ? by : 0)) {
            return false;
        }
    }
    return true;
}

static bool all_moved(const writing *w, size_t first, size_t size, const box_loop *step,
                      uint64_t by)
{
    for (size_t i = 0; i < size; i++) {
        if (!is_moved(w, first + i, first + (size_t)by * size + i, step, by)) {
            return false;
        }
    }
    return true;
}

/* A number of a name is moved by one loop at most, be it of the box or of the entry. */
static bool is_free(const writing *w, size_t first, const box_loop *step, const box_loop *inner,
                    size_t n_inner)
{
    for (uint32_t i = 0; i < FY_MAP_MOST_NUMBERS; i++) {
        bool taken = w->sorted_ties[first].loop[i] != NO_LOOP;
        for (size_t k = 0; k < n_inner; k++) {
            taken = taken || inner[k].moves[i];
        }
        if (taken && step->moves[i]) {
            return false;
        }
    }
    return true;
}

/* Loops from the inner to the outer one, that the boxes from first on go through; how many. */
static size_t find_repeats(const writing *w, size_t first, size_t n, box_loop *loops,
                           size_t *n_boxes_out)
{
    size_t n_loops = 0, size = 1;
    while (n_loops < MOST_REPEATS && first + 2 * size <= n) {
        box_loop step;
        if (!find_step(w, &w->sorted[first], &w->sorted[first + size], &step) ||
            !is_free(w, first, &step, loops, n_loops)) {
            break;
        }
        while (first + (step.count + 1u) * size <= n &&
               all_moved(w, first, size, &step, step.count)) {
            step.count++;
        }
        if (step.count == 1) {
            break;
        }
        loops[n_loops++] = step;
        size *= step.count;
    }
    *n_boxes_out = size;
    return n_loops;
}

static void write_repeats(writing *w, const box_loop *loops, size_t n, uint32_t src_pad,
                          uint32_t dst_pad, uint32_t n_dims)
{
    static const uint64_t zeros[FERRY_MAX_DIMS];
    fy_write_text(w->writer, ",\"repeat\":[");
    for (size_t i = n; i > 0; i--) {
        const box_loop *loop = &loops[i - 1];
        fy_write_text(w->writer, i == n ? "{\"count\":" : ",{\"count\":");
        fy_write_u64(w->writer, loop->count);
        if (memcmp(loop->begin, zeros, sizeof zeros) != 0) {
            fy_write_text(w->writer, ",\"begin\":");
            write_numbers(w->writer, loop->begin + src_pad, n_dims - src_pad);
        }
        if (memcmp(loop->at, zeros, sizeof zeros) != 0) {
            fy_write_text(w->writer, ",\"at\":");
            write_numbers(w->writer, loop->at + dst_pad, n_dims - dst_pad);
        }
        fy_write_text(w->writer, "}");
    }
    fy_write_text(w->writer, "]");
}

/* Which loop each number of a source's name goes with, as readers count them. */
static void place_numbers(const writing *w, const entry_grid *grid, size_t box,
                          const box_loop *loops, size_t n_loops, int *place)
{
    for (uint32_t i = 0; i < FY_MAP_MOST_NUMBERS; i++) {
        unsigned char tie = w->sorted_ties[box].loop[i];
        place[i] = tie == NO_LOOP ? -1 : loop_place(grid, tie - 1u);
        for (size_t k = 0; k < n_loops; k++) {
            if (loops[k].moves[i]) {
                place[i] = (int)(grid->n_loops + n_loops - 1 - k);
            }
        }
    }
}

static void write_box(writing *w, const entry_grid *grid, const fy_tensor *tensor, size_t box,
                      const box_loop *loops, size_t n_loops)
{
    const fy_feed *feed = &w->sorted[box];
    uint32_t src_pad = feed->n_dims - w->map->sources.tensors[feed->tensor].n_dims;
    uint32_t dst_pad = feed->n_dims - tensor->n_dims;
    int place[FY_MAP_MOST_NUMBERS];
    place_numbers(w, grid, box, loops, n_loops, place);
    fy_write_text(w->writer, "{\"tensor\":");
    fy_write_string(w->writer, print_pattern(w, source_name(w, feed), place));
    fy_write_text(w->writer, ",\"begin\":");
    write_numbers(w->writer, feed->begin + src_pad, feed->n_dims - src_pad);
    fy_write_text(w->writer, ",\"shape\":");
    write_numbers(w->writer, feed->shape + src_pad, feed->n_dims - src_pad);
    fy_write_text(w->writer, ",\"at\":");
    write_numbers(w->writer, feed->at + dst_pad, feed->n_dims - dst_pad);
    if (n_loops > 0) {
        write_repeats(w, loops, n_loops, src_pad, dst_pad, feed->n_dims);
    }
    fy_write_text(w->writer, "}");
}

/* By source, whose numbers are in the order of names, and then by place: so boxes of alike sources
 * stand together. */
typedef struct box_key {
    const fy_feed *feed;
    uint32_t box;
} box_key;

static int compare_keys(const void *a, const void *b)
{
    const box_key *x = a, *y = b;
    if (x->feed->tensor != y->feed->tensor) {
        return x->feed->tensor < y->feed->tensor ? -1 : 1;
    }
    return (x->box > y->box) - (x->box < y->box);
}

static ferry_status sort_boxes(writing *w, const fy_tensor *tensor, ferry_error *error)
{
    box_key *keys = fy_alloc(tensor->n_feeds, sizeof *keys);
    FY_TRY(fy_check_memory(keys != NULL, "the boxes of a map", error));
    for (uint32_t i = 0; i < tensor->n_feeds; i++) {
        keys[i] = (box_key){.feed = &tensor->feeds[i], .box = i};
    }
    fy_sort(keys, tensor->n_feeds, sizeof *keys, compare_keys);
    for (uint32_t i = 0; i < tensor->n_feeds; i++) {
        w->sorted[i] = *keys[i].feed;
        w->sorted_ties[i] = w->ties[keys[i].box];
    }
    fy_free(keys);
    return FERRY_OK;
}

static ferry_status write_source(writing *w, const entry_grid *grid, const fy_tensor *tensor,
                                 ferry_error *error)
{
    FY_TRY(sort_boxes(w, tensor, error));
    fy_write_text(w->writer, ",\"source\":");
    if (fy_map_is_whole(w->map, tensor)) {
        int place[FY_MAP_MOST_NUMBERS];
        place_numbers(w, grid, 0, NULL, 0, place);
        fy_write_string(w->writer, print_pattern(w, source_name(w, &w->sorted[0]), place));
        return FERRY_OK;
    }
    for (size_t i = 0, n_boxes; i < tensor->n_feeds; i += n_boxes) {
        box_loop loops[MOST_REPEATS];
        size_t n_loops = 0;
        n_boxes = 1;
        if (!has_braces(source_name(w, &w->sorted[i])->name)) {
            n_loops = find_repeats(w, i, tensor->n_feeds, loops, &n_boxes);
        }
        fy_write_text(w->writer, i == 0 ? "[" : ",\n  ");
        write_box(w, grid, tensor, i, loops, n_loops);
    }
    fy_write_text(w->writer, "]");
    return FERRY_OK;
}

static ferry_status write_side(writing *w, const fy_map_side *side, const fy_map_name *names,
                               ferry_error *error)
{
    for (uint32_t i = 0; i < side->n;) {
        entry_grid grid = find_grid(w, side, names, i);
        fy_write_text(w->writer, i == 0 ? "\n " : ",\n ");
        write_head(w, &grid, &names[i], &side->tensors[i]);
        if (side == &w->map->targets) {
            FY_TRY(write_source(w, &grid, &side->tensors[i], error));
        }
        fy_write_text(w->writer, "}");
        i += grid.n_tensors;
    }
    return FERRY_OK;
}

static ferry_status read_names(writing *w, const fy_map_side *side, fy_map_name **names_out,
                               ferry_error *error)
{
    fy_map_name *names = fy_arena_alloc(&w->arena, side->n, sizeof *names);
    FY_TRY(fy_check_memory(names != NULL, "the names of a map", error));
    FY_TRY(fy_map_names_sort(&w->arena, side->tensors, side->n, names, error)); /* as they are */
    for (uint32_t i = 0; i < side->n; i++) {
        if (side->tensors[i].n_feeds > w->capacity) {
            w->capacity = side->tensors[i].n_feeds;
        }
    }
    *names_out = names;
    return FERRY_OK;
}

static ferry_status write_all(writing *w, ferry_error *error)
{
    FY_TRY(read_names(w, &w->map->sources, &w->source_names, error));
    FY_TRY(read_names(w, &w->map->targets, &w->target_names, error));
    w->ties = fy_arena_alloc(&w->arena, w->capacity, sizeof *w->ties);
    w->sorted = fy_arena_alloc(&w->arena, w->capacity, sizeof *w->sorted);
    w->sorted_ties = fy_arena_alloc(&w->arena, w->capacity, sizeof *w->sorted_ties);
    FY_TRY(fy_check_memory(w->ties != NULL && w->sorted != NULL && w->sorted_ties != NULL,
                           "the boxes of a map", error));
    fy_write_text(w->writer, "{\"format\":\"ferry.map/1\",\"sources\":[");
    FY_TRY(write_side(w, &w->map->sources, w->source_names, error));
    fy_write_text(w->writer, "],\n\"targets\":[");
    FY_TRY(write_side(w, &w->map->targets, w->target_names, error));
    fy_write_text(w->writer, "]}\n");
    return FERRY_OK;
}

ferry_status ferry_map_write_json(const ferry_map *map, ferry_write_fn write, void *context,
                                  ferry_error *error)
{
    FY_TRY(fy_map_check_finished(map, "ferry_map_write_json", error));
    FY_TRY(fy_check_use(write != NULL, "ferry_map_write_json needs a function that writes", error));
    writing *w = fy_alloc_zeroed(1, sizeof *w);
    fy_writer *writer = fy_alloc(1, sizeof *writer);
    ferry_status status = fy_check_memory(w != NULL && writer != NULL, "the text of a map", error);
    if (status == FERRY_OK) {
        fy_writer_init(writer, write, context);
        w->map = map;
        w->writer = writer;
        status = write_all(w, error);
    }
    FY_THEN(status, fy_writer_finish(writer, error));
    if (w != NULL) {
        fy_arena_cleanup(&w->arena);
    }
    fy_free(w);
    fy_free(writer);
    return status;
}
