# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What a reshard must give, element by element from the semantics of layouts.

Built on the oracle of plans (tests/oracle/ferry_layout.py), not on the library: a shard is a list
of global element numbers, and its bytes are picked one element at a time.
"""

import math
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "oracle"))

from ferry_layout import (  # noqa: E402
    Feed, Side, SpecError, cuts_are_even, fits, glob_match, offsets, require, row_major_strides,
    spans,
)
from store import OPAQUE_WORDS, Tensor, ferry_dtype, word_bits  # noqa: E402


# ---- elements ------------------------------------------------------------------------------------


def elements(tensor):
    """Its elements in row-major order, as bytes objects; those of F4 as numbers, two in a byte."""
    bits = word_bits(tensor.word)
    if bits == 4:
        return [half for byte in tensor.data for half in (byte & 15, byte >> 4)]
    size = bits // 8
    return [tensor.data[at:at + size] for at in range(0, len(tensor.data), size)]


def join(word, items):
    if word_bits(word) == 4:
        return bytes(low | high << 4 for low, high in zip(items[::2], items[1::2]))
    return b"".join(items)


def is_opaque(tensor):
    return tensor.word in OPAQUE_WORDS


# ---- placing -------------------------------------------------------------------------------------


def place(side, tensor):
    """The placement of a tensor, None where it is skipped; SpecError where it cannot be."""
    placement = side.place(tensor.name, [] if is_opaque(tensor) else tensor.shape)
    if placement is not None and tensor.word == "F4":
        require(not tensor.shape or cuts_are_even(placement), "%s: odd cut" % tensor.name)
    return placement


def local_tensor(tensor, items, placement, rank):
    shard = placement.shards[rank]
    if is_opaque(tensor):
        return tensor
    held = placement.held(rank)
    shape = shard.shape if shard.flat is None else [len(held)]
    return Tensor(tensor.name, tensor.word, shape, join(tensor.word, [items[i] for i in held]))


def shard_model(tensors, layout):
    """{rank: [Tensor]} of {name: Tensor} under a side; every rank of the mesh is there."""
    side = Side(layout, "layout")
    ranks = {rank: [] for rank in side.ranks}
    for tensor in tensors.values():
        placement = place(side, tensor)
        if placement is None:
            continue
        items = None if is_opaque(tensor) else elements(tensor)
        for rank in placement.shards:
            ranks[rank].append(local_tensor(tensor, items, placement, rank))
    return ranks


def kept_tensors(tensors, layout, subset=None):
    """Those that a layout does not skip (and that fit a subset pattern)."""
    side = Side(layout, "layout")
    return {name: tensor for name, tensor in tensors.items()
            if not side.rule_for(name).get("skip")
            and (subset is None or glob_match(subset, name))}


def join_model(layout, files):
    """The inverse: {name: Tensor} of {rank: {name: Tensor}}. Replicas must agree.

    Elements that no rank holds are an error, so are local shapes that do not fit the layout.
    """
    side, result = Side(layout, "layout"), {}
    expected = {rank: set() for rank in side.ranks}
    for entry in layout["tensors"]:
        name, shape = entry["name"], entry["shape"]
        word = next(file[name].word for file in files.values() if name in file)
        if word in OPAQUE_WORDS:
            holders = list(side.place(name, []).shards)
            copies = [files[rank][name] for rank in holders]
            require(len({copy.key() for copy in copies}) == 1, "%s: copies differ" % name)
            result[name] = copies[0]
        else:
            require(entry["dtype"] == ferry_dtype(word), "%s: %s and %s" % (name, entry, word))
            placement = side.place(name, shape)
            holders = list(placement.shards)
            result[name] = join_tensor(name, word, shape, placement, files)
        for rank in holders:
            expected[rank].add(name)
    for rank, names in expected.items():
        require(set(files[rank]) == names, "rank %d has %s, not %s" % (rank, sorted(files[rank]),
                                                                       sorted(names)))
    return result


def join_tensor(name, word, shape, placement, files):
    whole = [None] * math.prod(shape)
    for rank, shard in placement.shards.items():
        local = files[rank][name]
        held = placement.held(rank)
        expected = shard.shape if shard.flat is None else [len(held)]
        require(local.shape == expected and local.word == word,
                "%s of rank %d is %s, not %s" % (name, rank, local, expected))
        for at, item in zip(held, elements(local)):
            require(whole[at] in (None, item), "%s: copies of element %d differ" % (name, at))
            whole[at] = item
    require(None not in whole, "%s: element %d is nowhere" % (name, whole.index(None)
                                                              if None in whole else -1))
    return Tensor(name, word, shape, join(word, whole))


# ---- tensors of a layout file that are fed from others -------------------------------------------


def fed_tensor(entry, tensors):
    """The Tensor of an entry with `source`, made of boxes of the source's tensors."""
    if isinstance(entry["source"], str):
        source = tensors[entry["source"]]
        return Tensor(entry["name"], source.word, source.shape, source.data)
    n_dims, strides = len(entry["shape"]), row_major_strides(entry["shape"])
    whole, word = [None] * math.prod(entry["shape"]), None
    cache = {}
    for box in entry["source"]:
        source = tensors[box["tensor"]]
        feed = Feed(source.name, box["begin"], box["shape"], box["at"], n_dims)
        require(word in (None, source.word), "%s: dtypes of boxes" % entry["name"])
        require(fits(feed.begin, feed.source_extents, source.shape)
                and fits(feed.at, feed.extents, entry["shape"]), "%s: box" % entry["name"])
        word = source.word
        items = cache.setdefault(source.name, elements(source))
        to = offsets(spans(feed.at, feed.extents), strides)
        start = offsets(spans(feed.begin, feed.source_extents), row_major_strides(source.shape))
        for destination, origin in zip(to, start):
            require(whole[destination] is None, "%s: boxes overlap" % entry["name"])
            whole[destination] = items[origin]
    require(None not in whole, "%s: boxes leave a gap" % entry["name"])
    return Tensor(entry["name"], word, entry["shape"], join(word, whole))


