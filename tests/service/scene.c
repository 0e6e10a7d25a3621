/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "service/scene.h"

#include "support/devices.h"

enum { GUARD = 96 };

/* Bytes of a place: any byte can be had alone, so that boxes can be filled in any order. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/*
 * A version with bits from SCENE_EDITS on is the one below these bits, but for some places that are
 * drawn by them.
 */
typedef struct scene_key {
    uint64_t base, edit;
} scene_key;

static uint64_t key_at(scene_key key, uint64_t offset)
{
    enum { EDITED_BYTES = 37 * 8, EDITED_OF = 24 };
    bool is_edited = key.edit != 0 && mix(key.edit + offset / EDITED_BYTES) % EDITED_OF == 0;
    return is_edited ? key.edit : key.base;
}

static unsigned char byte_at(scene_key of, uint64_t offset)
{
    uint64_t key = key_at(of, offset);
    return (unsigned char)(mix(key + (offset >> 3) * 0x9e3779b97f4a7c15u) >> (8 * (offset & 7)));
}

static scene_key key_of(const scene *s, uint32_t rank, uint32_t buffer, uint64_t version)
{
    uint64_t place = mix(s->seed * 1000003 + rank * 4001 + buffer * 101 + 17);
    uint64_t edit = version / SCENE_EDITS;
    return (scene_key){.base = place + mix(version % SCENE_EDITS * 77 + 5),
                       .edit = edit == 0 ? 0 : (place ^ mix(edit)) | 1};
}

static unsigned char poison_at(uint64_t offset)
{
    return (unsigned char)(0xa5 ^ (offset * 37));
}

/* Drawing */

static void flat_end(scene_end *end, uint64_t offset, uint64_t bytes)
{
    *end = (scene_end){.flat = true, .element_bytes = 1, .offset = offset, .n_dims = 1};
    end->length[0] = bytes;
    end->stride[0] = 1;
}

static uint64_t extent_of(const scene_end *end)
{
    uint64_t extent = end->element_bytes;
    for (uint32_t d = 0; d < end->n_dims; d++) {
        extent += (end->length[d] - 1) * end->stride[d];
    }
    return extent;
}

static uint64_t small_divisor(uint64_t *random, uint64_t n, uint32_t most)
{
    uint64_t divisor = dice(random, 1, most);
    while (n % divisor != 0) {
        divisor--;
    }
    return divisor;
}

/* A box of so many bytes with gaps here and there, at offset 0. */
static void draw_box(uint64_t *random, uint64_t bytes, scene_end *end)
{
    *end = (scene_end){.element_bytes = small_divisor(random, bytes, 16)};
    uint64_t n = bytes / end->element_bytes;
    uint32_t most_dims = dice(random, n > 1 ? 1 : 0, one_in(random, 4) ? FERRY_MAX_DIMS : 4);
    end->n_dims = most_dims;
    for (uint32_t d = most_dims; d-- > 0;) {
        end->length[d] = d == 0 ? n : small_divisor(random, n, d + 1 == most_dims ? 4096 : 24);
        n /= end->length[d];
    }
    uint32_t order[FERRY_MAX_DIMS]; /* of memory, the slowest first: now and then another one */
    for (uint32_t d = 0; d < most_dims; d++) {
        uint32_t at = one_in(random, 3) ? random_below(random, d + 1) : d;
        memmove(order + at + 1, order + at, (d - at) * sizeof *order);
        order[at] = d;
    }
    uint64_t extent = end->element_bytes;
    for (uint32_t i = most_dims; i-- > 0;) {
        uint32_t d = order[i];
        uint64_t gap =
            one_in(random, 3) ? dice(random, 0, (uint32_t)(extent < 64 ? extent : 64)) : 0;
        end->stride[d] = extent + gap;
        extent = (end->length[d] - 1) * end->stride[d] + extent;
    }
}

