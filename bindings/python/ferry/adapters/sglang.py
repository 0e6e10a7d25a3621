# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Updates of a running SGLang: what its workers do, and the trainer's end.

A worker hears of the trainer through SGLang's custom weight loader, which is :func:`load`. SGLang finds
:func:`register` by its entry point, so that no option of a server is needed and what fails is an
answer of the server, and not its end; nothing of SGLang is patched. Each worker traces its own loader,
so it gets what it needs and nothing else, from whichever ranks of the trainer hold it.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import importlib
import json
import pickle
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .._errors import Error, InvalidInput, Misuse, Unsupported
from ._base import quantization_of
from ._loader import tensors_of, traced_loader
from ._trainer import SECONDS, Trainer, TrainerInfo
from ._updates import Half, Link, StoreExchange, Tensors, reach_store, under_way

__all__ = ["FerryTrainer", "FerryTrainerInitInfo", "Server", "load", "register"]

LOAD_FORMAT = "ferry.adapters.sglang.load"  # by which SGLang knows the loader
_LEAST_LETTERS = 64  # a letter for each worker, also where the trainer counts too few of them
_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"


# The worker.


@dataclass
class _Meeting:
    """What a worker is told: where the trainer's store is, and how many ranks there are."""

    host: str
    port: int
    n_trainers: int
    n_workers: int
    secret: Optional[str] = None
    seconds: float = SECONDS


def _own_number() -> int:
    """Of this worker in its server: pipeline stages one behind the other."""
    parallel = importlib.import_module("sglang.srt.runtime_context").get_parallel()
    return int(parallel.tp_size * parallel.pp_rank + parallel.tp_rank)


class _Worker:
    """What a worker knows of the trainer between two requests."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._link: Optional[Link] = None
        self._has_missed = False  # a trainer that began to meet it: a session that is open may be its
        self._version = 0

    def look(self) -> None:
        """Whether the session that is open may be ended: it is of a trainer that is gone."""
        trainer = None if self._link is None else self._link.trainer()
        if trainer is not None:
            raise under_way(trainer)
        if not (self._has_missed if self._link is None else self._link.was_lost()):
            raise Misuse(
                "a session of updates is open, and it is of no trainer that this worker knows: wait until "
                "its client has ended it, or POST /end_weight_update if that client is gone"
            )

    def meet(self, told: _Meeting) -> None:
        """Meets the trainer and all workers, traces, plans and prepares."""
        self.leave()
        self._has_missed = True  # until all is well
        number = _own_number()
        if not 0 <= number < told.n_workers:
            raise InvalidInput(
                f"worker {number} of a server of which the trainer says that it has "
                f"{told.n_workers} workers: give their number as n_workers"
            )
        store = reach_store(told.host, told.port, told.seconds)
        size = told.n_trainers + told.n_workers
        exchange = StoreExchange(store, told.n_trainers + number, size, told.seconds)
        who = f"worker {number} of the server"
        link = Link(exchange, told.seconds, told.secret, who, self._version)
        try:
            link.prepare(None, destination=self._half)
            link.check_use(None)
        except BaseException:
            link.close()
            raise
        self._link, self._has_missed = link, False

    def _half(self, tensors: Tensors) -> Half:
        """What the loader does with the trainer's tensors, and the memory that takes them."""
        from .._memory import share_what_can

        model = self._model
        _check_methods(model)
        with _without_afterwork(model):
            traced = traced_loader(model, tensors)
        _check_given(traced)
        live = tensors_of(model)
        share_what_can({name: live[name] for name in traced.parameters if name in live}, live)
        return Half(traced.side(), traced.memory(model), lambda: traced.memory(model))

    def update(self, version: int) -> None:
        """Collective with the trainer: the bytes of the update arrive, where they are used."""
        import torch

        if self._link is None:
            raise Misuse("an update before the trainer was met: join the trainer again")
        self._link.run(version)
        self._version = version
        if hasattr(self._model, "post_load_weights"):  # what a load would end with: derived weights
            with torch.no_grad():
                self._model.post_load_weights()

    def leave(self) -> None:
        """Leaves the trainer."""
        link, self._link = self._link, None
        if link is not None:
            link.close()


