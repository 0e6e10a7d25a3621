# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Checkpoints: files that are written and read here, by the rules of docs/formats.md alone."""

import gc
import itertools
import json
import math
import os
import pathlib
import random
import shutil
import signal
import struct
import sys
import tempfile
import threading
import unittest

import ferry
from support import until

WIDTHS = {"BF16": 2, "F32": 4, "I64": 8}
TP = {"format": "ferry.layout/1", "mesh": [["tp", 2]],
      "rules": [{"match": "rows.*", "shard": [{"dim": 0, "axis": "tp"}]},
                {"match": "columns", "shard": [{"dim": 1, "axis": "tp"}]}, {"match": "*"}]}


def write_file(path, tensors, metadata=None):
    """tensors: {name: (word, shape, bytes)}"""
    header, at = {} if metadata is None else {"__metadata__": metadata}, 0
    for name, (word, shape, data) in tensors.items():
        header[name] = {"dtype": word, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def read_file(path):
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(length))
        data = file.read()
    return {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
            for name, entry in header.items() if name != "__metadata__"}


def some_tensors():
    rng = random.Random(7)

    def one(word, shape):
        n = math.prod(shape) * WIDTHS[word]
        return word, shape, bytes(rng.randrange(256) for _ in range(n))

    return {"rows.0": one("BF16", [6, 4]), "rows.1": one("F32", [5, 3]),
            "columns": one("BF16", [3, 8]), "scalar": one("I64", []), "norm": one("F32", [7])}


def rows_of(tensor, begin, end):
    word, shape, data = tensor
    row = math.prod(shape[1:]) * WIDTHS[word]
    return word, [end - begin] + shape[1:], data[begin * row:end * row]


def columns_of(tensor, begin, end):
    word, shape, data = tensor
    width, row = WIDTHS[word], shape[1] * WIDTHS[word]
    parts = [data[r * row + begin * width:r * row + end * width] for r in range(shape[0])]
    return word, [shape[0], end - begin], b"".join(parts)


def cut_in_two(tensors):
    """What the files of TP's two ranks must hold."""
    ranks = []
    for rank in (0, 1):
        held = {name: tensors[name] for name in ("scalar", "norm")}
        held["rows.0"] = rows_of(tensors["rows.0"], 3 * rank, 3 * rank + 3)
        held["rows.1"] = rows_of(tensors["rows.1"], 3 * rank, min(5, 3 * rank + 3))
        held["columns"] = columns_of(tensors["columns"], 4 * rank, 4 * rank + 4)
        ranks.append(held)
    return ranks


def hold(tensor, begin, shape, offset, strides):
    return {"tensor": tensor, "begin": begin, "shape": shape, "offset": offset, "strides": strides}


def f4_boxes(quantize, **changes):
    """Codes with a gap behind each row, scales, and those of the matrices with gaps; None: without."""
    boxes = {"c": {"quantize": quantize, "elements": 648, "partial": True, "holds": [
                 hold("w", [0, 0, 0], [3, 6, 34], 0, [216, 36, 1])]},
             "s": {"elements": 54, "holds": [hold("w.s", [0, 0, 0], [3, 6, 3], 0, [18, 3, 1])]},
             "m": {"elements": 7, "partial": True, "holds": [hold("g", [0], [3], 1, [2])]}}
    return [{"rank": 0, "parameter": name, **box, **(changes.get(name) or {})}
            for name, box in boxes.items() if changes.get(name, {}) is not None]


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.tensors = some_tensors()
        self.model = self.at("model")
        os.mkdir(self.model)
        write_file(os.path.join(self.model, "model.safetensors"), self.tensors, {"format": "pt"})

    def at(self, name):
        return os.path.join(self.folder, name)

    def read_ranks(self, path, n):
        return [read_file(os.path.join(path, "rank-%05d.safetensors" % rank)) for rank in range(n)]


