# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Checkpoints and tensors in memory: load, save, and the same for a module."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import mmap
import os
import shutil
import struct
import sys
from dataclasses import dataclass, field
from typing import (
    IO, TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple,
    Union,
)  # fmt: skip

from . import _ferry, _publish
from ._checkpoint import Checkpoint, inspect
from ._errors import Error, FileError, InvalidInput, LimitExceeded, Unsupported, of_file
from ._errors import text as text_of
from ._given import named_tensors

if TYPE_CHECKING:
    from ._map import Map
    from ._plan import Move, Plan, Shard
    from .names import Names

Path = Union[str, "os.PathLike[str]"]
Numbers = Tuple[int, ...]
# Where a box begins, and how long it is.
Box = Tuple[Numbers, Numbers]

# The files' words for dtypes, and the names that torch and numpy have for those that have any.
_WORDS = {
    "f64": ("F64", "float64"), "f32": ("F32", "float32"), "f16": ("F16", "float16"),
    "bf16": ("BF16", "bfloat16"), "i64": ("I64", "int64"), "i32": ("I32", "int32"),
    "i16": ("I16", "int16"), "i8": ("I8", "int8"), "u64": ("U64", "uint64"),
    "u32": ("U32", "uint32"), "u16": ("U16", "uint16"), "u8": ("U8", "uint8"),
    "bool": ("BOOL", "bool"), "f8e4m3": ("F8_E4M3", "float8_e4m3fn"),
    "f8e5m2": ("F8_E5M2", "float8_e5m2"), "f8e8m0": ("F8_E8M0", "float8_e8m0fnu"),
    "c64": ("C64", "complex64"),
}  # fmt: skip
_PART_BYTES = 5_000_000_000
_MOST_NAME = 4072  # bytes of a name in a spec, by which files of ranks are read
_LAYOUT = "ferry.layout.json"


@dataclass(frozen=True)
class LoadResult:
    """What :func:`load` has read."""

    n_tensors: int
    bytes: int  # that were written into the tensors
    unused: Tuple[str, ...] = field(repr=False)  # of the checkpoint, which nothing wanted


# ---- boxes ----


def _meet(a: Box, b: Box) -> Optional[Box]:
    begin = tuple(map(max, a[0], b[0]))
    ends = [min(x + n, y + m) for x, n, y, m in zip(a[0], a[1], b[0], b[1])]
    if any(end <= first for first, end in zip(begin, ends)):
        return None
    return begin, tuple(end - first for first, end in zip(begin, ends))


def _slices(begin: Sequence[int], shape: Sequence[int]) -> Tuple[Any, ...]:
    """Always of a view: without the dots, numpy makes a number of an array without dimensions."""
    return (*(slice(first, first + n) for first, n in zip(begin, shape)), ...)


def _less(a: Sequence[int], b: Sequence[int]) -> Numbers:
    return tuple(x - y for x, y in zip(a, b))


def _more(a: Sequence[int], b: Sequence[int]) -> Numbers:
    return tuple(x + y for x, y in zip(a, b))


# ---- tensors of the caller ----


def _is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def _check_library(name: str, tensor: Any) -> None:
    if not _is_torch(tensor) and type(tensor).__module__.split(".")[0] != "numpy":
        raise InvalidInput(
            f'tensor "{name}" is of type {type(tensor).__name__}: give one of torch or numpy',
            tensor=name,
        )


class _Target:
    """A tensor of the caller: all of it, or of a DTensor what this rank has."""

    def __init__(self, name: str, tensor: Any) -> None:
        _check_library(name, tensor)
        self.name = name
        self.shape = tuple(int(extent) for extent in tensor.shape)
        # Boxes of the whole tensor, and where each lies in what is here.
        self.boxes: List[Tuple[Box, Numbers]] = [((_zeros(self.shape), self.shape), _zeros(self.shape))]
        if hasattr(tensor, "placements"):
            from .adapters.torch import runs_of

            self.boxes = list(_local_boxes(runs_of(tensor, name)))
            tensor = tensor.to_local()
        self.local = tensor.detach() if _is_torch(tensor) else tensor
        self.dtype = _ferry.dtype_name(self.local.dtype)
        why = _why_not_written(self.local)
        if why is not None:
            raise InvalidInput(f'tensor "{name}" {why}', tensor=name)


