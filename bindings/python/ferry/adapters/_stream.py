# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Whole tensors that all ranks of a trainer hand over one by one, and all workers of a server get:
what frameworks do that gather tensors before they send them.

The bytes of all tensors, one behind the other, go in rounds of a fixed size, so that no rank needs
room for more than a round. A round is cut into blocks, which are dealt out to the trainer's ranks in
turn: each sends its share, and one plan serves all rounds of a size.

Where a framework hands over DTensors, nobody gathers them: such a round has whole tensors, one behind
the other, and each rank of the trainer sends what its own shards have of them. Its plan is of these
tensors.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import math
import secrets
import sys
from typing import (
    TYPE_CHECKING, Any, AsyncGenerator, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence,
    Tuple,
)  # fmt: skip

from .. import _ferry
from .._errors import (
    ExchangeFailed, InvalidInput, LimitExceeded, Misuse, NoMemory, Unsupported, is_on_all,
)  # fmt: skip
from .._refit import _OPTIONS, agree
from ._updates import Half, Link, StoreExchange, Tensors, open_store

if TYPE_CHECKING:
    from .._refit import Refit
    from ._placements import Holding

Named = Tuple[str, Any]  # a tensor of torch by its name
# Of a round: the tensors that begin in it, its bytes, whether it is the last, and whether it goes in
# shards.
Table = Dict[str, Any]
Card = Dict[str, Any]  # what a rank says of itself before all meet

SECONDS = 120.0  # that ranks wait for each other
BLOCKS = 16  # of each rank of the trainer in a whole round: so the last round is shared evenly, too
ALIGNMENT = 64  # of blocks, and of tensors in shards, in bytes
KEPT_PLANS = 16  # a model needs two, of whole rounds and of its last one, or one for each in shards


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


def _entry(name: str, tensor: Any, holding: Optional["Holding"] = None) -> List[Any]:
    """The last of it says how a DTensor is cut: rounds that look alike have one plan."""
    cut = None
    if holding is not None:
        cut = [list(holding.mesh), list(holding.ranks), [list(one) for one in holding.placements]]
    return [name, str(tensor.dtype).rpartition(".")[2], list(tensor.shape), cut]


def _said(entry: Optional[List[Any]]) -> str:
    if entry is None:
        return "no more"
    cut = "" if entry[3] is None else f" cut by {entry[3][2]} on ranks {entry[3][1]} as {entry[3][0]}"
    return f'"{entry[0]}", {entry[2]} of {entry[1]}{cut},'


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def _holding_of(name: str, tensor: Any, cut: Cut) -> Optional["Holding"]:
    """How a DTensor is cut that can go in shards; any other tensor goes whole. So does one that lies
    on some of the trainer's ranks alone, as replicas that each have a mesh of their own do: ranks
    that hand over the same tensors say the same of them."""
    from . import torch as adapter

    if not hasattr(tensor, "placements") or not tensor.shape or tensor.numel() == 0:
        return None
    if _aligned(tensor.numel() * tensor.element_size()) > cut.round_bytes:
        return None
    try:
        holding = adapter.holding_of(tensor, name)
    except Unsupported:
        return None
    is_whole = holding.dtype.startswith("bytes:") or len(holding.ranks) != cut.n_trainers
    return None if is_whole else holding


def _bytes_of(tensor: Any) -> Any:
    import torch

    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


