# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Maps: how the tensors of one naming are made of those of another."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _ferry, _publish
from ._errors import InvalidInput
from ._plan import Spec, _spec_of
from ._repr import fields, never_raises

Path = Union[str, "os.PathLike[str]"]


@fields(
    source="The name of the tensor that it comes from.",
    begin="Where it begins there.",
    shape="How large it is, in the dimensions of the source.",
    at="Where it begins in the target.",
)
class MapBox(NamedTuple):
    """A box of a source that fills a box of a target."""

    source: str
    begin: Tuple[int, ...]
    shape: Tuple[int, ...]
    at: Tuple[int, ...]


@fields(
    name="Its name.",
    dtype="Its type, as ferry names it.",
    shape="Its extents.",
    boxes="What it is made of, in row-major order of places; of a source none.",
)
class MapTensor(NamedTuple):
    """A source or a target of a map."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    boxes: Tuple[MapBox, ...] = ()


class Map:
    """How the tensors of one naming (targets) are made of those of another (sources).

    Made of the entries of a file ``ferry.map/1``, of a JSON text, or of a file. It is checked when
    it is made, and is immutable. Maps that say the same are equal, however they are cut into boxes.

    >>> import ferry
    >>> q = {"name": "q", "shape": [4, 2], "dtype": "bf16"}
    >>> k = {"name": "k", "shape": [2, 2], "dtype": "bf16"}
    >>> fuse = ferry.Map([q, k], [{"name": "qk", "shape": [6, 2], "dtype": "bf16", "source": [
    ...     {"tensor": "q", "begin": [0, 0], "shape": [4, 2], "at": [0, 0]},
    ...     {"tensor": "k", "begin": [0, 0], "shape": [2, 2], "at": [4, 0]}]}])
    >>> fuse
    <ferry.Map of 1 target from 2 sources, 2 boxes>
    >>> fuse["qk"].boxes[1].at
    (4, 0)
    >>> split = fuse.inverse()
    >>> (fuse >> split)["q"].boxes[0].source
    'q'
    """

    def __init__(
        self,
        sources: Union[Sequence[Mapping[str, Any]], Mapping[str, Any], str],
        targets: Optional[Sequence[Mapping[str, Any]]] = None,
    ) -> None:
        self._handle: _ferry.Map
        if isinstance(sources, (str, Mapping)) and targets is not None:
            raise InvalidInput(
                "a map is made of two lists, sources and targets, or of one document that has both"
            )
        if isinstance(sources, str):
            self._handle = _ferry.map_parse(sources)
            return
        if isinstance(sources, os.PathLike):
            raise InvalidInput("a file of a map is read by ferry.Map.load(path)")
        if not isinstance(sources, Mapping):
            if targets is None:
                raise InvalidInput("a map needs its targets, too: Map(sources, targets)")
            sources = {"format": "ferry.map/1", "sources": sources, "targets": targets}
        self._handle = _ferry.map_parse(_text_of(sources))

    @classmethod
    def _of(cls, handle: _ferry.Map) -> "Map":
        made = cls.__new__(cls)
        made._handle = handle
        return made

    @classmethod
    def load(cls, path: Path) -> "Map":
        """Reads a map from a file of the format ``ferry.map/1``."""
        return cls._of(_ferry.map_load(path))

    def save(self, path: Path) -> None:
        """Writes the map to a file, over one that is there: equal maps have equal files."""
        text = self.to_json()
        with open(path, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)

    def to_json(self) -> str:
        """The map in the format ``ferry.map/1``: alike layers and experts take one entry."""
        return self._handle.write_json()

    def then(self, second: "Map") -> "Map":
        """From the sources of this map to the targets of the second, whose sources are targets
        of this one. ``a.then(b)`` is ``a >> b``."""
        if not isinstance(second, Map):
            raise InvalidInput(
                f"a map is followed by a ferry.Map, not by a {type(second).__name__}"
            )
        return self._of(self._handle.compose(second._handle))

    def __rshift__(self, second: object) -> "Map":
        return self.then(second) if isinstance(second, Map) else NotImplemented

    def inverse(self) -> "Map":
        """From the targets back to the sources. ``InvalidInput`` names an element of a source that
        goes nowhere, or to two places."""
        return self._of(self._handle.invert())

    def apply(self, spec: Union[Spec, Mapping[str, Any], Path]) -> Spec:
        """A spec whose tensors that are targets of this map have it as their ``source``.

        Those that have a source of their own keep it. Sources of the map that the spec lacks are
        added, for the source side only. ``spec`` is a :class:`Spec`, a dict, JSON text or a path.
        """
        made = Spec.__new__(Spec)
        made._handle = self._handle.apply(_spec_of(spec)._handle)
        return made

    @property
    def n_sources(self) -> int:
        """The number of tensors that it makes others of."""
        return self._handle.counts[0]

    @property
    def n_targets(self) -> int:
        """The number of tensors that it makes."""
        return self._handle.counts[1]

    @property
    def n_boxes(self) -> int:
        """The number of boxes of all targets."""
        return self._handle.counts[2]

    @property
    def sources(self) -> List[MapTensor]:
        """The tensors that it makes others of, in the order of the map."""
        found = (self._handle.source_at(i) for i in range(self.n_sources))
        return [MapTensor(name, dtype, shape) for name, dtype, shape, _ in found]

    def _target(self, index: int) -> MapTensor:
        name, dtype, shape, _ = self._handle.target_at(index)
        boxes = tuple(MapBox(*box) for box in self._handle.boxes(index))
        return MapTensor(name, dtype, shape, boxes)

    def __len__(self) -> int:
        return self.n_targets

    def __iter__(self) -> Iterator[MapTensor]:
        """The targets, in the order of the map: alike ones together, layer 10 behind layer 9."""
        return (self._target(i) for i in range(self.n_targets))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._handle.find_target(name) is not None

    def __getitem__(self, name: str) -> MapTensor:
        index = self._handle.find_target(name) if isinstance(name, str) else None
        if index is None:
            raise KeyError(name)
        return self._target(index)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Map):
            return NotImplemented
        return self._handle.counts == other._handle.counts and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __reduce__(self) -> Tuple[Any, ...]:
        return _unpickle, (self.to_json(),)

    def __copy__(self) -> "Map":
        return self

    def __deepcopy__(self, memo: Dict[int, Any]) -> "Map":
        return self

    @never_raises
    def __repr__(self) -> str:
        sources, targets, boxes = self._handle.counts
        return (
            f"<ferry.Map of {_counted(targets, 'target')} from {_counted(sources, 'source')}, "
            f"{boxes:,} box{'' if boxes == 1 else 'es'}>"
        )


def _unpickle(text: str) -> Map:
    return Map(text)


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _dtype_named(entry: Any) -> Any:
    if isinstance(entry, Mapping) and not isinstance(entry.get("dtype", ""), str):
        return {**entry, "dtype": _ferry.dtype_name(entry["dtype"])}
    return entry


def _text_of(document: Mapping[str, Any]) -> str:
    """JSON of a document whose dtypes may be torch's or numpy's."""
    named = {
        key: [_dtype_named(entry) for entry in value] if isinstance(value, (list, tuple)) else value
        for key, value in document.items()
    }
    try:
        return json.dumps(named)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the map cannot be written as JSON: {error}") from None


_publish("_map", globals())
