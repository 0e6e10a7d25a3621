# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The world of this process: made when it is first needed, left at exit."""

from __future__ import annotations

import atexit
import os
import sys
from typing import TYPE_CHECKING, Any, Dict, Optional, Union

from . import _ferry, _publish
from ._errors import Error, InvalidInput, is_on_all

if TYPE_CHECKING:
    from ._ferry import World

_default: Optional["World"] = None
_owner = -1  # the process that made it


def world() -> "World":
    """The world of this process; :func:`init` makes it on first use.

    >>> import ferry
    >>> ferry.world().size
    1
    """
    if _default is None or _default.closed or _owner != os.getpid():
        return init()
    return _default


def init(
    group: Any = None,
    *,
    secret: Optional[str] = None,
    deadline: float = 0.0,
    entry_limit: float = 0.0,
    join_limit: float = 0.0,
    nodes: Optional[str] = None,
    host: Optional[str] = None,
    join: Union[bool, str, "os.PathLike[str]"] = False,
) -> "World":
    """Makes the world of this process, and makes it the one that :func:`world` returns.

    Collective. The ranks are those of ``group``, a group of torch.distributed, or else of its
    default group if that is initialised, or else of the environment (``RANK``, ``WORLD_SIZE`` and
    what torchrun, mpirun, srun and ``ferry launch`` set), or else this process alone.

    ``secret`` is a text that all ranks must know; ``deadline`` is how many seconds a rank may show
    no sign of life, ``entry_limit`` how many seconds calls wait for a rank that does not come, and
    ``join_limit`` how many seconds this rank waits for the next one at the start; ``nodes`` gives
    the number of ranks on each node (``"4,4"``), ``host`` the address at which others reach this
    process. Defaults come from ``FERRY_SECRET``, ``FERRY_DEADLINE`` and so on.

    With ``join`` this process joins a world that lives, whose members call :meth:`World.grow`
    meanwhile: it is the path that they name, or True for where the environment says. The world's
    deadline is then that of its members.
    """
    global _default, _owner
    if join is None or join == "":
        raise InvalidInput("ferry.init: join is a path, or True for where the environment says")
    given: Dict[str, Any] = {
        "secret": secret, "deadline": deadline, "entry_limit": entry_limit,
        "join_limit": join_limit, "nodes": nodes, "host": host,
    }  # fmt: skip
    options = {name: value for name, value in given.items() if value not in (None, 0.0)}
    if _default is not None and not _default.closed and _owner == os.getpid():
        if group is None and not options and not join:
            return _default
        raise InvalidInput("the world of this process exists already: call ferry.shutdown() first")
    _default = _make(group, options) if join is False else _join(group, join, options)
    _owner = os.getpid()
    return _default


def _make(group: Any, options: Any) -> "World":
    torch = sys.modules.get("torch")
    distributed = None if torch is None else getattr(torch, "distributed", None)
    if group is None and not (
        distributed is not None and distributed.is_available() and distributed.is_initialized()
    ):
        if described_by_environment():
            return _ferry.world_from_environment(**options)
        return _ferry.world_of_threads(1, **options)[0]
    from ._exchange import TorchExchange

    return _ferry.world_from_exchange(TorchExchange(group), **options)


def _join(group: Any, join: Any, options: Any) -> "World":
    if group is not None:
        raise InvalidInput("ferry.init: a rank that joins is in no group yet; give join alone")
    return _ferry.world_join(None if join is True else join, **options)


def described_by_environment() -> bool:
    """Whether a launcher says that this process is one of several ranks."""
    names = ("RANK", "FERRY_RENDEZVOUS", "PMIX_RANK")
    if any(name in os.environ for name in names):
        return True
    # A launcher that starts several processes: alone is not what was meant, and the error says so.
    sizes = ("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "PMI_SIZE")
    return any(os.environ.get(size, "1") not in ("", "0", "1") for size in sizes)


def leave_failed(world: Optional["World"], error: Optional[BaseException]) -> None:
    """A block ends by an error of this rank alone. The others know nothing of it and may wait for
    this one: it leaves its world, so that they lose it at once and can go on without it."""
    if error is None or isinstance(error, GeneratorExit) or is_on_all(error):
        return
    if world is None or world.closed or world.size == 1:
        return
    try:
        world.check()
    except Error:
        return  # it has failed, which all know
    world._leave(f"its program raised {type(error).__name__}: {error}")


def shutdown() -> None:
    """Leaves the world of this process; services and handlers that use it are closed first by their
    owners.
    """
    global _default
    if _default is not None and _owner == os.getpid():
        _default.close()
    _default = None


atexit.register(shutdown)
_publish("_world", globals())
