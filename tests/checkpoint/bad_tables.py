# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Checkpoints and layout files that must be refused, and words that the sentence must have.

file_cases yields the bytes of model.safetensors; index_cases and sharded_cases a function that
fills a folder; to_cases the object or the text of a --to file.
"""

import json
import struct

import store
from store import INDEX, LAYOUT, Tensor, form_file, rank_name

# ---- one file ------------------------------------------------------------------------------------

A = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
B = {"dtype": "I8", "shape": [3], "data_offsets": [16, 19]}
DATA = bytes(range(19))


def raw(text, data=DATA, length=None):
    """A file of this header text."""
    text = text if isinstance(text, bytes) else text.encode("utf-8")
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def head(**changes):
    """The good header with members changed; None takes one away."""
    header = {"a": dict(A), "b": dict(B)}
    for key, value in changes.items():
        header[key] = value
    return json.dumps({key: value for key, value in header.items() if value is not None})


def entry(base, **changes):
    result = {**base, **changes}
    return {key: value for key, value in result.items() if value is not KEEP_OUT}


KEEP_OUT = object()
BIG = 1 << 62


def offsets_cases():
    for name, value in {
        "overlap": [15, 18], "gap": [17, 20], "same place": [0, 3], "backwards": [19, 16],
        "behind the end": [16, 20], "far behind": [BIG, BIG + 3], "negative": [-3, 0],
        "floats": [16.0, 19.0], "texts": ["16", "19"], "three": [16, 19, 22], "one": [16],
        "none": [], "null": None, "true": [True, 19], "object": {"0": 16, "1": 19},
        "beyond 64 bits": [16, 2**64 + 19], "2^64 less": [16, 2**63], "exponent": [16, 1e300],
    }.items():
        member = entry(B, data_offsets=value)
        data = DATA + b"\0" if name in ("gap", "behind the end") else DATA
        if name == "behind the end":
            data = DATA
        yield "offsets: %s" % name, raw(head(b=member), data), ["b"]


def size_cases():
    for name, shape in {
        "too many": [4], "too few": [2], "none": [0], "scalar": [], "2^61 rows": [1 << 61],
        "product wraps": [3, 1 << 32, 1 << 32], "wraps to fit": [3, (1 << 63) + 1, 2],
        "negative": [-3], "two negatives": [-1, -3], "float": [3.0], "text": ["3"], "null": None,
        "number": 3, "nested": [[3]], "true": [True, 3], "beyond 64 bits": [2**64 + 3],
        "nine dims": [1] * 8 + [3], "many dims": [1] * 100000 + [3], "object": {},
    }.items():
        yield "shape: %s" % name, raw(head(b=entry(B, shape=shape))), ["b"]
    for name, dtype, shape, n in (
        ("F4 of an odd number", "F4", [5], 3), ("F4 scalar", "F4", [], 1),
        ("F6 within a byte", "F6_E2M3", [5], 4), ("F64 too short", "F64", [1], 3),
        ("no name", "", [3], 3), ("unknown that does not fit", "Q7", [7], 3),
    ):
        member = entry(B, dtype=dtype, shape=shape, data_offsets=[16, 16 + n])
        if name != "no name":
            yield "dtype: %s" % name, raw(head(b=member), DATA[:16 + n]), ["b"]
    for name, dtype in {"number": 1, "null": None, "list": ["I8"], "object": {}}.items():
        yield "dtype: %s" % name, raw(head(b=entry(B, dtype=dtype))), ["b"]
    for key in ("dtype", "shape", "data_offsets"):
        yield "no %s" % key, raw(head(b=entry(B, **{key: KEEP_OUT}))), ["b"]
    for name, value in {"number": 1, "text": "x", "list": [], "true": True}.items():
        yield "entry: %s" % name, raw(head(b=value)), ["b"]
    yield "entry: null", raw('{"a":%s,"b":null}' % json.dumps(A)), ["b"]


def text_cases():
    a, b = json.dumps(A), json.dumps(B)
    good = head()
    yield "a tensor twice", raw('{"a":%s,"a":%s,"b":%s}' % (a, a, b)), ["a"]
    yield "a tensor twice, escaped", raw('{"a":%s,"\\u0061":%s,"b":%s}' % (a, a, b)), ["a"]
    yield "two of one name", raw('{"a":%s,"a":%s}' % (a, b)), ["a"]
    yield "dtype twice", raw('{"a":%s,"b":%s}' % (a, b.replace("{", '{"dtype":"U8",', 1))), ["b"]
    yield "metadata twice", raw('{"__metadata__":{},"__metadata__":{},"a":%s,"b":%s}' % (a, b)), []
    yield "metadata key twice", raw(
        '{"__metadata__":{"k":"1","k":"2"},"a":%s,"b":%s}' % (a, b)), []
    for name, value in {"number": {"k": 1}, "null": {"k": None}, "list": [], "text": "x",
                        "nested": {"k": {}}}.items():
        yield "metadata: %s" % name, raw(head(__metadata__=value)), []
    for name, text in {
        "empty": "", "space": " ", "list": "[]", "text": '"x"', "null": "null", "number": "1",
        "open": "{", "half": good[:len(good) // 2], "word behind": good + "x",
        "two objects": good + good, "comma": good[:-1] + ",}", "single quotes": "{'a':1}",
        "byte order mark": "\ufeff" + good, "utf-16": good.encode("utf-16"),
        "zero byte": good + "\0", "raw control": good.replace('"a"', '"a\n"'),
        "infinity": good.replace("[16,", "[Infinity,").replace("[16, 19]", "[Infinity, 19]"),
        "leading zero": good.replace("[16, 19]", "[016, 19]"),
        "plus": good.replace("[16, 19]", "[+16, 19]"), "hex": good.replace("[16,", "[0x10,"),
        "long number": good.replace("[16, 19]", "[16, %s]" % ("9" * 100000)),
        "comment": good[:-1] + "/* */}", "bad escape": good.replace('"a"', '"\\x61"'),
        "half escape": good.replace('"a"', '"\\u00"'),
        "half surrogate": good.replace('"a"', '"\\ud800"'),
        "surrogates swapped": good.replace('"a"', '"\\udc00\\ud800"'),
        "zero in a name": good.replace('"a"', '"a\\u0000b"'),
        "deep list": good[:-1] + ',"x":' + "[" * 300000,
        "deep and whole": good[:-1] + ',"x":' + "[" * 100000 + "]" * 100000 + "}",
        "deep object": '{"a":' * 200000,
        "deep unknown key": good.replace('"I8"', '"I8","z":' + "[" * 200000 + "]" * 200000),
    }.items():
        yield "text: %s" % name, raw(text), []
    for name, code in {"ff": b"\xff", "overlong": b"\xc0\x80", "surrogate": b"\xed\xa0\x80",
                       "cut short": b"\xe2\x82", "beyond": b"\xf4\x90\x80\x80"}.items():
        yield "utf-8: %s" % name, raw(good.encode().replace(b'"a"', b'"a' + code + b'"')), []
        yield "utf-8 in metadata: %s" % name, raw(
            good.encode().replace(b"{", b'{"__metadata__":{"k":"' + code + b'"},', 1)), []


def length_cases():
    text = head() + " " * 5
    n = len(text)
    for name, length in {"one less": n - 1, "one more": n + 1, "none": 0, "all": n + 19,
                         "beyond": n + 20, "100 MB": 100_000_001, "2^31": 1 << 31,
                         "2^32": 1 << 32, "2^63": 1 << 63, "2^64-8": 2**64 - 8,
                         "2^64-1": 2**64 - 1}.items():
        yield "length: %s" % name, raw(text, length=length), []
    whole = raw(head())
    for n in range(len(whole)):
        yield "cut to %d bytes" % n, whole[:n], []
    yield "trailing byte", raw(head(), DATA + b"\0"), []
    yield "hole at the begin", raw(head(a=None, b=entry(B, data_offsets=[1, 4])), b"1234"), ["b"]
    yield "data of nobody", raw("{}", b"1"), []
    yield "zeros", bytes(4096), []
    yield "sparse", raw(head()) + bytes(10), []


def file_cases():
    """(name, bytes of model.safetensors, words of the sentence)."""
    for cases in (offsets_cases, size_cases, text_cases, length_cases):
        yield from cases()


# ---- folders -------------------------------------------------------------------------------------


def put(folder, **files):
    """Writes files; __ in a key stands for a dot, objects become JSON."""
    for name, value in files.items():
        if not isinstance(value, (bytes, str)):
            value = json.dumps(value)
        data = value if isinstance(value, bytes) else value.encode("utf-8")
        (folder / name.replace("__", ".")).write_bytes(data)


def simple(*names, metadata=None):
    """A file with small tensors of these names."""
    return form_file([Tensor(name, "U8", [4], name.encode()[:4].ljust(4)) for name in names],
                     metadata or {})


def indexed(folder, weight_map, **files):
    put(folder, **files)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 8},
                                            "weight_map": weight_map}))


def raw_index(text):
    def make(folder):
        put(folder, p__safetensors=simple("a"))
        (folder / INDEX).write_bytes(text if isinstance(text, bytes) else text.encode())
    return make


def index_cases():
    p, q = simple("a"), simple("b")
    both = {"a": "p.safetensors", "b": "q.safetensors"}

    def index(weight_map, **files):
        return lambda folder: indexed(folder, weight_map, **files)

    yield "index: part missing", index(both, p__safetensors=p), ["q.safetensors"]
    yield "index: tensor not there", index({**both, "c": "p.safetensors"}, p__safetensors=p,
                                           q__safetensors=q), ["c"]
    yield "index: tensor not named", index(both, p__safetensors=simple("a", "z"),
                                           q__safetensors=q), ["z"]
    yield "index: tensor elsewhere", index({"a": "q.safetensors", "b": "p.safetensors"},
                                           p__safetensors=p, q__safetensors=q), []
    yield "index: tensor in two parts", index(both, p__safetensors=p,
                                              q__safetensors=simple("b", "a")), ["a"]
    yield "index: part is the index", index({"a": INDEX}), []
    yield "index: part without a name", index({"a": ""}), []
    yield "index: part is a dot", index({"a": "."}), []
    yield "index: part is a number", index({"a": 1}, p__safetensors=p), ["a"]
    yield "index: part is null", index({"a": None}, p__safetensors=p), ["a"]
    yield "index: part has no header", index({"a": "p.safetensors"}, p__safetensors=b"x"), [
        "p.safetensors"]
    yield "index: zero in a part's name", index({"a": "p\0.safetensors"}, p__safetensors=p), []
    yield "index: long part", index({"a": "p" * 5000}), []
    yield "index: weight_map is a list", index(["a"], p__safetensors=p), ["weight_map"]
    yield "index: weight_map is null", index(None, p__safetensors=p), ["weight_map"]
    yield "index: no weight_map", raw_index('{"metadata":{}}'), ["weight_map"]
    yield "index: list", raw_index("[]"), [INDEX]
    yield "index: empty", raw_index(""), [INDEX]
    yield "index: half", raw_index('{"weight_map":{"a":"p.saf'), [INDEX]
    yield "index: deep", raw_index('{"weight_map":' + "[" * 300000), [INDEX]
    yield "index: deep in metadata", raw_index('{"metadata":' + '{"a":' * 200000), [INDEX]
    yield "index: no UTF-8", raw_index(b'{"weight_map":{"\xff":"p.safetensors"}}'), [INDEX]
    yield "index: a tensor twice", raw_index(
        '{"weight_map":{"a":"p.safetensors","a":"p.safetensors"}}'), []
    yield "index: zeros", raw_index(bytes(1000)), [INDEX]
    yield "parts disagree on a key", index(
        both, p__safetensors=simple("a", metadata={"kk": "1"}),
        q__safetensors=simple("b", metadata={"kk": "2"})), ["kk"]
    yield "empty folder", lambda folder: None, ["source"]
    yield "no checkpoint", lambda folder: put(folder, config__json="{}"), ["source"]


def sharded(folder, change=None, ranks=None, **more):
    """A good folder of two ranks, then changed."""
    layout = {"format": "ferry.layout/1", "mesh": [["tp", 2]],
              "rules": [{"match": "a", "shard": [{"dim": 0, "axis": "tp"}]}, {"match": "*"}],
              "tensors": [{"name": "a", "shape": [4, 2], "dtype": "f32"},
                          {"name": "b", "shape": [3], "dtype": "i8"}]}
    files = {0: [Tensor("a", "F32", [2, 2], bytes(range(16))), Tensor("b", "I8", [3], b"xyz")],
             1: [Tensor("a", "F32", [2, 2], bytes(range(16, 32))), Tensor("b", "I8", [3], b"xyz")]}
    files.update(ranks or {})
    if change:
        layout = change(layout) or layout
    folder.rmdir()
    store.write_sharded(folder, layout, {rank: (tensors, {}) for rank, tensors in files.items()})
    for name, value in more.items():
        path = folder / name.replace("__", ".").replace("rank_", "rank-")
        if value is None:
            path.unlink()
        else:
            path.write_bytes(value)


def changed(path, value):
    """A change of the layout: the value at a path of keys is replaced (KEEP_OUT: removed)."""
    def change(layout):
        at = layout
        for key in path[:-1]:
            at = at[key]
        if value is KEEP_OUT:
            del at[path[-1]]
        else:
            at[path[-1]] = value
        return layout
    return change


LAYOUT_CHANGES = {
    "unknown key": (["more"], 1, ["more"]),
    "no mesh": (["mesh"], KEEP_OUT, ["mesh"]),
    "mesh is empty": (["mesh"], [], []),
    "mesh is null": (["mesh"], None, ["mesh"]),
    "mesh is an object": (["mesh"], {"tp": 2}, ["mesh"]),
    "axis without a size": (["mesh"], [["tp"]], ["mesh"]),
    "axis of none": (["mesh"], [["tp", 0]], []),
    "axis of less": (["mesh"], [["tp", -2]], []),
    "axis of a float": (["mesh"], [["tp", 2.0]], []),
    "axis of 2^40": (["mesh"], [["tp", 1 << 40]], []),
    "axis of 2^64": (["mesh"], [["tp", 1 << 64]], []),
    "mesh of 2^24 + 1": (["mesh"], [["tp", (1 << 24) + 1]], []),
    "mesh that wraps": (["mesh"], [["tp", 1 << 20], ["a", 1 << 20], ["b", 1 << 24]], []),
    "axis twice": (["mesh"], [["tp", 2], ["tp", 1]], ["tp"]),
    "no rules": (["rules"], KEEP_OUT, ["rules"]),
    "no rule fits": (["rules"], [{"match": "a"}], ["b"]),
    "rule key": (["rules", 0, "shards"], [], ["shards"]),
    "rule without match": (["rules", 0], {}, ["match"]),
    "shard key": (["rules", 0, "shard", 0, "strides"], 2, ["strides"]),
    "dim beyond": (["rules", 0, "shard", 0, "dim"], 2, ["a"]),
    "axis unknown": (["rules", 0, "shard", 0, "axis"], "ep", ["ep"]),
    "stride 0": (["rules", 0, "shard", 0, "stride"], 0, []),
    "sizes of three": (["rules", 0, "shard", 0, "sizes"], [1, 1, 2], []),
    "sizes that sum up wrong": (["rules", 0, "shard", 0, "sizes"], [1, 2], ["a"]),
    "sizes that wrap": (["rules", 0, "shard", 0, "sizes"], [(1 << 63) - 1, 5], ["a"]),
    "no tensors": (["tensors"], KEEP_OUT, ["tensors"]),
    "tensors are an object": (["tensors"], {}, ["tensors"]),
    "a tensor less": (["tensors"], [{"name": "a", "shape": [4, 2], "dtype": "f32"}], ["b"]),
    "tensor key": (["tensors", 0, "dtypes"], "f32", ["dtypes"]),
    "other shape": (["tensors", 0, "shape"], [4, 3], ["a"]),
    "other rows": (["tensors", 0, "shape"], [5, 2], ["a"]),
    "huge shape": (["tensors", 0, "shape"], [1 << 40, 1 << 40], ["a"]),
    "shape of less": (["tensors", 0, "shape"], [-4, 2], []),
    "nine dims": (["tensors", 0, "shape"], [1] * 7 + [4, 2], ["a"]),
    "other dtype": (["tensors", 0, "dtype"], "i32", ["a"]),
    "smaller dtype": (["tensors", 0, "dtype"], "bf16", ["a"]),
    "unknown dtype": (["tensors", 0, "dtype"], "F32", ["F32"]),
    "bytes of none": (["tensors", 0, "dtype"], "bytes:0", ["bytes:0"]),
    "bytes of 2^70": (["tensors", 0, "dtype"], "bytes:1180591620717411303424", []),
    "format": (["format"], "ferry.layout/2", ["ferry.layout/2"]),
    "format is a number": (["format"], 1, ["format"]),
    "ranks of one": (["ranks"], [0], []),
    "a rank twice": (["ranks"], [0, 0], []),
    "rank 2^24": (["ranks"], [0, 1 << 24], []),
    "first rank beyond": (["first_rank"], (1 << 24) - 1, []),
    "first rank of less": (["first_rank"], -1, []),
    "stage beyond": (["stages"], [{"match": "{}", "axis": "tp", "count": 0}], []),
    "stage key": (["stages"], [{"match": "x.{}", "axis": "tp", "counts": 2}], ["counts"]),
    "stage without number": (["stages"], [{"match": "x.*", "axis": "tp", "count": 2}], []),
    "source in a source": (["tensors", 0, "source"], "b", []),
}


def sharded_cases():
    """Layout files that lie, and rank files that do."""
    for name, (path, value, words) in LAYOUT_CHANGES.items():
        yield "layout: %s" % name, (
            lambda folder, p=path, v=value: sharded(folder, changed(p, v))), words
    one = Tensor("a", "F32", [2, 2], bytes(16))
    b = Tensor("b", "I8", [3], b"xyz")

    def ranks(tensors):
        return lambda folder: sharded(folder, ranks={1: tensors})

    yield "rank: file missing", lambda folder: sharded(folder, rank_00001__safetensors=None), [
        rank_name(1)]
    yield "rank: file empty", lambda folder: sharded(folder, rank_00001__safetensors=b""), [
        rank_name(1)]
    yield "rank: tensor missing", ranks([one]), ["b"]
    yield "rank: tensor too many", ranks([one, b, Tensor("c", "U8", [1], b"c")]), ["c"]
    yield "rank: nothing", ranks([]), []
    yield "rank: other rows", ranks([Tensor("a", "F32", [1, 2], bytes(8)), b]), ["a"]
    yield "rank: rows and columns", ranks([Tensor("a", "F32", [4, 1], bytes(16)), b]), ["a"]
    yield "rank: flat", ranks([Tensor("a", "F32", [4], bytes(16)), b]), ["a"]
    yield "rank: whole", ranks([Tensor("a", "F32", [4, 2], bytes(32)), b]), ["a"]
    yield "rank: dtype", ranks([Tensor("a", "I32", [2, 2], bytes(16)), b]), ["a"]
    yield "rank: scalar", ranks([one, Tensor("b", "I8", [], b"x")]), ["b"]
    yield "rank: cut", lambda folder: sharded(
        folder, rank_00001__safetensors=form_file([one, b], {})[:-1]), [rank_name(1)]
    for name, value in {"no number": "xyz", "short": "123", "long": "0" * 17, "empty": "",
                        "signed": "-" + "0" * 15, "prefix": "0x" + "0" * 14,
                        "wrong": "0123456789abcdef"}.items():
        file = form_file([one, b], {store.CHECKSUM_KEY + "a": value})
        yield "checksum: %s" % name, (
            lambda folder, f=file: sharded(folder, rank_00001__safetensors=f)), ["a"]
    two = form_file([one, b], {"kk": "1"})
    other = form_file([one, b], {"kk": "2"})
    yield "ranks disagree on a key", lambda folder: sharded(
        folder, rank_00000__safetensors=two, rank_00001__safetensors=other), ["kk"]
    for name, text in {"empty": b"", "list": b"[]", "half": b'{"mesh":', "zeros": bytes(99),
                       "deep": b'{"rules":' + b"[" * 300000, "utf-8": b'{"mesh":"\xff"}',
                       "key twice": b'{"mesh":[["tp",1]],"mesh":[["tp",1]],"rules":[],"tensors":[]}'
                       }.items():
        yield "layout text: %s" % name, (
            lambda folder, t=text: sharded(folder, ferry__layout__json=t)), [LAYOUT]


# ---- --to files ----------------------------------------------------------------------------------


def to_cases():
    """(name, object or text of the --to file, words)."""
    base = {"mesh": [["tp", 2]], "rules": [{"match": "*"}]}
    a = {"name": "a", "shape": [4, 2], "dtype": "f32"}
    b = {"name": "b", "shape": [3], "dtype": "i8"}
    for name, (path, value, words) in LAYOUT_CHANGES.items():
        if path[0] not in ("tensors", "format") and name != "no rule fits":
            layout = {**base, "rules": [{"match": "a", "shard": [{"dim": 0, "axis": "tp"}]},
                                        {"match": "*"}]}
            yield name, changed(path, value)(layout), words
    yield "no rule fits", {**base, "rules": [{"match": "a"}]}, ["b"]
    yield "format", {**base, "format": "ferry.spec/1"}, ["ferry.spec/1"]
    for name, tensors, words in (
        ("other shape", [{**a, "shape": [2, 4]}, b], ["a"]),
        ("other dtype", [{**a, "dtype": "i32"}, b], ["a"]),
        ("unknown tensor", [a, b, {"name": "new", "shape": [4], "dtype": "f32"}], ["new"]),
        ("a tensor twice", [a, a, b], ["a"]),
        ("source unknown", [a, b, {**a, "name": "new", "source": "zz"}], ["zz"]),
        ("source of another shape", [a, b, {**b, "name": "new", "source": "a"}], ["new"]),
        ("new one replaces", [a, {**b, "source": "b"}], ["b"]),
        ("boxes leave a gap", [a, b, {**b, "name": "new", "source": [box(0, 2, 0)]}], ["new"]),
        ("boxes overlap", [a, b, {**b, "name": "new", "source": [box(0, 2, 0), box(0, 2, 1)]}],
         ["new"]),
        ("box beyond", [a, b, {**b, "name": "new", "source": [box(1, 3, 0)]}], ["new"]),
        ("box far beyond", [a, b, {**b, "name": "new", "source": [box((1 << 63) - 1, 3, 0)]}],
         ["new"]),
        ("box at far beyond", [a, b, {**b, "name": "new", "source": [box(0, 3, (1 << 63) - 1)]}],
         ["new"]),
        ("box of another dtype", [a, b, {**b, "name": "new", "source": [
            {"tensor": "a", "begin": [0, 0], "shape": [3, 1], "at": [0]}]}], ["new"]),
        ("box without at", [a, b, {**b, "name": "new", "source": [
            {"tensor": "b", "begin": [0], "shape": [3]}]}], ["at"]),
        ("box key", [a, b, {**b, "name": "new", "source": [{**box(0, 3, 0), "x": 1}]}], ["x"]),
        ("no boxes", [a, b, {**b, "name": "new", "source": []}], ["new"]),
        ("fed by one that it feeds", [a, b, {**b, "name": "new", "source": "newer"},
                                      {**b, "name": "newer", "source": "new"}],
         ["newer", "circle"]),
    ):
        yield "tensors: %s" % name, {**base, "tensors": tensors}, words
    for name, text in {"empty": b"", "half": b'{"mesh":[', "zeros": bytes(99), "list": b"[]",
                       "deep": b'{"rules":' + b"[" * 300000, "key twice":
                       b'{"mesh":[["tp",1]],"rules":[{"match":"*"}],"mesh":[["tp",2]]}'}.items():
        yield "text: %s" % name, text, ["to.json"]


def box(begin, n, at):
    return {"tensor": "b", "begin": [begin], "shape": [n], "at": [at]}