def _why_not_written(local: Any) -> Optional[str]:
    """What is wrong with memory that is to be written; None: nothing."""
    if _is_torch(local):
        if local.is_meta:
            return "is on the device meta, where it has no memory: give it some, as by torch.empty_like"
        if str(local.layout) != "torch.strided":
            return f"is of the layout {local.layout}: give a dense one"
        strides, size = local.stride(), 1
    else:
        if not local.flags.writeable:
            return "is read-only: give a copy of it"
        strides, size = local.strides, local.itemsize
    if _meets_itself(strides, local.shape, size):
        return "has elements that share their memory, as expand makes them: give a copy of it"
    return None


def _meets_itself(strides: Sequence[int], shape: Sequence[int], reach: int) -> bool:
    """Whether elements, each of a length of ``reach``, may lie on each other. In views of a dense
    tensor a dimension steps over all that lies within those of lesser strides."""
    if 0 in shape:
        return False
    for stride, extent in sorted((abs(s), n) for s, n in zip(strides, shape) if n > 1):
        if stride < reach:
            return True
        reach += stride * (extent - 1)
    return False


def _zeros(shape: Sequence[int]) -> Numbers:
    return (0,) * len(shape)


def _local_boxes(runs: Sequence[Sequence[Tuple[int, int]]]) -> Iterator[Tuple[Box, Numbers]]:
    """Of the intervals that a rank holds of each dimension, in the order in which it has them."""
    dims: List[List[Tuple[int, int, int]]] = []
    for of_dim in runs:
        placed, at = [], 0
        for first, end in of_dim:
            placed.append((first, end - first, at))
            at += end - first
        dims.append(placed)
    for box in itertools.product(*dims):
        begin, shape, local = (tuple(one[i] for one in box) for i in range(3))
        yield (begin, shape), local


# ---- files ----


