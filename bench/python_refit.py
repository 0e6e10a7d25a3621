#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Refits from Python: ferry.Refit beside Megatron-Core's GlooCopyService and beside the C program.

    PYTHONPATH=... python3 bench/python_refit.py --build build/release [--ranks 2,4] [--mib 1024]
            [--rounds 5] [--runs 7] [--gloo-runs 3] [--no-gloo] [--json FILE]

A bf16 matrix goes from row shards to column shards on the same ranks. A round starts the C program
(bench_refit, case matrix:N:N) and the ranks of Python, in changing order. Each rank of Python moves
the matrix with one Refit for each kind of memory, planned once and run `runs` times; and, between
the two, with Megatron's own execute_reshard_plan over its GlooCopyService, as the package is (but
for a stand-in for a stream of a GPU). Kinds of memory: `malloc` is torch's own on both sides,
`ferry` is that of a service (RemoteCopyService.alloc, ferry_memory_alloc) on both, and `empty` that
of `ferry.empty`, which Python alone has. Seconds of a run
count from a barrier to the end of the slowest rank. The first run of each does not count and is
verified, element by element. A figure of a round is the median of its runs; ratios are of rounds.
Prints a table of targets.

Needs torch; megatron-core 0.16.1 for its part, which is left out where it is missing.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
MEMORIES = ("malloc", "ferry")
OF_PYTHON = (*MEMORIES, "empty")
COLUMNS = 32768  # those of the case of bench_refit


def rows_of(mib):
    return mib * (1 << 20) // (2 * COLUMNS)


# ---- a rank ----


class Rank:
    """One process: its shards of the matrix, and how runs are timed."""

    def __init__(self, arguments):
        import torch
        import torch.distributed as dist

        import ferry

        self.torch, self.dist, self.arguments = torch, dist, arguments
        dist.init_process_group("gloo")
        self.rank, self.n = dist.get_rank(), dist.get_world_size()
        self.rows = rows_of(arguments.mib)
        self.height, self.width = self.rows // self.n, COLUMNS // self.n
        self.world = ferry.world()  # whose barrier all ranks leave within microseconds
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // self.n))

    def pattern(self, first_row, n_rows, first_column, n_columns):
        """What the matrix holds there: bits of a number that names row and column."""
        torch = self.torch
        rows = torch.arange(first_row, first_row + n_rows)[:, None] * COLUMNS
        numbers = rows + torch.arange(first_column, first_column + n_columns)
        return (numbers * 2654435761 % 65521 - 32768).to(torch.int16).view(torch.bfloat16)

    def fill(self, shard):
        for first in range(0, self.height, 1024):
            part = shard[first:first + 1024]
            part.copy_(self.pattern(self.rank * self.height + first, len(part), 0, COLUMNS))

    def is_right(self, shard):
        """On all ranks."""
        torch, wrong = self.torch, 0
        for first in range(0, self.rows, 1024):
            part = shard[first:first + 1024]
            wanted = self.pattern(first, len(part), self.rank * self.width, self.width)
            wrong += not torch.equal(part.view(torch.int16), wanted.view(torch.int16))
        total = torch.tensor(wrong)
        self.dist.all_reduce(total)
        return int(total) == 0

    def timed(self, run):
        self.world.barrier()
        begin = time.perf_counter()
        run()
        seconds = self.torch.tensor(time.perf_counter() - begin, dtype=self.torch.float64)
        self.dist.all_reduce(seconds, self.dist.ReduceOp.MAX)
        return float(seconds)

    def series(self, run, new, n_runs):
        new.zero_()
        first = self.timed(run)
        assert self.is_right(new), "the matrix arrived wrong"
        return {"first_seconds": first, "seconds": [self.timed(run) for _ in range(n_runs)]}


def spec_of(rank):
    def side(dim):
        return {"mesh": [["tp", rank.n]], "rules": [
            {"match": "*", "shard": [{"dim": dim, "axis": "tp"}]}]}

    return {"format": "ferry.spec/1", "source": side(0), "destination": side(1),
            "tensors": [{"name": "w", "shape": [rank.rows, COLUMNS], "dtype": "bf16"}]}


def with_ferry(rank, memory):
    import ferry

    torch = rank.torch
    with ferry.RemoteCopyService() as service:
        service.init(log_level="WARN")

        def make(*shape):
            if memory == "malloc":
                return torch.empty(shape, dtype=torch.bfloat16)
            if memory == "empty":
                return ferry.empty(*shape, dtype=torch.bfloat16)
            block = service.alloc(2 * shape[0] * shape[1])
            return torch.frombuffer(block, dtype=torch.bfloat16).reshape(shape)

        old, new = make(rank.height, COLUMNS), make(rank.rows, rank.width)
        rank.fill(old)
        with ferry.Refit({"w": old}, {"w": new}, spec_of(rank), service=service) as refit:
            done = rank.series(refit.run, new, rank.arguments.runs)
            numbers = service.statistics()
            done["paths"] = {name: getattr(numbers, "bytes_" + name)
                             for name in ("local", "mapped", "remote", "staged")}
    return done


