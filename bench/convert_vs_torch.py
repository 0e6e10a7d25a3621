#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Quantizes bf16 to f8e4m3 with a scale for each 128 x 128 elements, by ferry and by torch in turns,
each with one thread, and compares the seconds of a processor. Needs torch.

    convert_vs_torch.py --bench build/release/bench/bench_convert [--rounds N]
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time

import torch

import honest

COLUMNS, BLOCK, LARGEST = 8192, 128, 448.0


def ferry_rate(bench, mib):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([bench, "--rounds", "3", "--mib", str(mib), "--only", "quantize_f8_128x128",
                        "--json", file.name], check=True, stdout=subprocess.DEVNULL)
        rates = {row["test"]: row["gbytes_per_s"] for row in json.load(file)["results"]}
    return rates["quantize_f8_128x128"], max(rates["copy"], rates["copy_libc"])


def quantize(values):
    """As one writes it: blocks, their largest magnitudes, scales, and the quotients."""
    rows, columns = values.shape
    blocks = values.view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    scales = blocks.abs().amax(dim=(1, 3), keepdim=True).float() / LARGEST
    codes = (blocks.float() / scales).to(torch.float8_e4m3fn)
    return codes.view(rows, columns), scales


def torch_rate(values):
    before = time.thread_time()
    quantize(values)
    return values.numel() * values.element_size() / (time.thread_time() - before) / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bench", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--json")
    honest.add_arguments(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    values = torch.randn((args.mib << 19) // COLUMNS, COLUMNS, dtype=torch.bfloat16) * 0.02
    quantize(values[:BLOCK])
    rates = {"copy": [], "ferry": [], "torch": []}
    record = honest.begin(args.rounds, args.patience)
    for _ in range(args.rounds):
        rate, copy = ferry_rate(args.bench, args.mib)
        rates["copy"].append(copy)
        rates["ferry"].append(rate)
        rates["torch"].append(torch_rate(values))
    ratios = [a / b for a, b in zip(rates["ferry"], rates["torch"])]
    result = {
        **honest.end(record),
        "what": f"{args.mib} MiB of bf16 to f8e4m3, blocks of 128 x 128, one thread",
        "peer": "torch " + torch.__version__,
        "gbytes_per_s": {name: statistics.median(found) for name, found in rates.items()},
        "ratio": statistics.median(ratios),
    }
    for name, rate in result["gbytes_per_s"].items():
        print(f"{name:8} {rate:7.2f} GB/s read")
    print(f"ratio    {result['ratio']:7.1f}   ({min(ratios):.1f} to {max(ratios):.1f})")
    if args.json:
        honest.write(args.json, result)


if __name__ == "__main__":
    main()
