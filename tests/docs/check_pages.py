#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Holds what pages say against what is there, without running it.

    check_pages.py [--ferry PATH] [--root FOLDER]

Relative links must lead to files (and their anchors to headings); rows stand in tables, and commands
in blocks, whose language is known; lists that must have everything have it; with --ferry, commands in the middle of
a sentence, and in blocks that say why they are not run, use subcommands, options and files that
exist. Each problem is one line, `page:line: what`, and the exit status is then 1. What blocks do is
the business of run_blocks.py.
"""

import argparse
import re
import shlex
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

from pages import LANGUAGES, SHELL, PageError, all_pages, split_page, words_of

MOST_README_LINES = 150
MOST_TABLE_COLUMNS = 160

Command = namedtuple("Command", "line words")
Option = namedtuple("Option", "takes_value may_have_value")

SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?(\S+?)>?\s*$")
SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)
PLACEHOLDER = re.compile(r"^\[?<?[A-Z][A-Z0-9_-]*>?\]?(\.\.\.)?$")
ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
OPERATORS = {"|", "||", "&&", ";", "&"}
REDIRECTIONS = {">", ">>", "2>", "<"}
RULE = re.compile(r"^\s*\|[\s|:-]*-[\s|:-]*$")
COMMAND = re.compile(r"^ *(\$ |(\S*/)?ferry [a-z]+ )")


# ---- links ---------------------------------------------------------------------------------------


def anchors(path):
    """The anchors that GitHub makes of the headings of a page."""
    _, prose = split_page(path)
    found = set()
    for line in prose.values():
        match = re.match(r"^#{1,6}\s+(.*?)\s*#*$", line)
        if match:
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match.group(1))
            slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
            number, known = 0, slug
            while known in found:
                number += 1
                known = "%s-%d" % (slug, number)
            found.add(known)
    return found


def check_link(page, target, root):
    if SCHEME.match(target) or target.startswith("//"):
        return None
    name, _, anchor = target.partition("#")
    if name.startswith("/"):
        return "the link %s is not relative" % target
    path = (page.parent / name).resolve() if name else page
    if not path.is_relative_to(root):
        return "the link %s leads out of the project" % target
    if not path.exists():
        return "the link %s leads nowhere" % target
    if anchor and path.suffix == ".md" and anchor not in anchors(path):
        return "the link %s names a heading that is not there" % target
    return None


def check_links(page, prose, root):
    for number, line in prose.items():
        bare = SPAN.sub("", line)
        targets = LINK.findall(bare) + REFERENCE.findall(bare)
        for target in targets:
            problem = check_link(page, target, root)
            if problem:
                yield number, problem


# ---- blocks --------------------------------------------------------------------------------------


def check_blocks(blocks, prose):
    """A command that stands in no block, or in one of text, is one that nobody runs."""
    for block in blocks:
        if block.language not in LANGUAGES:
            yield block.line - 1, "a block is one of %s, not \"%s\"" % (
                ", ".join(sorted(LANGUAGES)), block.language)
        elif block.language == "text":
            for offset, line in enumerate(block.text.splitlines()):
                if COMMAND.match(line):
                    yield block.line + offset, "a command in a block of text: call it sh or console"
    for number, line in prose.items():
        if line.startswith("    ") and COMMAND.match(line):
            yield number, "a command that is indented: put it in a block of sh or console"


def check_tables(prose):
    """Rows that an empty line cuts off from their heading are shown as text."""
    for number, line in prose.items():
        is_first = line.lstrip().startswith("|") and not prose.get(number - 1, "").lstrip().startswith("|")
        if is_first and not RULE.match(prose.get(number + 1, "")):
            yield number, "a row of no table: a heading and a line of |---| stand above rows"


# ---- commands ------------------------------------------------------------------------------------


def shell_lines(block):
    """(line, text) of each line that is typed, with those that end in a backslash joined to the next."""
    pending, first = "", block.line
    for offset, line in enumerate(block.text.splitlines()):
        if block.language == "console" and not pending and not line.startswith("$ "):
            continue
        if not pending:
            first = block.line + offset
        pending += line
        if pending.endswith("\\"):
            pending = pending[:-1]
            continue
        yield first, pending
        pending = ""


def split_words(text):
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    return list(lexer)


def commands_in(line, text):
    """The `ferry ...` commands of one line of shell, redirections included."""
    words = split_words(re.sub(r"^\s*[$%>]\s+", "", text))
    current, simple = [], []
    for word in words + [";"]:
        if word in OPERATORS or word in {"(", ")"}:
            simple.append(current)
            current = []
        else:
            current.append(word)
    for words in simple:
        while words and ASSIGNMENT.match(words[0]):
            words = words[1:]
        if words and Path(words[0]).name == "ferry":
            yield Command(line, words[1:])


def page_commands(blocks, prose):
    """Commands that nobody runs: those in the middle of a sentence, and in blocks that say why."""
    for block in blocks:
        if block.language in SHELL and words_of(block, "not run") + words_of(block, "needs"):
            for line, text in shell_lines(block):
                if re.search(r"\bferry\b", text):
                    yield from commands_in(line, text)
    for number, line in prose.items():
        for _, span in SPAN.findall(line):
            if span.strip().startswith("ferry "):
                yield from commands_in(number, span)


class Help:
    """What `ferry --help` and `ferry COMMAND --help` offer."""

    def __init__(self, ferry):
        self.ferry = ferry
        overview = self._ask("--help").partition("\nOptions:\n")[0]
        self.subcommands = set(re.findall(r"^  (\S+)", overview, re.MULTILINE))
        self._options = {}

    def _ask(self, *arguments):
        done = subprocess.run([self.ferry, *arguments], stdin=subprocess.DEVNULL, text=True,
                              capture_output=True, check=True, timeout=600)
        return done.stdout

    def names(self, subcommand):
        """The words that a command takes in place of files; None if it takes files."""
        if subcommand != "bench":
            return None
        return set(re.findall(r"^  (\S+)", self._ask("bench").partition("\n")[2], re.MULTILINE))

    def options(self, subcommand):
        """{option: Option}; a capital word behind an option is its value, `[=WORD]` a possible one."""
        if subcommand not in self._options:
            text = self._ask(subcommand, "--help")
            lines = re.findall(r"^  (?:-\w, )?(--[a-z-]+)(?: ([A-Z]+)|(\[=[A-Z]+\]))?(?= |$)", text,
                               re.MULTILINE)
            self._options[subcommand] = {name: Option(bool(value), bool(value or possible))
                                         for name, value, possible in lines}
        return self._options[subcommand]


def check_words(command, usage, root, made):
    """Problems of one command. `made` are the files that earlier commands of the page wrote."""
    words = list(command.words)
    subcommand = words.pop(0) if words else ""
    if subcommand in {"--help", "--version", "--man"} or PLACEHOLDER.match(subcommand):
        return
    if subcommand not in usage.subcommands:
        yield "ferry has no command \"%s\"" % subcommand
        return
    options, n_files = usage.options(subcommand), 0
    names = usage.names(subcommand)
    while words:
        word = words.pop(0)
        if word in REDIRECTIONS:
            made.add(words.pop(0) if words else "")
        elif word == "--" and subcommand == "launch":
            return
        elif word.startswith("--"):
            name, has_value, value = word.partition("=")
            if name not in options:
                yield "ferry %s has no option %s" % (subcommand, name)
                continue
            if options[name].takes_value and not has_value:
                if not words:
                    yield "%s lacks its value" % name
                    continue
                value = words.pop(0)
            elif not options[name].may_have_value and has_value:
                yield "%s takes no value" % name
            if name in ("--save", "--out"):
                made.add(value)
        elif subcommand == "launch":
            if word != "-n":
                return  # the program, and what is its own
            if not words:
                yield "-n lacks its value"
                return
            words.pop(0)
        elif names is not None:
            if word not in names and not PLACEHOLDER.match(word):
                yield "ferry %s knows no %s" % (subcommand, word)
        else:
            n_files += 1
            known = word in made or PLACEHOLDER.match(word) or (root / word).exists()
            if not known:
                yield "the file %s is not there" % word
    if n_files > (2 if subcommand == "verify" else 1):
        yield "ferry %s takes fewer than %d files" % (subcommand, n_files)


def check_commands(page, blocks, prose, usage, root):
    made = {name for block in blocks for name in words_of(block, "file")}
    if page.parent.name == "bench":
        return  # its spans are names of series, such as "ferry tp4"
    for command in page_commands(blocks, prose):
        for problem in check_words(command, usage, root, made):
            yield command.line, problem


# ---- lists ---------------------------------------------------------------------------------------


def check_lists(root, ferry, pages):
    """What a page must have in full: the folders of tests, the variables, the programs that are run."""
    contributing = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tests = [path for path in (root / "tests").iterdir() if path.is_dir()]
    for path in sorted(tests):
        if path.name[0] not in "._" and not re.search(r"(?m)^\|[^|]*`%s`" % path.name, contributing):
            yield "CONTRIBUTING.md has no row for tests/%s" % path.name
    readme = (root / "README.md").read_text(encoding="utf-8").splitlines()
    if len(readme) >= MOST_README_LINES:
        yield "README.md has %d lines, of less than %d" % (len(readme), MOST_README_LINES)
    for number, line in enumerate(readme, 1):
        if line.startswith("|") and len(line) > MOST_TABLE_COLUMNS:
            yield "README.md:%d: a line of a table has %d characters" % (number, len(line))
    run = (root / "tests" / "CMakeLists.txt").read_text(encoding="utf-8")
    run += "".join(block.text for page in pages for block in split_page(page)[0]
                   if block.language in SHELL and not words_of(block, "not run"))
    for path in sorted((root / "docs" / "examples_c").glob("*.c")):
        if "docs/examples_c/" + path.name not in run:
            yield "docs/examples_c/%s is run by no block and no test" % path.name
    if ferry:
        done = subprocess.run([ferry, "info", "--json"], stdin=subprocess.DEVNULL, text=True,
                              capture_output=True, check=True, timeout=600)
        formats = (root / "docs" / "formats.md").read_text(encoding="utf-8")
        for name in sorted(set(re.findall(r'"(FERRY_[A-Z_]+)"', done.stdout))):
            if "| `%s` |" % name not in formats:
                yield "docs/formats.md has no row for %s" % name


def check_pages(root, ferry):
    usage = Help(ferry) if ferry else None
    n_problems, pages = 0, all_pages(root)
    for page in pages:
        blocks, prose = split_page(page)
        problems = [*check_links(page, prose, root), *check_blocks(blocks, prose), *check_tables(prose)]
        if usage:
            problems += check_commands(page, blocks, prose, usage, root)
        for line, problem in sorted(problems):
            print("%s:%d: %s" % (page.relative_to(root), line, problem))
        n_problems += len(problems)
    for problem in check_lists(root, ferry, pages):
        print(problem)
        n_problems += 1
    print("%d pages, %d problems" % (len(pages), n_problems))
    return n_problems > 0 or not pages


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ferry", metavar="PATH", help="the command whose options are asked")
    parser.add_argument("--root", metavar="FOLDER", type=Path,
                        default=Path(__file__).resolve().parent.parent.parent,
                        help="the project (default: the one that this file is in)")
    arguments = parser.parse_args()
    try:
        return check_pages(arguments.root.resolve(), arguments.ferry)
    except (PageError, OSError) as problem:
        print(problem)
        return 1


if __name__ == "__main__":
    sys.exit(main())
