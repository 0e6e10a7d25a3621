# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Both ends of what is moved mean the same by it, and memory is what its library says it is."""

import array
import ctypes
import unittest

import ferry
from ferry import _ferry
from support import run_ranks

SIDE = {"mesh": [["dp", 2]], "rules": [{"match": "*"}]}
BIG = ctypes.c_float.__ctype_be__
N = 4


def big(*values):
    return (BIG * len(values))(*values)


def spec(dtype, side=SIDE, count=N):
    return {"format": "ferry.spec/1", "source": side, "destination": side,
            "tensors": [{"name": "w", "shape": [count], "dtype": dtype}]}


def alone(dtype, count=N):
    return spec(dtype, {"mesh": [], "rules": [{"match": "*"}]}, count)


def outcome(call):
    try:
        call()
        return "well"
    except ferry.Error as error:
        return type(error).__name__, str(error), error.tensor


def tasks(rank, size):
    """What each pair of ends comes to: rank 0 sends, rank 1 receives."""
    pairs = [
        (array.array("f", [1.5] * N), array.array("i", bytes(4 * N))),
        (array.array("f", [1.5] * N), array.array("f", bytes(4 * N))),
        (array.array("f", [1.5] * N), bytearray(4 * N)),
        (bytes(array.array("f", [1.5] * N)), array.array("f", bytes(4 * N))),
        (big(1.5, 2.5), array.array("f", bytes(8))),
        (big(1.5, 2.5), big(0, 0)),
        (array.array("h", [1] * N), array.array("H", bytes(2 * N))),
    ]
    found = []
    for number, (source, target) in enumerate(pairs):
        with ferry.RemoteCopyService() as service:
            service.init("OFF")
            # One task that agrees stands beside each pair.
            plain = array.array("d", [3] * 2)
            if rank == 0:
                service.register_send(7, source, 0, None, 1, name="here")
                service.register_send(8, plain, 0, None, 1)
            else:
                service.register_receive(7, target, 0, None, 0, name="there")
                service.register_receive(8, plain, 0, None, 0)
            said = outcome(service.schedule)
            if said == "well":
                service.run()
                same = rank == 0 or bytes(target) == bytes(source)
                found.append((number, "well", same))
            else:
                again = outcome(service.run)
                untouched = rank == 0 or bytes(target) == bytes(len(bytes(target)))
                found.append((number, *said, again[0], untouched))
    return found


def raw_ends_of_a_plan(rank, size):
    """"bytes:4" says how wide the elements are; what they are, both ends must agree on."""
    apart = spec("bytes:4", count=2)
    apart["source"] = {"mesh": [], "ranks": [0], "rules": [{"match": "*"}]}
    apart["destination"] = {"mesh": [], "ranks": [1], "rules": [{"match": "*"}]}
    found = []
    for source, target in ((big(1, 2), big(0, 0)), (big(1, 2), array.array("f", bytes(8))),
                           (array.array("f", [1, 2]), array.array("i", bytes(8))),
                           (big(1, 2), bytearray(8))):
        given = ({"w": source} if rank == 0 else {}, {"w": target} if rank == 1 else {})
        said = outcome(lambda: ferry.refit(*given, apart))
        with ferry.RemoteCopyService() as service:
            service.init("OFF")
            service.bind(ferry.plan(apart), *given)
            bound = outcome(service.schedule)
        found.append((said if said == "well" else said[0], bound if bound == "well" else bound[0],
                      said == "well" and rank == 1 and bytes(target) == bytes(source)))
    return found


class Ranks(unittest.TestCase):
    def test_tasks(self):
        here, there = run_ranks(tasks, 2)
        good = {1, 2, 3, 5}
        for rank, found in enumerate((here, there)):
            for number, *said in found:
                if number in good:
                    self.assertEqual(said, ["well", True], (rank, number))
                    continue
                kind, sentence, tensor, again, untouched = said
                self.assertEqual((kind, again, untouched), ("InvalidInput", "Misuse", True), said)
                self.assertRegex(sentence, "dtype .* on rank 0, which sends it, and of .* on rank 1")
                self.assertEqual(tensor, "there")

    def test_raw_ends_of_a_plan(self):
        first, second = run_ranks(raw_ends_of_a_plan, 2)
        refused = ("InvalidInput", "InvalidInput", False)
        self.assertEqual(second, [("well", "well", True), refused, refused, ("well", "well", True)])
        self.assertEqual([one[:2] for one in first], [one[:2] for one in second])


