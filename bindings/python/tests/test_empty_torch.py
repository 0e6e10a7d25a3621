# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""ferry.empty, empty_like and share_memory_ with torch: what is the same afterwards, and what
lies in memory that other ranks write to."""

import copy
import gc
import io
import tempfile
import unittest
import weakref

try:
    import torch
except ImportError:
    torch = None

import ferry
from ferry import _ferry
from support import run_ranks
from test_empty import n_files


def is_there(tensor):
    return _ferry.has_memory(tensor.data_ptr(), max(1, tensor.numel() * tensor.element_size()))


def model(seed=0):
    """Tied weights, buffers that are views, one parameter that is transposed, one without grad."""
    torch.manual_seed(seed)
    one = torch.nn.Sequential(torch.nn.Embedding(12, 8), torch.nn.Linear(8, 6),
                              torch.nn.BatchNorm1d(6), torch.nn.Linear(8, 12, bias=False))
    one[3].weight = one[0].weight
    one.turned = torch.nn.Parameter(torch.randn(5, 3).t(), requires_grad=False)
    flat = torch.arange(10.0)
    one.register_buffer("flat", flat)
    one.register_buffer("head", flat[:4])
    one.register_buffer("tail", flat[4:].view(2, 3))
    one.register_buffer("ids", torch.arange(7).expand(1, -1), persistent=False)
    one.register_buffer("brief", torch.randn(3).bfloat16())
    one.register_buffer("nothing", torch.empty(0, 4))
    return one


def named(one):
    return dict([*one.named_parameters(remove_duplicate=False),
                 *one.named_buffers(remove_duplicate=False)])


def refits(rank, size):
    """A module as the destination, as it is and as share_memory_ has left it."""
    whole = [{"match": "*"}]
    served, trained = model(1), model(2)
    kept = [(name, p) for name, p in served.named_parameters() if p.is_contiguous()]
    spec = {"format": "ferry.spec/1",
            "tensors": [{"name": name, "shape": list(p.shape), "dtype": "f32"} for name, p in kept],
            "source": {"mesh": [], "rules": whole},
            "destination": {"mesh": [["dp", 1]], "first_rank": 1, "rules": whole}}
    total = sum(p.numel() * 4 for _, p in kept)
    for shares in (False, True, True):
        if shares:
            ferry.share_memory_(served)
        with torch.no_grad():
            for p in served.parameters():
                p.zero_()
        there = trained.state_dict() if rank == 0 else None
        here = dict(served.named_parameters()) if rank == 1 else None
        with ferry.Refit(there, here, spec) as refit:
            refit.run()
            found = refit.service.statistics()
        ways = (found.bytes_mapped, found.bytes_staged)
        assert rank == 1 or ways == ((total, 0) if shares else (0, total)), (shares, ways)
        if rank == 1:
            for name, p in kept:
                assert torch.equal(p, dict(trained.named_parameters())[name]), name
    ferry.shutdown()
    assert rank == 0 or torch.equal(served[0].weight, trained[0].weight)
    return True


@unittest.skipIf(torch is None, "torch is not installed")
class Empty(unittest.TestCase):
    def test_shapes_and_dtypes(self):
        for made, shape, dtype in (
            (ferry.empty(4, 8, dtype=torch.bfloat16), (4, 8), torch.bfloat16),
            (ferry.empty((4, 8), dtype="bf16"), (4, 8), torch.bfloat16),
            (ferry.empty(torch.Size([2, 3])), (2, 3), torch.float32),
            (ferry.empty(()), (), torch.float32),
            (ferry.empty(3, dtype="f8e4m3"), (3,), torch.float8_e4m3fn),
            (ferry.empty(3, dtype=torch.complex128), (3,), torch.complex128),
            (ferry.empty(3, like=torch.zeros(1, dtype=torch.int16)), (3,), torch.int16),
            (ferry.empty_like(torch.ones(2, 3).t()), (3, 2), torch.float32),
            (ferry.empty_like(torch.ones(2), dtype="u8", device="cpu"), (2,), torch.uint8),
            (ferry.empty_like(torch.ones(2, device="meta"), device="cpu"), (2,), torch.float32),
        ):
            self.assertEqual((tuple(made.shape), made.dtype), (shape, dtype))
            self.assertTrue(is_there(made) and made.is_contiguous() and made._base is None)
            self.assertFalse(made.requires_grad)
            self.assertEqual(made.untyped_storage().nbytes(), made.numel() * made.element_size())
            self.assertFalse(made.view(torch.uint8).any() if made.dim() else made.item())
        self.assertEqual(ferry.empty(3, 0).shape, (3, 0))

    def test_another_default_device(self):
        with torch.device("meta"):
            for made in (ferry.empty(4), ferry.empty(3, 0)):
                self.assertEqual(made.device.type, "cpu")

    def test_numpy_beside_torch(self):
        import numpy

        self.assertIsInstance(ferry.empty(2, dtype=numpy.float32), numpy.ndarray)
        self.assertIsInstance(ferry.empty(2, dtype="f32", like=numpy.zeros(1)), numpy.ndarray)
        self.assertIsInstance(ferry.empty(2, dtype="f32"), torch.Tensor)

    def test_it_lives_as_long_as_a_tensor_of_it(self):
        before = n_files()
        made = ferry.empty(4, 4)
        row = made[2]
        del made
        gc.collect()
        row.fill_(3)
        self.assertEqual((float(row.sum()), n_files()), (12, before + 1))
        del row
        gc.collect()
        self.assertEqual(n_files(), before)

    def test_what_is_wrong(self):
        mesh = type("Distributed", (torch.Tensor,), {"placements": ()})
        for call, kind, text in (
            (lambda: ferry.empty(torch.ones(2)), ferry.InvalidInput, "give whole numbers"),
            (lambda: ferry.empty(2, dtype=torch.qint8), ferry.Unsupported, "qint8 goes with"),
            (lambda: ferry.empty(2, device=torch.device("meta")), ferry.Unsupported, '"meta"'),
            (lambda: ferry.empty_like(torch.ones(2, device="meta")), ferry.Unsupported, '"meta"'),
            (lambda: ferry.empty_like(torch.ones(2).as_subclass(mesh)), ferry.InvalidInput,
             "to_local"),
        ):
            with self.assertRaisesRegex(kind, text):
                call()


@unittest.skipIf(torch is None, "torch is not installed")
class Share(unittest.TestCase):
    def test_everything_is_the_same_and_elsewhere(self):
        one = model()
        one[1].weight.grad = torch.ones(6, 8)
        objects = named(one)
        before = {name: (t.detach().clone(), t.stride(), t.storage_offset(), t.dtype, t.requires_grad)
                  for name, t in objects.items()}
        files = n_files()
        self.assertIs(ferry.share_memory_(one), one)
        self.assertEqual(n_files(), files + 1)  # one piece for all
        for name, tensor in named(one).items():
            self.assertIs(tensor, objects[name])
            value, *rest = before[name]
            self.assertTrue(torch.equal(tensor, value), name)
            self.assertEqual([tensor.stride(), tensor.storage_offset(), tensor.dtype,
                              tensor.requires_grad], rest, name)
            self.assertTrue(tensor.numel() == 0 or is_there(tensor), name)
            self.assertEqual(tensor.data_ptr() % tensor.element_size(), 0)
        self.assertTrue(torch.equal(one[1].weight.grad, torch.ones(6, 8)))

    def test_what_is_one_stays_one(self):
        one = ferry.share_memory_(model())
        self.assertIs(one[0].weight, one[3].weight)
        one.flat[5] = 77
        self.assertEqual(float(one.tail[0, 1]), 77)
        one.head[0] = 33
        self.assertEqual(float(one.flat[0]), 33)
        self.assertEqual(one.flat.untyped_storage().data_ptr(), one.tail.untyped_storage().data_ptr())
        self.assertEqual(one.ids.untyped_storage().nbytes(), 7 * 8)
        # Storages stay apart, so that a saved tensor is not as long as the module.
        self.assertEqual(one[1].weight.untyped_storage().nbytes(), 6 * 8 * 4)

    def test_training_goes_on(self):
        """The same optimizer, with its state, beside a module that was not moved."""
        results = []
        for shares in (False, True):
            one = model()
            adam = torch.optim.Adam([p for p in one.parameters() if p.requires_grad], lr=0.1)
            for step in range(4):
                if shares and step == 2:
                    ferry.share_memory_(one)
                x = torch.arange(6).reshape(2, 3) + step
                loss = one[3](one[0](x)).square().mean() + one[1](one[0](x)).sum()
                adam.zero_grad()
                loss.backward()
                adam.step()
            results.append({name: t.detach().clone() for name, t in named(one).items()})
        for name, tensor in results[0].items():
            self.assertTrue(torch.equal(tensor, results[1][name]), name)

    def test_twice_and_copies(self):
        one = ferry.share_memory_(model())
        places = {name: t.data_ptr() for name, t in named(one).items()}
        files = n_files()
        ferry.share_memory_(one)
        self.assertEqual({name: t.data_ptr() for name, t in named(one).items()}, places)
        other = copy.deepcopy(one)
        self.assertEqual(n_files(), files)
        self.assertFalse(any(is_there(t) for t in named(other).values()))
        saved = io.BytesIO()
        torch.save(one.state_dict(), saved)
        saved.seek(0)
        self.assertTrue(torch.equal(torch.load(saved)["1.weight"], one[1].weight))

    def test_old_memory_goes_and_new_memory_too(self):
        files = n_files()
        one = torch.nn.Linear(300, 300)
        old = weakref.ref(one.weight.untyped_storage())
        ferry.share_memory_(one)
        gc.collect()
        self.assertIsNone(old())
        kept = one.bias
        del one
        gc.collect()
        kept.detach().fill_(2)
        self.assertEqual((float(kept.detach().sum()), n_files()), (600, files + 1))
        del kept
        gc.collect()
        self.assertEqual(n_files(), files)

    def test_pieces(self):
        """Not twice of all at once: a piece after another, and what is longer by itself."""
        from ferry import _memory

        before, _memory._PIECE_BYTES = _memory._PIECE_BYTES, 4096
        self.addCleanup(setattr, _memory, "_PIECE_BYTES", before)
        files = n_files()
        one = {str(n): torch.full((n,), float(n)) for n in (500, 400, 200, 5000, 1)}
        ferry.share_memory_(one)
        self.assertEqual(n_files(), files + 4)
        for n, tensor in one.items():
            self.assertTrue(is_there(tensor) and bool((tensor == float(n)).all()), n)

    def test_inference_tensors_and_a_dict(self):
        with torch.inference_mode():
            tensors = {"a": torch.ones(5), "b": torch.zeros(2, dtype=torch.bool)}
        self.assertIs(ferry.share_memory_(tensors), tensors)
        self.assertTrue(is_there(tensors["a"]) and tensors["a"].is_inference())
        self.assertEqual(tensors["a"].tolist(), [1.0] * 5)
        self.assertEqual(ferry.share_memory_({}), {})

    def test_who_would_be_left_behind(self):
        one = torch.nn.Linear(3, 3)
        place = one.weight.data_ptr()
        said = 'tensor "weight" shares its memory with tensors that were not given'
        with self.assertRaisesRegex(ferry.InvalidInput, said) as caught:
            ferry.share_memory_(one.state_dict())
        self.assertEqual(caught.exception.tensor, "weight")
        kept = one.state_dict()
        with self.assertRaisesRegex(ferry.InvalidInput, said):
            ferry.share_memory_(one)
        row = one.weight.detach()[0]
        del kept
        with self.assertRaisesRegex(ferry.InvalidInput, said):
            ferry.share_memory_(one)
        base = torch.zeros(6)
        one.register_buffer("view", base[:3])
        del row
        with self.assertRaisesRegex(ferry.InvalidInput, 'tensor "view" shares'):
            ferry.share_memory_(one)
        self.assertEqual(one.weight.data_ptr(), place)  # nothing was moved
        del base
        ferry.share_memory_(one)
        self.assertTrue(is_there(one.weight) and is_there(one.view))

    def test_memory_that_others_have(self):
        """Of whom torch knows nothing, or only that there may be some: nothing is moved."""
        import numpy

        array = numpy.arange(8.0)
        shared = torch.ones(4).share_memory_()
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(16))
            file.flush()
            mapped = torch.from_file(file.name, shared=True, size=4)
        from_numpy = torch.from_numpy
        for tensors, text in (
            ({"a": shared}, '"a" is in memory that torch has for several processes'),
            ({"a": mapped}, '"a" is in memory that torch has for several processes'),
            ({"a": from_numpy(array), "b": from_numpy(array[2:])}, '"b" has bytes in .*"a"'),
            ({"a": from_numpy(array[:2]), "b": from_numpy(array)}, '"b" has bytes in .*"a"'),
        ):
            tensors = {"first": torch.ones(2), **tensors}
            places = [one.data_ptr() for one in tensors.values()]
            with self.assertRaisesRegex(ferry.InvalidInput, text):
                ferry.share_memory_(tensors)
            self.assertEqual([one.data_ptr() for one in tensors.values()], places)
        apart = ferry.share_memory_({"a": from_numpy(array[:4]), "b": from_numpy(array[4:])})
        self.assertEqual((apart["a"].tolist(), apart["b"].tolist()), ([0, 1, 2, 3], [4, 5, 6, 7]))
        array[0] = 9  # it keeps its memory
        self.assertTrue(is_there(apart["a"]) and float(apart["a"][0]) == 0)

    def test_a_base_that_only_views_have(self):
        one = {"a": torch.arange(6.0)[:2]}
        one["b"] = one["a"]._base[4:]
        for turn in range(2):
            ferry.share_memory_(one)
            base = one["a"]._base
            self.assertTrue(is_there(base) and base.shape == (6,), turn)
            base[5], base[0] = 7 + turn, 8 + turn
            self.assertEqual((one["b"].tolist(), one["a"].tolist()), ([4, 7 + turn], [8 + turn, 1]))

    def test_modes_of_torch(self):
        """Within them, tensors that are made get another device, and views know no base."""
        one = torch.nn.Linear(2, 2)
        with torch.device("meta"):
            ferry.share_memory_(one)
        self.assertTrue(is_there(one.weight) and one.weight.device.type == "cpu")
        base = torch.zeros(6)
        with torch.inference_mode():
            with self.assertRaisesRegex(ferry.InvalidInput, 'tensor "a" shares its memory'):
                ferry.share_memory_({"a": base[:2]})
            ferry.share_memory_({"a": base})
        self.assertTrue(is_there(base) and not base.is_inference())

    def test_all_views_before_the_first_move(self):
        from ferry import _memory

        def fails(storage, dtype, *where):
            if dtype == torch.int64:
                raise RuntimeError("no view")
            return made(storage, dtype, *where)

        made, _memory._torch_view = _memory._torch_view, fails
        self.addCleanup(setattr, _memory, "_torch_view", made)
        one = {"a": torch.ones(3), "b": torch.ones(3, dtype=torch.int64)}
        with self.assertRaisesRegex(RuntimeError, "no view"):
            ferry.share_memory_(one)
        self.assertFalse(is_there(one["a"]))

    def test_what_cannot_be_moved(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        fake = FakeTensorMode().from_tensor(torch.ones(2))
        for tensor, text in (
            (torch.ones(2, device="meta"), "on the device meta, where it has no memory"),
            (torch.ones(2).to_sparse(), "is sparse"),
            (torch.ones(2, dtype=torch.complex64).conj(), "lazily conjugated"),
            (fake, "has no memory of its own"),
            (3, "is of type int"),
            (bytearray(3), "is of type bytearray"),
        ):
            good = torch.ones(4)
            place = good.data_ptr()
            with self.assertRaisesRegex(ferry.InvalidInput, 'tensor "bad" .*' + text) as caught:
                ferry.share_memory_({"good": good, "bad": tensor})
            self.assertEqual(caught.exception.tensor, "bad")
            self.assertEqual(good.data_ptr(), place)
        with self.assertRaisesRegex(ferry.InvalidInput, "give a torch.nn.Module, or a dict"):
            ferry.share_memory_(torch.ones(2))
        with self.assertRaisesRegex(ferry.InvalidInput, 'tensor "weight" .*device meta'):
            ferry.share_memory_(torch.nn.Linear(2, 2, device="meta"))


@unittest.skipIf(torch is None, "torch is not installed")
class WhatCan(unittest.TestCase):
    """What adapters do: those that are refused stay as they are, the others move."""

    def test_refused_ones_stay(self):
        from ferry._memory import share_what_can

        one = model()
        kept = one[1].weight.detach()  # would be left behind
        array = torch.arange(8.0).numpy()
        strange = {"meta": torch.ones(2, device="meta"), "sparse": torch.ones(2).to_sparse(),
                   "array": array, "left": torch.from_numpy(array[:5])}
        wanted = {**{name: one for name, one in named(one).items() if name != "3.weight"}, **strange}
        before = {name: (id(one), one.data_ptr(), one.tolist()) for name, one in named(one).items()}
        left = share_what_can(wanted, named(one))
        self.assertEqual(set(left), {"1.weight", "meta", "sparse", "array"})
        self.assertIn("shares its memory with tensors that were not given", left["1.weight"])
        self.assertIn("on the device meta", left["meta"])
        for name, tensor in named(one).items():
            number, place, values = before[name]
            self.assertEqual((id(tensor), tensor.tolist()), (number, values), name)
            self.assertEqual(tensor.data_ptr() == place, name in ("1.weight", "nothing"), name)
            self.assertEqual(is_there(tensor), name not in ("1.weight", "nothing"), name)
        self.assertIs(one[3].weight, one[0].weight)
        self.assertEqual(one.head.data_ptr(), one.flat.data_ptr())
        self.assertTrue(torch.equal(kept, one[1].weight))
        places = {name: tensor.data_ptr() for name, tensor in named(one).items()}
        share_what_can(wanted, named(one))
        self.assertEqual({name: tensor.data_ptr() for name, tensor in named(one).items()}, places)

    def test_others_move_only_along(self):
        from ferry._memory import share_what_can

        table, other = torch.ones(4, 2), torch.ones(3)
        self.assertEqual(share_what_can({"table": table}, {"head": table.view(8), "other": other}), {})
        self.assertEqual((is_there(table), is_there(other)), (True, False))

    def test_bytes_in_common(self):
        from ferry._memory import share_what_can

        array = torch.arange(8.0).numpy()
        both = {"a": torch.from_numpy(array), "b": torch.from_numpy(array[4:])}
        left = share_what_can(both, {})
        self.assertEqual(set(left), {"a", "b"})
        both["b"][0] = 9
        self.assertEqual(float(both["a"][4]), 9)

    def test_no_memory_left(self):
        from ferry import _memory

        pieces, made = [], _ferry.memory

        def second_fails(n_bytes):
            pieces.append(n_bytes)
            if len(pieces) == 2:
                raise ferry.LimitExceeded("no descriptor is left")
            return made(n_bytes)

        _ferry.memory, _memory._PIECE_BYTES = second_fails, 64
        self.addCleanup(setattr, _memory, "_PIECE_BYTES", 2**30)
        self.addCleanup(setattr, _ferry, "memory", made)
        both = {"a": torch.ones(16), "b": torch.ones(16), "c": torch.ones(16)}
        left = _memory.share_what_can(both, {})
        self.assertEqual(left, dict.fromkeys("bc", "no descriptor is left"))
        self.assertEqual([is_there(one) for one in both.values()], [True, False, False])
        self.assertEqual([one.sum() for one in both.values()], [16] * 3)


@unittest.skipIf(torch is None, "torch is not installed")
class Ranks(unittest.TestCase):
    def test_refits(self):
        self.assertEqual(run_ranks(refits, 2), [True] * 2)


if __name__ == "__main__":
    unittest.main()
