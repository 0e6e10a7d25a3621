/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole call by one kernel: each block is a lane of exec/lanes.h. Control flow is the same for
 * all threads of a block; they share the bytes of a sum, the links of a wait and nothing else.
 * Between what one thread has written and another one reads there is a barrier. Part of kernels.h.
 */

/* Of a block. */
FY_SHARED uint64_t lanes_operands[FY_LANES_MOST_OPERANDS];
FY_SHARED uint32_t lanes_why;    /* FY_LANES_GOES, or why this lane has stopped */
FY_SHARED uint32_t lanes_missed; /* and at which link; of the thread that came first */
FY_SHARED uint64_t lanes_call;   /* the number of the call */

/* Where a lane is in its range. */
typedef struct lanes_turn {
    uint64_t step;
    uint64_t begin;   /* of the block, in a chunk */
    uint32_t n, lane; /* elements of the block */
    uint32_t line;    /* elements of one */
    uint64_t its_state, its_report;
    uint64_t call; /* its number */
} lanes_turn;

typedef struct lanes_span {
    uint32_t begin, n;
} lanes_span;

FY_DEVICE uint64_t joined(uint32_t low, uint32_t high)
{
    return (uint64_t)high << 32 | low;
}

FY_DEVICE uint64_t load_word(uint64_t at)
{
    fy_v8 v = fy_load8(at);
    return joined(v.x, v.y);
}

FY_DEVICE void store_word(uint64_t at, uint64_t value)
{
    fy_v8 v;
    v.x = (uint32_t)value;
    v.y = (uint32_t)(value >> 32);
    fy_store8(at, v);
}

/*
 * Tables
 */

FY_DEVICE fy_lanes_step load_lanes_step(uint64_t steps, uint32_t i)
{
    fy_v16 v = fy_load16_again(steps + (uint64_t)i * sizeof(fy_lanes_step));
    fy_lanes_step s;
    s.kind = v.x;
    s.first = v.y;
    s.n = v.z;
    s.spare = v.w;
    return s;
}

FY_DEVICE fy_lanes_edge load_lanes_edge(uint64_t edges, uint32_t i)
{
    uint64_t at = edges + (uint64_t)i * sizeof(fy_lanes_edge);
    fy_v16 a = fy_load16_again(at), b = fy_load16_again(at + 16);
    fy_lanes_edge e;
    e.uses = a.x;
    e.n = a.y;
    e.n_sub = a.z;
    e.origin = a.w;
    e.element_bytes = b.x;
    e.n_cells = b.y;
    return e;
}

FY_DEVICE fy_lanes_place load_lanes_place(uint64_t places, uint32_t i)
{
    uint64_t at = places + (uint64_t)i * sizeof(fy_lanes_place);
    fy_v16 a = fy_load16_again(at), b = fy_load16_again(at + 16), c = fy_load16_again(at + 32);
    fy_lanes_place p;
    p.base = joined(a.x, a.y);
    p.lane_bytes = joined(a.z, a.w);
    p.slot_bytes = joined(b.x, b.y);
    p.where = b.z;
    p.edge = b.w;
    p.origin = c.x;
    p.use = c.y;
    p.cell = c.z;
    p.passes = c.w;
    return p;
}

FY_DEVICE fy_lanes_sum load_lanes_sum(uint64_t sums, uint32_t i)
{
    uint64_t at = sums + (uint64_t)i * sizeof(fy_lanes_sum);
    fy_v16 a = fy_load16_again(at), b = fy_load16_again(at + 16), c = fy_load16_again(at + 32);
    fy_lanes_sum s;
    s.n = a.x;
    s.index = a.y;
    s.n_sub = a.z;
    s.sub = a.w;
    s.first_source = b.x;
    s.n_sources = b.y;
    s.first_target = b.z;
    s.n_targets = b.w;
    s.source_type = c.x;
    s.target_type = c.y;
    s.to_fleet = c.z;
    s.from_fleet = c.w;
    return s;
}

FY_DEVICE fy_lanes_link load_lanes_link(uint64_t links, uint32_t i)
{
    uint64_t at = links + (uint64_t)i * sizeof(fy_lanes_link);
    fy_v16 a = fy_load16_again(at), b = fy_load16_again(at + 16);
    fy_v16 c = fy_load16_again(at + 32), d = fy_load16_again(at + 48);
    fy_lanes_link l;
    l.header = joined(a.x, a.y);
    l.lane_bytes = joined(a.z, a.w);
    l.slot_bytes = joined(b.x, b.y);
    l.from = joined(b.z, b.w);
    l.from_slot_bytes = joined(c.x, c.y);
    l.edge = c.z;
    l.use = c.w;
    l.rank = d.x;
    l.is_near = d.y;
    return l;
}

