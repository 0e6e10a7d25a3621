#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Casts beside those of torch and of ml_dtypes, where these are: all codes of f16, bf16 and the f8
types, and f32 by a stride. NaN is compared as NaN: payloads are each library's own.

    convert_peers.py --program PROGRAM     # the program that casts codes with ferry
"""

import argparse
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import skips  # noqa: E402

BITS = {"f32": 32, "f16": 16, "bf16": 16, "f8e4m3": 8, "f8e5m2": 8}
STRIDE = 4099  # of f32
TORCH = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f8e4m3": "float8_e4m3fn",
         "f8e5m2": "float8_e5m2"}
ML_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f8e4m3": "float8_e4m3fn",
             "f8e5m2": "float8_e5m2"}


def is_nan(name, codes):
    magnitude = codes & ((1 << (BITS[name] - 1)) - 1)
    least = {"f32": 0x7f800001, "f16": 0x7c01, "bf16": 0x7f81, "f8e4m3": 0x7f, "f8e5m2": 0x7d}
    return magnitude >= least[name]


def by_ferry(program, source, target, saturates, codes, numpy):
    run = subprocess.run([program, source, target, str(int(saturates))], input=codes.tobytes(), check=True,
                         stdout=subprocess.PIPE)
    return numpy.frombuffer(run.stdout, dtype=f"uint{BITS[target]}")


def by_torch(torch, source, target, codes):
    views = {32: torch.int32, 16: torch.int16, 8: torch.uint8}
    signed = codes.view(f"int{BITS[source]}") if BITS[source] > 8 else codes
    values = torch.from_numpy(signed.copy()).view(getattr(torch, TORCH[source]))
    cast = values.to(getattr(torch, TORCH[target]))
    return cast.view(views[BITS[target]]).numpy().view(f"uint{BITS[target]}")


def by_ml_dtypes(ml_dtypes, numpy, source, target, codes):
    def dtype(name):
        return numpy.dtype(getattr(ml_dtypes, ML_DTYPES[name], None) or ML_DTYPES[name])
    with numpy.errstate(all="ignore"):
        return codes.view(dtype(source)).astype(dtype(target)).view(f"uint{BITS[target]}")


def differing(name, numpy, ours, theirs):
    both_nan = is_nan(name, ours) & is_nan(name, theirs)
    return numpy.nonzero((ours != theirs) & ~both_nan)[0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    args = parser.parse_args()
    try:
        import numpy
    except ImportError as error:
        return skips.whole("convert_peers", error)
    peers, missing = {}, []
    try:
        import torch
        peers["torch"] = lambda *what: by_torch(torch, *what)
    except ImportError as error:
        missing.append(str(error))
    try:
        import ml_dtypes
        peers["ml_dtypes"] = lambda *what: by_ml_dtypes(ml_dtypes, numpy, *what)
    except ImportError as error:
        missing.append(str(error))
    n_failed = n_run = 0
    for source in BITS if peers else []:
        n = 1 << BITS[source]
        codes = numpy.arange(0, n, STRIDE if source == "f32" else 1, dtype=numpy.uint64)
        codes = codes.astype(f"uint{BITS[source]}")
        for target in BITS:
            if source == target:
                continue
            for name, cast in peers.items():
                theirs = cast(source, target, codes)
                # Versions of torch are of two minds about f8e4m3: what does this one do with 1000?
                thousand = numpy.array([0x447a0000], dtype="uint32")
                saturates = target == "f8e4m3" and cast("f32", target, thousand)[0] == 0x7e
                ours = by_ferry(args.program, source, target, saturates, codes, numpy)
                at = differing(target, numpy, ours, theirs)
                n_run += 1
                n_failed += len(at) != 0
                for i in at[:3]:
                    print(f"{source} {codes[i]:x} to {target}: {ours[i]:x}, by {name} {theirs[i]:x}")
    for reason in missing:
        print(skips.line("convert_peers", reason))
    print(f"{n_run} pairs of types, {n_failed} differ")
    if n_run == 0:
        return skips.whole("convert_peers", "; ".join(missing))
    return skips.status(n_run, n_failed, len(missing))


if __name__ == "__main__":
    sys.exit(main())
