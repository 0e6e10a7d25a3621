# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The types of the copy service and its scheduler. PEs are ranks, sizes are bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List, Optional

MAX_SEGMENT_SIZE = 256 * 1024 * 1024
MAX_TASKS_PER_BATCH = 10000


@dataclass
class SendRequest:
    """Bytes ``[src_pos, src_pos + size)`` of a tensor go to a PE."""

    task_id: int
    src_tensor: Any
    src_pos: int
    size: int
    dest_pe: int


@dataclass
class ReceiveRequest:
    """Bytes ``[dest_pos, dest_pos + size)`` of a tensor come from a PE."""

    task_id: int
    dest_tensor: Any
    dest_pos: int
    size: int
    src_pe: int


@dataclass
class WorkloadGroup:
    """Sends to one PE that travel together: one batch."""

    dest_pe: int
    tasks: List[SendRequest] = field(default_factory=list)
    total_size: int = 0


@dataclass
class WorkloadSummary:
    """The content of a batch, for PEs that do not send it."""

    total_size: int
    task_ids: List[int]
    task_sizes: List[int]


@dataclass
class ScheduledBatch:
    """A group of a PE, number ``batch_index`` of those to ``dest_pe``, and its iteration.

    ``iteration`` is -1 until it is assigned. ``tasks`` are known to the sender only.
    """

    src_pe: int
    dest_pe: int
    batch_index: int
    iteration: int
    gpu_plan: Any = None
    tasks: List[SendRequest] = field(default_factory=list)
    total_size: int = 0
    tasks_summary: Optional[WorkloadSummary] = None


@dataclass
class TransferMetadata:
    """Pointers and sizes of tasks, as a device would want them."""

    ptrs: Any
    sizes: Any
    num_tasks: int
    total_size: int
