# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Whole tensors that all ranks of a trainer hand over one by one, and all workers of a server get:
what frameworks do that gather tensors before they send them.

The bytes of all tensors, one behind the other, go in rounds of a fixed size, so that no rank needs
room for more than a round. A round is cut into blocks, which are dealt out to the trainer's ranks in
turn: each sends its share, and one plan serves all rounds of a size.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import secrets
import sys
from typing import (
    TYPE_CHECKING, Any, AsyncGenerator, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence,
    Tuple,
)  # fmt: skip

from .._errors import ExchangeFailed, InvalidInput, Misuse, is_on_all
from .._refit import _OPTIONS, agree
from ._updates import Half, Link, StoreExchange, Tensors, open_store

if TYPE_CHECKING:
    from .._refit import Refit

Named = Tuple[str, Any]  # a tensor of torch by its name
Table = Dict[str, Any]  # of a round: the tensors that begin in it, its bytes, whether it is the last
Card = Dict[str, Any]  # what a rank says of itself before all meet

SECONDS = 120.0  # that ranks wait for each other
BLOCKS = 16  # of each rank of the trainer in a whole round: so the last round is shared evenly, too
ALIGNMENT = 64  # of blocks, in bytes
KEPT_PLANS = 4  # a model needs two: of whole rounds, and of its last one


