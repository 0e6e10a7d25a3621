#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The mixed collectives between hosts whose links are slow: what each mode makes of the bytes.

    python3 bench/mixed_hosts.py --build build/release [--rounds 5] [--rate 1gbit]
            [--cases 2x2,3x1,4x1] [--ops all-reduce,...] [--dtype fp32] [--sizes BYTES,...]
            [--modes NAME,...] [--busy] [--json bench/results/mixed_hosts.json]

Hosts are namespaces of this machine (see tests/multirank/hosts.py, which makes them); needs root
and what that program needs. Case NxL has N hosts with L ranks each; bytes between them take the
engine ucx over TCP, on links that are shaped on both of their ends. All ranks are one TP group
(all-reduce), or those of one place on all hosts are (the fused operations, with L > 1: inter TP N,
local DP L).

The bound is the bytes that a host must send at least over the goodput: what a plain TCP stream
(sockets, this program) brings from one host to another on these links while another one comes the
other way, measured before each round. They are 2 (N - 1) / N of a piece for all-reduce, and as many
for each local DP rank of the fused operations, less what a shaper lets pass at once. Prints for
each size the microseconds of each mode with the share of the bound that it reaches, and from which
size on BYTES2 is faster than WAITS.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

import honest
import refit_hosts
from refit_hosts import end_all, outcome, start

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "multirank"))
import hosts as namespaces  # noqa: E402  (found by the line above)

KIB, MIB = 1 << 10, 1 << 20
SIZES = [8 * KIB << i for i in range(0, 14)]
UCX = refit_hosts.UCX
FAMILIES = ("fused-waits", "fused-bytes1", "fused-bytes2")
TARGET = 0.9
BURST = 512 * KIB  # of a shaper: what it lets pass at once after a pause, in each batch


def median(values):
    return statistics.median(values)


