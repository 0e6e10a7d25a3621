#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Random checkpoints to random sides in boxes and back, every byte held against the oracle.

    boxes_random.py --ferry PATH [--seed S] [--count N] [--only TEXT] [--keep-going] [--keep]

Case i of a run is made from seed S + i alone. The first failure prints its seed and stops.
"""

import math
import re
import sys
import tempfile
from pathlib import Path

import box_files
import models
import store
from results import check_logical, check_sharded, shown_in, source_order
from reshard_random import with_options, write_layout
from reshard_oracle import glob_match
from runner import Ferry, must, parse, parser_of, require_sentence, run_cases
from store import word_bits


def draw_case(rng, whole=False):
    """A model, and a side of some of its tensors."""
    while True:
        model = models.draw_model(rng)
        side = box_files.draw_side(rng, model.tensors, whole)
        if side is not None and not box_files.mixes_words(side, model.tensors):
            return model, side


def write_source(ferry, folder, rng, model):
    """The model as a logical checkpoint, or as a sharded one; and its tensors in order."""
    store.write_logical(rng, folder / "logical", list(model.tensors.values()), model.metadata,
                        rng.choice([1, 1, 2, 4]), model.others)
    tensors = source_order(folder / "logical", model)
    if rng.random() < 0.5:
        return folder / "logical", tensors
    layout = models.draw_layout(rng, tensors, may_skip=False)
    file = write_layout(folder, "first.json", layout, rng)
    ferry.reshard(folder / "logical", file, folder / "sharded")
    return folder / "sharded", tensors


def check_forth(ferry, folder, rng):
    model, side = draw_case(rng)
    source, tensors = write_source(ferry, folder, rng, model)
    file = write_layout(folder, "boxes.json", box_files.layout_file(rng, side, tensors), rng)
    told = ferry.reshard_json(source, file, folder / "out", *with_options(rng))
    held = {hold["tensor"] for entry in side["boxes"] for hold in entry["holds"]}
    must(0 <= told["read_bytes"] <= sum(len(tensors[name].data) for name in held)
         and told["destination"]["tensors"] == len(held), "told: %s" % told)
    box_files.check_boxed(folder / "out", side, tensors, model)
    check_verify(ferry, folder, rng, source, folder / "out", tensors, side)
    check_subset(ferry, folder, rng, source, side, tensors, model)
    ferry.reshard(source, file, folder / "again", *with_options(rng))
    must(store.tree(folder / "again") == store.tree(folder / "out"), "options change the bytes")


def check_subset(ferry, folder, rng, source, side, tensors, model):
    """A parameter is written if all its tensors are taken; some of them is an error."""
    name = rng.choice(sorted(box_files.held_tensors(side)))
    pattern = name[:rng.choice([1, 3, len(name) - 1])] + "*"
    if any(letter in pattern[:-1] for letter in "*?!,"):
        return
    taken, mixes = [], None
    for entry in side["boxes"]:
        fits = {glob_match(pattern, hold["tensor"]) for hold in entry["holds"]}
        mixes = entry["parameter"] if len(fits) > 1 else mixes
        taken += [entry] if True in fits else []
    file = write_layout(folder, "subset.json", side, rng)
    done = ferry.call("reshard", source, "--to", file, "--out", folder / "subset", "--subset",
                      pattern)
    if mixes is not None:
        require_sentence(done, "subset")
        must(not (folder / "subset").exists(), "a failed run leaves DST")
        return
    must(done.code == 0, str(done))
    box_files.check_boxed(folder / "subset", {"boxes": taken}, tensors, model)
    must(ferry.verify(source, folder / "subset").code == 0, "a subset must be a checkpoint")
    check_subset_verify(ferry, folder, source, pattern, taken, tensors)


def check_subset_verify(ferry, folder, source, pattern, taken, tensors):
    """By the pattern it is all that there is to be; the folder with all boxes has more, or has not."""
    words, held = ["--subset", pattern, "--json"], box_files.held_tensors({"boxes": taken})
    shown = parse(ferry.verify(source, folder / "subset", *words))
    wanted = {name for name in tensors if glob_match(pattern, name)}
    must(shown["equal"] and shown["n_left_out"] == len(wanted - held)
         and {entry["name"] for entry in shown["tensors"]} == held, "verify: %s" % shown)
    shown = parse(ferry.verify(source, folder / "out", *words))
    more = [entry["name"] for entry in parse(ferry.verify(source, folder / "out", "--json"))["tensors"]
            if entry["name"] not in wanted]
    must(shown["equal"] == (more == []), "verify: %s, beside %s" % (shown, more))
    must(shown["equal"] or any(shown_in(name, shown["difference"]) for name in more),
         "verify: %s, beside %s" % (shown, more))


def check_verify(ferry, folder, rng, source, boxed, tensors, side):
    """What the boxes hold is the source's; a flipped bit of any parameter is seen."""
    done = ferry.verify(source, boxed, "--json", *with_options(rng))
    must(done.code == 0 and done.error == "", str(done))
    shown, held = parse(done), box_files.held_tensors(side)
    must(shown["n_left_out"] == len(set(tensors) - held), "verify: left out %s" % shown)
    must([entry["name"] for entry in shown["tensors"]] == [n for n in tensors if n in held],
         "verify: tensors %s" % shown["tensors"])
    for entry in shown["tensors"]:
        must(entry["digest"] == store.checksum(tensors[entry["name"]].data), "verify: %s" % entry)
    rank, name, mended = box_files.flip(rng, boxed, folder / "damaged")
    if name is None:
        return
    sentence = ferry.require_different(source, folder / "damaged", str(rank))
    must(shown_in(name, sentence), "verify must name %r: %s" % (name, sentence))
    must(mended or "damaged: their checksum" in sentence, "verify: %s" % sentence)
    rank, name = box_files.spoil_checksum(rng, boxed, folder / "spoiled")
    if name is not None:
        done = ferry.verify(source, folder / "spoiled")
        must(done.code == 2 and "damaged: their checksum" in done.error
             and shown_in(name, done.error), str(done))


