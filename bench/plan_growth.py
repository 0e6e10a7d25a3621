#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""How the cost of a plan grows: each row doubles one thing, and what takes more than in proportion
shows.

    plan_growth.py --ferry PATH [--only ROW] [--from N] [--doublings K] [--prove] [--json FILE]

Prints for each row the processor seconds and the memory of `ferry plan` at N, 2 N, 4 N, ..., and
the factor of the last doubling: about 2 where cost is linear, 4 where it is quadratic.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import honest

WHOLE = {"mesh": [], "rules": [{"match": "*"}]}


def spec_of(tensors, source, destination):
    return {"format": "ferry.spec/1", "source": source, "destination": destination,
            "tensors": [{"name": name, "shape": shape, "dtype": "u8", **more}
                        for name, shape, more in tensors]}


def box(tensor, begin, shape, offset, strides, **more):
    return {"tensor": tensor, "begin": begin, "shape": shape, "offset": offset, "strides": strides,
            **more}


def entry(ranks, name, elements, holds, **more):
    return {"ranks": ranks, "parameter": name, "elements": elements, "holds": holds, **more}


def one(tensors, elements, holds, **more):
    """One rank's parameter, from a source that has everything."""
    return spec_of(tensors, WHOLE, {"boxes": [entry([1], "p", elements, holds, **more)]})


def mixed(n):
    """In no order, so that as many moves are left for any n."""
    order = list(range(n))
    random.Random(n).shuffle(order)
    return order


def ranks_alike(n):
    return spec_of([("w%d" % i, [8], {}) for i in range(20)], WHOLE, {"boxes": [
        entry(list(range(1, n + 1)), "p%d" % i, 8, [box("w%d" % i, [0], [8], 0, [1])])
        for i in range(20)]})


def ranks_apart(n):
    return spec_of([("w", [n], {})], WHOLE, {"boxes": [
        entry([rank], "p", 1, [box("w", [rank], [1], 0, [1])]) for rank in range(n)]})


def ranks_overlapping(n):
    return spec_of([("w", [n + 7], {})], WHOLE, {"boxes": [
        entry([rank], "p", 8, [box("w", [rank], [8], 0, [1])]) for rank in range(n)]})


def tensors(n):
    return one([("w%d" % i, [8], {}) for i in range(n)], 8 * n,
               [box("w%d" % i, [0], [8], 8 * i, [1]) for i in range(n)])


def boxes(n):
    return one([("w", [n, 4], {})], 4 * n,
               [box("w", [row, 0], [1, 4], 4 * i, [4, 1]) for i, row in enumerate(mixed(n))])


def boxes_of_a_source(n):
    spec = boxes(n)
    spec["source"] = {"boxes": [dict(spec["destination"]["boxes"][0], ranks=[0])]}
    spec["destination"] = {"mesh": [["tp", 2]],
                           "rules": [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]}
    return spec


def regions(n):
    """Rows by columns of pieces that no split of a dimension makes."""
    side = int(n ** 0.5)
    holds = [box("w", [2 * i, 2 * k], [2 - (i + k) % 2, 2 - i * k % 2], 4 * (i * side + k), [2, 1])
             for i in range(side) for k in range(side)]
    return one([("w", [2 * side, 2 * side], {})], 4 * side * side, holds, partial=True)


def repeats(n):
    loop = {"count": n, "begin": [2], "offset": 1}
    return one([("w", [2 * n], {})], n, [box("w", [0], [1], 0, [1], repeat=[loop])])


def fills(n):
    return one([("w", [n], {})], 3 * n, [box("w", [0], [n], 0, [3])],
               fill=[{"offset": 3 * i + 1, "shape": [2], "strides": [1]} for i in range(n)])


def layers(n):
    """One rank wants the same two elements so many times."""
    return one([("w", [4], {})], 2 * n, [box("w", [i % 2], [1], i, [1]) for i in range(2 * n)])


def feeds(n):
    """A tensor may have 16,384 sources."""
    n //= 4
    parts = [("s%d" % i, [4], {"only": "source"}) for i in range(n)]
    source = [{"tensor": "s%d" % i, "at": [4 * i], "shape": [4], "begin": [0]} for i in range(n)]
    return one([*parts, ("w", [4 * n], {"source": source})], 4 * n,
               [box("w", [4 * part], [4], 4 * i, [1]) for i, part in enumerate(mixed(n))])