# ---- casts ---------------------------------------------------------------------------------------
#
# A value is taken apart into sign, NaN, infinity or an exact fraction m * 2^e, and put together
# with one rounding. f64 goes through f32 first, as documented.

FLOATS = {  # exponent bits, mantissa bits, bias
    "F64": (11, 52, 1023), "F32": (8, 23, 127), "F16": (5, 10, 15), "BF16": (8, 7, 127),
    "F8_E4M3": (4, 3, 7), "F8_E5M2": (5, 2, 15),
}


def unpack(word, code):
    """(sign, kind, mantissa, exponent): "nan", "inf", or "number" = mantissa * 2^exponent."""
    e_bits, m_bits, bias = FLOATS[word]
    sign, field = code >> (e_bits + m_bits), code >> m_bits & ((1 << e_bits) - 1)
    mantissa = code & ((1 << m_bits) - 1)
    top = (1 << e_bits) - 1
    if word == "F8_E4M3":
        if field == top and mantissa == 7:
            return sign, "nan", 0, 0
    elif field == top:
        return sign, ("nan" if mantissa else "inf"), 0, 0
    if field == 0:
        return sign, "number", mantissa, 1 - bias - m_bits
    return sign, "number", mantissa | 1 << m_bits, field - bias - m_bits


def largest(word):
    """The largest finite code without its sign."""
    e_bits, m_bits, _ = FLOATS[word]
    if word == "F8_E4M3":
        return 0x7E
    return (((1 << e_bits) - 1) << m_bits) - 1


def pack_number(word, mantissa, exponent):
    """The code of mantissa * 2^exponent, to the nearest, ties to even; may be beyond largest()."""
    e_bits, m_bits, bias = FLOATS[word]
    if mantissa == 0:
        return 0
    lowest = 1 - bias - m_bits
    target = max(lowest, mantissa.bit_length() - 1 - m_bits + exponent)
    shift = target - exponent
    if shift <= 0:
        units = mantissa << -shift
    else:
        units, rest = mantissa >> shift, mantissa & ((1 << shift) - 1)
        half = 1 << (shift - 1)
        if rest > half or (rest == half and units & 1):
            units += 1
    # A carry into the next binade, and from subnormal to normal, is right by itself in this form.
    return units + ((target - lowest) << m_bits)


def cast_code(source, target, code):
    """The code in the target type; None stands for "any NaN of this sign" (see is_cast)."""
    e_bits, m_bits, _ = FLOATS[target]
    sign, kind, mantissa, exponent = unpack(source, code)
    high = sign << (e_bits + m_bits)
    if kind == "nan":
        return None
    infinity = ((1 << e_bits) - 1) << m_bits
    if kind == "inf":
        return high | (largest(target) if target == "F8_E4M3" else infinity)
    result = pack_number(target, mantissa, exponent)
    if result > largest(target):
        result = largest(target) if target.startswith("F8") else infinity
    return high | result


def is_cast(source, target, from_data, to_data):
    """Number of the first element of to_data that is not the cast of from_data's, else None."""
    from_size, to_size = word_bits(source) // 8, word_bits(target) // 8
    for i in range(len(from_data) // from_size):
        code = int.from_bytes(from_data[i * from_size:(i + 1) * from_size], "little")
        found = int.from_bytes(to_data[i * to_size:(i + 1) * to_size], "little")
        expected = None
        if source == "F64" and target != "F32":
            middle = cast_code("F64", "F32", code)
            expected = None if middle is None else cast_code("F32", target, middle)
        else:
            expected = cast_code(source, target, code)
        if expected is None:
            sign = code >> (8 * from_size - 1)
            if unpack(target, found)[:2] != (sign, "nan"):
                return i
        elif expected != found:
            return i
    return None


def self_test():
    for value in (0.0, -0.0, 1.0, 1.5, -3.140625, 65504.0, 6e-8, 1e-7, 65519.9, 65520.0, 5.96e-8):
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        try:
            expected = struct.unpack("<H", struct.pack("<e", struct.unpack("<f", struct.pack(
                "<f", value))[0]))[0]
        except OverflowError:
            expected = 0x7C00
        assert cast_code("F32", "F16", bits) == expected, value
    for code in range(256):
        for word in ("F8_E4M3", "F8_E5M2"):
            wide = cast_code(word, "F32", code)
            assert wide is None or cast_code("F32", word, wide) == code, (word, code)
    for code in range(1 << 16):
        for word in ("F16", "BF16"):
            wide = cast_code(word, "F32", code)
            assert wide is None or cast_code("F32", word, wide) == code, (word, code)
    assert cast_code("F32", "F8_E4M3", 0x7F800000) == 0x7E
    assert cast_code("F32", "F8_E4M3", 0x43E80000) == 0x7E  # 464 is a tie: to the even 448
    assert cast_code("F32", "F8_E5M2", 0xFF800000) == 0xFC


__all__ = ["SpecError", "cast_code", "elements", "fed_tensor", "is_cast", "is_opaque", "join_model",
           "kept_tensors", "place", "self_test", "shard_model"]

if __name__ == "__main__":
    self_test()
