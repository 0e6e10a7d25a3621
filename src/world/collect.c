/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives over the control tree: every rank sends its subtree's part up when it is complete,
 * and the result comes down. A barrier goes over the shared page inside a node, and only heads take
 * part in the tree.
 */
#include "base/alloc.h"
#include "base/hash.h"
#include "world/agree.h"
#include "world/process.h"

#include <stdio.h>
#include <string.h>

enum {
    FY_ENTERING = 0, /* on the shared page: what it enters is being written */
    FY_JOINED = 4,   /* the last step of making a world: all ranks, no bytes */
    HEAD_BYTES = 24 + FY_JOINT_BYTES,
    CHUNK_BYTES = FY_LINK_PAYLOAD_BYTES - HEAD_BYTES,
    RECORD_BYTES = 12 /* rank and length, before the bytes */
};

/* More than any use of the control plane, and little enough that every rank can hold it. */
static const uint64_t most_bytes = UINT64_C(1) << 31;

enum { CALL_TEXT_BYTES = FY_STEP_TEXT_BYTES + 32 };

static void format_call(const fy_gathering *gathering, char text[CALL_TEXT_BYTES])
{
    char name[FY_STEP_TEXT_BYTES];
    fy_step_format(&gathering->step, name);
    snprintf(text, CALL_TEXT_BYTES, "%s, collective number %llu",
             gathering->step.kind == FY_JOINED ? "the start" : name,
             (unsigned long long)gathering->number);
}

static void fail_diverged(fy_process *process, uint32_t rank, const fy_step *its)
{
    char sentence[FERRY_ERROR_BYTES];
    fy_steps_say(its, rank, &process->gathering.step, process->rank, sentence);
    fy_process_fail(process, FERRY_ERR_MISUSE, rank, "%s", sentence);
}

/* Buffers. */

static bool append(unsigned char **bytes, size_t *used, size_t *capacity, const void *more,
                   size_t n_bytes)
{
    if (!fy_reserve((void **)bytes, capacity, *used + n_bytes, 1)) {
        return false;
    }
    if (n_bytes > 0) {
        memcpy(*bytes + *used, more, n_bytes);
    }
    *used += n_bytes;
    return true;
}

static void fail_memory(fy_process *process)
{
    fy_process_fail(process, FERRY_ERR_NO_MEMORY, process->rank,
                    "rank %u has no memory for what a collective brings together", process->rank);
}

static void pack_head(const fy_gathering *gathering, uint64_t total, unsigned char *head)
{
    fy_pack packer = fy_pack_into(head, HEAD_BYTES);
    fy_pack_u64(&packer, gathering->number);
    fy_pack_u32(&packer, gathering->step.kind);
    fy_pack_u32(&packer, gathering->step.root);
    fy_pack_u64(&packer, total);
    fy_pack_u32(&packer, gathering->step.joint.call);
    fy_pack_u32(&packer, gathering->step.joint.path);
    fy_pack_u64(&packer, gathering->step.joint.object);
}

static void read_head(fy_reader *reader, uint64_t *number_out, fy_step *step_out,
                      uint64_t *total_out)
{
    *number_out = fy_read_u64(reader);
    step_out->kind = fy_read_u32(reader);
    step_out->root = fy_read_u32(reader);
    *total_out = fy_read_u64(reader);
    step_out->joint.call = fy_read_u32(reader);
    step_out->joint.path = fy_read_u32(reader);
    step_out->joint.object = fy_read_u64(reader);
}

/* Up. */

/* Only heads take part in a barrier between nodes. */
static bool takes_part(const fy_process *process, uint32_t kind, const fy_conn *conn)
{
    return !conn->dead && conn->kind == FY_CONN_LINK && conn->role == FY_ROLE_CHILD &&
           (kind != FY_BARRIER || process->tree.table[conn->rank].place.index == 0);
}

