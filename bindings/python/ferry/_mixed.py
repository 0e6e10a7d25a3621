# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Mixed collectives: sums over tensor-parallel ranks, concatenations over data-parallel ones."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Type, TypeVar, Union

from . import _ferry, _publish
from ._errors import InvalidInput, Unsupported, mark_on_all, number, said_of, text
from ._repr import fields, never_raises
from ._world import leave_failed, world as default_world

if TYPE_CHECKING:
    from ._ferry import World
    from ._service import RemoteCopyService


class MixedCommOp(IntEnum):
    """The operation. B is a number of rows, dp the number of data-parallel ranks.

    ``ALLREDUCE``: B to B rows, the sum over all ranks. ``ALLGATHER``: B to dp B, the inputs in
    order of dp ranks. ``REDUCESCATTER``: dp B to B, this dp rank's chunk of the sum.
    ``ALLREDUCE_ALLGATHER``: B to dp B; chunk k is the sum over the tensor-parallel ranks of
    group k. ``REDUCESCATTER_ALLREDUCE``: dp B to B; this dp rank's chunk of the sum over all
    ranks. The names of the C library are aliases.
    """

    ALLREDUCE = 0
    ALLGATHER = 1
    REDUCESCATTER = 2
    ALLREDUCE_ALLGATHER = 3
    REDUCESCATTER_ALLREDUCE = 4

    ALL_REDUCE = 0
    ALL_GATHER = 1
    REDUCE_SCATTER = 2
    ALL_REDUCE_ALL_GATHER = 3
    REDUCE_SCATTER_ALL_REDUCE = 4


class MixedCommMode(IntEnum):
    """The way in which an operation is done.

    ``WAITS`` waits the fewest times, ``BYTES1`` moves the fewest bytes inside nodes and ``BYTES2``
    also between them. In the ``MC`` form (multicast) a rank writes once and all ranks of the node
    read in place, in the ``UC`` form (unicast) it writes to each of them. ``NCCL_ONE`` and
    ``NCCL_TP_DP`` stand for plain library collectives; on hosts they are ferry's own rings.
    ``AUTOTUNE`` is the fastest mode that was measured. The names of the C library are aliases.
    """

    FUSED_OPT_WAITS_MC = 0
    FUSED_OPT_WAITS_UC = 1
    FUSED_OPT_BYTES1_MC = 2
    FUSED_OPT_BYTES1_UC = 3
    FUSED_OPT_BYTES2_MC = 4
    FUSED_OPT_BYTES2_UC = 5
    NCCL_ONE = 6
    NCCL_TP_DP = 7
    AUTOTUNE = 8

    FUSED_WAITS_MULTICAST = 0
    FUSED_WAITS_UNICAST = 1
    FUSED_BYTES1_MULTICAST = 2
    FUSED_BYTES1_UNICAST = 3
    FUSED_BYTES2_MULTICAST = 4
    FUSED_BYTES2_UNICAST = 5
    BASE_ONE = 6
    BASE_TP_DP = 7


@fields(
    op="What was measured.",
    mode="How it was done.",
    bytes="Of the local piece: the input; of what scatters, the output.",
    block_size="In lines of 64 bytes, with which it was fastest; 0: the default's.",
    seconds="Of the slowest rank, the median; 0: left out, being far behind.",
    chosen="Whether AUTOTUNE takes it for sizes near this one.",
)
class MixedCommTiming(NamedTuple):
    """A measurement of autotune: one operation of one size in one mode."""

    op: MixedCommOp
    mode: MixedCommMode
    bytes: int
    block_size: int
    seconds: float
    chosen: bool


@fields(
    calls="Operations that were carried out.",
    steps="Steps of their schedules.",
    waits="How often this rank has waited for others.",
    inside_bytes_written="Bytes written to memory of this node's ranks.",
    inside_bytes_read="Bytes read from memory of this node's ranks.",
    between_bytes="Bytes sent to other nodes.",
    ahead="Calls that kernels made on their stream, ahead of the host, or in graphs.",
)
class MixedCommCounts(NamedTuple):
    """Counts of what this rank has done since the handler was made, or since ``reset_counts``."""

    calls: int
    steps: int
    waits: int
    inside_bytes_written: int
    inside_bytes_read: int
    between_bytes: int
    ahead: int


