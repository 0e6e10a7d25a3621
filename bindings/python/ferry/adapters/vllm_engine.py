# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The weight transfer engine "ferry" of vLLM: of its workers, and of the trainer.

vLLM finds it by its entry point; nothing of vLLM is patched. Each worker traces its own loader, so
it gets what it needs and nothing else, from whichever ranks of the trainer hold it.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Container, Dict, Iterator, Optional, Tuple

from .._errors import InvalidInput, Misuse, Unsupported
from ._base import class_of, quantization_of
from ._loader import tensors_of, traced_loader
from ._trainer import SECONDS, Trainer, TrainerInfo
from ._updates import Half, Link, StoreExchange, Tensors, reach_store, under_way

if TYPE_CHECKING:
    from .._side import Side

__all__ = [
    "FerryInitInfo", "FerryTrainer", "FerryTrainerInitInfo", "FerryUpdateInfo",
    "FerryWeightTransferEngine",
]  # fmt: skip

_LAYERWISE = "vllm.model_executor.model_loader.reload.layerwise"
_META = "vllm.model_executor.model_loader.reload.meta"
_TABLES = ("embed_tokens.weight", "word_embeddings.weight", "wte.weight")  # which heads may be

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
class FerryTrainerInitInfo(TrainerInfo):
    """What a rank of the trainer says: who it is, and how many workers the server has."""

    backend: str = "ferry"


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
        from .._memory import share_what_can

        self._check_model()
        live = tensors_of(self._model)
        with self.as_loaded():
            traced = traced_loader(self._model, tensors)
            wanted = dict(self._model.named_parameters(remove_duplicate=False))
            parameters = set(wanted)
            wanted.update(self._model.named_buffers(remove_duplicate=False))
        owners = {
            f"{prefix}.{name}" if prefix else name: (layer, name)
            for prefix, layer in self._model.named_modules(remove_duplicate=False)
            for name in (*self._reload.get_layerwise_info(layer).restore_metadata[0],
                         *self._reload.get_layerwise_info(layer).restore_metadata[1])
        }  # fmt: skip
        ties = self._ties(traced, live, owners, wanted)
        self._check(traced, parameters, wanted, owners, ties)
        written = self._written(traced, live, wanted, owners, ties)
        share_what_can(written, live)
        memory = {name: _row(one) for name, one in written.items()}
        for name, table in ties.items():
            if not self._is_in_place(owners[name][0], live.get(name), wanted[name]):
                self.staged[name] = (*owners[name], memory[table].view(wanted[name].shape))
        self._keep_rest(owners, live, wanted)
        return Half(_without(traced.side(), ties), memory)

    def _check_model(self) -> None:
        if hasattr(self._model, "process_weights_after_loading"):
            name = type(self._model).__name__
            raise Unsupported(
                f"{name} of the server computes other tensors of its weights once they are loaded "
                "(process_weights_after_loading), which an update in place leaves as they were: use "
                "another weight transfer backend of vLLM for it"
            )

    def _written(
        self, traced: Any, live: Any, wanted: Any, owners: Any, ties: Dict[str, str]
    ) -> Dict[str, Any]:
        """What the bytes of each parameter are written to: itself, or what is beside its layer."""
        import torch

        written: Dict[str, Any] = {}
        for name in traced.parameters:
            if name in ties:
                continue
            self._check_made(name, live, owners)
            layer, own = owners[name] if name in owners else (None, name)
            if layer is None or self._is_in_place(layer, live.get(name), wanted[name]):
                written[name] = live[name]
                continue
            device = self._reload.get_layerwise_info(layer).restore_device
            stage = torch.zeros(wanted[name].shape, dtype=wanted[name].dtype, device=device)
            self.staged[name] = (layer, own, stage)
            written[name] = stage
        return written

    def _check_made(self, name: str, live: Any, owners: Any) -> None:
        """Loaders may make parameters that a model without a checkpoint does not have."""
        if name not in owners and name not in live:
            raise Unsupported(
                f'parameter "{name}" is one that the server\'s loader makes when it loads a checkpoint, '
                "and this server has loaded none: start it with one (not with load_format dummy)",
                tensor=name,
            )

    def _ties(self, traced: Any, live: Any, owners: Any, wanted: Any) -> Dict[str, str]:
        """Parameters that are another one, such as a head that is the embedding, with that one's name.
        Loaders have them apart, and kernels may have a copy of each."""
        found: Dict[str, str] = {}
        first: Dict[int, str] = {}
        for name, one in live.items():
            known = first.setdefault(id(one), name) if name in owners else name
            if known != name and owners[name] != owners[known]:
                found[name] = known
        heads = [name for name in traced.untouched if name.endswith("lm_head.weight")]
        for name in heads if self._is_tied() else ():  # which is not the same tensor any more
            tables = [one for one in traced.parameters if one.endswith(_TABLES)]
            if name in owners and len(tables) == 1:
                found.setdefault(name, tables[0])
        given = set(traced.parameters)
        kept = {name: table for name, table in found.items()
                if table in given and wanted[name].shape == wanted[table].shape}  # fmt: skip
        self._check_ties({name: table for name, table in kept.items() if name in given})
        return kept

    def _check_ties(self, both: Dict[str, str]) -> None:
        """What is given twice. Where the config says that they are one, vLLM's loaders take the first;
        where a checkpoint had both, and they were equal, others may differ."""
        if both and self._is_retied():
            name, table = next(iter(both.items()))
            raise InvalidInput(
                f'parameters "{name}" and "{table}" were equal in the checkpoint of the server, which '
                f'keeps one of them, and the trainer gives both: leave "{name}" out of its source, or '
                "start the server with tie_word_embeddings=false in its config",
                tensor=name,
            )

    def _is_retied(self) -> bool:
        """Whether vLLM has found a head in the checkpoint beside a config that says it is tied."""
        return bool(getattr(self._config, "word_embeddings_untied_by_checkpoint", False))

    def _check(
        self, traced: Any, parameters: Any, wanted: Dict[str, Any], owners: Any, ties: Dict[str, str]
    ) -> None:
        """Every element of every parameter is given. Excepted is what no checkpoint need have: scales
        that vLLM makes itself, what is another parameter, and what layers that are quantized pad their
        weights with."""
        missing = [
            name
            for name in traced.untouched
            if name in parameters and wanted[name].numel() and not _is_scale(name)
            if name not in ties
        ]
        if missing:
            raise InvalidInput(
                f'parameter "{missing[0]}" of the server is given by no tensor of the trainer, nor '
                f"are {len(missing) - 1} others: the trainer has another model, or names it "
                "otherwise",
                tensor=missing[0],
            )
        parts = [
            name
            for name in traced.partial
            if name not in owners or quantization_of(owners[name][0]) is None
        ]
        if parts:
            raise InvalidInput(
                f'parameter "{parts[0]}" of the server is given only in part by tensors of the '
                f"trainer, as are {len(parts) - 1} others: the trainer lacks some of them",
                tensor=parts[0],
            )

    def _is_tied(self) -> bool:
        if self._is_retied():
            return True
        for name in ("hf_text_config", "hf_config"):
            config = getattr(self._config, name, None)
            if getattr(config, "tie_word_embeddings", False):
                return True
        return False

    def _is_in_place(self, layer: Any, live: Any, wanted: Any) -> bool:
        if getattr(layer, "quant_method", None) is not None:
            return False
        return _matches(live, wanted)

    def _keep_rest(self, owners: Any, live: Any, wanted: Any) -> None:
        """What a staged layer has and no tensor gives stays: it is processed with the others."""
        layers = {layer for layer, _, _ in self.staged.values()}
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