static uint32_t count_expected(const fy_process *process, uint32_t kind)
{
    if (kind != FY_BARRIER) {
        return process->tree.n_children;
    }
    uint32_t n = 0;
    uint64_t first = (uint64_t)process->tree.table[process->rank].place.node * FY_TREE_ARITY + 1;
    for (uint64_t node = first; node < first + FY_TREE_ARITY && node < process->tree.n_nodes;
         node++) {
        n++;
    }
    return n;
}

static bool agrees(fy_process *process, const fy_conn *conn)
{
    const fy_gathering *own = &process->gathering;
    const fy_part *part = &conn->part;
    if (!own->open || part->number == 0 ||
        (part->number == own->number && fy_step_equal(&part->step, &own->step))) {
        return true;
    }
    fail_diverged(process, conn->rank, &part->step);
    return false;
}

static bool part_is_whole(const fy_process *process, const fy_conn *conn)
{
    return conn->part.number == process->gathering.number && conn->part.used == conn->part.total;
}

static bool children_are_in(fy_process *process)
{
    uint32_t kind = process->gathering.step.kind, n_in = 0;
    for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        if (takes_part(process, kind, conn)) {
            if (!agrees(process, conn)) {
                return false;
            }
            n_in += part_is_whole(process, conn);
        }
    }
    return n_in == count_expected(process, kind);
}

/* A subtree's records to the parent: a long message goes in chunks, each with a head. */
static void post_up(fy_process *process)
{
    const fy_gathering *own = &process->gathering;
    unsigned char head[HEAD_BYTES];
    pack_head(own, own->own_used, head);
    size_t at = 0;
    do {
        size_t left = own->own_used - at < CHUNK_BYTES ? own->own_used - at : CHUNK_BYTES;
        fy_control_post(process, process->tree.parent, FY_WIRE_UP, head, HEAD_BYTES,
                        left == 0 ? NULL : own->own + at, left);
        fy_control_serve(process);
        at += left;
    } while (at < own->own_used);
}

/* One chunk of the result to all children, so that none waits in silence for another's whole. */
static void post_down(fy_process *process, const unsigned char *bytes, size_t n_bytes,
                      uint64_t total)
{
    unsigned char head[HEAD_BYTES];
    pack_head(&process->gathering, total, head);
    for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        if (takes_part(process, process->gathering.step.kind, conn)) {
            fy_control_post(process, conn, FY_WIRE_DOWN, head, HEAD_BYTES, bytes, n_bytes);
        }
    }
}

/* What a child brings, to what there is. */
static bool merge_part(fy_gathering *own, const fy_conn *conn)
{
    const fy_part *part = &conn->part;
    if (own->step.kind != FY_AGREEMENT) {
        return append(&own->own, &own->own_used, &own->own_capacity, part->bytes, part->used);
    }
    fy_pack into = {.bytes = own->own, .used = own->own_used, .capacity = own->own_capacity};
    fy_agreement_merge(&into, part->bytes, part->used, conn->rank);
    own->own = into.bytes;
    own->own_used = into.used;
    own->own_capacity = into.capacity;
    return !into.failed;
}

/* Takes the children's records over. */
static bool merge(fy_process *process)
{
    fy_gathering *own = &process->gathering;
    for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        if (takes_part(process, own->step.kind, conn)) {
            if (!merge_part(own, conn)) {
                return false;
            }
            conn->part.number = 0;
            conn->part.used = conn->part.total = 0;
            fy_control_serve(process);
        }
    }
    return true;
}

/* Finds every rank's record; false if one is missing, twice there, or malformed. */
static bool index_records(const fy_process *process, const unsigned char **at, uint64_t *total_out)
{
    const fy_gathering *own = &process->gathering;
    fy_reader reader = fy_reader_of(own->own, own->own_used);
    uint32_t n_seen = 0;
    *total_out = 0;
    while (fy_read_left(&reader) > 0) {
        uint32_t rank = fy_read_u32(&reader);
        uint64_t length = fy_read_u64(&reader);
        if (reader.failed || rank >= process->n_ranks || at[rank] != NULL) {
            return false;
        }
        at[rank] = reader.at;
        own->lengths[rank] = (size_t)length;
        n_seen++;
        fy_read_bytes(&reader, (size_t)length);
        *total_out += length;
        if (reader.failed) {
            return false;
        }
    }
    return n_seen == process->n_ranks;
}

