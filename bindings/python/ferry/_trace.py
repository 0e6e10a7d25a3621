# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Traces: what a model's own loader does with a checkpoint, on one rank, as boxes."""

from __future__ import annotations

import json
import math
import os
from html import escape
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from . import _publish
from ._errors import InvalidInput, Unsupported, of_file
from ._repr import never_raises
from ._side import Side

Path = Union[str, "os.PathLike[str]"]
FORMAT = "ferry.trace/1"
_SHOWN = 40  # rows of a table


class Trace:
    """What :func:`ferry.trace` has found: which box of which tensor of the checkpoint lies where in
    which parameter of one rank.

    :meth:`side` makes a :class:`ferry.Side` of it. Traces are equal if their parameters have the
    same contents, and can be pickled. A notebook shows one as a table.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        """Of what :meth:`to_dict` returns."""
        if not isinstance(document, Mapping) or document.get("format") != FORMAT:
            raise InvalidInput(f'a trace is an object with "format": "{FORMAT}"')
        try:
            self._tensors: Dict[str, Dict[str, Any]] = {
                one["name"]: one for one in document["tensors"]
            }
            self._parameters: Dict[str, Dict[str, Any]] = {
                one["parameter"]: one for one in document["boxes"]
            }
            self._aliases: Dict[str, str] = dict(document.get("aliases", {}))
            self._untouched: List[str] = list(document.get("untouched", ()))
            _check(self._tensors, self._parameters)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"the trace is not one of {FORMAT}: {error!r}") from None

    @classmethod
    def load(cls, path: Path) -> "Trace":
        """Of a file that :meth:`save` wrote."""
        try:
            with open(path, encoding="utf-8") as file:
                return cls(json.load(file))
        except OSError as error:
            raise of_file(path, error) from error
        except ValueError as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"{os.fspath(path)} is no JSON: {error}") from None

    def save(self, path: Path) -> None:
        """Writes a file of the format ``ferry.trace/1``, or all of it or none."""
        partial = f"{os.fspath(path)}.partial"
        try:
            with open(partial, "w", encoding="utf-8") as file:
                file.write(json.dumps(self.to_dict(), separators=(",", ":")))
            os.replace(partial, path)
        except OSError as error:
            raise of_file(partial, error, "written") from error
        except ValueError as error:  # a zero byte in the path
            raise InvalidInput(f"{path!r}: {error}") from error

    def to_dict(self) -> Dict[str, Any]:
        """The trace as dicts and lists, which are the trace's own: do not change them."""
        return {
            "format": FORMAT,
            "tensors": list(self._tensors.values()),
            "boxes": list(self._parameters.values()),
            "aliases": self._aliases,
            "untouched": self._untouched,
        }

    # What was found.

    @property
    def tensors(self) -> List[Dict[str, Any]]:
        """The tensors of the checkpoint, as a spec has them: ``name``, ``shape`` and ``dtype``."""
        return [dict(one) for one in self._tensors.values()]

    @property
    def parameters(self) -> List[str]:
        """The parameters and buffers that the loader writes, in the order of the model."""
        return list(self._parameters)

    @property
    def aliases(self) -> Dict[str, str]:
        """Names of parameters that are another one, such as a tied head, or of buffers that are a view
        of one, and that one's name."""
        return dict(self._aliases)

    @property
    def untouched(self) -> List[str]:
        """Parameters that the loader does not write, and buffers that are saved with a model."""
        return list(self._untouched)

    @property
    def partial(self) -> List[str]:
        """Parameters with elements that nothing is copied to: a refit leaves those as they are."""
        return [name for name, one in self._parameters.items() if one.get("partial")]

    @property
    def unused(self) -> List[str]:
        """Tensors of the checkpoint of which no element lies in any parameter of this rank."""
        used = {box["tensor"] for one in self._parameters.values() for box in one["holds"]}
        return [name for name in self._tensors if name not in used]

    def side(self, ranks: Union[int, Iterable[int], None] = None) -> Side:
        """The parameters as a side of a spec, for the ranks that are alike.

        With None it is what a rank says of itself in :meth:`ferry.Spec.exchange`.
        """
        given = [ranks] if hasattr(ranks, "__index__") else ranks
        here: Dict[str, Any] = {} if given is None else {"ranks": list(given)}
        return Side._trusted([{**here, **one} for one in self._parameters.values()])

    def memory(self, model: Any) -> Dict[str, Any]:
        """The traced parameters of a model of torch as a refit takes them: each as one row of its
        memory, whatever its strides."""
        named = dict(model.named_parameters(remove_duplicate=False))
        named.update(model.named_buffers(remove_duplicate=False))
        rows = {}
        for name, one in self._parameters.items():
            if name not in named:
                raise InvalidInput(
                    f'parameter "{name}" of the trace is not in the model: trace this one',
                    tensor=name,
                )
            found = named[name].detach()
            if found.numel() != one["elements"]:
                raise InvalidInput(
                    f'parameter "{name}" has {found.numel()} elements in the model and '
                    f"{one['elements']} in the trace: trace this model",
                    tensor=name,
                )
            rows[name] = found.as_strided((found.numel(),), (1,))
        return rows

    # Two traces.

    def diff(self, other: "Trace") -> List[str]:
        """How another trace differs: a sentence for each tensor and parameter, none if they are
        equal."""
        if not isinstance(other, Trace):
            raise InvalidInput(f"a trace differs from a trace, not from a {type(other).__name__}")
        found = []
        for what, mine, theirs in (
            ("tensor", self._tensors, other._tensors),
            ("parameter", self._parameters, other._parameters),
        ):
            for name in mine:
                if name not in theirs:
                    found.append(f'{what} "{name}" is only in the first')
                else:
                    found.extend(_difference(what, name, mine[name], theirs[name]))
            found.extend(
                f'{what} "{name}" is only in the second' for name in theirs if name not in mine
            )
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        return self._tensors == other._tensors and self._parameters == other._parameters

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Tuple[Any, ...]:
        return Trace, (self.to_dict(),)

    @never_raises
    def __repr__(self) -> str:
        boxes = sum(len(one["holds"]) for one in self._parameters.values())
        return (
            f"<ferry.Trace of {len(self._parameters):,} parameters: {boxes:,} boxes of "
            f"{len(self._tensors) - len(self.unused):,} of {len(self._tensors):,} tensors>"
        )

    def table(self, most: Optional[int] = None) -> str:
        """A text with a line for each parameter: its shape, and the boxes that lie in it."""
        rows = [("parameter", "shape", "dtype", "is made of")] + self._rows(most)
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ["  ".join([*(row[i].ljust(widths[i]) for i in range(3)), row[3]]) for row in rows]
        return "\n".join(line.rstrip() for line in lines)

    def _rows(self, most: Optional[int]) -> List[Tuple[str, str, str, str]]:
        rows = []
        for name, one in list(self._parameters.items())[:most]:
            rows.append((name, _shape(one["shape"]), one["dtype"], _made_of(one)))
        return rows

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{word}</th>" for word in ("parameter", "shape", "dtype", "is made of"))
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self._rows(_SHOWN)
        )
        rest = len(self._parameters) - _SHOWN
        more = f"<p>and {rest:,} more</p>" if rest > 0 else ""
        return f"<p>{escape(repr(self))}</p><table><tr>{head}</tr>{rows}</table>{more}"


