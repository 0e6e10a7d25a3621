# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Traces of loaders against what the loaders do: full tensors loaded for real, and refit as traced."""

import os
import random
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor

try:
    import torch
except ImportError:
    torch = None
try:
    import transformers
except ImportError:
    transformers = None

import ferry

if torch is not None:
    from torch import nn

REPLICATED = {"mesh": [], "rules": [{"match": "*"}]}


def known(shapes, dtype=None, seed=1):
    """Tensors of a checkpoint, all different and none of them zero."""
    made = torch.Generator().manual_seed(seed)
    return {name: torch.randn(*shape, generator=made).to(dtype or torch.bfloat16)
            for name, shape in shapes.items()}


def bits(tensor):
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def refit_as_traced(trace, full, model):
    """What ferry makes of the model's memory, from whole tensors."""
    spec = {"format": "ferry.spec/1", "tensors": trace.tensors, "source": REPLICATED,
            "destination": trace.side(0)}
    ferry.refit(full, trace.memory(model), spec)


def load_for_real(model, full):
    with torch.no_grad():
        load = getattr(model, "load_weights", None)
        if load is None:
            model.load_state_dict(full)
        else:
            load(iter(full.items()))


class Judge(unittest.TestCase):
    def compare(self, make, full, names=None, real=load_for_real, load=None):
        """make() twice: one loads, the other is refit. Returns the trace, which was of a third."""
        loaded, refitted = make(), make()
        real(loaded, full)
        with torch.device("meta"):
            traced = make()
        trace = ferry.trace(traced, full, load)
        if len(trace.unused) < len(full):  # no refit is of fills alone
            refit_as_traced(trace, full, refitted)
        elif not trace.parameters:
            return trace
        else:
            self.assertEqual([one["holds"] for one in trace.to_dict()["boxes"]], [[]])
            return trace
        theirs = loaded.state_dict()
        for name, tensor in refitted.state_dict().items():
            self.assertEqual(bits(tensor), bits(theirs[name]), name)
        return trace


