# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Checkpoints on disk: safetensors files, logical and sharded folders, as docs/formats.md has them.

An independent reader and writer. What ferry writes is read strictly: every rule of the file form is
checked. What ferry is to read is written in all the ways that other programs write it.
"""

import json
import math
import os
import re
import struct
from pathlib import Path

from xxh3 import xxh3_64

LAYOUT, INDEX, SINGLE = "ferry.layout.json", "model.safetensors.index.json", "model.safetensors"
METADATA = "__metadata__"
CHECKSUM_KEY = "ferry.xxh3."

# Words of safetensors files: bits of an element and ferry's own name.
WORDS = {
    "F64": (64, "f64"), "F32": (32, "f32"), "F16": (16, "f16"), "BF16": (16, "bf16"),
    "F8_E4M3": (8, "f8e4m3"), "F8_E5M2": (8, "f8e5m2"), "F8_E8M0": (8, "f8e8m0"), "F4": (4, "f4"),
    "I64": (64, "i64"), "U64": (64, "u64"), "I32": (32, "i32"), "U32": (32, "u32"),
    "I16": (16, "i16"), "U16": (16, "u16"), "I8": (8, "i8"), "U8": (8, "u8"), "BOOL": (8, "bool"),
    "C64": (64, "c64"),
}
# Words that ferry has no name for, with the bits that writers give them.
OTHER_WORDS = {"F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I128": 128, "U24": 24}
OPAQUE_WORDS = {"F6_E2M3": 6, "F6_E3M2": 6}


class StoreError(Exception):
    """A file is not as docs/formats.md says."""


def require(condition, sentence):
    if not condition:
        raise StoreError(sentence)


def word_bits(word):
    if word in WORDS:
        return WORDS[word][0]
    bits = OTHER_WORDS.get(word) or OPAQUE_WORDS.get(word)
    require(bits is not None, "the dtype %s is unknown here" % word)
    return bits


def ferry_dtype(word):
    """The dtype that a layout file says for it; None where it cannot be cut."""
    if word in WORDS:
        return WORDS[word][1]
    return None if word in OPAQUE_WORDS else "bytes:%d" % (word_bits(word) // 8)


class Tensor:
    """One tensor of a file."""

    __slots__ = ("name", "word", "shape", "data")

    def __init__(self, name, word, shape, data):
        self.name, self.word, self.shape, self.data = name, word, list(shape), data
        bits = math.prod(self.shape) * word_bits(word)
        require(bits == 8 * len(data), "%r: %s of shape %s has %d bytes" % (name, word, self.shape,
                                                                            len(data)))

    def key(self):
        return self.name, self.word, tuple(self.shape), self.data

    def __repr__(self):
        return "%r: %s %s, %d bytes" % (self.name, self.word, self.shape, len(self.data))


class File:
    """A safetensors file in memory: tensors by offset, metadata ({} where there is none)."""

    def __init__(self, tensors, metadata):
        self.tensors = tensors
        self.metadata = metadata
        self.by_name = {tensor.name: tensor for tensor in tensors}

    def checksums(self):
        """{tensor: value} of the recorded checksums."""
        return {key[len(CHECKSUM_KEY):]: value for key, value in self.metadata.items()
                if key.startswith(CHECKSUM_KEY)}

    def own_metadata(self):
        return {key: value for key, value in self.metadata.items() if not key.startswith("ferry.")}


# ---- reading -------------------------------------------------------------------------------------


def unique_keys(pairs):
    require(len({key for key, _ in pairs}) == len(pairs), "a key appears twice")
    return dict(pairs)


def parse_json(text, about):
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=unique_keys)
    except ValueError as error:
        raise StoreError("%s: %s" % (about, error)) from None


def split_file(data, about):
    """(text of the header, data section) of a file's bytes."""
    require(len(data) >= 8, "%s: has no header" % about)
    length = struct.unpack("<Q", data[:8])[0]
    require(length <= len(data) - 8, "%s: the header ends behind the file" % about)
    return data[8:8 + length], data[8 + length:]


