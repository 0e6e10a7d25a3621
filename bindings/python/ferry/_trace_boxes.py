# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What lies where in memory that was copied into, view by view: the arithmetic of traces.

A view is an offset and loops, each of a length and a stride, over elements of an area. An area
has an outline, the shape in which it is laid out row by row, so that a view becomes grids: on each
dimension of the outline a begin, a step and a count. Grids meet and are cut dimension by dimension.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

MOST_PIECES = 1 << 16  # of one view: what is beyond is no layout

Loop = Tuple[int, int, int]  # length, stride here, stride of what it goes with
Run = Tuple[int, int, int, int]  # begin, step, count, stride of what it goes with


class TooManyPieces(Exception):
    """The view is not made of boxes that one would count."""


class Grid(NamedTuple):
    """A view as an outline has it, and where the element at its begin lies elsewhere."""

    runs: Tuple[Run, ...]
    elsewhere: int
    again: Tuple[
        Tuple[int, int], ...
    ]  # loops that read the same elements: length, stride elsewhere


class Copy(NamedTuple):
    """Elements of a source, which lie at ``source_at`` of it, and at ``at`` here."""

    source: Any
    source_at: int
    at: int
    loops: Tuple[Loop, ...]  # length, stride here, stride in the source


def steps_of(outline: Sequence[int]) -> List[int]:
    """Row-major strides."""
    steps = [1] * len(outline)
    for d in range(len(outline) - 2, -1, -1):
        steps[d] = steps[d + 1] * max(outline[d + 1], 1)
    return steps


def joined(loops: Sequence[Loop]) -> List[Loop]:
    """The same elements in the same order by fewer loops; those of one element are left out."""
    found: List[Loop] = []
    for n, here, there in loops:
        if n == 1:
            continue
        if found and found[-1][1] == n * here and found[-1][2] == n * there:
            found[-1] = (found[-1][0] * n, here, there)
        else:
            found.append((n, here, there))
    return found


def _digits(stride: int, outline: Sequence[int], steps: Sequence[int]) -> List[Tuple[int, int]]:
    """The dimensions along which a stride leads, and how far."""
    found = []
    for d, step in enumerate(steps):
        far = stride // step if d == 0 else stride // step % max(outline[d], 1)
        if far:
            found.append((d, far))
    return found