class ReshardTest(Files):
    def test_there_and_back(self):
        there = ferry.reshard(self.model, TP, self.at("tp2"))
        self.assertEqual(self.read_ranks(self.at("tp2"), 2), cut_in_two(self.tensors))
        self.assertTrue(there.is_sharded)
        self.assertEqual((there.path, there.dry_run, there.n_tensors), (self.at("tp2"), False, 5))
        self.assertEqual([(f.name, f.rank, f.n_tensors) for f in there.files],
                         [("rank-00000.safetensors", 0, 5), ("rank-00001.safetensors", 1, 5)])
        sizes = [os.path.getsize(os.path.join(self.at("tp2"), f.name)) for f in there.files]
        self.assertEqual([f.bytes for f in there.files], sizes)
        self.assertEqual(there.file_bytes, sum(sizes))
        self.assertEqual(there.read_bytes, sum(len(data) for _, _, data in self.tensors.values()))
        self.assertGreater(there.seconds, 0)
        self.assertGreater(there.gbytes_per_s, 0)
        self.assertIsNone(there.estimated_seconds)
        back = ferry.reshard(pathlib.Path(self.at("tp2")), "hf", pathlib.Path(self.at("back")))
        self.assertEqual(read_file(os.path.join(self.at("back"), "model.safetensors")),
                         self.tensors)
        self.assertEqual((back.is_sharded, back.files[0].rank), (False, None))
        self.assertEqual(back.n_checked, 3 * 2 + 2)  # one replica of each is read

    def test_ways_to_say_where_to(self):
        """A dict, a file, a checkpoint that has the layout, and that checkpoint's layout."""
        ferry.reshard(self.model, TP, self.at("dict"))
        with open(self.at("layout.json"), "w") as file:
            json.dump(TP, file)
        ferry.reshard(self.model, self.at("layout.json"), self.at("file"))
        checkpoint = ferry.inspect(self.at("dict"))
        ferry.reshard(ferry.inspect(self.model), checkpoint, self.at("checkpoint"))
        ferry.reshard(self.model, checkpoint.layout, self.at("layout"))
        ferry.reshard(checkpoint, ferry.inspect(self.model), self.at("logical"))
        for name in ("file", "checkpoint", "layout"):
            self.assertEqual(self.read_ranks(self.at(name), 2), cut_in_two(self.tensors), name)
        self.assertEqual(read_file(os.path.join(self.at("logical"), "model.safetensors")),
                         self.tensors)

    def test_short_form(self):
        """A tensor of a name that no rule knows is whole on every rank, and is named."""
        layer = "model.layers.0."
        tensors = {layer + "mlp.up_proj.weight": self.tensors["rows.0"],
                   layer + "mlp.down_proj.weight": self.tensors["columns"],
                   layer + "strange": self.tensors["norm"]}
        path = self.at("llama")
        os.mkdir(path)
        write_file(os.path.join(path, "model.safetensors"), tensors)
        with open(os.path.join(path, "config.json"), "w") as file:
            json.dump({"architectures": ["LlamaForCausalLM"], "num_attention_heads": 4,
                       "num_key_value_heads": 2, "hidden_size": 8, "num_hidden_layers": 1}, file)
        result = ferry.reshard(path, "tp=2", self.at("tp2"))
        self.assertEqual(result.replicated, (layer + "strange",))
        for rank, held in enumerate(self.read_ranks(self.at("tp2"), 2)):
            self.assertEqual(held, {
                layer + "mlp.up_proj.weight": rows_of(self.tensors["rows.0"], 3 * rank,
                                                      3 * rank + 3),
                layer + "mlp.down_proj.weight": columns_of(self.tensors["columns"], 4 * rank,
                                                           4 * rank + 4),
                layer + "strange": self.tensors["norm"]})

    def test_subset(self):
        result = ferry.reshard(self.model, TP, self.at("tp2"), subset="rows.*")
        self.assertEqual(result.n_tensors, 2)
        for held, expected in zip(self.read_ranks(self.at("tp2"), 2), cut_in_two(self.tensors)):
            self.assertEqual(held, {n: expected[n] for n in ("rows.0", "rows.1")})

    def test_quantize(self):
        """Powers of two are their own largest: codes and scales can be said by hand."""
        values = [2.0 ** (i % 3) for i in range(8)] + [0.0] * 8  # rows of 4, blocks of 2 x 4
        data = b"".join(struct.pack("<f", value)[2:] for value in values)
        path = self.at("model.safetensors")
        write_file(path, {"layers.0.w_proj.weight": ("BF16", [4, 4], data),
                          "norm": ("BF16", [2], b"\x80\x3f\x80\x3f")})
        result = ferry.reshard(path, "hf", self.at("codes"), quantize="f8e4m3:2x4:pow2")
        self.assertEqual(result.changes, (ferry.Change(
            "layers.0.w_proj.weight", "bf16", "f8e4m3", "layers.0.w_proj.weight_scale_inv",
            (2, 4)),))
        found = read_file(os.path.join(self.at("codes"), "model.safetensors"))
        self.assertEqual(found["layers.0.w_proj.weight_scale_inv"],
                         ("F32", [2, 1], struct.pack("<2f", 2.0**-6, 1.0)))
        ones = {1.0: 0x68, 2.0: 0x70, 4.0: 0x78, 0.0: 0}  # times 64
        self.assertEqual(found["layers.0.w_proj.weight"],
                         ("F8_E4M3", [4, 4], bytes(ones[value] for value in values)))
        ferry.verify(path, self.at("codes"), quantize="f8e4m3:2x4:pow2")
        with self.assertRaises(ferry.Different):
            ferry.verify(path, self.at("codes"), quantize="f8e4m3:2x4", digests=True)
        back = ferry.reshard(self.at("codes"), TP, self.at("back"), dequantize="f8e4m3:2x4")
        self.assertEqual([change.to_dtype for change in back.changes], ["bf16"])
        ferry.verify(path, self.at("back"))
        ferry.verify(self.at("codes"), self.at("back"), dequantize="f8e4m3:2x4")
        with self.assertRaisesRegex(ferry.InvalidInput, "weight_block_size"):
            ferry.reshard(self.at("codes"), "hf", self.at("bad"), dequantize=True)
        with self.assertRaisesRegex(ferry.InvalidInput, "f8e4m3:128x128"):
            ferry.reshard(path, "hf", self.at("bad"), quantize="fp8")
        with self.assertRaisesRegex(ferry.Misuse, "one after the other"):
            ferry.reshard(path, "hf", self.at("bad"), quantize="mxfp8", dequantize=True)

    def test_nvfp4_of_a_plan(self):
        """Refit by the scale that a reshard reckons: the bytes are its own, and no other scale is taken."""
        rng = random.Random(5)
        name = "layers.0.w_proj.weight"
        for case, special in enumerate(([], [0x7f80], [0x8000] * 16)):
            bits = [rng.randrange(0x3e00, 0x4100) | rng.choice((0, 0x8000)) for _ in range(6 * 34)]
            bits[40:40 + len(special)] = special
            data = struct.pack("<%dH" % len(bits), *bits)
            write_file(self.at("model.safetensors"), {name: ("BF16", [6, 34], data)})
            ferry.reshard(self.at("model.safetensors"), "hf", self.at("f4.%d" % case),
                          quantize="nvfp4")
            found = read_file(os.path.join(self.at("f4.%d" % case), "model.safetensors"))
            given = found[name + "_scale_2"][2]
            self.assertEqual(self.refit_nvfp4(name, data, given),
                             [found[name][2], found[name + "_scale"][2], given])
        for bad in (0.0, math.nan, math.inf, -1.0, 2.0**-118, 2.0**120):
            with self.assertRaisesRegex(ferry.InvalidInput, "_scale_2: element 0 at rank 0 is .*2688"):
                self.refit_nvfp4(name, data, struct.pack("<f", bad))
        for good in (2.0**-117, 2.0**119):
            self.refit_nvfp4(name, data, struct.pack("<f", good))

    def refit_nvfp4(self, name, data, given):
        """Codes, scales, and the scale of the matrix."""
        names = [name, name + "_scale", name + "_scale_2"]
        new = {name: bytearray(size) for name, size in zip(names, (6 * 17, 6 * 3, 4))}
        whole = {"mesh": [], "rules": [{"match": "*"}]}
        quantize = {"format": "nvfp4", "scale": "*_scale", "tensor_scale": "*_scale_2"}
        ferry.refit({name: data, names[2]: given}, new, {
            "format": "ferry.spec/1",
            "tensors": [{"name": name, "shape": [6, 34], "dtype": "bf16"},
                        {"name": names[2], "shape": [], "dtype": "f32"}],
            "source": whole,
            "destination": {"mesh": [], "rules": [{"match": name, "quantize": quantize},
                                                  {"match": "*"}]}})
        return [bytes(new[name]) for name in names]

    def matrices_of_f4(self, specials):
        """Matrices of 6 x 34, and what a reshard makes of each: its codes, scales, and its own scale."""
        rng, made = random.Random(6), []
        for case, special in enumerate(specials):
            bits = [rng.randrange(0x3e00, 0x4100) | rng.choice((0, 0x8000)) for _ in range(6 * 34)]
            bits[40:40 + len(special)] = special
            data = struct.pack("<%dH" % len(bits), *bits)
            write_file(self.at("%d.safetensors" % case), {"w.weight": ("BF16", [6, 34], data)})
            ferry.reshard(self.at("%d.safetensors" % case), "hf", self.at("%d.f4" % case),
                          quantize="nvfp4=*")
            found = read_file(os.path.join(self.at("%d.f4" % case), "model.safetensors"))
            made.append([data, *(found["w.weight" + more][2] for more in ("", "_scale", "_scale_2"))])
        return [list(column) for column in zip(*made)]

    def spec_by_receiver(self, destination):
        """Three matrices, column by column in the memory of rank 0: it makes nvfp4 of them itself."""
        return {"format": "ferry.spec/1",
                "tensors": [{"name": "w", "shape": [3, 6, 34], "dtype": "bf16"},
                            {"name": "g", "shape": [3], "dtype": "f32"}],
                "source": {"boxes": [
                    {"rank": 0, "parameter": "w", "elements": 612, "holds": [
                        hold("w", [0, 0, 0], [3, 6, 34], 0, [204, 1, 6])]},
                    {"rank": 0, "parameter": "g", "elements": 3, "holds": [
                        hold("g", [0], [3], 0, [1])]}]},
                "destination": destination}

    def test_nvfp4_by_receivers(self):
        """The same bytes as a reshard makes, on a mesh and in boxes with gaps; of NaN and zeros too."""
        values, codes, scales, given = self.matrices_of_f4(([], [0x7f80], [0x8000] * 20))
        turned = b"".join(matrix[2 * (row * 34 + column):][:2] for matrix in values
                          for column in range(34) for row in range(6))
        source = {"w": turned, "g": b"".join(given)}
        quantize = {"format": "nvfp4", "scale": "*.s", "tensor_scale": "g"}
        on_mesh = self.spec_by_receiver({"mesh": [], "rules": [
            {"match": "w", "quantize": quantize}, {"match": "*"}]})
        new = {"w": bytearray(3 * 6 * 17), "w.s": bytearray(3 * 6 * 3), "g": bytearray(12)}
        ferry.refit(source, new, on_mesh)
        self.assertEqual([bytes(new[name]) for name in ("w", "w.s", "g")],
                         [b"".join(codes), b"".join(scales), b"".join(given)])
        for number, bad in itertools.product(range(3), (0.0, math.nan, 2.0**-118, 2.0**120)):
            wrong = [*given[:number], struct.pack("<f", bad), *given[number + 1:]]
            with self.assertRaisesRegex(ferry.InvalidInput, "g: element %d at .*2688" % number):
                ferry.refit({**source, "g": b"".join(wrong)}, new, on_mesh)
        in_boxes = self.spec_by_receiver({"boxes": f4_boxes(quantize)})
        new = {"c": bytearray(3 * 6 * 18), "s": bytearray(3 * 6 * 3), "m": bytearray(4 * 7)}
        ferry.refit(source, new, in_boxes)
        rows = [bytes(new["c"][at:at + 17]) for at in range(0, 3 * 6 * 18, 18)]
        self.assertEqual([b"".join(rows), bytes(new["s"])], [b"".join(codes), b"".join(scales)])

    def test_nvfp4_that_receivers_cannot_make(self):
        quantize = {"format": "nvfp4", "scale": "*.s", "tensor_scale": "g"}

        def refused(sentence, error=ferry.InvalidInput, **changes):
            boxes = f4_boxes(quantize, **changes)
            with self.assertRaisesRegex(error, sentence):
                ferry.plan(self.spec_by_receiver({"boxes": boxes}))
        ferry.plan(self.spec_by_receiver({"boxes": f4_boxes(quantize)}))
        missing = '"c" of rank 0 .* it must have "g" for all matrices of the box'
        refused(missing, m=None)
        refused(missing, m={"rank": 1})
        refused(missing, m={"cast": "round", "scale": 2})
        refused(missing, m={"holds": [hold("g", [0], [2], 1, [2])]})
        refused(missing, m={"holds": [hold("g", [1], [2], 1, [2])]})
        refused(missing, m={"holds": [hold("g", [n], [1], n * n, [1]) for n in range(3)]})
        refused("must lie side by side, with stride 1", ferry.Unsupported,
                c={"holds": [hold("w", [0, 0, 0], [3, 6, 34], 0, [216, 1, 6])]})
        with self.assertRaisesRegex(ferry.InvalidInput, "\"w\" by \"g\": a subset has both"):
            ferry.plan(self.spec_by_receiver({"boxes": f4_boxes(quantize)}), subset="w")

    def spec_of_codes(self, destination, dtype):
        """Three matrices of f4, as rank 0 has them."""
        wants = {"match": "w", "dtype": dtype, "dequantize": {"block": [1, 16], "scale": "*.s"}}
        return {"format": "ferry.spec/1",
                "tensors": [{"name": "w", "shape": [3, 6, 34], "dtype": "f4"},
                            {"name": "w.s", "shape": [3, 6, 3], "dtype": "f8e4m3"},
                            {"name": "w.s_2", "shape": [3], "dtype": "f32"}],
                "source": {"mesh": [], "rules": [{"match": "*"}]},
                "destination": destination or {"mesh": [], "rules": [
                    wants, {"match": "*", "skip": True}]}}

    def test_values_of_nvfp4(self):
        """A plan makes of codes what a reshard makes of them, on a mesh and in boxes inside of blocks."""
        _, codes, scales, given = self.matrices_of_f4(([], [0x7f80], [0x8000] * 20))
        source = {"w": b"".join(codes), "w.s": b"".join(scales), "w.s_2": b"".join(given)}
        for dtype, size in (("bf16", 2), ("f16", 2), ("f32", 4)):
            found = []
            for case in range(3):
                out = self.at("%d.%s" % (case, dtype))
                ferry.reshard(self.at("%d.f4" % case), "hf", out, dequantize=True, cast=dtype)
                found.append(read_file(os.path.join(out, "model.safetensors"))["w.weight"][2])
            new = bytearray(3 * 6 * 34 * size)
            ferry.refit(source, {"w": new}, self.spec_of_codes(None, dtype))
            self.assertEqual(bytes(new), b"".join(found))
            part, new = (1, 2, 6), bytearray(2 * 3 * 24 * size)  # rows 2, 3, 4, columns 6 to 25
            ferry.refit(source, {"v": new}, self.spec_of_codes({"boxes": [
                {"rank": 0, "parameter": "v", "elements": 144, "dtype": dtype, "partial": True,
                 "dequantize": {"block": [1, 16], "scale": "*.s"},
                 "holds": [hold("w", part, [2, 3, 20], 2, [72, 24, 1])]}]}, dtype))
            for plane, row in itertools.product(range(2), range(3)):
                at = ((row + 2) * 34 + 6) * size
                here = (plane * 72 + row * 24 + 2) * size
                self.assertEqual(bytes(new[here:here + 20 * size]),
                                 found[plane + 1][at:at + 20 * size])
        for number, bad in itertools.product(range(3), (0.0, math.nan, -1.0, 2.0**-118, 2.0**120)):
            wrong = [*given[:number], struct.pack("<f", bad), *given[number + 1:]]
            with self.assertRaisesRegex(ferry.InvalidInput,
                                        'w:scales_2: element %d at rank 0 is .* "w"' % number):
                ferry.refit({**source, "w.s_2": b"".join(wrong)},
                            {"w": bytearray(3 * 6 * 34 * 2)}, self.spec_of_codes(None, "bf16"))

    def test_nvfp4_that_cannot_become_values(self):
        def refused(sentence, error, shape, begin, strides):
            spec = self.spec_of_codes({"boxes": [
                {"rank": 0, "parameter": "v", "elements": 1000, "dtype": "bf16", "partial": True,
                 "dequantize": {"block": [1, 16], "scale": "*.s"},
                 "holds": [hold("w", begin, shape, 0, strides)]}]}, "bf16")
            with self.assertRaisesRegex(error, sentence):
                ferry.plan(spec)
        on_bytes = '"w" has elements of 4 bits, and a box of it from rank 0 to rank 0'
        refused(on_bytes, ferry.InvalidPlan, [1, 2, 4], [0, 0, 3], [8, 4, 1])
        refused(on_bytes, ferry.InvalidPlan, [1, 2, 3], [0, 0, 2], [8, 4, 1])
        refused(on_bytes, ferry.InvalidPlan, [1, 2, 4], [0, 0, 2], [8, 1, 2])

    def test_cast(self):
        values = [1.0, -2.5, 3.140625, 0.0]
        path = self.at("f.safetensors")
        write_file(path, {"f": ("F32", [4], struct.pack("<4f", *values)),
                          "i": ("I64", [1], bytes(8))})

        class Dtype:
            def __str__(self):
                return "torch.bfloat16"

        upper = struct.pack("<4f", *values)  # exact in bf16: its upper halves
        upper = b"".join(upper[k + 2:k + 4] for k in range(0, 16, 4))
        for i, cast in enumerate(("bf16", "BF16", Dtype())):
            ferry.reshard(path, "hf", self.at("cast%d" % i), cast=cast)
            found = read_file(os.path.join(self.at("cast%d" % i), "model.safetensors"))
            self.assertEqual(found, {"f": ("BF16", [4], upper), "i": ("I64", [1], bytes(8))})
        for bad in ("i8", "no such type", "bytes:3"):
            with self.assertRaises(ferry.Error):
                ferry.reshard(path, "hf", self.at("bad"), cast=bad)
            self.assertFalse(os.path.exists(self.at("bad")))

    def test_parts(self):
        result = ferry.reshard(self.model, "hf", self.at("parts"), part_bytes=100, threads=2,
                               memory_cap=1 << 20)
        self.assertGreater(len(result.files), 1)
        self.assertTrue(os.path.exists(os.path.join(self.at("parts"),
                                                    "model.safetensors.index.json")))
        ferry.verify(self.at("parts"), self.model)

    def test_dry_run(self):
        before = sorted(os.listdir(self.folder))
        plain = ferry.reshard(self.model, TP, dry_run=True)
        tried = ferry.reshard(self.model, TP, self.at("tp2"), dry_run=True)
        self.assertEqual(sorted(os.listdir(self.folder)), before)
        real = ferry.reshard(self.model, TP, self.at("tp2"))
        for one in (plain, tried):
            self.assertTrue(one.dry_run)
            self.assertEqual((one.files, one.n_tensors, one.read_bytes, one.file_bytes),
                             (real.files, real.n_tensors, real.read_bytes, real.file_bytes))
            self.assertEqual((one.written_bytes, one.seconds), (0, 0))
        self.assertIsNone(plain.estimated_seconds)
        with self.assertRaisesRegex(ferry.FileError, "exists already"):
            ferry.reshard(self.model, TP, self.at("tp2"), dry_run=True)

    def test_wrong(self):
        before = sorted(os.listdir(self.folder))
        missing, out = self.at("missing"), self.at("out")
        for error, call in (
            (ferry.FileError, lambda: ferry.reshard(missing, TP, out)),
            (ferry.FileError, lambda: ferry.reshard(self.model, TP, self.model)),
            (ferry.InvalidInput, lambda: ferry.reshard(self.model, TP)),
            (ferry.InvalidInput, lambda: ferry.reshard(self.model, {}, out)),
            (ferry.Error, lambda: ferry.reshard(self.model, "no such form", out)),
            (ferry.InvalidInput, lambda: ferry.reshard(self.model, TP, out, threads=-1)),
            (ferry.InvalidInput, lambda: ferry.reshard(self.model, TP, out, part_bytes="1")),
            (ferry.Error, lambda: ferry.reshard(self.model, TP, out, memory_cap=5)),
            (ferry.Error, lambda: ferry.reshard(self.model, TP, out, subset="none")),
            (TypeError, lambda: ferry.reshard(self.model, TP, 5)),
        ):
            with self.assertRaises(error):
                call()
            self.assertEqual(sorted(os.listdir(self.folder)), before)


