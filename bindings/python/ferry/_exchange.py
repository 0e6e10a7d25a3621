# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The ways to talk that planning and the making of a world can use: torch.distributed, and a world."""

from __future__ import annotations

from typing import Any, List, Optional

from . import _errors
from ._errors import Error, InvalidInput


class TorchExchange:
    """rank, size, all_gather, gather and scatter of bytes over a group (None: the default one)."""

    def __init__(self, group: Any = None) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._group = group
        self.rank: int = dist.get_rank(group)
        if self.rank < 0:
            raise InvalidInput(
                f"rank {dist.get_rank()} of torch.distributed is not in the group that was given: "
                "only its members make a world of it"
            )
        self.size: int = dist.get_world_size(group)
        self._first: int = dist.get_global_rank(group, 0) if group is not None else 0

    def all_gather(self, data: bytes) -> List[bytes]:
        parts: List[Any] = [None] * self.size
        self._dist.all_gather_object(parts, data, group=self._group)
        return parts

    def gather(self, data: bytes) -> Optional[List[bytes]]:
        parts: Optional[List[Any]] = [None] * self.size if self.rank == 0 else None
        self._dist.gather_object(data, parts, dst=self._first, group=self._group)
        return parts

    def scatter(self, parts: Optional[List[bytes]]) -> bytes:
        mine: List[Any] = [None]
        self._dist.scatter_object_list(mine, parts, src=self._first, group=self._group)
        return bytes(mine[0])


class WorldExchange:
    """The same over a world of ferry."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.rank: int = world.rank
        self.size: int = world.size

    def all_gather(self, data: bytes) -> List[bytes]:
        parts: List[bytes] = self._world.all_gather(data)
        return parts


def exchange_of(world: Any, group: Any) -> Any:
    """Of a world of ferry, or of a group of torch.distributed; of neither, ferry's default world."""
    if world is not None and group is not None:
        raise InvalidInput("ranks talk over one of both: give world= or group=")
    if group is not None:
        return TorchExchange(group)
    if world is None:
        from ._world import world as default_world

        world = default_world()
    return WorldExchange(world)


def agree(exchange: Any, failure: Optional[Exception]) -> None:
    """A rank that cannot say what it has must not leave the others waiting: all raise what it says.

    Costs one exchange of a few bytes.
    """
    status = failure.status if isinstance(failure, Error) else "ERR_INVALID_INPUT"
    tensor = failure.tensor if isinstance(failure, Error) and failure.tensor else ""
    text = str(failure) if isinstance(failure, Error) else f"{type(failure).__name__}: {failure}"
    own = "" if failure is None else "\0".join((status, tensor, text))
    for rank, said in enumerate(exchange.all_gather(own.encode())):
        if said:
            status, tensor, text = bytes(said).decode().split("\0", 2)
            kind = _errors._BY_STATUS.get(status, InvalidInput)
            error = kind(f"rank {rank}: {text}", tensor=tensor or None, ranks=(rank,))
            raise error from (failure if rank == exchange.rank else None)
