#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md fits on two screens, its files exist, and each function of its walks is in
the file that it names and calls the next one, itself or through functions of files beside it. No
word is explained twice, in the glossary or among those of the source code."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
MOST_LINES = 100  # two screens of fifty
ROW = re.compile(r"^\| `(\w+)` \| `([\w/.]+)` \|", re.MULTILINE)
CALL = re.compile(r"\b((?:ferry|fy)_\w+)\b")
# Whose next step is a row of a table: of engines, and of what is done with each kind of step.
TABLES = {"ferry_transport_put_signal": "transport/ucx/engine.c",
          "fy_drive_go": "collective/lane.c",
          "fy_drive_step": "service/verbs.c"}
DEFINITION = re.compile(r"^(?!static inline)[a-z][\w \*]*?\b(\w+)\([^;{]*\)\n\{", re.MULTILINE)


def bodies():
    """Of every function, by file and name, the names that its text has."""
    found = {}
    for path in sorted((ROOT / "src").rglob("*.c")):
        text = path.read_text()
        for match in DEFINITION.finditer(text):
            end = text.find("\n}\n", match.end())
            found[str(path.relative_to(ROOT / "src")), match.group(1)] = \
                set(re.findall(r"\b\w+\b", text[match.end():end]))
    return found


def walks(text):
    """Rows of one table after the other."""
    tables = re.split(r"\n\n", text)
    return [rows for rows in (ROW.findall(table) for table in tables) if rows]


def reaches(functions, begin, wanted, folder):
    """Whether a function calls another one by way of functions of its folder."""
    seen, todo = set(), [begin]
    while todo:
        file, name = todo.pop()
        words = functions[file, name]
        if wanted in words:
            return True
        for other in functions:
            is_near = other[0] == file or (other[0].startswith(folder) and
                                           other[1].startswith(("fy_", "ferry_")))
            if is_near and other[1] in words and other not in seen:
                seen.add(other)
                todo.append(other)
    return False


def by_table(functions, wanted, table):
    """Whether a table's file has a row whose function is the wanted one, or calls it."""
    if table is None:
        return False
    rows = re.findall(r"(?:\]|\.\w+) = (\w+)\b", (ROOT / "src" / table).read_text())
    return wanted in rows or any(wanted in functions.get((table, row), ()) for row in rows)


def explained(text):
    """The words of tables with a column "means"; some rows have several."""
    words, is_in = [], False
    for line in text.splitlines():
        is_in = line.startswith("| word | means |") or (is_in and line.startswith("|"))
        if is_in and not line.startswith(("| word |", "|---")):
            words += [word.strip() for word in line.split("|")[1].split(",")]
    return words


class Words(unittest.TestCase):
    def test_each_is_explained_once(self):
        words = explained((ROOT / "docs" / "glossary.md").read_text())
        self.assertGreater(len(words), 40)
        of_source = explained((ROOT / "docs" / "code.md").read_text())
        self.assertGreater(len(of_source), 40)
        words += of_source
        self.assertEqual([word for word in sorted(set(words)) if words.count(word) > 1], [])


class Architecture(unittest.TestCase):
    def setUp(self):
        self.text = PAGE.read_text()

    def test_it_fits_on_two_screens(self):
        self.assertLessEqual(len(self.text.splitlines()), MOST_LINES)

    def test_what_it_names_is_there(self):
        names = re.findall(r"`([a-z]+/[\w/.]+)`", self.text)
        self.assertGreater(len(names), 20)
        for name in names:
            self.assertTrue((ROOT / "src" / name).exists() or (ROOT / name).exists(), name)

    def test_each_function_calls_the_next(self):
        functions = bodies()
        found = walks(self.text)
        self.assertEqual(len(found), 3)
        for rows in found:
            for name, file in rows:
                self.assertIn((file, name), functions)
            for (name, file), (following, _) in zip(rows, rows[1:]):
                folder = file.rsplit("/", 1)[0] + "/"
                if (name, following) != ("fy_sum_run", "fy_mix_links_wait"):
                    self.assertTrue(reaches(functions, (file, name), following, folder) or
                                    by_table(functions, following, TABLES.get(name)),
                                    f"{name} does not call {following}")


if __name__ == "__main__":
    unittest.main()
