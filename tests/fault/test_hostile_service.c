/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between the two ends of a pair that a peer, or whoever builds another release, got
 * wrong: what a rank is about to read of places, items and hashes is changed, number by number, cut
 * short or made longer. Scheduling ends in an error, or the run does, or every byte is right. The
 * program stands in front of fy_pairs_exchange; run it under a sanitizer, too.
 *
 *     test_hostile_service [--long] [--seed N]
 */
#include "service/prepare.h"
#include "service/run.h"

#include "support/check.h"
#include "support/random.h"
#include "support/seed.h"

#include <ferry/ferry.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum {
    N_RANKS = 2,
    VICTIM = 0,
    N_EXCHANGES = 3,
    ROWS = 40,
    ROW_BYTES = 96,
    LARGE_BYTES = 160 << 10
};

/* What is done to one message. A number is one of those that the message is made of. */
typedef enum harm { SET_NUMBER, FLIP_BIT, CUT, EXTEND } harm;

typedef struct attack {
    uint32_t exchange; /* places, items, hashes */
    harm kind;
    size_t at;
    uint64_t value;
} attack;

/* How the ranks reach each other; on threads pointers are trusted, so none of those is a row. */
typedef struct way {
    const char *name;
    const char *engines;
    bool processes; /* a world as processes make it, so that memory is mapped by keys */
    uint32_t paths, checksum;
    bool unregistered; /* the memory has no key */
    uint64_t delta;
} way;

static const way ways[] = {
    {"slots", "strict:inproc", false, FERRY_PATH_STAGED, FERRY_CHECKSUM_NONE, false, 0},
    {"hashes", "strict:inproc", false, FERRY_PATH_ALL, FERRY_CHECKSUM_END, false, 0},
    {"puts", "delay=1us:inproc", false, FERRY_PATH_ALL, FERRY_CHECKSUM_NONE, false, 0},
    {"mapped", "shm", true, FERRY_PATH_ALL, FERRY_CHECKSUM_NONE, false, 0},
    {"mapped slots", "shm", true, FERRY_PATH_STAGED, FERRY_CHECKSUM_PATH, false, 0},
    {"out of reach", "shm", true, FERRY_PATH_ALL, FERRY_CHECKSUM_NONE, true, 0},
    {"digests", "strict:inproc", false, FERRY_PATH_ALL, FERRY_CHECKSUM_END, false, 1},
    {"digests of slots", "shm", true, FERRY_PATH_STAGED, FERRY_CHECKSUM_END, false, 1},
};

typedef struct rank_state {
    const way *how;
    const char *path; /* where ranks that count as processes meet */
    ferry_world *world;
    uint32_t rank;
    ferry_service *service;
    ferry_buffer memory[2]; /* source, target */
    ferry_status scheduled, ran;
    ferry_error error;
    bool is_wrong; /* a run that succeeded brought wrong bytes */
    pthread_t thread;
} rank_state;

static const attack *current;                               /* NULL: none */
static uint32_t n_passed;                                   /* exchanges of the victim */
static size_t n_numbers[N_EXCHANGES], n_bytes[N_EXCHANGES]; /* of an unharmed message */
static uint64_t places[256]; /* the numbers of the unharmed first message */
static bool was_harmed;
static uint64_t was; /* the number that was set */

ferry_status __real_fy_pairs_exchange(ferry_service *service, ferry_status before,
                                      ferry_error *error);
ferry_status __wrap_fy_pairs_exchange(ferry_service *service, ferry_status before,
                                      ferry_error *error);
void __real_fy_run_signal(ferry_service *service, const fy_channel *channel, uint32_t word,
                          uint64_t value);
void __wrap_fy_run_signal(ferry_service *service, const fy_channel *channel, uint32_t word,
                          uint64_t value);
void __real_fy_run_letter(ferry_service *service, uint32_t to, fy_letter_use use, const void *bytes,
                          size_t length);
void __wrap_fy_run_letter(ferry_service *service, uint32_t to, fy_letter_use use, const void *bytes,
                          size_t length);

static size_t count_numbers(const fy_pack *message)
{
    fy_reader reader = {.at = message->bytes, .end = message->bytes + message->used};
    size_t n = 0;
    while (reader.at < reader.end) {
        fy_read_number(&reader, UINT64_MAX);
        n++;
    }
    return n;
}

static void keep_places(const fy_pack *message)
{
    fy_reader reader = {.at = message->bytes, .end = message->bytes + message->used};
    for (size_t i = 0; n_passed == 0 && reader.at < reader.end && i < COUNT_OF(places); i++) {
        places[i] = fy_read_number(&reader, UINT64_MAX);
    }
}

