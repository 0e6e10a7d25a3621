# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Traces without torch: the arithmetic of views against one element at a time, and what a trace is."""

import itertools
import os
import pickle
import random
import tempfile
import unittest

import ferry
from ferry import _trace_boxes as boxes


def elements(offset, loops):
    """Places of a view in its order, and those beside them."""
    places = []
    for turns in itertools.product(*(range(n) for n, _, _ in loops)):
        here = offset + sum(i * one[1] for i, one in zip(turns, loops))
        there = sum(i * one[2] for i, one in zip(turns, loops))
        places.append((here, there))
    return places


def random_view(seed, size, n_dims):
    """An offset and loops that stay in memory of this size; strides are whatever they are."""
    loops, reach = [], 0
    for _ in range(n_dims):
        n = seed.randint(1, 5)
        stride = seed.choice((1, 1, 2, 3, 4, 6, 8, 12, 24))
        if reach + (n - 1) * stride < size:
            loops.append((n, stride))
            reach += (n - 1) * stride
    seed.shuffle(loops)
    return seed.randrange(size - reach), loops


def row_major(loops):
    """The same view for a reader who has its elements one behind the other."""
    found, step = [], 1
    for n, stride in reversed(loops):
        found.append((n, stride, step))
        step *= n
    return found[::-1], step


def once(offset, loops):
    """Whether no element of a view is there twice."""
    places = [here for here, _ in elements(offset, [(n, stride, 0) for n, stride in loops])]
    return len(set(places)) == len(places)


class Arithmetic(unittest.TestCase):
    OUTLINES = ((24,), (4, 6), (6, 4), (2, 3, 4), (1, 24), (3, 1, 8), (48,), (2, 2, 2, 6))

    def test_what_is_read_is_what_was_written(self):
        for number in range(600):
            seed = random.Random(number)
            outline = seed.choice(self.OUTLINES)
            size = 1
            for n in outline:
                size *= n
            whole = "w" if number % 3 == 0 else None
            area = boxes.Area(outline, whole=whole)
            memory = [(whole, i) if whole else None for i in range(size)]
            for source in range(seed.randint(0, 4)):
                offset, loops = random_view(seed, size, seed.randint(0, 3))
                if not once(offset, loops):
                    continue
                first = seed.randint(0, 7)
                beside = [(n, stride, seed.choice((0, 1, 5, n))) for n, stride in loops]
                area.write([boxes.Copy(source, first, offset, tuple(beside))])
                for here, there in elements(offset, beside):
                    memory[here] = (source, first + there)
            offset, loops = random_view(seed, size, seed.randint(0, 3))
            reader, n = row_major(loops)
            read = [None] * n
            copies, rest = area.read(offset, reader, 0)
            for copy in copies:
                for place, there in elements(copy.at, copy.loops):
                    self.assertIsNone(read[place], number)
                    read[place] = (copy.source, copy.source_at + there)
            untouched = {place for grid in rest
                         for place, _ in elements(grid.elsewhere, boxes.loops_of(grid))}
            self.assertEqual(untouched, {i for i, one in enumerate(read) if one is None}, number)
            self.assertEqual(read, [memory[here] for here, _ in elements(offset, reader)], number)

    def test_boxes_say_what_the_view_says(self):
        for number in range(400):
            seed = random.Random(number)
            shape = seed.choice(self.OUTLINES)
            size = 1
            for n in shape:
                size *= n
            offset, loops = random_view(seed, size, seed.randint(0, 4))
            first = seed.randint(0, 5)
            reader, n = row_major(loops)
            copy = boxes.Copy("w", offset, first, tuple((n, to, at) for n, at, to in reader))
            steps, found = boxes.steps_of(shape), {}
            for box in boxes.boxes(shape, copy):
                self.assertLessEqual(len(box.get("repeat", ())), 4)
                for place, at in placed(box):
                    for d, i in enumerate(at):
                        self.assertTrue(0 <= i < shape[d], number)
                    self.assertNotIn(place, found)
                    found[place] = sum(i * step for i, step in zip(at, steps))
            want = {first + to: offset + there for there, to in
                    ((here - offset, there) for here, there in elements(offset, reader))}
            self.assertEqual(found, want, number)

    def test_common_views_are_one_box(self):
        for shape, offset, loops in (
            ((4, 6), 0, ((24, 1, 1),)),  # of rows
            ((4, 6), 6, ((2, 6, 12), (6, 1, 1))),
            ((4, 6), 3, ((3, 1, 1), (4, 6, 3))),  # turned
            ((8, 6), 12, ((2, 12, 12), (2, 6, 6), (6, 1, 1))),  # heads
            ((2, 8, 6), 0, ((2, 48, 0), (8, 6, 6), (6, 1, 1)),),
        ):
            loops = tuple((n, to, at) for n, at, to in loops)
            if loops[0][1] == 0:
                continue
            self.assertEqual(len(list(boxes.boxes(shape, boxes.Copy("w", offset, 0, loops)))), 1, loops)

    def test_too_many_pieces(self):
        diagonal = boxes.Copy("w", 0, 0, ((1 << 17, 1, (1 << 17) + 1),))
        with self.assertRaises(boxes.TooManyPieces):
            list(boxes.boxes((1 << 17, 1 << 17), diagonal))


