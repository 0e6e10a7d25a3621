#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Every public name has an entry, and what it says leads somewhere.

    check_reference.py [--package FOLDER]
    check_reference.py --build FOLDER          makes the references there, by scripts/docs.sh
    check_reference.py --docs FOLDER [--package FOLDER]

The first form reads the headers and asks Python: each exported function (tests/abi/symbols.txt) and
each public struct has a comment of its own, and each public Python name a docstring. With --docs
the pages that doxygen made are read: each of these names must be there with that text, and every
link must lead to a page and to a place in it. --build is skipped where doxygen is missing.
"""

import argparse
import importlib
import inspect
import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "support")]
import reference  # noqa: E402
import skips  # noqa: E402

LEAST_TEXT = 8  # characters: "NULL is allowed." says something, "" or "x." does not


def exported():
    lines = (ROOT / "tests" / "abi" / "symbols.txt").read_text(encoding="utf-8").splitlines()
    return {line.split("@")[0] for line in lines}


def check_headers():
    """Problems of what stands above the functions."""
    said = {}
    for header in sorted((ROOT / "include" / "ferry").glob("*.h")):
        for found in reference.declarations(header.read_text(encoding="utf-8")):
            said[found.name] = found.comment or ""
            if len(said[found.name].strip(" */")) < LEAST_TEXT:
                yield "%s:%d: %s has no comment of its own" % (
                    header.relative_to(ROOT), found.line, found.name)
    for name in sorted(exported() - set(said)):
        yield "%s is exported and stands in no header" % name


def python_names(folder):
    """(qualified name, object) of everything public: modules, functions, classes, their members."""
    sys.path.insert(0, str(folder))
    for module in reference.modules(importlib.import_module("ferry")):
        yield module.__name__, module
        for name, value in reference.public(module):
            where = "%s.%s" % (module.__name__, name)
            yield where, value
            if inspect.isclass(value) and not issubclass(value, Exception):
                for member, found in reference.members(value):
                    yield "%s.%s" % (where, member), found


def check_python(folder):
    for name, value in python_names(folder):
        if len(inspect.getdoc(value) or "") < LEAST_TEXT:
            yield "%s has no docstring" % name


# ---- pages ---------------------------------------------------------------------------------------


def text_of(element):
    return " ".join("".join(element.itertext()).split()) if element is not None else ""


def entries(folder):
    """{name: what its entry says} of the C reference."""
    said = {}
    for path in (folder / "xml-c").glob("*.xml"):
        for member in ElementTree.parse(str(path)).getroot().iter("memberdef"):
            text = text_of(member.find("briefdescription")) + text_of(
                member.find("detaileddescription"))
            name = member.findtext("name")
            said[name] = max(said.get(name, ""), text, key=len)
    return said


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.places, self.targets = set(), []

    def handle_starttag(self, tag, attributes):
        for key, value in attributes:
            if key in ("id", "name") and value:
                self.places.add(value)
            elif key in ("href", "src") and value:
                self.targets.append(value)


def check_links(folder):
    pages = {}
    for path in folder.rglob("*.html"):
        pages[path.resolve()] = Links()
        pages[path.resolve()].feed(path.read_text(encoding="utf-8", errors="replace"))
    for path, links in sorted(pages.items()):
        for target in links.targets:
            if re.match(r"[a-z]+:|//", target):
                continue
            name, _, place = unquote(target).partition("#")
            leads = (path.parent / name).resolve() if name else path
            if not leads.exists():
                yield "%s: the link %s leads nowhere" % (path.relative_to(folder.resolve()), target)
            elif place and leads in pages and place not in pages[leads].places:
                yield "%s: the link %s names no place there" % (
                    path.relative_to(folder.resolve()), target)
    if not pages:
        yield "there are no pages in %s" % folder


def check_pages(folder, package):
    said = entries(folder)
    for name in sorted(exported()):
        if len(said.get(name, "")) < LEAST_TEXT:
            yield "%s has no entry in the C reference" % name
    everything = "".join(path.read_text(encoding="utf-8")
                         for path in (folder / "xml-python").glob("*.xml"))
    names = set(re.findall(r"<(?:name|compoundname)>([^<]*)</", everything))
    for name, _ in python_names(package):
        last = name.split(".")[-1]
        if last not in names and name.replace(".", "::") not in names:
            yield "%s has no entry in the Python reference" % name
    yield from check_links(folder)


def build(folder):
    if shutil.which("doxygen") is None:
        return skips.whole("docs/reference", "doxygen is not there")
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run([str(ROOT / "scripts" / "docs.sh"), "--build", str(folder),
                               out + "/docs"], check=False)
    return 1 if done.returncode else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("package", "build", "docs"):
        parser.add_argument("--" + name, metavar="FOLDER", type=Path)
    arguments = parser.parse_args()
    if arguments.build:
        return build(arguments.build)
    problems = list(check_headers())
    if arguments.package:
        problems += check_python(arguments.package)
    if arguments.docs:
        problems += check_pages(arguments.docs, arguments.package)
    for problem in problems:
        print(problem)
    print("%d exported C names, %d problems" % (len(exported()), len(problems)))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
