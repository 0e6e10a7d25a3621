# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What is installed here, and which ranks this process would connect to: the first thing to check.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from typing import Any, List, Optional

from . import _ferry, _publish
from ._errors import Error

_LAUNCHERS = (
    ("FERRY_RENDEZVOUS", "a file where ranks meet"),
    ("RANK", "torchrun or ferry launch"),
    ("PMIX_RANK", "mpirun or srun with PMIx"),
)


def show_config(file: Any = None) -> None:
    """Prints what is installed, which rank this process is, and whether a minimal refit works.

    ``file`` is where it is written (default: standard output). It waits for no other rank, and
    imports neither torch nor numpy. ``ferry info`` prints more about the machine.

    >>> import ferry
    >>> ferry.show_config()
    ferry ...
    """
    print("\n".join(_lines()), file=sys.stdout if file is None else file)


def _lines() -> List[str]:
    folder = os.path.dirname(os.path.abspath(__file__))
    lines = [
        f"ferry    {_ferry.version}, in {folder}",
        f"Python   {platform.python_version()}, {sys.executable}",
    ]
    for package in ("torch", "numpy"):
        lines.append(f"{package:8} {_version_of(package) or 'not installed, and not needed'}")
    for name, summary, why_not in _ferry.engines():
        lines.append(f"{name:8} {summary}" + (f" (missing: {why_not})" if why_not else ""))
    lines.append(f"GPUs     {_devices()}")
    lines.append(f"ranks    {_ranks()}")
    lines.append(f"refit    {_try()}")
    return lines


def _devices() -> str:
    for name, _, n_devices, why_not in _ferry.memory_kinds():
        if name == "cuda":
            return str(n_devices) if why_not is None else f"none can be used: {why_not}"
    return "none"


def _version_of(package: str) -> Optional[str]:
    loaded = getattr(sys.modules.get(package), "__version__", None)
    if loaded is not None:
        return str(loaded)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _ranks() -> str:
    from ._world import described_by_environment

    for variable, launcher in _LAUNCHERS:
        if variable in os.environ:
            shown = {name: os.environ[name] for name in (variable, "WORLD_SIZE") if name in os.environ}
            listed = ", ".join(f"{name}={value}" for name, value in shown.items())
            return f"{listed}, as of {launcher}: ferry.world() joins the others"
    if described_by_environment():
        return "a launcher has started several processes and told them no way to meet: docs/python.md"
    return "one, this process: no launcher has set RANK, FERRY_RENDEZVOUS or PMIX_RANK"


def _try() -> str:
    """Of a world of its own, whatever the environment says."""
    side = {"mesh": [], "rules": [{"match": "*"}]}
    spec = {
        "format": "ferry.spec/1",
        "tensors": [{"name": "w", "shape": [2, 3], "dtype": "u8"}],
        "source": side,
        "destination": side,
    }
    from ._refit import refit

    old, new = b"weight", bytearray(6)
    try:
        (world,) = _ferry.world_of_threads(1)
        refit({"w": old}, {"w": new}, spec, world=world)
        world.close()
    except Error as error:
        return f"does not work: {error}"
    return "works" if new == old else f"does not work: {old!r} became {bytes(new)!r}"


_publish("_config", globals())
