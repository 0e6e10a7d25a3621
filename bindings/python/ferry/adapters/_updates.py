# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What a trainer and a server do together, whichever framework is on either end: they meet, say
what they have, plan, and run. Ranks are those of the trainer first, then the server's."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, NamedTuple, Optional

from .. import _ferry
from .._errors import Error, ExchangeFailed, InvalidInput, InvalidPlan, Misuse

if TYPE_CHECKING:
    from .._ferry import World
    from .._refit import Refit, RefitResult
    from .._side import Side

Tensors = List[Dict[str, Any]]
_AT_ONCE = 5.0  # seconds of an attempt to reach a store
_LEFT = "it has left the server and the trainer"  # what others hear of who leaves in order
REFUSED = "the server refused version"  # and of a trainer that the server lets begin no update


class Half(NamedTuple):
    """What a rank has: its parameters in boxes, their memory, and what to look at before runs."""

    side: "Side"
    memory: Dict[str, Any]
    watched: Any = None


class Member(NamedTuple):
    """A rank of the world that a trainer and a server are: what it is, and where."""

    rank: int
    who: str
    host: str
    pid: int


def _way_back(taken: Optional["Side"]) -> Optional["Side"]:
    """What a worker takes, as if it gave it: which element lies where, of types that fit all."""
    from .._side import Side

    if taken is None:
        return None
    return Side.from_json(
        {"boxes": [
            {"parameter": one["parameter"], "elements": one["elements"], "dtype": "u8",
             "holds": one["holds"]}
            for one in taken.to_dict()["boxes"] if one.get("holds")
        ]}
    )  # fmt: skip


def _names_in(taken: Optional["Side"]) -> Optional[List[str]]:
    """The tensors of which a worker takes something."""
    if taken is None:
        return None
    boxes = [box for one in taken.to_dict()["boxes"] for box in one.get("holds", ())]
    return sorted({box["tensor"] for box in boxes})


def under_way(trainer: Member) -> Misuse:
    """What another trainer hears while this one, which is there, has an update under way."""
    return Misuse(
        f"an update of another trainer is under way, whose first rank is process {trainer.pid} on "
        f"{trainer.host}: wait until it has finished, or end that process, and meet the server then"
    )


class StoreExchange:
    """all_gather over a key-value store of torch, which the trainer's first rank has."""

    def __init__(self, store: Any, rank: int, size: int, seconds: float) -> None:
        self.rank, self.size = rank, size
        self._store, self._seconds, self._round = store, seconds, 0

    def all_gather(self, data: bytes) -> List[bytes]:
        self._round += 1
        self._store.set(f"ferry/{self._round}/{self.rank}", bytes(data))
        where = f"round {self._round} of the meeting"
        return [self._hear(str(self._round), rank, where) for rank in range(self.size)]

    def _hear(
        self, what: str, rank: int, where: str, look: Optional[Callable[[], None]] = None
    ) -> bytes:
        """With ``look`` it may take longer: that is called each time, and raises to end it."""
        from datetime import timedelta

        from torch.distributed import DistStoreError

        while True:
            try:
                self._store.wait([f"ferry/{what}/{rank}"], timedelta(seconds=self._seconds))
                return bytes(self._store.get(f"ferry/{what}/{rank}"))
            except Exception as error:  # a timeout, or the end of who has the store
                if look is None or not isinstance(error, DistStoreError):
                    raise ExchangeFailed(
                        f"rank {rank} of {self.size} has not come within {self._seconds:g} s "
                        f"({where}): see what it does, or give it longer",
                        ranks=(rank,),
                    ) from error
            look()

    def tell(self, what: str, said: str) -> None:
        """Says it to whoever settles that; one word a rank."""
        self._store.set(f"ferry/{what}/{self.rank}", said.encode())

    def settle(
        self, what: str, n: int, said: str = "", look: Optional[Callable[[], None]] = None
    ) -> str:
        """What the first of ``n`` ranks says, on all of them. It leaves when all have heard it. With
        ``look`` it may take its time before it says so."""
        if self.rank > 0:
            said = self._hear(what, 0, what, look).decode()
        self.tell(what, said)
        for rank in range(1, n if self.rank == 0 else 0):
            self._hear(what, rank, what)
        return said


