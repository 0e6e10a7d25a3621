# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Tensors that a destination quantizes, as docs/formats.md says it: "quantize".

A second reading. The scales of a tensor are a tensor of the model too, in blocks of the first; where
they are is where these blocks are, so no destination may have a part of one. Where a source may have,
receivers make both, and no move brings scales. Whoever makes nvfp4 does so by a scale of each matrix,
which a sender holds and a receiver gets beside it. `quantized` is what a block becomes, in fractions.
"""

from fractions import Fraction

import ferry_cast

FORMATS = {"f8e4m3", "f8e5m2", "mxfp8", "nvfp4"}
KINDS = {"f32": ("amax", "cover", "floor"), "f8e8m0": ("cover", "floor")}
VALUES = {"f32", "f16", "bf16"}
KEYS = {"format", "block", "scale", "scale_dtype", "scale_kind", "tensor_scale"}


class Quantize:
    """The value of "quantize"."""

    def __init__(self, entry, what, require):
        require(isinstance(entry, dict) and set(entry) <= KEYS, "%s: quantize" % what)
        require(entry.get("format") in FORMATS, "%s: format" % what)
        self.scale, self.given = entry.get("scale"), entry.get("tensor_scale")
        self.is_f4 = entry["format"] == "nvfp4"
        for name in [self.scale] + [self.given] * self.is_f4:
            require(isinstance(name, str) and name not in ("", "*") and name.count("*") <= 1,
                    "%s: scale" % what)
        if self.is_f4:
            require(set(entry) == {"format", "scale", "tensor_scale"}, "%s: nvfp4 and more" % what)
            self.is_mx = False
            self.codes, self.scales, self.kind, self.block = "f4", "f8e4m3", "amax", [1, 16]
            return
        require(self.given is None, "%s: tensor_scale" % what)
        self.is_mx = entry["format"] == "mxfp8"
        if self.is_mx:
            require(set(entry) == {"format", "scale"}, "%s: mxfp8 and more" % what)
            self.codes, self.scales, self.kind, self.block = "f8e4m3", "f8e8m0", "floor", [1, 32]
            return
        self.codes = entry["format"]
        self.scales = entry.get("scale_dtype", "f32")
        require(self.scales in KINDS, "%s: scale_dtype" % what)
        self.kind = entry.get("scale_kind", KINDS[self.scales][0])
        require(self.kind in KINDS[self.scales], "%s: scale_kind" % what)
        self.block = entry.get("block")
        require(isinstance(self.block, list) and len(self.block) == 2
                and all(type(n) is int and 1 <= n < 1 << 31 for n in self.block),
                "%s: block" % what)

    def printed(self):
        if self.is_f4:
            return {"format": "nvfp4"}
        if self.is_mx or (self.codes, self.scales, self.kind, self.block) == (
                "f8e4m3", "f8e8m0", "floor", [1, 32]):
            return {"format": "mxfp8"}
        return {"format": self.codes, "block": self.block, "scale_dtype": self.scales,
                "scale_kind": self.kind}

    def name(self, tensor):
        return self.scale.replace("*", tensor.name)

    def given_of(self, tensor, by_name, require):
        """The tensor with a scale of each matrix."""
        given = by_name.get(self.given.replace("*", tensor.name))
        require(given is not None and given.dtype == "f32" and given.values is None
                and given.codes is None and given.source is None
                and list(given.shape) == list(tensor.shape[:-2]),
                "%s: has no scale of each matrix" % tensor.name)
        return given

    def shape(self, shape):
        return [*shape[:-2], *(-(-n // b) for n, b in zip(shape[-2:], self.block))]

    def check(self, tensor, what, require):
        require(tensor.dtype in VALUES and len(tensor.shape) >= 2 and tensor.values is None,
                "%s: %s is not quantized" % (what, tensor.name))
        require(not self.is_f4 or tensor.shape[-1] % 2 == 0, "%s: half a byte" % tensor.name)

    def blocks_of(self, axes, shape, require):
        """The indices that a shard has of each dimension, in blocks."""
        result = [list(axis) for axis in axes]
        for d, block in ((len(axes) - 2, self.block[0]), (len(axes) - 1, self.block[1])):
            result[d], at = [], 0
            while at < len(axes[d]):
                first = axes[d][at]
                last = min(first + block, shape[d])
                require(first % block == 0 and axes[d][at:at + last - first] ==
                        list(range(first, last)), "a shard has a part of a block")
                result[d].append(first // block)
                at += last - first
        return result

    def is_aligned(self, begin, lengths, shape):
        """Whether a box of the values is of whole blocks."""
        return all(b % block == 0 and ((b + n) % block == 0 or b + n == whole) for b, n, whole, block
                   in zip(begin[-2:], lengths[-2:], shape[-2:], self.block))


class Made:
    """What a move makes of values: the interface of ferry_cast.Change."""

    def __init__(self, quantize, part, tensor, at="sender"):
        self.quantize, self.part, self.dtype, self.at = quantize, part, tensor.dtype, at
        self.wanted = quantize.codes if part == "codes" else quantize.scales
        self.bits = tensor.bits if at == "receiver" else ferry_cast.width(self.wanted)
        self.given = {"tensor_scale": tensor.given.name} if quantize.is_f4 else {}

    def printed(self):
        return {"src_dtype": self.dtype, "dst_dtype": self.wanted, "part": self.part,
                "quantize": {**self.quantize.printed(), **self.given}, "at": self.at}


def codes_of(quantize, tensor):
    return Made(quantize, "codes", tensor, tensor.quantized_at)


def scales_of(tensor):
    return Made(tensor.quantize, "scales", tensor.values, tensor.values.quantized_at)


def f32(value):
    """The f32 nearest to a magnitude that has one."""
    return ferry_cast.read("f32", ferry_cast.write_magnitude("f32", value, False)).value


def power_under(value):
    """The exponent of the greatest power of two that is not above it."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent - (Fraction(2) ** exponent > value)


