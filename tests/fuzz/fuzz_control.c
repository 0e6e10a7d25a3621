/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Control messages of a proven peer, in the hands of one rank of a world of six. The first byte
 * says whether the table of ranks is there already, and whether a collective is open; then come
 * messages, each with its type, whom it comes from and its length. What would go to sockets goes
 * nowhere. Two kinds of letters are read as well: failures, and where a rank is.
 */
#include "fuzz.h"

#include "base/alloc.h"
#include "world/process.h"

#include <stdarg.h>

enum { N_CLAIMS = 6, OWN = 1, N_CONNS = 3, TABLE_BYTES = 1024 };

/* What the handlers call; the program is linked with --wrap for these. */
static bool is_failed;
static bool is_dropped;

void __wrap_fy_control_post(fy_process *process, fy_conn *conn, uint32_t type, const void *head,
                            size_t head_bytes, const void *payload, size_t n_bytes);
void __wrap_fy_control_drop(fy_process *process, fy_conn *conn);
void __wrap_fy_control_serve(fy_process *process);
void __wrap_fy_process_wake(fy_process *process);
void __wrap_fy_process_mark_lost(fy_process *process, uint32_t rank);
void __wrap_fy_bell_ring(void *bell);
void __wrap_fy_process_fail(fy_process *process, ferry_status status, uint32_t rank,
                            const char *format, ...) __attribute__((format(printf, 4, 5)));

static volatile unsigned sum;

static void look_at(const void *bytes, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        sum += ((const unsigned char *)bytes)[i];
    }
}

void __wrap_fy_control_post(fy_process *process, fy_conn *conn, uint32_t type, const void *head,
                            size_t head_bytes, const void *payload, size_t n_bytes)
{
    (void)process, (void)conn, (void)type;
    look_at(head, head_bytes);
    look_at(payload, n_bytes);
}

void __wrap_fy_control_drop(fy_process *process, fy_conn *conn)
{
    (void)process, (void)conn;
    is_dropped = true;
}

void __wrap_fy_control_serve(fy_process *process)
{
    (void)process;
}

void __wrap_fy_process_wake(fy_process *process)
{
    (void)process;
}

void __wrap_fy_process_mark_lost(fy_process *process, uint32_t rank)
{
    (void)process, (void)rank;
}

void __wrap_fy_bell_ring(void *bell)
{
    (void)bell;
}

void __wrap_fy_process_fail(fy_process *process, ferry_status status, uint32_t rank,
                            const char *format, ...)
{
    char text[2048];
    va_list arguments;
    (void)process, (void)rank;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    promise(status != FERRY_OK && text[0] != '\0');
    is_failed = true;
}

/* Rank 1 heads the second node: rank 0 is above it, ranks 4 and 5 are below. */
static size_t write_table(unsigned char *bytes)
{
    static const uint32_t places[N_CLAIMS][2] = {{0, 0}, {1, 0}, {0, 1}, {0, 2}, {1, 1}, {1, 2}};
    fy_pack packer = fy_pack_into(bytes, TABLE_BYTES);
    fy_pack_u32(&packer, N_CLAIMS);
    for (uint32_t claim = 0; claim < N_CLAIMS; claim++) {
        fy_pack_u32(&packer, claim);
        fy_pack_u32(&packer, places[claim][0]);
        fy_pack_u32(&packer, places[claim][1]);
        fy_pack_text(&packer, "10.0.0.3:41000");
    }
    return packer.used;
}

typedef struct scene {
    ferry_world world;
    fy_activity here;
    fy_process process;
    fy_conn conns[N_CONNS];
} scene;

static void set_up(scene *s)
{
    static const uint32_t ranks[N_CONNS] = {0, 4, 5};
    fy_process *process = &s->process;
    memset(s, 0, sizeof *s);
    fy_activity_init(&s->here);
    s->world.impl = process;
    s->world.rank = OWN;
    s->world.here = &s->here;
    process->world = &s->world;
    process->claim = process->rank = OWN;
    process->n_claims = N_CLAIMS;
    process->nodes_text = s->process.door.addresses; /* "" */
    for (int i = 0; i < N_CONNS; i++) {
        s->conns[i] = (fy_conn){.next = i + 1 < N_CONNS ? &s->conns[i + 1] : NULL,
                                .kind = FY_CONN_LINK,
                                .role = i == 0 ? FY_ROLE_PARENT : FY_ROLE_CHILD,
                                .fd = -1,
                                .claim = ranks[i],
                                .rank = ranks[i]};
    }
    process->control.conns = &s->conns[0];
    process->tree.parent = &s->conns[0];
}

static void read_whole_table(scene *s)
{
    unsigned char bytes[8 + TABLE_BYTES];
    size_t n_bytes = write_table(bytes + 8);
    fy_pack packer = fy_pack_into(bytes, sizeof bytes);
    fy_pack_u64(&packer, n_bytes);
    fy_reader reader = fy_reader_of(bytes, 8 + n_bytes);
    promise(fy_join_table(&s->process, &s->conns[0], &reader));
    promise(atomic_load(&s->process.tree.tabled) && s->process.tree.n_children == 2);
}