def parse_file(data, about):
    """A File of the bytes of a file, which must have the strict form that ferry writes."""
    text, section = split_file(data, about)
    header = parse_json(text, about)
    metadata = header.pop(METADATA, {})
    require(all(isinstance(value, str) for value in metadata.values()),
            "%s: metadata are not texts" % about)
    tensors, at = [], 0
    for name, entry in header.items():
        require(set(entry) == {"dtype", "shape", "data_offsets"}, "%s: keys of %r" % (about, name))
        begin, end = entry["data_offsets"]
        require(begin == at and end <= len(section),
                "%s: %r lies at [%d, %d], expected to begin at %d" % (about, name, begin, end, at))
        tensors.append(Tensor(name, entry["dtype"], entry["shape"], section[begin:end]))
        at = end
    require(at == len(section), "%s: %d bytes behind the tensors" % (about, len(section) - at))
    check_form(tensors, 8 + len(text), about)
    if METADATA in header or metadata:
        require(list(metadata) == sorted(metadata, key=str.encode), "%s: metadata order" % about)
    require(data == form_file(tensors, metadata), "%s: is not in the compact form" % about)
    return File(tensors, metadata)


def check_form(tensors, data_begin, about):
    """Data at a multiple of 8, tensors by element size and name, each at a multiple of its own."""
    require(data_begin % 8 == 0, "%s: data begin at %d" % (about, data_begin))
    require(tensors == in_form_order(tensors), "%s: tensors are not by element size and name: %s"
            % (about, tensors))
    at, aligned = 0, True
    for tensor in tensors:
        bits = word_bits(tensor.word)
        size = max(8, bits) // 8
        # Behind elements of 3 bytes, say, no promise can hold without holes.
        aligned = aligned and size & (size - 1) == 0 and bits != 6
        require(not aligned or at % size == 0, "%s: %s begins at %d" % (about, tensor, at))
        at += len(tensor.data)


def in_form_order(tensors):
    return sorted(tensors, key=lambda t: (-word_bits(t.word), t.name.encode("utf-8")))


def read_file(path):
    return parse_file(Path(path).read_bytes(), str(path))


def list_folder(folder):
    """Names of everything in it; ferry leaves no hidden files of its own."""
    names = sorted(os.listdir(folder))
    require(not any(name.startswith(".ferry") for name in names), "%s: leftovers" % folder)
    return names


class Logical:
    """tensors: {name: Tensor} in the order of the files; others: {file name: bytes}."""

    def __init__(self, tensors, metadata, parts, others):
        self.tensors, self.metadata, self.parts, self.others = tensors, metadata, parts, others


def read_logical(folder):
    """A logical checkpoint that ferry wrote: one file, or parts with an index."""
    folder, names = Path(folder), list_folder(folder)
    require((INDEX in names) != (SINGLE in names), "%s: one of two: %s" % (folder, names))
    if SINGLE in names:
        parts = {SINGLE: read_file(folder / SINGLE)}
    else:
        parts = read_parts(folder, names)
    require(not any(file.checksums() for file in parts.values()), "%s: has checksums" % folder)
    tensors = {}
    for file in parts.values():
        require(not set(tensors) & set(file.by_name), "%s: a tensor in two parts" % folder)
        tensors.update(file.by_name)
    metadata = same_metadata(parts.items(), lambda file: file.metadata)
    others = {name: (folder / name).read_bytes() for name in names
              if name != INDEX and name not in parts}
    return Logical(tensors, metadata, parts, others)