static void draw_source_end(scene *s, uint64_t *random, scene_task *task)
{
    uint32_t first = random_below(random, MOST_BUFFERS);
    const scene_buffer *buffer;
    scene_end end;
    flat_end(&end, 0, task->bytes);
    for (uint32_t tries = 0; !one_in(random, 3) && tries < 3; tries++) {
        scene_end box;
        draw_box(random, task->bytes, &box);
        if (extent_of(&box) <= s->buffers[task->from][first].source_bytes) {
            end = box;
            break;
        }
    }
    for (uint32_t i = 0; i < MOST_BUFFERS; i++) {
        uint32_t number = (first + i) % MOST_BUFFERS;
        buffer = &s->buffers[task->from][number];
        uint64_t extent = extent_of(&end);
        if (extent <= buffer->source_bytes) {
            end.buffer = number;
            end.offset = random_u64(random) % (buffer->source_bytes - extent + 1);
            break;
        }
    }
    task->source = end;
}

static void add_task(scene *s, uint64_t *random, uint32_t to, const scene_end *target,
                     uint64_t bytes)
{
    if (s->n_tasks == MOST_TASKS) {
        return;
    }
    scene_task *task = &s->tasks[s->n_tasks++];
    *task = (scene_task){.to = to, .bytes = bytes, .target = *target};
    /* One sender often sends most: queues of one pair grow. */
    task->from = one_in(random, 3) ? 0 : random_below(random, s->n_ranks);
    draw_source_end(s, random, task);
}

static uint64_t draw_bytes(uint64_t *random, uint32_t most)
{
    uint32_t bits = dice(random, 0, 31 - (uint32_t)__builtin_clz(most));
    uint64_t bytes = ((uint64_t)1 << bits) + random_below(random, (uint32_t)1 << bits);
    return bytes < most ? bytes : most;
}

/* A row-major tensor of which others send cells; some cells nobody sends. */
static uint64_t draw_tiled(scene *s, uint64_t *random, uint32_t to, uint32_t buffer, uint64_t at,
                           const scene_limits *limits)
{
    enum { DIMS = 3 };
    uint64_t shape[DIMS], cuts[DIMS], element = (uint64_t)1 << random_below(random, 4);
    uint64_t bytes = draw_bytes(random, limits->most_bytes);
    uint64_t n = bytes / element + 1;
    shape[2] = dice(random, 1, n < 2000 ? (uint32_t)n : 2000);
    shape[1] = n / shape[2] + 1;
    shape[0] = dice(random, 1, 3);
    uint64_t stride[DIMS] = {shape[1] * shape[2] * element, shape[2] * element, element};
    for (uint32_t d = 0; d < DIMS; d++) {
        uint32_t most = shape[d] < 3 ? (uint32_t)shape[d] : 3;
        cuts[d] = dice(random, 1, most);
    }
    for (uint64_t cell = 0; cell < cuts[0] * cuts[1] * cuts[2]; cell++) {
        scene_end end = {.buffer = buffer, .element_bytes = element, .offset = at, .n_dims = DIMS};
        uint64_t rest = cell, all = element;
        for (uint32_t d = DIMS; d-- > 0; rest /= cuts[d]) {
            uint64_t begin = shape[d] * (rest % cuts[d]) / cuts[d];
            end.length[d] = shape[d] * (rest % cuts[d] + 1) / cuts[d] - begin;
            end.stride[d] = stride[d];
            end.offset += begin * stride[d];
            all *= end.length[d];
        }
        if (!one_in(random, 8)) {
            add_task(s, random, to, &end, all);
        }
    }
    return shape[0] * stride[0];
}

static void draw_targets(scene *s, uint64_t *random, uint32_t to, const scene_limits *limits)
{
    uint32_t n_before = s->n_tasks, wanted = random_below(random, limits->most_tasks + 1);
    while (s->n_tasks < n_before + wanted && s->n_tasks < MOST_TASKS) {
        uint32_t number = random_below(random, MOST_BUFFERS);
        scene_buffer *buffer = &s->buffers[to][number];
        uint64_t *at = &buffer->target_bytes;
        uint64_t bytes = draw_bytes(random, limits->most_bytes);
        scene_end end;
        if (one_in(random, 5)) {
            *at += draw_tiled(s, random, to, number, *at, limits);
        } else {
            draw_box(random, bytes, &end);
            if (one_in(random, 2)) {
                flat_end(&end, 0, bytes);
            }
            end.buffer = number;
            end.offset = *at;
            add_task(s, random, to, &end, bytes);
            *at += extent_of(&end);
        }
        *at += one_in(random, 2) ? 0 : dice(random, 0, 40);
    }
}

