# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What a shard has of a whole tensor that a side in boxes describes. Numbers only: no torch here."""

from __future__ import annotations

import math
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

Run = Tuple[int, int, int]  # where it begins in the whole tensor, its length, where it begins here
Loop = Tuple[int, List[int], int]  # as ferry.Side.add_box takes them


class Part(NamedTuple):
    """A box of a source in the memory of a shard: the arguments of :meth:`ferry.Side.add_box`."""

    source: str
    begin: List[int]
    shape: List[int]
    offset: int
    strides: List[int]
    repeat: List[Loop]

    @property
    def elements(self) -> int:
        """How many there are of it."""
        return math.prod(self.shape) * math.prod(count for count, _, _ in self.repeat)


def strides_of(shape: Sequence[int]) -> List[int]:
    """In row-major order without gaps."""
    return [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]


def _place(offset: int, strides: Sequence[int]) -> List[int]:
    found = []
    for stride in strides:
        at, offset = divmod(offset, max(1, stride))
        found.append(at)
    return found


def _times(numbers: Sequence[int], strides: Sequence[int]) -> int:
    return sum(n * stride for n, stride in zip(numbers, strides))


class _Cutting:
    """A box of the whole tensor, and the dimension of that by which it is cut."""

    def __init__(self, box: Dict[str, Any], whole: Sequence[int], cut: int, local: Sequence[int]):
        self.box, self.cut = box, cut
        self.ours, self.theirs = strides_of(whole), strides_of(local)
        self.at = _place(box.get("offset", 0), self.ours)
        strides = box.get("strides") or strides_of(box["shape"])
        self.axes = [
            next((k for k, (extent, step) in enumerate(zip(whole, self.ours))
                  if n > 1 and extent > 1 and step == stride), None)
            for n, stride in zip(box["shape"], strides)
        ]  # fmt: skip
        self.own: Optional[int] = self.axes.index(cut) if cut in self.axes else None
        self.width = 1 if self.own is None else box["shape"][self.own]
        self.loops: List[Loop] = []  # that go along other dimensions
        self.turns, self.step, self.begin = 1, 1, [0] * len(box["begin"])
        for loop in box.get("repeat", ()):
            steps = _place(loop["offset"], self.ours)
            if steps[cut] > 0:
                self.turns, self.step, self.begin = loop["count"], steps[cut], loop["begin"]
            else:
                self.loops.append((loop["count"], loop["begin"], _times(steps, self.theirs)))

    def turn(self, number: int, count: int, run: Run) -> Optional[Part]:
        """So many turns from this one on, which have the same in common with the run."""
        first, length, here = run
        row = self.at[self.cut] + number * self.step
        low, high = max(first, row), min(first + length, row + self.width)
        if low >= high:
            return None
        begin = [b + number * step for b, step in zip(self.box["begin"], self.begin)]
        shape = list(self.box["shape"])
        if self.own is not None:
            begin[self.own] += low - row
            shape[self.own] = high - low
        place = list(self.at)
        place[self.cut] = here + low - first
        strides = [1 if axis is None else self.theirs[axis] for axis in self.axes]
        repeat = list(self.loops)
        if count > 1:
            repeat.insert(0, (count, list(self.begin), self.step * self.theirs[self.cut]))
        return Part(
            self.box["tensor"], begin, shape, _times(place, self.theirs), strides, repeat
        )


def parts_of(
    box: Dict[str, Any], whole: Sequence[int], cut: int, run: Run, local: Sequence[int]
) -> Iterator[Part]:
    """What a run of the dimension ``cut`` has of a box, in a shard of the shape ``local``.

    >>> box = {"tensor": "w", "begin": [0, 1], "shape": [3, 1], "offset": 0, "strides": [1, 1],
    ...        "repeat": [{"count": 4, "begin": [0, 2], "offset": 3}]}  # every second column is a row
    >>> next(parts_of(box, [4, 3], 0, (2, 2, 0), [2, 3]))[1:]
    ([0, 5], [3, 1], 0, [1, 1], [(2, [0, 2], 3)])
    """
    own = _Cutting(box, whole, cut, local)
    first, length, _ = run
    row, step, reach = own.at[cut], own.step, -(-own.width // own.step)
    low = max(0, -(-(first - row) // step))  # turns that lie in the run with all of their width
    high = max(low, min(own.turns, (first + length - row - own.width) // step + 1))
    whole_turns = own.turn(low, high - low, run) if high > low else None
    if whole_turns is not None:
        yield whole_turns
    for number in range(max(0, low - reach), min(own.turns, high + reach)):
        part = None if low <= number < high else own.turn(number, 1, run)
        if part is not None:
            yield part