def read_parts(folder, names):
    index = parse_json((folder / INDEX).read_bytes(), INDEX)
    require(set(index) == {"metadata", "weight_map"}, "index: keys %s" % list(index))
    listed = index["weight_map"]
    require(list(listed) == sorted(listed, key=str.encode), "index: names are not in order")
    n_parts = len(set(listed.values()))
    expected = ["model-%05d-of-%05d.safetensors" % (i + 1, n_parts) for i in range(n_parts)]
    require(sorted(set(listed.values())) == expected, "index: parts %s" % set(listed.values()))
    present = [name for name in names if re.fullmatch(r"model-\d+-of-\d+\.safetensors", name)]
    require(present == expected, "%s: parts %s, not %s" % (folder, present, expected))
    parts = {name: read_file(folder / name) for name in expected}
    found = {tensor: name for name, file in parts.items() for tensor in file.by_name}
    require(found == listed, "index: weight_map does not fit the parts")
    total = sum(len(tensor.data) for file in parts.values() for tensor in file.tensors)
    require(index["metadata"] == {"total_size": total}, "index: metadata %s, but %d bytes"
            % (index["metadata"], total))
    return parts


class Sharded:
    """layout: the layout file's object; files: {rank: File}; others: {file name: bytes}."""

    def __init__(self, layout, files, others):
        self.layout, self.files, self.others = layout, files, others


def rank_name(rank):
    return "rank-%05d.safetensors" % rank


def read_sharded(folder):
    """A sharded checkpoint that ferry wrote, each checksum checked."""
    folder, names = Path(folder), list_folder(folder)
    layout = parse_json((folder / LAYOUT).read_bytes(), LAYOUT)
    check_layout_keys(layout)
    ranks = layout_ranks(layout)
    present = sorted(name for name in names if re.fullmatch(r"rank-\d+\.safetensors", name))
    require(present == sorted(map(rank_name, ranks)), "%s: ranks %s have files %s" % (folder, ranks,
                                                                                      present))
    files = {rank: read_file(folder / rank_name(rank)) for rank in ranks}
    for rank, file in files.items():
        check_checksums(file, rank)
    others = {name: (folder / name).read_bytes() for name in names
              if name != LAYOUT and name not in present}
    return Sharded(layout, files, others)


def check_layout_keys(layout):
    known = {"format", "mesh", "first_rank", "ranks", "stages", "rules", "tensors"}
    require(set(layout) <= known, "%s: keys %s" % (LAYOUT, list(layout)))
    require({"format", "mesh", "rules", "tensors"} <= set(layout), "%s: keys" % LAYOUT)
    require(layout["format"] == "ferry.layout/1", "%s: format" % LAYOUT)
    for entry in layout["tensors"]:
        require(set(entry) == {"name", "shape", "dtype"}, "%s: tensor %s" % (LAYOUT, entry))


def layout_ranks(layout):
    first = layout.get("first_rank", 0)
    count = math.prod(size for _, size in layout["mesh"])
    return layout.get("ranks", list(range(first, first + count)))


def checksum(data):
    return "%016x" % xxh3_64(data)


def check_checksums(file, rank):
    recorded = file.checksums()
    require(set(recorded) == set(file.by_name), "rank %d: checksums of %s, tensors %s"
            % (rank, sorted(recorded), sorted(file.by_name)))
    extra = [key for key in file.metadata
             if key.startswith("ferry.") and not key.startswith(CHECKSUM_KEY)]
    require(not extra, "rank %d: metadata %s" % (rank, extra))
    for name, value in recorded.items():
        require(value == checksum(file.by_name[name].data), "rank %d: checksum of %r"
                % (rank, name))


def same_metadata(files, of):
    """What all files have in common; each must have all of it."""
    first = None
    for name, file in files:
        first = of(file) if first is None else first
        require(of(file) == first, "%s: other metadata than the files before" % name)
    return first or {}


# ---- writing -------------------------------------------------------------------------------------