def scale_for(quantize, largest):
    """Of a block whose largest finite magnitude this is."""
    most = Fraction(448 if quantize.codes == "f8e4m3" else 57344)
    if largest == 0:
        return Fraction(1)
    if quantize.kind == "amax":
        return max(f32(largest / most), Fraction(2) ** -126)
    exponent = power_under(largest) - power_under(most)
    if quantize.kind == "cover":
        exponent = power_under(largest / most)
        exponent += most * Fraction(2) ** exponent < largest
    return Fraction(2) ** max(exponent, -127 if quantize.scales == "f8e8m0" else -126)


def code_of(quantize, number, scale):
    """The bits of an element over the scale."""
    if number.is_nan or (number.is_infinite and quantize.codes == "f8e4m3"):
        number = ferry_cast.Number(number.negative, payload=Fraction(1, 2))
    elif not number.is_infinite:
        number = ferry_cast.Number(number.negative, f32(number.value / scale))
    return ferry_cast.write(quantize.codes, number, not number.is_infinite)


F4 = [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12)]  # by the bits of a code


def f4_of(value):
    """The bits of the nearest magnitude; of two, those that are even."""
    return min(range(8), key=lambda bits: (abs(F4[bits] - value), bits % 2))


def quantized_f4(numbers, given):
    """As quantized, by the scale of the matrix."""
    if any(number.is_nan or number.is_infinite for number in numbers):
        return 0x7f, [0] * len(numbers)
    largest = max(number.value for number in numbers)
    scale = Fraction(1)
    if largest:
        scale = max(largest / f32(6 * given), Fraction(2) ** -9)
        scale = f32(scale) if scale < Fraction(2) ** 120 else scale
    bits = ferry_cast.write_magnitude("f8e4m3", scale, True)
    divisor = f32(ferry_cast.read("f8e4m3", bits).value * given)
    quotients = [number.value / divisor for number in numbers]
    return bits, [number.negative << 3 | f4_of(f32(q) if q < Fraction(2) ** 120 else q)
                  for number, q in zip(numbers, quotients)]


def quantized(quantize, dtype, elements, given=None):
    """The bits of the scale and of the codes of a block of elements, bits themselves. given: of
    nvfp4, the bits of the scale of its matrix."""
    if quantize.is_f4:
        return quantized_f4([ferry_cast.read(dtype, bits) for bits in elements],
                            ferry_cast.read("f32", given).value)
    numbers = [ferry_cast.read(dtype, bits) for bits in elements]
    scale = scale_for(quantize, max((number.value for number in numbers
                                     if not number.is_nan and not number.is_infinite),
                                    default=Fraction(0)))
    bits = (power_under(scale) + 127 if quantize.scales == "f8e8m0"
            else ferry_cast.write_magnitude("f32", scale, False))
    return bits, [code_of(quantize, number, scale) for number in numbers]
