#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Tests of what `ferry inspect` says beside tensors: statistics, checksums, metadata, other files.

    check_inspect.py --ferry PATH [--only TEXT] [--seed N]

What the elements are is worked out here from their bits, one by one. Prints the name of every
failing case with its reason and exits 1.
"""

import itertools
import json
import math
import random
import re
import struct
import sys
from fractions import Fraction
from pathlib import Path

import cases
from cases import ask, good

FOLDER = Path()
RNG = random.Random()


# ---- elements from bits --------------------------------------------------------------------------


def small_float(bits, n_exponent, n_fraction, bias, has_infinity):
    """A number of few bits, by the definition of its type."""
    sign = -1.0 if bits >> (n_exponent + n_fraction) & 1 else 1.0
    exponent = bits >> n_fraction & ((1 << n_exponent) - 1)
    fraction = bits & ((1 << n_fraction) - 1)
    if has_infinity and exponent == (1 << n_exponent) - 1:
        return math.nan if fraction else sign * math.inf
    if exponent == 0:
        return sign * math.ldexp(fraction, 1 - bias - n_fraction)
    return sign * math.ldexp((1 << n_fraction) + fraction, exponent - bias - n_fraction)


def e4m3(bits):
    """All ones are NaN, and there is no infinity."""
    return math.nan if bits & 127 == 127 else small_float(bits, 4, 3, 7, False)


def e8m0(bits):
    return math.nan if bits == 255 else math.ldexp(1, bits - 127)


def unpack(word, data):
    """The elements of a tensor as Python's floats."""
    if word == "F4":
        return [small_float(nibble, 2, 1, 1, False) for byte in data
                for nibble in (byte & 15, byte >> 4)]
    size, decode = {"F64": (8, lambda b: struct.unpack("<d", struct.pack("<Q", b))[0]),
                    "F32": (4, lambda b: struct.unpack("<f", struct.pack("<I", b))[0]),
                    "BF16": (2, lambda b: struct.unpack("<f", struct.pack("<I", b << 16))[0]),
                    "F16": (2, lambda b: small_float(b, 5, 10, 15, True)),
                    "F8_E5M2": (1, lambda b: small_float(b, 5, 2, 15, True)),
                    "F8_E4M3": (1, e4m3), "F8_E8M0": (1, e8m0)}[word]
    return [decode(int.from_bytes(data[at:at + size], "little"))
            for at in range(0, len(data), size)]


class Near(float):
    """Equal to what lies as near as sums of so many such numbers can be told."""

    def __new__(cls, exact, room):
        near = super().__new__(cls, float(exact))
        near.exact, near.room = exact, room
        return near

    def __eq__(self, other):
        return (isinstance(other, float) and math.isfinite(other)
                and abs(Fraction(other) - self.exact) <= self.room)

    __hash__ = None


def mean_of(finite):
    """Their sum in order over their number; where that may overflow, in fractions."""
    most = max(map(abs, finite))
    if most < 2.0 ** 512:
        total = 0.0
        for value in finite:
            total += value
        return total / len(finite)
    return Near(sum(map(Fraction, finite)) / len(finite),
                Fraction(most) * len(finite) / 2 ** 50)


def expected(word, data):
    values = unpack(word, data)
    finite = [value for value in values if math.isfinite(value)]
    return {"elements": len(values), "nan": sum(map(math.isnan, values)),
            "infinite": sum(map(math.isinf, values)),
            "least": min(finite) if finite else None, "most": max(finite) if finite else None,
            "mean": mean_of(finite) if finite else None}


# ---- checkpoints ---------------------------------------------------------------------------------

BITS = {"F64": 64, "F32": 32, "BF16": 16, "F16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
        "F4": 4, "I32": 32, "U8": 8, "BOOL": 8}


def write(path, tensors, metadata=None):
    """tensors: name -> (word, shape, data), in the order of their bytes."""
    header, offset = {"__metadata__": metadata} if metadata else {}, 0
    for name, (word, shape, data) in tensors.items():
        header[name] = {"dtype": word, "shape": shape,
                        "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text
                     + b"".join(data for _, _, data in tensors.values()))


