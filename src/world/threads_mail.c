/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/threads.h"

#include "base/alloc.h"

#include <string.h>

/* What may wait for one rank, with what each letter takes: senders never wait, so they end. */
enum { MOST_QUEUED_BYTES = 64 << 20 };

void fy_mailbox_init(fy_mailbox *box)
{
    pthread_mutex_init(&box->lock, NULL);
}

void fy_mailbox_cleanup(fy_mailbox *box)
{
    fy_mail_cleanup(&box->mail);
    pthread_mutex_destroy(&box->lock);
}

/* FERRY_ERR_LIMIT and FERRY_ERR_NO_MEMORY have no sentence, and leave the letter to the caller. */
static ferry_status add(fy_mailbox *box, fy_letter *letter)
{
    ferry_status status = FERRY_ERR_LIMIT;
    pthread_mutex_lock(&box->lock);
    if (box->mail.bytes + fy_letter_room(letter->n_bytes) <= MOST_QUEUED_BYTES) {
        status = fy_mail_add(&box->mail, letter) ? FERRY_OK : FERRY_ERR_NO_MEMORY;
    }
    pthread_mutex_unlock(&box->lock);
    return status;
}

ferry_status fy_threads_send(ferry_world *world, uint32_t to, uint64_t tag, const void *bytes,
                             size_t n_bytes, bool waits, ferry_error *error)
{
    (void)waits; /* there is room, or there is none */
    fy_thread *receiver = &fy_threads_of(world)->ranks[to];
    if (atomic_load(&receiver->left)) {
        fy_world_fail(world, FERRY_ERR_PEER_LOST, to,
                      "rank %u has left the world, and rank %u sends it a message", to,
                      world->rank);
        return fy_failure_get(world->failure, NULL, error);
    }
    if (fy_letter_is_late(&receiver->here, tag)) {
        return FERRY_OK;
    }
    fy_letter *letter = fy_letter_new(world->rank, tag, bytes, n_bytes);
    ferry_status status = letter == NULL ? FERRY_ERR_NO_MEMORY : add(&receiver->box, letter);
    if (status != FERRY_OK) {
        fy_free(letter);
    }
    if (status == FERRY_ERR_NO_MEMORY) {
        return fy_fail_no_memory(error, "a message");
    }
    if (status == FERRY_ERR_LIMIT) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "messages of %d bytes wait for rank %u, which must receive them first",
                       (int)MOST_QUEUED_BYTES, to);
    }
    atomic_fetch_add(&receiver->box.posted, 1);
    fy_bell_ring(&receiver->bell);
    return FERRY_OK;
}

/* The first letter of this sender and tag; NULL if there is none. */
static fy_letter *take(fy_mailbox *box, uint32_t from, uint64_t tag)
{
    pthread_mutex_lock(&box->lock);
    fy_letter *letter = fy_mail_take(&box->mail, from, tag);
    pthread_mutex_unlock(&box->lock);
    return letter;
}

typedef struct awaited_letter {
    ferry_world *world;
    uint32_t from;
    uint64_t tag;
    uint64_t looked_at; /* letters that had come at the last look */
    fy_letter *letter;
    bool nobody_left; /* who could still send it */
} awaited_letter;

/* Whether those that may send have left. Itself a rank never waits for: see receive. */
static bool senders_have_left(const awaited_letter *expected)
{
    fy_threads *all = fy_threads_of(expected->world);
    if (expected->from != FERRY_ANY_RANK) {
        return atomic_load(&all->ranks[expected->from].left);
    }
    return all->n_ranks > 1 && atomic_load(&all->n_left) == all->n_ranks - 1;
}

static bool is_there(void *context)
{
    awaited_letter *expected = context;
    fy_mailbox *box = &fy_threads_of(expected->world)->ranks[expected->world->rank].box;
    /* In this order: what a rank sent before it left is in the box by then. */
    bool gone = senders_have_left(expected);
    uint64_t posted = atomic_load(&box->posted);
    if (posted == expected->looked_at && !gone) {
        return false;
    }
    expected->looked_at = posted;
    expected->letter = take(box, expected->from, expected->tag);
    expected->nobody_left = gone && expected->letter == NULL;
    return expected->letter != NULL || gone;
}

