# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Specs and plans: two layouts of one model, and which box goes from which rank to which."""

from __future__ import annotations

import json
import math
import operator
import os
import tempfile
from itertools import repeat
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple, Union

from . import _ferry, _publish
from ._errors import InvalidInput
from ._given import patterns
from ._repr import fields, never_raises
from ._side import Side

Path = Union[str, "os.PathLike[str]"]


class Spec:
    """Two layouts of one model in the format ``ferry.spec/1``: a dict, JSON text, or a file.

    In a dict, a dtype of torch or numpy may replace its name, a :class:`ferry.Side` may be its
    ``"source"`` or ``"destination"``, and ``"model"`` is relative to the working directory. A spec
    is checked when it is made, and is immutable. Specs that say the same are equal, and they can be
    pickled.

    With ``model=`` a spec follows from a model's config: that is a dict, a config of transformers,
    the path of a ``config.json`` or its folder, or with ``config=`` the name of a family of names,
    such as ``"llama"``. ``source=`` and ``destination=`` are then short forms (None: one rank has
    all), ``names=`` is what the two call the tensors, and the destination's ranks begin at
    ``first_rank``: see :meth:`of`.

    >>> import ferry
    >>> rows = {"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}
    >>> spec = ferry.Spec({
    ...     "format": "ferry.spec/1",
    ...     "tensors": [{"name": "w", "shape": [8, 4], "dtype": "bf16"}],
    ...     "source": {"mesh": [["tp", 2]], "rules": [rows]},
    ...     "destination": {"mesh": [["tp", 4]], "rules": [rows]},
    ... })
    >>> spec
    <ferry.Spec of 1 tensor>
    """

    def __init__(
        self,
        source: Union[Mapping[str, Any], str, "os.PathLike[str]", None] = None,
        *,
        path: Optional[Path] = None,
        model: Any = None,
        config: Any = None,
        names: str = "hf",
        destination: Optional[str] = None,
        first_rank: int = 0,
    ) -> None:
        self._handle: _ferry.Spec
        if model is not None:
            if path is not None or isinstance(source, (Mapping, os.PathLike)):
                raise InvalidInput(
                    'a spec of a model is made of short forms: source="tp=4,pp=2", and '
                    'destination="tp=2"'
                )
            self._handle = _of_model(model, config, names, source, destination, first_rank)
            return
        if destination is not None or config is not None or names != "hf" or first_rank != 0:
            raise InvalidInput("destination, config, names and first_rank need model=")
        if (source is None) == (path is None):
            raise InvalidInput(
                "a spec is made of one thing: a dict or a JSON text, or path= with the file's name"
            )
        if path is None and isinstance(source, os.PathLike):
            path, source = source, None
        if isinstance(source, Plan):
            raise InvalidInput(
                "a plan is given where a spec is wanted: give the spec that the plan was made of"
            )
        if isinstance(source, Mapping) and not source:
            raise InvalidInput(
                'the spec is empty: it lacks "format", "tensors", "source" and "destination"'
            )
        if isinstance(source, Mapping) and not {"format", "tensors", "model"}.intersection(source):
            raise InvalidInput(
                'the spec: lacks the key "format", and has neither "tensors" nor "model": shards '
                "are given before the spec, as refit(source, destination, spec)"
            )
        if path is not None:
            self._handle = _ferry.spec_load(path)
        elif isinstance(source, Mapping):
            self._handle = _ferry.spec_parse(_text_of(source), "the spec")
        elif isinstance(source, str):
            self._handle = _ferry.spec_parse(source, "the spec")
        else:
            raise InvalidInput(
                f"a spec cannot be made of type {type(source).__name__}: give a dict, a JSON text "
                "or path="
            )

    @classmethod
    def load(cls, path: Path) -> "Spec":
        """Reads a spec from a file and, if it names a model, the headers of the model's files."""
        return cls(path=path)

    @classmethod
    def exchange(
        cls,
        base: Union["Spec", Mapping[str, Any], Path],
        *,
        source: Optional[Side] = None,
        destination: Optional[Side] = None,
        world: Any = None,
        group: Any = None,
    ) -> "Spec":
        """The spec of ranks that each know only what they have themselves.

        Every rank calls it, with the same ``base``, and says its own parameters of the source, of
        the destination, or of both: sides whose parameters have ``ranks=None``. All get the same
        spec. In ``base`` a side that ranks say may be left out; one of which no rank says anything
        is that of ``base``. What is wrong on one rank is raised on all.

        ``world`` is a :class:`ferry.World`, ``group`` one of torch.distributed; without both it is
        the world of ``ferry.init()``.

        >>> import ferry
        >>> own = ferry.Side()
        >>> _ = own.add_parameter("w", ranks=None, elements=4)
        >>> own.add_box("w", [0], [4])
        >>> tensors = [{"name": "w", "shape": [4], "dtype": "u8"}]
        >>> base = {"format": "ferry.spec/1", "tensors": tensors}
        >>> ferry.Spec.exchange(base, source=own, destination=own)
        <ferry.Spec of 1 tensor>
        """
        from ._exchange import exchange_of

        own = cls.__new__(cls)
        own._handle = _exchanged(base, [source, destination], exchange_of(world, group))
        return own

    @classmethod
    def of(
        cls,
        config: Any,
        source: Optional[str] = None,
        destination: Optional[str] = None,
        *,
        names: str = "hf",
        first_rank: int = 0,
    ) -> "Spec":
        """The spec of a model by its config: a dict, a config of transformers, or a path.

        ``source`` and ``destination`` are short forms; None: one rank has all. ``names`` is what
        both call the tensors, or two namings such as ``"megatron:vllm"`` (:class:`ferry.Names`).
        Ranks of the destination begin at ``first_rank``.

        >>> import ferry
        >>> spec = ferry.Spec.of({
        ...     "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 32,
        ...     "num_attention_heads": 4, "intermediate_size": 16,
        ... }, "tp=2,pp=2", "tp=4", names="megatron:hf", first_rank=4)
        >>> ferry.plan(spec).world_size
        8
        """
        return cls(
            source, model=config, names=names, destination=destination, first_rank=first_rank
        )

    @property
    def n_tensors(self) -> int:
        """The number of tensors in the model, repeated entries expanded."""
        return self._handle.tensor_count

    def to_json(self) -> str:
        """The spec in the format ``ferry.spec/1``, with a model's tensors in place of its path."""
        return self._handle.write_json()

    def to_dict(self) -> Dict[str, Any]:
        """The same as dicts and lists."""
        parsed: Dict[str, Any] = json.loads(self.to_json())
        return parsed

    def unused(self) -> List["Unused"]:
        """What the spec says and nothing follows, which is mostly a slip in a pattern.

        Rules and stages that fit no tensor of their side, rules all of whose tensors rules before
        them take, coordinates on which a stage puts no tensor, and rates of nodes that no rank is
        on. Rules for any name (``"*"``) are not among them, nor coordinates whose size is 0.

        >>> import ferry
        >>> whole = {"mesh": [], "rules": [{"match": "*"}]}
        >>> spec = ferry.Spec({
        ...     "format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [8], "dtype": "bf16"}],
        ...     "source": whole, "destination": {"mesh": [], "rules": [{"match": "v"}, {"match": "*"}]},
        ... })
        >>> [(one.side, one.kind, one.number, one.match) for one in spec.unused()]
        [('destination', 'rule', 0, 'v')]
        """
        return [
            Unused(side, kind, number, match, is_hidden, axis, range(first, first + n))
            for side, kind, number, match, is_hidden, axis, first, n in self._handle.unused()
        ]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spec) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __reduce__(self) -> Tuple[Any, ...]:
        return Spec, (self.to_json(),)

    @never_raises
    def __repr__(self) -> str:
        return f"<ferry.Spec of {_counted(self.n_tensors, 'tensor')}>"


