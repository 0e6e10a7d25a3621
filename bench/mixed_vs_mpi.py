#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The mixed collectives beside Open MPI's on the same ranks, in one run, interleaved.

    python3 bench/mixed_vs_mpi.py --build build/release [--only fused,plain2,plain4,eight]
            [--ops TEXT] [--dtypes fp32,bf16,fp16] [--sizes BYTES,...] [--rounds 5] [--in-place]
            [--fresh] [--quick] [--no-mpi | --no-ferry] [--no-autotune] [--busy] [--patience SECONDS]
            [--json bench/results/mixed.json]

bench_mixed runs AUTOTUNE, with a table that it measured before in the same round, and every fixed
mode; mpi_mixed, built here with mpicc, every combination of MPI's collectives that makes the same
result, with each of the settings of Open MPI that stand in SETTINGS. Both measure alike:
mixed_bench.h says how.

A round runs both programs once for a case (ranks, operation, type), beginning with another one each
time; all sizes and ways take turns inside. The first round tries every setting; those that are not
within NEAR of the best at any size are left out of the others. A figure is the median over the
rounds of the median of a round's batches (of the fastest with --busy). "MPI" is the fastest of all
combinations and settings at that size, each rank bound to a core, beside ferry bound alike;
"installed" the fastest combination without any setting, where mpirun binds as it does by itself,
beside ferry with no binding at all. A ratio is the median over the rounds of the rounds' ratios, its
spread the range of the middle half over it. "/best" is AUTOTUNE over the fixed mode that is fastest
at that size. A busy machine is waited for, and said.

