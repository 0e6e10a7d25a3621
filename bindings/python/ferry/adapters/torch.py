# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""DTensors: their placements as layouts of ferry, and refits between their state dicts.

    from ferry.adapters.torch import refit
    refit(trainer.state_dict(), server.state_dict())

The two may be on different device meshes of the same world, and a rank may be in only one of them.
A plain tensor counts as a replica on every rank that has it. A DTensor's value is its
``full_tensor()``: on a mesh that does not list its ranks in ascending order, that differs from the
mesh's own order, and uneven shards are refused.
"""

from __future__ import annotations

import json
import math
import zlib
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple

from .._errors import InvalidInput, Unsupported
from .._refit import agree, dtype_name
from . import _placements
from ._placements import Holding, Piece

if TYPE_CHECKING:
    from .._ferry import World
    from .._plan import Spec
    from .._refit import Refit, RefitResult
    from .._side import Side

__all__ = ["layout_of", "memory_of", "prepare", "refit", "side_of", "spec_of"]

Local = Mapping[str, Any]
Sides = Tuple[Dict[str, List[Holding]], Dict[str, List[Holding]]]


# What a tensor says of itself.


def _placement(placement: Any, name: str) -> _placements.Placement:
    kind = type(placement).__name__
    if kind == "_StridedShard":
        return ("strided", int(placement.dim), int(placement.split_factor))
    if placement.is_replicate():
        return ("replicate", 0, 0)
    if placement.is_shard():
        return ("shard", int(placement.dim), 0)
    raise Unsupported(
        f'tensor "{name}" has the placement {placement!r}: only whole values can be moved; '
        "redistribute() it to Replicate or Shard first",
        tensor=name,
    )


def _holding(tensor: Any, name: str, rank: int) -> Holding:
    dtype = dtype_name(tensor.dtype) or "bytes:%d" % tensor.element_size()
    shape = tuple(int(extent) for extent in tensor.shape)
    if not hasattr(tensor, "placements"):
        return Holding(shape, dtype, (), (rank,), ())
    placements = []
    for placement in tensor.placements:
        kind, dim, split = _placement(placement, name)
        placements.append((kind, dim % len(shape) if shape else 0, split))
    sizes = tuple(int(n) for n in tensor.device_mesh.mesh.shape)
    listed = tuple(int(one) for one in tensor.device_mesh.mesh.flatten().tolist())
    ranks = _placements.collective_order(sizes, listed)
    holding = Holding(shape, dtype, sizes, ranks or listed, tuple(placements))
    is_even = ranks is not None and _placements.is_even(holding)
    if ranks != listed and not is_even and any(kind != "replicate" for kind, _, _ in placements):
        raise Unsupported(
            f'tensor "{name}" lies on a mesh of ranks {list(listed)} in shape {list(sizes)}: torch '
            "counts coordinates as the mesh lists ranks, and its collectives take them in "
            "ascending order, so its values are not defined here; list ranks in ascending order",
            tensor=name,
        )
    return holding


def holding_of(dtensor: Any, name: str) -> Holding:
    """How a DTensor lies on the ranks of torch.distributed; Unsupported where it has no value there."""
    return _holding(dtensor, name, 0)


def layout_of(dtensor: Any, name: str = "tensor") -> Dict[str, Any]:
    """One side of a ferry.spec/1, with one rule that matches everything: how this DTensor is cut.

    Not collective: any rank may call it. ``layout_of(weight)["mesh"]`` has an axis ``m0``, ``m1``,
    ... for each dimension of the device mesh.
    """
    holding = _holding(dtensor, name, 0)
    for dim, cut in _placements.cuts_of(holding).items():
        if cut is None:
            raise Unsupported(
                f'tensor "{name}": no rule says how dim {dim} of {holding.shape[dim]} is cut by '
                f"{tuple(dtensor.placements)!r}; refit() moves it in pieces",
                tensor=name,
            )
    side = _placements.side_of(holding)
    side["rules"] = [{"match": "*", **_placements.rule_of(_whole(name, holding), holding)}]
    return side


def side_of(state_dict: Local, rank: int) -> "Side":
    """What one rank has of a state dict, as a side in boxes for :meth:`ferry.Spec.exchange`: of a
    DTensor its local shard, of a plain tensor the whole. ``rank`` is that of torch.distributed.

    Not collective. :func:`memory_of` returns the parameters of this side.
    """
    from .._side import Side

    side = Side()
    for name, holding in _tensors_of(state_dict, rank).items():
        add_shard(side, name, holding, tuple(_local(state_dict[name]).shape), rank)
    return side


def add_shard(
    side: "Side", name: str, holding: Holding, shape: Tuple[int, ...], rank: int
) -> None:
    """Adds what a rank has of a tensor, whose local shard has this shape and lies in a row; nothing
    where it has nothing."""
    if math.prod(shape) == 0 or rank not in holding.ranks:
        return
    shape = shape or (1,)
    side.add_parameter(name, None, math.prod(shape), dtype=holding.dtype)
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(holding.shape))]
    for begin, lengths, at in _placements.boxes_of(holding, rank):
        offset = sum(i * stride for i, stride in zip(at, strides))
        side.add_box(name, begin, lengths, offset, strides)


def memory_of(state_dict: Local) -> Dict[str, Any]:
    """This rank's local tensors by name, which must be contiguous: the parameters of
    :func:`side_of`."""
    found = {}
    for name, tensor in state_dict.items():
        if not hasattr(tensor, "element_size"):
            continue
        local = _local(tensor)
        if not local.is_contiguous():
            raise Unsupported(
                f'tensor "{name}" is not contiguous on this rank: make it so before it is sent',
                tensor=name,
            )
        if local.numel():
            found[name] = local
    return found


def _own_rank() -> int:
    """The number by which device meshes call this process."""
    import torch.distributed as dist

    return int(dist.get_rank())


def runs_of(dtensor: Any, name: str) -> List[List[_placements.Interval]]:
    """For each dimension the intervals of the whole tensor that this rank has, in order; none where
    it is not of the mesh."""
    holding = _holding(dtensor, name, 0)
    rank = _own_rank()
    if rank not in holding.ranks:
        return [[] for _ in holding.shape]
    # Not torch's own coordinates, which are others where a mesh lists ranks in another order.
    coordinates = _placements.coordinates_of(holding, rank)
    return [
        _placements.held(extent, holding.steps(dim), coordinates)
        for dim, extent in enumerate(holding.shape)
    ]


def layout_of_all(
    state_dict: Local, world: "World"
) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """The layout of tensors that lie on one mesh, as a ``ferry.layout/1`` without its format, and what
    this rank has of them. Plain tensors are replicas on all ranks of the mesh."""
    holdings = _tensors_of(state_dict, world.rank)
    meshes = {(one.mesh, one.ranks) for one in holdings.values() if one.mesh != ()}
    if len(meshes) != 1:
        raise Unsupported(
            f"the DTensors lie on {len(meshes)} meshes: a checkpoint has one; save the tensors of "
            "each by themselves"
        )
    (mesh, ranks), = meshes
    if _own_rank() != world.rank:
        raise InvalidInput(
            f"this rank is {_own_rank()} in torch.distributed, by which meshes count, and "
            f"{world.rank} in the world: give a world of torch's default group"
        )
    rules, tensors = {}, []
    for name, one in holdings.items():
        rules[name] = _placements.rule_of(_whole(name, one), one)
        if None in _placements.cuts_of(one).values():
            raise Unsupported(
                f'tensor "{name}": no rule says how its placements cut it: shard it evenly',
                tensor=name,
            )
        tensors.append({"name": name, "shape": list(one.shape), "dtype": one.dtype})
    side = _placements.side_of(Holding((), "", mesh, ranks, ()))
    layout = {**side, "rules": _placements.rules_of(rules), "tensors": tensors}
    return layout, {name: _local(tensor) for name, tensor in state_dict.items() if name in holdings}


def _whole(name: str, holding: Holding) -> Piece:
    return Piece(name, (0,) * len(holding.shape), holding.shape, True)


# What all ranks say of theirs.


def _tensors_of(state_dict: Optional[Local], rank: int) -> Dict[str, Holding]:
    if state_dict is not None and not isinstance(state_dict, Mapping):
        raise InvalidInput(
            f"a state dict is of type {type(state_dict).__name__}: give a dict of names with tensors, "
            "such as a module's state_dict(), or None"
        )
    return {
        name: _holding(tensor, name, rank)
        for name, tensor in (state_dict or {}).items()
        if hasattr(tensor, "element_size")
    }


def _described(holdings: Dict[str, Holding]) -> List[Any]:
    """Few meshes and many tensors: the meshes are listed once."""
    meshes: Dict[Tuple[Any, Any], int] = {}
    tensors = []
    for name, one in holdings.items():
        at = meshes.setdefault((one.mesh, one.ranks), len(meshes))
        tensors.append([name, one.shape, one.dtype, at, one.placements])
    return [list(meshes), tensors]


def _read(described: List[Any]) -> Dict[str, Holding]:
    meshes = [(tuple(mesh), tuple(ranks)) for mesh, ranks in described[0]]
    found = {}
    for name, shape, dtype, at, placements in described[1]:
        mesh, ranks = meshes[at]
        ordered = tuple((kind, dim, split) for kind, dim, split in placements)
        found[name] = Holding(tuple(shape), dtype, mesh, ranks, ordered)
    return found


def _gather(source: Optional[Local], destination: Optional[Local], world: "World") -> Sides:
    """By side and name, the holdings of all ranks, in the order in which they are first met."""
    def describe() -> bytes:
        sides = [_tensors_of(side, world.rank) for side in (source, destination)]
        described = [_described(side) for side in sides]
        ties = [_ties_of(side) for side in (source, destination)]
        return zlib.compress(json.dumps([described, ties]).encode())

    sides: Sides = ({}, {})
    said: Dict[bytes, Any] = {}
    ties: List[List[Ties]] = [[], []]
    for rank, text in enumerate(agree(world, describe)):
        if text not in said:
            described, of_rank = json.loads(zlib.decompress(text))
            said[text] = [_read(side) for side in described], of_rank
        for of_side, one_tie in zip(ties, said[text][1]):
            of_side.append(one_tie)
        for side, holdings in zip(sides, said[text][0]):
            for name, one in holdings.items():
                if not one.placements and one.mesh == ():  # plain: said by one, held by another
                    one = Holding(one.shape, one.dtype, (), (rank,), ())
                _join(side.setdefault(name, []), one, name, rank)
    _check_complete(sides, said, world.size)
    _take_tied_once(sides, ties)
    return sides


# What shares its memory on a rank: lists of names, and the names of which nothing lies there.
Ties = Tuple[List[List[str]], List[str]]


def _ties_of(state_dict: Optional[Local]) -> Ties:
    views: Dict[Any, List[str]] = {}
    empty = []
    for name, tensor in (state_dict or {}).items():
        if not hasattr(tensor, "element_size") or tensor.numel() == 0:
            continue
        local = _local(tensor)
        if str(getattr(local, "layout", None)) != "torch.strided":
            continue  # what has no memory of its own is refused elsewhere
        if local.numel() == 0:
            empty.append(name)
        elif not local.is_meta and local.data_ptr() != 0:
            view = (local.data_ptr(), local.shape, local.stride(), local.dtype, local.device)
            views.setdefault(view, []).append(name)
    return [names for names in views.values() if len(names) > 1], empty


def _is_tied(holding: Holding, first: str, second: str, ties: List[Ties]) -> bool:
    """Whether two tensors are one on every rank of a holding that has something of them."""
    return all(
        second in ties[rank][1] or any(first in one and second in one for one in ties[rank][0])
        for rank in holding.ranks
    )


def _take_tied_once(sides: Sides, ties: List[List[Ties]]) -> None:
    """Of a destination's tensors that are one, only the first that the source has is written: from
    there it is taken once where the source's two are one as well."""
    sources, destinations = sides
    pairs: Dict[Tuple[str, str], None] = {}
    for group in (sorted(group) for groups, _ in ties[1] for group in groups):
        kept = next((name for name in group if name in sources), group[0])
        pairs.update(((kept, name), None) for name in group if name != kept)
    for first, later in pairs:
        left = [one for one in destinations.get(later, ()) if not _is_tied(one, first, later, ties[1])]
        if first not in destinations or left == destinations.get(later):
            continue  # where they are one on some ranks of a mesh alone, the run is refused
        for one in sources.get(later, ()):
            if not _is_tied(one, first, later, ties[0]):
                raise InvalidInput(
                    f'tied: the destination\'s "{first}" and "{later}" are one tensor, and two on '
                    f"rank {one.ranks[0]} of the source: leave one of them out of the destination",
                    tensor=later,
                )
        destinations[later] = left
        if not left:
            del destinations[later]


