# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What a loader does with tensors, watched below torch's dispatcher: no element is read or written.

Tensors of the checkpoint have no data (they are on the meta device), but storages. Views of them
are torch's own affair: a copy from one view to another names two storages, offsets and strides.
So only what copies, fills or computes is looked at here, whatever the code above is like.
"""

from __future__ import annotations

import threading
from typing import (
    Any,
    Callable,
    Container,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ._errors import InvalidInput, Unsupported
from ._trace_boxes import Area, Copy, Loop, TooManyPieces, loops_of

aten = torch.ops.aten


class Root(NamedTuple):
    """A tensor of the checkpoint."""

    name: str


class Constant(NamedTuple):
    """An element that is everywhere the same, as it lies in memory."""

    bits: bytes


class Computed(NamedTuple):
    """What is no copy: the operation that made it, and of what."""

    operation: str
    of: Tuple[str, ...]


class Held(NamedTuple):
    """What a parameter held before the loader ran."""

    name: str
    may_be_read: bool = False  # a buffer of whole numbers that are there, such as a map of experts


class Cast(NamedTuple):
    """Elements that went through other types on their way."""

    source: Any
    types: Tuple[torch.dtype, ...]


class Memory(NamedTuple):
    """A storage that is watched."""

    area: Area
    dtype: torch.dtype
    name: str  # of a parameter or a tensor of the checkpoint, else empty
    kept: Any  # so that no other storage gets its address


def outline_of(tensor: torch.Tensor) -> List[int]:
    """The shape in which the storage of a tensor is laid out: its own, or one row."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    if tensor.storage_offset() == 0 and tensor.numel() == size and tensor.is_contiguous():
        return list(tensor.shape) or [1]
    return [size]


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements are all of its memory from the first to the last, in whatever order."""
    want = 1
    for n, stride in sorted(zip(tensor.shape, tensor.stride()), key=lambda one: one[1]):
        if n > 1:
            if stride != want:
                return False
            want *= n
    return True


def key_of(tensor: torch.Tensor) -> int:
    """Of its storage."""
    return int(tensor.untyped_storage()._cdata)


def view_loops(tensor: torch.Tensor, reader: Sequence[int]) -> List[Loop]:
    """The loops of a view, beside the strides of who reads it."""
    return [one for one in zip(tensor.shape, tensor.stride(), reader) if one[0] > 1]


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While this is entered, what is done with watched storages is written down, not done, also in
    threads that are started meanwhile."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory: Dict[int, Memory] = {}
        self._one_at_a_time = threading.RLock()

    def __enter__(self) -> "Watch":
        _Starts.add(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *about: Any) -> None:
        super().__exit__(*about)  # type: ignore[no-untyped-call]
        _Starts.remove()

    # What is watched.

    def add(
        self, tensor: torch.Tensor, name: str = "", base: Any = None, whole: Any = None
    ) -> Memory:
        """Watches the storage of a tensor; a second tensor of it changes nothing."""
        key = key_of(tensor)
        found = self.memory.get(key)
        if found is None:
            area = Area(outline_of(tensor), base, whole)
            found = Memory(area, tensor.dtype, name, tensor.untyped_storage())
            self.memory[key] = found
        return found

    def add_root(self, name: str, tensor: torch.Tensor) -> None:
        """A tensor of the checkpoint, which is contiguous and whose memory is its own."""
        self.add(tensor, name, whole=Root(name))

    def find(self, tensor: Any) -> Optional[Memory]:
        """The memory of a tensor, if it is watched."""
        if not isinstance(tensor, torch.Tensor) or not self.memory:
            return None
        try:
            return self.memory.get(key_of(tensor))
        except (NotImplementedError, RuntimeError):  # it has no storage: a sparse one, or a wrapper
            return None

    def may_be_read(self, tensor: torch.Tensor) -> bool:
        """Whether a loader may decide by its data: no tensor of the checkpoint is in them."""
        found = self.find(tensor)
        if found is None:
            return True
        base = found.area.base
        return isinstance(base, Held) and base.may_be_read and not found.area.writes

    # What is written down.

    def contents(self, tensor: torch.Tensor, reader: Sequence[int], at: int = 0) -> List[Copy]:
        """What the elements of a tensor are copies of, for a reader with these strides."""
        found = self.find(tensor)
        loops = view_loops(tensor, reader)
        here = tuple((n, far, 0) for n, _, far in loops)
        if found is None:
            return [Copy(self._constant(tensor), 0, at, here)]
        if tensor.dtype != found.dtype:
            source = Computed(f"view as {tensor.dtype}", self.names([tensor]))
            return [Copy(source, 0, at, here)]
        try:
            copies, rest = found.area.read(int(tensor.storage_offset()), loops, at)
        except TooManyPieces:
            return [Copy(Computed("a view of too many pieces", self.names([tensor])), 0, at, here)]
        for grid in rest:
            base = found.area.base
            if base is None:
                base = Computed(_UNKNOWN, self.names([tensor]))
            copies.append(Copy(base, 0, grid.elsewhere, tuple(loops_of(grid))))
        return copies

    def write(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """target.copy_(source)."""
        there = self.add(target, base=self._base_of(target))
        try:
            spread = source.expand(target.shape)
        except RuntimeError as error:
            raise InvalidInput(
                f"{self.called([source])} of shape {list(source.shape)} is copied into "
                f"{self.called([target])} of shape {list(target.shape)}: {error}"
            ) from None
        copies = self.contents(spread, target.stride(), int(target.storage_offset()))
        copies = [copy._replace(source=_moved(copy.source)) for copy in copies]
        dtype = source.dtype
        if target.dtype != there.dtype:
            copies = self._computed(target, f"a copy to a view as {target.dtype}", [source])
        elif dtype != target.dtype:
            copies = [
                copy._replace(source=cast(copy.source, dtype, target.dtype)) for copy in copies
            ]
        self._put(there, copies, [target, source])

    def _put(self, there: Memory, copies: Sequence[Copy], about: Sequence[Any]) -> None:
        try:
            there.area.write(copies)
        except TooManyPieces:
            raise Unsupported(
                f"{self.called(about)}: what is copied there is in more pieces than a layout has"
            ) from None

    def _computed(self, target: torch.Tensor, operation: str, of: Sequence[Any]) -> List[Copy]:
        loops = tuple((n, far, 0) for n, far in zip(target.shape, target.stride()) if n > 1)
        source = Computed(operation, self.names([target, *of]))
        return [Copy(source, 0, int(target.storage_offset()), loops)]

    def write_computed(self, target: torch.Tensor, operation: str, of: Sequence[Any]) -> None:
        """The target's elements are no copies any more."""
        there = self.add(target, base=self._base_of(target))
        self._put(there, self._computed(target, operation, of), of)

    def fill(self, target: torch.Tensor, value: Any) -> None:
        """target.fill_(value)."""
        there = self.add(target, base=self._base_of(target))
        loops = tuple((n, far, 0) for n, far in zip(target.shape, target.stride()) if n > 1)
        bits = element(torch.tensor(value).to(target.dtype))
        self._put(there, [Copy(Constant(bits), 0, int(target.storage_offset()), loops)], [target])

    def _base_of(self, tensor: torch.Tensor) -> Any:
        """What memory that is not watched yet holds: that of the CPU can be looked at."""
        if self.find(tensor) is not None or tensor.device.type != "cpu":
            return None
        return self._constant(tensor)

    def _constant(self, tensor: torch.Tensor) -> Any:
        if tensor.numel() == 0:
            return Constant(b"")
        if tensor.device.type == "meta":
            return Computed(_UNKNOWN, ())
        first = tensor.reshape(-1)[:1]
        if bool((bytes_of(tensor) == bytes_of(first).reshape(-1)).all()):
            return Constant(element(first))
        return Computed("numbers of the loader's own", ())

    # What sentences say.

    def names(self, about: Sequence[Any]) -> Tuple[str, ...]:
        """The tensors of the checkpoint that these tensors are made of; if there are none, the
        parameters that they are."""
        found: Dict[str, None] = {}
        held: Dict[str, None] = {}
        for tensor in about:
            memory = self.find(tensor)
            if memory is None:
                continue
            if memory.name:
                (held if isinstance(memory.area.base, Held) else found)[memory.name] = None
            for _, source in memory.area.writes[:4]:
                found.update((name, None) for name in source_names(source))
        return tuple(found or held)[:4]

    def is_of(self, tensor: torch.Tensor, tensors: Container[str]) -> bool:
        """Whether any of these tensors of the checkpoint was copied into its storage."""
        memory = self.find(tensor)
        return memory is not None and (
            memory.area.whole is not None
            or any(name in tensors for _, one in memory.area.writes for name in source_names(one))
        )

    def called(self, about: Sequence[Any]) -> str:
        names = self.names(about)
        return " and ".join(f'"{name}"' for name in names) if names else "a tensor of the loader"

    # What torch asks.

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        handler = _HANDLERS.get(func)
        if handler is None:
            handler = _HANDLERS[func] = _handler_of(func)
        with self._one_at_a_time:
            return handler(self, func, args, kwargs)