if torch is not None:

    class Server(nn.Module):
        """What serving engines do, of one rank of `n`."""

        def __init__(self, rank, n, heads=8, kv=2, size=4, hidden=24, inner=36, vocab=50, experts=5):
            super().__init__()
            self.rank, self.n, self.size, self.kv = rank, n, size, kv
            self.own = list(range(rank, experts, n))  # dealt in turns
            own_kv = max(kv // n, 1)
            rows = (heads // n + 2 * own_kv) * size
            self.qkv = nn.Parameter(torch.empty(rows, hidden, dtype=torch.bfloat16))
            self.qkv_bias = nn.Parameter(torch.empty(rows, dtype=torch.float32))
            self.o = nn.Parameter(torch.empty(hidden, heads * size // n, dtype=torch.bfloat16))
            self.gate_up = nn.Parameter(torch.empty(2 * inner // n, hidden, dtype=torch.bfloat16))
            self.w13 = nn.Parameter(
                torch.empty(len(self.own), hidden, 2 * inner, dtype=torch.bfloat16))
            self.embed = nn.Parameter(torch.empty(-(-vocab // 64) * 64 // n, hidden,
                                                  dtype=torch.bfloat16))
            self.head = self.embed
            self.scale = nn.Parameter(torch.empty((), dtype=torch.bfloat16))
            self.register_buffer("inv_freq", torch.ones(4))

        def load_weights(self, weights):
            for name, tensor in weights:
                getattr(self, "load_" + name.split(".")[0])(name, tensor)

        def load_attn(self, name, tensor):
            part, last = name.split(".")[1:]
            target = self.qkv if last == "weight" else self.qkv_bias
            if part == "o":
                return self.o.data.copy_(tensor.chunk(self.n, 1)[self.rank])
            kv = max(self.kv // self.n, 1) * self.size
            q = target.shape[0] - 2 * kv
            begin, rows = {"q": (0, q), "k": (q, kv), "v": (q + kv, kv)}[part]
            first = self.rank * rows if part == "q" else self.rank * self.kv // self.n * self.size
            target.data.narrow(0, begin, rows).copy_(tensor.narrow(0, first, rows))

        def load_mlp(self, name, tensor):
            """Gate and up alternate, row by row."""
            own = tensor.chunk(self.n, 0)[self.rank]
            self.gate_up.data[(0 if "gate" in name else 1)::2] = own

        def load_experts(self, name, tensor):
            number, part = name.split(".")[1:3]
            if int(number) in self.own:
                place = self.w13.data[self.own.index(int(number))]
                place.chunk(2, 1)[part == "up"].copy_(tensor.t())

        def load_embed(self, name, tensor):
            rows = self.embed.shape[0]
            own = tensor[self.rank * rows:(self.rank + 1) * rows]
            self.embed.data[:len(own)].copy_(own)
            self.embed.data[len(own):].fill_(0)

        def load_scale(self, name, tensor):
            self.scale.data.copy_(tensor.squeeze())

    def server_tensors(experts=5):
        shapes = {"attn.q.weight": (32, 24), "attn.k.weight": (8, 24), "attn.v.weight": (8, 24),
                  "attn.q.bias": (32,), "attn.k.bias": (8,), "attn.v.bias": (8,),
                  "attn.o.weight": (24, 32), "mlp.gate": (36, 24), "mlp.up": (36, 24),
                  "embed.weight": (50, 24), "scale": (1,)}
        for number in range(experts):
            shapes["experts.%d.gate" % number] = shapes["experts.%d.up" % number] = (36, 24)
        return known(shapes)


@unittest.skipIf(torch is None, "torch is not installed")
class Loaders(Judge):
    def test_a_server_of_one_two_and_four_ranks(self):
        full = server_tensors()
        for n in (1, 2, 4):
            for rank in range(n):
                with self.subTest(n=n, rank=rank):
                    trace = self.compare(lambda: Server(rank, n), full)
                    self.assertEqual(trace.aliases, {"head": "embed"})
                    self.assertEqual(trace.untouched, ["inv_freq"])
                    self.assertEqual((trace.partial, len(trace.unused)), ([], 2 * (5 - len(range(rank, 5, n)))))

    def test_ranks_and_a_trainer_of_two_are_one_plan(self):
        full = server_tensors()
        spec = {"format": "ferry.spec/1", "source": {"mesh": [["tp", 2]], "rules": [
            {"match": "scale"}, {"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]}}
        side = {"boxes": []}
        for rank in range(4):
            with torch.device("meta"):
                trace = ferry.trace(Server(rank, 4), full)
            side["boxes"] += trace.side([2 + rank]).to_dict()["boxes"]
        spec.update(tensors=trace.tensors, destination=side)
        plan = ferry.plan(spec)
        self.assertEqual(plan.world_size, 6)
        self.assertGreater(plan.moved_bytes, 0)

    def test_a_model_that_has_weights_keeps_them(self):
        model = Server(0, 2)
        for tensor in model.parameters():
            nn.init.constant_(tensor, 3)
        before = {name: (tensor, tensor.data_ptr(), bits(tensor))
                  for name, tensor in model.state_dict(keep_vars=True).items()}
        trace = ferry.trace(model, server_tensors())
        with torch.device("meta"):
            self.assertEqual(trace, ferry.trace(Server(0, 2), server_tensors()))
        for name, tensor in model.state_dict(keep_vars=True).items():
            self.assertIs(tensor, before[name][0])
            self.assertEqual((tensor.data_ptr(), bits(tensor)), before[name][1:], name)

    def test_parameters_that_are_replaced(self):
        class Replaced(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(6, 4, bias=False), nn.Linear(6, 4, bias=False)
                self.c = nn.Linear(4, 6, bias=False)

            def load_weights(self, weights):
                full = dict(weights)
                self.a.weight.data = full["w"]
                self.b.weight = nn.Parameter(torch.cat([full["w"][2:], full["w"][:2]]))
                self.c.weight.data = full["w"].t()

        full = known({"w": (4, 6)}, torch.float32)
        trace = self.compare(Replaced, full)
        model = Replaced()
        owners = [model.b.weight, model.b.weight.data_ptr()]
        with self.assertRaisesRegex(ferry.Unsupported, "trace the model on the meta device"):
            ferry.trace(model, full)
        with torch.device("meta"):
            model.a, model.c = nn.Linear(6, 4, bias=False), nn.Linear(4, 6, bias=False)
        owners += [model.a.weight, model.a.weight.untyped_storage()._cdata]
        self.assertEqual(ferry.trace(model, full), trace)
        self.assertEqual([model.b.weight, model.b.weight.data_ptr(), model.a.weight,
                          model.a.weight.untyped_storage()._cdata], owners)

    def test_parameters_that_are_transposed(self):
        class Turned(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.empty(5, 7).t())

            def load_weights(self, weights):
                for _, tensor in weights:
                    self.w.data[:, 1:4].copy_(tensor)
                    self.w.data[:, :1].zero_()
                    self.w.data[:, 4:].fill_(-2.5)

        self.compare(Turned, known({"w": (7, 3)}, torch.float32))

    def test_what_is_written_twice_is_what_was_written_last(self):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.empty(12, 6))

            def load_weights(self, weights):
                full = dict(weights)
                self.w.data.fill_(1)
                self.w.data[:8].copy_(full["a"])
                self.w.data[1::3].copy_(full["b"])
                self.w.data[4:6, ::2].copy_(full["a"][:2, :3])

        self.compare(Twice, known({"a": (8, 6), "b": (4, 6)}, torch.float32))

    def test_casts(self):
        class Wide(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Parameter(torch.empty(3, 4))
                self.b = nn.Parameter(torch.empty(3, 4, dtype=torch.bfloat16))

            def load_weights(self, weights):
                full = dict(weights)
                self.a.data.copy_(full["a"])
                self.b.data.copy_(full["b"].float().to(torch.float64).float())

        full = {**known({"a": (3, 4)}), **known({"b": (3, 4)}, torch.float32)}
        trace = self.compare(Wide, full)
        self.assertEqual([one["cast"] for one in trace.to_dict()["boxes"]], ["round", "round"])

    def test_part_of_a_parameter_keeps_what_it_has(self):
        class Part(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.full((6, 2), 5.0))
                self.alone = nn.Parameter(torch.full((2,), 6.0))

            def load_weights(self, weights):
                for _, tensor in weights:
                    self.w.data[2:4] = tensor

        trace = self.compare(Part, known({"w": (2, 2)}, torch.float32))
        self.assertEqual((trace.partial, trace.untouched), (["w"], ["alone"]))

    def test_buffers_that_are_saved(self):
        class Buffers(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("kept", torch.zeros(4))
                self.register_buffer("lost", torch.zeros(4), persistent=False)

        trace = self.compare(Buffers, {"kept": torch.randn(4)})
        self.assertEqual((trace.parameters, trace.untouched), (["kept"], []))


@unittest.skipIf(torch is None, "torch is not installed")
class Ways(Judge):
    """Ways to copy that are easily missed: what is missed in silence is stale in the server."""

    def holder(self, **shapes):
        def make():
            model = nn.Module()
            for name, shape in shapes.items():
                model.register_parameter(name, nn.Parameter(torch.zeros(shape)))
            return model
        return make

    def both(self, make, shapes, load):
        """The loader for real, and as it is traced."""
        full = known(shapes, torch.float32)
        with torch.no_grad():
            return self.compare(
                make, full, load=lambda pairs: load(self.traced, pairs),
                real=lambda model, tensors: load(model, iter(tensors.items())))

    def compare(self, make, *args, **more):
        def kept():
            self.traced = make()  # the last that is made is traced
            return self.traced
        return super().compare(kept, *args, **more)

    def test_threads_of_the_loader(self):
        """Of a pool, and one that a thread of the loader starts."""
        def one(model, name, tensor):
            with torch.no_grad():
                getattr(model, name).copy_(tensor)

        def load(model, pairs):
            (first, second, *rest) = pairs
            one(model, *first)
            inner = threading.Thread(target=one, args=(model, *second))
            outer = threading.Thread(target=lambda: (inner.start(), inner.join()))
            outer.start()
            outer.join()
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda pair: one(model, *pair), rest))

        shapes = {name: (4, 6) for name in "abcdef"}
        start = threading.Thread.start
        trace = self.both(self.holder(**shapes), shapes, load)
        self.assertEqual(trace.untouched, [])
        self.assertIs(threading.Thread.start, start)

    def test_two_traces_at_once(self):
        shapes = {name: (4, 6) for name in "abc"}
        start = threading.Thread.start
        meet = threading.Barrier(2)
        found = {}

        def trace(scale):
            with torch.device("meta"):
                model = self.holder(**shapes)()

            def load(pairs):
                meet.wait(60)
                if scale == 0:
                    raise KeyError("the loader's own")
                for name, tensor in pairs:
                    thread = threading.Thread(
                        target=lambda: getattr(model, name).detach().copy_(tensor))
                    thread.start()
                    thread.join()
            try:
                found[scale] = ferry.trace(model, known(shapes, torch.float32), load)
            except KeyError as error:
                found[scale] = error

        both = [threading.Thread(target=trace, args=(scale,)) for scale in (0, 1)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        self.assertIsInstance(found[0], KeyError)
        self.assertEqual((found[1].parameters, found[1].unused), (list(shapes), []))
        self.assertIs(threading.Thread.start, start)

    def test_one_tensor_becomes_two_parameters(self):
        def load(model, pairs):
            for _, tensor in pairs:
                model.a, model.b = nn.Parameter(tensor), nn.Parameter(tensor)
        trace = self.both(self.holder(a=(4, 6), b=(4, 6)), {"w": (4, 6)}, load)
        self.assertEqual((trace.parameters, trace.aliases), (["a", "b"], {}))

    def test_results_that_are_told_where_to_go(self):
        def load(model, pairs):
            x, y = (tensor for _, tensor in pairs)
            torch.cat([x, y], out=model.a.data)
            torch.stack([y, x], 1, out=model.b.data)
            model.c.data.copy_(y)
            torch.index_select(x, 0, torch.tensor([2, 0, 1], device="cpu"), out=model.c.data)
        self.both(self.holder(a=(6, 4), b=(3, 2, 4), c=(3, 4)), {"x": (3, 4), "y": (3, 4)}, load)

    def test_many_at_once(self):
        def load(model, pairs):
            torch._foreach_copy_([model.a, model.b], [tensor for _, tensor in pairs])
        self.both(self.holder(a=(3, 4), b=(3, 4)), {"x": (3, 4), "y": (3, 4)}, load)

    def test_buffers_that_look_into_a_parameter(self):
        """They have what it has. One that had memory of its own before gets its bytes by itself, and so
        does one that has more than the parameter."""
        def make():
            model = self.holder(w=(4, 1, 6), v=(2, 3))()
            model.register_buffer("flat", model.w.data.view(4, 6), persistent=False)
            model.register_buffer("rows", model.w.data[1:3], persistent=False)
            model.register_buffer("apart", torch.zeros(2, 3), persistent=False)
            both = torch.zeros(8)
            model.part = nn.Parameter(both[:5])
            model.register_buffer("more", both[2:8], persistent=False)
            return model

        def load(model, pairs):
            whole, few, part, more = (tensor for _, tensor in pairs)
            model.w.data.copy_(whole)
            model.v.data.copy_(few)
            model.apart = model.v.data
            model.part.data[:2].copy_(part)
            model.more.copy_(more)

        model = make()
        trace = ferry.trace(model, {"w": ((4, 1, 6), "f32"), "v": ((2, 3), "f32"), "part": ((2,), "f32"),
                                     "more": ((6,), "f32")}, lambda pairs: load(model, pairs))
        self.assertEqual(trace.aliases, {"flat": "w", "rows": "w"})
        self.assertEqual(sorted(trace.parameters), ["apart", "more", "part", "v", "w"])

    def test_buffers_that_are_not_saved(self):
        """Those that get a tensor of the checkpoint count, those that are reckoned do not."""
        def make():
            model = self.holder(w=(4, 6))()
            model.register_buffer("copied", torch.zeros(4, 6), persistent=False)
            model.register_buffer("reckoned", torch.arange(6.0), persistent=False)
            return model

        def load(model, pairs):
            for _, tensor in pairs:
                model.w.copy_(tensor)
                model.copied.copy_(tensor)
            model.reckoned.mul_(2)

        trace = self.both(make, {"x": (4, 6)}, load)
        self.assertEqual((trace.parameters, trace.untouched), (["w", "copied"], []))
        self.assertEqual(trace.to_dict()["boxes"][1]["holds"][0]["tensor"], "x")

    def test_the_model_keeps_its_parameters(self):
        model = self.holder(w=(4, 6))()

        def load(pairs):
            for _, tensor in pairs:
                model.more = nn.Parameter(tensor)
        trace = ferry.trace(model, {"w": ((4, 6), "f32")}, load)
        self.assertEqual(trace.parameters, ["more"])
        self.assertEqual([name for name, _ in model.named_parameters()], ["w"])


class Programs(Judge):
    """Random chains of what torch has for moving elements, done for real and traced."""

    def change(self, seed, one, other):
        d = seed.randrange(one.dim()) if one.dim() else 0
        if one.dim() == 0 or one.numel() == 0:
            return one.reshape(1)
        n = one.shape[d]
        kind = seed.randrange(18)
        if kind == 0:
            begin = seed.randrange(n)
            return one.narrow(d, begin, seed.randint(1, n - begin))
        if kind == 1:
            return one.transpose(d, seed.randrange(one.dim()))
        if kind == 2:
            return one.reshape(-1)
        if kind == 3 and n % 2 == 0:
            return one.unflatten(d, (2, n // 2)) if one.dim() < 4 else one
        if kind == 4:
            return torch.cat([one, one.flip(d)], d)
        if kind == 5 and one.shape == other.shape:
            return torch.stack([one, other], seed.randrange(one.dim() + 1)) if one.dim() < 4 else one
        if kind == 6:
            return nn.functional.pad(one, (seed.randint(0, 2), seed.randint(0, 2)), value=seed.choice((0, 1.5)))
        if kind == 7:
            slices = [slice(None)] * d + [slice(seed.randrange(n), None, seed.randint(1, 3))]
            return one[tuple(slices)]
        if kind == 8:
            return one.contiguous().clone()
        if kind == 9:
            wanted = [seed.randrange(n) for _ in range(seed.randint(1, n))]
            return one.index_select(d, torch.tensor(wanted, device="cpu"))
        if kind == 10:
            return one.roll(seed.randint(-2, 2), d)
        if kind == 11 and one.numel() < 500:
            return one.repeat(*[seed.randint(1, 2) for _ in range(one.dim())])
        if kind == 12:
            return one.float().to(one.dtype)
        if kind == 13:
            return one.chunk(2, d)[seed.randrange(len(one.chunk(2, d)))]
        if kind == 14:
            return torch.zeros_like(one).copy_(one)
        if kind == 15:
            made = torch.full_like(one, 0.25)
            made.narrow(d, 0, (n + 1) // 2).copy_(one.narrow(d, n // 2, (n + 1) // 2))
            return made
        if kind == 16:
            return one[...].squeeze()
        return one.permute(*seed.sample(range(one.dim()), one.dim()))

    def program(self, number):
        seed = random.Random(number)
        shapes = {name: (4, 6) if seed.random() < 0.7 else (3, 4, 2) for name in "ab"}
        steps = seed.randint(1, 7)
        first, rest = seed.choice("ab"), seed.getrandbits(32)

        def run(full):
            own = random.Random(rest)
            one = full[first]
            for _ in range(steps):
                one = self.change(own, one, full["b"])
            return one

        full = known(shapes, torch.bfloat16, number)
        made = run(full)
        turn = seed.random() < 0.3

        class Program(nn.Module):
            def __init__(self):
                super().__init__()
                shape = [n + 1 for n in made.shape] or [2]
                w = torch.full(shape, -3.0, dtype=torch.bfloat16)
                self.w = nn.Parameter(w.t().contiguous().t() if turn and len(shape) == 2 else w)

            def load_weights(self, weights):
                one = run(dict(weights))
                target = self.w.data
                for d, n in enumerate(one.shape):
                    target = target.narrow(d, 1, n)
                target.copy_(one)

        self.compare(Program, full)

    def test_random_programs(self):
        n = int(os.environ.get("FERRY_TEST_CASES", 300))
        for number in range(n):
            with self.subTest(number=number):
                self.program(number)


@unittest.skipIf(torch is None, "torch is not installed")
class Refusals(unittest.TestCase):
    def refused(self, load, expected, kind=ferry.Unsupported, dtype=None):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.zeros(4, 6))

            def load_weights(self, weights):
                load(self, dict(weights))

        model = Model()
        with self.assertRaisesRegex(kind, expected):
            ferry.trace(model, known({"a": (4, 6), "b": (4, 6)}, torch.float32))
        self.assertEqual(bits(model.w), bytes(96))

    def test_arithmetic(self):
        for load, operation in (
            (lambda self, full: self.w.data.copy_(full["a"] + 1), "add"),
            (lambda self, full: self.w.data.copy_(full["a"]).mul_(2), "mul_"),
            (lambda self, full: self.w.data.copy_(full["a"] @ full["a"].new_ones(6, 6)), "mm"),
            (lambda self, full: self.w.data.add_(full["a"]), "add_"),
            (lambda self, full: self.w.data.copy_(torch.where(full["a"] > 0, full["a"], 0)), "where"),
        ):
            self.refused(load, 'parameter "w" gets %s of "a", which is not a copy' % operation)
        self.refused(lambda self, full: self.w.data.copy_(torch.lerp(full["a"], full["b"], 0.5)),
                     'gets lerp of "a" and "b"')

    def test_arithmetic_that_is_thrown_away_is_no_matter(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.zeros(4, 6))

            def load_weights(self, weights):
                for _, tensor in weights:
                    (tensor * 2).sum()
                    self.w.data.copy_(tensor / 2)
                    self.w.data.copy_(tensor)

        self.assertEqual(ferry.trace(Model(), {"a": ((4, 6), "f32")}).parameters, ["w"])

    def test_looking_at_data(self):
        for load in (lambda self, full: full["a"].max().item(),
                     lambda self, full: bool((full["a"] > 0).all()),
                     lambda self, full: full["a"].nonzero(),
                     lambda self, full: full["a"][full["a"] > 0],
                     lambda self, full: full["a"].tolist()):
            self.refused(load, 'looks at the data|without their data')

    def test_a_map_of_experts_may_be_looked_at(self):
        """A buffer of whole numbers that no tensor was copied to: a rank loads what it says."""
        class Experts(nn.Module):
            def __init__(self, numbers):
                super().__init__()
                self.w = nn.Parameter(torch.zeros(2, 3))
                self.register_buffer("map", torch.tensor(numbers), persistent=False)

            def load_weights(self, weights):
                for name, tensor in weights:
                    if name == "map":
                        self.map.copy_(tensor)
                    elif self.map[int(name)].item() >= 0:
                        self.w.data[self.map[int(name)].item()].copy_(tensor)

        full = {str(expert): ((3,), "f32") for expert in range(4)}
        trace = ferry.trace(Experts([-1, 1, -1, 0]), full)
        self.assertEqual([one["tensor"] for one in trace.to_dict()["boxes"][0]["holds"]], ["3", "1"])
        for model, tensors in (
            (Experts([-1.0, 1.0, -1.0, 0.0]), full),  # may be scales of weights
            (Experts([-1, 1, -1, 0]), {"map": ((4,), "i64"), **full}),
            (Experts([-1, 1, -1, 0]).to("meta"), full),
        ):
            with self.assertRaisesRegex(ferry.Unsupported, 'looks at the data of "map"'):
                ferry.trace(model, tensors)

    def test_a_loader_that_has_not_run(self):
        def load(pairs):
            yield from pairs
        with self.assertRaisesRegex(ferry.InvalidInput, "the loader is a generator"):
            ferry.trace(nn.Linear(2, 2), {"weight": ((2, 2), "f32")}, load)

    def test_slices_that_are_not_there(self):
        """As in torch: not the slice that is as far behind the end."""
        model = nn.Linear(2, 2, device="meta")
        with self.assertRaisesRegex(IndexError, "index 3 is out of bounds"):
            ferry.trace(model, {"weight": ((3, 2), "f32")}, lambda pairs: [
                model.weight.data.copy_(tensor[torch.tensor([0, 3])]) for _, tensor in pairs])

    def test_tensors_that_are_called_like_parameters(self):
        model = nn.Linear(2, 2, device="meta")

        def load(pairs):
            for name, tensor in pairs:
                model.weight.data.copy_(tensor)
                model.weight.data.mul_(2)
        with self.assertRaisesRegex(ferry.Unsupported, 'gets mul_ of "weight"') as caught:
            ferry.trace(model, {"weight": ((2, 2), "f32")}, load)
        self.assertEqual(caught.exception.tensor, "weight")

    def test_tensors_that_are_none(self):
        for given in ({"w": ((-1, 2), "f32")}, {3: ((1, 2), "f32")}, {"w": 3}, 7):
            with self.assertRaisesRegex(ferry.InvalidInput, "tensors are a folder, or names"):
                ferry.trace(nn.Linear(2, 2), given)

    def test_wrong_shapes(self):
        self.refused(lambda self, full: self.w.data[:3].copy_(full["a"]),
                     r'"a" of shape \[4, 6\] is copied into .* of shape \[3, 6\]', ferry.InvalidInput)

    def test_casts_that_are_two(self):
        self.refused(lambda self, full: self.w.data.copy_(full["a"].bfloat16()),
                     'parameter "w": tensor "a" is converted from torch.float32 to torch.bfloat16 to '
                     "torch.float32")
        self.refused(lambda self, full: self.w.data.copy_(full["a"].to(torch.int32)), "torch.int32")

    def test_numbers_of_the_loader(self):
        self.refused(lambda self, full: self.w.data.copy_(torch.arange(24.0).view(4, 6)),
                     'parameter "w" gets numbers of the loader')

    def test_memory_that_nothing_wrote(self):
        self.refused(lambda self, full: self.w.data.copy_(torch.empty(4, 6, device="meta")),
                     "memory that nothing was copied to")

    def test_what_a_model_is(self):
        with self.assertRaisesRegex(ferry.InvalidInput, "give a module of torch"):
            ferry.trace({}, {})
        with self.assertRaisesRegex(ferry.InvalidInput, "tensors are a folder"):
            ferry.trace(nn.Linear(2, 2), {"weight": 3})
        with self.assertRaisesRegex(ferry.InvalidInput, '"weight" is twice'):
            ferry.trace(nn.Linear(2, 2), [("weight", ((2, 2), "f32"))] * 2)
        with self.assertRaisesRegex(ferry.Unsupported, "f4e2m1|no type|bytes"):
            ferry.trace(nn.Linear(2, 2), {"weight": ((2, 2), "bytes:3")})

    def test_an_error_of_the_loader_is_the_loader_s(self):
        def load(self, full):
            raise KeyError("no such weight")

        self.refused(load, "no such weight", KeyError)

    def test_another_model(self):
        trace = ferry.trace(nn.Linear(2, 2), {"weight": ((2, 2), "f32")})
        with self.assertRaisesRegex(ferry.InvalidInput, '"weight" has 6 elements in the model and 4'):
            trace.memory(nn.Linear(2, 3))
        with self.assertRaisesRegex(ferry.InvalidInput, '"weight" of the trace is not in the model'):
            trace.memory(nn.ReLU())


def small(kind, **more):
    return {"model_type": kind, "hidden_size": 32, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 48, "num_hidden_layers": 2,
            "vocab_size": 50, **more}


FAMILIES = {
    "llama": {}, "qwen2": {}, "qwen3": {"head_dim": 8}, "gemma2": {"head_dim": 8},
    "gemma3_text": {"head_dim": 8},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"moe_intermediate_size": 16, "num_experts": 4, "head_dim": 8},
    "deepseek_v3": {"moe_intermediate_size": 16, "n_routed_experts": 4, "q_lora_rank": 16,
                    "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
                    "v_head_dim": 8, "first_k_dense_replace": 1, "num_key_value_heads": 4,
                    "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2},
    "gpt_oss": {"num_local_experts": 4, "head_dim": 8},
}  # fmt: skip


@unittest.skipIf(torch is None or transformers is None, "torch or transformers is not installed")
class Transformers(unittest.TestCase):
    """from_pretrained of the files that save_pretrained wrote, and the same refit as traced."""

    def family(self, kind, folder):
        config = transformers.AutoConfig.for_model(**small(kind, **FAMILIES[kind]))
        make = transformers.AutoModelForCausalLM.from_config
        model = make(config, dtype=torch.bfloat16)
        for number, tensor in enumerate(model.parameters()):
            nn.init.normal_(tensor, std=1 + number / 7)
        model.save_pretrained(folder)
        load = transformers.AutoModelForCausalLM.from_pretrained
        loaded, refitted = load(folder, dtype=torch.bfloat16), load(folder, dtype=torch.bfloat16)
        for tensor in refitted.parameters():
            nn.init.zeros_(tensor)
        trace = ferry.trace(refitted, folder)
        from safetensors.torch import load_file

        full = {}
        for name in os.listdir(folder):
            if name.endswith(".safetensors"):
                full.update(load_file(os.path.join(folder, name)))
        refit_as_traced(trace, full, refitted)
        theirs = dict(loaded.named_parameters())
        for name, tensor in refitted.named_parameters():
            self.assertEqual(bits(tensor), bits(theirs[name]), name)
        self.assertEqual(trace.unused, [])
        self.assertEqual([name for name in trace.untouched if name in theirs], [])

    def test_families(self):
        import tempfile

        for kind in FAMILIES:
            with self.subTest(kind), tempfile.TemporaryDirectory() as folder:
                self.family(kind, folder)


if __name__ == "__main__":
    unittest.main()
