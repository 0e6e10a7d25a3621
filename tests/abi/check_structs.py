#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Structs with a struct_size only grow, and only so that an older program cannot tell.

    check_structs.py --include FOLDER --options src/base/options.h [--cc CC] [--update]

Every field lies where structs.txt has it. What is appended begins at a multiple of 8 behind all
that was there: in the padding behind an older struct's last field lies whatever its program left
there. The same holds for what was appended to the first versions, whose last fields options.h has.
`--update` writes the list anew, unless that breaks the rule: commit it with the change.

Each of them passes one of the ways that heed struct_size: it is in options.h, or fy_copy_out fills it,
or the library hands its own to a function of the caller's.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

LIST = pathlib.Path(__file__).resolve().parent / "structs.txt"
STRUCT = re.compile(r"typedef struct (ferry_\w+) \{\s*size_t\s+struct_size;(.*?)\n\} \1;", re.DOTALL)
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
POINTER_TO_FUNCTION = re.compile(r"\(\s*\*\s*(\w+)\s*\)\s*\(")
FIRST = re.compile(r"X\((\w+), \w+, (\w+)\)")
FILLED = re.compile(r"fy_copy_out\([^;]*?\"(ferry_\w+)\"", re.DOTALL)
HANDED = re.compile(r"\(\*\w+\)\([^)]*?const (ferry_\w+) \*")


def names_of(body):
    names = ["struct_size"]
    for declaration in COMMENT.sub("", body).split(";"):
        function = POINTER_TO_FUNCTION.search(declaration)
        if function:
            names.append(function.group(1))
        elif declaration.strip():
            names += [re.sub(r"\[.*", "", one).split()[-1].lstrip("*")
                      for one in declaration.split(",")]
    return names


def layouts(folder, cc):
    """Of each struct its fields in order: name, offset, size."""
    lines = ["#include <ferry/ferry.h>", "#include <ferry/reference.h>", "#include <stdio.h>",
             "#define SAY(s, f) printf(#s \" \" #f \" %zu %zu\\n\", offsetof(s, f), "
             "sizeof(((s *)NULL)->f))", "int main(void)", "{"]
    for header in sorted(folder.glob("ferry/*.h")):
        for name, body in STRUCT.findall(header.read_text()):
            lines += ["    SAY(%s, %s);" % (name, field) for field in names_of(body)]
    with tempfile.TemporaryDirectory() as place:
        program = pathlib.Path(place) / "layouts"
        subprocess.run([cc, "-std=c11", "-I", str(folder), "-x", "c", "-", "-o", str(program)],
                       input="\n".join(lines + ["    return 0;", "}", ""]), text=True, check=True)
        text = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return parse(text)


def parse(text):
    found = {}
    for line in text.splitlines():
        struct, field, offset, size = line.split()
        found.setdefault(struct, []).append((field, int(offset), int(size)))
    return found


def is_apart(before, after):
    """A field that was appended behind another one, and where that leaves no doubt."""
    return after[1] % 8 == 0 and after[1] >= before[1] + before[2]


def broken(wanted, have, first):
    for struct, fields in wanted.items():
        now = have.get(struct, [])
        for i, field in enumerate(fields):
            if now[i:i + 1] != [field]:
                yield "%s.%s lay at %d with %d bytes; a released field never moves" \
                    % ((struct,) + field)
        if len(now) > len(fields) and not is_apart(fields[-1], now[len(fields)]):
            yield "%s.%s is appended at %d, which is not a multiple of 8 behind %s" \
                % (struct, now[len(fields)][0], now[len(fields)][1], fields[-1][0])
    for struct, last in first.items():
        fields = have.get(struct, [])
        at = [field[0] for field in fields].index(last)
        if at + 1 < len(fields) and not is_apart(fields[at], fields[at + 1]):
            yield "%s.%s at %d is not a multiple of 8 behind the first version's last field %s" \
                % (struct, fields[at + 1][0], fields[at + 1][1], last)


def texts(folder, pattern):
    return "".join(path.read_text() for path in sorted(folder.rglob(pattern)))


def unheeded(structs, first, include, source):
    """Structs whose struct_size nobody looks at: an older program's would be overrun."""
    heeded = set(first) | set(FILLED.findall(texts(source, "*.c")))
    return sorted(set(structs) - heeded - set(HANDED.findall(texts(include, "*.h"))))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--include", required=True, type=pathlib.Path)
    parser.add_argument("--options", required=True, type=pathlib.Path)
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--update", action="store_true", help="write structs.txt")
    arguments = parser.parse_args()
    have = layouts(arguments.include, arguments.cc)
    wanted = parse(LIST.read_text() if LIST.exists() else "")
    first = {"ferry_" + name: last for name, last in FIRST.findall(arguments.options.read_text())}
    problems = list(broken(wanted, have, first))
    problems += ["%s is read from callers, but no header has it" % name
                 for name in first if name not in have]
    problems += ["%s: nobody looks at its struct_size: read it by fy_take_%s, fill it by fy_copy_out"
                 % (name, name[6:])
                 for name in unheeded(have, first, arguments.include, arguments.options.parents[1])]
    if arguments.update and not problems:
        LIST.write_text("".join("%s %s %d %d\n" % ((struct,) + field)
                                for struct in sorted(have) for field in have[struct]))
        return 0
    new = ["%s.%s" % (struct, field[0]) for struct in have for field in have[struct]
           if field not in wanted.get(struct, [])]
    for problem in problems:
        print("broken: " + problem)
    for name in new:
        print("new: %s is not in tests/abi/structs.txt" % name)
    if problems or new:
        print("What is appended as it should be is listed by --update.")
        return 1
    print("%d structs, %d read from callers, as listed" % (len(have), len(first)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