/* At the root: the records in order of ranks, lengths first. A broadcast has no lengths. */
static bool assemble(fy_process *process)
{
    fy_gathering *own = &process->gathering;
    own->result_used = 0;
    if (own->step.kind == FY_BARRIER || own->step.kind == FY_JOINED) {
        return true;
    }
    if (own->step.kind == FY_AGREEMENT) {
        return append(&own->result, &own->result_used, &own->result_capacity, own->own,
                      own->own_used);
    }
    uint64_t total = 0;
    const unsigned char **at = fy_alloc_zeroed(process->n_ranks, sizeof *at);
    bool done = at != NULL && index_records(process, at, &total);
    for (uint32_t r = 0; done && own->step.kind == FY_ALL_GATHER && r < process->n_ranks; r++) {
        unsigned char length[8];
        fy_pack packer = fy_pack_into(length, sizeof length);
        fy_pack_u64(&packer, own->lengths[r]);
        done = append(&own->result, &own->result_used, &own->result_capacity, length, 8);
    }
    /* All at once: a long result that grows is copied again and again. */
    done = done && fy_reserve((void **)&own->result, &own->result_capacity,
                              own->result_used + (size_t)total, 1);
    for (uint32_t r = 0; done && r < process->n_ranks; r++) {
        done =
            append(&own->result, &own->result_used, &own->result_capacity, at[r], own->lengths[r]);
        fy_control_serve(process);
    }
    fy_free(at);
    return done;
}

/* The result is whole here: the caller may go on. */
static void finish(fy_process *process)
{
    fy_gathering *own = &process->gathering;
    own->open = false;
    atomic_store(&own->done, own->number);
    fy_bell_ring(process->world->bell);
}

static void advance(fy_process *process)
{
    fy_gathering *own = &process->gathering;
    if (!own->open || own->sent || fy_failed(&process->failure) || !children_are_in(process)) {
        return;
    }
    if (!merge(process)) {
        fail_memory(process);
        return;
    }
    if (own->own_used > most_bytes) {
        fy_process_fail(process, FERRY_ERR_LIMIT, process->rank,
                        "%zu bytes come together at rank %u in a collective; it carries 2 GiB at "
                        "most",
                        own->own_used, process->rank);
        return;
    }
    own->sent = true;
    if (!fy_place_is_root(process->tree.table[process->rank].place)) {
        post_up(process);
        return;
    }
    if (!assemble(process)) {
        fail_memory(process);
        return;
    }
    size_t at = 0;
    do {
        size_t left = own->result_used - at < CHUNK_BYTES ? own->result_used - at : CHUNK_BYTES;
        post_down(process, left == 0 ? NULL : own->result + at, left, own->result_used);
        fy_control_serve(process);
        at += left;
    } while (at < own->result_used);
    finish(process);
}

bool fy_collect_up(fy_process *process, fy_conn *conn, fy_reader *reader)
{
    fy_part *part = &conn->part;
    uint64_t number, total;
    fy_step step;
    read_head(reader, &number, &step, &total);
    size_t left = fy_read_left(reader);
    if (reader->failed || !atomic_load(&process->tree.tabled) || number == 0 ||
        total > most_bytes) {
        return false;
    }
    if (part->number == 0) {
        part->number = number;
        part->step = step;
        part->total = total;
        part->used = 0;
    }
    if (part->number != number || part->total != total || left > total - part->used) {
        return false;
    }
    if (!append(&part->bytes, &part->used, &part->capacity, fy_read_bytes(reader, left), left)) {
        fail_memory(process);
        return true;
    }
    advance(process);
    return true;
}

