/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The root's side of joining: it gives every rank its place in the tree as it comes, so that nobody
 * waits for a slower one, and writes the table when all are there. Runs on the control thread, but
 * for opening and the root's own entry.
 */
#include "base/alloc.h"
#include "base/index.h"
#include "world/process.h"

#include <stdio.h>
#include <string.h>

typedef struct entry {
    bool joined;
    fy_tree_place place;
    char *addresses;
} entry;

typedef struct node {
    uint64_t id[2];
    uint32_t *claims;
    size_t n_claims;
    size_t capacity;
} node;

struct fy_register {
    bool open; /* the root has its own place: others may come */
    entry *entries;
    uint32_t n_joined;
    node *nodes;
    size_t n_nodes;
    size_t nodes_capacity;
    fy_index index; /* node ids to numbers */
    int64_t last_ns;
};

ferry_status fy_register_open(fy_process *process, ferry_error *error)
{
    fy_register *registry = fy_alloc_zeroed(1, sizeof *registry);
    if (registry != NULL) {
        registry->entries = fy_alloc_zeroed(process->n_claims, sizeof *registry->entries);
        registry->last_ns = fy_now_ns();
    }
    if (registry == NULL || registry->entries == NULL) {
        fy_free(registry);
        return fy_fail_no_memory(error, "the list of ranks that join");
    }
    process->registry = registry;
    return FERRY_OK;
}

void fy_register_close(fy_process *process)
{
    fy_register *registry = process->registry;
    if (registry == NULL) {
        return;
    }
    for (uint32_t c = 0; c < process->n_claims; c++) {
        fy_free(registry->entries[c].addresses);
    }
    for (size_t n = 0; n < registry->n_nodes; n++) {
        fy_free(registry->nodes[n].claims);
    }
    fy_index_cleanup(&registry->index);
    fy_free(registry->nodes);
    fy_free(registry->entries);
    fy_free(registry);
    process->registry = NULL;
}

/* Places. */

static node *find_node(fy_register *registry, const uint64_t id[2])
{
    uint64_t hash = id[0] ^ id[1];
    for (fy_index_cursor c = fy_index_first(&registry->index, hash); c.value != FY_INDEX_NONE;
         fy_index_next(&registry->index, &c)) {
        node *found = &registry->nodes[c.value];
        if (found->id[0] == id[0] && found->id[1] == id[1]) {
            return found;
        }
    }
    if (!FY_RESERVE(registry->nodes, registry->nodes_capacity, registry->n_nodes + 1) ||
        !fy_index_insert(&registry->index, hash, (uint32_t)registry->n_nodes)) {
        return NULL;
    }
    node *added = &registry->nodes[registry->n_nodes++];
    *added = (node){.id = {id[0], id[1]}};
    return added;
}

/* The next place of a node for a claim; false without memory. */
static bool give_place(fy_process *process, uint32_t claim, const uint64_t id[2],
                       const char *addresses)
{
    fy_register *registry = process->registry;
    node *home = find_node(registry, id);
    entry *own = &registry->entries[claim];
    if (home == NULL || !FY_RESERVE(home->claims, home->capacity, home->n_claims + 1)) {
        return false;
    }
    own->addresses = fy_strdup(addresses);
    if (own->addresses == NULL) {
        return false;
    }
    own->joined = true;
    own->place = (fy_tree_place){.node = (uint32_t)(home - registry->nodes),
                                 .index = (uint32_t)home->n_claims};
    home->claims[home->n_claims++] = claim;
    registry->n_joined++;
    registry->last_ns = fy_now_ns();
    return true;
}

static uint32_t claim_at(const fy_register *registry, fy_tree_place place)
{
    return registry->nodes[place.node].claims[place.index];
}

/* The table. */

/* Whoever comes to the port of the meeting from now on means another world. */
static void close_join_door(fy_process *process)
{
    for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        if (conn->kind == FY_CONN_DOOR && conn->joined) {
            fy_control_drop(process, conn);
        }
    }
}

static void post_table(fy_process *process)
{
    for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        if (!conn->dead && conn->kind == FY_CONN_LINK && conn->role == FY_ROLE_CHILD) {
            fy_join_send_table(process, conn);
        }
    }
}

