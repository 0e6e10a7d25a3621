#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Transports beside what the machine, Open MPI and UCX itself do, in one run, interleaved.

    python3 bench/transport_vs_peers.py --bench build/release/bench/bench_transport
            [--rounds 7] [--only copies,mpi,ucx] [--busy] [--json FILE]

bench_transport measures ferry and the machine's own limits. Open MPI's single-copy path is measured
by mpi_transfer.c (built here with mpicc), UCX by its ucx_perftest: both are left out where they are
missing. Programs alternate within each round, and every round begins with another one; a ratio is
the median over the rounds of the rounds' ratios, its spread the range of the middle half over it.
A peer's way that reaches less than half of its other one in the first round is not repeated.
Prints a table of targets and writes JSON with --json FILE. --busy is for machines that others use
too: copies by one thread then count by the thread's own time.
"""

import argparse
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import tempfile
import time

import honest

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1 << 20
ATTACH_SIZES = [256 << 10 << i for i in range(9)]
UCX_SIZES = [64 << 10 << i for i in range(11)]
UCX_BYTES = 1 << 29  # moved for one figure
UCX = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}
MPI = ["--mca", "pml", "ob1", "--mca", "btl", "vader,self",
       "--mca", "btl_vader_single_copy_mechanism", "cma"]
MPI_WAYS = ["send", "isend", "put", "put-allocated"]
LIMIT_S = 240


def size_text(size):
    return f"{size >> 20} MiB" if size >= MIB else f"{size >> 10} KiB"


def median(values):
    return statistics.median(values)


def spread(values):
    ordered = sorted(values)
    n = len(ordered)
    return (ordered[n * 3 // 4] - ordered[n // 4]) / median(values) if n > 1 else 0.0


def run(command, **environment):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          timeout=LIMIT_S, env={**os.environ, **environment})
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.strip()[-400:]}")
    return done.stdout


def run_bench(arguments, *words, **environment):
    """The rows of bench_transport, by part and case."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [arguments.bench, *words, "--busy", int(arguments.busy), "--json", file.name]
        run(command, **environment)
        return {(row["part"], row["case"]): row for row in json.load(open(file.name))["cases"]}


class Targets:
    """What has to be reached: a line each."""

    def __init__(self):
        self.lines = []

    def add(self, what, target, is_least, values, spread_of=None):
        measured = median(values)
        is_met = measured >= target if is_least else measured <= target
        self.lines.append({"what": what, "target": (">= " if is_least else "<= ") + f"{target:g}",
                           "measured": measured, "met": is_met,
                           "spread": spread(values) if spread_of is None else spread_of})

    def add_row(self, what, target, is_least, row, key, scale=1.0):
        self.add(what, target, is_least, [row[key] * scale], row[key + "-spread"])

    def print(self):
        print(f"\n{'target':60} {'wanted':>10} {'measured':>10} {'spread':>8}")
        for line in self.lines:
            print(f"{line['what']:60} {line['target']:>10} {line['measured']:10.4f} "
                  f"{line['spread']:8.1%} {'met' if line['met'] else 'MISSED'}")


# ---- ferry beside the machine ----

def compare_copies(arguments, targets):
    words = [word for part in ("put", "signal", "barrier", "rate", "all-to-all", "start", "alloc")
             for word in ("--part", part)]
    rows = run_bench(arguments, "--rounds", 2 * arguments.rounds + 1, *words)
    for (part, case), row in rows.items():
        if part == "put" and case.startswith("shm"):
            targets.add_row(f"put / one-core streaming copy, {case}", 0.95, True, row,
                            "over-streaming")
    for case in ("shm, a core each", "shm, a core each before joining", "shm, free"):
        targets.add_row(f"signal one way, us, {case}", 1, False, rows["signal", case], "us")
    targets.add_row("barrier of 16 processes, us", 1000, False, rows["barrier", "16 processes"],
                    "us")
    targets.add_row("start of 64 ranks, s", 2, False, rows["start", "64 ranks"], "made-s")
    return list(rows.values())


# ---- Open MPI ----

def build_mpi(folder):
    if shutil.which("mpicc") is None or shutil.which("mpirun") is None:
        return None
    program = pathlib.Path(folder) / "mpi_transfer"
    run(["mpicc", "-std=c11", "-O2", "-D_GNU_SOURCE", HERE / "mpi_transfer.c", "-o", program])
    return program


def mpirun(program, ranks, *words):
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    place = ["--bind-to", "core"] if ranks <= os.cpu_count() else ["--oversubscribe"]
    command = ["mpirun", *root, *MPI, *place, "-n", ranks, program, *words]
    return run(command)


