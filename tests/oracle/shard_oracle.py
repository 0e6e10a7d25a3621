# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Is what a plan says of the ranks' shards right for a spec?

`check_shards` takes the records of tests/property/plan_shards.c (one a rank, side and tensor) and
holds them against the oracle's own layouts, element by element. `lost_elements` says what no
rank that is left can send. Both know layouts only, and nothing of the planner.
"""

import math

from ferry_boxes import model_of
from ferry_cast import width
from ferry_layout import offsets, row_major_strides, spans

MOST_PROBLEMS = 20


def check_shards(spec, records, subset=None, lost=()):
    """Everything that is wrong with the records, as a list of sentences."""
    model = model_of(spec, lost)
    expected = expected_order(model, subset)
    found = [(record["side"], record["rank"], record["tensor"]) for record in records]
    if found != expected:
        missing = [key for key in expected if key not in set(found)]
        extra = [key for key in found if key not in set(expected)]
        return ["the shards are not those of the spec, in its order: missing %s, too many %s"
                % (missing[:MOST_PROBLEMS], extra[:MOST_PROBLEMS])]
    problems = []
    for record in records:
        problems.extend(check_shard(model, record))
        if len(problems) > MOST_PROBLEMS:
            break
    return problems


def expected_order(model, subset):
    """(side, rank, tensor) of every shard, as plan_shards.c visits them."""
    wanted = model.wanted(subset, made=True)
    sources = {tensor.values.name if tensor.values else feed.source
               for tensor in wanted if not model.is_made(tensor)
               for feed in model.feeds(tensor)}
    beside = {}  # the scales of matrices, with whoever makes nvfp4 by them
    for tensor in wanted:
        values, how = tensor.values or tensor, tensor.quantize or getattr(
            tensor.given and model.change(tensor), "quantize", None)
        if how is not None and how.is_f4 and values.quantized_at == "sender":
            beside.setdefault(values.given.name, set()).update(model.at_source(values.name).shards)
    held = {
        "source": [(tensor.name, model.at_source(tensor.name).shards if tensor.name in sources
                    else beside[tensor.name])
                   for tensor in model.tensors if tensor.name in sources or tensor.name in beside],
        "destination": [(tensor.name, model.at_destination(tensor.name).shards)
                        for tensor in wanted if tensor.codes is None],
    }
    return [(side, rank, name) for rank in range(model.world) for side in ("source", "destination")
            for name, shards in held[side] if rank in shards]


def check_shard(model, record):
    tensor = model.by_name[record["tensor"]]
    label = "%s shard of %s at rank %d: " % (record["side"], tensor.name, record["rank"])
    at_source = record["side"] == "source"
    place = model.at_source if at_source else model.at_destination
    shard = place(tensor.name).shards[record["rank"]]
    whole = [0, math.prod(shard.shape)]
    elements = whole[1] if shard.flat is None else shard.flat[1] - shard.flat[0]
    change = None if at_source else model.change(tensor)
    bits = width(change.wanted) if change else tensor.bits
    expected = {
        "bits": bits,
        "bytes": -(-elements * bits // 8),
        "is_flat": shard.flat is not None,
        "flat": whole if shard.flat is None else list(shard.flat),
        "global": list(tensor.shape),
        "local": shard.shape,
    }
    problems = [label + "%s is %s, not %s" % (key, record[key], value)
                for key, value in expected.items() if record[key] != value]
    axes = [expand(pieces) for pieces in record["pieces"]]
    if axes != shard.axes:
        problems.append(label + "its pieces %s are %s, not %s"
                        % (record["pieces"], axes, shard.axes))
    if at_source and record["origins"]:
        problems.append(label + "has origins %s" % record["origins"])
    return problems if at_source else problems + check_origins(model, tensor, record, label)


def expand(pieces):
    """The global indices of local 0, 1, ..., or None if the pieces do not follow each other."""
    indices = []
    for local, begin, length in pieces:
        if local != len(indices) or length == 0:
            return None
        indices.extend(range(begin, begin + length))
    return indices


def check_origins(model, tensor, record, label):
    feeds, expected = model.feeds(tensor), model.origin(tensor)
    found = [None] * tensor.elements
    if len(record["origins"]) != len(feeds):
        return [label + "has %d origins, not %d" % (len(record["origins"]), len(feeds))]
    for number, origin in enumerate(record["origins"]):
        source = model.by_name[origin["source"]]
        if origin["source_global"] != list(source.shape) or source.name != feeds[number].source:
            return [label + "origin %d is wrong: %s" % (number, origin)]
        to = offsets(spans(origin["at"], origin["length"]), row_major_strides(tensor.shape))
        start = offsets(spans(origin["begin"], origin["source_length"]),
                        row_major_strides(source.shape))
        if len(to) != len(start):
            return [label + "the boxes of origin %d differ in size: %s" % (number, origin)]
        for destination, offset in zip(to, start):
            found[destination] = (number, offset)
    if found != expected:
        return [label + "origins %s do not make it" % record["origins"]]
    return []


def lost_elements(spec, lost, subset=None):
    """{tensor: {(source tensor, offset in it): its holders}} of what only lost ranks held."""
    before, after = model_of(spec), model_of(spec, lost)
    missing = {}
    for tensor in after.wanted(subset):
        origin, feeds, wanted = after.origin(tensor), after.feeds(tensor), set()
        placement = after.at_destination(tensor.name)
        for rank in placement.shards:
            wanted.update(placement.held(rank))
        for destination in wanted:
            feed, offset = origin[destination]
            source = feeds[feed].source
            if after.source_masks(source)[offset] == 0:
                holders = ranks_of(before.source_masks(source)[offset])
                missing.setdefault(tensor.name, {})[source, offset] = holders
    return missing


def ranks_of(mask):
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]