def _turn(
    outline: Sequence[int], steps: Sequence[int], offset: int, loops: Sequence[Loop]
) -> Optional[Tuple[int, int]]:
    """The first loop that leaves its dimension, and how many of its turns do not: 0 for none that
    can be told, as with a loop along several dimensions."""
    reach = [offset // step % max(outline[d], 1) if d else offset // step
             for d, step in enumerate(steps)]  # fmt: skip
    for at in sorted(range(len(loops)), key=lambda at: loops[at][1]):
        n, stride, _ = loops[at]
        digits = _digits(stride, outline, steps)
        if len(digits) != 1:
            return at, 0
        d, far = digits[0]
        if reach[d] + (n - 1) * far >= outline[d]:
            return at, max((outline[d] - 1 - reach[d]) // far + 1, 0)
        reach[d] += (n - 1) * far
    return None


def pieces(
    outline: Sequence[int], offset: int, loops: Sequence[Loop], elsewhere: int
) -> Iterator[Tuple[int, List[Loop], int]]:
    """The view in parts, each of which has loops that go along one dimension and stay in it."""
    steps = steps_of(outline)
    left = [(offset, list(loops), elsewhere)]
    n_made = 0
    while left:
        offset, now, elsewhere = left.pop()
        found = _turn(outline, steps, offset, [one for one in now])
        if found is None:
            n_made += 1
            if n_made > MOST_PIECES:
                raise TooManyPieces
            yield offset, now, elsewhere
            continue
        if len(left) > MOST_PIECES:
            raise TooManyPieces
        left.extend(reversed(list(_cut(outline, steps, offset, now, elsewhere, *found))))


def _cut(
    outline: Sequence[int], steps: Sequence[int], offset: int, loops: List[Loop], elsewhere: int,
    at: int, stay: int,
) -> Iterator[Tuple[int, List[Loop], int]]:  # fmt: skip
    """A loop that leaves its dimension, in two or more."""
    n, stride, there = loops[at]
    before, after = loops[:at], loops[at + 1 :]
    digits = _digits(stride, outline, steps)
    if stay == 0 or len(digits) != 1:
        if n > MOST_PIECES:
            raise TooManyPieces
        for turn in range(n):
            yield offset + turn * stride, before + after, elsewhere + turn * there
        return
    d, far = digits[0]
    whole = outline[d] // far
    if d and outline[d] % far == 0 and stay == whole and n >= whole:
        rows, rest = divmod(n, whole)
        loop = [] if rows == 1 else [(rows, stride * whole, there * whole)]
        yield offset, before + loop + [(whole, stride, there)] + after, elsewhere
        first = rows * whole
    else:
        rest, first = n - stay, stay
        loop = [(stay, stride, there)] if stay > 1 else []
        yield offset, before + loop + after, elsewhere
    if rest:
        loop = [(rest, stride, there)] if rest > 1 else []
        yield offset + first * stride, before + loop + after, elsewhere + first * there


def along(
    outline: Sequence[int], offset: int, loops: Sequence[Loop]
) -> Tuple[List[int], List[List[Loop]]]:
    """Of a piece: where it begins, and for each dimension its loops, with steps in place of
    strides, the longest with step 1 first, joined where they are one."""
    steps = steps_of(outline)
    begin = [offset // step % max(outline[d], 1) if d else offset // step
             for d, step in enumerate(steps)]  # fmt: skip
    found: List[List[Loop]] = [[] for _ in outline]
    for n, stride, there in sorted(loops, key=lambda loop: -loop[1]):
        d, far = _digits(stride, outline, steps)[0]
        found[d].append((n, far, there))
    for d, own in enumerate(found):
        found[d] = sorted(joined(own), key=lambda loop: (loop[1] != 1, -loop[0]))
    return begin, found


def grids(
    outline: Sequence[int], offset: int, loops: Sequence[Loop], elsewhere: int
) -> Iterator[Grid]:
    """A view in parts that have one loop or none along each dimension."""
    again = tuple((n, there) for n, stride, there in loops if stride == 0 and n > 1)
    moving = [loop for loop in loops if loop[1] != 0 and loop[0] > 1]
    for first, own, place in pieces(outline, offset, moving, elsewhere):
        begin, dims = along(outline, first, own)
        more = [(d, loop) for d, per in enumerate(dims) for loop in per[1:]]
        if math.prod(loop[0] for _, loop in more) > MOST_PIECES:
            raise TooManyPieces
        for at, lies in _turns(begin, place, more):
            runs = tuple(
                (at[d], per[0][1], per[0][0], per[0][2]) if per else (at[d], 1, 1, 0)
                for d, per in enumerate(dims)
            )
            yield Grid(runs, lies, again)


def _turns(
    begin: List[int], elsewhere: int, loops: Sequence[Tuple[int, Loop]]
) -> Iterator[Tuple[List[int], int]]:
    """All turns of loops that are written out."""
    if not loops:
        yield begin, elsewhere
        return
    (d, (n, far, there)), rest = loops[0], loops[1:]
    for turn in range(n):
        moved = list(begin)
        moved[d] += turn * far
        yield from _turns(moved, elsewhere + turn * there, rest)


# Where grids meet.


def _meet(a: Run, b: Run) -> Optional[Tuple[int, int, int, int, int]]:
    """How many numbers two runs share; of the first which turn it is in each, and how many turns of
    each the next is away."""
    (begin_a, step_a, n_a, _), (begin_b, step_b, n_b, _) = a, b
    if step_a == 1 and step_b == 1:
        low, high = max(begin_a, begin_b), min(begin_a + n_a, begin_b + n_b)
        return (high - low, low - begin_a, 1, low - begin_b, 1) if low < high else None
    apart = begin_b - begin_a
    common = math.gcd(step_a, step_b)
    if apart % common:
        return None
    # begin_a + i step_a = begin_b + j step_b: i is this modulo step_b / common.
    period = step_b // common
    i = apart // common * pow(step_a // common, -1, period) % period if period > 1 else 0
    step = step_a * period
    low = begin_a + i * step_a
    if low < begin_b:
        low += -(-(begin_b - low) // step) * step
    high = min(begin_a + (n_a - 1) * step_a, begin_b + (n_b - 1) * step_b)
    if low > high:
        return None
    n = (high - low) // step + 1
    return n, (low - begin_a) // step_a, step // step_a, (low - begin_b) // step_b, step // step_b


Met = List[Tuple[int, int, int, int, int]]


def meet(a: Grid, b: Grid) -> Optional[Met]:
    """What two grids of one outline share, for each dimension; None if nothing."""
    found: Met = []
    for one, other in zip(a.runs, b.runs):
        shared = _meet(one, other)
        if shared is None:
            return None
        found.append(shared)
    return found


def copy_of(source: Any, written: Grid, read: Grid, met: Met) -> Copy:
    """What a reader gets of what was written: from the source of one to the place of the other."""
    source_at, at, loops = written.elsewhere, read.elsewhere, []
    for (n, first_w, by_w, first_r, by_r), w, r in zip(met, written.runs, read.runs):
        source_at += first_w * w[3]
        at += first_r * r[3]
        loops.append((n, by_r * r[3], by_w * w[3]))
    loops.extend((n, stride, 0) for n, stride in read.again)
    return Copy(source, source_at, at, tuple(loop for loop in loops if loop[0] > 1))


def without(grid: Grid, met: Met) -> Iterator[Grid]:
    """The rest of the second grid of a meeting."""
    runs, elsewhere = list(grid.runs), grid.elsewhere
    for d, (n, _, _, first, by) in enumerate(met):
        run = runs[d]
        last = first + (n - 1) * by
        parts = [(0, 1, first), (last + 1, 1, run[2] - last - 1)]
        parts.extend((first + turn, by, n - 1) for turn in range(1, by))
        for turn, each, count in parts:
            if count > 0:
                cut = _part(run, turn, each, count)
                yield Grid((*runs[:d], cut, *runs[d + 1 :]), elsewhere + turn * run[3], grid.again)
        runs[d] = _part(run, first, by, n)
        elsewhere += first * run[3]


def _part(run: Run, turn: int, each: int, count: int) -> Run:
    begin, step, _, there = run
    return begin + turn * step, step * each, count, there * each


# Areas.


class Area:
    """Memory of an outline, and what was copied into it, the last last. Where nothing was, it is
    what ``base`` says: a source of one element, or None. With ``whole`` it is that source, element
    by element."""

    def __init__(self, outline: Sequence[int], base: Any = None, whole: Any = None) -> None:
        self.outline = tuple(outline)
        self.base = base
        self.whole = whole
        self.writes: List[Tuple[Grid, Any]] = []

    def write(self, copies: Sequence[Copy]) -> None:
        """What was read elsewhere lies here from now on."""
        for copy in copies:
            loops = joined(sorted(copy.loops, key=lambda loop: -loop[1]))
            for grid in grids(self.outline, copy.at, loops, copy.source_at):
                self.writes.append((grid, copy.source))

    def read(
        self, offset: int, loops: Sequence[Loop], at: int = 0
    ) -> Tuple[List[Copy], List[Grid]]:
        """What the elements of a view are copies of, in the order of what was written, and those
        that nothing was copied to. ``at`` is where the reader has the first of them, and the second
        strides of its loops are the reader's."""
        if self.whole is not None and not self.writes:
            same = tuple((n, there, here) for n, here, there in loops if n > 1)
            return [Copy(self.whole, offset, at, same)], []
        left = list(grids(self.outline, offset, loops, at))
        found: List[Copy] = []
        for written, source in reversed(self.writes):
            if not left:
                break
            rest: List[Grid] = []
            for grid in left:
                met = meet(written, grid)
                if met is None:
                    rest.append(grid)
                else:
                    found.append(copy_of(source, written, grid, met))
                    rest.extend(without(grid, met))
            left = rest
        found.reverse()
        if self.whole is None:
            return found, left
        steps = steps_of(self.outline)
        for grid in left:  # what was not overwritten is still itself
            first = sum(run[0] * step for run, step in zip(grid.runs, steps))
            own = [(n, there, by * step) for (_, by, n, there), step in zip(grid.runs, steps)]
            own.extend((n, there, 0) for n, there in grid.again)
            loops = tuple(loop for loop in own if loop[0] > 1)
            found.append(Copy(self.whole, first, grid.elsewhere, loops))
        return found, []


def loops_of(grid: Grid) -> List[Loop]:
    """Where the elements of a grid lie elsewhere."""
    loops = [(n, there, 0) for _, _, n, there in grid.runs if n > 1]
    return loops + [(n, there, 0) for n, there in grid.again]


# Boxes of a side.

MOST_LOOPS = 4  # of the repeats of a box


def boxes(shape: Sequence[int], copy: Copy) -> Iterator[Dict[str, Any]]:
    """A copy out of a tensor in a side's words: boxes with their repeats."""
    moving = [(n, there, here) for n, here, there in copy.loops if there != 0]
    moving.sort(key=lambda loop: -loop[1])
    again: List[Tuple[int, int, int, int]] = [
        (n, 0, 0, here) for n, here, there in copy.loops if there == 0
    ]
    for first, own, place in pieces(shape, copy.source_at, joined(moving), copy.at):
        begin, dims = along(shape, first, own)
        lengths, strides, more = [1] * len(shape), [0] * len(shape), list(again)
        for d, per in enumerate(dims):
            if per and per[0][1] == 1:
                lengths[d], strides[d] = per[0][0], per[0][2]
                per = per[1:]
            more.extend((n, d, far, here) for n, far, here in per)
        more.sort(key=lambda loop: -loop[0])
        for at, lies in _turns(begin, place, [(d, (n, far, here)) for n, d, far, here in more[4:]]):
            box: Dict[str, Any] = {
                "begin": at,
                "shape": lengths,
                "offset": lies,
                "strides": strides,
            }
            if more[:MOST_LOOPS]:
                box["repeat"] = [_repeat(len(shape), *loop) for loop in more[:MOST_LOOPS]]
            yield box


def _repeat(n_dims: int, count: int, d: int, far: int, here: int) -> Dict[str, Any]:
    begin = [0] * n_dims
    if far:
        begin[d] = far
    return {"count": count, "begin": begin, "offset": here}