class _Reader:
    """The bytes of a checkpoint, by name and box."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._maps: Dict[str, Tuple[mmap.mmap, Dict[str, Any], int]] = {}
        self._moves: Optional[Dict[str, List[Any]]] = None
        self._places: Dict[str, str] = {}
        self._files: Dict[Optional[int], str] = {}
        self._made: Optional["Plan"] = None
        self._shards: Dict[int, Mapping[str, "Shard"]] = {}
        self._folder = checkpoint.path
        if not os.path.isdir(self._folder):
            self._folder = os.path.dirname(self._folder)
        if checkpoint.is_sharded:
            self._plan()
        else:
            self._find_files()

    def _find_files(self) -> None:
        for file in self.checkpoint.files:
            _, header, _ = self._open(file.name)
            self._places.update((name, file.name) for name in header)

    def _plan(self) -> None:
        """Where each box of a tensor lies: the plan to one rank that has all."""
        from ._plan import plan

        layout = self.checkpoint.layout
        assert layout is not None
        if "boxes" in layout:
            raise Unsupported(
                f"{self.checkpoint.path}: is in boxes, which are not read into tensors: write it "
                'with ferry.reshard(path, "hf", folder) first'
            )
        side = {key: layout[key] for key in layout if key not in ("format", "tensors")}
        tensors = [
            {"name": one.name, "shape": one.shape, "dtype": one.dtype} for one in self.checkpoint
        ]
        self._moves = {}
        if all(0 in one.shape for one in self.checkpoint):
            return  # no plan moves nothing
        made = plan({
            "format": "ferry.spec/1", "tensors": tensors, "source": side,
            "destination": {"mesh": [], "rules": [{"match": "*"}]},
        })  # fmt: skip
        for move in made.moves(0):
            if move.to_rank == 0:
                self._moves.setdefault(move.tensor, []).append(move)
        self._made = made
        self._files = {file.rank: file.name for file in self.checkpoint.files}

    def _open(self, name: str) -> Tuple[mmap.mmap, Dict[str, Any], int]:
        if name not in self._maps:
            path = os.path.join(self._folder, name)
            try:
                with open(path, "rb") as file:
                    # A copy on write: libraries warn of memory that they may not write to.
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            except OSError as error:
                raise of_file(path, error) from None
            length = struct.unpack_from("<Q", mapped)[0]
            header = json.loads(mapped[8 : 8 + length], parse_int=_whole)
            header.pop("__metadata__", None)
            self._maps[name] = (mapped, header, 8 + length)
        return self._maps[name]

    def _tensor(self, file: str, name: str, like: Any) -> Any:
        """A tensor of a file, over the file's memory, of the library of another tensor."""
        mapped, header, first = self._open(file)
        entry = header[name]
        begin, end = entry["data_offsets"]
        words = [known for known in _WORDS.values() if known[0] == entry["dtype"]]
        if not words:
            raise Unsupported(
                f'tensor "{name}" is {entry["dtype"]} in the file, which no tensor here can hold: '
                "cast or dequantize the checkpoint with ferry.reshard() first",
                tensor=name,
            )
        return _view(mapped, first + begin, end - begin, words[0][1], entry["shape"], like, name)

    def _shard(self, rank: int, name: str) -> "Shard":
        if rank not in self._shards:
            assert self._made is not None
            self._shards[rank] = self._made.shards("source", rank)
        return self._shards[rank][name]

    def read(self, name: str, begin: Numbers, into: Any) -> None:
        """Fills a tensor with the box of another that begins there and has its shape."""
        box = (begin, tuple(int(extent) for extent in into.shape))
        if self._moves is None:
            source = self._tensor(self._places[name], name, into)
            _copy(into, source[_slices(*box)])
            return
        for move in self._moves.get(name, ()):
            met = _meet(box, (move.dst_begin, move.length))
            if met is None:
                continue
            shard = self._tensor(self._files[move.from_rank], name, into)
            at = _less(met[0], move.dst_begin)
            about = self._shard(move.from_rank, name)
            if about.flat is None:
                at = _more(move.src_begin, at)
            else:
                shard = _box_of_flat(shard, about, move)
            _copy(into[_slices(_less(met[0], begin), met[1])], shard[_slices(at, met[1])])


def _whole(digits: str) -> Union[int, str]:
    """Offsets and extents were looked at when the checkpoint was opened; of what else a header says a
    number may be longer than Python reads, and nobody asks for it."""
    return int(digits) if len(digits) <= 20 else digits


def _box_of_flat(shard: Any, about: "Shard", move: "Move") -> Any:
    """The elements of a move in a shard that is cut flat: of the shape before, in row-major order."""
    assert about.flat is not None
    strides: List[int] = []
    step = 1
    for extent in reversed(about.full_shape):
        strides.insert(0, step)
        step *= extent
    first = sum(at * stride for at, stride in zip(move.src_begin, strides)) - about.flat[0]
    if _is_torch(shard):
        return shard[first:].as_strided(tuple(move.length), tuple(strides))
    numpy = sys.modules["numpy"]
    steps = tuple(stride * shard.itemsize for stride in strides)
    return numpy.lib.stride_tricks.as_strided(shard[first:], tuple(move.length), steps)


def _view(
    mapped: mmap.mmap, first: int, n_bytes: int, word: str, shape: Sequence[int], like: Any, name: str
) -> Any:
    library = sys.modules["torch"] if _is_torch(like) else sys.modules["numpy"]
    dtype = getattr(library, word, None)
    if dtype is None and not _is_torch(like):  # of jax, whose types an array of numpy may have
        dtype = getattr(sys.modules.get("ml_dtypes"), word, None)
    if dtype is None:
        raise Unsupported(
            f'tensor "{name}" is {word}, which {library.__name__} has no type for', tensor=name
        )
    if n_bytes == 0:
        return library.empty(tuple(shape), dtype=dtype)
    if first % 8 == 0 or not _is_torch(like):
        count = n_bytes // library.empty(0, dtype=dtype).itemsize
        found = library.frombuffer(mapped, dtype=dtype, count=count, offset=first)
    else:  # torch wants elements at multiples of their size
        copied = bytearray(mapped[first : first + n_bytes])
        found = library.frombuffer(copied, dtype=dtype)
    return found.reshape(tuple(shape))