/* Task ids: unique per pair and no further. */
static void draw_ids(scene *s, uint64_t *random)
{
    uint64_t salt = one_in(random, 2) ? random_u64(random) | 1 : 1;
    for (uint32_t i = 0; i < s->n_tasks; i++) {
        uint64_t n = 0;
        for (uint32_t j = 0; j < i; j++) {
            n += s->tasks[j].from == s->tasks[i].from && s->tasks[j].to == s->tasks[i].to;
        }
        s->tasks[i].id = salt == 1 ? n
                         : n == 0  ? UINT64_MAX
                                   : n * salt; /* an odd factor: distinct */
    }
}

/*
 * Which memory is far is drawn apart from everything else: FERRY_TEST_FAR is a seed, or "all"; and
 * without it all is the host's.
 */
int32_t draw_far(uint64_t seed, uint32_t rank, uint32_t buffer)
{
    const char *text = getenv("FERRY_TEST_FAR");
    uint64_t state = text == NULL ? 0 : strtoull(text, NULL, 10);
    state = mix(state * 31 + seed) + rank * 1009 + buffer;
    bool is_near = text == NULL || (one_in(&state, 4) && !device_has_all());
    return is_near ? -1 : (int32_t)random_below(&state, 2);
}

void scene_draw(scene *s, uint64_t seed, uint32_t n_ranks, const scene_limits *limits)
{
    uint64_t random = seed;
    memset(s, 0, sizeof *s);
    s->seed = seed;
    s->n_ranks = n_ranks;
    bool mixed = one_in(&random, 2);
    memory_kind kind = (memory_kind)random_below(&random, N_MEMORY);
    for (uint32_t r = 0; r < n_ranks; r++) {
        for (uint32_t b = 0; b < MOST_BUFFERS; b++) {
            scene_buffer *buffer = &s->buffers[r][b];
            buffer->kind = mixed ? (memory_kind)random_below(&random, N_MEMORY) : kind;
            buffer->skew = one_in(&random, 2) ? 0 : random_below(&random, 64);
            buffer->far = draw_far(seed, r, b);
            if (b == 0 || one_in(&random, 2)) { /* the first holds a task of any size */
                /* A tensor's cell can be three times as large as what was drawn, and a row more. */
                buffer->source_bytes = 3 * ((uint64_t)limits->most_bytes + 20000);
            }
        }
    }
    for (uint32_t r = 0; r < n_ranks; r++) {
        if (!one_in(&random, 5)) {
            draw_targets(s, &random, r, limits);
        }
    }
    draw_ids(s, &random);
    for (uint32_t i = 0; i < s->n_tasks; i++) { /* sources lie behind what is received */
        scene_task *task = &s->tasks[i];
        task->source.offset += s->buffers[task->from][task->source.buffer].target_bytes;
    }
}

/* Memory */

static uint64_t bytes_of(const scene_buffer *buffer)
{
    return buffer->target_bytes + buffer->source_bytes;
}

void scene_take(rank_context *me, const scene *s, ferry_transport *transport, scene_memory *memory)
{
    memset(memory, 0, sizeof *memory);
    for (uint32_t b = 0; b < MOST_BUFFERS; b++) {
        const scene_buffer *buffer = &s->buffers[me->rank][b];
        uint64_t all = bytes_of(buffer) + 2 * GUARD + buffer->skew;
        ferry_buffer *whole = &memory->whole[b];
        memory->wanted[b] = take(me, all);
        if (buffer->kind == MEMORY_FERRY) {
            must(me, ferry_memory_alloc(transport, FERRY_MEMORY_HOST, 0, all, whole, &me->error));
        } else {
            *whole = ferry_buffer_of(take(me, all), all);
        }
        if (buffer->kind == MEMORY_REGISTERED) {
            must(me, ferry_region_register(transport, whole, &whole->registration, &me->error));
        }
        memory->buffers[b] = *whole;
        memory->buffers[b].base = (char *)whole->base + GUARD + buffer->skew;
        memory->buffers[b].bytes = bytes_of(buffer);
        if (buffer->far >= 0) {
            must(me, ferry_memory_alloc(NULL, device_kind(), device_number(buffer->far), all,
                                        &memory->far[b], &me->error));
            memory->buffers[b] = memory->far[b];
            memory->buffers[b].base = (char *)memory->far[b].base + GUARD + buffer->skew;
            memory->buffers[b].bytes = bytes_of(buffer);
        }
    }
}

