# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The exceptions of ferry: one class for each status of the C library that people handle."""

from __future__ import annotations

import errno
import os
import re
from operator import index
from typing import Any, Optional, Tuple

from . import _publish


class Error(RuntimeError):
    """Base class of ferry's exceptions. Its text is one sentence that names the object, the numbers
    and the remedy.

    ``status`` is the library's name of the failure. ``tensor``, ``ranks`` and ``slice`` are what
    the sentence is about: a name, a tuple of ranks in the order of their mention, and the text of a
    box such as ``"0:4, 8:16"``; where the sentence is about none, they are ``None`` and ``()``.

    >>> import ferry
    >>> try:
    ...     ferry.Spec({})
    ... except ferry.Error as error:
    ...     error.status
    'ERR_INVALID_INPUT'
    """

    status: str = "ERR_UNKNOWN"
    tensor: Optional[str]
    ranks: Tuple[int, ...]
    slice: Optional[str]

    def __init__(
        self,
        message: str = "",
        *,
        tensor: Optional[str] = None,
        ranks: Optional[Tuple[int, ...]] = None,
        slice: Optional[str] = None,
    ) -> None:
        super().__init__(message)
        self.tensor = _tensor_of(message) if tensor is None else tensor
        self.ranks = _ranks_of(message) if ranks is None else tuple(ranks)
        self.slice = _slice_of(message) if slice is None else slice


class Misuse(Error):
    """A mistake in the calling program: a call out of order, or on a closed object."""

    status = "ERR_MISUSE"


class InvalidInput(Error, ValueError):
    """The input is malformed or contradicts itself."""

    status = "ERR_INVALID_INPUT"


class InvalidPlan(Error, ValueError):
    """No exact plan exists for these layouts."""

    status = "ERR_INVALID_PLAN"


class NoMemory(Error, MemoryError):
    """Memory could not be allocated."""

    status = "ERR_NO_MEMORY"


class LimitExceeded(Error, OverflowError):
    """A number exceeds a limit of this version."""

    status = "ERR_LIMIT"


class FileError(Error, OSError):
    """A file could not be read or written: ``filename``, and ``errno`` if the system gives a
    reason.

    If the file does not exist, the exception is a ``FileNotFoundError`` too.
    """

    status = "ERR_IO"

    def __init__(self, message: str = "", **about: Any) -> None:
        super().__init__(message, **about)
        self.errno, self.filename, self.strerror = _reason_of(message)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class _FileMissing(FileError, FileNotFoundError):
    def __reduce__(self) -> Tuple[Any, ...]:  # its name is the other's
        return _file_missing, self.args, self.__dict__


def _file_missing(message: str) -> FileError:
    return _FileMissing(message)


_FileMissing.__name__ = _FileMissing.__qualname__ = "FileError"


class DigestMismatch(Error):
    """A digest does not match: ranks differ, or a file was changed."""

    status = "ERR_DIGEST"


class Unsupported(Error, NotImplementedError):
    """This build or machine cannot do that."""

    status = "ERR_UNSUPPORTED"


class ExchangeFailed(Error):
    """The caller's exchange of messages failed; its own exception is the ``__cause__``."""

    status = "ERR_EXCHANGE"


class ProofFailed(Error):
    """The plan does not do what the spec asks."""

    status = "ERR_PROOF"


class Stopped(Error):
    """A callback asked to stop."""

    status = "ERR_STOPPED"


class PeerLost(Error, ConnectionError):
    """A rank of the world was lost; the survivors may call ``World.shrink`` and continue."""

    status = "ERR_PEER_LOST"


class Timeout(Error, TimeoutError):
    """A rank showed no progress before the deadline."""

    status = "ERR_TIMEOUT"


class Aborted(Error):
    """A rank ended the world, or cancelled the run."""

    status = "ERR_ABORTED"


class Denied(Error, PermissionError):
    """The other process did not prove that it knows the secret (``FERRY_SECRET``)."""

    status = "ERR_DENIED"


class Different(Error):
    """Two things that should be equal differ."""

    status = "ERR_DIFFERENT"


_CLASSES = (
    Misuse, InvalidInput, InvalidPlan, NoMemory, LimitExceeded, FileError, DigestMismatch,
    Unsupported, ExchangeFailed, ProofFailed, Stopped, PeerLost, Timeout, Aborted, Denied, Different,
)  # fmt: skip
_BY_STATUS = {cls.status: cls for cls in _CLASSES}

_publish("_errors", globals())
_FileMissing.__module__ = "ferry"

_TENSOR = re.compile(
    r'(?:tensor|parameter|param|destination|source) "([^"]+)"|^"([^"]+)"(?::| differs)'
)
_RANKS = re.compile(r"\b[Rr]anks?(?: held:)? (\d+(?:(?:, | and )\d+)*)")
_SLICE = re.compile(r"\[([^\[\]()]*\d+:\d+[^\[\]()]*)\]")