@fields(
    side='``"source"`` or ``"destination"``; of a node ``"cluster"``.',
    kind='``"rule"``, ``"stage"`` or ``"node"``.',
    number="Its place among the side's rules or stages, from 0 on; of a node which one it is.",
    match="Its pattern; None of a node.",
    is_hidden="Of a rule: tensors fit it, and rules before it take them all.",
    axis="Of a stage that puts nothing on some coordinates: their axis. None: it fits no tensor.",
    coordinates="Those coordinates.",
)
class Unused(NamedTuple):
    """What a spec says and nothing follows: see :meth:`Spec.unused`."""

    side: str
    kind: str
    number: int
    match: Optional[str]
    is_hidden: bool
    axis: Optional[str]
    coordinates: range


@fields(
    task_id="Its number: unique in the plan.",
    tensor="The name of the tensor that is written.",
    source="The name of what it is fed from, where the spec says so.",
    dtype="The dtype of its elements.",
    from_rank="The rank that sends it.",
    to_rank="The rank that gets it.",
    dst_begin="Where the box begins in the shard of the receiver.",
    src_begin="Where the box begins in the shard of the sender.",
    length="The lengths of the box at the receiver.",
    src_length="The lengths of the box at the sender.",
    bytes="Bytes of the box.",
    dst_parameter="On a side in boxes, the receiver's parameter; else None.",
    dst_offset="Where the box begins there, in elements.",
    dst_strides="How far its dimensions go on there, in elements: as many as ``length`` has.",
    src_parameter="The same at the sender.",
    src_offset="Where the box begins there.",
    src_strides="How far its dimensions go on there: as many as ``src_length`` has.",
)
class Move(NamedTuple):
    """One box of one tensor, from a rank to another or to itself.

    Begins and lengths are indices in the local shards of receiver and sender; for flat shards, in
    the shape before flattening (:attr:`Shard.full_shape`). ``length`` and ``src_length`` differ
    only where tensors are stacked, by leading ones. ``dtype`` and ``bytes`` are of what travels,
    where elements are cast on their way.

    On a side in boxes (:class:`ferry.Side`) begins are 0, and element ``i`` of the box is element
    ``offset + i[0] * strides[0] + i[1] * strides[1] + ...`` of a parameter.

    >>> import ferry
    >>> side = ferry.Side()
    >>> _ = side.add_parameter("w.T", ranks=[0], elements=8)
    >>> side.add_box("w", [0, 0], [4, 2], strides=[1, 4])
    >>> plan = ferry.plan({
    ...     "format": "ferry.spec/1", "destination": side,
    ...     "tensors": [{"name": "w", "shape": [4, 2], "dtype": "u8"}],
    ...     "source": {"mesh": [["tp", 2]],
    ...                "rules": [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]},
    ... })
    >>> for move in plan.moves():
    ...     print(move.from_rank, move.length, move.dst_parameter, move.dst_offset, move.dst_strides)
    0 (2, 2) w.T 0 (1, 4)
    1 (2, 2) w.T 2 (1, 4)
    """

    task_id: int
    tensor: str
    source: Optional[str]
    dtype: str
    from_rank: int
    to_rank: int
    dst_begin: Tuple[int, ...]
    src_begin: Tuple[int, ...]
    length: Tuple[int, ...]
    src_length: Tuple[int, ...]
    bytes: int
    dst_parameter: Optional[str] = None
    dst_offset: int = 0
    dst_strides: Tuple[int, ...] = ()
    src_parameter: Optional[str] = None
    src_offset: int = 0
    src_strides: Tuple[int, ...] = ()

    @property
    def dst_slice(self) -> Tuple[slice, ...]:
        """The box in the receiver's shard: ``shard[move.dst_slice]``."""
        return tuple(slice(b, b + n) for b, n in zip(self.dst_begin, self.length))

    @property
    def src_slice(self) -> Tuple[slice, ...]:
        """The box in the sender's shard."""
        return tuple(slice(b, b + n) for b, n in zip(self.src_begin, self.src_length))


