# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Layouts and checkpoints in boxes that must be refused, for bad_input.py.

What is wrong with a box is tried in tests/property/bad_boxes.py; here is how that reaches a file, and
what only files have.
"""

import copy
import json

import store
from store import LAYOUT, Tensor, rank_name

MOST = (1 << 63) - 1
# Tensor a is F32 [4, 2], tensor b I8 [3]: as in the other cases of --to.
SIDE = [
    {"ranks": [0, 2], "parameter": "p", "elements": 10, "shape": [5, 2], "holds": [
        {"tensor": "a", "begin": [0, 0], "shape": [4, 2], "offset": 0, "strides": [1, 4]}],
     "fill": [{"offset": 8, "shape": [2], "strides": [1], "bits": "3f800000"}]},
    {"rank": 2, "parameter": "q", "elements": 4, "partial": True, "holds": [
        {"tensor": "b", "begin": [0], "shape": [3], "offset": 0, "strides": [1]}]},
]


def side(**changes):
    """The good side with members of its first parameter changed; None takes one away."""
    boxes = copy.deepcopy(SIDE)
    boxes[0].update(changes)
    boxes[0] = {key: value for key, value in boxes[0].items() if value is not None}
    return {"boxes": boxes}


def hold(**changes):
    return side(holds=[{**SIDE[0]["holds"][0], **changes}])


def box_cases():
    """(name, object of the --to file, words)."""
    yield "a mesh as well", {**side(), "mesh": [["tp", 2]], "rules": [{"match": "*"}]}, ["boxes"]
    yield "first_rank as well", {**side(), "first_rank": 1}, ["boxes"]
    for name, boxes in {"none": [], "an object": {}, "null": None, "a text": "p"}.items():
        yield "boxes are %s" % name, {"boxes": boxes}, ["boxes"]
    for name, shape in {"too small": [5], "too large": [5, 3], "beyond 64 bits": [1 << 40] * 2,
                        "a product that wraps": [1 << 32, 1 << 32, 10], "zero": [0, MOST],
                        "of nine": [1] * 8 + [10], "negative": [-5, -2], "a number": 10,
                        "a text": "10", "of fractions": [2.5, 4], "null": None}.items():
        if shape is not None:
            yield "a shape %s" % name, side(shape=shape), ["shape"]
    yield "no such tensor", hold(tensor="zz"), ["zz", "p"]
    yield "beyond the tensor", hold(begin=[1, 0]), ["a", "p"]
    yield "beyond the parameter", hold(strides=[1, 9]), ["p"]
    yield "a gap", side(elements=11, shape=None), ["p", "10"]
    yield "two on one", side(fill=[{"offset": 7, "shape": [3], "strides": [1]}]), ["p", "7"]
    yield "another type", side(dtype="i32"), ["p"]
    yield "a cast", side(dtype="bf16", cast="round", fill=None, partial=True), [
        "p", "cast"]
    yield "a cast to the same", side(dtype="f32", cast="round", scale=2.0), ["p", "cast"]
    yield "far away", hold(offset=MOST), ["p"]
    yield "as large as can be", side(elements=MOST, shape=None, partial=True), ["p"]
    yield "a rank beyond the limit", side(ranks=[1 << 24]), ["rank"]
    yield "a name twice", {"boxes": [SIDE[0], {**SIDE[1], "parameter": "p"}]}, ["p", "2"]
    yield "a name that files have for something else", side(parameter="__metadata__"), [
        "__metadata__"]
    yield "bytes that have no word", {"boxes": SIDE + [
        {"rank": 0, "parameter": "r", "elements": 2, "dtype": "bytes:3", "holds": [],
         "fill": [{"offset": 0, "shape": [2], "strides": [1]}]}]}, ["r", "dtype"]
    yield "halves of bytes", {"boxes": SIDE + [
        {"rank": 0, "parameter": "r", "elements": 3, "dtype": "f4", "partial": True,
         "holds": []}]}, ["r", "3"]
    yield "a tensor that is used up", {**hold(), "tensors": [
        {"name": "n", "shape": [4, 2], "dtype": "f32", "source": "a"},
        {"name": "b", "shape": [3], "dtype": "i8"}]}, ["a", "p"]


def good(folder, boxes=None, change=None, tensors=None):
    """Fills a folder with the good checkpoint; change(files, layout) makes it a bad one."""
    fill = bytes.fromhex("0000803f") * 2
    p = Tensor("p", "F32", [5, 2], bytes(range(32)) + fill)
    q = Tensor("q", "I8", [4], b"xyz\0")
    files = {0: [p], 2: [p, q]}
    layout = {"format": "ferry.layout/1", "boxes": copy.deepcopy(SIDE if boxes is None else boxes),
              "tensors": tensors or [{"name": "a", "shape": [4, 2], "dtype": "f32"},
                                     {"name": "b", "shape": [3], "dtype": "i8"}]}
    if change is not None:
        change(files, layout)
    for rank, held in files.items():
        (folder / rank_name(rank)).write_bytes(store.form_file(held, {
            store.CHECKSUM_KEY + tensor.name: store.checksum(tensor.data) for tensor in held}))
    (folder / LAYOUT).write_text(json.dumps(layout))


def replace(rank, *tensors):
    def change(files, layout):
        files[rank] = list(tensors)
    return change


def drop(rank):
    def change(files, layout):
        del files[rank]
    return change


def add_tensor(files, layout):
    layout["tensors"].append({"name": "c", "shape": [2], "dtype": "i8"})


def drop_tensors(files, layout):
    del layout["tensors"]


def drop_tensor(files, layout):
    del layout["tensors"][1]


def boxed_cases():
    """(name, function that fills a folder, words)."""
    p = Tensor("p", "F32", [5, 2], bytes(40))
    q = Tensor("q", "I8", [4], bytes(4))
    rows = {
        "a parameter is missing": (replace(2, p), ["q", rank_name(2)]),
        "a parameter too many": (replace(0, p, Tensor("x", "I8", [1], b"x")), ["x", rank_name(0)]),
        "another name": (replace(0, Tensor("P", "F32", [5, 2], bytes(40))), ["p", rank_name(0)]),
        "another shape": (replace(0, Tensor("p", "F32", [10], bytes(40))), ["p", "[5, 2]"]),
        "fewer elements": (replace(2, p, Tensor("q", "I8", [3], bytes(3))), ["q", "4"]),
        "another dtype": (replace(2, p, Tensor("q", "U8", [4], bytes(4))), ["q", "U8"]),
        "another dtype of its size": (replace(0, Tensor("p", "I32", [5, 2], bytes(40))),
                                      ["p", "I32"]),
        "no file of a rank": (drop(2), [rank_name(2)]),
        "a file of no rank": (lambda files, layout: files.update({1: [q]}), [rank_name(1)]),
        "a tensor of no box": (add_tensor, ["c"]),
        "no tensors": (drop_tensors, ["tensors"]),
        "a box of no tensor": (drop_tensor, ["b"]),
        "no parameter": (lambda files, layout: layout.update(boxes=[]), ["boxes"]),
        "a mesh as well": (lambda files, layout: layout.update(mesh=[["tp", 3]]), ["boxes"]),
    }
    for name, (change, words) in rows.items():
        yield name, lambda folder, change=change: good(folder, change=change), words
