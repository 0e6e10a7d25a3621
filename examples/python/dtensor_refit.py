# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Between two DTensor state dicts: FSDP over tensor parallelism to plain tensor parallelism.

    torchrun --nproc-per-node 4 dtensor_refit.py
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, zeros

from ferry.adapters import torch as adapter


def main():
    dist.init_process_group("gloo")
    n = dist.get_world_size()
    training = init_device_mesh("cpu", (n // 2, 2), mesh_dim_names=("dp", "tp"))
    serving = init_device_mesh("cpu", (n,), mesh_dim_names=("tp",))

    torch.manual_seed(1)
    full = {"up.weight": torch.randn(64, 48), "down.weight": torch.randn(48, 64),
            "norm.weight": torch.randn(48)}
    trained = {
        "up.weight": distribute_tensor(full["up.weight"], training, [Shard(1), Shard(0)]),
        "down.weight": distribute_tensor(full["down.weight"], training, [Shard(0), Shard(1)]),
        "norm.weight": distribute_tensor(full["norm.weight"], training, [Shard(0), Replicate()]),
    }
    served = {
        "up.weight": zeros(64, 48, device_mesh=serving, placements=[Shard(0)]),
        "down.weight": zeros(48, 64, device_mesh=serving, placements=[Shard(1)]),
        "norm.weight": torch.zeros(48),  # a plain tensor: a replica on every rank
    }
    result = adapter.refit(trained, served)

    for name, tensor in served.items():
        got = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        assert torch.equal(got, full[name]), name
    if dist.get_rank() == 0:
        print(f"{len(served)} tensors, {result.bytes_moved} bytes between {n} ranks")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
