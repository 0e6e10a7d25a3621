# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Checkpoints in boxes: what the files of a side must hold, element by element, and random sides.

Built on the oracle of plans (tests/oracle/ferry_boxes.py), not on the library: every box is
expanded to the elements of memory that it names.
"""

import json
import math
import shutil
import sys
from pathlib import Path

import store
from reshard_oracle import elements, is_opaque, join
from store import StoreError, Tensor, ferry_dtype, require, word_bits

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "oracle"))

from box_random import (Part, draw_box, draw_destination, draw_parameter,  # noqa: E402
                        draw_ranks, draw_source, expanded, fill_gaps, listed_ranks, step_of,
                        without_doubles)
from ferry_boxes import Parameter  # noqa: E402
from ferry_layout import offsets, row_major_strides, spans  # noqa: E402

MOST_ELEMENTS = 6000


class Logical:
    """A tensor as sides in boxes know it."""

    def __init__(self, tensor):
        self.name, self.shape = tensor.name, tensor.shape
        self.dtype = ferry_dtype(tensor.word)
        self.elements = math.prod(tensor.shape)
        self.values = self.quantize = None


def can_be_boxed(tensor):
    return not is_opaque(tensor) and tensor.name != store.METADATA


def word_of(parameter, tensors):
    """That of its tensors: ferry has one name for several that only files know."""
    named = {name: word for word, (_, name) in store.WORDS.items()}
    words = {tensors[box.tensor].word for box in parameter.boxes}
    return words.pop() if words else named[parameter.dtype]


def fill_element(digits, bits):
    value = int(digits, 16)
    return value if bits == 4 else value.to_bytes(bits // 8, "little")


def parameter_tensor(parameter, tensors):
    """The bytes of a parameter, and the places of it that nothing gives, which are zero."""
    word = word_of(parameter, tensors)
    bits = word_bits(word)
    items = {name: elements(tensors[name]) for name in {box.tensor for box in parameter.boxes}}
    places = {id(box): [] for box in parameter.boxes}
    for box in parameter.boxes:
        places[id(box)] = list(offsets(spans(box.begin, box.shape),
                                       row_major_strides(tensors[box.tensor].shape)))
    made = []
    for given in parameter.memory:
        if given is None:
            made.append(0 if bits == 4 else bytes(bits // 8))
        elif given[0].bits is not None:
            made.append(fill_element(given[0].bits, bits))
        else:
            box, place = given
            made.append(items[box.tensor][places[id(box)][place]])
    return Tensor(parameter.name, word, parameter.shape, join(word, made))


def box_model(side, tensors):
    """{rank: [Tensor]} of {name: Tensor} under {"boxes": [...]}."""
    logical = {name: Logical(tensor) for name, tensor in tensors.items() if can_be_boxed(tensor)}
    ranks = {}
    for entry in side["boxes"]:
        parameter = Parameter(entry, "destination", logical)
        made = parameter_tensor(parameter, tensors)
        for rank in parameter.ranks:
            ranks.setdefault(rank, []).append(made)
    return ranks


def held_tensors(side):
    """Names of tensors that boxes are of."""
    return {hold["tensor"] for entry in side["boxes"] for hold in entry["holds"]}


def add_shapes(rng, entries):
    for entry in entries:
        n = entry["elements"]
        if rng.random() < 0.4:
            entry["shape"] = draw_shape(rng, n)


def draw_shape(rng, n):
    if n == 0:
        return rng.choice([[0], [3, 0], [0, 2]])
    shape = []
    while n > 1 and len(shape) < 7:
        divisors = [d for d in range(1, min(n, 64) + 1) if n % d == 0]
        shape.append(rng.choice(divisors))
        n //= shape[-1]
    if n > 1 or rng.random() < 0.5:
        shape.append(n)
    return shape


def mixes_words(side, tensors):
    """A parameter of tensors that files have different words for, but ferry one name."""
    return any(len({tensors[hold["tensor"]].word for hold in entry["holds"]}) > 1
               for entry in side["boxes"])


def draw_side(rng, tensors, whole=False):
    """A side in boxes of some of the tensors; of all of each where whole. None: there is none."""
    logical = [Logical(tensor) for tensor in tensors.values()
               if can_be_boxed(tensor) and math.prod(tensor.shape) <= MOST_ELEMENTS
               and (tensor.word != "F4" or (tensor.shape and tensor.shape[-1] % 2 == 0))]
    if not logical:
        return None
    draw = draw_source if whole else draw_destination
    entries = draw(rng, logical, draw_ranks(rng, 6))
    if not entries:
        return None
    for entry in entries if whole else []:
        fill_gaps(rng, entry, ferry_dtype(tensors[entry["holds"][0]["tensor"]].word))
    add_shapes(rng, entries)
    return {"boxes": entries}


def draw_inside(rng, side, tensors):
    """A side of parts of what another one holds; None: it holds nothing."""
    logical = {name: Logical(tensors[name]) for name in held_tensors(side)}
    entries = []
    for entry in expanded(side)["boxes"]:
        parts = []
        for hold in entry["holds"]:
            begin, shape = draw_box(rng, hold["shape"], step_of(logical[hold["tensor"]]))
            begin = [a + b for a, b in zip(hold["begin"], begin)]
            parts += [Part(hold["tensor"], begin, shape)] if 0 not in shape else []
        chosen = rng.sample(parts, rng.randint(0, min(len(parts), 6)))
        if chosen:
            drawn = draw_parameter(rng, logical, chosen, "destination", entry["parameter"])
            entries.append({"ranks": listed_ranks(entry), **drawn})
    return {"boxes": without_doubles(entries)} if entries else None


def held_elements(side, tensors):
    """{tensor: the row-major numbers of the elements that a side holds}"""
    logical = {name: Logical(tensors[name]) for name in held_tensors(side)}
    held = {name: set() for name in logical}
    for entry in side["boxes"]:
        parameter = Parameter(entry, "destination", logical)
        for name in {box.tensor for box in parameter.boxes}:
            held[name].update(parameter.logical(logical[name]).values())
    return held


def layout_file(rng, side, tensors):
    layout = dict(side)
    if rng.random() < 0.5:
        layout["format"] = "ferry.layout/1"
    if rng.random() < 0.3 and not any(is_opaque(tensor) for tensor in tensors.values()):
        layout["tensors"] = [{"name": tensor.name, "shape": tensor.shape,
                              "dtype": ferry_dtype(tensor.word)} for tensor in tensors.values()]
    return layout


def read_boxed(folder):
    """A checkpoint in boxes that ferry wrote: (layout, {rank: File}, others)."""
    folder, names = Path(folder), store.list_folder(folder)
    layout = store.parse_json((folder / store.LAYOUT).read_bytes(), store.LAYOUT)
    require(set(layout) == {"format", "boxes", "tensors"}, "keys %s" % sorted(layout))
    require(layout["format"] == "ferry.layout/1", "format")
    ranks = sorted({rank for entry in layout["boxes"] for rank in entry["ranks"]})
    present = [name for name in names if name.startswith("rank-") and name.endswith(".safetensors")]
    require(sorted(present) == sorted(map(store.rank_name, ranks)), "files %s" % present)
    files = {rank: store.read_file(folder / store.rank_name(rank)) for rank in ranks}
    for rank, file in files.items():
        store.check_checksums(file, rank)
    others = {name: (folder / name).read_bytes() for name in names
              if name != store.LAYOUT and name not in present}
    return layout, files, others


def check_boxed(folder, side, tensors, model):
    """The folder holds what the side says of the tensors, and nothing else."""
    layout, files, others = read_boxed(folder)
    expected = box_model(side, tensors)
    require(set(expected) == set(files), "ranks %s, not %s" % (sorted(files), sorted(expected)))
    for rank, wanted in expected.items():
        found = files[rank].by_name
        require(set(found) == {tensor.name for tensor in wanted}, "rank %d: parameters %s" % (
            rank, sorted(found)))
        for tensor in wanted:
            its = found[tensor.name]
            if its.key() != tensor.key():
                raise StoreError("rank %d: %r is %s, not %s: %s" % (
                    rank, tensor.name, its, tensor, first_difference(its, tensor)))
        require(files[rank].own_metadata() == model.metadata, "rank %d: metadata" % rank)
    require(others == model.others, "other files %s" % sorted(others))
    listed = {entry["name"]: entry for entry in layout["tensors"]}
    require(set(listed) == held_tensors(side), "tensors %s" % sorted(listed))
    for name, entry in listed.items():
        require(entry == {"name": name, "shape": tensors[name].shape,
                          "dtype": ferry_dtype(tensors[name].word)}, "layout: %s" % entry)
    again = box_model({"boxes": layout["boxes"]}, tensors)
    require({rank: sorted(t.key() for t in made) for rank, made in again.items()}
            == {rank: sorted(t.key() for t in made) for rank, made in expected.items()},
            "its layout file says something else")


def first_difference(a, b):
    at = next((i for i, (x, y) in enumerate(zip(a.data, b.data)) if x != y), None)
    return "byte %s" % at


def flip(rng, boxed, damaged):
    """A copy with one bit of one file flipped, of which the checksum is made right or not: (rank,
    parameter, whether it is)."""
    layout, files, others = read_boxed(boxed)
    rank = rng.choice(list(files))
    with_data = [tensor for tensor in files[rank].tensors if tensor.data]
    if not with_data:
        return None, None, None
    chosen, mends = rng.choice(with_data), rng.random() < 0.7
    data = bytearray(chosen.data)
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    broken = Tensor(chosen.name, chosen.word, chosen.shape, bytes(data))
    written = {}
    for its, file in files.items():
        tensors = [broken if its == rank and tensor is chosen else tensor
                   for tensor in file.tensors]
        written[its] = tensors, file.own_metadata()
    store.write_sharded(damaged, layout, written, others)
    if not mends:
        path = Path(damaged) / store.rank_name(rank)
        was, now = store.checksum(chosen.data), store.checksum(bytes(data))
        path.write_bytes(path.read_bytes().replace(now.encode(), was.encode(), 1))
    return rank, chosen.name, mends


def spoil_checksum(rng, boxed, spoiled):
    """A copy in which the data of a parameter are right, but not the checksum that is recorded."""
    shutil.copytree(boxed, spoiled)
    _, files, _ = read_boxed(boxed)
    rank = rng.choice(list(files))
    if not files[rank].tensors:
        return None, None
    chosen = rng.choice(files[rank].tensors)
    path, was = Path(spoiled) / store.rank_name(rank), store.checksum(chosen.data)
    data = path.read_bytes()
    key = json.dumps(store.CHECKSUM_KEY + chosen.name, ensure_ascii=False).encode() + b':"'
    at = data.index(key + was.encode()) + len(key)
    path.write_bytes(data[:at] + (b"0" if data[at:at + 1] != b"0" else b"1") + data[at + 1:])
    return rank, chosen.name


# ---- large ones ----------------------------------------------------------------------------------
#
# Each tensor alone in a parameter, whole on one rank and in slices of its last dimension on others:
# their places follow from row-major numbers, and nothing is expanded box by box.


def draw_large(rng, tensors):
    entries = []
    for number, tensor in enumerate(tensors.values()):
        unit = 8 // word_bits(tensor.word) if word_bits(tensor.word) < 8 else 1
        order = list(range(len(tensor.shape)))
        if unit == 1:
            rng.shuffle(order)
        entries.append(slice_entry("whole.%d" % number, tensor, order, 0, tensor.shape[-1],
                                   [0]))
        n = rng.choice([1, 2, 3])
        cuts = sorted({0, tensor.shape[-1], *(unit * rng.randint(0, tensor.shape[-1] // unit)
                                              for _ in range(n - 1))})
        same = list(range(len(tensor.shape)))
        step = unit * rng.choice([2, 3, 5])
        if tensor.shape[-1] >= step:
            entries.append(comb_entry("comb.%d" % number, tensor, unit, step))
        for rank, (begin, end) in enumerate(zip(cuts, cuts[1:])):
            entries.append(slice_entry("cut.%d" % number, tensor, same, begin, end,
                                       [rank + 1]))
    return {"boxes": entries}


def slice_entry(name, tensor, order, begin, end, ranks):
    shape = tensor.shape[:-1] + [end - begin]
    strides, span = [0] * len(shape), 1
    for d in reversed(order):
        strides[d] = span
        span *= shape[d]
    return {"ranks": ranks, "parameter": name, "elements": span,
            "holds": [{"tensor": tensor.name, "begin": [0] * (len(shape) - 1) + [begin],
                       "shape": shape, "offset": 0, "strides": strides}]}


def comb_entry(name, tensor, unit, step):
    """Every so many columns one, side by side: a loop that leaves most of each row out."""
    count, rows = tensor.shape[-1] // step, tensor.shape[:-1]
    entry = slice_entry(name, tensor, list(range(len(rows) + 1)), 0, count * unit, [0])
    entry["holds"][0].update(
        shape=rows + [unit], repeat=[{"count": count, "begin": [0] * len(rows) + [step],
                                      "offset": unit}])
    return entry


def check_large(folder, side, tensors):
    _, files, _ = read_boxed(folder)
    for entry in side["boxes"]:
        (hold,) = entry["holds"]
        tensor = tensors[hold["tensor"]]
        found = files[entry["ranks"][0]].by_name[entry["parameter"]]
        items, made = elements(tensor), [None] * entry["elements"]
        at = list(offsets(map(range, hold["shape"]), hold["strides"]))
        of = list(offsets(spans(hold["begin"], hold["shape"]), row_major_strides(tensor.shape)))
        (loop,) = hold.get("repeat", [{"count": 1, "begin": [0], "offset": 0}])
        for turn in range(loop["count"]):
            more, further = turn * loop["offset"], turn * loop["begin"][-1]
            for address, number in zip(at, of):
                made[address + more] = items[number + further]
        require(join(tensor.word, made) == found.data, "%s: %r differs" % (
            entry["ranks"], entry["parameter"]))
