#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Runs that move only what differs, beside full runs of the same plan.

    PYTHONPATH=... python3 bench/delta.py --build build/release [--rounds 5] [--mib 256]
            [--only node,hosts] [--rate 1gbit] [--json FILE]

Tensors of 1 MiB go from rank 0 to rank 1. node: both are on this machine, and the destinations in
memory that rank 0 maps; hosts: each in a namespace of its own (tests/multirank/hosts.py, which needs
root), over TCP, links shaped to --rate each way. In each round, in turns and from one pair of
processes, seconds from a barrier until both ranks have ended:

    full        everything, by a service without the option
    blocks      1 % of the blocks of 4 KiB have changed, here and there
    same        nothing has changed
    marked      1 % of the tensors have changed, and the others were marked unchanged
    copy, read  by rank 0 alone with NumPy, of as many bytes: what the memory gives at that moment

Ratios are those of rounds, full over the other. Destinations are compared at the end of each round.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import honest

HERE = pathlib.Path(__file__).resolve().parent
TENSOR, BLOCK = 1 << 20, 4096
KINDS = ("full", "blocks", "same", "marked", "copy", "read")
LIMIT_S = 1200


def spec_of(n):
    def side(rank):
        return {"mesh": [], "ranks": [rank], "rules": [{"match": "*"}]}

    return {"format": "ferry.spec/1", "source": side(0), "destination": side(1),
            "tensors": [{"name": f"t{i}", "shape": [TENSOR], "dtype": "u8"} for i in range(n)]}


class Rank:
    """One process: its tensors, and a service without the option and one with it."""

    def __init__(self, arguments):
        import numpy

        import ferry

        self.np, self.ferry = numpy, ferry
        self.world = ferry.world()
        self.rank, self.n = self.world.rank, arguments.mib * (1 << 20) // TENSOR
        self.source = None
        if self.rank == 0:
            self.source = numpy.random.default_rng(1).integers(
                0, 256, self.n * TENSOR, dtype=numpy.uint8).reshape(self.n, TENSOR)
            self.other = numpy.zeros_like(self.source)
        self.random = numpy.random.default_rng(2)
        self.services, self.targets, self.refits = [], [], []
        for delta in (False, True):
            service = ferry.RemoteCopyService(self.world, delta=delta)
            service.init(log_level="WARN")
            target = None
            if self.rank == 1:
                target = numpy.frombuffer(service.alloc(self.n * TENSOR), numpy.uint8)
                target = target.reshape(self.n, TENSOR)
            self.services.append(service)
            self.targets.append(target)
            self.refits.append(ferry.Refit(self.named(self.source), self.named(target),
                                           spec_of(self.n), world=self.world, service=service))

    def named(self, rows):
        return None if rows is None else {f"t{i}": rows[i] for i in range(self.n)}

    def timed(self, work):
        self.world.barrier()
        begin = time.perf_counter()
        work()
        self.world.barrier()
        return time.perf_counter() - begin

    def change(self, n, size):
        """n places of size bytes, each another one."""
        if self.rank == 0:
            flat = self.source.reshape(-1, size)
            places = self.random.choice(len(flat), n, replace=False)
            flat[places, self.random.integers(0, size)] ^= 1
            return {int(place) for place in places}
        return set()

    def round(self):
        delta = self.refits[1]
        found = {"full": self.timed(self.refits[0].run)}
        delta.run()
        self.change(self.n * TENSOR // BLOCK // 100, BLOCK)
        found["blocks"] = self.timed(delta.run)
        found["same"] = self.timed(delta.run)
        changed = self.change(max(1, self.n // 100), TENSOR)
        others = ",".join(f"t{i}" for i in range(self.n) if i not in changed)
        if self.rank == 0:
            self.services[1].mark_unchanged(others)
        found["marked"] = self.timed(delta.run)
        self.refits[0].run()
        wrong = self.rank == 1 and not (self.targets[0] == self.targets[1]).all()
        if any(one != b"\0" for one in self.world.all_gather(bytes([wrong]))):
            raise SystemExit("the results differ")
        found["copy"] = self.timed(lambda: self.rank == 0 and self.np.copyto(self.other, self.source))
        found["read"] = self.timed(lambda: self.rank == 0 and self.source.view(self.np.uint64).max())
        return found


def be_rank(arguments):
    rank = Rank(arguments)
    rank.round()  # pages are touched, peers connected
    rounds = [rank.round() for _ in range(arguments.rounds)]
    if rank.rank == 0:
        print(json.dumps(rounds), flush=True)


def run_pair(arguments, commands, address, **variables):
    processes = []
    for r, command in enumerate(commands):
        environment = {**os.environ, "RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": address,
                       "MASTER_PORT": "24321", "FERRY_SECRET": "a secret",
                       "FERRY_PLUGINS": str(arguments.build),
                       "PYTHONPATH": str(arguments.build / "bindings" / "python") + os.pathsep +
                       os.environ.get("PYTHONPATH", ""), **variables}
        processes.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        told = [process.communicate(timeout=LIMIT_S) for process in processes]
        for process, (_, error) in zip(processes, told):
            if process.returncode != 0:
                raise SystemExit(f"a rank failed: {error.strip()[-600:]}")
        return json.loads(told[0][0].strip().splitlines()[-1])
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()


def on_hosts(arguments, command):
    sys.path.insert(0, str(HERE.parent / "tests" / "multirank"))
    import hosts as namespaces

    with namespaces.Hosts(2) as hosts:
        hosts.limit(arguments.rate)
        return run_pair(arguments, [[str(word) for word in hosts.all[r].command(*command)]
                                    for r in range(2)], hosts.address(0),
                        UCX_TLS="tcp,self", UCX_NET_DEVICES="e0", UCX_LOG_LEVEL="fatal")


def report(name, rounds, n_bytes):
    table = {}
    for kind in KINDS:
        seconds = [one[kind] for one in rounds]
        ratios = [one["full"] / one[kind] for one in rounds]
        table[kind] = {"seconds": seconds, "ratios": ratios, "ratio": statistics.median(ratios)}
        print(f"{name:6} {kind:7} {statistics.median(seconds) * 1e3:9.2f} ms "
              f"{n_bytes / statistics.median(seconds) / 1e9:7.2f} GB/s   full/this "
              f"{statistics.median(ratios):7.2f} ({min(ratios):.2f} .. {max(ratios):.2f})")
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--only", default="node,hosts")
    parser.add_argument("--rate", default="1gbit", help="of every link, each way, for tc")
    parser.add_argument("--json")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    honest.add_arguments(parser)
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    if arguments.rank:
        be_rank(arguments)
        return
    os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    command = [sys.executable, __file__, "--rank", "--build", arguments.build, "--rounds",
               arguments.rounds, "--mib", arguments.mib]
    result = {**honest.begin(arguments.rounds, arguments.patience), "rate": arguments.rate,
              "bytes": arguments.mib << 20}
    for name in arguments.only.split(","):
        words = [str(word) for word in command]
        rounds = (run_pair(arguments, [words, words], "127.0.0.1")
                  if name == "node" else on_hosts(arguments, words))
        result[name] = report(name, rounds, arguments.mib << 20)
    honest.end(result)
    if arguments.json:
        honest.write(arguments.json, result)


if __name__ == "__main__":
    main()
