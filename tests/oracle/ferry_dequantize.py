# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Codes that a destination dequantizes, as docs/formats.md says it: "dequantize".

A second reading. Who gets codes gets the scales of their blocks too: a tensor of the model that is
fed from the one that the source has, and goes where the codes go, in blocks. Of f4 there is another
one, with an f32 for each matrix, which goes where the matrices go.
"""

from ferry_cast import Number, read, width, write
from ferry_quantize import F4, Quantize

SCALES = {"f8e4m3": ("f32", "f8e8m0"), "f8e5m2": ("f32", "f8e8m0"), "f4": ("f8e4m3",)}
VALUES = ("f32", "f16", "bf16")
PLAIN_NAN = {"f32": 0x7fc00000, "f16": 0x7e00, "bf16": 0x7fc0}


class Dequantize:
    """The value of "dequantize", of a rule that wants `dtype`."""

    blocks_of = Quantize.blocks_of
    shape = Quantize.shape

    def __init__(self, rule, what, require):
        entry = rule["dequantize"]
        require(isinstance(entry, dict) and set(entry) == {"scale", "block"}, "%s: keys" % what)
        self.scale, self.block = entry["scale"], entry["block"]
        require(isinstance(self.scale, str) and self.scale not in ("", "*")
                and self.scale.count("*") <= 1, "%s: scale" % what)
        require(isinstance(self.block, list) and len(self.block) == 2
                and all(type(n) is int and 1 <= n < 1 << 31 for n in self.block),
                "%s: block" % what)
        self.dtype = rule.get("dtype")
        require(self.dtype in VALUES, "%s: dtype" % what)
        require("cast" not in rule and "quantize" not in rule, "%s: two of them" % what)

    def find(self, tensor, by_name, require):
        """The scales at the source."""
        require(tensor.dtype in SCALES and len(tensor.shape) >= 2 and tensor.values is None,
                "%s: no codes" % tensor.name)
        require(tensor.dtype != "f4" or (self.block == [1, 16] and tensor.shape[-1] % 2 == 0),
                "%s: blocks or rows of f4" % tensor.name)
        scales = by_name.get(self.scale.replace("*", tensor.name))
        require(scales is not None, "%s: no scales" % tensor.name)
        require(scales.dtype in SCALES[tensor.dtype] and scales.values is None,
                "%s: dtype" % scales.name)
        require(list(scales.shape) == self.shape(tensor.shape), "%s: shape" % scales.name)
        return scales

    def find_of_matrices(self, tensor, by_name, require):
        """Of f4 those of its matrices, at the source; else None."""
        if tensor.dtype != "f4":
            return None
        scales = by_name.get(self.scale.replace("*", tensor.name) + "_2")
        require(scales is not None and scales.dtype == "f32" and scales.values is None
                and list(scales.shape) == list(tensor.shape[:-2]),
                "%s: no scales of matrices" % tensor.name)
        return scales


class Product:
    """What becomes of codes: the interface of ferry_cast.Change, but for an element it takes two."""

    at = "receiver"

    def __init__(self, how, codes, scales):
        self.how, self.dtype, self.wanted, self.scales = how, codes, how.dtype, scales
        self.bits = width(codes)

    def printed(self):
        return {"src_dtype": self.dtype, "dst_dtype": self.wanted, "part": "codes",
                "dequantize": {"block": self.how.block, "scale_dtype": self.scales},
                "at": self.at}

    def block_index(self, index, shape):
        """Which scale an element has, both in row-major order."""
        rows, columns = shape[-2:]
        down, across = (-(-n // b) for n, b in zip((rows, columns), self.how.block))
        plane, row, column = index // columns // rows, index // columns % rows, index % columns
        return (plane * down + row // self.how.block[0]) * across + column // self.how.block[1]

    @staticmethod
    def matrix_index(index, shape):
        return index // (shape[-1] * shape[-2])

    def product(self, code, scale, of_matrix=None):
        """The bits of a code times a scale, and of f4 times that of its matrix: all are bits."""
        a, b = read_code(self.dtype, code), read_scale(self.scales, scale)
        if of_matrix is not None and not b.is_nan:
            factor = Number(b.negative, b.value * read("f32", of_matrix).value)
            b = read("f32", write("f32", factor, False))
        numbers = [n for n in (a, b) if not n.is_infinite]
        if a.is_nan or b.is_nan or (len(numbers) == 1 and numbers[0].value == 0):
            return PLAIN_NAN[self.wanted]
        negative = a.negative != b.negative
        exact = Number(negative, a.value * b.value if len(numbers) == 2 else None)
        return write(self.wanted, read("f32", write("f32", exact, False)), False)


def read_code(dtype, bits):
    return Number(bool(bits >> 3), F4[bits & 7]) if dtype == "f4" else read(dtype, bits)


def read_scale(dtype, bits):
    if dtype != "f8e8m0":
        return read(dtype, bits)
    if bits == 255:
        return read("f32", 0x7fc00000)
    return read("f32", bits << 23 if bits else 1 << 22)


def scale_bits(dtype):
    return width(dtype)
