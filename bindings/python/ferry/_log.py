# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The library's log as records of Python's logging."""

from __future__ import annotations

import atexit
import logging
import os
import struct
import threading
import traceback
from typing import Optional, Union

from . import _ferry, _publish
from ._errors import InvalidInput

# As the library counts them: trace, debug, info, warn, error.
_LEVELS = (5, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
_WORDS = ("trace", "debug", "info", "warn", "error", "off")
_HEAD = struct.Struct("=QII")  # line_head of log.c
_PIPE_BYTES = 1 << 20
_PATIENCE_S = 10.0  # with handlers that hang: nobody waits longer for the last lines

logging.addLevelName(_LEVELS[0], "TRACE")
_reader: Optional["_Reader"] = None


class _Reader:
    """A pipe that the library writes to, and the thread that reads it."""

    def __init__(self, logger: logging.Logger, word: str) -> None:
        self.logger = logger
        self.pid = os.getpid()
        self.word = word
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.write_end, False)
        _enlarge(self.write_end)
        self.thread = threading.Thread(target=self._read, name="ferry-log", daemon=True)
        self.thread.start()
        _ferry.log_open(self.write_end, word)

    def _read(self) -> None:
        held = b""
        more = os.read(self.read_end, 1 << 16)
        while more:
            held = self._take(held + more)
            more = os.read(self.read_end, 1 << 16)
        os.close(self.read_end)

    def _take(self, held: bytes) -> bytes:
        """Logs the whole records, and returns the rest."""
        at = 0
        while len(held) - at >= _HEAD.size:
            n_lost, level, n_bytes = _HEAD.unpack_from(held, at)
            end = at + _HEAD.size + n_bytes
            if len(held) < end:
                break
            self._tell(n_lost)
            line = held[at + _HEAD.size : end].decode("utf-8", "replace")
            self._log(_LEVELS[level], line.replace(_WORDS[level] + ": ", "", 1))
            at = end
        return held[at:]

    def _tell(self, n_lost: int) -> None:
        if n_lost > 0:
            self._log(
                logging.WARNING,
                f"{n_lost} lines of ferry's log were lost: they came faster than they were taken",
            )

    def _log(self, level: int, line: str) -> None:
        # Not by log(): the line was written elsewhere, not by this thread in this file.
        if self.logger.isEnabledFor(level):
            name = self.logger.name
            record = self.logger.makeRecord(name, level, "libferry", 0, line, (), None, "ferry")
            try:
                self.logger.handle(record)
            except Exception:  # of a handler: the next lines are not lost for it
                if logging.raiseExceptions:
                    traceback.print_exc()

    def close(self) -> None:
        if self.pid != os.getpid():  # a child of fork: the thread and its lines are the parent's
            os.close(self.write_end)
            os.close(self.read_end)
            return
        n_lost = _ferry.log_close(self.word)
        os.close(self.write_end)
        if self.thread is not threading.current_thread():
            self.thread.join(_PATIENCE_S)
        self._tell(n_lost)


def _enlarge(pipe: int) -> None:
    try:
        import fcntl

        fcntl.fcntl(pipe, 1031, _PIPE_BYTES)  # F_SETPIPE_SZ, which Python names from 3.10 on
    except OSError:
        pass  # as long as it is


def _word_of(level: Union[str, int]) -> str:
    """The library's word for a level of either: the least severe that is as severe."""
    if isinstance(level, str):
        word = {"warning": "warn", "critical": "off"}.get(level.lower(), level.lower())
        if word not in _WORDS:
            raise InvalidInput(f'"{level}" is not a log level; use {", ".join(_WORDS[:-1])} or off')
        return word
    if not isinstance(level, int):
        raise InvalidInput(f"{level!r} is not a log level; use a word, or a number of logging")
    return next((word for word, number in zip(_WORDS, _LEVELS) if level <= number), "off")


def level_of(wanted: str) -> str:
    """What a service is to begin with that wants this level."""
    return wanted if _reader is None or _reader.pid != os.getpid() else _reader.word


def log_to(
    logger: Union[None, str, logging.Logger] = "ferry", level: Union[None, str, int] = None
) -> None:
    """Sends the library's log to a logger of Python's ``logging``; None: to standard error again.

    ``level`` is the least severe that the library writes: a word, such as "debug", or a number of
    ``logging``; by default it is the logger's own level now. It holds until the next call, whatever
    services ask for. ``trace`` has the number 5. Records come from a thread of their own, soon after
    the line was written and in its order; the last ones when the process ends or ``log_to`` is called
    again, which wait for handlers for ten seconds at most. What a handler raises is
    printed, as ``logging`` does it. Where lines come faster than handlers take them, some are lost, and a warning says how many.

    >>> import ferry, logging
    >>> ferry.log_to("ferry", "info")
    >>> ferry.log_to(None)
    """
    global _reader
    if isinstance(logger, str):
        logger = logging.getLogger(logger)
    if logger is not None and not isinstance(logger, logging.Logger):
        raise InvalidInput(
            f"a {type(logger).__name__} is no logger: give one of logging, its name, or None"
        )
    if level is None:
        level = "warn" if logger is None else logger.getEffectiveLevel()
    word = _word_of(level)
    if _reader is not None:
        before, _reader = _reader, None
        before.close()
    if logger is not None:
        _reader = _Reader(logger, word)
    else:
        _ferry.log_close(word)


def _end() -> None:
    global _reader
    if _reader is not None:
        before, _reader = _reader, None
        before.close()


atexit.register(_end)
_publish("_log", globals())