def check_back(ferry, folder, rng):
    """All of each tensor is somewhere: as a whole again, in a mesh, and in other boxes."""
    model, side = draw_case(rng, whole=True)
    source, tensors = write_source(ferry, folder, rng, model)
    file = write_layout(folder, "boxes.json", box_files.layout_file(rng, side, tensors), rng)
    boxed = folder / "boxed"
    ferry.reshard(source, file, boxed, *with_options(rng))
    held = box_files.held_tensors(side)
    tensors = {name: tensor for name, tensor in tensors.items() if name in held}
    box_files.check_boxed(boxed, side, tensors, model)
    ferry.reshard(boxed, "hf", folder / "back", *with_options(rng))
    check_logical(folder / "back", tensors, model)
    ferry.require_equal(boxed, folder / "back")
    ferry.require_equal(folder / "back", boxed)
    ferry.require_equal(boxed, boxed)
    check_replicas(ferry, folder, rng, boxed)
    layout = models.draw_layout(rng, tensors)
    file = write_layout(folder, "mesh.json", models.layout_file(rng, layout, tensors), rng)
    ferry.reshard(boxed, file, folder / "mesh", *with_options(rng))
    check_sharded(folder / "mesh", tensors, layout, model)
    other = box_files.draw_side(rng, tensors, whole=rng.random() < 0.5)
    if other is not None and not box_files.mixes_words(other, tensors):
        file = write_layout(folder, "other.json", box_files.layout_file(rng, other, tensors), rng)
        ferry.reshard(boxed, file, folder / "other", *with_options(rng))
        box_files.check_boxed(folder / "other", other, tensors, model)
    again = folder / "same"
    ferry.reshard(boxed, boxed / store.LAYOUT, again, *with_options(rng))
    must(store.tree(again) == store.tree(boxed), "to its own layout it changes")


def check_parts(ferry, folder, rng):
    """A folder that has only parts of tensors is a source of boxes within these; and the first
    element that is not there is told, before anything is written."""
    model, side = draw_case(rng)
    source, tensors = write_source(ferry, folder, rng, model)
    file, boxed = write_layout(folder, "boxes.json", side, rng), folder / "boxed"
    ferry.reshard(source, file, boxed, *with_options(rng))
    tensors = {name: tensors[name] for name in tensors if name in box_files.held_tensors(side)}
    there = box_files.held_elements(side, tensors)
    if any(len(there[name]) < math.prod(tensors[name].shape) for name in there):
        done = ferry.call("reshard", boxed, "--to", "hf", "--out", folder / "no")
        require_sentence(done)
        must(any(shown_in(name, done.error) and len(there[name]) < math.prod(tensors[name].shape)
                 for name in there) and not (folder / "no").exists(), str(done))
    others = [side, box_files.draw_inside(rng, side, tensors), box_files.draw_side(rng, tensors)]
    for number, other in enumerate(others):
        if other is None or box_files.mixes_words(other, tensors):
            continue
        place = folder / ("part-%d" % number)
        place.mkdir()
        file = write_layout(place, "boxes.json", other, rng)
        missing = {name: wanted - there[name]
                   for name, wanted in box_files.held_elements(other, tensors).items()}
        if any(missing.values()):
            check_missing(ferry, place, (boxed, source, file), tensors, missing)
            continue
        ferry.reshard(boxed, file, place / "out", *with_options(rng))
        box_files.check_boxed(place / "out", other, tensors, model)
        shown = parse(ferry.verify(boxed, place / "out", "--json", *with_options(rng)))
        must(shown["equal"] and {entry["name"] for entry in shown["tensors"]} == {
            name for name in missing if len(there[name]) == math.prod(tensors[name].shape)},
            "verify: %s" % shown)


