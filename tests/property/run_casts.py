#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Random specs whose destinations cast or quantize, through `ferry run`, which reckons every element anew.

    run_casts.py --ferry PATH [--seed S] [--count N] [--parted]

Case i of a run is made from seed S + i alone, and has options of its own: where memory lies, what
carries bytes, how a run ends. The first failure prints its seed, the spec and the options, and the
exit status is 1.
"""

import argparse
import json
import random
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "oracle"))

import box_random  # noqa: E402
import cast_random  # noqa: E402
import spec_random  # noqa: E402

OPTIONS = [[], ["--replica", "seed"], ["--commit", "swap"], ["--checksum", "path"],
           ["--memory", "far"], ["--paths", "remote", "--slot-bytes", "64"], ["--no-relays"]]
LIMIT_S = 120


def quantized(rng, number):
    kind = number % 4
    if kind < 2:
        return cast_random.quantized_boxes(number)
    return cast_random.add_quantized(rng, spec_random.random_spec(number) if kind == 2 else
                                     box_random.random_box_spec(number))


def parted(seed):
    """One that quantizes a tensor which is made of others, beside what else it quantizes."""
    rng = random.Random("run parted %d" % seed)
    while True:
        before = quantized(rng, rng.randrange(1 << 30))
        spec = cast_random.add_parted(rng, before)
        if spec is not before:
            return spec


def spec_of(seed):
    rng = random.Random("run casts %d" % seed)
    while True:
        number = rng.randrange(1 << 30)
        if seed % 4 == 2:
            return cast_random.dequantized_boxes(number)
        if seed % 3 == 0:
            spec = quantized(rng, number)
            if '"quantize"' in json.dumps(spec):
                return spec
            continue
        spec = (box_random.random_box_spec(number) if seed % 2 else
                spec_random.random_spec(number))
        if seed % 5 == 1:
            spec = cast_random.add_dequantized(rng, spec)
        spec = cast_random.add_casts(rng, spec)
        if '"dequantize"' in json.dumps(spec) or '"cast"' in json.dumps(spec):
            return spec


def failure(ferry, seed, spec, folder):
    """What a case printed that did not go well, or None."""
    options = OPTIONS[seed % len(OPTIONS)]
    path = Path(folder) / "spec.json"
    path.write_text(json.dumps(spec), encoding="utf-8")
    command = [ferry, "run", str(path), "--iterations", "1", "--verify", "each", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode == 0:
        return None
    return "%s\nexit status %d: %s\nspec: %s" % (shlex.join(command), done.returncode, done.stderr,
                                                 json.dumps(spec))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ferry", required=True, help="the command")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--parted", action="store_true",
                        help="every spec quantizes a tensor that is made of others")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seed, arguments.seed + arguments.count):
            spec = parted(seed) if arguments.parted else spec_of(seed)
            said = failure(arguments.ferry, seed, spec, folder)
            if said is not None:
                print("FAILED seed %d\n%s" % (seed, said))
                print("again: %s --ferry %s --seed %d --count 1%s"
                      % (shlex.quote(__file__), shlex.quote(arguments.ferry), seed,
                         " --parted" * arguments.parted))
                return 1
    print("0 failures, seeds %d .. %d" % (arguments.seed, arguments.seed + arguments.count - 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