/*
 * Geometry: as collective/geometry.h cuts
 */

FY_DEVICE uint32_t lanes_each(uint32_t n_elements, uint32_t n, uint32_t line)
{
    uint32_t lines = (n_elements + line - 1) / line;
    return (lines + n - 1) / n * line;
}

FY_DEVICE lanes_span lanes_part(uint32_t n_elements, uint32_t n, uint32_t index, uint32_t line)
{
    uint32_t each = lanes_each(n_elements, n, line), begin = index * each;
    lanes_span span;
    span.begin = begin < n_elements ? begin : n_elements;
    span.n = n_elements - span.begin < each ? n_elements - span.begin : each;
    return span;
}

/* How many times an edge was used before a use of this step. */
FY_DEVICE uint64_t lanes_use(const lanes_turn *t, uint32_t edge, uint32_t uses, uint32_t use)
{
    return load_word(t->its_state + (uint64_t)edge * 8) + t->step * uses + use;
}

/* Where an operand's elements begin; the piece begins at `begin` of the block, its part at `part`.
 */
FY_DEVICE uint64_t lanes_address(const fy_lanes_call *a, const lanes_turn *t,
                                 const fy_lanes_place *p, uint32_t begin, uint32_t part)
{
    if (p->where != FY_LANES_BOX) {
        uint64_t element = p->cell * a->n_elements + t->begin + begin;
        return (p->where == FY_LANES_IN ? a->in : a->out) + element * a->element_bytes;
    }
    fy_lanes_edge e = load_lanes_edge(a->tables.edges, p->edge);
    uint64_t number = lanes_use(t, p->edge, e.uses, p->use);
    uint32_t origin = p->origin == FY_LANES_FROM_BLOCK  ? 0
                      : p->origin == FY_LANES_FROM_PART ? part
                                                        : begin;
    return p->base + t->lane * p->lane_bytes + number % a->tables.n_slots * p->slot_bytes +
           p->cell * a->cell_bytes[p->edge] + (uint64_t)(begin - origin) * e.element_bytes;
}

/*
 * Sums
 */

/*
 * Memory of a fleet
 */

FY_DEVICE void lanes_settle(const fy_lanes_call *a)
{
#if FY_HAS_FLEETS
    if (a->has_fleet != 0) {
        fy_settle();
    }
#else
    (void)a;
#endif
}

/* To target k of a sum, 16 bytes or four, at `offset`. */
FY_DEVICE void lanes_store16(const fy_lanes_sum *s, uint32_t k, uint64_t offset, fy_v16 v)
{
    uint64_t to = lanes_operands[s->n_sources + k] + offset;
#if FY_HAS_FLEETS
    if ((s->to_fleet >> k & 1) != 0) {
        fy_store16_all(to, v);
        return;
    }
#endif
    fy_store16(to, v);
}

#if FY_HAS_FLEETS

FY_DEVICE bool lanes_uses_fleet(const fy_lanes_sum *s)
{
    return (s->to_fleet | s->from_fleet) != 0;
}

/* Sums of all devices, as numbers of the type. */
FY_DEVICE fy_v16 lanes_sum16(uint64_t at, uint32_t type)
{
    return type == FY_LANES_F32   ? fy_sum16_f32(at)
           : type == FY_LANES_F16 ? fy_sum16_f16(at)
                                  : fy_sum16_bf16(at);
}

FY_DEVICE uint32_t lanes_sum4(uint64_t at, uint32_t type)
{
    return type == FY_LANES_F32   ? fy_sum4_f32(at)
           : type == FY_LANES_F16 ? fy_sum4_f16(at)
                                  : fy_sum4_bf16(at);
}

/* Eight of them. */
FY_DEVICE void lanes_sum_8(uint64_t at, uint32_t type, float out[8])
{
    uint32_t w[4];
    words_of(lanes_sum16(at, type), w);
    if (type != FY_LANES_F32) {
        FY_UNROLL
        for (int i = 0; i < 4; i++) {
            out[2 * i] = widen_one(type, w[i] & 0xffff);
            out[2 * i + 1] = widen_one(type, w[i] >> 16);
        }
        return;
    }
    FY_UNROLL
    for (int i = 0; i < 4; i++) {
        out[i] = float_of(w[i]);
    }
    words_of(lanes_sum16(at + 16, type), w);
    FY_UNROLL
    for (int i = 0; i < 4; i++) {
        out[4 + i] = float_of(w[i]);
    }
}

