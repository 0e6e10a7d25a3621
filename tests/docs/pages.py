# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The pages of the documentation, and the blocks in them.

A block may have directions above its fence, each a comment of Markdown on a line of its own:

    <!-- docs: not run, REASON -->       it cannot be run here; the reason is printed and counted
    <!-- docs: needs torch -->           it is run where torch is, in the tests with the label long
    <!-- docs: first COMMAND -->         a command that is run before it, and that readers do not need
    <!-- docs: file NAME -->             it is not run, but written to a file that later blocks use
    <!-- docs: excerpt of PATH -->       its text stands in that file, which another block or test runs
    <!-- docs: inside NAME -->           it stands for the line BLOCK of that file of tests/docs/inside/
    <!-- docs: part of COMMAND -->       JSON: all it says, the output of that command says too
    <!-- docs: numbers vary: A, B -->    in shown lines with one of these words numbers may be others
    <!-- docs: exit status N -->         what its last command ends with, if not 0
"""

import re
from collections import namedtuple
from pathlib import Path

Block = namedtuple("Block", "line language text directions")

FENCE = re.compile(r"^( *)(`{3,}|~{3,}) *([^`]*)$")
DIRECTION = re.compile(r"^<!-- docs: (not run, |needs |first |file |excerpt of |inside |part of "
                       r"|numbers vary: |exit status )(\S.*?) -->$")
SHELL = {"sh", "console"}
LANGUAGES = SHELL | {"python", "py", "c", "json", "text"}


class PageError(Exception):
    """A page that cannot be read; the text is the problem with page and line."""


def all_pages(root):
    """Every page that people read: not the notes of the tests' own folders."""
    pages = [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    for folder in ("docs", "examples", "bench", "bindings", ".github"):
        pages += sorted((root / folder).rglob("*.md"))
    return [page for page in pages if page.exists()]


def direction(path, number, line):
    match = DIRECTION.match(line.strip())
    if not match:
        raise PageError("%s:%d: the direction is none that tests/docs/pages.py lists" % (path, number))
    return match.group(1).strip(" ,:"), match.group(2)


def split_page(path):
    """The fenced blocks of a page, and its other lines as {number: text}."""
    blocks, prose, fence, directions = [], {}, None, []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        match = FENCE.match(line)
        if fence is None and match:
            indent, fence, info = match.groups()
            language = info.split()[0].lower() if info.split() else ""
            start, body = number + 1, []
        elif fence is not None and line.strip().startswith(fence) and not line.strip(" `~"):
            blocks.append(Block(start, language, "\n".join(body), directions))
            fence, directions = None, []
        elif fence is not None:
            body.append(line[len(indent):] if line.startswith(indent) else line)
        elif line.strip().startswith("<!-- docs:"):
            directions = directions + [direction(path, number, line)]
        elif directions:
            raise PageError("%s:%d: a direction stands above no block" % (path, number - 1))
        else:
            prose[number] = line
    if fence is not None:
        raise PageError("%s:%d: the block is never closed" % (path, start - 1))
    if directions:
        raise PageError("%s: the last direction stands above no block" % path)
    return blocks, prose


def words_of(block, kind):
    """What the directions of a kind say."""
    return [text for name, text in block.directions if name == kind]
