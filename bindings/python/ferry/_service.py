# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The copy service: ranks register what they send and receive, and run it as often as needed."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
from typing import (
    TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence,
    Tuple, Union,
)  # fmt: skip

from . import _ferry, _publish, _world
from ._errors import Error, InvalidInput, Misuse, number, text
from ._given import patterns
from ._repr import fields, never_raises, of_type

if TYPE_CHECKING:
    from ._ferry import Ledger as Ledger, Memory, Queue as Queue, Request as Request, World
    from ._plan import Plan, Spec

# (task_id, tensor, position, size, pe), and maybe a name for sentences.
Registration = Sequence[Any]
Tensors = Optional[Mapping[str, Any]]

_CHECKSUMS = {"none": 0, "path": 1, "end": 2}
_COMMITS = {"in-place": 0, "swap": 1}
_PATHS = {"local": 1, "mapped": 2, "remote": 4, "staged": 8}
_STATES = ("untouched", "torn", "valid")
_SPANS = ("pack", "wire", "unpack", "copy", "check", "wait")


@fields(
    bytes_done="Bytes that have gone out and come in so far.",
    bytes_total="Bytes of the whole run.",
    seconds="Time since the run began.",
)
class Progress(NamedTuple):
    """The argument of a progress callback: bytes that this rank has sent and received so far."""

    bytes_done: int
    bytes_total: int
    seconds: float


class Statistics(NamedTuple):
    """This rank's statistics; from ``bytes_local`` on, those of its last run."""

    n_runs: int
    n_schedules: int
    n_allocations: int
    n_registrations: int
    staging_bytes: int
    bytes_local: int
    bytes_mapped: int
    bytes_remote: int
    bytes_staged: int
    bytes_relayed: int
    bytes_received: int
    bytes_device: int
    n_batches_sent: int
    n_batches_received: int
    seconds: float
    seconds_pack: float
    seconds_wire: float
    seconds_unpack: float
    seconds_check: float
    seconds_wait: float
    bytes_skipped: int
    bytes_filled: int
    bytes_device_slots: int


@fields(
    peer="The rank.",
    paths="The ways that bytes take between the two.",
    engine="Who carries them.",
    bytes_out="Bytes that a run sends there.",
    bytes_in="Bytes that a run gets from there.",
    bytes_skipped="Bytes that the last run found there already, with ``delta``.",
)
class Peer(NamedTuple):
    """A rank that this one exchanges bytes with, and by which paths."""

    peer: int
    paths: Tuple[str, ...]
    engine: str
    bytes_out: int
    bytes_in: int
    bytes_skipped: int


@fields(
    name="What it was registered or bound as.",
    state='``"untouched"``, ``"torn"`` or ``"valid"``.',
    version="Of what it holds, where that is valid.",
    bytes="Bytes that runs write.",
    missing="Bytes of the last run that have not come, if it failed.",
    address="Where its memory begins.",
    tensor="The object that holds the version; None for a pointer.",
)
class Destination(NamedTuple):
    """A tensor that runs write to: ``state`` is ``"untouched"``, ``"torn"`` or ``"valid"``.

    ``tensor`` is the object that holds the version (with ``commit="swap"`` the front one), ``None``
    for a pointer. After a failed run, ``missing`` is the number of bytes that did not arrive.
    """

    name: str
    state: str
    version: int
    bytes: int
    missing: int
    address: int
    tensor: Any

    def __repr__(self) -> str:
        return (
            f"Destination(name={self.name!r}, state={self.state!r}, version={self.version}, "
            f"bytes={self.bytes}, missing={self.missing}, address={self.address:#x}, "
            f"tensor={of_type(self.tensor)})"
        )


@fields(
    whole="The newest version that every rank has whole; 0: none.",
    next="The version that the next run makes.",
    bytes_in_place="Bytes of ``next`` that are here already.",
    n_lost="How many ranks were left behind.",
)
class Recovery(NamedTuple):
    """The result of a recovery. ``next`` is the version that the next run makes on all ranks, so
    fill the sources with it. ``whole`` is the newest version that every rank still holds complete
    (0: none), ``bytes_in_place`` the number of bytes of ``next`` that this rank already has, and
    ``n_lost`` the number of lost ranks.
    """

    whole: int
    next: int
    bytes_in_place: int
    n_lost: int