class ProgressTest(Files):
    """Of a model that takes long enough to be told of: what is done at once is not."""

    def setUp(self):
        super().setUp()
        size = 8 << 20
        self.tensors["norm"] = "F32", [size // 4], os.urandom(1 << 16) * (size >> 16)
        write_file(os.path.join(self.model, "model.safetensors"), self.tensors)
        self.before = sorted(os.listdir(self.folder))

    def told(self, work, progress, **options):
        """Calls until there was something to tell: work that ends before this thread looks for it
        the first time, as on a busy machine, is not told of."""
        for _ in range(100):
            seen = []

            def note(state):
                seen.append(state)
                return progress(state)

            result = work(progress=note, **options)
            if any(state.phase != "syncing" for state in seen):
                return seen, result
            shutil.rmtree(self.at("out"), ignore_errors=True)
        self.fail("it tells nothing")

    def reshard(self, progress, **options):
        def work(**more):
            return ferry.reshard(self.model, TP, self.at("out"), **more)

        return self.told(work, progress, **options)

    def verify(self, progress):
        return self.told(lambda progress: ferry.verify(self.model, self.model, progress=progress),
                         progress)

    def nothing_left(self):
        self.assertEqual(sorted(os.listdir(self.folder)), self.before)

    def test_is_told(self):
        seen, result = self.reshard(lambda state: None)
        self.assertEqual({p.phase for p in seen} - {"syncing"}, {"copying"})
        last = [p for p in seen if p.phase == "copying"][-1]
        self.assertEqual(last.done_bytes, last.total_bytes)
        self.assertGreater(result.written_bytes, last.total_bytes)
        self.assertEqual(sorted(p.seconds for p in seen), [p.seconds for p in seen])
        self.assertEqual({p.phase for p in self.verify(lambda state: True)[0]}, {"verifying"})

    def test_false_stops(self):
        for work in (self.reshard, self.verify):
            self.assertRaises(ferry.Stopped, work, lambda state: False)
            self.nothing_left()

    def test_what_it_raises_comes_out(self):
        own = KeyError("own")

        def fail(state):
            raise own

        for work in (self.reshard, self.verify):
            with self.assertRaises(KeyError) as raised:
                work(fail)
            self.assertIs(raised.exception, own)
            self.nothing_left()

    def test_what_it_raises_at_the_end(self):
        """Everything has been copied, and is removed all the same."""
        def fail(state):
            if state.done_bytes == state.total_bytes:
                raise SystemExit(3)

        self.assertRaises(SystemExit, self.reshard, fail)
        self.nothing_left()

    def test_interrupt(self):
        """Without a callback, Ctrl-C while threads copy: they stop, and nothing is left."""
        path = self.at("large.safetensors")

        def make(size):
            text = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
            with open(path, "wb") as file:
                file.write(struct.pack("<Q", len(text)) + text.encode())
                file.truncate(8 + len(text) + size)

        make(1)
        before = set(os.listdir(self.folder))

        def interrupt():
            until(lambda: set(os.listdir(self.folder)) != before)
            os.kill(os.getpid(), signal.SIGINT)

        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, handler)
        for attempt in range(10):  # it may end before it looks for signals, and so before this one
            make(64 << 20 + min(attempt, 3))
            thread = threading.Thread(target=interrupt)
            with self.assertRaises(KeyboardInterrupt):
                thread.start()
                ferry.reshard(path, "hf", self.at("out"), threads=1, memory_cap=1 << 20)
                thread.join()
            thread.join()
            if not os.path.exists(self.at("out")):
                break
            shutil.rmtree(self.at("out"))
        else:
            self.fail("no reshard was interrupted")
        self.assertEqual(set(os.listdir(self.folder)), before)

    def test_resume(self):
        def stop(state):
            return state.done_bytes < state.total_bytes

        with self.assertRaises(ferry.Stopped):
            self.reshard(stop, resume=True)
        self.assertNotEqual(sorted(os.listdir(self.folder)), self.before)
        result = ferry.reshard(self.model, TP, self.at("out"), resume=True)
        self.assertGreater(result.resumed_bytes, 0)
        self.assertEqual(sorted(os.listdir(self.folder)), sorted([*self.before, "out"]))
        self.assertEqual(self.read_ranks(self.at("out"), 2), cut_in_two(self.tensors))

    def test_onto(self):
        old = self.at("old")
        ferry.reshard(self.model, TP, old)
        result = ferry.reshard(self.model, TP, self.at("out"), onto=old)
        self.assertEqual(result.kept_bytes, result.written_bytes)
        self.assertEqual(self.read_ranks(self.at("out"), 2), cut_in_two(self.tensors))
        with self.assertRaisesRegex(ferry.InvalidInput, "cannot be written onto"):
            ferry.reshard(self.model, "hf", self.at("other"), onto=old)
        self.assertEqual(sorted(os.listdir(self.folder)), sorted([*self.before, "old", "out"]))

    def test_working_folder_changes(self):
        """Paths mean what they meant when the call began, wherever the process is later."""
        here = os.getcwd()
        self.addCleanup(os.chdir, here)
        shutil.copytree(self.model, self.at("source"))
        with open(self.at("source/b.txt"), "w") as file:
            file.write("copied along")
        os.chdir(self.folder)
        phases = []

        def leave(state):
            phases.append(state.phase)
            os.chdir("/")

        ferry.reshard("source", TP, "out", progress=leave)
        self.assertIn("copying", phases)
        self.assertEqual(self.read_ranks(self.at("out"), 2), cut_in_two(self.tensors))
        with open(self.at("out/b.txt")) as file:
            self.assertEqual(file.read(), "copied along")

    def test_other_threads_go_on(self):
        """The lock is free while ferry.reshard works: its progress comes from another thread."""
        results = []

        def work(name):
            ferry.reshard(self.model, TP, self.at(name), progress=results.append)
            results.append(name)

        threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b", "c")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name in ("a", "b", "c"):
            self.assertIn(name, results)
            self.assertEqual(self.read_ranks(self.at(name), 2), cut_in_two(self.tensors))


