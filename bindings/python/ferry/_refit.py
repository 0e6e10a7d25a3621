# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A refit in one call: local shards by name, a spec, and the service that carries them."""

from __future__ import annotations

import hashlib
import json
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from . import _errors, _ferry
from ._errors import DigestMismatch, Error, InvalidInput, Misuse, Unsupported

if TYPE_CHECKING:
    from ._ferry import World
    from ._plan import Plan, Shard
    from ._service import RemoteCopyService

__all__ = ["Refit", "RefitResult", "agree", "refit"]

Shards = Optional[Mapping[str, Any]]
Part = Tuple[Any, Shards, Shards]  # what plan() takes, sources, destinations
Task = Tuple[int, Any, int, str]  # id, tensor, peer, name

# Task ids of the parts of a refit: each part has this many of its own.
PART_IDS = 1 << 40

_SIDES = ("source", "destination")


@dataclass(frozen=True)
class RefitResult:
    """What a run moved. Bytes are those of all ranks together, seconds those of this one."""

    bytes_moved: int
    bytes_local: int
    seconds: float
    version: int
    digest: str

    @property
    def gbytes_per_s(self) -> float:
        """10^9 bytes a second, those that stayed on their rank included."""
        total = self.bytes_moved + self.bytes_local
        return total / self.seconds * 1e-9 if self.seconds > 0 else 0.0


# All ranks or none.


def agree(world: "World", function: Callable[[], bytes]) -> List[bytes]:
    """Collective: what ``function`` returns on each rank. If it raises on any, it does on all: with
    its own exception where it raised, and with the first such rank's sentence elsewhere."""
    raised: Optional[Exception] = None
    try:
        said = b"+" + function()
    except Exception as error:  # also a TypeError of a caller's object: the others must not wait
        raised, said = error, b"-" + _told(error)
        if isinstance(error, Error) and not error.ranks:
            error.ranks = (world.rank,)
    parts: List[bytes] = [said] if world.size == 1 else world.all_gather(said)
    if raised is not None:
        raise raised
    for rank, part in enumerate(parts):
        if part[:1] == b"-":
            raise _heard(rank, part[1:])
    return [part[1:] for part in parts]


def _told(error: Exception) -> bytes:
    kind = type(error).__name__ if isinstance(error, Error) else ""
    sentence = str(error) if kind else f"{type(error).__name__}: {error}"
    about = [getattr(error, "tensor", None), list(getattr(error, "ranks", ()))]
    return json.dumps([kind, sentence, about]).encode()


def _heard(rank: int, text: bytes) -> Error:
    kind, sentence, (tensor, ranks) = json.loads(text)
    found = getattr(_errors, kind, Error) if kind else Error
    error = found(f"rank {rank} says: {sentence}", tensor=tensor, ranks=tuple(ranks) or (rank,))
    assert isinstance(error, Error)
    return error


# The caller's shards against what the plan expects.

def _shape_of(tensor: Any) -> Tuple[int, ...]:
    if hasattr(tensor, "shape"):
        return tuple(int(extent) for extent in tensor.shape)
    return tuple(memoryview(tensor).shape or ())


def dtype_name(dtype: Any) -> str:
    """In ferry's words, or "" where it has none."""
    try:
        return _ferry.dtype_name(dtype)
    except Error:
        return ""


def _dtype_of(tensor: Any) -> str:
    if hasattr(tensor, "dtype"):
        return dtype_name(tensor.dtype)
    return "u8" if memoryview(tensor).itemsize == 1 else ""


def _bytes_of(tensor: Any) -> int:
    return int(tensor.nbytes) if hasattr(tensor, "nbytes") else memoryview(tensor).nbytes


def _is_contiguous(tensor: Any) -> bool:
    if hasattr(tensor, "is_contiguous"):
        return bool(tensor.is_contiguous())
    if hasattr(tensor, "flags") and hasattr(tensor.flags, "c_contiguous"):
        return bool(tensor.flags.c_contiguous)
    return hasattr(tensor, "shape") or memoryview(tensor).c_contiguous


