# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A Megatron-Core model as what a trainer sends from: its shards where they lie, under the names of
Hugging Face. Nothing is gathered, and nothing is copied."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from .. import _ferry
from .._errors import InvalidInput, Unsupported
from ..names import Names
from ..resharding.planner import describe_module
from ..resharding.utils import ParameterMetadata, _distributed
from ._cut import Run, parts_of
from ._updates import Half, Tensors

if TYPE_CHECKING:
    from .._side import Side

_VOCABULARY = ("word_embeddings.weight", "output_layer.weight")  # with rows behind its last word
_HEAD = "output_layer.weight"  # on a last stage that has the embedding a second time


class Target(NamedTuple):
    """A whole tensor of Megatron-Core, and the boxes of those of Hugging Face that it is made of."""

    name: str
    shape: List[int]
    holds: List[Dict[str, Any]]


def unwrapped(module: Any) -> Any:
    """Without what holds a model and nothing else, as data parallelism and mixed precision do."""
    while [name for name, _ in module.named_children()] == ["module"]:
        module = module.module
    return module


def runs_of(meta: ParameterMetadata, is_gated: bool) -> List[Run]:
    """What a shard has of the dimension that is cut: of each matrix that is packed in it, this rank's
    part. ``is_gated`` marks two halves of which each is cut by itself, whether it says so or not.

    >>> from ferry.resharding import ParameterMetadata
    >>> runs_of(ParameterMetadata("w", (4, 3), "f32", 4, is_tp=True, partition_stride=2,
    ...                           owner_rank=7, tensor_parallel_group_ranks=[6, 7]), False)
    [(2, 2, 0), (6, 2, 2)]
    """
    extent = meta.shape[meta.partition_dim] if meta.shape else 1
    ranks = meta.tensor_parallel_group_ranks if meta.is_tp else None
    n, place = (len(ranks), ranks.index(meta.owner_rank)) if ranks else (1, 0)
    packed = meta.partition_sizes
    if not packed:
        n_packed = 2 if is_gated else meta.partition_stride
        packed = [extent // n_packed] * n_packed
    starts = [0, *itertools.accumulate(packed)]
    return [(n * at + place * length, length, at) for at, length in zip(starts, packed)]


class MegatronSource:
    """What :class:`ferry.adapters.vllm_engine.FerryTrainer` takes as its ``source`` for a model of
    Megatron-Core. Made on all ranks of the trainer together.

    ``model`` is this rank's module, or the list of its chunks; what wraps it is taken off. Its groups
    are those of its ``pg_collection``. ``config`` is the model's at Hugging Face: a dict, one of
    transformers, or a path; ``family`` and ``naming`` are those of :class:`ferry.Names`, found where
    they are not given. Tensors that are transposed, as experts of GPT-OSS are, cannot be sent from
    where they lie.
    """

    def __init__(
        self, model: Any, config: Any, *, family: Any = None, naming: Optional[str] = None
    ) -> None:
        chunks = list(model) if isinstance(model, (list, tuple)) else [model]
        self._chunks = [unwrapped(one) for one in chunks]
        dist = _distributed()
        self._rank = 0 if dist is None else int(dist.get_rank())
        self._described = [self._describe(one) for one in self._chunks]
        dtype = self._usual_dtype()
        names = Names(config, family=family, dtype=dtype)
        whole = [meta.resolved_name or meta.name for of_chunk in self._described for meta in of_chunk]
        side = names.side("hf", naming or names.find(whole)).to_dict()
        self._targets = {
            one["parameter"]: Target(one["parameter"], one["shape"], one["holds"])
            for one in side["boxes"]
        }
        found = {one.name: (one.shape, one.dtype) for one in names.tensors("hf")}
        self._dtypes = self._told_dtypes({name: dtype for name, (_, dtype) in found.items()}, dist)
        self.tensors: Tensors = [
            {"name": name, "shape": list(shape), "dtype": self._dtypes[name]}
            for name, (shape, _) in found.items()
        ]

    def _describe(self, module: Any) -> List[ParameterMetadata]:
        experts = getattr(getattr(module, "config", None), "num_moe_experts", None)
        return describe_module(module, self._rank, experts, "trainer's")

    def _usual_dtype(self) -> Any:
        """That of the config, which all stages have alike."""
        told = getattr(getattr(self._chunks[0], "config", None), "params_dtype", None)
        first = next((meta.dtype for of_chunk in self._described for meta in of_chunk), None)
        return told if told is not None else first

    def _told_dtypes(self, usual: Dict[str, str], dist: Any) -> Dict[str, str]:
        """By tensor: what is usual, or what a rank has that has it otherwise."""
        own: Dict[str, str] = {}
        for _, meta, target in self._shards():
            dtype = _ferry.dtype_name(meta.dtype)
            sources = {box["tensor"] for box in target.holds}
            own.update((source, dtype) for source in sources if usual[source] != dtype)
        said: List[Any] = [own]
        if dist is not None:
            said = [None] * dist.get_world_size()
            dist.all_gather_object(said, own)
        return {**usual, **{name: dtype for of_rank in said for name, dtype in of_rank.items()}}

    def _shards(self) -> Iterator[Tuple[str, ParameterMetadata, Target]]:
        """This rank's tensors that are made of some of Hugging Face, by names of their own."""
        for number, (chunk, listed) in enumerate(zip(self._chunks, self._described)):
            parameters = {name for name, _ in chunk.named_parameters()}
            for meta in listed:
                name = meta.resolved_name or meta.name
                if name in self._targets:
                    own = meta.name if len(self._chunks) == 1 else f"{number}.{meta.name}"
                    yield own, meta, self._targets[name]
                elif meta.name in parameters and name != _HEAD:
                    raise InvalidInput(
                        f'parameter "{name}" on rank {self._rank} is none of the model that the config '
                        "describes: give the config of this model, or its naming",
                        tensor=name,
                        ranks=(self._rank,),
                    )

    def local_half(self) -> Half:
        """The side of this rank, and the memory that it is sent from."""
        from .._side import Side

        side = Side()
        for own, meta, target in self._shards():
            self._add(side, own, meta, target)
        sent = {entry["parameter"] for entry in side.to_dict()["boxes"]}

        def look() -> Dict[str, Any]:
            return {name: one for name, one in self._memory().items() if name in sent}

        memory = look()
        for name, tensor in memory.items():
            if not tensor.is_contiguous():
                raise Unsupported(
                    f'parameter "{name}" is not contiguous on this rank: make it so before it is sent',
                    tensor=name,
                )
        return Half(side, memory, look)

    def _memory(self) -> Dict[str, Any]:
        found: Dict[str, Any] = {}
        for number, chunk in enumerate(self._chunks):
            before = "" if len(self._chunks) == 1 else f"{number}."
            for name, tensor in (*chunk.named_buffers(), *chunk.named_parameters()):
                found[before + name] = tensor.detach()
        return found

    def _add(self, side: "Side", own: str, meta: ParameterMetadata, target: Target) -> None:
        """The boxes of a shard: what its runs and the boxes of the whole tensor have in common."""
        is_gated = "linear_fc1" in own and len(target.holds) == 2
        runs, cut = runs_of(meta, is_gated), meta.partition_dim if meta.is_tp else 0
        self._check_shape(meta, target, cut)
        parts = [
            part
            for run, box in itertools.product(runs, target.holds)
            for part in parts_of(box, target.shape, cut, run, meta.shape)
        ]
        self._check_dtype(meta, target)
        if not parts:
            return  # rows behind the last word of the vocabulary
        elements = math.prod(meta.shape)
        is_partial = sum(part.elements for part in parts) < elements
        side.add_parameter(own, None, elements, dtype=meta.dtype, partial=is_partial)
        for part in parts:
            side.add_box(*part)

    def _check_dtype(self, meta: ParameterMetadata, target: Target) -> None:
        own, told = _ferry.dtype_name(meta.dtype), self._dtypes[target.holds[0]["tensor"]]
        if own != told:
            raise InvalidInput(
                f'parameter "{target.name}" is of {own} on rank {self._rank}, and of {told} on another '
                "one: give it one type on all ranks",
                tensor=target.name,
                ranks=(self._rank,),
            )

    def _check_shape(self, meta: ParameterMetadata, target: Target, cut: int) -> None:
        n = len(meta.tensor_parallel_group_ranks or ()) if meta.is_tp else 1
        whole = _moved(meta.shape, cut, meta.shape[cut] * max(1, n)) if meta.shape else []
        is_padded = target.name.endswith(_VOCABULARY) and whole[0] > target.shape[0]
        if whole != list(target.shape) and not (is_padded and whole[1:] == list(target.shape[1:])):
            raise InvalidInput(
                f'parameter "{target.name}" on rank {self._rank} is a shard of {whole}, and the config '
                f"makes it {list(target.shape)}: give the config of this model",
                tensor=target.name,
                ranks=(self._rank,),
            )


def _moved(numbers: Sequence[int], at: int, value: int) -> List[int]:
    return [*numbers[:at], value, *numbers[at + 1 :]]
