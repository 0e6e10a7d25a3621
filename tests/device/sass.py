#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What became of the kernels: no local memory, no more than 40 registers where bytes are copied and
blocks hashed, and accesses of 128 bits where 16 bytes were meant.

    sass.py --nvcc nvcc --source src          registers and spills, as ptxas says
    sass.py --fatbin ferry_kernels.fatbin     instructions too, where there is a cuobjdump

What is wrong is printed, and the status is 1; 77: there is no tool to look with."""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

MOST_REGISTERS = 40
KERNELS = ["fy_cuda_copy_16", "fy_cuda_copy_8", "fy_cuda_copy_4", "fy_cuda_copy_2", "fy_cuda_copy_1",
           "fy_cuda_copy_rows", "fy_cuda_copy_table", "fy_cuda_cast_8", "fy_cuda_cast_4", "fy_cuda_cast_1", "fy_cuda_sum_8", "fy_cuda_sum_1",
           "fy_cuda_cast_f4_8", "fy_cuda_cast_f4_2", "fy_cuda_scaled_8", "fy_cuda_scaled_1", "fy_cuda_nvfp4", "fy_cuda_largest_8", "fy_cuda_largest_1",
           "fy_cuda_hash_sums", "fy_cuda_hash_chain", "fy_cuda_hash_each",
           "fy_cuda_lanes"]
# Loads and stores that each must have.
WIDTHS = {"fy_cuda_copy_16": (r"LDG\.E\S*\.128", r"STG\.E\S*\.128"),
          "fy_cuda_copy_8": (r"LDG\.E\S*\.64", r"STG\.E\S*\.64"),
          "fy_cuda_copy_rows": (r"LDG\.E\S*\.128", r"STG\.E\S*\.128"),
          "fy_cuda_copy_table": (r"LDG\.E\S*\.128", r"STG\.E\S*\.128"),
          "fy_cuda_cast_8": (r"LDG\.E\S*\.128", r"STG\.E\S*\.128"),
          "fy_cuda_cast_4": (r"LDG\.E\S*\.64", r"STG\.E\S*\.128"),
          "fy_cuda_cast_f4_8": (r"LDG\.E\S*", r"STG\.E\S*\.128"),
          "fy_cuda_scaled_8": (r"LDG\.E\S*\.128", r"STG\.E\S*\.128"),
          "fy_cuda_largest_8": (r"LDG\.E\S*\.128",),
          "fy_cuda_nvfp4": (r"LDG\.E\S*\.128", r"STG\.E\S*\.64"),
          "fy_cuda_sum_8": (r"LDG\.E\S*\.128", r"STG\.E\S*\.128"),
          "fy_cuda_hash_sums": (r"LDG\.E\S*\.128", r"STG\.E\S*\.128"),
          "fy_cuda_hash_chain": (r"LDG\.E\S*\.64", r"STG\.E\S*\.64"),
          "fy_cuda_hash_each": (r"LDG\.E\S*\.128", r"STG\.E\S*\.128"),
          "fy_cuda_lanes": (r"LDG\.E\S*\.128", r"STG\.E\S*\.128")}


def check_ptxas(nvcc, source, problems):
    for arch in ("sm_80", "sm_90"):
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run(
                [nvcc, "-std=c++17", "-cubin", f"-arch={arch}", "-fmad=false", "-Xptxas", "-v", "-I", source,
                 "-o", f"{folder}/k.cubin", f"{source}/memory/cuda/kernels.cu"],
                capture_output=True, text=True, check=True)
        said = run.stdout + run.stderr
        found = re.findall(r"entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
                           r"(\d+) bytes spill loads.*?Used (\d+) registers", said, re.DOTALL)
        if sorted(name for name, *_ in found) != sorted(KERNELS):
            problems.append(f"{arch}: ptxas speaks of {sorted(name for name, *_ in found)}")
        for name, stack, stores, loads, registers in found:
            print(f"{arch} {name:20} {registers:>3} registers, {stack} bytes of stack")
            if int(stack) or int(stores) or int(loads):
                problems.append(f"{arch} {name}: {stack} bytes of stack, {stores} and {loads} of spills")
            if ("copy" in name or name in ("fy_cuda_hash_sums", "fy_cuda_hash_each")) and int(registers) > MOST_REGISTERS:
                problems.append(f"{arch} {name}: {registers} registers")


def check_sass(cuobjdump, fatbin, problems):
    text = subprocess.run([cuobjdump, "--dump-sass", fatbin], capture_output=True, text=True, check=True).stdout
    parts = re.split(r"\n\s*code for (sm_\w+)", text)
    seen = set()
    for arch, part in zip(parts[1::2], parts[2::2]):
        for function in re.split(r"\n\s*Function : ", part)[1:]:
            name = function.split()[0]
            code = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?\s*([A-Z][\w.]*)", function)
            seen.add((arch, name))
            local = [one for one in code if one.startswith(("LDL", "STL"))]
            loads = [one for one in code if one.startswith("LDG")]
            stores = [one for one in code if one.startswith("STG")]
            print(f"{arch} {name:20} {len(code):>5} instructions, loads {sorted(set(loads))}, "
                  f"stores {sorted(set(stores))}")
            if local:
                problems.append(f"{arch} {name}: {len(local)} accesses of local memory")
            for wanted, there in zip(WIDTHS.get(name, ()), (loads, stores)):
                if not any(re.fullmatch(wanted, one) for one in there):
                    problems.append(f"{arch} {name}: nothing like {wanted} in {sorted(set(there))}")
    for arch in ("sm_80", "sm_90"):
        for name in KERNELS:
            if (arch, name) not in seen:
                problems.append(f"{arch} {name}: not in {fatbin}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nvcc")
    parser.add_argument("--source", type=pathlib.Path)
    parser.add_argument("--fatbin")
    args = parser.parse_args()
    problems = []
    cuobjdump = shutil.which("cuobjdump") or shutil.which("/usr/local/cuda/bin/cuobjdump")
    if args.nvcc:
        check_ptxas(args.nvcc, args.source, problems)
    if args.fatbin and cuobjdump:
        check_sass(cuobjdump, args.fatbin, problems)
    elif args.fatbin:
        print("there is no cuobjdump: instructions are not looked at")
        if not args.nvcc:
            return 77
    for problem in problems:
        print("WRONG", problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