static void set_number(fy_pack *message, size_t at, uint64_t value)
{
    fy_pack changed = {0};
    fy_reader reader = {.at = message->bytes, .end = message->bytes + message->used};
    for (size_t i = 0; reader.at < reader.end; i++) {
        uint64_t number = fy_read_number(&reader, UINT64_MAX);
        if (i == at) {
            was = number;
            was_harmed = number != value;
        }
        fy_pack_number(&changed, i == at ? value : number);
    }
    fy_pack_cleanup(message);
    *message = changed;
}

static void harm_message(const attack *a, fy_pack *message)
{
    switch (a->kind) {
    case SET_NUMBER:
        set_number(message, a->at, a->value);
        return;
    case FLIP_BIT:
        message->bytes[a->at / 8 % message->used] ^= (unsigned char)(1 << a->at % 8);
        break;
    case CUT:
        message->used = a->at % message->used;
        break;
    default:
        fy_pack_number(message, a->value);
    }
    was_harmed = true;
}

/* In place of what came: what is read of it is borrowed from there. */
static void harm_talk(fy_talk *talk)
{
    fy_pack changed = {0};
    fy_pack_bytes(&changed, talk->message.bytes, talk->message.used);
    harm_message(current, &changed);
    fy_pack_cleanup(&talk->in);
    talk->in = changed;
    talk->message = (fy_pack){.bytes = changed.bytes, .used = changed.used, .borrowed = true};
}

ferry_status __wrap_fy_pairs_exchange(ferry_service *service, ferry_status before,
                                      ferry_error *error)
{
    ferry_status status = __real_fy_pairs_exchange(service, before, error);
    if (status != FERRY_OK || ferry_service_my_pe(service) != VICTIM) {
        return status;
    }
    fy_talk *talk = &service->wire->talks[0];
    if (current == NULL) {
        n_numbers[n_passed] = count_numbers(&talk->message);
        n_bytes[n_passed] = talk->message.used;
        keep_places(&talk->message);
    } else if (current->exchange == n_passed) {
        harm_talk(talk);
    }
    n_passed++;
    return FERRY_OK;
}

/* What is done to the words and letters of a run. */
static enum { TRUE_WORDS, ALL_TAKEN } words;
enum { TRUE_VERDICT, NO_STATUS, STRANGE_STATUS, NO_SENTENCE, TOO_SHORT };
static int verdict;

void __wrap_fy_run_signal(ferry_service *service, const fy_channel *channel, uint32_t word,
                          uint64_t value)
{
    if (words == ALL_TAKEN && word == FY_WORD_CONSUMED && ferry_service_my_pe(service) != VICTIM) {
        value |= UINT32_MAX;
    }
    __real_fy_run_signal(service, channel, word, value);
}

void __wrap_fy_run_letter(ferry_service *service, uint32_t to, fy_letter_use use, const void *bytes,
                          size_t length)
{
    /* One reason: its status, 4 bytes of a rank, a count, a rank, and its sentence. */
    enum { STATUS = 1, LENGTH = 8 };
    unsigned char letter[FY_REASONS_BYTES];
    if (verdict == TRUE_VERDICT || use != FY_LETTER_VERDICT || length <= LENGTH ||
        length > sizeof letter) {
        __real_fy_run_letter(service, to, use, bytes, length);
        return;
    }
    memcpy(letter, bytes, length);
    if (verdict == NO_STATUS || verdict == STRANGE_STATUS) {
        letter[STATUS] = verdict == NO_STATUS ? (unsigned char)FERRY_OK : FY_LAST_STATUS + 1;
    } else if (verdict == NO_SENTENCE) {
        letter[LENGTH] = 0;
        length = LENGTH + 1;
    } else {
        length -= 4;
    }
    was_harmed = true;
    __real_fy_run_letter(service, to, use, letter, length);
}

/* What becomes of the letters in which the first rank gets such messages. */
enum { TRUE_LETTERS, ONLY_LENGTHS, NO_LENGTHS, WRONG_LENGTHS };
static int letters;
static fy_world_ops true_ops, false_ops; /* of the rank that sends them */

