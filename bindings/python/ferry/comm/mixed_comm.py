# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The mixed collectives, where ``flashinfer.comm.mixed_comm`` has them."""

from .._mixed import (
    MixedCommCounts,
    MixedCommHandler,
    MixedCommInfo,
    MixedCommMode,
    MixedCommOp,
    MixedCommTiming,
    run_mixed_comm,
)

__all__ = [
    "MixedCommCounts",
    "MixedCommHandler",
    "MixedCommInfo",
    "MixedCommMode",
    "MixedCommOp",
    "MixedCommTiming",
    "run_mixed_comm",
]
