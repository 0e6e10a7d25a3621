# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Checkpoints on disk: inspecting them, writing them in other layouts, verifying two are equal."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from dataclasses import dataclass, field
from typing import (
    Any,
    Callable,
    Dict,
    Generic,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
    overload,
)

from . import _ferry, _publish
from ._errors import Different, Error, FileError
from ._given import patterns
from ._plan import json_text
from ._repr import fields, never_raises
from ._side import Side

Path = Union[str, "os.PathLike[str]"]
T = TypeVar("T")


@fields(
    name="Its name.",
    dtype="``\"bf16\"``; the file's own word where ferry has no name for it.",
    shape="Of the whole tensor.",
    bytes="Bytes of the whole tensor.",
)
class Tensor(NamedTuple):
    """A whole tensor of a checkpoint, however it is cut."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    bytes: int


@fields(
    name="Its name in the folder.",
    rank="Whose it is, where the checkpoint is sharded; else None.",
    bytes="Bytes of the file.",
    n_tensors="How many tensors it has.",
)
class File(NamedTuple):
    """A safetensors file of a checkpoint."""

    name: str
    rank: Optional[int]
    bytes: int
    n_tensors: int


@fields(
    phase='``"copying"``, ``"syncing"`` or ``"verifying"``.',
    done_bytes="Bytes that are done.",
    total_bytes="Bytes of the whole work.",
    seconds="Time since the work began.",
)
class WorkProgress(NamedTuple):
    """How far :func:`reshard` or :func:`verify` has come; passed to the callback some ten times
    per second.
    """

    phase: str
    done_bytes: int
    total_bytes: int
    seconds: float


# Returns False to stop; None goes on.
ProgressCallback = Callable[[WorkProgress], Optional[bool]]


class _Rows(Sequence[T], Generic[T]):
    """A sequence whose entries are made when they are asked for."""

    def __init__(self, n: int, read: Callable[[int], T]) -> None:
        self._n = n
        self._read = read

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> List[T]: ...
    def __getitem__(self, index: Union[int, slice]) -> Union[T, List[T]]:
        if isinstance(index, slice):
            return [self._read(i) for i in range(*index.indices(self._n))]
        return self._read(range(self._n)[index])  # counts from the end, raises IndexError

    def __repr__(self) -> str:
        shown = ", ".join(repr(row) for row in self[:3])
        return f"[{shown}{', ...' if self._n > 3 else ''}]"


class Checkpoint:
    """A checkpoint whose headers have been read and checked. Made by :func:`inspect`.

    Iterating yields its tensors (name, dtype, shape, bytes); ``checkpoint[name]`` is one of them.
    """

    def __init__(self, path: Path) -> None:
        self._handle = _ferry.checkpoint_open(path)
        self.path = os.fsdecode(path)
        totals = self._handle.totals
        self.is_sharded, self.n_files, self.n_tensors, self.file_bytes, self.tensor_bytes = totals
        self._layout: Optional[Dict[str, Any]] = None
        self._index: Optional[Dict[str, int]] = None

    @property
    def tensors(self) -> Sequence[Tensor]:
        """All tensors, in the order of the files; each is read from the header when you access it.
        """
        return _Rows(self.n_tensors, lambda index: Tensor(*self._handle.tensor_at(index)))

    @property
    def files(self) -> Sequence[File]:
        """Its safetensors files."""
        return _Rows(self.n_files, lambda index: File(*self._handle.file_at(index)))

    @property
    def layout(self) -> Optional[Dict[str, Any]]:
        """The mesh, ranks, stages and rules of a sharded checkpoint; None for a logical one."""
        if self._layout is None and self.is_sharded:
            self._layout = json.loads(self._handle.write_layout())
        return self._layout

    def names(self) -> Iterator[str]:
        """The names of all tensors."""
        return (tensor.name for tensor in self)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return self.n_tensors

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self._indices()[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._indices()

    def _indices(self) -> Dict[str, int]:
        if self._index is None:
            self._index = {name: index for index, name in enumerate(self.names())}
        return self._index

    @never_raises
    def __repr__(self) -> str:
        kind = "sharded" if self.is_sharded else "logical"
        return (
            f"<ferry.Checkpoint {self.path!r}: {kind}, {self.n_tensors:,} tensors in "
            f"{self.n_files:,} files, {self.tensor_bytes:,} bytes>"
        )


def inspect(path: Path) -> Checkpoint:
    """Opens a checkpoint: a safetensors file, an index file, or a folder, logical or sharded.

    All headers are read, and checked against the sizes of the files and each other.

    >>> import ferry, os, struct, tempfile
    >>> header = b'{"w": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}'
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "model.safetensors")
    >>> with open(path, "wb") as file:
    ...     n = file.write(struct.pack("<Q", len(header)) + header + bytes(12))
    >>> list(ferry.inspect(path))
    [Tensor(name='w', dtype='bf16', shape=(2, 3), bytes=12)]
    >>> folder.cleanup()
    """
    return Checkpoint(path)


@fields(
    tensor="Its name.",
    from_dtype="What it was.",
    to_dtype="What it is in the result.",
    scales="The tensor of its scales: of the result, or of the source.",
    block="Rows and columns that share a scale.",
)
class Change(NamedTuple):
    """A tensor that :func:`reshard` has quantized or dequantized."""

    tensor: str
    from_dtype: str
    to_dtype: str
    scales: str
    block: Tuple[int, int]


@dataclass(frozen=True)
class ReshardResult:
    """What :func:`reshard` did, or in a dry run would do."""

    path: Optional[str]
    dry_run: bool
    is_sharded: bool
    n_tensors: int
    read_bytes: int  # that the result is made of, each counted once
    file_bytes: int  # of all files, headers and replicas included
    files: Tuple[File, ...] = field(repr=False)
    replicated: Tuple[str, ...] = field(repr=False)  # what no built-in rule knows: whole on every rank of a stage
    changes: Tuple[Change, ...] = field(repr=False)  # what was quantized or dequantized
    written_bytes: int
    resumed_bytes: int  # of those, what an earlier run had written
    n_checked: int  # checksums of the source that were compared
    seconds: float  # until everything was synced
    copy_seconds: float
    estimated_seconds: Optional[float]  # of a dry run, where dst is given and can be tried
    anew: Optional[str]  # why nothing that an earlier run had left was gone on with
    kept_bytes: int = 0  # of written_bytes, what the result under ``onto`` had: not written
    n_kept_files: int = 0  # that are hard links to files of it
    left_out: Tuple[Tuple[str, str], ...] = field(default=(), repr=False)  # by ``names``: name, and why

    @property
    def gbytes_per_s(self) -> float:
        """10^9 bytes written per second, including the sync."""
        return self.written_bytes / self.seconds / 1e9 if self.seconds > 0 else 0.0


def reshard(
    src: Union[Path, Checkpoint],
    to: Union[Path, Mapping[str, Any], Side, Checkpoint],
    dst: Optional[Path] = None,
    *,
    subset: Union[None, str, Iterable[str]] = None,
    cast: Any = None,
    quantize: Optional[str] = None,
    dequantize: Union[bool, str, None] = None,
    names: Optional[str] = None,
    config: Optional[Path] = None,
    part_bytes: int = 0,
    memory_cap: int = 0,
    threads: int = 0,
    resume: bool = False,
    dry_run: bool = False,
    progress: Optional[ProgressCallback] = None,
    onto: Optional[Path] = None,
) -> ReshardResult:
    """Writes a checkpoint in another layout, in bounded memory and without starting ranks.

    ``to`` is ``"hf"`` (one logical checkpoint, with whole tensors), a short form such as
    ``"tp=4,pp=2"``, the path of a ``ferry.layout/1`` file, the same as a dict, a :class:`Side` in
    boxes, or a sharded checkpoint, whose layout is used. ``dst`` must not exist; it appears when everything is written
    and synced, and after a failure it does not exist.

    ``subset`` takes only tensors whose names match a pattern, or one of a list; ``cast`` is the new dtype of
    floating-point tensors (``"bf16"``, ``torch.bfloat16``), but not of scales. ``quantize`` is a format such as
    ``"f8e4m3:128x128"``, ``"mxfp8"`` or ``"nvfp4"``: the matrices of linear modules, or those that
    fit the patterns behind ``=``, become codes with a scale for each block, in a tensor beside
    them. ``dequantize=True`` makes such codes bf16 again, or what ``cast`` says; a text is their
    format. ``names`` writes the tensors of another naming, such as ``"hf"``, ``"megatron"`` or
    ``"vllm"`` (:class:`ferry.Names`; ``"megatron:hf"`` with that of the source, which is found
    otherwise), as ``config`` says, the path of a ``config.json``; None is that of the source. In
    bytes, ``part_bytes`` limits the
    files of a logical result and ``memory_cap`` the buffers; ``threads`` is the number of threads
    (0: the default). ``resume`` continues an interrupted run with the same arguments. With
    ``dry_run`` nothing is written, and ``dst`` is only needed for an estimate of the time.

    ``onto`` is the folder of an earlier result of the same ``to``: what is equal there is not
    written again. Files share its blocks where the file system can do that; else those in which
    nothing differs are hard links to its files. Such a run cannot be resumed.

    ``progress`` is called with a :class:`WorkProgress`, some ten times per second; for very short
    work it may not be called. If it returns False, the run ends with :class:`Stopped`; if it raises
    an exception, this call raises it.

    >>> import ferry, os, struct, tempfile
    >>> header = b'{"w": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}'
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "model.safetensors")
    >>> with open(path, "wb") as file:
    ...     n = file.write(struct.pack("<Q", len(header)) + header + bytes(12))
    >>> columns = {"format": "ferry.layout/1", "mesh": [["tp", 3]],
    ...            "rules": [{"match": "*", "shard": [{"dim": 1, "axis": "tp"}]}]}
    >>> result = ferry.reshard(path, columns, os.path.join(folder.name, "tp3"))
    >>> [file.name for file in result.files]
    ['rank-00000.safetensors', 'rank-00001.safetensors', 'rank-00002.safetensors']
    >>> ferry.verify(path, result.path).n_tensors
    1
    >>> folder.cleanup()
    """
    if dry_run and dst is not None and os.path.lexists(dst):
        raise FileError(f"{os.fsdecode(dst)}: exists already; remove it, or give dst another name")
    checkpoint = src if isinstance(src, Checkpoint) else inspect(src)
    with _target(to) as target:
        report = _ferry.reshard(
            checkpoint._handle, target, dst, patterns(subset), cast, quantize, _format(dequantize),
            part_bytes, memory_cap, threads, resume, dry_run, _told(progress),
            onto, names, config,
        )  # fmt: skip
    report["files"] = tuple(File(*file) for file in report["files"])
    report["replicated"] = tuple(report["replicated"])
    report["left_out"] = tuple(report["left_out"])
    report["changes"] = tuple(Change(*change) for change in report["changes"])
    return ReshardResult(None if dst is None else os.fsdecode(dst), dry_run, **report)


def _format(dequantize: Union[bool, str, None]) -> Optional[str]:
    if isinstance(dequantize, bool):
        return "auto" if dequantize else None
    return dequantize


@contextlib.contextmanager
def _target(to: Union[Path, Mapping[str, Any], Side, Checkpoint]) -> Iterator[Path]:
    """What the library takes, which reads layouts from files."""
    if isinstance(to, Checkpoint):
        to = os.path.join(to.path, "ferry.layout.json") if to.is_sharded else "hf"
    if not isinstance(to, (Mapping, Side)):
        yield to
        return
    text = to.to_json() if isinstance(to, Side) else json_text(to, "the layout")
    with tempfile.TemporaryDirectory(prefix="ferry-") as folder:
        path = os.path.join(folder, "layout.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        try:
            yield path
        except Error as error:  # of a file that the caller never saw
            error.args = tuple(str(one).replace(path, "the layout") for one in error.args)
            raise


def _told(progress: Optional[ProgressCallback]) -> Optional[Callable[..., Optional[bool]]]:
    if progress is None:
        return None
    callback = progress
    return lambda *fields: callback(WorkProgress(*fields))


@dataclass(frozen=True)
class VerifyResult:
    """What :func:`verify` has compared and found equal."""

    n_tensors: int
    tensor_bytes: int
    n_replicas: int  # local tensors that were compared in addition
    n_checked: int  # checksums that were compared
    seconds: float
    n_left_out: int  # tensors of a of which b, in boxes, has nothing, or names have no place for
    # By tensor: XXH3 (64 bits) of its bytes, as 16 hex digits.
    digests: Optional[Dict[str, str]] = field(repr=False)


_DIFFERENCE = re.compile(r'"(.*?)" (?:differs at element \[(.*?)\]|is |has )', re.DOTALL)


def verify(
    a: Union[Path, Checkpoint],
    b: Union[Path, Checkpoint],
    *,
    subset: Union[None, str, Iterable[str]] = None,
    cast: Any = None,
    quantize: Optional[str] = None,
    dequantize: Union[bool, str, None] = None,
    names: Optional[str] = None,
    config: Optional[Path] = None,
    memory_cap: int = 0,
    threads: int = 0,
    digests: bool = False,
    progress: Optional[ProgressCallback] = None,
) -> VerifyResult:
    """Whether two checkpoints hold the same tensors, whatever their layouts.

    Names, shapes, dtypes and every bit of every replica are compared; metadata are not. Raises
    :class:`Different`, whose ``tensor`` is the first tensor that differs and whose ``slice`` is the
    element.

    ``b`` may be in boxes that do not hold all of ``a``: then what they hold is compared.

    With ``subset``, ``cast``, ``quantize``, ``dequantize`` or ``names``, ``b`` is to be what
    :func:`reshard` makes of ``a`` with them, to the bit: with a ``subset`` it has nothing beside
    those tensors. ``config`` is the ``config.json`` that names need; None is that of ``a``.
    """
    sides = [one if isinstance(one, Checkpoint) else inspect(one) for one in (a, b)]
    found: Optional[Dict[str, int]] = {} if digests else None
    try:
        totals = _ferry.verify(
            sides[0]._handle, sides[1]._handle, patterns(subset), cast, quantize, _format(dequantize),
            memory_cap, threads, found, _told(progress), names, config,
        )  # fmt: skip
    except Different as error:
        match = _DIFFERENCE.match(str(error))
        if match is not None:
            error.tensor, error.slice = match.groups()
        raise
    texts = None if found is None else {name: f"{number:016x}" for name, number in found.items()}
    return VerifyResult(*totals, digests=texts)


_publish("_checkpoint", globals())
