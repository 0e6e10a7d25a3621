# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Who computes with blocks that share scales, and what that takes there: "blocks" of ferry.plan/1.

A second reading of docs/formats.md: of a sender of codes the scales of its shard, stored and as
divisors in f32; of a receiver that multiplies the scales; of one that makes codes their values.
"""

import math
from collections import Counter

from ferry_cast import width


def is_in_boxes(model):
    return hasattr(model.destination, "parameters")


def n_blocks(how, shard, shape):
    """Of a shard of whole blocks."""
    return math.prod(map(len, how.blocks_of(shard.axes, shape, lambda holds, what: None)))


def formats_of(model, tensor, subset):
    """How its codes, or scales of them, are wanted."""
    if not is_in_boxes(model):
        wanted = [scales for scales in model.tensors if scales.values is tensor
                  and (tensor.is_in(subset) or scales.is_in(subset))]
        placement = model.at_destination(tensor.name)
        return [scales.quantize for scales in wanted if placement and placement.shards]
    found = {}
    held = {box.tensor for parameters in model.destination.parameters.values()
            for parameter in parameters for box in parameter.boxes if math.prod(box.shape)}
    for how, is_wanted in [(how, tensor.is_in(subset)) for how, _, _ in quantized_boxes(model, tensor)
                           ] + [(scales.quantize, scales.is_in(subset)) for scales in model.tensors
                                if scales.values is tensor and scales.name in held]:
        if is_wanted:
            found[str(how.printed())] = how
    return list(found.values())


def quantized_boxes(model, tensor):
    return [(parameter.quantize, rank, math.prod(box.shape))
            for rank, parameters in model.destination.parameters.items()
            for parameter in parameters if parameter.quantize is not None
            for box in parameter.boxes if box.tensor == tensor.name and math.prod(box.shape)]


def bytes_of(model, tensor, subset):
    """By rank."""
    taken = Counter()
    if tensor.staged is not None and is_in_boxes(model):
        for rank, parameters in model.destination.parameters.items() if tensor.is_in(subset) else ():
            taken[rank] = sum(math.prod(box.shape) * width(staged.dtype) // 8
                              for parameter in parameters for box in parameter.boxes
                              for staged in (tensor.staged, tensor.staged_of_matrices)
                              if staged is not None and box.tensor == staged.name)
    elif tensor.staged is not None:
        if tensor.is_in(subset) and model.at_destination(tensor.name) is not None:
            how, scales = model.change(tensor).how, tensor.staged
            for rank, shard in model.at_destination(tensor.name).shards.items():
                taken[rank] = n_blocks(how, shard, tensor.shape) * width(scales.dtype) // 8
                if tensor.staged_of_matrices is not None:
                    taken[rank] += 4 * math.prod(map(len, shard.axes[:-2]))
    elif tensor.quantized_at == "receiver":
        if not tensor.is_in(subset):
            return taken
        if is_in_boxes(model):
            for _, rank, elements in quantized_boxes(model, tensor):
                taken[rank] += elements * tensor.bits // 8
        else:
            for rank in model.at_destination(tensor.name).shards:
                taken[rank] = len(model.at_destination(tensor.name).held(rank)) * tensor.bits // 8
    else:
        for how in formats_of(model, tensor, subset):
            for rank, shard in model.at_source(tensor.name).shards.items():
                blocks = n_blocks(how, shard, tensor.shape)
                taken[rank] += blocks * width(how.scales) // 8
                taken[rank] += math.prod(shard.shape) // 2 if how.is_f4 else 4 * blocks
    return taken


def block_work(model, subset=None):
    """The list, without ranks that take nothing."""
    values = {scales.values.name for scales in model.tensors if scales.values is not None}
    listed = []
    for tensor in model.tensors:
        if tensor.staged is None and tensor.name not in values:
            continue
        taken = [bytes_ for bytes_ in bytes_of(model, tensor, subset).values() if bytes_]
        if taken:
            listed.append({
                "tensor": tensor.name, "part": "codes" if tensor.staged is None else "values",
                "at": "receiver" if tensor.staged is not None else tensor.quantized_at,
                "ranks": len(taken), "staging_bytes": max(taken)})
    return listed