Inputs are the same in all calls, as in other programs of this kind, and nobody writes them; with
--fresh each rank writes its own before each call, as those who compute it do, for both sides alike.
"""

import argparse
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile
import time

import honest
from transport_vs_peers import Targets, median, size_text, spread, version_of

HERE = pathlib.Path(__file__).resolve().parent
NEAR = 1.25
LIMIT_S = 280
KIB, MIB = 1 << 10, 1 << 20
SIZES = [8 * KIB << i for i in range(14)]
QUICK = [8 * KIB << i for i in range(0, 14, 3)]
UCX = ["--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca",
       "opal_common_ucx_devices", "any"]
OB1 = ["--mca", "pml", "ob1", "--mca", "btl", "vader,self"]
CMA = [*OB1, "--mca", "btl_vader_single_copy_mechanism", "cma"]
# Of the settings that were tried, those that were the fastest at some size: others (each algorithm
# of coll tuned by itself, yielding or not) came near them nowhere, or hang for milliseconds.
SETTINGS = {
    "as installed": [],
    "vader, copies": [*OB1, "--mca", "btl_vader_single_copy_mechanism", "none"],
    "vader, eager to 64 KiB": [*CMA, "--mca", "btl_vader_eager_limit", "65536", "--mca",
                               "btl_vader_max_send_size", "131072"],
    "coll sm": [*CMA, "--mca", "coll_sm_priority", "95"],
    "segmented ring": [*CMA, "--mca", "coll_tuned_use_dynamic_rules", "1", "--mca",
                       "coll_tuned_allreduce_algorithm", "5"],
    "ucx": UCX,
    "ucx posix": [*UCX, "-x", "UCX_TLS=posix,cma,self"],
}
FUSED = ["all-reduce-all-gather", "reduce-scatter-all-reduce"]


def plain(n):
    return [("all-reduce", n, 1), ("all-gather", 1, n), ("reduce-scatter", 1, n)]


# (operation, tp, dp) of each part, and what it must reach.
PARTS = {
    "fused": ([(op, 2, 2) for op in FUSED], 1.5),
    "plain2": (plain(2), 1.2),
    "plain4": (plain(4), 1.2),
    "eight": ([(op, 4, 2) for op in FUSED] + plain(8), 1.0),
}


def run(command, **environment):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          timeout=LIMIT_S, env={**os.environ, **environment})
    if done.returncode != 0:
        raise RuntimeError(f"status {done.returncode} of {shlex.join(map(str, command))}: "
                           f"{(done.stderr or done.stdout).strip()[-400:] or 'not a word'}")
    return done.stdout


class Programs:
    """What there is to run, and how."""

    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, pathlib.Path(folder)
        self.mpi = self.build_mpi() if arguments.mpi else None
        self.tables = {}
        self.turn = 0

    def build_mpi(self):
        if shutil.which("mpicc") is None or shutil.which("mpirun") is None:
            return None
        run(["mpicc", "-std=c11", "-O3", "-march=native", "-D_GNU_SOURCE",
             *(HERE / name for name in ("mpi_mixed.c", "mixed_bench.c", "mixed_cases.c",
                                        "mixed_peer_sum.c")), "-o", self.folder / "mpi_mixed"])
        return self.folder / "mpi_mixed"

    def options(self, case, dtype, file):
        op, tp, dp = case
        return [op, dtype, tp, dp, "--sizes", ",".join(map(str, self.arguments.sizes)),
                "--batches", self.arguments.batches, "--batch-ms", self.arguments.batch_ms,
                "--json", file, *(["--in-place"] if self.arguments.in_place else []),
                *(["--fresh"] if self.arguments.fresh else [])]

    def measured(self, command, case, dtype, **environment):
        """{(bytes, way): (median seconds, note)} of a program's run."""
        file = self.folder / "rows.json"
        run([*command, *self.options(case, dtype, file)], **environment)
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        wrong = [row for row in rows if row["wrong"] != 0]
        assert not wrong, (command, case, dtype, wrong)
        figure = min if self.arguments.busy else median
        return {(row["bytes"], row["way"]): (figure(row["seconds"]), row["note"]) for row in rows}

    def launch(self, n, *words):
        return [self.arguments.build / "ferry", "launch", "-n", n, "--",
                self.arguments.build / "bench" / "bench_mixed", *words]

    def table(self, case, dtype):
        """Of the topology and type, made anew in each round: as programs do that begin, and as the
        state of a shared machine changes."""
        _, tp, dp = case
        key = (dtype, tp, dp, self.turn)
        if key not in self.tables:
            file = self.folder / f"{dtype}-{tp}-{dp}-{self.turn}.tune"
            run([*self.launch(tp * dp, "--save", file),
                 *self.options(case, dtype, self.folder / "none")], **self.environment())
            self.tables[key] = file
        return self.tables[key]

    def environment(self):
        return {"FERRY_PLUGINS": str(self.arguments.build)}

    def ferry(self, case, dtype, bound=True):
        free = [] if bound else ["--bind", "none"]
        tune = ["--tune", self.table(case, dtype)] if self.arguments.autotune else []
        return self.measured(self.launch(case[1] * case[2], *free, *tune), case, dtype,
                             **self.environment())

    def open_mpi(self, case, dtype, setting):
        """None where this setting does not work."""
        n = case[1] * case[2]
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        place = [] if setting == "as installed" else ["--bind-to", "core:overload-allowed"]
        place += ["--oversubscribe"] if n > os.cpu_count() else []
        try:
            return self.measured(["mpirun", *root, *place, *SETTINGS[setting], "-n", n, self.mpi],
                                 case, dtype)
        except (RuntimeError, subprocess.TimeoutExpired) as reason:
            print(f"left out: {case} {setting}: {str(reason)[-200:]!r}", flush=True)
            return None


def worth_repeating(theirs, sizes):
    """Settings that come near the best at some size; and that of an installation."""
    best = {setting: {size: min(seconds for (own, _), (seconds, _) in rounds[0].items()
                                if own == size) for size in sizes}
            for setting, rounds in theirs.items()}
    return [setting for setting in best if setting == "as installed" or any(
        best[setting][size] <= NEAR * min(other[size] for other in best.values())
        for size in sizes)]


