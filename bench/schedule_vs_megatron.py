#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Schedules against Megatron-Core's own scheduler on the same loads, both in one run, interleaved.

    python3 bench/schedule_vs_megatron.py --bench build/release/bench/bench_schedule [--rounds 5]

Makes a virtual environment (--venv, default beside the build) with the packages that
bench/megatron/requirements.txt names. bench_schedule writes its loads; the package's
CommunicationScheduler runs on them as PE 0, its collectives replaced by lists (see
bench/megatron/schedule_megatron.py). Times are of loads of 64 ranks x 64 batches, alternating;
rounds and makespans do not vary and are taken once, on loads that the package can schedule in
seconds. Prints tables and writes JSON with --json FILE.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

import honest
import plan_vs_megatron

HERE = pathlib.Path(__file__).resolve().parent
MOST_BATCHES = 4200  # the package's time grows with their square and more


def run_ferry(bench, part, loads, seed, seeds):
    """The rows of a part; its loads go to a folder."""
    command = [bench, "--part", part, "--loads", loads, "--runs", "5"]
    command += ["--seed", str(seed), "--seeds", str(seeds)]
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([*command, "--json", file.name], check=True, capture_output=True)
        return {(row["part"], row["case"]): row for row in json.load(open(file.name))["cases"]}


def run_megatron(python, loads, pack):
    command = [python, HERE / "megatron" / "schedule_megatron.py", *loads] + ["--pack"] * pack
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result["version"], {row["case"]: row for row in result["cases"]}


def load_files(folder, rows, part):
    """The files of the part's loads that are small enough, by name."""
    files = {}
    for row_part, name in rows:
        path = pathlib.Path(folder) / f"{name}.json"
        if row_part == part and path.exists():
            if len(json.loads(path.read_text())["tasks"]) <= MOST_BATCHES:
                files[name] = path
    return files


def compare_times(arguments, python, folder):
    """Seconds of the two schedulers, alternating."""
    theirs, ours, version = {}, {}, None
    for _ in range(arguments.rounds):
        rows = run_ferry(arguments.bench, "build", folder, arguments.seed, 1)
        version, cases = run_megatron(python, load_files(folder, rows, "build").values(), False)
        for name, case in cases.items():
            theirs.setdefault(name, []).append(case)
            ours.setdefault(name, []).append(rows["build", name])
    table = []
    for name, cases in theirs.items():
        row = {"case": name, "batches": cases[0]["batches"], "degree": cases[0]["degree"],
               "megatron_rounds": cases[0]["rounds"], "ferry_rounds": ours[name][0]["rounds"]}
        for key in ("assign", "build"):
            row[f"megatron_{key}_s"] = [c[f"{key}_s"] for c in cases]
            row[f"ferry_{key}_s"] = [r[f"{key}-s"] for r in ours[name]]
            row[f"ferry_first_fit_{key}_s"] = [r[f"ff-{key}-s"] for r in ours[name]]
            row[f"ratio_{key}"] = ratio(row[f"megatron_{key}_s"], row[f"ferry_{key}_s"])
        row["ferry_create_s"] = [r["create-s"] for r in ours[name]]
        row["ratio_create"] = ratio(row["megatron_build_s"], row["ferry_create_s"])
        table.append(row)
    return version, table


def ratio(theirs, ours):
    return statistics.median(t / o for t, o in zip(theirs, ours))


def compare_rounds(arguments, python, folder):
    """Rounds over the degree; the two first fits must be the same."""
    rows = run_ferry(arguments.bench, "rounds", folder, arguments.seed, 3)
    _, cases = run_megatron(python, load_files(folder, rows, "rounds").values(), False)
    table = []
    for name, case in cases.items():
        row = rows["rounds", name]
        assert case["degree"] == row["degree"] and case["conflicts"] == 0, name
        table.append({"case": name, "batches": case["batches"], "degree": case["degree"],
                      "megatron": case["rounds"] / case["degree"],
                      "ferry_first_fit": row["ff/degree"],
                      "ferry_first_fit_half": row["ff-half/degree"],
                      "ferry_optimal": row["/degree"]})
    return table


def compare_sizes(arguments, python, folder):
    """Makespans over the bound, without a cluster and with one."""
    rows = run_ferry(arguments.bench, "sizes", folder, arguments.seed, 1)
    _, cases = run_megatron(python, load_files(folder, rows, "sizes").values(), True)
    table = []
    for name, case in cases.items():
        for cluster, their in (("", "ratio"), (", cluster", "ratio_cluster")):
            row = rows["sizes", name + cluster]
            bound = case["port_bytes"] / (50e9 if cluster else 1)
            assert abs(row["bound"] / bound - 1) < 1e-9, f"{name}: bound {row['bound']}, not {bound}"
            table.append({"case": name + cluster, "megatron": case[their],
                          "ferry_first_fit": row["ff/bound"],
                          "ferry_first_fit_256M": row["ff-256M/bound"],
                          "ferry_first_fit_half": row["ff-half/bound"],
                          "ferry_optimal": row["optimal/bound"]})
    return table


def print_table(title, table, keys):
    print(f"\n{title:54}" + "".join(f" {key:>22}" for key in keys))
    for row in table:
        print(f"{row['case']:54}" + "".join(f" {number(row[key]):>22}" for key in keys))


def number(value):
    value = statistics.median(value) if isinstance(value, list) else value
    return f"{value:,.0f}" if value >= 100 else f"{value:.6f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bench", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--venv", type=pathlib.Path, default=HERE.parent / "build" / "megatron-venv")
    parser.add_argument("--json")
    honest.add_arguments(parser)
    arguments = parser.parse_args()
    python = plan_vs_megatron.make_environment(arguments.venv)
    record = honest.begin(arguments.rounds, arguments.patience)
    with tempfile.TemporaryDirectory() as folder:
        version, times = compare_times(arguments, python, folder)
        rounds = compare_rounds(arguments, python, folder)
        sizes = compare_sizes(arguments, python, folder)
    honest.end(record)
    print(f"megatron-core {version}; {record['cores']} cores, {record['busy_during']:.0%} of them "
          f"at other work, seed {arguments.seed}, {arguments.rounds} rounds")
    print_table("seconds (median), and how many times faster", times,
                ["megatron_assign_s", "ferry_assign_s", "ratio_assign", "megatron_build_s",
                 "ferry_build_s", "ratio_build", "ferry_create_s", "ratio_create"])
    print_table("rounds / degree", rounds,
                ["megatron", "ferry_first_fit", "ferry_first_fit_half", "ferry_optimal"])
    print_table("makespan / bound", sizes,
                ["megatron", "ferry_first_fit", "ferry_first_fit_256M", "ferry_first_fit_half",
                 "ferry_optimal"])
    if arguments.json:
        result = {**record, "peer": f"megatron-core {version}", "seed": arguments.seed,
                  "times": times, "rounds_over_degree": rounds, "sizes": sizes}
        honest.write(arguments.json, result)


if __name__ == "__main__":
    main()
