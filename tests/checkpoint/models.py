# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Random models and random layouts for them, reproducible from a random number generator."""

import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "oracle"))

import spec_random  # noqa: E402
from reshard_oracle import place  # noqa: E402
from ferry_layout import Side, SpecError, glob_match  # noqa: E402
from store import OPAQUE_WORDS, OTHER_WORDS, WORDS, Tensor, ferry_dtype, word_bits  # noqa: E402

MOST_TRIES = 400
ODD_NAMES = ["a\"quote\"", "back\\slash", "dots..and...", "sp ace", "\u00fcml\u00e4ut.weight",
             "\u6f22\u5b57.layers.3.w", "emoji\U0001f680", "tab\tname", "w*star", "w?mark", "a/b/c",
             "../up", "{0}", "layers.{}.w", "x" * 300, "-", "\u007f", "[0]", "__meta__", "ferry.x",
             "line\nbreak", "%s%n", "null"]
WORD_POOL = list(WORDS) * 2 + list(OTHER_WORDS) + list(OPAQUE_WORDS)


class Model:
    """tensors: {name: Tensor}; groups: lists of names that belong together (see draw_feeds)."""

    def __init__(self):
        self.tensors = {}
        self.groups = []
        self.metadata = {}
        self.others = {}

    def add(self, name, word, shape, data):
        self.tensors[name] = Tensor(name, word, shape, data)
        return name


def draw_data(rng, word, shape):
    n_bytes = math.prod(shape) * word_bits(word) // 8
    if n_bytes and rng.random() < 0.05:
        return bytes(n_bytes)
    return rng.randbytes(n_bytes)


def draw_word_and_shape(rng, budget):
    while True:
        word, shape = rng.choice(WORD_POOL), spec_random.draw_shape(rng, budget)
        n = math.prod(shape)
        if word == "F4" and (not shape or shape[-1] % 2):
            continue
        if n * word_bits(word) % 8 or (n == 0 and word not in WORDS):
            continue
        return word, shape


