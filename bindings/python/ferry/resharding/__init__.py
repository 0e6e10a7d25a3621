# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Planning from the parameters of a trainer: which rank sends which slice of which parameter to
which.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from .nvshmem_copy_service import CommunicationScheduler as CommunicationScheduler
    from .nvshmem_copy_service import RemoteCopyService as RemoteCopyService
    from .nvshmem_copy_service.nvshmem_types import ScheduledBatch as ScheduledBatch
    from .nvshmem_copy_service.nvshmem_types import WorkloadGroup as WorkloadGroup
    from .nvshmem_copy_service.nvshmem_types import WorkloadSummary as WorkloadSummary

__all__ = [
    "CommunicationScheduler",
    "ParameterMetadata",
    "RemoteCopyService",
    "ReshardPlan",
    "RosterPlan",
    "ScheduledBatch",
    "ShardingDescriptor",
    "TransferOp",
    "WorkloadGroup",
    "WorkloadSummary",
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

_SERVICE = __name__ + ".nvshmem_copy_service"
_PLACES = {  # what a planner alone does not load
    "CommunicationScheduler": _SERVICE,
    "RemoteCopyService": _SERVICE,
    "ScheduledBatch": _SERVICE + ".nvshmem_types",
    "WorkloadGroup": _SERVICE + ".nvshmem_types",
    "WorkloadSummary": _SERVICE + ".nvshmem_types",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value