@contextlib.contextmanager
def _without_afterwork(model: Any) -> Iterator[None]:
    """A loader ends with what it computes of the new weights: nothing for a trace, which has none."""
    if not hasattr(model, "post_load_weights"):
        yield
        return
    model.post_load_weights = lambda *given, **named: None
    try:
        yield
    finally:
        del model.post_load_weights


def _check_methods(model: Any) -> None:
    """Layers whose kernels want weights otherwise than they are loaded cannot be written in place."""
    for name, layer in model.named_modules():
        method = quantization_of(layer)
        if method is not None:
            raise Unsupported(
                f'layer "{name}" of the server keeps its weights as {method} makes them, which is '
                "not how they are loaded: serve the model without quantization"
            )
        if getattr(layer, "use_intel_amx_backend", False):
            raise Unsupported(
                f'layer "{name}" of the server keeps its weights packed for Intel AMX, which is not how '
                "they are loaded: serve the model where there is none"
            )


def _check_given(traced: Any) -> None:
    """Whether the trainer has all that the server needs."""
    if traced.untouched:
        missing = traced.untouched
        raise InvalidInput(
            f'parameter "{missing[0]}" of the server is given by no tensor of the trainer, nor are '
            f"{len(missing) - 1} others: the trainer has another model, or names it otherwise",
            tensor=missing[0],
        )
    if traced.partial:
        parts = traced.partial
        raise InvalidInput(
            f'parameter "{parts[0]}" of the server is given only in part by tensors of the trainer, '
            f"as are {len(parts) - 1} others: the trainer lacks some of them",
            tensor=parts[0],
        )


def load(model: Any, named_tensors: List[Tuple[str, Any]]) -> None:
    """The custom weight loader: does what the trainer's letter says, which is the one tensor."""
    letter = dict(named_tensors).get("ferry")
    if letter is None:
        raise InvalidInput(
            f"the loader {LOAD_FORMAT} was given {len(named_tensors)} tensors, and no letter of a "
            "ferry.adapters.sglang.FerryTrainer: it takes no weights of anybody else"
        )
    said = json.loads(bytes(letter.cpu().tolist()))
    worker = model.__dict__.get("_ferry_worker")
    if worker is None:
        worker = model.__dict__["_ferry_worker"] = _Worker(model)
    if "meet" in said:
        worker.meet(_Meeting(**said["meet"]))
    elif "look" in said:
        worker.look()
    else:
        worker.update(said["version"])


def _answered(update: Any, updater: Any, *given: Any, **named: Any) -> Tuple[bool, str]:
    """SGLang's update_weights_from_tensor, which knows the loader, and says what fails in it: what is
    raised there would end the server."""
    load_format = named.get("load_format", given[1] if len(given) > 1 else None)
    if load_format != LOAD_FORMAT:
        answer: Tuple[bool, str] = update(updater, *given, **named)
        return answer
    known = [*(updater.custom_weight_loaders or ()), LOAD_FORMAT]
    try:
        answer = update(
            dataclasses.replace(updater, custom_weight_loaders=known), *given, **named
        )
        return answer
    except Exception as error:
        return False, str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"


def register() -> None:
    """Called by SGLang in each of its processes: the entry point ``sglang.srt.plugins``."""
    from sglang.srt.plugins.hook_registry import (  # type: ignore[import-not-found, unused-ignore]
        HookRegistry,
        HookType,
    )

    HookRegistry.register(f"{_UPDATER}.update_weights_from_tensor", _answered, HookType.AROUND)


# The trainer.


def _letters(said: Dict[str, Any], n: int) -> List[str]:
    """What a request says to each worker, as SGLang wants tensors. Its bytes are in it, and not in
    memory that both share: the server may be another machine."""
    import torch

    text = torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8)
    letter = base64.b64encode(pickle.dumps([("ferry", text)])).decode()
    return [letter] * max(n, _LEAST_LETTERS)


