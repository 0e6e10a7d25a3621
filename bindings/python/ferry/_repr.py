# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What objects say of themselves in a debugger and in help()."""

from __future__ import annotations

from typing import Any, Callable, Type, TypeVar

_Self = TypeVar("_Self")
_T = TypeVar("_T")
_LONGEST = 160


def never_raises(describe: Callable[[_Self], str]) -> Callable[[_Self], str]:
    """A ``__repr__`` that has an answer too while another thread uses the object, in a child of
    fork, and before its ``__init__`` has returned."""

    def __repr__(self: _Self) -> str:
        name = f"ferry.{type(self).__name__}"
        try:
            return describe(self)
        except AttributeError:
            return f"<{name}, not made yet>"
        except Exception as error:
            return f"<{name}: {str(error)[:_LONGEST]}>"

    return __repr__


def fields(**sentences: str) -> Callable[[Type[_T]], Type[_T]]:
    """What help() says of the fields of a named tuple, all of them."""

    def document(cls: Type[_T]) -> Type[_T]:
        assert tuple(sentences) == getattr(cls, "_fields"), cls
        for name, sentence in sentences.items():
            getattr(cls, name).__doc__ = sentence
        return cls

    return document


def of_type(value: Any) -> str:
    """Of a tensor, whose own repr may be all of its elements."""
    if value is None:
        return "None"
    shape = getattr(value, "shape", None)
    size = f" of shape {list(shape)}" if isinstance(shape, tuple) else ""
    return f"<{type(value).__name__}{size}>"