def _copy(into: Any, part: Any) -> None:
    if _is_torch(into):
        # Torch writes to tensors that were made in this mode in that mode alone.
        inference = sys.modules["torch"].inference_mode
        with inference() if into.is_inference() else contextlib.nullcontext():
            into.copy_(part)
    else:
        into[...] = part


# ---- loading ----


def load(
    tensors: Mapping[str, Any],
    path: Union[Path, Checkpoint],
    *,
    map: Optional["Map"] = None,
    cast: bool = False,
) -> LoadResult:
    """Reads tensors of a checkpoint, logical or cut by a mesh, into tensors that are there.

    ``tensors`` maps names to tensors of torch or numpy, which are written in place; of a DTensor,
    what this rank has. Each rank reads for itself, and only what it needs. ``map`` says how these
    tensors are made of the checkpoint's, where the two do not have the same names. With ``cast``
    tensors may have other types than in the checkpoint. Recorded checksums are not compared:
    :func:`ferry.verify` does that.

    :class:`ferry.InvalidInput` names a tensor that the checkpoint lacks, or has with another shape
    or type; then nothing was written.
    """
    checkpoint = path if isinstance(path, Checkpoint) else inspect(path)
    targets = [_Target(name, tensor) for name, tensor in named_tensors(tensors)]
    _check_apart(targets)
    jobs: List[Tuple[_Target, List[Feed]]] = []
    wanted: Set[str] = set()
    for target in targets:
        feeds = _feeds_of(target, checkpoint, map, cast)
        wanted.update(name for name, *_ in feeds)
        jobs.append((target, feeds))
    reader = _Reader(checkpoint)
    n_bytes = 0
    for target, feeds in jobs:
        n_bytes += _fill(target, feeds, reader)
    unused = tuple(name for name in checkpoint.names() if name not in wanted)
    return LoadResult(len(targets), n_bytes, unused)


def _check_apart(targets: Sequence[_Target]) -> None:
    """Raises where two tensors would be written to the same bytes. Of tensors with gaps, between
    whose elements another may have its own, only the same view twice is found."""
    rows: List[Tuple[int, int, str]] = []
    views: Dict[Any, str] = {}
    for target in targets:
        first, n_bytes, is_row, view = _memory_of(target.local)
        other = views.setdefault(view, target.name) if n_bytes else target.name
        if other != target.name:
            raise _not_apart(other, target.name)
        if n_bytes and is_row:
            rows.append((first, first + n_bytes, target.name))
    rows.sort()
    for before, after in zip(rows, rows[1:]):
        if after[0] < before[1]:
            raise _not_apart(before[2], after[2])


def _not_apart(first: str, second: str) -> InvalidInput:
    return InvalidInput(
        f'tensor "{first}" and tensor "{second}" share memory, and each would be written over the '
        "other: leave one of them out",
        tensor=first,
    )


def _memory_of(local: Any) -> Tuple[int, int, bool, Any]:
    """Where it begins, its bytes, whether they lie in one row, and what only the same view has."""
    if _is_torch(local):
        first, strides, is_row = local.data_ptr(), local.stride(), local.is_contiguous()
        where = (str(local.device), str(local.dtype))
        n_bytes = local.numel() * local.element_size()
        is_row = is_row and local.device.type == "cpu"
    else:
        first, strides, is_row = local.ctypes.data, local.strides, local.flags.c_contiguous
        where, n_bytes = ("numpy", str(local.dtype)), local.nbytes
    return first, n_bytes, is_row, (first, tuple(local.shape), tuple(strides), where)


# A box of a tensor of the checkpoint: its name, where it begins, how long it is, and where it lies.
Feed = Tuple[str, Numbers, Numbers, Numbers]


