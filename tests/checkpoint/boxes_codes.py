#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Values that become codes in boxes, and codes of half a byte that become values there, in one
pass: every bit held against a second reading.

    boxes_codes.py --ferry PATH --oracle PATH [--seed S] [--count N] [--only TEXT] [--keep-going]

What a block becomes is told by blocks_oracle.c, where it lies by box_files.py, and which scales
stand beside a parameter is counted here element by element. Boxes begin and end anywhere, within
blocks too.
"""

import json
import math
import sys

import box_files
import models
import store
from box_files import Logical, Parameter, can_be_boxed, held_tensors
from boxes_values import whole_entry
from ferry_layout import row_major_strides
from quantize_random import (COVER, Definitions, Format, draw_format, draw_values, draw_weights,
                             is_weight)
from reshard_random import with_options, write_layout
from results import check_logical, shown_in, source_order
from runner import Ferry, must, parser_of, require_sentence, run_cases
from store import Tensor


class Case:
    """A model of values; as it becomes in `made`."""

    def __init__(self, ferry, definitions, folder, rng, form=None, model=None):
        self.ferry, self.folder, self.rng = ferry, folder, rng
        self.form = form or draw_format(rng)
        self.suffixes = [self.form.suffix] + ["_scale_2"] * self.form.has_matrix_scales
        self.model = model or draw_weights(rng, self.form)
        self.source = self.write()
        self.made = {}
        for name, tensor in source_order(folder / "logical", self.model).items():
            self.made.update(definitions.quantize(self.form, tensor) if is_weight(name)
                             else {name: tensor})
        self.option = ["--quantize", self.form.text + rng.choice(["", "=*_proj*"])]

    def write(self):
        """As one checkpoint, or cut anywhere, or in boxes."""
        rng, folder, tensors = self.rng, self.folder, self.model.tensors
        store.write_logical(rng, folder / "logical", list(tensors.values()), {},
                            rng.choice([1, 2]), self.model.others)
        kind = rng.choice(["logical", "mesh", "boxes"])
        if kind == "logical":
            return folder / "logical"
        layout = {"boxes": [whole_entry(rng, tensor) for tensor in tensors.values()]}
        if kind == "mesh":
            layout = models.draw_layout(rng, tensors, may_skip=False)
        self.ferry.reshard(folder / "logical", write_layout(folder, "first.json", layout, rng),
                           folder / "first")
        return folder / "first"

    def is_made(self, name):
        """Codes, or their scales."""
        return is_weight(name)

    def weight_of(self, name):
        """Whose scales a tensor is; None: it is none."""
        return next((name[:-len(suffix)] for suffix in self.suffixes if name.endswith(suffix)),
                    None)

    def with_scales(self, side):
        """The side, and behind it the parameters of the scales that it does not say."""
        said = held_tensors(side)
        added = [self.scales_of(entry, said, suffix) for suffix in self.suffixes
                 for entry in side["boxes"]]
        return {"boxes": side["boxes"] + [entry for entry in added if entry is not None]}

    def scales_of(self, entry, said, suffix):
        """What stands beside a parameter, by the elements of its memory; None: nothing."""
        grid = Grid.of(self, entry, said)
        copies = self.copies_in(entry, said, suffix, grid if suffix == "_scale_2" else None)
        if not copies:
            return None
        if grid is not None:
            made = grid.scales(suffix, copies)
            if made is not None:
                return {"ranks": entry["ranks"] if "ranks" in entry else [entry["rank"]],
                        "parameter": entry["parameter"] + suffix, **made}
        holds, at = [], 0
        for copy in copies:
            blocks = [self.block_of(index)[:len(self.made[copy.name + suffix].shape)]
                      for index in copy.elements]
            begin = [min(axis) for axis in zip(*blocks)]
            shape = [max(axis) + 1 - first for axis, first in zip(zip(*blocks), begin)]
            holds.append({"tensor": copy.name + suffix, "begin": begin, "shape": shape,
                          "offset": at, "strides": row_major_strides(shape)})
            at += math.prod(shape)
        made = {"ranks": entry["ranks"] if "ranks" in entry else [entry["rank"]],
                "parameter": entry["parameter"] + suffix, "elements": at, "holds": holds}
        shape = scales_shape(entry.get("shape", []), at, None if suffix == "_scale_2" else
                             {hold["shape"][-1] for hold in holds})
        return made if shape is None else {**made, "shape": shape}

    def logical(self):
        return {name: Logical(tensor) for name, tensor in self.made.items()
                if can_be_boxed(tensor)}

    def copies_in(self, entry, said, suffix, grid=None):
        """Of each matrix what lies here until an element of it comes again, as it comes; of a grid
        each of its planes has its own."""
        pieces = {}  # of one box and one matrix: the elements, in the order in which each begins
        for address, given in enumerate(Parameter(entry, "destination", self.logical()).memory):
            if given is None or given[0].bits is not None:
                continue
            box, place = given
            if box.tensor + suffix in self.made and box.tensor + suffix not in said:
                index, plane = index_of(box, place), grid.place(address)[0] if grid else 0
                key = id(box), index[:-2], plane
                pieces.setdefault(key, (box.tensor, set()))[1].add(index)
        copies, last = [], {}
        for (_, matrix, plane), (name, elements) in pieces.items():
            copy = last.get((name, matrix, plane))
            if copy is None or not copy.elements.isdisjoint(elements):
                copy = last[name, matrix, plane] = Copy(name, matrix, plane)
                copies.append(copy)
            copy.elements |= elements
        return copies

    def block_of(self, index):
        return index[:-2] + tuple(i // b for i, b in zip(index[-2:], self.form.block))


class Copy:
    """What a parameter has of a matrix, once."""

    def __init__(self, name, matrix, plane):
        self.name, self.matrix, self.plane, self.elements = name, matrix, plane, set()


class Grid:
    """The blocks of a parameter that is filled, where each has what one block of a tensor has."""

    ONES = {"F32": "3f800000", "F8_E8M0": "7f", "F8_E4M3": "38"}

    def __init__(self, case, entry):
        self.case, self.shape = case, entry["shape"]
        self.block, self.blocks = case.form.block, {}  # (plane, row, column): (tensor, its block)
        self.n_planes = math.prod(self.shape[:-2])
        self.size = [-(-n // b) for n, b in zip(self.shape[-2:], self.block)]

    def place(self, address):
        rest, column = divmod(address, self.shape[-1])
        return (*divmod(rest, self.shape[-2]), column)

    @classmethod
    def of(cls, case, entry, said):
        """None: there is none, as nothing is filled, or something lies across its blocks."""
        memory = Parameter(entry, "destination", case.logical()).memory
        is_filled = "partial" in entry and entry["partial"] or entry.get("fill")
        if not is_filled or len(entry.get("shape", [])) < 2:
            return None
        grid, shifts = cls(case, entry), {}
        for address, given in enumerate(memory):
            if given is not None and given[0].bits is None and \
                    not grid.take(shifts, address, *given, said):
                return None
        return grid

    def take(self, shifts, address, box, place, said):
        """One element: as far from its place in the tensor as all of its box and matrix."""
        suffix = self.case.form.suffix
        if box.tensor + suffix not in self.case.made or box.tensor + suffix in said:
            return False
        index, (plane, *at) = index_of(box, place), self.place(address)
        shift = plane, at[0] - index[-2], at[1] - index[-1]
        if shifts.setdefault((id(box), index[:-2]), shift) != shift or \
                any(n % b for n, b in zip(shift[1:], self.block)):
            return False
        whose = box.tensor, self.case.block_of(index)
        block = plane, *(n // b for n, b in zip(at, self.block))
        return self.blocks.setdefault(block, whose) == whose

    def scales(self, suffix, copies):
        """Those of all blocks, or of all matrices; None: these are not as many everywhere."""
        one = self.ONES["F32" if suffix == "_scale_2" else self.case.form.scales]
        if suffix == "_scale_2":
            given = [[(copy.name, copy.matrix) for copy in copies if copy.plane == plane]
                     for plane in range(self.n_planes)]
            each = max(map(len, given))
            if {len(its) for its in given} - {0, each}:
                return None
            places = [its[i] if its else None for its in given for i in range(each)]
            shape = scales_shape(self.shape, len(places), None)
        else:
            places = [self.blocks.get((plane, row, column)) for plane in range(self.n_planes)
                      for row in range(self.size[0]) for column in range(self.size[1])]
            shape = self.shape[:-2] + self.size
        holds = [{"tensor": given[0] + suffix, "begin": list(given[1]),
                  "shape": [1] * len(given[1]), "offset": at, "strides": [1] * len(given[1])}
                 for at, given in enumerate(places) if given is not None]
        fill = [{"offset": at, "shape": [1], "strides": [1], "bits": one}
                for at, given in enumerate(places) if given is None]
        return {"elements": len(places), "holds": holds, "fill": fill,
                **({} if shape is None else {"shape": shape})}


def index_of(box, place):
    index = []
    for n in reversed(box.shape):
        index.insert(0, place % n)
        place //= n
    return tuple(begin + i for begin, i in zip(box.begin, index))


def scales_shape(codes, n, widths):
    """That of n scales beside codes of a shape: rows of one width, or single ones; None: none."""
    leading, lines = codes[:-2], math.prod(codes[:-2])
    if len(codes) < 2 or n % lines != 0:
        return None
    if widths is None:
        alone = [*leading, n // lines] if leading and n > lines else leading
        return alone if math.prod(alone) == n else None
    columns = min(widths)
    return [*leading, n // lines // columns, columns] \
        if len(widths) == 1 and n % (lines * columns) == 0 else None


# ---- cases ---------------------------------------------------------------------------------------


def check_filled(ferry, definitions, text, folder, rng):
    """Matrices between what is filled: beside and below each other, in planes, some of them across
    the blocks of the parameter."""
    form = draw_format(rng) if text is None else Format(text)
    case = Case(ferry, definitions, folder, rng, form)
    boxes = [padded_entry(rng, case, "p%d" % number) for number in range(rng.randint(1, 3))]
    boxes = [entry for entry in boxes if entry["holds"]]
    if not boxes:
        return
    if rng.random() < 0.2:  # whose scales lie elsewhere has none beside it
        tensor = case.made[boxes[0]["holds"][0]["tensor"] + form.suffix]
        boxes.append(whole_entry(rng, tensor))
    check_side(case, definitions, {"boxes": boxes})


def padded_entry(rng, case, name):
    weights = [tensor for tensor in case.model.tensors.values() if is_weight(tensor.name)]
    block, step = case.form.block, 2 if case.form.codes == "F4" else 1
    planes, is_straight = [], rng.random() < 0.8
    for _ in range(rng.randint(1, 4)):
        parts, low = [], 0  # a shelf below the other
        for _ in range(rng.randint(0, 2)):
            shelf, right = low, 0
            for _ in range(rng.randint(1, 2)):
                tensor = rng.choice(weights)
                shape = [1] * (len(tensor.shape) - 2) + [rng.randint(1, tensor.shape[-2]),
                                                         step * rng.randint(1, tensor.shape[-1] // step)]
                begin = [rng.randint(0, end - n) // (step if d == len(shape) - 1 else 1) *
                         (step if d == len(shape) - 1 else 1)
                         for d, (end, n) in enumerate(zip(tensor.shape, shape))]
                if rng.random() < 0.5:
                    begin[-2:] = [0, 0]
                at = [shelf, right]
                for d in range(2) if is_straight else ():
                    at[d] = -(-at[d] // block[d]) * block[d] + begin[d - 2] % block[d]
                apart = 2 if rng.random() < 0.1 else 1
                low = max(low, at[0] + (shape[-2] - 1) * apart + 1)
                right = at[1] + shape[-1]
                parts += cut_part(rng, (tensor.name, begin, shape, at, apart), tensor.shape, block,
                                  step)
        planes.append(parts)
    size = [max([1] + [at[0] + (shape[-2] - 1) * apart + 1 for parts in planes
                       for _, _, shape, at, apart in parts]),
            max([1] + [at[1] + shape[-1] for parts in planes for _, _, shape, at, _ in parts])]
    size = [n + rng.choice([0, 1, b, 2 * b + 1]) for n, b in zip(size, block)]
    size[1] += size[1] % step
    return filled_entry(rng, case, name, planes, size)


def cut_part(rng, part, of, block, step):
    """Perhaps as two boxes, of which the second may have what stands a block further in the tensor."""
    name, begin, shape, at, apart = part
    d, units = rng.choice([-2, -1]), [1, step]
    n = units[d] * rng.randint(0, shape[d] // units[d])
    if rng.random() < 0.5 or n in (0, shape[d]):
        return [part]
    first, second, rest, place = list(shape), list(begin), list(shape), list(at)
    first[d], rest[d] = n, shape[d] - n
    second[d] += n
    place[d] += n * (apart if d == -2 else 1)
    moved = second[d] + rng.choice([0, 0, block[d], -block[d]])
    second[d] = moved if 0 <= moved and moved + rest[d] <= of[d] else second[d]
    return [(name, begin, first, at, apart), (name, second, rest, place, apart)]


def filled_entry(rng, case, name, planes, size):
    """The parts, and runs of bits where there are none, or nothing."""
    volume, free = math.prod(size), [True] * (math.prod(size) * len(planes))
    holds, fill = [], []
    for plane, parts in enumerate(planes):
        for tensor, begin, shape, at, apart in parts:
            offset = plane * volume + at[0] * size[1] + at[1]
            strides = row_major_strides(shape[:-2] + size)
            strides[-2] = size[1] * apart
            holds.append({"tensor": tensor, "begin": begin, "shape": shape, "offset": offset,
                          "strides": strides})
            for row in range(shape[-2]):
                first = offset + row * size[1] * apart
                free[first:first + shape[-1]] = [False] * shape[-1]
    digits = 1 if case.form.codes == "F4" else 2
    address = 0
    while address < len(free):
        end = address
        while end < len(free) and free[end] == free[address] and end // size[1] == address // size[1]:
            end += 1
        if free[address]:
            fill.append({"offset": address, "shape": [end - address], "strides": [1],
                         "bits": "".join(rng.choice("0123456789abcdef") for _ in range(digits))})
        address = end
    entry = {"rank": rng.randint(0, 2), "parameter": name, "elements": len(free), "holds": holds,
             "shape": [len(planes), *size] if len(planes) > 1 or rng.random() < 0.5 else size}
    return {**entry, "partial": True} if rng.random() < 0.2 else {**entry, "fill": fill}


def check_random(ferry, definitions, folder, rng):
    side = None
    case = Case(ferry, definitions, folder, rng)
    for _ in range(50):
        side = box_files.draw_side(rng, case.made)
        if side is not None and any(map(is_weight, held_tensors(side))):
            break
    else:
        return
    check_side(case, definitions, side)


def check_side(case, definitions, side):
    ferry, folder, rng = case.ferry, case.folder, case.rng
    file = write_layout(folder, "boxes.json", box_files.layout_file(rng, side, {}), rng)
    told = ferry.reshard_json(case.source, file, folder / "out", *case.option, *with_options(rng))
    weights = {name for name in held_tensors(side) if name in case.model.tensors
               and is_weight(name)}
    must({entry["name"] for entry in told["quantized"]} == weights, "told: %s" % told)
    full = case.with_scales(side)
    box_files.check_boxed(folder / "out", full, case.made, case.model)
    must(told["destination"]["tensors"] == len(held_tensors(full)), "told: %s" % told)
    ferry.reshard(case.source, file, folder / "again", *case.option, *with_options(rng))
    must(store.tree(folder / "again") == store.tree(folder / "out"), "options change the bytes")
    told = ferry.reshard_json(case.source, file, folder / "onto", "--onto", folder / "out",
                              *case.option, *with_options(rng))
    must(told["kept_bytes"] == told["written_bytes"], "onto itself: %s" % told)
    must(store.tree(folder / "onto") == store.tree(folder / "out"), "--onto changes the bytes")
    told = ferry.reshard_json(case.source, file, folder / "dry", "--dry-run", *case.option)
    read = sum(len(case.model.tensors[name].data) for name in case.model.tensors)
    must(not (folder / "dry").exists() and 0 < told["read_bytes"] <= read, "dry: %s" % told)
    check_verify(case, full)
    check_back(case, definitions, side)
    check_subset(case, side)
    check_said(case, side)


def check_back(case, definitions, side):
    """What is filled stands in nobody's way when codes become values again."""
    ferry, folder, rng = case.ferry, case.folder, case.rng
    if any(map(case.weight_of, held_tensors(side))):
        return  # scales that are said may be fewer than values need
    boxes = [{key: entry[key] for key in entry if key not in ("dtype", "fill")}
             for entry in side["boxes"] if entry["holds"] and
             all(map(is_weight, held_tensors({"boxes": [entry]})))]
    values = {"boxes": [{**entry, "partial": True} for entry in boxes]}
    if not boxes:
        return
    made = {name: definitions.dequantize(case.form, case.made, name, "BF16")
            for name in held_tensors(values)}
    ferry.reshard(folder / "out", write_layout(folder, "values.json", values, rng),
                  folder / "values", "--dequantize=" + case.form.text, *with_options(rng))
    box_files.check_boxed(folder / "values", values, made, models.Model())
    done = ferry.verify(folder / "out", folder / "values", "--dequantize=" + case.form.text)
    must(done.code == 0, str(done))


