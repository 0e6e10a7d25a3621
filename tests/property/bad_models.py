# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Hostile safetensors and index files behind `"model": PATH`, for plan_bad_input.py.

Each row writes its files into a folder and returns the path of a spec that names them. Only headers
are read, but a header that does not fit its file is an error.
"""

import json
import struct

from bad_specs import Row, small

PART_1, PART_2 = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def entry(begin, end, shape=None, dtype="F32"):
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape,
            "data_offsets": [begin, end]}


def safetensors(header, data=b"", length=None):
    """The bytes of a file; `header` is a dict or raw bytes, `length` a lie about its size."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def spec_for(folder, model):
    spec = small()
    del spec["tensors"]
    spec["model"] = model
    path = folder / "spec.json"
    path.write_text(json.dumps(spec))
    return path


def file_row(name, content, *needles):
    def build(folder):
        (folder / "m.safetensors").write_bytes(content)
        return spec_for(folder, "m.safetensors")
    return Row("model: " + name, build, needles, False)


def header_row(name, header, size, *needles):
    return file_row(name, safetensors(header, bytes(size)), *needles)


def folder_row(name, files, *needles, model="parts"):
    """`files` maps names to bytes, or to a dict that is written as JSON."""
    return Row("model: " + name, lambda folder: build_folder(folder, files, model), needles, False)


def build_folder(folder, files, model="parts"):
    parts = folder / "parts"
    parts.mkdir()
    for name, content in files.items():
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        (parts / name).write_bytes(raw)
    return spec_for(folder, model)


def file_rows():
    good = safetensors({"wt": entry(0, 16)}, bytes(16))
    yield Row("model: missing file", lambda folder: spec_for(folder, "none.safetensors"),
              ("none.safetensors",), False)
    yield file_row("empty file", b"", "m.safetensors")
    yield file_row("4 bytes", b"\x01\0\0\0", "m.safetensors")
    yield file_row("only the length", struct.pack("<Q", 10), "m.safetensors")
    yield file_row("truncated header", good[:30], "m.safetensors")
    yield file_row("truncated data", good[:-1], "m.safetensors")
    yield file_row("trailing byte", good + b"\0", "m.safetensors")
    for length in (len(good), 10**9, 10**12, 2**63, 2**64 - 1, 2**64 - 8):
        yield file_row(
            "header length %d" % length,
            safetensors({"wt": entry(0, 16)}, bytes(16), length),
            "m.safetensors",
        )
    yield file_row("header length 0", safetensors(b""), "m.safetensors")
    yield file_row("header is not UTF-8", safetensors(b'{"w\xff": {"dtype":"F32","shape":[4],'
                                                      b'"data_offsets":[0,16]}}', bytes(16)),
                   "m.safetensors")
    yield file_row("header is an array", safetensors(b"[]"), "m.safetensors")
    yield file_row("header is no JSON", safetensors(b'{"wt": '), "m.safetensors")
    yield file_row(
        "header is 100,000 brackets", safetensors(b'{"wt":' + b"[" * 100_000), "m.safetensors"
    )
    twice = b'{"wt":%s,"wt":%s}' % ((json.dumps(entry(0, 16)).encode(),) * 2)
    yield file_row("a tensor twice", safetensors(twice, bytes(16)), "wt")
    good_entry = json.dumps(entry(0, 16)).encode()
    yield file_row("more behind the header",
                   safetensors(b'{"wt":%s}{}' % good_entry, bytes(16)), "m.safetensors", "behind")
    yield file_row("half a surrogate pair",
                   safetensors(b'{"wt\\ud83d":%s}' % good_entry, bytes(16)), "surrogate")
    yield file_row("a zero in a name", safetensors(b'{"wt\\u0000":%s}' % good_entry, bytes(16)),
                   "m.safetensors", "zero")
    yield file_row("an empty name", safetensors(b'{"":%s}' % good_entry, bytes(16)),
                   "m.safetensors", "empty")
    yield file_row("a key of metadata twice",
                   safetensors(b'{"__metadata__":{"k":"1","k":"1"}}'), "__metadata__", "k")
    yield file_row("metadata that are no strings", safetensors(b'{"__metadata__":{"k":1}}'),
                   "__metadata__", "k")