@fields(
    kind="What was done: pack, wire, unpack, copy, check or wait.",
    peer="The other rank.",
    batch="The number of the batch between the two.",
    bytes="Bytes of the batch.",
    begin="Seconds from the beginning of the run.",
    end="Seconds from the beginning of the run.",
)
class Span(NamedTuple):
    """A batch of the last run and when it was handled, in seconds from the run's start."""

    kind: str
    peer: int
    batch: int
    bytes: int
    begin: float
    end: float


def _choice(what: str, value: Optional[str], known: Dict[str, int]) -> int:
    """Its number; None is the first, which is the default of each."""
    if value is None:
        return next(iter(known.values()))
    if not isinstance(value, str) or value not in known:
        raise InvalidInput(f"{what} is {value!r}: choose one of {', '.join(map(repr, known))}")
    return known[value]


def _path_flags(paths: Union[None, str, Iterable[str]]) -> int:
    if paths is None:
        return 0
    names = [paths] if isinstance(paths, str) else list(paths)
    if not names:
        raise InvalidInput("paths is empty: name some, or leave it out for all")
    flags = 0
    for name in names:
        flags |= _choice("a path", name, _PATHS)
    return flags


def _check_pairs(sources: Tensors, destinations: Tensors, swaps: bool) -> None:
    for side, tensors in (("source", sources), ("destination", destinations)):
        for name, one in tensors.items() if isinstance(tensors, Mapping) else ():
            if isinstance(one, (tuple, list)) and not (swaps and side == "destination"):
                raise InvalidInput(
                    f'{side} tensor "{name}" is given as {len(one)} objects: a pair (front, back) '
                    'is for destinations of a service with commit="swap"',
                    tensor=str(name),
                )


def _note_writes(tensors: Sequence[Any]) -> None:
    """Tells torch's autograd of writes to tensors, as its own operations in place do."""
    from torch.autograd.graph import increment_version

    for tensor in tensors:
        if not tensor.is_inference():
            increment_version(tensor)


