# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Sides in boxes: what they say, what is refused, and refits of parameters by name."""

import array
import copy
import json
import pickle
import threading
import unittest

import ferry
from ferry import _ferry
from support import run_ranks

# A model of attention with fewer heads of keys than of queries, cut over 2 ranks, and a matrix that
# the server has transposed and padded.
HEADS, GROUPS, DEPTH, HIDDEN, WIDE = 8, 4, 2, 6, 10
SHAPES = {"q": [HEADS * DEPTH, HIDDEN], "k": [GROUPS * DEPTH, HIDDEN],
          "v": [GROUPS * DEPTH, HIDDEN], "up": [WIDE, HIDDEN]}
BASE = {name: 1000 * (at + 1) for at, name in enumerate(SHAPES)}
PAD = -7


def tensors(dtype="i32"):
    return [{"name": name, "shape": shape, "dtype": dtype} for name, shape in SHAPES.items()]


def element(name, row, column, version=0):
    return BASE[name] + row * HIDDEN + column + 100000 * version


def trained(rank, version=0):
    """The rows that a rank of two has of each tensor."""
    return {name: array.array("i", [element(name, row, column, version)
                                    for row in range(rank * n // 2, (rank + 1) * n // 2)
                                    for column in range(HIDDEN)])
            for name, (n, _) in SHAPES.items()}


def as_rows(arrays):
    """Those of trained() in the shapes of shards."""
    return {name: memoryview(one).cast("B").cast("i", [len(one) // HIDDEN, HIDDEN])
            for name, one in arrays.items()}


def served(ranks, dtype=None):
    """One parameter that has, head by head of the keys, its queries, keys and values; and one whose
    columns are the rows of "up", each a pitch of 2 elements longer."""
    side = ferry.Side()
    n = len(ranks)
    own, each = GROUPS // n, HEADS // GROUPS  # groups of a rank, queries of a group
    group = (each + 2) * DEPTH * HIDDEN
    for at, rank in enumerate(ranks):
        side.add_parameter("qkv", rank, own * group, dtype=dtype)
        for name, heads, place in (("q", each, 0), ("k", 1, each), ("v", 1, each + 1)):
            side.add_box(name, [at * own * heads * DEPTH, 0], [heads * DEPTH, HIDDEN],
                         offset=place * DEPTH * HIDDEN,
                         repeat=[(own, [heads * DEPTH, 0], group)])
    number = side.add_parameter("up.T", ranks, HIDDEN * (WIDE + 2), dtype=dtype)
    side.add_box("up", [0, 0], [WIDE, HIDDEN], strides=[1, WIDE + 2], parameter=number)
    side.add_fill(WIDE, [HIDDEN, 2], [WIDE + 2, 1], bits=PAD.to_bytes(4, "little", signed=True))
    return side


def wanted(at, n, version=0):
    """What lies in the parameters of server ``at`` of ``n``, element by element."""
    own, each, qkv = GROUPS // n, HEADS // GROUPS, []
    for group in range(at * own, (at + 1) * own):
        for name, heads in (("q", each), ("k", 1), ("v", 1)):
            for row in range(group * heads * DEPTH, (group + 1) * heads * DEPTH):
                qkv += [element(name, row, column, version) for column in range(HIDDEN)]
    turned = []
    for column in range(HIDDEN):
        turned += [element("up", row, column, version) for row in range(WIDE)] + [PAD, PAD]
    return {"qkv": qkv, "up.T": turned}


def empty(n):
    return {name: array.array("i", [0] * len(values)) for name, values in wanted(0, n).items()}


def a_spec(destination, source=None):
    rows = {"mesh": [["tp", 2]], "rules": [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]}
    return {"format": "ferry.spec/1", "tensors": tensors(), "destination": destination,
            "source": rows if source is None else source}


def there_and_back(world):
    """Ranks 0 and 1 train, 2 and 3 serve: into fused parameters and out of them again. What is
    wrong, in words."""
    rank, wrong = world.rank, []
    trains = rank < 2
    old = trained(rank) if trains else None
    new = None if trains else empty(2)
    fused = served([2, 3])
    rows = as_rows(old) if trains else None
    with ferry.Refit(rows, new, a_spec(fused), world=world, checksum="end") as refit:
        for version in (1, 2):
            if trains:
                for name, values in trained(rank, version).items():
                    old[name][:] = values
            if refit.run().version != version:
                wrong.append("version")
            if not trains and {name: list(v) for name, v in new.items()} != wanted(rank - 2, 2,
                                                                                     version):
                wrong.append("version %d: %r" % (version, new))
    back = {name: array.array("i", [0] * len(v)) for name, v in trained(0).items()}
    # A source may not be filled: its padding is left out, and nobody asks for it.
    unfilled = fused.to_dict()
    for entry in unfilled["boxes"]:
        entry.pop("fill", None)
    spec = a_spec(a_spec(None)["source"], ferry.Side.from_json(unfilled))
    ferry.refit(new, as_rows(back) if trains else None, spec, world=world)
    if trains and back != trained(rank, 2):
        wrong.append("back: %r" % back)
    return wrong


def of_processes(rank, size):
    wrong = there_and_back(ferry.init())
    ferry.shutdown()
    return wrong


def on_threads(function, n):
    """What function(world) returned, or raised, on each of n threads, which are ranks."""
    found = [None] * n
    worlds = _ferry.world_of_threads(n)

    def work(rank):
        try:
            found[rank] = function(worlds[rank])
        except BaseException as error:
            found[rank] = error
        worlds[rank].close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(n)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return found


class Refits(unittest.TestCase):
    def test_processes(self):
        self.assertEqual(run_ranks(of_processes, 4), [[]] * 4)

    def test_threads(self):
        self.assertEqual(on_threads(there_and_back, 4), [[]] * 4)

    def test_both_sides_in_boxes_on_the_same_ranks(self):
        """Each rank has half of the groups, then a fourth of four ranks has a group."""
        def work(world):
            rank = world.rank
            source = served([0, 1]).to_dict()
            for entry in source["boxes"]:
                entry.pop("fill", None)
            old = {name: array.array("i", v) for name, v in wanted(rank, 2).items()}
            new = empty(4)
            result = ferry.refit(old if rank < 2 else None, new,
                                 a_spec(served(range(4)), ferry.Side.from_json(source)),
                                 world=world)
            self.assertGreater(result.bytes_local, 0)
            return {name: list(v) for name, v in new.items()} == wanted(rank, 4)

        self.assertEqual(on_threads(work, 4), [True] * 4)

    def test_what_is_partial_stays(self):
        side = ferry.Side()
        side.add_parameter("p", 0, 6, partial=True)
        side.add_box("w", [1], [2], offset=1, strides=[3])
        spec = {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [4], "dtype": "u8"}],
                "source": {"mesh": [], "rules": [{"match": "*"}]}, "destination": side}
        new = bytearray(b"......")
        ferry.refit({"w": b"abcd"}, {"p": new}, spec)
        self.assertEqual(new, b".b..c.")
        self.assertEqual(ferry.plan(spec).shards("destination", 0)["p"].shape, (6,))

    def test_fills_of_any_length(self):
        """Longer than the pattern that fills are copied from, and a prime number of elements."""
        for dtype, size in (("u8", 1), ("f32", 4)):
            for n in (5003, 4096, 10007, 1021):
                rows, pitch = 3, n + 2
                side = ferry.Side()
                side.add_parameter("p", 0, rows * pitch, dtype=dtype)
                side.add_box("w", [0, 0], [rows, 2], offset=n, strides=[pitch, 1])
                side.add_fill(0, [rows, n], [pitch, 1], bits=bytes(range(1, size + 1)))
                spec = {"format": "ferry.spec/1", "destination": side,
                        "source": {"mesh": [], "rules": [{"match": "*"}]},
                        "tensors": [{"name": "w", "shape": [rows, 2], "dtype": dtype}]}
                new = bytearray(rows * pitch * size)
                row = bytes(range(1, size + 1)) * n + b"\xff" * (2 * size)
                with self.subTest(dtype=dtype, n=n):
                    ferry.refit({"w": b"\xff" * (2 * rows * size)}, {"p": new}, spec)
                    self.assertEqual(new, row * rows)

    def test_shapes_are_for_files(self):
        side = ferry.Side()
        side.add_parameter("p", 0, 6, shape=(2, 3), dtype="u8")
        side.add_box("w", [0], [6])
        self.assertEqual(side.to_dict()["boxes"][0]["shape"], [2, 3])
        self.assertEqual(ferry.Side.from_json(side.to_json()), side)
        spec = {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [6], "dtype": "u8"}],
                "source": {"mesh": [], "rules": [{"match": "*"}]}, "destination": side}
        flat = ferry.Side()
        flat.add_parameter("p", 0, 6, dtype="u8")
        flat.add_box("w", [0], [6])
        self.assertEqual(ferry.plan(spec).digest, ferry.plan({**spec, "destination": flat}).digest)
        side.add_parameter("q", 0, 6, shape=[4], dtype="u8")
        with self.assertRaisesRegex(ferry.InvalidInput, "shape"):
            ferry.plan(spec)

    def test_what_a_rank_gives(self):
        """A parameter of another length or dtype, none, or with strides of its own: on all ranks."""
        good = empty(2)
        rows = [
            (dict(good, qkv=good["qkv"][:-1]), 'parameter "qkv" on rank 2 has the shape \\[95\\]: '
             "the plan expects \\[96\\] of i32 here \\(384 bytes\\)"),
            (dict(good, qkv=bytearray(383)), "has the shape"),
            (dict(good, qkv=array.array("f", [0.0] * 96)), "is of f32"),
            ({"up.T": good["up.T"]}, 'destination parameter "qkv" on rank 2 is missing'),
            (dict(good, qkv=memoryview(array.array("i", [0] * 192))[::2]),
             'parameter "qkv" on rank 2 is not contiguous'),
        ]
        for given, sentence in rows:
            def work(world):
                trains = world.rank < 2
                new = given if world.rank == 2 else None if trains else empty(2)
                old = as_rows(trained(world.rank)) if trains else None
                ferry.Refit(old, new, a_spec(served([2, 3])), world=world)

            with self.subTest(sentence=sentence):
                for rank, error in enumerate(on_threads(work, 4)):
                    self.assertIsInstance(error, ferry.InvalidInput)
                    self.assertRegex(str(error), sentence)
                    self.assertEqual((error.tensor, error.ranks), ("qkv", (2,)))

    def test_any_shape_of_a_parameter_is_its_memory(self):
        side = ferry.Side()
        side.add_parameter("t", 0, 6)
        side.add_box("w", [0, 0], [2, 3], strides=[1, 2])
        spec = {"format": "ferry.spec/1", "destination": side,
                "tensors": [{"name": "w", "shape": [2, 3], "dtype": "i32"}],
                "source": {"mesh": [], "rules": [{"match": "*"}]}}
        turned = array.array("i", [0] * 6)
        view = memoryview(turned).cast("B").cast("i", [3, 2])
        old = memoryview(array.array("i", range(6))).cast("B").cast("i", [2, 3])
        ferry.refit({"w": old}, {"t": view}, spec)
        self.assertEqual(view.tolist(), [[0, 3], [1, 4], [2, 5]])
        # A shard of the mesh beside it must be contiguous, too.
        wide = memoryview(bytearray(48)).cast("i")[::2]
        flat = dict(spec, tensors=[{"name": "w", "shape": [6], "dtype": "i32"}])
        flat["destination"] = ferry.Side()
        flat["destination"].add_parameter("t", 0, 6)
        flat["destination"].add_box("w", [0], [6])
        with self.assertRaisesRegex(ferry.Unsupported, "contiguous on all ranks"):
            ferry.refit({"w": wide}, {"t": turned}, flat)