def _check(side: int, rank: int, name: str, tensor: Any, shard: "Shard") -> None:
    """Raises unless the tensor is what the plan expects, or as many bytes in one row."""
    shape, dtype = shard.shape, shard.dtype
    expected = f"the plan expects {list(shape)} of {dtype} here ({shard.bytes} bytes)"
    about = f'{_SIDES[side]} tensor "{name}" on rank {rank}'
    if tensor is None:
        raise InvalidInput(f"{about} is missing: {expected}", tensor=name, ranks=(rank,))
    if isinstance(tensor, int):
        return  # a pointer: the caller answers for it
    found_shape, found_dtype = _shape_of(tensor), _dtype_of(tensor)
    if found_dtype == "u8" and len(found_shape) == 1 and found_shape[0] == shard.bytes:
        if _is_contiguous(tensor):
            return
    if shard.flat is not None and (math.prod(found_shape),) == shape and _is_contiguous(tensor):
        found_shape = shape
    if found_shape != shape:
        raise InvalidInput(
            f"{about} has the shape {list(found_shape)}: {expected}", tensor=name, ranks=(rank,)
        )
    # Of a dtype that ferry has no name for, only the size can be checked.
    if found_dtype != dtype and (found_dtype or _bytes_of(tensor) != shard.bytes):
        raise InvalidInput(
            f"{about} is of {found_dtype or tensor.dtype}: {expected}; a view of it as one row of "
            f"{shard.bytes} u8 is taken too",
            tensor=name,
            ranks=(rank,),
        )


class _Flat:
    """A range of a row-major shard: boxes are given in the shard, whose elements from ``begin`` on
    the memory holds."""

    def __init__(self, row: Any, shape: Sequence[int], begin: int) -> None:
        self._row, self._begin = row, begin
        self._strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]

    def __getitem__(self, box: Tuple[slice, ...]) -> Any:
        shape = [one.stop - one.start for one in box]
        at = sum(one.start * stride for one, stride in zip(box, self._strides)) - self._begin
        if hasattr(self._row, "as_strided"):
            return self._row.as_strided(shape, self._strides, self._row.storage_offset() + at)
        from numpy.lib.stride_tricks import as_strided

        size = self._row.itemsize
        return as_strided(self._row[at:], shape, [stride * size for stride in self._strides])


