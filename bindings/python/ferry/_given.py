# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What callers give as names of tensors."""

from __future__ import annotations

from typing import Any, Iterable, List, Mapping, Optional, Tuple, Union

from ._errors import InvalidInput, text


def name_of(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidInput(f"{name!r} is no name of a tensor: names are text")
    if "\0" in name or not _is_unicode(name):
        raise InvalidInput(
            f"{name!r} is no name of a tensor: names have no zero bytes and no halves of surrogates"
        )
    return name


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def patterns(given: Union[None, str, Iterable[str]], name: str = "subset") -> Optional[str]:
    """The library's list of patterns, of a text or of several; ``name`` is the argument's."""
    if given is None or isinstance(given, str):
        return text(name, given)
    try:
        listed = list(given)
    except TypeError:
        raise InvalidInput(
            f"{name} is of type {type(given).__name__}: give a pattern, or a list of them"
        ) from None
    if not listed:
        raise InvalidInput(f"{name} is an empty list: give names or patterns, or None for all")
    for one in listed:
        if not isinstance(one, str) or not one or "," in one:
            raise InvalidInput(
                f"{name} has the entry {one!r}: entries are names or patterns, without commas"
            )
    return text(name, ",".join(listed))


def named_tensors(tensors: object) -> List[Tuple[str, Any]]:
    """Of a dict; whoever gives another thing is told so."""
    if not isinstance(tensors, Mapping):
        raise InvalidInput(
            f"tensors are of type {type(tensors).__name__}: give a dict of names with tensors"
        )
    return [(name_of(name), tensor) for name, tensor in tensors.items()]
