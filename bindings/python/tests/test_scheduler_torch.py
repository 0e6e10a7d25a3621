# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""CommunicationScheduler over torch.distributed, as a script of the page uses it."""

from __future__ import annotations

import unittest

try:
    import torch
except ImportError:
    torch = None

from ferry.resharding.nvshmem_copy_service import nvshmem_types
from ferry.resharding.nvshmem_copy_service.planning.communication_scheduler import (
    CommunicationScheduler,
)
from support import run_ranks


def on_groups(rank, size):
    """On the default group, and then on one of its ranks 0 and 2."""
    torch.distributed.init_process_group("gloo")
    group = torch.distributed.new_group([0, 2])
    following = (rank + 1) % size
    workloads = {following: [nvshmem_types.WorkloadGroup(following, [], 7 + rank)]}
    scheduler = CommunicationScheduler()
    schedule, summaries = scheduler.build_schedule(workloads, rank, size)
    ring = (scheduler.num_iterations, len(schedule[0]),
            [summaries[pe, (pe + 1) % size, 0].total_size for pe in range(size)])
    if rank == 1:
        return ring, None
    pe = rank // 2
    workloads = {1 - pe: [nvshmem_types.WorkloadGroup(1 - pe, [], 5 + pe)] * 2}
    scheduler = CommunicationScheduler(group=group)
    schedule, summaries = scheduler.build_schedule(workloads, pe, 2)
    return ring, (scheduler.num_iterations, sorted(schedule), summaries[1, 0, 1].total_size)


@unittest.skipUnless(torch is not None, "torch is not installed")
class OnTorch(unittest.TestCase):
    def test_on_groups(self):
        ring, pair = (1, 2, [7, 8, 9]), (2, [0, 1], 6)
        self.assertEqual(run_ranks(on_groups, 3), [(ring, pair), (ring, None), (ring, pair)])


if __name__ == "__main__":
    unittest.main()
