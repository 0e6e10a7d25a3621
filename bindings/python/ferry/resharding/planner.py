# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Plans from modules, and from each rank's description of its own parameters.

In a running job every rank calls :func:`build_centralized_reshard_plan` with its modules. A single
process that has the metadata of all ranks can plan with :func:`plan_roster`:

>>> from ferry.resharding import ParameterMetadata, plan_roster
>>> def rows(rank, ranks):
...     return [ParameterMetadata("w", (8 // len(ranks), 4), "f32", 4, is_tp=True,
...                               owner_rank=rank, tensor_parallel_group_ranks=ranks)]
>>> roster = plan_roster([rows(0, [0]), None, None], [None, rows(1, [1, 2]), rows(2, [1, 2])])
>>> [(op.peer_rank, op.my_slice[0]) for op in roster.for_rank(0).send_ops]
[(1, slice(0, 4, None)), (2, slice(4, 8, None))]
"""

from __future__ import annotations

import logging
import re
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

from .. import _errors, _ferry
from .._errors import Error, InvalidInput
from .._exchange import agree
from .._repr import never_raises
from .utils import (
    ParameterMetadata,
    ReshardPlan,
    ShardingDescriptor,
    _distributed,
    extract_all,
    ranks_of_groups,
)

if TYPE_CHECKING:
    import torch

    from .._ferry import Model

logger = logging.getLogger(__name__)

Transfer = Tuple[int, Tuple[slice, ...], Tuple[slice, ...]]
Metadata = Sequence[ParameterMetadata]
ByRank = Union[Sequence[Optional[Metadata]], Mapping[int, Optional[Metadata]]]


def build_descriptors_for_param(
    src_metadata: ParameterMetadata, dst_metadata: ParameterMetadata
) -> list[ShardingDescriptor]:
    """How a parameter is cut on both sides: one descriptor, or none if no side cuts it.

    The number of ranks times the local length must be equal on both sides, so that a parameter that
    is marked as cut, but is replicated, is not taken for shards: :class:`ferry.InvalidPlan`.
    """
    found = _ferry.build_descriptors(src_metadata, dst_metadata)
    if found is None:
        return []
    src_ranks = src_metadata.tensor_parallel_group_ranks
    dst_ranks = dst_metadata.tensor_parallel_group_ranks
    return [ShardingDescriptor(*found, list(src_ranks or ()), list(dst_ranks or ()))]


def plan_multi_dim_lcm(
    param_name: str,
    src_metadata: ParameterMetadata,
    dst_metadata: ParameterMetadata,
    descriptors: list[ShardingDescriptor],
    my_global_rank: int,
) -> list[Transfer]:
    """What a rank receives of a parameter that is cut on some side: (source rank, its slice, my
    slice).

    It takes exactly one descriptor, which names the groups. Each side may have a stride, or packed
    blocks. Slices are as long as they can be, in the order of the destination.

    >>> from ferry.resharding import ParameterMetadata, build_descriptors_for_param
    >>> from ferry.resharding import plan_multi_dim_lcm
    >>> src = ParameterMetadata("w", (4,), "f32", 4, is_tp=True,
    ...                         tensor_parallel_group_ranks=[0, 1])
    >>> dst = ParameterMetadata("w", (8,), "f32", 4, is_tp=True,
    ...                         tensor_parallel_group_ranks=[2])
    >>> for transfer in plan_multi_dim_lcm("w", src, dst, build_descriptors_for_param(src, dst), 2):
    ...     print(transfer)
    (0, (slice(0, 4, None),), (slice(0, 4, None),))
    (1, (slice(0, 4, None),), (slice(4, 8, None),))
    """
    listed = list(descriptors)
    known = len(listed) == 1 and isinstance(listed[0], ShardingDescriptor)
    if known and my_global_rank >= 0 and my_global_rank not in listed[0].dst_dim_ranks:
        return []  # who is not of the destination receives nothing
    return _ferry.transfers(listed, param_name, src_metadata, dst_metadata, my_global_rank)


def finalize_dp_transfers(
    param_name: str,
    src_metadata: ParameterMetadata,
    dst_metadata: ParameterMetadata,
    my_global_rank: int,
) -> list[Transfer]:
    """What a rank receives of a parameter that is cut on no side: all of it, from one rank.

    A rank outside of the destination's data-parallel group receives nothing. A rank in the source's
    group sends to itself; otherwise the ranks of that group take turns by the receiver's number.
    """
    return _ferry.transfers(
        "replicated", param_name, src_metadata, dst_metadata, my_global_rank
    )


def determine_source_ranks_for_dst_param(
    param_name: str,
    src_metadata: ParameterMetadata,
    dst_metadata: ParameterMetadata,
    my_global_rank: int,
) -> list[Transfer]:
    """Calls the one of the two above that fits the parameter."""
    return _ferry.transfers("any", param_name, src_metadata, dst_metadata, my_global_rank)


def build_centralized_reshard_plan(
    src_module: Optional[torch.nn.Module],
    dst_module: Optional[torch.nn.Module],
    num_experts: Optional[int] = None,
    *,
    exchange: Any = None,
    replica: str = "balanced",
    subset: Optional[str] = None,
    buffers: bool = True,
) -> ReshardPlan:
    """Collective: rank 0 plans for all ranks, and each gets its own sends and receives.

    Either module may be None, on any rank: a rank may have only the destination, only the source,
    or nothing. A module has ``named_parameters()`` and ``pg_collection``, the groups of its rank;
    modules with a ``layer_number`` are numbered over all pipeline stages. Persistent buffers are
    planned like parameters.

    The ranks are those of torch.distributed's default group, if it is initialised, otherwise those
    of :func:`ferry.world`. ``exchange`` replaces them: an object with ``rank``, ``size`` and
    ``all_gather(bytes)``. ``replica`` chooses the sender where several ranks hold the same:
    "balanced" keeps the busiest sender's bytes low, "seed" is the rule of
    :func:`~ferry.resharding.utils.select_src_metadata_balanced`. ``subset`` is a pattern: only
    destination parameters that match it. If a rank fails, all fail with the same message.
    """
    options = (exchange, replica, subset, buffers)
    return _build(True, src_module, dst_module, num_experts, *options)


def build_local_reshard_plan(
    src_module: Optional[torch.nn.Module],
    dst_module: Optional[torch.nn.Module],
    num_experts: Optional[int] = None,
    *,
    exchange: Any = None,
    replica: str = "balanced",
    subset: Optional[str] = None,
    buffers: bool = True,
) -> ReshardPlan:
    """The same plan, but every rank gathers all descriptions and computes its own part."""
    options = (exchange, replica, subset, buffers)
    return _build(False, src_module, dst_module, num_experts, *options)


def _build(
    centralized: bool,
    src_module: Any,
    dst_module: Any,
    num_experts: Optional[int],
    exchange: Any,
    replica: str,
    subset: Optional[str],
    buffers: bool,
) -> ReshardPlan:
    talk = _default_exchange() if exchange is None else exchange
    if not all(hasattr(talk, name) for name in ("rank", "size", "all_gather")):
        raise InvalidInput(
            f"exchange is of type {type(talk).__name__}: give an object with rank, size, "
            "all_gather, gather and scatter, or None for the default group of torch.distributed or "
            "for ferry.world()"
        )
    models: List[Optional["Model"]] = [None, None]
    names: Set[str] = set()
    failure: Optional[Exception] = None
    try:
        for i, (side, module) in enumerate((("source", src_module), ("destination", dst_module))):
            if module is not None:
                listed = describe_module(module, talk.rank, num_experts, side, buffers)
                names.update(m.resolved_name or m.name for m in listed)
                models[i] = _ferry.make_model(listed, talk.rank, num_experts)
    except Exception as error:
        failure = error
    agree(talk, failure)
    try:
        core = _ferry.build_rank_plan(models[0], models[1], talk, centralized, replica, subset)
    except Error as error:
        raise _named(error, names)
    logger.info("rank %d: %d sends, %d receives", talk.rank, core.n_sends, core.n_recvs)
    return ReshardPlan._of(core)


def _default_exchange() -> Any:
    from .._exchange import TorchExchange, WorldExchange

    if _distributed() is not None:
        return TorchExchange()
    from .._world import world

    return WorldExchange(world())


def _named(error: Error, names: Iterable[str]) -> Error:
    """The library's sentences begin with the name of the parameter, or have it in quotes."""
    if error.tensor is None:
        known = set(names)
        for word in re.findall(r'[^\s",:]+', str(error)):
            if word in known:
                error.tensor = word
                break
    return error


def describe_module(
    module: Any,
    rank: int,
    num_experts: Optional[int] = None,
    side: str = "given",
    buffers: bool = True,
) -> List[ParameterMetadata]:
    """A rank's description of all parameters of a module, and of its persistent buffers.

    The module's ``pg_collection`` has the groups of the rank.
    """
    if not callable(getattr(module, "named_parameters", None)):
        raise InvalidInput(
            f"the {side} module is of type {type(module).__name__}: give a torch.nn.Module, or "
            "None where this rank has none",
            ranks=(rank,),
        )
    groups = getattr(module, "pg_collection", None)
    if groups is None:
        raise InvalidInput(
            f"the {side} module has no pg_collection: set it to an object with the groups of its "
            "rank, tp, expt_tp, ep, dp and pp, as lists of ranks or groups of torch.distributed",
            ranks=(rank,),
        )
    named = list(module.named_parameters(recurse=True))
    if buffers:
        named.extend(_persistent_buffers(module))
    listed = extract_all(named, rank, groups, num_experts, build_layer_module_prefix_map(module))
    tensor_parallel, expert_tensor_parallel = ranks_of_groups(groups)[:2]
    for meta in listed:
        _number_expert(meta, num_experts)
        _group_experts(meta, expert_tensor_parallel)
        _mark_sinks(meta, tensor_parallel)
    return listed


_OF_EXPERTS = re.compile(r"(?<![^.])experts(?![^.])")


def _group_experts(meta: ParameterMetadata, ranks: Optional[List[int]]) -> None:
    """Experts are cut over ranks of their own (expt_tp), also where they are spread over none: then
    Megatron-Core leaves them without a mark, as if they were cut like all other layers."""
    if meta.is_tp and not meta.is_ep and ranks is not None and _OF_EXPERTS.search(meta.name):
        meta.tensor_parallel_group_ranks = ranks


_SINKS = re.compile(r"(?<![^.])core_attention\.softmax_offset$")


def _mark_sinks(meta: ParameterMetadata, ranks: Optional[List[int]]) -> None:
    """Sinks of attention are a number for each head, and cut as the heads are. Megatron-Core leaves them
    without a mark of that: shards of one length would pass for replicas."""
    if meta.is_tp or ranks is None or len(ranks) < 2 or not _SINKS.search(meta.name):
        return
    meta.is_tp, meta.partition_dim, meta.tensor_parallel_group_ranks = True, 0, ranks


_LOCAL_EXPERT = re.compile(r"(?<![^.])local_experts\.(\d+)(?![^.])")


def _number_expert(meta: ParameterMetadata, num_experts: Optional[int]) -> None:
    """Experts that are modules of their own (``local_experts.K``) are numbered on each rank from 0
    on: by that name alone, one rank's expert would pass for another's."""
    ranks = meta.expert_parallel_group_ranks or []
    if not meta.is_ep or len(ranks) < 2 or meta.global_expert_index is not None:
        return
    name = meta.resolved_name or meta.name
    found = _LOCAL_EXPERT.search(name)
    if found is None:
        raise InvalidInput(
            f'parameter "{meta.name}" on rank {meta.owner_rank} is of experts (allreduce=False) '
            f"that are spread over {len(ranks)} ranks, and its name does not say of which: "
            "experts are found by local_experts.K, weightK or biasK",
            tensor=meta.name,
            ranks=(meta.owner_rank,),
        )
    if num_experts is None or num_experts % len(ranks) != 0 or meta.owner_rank not in ranks:
        raise InvalidInput(
            f'parameter "{meta.name}" on rank {meta.owner_rank} is of one of the experts that '
            f"ranks {ranks} share, and num_experts is {num_experts}: give the number of all "
            "experts, a multiple of these ranks",
            tensor=meta.name,
            ranks=(meta.owner_rank,),
        )
    each, local = num_experts // len(ranks), int(found.group(1))
    if local >= each:
        raise InvalidInput(
            f'parameter "{meta.name}" on rank {meta.owner_rank} is of local expert {local}, but of '
            f"{num_experts} experts on {len(ranks)} ranks each has {each}",
            tensor=meta.name,
            ranks=(meta.owner_rank,),
        )
    meta.global_expert_index = ranks.index(meta.owner_rank) * each + local
    meta.resolved_name = (
        name[: found.start(1)] + str(meta.global_expert_index) + name[found.end(1) :]
    )


def _persistent_buffers(module: Any) -> Iterator[Tuple[str, Any]]:
    for prefix, part in module.named_modules():
        passing = getattr(part, "_non_persistent_buffers_set", ())
        for name, buffer in getattr(part, "_buffers", {}).items():
            if buffer is not None and name not in passing:
                yield (f"{prefix}.{name}" if prefix else name), buffer


def build_layer_module_prefix_map(module: Any) -> Dict[str, str]:
    """Maps the layers' names on this pipeline stage to those in the whole model.

    A layer has a ``layer_number``, counted from 1 over all stages, and a number for a name:
    "decoder.layers.0" with the layer_number 17 is "decoder.layers.16".
    """
    prefixes = {}
    for name, part in module.named_modules():
        number = getattr(part, "layer_number", None)
        parent, _, last = name.rpartition(".")
        if isinstance(number, int) and last.isdigit():
            prefixes[name] = f"{parent}.{number - 1}" if parent else str(number - 1)
    return prefixes


class RosterPlan:
    """The plan of all ranks of a roster; it gives each rank's part."""

    def __init__(self, core: Any, models: List[Tuple[Optional["Model"], Optional["Model"]]]):
        self._core = core
        self._models = models

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self._models)

    @property
    def digest(self) -> str:
        """The plan's digest: equal on all ranks."""
        return str(self._core.digest)

    @property
    def plan(self) -> Any:
        """The same as a :class:`ferry.Plan`: totals, bounds, moves by names of the whole model."""
        from .._plan import Plan

        return Plan(self._core)

    @never_raises
    def __repr__(self) -> str:
        return f"<ferry.RosterPlan {self.digest[:8]} of {self.world_size:,} ranks>"

    def for_rank(self, rank: int) -> ReshardPlan:
        """What one rank sends and receives, with the names of its own models."""
        if not 0 <= rank < self.world_size:
            raise InvalidInput(f"rank {rank} is none of the plan's {self.world_size} ranks")
        return ReshardPlan._of(_ferry.rank_plan(self._core, rank, *self._models[rank]))


