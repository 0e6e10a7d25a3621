# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Tensors in memory that other processes of the node write to directly."""

from __future__ import annotations

import operator
import sys
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import _ferry, _publish
from ._errors import InvalidInput, LimitExceeded, NoMemory, Unsupported
from ._given import named_tensors

# What torch and numpy call the dtypes of ferry; numpy has those of the second row from ml_dtypes.
_WORDS = {
    "f64": "float64", "f32": "float32", "f16": "float16", "i64": "int64", "u64": "uint64",
    "i32": "int32", "u32": "uint32", "i16": "int16", "u16": "uint16", "i8": "int8", "u8": "uint8",
    "bool": "bool", "c64": "complex64",
    "bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
    "f8e8m0": "float8_e8m0fnu",
}  # fmt: skip
_ML_DTYPES = ("bf16", "f8e4m3", "f8e5m2", "f8e8m0")
_MOST_BYTES = 2**63 - 1
_ALIGN = 64
_PIECE_BYTES = 2**30  # of which modules are moved, so that they are never there twice


def block_of(memory: "_ferry.Memory") -> memoryview:
    """Its bytes: what is made of them keeps them, and they keep the memory."""
    import ctypes

    kind = type("Memory", (ctypes.c_ubyte * memory.bytes,), {})
    block: Any = getattr(kind, "from_address")(memory.address)
    block.memory = memory
    return memoryview(block).cast("B")


# ---- new tensors ----


def empty(*size: Any, dtype: Any = None, like: Any = None, device: Any = None) -> Any:
    """A tensor in memory that other processes of the node write to directly, so that a refit or a
    service copies each byte once, straight to its place.

    The shape is given as to torch: ``empty(4, 8)`` or ``empty((4, 8))``. ``dtype`` is one of torch
    or numpy, or a name such as ``"bf16"``; ``like`` is a tensor or an array of the library that is
    wanted, whose dtype is taken if none is given. Without either the result is torch's where torch
    is imported, else numpy's, and the dtype is that library's default. The elements are zero, and
    row-major without gaps.

    Nothing else is needed: no world, and no call when the memory is to go. It lives as long as a
    tensor uses it, also after worlds and services are closed. It is of the host (``device="cpu"``),
    and each call takes a descriptor of the process: of many small tensors make one, and cut it.

    >>> served = ferry.empty(2, 3, dtype="f32")  # doctest: +SKIP
    >>> served.shape  # doctest: +SKIP
    torch.Size([2, 3])
    """
    _check_device(device)
    shape = _shape_of(size)
    library, kind, name = _kind_of(dtype, like)
    n_bytes = int(kind.itemsize)
    for extent in shape:
        n_bytes *= extent
    if n_bytes > _MOST_BYTES:
        raise NoMemory(f"{list(shape)} of {name} are {n_bytes} bytes, which no machine has")
    is_torch = library.__name__ == "torch"
    if n_bytes == 0:
        return library.empty(shape, dtype=kind, **({"device": "cpu"} if is_torch else {}))
    block = block_of(_ferry.memory(n_bytes))
    if is_torch:
        return _torch_view(_torch_storage(block), kind, 0, shape, None)
    return library.frombuffer(block, dtype=kind).reshape(shape)


