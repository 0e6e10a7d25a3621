#!/usr/bin/env python3
"""Tests of the documentation.

    run_blocks.py PAGE...
    run_blocks.py --check [--ferry PATH] [--root FOLDER]

The first form runs every ```python block of each page, in order and in one namespace per page. The
second checks README.md, docs/ and examples/README.md: relative links must lead to files (and their
anchors to headings), a whole C program must be that of a file in docs/examples_c/, and with --ferry
every `ferry ...` command must use a subcommand, options and files that exist. Each problem is one
line, `page:line: what`, and the exit status is then 1.
"""

import argparse
import re
import shlex
import subprocess
import sys
import traceback
from collections import namedtuple
from pathlib import Path

Block = namedtuple("Block", "line language text")
Command = namedtuple("Command", "line words")
Option = namedtuple("Option", "takes_value may_have_value")

SHELL = {"sh", "bash", "shell", "console"}
FENCE = re.compile(r"^( *)(`{3,}|~{3,}) *([^`]*)$")
SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?(\S+?)>?\s*$")
SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)
PLACEHOLDER = re.compile(r"^\[?<?[A-Z][A-Z0-9_-]*>?\]?(\.\.\.)?$")
ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
OPERATORS = {"|", "||", "&&", ";", "&"}
REDIRECTIONS = {">", ">>", "2>", "<"}
INDENTED = re.compile(r"^ {4,}(\$ .*\bferry\b|(\S*/)?ferry plan\b)")


class PageError(Exception):
    """A page that cannot be read; the text is the problem with page and line."""


def split_page(path):
    """The fenced blocks of a page, and its other lines as {number: text}."""
    blocks, prose, fence = [], {}, None
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        match = FENCE.match(line)
        if fence is None and match:
            indent, fence, info = match.groups()
            language = info.split()[0].lower() if info.split() else ""
            start, body = number + 1, []
        elif fence is not None and line.strip().startswith(fence) and not line.strip(" `~"):
            blocks.append(Block(start, language, "\n".join(body)))
            fence = None
        elif fence is not None:
            body.append(line[len(indent):] if line.startswith(indent) else line)
        else:
            prose[number] = line
    if fence is not None:
        raise PageError("%s:%d: the block is never closed" % (path, start - 1))
    return blocks, prose


# ---- blocks --------------------------------------------------------------------------------------


def failing_line(error, page, block):
    """The last line of the page that the error went through."""
    if isinstance(error, SyntaxError) and error.filename == page:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
             if frame.filename == page]
    return lines[-1] if lines else block.line


def describe(error, path, line):
    """An assertion says nothing of itself: the line that failed does."""
    source = Path(path).read_text(encoding="utf-8").splitlines()[line - 1].strip()
    said = type(error).__name__ + (": %s" % error if str(error) else "")
    return "%s, at `%s`" % (said, source)


def run_page(path):
    """Runs the blocks of a page; returns (number of blocks, problem or None)."""
    blocks = [block for block in split_page(path)[0] if block.language == "python"]
    names = {"__name__": "page"}
    for block in blocks:
        # Leading newlines make line numbers of the page's own.
        source = "\n" * (block.line - 1) + block.text + "\n"
        try:
            exec(compile(source, str(path), "exec"), names)
        except Exception as error:  # whatever a block raises is its failure
            line = failing_line(error, str(path), block)
            return len(blocks), "%s:%d: %s" % (path, line, describe(error, path, line))
    return len(blocks), None


def run_pages(paths):
    failed = False
    for path in paths:
        n_blocks, problem = run_page(path)
        if problem is None and n_blocks == 0:
            problem = "%s:1: the page has no ```python block" % path
        failed = failed or problem is not None
        print(problem or "%s: %d blocks ran" % (path, n_blocks))
    return failed


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


# ---- programs ------------------------------------------------------------------------------------


def check_programs(blocks, root):
    files = [path.read_text(encoding="utf-8") for path in (root / "docs/examples_c").glob("*.c")]
    for block in blocks:
        if block.language == "c" and re.search(r"^int main\(", block.text, re.MULTILINE):
            if not any(block.text in text for text in files):
                yield block.line, "the program is none of docs/examples_c/"


# ---- commands ------------------------------------------------------------------------------------


def shell_lines(block):
    """(line, text) of each line, with those that end in a backslash joined to the next."""
    pending, first = "", block.line
    for offset, line in enumerate(block.text.splitlines()):
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
    for block in blocks:
        if block.language in SHELL:
            for line, text in shell_lines(block):
                if re.search(r"\bferry\b", text):
                    yield from commands_in(line, text)
    for number, line in prose.items():
        if INDENTED.match(line):
            yield from commands_in(number, line)
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
            lines = re.findall(r"^  (--[a-z-]+)(?: ([A-Z]+)|(\[=[A-Z]+\]))?(?= |$)", text,
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
    made = set()
    for command in page_commands(blocks, prose):
        for problem in check_words(command, usage, root, made):
            yield command.line, problem


def check_pages(root, ferry):
    pages = [root / "README.md", root / "examples" / "README.md"]
    pages += sorted((root / "docs").rglob("*.md"))
    usage = Help(ferry) if ferry else None
    n_problems = n_pages = 0
    for page in pages:
        if not page.exists():
            continue
        n_pages += 1
        blocks, prose = split_page(page)
        problems = [*check_links(page, prose, root), *check_programs(blocks, root)]
        if usage:
            problems += check_commands(page, blocks, prose, usage, root)
        for line, problem in sorted(problems):
            print("%s:%d: %s" % (page.relative_to(root), line, problem))
        n_problems += len(problems)
    print("%d pages, %d problems" % (n_pages, n_problems))
    return n_problems > 0 or n_pages == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="files whose blocks to run")
    parser.add_argument("--check", action="store_true", help="check links and commands instead")
    parser.add_argument("--ferry", metavar="PATH", help="the command whose options --check asks")
    parser.add_argument("--root", metavar="FOLDER", type=Path,
                        default=Path(__file__).resolve().parent.parent.parent,
                        help="the project (default: the one that this file is in)")
    arguments = parser.parse_args()
    if arguments.check == bool(arguments.pages):
        parser.error("either pages or --check")
    try:
        if arguments.check:
            return check_pages(arguments.root.resolve(), arguments.ferry)
        return run_pages(arguments.pages)
    except (PageError, OSError) as problem:
        print(problem)
        return 1


if __name__ == "__main__":
    sys.exit(main())
