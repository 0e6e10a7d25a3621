# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""verl's own manager of checkpoint engines, with its workers, on a Ray of this machine: two ranks of a
trainer, and two replicas of a rollout that keep what they get. Run by test_adapters_verl, with the
Python of build/verl; prints what was right."""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, List, Optional

os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import ray  # noqa: E402
import torch  # noqa: E402
from engine_rounds import digest  # noqa: E402
from verl.checkpoint_engine.base import (  # noqa: E402
    CheckpointEngine, CheckpointEngineManager, CheckpointEngineRegistry, CheckpointEngineWorker,
)  # fmt: skip
from verl.single_controller.base import Worker  # noqa: E402
from verl.single_controller.base.decorator import Dispatch, register  # noqa: E402
from verl.single_controller.ray import (  # noqa: E402
    RayClassWithInitArgs, RayResourcePool, RayWorkerGroup,
)  # fmt: skip
from verl.utils.import_utils import import_external_libs  # noqa: E402
from verl.workers.config import CheckpointEngineConfig, RolloutConfig  # noqa: E402

CONFIG: Dict[str, Any] = {
    "backend": "ferry", "custom_backend_module": "ferry.adapters.verl",
    "update_weights_bucket_megabytes": 1,
    "engine_kwargs": {"ferry": {"secret": "of this test", "seconds": 100.0}},
}  # fmt: skip


def model(step: int) -> Any:
    """More than two rounds of bytes, in two types."""
    for number, (dtype, shape) in enumerate(
        [(torch.bfloat16, (1000, 700)), (torch.float32, (333, 777)), (torch.bfloat16, (5,))]
    ):
        generator = torch.Generator().manual_seed(10 * step + number)
        yield "layer.%d" % number, torch.randn(shape, generator=generator).to(dtype)


class Trainer(Worker):
    """What verl's actor does with its engine."""

    def __init__(self) -> None:
        super().__init__()
        import_external_libs(CONFIG["custom_backend_module"])
        self.checkpoint_engine = CheckpointEngineRegistry.new(
            "ferry", is_master=self.rank == 0, bucket_size=1 << 20, **CONFIG["engine_kwargs"]["ferry"]
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: Optional[int] = None, mode: str = "auto") -> Any:
        return await self.checkpoint_engine.send_weights(model(global_steps or 0), global_steps)

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.checkpoint_engine, method)(*args, **kwargs)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def is_one(self) -> bool:
        return isinstance(self.checkpoint_engine, CheckpointEngine)


class Kept:
    """A server's adapter that keeps what it is given."""

    def __init__(self) -> None:
        self.got: List[Any] = []

    async def update_weights(self, weights: Any, global_steps: Any, wire_format: str) -> None:
        assert wire_format == "named_tensors"
        self.got = [digest(name, tensor) async for name, tensor in weights]


class Rollout(CheckpointEngineWorker):
    def __init__(self, rollout_config: Any, model_config: Any) -> None:
        super().__init__(rollout_config, model_config, Kept())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def has(self, wanted: Any) -> bool:
        return self.server_adapter.got == wanted


class Replica:
    """Whatever else verl asks of a replica has no effect."""

    def __init__(self, worker: Any) -> None:
        self.workers = [worker]

    def __getattr__(self, name: str) -> Any:
        async def nothing(**_: Any) -> None:
            pass

        return nothing


def group(cls: Any, n: int, **given: Any) -> Any:
    made = RayClassWithInitArgs(cls=ray.remote(cls), **given)
    pool = RayResourcePool([n], use_gpu=False, max_colocate_count=1)
    return RayWorkerGroup(resource_pool=pool, ray_cls_with_init=made, device_name="cpu")


def main() -> None:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
    config = CheckpointEngineConfig(**CONFIG)
    trainer = group(Trainer, 2)
    rollout = group(Rollout, 2, rollout_config=RolloutConfig(name="vllm", checkpoint_engine=config),
                    model_config=None)
    replicas = [Replica(one) for one in rollout.workers]
    manager = CheckpointEngineManager(config, trainer, replicas)
    print("abstract class: %s" % all(trainer.is_one()))
    for step in (1, 2):
        metrics = manager.update_weights(global_steps=step)
        wanted = [digest(name, tensor) for name, tensor in model(step)]
        print("step %d: %s, %d bytes" % (step, rollout.has(wanted), metrics["ferry/bytes_moved"]))
    try:
        manager.update_weights(global_steps=1)
    except Exception as error:
        print("refused: %s" % str(error).strip().splitlines()[-1])
    manager.remove_replicas(replicas[1:])
    manager.update_weights(global_steps=3)
    wanted = [digest(name, tensor) for name, tensor in model(3)]
    print("one replica: %s" % rollout.has(wanted))
    ray.shutdown()


if __name__ == "__main__":
    main()