static void open_gathering(scene *s, bool sent)
{
    fy_gathering *own = &s->process.gathering;
    own->number = 1;
    own->step.kind = FY_ALL_GATHER;
    own->open = true;
    own->sent = sent;
    own->lengths = fy_alloc_zeroed(N_CLAIMS, sizeof *own->lengths);
    promise(own->lengths != NULL);
}

static void check_table(const fy_process *process)
{
    promise(process->n_ranks > 0 && process->n_ranks <= N_CLAIMS);
    promise(process->rank < process->n_ranks);
    uint32_t seen = 0; /* each rank has a place of its own */
    for (uint32_t r = 0; r < process->n_ranks; r++) {
        promise(process->tree.rank_at[r] < process->n_ranks);
        promise((seen >> process->tree.rank_at[r] & 1) == 0);
        seen |= 1u << process->tree.rank_at[r];
        look_at(process->tree.table[r].addresses, process->tree.table[r].n_address);
        char text[FY_ADDRESSES_BYTES];
        fy_doubt_address(process, r, text);
        promise(fy_process_rank_of(process, process->tree.table[r].claim) == r);
    }
}

static void tear_down(scene *s)
{
    fy_process *process = &s->process;
    for (const fy_letter *letter = process->mail.all.first; letter != NULL;
         letter = letter->links[FY_BY_ARRIVAL].next) {
        look_at(letter->bytes, letter->n_bytes);
    }
    fy_mail_cleanup(&process->mail);
    for (int i = 0; i < N_CONNS; i++) {
        fy_free(s->conns[i].part.bytes);
    }
    fy_free(process->gathering.own);
    fy_free(process->gathering.result);
    fy_free(process->gathering.lengths);
    fy_free(process->tree.table_bytes);
    fy_free(process->tree.table);
    fy_free(process->tree.rank_at);
    fy_free(process->tree.node_first);
    fy_free((void *)(uintptr_t)process->lost);
    fy_free(process->shrinking.silent_ns);
    fy_activity_cleanup(&s->here);
}

static void read_failure(fy_reader *reader)
{
    fy_failure failure = {0};
    ferry_error error;
    uint32_t rank;
    if (fy_news_read(reader, &failure)) {
        promise(fy_failure_get(&failure, &rank, &error) != FERRY_OK);
        promise(strlen(error.message) < sizeof error.message);
    }
}

static void read_answer(const fy_reader *reader)
{
    fy_answer answer;
    char text[FY_JOINT_TEXT_BYTES];
    if (fy_answer_read(reader->at, fy_read_left(reader), &answer)) {
        promise(answer.age_ns >= 0 && answer.since_ns >= 0);
        fy_joint_format(&answer.joint, text);
        promise(strlen(text) < sizeof text);
    }
}

static bool handle(scene *s, uint32_t type, fy_conn *from, fy_reader *reader)
{
    fy_process *process = &s->process;
    switch (type % 11) {
    case 0:
        return fy_join_table(process, &s->conns[0], reader);
    case 1:
        return fy_collect_up(process, from == process->tree.parent ? &s->conns[1] : from, reader);
    case 2:
        return fy_collect_down(process, process->tree.parent, reader);
    case 3:
        return fy_letter_arrive(process, from, reader);
    case 4:
        return fy_leave_arrive(process, &s->conns[1], reader);
    case 5:
        return fy_collect_missing(process, from, reader);
    case 6:
        return fy_doubt_answer(process, from, reader);
    case 7:
        return fy_letter_asked(process, from, reader);
    case 8:
        read_failure(reader);
        return true;
    case 9:
        read_answer(reader);
        return true;
    default:
        return atomic_load(&process->tree.tabled) && process->gathering.number > 1 &&
               fy_collect_query(process, from, reader);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static scene s;
    if (size == 0) {
        return 0;
    }
    is_failed = is_dropped = false;
    set_up(&s);
    if ((data[0] & 1) != 0) {
        read_whole_table(&s);
        if ((data[0] & 2) != 0) {
            open_gathering(&s, (data[0] & 4) != 0);
        }
    }
    bool alive = true;
    for (size_t at = 1; at + 3 <= size && alive && !is_failed && !is_dropped;) {
        size_t length = data[at + 2];
        size_t left = size - at - 3;
        fy_reader reader = fy_reader_of(data + at + 3, length < left ? length : left);
        alive = handle(&s, data[at], &s.conns[data[at + 1] % N_CONNS], &reader);
        at += 3 + length;
    }
    if (atomic_load(&s.process.tree.tabled)) {
        check_table(&s.process);
    }
    tear_down(&s);
    return 0;
}
