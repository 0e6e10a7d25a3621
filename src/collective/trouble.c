/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * When a handle breaks, and how all ranks learn of it. Each rank tells its contacts, those it
 * exchanges anything with, and each contact that did not know tells its own: so the news crosses
 * nodes although nobody has a list of all ranks.
 */
#include "collective/comm.h"

#include "base/print.h"

#include "world/bell.h"
#include "world/world.h"

#include <stdio.h>
#include <string.h>

enum { RING_CONTACTS = 6, KERNEL_DOUBT_NS = 1000000000 };

static const fy_mix_edge rings[] = {FY_MIX_EDGE_WORLD_UP, FY_MIX_EDGE_TP_UP, FY_MIX_EDGE_DP_UP};

static uint32_t neighbour(const fy_topology *t, fy_mix_edge ring, bool up)
{
    uint32_t size = fy_mix_edge_group_size(t, ring);
    uint32_t index = fy_mix_edge_group_index(t, ring);
    return fy_mix_edge_group_rank(t, ring, (up ? index + 1 : index + size - 1) % size);
}

uint32_t fy_mix_contact_count(const fy_topology *t)
{
    return t->local_size + t->inter_size + RING_CONTACTS;
}

/* The rank that a contact is: numbers of one and the same rank may be several. */
static uint32_t contact_rank(const fy_topology *t, uint32_t contact)
{
    if (contact < t->local_size) {
        return contact + t->inter_rank * t->local_size;
    }
    contact -= t->local_size;
    if (contact < t->inter_size) {
        return t->local_rank + contact * t->local_size;
    }
    contact -= t->inter_size;
    return neighbour(t, rings[contact / 2], contact % 2 == 1);
}

/* The number under which a reader knows a writer. */
uint32_t fy_mix_contact_of(const ferry_mixed_comm *comm, uint32_t reader, uint32_t writer)
{
    fy_topology t = fy_topology_of_rank(&comm->program.topology, reader);
    if (writer / t.local_size == t.inter_rank) {
        return writer % t.local_size;
    }
    if (writer % t.local_size == t.local_rank) {
        return t.local_size + writer / t.local_size;
    }
    for (uint32_t i = 0; i < RING_CONTACTS; i++) {
        if (neighbour(&t, rings[i / 2], i % 2 == 1) == writer) {
            return t.local_size + t.inter_size + i;
        }
    }
    return UINT32_MAX;
}

static uint64_t board_at(uint32_t contact)
{
    return FY_MIX_CONTROL_BOARDS + (uint64_t)contact * sizeof(fy_mix_board);
}

static uint64_t notice_at(const ferry_mixed_comm *comm, uint32_t contact)
{
    return board_at(fy_mix_contact_count(&comm->program.topology)) +
           (uint64_t)contact * sizeof(fy_mix_notice);
}

uint64_t fy_mix_control_bytes(const ferry_mixed_comm *comm)
{
    return notice_at(comm, fy_mix_contact_count(&comm->program.topology));
}

static void *control_at(const ferry_mixed_comm *comm, uint64_t offset)
{
    return (char *)ferry_region_base(comm->boards.control) + offset;
}

const char *fy_mix_call_text(uint32_t op, uint32_t mode, uint64_t count, char *text, size_t bytes)
{
    if (op == FY_MIX_OP_SHUTDOWN) {
        snprintf(text, bytes, "a shutdown");
    } else if (op == FY_MIX_OP_TUNE) {
        snprintf(text, bytes, "an autotune");
    } else if (op == FY_MIX_OP_REFUSED) {
        snprintf(text, bytes, "one that was refused there");
    } else {
        snprintf(text, bytes, "%s of %llu elements in mode %s", ferry_mixed_op_name(op),
                 (unsigned long long)count, ferry_mixed_mode_name(mode));
    }
    return text;
}

const char *fy_mix_gap_text(uint32_t rank, uint64_t call, uint32_t other, uint64_t others_call,
                            char text[FY_MIX_GAP_BYTES])
{
    bool is_ahead = call > others_call;
    text[0] = '\0';
    if (call != others_call) {
        snprintf(text, FY_MIX_GAP_BYTES,
                 "; rank %u went on without call %llu of rank %u, which it refused or left out",
                 is_ahead ? rank : other, (unsigned long long)(is_ahead ? others_call : call),
                 is_ahead ? other : rank);
    }
    return text;
}

