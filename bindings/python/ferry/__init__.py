# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""ferry moves the weights of a sharded model from one parallel layout to another.

Only the standard library is required. Tensors of torch and numpy are accepted, but ferry imports
neither by itself. Names are loaded when they are first used, so ``import ferry`` is fast.

>>> import ferry
>>> rows = {"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}
>>> spec = ferry.Spec({
...     "format": "ferry.spec/1",
...     "tensors": [{"name": "w", "shape": [8, 4], "dtype": "bf16"}],
...     "source": {"mesh": [["tp", 2]], "rules": [rows]},
...     "destination": {"mesh": [["tp", 4]], "rules": [rows]},
... })
>>> ferry.plan(spec).n_moves
4
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Dict, List

if TYPE_CHECKING:
    from . import adapters as adapters
    from . import comm as comm
    from . import names as names
    from . import resharding as resharding
    from ._checkpoint import (
        Change as Change,
        Checkpoint as Checkpoint,
        ReshardResult as ReshardResult,
        VerifyResult as VerifyResult,
        WorkProgress as WorkProgress,
        inspect as inspect,
        reshard as reshard,
        verify as verify,
    )
    from ._config import show_config as show_config
    from ._errors import (
        Aborted as Aborted,
        Denied as Denied,
        Different as Different,
        DigestMismatch as DigestMismatch,
        Error as Error,
        ExchangeFailed as ExchangeFailed,
        FileError as FileError,
        InvalidInput as InvalidInput,
        InvalidPlan as InvalidPlan,
        LimitExceeded as LimitExceeded,
        Misuse as Misuse,
        NoMemory as NoMemory,
        PeerLost as PeerLost,
        ProofFailed as ProofFailed,
        Stopped as Stopped,
        Timeout as Timeout,
        Unsupported as Unsupported,
    )
    from ._files import (
        LoadResult as LoadResult,
        load as load,
        load_into as load_into,
        save as save,
        save_from as save_from,
    )
    from ._ferry import (
        Event as Event,
        Ledger as Ledger,
        MixedRequest as MixedRequest,
        Queue as Queue,
        Request as Request,
        World as World,
    )
    from ._log import log_to as log_to
    from ._memory import (
        empty as empty,
        empty_like as empty_like,
        share_memory_ as share_memory_,
    )
    from .names import NamedTensor as NamedTensor, Names as Names
    from ._map import Map as Map, MapBox as MapBox, MapTensor as MapTensor
    from ._mixed import (
        MixedCommHandler as MixedCommHandler,
        MixedCommMode as MixedCommMode,
        MixedCommOp as MixedCommOp,
        run_mixed_comm as run_mixed_comm,
    )
    from ._plan import (
        Move as Move,
        Plan as Plan,
        Proof as Proof,
        Schedule as Schedule,
        Shard as Shard,
        Spec as Spec,
        plan as plan,
    )
    from ._refit import (
        Refit as Refit,
        RefitResult as RefitResult,
        RefitRun as RefitRun,
        refit as refit,
    )
    from ._service import (
        Destination as Destination,
        Peer as Peer,
        Progress as Progress,
        Recovery as Recovery,
        RemoteCopyService as RemoteCopyService,
        Span as Span,
    )
    from ._side import Side as Side
    from ._trace import Trace as Trace, trace as trace
    from ._world import init as init, shutdown as shutdown, world as world

# Where each name is found.
_PLACES = {
    "_errors": (
        "Aborted", "Denied", "Different", "DigestMismatch", "Error", "ExchangeFailed", "FileError",
        "InvalidInput", "InvalidPlan", "LimitExceeded", "Misuse", "NoMemory", "PeerLost",
        "ProofFailed", "Stopped", "Timeout", "Unsupported",
    ),
    "_config": ("show_config",),
    "_files": ("LoadResult", "load", "load_into", "save", "save_from"),
    "_ferry": ("Event", "Ledger", "MixedRequest", "Queue", "Request", "World"),
    "_log": ("log_to",),
    "_memory": ("empty", "empty_like", "share_memory_"),
    "_world": ("init", "shutdown", "world"),
    "_map": ("Map", "MapBox", "MapTensor"),
    "names": ("NamedTensor", "Names"),
    "_plan": ("Move", "Plan", "Proof", "Schedule", "Shard", "Spec", "plan"),
    "_service": (
        "Destination", "Peer", "Progress", "Recovery", "RemoteCopyService", "Span",
    ),
    "_refit": ("Refit", "RefitResult", "RefitRun", "refit"),
    "_side": ("Side",),
    "_trace": ("Trace", "trace"),
    "_mixed": ("MixedCommHandler", "MixedCommMode", "MixedCommOp", "run_mixed_comm"),
    "_checkpoint": (
        "Change", "Checkpoint", "ReshardResult", "VerifyResult", "WorkProgress", "inspect",
        "reshard", "verify",
    ),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}
_SUBMODULES = ("adapters", "comm", "names", "resharding")
# Still found by programs that say them, and listed nowhere.
_OLDER = {
    "Comparison": "VerifyResult", "ConversionResult": "ReshardResult", "compare": "verify",
    "convert": "reshard",
}  # fmt: skip

__all__ = sorted([*_MODULE_OF, *_SUBMODULES, "__version__"])


def _publish(module: str, names: Dict[str, Any]) -> None:
    """What people see of a name, in tracebacks and help, is where it is public."""
    for name in _PLACES[module]:
        names[name].__module__ = __name__


def __getattr__(name: str) -> Any:
    if name in _OLDER:
        return __getattr__(_OLDER[name])
    if name in _MODULE_OF:
        value = getattr(importlib.import_module("." + _MODULE_OF[name], __name__), name)
    elif name in _SUBMODULES:
        value = importlib.import_module("." + name, __name__)
    elif name == "__version__":
        value = importlib.import_module("._ferry", __name__).version
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})
