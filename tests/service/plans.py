#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Random specs through the copy service: every byte that it brings against the oracle's.

    plans.py --program PROGRAM [--seed S] [--count C] [--row inproc|shm|mixed|...] [--patience X]

The oracle writes what each rank holds and works out, element by element, what each must have
afterwards; the program only moves it. A case can be had alone by its seed and --count 1.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "oracle"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import skips  # noqa: E402
from ferry_layout import Model  # noqa: E402
from spec_random import random_spec  # noqa: E402

ROWS = {
    # row: (engines, threads, most ranks, FERRY_NODES)
    "inproc": ("inproc", 1, 24, None),
    "inproc_strict": ("strict:inproc", 1, 24, None),
    "shm": ("shm", 0, 9, None),
    "shm_strict": ("strict:shm", 0, 9, None),
    "mixed": ("", 0, 6, "2"),
    "ucx": ("ucx", 0, 5, None),
}
RUNS = 2


class Failure(Exception):
    """The service did something wrong."""


def blob_of(tensor, rng):
    """The bytes of a whole source tensor."""
    return rng.randbytes(tensor.bytes_of(tensor.elements))


def gather(bits, places):
    """The elements at (blob, row-major index), packed as in memory."""
    if bits % 8 == 0:
        size = bits // 8
        return b"".join(blob[i * size:(i + 1) * size] for blob, i in places)
    # Halves of bytes come in pairs that stay together.
    return bytes(blob[i // 2] for blob, i in places[::2])


def expected_of(model, tensor, rank, blobs):
    origin, feeds = model.origin(tensor), model.feeds(tensor)
    places = [origin[index] for index in model.at_destination(tensor.name).held(rank)]
    return gather(tensor.bits, [(blobs[feeds[number].source], offset) for number, offset in places])


def write_case(folder, model, rng):
    """Files of all ranks; {file: expected bytes}."""
    blobs = {t.name: blob_of(t, rng) for t in model.tensors if t.source is None}
    lines = [[] for _ in range(model.world)]
    expected = {}
    used = {feed.source for tensor in model.wanted() for feed in model.feeds(tensor)}
    for number, tensor in enumerate(model.tensors):
        if tensor.name in used:
            placement = model.at_source(tensor.name)
            for rank in placement.shards if placement else ():
                blob = blobs[tensor.name]
                data = gather(tensor.bits, [(blob, index) for index in placement.held(rank)])
                name = "s%d.%d" % (number, rank)
                (folder / name).write_bytes(data)
                lines[rank].append("S %d %s %s" % (len(data), name, tensor.name))
        placement = model.at_destination(tensor.name)
        for rank in placement.shards if placement else ():
            name = "d%d.%d" % (number, rank)
            expected[name] = (expected_of(model, tensor, rank, blobs), tensor.name, rank)
            lines[rank].append("D %d %s %s" % (len(expected[name][0]), name, tensor.name))
    for rank, own in enumerate(lines):
        rng.shuffle(own)
        (folder / ("r%d" % rank)).write_text("".join(line + "\n" for line in own),
                                             encoding="utf-8")
    return expected


def settings_of(rng):
    chosen = {"runs": RUNS, "checksum": rng.choice([0, 1, 2]), "commit": rng.choice([0, 0, 1]),
              "memory": rng.choice([0, 1]), "team": rng.choice([0, 1, 1, 2, 3])}
    if rng.random() < 0.6:
        chosen["slot"] = rng.choice([16, 17, 100, 1024, 65536])
    if rng.random() < 0.4:
        chosen["tasks"] = rng.choice([1, 2, 7])
    if rng.random() < 0.3:
        chosen["cap"] = rng.choice([1 << 20, 8 << 20])
    if rng.random() < 0.5:
        chosen["paths"] = rng.randint(0, 15)
    return chosen


def compare(folder, expected):
    for run in range(RUNS):
        for name, (wanted, tensor, rank) in expected.items():
            have = (folder / ("%s.%d" % (name, run))).read_bytes()
            wanted = bytes(byte ^ (run * 59) & 255 for byte in wanted)
            if have != wanted:
                wrong = [i for i, (a, b) in enumerate(zip(have, wanted)) if a != b]
                raise Failure("run %d, rank %d, \"%s\": %d of %d bytes are wrong, first at %s" % (
                    run, rank, tensor, len(wrong), len(wanted), wrong[:1]))


def draw(seed, most_ranks):
    """A spec that so many ranks can do."""
    for attempt in range(1000):
        spec = random_spec(seed * 1000 + attempt)
        model = Model(spec)
        if model.world <= most_ranks:
            return spec, model
    raise Failure("no spec for %d ranks" % most_ranks)


def one(seed, row, program, patience):
    engines, threads, most_ranks, nodes = ROWS[row]
    rng = random.Random(seed)
    spec, model = draw(seed, most_ranks)
    chosen = settings_of(rng)
    with tempfile.TemporaryDirectory(prefix="ferry-plans-") as text:
        folder = Path(text)
        (folder / "spec.json").write_text(json.dumps(spec))
        expected = write_case(folder, model, rng)
        command = [program, text, str(model.world), "threads=%d" % threads]
        command += ["engines=" + engines] if engines else []
        command += ["%s=%d" % item for item in chosen.items()]
        environment = {**os.environ, "UCX_TLS": "tcp"}
        if nodes and model.world > 1:
            environment["FERRY_NODES"] = nodes
        try:
            done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  timeout=600 * patience)
        except subprocess.TimeoutExpired:
            raise Failure("it did not end: %s" % " ".join(command)) from None
        if done.returncode != 0:
            raise Failure("%s\nended with %d:\n%s" % (" ".join(command), done.returncode,
                                                      done.stdout.decode(errors="replace")[-3000:]))
        try:
            compare(folder, expected)
        except Failure as failure:
            raise Failure("%s\n%s" % (failure, " ".join(command))) from None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--row", default="inproc", choices=sorted(ROWS))
    parser.add_argument("--patience", type=float, default=1.0)
    options = parser.parse_args()
    needs_ucx = options.row in ("mixed", "ucx")
    plugins = os.environ.get("FERRY_PLUGINS") or str(Path(options.program).parent)
    if needs_ucx and not (Path(plugins) / "libferry_ucx.so").exists():
        return skips.whole(options.row, "the plugin ucx is not built")
    failed = 0
    for seed in range(options.seed, options.seed + options.count):
        try:
            one(seed, options.row, options.program, options.patience)
        except Failure as failure:
            failed += 1
            print("--row %s --seed %d --count 1: FAILED: %s" % (options.row, seed, failure),
                  flush=True)
    print("%d of %d specs failed on %s" % (failed, options.count, options.row))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