class Packer:
    """Tensors of a trainer's rank on their way into rounds. They are looked at once, in order, each
    before the next one is asked for: whoever makes them may use their memory again."""

    def __init__(self, weights: Iterable[Named], cut: Cut, rank: int) -> None:
        self._weights, self._cut, self._rank = iter(weights), cut, rank
        self._rest: Any = None  # of the tensor that the last round ended in
        self._given: Optional[Named] = None  # that no round has yet
        self.half: Optional[Half] = None  # of the last round, if it was in shards

    def _look(self) -> Optional[Tuple[str, Any, Optional["Holding"]]]:
        """The next tensor, which stays there until it is taken."""
        if self._given is None:
            self._given = next(self._weights, None)
        if self._given is None:
            return None
        return (*self._given, _holding_of(*self._given, self._cut))

    def pack(self, memory: Any, shards: Any) -> Table:
        """Fills this rank's share of the next round; shards have other memory, which their plans know."""
        self.half = None
        tensors: List[Any] = []
        at, room = 0, self._cut.round_bytes
        while at < room:
            if self._rest is None:
                given = self._look()
                if given is not None and given[2] is not None:
                    return self._table(tensors, at) if tensors or at else self._pack_shards(shards)
                if given is None:
                    return self._table(tensors, at, is_last=True)
                name, tensor, _ = given
                self._given = None
                tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
                tensors.append(_entry(name, tensor))
                self._rest = _bytes_of(tensor)
            row = self._rest[: room - at]
            for begin, end, place in self._cut.runs(self._rank, at, at + len(row)):
                memory[place : place + end - begin].copy_(row[begin - at : end - at])
            at += len(row)
            self._rest = self._rest[len(row) :] if len(row) < len(self._rest) else None
        return self._table(tensors, at)

    def _table(self, tensors: List[Any], n_bytes: int, **more: bool) -> Table:
        return {"tensors": tensors, "bytes": n_bytes, "is_last": False, "in_shards": False, **more}

    def _pack_shards(self, shards: Any) -> Table:
        """A round of DTensors: of each, this rank's shard."""
        import torch

        from .._side import Side
        from .torch import add_shard

        side, memory = Side(), {}
        tensors: List[Any] = []
        at = own = 0
        rank = torch.distributed.get_rank()
        while True:
            given = self._look()
            if given is None:
                break
            name, tensor, holding = given
            end = at + _aligned(tensor.numel() * tensor.element_size())
            if holding is None or end > self._cut.round_bytes or name in memory:
                break
            self._given = None
            local = tensor.to_local()
            row = _bytes_of(local)
            place = shards[own : own + len(row)]
            place.copy_(row)
            memory[name] = place.view(local.dtype)
            add_shard(side, name, holding, tuple(local.shape), rank)
            tensors.append(_entry(name, tensor, holding))
            at, own = end, own + _aligned(len(row))
        self.half = Half(side, {name: one for name, one in memory.items() if len(one)})
        return self._table(tensors, at, is_last=given is None, in_shards=True)


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
            for name, dtype, shape, _ in table["tensors"]
        ]
        at, self._open = 0, None
        for name, tensor, filled in begun:
            row = _bytes_of(tensor)[filled:]
            n = min(len(row), table["bytes"] - at)
            row[:n].copy_(memory[at : at + n])
            at += _aligned(n) if table["in_shards"] else n
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
        # Pages that no round needs take no room here. A worker's memory does, and comes with rounds.
        room = cut.kept(self.rank, cut.round_bytes) if self.is_trainer else 0
        self.memory = torch.empty(room, dtype=torch.uint8)
        self.shards = torch.empty(cut.round_bytes if self.is_trainer else 0, dtype=torch.uint8)
        self._largest = 0  # of the rounds so far, in bytes
        self._options = options
        self._plans: Dict[str, "Refit"] = {}  # by the bytes of a round, or its tensors in shards
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

    def carry(self, packed: Any = None, half: Optional[Half] = None) -> Table:
        """One round. ``packed`` is what a rank of the trainer has packed, or the exception that it
        ended with, which all then raise; ``half`` is what it has of a round in shards."""
        world = self.link.world
        own = packed if isinstance(packed, dict) else None
        with self.link.explained():
            table: Table = json.loads(world.broadcast(json.dumps(own).encode(), 0))
            agree(world, lambda: self._check_table(table, packed))
            if table["bytes"]:
                result = self._plan(table, half).run()
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

    def _plan(self, table: Table, half: Optional[Half]) -> "Refit":
        n_bytes: int = table["bytes"]
        key = json.dumps(table["tensors"]) if table["in_shards"] else str(n_bytes)
        found = self._plans.get(key)
        if found is not None:
            return found
        if len(self._plans) == KEPT_PLANS:
            self._forget_first()
        if n_bytes > self._largest:
            while self._plans:
                self._forget_first()
            self._largest = n_bytes
            if not self.is_trainer:
                self.memory = _fast_memory(n_bytes)
        tensors = [{"name": "bytes", "shape": [n_bytes], "dtype": "u8"}]
        if table["in_shards"]:
            tensors = _tensors_in(table)
        found = self.link.plan(
            tensors if self.rank == 0 else None,
            source=(lambda: half or self._half(n_bytes)) if self.is_trainer else None,
            destination=None if self.is_trainer else self._whole,
            **self._options,
        )
        self._plans[key] = found
        return found

    def _forget_first(self) -> None:
        self.link.forget(self._plans.pop(next(iter(self._plans))))

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
        """All of each, one behind the other."""
        from .._side import Side
        from .._trace_model import torch_dtype

        side, memory, at = Side(), {}, 0
        for one in tensors:
            name, elements = one["name"], math.prod(one["shape"])
            side.add_parameter(name, None, elements)
            side.add_box(name, [0] * len(one["shape"]), one["shape"])
            dtype = torch_dtype(one["dtype"], name)
            n_bytes = elements * dtype.itemsize
            memory[name] = self.memory[at : at + n_bytes].view(dtype)
            at += _aligned(n_bytes)
        return Half(side, memory)


def _tensors_in(table: Table) -> Tensors:
    """Those of a round in shards, as a spec has them."""
    import torch

    return [
        {"name": name, "shape": shape, "dtype": _ferry.dtype_name(getattr(torch, dtype))}
        for name, dtype, shape, _ in table["tensors"]
    ]


def _fast_memory(n_bytes: int) -> Any:
    """Memory that trainers of the same node write to directly, where there is enough of it."""
    import torch

    from .._memory import empty

    try:
        return empty(n_bytes, dtype=torch.uint8)
    except (LimitExceeded, NoMemory):
        return torch.empty(n_bytes, dtype=torch.uint8)


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
            packed = packer.pack(stream.memory, stream.shards)  # in this thread: what makes tensors may want it
        except Exception as error:
            packed = error
        return bool((await asyncio.to_thread(stream.carry, packed, packer.half))["is_last"])

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
