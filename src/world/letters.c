/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Small messages: passed on along the tree, kept until they are received. */
#include "base/alloc.h"
#include "world/process.h"

#include <string.h>

enum {
    HEAD_BYTES = 16,
    MOST_KEPT = 64 << 20, /* bytes of messages that nobody has received */
    MOST_QUEUED = 4 << 20 /* bytes on one link before a sender waits */
};

static void keep(fy_process *process, uint32_t from, uint64_t tag, const void *bytes,
                 size_t n_bytes)
{
    fy_mail *mail = &process->mail;
    fy_letter *letter = mail->bytes + fy_letter_room(n_bytes) > MOST_KEPT
                            ? NULL
                            : fy_letter_new(from, tag, bytes, n_bytes);
    if (letter == NULL || !fy_mail_add(mail, letter)) {
        fy_free(letter);
        fy_process_fail(process, FERRY_ERR_LIMIT, process->rank,
                        "rank %u has not received messages of %llu bytes, and has no room for more",
                        process->rank, (unsigned long long)mail->bytes);
        return;
    }
    fy_bell_ring(process->world->bell);
}

bool fy_letter_arrive(fy_process *process, fy_conn *conn, fy_reader *reader)
{
    (void)conn;
    const unsigned char *head = reader->at;
    uint32_t to = fy_read_u32(reader);
    uint32_t from = fy_read_u32(reader);
    uint64_t tag = fy_read_u64(reader);
    const unsigned char *bytes = reader->at;
    if (reader->failed || !atomic_load(&process->tree.tabled) || to >= process->n_ranks ||
        from >= process->n_ranks || fy_read_left(reader) > FERRY_MESSAGE_BYTES) {
        return false;
    }
    if (to == process->rank && !fy_letter_is_late(process->world->here, tag)) {
        keep(process, from, tag, bytes, fy_read_left(reader));
    } else if (to != process->rank) {
        fy_control_post(process, fy_control_route(process, to), FY_WIRE_SEND, head, HEAD_BYTES,
                        bytes, fy_read_left(reader));
    }
    return true;
}

static void post(fy_process *process, uint32_t to, uint64_t tag, const void *bytes, size_t n_bytes)
{
    unsigned char head[HEAD_BYTES];
    fy_pack packer = fy_pack_into(head, sizeof head);
    fy_pack_u32(&packer, to);
    fy_pack_u32(&packer, process->rank);
    fy_pack_u64(&packer, tag);
    fy_control_post(process, fy_control_route(process, to), FY_WIRE_SEND, head, packer.used, bytes,
                    n_bytes);
}

typedef struct passage {
    fy_process *process;
    uint32_t to;
} passage;

static bool has_room(void *context)
{
    passage *way = context;
    fy_process *process = way->process;
    pthread_mutex_lock(&process->lock);
    fy_conn *conn = fy_control_route(process, way->to);
    bool room = conn == NULL || fy_link_queued_bytes(conn->link) < MOST_QUEUED;
    pthread_mutex_unlock(&process->lock);
    return room;
}

static int64_t look_again_ns(void *context)
{
    (void)context; /* nobody rings when a socket takes bytes */
    return 1000 * 1000;
}

ferry_status fy_letter_send(ferry_world *world, uint32_t to, uint64_t tag, const void *bytes,
                            size_t n_bytes, bool waits, ferry_error *error)
{
    fy_process *process = world->impl;
    if (to == world->rank) {
        pthread_mutex_lock(&process->lock);
        keep(process, to, tag, bytes, n_bytes);
        pthread_mutex_unlock(&process->lock);
        return fy_failure_get(&process->failure, NULL, error);
    }
    passage way = {.process = process, .to = to};
    ferry_status status =
        waits ? fy_world_wait(world, has_room, look_again_ns, &way, process->limits.entry_ns, error)
              : fy_failure_get(&process->failure, NULL, error);
    if (fy_world_is_late(world, &status, error)) {
        return fy_fail(error, status, "rank %u takes no messages from rank %u", to, world->rank);
    }
    if (status != FERRY_OK) {
        return status;
    }
    pthread_mutex_lock(&process->lock);
    post(process, to, tag, bytes, n_bytes);
    pthread_mutex_unlock(&process->lock);
    return fy_failure_get(&process->failure, NULL, error);
}

typedef struct wanted {
    fy_process *process;
    uint32_t from;
    uint64_t tag;
    fy_letter *found;
} wanted;

