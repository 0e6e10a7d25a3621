# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A server's own loader is traced, and a trainer's tensors go where it would put them.

    python trace_loader.py
"""

import torch
from torch import nn

import ferry


class Attention(nn.Module):
    """Of a server with two ranks: this one's heads of q, k and v are one matrix."""

    def __init__(self, rank):
        super().__init__()
        self.rank = rank
        self.qkv = nn.Parameter(torch.zeros(16 + 4 + 4, 32, dtype=torch.bfloat16))

    def load_weights(self, weights):
        rows = {"q_proj": (0, 16), "k_proj": (16, 4), "v_proj": (20, 4)}
        for name, tensor in weights:
            begin, n = rows[name]
            self.qkv.data[begin:begin + n].copy_(tensor[self.rank * n:(self.rank + 1) * n])


def main():
    shapes = {"q_proj": (32, 32), "k_proj": (8, 32), "v_proj": (8, 32)}
    with torch.device("meta"):
        model = Attention(rank=1)
    trace = ferry.trace(model, {name: (shape, "bf16") for name, shape in shapes.items()})
    print(trace.table())

    spec = {
        "format": "ferry.spec/1",
        "tensors": trace.tensors,
        "source": {"mesh": [], "rules": [{"match": "*"}]},
        "destination": trace.side(ranks=0),
    }
    trained = {name: torch.randn(shape).bfloat16() for name, shape in shapes.items()}
    server = Attention(rank=1)
    ferry.refit(trained, trace.memory(server), spec)

    loaded = Attention(rank=1)
    loaded.load_weights(trained.items())
    assert torch.equal(server.qkv, loaded.qkv)
    print("every element is where the loader puts it")


if __name__ == "__main__":
    main()
