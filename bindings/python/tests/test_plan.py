# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Specs and plans: moves against shards that are cut here, by the rules of docs/formats.md."""

import gc
import itertools
import json
import math
import os
import random
import struct
import sys
import tempfile
import threading
import unittest
from html.parser import HTMLParser

import ferry

WIDTHS = {"u8": 1, "bf16": 2, "f32": 4, "i64": 8}


# An oracle: which elements of the whole tensor a rank has, element by element.


def chunk(n, parts):
    size = -(-n // parts)
    return [range(min(n, p * size), min(n, (p + 1) * size)) for p in range(parts)]


def cut(n, entry, coordinates, sizes):
    """The indices of a dimension that a rank with these coordinates on the entry's axes has."""
    axes = [entry["axis"]] if isinstance(entry["axis"], str) else entry["axis"]
    parts, part = 1, 0
    for axis in axes:
        parts, part = parts * sizes[axis], part * sizes[axis] + coordinates[axis]
    unit = entry.get("unit", 1)
    if entry.get("nested"):
        own = range(n // unit)
        for axis in axes:
            piece = chunk(len(own), sizes[axis])[coordinates[axis]]
            own = own[piece.start:piece.stop]
        return [i for u in own for i in range(u * unit, (u + 1) * unit)]
    part, parts = part * entry.get("parts", parts) // parts, entry.get("parts", parts)
    if "sizes" in entry:
        begin = sum(entry["sizes"][:part])
        return list(range(begin, begin + entry["sizes"][part]))
    if "cycle" in entry:
        return [i for i in range(n) if i // entry["cycle"] % parts == part]
    if "blocks" in entry:
        own, begin = [], 0
        for size in entry["blocks"]:
            own += [begin * unit + i for u in chunk(size // unit, parts)[part]
                    for i in range(u * unit, (u + 1) * unit)]
            begin += size // unit
        return own
    segments = chunk(n // unit, parts * entry.get("stride", 1))
    return [i for s, segment in enumerate(segments) if s % parts == part
            for u in segment for i in range(u * unit, (u + 1) * unit)]


class Held:
    """A rank's shard: its memory's elements as numbers in the whole tensor, in row-major order."""

    def __init__(self, shape, rule, coordinates, sizes):
        dims = [list(range(n)) for n in shape]
        for entry in rule.get("shard", ()):
            dims[entry["dim"]] = cut(shape[entry["dim"]], entry, coordinates, sizes)
        self.full_shape = tuple(len(own) for own in dims)
        self.elements = [number(index, shape) for index in itertools.product(*dims)]
        self.flat = None
        if "flat" in rule:
            axis = rule["flat"]["axis"]
            piece = chunk(len(self.elements), sizes[axis])[coordinates[axis]]
            self.flat = (piece.start, piece.stop)
            self.elements = self.elements[piece.start:piece.stop]


def number(index, shape):
    at = 0
    for i, n in zip(index, shape):
        at = at * n + i
    return at


def ranks_of(side):
    """(rank, its coordinates) of every rank."""
    names = [name for name, _ in side["mesh"]]
    sizes = dict(map(tuple, side["mesh"]))
    n = math.prod(sizes.values())
    ranks = side.get("ranks") or range(side.get("first_rank", 0), side.get("first_rank", 0) + n)
    places = itertools.product(*(range(sizes[name]) for name in names))
    return [(rank, dict(zip(names, place))) for rank, place in zip(ranks, places)]


def held_by(side, tensor):
    """{rank: Held} of a tensor; each tensor has a rule of its own here."""
    rule = next(r for r in side["rules"] if r["match"] == tensor["name"])
    sizes = dict(map(tuple, side["mesh"]))
    return {
        rank: Held(tensor["shape"], rule, place, sizes) for rank, place in ranks_of(side)
        if not rule.get("skip") and all(place[a] == at for a, at in rule.get("on", {}).items())
    }


def value(name, element, width):
    """Bytes that are another tensor's, or another element's, only by accident."""
    mixed = (sum(name.encode()) * 0x9E3779B1 + element * 0x85EBCA77 + 0x27D4EB2F) % (1 << 61)
    return (mixed * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(8, "little")[8 - width:]


def wanted_values(tensor, by_name):
    """The bytes of every element of a whole tensor."""
    width = WIDTHS[tensor["dtype"]]
    n = math.prod(tensor["shape"])
    if isinstance(tensor.get("source"), str):
        return [value(tensor["source"], e, width) for e in range(n)]
    if "source" not in tensor:
        return [value(tensor["name"], e, width) for e in range(n)]
    values = [None] * n
    for box in tensor["source"]:
        whole = by_name[box["tensor"]]["shape"]
        lengths = [1] * (len(tensor["shape"]) - len(box["shape"])) + box["shape"]
        for index in itertools.product(*map(range, lengths)):
            at = number([a + i for a, i in zip(box["at"], index)], tensor["shape"])
            own = index[len(index) - len(whole):]
            begin = number([b + i for b, i in zip(box["begin"], own)], whole)
            values[at] = value(box["tensor"], begin, width)
    return values


# Random specs.


def random_entry(rng, dim, n, axes, sizes):
    parts = math.prod(sizes[a] for a in axes)
    entry = {"dim": dim, "axis": axes[0] if len(axes) == 1 else axes}
    kind = rng.choice(["plain", "plain", "stride", "cycle", "blocks", "sizes", "parts", "nested"])
    if kind == "stride" or kind == "cycle":
        entry[kind] = rng.randint(1, 3)
    elif kind == "blocks":
        at = sorted(rng.randint(0, n) for _ in range(rng.randint(0, 2)))
        entry["blocks"] = [b - a for a, b in zip([0] + at, at + [n])]
    elif kind == "sizes":
        at = sorted(rng.randint(0, n) for _ in range(parts - 1))
        entry["sizes"] = [b - a for a, b in zip([0] + at, at + [n])]
    elif kind == "parts":
        entry["parts"] = rng.choice([k for k in range(1, parts + 1) if parts % k == 0])
    elif kind == "nested":
        entry["nested"] = True
    lengths = entry.get("blocks", [n])
    if kind not in ("cycle", "sizes") and all(m % 2 == 0 for m in lengths) and rng.random() < 0.4:
        entry["unit"] = 2
    return entry


def random_rule(rng, tensor, mesh):
    sizes, free = dict(mesh), [name for name, _ in mesh]
    rng.shuffle(free)
    rule = {"match": tensor["name"], "shard": []}
    for dim in rng.sample(range(len(tensor["shape"])), len(tensor["shape"])):
        if free and rng.random() < 0.7:
            axes = [free.pop() for _ in range(rng.randint(1, min(2, len(free))))]
            rule["shard"].append(random_entry(rng, dim, tensor["shape"][dim], axes, sizes))
    if free and tensor["shape"] and rng.random() < 0.3:
        rule["flat"] = {"axis": free.pop()}
    if free and rng.random() < 0.2:
        axis = free.pop()
        rule["on"] = {axis: rng.randrange(sizes[axis])}
    return rule


def random_side(rng, tensors):
    mesh = [(name, rng.randint(1, 3)) for name in ("a", "b", "c")[:rng.randint(0, 3)]]
    n = math.prod(size for _, size in mesh)
    return {
        "mesh": [list(axis) for axis in mesh], "ranks": rng.sample(range(n + 3), n),
        "rules": [random_rule(rng, tensor, mesh) for tensor in tensors],
    }


def random_spec(rng):
    tensors = []
    for t in range(rng.randint(1, 3)):
        shape = [rng.choice([0, 1, 2, 3, 4, 5, 6, 8, 9]) for _ in range(rng.randint(0, 3))]
        tensors.append({"name": "t%d" % t, "shape": shape, "dtype": rng.choice(list(WIDTHS))})
    first = tensors[0]
    fed = []
    if rng.random() < 0.3:
        fed.append(dict(first, name="tied", source="t0"))
    if first["shape"] and rng.random() < 0.4:  # twice, one behind the other
        n, rest = first["shape"][0], [0] * (len(first["shape"]) - 1)
        fed.append({"name": "fused", "shape": [2 * n] + first["shape"][1:], "dtype": first["dtype"],
                    "source": [{"tensor": "t0", "begin": [0] + rest, "shape": first["shape"],
                                "at": [k * n] + rest} for k in range(2)]})
    if rng.random() < 0.4:
        zero = [0] * len(first["shape"])
        fed.append({"name": "stack", "shape": [2] + first["shape"], "dtype": first["dtype"],
                    "source": [{"tensor": "t0", "begin": zero, "shape": first["shape"],
                                "at": [k] + zero} for k in range(2)]})
    fed = [t for t in fed if math.prod(t["shape"]) > 0]  # boxes need elements
    return {"format": "ferry.spec/1", "tensors": tensors + fed,
            "source": random_side(rng, tensors), "destination": random_side(rng, tensors + fed)}


def two(dim=0, to=4, **more):
    """One tensor of 8 x 4 from two ranks by rows to several."""
    side = {"rules": [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]}
    other = {"rules": [{"match": "*", "shard": [{"dim": dim, "axis": "tp"}]}]}
    return {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [8, 4], "dtype": "bf16"}],
            "source": dict(side, mesh=[["tp", 2]]), "destination": dict(other, mesh=[["tp", to]]),
            **more}


def many(tensors, ranks, **more):
    """tensors x ranks moves, each from a rank to itself."""
    side = {"mesh": [["tp", ranks]],
            "rules": [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]}
    return {"format": "ferry.spec/1", "source": side, "destination": dict(side, **more),
            "tensors": [{"name": "w{0}", "count": [tensors], "shape": [ranks], "dtype": "u8"}]}


class MovesTest(unittest.TestCase):
    def check(self, spec):
        plan = ferry.plan(spec)
        by_name = {t["name"]: t for t in spec["tensors"]}
        sources = {t["name"]: held_by(spec["source"], t)
                   for t in spec["tensors"] if "source" not in t}
        wanted = {t["name"]: held_by(spec["destination"], t) for t in spec["tensors"]}
        memory = {}  # of (tensor, rank): bytes, and how often each element was written
        for t in spec["tensors"]:
            for rank, held in wanted[t["name"]].items():
                n = len(held.elements)
                memory[t["name"], rank] = bytearray(n * WIDTHS[t["dtype"]]), [0] * n
        moves = list(plan.moves())
        for move in moves:
            tensor = by_name[move.tensor]
            feed = move.source or move.tensor
            self.assertEqual(move.source is not None, "source" in tensor)
            self.apply(move, WIDTHS[tensor["dtype"]], feed, sources[feed][move.from_rank],
                       wanted[move.tensor][move.to_rank], memory[move.tensor, move.to_rank])
        for (name, rank), (data, writes) in memory.items():
            values = wanted_values(by_name[name], by_name)
            expected = b"".join(values[e] for e in wanted[name][rank].elements)
            self.assertEqual(writes, [1] * len(writes), (name, rank))
            self.assertEqual(bytes(data), expected, (name, rank))
        self.check_numbers(plan, moves)
        self.check_shards(plan, spec, wanted)

    def apply(self, move, width, feed, source, target, memory):
        self.assertEqual(move.bytes, math.prod(move.length) * width)
        boxes = zip(itertools.product(*map(range, move.length)),
                    itertools.product(*map(range, move.src_length)))
        data, writes = memory
        for index, src_index in boxes:
            at = number([b + i for b, i in zip(move.dst_begin, index)], target.full_shape)
            of = number([b + i for b, i in zip(move.src_begin, src_index)], source.full_shape)
            at -= target.flat[0] if target.flat else 0
            of -= source.flat[0] if source.flat else 0
            self.assertGreaterEqual(min(at, of), 0)
            data[at * width:(at + 1) * width] = value(feed, source.elements[of], width)
            writes[at] += 1

    def check_numbers(self, plan, moves):
        self.assertEqual([m.task_id for m in moves], list(range(len(moves))))
        self.assertEqual(plan.n_moves, len(moves))
        travel = [m for m in moves if m.from_rank != m.to_rank]
        self.assertEqual(plan.moved_bytes, sum(m.bytes for m in travel))
        self.assertEqual(plan.local_bytes, sum(m.bytes for m in moves) - plan.moved_bytes)
        traffic = {}
        for m in moves:
            pair = m.from_rank, m.to_rank
            traffic[pair] = traffic.get(pair, 0) + m.bytes
        self.assertEqual(plan.traffic(), traffic)
        for rank in range(plan.world_size):
            own = [m for m in moves if rank in (m.from_rank, m.to_rank)]
            self.assertEqual(list(plan.moves(rank)), own)
            self.assertEqual(plan.traffic(rank),
                             {pair: n for pair, n in traffic.items() if rank in pair})
            self.assertEqual(plan.rank_bytes(rank), (
                sum(m.bytes for m in travel if m.to_rank == rank),
                sum(m.bytes for m in travel if m.from_rank == rank),
                traffic.get((rank, rank), 0), sum(m.to_rank == rank for m in own)))

    def check_shards(self, plan, spec, wanted):
        for rank in range(plan.world_size):
            shards = plan.shards("destination", rank)
            self.assertEqual(list(shards), [t["name"] for t in spec["tensors"]
                                            if rank in wanted[t["name"]]])
            for name, shard in shards.items():
                held = wanted[name][rank]
                tensor = next(t for t in spec["tensors"] if t["name"] == name)
                self.assertEqual(shard.dtype, tensor["dtype"])
                self.assertEqual(shard.global_shape, tuple(tensor["shape"]))
                self.assertEqual(shard.full_shape, held.full_shape)
                self.assertEqual(shard.flat, held.flat)
                n = len(held.elements)
                self.assertEqual(shard.shape, held.full_shape if held.flat is None else (n,))
                self.assertEqual(shard.bytes, n * WIDTHS[tensor["dtype"]])

    def test_random(self):
        seed = int(os.environ.get("FERRY_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
        rng = random.Random(seed)
        planned = 0
        for i in range(150):
            spec = random_spec(rng)
            with self.subTest(seed=seed, number=i, spec=json.dumps(spec)):
                if all(math.prod(t["shape"]) == 0 for t in spec["tensors"]):
                    self.assertRaises(ferry.InvalidPlan, ferry.plan, spec)
                else:
                    self.check(spec)
                    planned += 1
        self.assertGreater(planned, 75)

    def test_slices(self):
        plan = ferry.plan(two(dim=1))
        move = list(plan.moves())[-1]
        self.assertEqual(move.dst_slice, (slice(4, 8), slice(0, 1)))
        self.assertEqual(move.src_slice, (slice(0, 4), slice(3, 4)))
        self.assertEqual((move.from_rank, move.to_rank, move.bytes), (1, 3, 8))

    def test_json_is_the_same(self):
        plan = ferry.plan(two(dim=1))
        moves = [(m.task_id, m.tensor, m.from_rank, m.to_rank,
                  [[b, n] for b, n in zip(m.src_begin, m.src_length)],
                  [[b, n] for b, n in zip(m.dst_begin, m.length)], m.bytes) for m in plan.moves()]
        document = plan.json()
        self.assertEqual([tuple(m[key] for key in ("task_id", "tensor", "from", "to", "src", "dst",
                                                   "bytes")) for m in document["moves"]], moves)
        self.assertEqual(document["digest"], plan.digest)
        self.assertEqual({m["to"] for m in plan.json(rank=3)["moves"]}, {3})
        self.assertNotIn("moves", plan.json(summary=True))
        self.assertEqual(json.loads(plan.to_json()), document)

    def test_block_work(self):
        """Of two tensors that are cut between four ranks by rows of four, blocks have two and six."""
        scaled = {"format": "f8e4m3", "scale": "*.s"}
        rows = [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]
        plan = ferry.plan({
            "format": "ferry.spec/1",
            "tensors": [{"name": name, "shape": [16, 4], "dtype": "f32"} for name in "ab"],
            "source": {"mesh": [["tp", 4]], "rules": rows},
            "destination": {"mesh": [], "rules": [
                {"match": "a", "quantize": {**scaled, "block": [2, 4]}},
                {"match": "b", "quantize": {**scaled, "block": [6, 4]}}]}})
        work = plan.block_work()
        self.assertEqual([w[:4] for w in work], [("a", "codes", "sender", r) for r in range(4)] +
                         [("b", "codes", "receiver", 0)])
        self.assertTrue(all(w.staging_bytes > 0 for w in work))
        blocks = plan.json(summary=True)["blocks"]
        self.assertEqual([(b["tensor"], b["part"], b["at"], b["ranks"]) for b in blocks],
                         [("a", "codes", "sender", 4), ("b", "codes", "receiver", 1)])
        self.assertEqual(ferry.plan(two()).block_work(), [])

    def test_what_nothing_follows(self):
        """Of each kind one: patterns that fit nothing, that others hide, and coordinates of a stage."""
        rules = [{"match": "*"}]
        spec = ferry.Spec({
            "format": "ferry.spec/1",
            "tensors": [{"name": "l.{0}.w", "count": [3], "shape": [4], "dtype": "u8"}],
            "source": {"mesh": [["pp", 5]], "rules": rules,
                       "stages": [{"match": "l.{}.w", "count": 3, "axis": "pp"}]},
            "destination": {"mesh": [], "first_rank": 7, "rules": [
                {"match": "none"}, {"match": "l.*"}, {"match": "l.1.w"}, *rules]},
            "cluster": {"ranks_per_node": 2, "rank_gbytes_per_s": 1, "node_gbytes_per_s": 2,
                        "nodes": {"9": {"rank_gbytes_per_s": 2}}}})
        found = spec.unused()
        self.assertEqual(found[0][:6], ("source", "stage", 0, "l.{}.w", False, "pp"))
        self.assertEqual([list(one.coordinates) for one in found[:2]], [[2], [4]])
        self.assertEqual([tuple(one[:6]) for one in found[2:]], [
            ("destination", "rule", 0, "none", False, None),
            ("destination", "rule", 2, "l.1.w", True, None),
            ("cluster", "node", 9, None, False, None)])
        self.assertEqual([list(one.coordinates) for one in found[2:]], [[], [], []])
        self.assertEqual(ferry.plan(spec).idle_ranks(), [2, 4, 5, 6])
        self.assertEqual((ferry.Spec(two()).unused(), ferry.plan(two()).idle_ranks()), ([], []))

    def test_many_blocks(self):
        """More than one block of moves, of all and of one rank."""
        plan = ferry.plan(many(1000, 80))
        for i, move in enumerate(plan.moves()):
            if (move.task_id, move.tensor, move.to_rank) != (i, "w%d" % (i % 1000), i // 1000):
                self.fail("%s at place %d" % (move, i))
        self.assertEqual(i, 79999)
        self.assertEqual([m.task_id for m in plan.moves(79)], list(range(79000, 80000)))

    def test_very_many_moves(self):
        """So many that they are visited rank by rank; only the first are asked for."""
        plan = ferry.plan(many(4096, 2048, first_rank=5))
        self.assertEqual(plan.n_moves, 1 << 23)
        first = 5 * 4096 // 4096  # ranks 0 to 4 receive nothing
        for i, move in enumerate(itertools.islice(plan.moves(), 50000)):
            place = i, "w%d" % (i % 4096), i // 4096 + first, i // 4096
            if (move.task_id, move.tensor, move.to_rank, move.from_rank) != place:
                self.fail("%s at place %d" % (move, i))
        self.assertEqual(i, 49999)

    def test_end(self):
        moves = ferry.plan(two()).moves()
        self.assertEqual(len(list(moves)), 4)
        self.assertRaises(StopIteration, next, moves)

    def test_moves_keep_their_plan(self):
        moves = ferry.plan(many(1000, 4)).moves()
        self.assertEqual(sum(1 for _ in moves), 4000)

    def test_nothing_leaks(self):
        spec = many(100, 4)
        spec["tensors"].append({"name": "tied", "shape": [4], "dtype": "u8", "source": "w0"})
        plan = ferry.plan(spec)

        def use():
            for rank in (None, *range(4)) * 4:
                for _ in plan.moves(rank):
                    pass
            list(itertools.islice(plan.moves(2), 3))
            plan.traffic(), plan.shards("source", 1), plan.json(), plan._repr_html_()

        use()
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(10):
            use()
        gc.collect()
        self.assertLess(sys.getallocatedblocks() - before, 80)  # one a round: 200


class SpecTest(unittest.TestCase):
    def test_ways_to_give_one(self):
        spec = two()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "spec.json")
            with open(path, "w") as file:
                json.dump(spec, file)
            import pathlib

            specs = [spec, json.dumps(spec), "\n " + json.dumps(spec), path, pathlib.Path(path),
                     ferry.Spec(spec), ferry.Spec(json.dumps(spec)), ferry.Spec(path=path),
                     ferry.Spec(pathlib.Path(path)), ferry.Spec.load(path)]
            digests = {ferry.plan(one).digest for one in specs}
        self.assertEqual(len(digests), 1)
        self.assertEqual(repr(ferry.Spec(spec)), "<ferry.Spec of 1 tensor>")
        self.assertEqual(ferry.Spec(many(70, 2)).n_tensors, 70)

    def test_what_json_has_no_word_for(self):
        class Number:
            def __index__(self):
                return 8

        class Dtype:
            def __str__(self):
                return "torch.bfloat16"

        class Shape(tuple):
            pass

        spec = two()
        digest = ferry.plan(spec).digest
        spec["tensors"] = [{"name": "w", "shape": Shape((Number(), 4)), "dtype": Dtype()}]
        self.assertEqual(ferry.plan(spec).digest, digest)
        spec["cluster"] = {"ranks_per_node": 1, "rank_gbytes_per_s": 1, "node_gbytes_per_s": 1,
                           "nodes": {1: {"rank_gbytes_per_s": 0.5}}}
        ferry.plan(spec)
        spec["tensors"][0]["dtype"] = object()
        self.assertRaises(ferry.Unsupported, ferry.plan, spec)

    def test_wrong(self):
        endless = {}
        endless["source"] = endless
        for bad in ({}, "{", "", "[]", endless, {"format": float("nan")}, 5, b"{}", None, []):
            with self.subTest(bad=repr(bad)[:40]):
                self.assertRaises(ferry.InvalidInput, ferry.Spec, bad)
        self.assertRaises(ferry.InvalidInput, ferry.Spec, two(), path="x")
        self.assertRaises(ferry.FileError, ferry.plan, "no such file.json")
        self.assertRaises(ferry.FileError, ferry.Spec.load, "no such file.json")

    def test_sentences_name_the_place(self):
        spec = two()
        spec["source"]["rules"][0]["shard"][0]["dim"] = -1
        with self.assertRaisesRegex(ferry.InvalidInput,
                                    r"^the spec: source\.rules\[0\]\.shard\[0\]\.dim"):
            ferry.Spec(spec)

    def test_model(self):
        """Tensors of a model stand in its place, as they do in a file's."""
        entries = [("b", "F32", [2, 3], 24), ("a", "BF16", [3], 6), ("z", "I64", [], 8),
                   ("odd", "F6_E2M3", [4], 3), ("new", "X24", [5, 2], 30), ("none", "X9", [0], 0)]
        header, at = {}, 0
        for name, dtype, shape, n in entries:
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
            at += n
        text = json.dumps(header).encode()
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "model.safetensors")
            with open(model, "wb") as file:
                file.write(struct.pack("<Q", len(text)) + text + bytes(at))
            side = {"mesh": [], "rules": [{"match": "*"}]}
            spec = {"format": "ferry.spec/1", "model": model, "source": side,
                    "destination": dict(side, first_rank=1)}
            path = os.path.join(folder, "spec.json")
            with open(path, "w") as file:
                json.dump(dict(spec, model="model.safetensors"), file)
            plan, loaded = ferry.plan(spec), ferry.plan(path)
        self.assertEqual([m.tensor for m in plan.moves()], ["b", "a", "z", "odd", "new"])
        self.assertEqual(plan, loaded)
        self.assertRaises(ferry.InvalidInput, ferry.Spec, dict(spec, tensors=[]))


class PlanTest(unittest.TestCase):
    def test_save_and_load(self):
        plan = ferry.plan(two(dim=1), subset="w", replica="seed")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan")
            plan.save(path)
            again = ferry.Plan.load(path)
            self.assertEqual(again, plan)
            self.assertEqual(hash(again), hash(plan))
            self.assertEqual(list(again.moves()), list(plan.moves()))
            with open(path) as file:
                text = file.read()
            with open(path, "w") as file:
                file.write(text.replace(plan.digest, "0" * 32))
            self.assertRaises(ferry.DigestMismatch, ferry.Plan.load, path)
            self.assertRaises(ferry.FileError, plan.save, os.path.join(folder, "no", "plan"))
        self.assertNotEqual(plan, ferry.plan(two(dim=1)))
        self.assertNotEqual(plan, plan.digest)

    def test_options(self):
        spec = two()
        spec["tensors"].append(dict(spec["tensors"][0], name="x.y"))
        self.assertEqual({m.tensor for m in ferry.plan(spec, subset="x.*").moves()}, {"x.y"})
        self.assertRaises(ferry.InvalidInput, ferry.plan, spec, replica="best")
        for bad in ([-1], ["0"], [1 << 40], [None]):
            self.assertRaises(ferry.InvalidInput, ferry.plan, spec, lost_ranks=bad)

    def test_replicas(self):
        """Two ranks have everything and two others want it: they share, or one sends all."""
        side = {"mesh": [["dp", 2]], "rules": [{"match": "*"}]}
        spec = dict(two(), source=side, destination=dict(side, first_rank=2))
        sent = [ferry.plan(spec).rank_bytes(rank).sent for rank in (0, 1)]
        self.assertEqual(sent, [64, 64])
        self.assertNotEqual(ferry.plan(spec), ferry.plan(spec, replica="seed"))
        lost = ferry.plan(spec, lost_ranks=(0,))
        self.assertEqual({m.from_rank for m in lost.moves()}, {1})

    def test_what_only_lost_ranks_held(self):
        with self.assertRaises(ferry.InvalidPlan) as raised:
            ferry.plan(two(), lost_ranks=range(1, 2))
        self.assertEqual(raised.exception.tensor, "w")
        self.assertEqual(raised.exception.slice, "4:6, 0:4")
        self.assertIn(2, raised.exception.ranks)
        self.assertRegex(str(raised.exception), "only lost ranks held: 1;")

    def test_bound(self):
        spec = two(cluster={"ranks_per_node": 8, "rank_gbytes_per_s": 1, "node_gbytes_per_s": 9})
        bound = ferry.plan(spec).bound
        self.assertEqual((bound.rank, bound.reason, bound.busiest_bytes), (1, "egress", 32))
        self.assertAlmostEqual(bound.seconds, 32e-9)
        self.assertIsNone(ferry.plan(two()).bound.seconds)
        self.assertEqual(ferry.plan(two(to=2)).bound.reason, "none")
        self.assertEqual(ferry.plan(two()).statistics.n_tensors, 1)

    def test_wrong_ranks(self):
        plan = ferry.plan(two())
        for call in (plan.moves, plan.traffic, plan.rank_bytes, plan.to_json,
                     lambda rank: plan.shards("source", rank)):
            for bad in (4, -1, 1 << 32, (1 << 32) - 1, 1 << 70, "1", 0.0):
                with self.assertRaises(ferry.InvalidInput):
                    call(bad)
        self.assertRaises(ferry.InvalidInput, plan.rank_bytes, None)
        self.assertRaises(ferry.InvalidInput, plan.shards, "left", 0)
        self.assertRaises(ferry.InvalidInput, ferry.Plan, None)

    def test_handles_are_made_by_functions(self):
        from ferry import _ferry

        self.assertRaisesRegex(TypeError, "ferry.plan makes", _ferry.Plan)
        self.assertRaisesRegex(TypeError, "ferry.Spec makes", _ferry.Spec)
        self.assertRaises(TypeError, _ferry.plan_create, None)
        moves = _ferry.plan_create(ferry.Spec(two())._handle).moves(None)
        self.assertRaises(TypeError, type(moves))

    def test_source_shards(self):
        shards = ferry.plan(two()).shards("source", 1)
        self.assertEqual(shards["w"].shape, (4, 4))
        self.assertEqual(ferry.plan(two()).shards("source", 3), {})

    def test_threads(self):
        plan = ferry.plan(many(500, 32))
        expected = list(plan.moves())
        found = []

        def read():
            found.append((list(plan.moves()), plan.traffic(), plan.digest))

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(found), 4)
        for moves, traffic, _ in found:
            self.assertEqual(moves, expected)
            self.assertEqual(len(traffic), 32)

    def test_fork(self):
        plan = ferry.plan(two())
        child = os.fork()
        if child == 0:
            os._exit(0 if len(list(plan.moves())) == 4 else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)


class Tags(HTMLParser):
    """The attributes of tags, the texts inside them, and whether all are closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "!doctype"):
            self.open.append(tag)
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))


def report_of(page):
    """The data of a report, and the tags around it."""
    tags = Tags(page)
    assert tags.open == [], tags.open
    index = page.index('<script id="report" type="application/json">')
    begin = page.index(">", index) + 1
    return json.loads(page[begin:page.index("</script>", begin)]), tags


class HtmlTest(unittest.TestCase):
    def test_small(self):
        plan = ferry.plan(two(dim=1))
        report, tags = report_of(plan.to_html("a <b> & 'title'"))
        self.assertEqual(report["title"], "a <b> & 'title'")
        self.assertEqual((report["plan"]["digest"], report["plan"]["moved"]),
                         (plan.digest, plan.moved_bytes))
        self.assertNotIn("schedule", report["plan"])
        for tag, attributes in tags.tags:
            self.assertFalse({"src", "href"} & set(attributes), tag)
        scheduled, _ = report_of(plan.to_html(schedule=True))
        self.assertEqual(scheduled["plan"]["schedule"]["bytes"], plan.moved_bytes)
        self.assertEqual(scheduled["title"], "ferry plan")

    def test_notebook(self):
        plan = ferry.plan(two(dim=1))
        tags = Tags(plan._repr_html_())
        self.assertEqual((tags.open, [tag for tag, _ in tags.tags]), ([], ["div", "p", "iframe"]))
        self.assertIn(plan.digest, dict(tags.texts)["p"])
        frame = tags.tags[2][1]
        self.assertEqual(frame["srcdoc"], plan.to_html())
        self.assertEqual(frame["sandbox"], "allow-scripts")

    def test_names_are_no_markup(self):
        names = ["</script><b>", "a'b\"c&amp;", "\u00e4\u4e2d\U0001f600", "<!--", "]]>"]
        spec = two(dim=1)
        spec["tensors"] = [{"name": name, "shape": [8, 8], "dtype": "u8"} for name in names]
        plan = ferry.plan(spec)
        report, _ = report_of(plan.to_html())
        found, last = [], b""
        for head, middle, tail, *_ in report["plan"]["names"]:
            last = last[:head] + middle.encode() + (last[len(last) - tail:] if tail else b"")
            found.append(last.decode())
        self.assertEqual(found, names)
        self.assertEqual(Tags(plan._repr_html_()).tags[2][1]["srcdoc"], plan.to_html())

    def test_wrong_arguments(self):
        plan = ferry.plan(two())
        for wrong in ({"title": 3}, {"title": "a\0b"}, {"nothing": 1}):
            with self.assertRaises((TypeError, ValueError)):
                plan.to_html(**wrong)

    def test_repr(self):
        plan = ferry.plan(two())
        self.assertEqual(repr(plan), "<ferry.Plan %s: 4 ranks, 4 moves, 48 bytes between ranks, "
                                     "16 stay>" % plan.digest[:8])


if __name__ == "__main__":
    unittest.main()