def _join(known: List[Holding], one: Holding, name: str, rank: int) -> None:
    if rank not in one.ranks:
        return  # a DTensor is there also where its mesh is not; nothing of it is held
    if known and (known[0].shape, known[0].dtype) != (one.shape, one.dtype):
        raise InvalidInput(
            f'tensor "{name}" is {list(known[0].shape)} of {known[0].dtype} on rank '
            f"{known[0].ranks[0]}, but {list(one.shape)} of {one.dtype} on rank {rank}",
            tensor=name,
        )
    if one not in known:
        known.append(one)


def _check_complete(sides: Sides, said: Any, size: int) -> None:
    for side in sides:
        for name, holdings in side.items():
            for one in holdings:
                if max(one.ranks) >= size:
                    raise InvalidInput(
                        f'tensor "{name}" lies on a mesh with rank {max(one.ranks)}, but the world '
                        f"has {size} ranks: make it of all ranks of the meshes",
                        tensor=name,
                    )


# From holdings to specs.


class Job:
    """A spec, and for each name in it the piece of a tensor and how both sides hold that."""

    def __init__(self, source: Holding, destination: Holding) -> None:
        self.sides = (source, destination)  # of any of its tensors: mesh and ranks are all alike
        self.pieces: List[Tuple[Piece, Holding, Holding]] = []

    def spec(self) -> Dict[str, Any]:
        tensors: List[Dict[str, Any]] = []
        rules: Tuple[Dict[str, Any], Dict[str, Any]] = ({}, {})
        for piece, *sides in self.pieces:
            dtype = sides[0].dtype
            tensors.append({"name": piece.name, "shape": list(piece.shape), "dtype": dtype})
            for of_side, holding in zip(rules, sides):
                of_side[piece.name] = _placements.rule_of(piece, holding)
        texts = [
            {**_placements.side_of(side), "rules": _placements.rules_of(of_side)}
            for side, of_side in zip(self.sides, rules)
        ]
        return {"format": "ferry.spec/1", "tensors": tensors, "source": texts[0],
                "destination": texts[1]}  # fmt: skip

    def shards(self, side: int, state_dict: Optional[Local], rank: int) -> Dict[str, Any]:
        """This rank's local tensors by the names of the spec."""
        found: Dict[str, Any] = {}
        if state_dict is None or rank not in self.sides[side].ranks:
            return found
        for piece, *sides in self.pieces:
            holding = sides[side]
            if piece.tensor not in state_dict:
                continue  # the plan says that it is missing, and what it would be
            local = _local(state_dict[piece.tensor])
            if piece.whole:
                found[piece.name] = local
                continue
            box = _placements.local_box(piece, holding, rank)
            if box is not None:
                found[piece.name] = local[box]
        return found


