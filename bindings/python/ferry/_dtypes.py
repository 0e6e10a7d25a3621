# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Which task it is whose two ends are of different dtypes: looked for once a sum has said so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

from ._errors import InvalidInput

if TYPE_CHECKING:
    from ._ferry import Service, World
    from ._plan import Plan

Ends = Dict[Tuple[int, int, int], Tuple[Optional[str], Optional[str]]]  # dtype, name


def first_difference(
    world: "World", handle: "Service", plan: Optional["Plan"]
) -> Callable[[], bytes]:
    """Collective. Returns a function that raises if a task of this rank's receives differs."""
    kinds, sides = handle.kinds()
    told = json.dumps([[kind[1:4] for kind in kinds if kind[0]], sides[0]]).encode()
    said = [json.loads(one) for one in (world.all_gather(told) if world.size > 1 else [told])]

    def check() -> bytes:
        _check_tasks(world.rank, kinds, said)
        # By name, which says it of meshes: a parameter of a side in boxes may hold several tensors.
        if plan is not None and sides[1] and True not in plan._handle.in_boxes:
            _check_moves(world, plan, sides[1], [sources for _, sources in said])
        return b""

    return check


def _check_tasks(rank: int, kinds: List[Tuple[Any, ...]], said: List[Any]) -> None:
    sent = {
        (source, task): dtype
        for source, (sends, _) in enumerate(said)
        for task, peer, dtype in sends
        if peer == rank
    }
    for is_send, task, source, dtype, name in kinds:
        theirs = None if is_send else sent.get((source, task))
        if theirs is not None and dtype is not None and theirs != dtype:
            called = f'tensor "{name}": task {task}' if name else f"task {task}"
            raise _differing(called, name, source, rank, theirs, dtype)


def _check_moves(
    world: "World", plan: "Plan", mine: Dict[str, str], sources: List[Dict[str, str]]
) -> None:
    """Of a plan that says "bytes:N": ranks of the plan are those of the first world."""
    members = {member: rank for rank, member in enumerate(world.members)}
    for move in plan.moves(world.members[world.rank]):
        source = members.get(move.from_rank)
        if move.to_rank != world.members[world.rank] or source is None:
            continue
        theirs = sources[source].get(move.source or move.tensor)
        dtype = mine.get(move.tensor)
        if theirs is not None and dtype is not None and theirs != dtype:
            called = f'tensor "{move.tensor}"'
            raise _differing(called, move.tensor, source, world.rank, theirs, dtype)


def _differing(
    called: str, name: Optional[str], source: int, rank: int, theirs: str, dtype: str
) -> InvalidInput:
    return InvalidInput(
        f"{called} is of dtype {theirs} on rank {source}, which sends it, and of {dtype} on rank "
        f"{rank}, which receives it: give one dtype on both, or a view as bytes (uint8) on one",
        tensor=name,
        ranks=(source, rank),
    )
