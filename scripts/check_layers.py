#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Checks that folders are layers: who may include whom, what pure folders keep away from, and that
only the folder of an engine includes the engine's headers. And the house rules that a script can
read: no two types of src/ share a name, structs and functions can be taken in at once, and every
source has its licence line."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Every folder of src/ with the folders that it may include beside itself and base.
LAYERS = {
    "base": [],
    "host": [],
    "layout": [],
    "model": ["layout"],
    "plan": ["layout", "model", "schedule"],
    "checkpoint": ["host", "layout", "model", "plan", "convert", "exec"],
    "prove": ["host"],
    "report": ["layout", "model", "plan", "schedule"],
    "schedule": [],
    "memory": ["host"],
    "memory/far": ["layout", "memory", "exec"],
    "memory/cuda": ["host", "layout", "memory", "exec", "convert"],
    "convert": [],
    "exec": ["host", "layout", "memory", "convert"],
    "program": ["memory", "exec"],
    "service": ["host", "layout", "convert", "model", "plan", "schedule", "memory", "exec", "program", "world",
                "transport"],
    "world": ["host"],
    "transport": ["host", "memory", "exec", "world"],
    "collective": ["host", "memory", "exec", "program", "world", "transport"],
}
PURE = ["layout", "model", "plan", "schedule", "convert", "report"]
IMPURE_HEADERS = {
    "stdio.h": {"snprintf"},  # formatting is no input or output
    "pthread.h": set(), "time.h": set(), "unistd.h": set(), "fcntl.h": set(),
    "dirent.h": set(), "sys/stat.h": set(), "sys/time.h": set(), "threads.h": set(),
}
IMPURE_CALLS = ["fopen", "fprintf", "printf", "getenv", "open", "read", "write", "clock_gettime",
                "time", "pthread_create"]
ENGINE_HEADERS = {"ucp/": "transport/ucx", "uct/": "transport/ucx", "ucs/": "transport/ucx",
                  "nvshmem": "transport/nvshmem", "cuda.h": "memory/cuda", "mpi.h": "ferry/mpi.h",
                  "pmix.h": "world/pmix"}
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)


# What a header or a source defines: struct fy_x {, } fy_x;, and typedefs of functions.
TYPE = re.compile(r"^(?:typedef )?(?:struct|union|enum) (fy_\w+)\s*\{|^\} (fy_\w+);"
                  r"|^typedef [^;{]*?\(?\*?(fy_\w+)\)?\(", re.MULTILINE)


def strip_comments(text):
    return re.sub(r'"(\\.|[^"\\])*"', '""', re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))


def check_file(path, problems):
    own = path.relative_to(ROOT / "src").parent.as_posix()
    folder = own if own in LAYERS else own.split("/")[0]
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


# What each exec has one of its own of, and nobody else looks into.
OPAQUE = {"fy_exec_queue"}


def check_types(problems):
    """Who reads a name must not need to know which folder he is in."""
    places = {}
    for path in sorted((ROOT / "src").rglob("*.[ch]")):
        text = strip_comments(path.read_text())
        for name in {"".join(found) for found in TYPE.findall(text)}:
            places.setdefault(name, []).append(str(path.relative_to(ROOT)))
    for name, paths in sorted(places.items()):
        if len(paths) > 1 and name not in OPAQUE:
            problems.append(f"{name} is defined in {' and in '.join(paths)}: one name, one type")
    if len(places) < 300:
        problems.append(f"check_layers.py finds {len(places)} types only")


STRUCT = re.compile(r"^(?:typedef )?struct (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FUNCTION = re.compile(r"^(?!struct|typedef|enum|union|static const|const)\w[^\n;=]*?(\w+)\([^;{}]*\)\n\{\n(.*?)^\}",
                      re.MULTILINE | re.DOTALL)
MOST_MEMBERS = 40  # declarations; a table of functions with that many would be one to look at, too
MOST_LINES = 60    # of a function: see docs/style.md


def check_sizes(problems):
    n_functions = 0
    for path in sorted((ROOT / "src").rglob("*.[ch]")):
        text = strip_comments(path.read_text())
        for name, body in STRUCT.findall(text):
            if body.count(";") > MOST_MEMBERS:
                problems.append(f"{path.relative_to(ROOT)}: {name} has {body.count(';')} members: "
                                "whose are they?")
    for path in sorted(one for folder in ("src", "tests", "tools", "bench", "bindings", "examples")
                       for one in (ROOT / folder).rglob("*.[ch]")):
        for name, body in FUNCTION.findall(path.read_text()):
            n_functions += 1
            if body.count("\n") > MOST_LINES:
                problems.append(f"{path.relative_to(ROOT)}: {name}() has {body.count(chr(10))} lines")
    if n_functions < 8000:
        problems.append(f"check_layers.py finds {n_functions} functions only")


def check_licences(problems):
    """Every source says in its first three lines whose it is."""
    names = [path for pattern in ("*.[ch]", "*.py", "*.sh", "*.cmake", "CMakeLists.txt")
             for folder in ("bench", "bindings", "cmake", "examples", "include", "scripts", "src",
                            "tests", "tools") for path in sorted((ROOT / folder).rglob(pattern))]
    for path in [ROOT / "CMakeLists.txt", *names]:
        with open(path, encoding="utf-8") as file:
            if not any("SPDX-License-Identifier" in file.readline() for _ in range(3)):
                problems.append(f"{path.relative_to(ROOT)}: has no licence line")


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
    check_types(problems)
    check_sizes(problems)
    check_licences(problems)
    check_users("tools", "the command", problems)
    check_users("bindings/python", "the Python package", problems)
    print("\n".join(problems) if problems else "folders are layers")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
