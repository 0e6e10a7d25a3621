# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Gives every batch of every PE an iteration in which its sender and its receiver are free."""

from __future__ import annotations

import json
import sys
from operator import index
from typing import Any, Callable, Dict, List, Optional, Tuple

from .... import _ferry
from ...._errors import Error, InvalidInput
from ...._repr import never_raises
from ..nvshmem_types import ScheduledBatch, WorkloadGroup, WorkloadSummary

Workloads = Dict[int, List[WorkloadGroup]]
Key = Tuple[int, int, int]  # source, destination, batch index

# The library's numbers.
_RULES = {"optimal": 0, "first-fit": 1, "first-fit-half": 2}
_DUPLEXES = {"full": 0, "half": 1}


class CommunicationScheduler:
    """Builds a schedule of iterations in which a PE sends at most one batch and receives one.

    Each PE knows only what it sends itself; the ranks of ``group`` (of torch.distributed) exchange
    that, or those of ``world``. By default they are those of torch's default group if it is
    initialised, else of :func:`ferry.world`. Calls are collective, and what is wrong on one PE is
    raised on all.

    ``rule`` says how iterations are chosen. ``"optimal"``: as many as the busiest PE has batches
    to send, or to receive, which is the fewest possible. ``"first-fit"``: batches in order, each in
    the first iteration that both PEs have free, as Megatron-Core does. ``"first-fit-half"``: the
    same where a PE takes part in one batch of an iteration; ``duplex="half"`` asks that of any
    rule.

    >>> group = WorkloadGroup(dest_pe=0, total_size=64)
    >>> CommunicationScheduler().build_schedule({0: [group]}, my_pe=0, n_pes=1)
    ({}, {})
    """

    def __init__(
        self,
        *,
        rule: str = "optimal",
        duplex: str = "full",
        group: Any = None,
        world: Any = None,
        exchange: Any = None,
    ) -> None:
        #: How many iterations the last schedule has.
        self.num_iterations = 0
        self._rule = _choice("rule", rule, _RULES)
        self._duplex = _choice("duplex", duplex, _DUPLEXES)
        self._group, self._world, self._exchange = group, world, exchange

    @never_raises
    def __repr__(self) -> str:
        names = [
            next(name for name, number in known.items() if number == own)
            for known, own in ((_RULES, self._rule), (_DUPLEXES, self._duplex))
        ]
        return f"<ferry.CommunicationScheduler, rule={names[0]!r}, duplex={names[1]!r}>"

    def build_schedule(
        self, workloads: Workloads, my_pe: int, n_pes: int
    ) -> Tuple[Dict[int, List[ScheduledBatch]], Dict[Key, WorkloadSummary]]:
        """The batches that this PE sends or receives, by iteration; and what all batches carry.

        ``workloads`` are this PE's groups for each destination. A group is a batch as it is,
        however large; those of a PE to itself are left out.
        """
        batches = self._collect_all_batches(workloads, my_pe, n_pes)
        self._assign_iterations(batches)
        summaries = self._exchange_workload_summaries(workloads, my_pe, n_pes)
        own = [batch for batch in batches if my_pe in (batch.src_pe, batch.dest_pe)]
        own.sort(key=lambda batch: batch.iteration)
        schedule: Dict[int, List[ScheduledBatch]] = {}
        for batch in own:
            batch.tasks_summary = summaries.get(_key(batch))
            schedule.setdefault(batch.iteration, []).append(batch)
        return schedule, summaries

    def _collect_all_batches(
        self, workloads: Workloads, my_pe: int, n_pes: int
    ) -> List[ScheduledBatch]:
        """Collective: the batches of all PEs, in order of PEs, without iterations."""

        def describe() -> Any:
            own = _between_pes(workloads, my_pe)
            totals = [[pe, [group.total_size for group in groups]] for pe, groups in own.items()]
            return [self._rule, self._duplex, totals]

        parts = self._gather(describe, workloads, my_pe, n_pes)
        for pe, part in enumerate(parts):
            if part[:2] != parts[0][:2]:
                raise InvalidInput(
                    f"rank {pe} schedules by another rule or duplex than rank 0: make the "
                    "schedulers of all ranks alike",
                    ranks=(0, pe),
                )
        batches = [
            ScheduledBatch(pe, dest_pe, number, -1, total_size=total)
            for pe, part in enumerate(parts)
            for dest_pe, totals in part[2]
            for number, total in enumerate(totals)
        ]
        for batch in batches:
            if batch.src_pe == my_pe:
                batch.tasks = workloads[batch.dest_pe][batch.batch_index].tasks
        return batches

    def _assign_iterations(self, batches: List[ScheduledBatch]) -> None:
        """Sorts the batches by source, destination and index, and gives each its iteration."""
        batches.sort(key=_key)
        n_pes = 1 + max((max(batch.src_pe, batch.dest_pe) for batch in batches), default=0)
        rows = [(*_key(batch), batch.total_size) for batch in batches]
        self.num_iterations, iterations = _ferry.assign_iterations(
            n_pes, rows, self._rule, self._duplex
        )
        for batch, iteration in zip(batches, iterations):
            batch.iteration = iteration

    def _has_conflict(
        self, batch: ScheduledBatch, iteration: int, all_batches: List[ScheduledBatch]
    ) -> bool:
        """Whether another batch of the list has the iteration, and a PE of this one in its role.

        >>> one, two = ScheduledBatch(0, 1, 0, 3), ScheduledBatch(0, 2, 0, -1)
        >>> scheduler = CommunicationScheduler()
        >>> scheduler.has_conflict(two, 3, [one, two]), scheduler.has_conflict(two, 4, [one, two])
        (True, False)
        """
        one_at_a_time = self._duplex == _DUPLEXES["half"] or self._rule == _RULES["first-fit-half"]
        for other in all_batches:
            if other is batch or other.iteration != iteration:
                continue
            if other.src_pe == batch.src_pe or other.dest_pe == batch.dest_pe:
                return True
            if one_at_a_time and (other.src_pe == batch.dest_pe or other.dest_pe == batch.src_pe):
                return True
        return False

    def _exchange_workload_summaries(
        self, workloads: Workloads, my_pe: int, n_pes: int
    ) -> Dict[Key, WorkloadSummary]:
        """Collective: what every batch of every PE carries, by (source, destination, index)."""

        def describe() -> Any:
            return [
                [pe, number, group.total_size, *_columns(group)]
                for pe, groups in _between_pes(workloads, my_pe).items()
                for number, group in enumerate(groups)
            ]

        parts = self._gather(describe, workloads, my_pe, n_pes)
        return {
            (pe, dest_pe, number): WorkloadSummary(total, ids, sizes)
            for pe, part in enumerate(parts)
            for dest_pe, number, total, ids, sizes in part
        }

    def collect_all_batches(
        self, workloads: Workloads, my_pe: int, n_pes: int
    ) -> List[ScheduledBatch]:
        """The same as ``_collect_all_batches``."""
        return self._collect_all_batches(workloads, my_pe, n_pes)

    def assign_iterations(self, batches: List[ScheduledBatch]) -> None:
        """The same as ``_assign_iterations``."""
        self._assign_iterations(batches)

    def has_conflict(
        self, batch: ScheduledBatch, iteration: int, all_batches: List[ScheduledBatch]
    ) -> bool:
        """The same as ``_has_conflict``."""
        return self._has_conflict(batch, iteration, all_batches)

    def exchange_workload_summaries(
        self, workloads: Workloads, my_pe: int, n_pes: int
    ) -> Dict[Key, WorkloadSummary]:
        """The same as ``_exchange_workload_summaries``."""
        return self._exchange_workload_summaries(workloads, my_pe, n_pes)

    def _gather(
        self, describe: Callable[[], Any], workloads: Workloads, my_pe: int, n_pes: int
    ) -> List[Any]:
        """What each PE describes. What is wrong on one is sent instead, and all raise it."""
        exchange = self._exchange or _find_exchange(self._group, self._world)
        try:
            _check(workloads, my_pe, n_pes, exchange)
            mine = json.dumps([None, describe()], default=index)  # numpy's whole numbers too
        except (Error, AttributeError, TypeError) as error:
            mine = json.dumps([str(error), None])
        parts = [json.loads(part) for part in exchange.all_gather(mine.encode())]
        for pe, (wrong, _) in enumerate(parts):
            if wrong is not None:
                raise InvalidInput(f"the workloads of rank {pe}: {wrong}", ranks=(pe,))
        return [described for _, described in parts]