def _feeds_of(
    target: _Target, checkpoint: Checkpoint, map: Optional["Map"], cast: bool
) -> List[Feed]:
    about = f'tensor "{target.name}"'
    if map is not None and target.name not in map:
        raise InvalidInput(f"{about} is no target of the map", tensor=target.name)
    if map is not None:
        entry = map[target.name]
        shape = entry.shape
        feeds = [(box.source, box.begin, box.shape, box.at) for box in entry.boxes]
    elif target.name in checkpoint:
        shape = checkpoint[target.name].shape
        feeds = [(target.name, _zeros(shape), shape, _zeros(shape))]
    else:
        raise InvalidInput(f"{about} is not in {checkpoint.path}", tensor=target.name)
    if shape != target.shape:
        raise InvalidInput(
            f"{about} has the shape {list(target.shape)}, but {list(shape)} in {checkpoint.path}",
            tensor=target.name,
        )
    for name in sorted({feed[0] for feed in feeds}):
        if name not in checkpoint:
            raise InvalidInput(
                f'{about} is made of "{name}", which is not in {checkpoint.path}', tensor=target.name
            )
        dtype = checkpoint[name].dtype
        if dtype != target.dtype and not cast:
            raise InvalidInput(
                f"{about} is {target.dtype}, but {dtype} in {checkpoint.path}: give a tensor of that "
                "type, or cast=True",
                tensor=target.name,
            )
    return feeds


def _fill(target: _Target, feeds: Sequence[Feed], reader: _Reader) -> int:
    """Boxes keep the order of dimensions; the tensor that has fewer counts as having leading ones."""
    n_bytes = 0
    for source, begin, shape, at in feeds:
        lead = len(at) - len(shape)
        longer = (1,) * lead + shape if lead >= 0 else shape[-lead:]
        for (first, length), local in target.boxes:
            met = _meet((first, length), (at, longer))
            if met is None:
                continue
            moved = _less(met[0], at)
            into = target.local[_slices(_more(local, _less(met[0], first)), met[1])]
            if lead >= 0:
                reader.read(source, _more(begin, moved[lead:]), into[(*((0,) * lead), ...)])
            else:
                at_source = begin[:-lead] + _more(begin[-lead:], moved)
                reader.read(source, at_source, into[(None,) * -lead])
            n_bytes += into.nelement() * into.element_size() if _is_torch(into) else into.nbytes
    return n_bytes


# ---- saving ----


def _bytes_of(tensor: Any, name: str) -> Tuple[str, List[int], memoryview]:
    """The file's word for its type, its shape and its bytes, in row-major order."""
    shape, dtype, n_bytes, _ = _ferry.view_of(tensor, name, False)
    word = _WORDS.get(dtype, ("", ""))[0]
    if not word:
        raise Unsupported(
            f'tensor "{name}" is {dtype}, which the files have no word for', tensor=name
        )
    if n_bytes == 0:
        return word, list(shape), memoryview(b"")
    if _is_torch(tensor):
        torch = sys.modules["torch"]
        # A single element may have any stride, and counts as contiguous.
        flat = tensor.detach().cpu().contiguous().reshape(-1).as_strided((tensor.numel(),), (1,))
        flat = flat.view(torch.uint8)
        return word, list(shape), memoryview(flat.numpy()).cast("B")
    numpy = sys.modules["numpy"]
    return word, list(shape), memoryview(numpy.ascontiguousarray(tensor).reshape(-1).view("u1"))


