# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Classes of packages that need not be there."""

from __future__ import annotations

import importlib
from typing import Any


def class_of(module: str, name: str, otherwise: Any = object) -> Any:
    """A package's class, so that isinstance holds of ours; without the package, what else is given."""
    try:
        return getattr(importlib.import_module(module), name)
    except Exception:  # a package fails in many ways where parts of it are missing
        return otherwise
