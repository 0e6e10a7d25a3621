# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The weight transfer engine "ferry" of vLLM: of its workers, and of the trainer.

vLLM finds it by its entry point; nothing of vLLM is patched. Each worker traces its own loader, so
it gets what it needs and nothing else, from whichever ranks of the trainer hold it.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
from dataclasses import dataclass, replace
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .._errors import Error, InvalidInput, Misuse, Unsupported
from .._refit import _heard, _told
from ._base import class_of
from ._updates import Half, Link, Member, StoreExchange, Tensors, open_store

__all__ = [
    "FerryInitInfo", "FerryTrainer", "FerryTrainerInitInfo", "FerryUpdateInfo",
    "FerryWeightTransferEngine",
]  # fmt: skip

_LAYERWISE = "vllm.model_executor.model_loader.reload.layerwise"
_META = "vllm.model_executor.model_loader.reload.meta"
SECONDS = 120.0  # that ranks wait for each other


_BASE = "vllm.distributed.weight_transfer.base"
_InitInfo: Any = class_of(_BASE, "WeightTransferInitInfo")
_UpdateInfo: Any = class_of(_BASE, "WeightTransferUpdateInfo")
_Engine: Any = class_of(_BASE, "WeightTransferEngine")
_Trainer: Any = class_of(_BASE, "TrainerWeightTransferEngine")


@dataclass
class FerryInitInfo(_InitInfo):  # type: ignore[misc]
    """What a worker is told: where the trainer's store is, and how many ranks there are."""

    host: str
    port: int
    n_trainers: int
    n_workers: int
    secret: Optional[str] = None
    seconds: float = SECONDS
    first_worker: int = 0  # the number of this server's first worker, where there are several


@dataclass
class FerryUpdateInfo(_UpdateInfo):  # type: ignore[misc]
    """What a worker is told of an update."""

    version: int


@dataclass
class FerryTrainerInitInfo:
    """What a rank of the trainer says: who it is, and how many workers the server has."""

    rank: int
    n_trainers: int
    n_workers: int
    host: str = "127.0.0.1"  # at which workers reach the trainer's first rank
    port: int = 0  # 0: any, where torch.distributed is initialised or the trainer is one rank
    secret: Optional[str] = None
    seconds: float = SECONDS
    backend: str = "ferry"

    @property
    def is_sender(self) -> bool:
        """Whether this rank speaks to the server."""
        return self.rank == 0


# The worker's model.


def _matches(live: Any, wanted: Any) -> bool:
    return (
        live is not None
        and live.shape == wanted.shape
        and live.stride() == wanted.stride()
        and live.dtype == wanted.dtype
    )