void copy_far(rank_context *me, ferry_buffer to, ferry_buffer from)
{
    ferry_box boxes[2] = {FERRY_BOX_INIT, FERRY_BOX_INIT};
    for (int i = 0; i < 2; i++) {
        boxes[i].buffer = i == 0 ? to : from;
        boxes[i].n_dims = 1;
        boxes[i].length[0] = from.bytes;
        boxes[i].stride[0] = 1;
    }
    must(me, ferry_box_copy(&boxes[0], &boxes[1], NULL, NULL, &me->error));
}

/* Between far memory and its image. */
static void copy_images(rank_context *me, scene_memory *memory, bool back)
{
    for (uint32_t b = 0; b < MOST_BUFFERS; b++) {
        ferry_buffer image = memory->whole[b], far = memory->far[b];
        image.registration = NULL;
        if (far.base != NULL) {
            copy_far(me, back ? image : far, back ? far : image);
        }
    }
}

/* The image of a buffer's bytes. */
static unsigned char *image_of(const rank_context *me, const scene *s, const scene_memory *memory,
                               uint32_t b)
{
    return (unsigned char *)memory->whole[b].base + GUARD + s->buffers[me->rank][b].skew;
}

void scene_give_back(const rank_context *me, const scene *s, scene_memory *memory)
{
    for (uint32_t b = 0; b < MOST_BUFFERS; b++) {
        ferry_buffer *whole = &memory->whole[b];
        free(memory->wanted[b]);
        ferry_memory_free(&memory->far[b]);
        if (s->buffers[me->rank][b].kind == MEMORY_FERRY) {
            ferry_memory_free(whole);
        } else {
            ferry_region_free(whole->registration);
            free(whole->base);
        }
    }
}

static void fill_place(unsigned char *bytes, uint64_t n, scene_key key, uint64_t offset)
{
    uint64_t i = 0;
    for (; i < n && (offset + i) % 8 != 0; i++) {
        bytes[i] = byte_at(key, offset + i);
    }
    for (; i + 8 <= n; i += 8) {
        uint64_t word = mix(key_at(key, offset + i) + ((offset + i) >> 3) * 0x9e3779b97f4a7c15u);
        memcpy(bytes + i, &word, 8); /* as byte_at, on a little-endian machine */
    }
    for (; i < n; i++) {
        bytes[i] = byte_at(key, offset + i);
    }
}

static void poison_place(unsigned char *bytes, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        bytes[i] = poison_at(i);
    }
}

void scene_fill(rank_context *me, const scene *s, scene_memory *memory, uint64_t version,
                bool poison)
{
    copy_images(me, memory, true);
    for (uint32_t b = 0; b < MOST_BUFFERS; b++) {
        const scene_buffer *buffer = &s->buffers[me->rank][b];
        unsigned char *base = image_of(me, s, memory, b);
        if (poison) {
            unsigned char *begin = memory->whole[b].base;
            poison_place(begin, memory->whole[b].bytes);
        }
        fill_place(base + buffer->target_bytes, buffer->source_bytes,
                   key_of(s, me->rank, b, version), buffer->target_bytes);
    }
    copy_images(me, memory, false);
}

/* The reference */

/* Goes over the bytes of a box in row-major order, one after the other. */
typedef struct byte_walk {
    const scene_end *end;
    uint64_t index[FERRY_MAX_DIMS], element, within;
} byte_walk;

static byte_walk walk_of(const scene_end *end)
{
    return (byte_walk){.end = end, .element = end->offset};
}

