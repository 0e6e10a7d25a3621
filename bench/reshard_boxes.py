#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""`ferry reshard` to sides in boxes and back, beside a plain reshard of the same bytes; and how it
grows with the boxes.

    python3 bench/reshard_boxes.py --build build/release [--memory /dev/shm] [--rounds 5] [--json FILE]

Two matrices in bf16 of 14336 x 4096, together 224 MiB, go to boxes (forth) and from there to one
logical checkpoint (back): as they are; transposed; their rows, and their elements, in turns in one
parameter; cut by columns for 8 and for 64 ranks; cut and transposed. A round times each, beginning
with another one each time; the first does not count. A time is ferry's own, until all is synced; a
ratio is the median of the rounds' ratios to the case `plain`.

Then 64 ranks with so many boxes each, rows of small tensors in 250 places of a parameter: processor
time and peak memory of one run each, in parts.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

import honest

ROWS, COLUMNS, N = 14336, 4096, 2


def write_model(folder, names, shape):
    folder.mkdir()
    n_bytes = 2 * shape[0] * shape[1]
    text = json.dumps({name: {"dtype": "BF16", "shape": shape,
                              "data_offsets": [i * n_bytes, (i + 1) * n_bytes]}
                       for i, name in enumerate(names)}).encode()
    text += b" " * (-len(text) % 8)
    block = random.Random(1).randbytes(1 << 24)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for left in range(n_bytes * len(names), 0, -len(block)):
            file.write(block[:left])


def parameter(rank, name, elements, *holds):
    return {"rank": rank, "parameter": name, "elements": elements, "holds": [
        {"tensor": tensor, "begin": begin, "shape": shape, "offset": offset, "strides": strides}
        for tensor, begin, shape, offset, strides in holds]}


def cases():
    tensors, size, whole = ["w%d" % i for i in range(N)], ROWS * COLUMNS, [ROWS, COLUMNS]

    def each(strides):
        return [parameter(0, name, size, (name, [0, 0], whole, 0, strides)) for name in tensors]

    def cut(n, turned):
        columns = COLUMNS // n
        strides = [1, ROWS] if turned else [columns, 1]
        return [parameter(rank, name, ROWS * columns,
                          (name, [0, rank * columns], [ROWS, columns], 0, strides))
                for name in tensors for rank in range(n)]

    def in_turns(step, strides):
        return [parameter(0, "both", N * size, *((name, [0, 0], whole, i * step, strides)
                                                 for i, name in enumerate(tensors)))]

    return [("plain", each([COLUMNS, 1])), ("transposed", each([1, ROWS])),
            ("rows in turns", in_turns(COLUMNS, [N * COLUMNS, 1])),
            ("elements in turns", in_turns(1, [N * COLUMNS, N])),
            ("columns of 8", cut(8, False)), ("columns of 64", cut(64, False)),
            ("transposed columns of 8", cut(8, True))]