class ServerModel:
    """A model of vLLM: in which layout its loader wants it, in which its kernels have it.

    Layers whose kernels take weights as they are loaded are written in place. Of others the weights
    arrive beside them and are processed as after any load, into the memory that they had.
    """

    def __init__(self, model: Any, model_config: Any) -> None:
        self._model, self._config = model, model_config
        self._reload = importlib.import_module(_LAYERWISE)
        self.staged: Dict[str, Tuple[Any, str, Any]] = {}  # by parameter: layer, its name there

    @contextlib.contextmanager
    def as_loaded(self) -> Iterator[None]:
        """The model as its loader wants it, without memory."""
        restore = importlib.import_module(_META).restore_layer_on_meta
        layers = list(self._model.modules())
        infos = [self._reload.get_layerwise_info(layer) for layer in layers]
        if not any(info.restore_metadata[0] for info in infos):
            raise Unsupported(
                "vLLM has not recorded how this model's weights are loaded: it does where a model "
                "loader of its own has loaded them"
            )
        kept = [(dict(layer._parameters), dict(layer._buffers),
                 set(layer._non_persistent_buffers_set)) for layer in layers]  # fmt: skip
        try:
            for layer, info in zip(layers, infos):
                restore(layer, info)
                self._unwrap(layer)
            yield
        finally:
            for layer, (parameters, buffers, lost) in zip(layers, kept):
                layer._parameters.clear()
                layer._parameters.update(parameters)
                layer._buffers.clear()
                layer._buffers.update(buffers)
                layer._non_persistent_buffers_set.clear()
                layer._non_persistent_buffers_set.update(lost)

    def _unwrap(self, layer: Any) -> None:
        """A reload of vLLM's leaves its own loaders around those that a trace wants to see."""
        for tensor in (*layer._parameters.values(), *layer._buffers.values()):
            loader = getattr(tensor, "weight_loader", None)
            if getattr(loader, "__name__", "") == "online_process_loader":
                tensor.weight_loader = self._reload._get_original_loader(tensor)

    @contextlib.contextmanager
    def _loaders_kept(self) -> Iterator[None]:
        """What is recorded of how tensors are loaded is the same after a reload: the layers have the
        recorded tensors themselves meanwhile."""
        infos = [self._reload.get_layerwise_info(layer) for layer in self._model.modules()]
        tensors = [one for info in infos for part in info.restore_metadata for one in part.values()]
        kept = [dict(one.__dict__) for one in tensors]
        try:
            yield
        finally:
            for one, was in zip(tensors, kept):
                one.__dict__.clear()
                one.__dict__.update(was)

    def half(self, tensors: Tensors) -> Half:
        """What the loader does with the trainer's tensors, and the memory that takes them."""
        import torch

        from .._trace import trace

        live = dict(self._model.named_parameters(remove_duplicate=False))
        live.update(self._model.named_buffers(remove_duplicate=False))
        with self.as_loaded():
            traced = trace(
                self._model, {one["name"]: (one["shape"], one["dtype"]) for one in tensors}
            )
            wanted = dict(self._model.named_parameters(remove_duplicate=False))
            parameters = set(wanted)
            wanted.update(self._model.named_buffers(remove_duplicate=False))
        self._check(traced, parameters, wanted)
        owners = {
            f"{prefix}.{name}" if prefix else name: (layer, name)
            for prefix, layer in self._model.named_modules(remove_duplicate=False)
            for name in (*self._reload.get_layerwise_info(layer).restore_metadata[0],
                         *self._reload.get_layerwise_info(layer).restore_metadata[1])
        }  # fmt: skip
        memory: Dict[str, Any] = {}
        staged_layers = set()
        for name in traced.parameters:
            layer, own = owners[name] if name in owners else (None, name)
            if layer is None or self._is_in_place(layer, live.get(name), wanted[name]):
                memory[name] = _row(live[name])
                continue
            device = self._reload.get_layerwise_info(layer).restore_device
            stage = torch.zeros(wanted[name].shape, dtype=wanted[name].dtype, device=device)
            self.staged[name] = (layer, own, stage)
            staged_layers.add(layer)
            memory[name] = stage.reshape(-1)
        self._tie_head(traced, owners, memory, wanted)
        self._keep_rest(staged_layers, owners, live, wanted)
        return Half(traced.side(), memory)

    def _check(self, traced: Any, parameters: Any, wanted: Dict[str, Any]) -> None:
        missing = [
            name
            for name in traced.untouched
            if name in parameters and wanted[name].numel() and not _is_scale(name)
        ]
        # A head that is the embedding has a parameter of its own in the layout of loaders.
        missing = [name for name in missing if not name.endswith("lm_head.weight")]
        if missing:
            raise InvalidInput(
                f'parameter "{missing[0]}" of the server is given by no tensor of the trainer, nor '
                f"are {len(missing) - 1} others: the trainer has another model, or names it "
                "otherwise",
                tensor=missing[0],
            )

    def _is_in_place(self, layer: Any, live: Any, wanted: Any) -> bool:
        if getattr(layer, "quant_method", None) is not None:
            return False
        return _matches(live, wanted)

    def _tie_head(self, traced: Any, owners: Any, memory: Any, wanted: Any) -> None:
        """A head that is the embedding, whose kernel may have a copy of its own."""
        heads = [name for name in traced.untouched if name.endswith("lm_head.weight")]
        tables = [name for name in memory if name.endswith("embed_tokens.weight")]
        for name in heads:
            if name in owners and tables and wanted[name].shape == wanted[tables[0]].shape:
                table = memory[tables[0]].view(wanted[name].shape)
                self.staged[name] = (*owners[name], table)

    def _keep_rest(self, layers: Any, owners: Any, live: Any, wanted: Any) -> None:
        """What a staged layer has and no tensor gives stays: it is processed with the others."""
        given = {(id(layer), own) for layer, own, _ in self.staged.values()}
        for name, (layer, own) in owners.items():
            if layer in layers and (id(layer), own) not in given and name in wanted:
                if wanted[name].numel() == 0:
                    continue
                if not _matches(live.get(name), wanted[name]):
                    raise Unsupported(
                        f'parameter "{name}" is given by no tensor, and its layer keeps it in '
                        "another layout than it was loaded in: give it a tensor", tensor=name,
                    )  # fmt: skip
                self.staged[name] = (layer, own, live[name].detach().clone())

    def install(self) -> None:
        """Processes what has arrived beside its layers into the memory that they have."""
        import torch

        if not self.staged:
            return
        log = logging.getLogger(_LAYERWISE)
        level, layers = log.level, []  # it warns of each layer that is written in place
        log.setLevel(logging.ERROR)
        try:
            with torch.no_grad(), self._loaders_kept():
                self._reload.initialize_layerwise_reload(self._model)
                for layer, _, _ in self.staged.values():
                    if layer not in layers:
                        layers.append(layer)
                        self._take_copies(layer)
                for layer, name, stage in self.staged.values():
                    target = getattr(layer, name)
                    target.weight_loader(target, stage)
                self._reload.finalize_layerwise_reload(self._model, self._config)
        finally:
            log.setLevel(level)

    def _take_copies(self, layer: Any) -> None:
        for tensor in (*layer._parameters.values(), *layer._buffers.values()):
            if tensor is not None:
                tensor.weight_loader = _copy
        self._reload.initialize_online_processing(layer)
        method = getattr(layer, "quant_method", None)
        stages = [stage for owner, _, stage in self.staged.values() if owner is layer]
        on_cpu = stages[0].device.type == "cpu"
        if on_cpu and method is not None and getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None  # it packs experts when it is made, and never again


