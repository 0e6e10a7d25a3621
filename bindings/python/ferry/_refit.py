# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A refit in one call: local shards by name, a spec, and the service that carries them."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import time
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING, Any, Callable, Dict, Generator, Iterable, Iterator, List, Mapping, Optional, Sequence,
    Tuple, TypedDict, TypeVar, Union,
)  # fmt: skip

from . import _errors, _ferry, _publish
from ._errors import DigestMismatch, Error, InvalidInput, Misuse, Unsupported
from ._repr import never_raises
from ._world import leave_failed

if TYPE_CHECKING:
    import os

    from typing_extensions import Unpack

    from ._ferry import World
    from ._plan import Plan, Shard, Spec
    from ._ferry import Ledger
    from ._service import Recovery, RemoteCopyService

__all__ = ["Refit", "RefitResult", "RefitRun", "agree", "refit"]

Shards = Optional[Mapping[str, Any]]
Part = Tuple[Any, Shards, Shards]  # what plan() takes, sources, destinations
Task = Tuple[int, Any, int, str]  # id, tensor, peer, name
Watched = Callable[[], Mapping[str, Any]]

# Task ids of the parts of a refit: each part has this many of its own.
PART_IDS = 1 << 40

_SIDES = ("source", "destination")
_REGISTER_AGAIN = "register it again, or rebind it"
_WORDS = ("tensor", "parameter")  # what a rank has of a mesh, and of a side in boxes


class RefitOptions(TypedDict, total=False):
    """What refits take beside their own arguments: see :class:`ferry.RemoteCopyService`."""

    checksum: str
    commit: str
    delta: bool
    engines: Optional[str]
    memory_cap: Optional[int]
    paths: Union[None, str, Iterable[str]]
    relays: bool
    service: Optional["RemoteCopyService"]
    slot_bytes: Optional[int]
    threads: Optional[int]
    trace: bool


_OPTIONS = frozenset(RefitOptions.__annotations__)
F = TypeVar("F", bound=Callable[..., Any])


def named_options(function: F) -> F:
    """Whoever asks for the signature, such as a notebook that completes, sees each option by name."""
    signature = inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
        for name in RefitOptions.__annotations__
    ]
    function.__signature__ = signature.replace(parameters=own + more)  # type: ignore[attr-defined]
    return function


@dataclass(frozen=True)
class RefitResult:
    """The result of a run. Bytes are those of all ranks together, seconds those of this rank."""

    bytes_moved: int
    bytes_local: int
    seconds: float
    version: int
    digest: str

    @property
    def gbytes_per_s(self) -> float:
        """10^9 bytes per second, including bytes that stayed on their rank."""
        total = self.bytes_moved + self.bytes_local
        return total / self.seconds * 1e-9 if self.seconds > 0 else 0.0


# All ranks or none.


def agree(world: "World", function: Callable[[], bytes]) -> List[bytes]:
    """Collective: what ``function`` returns on each rank. If it raises on any, it does on all: with
    its own exception where it raised, and with the first such rank's sentence elsewhere."""
    said, raised = _say(world, function)
    return _hear([said] if world.size == 1 else world.all_gather(said), raised)


def _say(world: "World", function: Callable[[], bytes]) -> Tuple[bytes, Optional[BaseException]]:
    """What this rank says in an agreement, and what it raises after it."""
    try:
        return b"+" + function(), None
    except BaseException as error:  # of a caller's object or a signal, too: nobody must wait
        if isinstance(error, Error) and not error.ranks:
            error.ranks = (world.rank,)
        return b"-" + _told(error), error


def _hear(parts: Sequence[bytes], raised: Optional[BaseException]) -> List[bytes]:
    if raised is not None:
        _errors.mark_on_all(raised)
        raise raised
    for rank, part in enumerate(parts):
        if part[:1] == b"-":
            heard = _heard(rank, part[1:])
            _errors.mark_on_all(heard)
            raise heard
    return [part[1:] for part in parts]


def _told(error: BaseException) -> bytes:
    own = type(error).__name__
    kind = own if isinstance(error, Error) else "" if isinstance(error, Exception) else "Aborted"
    about = [getattr(error, "tensor", None), list(getattr(error, "ranks", ()))]
    return json.dumps([kind, _errors.said_of(error), about]).encode()


