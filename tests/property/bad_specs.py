# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The table of specs that `ferry plan` must refuse, for plan_bad_input.py.

A row is a name, what to write into the spec file, and what the one line on stderr must contain. A
needle is a string, or a tuple of strings of which one is enough (where the format leaves open which
name the sentence gives). Every row changes one thing in a spec that is good.
"""

import copy
import json
from collections import namedtuple

# `content` is a dict (written as JSON), bytes, or a function of the folder that returns the path.
# `oracle` says that the reference reading of the format (tests/oracle) refuses the spec as well.
Row = namedtuple("Row", "name content needles oracle")

NAME = "blk.weight"
EXPERT = "layers.3.w"


def row(name, content, *needles, oracle=False):
    return Row(name, content, needles, oracle)


# ---- good specs to start from --------------------------------------------------------------------


def small(source_rule=None, destination_rule=None, shape=(12, 8), dtype="f32", **tensor):
    """One tensor NAME from pp 2 x tp 4 to dp 2 x tp 4 with the given rules (less their match)."""
    return {
        "format": "ferry.spec/1",
        "tensors": [{"name": NAME, "shape": list(shape), "dtype": dtype, **tensor}],
        "source": {"mesh": [["pp", 2], ["tp", 4]], "first_rank": 0,
                   "rules": [{"match": "*", **(source_rule or {})}]},
        "destination": {"mesh": [["dp", 2], ["tp", 4]], "first_rank": 4,
                        "rules": [{"match": "*", **(destination_rule or {})}]},
    }


def shard(*entries, **rule):
    return {"shard": list(entries), **rule}


def cut(**keys):
    """A rule that shards dim 0 over tp."""
    return shard({"dim": 0, "axis": "tp", **keys})


# Every key of the format occurs here at least once, so that each can be spoilt on its own.
RICH = {
    "format": "ferry.spec/1",
    "tensors": [
        {"name": "layers.{0}.w", "count": [4], "shape": [12, 8], "dtype": "f32"},
        {"name": "gate", "shape": [6, 8], "dtype": "bf16"},
        {"name": "up", "shape": [6, 8], "dtype": "bf16"},
        {
            "name": "gate_up",
            "shape": [12, 8],
            "dtype": "bf16",
            "source": [
                {"tensor": "gate", "begin": [0, 0], "shape": [6, 8], "at": [0, 0]},
                {"tensor": "up", "begin": [0, 0], "shape": [6, 8], "at": [6, 0]},
            ],
        },
        {"name": "embed", "shape": [16, 4], "dtype": "f16"},
        {"name": "head", "shape": [16, 4], "dtype": "f16", "source": "embed"},
        {"name": "scale", "shape": [], "dtype": "f32"},
    ],
    "source": {
        "mesh": [["pp", 2], ["dp", 2], ["tp", 2]],
        "first_rank": 0,
        "stages": [{"match": "layers.{}.*", "count": 4, "axis": "pp"}],
        "rules": [
            {"match": "layers.*", "shard": [{"dim": 0, "axis": "tp", "stride": 2, "unit": 3}]},
            {
                "match": "gate",
                "on": {"pp": 0},
                "shard": [{"dim": 0, "axis": "tp", "blocks": [4, [2, 1]]}],
            },
            {
                "match": "up",
                "on": {"pp": [0, -1]},
                "shard": [{"dim": 0, "axis": "tp", "sizes": [4, 2]}],
            },
            {
                "match": "embed",
                "flat": {"axis": "dp"},
                "shard": [{"dim": 0, "axis": "tp", "parts": 1}],
            },
            {"match": "*"},
        ],
    },
    "destination": {
        "mesh": [["dp", 2], ["tp", 4]],
        "ranks": [7, 6, 5, 4, 3, 2, 1, 0],
        "stages": [{"match": "layers.{}.*", "sizes": [1, 3], "axis": "dp"}],
        "rules": [
            {"match": "gate", "skip": True},
            {"match": "up", "skip": True},
            {"match": "layers.*", "shard": [{"dim": 1, "axis": "tp", "cycle": 2}]},
            {"match": "embed", "shard": [{"dim": 0, "axis": ["dp", "tp"], "nested": True}]},
            {"match": "head", "flat": {"axis": "tp", "sizes": [1, 0, 60, 3]}},
            {"match": "*"},
        ],
    },
    "cluster": {
        "ranks_per_node": 4,
        "rank_gbytes_per_s": 400,
        "node_gbytes_per_s": 100.5,
        "latency_us": 5,
        "nodes": {"1": {"rank_gbytes_per_s": 25, "node_gbytes_per_s": 50}},
    },
}


def spoilt(*path_and_value):
    """RICH with the value at a path replaced."""
    *path, key, value = path_and_value
    spec = copy.deepcopy(RICH)
    place = spec
    for step in path:
        place = place[step]
    place[key] = value
    return spec


def without(*path):
    spec = copy.deepcopy(RICH)
    place = spec
    for step in path[:-1]:
        place = place[step]
    del place[path[-1]]
    return spec


def path_text(path):
    return ".".join(map(str, path))


# ---- keys and types ------------------------------------------------------------------------------

LEVELS = {
    "top": (), "tensor": ("tensors", 1), "source box": ("tensors", 3, "source", 0),
    "side": ("source",), "stage": ("source", "stages", 0), "rule": ("source", "rules", 0),
    "shard entry": ("source", "rules", 0, "shard", 0), "flat": ("source", "rules", 3, "flat"),
    "cluster": ("cluster",), "node": ("cluster", "nodes", "1"),
}

REQUIRED = [
    ("tensors",), ("source",), ("destination",), ("tensors", 1, "name"), ("tensors", 1, "shape"),
    ("tensors", 1, "dtype"), ("source", "mesh"), ("source", "rules", 1, "match"),
    ("source", "rules", 1, "shard", 0, "dim"), ("source", "rules", 1, "shard", 0, "axis"),
    ("source", "rules", 3, "flat", "axis"), ("source", "stages", 0, "match"),
    ("source", "stages", 0, "axis"), ("source", "stages", 0, "count"),
    ("tensors", 3, "source", 0, "tensor"), ("tensors", 3, "source", 0, "begin"),
    ("tensors", 3, "source", 0, "shape"), ("tensors", 3, "source", 0, "at"), ("format",),
]

COUNTS = [
    ("source", "first_rank"), ("source", "stages", 0, "count"),
    ("source", "rules", 0, "shard", 0, "dim"), ("source", "rules", 0, "shard", 0, "stride"),
    ("source", "rules", 0, "shard", 0, "unit"), ("source", "rules", 3, "shard", 0, "parts"),
    ("destination", "rules", 2, "shard", 0, "cycle"), ("cluster", "ranks_per_node"),
]
NO_COUNTS = ["1", 1.5, -1, True, None, [], {}, 10**30]

COUNTS_IN_LISTS = [
    ("tensors", 0, "shape", 0), ("tensors", 0, "count", 0), ("destination", "ranks", 0),
    ("destination", "stages", 0, "sizes", 0), ("source", "rules", 1, "shard", 0, "blocks", 0),
    ("source", "rules", 2, "shard", 0, "sizes", 0), ("destination", "rules", 4, "flat", "sizes", 0),
    ("source", "mesh", 0, 1), ("tensors", 3, "source", 0, "begin", 0),
    ("tensors", 3, "source", 0, "shape", 0), ("tensors", 3, "source", 0, "at", 0),
]

TEXTS = [
    ("format",), ("tensors", 1, "name"), ("tensors", 1, "dtype"), ("source", "rules", 0, "match"),
    ("source", "stages", 0, "match"), ("source", "stages", 0, "axis"),
    ("source", "rules", 3, "flat", "axis"), ("tensors", 3, "source", 0, "tensor"),
]

LISTS = [
    ("tensors",), ("tensors", 1, "shape"), ("tensors", 0, "count"), ("source", "mesh"),
    ("source", "stages"), ("source", "rules"), ("source", "rules", 0, "shard"),
    ("source", "rules", 1, "shard", 0, "blocks"), ("source", "rules", 2, "shard", 0, "sizes"),
    ("destination", "ranks"), ("destination", "rules", 4, "flat", "sizes"),
    ("destination", "stages", 0, "sizes"), ("tensors", 3, "source", 0, "begin"),
    ("tensors", 3, "source", 0, "at"),
]

RECORDS = [
    ("source",), ("destination",), ("cluster",), ("cluster", "nodes"), ("cluster", "nodes", "1"),
    ("source", "rules", 1, "on"), ("source", "rules", 3, "flat"),
]

RATES = [("cluster", "rank_gbytes_per_s"), ("cluster", "node_gbytes_per_s"),
         ("cluster", "nodes", "1", "rank_gbytes_per_s")]


def last_key(path):
    """The key that a sentence about this path names, or the one that holds the list."""
    return [step for step in path if isinstance(step, str)][-1]


def type_row(path, value):
    """The sentence names the key, or the place in the file where a number is beyond 64 bits."""
    key = last_key(path)
    needle = (key, "integer") if value == 10**30 else {"mesh": ("mesh", "pp")}.get(key, key)
    return row("type: %s = %s" % (path_text(path), json.dumps(value)), spoilt(*path, value), needle)


def key_rows():
    for level, path in LEVELS.items():
        yield row("unknown key: " + level, spoilt(*path, "colour", 1), "colour")
    for path in REQUIRED:
        yield row("missing key: " + path_text(path), without(*path), path[-1])
    yield row("missing key: source.rules", without("source", "rules"), ("rules", "layers.0.w"))


def type_rows():
    for path in COUNTS:
        yield from (type_row(path, value) for value in NO_COUNTS)
    for path in COUNTS_IN_LISTS:
        yield from (type_row(path, value) for value in ("1", 1.5, -1, True, None, {}))
    for path in TEXTS:
        yield from (type_row(path, value) for value in (5, None, True, []))
    for path in LISTS:
        yield from (type_row(path, value) for value in ({}, 5, "x", None))
    for path in RECORDS:
        yield from (type_row(path, value) for value in ([], 5, "x", True))
    for path in RATES:
        yield from (type_row(path, value) for value in (0, -1, 1e300, 1e-10, "400", True, None, []))
    for value in (1, "yes", None):
        yield type_row(("destination", "rules", 0, "skip"), value)
        yield type_row(("destination", "rules", 3, "shard", 0, "nested"), value)
    for value in (5, None, [5], {}):
        yield type_row(("source", "rules", 0, "shard", 0, "axis"), value)
    for value in ("0", 0.5, None, ["0"], {}):
        yield type_row(("source", "rules", 1, "on", "pp"), value)
    for value in (5, None, {}, True):
        yield type_row(("tensors", 5, "source"), value)
    yield row("a source that is a number", spoilt("tensors", 5, "source", 7),
              "must be the name of a tensor or an array of boxes")
    yield type_row(("source", "rules", 1, "shard", 0, "blocks", 1), [2])
    yield type_row(("source", "rules", 1, "shard", 0, "blocks", 1), [2, 1, 1])
    yield type_row(("source", "mesh", 0), ["pp"])
    yield type_row(("source", "mesh", 0), ["pp", 2, 2])
    yield type_row(("source", "mesh", 0), [2, "pp"])
    yield row("latency below 0", spoilt("cluster", "latency_us", -1), "latency_us")
    yield row("0 ranks per node", spoilt("cluster", "ranks_per_node", 0), "ranks_per_node")
    yield row("another format", spoilt("format", "ferry.spec/2"), "ferry.spec/2")
    yield row("a tensor is text", spoilt("tensors", 1, "gate"), "tensors")
    yield row("a rule is text", spoilt("source", "rules", 1, "gate"), "rules")


# ---- what the Edges say --------------------------------------------------------------------------


def edge(name, spec, *needles):
    return row(name, spec, *needles, oracle=True)


def changed(spec, *path_and_value):
    *path, key, value = path_and_value
    place = spec
    for step in path:
        place = place[step]
    place[key] = value
    return spec


def cut_rows():
    pairs = [("stride", 2), ("blocks", [12]), ("sizes", [3, 3, 3, 3]), ("cycle", 2)]
    for i, (key, value) in enumerate(pairs):
        for other, second in pairs[i + 1:]:
            yield edge("%s and %s" % (key, other), small(cut(**{key: value, other: second})),
                       (key, other))
        nested = {"dim": 0, "axis": ["pp", "tp"], "nested": True, key: value}
        yield edge("nested and " + key, small(shard(nested)), ("nested", key))
    nested = {"dim": 0, "axis": ["pp", "tp"], "nested": True, "parts": 2}
    yield edge("nested and parts", small(shard(nested)), ("nested", "parts"))
    yield edge("unit and sizes", small(cut(unit=1, sizes=[3, 3, 3, 3])), ("unit", "sizes"))
    yield edge("unit and cycle", small(cut(unit=1, cycle=2)), ("unit", "cycle"))
    for key in ("stride", "cycle", "unit", "parts"):
        yield edge(key + " 0", small(cut(**{key: 0})), key)
    yield edge("sizes too short", small(cut(sizes=[3, 9])), ("sizes", NAME), "2", "4")
    yield edge("sizes too long", small(cut(sizes=[3, 3, 3, 2, 1])), ("sizes", NAME), "5", "4")
    yield edge("sizes sum to less", small(cut(sizes=[3, 3, 3, 2])), NAME, "11", "12")
    yield edge("sizes sum to more", small(cut(sizes=[3, 3, 3, 4])), NAME, "13", "12")
    yield edge("sizes that overflow", small(cut(sizes=[2**62, 2**62, 2**62, 2**62 + 12])), NAME)
    yield edge("sizes for ranks, not parts", small(cut(sizes=[3, 3, 3, 3], parts=2)),
               ("sizes", NAME), "4", "2")
    yield edge("blocks sum to less", small(cut(blocks=[4, 4])), NAME, "8", "12")
    yield edge("blocks sum to more", small(cut(blocks=[8, 8])), NAME, "16", "12")
    yield edge("parts does not divide", small(cut(parts=3)), ("parts", NAME), "3", "4")
    yield edge("parts above the ranks", small(cut(parts=8)), ("parts", NAME), "8", "4")
    yield edge(
        "block parts do not divide", small(cut(blocks=[8, [4, 3]])), (NAME, "blocks"), "3", "4"
    )
    yield edge("block over 0 parts", small(cut(blocks=[8, [4, 0]])), (NAME, "blocks", "parts"))
    yield edge("unit does not divide", small(cut(unit=5)), ("unit", NAME), "5", "12")
    yield edge(
        "unit does not divide a block", small(cut(blocks=[7, 5], unit=4)), ("unit", NAME), "4", "7"
    )
    yield edge("f4 cut inside a byte", small(shard({"dim": 1, "axis": "tp", "sizes": [1, 3, 2, 2]}),
                                             dtype="f4"), NAME)
    yield edge("f4 flat cut inside a byte", small({"flat": {"axis": "tp", "sizes": [1, 95, 0, 0]}},
                                                  dtype="f4"), NAME)
    yield edge("f4 scalar", small(shape=[], dtype="f4"), NAME)


def cast_rows():
    """What a rule of the destination may not say that tensors become."""
    at = "destination.rules[0]"
    for key, value in (("dtype", "f32"), ("cast", "round"), ("scale", 2), ("add", 1)):
        yield edge("%s at the source" % key, small({key: value}), '"%s"' % key, "source.rules[0]",
                   "as they are")
    for word in ("floor", "", "ROUND", 1, None, ["round"]):
        yield edge("the cast %r" % (word,), small({}, {"dtype": "bf16", "cast": word}),
                   at + ".cast")
    for key in ("scale", "add"):
        yield edge("%s without a cast" % key, small({}, {key: 2}), '"%s"' % key, at, '"cast"')
        for value in ("2", None, [2], 1e39, -1e300):
            yield edge("the %s %r" % (key, value), small({}, {"cast": "round", key: value}),
                       at + "." + key)
    for value in (0, 0.0, -0.0, 1e-60):
        yield edge("the scale %r" % value, small({}, {"cast": "round", "scale": value}),
                   at + ".scale", "0")
    yield edge("another dtype without a cast", small({}, {"dtype": "bf16"}), NAME, "f32", "bf16",
               '"cast"')
    for dtype, wanted in (("f32", "f64"), ("f64", "bf16"), ("i32", "f32"), ("f32", "i32"),
                          ("f32", "f4"), ("bf16", "f8e8m0"), ("bytes:4", "f32"), ("bool", "f8e4m3")):
        yield edge("a cast from %s to %s" % (dtype, wanted),
                   small({}, {"dtype": wanted, "cast": "saturate"}, dtype=dtype), NAME, dtype,
                   wanted)
    for dtype in ("f64", "i32", "c64"):
        yield edge("%s times two" % dtype, small({}, {"cast": "round", "scale": 2}, dtype=dtype),
                   NAME, dtype)
    yield row("an unknown dtype of a rule", small({}, {"dtype": "f33", "cast": "round"}), "f33", at)


def quantized(**values):
    """What a rule says, with the values in place of what is right; None: without the key."""
    said = {"format": "f8e4m3", "block": [3, 4], "scale": "*_scale", **values}
    return {"quantize": {key: value for key, value in said.items() if value is not None}}


def quantize_rows():
    at = "destination.rules[0].quantize"
    for value in ({}, [], "f8e4m3", None):
        yield edge("quantize that is %r" % (value,), small({}, {"quantize": value}), at)
    for key, values in (("format", ("nvfp4", "f4", "", 1, None)),
                        ("block", ([3], [3, 4, 5], [0, 4], [3, -4], [3, 1 << 31], [3, 1.5], 3, None)),
                        ("scale", ("", "*", "*_*", 1, None)),
                        ("scale_dtype", ("bf16", 1)), ("scale_kind", ("max", 1)), ("more", (1,))):
        for value in values:
            yield edge("quantize, %s %r" % (key, value), small({}, quantized(**{key: value})), at)
    yield edge("amax of powers", small({}, quantized(scale_dtype="f8e8m0", scale_kind="amax")), at)
    yield edge("mxfp8 and a block", small({}, quantized(format="mxfp8")), at, "mxfp8")
    yield edge("quantize and cast", small({}, {**quantized(), "cast": "round"}), '"cast"')
    yield edge("quantize at the source", small(quantized()), '"quantize"', "source.rules[0]")
    yield edge("codes of another dtype", small({}, {**quantized(), "dtype": "f8e5m2"}), "dtype")
    for dtype in ("f64", "i32", "f8e4m3", "u8"):
        yield edge("%s is quantized" % dtype, small({}, quantized(), dtype=dtype), NAME, dtype)
    yield edge("a vector is quantized", small({}, quantized(), shape=[12]), NAME, "1 dimensions")
    yield edge("a cut inside a block at the destination",
               small({}, {**cut(sizes=[3, 4, 3, 2]), **quantized()}), NAME, "destination", "dim 0",
               "block of 3", "7")
    yield edge("a flat destination is quantized",
               small({}, {"flat": {"axis": "tp"}, **quantized()}), NAME, "destination", "flat")
    yield edge("scales that are a tensor", small({}, quantized(scale=NAME)), NAME)
    two = small({}, quantized(scale="scales"))
    two["tensors"].append({**two["tensors"][0], "name": "other"})
    yield edge("two scales of one name", two, "scales", "other")
    shared = small({}, {**cut(blocks=[6, [6, 2]]), **quantized(block=[1, 4])})
    yield row("shared blocks are quantized", shared, NAME, "destination", "neighbours")
    for which in ("source", "destination"):
        named = small({}, quantized(scale="scales"))
        named[which]["rules"].insert(0, {"match": "scales", "skip": True})
        yield row("a rule of the %s for scales" % which, named, which, '"scales"', NAME)


def f4(given=None, source_rule=None, destination_rule=None, shape=(12, 32), **said):
    """A spec whose tensor becomes nvfp4, with some of what the scale of its matrix and a rule say."""
    quantize = {"format": "nvfp4", "scale": "*_s", "tensor_scale": "*_g", **said}
    quantize = {key: value for key, value in quantize.items() if value is not None}
    spec = small(source_rule, {"quantize": quantize, **(destination_rule or {})}, shape=shape)
    spec["destination"]["rules"][0]["match"] = NAME
    spec["destination"]["rules"].append({"match": "*"})
    spec["tensors"].append({"name": NAME + "_g", "shape": [], "dtype": "f32", **(given or {})})
    spec["source"]["rules"].insert(0, {"match": NAME + "_g"})
    return spec


def f4_rows():
    at = "destination.rules[0].quantize"
    for key, values in (("tensor_scale", ("", "*", "*_*", 1, None)), ("block", ([1, 16],)),
                        ("scale_dtype", ("f8e4m3",)), ("scale_kind", ("amax",))):
        for value in values:
            yield edge("nvfp4, %s %r" % (key, value), f4(**{key: value}), at)
    yield edge("scales of matrices in f8", small({}, quantized(tensor_scale="*_g")), at, "nvfp4")
    yield edge("nvfp4 by what is missing", f4(tensor_scale="*_h"), NAME, NAME + "_h", "2688")
    yield edge("nvfp4 by bf16", f4({"dtype": "bf16"}), NAME + "_g", "f32")
    yield edge("nvfp4 by a vector", f4({"shape": [12]}), NAME + "_g", "one f32 for each matrix")
    yield edge("nvfp4 by one element", f4({"shape": [1]}), NAME + "_g", "one f32 for each matrix")
    yield edge("nvfp4 by one for a stack", f4(shape=(2, 12, 32)), NAME + "_g", "each matrix")
    yield edge("nvfp4 of odd rows", f4(shape=(12, 7)), NAME, "7 elements")
    for what, rule in (("cut within a block", shard({"dim": 1, "axis": "tp", "unit": 8})),
                       ("cut flat", {"flat": {"axis": "tp"}})):
        for how, given in (("skipped", {"skip": True}), ("cast", {"dtype": "bf16", "cast": "round"}),
                           ("pinned", {"on": {"tp": 1}}), ("scaled", {"cast": "round", "scale": 2})):
            of = f4(source_rule=rule)
            of["destination"]["rules"].insert(0, {"match": NAME + "_g", **given})
            yield edge("nvfp4 of what is %s, by scales that are %s" % (what, how), of, "destination",
                       "rank ", NAME, NAME + "_g", "\"unit\" of 16")
    yield edge("nvfp4 that is cut within a block",
               f4(destination_rule=shard({"dim": 1, "axis": "tp", "unit": 8})), NAME, "destination",
               "dim 1", "block of 16")
    pinned = f4()
    pinned["source"]["rules"][0]["on"] = {"pp": 0}
    yield edge("nvfp4 where the scale is not", pinned, "rank 4", NAME, NAME + "_g")
    absent = f4()
    absent["source"]["rules"][0]["skip"] = True
    yield edge("nvfp4 by what no source has", absent, "rank 0", NAME + "_g")
    apart = f4({"shape": [4]}, shape=(4, 12, 32), source_rule=cut())
    yield edge("nvfp4 by scales that are cut otherwise", apart, "rank 0", NAME + "_g", "cut as")


def dequantized(changes=None, scales=None, **values):
    """A spec of codes and scales, with some of what a rule, the scales and "dequantize" say."""
    said = {"block": [3, 4], "scale": "*_s", **values}
    said = {key: value for key, value in said.items() if value is not None}
    rule = {"dtype": "bf16", "dequantize": said, **(changes or {})}
    spec = small({}, {key: value for key, value in rule.items() if value is not None},
                 dtype="f8e4m3")
    spec["tensors"].append({"name": NAME + "_s", "shape": [4, 2], "dtype": "f32", **(scales or {})})
    spec["destination"]["rules"][0]["match"] = NAME
    spec["destination"]["rules"].append({"match": "*"})
    return spec


def halves(changes=None, scales=None, matrices=None, shape=(12, 32), **values):
    """The same of codes of f4; None: the spec has no scales of matrices."""
    spec = dequantized(changes, {"shape": [*shape[:-1], -(-shape[-1] // 16)], "dtype": "f8e4m3",
                                 **(scales or {})}, **{"block": [1, 16], **values})
    spec["tensors"][0].update(dtype="f4", shape=list(shape))
    if matrices is not None:
        spec["tensors"].append({"name": NAME + "_s_2", "shape": list(shape[:-2]), "dtype": "f32",
                                **matrices})
    return spec


def half_rows():
    for block in ([1, 32], [2, 16], [16, 1]):
        yield edge("f4 in blocks of %s" % block, halves(matrices={}, block=block), NAME, "[1, 16]")
    for dtype in ("f32", "f8e8m0"):
        yield edge("scales of f4 in %s" % dtype, halves(None, {"dtype": dtype}, {}), NAME + "_s",
                   "must be f8e4m3")
    yield edge("odd rows of f4 are dequantized", halves(matrices={}, shape=(12, 7)), NAME,
               "7 elements")
    yield edge("f4 without scales of matrices", halves(), NAME, NAME + "_s_2", "no tensor")
    for what, of in (("bf16", {"dtype": "bf16"}), ("a vector", {"shape": [1]}),
                     ("a stack", {"shape": [12]})):
        yield edge("scales of matrices that are %s" % what, halves(matrices=of), NAME + "_s_2",
                   "one f32 for each")
    yield edge("f4 that is cut within a block",
               halves(shard({"dim": 1, "axis": "tp", "unit": 8}), matrices={}), NAME, "destination",
               "dim 1", "block of 16")
    for which in ("source", "destination"):
        odd = halves(matrices={}, shape=(12, 36))
        odd[which]["rules"][0].update(shard({"dim": 1, "axis": "tp", "sizes": [16, 16, 3, 1]}))
        odd[which]["rules"][0]["match"] = NAME
        odd[which]["rules"].append({"match": "*"})
        yield edge("f4 whose %s is cut within a byte" % which, odd, NAME,
                   "bytes" if which == "source" else "block of 16")
    taken = halves(matrices={})
    taken["tensors"].append({"name": NAME + ":scales_2", "shape": [1], "dtype": "u8"})
    yield edge("the name of scales of matrices is taken", taken, NAME + ":scales_2", NAME)
    absent = halves(matrices={})
    absent["source"]["rules"].insert(0, {"match": NAME + "_s_2", "skip": True})
    absent["destination"]["rules"].insert(0, {"match": NAME + "_s_2", "skip": True})
    yield edge("scales of matrices that no source has", absent, NAME, NAME + "_s_2", "source")


def of_parts(cut):
    """Codes and scales of two parts each; those of the codes meet at a row."""
    spec = dequantized({"skip": False})
    for tensor, rows, columns, at in ((NAME, 12, 8, cut), (NAME + "_s", 4, 2, 2)):
        parts = [(tensor + ".0", 0, at), (tensor + ".1", at, rows)]
        entry = next(entry for entry in spec["tensors"] if entry["name"] == tensor)
        entry["source"] = [{"tensor": part, "begin": [0, 0], "shape": [end - begin, columns],
                            "at": [begin, 0]} for part, begin, end in parts]
        spec["tensors"] += [{"name": part, "shape": [end - begin, columns], "only": "source",
                             "dtype": entry["dtype"]} for part, begin, end in parts]
    return spec


def dequantize_rows():
    at = "destination.rules[0].dequantize"
    for value in ([], "f8e4m3"):
        yield edge("dequantize that is %r" % (value,), dequantized({"dequantize": value}), at)
    for key, values in (("block", ([3], [0, 4], [3, 1 << 31], 3, None)),
                        ("scale", ("", "*", "*_*", 1, None)), ("format", ("f8e4m3",))):
        for value in values:
            yield edge("dequantize, %s %r" % (key, value), dequantized(**{key: value}), at)
    for dtype in (None, "f8e4m3", "f64", "i16"):
        yield edge("dequantized to %s" % dtype, dequantized({"dtype": dtype}), '"dtype"',
                   "destination.rules[0]")
    for key, value in (("cast", "round"), ("quantize", {})):
        yield edge("dequantize and %s" % key, dequantized({key: value}), '"%s"' % key,
                   '"dequantize"')
    yield edge("dequantize at the source", changed(
        dequantized(), "source", "rules", 0, "dequantize", {"block": [3, 4], "scale": "*_s"}),
        '"dequantize"', "source.rules[0]")
    for dtype in ("f4", "u8", "bf16"):
        yield edge("%s is dequantized" % dtype, changed(dequantized(), "tensors", 0, "dtype", dtype),
                   NAME, dtype)
    yield edge("scales that are missing", dequantized(scale="*_t"), NAME, NAME + "_t",
               "no tensor")
    for dtype in ("bf16", "f8e4m3"):
        yield edge("scales of %s" % dtype, dequantized(scales={"dtype": dtype}), NAME + "_s", dtype)
    for shape in ([4, 3], [3, 2], [1, 4, 2], [8]):
        yield edge("scales of the shape %s" % shape, dequantized(scales={"shape": shape}),
                   NAME + "_s", "[4, 2]", ", ".join(map(str, shape)))
    yield edge("a cut inside a block that is dequantized", dequantized(cut(sizes=[3, 4, 3, 2])),
               NAME, "destination", "dim 0", "block of 3", "7")
    yield edge("a flat destination is dequantized", dequantized({"flat": {"axis": "tp"}}), NAME,
               "flat", "is dequantized")
    shared = dequantized(cut(blocks=[6, [6, 2]]), {"shape": [12, 2]}, block=[1, 4])
    yield row("shared blocks are dequantized", shared, NAME, "destination", "neighbours",
              "cannot be dequantized")
    yield edge("parts that meet inside a block", of_parts(7), NAME, "7 of dim 0", "block of 3")
    taken = dequantized()
    taken["tensors"].append({"name": NAME + ":scales", "shape": [1], "dtype": "u8"})
    yield edge("the name of scales is taken", taken, NAME + ":scales", NAME)


def rule_rows():
    twice = shard({"dim": 0, "axis": "tp"}, {"dim": 0, "axis": "pp"})
    yield edge("a dim twice", small(twice), ("dim", NAME), "0")
    same = shard({"dim": 0, "axis": "tp"}, {"dim": 1, "axis": "tp"})
    yield edge("an axis twice in shard", small(same), "tp", (NAME, "rules[0]"))
    listed = shard({"dim": 0, "axis": ["tp", "tp"]})
    yield edge("an axis twice in a list", small(listed), "tp", (NAME, "rules[0]"))
    yield edge(
        "an axis in shard and flat",
        small({**cut(), "flat": {"axis": "tp"}}),
        "tp",
        (NAME, "rules[0]"),
    )
    yield edge(
        "an axis in shard and on", small({**cut(), "on": {"tp": 0}}), "tp", (NAME, "rules[0]")
    )
    yield edge(
        "an axis in flat and on",
        small({"flat": {"axis": "tp"}, "on": {"tp": 0}}),
        "tp",
        (NAME, "rules[0]"),
    )
    yield from cast_rows()
    yield from quantize_rows()
    yield from f4_rows()
    yield from dequantize_rows()
    yield from half_rows()
    yield edge("dim out of range", small(shard({"dim": 2, "axis": "tp"})), NAME, "2")
    yield edge("shard on a scalar", small(cut(), shape=[]), NAME)
    yield edge("flat on a scalar", small({"flat": {"axis": "tp"}}, shape=[]), NAME)
    yield edge("flat sizes do not sum", small({"flat": {"axis": "tp", "sizes": [1, 2, 3, 4]}}),
               NAME, "10", "96")
    yield edge("flat sizes too few", small({"flat": {"axis": "tp", "sizes": [48, 48]}}),
               (NAME, "sizes"), "2", "4")
    yield edge("flat sizes of one part do not fit",
               changed(small({"flat": {"axis": "one", "sizes": [95]}}), "source", "mesh",
                       [["pp", 2], ["tp", 4], ["one", 1]]), NAME, "95", "96")
    yield edge("flat sizes for uneven shards",
               small({**shard({"dim": 0, "axis": "pp", "sizes": [5, 7]}),
                      "flat": {"axis": "tp", "sizes": [10, 10, 10, 10]}}), NAME)
    yield edge("unknown axis in shard", small(shard({"dim": 0, "axis": "xp"})), "xp")
    yield edge("unknown axis in a list", small(shard({"dim": 0, "axis": ["tp", "xp"]})), "xp")
    yield edge("unknown axis in flat", small({"flat": {"axis": "xp"}}), "xp")
    yield edge("unknown axis in on", small({"on": {"xp": 0}}), "xp")
    for value in (2, -3):
        yield edge("on %d of 2" % value, small({"on": {"pp": value}}), ("pp", NAME), str(value))
    yield edge("on out of range in a list", small({"on": {"pp": [0, 2]}}), ("pp", NAME), "2")
    yield edge("on twice", small({"on": {"pp": [1, 1]}}), ("pp", NAME))
    yield edge("on twice, from both ends", small({"on": {"pp": [0, -2]}}), ("pp", NAME))
    yield edge("no rule at the source", changed(small(), "source", "rules", []), NAME)
    yield edge("no rule at the destination",
               changed(small(), "destination", "rules", 0, "match", "other.*"), NAME)
    yield edge("the source skips what is wanted", small({"skip": True}), NAME)
    yield edge("a wanted source is skipped", changed(copy.deepcopy(RICH), "source", "rules", 3,
                                                     {"match": "embed", "skip": True}),
               ("embed", "head"))


def stage_spec(stage, name=EXPERT, rule=None):
    spec = changed(small(rule), "tensors", 0, "name", name)
    return changed(spec, "source", "stages", [stage] if isinstance(stage, dict) else stage)


def stage_rows():
    good = {"match": "layers.{}.*", "count": 4, "axis": "pp"}
    yield edge(
        "stage without {}", stage_spec({**good, "match": "layers.3.*"}), ("{}", "layers.3.*")
    )
    yield edge(
        "stage with two {}", stage_spec({**good, "match": "layers.{}.{}"}), ("{}", "layers.{}.{}")
    )
    yield edge("number beyond the count", stage_spec({**good, "count": 3}), EXPERT, "3")
    yield edge("number beyond the sizes",
               stage_spec({"match": "layers.{}.*", "sizes": [1, 2], "axis": "pp"}), EXPERT, "3")
    yield edge(
        "number beyond 64 bits", stage_spec(good, "layers.%d.w" % 10**25), "layers.%d.w" % 10**25
    )
    yield edge("stage count 0", stage_spec({**good, "count": 0}), ("count", EXPERT))
    yield edge("stage sizes for other coordinates",
               stage_spec({"match": "layers.{}.*", "sizes": [1, 2, 3], "axis": "pp"}),
               ("sizes", EXPERT), "3", "2")
    yield edge(
        "two stages on one axis", stage_spec([good, {**good, "match": "*.{}.w"}]), EXPERT, "pp"
    )
    yield edge("stage on an unknown axis", stage_spec({**good, "axis": "xp"}), "xp")
    sharded = shard({"dim": 0, "axis": "pp"})
    yield edge("stage and shard on one axis", stage_spec(good, rule=sharded), EXPERT, "pp")
    yield edge("stage and flat on one axis", stage_spec(good, rule={"flat": {"axis": "pp"}}),
               EXPERT, "pp")


def mesh_rows():
    def mesh(value):
        return changed(small(), "source", "mesh", value)

    def ranks(value):
        spec = changed(small(), "source", "ranks", value)
        del spec["source"]["first_rank"]
        return spec

    yield edge("a rank twice", ranks([0, 1, 2, 3, 4, 5, 6, 6]), "ranks", "6")
    yield edge("too few ranks", ranks([0, 1, 2, 3, 4, 5, 6]), "ranks", "7", "8")
    yield edge("too many ranks", ranks(list(range(9))), "ranks", "9", "8")
    yield edge("rank 2^24", ranks([0, 1, 2, 3, 4, 5, 6, 2**24]), ("ranks", str(2**24)))
    yield edge(
        "first rank 2^24", changed(small(), "source", "first_rank", 2**24), ("rank", str(2**24))
    )
    yield edge("last rank 2^24", changed(small(), "source", "first_rank", 2**24 - 7), "rank")
    yield edge("first rank 2^63 - 1", changed(small(), "source", "first_rank", 2**63 - 1), "rank")
    yield edge("10^9 ranks", mesh([["pp", 1], ["tp", 10**9]]), ("mesh", "ranks", "tp", str(10**9)))
    yield edge(
        "10^12 ranks in two axes", mesh([["pp", 10**6], ["tp", 10**6]]), ("mesh", "ranks", "tp")
    )
    yield edge("2^64 ranks in two axes", mesh([["pp", 2**32], ["tp", 2**32]]),
               ("mesh", "ranks", "tp", "pp"))
    yield edge("an axis of 0 ranks", mesh([["pp", 2], ["tp", 0]]), ("tp", "mesh"))
    yield edge("an axis twice in the mesh", mesh([["tp", 2], ["tp", 4]]), "tp")


def tensor_rows():
    def shape(*extents, **more):
        return small(shape=extents, **more)

    yield edge("9 dimensions", shape(*[1] * 9), (NAME, "shape"), "9")
    yield row("a million dimensions", shape(*[1] * 10**6), (NAME, "shape"))
    yield edge("elements beyond 2^63", shape(2**62, 4), (NAME, "shape"))
    yield edge("elements beyond 2^64, product 0 in 64 bits", shape(2**32, 2**32), (NAME, "shape"))
    yield edge("bytes beyond 2^63", shape(2**62), (NAME, "shape"))
    yield edge("bytes of a huge element", shape(2**10, dtype="bytes:%d" % 2**60), (NAME, "dtype"))
    yield row("an extent beyond 64 bits", shape(2**70), ("shape", NAME, "integer"))
    for dtype in ("f33", "", "BF16", "bytes:", "bytes:0", "bytes:-1", "bytes:x", "bytes:1.5",
                  "bytes:%d" % 10**30):
        yield edge("dtype %r" % dtype, shape(4, dtype=dtype), ("dtype", NAME))
    yield edge("a tensor twice", changed(small(), "tensors", small()["tensors"] * 2), NAME)
    repeated = small(count=[2])
    yield edge("count without {0}", repeated, (NAME, "count", "{0}"))
    repeated = changed(small(count=[2, 2]), "tensors", 0, "name", "blk.{0}.w")
    yield edge("count without {1}", repeated, ("blk.{0}.w", "count", "{1}"))
    hostile = changed(small(count=[10**6, 10**6]), "tensors", 0, "name", "blk.{0}.{1}")
    yield row("10^12 tensors", hostile, ("count", "blk.{0}.{1}", "tensors"))
    hostile = changed(small(count=[2**32, 2**32]), "tensors", 0, "name", "blk.{0}.{1}")
    yield row("2^64 tensors", hostile, ("count", "blk.{0}.{1}", "tensors"))
    yield row("10^12 pieces", small(cut(cycle=1), shape=[10**12]), (NAME, "cycle"))
    yield row("10^12 segments", small(cut(stride=10**12), shape=[10**13]), (NAME, "stride"))
    yield row(
        "no tensors", changed(small(), "tensors", []), ("tensors", "zero", "no bytes", "nothing")
    )
    nothing = ("zero", "no bytes", "0 bytes", "nothing")
    yield edge("a plan of zero bytes: no elements", shape(0, 4), nothing)
    yield edge("a plan of zero bytes: all skipped", small({"skip": True}, {"skip": True}), nothing)


def source_spec(boxes, a_shape=(6, 8), b_shape=(6, 8), dtype="f32", b_dtype="f32", **more):
    spec = small(source=boxes, dtype=dtype, **more)
    spec["tensors"] += [{"name": "part.a", "shape": list(a_shape), "dtype": dtype},
                        {"name": "part.b", "shape": list(b_shape), "dtype": b_dtype}]
    spec["destination"]["rules"].insert(0, {"match": "part.*", "skip": True})
    return spec


def box(tensor, begin=(0, 0), shape=(6, 8), at=(0, 0)):
    return {"tensor": tensor, "begin": list(begin), "shape": list(shape), "at": list(at)}


def source_rows():
    a, b = box("part.a"), box("part.b", at=(6, 0))
    yield edge("source boxes overlap", source_spec([a, b, box("part.b", shape=(1, 1))]), NAME)
    yield edge(
        "source boxes overlap and leave a gap", source_spec([a, box("part.b", at=(5, 0))]), NAME
    )
    yield edge("source boxes leave a gap", source_spec([a]), NAME)
    yield edge("no source boxes", source_spec([]), (NAME, "source"))
    yield edge("source box exceeds its source", source_spec([a, box("part.b", (1, 0), at=(6, 0))]),
               (NAME, "part.b", "source[1]"))
    yield edge("source box exceeds its tensor", source_spec([a, box("part.b", at=(7, 0))]),
               (NAME, "part.b", "source[1]"))
    huge = box("part.b", (2**63 - 1, 0), at=(6, 0))
    yield edge(
        "source box with a huge begin", source_spec([a, huge]), (NAME, "part.b", "source[1]")
    )
    yield edge("source box at a huge place", source_spec([a, box("part.b", at=(2**63 - 1, 0))]),
               (NAME, "part.b", "source[1]"))
    yield edge("dtype of a box's source", source_spec([a, b], b_dtype="i32"), NAME, ("f32", "i32"))
    yield edge("a box's source is missing", source_spec([a, box("part.c", at=(6, 0))]), "part.c")
    yield edge(
        "a box of too many dims",
        source_spec([a, box("part.b", (0, 0, 0), (1, 6, 8), (0, 6, 0))]),
        (NAME, "part.b", "source[1]"),
    )
    yield edge(
        "a box without the source's dims",
        source_spec([a, box("part.b", (0,), (6,), (6, 0))]),
        (NAME, "part.b", "source[1]"),
    )
    yield edge("a named source is missing", source_spec("part.c"), "part.c")
    yield edge("a named source of another shape", source_spec("part.a"), NAME, "part.a")
    yield edge("a named source of another dtype",
               source_spec("part.b", b_shape=(12, 8), b_dtype="i32"), NAME, ("f32", "i32"))
    yield edge("its own source", source_spec(NAME), NAME)
    cycle = source_spec("part.a", a_shape=(12, 8))
    cycle["tensors"][1]["source"] = NAME
    cycle["destination"]["rules"].pop(0)
    yield edge("sources in a cycle", cycle, (NAME, "part.a"))
    yield edge("three sources in a cycle", chain_spec("part.c", **{"part.c": "part.a"}),
               '"part.a" -> "part.c" -> "part.a"')
    gap = [box("part.b", shape=(11, 8))]
    yield edge("a gap in the source of a source", chain_spec(gap), "part.a", "88", "96")
    yield edge("a source of a source is missing", chain_spec("part.d"), "part.a", "part.d")
    wide = [box("part.b", begin=(1, 0), shape=(12, 8))]
    yield edge("a box exceeds the source of a source", chain_spec(wide), ("part.a", "part.b"), "13")
    only = chain_spec("part.b")
    only["tensors"][1]["only"] = "source"
    yield edge("only at the source, and has one", only, "part.a", "only")
    yield edge("only at a side that there is not", small(only="both"), NAME, "only", "both")


def chain_spec(source, **more):
    """NAME is a copy of part.a, which has a source, too."""
    spec = source_spec("part.a", a_shape=(12, 8), b_shape=(12, 8))
    spec["tensors"][1]["source"] = source
    spec["tensors"] += [{"name": name, "shape": [12, 8], "dtype": "f32", "source": its}
                        for name, its in more.items()]
    return spec


# ---- text that is no spec ------------------------------------------------------------------------


def text_rows():
    good = json.dumps(small()).encode()
    yield row("empty file", b"", ("spec.json", "empty", "JSON"))
    yield row("only blanks", b" \n\t ", ())
    yield row("truncated in the middle", good[:len(good) // 2], ())
    yield row("the last brace is missing", good[:-1], ())
    yield row("more text behind", good + b" x", ())
    yield row("two specs", good + good, ())
    yield row("an array", b"[]", ())
    yield row("a number", b"5", ())
    yield row("a comma too many", good[:-1] + b",}", ())
    yield row("single quotes", good.replace(b'"', b"'"), ())
    yield row("not UTF-8", good.replace(b"blk", b"b\xff\xfe"), ())
    yield row("a NUL byte", good.replace(b"blk", b"b\x00k"), ())
    yield row("random bytes", bytes((i * 197 + 31) % 256 for i in range(4096)), ())
    yield row("NaN", good.replace(b"12", b"NaN"), ())
    yield row("a key twice: top", b'{"format": "ferry.spec/1", ' + good[1:], "format")
    yield row("a key twice: tensor", good.replace(b'"dtype"', b'"dtype": "f32", "dtype"'), "dtype")
    yield row("a key twice: rule", good.replace(b'"match"', b'"match": "*", "match"'), "match")
    yield row("100,000 brackets", b"[" * 100_000, ())
    yield row("100,000 brackets, closed", b"[" * 100_000 + b"]" * 100_000, ())
    yield row("100,000 objects", b'{"tensors":' * 100_000, ())
    deep = b'"shape": ' + b"[" * 50_000 + b"]" * 50_000
    yield row("deep nesting inside", good.replace(b'"shape": [12, 8]', deep), ())
    lines = changed(small(), "tensors", 0, "name", "two\nlines")
    yield row("a name of two lines", changed(lines, "source", "rules", []), ())


def all_rows():
    """Every row that is a spec file of its own."""
    for rows in (key_rows, type_rows, cut_rows, rule_rows, stage_rows, mesh_rows, tensor_rows,
                 source_rows, text_rows):
        yield from rows()


def good_specs():
    """(name, spec): the command must accept these, or the table above proves nothing."""
    yield "small", small()
    yield "rich", copy.deepcopy(RICH)
    yield "no elements beside others", changed(copy.deepcopy(RICH), "tensors", 6, "shape", [0, 3])
    yield "8 dimensions", small(shape=[1, 2, 1, 2, 1, 2, 1, 2])
    yield "more parts than elements", small(cut(), shape=[2])
    yield "empty parts", small(cut(sizes=[0, 12, 0, 0]))
    yield "on overrides a stage", stage_spec({"match": "layers.{}.*", "count": 4, "axis": "pp"},
                                             rule={"on": {"pp": 0}})
    yield "a number with a leading zero is no stage", stage_spec(
        {"match": "layers.{}.*", "count": 4, "axis": "pp"}, "layers.07.w")
    yield "source boxes", source_spec([box("part.a"), box("part.b", at=(6, 0))])
    yield "the source of a source", chain_spec("part.b")
    yield "f4 on bytes", small(shard({"dim": 1, "axis": "tp"}), dtype="f4")
    yield "both sides skip one of two tensors", changed(
        changed(copy.deepcopy(RICH), "source", "rules", 0, {"match": "layers.*", "skip": True}),
        "destination", "rules", 2, {"match": "layers.*", "skip": True})