def _copy(param: Any, loaded_weight: Any) -> None:
    param.data.copy_(loaded_weight)


def _row(tensor: Any) -> Any:
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def _is_scale(name: str) -> bool:
    """Numbers that vLLM makes itself where a checkpoint has none."""
    return name.rpartition(".")[2].endswith(("k_scale", "v_scale", "q_scale", "prob_scale"))


# The worker.


class FerryWeightTransferEngine(_Engine):  # type: ignore[misc]
    """What vLLM makes in each worker for ``WeightTransferConfig(backend="ferry")``."""

    init_info_cls = FerryInitInfo
    update_info_cls = FerryUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        self._link: Optional[Link] = None
        self._server: Optional[ServerModel] = None
        self._is_open = self._has_arrived = False
        self._version = 0

    def init_transfer_engine(self, init_info: FerryInitInfo) -> None:
        """Meets the trainer and all workers, traces, plans and prepares. Later calls, with the
        address of another meeting, begin anew: that is how a worker that was restarted joins."""
        self.shutdown()
        parallel = self.vllm_config.parallel_config
        number = parallel.data_parallel_index * parallel.world_size + parallel.rank
        number += init_info.first_worker
        if not 0 <= number < init_info.n_workers:
            raise InvalidInput(
                f"worker {number} of a server of which the trainer says that it has "
                f"{init_info.n_workers} workers: give their number as n_workers"
            )
        store = open_store(init_info.host, init_info.port, False, init_info.seconds)
        size = init_info.n_trainers + init_info.n_workers
        exchange = StoreExchange(store, init_info.n_trainers + number, size, init_info.seconds)
        who = f"worker {number} of the server"
        link = Link(exchange, init_info.seconds, init_info.secret, who, self._version)
        server = ServerModel(self.model, self.model_config)
        try:
            link.prepare(None, destination=server.half)
        except BaseException:
            link.close()
            raise
        self._link, self._server = link, server

    def start_weight_update(self) -> None:
        """An update begins: nothing of the model changes yet."""
        if self._link is None:
            raise Misuse("an update before the trainer was met: call init_weight_transfer_engine")
        if self._is_open:
            raise Misuse("an update is under way: finish it before another one")
        self._is_open, self._has_arrived = True, False

    def update_weights(self, update_info: Dict[str, Any]) -> None:
        """The same as :meth:`receive_weights` with what a request says."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: FerryUpdateInfo) -> None:
        """Collective with the trainer: the bytes of the update arrive."""
        if self._link is None or not self._is_open:
            raise Misuse("weights outside of an update: call start_weight_update before")
        try:
            self._link.run(update_info.version)
        except BaseException:
            self._is_open = False  # vLLM, too, takes it for over
            raise
        self._version, self._has_arrived = update_info.version, True

    def finish_weight_update(self) -> None:
        """What arrived beside its layers is processed. An update that failed is given up."""
        if not self._is_open or self._server is None:
            raise Misuse("the end of an update that has not begun: call start_weight_update before")
        self._is_open = False
        if self._has_arrived:
            self._server.install()

    def shutdown(self) -> None:
        """Leaves the trainer."""
        link, self._link, self._is_open = self._link, None, False
        self._server = None
        if link is not None:
            link.close()

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        """The trainer of this engine is an object: :class:`FerryTrainer`."""
        raise Unsupported("the engine ferry has a trainer of its own: FerryTrainer.trainer_init")


# The trainer.


class FerryTrainer(_Trainer):  # type: ignore[misc]
    """The trainer's end, on every rank. ``source`` is a module of torch (plain, FSDP2 or tensor
    parallel), a state dict, vLLM's ``ModuleSource``, a
    :class:`ferry.adapters.megatron.MegatronSource`, or any other ``WeightSource``, whose full tensors
    the first rank then keeps a copy of.

    The names are those of the checkpoint that the server's loader knows.
    """

    init_info_cls = FerryTrainerInitInfo

    def __init__(self, info: FerryTrainerInitInfo, client: Any, source: Any) -> None:
        self.info, self.client, self.source = info, client, source
        self.is_sender, self.rank = info.is_sender, info.rank
        self.version = 0
        self._weights = _Weights(source, info.rank)
        self._link: Optional[Link] = None
        self._exchange: Any = None
        self._has_failed = False
        self.join()

    @classmethod
    def trainer_init(cls, *given: Any, client: Any, source: Any, **named: Any) -> "FerryTrainer":
        """Collective over the trainer and the workers: they meet, trace, plan and prepare."""
        info = named.get("init_info", given[-1] if given else None)
        if isinstance(info, dict):
            info = FerryTrainerInitInfo(**info)
        if not isinstance(info, FerryTrainerInitInfo):
            raise InvalidInput(f"init_info is {info!r}: give a FerryTrainerInitInfo")
        return cls(info, client, source)

    def join(self, client: Any = None, n_workers: Optional[int] = None) -> None:
        """Collective over the trainer and the workers: meets whoever the server has now, also after
        workers were lost or restarted. Another server is reached by another ``client``, and may have
        another number of workers. Versions go on."""
        if self._has_failed and client is None and self.is_sender:
            with contextlib.suppress(Exception):  # the server has ended, or has no update under way
                self.client.finish_weight_update()
        self.client, self._has_failed = client or self.client, False
        self.info = info = replace(self.info, n_workers=n_workers or self.info.n_workers)
        self.shutdown()
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
        except Error as error:
            raise _because(error, call)
        if call is not None:
            call.join()

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
        except Error as error:
            self._exchange.tell(_settling(version), _told(error).decode())
            raise self._lost(_because(error, call))
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
            except BaseException as error:
                raised = self._reason(link, error)
        said = "" if raised is None else _told(raised).decode()
        said = self._exchange.settle(_settling(version), self.info.n_trainers, said)
        if raised is not None:
            raise raised
        if said:
            raise _heard(0, said.encode())

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
        try:
            self.client.start_weight_update()
            self.client.update_weights({"version": version})
        except BaseException as error:
            if not link.world.closed:
                link.world.abort(f"the server refused version {version}: {error}")
            raise

    def _lost(self, error: Error) -> Error:
        """With the remedy, where a worker is lost."""
        lost = [one for one in self.workers if one.rank in error.ranks]
        if lost:
            error.args = (f"{error}; start the server again and call join on all ranks of the trainer",)
        return error

    def shutdown(self) -> None:
        """Leaves the server."""
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

    def join(self) -> None:
        self._thread.join()
        if self.error is not None:
            raise self.error


def _because(error: Error, call: Optional[_Call]) -> Error:
    """What the server answered says more than that its workers did not come."""
    if call is not None and call.error is not None and str(call.error) not in str(error):
        error.args = (f"{error}; the server answered: {call.error}",)
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
