# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The table of sides in boxes that `ferry plan` must refuse, for plan_bad_input.py.

Rows are as in bad_specs.py. Each changes one thing in the literal spec of the oracle's self test:
its parameter qk of rank 2 has q in rows 0 to 3, k in rows 4 and 5 and a fill in row 6, of three
elements each.
"""

import copy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "oracle"))

from bad_specs import row  # noqa: E402
from box_self_test import SPEC, hold, loop, on_box, on_side  # noqa: E402

MOST = (1 << 63) - 1
ON_SOURCE, ON_DESTINATION = "source", "destination"
FILL = {"offset": 18, "shape": [3], "strides": [1]}


def fill(**values):
    return on_side(ON_DESTINATION, 0, fill=[{**FILL, **values}])


def drop(which, entry, key):
    def mutate(spec):
        del spec[which]["boxes"][entry][key]
    return mutate


def drop_of_box(key):
    def mutate(spec):
        del spec[ON_SOURCE]["boxes"][0]["holds"][1][key]
    return mutate


def replace_side(which, side):
    def mutate(spec):
        spec[which] = side
    return mutate


def quantize_scales(spec):
    """Parameters for codes, and for codes of their scales."""
    said = {"format": "f8e4m3", "block": [4, 3], "scale": "*_s"}
    spec[ON_DESTINATION]["boxes"] += [
        {"rank": 3, "parameter": "codes", "elements": 12, "quantize": said,
         "holds": [hold("q", [0, 0], [4, 3], 0, [3, 1])]},
        {"rank": 3, "parameter": "scales", "elements": 1, "quantize": said,
         "holds": [hold("q_s", [0, 0], [1, 1], 0, [1, 1])]}]


def dequantized(parameter=None, codes=None, scales=None, how=None, **said):
    """A parameter p of rank 3, of 6 x 8 codes in blocks of 2 x 4; with None a key is left out."""
    def mutate(spec):
        spec["tensors"] += [
            {"name": "c", "shape": [6, 8], "dtype": "f8e4m3", **(codes or {})},
            {"name": "c.s", "shape": [3, 2], "dtype": "f32", **(scales or {})}]
        spec[ON_SOURCE]["boxes"] += [
            {"rank": 0, "parameter": "own", "elements": 48,
             "holds": [hold("c", [0, 0], [6, 8], 0, [8, 1])]},
            {"rank": 0, "parameter": "own scales", "elements": 6,
             "holds": [hold(spec["tensors"][-1]["name"], [0, 0], [3, 2], 0, [2, 1])]}]
        entry = {"rank": 3, "parameter": "p", "elements": 48, "dtype": "bf16",
                 "dequantize": {"block": [2, 4], "scale": "*.s", **said} if how is None else how,
                 "holds": [hold("c", [0, 0], [6, 8], 0, [8, 1])], **(parameter or {})}
        spec[ON_DESTINATION]["boxes"].append(
            {key: value for key, value in entry.items() if value is not None})
    return mutate


def at_source(spec):
    dequantized()(spec)
    spec[ON_SOURCE]["boxes"][-2].update(dtype="bf16", dequantize={"block": [2, 4], "scale": "*.s"})


def two_ways(spec):
    dequantized()(spec)
    spec["tensors"].append({"name": "c.t", "shape": [3, 2], "dtype": "f32"})
    other = copy.deepcopy(spec[ON_DESTINATION]["boxes"][-1])
    other.update(parameter="q", dequantize={"block": [2, 4], "scale": "*.t"})
    spec[ON_DESTINATION]["boxes"].append(other)


def two_types(spec):
    dequantized()(spec)
    spec["tensors"] += [{"name": "d", "shape": [6, 8], "dtype": "f8e4m3"},
                        {"name": "d.s", "shape": [3, 2], "dtype": "f8e8m0"}]
    entry = spec[ON_DESTINATION]["boxes"][-1]
    entry["elements"] = 96
    entry["holds"].append(hold("d", [0, 0], [6, 8], 48, [8, 1]))


def dequantized_beside(spec):
    dequantized()(spec)
    spec[ON_DESTINATION]["boxes"].append(
        {"rank": 3, "parameter": "p:scales", "elements": 6,
         "holds": [hold("k", [0, 0], [2, 3], 0, [3, 1])]})


def only_source(spec):
    """A destination tensor that is made on the way, held by the source."""
    spec["tensors"][1]["source"] = [{"tensor": "q", "begin": [0, 0], "shape": [2, 3],
                                     "at": [0, 0]}]


# (name, what is changed, what the sentence must have)
ELEMENTS = [
    ("a gap behind all boxes", on_side(ON_DESTINATION, 0, elements=22), "qk", "rank 2", "21"),
    ("a gap instead of a fill", on_side(ON_DESTINATION, 0, fill=[]), "qk", "rank 2", "18"),
    ("a gap between boxes", on_box(ON_DESTINATION, 0, 0, shape=[1, 3]), "qk", "rank 2", "15"),
    ("no partial, but a gap", on_side(ON_DESTINATION, 1, partial=False), '"n"', "rank", "3"),
    ("two boxes on an element", on_box(ON_DESTINATION, 0, 0, offset=11), "qk", "rank 2", "11",
     "k", "q"),
    ("two boxes of a source", on_box(ON_SOURCE, 0, 1, offset=11), "all", "rank 0", "11"),
    ("a box and a fill", fill(offset=17, shape=[4]), "qk", "rank 2", "17", "k"),
    ("two fills", on_side(ON_DESTINATION, 0, fill=[FILL, {**FILL, "offset": 20, "shape": [1]}]),
     "qk", "rank 2", "20"),
    ("a box on itself", on_box(ON_SOURCE, 0, 0, strides=[1, 3]), "all", "rank 0", "q"),
    ("a box on itself by one stride", on_box(ON_SOURCE, 0, 0, strides=[1, 1]), "all", "rank 0"),
    ("a loop on itself", on_box(ON_DESTINATION, 0, 1, **loop(4, [1, 0], 2)), "qk", "rank 2", "q"),
    ("an element that no source has", on_side(ON_SOURCE, 0, holds=[
        hold("q", [0, 0], [4, 3], 0, [1, 4]), hold("k", [0, 0], [1, 3], 14, [3, 1])]),
     '"k"', "rank 2"),
    ("a tensor that no source has", on_side(ON_SOURCE, 2, holds=[hold("n", [0], [3], 0, [1])]),
     '"s"'),
]

BOUNDS = [
    ("beyond the parameter", on_side(ON_SOURCE, 0, elements=19), "all", "19"),
    ("beyond the parameter by a stride", on_box(ON_SOURCE, 0, 1, strides=[4, 1]), "all", "20"),
    ("beyond the parameter by a loop", on_box(ON_DESTINATION, 0, 1, **loop(4, [1, 0], 7)), "qk"),
    ("a fill beyond the parameter", fill(shape=[4]), "qk", "21"),
    ("beyond the tensor", on_box(ON_DESTINATION, 0, 0, begin=[1, 0]), '"k"', "2"),
    ("beyond the tensor by a loop", on_box(ON_DESTINATION, 0, 1, **loop(5, [1, 0], 3)), '"q"'),
    ("an offset near the limit", on_box(ON_SOURCE, 0, 1, offset=MOST), "all"),
    ("a stride near the limit", on_box(ON_SOURCE, 0, 1, strides=[MOST, 1]), "all"),
    ("a begin near the limit", on_box(ON_SOURCE, 0, 1, begin=[MOST, 0]), '"k"'),
    ("a shape near the limit", on_box(ON_SOURCE, 0, 1, shape=[MOST, 3]), '"k"'),
    ("a loop of many turns", on_box(ON_DESTINATION, 0, 1, **loop(MOST, [1, 0], 3)), ('"q"', "qk")),
    ("a loop of long steps", on_box(ON_DESTINATION, 0, 1, **loop(4, [1, 0], MOST)), "qk"),
    ("a loop that steps far", on_box(ON_DESTINATION, 0, 1, **loop(4, [MOST, 0], 3)), '"q"'),
    ("four long loops", on_box(ON_DESTINATION, 0, 1, repeat=[
        {"count": 1 << 62, "begin": [0, 0], "offset": 1 << 61}] * 4), "qk"),
    ("a parameter near the limit", on_side(ON_SOURCE, 0, elements=MOST), ("all", "elements")),
    ("a fill near the limit", fill(offset=MOST), "qk"),
]

NUMBERS = [
    ("stride 0", on_box(ON_SOURCE, 0, 1, strides=[0, 1]), "stride", "0"),
    ("stride 0 of a fill", fill(strides=[0]), "stride", "0"),
    ("stride 0 of a loop", on_box(ON_DESTINATION, 0, 1, **loop(4, [1, 0], 0)), ("qk", "offset")),
    ("a negative stride", on_box(ON_SOURCE, 0, 1, strides=[-3, 1]), "strides"),
    ("a negative offset", on_box(ON_SOURCE, 0, 1, offset=-1), "offset"),
    ("a negative begin", on_box(ON_SOURCE, 0, 1, begin=[0, -1]), "begin"),
    ("a negative shape", on_box(ON_SOURCE, 0, 1, shape=[-2, 3]), "shape"),
    ("a negative rank", on_side(ON_SOURCE, 0, rank=-1), "rank"),
    ("a rank beyond the limit", on_side(ON_SOURCE, 0, rank=1 << 24), "rank"),
    ("a fraction", on_box(ON_SOURCE, 0, 1, offset=1.5), "offset"),
    ("2^64", on_box(ON_SOURCE, 0, 1, offset=1 << 64), ()),
    ("a loop of no turns", on_box(ON_DESTINATION, 0, 1, **loop(0, [1, 0], 3)), "count"),
    ("a loop of -1 turns", on_box(ON_DESTINATION, 0, 1, **loop(-1, [1, 0], 3)), "count"),
    ("elements below 0", on_side(ON_SOURCE, 0, elements=-1), "elements"),
]

FORMS = [
    ("a stride too few", on_box(ON_SOURCE, 0, 1, strides=[1]), "strides"),
    ("a stride too many", on_box(ON_SOURCE, 0, 1, strides=[3, 1, 1]), "strides"),
    ("a begin too few", on_box(ON_SOURCE, 0, 1, begin=[0]), "begin"),
    ("a length too few", on_box(ON_SOURCE, 0, 1, shape=[3]), ("shape", "begin", "strides")),
    ("another number of dimensions", on_box(ON_SOURCE, 0, 1, begin=[0], shape=[3], strides=[1]),
     "k"),
    ("nine dimensions", on_box(ON_SOURCE, 0, 1, begin=[0] * 9, shape=[1] * 9, strides=[1] * 9), ()),
    ("a loop of one dimension", on_box(ON_DESTINATION, 0, 1, **loop(4, [1], 3)), "begin"),
    ("five loops", on_box(ON_DESTINATION, 0, 1, repeat=[
        {"count": 1, "begin": [0, 0], "offset": 0}] * 5), "repeat"),
    ("a loop without a count", on_box(ON_DESTINATION, 0, 1, repeat=[
        {"begin": [1, 0], "offset": 3}]), "count"),
    ("a loop with more", on_box(ON_DESTINATION, 0, 1, repeat=[
        {"count": 4, "begin": [1, 0], "offset": 3, "step": 1}]), "step"),
    ("no offset", drop_of_box("offset"), "offset"), ("no strides", drop_of_box("strides"),
                                                     "strides"),
    ("no shape", drop_of_box("shape"), "shape"), ("no begin", drop_of_box("begin"), "begin"),
    ("no tensor", drop_of_box("tensor"), "tensor"),
    ("a box with more", on_box(ON_SOURCE, 0, 1, more=1), "more"),
    ("a box that is a list", on_side(ON_SOURCE, 0, holds=[[]]), "holds[0]"),
    ("holds that are an object", on_side(ON_SOURCE, 0, holds={}), "holds"),
    ("no holds", drop(ON_SOURCE, 0, "holds"), "holds"),
    ("no name", drop(ON_SOURCE, 0, "parameter"), "parameter"),
    ("no elements", drop(ON_SOURCE, 0, "elements"), "elements"),
    ("a parameter with more", on_side(ON_SOURCE, 0, shape=[2]), "shape"),
    ("partial that is a number", on_side(ON_DESTINATION, 1, partial=1), "partial"),
    ("no such tensor", on_box(ON_SOURCE, 0, 1, tensor="v"), '"v"'),
    ("a tensor that is made on the way", only_source, '"k"'),
    ("no boxes", replace_side(ON_SOURCE, {"boxes": []}), "source"),
    ("boxes that are none", replace_side(ON_SOURCE, {"boxes": {}}), "boxes"),
    ("boxes and a mesh", replace_side(ON_SOURCE, {**SPEC["source"], "mesh": [], "rules": []}),
     ("mesh", "boxes", "rules")),
    ("a name twice on a rank", on_side(ON_DESTINATION, 1, parameter="qk"), "qk", "rank 2"),
    ("a rank twice", on_side(ON_DESTINATION, 1, ranks=[1, 1]), "1"),
    ("no rank", on_side(ON_DESTINATION, 1, ranks=[]), "ranks"),
    ("rank and ranks", on_side(ON_SOURCE, 0, ranks=[0]), "rank"),
    ("neither rank nor ranks", drop(ON_SOURCE, 0, "rank"), "rank"),
    ("another dtype", on_side(ON_DESTINATION, 1, dtype="f16"), "n"),
    ("an unknown dtype", on_side(ON_DESTINATION, 1, dtype="f33"), "f33"),
    ("a fill of a source", on_side(ON_SOURCE, 0, fill=[{"offset": 12, "shape": [2],
                                                        "strides": [1]}]), "fill"),
    ("fill bits too short", fill(bits="3f8"), "bits"),
    ("fill bits too long", fill(bits="3f800"), "bits"),
    ("fill bits that are none", fill(bits="3f8x"), "bits"),
    ("fill bits that are a number", fill(bits=0), "bits"),
    ("a fill of one stride more", fill(strides=[1, 1]), "strides"),
    ("a fill with more", fill(tensor="q"), "tensor"),
    ("a fill that is a number", on_side(ON_DESTINATION, 0, fill=[0]), "fill[0]"),
]

def of_two_types(spec):
    """A parameter of f32 with a box of a bf16 tensor."""
    spec["tensors"].append({"name": "b", "shape": [], "dtype": "bf16"})
    spec["destination"]["boxes"][1]["holds"][1]["tensor"] = "b"


CASTS = [
    ("a cast missing", on_side(ON_DESTINATION, 0, dtype="f32", fill=[FILL]), "qk", "rank 2", '"k"',
     "from bf16 to f32", '"cast"'),
    ("a cast missing for one box", of_two_types, "n", "rank 1", '"b"', "from bf16 to f32"),
    ("a cast to integers", on_side(ON_DESTINATION, 1, dtype="i32", cast="round"), "rank 1", '"n"',
     "from f32 to i32"),
    ("a cast to f64", on_side(ON_DESTINATION, 1, dtype="f64", cast="round"), "from f32 to f64"),
    ("a cast to f4", on_side(ON_DESTINATION, 1, dtype="f4", cast="round"), "from f32 to f4"),
    ("a cast by another word", on_side(ON_DESTINATION, 1, dtype="f16", cast="floor"), '"floor"',
     "boxes[1].cast"),
    ("a cast that is a number", on_side(ON_DESTINATION, 1, dtype="f16", cast=1), "boxes[1].cast"),
    ("a scale without a cast", on_side(ON_DESTINATION, 1, scale=2), '"scale"', "boxes[1]"),
    ("an add without a cast", on_side(ON_DESTINATION, 1, add=1), '"add"', "boxes[1]"),
    ("scale 0", on_side(ON_DESTINATION, 1, cast="round", scale=0), "boxes[1].scale", "0"),
    ("a scale that is 0 in f32", on_side(ON_DESTINATION, 1, cast="round", scale=1e-60),
     "boxes[1].scale", "0"),
    ("a scale beyond f32", on_side(ON_DESTINATION, 1, cast="round", scale=1e39), "boxes[1].scale"),
    ("an add beyond f32", on_side(ON_DESTINATION, 1, cast="round", add=-1e39), "boxes[1].add"),
    ("a scale that is a text", on_side(ON_DESTINATION, 1, cast="round", scale="2"),
     "boxes[1].scale"),
    ("a cast at the source", on_side(ON_SOURCE, 1, cast="round"), '"low"', "rank 1", "source"),
    ("another dtype at the source", on_side(ON_SOURCE, 1, dtype="f32"), '"low"', "rank 1", '"q"',
     "from f32 to bf16"),
    ("quantize", on_side(ON_DESTINATION, 1, quantize={}), "boxes[1].quantize"),
    ("quantize at the source", on_side(ON_SOURCE, 1, quantize={
        "format": "mxfp8", "scale": "*_s"}), '"quantize"', "rank 1", "source"),
    ("quantize and cast", on_side(ON_DESTINATION, 1, cast="round", quantize={
        "format": "mxfp8", "scale": "*_s"}), '"cast"', '"quantize"'),
    ("a vector is quantized", on_side(ON_DESTINATION, 1, quantize={
        "format": "mxfp8", "scale": "*_s"}), '"n"', "dimensions"),
    ("boxes that are quantized", on_side(ON_DESTINATION, 0, fill=[FILL], quantize={
        "format": "f8e4m3", "block": [2, 3], "scale": "*_s"}), '"q"', "rank 2", "block of 2"),
    ("scales that are quantized", quantize_scales, '"q_s"', '"scales"', "scales of blocks"),
    ("dequantize that says nothing", dequantized(how={}), "boxes[2].dequantize", '"scale"'),
    ("dequantize that is a number", dequantized(how=1), "boxes[2].dequantize"),
    ("dequantize by blocks of nothing", dequantized(block=[0, 1]), "boxes[2].dequantize.block"),
    ("dequantize by scales without a name", dequantized(scale="*"), "boxes[2].dequantize.scale"),
    ("dequantize to nothing", dequantized({"dtype": None}), "boxes[2]", '"dtype"', "bf16"),
    ("dequantize to integers", dequantized({"dtype": "i32"}), "boxes[2]", '"dtype"'),
    ("dequantize and cast", dequantized({"cast": "round"}), "boxes[2]", '"cast"', '"dequantize"'),
    ("dequantize and quantize", dequantized({"quantize": {}}), "boxes[2]", '"quantize"'),
    ("dequantize at the source", at_source, '"own"', "rank 0", '"dequantize"', "source"),
    ("scales that are missing", dequantized(scale="*.t"), '"p"', '"c"', '"c.t"', "no tensor"),
    ("scales of another shape", dequantized(scales={"shape": [3, 3]}), '"p"', '"c.s"', "[3, 3]",
     "[3, 2]", "2 x 4"),
    ("scales of another type", dequantized(scales={"dtype": "bf16"}), '"p"', '"c.s"', "bf16"),
    ("no codes are dequantized", dequantized(codes={"dtype": "bf16"}), '"p"', '"c"', "bf16"),
    ("values are dequantized", dequantized({"holds": [hold("k", [0, 0], [2, 3], 0, [3, 1])],
                                            "elements": 6}), '"p"', '"k"', "bf16"),
    ("two ways to dequantize", two_ways, '"c"', '"c.t"', '"c.s"'),
    ("scales of two types", two_types, '"p"', '"c:scales"', '"d:scales"', "f32", "f8e8m0"),
    ("a parameter with the name of scales", dequantized_beside, "rank 3", '"p:scales"', "twice"),
    ("a tensor with the name of scales", dequantized(scales={"name": "c:scales"}, scale="*:scales"),
     '"c:scales"'),
    ("dequantize a part outside", dequantized({"holds": [hold("c", [0, 0], [7, 8], 0, [8, 1])]}),
     '"p"', "7"),
]

# Too large for the oracle, which lays every element out; or only the place in the file is wrong.
NOT_FOR_THE_ORACLE = {"a parameter near the limit", "four long loops",
                      "an element that no source has"}


def all_rows():
    for name, mutate, *needles in [*ELEMENTS, *BOUNDS, *NUMBERS, *FORMS, *CASTS]:
        spec = copy.deepcopy(SPEC)
        mutate(spec)
        needles = [needle for needle in needles if needle != ()]
        yield row("boxes: " + name, spec, *needles, oracle=name not in NOT_FOR_THE_ORACLE)


def good_specs():
    yield "boxes", copy.deepcopy(SPEC)
    spec = copy.deepcopy(SPEC)
    spec["source"]["boxes"][0]["holds"].append(hold("k", [2, 3], [0, 0], 99, [0, 0]))
    yield "boxes, and an empty one", spec
