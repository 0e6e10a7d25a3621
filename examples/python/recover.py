# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A refit that survives a rank that ends meanwhile; torch is not needed:

ferry launch -n 4 -- python3 examples/python/recover.py [VICTIM]
"""

import os
import sys

import ferry

ROWS, COLUMNS = 8, 1 << 16


def main():
    world = ferry.world()
    me, n = world.rank, world.size
    victim = int(sys.argv[1]) if len(sys.argv) > 1 else None
    spec = {
        "format": "ferry.spec/1",
        "tensors": [{"name": "w", "shape": [ROWS, COLUMNS], "dtype": "u8"}],
        "source": {"mesh": [["dp", 2], ["tp", n // 2]],  # two replicas: one may be lost
                   "rules": [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]},
        "destination": {"mesh": [["tp", n]],
                        "rules": [{"match": "*", "shard": [{"dim": 1, "axis": "tp"}]}]},
    }
    old = bytearray(ROWS * COLUMNS // (n // 2))
    new = bytearray(ROWS * COLUMNS // n)

    with ferry.Refit({"w": old}, {"w": new}, spec) as refit:
        version = 1
        while version <= 3:
            old[:] = bytes([version]) * len(old)  # a step of training
            if me == victim and version == 2:
                os._exit(0)  # without a word
            try:
                version = refit.run().version + 1
            except (ferry.PeerLost, ferry.Timeout, ferry.Aborted):
                version = refit.recover().next  # what the next run makes, on all ranks

    assert new == bytes([3]) * len(new)
    print(f"rank {me}: version 3 is whole, on {world.size} ranks")


if __name__ == "__main__":
    main()
