#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The copy service beside the machine's limits, Open MPI and Megatron-Core, in one run, interleaved.

    python3 bench/refit_vs_peers.py --build build/release [--only matrix,malloc,layers,small,gloo,
            checksum,cap,calls] [--cases TEXT] [--rounds 5] [--runs 7] [--json FILE]

bench_refit moves the cases of refit_cases.h with ferry and, in turns with it, measures the limits: L,
a streaming copy of 1 GiB with a thread on every core, and cross-memory attach of the same boxes.
mpi_refit.c, built here with mpicc, moves the same boxes through Open MPI: MPI_Alltoallw, and MPI_Put
into windows, each with the settings that stand in SETTINGS, and with ranks bound to cores and
free, of which the faster counts: ferry's are free. megatron/gloo_megatron.py drives the
package's GlooCopyService. Each is left out where it is missing.

A round runs every program once, beginning with another one each time; a program's figure of a round is
the median of its runs, GB/s are the bytes of the case, those that stay on their rank included, over
that. In the first round every setting of Open MPI is tried; those that reach less than MOST_BEHIND of
the best of their kind are left out of the others. A ratio to a peer is the median over the rounds of
the round's ratio to the setting with the best median; a ratio to a limit that of all runs' ratios.
Prints a table of targets and writes JSON with --json FILE.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import tempfile

import honest
import plan_vs_megatron
from transport_vs_peers import Targets, median, run, version_of

HERE = pathlib.Path(__file__).resolve().parent
MOST_BEHIND = 0.75
FREE = ", free"  # of cores; else mpirun binds, unless there are more ranks
UCX_ANY = ["--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any"]
OB1 = ["--mca", "pml", "ob1", "--mca", "btl", "vader,self",
       "--mca", "btl_vader_single_copy_mechanism", "cma"]
UCX = ["--mca", "pml", "ucx", "--mca", "osc", "ucx", *UCX_ANY]
SETTINGS = {
    "ob1": OB1,
    "ob1, osc rdma": [*OB1, "--mca", "osc", "rdma"],
    "ob1, osc sm": [*OB1, "--mca", "osc", "sm"],
    "ob1, osc ucx": [*OB1, "--mca", "osc", "ucx", *UCX_ANY],
    "ucx": UCX,
    "ucx posix": [*UCX, "-x", "UCX_TLS=posix,cma,self"],
}
# What is tried: (way of mpi_refit, memory, setting). MPI's windows over plain memory cannot be sm's.
ALLTOALLW = ["ob1", "ucx", "ucx posix"]
TRIED = {
    "ferry": [("alltoallw", "malloc", s) for s in ALLTOALLW]
    + [("alltoallw", "allocated", s) for s in ("ob1", "ucx")]
    + [("put-flush", "allocated", s) for s in ("ob1, osc rdma", "ob1, osc ucx", "ucx", "ucx posix")]
    + [("put-fence", "allocated", s) for s in ("ob1, osc sm", "ob1, osc ucx", "ucx")],
    "malloc": [("alltoallw", "malloc", s) for s in ALLTOALLW]
    + [("put-flush", "malloc", s) for s in ("ob1, osc rdma", "ob1, osc ucx", "ucx")]
    + [("put-fence", "malloc", s) for s in ("ob1, osc rdma", "ucx")],
    "small": [(way, "malloc", s) for way in ("each", "alltoallw") for s in ("ob1", "ucx")]
    + [("put-flush", "allocated", s) for s in ("ob1, osc ucx", "ucx")],
}
MATRICES = ["matrix:2:2", "matrix:4:4", "matrix:8:8", "matrix:4:2", "matrix:8:4"]
LAYERS = ["layers:tp8-tp4dp2", "layers:tp4-tp2pp2"]
SMALL = "small:100000"
RUNS_MPI = 5


def ranks_of(case):
    words = case.split(":")
    return max(map(int, words[1:3])) if words[0] == "matrix" else 8 if words[0] == "layers" else 2


