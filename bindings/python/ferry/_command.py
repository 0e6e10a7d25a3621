# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The command ``ferry``, which a wheel carries beside the library."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Becomes the command, with this process's arguments."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ferry")
    if not os.access(path, os.X_OK):
        sys.exit(f"{path} is not there: this package was not installed by pip")
    os.execv(path, ["ferry", *sys.argv[1:]])


if __name__ == "__main__":
    main()