def _heard(rank: int, text: bytes) -> Error:
    kind, sentence, (tensor, ranks) = json.loads(text)
    found = getattr(_errors, kind, Error) if kind else Error
    error = found(f"rank {rank} says: {sentence}", tensor=tensor, ranks=tuple(ranks) or (rank,))
    assert isinstance(error, Error)
    return error


def _check_options(options: Mapping[str, Any]) -> None:
    unknown = sorted(set(options) - _OPTIONS)
    if unknown:
        raise InvalidInput(
            f"{unknown[0]!r} is not an option of a refit: there are {', '.join(sorted(_OPTIONS))}"
        )


# The caller's shards against what the plan expects.

def dtype_name(dtype: Any) -> str:
    """In ferry's words, or "" where it has none."""
    try:
        return _ferry.dtype_name(dtype)
    except Error:
        return ""


def _check(
    side: int, rank: int, name: str, tensor: Any, shard: "Shard", in_boxes: bool
) -> bool:
    """Raises unless the tensor is what the plan expects, or as many bytes in one row. Whether it is
    contiguous."""
    expected = _expected(shard)
    about = f'{_SIDES[side]} {_WORDS[in_boxes]} "{name}" on rank {rank}'
    if isinstance(tensor, int) and not isinstance(tensor, bool):
        return True  # a pointer: the caller answers for it
    shape, dtype, n_bytes, contiguous = _ferry.view_of(tensor, name, side == 1)
    if dtype == "u8" and shape == (shard.bytes,) and contiguous:
        return True
    if in_boxes:  # is memory, whatever shape its owner sees in it
        if not contiguous:
            raise InvalidInput(
                f"{about} is not contiguous: give its memory as it lies there, and say in the "
                "spec's boxes by which strides the elements are found",
                tensor=name,
                ranks=(rank,),
            )
        shape = shard.shape if math.prod(shape) == math.prod(shard.shape) else shape
    if shard.flat is not None and (math.prod(shape),) == shard.shape and contiguous:
        shape = shard.shape
    if shape != shard.shape:
        raise InvalidInput(
            f"{about} has the shape {list(shape)}: {expected}", tensor=name, ranks=(rank,)
        )
    # Where the plan only counts bytes, schedule compares what both ends mean by them.
    if dtype != shard.dtype and not (shard.dtype.startswith("bytes:") and n_bytes == shard.bytes):
        raise InvalidInput(
            f"{about} is of {dtype}{_unnamed(dtype)}: {expected}; a view of it as one row of "
            f"{shard.bytes} u8 is taken too",
            tensor=name,
            ranks=(rank,),
        )
    return contiguous


def _expected(shard: "Shard") -> str:
    return f"the plan expects {list(shard.shape)} of {shard.dtype} here ({shard.bytes} bytes)"


def _missing(
    side: int, rank: int, name: str, shard: "Shard", given: Mapping[str, Any], in_boxes: bool
) -> Error:
    names = ", ".join(f'"{one}"' for one in list(given)[:3])
    more = f", and {len(given) - 3} more" if len(given) > 3 else ""
    there = f"; given are {names}{more}" if names else "; nothing is given"
    there = "" if name in given else there
    what = "is None" if name in given else "is missing"
    return InvalidInput(
        f'{_SIDES[side]} {_WORDS[in_boxes]} "{name}" on rank {rank} {what}: '
        f"{_expected(shard)}{there}",
        tensor=name,
        ranks=(rank,),
    )


def _bytes_of(tensor: Any) -> int:
    return int(_ferry.view_of(tensor, None, False)[2])


def _unnamed(dtype: str) -> str:
    return "" if dtype_name(dtype) else ", which ferry has no name for"


