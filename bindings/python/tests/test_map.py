# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Maps, against maps of single elements that are composed here."""

import copy
import json
import math
import os
import pickle
import random
import tempfile
import unittest

import ferry


def coordinates(offset, shape):
    result = []
    for extent in reversed(shape):
        result.insert(0, offset % extent)
        offset //= extent
    return result


def offset_of(place, shape):
    offset = 0
    for index, extent in zip(place, shape):
        offset = offset * extent + index
    return offset


def elements(boxes, shape, sources):
    """For each element of a tensor (source, offset): every box, element by element."""
    result = [None] * math.prod(shape)
    for source, begin, extents, at in boxes:
        for i in range(math.prod(extents)):
            inside = coordinates(i, extents)
            read = [b + k for b, k in zip(begin, inside)]
            drop = max(0, len(inside) - len(at))
            inside = [0] * (len(at) - len(inside)) + inside[drop:]
            write = offset_of([a + k for a, k in zip(at, inside)], shape)
            assert result[write] is None, "written twice"
            result[write] = source, offset_of(read, sources[source])
    assert None not in result, "a gap"
    return result


def as_elements(a_map):
    sources = {tensor.name: tensor.shape for tensor in a_map.sources}
    return {tensor.name: elements(tensor.boxes, tensor.shape, sources) for tensor in a_map}


