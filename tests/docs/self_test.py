#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""self_test.py --build FOLDER: pages that lie are found out, and those that do not pass."""

import argparse
import sys
import tempfile
import unittest
from pathlib import Path

import check_pages
import check_reference
import reference
import run_blocks
from pages import PageError, split_page

BUILD = None

RIGHT = '''
<!-- docs: file spec.json -->
```json
{"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [4], "dtype": "u8"}],
 "source": {"mesh": [], "rules": [{"match": "*"}]},
 "destination": {"mesh": [], "rules": [{"match": "*"}]}}
```

```console
$ echo one; echo two; echo "three 17 ms"
one
...
three 17 ms
$ echo begin and \\
  end
begin ...
```

<!-- docs: exit status 3 -->
```console
$ echo before
before
$ sh -c 'exit 3'
```

<!-- docs: numbers vary: took -->
```console
$ echo took 12.5 s, wrote 4
took 9 s, wrote 5
```

```python
x = 1
```

```python
assert x == 1
```

<!-- docs: part of cat spec.json -->
```json
{"tensors": [{"name": "w"}]}
```

```sh
ferry plan spec.json >/dev/null
```
'''

# What is wrong, the page, and a word of what must be said about it.
LIES = [
    ("another line is printed", "```console\n$ echo one\ntwo\n```", "is shown"),
    ("more is printed", "```console\n$ printf 'one\\ntwo\\n'\none\n```", "no more"),
    ("less is printed", "```console\n$ echo one\none\ntwo\n```", "two"),
    ("nothing is shown of what is printed", "```console\n$ echo one\n```", "no more"),
    ("a number that does not vary", "```console\n$ echo 1\n2\n```", "is shown"),
    ("a word beside which numbers vary is nowhere",
     "<!-- docs: numbers vary: took -->\n```console\n$ echo 1\n1\n```", "no line shows"),
    ("other words on a line with numbers that vary",
     "<!-- docs: numbers vary: took -->\n```console\n$ echo took 1 s\ntook 2 GB/s more\n```", "took"),
    ("a command fails", "```console\n$ false\n```", "ends with 1"),
    ("a command in the middle fails", "```console\n$ false\n$ true\n```", "ends with 1"),
    ("a script fails before its end", "```sh\nfalse\ntrue\n```", "ends with 1"),
    ("another status", "<!-- docs: exit status 2 -->\n```console\n$ false\n```", "ends with 1"),
    ("ferry refuses it", "```sh\nferry plan nowhere.json\n```", "nowhere.json"),
    ("Python raises", "```python\nassert False\n```", "AssertionError"),
    ("no JSON", "```json\n{\n```", "no JSON"),
    ("JSON that nothing reads", "```json\n{}\n```", "nothing reads"),
    ("a spec that is none", '```json\n{"format": "ferry.spec/1"}\n```', "ends with 1"),
    ("not what is printed",
     "<!-- docs: part of echo '{\"a\": [1, 2]}' -->\n```json\n{\"a\": [2, 1]}\n```", ".a[1]"),
    ("a program from nowhere", "```c\nint main(void)\n{\n}\n```", "excerpt"),
    ("an excerpt that is none",
     "<!-- docs: excerpt of docs/examples_c/refit.c -->\n```c\nint nothing;\n```", "refit.c"),
    ("C that does not compile", "<!-- docs: inside plan.c -->\n```c\nint status = nothing;\n```",
     "nothing"),
    ("a language that nobody runs", "```ruby\nputs 1\n```", "not run"),
    ("no language", "```\nferry plan\n```", "not run"),
]

BAD_PAGES = [
    ("a direction that does not exist", "<!-- docs: ignore -->\n```sh\ntrue\n```"),
    ("a direction above no block", "<!-- docs: not run, why -->\n\ntext\n"),
    ("a reason that is missing", "<!-- docs: not run -->\n```sh\nfalse\n```"),
    ("a block that is never closed", "```sh\ntrue\n"),
]


class Pages(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.place = run_blocks.Place(self.folder.name, BUILD, 5)
        self.page = Path(self.folder.name) / "page.md"

    def run_page(self, text):
        self.page.write_text(text, encoding="utf-8")
        names = {}
        for block in split_page(self.page)[0]:
            run_blocks.run_block(self.place, self.page, block, names)

    def test_a_page_that_is_right(self):
        self.run_page(RIGHT)

    def test_lies(self):
        for what, text, word in LIES:
            with self.subTest(what):
                with self.assertRaises(run_blocks.Problem) as raised:
                    self.run_page(text)
                self.assertIn(word, str(raised.exception))

    def test_pages_that_cannot_be_read(self):
        for what, text in BAD_PAGES:
            with self.subTest(what):
                self.page.write_text(text, encoding="utf-8")
                with self.assertRaises(PageError):
                    split_page(self.page)

    def test_rows_outside_of_tables(self):
        table = "| a | b |\n|---|:--|\n| 1 | 2 |\n"
        for n_problems, text in ((0, table), (1, table + "\n| 3 | 4 |\n"), (1, "| a | b |\n| 1 | 2 |\n")):
            self.page.write_text(text, encoding="utf-8")
            self.assertEqual(n_problems, len(list(check_pages.check_tables(split_page(self.page)[1]))), text)

    def test_commands_outside_of_blocks(self):
        for text in ("    $ ferry plan spec.json\n", "```text\n$ ferry plan\n```\n", "```\nx\n```\n"):
            self.page.write_text(text, encoding="utf-8")
            self.assertEqual(1, len(list(check_pages.check_blocks(*split_page(self.page)))), text)


class Reference(unittest.TestCase):
    HEADER = ("/* One.\n * More. */\nFERRY_API int ferry_one(\n    int x);\nFERRY_API int ferry_two(void);\n\n"
              "FERRY_API int ferry_three(void); /* three */\n")

    def test_comments_belong_to_one_function(self):
        said = {found.name: bool(found.comment) for found in reference.declarations(self.HEADER)}
        self.assertEqual(said, {"ferry_one": True, "ferry_two": False, "ferry_three": True})

    def test_comments_are_marked(self):
        marked = reference.marked(self.HEADER)
        self.assertIn("/** One.", marked)
        self.assertIn("ferry_three(void); /**< three */", marked)

    def test_dead_links(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "page.html"
            for target, dead in (("page.html", 0), ("#here", 0), ("https://a.example", 0),
                                 ("other.html", 1), ("#there", 1), ("page.html#there", 1)):
                path.write_text('<p id="here"><a href="%s">x</a></p>' % target)
                self.assertEqual(dead, len(list(check_reference.check_links(Path(folder)))), target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, required=True)
    arguments, rest = parser.parse_known_args()
    BUILD = arguments.build.resolve()
    unittest.main(argv=[sys.argv[0], *rest])
