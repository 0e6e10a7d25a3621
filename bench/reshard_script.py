#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Resharding as a straightforward script does it, with the safetensors package and torch.

    python reshard_script.py SRC DST --tp 4 [--pp 1] [--processes 2]
                                                SRC is a folder of parts, or of rank files
    python reshard_script.py --compare A B      every tensor of every file, by its bits

For Llama-like models with unfused weights. From parts, each rank takes its slices of each tensor
(get_slice reads no more than those) and is saved. From rank files, each stage's tensors are put
together and cut again, then its ranks are saved. Processes share the ranks; with fewer stages than
processes, each puts together all tensors of rank files. Needs requirements-reshard.txt.
"""

import argparse
import contextlib
import glob
import multiprocessing
import os
import re
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file

COLUMN = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head")
ROW = ("o_proj", "down_proj")


def cut_dim(name):
    """The dimension that tensor parallelism cuts, or None."""
    module = name.split(".")[-2]
    return 0 if module in COLUMN else 1 if module in ROW else None


def stage_of(name, n_layers, pp):
    layer = re.search(r"\.layers\.(\d+)\.", name)
    if layer:
        return int(layer.group(1)) * pp // n_layers
    return 0 if "embed_tokens" in name else pp - 1


def count_layers(names):
    return 1 + max(int(layer) for layer in re.findall(r"\.layers\.(\d+)\.", "\n".join(names)))


def rank_path(folder, rank):
    return os.path.join(folder, f"rank-{rank:05d}.safetensors")


def open_all(stack, pattern):
    return [stack.enter_context(safe_open(path, framework="pt"))
            for path in sorted(glob.glob(pattern))]


def slice_of(file, name, part, n_parts):
    dim = cut_dim(name)
    if dim is None:
        return file.get_tensor(name)
    whole = file.get_slice(name)
    size = whole.get_shape()[dim] // n_parts
    begin, end = part * size, (part + 1) * size
    return whole[begin:end] if dim == 0 else whole[:, begin:end].contiguous()


class Share:
    """What one of several processes writes: all parts of some stages, or some parts of all."""

    def __init__(self, index, n, pp):
        self.index, self.n, self.by_stage = index, n, pp >= n

    def has(self, stage, part):
        return (stage if self.by_stage else part) % self.n == self.index

    def has_stage(self, stage):
        return not self.by_stage or stage % self.n == self.index


def from_parts(files, folder, tp, pp, share):
    where = {name: file for file in files for name in file.keys()}
    n_layers = count_layers(where)
    for stage in range(pp):
        for part in range(tp):
            if not share.has(stage, part):
                continue
            tensors = {name: slice_of(file, name, part, tp) for name, file in where.items()
                       if stage_of(name, n_layers, pp) == stage}
            save_file(tensors, rank_path(folder, stage * tp + part), metadata={"format": "pt"})


def from_ranks(files, folder, tp, pp, share):
    """The ranks of the source are one tensor-parallel group."""
    names = list(files[0].keys())
    n_layers = count_layers(names)
    for stage in filter(share.has_stage, range(pp)):
        shards = {part: {} for part in range(tp) if share.has(stage, part)}
        for name in names:
            if stage_of(name, n_layers, pp) != stage:
                continue
            dim = cut_dim(name)
            if dim is None:
                whole = files[0].get_tensor(name)
                parts = [whole] * tp
            else:
                whole = torch.cat([file.get_tensor(name) for file in files], dim)
                parts = whole.chunk(tp, dim)
            for part, shard in shards.items():
                shard[name] = parts[part].contiguous()
        for part, shard in shards.items():
            save_file(shard, rank_path(folder, stage * tp + part), metadata={"format": "pt"})


def write_share(source, folder, tp, pp, share):
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // share.n))
    with contextlib.ExitStack() as stack:
        ranks = open_all(stack, os.path.join(source, "rank-*.safetensors"))
        if ranks:
            from_ranks(ranks, folder, tp, pp, share)
        else:
            parts = open_all(stack, os.path.join(source, "model*.safetensors"))
            from_parts(parts, folder, tp, pp, share)


def reshard(source, folder, tp, pp, n):
    os.makedirs(folder)
    fork = multiprocessing.get_context("fork")  # the imports are there already
    others = [fork.Process(target=write_share, args=(source, folder, tp, pp, Share(i, n, pp)))
              for i in range(1, n)]
    for other in others:
        other.start()
    write_share(source, folder, tp, pp, Share(0, n, pp))
    for other in others:
        other.join()
    if any(other.exitcode != 0 for other in others):
        sys.exit("a process failed")


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


def compare(a, b):
    """Sentences about what differs."""
    names = [sorted(os.path.basename(path) for path in glob.glob(os.path.join(folder,
             "*.safetensors"))) for folder in (a, b)]
    if names[0] != names[1]:
        yield f"the files are {names[0]} and {names[1]}"
        return
    for name in names[0]:
        with safe_open(os.path.join(a, name), "pt") as one, \
                safe_open(os.path.join(b, name), "pt") as other:
            if sorted(one.keys()) != sorted(other.keys()):
                yield f"{name}: other tensors"
                continue
            for key in one.keys():
                x, y = one.get_tensor(key), other.get_tensor(key)
                if x.dtype != y.dtype or x.shape != y.shape or not torch.equal(bits(x), bits(y)):
                    yield f"{name}: {key} differs"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source")
    parser.add_argument("folder")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--compare", action="store_true")
    arguments = parser.parse_args()
    if arguments.compare:
        differences = list(compare(arguments.source, arguments.folder))
        print("\n".join(differences) or "equal")
        sys.exit(1 if differences else 0)
    reshard(arguments.source, arguments.folder, arguments.tp, arguments.pp, arguments.processes)


if __name__ == "__main__":
    main()