static ferry_status send_harmed(ferry_world *world, uint32_t to, uint64_t tag, const void *bytes,
                                size_t n, bool waits, ferry_error *error)
{
    uint64_t begin = fy_letter_tag(FY_LETTER_PAIR, FY_OBJECT_SERVICE, 0, 0);
    uint64_t end = fy_letter_tag((fy_letter_use)(FY_LETTER_PAIR + 1), FY_OBJECT_NONE, 0, 0);
    uint64_t whole = 1;
    unsigned char letter[64 << 10];
    if (tag < begin || tag >= end || n <= sizeof whole + 1 || n > sizeof letter) {
        return true_ops.send(world, to, tag, bytes, n, waits, error);
    }
    was_harmed = true;
    memcpy(letter, bytes, n);
    if (letters == WRONG_LENGTHS) {
        memcpy(letter, &whole, sizeof whole);
    } else {
        n = letters == ONLY_LENGTHS ? sizeof whole : 4;
    }
    return true_ops.send(world, to, tag, letter, n, waits, error);
}

static void harm_letters(ferry_world *world)
{
    true_ops = *world->ops;
    false_ops = true_ops;
    false_ops.send = send_harmed;
    world->ops = &false_ops;
}

/*
 * The ranks
 */

static unsigned char byte_at(uint32_t rank, size_t i)
{
    return (unsigned char)(rank * 100 + i * 7 + i / 251);
}

enum {
    HULL = (2 * ROWS - 1) * ROW_BYTES, /* every other row, the last without one behind it */
    BUFFER_BYTES = 2 * ROWS * ROW_BYTES + 64 + LARGE_BYTES
};

static ferry_box rows_of(const ferry_buffer *buffer)
{
    ferry_box box = FERRY_BOX_INIT;
    box.buffer = *buffer;
    box.name = "every other row";
    box.n_dims = 2;
    box.length[0] = ROWS;
    box.length[1] = ROW_BYTES;
    box.stride[0] = 2 * (uint64_t)ROW_BYTES;
    box.stride[1] = 1;
    return box;
}

/* To the other rank and from it: every other row, a few bytes, and much in one piece. */
static ferry_status register_all(rank_state *me)
{
    uint32_t peer = 1 - me->rank;
    uint64_t small = 2 * ROWS * ROW_BYTES;
    ferry_box source = rows_of(&me->memory[0]);
    ferry_box target = rows_of(&me->memory[1]);
    ferry_service *s = me->service;
    ferry_error *e = &me->error;
    ferry_status status = ferry_service_register_send_box(s, 1, &source, peer, e);
    if (status == FERRY_OK) {
        status = ferry_service_register_receive_box(s, 1, &target, peer, e);
    }
    for (uint64_t task = 2; task < 4; task++) {
        uint64_t first = task == 2 ? small : small + 64;
        uint64_t bytes = task == 2 ? 64 : (uint64_t)LARGE_BYTES;
        if (status == FERRY_OK) {
            status = ferry_service_register_send(s, task, &me->memory[0], first, bytes, peer, e);
        }
        if (status == FERRY_OK) {
            status = ferry_service_register_receive(s, task, &me->memory[1], first, bytes, peer, e);
        }
    }
    return status;
}

static bool is_target(size_t i)
{
    return i >= 2 * ROWS * ROW_BYTES || i / ROW_BYTES % 2 == 0;
}

static void check_bytes(rank_state *me)
{
    const unsigned char *bytes = me->memory[1].base;
    for (size_t i = 0; i < BUFFER_BYTES; i++) {
        unsigned char wanted = is_target(i) ? byte_at(1 - me->rank, i) : 0xee;
        me->is_wrong = me->is_wrong || bytes[i] != wanted;
    }
}

static ferry_status take_memory(rank_state *me, ferry_buffer *memory)
{
    if (me->how->unregistered) {
        *memory = ferry_buffer_of(malloc(BUFFER_BYTES), BUFFER_BYTES);
        return memory->base == NULL ? FERRY_ERR_NO_MEMORY : FERRY_OK;
    }
    return ferry_memory_alloc(ferry_service_transport(me->service), FERRY_MEMORY_HOST, 0,
                              BUFFER_BYTES, memory, &me->error);
}

static void give_memory(const rank_state *me, ferry_buffer *memory)
{
    if (me->how->unregistered) {
        free(memory->base);
    } else {
        ferry_memory_free(memory);
    }
}

