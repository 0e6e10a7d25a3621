# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Classes of packages that need not be there."""

from __future__ import annotations

import importlib
from typing import Any, Optional


def class_of(module: str, name: str, otherwise: Any = object) -> Any:
    """A package's class, so that isinstance holds of ours; without the package, what else is given."""
    try:
        return getattr(importlib.import_module(module), name)
    except Exception:  # a package fails in many ways where parts of it are missing
        return otherwise


def quantization_of(layer: Any) -> Optional[str]:
    """What makes a server's layer keep its weights otherwise than they are loaded, by its class."""
    method = type(getattr(layer, "quant_method", None)).__name__
    return None if method == "NoneType" or method.startswith("Unquantized") else method