def _check(tensors: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    """What every trace has is there; what it says, a side checks."""
    for one in tensors.values():
        _shape(one["shape"]), one["dtype"]
    for one in parameters.values():
        _shape(one["shape"]), one["dtype"], one["elements"]
        for box in one["holds"]:
            box["tensor"], zip(box["begin"], box["shape"])


def _shape(shape: Iterable[int]) -> str:
    return "[" + ", ".join(str(n) for n in shape) + "]"


def _made_of(one: Mapping[str, Any]) -> str:
    words = []
    for box in one["holds"][:3]:
        cut = ", ".join(f"{b}:{b + n}" for b, n in zip(box["begin"], box["shape"]))
        again = math.prod(loop["count"] for loop in box.get("repeat", ()))
        words.append(f"{box['tensor']}[{cut}]" + (f" x{again}" if again > 1 else ""))
    if len(one["holds"]) > 3:
        words.append(f"{len(one['holds']) - 3:,} more")
    if one.get("fill"):
        words.append("fills")
    if one.get("partial"):
        words.append("what it held")
    return ", ".join(words)


def _difference(
    what: str, name: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]
) -> List[str]:
    for key in ("shape", "dtype", "elements"):
        if mine.get(key) != theirs.get(key):
            return [
                f'{what} "{name}" has {key} {mine.get(key)} in the first and {theirs.get(key)} in '
                "the second"
            ]
    if mine != theirs:
        return [
            f'{what} "{name}" is {_made_of(mine)} in the first and {_made_of(theirs)} in the second'
        ]
    return []


def trace(
    model: Any,
    tensors: Any,
    load: Optional[Callable[[Iterable[Tuple[str, Any]]], Any]] = None,
) -> Trace:
    """Runs a model's own loader on tensors without data, and tells what it would have copied where.

    ``model`` is a module of torch, as this rank has it, on the meta device or on any other: not one
    of its elements is read or written. ``tensors`` are those of the checkpoint: the folder of one,
    or names with tensors, or with ``(shape, dtype)``. ``load`` is a function that takes pairs
    ``(name, tensor)``, and returns nothing, or the module that is to be looked at in place of the
    model. None is the model's ``load_weights``, else for a model of transformers its class's
    ``from_pretrained``, else ``load_state_dict``.

    Views, slices, fusing, stacking, padding, transposing and casts are followed, whatever code does
    them. Arithmetic, and decisions that hang on the data, raise :class:`ferry.Unsupported` with the
    names of the tensor, the parameter and the operation.
    """
    try:
        from ._trace_model import traced
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise Unsupported("a trace follows the tensors of torch, which is not installed") from None

    return Trace(traced(model, tensors, load))


_publish("_trace", globals())
