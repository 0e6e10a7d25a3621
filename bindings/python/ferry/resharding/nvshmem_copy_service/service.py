# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The copy service under the module's name that scripts import it by."""

from __future__ import annotations

from ..._service import RemoteCopyService

__all__ = ["RemoteCopyService"]
