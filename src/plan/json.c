/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ferry.plan/1, streamed: a plan of ten million moves costs one buffer. */
#include "plan/json.h"

#include "model/side.h"
#include "plan/core.h"

#include "base/checked.h"
#include "base/options.h"
#include "base/writer.h"

const char *ferry_plan_bound_reason_name(uint32_t reason)
{
    switch (reason) {
    case FERRY_BOUND_EGRESS:
        return "egress";
    case FERRY_BOUND_INGRESS:
        return "ingress";
    case FERRY_BOUND_NODE_EGRESS:
        return "node_egress";
    case FERRY_BOUND_NODE_INGRESS:
        return "node_ingress";
    default:
        return "none";
    }
}

static void write_key(fy_writer *w, const char *key)
{
    fy_write_text(w, "\"");
    fy_write_text(w, key);
    fy_write_text(w, "\":");
}

static void write_number(fy_writer *w, const char *key, uint64_t value)
{
    write_key(w, key);
    fy_write_u64(w, value);
}

static void write_head(fy_writer *w, const ferry_plan *plan, uint64_t n_tensors)
{
    char digest[33];
    ferry_plan_digest(plan, digest, sizeof digest);
    fy_write_text(w, "{\"format\":\"ferry.plan/1\",\"digest\":\"");
    fy_write_text(w, digest);
    fy_write_text(w, "\",");
    write_number(w, "world", plan->problem.n_ranks);
    fy_write_text(w, ",");
    write_number(w, "tensors", n_tensors);
    fy_write_text(w, ",\"bytes\":{");
    write_number(w, "moved", plan->totals.moved_bytes);
    fy_write_text(w, ",");
    write_number(w, "local", plan->totals.local_bytes);
    fy_write_text(w, ",");
    write_number(w, "total", plan->totals.moved_bytes + plan->totals.local_bytes);
    fy_write_text(w, "},\"bound\":{\"seconds\":");
    if (plan->bound.has_seconds) {
        fy_write_double(w, plan->bound.seconds);
    } else {
        fy_write_text(w, "null");
    }
    fy_write_text(w, ",");
    write_number(w, "rank", plan->bound.rank);
    fy_write_text(w, ",\"why\":\"");
    fy_write_text(w, ferry_plan_bound_reason_name(plan->bound.reason));
    fy_write_text(w, "\"},\"ranks\":[");
}

static void write_ranks(fy_writer *w, const ferry_plan *plan)
{
    for (uint32_t r = 0; r < plan->problem.n_ranks; r++) {
        fy_write_text(w, r == 0 ? "\n{" : ",\n{");
        write_number(w, "rank", r);
        fy_write_text(w, ",");
        write_number(w, "in", plan->in_bytes[r]);
        fy_write_text(w, ",");
        write_number(w, "out", plan->out_bytes[r]);
        fy_write_text(w, ",");
        write_number(w, "local", plan->local_bytes[r]);
        fy_write_text(w, "}");
    }
    fy_write_text(w, "]");
}

/* Ranks that compute with blocks of one tensor, while they are counted. */
typedef struct block_writer {
    fy_writer *w;
    ferry_block_work work; /* of the tensor; staging_bytes: of the rank that needs most */
    uint32_t n_ranks;      /* 0: none yet */
    bool any;
} block_writer;

static void write_block_work(block_writer *b)
{
    fy_writer *w = b->w;
    if (b->n_ranks == 0) {
        return;
    }
    fy_write_text(w, b->any ? ",\n{" : ",\n\"blocks\":[\n{");
    b->any = true;
    fy_write_text(w, "\"tensor\":");
    fy_write_string(w, b->work.tensor);
    fy_write_text(w, b->work.dequantizes ? ",\"part\":\"values\"" : ",\"part\":\"codes\"");
    fy_write_text(w, b->work.at_receiver ? ",\"at\":\"receiver\"," : ",\"at\":\"sender\",");
    write_number(w, "ranks", b->n_ranks);
    fy_write_text(w, ",");
    write_number(w, "staging_bytes", b->work.staging_bytes);
    fy_write_text(w, "}");
}

static ferry_status count_block_work(void *context, const ferry_block_work *work)
{
    block_writer *b = context;
    if (b->n_ranks > 0 && b->work.tensor == work->tensor) {
        b->work.staging_bytes = fy_max(b->work.staging_bytes, work->staging_bytes);
        b->n_ranks++;
        return FERRY_OK;
    }
    write_block_work(b);
    b->work = *work;
    b->n_ranks = 1;
    return b->w->failed ? FERRY_ERR_IO : FERRY_OK;
}