/* Down. */

bool fy_collect_down(fy_process *process, fy_conn *conn, fy_reader *reader)
{
    (void)conn;
    fy_gathering *own = &process->gathering;
    uint64_t number, total;
    fy_step step;
    read_head(reader, &number, &step, &total);
    size_t left = fy_read_left(reader);
    if (reader->failed || !own->open || !own->sent || number != own->number ||
        !fy_step_equal(&step, &own->step) || total > most_bytes * 2 || own->result_used > total ||
        left > total - own->result_used) {
        return false;
    }
    const unsigned char *bytes = fy_read_bytes(reader, left);
    if (!append(&own->result, &own->result_used, &own->result_capacity, bytes, left)) {
        fail_memory(process);
        return true;
    }
    post_down(process, bytes, left, total);
    if (own->result_used == total) {
        finish(process);
    }
    return true;
}

/* Entering and waiting, on the calling thread. */

static bool is_done(void *context)
{
    const fy_process *process = context;
    return atomic_load(&process->gathering.done) == process->gathering.number;
}

static void enter(fy_process *process, uint32_t kind, uint32_t root)
{
    fy_gathering *own = &process->gathering;
    fy_shared_page_slot *slot = &process->node.page->slots[process->claim];
    own->number++;
    own->step = (fy_step){.joint = fy_joint_now(process->world), .kind = kind, .root = root};
    own->own_used = 0;
    own->result_used = 0;
    own->sent = false;
    atomic_store(&slot->entered, fy_shared_page_word(own->number, FY_ENTERING));
    atomic_store(&slot->object, own->step.joint.object);
    atomic_store(&slot->call, (uint64_t)own->step.joint.call << 32 | own->step.joint.path);
    atomic_store(&slot->entered, fy_shared_page_word(own->number, kind));
}

static _Atomic uint64_t *entered_of(const fy_process *process, uint32_t rank)
{
    return &process->node.page->slots[process->tree.table[rank].claim].entered;
}

/* What a rank of this node is in: of the step that `entered` tells both before it and after. */
static fy_joint joint_on_page(const fy_process *process, uint32_t rank)
{
    const fy_shared_page_slot *slot = &process->node.page->slots[process->tree.table[rank].claim];
    uint64_t call = atomic_load(&slot->call);
    return (fy_joint){.call = (uint32_t)(call >> 32),
                      .path = (uint32_t)call,
                      .object = atomic_load(&slot->object)};
}

/* Which rank of this node has not entered the barrier that this rank is in; FERRY_ANY_RANK: none.
 */
static uint32_t missing_on_page(const fy_process *process)
{
    const ferry_world *world = process->world;
    for (uint32_t i = 0; i < world->n_local_ranks; i++) {
        uint32_t rank = world->local_ranks[i];
        uint64_t word = atomic_load(entered_of(process, rank));
        if (fy_shared_page_number(word) < process->gathering.number) {
            return rank;
        }
    }
    return FERRY_ANY_RANK;
}

static fy_conn *missing_child(fy_process *process, const fy_conn *except)
{
    for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        if (conn != except && takes_part(process, process->gathering.step.kind, conn) &&
            !part_is_whole(process, conn)) {
            return conn;
        }
    }
    return NULL;
}

static void name_missing(fy_process *process, uint32_t rank)
{
    char call[CALL_TEXT_BYTES];
    format_call(&process->gathering, call);
    fy_process_mark_lost(process, rank); /* as the others do when they are told */
    fy_process_fail(process, FERRY_ERR_TIMEOUT, rank, "rank %u has not entered %s for %g s", rank,
                    call, (double)process->limits.entry_ns / 1e9);
}