def open_store(host: str, port: int, is_master: bool, seconds: float) -> Any:
    """The store at an address; a master opens it, at any port if that is 0."""
    from datetime import timedelta

    from torch._C._distributed_c10d import TCPStore

    try:
        return TCPStore(
            host, port, None, is_master, timedelta(seconds=seconds), wait_for_workers=False
        )
    except Exception as error:
        raise ExchangeFailed(
            f"the store of the meeting at {host}:{port} cannot be "
            f"{'opened' if is_master else 'reached'}: {str(error).splitlines()[0]}"
        ) from error


def reach_store(host: str, port: int, seconds: float) -> Any:
    """The store of a trainer that has opened it and told of it. One that is closed again is not waited
    for: its trainer is lost, and the next one wants who waits. torch itself would go on asking, so it
    gets little time at once."""
    from datetime import timedelta

    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), seconds).close()
        except OSError as error:
            raise ExchangeFailed(
                f"the store of the meeting at {host}:{port} cannot be reached: {error}"
            ) from error
        left = max(0.0, end - time.monotonic())
        try:
            store = open_store(host, port, False, min(left, _AT_ONCE))
        except ExchangeFailed:
            if left <= _AT_ONCE:
                raise
        else:
            store.set_timeout(timedelta(seconds=seconds))
            return store


def _met(exchange: Any, options: Dict[str, Any]) -> "World":
    """What the exchange ended with says more than that it failed."""
    try:
        return _ferry.world_from_exchange(exchange, **options)
    except ExchangeFailed as error:
        if isinstance(error.__cause__, ExchangeFailed):
            raise error.__cause__ from None
        raise


