# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A rank's description of its parameters, and what a plan assigns to a rank.

>>> from ferry.resharding.utils import ParameterMetadata, assign_resolved_name_inplace
>>> meta = ParameterMetadata(
...     "mlp.experts.weight1", (8, 4), "bf16", 2, is_ep=True, num_experts=8, owner_rank=3,
...     expert_parallel_group_ranks=[2, 3],
... )
>>> assign_resolved_name_inplace(meta)
>>> meta.resolved_name, meta.global_expert_index
('mlp.experts.weight5', 5)
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterable, List, Mapping, Optional, Sequence, Tuple, cast

from .. import _ferry
from .._errors import InvalidInput

if TYPE_CHECKING:
    import torch

    from .._ferry import RankPlan

logger = logging.getLogger(__name__)


@dataclass
class TransferOp:
    """One half of a transfer, as one of its two ranks sees it.

    ``my_slice`` and ``peer_slice`` index the shards of this rank and of the other one; they have a
    slice for each dimension. The two halves have the same ``task_id``.
    """

    param_name: str
    peer_rank: int
    is_send: bool
    my_slice: tuple[slice, ...]
    peer_slice: tuple[slice, ...]
    task_id: Optional[int] = None


@dataclass
class ParameterMetadata:
    """A rank's description of one of its parameters.

    ``shape`` is that of its own shard. ``dtype`` is torch's, numpy's or a name ("bf16").
    ``resolved_name`` is the name in the whole model. ``partition_sizes`` are the lengths, along
    ``partition_dim``, of matrices that are packed one after the other in the shard, each of them
    cut by itself.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    element_size: int
    is_tp: bool = False
    partition_dim: int = 0
    partition_stride: int = 1
    is_ep: bool = False
    num_experts: Optional[int] = None
    owner_rank: int = cast(int, None)  # not known
    tensor_parallel_group_ranks: Optional[list[int]] = None
    expert_parallel_group_ranks: Optional[list[int]] = None
    data_parallel_group_ranks: Optional[list[int]] = None
    pipeline_parallel_group_ranks: Optional[list[int]] = None
    resolved_name: Optional[str] = None
    global_expert_index: Optional[int] = None
    partition_sizes: Optional[list[int]] = None


@dataclass
class ShardingDescriptor:
    """How one dimension of a parameter is cut on both sides, and over which ranks."""

    name: str
    dim: int
    src_stride: int
    dst_stride: int
    src_dim_ranks: list[int]
    dst_dim_ranks: list[int]


_SHOWN = 32


class _Ops(List[TransferOp]):
    """A list that is shown as far as anybody reads it."""

    def __repr__(self) -> str:
        if len(self) <= _SHOWN:
            return super().__repr__()
        shown = ", ".join(map(repr, self[:_SHOWN]))
        return f"[{shown}, ... {len(self) - _SHOWN} more]"

    def __reduce__(self) -> Tuple[Any, ...]:
        return list, (list(self),)


def _made(core: "RankPlan", is_send: bool) -> "_Ops":
    n = core.n_sends if is_send else core.n_recvs
    return _Ops(TransferOp(*one) for one in core.ops(is_send, 0, n))


@dataclass
class ReshardPlan:
    """What one rank sends and receives, both in order of task ids.

    The lists of a plan that ferry has built are made when they are first looked at.

    >>> from ferry.resharding.utils import ReshardPlan, TransferOp
    >>> rows = (slice(0, 2), slice(0, 4))
    >>> str(ReshardPlan(send_ops=[TransferOp("w", 1, True, rows, rows)], recv_ops=[]))
    'ReshardPlan(sends=1, recvs=0)'
    """

    send_ops: list[TransferOp]
    recv_ops: list[TransferOp]

    @classmethod
    def _of(cls, core: "RankPlan") -> "ReshardPlan":
        plan = cls.__new__(cls)
        plan.__dict__["_built"] = core
        return plan

    def __getattr__(self, name: str) -> "_Ops":
        """Of a list that nobody has looked at."""
        core = self.__dict__.get("_built")
        if core is None or name not in ("send_ops", "recv_ops"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        made: _Ops = self.__dict__.setdefault(name, _made(core, name == "send_ops"))
        return made

    def __reduce__(self) -> Tuple[Any, ...]:
        return type(self), (self.send_ops, self.recv_ops)

    def _core(self) -> Optional["RankPlan"]:
        """What ferry built, unless somebody has changed a list since, or an op of one."""
        core: Optional["RankPlan"] = self.__dict__.get("_built")
        for name in ("send_ops", "recv_ops"):
            ops = self.__dict__.get(name)
            if core is not None and ops is not None and ops != _made(core, name == "send_ops"):
                return None
        return core

    @property
    def digest(self) -> Optional[str]:
        """The digest of the plan of all ranks, so equal on all; None if ferry did not make it."""
        core = self._core()
        return None if core is None else core.digest

    def __str__(self) -> str:
        core = self._core()
        if core is not None:
            return core.describe().replace("receives=", "recvs=")  # the page's word
        return f"ReshardPlan(sends={len(self.send_ops)}, recvs={len(self.recv_ops)})"


def get_rank_in_group(global_rank: int, group_ranks: list[int]) -> int:
    """The position of a rank in a group.

    >>> from ferry.resharding.utils import get_rank_in_group
    >>> get_rank_in_group(6, [4, 6])
    1
    """
    return _ferry.rank_in_group(global_rank, group_ranks)


def detect_expert_index_from_param_name(param_name: str) -> Optional[int]:
    """The expert's number in the name of a tensor of one expert: the K of ``weightK`` or ``biasK``.

    >>> from ferry.resharding.utils import detect_expert_index_from_param_name
    >>> detect_expert_index_from_param_name("mlp.experts.linear_fc1.weight12")
    12
    >>> detect_expert_index_from_param_name("mlp.linear_fc1.weight") is None
    True
    """
    return _ferry.detect_expert_index(param_name)


def assign_resolved_name_inplace(
    meta: ParameterMetadata,
    *,
    layer_module_prefix_map: Optional[Mapping[str, str]] = None,
    base_name: Optional[str] = None,
) -> None:
    """Sets the metadata's name in the whole model, and the expert's number there.

    The longest prefix of whole dotted parts that the map has is replaced. Then, if the parameter
    is expert parallel and its name has an expert's number, that becomes the number among all
    experts. ``base_name`` stands for the parameter's name.
    """
    prefixes = None if layer_module_prefix_map is None else dict(layer_module_prefix_map)
    base = meta.name if base_name is None else base_name
    meta.resolved_name, meta.global_expert_index = _ferry.resolve_name(meta, base, prefixes)


def extract_param_metadata(
    param: torch.nn.Parameter,
    param_name: str,
    owner_rank: int,
    pg_collection: Any,
    num_experts: Optional[int] = None,
    layer_module_prefix_map: Optional[Mapping[str, str]] = None,
) -> ParameterMetadata:
    """A rank's description of a parameter that it has.

    Of the parameter: shape, dtype and the marks of tensor-parallel layers
    (``tensor_model_parallel``, ``partition_dim``, ``partition_stride``, ``partition_sizes``);
    ``allreduce=False`` marks a parameter of experts. Of ``pg_collection``: ``tp``, ``expt_tp``,
    ``ep``, ``dp`` and ``pp``, each a group of torch.distributed, a list of ranks, or None.
    """
    named = [(param_name, param)]
    prefixes = None if layer_module_prefix_map is None else dict(layer_module_prefix_map)
    return extract_all(named, owner_rank, pg_collection, num_experts, prefixes)[0]


def extract_all(
    named: Iterable[Tuple[str, Any]],
    owner_rank: int,
    pg_collection: Any,
    num_experts: Optional[int] = None,
    prefixes: Optional[dict[str, str]] = None,
) -> List[ParameterMetadata]:
    """Does :func:`extract_param_metadata` of many parameters of one rank, which share their lists."""
    groups = ranks_of_groups(pg_collection)
    fields = _ferry.extract_params(list(named), owner_rank, groups, num_experts, prefixes)
    return [ParameterMetadata(*one) for one in fields]


def ranks_of_groups(pg_collection: Any) -> Tuple[Optional[List[int]], ...]:
    """The ranks of tp, expt_tp, ep, dp and pp, and of the world where there is no pp."""
    names = ("tp", "expt_tp", "ep", "dp", "pp")
    lists = [_ranks_of(getattr(pg_collection, name, None), name) for name in names]
    return (*lists, _world_ranks() if lists[-1] is None else None)


def _ranks_of(group: Any, name: str) -> Optional[List[int]]:
    if group is None:
        return None
    if isinstance(group, (list, tuple, range)):
        return list(group)
    distributed = _distributed()
    if distributed is None:
        raise InvalidInput(
            f"the group {name} of pg_collection is of type {type(group).__name__}: give a group of "
            "torch.distributed, initialised, or a list of ranks"
        )
    return list(distributed.get_process_group_ranks(group))


def _distributed() -> Any:
    """torch.distributed, if the program has initialised it."""
    torch = sys.modules.get("torch")
    distributed = None if torch is None else getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def _world_ranks() -> Optional[List[int]]:
    """All ranks, as far as that is known without making a world."""
    from .. import _world

    distributed = _distributed()
    if distributed is not None:
        return list(range(distributed.get_world_size()))
    if _world._default is not None and not _world._default.closed:
        return list(range(_world._default.size))
    return None


def select_src_metadata_balanced(
    src_meta_list: list[ParameterMetadata], dst_metadata: ParameterMetadata, dst_rank: int
) -> ParameterMetadata:
    """Chooses one of several sources of the same parameter, so that destinations take turns.

    Sources are put into buckets by their data-parallel group. With one bucket it is the first
    source. Else the buckets are in order of their lists of ranks, and the position of ``dst_rank``
    in the destination's data-parallel group chooses one in turn; it is the first source in it.
    """
    sources: Sequence[ParameterMetadata] = list(src_meta_list)
    if not sources:
        raise InvalidInput(
            f'parameter "{dst_metadata.name}": there is no source to choose from',
            tensor=dst_metadata.name,
            ranks=(dst_rank,),
        )
    return sources[_ferry.select_source(sources, dst_metadata, dst_rank)]


_get_rank_in_group = get_rank_in_group
_detect_expert_index_from_param_name = detect_expert_index_from_param_name
