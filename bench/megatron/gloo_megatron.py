#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Moves a matrix from row shards to column shards with Megatron-Core 0.16.1's own GlooCopyService.

    build/megatron-venv/bin/python3 bench/megatron/gloo_megatron.py --from 2 --to 2 [--runs 5]
            [--rows 16384] [--columns 32768]

Starts its ranks, as many as the larger side has. The package is used as it is: each box is submitted
as a view, a send with the rank's slice of its row shard, a receive with the slice of its column shard
(the service makes both contiguous and copies what came), and service.run() moves them. The package
asks for a stream of a GPU, which a stand-in gives it; nothing else is replaced. Seconds count from a
barrier to the end of the slowest rank, submitting included, as the service forgets its requests with
every run. Prints one line of JSON. The first run does not count, and is verified.
"""

import argparse
import importlib.metadata
import json
import logging
import os
import socket
import time
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing


class Stream:
    """Stands in for torch.cuda.Stream on a machine without a GPU."""

    def wait_stream(self, _):
        pass


def load_service():
    torch.cuda.Stream = Stream
    torch.cuda.current_stream = Stream
    from megatron.core.resharding.copy_services.gloo_copy_service import GlooCopyService
    return GlooCopyService()


def pattern(rows, first_column, n_columns, columns):
    """What the matrix holds there: bits of a number that names row and column."""
    numbers = rows[:, None] * columns + torch.arange(first_column, first_column + n_columns)
    return (numbers * 2654435761 % 65521 - 32768).to(torch.int16).view(torch.bfloat16)


class Side:
    """The boxes of one rank: (task, peer, view of its shard)."""

    def __init__(self, rank, arguments):
        n_from, n_to = arguments.from_ranks, arguments.to_ranks
        height, width = arguments.rows // n_from, arguments.columns // n_to
        self.sends, self.receives, self.column_shard = [], [], None
        if rank < n_from:
            rows = torch.arange(rank * height, (rank + 1) * height)
            shard = pattern(rows, 0, arguments.columns, arguments.columns)
            self.sends = [(rank * n_to + to, to, shard[:, to * width:(to + 1) * width])
                          for to in range(n_to)]
        if rank < n_to:
            self.column_shard = torch.zeros(arguments.rows, width, dtype=torch.bfloat16)
            self.receives = [(by * n_to + rank, by,
                              self.column_shard[by * height:(by + 1) * height])
                             for by in range(n_from)]


def move(service, side):
    for task, peer, view in side.sends:
        service.submit_send_with_id(task, view, peer)
    for task, peer, view in side.receives:
        service.submit_recv_with_id(task, view, peer)
    service.run()


def timed(service, side):
    dist.barrier()
    begin = time.perf_counter()
    move(service, side)
    seconds = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)


def is_right(rank, side, arguments):
    if side.column_shard is None:
        return True
    width = arguments.columns // arguments.to_ranks
    for first in range(0, arguments.rows, 1024):
        rows = torch.arange(first, min(first + 1024, arguments.rows))
        wanted = pattern(rows, rank * width, width, arguments.columns).view(torch.int16)
        if not torch.equal(side.column_shard[first:first + 1024].view(torch.int16), wanted):
            return False
    return True


def be_rank(rank, port, arguments):
    n = max(arguments.from_ranks, arguments.to_ranks)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")  # the package's, on what it finds not installed
    torch.set_num_threads(max(1, os.cpu_count() // n))
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=n)
    service, side = load_service(), Side(rank, arguments)
    first = timed(service, side)
    wrong = torch.tensor(0 if is_right(rank, side, arguments) else 1)
    dist.all_reduce(wrong)
    seconds = [timed(service, side) for _ in range(arguments.runs)]
    if rank == 0:
        print(json.dumps({"version": importlib.metadata.version("megatron-core"),
                          "torch": torch.__version__, "from": arguments.from_ranks,
                          "to": arguments.to_ranks, "bytes": arguments.rows * arguments.columns * 2,
                          "wrong_ranks": int(wrong), "first_seconds": first, "seconds": seconds}))
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description="moves a matrix with Megatron-Core's class")
    parser.add_argument("--from", type=int, default=2, dest="from_ranks")
    parser.add_argument("--to", type=int, default=2, dest="to_ranks")
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--columns", type=int, default=32768)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    n = max(arguments.from_ranks, arguments.to_ranks)
    torch.multiprocessing.spawn(be_rank, (free_port(), arguments), nprocs=n)


if __name__ == "__main__":
    main()
