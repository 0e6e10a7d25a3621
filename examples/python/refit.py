# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A matrix from row shards to column shards, again and again, while its values change.

    torchrun --nproc-per-node 4 refit.py
"""

import torch

import ferry

ROWS, COLUMNS = 1024, 4096


def main():
    world = ferry.world()  # of torchrun's environment
    rank, n = world.rank, world.size
    spec = {
        "format": "ferry.spec/1",
        "tensors": [{"name": "w", "shape": [ROWS, COLUMNS], "dtype": "bf16"}],
        "source": {"mesh": [["tp", n]],
                   "rules": [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]},
        "destination": {"mesh": [["tp", n]],
                        "rules": [{"match": "*", "shard": [{"dim": 1, "axis": "tp"}]}]},
    }
    full = (torch.arange(ROWS * COLUMNS) % 251).reshape(ROWS, COLUMNS).bfloat16()
    rows = full.chunk(n, dim=0)[rank].clone()
    columns = torch.zeros(ROWS, COLUMNS // n, dtype=torch.bfloat16)

    with ferry.Refit({"w": rows}, {"w": columns}, spec) as refit:  # plans and prepares once
        for _ in range(3):
            rows += 1  # a step of training
            result = refit.run()

    assert torch.equal(columns, (full + 3).chunk(n, dim=1)[rank])
    if rank == 0:
        print(f"version {result.version}: {result.bytes_moved} bytes between {n} ranks, "
              f"{result.bytes_local} stayed, {result.gbytes_per_s:.1f} GB/s")


if __name__ == "__main__":
    main()
