# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The library's log as records of Python's logging."""

import contextlib
import io
import logging
import os
import subprocess
import sys
import threading
import unittest

import ferry
from ferry import _ferry
from support import HANG_SECONDS


class Kept(logging.Handler):
    def __init__(self):
        super().__init__(1)
        self.records = []

    def emit(self, record):
        self.records.append(record)


def run_world():
    """Whose service says at INFO which engine carries its bytes."""
    world = _ferry.world_of_threads(1)[0]
    service = ferry.RemoteCopyService(world)
    service.init("TRACE")
    service.finalize()
    world.close()


# Of a program: run() has a service say at INFO which engine carries its bytes.
RUN = (
    "from ferry import _ferry\n"
    "def run():\n"
    "    world = _ferry.world_of_threads(1)[0]\n"
    "    service = ferry.RemoteCopyService(world)\n"
    "    service.init('INFO')\n"
    "    service.finalize()\n"
)


def run_alone(program, *words):
    done = subprocess.run([sys.executable, "-c", program, *words], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=HANG_SECONDS)
    return done.returncode, done.stdout, done.stderr


class Log(unittest.TestCase):
    def setUp(self):
        self.kept = Kept()
        self.logger = logging.getLogger("ferry.tests")
        self.logger.setLevel(1)
        self.logger.propagate = False
        self.logger.addHandler(self.kept)
        self.addCleanup(self.logger.removeHandler, self.kept)
        self.addCleanup(ferry.log_to, None)

    def lines(self):
        """All of them: who ends it has waited for the last."""
        ferry.log_to(None)
        return [record.getMessage() for record in self.kept.records]

    def test_records(self):
        ferry.log_to(self.logger, "info")
        run_world()
        lines = self.lines()
        self.assertTrue(any("carries bytes" in line for line in lines), lines)
        for record in self.kept.records:
            self.assertEqual(record.name, "ferry.tests")
            self.assertNotRegex(record.getMessage(), r"^(trace|debug|info|warn|error): ")
        self.assertIn(logging.INFO, {record.levelno for record in self.kept.records})

    def test_levels(self):
        for level in ("off", logging.CRITICAL, "CRITICAL"):
            ferry.log_to("ferry.tests", level)
            world = _ferry.world_of_threads(1)[0]
            world.close()
            self.assertEqual(self.lines(), [])
        for level, word in ((1, "trace"), (5, "trace"), (6, "debug"), (logging.DEBUG, "debug"),
                            (logging.INFO, "info"), (21, "warn"), (logging.WARNING, "warn"),
                            ("warning", "warn"), (logging.ERROR, "error"), (41, "off")):
            self.assertEqual(ferry._log._word_of(level), word)
        self.assertEqual(logging.getLevelName(5), "TRACE")

    def test_level_holds(self):
        """A refit's service asks for warnings only."""
        for level, is_said in (("info", True), ("warn", False)):
            self.kept.records.clear()
            ferry.log_to(self.logger, level)
            ferry.show_config(io.StringIO())  # a refit is a part of it
            run_world()  # asks for TRACE
            n = sum("carries bytes" in line for line in self.lines())
            self.assertEqual(n, 2 if is_said else 0)

    def test_bad_arguments(self):
        for logger, level in ((3, None), (self.logger, "loud"), (self.logger, 1.5), (None, "loud"),
                              ("ferry.tests", object())):
            with self.assertRaises(ferry.InvalidInput):
                ferry.log_to(logger, level)
        self.assertEqual(self.lines(), [])

    def test_many_lines_and_handlers_that_call(self):
        """A handler that calls the library, and is slow, loses lines only with a count of them."""
        outer = self

        class Slow(Kept):
            def emit(self, record):
                super().emit(record)
                if len(self.records) == 1:
                    run_world()  # whose lines come too
                    outer.first.set()

        self.first = threading.Event()
        slow = Slow()
        self.logger.addHandler(slow)
        self.addCleanup(self.logger.removeHandler, slow)
        ferry.log_to(self.logger, "trace")
        for _ in range(20):
            run_world()
        self.assertTrue(self.first.wait(HANG_SECONDS))
        lines = self.lines()
        self.assertEqual(sum("carries bytes" in line for line in lines), 21, lines)
        self.assertFalse(any("were lost" in line for line in lines))

    def test_handlers_that_raise(self):
        """They lose no lines of other handlers, nor their own later ones."""

        class Raising(Kept):
            def emit(self, record):
                super().emit(record)
                raise ValueError("no room")

        raising = Raising()
        self.logger.addHandler(raising)
        self.addCleanup(self.logger.removeHandler, raising)
        ferry.log_to(self.logger, "trace")
        with contextlib.redirect_stderr(io.StringIO()) as told:
            run_world()
            run_world()
            lines = self.lines()
        self.assertGreater(len(lines), 1)
        self.assertEqual([record.getMessage() for record in raising.records], lines)
        self.assertEqual(told.getvalue().count("ValueError: no room"), len(lines))

    def test_lost_lines_are_counted(self):
        gate, taken = threading.Event(), threading.Event()

        class Stuck(logging.Handler):
            def emit(self, record):
                taken.set()
                gate.wait(HANG_SECONDS)

        stuck = Stuck(1)
        self.logger.addHandler(stuck)
        self.addCleanup(self.logger.removeHandler, stuck)
        self.addCleanup(gate.set)
        enlarge, ferry._log._enlarge = ferry._log._enlarge, lambda pipe: None
        self.addCleanup(setattr, ferry._log, "_enlarge", enlarge)
        ferry.log_to(self.logger, "trace")
        for _ in range(2000):  # far more than a pipe and a read of the thread hold
            run_world()
        self.assertTrue(taken.wait(HANG_SECONDS))
        gate.set()
        run_world()
        lines = self.lines()
        lost = [int(line.split()[0]) for line in lines if "lines of ferry's log were lost" in line]
        self.assertGreater(sum(lost), 0)

    def test_standard_error_again(self):
        code, out, error = run_alone(
            "import ferry, logging, sys\n"
            "logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(name)s %(message)s')\n"
            + RUN +
            "ferry.log_to(); run(); ferry.log_to(None, 'info'); run()\n")
        self.assertEqual(code, 0, error)
        self.assertRegex(out, r"(?m)^ferry .*carries bytes")
        self.assertRegex(error, r"(?m)^ferry: .*info: .*carries bytes")
        self.assertEqual(error.count("carries bytes"), out.count("carries bytes"))

    def test_last_lines_at_exit(self):
        code, out, error = run_alone(
            "import ferry, logging, sys\n"
            "logging.basicConfig(level=logging.INFO, stream=sys.stdout)\n"
            "from ferry import _ferry\n"
            "ferry.log_to()\n"
            "world = _ferry.world_of_threads(1)[0]\n"
            "service = ferry.RemoteCopyService(world)\n"
            "service.init('INFO')\n")
        self.assertEqual((code, error), (0, ""))
        self.assertIn("carries bytes", out)

    def test_a_handler_that_hangs(self):
        """Neither log_to nor the end of the process waits for it without end."""
        code, out, error = run_alone(
            "import ferry, ferry._log, logging, threading\n"
            "ferry._log._PATIENCE_S = 0.2\n"
            "class Hangs(logging.Handler):\n"
            "    def createLock(self):\n"
            "        self.lock = None  # for which logging itself would wait at the end\n"
            "    def emit(self, record):\n"
            "        print('hangs', flush=True)\n"
            "        threading.Event().wait()\n"
            "logger = logging.getLogger('ferry')\n"
            "logger.setLevel(logging.INFO)\n"
            "logger.addHandler(Hangs())\n"
            + RUN +
            "for _ in range(2):\n"
            "    ferry.log_to('ferry')\n"
            "    run()\n")
        self.assertEqual(code, 0, error)
        self.assertEqual(out.count("hangs"), 2)

    def test_children(self):
        """A child of fork writes to standard error, and may begin anew."""
        code, out, error = run_alone(
            "import ferry, logging, os, sys\n"
            "logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(process)d %(message)s')\n"
            + RUN +
            "ferry.log_to(); run()\n"
            "sys.path.insert(0, %r)\n"
            "from support import fork_beside_sleepers\n"
            "child = fork_beside_sleepers()\n" % os.path.dirname(os.path.abspath(__file__)) +
            "if child == 0:\n"
            "    run()\n"
            "    ferry.log_to(); run(); ferry.log_to(None)\n"
            "    sys.stdout.flush()\n"
            "    os._exit(0)\n"
            "print('child', child)\n"
            "assert os.waitpid(child, 0)[1] == 0\n"
            "ferry.log_to(None)\n")
        self.assertEqual(code, 0, error)
        child = int(out.split("child ")[1].split()[0])
        senders = [int(line.split()[0]) for line in out.splitlines() if "carries bytes" in line]
        self.assertEqual(senders.count(child), len(senders) - senders.count(child))
        self.assertEqual(error.count("carries bytes"), senders.count(child))

    def test_descriptors_are_given_back(self):
        ferry.log_to(self.logger)
        ferry.log_to(None)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            ferry.log_to(self.logger)
        ferry.log_to(None)
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)


if __name__ == "__main__":
    unittest.main()
