/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* How a rank joins: the steps of the calling thread, then the table, which the control thread
 * takes.
 */
#include "base/alloc.h"
#include "base/sort.h"
#include "world/process.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

int64_t fy_join_step_ns(const fy_process *process)
{
    bool starts = process->epoch == 0 || process->limits.join_ns < process->limits.deadline_ns;
    return starts ? process->limits.join_ns : process->limits.deadline_ns;
}

/* The calling thread. */

/* Tells the root why this rank gives up, so that the others need not wait for it. */
static void give_up(fy_process *process, fy_link *root, ferry_status status,
                    const ferry_error *reason)
{
    unsigned char head[16 + 64 + FERRY_ERROR_BYTES];
    char text[FERRY_ERROR_BYTES];
    fy_pack packer = fy_pack_into(head, sizeof head);
    snprintf(text, sizeof text, "rank %u could not join: %.900s", process->claim, reason->message);
    /* To the others a rank whose caller thought better of it is one that is gone. */
    fy_pack_u32(&packer, (uint32_t)(status == FERRY_ERR_STOPPED ? FERRY_ERR_PEER_LOST : status));
    fy_pack_u32(&packer, process->claim);
    fy_pack_text(&packer, text);
    if (fy_link_post(root, FY_WIRE_FAIL, head, packer.used, NULL, 0, NULL) == FERRY_OK) {
        fy_link_drain(root, 1000 * 1000 * 1000, NULL);
    }
}

/* What the root says of a world that will not be. */
static void note_failure(fy_process *process, const fy_message *message)
{
    fy_reader reader = fy_reader_of(message->payload, message->n_bytes);
    uint32_t status = fy_read_u32(&reader);
    uint32_t rank = fy_read_u32(&reader);
    ferry_error text;
    fy_read_string(&reader, text.message, sizeof text.message);
    if (reader.failed || status == FERRY_OK) {
        status = FERRY_ERR_INVALID_INPUT;
        snprintf(text.message, sizeof text.message, "rank %u ended the start and did not say why",
                 process->root_claim);
    }
    fy_failure_set(&process->failure, (ferry_status)status, rank, "%s", text.message);
}

/*
 * The root gives signs of life to those at its door. If they end it is stopped or out of reach, and
 * to wait a join limit for it would keep those who wait for this rank. Where there is an older
 * world its rules count: of a world that grows the members hear there of such a root, and a
 * newcomer has but this one.
 */
static bool root_is_silent(fy_process *process, const fy_link *root)
{
    fy_process *old = process->growing.is_newcomer ? process : process->shrinking.predecessor;
    int64_t heard = fy_link_heard_ns(root);
    if (old == NULL) {
        return false;
    }
    pthread_mutex_lock(&old->lock);
    bool silent = fy_control_silence_counts(old, process->root_claim, heard);
    pthread_mutex_unlock(&old->lock);
    if (silent) {
        fy_process_fail(process, FERRY_ERR_TIMEOUT, process->root_claim,
                        "rank %u has shown no sign of life for %.1f s, and not taken rank %u in",
                        process->root_claim, (double)(fy_now_ns() - heard) / 1e9, process->claim);
    }
    return silent;
}

static fy_interrupt *interrupt_of(const fy_process *process)
{
    return process->world->settings.interrupt;
}

/* A stop function: the caller thought better of it, or the world has failed already. */
static bool is_unwanted(void *context)
{
    const fy_process *process = context;
    return fy_interrupted(interrupt_of(process)) || fy_failed(&process->failure);
}

static ferry_status fail_unwanted(const fy_process *process, ferry_error *error)
{
    if (fy_failed(&process->failure)) {
        return fy_failure_get(&process->failure, NULL, error);
    }
    return fy_interrupted(interrupt_of(process))
               ? fy_interrupt_fail(error)
               : fy_fail(error, FERRY_ERR_PEER_LOST, "rank %u was lost while rank %u joined",
                         process->root_claim, process->claim);
}

/*
 * A newcomer's signs of life to the root, which nobody else watches it for: they come from the
 * calling thread, whose the link is until the control thread has a parent to send them to.
 */