def measure(programs, arguments, case, dtype):
    """Rounds of ferry bound and unbound, and of MPI by setting."""
    ours, free, theirs = [], [], {}
    settings = list(SETTINGS) if programs.mpi is not None else []
    for turn in range(arguments.rounds):
        programs.turn = turn
        jobs = (["ferry", "ferry unbound"] if arguments.ferry else []) + settings
        for job in jobs[turn % len(jobs):] + jobs[:turn % len(jobs)]:
            begin = time.monotonic()
            if job == "ferry":
                ours.append(programs.ferry(case, dtype))
            elif job == "ferry unbound":
                free.append(programs.ferry(case, dtype, bound=False))
            else:
                done = programs.open_mpi(case, dtype, job)
                if done is not None:
                    theirs.setdefault(job, []).append(done)
            print(f"  round {turn + 1} of {arguments.rounds}: {job}, "
                  f"{time.monotonic() - begin:.1f} s", flush=True)
        if turn == 0:
            settings = worth_repeating(theirs, arguments.sizes)
    return ours, free, {setting: rounds for setting, rounds in theirs.items() if setting in settings}


def series_at(rounds, size, n):
    """{way: seconds of each round} of the ways that all rounds have."""
    ways = {way for own, way in rounds[0] if own == size} if rounds else set()
    series = {way: [one[size, way][0] for one in rounds if (size, way) in one] for way in ways}
    return {way: values for way, values in series.items() if len(values) == n}


def fastest(series):
    return min(series, key=lambda key: median(series[key]), default=None)


def ratio_of(values, over):
    ratios = [value / other for value, other in zip(values, over)]
    return {"ratio": median(ratios), "spread": spread(ratios), "ratios": ratios}


def add_ferry(row, ours, arguments):
    modes = series_at(ours, row["bytes"], arguments.rounds)
    auto = modes.pop("autotune", None)
    best = fastest(modes)
    own = auto if auto is not None else modes[best]
    row["ferry_us"] = [seconds * 1e6 for seconds in own]
    row["modes_us"] = {mode: median(values) * 1e6 for mode, values in modes.items()}
    row["best_mode"] = best
    if auto is not None:
        row["chosen"] = ours[-1][row["bytes"], "autotune"][1]
        row["autotune_over_best"] = ratio_of(auto, modes[best])
    return own


def own_series(ours, size, arguments):
    """AUTOTUNE, or without a table the fastest fixed mode."""
    modes = series_at(ours, size, arguments.rounds)
    return modes.get("autotune") or modes[fastest(modes)]


def add_mpi(row, theirs, own, free, arguments):
    """own is compared with all settings, free, which nobody has bound, with an installation."""
    series = {(setting, way): values for setting, rounds in theirs.items()
              for way, values in series_at(rounds, row["bytes"], arguments.rounds).items()}
    installed = {key: values for key, values in series.items() if key[0] == "as installed"}
    for name, among, beside in (("mpi", series, own), ("installed", installed, free)):
        best = fastest(among)
        if best is not None:
            row[name] = {"setting": best[0], "way": best[1],
                         "us": [seconds * 1e6 for seconds in among[best]]}
            if beside is not None:
                row[name].update(ratio_of(among[best], beside))
    row["mpi_us"] = {" | ".join(key): median(values) * 1e6 for key, values in series.items()}


def show(row):
    parts = [f"{size_text(row['bytes']):>9}"]
    if "ferry_us" in row:
        parts.append(f"ferry {median(row['ferry_us']):9.1f}")
    for name in ("mpi", "installed"):
        if name in row:
            its = row[name]
            ratio = f" x {its['ratio']:5.2f} ({its['spread']:.0%})" if "ratio" in its else ""
            what = f" {its['way']}, {its['setting']}" if name == "mpi" else ""
            parts.append(f"{name} {median(its['us']):9.1f}{ratio}{what}")
    if "autotune_over_best" in row:
        parts.append(f"best {row['best_mode']} {row['modes_us'][row['best_mode']]:.1f}, chosen "
                     f"{row['chosen']}, /best {row['autotune_over_best']['ratio']:.3f}")
    elif "best_mode" in row:
        parts.append(f"best {row['best_mode']}")
    print("  ".join(parts), flush=True)