def check_verify(case, full):
    ferry, folder, rng, held = case.ferry, case.folder, case.rng, held_tensors(full)
    done = ferry.verify(case.source, folder / "out", *case.option, "--json", *with_options(rng))
    must(done.code == 0 and done.error == "", str(done))
    shown = json.loads(done.out)
    must(shown["n_left_out"] == len(set(case.model.tensors) - held), "verify: %s" % shown)
    must({entry["name"] for entry in shown["tensors"]} == held, "verify: %s" % shown)
    for entry in shown["tensors"]:
        must(entry["digest"] == store.checksum(case.made[entry["name"]].data),
             "verify: %s" % entry)
    rank, name, _ = box_files.flip(rng, folder / "out", folder / "damaged")
    if name is not None:
        done = ferry.verify(case.source, folder / "damaged", *case.option)
        must(done.code == 1 and shown_in(name, done.error) and str(rank) in done.error, str(done))


def check_subset(case, side):
    """Scales come with their weights, whoever says where they lie."""
    name = case.rng.choice(sorted(held_tensors(side)))
    of = case.weight_of(name) or name

    def is_of(hold):
        return hold["tensor"] in [of, *(of + suffix for suffix in case.suffixes)]

    taken = [entry for entry in side["boxes"] if any(map(is_of, entry["holds"]))]
    if not is_weight(of) or not all(is_of(hold) for entry in taken for hold in entry["holds"]):
        return
    file = write_layout(case.folder, "subset.json", side, case.rng)
    out = case.folder / "subset"
    case.ferry.reshard(case.source, file, out, *case.option, "--subset", of)
    added = case.with_scales(side)["boxes"][len(side["boxes"]):]
    taken += [entry for entry in added if all(map(is_of, entry["holds"]))]
    box_files.check_boxed(out, {"boxes": taken}, case.made, case.model)
    done = case.ferry.verify(case.source, out, *case.option, "--include", of)
    must(done.code == 0 and done.error == "", str(done))


