# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Two ranks of a trainer and two workers, each a process with a checkpoint engine in it, driven as a
framework does: cards of all are brought to all, all meet, updates follow. Without the frameworks;
test_adapters_engines_torch and test_adapters_verl run it.

Each function is one of a run_ranks() and returns what its rank has seen.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import pickle
import signal
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import support
import torch

N_TRAINERS, SIZE = 2, 4
BUCKET = 1000  # bytes: no multiple of anything, and less than the largest tensors have
SECONDS = 100.0
DTYPES = (torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.float64, torch.float8_e4m3fn)
SHAPES = ((17, 31), (), (0, 5), (3,), (600,), (2, 3, 4, 5), (1,), (999,), (1000,))

Digests = List[Tuple[str, str, Tuple[int, ...], str]]


def model(step: int) -> Iterator[Tuple[str, Any]]:
    """Tensors of all sizes around that of a bucket, of random bits; what gives them takes their memory
    back, as engines do that gather tensors into the same buffer."""
    for number, shape in enumerate(SHAPES):
        dtype = DTYPES[(number + step) % len(DTYPES)]
        generator = torch.Generator().manual_seed(1000 * step + number)
        shown = torch.Size(shape)
        n_bytes = shown.numel() * dtype.itemsize
        bits = torch.randint(0, 2 if dtype is torch.bool else 256, (n_bytes,), generator=generator)
        row = bits.to(torch.uint8)
        tensor = row.view(dtype).reshape(shown)
        if len(shape) == 2:  # as a transposed view
            tensor = tensor.t().contiguous().t()
        yield "layer.%d" % number, tensor
        row.zero_()
        tensor.zero_()


def digest(name: str, tensor: Any) -> Tuple[str, str, Tuple[int, ...], str]:
    row = tensor.contiguous().reshape(-1).view(torch.uint8)
    bits = hashlib.sha256(bytes(row.tolist())).hexdigest()
    return name, str(tensor.dtype), tuple(tensor.shape), bits


def wanted(step: int) -> Digests:
    return [digest(name, tensor) for name, tensor in model(step)]


def bring(what: str, rank: int, value: Any, ranks: Any = range(SIZE)) -> List[Any]:
    """What a framework's driver does: everybody's value to everybody."""
    folder = os.path.dirname(os.environ["FERRY_TEST_RESULT"])
    path = os.path.join(folder, "brought.%s.%d")
    with open(path % (what, rank) + ".part", "wb") as file:
        pickle.dump(value, file)
    os.rename(path % (what, rank) + ".part", path % (what, rank))
    found = []
    for other in ranks:
        support.until(lambda: os.path.exists(path % (what, other)))
        with open(path % (what, other), "rb") as file:
            found.append(pickle.load(file))
    return found


class Driven:
    """An engine of either framework, with the same methods."""

    def __init__(self, kind: str, rank: int, bucket: int = BUCKET, **options: Any) -> None:
        options.setdefault("seconds", SECONDS)
        self.kind, self.rank, self.is_trainer = kind, rank, rank < N_TRAINERS
        if kind == "verl":
            from ferry.adapters.verl import FerryCheckpointEngine as verl_engine

            self.engine: Any = (
                verl_engine(bucket_size=bucket, is_master=rank == 0, **options)
                if self.is_trainer
                else verl_engine(bucket_size=bucket, **options)
            )
        else:
            from ferry.adapters.nemo_rl import FerryCheckpointEngine as nemo_engine

            self.engine = nemo_engine(bucket_size=bucket, **options)

    def meet(self, name: str, n_workers: int = SIZE - N_TRAINERS) -> None:
        size = N_TRAINERS + n_workers
        cards = bring(name, self.rank, self.engine.prepare(), range(size))
        if self.kind == "verl":
            trainers, workers = type(self.engine).build_topology(N_TRAINERS, n_workers, cards)
            own, at = (trainers, 0) if self.is_trainer else (workers, N_TRAINERS)
            self.engine.init_process_group(
                **{key: of_all[self.rank - at] for key, of_all in own.items()}
            )
        elif self.is_trainer:
            self.engine.init_policy_process_group(
                worker_rank=self.rank, train_world_size=N_TRAINERS, rollout_world_size=n_workers,
                metadata=cards,
            )  # fmt: skip
        else:
            self.engine.init_rollout_process_group(
                rollout_rank=self.rank - N_TRAINERS, train_world_size=N_TRAINERS,
                rollout_world_size=n_workers, metadata=cards,
            )  # fmt: skip

    def update(self, weights: Any, step: Optional[int], take: Optional[Callable] = None) -> Digests:
        """One update. A worker gives each tensor to ``take``, and returns all that it got; kept until
        the end, for they are its own."""
        version = {"global_steps": step} if self.kind == "verl" else {}
        if self.is_trainer:
            asyncio.run(self.engine.send_weights(weights, **version))
            return []
        return asyncio.run(self._receive(version, take or (lambda name: None)))

    async def _receive(self, version: Dict[str, Any], take: Callable) -> Digests:
        kept = []
        if self.kind == "verl":
            async for name, tensor in self.engine.receive_weights(**version):
                take(name)
                kept.append((name, tensor))
        else:
            async for batch in self.engine.receive_weight_batches():
                assert isinstance(batch, list) and batch
                for name, tensor in batch:
                    take(name)
                    kept.append((name, tensor))
        return [digest(name, tensor) for name, tensor in kept]