class InspectTest(Files):
    def test_logical(self):
        checkpoint = ferry.inspect(self.model)
        self.assertEqual((checkpoint.is_sharded, checkpoint.layout), (False, None))
        self.assertEqual((len(checkpoint), checkpoint.n_tensors, checkpoint.n_files), (5, 5, 1))
        found = {t.name: (t.dtype, t.shape, t.bytes) for t in checkpoint}
        words = {"BF16": "bf16", "F32": "f32", "I64": "i64"}
        self.assertEqual(found, {name: (words[word], tuple(shape), len(data))
                                 for name, (word, shape, data) in self.tensors.items()})
        self.assertEqual(checkpoint.tensor_bytes, sum(n for _, _, n in found.values()))
        path = os.path.join(self.model, "model.safetensors")
        self.assertEqual(list(checkpoint.files),
                         [("model.safetensors", None, os.path.getsize(path), 5)])
        self.assertEqual(checkpoint.file_bytes, os.path.getsize(path))
        self.assertEqual(ferry.inspect(path).n_tensors, 5)

    def test_sharded(self):
        ferry.reshard(self.model, TP, self.at("tp2"))
        checkpoint = ferry.inspect(self.at("tp2"))
        self.assertTrue(checkpoint.is_sharded)
        self.assertEqual(checkpoint.layout["mesh"], [["tp", 2]])
        self.assertEqual(checkpoint["columns"].shape, (3, 8))
        self.assertEqual([f.rank for f in checkpoint.files], [0, 1])

    def test_is_a_sequence_read_when_asked(self):
        checkpoint = ferry.inspect(self.model)
        tensors = checkpoint.tensors
        self.assertEqual([len(tensors), len(tensors[1:3]), len(tensors[-2:])], [5, 2, 2])
        self.assertEqual(tensors[-1], tensors[4])
        self.assertRaises(IndexError, lambda: tensors[5])
        self.assertIn("norm", checkpoint)
        self.assertNotIn("other", checkpoint)
        self.assertRaises(KeyError, lambda: checkpoint["other"])
        self.assertEqual(set(checkpoint.names()), set(self.tensors))
        self.assertIn("5 tensors in 1 files", repr(checkpoint))
        self.assertIn("...", repr(tensors))

    def test_wrong(self):
        from ferry import _ferry

        self.assertRaises(ferry.FileError, ferry.inspect, self.at("missing"))
        self.assertRaises(TypeError, ferry.inspect, 5)
        with open(self.at("bad.safetensors"), "wb") as file:
            file.write(b"\xff" * 40)
        self.assertRaises(ferry.InvalidInput, ferry.inspect, self.at("bad.safetensors"))
        self.assertRaisesRegex(TypeError, "ferry.inspect", _ferry.Checkpoint)
        handle = ferry.inspect(self.model)._handle
        for index in (5, -1, 1 << 64, None):
            self.assertRaises(ferry.Error, handle.tensor_at, index)
            self.assertRaises(ferry.Error, handle.file_at, index)

    def test_fork(self):
        checkpoint = ferry.inspect(self.model)
        child = os.fork()
        if child == 0:
            os._exit(0 if len(list(checkpoint)) == 5 else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)


