# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The trainer's end of updates, whichever engine is on the other: it meets the workers of a server,
says what its ranks have, and sends that. What it asks of the server goes through a client."""

from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Dict, List, Optional, Type

from .._errors import Error, InvalidInput, Misuse, PeerLost
from .._refit import _heard, _told
from ._updates import REFUSED, Half, Link, Member, StoreExchange, Tensors, open_store

SECONDS = 120.0  # that ranks wait for each other
_log = logging.getLogger("ferry")


@dataclass
class TrainerInfo:
    """What a rank of the trainer says: who it is, and how many workers the server has."""

    rank: int
    n_trainers: int
    n_workers: int
    host: str = "127.0.0.1"  # at which workers reach the trainer's first rank
    port: int = 0  # 0: any, where torch.distributed is initialised or the trainer is one rank
    secret: Optional[str] = None
    seconds: float = SECONDS

    @property
    def is_sender(self) -> bool:
        """Whether this rank speaks to the server."""
        return self.rank == 0


class Trainer:
    """What adapters give as their trainer. ``unused`` are the names of the tensors of which no worker
    takes anything, also said in ferry's log."""

    init_info_cls: ClassVar[Type[TrainerInfo]] = TrainerInfo

    def __init__(self, info: TrainerInfo, client: Any, source: Any) -> None:
        self.info, self.client, self.source = info, client, source
        self.is_sender, self.rank = info.is_sender, info.rank
        self.version = 0
        self.unused: List[str] = []
        self._weights = _Weights(source, info.rank)
        self._link: Optional[Link] = None
        self._exchange: Any = None
        self._has_failed = False
        self._is_new = True  # no update since the meeting
        self._has_begun = False  # an update of the server that is not finished
        self.join()

    @classmethod
    def trainer_init(cls, *given: Any, client: Any, source: Any, **named: Any) -> Any:
        """Collective over the trainer and the workers: they meet, trace, plan and prepare."""
        wanted = cls.init_info_cls
        info = named.get("init_info", given[-1] if given else None)
        if isinstance(info, dict):
            info = wanted(**info)
        if not isinstance(info, wanted):
            raise InvalidInput(f"init_info is {info!r}: give a {wanted.__name__}")
        return cls(info, client, source)

    def join(self, client: Any = None, n_workers: Optional[int] = None) -> None:
        """Collective over the trainer and the workers: meets whoever the server has now, also after
        workers were lost or restarted. Another server is reached by another ``client``, and may have
        another number of workers. Versions go on."""
        if self._has_failed and client is None and self.is_sender:
            self._end_update()
        self._has_begun = False  # or it is of a server that is gone
        self.client, self._has_failed = client or self.client, False
        self.info = info = replace(self.info, n_workers=n_workers or self.info.n_workers)
        self._leave()
        store = None
        if info.is_sender:
            store = open_store(info.host, info.port, True, info.seconds)
        port = self._told(store.port if store is not None else info.port)
        if store is None:
            store = open_store(info.host, port, False, info.seconds)
        call = _Call(
            self.client.init_weight_transfer_engine,
            {"host": info.host, "port": port, "n_trainers": info.n_trainers,
             "n_workers": info.n_workers, "secret": info.secret, "seconds": info.seconds},
        ) if info.is_sender else None  # fmt: skip
        try:
            size = info.n_trainers + info.n_workers
            self._exchange = StoreExchange(store, info.rank, size, info.seconds)
            who = f"rank {info.rank} of the trainer"
            self._link = Link(self._exchange, info.seconds, info.secret, who, self.version)
            self.version = self._link.version
            tensors = self._weights.tensors if info.rank == 0 else None
            self._link.prepare(tensors, source=self._weights.half)
            self._check_use(self._link, tensors)
        except Error as error:
            if call is not None:
                call.wait(info.seconds)  # it has a reason, and is not to be asked anew meanwhile
            raise _because(error, call)
        self._is_new = True
        if call is not None:
            self._hear_of_meeting(call)

    def _hear_of_meeting(self, call: "_Call") -> None:
        """All workers have met. A server whose workers failed in an earlier request, when a trainer was
        lost, may only say so now: that is no word of this meeting."""
        try:
            call.join()
        except Exception as error:
            _log.warning("all workers of the server have met, yet it answered: %s", error)

    def _check_use(self, link: Link, tensors: Optional[Tensors]) -> None:
        """Collective with the workers: loaders take a slice of what does not fit, and drop what they do
        not know."""
        self.unused = link.check_use(tensors)
        if self.unused and self.is_sender:
            _log.warning(
                'tensor "%s" of the trainer is taken by no worker of the server, nor are %d others: '
                "it stays as it was there", self.unused[0], len(self.unused) - 1,
            )  # fmt: skip

    @property
    def workers(self) -> List[Member]:
        """The workers of the server that were met: ``rank``, ``who``, ``host`` and ``pid`` of each."""
        return [] if self._link is None else self._link.members[self.info.n_trainers :]

    def _told(self, port: int) -> int:
        """The port of the first rank, on all."""
        import torch.distributed as dist

        if self.info.n_trainers == 1 or self.info.port != 0:
            return port
        if not dist.is_available() or not dist.is_initialized():
            raise InvalidInput(
                "a trainer of several ranks without torch.distributed: give a port in the init info"
            )
        told: List[Any] = [port]
        dist.broadcast_object_list(told, src=0)
        return int(told[0])

    def send_weights(self) -> Any:
        """Collective: one update from begin to end. Returns a :class:`ferry.RefitResult`.

        If it fails, it does on all ranks of the trainer, and the error says who was lost. Then start
        a server again, and call :meth:`join` on all ranks.
        """
        link = self._link
        if link is None:
            raise Misuse("the trainer was shut down, or has not met a server: call join")
        version = self.version + 1
        self._weights.refresh()
        call = _Call(self._tell, link, version) if self.is_sender else None
        self._has_failed = True  # until all is well
        try:
            result = link.run(version)
        except BaseException as error:  # the others wait for a word as long as this rank lives
            self._exchange.tell(_settling(version), _told(error).decode())
            raise self._lost(_because(error, call)) if isinstance(error, Error) else error
        self._settle(link, version, call)
        self.version, self._has_failed = version, False
        return result

    def _settle(self, link: Link, version: int, call: Optional["_Call"]) -> None:
        """The server has finished, or has not, on all ranks: until then none may leave, for workers
        end their part later."""
        raised: Optional[BaseException] = None
        if call is not None:
            try:
                call.join()
                _finish(self.client, version)
                self._has_begun = False
            except BaseException as error:
                raised = self._reason(link, error)
                # A server that only refuses what comes after the bytes has its update under way.
                if call.error is not None and not isinstance(raised, PeerLost):
                    self._end_update()
        said = "" if raised is None else _told(raised).decode()
        said = self._exchange.settle(
            _settling(version), self.info.n_trainers, said, lambda: self._look(link)
        )
        if raised is not None:
            raise raised
        if said:
            raise _heard(0, said.encode())

    def _end_update(self) -> None:
        """What a server has begun for this trainer and not finished would keep others from updates. What
        it has begun for somebody else is theirs."""
        if not self._has_begun:
            return
        with contextlib.suppress(Exception):  # the server has ended, or has no update under way
            self.client.finish_weight_update()
            self._has_failed = self._has_begun = False

    def _look(self, link: Link) -> None:
        """Raises if the first rank is lost. Until then it may wait for the server, whatever
        ``seconds`` says: how long that may take, only the client knows."""
        try:
            link.world.check()
        except Error as error:
            if 0 in error.ranks:
                link.explain(error)
                raise

    def _reason(self, link: Link, error: BaseException) -> BaseException:
        """Why the server fails: a worker that was lost says more than what the server answers."""
        try:
            link.world.check()
        except Error as lost:
            link.explain(lost)
            return self._lost(lost)
        return error

    def _tell(self, link: Link, version: int) -> None:
        """The server's part of an update. If it refuses, nobody may wait for its workers."""
        said = f"{REFUSED} {version}"
        try:
            self._start_update(link)
            said = f"the server gave version {version} up"
            self.client.update_weights({"version": version})
        except BaseException as error:
            if not link.world.closed:
                link.world.abort(f"{said}: {error}")
            raise

    def _start_update(self, link: Link) -> None:
        """In the first update after a meeting what a lost trainer has begun and not finished is ended, if
        workers have told of it when they met this one. What else is under way is of somebody else."""
        is_own, may_end = self._has_begun, self._is_new and link.has_left
        self._has_begun, self._is_new = True, False  # also while the server has not answered
        try:
            self._start(is_own or may_end)
        except BaseException:
            self._has_begun = is_own
            raise

    def _start(self, may_end: bool) -> None:
        try:
            self.client.start_weight_update()
        except Exception as error:
            if not may_end:
                raise Error(
                    f"{error}; if an update is under way there, another client has begun it: wait until "
                    "that has finished it, or have the server finish it if that client is gone"
                ) from error
            with contextlib.suppress(Exception):
                self.client.finish_weight_update()
            self.client.start_weight_update()

    def _lost(self, error: Error) -> Error:
        """With the remedy, where a worker is lost."""
        lost = [one for one in self.workers if one.rank in error.ranks]
        if lost:
            error.args = (f"{error}; start the server again and call join on all ranks of the trainer",)
        return error

    def shutdown(self) -> None:
        """Leaves the server."""
        self._end_update()
        self._leave()

    def _leave(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


def _settling(version: int) -> str:
    return f"the end of version {version}"


def _finish(client: Any, version: int) -> None:
    """Older clients take no version."""
    import inspect

    takes = inspect.signature(client.finish_weight_update).parameters
    if "weight_version" in takes:
        client.finish_weight_update(weight_version=str(version))
    else:
        client.finish_weight_update()


class _Call:
    """A request to the server, which answers when all ranks of the world have done their part."""

    def __init__(self, function: Any, *given: Any) -> None:
        self.error: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run, args=(function, given), daemon=True)
        self._thread.start()

    def _run(self, function: Any, given: Any) -> None:
        try:
            function(*given)
        except BaseException as error:
            self.error = error

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)

    def join(self) -> None:
        self._thread.join()
        if self.error is not None:
            raise self.error