/* Eight numbers to all devices. */
FY_DEVICE void lanes_store_8_all(uint64_t at, uint32_t type, const float in[8])
{
    uint32_t w[4];
    bool is_f32 = type == FY_LANES_F32;
    FY_UNROLL
    for (int i = 0; i < 4; i++) {
        w[i] = is_f32 ? bits_of(in[i])
                      : narrow_one(type, in[2 * i]) | narrow_one(type, in[2 * i + 1]) << 16;
    }
    fy_store16_all(at, v16_of(w));
    if (is_f32) {
        FY_UNROLL
        for (int i = 0; i < 4; i++) {
            w[i] = bits_of(in[4 + i]);
        }
        fy_store16_all(at + 16, v16_of(w));
    }
}

/*
 * Number `i` of a sum, or of a copy, as bits of the target's; `added` are those of a sum that was
 * loaded as one.
 */
FY_DEVICE uint32_t lanes_number_bits(const fy_lanes_sum *s, uint32_t i, uint32_t added,
                                     bool is_copy)
{
    uint32_t type = s->source_type;
    uint64_t at = (uint64_t)i * bytes_of(type);
    if (is_copy) {
        return type == FY_LANES_F32 ? fy_load4(lanes_operands[0] + at)
                                    : fy_load2(lanes_operands[0] + at);
    }
    float sum = s->from_fleet != 0 ? widen_one(type, added) : load_1(lanes_operands[0] + at, type);
    for (uint32_t r = 1; r < s->n_sources; r++) {
        sum = fy_plus(sum, load_1(lanes_operands[r] + at, type));
    }
    return narrow_one(s->target_type, with_one_nan(sum));
}

/*
 * Numbers [first, n), of which there is an even number before, in words of four bytes: fleets have
 * nothing narrower. Behind the last number there is room in every box.
 */
FY_DEVICE void lanes_by_words(const fy_lanes_sum *s, uint32_t first, uint32_t n, bool is_copy)
{
    uint32_t each = 4 / bytes_of(s->target_type); /* of what is added up the source's, too */
    for (uint32_t i = first + FY_THREAD * each; i < n; i += FY_THREADS * each) {
        uint64_t at = (uint64_t)i * bytes_of(s->target_type);
        bool is_pair = each == 2 && i + 1 < n;
        uint32_t added =
            s->from_fleet != 0 ? lanes_sum4(lanes_operands[0] + at, s->source_type) : 0;
        uint32_t low = each == 2 ? added & 0xffff : added;
        uint32_t word = lanes_number_bits(s, i, low, is_copy);
        if (is_pair) {
            word |= lanes_number_bits(s, i + 1, added >> 16, is_copy) << 16;
        }
        for (uint32_t k = 0; k < s->n_targets; k++) {
            uint64_t to = lanes_operands[s->n_sources + k] + at;
            if ((s->to_fleet >> k & 1) != 0) {
                fy_store4_all(to, word);
            } else if (each == 1) {
                fy_store4(to, word);
            } else {
                fy_store2(to, word & 0xffff);
                if (is_pair) {
                    fy_store2(to + 2, word >> 16);
                }
            }
        }
    }
}

#endif

/*
 * Bytes and numbers
 */

/* One source without a change of type: its bits pass as they are. */
FY_DEVICE void lanes_copy(const fy_lanes_sum *s, uint32_t n, bool is_wide)
{
    uint64_t from = lanes_operands[0], step = bytes_of(s->source_type);
    uint32_t n_wide = is_wide ? (uint32_t)(n * step / 16) : 0;
    uint32_t n_done = (uint32_t)(n_wide * 16 / step);
    for (uint32_t i = FY_THREAD; i < n_wide; i += FY_THREADS) {
        fy_v16 v = fy_load16(from + (uint64_t)i * 16);
        for (uint32_t k = 0; k < s->n_targets; k++) {
            lanes_store16(s, k, (uint64_t)i * 16, v);
        }
    }
#if FY_HAS_FLEETS
    if (lanes_uses_fleet(s)) {
        lanes_by_words(s, n_done, n, true);
        return;
    }
#endif
    for (uint32_t i = n_done + FY_THREAD; i < n; i += FY_THREADS) {
        uint32_t bits = step == 4 ? fy_load4(from + i * step) : fy_load2(from + i * step);
        for (uint32_t k = 0; k < s->n_targets; k++) {
            uint64_t to = lanes_operands[1 + k] + i * step;
            if (step == 4) {
                fy_store4(to, bits);
            } else {
                fy_store2(to, bits);
            }
        }
    }
}