class Plans(unittest.TestCase):
    def test_the_other_order_of_bytes_is_no_f32(self):
        target = array.array("f", bytes(4 * N))
        for sides in (({"w": big(*range(N))}, {"w": target}),
                      ({"w": array.array("f", bytes(4 * N))}, {"w": big(*range(N))})):
            with self.assertRaisesRegex(ferry.InvalidInput, '"w".*>f'):
                ferry.refit(*sides, alone("f32"))
            with ferry.RemoteCopyService() as service:
                service.init("OFF")
                with self.assertRaisesRegex(ferry.InvalidInput, '"w" is of dtype >f'):
                    service.bind(ferry.plan(alone("f32")), *sides)
        self.assertEqual(bytes(target), bytes(4 * N))

    def test_numbers_that_mean_something_else(self):
        for planned, code in (("i32", "f"), ("f32", "d"), ("bool", "b"), ("i64", "d")):
            width = array.array(code).itemsize
            tensor = array.array(code, bytes(N * width))
            with ferry.RemoteCopyService() as service:
                service.init("OFF")
                plan = ferry.plan(alone(planned, N))
                if planned == "bool":  # integers stand for what the other library lacks
                    service.bind(plan, {"w": tensor}, {"w": bytearray(N)})
                    continue
                with self.assertRaisesRegex(ferry.InvalidInput, '"w" is of dtype'):
                    service.bind(plan, {"w": tensor}, {"w": tensor})

    def test_rebinding_asks_the_same(self):
        first, other = array.array("f", [1] * N), array.array("f", bytes(4 * N))
        with ferry.RemoteCopyService() as service:
            service.init("OFF")
            service.bind(ferry.plan(alone("f32")), {"w": first}, {"w": other})
            service.schedule()
            service.run()
            with self.assertRaisesRegex(ferry.InvalidInput, '"w" is of dtype >f'):
                service.rebind({"w": big(*range(N))}, {})
            self.assertEqual(other, first)
        raw = alone("bytes:4", N)
        with ferry.RemoteCopyService() as service:
            service.init("OFF")
            service.bind(ferry.plan(raw), {"w": big(*range(N))}, {"w": big(*range(N))})
            service.schedule()
            service.rebind({"w": big(*range(N))}, {})
            with self.assertRaisesRegex(ferry.InvalidInput, '"w" is of another dtype'):
                service.rebind({"w": first}, {})

    def test_a_pair_without_swap(self):
        with ferry.RemoteCopyService() as service:
            service.init("OFF")
            with self.assertRaisesRegex(ferry.InvalidInput, '"w" is given as 2 objects'):
                service.bind(ferry.plan(alone("u8")), {"w": bytes(N)},
                             {"w": (bytearray(N), bytearray(N))})

    def test_tasks_of_no_bytes(self):
        """Beside others and alone, as sends, receives or both, of any dtype."""
        nothing, target = array.array("f"), bytearray(4)
        for beside in (False, True):
            with ferry.RemoteCopyService() as service:
                service.init("OFF")
                service.register_send(1, nothing, 0, None, 0)
                service.register_receive(1, bytearray(), 0, 0, 0)
                service.register_send(2, b"abcd", 4, None, 0)
                service.register_receives([(3, target, 2, 0, 0)])
                if beside:
                    service.register_send(4, b"abcd", 0, None, 0)
                    service.register_receive(4, target, 0, None, 0)
                service.schedule()
                service.run()
                self.assertEqual(target, b"abcd" if beside else bytes(4))
                with self.assertRaises(ferry.InvalidInput):
                    service.register_send(5, b"abcd", 5, 0, 0)

    def test_an_option_that_is_misspelt(self):
        with self.assertRaisesRegex(ferry.InvalidInput, "'checksums' is not an option.*checksum"):
            ferry.refit({"w": bytes(N)}, {"w": bytearray(N)}, alone("u8"), checksums="end")

    def test_names(self):
        self.assertEqual(_ferry.dtype_name(float), "f64")
        self.assertEqual(_ferry.dtype_name("float32"), "f32")