static void show_life(fy_process *process, fy_link *root)
{
    int64_t now = fy_now_ns();
    if (process->growing.is_newcomer &&
        now - process->growing.beaten_ns >= fy_control_beat_ns(process->limits.deadline_ns)) {
        process->growing.beaten_ns = now;
        (void)fy_link_post(root, FY_WIRE_BEAT, NULL, 0, NULL, 0, NULL);
    }
}

/* A wait is cut so that those signs come in time. */
static int64_t look_ns(const fy_process *process)
{
    int64_t deadline_ns = process->limits.deadline_ns;
    return fy_interrupt_slice_ns(interrupt_of(process), process->growing.is_newcomer
                                                            ? fy_control_beat_ns(deadline_ns)
                                                            : deadline_ns / 10);
}

typedef struct visit {
    fy_process *process;
    fy_link *root;
} visit;

/* A stop function: the root has given up, or is gone or silent, while this rank waits for others.
 */
static bool root_gave_up(void *context)
{
    const visit *own = context;
    fy_message message;
    if (fy_interrupted(interrupt_of(own->process))) {
        return true;
    }
    show_life(own->process, own->root);
    ferry_status status = fy_link_work(own->root, NULL);
    while (fy_link_take(own->root, &message)) {
        if (message.type == FY_WIRE_FAIL) {
            note_failure(own->process, &message);
        }
    }
    return status != FERRY_OK || fy_failed(&own->process->failure) ||
           root_is_silent(own->process, own->root);
}

/* The next message of a type from the root; signs of life are passed over. */
static ferry_status expect(fy_process *process, fy_link *root, uint32_t type, int64_t until_ns,
                           fy_message *message_out, ferry_error *error)
{
    for (;;) {
        int64_t left = until_ns - fy_now_ns();
        if (left <= 0) {
            return fy_fail(error, FERRY_ERR_TIMEOUT,
                           "rank %u reached rank %u, which did not accept it within %.1f s",
                           process->claim, process->root_claim,
                           (double)process->limits.join_ns / 1e9);
        }
        if (is_unwanted(process)) {
            return fail_unwanted(process, error);
        }
        show_life(process, root);
        int64_t look = look_ns(process);
        ferry_status status = fy_link_receive(root, left < look ? left : look, message_out, error);
        if (status == FERRY_ERR_TIMEOUT && !root_is_silent(process, root)) {
            continue;
        }
        if (status != FERRY_OK) {
            return status;
        }
        if (message_out->type == type) {
            return FERRY_OK;
        }
        if (message_out->type == FY_WIRE_FAIL) {
            note_failure(process, message_out);
            return fy_failure_get(&process->failure, NULL, error);
        }
        if (message_out->type != FY_WIRE_BEAT) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "rank %u answered rank %u with a message of type %u",
                           process->root_claim, process->claim, message_out->type);
        }
    }
}

/* The world's name, from a root that knows who this rank is. */
static ferry_status hear_name(fy_process *process, fy_link *root, int64_t until_ns,
                              ferry_error *error)
{
    fy_message message;
    FY_TRY(expect(process, root, FY_WIRE_WORLD, until_ns, &message, error));
    if (message.n_bytes != sizeof process->world_id) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "rank %u gave its world no name",
                       process->root_claim);
    }
    memcpy(process->world_id, message.payload, sizeof process->world_id);
    return FERRY_OK;
}

static ferry_status knock(fy_process *process, fy_link *root, int64_t until_ns, ferry_error *error)
{
    unsigned char head[8];
    fy_pack packer = fy_pack_into(head, sizeof head);
    fy_pack_u32(&packer, process->epoch);
    fy_pack_u32(&packer, process->claim);
    FY_TRY(fy_link_post(root, FY_WIRE_KNOCK, head, packer.used, NULL, 0, error));
    return hear_name(process, root, until_ns, error);
}

/* Where others reach this rank: as the option says, or as it reached the root. */
static void choose_addresses(fy_process *process, const fy_link *root)
{
    char own[64];
    fy_link_own_host(root, own);
    if (process->door.addresses[0] == '\0') {
        snprintf(process->door.addresses, sizeof process->door.addresses,
                 strchr(own, ':') != NULL ? "[%s]:%u" : "%s:%u", own, process->door.port);
    }
}