class Programs:
    """What there is to run, and how."""

    def __init__(self, arguments, folder):
        self.build, self.runs = arguments.build, arguments.runs
        self.mpi = self.build_mpi(pathlib.Path(folder)) if arguments.mpi else None
        self.python = None
        if "gloo" in arguments.only:
            self.python = plan_vs_megatron.make_environment(arguments.venv)

    def build_mpi(self, folder):
        if shutil.which("mpicc") is None or shutil.which("mpirun") is None:
            return None
        run(["mpicc", "-std=c11", "-O2", "-D_GNU_SOURCE", HERE / "mpi_refit.c",
             HERE / "refit_cases.c", "-o", folder / "mpi_refit"])
        return folder / "mpi_refit"

    def command(self, case, memory, series, runs, file):
        return [self.build / "ferry", "launch", "-n", ranks_of(case), "--",
                self.build / "bench" / "bench_refit", case, "--memory", memory, "--series",
                series, "--runs", runs, "--json", file]

    def ferry(self, case, memory, series, runs=None):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            run(self.command(case, memory, series, runs or self.runs, file.name),
                FERRY_PLUGINS=str(self.build))
            return json.load(open(file.name))

    def calls(self, case, memory, runs):
        """System calls of all ranks and the launcher, start and end included."""
        with tempfile.NamedTemporaryFile() as counts, tempfile.NamedTemporaryFile() as file:
            run(["strace", "-f", "-c", "-o", counts.name,
                 *self.command(case, memory, "run", runs, file.name)],
                FERRY_PLUGINS=str(self.build))
            return int(re.search(r"(\d+)\s+(?:\d+\s+)?total$", open(counts.name).read(),
                                 re.MULTILINE).group(1))

    def open_mpi(self, case, way, memory, setting):
        """GB/s, or None where this setting does not work."""
        n = ranks_of(case)
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        place = ["--oversubscribe"] if n > os.cpu_count() else ["--bind-to", "core"]
        place = ["--bind-to", "none"] if setting.endswith(FREE) else place
        words = SETTINGS[setting.removesuffix(FREE)]
        try:
            text = run(["mpirun", *root, *place, *words, "-n", n, self.mpi, case, memory, way,
                        RUNS_MPI])
        except RuntimeError as reason:
            print(f"left out: {way} {memory} {setting}: {str(reason)[-200:]!r}")
            return None
        done = json.loads(text.strip().splitlines()[-1])
        assert done["wrong"] == 0, (case, way, memory, setting)
        return rate(done["bytes"], median(done["seconds"]))

    def gloo(self, case):
        _, n_from, n_to = case.split(":")[:3]
        return json.loads(run([self.python, HERE / "megatron" / "gloo_megatron.py", "--from",
                               n_from, "--to", n_to, "--runs", 3]))


def rate(size, seconds):
    return size / seconds * 1e-9


def ratios_to(done, limit, series="run"):
    """Of each run to a limit's turn beside it, as rates."""
    ours, its = done["series"][series], done["series"][limit]
    return [rate(ours["bytes"], own) / rate(its["bytes"], other)
            for own, other in zip(ours["seconds"], its["seconds"])]


def series_rate(done, name):
    series = done["series"][name]
    return rate(series["bytes"], median(series["seconds"]))


def compare(programs, arguments, case, memory, series, tried, with_gloo=False):
    """Rounds of ferry, each setting of Open MPI that is worth it, and Gloo."""
    ours, gloo, theirs, turns = [], [], {}, []
    tried = list(tried) if programs.mpi is not None else []
    if ranks_of(case) <= os.cpu_count():
        tried += [(way, its, setting + FREE) for way, its, setting in tried]
    for turn in range(arguments.rounds):
        jobs = [("ferry",), *tried] + ([("gloo",)] if with_gloo else [])
        for job in jobs[turn % len(jobs):] + jobs[:turn % len(jobs)]:
            if job[0] == "ferry":
                ours.append(programs.ferry(case, memory, series))
            elif job[0] == "gloo":
                gloo.append(programs.gloo(case))
            else:
                its = programs.open_mpi(case, *job)
                if its is not None:
                    theirs.setdefault(job, []).append(its)
        if turn == 0:
            tried = worth_repeating(theirs)
        turns.append(os.getloadavg()[0])
    row = {"case": case, "ranks": ranks_of(case), "memory": memory, "bytes": ours[0]["bytes"],
           "load": turns, "rounds": ours, "paths": ours[-1]["series"]["run"]["bytes_by_path"]}
    row["ferry_GBps"] = [series_rate(done, "run") for done in ours]
    row["limits_GBps"] = {name: [series_rate(done, name) for done in ours]
                          for name in ours[0]["series"] if name != "run"}
    row["over_limits"] = {name: [r for done in ours for r in ratios_to(done, name)]
                          for name in row["limits_GBps"]}
    row["mpi_GBps"] = {", ".join(job): rates for job, rates in theirs.items()}
    if gloo:
        assert all(done["wrong_ranks"] == 0 for done in gloo)
        row["gloo_GBps"] = [rate(done["bytes"], median(done["seconds"])) for done in gloo]
        row["gloo_version"] = gloo[0]["version"]
    return row