class RemoteCopyService:
    """Moves bytes between the memories of ranks.

    Tensors may be of torch or numpy, anything with the buffer protocol, DLPack or
    ``__cuda_array_interface__``, or an ``int``, which is a pointer. Positions and sizes are in **bytes**, counted over a tensor's
    elements in row-major order. Tensors with gaps between their rows are accepted, without a copy.

    ``world`` holds the ranks (default: :func:`ferry.world`, made by :meth:`init`), or ``group`` is
    a group of torch.distributed. ``engines`` chooses the transport, such as ``"shm"``;
    ``memory_cap`` limits staging memory and ``slot_bytes`` the size of a message, both in bytes;
    ``threads`` is the number of threads that copy on this rank; ``checksum`` is ``"none"``,
    ``"path"`` or ``"end"``; with ``commit="swap"`` runs write to the back one of two buffers;
    ``paths`` lists the allowed paths; ``relays=False`` keeps receivers from passing bytes on;
    ``trace`` records :meth:`spans`; ``first_version`` is the number of the first run (default 1),
    for a service that continues another one. With ``delta=True`` runs move only what differs from
    what lies in the destinations, whoever wrote it: :meth:`statistics` counts the rest as
    ``bytes_skipped``. Options must be the same on all ranks.

    ``init``, ``schedule``, ``run``, ``start``, ``rebind``, ``recover_onto``, ``recover`` and
    ``finalize`` are collective: every rank calls them, in the same order. Use a service from one
    thread at a time.

    >>> import ferry
    >>> source, destination = bytearray(b"weights!"), bytearray(8)
    >>> with ferry.RemoteCopyService() as service:
    ...     service.init(log_level="WARN")
    ...     service.register_send(7, source, 0, 8, dest_pe=0)
    ...     service.register_receive(7, destination, 0, 8, src_pe=0)
    ...     service.schedule()
    ...     service.run()
    >>> destination
    bytearray(b'weights!')
    """

    def __init__(
        self,
        world: Optional["World"] = None,
        *,
        group: Any = None,
        engines: Optional[str] = None,
        memory_cap: Optional[int] = None,
        slot_bytes: Optional[int] = None,
        threads: Optional[int] = None,
        checksum: Optional[str] = "none",
        commit: Optional[str] = "in-place",
        paths: Union[None, str, Iterable[str]] = None,
        relays: bool = True,
        trace: bool = False,
        first_version: Optional[int] = None,
        delta: bool = False,
    ) -> None:
        if world is not None and group is not None:
            raise InvalidInput("a service is of a world or of a group: give one of them")
        self._options: Dict[str, Any] = {
            "engines": engines,
            "memory_cap": 0 if memory_cap is None else memory_cap,
            "slot_bytes": 0 if slot_bytes is None else slot_bytes,
            "threads": 0 if threads is None else threads,
            "checksum": _choice("checksum", checksum, _CHECKSUMS),
            "commit": _choice("commit", commit, _COMMITS),
            "paths": _path_flags(paths),
            "relays": relays,
            "trace": trace,
            "first_version": 0 if first_version is None else first_version,
            "delta": delta,
        }
        self._world = world
        self._group = group
        self._owns_world = False
        self._handle: Optional["_ferry.Service"] = None
        self._made: Optional["_ferry.Service"] = None  # and not opened
        self._finalized = False
        self._pid = os.getpid()
        self._report: Optional[Callable[[int, int, float], Any]] = None
        self._plan: Optional["Plan"] = None  # that is bound

    # The life of a service.

    def _own(self) -> "_ferry.Service":
        if self._handle is not None:
            return self._handle
        if self._finalized:
            raise Misuse("the service was finalized: make another one")
        raise Misuse("the service was not initialized: call init() before")

    def init(self, log_level: str = "INFO") -> None:
        """Opens the transport. Collective; a second call does nothing.

        Makes the world if none was given: from the variables of torchrun, mpirun, srun or ``ferry
        launch``, or from torch.distributed's group. ``log_level`` is TRACE, DEBUG, INFO, WARN or
        ERROR, unless :func:`ferry.log_to` has set a level.
        """
        if self._handle is not None and self._handle.initialized:
            return
        if self._finalized:
            self._own()
        handle = self._prepare()
        self._made = None
        log = sys.modules.get(f"{__package__}._log")
        handle.init(log_level if log is None else log.level_of(log_level))
        self._handle = handle
        _live.add(self)

    def _prepare(self) -> "_ferry.Service":
        """What init opens: for those that want to know first whether it can be on all ranks."""
        self._make_world()
        assert self._world is not None
        if self._made is None:
            self._made = _ferry.service(self._world, **self._options)
        return self._made

    def _make_world(self) -> None:
        if self._world is not None:
            return
        if self._group is None:
            from ._world import world

            self._world = world()
            return
        from ._exchange import TorchExchange

        self._world = _ferry.world_from_exchange(TorchExchange(self._group))
        self._owns_world = True

    def finalize(self) -> None:
        """Frees everything. Collective; a second call does nothing."""
        self._end(False)

    def _end(self, quickly: bool) -> None:
        handle = self._handle
        if handle is not None:
            try:
                handle.finalize(quickly)
            finally:
                if not handle.initialized:
                    self._handle = None
        self._finalized = True
        self._made = None
        if self._owns_world and self._world is not None:
            self._world.close()
        self._world = None

    def __enter__(self) -> "RemoteCopyService":
        return self

    def __exit__(self, kind: object, error: Optional[BaseException], trace: object) -> None:
        if isinstance(error, SystemExit) and self._handle is not None and self.n_pes > 1:
            _kept.append(self)  # the program ends: see _leave_all
            return
        _world.leave_failed(self._world, error)
        self._end(error is not None)

    @property
    def my_pe(self) -> int:
        """The number of this PE (processing element): its rank in the world."""
        return self._own().my_pe

    @property
    def n_pes(self) -> int:
        """The number of PEs (ranks)."""
        return self._own().n_pes

    @property
    def device(self) -> str:
        """The device of tensors: ``"cpu"``, as in torch."""
        return "cpu"

    @property
    def initialized(self) -> bool:
        """Whether the service is between ``init`` and ``finalize``."""
        return self._handle is not None and self._handle.initialized

    # Registration.

    def register_send(
        self, task_id: int, src_tensor: Any, src_pos: int, size: Optional[int], dest_pe: int,
        *, name: Optional[str] = None,
    ) -> None:  # fmt: skip
        """Bytes ``[src_pos, src_pos + size)`` of a tensor go to a PE, which may be this one.

        ``size`` ``None`` means all bytes from ``src_pos``. Ids are unique for each pair of PEs, and
        the same at both ends. A task of zero bytes is ignored. The service holds the tensor until
        ``clear_requests`` or ``finalize``. Of a tensor with gaps, a range must be all of it or
        whole rows of one of its dims.
        """
        self._own().register(True, task_id, src_tensor, src_pos, size, dest_pe, name)

    def register_receive(
        self, task_id: int, dest_tensor: Any, dest_pos: int, size: Optional[int], src_pe: int,
        *, name: Optional[str] = None,
    ) -> None:  # fmt: skip
        """Bytes ``[dest_pos, dest_pos + size)`` of a tensor come from a PE; see `register_send`."""
        self._own().register(False, task_id, dest_tensor, dest_pos, size, src_pe, name)

    def register_sends(self, sends: Iterable[Registration]) -> None:
        """Many sends in one call, each ``(task_id, src_tensor, src_pos, size, dest_pe)``.

        A sixth value is a name. If one is refused, those before it stay registered.
        """
        self._own().register_many(True, sends)

    def register_receives(self, receives: Iterable[Registration]) -> None:
        """Many receives, each ``(task_id, dest_tensor, dest_pos, size, src_pe)``."""
        self._own().register_many(False, receives)

    def bind(self, plan: "Plan", sources: Tensors = None, destinations: Tensors = None) -> None:
        """Registers what this rank sends and receives according to a plan; replaces all earlier
        registrations.

        Both are dicts from the plan's names to this rank's shards, whole and contiguous. Names that
        the plan does not use are ignored. With ``commit="swap"`` a destination is a pair ``(front,
        back)``.
        """
        _check_pairs(sources, destinations, self._options["commit"] == _COMMITS["swap"])
        self._own().bind(getattr(plan, "_handle", plan), sources, destinations)
        self._plan = plan

    def rebind(self, sources: Tensors = None, destinations: Tensors = None) -> None:
        """Replaces tensors of a bound plan by others, after ``schedule``. Collective."""
        handle = self._own()
        try:
            _check_pairs(sources, destinations, self._options["commit"] == _COMMITS["swap"])
        except InvalidInput as error:
            handle.decline(str(error))
            with contextlib.suppress(Error):
                handle.rebind({}, {})
            raise
        handle.rebind(sources, destinations)

    def clear_requests(self) -> None:
        """Removes all registrations, and the schedule."""
        self._own().clear_requests()

    # Runs.

    def schedule(self) -> None:
        """Compares the registrations of all ranks, and prepares runs. Collective.

        Call it once after registering. :class:`ferry.InvalidInput` names what does not match: a
        send without its receive, different sizes, different dtypes (bytes, as ``uint8`` or a
        pointer, match any), two writers to one byte.
        """
        handle = self._own()
        handle.schedule()
        self._compare_dtypes(handle)

    def _compare_dtypes(self, handle: "_ferry.Service") -> None:
        """The library moves bytes; that both ends of a task mean the same by them, all ranks see
        from one number each."""
        from ._dtypes import first_difference
        from ._refit import agree

        world = self._world
        assert world is not None
        own = handle.kinds_sum()
        sums = [own]
        if world.size > 1:
            sums = [int.from_bytes(one, "little") for one in world.all_gather(own.to_bytes(8, "little"))]
        if sum(sums) % 2**64 == 0:
            return
        try:
            agree(world, first_difference(world, handle, self._plan))
        except Error:
            handle.refuse()
            raise

    def run(self, *, queue: Any = None) -> None:
        """Moves the bytes. Call it as often as needed after one :meth:`schedule`. Collective.

        With a queue the run begins when the earlier work of the queue is done, and its later work
        begins when the run has ended; each rank chooses its own. The call returns at the end in any
        case: :meth:`start` does not wait. ``queue`` is a :class:`ferry.Queue`, or a stream such as
        ``torch.cuda.current_stream()``. Without one a run that uses tensors of GPUs begins when what
        their current streams have so far is done. Where the stream is captured in a CUDA graph
        (``torch.cuda.graph``) the graph keeps the run: the call returns at once, and each replay is
        a run, of which a ``ferry.Queue`` of that stream tells.

        Each run makes a version, numbered from 1. Ctrl-C, or an exception in a progress callback,
        cancels the run on all ranks: the others raise :class:`ferry.Aborted`, this one the original
        exception, and the service can run again. If this rank has done its part and only waits for
        others, Ctrl-C ends the world instead, after half a deadline or at a second Ctrl-C. If a
        tensor's memory is no longer where it was registered, all ranks raise an error that names it
        and the rank; that memory is neither read nor written, and the service can run again.
        """
        self._own().run(self._report, queue)

    def start(self, *, queue: Any = None) -> "Request":
        """Begins a run and returns a request with ``test()``, ``wait()`` and ``cancel()``.

        On a queue the run is put in its order, and bytes move there; a progress callback is then
        called on a thread of the queue. Without one bytes move during ``test``, which works for about a millisecond and returns whether the run
        has ended, and during ``wait``. Errors of the run are raised by these. Keep the request: if
        it is dropped before the run has ended, the run is cancelled on all ranks; if the others do
        not learn of that within half a deadline, the world ends.
        """
        begun: "Request" = self._own().start(self._report, queue)
        return begun

    def set_progress(self, progress: Optional[Callable[[Progress], Any]]) -> None:
        """Sets a function that is called during runs: before this rank moves anything, about twenty
        times per second, and at the end.

        If it returns ``False``, the run is cancelled on all ranks, except in the last call, when
        the run has ended. ``None`` removes the function. It takes effect with the next run.
        """
        if progress is None:
            self._report = None
            return
        if not callable(progress):
            raise InvalidInput("a progress callback is a function of one ferry.Progress")
        function = progress
        self._report = lambda done, total, seconds: function(Progress(done, total, seconds))

    # Versions.

    @property
    def version(self) -> int:
        """The newest version that this rank knows to be complete on all ranks; 0: none."""
        return self._own().version

    @property
    def next_version(self) -> int:
        """The version that the next run makes, which the sources must hold by then. Behind a
        schedule it is the same on all ranks: where any resumes, the one that this completes."""
        return self._own().next_version

    def destinations(self) -> List[Destination]:
        """The tensors that runs write on this rank, and which version each holds."""
        return [
            Destination(name, _STATES[state], version, size, missing, address, tensor)
            for name, state, version, size, missing, address, tensor in self._own().destinations()
        ]

    def recover_onto(
        self,
        spec: Union["Spec", Mapping[str, Any], str, "os.PathLike[str]"],
        *,
        replica: str = "balanced",
        subset: Union[None, str, Iterable[str]] = None,
        min_size: int = 0,
    ) -> Recovery:
        """After a failed run or schedule: makes the service work again. Collective over the
        remaining ranks.

        The service must have a bound plan, made from ``spec`` with ``replica`` and ``subset``. If
        ranks were lost, the others continue in a smaller world of at least ``min_size`` ranks. The
        objects stay: the service and its world (``world.size`` and ``n_pes`` become smaller), with
        the same tensors and a plan without the lost ranks. The next run moves only what is missing;
        if no rank was lost, it moves everything. It makes version ``next`` on all ranks: fill the
        sources with that first. Version numbers never go back.

        It raises :class:`ferry.InvalidPlan` if only lost ranks held some bytes. After an error the
        service and its world still exist: try again, or call :meth:`finalize`.
        """
        from ._plan import _spec_of, plan

        handle = self._own()
        world = self._world
        assert world is not None
        made, refused = None, None
        try:  # what is wrong here all ranks must hear
            made = _spec_of(spec)
            min_size = number("min_size", min_size)
            replica, subset = text("replica", replica) or "", patterns(subset)
        except BaseException as error:
            refused, replica, subset = error, "", None
            min_size = min_size if isinstance(min_size, int) and 0 <= min_size < 1 << 32 else 0
        is_new, *found = handle.recover_onto(
            refused, None if made is None else made._handle, replica, subset, min_size
        )
        assert made is not None
        if is_new and self._plan is not None:
            lost = set(range(self._plan.world_size)).difference(world.members)
            self._plan = plan(made, replica=replica, subset=subset, lost_ranks=sorted(lost))
        return Recovery(*found)

    def recover(self, survivors: "World") -> int:
        """After a loss, with the world that ``World.shrink()`` returned: the newest version that
        all survivors hold complete.

        Collective over the survivors; 0 means none. :meth:`recover_onto` does this and the other
        steps in one call; use this one for tasks that were registered one by one.
        """
        return self._own().recover(survivors)

    def take_ledger(self) -> "Ledger":
        """The record of what the last, failed run has brought to this rank: for :meth:`resume`."""
        return self._own().take_ledger()

    def resume(self, ledger: "Ledger") -> None:
        """After ``bind`` and before ``schedule``: the next run moves only what is missing."""
        self._own().resume(ledger)

    def mark_unchanged(self, names: Union[None, str, Iterable[str]] = None) -> None:
        """Before a run, with ``delta=True``: this rank's sources of these names (a pattern or
        several, as ``subset``; None: all) are what they were in the run before, and no rank has
        changed what it received of them. That run then does not even compare them, if the one
        before ended well; with ``commit="swap"`` say it before two runs in a row. Where it is not
        true, destinations keep what they had: ``checksum="end"`` finds out.
        """
        self._own().mark_unchanged(patterns(names, "names"))

    # Memory and numbers.

    def alloc(self, n_bytes: int) -> memoryview:
        """Memory that other ranks of the node can map, so that bytes arrive there with one copy.

        Pass it to ``numpy.frombuffer`` or ``torch.frombuffer``; it is zeroed, and lives as long as
        anything made from it. Allocate few large pieces, and before ``register_receive``. Such memory
        belongs to this service; that of :func:`ferry.empty` serves all.
        """
        from ._memory import block_of

        return block_of(self._own().alloc(n_bytes))

    def statistics(self) -> Statistics:
        """This rank's statistics: how many bytes took which path, and where time was spent."""
        return Statistics(*self._own().statistics())

    def peers(self) -> List[Peer]:
        """The ranks that this one exchanges with, after ``schedule``."""
        return [Peer(*one) for one in self._own().peers()]

    def spans(self) -> List[Span]:
        """The batches of the last run, with the option ``trace``."""
        return [Span(_SPANS[one[0]], *one[1:]) for one in self._own().spans()]

    @never_raises
    def __repr__(self) -> str:
        if self._pid != os.getpid():
            return "<ferry.RemoteCopyService of another process>"
        if self._handle is None or not self._handle.initialized:
            state = "finalized" if self._finalized else "not initialized"
            return f"<ferry.RemoteCopyService, {state}>"
        return f"<ferry.RemoteCopyService, PE {self.my_pe} of {self.n_pes}, version {self.version}>"

    # Steps that the page names; schedule() does them.

    def _segment_tasks(self) -> None:
        """Tasks are cut into segments by ``schedule``, which knows both of their ends."""
        self._own()

    def _prepare_iter_schedules(
        self,
        schedule_batches: Mapping[int, Sequence[Any]],
        workloads: Mapping[int, Sequence[Any]],
        global_summaries: Mapping[Tuple[int, int, int], Any],
        num_iterations: int,
    ) -> List[Dict[str, Any]]:
        """What this PE sends and receives in each iteration of a schedule of the page's scheduler.

        A list of dicts with the keys ``send`` and ``recv``, each a batch or ``None``; batches get
        their tasks, or the summary of them. Batches of a PE to itself are left out.
        """
        me = self.my_pe
        iterations: List[Dict[str, Any]] = []
        for number in range(num_iterations):
            step: Dict[str, Any] = {"send": None, "recv": None}
            for batch in schedule_batches.get(number, ()):
                if batch.src_pe == batch.dest_pe:
                    continue
                if batch.src_pe == me:
                    group = workloads[batch.dest_pe][batch.batch_index]
                    batch.tasks, batch.total_size = group.tasks, group.total_size
                    step["send"] = batch
                elif batch.dest_pe == me:
                    key = (batch.src_pe, batch.dest_pe, batch.batch_index)
                    summary = global_summaries.get(key)
                    batch.tasks_summary = summary
                    batch.total_size = 0 if summary is None else summary.total_size
                    step["recv"] = batch
            iterations.append(step)
        return iterations


_kept: List[RemoteCopyService] = []
_live: "weakref.WeakSet[RemoteCopyService]" = weakref.WeakSet()


def _leave_all() -> None:
    """At exit: this rank leaves the worlds of services that were not finalized. Who is in a run with
    it learns that it is lost; who is not, goes on, and takes the end for no death."""
    worlds: List["World"] = []
    for service in list(_live):
        handle, world = service._handle, service._world
        if service._pid != os.getpid() or handle is None or not handle.initialized:
            continue
        handle.abandon()
        if world is not None and all(world is not one for one in worlds):
            worlds.append(world)
    for world in worlds:
        world._leave()


# What is registered last is called first: _world, imported above, closes the world after this.
atexit.register(_leave_all)


_publish("_service", globals())
