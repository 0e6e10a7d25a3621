# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A model of torch under watch: its loader is run, and what its parameters hold becomes boxes."""

from __future__ import annotations

import inspect
import os
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple

import torch

from . import _ferry
from ._errors import Error, InvalidInput, Unsupported
from ._trace import FORMAT
from ._trace_boxes import Copy, TooManyPieces, boxes
from ._trace_torch import (
    Cast,
    Computed,
    Constant,
    Held,
    Root,
    Watch,
    is_dense,
    key_of,
    source_names,
)

Load = Optional[Callable[[Iterable[Tuple[str, Any]]], Any]]
Named = Dict[str, torch.Tensor]


def torch_dtype(name: str, about: str) -> torch.dtype:
    """The type of torch that has a name of ferry's."""
    if not _NAMES:
        for one in vars(torch).values():
            if isinstance(one, torch.dtype):
                try:
                    _NAMES.setdefault(_ferry.dtype_name(one), one)
                except Error:
                    pass
    if name not in _NAMES:
        raise Unsupported(
            f'tensor "{about}" is of {name}, for which torch has no type', tensor=about
        )
    return _NAMES[name]


_NAMES: Dict[str, torch.dtype] = {}


def dtype_name(dtype: torch.dtype, size: int) -> str:
    try:
        return _ferry.dtype_name(dtype)
    except Error:
        return f"bytes:{size}"


def _without_data(name: str, given: Any) -> torch.Tensor:
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is no name")
    shape, dtype = (given.shape, given.dtype) if hasattr(given, "dtype") else given
    if not isinstance(dtype, torch.dtype):
        dtype = torch_dtype(dtype if isinstance(dtype, str) else _ferry.dtype_name(dtype), name)
    return torch.empty([int(n) for n in shape], dtype=dtype, device="meta")


def checkpoint_tensors(tensors: Any) -> Named:
    """The tensors of a checkpoint, without data."""
    if isinstance(tensors, (str, os.PathLike)):
        from ._checkpoint import inspect

        tensors = {one.name: (one.shape, one.dtype.lower()) for one in inspect(tensors).tensors}
    pairs = tensors.items() if isinstance(tensors, Mapping) else tensors
    found: Named = {}
    try:
        for name, given in pairs:
            if name in found:
                raise InvalidInput(f'tensor "{name}" is twice among the tensors', tensor=name)
            found[name] = _without_data(name, given)
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, Error):
            raise
        raise InvalidInput(
            "tensors are a folder, or names with tensors or with (shape, dtype), and not "
            f"{type(tensors).__name__}: {error}"
        ) from None
    return found


def _named(model: Any) -> Tuple[Named, Named]:
    """Parameters, and buffers that are saved with the model; and the buffers that are not."""
    if not isinstance(model, torch.nn.Module):
        raise InvalidInput(f"the model is of type {type(model).__name__}: give a module of torch")
    saved = set(model.state_dict(keep_vars=True))
    found: Named = dict(model.named_parameters(remove_duplicate=False))
    others: Named = {}
    for name, buffer in model.named_buffers(remove_duplicate=False):
        (found if name in saved else others)[name] = buffer
    for name, tensor in (*found.items(), *others.items()):
        if hasattr(tensor, "placements"):
            raise Unsupported(
                f'parameter "{name}" is a DTensor: ferry.adapters.torch reads its placements',
                tensor=name,
            )
    return found, others


def _is_table(tensor: torch.Tensor) -> bool:
    """Whether it is a buffer of whole numbers, and they are there: of weights there are none."""
    return not (
        isinstance(tensor, torch.nn.Parameter)
        or tensor.is_floating_point()
        or tensor.is_complex()
        or tensor.device.type == "meta"
    )


def _loader(model: Any, load: Load) -> Callable[[Iterable[Tuple[str, Any]]], Any]:
    if load is not None:
        return load
    if callable(getattr(model, "load_weights", None)):
        return model.load_weights  # type: ignore[no-any-return]
    if hasattr(model, "config") and hasattr(model, "from_pretrained"):
        return lambda pairs: _pretrained(model, dict(pairs))
    return lambda pairs: model.load_state_dict(dict(pairs), strict=False)


def _pretrained(model: Any, tensors: Named) -> Any:
    """The model that transformers makes of a checkpoint, which is another one. Its threads would do
    their part where nobody watches."""
    alone = "HF_DEACTIVATE_ASYNC_LOAD"
    before = os.environ.get(alone)
    os.environ[alone] = "1"
    try:
        return type(model).from_pretrained(
            None, config=model.config, state_dict=tensors, dtype=model.dtype
        )
    finally:
        if before is None:
            del os.environ[alone]
        else:
            os.environ[alone] = before


