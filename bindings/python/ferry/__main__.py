# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""``python -m ferry`` is the command ``ferry``."""

from ._command import main

main()
