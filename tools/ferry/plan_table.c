/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* A plan for people: totals, ranks, bound, and the moves of one rank. */
#include "plan.h"

#include "commands.h"
#include "name_text.h"
#include "steps.h"
#include "units.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct row {
    uint32_t rank;
    ferry_rank_bytes bytes;
} row;

static int compare_busy(const void *a, const void *b)
{
    const row *x = a, *y = b;
    uint64_t p = x->bytes.in > x->bytes.out ? x->bytes.in : x->bytes.out;
    uint64_t q = y->bytes.in > y->bytes.out ? y->bytes.in : y->bytes.out;
    if (p != q) {
        return p > q ? -1 : 1;
    }
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static void print_row(const row *r)
{
    char in[32], out[32], local[32], moves[32];
    printf("  %8u  %12s  %12s  %12s  %12s\n", r->rank, format_bytes((double)r->bytes.in, in),
           format_bytes((double)r->bytes.out, out), format_bytes((double)r->bytes.local, local),
           format_count(r->bytes.n_moves, moves));
}

enum { ALL_ROWS = 16, BUSIEST_ROWS = 8 };

static void print_ranks(const char *title, const row *rows, uint32_t n)
{
    printf("\n%s\n", title);
    printf("  %8s  %12s  %12s  %12s  %12s\n", "rank", "in", "out", "local", "moves in");
    for (uint32_t i = 0; i < n; i++) {
        print_row(&rows[i]);
    }
}

static const char *reason_in_words(uint32_t reason)
{
    switch (reason) {
    case FERRY_BOUND_EGRESS:
        return "what this rank must send, however the replicas share the work";
    case FERRY_BOUND_INGRESS:
        return "what this rank must receive";
    case FERRY_BOUND_NODE_EGRESS:
        return "what must leave this rank's node";
    case FERRY_BOUND_NODE_INGRESS:
        return "what must enter this rank's node";
    default:
        return "nothing has to travel";
    }
}

static void print_bound(const ferry_plan_bound *bound)
{
    printf("\nBound: ");
    if (bound->reason == FERRY_BOUND_NONE) {
        printf("%s\n", reason_in_words(bound->reason));
        return;
    }
    if (bound->has_seconds) {
        char text[UNIT_TEXT_BYTES];
        printf("%s, ", format_seconds(bound->seconds, text));
    }
    printf("by %s of rank %u: %s\n", ferry_plan_bound_reason_name(bound->reason), bound->rank,
           reason_in_words(bound->reason));
}

static void print_balance(const row *rows, uint32_t n, const ferry_plan_bound *bound)
{
    uint64_t in = 0, out = 0;
    char text[32], least[32];
    for (uint32_t i = 0; i < n; i++) {
        in = rows[i].bytes.in > in ? rows[i].bytes.in : in;
        out = rows[i].bytes.out > out ? rows[i].bytes.out : out;
    }
    printf("Busiest receiver: %s\n", format_bytes((double)in, text));
    printf("Busiest sender:   %s", format_bytes((double)out, text));
    if (bound->busiest_bytes > 0) {
        printf(", the least possible is %s: ratio %.4f", format_bytes(bound->busiest_bytes, least),
               (double)out / bound->busiest_bytes);
    }
    printf("\n");
}

static void print_totals(const ferry_plan *plan, const ferry_plan_totals *totals,
                         const ferry_plan_statistics *statistics)
{
    char digest[FERRY_DIGEST_BYTES], moved[32], local[32], total[32], tensors[32], classes[32],
        ranks[32], moves[32];
    ferry_plan_digest(plan, digest, sizeof digest);
    uint32_t n_ranks = ferry_plan_rank_count(plan);
    printf("%s tensor%s in %s layout class%s, %s rank%s, %s move%s\n",
           format_count(statistics->n_tensors, tensors), plural(statistics->n_tensors),
           format_count(statistics->n_layout_classes, classes),
           statistics->n_layout_classes == 1 ? "" : "es", format_count(n_ranks, ranks),
           plural(n_ranks), format_count(totals->n_moves, moves), plural(totals->n_moves));
    printf("%s in all: %s between ranks, %s stay on their rank\n",
           format_bytes((double)totals->moved_bytes + (double)totals->local_bytes, total),
           format_bytes((double)totals->moved_bytes, moved),
           format_bytes((double)totals->local_bytes, local));
    printf("digest %s\n", digest);
}

/* What a side in boxes has, over all ranks. */
typedef struct box_totals {
    uint64_t n_parameters;
    uint64_t bytes;
    uint64_t n_fills;
    uint64_t fill_bytes;
} box_totals;

static ferry_status add_parameter(void *context, const ferry_shard *shard)
{
    box_totals *totals = context;
    totals->n_parameters += shard->is_parameter;
    totals->bytes += shard->is_parameter ? shard->bytes : 0;
    return FERRY_OK;
}

static ferry_status add_fill(void *context, const ferry_fill *fill)
{
    box_totals *totals = context;
    totals->n_fills++;
    totals->fill_bytes += fill->bytes;
    return FERRY_OK;
}

/* Nothing of sides that are meshes. */
static ferry_status print_boxes(const ferry_plan *plan, ferry_error *error)
{
    static const char *const names[] = {"Source", "Destination"};
    for (int side = 0; side < 2; side++) {
        box_totals totals = {0};
        char count[32], bytes[32], fills[32], filled[32];
        if (!ferry_plan_is_in_boxes(plan, (ferry_side_role)side)) {
            continue;
        }
        for (uint32_t r = 0; r < ferry_plan_rank_count(plan); r++) {
            FY_TRY(ferry_plan_visit_shards(plan, (ferry_side_role)side, r, add_parameter, &totals,
                                           error));
        }
        if (side == FERRY_SIDE_DESTINATION) {
            FY_TRY(ferry_plan_visit_fills(plan, FERRY_ALL_RANKS, add_fill, &totals, error));
        }
        printf("%s in boxes: %s parameter%s of %s", names[side],
               format_count(totals.n_parameters, count), plural(totals.n_parameters),
               format_bytes((double)totals.bytes, bytes));
        if (totals.n_fills > 0) {
            printf(", %s of them in %s fill%s", format_bytes((double)totals.fill_bytes, filled),
                   format_count(totals.n_fills, fills), plural(totals.n_fills));
        }
        printf("\n");
    }
    return FERRY_OK;
}

/* Ways to compute with blocks that share scales: who does it, and what takes memory there. */
enum { SENT_CODES, SENT_F4, MADE_CODES, VALUES, N_WAYS };

typedef struct block_totals {
    const char *last[N_WAYS];
    uint64_t n_tensors[N_WAYS];
    uint64_t *bytes; /* [ranks][N_WAYS] */
} block_totals;

static ferry_status add_block_work(void *context, const ferry_block_work *work)
{
    block_totals *totals = context;
    int way = work->dequantizes            ? VALUES
              : work->at_receiver          ? MADE_CODES
              : work->tensor_scale != NULL ? SENT_F4
                                           : SENT_CODES;
    totals->n_tensors[way] += totals->last[way] != work->tensor;
    totals->last[way] = work->tensor;
    totals->bytes[(size_t)work->rank * N_WAYS + (size_t)way] += work->staging_bytes;
    return FERRY_OK;
}

/* Nothing where no tensor is quantized or dequantized. */
static ferry_status print_block_work(const ferry_plan *plan, ferry_error *error)
{
    static const char *const words[N_WAYS][2] = {
        {"Quantized by senders", "scales take"},
        {"Quantized to nvfp4 by senders", "codes and scales take"},
        {"Quantized by receivers", "values take"},
        {"Dequantized by receivers", "scales take"}};
    uint32_t n_ranks = ferry_plan_rank_count(plan);
    block_totals totals = {.bytes = calloc((size_t)n_ranks + 1, N_WAYS * sizeof(uint64_t))};
    if (totals.bytes == NULL) {
        snprintf(error->message, sizeof error->message, "out of memory");
        return FERRY_ERR_NO_MEMORY;
    }
    ferry_status status = ferry_plan_visit_block_work(plan, add_block_work, &totals, error);
    for (size_t way = 0; way < N_WAYS && status == FERRY_OK; way++) {
        char count[32], bytes[32];
        uint64_t most = 0;
        for (size_t r = 0; r < n_ranks; r++) {
            uint64_t its = totals.bytes[r * N_WAYS + way];
            most = its > most ? its : most;
        }
        if (totals.n_tensors[way] > 0) {
            printf("%s: %s tensor%s, %s up to %s of a rank's memory\n", words[way][0],
                   format_count(totals.n_tensors[way], count), plural(totals.n_tensors[way]),
                   words[way][1], format_bytes((double)most, bytes));
        }
    }
    free(totals.bytes);
    return status;
}

static ferry_status list_rows(const ferry_plan *plan, row *rows, ferry_error *error)
{
    uint32_t n = ferry_plan_rank_count(plan);
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = (row){.rank = i, .bytes = FERRY_RANK_BYTES_INIT};
        FY_TRY(ferry_plan_get_rank_bytes(plan, i, &rows[i].bytes, error));
    }
    return FERRY_OK;
}