def run(*words):
    """What it prints, and what it took: seconds of processors, and peak memory."""
    read, write = os.pipe()
    child = subprocess.Popen([str(word) for word in words], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    with os.fdopen(read) as out:
        text = out.read()
    error = child.stderr.read().decode()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit("%s: %s" % (" ".join(map(str, words)), error.strip()))
    return text, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def time_ways(ferry, folder, side):
    text, _, _ = run(ferry, "reshard", folder / "model", "--to", side, "--out", folder / "boxed",
                     "--json")
    back, _, _ = run(ferry, "reshard", folder / "boxed", "--to", "hf", "--out", folder / "back",
                     "--json")
    return json.loads(text)["seconds"], json.loads(back)["seconds"]


def measure(ferry, folder, rounds):
    write_model(folder / "model", ["w%d" % i for i in range(N)], [ROWS, COLUMNS])
    all_cases, rows = cases(), {}
    for number in range(rounds + 1):
        first = number % len(all_cases)
        for name, boxes in all_cases[first:] + all_cases[:first]:
            side = folder / "side.json"
            side.write_text(json.dumps({"boxes": boxes}))
            seconds = time_ways(ferry, folder, side)
            if number == 0:
                run(ferry, "verify", folder / "model", folder / "back")
                run(ferry, "verify", folder / "model", folder / "boxed")
            else:
                rows.setdefault(name, []).append(seconds)
            shutil.rmtree(folder / "boxed")
            shutil.rmtree(folder / "back")
    return [{"case": name, "way": way, "seconds": statistics.median(s[k] for s in rows[name]),
             "of_plain": statistics.median(s[k] / p[k]
                                           for s, p in zip(rows[name], rows["plain"]))}
            for k, way in enumerate(("forth", "back")) for name, _ in all_cases]


def grow(ferry, folder, n_boxes, n_ranks=64, in_one=250, rows=64, columns=16):
    n_tensors = max(10, n_boxes // rows)
    write_model(folder / "small", ["layers.%d.w" % t for t in range(n_tensors)], [rows, columns])
    with open(folder / "side.json", "w") as file:
        for rank in range(n_ranks):
            for p in range(n_boxes // in_one):
                holds = [("layers.%d.w" % ((rank * 7 + p * in_one + i) // rows % n_tensors),
                          [(rank * 7 + p * in_one + i) % rows, 0], [1, columns],
                          i * 37 % in_one * columns, [columns, 1]) for i in range(in_one)]
                file.write('{"boxes":[' if rank == p == 0 else ",\n")
                json.dump(parameter(rank, "p%d" % p, in_one * columns, *holds), file)
        file.write("]}")
    result = {"ranks": n_ranks, "boxes_of_a_rank": n_boxes}
    for name, words in (("plan", ["reshard", folder / "small", "--to", folder / "side.json",
                                  "--out", folder / "boxed", "--dry-run"]),
                        ("reshard", ["reshard", folder / "small", "--to", folder / "side.json",
                                     "--out", folder / "boxed"]),
                        ("open", ["inspect", folder / "boxed"])):
        _, result[name + "_seconds"], result[name + "_mib"] = run(ferry, *words)
    shutil.rmtree(folder / "small")
    shutil.rmtree(folder / "boxed")
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True)
    parser.add_argument("--memory", default="/dev/shm")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--boxes", type=int, nargs="*", default=[1000, 2000, 4000, 8000])
    parser.add_argument("--json")
    honest.add_arguments(parser)
    arguments = parser.parse_args()
    ferry = os.path.abspath(pathlib.Path(arguments.build) / "ferry")
    record = honest.begin(arguments.rounds, arguments.patience)
    with tempfile.TemporaryDirectory(prefix="ferry-boxes-", dir=arguments.memory) as name:
        folder = pathlib.Path(name)
        results = measure(ferry, folder, arguments.rounds)
        print("%-24s %-6s %9s %9s" % ("case", "way", "seconds", "of plain"))
        for row in results:
            print("%(case)-24s %(way)-6s %(seconds)9.3f %(of_plain)9.2f" % row, flush=True)
        growth = []
        print("%12s %18s %18s %18s" % ("boxes", "plan: s, MiB", "reshard: s, MiB", "open: s, MiB"))
        for n_boxes in arguments.boxes:
            growth.append(grow(ferry, folder, n_boxes))
            print("%(ranks)5d x%(boxes_of_a_rank)6d %(plan_seconds)10.2f %(plan_mib)7.0f "
                  "%(reshard_seconds)10.2f %(reshard_mib)7.0f %(open_seconds)10.2f "
                  "%(open_mib)7.0f" % growth[-1], flush=True)
    honest.end(record)
    if arguments.json:
        honest.write(arguments.json, {"format": "ferry.bench/1", "name": "reshard_boxes",
                                      "results": results, "growth": growth, **record})


if __name__ == "__main__":
    main()