def split_volume(rng, n):
    """A shape of at most n elements; dimensions of all sizes, the last even."""
    columns = 2 * rng.choice([1, 2, 3, 16, 50, 333, 1024, 30000, n // 4])
    rows = max(1, n // columns)
    if rows > 3 and rng.random() < 0.5:
        first = rng.randint(1, min(rows, 40))
        return [first, rows // first, columns]
    return [rows, columns]


def draw_name(rng, model):
    maker = spec_random.TensorWriter(rng, 1, False)
    while True:
        name = rng.choice(ODD_NAMES) if rng.random() < 0.2 else maker.fresh_name()
        if name not in model.tensors:
            return name


def draw_group(rng, model, budget):
    """Tensors of one dtype and equal but for one dimension: they may be fused or stacked."""
    while True:
        word, shape = draw_word_and_shape(rng, budget)
        if word not in OPAQUE_WORDS and shape and math.prod(shape):
            break
    stem, n = "group%d" % len(model.groups), rng.randint(2, 4)
    dim = rng.randrange(len(shape))
    equal = rng.random() < 0.5
    names = []
    for i in range(n):
        own = list(shape)
        if not equal:
            own[dim] = rng.randint(1, 4) * (2 if dim == len(shape) - 1 else 1)
        name = "layers.%d.%s.w" % (i, stem) if rng.random() < 0.5 else "%s.%d" % (stem, i)
        names.append(model.add(name, word, own, draw_data(rng, word, own)))
    model.groups.append((names, dim))


def draw_model(rng, words=None):
    model, budget = Model(), rng.choice([16, 40, 40, 120, 120, 300, 800, 2500])
    if rng.random() < 0.02:
        return model
    for _ in range(rng.choice([1, 2, 3, 5, 8, 12])):
        if words is None and rng.random() < 0.15:
            draw_group(rng, model, min(budget, 120))
            continue
        word, shape = draw_word_and_shape(rng, budget)
        if words is not None and rng.random() < 0.7:
            word = rng.choice(words)
        if math.prod(shape) * word_bits(word) % 8:
            continue
        model.add(draw_name(rng, model), word, shape, draw_data(rng, word, shape))
    for _ in range(rng.choice([0, 0, 1, 3])):
        model.metadata[rng.choice(["format", "k\"ey", "\u00fc", "b\\", "step", ""])] = rng.choice(
            ["pt", "", "v\"alue\n", "\u00e9" * 40, "{\"a\": 1}", "\\"])
    for name in rng.sample(["config.json", "tokenizer.model", "README.md", "generation_config.json",
                            "\u00fc.txt", ".hidden", "empty"], rng.choice([0, 0, 1, 3])):
        model.others[name] = rng.randbytes(rng.choice([0, 1, 700, 70000]))
    if "config.json" in model.others:
        model.others["config.json"] = b'{"model_type": "none-that-is-known"}'
    return model


# ---- layouts -------------------------------------------------------------------------------------


class _Entries:
    """What spec_random.write_rules wants to know of the tensors."""

    def __init__(self, tensors):
        self.entries, self.names_of, self.only_source = [], [], set()
        self.chains, self.between = False, set()
        for tensor in tensors.values():
            opaque = tensor.word in OPAQUE_WORDS
            self.entries.append({"name": tensor.name, "shape": [] if opaque else tensor.shape,
                                 "dtype": "u8" if opaque else ferry_dtype(tensor.word)})
            self.names_of.append([tensor.name])


def draw_ranks(rng, n):
    style = rng.random()
    if style < 0.7:
        return list(range(n))
    if style < 0.8:
        first = rng.choice([1, 7, 99999, 100000])
        return list(range(first, first + n))
    if style < 0.9:
        return rng.sample(range(n), n)
    return rng.sample(list(range(2 * n)) + [99999, 100000, (1 << 24) - 1], n)


def draw_layout(rng, tensors, may_skip=True):
    """A side that places all tensors as docs/formats.md allows."""
    for _ in range(MOST_TRIES):
        try:
            layout = try_layout(rng, tensors, may_skip)
            side = Side(layout, "layout")
            for tensor in tensors.values():
                place(side, tensor)
            return layout
        except SpecError:
            continue
    return {"mesh": [["tp", 2]], "rules": [{"match": "*"}]}


def try_layout(rng, tensors, may_skip):
    mesh = spec_random.draw_mesh(rng, rng.choice([4, 8, 12, 12, 24]))
    side = spec_random.SideWriter(rng, mesh, draw_ranks(rng, math.prod(size for _, size in mesh)))
    entries = _Entries(tensors)
    side.draw_stages(list(tensors))
    if tensors:
        spec_random.write_rules(rng, side, entries, "destination")
    if not may_skip:
        side.rules = [rule for rule in side.rules if not rule.get("skip")]
        if len(tensors) > 1 or not side.rules:
            side.rules.append({"match": "*"})
    if rng.random() < 0.1:
        side.stages.append({"match": "nothing.{}.fits", "axis": mesh[0][0], "count": 3})
    return side.written()


def layout_file(rng, layout, tensors):
    """The object of a --to file: format and tensors are optional."""
    result = dict(layout)
    if rng.random() < 0.5:
        result["format"] = "ferry.layout/1"
    if rng.random() < 0.3 and not any(t.word in OPAQUE_WORDS for t in tensors.values()):
        result["tensors"] = [entry_of(tensor) for tensor in tensors.values()]
    keys = list(result)
    rng.shuffle(keys)
    return {key: result[key] for key in keys}


def entry_of(tensor):
    return {"name": tensor.name, "shape": tensor.shape, "dtype": ferry_dtype(tensor.word)}


# ---- new tensors that are fed from others --------------------------------------------------------


def draw_feeds(rng, model):
    """([entries with source], [names that they use up]) for tensors of a --to file."""
    entries, used = [], []
    for names, dim in model.groups:
        members = [model.tensors[name] for name in names]
        style = rng.choice(["fuse", "fuse", "stack", "interleave"])
        if style == "stack" and len({tuple(member.shape) for member in members}) > 1:
            style = "fuse"
        entry = {"fuse": fuse, "stack": stack, "interleave": interleave}[style](rng, members, dim)
        entries.append({"name": "made.%s" % names[0], "dtype": ferry_dtype(members[0].word),
                        **entry})
        used.extend(rng.choice([names, names, []]))
    for tensor in model.tensors.values():
        if tensor.word in OPAQUE_WORDS or tensor.name in used or rng.random() < 0.8:
            continue
        style = rng.choice(["rename", "copy", "split"])
        if style == "split" and tensor.shape and tensor.shape[0] >= 2 and (
                tensor.word != "F4" or len(tensor.shape) > 1) and math.prod(tensor.shape):
            entries.extend(split(rng, tensor))
        else:
            entries.append({"name": "renamed." + tensor.name, "source": tensor.name,
                            "shape": tensor.shape, "dtype": ferry_dtype(tensor.word)})
        used.extend(rng.choice([[tensor.name], []]) if style != "copy" else [])
    return entries, used


def fuse(rng, members, dim):
    boxes, at = [], 0
    for member in members:
        begin = [0] * len(member.shape)
        boxes.append({"tensor": member.name, "begin": begin, "shape": member.shape,
                      "at": begin[:dim] + [at] + begin[dim + 1:]})
        at += member.shape[dim]
    rng.shuffle(boxes)
    shape = list(members[0].shape)
    shape[dim] = at
    return {"shape": shape, "source": boxes}


def stack(rng, members, _):
    if len(members[0].shape) == 8:
        return fuse(rng, members, 0)
    zeros = [0] * len(members[0].shape)
    return {"shape": [len(members)] + members[0].shape,
            "source": [{"tensor": member.name, "begin": zeros, "shape": member.shape,
                        "at": [i] + zeros} for i, member in enumerate(members)]}


def interleave(rng, members, dim):
    """Pieces of two steps each, one of every member in turn (as heads of a fused qkv)."""
    boxes, at, done = [], 0, [0] * len(members)
    while any(done[i] < member.shape[dim] for i, member in enumerate(members)):
        for i, member in enumerate(members):
            n = min(2, member.shape[dim] - done[i])
            if n == 0:
                continue
            zeros = [0] * len(member.shape)
            boxes.append({"tensor": member.name,
                          "begin": zeros[:dim] + [done[i]] + zeros[dim + 1:],
                          "shape": member.shape[:dim] + [n] + member.shape[dim + 1:],
                          "at": zeros[:dim] + [at] + zeros[dim + 1:]})
            at += n
            done[i] += n
    shape = list(members[0].shape)
    shape[dim] = at
    return {"shape": shape, "source": boxes}


def split(rng, tensor):
    cut, rest = rng.randint(1, tensor.shape[0] - 1), tensor.shape[1:]
    zeros = [0] * len(rest)
    for i, (begin, n) in enumerate(((0, cut), (cut, tensor.shape[0] - cut))):
        yield {"name": "split%d.%s" % (i, tensor.name), "shape": [n] + rest,
               "dtype": ferry_dtype(tensor.word),
               "source": [{"tensor": tensor.name, "begin": [begin] + zeros, "shape": [n] + rest,
                           "at": [0] + zeros}]}


def skip_rule(name, others):
    """A rule that skips this tensor alone, or None where its pattern fits others too."""
    return None if any(glob_match(name, other) for other in others) else {"match": name,
                                                                          "skip": True}