FY_DEVICE void lanes_add_8(const fy_lanes_sum *s, uint64_t i)
{
    uint64_t from = i * 8 * bytes_of(s->source_type), to = i * 8 * bytes_of(s->target_type);
    float sum[8], v[8];
#if FY_HAS_FLEETS
    if (s->from_fleet != 0) {
        lanes_sum_8(lanes_operands[0] + from, s->source_type, sum);
    } else {
        load_8(lanes_operands[0] + from, s->source_type, false, sum);
    }
#else
    load_8(lanes_operands[0] + from, s->source_type, false, sum);
#endif
    for (uint32_t r = 1; r < s->n_sources; r++) {
        load_8(lanes_operands[r] + from, s->source_type, false, v);
        FY_UNROLL
        for (int k = 0; k < 8; k++) {
            sum[k] = fy_plus(sum[k], v[k]);
        }
    }
    FY_UNROLL
    for (int k = 0; k < 8; k++) {
        sum[k] = with_one_nan(sum[k]);
    }
    for (uint32_t k = 0; k < s->n_targets; k++) {
#if FY_HAS_FLEETS
        if ((s->to_fleet >> k & 1) != 0) {
            lanes_store_8_all(lanes_operands[s->n_sources + k] + to, s->target_type, sum);
            continue;
        }
#endif
        store_8(lanes_operands[s->n_sources + k] + to, s->target_type, false, sum);
    }
}

FY_DEVICE void lanes_add_1(const fy_lanes_sum *s, uint64_t i)
{
    uint64_t from = i * bytes_of(s->source_type), to = i * bytes_of(s->target_type);
    float sum = load_1(lanes_operands[0] + from, s->source_type);
    for (uint32_t r = 1; r < s->n_sources; r++) {
        sum = fy_plus(sum, load_1(lanes_operands[r] + from, s->source_type));
    }
    sum = with_one_nan(sum);
    for (uint32_t k = 0; k < s->n_targets; k++) {
        store_1(lanes_operands[s->n_sources + k] + to, s->target_type, sum);
    }
}

FY_DEVICE void lanes_add(const fy_lanes_sum *s, uint32_t n, bool is_wide)
{
    uint32_t n_wide = is_wide ? n / 8 : 0;
    for (uint32_t i = FY_THREAD; i < n_wide; i += FY_THREADS) {
        lanes_add_8(s, i);
    }
#if FY_HAS_FLEETS
    if (lanes_uses_fleet(s)) {
        lanes_by_words(s, n_wide * 8, n, false);
        return;
    }
#endif
    for (uint32_t i = n_wide * 8 + FY_THREAD; i < n; i += FY_THREADS) {
        lanes_add_1(s, i);
    }
}

/* Something more of what is counted, by one thread. */
FY_DEVICE void lanes_count(const lanes_turn *t, uint32_t place, uint64_t more)
{
    uint64_t at = t->its_state + place;
    store_word(at, load_word(at) + more);
}
#define LANES_COUNT(t, field, more)                                                                \
    lanes_count(t, (uint32_t) __builtin_offsetof(fy_lanes_state, field), more)

/* Where all operands are; what passes between ranks is counted. */
FY_DEVICE void lanes_find(const fy_lanes_call *a, const lanes_turn *t, const fy_lanes_sum *s,
                          lanes_span piece, uint32_t part)
{
    uint64_t read = 0, written = 0;
    for (uint32_t i = FY_THREAD; i < s->n_sources + s->n_targets; i += FY_THREADS) {
        bool is_source = i < s->n_sources;
        uint32_t number = is_source ? s->first_source + i : s->first_target + i - s->n_sources;
        fy_lanes_place p = load_lanes_place(a->tables.places, number);
        lanes_operands[i] = lanes_address(a, t, &p, piece.begin, part);
    }
    if (FY_THREAD != 0) {
        return;
    }
    for (uint32_t i = 0; i < s->n_sources + s->n_targets; i++) {
        bool is_source = i < s->n_sources;
        uint32_t number = is_source ? s->first_source + i : s->first_target + i - s->n_sources;
        fy_lanes_place p = load_lanes_place(a->tables.places, number);
        read += is_source && p.passes ? (uint64_t)piece.n * bytes_of(s->source_type) : 0;
        written += !is_source && p.passes ? (uint64_t)piece.n * bytes_of(s->target_type) : 0;
    }
    LANES_COUNT(t, inside_read, read);
    LANES_COUNT(t, inside_written, written);
    LANES_COUNT(t, elements, piece.n);
}

