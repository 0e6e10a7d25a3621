#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Checks that folders are layers: who may include whom, what pure folders keep away from, and that
only the folder of an engine includes the engine's headers."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Every folder of src/ with the folders that it may include beside itself and base.
LAYERS = {
    "base": [],
    "layout": [],
    "model": ["layout"],
    "plan": ["layout", "model"],
    "checkpoint": ["layout", "model", "plan", "pack"],
    "prove": [],
    "schedule": [],
    "pack": ["layout"],
    "service": ["layout", "model", "plan", "schedule", "pack", "world", "transport"],
    "world": [],
    "transport": ["world"],
    "collective": ["pack", "world", "transport"],
}
PURE = ["layout", "model", "plan", "schedule"]
IMPURE_HEADERS = {
    "stdio.h": {"snprintf"},  # formatting is no input or output
    "pthread.h": set(), "time.h": set(), "unistd.h": set(), "fcntl.h": set(),
    "dirent.h": set(), "sys/stat.h": set(), "sys/time.h": set(), "threads.h": set(),
}
IMPURE_CALLS = ["fopen", "fprintf", "printf", "getenv", "open", "read", "write", "clock_gettime",
                "time", "pthread_create"]
ENGINE_HEADERS = {"ucp/": "transport/ucx", "uct/": "transport/ucx", "ucs/": "transport/ucx",
                  "nvshmem": "transport/nvshmem", "cuda": "cuda", "mpi.h": "ferry/mpi.h",
                  "pmix.h": "world/pmix"}
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)


def strip_comments(text):
    return re.sub(r'"(\\.|[^"\\])*"', '""', re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))


def check_file(path, problems):
    folder = path.relative_to(ROOT / "src").parts[0]
    text = path.read_text()
    where = path.relative_to(ROOT)
    for header in INCLUDE.findall(text):
        first = header.split("/")[0]
        if first in LAYERS and first not in [folder, "base", *LAYERS[folder]]:
            problems.append(f"{where}: {folder}/ may not include {header}")
        for prefix, owner in ENGINE_HEADERS.items():
            if header.startswith(prefix) and owner not in str(where):
                problems.append(f"{where}: only {owner}/ may include {header}")
        if folder in PURE and header in IMPURE_HEADERS and not IMPURE_HEADERS[header]:
            problems.append(f"{where}: {folder}/ is pure and may not include <{header}>")
    if folder in PURE:
        for call in IMPURE_CALLS:
            if re.search(rf"\b{call}\s*\(", strip_comments(text)):
                problems.append(f"{where}: {folder}/ is pure and may not call {call}()")


def check_users(folder, name, problems):
    for path in sorted((ROOT / folder).rglob("*.[ch]")):
        for header in INCLUDE.findall(path.read_text()):
            if header.split("/")[0] in LAYERS:
                problems.append(f"{path.relative_to(ROOT)}: {name} uses the public API only, "
                                f"not {header}")


def main():
    problems = []
    for path in sorted((ROOT / "src").rglob("*.[ch]")):
        check_file(path, problems) if path.parent != ROOT / "src" else None
    for folder in (ROOT / "src").iterdir():
        if folder.is_dir() and folder.name not in LAYERS:
            problems.append(f"src/{folder.name}/ is no layer that this script knows")
    check_users("tools", "the command", problems)
    check_users("bindings/python", "the Python package", problems)
    print("\n".join(problems) if problems else "folders are layers")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