def header_rows():
    yield header_row(
        "overlapping offsets", {"wt": entry(0, 16), "vt": entry(8, 24)}, 24, ("wt", "vt")
    )
    yield header_row(
        "a hole", {"wt": entry(0, 16), "vt": entry(20, 36)}, 36, ("wt", "vt", "m.safetensors")
    )
    yield header_row("a hole at the begin", {"wt": entry(4, 20)}, 20, ("wt", "m.safetensors"))
    yield header_row("begin after end", {"wt": entry(16, 0, [4])}, 16, "wt")
    yield header_row("offsets beyond the file", {"wt": entry(0, 32)}, 16, ("wt", "m.safetensors"))
    yield header_row(
        "offsets beyond 2^63", {"wt": entry(2**63, 2**63 + 16)}, 16, ("wt", "m.safetensors")
    )
    yield header_row("negative offsets", {"wt": entry(-16, 0)}, 16, ("wt", "m.safetensors"))
    yield header_row("size against the shape", {"wt": entry(0, 16, [5])}, 16, "wt")
    yield header_row("size against the dtype", {"wt": entry(0, 16, [4], "F64")}, 16, "wt")
    yield header_row("shape that overflows", {"wt": entry(0, 16, [2**32, 2**32, 4])}, 16, "wt")
    yield header_row("negative extent", {"wt": entry(0, 16, [-4])}, 16, ("wt", "shape"))
    yield header_row("9 dimensions", {"wt": entry(0, 4, [1] * 9)}, 4, "wt")
    for key, value in (("dtype", 5), ("shape", 4), ("shape", ["4"]), ("shape", [4.0]),
                       ("data_offsets", [0]), ("data_offsets", [0, 16, 16]),
                       ("data_offsets", ["0", "16"]), ("data_offsets", None)):
        yield header_row(
            "%s %s" % (key, json.dumps(value)),
            {"wt": {**entry(0, 16), key: value}},
            16,
            ("wt", key),
        )
    for key in ("dtype", "shape", "data_offsets"):
        broken = entry(0, 16)
        del broken[key]
        yield header_row("without " + key, {"wt": broken}, 16, ("wt", key))
    yield header_row("an entry is a number", {"wt": 5}, 16, "wt")


def parts(**changes):
    """The files of a good folder of two parts, with changes; None leaves a file out."""
    files = {INDEX: {"weight_map": {"wt": PART_1, "vt": PART_2}},
             PART_1: safetensors({"wt": entry(0, 16)}, bytes(16)),
             PART_2: safetensors({"vt": entry(0, 8)}, bytes(8))}
    names = {"index": INDEX, "one": PART_1, "two": PART_2}
    files.update({names[key]: value for key, value in changes.items()})
    return {name: content for name, content in files.items() if content is not None}


def index_rows():
    yield folder_row("a part is missing", parts(two=None), PART_2)
    yield folder_row(
        "a part is missing, by the index", parts(two=None), PART_2, model="parts/" + INDEX
    )
    yield folder_row(
        "a part is truncated", parts(two=safetensors({"vt": entry(0, 8)}, bytes(7))), PART_2
    )
    more = safetensors({"vt": entry(0, 8), "stray": entry(8, 16)}, bytes(16))
    yield folder_row("a tensor that the index does not name", parts(two=more), "stray")
    yield folder_row(
        "a tensor that its part lacks",
        parts(index={"weight_map": {"wt": PART_1, "vt": PART_2, "gone": PART_2}}),
        "gone",
    )
    yield folder_row("a tensor in another part",
                     parts(index={"weight_map": {"wt": PART_2, "vt": PART_1}}), ("wt", "vt"))
    yield folder_row(
        "index without weight_map", parts(index={"metadata": {}}), ("weight_map", INDEX)
    )
    yield folder_row(
        "weight_map is an array", parts(index={"weight_map": []}), ("weight_map", INDEX)
    )
    yield folder_row(
        "weight_map names a number", parts(index={"weight_map": {"wt": 5}}), ("wt", INDEX)
    )
    yield folder_row("index is truncated", parts(index=b'{"weight_map": {"wt"'), INDEX)
    yield folder_row("index is empty", parts(index=b""), INDEX)
    yield folder_row("a folder without a checkpoint", {"notes.txt": b"none"}, "parts")


def all_rows():
    for rows in (file_rows, header_rows, index_rows):
        yield from rows()


def good_models():
    """(name, function of a folder that returns the spec's path): these must be accepted."""
    def single(folder):
        (folder / "m.safetensors").write_bytes(
            safetensors({"__metadata__": {"a": "b"}, "wt": entry(0, 16)}, bytes(16)))
        return spec_for(folder, "m.safetensors")

    yield "model: one file", single
    def sharded(folder):
        side = {"mesh": [["tp", 2]], "rules": [{"match": "*"}]}
        tensors = [{"name": "wt", "shape": [4], "dtype": "f32"}]
        rank = safetensors({"wt": entry(0, 16)}, bytes(16))
        return build_folder(folder, {"ferry.layout.json": {**side, "tensors": tensors},
                                     "rank-00000.safetensors": rank,
                                     "rank-00001.safetensors": rank})

    yield "model: a sharded checkpoint", sharded
    yield "model: a folder of parts", lambda folder: build_folder(folder, parts())
    yield "model: an index", lambda folder: build_folder(folder, parts(), "parts/" + INDEX)
