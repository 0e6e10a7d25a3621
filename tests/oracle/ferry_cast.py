# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What becomes of a tensor's elements on their way, as docs/formats.md says it: "cast" and friends.

A second reading, like ferry_layout.py. `becomes` says what a plan must print of a move; `Change.element`
is what one element becomes, reckoned in fractions.
"""

import struct
from fractions import Fraction

KEYS = ("cast", "scale", "add")
PRINTED = {"src_dtype", "dst_dtype", "cast", "scale", "add", "at", "quantize", "part",
           "dequantize"}

# Bits of the exponent and of the mantissa, and whether all ones in the exponent are not numbers.
TYPES = {"f32": (8, 23, True), "f16": (5, 10, True), "bf16": (8, 7, True), "f8e5m2": (5, 2, True),
         "f8e4m3": (4, 3, False), "f64": (11, 52, True)}


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def to_f32(value):
    """The f32 nearest to it, as a double; None where that is infinite."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return None


class Cast:
    """What a rule or a parameter says: a plain one says nothing."""

    def __init__(self, entry, what, fail):
        self.dtype = entry.get("dtype")
        self.word = entry.get("cast")
        if self.word is None:
            fail(not any(key in entry for key in KEYS), "%s: scale or add, and no cast" % what)
        else:
            fail(self.word in ("round", "saturate"), "%s: cast %r" % (what, self.word))
        self.scale, self.add = (self._number(entry, key, default, what, fail)
                                for key, default in (("scale", 1.0), ("add", 0.0)))
        fail(self.scale != 0, "%s: scale 0" % what)

    @staticmethod
    def _number(entry, key, default, what, fail):
        value = entry.get(key, default)
        fail(is_number(value), "%s: %s is no number" % (what, key))
        value = to_f32(value)
        fail(value is not None, "%s: %s is no f32" % (what, key))
        return value

    def changes(self):
        return self.word is not None and (self.scale != 1 or self.add != 0)

    def becomes(self, dtype, what, fail):
        """None where elements of this type stay as they are, or a Change."""
        wanted = self.dtype or dtype
        if wanted == dtype and not self.changes():
            return None
        fail(self.word is not None, "%s: takes a cast" % what)
        fail((dtype, wanted) == ("f64", "f32")
             or (dtype in TYPES and wanted in TYPES and "f64" not in (dtype, wanted)),
             "%s: no cast from %s to %s" % (what, dtype, wanted))
        return Change(self, dtype, wanted)


class Number:
    """What an element's bits say: a sign, and a fraction, or that it is infinite or no number."""

    def __init__(self, negative, value=None, payload=None):
        self.negative, self.value, self.payload = negative, value, payload
        self.is_nan = payload is not None
        self.is_infinite = value is None and payload is None

    def timed(self, factor):
        negative = self.negative != (factor < 0)
        return Number(negative, self.value if self.value is None
                      else self.value * abs(Fraction(factor)))

    def plus(self, number):
        if self.is_infinite:
            return self
        value = (-self.value if self.negative else self.value) + Fraction(number)
        return Number(value < 0, abs(value))


def read(dtype, bits):
    """A Number; of the magnitude, which is positive, the sign is apart."""
    exponent_bits, mantissa_bits, has_infinity = TYPES[dtype]
    magnitude_bits = exponent_bits + mantissa_bits
    negative, magnitude = bool(bits >> magnitude_bits), bits & ((1 << magnitude_bits) - 1)
    exponent, mantissa = magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1)
    if has_infinity and exponent == (1 << exponent_bits) - 1:
        if mantissa:  # the payload as that of an f32
            return Number(negative, payload=Fraction(mantissa, 1 << mantissa_bits))
        return Number(negative)
    if not has_infinity and magnitude == (1 << magnitude_bits) - 1:
        return Number(negative, payload=Fraction(1, 2))
    bias = (1 << (exponent_bits - 1)) - 1
    whole = mantissa if exponent == 0 else mantissa + (1 << mantissa_bits)
    power = max(exponent, 1) - bias - mantissa_bits
    return Number(negative, Fraction(whole) * Fraction(2) ** power)