/* Calls put(contact's rank, its number of this rank) for every contact that is another rank. */
static void for_contacts(ferry_mixed_comm *comm,
                         void (*put)(ferry_mixed_comm *comm, uint32_t rank, uint32_t number))
{
    const fy_topology *t = &comm->program.topology;
    for (uint32_t contact = 0; contact < fy_mix_contact_count(t); contact++) {
        uint32_t rank = contact_rank(t, contact);
        /* A rank under several numbers is told once: by the number that it is found under. */
        if (rank != t->world_rank && fy_mix_contact_of(comm, t->world_rank, rank) == contact) {
            put(comm, rank, fy_mix_contact_of(comm, rank, t->world_rank));
        }
    }
}

/* Whoever cannot be told learns it by the deadline. */
static void put_notice(ferry_mixed_comm *comm, uint32_t rank, uint32_t number)
{
    fy_mix_notice *notice = control_at(comm, notice_at(comm, comm->program.topology.local_rank));
    uint64_t there = notice_at(comm, number);
    ferry_buffer source = ferry_buffer_of(&notice->from, sizeof *notice - sizeof notice->status);
    ferry_buffer none = ferry_buffer_of(NULL, 0);
    ferry_signal status = {comm->boards.control, there, notice->status, FERRY_SIGNAL_SET};
    ferry_signal count = {comm->boards.control, FY_MIX_CONTROL_NOTICES, 1, FERRY_SIGNAL_ADD};
    /* Several may come at once: the count says that there is news, the status that it is whole. */
    if (ferry_transport_put_signal(comm->wires.transport, rank, comm->boards.control,
                                   there + sizeof notice->status, &source, &status, NULL,
                                   NULL) == FERRY_OK &&
        ferry_transport_put_signal(comm->wires.transport, rank, comm->boards.control, 0, &none,
                                   &count, NULL, NULL) == FERRY_OK) {
        ferry_transport_flush(comm->wires.transport, rank, NULL, NULL);
    }
}

static void break_from(ferry_mixed_comm *comm, uint64_t from, ferry_status status,
                       const char *format, va_list arguments)
{
    pthread_mutex_lock(&comm->wires.network);
    if (atomic_load(&comm->broken) == FERRY_OK) {
        fy_vprint(comm->reason.message, sizeof comm->reason.message, format, arguments);
        if (comm->boards.control != NULL && !fy_failed(comm->world->failure)) {
            /* This rank's own number among its contacts is free to hold what is sent. */
            fy_mix_notice *notice =
                control_at(comm, notice_at(comm, comm->program.topology.local_rank));
            notice->status = (uint64_t)status;
            notice->from = from;
            snprintf(notice->sentence, sizeof notice->sentence, "%.*s",
                     (int)sizeof notice->sentence - 1, comm->reason.message);
            for_contacts(comm, put_notice);
            fy_work_break(comm->world, &comm->work);
        }
        atomic_store(&comm->broken, (uint32_t)status);
    }
    pthread_mutex_unlock(&comm->wires.network);
}

void fy_comm_break(ferry_mixed_comm *comm, ferry_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    break_from(comm, 0, status, format, arguments);
    va_end(arguments);
}

void fy_comm_cancel(ferry_mixed_comm *comm, uint64_t number, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    break_from(comm, number, FERRY_ERR_ABORTED, format, arguments);
    va_end(arguments);
}

/* Passes a notice on to this rank's contacts, as it came. */
static void obey_notice(ferry_mixed_comm *comm, uint64_t from, ferry_status status,
                        const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    break_from(comm, from, status, format, arguments);
    va_end(arguments);
}

/* What ends call `number`: of one that cancelled a later call there is nothing to hear yet. */
static const fy_mix_notice *find_notice(const ferry_mixed_comm *comm, uint64_t number)
{
    const _Atomic uint64_t *notices = control_at(comm, FY_MIX_CONTROL_NOTICES);
    uint32_t n_contacts =
        atomic_load(notices) == 0 ? 0 : fy_mix_contact_count(&comm->program.topology);
    for (uint32_t contact = 0; contact < n_contacts; contact++) {
        const fy_mix_notice *notice = control_at(comm, notice_at(comm, contact));
        if (contact != comm->program.topology.local_rank &&
            atomic_load(&notice->status) != FERRY_OK && notice->from <= number) {
            return notice;
        }
    }
    return NULL;
}

