/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Plans a spec and prints the moves of one rank: plan_spec SPEC RANK */
#include <ferry/ferry.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static ferry_status print_move(void *context, const ferry_move *move)
{
    uint64_t *n_bytes = context;
    printf("%" PRIu64 ": %s", move->task_id, move->tensor);
    for (uint32_t d = 0; d < move->n_dims; d++) {
        printf(" %" PRIu64 ":%" PRIu64, move->dst_begin[d], move->dst_begin[d] + move->length[d]);
    }
    printf(" from %" PRIu32 " to %" PRIu32 "\n", move->from, move->to);
    *n_bytes += move->bytes;
    return FERRY_OK; /* anything else would end the visit */
}

static ferry_status plan_and_print(const char *path, uint32_t rank, ferry_error *error)
{
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    ferry_visit_statistics statistics = FERRY_VISIT_STATISTICS_INIT;
    char digest[FERRY_DIGEST_BYTES];
    uint64_t n_bytes = 0;

    ferry_status status = ferry_spec_load(path, &spec, error);
    if (status == FERRY_OK) {
        status = ferry_plan_create(spec, NULL, &plan, error);
    }
    ferry_spec_destroy(spec); /* the plan keeps what it needs */
    if (status == FERRY_OK) {
        status = ferry_plan_visit(plan, rank, print_move, &n_bytes, &statistics, error);
    }
    if (status == FERRY_OK) {
        ferry_plan_digest(plan, digest, sizeof digest);
        printf("%" PRIu64 " bytes with %" PRIu64 " peers, plan %s\n", n_bytes, statistics.n_peers,
               digest);
    }
    ferry_plan_destroy(plan);
    return status;
}

int main(int argc, char **argv)
{
    ferry_error error;
    if (argc != 3) {
        fprintf(stderr, "usage: plan_spec SPEC RANK\n");
        return 2;
    }
    uint32_t rank = (uint32_t)strtoul(argv[2], NULL, 10);
    ferry_status status = plan_and_print(argv[1], rank, &error);
    if (status != FERRY_OK) {
        fprintf(stderr, "%s: %s\n", ferry_status_name(status), error.message);
        return 1;
    }
    return 0;
}
