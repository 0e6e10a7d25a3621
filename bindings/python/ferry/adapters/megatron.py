# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Megatron-Core: a copy service for its resharding, a refit of its modules without copies, and its
models as what a trainer sends from (:class:`MegatronSource`).

    from ferry.adapters.megatron import FerryCopyService
    swap_model_weights(training_model, inference_model, FerryCopyService())

or, straight from parameter to parameter:

    from ferry.adapters import megatron
    megatron.refit(training_module, inference_module, num_experts=8)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

from .. import _ferry
from .._errors import InvalidInput, Misuse
from ._base import class_of
from ._megatron_source import MegatronSource

if TYPE_CHECKING:
    from .._ferry import World
    from .._refit import Refit, RefitResult
    from .._service import RemoteCopyService

__all__ = ["FerryCopyService", "MegatronSource", "prepare", "refit"]

# Pairs without an id of their own get one from here on: their number among those of two ranks.
FIRST_OWN_ID = 1 << 62

# As register_sends takes it.
Request = Tuple[int, Any, int, Optional[int], int, Optional[str]]


_Base: Any = class_of("megatron.core.resharding.copy_services.base", "CopyService")


class FerryCopyService(_Base):  # type: ignore[misc]
    """A ``CopyService`` of megatron-core: submit sends and receives, then run them as one.

    Made on all ranks together. The ranks are those of ``group``, of torch.distributed's default
    group, or of ``world``. ``options`` are those of :class:`ferry.RemoteCopyService`. Tensors may
    have any strides. A run removes what was submitted, whether it succeeds or fails. With ``keep``
    the service keeps the tensors of the last run: if the same memory is submitted again, no new
    schedule is needed.
    """

    def __init__(
        self,
        group: Any = None,
        *,
        world: Optional["World"] = None,
        keep: bool = False,
        **options: Any,
    ) -> None:
        from .._service import RemoteCopyService
        from .._world import _make, world as default

        if world is None:
            world = default() if group is None else _make(group, {})
        self._world = world
        self._keep = keep
        self._kept: Any = None  # what the schedule was made for
        self._own_ids: Dict[Tuple[str, int], int] = {}
        self._sends: List[Request] = []
        self._receives: List[Request] = []
        self._service: Optional["RemoteCopyService"] = RemoteCopyService(world, **options)
        self._service.init(log_level="WARN")

    @property
    def rank(self) -> int:
        """This rank of the world, or of the group."""
        return int(self._world.rank)

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return int(self._world.size)

    @property
    def service(self) -> "RemoteCopyService":
        """The service that carries the bytes, with its statistics."""
        if self._service is None:
            raise Misuse("the copy service is closed")
        return self._service

    def submit_send(self, src_tensor: Any, dest_rank: int) -> None:
        """Sends a tensor to a rank. The n-th send without an id belongs to the n-th receive without
        one there.
        """
        task = self._own_id("send", dest_rank)
        name = f"send {task - FIRST_OWN_ID} without an id, to {dest_rank}"
        self._sends.append((task, src_tensor, 0, None, dest_rank, name))

    def submit_recv(self, dest_tensor: Any, src_rank: int) -> None:
        """Receives a tensor from a rank. The n-th receive without an id belongs to the n-th send
        without one there.
        """
        task = self._own_id("receive", src_rank)
        name = f"receive {task - FIRST_OWN_ID} without an id, from {src_rank}"
        self._receives.append((task, dest_tensor, 0, None, src_rank, name))

    def submit_send_with_id(self, task_id: int, src_tensor: Any, dest_rank: int) -> None:
        """Sends a tensor to a rank, whose receive has the same id."""
        self._sends.append((_checked(task_id), src_tensor, 0, None, dest_rank, None))

    def submit_recv_with_id(self, task_id: int, dest_tensor: Any, src_rank: int) -> None:
        """Receives a tensor from a rank, whose send has the same id."""
        self._receives.append((_checked(task_id), dest_tensor, 0, None, src_rank, None))

    def _own_id(self, way: str, rank: int) -> int:
        number = self._own_ids.get((way, rank), 0)
        self._own_ids[way, rank] = number + 1
        return FIRST_OWN_ID + number

    def run(self) -> None:
        """Collective: moves what all ranks have submitted, and removes it from the list."""
        sends, receives = self._sends, self._receives
        self._sends, self._receives, self._own_ids = [], [], {}
        service, done = self.service, False
        try:
            if not self._is_scheduled(sends, receives):
                self._schedule(sends, receives)
            service.run()
            done = True
        finally:
            if not (self._keep and done):
                self._kept = None
                service.clear_requests()

    def _is_scheduled(self, sends: Sequence[Request], receives: Sequence[Request]) -> bool:
        """Whether every rank submitted the memory that the schedule is for."""
        if not self._keep:
            return False
        from .._refit import agree

        kept: List[Any] = []

        def look() -> bytes:
            kept.extend([_place(one) for one in given] for given in (sends, receives))
            return b"=" if kept == self._kept else b"!"

        same = agree(self._world, look)
        self._kept = kept
        return all(one == b"=" for one in same)

    def _schedule(self, sends: Sequence[Request], receives: Sequence[Request]) -> None:
        from .._refit import agree

        def register() -> bytes:
            self.service.clear_requests()
            self.service.register_sends([_detached(one) for one in sends])
            self.service.register_receives([_detached(one) for one in receives])
            return b""

        agree(self._world, register)
        self.service.schedule()

    def close(self) -> None:
        """Collective: frees everything that runs need. The garbage collector does it too."""
        service, self._service = self._service, None
        if service is not None:
            service.finalize()