class Cut(NamedTuple):
    """How the bytes of a round are dealt out: block ``k`` to rank ``k % n_trainers``.

    >>> cut = Cut(256, 2)
    >>> list(cut.runs(1, 32, 200))  # from, to, and where that lies in what the rank keeps
    [(64, 128, 0), (192, 200, 64)]
    >>> cut.kept(0, 200), cut.kept(1, 200)
    (128, 72)
    """

    round_bytes: int
    n_trainers: int

    @property
    def block(self) -> int:
        least = -(-self.round_bytes // (self.n_trainers * BLOCKS))
        return -(-least // ALIGNMENT) * ALIGNMENT

    def runs(self, rank: int, begin: int, end: int) -> Iterator[Tuple[int, int, int]]:
        block, n = self.block, self.n_trainers
        first = begin // block
        first += (rank - first) % n
        for k in range(first, -(-end // block), n):
            low, high = max(begin, k * block), min(end, (k + 1) * block)
            yield low, high, k // n * block + low - k * block

    def kept(self, rank: int, n_bytes: int) -> int:
        return sum(high - low for low, high, _ in self.runs(rank, 0, n_bytes))


def _entry(name: str, tensor: Any) -> List[Any]:
    return [name, str(tensor.dtype).rpartition(".")[2], list(tensor.shape)]


def _said(entry: Optional[List[Any]]) -> str:
    return "no more" if entry is None else f'"{entry[0]}", {entry[2]} of {entry[1]},'


def _bytes_of(tensor: Any) -> Any:
    import torch

    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


class Packer:
    """Tensors of a trainer's rank on their way into rounds. They are looked at once, in order, each
    before the next one is asked for: whoever makes them may use their memory again."""

    def __init__(self, weights: Iterable[Named], cut: Cut, rank: int) -> None:
        self._weights, self._cut, self._rank = iter(weights), cut, rank
        self._rest: Any = None  # of the tensor that the last round ended in

    def pack(self, memory: Any) -> Table:
        """Fills this rank's share of the next round."""
        tensors: List[Any] = []
        at, room = 0, self._cut.round_bytes
        while at < room:
            if self._rest is None:
                given = next(self._weights, None)
                if given is None:
                    return {"tensors": tensors, "bytes": at, "is_last": True}
                name, tensor = given
                tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
                tensors.append(_entry(name, tensor))
                self._rest = _bytes_of(tensor)
            row = self._rest[: room - at]
            for begin, end, place in self._cut.runs(self._rank, at, at + len(row)):
                memory[place : place + end - begin].copy_(row[begin - at : end - at])
            at += len(row)
            self._rest = self._rest[len(row) :] if len(row) < len(self._rest) else None
        return {"tensors": tensors, "bytes": at, "is_last": False}


class Unpacker:
    """Tensors out of rounds, each in memory of its own."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._open: Optional[Tuple[str, Any, int]] = None  # a tensor, and how much of it is there
        self.at = ""  # the tensor that was given last

    def unpack(self, table: Table, memory: Any) -> Iterator[Named]:
        """The tensors that are whole with this round, whose bytes are in the memory."""
        import torch

        begun = [] if self._open is None else [self._open]
        begun += [
            (name, torch.empty(shape, dtype=getattr(torch, dtype), device=self._device), 0)
            for name, dtype, shape in table["tensors"]
        ]
        at, self._open = 0, None
        for name, tensor, filled in begun:
            row = _bytes_of(tensor)[filled:]
            n = min(len(row), table["bytes"] - at)
            row[:n].copy_(memory[at : at + n])
            at += n
            if n < len(row):
                self._open = (name, tensor, filled + n)
                return
            self.at = name
            yield name, tensor


class Stream:
    """Rounds between the ranks of a link. All methods but ``close`` are collective."""

    def __init__(self, link: Link, cut: Cut, device: Any, options: Dict[str, Any]) -> None:
        import torch

        self.link, self.cut, self.device = link, cut, device
        self.rank = link.world.rank
        self.is_trainer = self.rank < cut.n_trainers
        room = cut.kept(self.rank, cut.round_bytes) if self.is_trainer else cut.round_bytes
        self.memory = torch.empty(room, dtype=torch.uint8)  # pages that no round needs take no room
        self._options = options
        self._plans: Dict[int, "Refit"] = {}  # by the bytes of a round
        self._version: Optional[int] = None  # of the update that is under way
        self.bytes_moved, self.seconds = 0, 0.0  # of the last update

    def begin(self, version: Optional[int]) -> None:
        """The trainer's first rank says which version it is; None is the one that there is."""
        self.bytes_moved, self.seconds = 0, 0.0
        with self.link.explained():
            world = self.link.world
            told = json.loads(world.broadcast(json.dumps(version).encode(), 0))
            agree(world, lambda: self._check_version(version, told))
        self._version = told

    def _check_version(self, own: Optional[int], told: Optional[int]) -> bytes:
        if own is not None and own != told:
            raise InvalidInput(
                f"the trainer's first rank sends version {told}, and this rank was asked for version "
                f"{own}: begin the same update on all ranks"
            )
        if told is not None and told < self.link.version:
            raise InvalidInput(
                f"an update to version {told} after version {self.link.version}: versions do not go "
                "back; start the server again to begin anew"
            )
        return b""

    def carry(self, packed: Any = None) -> Table:
        """One round. ``packed`` is what a rank of the trainer has packed, or the exception that it
        ended with, which all then raise."""
        world = self.link.world
        own = packed if isinstance(packed, dict) else None
        with self.link.explained():
            table: Table = json.loads(world.broadcast(json.dumps(own).encode(), 0))
            agree(world, lambda: self._check_table(table, packed))
            if table["bytes"]:
                result = self._plan(table["bytes"]).run()
                self.bytes_moved += result.bytes_moved
                self.seconds += result.seconds
        return table

    def _check_table(self, table: Table, packed: Any) -> bytes:
        if isinstance(packed, BaseException):
            raise packed
        if table is None or packed is None or table == packed:
            return b""
        for first, own in itertools.zip_longest(table["tensors"], packed["tensors"]):
            if first != own:
                raise InvalidInput(
                    f"the trainer's first rank sends {_said(first)} where rank {self.rank} has "
                    f"{_said(own)} in its place: hand over the same tensors in the same order on all "
                    "ranks",
                    tensor=(first or own)[0],
                    ranks=(self.rank,),
                )
        raise AssertionError("the same tensors fill the same rounds")

    def end(self) -> None:
        """All workers have taken all tensors: the version is there."""
        with self.link.explained():
            agree(self.link.world, lambda: b"")
        if self._version is not None:
            self.link.version = self._version

    def _plan(self, n_bytes: int) -> "Refit":
        found = self._plans.get(n_bytes)
        if found is not None:
            return found
        if len(self._plans) == KEPT_PLANS:
            self.link.forget(self._plans.pop(next(iter(self._plans))))
        row = [{"name": "bytes", "shape": [n_bytes], "dtype": "u8"}]
        found = self.link.plan(
            row if self.rank == 0 else None,
            source=(lambda: self._half(n_bytes)) if self.is_trainer else None,
            destination=None if self.is_trainer else self._whole,
            **self._options,
        )
        self._plans[n_bytes] = found
        return found

    def _half(self, n_bytes: int) -> Half:
        from .._side import Side

        side, n_kept = Side(), self.cut.kept(self.rank, n_bytes)
        if n_kept == 0:
            return Half(side, {})
        side.add_parameter("bytes", None, n_kept)
        for begin, end, place in self.cut.runs(self.rank, 0, n_bytes):
            side.add_box("bytes", [begin], [end - begin], place)
        return Half(side, {"bytes": self.memory[:n_kept]})

    def _whole(self, tensors: Tensors) -> Half:
        from .._side import Side

        side, shape = Side(), tensors[0]["shape"]
        side.add_parameter("bytes", None, shape[0])
        side.add_box("bytes", [0], shape)
        return Half(side, {"bytes": self.memory[: shape[0]]})


def _own_address() -> str:
    """As Ray knows this node, where there is a Ray."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return "127.0.0.1"
    return str(ray.util.get_node_ip_address()).strip("[]")


def _who(rank: int, n_trainers: int) -> str:
    if rank < n_trainers:
        return f"rank {rank} of the trainer"
    return f"worker {rank - n_trainers} of the server"


class Engine:
    """What a checkpoint engine of a framework does, whatever its methods are called there.

    All ranks make cards, which the framework brings to all of them, those of the trainer first. They
    meet with these, unless all have met already and nothing has failed since.
    """

    def __init__(
        self,
        bucket_size: int,
        *,
        host: Optional[str] = None,
        secret: Optional[str] = None,
        seconds: float = SECONDS,
        device: Any = "cpu",
        keep: bool = True,
        **options: Any,
    ) -> None:
        if isinstance(bucket_size, bool) or not isinstance(bucket_size, int) or bucket_size <= 0:
            raise InvalidInput(f"bucket_size is {bucket_size!r}: give the bytes of a round")
        unknown = sorted(set(options) - (_OPTIONS - {"service"}))
        if unknown:
            raise InvalidInput(
                f"{unknown[0]!r} is no option of this engine: there are device, host, keep, seconds, "
                f"secret, {', '.join(sorted(_OPTIONS - {'service'}))}"
            )
        self.bucket_size = bucket_size
        self._host = host or _own_address()
        self._secret, self._seconds = secret, seconds
        self._device, self._keep, self._options = device, keep, options
        self._name = secrets.token_hex(8)
        self._store: Any = None  # of the trainer's first rank
        self._stream: Optional[Stream] = None
        self._met = ""  # with whom, while nothing has failed
        self._version = -1

    def _card(self, is_first: bool) -> Card:
        """What all ranks must know of this one. The first rank of the trainer has a store."""
        if is_first and self._store is None:
            self._store = open_store(self._host, 0, True, self._seconds)
        return {
            "name": self._name, "met": self._met, "once": secrets.token_hex(8),
            "bucket_size": self.bucket_size, "host": self._host,
            "port": self._store.port if self._store is not None else 0,
        }  # fmt: skip

    def _join(self, rank: int, n_trainers: int, cards: Sequence[Card]) -> None:
        """Collective: meets all ranks, if not all of them have met already."""
        everyone = _digest(card["name"] for card in cards)
        if self._stream is not None and all(card["met"] == everyone for card in cards):
            return
        for other, card in enumerate(cards):
            if card["bucket_size"] != self.bucket_size:
                raise InvalidInput(
                    f"{_who(other, n_trainers)} has buckets of {card['bucket_size']} bytes, and "
                    f"{_who(rank, n_trainers)} of {self.bucket_size}: give all the same bucket_size",
                    ranks=(other,),
                )
        self._leave()
        exchange = StoreExchange(self._meeting(rank, cards), rank, len(cards), self._seconds)
        try:
            link = Link(exchange, self._seconds, self._secret, _who(rank, n_trainers), self._version)
        except ExchangeFailed as error:
            lost = "; ".join(f"rank {one} is {_who(one, n_trainers)}" for one in error.ranks)
            error.args = (f"{error}; {lost}" if lost else str(error), *error.args[1:])
            raise
        self._version = link.version
        cut = Cut(self.bucket_size, n_trainers)
        self._stream = Stream(link, cut, self._device, self._options)
        self._met = everyone

    def _meeting(self, rank: int, cards: Sequence[Card]) -> Any:
        """A store of this meeting's own, for words of one before are no news."""
        from torch._C._distributed_c10d import PrefixStore

        if cards[0]["port"] == 0:
            raise InvalidInput(
                "the trainer's first rank has opened no store: its torch.distributed has rank 0"
            )
        store = self._store
        if rank != 0:
            store = open_store(cards[0]["host"], cards[0]["port"], False, self._seconds)
        return PrefixStore(_digest(card["once"] for card in cards), store)

    def _joined(self) -> Stream:
        if self._stream is None:
            raise Misuse("weights before the trainer and the server have met")
        return self._stream

    async def _send(self, weights: Iterable[Named], version: Optional[int]) -> Dict[str, Any]:
        """Collective: what a rank of the trainer does in an update."""
        stream = self._joined()
        packer = Packer(weights, stream.cut, stream.rank)
        try:
            await asyncio.to_thread(stream.begin, version)
            is_last = False
            while not is_last:
                is_last = await self._send_round(stream, packer)
            await asyncio.to_thread(stream.end)
        except BaseException as error:
            self._give_up(stream, error, "")
            raise
        self._version = stream.link.version
        return {"ferry/bytes_moved": stream.bytes_moved, "ferry/seconds": stream.seconds}

    async def _send_round(self, stream: Stream, packer: Packer) -> bool:
        packed: Any
        try:
            packed = packer.pack(stream.memory)  # in this thread: what makes tensors may want it
        except Exception as error:
            packed = error
        return bool((await asyncio.to_thread(stream.carry, packed))["is_last"])

    async def _receive(self, version: Optional[int]) -> AsyncGenerator[Iterator[Named], None]:
        """Collective: what a worker does in an update. The tensors of each round, which must be taken
        before the next one."""
        stream = self._joined()
        unpacker = Unpacker(stream.device)
        try:
            await asyncio.to_thread(stream.begin, version)
            is_last = False
            while not is_last:
                table = await asyncio.to_thread(stream.carry)
                yield unpacker.unpack(table, stream.memory)
                is_last = table["is_last"]
            await asyncio.to_thread(stream.end)
        except BaseException as error:
            self._give_up(stream, error, unpacker.at)
            raise
        self._version = stream.link.version

    def _give_up(self, stream: Stream, error: BaseException, at: str) -> None:
        """What all ranks know of, they can go on after. Of anything else the others must hear, and
        before the next update all meet again."""
        if is_on_all(error):
            return
        self._met = ""
        if stream.link.world.closed:
            return
        where = f' at tensor "{at}"' if at else ""
        why = "" if isinstance(error, GeneratorExit) else f": {type(error).__name__}: {error}"
        who = _who(stream.rank, stream.cut.n_trainers)
        stream.link.world.abort(f"{who} gave the update up{where}{why}")

    def _leave(self) -> None:
        """Leaves the others."""
        stream, self._stream, self._met = self._stream, None, ""
        if stream is not None:
            stream.link.close()


def _digest(texts: Iterable[str]) -> str:
    return hashlib.blake2b(" ".join(texts).encode(), digest_size=16).hexdigest()
