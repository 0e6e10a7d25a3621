# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Small models that look like a trainer's, cut in every way, with the answer known independently.

A shard is a dict from its coordinates to numbers that are unique in the whole model, so whoever
applies a plan sees at once whether each element came from where it belongs.
"""

from __future__ import annotations

import itertools
import random
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

Shard = Dict[Tuple[int, ...], int]


class Tensor(NamedTuple):
    """A parameter of the whole model. ``blocks`` are lengths of packed matrices along ``dim``."""

    name: str
    shape: Tuple[int, ...]
    dim: Optional[int] = None  # the one that tensor parallelism cuts
    stride: int = 1
    blocks: Tuple[int, ...] = ()
    is_expert: bool = False
    dtype: str = "f32"
    is_buffer: bool = False

    def held(self, part: int, n_parts: int) -> List[range]:
        """Which pieces of ``dim``, in order, a part of the tensor-parallel group has."""
        if self.blocks:
            starts = [sum(self.blocks[:i]) for i in range(len(self.blocks))]
            return [range(start + part * (n // n_parts), start + (part + 1) * (n // n_parts))
                    for start, n in zip(starts, self.blocks)]
        piece = self.shape[self.dim] // (n_parts * self.stride)
        return [range((k * n_parts + part) * piece, (k * n_parts + part + 1) * piece)
                for k in range(self.stride)]

    def shard(self, part: int, n_parts: int, number: int) -> Shard:
        """The part, by the whole model's coordinates; number tells tensors apart."""
        axes = [list(range(n)) for n in self.shape]
        if self.dim is not None:
            axes[self.dim] = [i for piece in self.held(part, n_parts) for i in piece]
        places = itertools.product(*(range(len(axis)) for axis in axes))
        values = itertools.product(*axes)
        sizes = list(itertools.accumulate([*self.shape[1:], 1][::-1], lambda a, b: a * b))[::-1]
        return {place: number * 10**6 + sum(i * s for i, s in zip(value, sizes))
                for place, value in zip(places, values)}

    def local_shape(self, n_parts: int) -> Tuple[int, ...]:
        shape = list(self.shape)
        if self.dim is not None:
            shape[self.dim] //= n_parts
        return tuple(shape)


def tensors_of_layer(rng: random.Random, n_experts: int) -> List[Tensor]:
    tensors = [
        Tensor("norm.weight", (rng.choice([4, 6]),), dtype="bf16"),
        Tensor("attention.qkv.weight", (36, 3), 0, rng.choice([1, 3])),
        Tensor("attention.proj.weight", (3, 12), 1),
        Tensor("mlp.fc1.weight", (48, 2), 0, 2),
        Tensor("mixer.in_proj.weight", (36, 2), 0, 1, (24, 12)),
        Tensor("mlp.scale", (), dtype="f64"),
        Tensor("mlp.router.bias", (5,), is_buffer=True),
    ]
    tensors += [Tensor(f"mlp.experts.fc1.weight{e}", (12, 2), 0, is_expert=True)
                for e in range(n_experts)]
    tensors += [Tensor(f"mlp.experts.fc1.bias{e}", (7,), is_expert=True) for e in range(n_experts)]
    return tensors


