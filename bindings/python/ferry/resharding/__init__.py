# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Planning from the parameters of a trainer: who sends which slice of which parameter to whom."""

from .planner import (
    RosterPlan,
    build_centralized_reshard_plan,
    build_descriptors_for_param,
    build_local_reshard_plan,
    determine_source_ranks_for_dst_param,
    finalize_dp_transfers,
    plan_multi_dim_lcm,
    plan_roster,
)
from .utils import (
    ParameterMetadata,
    ReshardPlan,
    ShardingDescriptor,
    TransferOp,
    assign_resolved_name_inplace,
    detect_expert_index_from_param_name,
    extract_param_metadata,
    get_rank_in_group,
    select_src_metadata_balanced,
)

__all__ = [
    "ParameterMetadata",
    "ReshardPlan",
    "RosterPlan",
    "ShardingDescriptor",
    "TransferOp",
    "assign_resolved_name_inplace",
    "build_centralized_reshard_plan",
    "build_descriptors_for_param",
    "build_local_reshard_plan",
    "detect_expert_index_from_param_name",
    "determine_source_ranks_for_dst_param",
    "extract_param_metadata",
    "finalize_dp_transfers",
    "get_rank_in_group",
    "plan_multi_dim_lcm",
    "plan_roster",
    "select_src_metadata_balanced",
]