/* Where some tensor is quantized or dequantized. */
static ferry_status write_blocks_of_plan(const ferry_plan *plan, fy_writer *w, ferry_error *error)
{
    block_writer b = {.w = w};
    FY_TRY(ferry_plan_visit_block_work(plan, count_block_work, &b, error));
    write_block_work(&b);
    fy_write_text(w, b.any ? "]" : "");
    return FERRY_OK;
}

static void write_box(fy_writer *w, const uint64_t *begin, const uint64_t *length, uint32_t n_dims)
{
    fy_write_text(w, "[");
    for (uint32_t d = 0; d < n_dims; d++) {
        fy_write_text(w, d == 0 ? "[" : ",[");
        fy_write_u64(w, begin[d]);
        fy_write_text(w, ",");
        fy_write_u64(w, length[d]);
        fy_write_text(w, "]");
    }
    fy_write_text(w, "]");
}

static void write_numbers(fy_writer *w, const char *key, const uint64_t *values, uint32_t n)
{
    fy_write_text(w, key);
    for (uint32_t d = 0; d < n; d++) {
        fy_write_text(w, d == 0 ? "" : ",");
        fy_write_u64(w, values[d]);
    }
    fy_write_text(w, "]");
}

/* Where a box lies in a parameter. */
static void write_place(fy_writer *w, const char *parameter, uint64_t offset,
                        const uint64_t *strides, uint32_t n_dims)
{
    fy_write_text(w, "{\"parameter\":");
    fy_write_string(w, parameter);
    fy_write_text(w, ",");
    write_number(w, "offset", offset);
    write_numbers(w, ",\"strides\":[", strides, n_dims);
    fy_write_text(w, "}");
}

static void write_dtype(fy_writer *w, const char *key, ferry_dtype dtype)
{
    char text[FERRY_DTYPE_TEXT_BYTES];
    ferry_dtype_format(dtype, text, sizeof text);
    fy_write_text(w, key);
    fy_write_string(w, text);
}

/* Codes that become values; scales come by moves of their own. */
static void write_codes(fy_writer *w, const ferry_move *move)
{
    const ferry_conversion *c = move->conversion;
    write_dtype(w, ",\"src_dtype\":", move->src_dtype);
    write_dtype(w, ",\"dst_dtype\":", move->dst_dtype);
    write_numbers(w, ",\"dequantize\":{\"block\":[", c->block, 2);
    write_dtype(w, ",\"scale_dtype\":", c->scale_dtype);
    fy_write_text(w, "},\"part\":\"codes\",\"at\":\"receiver\"");
}

/* Codes, or scales, of what a sender has. */
static void write_blocks(fy_writer *w, const ferry_move *move)
{
    const ferry_conversion *c = move->conversion;
    fy_said_blocks blocks = {.codes = c->code_dtype,
                             .scales = c->scale_dtype,
                             .rule = c->scale_rule,
                             .block = {c->block[0], c->block[1]},
                             .tensor_scale = move->tensor_scale};
    write_dtype(w, ",\"src_dtype\":", move->src_dtype);
    write_dtype(w, ",\"dst_dtype\":", move->dst_dtype);
    fy_blocks_write(w, &blocks);
    fy_write_text(w, c->kind == FERRY_CONVERSION_CODES ? ",\"part\":\"codes\""
                                                       : ",\"part\":\"scales\"");
    fy_write_text(w, c->at_receiver ? ",\"at\":\"receiver\"" : ",\"at\":\"sender\"");
}

/* What becomes of the elements, and who computes it. */
static void write_cast(fy_writer *w, const ferry_move *move)
{
    const ferry_conversion *cast = move->conversion;
    if (cast->kind == FERRY_CONVERSION_DEQUANTIZE) {
        write_codes(w, move);
        return;
    }
    if (cast->kind != FERRY_CONVERSION_CAST) {
        write_blocks(w, move);
        return;
    }
    fy_said_cast said = {
        .is_said = true, .saturates = cast->saturates, .scale = cast->scale, .add = cast->add};
    write_dtype(w, ",\"src_dtype\":", move->src_dtype);
    write_dtype(w, ",\"dst_dtype\":", move->dst_dtype);
    fy_cast_write(w, &said);
    fy_write_text(w, cast->at_receiver ? ",\"at\":\"receiver\"" : ",\"at\":\"sender\"");
}

typedef struct move_writer {
    fy_writer *w;
    bool any;
} move_writer;

