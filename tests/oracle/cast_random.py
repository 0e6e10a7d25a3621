# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Casts put into random specs: other types, scales and adds, for some of what the destination wants.

`add_casts` changes a valid spec to another valid one; which tensors it can cast it finds by trying.
"""

import random

import box_random
import ferry_cast
from ferry_boxes import model_of
from ferry_layout import SpecError, dtype_bits, row_major_strides

TYPES = ("f32", "f16", "bf16", "f8e4m3", "f8e5m2")
NUMBERS = {"scale": (1, 2, 0.5, -0.125, 1e30, 3.0e-39), "add": (0, 1, -0.5, 448, 1e-20)}


def draw_cast(rng):
    """Keys of a rule or a parameter. Without another type a number makes it a cast."""
    entry = {"cast": rng.choice(["round", "saturate"])}
    if rng.random() < 0.85:
        entry["dtype"] = rng.choice(TYPES)
    for key, values in NUMBERS.items():
        if rng.random() < 0.3 or (key == "scale" and "dtype" not in entry):
            entry[key] = rng.choice(values)
    return entry


def refill(rng, parameter, dtype):
    for fill in parameter.get("fill", []):
        if "bits" in fill:
            fill["bits"] = "".join(rng.choice("0123456789abcdef")
                                   for _ in range(dtype_bits(dtype) // 4))


def is_valid(spec):
    try:
        model_of(spec).validate()
    except SpecError:
        return False
    return True


def add_casts(rng, spec):
    """Some entries of the destination cast; the same spec, changed."""
    side = spec["destination"]
    entries = side.get("boxes", side.get("rules"))
    for number in rng.sample(range(len(entries)), min(len(entries), rng.randint(1, 5))):
        before = entries[number]
        if "quantize" in before:
            continue
        changed = {key: value for key, value in before.items() if key not in ferry_cast.KEYS}
        changed.update(draw_cast(rng))
        if "fill" in changed:
            changed["fill"] = [dict(fill) for fill in changed["fill"]]
            if "dtype" in changed:
                refill(rng, changed, changed["dtype"])
        entries[number] = changed
        if not is_valid(spec):
            entries[number] = before
    return spec


def draw_quantize(rng, scale):
    if rng.random() < 0.1:
        return {"format": "mxfp8", "scale": scale}
    quantize = {"format": rng.choice(["f8e4m3", "f8e5m2"]), "scale": scale,
                "block": [rng.choice([1, 1, 2, 3, 4, 8]), rng.choice([1, 2, 3, 4, 8, 128])]}
    if rng.random() < 0.5:
        quantize["scale_dtype"] = rng.choice(["f32", "f8e8m0"])
    if rng.random() < 0.4:
        quantize["scale_kind"] = rng.choice(["cover", "floor"])
    return quantize


def scale_parameter(rng, spec, entry, name):
    """A parameter that has the scales of what another one has the codes of, whole."""
    model = model_of(spec)
    ranks = {key: entry[key] for key in ("rank", "ranks") if key in entry}
    holds, at = [], 0
    for tensor in sorted({hold["tensor"] for hold in entry["holds"]}):
        scales = model.by_name[name.replace("*", tensor)]
        strides = row_major_strides(scales.shape)
        if rng.random() < 0.3 and len(strides) == 2:
            strides = [1, scales.shape[0]]
        holds.append({"tensor": scales.name, "begin": [0] * len(strides),
                      "shape": list(scales.shape), "offset": at, "strides": list(strides)})
        at += scales.elements
    as_they_are = {"cast": "round"} if rng.random() < 0.2 else {}  # which is a copy
    return {**ranks, "parameter": "%s of %s" % (name, entry["parameter"]), "elements": at,
            "holds": holds, **as_they_are}


def add_quantized(rng, spec):
    """Some entries of the destination quantize, where they can: from a mesh."""
    side = spec["destination"]
    entries = side.get("boxes", side.get("rules"))
    for number in rng.sample(range(len(entries)), min(len(entries), 6)):
        before, n = entries[number], len(entries)
        for _ in range(4):
            name = "*_scale%d" % number
            changed = {key: value for key, value in before.items()
                       if key not in ("dtype", "fill", *ferry_cast.KEYS)}
            changed["quantize"] = draw_quantize(rng, name)
            if "fill" in before:
                changed["partial"] = True
            entries[number] = changed
            try:
                if "boxes" in side:
                    entries.append(scale_parameter(rng, spec, changed, name))
            except (SpecError, KeyError):
                pass
            if is_valid(spec):
                break
            entries[number] = before
            del entries[n:]
    return spec


def aligned_sizes(rng, extent, parts, block):
    """Lengths of so many parts, which end between blocks."""
    blocks = -(-extent // block)
    cuts = sorted(rng.randint(0, blocks) for _ in range(parts - 1))
    ends = [min(extent, cut * block) for cut in [0, *cuts, blocks]]
    return [end - begin for begin, end in zip(ends, ends[1:])]


def aligned_box(rng, shape, block):
    begin, lengths = [], []
    for extent, step in zip(shape, [1] * (len(shape) - 2) + block):
        blocks = -(-extent // step)
        first = rng.randint(0, blocks - 1)
        end = min(extent, step * rng.randint(first + 1, blocks))
        begin.append(first * step)
        lengths.append(end - first * step)
    return begin, lengths


def draw_quantized_boxes(rng):
    """Tensors on a mesh that a destination in boxes quantizes, and wants the scales of."""
    block = [rng.choice([1, 2, 3]), rng.choice([1, 2, 4])]
    tp, dp = rng.randint(1, 3), rng.randint(1, 3)
    spec = {"format": "ferry.spec/1", "tensors": [], "source": {
        "mesh": [["tp", tp], ["dp", dp]], "rules": []}, "destination": {"boxes": []}}
    for number in range(rng.randint(1, 3)):
        lead = [rng.randint(1, 3)] if rng.random() < 0.3 else []
        shape = [*lead, rng.randint(1, 9), rng.randint(1, 9)]
        name, d = "w%d" % number, rng.randint(len(lead), len(lead) + 1)
        spec["tensors"].append({"name": name, "shape": shape,
                                "dtype": rng.choice(["f32", "f16", "bf16"])})
        sizes = aligned_sizes(rng, shape[d], tp, block[d - len(lead)])
        spec["source"]["rules"].append({"match": name, "shard": [
            {"dim": d, "axis": "tp", "sizes": sizes}]})
    names = {tensor.name: tensor for tensor in model_of(
        {**spec, "destination": {"mesh": [], "rules": [{"match": "*"}]}}).tensors}
    entries = spec["destination"]["boxes"]
    for number in range(rng.randint(1, 4)):
        dtype = rng.choice(spec["tensors"])["dtype"]
        parts = []
        for tensor in names.values():
            if tensor.dtype == dtype:
                whole = [0] * len(tensor.shape), tensor.shape
                for _ in range(rng.choice([1, 1, 2])):
                    parts.append(box_random.Part(tensor.name, *(
                        whole if rng.random() < 0.5 else aligned_box(rng, tensor.shape, block))))
        entry = box_random.draw_parameter(rng, names, parts, "destination", "p%d" % number)
        entry.pop("dtype", None)
        for fill in entry.get("fill", []):
            fill.pop("bits", None)
        ranks = rng.sample(range(tp * dp + 3), rng.randint(1, 2))
        entry = {"ranks": ranks, **entry}
        if rng.random() < 0.8:
            entry["quantize"] = {**draw_quantize(rng, "*_scale"), "block": block}
            entry["quantize"].pop("scale_dtype", None)  # one format: the names of scales are shared
            entry["quantize"].pop("scale_kind", None)
            entry["quantize"]["format"] = "f8e4m3"
            entries.append(entry)
            if rng.random() < 0.8:
                entries.append(scale_parameter(rng, spec, entry, "*_scale"))
        else:
            entries.append(entry)
    return spec


def quantized_boxes(seed):
    rng = random.Random("quantized boxes %d" % seed)
    while True:
        try:
            spec = draw_quantized_boxes(rng)
        except SpecError:
            continue
        if "quantize" in str(spec) and is_valid(spec):
            return spec


def with_casts(seed, spec):
    """Of three seeds one has casts: those of the others stay what they were."""
    rng = random.Random("casts %d" % seed)
    if seed % 6 == 3 and "boxes" not in spec["source"]:
        spec = add_quantized(rng, spec)
    return spec if seed % 3 else add_casts(rng, spec)