def _write_file(path: str, tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> int:
    header: Dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    parts, at = [], 0
    for name, tensor in sorted(tensors.items(), key=lambda one: (-one[1].itemsize, one[0])):
        word, shape, data = _bytes_of(tensor, name)
        header[name] = {"dtype": word, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
        parts.append((name, tensor))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, tensor in parts:
            file.write(_bytes_of(tensor, name)[2])
        file.flush()
        os.fsync(file.fileno())
    return at


def _split(tensors: Mapping[str, Any], part_bytes: int) -> List[Dict[str, Any]]:
    parts: List[Dict[str, Any]] = [{}]
    used = 0
    for name, tensor in tensors.items():
        n = int(_ferry.view_of(tensor, name, False)[2])
        if parts[-1] and used + n > part_bytes:
            parts.append({})
            used = 0
        parts[-1][name] = tensor
        used += n
    return parts


def save(
    tensors: Mapping[str, Any],
    path: Path,
    *,
    metadata: Optional[Mapping[str, str]] = None,
    part_bytes: int = _PART_BYTES,
) -> int:
    """Writes tensors of torch or numpy to a folder, a logical checkpoint. Returns their bytes.

    The folder must not exist; it appears when everything is written and synced. Files hold at most
    ``part_bytes`` of tensors, unless one tensor has more. Of ranks that all have the same, one saves:
    while a folder is being written, others that would write it are refused.

    :func:`ferry.reshard` writes it in other layouts.
    """
    for name, tensor in named_tensors(tensors):
        _check_name(name)
        if hasattr(tensor, "placements"):
            raise InvalidInput(
                f'tensor "{name}" is a DTensor: save_from() writes what each rank has', tensor=name
            )
        _check_library(name, tensor)
    if not isinstance(part_bytes, int) or part_bytes <= 0:
        raise InvalidInput(f"part_bytes is {part_bytes!r}: give the most bytes of a file")
    _check_metadata({} if metadata is None else metadata)
    return _Folder(path).write(
        lambda folder: _write_logical(folder, tensors, metadata or {}, part_bytes)
    )


def _check_metadata(metadata: Mapping[str, str]) -> None:
    if not isinstance(metadata, Mapping) or not all(
        isinstance(text, str) for one in metadata.items() for text in one
    ):
        raise InvalidInput("metadata is no dict of texts with texts, which is all that files take")
    for key, value in metadata.items():
        text_of("a key of metadata", key)
        text_of(f'metadata "{key}"', value)


def _check_name(name: str) -> None:
    n_bytes = len(name.encode())
    if n_bytes > _MOST_NAME:
        raise LimitExceeded(
            f'tensor "{name[:40]}..." has a name of {n_bytes} bytes, and ferry takes {_MOST_NAME}: '
            "give it a shorter one",
            tensor=name,
        )
    if not name:
        raise InvalidInput(
            "the name of a tensor is empty, and would not be read: give it one", tensor=name
        )
    if name == "__metadata__":
        raise InvalidInput(
            'tensor "__metadata__" has the name under which the files keep their metadata: give it '
            "another",
            tensor=name,
        )


def _write_logical(
    folder: str, tensors: Mapping[str, Any], metadata: Mapping[str, str], part_bytes: int
) -> int:
    parts = _split(tensors, part_bytes)
    weight_map: Dict[str, str] = {}
    total = 0
    for number, part in enumerate(parts):
        name = f"model-{number + 1:05d}-of-{len(parts):05d}.safetensors"
        name = "model.safetensors" if len(parts) == 1 else name
        total += _write_file(os.path.join(folder, name), part, metadata)
        weight_map.update(dict.fromkeys(part, name))
    if len(parts) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        _write_text(folder, "model.safetensors.index.json", json.dumps(index, indent=1))
    return total


def _write_text(folder: str, name: str, text: str) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(text)


@contextlib.contextmanager
def _writing(path: str, what: str = "written") -> Iterator[None]:
    """What the system refuses is said of the folder that the caller has named."""
    try:
        yield
    except Error:
        raise
    except OSError as error:
        raise of_file(path, error, what) from None


def _is_file_name(given: str) -> bool:
    try:
        os.fsencode(given)
    except UnicodeEncodeError:
        return False
    return True


# What a file system without locks says.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)


def _open_lock(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


class _Folder:
    """A folder beside the wanted one, which takes its name when all is in it.

    A lock, on a file beside both, keeps others off while it is written, in this process too. What a
    process has left that died is removed by the next."""

    def __init__(self, path: Path) -> None:
        given = os.fsdecode(path)
        if not given or "\0" in given or not _is_file_name(given):
            raise InvalidInput(f"{given!r}: cannot be created: give the name of a folder")
        self.path = given.rstrip("/") or "/"
        hidden = f".{os.path.basename(self.path)}.ferry-saving"
        self.partial = os.path.join(os.path.dirname(self.path), hidden)
        self._lock_path = self.partial + "-lock"
        # A file and no number: whatever raises where, it is closed with the last who knows it.
        self._lock: Optional[IO[str]] = None
        self._is_made = False

    def write(self, fill: Callable[[str], int]) -> int:
        """Makes the folder of what ``fill`` writes to the one that it is given, and returns what
        that returns. A signal's handler may raise anywhere: the next save works."""
        try:
            self.make()
            with _writing(self.path):
                written = fill(self.partial)
            self.finish()
            return written
        finally:
            self.give_up()

    def make(self) -> None:
        try:
            self._check_absent()
            with _writing(self.path, "created"):
                has_lock = self._take_lock()
                self._check_absent()  # another may just have finished
                if has_lock:
                    shutil.rmtree(self.partial, ignore_errors=True)
                elif os.path.lexists(self.partial):  # which then is the lock
                    raise self._taken(f", or has left {self.partial}: remove that where none is")
                self._is_made = has_lock  # then whatever is there is this one's
                os.mkdir(self.partial)
                self._is_made = True
        except BaseException:
            self.give_up()
            raise

    def _check_absent(self) -> None:
        if os.path.lexists(self.path):
            raise FileError(f"{self.path}: exists already; remove it, or give another name")

    def _taken(self, more: str = "") -> FileError:
        return FileError(
            f"{self.path}: another save is writing it{more}; let one rank save, or give each a "
            "folder of its own"
        )

    def _take_lock(self) -> bool:
        """Whether there are locks at all."""
        while True:
            self._lock = open(self._lock_path, "a", opener=_open_lock)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self._lock.close()
                self._lock = None
                if error.errno in _NO_LOCKS:
                    with contextlib.suppress(OSError):
                        os.unlink(self._lock_path)
                    return False
                if isinstance(error, BlockingIOError):
                    raise self._taken() from None
                raise
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._lock.fileno()), os.lstat(self._lock_path)):
                    return True
            self._lock.close()  # its owner has removed it meanwhile

    def finish(self) -> None:
        with _writing(self.path):
            descriptor = os.open(self.partial, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._check_absent()
            os.rename(self.partial, self.path)
            self._is_made = False
        self.give_up()

    def give_up(self) -> None:
        """Removes what is not finished, and lets others write. May be called more than once."""
        try:
            if self._is_made:
                shutil.rmtree(self.partial, ignore_errors=True)
            self._is_made = False
        finally:
            lock, self._lock = self._lock, None
            if lock is not None:
                with contextlib.suppress(OSError):
                    os.unlink(self._lock_path)
                lock.close()


# ---- modules ----


def _state_of(model: Any) -> Dict[str, Any]:
    """The tensors that a module saves, each once: tied ones are one tensor."""
    if not callable(getattr(model, "state_dict", None)):
        raise InvalidInput(
            f"a model is of type {type(model).__name__}: give a torch.nn.Module"
        )
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    found: Dict[str, Any] = {}
    seen: Dict[Any, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not _is_torch(tensor) or name in tied:
            continue
        _check_name(name)
        key = _memory_of(tensor)[3] if _is_plain(tensor) else id(tensor)
        if key not in seen:
            seen[key] = name
            found[name] = tensor
    return found


def _is_plain(tensor: Any) -> bool:
    """Whether it has memory by which it is known: a parameter that shares it is the same tensor."""
    torch = sys.modules["torch"]
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and not tensor.is_meta
        and tensor.numel() != 0
    )


def _names_of(model: Any, config: Any) -> Optional["Names"]:
    """What the model's family calls its tensors; None where no family has it."""
    from .names import Names

    config = getattr(model, "config", None) if config is None else config
    if config is None or not (hasattr(config, "to_dict") or isinstance(config, (Mapping, str, os.PathLike))):
        return None
    try:
        return Names(config)
    except InvalidInput:
        return None


def load_into(
    model: Any,
    path: Union[Path, Checkpoint],
    *,
    names: Optional[str] = None,
    config: Any = None,
    cast: bool = True,
) -> LoadResult:
    """Reads a checkpoint into the parameters and buffers of a ``torch.nn.Module``, in place; of
    DTensors, what this rank has. Each rank reads for itself.

    Where the checkpoint has other names, such as those of experts one by one that the model has
    stacked, they follow from the model's ``config`` (:class:`ferry.Names`): ``names`` is
    ``"hf:transformers"`` and the like, and is found where it is not given. Every tensor of the
    model must be in the checkpoint; what the model does not want is listed in ``unused``.

    ``path`` is a folder or file of safetensors, logical or sharded, or a :class:`ferry.Checkpoint`.
    """
    checkpoint = path if isinstance(path, Checkpoint) else inspect(path)
    state = _state_of(model)
    if names is None and all(name in checkpoint for name in state):
        return load(state, checkpoint, cast=cast)
    known = _names_of(model, config)
    if known is None:
        return load(state, checkpoint, cast=cast)  # which says what is not there
    before, after = _way_of(known, names, checkpoint.names(), state)
    for one in checkpoint:
        try:
            known._handle.see(before, one.name, one.dtype, one.shape)
        except InvalidInput as error:
            raise InvalidInput(f"{checkpoint.path}: {error}", tensor=one.name) from None
    known._handle.check_seen(before)
    return load(state, checkpoint, map=known.map(before, after), cast=cast)


def _way_of(
    known: "Names", names: Optional[str], before: Any, after: Mapping[str, Any]
) -> Tuple[str, str]:
    if names is None:
        return known.find(before), known.find(after)
    from .names import two_namings

    first, second = two_namings(names)
    if not first or not second:
        raise InvalidInput(f'names are {names!r}: give two namings, such as "hf:transformers"')
    return first, second


def save_from(model: Any, path: Path, *, config: Any = None, world: Any = None) -> int:
    """Writes the tensors of a ``torch.nn.Module`` to a folder, with its ``config.json`` if it has a
    config. Returns the bytes of tensors that this rank has written.

    A module without DTensors becomes a logical checkpoint. With DTensors the call is collective:
    each rank writes what it has, and the folder is a sharded checkpoint, which
    ``ferry.reshard(path, "hf", other)`` makes logical. The folder must not exist; it appears when
    all ranks have written. Where each rank has the whole module, as with data parallelism, one of
    them saves.
    """
    state = _state_of(model)
    config = getattr(model, "config", None) if config is None else config
    if not any(hasattr(tensor, "placements") for tensor in state.values()):
        return _Folder(path).write(lambda folder: _write_module(folder, state, config))
    from .adapters.torch import layout_of_all

    return _save_sharded(state, path, config, world, layout_of_all)


def _write_module(folder: str, state: Mapping[str, Any], config: Any) -> int:
    _write_config(folder, config)
    return _write_logical(folder, state, {"format": "pt"}, _PART_BYTES)


def _write_config(folder: str, config: Any) -> None:
    if config is None:
        return
    from .names import _config_text

    _write_text(folder, "config.json", _config_text(config)[0])


def _save_sharded(state: Mapping[str, Any], path: Path, config: Any, world: Any, layout_of: Any) -> int:
    from ._refit import agree
    from ._world import world as default

    own = default() if world is None else world
    folder = _Folder(path)
    layout, local = {}, {}
    written = [0]

    def begin() -> bytes:
        nonlocal layout, local
        layout, local = layout_of(state, own)
        if own.rank == 0:
            folder.make()
        return json.dumps(layout, sort_keys=True).encode()

    def write() -> bytes:
        if own.rank in layout["ranks"]:
            file = os.path.join(folder.partial, f"rank-{own.rank:05d}.safetensors")
            with _writing(folder.path):
                written[0] = _write_file(file, local, {})
        return b""

    def finish() -> bytes:
        if own.rank == 0:
            with _writing(folder.path):
                _write_config(folder.partial, config)
                _write_text(
                    folder.partial, _LAYOUT, json.dumps({"format": "ferry.layout/1", **layout})
                )
            folder.finish()
        return b""

    try:
        said = agree(own, begin)
        if any(one != said[0] for one in said):
            raise InvalidInput("ranks have different models: their layouts differ")
        agree(own, write)
        agree(own, finish)
    except BaseException:
        folder.give_up()
        raise
    return written[0]


_publish("_files", globals())