def compare_attach(arguments, program, targets):
    """Plain memory of the peer; and symmetric memory, which both have mapped, for information."""
    ours, theirs, memory = {}, {}, 256
    for _ in range(arguments.rounds):
        rows = run_bench(arguments, "--part", "attach", "--rounds", 3, "--memory", memory)
        for size in ATTACH_SIZES:
            row = rows["attach", f"shm {size >> 10} KiB"]
            for key in ("put-registered", "process_vm_writev", "put-symmetric",
                        "over-process_vm_writev"):
                ours.setdefault(size, {}).setdefault(key, []).append(row[key])
        for way in MPI_WAYS:
            for line in mpirun(program, 2, way, memory, *ATTACH_SIZES).splitlines():
                size, rate = line.split()
                theirs.setdefault(int(size), {}).setdefault(way, []).append(float(rate))
    table = []
    for size in ATTACH_SIZES:
        single = [max(rates) for rates in zip(*(theirs[size][way] for way in MPI_WAYS[:3]))]
        mapped = theirs[size]["put-allocated"]
        ratios = {
            "over_mpi": [o / t for o, t in zip(ours[size]["put-registered"], single)],
            "symmetric_over_mpi": [o / t for o, t in zip(ours[size]["put-symmetric"], single)],
            "symmetric_over_mpi_mapped": [o / t for o, t in zip(ours[size]["put-symmetric"],
                                                                mapped)],
            "symmetric_over_registered": [s / r for s, r in zip(ours[size]["put-symmetric"],
                                                                ours[size]["put-registered"])],
        }
        text = size_text(size)
        print(f"attach {text:8} registered {median(ours[size]['put-registered']):.2f}  "
              f"symmetric {median(ours[size]['put-symmetric']):.2f}  " + "  ".join(
                  f"{way} {median(theirs[size][way]):.2f}" for way in MPI_WAYS) + " GB/s",
              flush=True)
        targets.add(f"put to registered memory / Open MPI, {text}", 1, True, ratios["over_mpi"])
        targets.add(f"put to registered memory / process_vm_writev, {text}", 0.95, True,
                    ours[size]["over-process_vm_writev"])
        targets.add(f"put to symmetric memory / to registered, {text}", 1, True,
                    ratios["symmetric_over_registered"])
        table.append({"bytes": size, "ferry_GBps": ours[size], "mpi_GBps": theirs[size], **ratios})
    return table


def compare_mpi_ranks(arguments, program):
    """Barriers and starts, for information; ferry's are among the copies."""
    barriers, starts = {}, {}
    for _ in range(arguments.rounds):
        for ranks in (2, 4, 8, 16, 32, 64):
            middle, slow = mpirun(program, ranks, "barrier", 300).split()
            barriers.setdefault(ranks, []).append([float(middle), float(slow)])
        begin = time.monotonic()
        starts.setdefault(64, []).append(float(mpirun(program, 64, "start")) - begin)
    return {"barrier_us": barriers, "start_s": starts}


# ---- UCX ----

def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def await_listener(port, server):
    """Until somebody listens; asking by a connection would be taken for the client."""
    wanted = f":{port:04X}"
    end = time.monotonic() + 20
    while time.monotonic() < end and server.poll() is None:
        for name in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in pathlib.Path(name).read_text().splitlines()[1:]:
                words = line.split()
                if words[1].endswith(wanted) and words[3] == "0A":
                    return
        time.sleep(0.01)
    raise RuntimeError("ucx_perftest does not listen")