/* Where the source calls the tensor otherwise. */
static void print_source(const ferry_move *move)
{
    if (move->source != NULL) {
        printf(" from ");
        print_name(stdout, move->source);
    }
}

/* Of a move into a parameter: its shape, and where it begins there. */
static void print_place(const ferry_move *move)
{
    for (uint32_t d = 0; d < move->n_dims; d++) {
        printf("%s%llu", d == 0 ? "" : " x ", (unsigned long long)move->length[d]);
    }
    putchar(']');
    print_source(move);
    printf(" in ");
    print_name(stdout, move->dst_parameter);
    printf(" at %llu", (unsigned long long)move->dst_offset);
}

/* What becomes of its elements, and who makes it. */
static void print_cast(const ferry_move *move)
{
    const ferry_conversion *cast = move->conversion;
    char from[FERRY_DTYPE_TEXT_BYTES], to[FERRY_DTYPE_TEXT_BYTES];
    ferry_dtype_format(move->src_dtype, from, sizeof from);
    ferry_dtype_format(move->dst_dtype, to, sizeof to);
    printf(", %s", from);
    if (cast->kind == FERRY_CONVERSION_DEQUANTIZE) {
        printf(" codes to %s, blocks of %llu x %llu, at the receiver", to,
               (unsigned long long)cast->block[0], (unsigned long long)cast->block[1]);
        return;
    }
    if (cast->kind != FERRY_CONVERSION_CAST) {
        printf(" to %s of %s, blocks of %llu x %llu, at the %s",
               cast->kind == FERRY_CONVERSION_CODES ? "codes" : "scales", to,
               (unsigned long long)cast->block[0], (unsigned long long)cast->block[1],
               cast->at_receiver ? "receiver" : "sender");
        return;
    }
    if (cast->scale != 1) {
        printf(" x %.9g", (double)cast->scale);
    }
    if (cast->add != 0) {
        printf(" + %.9g", (double)cast->add);
    }
    printf(" to %s%s at the %s", to, cast->saturates ? ", saturating," : "",
           cast->at_receiver ? "receiver" : "sender");
}