def draw(word, shape):
    n_bytes = math.prod(shape) * BITS[word] // 8
    return word, shape, RNG.randbytes(n_bytes)


def special(word, bits):
    """A tensor of elements with these bits."""
    size = BITS[word] // 8
    return word, [len(bits)], b"".join(b.to_bytes(size, "little") for b in bits)


# Controls of one byte and of two in UTF-8, and a character that lies across the place of the cut.
METADATA = {"format": "pt", "long": "x" * 100, "odd": "a\nb", "two": "c\u009bd\u00e9",
            "across": "x" + "\u00e9" * 40}


def source():
    """Random bits of every floating type: all numbers, NaN and infinities that it has."""
    folder = FOLDER / "model"
    folder.mkdir()
    tensors = {}
    for word in BITS:
        rows = RNG.choice([4, 12, 64])
        if word != "BOOL":
            tensors["%s.matrix" % word] = draw(word, [rows, RNG.choice([8, 24, 56])])
            tensors["%s.vector" % word] = draw(word, [RNG.choice([4, 8, 16])])
    tensors["F32.large"] = draw("F32", [256, 512])
    tensors["F32.nan"] = special("F32", [0x7fc00000, 0xffc00001, 0x7f800001])
    tensors["F32.infinite"] = special("F32", [0x7f800000, 0xff800000])
    tensors["F32.zeros"] = special("F32", [0x80000000, 0])
    tensors["F32.negative"] = special("F32", [0xbf800000, 0xc0000000])
    tensors["F64.huge"] = special("F64", [0x7fefffffffffffff] * 3)
    tensors["F64.far"] = special("F64", [0x7fefffffffffffff, 0xffefffffffffffff,
                                         0x7fefffffffffffff, 0xffefffffffffffff,
                                         0x5ff0000000000000, 0x3ff0000000000000])
    tensors["F64.late"] = special("F64", [0x7ff8000000000000, 0x4000000000000000])
    tensors["F16.none"] = ("F16", [0, 3], b"")
    tensors["BOOL.x"] = ("BOOL", [2], b"\1\0")
    tensors = {name: tensors[name]
               for name in sorted(tensors, key=lambda n: (-BITS[tensors[n][0]], n))}
    write(folder / "model.safetensors", tensors,
          METADATA)
    return folder, tensors


def layout():
    path = FOLDER / "layout.json"
    path.write_text(json.dumps({
        "format": "ferry.layout/1", "mesh": [["tp", 2], ["dp", 2]],
        "rules": [{"match": "*.matrix", "shard": [{"dim": 1, "axis": "tp"}]},
                  {"match": "F32.large", "shard": [{"dim": 0, "axis": "tp", "stride": 4},
                                                   {"dim": 1, "axis": "dp"}]},
                  {"match": "*"}]}))
    return path


def case_models_that_are_no_specs():
    """A plan can be made of them all the same, which the sentence says."""
    folder = FOLDER / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "hidden_size": 8}')
    for name, path in itertools.product(("plan", "run", "draw", "simulate"), (folder, folder / "config.json")):
        status, out, err = ask(name, path)
        assert (status, out) == (1, "") and "`ferry plan --names " in err and err.count("\n") == 1, err
    (FOLDER / "config.json").write_text('{"format": "ferry.spec/1", "model_type": 3}')
    (FOLDER / "list.json").write_text('["model_type"]')
    for path in (FOLDER / "config.json", FOLDER / "list.json", FOLDER / "none" / "config.json", FOLDER):
        err = ask("plan", path)[2]
        assert err.count("\n") == 1 and "--names" not in err, err


