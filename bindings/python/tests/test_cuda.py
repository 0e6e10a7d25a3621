# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Tensors in the memory of CUDA devices: in runs, in collectives, behind streams, and wrong ones.

Without torch: objects with __cuda_array_interface__ or DLPack on memory of the driver's. The driver
is the one that is found: in CI the stand-in of tests/device, which is late at random, and whose
memory the CPU cannot touch.
"""

import array
import ctypes
import gc
import os
import sys
import threading
import types
import unittest
import weakref

import ferry
from ferry import _ferry
from support import await_mark, mark, run_ranks

N = 30000
LEGACY = 1


class Driver:
    """The few calls of the driver that tests make, in the primary context of a device."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.contexts = {}
        self.good("cuInit", 0)

    def good(self, name, *args):
        result = getattr(self.library, name)(*args)
        assert result == 0, (name, args, result)

    def enter(self, device):
        if device not in self.contexts:
            number, context = ctypes.c_int(), ctypes.c_void_p()
            self.good("cuDeviceGet", ctypes.byref(number), device)
            self.good("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
            self.contexts[device] = context
        self.good("cuCtxPushCurrent_v2", self.contexts[device])

    def leave(self):
        self.good("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def call(self, device, name, *args):
        self.enter(device)
        self.good(name, *args)
        self.leave()

    def n_devices(self):
        number = ctypes.c_int()
        self.good("cuDeviceGetCount", ctypes.byref(number))
        return number.value


_driver = []


def driver():
    if not _driver:
        _driver.append(Driver())
    return _driver[0]


class Stream:
    """A stream as cuda.core has it."""

    class Device:
        def __init__(self, number):
            self.device_id = number

    def __init__(self, device=0):
        self.device = self.Device(device)
        self.handle = ctypes.c_void_p()
        driver().call(device, "cuStreamCreate", ctypes.byref(self.handle), 1)

    def __cuda_stream__(self):
        return 0, self.handle.value

    def synchronize(self):
        driver().call(self.device.device_id, "cuStreamSynchronize", self.handle)

    def gate(self):
        """What comes behind it on the stream waits; the function that is returned opens it."""
        place = ctypes.c_void_p()
        device = self.device.device_id
        driver().call(device, "cuMemHostAlloc", ctypes.byref(place), ctypes.c_size_t(8), 3)
        word = ctypes.c_uint64.from_address(place.value)
        word.value = 0
        driver().call(device, "cuStreamWaitValue64_v2", self.handle, place, ctypes.c_uint64(1), 0)

        def opens():
            word.value = 1

        return opens


class Weights:
    """Memory of a device, of the type and shape that are said."""

    def __init__(self, n_bytes, device=0, typestr="|u1", shape=None, stream=None, readonly=False):
        self.n_bytes, self.number, self.place = n_bytes, device, ctypes.c_uint64()
        self.typestr, self.stream, self.readonly = typestr, stream, readonly
        self.shape = (n_bytes,) if shape is None else shape
        driver().call(device, "cuMemAlloc_v2", ctypes.byref(self.place), ctypes.c_size_t(n_bytes))

    def __del__(self):
        driver().call(self.number, "cuMemFree_v2", self.place)

    @property
    def __cuda_array_interface__(self):
        described = {"shape": self.shape, "typestr": self.typestr, "version": 3,
                     "data": (self.place.value, self.readonly)}
        if self.stream is not None:
            described["stream"] = self.stream
        return described

    def write(self, content, stream=None):
        """In the order of a stream, or done when it returns."""
        own = stream or Stream(self.number)
        self.kept = ctypes.create_string_buffer(bytes(content), self.n_bytes)
        driver().call(self.number, "cuMemHostRegister_v2", self.kept, ctypes.c_size_t(self.n_bytes), 0)
        driver().call(self.number, "cuMemcpyAsync", self.place, self.kept, ctypes.c_size_t(self.n_bytes),
                      own.handle)
        if stream is None:
            own.synchronize()
            driver().call(self.number, "cuMemHostUnregister", self.kept)

    def read(self):
        own, found = Stream(self.number), ctypes.create_string_buffer(self.n_bytes)
        driver().call(self.number, "cuMemcpyAsync", found, self.place, ctypes.c_size_t(self.n_bytes), own.handle)
        own.synchronize()
        return found.raw


def content(rank, turn):
    return bytes((rank * 31 + turn * 7 + i) % 256 for i in range(N))


def ring(service, rank, size, source, target):
    service.register_send(1, source, 0, N, dest_pe=(rank + 1) % size)
    service.register_receive(1, target, 0, N, src_pe=(rank - 1) % size)
    service.schedule()


def put(tensor, what):
    if isinstance(tensor, Weights):
        tensor.write(what)
    else:
        tensor[:] = what


def got(tensor):
    return tensor.read() if isinstance(tensor, Weights) else bytes(tensor)


def runs(rank, size):
    """Devices and the host mixed; in host order, on a queue of ferry's and on a stream."""
    device = rank % driver().n_devices()
    source = Weights(N, device) if rank % 4 != 3 else bytearray(N)
    target = Weights(N, device) if rank % 4 != 2 else bytearray(N)
    stream = Stream(device)
    with ferry.RemoteCopyService() as service:
        service.init()
        ring(service, rank, size, source, target)
        for turn, queue in enumerate([None, ferry.Queue("cuda", device), stream, stream, None]):
            put(source, content(rank, turn))
            if turn % 2 == 0:
                service.run(queue=queue)
            else:
                service.start(queue=queue).wait()
            assert got(target) == content((rank - 1) % size, turn), turn
        assert service.version == 5
    return True


def behind_streams(rank, size):
    """The source is written by a stream that has not come to it when the run is called."""
    stream = Stream()
    source, target = Weights(N, stream=stream.handle.value), Weights(N)
    with ferry.RemoteCopyService() as service:
        service.init()
        ring(service, rank, size, source, target)
        for turn, queue in enumerate([None, stream]):
            source.write(b"\0" * N)
            opens = stream.gate()
            source.write(content(rank, turn), stream)
            opener = threading.Timer(0.2, opens)
            opener.start()
            service.run(queue=queue)
            opener.join()
            stream.synchronize()
            assert target.read() == content((rank - 1) % size, turn), turn
            driver().call(0, "cuMemHostUnregister", source.kept)
    return True


def behind_runs(rank, size):
    """What a stream is given behind a run that is put in its order sees what the run has brought."""
    stream, source, target, copy = Stream(), Weights(N), Weights(N), Weights(N)
    source.write(content(rank, 6))
    target.write(content(rank, 7))
    with ferry.RemoteCopyService() as service:
        service.init()
        ring(service, rank, size, source, target)
        if rank != 0:
            await_mark("given")
        request = service.start(queue=stream if rank == 0 else None)
        driver().call(0, "cuMemcpyAsync", copy.place, target.place, ctypes.c_size_t(N), stream.handle)
        if rank == 0:
            mark("given")
        request.wait()
        stream.synchronize()
        if rank == 0:
            assert copy.read() == content(size - 1, 6)
        assert target.read() == content((rank - 1) % size, 6)
    return True


def of_torch(rank, size):
    """As far as ferry asks torch, by a module that is none: which memory, and the current stream."""
    current, asked, written = Stream(), [], []

    class Dtype:
        itemsize = 1

        def __str__(self):
            return "torch.uint8"

    class Tensor(Weights):
        __cuda_array_interface__ = property(lambda self: self.nothing)
        device, dtype, is_cpu, is_cuda = "cuda:0", Dtype(), False, True

        def data_ptr(self):
            return self.place.value

        def stride(self):
            return (1,)

        def get_device(self):
            return self.number

        def is_inference(self):
            return False

    def current_stream(device):
        asked.append(device)
        return current

    torch = types.ModuleType("torch")
    torch.Tensor, torch.cuda = Tensor, types.SimpleNamespace(current_stream=current_stream)
    graph = types.ModuleType("torch.autograd.graph")
    graph.increment_version = written.append
    torch.__path__ = []
    sys.modules.update({"torch": torch, "torch.autograd": torch, "torch.autograd.graph": graph})
    source, target = Tensor(N), Tensor(N)
    with ferry.RemoteCopyService() as service:
        service.init()
        ring(service, rank, size, source, target)
        for turn, queue in enumerate([None, current, None]):
            opens = current.gate()
            source.write(content(rank, turn), current)
            opener = threading.Timer(0.2, opens)
            opener.start()
            service.run(queue=queue)
            opener.join()
            assert target.read() == content((rank - 1) % size, turn), turn
            driver().call(0, "cuMemHostUnregister", source.kept)
    assert asked == [0, 0] and written == [target] * 3, (asked, written)
    return True


def collectives(rank, size):
    device = rank % driver().n_devices()
    with ferry.MixedCommHandler(rank, size, rank, size, 0, 1, None, None, None, None, "f32", "cuda",
                                use_autotune=False) as handler:
        # All ranks name device 0, and some have their tensors elsewhere.
        assert handler.describe().kernels or "STANDIN_QUIET" not in os.environ
        assert handler.describe().base_engine.startswith("nccl ") == ("FERRY_TEST_LIBRARY" in os.environ)
        for turn, queue in enumerate([None, Stream(device), ferry.Queue("cuda", device)]):
            x = array.array("f", [rank + 1 + turn + i % 5 for i in range(500)])
            there = Weights(2000, device, "<f4", (50, 10))
            back = Weights(2000, device, "<f4", (50, 10))
            there.write(x.tobytes())
            assert handler.run(ferry.MixedCommOp.ALLREDUCE, there, back, queue=queue) is back
            wanted = [sum(r + 1 + turn + i % 5 for r in range(size)) for i in range(500)]
            assert array.array("f", back.read()).tolist() == wanted, turn
    return True


class Graph:
    """What torch.cuda.graph does around a block: the block's calls are kept, and made at each launch."""

    def __init__(self, stream):
        self.stream, self.graph, self.exec = stream, ctypes.c_void_p(), ctypes.c_void_p()

    def __enter__(self):
        driver().call(0, "cuStreamBeginCapture_v2", self.stream.handle, 0)
        return self

    def __exit__(self, *raised):
        driver().call(0, "cuStreamEndCapture", self.stream.handle, ctypes.byref(self.graph))
        driver().call(0, "cuGraphInstantiateWithFlags", ctypes.byref(self.exec), self.graph,
                      ctypes.c_ulonglong(0))
        driver().call(0, "cuGraphDestroy", self.graph)

    def replay(self, stream=None):
        driver().call(0, "cuGraphLaunch", self.exec, (stream or self.stream).handle)

    def close(self):
        driver().call(0, "cuGraphExecDestroy", self.exec)


def captured(rank, size):
    """Runs and collectives in a graph: no queue is kept, and it is launched on another stream."""
    stream, other = Stream(), Stream()
    source, target, total = Weights(N), Weights(N), Weights(400, 0, "<f4", (100, 1))
    x = Weights(400, 0, "<f4", (100, 1))
    with ferry.RemoteCopyService() as service, ferry.MixedCommHandler(
            rank, size, rank, size, 0, 1, None, None, None, None, "f32", "cuda",
            use_autotune=False) as handler:
        service.init(log_level="WARN")
        service.register_send(1, source, 0, N, dest_pe=(rank + 1) % size)
        service.register_receive(1, target, 0, N, src_pe=(rank - 1) % size)
        service.schedule()
        with Graph(stream) as graph:
            service.run(queue=stream)
            try:
                service.start(queue=stream)
            except ferry.Error as error:
                assert "have no requests" in str(error), error
            else:
                raise AssertionError("a request of a run that is not made")
            assert handler.run(ferry.MixedCommOp.ALLREDUCE, x, total, queue=stream) is total
        assert service.version == 0
        for turn in range(10):
            on = other if turn % 2 else stream
            source.write(content(rank, turn))
            x.write(array.array("f", [rank + turn + i for i in range(100)]).tobytes())
            graph.replay(on)
            on.synchronize()
            assert target.read() == content((rank - 1) % size, turn), turn
            wanted = [sum(r + turn + i for r in range(size)) for i in range(100)]
            assert array.array("f", total.read()).tolist() == wanted, turn
        assert service.version == 10, service.version
        service.run()  # in host order again
        graph.close()
    return True


def captured_by_an_old_driver(rank, size):
    """Without the calls that a capture needs: a sentence, and the capture's owner can end it."""
    os.environ["STANDIN_LACKS"] = "cuGraphRetainUserObject"
    stream, source, target = Stream(), Weights(N), Weights(N)
    with ferry.RemoteCopyService() as service:
        service.init(log_level="WARN")
        service.register_send(1, source, 0, N, dest_pe=(rank + 1) % size)
        service.register_receive(1, target, 0, N, src_pe=(rank - 1) % size)
        service.schedule()
        with Graph(stream) as graph:
            try:
                service.run(queue=stream)
            except ferry.Unsupported as error:
                assert "CUDA 12.3" in str(error), error
            else:
                raise AssertionError("captured without the calls for it")
        graph.replay()
        stream.synchronize()
        graph.close()
        source.write(content(rank, 1))
        service.run(queue=stream)
        assert target.read() == content((rank - 1) % size, 1)
    return True


class Kept(Weights):
    """DLPack, as a library has it whose tensors are on a device."""

    def __init__(self, *args, says=None, **how):
        super().__init__(*args, **how)
        self.says, self.asked = says, []
        self.lengths = (ctypes.c_int64 * 1)(self.n_bytes)

    __cuda_array_interface__ = property(lambda self: self.nothing)

    def __dlpack_device__(self):
        return 2, self.number

    def __dlpack__(self, *, stream=None):
        class Tensor(ctypes.Structure):
            _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                        ("device_id", ctypes.c_int32), ("n_dims", ctypes.c_int32),
                        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                        ("byte_offset", ctypes.c_uint64)]

        self.asked.append(stream)
        device = self.number if self.says is None else self.says
        self.tensor = Tensor(self.place.value, 2, device, 1, 1, 8, 1, ctypes.addressof(self.lengths), 0, 0)
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self.tensor), b"dltensor", None)