def plan_roster(
    src_by_rank: ByRank,
    dst_by_rank: ByRank,
    num_experts: Optional[int] = None,
    *,
    replica: str = "balanced",
    subset: Optional[str] = None,
) -> RosterPlan:
    """Plans for all ranks in one process, from the metadata of all.

    Both are lists or dicts by rank: the metadata of that rank on that side, or None.
    """
    sides = [_by_rank(src_by_rank, "src_by_rank"), _by_rank(dst_by_rank, "dst_by_rank")]
    n_ranks = max((rank + 1 for side in sides for rank in side), default=0)
    if n_ranks == 0:
        raise InvalidInput("a roster needs at least one rank")
    roster = _ferry.make_roster(n_ranks)
    models = []
    for rank in range(n_ranks):
        own = [side.get(rank) for side in sides]
        src, dst = (None if m is None else _ferry.make_model(m, rank, num_experts) for m in own)
        models.append((src, dst))
        roster.set(rank, src, dst)
    try:
        return RosterPlan(roster.plan(replica, subset), models)
    except Error as error:
        listed = (m for side in sides for metas in side.values() for m in metas or ())
        raise _named(error, (m.resolved_name or m.name for m in listed))


def _by_rank(given: ByRank, name: str) -> Dict[int, Optional[Metadata]]:
    if isinstance(given, Mapping):
        if any(not isinstance(rank, int) or rank < 0 for rank in given):
            raise InvalidInput(f"{name} has a key that is not a rank")
        return dict(given)
    if not isinstance(given, Iterable):
        raise InvalidInput(
            f"{name} is of type {type(given).__name__}: give a list or a dict, by rank, of "
            "lists of metadata"
        )
    return dict(enumerate(given))


_build_descriptors_for_param = build_descriptors_for_param
_plan_multi_dim_lcm = plan_multi_dim_lcm
_finalize_dp_transfers = finalize_dp_transfers
_determine_source_ranks_for_dst_param = determine_source_ranks_for_dst_param