FY_DEVICE void lanes_sum(const fy_lanes_call *a, const lanes_turn *t, uint32_t number)
{
    fy_lanes_sum s = load_lanes_sum(a->tables.sums, number);
    lanes_span part = lanes_part(t->n, s.n, s.index, t->line), piece = part;
    if (s.n_sub > 1) {
        piece = lanes_part(part.n, s.n_sub, s.sub, t->line);
        piece.begin += part.begin;
    }
    if (piece.n == 0) {
        return;
    }
    fy_barrier(); /* nobody uses the operands of the sum before, or still writes what is read now */
    lanes_find(a, t, &s, piece, part.begin);
    fy_barrier();
    bool is_copy = s.n_sources == 1 && s.source_type == s.target_type && s.from_fleet == 0;
    if (is_copy && s.n_targets == 1 && lanes_operands[0] == lanes_operands[1]) {
        return;
    }
    if (is_copy) {
        lanes_copy(&s, piece.n, a->is_wide != 0);
    } else {
        lanes_add(&s, piece.n, a->is_wide != 0);
    }
}

/*
 * Links
 */

FY_DEVICE uint64_t lanes_header_at(const fy_lanes_call *a, const lanes_turn *t,
                                   const fy_lanes_link *l, uint64_t number)
{
    return l->header + t->lane * l->lane_bytes + number % a->tables.n_slots * l->slot_bytes;
}

FY_DEVICE uint64_t lanes_number(const fy_lanes_call *a, const lanes_turn *t, const fy_lanes_link *l)
{
    fy_lanes_edge e = load_lanes_edge(a->tables.edges, l->edge);
    return lanes_use(t, l->edge, e.uses, l->use);
}

#define LANES_FIELD(at, field) ((at) + __builtin_offsetof(fy_lanes_header, field))

FY_DEVICE void lanes_announce(const fy_lanes_call *a, const lanes_turn *t, uint64_t at,
                              uint64_t number)
{
    store_word(LANES_FIELD(at, call), t->call);
    store_word(LANES_FIELD(at, count), a->n_elements);
    store_word(LANES_FIELD(at, op), joined(a->title.op, a->title.mode));
    store_word(LANES_FIELD(at, dtype), joined(a->title.dtype, a->title.rank));
    store_word(LANES_FIELD(at, geometry), a->title.geometry);
    fy_release(at, number + 1);
}

FY_DEVICE bool lanes_agrees(const fy_lanes_call *a, const lanes_turn *t, uint64_t at)
{
    return load_word(LANES_FIELD(at, call)) == t->call &&
           load_word(LANES_FIELD(at, count)) == a->n_elements &&
           load_word(LANES_FIELD(at, op)) == joined(a->title.op, a->title.mode) &&
           fy_load4(LANES_FIELD(at, dtype)) == a->title.dtype &&
           load_word(LANES_FIELD(at, geometry)) == a->title.geometry;
}

/* One look in so many goes to the host's memory, and to the clock. */
enum { LANES_LOOKS = 32 };

/* Until a message is there: FY_LANES_GOES, or why not. `told`: what the host sees meanwhile. */
FY_DEVICE uint32_t lanes_await(const fy_lanes_call *a, const lanes_turn *t, uint64_t at,
                               uint64_t number, uint64_t told)
{
    uint64_t begun = 0, report = t->its_report;
    bool has_told = false;
    uint32_t why = FY_LANES_GOES;
    for (uint32_t n_looks = 1; fy_acquire(at) < number + 1 && why == FY_LANES_GOES; n_looks++) {
        if (n_looks % LANES_LOOKS != 0) {
            continue;
        }
        if (lanes_why != FY_LANES_GOES) { /* of another thread's message */
            return FY_LANES_STOPPED;
        }
        uint64_t now = fy_clock_ns();
        begun = begun == 0 ? now : begun;
        /* Threads of a block that wait for other messages say so in the same place. */
        if (now - begun > a->watch.patience_ns && fy_acquire(report) == 0) {
            fy_release(report, told);
            fy_release(a->watch.board + __builtin_offsetof(fy_lanes_board, has_waits), 1);
            has_told = true;
        }
        if (fy_acquire(a->watch.board) != 0 || fy_acquire(a->watch.halt) != 0) {
            why = FY_LANES_STOPPED;
        } else if (a->watch.deadline_ns != 0 && now - begun > a->watch.deadline_ns) {
            why = FY_LANES_LATE;
        }
        fy_pause();
    }
    if (has_told && why == FY_LANES_GOES) {
        fy_release(report, 0);
    }
    return why;
}