def _local(tensor: Any) -> Any:
    if hasattr(tensor, "placements"):
        tensor = tensor.to_local()
    return tensor.detach()


def _jobs(sides: Sides) -> List[Job]:
    sources, destinations = sides
    jobs: Dict[Any, Job] = {}
    for name, wanted in destinations.items():
        if name not in sources:
            raise InvalidInput(
                f'tensor "{name}" is wanted on rank {wanted[0].ranks[0]}, and no rank has it as a '
                "source: name both alike, or leave it out of the destination",
                tensor=name,
            )
        source = _placements.stacked(name, sources[name])[0]
        if (source.shape, source.dtype) != (wanted[0].shape, wanted[0].dtype):
            raise InvalidInput(
                f'tensor "{name}" is {list(source.shape)} of {source.dtype} at the source, but '
                f"{list(wanted[0].shape)} of {wanted[0].dtype} at the destination{_remedy(source, wanted)}",
                tensor=name,
            )
        if math.prod(source.shape) == 0:
            continue
        for destination in _placements.stacked(name, wanted):
            key = (source.mesh, source.ranks, destination.mesh, destination.ranks)
            job = jobs.setdefault(key, Job(source, destination))
            for piece in _placements.pieces_of(name, (source, destination)):
                job.pieces.append((piece, source, destination))
    return list(jobs.values())