static void write_table(fy_process *process)
{
    fy_register *registry = process->registry;
    size_t n_bytes = 4;
    for (uint32_t c = 0; c < process->n_claims; c++) {
        const entry *one = &registry->entries[c];
        n_bytes += one->joined ? 16 + strlen(one->addresses) : 0;
    }
    unsigned char *bytes = fy_alloc(n_bytes, 1);
    if (bytes == NULL) {
        fy_process_fail(process, FERRY_ERR_NO_MEMORY, process->claim,
                        "rank %u has no memory for the table of ranks", process->claim);
        return;
    }
    fy_pack packer = fy_pack_into(bytes, n_bytes);
    fy_pack_u32(&packer, registry->n_joined);
    for (uint32_t c = 0; c < process->n_claims; c++) {
        const entry *one = &registry->entries[c];
        if (one->joined) {
            fy_pack_u32(&packer, c);
            fy_pack_u32(&packer, one->place.node);
            fy_pack_u32(&packer, one->place.index);
            fy_pack_text(&packer, one->addresses);
        }
    }
    process->tree.table_bytes = bytes;
    process->tree.table_used = process->tree.table_total = packer.used;
    fy_register_close(process);
    close_join_door(process);
    if (!fy_join_read_table(process)) {
        fy_process_fail(process, FERRY_ERR_NO_MEMORY, process->claim,
                        "rank %u has no memory for the table of ranks", process->claim);
        return;
    }
    post_table(process);
}

static bool awaited(const fy_process *process, uint32_t claim)
{
    return process->shrinking.predecessor == NULL ||
           fy_doubt_awaits(process->shrinking.predecessor, claim);
}

uint32_t fy_register_missing(const fy_process *process, uint32_t from)
{
    const fy_register *registry = process->registry;
    for (uint32_t c = from; registry != NULL && c < process->n_claims; c++) {
        if (!registry->entries[c].joined && awaited(process, c)) {
            return c;
        }
    }
    return FERRY_ANY_RANK;
}

static void fail_missing(fy_process *process)
{
    enum { LISTED = 8 };
    char names[160] = "", denied[224] = "";
    size_t used = 0;
    uint32_t first = fy_register_missing(process, 0);
    uint32_t n_missing = process->n_claims - process->registry->n_joined, listed = 0;
    for (uint32_t c = first; c != FERRY_ANY_RANK && listed < LISTED;
         c = fy_register_missing(process, c + 1)) {
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%u",
                                 listed++ > 0 ? ", " : "", c);
    }
    if (process->control.n_denied > 0) {
        snprintf(denied, sizeof denied,
                 "; %u connection%s did not prove the secret, the last from %s",
                 process->control.n_denied, process->control.n_denied == 1 ? "" : "s",
                 process->control.denied_from);
    }
    fy_process_fail(process, FERRY_ERR_TIMEOUT, first,
                    "rank%s %s%s of %u never came: none has come for %.1f s%s (FERRY_JOIN_LIMIT "
                    "gives slow ones more time)",
                    n_missing > 1 ? "s" : "", names, listed < n_missing ? ", ..." : "",
                    process->n_claims, (double)process->limits.join_ns / 1e9, denied);
}

void fy_register_tick(fy_process *process, int64_t now_ns)
{
    fy_register *registry = process->registry;
    if (registry == NULL || !registry->open || fy_failed(&process->failure)) {
        return;
    }
    /* Asked after every rank that joins, so only a shrinking world looks at each. */
    bool all = process->shrinking.predecessor == NULL
                   ? registry->n_joined == process->n_claims
                   : fy_register_missing(process, 0) == FERRY_ANY_RANK;
    bool late = now_ns - registry->last_ns > process->limits.join_ns;
    if (all || (late && process->shrinking.predecessor != NULL)) {
        write_table(process);
    } else if (late) {
        fail_missing(process);
    }
}

/* Those that join. */

static void answer_knock(fy_process *process, fy_conn *conn)
{
    fy_control_post(process, conn, FY_WIRE_WORLD, process->world_id, sizeof process->world_id, NULL,
                    0);
}