def add_targets(targets, name, target, rows):
    """Of a case, the size that is furthest from it."""
    def worst(what, key, limit, is_least):
        own = [(row[key]["ratio"], row) for row in rows if "ratio" in row.get(key, {})]
        if own:
            _, row = (min if is_least else max)(own, key=lambda pair: pair[0])
            targets.add(f"{name}, {size_text(row['bytes'])}: {what}", limit, is_least,
                        row[key]["ratios"])

    worst("best of Open MPI / ferry", "mpi", target, True)
    worst("Open MPI as installed / ferry", "installed", target, True)
    worst("AUTOTUNE / best mode", "autotune_over_best", 1.05, False)


def compare(programs, arguments, case, dtype, target, targets):
    op, tp, dp = case
    name = f"{op} {dtype} TP{tp} x DP{dp}"
    print(f"{name}: microseconds", flush=True)
    ours, unbound, theirs = measure(programs, arguments, case, dtype)
    rows = []
    for size in arguments.sizes:
        row = {"bytes": size}
        own = add_ferry(row, ours, arguments) if ours else None
        free = own_series(unbound, size, arguments) if unbound else None
        if free is not None:
            row["ferry_unbound_us"] = [seconds * 1e6 for seconds in free]
        add_mpi(row, theirs, own, free, arguments)
        show(row)
        rows.append(row)
    add_targets(targets, name, target, rows)
    return {"op": op, "dtype": dtype, "tp": tp, "dp": dp, "load": os.getloadavg(), "sizes": rows}


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parent / "build" / "release")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--ops", default="", help="only operations with this text in their names")
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--sizes", help="bytes of a piece, default 8 KiB .. 64 MiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=5, help="of a way, in each round")
    parser.add_argument("--batch-ms", type=float, default=10)
    parser.add_argument("--quick", action="store_true", help="five sizes, two rounds")
    parser.add_argument("--busy", action="store_true",
                        help="others use the machine too: a round's fastest batch counts")
    parser.add_argument("--in-place", action="store_true")
    parser.add_argument("--fresh", action="store_true",
                        help="each call has an input that its rank has just written")
    parser.add_argument("--no-mpi", action="store_false", dest="mpi")
    parser.add_argument("--no-ferry", action="store_false", dest="ferry")
    parser.add_argument("--no-autotune", action="store_false", dest="autotune",
                        help="no table: the fastest fixed mode counts")
    parser.add_argument("--json")
    honest.add_arguments(parser)
    arguments = parser.parse_args()
    if arguments.fresh and arguments.busy:  # a difference of two times: its least is the most wrong
        parser.error("--fresh needs medians, and --busy takes the fastest")
    arguments.build = arguments.build.resolve()
    arguments.sizes = sorted(int(size) for size in arguments.sizes.split(",")) \
        if arguments.sizes else QUICK if arguments.quick else SIZES
    arguments.rounds = min(arguments.rounds, 2) if arguments.quick else arguments.rounds
    return arguments


def main():
    arguments = read_arguments()
    targets = Targets()
    result = {**honest.begin(arguments.rounds, arguments.patience),
              "batches": arguments.batches, "busy": arguments.busy,
              "in_place": arguments.in_place, "fresh": arguments.fresh,
              "settings": SETTINGS, "cases": []}
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(arguments, folder)
        if programs.mpi is not None:
            result["mpi_version"] = version_of(["mpirun", "--version"])
        for name, (cases, target) in PARTS.items():
            for dtype in arguments.dtypes.split(","):
                for case in cases:
                    if name in arguments.only.split(",") and arguments.ops in case[0]:
                        result["cases"].append({"part": name, **compare(
                            programs, arguments, case, dtype, target, targets)})
                        honest.end(result)
                        result["targets"] = targets.lines
                        if arguments.json:  # after every case: a run cut short leaves what it has
                            honest.write(arguments.json, result)
    print(f"{os.cpu_count()} cores, load {result['load_before'][0]:.2f} before and "
          f"{os.getloadavg()[0]:.2f} after, {arguments.rounds} rounds of {arguments.batches} "
          "batches")
    targets.print()


if __name__ == "__main__":
    main()