def attempt(function: Callable[[], Any]) -> Tuple[str, str, Optional[str]]:
    """What it raises, by name, and of which tensor."""
    try:
        function()
    except Exception as error:
        return type(error).__name__, str(error), getattr(error, "tensor", None)
    return "", "", None


def updates(rank: int, size: int, kind: str, keep: bool) -> Any:
    """Three updates: of two models, and once more the last one's version. And the bytes that this rank
    brought to workers through memory of both."""
    driven, got, worlds = Driven(kind, rank, keep=keep), [], []
    for step in (0, 1, 1):
        driven.meet("step %d" % len(got))
        worlds.append(id(driven.engine._stream))
        got.append(driven.update(model(step), step) == ([] if rank < N_TRAINERS else wanted(step)))
        staged = staged_bytes(driven)
        if kind == "verl":
            driven.engine.finalize()
        support.meet(rank, size, "updated %d" % len(got))
    driven.engine._leave()
    return got, len(set(worlds)) == 1, driven.engine._version, staged


def staged_bytes(driven: Driven) -> int:
    """What did not go straight to its place in the last rounds of each size."""
    ways = [one.service.statistics() for one in driven.engine._stream._plans.values()]
    assert not driven.is_trainer or sum(one.bytes_mapped for one in ways) > 0
    return sum(one.bytes_staged for one in ways)


def growing(rank: int, size: int, is_poor: bool) -> Any:
    """A model of few bytes, one of many rounds, and the first one again: rounds that are larger than
    all before get other memory. The second worker has no memory of ferry, if it is poor."""
    from ferry import NoMemory, _memory

    def none_left(*given: Any, **named: Any) -> Any:
        raise NoMemory("no memory of this test")

    if is_poor and rank == 3:
        _memory.empty = none_left
    driven, right = Driven("verl", rank), []
    few = [("few", torch.arange(5.0)), ("none", torch.zeros(0, 3)), ("more", torch.ones(7))]
    for step, weights in enumerate((few, list_of(0), few, [], list_of(1))):
        driven.meet("step %d" % step)
        told = [digest(name, tensor) for name, tensor in weights]
        right.append(driven.update(iter(weights), step) == ([] if driven.is_trainer else told))
        support.meet(rank, size, "updated %d" % step)
    staged = staged_bytes(driven)
    driven.engine._leave()
    return right, staged


def sharded(rank: int, size: int, kind: str, port: int) -> Any:
    """Three updates of DTensors of two ranks among other tensors. What was whole on any rank of the
    trainer, whether each update was right, what the second rank heard whose tensor is cut otherwise,
    and whether plans were kept."""
    from torch.distributed.tensor import DTensor

    gathered, gather = [], DTensor.full_tensor
    mesh = None
    if rank < N_TRAINERS:
        mesh = meshes_of(rank, port)
        DTensor.full_tensor = lambda self, **how: (gathered.append(tuple(self.shape)), gather(self, **how))[1]
    driven, right, kept = Driven(kind, rank, keep=True), [], []
    for step in (1, 2, 3):
        driven.meet("step %d" % step)
        whole = cut_model(step)
        told = [digest(name, tensor) for name, tensor, _ in whole]
        got = driven.update(in_shards(whole, mesh), step)
        right.append(got == ([] if driven.is_trainer else told))
        kept.append({id(one) for one in driven.engine._stream._plans.values()})
        support.meet(rank, size, "updated %d" % step)
    staged = staged_bytes(driven)

    def other() -> Iterator[Tuple[str, Any]]:
        from torch.distributed.tensor import Shard

        for name, tensor in in_shards(cut_model(4), mesh):
            if name == "columns" and rank == 1:
                tensor = DTensor.from_local(torch.zeros(3, 8), mesh[0], [Shard(0)], run_check=False,
                                            shape=tensor.shape, stride=tensor.stride())
            yield name, tensor

    found = attempt(lambda: driven.update(other() if mesh is not None else None, 4))
    support.meet(rank, size, "last")
    driven.engine._leave()
    return gathered, right, found, kept[1] == kept[2], staged