@fields(
    world_rank="This rank of all.",
    world_size="How many ranks there are.",
    local_rank="This rank on its node.",
    local_size="How many ranks a node has.",
    inter_rank="This node of all.",
    inter_size="How many nodes there are.",
    local_tp_size="Tensor-parallel ranks inside a node.",
    local_dp_size="Data-parallel ranks inside a node.",
    inter_tp_size="Tensor-parallel nodes.",
    inter_dp_size="Data-parallel nodes.",
    tp_rank="This rank of its tensor-parallel group.",
    tp_size="How many ranks that group has.",
    dp_rank="This rank of its data-parallel group.",
    dp_size="How many ranks that group has.",
    dtype="The dtype of tensors, as ferry calls it.",
    grid_size="How many threads, or blocks of a kernel, carry out an operation.",
    max_block_size="The longest block, in lines of 64 bytes.",
    staging_bytes="Memory that this rank has for operations.",
    virtual_memory="Whether the ranks of a node share memory.",
    multicast="Whether one write reaches all ranks of a node.",
    between_nodes="Whether bytes can go between nodes.",
    tuned="Whether there is a table of what is fastest.",
    deterministic="Whether all modes and sizes sum in one order.",
    inside_engine="Who carries bytes inside a node.",
    between_engine="Who carries bytes between nodes.",
    between_note="Why nobody does, where that is so.",
    kernels="Whether a kernel of the device makes each call.",
    base_engine="Whose collectives the base modes are: ``ferry``, or ``nccl`` and its version.",
    multicast_objects="Whether devices write to all of a node, and add up, by one access.",
)
class MixedCommInfo(NamedTuple):
    """The topology and the engines of a handler, with all defaults filled in."""

    world_rank: int
    world_size: int
    local_rank: int
    local_size: int
    inter_rank: int
    inter_size: int
    local_tp_size: int
    local_dp_size: int
    inter_tp_size: int
    inter_dp_size: int
    tp_rank: int
    tp_size: int
    dp_rank: int
    dp_size: int
    dtype: str
    grid_size: int
    max_block_size: int
    staging_bytes: int
    virtual_memory: bool
    multicast: bool
    between_nodes: bool
    tuned: bool
    deterministic: bool
    inside_engine: Optional[str]
    between_engine: Optional[str]
    between_note: Optional[str]
    kernels: bool
    base_engine: str
    multicast_objects: bool


Op = Union[MixedCommOp, int, str]
Mode = Union[MixedCommMode, int, str, None]