class Network(refit_hosts.Network):
    """Hosts, and bench_mixed on them."""

    def mixed(self, case, op, arguments):
        """{(bytes, mode): (seconds, calls of a batch)} of one start of all ranks."""
        n_hosts, n_local = case
        n, port = n_hosts * n_local, self.next_port()
        tp, dp = (n, 1) if op == "all-reduce" else (n_hosts, n_local)
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "rows.json"
            # Not bound: ranks that are the first of their hosts would share a core.
            command = [self.build / "bench" / "bench_mixed", "--bind", "none", "--local-tp",
                       tp // n_hosts, "--inter-tp", n_hosts, op, arguments.dtype, tp, dp, "--sizes",
                       ",".join(map(str, arguments.sizes)), "--batches", arguments.batches,
                       "--batch-ms", arguments.batch_ms, "--json", file]
            command += ["--ways", arguments.modes] if arguments.modes else []
            processes = []
            try:
                for r in range(n):
                    processes.append(start(
                        self.hosts.all[r // n_local].command(*command), RANK=r, WORLD_SIZE=n,
                        MASTER_ADDR=self.hosts.address(0), MASTER_PORT=port,
                        FERRY_SECRET="a secret", FERRY_PLUGINS=self.build, **UCX))
                for r, process in enumerate(processes):
                    outcome(process, f"rank {r} of {op}")
                rows = [json.loads(line) for line in file.read_text().splitlines()]
            finally:
                end_all(processes)
        wrong = [row for row in rows if row["wrong"] != 0]
        assert not wrong, wrong
        figure = min if arguments.busy else median
        return {(row["bytes"], row["way"]): (figure(row["seconds"]), row["calls"])
                for row in rows}


def least_bytes(case, op, size):
    """That a host must send."""
    n_hosts, n_local = case
    return 2 * (n_hosts - 1) / n_hosts * size * (1 if op == "all-reduce" else n_local)


def fastest(row, family):
    """(name, seconds) of a family's faster form; None where it is not offered."""
    own = [(median(values), name) for name, values in row["seconds"].items()
           if name.startswith(family)]
    return min(own)[::-1] if own else None


def make_row(case, op, size, rounds, goodputs):
    names = sorted({mode for own, mode in rounds[0] if own == size})
    least = least_bytes(case, op, size)
    row = {"bytes": size, "least_bytes": least, "seconds": {}, "of_bound": {},
           "bound_seconds": [least / goodput for goodput in goodputs]}
    for name in names:
        both = [(one[size, name], goodput) for one, goodput in zip(rounds, goodputs)
                if (size, name) in one]
        row["seconds"][name] = [seconds for (seconds, _), _ in both]
        row["of_bound"][name] = median([max(0, least - BURST / calls) / goodput / seconds
                                        for (seconds, calls), goodput in both])
    return row


def show(row):
    parts = [f"{row['bytes'] // KIB:7} KiB  bound {median(row['bound_seconds']) * 1e6:10.0f} us"]
    for family in FAMILIES:
        best = fastest(row, family)
        if best is not None:
            parts.append(f"{family[6:]} {best[1] * 1e6:10.0f} ({row['of_bound'][best[0]]:.3f})")
    for name in ("base-one", "base-tp-dp"):
        if name in row["seconds"]:
            parts.append(f"{name} {median(row['seconds'][name]) * 1e6:10.0f} "
                         f"({row['of_bound'][name]:.3f})")
    print("  ".join(parts), flush=True)


def crossing(rows, family="fused-waits"):
    """The smallest size from which on BYTES2 is faster than another family at every one."""
    found = None
    for row in reversed(rows):
        ours, its = fastest(row, "fused-bytes2"), fastest(row, family)
        if ours is None or its is None or ours[1] >= its[1]:
            break
        found = row["bytes"]
    return found


def summarise(case, op, rows):
    large = fastest(rows[-1], "fused-bytes2")
    best = None if large is None else rows[-1]["of_bound"][large[0]]
    at = crossing(rows)
    what = "never" if at is None else f"from {at // KIB} KiB on"
    print(f"{op}, {case[0]} hosts x {case[1]}: BYTES2 is faster than WAITS {what}; at the largest "
          f"size it reaches " + ("nothing" if best is None else f"{best:.3f} of the bound "
                                 f"({'met' if best >= TARGET else 'MISSED'}: >= {TARGET})"),
          flush=True)
    return {"op": op, "hosts": case[0], "ranks_per_host": case[1], "crossing_bytes": at,
            "of_bound_at_the_largest": best, "met": best is not None and best >= TARGET,
            "sizes": rows}


def compare(arguments, case, op):
    rounds, goodputs = [], []
    with namespaces.Hosts(case[0]) as hosts:
        hosts.limit(arguments.rate)
        network = Network(hosts, arguments.build)
        for _ in range(arguments.rounds):
            goodputs.append(min(network.streams([(0, 1), (1, 0)])))
            rounds.append(network.mixed(case, op, arguments))
    print(f"{op} {arguments.dtype}, {case[0]} hosts x {case[1]}, goodput "
          f"{median(goodputs) * 8e-6:.0f} Mbit/s each way", flush=True)
    rows = [make_row(case, op, size, rounds, goodputs) for size in arguments.sizes]
    for row in rows:
        show(row)
    return {"goodput": goodputs, **summarise(case, op, rows)}


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parent / "build" / "release")
    parser.add_argument("--cases", default="2x2,3x1,4x1")
    parser.add_argument("--ops", default="all-reduce",
                        help="also all-reduce-all-gather, reduce-scatter-all-reduce, where L > 1")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--sizes")
    parser.add_argument("--modes", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--batch-ms", type=float, default=200)
    parser.add_argument("--rate", default="1gbit", help="of every link, each way, for tc")
    parser.add_argument("--busy", action="store_true",
                        help="others use the machine too: a round's fastest batch counts")
    parser.add_argument("--json")
    honest.add_arguments(parser)
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    arguments.sizes = sorted(int(size) for size in arguments.sizes.split(",")) \
        if arguments.sizes else SIZES
    return arguments


def main():
    arguments = read_arguments()
    os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    result = {**honest.begin(arguments.rounds, arguments.patience), "rate": arguments.rate,
              "dtype": arguments.dtype, "environment": UCX, "cases": []}
    for text in arguments.cases.split(","):
        case = tuple(int(word) for word in text.split("x"))
        for op in arguments.ops.split(","):
            if op == "all-reduce" or case[1] > 1:
                result["cases"].append(compare(arguments, case, op))
                honest.end(result)
                if arguments.json:  # after every case: a run cut short leaves what it has
                    honest.write(arguments.json, result)


if __name__ == "__main__":
    main()
