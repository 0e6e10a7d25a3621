# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What callers give as names of tensors."""

from __future__ import annotations

from typing import Any, List, Mapping, Tuple

from ._errors import InvalidInput


def name_of(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidInput(f"{name!r} is no name of a tensor: names are text")
    return name


def named_tensors(tensors: object) -> List[Tuple[str, Any]]:
    """Of a dict; whoever gives another thing is told so."""
    if not isinstance(tensors, Mapping):
        raise InvalidInput(
            f"tensors are of type {type(tensors).__name__}: give a dict of names with tensors"
        )
    return [(name_of(name), tensor) for name, tensor in tensors.items()]