static uint64_t next_offset(byte_walk *walk)
{
    const scene_end *end = walk->end;
    uint64_t offset = walk->element + walk->within;
    if (++walk->within < end->element_bytes) {
        return offset;
    }
    walk->within = 0;
    for (uint32_t d = end->n_dims; d-- > 0;) {
        if (++walk->index[d] < end->length[d]) {
            break;
        }
        walk->index[d] = 0;
    }
    walk->element = end->offset;
    for (uint32_t d = 0; d < end->n_dims; d++) {
        walk->element += walk->index[d] * end->stride[d];
    }
    return offset;
}

static void deliver(const scene *s, const scene_task *task, uint64_t version,
                    unsigned char *target_base)
{
    scene_key key = key_of(s, task->from, task->source.buffer, version);
    byte_walk from = walk_of(&task->source), to = walk_of(&task->target);
    for (uint64_t k = 0; k < task->bytes; k++) {
        uint64_t target = next_offset(&to);
        target_base[target] = byte_at(key, next_offset(&from));
    }
}

static void compare(rank_context *me, const scene *s, const scene_memory *memory, uint32_t b,
                    const char *what)
{
    const unsigned char *have = memory->whole[b].base;
    uint64_t before = GUARD + s->buffers[me->rank][b].skew;
    if (memcmp(have, memory->wanted[b], memory->whole[b].bytes) == 0) {
        return;
    }
    uint64_t first = 0, n = 0;
    for (uint64_t i = memory->whole[b].bytes; i-- > 0;) {
        if (have[i] != memory->wanted[b][i]) {
            first = i;
            n++;
        }
    }
    fail(me,
         "%s, scene %llu: buffer %u (%llu bytes received, %llu sent): %llu wrong bytes, the first "
         "at %lld: %02x, not %02x",
         what, (unsigned long long)s->seed, (unsigned)b,
         (unsigned long long)s->buffers[me->rank][b].target_bytes,
         (unsigned long long)s->buffers[me->rank][b].source_bytes, (unsigned long long)n,
         (long long)first - (long long)before, have[first], memory->wanted[b][first]);
}

static void expect_sources(rank_context *me, const scene *s, scene_memory *memory, uint32_t b,
                           uint64_t version)
{
    const scene_buffer *buffer = &s->buffers[me->rank][b];
    poison_place(memory->wanted[b], memory->whole[b].bytes);
    fill_place(memory->wanted[b] + GUARD + buffer->skew + buffer->target_bytes,
               buffer->source_bytes, key_of(s, me->rank, b, version), buffer->target_bytes);
}

static void check_target(rank_context *me, const scene *s, const ferry_destination *found,
                         const scene_memory *memory, uint64_t version)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->n_tasks; i++) {
        const scene_task *task = &s->tasks[i];
        if (task->to == me->rank &&
            memory->buffers[task->target.buffer].base == found->buffer.base) {
            bytes += task->bytes;
        }
    }
    expect(me, found->bytes == bytes && bytes > 0, "a destination of %llu bytes, not %llu",
           (unsigned long long)found->bytes, (unsigned long long)bytes);
    expect(me, found->state == FERRY_TENSOR_VALID && found->version == version,
           "state %u of version %llu after version %llu", (unsigned)found->state,
           (unsigned long long)found->version, (unsigned long long)version);
}

/* The whole of a buffer: what it received in one version, and sources of perhaps another. */
static void expect_bytes(rank_context *me, const scene *s, scene_memory *memory, uint32_t b,
                         uint64_t received, uint64_t sources, const char *what)
{
    expect_sources(me, s, memory, b, sources);
    for (uint32_t i = 0; i < s->n_tasks; i++) {
        const scene_task *task = &s->tasks[i];
        if (task->to == me->rank && task->target.buffer == b) {
            deliver(s, task, received, memory->wanted[b] + GUARD + s->buffers[me->rank][b].skew);
        }
    }
    compare(me, s, memory, b, what);
}

void scene_expect(rank_context *me, const scene *s, const ferry_service *service,
                  scene_memory *memory, uint64_t version, const char *what)
{
    copy_images(me, memory, true);
    for (uint32_t b = 0; b < MOST_BUFFERS; b++) {
        expect_bytes(me, s, memory, b, version, version, what);
    }
    for (uint64_t i = 0; i < ferry_service_destination_count(service); i++) {
        ferry_destination found = destination_of(me, service, i);
        check_target(me, s, &found, memory, ferry_service_version(service));
    }
}