def worth_repeating(theirs):
    """Of Alltoallw by itself, each, and puts: those that come near the best."""
    kinds = {}
    for job, rates in theirs.items():
        kinds.setdefault(job[0].split("-")[0], []).append((rates[0], job))
    return [job for jobs in kinds.values() for rate_, job in jobs
            if rate_ >= MOST_BEHIND * max(jobs)[0]]


def best_of(row, kinds):
    """(name, rates by round) of the setting with the best median; None without Open MPI."""
    n = max([len(rates) for rates in row["mpi_GBps"].values()], default=0)
    own = {name: rates for name, rates in row["mpi_GBps"].items()
           if name.startswith(kinds) and len(rates) == n}
    name = max(own, key=lambda key: median(own[key]), default=None)
    return None if name is None else (name, own[name])


def add_peer(targets, row, what, kinds, target):
    best = best_of(row, kinds)
    if best is not None:
        ratios = [own / its for own, its in zip(row["ferry_GBps"], best[1])]
        row.setdefault("over_mpi", {})[what] = {"setting": best[0], "ratios": ratios}
        targets.add(f"{row['case']}, {row['memory']}: / {what}", target, True, ratios)


def show(row):
    parts = [f"ferry {median(row['ferry_GBps']):.2f}"]
    parts += [f"{name} {median(rates):.2f}" for name, rates in row["limits_GBps"].items()]
    for kinds in ("alltoallw", "each", "put"):
        best = best_of(row, kinds)
        if best is not None:
            parts.append(f"{best[0]} {median(best[1]):.2f}")
    if "gloo_GBps" in row:
        parts.append(f"gloo {median(row['gloo_GBps']):.2f}")
    paths = ",".join(name for name, size in row["paths"].items() if size > 0)
    print(f"{row['case']} {row['memory']}: " + "  ".join(parts) + f" GB/s  paths {paths}",
          flush=True)


# ---- the parts: each yields a row after the other ----

def compare_matrices(programs, arguments, targets):
    for case in arguments.pick(MATRICES):
        with_gloo = programs.python is not None and case in ("matrix:2:2", "matrix:4:4")
        row = compare(programs, arguments, case, arguments.memory, "run,copy,copy-here",
                      TRIED["ferry"], with_gloo)
        targets.add(f"{case}, {row['memory']}: / L", 0.90, True, row["over_limits"]["copy"])
        add_peer(targets, row, "MPI_Alltoallw", "alltoallw", 2.5)
        add_peer(targets, row, "best MPI path", ("alltoallw", "put"), 1.6)
        if "gloo_GBps" in row:
            targets.add(f"{case}, {row['memory']}: / GlooCopyService", 10, True,
                        [own / its for own, its in zip(row["ferry_GBps"], row["gloo_GBps"])])
        show(row)
        yield row


def compare_malloc(programs, arguments, targets):
    for case in arguments.pick(MATRICES):
        row = compare(programs, arguments, case, "malloc", "run,copy,attach-write,attach-read",
                      TRIED["malloc"])
        best = max(("attach-write", "attach-read"), key=lambda k: median(row["limits_GBps"][k]))
        targets.add(f"{case}, malloc: / {best}", 0.9, True, row["over_limits"][best])
        add_peer(targets, row, "best MPI path", ("alltoallw", "put"), 1.0)
        show(row)
        yield row


def compare_layers(programs, arguments, targets):
    for case in arguments.pick(LAYERS):
        row = compare(programs, arguments, case + arguments.scale, arguments.memory, "run,copy",
                      TRIED["ferry"] if arguments.layers_mpi else [])
        targets.add(f"{case}, {row['memory']}: / L", 0.80, True, row["over_limits"]["copy"])
        show(row)
        yield row


def compare_small(programs, arguments, targets):
    for memory in (arguments.memory, "malloc"):
        row = compare(programs, arguments, SMALL, memory, "run,copy", TRIED["small"])
        add_peer(targets, row, "MPI_Alltoallw for each tensor", "each", 5)
        add_peer(targets, row, "one MPI_Alltoallw for all", "alltoallw", 1)
        runs = [done["series"]["run"] for done in row["rounds"]]
        row["us_per_tensor"] = [median(own["seconds"]) / 1e5 * 1e6 for own in runs]
        targets.add(f"{SMALL}, {memory}: heap calls per tensor and run behind the first", 0.001,
                    False, [max(own["heap_calls"] for own in runs) / arguments.runs / 1e5], 0)
        targets.add(f"{SMALL}, {memory}: schedules, allocations, registrations stand still", 1,
                    True, [min(int(own["stood_still"]) for own in runs)], 0)
        show(row)
        yield row