def _box(shard: "Shard", name: str) -> Tuple[Any, ...]:
    """What the service must know of a shard to take boxes of it: see service_register.c."""
    n_elements = math.prod(shard.shape)
    if shard.bytes % n_elements != 0:
        raise Unsupported(
            f'tensor "{name}" has several elements in a byte: give contiguous shards on all ranks',
            tensor=name,
        )
    dtype = None if shard.dtype.startswith("bytes:") else shard.dtype
    first = 0 if shard.flat is None else shard.flat[0]
    shape = shard.full_shape if shard.flat is not None else shard.shape
    return (dtype, tuple(shape), shard.bytes // n_elements, first)


def _piece(
    task: int, peer: int, name: str, boxes: Mapping[str, Any], box: Sequence[slice]
) -> Tuple[Any, ...]:
    tensor, of_shard = boxes[name]
    begin = tuple(one.start for one in box)
    return (
        task, tensor, peer, name, *of_shard, begin, tuple(one.stop - one.start for one in box)
    )  # fmt: skip


def _joined(digests: Sequence[str]) -> str:
    if len(digests) == 1:
        return digests[0]
    return hashlib.blake2b(" ".join(digests).encode(), digest_size=16).hexdigest()


class Refit:
    """A refit that is planned once and run as often as needed. All its methods are collective.

    ``source`` and ``destination`` map names to this rank's local shards: torch or numpy tensors, or
    anything with the buffer protocol or DLPack; pass None for a side in which this rank has
    nothing. ``spec`` is a :class:`ferry.Spec`, a dict, JSON text or a path. Shards need not be
    contiguous. On a side in boxes (:class:`ferry.Side`) names are those of parameters, which may
    have any shape and then must be contiguous, as all other shards. If a rank lacks a tensor, or has it with another shape or dtype than the plan
    expects, all ranks raise an error before anything moves. ``options`` are those of
    :class:`ferry.RemoteCopyService`. Alternatively ``service`` is an initialised service, which
    carries the bytes and remains yours; its ``alloc`` may have allocated the shards.

    >>> import ferry
    >>> whole = {"mesh": [], "rules": [{"match": "*"}]}
    >>> spec = {"format": "ferry.spec/1", "source": whole, "destination": whole,
    ...         "tensors": [{"name": "w", "shape": [4], "dtype": "u8"}]}
    >>> old, new = bytes([1, 2, 3, 4]), bytearray(4)
    >>> with ferry.Refit({"w": old}, {"w": new}, spec) as planned:
    ...     planned.run().version, list(new)
    (1, [1, 2, 3, 4])
    """

    @named_options
    def __init__(
        self,
        source: Shards,
        destination: Shards,
        spec: Any,
        *,
        world: Optional["World"] = None,
        subset: Union[None, str, Iterable[str]] = None,
        replica: str = "balanced",
        progress: Optional[Callable[[Any], Any]] = None,
        watched: Sequence[Watched] = (),
        **options: "Unpack[RefitOptions]",
    ) -> None:
        parts = [(spec, source, destination)]
        if isinstance(subset, Iterator):
            subset = list(subset)  # it is asked for again when ranks are lost or join
        how = {"subset": subset, "replica": replica}
        self._open(parts, world, how, progress, watched, dict(options))

    @classmethod
    def of_parts(
        cls,
        parts: Sequence[Part],
        *,
        world: Optional["World"] = None,
        replica: str = "balanced",
        progress: Optional[Callable[[Any], Any]] = None,
        watched: Sequence[Watched] = (),
        **options: "Unpack[RefitOptions]",
    ) -> "Refit":
        """Several specs, each with its own sources and destinations, that run as one refit.

        Tensors that are given are looked at before each run: whether their memory was replaced.
        Where parts of others are given, ``watched`` are functions that return those, by name.
        """
        self = cls.__new__(cls)
        self._open(parts, world, {"replica": replica}, progress, watched, dict(options))
        return self

    @classmethod
    def of_tasks(
        cls,
        tasks: Callable[[], Tuple[Sequence[Task], Sequence[Task]]],
        *,
        world: Optional["World"] = None,
        progress: Optional[Callable[[Any], Any]] = None,
        watched: Sequence[Watched] = (),
        **options: "Unpack[RefitOptions]",
    ) -> "Refit":
        """What another planner made: this rank's sends and receives, each an id that is unique for
        its pair of ranks, a tensor (of any strides), the other rank, and a name for sentences.
        ``watched`` is that of :meth:`of_parts`."""
        self = cls.__new__(cls)
        given: Dict[str, Any] = dict(options)
        self._begin(world, given)
        sent: List[int] = []

        def register() -> bytes:
            sends, receives = tasks()
            rank = self._world.rank
            sent.append(sum(_bytes_of(tensor) for _, tensor, to, _ in sends if to != rank))
            sent.append(sum(_bytes_of(tensor) for _, tensor, to, _ in sends if to == rank))
            self._register(sends, receives)
            self._watch(watched)
            ids = sorted((task, to, _bytes_of(tensor)) for task, tensor, to, _ in sends)
            return json.dumps([*sent, hashlib.blake2b(repr(ids).encode()).hexdigest()]).encode()

        said = self._serve(register, progress, given)
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
        self._specs: List["Spec"] = []
        self._shards: List[Tuple[Dict[str, Any], Dict[str, Any]]] = []
        self._watched: List[Tuple[Watched, Dict[str, Any]]] = []
        self._before: Any = None  # the given service's progress callback
        self._moved = self._local = 0
        self._digest = ""
        self._planned: Optional[Tuple[Any, Dict[str, Any]]] = None  # of what is bound
        self._how: Any = None  # what _open was given, but for the world
        self._ledger: Optional["Ledger"] = None  # what a refit before this one has brought

    def _open(
        self,
        parts: Sequence[Part],
        world: Optional["World"],
        how: Dict[str, Any],
        progress: Optional[Callable[[Any], Any]],
        watched: Sequence[Watched],
        options: Dict[str, Any],
        ledger: Optional["Ledger"] = None,
    ) -> None:
        self._begin(world, options)
        self._ledger = ledger
        try:
            self._make(parts, how, progress, watched, options)
        except BaseException as error:
            if not isinstance(error, Exception):  # of a signal, of which others have not heard
                leave_failed(self._world, error)
            raise

    def _make(
        self,
        parts: Sequence[Part],
        how: Dict[str, Any],
        progress: Optional[Callable[[Any], Any]],
        watched: Sequence[Watched],
        options: Dict[str, Any],
    ) -> None:
        looked = agree(self._world, lambda: self._look(parts, how, watched, options))
        self._compare(looked)
        self._moved = sum(made.moved_bytes for made in self._plans)
        self._local = sum(made.local_bytes for made in self._plans)
        is_bound = len(self._plans) == 1 and all(one[-1:] == b"c" for one in looked)
        if is_bound:
            self._planned = (self._specs[0], how)
        elif any(True in made._handle.in_boxes for made in self._plans):
            raise Unsupported(
                "a refit with a side in boxes needs one spec, and tensors that are contiguous on "
                "all ranks: say the strides of the others in boxes, too"
            )
        elif any(made._handle.converted for made in self._plans):
            names = [made._handle.converted for made in self._plans if made._handle.converted]
            raise Unsupported(
                f'tensor "{names[0]}" is converted on its way: such a refit needs one spec, and '
                "tensors that are contiguous on all ranks"
            )
        self._how = (parts, how, progress, watched, dict(options))
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
        self._owns_service = given is None

        def take() -> bytes:
            _check_options(options)
            if given is not None and options:
                raise InvalidInput(f"{', '.join(options)}: options are the given service's own")
            if progress is not None and not callable(progress):
                raise InvalidInput("a progress callback is a function of one ferry.Progress")
            if given is not None and not isinstance(given, RemoteCopyService):
                raise InvalidInput(f"service is {given!r}: give a ferry.RemoteCopyService")
            if given is None:
                self._service = RemoteCopyService(self._world, **options)
                self._service._prepare()
            return b"given" if given is not None else b"own"

        try:
            if len(set(agree(self._world, take))) > 1:
                differs = InvalidInput("service is given on some ranks and not on others")
                _errors.mark_on_all(differs)
                raise differs
            self._service = given if given is not None else self._service
            assert self._service is not None
            if self._owns_service:
                self._service.init(log_level="WARN")
            said = agree(self._world, register)
            self._service.schedule()
            if progress is not None:
                self._before = (self._service._report,)
                self._service.set_progress(progress)
            return said
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    # Planning: nothing of it talks.

    def _look(
        self, parts: Sequence[Part], how: Dict[str, Any], watched: Sequence[Watched],
        options: Mapping[str, Any],
    ) -> bytes:
        from ._plan import _spec_of, plan

        _check_options(options)
        contiguous = True
        for given_spec, *sides in parts:
            spec = _spec_of(given_spec)
            made = self._without_lost(spec, plan(spec, **how), how)
            self._specs.append(spec)
            if made.world_size > self._world.size and self._world.epoch == 0:
                raise InvalidInput(
                    f"the spec is for {made.world_size} ranks, and the world has "
                    f"{self._world.size}: start as many, as `ferry launch -n {made.world_size}` "
                    f"or `torchrun --nproc-per-node {made.world_size}` do, or change the spec"
                )
            self._plans.append(made)
            kept: Tuple[Dict[str, Any], Dict[str, Any]] = ({}, {})
            for side, given in enumerate(sides):
                given = {} if given is None else given
                contiguous = self._take(made, side, given, kept[side]) and contiguous
            self._shards.append(kept)
        self._watch(watched)
        self._digest = _joined([str(made.digest) for made in self._plans])
        return self._digest.encode() + (b"c" if contiguous else b"s")

    def _without_lost(self, spec: "Spec", made: "Plan", how: Dict[str, Any]) -> "Plan":
        """The plan, of the members that are in a world which has shrunk or grown."""
        from ._plan import plan

        lost = sorted(set(range(made.world_size)).difference(self._world.members))
        return plan(spec, lost_ranks=lost, **how) if lost and self._world.epoch > 0 else made

    @property
    def _member(self) -> int:
        """Who this rank is in plans."""
        return self._world.members[self._world.rank]

    def _take(self, made: "Plan", side: int, given: Any, kept: Any) -> bool:
        """Keeps what the plan wants of a side; whether all of it is contiguous."""
        rank, contiguous = self._member, True
        if not isinstance(given, Mapping):
            raise InvalidInput(
                f"the {_SIDES[side]} is of type {type(given).__name__}: give a dict of names to "
                "this rank's tensors, such as a state_dict(), or None"
            )
        if rank >= made.world_size:
            return True
        in_boxes = made._handle.in_boxes[side]
        for name, shard in made.shards(_SIDES[side], rank).items():
            if shard.bytes == 0:
                continue
            found = given.get(name)
            if found is None:
                raise _missing(side, rank, name, shard, given, in_boxes)
            for one in found if isinstance(found, tuple) else (found,):
                contiguous = _check(side, rank, name, one, shard, in_boxes) and contiguous
            kept[name] = found
        return contiguous

    def _watch(self, watched: Sequence[Watched]) -> None:
        self._watched = [
            (look, {name: _ferry.place_of(one, name) for name, one in look().items()})
            for look in watched
        ]

    def _agreed(self, call: Callable[..., Any]) -> Any:
        """A run or its start, if all ranks agree to it, which is one with it for the others. Whatever
        a signal's handler raises before they have heard of this rank, they are told."""
        service, handle = self.service, self.service._own()
        before = handle.agreed
        try:
            said, raised = _say(self._world, self._look_again)
            found = call(service._report, None, said)
        except BaseException as error:
            if handle.agreed == before:
                call(service._report, None, b"-" + _told(error))
                _errors.mark_on_all(error)
            raise
        if isinstance(found, list):
            _hear(found, raised)
        return found

    def _look_again(self) -> bytes:
        """Raises if the memory of a tensor was replaced: what is registered is not the model's."""
        for look, places in self._watched:
            found = look()
            for name, place in places.items():
                if name not in found or _ferry.place_of(found[name], name) != place:
                    raise InvalidInput(
                        f'tensor "{name}" was moved, resized or replaced since this was prepared: '
                        "prepare it again",
                        tensor=name,
                    )
        try:
            self.service._own().check_memory()
        except InvalidInput as error:  # which speaks of registering, as a service's user does
            sentence = str(error).replace(_REGISTER_AGAIN, "make another Refit")
            raise InvalidInput(sentence, tensor=error.tensor, ranks=error.ranks) from None
        return b""

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
        self._service.bind(self._plans[0], *self._shards[0])
        if self._ledger is not None:
            self._service.resume(self._ledger)
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
        assert self._service is not None
        sends: List[Tuple[Any, ...]] = []
        receives: List[Tuple[Any, ...]] = []
        rank = self._member
        place = {member: r for r, member in enumerate(self._world.members)}
        for part, (made, shards) in enumerate(zip(self._plans, self._shards)):
            if rank >= made.world_size:
                continue
            boxes = [self._boxes(made, side, shards[side]) for side in (0, 1)]
            for move in made.moves(rank):
                task = part * PART_IDS + move.task_id
                if move.from_rank == rank:
                    name = move.source or move.tensor
                    sends.append(_piece(task, place[move.to_rank], name, boxes[0], move.src_slice))
                if move.to_rank == rank:
                    name = move.tensor
                    receives.append(
                        _piece(task, place[move.from_rank], name, boxes[1], move.dst_slice)
                    )
        self._service._own().register_boxes(True, sends)
        self._service._own().register_boxes(False, receives)
        return b""

    def _boxes(self, made: "Plan", side: int, shards: Mapping[str, Any]) -> Dict[str, Any]:
        expected = made.shards(_SIDES[side], self._member)
        for name, tensor in shards.items():
            if isinstance(tensor, tuple):
                raise Unsupported(
                    f'tensor "{name}" is a pair to swap, which needs contiguous shards on all '
                    "ranks and one pair of meshes",
                    tensor=name,
                )
            if isinstance(tensor, int):
                raise InvalidInput(
                    f'tensor "{name}" is a pointer, of which no boxes can be taken, and another '
                    "tensor is not contiguous: give it as a tensor",
                    tensor=name,
                )
        return {name: (one, _box(expected[name], name)) for name, one in shards.items()}

    # Use.

    @property
    def plans(self) -> Tuple["Plan", ...]:
        """The plan, or one for each spec."""
        return tuple(self._plans)

    @property
    def service(self) -> "RemoteCopyService":
        """The service that carries the bytes; it has the statistics, destinations and versions."""
        if self._service is None:
            raise Misuse("the refit is closed: make another one")
        return self._service

    @property
    def digest(self) -> str:
        """The plan's digest: equal digests mean equal moves."""
        return self._digest

    def run(self) -> RefitResult:
        """Moves the current contents of the source tensors. Returns when all ranks have them.

        If a tensor's memory was replaced since the refit was made (``p.data = ...``, a resize,
        ``module.to()``), all ranks raise :class:`ferry.InvalidInput` with its name before anything
        moves.
        """
        begin = time.perf_counter()
        self._agreed(self.service._own().run)
        return self._result(time.perf_counter() - begin)

    def _result(self, seconds: float) -> RefitResult:
        version = self.service.version
        return RefitResult(self._moved, self._local, seconds, version, self._digest)

    def start(self) -> "RefitRun":
        """Begins what :meth:`run` does, and returns. Collective, and so is the end of the run: all
        ranks ask for its result, or await it, in the same order as other collective calls.

        The sources must stay as they are until then. Keep the object: see
        :meth:`ferry.RemoteCopyService.start`.
        """
        return RefitRun(self, self._agreed(self.service._own().start))

    def recover(self, *, min_size: int = 0) -> "Recovery":
        """After a failed run, also one that lost ranks: makes the refit work again. Collective over
        the remaining ranks.

        Then fill the sources with the values of version ``next`` of the result, and run. If ranks
        were lost, the world is the same object with fewer ranks. Bytes that have arrived are not
        sent again, though the next result counts the bytes of the whole plan. See
        :meth:`ferry.RemoteCopyService.recover_onto`; like that method, this one needs one spec, and
        shards that are contiguous on all ranks.
        """
        service = self.service
        if self._planned is None:
            raise Misuse(
                "recover() needs a refit of one spec whose shards are contiguous on all ranks: "
                "make another refit in the world of world.shrink()"
            )
        spec, how = self._planned
        found = service.recover_onto(spec, min_size=min_size, **how)
        assert service._plan is not None
        self._plans = [service._plan]
        self._digest = str(service._plan.digest)
        self._moved, self._local = service._plan.moved_bytes, service._plan.local_bytes
        return found

    def grow(
        self,
        newcomers: int = 1,
        *,
        members: Optional[Sequence[int]] = None,
        path: Union[None, str, "os.PathLike[str]"] = None,
        join_limit: float = 0.0,
        spec: Any = None,
    ) -> "World":
        """Lets ranks join, and goes on in the larger world, which it returns. Collective.

        The arguments are those of :meth:`World.grow`; ``spec`` is one that knows the newcomers,
        where the refit's own does not. Each newcomer makes an ordinary refit of the same spec in
        the world of ``ferry.init(join=path)``. The next run brings them the version that the others
        have, and these are sent nothing: the sources must still be that version's. The refit needs
        one spec, and shards that are contiguous on all ranks; the service that it made is replaced.

        If no newcomer comes in time this raises :class:`ferry.Timeout`, and the refit stays as it
        was. The old world stays open.
        """
        service = self.service
        if self._planned is None or not self._owns_service:
            raise Misuse(
                "grow() needs a refit of one spec whose shards are contiguous on all ranks, and "
                "which made its service: make another refit in the world of world.grow()"
            )
        ledger = service.take_ledger() if service.version > 0 else None  # not while a run is on
        larger = self._world.grow(newcomers, members=members, path=path, join_limit=join_limit)
        parts, how, progress, watched, options = self._how
        if spec is not None:
            parts = [(spec, *parts[0][1:])]
        fresh = Refit.__new__(Refit)
        try:
            fresh._open(parts, larger, how, progress, watched, dict(options), ledger)
        except BaseException:
            larger.close()
            raise
        vars(self).update(vars(fresh))
        service.finalize()
        return larger

    def close(self) -> None:
        """Frees everything that runs need. It may be called more than once."""
        self.__exit__(None, None, None)

    def __enter__(self) -> "Refit":
        return self

    def __exit__(self, kind: object, error: Optional[BaseException], trace: object) -> None:
        service = self._service
        if service is not None and self._owns_service:
            service.__exit__(kind, error, trace)  # or it refuses, and everything stays
        elif service is not None and service._handle is not None:
            try:
                service.clear_requests()
            except Misuse:  # a run is under way, which the end of the service ends
                if error is None:
                    raise
            if self._before is not None:
                service._report = self._before[0]
        self._service, self._shards, self._watched = None, [], []

    @never_raises
    def __repr__(self) -> str:
        if self._service is None:
            return f"<ferry.Refit {self._digest[:8]}, closed>"
        return (
            f"<ferry.Refit {self._digest[:8]}: {self._moved:,} bytes between ranks, "
            f"{self._local:,} stay; {self._service!r}>"
        )


class RefitRun:
    """A run that :meth:`Refit.start` began. Bytes move while it is asked: :attr:`done` and an
    ``await`` work for about a millisecond at a time, :meth:`result` until the end.

    >>> import ferry
    >>> side = {"mesh": [], "rules": [{"match": "*"}]}
    >>> spec = {"format": "ferry.spec/1", "source": side, "destination": side,
    ...         "tensors": [{"name": "w", "shape": [4], "dtype": "u8"}]}
    >>> new = bytearray(4)
    >>> with ferry.Refit({"w": b"abcd"}, {"w": new}, spec) as refit:
    ...     run = refit.start()
    ...     run.result(timeout=60).version, new
    (1, bytearray(b'abcd'))
    """

    def __init__(self, refit: Refit, request: Any) -> None:
        self._refit = refit
        self._request = request
        self._begin = time.perf_counter()
        self._found: Optional[RefitResult] = None

    @property
    def done(self) -> bool:
        """Whether the run has ended, after a little more of it. Its errors are raised here, too."""
        if self._found is None and self._request.test():
            self._found = self._refit._result(time.perf_counter() - self._begin)
        return self._found is not None

    def result(self, timeout: Optional[float] = None) -> RefitResult:
        """Moves bytes until the run has ended. ``TimeoutError`` if that takes longer than
        ``timeout`` seconds: the run goes on, and can be asked again."""
        limit = None if timeout is None else time.perf_counter() + timeout
        if limit is None and self._found is None:
            self._request.wait()
        while not self.done:
            if limit is not None and time.perf_counter() >= limit:
                raise TimeoutError(
                    f"the run has not ended within {timeout:g} s: it goes on; ask again, or cancel it"
                )
        assert self._found is not None
        return self._found

    def cancel(self) -> None:
        """Ends the run on all ranks, unless it has ended: they get :class:`ferry.Aborted`."""
        self._request.cancel()

    def __await__(self) -> Generator[Any, None, RefitResult]:
        while not self.done:
            yield
        assert self._found is not None
        return self._found

    @never_raises
    def __repr__(self) -> str:
        return f"<ferry.RefitRun, {'under way' if self._found is None else repr(self._found)}>"


@named_options
def refit(
    source: Shards,
    destination: Shards,
    spec: Any,
    *,
    world: Optional["World"] = None,
    subset: Union[None, str, Iterable[str]] = None,
    replica: str = "balanced",
    progress: Optional[Callable[[Any], Any]] = None,
    **options: "Unpack[RefitOptions]",
) -> RefitResult:
    """Collective: makes a plan, moves the source's shards into the destination's, and discards the
    plan.

    For the arguments, and to run the same refit often, see :class:`Refit`.

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


_publish("_refit", globals())