bool fy_comm_has_notice(const ferry_mixed_comm *comm, uint64_t number)
{
    return find_notice(comm, number) != NULL;
}

static void look_at_notices(ferry_mixed_comm *comm, uint64_t number)
{
    if (atomic_load(&comm->broken) == FERRY_OK && comm->boards.control != NULL) {
        const fy_mix_notice *notice = find_notice(comm, number);
        if (notice != NULL) {
            obey_notice(comm, notice->from, (ferry_status)atomic_load(&notice->status), "%.*s",
                        (int)sizeof notice->sentence - 1, notice->sentence);
        }
    }
}

/* FERRY_OK, or why this handle or its world is broken, as far as this rank has heard. */
static ferry_status state_as_heard(ferry_mixed_comm *comm, ferry_error *error)
{
    ferry_status status = (ferry_status)atomic_load(&comm->broken);
    if (status != FERRY_OK) {
        return fy_forward(error, status, &comm->reason);
    }
    if (fy_failed(comm->world->failure)) {
        return fy_failure_get(comm->world->failure, NULL, error);
    }
    return FERRY_OK;
}

ferry_status fy_comm_state(ferry_mixed_comm *comm, ferry_error *error)
{
    FY_TRY(fy_world_check_process(comm->world, error));
    look_at_notices(comm, UINT64_MAX);
    return state_as_heard(comm, error);
}

ferry_status fy_comm_call_state(ferry_mixed_comm *comm, uint64_t number, ferry_error *error)
{
    FY_TRY(fy_world_check_process(comm->world, error));
    look_at_notices(comm, number);
    if (fy_comm_is_cancelled(comm) && comm->boards.control != NULL) {
        fy_comm_cancel(comm, number, "rank %u cancelled a call on a queue",
                       comm->program.topology.world_rank);
    }
    return state_as_heard(comm, error);
}