FY_DEVICE void lanes_look(const fy_lanes_call *a, const lanes_turn *t, uint32_t number)
{
    fy_lanes_link l = load_lanes_link(a->tables.links, number);
    uint64_t use = lanes_number(a, t, &l), at = lanes_header_at(a, t, &l, use);
    uint64_t n_waits = load_word(t->its_state + __builtin_offsetof(fy_lanes_state, n_waits));
    uint32_t why = lanes_await(a, t, at, use, joined(number + 1, (uint32_t)n_waits));
    if (why == FY_LANES_GOES && !lanes_agrees(a, t, at)) {
        why = FY_LANES_DIFFERS;
    } else if (why == FY_LANES_GOES && fy_acquire(at) != use + 1) {
        why = FY_LANES_OVERRUN;
    }
    if (why != FY_LANES_GOES && fy_claim(&lanes_why, why)) {
        lanes_missed = number;
    }
}

/* As it was found. Where no message has come its header is nobody's: it may be on its way. */
FY_DEVICE void lanes_report_header(uint64_t report, uint64_t at)
{
    uint64_t copy = report + __builtin_offsetof(fy_lanes_report, header);
    store_word(copy, fy_acquire(at));
    for (uint32_t i = 8; i < sizeof(fy_lanes_header); i += 8) {
        store_word(copy + i, load_word(at + i));
    }
}

#define LANES_REPORT(t, field) ((t)->its_report + __builtin_offsetof(fy_lanes_report, field))

/* Whether nothing is said of an earlier stop: what comes behind it knows less. */
FY_DEVICE bool lanes_may_say(const lanes_turn *t)
{
    return fy_acquire(LANES_REPORT(t, why)) == 0;
}

/* The last word of what a lane says: it has stopped, and so do the others. */
FY_DEVICE void lanes_halt(const fy_lanes_call *a, const lanes_turn *t)
{
    if (lanes_may_say(t)) {
        store_word(LANES_REPORT(t, call), t->call);
        fy_release(LANES_REPORT(t, why), joined(lanes_why, a->title.which));
    }
    fy_release(a->watch.halt, 1);
}

/* What the host says of it: by one thread, whichever link it was. */
FY_DEVICE void lanes_report(const fy_lanes_call *a, const lanes_turn *t)
{
    fy_lanes_link l = load_lanes_link(a->tables.links, lanes_missed);
    uint64_t use = lanes_number(a, t, &l);
    if (lanes_may_say(t)) {
        if (lanes_why == FY_LANES_DIFFERS || lanes_why == FY_LANES_OVERRUN) {
            lanes_report_header(t->its_report, lanes_header_at(a, t, &l, use));
        }
        store_word(LANES_REPORT(t, link), lanes_missed);
        store_word(LANES_REPORT(t, use), use);
    }
    lanes_halt(a, t);
}

FY_DEVICE void lanes_wait(const fy_lanes_call *a, const lanes_turn *t, const fy_lanes_step *step)
{
    fy_barrier(); /* all have looked at lanes_why */
    for (uint32_t i = FY_THREAD; i < step->n; i += FY_THREADS) {
        lanes_look(a, t, step->first + i);
    }
    fy_barrier();
    if (FY_THREAD == 0) {
        LANES_COUNT(t, n_waits, 1);
        if (lanes_why != FY_LANES_GOES) {
            lanes_report(a, t);
        }
    }
    lanes_settle(a); /* what others have stored there is read where it lies here */
}

FY_DEVICE void lanes_signal(const fy_lanes_call *a, const lanes_turn *t, const fy_lanes_step *step)
{
    lanes_settle(a);
    fy_barrier(); /* all bytes of the messages are written, and all that were to be read are read */
    for (uint32_t i = FY_THREAD; i < step->n; i += FY_THREADS) {
        fy_lanes_link l = load_lanes_link(a->tables.links, step->first + i);
        uint64_t number = lanes_number(a, t, &l);
        lanes_announce(a, t, lanes_header_at(a, t, &l, number), number);
    }
}