def _without(side: "Side", names: Container[str]) -> "Side":
    """A side but for these parameters."""
    entries = side.to_dict()["boxes"] if names else []
    kept = [one for one in entries if one["parameter"] not in names]
    return side if len(kept) == len(entries) else type(side).from_json({"boxes": kept})


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
        self._has_left = False  # a trainer that is gone has left an update under way
        self._version = 0

    def init_transfer_engine(self, init_info: FerryInitInfo) -> None:
        """Meets the trainer and all workers, traces, plans and prepares. Later calls, with the
        address of another meeting, begin anew: that is how a worker that was restarted joins."""
        self._take_over()
        parallel = self.vllm_config.parallel_config
        number = parallel.data_parallel_index * parallel.world_size + parallel.rank
        number += init_info.first_worker
        if not 0 <= number < init_info.n_workers:
            raise InvalidInput(
                f"worker {number} of a server of which the trainer says that it has "
                f"{init_info.n_workers} workers: give their number as n_workers"
            )
        store = reach_store(init_info.host, init_info.port, init_info.seconds)
        size = init_info.n_trainers + init_info.n_workers
        exchange = StoreExchange(store, init_info.n_trainers + number, size, init_info.seconds)
        who = f"worker {number} of the server"
        link = Link(
            exchange, init_info.seconds, init_info.secret, who, self._version, self._has_left
        )
        server = ServerModel(self.model, self.model_config)
        try:
            link.prepare(None, destination=server.half)
            link.check_use(None)
        except BaseException:
            link.close()
            raise
        self._link, self._server = link, server

    def _take_over(self) -> None:
        """Leaves the trainer that was met before, unless that is there and has an update under way."""
        trainer = self._link.trainer() if self._link is not None and self._is_open else None
        if trainer is not None:
            raise under_way(trainer)
        self._has_left = self._has_left or self._is_open
        self.shutdown()

    def start_weight_update(self) -> None:
        """An update begins: nothing of the model changes yet."""
        if self._link is None:
            raise Misuse("an update before the trainer was met: call init_weight_transfer_engine")
        if self._is_open:
            raise Misuse("an update is under way: finish it before another one")
        self._is_open, self._has_arrived, self._has_left = True, False, False

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


class FerryTrainer(Trainer, _Trainer):  # type: ignore[misc]
    """The trainer's end, on every rank. ``source`` is a module of torch (plain, FSDP2 or tensor
    parallel), a state dict, vLLM's ``ModuleSource``, a
    :class:`ferry.adapters.megatron.MegatronSource`, or any other ``WeightSource``, whose full tensors
    the first rank then keeps a copy of.

    The names are those of the checkpoint that the server's loader knows.
    """

    init_info_cls = FerryTrainerInitInfo
