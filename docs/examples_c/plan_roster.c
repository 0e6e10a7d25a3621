/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans from what each rank says of its own parameters. A weight of 8 x 6 is cut by rows over the
 * ranks 0 and 1, and wanted by columns on the ranks 0, 1 and 2; a norm is on all of them.
 */
#include <ferry/ferry.h>

#include <inttypes.h>
#include <stdio.h>

enum { N_RANKS = 3, N_SOURCES = 2, ROWS = 8, COLUMNS = 6 };

/* One side of the model: the ranks 0 .. n_ranks - 1 cut the weight along dim. */
typedef struct side {
    uint32_t n_ranks;
    uint32_t dim;
    ferry_group *group; /* its tensor-parallel group */
} side;

static ferry_status add_params(ferry_model *model, const side *s, uint32_t rank, ferry_error *error)
{
    ferry_param_metadata weight = FERRY_PARAM_METADATA_INIT;
    weight.name = "layers.0.weight";
    weight.owner_rank = rank;
    weight.n_dims = 2;
    weight.shape[0] = ROWS;
    weight.shape[1] = COLUMNS;
    weight.shape[s->dim] /= s->n_ranks; /* the shape is that of the local shard */
    weight.is_tp = true;
    weight.partition_dim = s->dim;
    weight.tensor_parallel_group_ranks = s->group;
    ferry_status status = ferry_dtype_of(FERRY_BF16, &weight.dtype, error);
    if (status == FERRY_OK) {
        status = ferry_model_add(model, &weight, error);
    }

    ferry_param_metadata norm = FERRY_PARAM_METADATA_INIT;
    norm.name = "layers.0.norm";
    norm.owner_rank = rank;
    norm.n_dims = 1;
    norm.shape[0] = COLUMNS;
    norm.dtype = weight.dtype;
    return status == FERRY_OK ? ferry_model_add(model, &norm, error) : status;
}

/* The model of a rank on one side; NULL for a rank that has none. */
static ferry_status make_model(const side *s, uint32_t rank, ferry_model **model_out,
                               ferry_error *error)
{
    *model_out = NULL;
    if (rank >= s->n_ranks) {
        return FERRY_OK;
    }
    ferry_status status = ferry_model_create(model_out, error);
    return status == FERRY_OK ? add_params(*model_out, s, rank, error) : status;
}

static ferry_status fill_roster(ferry_roster *roster, const side *src, const side *dst,
                                ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (uint32_t rank = 0; rank < N_RANKS && status == FERRY_OK; rank++) {
        ferry_model *src_model = NULL, *dst_model = NULL;
        status = make_model(src, rank, &src_model, error);
        if (status == FERRY_OK) {
            status = make_model(dst, rank, &dst_model, error);
        }
        if (status == FERRY_OK) {
            status = ferry_roster_set(roster, rank, src_model, dst_model, error);
        }
        ferry_model_destroy(src_model); /* the roster has copied them */
        ferry_model_destroy(dst_model);
    }
    return status;
}

static ferry_status print_move(void *context, const ferry_move *move)
{
    (void)context;
    printf("%" PRIu64 ": %" PRIu32 " -> %" PRIu32 ", %" PRIu64 " bytes of %s\n", move->task_id,
           move->from, move->to, move->bytes, move->tensor);
    return FERRY_OK;
}

static ferry_status run(ferry_error *error)
{
    side src = {.n_ranks = N_SOURCES, .dim = 0};
    side dst = {.n_ranks = N_RANKS, .dim = 1};
    ferry_roster *roster = NULL;
    ferry_plan *plan = NULL;

    ferry_status status = ferry_group_create_range(0, 1, src.n_ranks, &src.group, error);
    if (status == FERRY_OK) {
        status = ferry_group_create_range(0, 1, dst.n_ranks, &dst.group, error);
    }
    if (status == FERRY_OK) {
        status = ferry_roster_create(N_RANKS, &roster, error);
    }
    if (status == FERRY_OK) {
        status = fill_roster(roster, &src, &dst, error);
    }
    if (status == FERRY_OK) {
        status = ferry_plan_create_from_roster(roster, NULL, &plan, error);
    }
    if (status == FERRY_OK) {
        status = ferry_plan_visit(plan, FERRY_ALL_RANKS, print_move, NULL, NULL, error);
    }
    ferry_plan_destroy(plan);
    ferry_roster_destroy(roster);
    ferry_group_destroy(dst.group);
    ferry_group_destroy(src.group);
    return status;
}

int main(void)
{
    ferry_error error;
    ferry_status status = run(&error);
    if (status != FERRY_OK) {
        fprintf(stderr, "%s: %s\n", ferry_status_name(status), error.message);
        return 1;
    }
    return 0;
}