static ferry_status say_join(fy_process *process, fy_link *root, int64_t until_ns,
                             uint32_t *parent_out, char addresses[FY_ADDRESSES_BYTES],
                             ferry_error *error)
{
    unsigned char head[64 + 256 + FY_ADDRESSES_BYTES];
    fy_pack packer = fy_pack_into(head, sizeof head);
    fy_message message;
    choose_addresses(process, root);
    fy_pack_u32(&packer, process->n_claims);
    fy_pack_u64(&packer, process->node.page->id[0]);
    fy_pack_u64(&packer, process->node.page->id[1]);
    fy_pack_text(&packer, process->nodes_text);
    fy_pack_text(&packer, process->door.addresses);
    FY_TRY(fy_link_post(root, FY_WIRE_JOIN, head, packer.used, NULL, 0, error));
    FY_TRY(expect(process, root, FY_WIRE_PLACE, until_ns, &message, error));
    fy_reader reader = fy_reader_of(message.payload, message.n_bytes);
    *parent_out = fy_read_u32(&reader);
    fy_read_string(&reader, addresses, FY_ADDRESSES_BYTES);
    return !reader.failed ? FERRY_OK
                          : fy_fail(error, FERRY_ERR_INVALID_INPUT, "rank %u gave rank %u no place",
                                    process->root_claim, process->claim);
}

/* Waits for the rank of this node that came first, if that is another one. */
static ferry_status enter_node(fy_process *process, bool (*stop)(void *context), void *context,
                               ferry_error *error)
{
    ferry_status status = fy_node_enter(process, stop, context, error);
    return status == FERRY_ERR_STOPPED ? fail_unwanted(process, error) : status;
}

ferry_status fy_join_root(fy_process *process, ferry_error *error)
{
    FY_TRY(enter_node(process, is_unwanted, process, error));
    return fy_register_enter(process, error);
}

static ferry_status keep_parent(fy_process *process, fy_link *link, uint32_t claim,
                                ferry_error *error)
{
    pthread_mutex_lock(&process->lock);
    process->tree.parent = fy_control_add_link(process, link, FY_ROLE_PARENT, claim, error);
    ferry_status status = process->tree.parent == NULL ? FERRY_ERR_IO : FERRY_OK;
    pthread_mutex_unlock(&process->lock);
    /* What the link holds already does not make its socket readable. */
    fy_control_poke(process);
    return status;
}

/* A parent other than the root: a link of its own, after which the root's is not needed. */
static ferry_status attach(fy_process *process, fy_link *root, uint32_t parent,
                           const char *addresses, int64_t until_ns, ferry_error *error)
{
    fy_link *link;
    unsigned char head[8];
    fy_pack packer = fy_pack_into(head, sizeof head);
    ferry_error inner;
    visit own = {.process = process, .root = root};
    ferry_status status = fy_link_open(addresses, process->key, until_ns - fy_now_ns(),
                                       root_gave_up, &own, &link, &inner);
    if (status == FERRY_ERR_STOPPED) {
        return fail_unwanted(process, error);
    }
    if (status != FERRY_OK) {
        return fy_fail(error, status, "rank %u does not reach its parent, rank %u: %s",
                       process->claim, parent, inner.message);
    }
    fy_pack_u32(&packer, process->epoch);
    fy_pack_u32(&packer, process->claim);
    status = fy_link_post(link, FY_WIRE_ATTACH, head, packer.used, process->world_id,
                          sizeof process->world_id, error);
    if (status != FERRY_OK) {
        fy_link_destroy(link);
        return status;
    }
    FY_TRY(keep_parent(process, link, parent, error));
    FY_TRY(fy_link_post(root, FY_WIRE_ATTACHED, NULL, 0, NULL, 0, error));
    return fy_link_drain(root, until_ns - fy_now_ns(), error);
}

/* After the root has said its world's name, or (status and text say why) not. Takes the link over.
 */