def check_missing(ferry, folder, paths, tensors, missing):
    boxed, source, file = paths
    ferry.reshard(source, file, folder / "all")
    for done in (ferry.call("reshard", boxed, "--to", file, "--out", folder / "no"),
                 ferry.call("reshard", boxed, "--to", file, "--out", folder / "no", "--dry-run"),
                 ferry.verify(boxed, folder / "all")):
        must("needs element" in done.error, str(done))
        index = [int(i) for i in re.search(r"element \[([0-9, ]*)\]", done.error)[1].split(", ")
                 if i]
        must(any(shown_in(name, done.error) and len(index) == len(tensors[name].shape)
                 and row_major(index, tensors[name].shape) in its
                 for name, its in missing.items()), "%s: not in %s" % (done, missing))
        must(done.code == 1 and not (folder / "no").exists(), str(done))


def row_major(index, shape):
    at = 0
    for i, n in zip(index, shape):
        at = at * n + i
    return at


def check_replicas(ferry, folder, rng, boxed):
    """A flipped bit shows within one checkpoint only where another place has the same element, or a
    fill, or nothing; with the other it always does."""
    rank, name, _ = box_files.flip(rng, boxed, folder / "flipped")
    if name is not None:
        sentence = ferry.require_different(boxed, folder / "flipped", str(rank))
        must(shown_in(name, sentence), "verify must name %r: %s" % (name, sentence))
        done = ferry.verify(folder / "flipped", boxed)
        must(done.code in (1, 2), "%s: must see a difference or damage" % done)


def check_large(ferry, folder, rng):
    """Parameters of MiB under the smallest cap: windows and hulls end anywhere. In memory, and on a
    disk, where the kernel may copy."""
    if rng.random() < 0.5:
        check_large_in(ferry, folder, rng)
        return
    with tempfile.TemporaryDirectory(prefix="ferry-test-") as disk:
        check_large_in(ferry, Path(disk), rng)


def check_large_in(ferry, folder, rng):
    model = models.Model()
    for number in range(rng.randint(1, 3)):
        word = rng.choice(["F32", "BF16", "U8", "F4", "I64", "U24"])
        shape = models.split_volume(rng, rng.randint(100, 700) * 8000 // word_bits(word))
        model.add("layers.%d.w" % number, word, shape,
                  rng.randbytes(math.prod(shape) * word_bits(word) // 8))
    store.write_logical(rng, folder / "source", list(model.tensors.values()), {}, rng.choice([1, 2]))
    tensors = source_order(folder / "source", model)
    side = box_files.draw_large(rng, tensors)
    options = ["--memory-cap", "1M", "--threads", str(rng.choice([1, 2, 5]))]
    file = write_layout(folder, "boxes.json", side, rng)
    ferry.reshard(folder / "source", file, folder / "boxed", *options)
    box_files.check_large(folder / "boxed", side, tensors)
    ferry.require_equal(folder / "source", folder / "boxed")
    ferry.reshard(folder / "boxed", "hf", folder / "back", *options)
    check_logical(folder / "back", tensors, model)


def check_kernel(ferry, folder, rng):
    """A window that lies in one piece, but in another order: on a disk, the kernel must not copy it."""
    model = models.Model()
    model.add("w", "BF16", [200, 300], rng.randbytes(120000))
    with tempfile.TemporaryDirectory(prefix="ferry-test-") as disk:
        disk = Path(disk)
        store.write_logical(rng, disk / "source", list(model.tensors.values()), {}, 1)
        side = {"boxes": [{"rank": 0, "parameter": "t", "elements": 60000, "holds": [
            {"tensor": "w", "begin": [0, 0], "shape": [200, 300], "offset": 0,
             "strides": [1, 200]}]}]}
        ferry.reshard(disk / "source", write_layout(disk, "boxes.json", side, rng), disk / "boxed")
        ferry.reshard(disk / "boxed", "hf", disk / "back")
        check_logical(disk / "back", model.tensors, model)


def main():
    arguments = parser_of(__doc__, 100).parse_args()
    ferry = Ferry(arguments.ferry)
    kinds = [("forth", check_forth), ("back", check_back), ("parts", check_parts)]

    def bound(function):
        return lambda folder, rng: function(ferry, folder, rng)

    cases = [(name, bound(function), seed)
             for seed in range(arguments.seed, arguments.seed + arguments.count)
             for name, function in kinds]
    cases += [("large", bound(check_large), seed)
              for seed in range(arguments.seed, arguments.seed + arguments.count // 4)]
    cases.append(("kernel", bound(check_kernel), arguments.seed))
    return run_cases(arguments, cases)


if __name__ == "__main__":
    sys.exit(main())
