# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Checkpoints into tensors that are there, and back: plain tensors, modules, DTensors."""
from __future__ import annotations

import math
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import threading
import unittest
from typing import Any, Callable, Dict

import ferry
from ferry import _files

try:
    import torch
    from safetensors.torch import load_file, save_file
except ImportError:
    torch = None  # type: ignore[assignment]
try:
    import transformers
except ImportError:
    transformers = None  # type: ignore[assignment]

NEED = unittest.skipIf(torch is None, "torch or safetensors is not installed")
N_RANKS = 4


def some_tensors() -> Dict[str, Any]:
    torch.manual_seed(7)
    return {
        "embed.weight": torch.randn(10, 6).bfloat16(),
        "layers.0.w": torch.randn(7, 6),
        "layers.0.flags": torch.tensor([True, False, True]),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "bytes": torch.arange(5, dtype=torch.uint8),
    }


def zeros_like(tensors: Dict[str, Any]) -> Dict[str, Any]:
    return {name: torch.zeros_like(one) for name, one in tensors.items()}


@NEED
class Tensors(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name: str) -> str:
        return os.path.join(self.folder.name, name)

    def check(self, got: Dict[str, Any], wanted: Dict[str, Any]) -> None:
        for name, one in got.items():
            self.assertTrue(torch.equal(one, wanted[name]), name)

    def test_what_is_saved_is_read(self) -> None:
        tensors = some_tensors()
        n_bytes = ferry.save(tensors, self.path("a"), metadata={"format": "pt"})
        self.assertEqual(n_bytes, sum(one.nbytes for one in tensors.values()))
        self.check(load_file(self.path("a/model.safetensors")), tensors)
        got = zeros_like(tensors)
        result = ferry.load(got, self.path("a"))
        self.check(got, tensors)
        self.assertEqual((result.n_tensors, result.bytes, result.unused), (6, n_bytes, ()))

    def test_parts_and_strides(self) -> None:
        tensors = {"w%d" % i: torch.randn(4, 8).t() for i in range(5)}
        ferry.save(tensors, self.path("a"), part_bytes=300)
        self.assertEqual(ferry.inspect(self.path("a")).n_files, 3)
        got = {name: torch.zeros(4, 8).t() for name in tensors}
        ferry.load(got, self.path("a"))
        self.check(got, tensors)
        some = {"w3": torch.zeros(8, 4)}
        self.assertEqual(ferry.load(some, self.path("a")).unused, ("w0", "w1", "w2", "w4"))
        self.check(some, tensors)

    def test_sharded_checkpoints(self) -> None:
        tensors = {"w": torch.randn(12, 10), "norm": torch.randn(10)}
        save_file(tensors, self.path("a.safetensors"))
        layout = {"format": "ferry.layout/1", "mesh": [["a", 2], ["b", 3]], "rules": [
            {"match": "w", "shard": [{"dim": 0, "axis": "b", "stride": 2}, {"dim": 1, "axis": "a"}]},
            {"match": "*"}]}
        ferry.reshard(self.path("a.safetensors"), layout, self.path("b"))
        got = zeros_like(tensors)
        ferry.load(got, self.path("b"))
        self.check(got, tensors)

    def test_what_is_cut_flat(self) -> None:
        """Ranges of the elements of a tensor, or of a shard of it, whatever its dimensions."""
        import numpy

        for seed in range(40):
            rng = random.Random(seed)
            tensors = {}
            for name in "abc":
                shape = [rng.randint(1, 6) for _ in range(rng.randint(1, 4))]
                tensors[name] = torch.arange(1, 1 + math.prod(shape), dtype=torch.int32).reshape(shape)
            rule: Dict[str, Any] = {"match": "*", "flat": {"axis": "x"}}
            if seed % 2:
                rule["shard"] = [{"dim": 0, "axis": "y"}]
            layout = {"format": "ferry.layout/1", "rules": [rule],
                      "mesh": [["x", rng.randint(1, 4)], ["y", rng.randint(1, 3)]]}
            ferry.save(tensors, self.path(f"a{seed}"))
            ferry.reshard(self.path(f"a{seed}"), layout, self.path(f"b{seed}"))
            got = zeros_like(tensors)
            ferry.load(got, self.path(f"b{seed}"))
            self.check(got, tensors)
            arrays = {name: numpy.zeros(tuple(one.shape), "i4") for name, one in tensors.items()}
            ferry.load(arrays, self.path(f"b{seed}"))
            self.check({name: torch.from_numpy(one) for name, one in arrays.items()}, tensors)

    def test_uneven_ranges(self) -> None:
        ferry.save({"w": torch.arange(1.0, 7.0)}, self.path("a"))
        layout = {"format": "ferry.layout/1", "mesh": [["x", 2]],
                  "rules": [{"match": "*", "flat": {"axis": "x", "sizes": [1, 5]}}]}
        ferry.reshard(self.path("a"), layout, self.path("b"))
        got = torch.zeros(6)
        ferry.load({"w": got}, self.path("b"))
        self.assertEqual(got.tolist(), [1, 2, 3, 4, 5, 6])

    def test_nothing_and_one_element(self) -> None:
        """NumPy gives what is empty strides of 0, and torch a single element any stride."""
        import numpy

        for shape in ((0,), (4, 0), (0, 4)):
            ferry.save({"w": numpy.zeros(shape, "f4")}, self.path(str(shape)))
            ferry.load({"w": numpy.zeros(shape, "f4")}, self.path(str(shape)))
        for i, one in enumerate((torch.ones(2)[::2], torch.ones(4, 2)[:1, :1])):
            ferry.save({"w": one}, self.path(str(i)))
            got = torch.zeros_like(one)
            ferry.load({"w": got}, self.path(str(i)))
            self.check({"w": got}, {"w": one})

    def test_memory_that_cannot_be_written(self) -> None:
        """Refused before any tensor is written, in whatever order they are given."""
        import numpy

        ferry.save({"a": torch.ones(3), "w": torch.ones(3, 4), "s": torch.ones(())}, self.path("x"))
        read_only = numpy.zeros((3, 4), "f4")
        read_only.flags.writeable = False
        for wrong, says in (
            ({"w": torch.zeros(3, 4, device="meta")}, "on the device meta"),
            ({"w": torch.zeros(3, 1).expand(3, 4)}, "share their memory"),
            ({"w": read_only}, "is read-only"),
            ({"s": numpy.float32(0)}, "is read-only"),
        ):
            first = torch.zeros(3)
            with self.assertRaisesRegex(ferry.InvalidInput, says):
                ferry.load({"a": first, **wrong}, self.path("x"))
            self.assertEqual(first.tolist(), [0, 0, 0], says)

    def test_numpy_without_dimensions(self) -> None:
        import numpy

        ferry.save({"s": torch.tensor(2.5)}, self.path("s"))
        into = numpy.zeros((), "f4")
        ferry.load({"s": into}, self.path("s"))
        self.assertEqual(into, 2.5)

    def test_numpy(self) -> None:
        import numpy

        ferry.save({"w": numpy.arange(12, dtype="f4").reshape(3, 4)}, self.path("a"))
        got = {"w": numpy.zeros((3, 4), "f4")}
        ferry.load(got, self.path("a"))
        self.assertEqual(got["w"].tolist(), numpy.arange(12).reshape(3, 4).tolist())

    def test_what_is_wrong(self) -> None:
        ferry.save({"w": torch.randn(3, 4)}, self.path("a"))
        for given, says in (
            ({"v": torch.zeros(3, 4)}, 'tensor "v" is not in'),
            ({"w": torch.zeros(4, 3)}, r'"w" has the shape \[4, 3\], but \[3, 4\] in'),
            ({"w": torch.zeros(3, 4).bfloat16()}, '"w" is bf16, but f32 in .*cast=True'),
            ({"w": bytearray(48)}, 'is of type bytearray: give one of torch or numpy'),
        ):
            with self.assertRaisesRegex(ferry.InvalidInput, says):
                ferry.load(given, self.path("a"))
        half = {"w": torch.zeros(3, 4).bfloat16()}
        ferry.load(half, self.path("a"), cast=True)
        self.assertGreater(half["w"].abs().sum().item(), 0)
        with self.assertRaisesRegex(ferry.FileError, "exists already"):
            ferry.save({}, self.path("a"))
        with self.assertRaises(FileNotFoundError):
            ferry.load({}, self.path("nothing"))
        with self.assertRaisesRegex(ferry.InvalidInput, "give a torch.nn.Module"):
            ferry.load_into({}, self.path("a"))  # type: ignore[arg-type]

    def test_numbers_of_the_header_that_nobody_asks_for(self) -> None:
        """They may be longer than Python reads; extents and offsets are looked at before."""
        for key, number, says in (("more", "1" * 5000, None), ("more", "[-%s, 1e%s]" % ("1" * 5000, "9" * 400), None),
                                  ("shape", "[2%s]" % ("0" * 5000), '"w" shape expected a whole number')):
            header = '{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"%s":%s}}' % (key, number)
            if key == "shape":
                header = header.replace('"shape":[2],', "", 1)
            with open(self.path("long.safetensors"), "wb") as file:
                file.write(len(header).to_bytes(8, "little") + header.encode())
                file.write(torch.tensor([3.0, 4.0]).numpy().tobytes())
            into = {"w": torch.zeros(2)}
            if says is None:
                ferry.load(into, self.path("long.safetensors"))
                self.assertEqual(into["w"].tolist(), [3.0, 4.0])
            else:
                with self.assertRaisesRegex(ferry.InvalidInput, "long.safetensors: .*" + says):
                    ferry.load(into, self.path("long.safetensors"))

    def test_what_cannot_be_saved(self) -> None:
        one = {"w": torch.zeros(2)}
        for tensors, options in (({"w": b"12"}, {}), ({3: torch.zeros(2)}, {}), (None, {}),
                                 ([("w", torch.zeros(2))], {}), (one, {"metadata": {"a": 3}}),
                                 (one, {"metadata": 3}), (one, {"part_bytes": 0}),
                                 (one, {"part_bytes": "1G"}), (one, {"part_bytes": 1.5})):
            with self.assertRaises(ferry.InvalidInput), tempfile.TemporaryDirectory() as folder:
                self.addCleanup(self.assertEqual, os.path.exists(os.path.join(folder, "x")), False)
                ferry.save(tensors, os.path.join(folder, "x"), **options)

    def test_names_that_files_cannot_have(self) -> None:
        for name, words in (("", "is empty"), ("__metadata__", "metadata"), ("a\0b", "zero bytes"), ("a\udc80", "surrogates")):
            with self.subTest(ascii(name)):
                with self.assertRaisesRegex(ferry.InvalidInput, words):
                    ferry.save({name: torch.zeros(2)}, self.path("a"))
                self.assertEqual(os.listdir(self.folder.name), [])

    def test_metadata_that_would_not_be_read(self) -> None:
        for bad in ("a\0b", "a\udc80"):
            for metadata in ({bad: "b"}, {"a": bad}):
                with self.subTest(ascii(metadata)), self.assertRaisesRegex(ferry.InvalidInput, "metadata.*give a text without"):
                    ferry.save({"w": torch.zeros(2)}, self.path("a"), metadata=metadata)
                self.assertEqual(os.listdir(self.folder.name), [])

    def test_names_are_as_long_as_specs_take_them(self) -> None:
        longest = "\u00e9" * 2036
        with self.assertRaisesRegex(ferry.LimitExceeded, "has a name of 4073 bytes, and ferry takes 4072"):
            ferry.save({longest + "x": torch.zeros(2)}, self.path("a"))
        ferry.save({longest: torch.ones(2)}, self.path("a"))
        layout = {"mesh": [["a", 2]], "rules": [{"match": "*", "shard": [{"dim": 0, "axis": "a"}]}]}
        ferry.reshard(self.path("a"), layout, self.path("b"))
        found = {longest: torch.zeros(2)}
        ferry.load(found, self.path("b"))
        self.assertEqual(found[longest].tolist(), [1, 1])

    def test_one_folder_saved_by_several_at_once(self) -> None:
        for turn in range(10):
            path = self.path(f"turn{turn}")
            said: Dict[int, str] = {}

            def save(of: int) -> None:
                try:
                    ferry.save({"a": torch.full((300_000 + of,), float(of))}, path)
                    said[of] = ""
                except ferry.FileError as error:
                    said[of] = str(error)

            threads = [threading.Thread(target=save, args=(of,)) for of in range(4)]
            for one in threads:
                one.start()
            for one in threads:
                one.join()
            (winner,) = [of for of, sentence in said.items() if sentence == ""]
            self.assertEqual(len(said), 4)
            for of, sentence in said.items():
                if of != winner:
                    self.assertRegex(sentence, "another save is writing it; let one rank|exists already")
            found = load_file(os.path.join(path, "model.safetensors"))["a"]
            self.assertTrue(torch.equal(found, torch.full((300_000 + winner,), float(winner))))
        self.assertEqual([name for name in os.listdir(self.folder.name) if name[0] == "."], [])

    def test_a_folder_that_another_holds(self) -> None:
        def fill(partial: str) -> int:
            with self.assertRaisesRegex(ferry.FileError, "another save is writing it"):
                ferry.save({"w": torch.zeros(2)}, self.path("a"))
            self.assertTrue(os.path.isdir(partial))
            return 3

        self.assertEqual(_files._Folder(self.path("a")).write(fill), 3)
        self.assertTrue(os.path.isdir(self.path("a")))

    def test_interrupts(self) -> None:
        """As a signal's handler may raise: before the first line of a save, the second, and so on. The
        folder is there as a whole or not at all, and the next save works."""
        wanted = {"w": torch.arange(6.0)}
        number = 0
        while self.interrupted(number, lambda: ferry.save(wanted, self.path("a"))):
            number += 1
            if os.path.exists(self.path("a")):
                self.check(load_file(self.path("a/model.safetensors")), wanted)
                shutil.rmtree(self.path("a"))
            ferry.save(wanted, self.path("a"))
            self.assertEqual(os.listdir(self.folder.name), ["a"], number)
            shutil.rmtree(self.path("a"))
        self.assertGreater(number, 100)

    def interrupted(self, number: int, call: Callable[[], Any]) -> bool:
        """Raises at a step of ferry's files, as of a debugger, and hears of it; false: it had fewer."""
        left = [number]

        def step(frame: Any, event: str, value: Any) -> Any:
            if frame.f_code.co_filename == _files.__file__ and event in ("call", "line", "return"):
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
            return step

        before = sys.gettrace()
        sys.settrace(step)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False

    def test_what_a_dead_save_has_left(self) -> None:
        os.mkdir(self.path(".a.ferry-saving"))
        for name in (".a.ferry-saving/old", ".a.ferry-saving-lock"):
            with open(self.path(name), "w"):
                pass
        ferry.save({"w": torch.zeros(2)}, self.path("a/"))  # the slash says nothing more
        self.assertEqual(os.listdir(self.folder.name), ["a"])
        self.assertEqual(os.listdir(self.path("a")), ["model.safetensors"])

    def test_a_disk_without_room(self) -> None:
        import resource
        import signal

        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
        try:
            with self.assertRaisesRegex(ferry.FileError, "cannot be written: File too large") as raised:
                ferry.save({"w": torch.zeros(1 << 16)}, self.path("a"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, before)
        self.assertEqual(raised.exception.filename, self.path("a"))
        self.assertEqual(os.listdir(self.folder.name), [])

    @unittest.skipIf(not hasattr(torch, "float8_e8m0fnu"), "torch has no float8_e8m0fnu")
    def test_scales_and_complex_numbers(self) -> None:
        tensors = {"e": torch.tensor([127, 3, 254, 0], dtype=torch.uint8).view(torch.float8_e8m0fnu),
                   "c": torch.view_as_complex(torch.randn(5, 3, 2))}
        ferry.save(tensors, self.path("a"))
        self.assertEqual({one.name: one.dtype for one in ferry.inspect(self.path("a"))},
                         {"e": "f8e8m0", "c": "c64"})
        got = {"e": torch.zeros(4, dtype=torch.uint8).view(torch.float8_e8m0fnu),
               "c": torch.zeros(5, 3, dtype=torch.complex64)}
        ferry.load(got, self.path("a"))
        for of in (got, load_file(self.path("a/model.safetensors"))):
            self.assertTrue(torch.equal(of["e"].view(torch.uint8), tensors["e"].view(torch.uint8)))
            self.assertTrue(torch.equal(of["c"], tensors["c"]))

    def test_tensors_that_were_made_for_inference(self) -> None:
        ferry.save({"a": torch.ones(4)}, self.path("a"))
        with torch.inference_mode():
            one = torch.zeros(4)
        ferry.load({"a": one}, self.path("a"))
        self.assertEqual(one.tolist(), [1.0] * 4)

    def test_cut_tensors_without_elements(self) -> None:
        ferry.save({"a": torch.ones(0, 4)}, self.path("a"))
        cut = {"mesh": [["tp", 2]], "rules": [{"match": "*", "shard": [{"dim": 1, "axis": "tp"}]}]}
        ferry.reshard(self.path("a"), cut, self.path("b"))
        self.assertEqual(ferry.load({"a": torch.ones(0, 4)}, self.path("b")).n_tensors, 1)

    def test_elements_that_share_memory(self) -> None:
        ferry.save({"a": torch.ones(2, 3)}, self.path("a"))
        memory = torch.zeros(12)
        for strides in ((0, 1), (1, 1), (2, 1), (1, 0)):
            with self.assertRaisesRegex(ferry.InvalidInput, '"a" has elements that share their memory'):
                ferry.load({"a": memory.as_strided((2, 3), strides)}, self.path("a"))
        self.assertEqual(memory.tolist(), [0.0] * 12)
        for strides in ((1, 2), (3, 1), (1, 3), (7, 2)):
            one = memory.zero_().as_strided((2, 3), strides)
            ferry.load({"a": one}, self.path("a"))
            self.assertEqual(float(one.sum()), 6.0)
        with self.assertRaisesRegex(ferry.InvalidInput, '"a" is of the layout torch.sparse_coo'):
            ferry.load({"a": torch.zeros(2, 3).to_sparse()}, self.path("a"))

    def test_arrays_of_ml_dtypes(self) -> None:
        try:
            import ml_dtypes
            import numpy
        except ImportError:
            self.skipTest("ml_dtypes is not installed")
        for word in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"):
            wanted = numpy.array([0.5, 1, 2, 4]).astype(getattr(ml_dtypes, word))
            ferry.save({"a": wanted}, self.path(word))
            one = numpy.zeros(4, wanted.dtype)
            ferry.load({"a": one}, self.path(word))
            self.assertEqual(one.tobytes(), wanted.tobytes())
            wide = numpy.zeros(4, "f4")
            ferry.load({"a": wide}, self.path(word), cast=True)
            self.assertEqual(wide.tolist(), [0.5, 1, 2, 4])

    def test_tensors_that_share_memory(self) -> None:
        ferry.save({"a": torch.ones(4), "b": torch.full((4,), 2.0)}, self.path("a"))
        memory = torch.zeros(8)
        for one, other in ((memory[:4], memory[:4]), (memory[:4], memory[3:7]), (memory[::2], memory[::2])):
            with self.assertRaisesRegex(ferry.InvalidInput, "share memory"):
                ferry.load({"a": one, "b": other}, self.path("a"))
        self.assertEqual(memory.tolist(), [0.0] * 8)
        ferry.load({"a": memory[:4], "b": memory[4:]}, self.path("a"))
        self.assertEqual(memory.tolist(), [1.0] * 4 + [2.0] * 4)
        ferry.load({"a": memory[::2], "b": memory[1::2]}, self.path("a"))
        self.assertEqual(memory.tolist(), [1.0, 2.0] * 4)

    def test_parameters_of_one_memory(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
        model[1].weight = torch.nn.Parameter(model[0].weight.detach())
        ferry.save_from(model, self.path("a"))
        wanted = model[0].weight.detach().clone()
        self.assertEqual(list(ferry.inspect(self.path("a")).names()), ["0.bias", "0.weight", "1.bias"])
        with torch.no_grad():
            model[0].weight.zero_()
        ferry.load_into(model, self.path("a"))
        self.assertTrue(torch.equal(model[1].weight, wanted))

    def test_modules(self) -> None:
        model, other = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
        ferry.save_from(model, self.path("a"))
        ferry.load_into(other, self.path("a"))
        self.check(dict(other.state_dict()), dict(model.state_dict()))


@NEED
@unittest.skipIf(transformers is None, "transformers is not installed")
class Models(unittest.TestCase):
    def test_files_with_other_names(self) -> None:
        """Experts are one by one in the files, and stacked in memory."""
        from test_names_torch import MODELS, config_of, model_of

        for model_type, changes in (MODELS[0], MODELS[1], MODELS[7], MODELS[9], MODELS[10], MODELS[13]):
            with self.subTest(model_type), tempfile.TemporaryDirectory() as folder:
                config = config_of(model_type, changes)
                torch.manual_seed(1)
                model, other = model_of(config), model_of(config)
                for parameter in model.parameters():
                    parameter.data.normal_()
                model.save_pretrained(os.path.join(folder, "hf"))
                ferry.load_into(other, os.path.join(folder, "hf"))
                for name, one in model.state_dict().items():
                    self.assertTrue(torch.equal(one, other.state_dict()[name]), name)
                ferry.save_from(model, os.path.join(folder, "own"))
                third = transformers.AutoModelForCausalLM.from_config(config)
                ferry.load_into(third, os.path.join(folder, "own"))
                for name, one in model.state_dict().items():
                    self.assertTrue(torch.equal(one, third.state_dict()[name]), name)
                ferry.reshard(os.path.join(folder, "own"), "hf", os.path.join(folder, "again"),
                              names="hf")
                ferry.verify(os.path.join(folder, "hf"), os.path.join(folder, "again"))

    def test_what_is_wrong(self) -> None:
        from test_names_torch import MODELS, config_of, model_of

        with tempfile.TemporaryDirectory() as folder:
            model = model_of(config_of(*MODELS[7]))
            model.save_pretrained(os.path.join(folder, "hf"))
            weights = os.path.join(folder, "hf", "model.safetensors")
            tensors = load_file(weights)
            del tensors["model.layers.0.mlp.experts.2.up_proj.weight"]
            save_file(tensors, weights)
            with self.assertRaisesRegex(ferry.InvalidInput, "lacks the tensor .*experts.2.up_proj"):
                ferry.load_into(model, os.path.join(folder, "hf"))


# Of some of the ranks, and of all in an order that is not theirs.
MESHES = ([3, 1], [2], [[2, 3], [0, 1]], [3, 2, 1, 0])


def check_other_meshes(folder: str) -> None:
    """A DTensor is its full_tensor(), whatever ranks its mesh has and in which order."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor

    for number, ranks in enumerate(MESHES):
        path = os.path.join(folder, f"mesh{number}")
        mesh = DeviceMesh("cpu", torch.tensor(ranks))
        whole = torch.arange(24.0).reshape(8, 3)
        model = torch.nn.Module()
        made = distribute_tensor(whole.clone(), mesh, [Shard(0)] * mesh.ndim)
        model.register_parameter("w", torch.nn.Parameter(made))
        ferry.save_from(model, path)
        read = torch.zeros(8, 3)
        ferry.load({"w": read}, path)
        assert torch.equal(read, whole), ranks
        wanted = made.to_local().clone()
        made.to_local().zero_()
        ferry.load_into(model, path)
        assert torch.equal(made.to_local(), wanted), ranks
    own = dist.new_group([1, 2])  # in which they are 0 and 1
    if dist.get_rank() in (1, 2):
        from ferry import _ferry
        from ferry._exchange import TorchExchange

        world = _ferry.world_from_exchange(TorchExchange(own))
        mesh = DeviceMesh("cpu", torch.tensor([1, 2]))
        model.w = torch.nn.Parameter(distribute_tensor(whole.clone(), mesh, [Shard(0)]))
        try:
            ferry.save_from(model, os.path.join(folder, "group"), world=world)
            raise AssertionError("saved by the numbers of another world")
        except ferry.InvalidInput as error:
            assert "in torch.distributed, by which meshes count" in str(error), error
        world.close()
    else:
        DeviceMesh("cpu", torch.tensor([1, 2]))


def rank_main(rank: int, folder: str, queue: Any) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    dist.init_process_group("gloo", init_method="file://" + os.path.join(folder, "meet"), rank=rank,
                            world_size=N_RANKS)
    try:
        mesh = init_device_mesh("cpu", (2, 2))
        model = torch.nn.Sequential(torch.nn.Linear(10, 9), torch.nn.LayerNorm(9))
        full = {name: one.clone() for name, one in load_file(os.path.join(folder, "full")).items()}
        cuts = {"0.weight": [Shard(0), Shard(1)], "0.bias": [Replicate(), Shard(0)]}
        for name, where in cuts.items():
            module = model.get_submodule(name.split(".")[0])
            made = distribute_tensor(torch.zeros_like(full[name]), mesh, where)
            setattr(module, name.split(".")[1], torch.nn.Parameter(made))
        ferry.load_into(model, os.path.join(folder, "full"))
        for name, one in model.state_dict().items():
            whole = one.full_tensor() if hasattr(one, "full_tensor") else one
            assert torch.equal(whole, full[name]), name
        ferry.save_from(model, os.path.join(folder, "saved"))
        dist.barrier()
        for one in model.parameters():
            (one.to_local() if hasattr(one, "to_local") else one).data.zero_()
        ferry.load_into(model, os.path.join(folder, "saved"))
        for name, one in model.state_dict().items():
            whole = one.full_tensor() if hasattr(one, "full_tensor") else one
            assert torch.equal(whole, full[name]), name
        check_other_meshes(folder)
        try:
            ferry.save_from(model, os.path.join(folder, "saved"))
            raise AssertionError("saved twice")
        except ferry.FileError as error:
            assert "exists already" in str(error), error
        queue.put((rank, ""))
    except BaseException as error:  # whoever waits for it must hear
        queue.put((rank, f"{type(error).__name__}: {error}"))
        raise
    finally:
        ferry.shutdown()
        dist.destroy_process_group()


@NEED
class Distributed(unittest.TestCase):
    def test_dtensors(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(3)
            full = {"0.weight": torch.randn(9, 10), "0.bias": torch.randn(9),
                    "1.weight": torch.randn(9), "1.bias": torch.randn(9)}
            save_file(full, os.path.join(folder, "full"))
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            ranks = [context.Process(target=rank_main, args=(rank, folder, queue))
                     for rank in range(N_RANKS)]
            for one in ranks:
                one.start()
            said = dict(queue.get(timeout=240) for _ in ranks)
            for one in ranks:
                one.join()
            self.assertEqual(said, dict.fromkeys(range(N_RANKS), ""))
            ferry.reshard(os.path.join(folder, "saved"), "hf", os.path.join(folder, "hf"))
            ferry.verify(os.path.join(folder, "full"), os.path.join(folder, "hf"))


if __name__ == "__main__":
    unittest.main()
