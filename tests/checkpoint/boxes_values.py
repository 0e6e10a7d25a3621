#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Codes that become values in boxes, in one pass: every bit held against a second reading.

    boxes_values.py --ferry PATH [--seed S] [--count N] [--only TEXT] [--keep-going] [--keep]

What a code times a scale is comes from tests/oracle/ferry_dequantize.py, which reckons in
fractions; where it lies from box_files.py. Boxes begin and end anywhere, within blocks too.
"""

import copy
import json
import math
import shutil
import struct
import sys

import box_files
import models
import store
from ferry_dequantize import Dequantize, Product
from reshard_oracle import cast_code
from reshard_random import with_options, write_layout
from results import check_logical, shown_in, source_order
from runner import Ferry, must, parser_of, require_sentence, run_cases
from store import LAYOUT, Tensor, word_bits

SUFFIX = "_scale_inv"
NAMES = {word: name for word, (_, name) in store.WORDS.items()}
VALUES = ["BF16", "BF16", "F32", "F16"]


# ---- what it must be -----------------------------------------------------------------------------


def multiply(how, word, codes, scales):
    """The tensor of the products; each pair of bits is reckoned once."""
    product, known, made = Product(how, NAMES[codes.word], NAMES[scales.word]), {}, []
    size, width = word_bits(scales.word) // 8, word_bits(word) // 8
    for index, code in enumerate(codes.data):
        at = product.block_index(index, codes.shape) * size
        key = code, scales.data[at:at + size]
        if key not in known:
            bits = product.product(code, int.from_bytes(key[1], "little"))
            known[key] = bits.to_bytes(width, "little")
        made.append(known[key])
    return Tensor(codes.name, word, codes.shape, b"".join(made))


def draw_scale(rng, word):
    """Some overflow, some are subnormal, and some are no number."""
    if word == "F8_E8M0":
        return bytes([rng.choice([0, 1, 100, 127, 140, 254, 255, rng.randrange(256)])])
    if rng.random() < 0.1:
        return rng.randbytes(4)
    return struct.pack("<f", rng.choice([-1, 1, 1]) * math.exp(rng.gauss(0, 5)))


class Case:
    """A model with codes, and with tensors that stay; as it becomes in `values`."""

    def __init__(self, rng, shapes, block=None):
        self.rng, self.model = rng, models.Model()
        self.block = block or [rng.choice([1, 2, 3, 5, 16, 128]),
                               rng.choice([1, 2, 4, 7, 16, 128])]
        self.word = rng.choice(VALUES)
        self.how = Dequantize({"dequantize": self.entry(), "dtype": NAMES[self.word]}, "how", must)
        self.values = {}
        for number, shape in enumerate(shapes):
            self.add_codes("layers.%d.w" % number, shape)
        if block is None:
            n = rng.randint(1, 9)
            self.model.add("norm", "F64", [n], rng.randbytes(8 * n))
            self.values["norm"] = self.model.tensors["norm"]

    def entry(self):
        return {"block": self.block, "scale": "*" + SUFFIX}

    def add_codes(self, name, shape):
        rng, blocks = self.rng, self.how.shape(shape)
        of = "F32" if self.block == [1, 1] else rng.choice(["F32", "F32", "F8_E8M0"])
        self.model.add(name, rng.choice(["F8_E4M3", "F8_E4M3", "F8_E5M2"]), shape,
                       rng.randbytes(math.prod(shape)))
        self.model.add(name + SUFFIX, of, blocks,
                       b"".join(draw_scale(rng, of) for _ in range(math.prod(blocks))))
        self.values[name] = multiply(self.how, self.word, self.model.tensors[name],
                                     self.model.tensors[name + SUFFIX])

    def is_code(self, name):
        return name + SUFFIX in self.model.tensors

    def says(self, side):
        """The side, whose parameters are of values, as one of codes that says to dequantize them."""
        side = copy.deepcopy(side)
        for entry in side["boxes"]:
            if any(self.is_code(hold["tensor"]) for hold in entry["holds"]):
                entry.update(dequantize=self.entry(), dtype=NAMES[self.word])
        return side

    def write(self, ferry, folder):
        """As one checkpoint, or cut anywhere, or in boxes."""
        rng, tensors = self.rng, self.model.tensors
        store.write_logical(rng, folder / "logical", list(tensors.values()), {},
                            rng.choice([1, 2]), self.model.others)
        kind = rng.choice(["logical", "mesh", "boxes"])
        if kind == "logical":
            return folder / "logical"
        if kind == "mesh":
            layout = models.draw_layout(rng, tensors, may_skip=False)
        else:
            layout = {"boxes": [whole_entry(rng, tensor) for tensor in tensors.values()]}
        ferry.reshard(folder / "logical", write_layout(folder, "first.json", layout, rng),
                      folder / "first")
        return folder / "first"

    def order(self, folder):
        return {name: self.values[name] for name in source_order(folder, self.model)
                if name in self.values}


def whole_entry(rng, tensor):
    """All of a tensor, its dimensions in any order, on some ranks."""
    order = list(range(len(tensor.shape)))
    rng.shuffle(order)
    return box_files.slice_entry(tensor.name, tensor, order, 0, tensor.shape[-1],
                                 sorted(rng.sample(range(3), rng.randint(1, 2))))


def draw_shape(rng):
    shape = [rng.randint(1, 40), rng.randint(1, 40)]
    return [rng.randint(1, 3)] + shape if rng.random() < 0.3 else shape


# ---- cases ---------------------------------------------------------------------------------------


def check_random(ferry, folder, rng):
    side = None
    while side is None:
        case = Case(rng, [draw_shape(rng) for _ in range(rng.randint(1, 3))])
        side = box_files.draw_side(rng, case.values)
        if side is not None and not any(case.is_code(name) for name in box_files.held_tensors(side)):
            side = None
    source = case.write(ferry, folder)
    values = case.order(folder / "logical")
    file = write_layout(folder, "boxes.json", case.says(side), rng)
    told = ferry.reshard_json(source, file, folder / "out", *with_options(rng))
    held = {name for name in box_files.held_tensors(side) if case.is_code(name)}
    must({entry["name"] for entry in told["dequantized"]} == held, "told: %s" % told)
    box_files.check_boxed(folder / "out", side, values, case.model)
    ferry.reshard(source, file, folder / "again", *with_options(rng))
    must(store.tree(folder / "again") == store.tree(folder / "out"), "options change the bytes")
    told = ferry.reshard_json(source, file, folder / "onto", "--onto", folder / "out",
                              *with_options(rng))
    must(told["kept_bytes"] == told["written_bytes"], "onto itself: %s" % told)
    must(store.tree(folder / "onto") == store.tree(folder / "out"), "--onto changes the bytes")
    check_option(ferry, folder, case, source, side)
    check_new_version(ferry, folder, case, file)


def check_option(ferry, folder, case, source, side):
    """--dequantize makes the same of a side that says nothing, and verify knows both."""
    rng, word = case.rng, case.word
    kinds = {case.model.tensors[name].word for name in case.values if case.is_code(name)}
    powers = {case.model.tensors[name + SUFFIX].word for name in case.values if case.is_code(name)}
    if len(kinds) > 1 or len(powers) > 1:
        return  # one format for all
    form = "%s:%dx%d%s" % (NAMES[kinds.pop()], *case.block,
                           ":e8m0" if powers == {"F8_E8M0"} else "")
    options = ["--dequantize=" + form, *(["--cast", NAMES[word]] if word != "BF16" else [])]
    boxes = [entry for entry in side["boxes"]
             if all(case.is_code(hold["tensor"]) for hold in entry["holds"])]
    if not boxes:
        return
    said = write_layout(folder, "said.json", case.says({"boxes": boxes}), rng)
    plain = write_layout(folder, "plain.json", {"boxes": boxes}, rng)
    ferry.reshard(source, said, folder / "said", *with_options(rng))
    ferry.reshard(source, plain, folder / "plain", *options, *with_options(rng))
    must(store.tree(folder / "plain") == store.tree(folder / "said"), "%s differs" % options)
    done = ferry.verify(source, folder / "said", *options, "--json", *with_options(rng))
    must(done.code == 0 and done.error == "", str(done))
    for entry in json.loads(done.out)["tensors"]:
        must(entry["digest"] == store.checksum(case.values[entry["name"]].data),
             "verify: %s" % entry)
    rank, name, _ = box_files.flip(rng, folder / "said", folder / "damaged")
    if name is not None:
        done = ferry.verify(source, folder / "damaged", *options)
        must(done.code == 1 and shown_in(name, done.error) and str(rank) in done.error, str(done))


def check_new_version(ferry, folder, case, file):
    """--onto an older version, of which one scale was another."""
    rng = case.rng
    name = rng.choice([name for name in case.values if case.is_code(name)]) + SUFFIX
    old = case.model.tensors[name]
    data = bytearray(old.data)
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    tensors = {**case.model.tensors, name: Tensor(name, old.word, old.shape, bytes(data))}
    store.write_logical(rng, folder / "newer", list(tensors.values()), {}, 1, {})
    store.write_logical(rng, folder / "older", list(case.model.tensors.values()), {}, 1, {})
    for which in ("older", "newer"):
        ferry.reshard(folder / which, file, folder / (which + "-boxes"), *with_options(rng))
    ferry.reshard(folder / "newer", file, folder / "onto-older", "--onto", folder / "older-boxes",
                  *with_options(rng))
    must(store.tree(folder / "onto-older") == store.tree(folder / "newer-boxes"),
         "--onto an older version changes the bytes")


def check_large(ferry, folder, rng):
    """Parameters of MiB under the smallest cap: windows, hulls and their scales are in parts."""
    shapes = [models.split_volume(rng, rng.randint(10, 25) * 8000) for _ in range(2)]
    check_parts(ferry, folder, rng, [shape for shape in shapes if len(shape) > 1] or [[300, 700]],
                rng.choice([[128, 128], [1, 32], [7, 5]]), rng.choice([1, 2, 5]))


def check_many_scales(ferry, folder, rng):
    """There are more bytes of scales than of codes: they, too, are in parts. In small rooms side by
    side, where whoever leaves his own is found out."""
    check_parts(ferry, folder, rng, [[300, 201]] * 3, [1, 1], 5)


def check_parts(ferry, folder, rng, shapes, block, n_threads):
    case = Case(rng, shapes, block)
    source = case.write(ferry, folder)
    values = case.order(folder / "logical")
    side = box_files.draw_large(rng, values)
    options = ["--memory-cap", "1M", "--threads", str(n_threads)]
    file = write_layout(folder, "boxes.json", case.says(side), rng)
    ferry.reshard(source, file, folder / "boxed", *options)
    box_files.check_large(folder / "boxed", side, values)
    ferry.reshard(folder / "boxed", "hf", folder / "back", *options)
    check_logical(folder / "back", values, case.model)


def check_config(ferry, folder, rng):
    """config.json says no more of codes once none has scales, and else which are none any more."""
    case = Case(rng, [[8, 8]])
    case.add_codes("layers.1.w.weight", [4, 6])
    case.add_codes("layers.2.w.weight", [4, 6])
    case.model.add("stray", "F8_E4M3", [5], rng.randbytes(5))
    about = {"quant_method": "fp8", "weight_block_size": case.block,
             "modules_to_not_convert": ["lm_head"]}
    case.model.others = {"config.json": json.dumps(
        {"model_type": "x", "quantization_config": about}).encode()}
    store.write_logical(rng, folder / "source", list(case.model.tensors.values()), {}, 1,
                        case.model.others)
    all_codes = ["layers.0.w", "layers.1.w.weight", "layers.2.w.weight"]
    for names, modules in ((all_codes, None), (all_codes[:1], ["layers.0.w"]),
                           (all_codes[1:], ["layers.1.w", "layers.2.w"])):
        boxes = [plain_entry(case.model.tensors[name]) for name in all_codes]
        boxes.append({"rank": 0, "parameter": "stray", "elements": 5, "holds": [
            {"tensor": "stray", "begin": [0], "shape": [5], "offset": 0, "strides": [1]}]})
        for entry in boxes:
            if entry["parameter"] in names:
                entry.update(dequantize=case.entry(), dtype=NAMES[case.word])
        file = write_layout(folder, "boxes.json", {"boxes": boxes}, rng)
        out = folder / names[-1] / str(len(names))
        out.parent.mkdir(exist_ok=True)
        done = ferry.call("reshard", folder / "source", "--to", file, "--out", out)
        must(done.code == 0, str(done))
        config = json.loads((out / "config.json").read_text())
        expected = None if modules is None else {
            **about, "modules_to_not_convert": sorted(["lm_head", *modules])}
        its = config.get("quantization_config")
        if its is not None:  # in the order of the source's files
            its["modules_to_not_convert"].sort()
        must(its == expected, "config: %s" % config)
        is_noted = modules == ["layers.0.w"]  # the name of no module
        must(("no module is known of 1 dequantized tensor" in done.error) == is_noted, str(done))


def plain_entry(tensor):
    """All of a matrix, as it is, on rank 0."""
    return box_files.slice_entry(tensor.name, tensor, [0, 1], 0, tensor.shape[1], [0])


def check_scales_too(ferry, folder, rng):
    """A side may hold the scales of what it dequantizes, which verify compares like the rest."""
    case = Case(rng, [], [4, 4])
    case.word = "BF16"  # which --dequantize makes by itself, so that no cast is of scales
    case.how = Dequantize({"dequantize": case.entry(), "dtype": "bf16"}, "how", must)
    case.add_codes("layers.0.w", [8, 8])
    case.add_codes("layers.1.w", [4, 6])
    name = "layers.0.w" + SUFFIX
    scales = case.model.tensors[name]
    store.write_logical(rng, folder / "source", list(case.model.tensors.values()), {}, 1, {})
    side = {"boxes": [plain_entry(case.model.tensors["layers.0.w"]), plain_entry(scales)]}
    ferry.reshard(folder / "source", write_layout(folder, "boxes.json", case.says(side), rng),
                  folder / "out")
    tensors = {"layers.0.w": case.values["layers.0.w"], name: scales}
    box_files.check_boxed(folder / "out", side, tensors, case.model)
    option = "--dequantize=%s:4x4%s=layers.0.w" % (
        NAMES[case.model.tensors["layers.0.w"].word], ":e8m0" if scales.word == "F8_E8M0" else "")
    done = ferry.verify(folder / "source", folder / "out", option, "--json")
    must(done.code == 0 and done.error == "", str(done))
    told = {entry["name"]: entry["digest"] for entry in json.loads(done.out)["tensors"]}
    must(told == {which: store.checksum(tensor.data) for which, tensor in tensors.items()},
         "verify: %s" % told)
    _, flipped, _ = box_files.flip(rng, folder / "out", folder / "damaged")
    done = ferry.verify(folder / "source", folder / "damaged", option)
    must(done.code == 1 and shown_in(flipped, done.error), str(done))
    stay = [case.model.tensors["layers.1.w" + tail] for tail in ("", SUFFIX)]
    store.write_logical(rng, folder / "left", [*tensors.values(), *stay], {}, 1, {})
    done = ferry.verify(folder / "source", folder / "left", option)
    must(done.code == 1 and "holds the scales of codes" in done.error, str(done))


def check_cast(ferry, folder, rng):
    """--cast is for the others; what is too large for an f8 becomes its largest number."""
    case = Case(rng, [[8, 8]])
    data = struct.pack("<6f", 1e9, -1e9, 447, 0.3, float("inf"), -2)
    case.model.add("plain", "F32", [2, 3], data)
    store.write_logical(rng, folder / "source", list(case.model.tensors.values()), {}, 1, {})
    side = {"boxes": [
        box_files.slice_entry("p", case.model.tensors["plain"], [1, 0], 0, 3, [0]),
        box_files.slice_entry("w", case.model.tensors["layers.0.w"], [0, 1], 0, 8, [0])]}
    file = write_layout(folder, "boxes.json", case.says(side), rng)
    ferry.reshard(folder / "source", file, folder / "out", "--cast", "f8e4m3")
    codes = bytes(cast_code("F32", "F8_E4M3", value) for value in struct.unpack("<6I", data))
    tensors = {**case.values, "plain": Tensor("plain", "F8_E4M3", [2, 3], codes)}
    box_files.check_boxed(folder / "out", side, tensors, case.model)


# ---- what is refused -----------------------------------------------------------------------------


def bad_cases():
    """(name, function that changes the side, words): rank 4 has `p` of w, with scales s."""
    def other_block(boxes):
        boxes[1]["dequantize"] = {"block": [1, 4], "scale": "rows"}

    def set_of(key, value):
        return lambda boxes: boxes[0]["dequantize"].update({key: value})

    yield "another type", lambda boxes: boxes[1].update(dtype="f32"), ["another dtype", "rank 4",
                                                                       "rank 5"]
    yield "another block", other_block, ["another scale or block", '"w"']
    yield "codes elsewhere", lambda boxes: (boxes[1].pop("dequantize"), boxes[1].pop("dtype")), [
        "holds the codes", "rank 5", "rank 4", "two folders"]
    yield "no such scales", set_of("scale", "t"), ["no tensor of this name", '"t"', "rank 4",
                                                   "box 0"]
    yield "scales of another type", set_of("scale", "n"), ['"n"', "f32 or f8e8m0"]
    yield "scales of another shape", set_of("block", [3, 4]), ["[4, 4]", "[3, 4]", "block"]
    yield "no codes", lambda boxes: boxes[0]["holds"][0].update(tensor="n"), ["i16", "f8e4m3"]
    yield "no such tensor", lambda boxes: boxes[0]["holds"][0].update(tensor="zz"), ["zz"]
    yield "a quantization", lambda boxes: (boxes[0].pop("dequantize"), boxes[0].update(
        dtype="f8e4m3", quantize={"format": "f8e4m3", "block": [2, 2], "scale": "x"})), ["p"]


def check_bad(ferry, folder, rng):
    tensors = [Tensor("w", "F8_E4M3", [8, 16], rng.randbytes(128)),
               Tensor("s", "F32", [4, 4], struct.pack("<16f", *range(16))),
               Tensor("rows", "F32", [8, 4], bytes(128)),
               Tensor("n", "I16", [4, 4], bytes(32)),
               Tensor("h", "F4", [8, 16], bytes(64)),
               Tensor("h_scale", "F8_E4M3", [8, 1], bytes(8)),
               Tensor("h_scale_2", "F32", [], bytes(4)),
               Tensor("g_scale", "F8_E4M3", [8, 1], bytes(8)),
               Tensor("wide_scale", "F8_E4M3", [8, 2], bytes(16))]
    store.write_logical(rng, folder / "source", tensors, {}, 1, {})
    hold = {"tensor": "w", "begin": [0, 0], "shape": [8, 16], "offset": 0, "strides": [16, 1]}
    entry = {"parameter": "p", "elements": 128, "dtype": "bf16", "holds": [hold],
             "dequantize": {"block": [2, 4], "scale": "s"}}
    boxes = [copy.deepcopy({**entry, "rank": rank}) for rank in (4, 5)]
    ferry.reshard(folder / "source", write_layout(folder, "good.json", {"boxes": boxes}, rng),
                  folder / "good")
    for name, change, words in bad_cases():
        bad = copy.deepcopy(boxes)
        change(bad)
        refuse(ferry, folder, rng, bad, words, name)
    refuse(ferry, folder, rng, boxes, ["say what they dequantize"], "both", "--dequantize")
    half = [{"rank": 0, "parameter": "q", "elements": 128,
             "holds": [{**hold, "tensor": "h"}]}]
    refuse(ferry, folder, rng, half, ["2^-117", '"h"'], "a scale of 0", "--dequantize=nvfp4")
    refuse(ferry, folder, rng, half, ["quantized"], "quantizing", "--quantize", "mxfp8")
    for how, words in (({}, ["1 x 16", "[1, 16]", "rank 0"]),
                       ({"block": [1, 16], "scale": "s"}, ['"s"', "f8e4m3"]),
                       ({"block": [1, 16], "scale": "g_scale"}, ['"h"', '"g_scale_2"', "f32"]),
                       ({"block": [1, 16], "scale": "wide_scale"}, ["[8, 2]", "[8, 1]"]),
                       ({"block": [1, 16], "scale": "*_scale"}, ["2^-117", '"h"'])):
        says = {"dequantize": {**entry["dequantize"], **how}, "dtype": "f32"}
        refuse(ferry, folder, rng, [{**half[0], **says}], words, "half bytes: %s" % how)
    spoiled = folder / "spoiled"
    shutil.copytree(folder / "good", spoiled)
    layout = json.loads((spoiled / LAYOUT).read_text())
    layout["boxes"][0]["dequantize"] = entry["dequantize"]
    (spoiled / LAYOUT).write_text(json.dumps(layout))
    require_sentence(ferry.call("reshard", spoiled, "--to", "hf", "--out", folder / "no"), "p")


def refuse(ferry, folder, rng, boxes, words, name, *options):
    file = write_layout(folder, "bad.json", {"boxes": boxes}, rng)
    done = ferry.call("reshard", folder / "source", "--to", file, "--out", folder / "bad", *options)
    must(done.code == 1, "%s: %s" % (name, done))
    require_sentence(done, *words)
    must(not (folder / "bad").exists(), "%s: a failed run leaves DST" % name)


def main():
    arguments = parser_of(__doc__, 100).parse_args()
    ferry = Ferry(arguments.ferry)

    def bound(function):
        return lambda folder, rng: function(ferry, folder, rng)

    seeds = range(arguments.seed, arguments.seed + arguments.count)
    cases = [("random", bound(check_random), seed) for seed in seeds]
    cases += [("large", bound(check_large), seed) for seed in seeds[:max(1, len(seeds) // 20)]]
    cases += [(name, bound(function), arguments.seed) for name, function in (
        ("many_scales", check_many_scales), ("config", check_config), ("cast", check_cast),
        ("scales_too", check_scales_too), ("bad", check_bad))]
    return run_cases(arguments, cases)


if __name__ == "__main__":
    sys.exit(main())