static ferry_status use_service(rank_state *me)
{
    ferry_status status = ferry_service_init(me->service, FERRY_LOG_OFF, &me->error);
    for (int i = 0; status == FERRY_OK && i < 2; i++) {
        status = take_memory(me, &me->memory[i]);
    }
    if (status != FERRY_OK) {
        return status;
    }
    for (size_t i = 0; i < BUFFER_BYTES; i++) {
        ((unsigned char *)me->memory[0].base)[i] = byte_at(me->rank, i);
    }
    memset(me->memory[1].base, 0xee, BUFFER_BYTES);
    status = register_all(me);
    if (status == FERRY_OK) {
        status = me->scheduled = ferry_service_schedule(me->service, &me->error);
    }
    if (status == FERRY_OK) {
        status = me->ran = ferry_service_run(me->service, NULL, &me->error);
    }
    if (status == FERRY_OK) {
        check_bytes(me);
    }
    return status;
}

static _Atomic bool victim_is_over;

/* A moment: it may wait for the rank that waits here. */
static void await_victim(void)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    for (int i = 0; i < 200 && !atomic_load(&victim_is_over); i++) {
        nanosleep(&moment, NULL);
    }
}

static void *run_rank(void *argument)
{
    rank_state *me = argument;
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    ferry_world_options of = FERRY_WORLD_OPTIONS_INIT;
    ferry_status status = FERRY_OK;
    of.deadline_seconds = 5;
    if (me->how->processes) {
        status =
            ferry_world_create_from_file(me->path, me->rank, N_RANKS, &of, &me->world, &me->error);
    }
    options.engines = me->how->engines;
    options.paths = me->how->paths;
    options.checksum = me->how->checksum;
    options.delta = me->how->delta;
    options.n_threads = 1;
    options.memory_cap = 1 << 20;
    options.slot_bytes = 16 << 10;
    if (status == FERRY_OK && letters != TRUE_LETTERS && me->rank != VICTIM) {
        harm_letters(me->world);
    }
    if (status == FERRY_OK) {
        status = ferry_service_create(me->world, &options, &me->service, &me->error);
    }
    if (status == FERRY_OK) {
        status = use_service(me);
    }
    if (me->rank == VICTIM) {
        atomic_store(&victim_is_over, true);
    }
    if (status != FERRY_OK && me->world != NULL && words == TRUE_WORDS) {
        await_victim(); /* which is to judge what it was told, and not this */
        ferry_world_abort(me->world, "it is over"); /* nobody waits for who has given up */
    }
    give_memory(me, &me->memory[0]);
    give_memory(me, &me->memory[1]);
    ferry_service_destroy(me->service);
    ferry_world_destroy(me->world);
    return NULL;
}

static void run_attack(const way *how, const attack *a, rank_state ranks[N_RANKS])
{
    ferry_world *worlds[N_RANKS] = {NULL};
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    ferry_error error;
    char folder[] = "/tmp/ferry-hostile-XXXXXX";
    char path[64];
    options.deadline_seconds = 5;
    current = a;
    n_passed = 0;
    was_harmed = false;
    atomic_store(&victim_is_over, false);
    if (how->processes) {
        assert_non_null(mkdtemp(folder));
        snprintf(path, sizeof path, "%s/ranks", folder);
    } else {
        must(ferry_world_create_threads(N_RANKS, &options, worlds, &error), &error);
    }
    for (uint32_t r = 0; r < N_RANKS; r++) {
        ranks[r] = (rank_state){.how = how,
                                .path = path,
                                .rank = r,
                                .world = worlds[r],
                                .scheduled = FERRY_ERR_STOPPED,
                                .ran = FERRY_ERR_STOPPED};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < N_RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
    }
    if (how->processes) {
        unlink(path);
        rmdir(folder);
    }
}

static void describe(const way *how, const attack *a, char text[160])
{
    static const char *const kinds[] = {"number %zu becomes %llu", "bit %zu is flipped",
                                        "cut at %zu (%llu)", "longer at %zu by %llu"};
    int n = snprintf(text, 160, "%s: message %u: ", how->name, a->exchange);
    snprintf(text + n, 160 - (size_t)n, kinds[a->kind], a->at, (unsigned long long)a->value);
}

static bool is_path(uint64_t number)
{
    return number == FERRY_PATH_MAPPED || number == FERRY_PATH_REMOTE ||
           number == FERRY_PATH_STAGED;
}

/*
 * Nobody but hashes can know that a peer lies about where its own bytes belong, within what is its
 * own, or which way it has sent bytes.
 */
static bool is_excused(const way *how, const attack *a, uint32_t rank)
{
    bool own = a->exchange == 0 && rank != VICTIM;
    bool sent = a->exchange == 1 && a->kind == SET_NUMBER && is_path(was) && is_path(a->value);
    return how->checksum == FERRY_CHECKSUM_NONE && (own || sent);
}