@fields(
    dtype="The dtype of its elements.",
    shape="Of the rank's memory: one-dimensional where the shard is flat.",
    full_shape="In which moves count: what ``shape`` is without a flat cut.",
    global_shape="Of the whole tensor.",
    flat="The range of full_shape's elements that the rank has, or None.",
    bytes="Bytes of the shard.",
)
class Shard(NamedTuple):
    """The part of one tensor that a rank holds."""

    dtype: str
    shape: Tuple[int, ...]
    full_shape: Tuple[int, ...]
    global_shape: Tuple[int, ...]
    flat: Optional[Tuple[int, int]]
    bytes: int


@fields(
    received="Bytes from other ranks.",
    sent="Bytes to other ranks.",
    local="Bytes from itself to itself.",
    n_moves="Moves that it receives, those from itself included.",
)
class RankBytes(NamedTuple):
    """What one rank has to do."""

    received: int
    sent: int
    local: int
    n_moves: int


@fields(
    seconds="None without a cluster in the spec.",
    rank="The rank that decides; of a node, its first.",
    reason='``"egress"``, ``"ingress"``, ``"node_egress"``, ``"node_ingress"`` or ``"none"``.',
    busiest_bytes="The least that the busiest sender sends, whichever replicas send.",
)
class Bound(NamedTuple):
    """The lower bound of any plan without relays, and which rank or node decides it."""

    seconds: Optional[float]
    rank: int
    reason: str
    busiest_bytes: float