bool fy_join_knock(fy_process *process, fy_conn *conn, fy_reader *reader)
{
    uint32_t epoch = fy_read_u32(reader);
    uint32_t claim = fy_read_u32(reader);
    if (reader->failed) {
        return false;
    }
    process->control.n_new--;
    conn->claim = claim;
    if (epoch == process->epoch && process->registry != NULL) {
        conn->role = FY_ROLE_JOINER;
        if (process->registry->open) {
            answer_knock(process, conn);
        }
        fy_control_tell_failure(process, conn);
        return true;
    }
    if (epoch == process->epoch + 1) {
        conn->role = FY_ROLE_PARKED;
        fy_shrink_hand_over(process);
        return true;
    }
    /* This world is complete: whoever knocks means another, which is yet to be made here. */
    conn->role = FY_ROLE_PARKED;
    fy_control_drop(process, conn);
    return true;
}

/* The first newcomer's number that nobody has who is here; FERRY_ANY_RANK: all have come. */
static uint32_t free_number(const fy_process *process)
{
    for (uint32_t claim = process->growing.n_members; claim < process->n_claims; claim++) {
        bool taken = process->registry->entries[claim].joined;
        for (const fy_conn *conn = process->control.conns; conn != NULL && !taken;
             conn = conn->next) {
            taken = !conn->dead && conn->role == FY_ROLE_JOINER && conn->claim == claim;
        }
        if (!taken) {
            return claim;
        }
    }
    return FERRY_ANY_RANK;
}

/*
 * Who all are, for one who knows nobody, and the deadline: signs of life come as often as this
 * world's asks for, and whoever has a shorter one would take its ranks for stopped.
 */
static bool post_number(fy_process *process, fy_conn *conn, uint32_t claim)
{
    size_t n_bytes = 20 + 4 * (size_t)process->n_claims;
    unsigned char *bytes = fy_alloc(n_bytes, 1);
    if (bytes == NULL) {
        return false;
    }
    fy_pack packer = fy_pack_into(bytes, n_bytes);
    fy_pack_u32(&packer, process->epoch);
    fy_pack_u32(&packer, claim);
    fy_pack_u32(&packer, process->world->n_first);
    fy_pack_u64(&packer, (uint64_t)process->limits.deadline_ns);
    for (uint32_t c = 0; c < process->n_claims; c++) {
        fy_pack_u32(&packer, process->growing.members[c]);
    }
    fy_control_post(process, conn, FY_WIRE_NUMBER, bytes, packer.used, NULL, 0);
    fy_free(bytes);
    return true;
}

/* Who comes to a world that does not grow, or for whom there is no place, tries again. */
bool fy_join_enter(fy_process *process, fy_conn *conn, fy_reader *reader)
{
    (void)reader;
    bool grows = process->growing.n_members > 0 && process->registry != NULL;
    uint32_t claim = grows ? free_number(process) : FERRY_ANY_RANK;
    if (claim == FERRY_ANY_RANK || !post_number(process, conn, claim)) {
        return false;
    }
    process->control.n_new--;
    conn->role = FY_ROLE_JOINER;
    conn->claim = claim;
    if (process->registry->open) {
        answer_knock(process, conn);
    }
    fy_control_tell_failure(process, conn);
    return true;
}

ferry_status fy_register_enter(fy_process *process, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    pthread_mutex_lock(&process->lock);
    if (!give_place(process, process->claim, process->node.page->id, process->door.addresses)) {
        status = fy_fail_no_memory(error, "the list of ranks that join");
    } else {
        process->registry->open = true;
        for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
            if (!conn->dead && conn->kind == FY_CONN_LINK && conn->role == FY_ROLE_JOINER) {
                answer_knock(process, conn);
            }
        }
        fy_register_tick(process, fy_now_ns());
    }
    pthread_mutex_unlock(&process->lock);
    return status;
}

