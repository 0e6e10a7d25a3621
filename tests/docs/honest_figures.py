#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Figures are kept with what they were measured on, and those of a busy machine are marked."""

import json
import math
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import honest  # noqa: E402
import refit_vs_peers  # noqa: E402

RESULTS = sorted((ROOT / "bench" / "results").glob("*.json"))


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

    def test_a_program_in_c_gets_it_from_its_runner(self):
        with tempfile.TemporaryDirectory() as folder:
            build = pathlib.Path(folder)
            program = build / "bench" / "bench_plan"
            program.parent.mkdir()
            program.write_text("#!/bin/sh\necho \"$@\" > " + str(build / "words") +
                               "\necho '[{\"case\": \"one\", \"median_s\": 0.5}]' > \"$2\"\n")
            program.chmod(0o755)
            done = subprocess.run(
                [sys.executable, ROOT / "bench" / "run.py", "plan", "--build", build, "--rounds",
                 "7", "--patience", "0", "--json", build / "out.json", "--", "--spec", "some"],
                capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            record = json.loads((build / "out.json").read_text())
            self.assertEqual(record["cases"], [{"case": "one", "median_s": 0.5}])
            self.assertEqual(record["rounds"], 7)
            for key in (*honest.KEPT, "busy_before", "busy_during", "load_after"):
                self.assertIn(key, record)
            self.assertNotIn(folder, record["command"])
            self.assertTrue((build / "words").read_text().endswith(" --runs 7 --spec some\n"))

    def test_every_result_says_how_it_was_taken(self):
        for path in RESULTS:
            record = json.loads(path.read_text())
            for key in honest.KEPT:
                self.assertIn(key, record, path.name)
            for key in ("date", "commit", "rounds", "command"):
                self.assertTrue(record[key], f"{path.name}: {key}")
            self.assertRegex(record["commit"], r"^[0-9a-f]{40}\+?$", path.name)
            self.assertNotRegex(record["command"], r"(^|[ =])/", path.name)
            if "told_later" in record:
                self.assertFalse(record["quiet"], path.name)
            else:
                self.assertIn("busy_during", record, path.name)
                busiest = max(record.get("busy_before", 0), record["busy_during"])
                self.assertEqual(record["quiet"], busiest <= honest.QUIET, path.name)

    def test_a_run_that_is_cut_short_leaves_the_cases_that_it_has(self):
        def part(*_):
            yield {"case": "first"}
            raise KeyboardInterrupt

        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "out.json"
            words = ["refit_vs_peers.py", "--build", folder, "--only", "matrix", "--json",
                     str(path)]
            with mock.patch.object(refit_vs_peers, "PARTS", {"matrix": part}), \
                    mock.patch.object(refit_vs_peers, "Programs"), \
                    mock.patch.object(refit_vs_peers, "version_of", str), \
                    mock.patch.object(honest, "busy_share", lambda: 0.0), \
                    mock.patch.object(sys, "argv", words), mock.patch("builtins.print"), \
                    self.assertRaises(KeyboardInterrupt):
                refit_vs_peers.main()
            record = json.loads(path.read_text())
            self.assertEqual(record["matrix"], [{"case": "first"}])
            self.assertIn("busy_during", record)

    def test_results_are_short(self):
        for path in RESULTS:
            for line in path.read_text().splitlines():
                self.assertNotRegex(line, r"^ *-?[\d.e+-]+,?$", path.name)

    def test_the_short_form_changes_no_number(self):
        deep = {"a": [1.5, -2e-9, 7], "b": {"c": [[0.1, 2], []], "d": {"e": None, "f": True}},
                "g": [{"h": "x" * 90, "i": [1] * 40}, {}]}
        self.assertEqual(json.loads(honest.text(deep)), deep)
        by_number = {2: [[0.1, 0.2]] * 9, 64: {"x" * 90: 1}}
        self.assertEqual(json.loads(honest.text(by_number)),
                         {str(number): value for number, value in by_number.items()})
        self.assertIn(' "a": [1.5, -2e-09, 7],\n', honest.text(deep))

    def test_no_folder_of_a_machine_is_kept(self):
        words = [str(ROOT / "bench" / "some.py"), "--disk", "/mnt/fast", "--rounds", "5"]
        with mock.patch.object(honest.sys, "argv", words):
            self.assertEqual(honest.command_line(),
                             "python3 bench/some.py --disk ELSEWHERE/fast --rounds 5")


class Page(unittest.TestCase):
    """docs/figures.md, its bars and the README's table are what the results make."""

    def test_nothing_drifts(self):
        done = subprocess.run([sys.executable, ROOT / "scripts" / "figures.py", "--check"],
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_every_result_is_shown_with_how_it_was_taken(self):
        page = (ROOT / "docs" / "figures.md").read_text()
        for path in RESULTS:
            record = json.loads(path.read_text())
            lines = shown_section(page, path.stem).splitlines()
            self.assertEqual(lines.count(f"- command: `{record['command']}`"), 1, path.name)
            taken = [line for line in lines if line.startswith("- taken: ")]
            self.assertEqual(len(taken), 1, path.name)
            self.assertTrue(taken[0].endswith(f", rounds: {record['rounds']}"), taken)
            self.assertIn(f"commit `{record['commit'][:9]}", taken[0])
            doubts = lines[2]  # below the title, before everything else
            self.assertEqual("usy machine" in doubts or "not known to have been quiet" in doubts,
                             not record["quiet"], doubts)
            self.assertEqual("nly %d round" % record["rounds"] in doubts, record["rounds"] < 5,
                             doubts)

    def test_no_line_is_too_wide_to_read(self):
        """Commands stand on lines of their own; what a table says fits beside the rest."""
        for line in (ROOT / "docs" / "figures.md").read_text().splitlines():
            if line.startswith("|"):
                shown = re.sub(r"\]\(#[^)]*\)", "]", line)
                self.assertLessEqual(len(shown), 200, line)
                self.assertLessEqual(line.count("|"), 8, line)

    def test_losses_and_wide_spreads_are_marked(self):
        """Of the collectives, counted here from the rounds: as many marks as the page has."""
        page = (ROOT / "docs" / "figures.md").read_text()
        for name in ("mixed", "mixed-two", "mixed-four", "mixed-eight"):
            record = json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())
            sizes = [size for case in record["cases"] for size in case["sizes"]]
            behind = sum(statistics.median(size[peer]["ratios"]) < 0.995 for size in sizes
                         for peer in ("mpi", "installed"))
            wide = sum(size[peer]["spread"] > 0.25 for size in sizes
                       for peer in ("mpi", "installed", "autotune_over_best"))
            wide += sum(middle_half(size["ferry_us"]) > 0.25 for size in sizes)
            section = shown_section(page, name)
            self.assertEqual(section.count("slower**"), behind, name)
            self.assertEqual(section.count("**spread"), wide, name)
            self.assertTrue(behind or wide, name)

    def test_bars_are_as_long_as_their_figures(self):
        for name in ("refit", "checkpoints", "collectives"):
            lengths = bars(name)
            self.assertGreater(len(lengths), 10, name)
            scale = max(width for width, _ in lengths) / max(value for _, value in lengths)
            for width, value in lengths:
                self.assertAlmostEqual(width, scale * value, delta=2, msg=f"{name}: {value}")

    def test_a_step_of_a_scale_of_tens_is_ten_times_as_much(self):
        lengths = sorted(bars("plans"))
        self.assertGreater(len(lengths), 10)
        (least, low), (most, high) = lengths[0], lengths[-1]
        self.assertGreater(high, 1000 * low)
        scale = (most - least) / math.log10(high / low)
        for width, value in lengths:
            self.assertAlmostEqual(width - least, scale * math.log10(value / low), delta=2,
                                   msg=str(value))

    def test_a_figure_that_is_changed_by_hand_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "tree"
            for part in ("bench", "scripts", "docs/pictures"):
                shutil.copytree(ROOT / part, copy / part)
            for part in ("docs/figures.md", "docs/scheduling.md", "README.md"):
                shutil.copy(ROOT / part, copy / part)
            for part, number in (("docs/figures.md", r"(\d) GB/s"), ("README.md", r"(\d) GB/s \|"),
                                 ("docs/scheduling.md", r"first fit (\d)"),
                                 ("docs/pictures/figures-refit.svg", r"(\d)</text>")):
                text = (copy / part).read_text()
                changed = re.sub(number, lambda m: m[0].replace(m[1], str(9 - int(m[1])), 1), text,
                                 count=1)
                self.assertNotEqual(text, changed, part)
                (copy / part).write_text(changed)
                done = subprocess.run([sys.executable, copy / "scripts" / "figures.py", "--check"],
                                      capture_output=True, text=True, check=False)
                self.assertEqual(done.stdout, f"{part} is not what the results make\n")
                self.assertEqual(done.returncode, 1)
                (copy / part).write_text(text)

    def test_a_result_that_does_not_say_how_it_was_taken_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "tree"
            for part in ("bench", "scripts"):
                shutil.copytree(ROOT / part, copy / part)
            path = copy / "bench" / "results" / "plan.json"
            record = json.loads(path.read_text())
            del record["commit"]
            path.write_text(json.dumps(record))
            done = subprocess.run([sys.executable, copy / "scripts" / "figures.py", "--check"],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("plan.json does not say its commit", done.stderr)


def shown_section(page, name):
    """The section of the page that a result is shown in: the one that links to its file."""
    found = [section for section in page.split("\n## ")[1:]
             if f"[`{name}.json`](../bench/results/{name}.json)" in section]
    assert len(found) == 1, f"{name}.json is shown in {len(found)} sections"
    return found[0]


def bars(name):
    """The width of each bar of a picture and the figure that stands beside it, in seconds where it
    has a unit of time."""
    text = (ROOT / "docs" / "pictures" / f"figures-{name}.svg").read_text()
    found = re.findall(r'<rect class="[abce]" [^>]*y="([\d.]+)" width="([\d.]+)" [^>]*/>\n'
                       r'<text [^>]*y="([\d.]+)" class="small">(?:\d+ \w+: )?([\d.]+)( [mu]?s)?',
                       text)
    assert len(found) == text.count('height="15"'), f"{name}: a bar without its figure"
    units = {"": 1, " s": 1, " ms": 1e-3, " us": 1e-6}
    assert all(float(base) - float(top) == 12 for top, _, base, *_ in found)
    return [(float(width), float(value) * units[unit]) for _, width, _, value, unit in found]


def middle_half(values):
    ordered = sorted(values)
    n = len(ordered)
    return (ordered[n * 3 // 4] - ordered[n // 4]) / statistics.median(values)


class Face(unittest.TestCase):
    """What people see first stays short enough to be read."""

    def test_the_readme_is_short(self):
        lines = (ROOT / "README.md").read_text().splitlines()
        self.assertLess(len(lines), 150)
        self.assertLessEqual(max(len(line) for line in lines if line.startswith("|")), 160)
        self.assertIn("not yet", "\n".join(lines))

    def test_the_figures_are_those_of_the_results(self):
        """Each row's ratio, counted here from the rounds; a star where the rounds or the machine
        leave doubt."""
        found = [[cell.strip() for cell in line.strip("|").split("|")]
                 for line in (ROOT / "README.md").read_text().split("\n## Figures\n")[1]
                 .split("\n## ")[0].splitlines() if line.startswith("| ")][1:]
        self.assertEqual(len(found), 8)
        for row, (names, ratios) in zip(found, expected_rows()):
            self.assertEqual(len(row), 4, row)
            written = [float(number.replace(",", "")) for number in
                       re.findall(r"[\d.,]+", row[3])]
            self.assertEqual(len(written), len(ratios), row)
            for number, rounds in zip(written, ratios):
                middle = statistics.median(rounds)
                self.assertAlmostEqual(number, middle, delta=max(0.006, 0.006 * middle), msg=row)
            records = [result(name) for name in names]
            doubtful = (any(not r["quiet"] or r["rounds"] < 5 for r in records)
                        or any(len(r) > 1 and middle_half(r) > 0.25 for r in ratios))
            self.assertEqual("(*)" in row[0], doubtful, row)
            self.assertEqual("slower" in row[0], all(statistics.median(r) < 1 for r in ratios), row)

    def test_losses_are_shown(self):
        text = (ROOT / "README.md").read_text().split("\n## Figures\n")[1].split("\n## ")[0]
        self.assertIn("**slower:**", text)


def result(name):
    return json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())


def expected_rows():
    """The files and the rounds' ratios of each row of the README, in its order."""
    def collective(name, op, size):
        return next(s["mpi"]["ratios"] for case in result(name)["cases"] if case["op"] == op
                    for s in case["sizes"] if s["bytes"] == size)
    rates = next(row["GBps"] for row in result("python_refit")["table"] if row["ranks"] == 4)
    for kind in ("Python, malloc", "Python, ferry"):
        yield ["python_refit"], [[a / b for a, b in zip(rates[kind], rates["gloo"])]]
    planner = result("python_planner")
    yield ["python_planner"], [[statistics.median(planner["megatron"]["seconds"])
                                / statistics.median(planner["call"]["seconds"])]]
    disks = result("reshard")
    yield ["reshard"], [disks["disk"]["caches"]["warm"]["ratios"]["tp4 / script"]]
    for size in (65536, 4194304):
        yield ["mixed"], [collective("mixed", "all-reduce-all-gather", size)]
    yield ["mixed-eight"], [collective("mixed-eight", "all-gather", 524288)]
    yield ["reshard"], [disks["tmpfs"]["caches"]["warm"]["ratios"]["tp8pp2 / cp"]]


if __name__ == "__main__":
    unittest.main()