class Link:
    """The world of a trainer and a server, and refits from the one to the other.

    ``who`` names this rank in errors of others; ``version`` is the last one that it knows of.
    ``has_left``: a trainer that is gone has left an update under way at this worker.
    """

    def __init__(
        self,
        exchange: Any,
        seconds: float,
        secret: Optional[str],
        who: str,
        version: int,
        has_left: bool = False,
    ) -> None:
        options: Dict[str, Any] = {"entry_limit": seconds, "join_limit": seconds}
        if secret:
            options["secret"] = secret
        self.world: "World" = _met(exchange, options)
        self._refit: Optional["Refit"] = None
        self._refits: List["Refit"] = []  # all that are open
        self._taken: Optional["Side"] = None  # what this rank gets in the last one
        own = json.dumps([version, has_left, who, socket.gethostname(), os.getpid()]).encode()
        told = [json.loads(one) for one in self.world.all_gather(own)]
        self.version: int = max(one[0] for one in told)
        self.has_left = any(one[1] for one in told)
        self.members = [Member(rank, *one[2:]) for rank, one in enumerate(told)]

    def prepare(self, *given: Any, **named: Any) -> None:
        """Collective: the refit that :meth:`run` runs, as :meth:`plan` makes it."""
        self._refit = self.plan(*given, **named)

    def plan(
        self,
        tensors: Optional[Tensors],
        source: Optional[Callable[[], Half]] = None,
        destination: Optional[Callable[[Tensors], Half]] = None,
        **options: Any,
    ) -> "Refit":
        """Collective: the trainer's first rank tells the tensors, all say what they have of them.
        If anything of it fails on one rank, all raise what it says."""
        from .._plan import Spec
        from .._refit import Refit, agree

        told = json.dumps(tensors).encode() if tensors is not None else b""
        base: Tensors = json.loads(self.world.broadcast(told, 0))
        halves: List[Optional[Half]] = [None, None]

        def look() -> bytes:
            halves[0] = source() if source is not None else None
            halves[1] = destination(base) if destination is not None else None
            return b""

        agree(self.world, look)
        sides = [None if half is None else half.side for half in halves]
        self._taken = sides[1]
        spec = Spec.exchange(
            {"format": "ferry.spec/1", "tensors": base}, source=sides[0], destination=sides[1],
            world=self.world,
        )  # fmt: skip
        memory = [None if half is None else half.memory for half in halves]
        watched = [half.watched for half in halves if half is not None and half.watched is not None]
        refit = Refit(memory[0], memory[1], spec, world=self.world, watched=watched, **options)
        self._refits.append(refit)
        return refit

    def check_use(self, tensors: Optional[Tensors]) -> List[str]:
        """Collective: proves that the workers together take all of each tensor of which they take
        anything. A loader that is told of another model's tensor may take a slice of it and say
        nothing. Returns the names of those that no worker takes.

        The trainer's first rank gives the tensors. What workers take is what they prepared.
        """
        from .._plan import Spec, plan
        from .._refit import agree

        told = json.dumps(tensors).encode() if tensors is not None else b""
        given: Tensors = json.loads(self.world.broadcast(told, 0))
        own = json.dumps(_names_in(self._taken)).encode()
        named = [json.loads(one) for one in self.world.all_gather(own)]
        used = {name for one in named if one is not None for name in one}
        # The way back: whatever type the elements have, rank 0 would get all of them.
        base = {
            "format": "ferry.spec/1",
            "tensors": [dict(one, dtype="u8") for one in given if one["name"] in used],
            "destination": {"mesh": [], "rules": [{"match": "*"}]},
        }
        spec = Spec.exchange(base, source=_way_back(self._taken), world=self.world)

        def prove() -> bytes:
            try:
                plan(spec)
            except InvalidPlan as error:
                raise InvalidInput(
                    f'no worker of the server takes all of tensor "{error.tensor}", of which it loads '
                    f"a part: it has another model, or another config of this one ({error})",
                    tensor=error.tensor,
                ) from None
            return b""

        agree(self.world, prove)
        return [one["name"] for one in given if one["name"] not in used]

    def forget(self, refit: "Refit") -> None:
        """Collective: gives back what a refit of :meth:`plan` needs."""
        self._refits.remove(refit)
        refit.close()

    @property
    def refit(self) -> "Refit":
        """The refit, once it is prepared."""
        if self._refit is None:
            raise Misuse("the trainer and the server have not met: prepare the update before")
        return self._refit

    def run(self, version: int) -> "RefitResult":
        """Collective: one update. Versions only grow."""
        if version <= self.version:
            raise InvalidInput(
                f"an update to version {version} after version {self.version}: versions only grow"
            )
        with self.explained():
            result = self.refit.run()
        self.version = version
        return replace(result, version=version)  # refits count from 1, after every meeting

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Errors of what is called in it say who their ranks are."""
        try:
            yield
        except Error as error:
            self.explain(error)
            raise

    def trainer(self) -> Optional[Member]:
        """The first rank of the trainer; ``None`` where this world has lost a rank, or one has left: no
        update goes on in it."""
        try:
            self.world.check()
        except Error:
            return None
        return self.members[0]

    def was_lost(self) -> bool:
        """Whether this world has ended otherwise than by somebody who left it in order or was refused,
        and so may have left an update behind."""
        try:
            self.world.check()
        except Error as error:
            return _LEFT not in str(error) and REFUSED not in str(error)
        return False

    def explain(self, error: Error) -> None:
        """Says who the ranks are that an error is about: their numbers tell nobody anything."""
        about = [
            f"rank {one.rank} is {one.who}, process {one.pid} on {one.host}"
            for one in self.members
            if one.rank in error.ranks
        ]
        error.args = ("; ".join([str(error), *about]), *error.args[1:])

    def close(self) -> None:
        """Leaves the world, and waits for nobody: the others hear of it in their next call."""
        refits, self._refits, self._refit = self._refits, [], None
        if self.world.closed:
            return
        self.world._leave(_LEFT)
        for refit in refits:
            refit.close()
        self.world.close()
