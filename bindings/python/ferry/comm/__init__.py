# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Collectives, where ``flashinfer.comm`` has them."""

from .mixed_comm import MixedCommHandler, MixedCommMode, MixedCommOp, run_mixed_comm

__all__ = ["MixedCommHandler", "MixedCommMode", "MixedCommOp", "run_mixed_comm"]
