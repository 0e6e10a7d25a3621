#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Planning time against Megatron-Core's own planner, both in one run, interleaved.

    python3 bench/plan_vs_megatron.py --bench build/release/bench/bench_plan [--ranks 256] [--rounds 5]

Makes a virtual environment (--venv, default beside the build) with the packages that
bench/megatron/requirements.txt names. Megatron's build_centralized_reshard_plan runs on rank 0 with
its collectives replaced by lists, which is all ranks' plans; ferry visits all moves of all ranks, from
a spec that was written from the very layouts that Megatron plans. The input differs all the same:
Megatron reads the metadata of every rank, a spec says the layout once. python_planner.py gives both
that metadata. Prints a table and writes JSON with --json FILE.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import honest

HERE = pathlib.Path(__file__).resolve().parent
ALL_MOVES = "spec, all moves of all ranks"
OWN_PLAN = "spec, own plan of the last rank"


def make_environment(folder):
    python = folder / "bin" / "python3"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [python, "-m", "pip", "install", "-q"]
        subprocess.run([*install, "torch==2.13.0", "packaging", "einops", "numpy"], check=True)
        subprocess.run([*install, "--no-deps", "megatron-core==0.16.1"], check=True)
    return python


def run_megatron(python, ranks, spec):
    """Also writes the spec of the layouts that it planned, tensor by tensor the same."""
    command = [python, HERE / "megatron" / "plan_megatron.py", "--ranks", str(ranks), "--repeat", "1",
               "--spec", spec]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output)


def run_ferry(bench, spec):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [bench, "--json", file.name, "--runs", "5", "--spec", spec]
        subprocess.run(command, check=True, capture_output=True)
        return {case["case"]: case for case in json.load(open(file.name))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bench", required=True)
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--venv", type=pathlib.Path, default=HERE.parent / "build" / "megatron-venv")
    parser.add_argument("--json")
    honest.add_arguments(parser)
    arguments = parser.parse_args()
    python = make_environment(arguments.venv)
    theirs, ours, own = [], [], []
    record = honest.begin(arguments.rounds, arguments.patience)
    with tempfile.TemporaryDirectory() as folder:
        spec = pathlib.Path(folder) / "spec.json"
        for _ in range(arguments.rounds):
            megatron = run_megatron(python, arguments.ranks, spec)
            theirs.append(megatron["median"])
            ferry = run_ferry(arguments.bench, spec)
            ours.append(ferry[ALL_MOVES]["median_s"])
            own.append(ferry[OWN_PLAN]["median_s"])
    result = {
        **honest.end(record),
        "peer": "megatron-core " + str(megatron["version"]),
        "what": f"{arguments.ranks} source ranks of TP8 to {arguments.ranks} destination ranks of TP4, "
                "the same layouts on both sides",
        "megatron_moves": megatron["moves"],
        "ferry_moves": ferry[ALL_MOVES]["plan_moves"],
        "megatron_all_ranks_s": theirs,
        "ferry_all_moves_s": ours,
        "ferry_own_plan_s": own,
        "ratio_all_moves": statistics.median(t / o for t, o in zip(theirs, ours)),
        "ratio_own_plan": statistics.median(t / o for t, o in zip(theirs, own)),
    }
    print(f"{'':24} {'median s':>12} {'min s':>12} {'max s':>12}")
    for name, values in (("Megatron, all ranks", theirs), ("ferry, all moves", ours),
                         ("ferry, own plan", own)):
        print(f"{name:24} {statistics.median(values):12.6f} {min(values):12.6f} {max(values):12.6f}")
    print(f"ratio, all ranks' plans: {result['ratio_all_moves']:,.0f} x")
    if arguments.json:
        honest.write(arguments.json, result)


if __name__ == "__main__":
    main()