def says_quantize(form):
    """The key of a parameter; what has a default is left out."""
    if form.text == "mxfp8":
        return {"format": "mxfp8", "scale": "*_scale"}
    if form.has_matrix_scales:
        return {"format": "nvfp4", "scale": "*_scale", "tensor_scale": "*_scale_2"}
    said = {"format": form.text.split(":")[0], "block": form.block, "scale": "*_scale_inv"}
    if form.scales == "F8_E8M0":
        said["scale_dtype"] = "f8e8m0"
    elif form.rule == COVER:
        said["scale_kind"] = "cover"
    return said


def check_said(case, side):
    """Parameters that say it make what the option does."""
    ferry, folder, rng = case.ferry, case.folder, case.rng

    def has_codes(entry):
        return any(hold["tensor"] in case.model.tensors and is_weight(hold["tensor"])
                   for hold in entry["holds"])

    codes = held_tensors({"boxes": list(filter(has_codes, side["boxes"]))})
    boxes = [entry for entry in side["boxes"]
             if has_codes(entry) or all(case.weight_of(name) in [*codes, None]
                                        for name in held_tensors({"boxes": [entry]}))]
    if not codes:
        return
    key = {"quantize": says_quantize(case.form)}
    said = [{**entry, **key} if has_codes(entry) else entry for entry in boxes]
    for name, its, options in (("said", said, []), ("plain", boxes, case.option)):
        file = write_layout(folder, name + ".json", {"boxes": its}, rng)
        ferry.reshard(case.source, file, folder / name, *options, *with_options(rng))
    must(store.tree(folder / "plain") == store.tree(folder / "said"), "what is said differs")
    if not case.model.others:  # config.json is another one
        box_files.check_boxed(folder / "said", case.with_scales({"boxes": boxes}), case.made,
                              case.model)
    done = ferry.verify(case.source, folder / "said", *case.option, *with_options(rng))
    must(done.code == 0 and done.error == "", str(done))