@fields(
    tensor="What is codes, or values of codes, at the destination.",
    makes='``"codes"`` or ``"values"``.',
    at='Who computes it: ``"sender"`` or ``"receiver"``.',
    rank="Which one.",
    staging_bytes="Memory that a run takes for it on this rank, beside the tensors.",
)
class BlockWork(NamedTuple):
    """What a rank computes of a tensor whose blocks share scales."""

    tensor: str
    makes: str
    at: str
    rank: int
    staging_bytes: int


class Statistics(NamedTuple):
    """What planning touched."""

    n_tensors: int
    layout_classes: int
    replica_sets: int
    holder_entries: int
    cuts: int


class Plan:
    """Which box of which tensor goes from which rank to which. Made by :func:`plan`.

    A plan does not store moves: they are computed while you iterate over them, so even a plan for
    thousands of ranks is small. A plan is immutable, and several threads may use it. Two plans are
    equal if their digests are equal.
    """

    def __init__(self, handle: "_ferry.Plan") -> None:
        if not isinstance(handle, _ferry.Plan):
            raise InvalidInput("a plan is made by ferry.plan(spec) or ferry.Plan.load(path)")
        self._handle = handle

    @classmethod
    def load(cls, path: Path) -> "Plan":
        """Makes the plan that :meth:`save` saved again, and checks that it is the same."""
        return cls(_ferry.plan_load(path))

    def save(self, path: Path) -> None:
        """Saves the plan's input and its digest: a small file whatever the number of moves."""
        self._handle.save(path)

    @property
    def world_size(self) -> int:
        """The plan's ranks are 0 to ``world_size - 1``, including ranks without any tensor."""
        return self._handle.world_size

    @property
    def digest(self) -> str:
        """A hash of the plan's input, 32 hexadecimal digits: equal plans have equal digests."""
        return self._handle.digest

    @property
    def n_moves(self) -> int:
        """The number of moves."""
        return self._handle.totals[0]

    @property
    def moved_bytes(self) -> int:
        """Bytes between ranks, every replica counted."""
        return self._handle.totals[1]

    @property
    def local_bytes(self) -> int:
        """Bytes from a rank to itself."""
        return self._handle.totals[2]

    @property
    def bound(self) -> Bound:
        """The lower bound of any plan without relays, and which rank or node decides it."""
        return Bound(*self._handle.bound)

    @property
    def statistics(self) -> Statistics:
        """What planning touched."""
        return Statistics(*self._handle.statistics)

    def rank_bytes(self, rank: int) -> RankBytes:
        """What one rank has to do."""
        return RankBytes(*self._handle.rank_bytes(_rank(rank)))

    def moves(self, rank: Optional[int] = None) -> Iterator[Move]:
        """The moves that ``rank`` sends or receives, or all, in order of their task ids.

        They are computed one after the other, as you iterate.

        >>> import ferry
        >>> whole = {"mesh": [], "rules": [{"match": "*"}]}
        >>> plan = ferry.plan({
        ...     "format": "ferry.spec/1",
        ...     "tensors": [{"name": "w", "shape": [8, 4], "dtype": "bf16"}],
        ...     "source": whole, "destination": dict(whole, first_rank=1),
        ... })
        >>> for move in plan.moves():
        ...     print(move.tensor, move.from_rank, move.to_rank, move.dst_slice, move.bytes)
        w 0 1 (slice(0, 8, None), slice(0, 4, None)) 64
        """
        tuples = self._handle.moves(None if rank is None else _rank(rank))
        return map(tuple.__new__, repeat(Move), tuples)  # what Move._make does, without its call

    def traffic(self, rank: Optional[int] = None) -> Dict[Tuple[int, int], int]:
        """Bytes by ``(from, to)``, for pairs that exchange any; bytes that stay are under ``(rank,
        rank)``.

        With ``rank``, only what that rank sends or receives: one row and one column of the matrix.
        """
        return self._handle.traffic(None if rank is None else _rank(rank))

    def shards(self, side: str, rank: int) -> Dict[str, Shard]:
        """The shards that ``rank`` holds on a side (``"source"`` or ``"destination"``), by tensor.

        In the order of the spec, including those without elements. Source tensors that no
        destination needs are left out. On a side in boxes (:class:`ferry.Side`) they are its
        parameters, each of as many elements in a row as it has.
        """
        return {
            name: Shard(dtype, full if flat is None else (flat[1] - flat[0],), full, whole, flat, n)
            for name, dtype, full, whole, flat, n in self._handle.shards(side, _rank(rank))
        }

    def block_work(self) -> List[BlockWork]:
        """Who computes what of tensors that are quantized or dequantized on their way, by tensor and
        rank; of senders, all that have some of it."""
        return [BlockWork(*work) for work in self._handle.block_work()]

    def idle_ranks(self) -> List[int]:
        """Ranks of the world that have no part of any tensor, on neither side: nothing of them is read
        or written. Lost ranks are not among them.

        >>> import ferry
        >>> whole = {"mesh": [], "rules": [{"match": "*"}]}
        >>> ferry.plan({
        ...     "format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [8], "dtype": "bf16"}],
        ...     "source": whole, "destination": dict(whole, first_rank=3),
        ... }).idle_ranks()
        [1, 2]
        """
        return [first + i for first, n in self._handle.idle() for i in range(n)]

    def to_json(self, rank: Optional[int] = None, summary: bool = False) -> str:
        """The plan as a text of the format ``ferry.plan/1``.

        With ``rank``, only that rank's moves; with ``summary``, none.
        """
        return self._handle.write_json(None if rank is None else _rank(rank), summary)

    def json(self, rank: Optional[int] = None, summary: bool = False) -> Dict[str, Any]:
        """What :meth:`to_json` writes, as dicts and lists."""
        parsed: Dict[str, Any] = json.loads(self.to_json(rank, summary))
        return parsed

    def to_html(self, title: Optional[str] = None, *, schedule: bool = False) -> str:
        """A report: one HTML page, which fetches nothing when it is looked at.

        It has the traffic, what each rank sends and receives, and who holds what of every tensor
        before and after; with ``schedule`` also what travels when, which takes time to compute for
        thousands of ranks. ``title`` is what the page is called.
        """
        return self._handle.write_html(title, schedule)

    def schedule(
        self,
        rule: str = "optimal",
        *,
        duplex: str = "full",
        slot_bytes: int = 0,
        max_tasks: int = 0,
        relays: bool = True,
    ) -> "Schedule":
        """In which round everything travels, and how long that takes on the spec's cluster.

        ``rule`` is ``"optimal"``, ``"first-fit"`` (the reference scheduler's) or
        ``"first-fit-half"``; ``duplex`` ``"full"`` or ``"half"``; ``slot_bytes`` is the most bytes
        of a batch and ``max_tasks`` the most segments (0: the defaults). With ``relays=False``
        receivers pass nothing on.

        >>> import ferry
        >>> whole = {"mesh": [], "rules": [{"match": "*"}]}
        >>> spec = {"format": "ferry.spec/1", "source": whole, "destination": dict(whole, first_rank=1),
        ...         "tensors": [{"name": "w", "shape": [8, 4], "dtype": "bf16"}]}
        >>> schedule = ferry.plan(spec).schedule()
        >>> schedule.n_rounds, schedule.bytes, schedule.ratio
        (1, 64, 1.0)
        """
        if rule == "first-fit-half":
            duplex = "half"
        handle = _ferry.plan_schedule(self._handle, rule, duplex, slot_bytes, max_tasks, relays)
        return Schedule(handle, self)

    def prove(self, spec: Union[Spec, Mapping[str, Any], Path]) -> "Proof":
        """Checks every element of every destination shard against the spec that the whole plan was
        made of, with a second planner that shares no code with the first.

        :class:`ferry.ProofFailed` names the first one that is wrong.
        """
        with tempfile.TemporaryDirectory(prefix="ferry-") as folder:
            paths = [os.path.join(folder, name) for name in ("spec.json", "plan.json")]
            for path, text in zip(paths, (_spec_of(spec).to_json(), self.to_json())):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            return Proof(*_ferry.plan_prove(*paths))

    def __reduce__(self) -> Tuple[Any, ...]:
        with tempfile.TemporaryDirectory(prefix="ferry-") as folder:
            path = os.path.join(folder, "plan")
            self.save(path)
            with open(path, "rb") as file:
                return _unpickle, (file.read(),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @never_raises
    def __repr__(self) -> str:
        return (
            f"<ferry.Plan {self.digest[:8]}: {_counted(self.world_size, 'rank')}, "
            f"{_counted(self.n_moves, 'move')}, {self.moved_bytes:,} bytes between ranks, "
            f"{self.local_bytes:,} stay>"
        )

    def _repr_html_(self) -> str:
        from ._plan_html import plan_html

        return plan_html(self)


def _unpickle(saved: bytes) -> Plan:
    with tempfile.TemporaryDirectory(prefix="ferry-") as folder:
        path = os.path.join(folder, "plan")
        with open(path, "wb") as file:
            file.write(saved)
        return Plan.load(path)


@fields(
    n_tensors="Tensors that the destination wants.",
    n_moves="Moves that were read, local ones included.",
    n_destination_shards="Pairs of a rank and a tensor with at least one element.",
    moved_bytes="By moves between two ranks.",
    local_bytes="By moves from a rank to itself.",
)
class Proof(NamedTuple):
    """How much :meth:`Plan.prove` has proven."""

    n_tensors: int
    n_moves: int
    n_destination_shards: int
    moved_bytes: int
    local_bytes: int


class Schedule:
    """When the moves of a plan travel: rounds of batches. Made by :meth:`Plan.schedule`.

    ``seconds`` and ``bound`` are those of the port model, of the spec's cluster; without one they
    are None, and ``ratio`` counts bytes. No schedule of the same moves is faster than ``bound``,
    also where receivers pass on what several need: it may be below :attr:`Plan.bound`.
    """

    def __init__(self, handle: "_ferry.Schedule", plan: Plan) -> None:
        if not isinstance(handle, _ferry.Schedule):
            raise InvalidInput("a schedule is made by Plan.schedule()")
        self._handle = handle
        self._plan = plan
        (
            self.n_rounds, self.degree, self.n_batches, self.n_segments, self.bytes,
            self.relayed_bytes, has_seconds, makespan, bound, self.ratio,
        ) = handle.report  # fmt: skip
        self.seconds: Optional[float] = makespan if has_seconds else None
        self.bound: Optional[float] = bound if has_seconds else None

    @property
    def digest(self) -> str:
        """A hash of every batch and segment."""
        return self._handle.digest

    def to_json(self, rank: Optional[int] = None, summary: bool = False) -> str:
        """The plan as ``ferry.plan/1`` with its schedule: see :meth:`Plan.to_json`."""
        given = None if rank is None else _rank(rank)
        return self._handle.write_json(self._plan._handle, given, summary)

    def save_trace(self, path: Path) -> None:
        """Writes the predicted timeline to a file: a Chrome trace, which opens in Perfetto."""
        text = self._handle.write_trace()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    @never_raises
    def __repr__(self) -> str:
        time = "" if self.seconds is None else f", {self.seconds:.6g} s"
        return (
            f"<ferry.Schedule {self.digest[:8]}: {_counted(self.n_rounds, 'round')}, {self.bytes:,} "
            f"bytes{time}, {self.ratio:.3f} times the bound with relays>"
        )


def plan(
    spec: Union[Spec, Mapping[str, Any], Path],
    *,
    replica: str = "balanced",
    subset: Union[None, str, Iterable[str]] = None,
    lost_ranks: Iterable[int] = (),
) -> Plan:
    """Makes the plan of a spec: a :class:`Spec`, a dict, JSON text, or the path of a file.

    ``replica`` chooses the sender where several ranks hold the same bytes: ``"balanced"`` so that
    the busiest sender sends as little as possible, ``"seed"`` by Megatron-Core's rule. ``subset``
    is a pattern (``*`` any text, ``?`` one byte), or a list of them: only destination tensors that
    match. Ranks in
    ``lost_ranks`` neither send nor receive; if only they held some data, the call raises
    :class:`InvalidPlan`, with the tensor, the slice and the ranks as attributes.

    >>> import ferry
    >>> rows = {"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}
    >>> plan = ferry.plan({
    ...     "format": "ferry.spec/1",
    ...     "tensors": [{"name": "w", "shape": [8, 4], "dtype": "bf16"}],
    ...     "source": {"mesh": [["tp", 2]], "rules": [rows]},
    ...     "destination": {"mesh": [["tp", 4]], "rules": [rows]},
    ... })
    >>> plan.rank_bytes(1)
    RankBytes(received=16, sent=32, local=0, n_moves=1)
    >>> plan.traffic()
    {(0, 0): 16, (0, 1): 16, (1, 2): 16, (1, 3): 16}
    """
    lost = [_rank(rank, "an entry of lost_ranks") for rank in lost_ranks]
    return Plan(_ferry.plan_create(_spec_of(spec)._handle, replica, patterns(subset), lost))


def _of_model(
    model: Any,
    config: Any,
    names: str,
    source: Optional[str],
    destination: Optional[str],
    first_rank: int,
) -> "_ferry.Spec":
    from .names import Names

    if config is None and isinstance(model, str) and model in dict(_ferry.names_families()):
        raise InvalidInput(
            f'model="{model}" is a family of names: give config= too, the config.json of a model'
        )
    found = Names(model) if config is None else Names(config, family=model)
    return found.spec(names, source, destination, first_rank=_rank(first_rank, "first_rank"))._handle


_ROLES = ("source", "destination")


def _side_text(side: Optional[Side], role: str) -> Optional[str]:
    if side is not None and not isinstance(side, Side):
        raise InvalidInput(
            f"the {role} that a rank says is of type {type(side).__name__}: give a ferry.Side"
        )
    if side is None:
        return None
    text = side.to_json()
    _ferry.side_check(text, f"the {role}")
    return text


def _with_sides(base: Any) -> Tuple[Any, List[bool]]:
    """The base with something for the sides that it lacks, and which those are."""
    if not isinstance(base, Mapping):
        return base, [False, False]
    anything = {"mesh": [], "rules": [{"match": "*"}]}  # a side that no rank says is refused
    return {**{role: anything for role in _ROLES}, **base}, [role not in base for role in _ROLES]


def _exchanged(base: Any, sides: List[Optional[Side]], exchange: Any) -> "_ferry.Spec":
    """What is wrong with what a rank gives is told to all before they make anything of it."""
    from ._exchange import agree

    failure: Optional[Exception] = None
    texts: List[Optional[str]] = []
    open_sides: List[bool] = []
    try:
        texts = [_side_text(side, role) for side, role in zip(sides, _ROLES)]
        base, lacks = _with_sides(base)
        handle = _spec_of(base)._handle
        open_sides = [lack and text is None for lack, text in zip(lacks, texts)]
    except Exception as error:
        failure = error
    agree(exchange, failure)
    told = [json.loads(part) for part in exchange.all_gather(json.dumps(open_sides).encode())]
    for at, role in enumerate(_ROLES):
        if all(its[at] for its in told):
            raise InvalidInput(f"no rank says anything of the {role}, and the base does not either")
    return _ferry.spec_exchange(handle, texts[0], texts[1], exchange)


def _spec_of(spec: Union[Spec, Mapping[str, Any], Path]) -> Spec:
    if isinstance(spec, Spec):
        return spec
    if spec is None:
        raise InvalidInput("the spec is None: give a ferry.Spec, a dict, JSON text, or a path")
    # No path begins with a brace, or it is given as ./{...
    if isinstance(spec, str) and not spec.lstrip().startswith("{"):
        return Spec(path=spec)
    return Spec(spec)


def _rank(rank: object, what: str = "the rank") -> int:
    try:
        return operator.index(rank)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidInput(f"{what} is {rank!r}, not a whole number") from None


def _text_of(source: Mapping[str, Any]) -> str:
    """A spec as JSON, with the tensors of a model in the place of its path."""
    model = source.get("model")
    if isinstance(model, (str, os.PathLike)) and "tensors" not in source:
        rest = {key: value for key, value in source.items() if key != "model"}
        source = {**rest, "tensors": _tensors_of(model)}
    return json_text(source, "the spec")


def json_text(value: Mapping[str, Any], what: str) -> str:
    """A spec or a layout as JSON."""
    try:
        return json.dumps(value, default=_plain, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{what} cannot be written as JSON: {error}") from None


def _tensors_of(model: Path) -> List[Dict[str, Any]]:
    """The entries of a model, as the library puts them in the place of its path."""
    from ._checkpoint import inspect

    entries = []
    for name, dtype, shape, n_bytes in inspect(model):
        n = math.prod(shape)
        if dtype.lower() != dtype:  # a word of the files that ferry has no name for
            fits = n > 0 and n_bytes % n == 0
            dtype, shape = (f"bytes:{n_bytes // n}", shape) if fits else ("bytes:1", (n_bytes,))
        entries.append({"name": name, "shape": shape, "dtype": dtype})
    return entries


def _plain(value: Any) -> Any:
    """What JSON has no word for: sides, numbers of numpy, other mappings and sequences, dtypes."""
    if isinstance(value, Side):
        return value.to_dict()
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "__index__"):
        return operator.index(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return _ferry.dtype_name(value)


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


_publish("_plan", globals())
