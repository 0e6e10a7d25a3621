#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Figures are kept with what they were measured on, and those of a busy machine are marked."""

import json
import pathlib
import re
import subprocess
import sys
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import honest  # noqa: E402


class Machine:
    """Four cores, of which others use a share that falls with time. Time passes in sleeps alone."""

    CORES, TICKS_PER_S = 4, 100

    def __init__(self, share, falls_per_s=0.0):
        self.now, self.share, self.falls = 0.0, share, falls_per_s
        self.busy = self.total = self.own = 1000.0

    def sleep(self, seconds, own_share=0.0):
        self.now += seconds
        ticks = seconds * self.CORES * self.TICKS_PER_S
        self.total += ticks
        self.own += own_share * ticks
        self.busy += min(1.0, self.share + own_share) * ticks
        self.share = max(0.0, self.share - self.falls * seconds)

    def measure(self, patience=60, work=lambda machine: machine.sleep(100, own_share=0.5)):
        with mock.patch.object(honest.time, "sleep", self.sleep), \
                mock.patch.object(honest.time, "monotonic", lambda: self.now), \
                mock.patch.object(honest, "ticks", lambda: (self.busy, self.total)), \
                mock.patch.object(honest, "own_ticks", lambda: self.own), \
                mock.patch("builtins.print"):
            record = honest.begin(5, patience)
            work(self)
            return honest.end(record)


class Record(unittest.TestCase):
    def test_everything_is_kept(self):
        words = ["bench/some.py", "--json", "/somewhere/some.json", "--rounds", "5"]
        with mock.patch.object(honest.sys, "argv", words):
            record = Machine(0.02).measure()
        for key in ("commit", "date", "cpu", "cores", "load_before", "load_after", "busy_before",
                    "busy_during", "quiet"):
            self.assertIn(key, record)
        self.assertTrue(record["cpu"])
        self.assertEqual(record["rounds"], 5)
        self.assertEqual(record["command"], "python3 bench/some.py --rounds 5")

    def test_what_the_benchmark_uses_is_not_others(self):
        record = Machine(0.02).measure()
        self.assertTrue(record["quiet"])
        self.assertAlmostEqual(record["busy_before"], 0.02)
        self.assertAlmostEqual(record["busy_during"], 0.02)

    def test_others_that_come_later_are_seen(self):
        def disturbed(machine):
            machine.share = 0.4
            machine.sleep(100, own_share=0.5)

        record = Machine(0.02).measure(work=disturbed)
        self.assertFalse(record["quiet"])
        self.assertAlmostEqual(record["busy_during"], 0.4)

    def test_a_busy_machine_is_waited_for(self):
        machine = Machine(0.6, 0.02)
        record = machine.measure()
        self.assertTrue(record["quiet"])
        self.assertGreaterEqual(machine.now, 100 + 25)
        self.assertLessEqual(record["busy_before"], honest.QUIET)

    def test_no_longer_than_there_is_patience(self):
        machine = Machine(0.6)
        record = machine.measure()
        self.assertFalse(record["quiet"])
        self.assertLessEqual(machine.now, 100 + 62)

    def test_this_machine_counts(self):
        before, own = honest.ticks(), honest.own_ticks()
        subprocess.run([sys.executable, "-c", "sum(range(10 ** 7))"], check=True)
        after = honest.ticks()
        self.assertGreaterEqual(after[0], before[0])
        self.assertGreater(after[1], before[1])
        self.assertGreaterEqual(after[1] - before[1], after[0] - before[0])
        self.assertGreater(honest.own_ticks(), own)


class Kept(unittest.TestCase):
    def test_every_script_that_writes_figures_says_what_they_are_of(self):
        writers = [path for path in (ROOT / "bench").glob("*.py")
                   if '"--json"' in path.read_text() and path.name != "honest.py"]
        self.assertGreaterEqual(len(writers), 10)
        for path in writers:
            for call in ("honest.begin(", "honest.end(", "honest.add_arguments("):
                self.assertIn(call, path.read_text(), path.name)

    def test_every_figure_says_how_it_was_taken(self):
        figures = (ROOT / "docs" / "figures.md").read_text()
        rows = [[cell.strip() for cell in line.strip("|").split("|")]
                for line in figures.splitlines() if line.startswith("| ")]
        rows = [row for row in rows if row[0] != "what"]
        self.assertGreaterEqual(len(rows), 20)
        for row in rows:
            self.assertEqual(len(row), 5, row)
            self.assertTrue(row[1] and row[3] and row[4], row)

    def test_what_is_quoted_is_kept(self):
        text = (ROOT / "docs" / "figures.md").read_text()
        for name in sorted(set(re.findall(r"`([\w-]+\.json)`", text))):
            record = json.loads((ROOT / "bench" / "results" / name).read_text())
            for key in ("commit", "date", "cpu", "rounds", "command", "busy_during"):
                self.assertIn(key, record, name)
            self.assertTrue(record["quiet"], name)
            self.assertGreaterEqual(record["rounds"], 5, name)


class Face(unittest.TestCase):
    """What people see first stays short enough to be read."""

    def test_the_readme_is_short(self):
        lines = (ROOT / "README.md").read_text().splitlines()
        self.assertLess(len(lines), 150)
        self.assertLessEqual(max(len(line) for line in lines if line.startswith("|")), 160)
        self.assertIn("not yet", "\n".join(lines))

    def test_old_figures_are_marked(self):
        """Where a row of the README has a star, the table of old figures has its number."""
        old = (ROOT / "docs" / "figures.md").read_text().split("\nEarlier,")[1]
        rows = [line.split("|") for line in (ROOT / "README.md").read_text().splitlines()
                if line.startswith("|") and "(*)" in line]
        self.assertTrue(rows)
        for row in rows:
            for number in re.findall(r"[\d.]+", row[-2]):
                self.assertIn(number, old, row)


if __name__ == "__main__":
    unittest.main()