/* Asks the tree who has not entered: those who wait pass the question on, who does not answers. */
static void pass_query(fy_process *process, const fy_conn *from, uint64_t number, uint32_t asker)
{
    unsigned char head[12];
    fy_pack packer = fy_pack_into(head, sizeof head);
    fy_pack_u64(&packer, number);
    fy_pack_u32(&packer, asker);
    fy_conn *next = process->gathering.sent ? NULL : missing_child(process, from);
    if (next == NULL && from != process->tree.parent) {
        next = process->tree.parent;
    }
    fy_control_post(process, next, FY_WIRE_QUERY, head, packer.used, NULL, 0);
}

static void pass_answer(fy_process *process, uint64_t number, uint32_t asker, uint32_t missing)
{
    unsigned char head[16];
    fy_pack packer = fy_pack_into(head, sizeof head);
    fy_pack_u64(&packer, number);
    fy_pack_u32(&packer, asker);
    fy_pack_u32(&packer, missing);
    fy_control_post(process, fy_control_route(process, asker), FY_WIRE_MISSING, head, packer.used,
                    NULL, 0);
}

bool fy_collect_query(fy_process *process, fy_conn *conn, fy_reader *reader)
{
    uint64_t number = fy_read_u64(reader);
    uint32_t asker = fy_read_u32(reader);
    if (reader->failed || asker >= process->n_ranks || !atomic_load(&process->tree.tabled)) {
        return false;
    }
    const fy_gathering *own = &process->gathering;
    uint32_t missing = FERRY_ANY_RANK;
    if (own->number < number) {
        missing = process->rank;
    } else if (own->number == number && own->step.kind == FY_BARRIER) {
        missing = missing_on_page(process);
    }
    if (missing != FERRY_ANY_RANK) {
        pass_answer(process, number, asker, missing);
    } else if (own->number == number && atomic_load(&own->done) < number) {
        pass_query(process, conn, number, asker);
    }
    return true;
}

bool fy_collect_missing(fy_process *process, fy_conn *conn, fy_reader *reader)
{
    (void)conn;
    uint64_t number = fy_read_u64(reader);
    uint32_t asker = fy_read_u32(reader);
    uint32_t missing = fy_read_u32(reader);
    if (reader->failed || asker >= process->n_ranks || missing >= process->n_ranks) {
        return false;
    }
    if (asker != process->rank) {
        pass_answer(process, number, asker, missing);
    } else if (process->gathering.number == number &&
               atomic_load(&process->gathering.done) < number) {
        name_missing(process, missing);
    }
    return true;
}

/*
 * Waits for others to enter. When the entry limit has passed, whoever is missing is found and
 * named, and the world fails for it on every rank.
 */
static ferry_status wait_entered(fy_process *process, fy_bell *bell, fy_ready_fn ready,
                                 ferry_error *error)
{
    ferry_world *world = process->world;
    int64_t limit_ns = process->caller.is_patient ? -1 : process->limits.entry_ns;
    ferry_status status = fy_world_wait_on(world, bell, ready, NULL, process, limit_ns, error);
    if (!fy_world_is_late(world, &status, error)) {
        return status;
    }
    pthread_mutex_lock(&process->lock);
    uint32_t missing =
        process->gathering.step.kind == FY_BARRIER ? missing_on_page(process) : FERRY_ANY_RANK;
    if (missing != FERRY_ANY_RANK) {
        name_missing(process, missing);
    } else {
        pass_query(process, NULL, process->gathering.number, process->rank);
    }
    pthread_mutex_unlock(&process->lock);
    status =
        fy_world_wait_on(world, bell, ready, NULL, process, process->limits.deadline_ns, error);
    if (fy_world_is_late(world, &status, error)) {
        fy_process_fail(process, status, FERRY_ANY_RANK,
                        "a collective did not end although all ranks seem to have entered it");
        return fy_failure_get(&process->failure, NULL, error);
    }
    return status;
}

