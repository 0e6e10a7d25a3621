# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The checkpoint engine "ferry" of verl: whole tensors from all ranks of the trainer to all workers.

verl imports this module where its config says so, which registers the engine:

    actor_rollout_ref.rollout.checkpoint_engine.backend=ferry
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=ferry.adapters.verl
"""

from __future__ import annotations

from typing import Any, AsyncGenerator, Dict, Iterable, List, Optional, Tuple

from ._base import class_of
from ._stream import Card, Engine, Named

__all__ = ["FerryCheckpointEngine"]


_BASE = "verl.checkpoint_engine.base"
_Base: Any = class_of(_BASE, "CheckpointEngine")


class FerryCheckpointEngine(Engine, _Base):  # type: ignore[misc]
    """What verl makes on each rank of the trainer and on each worker of the rollout.

    verl gives ``bucket_size``, the bytes of a round, and on ranks of the trainer ``is_master``.
    The rest is what its config has in ``checkpoint_engine.engine_kwargs.ferry``: ``host``, the
    address at which others reach the trainer's first rank (that of its node in Ray); ``secret``, a
    text that all must know; ``seconds`` that ranks wait for each other; ``device`` for the tensors
    that a worker gets; with ``keep=False`` all meet anew for each update; and options of
    :class:`ferry.RemoteCopyService`.
    """

    def __init__(self, bucket_size: int, is_master: bool = False, **options: Any) -> None:
        super().__init__(bucket_size, **options)
        self._is_master = is_master

    def prepare(self) -> Card:
        """What all must know of this rank before they meet."""
        return self._card(self._is_master)

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: List[Card]
    ) -> Tuple[Dict[str, List[Any]], Dict[str, List[Any]]]:
        """For each rank, what :meth:`init_process_group` takes: ranks of the trainer come first."""
        size = actor_wg_world_size + rollout_world_size
        everyone: Dict[str, List[Any]] = {
            "rank": list(range(size)),
            "n_trainers": [actor_wg_world_size] * size,
            "cards": [metadata] * size,
        }
        return (
            {key: of_all[:actor_wg_world_size] for key, of_all in everyone.items()},
            {key: of_all[actor_wg_world_size:] for key, of_all in everyone.items()},
        )

    def init_process_group(self, rank: int, n_trainers: int, cards: List[Card]) -> None:
        """Collective: all meet, if they have not yet."""
        self._join(rank, n_trainers, cards)

    def finalize(self) -> None:
        """After each update."""
        if not self._keep:
            self._leave()

    async def send_weights(
        self, weights: Iterable[Named], global_steps: Optional[int] = None
    ) -> Dict[str, Any]:
        """Collective: one update, of the tensors that this rank of the trainer hands over; all hand
        over the same. Returns how many bytes it moved in how many seconds, for verl's metrics."""
        return await self._send(weights, global_steps)

    async def receive_weights(
        self, global_steps: Optional[int] = None
    ) -> AsyncGenerator[Named, None]:
        """Collective: the tensors of the update, each in memory of its own."""
        rounds = self._receive(global_steps)
        try:
            async for tensors in rounds:
                for name, tensor in tensors:
                    yield name, tensor
        finally:
            await rounds.aclose()


_registry = class_of(_BASE, "CheckpointEngineRegistry", None)
if _registry is not None:
    _registry.register("ferry")(FerryCheckpointEngine)