def own_qkv(rank):
    """What a server of two has, as it says it itself."""
    side = ferry.Side()
    for entry in served([2, 3]).to_dict()["boxes"]:
        if rank in entry.pop("ranks"):
            number = side.add_parameter(entry["parameter"], None, entry["elements"])
            for box in entry["holds"]:
                side.add_box(**box, parameter=number)
            for fill in entry.get("fill", []):
                side.add_fill(**fill, parameter=number)
    return side


class Exchanges(unittest.TestCase):
    """Ranks that each know only what they have."""

    def test_all_get_the_spec_that_one_could_have_written(self):
        base = {key: value for key, value in a_spec(None).items() if key != "destination"}

        def work(world):
            rank = world.rank
            spec = ferry.Spec.exchange(base, world=world,
                                       destination=own_qkv(rank) if rank > 1 else None)
            old, new = (trained(rank), None) if rank < 2 else (None, empty(2))
            ferry.refit(as_rows(old) if old else None, new, spec, world=world)
            right = new is None or {name: list(v) for name, v in new.items()} == wanted(rank - 2, 2)
            return right, ferry.plan(spec).digest

        plan = ferry.plan(a_spec(served([2, 3])))
        self.assertEqual(on_threads(work, 4), [(True, plan.digest)] * 4)

    def test_both_sides_and_a_base_that_has_them(self):
        """What ranks say stands in place of the base's."""
        def work(world):
            source, destination = ferry.Side(), ferry.Side()
            source.add_parameter("s", None, 2)
            source.add_box("w", [2 * world.rank], [2])
            destination.add_parameter("d", None, 4)
            destination.add_box("w", [0], [4])
            spec = {"format": "ferry.spec/1", "destination": {"mesh": [], "rules": []},
                    "source": {"mesh": [], "rules": [{"match": "*"}]},
                    "tensors": [{"name": "w", "shape": [4], "dtype": "u8"}]}
            made = ferry.Spec.exchange(spec, source=source, destination=destination, world=world)
            new = bytearray(4)
            ferry.refit({"s": b"ab" if world.rank == 0 else b"cd"}, {"d": new}, made, world=world)
            return bytes(new)

        self.assertEqual(on_threads(work, 2), [b"abcd"] * 2)

    def test_what_is_wrong_on_one_rank_is_raised_on_all(self):
        short, ranked = ferry.Side(), ferry.Side()
        short.add_parameter("p", None, 4)
        short.add_box("w", [0, 0], [4], strides=[1])
        ranked.add_parameter("p", [1], 4)
        twice = ferry.Side()
        twice.add_parameter("p", None, 4)
        twice.add_box("w", [0], [4])
        twice.add_fill(1, [1])
        base = {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [4], "dtype": "u8"}],
                "source": {"mesh": [], "rules": [{"match": "*"}]}}
        good = ferry.Side()
        good.add_parameter("p", None, 4)
        good.add_box("w", [0], [4])
        rows = [
            (base, short, "rank 1: the destination: boxes.*begin has 2 numbers, but shape has 1"),
            (base, ranked, 'parameter "p" has ranks; each rank tells the others only its own'),
            (base, twice, 'parameter "p" of rank 1: box 0 \\("w"\\) and fill 0 both give element 1'),
            (base, 3, "rank 1: the destination that a rank says is of type int"),
            ({**base, "tensors": []}, good, "rank 1: |another base than rank 0"),
            ("/no/such/spec.json", good, "rank 1: .*/no/such/spec.json"),
        ]
        for given, side, sentence in rows:
            def work(world):
                mine = world.rank == 1
                ferry.Spec.exchange(given if mine else base, world=world,
                                    destination=side if mine else good)

            with self.subTest(sentence=sentence):
                for error in on_threads(work, 3):
                    self.assertIsInstance(error, ferry.Error)
                    self.assertRegex(str(error), sentence)

    def test_a_side_that_nobody_says(self):
        base = {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [4], "dtype": "u8"}],
                "source": {"mesh": [], "rules": [{"match": "*"}]}}
        for error in on_threads(lambda world: ferry.Spec.exchange(base, world=world), 2):
            self.assertIsInstance(error, ferry.InvalidInput)
            self.assertIn("no rank says anything of the destination", str(error))

    def test_one_of_world_and_group(self):
        with self.assertRaisesRegex(ferry.InvalidInput, "give world= or group="):
            ferry.Spec.exchange({}, world=object(), group=object())


