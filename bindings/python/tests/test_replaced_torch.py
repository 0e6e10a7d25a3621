# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Torch tensors whose memory is replaced between runs, whose dtype ferry has no name for, and whose
values a graph has saved."""

import sys
import types
import unittest

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor
except ImportError:
    torch = None

sys.modules["megatron"] = None  # its import takes long, and nothing here is of it

import ferry  # noqa: E402
from support import run_ranks  # noqa: E402

WHOLE = {"mesh": [], "rules": [{"match": "*"}]}
PAIR = {"mesh": [["dp", 2]], "rules": [{"match": "*"}]}


def spec(shape, dtype="f32", side=WHOLE, names=("w",)):
    return {"format": "ferry.spec/1", "source": side, "destination": side,
            "tensors": [{"name": name, "shape": list(shape), "dtype": dtype} for name in names]}


def parameter(value, is_strided):
    memory = torch.full((6, 4), value).t() if is_strided else torch.full((4, 6), value)
    return torch.nn.Parameter(memory)


# What people do to a tensor's memory.
CHANGES = {
    "data": lambda p: setattr(p, "data", torch.full((4, 6), 7.0)),
    "strides": lambda p: setattr(p, "data", p.data.view(-1).as_strided((4, 6), (1, 4))
                                 if p.is_contiguous() else p.data.t().reshape(4, 6)),
    "dtype": lambda p: setattr(p, "data", p.data.half()),
    "module": lambda p: setattr(p, "data", p.data.double().float()),
    "freed": lambda p: p.untyped_storage().resize_(0),
}


def told(call):
    try:
        call()
    except ferry.Error as error:
        return type(error).__name__, error.tensor, str(error)
    return "well", None, ""


def replaced_on_one_rank(rank, size):
    """All ranks are told before anything moves, also those whose tensors are as they were."""
    found = []
    for is_strided in (False, True):
        for side in (0, 1):
            source, target = parameter(1.0, is_strided), parameter(0.0, is_strided)
            with ferry.Refit({"w": source}, {"w": target}, spec((4, 6), side=PAIR)) as planned:
                planned.run()
                assert torch.all(target == 1)
                with torch.no_grad():
                    source.fill_(2)
                kept = target.data
                if rank == 1:
                    (source, target)[side].data = torch.full((4, 6), 9.0)
                said = told(planned.run)
                found.append((said[0], said[1], bool(torch.all(kept == 1))))
    return found


def dtensors(rank, size):
    """The adapter sees that a DTensor has other local memory."""
    from ferry.adapters import torch as adapter

    dist.init_process_group("gloo")
    mesh = DeviceMesh("cpu", list(range(size)))
    full = torch.arange(24.0).reshape(4, 6)
    found = []
    for dims in ((0, 0), (0, 1)):
        for side in (0, 1):
            given = [distribute_tensor(full.clone() * (1 - at), mesh, [Shard(dim)],
                                       src_data_rank=None) for at, dim in enumerate(dims)]
            with adapter.prepare({"w": given[0]}, {"w": given[1]}) as planned:
                planned.run()
                assert torch.equal(given[1].full_tensor(), full)
                planned.run()
                if rank == 0:
                    given[side]._local_tensor = given[side]._local_tensor.clone()
                found.append(told(planned.run)[:2])
    dist.barrier()
    dist.destroy_process_group()
    return found


def modules(rank, size):
    """Also a parameter that was put into the module anew."""
    from ferry.adapters import megatron

    def module(value):
        made = torch.nn.Linear(6, 4, bias=False)
        torch.nn.init.constant_(made.weight, value)
        made.pg_collection = types.SimpleNamespace(tp=[rank], expt_tp=None, ep=None, dp=[0, 1],
                                                   pp=[rank])
        return made

    found = []
    for change in ("data", "assign", "none"):
        source, target = module(3.0), module(0.0)
        with megatron.prepare(source, target) as planned:
            planned.run()
            assert torch.all(target.weight == 3)
            if rank == 1 and change == "data":
                target.weight.data = torch.zeros(4, 6)
            elif rank == 1 and change == "assign":
                source.weight = torch.nn.Parameter(torch.zeros(4, 6))
            found.append(told(planned.run)[:2])
    return found


def shared(rank, size):
    """What the second rank gets of the first lies, from then on, where that writes to directly, and all
    that looks into it sees it, but for what others would be left behind in. A refit that was prepared
    before goes on."""
    from ferry import _ferry
    from ferry.adapters import megatron

    def module(fill, alone):
        made = torch.nn.Module()
        made.table, made.norm = (torch.nn.Parameter(torch.full(shape, fill)) for shape in ((6, 4), (5,)))
        made.head = made.table
        made.register_buffer("rows", made.table.data[1:], persistent=False)
        made.register_buffer("own", torch.zeros(3), persistent=False)
        made.pg_collection = types.SimpleNamespace(
            tp=[alone], expt_tp=None, ep=None, dp=[alone], pp=[alone])
        return made

    def is_there(tensor):
        return _ferry.has_memory(tensor.data_ptr(), tensor.nbytes)

    source, target = (module(3.0, 0), None) if rank == 0 else (None, module(0.0, 1))
    kept = objects = None
    if target is not None:
        kept, objects = target.norm.detach()[1:], list(target.parameters())
    megatron.refit(source, target)  # of one run nothing moves
    found = [target is None or not is_there(target.table)]
    with megatron.prepare(source, target) as planned:
        for value in (4.0, 5.0):
            if source is not None:
                source.table.data.fill_(value)
                source.norm.data.fill_(value)
            planned.run()
            if target is not None:
                found += [bool(torch.all(one == value))
                          for one in (target.table, target.head, target.rows, target.norm, kept)]
        staged = planned.service.statistics().bytes_staged
        if target is not None:
            found += [is_there(one) == there for one, there in (
                (target.table, True), (target.rows, True), (target.norm, False), (target.own, False))]
            found.append([id(one) for one in objects] == [id(one) for one in target.parameters()])
        else:
            found += [staged == 5 * 4, not is_there(source.table)]
        with megatron.prepare(target, source) as back:  # of what the first refit reads
            back.run()
            planned.run()
            back.run()
    return found


WAYS = ((2, 4), (4, 2), (1, 4), (4, 1), (2, 2))


def experts(rank, size):
    return [experts_of(rank, size, ways) for ways in WAYS]


def experts_of(rank, size, ways):
    """Four experts on `ways[0]` ranks go to `ways[1]` ranks; each is its own number."""
    from ferry.adapters import megatron

    def module(n_ranks, fill, name="local_experts"):
        each = 4 // n_ranks
        made = torch.nn.Module()
        made.mlp = torch.nn.Module()
        setattr(made.mlp, name, torch.nn.ModuleList([torch.nn.Linear(3, 2, bias=False)
                                                     for _ in range(each)]))
        ranks = list(range(rank // n_ranks * n_ranks, rank // n_ranks * n_ranks + n_ranks))
        for number, one in enumerate(getattr(made.mlp, name)):
            one.weight.allreduce = False
            torch.nn.init.constant_(one.weight, fill(rank % n_ranks * each + number))
        made.pg_collection = types.SimpleNamespace(tp=[rank], expt_tp=[rank], ep=ranks,
                                                   dp=list(range(size)), pp=[rank])
        return made

    source = module(ways[0], lambda number: 10.0 + number)
    target = module(ways[1], lambda number: -1.0)
    megatron.refit(source, target, num_experts=4)
    each = 4 // ways[1]
    right = [bool(torch.all(one.weight == 10.0 + rank % ways[1] * each + number))
             for number, one in enumerate(target.mlp.local_experts)]
    unnamed = told(lambda: megatron.refit(module(2, float, "parts"), module(4, float, "parts"),
                                          num_experts=4))
    unknown = told(lambda: megatron.refit(source, target))
    return right, unnamed[0], "does not say of which" in unnamed[2], unknown[0]


@unittest.skipIf(torch is None, "torch is not installed")
class NoMemory(unittest.TestCase):
    """Tensors that have a shape and nothing behind it are told apart from those that were freed."""

    def test_fake_and_meta(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        fake = FakeTensorMode()
        plain = torch.zeros(4, 6)
        for made, kind, sentence in (
            (fake.from_tensor(plain), ferry.InvalidInput, "fake"),
            (torch.nn.Parameter(fake.from_tensor(plain)), ferry.InvalidInput, "fake"),
            (torch.zeros(4, 6, device="meta"), ferry.Unsupported, "device meta"),
            (torch.nn.Linear(6, 4, device="meta").weight, ferry.Unsupported, "device meta"),
            (plain.to_sparse(), ferry.InvalidInput, "sparse"),
        ):
            for sides in (({"w": made}, {"w": plain}), ({"w": plain}, {"w": made})):
                with self.subTest(sentence):
                    with self.assertRaisesRegex(kind, '"w".*' + sentence) as caught:
                        ferry.refit(*sides, spec((4, 6)))
                    self.assertEqual(caught.exception.tensor, "w")


@unittest.skipIf(torch is None, "torch is not installed")
class Replaced(unittest.TestCase):
    def test_what_happens_to_memory(self):
        for is_strided in (False, True):
            for side in (0, 1):
                for what, change in CHANGES.items():
                    source, target = parameter(1.0, is_strided), parameter(0.0, is_strided)
                    with self.subTest(what, strided=is_strided, side=side):
                        with ferry.Refit({"w": source}, {"w": target}, spec((4, 6))) as planned:
                            planned.run()
                            self.assertTrue(torch.all(target == 1))
                            change((source, target)[side])
                            with self.assertRaises(ferry.InvalidInput) as caught:
                                planned.run()
                            self.assertEqual(caught.exception.tensor, "w")

    def test_tensors_without_dims(self):
        for strided in (False, True):
            scale, out = torch.nn.Parameter(torch.ones(())), torch.zeros(())
            beside = torch.zeros(6, 4).t() if strided else torch.zeros(4, 6)
            made = spec((4, 6))
            made["tensors"].append({"name": "scale", "shape": [], "dtype": "f32"})
            with ferry.Refit({"w": beside, "scale": scale}, {"w": torch.zeros(4, 6), "scale": out},
                             made) as planned:
                planned.run()
                with torch.no_grad():
                    scale.fill_(5)
                planned.run()
                self.assertEqual(out.item(), 5)
                scale.data = torch.zeros(())
                with self.assertRaisesRegex(ferry.InvalidInput, '"scale"'):
                    planned.run()

    def test_one_rank_of_two(self):
        for found in run_ranks(replaced_on_one_rank, 2):
            self.assertEqual(found, [("InvalidInput", "w", True)] * 4)

    def test_dtensors(self):
        for found in run_ranks(dtensors, 2):
            self.assertEqual(found, [("InvalidInput", "w")] * 4)

    def test_modules(self):
        for found in run_ranks(modules, 2):
            self.assertEqual(found, [("InvalidInput", "weight")] * 2 + [("well", None)])

    def test_memory_that_ranks_share(self):
        for found in run_ranks(shared, 2):
            self.assertEqual(set(found), {True}, found)

    def test_experts_that_are_modules(self):
        for rank, found in enumerate(run_ranks(experts, 4)):
            for ways, (right, unnamed, sentence, unknown) in zip(WAYS, found):
                with self.subTest(ways=ways, rank=rank):
                    self.assertEqual(right, [True] * (4 // ways[1]))
                    self.assertEqual((unnamed, sentence, unknown),
                                     ("InvalidInput", True, "InvalidInput"))


@unittest.skipIf(torch is None, "torch is not installed")
class Dtypes(unittest.TestCase):
    def test_what_ferry_has_no_name_for(self):
        rows = [("float8_e4m3fnuz", "f8e4m3"), ("float8_e5m2fnuz", "f8e5m2"), ("complex32", "f32"),
                ("complex128", "c64")]
        for given, planned in rows:
            n = 4 * (2 if given == "complex128" else 1)
            odd = torch.zeros(4, dtype=torch.uint8).repeat(getattr(torch, given).itemsize)
            odd = odd.view(getattr(torch, given))
            plain = torch.zeros(n, dtype=getattr(torch, {
                "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f32": "float32",
                "c64": "complex64"}[planned]))
            for sides in ((odd, plain), (plain, odd)):
                with self.subTest(given, source=sides[0] is odd):
                    made = spec(plain.shape if n == odd.numel() else (4,), planned)
                    with self.assertRaises(ferry.InvalidInput):
                        ferry.refit({"w": sides[0]}, {"w": sides[1]}, made)
                    with ferry.RemoteCopyService() as service:
                        service.init("OFF")
                        service.register_send(1, sides[0].view(torch.uint8)[:16].view(
                            sides[0].dtype), 0, None, 0, name="w")
                        service.register_receive(1, sides[1].view(torch.uint8)[:16].view(
                            sides[1].dtype), 0, None, 0, name="w")
                        if sides[0].element_size() * sides[0].numel() != \
                                sides[1].element_size() * sides[1].numel():
                            service.clear_requests()
                            continue
                        with self.assertRaisesRegex(ferry.InvalidInput, '"w".* of dtype'):
                            service.schedule()

    def test_the_same_on_both_sides(self):
        for dtype in (torch.float8_e4m3fnuz, torch.complex32):
            width = dtype.itemsize
            source = torch.arange(4 * width, dtype=torch.uint8).view(dtype)
            target = torch.zeros(4 * width, dtype=torch.uint8).view(dtype)
            ferry.refit({"w": source}, {"w": target}, spec((4,), "bytes:%d" % width))
            self.assertEqual(target.view(torch.uint8).tolist(), list(range(4 * width)))

    def test_two_that_are_only_as_wide(self):
        from ferry.adapters import torch as adapter

        source = torch.zeros(4, dtype=torch.float8_e4m3fnuz)
        target = torch.ones(4, dtype=torch.uint8).view(torch.float8_e5m2fnuz)
        with self.assertRaisesRegex(ferry.InvalidInput, 'fnuz.*e5m2fnuz'):
            adapter.refit({"w": source}, {"w": target})
        self.assertEqual(target.view(torch.uint8).tolist(), [1] * 4)

    def test_a_copy_service_of_tensors(self):
        from ferry.adapters.megatron import FerryCopyService

        for keep in (False, True):
            service = FerryCopyService(keep=keep)
            service.submit_send(torch.ones(4, dtype=torch.bfloat16), 0)
            service.submit_recv(torch.ones(4, dtype=torch.float16), 0)
            with self.assertRaisesRegex(ferry.InvalidInput, "bf16.*f16"):
                service.run()
            source, target = torch.ones(4), torch.zeros(4)
            service.submit_send(source, 0)
            service.submit_recv(target, 0)
            service.run()
            self.assertTrue(torch.equal(source, target))
            service.close()


@unittest.skipIf(torch is None, "torch is not installed")
class Autograd(unittest.TestCase):
    def saved(self):
        x = torch.ones(4, 6, requires_grad=True)
        target = torch.zeros(4, 6)
        return x, target, (x * target).sum()

    def check(self, move):
        x, target, loss = self.saved()
        move(torch.full((4, 6), 3.0), target)
        self.assertTrue(torch.all(target == 3))
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()

    def test_a_refit(self):
        self.check(lambda source, target: ferry.refit({"w": source}, {"w": target}, spec((4, 6))))

    def test_a_refit_of_strides(self):
        def move(source, target):
            ferry.refit({"w": source.t().contiguous().t()}, {"w": target}, spec((4, 6)))

        self.check(move)

    def test_the_service(self):
        for how in ("run", "start"):
            def move(source, target):
                with ferry.RemoteCopyService() as service:
                    service.init("OFF")
                    service.register_send(1, source, 0, None, 0)
                    service.register_receive(1, target, 0, None, 0)
                    service.schedule()
                    service.run() if how == "run" else service.start().wait()

            self.check(move)

    def test_sources_and_inference(self):
        source, target = torch.ones(4, 6), torch.zeros(4, 6)
        before = source._version
        with torch.inference_mode():
            quiet = torch.zeros(4, 6)
        ferry.refit({"w": source}, {"w": target}, spec((4, 6)))
        ferry.refit({"w": source}, {"w": quiet}, spec((4, 6)))
        self.assertEqual(source._version, before)
        self.assertTrue(torch.equal(source, target) and torch.equal(source, quiet))


if __name__ == "__main__":
    unittest.main()