def _sliceable(tensor: Any, shard: "Shard", name: str) -> Any:
    """Something whose ``[box]`` is a view, for any box of a move."""
    if isinstance(tensor, tuple):
        raise Unsupported(
            f'tensor "{name}" is a pair to swap, which needs contiguous shards on all ranks and '
            "one pair of meshes",
            tensor=name,
        )
    if not hasattr(tensor, "reshape"):
        tensor = _array(tensor, shard, name)
    count = math.prod(shard.shape)
    if shard.bytes % count != 0:
        raise Unsupported(
            f'tensor "{name}" has several elements in a byte: give contiguous shards on all ranks',
            tensor=name,
        )
    if shard.flat is None:
        if _shape_of(tensor) == shard.shape:
            return tensor
        return tensor.reshape(shard.shape + (shard.bytes // count,))
    row = tensor.reshape(-1)
    if _bytes_of(row) // _shape_of(row)[0] != shard.bytes // count:
        raise InvalidInput(
            f'flat tensor "{name}" is given as bytes beside tensors that are not contiguous: '
            "give it in its own dtype",
            tensor=name,
        )
    return _Flat(row, shard.full_shape, shard.flat[0])


def _array(tensor: Any, shard: "Shard", name: str) -> Any:
    try:
        import numpy
    except ImportError:
        numpy = None  # type: ignore[assignment,unused-ignore]
    if numpy is None or isinstance(tensor, int):
        raise InvalidInput(
            f'tensor "{name}" is a {type(tensor).__name__}, of which no boxes can be taken, and '
            "another tensor is not contiguous: give torch or numpy tensors",
            tensor=name,
        )
    array: Any = numpy.frombuffer(tensor, dtype=numpy.uint8)
    return array


def _views(expected: Mapping[str, Any], shards: Mapping[str, Any]) -> Dict[str, Any]:
    return {name: _sliceable(tensor, expected[name], name) for name, tensor in shards.items()}


def _joined(digests: Sequence[str]) -> str:
    if len(digests) == 1:
        return digests[0]
    return hashlib.blake2b(" ".join(digests).encode(), digest_size=16).hexdigest()


class Refit:
    """A refit that is planned once and run as often as wanted. Collective, as its methods are.

    ``source`` and ``destination`` map names to this rank's local shards: torch or numpy tensors, or
    anything with the buffer protocol or DLPack; None where the rank has nothing. ``spec`` is a
    :class:`ferry.Spec`, a dict, a JSON text or a path. Shards need not be contiguous. Whatever a
    rank lacks, or has in another shape or dtype than the plan expects, is an error on all ranks
    before anything moves. ``options`` are those of :class:`ferry.RemoteCopyService`; or ``service``
    is one that was initialised, whose ``alloc`` may have made the shards: it carries the bytes, and
    stays the caller's.

    >>> import ferry
    >>> whole = {"mesh": [], "rules": [{"match": "*"}]}
    >>> spec = {"format": "ferry.spec/1", "source": whole, "destination": whole,
    ...         "tensors": [{"name": "w", "shape": [4], "dtype": "u8"}]}
    >>> old, new = bytes([1, 2, 3, 4]), bytearray(4)
    >>> with ferry.Refit({"w": old}, {"w": new}, spec) as planned:
    ...     planned.run().version, list(new)
    (1, [1, 2, 3, 4])
    """

    def __init__(
        self,
        source: Shards,
        destination: Shards,
        spec: Any,
        *,
        world: Optional["World"] = None,
        subset: Optional[str] = None,
        replica: str = "balanced",
        progress: Optional[Callable[[Any], Any]] = None,
        **options: Any,
    ) -> None:
        parts = [(spec, source, destination)]
        self._open(parts, world, {"subset": subset, "replica": replica}, progress, options)

    @classmethod
    def of_parts(
        cls,
        parts: Sequence[Part],
        *,
        world: Optional["World"] = None,
        replica: str = "balanced",
        progress: Optional[Callable[[Any], Any]] = None,
        **options: Any,
    ) -> "Refit":
        """Several specs, each with its own sources and destinations, that run as one."""
        self = cls.__new__(cls)
        self._open(parts, world, {"replica": replica}, progress, options)
        return self

    @classmethod
    def of_tasks(
        cls,
        tasks: Callable[[], Tuple[Sequence[Task], Sequence[Task]]],
        *,
        world: Optional["World"] = None,
        progress: Optional[Callable[[Any], Any]] = None,
        **options: Any,
    ) -> "Refit":
        """What another planner made: this rank's sends and receives, each an id that is unique for
        its pair of ranks, a tensor (of any strides), the other rank, and a name for sentences."""
        self = cls.__new__(cls)
        self._begin(world, options)
        sent: List[int] = []

        def register() -> bytes:
            sends, receives = tasks()
            rank = self._world.rank
            sent.append(sum(_bytes_of(tensor) for _, tensor, to, _ in sends if to != rank))
            sent.append(sum(_bytes_of(tensor) for _, tensor, to, _ in sends if to == rank))
            self._register(sends, receives)
            ids = sorted((task, to, _bytes_of(tensor)) for task, tensor, to, _ in sends)
            return json.dumps([*sent, hashlib.blake2b(repr(ids).encode()).hexdigest()]).encode()

        said = self._serve(register, progress, options)
        told = [json.loads(one) for one in said]
        self._moved, self._local = (sum(one[at] for one in told) for at in (0, 1))
        self._digest = hashlib.blake2b(b"".join(said), digest_size=16).hexdigest()
        return self

    def _begin(self, world: Optional["World"], options: Mapping[str, Any]) -> None:
        if world is None and options.get("service") is not None:
            world = options["service"]._world
        if world is None:
            from ._world import world as default

            world = default()
        if not isinstance(world, _ferry.World):
            raise InvalidInput(
                f"world is of type {type(world).__name__}: give one that ferry.init() made, or None"
            )
        self._owns_service = True
        self._service: Optional["RemoteCopyService"] = None
        self._world: "World" = world
        self._plans: List["Plan"] = []
        self._shards: List[Tuple[Dict[str, Any], Dict[str, Any]]] = []
        self._moved = self._local = 0
        self._digest = ""

    def _open(
        self,
        parts: Sequence[Part],
        world: Optional["World"],
        how: Dict[str, Any],
        progress: Optional[Callable[[Any], Any]],
        options: Dict[str, Any],
    ) -> None:
        self._begin(world, options)
        looked = agree(self._world, lambda: self._look(parts, how))
        self._compare(looked)
        self._moved = sum(made.moved_bytes for made in self._plans)
        self._local = sum(made.local_bytes for made in self._plans)
        is_bound = len(self._plans) == 1 and all(one[-1:] == b"c" for one in looked)
        self._serve(self._bind if is_bound else self._register_moves, progress, options)

    def _serve(
        self,
        register: Callable[[], bytes],
        progress: Optional[Callable[[Any], Any]],
        options: Dict[str, Any],
    ) -> List[bytes]:
        """The service, with what ``register`` gives it, ready to run."""
        from ._service import RemoteCopyService

        given = options.pop("service", None)
        if given is not None and options:
            raise InvalidInput(f"{', '.join(options)}: options are the given service's own")
        self._owns_service = given is None
        self._service = given or RemoteCopyService(self._world, **options)
        try:
            if self._owns_service:
                self._service.init(log_level="WARN")
            said = agree(self._world, register)
            self._service.schedule()
            if progress is not None:
                self._service.set_progress(progress)
            return said
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    # Planning: nothing of it talks.

    def _look(self, parts: Sequence[Part], how: Dict[str, Any]) -> bytes:
        from ._plan import plan

        contiguous = True
        for spec, *sides in parts:
            made = plan(spec, **how)
            if made.world_size > self._world.size:
                raise InvalidInput(
                    f"the spec is for {made.world_size} ranks, and the world has "
                    f"{self._world.size}: start as many, or change the spec"
                )
            self._plans.append(made)
            kept: Tuple[Dict[str, Any], Dict[str, Any]] = ({}, {})
            for side, given in enumerate(sides):
                contiguous = self._take(made, side, given or {}, kept[side]) and contiguous
            self._shards.append(kept)
        self._digest = _joined([str(made.digest) for made in self._plans])
        return self._digest.encode() + (b"c" if contiguous else b"s")

    def _take(self, made: "Plan", side: int, given: Mapping[str, Any], kept: Any) -> bool:
        """Keeps what the plan wants of a side; whether all of it is contiguous."""
        rank, contiguous = self._world.rank, True
        if rank >= made.world_size:
            return True
        for name, shard in made.shards(_SIDES[side], rank).items():
            if shard.bytes == 0:
                continue
            found = given.get(name)
            pair = tuple(
                one.detach() if hasattr(one, "detach") else one
                for one in (found if isinstance(found, tuple) else (found,))
            )
            for one in pair:
                _check(side, rank, name, one, shard)
                contiguous = (isinstance(one, int) or _is_contiguous(one)) and contiguous
            kept[name] = pair if isinstance(found, tuple) else pair[0]
        return contiguous

    def _compare(self, looked: Sequence[bytes]) -> None:
        for rank, one in enumerate(looked):
            if one[:-1] != looked[0][:-1]:
                raise DigestMismatch(
                    f"rank 0 and rank {rank} made different plans ({looked[0][:-1].decode()} and "
                    f"{one[:-1].decode()}): give the same spec and options on all ranks"
                )

    # Registration: by name where all shards are row-major, else box by box, without a copy.

    def _bind(self) -> bytes:
        assert self._service is not None
        if self._world.rank < self._plans[0].world_size:  # the others have no part in it
            self._service.bind(self._plans[0], *self._shards[0])
        return b""

    def _register(self, sends: Sequence[Task], receives: Sequence[Task]) -> None:
        assert self._service is not None
        self._service.register_sends(
            (task, tensor, 0, None, peer, name) for task, tensor, peer, name in sends
        )
        self._service.register_receives(
            (task, tensor, 0, None, peer, name) for task, tensor, peer, name in receives
        )

    def _register_moves(self) -> bytes:
        sends: List[Task] = []
        receives: List[Task] = []
        rank = self._world.rank
        for part, (made, shards) in enumerate(zip(self._plans, self._shards)):
            if rank >= made.world_size:
                continue
            sources, destinations = (
                _views(made.shards(_SIDES[side], rank), shards[side]) for side in (0, 1)
            )
            for move in made.moves(rank):
                task = part * PART_IDS + move.task_id
                if move.from_rank == rank:
                    view = sources[move.source or move.tensor][move.src_slice]
                    sends.append((task, view, move.to_rank, move.source or move.tensor))
                if move.to_rank == rank:
                    view = destinations[move.tensor][move.dst_slice]
                    receives.append((task, view, move.from_rank, move.tensor))
        self._register(sends, receives)
        return b""

    # Use.

    @property
    def plans(self) -> Tuple["Plan", ...]:
        """The plan, or one for each spec."""
        return tuple(self._plans)

    @property
    def service(self) -> "RemoteCopyService":
        """What carries the bytes: statistics, destinations and versions are its."""
        if self._service is None:
            raise Misuse("the refit is closed")
        return self._service

    @property
    def digest(self) -> str:
        """Of the plan: equal digests mean equal moves."""
        return self._digest

    def run(self) -> RefitResult:
        """Moves everything, from what the sources hold now."""
        service = self.service
        begin = time.perf_counter()
        service.run()
        seconds = time.perf_counter() - begin
        return RefitResult(self._moved, self._local, seconds, service.version, self._digest)

    def close(self) -> None:
        """Gives back what runs need. More than one call is fine."""
        self.__exit__(None, None, None)

    def __enter__(self) -> "Refit":
        return self

    def __exit__(self, *raised: object) -> None:
        service, self._service = self._service, None
        self._shards = []
        if service is None:
            return
        if self._owns_service:
            # After a failure the other ranks may know nothing of it: nobody is waited for.
            service.__exit__(*raised)
        else:
            service.clear_requests()

    def __repr__(self) -> str:
        state = "closed" if self._service is None else f"{self._moved} bytes to move"
        return f"<ferry.Refit {self._digest} on rank {self._world.rank}: {state}>"


def refit(
    source: Shards,
    destination: Shards,
    spec: Any,
    *,
    world: Optional["World"] = None,
    subset: Optional[str] = None,
    replica: str = "balanced",
    progress: Optional[Callable[[Any], Any]] = None,
    **options: Any,
) -> RefitResult:
    """Collective: plans, moves the source's shards into the destination's, and forgets the plan.

    For arguments, and for refits that come back, see :class:`Refit`.

    >>> import ferry
    >>> side = {"mesh": [], "rules": [{"match": "*"}]}
    >>> spec = {"format": "ferry.spec/1", "source": side, "destination": side,
    ...         "tensors": [{"name": "w", "shape": [2, 2], "dtype": "u8"}]}
    >>> new = bytearray(4)
    >>> ferry.refit({"w": b"abcd"}, {"w": new}, spec).bytes_local, new
    (4, bytearray(b'abcd'))
    """
    with Refit(
        source,
        destination,
        spec,
        world=world,
        subset=subset,
        replica=replica,
        progress=progress,
        **options,
    ) as planned:
        return planned.run()