def case_stats():
    folder, tensors = source()
    sharded = FOLDER / "sharded"
    good("reshard", folder, "--to", layout(), "--out", sharded)
    outputs = {good("inspect", path, "--stats", "--json", *words).partition('"files"')[0]
               .partition('"tensors"')[2]
               for path, words in ((folder, ()), (folder, ("--threads", 1, "--memory-cap", "1M")),
                                   (folder, ("--threads", 7)), (folder / "model.safetensors", ()))}
    assert len(outputs) == 1, "threads or memory change what is told"
    for path in (folder, sharded):
        about = json.loads(good("inspect", path, "--stats", "--json"))
        found = {tensor["name"]: tensor["stats"] for tensor in about["tensors"]}
        assert set(found) == set(tensors), set(found) ^ set(tensors)
        for name, (word, _, data) in tensors.items():
            wanted = None if word in ("I32", "U8", "BOOL") else expected(word, data)
            assert found[name] == wanted, (path.name, name, found[name], wanted)
    assert found["F32.nan"]["nan"] == 3 and found["F32.infinite"]["infinite"] == 2, found
    assert any(stats and stats["nan"] for name, stats in found.items() if "F16" in name), found


def case_stats_table():
    folder, tensors = source()
    lines = good("inspect", folder, "--stats").splitlines()
    rows = {line.split()[-1]: line.split() for line in lines if line.startswith("  ")}
    assert rows["F32.negative"][1:] == ["2", "-2", "-1", "-1.5", "0", "0", "F32.negative"], rows
    assert rows["F32.nan"][1:] == ["3", "-", "-", "-", "3", "0", "F32.nan"], rows
    assert rows["I32.vector"][2:] == ["-", "-", "-", "-", "-", "I32.vector"], rows
    assert rows["F64.huge"][2:5] == ["1.7977e+308"] * 3, rows["F64.huge"]
    assert set(tensors) <= set(rows), set(tensors) - set(rows)


def case_long_words_keep_columns():
    """Types and shapes that are longer than their columns make them wider."""
    word = "F8_E4M3FNUZ_OF_SOMEBODY"
    shape = [1000000, 1, 1, 1, 1, 1, 1, 2]
    write(FOLDER / "words.safetensors",
          {"long": (word, [2], bytes(2)), "short": ("F32", [2], bytes(8)),
           "deep": ("U8", shape, bytes(math.prod(shape)))})
    for words in ((), ("--tensors",), ("--stats",)):
        out = good("inspect", FOLDER / "words.safetensors", *words)
        rows = out.partition("\nTensors:\n")[2].partition("\n\n")[0].splitlines()
        assert len(rows) == 4 and word in out, rows
        names = {re.search(r"\S+$", row).start() for row in rows}
        assert len(names) == 1, rows


def case_empty_has_no_first():
    write(FOLDER / "none.safetensors", {})
    status, out, err = ask("reshard", FOLDER / "none.safetensors", "--to", "tp=2",
                           "--out", FOLDER / "none")
    assert (status, out) == (1, "") and "has no tensors" in err, (status, err)
    assert "first" not in err and "layout file" in err, err


def flip(path, tensor):
    """Another bit in the first byte of a tensor."""
    data = bytearray(path.read_bytes())
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    data[begin + json.loads(data[8:begin])[tensor]["data_offsets"][0]] ^= 1
    path.write_bytes(data)


def case_damage():
    """Recorded checksums of what is read are compared."""
    folder, _ = source()
    sharded = FOLDER / "sharded"
    good("reshard", folder, "--to", layout(), "--out", sharded)
    flip(sharded / "rank-00000.safetensors", "F32.large")
    status, out, err = ask("inspect", sharded, "--stats")
    assert (status, out) == (1, "") and "F32.large" in err and "damaged" in err, (status, err)
    assert ask("inspect", sharded)[0] == 0, "without --stats no data are read"