class Server:
    """What a trainer asks of a running SGLang, at its URL. ``key`` is the server's API key, or the one
    for administrators; ``seconds`` is how long an answer may take, which is an update's time, too.

    With ``flush_cache`` an update makes the server forget what it has computed with old weights. It
    cannot while requests are paused ``in_place``: the update fails then, though the weights are new.
    Pause with another mode (``abort`` is the default), or give False and flush afterwards.
    """

    def __init__(
        self, url: str, key: Optional[str] = None, seconds: float = 1800.0, flush_cache: bool = True
    ) -> None:
        self.url, self._key, self._seconds = url.rstrip("/"), key, seconds
        self._flush_cache = flush_cache
        self._n_workers = 1

    def post(self, path: str, said: Dict[str, Any]) -> Tuple[bool, str]:
        """Whether the server did it, and what it says."""
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(
            f"{self.url}/{path}", json.dumps(said).encode(), headers, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=self._seconds) as reply:
                text = reply.read()
        except urllib.error.HTTPError as error:
            text = error.read()
        try:
            answer = json.loads(text)
            return bool(answer["success"]), str(answer["message"])
        except (KeyError, TypeError, ValueError):
            return False, text.decode(errors="replace")[:500]

    def _ask(self, path: str, **said: Any) -> None:
        try:
            is_done, message = self.post(path, said)
        except OSError as error:
            is_done, message = False, str(error)
        if not is_done:
            causes = dict.fromkeys(message.split(" | "))  # of workers, which often say the same
            raise Error(f"{self.url}/{path}: {' | '.join(causes)}")

    def _load(self, said: Dict[str, Any], **more: Any) -> None:
        letters = _letters(said, self._n_workers)
        self._ask("update_weights_from_tensor", serialized_named_tensors=letters,
                  load_format=LOAD_FORMAT, selector="target", **more)  # fmt: skip

    # What a trainer of any engine calls.

    def init_weight_transfer_engine(self, info: Dict[str, Any]) -> None:
        """The workers meet the trainer."""
        self._n_workers = info["n_workers"]
        self._begin_anew()
        try:
            self._load({"meet": info}, flush_cache=False)
        finally:
            self.finish_weight_update()

    def _begin_anew(self) -> None:
        """A trainer that was lost within an update has left its session open, in which no other one can
        meet the workers. They are asked, within that session, whether it is such a one. A server that
        refuses for another reason does so again."""
        try:
            self.start_weight_update()
        except Error as error:
            try:
                self._load({"look": True}, flush_cache=False)
            except Error as why:
                raise Error(f"{error}; the workers say: {why}") from None
            with contextlib.suppress(Error):
                self.finish_weight_update()
            self.start_weight_update()

    def start_weight_update(self) -> None:
        """Weights are as loaders want them, from now on."""
        self._ask("begin_weight_update", selector="target")

    def update_weights(self, info: Dict[str, Any]) -> None:
        """The bytes of the update arrive."""
        version = info["version"]
        self._load({"version": version}, flush_cache=self._flush_cache, weight_version=str(version))

    def finish_weight_update(self) -> None:
        """Weights are as kernels want them."""
        self._ask("end_weight_update")


@dataclass
class FerryTrainerInitInfo(TrainerInfo):
    """What a rank of the trainer says: who it is, and how many workers the server has."""


class FerryTrainer(Trainer):
    """The trainer's end, on every rank. ``client`` is a :class:`Server`, on the first rank;
    ``source`` a module of torch (plain, FSDP2 or tensor parallel), a state dict, or a
    :class:`ferry.adapters.megatron.MegatronSource`.

    The names are those of the checkpoint that the server's loader knows. ``unused`` are those of
    which no worker takes anything, also said in ferry's log.
    """

    init_info_cls = FerryTrainerInitInfo
