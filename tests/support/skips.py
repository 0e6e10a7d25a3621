# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What tests do with what they cannot do here: it is said, counted, and forbidden where it must not be.

MUST_NOT_SKIP is a list of words with commas between: what this machine is known to have, such
as "ucx,torch". A test that skips for a reason that has one of the words fails instead. Every skip
is a line "SKIPPED name: reason", which scripts/list_skips.py finds in the log of ctest; a program
that has skipped anything, and else is well, ends with status 77, and ctest shows it as skipped.
"""

import os

SKIPPED = 77


def must_not(reason):
    """The required word that the reason of a skip has, or None."""
    words = os.environ.get("MUST_NOT_SKIP", "").split(",")
    return next((word for word in words if word and word.lower() in str(reason).lower()), None)


def line(name, reason):
    """What is printed of a skip."""
    return "SKIPPED %s: %s" % (name, " ".join(str(reason).split()))


def forbidden(name, reason):
    """What is printed of one that MUST_NOT_SKIP does not allow."""
    return "FAILED %s: skips (%s), but MUST_NOT_SKIP has \"%s\"" % (name, reason,
                                                                         must_not(reason))


def whole(name, reason):
    """The exit status of a program that skips as a whole."""
    print(forbidden(name, reason) if must_not(reason) else line(name, reason), flush=True)
    return 1 if must_not(reason) else SKIPPED


def status(n_run, n_failed, n_skipped):
    """The exit status of one that has run so many cases, the skipped ones among them."""
    if n_failed or not n_run:
        return 1
    return SKIPPED if n_skipped else 0