def _tensor_of(message: str) -> Optional[str]:
    found = _TENSOR.search(message)
    return None if found is None else found.group(1) or found.group(2)


def _ranks_of(message: str) -> Tuple[int, ...]:
    ranks = []
    for listed in _RANKS.findall(message):
        for number in re.findall(r"\d+", listed):
            if int(number) not in ranks:
                ranks.append(int(number))
    return tuple(ranks)


def _slice_of(message: str) -> Optional[str]:
    found = _SLICE.search(message)
    return None if found is None else found.group(1)


def _reason_of(message: str) -> Tuple[Optional[int], Optional[str], Optional[str]]:
    """errno, path and the system's words of a sentence "PATH: cannot be ...: WORDS"."""
    words = message.rpartition(": ")[2]
    number = next((one for one in errno.errorcode if os.strerror(one) == words), None)
    found = re.match(r"(.+?): ", message)
    return number, None if found is None else found.group(1), words if number else None


# The library's sentences name functions and options of C. Most functions end in the word that is
# Python's too; what is quoted, or a part of a path, is the caller's.
_C_NAME = re.compile(
    r"""(?<![\w/."'-])ferry_(?:reference_schedule_build|spec_(?:load|exchange)|transport_open|region_[a-z]+|tensors_add_pair
    |(?:service|map|world|mixed_comm|request|ledger|checkpoint|reshard|plan)_[a-z_]+
    )(?![\w/"'-]|\.\w)(?:\(\))?""",
    re.VERBOSE,
)
_NAMES = {
    "ferry_reference_schedule_build": "build_schedule()",
    "ferry_map_apply": "Map.apply()",
    "ferry_mixed_comm_create": "the making of a MixedCommHandler",
    "ferry_region_alloc": "the sharing of memory",
    "ferry_region_free": "the freeing of shared memory",
    "ferry_spec_exchange": "Spec.exchange()",
    "ferry_spec_load": "ferry.Spec(path=...)",
    "ferry_tensors_add_pair": "given as (front, back)",
    "ferry_transport_open": "the opening of a transport",
    "ferry_world_all_gather_v": "all_gather()",
}
_C_NAME_HEAD = re.compile(r"ferry_(?:mixed_comm|[a-z]+)_(?:get_)?")
_C_WORDS = (
    ("pass options.transport", "give transport=, a RemoteCopyService"),
    ("deadline_seconds is ", "deadline is "),
    ("entry_seconds is ", "entry_limit is "),
    ("join_seconds is ", "join_limit is "),
)


def _python_name(found: "re.Match[str]") -> str:
    name = found.group().rstrip("()")
    return _NAMES.get(name) or _C_NAME_HEAD.sub("", name) + "()"


def _in_python(sentence: str) -> str:
    for of_c, word in _C_WORDS:
        sentence = sentence.replace(of_c, word)
    return _C_NAME.sub(_python_name, sentence)


def of_file(path: Any, error: OSError, what: str = "read") -> FileError:
    """What the system says of a file, as the library says it."""
    sentence = f"{os.fspath(path)}: cannot be {what}: {error.strerror}"
    return (_FileMissing if error.errno == errno.ENOENT else FileError)(sentence)


def of_status(number: int, sentence: str, on_all: bool = False) -> Error:
    """The exception for a status of the C library, which a collective call had on all ranks."""
    from . import _ferry

    name = _ferry.status_names().get(number, "ERR_UNKNOWN")
    made = _BY_STATUS.get(name, Error)(_in_python(sentence))
    if isinstance(made, FileError) and made.errno == errno.ENOENT:
        made = _FileMissing(made.args[0])
    if on_all:
        mark_on_all(made)
    return made


def mark_on_all(error: BaseException) -> None:
    """All ranks have got it, or one that tells of it: nobody waits for the one that raises it."""
    try:
        error._ferry_on_all = True  # type: ignore[attr-defined]
    except AttributeError:
        pass  # of a class that takes none


def is_on_all(error: BaseException) -> bool:
    return bool(getattr(error, "_ferry_on_all", False))


def number(name: str, value: Optional[int], least: int = 0, bits: int = 32) -> int:
    """The library's number: 0 leaves open what is None here."""
    if value is None:
        return 0
    try:
        number = index(value)
    except TypeError:
        raise InvalidInput(f"{name} is {value!r}: give a whole number") from None
    if not least <= number < 1 << bits:
        raise InvalidInput(f"{name} is {number}: it goes from {least} to 2^{bits} - 1")
    return number


def said_of(error: BaseException) -> str:
    """What other ranks are told of an exception: in characters that any text can have."""
    said = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}".rstrip(": ")
    return said.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def text(name: str, value: Optional[str]) -> Optional[str]:
    """A text that the library can take, or none."""
    if value is not None and (not isinstance(value, str) or "\0" in value):
        raise InvalidInput(f"{name} is {value!r}: give a text without zero bytes")
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{name} is {value!r}: give a text without halves of surrogates") from None
    return value
