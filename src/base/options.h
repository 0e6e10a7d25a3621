/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_OPTIONS_H
#define FY_BASE_OPTIONS_H

#include "base/status.h"

#include <ferry/ferry.h>
#include <ferry/reference.h>

/*
 * Every struct with a struct_size that callers hand in, its _INIT value, and the last field of its
 * first version. That field never changes: programs that were built against the first version must
 * run for good. What is appended starts at a multiple of 8, never in the padding behind the last
 * field of an earlier version, and its zero is the default.
 *
 * fy_take_<name>(given, own, error) sets *own to the _INIT value and to what the caller gave, which
 * may be an older or a newer struct, or NULL. Nothing else reads a caller's struct.
 */
#define FY_INPUT_STRUCTS(X)                                                                        \
    X(bootstrap, FERRY_BOOTSTRAP_INIT, all_gather)                                                 \
    X(box, FERRY_BOX_INIT, stride)                                                                 \
    X(reference_schedule_options, FERRY_REFERENCE_SCHEDULE_OPTIONS_INIT, duplex)                   \
    X(cluster_options, FERRY_CLUSTER_OPTIONS_INIT, latency_s)                                      \
    X(copy_options, FERRY_COPY_OPTIONS_INIT, hash_out)                                             \
    X(exchange, FERRY_EXCHANGE_INIT, scatter)                                                      \
    X(grow_options, FERRY_GROW_OPTIONS_INIT, newcomers_out)                                        \
    X(map_box, FERRY_MAP_BOX_INIT, at)                                                             \
    X(mixed_comm_options, FERRY_MIXED_COMM_OPTIONS_INIT, staging_bytes)                            \
    X(names_options, FERRY_NAMES_OPTIONS_INIT, dtype)                                              \
    X(param_description, FERRY_PARAM_DESCRIPTION_INIT, n_partition_sizes)                          \
    X(param_metadata, FERRY_PARAM_METADATA_INIT, n_partition_sizes)                                \
    X(plan_json_options, FERRY_PLAN_JSON_OPTIONS_INIT, summary)                                    \
    X(plan_options, FERRY_PLAN_OPTIONS_INIT, n_lost_ranks)                                         \
    X(process_groups, FERRY_PROCESS_GROUPS_INIT, world)                                            \
    X(quantization, FERRY_QUANTIZATION_INIT, scale_rule)                                           \
    X(recovery_options, FERRY_RECOVERY_OPTIONS_INIT, min_ranks)                                    \
    X(report_options, FERRY_REPORT_OPTIONS_INIT, sections)                                         \
    X(reshard_options, FERRY_RESHARD_OPTIONS_INIT, n_threads)                                      \
    X(reshard_run_options, FERRY_RESHARD_RUN_OPTIONS_INIT, context)                                \
    X(schedule_options, FERRY_SCHEDULE_OPTIONS_INIT, no_relays)                                    \
    X(reference_batch, FERRY_REFERENCE_BATCH_INIT, bytes)                                          \
    X(service_options, FERRY_SERVICE_OPTIONS_INIT, trace)                                          \
    X(sharding_descriptor, FERRY_SHARDING_DESCRIPTOR_INIT, dst_dim_ranks)                          \
    X(side_box, FERRY_SIDE_BOX_INIT, repeats)                                                      \
    X(simulation_options, FERRY_SIMULATION_OPTIONS_INIT, pack_bytes_per_s)                         \
    X(statistics_options, FERRY_STATISTICS_OPTIONS_INIT, context)                                  \
    X(task, FERRY_TASK_INIT, content)                                                              \
    X(verify_options, FERRY_VERIFY_OPTIONS_INIT, context)                                          \
    X(world_options, FERRY_WORLD_OPTIONS_INIT, host)

#define FY_FIRST_BYTES(type, last) (offsetof(type, last) + sizeof(((type *)NULL)->last))

#define FY_TAKE(name, init, last)                                                                  \
    static inline ferry_status fy_take_##name(const ferry_##name *given, ferry_##name *own,        \
                                              ferry_error *error)                                  \
    {                                                                                              \
        *own = (ferry_##name)init;                                                                 \
        return fy_copy_in(given, FY_FIRST_BYTES(ferry_##name, last), own, sizeof *own,             \
                          "ferry_" #name, #init, error);                                           \
    }
FY_INPUT_STRUCTS(FY_TAKE)
#undef FY_TAKE

#endif
