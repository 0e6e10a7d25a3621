#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Figures are kept with what they were measured on, and those of a busy machine are marked."""

import pathlib
import sys
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import honest  # noqa: E402


class Clock:
    """Time that passes in sleeps alone, and a load that falls with it."""

    def __init__(self, load, falls_per_s):
        self.now, self.load, self.falls = 0.0, load, falls_per_s

    def sleep(self, seconds):
        self.now += seconds
        self.load = max(0.0, self.load - self.falls * seconds)


def begin(clock, patience):
    with mock.patch.object(honest.time, "sleep", clock.sleep), \
            mock.patch.object(honest.time, "monotonic", lambda: clock.now), \
            mock.patch.object(honest.os, "getloadavg", lambda: (clock.load, 0, 0)), \
            mock.patch("builtins.print"):
        return honest.end(honest.begin(5, patience))


class Record(unittest.TestCase):
    def test_everything_is_kept(self):
        record = begin(Clock(0.1, 0), 60)
        self.assertEqual(record["rounds"], 5)
        for key in ("commit", "date", "cpu", "cores", "command", "load_before", "load_after",
                    "quiet"):
            self.assertIn(key, record)
        self.assertTrue(record["cpu"] and record["command"].startswith("python3 "))
        self.assertTrue(record["quiet"])

    def test_a_busy_machine_is_waited_for(self):
        clock = Clock(3.0, 0.1)
        record = begin(clock, 60)
        self.assertTrue(record["quiet"])
        self.assertGreaterEqual(clock.now, 25)
        self.assertLessEqual(record["load_before"][0], honest.QUIET)

    def test_no_longer_than_there_is_patience(self):
        clock = Clock(3.0, 0)
        record = begin(clock, 60)
        self.assertFalse(record["quiet"])
        self.assertLessEqual(clock.now, 62)


if __name__ == "__main__":
    unittest.main()
