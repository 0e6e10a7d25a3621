# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The signals of a terminal, as programs usually find them.

A shell starts what runs in the background with SIGINT and SIGQUIT ignored, and nohup with SIGHUP:
tests of what these do would see nothing of them.
"""

import signal


def hear_signals():
    """In this process and in those that it starts."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            usual = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if usual else signal.SIG_DFL)