/* A message of an own box to a box of another rank, which lies elsewhere. */
FY_DEVICE void lanes_put(const fy_lanes_call *a, const lanes_turn *t, const fy_lanes_step *step)
{
    fy_barrier();
    for (uint32_t i = 0; i < step->n; i++) {
        fy_lanes_link l = load_lanes_link(a->tables.links, step->first + i);
        fy_lanes_edge e = load_lanes_edge(a->tables.edges, l.edge);
        uint64_t number = lanes_use(t, l.edge, e.uses, l.use);
        uint64_t to = lanes_header_at(a, t, &l, number) + FY_LANES_LINE_BYTES;
        uint64_t from = l.from + t->lane * l.lane_bytes +
                        number % a->tables.n_slots * l.from_slot_bytes + FY_LANES_LINE_BYTES;
        uint32_t n = t->n;
        if (e.origin >= FY_LANES_FROM_PART && e.n > 1) {
            uint32_t each = lanes_each(n, e.n, t->line);
            n = each < n ? each : n;
        }
        if (e.origin >= FY_LANES_FROM_SUB && e.n_sub > 1) {
            uint32_t each = lanes_each(n, e.n_sub, t->line);
            n = each < n ? each : n;
        }
        uint64_t bytes = (uint64_t)n * e.element_bytes;
        uint64_t n_units = ((e.n_cells - 1) * a->cell_bytes[l.edge] + bytes + 15) / 16;
        for (uint64_t k = FY_THREAD; k < n_units; k += FY_THREADS) {
            fy_store16(to + k * 16, fy_load16(from + k * 16));
        }
        if (FY_THREAD == 0 && l.is_near) {
            LANES_COUNT(t, inside_written, e.n_cells * bytes);
        } else if (FY_THREAD == 0) {
            LANES_COUNT(t, between, e.n_cells * bytes);
        }
    }
    lanes_signal(a, t, step);
}

FY_DEVICE void lanes_stage(const fy_lanes_call *a, lanes_turn *t, uint32_t stage, uint64_t step)
{
    fy_v8 row = fy_load8(a->tables.stages + (uint64_t)stage * sizeof(fy_lanes_stage));
    uint64_t first = t->lane * a->lane_elements, at = step * a->block_elements;
    uint64_t rest = a->n_elements - first;
    rest = (rest < a->lane_elements ? rest : a->lane_elements) - at;
    t->step = step;
    t->begin = first + at;
    t->n = (uint32_t)(rest < a->block_elements ? rest : a->block_elements);
    for (uint32_t i = 0; i < row.y && lanes_why == FY_LANES_GOES; i++) {
        fy_lanes_step one = load_lanes_step(a->tables.steps, row.x + i);
        switch (one.kind) {
        case FY_LANES_WAIT:
            lanes_wait(a, t, &one);
            break;
        case FY_LANES_SUM:
            lanes_sum(a, t, one.first);
            break;
        case FY_LANES_PUT:
            lanes_put(a, t, &one);
            break;
        default:
            lanes_signal(a, t, &one);
            break;
        }
    }
}

/* Its edges were used as often as there are steps. */
FY_DEVICE void lanes_end(const fy_lanes_call *a, const lanes_turn *t, uint64_t n_steps)
{
    for (uint32_t i = FY_THREAD; i < a->tables.n_edges; i += FY_THREADS) {
        fy_lanes_edge e = load_lanes_edge(a->tables.edges, i);
        lanes_count(t, i * 8, e.uses * n_steps);
    }
    if (FY_THREAD == 0) {
        LANES_COUNT(t, n_steps, n_steps);
    }
}

#define LANES_STATE(t, field) ((t)->its_state + __builtin_offsetof(fy_lanes_state, field))

/* What the host could not number is the next one, whoever made the one before it. */
FY_DEVICE uint64_t lanes_number_of(const fy_lanes_call *a, uint64_t before, uint64_t floor)
{
    if (a->title.which == 0) {
        return a->title.number;
    }
    floor = floor < a->title.number ? a->title.number : floor;
    return (floor < before ? before : floor) + 1;
}

