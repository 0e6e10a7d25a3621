#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The pictures of the pages are what the code draws, small, linked, and readable.

    pictures.py --ferry COMMAND --life PROGRAM
"""

import argparse
import contextlib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
DRAWN = ["stack", "version-life", "rounds", "modes", "resume"]
MOST_BYTES = 60000
SVG = "{http://www.w3.org/2000/svg}"
arguments = None


@contextlib.contextmanager
def copy_of_the_tree():
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "tree"
        for part in ("scripts", "docs/pictures", "examples", "src"):
            shutil.copytree(ROOT / part, copy / part)
        yield copy


def change(path, old, new):
    text = path.read_text()
    assert old in text, f"{path}: no {old}"
    path.write_text(text.replace(old, new, 1))


def run(root, *words):
    return subprocess.run([sys.executable, root / "scripts" / "pictures.py", "--ferry",
                           arguments.ferry, "--life", arguments.life, *words],
                          capture_output=True, text=True, check=False)


class Pictures(unittest.TestCase):
    def test_they_are_what_the_code_draws(self):
        done = run(ROOT, "--check")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        names = {path.stem for path in PICTURES}
        self.assertLessEqual(set(DRAWN), names)

    def test_a_change_of_the_code_is_seen(self):
        """In a copy of the tree, in which a layer calls another one, a sentence is another, and a
        picture was changed by hand."""
        with copy_of_the_tree() as copy:
            for part, old, new in (
                    ("src/schedule/tasks.h", "#include \"", '#include "layout/box.h"\n#include "'),
                    ("src/checkpoint/journal.c", '"the options are different"', '"other options"'),
                    ("docs/pictures/rounds.svg", "8 ranks", "9 ranks")):
                change(copy / part, old, new)
            done = run(copy, "--check", "--only", "stack,rounds,resume")
            self.assertEqual(done.stdout.split("\n"), [
                f"docs/pictures/{name}.svg is not what the code draws"
                for name in ("stack", "rounds", "resume")] + [""])
            self.assertEqual(done.returncode, 1)

    def test_what_no_picture_has_is_refused(self):
        with copy_of_the_tree() as copy:
            change(copy / "scripts/check_layers.py", '"base": []', '"base": [], "fleet": []')
            (copy / "src/fleet").mkdir()
            (copy / "src/fleet/ship.h").write_text("")
            done = run(copy, "--check", "--only", "stack")
            self.assertIn("one too many: fleet", done.stderr)
            change(copy / "src/checkpoint/journal.h", "FY_KEY_OPTIONS,",
                   "FY_KEY_OPTIONS, FY_KEY_MOON,")
            done = run(copy, "--check", "--only", "resume")
            self.assertIn("does not have the parts of the journal's key", done.stderr)

    def test_each_is_shown_on_a_page_with_words_for_those_who_do_not_see_it(self):
        pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        shown = {}
        for page in pages:
            for words, link in re.findall(r"!\[([^\]]*)\]\(([^)]*\.svg)\)", page.read_text()):
                shown[(page.parent / link).resolve()] = words
        for path in PICTURES:
            self.assertGreater(len(shown.get(path, "")), 20, path.name)

    def test_they_are_small_and_have_a_title_and_colours_for_dark_pages(self):
        self.assertGreaterEqual(len(PICTURES), 10)
        for path in PICTURES:
            text = path.read_text()
            self.assertLess(len(text), MOST_BYTES, path.name)
            self.assertIn("prefers-color-scheme: dark", text, path.name)
            title = ElementTree.fromstring(text).find(f"{SVG}title")
            self.assertTrue(title is not None and title.text, path.name)

    def test_no_text_lies_on_another_or_outside(self):
        """By wide letters: the font is the reader's."""
        for path in PICTURES:
            root = ElementTree.fromstring(path.read_text())
            width, height = map(float, root.get("viewBox").split()[2:])
            places = [extent(element) for element in root.iter(f"{SVG}text")]
            self.assertTrue(places, path.name)
            for left, right, base, words in places:
                self.assertGreaterEqual(left, 0, f"{path.name}: {words}")
                self.assertLessEqual(right, width, f"{path.name}: {words}")
                self.assertLessEqual(base, height, f"{path.name}: {words}")
            for i, (left, right, base, words) in enumerate(places):
                for other in places[i + 1:]:
                    is_apart = (right <= other[0] or other[1] <= left or abs(base - other[2]) >= 10)
                    self.assertTrue(is_apart, f"{path.name}: {words} / {other[3]}")

    def test_text_that_would_be_clipped_is_found(self):
        text = ElementTree.Element("text", {"x": "840", "y": "20"})
        text.text = "forty letters that do not fit into 20 px"
        self.assertGreater(extent(text)[1], 860)


def extent(element):
    style = (element.get("class") or "").split()
    letter = 7.9 if "name" in style else 6.3 if "small" in style or "from" in style else 7.0
    long = letter * len(element.text)
    x = float(element.get("x"))
    left = {"middle": x - long / 2, "end": x - long}.get(element.get("text-anchor"), x)
    return left, left + long, float(element.get("y")), element.text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ferry", required=True)
    parser.add_argument("--life", required=True)
    arguments, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
