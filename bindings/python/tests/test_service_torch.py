# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The copy service on torch tensors: whatever their strides, against torch's own copies."""

import gc
import random
import unittest
import weakref

try:
    import torch
except ImportError:
    torch = None

import ferry
from support import run_ranks

DTYPES = ["float32", "bfloat16", "float16", "uint8", "int64", "bool", "float8_e4m3fn", "complex64",
          "complex128", "float64", "int16"]


def contents(dtype, n_elements, chance):
    width = getattr(torch, dtype).itemsize
    raw = bytearray(chance.randbytes(n_elements * width))
    if dtype == "bool":
        raw = bytearray(byte & 1 for byte in raw)
    return torch.frombuffer(raw, dtype=torch.uint8).clone().view(getattr(torch, dtype))


def strided(dtype, chance, into_holes=None):
    """A random view of a fresh tensor: narrowed, stepped, transposed, of 0 to 5 dims."""
    n_dims = chance.randrange(6)
    whole = [chance.randrange(1, 7) for _ in range(n_dims)]
    elements = 1
    for length in whole:
        elements *= length
    base = contents(dtype, elements, chance).reshape(whole)
    view = base
    for d in range(n_dims):
        begin = chance.randrange(view.shape[d])
        view = view.narrow(d, begin, chance.randrange(1, view.shape[d] - begin + 1))
        view = view[(slice(None),) * d + (slice(None, None, chance.choice((1, 1, 2, 3))),)]
    if n_dims > 1 and chance.random() < 0.7:
        order = list(range(n_dims))
        chance.shuffle(order)
        view = view.permute(order)
    return base, view


def bytes_of(tensor):
    """Row-major bytes as torch itself lays them out."""
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def random_tasks(size, seed):
    """(task, from, to, source base, source view, destination base, destination view), the same on
    all ranks; both ends have as many bytes, in whatever shape."""
    chance = random.Random(seed)
    tasks = []
    for task in range(40):
        dtype = chance.choice(DTYPES)
        a_base, a = strided(dtype, chance)
        if chance.random() < 0.5:  # the same shape with other strides
            b_base = contents(dtype, a.numel() * 2, chance).reshape(-1, 2)
            b = b_base[:, chance.randrange(2)].reshape(a.shape) if chance.random() < 0.3 else None
            if b is None or b.data_ptr() < b_base.data_ptr() or b._base is None:
                b_base = contents(dtype, a.numel(), chance).reshape(tuple(reversed(a.shape)))
                b = b_base.permute(*reversed(range(a.dim()))) if a.dim() else b_base
        else:  # a row of something longer
            b_base = contents(dtype, a.numel() * 3, chance).reshape(3, a.numel())
            b = b_base[1]
        tasks.append((task, chance.randrange(size), chance.randrange(size), a_base, a, b_base, b))
    return tasks


def strides_of_all_kinds(rank, size, seed):
    tasks = random_tasks(size, seed)
    with ferry.RemoteCopyService(checksum="end") as service:
        service.init("WARN")
        service.register_sends([(task, a, 0, None, to)
                                for task, by, to, _, a, _, _ in tasks if by == rank])
        service.register_receives([(task, b, 0, None, by)
                                   for task, by, to, _, _, _, b in tasks if to == rank])
        service.schedule()
        for turn in range(2):
            expected = []
            for task, by, to, a_base, a, b_base, b in tasks:  # other contents, on every rank
                fresh = random.Random(repr((seed, turn, task)))
                name = str(a_base.dtype).split(".")[1]
                a_base.copy_(contents(name, a_base.numel(), fresh).reshape(a_base.shape))
                wanted = b_base.clone()
                place = torch.as_strided(wanted, b.shape, b.stride(), b.storage_offset())
                place.copy_(a.clone().reshape(b.shape))
                expected.append(wanted)
            service.run()
            for (task, by, to, _, _, b_base, _), wanted in zip(tasks, expected):
                if to == rank:
                    assert bytes_of(b_base) == bytes_of(wanted), (seed, turn, task)
    return len([1 for task in tasks if not task[4].is_contiguous()])