static bool find_letter(void *context)
{
    wanted *want = context;
    fy_process *process = want->process;
    pthread_mutex_lock(&process->lock);
    want->found = fy_mail_take(&process->mail, want->from, want->tag);
    pthread_mutex_unlock(&process->lock);
    return want->found != NULL;
}

ferry_status fy_letter_receive(ferry_world *world, uint32_t from, uint64_t tag, int64_t limit_ns,
                               const void **bytes_out, size_t *n_bytes_out, uint32_t *from_out,
                               ferry_error *error)
{
    fy_process *process = world->impl;
    wanted want = {.process = process, .from = from, .tag = tag};
    ferry_status status = fy_world_wait(world, find_letter, NULL, &want, limit_ns, error);
    if (fy_world_is_late(world, &status, error)) {
        return fy_mail_fail_late(from, tag, limit_ns, error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    fy_free(process->caller.taken);
    process->caller.taken = want.found;
    *bytes_out = want.found->bytes;
    *n_bytes_out = want.found->n_bytes;
    if (from_out != NULL) {
        *from_out = want.found->from;
    }
    return FERRY_OK;
}

bool fy_letter_take(ferry_world *world, uint32_t from, uint64_t tag, void *buffer, size_t capacity,
                    size_t *n_bytes_out, uint32_t *from_out)
{
    wanted want = {.process = world->impl, .from = from, .tag = tag};
    if (!find_letter(&want)) {
        return false;
    }
    bool fits = want.found->n_bytes <= capacity;
    if (fits) {
        memcpy(buffer, want.found->bytes, want.found->n_bytes);
        *n_bytes_out = want.found->n_bytes;
        *from_out = want.found->from;
    }
    fy_free(want.found);
    return fits;
}

void fy_letter_forget(ferry_world *world, uint64_t first, uint64_t last)
{
    fy_process *process = world->impl;
    pthread_mutex_lock(&process->lock);
    fy_mail_forget(&process->mail, first, last);
    pthread_mutex_unlock(&process->lock);
}

/*
 * Questions: the control thread of who is asked answers them by a letter.
 */

enum { QUESTION_HEAD_BYTES = 8, QUESTION_BYTES = QUESTION_HEAD_BYTES + FY_QUESTION_BYTES };

void fy_letter_ask(ferry_world *world, uint32_t rank, const fy_question *question)
{
    fy_process *process = world->impl;
    unsigned char bytes[QUESTION_BYTES];
    fy_pack packer = fy_pack_into(bytes, sizeof bytes);
    fy_pack_u32(&packer, rank);
    fy_pack_u32(&packer, world->rank);
    fy_pack_u32(&packer, question->kind);
    fy_pack_u32(&packer, question->number);
    fy_pack_u64(&packer, question->run);
    fy_pack_u64(&packer, question->tag);
    pthread_mutex_lock(&process->lock);
    fy_control_post(process, fy_control_route(process, rank), FY_WIRE_WHERE, bytes, packer.used,
                    NULL, 0);
    pthread_mutex_unlock(&process->lock);
}

bool fy_letter_asked(fy_process *process, fy_conn *conn, fy_reader *reader)
{
    (void)conn;
    const unsigned char *whole = reader->at;
    size_t used = fy_read_left(reader);
    uint32_t to = fy_read_u32(reader);
    uint32_t from = fy_read_u32(reader);
    fy_question asked = {.kind = fy_read_u32(reader), .number = 0};
    asked.number = fy_read_u32(reader);
    asked.run = fy_read_u64(reader);
    asked.tag = fy_read_u64(reader);
    if (reader->failed || fy_read_left(reader) != 0 || !atomic_load(&process->tree.tabled) ||
        to >= process->n_ranks || from >= process->n_ranks || asked.tag >> 63 == 0) {
        return false;
    }
    if (to != process->rank) {
        fy_control_post(process, fy_control_route(process, to), FY_WIRE_WHERE, whole, used, NULL,
                        0);
        return true;
    }
    fy_answer answer;
    unsigned char bytes[FY_ANSWER_BYTES];
    fy_answer_make(process->world->here, &asked, process->leaving.begun,
                   process->control.forgive_ns, &answer);
    fy_answer_pack(&answer, bytes);
    post(process, from, asked.tag, bytes, sizeof bytes);
    return true;
}
