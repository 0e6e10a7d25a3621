# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A checkpoint engine for NeMo-RL: whole tensors from all ranks of the policy to all workers.

NeMo-RL finds it by its path in the config:

    policy.generation.refit_transport: "ferry.adapters.nemo_rl:FerryCheckpointEngine"
"""

from __future__ import annotations

import sys
from typing import Any, AsyncGenerator, Iterable, List, Optional

from ._base import class_of
from ._stream import Card, Engine, Named

__all__ = ["FerryCheckpointEngine"]


_Base: Any = class_of("nemo_rl.utils.checkpoint_engines.base", "CheckpointEngine")


class FerryCheckpointEngine(Engine, _Base):  # type: ignore[misc]
    """What NeMo-RL makes on each rank of the policy and on each worker of the generation.

    It gives ``bucket_size``, the bytes of a round, and what its config has in ``refit_cfg`` under the
    path of this class: the options of :class:`ferry.adapters.verl.FerryCheckpointEngine`.
    """

    cleanup_after_load = False  # nothing of the device is held between updates
    shard_hf_weights = False

    def get_target_weight_layout(self) -> Optional[Any]:
        """No rank of the policy is to cut tensors: all workers get whole ones."""
        return None

    def prepare(self) -> Card:
        """What all must know of this rank before they meet."""
        return self._card(_is_first())

    def init_policy_process_group(
        self, *, worker_rank: int, train_world_size: int, rollout_world_size: int,
        metadata: List[Card],
    ) -> None:  # fmt: skip
        """Collective: all meet, those of the policy first."""
        self._join(worker_rank, train_world_size, metadata)

    def init_rollout_process_group(
        self, *, rollout_rank: int, train_world_size: int, rollout_world_size: int,
        metadata: List[Card],
    ) -> None:  # fmt: skip
        """Collective: all meet, those of the generation last."""
        self._join(train_world_size + rollout_rank, train_world_size, metadata)

    def finalize(self) -> None:
        """Leaves the others."""
        self._leave()

    async def send_weights(self, weights: Iterable[Named]) -> None:
        """Collective: one update, of the tensors that this rank of the policy hands over; all hand
        over the same. Versions are counted from 1 on."""
        first = self._joined().rank == 0
        await self._send(weights, max(self._version, 0) + 1 if first else None)

    async def receive_weight_batches(self) -> AsyncGenerator[List[Named], None]:
        """Collective: the tensors of the update in batches, each in memory of its own."""
        rounds = self._receive(None)
        try:
            async for tensors in rounds:
                batch = list(tensors)
                if batch:
                    yield batch
        finally:
            await rounds.aclose()


def _is_first() -> bool:
    """Whether this may be the policy's first rank, by torch.distributed. A worker of another server
    has a rank 0, too: its store is asked by nobody."""
    torch = sys.modules.get("torch")
    distributed = None if torch is None else torch.distributed
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return True
    return int(distributed.get_rank()) == 0
