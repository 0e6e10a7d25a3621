#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Two builds side by side: is a change slower anywhere?

    python3 bench/before_after.py --before BUILD --after BUILD [--only refit,mixed,transport]
            [--cases TEXT] [--rounds 5] [--json FILE]

BUILD is a folder such as build/release of a clone. A round runs every case with both builds, one right
after the other, beginning with the other one each time. A figure of a round is the median of the
case's own runs, in seconds; the ratio is the median over the rounds of the round's after / before: 1.03
is three hundredths slower. The spread is how far the rounds' ratios lie apart. Ends with 1 where a ratio
is above --worst (1.03) and a second look, of as many rounds, says so too.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import honest

REFITS = ["matrix:2:2", "matrix:4:4", "matrix:4:2", "matrix:8:4", "layers:tp8-tp4dp2:2",
          "layers:tp4-tp2pp2:2", "small:100000"]
MEMORIES = ["ferry", "malloc"]
MIXED = [("all-reduce", "bf16", 2, 1), ("all-reduce-all-gather", "bf16", 2, 2),
         ("reduce-scatter-all-reduce", "bf16", 2, 2), ("all-gather", "bf16", 1, 2)]
SIZES = "1024,65536,1048576"
PARTS = ["put", "signal", "barrier", "rate"]


def call(*words, **environment):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True,
                          check=False, env={**os.environ, **environment})
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def launch(build, n, *words):
    return call(build / "ferry", "launch", "-n", n, "--", *words, FERRY_PLUGINS=str(build))


def refit(build, case, memory):
    kind, *numbers = case.split(":")
    n = max(map(int, numbers[:2])) if kind == "matrix" else 8 if kind == "layers" else 2
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        launch(build, n, build / "bench" / "bench_refit", case, "--memory", memory, "--series",
               "run", "--runs", 5, "--json", file.name)
        done = json.load(open(file.name))["series"]["run"]
    return {"run": done["seconds"], "prepare": [done["prepare_seconds"]]}


def mixed(build, op, dtype, tp, dp):
    text = launch(build, tp * dp, build / "bench" / "bench_mixed", op, dtype, tp, dp, "--sizes",
                  SIZES, "--batches", 7, "--batch-ms", 20)
    found = {}
    for line in text.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            if row["seconds"]:
                found[f"{row['bytes']} {row['way']}"] = row["seconds"]
    return found


def transport(build, part):
    """Figures that are times as they are, rates (GB/s, millions) as their inverse."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        call(build / "bench" / "bench_transport", "--part", part, "--rounds", 5, "--json",
             file.name)
        cases = json.load(open(file.name))["cases"]
    found = {}
    for row in cases:
        for key, value in row.items():
            is_time = key in ("us", "threads-us")
            if (is_time or key in ("GB/s", "M/s", "put-GB/s")) and value:
                found[f"{row['case']} {key}"] = [value * 1e-6 if is_time else 1 / value]
    return found


def cases_of(only):
    if "refit" in only:
        for case in REFITS:
            for memory in MEMORIES:
                yield f"refit {case} {memory}", lambda b, c=case, m=memory: refit(b, c, m)
    if "mixed" in only:
        for case in MIXED:
            yield "mixed " + " ".join(map(str, case)), lambda b, c=case: mixed(b, *c)
    if "transport" in only:
        for part in PARTS:
            yield f"transport {part}", lambda b, p=part: transport(b, p)


def measure(run, builds, rounds):
    """Of every figure: the seconds of each build by round."""
    figures = {}
    for number in range(rounds):
        order = [0, 1] if number % 2 == 0 else [1, 0]
        for which in order:
            for key, seconds in run(builds[which]).items():
                figures.setdefault(key, ([], []))[which].append(statistics.median(seconds))
    return {key: pair for key, pair in figures.items() if len(pair[0]) == len(pair[1]) == rounds}


def compared(pair):
    ratios = [after / before for before, after in zip(*pair)]
    return {"before_s": pair[0], "after_s": pair[1], "ratio": statistics.median(ratios),
            "spread": max(ratios) - min(ratios)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--before", type=pathlib.Path, required=True)
    parser.add_argument("--after", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="refit,mixed,transport")
    parser.add_argument("--cases", default="", help="only those whose name has this text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worst", type=float, default=1.03)
    parser.add_argument("--json")
    honest.add_arguments(parser)
    arguments = parser.parse_args()
    builds = [arguments.before.resolve(), arguments.after.resolve()]
    record = honest.begin(arguments.rounds, arguments.patience)
    rows, slower = {}, []
    for name, run in cases_of(arguments.only.split(",")):
        if arguments.cases not in name:
            continue
        found = {key: compared(pair)
                 for key, pair in measure(run, builds, arguments.rounds).items()}
        if any(row["ratio"] > arguments.worst for row in found.values()):
            again = measure(run, builds, arguments.rounds)
            for key, row in found.items():
                if row["ratio"] > arguments.worst and key in again:
                    row["again"] = compared(again[key])
        for key, row in found.items():
            is_slower = row["ratio"] > arguments.worst and \
                row.get("again", row)["ratio"] > arguments.worst
            slower += [f"{name} {key}"] * is_slower
            rows[f"{name} {key}"] = row
            again = f", again {row['again']['ratio']:.3f}" if "again" in row else ""
            print(f"{name + ' ' + key:<72} {statistics.median(row['before_s']) * 1e6:12.2f} us  "
                  f"{row['ratio']:.3f} (+-{row['spread'] / 2:.3f}){again}"
                  f"{'   SLOWER' if is_slower else ''}", flush=True)
    honest.end(record)
    print(f"{len(rows)} figures, {len(slower)} slower than {arguments.worst:g}; others used "
          f"{record['busy_during']:.0%} of the cores")
    if arguments.json:
        honest.write(arguments.json, {"figures": rows, **record})
    return 1 if slower or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
