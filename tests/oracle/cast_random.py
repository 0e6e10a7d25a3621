# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Casts put into random specs: other types, scales and adds, for some of what the destination wants.

`add_casts` changes a valid spec to another valid one; which tensors it can cast it finds by trying.
"""

import random

import ferry_cast
from ferry_boxes import model_of
from ferry_layout import SpecError, dtype_bits

TYPES = ("f32", "f16", "bf16", "f8e4m3", "f8e5m2")
NUMBERS = {"scale": (1, 2, 0.5, -0.125, 1e30, 3.0e-39), "add": (0, 1, -0.5, 448, 1e-20)}


def draw_cast(rng):
    """Keys of a rule or a parameter. Without another type a number makes it a cast."""
    entry = {"cast": rng.choice(["round", "saturate"])}
    if rng.random() < 0.85:
        entry["dtype"] = rng.choice(TYPES)
    for key, values in NUMBERS.items():
        if rng.random() < 0.3 or (key == "scale" and "dtype" not in entry):
            entry[key] = rng.choice(values)
    return entry


def refill(rng, parameter, dtype):
    for fill in parameter.get("fill", []):
        if "bits" in fill:
            fill["bits"] = "".join(rng.choice("0123456789abcdef")
                                   for _ in range(dtype_bits(dtype) // 4))


def is_valid(spec):
    try:
        model_of(spec).validate()
    except SpecError:
        return False
    return True


def add_casts(rng, spec):
    """Some entries of the destination cast; the same spec, changed."""
    side = spec["destination"]
    entries = side.get("boxes", side.get("rules"))
    for number in rng.sample(range(len(entries)), min(len(entries), rng.randint(1, 5))):
        before = entries[number]
        changed = {key: value for key, value in before.items() if key not in ferry_cast.KEYS}
        changed.update(draw_cast(rng))
        if "fill" in changed:
            changed["fill"] = [dict(fill) for fill in changed["fill"]]
            if "dtype" in changed:
                refill(rng, changed, changed["dtype"])
        entries[number] = changed
        if not is_valid(spec):
            entries[number] = before
    return spec


def with_casts(seed, spec):
    """Of three seeds one has casts: those of the others stay what they were."""
    return spec if seed % 3 else add_casts(random.Random("casts %d" % seed), spec)