class LeakTest(Files):
    def test_nothing_leaks(self):
        ferry.reshard(self.model, TP, self.at("layout"))
        layout = ferry.inspect(self.at("layout"))

        def use():
            for _ in range(10):
                checkpoint = ferry.inspect(self.model)
                list(checkpoint), list(checkpoint.files), checkpoint["norm"]
                ferry.reshard(checkpoint, layout, dry_run=True)
                ferry.verify(checkpoint, self.model, digests=True, threads=1,
                              memory_cap=1 << 20, progress=lambda p: [p])

        use()
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(10):
            use()
        gc.collect()
        self.assertLess(sys.getallocatedblocks() - before, 80)  # one a round: 100


class CompareTest(Files):
    def other(self, **changes):
        path = self.at("other.safetensors")
        tensors = dict(self.tensors, **changes)
        write_file(path, {name: entry for name, entry in tensors.items() if entry is not None})
        return path

    def test_equal(self):
        ferry.reshard(self.model, TP, self.at("tp2"))
        result = ferry.verify(self.model, ferry.inspect(self.at("tp2")), digests=True)
        self.assertEqual((result.n_tensors, result.n_replicas), (5, 2))
        self.assertEqual(result.tensor_bytes, sum(len(d) for _, _, d in self.tensors.values()))
        self.assertEqual(set(result.digests), set(self.tensors))
        self.assertEqual(len(set(result.digests.values())), 5)
        for text in result.digests.values():
            self.assertRegex(text, r"^[0-9a-f]{16}$")
        self.assertIsNone(ferry.verify(self.model, self.model).digests)

    def test_a_subset(self):
        ferry.reshard(self.model, TP, self.at("norm"), subset="norm,rows.*")
        result = ferry.verify(self.model, self.at("norm"), subset="norm,rows.*", digests=True)
        wanted = {name for name in self.tensors if name == "norm" or name.startswith("rows.")}
        self.assertEqual((set(result.digests), result.n_tensors), (wanted, len(wanted)))
        for subset, tensor in (("norm", "rows."), (None, "")):
            with self.assertRaises(ferry.Different) as raised:
                ferry.verify(self.model, self.at("norm"), subset=subset)
            self.assertTrue(raised.exception.tensor.startswith(tensor), raised.exception)
        with self.assertRaises(ferry.InvalidInput):
            ferry.verify(self.model, self.at("norm"), subset="no-such")

    def different(self, path, tensor, place, words):
        with self.assertRaises(ferry.Different) as raised:
            ferry.verify(self.model, path)
        error = raised.exception
        self.assertEqual((error.tensor, error.slice), (tensor, place))
        self.assertRegex(str(error), words)

    def test_an_element(self):
        word, shape, data = self.tensors["rows.1"]
        changed = bytearray(data)
        changed[4 * (3 * 3 + 2)] ^= 1
        self.different(self.other(**{"rows.1": (word, shape, bytes(changed))}), "rows.1", "3, 2",
                       r'^"rows.1" differs at element \[3, 2\]')

    def test_headers(self):
        word, shape, data = self.tensors["norm"]
        self.different(self.other(norm=None), "norm", None, "but not in")
        self.different(self.other(norm=("I32", shape, data)), "norm", None, "I32")
        self.different(self.other(norm=(word, [7, 1], data)), "norm", None, "shape")


if __name__ == "__main__":
    unittest.main()
