# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Files of the repository that scripts make: written, or compared with what is there."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]


def write_or_compare(files, is_check, maker):
    """`files` are (path, text). Writes those that differ, or names them. The exit status: 1 if a
    check has found one."""
    is_drifting = False
    for path, text in files:
        if path.exists() and path.read_text() == text:
            continue
        is_drifting = True
        print(f"{path.relative_to(ROOT)} is not what {maker}"
              if is_check else f"wrote {path.relative_to(ROOT)}")
        if not is_check:
            path.write_text(text)
    return 1 if is_check and is_drifting else 0
