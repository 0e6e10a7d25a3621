#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Every public header compiles alone, as strict C11 and as C++; so do the _INIT values.

    check_headers.py --include FOLDER [--cc CC] [--cxx CXX]

Without a C++ compiler that part is left out, and the output says so.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys

WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-pedantic", "-Werror"]
# Headers that need another project's, and the compiler wrappers that find those.
WRAPPED = {"ferry/mpi.h": ("mpicc", "mpicxx")}
INIT = re.compile(r"^#define (FERRY_(\w+)_INIT)\b", re.MULTILINE)


def compiles(command, source):
    done = subprocess.run(command + ["-fsyntax-only", "-"], input=source, capture_output=True,
                          text=True, check=False)
    return done.returncode == 0, done.stderr


def initialisers(folder):
    """A function that makes a value of every struct with an _INIT macro."""
    lines = ["#include <ferry/ferry.h>", "#include <ferry/reference.h>", "int main(void)", "{"]
    for header in sorted(folder.glob("ferry/*.h")):
        for macro, name in INIT.findall(header.read_text()):
            kind = "ferry_" + name.lower()
            lines.append("    %s %s_value = %s;" % (kind, kind, macro))
            lines.append("    if (%s_value.struct_size != sizeof(%s)) { return 1; }" % (kind, kind))
    return "\n".join(lines + ["    return 0;", "}", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--include", required=True, type=pathlib.Path)
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--cxx", default="c++")
    arguments = parser.parse_args()
    include = ["-I", str(arguments.include)]
    languages = [("C11", [arguments.cc, "-x", "c", "-std=c11", "-Wstrict-prototypes"])]
    if shutil.which(arguments.cxx):
        languages.append(("C++11", [arguments.cxx, "-x", "c++", "-std=c++11"]))
        languages.append(("C++20", [arguments.cxx, "-x", "c++", "-std=c++20"]))
    else:
        print("left out: there is no C++ compiler")
    sources = {str(path.relative_to(arguments.include)):
               "#include <%s>\n#include <%s>\ntypedef int not_empty;\n"
               % ((path.relative_to(arguments.include),) * 2)
               for path in sorted(arguments.include.glob("ferry/*.h"))}
    sources["the _INIT values"] = initialisers(arguments.include)
    failures = 0
    for language, command in languages:
        for name, source in sources.items():
            if name in WRAPPED:
                wrapper = shutil.which(WRAPPED[name][language != "C11"])
                if wrapper is None:
                    print("left out: %s as %s" % (name, language))
                    continue
                good, text = compiles([wrapper, "-DOMPI_SKIP_MPICXX"] + command[1:] + WARNINGS + include, source)
            else:
                good, text = compiles(command + WARNINGS + include, source)
            if not good:
                failures += 1
                print("FAILED %s as %s:\n%s" % (name, language, text))
    print("%d sources, %d languages, %d failures" % (len(sources), len(languages), failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