static ferry_status not_there(ferry_world *world, const awaited_letter *expected, int64_t limit_ns,
                              ferry_error *error)
{
    if (!expected->nobody_left || limit_ns == 0) {
        return fy_mail_fail_late(expected->from, expected->tag, limit_ns, error);
    }
    if (expected->from != FERRY_ANY_RANK) {
        fy_world_fail(world, FERRY_ERR_PEER_LOST, expected->from,
                      "rank %u has left the world, and rank %u waits for a message from it",
                      expected->from, world->rank);
    } else {
        fy_world_fail(world, FERRY_ERR_PEER_LOST, FERRY_ANY_RANK,
                      "all others have left the world, and rank %u waits for a message",
                      world->rank);
    }
    return fy_failure_get(world->failure, NULL, error);
}

ferry_status fy_threads_receive(ferry_world *world, uint32_t from, uint64_t tag, int64_t limit_ns,
                                const void **bytes_out, size_t *n_bytes_out, uint32_t *from_out,
                                ferry_error *error)
{
    fy_thread_world *own = world->impl;
    awaited_letter expected = {.world = world, .from = from, .tag = tag, .looked_at = UINT64_MAX};
    bool only_itself = from == world->rank || world->n_ranks == 1;

    ferry_status status =
        fy_world_wait(world, is_there, NULL, &expected, only_itself ? 0 : limit_ns, error);
    if (status == FERRY_ERR_TIMEOUT && only_itself && limit_ns != 0) {
        return fy_fail(
            error, FERRY_ERR_MISUSE,
            "rank %u waits for a message with tag %llu from itself, which it has not sent",
            world->rank, (unsigned long long)tag);
    }
    if (fy_world_is_late(world, &status, error) ||
        (status == FERRY_OK && expected.letter == NULL)) {
        status = not_there(world, &expected, limit_ns, error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    fy_free(own->held);
    own->held = expected.letter;
    *bytes_out = own->held->bytes;
    *n_bytes_out = own->held->n_bytes;
    if (from_out != NULL) {
        *from_out = own->held->from;
    }
    return FERRY_OK;
}

bool fy_threads_take(ferry_world *world, uint32_t from, uint64_t tag, void *buffer, size_t capacity,
                     size_t *n_bytes_out, uint32_t *from_out)
{
    fy_letter *letter = take(&fy_threads_of(world)->ranks[world->rank].box, from, tag);
    if (letter == NULL) {
        return false;
    }
    bool fits = letter->n_bytes <= capacity;
    if (fits) {
        memcpy(buffer, letter->bytes, letter->n_bytes);
        *n_bytes_out = letter->n_bytes;
        *from_out = letter->from;
    }
    fy_free(letter);
    return fits;
}

void fy_threads_forget(ferry_world *world, uint64_t first, uint64_t last)
{
    fy_mailbox *box = &fy_threads_of(world)->ranks[world->rank].box;
    pthread_mutex_lock(&box->lock);
    fy_mail_forget(&box->mail, first, last);
    pthread_mutex_unlock(&box->lock);
}

/* What the others do is here to be looked at: the answer is this rank's own letter to itself. */
void fy_threads_ask(ferry_world *world, uint32_t rank, const fy_question *question)
{
    fy_threads *all = fy_threads_of(world);
    fy_thread *asked = &all->ranks[rank];
    fy_answer answer;
    unsigned char bytes[FY_ANSWER_BYTES];
    fy_answer_make(&asked->here, question, atomic_load(&asked->left), 0, &answer);
    fy_answer_pack(&answer, bytes);
    fy_letter *letter = fy_letter_new(rank, question->tag, bytes, sizeof bytes);
    fy_thread *self = &all->ranks[world->rank];
    if (letter == NULL || add(&self->box, letter) != FERRY_OK) {
        fy_free(letter);
        return; /* asks again */
    }
    atomic_fetch_add(&self->box.posted, 1);
}