static ferry_status take_place(fy_process *process, fy_link *root, int64_t until_ns,
                               ferry_status status, ferry_error text, ferry_error *error)
{
    char addresses[FY_ADDRESSES_BYTES];
    uint32_t parent;
    visit at = {.process = process, .root = root};
    if (status == FERRY_OK) {
        status = enter_node(process, root_gave_up, &at, &text);
        FY_THEN(status, say_join(process, root, until_ns, &parent, addresses, &text));
        if (status == FERRY_OK && parent == process->root_claim) {
            return keep_parent(process, root, parent, error);
        }
        FY_THEN(status, attach(process, root, parent, addresses, until_ns, &text));
        if (status != FERRY_OK && !fy_failed(&process->failure)) {
            give_up(process, root, status, &text);
        }
    }
    fy_link_destroy(root);
    if (status == FERRY_ERR_STOPPED) {
        return fy_interrupt_fail(error);
    }
    if (status == FERRY_OK || fy_failed(&process->failure)) {
        return status == FERRY_OK ? status : fy_failure_get(&process->failure, NULL, error);
    }
    return fy_fail(error, status, "rank %u could not join by rank %u: %.900s", process->claim,
                   process->root_claim, text.message);
}

/* One attempt; *retry_out: the root closed the door before it took this rank in. */
static ferry_status join_once(fy_process *process, fy_link *root, int64_t until_ns, bool *retry_out,
                              ferry_error *error)
{
    ferry_error text = {""};
    ferry_status status = knock(process, root, until_ns, &text);
    *retry_out = status == FERRY_ERR_PEER_LOST && !fy_failed(&process->failure);
    return take_place(process, root, until_ns, status, text, error);
}

ferry_status fy_join_newcomer(fy_process *process, fy_link *root, ferry_error *error)
{
    process->growing.is_newcomer = true;
    return take_place(process, root, fy_now_ns() + process->limits.join_ns, FERRY_OK,
                      (ferry_error){""}, error);
}

ferry_status fy_join_member(fy_process *process, const char *addresses,
                            const unsigned char key[FY_KEY_BYTES], int64_t connect_ns,
                            ferry_error *error)
{
    int64_t until = fy_now_ns() + process->limits.join_ns;
    for (;;) {
        fy_link *root;
        bool retry;
        ferry_error text;
        ferry_status status =
            process->epoch == 0
                ? fy_link_open(addresses, key, connect_ns, is_unwanted, process, &root, &text)
                : fy_link_reopen(addresses, key, connect_ns, is_unwanted, process, &root, &text);
        if (status == FERRY_ERR_STOPPED) {
            return fail_unwanted(process, error);
        }
        if (status != FERRY_OK) {
            return fy_fail(error, status, "rank %u does not reach rank %u: %s", process->claim,
                           process->root_claim, text.message);
        }
        status = join_once(process, root, until, &retry, error);
        if (!retry || fy_now_ns() >= until) {
            return status;
        }
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    }
}

/* The control thread. */

/* Whether the table makes a rank this one's child, which has not attached yet. */
static bool is_own_child(const fy_process *process, uint32_t rank)
{
    if (rank == FERRY_ANY_RANK || rank == process->rank ||
        !fy_place_equal(fy_tree_parent(process->tree.table[rank].place),
                        process->tree.table[process->rank].place)) {
        return false;
    }
    for (const fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        if (!conn->dead && conn->role == FY_ROLE_CHILD && conn->rank == rank) {
            return false;
        }
    }
    return true;
}

bool fy_join_attach(fy_process *process, fy_conn *conn, fy_reader *reader)
{
    uint32_t epoch = fy_read_u32(reader);
    uint32_t claim = fy_read_u32(reader);
    const unsigned char *world_id = fy_read_bytes(reader, sizeof process->world_id);
    if (reader->failed || epoch != process->epoch || claim >= process->n_claims ||
        memcmp(world_id, process->world_id, sizeof process->world_id) != 0) {
        return false;
    }
    uint32_t rank = FERRY_ANY_RANK;
    if (atomic_load(&process->tree.tabled)) {
        rank = fy_process_rank_of(process, claim);
        if (!is_own_child(process, rank)) {
            return false;
        }
    }
    process->control.n_new--;
    conn->role = FY_ROLE_CHILD;
    conn->claim = claim;
    conn->rank = rank;
    conn->since_ns = fy_now_ns();
    fy_join_send_table(process, conn);
    fy_control_tell_failure(process, conn);
    return true;
}

