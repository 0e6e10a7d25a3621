# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Run by test_adapters_megatron.py under torchrun: Megatron-Core's own planner and execution, with
its GlooCopyService and with ferry's. Each rank prints the checks that failed, and how many there
were."""

import logging
import os
import sys
import types
import warnings

import torch
import torch.distributed as dist


class Stream:
    """Stands in for torch.cuda.Stream, which the package's class asks for."""

    def wait_stream(self, _):
        pass


torch.cuda.Stream = Stream
torch.cuda.current_stream = Stream
logging.disable(logging.WARNING)
warnings.simplefilter("ignore")

from megatron.core.resharding.copy_services.base import CopyService  # noqa: E402
from megatron.core.resharding.copy_services.gloo_copy_service import GlooCopyService  # noqa: E402
from megatron.core.resharding.execution import execute_reshard_plan  # noqa: E402
from megatron.core.resharding.planner import build_centralized_reshard_plan  # noqa: E402

import ferry  # noqa: E402
from ferry.adapters import megatron  # noqa: E402

# name: (shape, dtype, the dimension that tensor parallelism cuts, its stride)
PARAMETERS = {
    "embedding.weight": ((32, 8), torch.bfloat16, 0, 1),
    "layers.0.qkv.weight": ((24, 8), torch.bfloat16, 0, 1),
    "layers.0.fc1.weight": ((48, 8), torch.float32, 0, 2),
    "layers.0.fc2.weight": ((8, 24), torch.float32, 1, 1),
    "layers.0.norm.weight": ((8,), torch.float32, None, 1),
}
failed, n_checks = [], 0


def check(what, right):
    global n_checks
    n_checks += 1
    if not right:
        failed.append(what)


def full_of(name):
    shape, dtype, _, _ = PARAMETERS[name]
    generator = torch.Generator().manual_seed(len(name))
    return torch.randn(shape, generator=generator).to(dtype)


def shard_of(name, tp, rank):
    _, _, dim, stride = PARAMETERS[name]
    full = full_of(name)
    if dim is None:
        return full
    parts = full.chunk(tp * stride, dim)
    return torch.cat(parts[rank::tp], dim).contiguous()


def groups(tp, rank, size):
    """Ranks in a row are tensor-parallel."""
    found = types.SimpleNamespace(ep=None, expt_tp=None, pp=None)
    for first in range(0, size, tp):
        ranks = list(range(first, first + tp))
        group = dist.new_group(ranks)
        found.tp = group if rank in ranks else getattr(found, "tp", None)
    for first in range(tp):
        ranks = list(range(first, size, tp))
        group = dist.new_group(ranks)
        found.dp = group if rank in ranks else getattr(found, "dp", None)
    for one in range(size):
        group = dist.new_group([one])
        found.pp = group if rank == one else found.pp
    return found


class Model(torch.nn.Module):
    def __init__(self, tp, collection, rank, is_source):
        super().__init__()
        self.pg_collection = collection
        for name, (_, _, dim, stride) in PARAMETERS.items():
            shard = shard_of(name, tp, rank % tp)
            param = torch.nn.Parameter(shard if is_source else torch.zeros_like(shard))
            param.tensor_model_parallel = dim is not None
            param.partition_dim, param.partition_stride = dim or 0, stride
            owner = self
            *path, last = name.split(".")
            for part in path:
                if not hasattr(owner, part):
                    owner.add_module(part, torch.nn.Module())
                owner = getattr(owner, part)
            owner.register_parameter(last, param)

    def is_right(self, tp, rank, wanted=None):
        return all(torch.equal(param.detach(), shard_of(name, tp, rank % tp) if wanted is None
                               else wanted[name]) for name, param in self.named_parameters())

    def clear(self):
        for param in self.parameters():
            param.data.zero_()