def crossing(n):
    """Strides of which none is a multiple of the other, each box in a lane of its own."""
    holds = [box("w", [5 * i], [7 if i % 2 else 5], i, [(5 if i % 2 else 7) * n])
             for i in range(n)]
    return one([("w", [5 * n + 7], {})], 40 * n, holds, partial=True)


SCALED = {"block": [2, 2], "scale": "*.s"}


def codes(spec):
    """Tensors of codes, each with its scales."""
    spec["tensors"] = [t for one in spec["tensors"] for t in (
        {**one, "dtype": "f8e4m3"},
        {"name": one["name"] + ".s", "shape": [(n + 1) // 2 for n in one["shape"]], "dtype": "f32"})]
    return spec


def values(parameter):
    return {**parameter, "dtype": "bf16", "dequantize": SCALED}


def tensors_of_codes(n):
    n //= 4
    return codes(spec_of([("w%d" % i, [4, 4], {}) for i in range(n)], WHOLE, {
        "mesh": [["tp", 2]], "rules": [
            {"match": "*.s", "skip": True},
            values({"match": "w*", "shard": [{"dim": 0, "axis": "tp"}]})]}))


def parameters_of_codes(n):
    n //= 4
    return codes(spec_of([("w%d" % i, [4, 4], {}) for i in range(n)], WHOLE, {"boxes": [
        values(entry([1], "p%d" % i, 16, [box("w%d" % i, [0, 0], [4, 4], 0, [4, 1])]))
        for i in range(n)]}))


def boxes_of_codes(n):
    n //= 4
    return codes(spec_of([("w", [n, 4], {})], WHOLE, {"boxes": [values(entry(
        [1], "p", 4 * n, [box("w", [row, 0], [1, 4], 4 * i, [4, 1])
                          for i, row in enumerate(mixed(n))]))]}))


def ranks_of_codes(n):
    n //= 16
    return codes(spec_of([("w", [n, 4], {})], WHOLE, {"boxes": [
        values(entry([rank], "p", 4, [box("w", [rank, 0], [1, 4], 0, [4, 1])]))
        for rank in range(n)]}))


def tensors_made(n):
    """Codes that receivers make, for each has but a part of each block."""
    n //= 4
    return spec_of([("w%d" % i, [4, 4], {"dtype": "f32"}) for i in range(n)], {
        "mesh": [["tp", 4]], "rules": [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]}, {
        "mesh": [["dp", 2]], "rules": [
            {"match": "*", "quantize": {"format": "f8e4m3", "block": [4, 4], "scale": "*.s"}}]})


ROWS = [ranks_alike, ranks_apart, ranks_overlapping, tensors, boxes, boxes_of_a_source, regions,
        repeats, fills, layers, feeds, crossing, tensors_of_codes, parameters_of_codes,
        boxes_of_codes, ranks_of_codes, tensors_made]


def measure(command):
    """Processor seconds and MiB of one run."""
    with open(os.devnull, "w") as nothing:
        child = subprocess.Popen(command, stdout=nothing)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if status != 0:
        sys.exit("%s: exit status %d" % (" ".join(command), child.returncode))
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ferry", required=True, help="the command")
    parser.add_argument("--only", help="this row", choices=[row.__name__ for row in ROWS])
    parser.add_argument("--from", dest="first", type=int, default=4000, help="the smallest number")
    parser.add_argument("--doublings", type=int, default=3)
    parser.add_argument("--prove", action="store_true", help="the proof, too")
    parser.add_argument("--json", metavar="FILE")
    honest.add_arguments(parser)
    arguments = parser.parse_args()
    record, found = honest.begin(1, arguments.patience), {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        for row in ROWS:
            if arguments.only not in (None, row.__name__):
                continue
            points = []
            for k in range(arguments.doublings + 1):
                path.write_text(json.dumps(row(arguments.first << k)))
                command = [arguments.ferry, "plan", str(path)] + ["--prove"] * arguments.prove
                points.append((arguments.first << k, *measure(command)))
            found[row.__name__] = points
            print("%-18s %s  x%.1f" % (
                row.__name__, "  ".join("%6d: %6.3f s %5.0f MiB" % point for point in points),
                points[-1][1] / max(points[-2][1], 1e-3)), flush=True)
    honest.end(record)
    if arguments.json:
        honest.write(arguments.json, {**record, "rows": found})


if __name__ == "__main__":
    main()