def with_gloo(rank):
    """Megatron-Core's execution and service on two modules of one parameter."""
    import logging
    import warnings

    class Stream:
        def wait_stream(self, _):
            pass

    torch = rank.torch
    torch.cuda.Stream = torch.cuda.current_stream = Stream
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    from megatron.core.resharding.copy_services.gloo_copy_service import GlooCopyService
    from megatron.core.resharding.execution import execute_reshard_plan
    from megatron.core.resharding.utils import ReshardPlan, TransferOp

    # Its planner cuts both sides along one dimension: the plan from rows to columns is made here.
    def box(row, column):
        return (slice(row * rank.height, (row + 1) * rank.height),
                slice(column * rank.width, (column + 1) * rank.width))

    me, n = rank.rank, rank.n
    plan = ReshardPlan(
        [TransferOp("w", to, True, box(0, to), box(me, 0), me * n + to) for to in range(n)],
        [TransferOp("w", by, False, box(by, 0), box(0, me), by * n + me) for by in range(n)])

    def module(*shape):
        made = torch.nn.Module()
        made.w = torch.nn.Parameter(torch.empty(shape, dtype=torch.bfloat16), requires_grad=False)
        return made

    source, target = module(rank.height, COLUMNS), module(rank.rows, rank.width)
    rank.fill(source.w.data)
    service = GlooCopyService()
    return rank.series(lambda: execute_reshard_plan(plan, source, target, service), target.w.data,
                       rank.arguments.gloo_runs)


def be_rank(arguments):
    rank = Rank(arguments)
    done = {"malloc": with_ferry(rank, "malloc")}
    if arguments.gloo:
        done["gloo"] = with_gloo(rank)
    for memory in OF_PYTHON[1:]:
        done[memory] = with_ferry(rank, memory)
    if rank.rank == 0:
        print(json.dumps({**done, "torch": rank.torch.__version__}), flush=True)
    rank.dist.barrier()
    rank.dist.destroy_process_group()


# ---- all of them ----


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_python(arguments, n):
    words = [sys.executable, __file__, "--child", *sys.argv[1:]]
    if not arguments.gloo:
        words.append("--no-gloo")
    port, processes = str(free_port()), []
    for rank in range(n):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(n), LOCAL_RANK=str(rank),
                   LOCAL_WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                   OMP_NUM_THREADS="1")
        processes.append(subprocess.Popen(words, env=env, stdout=subprocess.PIPE))
    said = [process.communicate()[0] for process in processes]
    if any(process.returncode != 0 for process in processes):
        raise RuntimeError("a rank of Python failed")
    return json.loads(said[0].decode().strip().splitlines()[-1])


def run_c(arguments, n):
    """{memory: what bench_refit says}"""
    done = {}
    for memory in MEMORIES:
        case = f"matrix:{n}:{n}:{rows_of(arguments.mib)}:{COLUMNS}"
        with tempfile.NamedTemporaryFile() as file:
            subprocess.run([arguments.build / "ferry", "launch", "-n", str(n), "--",
                            arguments.build / "bench" / "bench_refit", case, "--memory", memory,
                            "--series", "run", "--runs", str(arguments.runs), "--json", file.name],
                           check=True, stdout=subprocess.DEVNULL,
                           env=dict(os.environ, FERRY_PLUGINS=str(arguments.build)))
            with open(file.name) as text:
                done[memory] = json.load(text)["series"]["run"]
    return done


def compare(arguments, n):
    """GB/s by series, a list with a figure of each round."""
    total = rows_of(arguments.mib) * COLUMNS * 2
    rates, last = {}, None

    def add(name, seconds):
        rates.setdefault(name, []).append(total / median(seconds) * 1e-9)

    for turn in range(arguments.rounds):
        jobs = [run_python, run_c]
        for job in jobs[turn % 2:] + jobs[:turn % 2]:
            done = job(arguments, n)
            if job is run_c:
                for memory in MEMORIES:
                    add("C, " + memory, done[memory]["seconds"])
                continue
            last = done
            for memory in OF_PYTHON:
                add("Python, " + memory, done[memory]["seconds"])
            if "gloo" in done:
                add("gloo", done["gloo"]["seconds"])
    row = {"ranks": n, "bytes": total, "GBps": rates, "load": os.getloadavg()[0],
           "paths": {memory: last[memory]["paths"] for memory in OF_PYTHON}, "torch": last["torch"]}
    print(f"{n} ranks: " + "  ".join(f"{name} {median(of):.2f}" for name, of in rates.items())
          + " GB/s", flush=True)
    return row


def add_targets(targets, row):
    n, rates = row["ranks"], row["GBps"]
    for memory in MEMORIES:
        ours = rates["Python, " + memory]
        if "gloo" in rates:
            targets.add(f"{n} ranks, {memory}: / GlooCopyService", 10, True,
                        [own / its for own, its in zip(ours, rates["gloo"])])
        targets.add(f"{n} ranks, {memory}: / C program", 0.95, True,
                    [own / its for own, its in zip(ours, rates["C, " + memory])])


def version_of_megatron():
    try:
        return importlib.metadata.version("megatron-core")
    except importlib.metadata.PackageNotFoundError:
        return None


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=lambda text: pathlib.Path(text).resolve(),
                        default=HERE.parent / "build" / "release")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--gloo-runs", type=int, default=3)
    parser.add_argument("--no-gloo", dest="gloo", action="store_false")
    parser.add_argument("--json")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    honest.add_arguments(parser)
    return parser.parse_args()


def main():
    arguments = read_arguments()
    if arguments.child:
        be_rank(arguments)
        return
    arguments.gloo = arguments.gloo and version_of_megatron() is not None
    targets = Targets()
    table = []
    record = honest.begin(arguments.rounds, arguments.patience)
    for n in map(int, arguments.ranks.split(",")):
        table.append(compare(arguments, n))
        add_targets(targets, table[-1])
        if arguments.json:  # after every number of ranks: a run cut short leaves what it has
            honest.write(arguments.json, {
                **honest.end(record), "python": platform.python_version(),
                "megatron-core": version_of_megatron(), "targets": targets.lines, "table": table})
    targets.print()


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    import honest
    from transport_vs_peers import Targets, median
    main()
