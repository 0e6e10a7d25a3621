#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Copies between arrays whose dimensions lie in different orders, by ferry_box_copy, NumPy and torch
on the same memory in turns, each with one thread, beside a plain copy of as many bytes by ferry.
Times are those of the thread's processor; a figure is the median of the rounds' ratios.

    permute_vs_peers.py --library build/release/libferry.so [--rounds N] [--mib N] [--json FILE]
"""

import argparse
import ctypes
import math
import statistics
import time

import numpy
import torch

import honest

MAX_DIMS = 8


class Buffer(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_uint64), ("kind", ctypes.c_uint32),
                ("device", ctypes.c_int32), ("registration", ctypes.c_void_p),
                ("spare", ctypes.c_uint64 * 2)]


class Box(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("buffer", Buffer), ("name", ctypes.c_char_p),
                ("element_bytes", ctypes.c_uint64), ("offset", ctypes.c_uint64),
                ("n_dims", ctypes.c_uint32), ("length", ctypes.c_uint64 * MAX_DIMS),
                ("stride", ctypes.c_uint64 * MAX_DIMS)]


def box_of(array):
    begin, end = numpy.lib.array_utils.byte_bounds(array)
    return Box(ctypes.sizeof(Box), Buffer(begin, end - begin), None, array.itemsize, 0, array.ndim,
               (ctypes.c_uint64 * MAX_DIMS)(*array.shape), (ctypes.c_uint64 * MAX_DIMS)(*array.strides))


def cases(mib):
    """Name, to, from: arrays of one shape, and what is the least of the copy limit (or None)."""
    def made(dtype, *shape):
        scale = mib * 2**20 // (numpy.dtype(dtype).itemsize * math.prod(shape))
        return numpy.ones((shape[0] * max(scale, 1), *shape[1:]), dtype)

    for dtype in ("u1", "u2", "u4", "u8", "c16"):
        side = made(dtype, 1, 4096)
        yield f"transpose of {side.itemsize} bytes", side.T, 0.4 if dtype == "u2" else None
        odd = made(dtype, 1, 4096 + 33)[:, :-7]
        yield f"transpose of {side.itemsize} bytes, odd pitches", odd.T, None
    yield "experts, each transposed, 2 bytes", made("u2", 1, 1024, 512).transpose(0, 2, 1), None
    yield "OIHW to OHWI, 2 bytes", made("u2", 1, 256, 3, 3).transpose(0, 2, 3, 1), None
    yield "OHWI to OIHW, 2 bytes", made("u2", 1, 3, 3, 256).transpose(0, 3, 1, 2), None
    yield "dims in reverse, 4 dims, 2 bytes", made("u2", 8, 32, 64, 128).transpose(3, 2, 1, 0), None
    yield "heads outside, runs of 256 bytes", made("u2", 1, 32, 128).transpose(1, 0, 2), 0.7
    yield "rotary halves, runs of 8 KiB", made("u2", 1, 2, 64, 4096).transpose(0, 2, 1, 3), 0.7
    for run in (64, 96, 128, 512, 1024):
        yield (f"outer dims exchanged, runs of {run} bytes",
               made("u1", 1, 512, run).transpose(1, 0, 2), 0.7)
    for run in (24, 40, 56, 64, 128, 256, 512, 1024, 8192):
        yield (f"interleaved by one row of {run} bytes", made("u1", 1, 2, run)[:, 0],
               0.7 if run >= 64 else None)
    yield "every third element of 2 bytes", made("u2", 1, 4096, 3)[:, :, 0], None
    for dtype in ("u1", "u2", "u4", "u8"):
        for distance in (2, 3, 4, 5, 6, 7, 8):
            size = numpy.dtype(dtype).itemsize
            yield f"one of {distance} elements of {size} bytes", made(dtype, 1, distance)[:, 0], None


def seconds(work):
    before = time.thread_time()
    work()
    return time.thread_time() - before


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--only", default="")
    parser.add_argument("--json")
    honest.add_arguments(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    library = ctypes.CDLL(args.library)
    copy = library.ferry_box_copy
    copy.argtypes = [ctypes.c_void_p] * 5
    record = honest.begin(args.rounds, args.patience)
    rows = []
    print(f"{'':45} GB/s  of a copy (wanted)  over NumPy  over torch")
    for name, source, wanted in cases(args.mib):
        if args.only not in name:
            continue
        source.view(numpy.ndarray)[...] = 3
        target = numpy.full(source.shape, 7, source.dtype)
        line, other = numpy.ones(target.size * target.itemsize, "u1"), target.reshape(-1).view("u1")
        views = {"u1": torch.uint8, "u2": torch.bfloat16, "u4": torch.float32, "u8": torch.float64,
                 "c16": torch.complex128}
        kind = source.dtype.str[1:]
        signed = {"u2": "i2", "u4": "i4", "u8": "i8"}.get(kind, kind)
        to_torch = torch.from_numpy(target.view(signed)).view(views[kind])
        from_torch = torch.from_numpy(source.view(signed)).view(views[kind])
        boxes = [box_of(a) for a in (target, source, other, line)]
        to, at, flat_to, flat_at = (ctypes.byref(b) for b in boxes)

        def ours(pair, name=name):
            assert copy(*pair, None, None, None) == 0, name
        ways = {"copy": lambda: ours((flat_to, flat_at)), "ferry": lambda: ours((to, at)),
                "numpy": lambda: numpy.copyto(target, source),
                "torch": lambda: to_torch.copy_(from_torch)}
        times = {way: [] for way in ways}
        for i in range(args.rounds + 1):
            for way, work in ways.items():
                spent = seconds(work)
                if i > 0:
                    times[way].append(spent)
        ratio = {way: statistics.median(t / f for t, f in zip(times[way], times["ferry"]))
                 for way in ways}
        rate = target.nbytes / statistics.median(times["ferry"]) / 1e9
        rows.append({"case": name, "bytes": target.nbytes, "gbytes_per_s": rate, "wanted": wanted,
                     "of_copy": ratio["copy"], "over_numpy": ratio["numpy"],
                     "over_torch": ratio["torch"]})
        print(f"{name:45} {rate:5.1f} {ratio['copy']:6.2f} {'(%.1f)' % wanted if wanted else '':8}"
              f"{ratio['numpy']:14.2f} {ratio['torch']:11.2f}", flush=True)
    if args.json:
        honest.write(args.json, {**honest.end(record), "mib": args.mib, "peers":
                                 [f"numpy {numpy.__version__}", f"torch {torch.__version__}"],
                                 "results": rows})


if __name__ == "__main__":
    main()
