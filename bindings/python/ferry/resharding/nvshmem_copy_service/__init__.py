# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The remote copy service and the reference scheduler, where ``megatron.core`` has them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import nvshmem_types
from .planning import CommunicationScheduler

if TYPE_CHECKING:
    from .service import RemoteCopyService as RemoteCopyService

__all__ = ["CommunicationScheduler", "RemoteCopyService", "nvshmem_types"]


def __getattr__(name: str) -> Any:
    if name != "RemoteCopyService":  # whoever wants the scheduler need not load the service
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = importlib.import_module(".service", __name__).RemoteCopyService
    globals()[name] = value
    return value