void scene_expect_truth(rank_context *me, const scene *s, const ferry_service *service,
                        scene_memory *memory, uint64_t n_before, uint64_t before, uint64_t failed)
{
    copy_images(me, memory, true);
    for (uint64_t i = 0; i < ferry_service_destination_count(service); i++) {
        ferry_destination found = destination_of(me, service, i);
        expect(me, found.missing <= found.bytes, "%llu bytes of %llu are missing",
               (unsigned long long)found.missing, (unsigned long long)found.bytes);
        for (uint32_t b = 0; b < MOST_BUFFERS && found.state == FERRY_TENSOR_VALID; b++) {
            if (memory->buffers[b].base == found.buffer.base) {
                expect_bytes(me, s, memory, b, found.version > n_before ? failed : before, failed,
                             "called valid after a failure");
            }
        }
    }
}

void scene_expect_kept(rank_context *me, const scene *s, scene_memory *memory, uint64_t version,
                       const char *what)
{
    copy_images(me, memory, true);
    for (uint32_t b = 0; b < MOST_BUFFERS; b++) {
        expect_sources(me, s, memory, b, version);
    }
    for (uint32_t i = 0; i < s->n_tasks; i++) {
        const scene_task *task = &s->tasks[i];
        uint32_t b = task->target.buffer;
        byte_walk to = walk_of(&task->target);
        if (task->to == me->rank) {
            const unsigned char *have = image_of(me, s, memory, b);
            for (uint64_t k = 0; k < task->bytes; k++) {
                uint64_t offset = next_offset(&to);
                memory->wanted[b][GUARD + s->buffers[me->rank][b].skew + offset] = have[offset];
            }
        }
    }
    for (uint32_t b = 0; b < MOST_BUFFERS; b++) {
        compare(me, s, memory, b, what);
    }
}

/* Registering */

static void register_flat(rank_context *me, ferry_service *service, const scene_task *task,
                          bool is_send, const ferry_buffer *buffer)
{
    const scene_end *end = is_send ? &task->source : &task->target;
    if (is_send) {
        must(me, ferry_service_register_send(service, task->id, buffer, end->offset, task->bytes,
                                             task->to, &me->error));
    } else {
        must(me, ferry_service_register_receive(service, task->id, buffer, end->offset, task->bytes,
                                                task->from, &me->error));
    }
}

static void register_box(rank_context *me, ferry_service *service, const scene_task *task,
                         bool is_send, const ferry_buffer *buffer)
{
    const scene_end *end = is_send ? &task->source : &task->target;
    ferry_box box = FERRY_BOX_INIT;
    box.buffer = *buffer;
    box.element_bytes = end->element_bytes;
    box.offset = end->offset;
    box.n_dims = end->n_dims;
    memcpy(box.length, end->length, sizeof box.length);
    memcpy(box.stride, end->stride, sizeof box.stride);
    if (is_send) {
        must(me, ferry_service_register_send_box(service, task->id, &box, task->to, &me->error));
    } else {
        must(me,
             ferry_service_register_receive_box(service, task->id, &box, task->from, &me->error));
    }
}

static void register_end(rank_context *me, const scene *s, ferry_service *service,
                         const scene_memory *memory, uint32_t task, bool is_send)
{
    const scene_task *t = &s->tasks[task];
    const scene_end *end = is_send ? &t->source : &t->target;
    const ferry_buffer *buffer = &memory->buffers[end->buffer];
    if (end->flat && t->id % 3 != 0) { /* else as a box of one dimension */
        register_flat(me, service, t, is_send, buffer);
    } else {
        register_box(me, service, t, is_send, buffer);
    }
}

