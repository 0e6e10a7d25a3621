# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""CommunicationScheduler against the scheduler of megatron-core, over torch.distributed."""

from __future__ import annotations

import importlib
import importlib.util
import unittest

try:
    import torch
except ImportError:
    torch = None

from ferry.resharding.nvshmem_copy_service.planning.communication_scheduler import (
    CommunicationScheduler,
)
from support import run_ranks
from test_scheduler import workloads_of

REFERENCE = "megatron.core.resharding.nvshmem_copy_service"


def plain(outcome):
    schedule, summaries = outcome
    rows = [(i, b.src_pe, b.dest_pe, b.batch_index) for i in schedule for b in schedule[i]]
    return sorted(rows), {key: vars(summary) for key, summary in summaries.items()}


def reference_scheduler():
    try:
        planning = importlib.import_module(REFERENCE + ".planning.communication_scheduler")
        return planning.CommunicationScheduler()
    except ImportError:  # some of its parts want CUDA's packages
        return None


def both(rank, size):
    torch.distributed.init_process_group("gloo")
    reference = reference_scheduler()
    n_compared = n_batches = 0
    for seed in range(8):
        workloads = workloads_of(seed, rank, size)
        scheduler = CommunicationScheduler(rule="first-fit")
        found = plain(scheduler.build_schedule(workloads, rank, size))
        n_batches += len(found[0])
        if reference is not None:
            assert plain(reference.build_schedule(workloads, rank, size)) == found
            assert reference.num_iterations == scheduler.num_iterations
            n_compared += 1
        fewest = CommunicationScheduler()
        fewest.build_schedule(workloads, rank, size)
        assert fewest.num_iterations <= scheduler.num_iterations
    return n_compared, n_batches > 0


@unittest.skipUnless(torch is not None and importlib.util.find_spec("megatron") is not None,
                     "megatron-core is not installed")
class OnMegatron(unittest.TestCase):
    def test_as_the_reference(self):
        outcomes = run_ranks(both, 2)
        if outcomes[0][0] == 0:
            self.skipTest("the scheduler of megatron-core cannot be loaded here")
        self.assertEqual(outcomes, [(8, True)] * 2)


if __name__ == "__main__":
    unittest.main()