void fy_join_send_table(fy_process *process, fy_conn *conn)
{
    unsigned char head[8];
    enum { CHUNK = FY_LINK_PAYLOAD_BYTES - sizeof head };
    for (size_t at = 0; at < process->tree.table_used; at += CHUNK) {
        size_t left = process->tree.table_used - at;
        fy_pack packer = fy_pack_into(head, sizeof head);
        fy_pack_u64(&packer, process->tree.table_total);
        fy_control_post(process, conn, FY_WIRE_TABLE, head, packer.used,
                        process->tree.table_bytes + at, left < CHUNK ? left : CHUNK);
    }
}

bool fy_join_table(fy_process *process, fy_conn *conn, fy_reader *reader)
{
    (void)conn;
    uint64_t total = fy_read_u64(reader);
    size_t left = fy_read_left(reader);
    uint64_t most = 4 + (uint64_t)process->n_claims * (16 + FY_ADDRESSES_BYTES);
    if (reader->failed || atomic_load(&process->tree.tabled) || total > most ||
        left > total - process->tree.table_used ||
        (process->tree.table_bytes != NULL && total != process->tree.table_total)) {
        return false;
    }
    if (process->tree.table_bytes == NULL) {
        process->tree.table_bytes = fy_alloc(total, 1);
        process->tree.table_total = total;
        if (process->tree.table_bytes == NULL) {
            fy_process_fail(process, FERRY_ERR_NO_MEMORY, process->claim,
                            "rank %u has no memory for the table of ranks", process->claim);
            return true;
        }
    }
    memcpy(process->tree.table_bytes + process->tree.table_used, fy_read_bytes(reader, left), left);
    process->tree.table_used += left;
    unsigned char head[8];
    fy_pack packer = fy_pack_into(head, sizeof head);
    fy_pack_u64(&packer, total);
    for (fy_conn *child = process->control.conns; child != NULL; child = child->next) {
        if (!child->dead && child->kind == FY_CONN_LINK && child->role == FY_ROLE_CHILD) {
            fy_control_post(process, child, FY_WIRE_TABLE, head, packer.used,
                            process->tree.table_bytes + process->tree.table_used - left, left);
        }
    }
    return process->tree.table_used < total || fy_join_read_table(process);
}

/* The entries of the table, checked: claims rise, places are within bounds. */
static bool read_members(fy_process *process, fy_reader *reader, uint32_t n_ranks)
{
    uint32_t last = 0;
    for (uint32_t r = 0; r < n_ranks; r++) {
        fy_member *member = &process->tree.table[r];
        size_t length;
        member->claim = fy_read_u32(reader);
        member->place.node = fy_read_u32(reader);
        member->place.index = fy_read_u32(reader);
        member->addresses = fy_read_text(reader, &length);
        member->n_address = (uint32_t)length;
        if (reader->failed || member->place.node >= n_ranks || member->place.index >= n_ranks ||
            member->claim >= process->n_claims || (r > 0 && member->claim <= last)) {
            return false;
        }
        last = member->claim;
        if (member->claim == process->claim) {
            process->rank = r;
        }
        process->tree.n_nodes = member->place.node >= process->tree.n_nodes ? member->place.node + 1
                                                                            : process->tree.n_nodes;
    }
    return fy_read_all(reader) && process->rank < n_ranks;
}

/* rank_at and node_first, by counting; false where two ranks have one place. */
static bool order_places(fy_process *process, uint32_t n_ranks)
{
    for (uint32_t r = 0; r < n_ranks; r++) {
        process->tree.node_first[process->tree.table[r].place.node + 1]++;
    }
    for (uint32_t n = 0; n < process->tree.n_nodes; n++) {
        process->tree.node_first[n + 1] += process->tree.node_first[n];
    }
    memset(process->tree.rank_at, 0xff, n_ranks * sizeof *process->tree.rank_at);
    for (uint32_t r = 0; r < n_ranks; r++) {
        fy_tree_place place = process->tree.table[r].place;
        uint32_t at = process->tree.node_first[place.node] + place.index;
        if (at >= process->tree.node_first[place.node + 1] ||
            process->tree.rank_at[at] != UINT32_MAX) {
            return false;
        }
        process->tree.rank_at[at] = r;
    }
    return true;
}