class Drawer:
    """Random maps: each target is a grid of boxes of what is there."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def shape(self):
        rng = self.rng
        return [rng.randint(1, 4) for _ in range(rng.randint(0, 3))]

    def tensors(self, stem):
        n = self.rng.randint(1, 5)
        return {f"{stem}.{i}": self.shape() for i in range(n)}

    def cuts(self, extent):
        rng, cuts = self.rng, []
        begin = 0
        while begin < extent:
            length = rng.randint(1, extent - begin)
            cuts.append((begin, length))
            begin += length
        return cuts

    def box(self, at, extents, known):
        """A box of a known tensor; one is made if none is large enough."""
        rng, fitting = self.rng, []
        for name, shape in known.items():
            drop = max(0, len(extents) - len(shape))
            wanted = [1] * (len(shape) - len(extents)) + extents[drop:]
            if all(e == 1 for e in extents[:drop]) and all(w <= s for w, s in zip(wanted, shape)):
                fitting.append((name, shape, wanted))
        if not fitting:
            return None
        name, shape, wanted = rng.choice(fitting)
        begin = [rng.randint(0, s - w) for s, w in zip(shape, wanted)]
        return {"tensor": name, "begin": begin, "shape": wanted, "at": at}

    def grid(self, shape, known):
        boxes = [[]]
        for cuts in [self.cuts(extent) for extent in shape]:
            boxes = [box + [cut] for box in boxes for cut in cuts]
        made = [self.box([b for b, _ in box], [n for _, n in box], known) for box in boxes]
        return None if None in made else made

    def map_of(self, known, stem):
        """(map, shapes of its targets) from tensors that are known."""
        targets, shapes = [], {}
        while len(targets) < 1 + self.rng.randint(0, 4):
            name = f"{stem}.{len(targets)}"
            shape = self.shape()
            source = self.grid(shape, known)
            if self.rng.random() < 0.3 or source is None:
                source, shape = self.rng.choice(list(known.items()))
            targets.append({"name": name, "shape": shape, "dtype": "u8", "source": source})
            shapes[name] = shape
        sources = [{"name": n, "shape": s, "dtype": "u8"} for n, s in known.items()]
        return ferry.Map(sources, targets), shapes


class Chains(unittest.TestCase):
    def test_random_chains_are_what_their_elements_are(self):
        for seed in range(300):
            draw = Drawer(seed)
            known = draw.tensors("m0")
            composed, expected = None, None
            for depth in range(1, draw.rng.randint(2, 7)):
                one, known = draw.map_of(known, f"m{depth}")
                own = as_elements(one)
                if composed is None:
                    composed, expected = one, own
                else:
                    composed = composed >> one if seed % 2 else composed.then(one)
                    expected = {name: [expected[source][offset] for source, offset in its]
                                for name, its in own.items()}
                with self.subTest(seed=seed, depth=depth):
                    self.assertEqual(as_elements(composed), expected)
            again = ferry.Map(composed.to_json())
            self.assertEqual(again, composed)
            self.assertEqual(as_elements(again), expected)

    def test_order_of_composing_makes_no_difference(self):
        for seed in range(60):
            draw = Drawer(1000 + seed)
            a, known = draw.map_of(draw.tensors("a"), "b")
            b, known = draw.map_of(known, "c")
            c, _ = draw.map_of(known, "d")
            left, right = (a >> b) >> c, a >> (b >> c)
            self.assertEqual(left.to_json(), right.to_json())
            self.assertEqual(hash(left), hash(right))

    def test_one_map_said_in_other_boxes_is_equal(self):
        for seed in range(100):
            draw = Drawer(2000 + seed)
            one, _ = draw.map_of(draw.tensors("a"), "b")
            sources = {t.name: t.shape for t in one.sources}
            single = []
            for tensor in one:
                boxes = []
                for offset, (name, start) in enumerate(as_elements(one)[tensor.name]):
                    shape = sources[name]
                    boxes.append({"tensor": name, "begin": coordinates(start, shape),
                                  "shape": [1] * len(shape),
                                  "at": coordinates(offset, tensor.shape)})
                draw.rng.shuffle(boxes)
                single.append({"name": tensor.name, "shape": tensor.shape, "dtype": tensor.dtype,
                               "source": boxes})
            listed = [{"name": t.name, "shape": t.shape, "dtype": t.dtype} for t in one.sources]
            self.assertEqual(ferry.Map(listed, single).to_json(), one.to_json())

    def test_a_spec_with_a_composed_map_has_the_plan_of_its_chain(self):
        sides = {"source": {"mesh": [["tp", 2]], "rules": [{"match": "*"}]},
                 "destination": {"mesh": [["tp", 3]], "rules": [{"match": "m2.*"}]}}
        for seed in range(40):
            draw = Drawer(3000 + seed)
            base = draw.tensors("m0")
            a, known = draw.map_of(base, "m1")
            b, _ = draw.map_of(known, "m2")
            both = a >> b
            wanted = [{"name": t.name, "shape": t.shape, "dtype": t.dtype} for t in both]
            spec = ferry.Spec({"format": "ferry.spec/1", "tensors": wanted, **sides})
            direct = ferry.plan(both.apply(spec))
            in_steps = ferry.plan(a.apply(self.between(a, b, wanted, sides)))
            self.assertEqual([m[1:] for m in direct.moves()], [m[1:] for m in in_steps.moves()])

    def between(self, a, b, wanted, sides):
        """The spec of the second map whose sources are entries, for the first map to feed."""
        spec = {"format": "ferry.spec/1", "tensors": [], **sides}
        for tensor in b:
            spec["tensors"].append({
                "name": tensor.name, "shape": tensor.shape, "dtype": tensor.dtype,
                "source": [dict(zip(("tensor", "begin", "shape", "at"), box))
                           for box in tensor.boxes]})
        used = {box.source for tensor in b for box in tensor.boxes}
        spec["tensors"] += [{"name": t.name, "shape": t.shape, "dtype": t.dtype}
                            for t in a if t.name in used]
        return spec


EXPERTS = {
    "format": "ferry.map/1",
    "sources": [{"name": "l.{0}.e.{1}.w", "count": [4, 8], "shape": [4, 6], "dtype": "bf16"}],
    "targets": [{"name": "layers.{0}.experts", "count": [4], "shape": [8, 4, 6], "dtype": "bf16",
                 "source": [{"tensor": "l.{0}.e.{1}.w", "begin": [0, 0], "shape": [4, 6],
                             "at": [0, 0, 0], "repeat": [{"count": 8, "at": [1, 0, 0]}]}]}],
}


class Objects(unittest.TestCase):
    def test_counts_and_tensors(self):
        stack = ferry.Map(EXPERTS)
        self.assertEqual(repr(stack), "<ferry.Map of 4 targets from 32 sources, 32 boxes>")
        self.assertEqual((stack.n_sources, stack.n_targets, stack.n_boxes), (32, 4, 32))
        self.assertEqual(len(stack), 4)
        self.assertEqual([t.name for t in stack], [f"layers.{i}.experts" for i in range(4)])
        self.assertIn("layers.3.experts", stack)
        self.assertNotIn("layers.4.experts", stack)
        self.assertNotIn(3, stack)
        box = stack["layers.2.experts"].boxes[5]
        self.assertEqual(box, ("l.2.e.5.w", (0, 0), (4, 6), (5, 0, 0)))
        self.assertEqual(stack.sources[9].name, "l.1.e.1.w")
        with self.assertRaises(KeyError):
            stack["w"]
        with self.assertRaises(KeyError):
            stack[0]

    def test_what_is_alike_takes_one_entry(self):
        text = ferry.Map(EXPERTS).to_json()
        self.assertEqual(json.loads(text)["sources"], EXPERTS["sources"])
        self.assertEqual(json.loads(text)["targets"], EXPERTS["targets"])

    def test_files_copies_and_pickles(self):
        stack = ferry.Map(EXPERTS)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "map.json")
            stack.save(path)
            self.assertEqual(ferry.Map.load(path), stack)
            with self.assertRaises(ferry.FileError):
                ferry.Map.load(os.path.join(folder, "none.json"))
        self.assertEqual(pickle.loads(pickle.dumps(stack)), stack)
        self.assertIs(copy.deepcopy(stack), stack)
        self.assertNotEqual(stack, stack.inverse())
        self.assertNotEqual(stack, "a map")

    def test_there_and_back(self):
        stack = ferry.Map(EXPERTS)
        back = stack.inverse()
        self.assertEqual(back["l.3.e.7.w"].boxes, (("layers.3.experts", (7, 0, 0), (1, 4, 6),
                                                    (0, 0)),))
        self.assertEqual(back.inverse(), stack)
        for tensor in stack >> back:
            self.assertEqual([box.source for box in tensor.boxes], [tensor.name])

    def test_mistakes(self):
        stack = ferry.Map(EXPERTS)
        rows = [
            (lambda: ferry.Map([]), "needs its targets"),
            (lambda: ferry.Map("{}", []), "two lists"),
            (lambda: ferry.Map("{"), "the map"),
            (lambda: stack.then("x"), "not by a str"),
            (lambda: stack.then(stack), 'which is no target of the first map'),
            (lambda: ferry.Map([{"name": "a", "shape": [{1}], "dtype": "u8"}], []), "JSON"),
            (lambda: stack.apply({"format": "ferry.spec/1", "tensors": [], "source": {},
                                  "destination": {}}), "mesh"),
        ]
        for call, sentence in rows:
            with self.assertRaisesRegex(ferry.InvalidInput, sentence):
                call()
        with self.assertRaises(TypeError):
            stack >> 5


if __name__ == "__main__":
    unittest.main()
