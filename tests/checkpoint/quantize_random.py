#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Random weights through --quantize and --dequantize, every bit held against the definitions.

    quantize_random.py --ferry PATH --oracle PATH [--seed S] [--count N] [--only TEXT]

The oracle is blocks_oracle.c: it shares no code with ferry. What is asked of ferry is one result,
whatever the layouts on both sides, the threads and the memory cap.
"""

import json
import math
import re
import struct
import subprocess
import sys
from fractions import Fraction

import models
import reshard_oracle as oracle
import store
from reshard_random import special_floats, with_options, write_layout
from results import check_sharded, same_tensors, shown_in, source_order
from runner import Ferry, must, parser_of, require_sentence, run_cases
from store import Tensor, word_bits

VALUE_WORDS = ["BF16", "F32", "F16"]
NAMES = {word: name for word, (_, name) in store.WORDS.items()}
LARGEST, COVER, FLOOR = 0, 1, 2


class Format:
    """A format of blocks, as the option says it."""

    def __init__(self, text):
        self.text = text
        parts = text.split(":")
        self.codes, self.scales, self.rule = "F8_E4M3", "F32", LARGEST
        self.suffix, self.has_matrix_scales = "_scale_inv", False
        if text == "mxfp8":
            self.scales, self.rule, self.block, self.suffix = "F8_E8M0", FLOOR, [1, 32], "_scale"
        elif text == "nvfp4":
            self.codes, self.scales, self.block = "F4", "F8_E4M3", [1, 16]
            self.suffix, self.has_matrix_scales = "_scale", True
        else:
            self.codes = {"f8e4m3": "F8_E4M3", "f8e5m2": "F8_E5M2"}[parts[0]]
            self.block = [int(size) for size in parts[1].split("x")]
            if parts[2:] == ["e8m0"]:
                self.scales = "F8_E8M0"
            if parts[2:] in (["e8m0"], ["pow2"]):
                self.rule = COVER

    def scales_shape(self, shape):
        return shape[:-2] + [-(-shape[-2] // self.block[0]), -(-shape[-1] // self.block[1])]


def draw_format(rng):
    if rng.random() < 0.4:
        return Format(rng.choice(["mxfp8", "nvfp4"]))
    return Format("%s:%dx%d%s" % (rng.choice(["f8e4m3", "f8e4m3", "f8e5m2"]),
                                  rng.choice([1, 2, 3, 4, 8, 128]), rng.choice([1, 2, 4, 7, 32]),
                                  rng.choice(["", "", ":f32", ":pow2", ":e8m0"])))


# ---- what it must be -----------------------------------------------------------------------------


class Definitions:
    """Calls blocks_oracle."""

    def __init__(self, path):
        self.path = path

    def call(self, what, form, word, shape, scale, data):
        arguments = [what, NAMES[word], NAMES[form.codes], NAMES[form.scales], str(form.rule),
                     str(shape[-2]), str(shape[-1]), str(form.block[0]), str(form.block[1]),
                     str(scale)]
        return subprocess.run([self.path, *arguments], input=data, capture_output=True,
                              check=True).stdout

    def quantize(self, form, tensor):
        """The weight, its scales, and if there are such those of its matrices."""
        rows, columns = tensor.shape[-2:]
        codes, scales, matrix_scales = b"", b"", b""
        size = rows * columns * word_bits(tensor.word) // 8
        n_codes = rows * columns * word_bits(form.codes) // 8
        for i in range(math.prod(tensor.shape[:-2])):
            data = tensor.data[i * size:(i + 1) * size]
            scale = matrix_scale(tensor.word, data) if form.has_matrix_scales else 0
            made = self.call("quantize", form, tensor.word, tensor.shape, scale, data)
            codes += made[:n_codes]
            scales += made[n_codes:]
            matrix_scales += struct.pack("<I", scale)
        made = [Tensor(tensor.name, form.codes, tensor.shape, codes),
                Tensor(tensor.name + form.suffix, form.scales, form.scales_shape(tensor.shape),
                       scales)]
        if form.has_matrix_scales:
            made.append(Tensor(tensor.name + "_scale_2", "F32", tensor.shape[:-2], matrix_scales))
        return {tensor.name: tensor for tensor in made}

    def dequantize(self, form, made, name, word):
        weight, scales = made[name], made[name + form.suffix]
        n_codes = len(weight.data) // max(math.prod(weight.shape[:-2]), 1)
        n_scales = len(scales.data) // max(math.prod(weight.shape[:-2]), 1)
        data = b""
        for i in range(math.prod(weight.shape[:-2])):
            scale = 0
            if form.has_matrix_scales:
                scale = struct.unpack_from("<I", made[name + "_scale_2"].data, 4 * i)[0]
            data += self.call("dequantize", form, word, weight.shape, scale,
                              weight.data[i * n_codes:(i + 1) * n_codes] +
                              scales.data[i * n_scales:(i + 1) * n_scales])
        return Tensor(name, word, weight.shape, data)


def to_f32(value):
    """The f32 that is nearest, ties to even, of a normal number: its bits."""
    exponent = 0
    while value >= 2:
        value, exponent = value / 2, exponent + 1
    while value < 1:
        value, exponent = value * 2, exponent - 1
    return round(value * (1 << 23)) - (1 << 23) + ((exponent + 127) << 23)


def matrix_scale(word, data):
    """Of the largest finite magnitude, over 6 and 448."""
    size, largest = word_bits(word) // 8, Fraction(0)
    for at in range(0, len(data), size):
        _, kind, mantissa, exponent = oracle.unpack(word,
                                                    int.from_bytes(data[at:at + size], "little"))
        if kind == "number":
            largest = max(largest, Fraction(mantissa) * Fraction(2) ** exponent)
    if largest == 0:
        return to_f32(Fraction(1))
    return to_f32(max(largest / (6 * 448), Fraction(1, 1 << 117)))


# ---- models and layouts --------------------------------------------------------------------------


def draw_weights(rng, form):
    """Some that are quantized, in one and more matrices, and some that stay."""
    model = models.Model()
    step = 2 if form.codes == "F4" else 1
    for number in range(rng.randint(1, 4)):
        shape = [rng.choice([1, 3, 8, 20, rng.randint(1, 40)]),
                 step * rng.choice([1, 2, 16, 32, rng.randint(1, 40)])]
        if rng.random() < 0.3:
            shape = [rng.randint(1, 4)] + shape
        name = "model.layers.%d.%s_proj.weight" % (number, rng.choice("qko"))
        if len(shape) == 3:
            name = "model.layers.%d.mlp.experts.%s_proj" % (number, rng.choice(["down", "up"]))
        word = rng.choice(VALUE_WORDS)
        n = math.prod(shape)
        model.add(name, word, shape, draw_values(rng, word, n))
    for name, shape in (("model.embed_tokens.weight", [6, 4]), ("model.norm.weight", [8]),
                        ("model.layers.0.mlp.gate.weight", [4, 8]), ("lm_head.weight", [6, 4])):
        if rng.random() < 0.7:
            model.add(name, "BF16", shape, gauss(rng, "BF16", math.prod(shape)))
    return model


def draw_values(rng, word, n):
    """Of one size mostly, as weights are; or of any, with infinities and NaN."""
    how = rng.random()
    if how < 0.1:
        return bytes(n * word_bits(word) // 8)
    if how < 0.5:
        return special_floats(rng, word, n)
    return gauss(rng, word, n)


def gauss(rng, word, n):
    values = [rng.gauss(0, rng.choice([1e-3, 1, 1e4])) for _ in range(n)]
    if word == "F32":
        return struct.pack("<%df" % n, *values)
    if word == "F16":
        return struct.pack("<%de" % n, *(max(-6e4, min(6e4, value)) for value in values))
    return b"".join(struct.pack("<f", value)[2:] for value in values)


def is_weight(name):
    return "_proj" in name


def draw_unit(rng, extent, block):
    """Cuts of an extent that fall between blocks."""
    kind = rng.choice(["unit", "sizes", "whole", "whole"])
    n_blocks = -(-extent // block)
    if kind == "unit" and extent % block == 0:
        return {"unit": block * rng.choice([u for u in (1, 2, 3) if n_blocks % u == 0])}
    if kind == "whole":
        return None
    return {"sizes": n_blocks}


def draw_block_layout(rng, tensors, form):
    """One rule for each weight that cuts it between blocks; stages, pins and replicas as well."""
    axes = [["dp", rng.choice([1, 2])], ["tp", rng.choice([1, 2, 3, 4])],
            ["ep", rng.choice([1, 2])]]
    rng.shuffle(axes)
    size, rules = dict(map(tuple, axes)), []
    for name, tensor in tensors.items():
        if not is_weight(name):
            continue
        shards, free = [], ["tp", "ep"]
        for dim, extent in enumerate(tensor.shape):
            place = dim - (len(tensor.shape) - 2)
            block = form.block[place] if place >= 0 else 1
            cut = draw_unit(rng, extent, block)
            if cut is None or not free:
                continue
            axis = free.pop(rng.randrange(len(free)))
            if "sizes" in cut:
                ends = sorted(rng.randint(0, cut["sizes"]) for _ in range(size[axis] - 1))
                ends = [min(end * block, extent) for end in ends] + [extent]
                cut = {"sizes": [b - a for a, b in zip([0] + ends, ends)]}
            shards.append({"dim": dim, "axis": axis, **cut})
        rule = {"match": name if rng.random() < 0.7 else name.rsplit(".", 1)[0] + "*"}
        if shards:
            rule["shard"] = shards
        if rng.random() < 0.2:
            rule["on"] = {"dp": rng.randrange(size["dp"])}
        rules.append(rule)
    rules.append({"match": "*"})
    layout = {"mesh": axes, "rules": rules}
    if rng.random() < 0.2 and not any("on" in rule for rule in rules):
        match = "model.layers.{}.*" if rng.random() < 0.5 else "model.layers.{}*"
        layout["stages"] = [{"match": match, "count": 9, "axis": "dp"}]
    return layout


def layout_for(rng, layout, tensors):
    return models.layout_file(rng, layout, tensors) if rng.random() < 0.3 else layout


# ---- are scales beside their weights? ------------------------------------------------------------


def check_beside(folder, made, form):
    """In each rank's file, block (i, j) of a shard has scale (i, j) of its own shard of scales."""
    found = store.read_sharded(folder)
    side = oracle.Side(found.layout, "written")
    for name, weight in made.items():
        if not is_weight(name) or name + form.suffix not in made:
            continue
        rows, columns = weight.shape[-2:]
        scales = made[name + form.suffix]
        placement = oracle.place(side, weight)
        for rank in placement.shards:
            local = found.files[rank].by_name[name + form.suffix]
            shape = placement.shards[rank].shape
            must(local.shape == form.scales_shape(list(shape)), "rank %d: %s of %s" %
                 (rank, local, shape))
            size, n = word_bits(form.scales) // 8, local.shape[-1]
            for at, element in enumerate(placement.held(rank)):
                matrix, row, column = at // (shape[-2] * shape[-1]), at // shape[-1], at % shape[-1]
                mine = (matrix * local.shape[-2] + row % shape[-2] // form.block[0]) * n
                mine += column // form.block[1]
                its = element // (rows * columns) * scales.shape[-2]
                its = (its + element // columns % rows // form.block[0]) * scales.shape[-1]
                its += element % columns // form.block[1]
                must(local.data[mine * size:(mine + 1) * size]
                     == scales.data[its * size:(its + 1) * size],
                     "rank %d: %s: element %d has the scale of another" % (rank, name, element))


# ---- cases ---------------------------------------------------------------------------------------


class Case:
    def __init__(self, ferry, definitions, folder, rng):
        self.ferry, self.definitions, self.folder, self.rng = ferry, definitions, folder, rng
        self.form = draw_format(rng)
        self.model = draw_weights(rng, self.form)
        self.source = folder / "source"
        store.write_logical(rng, self.source, list(self.model.tensors.values()), {},
                            rng.choice([1, 2]), {})
        self.made = {}
        for name, tensor in source_order(self.source, self.model).items():
            self.made.update(definitions.quantize(self.form, tensor) if is_weight(name)
                             else {name: tensor})

    def option(self):
        patterns = self.rng.choice(["", "=*_proj*", "=*.0.*_proj*,*_proj*"])
        return ["--quantize", self.form.text + patterns]

    def reshard(self, source, to, name, *options):
        out = self.folder / name
        done = self.ferry.call("reshard", source, "--to", to, "--out", out, *options,
                               *with_options(self.rng))
        must(done.code == 0 and done.error == "", str(done))
        return out

    def layout(self, name, layout, tensors):
        return write_layout(self.folder, name, layout_for(self.rng, layout, tensors), self.rng)

    def check_quantized(self):
        out = self.reshard(self.source, "hf", "codes", *self.option())
        same_tensors(store.read_logical(out).tensors, self.made, "quantized")
        self.verify(self.source, out, *self.option())
        self.check_spoiled(out)
        layout = draw_block_layout(self.rng, self.model.tensors, self.form)
        middle = models.draw_layout(self.rng, self.model.tensors, may_skip=False)
        source = self.source
        if self.rng.random() < 0.5:
            source = self.reshard(source, self.layout("middle", middle, self.model.tensors), "mid")
        file = self.layout("blocks", layout, self.model.tensors)
        out = self.reshard(source, file, "sharded", *self.option())
        written = store.read_sharded(out).layout
        check_sharded(out, self.made, {key: written[key] for key in written
                                       if key in ("mesh", "rules", "stages")}, self.model)
        check_beside(out, self.made, self.form)
        self.verify(source, out, *self.option())
        out = self.reshard(out, "hf", "again")
        same_tensors(store.read_logical(out).tensors, self.made, "put together")

    def verify(self, a, b, *options):
        done = self.ferry.verify(a, b, *options, *with_options(self.rng))
        must(done.code == 0 and done.error == "", str(done))

    def check_spoiled(self, out):
        """A bit that is another, of codes or of scales, is found, and its tensor named."""
        names = [name for name in self.made if self.made[name].data]
        of_matrices = [name for name in names if name.endswith("_scale_2")]
        name = self.rng.choice(of_matrices if of_matrices and self.rng.random() < 0.7 else names)
        path = self.rng.choice([path for path in out.glob("*.safetensors")])
        data = path.read_bytes()
        text, after = store.split_file(data, path.name)
        begin = len(data) - len(after)
        entry = json.loads(text).get(name)
        if entry is None:
            return
        at = begin + self.rng.randrange(*entry["data_offsets"])
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << self.rng.randrange(8)]) + data[at + 1:])
        done = self.ferry.verify(self.source, out, *self.option())
        must(done.code == 1 and '"%s" differs' % name in done.error, str(done))
        path.write_bytes(data)

    def check_dequantized(self):
        word = self.rng.choice(VALUE_WORDS)
        expected = {name: tensor if not is_weight(name)
                    else self.definitions.dequantize(self.form, self.made, name, word)
                    for name, tensor in source_order(self.source, self.model).items()}
        cast = [] if word == "BF16" and self.rng.random() < 0.5 else ["--cast", NAMES[word]]
        if cast:
            expected = {name: tensor if is_weight(name) else cast_of(tensor, word)
                        for name, tensor in expected.items()}
        source = self.folder / "codes"
        if self.rng.random() < 0.7:
            layout = models.draw_layout(self.rng, self.made, may_skip=False)
            source = self.reshard(source, self.layout("any", layout, self.made), "anyhow")
        option = ["--dequantize=" + self.form.text, *cast]
        out = self.reshard(source, "hf", "values", *option)
        same_tensors(store.read_logical(out).tensors, expected, "dequantized")
        layout = models.draw_layout(self.rng, expected, may_skip=False)
        file = write_layout(self.folder, "last", layout, self.rng)
        even = self.form.codes != "F4" or all_even(layout, self.made, expected)
        if even:
            out = self.reshard(source, file, "values-sharded", *option)
            listed = [entry["name"] for entry in store.read_sharded(out).layout["tensors"]]
            order = listed + [name for name in expected if name not in listed]
            check_sharded(out, {name: expected[name] for name in order}, layout, self.model)
            if len(listed) == len(expected):
                self.verify(source, out, *option)

    def run(self):
        self.check_quantized()
        self.check_dequantized()