def count_calls(programs, arguments, targets):
    """System calls per run: those of many runs less those of few."""
    few, many = 3, 43
    for memory in (arguments.memory, "malloc"):
        counts = [programs.calls(SMALL, memory, runs) for runs in (few, many)]
        each = (counts[1] - counts[0]) / (many - few)
        targets.add(f"{SMALL}, {memory}: system calls per tensor and run", 0.01, False,
                    [each / 1e5], 0)
        yield {"case": SMALL, "memory": memory, "per_run": each, "of_runs": counts}


def compare_checksums(programs, arguments, targets):
    """What checks cost, on the direct path and through slots."""
    series = "run,path,end,staged,staged+path,staged+end,read,copy"
    for case in arguments.pick(["matrix:2:2", "matrix:8:8"]):
        done = [programs.ferry(case, arguments.memory, series) for _ in range(arguments.rounds)]

        def seconds(name):
            return [s for one in done for s in one["series"][name]["seconds"]]

        row = {"case": case, "memory": arguments.memory, "rounds": done,
               "seconds": {name: median(seconds(name)) for name in series.split(",")}}
        for base, prefix in (("run", ""), ("staged", "staged+")):
            path = [p / n for p, n in zip(seconds(prefix + "path"), seconds(base))]
            end = [e / (n + r) for e, n, r in zip(seconds(prefix + "end"), seconds(base),
                                                  seconds("read"))]
            targets.add(f"{case}, {base}: checksum path / none", 1.15, False, path)
            targets.add(f"{case}, {base}: checksum end / (none + a read)", 1.1, False, end)
        print(case, "  ".join(f"{name} {s * 1e3:.1f}" for name, s in row["seconds"].items()), "ms",
              flush=True)
        yield row


def compare_caps(programs, arguments, targets):
    """Staging under caps: its memory, and what it costs in speed."""
    caps = [1, 4, 16, 64]
    for case in arguments.pick(["matrix:2:2", "matrix:8:8"]):
        for memory in (arguments.memory, "malloc"):
            series = ["run"] + [f"staged+cap={cap}" for cap in caps] + ["copy"]
            done = programs.ferry(case, memory, ",".join(series))
            for cap in caps:
                its = done["series"][f"staged+cap={cap}"]
                targets.add(f"{case}, {memory}: staging / cap of {cap} MiB", 1, False,
                            [its["staging_bytes"] / (cap << 20)], 0)
                print(f"{case} {memory} cap {cap} MiB: staging {its['staging_bytes'] / 2**20:.2f} "
                      f"MiB a rank, all ranks took {its['staging_pss_bytes'] / 2**20:.1f} MiB, "
                      f"{series_rate(done, f'staged+cap={cap}'):.2f} GB/s", flush=True)
            yield done


PARTS = {"matrix": compare_matrices, "malloc": compare_malloc, "layers": compare_layers,
         "small": compare_small, "calls": count_calls, "checksum": compare_checksums,
         "cap": compare_caps}


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--only", default="matrix,malloc,layers,small,gloo,calls,checksum,cap")
    parser.add_argument("--cases", default="", help="only those whose name has this text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=7, help="of ferry, in each round")
    parser.add_argument("--memory", default="ferry", choices=["ferry", "mixed"],
                        help="mixed: sources from malloc, destinations from ferry_memory_alloc")
    parser.add_argument("--scale", default="", help=":8 makes layers smaller by 64")
    parser.add_argument("--no-mpi", action="store_false", dest="mpi")
    parser.add_argument("--layers-mpi", action="store_true", help="Open MPI moves layers too")
    parser.add_argument("--venv", type=pathlib.Path, default=HERE.parent / "build" / "megatron-venv")
    parser.add_argument("--json")
    honest.add_arguments(parser)
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    arguments.only = arguments.only.split(",")
    arguments.pick = lambda cases: [case for case in cases if arguments.cases in case]
    return arguments


def main():
    arguments = read_arguments()
    targets = Targets()
    result = {**honest.begin(arguments.rounds, arguments.patience), "runs": arguments.runs,
              "settings": SETTINGS}
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(arguments, folder)
        if programs.mpi is not None:
            result["mpi_version"] = version_of(["mpirun", "--version"])
        for name, part in PARTS.items():
            if name in arguments.only:
                result[name] = []
                for row in part(programs, arguments, targets):
                    result[name].append(row)
                    honest.end(result)
                    result["targets"] = targets.lines
                    if arguments.json:  # after every case: a run cut short leaves what it has
                        honest.write(arguments.json, result)
    print(f"{os.cpu_count()} cores, load {result['load_before'][0]:.2f} before and "
          f"{os.getloadavg()[0]:.2f} after, {arguments.rounds} rounds of {arguments.runs} runs")
    targets.print()


if __name__ == "__main__":
    main()