def layouts(rank, size, from_tp, to_tp, services):
    label = f"TP{from_tp} to TP{to_tp}: "
    source = Model(from_tp, groups(from_tp, rank, size), rank, True)
    target = Model(to_tp, groups(to_tp, rank, size), rank, False)
    plan = build_centralized_reshard_plan(source, target)
    execute_reshard_plan(plan, source, target, GlooCopyService())
    gloo = {name: param.detach().clone() for name, param in target.named_parameters()}
    check(label + "gloo", target.is_right(to_tp, rank))
    for name, service in services.items():
        for _ in range(2):
            target.clear()
            execute_reshard_plan(plan, source, target, service)
            check(label + name, target.is_right(to_tp, rank, gloo))
    target.clear()
    megatron.refit(source, target)
    check(label + "refit", target.is_right(to_tp, rank, gloo))
    with megatron.prepare(source, target) as planned:
        for _ in range(2):
            target.clear()
            result = planned.run()
            check(label + "prepare", target.is_right(to_tp, rank, gloo))
    total = torch.tensor([sum(param.nbytes for param in target.parameters())])
    dist.all_reduce(total)
    check(label + "bytes", result.bytes_moved + result.bytes_local == int(total))


def without_ids(rank, size, service):
    """In order of their submission, for each pair of ranks; some with an id between them."""
    peer, back = (rank + 1) % size, (rank - 1) % size
    sends = [torch.full((n,), float(10 * rank + n)) for n in (1, 2, 3)]
    receives = [torch.zeros(n) for n in (1, 2, 3)]
    service.submit_send(sends[0], peer)
    service.submit_send_with_id(7, sends[2], peer)
    service.submit_send(sends[1].expand(1, 2), peer)
    service.submit_recv_with_id(7, receives[2], back)
    service.submit_recv(receives[0], back)
    service.submit_recv(receives[1], back)
    service.run()
    for n, tensor in enumerate(receives, 1):
        check("without ids", torch.equal(tensor, torch.full((n,), float(10 * back + n))))


def kept(rank, size):
    """The same memory again needs no schedule; other memory on one rank does, on all."""
    service = megatron.FerryCopyService(keep=True)
    old, new = torch.zeros(64), torch.zeros(64)
    wanted = []
    for turn in range(4):
        if turn == 3 and rank == 0:
            new = torch.zeros(64)
        old.fill_(turn + rank)
        service.submit_send(old[8:16], (rank + 1) % size)
        service.submit_recv(new[:8], (rank - 1) % size)
        service.run()
        wanted.append(torch.equal(new[:8], torch.full((8,), float(turn + (rank - 1) % size))))
    check("kept", all(wanted))
    check("schedules", service.service.statistics().n_schedules == 2)
    service.close()


def failures(rank, size, service):
    """A run that fails forgets what was submitted, and the next one works."""
    service.submit_send(torch.zeros(4), (rank + 1) % size)
    service.submit_recv(torch.zeros(3), (rank - 1) % size)
    try:
        service.run()
        check("sizes that differ", False)
    except ferry.InvalidInput:
        pass
    if rank == 0:
        service.submit_recv(torch.zeros(4, dtype=torch.float32).expand(3, 4), 1)
    try:
        service.run()
        check("memory that overlaps", False)
    except ferry.Error as error:
        check("who it was", rank == 0 or error.ranks == (0,))
    try:
        service.submit_send_with_id(-1, torch.zeros(4), 0)
        check("ids", False)
    except ferry.InvalidInput:
        pass
    without_ids(rank, size, service)


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    service = megatron.FerryCopyService()
    check("a CopyService", isinstance(service, CopyService))
    check("ranks", (service.rank, service.world_size) == (rank, size))
    services = {"ferry": service}
    if size == 2:
        services["ferry, checked"] = megatron.FerryCopyService(checksum="end")
    for tps in ((2, 1), (1, 2)) if size == 2 else ((2, 4), (4, 1), (1, 2)):
        layouts(rank, size, *tps, services)
    without_ids(rank, size, service)
    kept(rank, size)
    failures(rank, size, service)
    for one in services.values():
        one.close()
    # In one piece: the ranks share their output.
    os.write(1, b"rank %d: %d checks, failed: %s\n"
             % (rank, n_checks, (str(failed) if failed else "none").encode()))
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