class Parameter:
    """Has what a framework's parameter has: unlike torch's it needs no framework."""

    def __init__(self, tensor: Tensor, n_parts: int) -> None:
        self.shape = tensor.local_shape(n_parts)
        self.dtype = tensor.dtype
        self.itemsize = {"f32": 4, "bf16": 2, "f64": 8}[tensor.dtype]
        if tensor.dim is None:
            self.partition_dim = -1  # as Megatron's layers leave it
        else:
            self.tensor_model_parallel = True
            self.partition_dim = tensor.dim
            self.partition_stride = tensor.stride
        if tensor.blocks:
            self.partition_sizes = [n // n_parts for n in tensor.blocks]
        if tensor.is_expert:
            self.allreduce = False

    def element_size(self) -> int:
        return self.itemsize


class Module:
    """A tree of modules as torch has them, as far as planning looks."""

    def __init__(self) -> None:
        self.children: Dict[str, Module] = {}
        self.parameters: Dict[str, Any] = {}
        self._buffers: Dict[str, Any] = {}
        self._non_persistent_buffers_set = set()

    def child(self, path: List[str]) -> "Module":
        module = self
        for part in path:
            module = module.children.setdefault(part, Module())
        return module

    def named_modules(self, prefix: str = "") -> Iterator[Tuple[str, "Module"]]:
        yield prefix, self
        for name, module in self.children.items():
            yield from module.named_modules(f"{prefix}.{name}" if prefix else name)

    def named_parameters(self, recurse: bool = True) -> Iterator[Tuple[str, Any]]:
        for prefix, module in self.named_modules():
            for name, parameter in module.parameters.items():
                yield (f"{prefix}.{name}" if prefix else name), parameter


class Groups:
    pass


class Layout(NamedTuple):
    """Ranks first, first + 1, ...: tensor parallel fastest, then expert, data, pipeline."""

    first: int
    tp: int
    ep: int
    dp: int
    pp: int
    layers: List[List[Tensor]]
    n_experts: int

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.tp * self.ep * self.dp * self.pp)

    def place(self, rank: int) -> Tuple[int, int, int, int]:
        rest, tp = divmod(rank - self.first, self.tp)
        rest, ep = divmod(rest, self.ep)
        pp, dp = divmod(rest, self.dp)
        return tp, ep, dp, pp

    def groups(self, rank: int) -> Groups:
        tp, ep, dp, pp = self.place(rank)
        groups = Groups()
        alike = {r: self.place(r) for r in self.ranks}
        groups.tp = [r for r, p in alike.items() if p[1:] == (ep, dp, pp)]
        groups.expt_tp = groups.tp
        groups.ep = [r for r, p in alike.items() if (p[0], *p[2:]) == (tp, dp, pp)]
        groups.dp = [r for r, p in alike.items() if (p[0], p[3]) == (tp, pp)]
        groups.pp = [r for r, p in alike.items() if p[:3] == (tp, ep, dp)]
        return groups

    def parameters(self, rank: int) -> Iterator[Tuple[str, str, Tensor, int]]:
        """(local name, name in the whole model, tensor, its number) of what a rank has."""
        _, ep, _, pp = self.place(rank)
        per_stage, per_rank = len(self.layers) // self.pp, self.n_experts // self.ep
        for local in range(per_stage):
            layer = pp * per_stage + local
            for number, tensor in enumerate(self.layers[layer]):
                name = tensor.name
                if tensor.is_expert:
                    stem = name.rstrip("0123456789")
                    expert = int(name[len(stem):])
                    if expert // per_rank != ep:
                        continue
                    name = f"{stem}{expert % per_rank}"
                whole = f"decoder.layers.{layer}.{tensor.name}"
                yield f"decoder.layers.{local}.{name}", whole, tensor, layer * 100 + number

    def module(self, rank: int, make: Any = Parameter) -> Optional[Any]:
        if rank not in self.ranks:
            return None
        root = Module()
        for local, whole, tensor, _ in self.parameters(rank):
            *path, leaf = local.split(".")
            module = root.child(path)
            kept = module._buffers if tensor.is_buffer else module.parameters
            kept[leaf] = make(tensor, self.tp)
            root.child(path[:3]).layer_number = int(whole.split(".")[2]) + 1
        root.pg_collection = self.groups(rank)
        return root

    def shards(self, rank: int) -> Dict[str, Shard]:
        """What a rank holds, by its own names."""
        if rank not in self.ranks:
            return {}
        tp = self.place(rank)[0]
        return {local: tensor.shard(tp, self.tp, number)
                for local, _, tensor, number in self.parameters(rank)}


def random_layouts(rng: random.Random, most_ranks: int = 24) -> Tuple[Layout, Layout, int, int]:
    """(source, destination, ranks of the world, experts)"""
    n_experts = rng.choice([0, 4])
    layers = [tensors_of_layer(rng, n_experts) for _ in range(rng.choice([2, 4]))]
    sides = []
    for _ in range(2):
        sizes = (99,) * 4
        while sizes[0] * sizes[1] * sizes[2] * sizes[3] > most_ranks:
            sizes = (rng.choice([1, 2, 3, 4]), rng.choice([1, 2, 4] if n_experts else [1]),
                     rng.choice([1, 2, 3]), rng.choice([1, 2]))
        sides.append(sizes)
    gap = rng.choice([0, len(range(sides[0][0] * sides[0][1] * sides[0][2] * sides[0][3]))])
    src = Layout(0, *sides[0], layers, n_experts)
    dst = Layout(gap, *sides[1], layers, n_experts)
    return src, dst, max(src.ranks.stop, dst.ranks.stop), n_experts


def copy_box(src: Shard, src_slices: Any, dst: Shard, dst_slices: Any) -> None:
    """What an executor of plans does with one op."""
    def places(slices: Any, shard: Shard) -> List[Tuple[int, ...]]:
        lengths = [max(place[d] for place in shard) + 1 for d in range(len(next(iter(shard))))]
        return list(itertools.product(*(range(*s.indices(n)) for s, n in zip(slices, lengths))))

    froms, tos = places(src_slices, src), places(dst_slices, dst)
    assert len(froms) == len(tos)
    for a, b in zip(froms, tos):
        dst[b] = src[a]


def execute(plans: Any, src: Layout, dst: Layout) -> Dict[int, Dict[str, Shard]]:
    """Applies the receives of all ranks' plans; the sender's names come from its own ops."""
    have = {rank: src.shards(rank) for rank in range(len(plans))}
    want = {rank: {name: dict.fromkeys(shard, -1) for name, shard in dst.shards(rank).items()}
            for rank in range(len(plans))}
    sends = {(op.task_id, rank): op for rank, plan in enumerate(plans) for op in plan.send_ops}
    for rank, plan in enumerate(plans):
        for op in plan.recv_ops:
            sent = sends.pop((op.task_id, op.peer_rank))
            assert (sent.peer_rank, sent.is_send, op.is_send) == (rank, True, False)
            assert (sent.my_slice, sent.peer_slice) == (op.peer_slice, op.my_slice)
            copy_box(have[op.peer_rank][sent.param_name], sent.my_slice,
                     want[rank][op.param_name], op.my_slice)
    assert not sends, "a send that nobody receives"
    return want