class MixedCommHandler(_ferry.MixedComm):
    """The mixed collectives of one topology, for tensors of one dtype in host memory.

    Ranks and sizes are those of the page of ``flashinfer.comm.mixed_comm``: ``world_rank`` is
    ``local_rank + inter_rank * local_size``, and on each level ``None`` for a tp or dp size is what
    the other leaves; with neither, all ranks are tensor-parallel. ``None`` for all six ranks and
    sizes takes the world's own. ``dtype`` is f16, bf16 or f32, as torch, numpy or ferry call it;
    ``device`` is the CPU, or a GPU: ``"cuda"`` is torch's current one, ``"cuda:1"`` that number. With
    GPUs on all ranks that reach each other's memory a kernel makes each call (``describe().kernels``).

    The constructor, the ``init_`` methods, ``run_autotune``, ``run``, ``start`` and ``shutdown`` are
    collective: every rank calls them, in the same order. ``start`` returns a
    :class:`ferry.MixedRequest`, and whether others call ``run`` makes no difference. A rank that calls something else is found
    out, and all ranks get :class:`ferry.Misuse`. Ctrl-C in ``run`` ends the world that the handler
    stands on; other handlers of signals run when the call has returned.

    ``world`` is the :class:`ferry.World` to use, or ``group`` a group of torch.distributed to make
    one of; by default that of :func:`ferry.world`. ``deterministic`` keeps one tree of sums in all
    modes, sizes and runs. ``tune_file`` names a saved table to use instead of measuring,
    ``autotune_bytes`` the largest piece that is measured; ``engines`` chooses the transport. With
    ``only_construct`` the ``init_`` methods are the caller's to call. ``should_init_nvshmem=False``
    leaves the opening of what carries bytes between nodes to the caller: ``transport`` is a
    :class:`ferry.RemoteCopyService` of the same world that was initialised, whose transport the
    handler uses; shut the handler down before it is finalized.

    >>> import array, ferry
    >>> with ferry.MixedCommHandler(0, 1, 0, 1, 0, 1, None, None, None, None, "f32", "cpu",
    ...                             use_autotune=False) as handler:
    ...     x, y = array.array("f", [1, 2, 3]), array.array("f", [0, 0, 0])
    ...     handler.run(ferry.MixedCommOp.ALLREDUCE, x, y)
    array('f', [1.0, 2.0, 3.0])
    """

    def __init__(
        self,
        world_rank: Optional[int],
        world_size: Optional[int],
        local_rank: Optional[int],
        local_size: Optional[int],
        inter_rank: Optional[int],
        inter_size: Optional[int],
        local_tp_size: Optional[int],
        local_dp_size: Optional[int],
        inter_tp_size: Optional[int],
        inter_dp_size: Optional[int],
        dtype: Any,
        device: Any,
        grid_size: Optional[int] = None,
        max_block_size: Optional[int] = None,
        min_block_size: int = 256,
        min_num_steps: int = 4,
        ib_enable_ibgda: bool = True,
        should_init_nvshmem: bool = True,
        use_autotune: bool = True,
        *,
        world: Optional["World"] = None,
        group: Any = None,
        deterministic: bool = False,
        tune_file: Union[str, "os.PathLike[str]", None] = None,
        engines: Optional[str] = None,
        autotune_bytes: Optional[int] = None,
        only_construct: bool = False,
        transport: Optional["RemoteCopyService"] = None,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self.use_autotune = bool(use_autotune)
        self._own_world: Optional["World"] = None
        refused: Optional[BaseException] = None
        self._pid = os.getpid()
        if world is None and group is not None:
            self._own_world = _world_of_group(group)
        try:
            self._world = world or self._own_world or default_world()
            counts = {  # and the least that each can be
                "world_rank": (world_rank, 0), "world_size": (world_size, 1),
                "local_rank": (local_rank, 0), "local_size": (local_size, 1),
                "inter_rank": (inter_rank, 0), "inter_size": (inter_size, 1),
                "local_tp_size": (local_tp_size, 1), "local_dp_size": (local_dp_size, 1),
                "inter_tp_size": (inter_tp_size, 1), "inter_dp_size": (inter_dp_size, 1),
                "grid_size": (grid_size, 1), "max_block_size": (max_block_size, 1),
                "min_block_size": (min_block_size, 1), "min_num_steps": (min_num_steps, 1),
            }
            options: Dict[str, Any] = {
                **dict.fromkeys(counts, 0), "autotune_bytes": 0, "cuda_device": -1,
                "tune_file": None, "transport": None, "engines": None,
                "ib_enable_ibgda": True, "should_init_nvshmem": True, "use_autotune": False,
                "deterministic": False, "only_construct": False,
            }

            def take() -> None:
                if world is not None and group is not None:
                    raise InvalidInput("world and group are both given: give one of them")
                _ferry.dtype_name(dtype)
                options.update(
                    {name: number(name, value, least) for name, (value, least) in counts.items()},
                    autotune_bytes=number("autotune_bytes", autotune_bytes, least=1, bits=64),
                    cuda_device=_cuda_device_of(device),
                    tune_file=text("tune_file", None if tune_file is None else os.fspath(tune_file)),
                    engines=text("engines", engines),
                    transport=None if transport is None else transport._own(),
                    ib_enable_ibgda=bool(ib_enable_ibgda),
                    should_init_nvshmem=bool(should_init_nvshmem),
                    use_autotune=bool(use_autotune),
                    deterministic=bool(deterministic),
                    only_construct=bool(only_construct),
                )

            try:
                take()
            except BaseException as error:  # nobody must wait for who makes no handle
                refused = error
            self._open(
                self._world,
                dtype if refused is None else "f32",
                **options,
                refusal=None if refused is None else said_of(refused),
            )
        except BaseException as error:
            if self._own_world is not None:
                self._own_world.close()
            if refused is not None and isinstance(error, InvalidInput):
                mark_on_all(refused)
                raise refused from None  # and no interrupt or loss, which came on top
            raise
        self._info = self.describe()  # which another thread's call may be on later
        _open_handlers.add(self)

    def get_valid_op_list(self) -> List[MixedCommOp]:
        """The operations that this topology offers."""
        return [MixedCommOp(number) for number in self._valid_ops()]

    def get_valid_mode_list(self) -> List[MixedCommMode]:
        """The modes that this topology offers; each works for each operation."""
        return [MixedCommMode(number) for number in sorted(self._valid_modes())]

    def select_autotune_mode(self, op: Op, x_in: Any) -> MixedCommMode:
        """The mode that ``AUTOTUNE`` chooses for this input. Local: nothing runs."""
        return MixedCommMode(self._select_mode(op, x_in))

    def describe(self) -> MixedCommInfo:
        """Topology and engines, with all defaults filled in."""
        return MixedCommInfo(*self._describe())

    def counts(self) -> MixedCommCounts:
        """What this rank has sent and waited for."""
        return MixedCommCounts(*self._counts())

    def timings(self) -> List[MixedCommTiming]:
        """The measurements of ``run_autotune``, or of the loaded table."""
        return [
            MixedCommTiming(MixedCommOp(op), MixedCommMode(mode), nbytes, block, seconds, chosen)
            for op, mode, nbytes, block, seconds, chosen in self._timings()
        ]

    def save_tuning(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes that table to a file, whole or not at all. One rank is enough."""
        self._save_tuning(os.fspath(path))

    def shutdown(self) -> None:
        """Frees memory and closes transports. A second call does nothing."""
        try:
            self._shut_down()
        finally:
            if self.closed:
                _open_handlers.discard(self)
            if self._own_world is not None:
                self._own_world.close()

    def __enter__(self) -> "MixedCommHandler":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, SystemExit) and self._world.size > 1:
            _kept.append(self)  # the program ends: see _leave_all
            return
        leave_failed(self._world, error)
        try:
            self.shutdown()
        except Exception:
            if error is None:  # else that one says what happened
                raise

    @never_raises
    def __repr__(self) -> str:
        info = self._info
        if self.closed:
            return "<ferry.MixedCommHandler, shut down>"
        if self._pid != os.getpid():
            return "<ferry.MixedCommHandler of another process>"
        return (
            f"<ferry.MixedCommHandler of {info.dtype}: rank {info.world_rank} of {info.world_size}, "
            f"tp {info.tp_rank} of {info.tp_size}, dp {info.dp_rank} of {info.dp_size}>"
        )


def run_mixed_comm(
    op: Op, handler: MixedCommHandler, x_in: Any, x_out: Any = None, mode: Mode = None
) -> Any:
    """Runs one operation on a handler, and returns ``x_out``.

    ``x_in`` is a contiguous torch, numpy or buffer-protocol tensor whose first dim counts rows; so
    is ``x_out``, which is made where it is ``None``. It may be ``x_in`` itself; where one is dp
    times the other, the larger one's own chunk. ``mode`` ``None`` is ``AUTOTUNE`` if that is on,
    else ``NCCL_TP_DP`` where offered, else ``NCCL_ONE``.
    """
    if not isinstance(handler, MixedCommHandler):
        raise InvalidInput(
            f"handler is of type {type(handler).__name__}: give a ferry.MixedCommHandler"
        )
    return handler.run(op, x_in, x_out, mode)


def empty_like(x_in: Any, rows: int) -> Any:
    """A tensor of the same library and dtype as ``x_in``, with so many rows."""
    shape = (rows, *getattr(x_in, "shape", ())[1:])
    if hasattr(x_in, "new_empty"):
        return x_in.new_empty(shape)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(x_in, numpy.ndarray):
        return numpy.empty(shape, dtype=x_in.dtype)
    raise InvalidInput(
        f"x_out cannot be made of an x_in of type {type(x_in).__name__}: give it", tensor="x_out"
    )


_E = TypeVar("_E", bound=IntEnum)


def _find(kind: Type[_E], name: str) -> _E:
    found = kind.__members__.get(name.upper().replace("-", "_"))
    if found is None:
        names = ", ".join(member.name for member in kind)
        raise InvalidInput(f'"{name}" is none of ferry.{kind.__name__}: it has {names}')
    return found


def find_op(name: str) -> MixedCommOp:
    """By the name of a member, or the library's.

    >>> find_op("all-gather")
    <MixedCommOp.ALLGATHER: 1>
    """
    return _find(MixedCommOp, name)


def find_mode(name: str) -> MixedCommMode:
    """The same of a mode."""
    return _find(MixedCommMode, name)


def _cuda_device_of(device: Any) -> int:
    """The number of a CUDA device, or -1 for the CPU."""
    kind, _, number = ("cpu" if device is None else str(device)).partition(":")
    if number and not number.isdecimal():
        raise InvalidInput(f'device {device} is asked for: give a number, as in "cuda:0"')
    if kind not in ("cpu", "cuda"):
        raise Unsupported(f'device {device} is asked for: give torch.device("cpu") or ("cuda")')
    for name, _, _, why_not in _ferry.memory_kinds() if kind == "cuda" else ():
        if name == "cuda" and why_not is not None:
            raise Unsupported(
                f"device {device} is asked for, and GPUs cannot be used here ({why_not}): give "
                'torch.device("cpu") and tensors in host memory'
            )
    if kind == "cpu":
        return -1
    torch = sys.modules.get("torch")
    if not number and torch is not None and torch.cuda.is_available():
        return int(torch.cuda.current_device())
    return int(number or 0)


def _world_of_group(group: Any) -> "World":
    from ._exchange import TorchExchange

    return _ferry.world_from_exchange(TorchExchange(group))


_open_handlers: "weakref.WeakSet[MixedCommHandler]" = weakref.WeakSet()


_kept: List[MixedCommHandler] = []


def _leave_all() -> None:
    """What the program left open at its end goes with it: who is in a call with this rank learns
    that it is lost, and the others are not waited for in one."""
    for handler in list(_open_handlers):
        world = handler._world
        if handler.closed or handler._pid != os.getpid() or world.closed:
            continue
        handler._abandon()
        world._leave()


atexit.register(_leave_all)


_publish("_mixed", globals())