class _Places:
    """The tensors of a model as they were, for who replaces them while he loads."""

    def __init__(self, model: Any) -> None:
        self._names = [
            (own, set(own))
            for module in model.modules()
            for own in (module._parameters, module._buffers)
        ]
        self._own = [
            (own, name, tensor, tensor.data)
            for module in model.modules()
            for own in (module._parameters, module._buffers)
            for name, tensor in own.items()
            if tensor is not None
        ]

    def restore(self) -> None:
        for own, name, tensor, data in self._own:
            if own.get(name) is not tensor:
                own[name] = tensor
            if key_of(tensor) != key_of(data):
                tensor.data = data
        for own, names in self._names:
            for name in set(own) - names:
                del own[name]


def traced(model: Any, tensors: Any, load: Load) -> Dict[str, Any]:
    """A document of ferry.trace/1."""
    given = checkpoint_tensors(tensors)
    # Detached: a parameter whose data is replaced stays the same object.
    first = _named(model)
    own = {**first[0], **first[1]}
    before = {name: tensor.detach() for name, tensor in own.items()}
    watch = Watch()
    for name, tensor in before.items():
        watch.add(tensor, name, Held(name, _is_table(own[name])))
    for name, tensor in given.items():
        watch.add_root(name, tensor)
    places = _Places(model)
    try:
        with torch.no_grad(), watch:
            made = _run(_loader(model, load), given)
        after, others = _named(made if isinstance(made, torch.nn.Module) else model)
        return _document(watch, given, before, after, others)
    finally:
        watch.memory.clear()  # for threads that still run
        places.restore()


def _run(load: Callable[[Iterable[Tuple[str, Any]]], Any], given: Named) -> Any:
    try:
        made = load(iter(given.items()))
        if inspect.isgenerator(made):
            raise InvalidInput(
                "the loader is a generator, which does nothing by itself: give a function that "
                "goes through it"
            )
        return made
    except (NotImplementedError, RuntimeError) as error:
        said = str(error)
        if "incompatible tensor type" in said and not isinstance(error, Error):
            raise Unsupported(
                "the loader gives a parameter other data, which is of another device: trace the "
                "model on the meta device"
            ) from error
        if isinstance(error, Error) or not any(word in said for word in _NO_DATA):
            raise
        raise Unsupported(
            f"the loader looks at the data of a tensor, and cannot be followed without them: {said}"
        ) from error


_NO_DATA = ("unallocated storage", "meta tensor", "Meta tensor", "invalid python storage")


def _document(
    watch: Watch, given: Named, before: Named, after: Named, others: Named
) -> Dict[str, Any]:
    found: List[Dict[str, Any]] = []
    untouched: List[str] = []
    aliases: Dict[str, str] = {}
    seen: Dict[Any, str] = {}
    written: Dict[str, Tuple[torch.Tensor, Optional[torch.Tensor]]] = {}
    for name, tensor in (*after.items(), *others.items()):
        own = tensor.detach()
        # Two that become one tensor of the checkpoint were, and stay, two.
        place = (place_of(own), place_of(before[name]) if name in before else None)
        if own.numel() and place in seen:
            aliases[name] = seen[place]
            continue
        whole = _whole_of(own, before.get(name), written) if name in others else None
        if whole is not None:
            aliases[name] = whole
            continue
        seen[place] = name
        entry = None
        if name in after or watch.is_of(own, given):  # else it is of the loader's own numbers
            entry = _parameter(watch, given, name, own, before.get(name))
        if entry is not None:
            found.append(entry)
            written[name] = (own, before.get(name))
        elif name in after:
            untouched.append(name)
    return {
        "format": FORMAT,
        "tensors": [
            {
                "name": name,
                "shape": list(one.shape),
                "dtype": dtype_name(one.dtype, one.element_size()),
            }
            for name, one in given.items()
        ],
        "boxes": found,
        "aliases": aliases,
        "untouched": untouched,
    }


def _whole_of(
    tensor: torch.Tensor,
    before: Optional[torch.Tensor],
    written: Mapping[str, Tuple[torch.Tensor, Optional[torch.Tensor]]],
) -> Optional[str]:
    """The parameter that a buffer is a view of, now and before: what is written to that is in it."""
    for name, (whole, whole_before) in written.items():
        if before is None or whole_before is None:
            continue
        if _is_within(tensor, whole) and _is_within(before, whole_before):
            return name
    return None