void fy_mix_board_write(ferry_mixed_comm *comm, uint64_t call, uint32_t op, uint32_t mode,
                        uint64_t count, bool waits)
{
    fy_mix_board *board = control_at(comm, FY_MIX_CONTROL_BOARD);
    atomic_store_explicit(&board->begun, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    board->ended = call;
    board->op = op;
    board->mode = mode;
    board->count = count;
    board->waits = waits;
    atomic_store_explicit(&board->begun, call, memory_order_release);
}

static void put_board(ferry_mixed_comm *comm, uint32_t rank, uint32_t number)
{
    const fy_mix_board *board = &comm->boards.sent[comm->boards.n_sent - 1];
    ferry_buffer source = ferry_buffer_of(&board->count, sizeof *board - sizeof board->begun);
    ferry_signal signal = {comm->boards.control, board_at(number), board->ended, FERRY_SIGNAL_SET};
    if (comm->program.mapped &&
        rank / comm->program.topology.local_size == comm->program.topology.inter_rank) {
        return; /* it looks for itself */
    }
    /* Whoever cannot be told learns it by the deadline. */
    (void)ferry_transport_put_signal(comm->wires.transport, rank, comm->boards.control,
                                     board_at(number) + sizeof board->begun, &source, &signal, NULL,
                                     NULL);
}

/* The source of a put must not change on its way, and the board may: so each time another line. */
static bool copy_to_send(ferry_mixed_comm *comm)
{
    if (comm->boards.n_sent == FY_MIX_N_SENT) {
        if (ferry_transport_flush(comm->wires.transport, FERRY_ANY_RANK, NULL, NULL) != FERRY_OK) {
            return false;
        }
        comm->boards.n_sent = 0;
    }
    comm->boards.sent[comm->boards.n_sent++] =
        *(const fy_mix_board *)control_at(comm, FY_MIX_CONTROL_BOARD);
    return true;
}

void fy_mix_board_tell(ferry_mixed_comm *comm)
{
    bool all_look = comm->program.mapped && comm->program.topology.inter_size == 1;
    if (!all_look && copy_to_send(comm)) {
        for_contacts(comm, put_board);
    }
}

/*
 * Reads a board that its owner, or the transport, may be changing: what comes of that is for the
 * caller to tell, who looks at the number before and after, and twice.
 */
__attribute__((noinline, no_sanitize("thread"))) static bool copy_board(const fy_mix_board *from,
                                                                        fy_mix_seen *seen_out)
{
    uint64_t begun = atomic_load_explicit(&from->begun, memory_order_acquire);
    *seen_out = (fy_mix_seen){.call = from->ended,
                              .count = from->count,
                              .waits = from->waits,
                              .op = from->op,
                              .mode = from->mode};
    atomic_thread_fence(memory_order_acquire);
    return begun != 0 && begun == seen_out->call &&
           atomic_load_explicit(&from->begun, memory_order_relaxed) == begun;
}

/* What a contact's board says; false where it is being changed. */
static bool read_board(const ferry_mixed_comm *comm, uint32_t rank, fy_mix_seen *seen_out)
{
    const fy_topology *t = &comm->program.topology;
    if (comm->program.mapped && rank / t->local_size == t->inter_rank) {
        const char *control = comm->boards.peer_controls[rank % t->local_size];
        return copy_board((const fy_mix_board *)(const void *)(control + FY_MIX_CONTROL_BOARD),
                          seen_out);
    }
    return copy_board(control_at(comm, board_at(fy_mix_contact_of(comm, t->world_rank, rank))),
                      seen_out);
}

static void break_by_board(ferry_mixed_comm *comm, uint32_t rank, const fy_mix_seen *board)
{
    const fy_mix_call *call = &comm->state.call;
    uint32_t self = comm->program.topology.world_rank;
    char theirs[96], ours[96], gap[FY_MIX_GAP_BYTES];
    fy_mix_call_text(board->op, board->mode, board->count, theirs, sizeof theirs);
    fy_mix_call_text(call->op, call->mode, call->count, ours, sizeof ours);
    fy_comm_break(
        comm, FERRY_ERR_MISUSE,
        "mixed collective: call %llu of rank %u is %s, but rank %u is in call %llu, %s%s; "
        "all ranks make the same calls in the same order",
        (unsigned long long)board->call, rank, theirs, self, (unsigned long long)call->number, ours,
        fy_mix_gap_text(rank, board->call, self, call->number, gap));
}

static bool is_same(const fy_mix_seen *a, const fy_mix_seen *b)
{
    return a->call == b->call && a->count == b->count && a->op == b->op && a->mode == b->mode;
}

fy_progress fy_comm_advance(ferry_mixed_comm *comm, fy_mix_lane *lane)
{
    fy_progress progress = fy_mix_lane_advance(lane);
    if (progress == FY_PROGRESS_FAILED) {
        fy_comm_break(comm, lane->status, "%s", lane->error.message);
    }
    return progress;
}

fy_mix_suspicion fy_mix_lane_suspect(ferry_mixed_comm *comm, fy_mix_lane *lane)
{
    const fy_mix_call *call = &comm->state.call;
    const fy_mix_link *link = fy_mix_lane_link(lane);
    fy_mix_seen before = lane->seen, *board = &lane->seen;
    if (!read_board(comm, link->rank, board) || board->call < call->number) {
        return FY_MIX_NOT_THERE;
    }
    if (board->call == call->number && board->op == call->op && board->mode == call->mode &&
        board->count == call->count) {
        return board->waits != 0 ? FY_MIX_WAITS_TOO : FY_MIX_ENTERED;
    }
    if (!is_same(&before, board) || link->rank != lane->seen_rank) {
        lane->seen_rank = link->rank;
        lane->seen_ns = fy_now_ns();
        return FY_MIX_ENTERED; /* it may have been half written: believed when it says so again */
    }
    /* A kernel may have the message and not have been on its device since. */
    if (lane->verbs->whole != NULL && fy_now_ns() - lane->seen_ns < KERNEL_DOUBT_NS) {
        return FY_MIX_ENTERED;
    }
    /* What it wrote for this call came before its board changed: so look again. */
    uint64_t moved = lane->moved;
    if (board->call > call->number) {
        fy_progress progress = fy_comm_advance(comm, lane);
        if (progress != FY_PROGRESS_BLOCKED || lane->moved != moved) {
            return FY_MIX_ENTERED;
        }
    }
    break_by_board(comm, link->rank, board);
    return FY_MIX_DIVERGED;
}
