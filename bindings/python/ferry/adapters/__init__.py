# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Adapters for other packages: ``torch`` (DTensor), ``megatron``, ``vllm``, ``sglang``, ``verl`` and
``nemo_rl``.

Each is a module that is loaded on first use, and none imports its package before it needs it.

>>> import ferry
>>> Config = ferry.adapters.vllm.Config
>>> Config(hidden_size=64, n_heads=4, intermediate_size=128, n_layers=2).head_dim
16
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from . import (
        megatron as megatron, nemo_rl as nemo_rl, sglang as sglang, torch as torch, verl as verl,
        vllm as vllm,
    )  # fmt: skip

__all__ = ["megatron", "nemo_rl", "sglang", "torch", "verl", "vllm"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module("." + name, __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})
