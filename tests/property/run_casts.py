#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Random specs whose destinations cast or quantize, through `ferry run`, which reckons every element anew.

    run_casts.py --ferry PATH [--seed S] [--count N]

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
from ferry_boxes import model_of  # noqa: E402

OPTIONS = [[], ["--replica", "seed"], ["--commit", "swap"], ["--checksum", "path"],
           ["--memory", "far"], ["--paths", "remote", "--slot-bytes", "64"], ["--no-relays"]]
LIMIT_S = 120


def has_parts(spec):
    """Whether it quantizes a tensor that has a source: `ferry run` reckons codes of others only."""
    return any(tensor.values is not None and tensor.values.source is not None
               for tensor in model_of(spec).tensors)


def quantized(rng, number):
    if number % 2:
        return cast_random.quantized_boxes(number)
    return cast_random.add_quantized(rng, spec_random.random_spec(number))


def spec_of(seed):
    rng = random.Random("run casts %d" % seed)
    while True:
        number = rng.randrange(1 << 30)
        if seed % 4 == 2:
            return cast_random.dequantized_boxes(number)
        if seed % 3 == 0:
            spec = quantized(rng, number)
            if '"quantize"' in json.dumps(spec) and not has_parts(spec):
                return spec
            continue
        spec = (box_random.random_box_spec(number) if seed % 2 else
                spec_random.random_spec(number))
        if seed % 5 == 1:
            spec = cast_random.add_dequantized(rng, spec)
        spec = cast_random.add_casts(rng, spec)
        if '"dequantize"' in json.dumps(spec) or '"cast"' in json.dumps(spec):
            return spec


def failure(ferry, seed, folder):
    """What a case printed that did not go well, or None."""
    spec, options = spec_of(seed), OPTIONS[seed % len(OPTIONS)]
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
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seed, arguments.seed + arguments.count):
            said = failure(arguments.ferry, seed, folder)
            if said is not None:
                print("FAILED seed %d\n%s" % (seed, said))
                print("again: %s --ferry %s --seed %d --count 1"
                      % (shlex.quote(__file__), shlex.quote(arguments.ferry), seed))
                return 1
    print("0 failures, seeds %d .. %d" % (arguments.seed, arguments.seed + arguments.count - 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
