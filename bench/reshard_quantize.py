#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""`ferry reshard` with --quantize and --dequantize beside a plain reshard of the same checkpoint.

    python3 bench/reshard_quantize.py --build build/release [--memory /dev/shm] [--disk FOLDER]
            [--bytes 1G] [--rounds 7] [--json FILE]

In each place it makes a logical checkpoint in bf16 (make_checkpoint.py) and its form in f8e4m3 with
blocks of 128x128. A round then times each of these to TP4, beginning with another one each time:
the checkpoint as it is, the same quantized to f8e4m3, to mxfp8 and to nvfp4, and the codes as they are and
dequantized. A time is ferry's own, until all is synced. What a run wrote is deleted before the next.
The first round does not count. A ratio is the median of the rounds' ratios to the plain reshard of
the same source; rates are of the bytes read. Results are verified against their source once before
anything is timed.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import honest
import make_checkpoint

HERE = pathlib.Path(__file__).resolve().parent
CASES = [("plain", "values", []), ("f8e4m3:128x128", "values", ["--quantize", "f8e4m3:128x128"]),
         ("mxfp8", "values", ["--quantize", "mxfp8"]), ("nvfp4", "values", ["--quantize", "nvfp4"]),
         ("plain codes", "codes", []), ("dequantize", "codes", ["--dequantize"])]


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit("%s: %s" % (" ".join(map(str, words)), done.stderr.strip()))
    return done.stdout


def reshard(ferry, folder, source, options):
    out = folder / "out"
    text = run(ferry, "reshard", folder / source, "--to", "tp=4", "--out", out, "--json", *options)
    return out, json.loads(text)


def prepare(ferry, folder, size):
    run(sys.executable, HERE / "make_checkpoint.py", folder / "values", "--bytes", size)
    run(ferry, "reshard", folder / "values", "--to", "hf", "--out", folder / "codes",
        "--quantize", "f8e4m3:128x128")
    for name, source, options in CASES:
        out, _ = reshard(ferry, folder, source, options)
        run(ferry, "verify", folder / source, out, *options)
        shutil.rmtree(out)


def measure(ferry, folder, rounds):
    rows = {name: [] for name, _, _ in CASES}
    for number in range(rounds + 1):
        first = number % len(CASES)
        for name, source, options in CASES[first:] + CASES[:first]:
            out, told = reshard(ferry, folder, source, options)
            shutil.rmtree(out)
            if number > 0:
                rows[name].append((told["seconds"], told["read_bytes"]))
    return rows


def summary(place, rows):
    result = []
    for name, source, _ in CASES:
        plain = rows["plain" if source == "values" else "plain codes"]
        ratios = [mine[0] / its[0] for mine, its in zip(rows[name], plain)]
        seconds = statistics.median(time for time, _ in rows[name])
        result.append({"place": place, "case": name, "seconds": seconds,
                       "gbytes_read_per_s": rows[name][0][1] / seconds / 1e9,
                       "of_plain_seconds": statistics.median(ratios)})
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True)
    parser.add_argument("--memory", default="/dev/shm")
    parser.add_argument("--disk")
    parser.add_argument("--bytes", default="1G")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json")
    honest.add_arguments(parser)
    arguments = parser.parse_args()
    make_checkpoint.parse_bytes(arguments.bytes)
    ferry, results = os.path.abspath(pathlib.Path(arguments.build) / "ferry"), []
    record = honest.begin(arguments.rounds, arguments.patience)
    for place, parent in (("memory", arguments.memory), ("disk", arguments.disk)):
        if not parent:
            continue
        with tempfile.TemporaryDirectory(prefix="ferry-quantize-", dir=parent) as name:
            folder = pathlib.Path(name)
            prepare(ferry, folder, arguments.bytes)
            results += summary(place, measure(ferry, folder, arguments.rounds))
    print("%-8s %-16s %9s %10s %10s" % ("place", "case", "seconds", "GB/s read", "of plain"))
    for row in results:
        print("%(place)-8s %(case)-16s %(seconds)9.3f %(gbytes_read_per_s)10.2f "
              "%(of_plain_seconds)10.2f" % row)
    honest.end(record)
    if arguments.json:
        honest.write(arguments.json, {"format": "ferry.bench/1", "name": "reshard_quantize",
                                      "bytes": arguments.bytes, "results": results, **record})


if __name__ == "__main__":
    main()