/* Nothing begins any more. */
FY_DEVICE void lanes_refuse(const fy_lanes_call *a, const lanes_turn *t)
{
    lanes_why = FY_LANES_STOPPED;
    if (t->lane == 0) {
        uint64_t at = a->watch.board + __builtin_offsetof(fy_lanes_board, n_refused);
        fy_release(at, fy_acquire(at) + 1);
    }
}

/*
 * The host hears that this block runs, before it looks whether it may: so who has halted the device
 * sees all that still go on. But where the device is halted already reports stay what they were. A
 * call that finds another one's state is in nobody's order.
 */
FY_DEVICE void lanes_begin(const fy_lanes_call *a, lanes_turn *t)
{
    uint64_t within = fy_exchange(LANES_STATE(t, is_within), 1);
    uint64_t before = load_word(LANES_STATE(t, number));
    fy_v16 halt = fy_load16(a->watch.halt);
    if (halt.x != 0) {
        t->call = lanes_call = 0;
        lanes_refuse(a, t);
        return;
    }
    t->call = lanes_call = lanes_number_of(a, before, joined(halt.z, halt.w));
    bool is_beside = within != 0 || (t->call != 0 && t->call <= before);
    fy_release(LANES_REPORT(t, begun), joined((uint32_t)t->call, a->title.which));
    if (fy_acquire(a->watch.halt) != 0) {
        lanes_refuse(a, t);
    } else if (is_beside) {
        lanes_why = FY_LANES_BESIDE;
        lanes_halt(a, t);
    } else {
        lanes_why = FY_LANES_GOES;
    }
}

/* The host hears of what it has not numbered that it is over: nobody else may tell it. */
FY_DEVICE void lanes_leave(const fy_lanes_call *a, const lanes_turn *t)
{
    fy_barrier(); /* behind the word that it is over its tables may go */
    bool is_good = lanes_why == FY_LANES_GOES;
    uint32_t n_alone = is_good && t->lane == 0 ? a->n_states - a->n_lanes : 0;
    for (uint32_t i = FY_THREAD; i < n_alone; i += FY_THREADS) { /* lanes without a part in it */
        store_word(LANES_STATE(t, number) + (a->n_lanes + i) * sizeof(fy_lanes_state), t->call);
    }
    if (FY_THREAD != 0) {
        return;
    }
    if (is_good) {
        store_word(LANES_STATE(t, number), t->call);
    }
    if (lanes_why != FY_LANES_BESIDE) {
        store_word(LANES_STATE(t, is_within), 0);
    }
    if (a->title.which != 0 && t->call != 0) { /* 0: nobody heard of its begin */
        fy_release(LANES_REPORT(t, ended), t->call);
    }
}

/* In step with this lane of other ranks. */
FY_DEVICE void lanes_go(const fy_lanes_call *a, lanes_turn *t, uint64_t n_steps)
{
    uint32_t n_stages = a->tables.n_stages;
    if (a->tables.is_pipelined != 0) {
        for (uint64_t turn = 0; turn < n_steps + n_stages - 1; turn++) {
            for (uint32_t s = 0; s < n_stages && s <= turn; s++) {
                if (turn - s < n_steps) {
                    lanes_stage(a, t, s, turn - s);
                }
            }
        }
        return;
    }
    for (uint64_t step = 0; step < n_steps; step++) {
        for (uint32_t s = 0; s < n_stages; s++) {
            lanes_stage(a, t, s, step);
        }
    }
}

FY_MEETING_KERNEL(fy_cuda_lanes, fy_lanes_call)
{
    lanes_turn t;
    t.lane = FY_BLOCK;
    t.line = FY_LANES_LINE_BYTES / a.element_bytes;
    t.its_state = a.watch.states + t.lane * sizeof(fy_lanes_state);
    t.its_report = a.watch.reports + t.lane * sizeof(fy_lanes_report);
    uint64_t rest = a.n_elements - t.lane * a.lane_elements;
    rest = rest < a.lane_elements ? rest : a.lane_elements;
    uint64_t n_steps = (rest + a.block_elements - 1) / a.block_elements;
    if (FY_THREAD == 0) {
        lanes_begin(&a, &t);
    }
    fy_barrier();
    t.call = lanes_call;
    if (lanes_why == FY_LANES_GOES) { /* else what tables lie in may be gone */
        lanes_go(&a, &t, n_steps);
    }
    fy_barrier();
    if (lanes_why == FY_LANES_GOES) {
        lanes_end(&a, &t, n_steps);
    }
    lanes_leave(&a, &t);
}