/* Both ranks have an error or neither; who succeeds has the right bytes. */
static void check_attack(const way *how, const attack *a)
{
    static rank_state ranks[N_RANKS];
    char text[160];
    run_attack(how, a, ranks);
    describe(how, a, text);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        const rank_state *me = &ranks[r];
        check_at(!me->is_wrong || is_excused(how, a, r), "%s: rank %u has wrong bytes", text, r);
        check_at(me->scheduled != FERRY_ERR_STOPPED, "%s: rank %u: %s", text, r, me->error.message);
        check_at((me->scheduled == FERRY_OK) == (ranks[0].scheduled == FERRY_OK),
                 "%s: rank %u: schedule: %s: %s", text, r, ferry_status_name(me->scheduled),
                 me->error.message);
        check_at(me->scheduled == FERRY_OK || strlen(me->error.message) > 10, "%s: no sentence",
                 text);
        check_at(me->scheduled != FERRY_OK || (me->ran == FERRY_OK) == (ranks[0].ran == FERRY_OK),
                 "%s: rank %u: run: %s: %s", text, r, ferry_status_name(me->ran),
                 me->error.message);
    }
}

/* The messages of a schedule that nobody harms: how many numbers and bytes they have. */
static uint32_t measure(const way *how)
{
    static rank_state ranks[N_RANKS];
    run_attack(how, NULL, ranks);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        check_at(ranks[r].ran == FERRY_OK && !ranks[r].is_wrong, "%s: rank %u: %s", how->name, r,
                 ranks[r].error.message);
    }
    return n_passed;
}

static uint64_t odd_value(uint64_t *random)
{
    static const uint64_t values[] = {0,
                                      1,
                                      2,
                                      63,
                                      64,
                                      255,
                                      4096,
                                      UINT32_MAX - 1,
                                      UINT32_MAX,
                                      UINT64_C(1) << 40,
                                      UINT64_C(1) << 63,
                                      UINT64_MAX - 63,
                                      UINT64_MAX};
    uint32_t which = random_below(random, COUNT_OF(values) + 2);
    return which < COUNT_OF(values) ? values[which] : random_below(random, 1 << 20);
}

static uint64_t first_seed;
static uint32_t n_tries = 40;

static void test_any_harm(void **state)
{
    (void)state;
    uint64_t random = first_seed;
    uint32_t n_done = 0;
    for (size_t w = 0; w < COUNT_OF(ways); w++) {
        uint32_t n_exchanges = measure(&ways[w]);
        assert_in_range(n_exchanges, 2, N_EXCHANGES);
        for (uint32_t i = 0; i < n_tries; i++) {
            attack a = {.exchange = i % n_exchanges,
                        .kind = i / n_exchanges % 4 == 3
                                    ? (harm)(FLIP_BIT + random_below(&random, 3))
                                    : SET_NUMBER};
            a.value = odd_value(&random);
            a.at = a.kind == SET_NUMBER ? random_below(&random, (uint32_t)n_numbers[a.exchange])
                                        : random_below(&random, 8 * (uint32_t)n_bytes[a.exchange]);
            check_attack(&ways[w], &a);
            n_done += was_harmed;
        }
    }
    assert_true(n_done > n_tries * COUNT_OF(ways) / 2);
}

/*
 * What each number of the first message must be held against
 */

/* The first numbers; behind the keys come the only buffer, and then the first task's place. */
enum field {
    CHANNEL,
    RING,
    SLOTS,
    PAYLOAD,
    OFFERED_RING,
    OFFERED_HEADS,
    OFFERED_SLOTS,
    OFFERED_PAYLOAD,
    N_KEYS,
    N_BUFFERS,
    ADDRESS,
    LENGTH_OF_BUFFER,
    KIND,
    DEVICE,
    KEY,
    KEY_OFFSET,
    N_PLACES,
    BUFFER,
    OFFSET,
    RUN_BYTES,
    BYTES,
    N_DIMS,
    FIRST_LENGTH,
    FIRST_STRIDE,
    N_RANGES,
    FIRST_WANTED,
    BYTES_WANTED,
    /* The first numbers of the second message, and of its first item and part. */
    ITEMS_CHANNEL,
    IS_ASIDE,
    N_ITEMS,
    PATH,
    SLOT,
    ORDER,
    N_PARTS,
    PLACE,
    FIRST_BYTE,
    PART_BYTES,
    N_FOLLOWERS
};

/* Where no buffers are told of, what follows the number of places. */
enum { WANTS_ALL = BUFFER };