def perftest(test, size, count, pin):
    """(overall MiB/s, typical microseconds, overall microseconds)"""
    port = free_port()
    environment = {**os.environ, **UCX}
    place = [["-c", str(core)] if pin else [] for core in (0, min(1, os.cpu_count() - 1))]
    server = subprocess.Popen(["timeout", str(LIMIT_S), "ucx_perftest", "-p", str(port), *place[1]], env=environment,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        await_listener(port, server)
        text = run(["ucx_perftest", "127.0.0.1", "-p", port, *place[0], "-t", test, "-s", size,
                    "-n", count, "-w", count // 8 + 2, "-f"], **UCX)
        words = text.strip().splitlines()[-1].split()
        return float(words[5]), float(words[1]), float(words[3])
    finally:
        server.terminate()
        server.wait()


def ferry_stream(arguments, size, count, pin):
    rows = run_bench(arguments, "--part", "stream", "--engine", "ucx", "--bytes", size, "--count",
                     count, "--rounds", 1, "--pin", "before" if pin else "none", **UCX)
    return rows["stream", f"ucx {size} B"]["MiB/s"]


def compare_streams(arguments, targets, pin):
    table = []
    place = "a core each" if pin else "free"
    for i in range(arguments.sizes):
        size = UCX_SIZES[i * len(UCX_SIZES) // arguments.sizes]
        count = max(16, min(16384, UCX_BYTES // size))
        ways = {
            "ferry": lambda: ferry_stream(arguments, size, count, pin),
            "tag_bw": lambda: perftest("tag_bw", size, count, pin)[0],
            "ucp_put_bw": lambda: perftest("ucp_put_bw", size, count, pin)[0],
        }
        # The queued puts of a large size can take minutes: less of them show whether they count.
        rates = {name: [] for name in ways}
        first = perftest("ucp_put_bw", size, max(8, min(count, 64 * MIB // size)), pin)[0]
        tag = perftest("tag_bw", size, count, pin)[0]
        if first < 0.5 * tag:
            del ways["ucp_put_bw"]
        for turn in range(arguments.rounds):
            names = list(ways)
            for name in names[turn % len(names):] + names[:turn % len(names)]:
                rates[name].append(ways[name]())
        peers = [max(peer) for peer in zip(*(rates[name] for name in ways if name != "ferry"))]
        ratios = [ours / theirs for ours, theirs in zip(rates["ferry"], peers)]
        targets.add(f"ucx put stream / ucx_perftest, {size_text(size)}, {place}", 0.95, True, ratios)
        print(f"ucx {size_text(size):8} " + "  ".join(
            f"{name} {median(rates[name]):.0f}" for name in ways) + " MiB/s", flush=True)
        table.append({"bytes": size, "count": count, "pinned": pin, "MiBps": rates,
                      "first_put_bw_MiBps": first, "first_tag_bw_MiBps": tag, "ratios": ratios})
    return table


def compare_turns(arguments, targets, pin):
    us = {name: [] for name in ("ferry", "ucp_put_lat", "ucp_am_lat", "tag_lat")}
    means = {name: [] for name in us}
    for _ in range(arguments.rounds):
        rows = run_bench(arguments, "--part", "turn", "--engine", "ucx", "--bytes", 8, "--rounds",
                         5, "--pin", "before" if pin else "none", **UCX)
        row = rows["turn", "ucx 8 B"]
        us["ferry"].append(row["us"])
        means["ferry"].append(row["mean-us"])
        for test in list(us)[1:]:
            _, typical, overall = perftest(test, 8, 10000, pin)
            us[test].append(typical)
            means[test].append(overall)
    ratios = [ours / theirs for ours, theirs in zip(us["ferry"], us["ucp_put_lat"])]
    place = "a core each" if pin else "free"
    print("ucx 8 B  " + "  ".join(f"{name} {median(us[name]):.2f}" for name in us) + " us",
          flush=True)
    targets.add(f"ucx put with signal, 8 B / ucp_put_lat, {place}", 1.3, False, ratios)
    return {"pinned": pin, "median_us": us, "mean_us": means, "ratios": ratios}


# ---- all ----

def version_of(command):
    try:
        return run(command).strip().splitlines()[0]
    except (OSError, RuntimeError, IndexError):
        return "unknown"


def save(arguments, result, targets):
    """After every part, so that a run that is cut short leaves what it has."""
    honest.end(result)
    result["targets"] = targets.lines
    if arguments.json:
        honest.write(arguments.json, result)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bench", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="copies,mpi,ucx")
    parser.add_argument("--pins", default="cores,free", help="how the ranks over UCX run")
    parser.add_argument("--sizes", type=int, default=len(UCX_SIZES),
                        help="how many of those over UCX, spread over all")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--json")
    honest.add_arguments(parser)
    arguments = parser.parse_args()
    arguments.bench = pathlib.Path(arguments.bench).resolve()
    wanted = arguments.only.split(",")
    targets = Targets()
    result = {**honest.begin(arguments.rounds, arguments.patience), "busy": arguments.busy}
    if "copies" in wanted:
        result["copies"] = compare_copies(arguments, targets)
        save(arguments, result, targets)
    with tempfile.TemporaryDirectory() as folder:
        program = build_mpi(folder) if "mpi" in wanted else None
        if program is not None:
            result["mpi"] = {"version": version_of(["mpirun", "--version"]),
                             "attach": compare_attach(arguments, program, targets),
                             **compare_mpi_ranks(arguments, program)}
            save(arguments, result, targets)
    if "ucx" in wanted and shutil.which("ucx_perftest") is not None:
        pins = [pin == "cores" for pin in arguments.pins.split(",")]
        result["ucx"] = {"version": version_of(["ucx_info", "-v"]), "environment": UCX,
                         "turns": [compare_turns(arguments, targets, pin) for pin in pins],
                         "streams": [row for pin in pins
                                     for row in compare_streams(arguments, targets, pin)]}
    save(arguments, result, targets)
    print(f"{os.cpu_count()} cores, load {result['load_before'][0]:.2f} before and "
          f"{result['load_after'][0]:.2f} after, {arguments.rounds} rounds")
    targets.print()


if __name__ == "__main__":
    main()