def dump(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def header_of(tensors, metadata):
    """The header's object for tensors that lie in the order given."""
    header, at = {}, 0
    if metadata:
        header[METADATA] = metadata
    for tensor in tensors:
        end = at + len(tensor.data)
        header[tensor.name] = {"dtype": tensor.word, "shape": tensor.shape,
                               "data_offsets": [at, end]}
        at = end
    return header


def join_file(text, tensors):
    return struct.pack("<Q", len(text)) + text + b"".join(tensor.data for tensor in tensors)


def form_file(tensors, metadata):
    """The bytes of a file in ferry's own form."""
    tensors = in_form_order(tensors)
    metadata = dict(sorted(metadata.items(), key=lambda item: item[0].encode("utf-8")))
    text = dump(header_of(tensors, metadata)).encode("utf-8")
    return join_file(text + b" " * (-len(text) % 8), tensors)


def loose_file(rng, tensors, metadata):
    """The bytes of a valid file in some other form: order, spaces and escapes as they come."""
    tensors = rng.sample(tensors, len(tensors))
    header = list(header_of(tensors, metadata).items())
    rng.shuffle(header)
    for name, entry in header:
        if name != METADATA and rng.random() < 0.3:
            entry.update(rng.choice([{"unit": "m"}, {"more": [1, {"a": None}]}]))
    text = json.dumps(dict(header), ensure_ascii=rng.random() < 0.5,
                      indent=rng.choice([None, None, 1]),
                      separators=rng.choice([(",", ":"), (", ", ": ")]))
    if rng.random() < 0.5:
        text += " " * rng.choice([-len(text.encode("utf-8")) % 8, 1, 7])
    return join_file(text.encode("utf-8"), tensors)


def write_sharded(folder, layout, files, others=()):
    """files: {rank: (tensors, metadata)} in ferry's form, with checksums."""
    folder = Path(folder)
    folder.mkdir()
    for rank, (tensors, metadata) in files.items():
        sums = {CHECKSUM_KEY + tensor.name: checksum(tensor.data) for tensor in tensors}
        (folder / rank_name(rank)).write_bytes(form_file(tensors, {**metadata, **sums}))
    (folder / LAYOUT).write_text(dump(layout), encoding="utf-8")
    for name, data in dict(others).items():
        (folder / name).write_bytes(data)


def write_logical(rng, folder, tensors, metadata, n_parts, others=()):
    """A logical folder of n_parts files (an index where that is more than one, or by chance)."""
    folder = Path(folder)
    folder.mkdir()
    for name, data in dict(others).items():
        (folder / name).write_bytes(data)
    if n_parts == 1 and rng.random() < 0.8:
        (folder / SINGLE).write_bytes(some_file(rng, tensors, metadata))
        return
    parts = [[] for _ in range(n_parts)]
    for tensor in tensors:
        rng.choice(parts).append(tensor)
    parts = [part for part in parts if part]
    names = part_names(rng, len(parts))
    weight_map = {}
    for name, part in zip(names, parts):
        kept = {key: value for key, value in metadata.items() if rng.random() < 0.8}
        kept = metadata if name == names[0] else kept
        (folder / name).write_bytes(some_file(rng, part, kept))
        weight_map.update({tensor.name: name for tensor in part})
    write_index(rng, folder, weight_map, sum(len(tensor.data) for tensor in tensors))


def part_names(rng, n):
    if rng.random() < 0.7:
        return ["model-%05d-of-%05d.safetensors" % (i + 1, n) for i in range(n)]
    return rng.sample(["b.safetensors", "a.safetensors", "part two.safetensors",
                       "\u00fc.safetensors", "x-1.safetensors"], n)


def write_index(rng, folder, weight_map, total):
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    if rng.random() < 0.3:
        index["metadata"]["total_parameters"] = 1234
    if rng.random() < 0.2:
        del index["metadata"]
    text = json.dumps(index, indent=rng.choice([None, 2]), ensure_ascii=rng.random() < 0.5)
    (folder / INDEX).write_text(text, encoding="utf-8")


def some_file(rng, tensors, metadata):
    if rng.random() < 0.3:
        return form_file(tensors, metadata)
    return loose_file(rng, tensors, metadata)


def tree(folder):
    """{relative path: bytes} of all files below a folder; links and folders show by a mark."""
    result = {}
    for base, folders, names in os.walk(folder):
        for name in names + folders:
            path = Path(base) / name
            key = str(path.relative_to(folder))
            if path.is_symlink():
                result[key] = b"-> " + os.readlink(os.fsencode(path))
            else:
                result[key] = path.read_bytes() if path.is_file() else None
    return result
