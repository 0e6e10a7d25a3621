# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The checkpoint engines of verl and NeMo-RL between processes, without the frameworks: every bit of
every tensor, and what all hear when one fails."""

import abc
import inspect
import random
import subprocess
import sys
import unittest

import engine_rounds
import support
import torch

import ferry
from ferry.adapters import _stream

KINDS = ("verl", "nemo_rl")


class Updates(unittest.TestCase):
    def check(self, kind, keep):
        for got, kept_world, version, staged in support.run_ranks(engine_rounds.updates, 4, kind, keep):
            self.assertEqual((got, kept_world, staged), ([True, True, True], keep, 0))
            self.assertEqual(version, 1 if kind == "verl" else 3)

    def test_verl(self):
        self.check("verl", True)

    def test_verl_that_meets_each_time(self):
        self.check("verl", False)

    def test_nemo_rl(self):
        self.check("nemo_rl", True)

    def test_rounds_that_grow(self):
        for is_poor in (False, True):
            with self.subTest(is_poor=is_poor):
                ranks = support.run_ranks(engine_rounds.growing, 4, is_poor)
                self.assertEqual([right for right, _ in ranks], [[True] * 5] * 4)
                self.assertEqual([staged > 0 for _, staged in ranks[:2]], [is_poor] * 2)


class Shards(unittest.TestCase):
    def test_nobody_gathers(self):
        """But for what is larger than a round, lies on some of the trainer's ranks, or has no dimension
        or no element."""
        for kind in KINDS:
            with self.subTest(kind):
                ranks = support.run_ranks(engine_rounds.sharded, 4, kind, support.free_port())
                for rank, (gathered, right, (name, said, tensor), kept, staged) in enumerate(ranks):
                    self.assertEqual(right, [True] * 3)
                    self.assertEqual(set(gathered), {(30, 10), (2, 6), (), (0, 4)} if rank < 2 else set())
                    self.assertEqual((kept, staged), (True, 0))
                    self.assertEqual((name, tensor), ("InvalidInput", "columns"), said)
                    self.assertIn("[7, 8] of float32 cut by [['shard', 1, 0]] on ranks [0, 1] as [2], where "
                                  "rank 1 has \"columns\", [7, 8] of float32 cut by [['shard', 0, 0]]", said)


class Failures(unittest.TestCase):
    def test_what_all_ranks_refuse(self):
        for rank, (found, right) in enumerate(support.run_ranks(engine_rounds.refused, 4)):
            self.assertTrue(right)
            (name, said, tensor), broken, back, two, again = found
            self.assertEqual((name, tensor), ("InvalidInput", "layer.4"), said)
            self.assertIn('sends "layer.4", [600] of float8_e4m3fn, where rank 1 has "layer.4", [5] of '
                          'float8_e4m3fn, in its place', said)
            self.assertIn("rank 1 is rank 1 of the trainer, process ", said)
            self.assertEqual(broken[0], "KeyError" if rank == 1 else "Error")
            self.assertIn("layer.5 is lost", broken[1])
            self.assertEqual((back[0], two[0], again[0]), ("InvalidInput", "InvalidInput", ""))
            self.assertIn("an update to version 6 after version 7: versions do not go back", back[1])
            self.assertIn("sends version 8, and this rank was asked for version 9", two[1])

    def test_a_server_of_another_model_is_named(self):
        for kind in KINDS:
            ranks = support.run_ranks(engine_rounds.other_server, 4, kind)
            self.assertEqual([right for _, right in ranks], [True] * 4)
            self.assertEqual(ranks[3][0][0], "KeyError")
            for (name, said, _), _ in ranks[:3]:
                self.assertEqual(name, "Aborted")
                self.assertIn('worker 1 of the server gave the update up at tensor "layer.4"', said)

    def test_a_worker_that_never_comes(self):
        for name, said in support.run_ranks(engine_rounds.nobody_comes, 4)[:3]:
            self.assertEqual(name, "ExchangeFailed", said)
            self.assertIn("rank 3 of 4 has not come within 15 s", said)
            self.assertIn("; rank 3 is worker 1 of the server", said)

    def test_a_worker_that_is_killed(self):
        ranks = support.run_ranks(engine_rounds.killed, 4, may_fail=(3,))
        for (name, said), right, version in ranks[:3]:
            self.assertEqual((name, right, version), ("PeerLost", True, 3), said)
            self.assertIn("rank 3 is worker 1 of the server, process ", said)


class Misuse(unittest.TestCase):
    def test_options(self):
        from ferry.adapters.verl import FerryCheckpointEngine

        for size in (0, -1, True, 1.5, "2"):
            with self.assertRaisesRegex(ferry.InvalidInput, "bucket_size is .*: give the bytes"):
                FerryCheckpointEngine(size)
        with self.assertRaisesRegex(ferry.InvalidInput, "'seconsd' is no option of this engine"):
            FerryCheckpointEngine(64, seconsd=1.0)
        with self.assertRaisesRegex(ferry.InvalidInput, "'service' is no option"):
            FerryCheckpointEngine(64, service=None)

    def test_before_a_meeting(self):
        import asyncio

        from ferry.adapters.nemo_rl import FerryCheckpointEngine as nemo_engine
        from ferry.adapters.verl import FerryCheckpointEngine as verl_engine

        for engine in (verl_engine(64), nemo_engine(64)):
            with self.assertRaisesRegex(ferry.Misuse, "before the trainer and the server have met"):
                asyncio.run(engine.send_weights([]))
            engine.finalize()  # without effect

    def test_no_master(self):
        from ferry.adapters.verl import FerryCheckpointEngine

        engine = FerryCheckpointEngine(64)
        with self.assertRaisesRegex(ferry.InvalidInput, "first rank has opened no store"):
            engine.init_process_group(0, 1, [engine.prepare()] * 2)


    def test_other_buckets(self):
        from ferry.adapters.verl import FerryCheckpointEngine

        cards = [FerryCheckpointEngine(64 + rank // 2).prepare() for rank in range(3)]
        said = "worker 0 of the server has buckets of 65 bytes, and rank 1 of the trainer of 64"
        with self.assertRaisesRegex(ferry.InvalidInput, said):
            FerryCheckpointEngine(64).init_process_group(1, 2, cards)


class Meetings(unittest.TestCase):
    def test_words_of_one_before_are_no_news(self):
        from ferry.adapters.verl import FerryCheckpointEngine

        first, second = FerryCheckpointEngine(64, is_master=True), FerryCheckpointEngine(64)
        stores = [first._meeting(0, [first.prepare(), second.prepare()]) for _ in range(2)]
        stores[0].set("word", b"old")
        self.assertEqual([store.check(["word"]) for store in stores], [True, False])


class Blocks(unittest.TestCase):
    """Shares of rounds, against bytes that are dealt out one by one."""

    def test_each_byte_is_of_one_rank(self):
        random.seed(1)
        for _ in range(200):
            cut = _stream.Cut(random.randint(1, 5000), random.randint(1, 5))
            n_bytes = random.randint(0, cut.round_bytes)
            found = [None] * n_bytes
            for rank in range(cut.n_trainers):
                kept = {}
                begin, end = sorted(random.randint(0, n_bytes) for _ in range(2))
                for run in ((0, begin), (begin, end), (end, n_bytes)):
                    for low, high, place in cut.runs(rank, *run):
                        for at in range(low, high):
                            self.assertIsNone(found[at])
                            found[at] = rank
                            kept[place + at - low] = at
                self.assertEqual(sorted(kept), list(range(cut.kept(rank, n_bytes))))
                self.assertEqual([kept[at] for at in sorted(kept)], sorted(kept.values()))
            self.assertNotIn(None, found)

    def test_whole_rounds_are_shared_evenly(self):
        for n_trainers in (1, 2, 3, 7, 64):
            cut = _stream.Cut(1 << 22, n_trainers)
            kept = [cut.kept(rank, 1 << 22) for rank in range(n_trainers)]
            self.assertLessEqual(max(kept), 1.1 * (1 << 22) / n_trainers)


class Packing(unittest.TestCase):
    """From tensors to rounds and back in one process, for rounds of all sizes."""

    def test_all_sizes(self):
        for n_trainers in (1, 2, 3):
            for bucket in (1, 7, 64, 999, 1000, 1001, 100000):
                cut = _stream.Cut(bucket, n_trainers)
                packers = [_stream.Packer(engine_rounds.model(2), cut, r) for r in range(n_trainers)]
                memory = [torch.zeros(max(1, cut.kept(r, bucket)), dtype=torch.uint8)
                          for r in range(n_trainers)]
                self.assertEqual(self.carried(cut, packers, memory), engine_rounds.wanted(2))

    def carried(self, cut, packers, memory):
        unpacker, got = _stream.Unpacker("cpu"), []
        while True:
            tables = [packer.pack(own, None) for packer, own in zip(packers, memory)]
            self.assertTrue(all(table == tables[0] for table in tables))
            row = torch.full((cut.round_bytes,), 0xEE, dtype=torch.uint8)
            for rank, own in enumerate(memory):
                for low, high, place in cut.runs(rank, 0, tables[0]["bytes"]):
                    row[low:high] = own[place : place + high - low]
            got += list(unpacker.unpack(tables[0], row))
            row.fill_(0xDD)  # what was given is no view of it
            if tables[0]["is_last"]:
                return [engine_rounds.digest(name, tensor) for name, tensor in got]


class Signatures(unittest.TestCase):
    """NeMo-RL is on no index: this class stands in for its abstract one, with the methods and names of
    arguments that its pages and sources give."""

    class Base(abc.ABC):
        @abc.abstractmethod
        def prepare(self): ...

        @abc.abstractmethod
        def init_policy_process_group(
            self, *, worker_rank, train_world_size, rollout_world_size, metadata
        ): ...

        @abc.abstractmethod
        def init_rollout_process_group(
            self, *, rollout_rank, train_world_size, rollout_world_size, metadata
        ): ...

        @abc.abstractmethod
        async def send_weights(self, weights): ...

        @abc.abstractmethod
        def receive_weight_batches(self): ...

        def finalize(self): ...

        def get_target_weight_layout(self): ...

    def test_nemo_rl(self):
        import importlib
        import types

        from ferry.adapters import nemo_rl

        names = ["nemo_rl", "nemo_rl.utils", "nemo_rl.utils.checkpoint_engines",
                 "nemo_rl.utils.checkpoint_engines.base"]
        made = {name: types.ModuleType(name) for name in names}
        for name in names[:-1]:
            made[name].__path__ = []
        made[names[-1]].CheckpointEngine = self.Base
        try:
            sys.modules.update(made)
            importlib.reload(nemo_rl)
            engine = nemo_rl.FerryCheckpointEngine(bucket_size=64, secret="s")
            self.assertIsInstance(engine, self.Base)
            self.assertIsNone(engine.get_target_weight_layout())
            for name in vars(self.Base):
                if not name.startswith("_"):
                    own = inspect.signature(getattr(nemo_rl.FerryCheckpointEngine, name))
                    self.assertEqual(list(own.parameters),
                                     list(inspect.signature(getattr(self.Base, name)).parameters))
        finally:
            for name in names:
                del sys.modules[name]
            importlib.reload(nemo_rl)


class WithoutThePackages(unittest.TestCase):
    def test_the_modules_can_be_imported(self):
        code = ("import sys; sys.modules['verl'] = sys.modules['nemo_rl'] = None\n"
                "from ferry.adapters import nemo_rl, verl\n"
                "assert verl._Base is nemo_rl._Base is object and 'torch' not in sys.modules")
        subprocess.run([sys.executable, "-c", code], check=True)


if __name__ == "__main__":
    unittest.main()