/* Of a place with one dimension and one range. */
static size_t index_of(enum field field)
{
    size_t at = N_KEYS + 1;
    if (field >= ITEMS_CHANNEL) {
        return field - ITEMS_CHANNEL;
    }
    for (uint64_t key = 0; key < places[N_KEYS]; key++) {
        at += 1 + (size_t)places[at];
    }
    if (field <= N_KEYS) {
        return field;
    }
    /* The buffer is said twice, as one that is swapped is two. */
    return field < N_PLACES ? at + (field - N_BUFFERS)
                            : at + 1 + 12 * (size_t)places[at] + (field - N_PLACES);
}

typedef struct lie {
    const char *name;
    enum field field;
    uint64_t value;
    const char *says;
} lie;

static const lie lies[] = {
    {"words of another pair", CHANNEL, 99, "another pair"},
    {"a ring outside of the memory for slots", RING, UINT64_C(1) << 40, "slots, words or hashes"},
    {"a ring that ends beyond all numbers", RING, UINT64_MAX - 63, "slots, words or hashes"},
    {"a ring between two lines", RING, 8, "slots are none"},
    {"no slots, with a payload", SLOTS, 0, "slots are none"},
    {"a slot too many", SLOTS, FY_MOST_WINDOW + 1, "slots are none"},
    {"slots without a payload", PAYLOAD, 0, "slots are none"},
    {"a payload that no line ends", PAYLOAD, 100, "slots are none"},
    {"slots that reach behind the ring", PAYLOAD, 128 << 10, "slots are none"},
    {"slots of a device without a payload", OFFERED_SLOTS, 4, "slots on a device are none"},
    {"a payload of no slots of a device", OFFERED_PAYLOAD, 4096, "slots on a device are none"},
    {"a payload that a device has no line for", OFFERED_PAYLOAD, 100, "slots on a device are none"},
    {"heads of slots of a device between two lines", OFFERED_HEADS, 8,
     "slots on a device are none"},
    {"slots of a device between two lines", OFFERED_RING, 8, "slots on a device are none"},
    {"more keys than bytes", N_KEYS, UINT64_MAX, "keys are cut short"},
    {"more buffers than bytes", N_BUFFERS, UINT64_MAX, "buffers are cut short"},
    {"a place more than there are tasks", N_PLACES, 1000, "more or fewer than tasks"},
    {"a place in the buffer behind the last", BUFFER, 1, "in none of their buffers"},
    {"a place in no buffer", BUFFER, UINT64_MAX, "in none of their buffers"},
    {"a buffer beyond all memory", LENGTH_OF_BUFFER, UINT64_MAX, "beyond all memory"},
    {"a buffer that is longer than its region", LENGTH_OF_BUFFER, UINT64_C(1) << 40,
     "of a region that has"},
    {"a buffer that is shorter than the area", LENGTH_OF_BUFFER, 1, "of a buffer of 1 bytes"},
    {"a buffer that is a byte too short for the area", LENGTH_OF_BUFFER, HULL - 1,
     "reaches to byte 7584 of a buffer of 7583 bytes"},
    {"a kind of memory that nobody knows", KIND, 99, "cut short"},
    {"a device beyond all numbers", DEVICE, UINT64_MAX, "cut short"},
    {"a key that is not there", KEY, 1000, "cut short"},
    {"a key offset a byte too far", KEY_OFFSET, 1, "at byte 1 of a region"},
    {"a key offset far outside of the region", KEY_OFFSET, UINT64_C(1) << 40,
     "at byte 1099511627776 of a region"},
    {"a key offset that ends beyond all numbers", KEY_OFFSET, UINT64_MAX, "of a region"},
    {"an area that ends a byte behind the buffer", OFFSET, BUFFER_BYTES - HULL + 1,
     "of a buffer of"},
    {"an area behind the buffer", OFFSET, UINT64_C(1) << 40, "of a buffer of"},
    {"an area that ends beyond all numbers", OFFSET, UINT64_MAX, "beyond 2^64"},
    {"a run of no bytes", RUN_BYTES, 0, "other bytes"},
    {"a longer run", RUN_BYTES, ROW_BYTES + 1, "other bytes"},
    {"other bytes", BYTES, 5, "other bytes"},
    {"more dimensions than there are", N_DIMS, 9, "cut short"},
    {"a dimension of no elements", FIRST_LENGTH, 0, "other bytes"},
    {"a dimension that is too long", FIRST_LENGTH, UINT64_C(1) << 60, "beyond 2^64"},
    {"rows that share bytes", FIRST_STRIDE, 1, "share bytes"},
    {"rows that reach behind the buffer", FIRST_STRIDE, 1 << 20, "of a buffer of"},
    {"more ranges than bytes", N_RANGES, UINT64_MAX, "more ranges"},
    {"a range that begins a byte behind the task", FIRST_WANTED, ROWS *ROW_BYTES + 1,
     "not its own"},
    {"a range that ends a byte behind the task", BYTES_WANTED, ROWS *ROW_BYTES + 1, "not its own"},
    {"a range that begins behind the task", FIRST_WANTED, UINT64_C(1) << 40, "not its own"},
    {"a range that ends behind the task", BYTES_WANTED, UINT64_C(1) << 40, "not its own"},
    {"items of another pair", ITEMS_CHANNEL, 99, "another pair"},
    {"items by slots of a device that nobody offers", IS_ASIDE, 1, "were not offered"},
    {"items by slots of no kind", IS_ASIDE, 7, "cut short"},
    {"fewer items", N_ITEMS, 0, "something follows"},
    {"more items", N_ITEMS, 2000, "cut short"},
    {"an item that takes no path", PATH, 0, "no path"},
    {"an item that takes two paths", PATH, FERRY_PATH_STAGED | FERRY_PATH_MAPPED, "no path"},
    {"an item that stays with its rank", PATH, FERRY_PATH_LOCAL, "no path"},
    {"a path that the options rule out", PATH, FERRY_PATH_REMOTE, "no path"},
    {"a slot that is another's turn", SLOT, 1, "into its slot"},
    {"a slot behind the last", SLOT, 1000, "into its slot"},
    {"an item of nothing", N_PARTS, 0, "no parts"},
    {"a part of the task behind the last", PLACE, 3, "of no task"},
    {"a part of no task", PLACE, 1000, "of no task"},
    {"a part that ends a byte behind its task", PART_BYTES, LARGE_BYTES + 1,
     "not part of its task"},
    {"a part that begins behind its task", FIRST_BYTE, UINT64_MAX, "not part of its task"},
    {"a part that ends behind its task", PART_BYTES, UINT64_MAX, "not part of its task"},
    {"a part of nothing", PART_BYTES, 0, "not part of its task"},
    {"a byte that nobody brings", PART_BYTES, ROWS *ROW_BYTES - 1,
     "do not bring each byte of task"},
};

