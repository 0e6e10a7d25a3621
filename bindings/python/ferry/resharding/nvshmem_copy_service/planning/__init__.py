# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The reference scheduler."""

from .communication_scheduler import CommunicationScheduler

__all__ = ["CommunicationScheduler"]