static void count_children(fy_process *process)
{
    fy_tree_place own = process->tree.table[process->rank].place;
    process->tree.n_children = 0;
    for (uint32_t r = 0; r < process->n_ranks; r++) {
        fy_tree_place place = process->tree.table[r].place;
        process->tree.n_children +=
            r != process->rank && fy_place_equal(fy_tree_parent(place), own);
    }
}

uint32_t fy_process_rank_of(const fy_process *process, uint32_t claim)
{
    FY_BISECT(uint32_t, low, 0, process->n_ranks, middle,
              process->tree.table[middle].claim < claim);
    return low < process->n_ranks && process->tree.table[low].claim == claim ? low : FERRY_ANY_RANK;
}

/* The ranks at the other ends; who attached and is no child of this one by the table goes. */
static void name_connections(fy_process *process)
{
    for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        uint32_t rank = conn->claim == FERRY_ANY_RANK ? FERRY_ANY_RANK
                                                      : fy_process_rank_of(process, conn->claim);
        if (conn->role == FY_ROLE_CHILD && !is_own_child(process, rank)) {
            fy_control_drop(process, conn);
        }
        conn->rank = rank;
    }
}

bool fy_join_read_table(fy_process *process)
{
    fy_reader reader = fy_reader_of(process->tree.table_bytes, process->tree.table_total);
    uint32_t n_ranks = fy_read_u32(&reader);
    if (n_ranks == 0 || n_ranks > process->n_claims) {
        return false;
    }
    process->rank = UINT32_MAX;
    process->tree.table = fy_alloc_zeroed(n_ranks, sizeof *process->tree.table);
    process->tree.rank_at = fy_alloc_zeroed(n_ranks, sizeof *process->tree.rank_at);
    process->tree.node_first =
        fy_alloc_zeroed((size_t)n_ranks + 1, sizeof *process->tree.node_first);
    process->lost = fy_alloc_zeroed(n_ranks, sizeof *process->lost);
    process->shrinking.silent_ns = fy_alloc_zeroed(n_ranks, sizeof *process->shrinking.silent_ns);
    if (process->tree.table == NULL || process->tree.rank_at == NULL ||
        process->tree.node_first == NULL || process->lost == NULL ||
        process->shrinking.silent_ns == NULL || !read_members(process, &reader, n_ranks) ||
        !order_places(process, n_ranks)) {
        return false;
    }
    process->n_ranks = n_ranks;
    process->tree.table_ns = fy_now_ns();
    count_children(process);
    name_connections(process);
    atomic_store(&process->tree.tabled, true);
    fy_process_wake(process);
    return true;
}

void fy_join_tick(fy_process *process, int64_t now_ns)
{
    if (!atomic_load(&process->tree.tabled) || process->tree.attached ||
        fy_failed(&process->failure)) {
        return;
    }
    uint32_t n_attached = 0;
    for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        n_attached += !conn->dead && conn->kind == FY_CONN_LINK && conn->role == FY_ROLE_CHILD;
    }
    process->tree.attached = n_attached == process->tree.n_children;
    if (process->tree.attached || now_ns - process->tree.table_ns < fy_join_step_ns(process)) {
        return;
    }
    uint32_t missing = fy_process_missing_child(process);
    fy_process_fail(process, FERRY_ERR_TIMEOUT, missing,
                    "rank %u joined but never reached its parent, rank %u", missing, process->rank);
}

uint32_t fy_process_missing_child(const fy_process *process)
{
    fy_tree_place own = process->tree.table[process->rank].place;
    for (uint32_t r = 0; r < process->n_ranks; r++) {
        bool here = r == process->rank ||
                    !fy_place_equal(fy_tree_parent(process->tree.table[r].place), own);
        for (const fy_conn *conn = process->control.conns; conn != NULL && !here;
             conn = conn->next) {
            here = !conn->dead && conn->kind == FY_CONN_LINK && conn->role == FY_ROLE_CHILD &&
                   conn->rank == r;
        }
        if (!here) {
            return r;
        }
    }
    return FERRY_ANY_RANK;
}
