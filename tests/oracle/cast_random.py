# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Casts put into random specs: other types, scales and adds, for some of what the destination wants.

`add_casts` changes a valid spec to another valid one; which tensors it can cast it finds by trying.
"""

import copy
import math
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
    """Some entries of the destination quantize, where they can."""
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
    return add_f4(spec)


def f4_parameters(rng, name, shape, quantize):
    """Whole blocks of it, row-major or with its rows apart, the scales of its matrices, and of its blocks
    or all."""
    begin, lengths = aligned_box(rng, shape, [1, 16])
    pitch = lengths[-1] + rng.choice([0, 0, 2])
    strides = row_major_strides([*lengths[:-1], pitch])
    elements = math.prod(lengths[:-1]) * pitch
    yield {"parameter": name, "elements": elements, "quantize": quantize, "partial": True, "holds": [
        {"tensor": name, "begin": begin, "shape": lengths, "offset": 0, "strides": list(strides)}]}
    lead, step = shape[:-2], rng.choice([1, 1, 2])
    elements = 1 + math.prod(lead) * step
    strides = [step] if lead else []
    yield {"parameter": "matrices of " + name, "elements": elements, "partial": True, "holds": [
        {"tensor": name + ".g", "begin": [0] * len(lead), "shape": lead, "offset": rng.randint(0, 1),
         "strides": strides}]}
    first, many = [0] * len(shape), [*shape[:-1], -(-shape[-1] // 16)]
    if rng.random() < 0.6:
        first = [*begin[:-1], begin[-1] // 16]
        many = [*lengths[:-1], -(-lengths[-1] // 16)]
    yield {"parameter": "scales of " + name, "elements": math.prod(many), "holds": [
        {"tensor": name + "_s", "begin": first, "shape": many, "offset": 0,
         "strides": list(row_major_strides(many))}]}


def of_matrices(cut, lead):
    """The same cut of the scales of matrices."""
    return {"shard": [entry for entry in cut.get("shard", []) if entry["dim"] < len(lead)]}


def f4_source(rng, spec, name, shape, given, lead):
    """Senders have whole blocks, or receivers must make them: of values in boxes, flat, cut anywhere
    or made of parts."""
    source = spec["source"]
    if "boxes" in source:
        source_of_codes(rng, spec, name, shape, [1])
        put_source(rng, source, given, lead)
        return
    axes = [axis for axis, size in source["mesh"] if size > 1]
    way = rng.choice(["whole", "whole", "anywhere", "flat" if axes else "anywhere", "parts"])
    cut = draw_shards(rng, source, shape, [1, 16] if way == "whole" else [1, 1])
    if way == "flat":
        cut = {"flat": {"axis": rng.choice(axes)}}
    if way == "parts":
        source_of_codes(rng, spec, name, shape, [1])
    else:
        source["rules"].insert(0, {"match": name, **cut})
    source["rules"].insert(0, {"match": given, **of_matrices(cut, lead)})


def put_f4(rng, spec):
    destination = spec["destination"]
    name = "half%d" % len(spec["tensors"])
    given, lead = name + ".g", [rng.randint(1, 3)] if rng.random() < 0.3 else []
    shape = [*lead, rng.randint(1, 9), 2 * rng.randint(1, 40)]
    spec["tensors"] += [
        {"name": name, "shape": shape, "dtype": rng.choice(["f32", "f16", "bf16"])},
        {"name": given, "shape": lead, "dtype": "f32"}]
    f4_source(rng, spec, name, shape, given, lead)
    quantize = {"format": "nvfp4", "scale": "*_s", "tensor_scale": "*.g"}
    if "boxes" in destination:
        ranks = sorted({rank for entry in destination["boxes"]
                        for rank in box_random.listed_ranks(entry)})
        some = rng.sample(ranks, rng.randint(1, len(ranks)))
        for entry in f4_parameters(rng, name, shape, quantize):
            destination["boxes"].append({"ranks": some, **entry})
            some = some if rng.random() < 0.8 else rng.sample(some, rng.randint(1, len(some)))
        return
    cut = draw_shards(rng, destination, shape, [1, 16])
    here = rng.choice([{"skip": True}, draw_shards(rng, destination, lead, [1, 1]),
                       of_matrices(cut, lead), of_matrices(cut, lead)])
    destination["rules"][:0] = [
        {"match": name, "quantize": quantize, **cut}, {"match": given, **here}]


def add_f4(spec):
    """Of some specs one with a tensor that becomes nvfp4, by a scale of each of its matrices."""
    rng = random.Random("f4 %s" % spec)
    if rng.random() < 0.6:
        return spec
    made = copy.deepcopy(spec)
    put_f4(rng, made)
    return made if is_valid(made) else spec


def codes_for(rng, spec, scale_name=None, is_f4=False):
    """A matrix of codes and its scales, for both sides, put in front of all rules. Of f4 the scales of
    its matrices follow."""
    number = len(spec["tensors"])
    name = "codes%d" % number
    scale = (scale_name or rng.choice(["%s.s", "s.%s"])) % name
    block = [rng.choice([1, 2, 3, 4]), rng.choice([1, 2, 3, 4, 32])]
    lead = [rng.randint(1, 3)] if rng.random() < 0.3 else []
    shape = [*lead, rng.randint(1, 9), rng.randint(1, 9)]
    if is_f4:
        block, shape[-1] = [1, 16], 2 * rng.randint(1, 26)
        spec["tensors"] += [
            {"name": name, "shape": shape, "dtype": "f4"},
            {"name": scale, "shape": [*shape[:-1], -(-shape[-1] // 16)], "dtype": "f8e4m3"},
            {"name": scale + "_2", "shape": lead, "dtype": "f32"}]
        return name, scale, block, shape, spec["tensors"][-2]["shape"]
    of_scales = [*lead, *(-(-n // b) for n, b in zip(shape[-2:], block))]
    spec["tensors"] += [
        {"name": name, "shape": shape, "dtype": rng.choice(["f8e4m3", "f8e5m2"])},
        {"name": scale, "shape": of_scales, "dtype": rng.choice(["f32", "f8e8m0"])}]
    return name, scale, block, shape, of_scales


def draw_shards(rng, side, shape, block):
    """Cuts of some dimension over some axis, between blocks."""
    axes = [axis for axis, size in side["mesh"] if size > 1]
    if not axes or not shape or rng.random() < 0.3:
        return {}
    d, axis = rng.randrange(len(shape)), rng.choice(axes)
    sizes = aligned_sizes(rng, shape[d], dict(side["mesh"])[axis],
                          ([1] * len(shape) + block)[-len(shape):][d])
    return {"shard": [{"dim": d, "axis": axis, "sizes": sizes}]}


def source_parameter(rng, tensor, shape, is_f4=False):
    """All of it, in any order; of f4 with rows of bytes."""
    strides, order, step = [0] * len(shape), list(range(len(shape))), 1
    rng.shuffle(order)
    for d in sorted(order, key=lambda d: d != len(shape) - 1) if is_f4 else order:
        strides[d], step = step if shape[d] > 1 else 0, step * shape[d]
    strides = [max(1, s) for s in strides]
    return {"parameter": "of " + tensor, "elements": step, "holds": [
        {"tensor": tensor, "begin": [0] * len(shape), "shape": shape, "offset": 0,
         "strides": strides}]}


def in_parts(rng, spec, tensor, shape, unit, is_codes):
    """What the source has of a tensor: itself, or what it is made of, one tensor or two."""
    d = max(0, len(shape) - rng.randint(1, 2))
    if rng.random() < 0.5 or shape[d] < 2:
        return [(tensor, shape)]
    cut = rng.randint(1, shape[d] - 1)
    if rng.random() < 0.5:
        cut = min(max(1, cut // unit) * unit, shape[d] - 1)
    is_one = is_codes and rng.random() < 0.3  # scales are copied once more, which joins boxes
    entry = next(entry for entry in spec["tensors"] if entry["name"] == tensor)
    if entry["dtype"] == "f4" and d == len(shape) - 1:
        cut += cut % 2
        if cut == shape[d]:
            return [(tensor, shape)]
    entry["source"], parts = [], {}
    for number, (begin, end) in enumerate(((0, cut), (cut, shape[d]))):
        name = tensor + ".part" + ("" if is_one else str(number))
        its = [*shape[:d], end - begin, *shape[d + 1:]]
        at = [begin if k == d else 0 for k in range(len(shape))]
        entry["source"].append({"tensor": name, "begin": at if is_one else [0] * len(shape),
                                "shape": its, "at": at})
        parts[name] = shape if is_one else its
    spec["tensors"] += [{"name": name, "shape": its, "dtype": entry["dtype"], "only": "source"}
                        for name, its in parts.items()]
    return list(parts.items())


def add_codes(rng, spec, with_parts):
    source, destination = spec["source"], spec["destination"]
    is_f4 = rng.random() < 0.4
    name, scale, block, shape, of_scales = codes_for(rng, spec, is_f4=is_f4)
    matrices = [(scale + "_2", shape[:-2], 1)] if is_f4 else []
    for whole, its, unit in ((name, shape, 2 if is_f4 else rng.choice(block)), (scale, of_scales, 1),
                             *matrices):
        for tensor, part in (in_parts(rng, spec, whole, its, unit, whole == name)
                             if with_parts and its else [(whole, its)]):
            if "boxes" in source:
                rank = rng.choice(source["boxes"][0].get("ranks") or [source["boxes"][0]["rank"]])
                source["boxes"].append({"rank": rank, **source_parameter(
                    rng, tensor, part, whole == name and is_f4)})
            else:
                source["rules"].insert(0, {"match": tensor, **draw_shards(
                    rng, source, part, [1, 2 if whole == name and is_f4 else 1])})
    wanted = {"match": name, "dtype": rng.choice(["f32", "f16", "bf16"]),
              **draw_shards(rng, destination, shape, block),
              "dequantize": {"scale": scale.replace(name, "*"), "block": block}}
    here = {"skip": True} if rng.random() < 0.7 else {}
    destination["rules"][:0] = [wanted, *({"match": its, **here} for its in
                                          [scale, *(whole for whole, _, _ in matrices)])]
    return spec


def add_dequantized(rng, spec):
    """The same spec with codes that its destination dequantizes."""
    if "boxes" in spec["destination"]:
        return add_dequantized_boxes(rng, spec)
    for _ in range(rng.randint(1, 3)):
        made = add_codes(rng, copy.deepcopy(spec), True)
        spec = made if is_valid(made) else add_codes(rng, spec, False)
    return spec


def put_source(rng, source, tensor, shape, is_f4=False):
    """A tensor, cut anywhere, or in the memory of some rank."""
    if "boxes" in source:
        rank = rng.choice(source["boxes"][0].get("ranks") or [source["boxes"][0]["rank"]])
        source["boxes"].append({"rank": rank, **source_parameter(rng, tensor, shape, is_f4)})
    else:
        cuts = draw_shards(rng, source, shape, [1, 2 if is_f4 else 1])
        source["rules"].insert(0, {"match": tensor, **cuts})


def quantized_boxes_of(rng, name, shape, block, quantize):
    """Whole blocks of it, and in another parameter their scales."""
    begin, lengths = aligned_box(rng, shape, block)
    blocks = [1] * (len(shape) - 2) + block
    first = [b // size for b, size in zip(begin, blocks)]
    many = [-(-n // size) for n, size in zip(lengths, blocks)]
    for tensor, at, extent, more in ((name, begin, lengths, {"quantize": quantize}),
                                     (name + "_s", first, many, {})):
        yield {"parameter": tensor, "elements": math.prod(extent), **more, "holds": [
            {"tensor": tensor, "begin": at, "shape": extent, "offset": 0,
             "strides": list(row_major_strides(extent))}]}


def put_parted(rng, spec):
    """A tensor that is quantized, and made of others, which may be made of others too."""
    source, destination = spec["source"], spec["destination"]
    name, lead = "parted%d" % len(spec["tensors"]), [rng.randint(1, 3)] if rng.random() < 0.3 else []
    shape = [*lead, rng.randint(2, 9), rng.randint(2, 9) * rng.choice([1, 1, 9])]
    quantize = draw_quantize(rng, "*_s")
    block = quantize.get("block", [1, 32])
    spec["tensors"].append({"name": name, "shape": shape, "dtype": rng.choice(["f32", "f16", "bf16"])})
    parts = [(name, shape)]
    while len(parts) == 1:
        parts = in_parts(rng, spec, name, shape, 1, False)
    for part, its in parts:
        for tensor, there in in_parts(rng, spec, part, its, 1, True):
            put_source(rng, source, tensor, there)
    if "boxes" not in destination:
        destination["rules"].insert(0, {"match": name, "quantize": quantize,
                                        **draw_shards(rng, destination, shape, block)})
        return
    ranks = sorted({rank for entry in destination["boxes"]
                    for rank in box_random.listed_ranks(entry)})
    some = rng.sample(ranks, rng.randint(1, len(ranks)))
    codes, scales = quantized_boxes_of(rng, name, shape, block, quantize)
    destination["boxes"].append({"ranks": some, **codes})
    scaled = rng.sample(some, rng.randint(0, len(some)))
    if scaled:
        destination["boxes"].append({"ranks": scaled, **scales})


def add_parted(rng, spec):
    """The same spec with a tensor made of others that its destination quantizes, if it can be."""
    made = copy.deepcopy(spec)
    put_parted(rng, made)
    return made if is_valid(made) else spec


def source_of_codes(rng, spec, name, shape, block):
    """What the source has of codes, or of scales."""
    is_f4 = any(entry["name"] == name and entry["dtype"] == "f4" for entry in spec["tensors"])
    for tensor, part in (in_parts(rng, spec, name, shape, rng.choice(block), "codes" in name[:5])
                         if shape and rng.random() < 0.5 else [(name, shape)]):
        put_source(rng, spec["source"], tensor, part, is_f4)


def dequantized_parameter(rng, tensors, parts, number, block, scale):
    entry = box_random.draw_parameter(rng, tensors, parts, "destination", "v%d" % number, True)
    entry["dtype"] = rng.choice(["f32", "f16", "bf16"])
    refill(rng, entry, entry["dtype"])
    entry["dequantize"] = {"scale": scale, "block": block}
    return entry


def draw_dequantized_boxes(rng, spec):
    """The same spec, of a destination in boxes, with codes that parameters dequantize, cut anywhere
    and said in loops."""
    block, types = None, rng.choice(["f32", "f8e8m0"])
    shapes, is_f4 = {}, rng.random() < 0.4
    for _ in range(rng.randint(1, 2)):
        name, scale, its, shape, of_scales = codes_for(rng, spec, "s.%s", is_f4)
        block = block or its
        if not is_f4:
            of_scales[-2:] = [-(-n // b) for n, b in zip(shape[-2:], block)]
            spec["tensors"][-1]["dtype"] = types
        source_of_codes(rng, spec, name, shape, [2] if is_f4 else block)
        source_of_codes(rng, spec, scale, of_scales, [1])
        if is_f4:
            source_of_codes(rng, spec, scale + "_2", shape[:-2], [1])
        shapes[name] = shape
    tensors = {tensor.name: tensor for tensor in model_of(
        {**spec, "destination": {"mesh": [], "rules": [{"match": "*"}]}}).tensors}
    entries = spec["destination"]["boxes"]
    ranks = sorted({rank for entry in entries for rank in box_random.listed_ranks(entry)})
    for number in range(rng.randint(1, 3)):
        dtype = rng.choice([tensors[name].dtype for name in shapes])
        parts = []
        for name, shape in shapes.items():
            if tensors[name].dtype == dtype:
                step = 2 if is_f4 else 1
                for begin, lengths in ([box_random.draw_box(rng, shape, step)] if rng.random() < 0.5
                                       else box_random.draw_grid(rng, shape, step, 4)):
                    parts.append(box_random.Part(name, begin, lengths))
        entries.append({"ranks": rng.sample(ranks, rng.randint(1, len(ranks))),
                        **dequantized_parameter(rng, tensors, parts, number, block, "s.*")})
    return spec


def add_dequantized_boxes(rng, spec):
    """The same, or the spec as it is where what was drawn does not fit into it."""
    for _ in range(4):
        try:
            made = draw_dequantized_boxes(rng, copy.deepcopy(spec))
        except SpecError:
            continue
        if is_valid(made):
            return made
    return spec


def dequantized_boxes(seed):
    rng = random.Random("dequantized boxes %d" % seed)
    while True:
        spec = box_random.random_box_spec(rng.randrange(1 << 30))
        made = add_dequantized_boxes(rng, spec) if "boxes" in spec["destination"] else spec
        if made is not spec:
            return made


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
    return add_f4(spec)


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
    if seed % 6 == 3:
        spec = add_quantized(rng, spec)
    if seed % 12 == 6:
        spec = add_dequantized(rng, spec)
    return spec if seed % 3 else add_casts(rng, spec)
