# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The command ``ferry``, which a wheel carries beside the library, and a system among its commands."""

from __future__ import annotations

import os
import shutil
import sys


def main() -> None:
    """Becomes the command, with this process's arguments."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ferry")
    if not os.access(path, os.X_OK):
        # A script of that name beside the interpreter would come back here.
        path = shutil.which("ferry", path=os.defpath) or ""
    if not path:
        sys.exit("the command ferry is not there: install this package with pip, or the package ferry of the system")
    os.execv(path, ["ferry", *sys.argv[1:]])


if __name__ == "__main__":
    main()