def empty_like(tensor: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """A tensor as :func:`ferry.empty` makes it, with the shape, dtype and library of another one.

    Whatever the tensor's strides are, the result is row-major without gaps. Of a tensor on another
    device say ``device="cpu"``.

    >>> ferry.empty_like(numpy.ones((2, 3)).T).shape  # doctest: +SKIP
    (3, 2)
    """
    library = _library_of(tensor, "ferry.empty_like")
    if library.__name__ == "torch" and hasattr(tensor, "placements"):
        raise InvalidInput("ferry.empty_like: a DTensor is given: give its to_local()")
    if device is None and library.__name__ == "torch":
        device = tensor.device
    kind = tensor.dtype if dtype is None else dtype
    return empty(tuple(tensor.shape), dtype=kind, like=tensor, device=device)


def _check_device(device: Any) -> None:
    if device is not None and str(device).partition(":")[0] != "cpu":
        raise Unsupported(
            f'device is "{device}": this memory is of the host, which is device="cpu"; that of GPUs '
            "is reached as torch allocates it"
        )


def _shape_of(size: Tuple[Any, ...]) -> Tuple[int, ...]:
    given: Any = size
    if len(size) == 1 and not hasattr(size[0], "__index__"):
        given = size[0]
    try:
        shape = tuple(operator.index(extent) for extent in given)
    except TypeError:
        raise InvalidInput(
            f"the shape is {given!r}: give whole numbers, as ferry.empty(4, 8) or ferry.empty((4, 8))"
        ) from None
    if not size:
        raise InvalidInput("ferry.empty needs a shape, as ferry.empty(4, 8); () is that of one element")
    if any(extent < 0 for extent in shape):
        raise InvalidInput(f"the shape is {list(shape)}: no extent is negative")
    return shape


def _library_of(tensor: Any, who: str) -> Any:
    """torch or numpy, which is imported as there is a tensor of it."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return torch
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(tensor, numpy.ndarray):
        return numpy
    raise InvalidInput(
        f"{who}: an object of type {type(tensor).__name__} is given: give a tensor of torch or an "
        "array of numpy"
    )


def _kind_of(dtype: Any, like: Any) -> Tuple[Any, Any, str]:
    """The library, its dtype, and what sentences call that."""
    torch: Any = sys.modules.get("torch")
    library: Any = None
    if like is not None:
        library = _library_of(like, "ferry.empty: like")
        dtype = like.dtype if dtype is None else dtype
    elif torch is not None and (dtype is None or isinstance(dtype, (str, torch.dtype))):
        library = torch
    if library is None:
        library = _numpy()
    if dtype is None:
        dtype = library.get_default_dtype() if library is torch else library.dtype("float64")
    if library is torch and isinstance(dtype, torch.dtype):
        if str(dtype).startswith(("torch.qint", "torch.quint")):
            raise Unsupported(f"{dtype} goes with scales of torch's own: make a tensor of integers")
        return library, dtype, str(dtype)
    name = _ferry.dtype_name(dtype)
    return library, _dtype_in(library, name), name


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise Unsupported(
            "ferry.empty makes tensors of torch or arrays of numpy: import torch before, or install "
            "numpy"
        ) from None
    return numpy


def _dtype_in(library: Any, name: str) -> Any:
    word, found = _WORDS.get(name), None
    if library.__name__ == "torch":
        found = None if word is None else getattr(library, word, None)
    elif name in _ML_DTYPES:
        try:
            import ml_dtypes
        except ImportError:
            raise Unsupported(
                f"numpy has no {name}: import torch before, install ml_dtypes, or take "
                f'"{"u16" if name == "bf16" else "u8"}" for its bytes'
            ) from None
        found = library.dtype(getattr(ml_dtypes, str(word)))
    elif word is not None:
        found = library.dtype(word)
    if found is None:
        raise Unsupported(f"{library.__name__} has no dtype {name}: take u8 for its bytes")
    return found


# ---- tensors that are there ----


class _Shared(NamedTuple):
    """A storage of torch, the tensors that lie in it, and bases of views that only those know."""

    storage: Any
    tensors: List[Tuple[str, Any]]
    bases: List[Any]


def share_memory_(module: Any) -> Any:
    """Moves the parameters and buffers of a ``torch.nn.Module``, or the tensors of a dict, into
    memory that other processes of the node write to directly; returns the module or the dict.

    The objects stay, with their values, strides and gradients: optimizers go on with the same
    parameters, and tied parameters and views of one another stay so. Only their memory is another,
    so call it before :class:`ferry.Refit`, and before a graph of autograd or of a device is
    recorded. What lies in such memory already stays where it is. ``copy.deepcopy`` makes ordinary
    tensors, and what moves tensors (``module.to(...)``) takes them out of this memory again.

    :class:`ferry.InvalidInput` names a tensor that cannot be moved, and nothing was moved then: one
    of another device or without memory (``meta``), a DTensor, and one whose memory others use who
    would be left behind: tensors that were not given, as a kept ``state_dict()``, other processes or
    a file (torch's own ``share_memory_()``, ``from_file``), or another tensor that torch does not
    know to be a view of it. A ``state_dict()`` itself is such a case: give the module.

    Memory may be another owner's, of whom torch says nothing: the array of ``torch.from_numpy``, or
    the file of ``torch.load(mmap=True)`` and safetensors. The owner keeps it, and the tensor moves.

    Beside the module it takes one piece of memory at a time, of 1 GiB or of the largest tensor.
    Where there is no memory for a piece, those before it have moved; another call goes on there.

    >>> module = ferry.share_memory_(torch.nn.Linear(8, 4))  # doctest: +SKIP
    """
    torch = sys.modules.get("torch")
    if torch is None:
        raise Unsupported("ferry.share_memory_ moves tensors of torch, which is not imported")
    given = list(_tensors_of(torch, module))
    for name, tensor in given:
        why = _why_not_moved(torch, tensor)
        if why is not None:
            raise InvalidInput(f'tensor "{name}" {why}', tensor=name)
    shared = [one for one in _by_storage(given) if not _is_there(one.storage)]
    _check_apart(shared)
    for one in shared:
        _check_alone(torch, one)
    for piece in _pieces(shared):
        _move(torch, piece)
    return module


def share_what_can(wanted: Mapping[str, Any], others: Mapping[str, Any]) -> Dict[str, str]:
    """What :func:`share_memory_` does for those of the ``wanted`` tensors that it would not refuse;
    the rest stays where it is, and the result says why. It fails nobody: the memory only makes
    runs faster. Of ``others`` move those that lie in the same storages, as a tied head does.
    """
    if not wanted:
        return {}
    torch = sys.modules["torch"]
    left = {name: why for name, one in wanted.items() for why in [_why_not_moved(torch, one)] if why}
    given = [(name, one) for name, one in wanted.items() if name not in left]
    storages = {one.untyped_storage()._cdata for _, one in given}
    given += [
        (name, one)
        for name, one in others.items()
        if _why_not_moved(torch, one) is None and one.untyped_storage()._cdata in storages
    ]
    shared: List[_Shared] = []
    for one in _by_storage(given):
        try:
            if not _is_there(one.storage):
                _check_alone(torch, one)
                shared.append(one)
        except InvalidInput as error:
            left.update((name, str(error)) for name, _ in one.tensors)
    try:
        _check_apart(shared)
        for piece in _pieces(shared):
            _move(torch, piece)
    except (InvalidInput, NoMemory, LimitExceeded) as error:
        left.update(
            (name, str(error))
            for one in shared
            for name, tensor in one.tensors
            if not _is_there(tensor.untyped_storage())
        )
    return left


def _tensors_of(torch: Any, module: Any) -> Iterator[Tuple[str, Any]]:
    if isinstance(module, torch.nn.Module):
        yield from module.named_parameters(remove_duplicate=False)
        yield from module.named_buffers(remove_duplicate=False)
    elif isinstance(module, Mapping):
        yield from named_tensors(module)
    else:
        raise InvalidInput(
            f"ferry.share_memory_: an object of type {type(module).__name__} is given: give a "
            "torch.nn.Module, or a dict of names with tensors"
        )


def _why_not_moved(torch: Any, tensor: Any) -> Optional[str]:
    if not isinstance(tensor, torch.Tensor):
        return (
            f"is of type {type(tensor).__name__}, and only tensors of torch are moved: of an array "
            "make another one with ferry.empty_like"
        )
    if hasattr(type(tensor), "__tensor_flatten__") or hasattr(tensor, "placements"):
        return f"is a {type(tensor).__name__}, which is made of other tensors: give those in a dict"
    if tensor.is_meta:
        return "is on the device meta, where it has no memory: give it some, as by module.to_empty"
    if tensor.device.type != "cpu":
        return f"is on the device {tensor.device}: this memory is of the host"
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return "is sparse, quantized or lazily conjugated: make a plain tensor of it"
    if tensor.untyped_storage().device.type != "cpu":
        return "has no memory of its own"
    return None


def _by_storage(given: Sequence[Tuple[str, Any]]) -> List[_Shared]:
    found: Dict[int, _Shared] = {}
    seen = set()
    for name, tensor in given:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            storage = tensor.untyped_storage()
            if storage.nbytes() > 0:
                found.setdefault(storage._cdata, _Shared(storage, [], [])).tensors.append(
                    (name, tensor)
                )
    return list(found.values())


def _is_there(storage: Any) -> bool:
    return _ferry.has_memory(storage.data_ptr(), storage.nbytes())


def _users(torch: Any, storage: Any) -> int:
    return int(torch._C._storage_Use_Count(storage._cdata))


def _check_apart(shared: Sequence[_Shared]) -> None:
    """Raises if two storages have bytes in common: they would have their own afterwards."""
    last, end = "", 0
    for one in sorted(shared, key=lambda one: int(one.storage.data_ptr())):
        name, start = one.tensors[0][0], one.storage.data_ptr()
        if start < end:
            raise InvalidInput(
                f'tensor "{name}" has bytes in common with tensor "{last}", of which torch does not '
                "know, as of two from_numpy of one array: make one a view of the other, or a clone",
                tensor=name,
            )
        last, end = name, start + one.storage.nbytes()


def _check_alone(torch: Any, one: _Shared) -> None:
    """Raises if others use the storage: they would stay behind. Finds bases that only views have."""
    if one.storage.is_shared():
        raise InvalidInput(
            f'tensor "{one.tensors[0][0]}" is in memory that torch has for several processes or from '
            "a file (share_memory_, from_file), which would be left behind: give a clone of it",
            tensor=one.tensors[0][0],
        )
    known = {id(tensor) for _, tensor in one.tensors}
    with torch.inference_mode(False):  # in which views know their bases
        sample = torch.zeros(2, device="cpu")[:1]  # a view whose base nobody else has
    least_users = _users(torch, sample.untyped_storage()) - 2
    least_references = sys.getrefcount(sample._base)
    for _, tensor in one.tensors:
        base = tensor._base
        if base is None or id(base) in known or base.untyped_storage()._cdata != one.storage._cdata:
            continue
        if sys.getrefcount(base) <= least_references + 1:
            known.add(id(base))
            one.bases.append(base)
    if _users(torch, one.storage) - least_users > len(known):
        name = one.tensors[0][0]
        raise InvalidInput(
            f'tensor "{name}" shares its memory with tensors that were not given, such as a view, a '
            "state_dict() that is kept or, of a state_dict(), the module itself: give the module, and "
            "let go of the others",
            tensor=name,
        )


def _pieces(shared: Sequence[_Shared]) -> Iterator[List[_Shared]]:
    piece: List[_Shared] = []
    n_bytes = 0
    for one in shared:
        own = _rounded(one.storage.nbytes())
        if piece and n_bytes + own > _PIECE_BYTES:
            yield piece
            piece, n_bytes = [], 0
        piece.append(one)
        n_bytes += own
    if piece:
        yield piece


def _rounded(n_bytes: int) -> int:
    return (n_bytes + _ALIGN - 1) // _ALIGN * _ALIGN


def _move(torch: Any, piece: Sequence[_Shared]) -> None:
    """All views are made before the first tensor is another: what fails has moved none of them."""
    block = block_of(_ferry.memory(sum(_rounded(one.storage.nbytes()) for one in piece)))
    moves: List[Tuple[Any, Any]] = []
    at = 0
    for one in piece:
        n_bytes = one.storage.nbytes()
        fresh = _torch_storage(block[at : at + n_bytes])
        fresh.copy_(one.storage)
        for tensor in [*(tensor for _, tensor in one.tensors), *one.bases]:
            with torch.inference_mode(tensor.is_inference()):
                made = _torch_view(
                    fresh, tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride()
                )
            moves.append((tensor, made))
        at += _rounded(n_bytes)
    for tensor, made in moves:
        with torch.inference_mode(tensor.is_inference()):
            tensor.data = made


def _torch_storage(block: memoryview) -> Any:
    torch = sys.modules["torch"]
    return torch.frombuffer(block, dtype=torch.uint8).untyped_storage()


def _torch_view(
    storage: Any, dtype: Any, offset: int, shape: Sequence[int], strides: Optional[Sequence[int]]
) -> Any:
    made = sys.modules["torch"].empty(0, dtype=dtype, device="cpu")
    if strides is None:
        return made.set_(storage, offset, tuple(shape))
    return made.set_(storage, offset, tuple(shape), tuple(strides))


_publish("_memory", globals())
