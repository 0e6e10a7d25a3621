# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Sides in boxes: which box of which tensor lies where in which parameter of which ranks."""

from __future__ import annotations

import json
import math
import numbers
import operator
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from . import _ferry, _publish
from ._errors import InvalidInput
from ._repr import never_raises

Repeat = Union[Mapping[str, Any], Tuple[int, Sequence[int], int]]

# Of what a side consists: the keys that there are, and those that are needed.
_KEYS = {
    "parameter": ({"rank", "ranks", "parameter", "dtype", "cast", "scale", "add", "quantize",
                   "dequantize", "elements", "shape", "holds", "fill", "partial"},
                  {"parameter", "elements", "holds"}),
    "box": ({"tensor", "begin", "shape", "offset", "strides", "repeat"},
            {"tensor", "begin", "shape", "offset", "strides"}),
    "fill": ({"offset", "shape", "strides", "bits"}, {"offset", "shape", "strides"}),
    "repeat": ({"count", "begin", "offset"}, {"count", "begin", "offset"}),
}  # fmt: skip

# What becomes of tensors on their way.
_CHANGES = ("cast", "scale", "add", "quantize", "dequantize")


class Side:
    """One side of a spec, parameter by parameter: what a model's own code does with its weights
    (fuses, stacks, pads, transposes, interleaves), said box by box.

    It stands in a spec as the ``"source"`` or the ``"destination"``; shards are then given and
    taken by the names of parameters. Numbers are counted in elements. Whether they fit the tensors
    is checked when a spec is made of it. Sides are equal if they say the same in the same order.

    >>> import ferry
    >>> side = ferry.Side()
    >>> _ = side.add_parameter("qk", ranks=[0], elements=10)
    >>> side.add_box("q", [0], [4])
    >>> side.add_box("k", [0], [4], offset=4)
    >>> side.add_fill(8, [2])
    >>> side
    <ferry.Side of 1 parameter, 2 boxes, 1 fill>
    >>> spec = {"format": "ferry.spec/1", "destination": side,
    ...         "source": {"mesh": [], "rules": [{"match": "*"}]},
    ...         "tensors": [{"name": name, "shape": [4], "dtype": "u8"} for name in "qk"]}
    >>> qk = bytearray(10)
    >>> with ferry.Refit({"q": b"abcd", "k": b"efgh"}, {"qk": qk}, spec) as refit:
    ...     refit.run().version, qk
    (1, bytearray(b'abcdefgh\\x00\\x00'))
    """

    def __init__(self) -> None:
        self._entries: List[Dict[str, Any]] = []

    @classmethod
    def from_json(cls, value: Union[str, Mapping[str, Any]]) -> "Side":
        """Of the text that :meth:`to_json` makes, or of a dict that says the same."""
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError as error:
                raise InvalidInput(f"the side is no JSON: {error}") from None
        if not isinstance(value, Mapping) or set(value) != {"boxes"}:
            raise InvalidInput('a side in boxes is an object with the key "boxes" and no other')
        side = cls()
        for entry in _list_of(value["boxes"], "boxes"):
            side._add_entry(entry)
        return side

    @classmethod
    def _trusted(cls, entries: List[Dict[str, Any]]) -> "Side":
        """Of entries that are as from_json makes them, and stay as they are."""
        side = cls()
        side._entries = entries
        return side

    def _add_entry(self, entry: Any) -> None:
        said = _object_of(entry, "parameter")
        if "rank" in said and "ranks" in said:
            raise InvalidInput('a parameter of a side must have either "rank" or "ranks"')
        number = self.add_parameter(
            said["parameter"],
            [said["rank"]] if "rank" in said else said.get("ranks"),
            said["elements"],
            dtype=said.get("dtype"),
            partial=said.get("partial", False),
            shape=said.get("shape"),
            **{key: said[key] for key in _CHANGES if key in said},
        )
        for box in _list_of(said["holds"], "holds"):
            self.add_box(**_object_of(box, "box"), parameter=number)
        for fill in _list_of(said.get("fill", ()), "fill"):
            self.add_fill(**_object_of(fill, "fill"), parameter=number)

    def add_parameter(
        self,
        name: str,
        ranks: Union[int, Iterable[int], None],
        elements: int,
        *,
        dtype: Any = None,
        partial: bool = False,
        cast: Optional[str] = None,
        scale: Optional[float] = None,
        add: Optional[float] = None,
        shape: Optional[Iterable[int]] = None,
        quantize: Optional[Mapping[str, Any]] = None,
        dequantize: Optional[Mapping[str, Any]] = None,
    ) -> int:
        """A parameter that these ranks have, with the content that the next calls say: ``elements``
        of memory, one behind the other. Returns its number.

        With ``ranks=None`` it is the rank that says it, in :meth:`ferry.Spec.exchange`. ``dtype`` is a name or one of torch or numpy; None is that of the tensor of its first box.
        With ``partial`` it has elements that no box and no fill gives, which stay as they are.
        ``shape`` is for the files of a checkpoint, of as many elements; None is one dimension.

        Tensors of other types become ``dtype`` on their way with a ``cast``, at a destination:
        ``"round"`` makes what is too large infinite, ``"saturate"`` the largest number. ``scale``
        and ``add`` are numbers, which elements are multiplied by and added to before that. With
        ``quantize`` they become codes: a dict such as ``{"format": "f8e4m3", "block": [128, 128],
        "scale": "*_scale_inv"}``, which names the tensor of their scales (of ``"nvfp4"`` also
        ``"tensor_scale"``, the source's tensor with an f32 for each matrix). With ``dequantize``, a
        dict such as ``{"block": [128, 128], "scale": "*_scale_inv"}``, codes become values of
        ``dtype``: the scales are the source's, and nothing here has a place for them.
        """
        if not isinstance(name, str):
            raise InvalidInput(f"the name of a parameter is {name!r}: give a text")
        if not isinstance(partial, bool):
            raise InvalidInput(f'parameter "{name}": partial is {partial!r}: give True or False')
        about = f'parameter "{name}"'
        given = [ranks] if hasattr(ranks, "__index__") else ranks
        entry: Dict[str, Any] = {}
        if given is not None:
            entry["ranks"] = _numbers(given, f"{about}: ranks")
        entry["parameter"] = name
        entry["elements"] = _number(elements, f"{about}: elements")
        entry["holds"] = []
        if dtype is not None:
            entry["dtype"] = dtype if isinstance(dtype, str) else _ferry.dtype_name(dtype)
        if shape is not None:
            entry["shape"] = _numbers(shape, f"{about}: shape")
        if partial:
            entry["partial"] = True
        entry.update(_cast(about, cast, scale, add))
        for key, said in (("quantize", quantize), ("dequantize", dequantize)):
            if said is not None:
                if cast is not None or not isinstance(said, Mapping):
                    raise InvalidInput(f"{about}: {key} is a dict, and goes without a cast")
                entry[key] = dict(said)
        self._entries.append(entry)
        return len(self._entries) - 1

    def add_box(
        self,
        tensor: str,
        begin: Iterable[int],
        shape: Iterable[int],
        offset: int = 0,
        strides: Optional[Iterable[int]] = None,
        repeat: Iterable[Repeat] = (),
        *,
        parameter: Optional[int] = None,
    ) -> None:
        """Says that the box of a tensor that begins at ``begin`` lies in the parameter: its element
        ``i`` at ``offset + i[0] * strides[0] + i[1] * strides[1] + ...``.

        Without ``strides`` it lies there in row-major order without gaps. ``repeat`` sets it down
        again: up to four ``(count, begin, offset)``, the outer one first, say how often, and how
        much further each time in the tensor and in memory. The parameter is the one that was added
        last, or the one with the number ``parameter``.
        """
        entry = self._entry(parameter)
        about = f'parameter "{entry["parameter"]}", box {len(entry["holds"])} ("{tensor}")'
        if not isinstance(tensor, str):
            raise InvalidInput(f"{about}: the name of a tensor is a text")
        box = {"tensor": tensor, "begin": _numbers(begin, f"{about}: begin")}
        box.update(_placed(about, shape, offset, strides))
        loops = [_loop(one, about) for one in _list_of(repeat, f"{about}: repeat")]
        if loops:
            box["repeat"] = loops
        entry["holds"].append(box)

    def add_fill(
        self,
        offset: int,
        shape: Iterable[int],
        strides: Optional[Iterable[int]] = None,
        bits: Union[bytes, str] = b"",
        *,
        parameter: Optional[int] = None,
    ) -> None:
        """Elements of a destination's parameter that no tensor gives: the rank writes them itself.

        ``bits`` is an element: bytes as they lie in memory, or a text of hexadecimal digits as
        a spec has it, the highest first; nothing means zero. ``strides`` and ``parameter`` are
        those of :meth:`add_box`.
        """
        entry = self._entry(parameter)
        about = f'parameter "{entry["parameter"]}", fill {len(entry.get("fill", ()))}'
        fill = _placed(about, shape, offset, strides)
        if isinstance(bits, (bytes, bytearray)):
            bits = bits[::-1].hex()
        if not isinstance(bits, str):
            raise InvalidInput(
                f"{about}: bits are of type {type(bits).__name__}: give an element as bytes, or "
                "its hexadecimal digits"
            )
        if bits:
            fill["bits"] = bits
        entry.setdefault("fill", []).append(fill)

    def _entry(self, parameter: Optional[int]) -> Dict[str, Any]:
        n = len(self._entries)
        if n == 0:
            raise InvalidInput("the side has no parameter yet: call add_parameter() before")
        number = n - 1 if parameter is None else _number(parameter, "parameter")
        if not 0 <= number < n:
            raise InvalidInput(
                f"the side has no parameter {number}: it has {n}, and add_parameter() returns the "
                "number"
            )
        return self._entries[number]

    @property
    def n_parameters(self) -> int:
        """The number of parameters, whatever their ranks."""
        return len(self._entries)

    def to_dict(self) -> Dict[str, Any]:
        """The value of ``"source"`` or ``"destination"`` in a spec, as dicts and lists."""
        copied: Dict[str, Any] = json.loads(self.to_json())
        return copied

    def to_json(self) -> str:
        """The same as a JSON text."""
        return json.dumps({"boxes": self._entries})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Side):
            return NotImplemented
        return self._entries == other._entries

    def __reduce__(self) -> Tuple[Any, ...]:
        return _unpickle, (self.to_json(),)

    @never_raises
    def __repr__(self) -> str:
        n_boxes = sum(len(entry["holds"]) for entry in self._entries)
        n_fills = sum(len(entry.get("fill", ())) for entry in self._entries)
        fills = f", {n_fills:,} fill{'' if n_fills == 1 else 's'}" if n_fills else ""
        return (
            f"<ferry.Side of {len(self._entries):,} parameter"
            f"{'' if len(self._entries) == 1 else 's'}, {n_boxes:,} "
            f"box{'' if n_boxes == 1 else 'es'}{fills}>"
        )