class _InThread(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A watch in another thread than the one that has entered it."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if not self._watch.memory:  # the loader has returned, its thread has not
            return func(*args, **(kwargs or {}))
        return self._watch.__torch_dispatch__(func, types, args, kwargs)


class _Starts:
    """Modes are a thread's own, so while any thread watches, starting another looks whether it is
    to be watched, too."""

    _here = threading.local()
    _lock = threading.Lock()
    _n_watching = 0
    _start = threading.Thread.start

    @classmethod
    def add(cls, watch: Watch) -> None:
        watches = cls._here.__dict__.setdefault("watches", [])
        watches.append(watch)
        with cls._lock:
            cls._n_watching += 1
            if cls._n_watching == 1:
                cls._start = threading.Thread.start
                threading.Thread.start = _start_seen  # type: ignore[method-assign,assignment]

    @classmethod
    def remove(cls) -> None:
        cls._here.watches.pop()
        with cls._lock:
            cls._n_watching -= 1
            if cls._n_watching == 0:
                threading.Thread.start = cls._start  # type: ignore[method-assign]

    @classmethod
    def start(cls, thread: threading.Thread) -> None:
        watches = cls._here.__dict__.get("watches")
        if watches:
            run, watch = thread.run, watches[-1]

            def watched() -> None:
                cls._here.watches = [watch]  # for threads that this one starts
                with _InThread(watch):
                    run()

            thread.run = watched  # type: ignore[method-assign]
        cls._start(thread)


def _start_seen(thread: threading.Thread) -> None:
    _Starts.start(thread)


def _moved(source: Any) -> Any:
    """What a parameter held is left alone, or lost: nobody has it elsewhere."""
    return Computed("what was there before", (source.name,)) if isinstance(source, Held) else source


def source_names(source: Any) -> Tuple[str, ...]:
    """The tensors that a source is, or is made of."""
    if isinstance(source, Root):
        return (source.name,)
    if isinstance(source, Cast):
        return source_names(source.source)
    return source.of if isinstance(source, Computed) else ()


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1, 1).view(torch.uint8)