def rows_of_a_transposed_tensor(rank, size):
    """Ranges of tensors with gaps: rows, rows of an inner dim, and parts of one row."""
    base = torch.arange(4 * 6 * 5, dtype=torch.int32).reshape(5, 6, 4)
    view = base.permute(2, 1, 0)  # 4, 6, 5
    ranges = [(0, 2 * 30), (30, 3 * 30), (2 * 30 + 5, 4 * 5), (3 * 30 + 5 * 4 + 1, 3), (119, 1)]
    into = torch.full((200,), -1, dtype=torch.int32)
    holes = torch.full((120, 2), -1, dtype=torch.int32)
    service = ferry.RemoteCopyService()
    service.init("WARN")
    at = 0
    for task, (begin, length) in enumerate(ranges):
        if rank == 0:
            service.register_send(task, view, begin * 4, length * 4, 1)
        elif rank == 1:
            service.register_receive(task, into, at * 4, length * 4, 0)
        at += length
    if rank == 0:
        service.register_send(100, base, 8, 40, 1)
    elif rank == 1:
        service.register_receive(100, holes[:, 1], 7 * 4, 40, 0)
    service.schedule()
    service.run()
    if rank == 1:
        flat = view.clone(memory_format=torch.contiguous_format).reshape(-1)
        wanted = torch.cat([flat[begin:begin + length] for begin, length in ranges])
        assert torch.equal(into[:at], wanted) and bool((into[at:] == -1).all())
        wanted = torch.full((120, 2), -1, dtype=torch.int32)
        wanted[7:17, 1] = torch.arange(2, 12, dtype=torch.int32)
        assert torch.equal(holes, wanted)
    service.finalize()