class Saying(unittest.TestCase):
    def test_the_words_of_a_spec(self):
        side = ferry.Side()
        self.assertEqual(side.add_parameter("a", [2, 3], 40, dtype="bf16", partial=True), 0)
        self.assertEqual(side.add_parameter("b", 1, 8), 1)
        side.add_box("w", [0, 4], [2, 3], parameter=0, offset=5, strides=[1, 8],
                     repeat=[(3, [2, 0], 9), {"count": 2, "begin": [0, 1], "offset": 1}])
        side.add_box("w", (0, 0), (2, 3))
        side.add_fill(6, [2], bits="3f80")
        side.add_fill(0, [2], bits=b"\x80\x3f", parameter=0)
        side.add_fill(2, [2], parameter=0)
        said = {"boxes": [
            {"ranks": [2, 3], "parameter": "a", "elements": 40, "dtype": "bf16", "partial": True,
             "holds": [{"tensor": "w", "begin": [0, 4], "shape": [2, 3], "offset": 5,
                        "strides": [1, 8], "repeat": [
                            {"count": 3, "begin": [2, 0], "offset": 9},
                            {"count": 2, "begin": [0, 1], "offset": 1}]}],
             "fill": [{"offset": 0, "shape": [2], "strides": [1], "bits": "3f80"},
                      {"offset": 2, "shape": [2], "strides": [1]}]},
            {"ranks": [1], "parameter": "b", "elements": 8,
             "holds": [{"tensor": "w", "begin": [0, 0], "shape": [2, 3], "offset": 0,
                        "strides": [3, 1]}],
             "fill": [{"offset": 6, "shape": [2], "strides": [1], "bits": "3f80"}]}]}
        self.assertEqual(side.to_dict(), said)
        self.assertEqual(json.loads(side.to_json()), said)
        self.assertEqual(repr(side), "<ferry.Side of 2 parameters, 2 boxes, 3 fills>")
        self.assertEqual(side.n_parameters, 2)
        said["boxes"][1]["rank"] = said["boxes"][1].pop("ranks")[0]
        self.assertEqual(ferry.Side.from_json(said), side)
        self.assertEqual(ferry.Side.from_json(json.dumps(said)), side)

    def test_copies_pickles_and_equality(self):
        side = served([0, 1])
        for other in (pickle.loads(pickle.dumps(side)), copy.copy(side), copy.deepcopy(side),
                      ferry.Side.from_json(side.to_json())):
            self.assertEqual(other, side)
            other.add_fill(0, [1], parameter=0)
            self.assertNotEqual(other, side)
        self.assertNotEqual(side, side.to_dict())
        self.assertEqual(ferry.Side(), ferry.Side())
        side.to_dict()["boxes"].clear()
        self.assertEqual(side.n_parameters, 3)
        with self.assertRaises(TypeError):
            hash(side)

    def test_moves_say_where_in_parameters(self):
        plan = ferry.plan(a_spec(served([2, 3])))
        found = {}
        for move in plan.moves():
            self.assertEqual((move.src_parameter, move.src_offset, move.src_strides), (None, 0, ()))
            own = found.setdefault((move.to_rank, move.dst_parameter), {})
            for row in range(move.length[0]):
                for column in range(move.length[1]):
                    at = (move.dst_offset + row * move.dst_strides[0]
                          + column * move.dst_strides[1])
                    self.assertNotIn(at, own)
                    first = move.from_rank * SHAPES[move.tensor][0] // 2 + move.src_begin[0]
                    own[at] = element(move.tensor, first + row, move.src_begin[1] + column)
        for rank in (2, 3):
            for name, values in wanted(rank - 2, 2).items():
                own = found[rank, name]
                self.assertEqual([own.get(at, PAD) for at in range(len(values))], values)
        for move in ferry.plan({**a_spec(None), "destination": a_spec(None)["source"]}).moves():
            self.assertEqual(move[11:], (None, 0, (), None, 0, ()))

    def test_a_side_and_its_dict_have_one_plan(self):
        side = served([2, 3])
        plan = ferry.plan(a_spec(side))
        self.assertEqual(plan, ferry.plan(a_spec(side.to_dict())))
        self.assertEqual(plan, ferry.plan(json.dumps(a_spec(side.to_dict()))))
        self.assertEqual(plan.world_size, 4)
        self.assertEqual({name: shard.shape for name, shard in plan.shards("destination", 3).items()},
                         {"qkv": (96,), "up.T": (72,)})

    def test_calls_that_are_refused(self):
        side = ferry.Side()
        rows = [
            (lambda: side.add_box("w", [0], [1]), "no parameter yet"),
            (lambda: side.add_parameter(3, 0, 1), "name of a parameter is 3"),
            (lambda: side.add_parameter("p", -1, 1), 'parameter "p": ranks is -1'),
            (lambda: side.add_parameter("p", "01", 1), "ranks is of type str"),
            (lambda: side.add_parameter("p", 0, 1.5), "elements is 1.5, not a whole number"),
            (lambda: side.add_parameter("p", 0, 1, partial=1), "partial is 1"),
        ]
        for call, sentence in rows:
            with self.subTest(sentence=sentence), self.assertRaisesRegex(ferry.InvalidInput,
                                                                         sentence):
                call()
        with self.assertRaisesRegex(ferry.Unsupported, "none that ferry knows"):
            side.add_parameter("p", 0, 1, dtype=object())
        self.assertEqual(side.n_parameters, 0)
        side.add_parameter("p", 0, 4)
        rows = [
            (lambda: side.add_box("w", [0], [1], parameter=1), "no parameter 1: it has 1"),
            (lambda: side.add_box("w", [0], [1], parameter=-1), "parameter is -1"),
            (lambda: side.add_box(b"w", [0], [1]), "name of a tensor"),
            (lambda: side.add_box("w", 0, [1]), 'box 0 \\("w"\\): begin is of type int'),
            (lambda: side.add_box("w", [0], [1], strides=["1"]), "strides is '1'"),
            (lambda: side.add_box("w", [0], [1], repeat=[(1, [1])]), "\\(count, begin, offset\\)"),
            (lambda: side.add_box("w", [0], [1], repeat=[{"count": 1}]), 'lacks the key "begin"'),
            (lambda: side.add_fill(0, [1], bits=0), 'fill 0: bits are of type int'),
            (lambda: ferry.Side.from_json("{"), "no JSON"),
            (lambda: ferry.Side.from_json({"boxes": [], "mesh": []}), 'key "boxes" and no other'),
            (lambda: ferry.Side.from_json({"boxes": {}}), "boxes is of type dict"),
            (lambda: ferry.Side.from_json({"boxes": [3]}), "a parameter of a side is of type int"),
            (lambda: ferry.Side.from_json({"boxes": [{"parameter": "p", "elements": 1, "rank": 0,
                                                      "ranks": [0], "holds": []}]}),
             'either "rank" or "ranks"'),
            (lambda: ferry.Side.from_json({"boxes": [{"rank": 0, "parameter": "p", "elements": 1,
                                                      "holds": [{"tensor": "w"}]}]}),
             'a box of a side lacks the key "begin"'),
            (lambda: ferry.Side.from_json({"boxes": [{"rank": 0, "parameter": "p", "elements": 1,
                                                      "holds": [], "pad": 1}]}),
             "unknown key 'pad'"),
        ]
        for call, sentence in rows:
            with self.subTest(sentence=sentence), self.assertRaisesRegex(ferry.InvalidInput,
                                                                         sentence):
                call()
        self.assertEqual(repr(side), "<ferry.Side of 1 parameter, 0 boxes>")

    def test_casts(self):
        side = ferry.Side()
        side.add_parameter("p", 1, 4, dtype="f8e4m3", cast="saturate", scale=0.5, add=1)
        side.add_box("w", [0], [4])
        side.add_parameter("q", 1, 4)
        side.add_box("w", [0], [4])
        spec = {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [4], "dtype": "f32"}],
                "source": {"mesh": [], "rules": [{"match": "*"}]}, "destination": side}
        self.assertEqual(ferry.Side.from_json(side.to_json()), side)
        plan = ferry.plan(spec)
        self.assertEqual([(move.dtype, move.bytes) for move in plan.moves()],
                         [("f8e4m3", 4), ("f32", 16)])
        first, second = plan.json()["moves"]
        self.assertEqual((first["src_dtype"], first["dst_dtype"], first["cast"], first["scale"],
                          first["add"], first["at"]), ("f32", "f8e4m3", "saturate", 0.5, 1,
                                                       "sender"))
        self.assertNotIn("cast", second)
        side = ferry.Side()
        side.add_parameter("codes", 1, 24, quantize={"format": "f8e5m2", "block": [2, 4],
                                                     "scale": "*_scale"})
        side.add_box("w", [0, 0], [4, 6])
        side.add_parameter("scales", 1, 4)
        side.add_box("w_scale", [0, 0], [2, 2])
        self.assertEqual(ferry.Side.from_json(side.to_json()), side)
        spec["tensors"][0]["shape"] = [4, 6]
        self.assertEqual([(move.tensor, move.source, move.dtype, move.bytes)
                          for move in ferry.plan(dict(spec, destination=side)).moves()],
                         [("w", None, "f8e5m2", 24), ("w_scale", "w", "f32", 16)])
        plain = ferry.Side()
        rows = [
            (dict(dequantize=1), "dequantize is a dict"),
            (dict(dequantize={}, cast="round"), "dequantize is a dict, and goes without a cast"),
            (dict(quantize=1), "quantize is a dict"),
            (dict(quantize={}, cast="round"), "quantize is a dict, and goes without a cast"),
            (dict(cast="floor"), 'cast is \'floor\': give "round" or "saturate"'),
            (dict(cast=1), "cast is 1"),
            (dict(scale=2), "scale and add need cast"),
            (dict(add=0), "scale and add need cast"),
            (dict(cast="round", scale="2"), "scale is '2': give a number"),
            (dict(cast="round", scale=True), "scale is True: give a number"),
            (dict(cast="round", scale=0), "scale is 0: it must be finite, a scale not 0"),
            (dict(cast="round", scale=float("nan")), "scale is nan"),
            (dict(cast="round", add=float("inf")), "add is inf"),
        ]
        for said, sentence in rows:
            with self.subTest(sentence=sentence), self.assertRaisesRegex(ferry.InvalidInput,
                                                                         sentence):
                plain.add_parameter("p", 0, 4, **said)
        self.assertEqual(plain.n_parameters, 0)

    def test_sides_that_do_not_fit_the_tensors(self):
        def one(*boxes, elements=4, **kind):
            side = ferry.Side()
            side.add_parameter("p", 0, elements, **kind)
            for tensor, offset in boxes:
                side.add_box(tensor, [0], [2], offset)
            return side

        rows = [
            (one(("w", 0)), ferry.InvalidInput, "no box and no fill gives element 2 of it"),
            (one(("w", 0), ("w", 1), elements=3), ferry.InvalidInput, "both give element 1"),
            (one(("x", 0), elements=2), ferry.InvalidInput, "there is no tensor of this name"),
            (one(("w", 1), elements=2), ferry.InvalidInput, "reaches element 2"),
            (one(("w", 0), elements=2, dtype="f32"), ferry.InvalidInput, "takes a cast"),
            (ferry.Side(), ferry.InvalidInput, "must have a parameter"),
        ]
        spec = {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [2], "dtype": "u8"}],
                "source": {"mesh": [], "rules": [{"match": "*"}]}}
        for side, kind, sentence in rows:
            with self.subTest(sentence=sentence), self.assertRaisesRegex(kind, sentence) as raised:
                ferry.Spec(dict(spec, destination=side))
            if side.n_parameters:
                self.assertEqual(raised.exception.tensor, "p")
        half = ferry.Side()
        half.add_parameter("s", 0, 1)
        half.add_box("w", [0], [1])
        with self.assertRaisesRegex(ferry.InvalidPlan, "which no source rank has"):
            ferry.plan(dict(spec, source=half, destination=one(("w", 0), elements=2)))


if __name__ == "__main__":
    unittest.main()