def case_about():
    folder, tensors = source()
    (folder / "config.json").write_bytes(b"{}")
    (folder / "tokenizer.json").write_bytes(b"x" * 2048)
    (folder / "pytorch_model.bin").write_bytes(b"y" * 10)
    (folder / "sub").mkdir()
    out = good("inspect", folder)
    rows = [line.split() for line in out.splitlines()]
    assert ["2.00", "KiB", "tokenizer.json"] in rows and ["2", "B", "config.json"] in rows, out
    assert "pytorch_model.bin (not copied: " in out and "sub/ (not copied: " in out, out
    assert ["format:", "pt"] in rows and "  odd: a?b\n" in out, out
    assert "  long: %s... (100 bytes)\n" % ("x" * 60) in out, out
    assert "  two: c?d\u00e9\n" in out, out
    assert "  across: x%s... (81 bytes)\n" % ("\u00e9" * 29) in out, out
    assert "\nChecksums: none are recorded\n" in out, out
    about = json.loads(good("inspect", folder, "--json", "--checksums"))
    assert about["metadata"] == METADATA, about
    others = {other["name"]: other for other in about["others"]}
    assert set(others) == {"config.json", "tokenizer.json", "pytorch_model.bin", "sub/"}, others
    assert others["tokenizer.json"]["bytes"] == 2048, others
    assert [name for name, other in sorted(others.items()) if other["left_out"]] \
        == ["pytorch_model.bin", "sub/"], others
    assert about["checksums"] == 0 and {s["xxh3"] for s in about["shards"]} == {None}, about
    assert {s["tensor"] for s in about["shards"]} == set(tensors), about["shards"]


def case_checksums():
    """Those that reshard has recorded, as they stand in the files."""
    folder, _ = source()
    sharded = FOLDER / "sharded"
    good("reshard", folder, "--to", layout(), "--out", sharded)
    wanted = {}
    for path in sharded.glob("*.safetensors"):
        data = path.read_bytes()
        header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
        for key, value in header["__metadata__"].items():
            if key.startswith("ferry.xxh3."):
                wanted[path.name, key[len("ferry.xxh3."):]] = value
    about = json.loads(good("inspect", sharded, "--json", "--checksums"))
    found = {(s["file"], s["tensor"]): s["xxh3"] for s in about["shards"]}
    assert len(wanted) > 50 and found == wanted and about["checksums"] == len(wanted), found
    assert about["metadata"]["format"] == "pt" and not any(
        key.startswith("ferry.") for key in about["metadata"]), about["metadata"]
    out = good("inspect", sharded, "--checksums")
    assert "\nChecksums: recorded of %d of %d tensors of the files\n" % (len(wanted), len(wanted)) \
        in out, out
    lines = out.partition("\nChecksums: ")[2].splitlines()
    assert {line.split()[1] for line in lines if len(line.split()) == 5} == set(wanted.values())


def bytes_of(tensors, names):
    return sum(len(tensors[name][2]) for name in names)


