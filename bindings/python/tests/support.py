# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Runs a function of a test file on several ranks, each a process of its own.

    def two(rank, size):
        ...

    class Test(unittest.TestCase):
        def test_two(self):
            self.assertEqual(run_ranks(two, 2), [...])  # what each rank returned, by repr and eval
"""

from __future__ import annotations

import ast
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Callable, Dict, List, Optional

import ferry

HERE = os.path.dirname(os.path.abspath(__file__))
# When a wait has become a hang, on a machine with other things to do: no test says how long
# anything takes.
HANG_SECONDS = 300.0 * float(os.environ.get("FERRY_TEST_PATIENCE", "1"))
# The limits of ranks that no test waits for: a rank that is kept off the cores is neither late nor
# silent. Deaths are known by their connections.
LIMITS = {"FERRY_DEADLINE": "100", "FERRY_JOIN_LIMIT": "100"}

_CHILD = """
import importlib, os, sys
sys.path.insert(0, {here!r})
module = importlib.import_module({module!r})
value = getattr(module, {name!r})(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), *{args!r})
with open(os.environ["FERRY_TEST_RESULT"], "w") as file:
    file.write(repr(value))
# A process that ends with groups of torch whose threads still run is aborted now and then.
distributed = sys.modules.get("torch.distributed")
if distributed and distributed.is_available() and distributed.is_initialized():
    import atexit
    distributed.destroy_process_group()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of torch's own may be there even then
"""


_claims: List[socket.socket] = []  # whose names other tests see, until this process ends


def free_port() -> int:
    """Below those that the kernel gives to connections, and those that tests/multirank takes; and
    claimed, for another test may look for one in the moment before a rank listens."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first_given = int(file.read().split()[0])
    while True:
        port = random.randrange(min(15000, first_given - 1000), min(20000, first_given))
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind("\0ferry-test-port-%d" % port)
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def until(condition: Callable[[], Any]) -> None:
    """Comes back when the condition holds."""
    end = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < end, "what was waited for never came"
        time.sleep(0.001)


def _sleeps(task: str) -> bool:
    with open("/proc/self/task/%s/stat" % task) as file:
        return file.read().rpartition(")")[2].split()[0] == "S"


def fork_beside_sleepers() -> int:
    """os.fork() when no other thread does anything. A child inherits the locks that others hold at that
    moment, for good, and a sanitizer's allocator, unlike libc's, does not see to its own."""
    own = str(threading.get_native_id())
    until(lambda: all(_sleeps(task) for task in os.listdir("/proc/self/task") if task != own))
    return os.fork()


def _mark(name: str) -> str:
    return os.path.join(os.path.dirname(os.environ["FERRY_TEST_RESULT"]), "mark." + name)


def mark(name: str) -> None:
    """Tells the other ranks of a run_ranks() that something has happened."""
    open(_mark(name), "w").close()


def is_marked(name: str) -> bool:
    return os.path.exists(_mark(name))


def await_mark(name: str) -> None:
    """Until a rank has set the mark."""
    until(lambda: is_marked(name))


def lose_in_a_run(service: Any, run: Callable[[], Any], dies: bool, name: str = "") -> None:
    """A run of all ranks in the middle of which one is killed.

    That one stands in its callback before it moves anything, so nobody can have come to the end, and
    dies when all others have begun and have got bytes or asked for some in vain: however long the
    machine keeps any rank off its cores.
    """
    n_calls, own = [0], service.my_pe
    others = [rank for rank in range(service.n_pes) if rank != own]

    def stand(progress: Any) -> None:
        for rank in others:
            await_mark("begun%s.%d" % (name, rank))
        os.kill(os.getpid(), signal.SIGKILL)

    def tell(progress: Any) -> None:
        n_calls[0] += 1
        if progress.bytes_done > 0 or n_calls[0] == 5:
            mark("begun%s.%d" % (name, own))

    service.set_progress(stand if dies else tell)
    try:
        run()
    finally:
        service.set_progress(None)


def meet(rank: int, size: int, name: str = "met") -> None:
    """Until all ranks are here, without a call of ferry: who ends after it ends when the others have
    come back from what was before, and have not only all that they wait for there."""
    mark("%s.%d" % (name, rank))
    for other in range(size):
        await_mark("%s.%d" % (name, other))


def is_in_use(handle: Any) -> bool:
    """Whether another thread is in a call of this service, or of this world of the extension."""
    try:
        if hasattr(handle, "statistics"):
            handle.statistics()
        else:
            ferry._ferry.service(handle, None, 0, 0, 0, 0, 0, 0, True, False, 0, False)
    except ferry.Misuse as error:
        return "in use" in str(error)
    return False


class RanksFailed(AssertionError):
    """Says what each rank that failed wrote."""


def start_ranks(
    function: Callable[..., Any], size: int, args: tuple = (), env: Optional[Dict[str, str]] = None,
    folder: str = "",
) -> List[subprocess.Popen]:
    secret, port = secrets.token_hex(16), str(free_port())
    processes = []
    for rank in range(size):
        variables = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1",
                         MASTER_PORT=port, LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size),
                         FERRY_SECRET=secret, OMP_NUM_THREADS="1",
                         FERRY_TEST_RESULT=os.path.join(folder, "result.%d" % rank),
                         **dict(LIMITS, **(env or {})))
        code = _CHILD.format(here=HERE, module=function.__module__, name=function.__name__, args=args)
        with open(os.path.join(folder, "output.%d" % rank), "wb") as output:
            processes.append(subprocess.Popen([sys.executable, "-X", "faulthandler", "-c", code],
                                              env=variables, stdout=output,
                                              stderr=subprocess.STDOUT))
    return processes


def run_ranks(
    function: Callable[..., Any], size: int, *args: Any, env: Optional[Dict[str, str]] = None,
    timeout: float = HANG_SECONDS, may_fail: tuple = (),
) -> List[Any]:
    """What function(rank, size, *args) of a test file returned on each rank; None for those of
    ``may_fail`` that ended otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        processes = start_ranks(function, size, args, env, folder)
        until = time.monotonic() + timeout
        failed = []
        for rank, process in enumerate(processes):
            try:
                code = process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                code = "still running after %g s" % timeout
            if code != 0 and rank not in may_fail:
                failed.append((rank, code))
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        if failed:
            texts = []
            for rank, code in failed:
                with open(os.path.join(folder, "output.%d" % rank), errors="replace") as file:
                    texts.append("rank %d ended with %s:\n%s" % (rank, code, file.read()[-4000:]))
            raise RanksFailed("\n".join(texts))
        values = []
        for rank in range(size):
            path = os.path.join(folder, "result.%d" % rank)
            if not os.path.exists(path):
                values.append(None)
                continue
            with open(path) as file:
                values.append(ast.literal_eval(file.read()))
        return values