static ferry_status write_move(void *context, const ferry_move *move)
{
    move_writer *m = context;
    fy_writer *w = m->w;
    fy_write_text(w, m->any ? ",\n{" : "\n{");
    m->any = true;
    write_number(w, "task_id", move->task_id);
    fy_write_text(w, ",\"tensor\":");
    fy_write_string(w, move->tensor);
    if (move->source != NULL) {
        fy_write_text(w, ",\"source\":");
        fy_write_string(w, move->source);
    }
    fy_write_text(w, ",");
    write_number(w, "from", move->from);
    fy_write_text(w, ",");
    write_number(w, "to", move->to);
    if (move->src_parameter != NULL || move->dst_parameter != NULL) {
        write_numbers(w, ",\"shape\":[", move->length, move->n_dims);
    }
    fy_write_text(w, ",\"src\":");
    if (move->src_parameter != NULL) {
        write_place(w, move->src_parameter, move->src_offset, move->src_strides, move->src_n_dims);
    } else {
        write_box(w, move->src_begin, move->src_length, move->src_n_dims);
    }
    fy_write_text(w, ",\"dst\":");
    if (move->dst_parameter != NULL) {
        write_place(w, move->dst_parameter, move->dst_offset, move->dst_strides, move->n_dims);
    } else {
        write_box(w, move->dst_begin, move->length, move->n_dims);
    }
    if (move->conversion != NULL) {
        write_cast(w, move);
    }
    fy_write_text(w, ",");
    write_number(w, "bytes", move->bytes);
    fy_write_text(w, "}");
    return w->failed ? FERRY_ERR_IO : FERRY_OK; /* a reader that went away ends the work */
}

static ferry_status write_fill(void *context, const ferry_fill *fill)
{
    move_writer *m = context;
    fy_writer *w = m->w;
    char bits[17];
    fy_fill_format(fill->bits, fill->dtype.element_bits, bits);
    fy_write_text(w, m->any ? ",\n{" : "\n{");
    m->any = true;
    write_number(w, "rank", fill->rank);
    fy_write_text(w, ",\"parameter\":");
    fy_write_string(w, fill->parameter);
    fy_write_text(w, ",");
    write_number(w, "offset", fill->offset);
    write_numbers(w, ",\"shape\":[", fill->shape, fill->n_dims);
    write_numbers(w, ",\"strides\":[", fill->strides, fill->n_dims);
    fy_write_text(w, ",\"bits\":\"");
    fy_write_text(w, bits);
    fy_write_text(w, "\"}");
    return w->failed ? FERRY_ERR_IO : FERRY_OK;
}

/* What receivers write themselves, where the destination is in boxes. */
static ferry_status write_fills(const ferry_plan *plan, uint32_t rank, fy_writer *writer,
                                ferry_error *error)
{
    move_writer m = {.w = writer};
    fy_write_text(writer, ",\n\"fills\":[");
    ferry_status status = ferry_plan_visit_fills(plan, rank, write_fill, &m, error);
    fy_write_text(writer, "]");
    return status;
}

ferry_status fy_plan_write_members(const ferry_plan *plan, const ferry_plan_json_options *options,
                                   fy_writer *writer, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    if (options->rank != FERRY_ALL_RANKS && options->rank >= plan->problem.n_ranks) {
        return fy_fail(error, FERRY_ERR_MISUSE, "rank %u is not in the world of %u ranks",
                       options->rank, plan->problem.n_ranks);
    }
    uint64_t n_tensors = 0;
    FY_TRY(fy_plan_count_tensors(plan, &n_tensors, error));
    write_head(writer, plan, n_tensors);
    write_ranks(writer, plan);
    FY_TRY(write_blocks_of_plan(plan, writer, error));
    if (!options->summary) {
        move_writer m = {.w = writer};
        fy_write_text(writer, ",\n\"moves\":[");
        status = ferry_plan_visit(plan, options->rank, write_move, &m, NULL, error);
        fy_write_text(writer, "]");
        if (status == FERRY_OK && plan->problem.memory[1] != NULL) {
            status = write_fills(plan, options->rank, writer, error);
        }
    }
    return status;
}

ferry_status ferry_plan_write_json(const ferry_plan *plan, const ferry_plan_json_options *options,
                                   ferry_write_fn write, void *context, ferry_error *error)
{
    FY_TRY(fy_check_use(plan != NULL && write != NULL,
                        "ferry_plan_write_json needs a plan and a writer", error));
    ferry_plan_json_options own;
    FY_TRY(fy_take_plan_json_options(options, &own, error));
    fy_writer *w = fy_alloc(1, sizeof *w);
    FY_TRY(fy_check_memory(w != NULL, "an output buffer", error));
    fy_writer_init(w, write, context);
    ferry_status status = fy_plan_write_members(plan, &own, w, error);
    if (status == FERRY_OK) {
        fy_write_text(w, "}\n");
    }
    if (status == FERRY_OK || w->failed) {
        status = fy_writer_finish(w, error);
    }
    fy_free(w);
    return status;
}