static const lie lies_out_of_reach[] = {
    {"buffers that nothing is said of", N_BUFFERS, 1, "cut short"},
    {"a place more than there are tasks", N_PLACES, 4, "more or fewer than tasks"},
    {"neither all nor some are wanted", (enum field)WANTS_ALL, 2, "nothing is said of"},
    {"ranges that are not told", (enum field)WANTS_ALL, 0, "more ranges"},
    {"more whole tasks than parts", N_FOLLOWERS, 1000, "of no task"},
    {"whole tasks behind the last", PLACE, 2, "of no task"},
    {"whole tasks that a slot does not hold", N_FOLLOWERS, 2, "into its slot"},
};

static const way *way_named(const char *name)
{
    size_t i = 0;
    while (strcmp(ways[i].name, name) != 0) {
        i++;
    }
    return &ways[i];
}

static void check_lie(const way *how, const lie *its)
{
    static rank_state ranks[N_RANKS];
    attack a = {.exchange = its->field >= ITEMS_CHANNEL,
                .kind = SET_NUMBER,
                .at = index_of(its->field),
                .value = its->value};
    run_attack(how, &a, ranks);
    check_row(its->name, was_harmed);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        check_status(its->name, FERRY_ERR_EXCHANGE, ranks[r].scheduled, &ranks[r].error);
        check_says(its->name, its->says, &ranks[r].error);
        check_says(its->name, "rank 1 a", &ranks[r].error);
    }
}

/* Rings matter where there are slots; areas where the sender writes by itself. */
static void test_lies(void **state)
{
    (void)state;
    for (int staged = 0; staged < 2; staged++) {
        const way *how = way_named(staged ? "mapped slots" : "mapped");
        measure(how);
        assert_int_equal(places[index_of(N_BUFFERS)], 1);
        assert_int_equal(places[index_of(N_DIMS)], 1);
        assert_int_equal(places[index_of(RUN_BYTES)], ROW_BYTES);
        assert_int_equal(places[index_of(LENGTH_OF_BUFFER)], BUFFER_BYTES);
        assert_int_equal(places[index_of(N_RANGES)], 1);
        for (size_t i = 0; i < COUNT_OF(lies); i++) {
            bool needs_slots = lies[i].field <= PAYLOAD || lies[i].field >= ITEMS_CHANNEL;
            if (needs_slots == (staged != 0)) {
                check_lie(how, &lies[i]);
            }
        }
    }
}