def all_even(layout, made, expected):
    """Whether codes that are half a byte can be cut where their values are."""
    side = oracle.Side(layout, "last")
    try:
        for name in expected:
            oracle.place(side, made[name])
    except oracle.SpecError:
        return False
    return True


def cast_of(tensor, word):
    if tensor.word == word:
        return tensor
    size = word_bits(tensor.word) // 8
    codes = [oracle.cast_code(tensor.word, word, int.from_bytes(tensor.data[at:at + size], "little"))
             for at in range(0, len(tensor.data), size)]
    return Tensor(tensor.name, word, tensor.shape,
                  b"".join(code.to_bytes(word_bits(word) // 8, "little") for code in codes))


WIDE = ["f8e4m3:16x16", "f8e4m3:64x32:e8m0", "f8e5m2:8x128", "nvfp4"]


def check_wide(ferry, definitions, folder, rng, text):
    """Rows of blocks that no buffer holds: tiles are parts of rows, and matrices many tiles."""
    form = Format(text)
    columns = rng.choice([30000, 40001, 65536]) // 2 * 2
    columns += text != "nvfp4" and rng.random() < 0.5
    shape = [max(rng.randint(1, 3) * form.block[0] // 2, 3), columns]
    model = models.Model()
    model.add("layers.0.a_proj.weight", "BF16", shape, rng.randbytes(2 * math.prod(shape)))
    store.write_logical(rng, folder / "source", list(model.tensors.values()), {}, 1, {})
    made = definitions.quantize(form, model.tensors["layers.0.a_proj.weight"])
    options = ["--memory-cap", "1M", "--threads", "2"]
    ferry.reshard(folder / "source", "hf", folder / "codes", "--quantize", form.text, *options)
    same_tensors(store.read_logical(folder / "codes").tensors, made, "wide")
    half = columns // 2 // form.block[1] * form.block[1]
    layout = {"mesh": [["tp", 2]], "rules": [
        {"match": "*", "shard": [{"dim": 1, "axis": "tp", "sizes": [half, columns - half]}]}]}
    file = folder / "layout.json"
    file.write_text(json.dumps(layout))
    ferry.reshard(folder / "source", file, folder / "sharded", "--quantize", form.text, *options)
    ferry.require_equal(folder / "sharded", folder / "codes")
    told = ferry.reshard_json(folder / "source", file, folder / "onto", "--quantize", form.text,
                              "--onto", folder / "sharded", *options)
    must(told["kept_bytes"] == told["written_bytes"], "onto itself: %s" % told)
    for path in (folder / "sharded").iterdir():
        must((folder / "onto" / path.name).read_bytes() == path.read_bytes(), "onto: %s" % path)
    done = ferry.verify(folder / "source", folder / "sharded", "--quantize", form.text, *options)
    must(done.code == 0, str(done))
    ferry.reshard(folder / "sharded", "hf", folder / "values", "--dequantize=" + form.text,
                  *options)
    expected = definitions.dequantize(form, made, "layers.0.a_proj.weight", "BF16")
    same_tensors(store.read_logical(folder / "values").tensors, {expected.name: expected}, "wide")


def check_inside(ferry, definitions, folder, rng):
    """Values that are cut inside blocks, on both dimensions and in strides."""
    form, name = Format("f8e4m3:4x8"), "layers.0.a_proj.weight"
    model = models.Model()
    values = [rng.gauss(0, 2.0 ** (row // 4 * 3 + column // 8)) for row in range(24)
              for column in range(40)]
    model.add(name, "F32", [24, 40], struct.pack("<960f", *values))
    store.write_logical(rng, folder / "source", list(model.tensors.values()), {}, 1, {})
    made = definitions.quantize(form, model.tensors[name])
    expected = definitions.dequantize(form, made, name, "BF16")
    ferry.reshard(folder / "source", "hf", folder / "codes", "--quantize", form.text)
    for number, shards in enumerate((
            [{"dim": 0, "axis": "a", "sizes": [6, 18]}, {"dim": 1, "axis": "b", "sizes": [13, 27]}],
            [{"dim": 0, "axis": "a", "stride": 3}, {"dim": 1, "axis": "b", "cycle": 5}])):
        layout = {"mesh": [["a", 2], ["b", 2]], "rules": [{"match": "*", "shard": shards}]}
        file = write_layout(folder, "layout%d" % number, layout, rng)
        out = folder / ("values%d" % number)
        ferry.reshard(folder / "codes", file, out, "--dequantize=" + form.text)
        check_sharded(out, {name: expected}, layout, model)


def check_short_form(ferry, definitions, folder, rng):
    """Built-in rules cut weights between blocks, and scales where their weights are."""
    model, form = models.Model(), Format(rng.choice(["f8e4m3:4x8", "f8e4m3:8x4:e8m0", "mxfp8"]))
    n_layers, hidden, inner, head = 4, 64, 64 * rng.randint(2, 4), 8
    config = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": n_layers,
              "hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": 8,
              "num_key_value_heads": 8, "head_dim": head}
    for layer in range(n_layers):
        for name, shape in (("self_attn.q_proj", [8 * head, hidden]),
                            ("self_attn.k_proj", [8 * head, hidden]),
                            ("self_attn.o_proj", [hidden, 8 * head]),
                            ("mlp.gate_proj", [inner, hidden]), ("mlp.down_proj", [hidden, inner]),
                            ("input_layernorm", [hidden])):
            name = "model.layers.%d.%s.weight" % (layer, name)
            model.add(name, "BF16", shape, gauss(rng, "BF16", math.prod(shape)))
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        model.add(name, "BF16", [16, hidden], gauss(rng, "BF16", 16 * hidden))
    store.write_logical(rng, folder / "source", list(model.tensors.values()), {}, 1,
                        {"config.json": json.dumps(config).encode()})
    made = {}
    for name, tensor in model.tensors.items():
        made.update(definitions.quantize(form, tensor) if is_weight(name) else {name: tensor})
    to = rng.choice(["tp=2", "tp=2,pp=2", "pp=4", "tp=2,dp=2", "tp=1"])
    ferry.reshard(folder / "source", to, folder / "cut", "--quantize", form.text)
    check_beside(folder / "cut", made, form)
    ferry.reshard(folder / "cut", rng.choice(["tp=1,pp=2", "hf"]), folder / "again")
    ferry.require_equal(folder / "cut", folder / "again")
    ferry.reshard(folder / "cut", "hf", folder / "codes")
    same_tensors(store.read_logical(folder / "codes").tensors, made, "a short form")
    ferry.reshard(folder / "cut", "tp=4", folder / "values", "--dequantize")
    done = ferry.verify(folder / "codes", folder / "values", "--dequantize")
    must(done.code == 0, str(done))


class Parts:
    """A model with some weights to be quantized, and what tp should make of each: lengths, or no."""

    def __init__(self, rng):
        self.block, self.tp = rng.choice([(4, 8), (8, 4), (8, 8), (16, 16), (3, 3)]), rng.choice([2, 3, 4, 6, 8])
        kv = rng.choice([n for n in (1, 2, 3, 4, 6, 8, 12) if n % self.tp == 0 or self.tp % n == 0])
        heads, size = math.lcm(kv, self.tp) * rng.choice([1, 2]), rng.choice([2, 4, 8, 16])
        self.inner, self.hidden = rng.choice([4, 1, self.tp, 8 * self.tp]) * rng.randint(8, 40), 32
        self.config = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2,
                       "hidden_size": self.hidden, "intermediate_size": self.inner, "head_dim": size,
                       "num_attention_heads": heads, "num_key_value_heads": kv}
        shared = min(kv, self.tp)
        self.cuts = {  # the dimension that is cut, its extent, and how many parts there are
            "self_attn.q_proj": (0, heads * size, self.tp), "self_attn.k_proj": (0, kv * size, shared),
            "self_attn.v_proj": (0, kv * size, shared), "self_attn.o_proj": (1, heads * size, self.tp),
            "mlp.gate_proj": (0, self.inner, self.tp), "mlp.up_proj": (0, self.inner, self.tp),
            "mlp.down_proj": (1, self.inner, self.tp)}
        self.coded = {layer: set(rng.sample(sorted(self.cuts), rng.randint(layer == 1, 7)))
                      for layer in (0, 1)}

    def lengths(self, layer, module):
        """Of each part; None: it must be refused."""
        dim, extent, parts = self.cuts[module]
        if extent % parts == 0:
            bad = module in self.coded[layer] and extent // parts % self.block[dim]
            return None if bad else [extent // parts] * parts
        unit = math.lcm(*self.block)  # rows of one matrix are columns of another
        cut = [min(extent, -(-(-(-extent // unit)) // parts) * unit * p) for p in range(parts + 1)]
        plain = -(-extent // parts) * (parts - 1) < extent
        made = [end - begin for begin, end in zip(cut, cut[1:])]
        return None if plain and 0 in made else made

    def tensors(self, rng):
        for layer in (0, 1):
            at = "model.layers.%d." % layer
            yield at + "input_layernorm.weight", [self.hidden]
            for module, (dim, extent, _) in self.cuts.items():
                yield at + module + ".weight", [extent, self.hidden] if dim == 0 else [self.hidden, extent]
        for name in ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"):
            yield name, [16, self.hidden][name == "model.norm.weight":]


def check_even_parts(ferry, folder, rng):
    """No rank has less than others because of blocks alone: that is refused, by a sentence that
    helps. Where weights have scales already, the same."""
    p = Parts(rng)
    model = models.Model()
    for name, shape in p.tensors(rng):
        model.add(name, "BF16", shape, gauss(rng, "BF16", math.prod(shape)))
    store.write_logical(rng, folder / "source", list(model.tensors.values()), {}, 1,
                        {"config.json": json.dumps(p.config).encode()})
    coded = sorted("model.layers.%d.%s.weight" % (layer, module)
                   for layer in (0, 1) for module in p.coded[layer])
    options = ["--quantize", "f8e4m3:%dx%d=" % p.block + ",".join(coded)]
    if rng.random() < 0.5:
        ferry.reshard(folder / "source", "hf", folder / "codes", *options)
        source, options = folder / "codes", []
    else:
        source = folder / "source"
    expected = {"model.layers.%d.%s.weight" % (layer, module): p.lengths(layer, module)
                for layer in (0, 1) for module in p.cuts}
    if None in expected.values():
        done = ferry.call("reshard", source, "--to", "tp=%d" % p.tp, "--out", folder / "cut", *options)
        require_sentence(done, "tp=%d" % p.tp, "layout file", "scale")
        named = re.search('"([^"]*)"', done.error).group(1)
        must(named in expected and expected[named] is None, "%s names %s" % (done, named))
        for other in re.findall(r"use tp=(\d+)", done.error):
            ferry.reshard(source, "tp=" + other, folder / "other", *options)
        must(("--dequantize" in done.error) == (not options), str(done))
        if not options:
            ferry.reshard(source, "tp=%d" % p.tp, folder / "values", "--dequantize")
        return
    ferry.reshard(source, "tp=%d" % p.tp, folder / "cut", *options)
    found = store.read_sharded(folder / "cut")
    for rank in range(p.tp):
        for name, lengths in expected.items():
            dim = p.cuts[name.split(".", 3)[3][:-len(".weight")]][0]
            length = lengths[rank * len(lengths) // p.tp]
            shape = found.files[rank].by_name[name].shape
            must(shape[dim] == length and shape[1 - dim] == p.hidden,
                 "rank %d has %s of %s, not %d" % (rank, shape, name, length))
            if name in coded:
                scales = found.files[rank].by_name[name + "_scale_inv"].shape
                must(list(scales) == [-(-n // b) for n, b in zip(shape, p.block)],
                     "rank %d has scales %s of %s of %s" % (rank, scales, shape, name))


# ---- what is refused -----------------------------------------------------------------------------


def weight(name="layers.0.a_proj.weight", word="BF16", shape=(4, 8)):
    return Tensor(name, word, list(shape), bytes(math.prod(shape) * word_bits(word) // 8))


def codes(word="F8_E4M3", scales="F32", shape=(4, 8), scales_shape=(2, 2), suffix="_scale_inv",
          more=()):
    """A weight that is quantized, with scales of its own."""
    w = weight(word=word, shape=shape)
    return [w, Tensor(w.name + suffix, scales, list(scales_shape),
                      bytes(math.prod(scales_shape) * word_bits(scales) // 8)), *more]


W, HF = "layers.0.a_proj.weight", "hf"
F8 = ["--quantize", "f8e4m3:2x4"]


def sides(shard, match="*", **more):
    return {"mesh": [["tp", 2]], "rules": [{"match": match, "shard": [shard], **more},
                                           {"match": "*"}]}


# (what, tensors, layout, options, words of the sentence, more files)
REFUSED = [
    ("a word that nobody defined", [weight()], HF, ["--quantize", "f8"], ["f8", "f8e4m3:128x128"]),
    ("no blocks", [weight()], HF, ["--quantize", "f8e4m3"], ["f8e4m3:128x128"]),
    ("no rows", [weight()], HF, ["--quantize", "f8e4m3:0x4"], ["f8e4m3:0x4"]),
    ("no such scales", [weight()], HF, ["--quantize", "f8e4m3:2x2:f16"], [":e8m0"]),
    ("no pattern", [weight()], HF, ["--quantize", "mxfp8="], ["mxfp8="]),
    ("a pattern that nothing fits", [weight()], HF, ["--quantize", "mxfp8=*.weight,no*"], ["no*"]),
    ("nothing to quantize", [weight("lm_head.weight")], HF, F8, ["source", "quantized"]),
    ("nothing to dequantize", [weight()], HF, ["--dequantize"], ["source", "dequantized"]),
    ("codes that are quantized", codes(), HF, F8, [W, "f8e4m3 already", "dequantize"]),
    ("a name that is taken", [weight(), weight(W + "_scale_inv", "F32", (2, 2))], HF, F8,
     [W + "_scale_inv", "already"]),
    ("quantized by config.json", [weight()], HF, F8, ["config.json", "gptq", "dequantize"],
     {"config.json": b'{"quantization_config": {"quant_method": "gptq"}}'}),
    ("a config.json that is none", [weight()], HF, F8, ["config.json"], {"config.json": b"{"}),
    ("a config.json that is a list", [weight()], HF, F8, ["config.json", "object", "mend it"],
     {"config.json": b"[{}]"}),
    ("odd rows of f4", [weight(shape=(4, 7))], HF, ["--quantize", "nvfp4"], [W, "7"]),
    ("rows cut inside a block", [weight(shape=(6, 8))],
     sides({"dim": 0, "axis": "tp"}), F8, [W, "index 3", "dim 0", '"unit": 2']),
    ("columns cut inside a block", [weight(shape=(4, 12))],
     sides({"dim": 1, "axis": "tp"}), F8, [W, "index 6", "dim 1", '"unit": 4']),
    ("strides inside a block", [weight(shape=(12, 8))],
     sides({"dim": 0, "axis": "tp", "stride": 2}), F8, [W, "index 3"]),
    ("sizes inside a block", [weight()],
     sides({"dim": 0, "axis": "tp", "sizes": [1, 3]}), F8, [W, "index 1"]),
    ("a cycle inside a block", [weight()],
     sides({"dim": 0, "axis": "tp", "cycle": 1}), F8, [W, "index 1"]),
    ("flat cuts", [weight()], {"mesh": [["tp", 2]], "rules": [
        {"match": "*", "flat": {"axis": "tp"}}]}, F8, [W, "flat"]),
    ("scales with a rule that cuts elsewhere", [weight()],
     {"mesh": [["tp", 2]], "rules": [{"match": "*_scale_inv"},
                                     {"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]},
     F8, [W, W + "_scale_inv", "alike"]),
    ("one rule for weights of two and three dimensions",
     [weight(shape=(2, 8)), weight("layers.0.experts.a_proj", shape=(2, 4, 8))],
     sides({"dim": 0, "axis": "tp"}, "*_proj*"), F8, ["two rules"]),
    ("a block that no buffer holds", [weight(shape=(2, 8))], HF,
     ["--quantize", "f8e4m3:1024x1024", "--memory-cap", "1M"], ["memory cap"]),
    ("scales that are missing", codes()[:1], HF, ["--dequantize"],
     [W, W + "_scale_inv", "missing"]),
    ("scales of another shape", codes(), HF, ["--dequantize"], [W + "_scale_inv", "[2, 2]",
                                                               "[1, 1]"]),
    ("scales of another shape than is said", codes(), HF, ["--dequantize=f8e4m3:1x4"],
     [W + "_scale_inv", "[2, 2]", "[4, 2]"]),
    ("scales of another rank", codes(scales_shape=(2, 2, 1)), HF, ["--dequantize=f8e4m3:2x4"],
     [W + "_scale_inv", "[2, 2, 1]"]),
    ("scales of another type", codes(scales="BF16"), HF, ["--dequantize=f8e4m3:2x4"],
     [W + "_scale_inv", "bf16", "f32"]),
    ("scales that are not of f8e8m0", codes(), HF, ["--dequantize=f8e4m3:2x4:e8m0"],
     [W + "_scale_inv", "f8e8m0"]),
    ("f4 without a scale of the matrix", codes("F4", "F8_E4M3", (4, 32), (4, 2), "_scale"), HF,
     ["--dequantize"], [W + "_scale_2"]),
    ("f4 with a scale for each row", codes("F4", "F8_E4M3", (4, 32), (4, 2), "_scale", [
        weight(W + "_scale_2", "F32", (4,))]), HF, ["--dequantize"], [W + "_scale_2"]),
    ("f4 with a scale that is 0", codes("F4", "F8_E4M3", (4, 32), (4, 2), "_scale", [
        weight(W + "_scale_2", "F32", ())]), HF, ["--dequantize"], [W, "2^-117"]),
    ("values that are codes", codes(), HF, ["--dequantize=f8e4m3:2x4", "--cast", "f8e4m3"],
     ["f32, f16 or bf16"]),
    ("a cast of codes", codes(), HF, ["--cast", "bf16"],
     [W, W + "_scale_inv", "f8e4m3", "bf16", "--dequantize", "--exclude"]),
    ("a cast of codes to codes", codes("F8_E5M2", "F8_E8M0", (4, 32), (4, 1), "_scale"), HF,
     ["--cast", "f8e4m3"], [W, W + "_scale", "f8e5m2"]),
    ("a cast of codes with one scale", codes(scales_shape=(), suffix="_scale"), HF,
     ["--cast", "f16"], [W, W + "_scale"]),
    ("a cast of the codes that stay", codes(more=[weight("v", "F8_E4M3"), weight(
        "v_scale_2", "F32", ())]), HF, ["--dequantize=f8e4m3:2x4=" + W, "--cast", "f32"],
     ['"v"', "v_scale_2"]),
    ("a cast of codes in boxes", codes(), {"boxes": [
        {"rank": 0, "parameter": "p", "elements": 8, "holds": [
            {"tensor": W, "begin": [1, 0], "shape": [1, 8], "offset": 0, "strides": [8, 1]}]}]},
     ["--cast", "bf16"], [W, W + "_scale_inv"]),
    ("a cast of what is composed of codes", codes(), {
        "mesh": [["tp", 1]], "rules": [{"match": "*"}],
        "tensors": [{"name": "new", "shape": [4, 8], "dtype": "f8e4m3", "source": W}]},
     ["--cast", "f32"], [W, W + "_scale_inv"]),
    ("codes that others are composed of", codes(), {
        "mesh": [["tp", 1]], "rules": [{"match": "*"}],
        "tensors": [{"name": "new", "shape": [4, 8], "dtype": "f8e4m3", "source": W}]},
     ["--dequantize=f8e4m3:2x4=new"], ["new", "composed"]),
]


def check_refused(ferry, folder, rng, row):
    _, tensors, layout, options, words, *more = row
    store.write_logical(rng, folder / "source", tensors, {}, 1, more[0] if more else {})
    if layout != HF:
        layout_file = folder / "layout.json"
        layout_file.write_text(json.dumps(layout))
        layout = layout_file
    done = ferry.call("reshard", folder / "source", "--to", layout, "--out", folder / "out",
                      *options)
    require_sentence(done, *words)
    must(sorted(path.name for path in folder.iterdir() if path.name != "layout.json")
         == ["source"], "something is left")


# Shapes of scales beside codes of a shape, of fused and of cut tensors as well: not larger; and others.
SCALES = [([4, 8], [[], [1], [1, 1], [4], [4, 1], [1, 8], [2, 2], [3, 5], [4, 8], [5], [8], [2, 1, 3], [32]],
           [[33], [4, 9], [4, 8, 2], [0, 2], [0]]),
          ([2, 4, 8], [[], [2], [2, 1], [2, 1, 1], [2, 4], [2, 4, 1], [2, 2, 2], [6], [2, 5, 1], [4, 8]],
           [[65], [2, 4, 9], [3, 4, 8], [2, 0, 1]]),
          ([6], [[], [1], [3], [6]], [[7], [3, 6], [6, 2]]), ([0, 8], [[1], [1, 1]], [[2], [0, 1]])]


def scales_of_shapes(rng):
    """[(tensor, whether it is scales)], with what they stand beside."""
    said = []
    for row, (shape, fitting, others) in enumerate(SCALES):
        for number, scales in enumerate(fitting + others):
            name = "c%d.%d" % (row, number)
            said.append((Tensor(name, rng.choice(["F8_E4M3", "I8", "U8"]), shape,
                                bytes(math.prod(shape))), False))
            n = math.prod(scales)
            said.append((Tensor(name + rng.choice(["_scale", "_scale_inv", "_scale_2"]), "F32",
                                scales, struct.pack("<%df" % n, *([1.5] * n))),
                         number < len(fitting)))
    return said


def check_kept_scales(ferry, folder, rng):
    """A cast leaves scales as they are, also where the layout names and cuts them anew; a tensor
    that only has such a name is cast."""
    said = scales_of_shapes(rng)
    tensors = [tensor for tensor, _ in said] + [weight("v", "F32", (2, 8))]
    store.write_logical(rng, folder / "source", tensors, {}, 1, {})
    ferry.reshard(folder / "source", HF, folder / "cast", "--cast", "f8e4m3")
    made = store.read_logical(folder / "cast").tensors
    for tensor, is_scales in said:
        its = made[tensor.name]
        one = its.key() == (tensor if is_scales or tensor.word != "F32" else Tensor(
            tensor.name, "F8_E4M3", tensor.shape, b"\x3c" * math.prod(tensor.shape))).key()
        must(one, "%s: %s is %s" % (is_scales, tensor, its))
    must(made["v"].word == "F8_E4M3", "%s" % made["v"])
    done = ferry.verify(folder / "source", folder / "cast", "--cast", "f8e4m3")
    must(done.code == 0, str(done))
    kept = [tensor for tensor, is_scales in said if is_scales and tensor.shape == [4, 8]][-1]
    rows, columns = kept.shape
    whole = {"tensor": kept.name, "begin": [0, 0], "shape": kept.shape, "offset": 0,
             "strides": [1, rows]}
    for number, layout in enumerate((
            {"boxes": [{"rank": 0, "parameter": "s", "elements": rows * columns, "holds": [whole]}]},
            {"mesh": [["tp", 1]], "rules": [{"match": "*"}], "tensors": [
                {"name": "s", "shape": kept.shape, "dtype": "f32", "source": kept.name}]})):
        out = folder / ("out-%d" % number)
        ferry.reshard(folder / "source", write_layout(folder, "to.json", layout, rng), out,
                      "--cast", "f8e4m3")
        found = store.read_file(out / store.rank_name(0)).by_name["s"]
        must(found.word == "F32" and found.data == kept.data, "%s" % found)


def check_other_names(ferry, folder, rng):
    """What compressed-tensors and modelopt call scales of codes, and of activations, is not cast;
    what is called so beside values, or beside nothing, is."""
    one, cast = struct.pack("<f", 1.5), struct.pack("<H", 0x3fc0)
    beside = {"a.weight_packed": ("U8", ["a.weight_scale", "a.weight_global_scale",
                                         "a.input_global_scale"]),
              "b.weight_packed": ("I32", ["b.weight_scale"]),
              "c.weight": ("U8", ["c.weight_scale", "c.weight_scale_2", "c.input_scale"]),
              "d.weight": ("I32", []), "e.weight": ("BF16", []), "f.weight_packed": ("F32", [])}
    alone = ["d.weight_scale", "d.input_scale", "e.weight_scale", "e.input_scale", "f.weight_scale",
             "g.input_scale", "a.input_scale", "c.weight_global_scale", "input_scale"]
    tensors = [Tensor(name, word, [2, 4], bytes(word_bits(word)))
               for name, (word, _) in beside.items()]
    kept = [name for _, names in beside.values() for name in names]
    tensors += [Tensor(name, "F32", [1], one) for name in kept + alone]
    store.write_logical(rng, folder / "source", tensors, {}, 1, {})
    ferry.reshard(folder / "source", HF, folder / "cast", "--cast", "bf16")
    made = store.read_logical(folder / "cast").tensors
    for names, word, data in ((kept, "F32", one), (alone, "BF16", cast)):
        for name in names:
            must((made[name].word, made[name].data) == (word, data), "%s" % made[name])


def check_casts(ferry, folder, rng):
    """Scales stay also where their codes are left out, unless a pattern is for them alone; 8 bits
    without scales are cast; verify refuses what reshard does."""
    stray = Tensor("stray", "F8_E4M3", [2], bytes([0x38, 0x40]))
    half = codes("F4", "F8_E4M3", (4, 32), (4, 2), "_scale", [weight(W + "_scale_2", "F32", ())])
    half = [Tensor("half" + tensor.name[len(W):], tensor.word, tensor.shape, tensor.data)
            for tensor in half]
    store.write_logical(rng, folder / "source", [*codes(), *half, stray], {}, 1, {})
    words = {"stray": "BF16", W + "_scale_inv": "F32", "half": "F4", "half_scale": "F8_E4M3",
             "half_scale_2": "F32"}
    for number, patterns in enumerate((["--exclude", W], ["--exclude", W, "--include", "*"],
                                       ["--include", "*_scale*,half,stray"],
                                       ["--include", W + "_scale_inv,half,half_s*,stray"])):
        out = folder / ("rest-%d" % number)
        ferry.reshard(folder / "source", HF, out, "--cast", "bf16", *patterns)
        found = store.read_logical(out).tensors
        asked = {2: list(words)[1:2] + list(words)[3:], 3: list(words)[1:2] + list(words)[3:]}
        expected = {**words, **{name: "BF16" for name in asked.get(number, [])}}
        must({name: tensor.word for name, tensor in found.items()} == expected and
             found["stray"].data == struct.pack("<2H", 0x3f80, 0x4000), "cast: %s" % found)
    values = [weight(), codes()[1], *half, found["stray"]]
    store.write_logical(rng, folder / "values", values, {}, 1, {})
    done = ferry.verify(folder / "source", folder / "values", "--cast", "bf16")
    must(done.code == 2 and shown_in(W, done.error) and "--dequantize" in done.error, str(done))


def check_config(ferry, folder, rng):
    """What config.json says of quantization is true of the result, and else it is as it was."""
    text = (b'{\n  "eps": 1e-06,\n  "quantization_config": {"quant_method": "fp8", '
            b'"weight_block_size": [2, 4]},\n  "hidden_size": 8\n}\n')
    store.write_logical(rng, folder / "source", codes(), {}, 1, {"config.json": text})
    ferry.reshard(folder / "source", "hf", folder / "values", "--dequantize")
    plain = (folder / "values" / "config.json").read_bytes()
    must(plain == b'{\n  "eps": 1e-06,\n  "hidden_size": 8\n}\n', "config.json: %r" % plain)
    told = ferry.reshard_json(folder / "values", "hf", folder / "codes", *F8)
    config = json.loads((folder / "codes" / "config.json").read_bytes())
    about = config.pop("quantization_config")
    must(config == json.loads(plain) and about["weight_block_size"] == [2, 4]
         and about["quant_method"] == "fp8", "config.json: %s" % about)
    must(told["quantized"] == [{"name": W, "from": "bf16", "to": "f8e4m3",
                                "scales": W + "_scale_inv", "block": [2, 4]}], "%s" % told)
    must(told["dequantized"] == [], "%s" % told)
    ferry.reshard(folder / "codes", "hf", folder / "again", "--dequantize")
    ferry.require_equal(folder / "values", folder / "again")
    check_rest(ferry, folder, rng, text)


def check_rest(ferry, folder, rng, text):
    """Where some stay codes, config.json says which do not; what has no scales is no such code."""
    other = [Tensor("other" + tensor.name[len(W):], tensor.word, tensor.shape, tensor.data)
             for tensor in codes()]
    stray = Tensor("stray", "F8_E4M3", [3], bytes(3))
    store.write_logical(rng, folder / "more", [*codes(), *other, stray], {}, 1,
                        {"config.json": text})
    for form, modules in (("--dequantize", None), ("--dequantize=auto=" + W, [W[:-len(".weight")]])):
        out = folder / ("rest-%d" % len(form))
        told = ferry.reshard_json(folder / "more", "hf", out, form)
        about = json.loads((out / "config.json").read_bytes()).get("quantization_config")
        must((about or {}).get("modules_to_not_convert") == modules and
             (about is None) == (modules is None), "config.json: %s" % about)
        copied, = (entry for entry in told["others"] if entry["name"] == "config.json")
        must(json.loads(copied["quantization_config"] or "null") == about, "told: %s" % told)


def main():
    parser = parser_of(__doc__, 100)
    parser.add_argument("--oracle", required=True, help="the program blocks_oracle")
    arguments = parser.parse_args()
    ferry, definitions = Ferry(arguments.ferry), Definitions(arguments.oracle)
    seeds = range(arguments.seed, arguments.seed + arguments.count)
    cases = [("blocks", lambda folder, rng: Case(ferry, definitions, folder, rng).run(), seed)
             for seed in seeds]
    cases += [("wide " + text,
               lambda folder, rng, text=text: check_wide(ferry, definitions, folder, rng, text), seed)
              for seed in seeds[::20] for text in WIDE]
    cases += [("short form", lambda folder, rng: check_short_form(ferry, definitions, folder, rng),
               seed) for seed in seeds[::5]]
    cases += [("even parts", lambda folder, rng: check_even_parts(ferry, folder, rng), seed)
              for seed in seeds]
    cases.append(("inside", lambda folder, rng: check_inside(ferry, definitions, folder, rng), 0))
    cases += [("refused: " + row[0],
               lambda folder, rng, row=row: check_refused(ferry, folder, rng, row), 0)
              for row in REFUSED]
    cases.append(("casts", lambda folder, rng: check_casts(ferry, folder, rng), 0))
    cases.append(("kept scales", lambda folder, rng: check_kept_scales(ferry, folder, rng), 0))
    cases.append(("other names", lambda folder, rng: check_other_names(ferry, folder, rng), 0))
    cases.append(("config", lambda folder, rng: check_config(ferry, folder, rng), 0))
    return run_cases(arguments, cases)


if __name__ == "__main__":
    sys.exit(main())
