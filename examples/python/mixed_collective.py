# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""All-reduce over tensor-parallel ranks and all-gather over data-parallel ones, in one operation.

    torchrun --nproc-per-node 4 mixed_collective.py

Any even number of processes from 4 on makes groups of two tensor-parallel ranks.
"""

import torch
import torch.distributed as dist

from ferry import MixedCommHandler, MixedCommOp, run_mixed_comm


def main():
    dist.init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    tp = 2  # ranks 0 and 1 are one tensor-parallel group, 2 and 3 the next
    dp = n // tp

    # One node: its ranks are those of the world.
    handler = MixedCommHandler(rank, n, rank, n, 0, 1, tp, dp, 1, 1,
                               torch.bfloat16, torch.device("cpu"), use_autotune=False)
    x_in = torch.full((3, 64), float(rank + 1), dtype=torch.bfloat16)
    x_out = run_mixed_comm(MixedCommOp.ALLREDUCE_ALLGATHER, handler, x_in)
    handler.shutdown()

    # Rows of each group one below the other: what its two ranks gave, added.
    sums = [float(2 * group * tp + 3) for group in range(dp)]
    wanted = torch.cat([torch.full((3, 64), one, dtype=torch.bfloat16) for one in sums])
    assert torch.equal(x_out, wanted), (x_out, wanted)
    if rank == 0:
        print(f"{tuple(x_in.shape)} of {n} ranks to {tuple(x_out.shape)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