def large_model(rng, shapes):
    model = models.Model()
    for number, shape in enumerate(shapes):
        word = rng.choice(["BF16", "F32"])
        name = ".a_proj.weight" if len(shape) == 2 else ".mlp.experts.a_proj"
        model.add("layers.%d%s" % (number, name), word, shape,
                  draw_values(rng, word, math.prod(shape)))
    return model


LARGE = ["f8e4m3:128x128", "f8e4m3:100x70:e8m0", "mxfp8", "nvfp4", "f8e5m2:1x1", "f8e4m3:3x200"]


def check_large(ferry, definitions, text, folder, rng):
    """Parameters of MiB under the smallest cap: windows, blocks and their scales are in parts; and
    a folder of codes in boxes is a source."""
    form = Format(text)
    step = 2 if form.codes == "F4" else 1
    shapes = [[rng.randint(200, 400), rng.randint(500, 900) // step * step],
              [3, 90, rng.randint(300, 500) // step * step]]
    case = Case(ferry, definitions, folder, rng, form, large_model(rng, shapes))
    side = box_files.draw_large(rng, {name: tensor for name, tensor in case.made.items()
                                      if tensor.shape})
    options = ["--memory-cap", "1M", "--threads", str(rng.choice([1, 2, 5]))]
    file = write_layout(folder, "boxes.json", side, rng)
    ferry.reshard(case.source, file, folder / "boxed", *case.option, *options)
    box_files.check_large(folder / "boxed", side, case.made)
    ferry.reshard(folder / "boxed", "hf", folder / "back", *options)
    check_logical(folder / "back", case.made, case.model)
    done = ferry.verify(case.source, folder / "boxed", *case.option, "--json", *options)
    must(done.code == 0 and done.error == "", str(done))
    for entry in json.loads(done.out)["tensors"]:
        must(entry["digest"] == store.checksum(case.made[entry["name"]].data),
             "verify: %s" % entry)


def check_stack(ferry, definitions, folder, rng):
    """q, k and v beside each other: so are their scales, in the parameter beside, but where they are
    of different widths. And config.json says what is quantized."""
    form, model, rows = Format("f8e4m3:4x8"), models.Model(), 0
    for part, n in (("q", 8), ("k", 4), ("v", 4)):
        name = "layers.0.%s_proj.weight" % part
        model.add(name, "BF16", [n, 16], draw_values(rng, "BF16", n * 16))
    model.others = {"config.json": b'{"model_type": "x"}'}
    case = Case(ferry, definitions, folder, rng, form, model)
    holds = []
    for name, tensor in model.tensors.items():
        holds.append({"tensor": name, "begin": [0, 0], "shape": tensor.shape,
                      "offset": rows * 16, "strides": [16, 1]})
        rows += tensor.shape[0]
    entry = {"rank": 3, "parameter": "qkv.weight", "elements": rows * 16, "shape": [rows, 16],
             "holds": holds}
    mixed = {"rank": 3, "parameter": "mixed", "elements": 192, "shape": [12, 16], "holds": [
        holds[0], *({**hold, "shape": [4, 8], "offset": at, "strides": [8, 1]}
                    for hold, at in zip(holds[1:], (128, 160)))]}
    file = write_layout(folder, "boxes.json", {"boxes": [entry, mixed]}, rng)
    page = folder / "page.html"
    done = ferry.call("reshard", case.source, "--to", file, "--out", folder / "out", "--html",
                      page, *case.option)
    must(done.code == 0 and done.error == "" and "q_proj.weight_scale_inv" in page.read_text(),
         str(done))
    found = store.read_file(folder / "out" / store.rank_name(3)).by_name
    scales = [case.made[name + "_scale_inv"].data for name in model.tensors]
    must(found["qkv.weight_scale_inv"].key() ==
         Tensor("qkv.weight_scale_inv", "F32", [4, 2], b"".join(scales)).key(), "%s" % found)
    must(found["mixed_scale_inv"].shape == [6] and
         found["mixed_scale_inv"].data == scales[0] + scales[1][:4] + scales[2][:4], "%s" % found)
    about = json.loads((folder / "out" / "config.json").read_text())["quantization_config"]
    must(about["weight_block_size"] == [4, 8] and about["quant_method"] == "fp8", "%s" % about)
    check_said(case, {"boxes": [entry, mixed]})
    check_left_out(case, entry)


def stack_entry(name, order, shape, n_weights=1):
    """A parameter with a matrix of some weights in each place, in the order that is listed."""
    size = math.prod(shape[-2:])
    return {"rank": 0, "parameter": name, "elements": len(order) * size,
            "shape": [len(order) // n_weights, n_weights * shape[-2], shape[-1]], "holds": [
                {"tensor": of, "begin": [expert, 0, 0], "shape": [1, *shape[-2:]],
                 "offset": at * size, "strides": [size, shape[-1], 1]}
                for at, (of, expert) in enumerate(order)]}


def check_experts(ferry, definitions, text, folder, rng):
    """Scales of stacks lie as the codes do: in another order, twice, some left out, every second
    one, two weights in turn, a part, and one matrix in pieces."""
    form, model, shape = Format(text), models.Model(), [6, 136, 160]
    up, down = ("layers.0.mlp.experts.%s_proj" % part for part in ("up", "down"))
    for name in (up, down):
        model.add(name, "BF16", shape, draw_values(rng, "BF16", math.prod(shape)))
    case, size = Case(ferry, definitions, folder, rng, form, model), math.prod(shape[-2:])
    orders = {"moved": [(up, 5), (up, 1), (up, 1), (up, 3)], "comb": [(up, 1), (up, 3), (up, 5)],
              "part": [(down, 2), (down, 3), (down, 4)], "alone": [(down, 5)],
              "gaps": [(up, 0), (down, 1), (up, 1), (up, 2), (down, 0)],
              "turns": [(of, expert) for expert in range(6) for of in (down, up)]}
    said = {name: stack_entry(name, order, shape, 2 if name == "turns" else 1)
            for name, order in orders.items()}
    said["comb"]["holds"] = [{**said["comb"]["holds"][0], "repeat": [
        {"count": 3, "begin": [2, 0, 0], "offset": size}]}]
    said["part"]["holds"] = [{**said["part"]["holds"][0], "shape": [3, *shape[-2:]]}]
    said["turns"]["holds"] = [{**hold, "shape": shape, "strides": [2 * size, shape[-1], 1]}
                              for hold in said["turns"]["holds"][:2]]
    whole, cut = said["alone"]["holds"][0], 64
    said["alone"]["holds"] = [  # rows from the middle on, then those before
        {**whole, "begin": [5, cut, 0], "shape": [1, shape[1] - cut, shape[2]]},
        {**whole, "shape": [1, cut, shape[2]], "offset": size - cut * shape[2]}]
    file = write_layout(folder, "boxes.json", {"boxes": list(said.values())}, rng)
    ferry.reshard(case.source, file, folder / "out", *case.option, *with_options(rng))
    found = store.read_file(folder / "out" / store.rank_name(0)).by_name
    for name, order in orders.items():
        leading = [6, 2] if name == "turns" else [len(order)]
        for suffix in case.suffixes:
            wanted = b"".join(matrix_of(case.made[of + suffix], expert, shape[0])
                              for of, expert in order)
            rows, columns = case.form.scales_shape(shape)[-2:]
            its = leading if suffix == "_scale_2" else \
                [leading[0], len(order) // leading[0] * rows, columns]
            must(found[name + suffix].shape == its and found[name + suffix].data == wanted,
                 "%s%s is %s" % (name, suffix, found[name + suffix]))
    must(len(found) == len(orders) * (1 + len(case.suffixes)), "parameters %s" % list(found))
    done = ferry.verify(case.source, folder / "out", *case.option)
    must(done.code == 0 and done.error == "", str(done))
    ferry.reshard(folder / "out", "hf", folder / "back", "--dequantize=" + form.text)
    check_logical(folder / "back", {name: definitions.dequantize(form, case.made, name, "BF16")
                                    for name in (up, down)}, model)


def matrix_of(tensor, number, n):
    size = len(tensor.data) // n
    return tensor.data[number * size:(number + 1) * size]


def check_parts(ferry, definitions, folder, rng):
    """Of a folder that has parts of the values: codes where all of a block is there, and of f4 all
    of a matrix; and then values of these codes."""
    case = Case(ferry, definitions, folder, rng)
    there = {name: draw_part(rng, case, tensor) for name, tensor in case.model.tensors.items()}
    boxed, good, bad = folder / "parts", None, None
    parts = {"boxes": [part_entry(name, *its) for name, its in there.items()]}
    ferry.reshard(folder / "logical", write_layout(folder, "parts.json", parts, rng), boxed)
    for turn in range(30):  # in the last ones all elements are there, but perhaps not all of a block
        side = box_files.draw_side(rng, case.made) if turn < 20 else \
            box_files.draw_inside(rng, parts, case.made)
        if side is None or not any(map(is_weight, held_tensors(side))):
            continue
        if all(needs_of(case, case.with_scales(side), there)):
            good = side
        else:
            bad = side
    for name, side in (("good", good), ("bad", bad)):
        if side is None:
            continue
        file = write_layout(folder, name + ".json", side, rng)
        ferry.reshard(folder / "logical", file, folder / name, *case.option)
        made = ferry.call("reshard", boxed, "--to", file, "--out", folder / (name + "-made"),
                          *case.option, *with_options(rng))
        compared = ferry.verify(boxed, folder / name, *case.option, "--json")
        must(made.code == compared.code == int(side is bad), "%s: %s %s" % (name, made, compared))
        if side is bad:
            require_sentence(made, "needs element", "has it")
            must("needs element" in json.loads(compared.out)["difference"], str(compared))
            continue
        must(store.tree(folder / name) == store.tree(folder / "good-made"), "other bytes")
        check_values_of_parts(case, definitions, side)


def check_part_of_block(ferry, folder, rng):
    """Codes need all of their block, also where boxes have scales of others alone."""
    name = "layers.0.a_proj.weight"
    store.write_logical(rng, folder / "source", [
        Tensor(name, "BF16", [8, 16], draw_values(rng, "BF16", 128))], {}, 1, {})
    rows = part_entry(name, [2, 0], [6, 16])
    file = write_layout(folder, "rows.json", {"boxes": [rows]}, rng)
    ferry.reshard(folder / "source", file, folder / "rows")
    scales = part_entry(name + "_scale_inv", [1, 0], [1, 2])
    for begin, code in ((4, 0), (3, 1)):
        codes = part_entry(name, [begin, 0], [8 - begin, 16])
        file = write_layout(folder, "codes.json", {"boxes": [codes, scales]}, rng)
        done = ferry.call("reshard", folder / "rows", "--to", file, "--out",
                          folder / ("out-%d" % begin), "--quantize", "f8e4m3:4x8")
        must(done.code == code, str(done))
    require_sentence(done, "codes.json", "element [0, 0]", name, "scale of its block", "has it")


def draw_part(rng, case, tensor):
    """A box of a tensor: whole matrices, or rows that begin anywhere."""
    begin, shape = [0] * len(tensor.shape), list(tensor.shape)
    if len(shape) > 1 and rng.random() < 0.6:
        d = 0 if len(shape) > 2 or not is_weight(tensor.name) else len(shape) - 2
        shape[d] = rng.randint(min(1, shape[d]), shape[d])
        begin[d] = rng.randint(0, tensor.shape[d] - shape[d])
    return begin, shape


def part_entry(name, begin, shape):
    return {"rank": 0, "parameter": name, "elements": math.prod(shape), "holds": [
        {"tensor": name, "begin": begin, "shape": shape, "offset": 0,
         "strides": row_major_strides(shape)}]}


def needs_of(case, side, there):
    """Whether what each element of a side is made of lies in one box of its tensor."""
    logical = {name: Logical(tensor) for name, tensor in case.made.items() if can_be_boxed(tensor)}
    for entry in side["boxes"]:
        for given in Parameter(entry, "destination", logical).memory:
            if given is None or given[0].bits is not None:
                continue
            name, index = given[0].tensor, index_of(*given)
            of = case.weight_of(name) or name
            spans = [(i, i + 1) for i in index]
            if is_weight(of):
                shape = case.model.tensors[of].shape
                block = index if name != of else case.block_of(index)
                rest = [(b * n, min(b * n + n, end)) for b, n, end in
                        zip(block[len(shape) - 2:], case.form.block, shape[-2:])]
                if case.form.has_matrix_scales:
                    rest = [(0, end) for end in shape[-2:]]
                spans = spans[:len(shape) - 2] + rest
            yield all(low >= b and high <= b + n
                      for (low, high), b, n in zip(spans, *there[of]))


def check_values_of_parts(case, definitions, side):
    """Where the side says no scales, those beside its codes are all that values need."""
    ferry, folder, form = case.ferry, case.folder, case.form
    if any(map(case.weight_of, held_tensors(side))):
        return
    boxes = [{key: entry[key] for key in entry if key not in ("dtype", "fill")}
             for entry in side["boxes"] if any(map(is_weight, held_tensors({"boxes": [entry]})))]
    values = {"boxes": [{**entry, "partial": True} for entry in boxes]}
    names = held_tensors(values)
    if not all(map(is_weight, names)):
        return
    made = {name: definitions.dequantize(form, case.made, name, "BF16") for name in names}
    ferry.reshard(folder / "good", write_layout(folder, "values.json", values, case.rng),
                  folder / "values", "--dequantize=" + form.text, *with_options(case.rng))
    model = models.Model()
    box_files.check_boxed(folder / "values", values, made, model)
    done = ferry.verify(folder / "good", folder / "values", "--dequantize=" + form.text)
    must(done.code == 0, str(done))


def check_left_out(case, entry):
    """A subset without what boxes quantize: config.json says nothing of codes."""
    norm = Tensor("norm", "BF16", [4], bytes(8))
    store.write_logical(case.rng, case.folder / "more", [*case.model.tensors.values(), norm], {}, 1,
                        case.model.others)
    boxes = [{**entry, "quantize": says_quantize(case.form)},
             box_files.slice_entry("norm", norm, [0], 0, 4, [0])]
    file = write_layout(case.folder, "more.json", {"boxes": boxes}, case.rng)
    out = case.folder / "left-out"
    case.ferry.reshard(case.folder / "more", file, out, "--include", "norm")
    must((out / "config.json").read_bytes() == case.model.others["config.json"], "config.json")
    must(set(store.read_file(out / store.rank_name(0)).by_name) == {"norm"}, "other parameters")


# ---- values of half bytes ------------------------------------------------------------------------


class Halves:
    """A model of f4 and what stays; as it becomes in `values`."""

    def __init__(self, ferry, definitions, folder, rng, shapes=None):
        form, word = Format("nvfp4"), rng.choice(["BF16", "BF16", "F32", "F16"])
        self.word = store.WORDS[word][1]
        drawn = draw_weights(rng, form) if shapes is None else large_model(rng, shapes)
        self.model, self.values = models.Model(), {}
        for name, tensor in drawn.tensors.items():
            made = {name: tensor}
            self.values[name] = tensor
            if is_weight(name):
                made = definitions.quantize(form, tensor)
                self.values[name] = definitions.dequantize(form, made, name, word)
            elif word != "BF16":
                continue  # which is cast with the others
            for entry in made.values():
                self.model.add(entry.name, entry.word, entry.shape, entry.data)
        self.values = {name: self.values[name] for name in self.values if name in self.model.tensors}
        self.option = [rng.choice(["--dequantize", "--dequantize=nvfp4"])]
        self.option += [] if word == "BF16" else ["--cast", {"F32": "f32", "F16": "f16"}[word]]
        store.write_logical(rng, folder / "logical", list(self.model.tensors.values()), {},
                            rng.choice([1, 2]), {})
        self.source = folder / "logical"
        if rng.random() < 0.5:
            layout = {"boxes": [self.entry(rng, tensor) for tensor in self.model.tensors.values()]}
            self.source = folder / "first"
            ferry.reshard(folder / "logical", write_layout(folder, "first.json", layout, rng),
                          self.source)


    @staticmethod
    def entry(rng, tensor):
        """All of a tensor; of half bytes in its own order."""
        if not tensor.shape:
            return {"rank": 1, "parameter": tensor.name, "elements": 1, "holds": [
                {"tensor": tensor.name, "begin": [], "shape": [], "offset": 0, "strides": []}]}
        if tensor.word != "F4":
            return whole_entry(rng, tensor)
        order = list(range(len(tensor.shape)))
        return box_files.slice_entry(tensor.name, tensor, order, 0, tensor.shape[-1], [0])


def check_halves(ferry, definitions, folder, rng):
    case = Halves(ferry, definitions, folder, rng)
    side = box_files.draw_side(rng, case.values)
    if side is None:
        return
    file = write_layout(folder, "boxes.json", side, rng)
    told = ferry.reshard_json(case.source, file, folder / "out", *case.option, *with_options(rng))
    box_files.check_boxed(folder / "out", side, case.values, case.model)
    must({entry["name"] for entry in told["dequantized"]} ==
         set(filter(is_weight, held_tensors(side))), "told: %s" % told)
    done = ferry.verify(case.source, folder / "out", *case.option, "--json", *with_options(rng))
    must(done.code == 0 and done.error == "", str(done))
    for entry in json.loads(done.out)["tensors"]:
        must(entry["digest"] == store.checksum(case.values[entry["name"]].data),
             "verify: %s" % entry)
    rank, name, _ = box_files.flip(rng, folder / "out", folder / "damaged")
    if name is not None:
        done = ferry.verify(case.source, folder / "damaged", *case.option)
        must(done.code == 1 and shown_in(name, done.error) and str(rank) in done.error, str(done))


    check_said_values(ferry, folder, rng, case, side)


def check_said_values(ferry, folder, rng, case, side):
    """Parameters that say it make the same as the option."""
    boxes = [entry for entry in side["boxes"] if entry["holds"] and
             all(is_weight(hold["tensor"]) for hold in entry["holds"])]
    if not boxes:
        return
    how = {"dequantize": {"block": [1, 16], "scale": "*_scale"}, "dtype": case.word}
    said = write_layout(folder, "said.json", {"boxes": [{**entry, **how} for entry in boxes]}, rng)
    plain = write_layout(folder, "plain.json", {"boxes": boxes}, rng)
    told = ferry.reshard_json(case.source, said, folder / "said", *with_options(rng))
    must({entry["name"] for entry in told["dequantized"]} == held_tensors({"boxes": boxes}),
         "told: %s" % told)
    ferry.reshard(case.source, plain, folder / "plain", *case.option, *with_options(rng))
    must(store.tree(folder / "plain") == store.tree(folder / "said"), "%s differs" % case.option)
    box_files.check_boxed(folder / "said", {"boxes": boxes}, case.values, case.model)
    done = ferry.verify(case.source, folder / "said", *case.option, *with_options(rng))
    must(done.code == 0 and done.error == "", str(done))


def check_large_halves(ferry, definitions, folder, rng):
    shapes = [[rng.randint(200, 400), 2 * rng.randint(300, 500)], [3, 90, 2 * rng.randint(150, 250)]]
    case = Halves(ferry, definitions, folder, rng, shapes)
    side = box_files.draw_large(rng, case.values)
    options = ["--memory-cap", "1M", "--threads", str(rng.choice([1, 2, 5]))]
    file = write_layout(folder, "boxes.json", side, rng)
    ferry.reshard(case.source, file, folder / "boxed", *case.option, *options)
    box_files.check_large(folder / "boxed", side, case.values)
    done = ferry.verify(case.source, folder / "boxed", *case.option, "--json", *options)
    must(done.code == 0 and done.error == "", str(done))


# ---- what is refused -----------------------------------------------------------------------------


def check_bad(ferry, folder, rng):
    name = "layers.0.a_proj.weight"
    store.write_logical(rng, folder / "source", [
        Tensor(name, "BF16", [8, 16], bytes(256)), Tensor("norm", "BF16", [4], bytes(8)),
        Tensor("codes", "F8_E4M3", [2, 2], bytes(4)),
        Tensor("codes_scale_inv", "F32", [1, 1], bytes(4))], {}, 1, {})
    good = {"rank": 0, "parameter": "p", "elements": 128, "holds": [
        {"tensor": name, "begin": [0, 0], "shape": [8, 16], "offset": 0, "strides": [16, 1]}]}
    norm = {"rank": 0, "parameter": "norm", "elements": 4, "holds": [
        {"tensor": "norm", "begin": [0], "shape": [4], "offset": 0, "strides": [1]}]}
    codes = {"rank": 0, "parameter": "c", "elements": 4, "dtype": "bf16",
             "dequantize": {"block": [2, 2], "scale": "*_scale_inv"}, "holds": [
                 {"tensor": "codes", "begin": [0, 0], "shape": [2, 2], "offset": 0,
                  "strides": [2, 1]}]}
    f8 = "f8e4m3:4x4"
    for what, boxes, option, words in (
            ("nothing of it", [norm], [f8], ["no box", "quantized", f8]),
            ("a type that it has not", [{**good, "dtype": "bf16"}], [f8], ['"p"', "f8e4m3"]),
            ("a name that is taken", [good, {**norm, "parameter": "p_scale_inv"}], [f8],
             ["p_scale_inv"]),
            ("a name that is too long", [{**good, "parameter": "p" * 4090}], [f8],
             ["longer", name + "_scale_inv"]),
            ("of another shape", [{**good, "holds": [
                {**good["holds"][0], "begin": [1, 0]}]}], [f8], ['"p"']),
            ("both ways", [good, codes], [f8], ["dequantize", "--quantize"]),
            ("parts beyond all numbers", [{**good, "elements": 256, "holds": [
                good["holds"][0], {**good["holds"][0], "offset": 128, "repeat": [
                    {"count": 3, "begin": [0, 0], "offset": 0},
                    {"count": (2 ** 64 - 1) // 3, "begin": [0, 0], "offset": 0}]}]}],
             [f8], ['"p"', "matrices"]),
            ("half bytes that are torn", [{**good, "elements": 64, "holds": [
                {**good["holds"][0], "begin": [0, 1], "shape": [8, 8], "strides": [8, 1]}]}],
             ["nvfp4"], [name, '"p"', "less than a byte"]),
            ("half bytes that are turned", [{**good, "holds": [
                {**good["holds"][0], "strides": [1, 8]}]}], ["nvfp4"], ['"p"'])):
        file = write_layout(folder, "bad.json", {"boxes": boxes}, rng)
        done = ferry.call("reshard", folder / "source", "--to", file, "--out", folder / "bad",
                          "--quantize", *option)
        must(done.code == 1 and not (folder / "bad").exists(), "%s: %s" % (what, done))
        require_sentence(done, *words)


def check_bad_said(ferry, folder, rng):
    """What parameters may not say, or not together."""
    name, star = "layers.0.a_proj.weight", "layers.*.weight"
    store.write_logical(rng, folder / "source", [
        Tensor(name, "BF16", [8, 16], bytes(256)), Tensor("norm", "BF16", [4], bytes(8)),
        Tensor(star, "BF16", [8, 16], bytes(256)), Tensor("n", "I16", [8, 16], bytes(256)),
        Tensor("codes", "F8_E4M3", [8, 16], bytes(128)),
        Tensor("codes_scale_inv", "F32", [4, 4], bytes(64)),
        Tensor("odd", "BF16", [8, 15], bytes(240)), Tensor("odd4", "F4", [2, 15], bytes(15)),
        Tensor("odd4_scale", "F8_E4M3", [2, 1], bytes(2)),
        Tensor("half", "F4", [2, 16], bytes(16)),
        Tensor("half_scale", "F8_E4M3", [2, 1], bytes(2)),
        Tensor("wide", "F4", [2, 16], bytes(16)),
        Tensor("wide_scale", "F8_E4M3", [2, 1], bytes(2)),
        Tensor("wide_scale_2", "F32", [1], bytes(4))], {}, 1, {})
    hold = {"tensor": name, "begin": [0, 0], "shape": [8, 16], "offset": 0, "strides": [16, 1]}
    says = {"format": "f8e4m3", "block": [2, 4], "scale": "*_scale_inv"}
    good = {"rank": 0, "parameter": "p", "elements": 128, "holds": [hold], "quantize": says}
    other = {**good, "rank": 1, "parameter": "q"}

    def of(tensor):
        return [{**good, "holds": [{**hold, "tensor": tensor}]}]

    norm = {"tensor": "norm", "begin": [0], "shape": [4], "offset": 0, "strides": [1]}
    values = {**other, "dtype": "bf16", "holds": [{**hold, "tensor": "codes"}],
              "dequantize": {"block": [2, 4], "scale": "*_scale_inv"}}
    del values["quantize"]

    def f4(tensor, columns):
        return [{"rank": 0, "parameter": "v", "elements": 2 * columns, "dtype": "bf16",
                 "dequantize": {"block": [1, 16], "scale": "*_scale"}, "holds": [
                     {"tensor": tensor, "begin": [0, 0], "shape": [2, columns], "offset": 0,
                      "strides": [columns, 1]}]}]

    odd = [{**good, "elements": 120, "holds": [
        {**hold, "tensor": "odd", "shape": [8, 15], "strides": [15, 1]}],
        "quantize": {"format": "nvfp4", "scale": "*_scale", "tensor_scale": "*_scale_2"}}]
    for what, boxes, options, words in (
            ("an option, too", [good], ["--quantize", "f8e4m3:2x4"], ["--quantize", "leave"]),
            ("the other option", [good], ["--dequantize"], ["--dequantize", '"quantize"']),
            ("both ways", [good, values], [], ['"quantize"', '"dequantize"', "two folders"]),
            ("another block", [good, {**other, "quantize": {**says, "block": [2, 2]}}], [],
             ['"p"', '"q"', "same"]),
            ("other scales", [good, {**other, "quantize": {**says, "scale_dtype": "f8e8m0"}}], [],
             ['"p"', '"q"', "same"]),
            ("floor", [{**good, "quantize": {**says, "scale_kind": "floor"}}], [],
             ['"p"', "floor", "mxfp8"]),
            ("a large block", [{**good, "quantize": {**says, "block": [1 << 17, 4]}}], [],
             ['"p"', "65536"]),
            ("scales of another name", [{**good, "quantize": {**says, "scale": "*.s"}}], [],
             ['"p"', '"*.s"', '"*_scale_inv"']),
            ("one name for all scales", [{**good, "quantize": {**says, "scale": "x_scale_inv"}}],
             [], ['"p"', '"x_scale_inv"']),
            ("values elsewhere", [good, {key: other[key] for key in other if key != "quantize"}],
             [], ['"q"', name, "one type"]),
            ("no values", of("n"), [], ['"p"', '"n"', "i16", "bf16"]),
            ("a vector", [good, {**other, "elements": 4, "holds": [norm]}], [],
             ['"q"', '"norm"', "1 dimensions"]),
            ("codes", of("codes"), [], ["codes", "f8e4m3 already"]),
            ("a star in a name", of(star), [], ['"p"', star, "pattern"]),
            ("no such tensor", [good, {**other, "holds": [{**hold, "tensor": "zz"}]}], [], ["zz"]),
            ("nothing", [{**good, "holds": [], "dtype": "f8e4m3", "partial": True}], [],
             ['"p"', "no box"]),
            ("rows of f4 that are no bytes", odd, [], ["bad.json", '"odd"', "15", "whole bytes"]),
            ("f4 of such rows", f4("odd4", 15), [], ["bad.json", '"v"', '"odd4"', "whole bytes"]),
            ("f4 without the second scale", f4("half", 16), [],
             ["bad.json", '"v"', '"half"', '"half_scale_2"']),
            ("f4 with second scales of another shape", f4("wide", 16), [],
             ["bad.json", '"v"', '"wide"', '"wide_scale_2"', "one for each matrix"]),
            ("another second scale", [{**good, "quantize": {
                "format": "nvfp4", "scale": "*_scale", "tensor_scale": "*_largest"}}], [],
             ['"p"', '"*_largest"', '"*_scale_2"'])):
        file = write_layout(folder, "bad.json", {"boxes": boxes}, rng)
        done = ferry.call("reshard", folder / "source", "--to", file, "--out", folder / "bad",
                          *options)
        must(done.code in (1, 2) and not (folder / "bad").exists(), "%s: %s" % (what, done))
        require_sentence(done, *words)


def check_empty(ferry, folder, rng):
    """A rank that has no row of a weight, or a weight of none: no scales stand beside it, and what
    is written can be read."""
    for number, (shape, begin) in enumerate((([8, 32], [8, 0]), ([0, 32], [0, 0]),
                                             ([3, 0, 32], [0, 0, 0]))):
        place = folder / str(number)
        tensors = [Tensor("w", "BF16", shape, bytes(2 * math.prod(shape))),
                   Tensor("v", "BF16", [4, 16], draw_values(rng, "BF16", 64))]
        place.mkdir()
        store.write_logical(rng, place / "source", tensors, {}, 1, {})
        empty = [*shape[:-2], 0, 32]
        file = write_layout(place, "boxes.json", {"boxes": [
            {"rank": 0, "parameter": "v", "elements": 64, "holds": [
                {"tensor": "v", "begin": [0, 0], "shape": [4, 16], "offset": 0, "strides": [16, 1]}]},
            {"rank": 1, "parameter": "w", "elements": 0, "shape": empty, "holds": [
                {"tensor": "w", "begin": begin, "shape": empty, "offset": 0,
                 "strides": [32, 1] if len(shape) == 2 else [0, 32, 1]}]}]}, rng)
        for form in ("nvfp4=*", "mxfp8=*", "f8e4m3:16x16=*"):
            out = place / form[:3]
            ferry.reshard(place / "source", file, out, "--quantize", form)
            done = ferry.verify(place / "source", out, "--quantize", form)
            must(done.code == 0, str(done))
            found = store.read_file(out / store.rank_name(1)).by_name
            must(list(found) == ["w"] and found["w"].data == b"", "%s" % found)


def check_room(ferry, folder, rng):
    """One block, and all that is made of it, is more than the cap."""
    name = "layers.0.a_proj.weight"
    store.write_logical(rng, folder / "source", [Tensor(name, "F32", [256, 256], bytes(1 << 18))],
                        {}, 1, {})
    entry = {"rank": 0, "parameter": "p", "elements": 1, "holds": [
        {"tensor": name, "begin": [7, 7], "shape": [1, 1], "offset": 0, "strides": [1, 1]}]}
    file = write_layout(folder, "boxes.json", {"boxes": [entry]}, rng)
    arguments = ["--quantize", "f8e4m3:256x256", "--memory-cap"]
    done = ferry.call("reshard", folder / "source", "--to", file, "--out", folder / "no",
                      *arguments, "1M")
    require_sentence(done, "block", "262144", "1048576", "larger")
    ferry.reshard(folder / "source", file, folder / "out", *arguments, "2M", "--threads", "4")
    done = ferry.verify(folder / "source", folder / "out", *arguments, "1M")
    must(done.code == 2, str(done))
    require_sentence(done, "block", "larger")
    done = ferry.verify(folder / "source", folder / "out", *arguments, "4M")
    must(done.code == 0, str(done))


def main():
    parser = parser_of(__doc__, 100)
    parser.add_argument("--oracle", required=True, help="the program blocks_oracle")
    arguments = parser.parse_args()
    ferry, definitions = Ferry(arguments.ferry), Definitions(arguments.oracle)

    def bound(function, *more):
        return lambda folder, rng: function(ferry, *more, folder, rng)

    seeds = range(arguments.seed, arguments.seed + arguments.count)
    cases = [("random", bound(check_random, definitions), seed) for seed in seeds]
    cases += [("large " + text, bound(check_large, definitions, text), seed)
              for seed in seeds[::100] for text in LARGE]
    cases += [("filled %s" % text, bound(check_filled, definitions, text), seed)
              for seed in seeds for text in (None, "f8e4m3:4x8", "nvfp4")]
    cases += [("parts", bound(check_parts, definitions), seed) for seed in seeds]
    cases += [("halves", bound(check_halves, definitions), seed) for seed in seeds[::2]]
    cases += [("large halves", bound(check_large_halves, definitions), seed)
              for seed in seeds[::20]]
    cases += [("experts " + text, bound(check_experts, definitions, text), arguments.seed)
              for text in ("f8e4m3:128x128", "mxfp8", "nvfp4")]
    cases += [("stack", bound(check_stack, definitions), arguments.seed),
              ("bad", bound(check_bad), arguments.seed),
              ("bad said", bound(check_bad_said), arguments.seed),
              ("empty", bound(check_empty), arguments.seed),
              ("part of a block", bound(check_part_of_block), arguments.seed),
              ("room", bound(check_room), arguments.seed)]
    return run_cases(arguments, cases)


if __name__ == "__main__":
    sys.exit(main())
