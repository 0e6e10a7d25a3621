# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The ops of a built plan as a list that makes each op when it is looked at."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    MutableSequence,
    Optional,
    Tuple,
    Union,
    overload,
)

if TYPE_CHECKING:
    from .._ferry import RankPlan
    from .utils import TransferOp

_CHUNK = 256  # ops that iteration asks for at once
_SHOWN = 32


class LazyOps(MutableSequence["TransferOp"]):
    """Reads like a list of :class:`TransferOp`, each of which is made when it is first looked at.

    Whoever changes it gets a real list of his own; an op that was handed out is the one that is
    there from then on.
    """

    __slots__ = ("_core", "_is_send", "_make", "_list", "_seen")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, core: "RankPlan", is_send: bool, make: Callable[..., "TransferOp"]) -> None:
        self._core = core
        self._is_send = is_send
        self._make = make
        self._list: Optional[List["TransferOp"]] = None
        self._seen: Dict[int, "TransferOp"] = {}

    @property
    def is_changed(self) -> bool:
        """Whether somebody has changed it, so that the plan's totals are no longer its own."""
        return self._list is not None or any(
            op != self._make(*self._core.ops(self._is_send, at, at + 1)[0])
            for at, op in self._seen.items()
        )

    def _range(self, begin: int, end: int) -> List["TransferOp"]:
        fields = self._core.ops(self._is_send, begin, end)
        seen = self._seen
        for at, one in enumerate(fields, begin):
            if at not in seen:
                seen[at] = self._make(*one)
        return [seen[at] for at in range(begin, end)]

    def _own(self) -> List["TransferOp"]:
        if self._list is None:
            self._list = list(self)
        return self._list

    def __len__(self) -> int:
        if self._list is not None:
            return len(self._list)
        return self._core.n_sends if self._is_send else self._core.n_recvs

    def __iter__(self) -> Iterator["TransferOp"]:
        if self._list is not None:
            yield from self._list
            return
        for begin in range(0, len(self), _CHUNK):
            yield from self._range(begin, min(begin + _CHUNK, len(self)))

    @overload
    def __getitem__(self, index: int) -> "TransferOp": ...

    @overload
    def __getitem__(self, index: slice) -> List["TransferOp"]: ...

    def __getitem__(self, index: Union[int, slice]) -> Any:
        if self._list is not None:
            return self._list[index]
        if isinstance(index, slice):
            chosen = range(len(self))[index]
            if chosen.step == 1:
                return self._range(chosen.start, chosen.stop)
            return [self[i] for i in chosen]
        try:
            place = range(len(self))[index]
        except IndexError:
            raise IndexError("list index out of range") from None
        return self._range(place, place + 1)[0]

    # Changes.

    def __setitem__(self, index: Any, value: Any) -> None:
        self._own()[index] = value

    def __delitem__(self, index: Any) -> None:
        del self._own()[index]

    def insert(self, index: int, value: "TransferOp") -> None:
        self._own().insert(index, value)

    def clear(self) -> None:
        self._list = []

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        """Sorts in place, as a list does."""
        self._own().sort(key=key, reverse=reverse)

    # What a list can besides.

    def copy(self) -> List["TransferOp"]:
        """A list of the same ops."""
        return list(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, LazyOps)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other))

    def __add__(self, other: Iterable["TransferOp"]) -> List["TransferOp"]:
        if not isinstance(other, (list, LazyOps)):
            return NotImplemented
        return [*self, *other]

    def __radd__(self, other: List["TransferOp"]) -> List["TransferOp"]:
        if not isinstance(other, list):
            return NotImplemented
        return [*other, *self]

    def __mul__(self, times: int) -> List["TransferOp"]:
        return list(self) * times

    __rmul__ = __mul__

    def __repr__(self) -> str:
        """A list's, as far as anybody reads it."""
        if len(self) <= _SHOWN:
            return repr(list(self))
        shown = ", ".join(map(repr, self[:_SHOWN]))
        return f"[{shown}, ... {len(self) - _SHOWN} more]"

    def __reduce__(self) -> Tuple[Any, ...]:
        return list, (list(self),)
