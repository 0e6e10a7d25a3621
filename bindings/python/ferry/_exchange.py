# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The ways to talk that planning and the making of a world can use: torch.distributed, and a world."""

from __future__ import annotations

from typing import Any, List, Optional

from ._errors import InvalidInput


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