def _because(error: Error, call: Optional[_Call]) -> Error:
    """What the server answered says more than that its workers did not come."""
    answer = "" if call is None or call.error is None else str(call.error)
    said = str(error).rpartition(" says: ")[2]
    if answer and answer not in str(error) and not answer.endswith(f": {said}"):
        error.args = (f"{error}; the server answered: {answer}",)
    return error


class _Weights:
    """What a rank of the trainer has."""

    def __init__(self, source: Any, rank: int) -> None:
        self._rank, self._source = rank, source
        module = source if hasattr(source, "named_parameters") else getattr(source, "_module", None)
        self._full: Dict[str, Any] = {}
        self._named: Dict[str, Any] = {}
        if module is not None:
            self._named = dict(module.named_parameters())
        elif isinstance(source, dict):
            self._named = dict(source)
        elif not hasattr(source, "local_half") and not hasattr(source, "metadata"):
            raise InvalidInput(
                f"the source is of type {type(source).__name__}: give a module of torch, a state "
                "dict, a MegatronSource, or a WeightSource of vLLM"
            )

    @property
    def tensors(self) -> Tensors:
        """As a spec has them."""
        from .. import _ferry

        if hasattr(self._source, "local_half"):
            return list(self._source.tensors)
        if self._named:
            entries = [(name, one.shape, one.dtype) for name, one in self._named.items()]
        else:
            metadata = self._source.metadata
            entries = [(one.name, one.shape, one.dtype)
                       for one in (metadata() if callable(metadata) else metadata)]  # fmt: skip
        return [
            {"name": name, "shape": list(shape), "dtype": _ferry.dtype_name(dtype)}
            for name, shape, dtype in entries
        ]

    def half(self) -> Half:
        from .torch import memory_of, side_of

        if hasattr(self._source, "local_half"):  # it knows what this rank has
            half: Half = self._source.local_half()
            return half
        if self._named:
            named = self._named
            return Half(side_of(named, self._rank), memory_of(named), lambda: memory_of(named))
        self.refresh()
        return Half(side_of(self._full, self._rank), dict(self._full))

    def refresh(self) -> None:
        """Full tensors of a source that makes them anew each time: all ranks iterate, one keeps."""
        if self._named or hasattr(self._source, "local_half"):
            return
        pairs = self._source.iter_full() if hasattr(self._source, "iter_full") else self._source
        for name, tensor in pairs:
            if self._rank != 0:
                continue
            if name in self._full:
                self._full[name].copy_(tensor)
            else:
                self._full[name] = tensor.detach().clone().contiguous()
