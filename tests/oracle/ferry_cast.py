# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What becomes of a tensor's elements on their way, as docs/formats.md says it: "cast" and friends.

A second reading, like ferry_layout.py. `becomes` says what a plan must print of a move; `element`
is what one element becomes, reckoned in fractions.
"""

import struct
from fractions import Fraction

KEYS = ("cast", "scale", "add")
PRINTED = {"src_dtype", "dst_dtype", "cast", "scale", "add", "at", "quantize", "part"}

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


class Change:
    """A cast from one type to another."""

    def __init__(self, cast, dtype, wanted):
        self.cast, self.dtype, self.wanted = cast, dtype, wanted
        self.at = "receiver" if width(dtype) < width(wanted) else "sender"
        self.bits = min(width(dtype), width(wanted))

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
    if dtype == "f8e8m0":  # of scales
        return 8
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