def _remedy(source: Holding, wanted: List[Holding]) -> str:
    if source.shape != wanted[0].shape:
        return ""
    return (
        ": this refit converts nothing; cast the source's first, as by .to(), or make a ferry.Refit of "
        'a spec whose destination has a "dtype" and a "cast"'
    )


def _world(world: Optional["World"]) -> "World":
    if world is not None:
        return world
    from .._world import world as default

    return default()


def spec_of(
    source: Optional[Local], destination: Optional[Local], *, world: Optional["World"] = None
) -> "Spec":
    """Collective: the :class:`ferry.Spec` of a refit between two state dicts of DTensors.

    Each rank passes what it has, or None. If tensors are on several meshes, one spec is not enough:
    then use :func:`refit` or :func:`prepare`, which move them with several.
    """
    from .._plan import Spec

    jobs = _jobs(_gather(source, destination, _world(world)))
    if len(jobs) != 1:
        raise Unsupported(
            f"the tensors need {len(jobs)} specs, one for each pair of meshes on which they lie; "
            "refit() and prepare() make them"
        )
    return Spec(jobs[0].spec())


def prepare(
    source: Optional[Local],
    destination: Optional[Local],
    *,
    world: Optional["World"] = None,
    replica: str = "balanced",
    progress: Any = None,
    **options: Any,
) -> "Refit":
    """Collective: a :class:`ferry.Refit` between two state dicts, to be run as often as needed.

    The destination's local tensors are written in place. If a tensor's memory has been replaced
    since, the next run raises an error with its name, on all ranks. ``options`` are those of
    :class:`ferry.RemoteCopyService`. Entries that are not tensors are ignored.
    """
    from .._refit import Refit

    own = _world(world)
    jobs = _jobs(_gather(source, destination, own))
    parts = [
        (job.spec(), job.shards(0, source, own.rank), job.shards(1, destination, own.rank))
        for job in jobs
    ]
    watched = [_locals(source), _locals(destination)]
    return Refit.of_parts(
        parts, world=own, replica=replica, progress=progress, watched=watched, **options
    )


def _locals(state_dict: Optional[Local]) -> Any:
    """What the tensors of a state dict hold on this rank when that is asked for: other memory than
    before means that it was replaced."""
    given = {
        name: tensor
        for name, tensor in (state_dict or {}).items()
        if hasattr(tensor, "element_size") and tensor.numel() != 0
    }
    return lambda: {name: _local(tensor) for name, tensor in given.items()}


def refit(
    source: Optional[Local],
    destination: Optional[Local],
    *,
    world: Optional["World"] = None,
    replica: str = "balanced",
    progress: Any = None,
    **options: Any,
) -> "RefitResult":
    """Collective: copies the values of the source's DTensors into the destination's, whatever their
    meshes and placements. One run of :func:`prepare`.
    """
    with prepare(
        source, destination, world=world, replica=replica, progress=progress, **options
    ) as planned:
        return planned.run()