/* Over the tree: this rank's record goes up with its subtree's, the result comes down. */
static ferry_status over_tree(fy_process *process, uint32_t kind, const void *bytes, size_t n_bytes,
                              ferry_error *error)
{
    fy_gathering *own = &process->gathering;
    unsigned char head[RECORD_BYTES];
    fy_pack packer = fy_pack_into(head, sizeof head);
    fy_pack_u32(&packer, process->rank);
    fy_pack_u64(&packer, n_bytes);
    /* Without the lock, so that this rank gives signs of life: nobody looks before it is open. */
    bool fits = kind == FY_BARRIER || kind == FY_JOINED ||
                ((kind == FY_AGREEMENT ||
                  append(&own->own, &own->own_used, &own->own_capacity, head, packer.used)) &&
                 append(&own->own, &own->own_used, &own->own_capacity, bytes, n_bytes));
    pthread_mutex_lock(&process->lock);
    if (fits) {
        own->open = true;
        advance(process);
    } else {
        fail_memory(process);
    }
    pthread_mutex_unlock(&process->lock);
    return wait_entered(process, process->world->bell, is_done, error);
}

/* Barriers. */

/*
 * A rank of this node that is in another collective will never come. Whoever of the two enters
 * later sees the other: each writes its own word before it reads.
 */
static void check_page(fy_process *process)
{
    const ferry_world *world = process->world;
    const fy_gathering *own = &process->gathering;
    for (uint32_t i = 0; i < world->n_local_ranks; i++) {
        uint32_t rank = world->local_ranks[i];
        uint64_t word = atomic_load(entered_of(process, rank));
        fy_step its = {.joint = joint_on_page(process, rank), .kind = fy_shared_page_kind(word)};
        bool same = word == atomic_load(entered_of(process, rank));
        its.root = own->step.root; /* the tree compares it */
        if (same && its.kind != FY_ENTERING && fy_shared_page_number(word) == own->number &&
            !fy_step_equal(&its, &own->step)) {
            fail_diverged(process, rank, &its);
        }
    }
}

/*
 * What ranks bring to a barrier, summed up: who sees it complete sees by one look whether all are
 * in the same call. Barriers take turns in two sums, of which one is set back before its barrier
 * ends; nobody is in the next but one before that.
 */
static uint64_t mark_of(const fy_gathering *own)
{
    return fy_hash_mix((uint64_t)own->step.joint.call << 32 | own->step.joint.path,
                       own->step.joint.object);
}

static void bring_mark(fy_process *process)
{
    atomic_fetch_add(&process->node.page->marks[process->caller.barriers % 2],
                     mark_of(&process->gathering));
}

static bool all_brought_the_same(fy_process *process)
{
    uint64_t sum = atomic_exchange(&process->node.page->marks[process->caller.barriers % 2], 0);
    if (sum == mark_of(&process->gathering) * process->world->n_local_ranks) {
        return true;
    }
    check_page(process);
    return !fy_failed(&process->failure);
}

/* The first look that finds others missing also asks what they do. */
static void look_around(fy_process *process)
{
    if (!process->caller.looked) {
        process->caller.looked = true;
        check_page(process);
    }
}

static bool is_released(void *context)
{
    fy_process *process = context;
    if (atomic_load(&process->node.page->released) >= process->caller.barriers) {
        return true;
    }
    look_around(process);
    return false;
}

static bool all_arrived(void *context)
{
    fy_process *process = context;
    uint64_t target = process->caller.barriers * process->world->n_local_ranks;
    if (atomic_load(&process->node.page->arrived) >= target) {
        return true;
    }
    look_around(process);
    return false;
}

static void release(fy_process *process)
{
    atomic_store(&process->node.page->released, process->caller.barriers);
    fy_bell_ring(&process->node.page->bell);
}

/* The head waits for its node, then for the other nodes, and lets its node go. */
static ferry_status lead(fy_process *process, ferry_error *error)
{
    ferry_status status = wait_entered(process, process->world->bell, all_arrived, error);
    if (status == FERRY_OK && !all_brought_the_same(process)) {
        status = fy_failure_get(&process->failure, NULL, error);
    }
    FY_THEN(status, over_tree(process, FY_BARRIER, NULL, 0, error));
    if (status == FERRY_OK) {
        release(process);
    }
    return status;
}