def _unpickle(text: str) -> Side:
    return Side.from_json(text)


def _cast(
    about: str, cast: Optional[str], scale: Optional[float], add: Optional[float]
) -> Dict[str, Any]:
    """The keys of a parameter that say what becomes of its elements."""
    if cast is None:
        if scale is None and add is None:
            return {}
        raise InvalidInput(f'{about}: scale and add need cast="round" or "saturate"')
    if cast not in ("round", "saturate"):
        raise InvalidInput(f'{about}: cast is {cast!r}: give "round" or "saturate"')
    said: Dict[str, Any] = {"cast": cast}
    for key, value in (("scale", scale), ("add", add)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise InvalidInput(f"{about}: {key} is {value!r}: give a number")
        if not math.isfinite(value) or (key == "scale" and value == 0):
            raise InvalidInput(f"{about}: {key} is {value!r}: it must be finite, a scale not 0")
        said[key] = float(value)
    return said


def _number(value: Any, what: str) -> int:
    try:
        found = operator.index(value)
    except TypeError:
        raise InvalidInput(f"{what} is {value!r}, not a whole number") from None
    if found < 0:
        raise InvalidInput(f"{what} is {found}: it must not be negative")
    return found


def _numbers(values: Any, what: str) -> List[int]:
    return [_number(value, what) for value in _list_of(values, what)]


def _list_of(values: Any, what: str) -> List[Any]:
    if isinstance(values, (str, bytes, Mapping)) or not hasattr(values, "__iter__"):
        raise InvalidInput(f"{what} is of type {type(values).__name__}: give a list")
    return list(values)


def _object_of(value: Any, what: str) -> Dict[str, Any]:
    """A dict with the keys that one of a side must have and may have."""
    known, needed = _KEYS[what]
    if not isinstance(value, Mapping):
        raise InvalidInput(f"a {what} of a side is of type {type(value).__name__}: give a dict")
    for key in value:
        if key not in known:
            raise InvalidInput(f"a {what} of a side has the unknown key {key!r}")
    for key in sorted(needed.difference(value)):
        raise InvalidInput(f'a {what} of a side lacks the key "{key}"')
    return dict(value)


def _placed(about: str, shape: Any, offset: Any, strides: Any) -> Dict[str, Any]:
    """Where something lies in a parameter; without strides in row-major order."""
    lengths = _numbers(shape, f"{about}: shape")
    if strides is None:
        steps: List[int] = []
        step = 1
        for length in reversed(lengths):
            steps.append(step)
            step *= max(length, 1)
        steps.reverse()
    else:
        steps = _numbers(strides, f"{about}: strides")
    return {
        "shape": lengths, "offset": _number(offset, f"{about}: offset"), "strides": steps,
    }  # fmt: skip


def _loop(given: Any, about: str) -> Dict[str, Any]:
    if isinstance(given, (tuple, list)):
        if len(given) != 3:
            raise InvalidInput(f"{about}: a repeat is (count, begin, offset), and not {given!r}")
        given = dict(zip(("count", "begin", "offset"), given))
    said = _object_of(given, "repeat")
    return {
        "count": _number(said["count"], f"{about}: count of a repeat"),
        "begin": _numbers(said["begin"], f"{about}: begin of a repeat"),
        "offset": _number(said["offset"], f"{about}: offset of a repeat"),
    }


_publish("_side", globals())
