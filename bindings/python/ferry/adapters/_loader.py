# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A server's own loader, followed: what it does with the trainer's tensors, or at which it fails."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, List, Tuple

from .._errors import Error, InvalidInput
from ._updates import Tensors


def tensors_of(model: Any) -> Dict[str, Any]:
    """Parameters and buffers under all of their names."""
    found = dict(model.named_parameters(remove_duplicate=False))
    found.update(model.named_buffers(remove_duplicate=False))
    return found


def traced_loader(model: Any, tensors: Tensors) -> Any:
    """What the loader does. Where a tensor does not fit it, servers say little of which that is."""
    from .._trace import trace

    at: List[str] = []

    def noted(pairs: Iterable[Tuple[str, Any]]) -> Iterator[Tuple[str, Any]]:
        for name, tensor in pairs:
            at[:] = [f'"{name}" of shape {list(tensor.shape)}', name]
            yield name, tensor

    try:
        return trace(
            model, {one["name"]: (one["shape"], one["dtype"]) for one in tensors},
            lambda pairs: model.load_weights(noted(pairs)) and None,
        )  # fmt: skip
    except Error:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        if not at:
            raise
        raise InvalidInput(
            f"the server's loader fails at tensor {at[0]} ({said}): the trainer has another model",
            tensor=at[1],
        ) from error