def placed(box):
    """Each element of a box: its place in memory, and where in the tensor it is."""
    loops = box.get("repeat", ())
    for turns in itertools.product(*(range(loop["count"]) for loop in loops)):
        for at in itertools.product(*(range(n) for n in box["shape"])):
            place = box["offset"] + sum(i * step for i, step in zip(at, box["strides"]))
            place += sum(t * loop["offset"] for t, loop in zip(turns, loops))
            tensor = [b + i for b, i in zip(box["begin"], at)]
            for t, loop in zip(turns, loops):
                tensor = [i + t * far for i, far in zip(tensor, loop["begin"])]
            yield place, tensor


def document(**more):
    held = {"begin": [0], "shape": [4], "offset": 0, "strides": [1]}
    return {
        "format": "ferry.trace/1",
        "tensors": [{"name": name, "shape": [4], "dtype": "u8"} for name in "qkv"],
        "boxes": [
            {"parameter": "qk", "elements": 10, "shape": [5, 2], "dtype": "u8",
             "holds": [dict(held, tensor="q"), dict(held, tensor="k", offset=4)],
             "fill": [{"offset": 8, "shape": [2], "strides": [1], "bits": "07"}]}],
        **more}


class Traces(unittest.TestCase):
    def test_what_it_says(self):
        trace = ferry.Trace(document(aliases={"head": "qk"}, untouched=["inv"]))
        self.assertEqual(trace.parameters, ["qk"])
        self.assertEqual((trace.unused, trace.untouched), (["v"], ["inv"]))
        self.assertEqual((trace.aliases, trace.partial), ({"head": "qk"}, []))
        self.assertEqual(repr(trace), "<ferry.Trace of 1 parameters: 2 boxes of 2 of 3 tensors>")
        self.assertIn("q[0:4], k[0:4], fills", trace.table())
        self.assertIn("<td>qk</td>", trace._repr_html_())

    def test_its_side_carries(self):
        trace = ferry.Trace(document())
        spec = {"format": "ferry.spec/1", "tensors": trace.tensors, "destination": trace.side(0),
                "source": {"mesh": [], "rules": [{"match": "*"}]}}
        new = bytearray(10)
        ferry.refit({"q": b"abcd", "k": b"efgh", "v": b"ijkl"}, {"qk": new}, spec)
        self.assertEqual(bytes(new), b"abcdefgh\7\7")
        base = {key: spec[key] for key in ("format", "tensors", "source")}
        self.assertEqual(ferry.plan(ferry.Spec.exchange(base, destination=trace.side())),
                         ferry.plan(spec))

    def test_files_and_copies(self):
        trace = ferry.Trace(document())
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rank0.json")
            trace.save(path)
            self.assertEqual(os.listdir(folder), ["rank0.json"])
            self.assertEqual(ferry.Trace.load(path), trace)
            with self.assertRaisesRegex(FileNotFoundError, "nowhere: cannot be read"):
                ferry.Trace.load(os.path.join(folder, "nowhere"))
            with self.assertRaisesRegex(ferry.FileError, "cannot be written"):
                trace.save(os.path.join(folder, "no", "where"))
            with self.assertRaisesRegex(ferry.InvalidInput, "null byte"):
                trace.save(os.path.join(folder, "a\0b"))
            with open(path, "w") as file:
                file.write("{")
            with self.assertRaisesRegex(ferry.InvalidInput, "no JSON"):
                ferry.Trace.load(path)
        self.assertEqual(pickle.loads(pickle.dumps(trace)), trace)
        without = document()
        del without["boxes"][0]["elements"]
        for bad in ({}, {"format": "ferry.trace/1"}, document(tensors=[{}]), 3, without,
                    document(boxes=[{"parameter": "qk"}]), document(tensors=[{"name": "q"}])):
            with self.assertRaises(ferry.InvalidInput):
                ferry.Trace(bad)

    def test_differences(self):
        one, other = ferry.Trace(document()), document()
        self.assertEqual(one.diff(ferry.Trace(document())), [])
        other["tensors"][1]["dtype"] = "bf16"
        other["tensors"].append({"name": "o", "shape": [4], "dtype": "u8"})
        other["boxes"][0]["holds"][1]["begin"] = [1]
        other = ferry.Trace(other)
        self.assertNotEqual(one, other)
        self.assertEqual(one.diff(other), [
            'tensor "k" has dtype u8 in the first and bf16 in the second',
            'tensor "o" is only in the second',
            'parameter "qk" is q[0:4], k[0:4], fills in the first and q[0:4], k[1:5], fills in the '
            'second'])
        with self.assertRaisesRegex(ferry.InvalidInput, "differs from a trace"):
            one.diff({})


if __name__ == "__main__":
    unittest.main()
