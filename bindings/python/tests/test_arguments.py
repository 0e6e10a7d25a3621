# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Arguments of other types than are asked for: sentences that say what to give instead."""
from __future__ import annotations

import types
import unittest

import ferry
import ferry.resharding
from ferry.resharding import planner, utils
from ferry.resharding.nvshmem_copy_service import nvshmem_types, planning

SPEC = {"ranks": 1, "tensors": []}


class Names(unittest.TestCase):
    def test_all_are_there(self) -> None:
        for name in ferry.resharding.__all__:
            self.assertTrue(hasattr(ferry.resharding, name), name)

    def test_scheduler_and_service(self) -> None:
        names = ("ScheduledBatch", "WorkloadGroup", "WorkloadSummary")
        for name in names:
            self.assertIs(getattr(ferry.resharding, name), getattr(nvshmem_types, name))
        self.assertIs(ferry.resharding.CommunicationScheduler, planning.CommunicationScheduler)
        self.assertIs(ferry.resharding.RemoteCopyService, ferry.RemoteCopyService)

    def test_others_are_not(self) -> None:
        with self.assertRaisesRegex(AttributeError, "ferry.resharding.*no_such"):
            ferry.resharding.no_such  # type: ignore[attr-defined]


WHOLE = {"mesh": [], "rules": [{"match": "*"}]}
TWO = {"format": "ferry.spec/1", "source": WHOLE, "destination": WHOLE, "tensors": [
    {"name": "v", "shape": [4], "dtype": "u8"}, {"name": "w", "shape": [8], "dtype": "u8"}]}


class Specs(unittest.TestCase):
    def test_nothing(self) -> None:
        for given, words in (({}, "is empty: it lacks"), (None, "the spec is None")):
            with self.subTest(given), self.assertRaisesRegex(ferry.InvalidInput, words):
                ferry.plan(given)  # type: ignore[arg-type]

    def test_subsets_in_lists(self) -> None:
        for given, n_bytes in (("w", 8), (["w"], 8), (("v", "w"), 12), ({"v"}, 4), (["*", "!w"], 4)):
            with self.subTest(given):
                self.assertEqual(ferry.plan(TWO, subset=given).local_bytes, n_bytes)
        got = bytearray(4)
        ferry.refit({"v": b"abcd"}, {"v": got}, TWO, subset=["v"])
        self.assertEqual(got, b"abcd")

    def test_wrong_subsets(self) -> None:
        for given, words in (([], "empty list"), (["v,w"], "without commas"), ([3], "entry 3"),
                             (3, "of type int"), (["v", "x"], 'matches "x"'),
                             ("a\0", "zero bytes"), (["a\udc80"], "surrogates")):
            with self.subTest(ascii(given)), self.assertRaisesRegex(ferry.InvalidInput, words):
                ferry.plan(TWO, subset=given)  # type: ignore[arg-type]

    def test_what_is_unchanged(self) -> None:
        old, new = {"v": bytearray(4), "w": bytearray(8)}, {"v": bytearray(4), "w": bytearray(8)}
        with ferry.Refit(old, new, TWO, delta=True) as refit:
            refit.run()
            old["v"][0] = old["w"][0] = 7
            refit.service.mark_unchanged(["v"])
            refit.run()
            self.assertEqual((new["v"][0], new["w"][0]), (0, 7))
            for given, words in (([], "names is an empty list"), (3, "names is of type int"),
                                 ("v\0", "zero bytes")):
                with self.subTest(ascii(given)), self.assertRaisesRegex(ferry.InvalidInput, words):
                    refit.service.mark_unchanged(given)  # type: ignore[arg-type]

    def test_subsets_of_nothing(self) -> None:
        for given in ("x", ["x"]):
            with self.assertRaisesRegex(ferry.InvalidPlan, 'no tensor of the destination fits the subset "x"'):
                ferry.plan(TWO, subset=given)
        with self.assertRaisesRegex(ferry.InvalidPlan, "all of its ranks, 1, are left out as lost"):
            ferry.plan(TWO, lost_ranks=[0])

    def test_a_tensor_that_is_none(self) -> None:
        with self.assertRaisesRegex(ferry.InvalidInput, 'source tensor "w" on rank 0 is None'):
            ferry.refit({"v": bytes(4), "w": None}, {"v": bytearray(4), "w": bytearray(8)}, TWO)


class Extraction(unittest.TestCase):
    def test_parameters_without_names(self) -> None:
        for one in ("wx", 5, None, ["w", 1], b"ab"):
            with self.subTest(one), self.assertRaisesRegex(TypeError, "parameter 0 is not a pair"):
                utils.extract_all([one], 0, types.SimpleNamespace())  # type: ignore[list-item]


class Planning(unittest.TestCase):
    def test_exchange(self) -> None:
        for exchange in (0, "gloo", object()):
            for build in (planner.build_centralized_reshard_plan, planner.build_local_reshard_plan):
                with self.assertRaisesRegex(ferry.InvalidInput, "exchange is of type .*: give an"):
                    build(None, None, exchange=exchange)

    def test_modules(self) -> None:
        for module in (0, "model", {}, types.SimpleNamespace(pg_collection=0)):
            with self.assertRaisesRegex(ferry.InvalidInput, "torch.nn.Module, or None") as caught:
                planner.build_centralized_reshard_plan(module, None)  # type: ignore[arg-type]
            self.assertIn("source module", str(caught.exception))
            self.assertEqual(caught.exception.ranks, (0,))

    def test_rosters(self) -> None:
        for given in (None, 5, 1.5, object()):
            with self.assertRaisesRegex(ferry.InvalidInput, "src_by_rank is of type .* by rank"):
                planner.plan_roster(given, {})  # type: ignore[arg-type]
            with self.assertRaisesRegex(ferry.InvalidInput, "dst_by_rank is of type .* by rank"):
                planner.plan_roster({}, given)  # type: ignore[arg-type]


class Refits(unittest.TestCase):
    def test_world(self) -> None:
        for world in (0, "tcp://", object(), types.SimpleNamespace(rank=0, size=1)):
            with self.assertRaisesRegex(ferry.InvalidInput, "world is of type .* ferry.init"):
                ferry.refit({}, {}, SPEC, world=world)  # type: ignore[arg-type]


if __name__ == "__main__":
    unittest.main()