def element(tensor: torch.Tensor) -> bytes:
    """The first element as it lies in memory."""
    return bytes(bytes_of(tensor.reshape(-1)[:1]).reshape(-1).tolist())


_UNKNOWN = "memory that nothing was copied to"


def cast(source: Any, before: torch.dtype, after: torch.dtype) -> Any:
    """What a copy to another type makes of a source."""
    if isinstance(source, Constant):
        raw = torch.tensor(list(source.bits), dtype=torch.uint8)
        return Constant(element(raw.view(before).to(after)))
    if isinstance(source, Computed):
        return source
    inner, types = (
        (source.source, source.types) if isinstance(source, Cast) else (source, (before,))
    )
    types = (*types, after)
    if len(types) > 2 and is_wider(types[-2], types[-3]):
        types = (*types[:-2], after)  # what grew and shrinks was only moved
    if len(types) == 2 and types[0] == types[1]:
        return inner
    return Cast(inner, types)


def is_wider(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether each number of the one is one of the other."""
    if not wide.is_floating_point or not narrow.is_floating_point:
        return False
    a, b = torch.finfo(wide), torch.finfo(narrow)
    return a.eps <= b.eps and a.max >= b.max and a.tiny * a.eps <= b.tiny * b.eps


# The operations.


def _tensors(args: Iterable[Any]) -> Iterator[torch.Tensor]:
    for one in args:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from _tensors(one)


def _watched(watch: Watch, args: Any, kwargs: Any) -> List[torch.Tensor]:
    return [one for one in _tensors((*args, *kwargs.values())) if watch.find(one) is not None]


def _as_it_is(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


def _copy(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    target, source = args[:2]
    if target.device.type != "meta" and not _watched(watch, (target, source), {}):
        return func(*args, **kwargs)
    watch.write(target, source)
    return target


def _fill(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    target = args[0]
    if target.device.type != "meta" and watch.find(target) is None:
        return func(*args, **kwargs)
    value = args[1] if len(args) > 1 else kwargs.get("value", 0)
    if isinstance(value, torch.Tensor):
        if watch.find(value) is not None:
            watch.write(target, value)
            return target
        value = value.item()
    watch.fill(target, value)
    return target


def _copy_all(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    """_foreach_copy_"""
    for target, source in zip(*args[:2]):
        _copy(watch, aten.copy_.default, (target, source), {})


def _into(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    """out=: what the operation makes is copied there."""
    given = {name: value for name, value in kwargs.items() if name != "out"}
    target = kwargs["out"]
    if not _watched(watch, (args, target), given):
        return func(*args, **kwargs)
    made = func.overloadpacket.default
    watch.write(target, _BY_NAME[func.overloadpacket.__name__](watch, made, args, given))
    return target


def _made(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    """zeros and their kin: constants are known also where there is no memory for them."""
    made = func(*args, **kwargs)
    if made.device.type == "meta":
        name = func.overloadpacket.__name__
        value: Any = 1 if "ones" in name else 0
        if "full" in name or "scalar" in name:
            value = (
                args[0]
                if "scalar" in name
                else args[1]
                if "like" in name or "new" not in name
                else args[2]
            )
        watch.add(made)
        watch.fill(made, value)
    return made


def _output(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    """A new tensor without data, as the operation would have made it."""
    if "device" in kwargs:
        kwargs = {**kwargs, "device": torch.device("meta")}
    kwargs.pop("pin_memory", None)
    made = func(*args, **kwargs)
    watch.add(made)
    return made


def _copied(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    """clone, to and contiguous: the same elements in memory of their own."""
    if watch.find(args[0]) is None:
        return func(*args, **kwargs)
    source = args[0] if args[0].device.type == "meta" else _without_data(watch, args[0])
    made = _output(watch, func, (source, *args[1:]), kwargs)
    watch.write(made.view(args[0].shape) if made.shape != args[0].shape else made, args[0])
    return made


def _without_data(watch: Watch, tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _cat(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    parts = list(args[0])
    if not any(watch.find(part) is not None for part in parts):
        return func(*args, **kwargs)
    d = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    bare = [_without_data(watch, part) for part in parts]
    made = _output(watch, func, (bare, d), {})
    at = 0
    for part in parts:
        if func is aten.stack.default:
            watch.write(made.select(d, at), part)
            at += 1
        elif part.dim() == made.dim():
            watch.write(made.narrow(d, at, part.shape[d]), part)
            at += part.shape[d]
    return made


def _pad(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    if watch.find(args[0]) is None or any(n < 0 for n in args[1]):
        return _other(watch, func, args, kwargs)
    value = args[2] if len(args) > 2 else kwargs.get("value", 0)
    made = _output(watch, func, (_without_data(watch, args[0]), args[1], value), {})
    watch.fill(made, value)
    inner = made
    for k in range(len(args[1]) // 2):
        d = args[0].dim() - 1 - k
        inner = inner.narrow(d, args[1][2 * k], args[0].shape[d])
    watch.write(inner, args[0])
    return made


def _chosen(watch: Watch, source: torch.Tensor, d: int, wanted: Sequence[int]) -> torch.Tensor:
    """The slices of a dimension that have these numbers, runs of them at once."""
    shape = list(source.shape)
    shape[d] = len(wanted)
    made = torch.empty(shape, dtype=source.dtype, device="meta")
    watch.add(made)
    first = 0
    for i in range(1, len(wanted) + 1):
        if i == len(wanted) or wanted[i] != wanted[i - 1] + 1:
            n = i - first
            watch.write(made.narrow(d, first, n), source.narrow(d, wanted[first], n))
            first = i
    return made


def _numbers(watch: Watch, index: Any, n: int) -> Optional[List[int]]:
    """A list of numbers of slices, if it can be known; IndexError as torch has it."""
    if watch.find(index) is not None or index.device.type == "meta" or index.dim() > 1:
        return None
    if index.dtype == torch.bool:
        index = index.nonzero().reshape(-1)
    found = [int(one) for one in index.reshape(-1).tolist()]
    for one in found:
        if not -n <= one < n:
            raise IndexError(f"index {one} is out of bounds for a dimension of size {n}")
    return [one % n for one in found]


def _index_select(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    source, d, index = args[:3]
    wanted = None if watch.find(source) is None else _numbers(watch, index, source.shape[d])
    if wanted is None:
        return _other(watch, func, args, kwargs)
    return _chosen(watch, source, d % source.dim(), wanted)


def _index(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    source, lists = args[:2]
    given = [d for d, one in enumerate(lists) if one is not None]
    if watch.find(source) is None or len(given) != 1 or lists[given[0]].dim() != 1:
        return _other(watch, func, args, kwargs)
    wanted = _numbers(watch, lists[given[0]], source.shape[given[0]])
    if wanted is None:
        return _other(watch, func, args, kwargs)
    return _chosen(watch, source, given[0], wanted)


def _index_put(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    target, lists, values = args[:3]
    add = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    given = [d for d, one in enumerate(lists) if one is not None]
    known = len(given) == 1 and not add and lists[given[0]].dim() == 1
    if not _watched(watch, (target, values), {}) or not known:
        return _other(watch, func, args, kwargs)
    d = given[0]
    wanted = _numbers(watch, lists[d], target.shape[d])
    if wanted is None:
        return _other(watch, func, args, kwargs)
    shape = list(target.shape)
    shape[d] = len(wanted)
    values = values.expand(shape)
    for i, one in enumerate(wanted):
        watch.write(target.select(d, one), values.select(d, i))
    return target


def _flip(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    made = args[0]
    if watch.find(made) is None:
        return func(*args, **kwargs)
    for d in args[1]:
        made = _chosen(watch, made, d % made.dim(), range(made.shape[d] - 1, -1, -1))
    return made


def _roll(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    made, shifts = args[:2]
    dims = args[2] if len(args) > 2 else kwargs.get("dims", ())
    if watch.find(made) is None or len(dims) != len(shifts):
        return _other(watch, func, args, kwargs)
    for shift, d in zip(shifts, dims):
        n = made.shape[d]
        made = _chosen(watch, made, d % made.dim(), [(i - shift) % n for i in range(n)])
    return made


def _repeat(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    source, times = args[:2]
    if watch.find(source) is None:
        return func(*args, **kwargs)
    own = [1] * (len(times) - source.dim()) + list(source.shape)
    made = torch.empty([n * k for n, k in zip(own, times)], dtype=source.dtype, device="meta")
    watch.add(made)
    pairs = [n for k, each in zip(times, own) for n in (k, each)]
    lone = [n for each in own for n in (1, each)]
    watch.write(made.view(pairs), source.reshape(own).view(lone).expand(pairs))
    return made


def _looks(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    """What makes a decision of the data."""
    watched = _watched(watch, args, kwargs)
    if all(watch.may_be_read(one) for one in watched):
        return func(*args, **kwargs)
    raise Unsupported(
        f"the loader looks at the data of {watch.called(watched)} "
        f"({func.overloadpacket.__name__}): what it does cannot be known without them",
        tensor=next(iter(watch.names(watched)), None),
    )


def _other(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    """Anything else: what it makes is remembered as computed, and refused only if it stays."""
    watched = _watched(watch, args, kwargs)
    if not watched:
        return func(*args, **kwargs)
    name = func.overloadpacket.__name__
    written = _written(func, args, kwargs)
    if written:
        for target in written:
            watch.write_computed(target, name, watched)
        return written[0] if len(func._schema.returns) == 1 else None
    bare = _bare(watch, args)
    try:
        made = func(*bare, **_bare(watch, kwargs))
    except Exception as error:
        raise Unsupported(
            f"the loader does {name} with {watch.called(watched)}: it cannot be followed without "
            f"their data: {str(error).splitlines()[0]}",
            tensor=next(iter(watch.names(watched)), None),
        ) from error
    for one in _tensors(made if isinstance(made, (list, tuple)) else (made,)):
        if watch.find(one) is None:
            watch.write_computed(one, name, watched)
    return made


def _bare(watch: Watch, args: Any) -> Any:
    """The arguments without data: those of real memory would be computed with."""
    if isinstance(args, torch.Tensor):
        return args if args.device.type == "meta" else _without_data(watch, args)
    if isinstance(args, (list, tuple)):
        return type(args)(_bare(watch, one) for one in args)
    if isinstance(args, dict):
        device = {"device": torch.device("meta")} if args.get("device") is not None else {}
        return {**{key: _bare(watch, one) for key, one in args.items()}, **device}
    return args


def _written(func: Any, args: Any, kwargs: Any) -> List[torch.Tensor]:
    found: List[torch.Tensor] = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = kwargs.get(argument.name, args[i] if i < len(args) else None)
            found.extend(_tensors((value,)))
    return found


def _handler_of(func: Any) -> Callable[..., Any]:
    """Of an operation that is met for the first time."""
    returns = func._schema.returns
    views = [one.alias_info is not None and not one.alias_info.is_write for one in returns]
    name = func.overloadpacket.__name__
    if any(one.name == "out" and one.kwarg_only for one in func._schema.arguments):
        return _into if name in _WITH_OUT else _other
    if name in _VIEWS or (views and all(views)):
        return _as_it_is
    return _BY_NAME.get(name, _other)


_VIEWS = {
    "_unsafe_view", "_reshape_alias", "unsafe_split", "unsafe_chunk", "unsafe_split_with_sizes",
    "lift_fresh", "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided",
}  # fmt: skip

_WITH_OUT = {"cat", "stack", "index_select"}

_BY_NAME: Dict[str, Callable[..., Any]] = {
    "_foreach_copy_": _copy_all,
    "copy_": _copy, "fill_": _fill, "zero_": _fill, "cat": _cat, "stack": _cat,
    "constant_pad_nd": _pad, "index_select": _index_select, "index": _index, "flip": _flip,
    "index_put_": _index_put, "_index_put_impl_": _index_put, "roll": _roll, "repeat": _repeat,
}  # fmt: skip
_BY_NAME.update(dict.fromkeys(
    ("zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "scalar_tensor", "zeros_like",
     "ones_like", "full_like"), _made))  # fmt: skip
_BY_NAME.update(dict.fromkeys(
    ("clone", "_to_copy", "contiguous", "view_copy", "_reshape_copy", "lift", "alias_copy",
     "detach_copy"), _copied))  # fmt: skip
_BY_NAME.update(dict.fromkeys(
    ("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "item", "_unique2",
     "unique_dim", "is_set_to"), _looks))  # fmt: skip

_HANDLERS: Dict[Any, Callable[..., Any]] = {}
