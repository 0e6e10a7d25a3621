#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The copy service between hosts: against the bound of a slow network, and against ucx_perftest.

    python3 bench/refit_hosts.py --build build/release [--rounds 5] [--only slow,fast] [--json FILE]

Hosts are namespaces of this machine (see tests/multirank/hosts.py, which makes them); needs root and
what that program needs. One rank runs on each, and the bytes take the engine ucx over TCP.

slow: every link carries --rate (1gbit) each way, shaped on both of its ends. Row shards of a bf16
matrix of 512 MiB become column shards, 4 -> 4, 4 -> 2 and 2 -> 4. The bound is the bytes of the
busiest port over the goodput: what a plain TCP stream (sockets, this program) brings from one host to
another on these links, measured before each case in the same round. Beside it the goodput of two
streams, one each way.

fast: two hosts without a limit; a matrix of 512 MiB from one to the other, beside ucx_perftest's best
test and size, which alternate with it.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import honest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "multirank"))
import hosts as namespaces  # noqa: E402  (found by the line above)
import ranks  # noqa: E402

MIB = 1 << 20
ROWS, COLUMNS = 8192, 32768
UCX = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "e0", "UCX_LOG_LEVEL": "fatal"}
TESTS = ["tag_bw", "ucp_am_bw", "stream_bw", "ucp_put_bw"]
SIZES = [256 << 10, MIB, 4 * MIB, 16 * MIB]
LIMIT_S = 120
RECEIVE = """
import socket, sys, time
listener = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("listening", flush=True)
stream, _ = listener.accept()
room, total, begin = bytearray(1 << 20), 0, None
while True:
    n = stream.recv_into(room)
    if n == 0:
        break
    if begin is None and total > int(sys.argv[2]):
        begin, total = time.perf_counter(), 0
    total += n
print(total / (time.perf_counter() - begin))
"""
SEND = """
import socket, sys, time
stream = socket.create_connection((sys.argv[1], int(sys.argv[2])))
block, end = bytes(1 << 20), time.perf_counter() + float(sys.argv[3])
while time.perf_counter() < end:
    stream.sendall(block)
"""
SKIPPED_BYTES = 2 * MIB  # of a stream: what the shapers' buckets let pass at once