/* A sender that reaches no buffer is told of none. */
static void test_lies_out_of_reach(void **state)
{
    (void)state;
    const way *how = way_named("out of reach");
    measure(how);
    assert_int_equal(places[N_KEYS], 0);
    assert_int_equal(places[N_BUFFERS], 0);
    assert_int_equal(places[index_of(N_PLACES)], 3);
    assert_int_equal(places[index_of((enum field)WANTS_ALL)], 1);
    for (size_t i = 0; i < COUNT_OF(lies_out_of_reach); i++) {
        check_lie(how, &lies_out_of_reach[i]);
    }
}

static void test_lies_about_digests(void **state)
{
    static const struct {
        const char *name;
        size_t at;
        uint64_t value;
    } rows[] = {{"digests far outside of the region", 1, UINT64_C(1) << 40},
                {"digests that end beyond all numbers", 1, UINT64_MAX - 63},
                {"hashes far outside of the region", 0, UINT64_C(1) << 40}};
    (void)state;
    const way *how = way_named("digests of slots");
    assert_int_equal(measure(how), N_EXCHANGES);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        static rank_state ranks[N_RANKS];
        attack a = {.exchange = 2, .kind = SET_NUMBER, .at = rows[i].at, .value = rows[i].value};
        run_attack(how, &a, ranks);
        check_row(rows[i].name, was_harmed);
        for (uint32_t r = 0; r < N_RANKS; r++) {
            check_status(rows[i].name, FERRY_ERR_EXCHANGE, ranks[r].scheduled, &ranks[r].error);
            check_says(rows[i].name, "slots, words or hashes, or digests", &ranks[r].error);
        }
    }
}

/*
 * A peer that has taken more than was sent, though slots are filled again for that; and what the
 * first rank then tells the other of how the run has ended.
 */
static void test_words_and_letters(void **state)
{
    (void)state;
    const way *how = way_named("slots");
    for (int what = TRUE_VERDICT; what <= TOO_SHORT; what++) {
        static rank_state ranks[N_RANKS];
        words = ALL_TAKEN;
        verdict = what;
        run_attack(how, NULL, ranks);
        words = TRUE_WORDS;
        verdict = TRUE_VERDICT;
        check_at(was_harmed == (what != TRUE_VERDICT), "verdict %d was not harmed", what);
        for (uint32_t r = 0; r < N_RANKS; r++) {
            const rank_state *me = &ranks[r];
            check_at(me->scheduled == FERRY_OK && me->ran == FERRY_ERR_EXCHANGE &&
                         strstr(me->error.message, "rank ") != NULL,
                     "verdict %d: rank %u: %s: %s", what, r, ferry_status_name(me->ran),
                     me->error.message);
        }
        check_at(strstr(ranks[VICTIM].error.message, "has taken 4294967295 items") != NULL, "%s",
                 ranks[VICTIM].error.message);
    }
}

/* A letter that brings nothing, or says nothing, would have its reader wait for ever. */
static void test_letters(void **state)
{
    static const char *const says[] = {[ONLY_LENGTHS] = "rank 1 sent none of what it said",
                                       [NO_LENGTHS] = "rank 1 sent a message of 4 bytes",
                                       [WRONG_LENGTHS] = "rank 1 sent more than it said"};
    (void)state;
    for (int what = ONLY_LENGTHS; what <= WRONG_LENGTHS; what++) {
        static rank_state ranks[N_RANKS];
        letters = what;
        run_attack(way_named("slots"), NULL, ranks);
        letters = TRUE_LETTERS;
        check_row(says[what], was_harmed);
        for (uint32_t r = 0; r < N_RANKS; r++) {
            check_status(says[what], FERRY_ERR_EXCHANGE, ranks[r].scheduled, &ranks[r].error);
            check_says(says[what], says[what], &ranks[r].error);
        }
    }
}

int main(int argc, char **argv)
{
    first_seed = first_seed_of(1);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--long") == 0) {
            n_tries = 2000;
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            first_seed = strtoull(argv[++i], NULL, 10);
        }
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lies),
                                       cmocka_unit_test(test_lies_out_of_reach),
                                       cmocka_unit_test(test_lies_about_digests),
                                       cmocka_unit_test(test_words_and_letters),
                                       cmocka_unit_test(test_letters),
                                       cmocka_unit_test(test_any_harm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