def _choice(what: str, name: str, numbers: Dict[str, int]) -> int:
    number = numbers.get(str(name).lower().replace("_", "-"))
    if number is None:
        raise InvalidInput(f"{what} is {name!r}: it is one of {', '.join(numbers)}")
    return number


def _key(batch: ScheduledBatch) -> Key:
    return batch.src_pe, batch.dest_pe, batch.batch_index


def _columns(group: WorkloadGroup) -> Tuple[List[int], List[int]]:
    return [task.task_id for task in group.tasks], [task.size for task in group.tasks]


def _between_pes(workloads: Workloads, my_pe: int) -> Workloads:
    return {pe: groups for pe, groups in workloads.items() if pe != my_pe}


def _check(workloads: Workloads, my_pe: int, n_pes: int, exchange: Any) -> None:
    if (my_pe, n_pes) != (exchange.rank, exchange.size):
        raise InvalidInput(
            f"my_pe {my_pe} of n_pes {n_pes} is not rank {exchange.rank} of {exchange.size}, which "
            "those who exchange have"
        )
    for pe, groups in workloads.items():
        if not 0 <= index(pe) < n_pes:
            raise InvalidInput(f"a destination is {pe!r}, but PEs go from 0 to {n_pes - 1}")
        for number, group in enumerate(groups):
            if group.dest_pe != pe:
                raise InvalidInput(
                    f"group {number} for PE {pe} has dest_pe {group.dest_pe}: put it among those"
                )
            if not 0 <= group.total_size < 1 << 64:
                raise InvalidInput(f"group {number} for PE {pe} has {group.total_size} bytes")


def _find_exchange(group: Any, world: Any) -> Any:
    from ...._exchange import TorchExchange, WorldExchange

    torch = sys.modules.get("torch")
    distributed = None if torch is None else getattr(torch, "distributed", None)
    if group is not None or (
        world is None
        and distributed is not None
        and distributed.is_available()
        and distributed.is_initialized()
    ):
        return TorchExchange(group)
    if world is None:
        from ...._world import world as default_world

        world = default_world()
    return WorldExchange(world)