# Capsules as a library that lies would make them.


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("n_dims", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", Tensor)]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Given:
    """An object with DLPack only, of the numbers 0 to n - 1 as i32, or of what is said instead."""

    def __init__(self, shape=(N,), strides=None, flags=None, major=1, **fields):
        self.memory = (ctypes.c_int32 * 64)(*range(64))
        self.shape_array = None if shape is None else (ctypes.c_int64 * len(shape))(*shape)
        self.stride_array = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        said = dict(data=ctypes.addressof(self.memory), device_type=1, n_dims=len(shape or ()),
                    code=0, bits=32, lanes=1)
        said.update(fields)
        tensor = Tensor(**said)
        if self.shape_array is not None:
            tensor.shape = ctypes.cast(self.shape_array, ctypes.POINTER(ctypes.c_int64))
        if self.stride_array is not None:
            tensor.strides = ctypes.cast(self.stride_array, ctypes.POINTER(ctypes.c_int64))
        if flags is None:
            self.block, self.name = Managed(tensor), b"dltensor"
        else:
            self.block, self.name = Versioned(major, 0, None, None, flags, tensor), \
                b"dltensor_versioned"
        self.asked = []

    def __dlpack__(self, **how):
        self.asked.append(how)
        if how and self.name == b"dltensor":
            raise TypeError("unexpected keyword")
        return new_capsule(ctypes.addressof(self.block), self.name, None)

    def __dlpack_device__(self):
        return (1, 0)


class NoCapsule:
    def __dlpack__(self, **how):
        return 5


class Raises:
    def __dlpack__(self, **how):
        raise BufferError("not today")


class Capsules(unittest.TestCase):
    def setUp(self):
        self.service = ferry.RemoteCopyService()
        self.service.init("OFF")
        self.addCleanup(self.service.finalize)

    def test_good_ones(self):
        for source in (Given(), Given(flags=0), Given(flags=1), Given(shape=(2, 2), strides=(8, 3))):
            target = Given(flags=0) if source.stride_array is None else Given(shape=(2, 2))
            ctypes.memset(target.memory, 0, ctypes.sizeof(target.memory))
            self.service.register_send(1, source, 0, None, 0)
            self.service.register_receive(1, target, 0, None, 0)
            self.service.schedule()
            self.service.run()
            self.service.clear_requests()
            expected = [0, 1, 2, 3] if source.stride_array is None else [0, 3, 8, 11]
            self.assertEqual(list(target.memory[:4]), expected)
            self.assertEqual(source.asked[0], {"max_version": (1, 0)})

    def test_what_is_read_only(self):
        self.service.register_send(1, Given(flags=1), 0, None, 0)
        with self.assertRaisesRegex(ferry.InvalidInput, 'tensor "w" is read-only'):
            self.service.register_receive(1, Given(flags=1), 0, None, 0, name="w")

    def test_lies(self):
        lies = {
            "dims are missing": Given(shape=None, n_dims=2),
            "fewer than no dims": Given(n_dims=-1),
            "more dims than there are": Given(n_dims=1000),
            "a negative length": Given(shape=(-4,)),
            "a negative length and a positive one": Given(shape=(-2, -2)),
            "no memory": Given(data=None),
            "no bits": Given(bits=0),
            "no lanes": Given(lanes=0),
            "half a byte": Given(bits=4),
            "a product beyond 64 bits": Given(shape=(1 << 40, 1 << 40)),
            "a stride beyond 64 bits": Given(strides=((1 << 62) + 1,)),
            "elements that share memory": Given(shape=(2, 2), strides=(1, 1)),
            "another machine's memory": Given(device_type=2),
            "a copy": Given(flags=2),
            "another version": Given(flags=0, major=2),
            "no capsule": NoCapsule(),
            "an exception": Raises(),
            "a list": [1, 2],
            "a text": "weights",
        }
        for number, (what, lie) in enumerate(lies.items()):
            for register in (self.service.register_send, self.service.register_receive):
                with self.subTest(what), self.assertRaises(ferry.Error) as caught:
                    register(number, lie, 0, None, 0, name="w")
                self.assertEqual(caught.exception.tensor, "w", str(caught.exception))
        cause = None
        try:
            self.service.register_send(1, Raises(), 0, None, 0, name="w")
        except ferry.InvalidInput as error:
            cause = error.__cause__
        self.assertIsInstance(cause, BufferError)

    def test_integers_of_no_width(self):
        """An int of 128 bits is not one of 64."""
        odd = Given(bits=128, shape=(2,))
        whole = {"mesh": [], "rules": [{"match": "*"}]}
        made = ferry.plan({"format": "ferry.spec/1", "source": whole, "destination": whole,
                           "tensors": [{"name": "w", "shape": [4], "dtype": "i64"}]})
        with self.assertRaisesRegex(ferry.InvalidInput, '"w" is of dtype DLPack code 0, 128 bits'):
            self.service.bind(made, {"w": odd}, {"w": bytearray(32)})

    def test_a_refit_takes_what_the_service_takes(self):
        whole = {"mesh": [], "rules": [{"match": "*"}]}
        made = {"format": "ferry.spec/1", "source": whole, "destination": whole,
                "tensors": [{"name": "w", "shape": [2, 2], "dtype": "i32"}]}
        for source in (Given(shape=(2, 2)), Given(shape=(2, 2), strides=(8, 3))):
            target = array.array("i", bytes(16))
            two_dims = memoryview(target).cast("B").cast("i", (2, 2))
            ferry.refit({"w": source}, {"w": two_dims}, made)
            self.assertEqual(list(target), [0, 1, 2, 3] if source.stride_array is None
                             else [0, 3, 8, 11])
        for wrong in ([1, 2, 3, 4], "text", 1.5, Raises()):
            with self.assertRaises(ferry.InvalidInput) as caught:
                ferry.refit({"w": wrong}, {"w": bytearray(16)}, made)
            self.assertEqual(caught.exception.tensor, "w")
        for wrong in ([("w", bytes(16))], 5, object()):
            with self.assertRaisesRegex(ferry.InvalidInput, "give a dict of names"):
                ferry.refit(wrong, {"w": bytearray(16)}, made)


if __name__ == "__main__":
    unittest.main()
