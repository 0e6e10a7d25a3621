# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Refits of plain bytes: nothing but the standard library on any rank."""

import json
import os
import tempfile
import struct
import unittest

import ferry
from support import run_ranks

ROWS, COLUMNS = 6, 8


def spec(n, dtype="u8"):
    """Row shards on n ranks to column shards on them, and a tensor that is whole on the last."""
    return {
        "format": "ferry.spec/1",
        "tensors": [{"name": "w", "shape": [ROWS, COLUMNS], "dtype": dtype},
                    {"name": "bias", "shape": [5], "dtype": dtype}],
        "source": {"mesh": [["tp", n]], "rules": [
            {"match": "bias", "on": {"tp": 0}},
            {"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]},
        "destination": {"mesh": [["tp", n]], "rules": [
            {"match": "bias", "on": {"tp": -1}},
            {"match": "*", "shard": [{"dim": 1, "axis": "tp"}]}]},
    }


def value(row, column, version=0):
    return (row * COLUMNS + column + 100 * version) % 251


def sources(rank, n):
    rows = range(rank * ROWS // n, (rank + 1) * ROWS // n)
    found = {"w": bytearray(value(r, c) for r in rows for c in range(COLUMNS))}
    if rank == 0:
        found["bias"] = b"12345"
    return found


def destinations(rank, n):
    found = {"w": bytearray(ROWS * COLUMNS // n)}
    if rank == n - 1:
        found["bias"] = bytearray(5)
    return found


def wanted(rank, n, version=0):
    columns = range(rank * COLUMNS // n, (rank + 1) * COLUMNS // n)
    return bytes(value(r, c, version) for r in range(ROWS) for c in columns)


def one_call(rank, n):
    new = destinations(rank, n)
    result = ferry.refit(sources(rank, n), new, spec(n))
    digest = ferry.plan(spec(n)).digest
    return [bytes(new["w"]) == wanted(rank, n), rank < n - 1 or new["bias"] == b"12345",
            result.bytes_moved, result.bytes_local, result.version, result.digest == digest,
            result.seconds > 0]


def many_runs(rank, n):
    """One plan, values that change, and a callback that hears of it."""
    old, new, heard, right = sources(rank, n), destinations(rank, n), [], []
    with ferry.Refit(old, new, json.dumps(spec(n)), progress=heard.append) as planned:
        for version in (1, 2, 3):
            for at in range(len(old["w"])):
                row = rank * ROWS // n + at // COLUMNS
                old["w"][at] = value(row, at % COLUMNS, version)
            result = planned.run()
            right.append(bytes(new["w"]) == wanted(rank, n, version) and result.version == version)
        numbers = planned.service.statistics()
    right.append(numbers.n_schedules == 1 and numbers.n_runs == 3)
    right.append(len(heard) >= 3 and heard[-1].bytes_done == heard[-1].bytes_total > 0)
    try:
        planned.run()
    except ferry.Misuse:
        right.append("closed" in repr(planned))
    planned.close()
    return right


def only_what_differs(rank, n):
    """The second run finds everything there, the third a byte of a source and one of a destination
    that were changed; what was skipped is counted for ranks and their peers."""
    old, new, right = sources(rank, n), destinations(rank, n), []
    with ferry.Refit(old, new, json.dumps(spec(n)), delta=True) as planned:
        for run in (1, 2, 3):
            if run == 3 and rank == 0:
                old["w"][0] ^= 255
                new["w"][1] ^= 255
            if run == 2:
                planned.service.mark_unchanged("*")
            planned.run()
            changed = bytearray(wanted(rank, n))
            if run == 3 and rank == 0:
                changed[0] ^= 255
            right.append(bytes(new["w"]) == bytes(changed))
            numbers = planned.service.statistics()
            moved = numbers.bytes_local + numbers.bytes_mapped + numbers.bytes_staged
            right.append(run != 2 or (moved == 0 and numbers.bytes_skipped > 0))
            skipped = sum(peer.bytes_skipped for peer in planned.service.peers())
            right.append(skipped == numbers.bytes_skipped)
    return right


def given_service(rank, n):
    """Shards in ferry's memory, of a service that stays the caller's."""
    right = []
    with ferry.RemoteCopyService() as service:
        service.init(log_level="WARN")
        for version in (1, 2):
            new = {name: service.alloc(len(one)) for name, one in destinations(rank, n).items()}
            ferry.refit(sources(rank, n), new, spec(n), service=service)
            right.append(bytes(new["w"]) == wanted(rank, n) and service.version == version)
        right.append(service.initialized and service.statistics().bytes_staged == 0)
        try:
            ferry.refit(sources(rank, n), new, spec(n), service=service, checksum="end")
        except ferry.InvalidInput as error:
            right.append("checksum" in str(error))
    return right


def apart(rank, n):
    """The trainer is rank 0, the server the others; nobody gives what the rank does not have."""
    there = {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [4, 4], "dtype": "u8"}],
             "source": {"mesh": [], "rules": [{"match": "*"}]},
             "destination": {"mesh": [["tp", n - 1]], "first_rank": 1, "rules": [
                 {"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]}}
    if rank == 0:
        ferry.refit({"w": bytes(range(16)), "not wanted": b""}, None, there)
        return list(range(16))
    new = bytearray(16 // (n - 1))
    ferry.refit(None, {"w": new}, there)
    return list(new)


def refused(rank, n):
    """What each mistake is called on this rank, and that a refit still works."""
    def without(shards, name):
        return {key: value for key, value in shards.items() if key != name}

    old, new = sources(rank, n), destinations(rank, n)
    first = rank == 0
    cases = [
        (without(old, "w") if first else old, new, spec(n), {}),
        (old, {**new, "w": bytearray(7)} if first else new, spec(n), {}),
        (old, {**new, "w": memoryview(new["w"]).cast("f")} if first else new, spec(n), {}),
        (old, {**new, "w": 3.5} if first else new, spec(n), {}),
        (old, {**new, "w": bytes(new["w"])} if first else new, spec(n), {}),
        (old, new, spec(n) if first else spec(n + 1), {}),
        (old, new, spec(n), {"replica": "seed" if first else "balanced"}),
        (old, new, spec(n + 1), {}),
        (old, new, "/nowhere/spec.json" if first else spec(n), {}),
        (old, new, spec(n), {"subset": "nothing.*"}),
    ]
    found = []
    for source, destination, how, options in cases:
        try:
            ferry.refit(source, destination, how, **options)
            found.append(("nothing", "", None, ()))
        except (ferry.Error, TypeError) as error:
            found.append((type(error).__name__, str(error), getattr(error, "tensor", None),
                          getattr(error, "ranks", ())))
    ferry.refit(old, new, spec(n))
    return found, bytes(new["w"]) == wanted(rank, n)


def values_of_codes(rank, n):
    """Codes are cut by rows, values by columns; scales come with them, and are nobody's buffer."""
    there = {"format": "ferry.spec/1",
             "tensors": [{"name": "w", "shape": [2, 2 * n], "dtype": "f8e4m3"},
                         {"name": "w.s", "shape": [1, n], "dtype": "f32"}],
             "source": {"mesh": [["tp", n]], "rules": [
                 {"match": "w", "shard": [{"dim": 1, "axis": "tp"}]},
                 {"match": "w.s", "on": {"tp": n - 1}}]},
             "destination": {"mesh": [["tp", n]], "rules": [
                 {"match": "w", "dtype": "f32", "dequantize": {"scale": "*.s", "block": [2, 2]}},
                 {"match": "*", "skip": True}]}}
    old = {"w": bytes([0x38 + 8 * rank] * 4)}  # 2 to the rank
    if rank == n - 1:
        old["w.s"] = struct.pack("%df" % n, *range(3, 3 + n))
    new = bytearray(2 * 2 * n * 4)
    ferry.refit(old, {"w": new}, there)
    return struct.unpack("%df" % (4 * n), new)


def values_in_boxes(rank, n):
    """The same into columns of a parameter, on one rank; the cut is inside a block."""
    side = ferry.Side()
    side.add_parameter("p", [0], 9, dtype="f32", dequantize={"scale": "*.s", "block": [2, 2]})
    side.add_box("w", [0, 1], [2, 2 * n - 1], strides=[1, 2])
    side.add_fill(2 * (2 * n - 1), [9 - 2 * (2 * n - 1)])
    there = {"format": "ferry.spec/1", "destination": side,
             "tensors": [{"name": "w", "shape": [2, 2 * n], "dtype": "f8e4m3"},
                         {"name": "w.s", "shape": [1, n], "dtype": "f32"}],
             "source": {"mesh": [["tp", n]], "rules": [
                 {"match": "w", "shard": [{"dim": 1, "axis": "tp"}]}, {"match": "w.s"}]}}
    old = {"w": bytes([0x38 + 8 * rank] * 4), "w.s": struct.pack("%df" % n, *range(3, 3 + n))}
    new = {"p": bytearray(9 * 4)} if rank == 0 else {}
    with ferry.Refit(old, new, ferry.Spec(there)) as refit:
        refit.run()
        refit.run()
    return struct.unpack("9f", new["p"]) if rank == 0 else ()


class Refits(unittest.TestCase):
    def test_values_in_boxes(self):
        for n in (1, 2):
            columns = [float(2 ** r * (3 + r)) for r in range(n) for _ in range(2)][1:]
            wanted_values = [value for value in columns for _ in range(2)]
            found = run_ranks(values_in_boxes, n)[0]
            self.assertEqual(list(found), wanted_values + [0.0] * (9 - len(wanted_values)))

    def test_values_of_codes(self):
        for n in (1, 2):
            row = [float(2 ** r * (3 + r)) for r in range(n) for _ in range(2)]
            for found in run_ranks(values_of_codes, n):
                self.assertEqual(list(found), row + row)

    def test_one_call(self):
        for n in (1, 2):
            for rank, found in enumerate(run_ranks(one_call, n)):
                # Half of the matrix stays on two ranks, and the bias moves.
                moved, local = (0, 53) if n == 1 else (24 + 5, 24)
                self.assertEqual(found, [True, True, moved, local, 1, True, True], (n, rank))

    def test_many_runs(self):
        for right in run_ranks(many_runs, 2):
            self.assertEqual(right, [True] * 6)

    def test_only_what_differs(self):
        for right in run_ranks(only_what_differs, 2):
            self.assertEqual(right, [True] * 9)

    def test_a_service_of_the_caller(self):
        for right in run_ranks(given_service, 2):
            self.assertEqual(right, [True] * 4)

    def test_ranks_of_one_side_only(self):
        first, second, third = run_ranks(apart, 3)
        self.assertEqual(second + third, first)

    def test_a_spec_may_be_given_in_four_ways(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "spec.json")
            with open(path, "w") as file:
                json.dump(spec(1), file)
            for how in (spec(1), json.dumps(spec(1)), path, ferry.Spec(spec(1))):
                new = destinations(0, 1)
                ferry.refit(sources(0, 1), new, how)
                self.assertEqual(bytes(new["w"]), wanted(0, 1))

    def test_subset(self):
        new = destinations(0, 1)
        ferry.refit({"bias": b"12345"}, new, spec(1), subset="b*")
        self.assertEqual((bytes(new["w"]), bytes(new["bias"])), (bytes(48), b"12345"))


class BadInput(unittest.TestCase):
    def test_all_ranks_are_told_before_anything_moves(self):
        (first, works), (second, works_too) = run_ranks(refused, 2)
        self.assertTrue(works and works_too)
        rows = (
            ("InvalidInput", r'source tensor "w" on rank 0 is missing: the plan expects '
                             r"\[3, 8\] of u8 here \(24 bytes\)", "w"),
            ("InvalidInput", r'destination tensor "w" on rank 0 has the shape \[7\]: the plan '
                             r"expects \[6, 4\] of u8", "w"),
            ("InvalidInput", r'destination tensor "w" on rank 0 has the shape \[6\]', "w"),
            ("InvalidInput", 'tensor "w" is of type float', "w"),
            ("InvalidInput", r'"w".*read-only', "w"),
            ("InvalidInput", "3 ranks, and the world has 2", None),
            ("DigestMismatch", "rank 0 and rank 1 made different plans", None),
            ("InvalidInput", "3 ranks, and the world has 2: start as many", None),
            ("FileError", "/nowhere/spec.json", None),
            ("InvalidPlan", "moves and copies nothing", None),
        )
        self.assertEqual(len(first), len(rows))
        for (kind, sentence, tensor), one, other in zip(rows, first, second):
            for rank, (said, text, about, ranks) in enumerate((one, other)):
                with self.subTest(sentence, rank=rank):
                    self.assertTrue(said.startswith(kind), (said, text))
                    self.assertRegex(text, sentence)
                    if tensor is not None:
                        self.assertEqual((about, ranks), (tensor, (0,)), text)


if __name__ == "__main__":
    unittest.main()