/* The moves of one rank, for people: one line each. */
static ferry_status print_move(void *context, const ferry_move *move)
{
    char bytes[32];
    (void)context;
    printf("  %10llu  %6u -> %-6u  %12s  ", (unsigned long long)move->task_id, move->from, move->to,
           format_bytes((double)move->bytes, bytes));
    print_name(stdout, move->tensor);
    printf(" [");
    if (move->dst_parameter != NULL) {
        print_place(move);
    } else {
        for (uint32_t d = 0; d < move->n_dims; d++) {
            printf("%s%llu:%llu", d == 0 ? "" : ", ", (unsigned long long)move->dst_begin[d],
                   (unsigned long long)(move->dst_begin[d] + move->length[d]));
        }
        putchar(']');
        print_source(move);
    }
    if (move->conversion != NULL) {
        print_cast(move);
    }
    printf("\n");
    return FERRY_OK;
}

int plan_print_table(const plan_request *r, const ferry_plan *plan)
{
    ferry_error error;
    ferry_plan_totals totals = FERRY_PLAN_TOTALS_INIT;
    ferry_plan_statistics statistics = FERRY_PLAN_STATISTICS_INIT;
    ferry_plan_bound bound = FERRY_PLAN_BOUND_INIT;
    uint32_t n = ferry_plan_rank_count(plan);
    row *rows = calloc(n, sizeof *rows);
    int status = EXIT_DONE;
    if (rows == NULL) {
        return fail("plan", "out of memory");
    }
    if (ferry_plan_get_totals(plan, &totals, &error) != FERRY_OK ||
        ferry_plan_get_statistics(plan, &statistics, &error) != FERRY_OK ||
        ferry_plan_get_bound(plan, &bound, &error) != FERRY_OK ||
        list_rows(plan, rows, &error) != FERRY_OK) {
        status = fail("plan", error.message);
        goto out;
    }
    print_totals(plan, &totals, &statistics);
    if (print_boxes(plan, &error) != FERRY_OK || print_block_work(plan, &error) != FERRY_OK) {
        status = fail("plan", error.message);
        goto out;
    }
    if (r->has_rank) {
        print_ranks("This rank:", &rows[r->rank], 1);
        printf("\nIts moves:\n  %10s  %6s    %-6s  %12s  tensor [destination box]\n", "id", "from",
               "to", "bytes");
        if (ferry_plan_visit(plan, r->rank, print_move, NULL, NULL, &error) != FERRY_OK) {
            status = fail("plan", error.message);
            goto out;
        }
    } else if (n <= ALL_ROWS) {
        print_ranks("Every rank:", rows, n);
    } else {
        qsort(rows, n, sizeof *rows, compare_busy);
        print_ranks("The busiest ranks:", rows, BUSIEST_ROWS);
    }
    print_bound(&bound);
    if (!r->has_rank) {
        print_balance(rows, n, &bound);
    }
out:
    free(rows);
    return status;
}