def case_patterns():
    folder, tensors = source()
    for words, fits in (
            (("--include", "F32.*"), lambda name: name.startswith("F32.")),
            (("--include", "F32.*", "--include", "*.vector", "--exclude", "*.nan"),
             lambda name: (name.startswith("F32.") or name.endswith(".vector"))
             and name != "F32.nan"),
            (("--exclude", "F??.*"), lambda name: not (name[0] == "F" and name[3] == ".")),
            (("--subset", "F32.*,!*.nan"), lambda name: name.startswith("F32.")
             and name != "F32.nan"),
            (("--include", "BOOL.x"), lambda name: name == "BOOL.x")):
        wanted = [name for name in tensors if fits(name)]
        assert 0 < len(wanted) < len(tensors), wanted
        about = json.loads(good("inspect", folder, "--json", "--checksums", "--stats", *words))
        assert [tensor["name"] for tensor in about["tensors"]] == wanted, (words, about)
        assert {shard["tensor"] for shard in about["shards"]} == set(wanted), about["shards"]
        for tensor in about["tensors"]:
            word, _, data = tensors[tensor["name"]]
            stats = None if word in ("I32", "U8", "BOOL") else expected(word, data)
            assert tensor["stats"] == stats, tensor
        out = good("inspect", folder, "--tensors", *words)
        lines = out.splitlines()
        title = re.fullmatch(r"([\d,]+) tensors? of (\S+ \S+) fits? the patterns", lines[1])
        assert title.group(1) == str(len(wanted)), lines[1]
        if bytes_of(tensors, wanted) < 1024:
            assert title.group(2) == "%d B" % bytes_of(tensors, wanted), lines[1]
        rows = out.partition("\nTensors:\n")[2].partition("\n\n")[0].splitlines()[1:]
        assert [row.split()[-1] for row in rows] == wanted, rows
        types = out.partition("\nTypes:\n")[2].partition("\n\n")[0].splitlines()[1:]
        assert sum(int(row.split()[0]) for row in types) == len(wanted), types
    assert "tensors of" in good("inspect", folder).splitlines()[0]
    assert "patterns" not in good("inspect", folder) and "subset" not in about["tensors"][0]
    for words, named in ((("--include", "F32.*", "--include", "no.such"), '"no.such"'),
                         (("--exclude", "no.such"), '"no.such"'), (("--subset", "x,F32.*"), '"x"'),
                         (("--include", "F32.*", "--exclude", "F32.*"), "leave no tensor")):
        status, out, err = ask("inspect", folder, *words)
        assert (status, out, err.count("\n")) == (1, "", 1) and named in err, (words, err)
    for option in ("--include", "--exclude", "--subset"):
        status, out, err = ask("inspect", folder, option, "")
        assert (status, out, err.count("\n")) == (2, "", 1) and option in err, (option, err)


def case_patterns_read_no_others():
    """What is left out is not read: damage there is not seen."""
    folder, tensors = source()
    sharded = FOLDER / "sharded"
    good("reshard", folder, "--to", layout(), "--out", sharded)
    flip(sharded / "rank-00000.safetensors", "F32.large")
    assert ask("inspect", sharded, "--stats")[0] == 1
    status, out, err = ask("inspect", sharded, "--stats", "--include", "F32.l*")
    assert (status, out) == (1, "") and "F32.large" in err, (status, err)
    about = json.loads(good("inspect", sharded, "--stats", "--json", "--checksums",
                            "--exclude", "F32.large"))
    found = {tensor["name"] for tensor in about["tensors"]}
    assert found == set(tensors) - {"F32.large"}, found
    every = json.loads(good("inspect", sharded, "--json"))["checksums"]
    assert about["checksums"] == len(about["shards"]) == every - 4, about["checksums"]


def case_patterns_of_plans():
    spec, saved = FOLDER / "spec.json", FOLDER / "saved"
    side = {"mesh": [["tp", 2]], "rules": [{"match": "*"}]}
    spec.write_text(json.dumps({
        "format": "ferry.spec/1", "source": side, "destination": side,
        "tensors": [{"name": "a.%d" % i, "shape": [8], "dtype": "f32"} for i in range(3)]}))
    good("plan", spec, "--save", saved)
    for path in (spec, saved):
        about = json.loads(good("inspect", path, "--json", "--exclude", "a.1"))
        assert [tensor["name"] for tensor in about["tensors"]] == ["a.0", "a.2"], about
        assert about["subset"] == "!a.1", about
        assert "2 tensors of 64 B fit the patterns\n" in good("inspect", path, "--exclude", "a.1")


def case_plans_have_none():
    spec = FOLDER / "spec.json"
    side = {"mesh": [["tp", 2]], "rules": [{"match": "*"}]}
    spec.write_text(json.dumps({
        "format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [8], "dtype": "f32"}],
        "source": side, "destination": side}))
    for option in ("--stats", "--checksums"):
        status, out, err = ask("inspect", spec, option)
        assert (status, out) == (2, "") and "need a checkpoint" in err, (status, err)


if __name__ == "__main__":
    sys.exit(cases.main(globals(), {"--seed": {"type": int, "default": 1}},
                        lambda arguments: RNG.seed(arguments.seed)))