def meshes_of(rank: int, port: int) -> Any:
    """That of all ranks of the trainer, and one that each has for itself, as replicas have."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % port, rank=rank, world_size=2)
    replicas = init_device_mesh("cpu", (N_TRAINERS, 1), mesh_dim_names=("dp", "tp"))
    return init_device_mesh("cpu", (N_TRAINERS,)), replicas["tp"]


REPLICAS = -2


def cut_model(step: int) -> List[Tuple[str, Any, Optional[int]]]:
    """Names, whole tensors of random bits, and the dimension that they are cut along: -1 is none of
    it, REPLICAS cuts them by the mesh that each rank has for itself, None is a plain tensor."""
    generator = torch.Generator().manual_seed(step)

    def random(*shape: int) -> Any:
        return torch.randn(shape, generator=generator)

    return [("rows", random(8, 6), 0), ("columns", random(7, 8), 1), ("uneven", random(5, 3), 0),
            ("few", random(1, 4).double(), 0), ("all", random(6), -1), ("plain", random(9), None),
            ("half", random(3, 6).bfloat16(), 1), ("large", random(30, 10), 0),
            ("own", random(2, 6), REPLICAS), ("one", random(), -1), ("none", random(0, 4), 0),
            ("last", random(16), 0)]  # fmt: skip


def in_shards(whole: Any, meshes: Any) -> Iterator[Tuple[str, Any]]:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    for name, tensor, dim in whole:
        if dim is None:
            yield name, tensor
            continue
        placement = Replicate() if dim == -1 else Shard(0 if dim == REPLICAS else dim)
        yield name, distribute_tensor(tensor, meshes[dim == REPLICAS], [placement])


def list_of(step: int) -> List[Tuple[str, Any]]:
    return [(name, tensor.clone()) for name, tensor in model(step)]


def refused(rank: int, size: int) -> Any:
    """The second rank of the trainer has another tensor; then its tensors raise; then all is well, with
    version 7; then version 6 is refused, two that differ are, and 7 comes again. All the time they go
    on with the world that they have."""

    def other() -> Iterator[Tuple[str, Any]]:
        for name, tensor in model(1):
            yield name, tensor.reshape(-1)[:5] if name == "layer.4" and rank == 1 else tensor

    def broken() -> Iterator[Tuple[str, Any]]:
        for name, tensor in model(1):
            if name == "layer.5" and rank == 1:
                raise KeyError("layer.5 is lost")
            yield name, tensor

    driven, found = Driven("verl", rank), []
    driven.meet("first")
    stream = driven.engine._stream
    for weights in (other, broken):
        found.append(attempt(lambda: driven.update(weights(), 1)))
    driven.meet("second")
    right = driven.update(model(1), 7) == ([] if rank < N_TRAINERS else wanted(1))
    for step in (6, 8 + rank // 3, 7):
        found.append(attempt(lambda: driven.update(model(1), step)))
    support.meet(rank, size)
    assert driven.engine._stream is stream and driven.engine._version == 7
    driven.engine._leave()
    return found, right


def other_server(rank: int, size: int, kind: str) -> Any:
    """The second worker's model has no such tensor. All meet again, and go on."""

    def take(name: str) -> None:
        if rank == 3 and name == "layer.4":
            raise KeyError("no parameter of the server is called layer.4")

    driven = Driven(kind, rank)
    driven.meet("first")
    found = attempt(lambda: driven.update(model(1), 1, take))
    driven.meet("second")
    right = driven.update(model(2), 2) == ([] if rank < N_TRAINERS else wanted(2))
    support.meet(rank, size)
    driven.engine._leave()
    return found, right


def nobody_comes(rank: int, size: int) -> Any:
    """The second worker has made its card, and is never heard of again."""
    driven = Driven("verl", rank, seconds=15.0)
    if rank == 3:
        bring("first", rank, driven.engine.prepare(), ())
        return None
    found = attempt(lambda: driven.meet("first"))
    support.meet(rank, 3)
    return found[:2]


def killed(rank: int, size: int) -> Any:
    """The second worker dies in an update; another update goes to the first alone."""

    def take(name: str) -> None:
        if rank == 3 and name == "layer.4":
            os.kill(os.getpid(), signal.SIGKILL)

    driven = Driven("verl", rank)
    driven.meet("first")
    driven.update(model(1), 1)
    found = attempt(lambda: driven.update(model(2), 2, take))
    driven.meet("second", 1)
    right = driven.update(model(3), 3) == ([] if rank < N_TRAINERS else wanted(3))
    support.meet(rank, 3)
    driven.engine._leave()
    return found[:2], right, driven.engine._version