def _is_within(view: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether a view has no byte that a tensor without gaps does not have."""
    if key_of(view) != key_of(whole) or view.numel() == 0:
        return False
    first, start = (one.storage_offset() * one.element_size() for one in (view, whole))
    reach = sum((n - 1) * stride for n, stride in zip(view.shape, view.stride())) + 1
    end = start + whole.numel() * whole.element_size()
    return start <= first and first + reach * view.element_size() <= end


def place_of(tensor: torch.Tensor) -> Tuple[Any, ...]:
    return key_of(tensor), tensor.storage_offset(), tensor.shape, tensor.stride()


def _parameter(
    watch: Watch, given: Named, name: str, tensor: torch.Tensor, before: Optional[torch.Tensor]
) -> Optional[Dict[str, Any]]:
    """A parameter of a side; None if nothing was copied to it."""
    if tensor.numel() == 0 or watch.find(tensor) is None:
        return None
    memory = tensor if before is None else before
    if memory.shape != tensor.shape or memory.dtype != tensor.dtype:
        raise Unsupported(
            f'parameter "{name}" of shape {list(memory.shape)} and {memory.dtype} is replaced by '
            f"one of shape {list(tensor.shape)} and {tensor.dtype}: trace one that is as it will be",
            tensor=name,
        )
    if not is_dense(memory):
        raise Unsupported(
            f'parameter "{name}" has the strides {list(memory.stride())}, with gaps: its memory is '
            "not its own",
            tensor=name,
        )
    copies = watch.contents(tensor, memory.stride())
    return _entry(given, name, memory, copies)


def _entry(
    given: Named, name: str, tensor: torch.Tensor, copies: List[Copy]
) -> Optional[Dict[str, Any]]:
    entry: Dict[str, Any] = {
        "parameter": name,
        "elements": tensor.numel(),
        "shape": list(tensor.shape),
        "dtype": dtype_name(tensor.dtype, tensor.element_size()),
        "holds": [],
    }
    fills: List[Dict[str, Any]] = []
    for copy in sorted(copies, key=lambda one: one.at):
        source = copy.source
        if isinstance(source, Cast):
            _check_cast(name, source)
            entry["cast"] = "round"
            source = source.source
        if isinstance(source, Root):
            _add_boxes(entry, given, name, source, copy)
        elif isinstance(source, Constant):
            fills.append(_fill(copy, source))
        elif isinstance(source, Held):
            entry["partial"] = True
        else:
            raise _refused(name, source, given)
    if fills:
        entry["fill"] = fills
    return entry if entry["holds"] or fills else None


def _add_boxes(entry: Dict[str, Any], given: Named, name: str, source: Root, copy: Copy) -> None:
    try:
        shape = list(given[source.name].shape)
        for box in boxes(shape or [1], copy):
            if not shape:  # one element, without dimensions
                box.update(begin=[], shape=[], strides=[])
                for loop in box.get("repeat", ()):
                    loop["begin"] = []
            entry["holds"].append({"tensor": source.name, **box})
    except TooManyPieces:
        raise Unsupported(
            f'parameter "{name}": what it has of tensor "{source.name}" is in more pieces than a '
            "layout has",
            tensor=source.name,
        ) from None


def _fill(copy: Copy, source: Constant) -> Dict[str, Any]:
    loops = list(copy.loops) or [(1, 1, 0)]
    fill: Dict[str, Any] = {
        "offset": copy.at,
        "shape": [n for n, _, _ in loops],
        "strides": [here for _, here, _ in loops],
    }
    if any(source.bits):
        fill["bits"] = source.bits[::-1].hex()
    return fill


def _check_cast(name: str, source: Cast) -> None:
    tensor = source_names(source)[0]
    types = " to ".join(str(one) for one in source.types)
    names = [dtype_name(one, one.itemsize) for one in source.types]
    if len(names) > 2 or not set(names) <= _CASTS:
        raise Unsupported(
            f'parameter "{name}": tensor "{tensor}" is converted from {types}, which is not one '
            "cast that ferry has",
            tensor=tensor,
        )


_CASTS = {"f32", "f16", "bf16", "f8e4m3", "f8e5m2"}


def _refused(name: str, source: Computed, given: Named) -> Unsupported:
    of = [one for one in source.of if one != name or one in given]
    made = " and ".join(f'"{one}"' for one in of) or "what the loader makes"
    return Unsupported(
        f'parameter "{name}" gets {source.operation} of {made}, which is not a copy: do that '
        "before or after, or leave this tensor out",
        tensor=of[0] if of else name,
    )