void scene_register(rank_context *me, const scene *s, ferry_service *service,
                    const scene_memory *memory)
{
    uint32_t *ends = take(me, 2 * MOST_TASKS * sizeof *ends);
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_tasks; i++) {
        if (s->tasks[i].from == me->rank) {
            ends[n++] = 2 * i;
        }
        if (s->tasks[i].to == me->rank) {
            ends[n++] = 2 * i + 1;
        }
    }
    uint64_t random = s->seed + me->rank;
    for (; n > 0; n--) {
        uint32_t at = random_below(&random, n);
        register_end(me, s, service, memory, ends[at] / 2, ends[at] % 2 == 0);
        ends[at] = ends[n - 1];
    }
    free(ends);
}

uint64_t scene_bytes_out(const scene *s, uint32_t rank)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->n_tasks; i++) {
        bytes += s->tasks[i].from == rank ? s->tasks[i].bytes : 0;
    }
    return bytes;
}

uint64_t scene_bytes_in(const scene *s, uint32_t rank, bool own_too)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->n_tasks; i++) {
        bool counts = s->tasks[i].to == rank && (own_too || s->tasks[i].from != rank);
        bytes += counts ? s->tasks[i].bytes : 0;
    }
    return bytes;
}

static void check_peers(rank_context *me, const scene *s, const ferry_service *service)
{
    uint64_t out = 0, in = 0;
    uint32_t previous = 0;
    for (uint32_t i = 0; i < ferry_service_peer_count(service); i++) {
        ferry_service_peer peer = FERRY_SERVICE_PEER_INIT;
        must(me, ferry_service_peer_at(service, i, &peer, &me->error));
        expect(me, i == 0 || peer.peer > previous, "peer %u after %u", (unsigned)peer.peer,
               (unsigned)previous);
        expect(me, peer.bytes_out > 0 || peer.bytes_in > 0, "peer %u has nothing",
               (unsigned)peer.peer);
        expect(me, (peer.peer == me->rank) == (peer.engine[0] == '\0'), "engine \"%s\" of peer %u",
               peer.engine, (unsigned)peer.peer);
        previous = peer.peer;
        out += peer.bytes_out;
        in += peer.bytes_in;
    }
    expect(me, out == scene_bytes_out(s, me->rank), "scene %llu: peers get %llu bytes of %llu",
           (unsigned long long)s->seed, (unsigned long long)out,
           (unsigned long long)scene_bytes_out(s, me->rank));
    expect(me, in == scene_bytes_in(s, me->rank, true), "scene %llu: peers send %llu bytes of %llu",
           (unsigned long long)s->seed, (unsigned long long)in,
           (unsigned long long)scene_bytes_in(s, me->rank, true));
}

void scene_check_statistics(rank_context *me, const scene *s, const ferry_service *service,
                            uint64_t memory_cap)
{
    ferry_service_statistics now = statistics_of(me, service);
    expect(me, bytes_sent(&now) == scene_bytes_out(s, me->rank),
           "scene %llu: %llu bytes by all paths, %llu registered", (unsigned long long)s->seed,
           (unsigned long long)bytes_sent(&now), (unsigned long long)scene_bytes_out(s, me->rank));
    expect(me, now.bytes_received == scene_bytes_in(s, me->rank, false),
           "scene %llu: %llu bytes received, %llu registered", (unsigned long long)s->seed,
           (unsigned long long)now.bytes_received,
           (unsigned long long)scene_bytes_in(s, me->rank, false));
    expect(me, now.staging_bytes <= memory_cap,
           "scene %llu: %llu bytes of staging, the cap is %llu", (unsigned long long)s->seed,
           (unsigned long long)now.staging_bytes, (unsigned long long)memory_cap);
    uint64_t far = 0;
    for (uint32_t i = 0; i < s->n_tasks; i++) {
        const scene_task *task = &s->tasks[i];
        bool is_far = s->buffers[me->rank][task->source.buffer].far >= 0;
        far += task->from == me->rank && is_far ? task->bytes : 0;
    }
    /* What a device has looked at, and found to be there, need not be moved. */
    expect(me, now.bytes_device + now.bytes_skipped >= far,
           "scene %llu: %llu bytes moved by devices, %llu are theirs", (unsigned long long)s->seed,
           (unsigned long long)now.bytes_device, (unsigned long long)far);
    expect(me, now.bytes_relayed == 0, "%llu bytes relayed", (unsigned long long)now.bytes_relayed);
    check_peers(me, s, service);
}