def start(command, **environment):
    return subprocess.Popen([str(word) for word in command], env=ranks.environment(**environment),
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def end_all(processes):
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def outcome(process, what):
    out, err = process.communicate(timeout=LIMIT_S)
    if process.returncode != 0:
        raise RuntimeError(f"{what} failed: {err.strip()[-400:]}")
    return out


class Network:
    """Hosts, and what runs on them."""

    def __init__(self, hosts, build):
        self.hosts, self.build, self.port = hosts, build, 24000

    def next_port(self):
        self.port += 1
        return self.port

    def streams(self, pairs, seconds=1.0):
        """Bytes per second of plain streams that run at the same time."""
        processes, receivers = [], []
        try:
            senders = []
            for from_host, to_host in pairs:
                port = self.next_port()
                there, here = self.hosts.all[to_host], self.hosts.all[from_host]
                receiver = start(there.command(sys.executable, "-c", RECEIVE, port, SKIPPED_BYTES))
                processes.append(receiver)
                receivers.append(receiver)
                receiver.stdout.readline()
                senders.append(here.command(sys.executable, "-c", SEND,
                                            self.hosts.address(to_host), port, seconds))
            processes += [start(sender) for sender in senders]
            return [float(outcome(receiver, "a stream")) for receiver in receivers]
        finally:
            end_all(processes)

    def refit(self, case, n_ranks, runs, series="run"):
        """What bench_refit says of a case, one rank on each host."""
        processes, port = [], self.next_port()
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "refit.json"
            command = [self.build / "bench" / "bench_refit", case, "--engine", "ucx", "--series",
                       series, "--runs", runs, "--json", file]
            try:
                for r in range(n_ranks):
                    processes.append(start(
                        self.hosts.all[r].command(*command), RANK=r, WORLD_SIZE=n_ranks,
                        MASTER_ADDR=self.hosts.address(0), MASTER_PORT=port,
                        FERRY_SECRET="a secret", FERRY_PLUGINS=self.build, **UCX))
                for r, process in enumerate(processes):
                    outcome(process, f"rank {r} of {case}")
                return json.loads(file.read_text())
            finally:
                end_all(processes)

    def perftest(self, test, size, count):
        """MiB per second from host 0 to host 1."""
        port = self.next_port()
        server = start(self.hosts.all[1].command("ucx_perftest", "-p", port), **UCX)
        try:
            self.await_listener(1, port)
            client = start(self.hosts.all[0].command(
                "ucx_perftest", self.hosts.address(1), "-p", port, "-t", test, "-s", size, "-n",
                count, "-w", count // 8 + 2, "-f"), **UCX)
            try:
                return float(outcome(client, test).strip().splitlines()[-1].split()[5])
            finally:
                end_all([client])
        finally:
            end_all([server])

    def await_listener(self, host, port):
        """Until somebody listens; asking by a connection would be taken for the client."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            text = self.hosts.all[host].run("cat", "/proc/net/tcp", "/proc/net/tcp6")
            for line in text.splitlines():
                words = line.split()
                if words[1].endswith(f":{port:04X}") and words[3] == "0A":
                    return
            time.sleep(0.02)
        raise RuntimeError("ucx_perftest does not listen")


def port_bytes(n_from, n_to):
    """The most bytes that one host sends or receives of a matrix from rows to columns."""
    total = ROWS * COLUMNS * 2
    box = total // (n_from * n_to)
    return max((n_to - (r < n_to)) * box if r < n_from else 0 for r in range(4)) \
        if n_from <= n_to else max((n_from - (r < n_from)) * box if r < n_to else 0
                                   for r in range(4))


def median(values):
    return statistics.median(values)


def compare_slow(arguments):
    """Makespans over the bound."""
    cases = {(a, b): [] for a, b in ((4, 4), (4, 2), (2, 4))}
    with namespaces.Hosts(4) as hosts:
        hosts.limit(arguments.rate)
        network = Network(hosts, arguments.build)
        for turn in range(arguments.rounds):
            order = list(cases)
            for pair in order[turn % 3:] + order[:turn % 3]:
                goodput = network.streams([(0, 1)])[0]
                both = network.streams([(0, 1), (1, 0)])
                done = network.refit(f"matrix:{pair[0]}:{pair[1]}:{ROWS}:{COLUMNS}", max(pair), 3,
                                     arguments.series)
                bound = port_bytes(*pair) / goodput
                for name, series in done["series"].items():
                    seconds = median(series["seconds"])
                    cases[pair].append({
                        "series": name, "goodput": goodput, "goodput_both_ways": both,
                        "bound": bound, "seconds": series["seconds"], "ratio": seconds / bound,
                        "bytes_by_path": series["bytes_by_path"]})
    table = []
    for pair, rows in cases.items():
        for name in dict.fromkeys(row["series"] for row in rows):
            own = [row for row in rows if row["series"] == name]
            ratios = [row["ratio"] for row in own]
            table.append({"case": f"{pair[0]} -> {pair[1]}", "series": name,
                          "port_bytes": port_bytes(*pair), "ratio": median(ratios),
                          "ratios": ratios, "met": median(ratios) <= 1.05, "rounds": own})
            print(f"{pair[0]} -> {pair[1]}  {name:12} makespan / bound {median(ratios):.4f} "
                  f"({min(ratios):.4f} .. {max(ratios):.4f}), goodput "
                  f"{median([row['goodput'] for row in own]) * 8e-6:.1f} Mbit/s", flush=True)
    return table


def best_tests(network):
    """The tests and sizes that come near the best in a first, short round."""
    rates = {}
    for test in TESTS:
        for size in SIZES:
            count = max(8, (64 * MIB) // size)
            rates[test, size] = network.perftest(test, size, count)
    ordered = sorted(rates, key=rates.get, reverse=True)
    return {f"{test} {size >> 10} KiB": rate for (test, size), rate in rates.items()}, ordered[:3]


def compare_fast(arguments):
    """One host to another without a limit."""
    ours, theirs, paths = [], {}, None
    with namespaces.Hosts(2) as hosts:
        network = Network(hosts, arguments.build)
        first, chosen = best_tests(network)
        for _ in range(arguments.rounds):
            for test, size in chosen:
                count = max(8, (512 * MIB) // size)
                theirs.setdefault(f"{test} {size >> 10} KiB", []).append(
                    network.perftest(test, size, count))
            done = network.refit(f"send:{ROWS}:{COLUMNS}", 2, 5, arguments.series)
            series = done["series"]["run"]
            paths = series["bytes_by_path"]
            ours.append(done["bytes"] / median(series["seconds"]) / MIB)
    best = max(theirs, key=lambda name: median(theirs[name]))
    ratios = [own / max(rates) for own, rates in zip(ours, zip(*theirs.values()))]
    print(f"2 hosts  ferry {median(ours):.0f} MiB/s, {best} {median(theirs[best]):.0f} MiB/s, "
          f"ratio to the best {median(ratios):.3f} ({min(ratios):.3f} .. {max(ratios):.3f})")
    return {"ferry_MiBps": ours, "ucx_perftest_MiBps": theirs, "first_round_MiBps": first,
            "ratios": ratios, "ratio": median(ratios), "met": median(ratios) >= 0.9,
            "bytes_by_path": paths}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="slow,fast")
    parser.add_argument("--rate", default="1gbit", help="of every link, each way, for tc")
    parser.add_argument("--series", default="run", help="of bench_refit; run is among them")
    parser.add_argument("--json")
    honest.add_arguments(parser)
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    result = {**honest.begin(arguments.rounds, arguments.patience), "rate": arguments.rate,
              "matrix_bytes": ROWS * COLUMNS * 2, "environment": UCX}
    wanted = arguments.only.split(",")
    if "slow" in wanted:
        result["slow"] = compare_slow(arguments)
    if "fast" in wanted:
        result["fast"] = compare_fast(arguments)
    honest.end(result)
    if arguments.json:
        honest.write(arguments.json, result)


if __name__ == "__main__":
    main()