def _checked(task_id: int) -> int:
    if not 0 <= task_id < FIRST_OWN_ID:
        raise InvalidInput(f"task {task_id} is out of range: ids are 0 to 2^62 - 1")
    return task_id


def _place(request: Request) -> Tuple[Any, ...]:
    task, tensor, _, _, rank, _ = request
    where = tensor if isinstance(tensor, int) else _ferry.place_of(tensor, f"task {task}")
    return (task, where, rank)


def _detached(request: Request) -> Request:
    task, tensor, at, size, rank, name = request
    return (task, tensor.detach() if hasattr(tensor, "detach") else tensor, at, size, rank, name)


# Modules.


def _tensors_of(module: Any) -> Dict[str, Any]:
    if module is None:
        return {}
    found = dict(module.named_buffers())
    found.update(module.named_parameters())
    return found


def _taken(ops: Any, tensors: Dict[str, Any], side: str) -> List[Tuple[int, Any, int, str]]:
    """Views of the tensors, one for each operation of a plan."""
    found = []
    for number, op in enumerate(ops):
        tensor = tensors.get(op.param_name)
        if tensor is None:
            raise InvalidInput(
                f'the {side} module has no parameter "{op.param_name}", which the plan moves',
                tensor=op.param_name,
            )
        task = number if op.task_id is None else op.task_id
        found.append((task, tensor.detach()[op.my_slice], op.peer_rank, op.param_name))
    return found


def prepare(
    src_module: Any,
    dst_module: Any,
    num_experts: Optional[int] = None,
    *,
    world: Optional["World"] = None,
    progress: Optional[Callable[[Any], Any]] = None,
    buffers: bool = True,
    **options: Any,
) -> "Refit":
    """Collective: a :class:`ferry.Refit` from module to module, to be run as often as needed.

    Planned by :mod:`ferry.resharding.planner` from the modules' parameters and their
    ``pg_collection``; pass None for a module that this rank does not have. The slices of parameters
    are read and written in place; if a parameter's memory has been replaced since, the next run
    raises an error with its name, on all ranks. Persistent buffers are moved like parameters,
    unless ``buffers`` is False.

    Tensors of the host that receive something move, once, to memory that other ranks of the node
    write to directly, as with :func:`ferry.share_memory_`. Those that it would refuse stay.
    """
    return _planned(
        src_module, dst_module, num_experts, buffers, True, world=world, progress=progress, **options
    )


def _planned(
    src_module: Any,
    dst_module: Any,
    num_experts: Optional[int],
    buffers: bool,
    is_kept: bool,
    **options: Any,
) -> "Refit":
    """What runs often is worth that its memory moves: of one run that takes longer than it saves."""
    from .._memory import share_what_can
    from .._refit import Refit
    from ..resharding.planner import build_centralized_reshard_plan

    plan = build_centralized_reshard_plan(
        src_module, dst_module, num_experts=num_experts, buffers=buffers
    )
    watched = [_moved(plan.send_ops, src_module), _moved(plan.recv_ops, dst_module)]

    def tasks() -> Any:
        if is_kept:
            share_what_can(watched[1](), _tensors_of(dst_module))
        sends = _taken(plan.send_ops, _tensors_of(src_module), "source")
        receives = _taken(plan.recv_ops, _tensors_of(dst_module), "destination")
        return sends, receives

    return Refit.of_tasks(tasks, watched=watched, **options)


def _moved(ops: Any, module: Any) -> Callable[[], Dict[str, Any]]:
    """The tensors of a plan as the module has them when that is asked for."""
    names = {op.param_name for op in ops}

    def look() -> Dict[str, Any]:
        return {name: one for name, one in _tensors_of(module).items() if name in names}

    return look


def refit(
    src_module: Any,
    dst_module: Any,
    num_experts: Optional[int] = None,
    *,
    world: Optional["World"] = None,
    progress: Optional[Callable[[Any], Any]] = None,
    buffers: bool = True,
    **options: Any,
) -> "RefitResult":
    """Collective: one run of what :func:`prepare` plans, whose tensors stay where they are."""
    with _planned(
        src_module, dst_module, num_experts, buffers, False, world=world, progress=progress, **options
    ) as planned:
        return planned.run()