def over_groups(rank, size):
    """All ranks of torch's default group, and a group of its own."""
    import torch.distributed as dist

    pair = dist.new_group([0, 2])
    with ferry.RemoteCopyService() as service:
        service.init("WARN")
        tensor, got = torch.full((3,), float(rank)), torch.zeros(3)
        service.register_send(1, tensor, 0, 12, (rank + 1) % size)
        service.register_receive(1, got, 0, 12, (rank - 1) % size)
        service.schedule()
        service.run()
        assert got.tolist() == [float((rank - 1) % size)] * 3
    if rank != 1:
        with ferry.RemoteCopyService(group=pair) as service:
            service.init("WARN")
            me = service.my_pe
            assert (me, service.n_pes) == (rank // 2, 2)
            service.register_send(1, tensor, 0, 12, 1 - me)
            service.register_receive(1, got, 0, 12, 1 - me)
            service.schedule()
            service.run()
            assert got.tolist() == [2.0 - rank] * 3


def everything(rank, size):
    """In one go: it takes longer to load torch than to do all of this."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        over_groups(rank, size)
        counts = [strides_of_all_kinds(rank, size, seed) for seed in range(6)]
        rows_of_a_transposed_tensor(rank, size)
    finally:
        ferry.shutdown()
        dist.destroy_process_group()
    return counts


@unittest.skipIf(torch is None, "torch is not installed")
class Ranks(unittest.TestCase):
    def test_groups_and_strides_and_rows(self):
        counts = run_ranks(everything, 3)
        self.assertEqual(counts[0], counts[1])
        self.assertGreater(min(counts[0]), 5)  # that have gaps


@unittest.skipIf(torch is None, "torch is not installed")
class Tensors(unittest.TestCase):
    def setUp(self):
        self.service = ferry.RemoteCopyService()
        self.service.init("ERROR")
        self.addCleanup(self.service.finalize)

    def carry(self, source, target):
        self.service.clear_requests()
        self.service.register_send(1, source, 0, None, 0)
        self.service.register_receive(1, target, 0, None, 0)
        self.service.schedule()
        self.service.run()

    def test_kinds_of_tensors(self):
        class Own(torch.Tensor):
            pass

        plain = torch.randn(6)
        for source in (plain, torch.nn.Parameter(plain.clone()), plain.clone().requires_grad_(),
                       plain.clone().as_subclass(Own), plain.clone().share_memory_()):
            with self.subTest(type=type(source)):
                target = torch.zeros(6)
                self.carry(source, target)
                self.assertEqual(bytes_of(target), bytes_of(source))
        number = torch.tensor(7.5)
        target = torch.zeros(())
        self.carry(number, target)
        self.assertEqual(target.item(), 7.5)

    def test_refusals(self):
        part_of_complex = torch.zeros(3, dtype=torch.complex64).conj().imag
        emptied = torch.zeros(4)
        emptied.untyped_storage().resize_(0)
        cases = [
            (torch.zeros(3, device="meta"), ferry.Unsupported, "meta.*no memory"),
            (torch.zeros(3).to_sparse(), ferry.InvalidInput, "sparse"),
            (torch.zeros(1).expand(4), ferry.InvalidInput, "stride"),
            (torch.zeros(8).as_strided((3, 3), (1, 1)), ferry.InvalidInput, "share memory"),
            (torch.zeros(3, dtype=torch.complex64).conj(), ferry.InvalidInput, "resolve_conj"),
            (part_of_complex, ferry.InvalidInput, "resolve_neg"),
            (part_of_complex[:1], ferry.InvalidInput, "resolve_neg"),
            (emptied, ferry.InvalidInput, "freed"),
            (torch.zeros((1,) * 9), ferry.LimitExceeded, "9 dims"),
        ]
        for number, (tensor, kind, words) in enumerate(cases):
            with self.subTest(words=words):
                with self.assertRaisesRegex(kind, words) as caught:
                    self.service.register_send(number, tensor, 0, None, 0)
                if number not in (8,):
                    self.assertEqual(caught.exception.tensor, "task %d" % number)
                with self.assertRaisesRegex(kind, words) as caught:
                    self.service.register_receive(number, tensor, 0, None, 0, name="layer.0.w")
                if number not in (8,):
                    self.assertEqual(caught.exception.tensor, "layer.0.w")

    def test_ranges_that_are_no_boxes(self):
        view = torch.zeros(6, 4).t()  # 4 rows of 6 floats
        for begin, size in ((4, 24), (20, 8), (2, 4), (0, 30), (24, 36)):
            with self.subTest(begin=begin, size=size):
                with self.assertRaisesRegex(ferry.InvalidInput, "gaps.*whole rows"):
                    self.service.register_send(1, view, begin, size, 0)
        self.service.register_send(1, view, 24, 48, 0)

    def test_a_tensor_that_moved_is_named(self):
        grown, replaced, shrunk = torch.zeros(4), torch.zeros(4), torch.zeros(4)
        other = [torch.zeros(4) for _ in range(3)]
        steps = [lambda: grown.resize_(4000), lambda: setattr(replaced, "data", torch.ones(4)),
                 lambda: shrunk.resize_(2)]
        for number, (tensor, step) in enumerate(zip((grown, replaced, shrunk), steps)):
            self.service.clear_requests()
            self.service.register_send(number, tensor, 0, 16, 0)
            self.service.register_receive(number, other[number], 0, 16, 0, name="fine")
            self.service.schedule()
            self.service.run()
            step()
            for call in (self.service.run, lambda: self.service.start().wait()):
                with self.assertRaisesRegex(ferry.InvalidInput, "moved or resized") as caught:
                    call()
                self.assertEqual(caught.exception.tensor, "task %d" % number)
        self.service.clear_requests()
        target = torch.nn.Parameter(torch.zeros(4))
        self.service.register_send(1, torch.ones(4), 0, 16, 0)
        self.service.register_receive(1, target, 0, 16, 0, name="decoder.weight")
        target.data = torch.zeros(4)
        with self.assertRaisesRegex(ferry.InvalidInput, "decoder.weight"):
            self.service.schedule()

    def test_a_freed_storage_is_named(self):
        tensor, target = torch.zeros(1000), torch.zeros(1000)
        self.service.register_send(1, tensor, 0, None, 0)
        self.service.register_receive(1, target, 0, None, 0)
        self.service.schedule()
        tensor.untyped_storage().resize_(0)
        with self.assertRaisesRegex(ferry.InvalidInput, "task 1"):
            self.service.run()

    def test_tensors_are_kept(self):
        source, target = torch.ones(8), torch.zeros(8)
        seen = weakref.ref(source)
        self.service.register_sends([(i, source, 4 * i, 4, 0) for i in range(8)])
        self.service.register_receives([(i, target, 4 * i, 4, 0) for i in range(8)])
        del source
        gc.collect()
        self.service.schedule()
        self.service.run()
        self.assertEqual(target.tolist(), [1.0] * 8)
        self.assertIsNotNone(seen())
        self.service.clear_requests()
        self.assertIsNone(seen())

    def test_many_tensors_in_one_call(self):
        n = 20000
        sources = [torch.full((1,), i, dtype=torch.int32) for i in range(n)]
        targets = [torch.zeros(1, dtype=torch.int32) for _ in range(n)]
        self.service.register_sends([(i, sources[i], 0, 4, 0) for i in range(n)])
        self.service.register_receives([(i, targets[i], 0, 4, 0) for i in reversed(range(n))])
        self.service.schedule()
        self.service.run()
        self.assertEqual([int(one) for one in targets], list(range(n)))

    def test_memory_of_the_service(self):
        tensor = torch.frombuffer(self.service.alloc(64), dtype=torch.float32)
        self.carry(torch.arange(16.0), tensor)
        self.service.finalize()
        gc.collect()
        tensor += 1
        self.assertEqual(tensor.tolist(), [i + 1.0 for i in range(16)])

    def test_dtypes_of_a_plan(self):
        names = {"f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f8e8m0": "float8_e8m0fnu",
                 "bf16": "bfloat16", "f16": "float16", "f32": "float32", "i32": "int32",
                 "bool": "bool", "c64": "complex64", "u16": "uint16", "f64": "float64"}
        refused = [("bf16", "float16"), ("f16", "bfloat16"), ("f8e4m3", "float8_e5m2"),
                   ("f8e5m2", "float8_e4m3fn"), ("f32", "float64"), ("f32", "float16")]
        mesh = {"mesh": [["tp", 1]], "rules": [{"match": "*"}]}
        for planned, given in [*names.items(), ("bf16", "int16"), ("f8e4m3", "uint8"), *refused]:
            plan = ferry.plan({"format": "ferry.spec/1", "source": mesh, "destination": mesh,
                               "tensors": [{"name": "w", "shape": [4], "dtype": planned}]})
            right = getattr(torch, names[planned])
            source = torch.zeros(4, dtype=right)
            target = torch.zeros(4, dtype=getattr(torch, given))
            self.service.clear_requests()
            with self.subTest(planned=planned, given=given):
                if (planned, given) not in refused:
                    self.service.bind(plan, {"w": source}, {"w": target})
                    continue
                with self.assertRaisesRegex(ferry.InvalidInput, "dtype") as caught:
                    self.service.bind(plan, {"w": source}, {"w": target})
                self.assertEqual(caught.exception.tensor, "w")

    def test_a_bound_tensor_is_whole(self):
        mesh = {"mesh": [["tp", 1]], "rules": [{"match": "*"}]}
        plan = ferry.plan({"format": "ferry.spec/1", "source": mesh, "destination": mesh,
                           "tensors": [{"name": "w", "shape": [4, 6], "dtype": "f32"}]})
        good = torch.zeros(4, 6)
        for tensor, words in ((torch.zeros(6, 4).t(), "not contiguous"),
                              (good.data_ptr(), "pointer"), ((good, good, good), "3 objects"),
                              (torch.zeros(4, 5), "96 bytes.* 80"), (None, "NoneType")):
            for sides in (({"w": tensor}, {"w": good}), ({"w": good}, {"w": tensor})):
                with self.subTest(words=words), self.assertRaisesRegex(ferry.InvalidInput, words):
                    self.service.bind(plan, *sides)
        with self.assertRaisesRegex(ferry.InvalidInput, "dict"):
            self.service.bind(plan, [good], {"w": good})
        with self.assertRaisesRegex(ferry.InvalidInput, "dict"):
            self.service.bind(plan, {7: good}, {"w": good})
        target = torch.nn.Parameter(torch.ones(4, 6))
        self.service.bind(plan, {"w": good}, {"w": target})
        self.service.schedule()
        target.data = torch.ones(4, 6)
        with self.assertRaisesRegex(ferry.InvalidInput, "moved") as caught:
            self.service.run()
        self.assertEqual(caught.exception.tensor, "w")
        self.service.rebind(destinations={"w": target})
        self.service.run()
        self.assertEqual(target.sum().item(), 0.0)

    def test_other_descriptions_say_the_same(self):
        """Subclasses are asked for attributes, plain tensors describe themselves."""
        class Own(torch.Tensor):
            pass

        for dtype in DTYPES:
            source = contents(dtype, 24, random.Random(dtype)).reshape(2, 3, 4)
            for view in (source, source.permute(2, 0, 1), source[:, 1:, ::2]):
                results = []
                for one in (view, view.as_subclass(Own)):
                    target = torch.zeros(view.shape, dtype=view.dtype)
                    self.carry(one, target)
                    results.append(bytes_of(target))
                self.assertEqual(results, [bytes_of(view)] * 2, (dtype, view.stride()))


if __name__ == "__main__":
    unittest.main()
