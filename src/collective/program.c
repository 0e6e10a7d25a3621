/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* All that the calls of a handle run, from its options: for a handle, or for nobody at all. */
#include "collective/program.h"

#include "base/alloc.h"
#include "base/checked.h"

/* Inside a node blocks of a few hundred KiB stay in the caches; between nodes puts want length. */
static const uint64_t STAGING_INSIDE = (uint64_t)16 << 20;
static const uint64_t STAGING_BETWEEN = (uint64_t)64 << 20;

void fy_mix_program_take_type(fy_mix_program *program, uint32_t dtype)
{
    program->dtype = dtype;
    program->type = dtype == FERRY_F16    ? FY_SUM_F16
                    : dtype == FERRY_BF16 ? FY_SUM_BF16
                                          : FY_SUM_F32;
    program->element_bytes = (uint32_t)fy_sum_type_bytes(program->type);
}

static ferry_status build_schedule(fy_mix_program *program, uint32_t op, uint32_t mode,
                                   bool deterministic, ferry_error *error)
{
    fy_mix_schedule_options options = {deterministic, program->mapped, program->adds};
    fy_mix_schedule *built = fy_alloc_zeroed(1, sizeof *built);
    if (built == NULL) {
        return fy_fail_no_memory(error, "a schedule");
    }
    program->schedules[op][mode] = built;
    return fy_mix_schedule_build(&program->topology, op, mode, &options, built, error);
}

static ferry_status build_schedules(fy_mix_program *program, bool deterministic, ferry_error *error)
{
    uint32_t ops[FERRY_MIXED_N_OPS], modes[FERRY_MIXED_N_MODES];
    size_t n_ops = fy_topology_list_ops(&program->topology, ops);
    size_t n_modes =
        fy_topology_list_modes(&program->topology, program->mapped, deterministic, modes);
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < n_ops * n_modes && status == FERRY_OK; i++) {
        status = build_schedule(program, ops[i % n_ops], modes[i / n_ops], deterministic, error);
    }
    return status;
}

/*
 * A block's size counts what a worker takes at a time. A thread of a GPU takes 16 bytes; here it is
 * FERRY_MIXED_BLOCK_BYTES, so that the smallest block of several steps, 256 of them, costs more
 * than the hand-off between two ranks on one core.
 */
static uint32_t lines_of(uint32_t block_size)
{
    uint64_t lines = (uint64_t)block_size * (FERRY_MIXED_BLOCK_BYTES / FY_MIX_LINE_BYTES);
    return lines < UINT32_MAX ? (uint32_t)lines : UINT32_MAX;
}

static void make_layout(fy_mix_program *program, const ferry_mixed_comm_options *options)
{
    uint64_t staging = options->staging_bytes;
    if (staging == 0) {
        staging = program->topology.inter_size > 1 ? STAGING_BETWEEN : STAGING_INSIDE;
    }
    uint64_t wished = (uint64_t)options->max_block_size * FERRY_MIXED_BLOCK_BYTES;
    fy_mix_layout_make(program, fy_mix_layout_fit(program, wished, staging), &program->layout);
    program->limits = (fy_geometry_limits){
        .n_lanes = program->n_lanes,
        .most_lines =
            (uint32_t)(program->layout.most_elements * program->element_bytes / FY_MIX_LINE_BYTES),
        .max_lines = lines_of(options->max_block_size),
        .min_lines = lines_of(options->min_block_size),
        .min_steps = options->min_num_steps,
    };
}

ferry_status fy_mix_program_make(fy_mix_program *program, const ferry_mixed_comm_options *options,
                                 ferry_error *error)
{
    FY_TRY(build_schedules(program, options->deterministic, error));
    make_layout(program, options);
    return FERRY_OK;
}

void fy_mix_program_cleanup(fy_mix_program *program)
{
    for (uint32_t op = 0; op < FERRY_MIXED_N_OPS; op++) {
        for (uint32_t mode = 0; mode < FERRY_MIXED_N_MODES; mode++) {
            if (program->schedules[op][mode] != NULL) {
                fy_mix_schedule_cleanup(program->schedules[op][mode]);
                fy_free(program->schedules[op][mode]);
                program->schedules[op][mode] = NULL;
            }
        }
    }
}