class Cuda(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        try:
            driver()
        except (OSError, AssertionError) as error:
            raise unittest.SkipTest(f"there is no CUDA driver: {error}") from None

    def test_runs(self):
        self.assertEqual(run_ranks(runs, 4), [True] * 4)

    def test_captured(self):
        self.assertEqual(run_ranks(captured, 2), [True] * 2)

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "a real driver has all calls")
    def test_captured_by_an_old_driver(self):
        self.assertEqual(run_ranks(captured_by_an_old_driver, 2), [True] * 2)

    def test_behind_streams(self):
        self.assertEqual(run_ranks(behind_streams, 2), [True] * 2)

    def test_behind_runs(self):
        self.assertEqual(run_ranks(behind_runs, 2), [True] * 2)

    def test_of_torch(self):
        self.assertEqual(run_ranks(of_torch, 2), [True] * 2)

    def test_collectives(self):
        self.assertEqual(run_ranks(collectives, 3), [True] * 3)

    def alone(self, source, target, run=None):
        """A run of one rank that sends to itself."""
        with ferry.RemoteCopyService() as service:
            service.init()
            ring(service, 0, 1, source, target)
            (run or service.run)()
            return service

    def test_dlpack(self):
        source, target = Kept(N), Kept(N)
        source.write(content(1, 2))
        self.alone(source, target)
        self.assertEqual(target.read(), content(1, 2))
        self.assertEqual(source.asked + target.asked, [LEGACY, LEGACY])

    def test_types(self):
        """What it is, as numpy's own letters say it; strides count bytes."""
        for typestr, name, width in (("<f4", "f32", 4), ("<f2", "f16", 2), ("|u1", "u8", 1),
                                     ("<i8", "i64", 8), ("|b1", "bool", 1), ("<c8", "c64", 8),
                                     ("<V2", "<V2", 2), (">f4", ">f4", 4)):
            shape, dtype, n_bytes, contiguous = _ferry.view_of(
                Weights(24 * width, typestr=typestr, shape=(2, 3, 4)), "w", True)
            self.assertEqual((shape, dtype, n_bytes, contiguous), ((2, 3, 4), name, 24 * width, True))

    def test_wrong_ones(self):
        host = (ctypes.c_char * 64)()

        class Says:
            def __init__(self, **described):
                self.__cuda_array_interface__ = dict(
                    {"shape": (64,), "typestr": "|u1", "data": (ctypes.addressof(host), False)}, **described)

        gone = Says(data=Weights(1 << 26).__cuda_array_interface__["data"])
        with self.assertRaisesRegex(ferry.InvalidInput, "the CUDA driver knows none there: was it freed"):
            _ferry.view_of(gone, "w", True)
        here = Weights(64)
        data = (here.place.value, False)
        other = (1 if driver().n_devices() > 1 else 5)
        rows = [
            (Says(), "says that its memory at 0x.* is a GPU's, and the CUDA driver knows none there"),
            (Says(data=(here.place.value, True)), "read-only"),
            (Says(data=data, stream=0), "names stream 0"),
            (Says(data=data, mask=here), "cannot be read: it needs data, shape and typestr, and no mask"),
            (Says(data=data, typestr="|O8"), "cannot be read"),
            (Says(data=data, typestr=7), "cannot be read"),
            (Says(data=data, strides=(2, 1)), "cannot be read"),
            (Says(data=data, strides=(-1,)), "has stride -1 in dim 0"),
            (Says(data=(0, False)), "cannot be read"),
            (Kept(64, says=other), "is of CUDA device %d, and it is of device 0" % other),
        ]
        for tensor, words in rows:
            with self.subTest(words), self.assertRaisesRegex(ferry.InvalidInput, words):
                _ferry.view_of(tensor, "w", True)
        long = Says(data=data, shape=(1 << 20,))
        with self.assertRaisesRegex(ferry.Error, "reach beyond their allocation"):
            self.alone(long, Weights(1 << 20), lambda: None)

    def test_moved(self):
        source, target = Weights(N), Weights(N)
        with ferry.RemoteCopyService() as service:
            service.init()
            ring(service, 0, 1, source, target)
            service.run()
            other = Weights(N)
            kept, source.place = source.place, other.place
            with self.assertRaisesRegex(ferry.InvalidInput, "was moved or resized"):
                service.run()
            source.place = kept
            service.run()

    def test_lifetimes(self):
        """A tensor that nobody else holds stays until the run that is behind a gate has ended."""
        stream = Stream()
        source, target = Weights(N), Weights(N)
        source.write(content(3, 3))
        seen = weakref.ref(source)
        with ferry.RemoteCopyService() as service:
            service.init()
            ring(service, 0, 1, source, target)
            gc.collect()  # memory of others is not given back while the gate is shut: that would wait
            opens = stream.gate()
            request = service.start(queue=stream)
            del source
            self.assertIsNotNone(seen())
            self.assertFalse(request.done)
            opens()
            request.wait()
            self.assertEqual(target.read(), content(3, 3))
        del service, request
        gc.collect()
        self.assertIsNone(seen())

    def test_streams_that_are_none(self):
        class Odd:
            def __cuda_stream__(self):
                return 0, 4096

        if driver().n_devices() > 1:
            other = Stream(1)
            with self.assertRaisesRegex(ferry.Misuse, "is of another device or context than the primary"):
                ferry.Queue("cuda", 0, native=other.handle.value)
        with ferry.RemoteCopyService() as service:
            service.init()
            ring(service, 0, 1, Weights(N), Weights(N))
            with self.assertRaisesRegex(ferry.Misuse, "is no stream of CUDA's"):
                service.run(queue=Odd())
            with self.assertRaisesRegex(TypeError, "a queue is a ferry.Queue, a stream of CUDA or None"):
                service.run(queue=7)
            service.run()


if __name__ == "__main__":
    unittest.main()
