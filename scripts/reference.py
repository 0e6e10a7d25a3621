#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What doxygen reads of ferry: the headers with their comments marked, and the Python package as text.

    reference.py --headers INCLUDE --package FOLDER --out FOLDER

The headers' comments are plain; doxygen wants /** and, behind a member, /**<. Of the package, whose
types are made in C, Python itself is asked: names, signatures and docstrings. FOLDER is where the
package is found (build/release/bindings/python).
"""

import argparse
import importlib
import inspect
import pkgutil
import re
import sys
from collections import namedtuple
from pathlib import Path

Declared = namedtuple("Declared", "name line comment")

OWN = re.compile(r"^( *)/\*(?!\*)")
BEHIND = re.compile(r"^(.*\S.*?)\s*/\*(?!\*|<)(.*)$")
NAME = re.compile(r"\b(ferry_\w+)\(")


# ---- headers -------------------------------------------------------------------------------------


def escape(text):
    """What doxygen would take for commands and tags of its own."""
    return re.sub(r"[\\@#%]", r"\\\g<0>", text).replace("<", "&lt;").replace(">", "&gt;")


def pieces(lines):
    """[(kind, [line...])], the kinds being blank, comment, macro, declaration and other."""
    found, at = [], 0
    while at < len(lines):
        line, begin = lines[at], at
        if not line.strip():
            kind = "blank"
        elif OWN.match(line):
            kind = "comment"
            while "*/" not in lines[at]:
                at += 1
        elif line.startswith("#"):
            kind = "macro"
            while lines[at].rstrip().endswith("\\"):
                at += 1
        elif line.startswith(("FERRY_API", "static inline")):
            kind = "declaration"
            while ";" not in lines[at] and not (lines[at].startswith("{")):
                at += 1
        else:
            kind = "other"
        at += 1
        found.append((kind, lines[begin:at], begin + 1))
    return found


def declarations(text):
    """The exported functions of a header, each with what is said of it."""
    comment = None
    for kind, lines, line in pieces(text.splitlines()):
        if kind == "comment":
            comment = " ".join(lines)
        elif kind == "declaration" and lines[0].startswith("FERRY_API"):
            code = " ".join(lines)
            behind = re.search(r"/\*(.*?)\*/\s*$", code)
            name = NAME.search(code)
            if name:
                yield Declared(name.group(1), line, behind.group(1) if behind else comment)
            comment = None
        elif kind == "blank" or (kind == "other" and not lines[0].startswith(" ")):
            comment = None


def marked(text):
    """A header as doxygen wants it."""
    out = []
    for kind, lines, _ in pieces(text.splitlines()):
        if kind == "comment" and "SPDX" not in lines[0]:
            out.append("\n".join(escape(line) for line in lines).replace("/*", "/**", 1))
        else:
            out += lines if kind == "macro" else [behind(line) for line in lines]
    return "\n".join(out) + "\n"


def behind(line):
    """A comment behind code is that of what stands before it."""
    match = BEHIND.match(line)
    if not match:
        return line
    return "%s /**< %s" % (match.group(1), escape(match.group(2).lstrip()))


# ---- the Python package --------------------------------------------------------------------------


def modules(package):
    """The package and its public modules; those that need what is not here are left out."""
    yield package
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if any(part.startswith("_") for part in info.name.split(".")):
            continue
        try:
            yield importlib.import_module(info.name)
        except ImportError as error:
            if error.name is None or error.name.split(".")[0] == package.__name__:
                raise


def public(module):
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name in dir(module) if not name.startswith("_")]
    for name in sorted(names):
        value = getattr(module, name)
        own = getattr(value, "__module__", "").split(".")[0] == module.__name__.split(".")[0]
        if own and not inspect.ismodule(value):
            yield name, value


def docstring(value, indent):
    text = inspect.getdoc(value) or ""
    text = text.replace("\\", "\\\\").replace('"""', "'''")
    text += "\n" if text.endswith('"') else ""
    return "\n".join((indent + line).rstrip() for line in ('"""' + text + '"""').splitlines())


def signature(value, of_class):
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "(self, *args, **kwargs)" if of_class else "(*args, **kwargs)"
    plain = [parameter.replace(annotation=inspect.Parameter.empty, default="..."
                               if parameter.default is not inspect.Parameter.empty
                               and not isinstance(parameter.default, (int, float, str, type(None)))
                               else parameter.default)
             for parameter in found.parameters.values()]
    return str(found.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def members(value):
    """The public methods and properties of a class, inherited ones of the package too."""
    for name in sorted(dir(value)):
        if name.startswith("_"):
            continue
        member = inspect.getattr_static(value, name)
        if isinstance(member, (staticmethod, classmethod)):
            member = member.__func__
        if callable(member) or inspect.isdatadescriptor(member):
            yield name, member


def class_text(name, value):
    bases = [base.__name__ for base in value.__bases__ if base is not object]
    out = ["class %s%s:" % (name, "(%s)" % ", ".join(bases) if bases else ""),
           docstring(value, "    "), ""]
    for member_name, member in members(value):
        if inspect.getdoc(member) is None or (issubclass(value, Exception) and
                                              hasattr(Exception, member_name)):
            continue
        if inspect.isdatadescriptor(member):
            out += ["    @property", "    def %s(self):" % member_name]
        else:
            out += ["    def %s%s:" % (member_name, signature(member, True))]
        out += [docstring(member, "        "), ""]
    return "\n".join(out)


def module_text(module):
    out = [docstring(module, ""), ""]
    for name, value in public(module):
        if inspect.isclass(value):
            out += [class_text(name, value), ""]
        elif callable(value):
            out += ["def %s%s:" % (name, signature(value, False)), docstring(value, "    "), ""]
    return "\n".join(out) + "\n"


# ---- both ----------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("headers", "package", "out"):
        parser.add_argument("--" + name, metavar="FOLDER", type=Path, required=True)
    arguments = parser.parse_args()
    to = arguments.out / "include" / "ferry"
    to.mkdir(parents=True, exist_ok=True)
    for header in sorted(arguments.headers.glob("ferry/*.h")):
        (to / header.name).write_text(marked(header.read_text(encoding="utf-8")), encoding="utf-8")
    sys.path.insert(0, str(arguments.package))
    for module in modules(importlib.import_module("ferry")):
        path = arguments.out / "python" / Path(*module.__name__.split("."))
        is_package = hasattr(module, "__path__")
        path = path / "__init__.py" if is_package else path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(module_text(module), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