/* Why a rank does not fit into this world; true if it does. */
static bool fits(fy_process *process, fy_conn *conn, uint32_t n_claims, const char *nodes)
{
    uint32_t claim = conn->claim, root = process->claim;
    if (n_claims != process->n_claims) {
        fy_process_fail(process, FERRY_ERR_INVALID_INPUT, claim,
                        "rank %u was started for a world of %u ranks, rank %u for one of %u: "
                        "WORLD_SIZE must be the same everywhere",
                        claim, n_claims, root, process->n_claims);
        return false;
    }
    if (claim >= n_claims || process->registry->entries[claim].joined) {
        /* In a shrinking world it is one that has heard of a death and begins again. */
        fy_process_fail(process,
                        process->shrinking.predecessor == NULL ? FERRY_ERR_INVALID_INPUT
                                                               : FERRY_ERR_PEER_LOST,
                        claim,
                        claim >= n_claims ? "rank %u is outside a world of %u ranks"
                                          : "two processes say that they are rank %u of %u",
                        claim, n_claims);
        return false;
    }
    if (strcmp(nodes, process->nodes_text) != 0) {
        fy_process_fail(process, FERRY_ERR_INVALID_INPUT, claim,
                        "rank %u has FERRY_NODES \"%s\", rank %u has \"%s\": it must be the same "
                        "everywhere",
                        claim, nodes, root, process->nodes_text);
        return false;
    }
    if (!awaited(process, claim)) {
        unsigned char head[128];
        fy_pack packer = fy_pack_into(head, sizeof head);
        fy_pack_u32(&packer, FERRY_ERR_ABORTED);
        fy_pack_u32(&packer, claim);
        fy_pack_text(&packer, "this rank was counted as lost: the others go on without it");
        fy_control_post(process, conn, FY_WIRE_FAIL, head, packer.used, NULL, 0);
        return false;
    }
    return true;
}

bool fy_join_join(fy_process *process, fy_conn *conn, fy_reader *reader)
{
    uint64_t id[2];
    char nodes[256];
    char addresses[FY_ADDRESSES_BYTES];
    uint32_t n_claims = fy_read_u32(reader);
    id[0] = fy_read_u64(reader);
    id[1] = fy_read_u64(reader);
    fy_read_string(reader, nodes, sizeof nodes);
    fy_read_string(reader, addresses, sizeof addresses);
    /* Nobody comes before the root itself: its place is the first. */
    if (reader->failed || process->registry == NULL || !process->registry->open || conn->joined) {
        return false;
    }
    if (fy_failed(&process->failure) || !fits(process, conn, n_claims, nodes)) {
        fy_control_tell_failure(process, conn);
        return true;
    }
    if (!give_place(process, conn->claim, id, addresses)) {
        fy_process_fail(process, FERRY_ERR_NO_MEMORY, process->claim,
                        "rank %u has no memory for the ranks that join", process->claim);
        return true;
    }
    fy_register *registry = process->registry;
    uint32_t parent = claim_at(registry, fy_tree_parent(registry->entries[conn->claim].place));
    const char *where = registry->entries[parent].addresses;
    unsigned char head[8 + FY_ADDRESSES_BYTES];
    fy_pack packer = fy_pack_into(head, sizeof head);
    fy_pack_u32(&packer, parent);
    fy_pack_text(&packer, where);
    fy_control_post(process, conn, FY_WIRE_PLACE, head, packer.used, NULL, 0);
    conn->joined = true;
    if (parent == process->claim) {
        conn->role = FY_ROLE_CHILD;
        conn->since_ns = fy_now_ns();
    }
    fy_register_tick(process, fy_now_ns());
    return true;
}

bool fy_join_attached(fy_process *process, fy_conn *conn, fy_reader *reader)
{
    (void)reader;
    fy_control_drop(process, conn);
    return true;
}

bool fy_register_is_newcomer(const fy_process *process, const fy_conn *conn)
{
    return conn->role == FY_ROLE_JOINER && process->growing.n_members > 0 &&
           conn->claim >= process->growing.n_members;
}

void fy_register_lost(fy_process *process, fy_conn *conn, const char *why)
{
    /* A rank of a start may think better of it before it says JOIN, and comes again; and of members
     * the old world hears. */
    if (conn->joined || fy_register_is_newcomer(process, conn)) {
        fy_process_fail(process, FERRY_ERR_PEER_LOST, conn->claim,
                        "rank %u was lost while it joined: %s", conn->claim, why);
    }
}