def write_nan(dtype, number):
    """The bits of a NaN: quiet, with as much of the payload as there is room for; all ones in f8."""
    exponent_bits, mantissa_bits, _ = TYPES[dtype]
    if width(dtype) == 8:
        return (1 << (exponent_bits + mantissa_bits)) - 1
    mantissa = int(number.payload * (1 << mantissa_bits))
    if dtype != "f32":
        mantissa |= 1 << (mantissa_bits - 1)
    return ((1 << exponent_bits) - 1) << mantissa_bits | mantissa


def write_magnitude(dtype, value, saturates):
    """The bits of the nearest number, ties to the even one."""
    exponent_bits, mantissa_bits, has_infinity = TYPES[dtype]
    infinite = ((1 << exponent_bits) - 1) << mantissa_bits
    too_large = infinite if has_infinity else (1 << (exponent_bits + mantissa_bits)) - 1
    bias = (1 << (exponent_bits - 1)) - 1
    if value is None:
        return too_large - 1 if saturates and not has_infinity else too_large
    if value == 0:
        return 0
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > value
    exponent = max(exponent, 1 - bias)
    bits = round(value / Fraction(2) ** (exponent - mantissa_bits))  # a Fraction's ties go to even
    bits += (exponent + bias - 1) << mantissa_bits
    if bits < too_large:
        return bits
    return too_large - 1 if saturates else too_large


def write(dtype, number, saturates):
    magnitude = (write_nan(dtype, number) if number.is_nan
                 else write_magnitude(dtype, number.value, saturates))
    return number.negative << (width(dtype) - 1) | magnitude


class Change:
    """A cast from one type to another."""

    def __init__(self, cast, dtype, wanted):
        self.cast, self.dtype, self.wanted = cast, dtype, wanted
        self.at = "receiver" if width(dtype) < width(wanted) else "sender"
        self.bits = min(width(dtype), width(wanted))

    def element(self, bits):
        """The bits that an element becomes; None: any that are no number."""
        number = read(self.dtype, bits)
        if number.is_nan:
            if self.cast.changes() or self.dtype == "f64":
                return None
            return bits if self.dtype == self.wanted else write(self.wanted, number, False)
        if self.dtype == self.wanted and not self.cast.changes():
            return bits
        if self.dtype == "f64":  # an f32 first, which may be infinite
            number = read("f32", write("f32", number, False))
        if self.cast.scale != 1:
            number = read("f32", write("f32", number.timed(self.cast.scale), False))
        if self.cast.add != 0:
            number = read("f32", write("f32", number.plus(self.cast.add), False))
        return write(self.wanted, number, self.cast.word == "saturate")

    def printed(self):
        """The keys of a move."""
        result = {"src_dtype": self.dtype, "dst_dtype": self.wanted, "cast": self.cast.word,
                  "at": self.at}
        if self.cast.scale != 1:
            result["scale"] = self.cast.scale
        if self.cast.add != 0:
            result["add"] = self.cast.add
        return result


def width(dtype):
    if dtype in ("f8e8m0", "f4"):  # of scales, and of codes of blocks
        return 8 if dtype == "f8e8m0" else 4
    exponent, mantissa, _ = TYPES[dtype]
    return 1 + exponent + mantissa


def printed(record):
    """What a move says of a cast."""
    return {key: record[key] for key in PRINTED & set(record)}


def complaint(record, change):
    """What is wrong with what a move says; None: nothing."""
    wanted = change.printed() if change else {}
    said = printed(record)
    for key in ("scale", "add"):
        if key in said and not is_number(said[key]):
            return "%s is %r" % (key, said[key])
    return None if said == wanted else "says %s of a cast, not %s" % (said, wanted)