ferry_status fy_collect_barrier(ferry_world *world, ferry_error *error)
{
    fy_process *process = world->impl;
    fy_shared_page *page = process->node.page;
    uint64_t target = ++process->caller.barriers * world->n_local_ranks;
    process->caller.looked = false;
    pthread_mutex_lock(&process->lock);
    enter(process, FY_BARRIER, 0);
    pthread_mutex_unlock(&process->lock);
    bring_mark(process);
    bool last = atomic_fetch_add(&page->arrived, 1) + 1 == target;
    if (process->tree.n_nodes > 1) {
        fy_tree_place place = process->tree.table[process->rank].place;
        if (place.index == 0) {
            return lead(process, error);
        }
        if (last) {
            uint32_t head = fy_process_rank_at(process, (fy_tree_place){place.node, 0});
            fy_bell_ring(&page->slots[process->tree.table[head].claim].bell);
        }
    } else if (last) {
        if (!all_brought_the_same(process)) {
            return fy_failure_get(&process->failure, NULL, error);
        }
        release(process);
        atomic_store(&process->gathering.done, process->gathering.number);
        return FERRY_OK; /* as for those that are let go, whatever becomes of the world meanwhile */
    }
    ferry_status status = wait_entered(process, &page->bell, is_released, error);
    if (status == FERRY_OK) {
        atomic_store(&process->gathering.done, process->gathering.number);
    }
    return status;
}

/* Gathers. */

/* False: the lengths do not fit what has come. */
static bool read_lengths(fy_process *process, uint32_t root)
{
    fy_gathering *own = &process->gathering;
    fy_reader reader = fy_reader_of(own->result, own->result_used);
    fy_reader bytes = reader;
    bool many = own->step.kind == FY_ALL_GATHER;
    fy_read_bytes(&bytes, many ? (size_t)process->n_ranks * 8 : 0);
    for (uint32_t r = 0; r < process->n_ranks; r++) {
        own->lengths[r] = many ? (size_t)fy_read_u64(&reader) : r == root ? own->result_used : 0;
        fy_read_bytes(&bytes, own->lengths[r]);
    }
    return fy_read_all(&bytes);
}

ferry_status fy_collect_gather(ferry_world *world, fy_collective kind, uint32_t root,
                               const void *bytes, size_t n_bytes, const void **all_out,
                               const size_t **lengths_out, ferry_error *error)
{
    fy_process *process = world->impl;
    if (n_bytes > most_bytes) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "rank %u gives %zu bytes to a collective; it carries 2 GiB at most",
                       world->rank, n_bytes);
    }
    pthread_mutex_lock(&process->lock);
    enter(process, kind, root);
    pthread_mutex_unlock(&process->lock);
    check_page(process);
    bool gives = kind != FY_BROADCAST || world->rank == root;
    FY_TRY(over_tree(process, kind, bytes, gives ? n_bytes : 0, error));
    if (!read_lengths(process, root)) {
        fy_process_fail(process, FERRY_ERR_INVALID_INPUT, FERRY_ANY_RANK,
                        "rank %u got a collective's result that makes no sense", world->rank);
        return fy_failure_get(&process->failure, NULL, error);
    }
    size_t skip = kind == FY_ALL_GATHER ? (size_t)process->n_ranks * 8 : 0;
    *all_out = process->gathering.result + skip;
    *lengths_out = process->gathering.lengths;
    return FERRY_OK;
}

ferry_status fy_collect_joined(ferry_world *world, ferry_error *error)
{
    fy_process *process = world->impl;
    pthread_mutex_lock(&process->lock);
    enter(process, FY_JOINED, 0);
    pthread_mutex_unlock(&process->lock);
    return over_tree(process, FY_JOINED, NULL, 0, error);
}
