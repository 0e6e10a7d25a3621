# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""From the names of Hugging Face to the fused, sharded weights of a server such as vLLM.

A server fuses ``q_proj``, ``k_proj`` and ``v_proj`` into ``qkv_proj``, ``gate_proj`` and
``up_proj`` into ``gate_up_proj``, and cuts each component by itself. With fewer heads of keys and
values than ranks, neighbours hold the same head. The experts of a layer are two stacks there,
``experts.w13_weight`` and ``experts.w2_weight``: cut like an MLP, or, with expert parallelism,
whole experts on each rank. :func:`spec` says all that in a ferry.spec/1, with the source whole on
its ranks, or sharded over groups of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import (
    TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple,
)  # fmt: skip

from .. import _ferry
from .._errors import Error, InvalidInput, Unsupported

if TYPE_CHECKING:
    from .._ferry import World
    from .._plan import Spec
    from .._refit import Refit, RefitResult

__all__ = ["Config", "prepare", "refit", "register", "spec", "spec_dict"]


@dataclass
class Config:
    """A decoder with grouped-query attention and a gated MLP, or experts instead of it: Llama,
    Qwen, Mistral, Mixtral and similar models.

    >>> Config(hidden_size=64, n_heads=8, n_kv_heads=2, intermediate_size=96, n_layers=1).kv_rows
    16
    """

    hidden_size: int
    n_heads: int
    intermediate_size: int
    n_layers: int
    n_kv_heads: int = 0  # 0: as many as heads
    head_dim: int = 0  # 0: hidden_size / n_heads
    vocab_size: int = 0  # 0: no embedding and no head
    vocab_multiple: int = 64  # the server pads its vocabulary to a multiple of this
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied: bool = False  # the head is the embedding
    dtype: str = "bf16"
    prefix: str = "model."
    n_experts: int = 0  # of each layer, which then has no other MLP; 0: none
    expert_size: int = 0  # the intermediate size of one of them; 0: intermediate_size
    shared_expert_size: int = 0  # of the one that all tokens take; 0: there is none
    moe: str = "mlp"  # the part of a layer that has the experts
    expert_parts: Tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")

    def __post_init__(self) -> None:
        self.n_kv_heads = self.n_kv_heads or self.n_heads
        self.expert_size = self.expert_size or self.intermediate_size
        if self.head_dim == 0:
            if self.n_heads < 1 or self.hidden_size % self.n_heads != 0:
                raise InvalidInput(
                    f"{self.n_heads} heads do not divide a hidden size of {self.hidden_size}: give "
                    "head_dim"
                )
            self.head_dim = self.hidden_size // self.n_heads
        if self.n_heads % self.n_kv_heads != 0:
            raise InvalidInput(
                f"{self.n_kv_heads} heads of keys and values do not divide {self.n_heads} heads"
            )

    @classmethod
    def of_hf(cls, config: Any, **others: Any) -> "Config":
        """Makes it from a configuration of transformers, or from the dict of a ``config.json``.

        Biases and norms of heads follow from ``attention_bias``, ``mlp_bias`` and the model type:
        Qwen2 has biases of queries, keys and values, Qwen3 has norms of queries and keys. Experts
        are supported for ``mixtral``, ``qwen2_moe`` and ``qwen3_moe``, under the names of their
        checkpoints. ``others`` are fields of this class that override the configuration.
        """

        def get(name: str, default: Any = None) -> Any:
            if isinstance(config, Mapping):
                return config.get(name, default)
            return getattr(config, name, default)

        missing = [name for name in _HF_NUMBERS if get(name) is None]
        if missing:
            inner = "text_config" if get("text_config") is not None else "the language model"
            raise InvalidInput(
                f"the configuration has no {missing[0]}: give that of the decoder itself, as "
                f"{inner}, with prefix= where its tensors have another"
            )
        kind, bias = get("model_type") or "", bool(get("attention_bias"))
        fields: Dict[str, Any] = {
            "hidden_size": get("hidden_size"),
            "n_heads": get("num_attention_heads"),
            "intermediate_size": get("intermediate_size"),
            "n_layers": get("num_hidden_layers"),
            "n_kv_heads": get("num_key_value_heads") or 0,
            "head_dim": get("head_dim") or 0,
            "vocab_size": get("vocab_size") or 0,
            "qkv_bias": bias or kind == "qwen2" or (kind == "qwen2_moe" and get("qkv_bias", True)),
            "o_bias": bias and kind not in ("qwen2", "qwen2_moe"),
            "mlp_bias": bool(get("mlp_bias")),
            "qk_norm": kind in ("qwen3", "qwen3_moe"),
            "tied": bool(get("tie_word_embeddings", False)),
            **_experts_of_hf(kind, get),
        }
        return cls(**{**fields, **others})

    def experts_of(self, ep: int) -> List[int]:
        """The number of experts on each of ``ep`` ranks; if they do not divide evenly, the first
        have one more.
        """
        return [self.n_experts // ep + (rank < self.n_experts % ep) for rank in range(ep)]

    @property
    def q_rows(self) -> int:
        """The rows of the queries' projection."""
        return self.n_heads * self.head_dim

    @property
    def kv_rows(self) -> int:
        """The rows of the projection of keys, or of values."""
        return self.n_kv_heads * self.head_dim

    @property
    def padded_vocab_size(self) -> int:
        """The rows of the vocabulary as the server pads them."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    def vocab_rows(self, tp: int) -> List[int]:
        """The rows of the vocabulary on each of ``tp`` ranks, without padding."""
        each = self.padded_vocab_size // tp
        ends = [min(self.vocab_size, each * rank) for rank in range(tp + 1)]
        return [last - first for first, last in zip(ends, ends[1:])]


def _experts_of_hf(kind: str, get: Callable[..., Any]) -> Dict[str, Any]:
    """The fields of a mixture of experts, by the model's type; none of a dense one."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    counted = [name for name in names if (get(name) or 0) > 0]
    if not counted:
        return {}
    found: Dict[str, Any] = {"n_experts": get(counted[0])}
    if kind == "mixtral":
        return {**found, "moe": "block_sparse_moe", "expert_parts": ("w1", "w3", "w2")}
    if kind not in ("qwen2_moe", "qwen3_moe"):
        raise Unsupported(
            f'the configuration has {counted[0]}={get(counted[0])}, and of the model type "{kind}" '
            f'it is not known how "{_HF_EXPERT}" becomes "{_EXPERTS}" on a server: experts are '
            "known of mixtral, qwen2_moe and qwen3_moe. Give a Config with n_experts, expert_size, "
            "moe and expert_parts, or start from spec_dict() and write the tensors",
            tensor=_EXPERTS,
        )
    if (get("decoder_sparse_step") or 1) != 1 or get("mlp_only_layers"):
        raise Unsupported(
            f"the configuration has decoder_sparse_step={get('decoder_sparse_step')} and "
            f'mlp_only_layers={get("mlp_only_layers")}: some layers have "mlp.gate_up_proj.weight" '
            f'and others "{_EXPERTS}", and this adapter knows models whose layers are alike. Start '
            "from spec_dict() of both kinds and give each layer the tensors that it has",
            tensor=_EXPERTS,
        )
    shared = (get("shared_expert_intermediate_size") or 0) if kind == "qwen2_moe" else 0
    return {**found, "expert_size": get("moe_intermediate_size"), "shared_expert_size": shared}


_HF_NUMBERS = ("hidden_size", "num_attention_heads", "intermediate_size", "num_hidden_layers")
_HF_EXPERT = "mlp.experts.0.gate_proj.weight"
_EXPERTS = "mlp.experts.w13_weight"

Tensor = Dict[str, Any]


def _layer(config: Config, part: str) -> str:
    return config.prefix + "layers.{0}." + part


def _plain(name: str, shape: Sequence[int], config: Config, count: bool = True) -> Tensor:
    tensor: Tensor = {"name": name, "shape": list(shape), "dtype": config.dtype}
    if count:
        tensor["count"] = [config.n_layers]
    return tensor


def _fused(name: str, parts: Sequence[Tensor], config: Config) -> Tensor:
    """The parts one below the other."""
    boxes, at = [], 0
    for part in parts:
        shape = part["shape"]
        boxes.append({
            "tensor": part["name"], "begin": [0] * len(shape), "shape": shape,
            "at": [at] + [0] * (len(shape) - 1),
        })  # fmt: skip
        at += shape[0]
    fused = _plain(name, [at, *parts[0]["shape"][1:]], config)
    fused["source"] = boxes
    return fused


def _gated(config: Config, part: str, size: int, bias: bool) -> List[Tensor]:
    """A gated MLP, its first two projections by themselves and fused."""
    found = []
    for kind in ("weight", "bias") if bias else ("weight",):
        shape = [size, config.hidden_size][: 2 if kind == "weight" else 1]
        gate_up = [
            _plain(_layer(config, f"{part}{one}_proj.{kind}"), shape, config) for one in ("gate", "up")
        ]
        found += [*gate_up, _fused(_layer(config, f"{part}gate_up_proj.{kind}"), gate_up, config)]
        down = [config.hidden_size, size] if kind == "weight" else [config.hidden_size]
        found.append(_plain(_layer(config, f"{part}down_proj.{kind}"), down, config))
    return found


def _experts(config: Config) -> List[Tensor]:
    """Each expert by itself, and what the server stacks: gates over ups, and downs."""
    hidden, size, moe = config.hidden_size, config.expert_size, config.moe + "."
    gate, up, down = config.expert_parts
    shapes = {gate: [size, hidden], up: [size, hidden], down: [hidden, size]}
    found: List[Tensor] = []

    def called(expert: Any, part: str) -> str:
        return _layer(config, f"{moe}experts.{expert}.{part}.weight")

    for part, shape in shapes.items():
        one = _plain(called("{1}", part), shape, config)
        found.append({**one, "count": [config.n_layers, config.n_experts]})
    stacks = {"w13_weight": ((gate, 0), (up, size)), "w2_weight": ((down, 0),)}
    for name, parts in stacks.items():
        rows, columns = shapes[parts[0][0]]
        shape = [config.n_experts, rows * len(parts), columns]
        stack = _plain(_layer(config, f"{moe}experts.{name}"), shape, config)
        stack["source"] = [
            {"tensor": called(expert, part), "begin": [0, 0], "shape": shapes[part],
             "at": [expert, at, 0]}
            for expert in range(config.n_experts) for part, at in parts
        ]  # fmt: skip
        found.append(stack)
    found.append(_plain(_layer(config, moe + "gate.weight"), [config.n_experts, hidden], config))
    if config.shared_expert_size != 0:
        found += _gated(config, moe + "shared_expert.", config.shared_expert_size, False)
        found.append(_plain(_layer(config, moe + "shared_expert_gate.weight"), [1, hidden], config))
    return found


def _tensors(config: Config) -> List[Tensor]:
    hidden, attention = config.hidden_size, "self_attn."
    rows = {"q": config.q_rows, "k": config.kv_rows, "v": config.kv_rows}
    found = []
    for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
        tail = [hidden] if kind == "weight" else []
        qkv = [
            _plain(_layer(config, f"{attention}{one}_proj.{kind}"), [n, *tail], config)
            for one, n in rows.items()
        ]
        found += [*qkv, _fused(_layer(config, f"{attention}qkv_proj.{kind}"), qkv, config)]
    if config.n_experts != 0:
        found += _experts(config)
    else:
        found += _gated(config, "mlp.", config.intermediate_size, config.mlp_bias)
    shapes = {
        attention + "o_proj.weight": [hidden, config.q_rows],
        "input_layernorm.weight": [hidden],
        "post_attention_layernorm.weight": [hidden],
    }
    if config.o_bias:
        shapes[attention + "o_proj.bias"] = [hidden]
    if config.qk_norm:
        shapes[attention + "q_norm.weight"] = [config.head_dim]
        shapes[attention + "k_norm.weight"] = [config.head_dim]
    found += [_plain(_layer(config, name), shape, config) for name, shape in shapes.items()]
    found.append(_plain(config.prefix + "norm.weight", [hidden], config, False))
    return found + [_plain(name, [config.vocab_size, hidden], config, False)
                    for name in _vocabulary(config)]  # fmt: skip


def _vocabulary(config: Config) -> List[str]:
    if config.vocab_size == 0:
        return []
    return [config.prefix + "embed_tokens.weight"] + ([] if config.tied else ["lm_head.weight"])


def _check_tp(config: Config, tp: int, ep: int, side: str) -> None:
    numbers = {"heads": config.n_heads}
    if config.n_experts == 0:
        numbers["rows of the MLP"] = config.intermediate_size
    elif ep == 1:
        numbers["rows of an expert"] = config.expert_size
    if config.n_experts != 0 and config.shared_expert_size != 0:
        numbers["rows of the shared expert"] = config.shared_expert_size
    for what, n in numbers.items():
        if tp < 1 or n % tp != 0:
            raise InvalidInput(f"{n} {what} cannot be cut for {tp} ranks of the {side}")
    few, many = sorted((tp, config.n_kv_heads))
    if many % few != 0:
        raise InvalidInput(
            f"{config.n_kv_heads} heads of keys and values and {tp} ranks of the {side}: neither "
            "divides the other"
        )
    if config.padded_vocab_size % tp != 0:
        raise InvalidInput(
            f"a vocabulary that is padded to {config.padded_vocab_size} rows cannot be cut for "
            f"{tp} ranks of the {side}: give vocab_multiple"
        )


def _check_ep(config: Config, tp: int, ep: int, n_ranks: int, side: str) -> None:
    if ep == 1:
        return
    if config.n_experts == 0:
        raise InvalidInput(f"{side}_ep is {ep}, and the config has no experts: give n_experts")
    if ep < 1 or ep % tp != 0 or n_ranks % ep != 0:
        raise InvalidInput(
            f"{side}_ep is {ep}: experts are spread over a multiple of the {tp} ranks that cut a "
            f"layer of the {side}, which divides its {n_ranks} ranks"
        )
    if side == "source" and tp != 1 and ep != tp:
        raise InvalidInput(
            f"source_ep is {ep} and source_tp {tp}: experts that lie by themselves are spread over "
            "the ranks that cut a layer, or over replicas of one rank: give source_ep equal to "
            "source_tp, or source_tp 1"
        )


def _rules(config: Config, tp: int, ep: int) -> List[Dict[str, Any]]:
    """Of both sides: a rule for a name that a side does not have hurts nobody."""
    heads = min(config.n_kv_heads, tp)  # parts of keys and values; neighbours hold the same

    def cut(dim: int, **how: Any) -> List[Dict[str, Any]]:
        return [{"dim": dim, "axis": "tp", **how}]

    kv = cut(0, unit=config.head_dim, parts=heads)
    blocks = [config.q_rows, [config.kv_rows, heads], [config.kv_rows, heads]]
    shared = cut(0, blocks=[config.shared_expert_size] * 2)
    rules = [
        *_expert_rules(config, ep, cut),
        {"match": "*.qkv_proj.*", "shard": cut(0, unit=config.head_dim, blocks=blocks)},
        {"match": "*.shared_expert.gate_up_proj.*", "shard": shared},
        {"match": "*.gate_up_proj.*", "shard": cut(0, blocks=[config.intermediate_size] * 2)},
        {"match": "*.q_proj.*", "shard": cut(0, unit=config.head_dim)},
        {"match": "*.k_proj.*", "shard": kv},
        {"match": "*.v_proj.*", "shard": kv},
        {"match": "*.gate_proj.*", "shard": cut(0)},
        {"match": "*.up_proj.*", "shard": cut(0)},
        {"match": "*.o_proj.weight", "shard": cut(1, unit=config.head_dim)},
        {"match": "*.down_proj.weight", "shard": cut(1)},
    ]
    for name in _vocabulary(config):
        rules.append({"match": name, "shard": cut(0, sizes=config.vocab_rows(tp))})
    return [*rules, {"match": "*"}]


def _expert_rules(
    config: Config, ep: int, cut: Callable[..., List[Dict[str, Any]]]
) -> List[Dict[str, Any]]:
    if config.n_experts == 0:
        return []
    if ep != 1:  # whole experts; those by themselves are placed by a stage
        spread = [{"dim": 0, "axis": ["ep", "tp"], "sizes": config.experts_of(ep)}]
        stacks = [{"match": f"*.experts.{name}", "shard": spread} for name in _STACKS]
        return [*stacks, {"match": "*.experts.*"}]
    gate, up, down = config.expert_parts
    return [
        {"match": "*.experts.w13_weight", "shard": cut(1, blocks=[config.expert_size] * 2)},
        {"match": "*.experts.w2_weight", "shard": cut(2)},
        {"match": f"*.experts.*.{gate}.*", "shard": cut(0)},
        {"match": f"*.experts.*.{up}.*", "shard": cut(0)},
        {"match": f"*.experts.*.{down}.*", "shard": cut(1)},
    ]


_STACKS = ("w13_weight", "w2_weight")


def _side(
    config: Config, tp: int, ep: int, ranks: Optional[Sequence[int]], side: str
) -> Dict[str, Any]:
    _check_tp(config, tp, ep, side)
    ranks = list(range(max(tp, ep)) if ranks is None else ranks)
    if len(ranks) == 0 or len(ranks) % tp != 0:
        raise InvalidInput(f"{len(ranks)} ranks of the {side} are not a multiple of {tp}")
    _check_ep(config, tp, ep, len(ranks), side)
    groups = 1 if ep == 1 else ep // tp
    mesh = [["replica", len(ranks) // tp // groups], ["ep", groups], ["tp", tp]]
    return {"mesh": mesh, "ranks": ranks, "rules": _rules(config, tp, ep)}


def _source(config: Config, tp: int, ep: int, ranks: Optional[Sequence[int]]) -> Dict[str, Any]:
    side = _side(config, tp, ep, ranks, "source")
    if ep != 1:
        side["stages"] = [{
            "match": f"*.{config.moe}.experts.{{}}.*", "axis": "tp" if tp != 1 else "ep",
            "sizes": config.experts_of(ep),
        }]  # fmt: skip
    return side


def spec_dict(
    config: Config,
    *,
    source_tp: int = 1,
    destination_tp: int = 1,
    source_ranks: Optional[Sequence[int]] = None,
    destination_ranks: Optional[Sequence[int]] = None,
    source_ep: int = 1,
    destination_ep: int = 1,
) -> Dict[str, Any]:
    """The ferry.spec/1 as a dict, to inspect or change it. See :func:`spec`."""
    return {
        "format": "ferry.spec/1",
        "tensors": _tensors(config),
        "source": _source(config, source_tp, source_ep, source_ranks),
        "destination": _destination(config, destination_tp, destination_ep, destination_ranks),
    }


def _destination(
    config: Config, tp: int, ep: int, ranks: Optional[Sequence[int]]
) -> Dict[str, Any]:
    """The components are not there by themselves: the fused tensors hold them."""
    side = _side(config, tp, ep, ranks, "destination")
    gone = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    skipped = [{"match": f"*.{part}.*", "skip": True} for part in gone]
    if config.n_experts != 0:
        skipped.append({"match": "*.experts.*.weight", "skip": True})
    side["rules"] = skipped + [
        rule for rule in side["rules"] if not any(f".{part}." in rule["match"] for part in gone)
    ]
    return side


def spec(
    config: Config,
    *,
    source_tp: int = 1,
    destination_tp: int = 1,
    source_ranks: Optional[Sequence[int]] = None,
    destination_ranks: Optional[Sequence[int]] = None,
    source_ep: int = 1,
    destination_ep: int = 1,
) -> "Spec":
    """The :class:`ferry.Spec` from a Hugging Face style model to a server's.

    The number of ranks on each side is its ``tp``, or a multiple of it: then each ``tp``
    consecutive ranks are a replica. They are 0, 1, ... unless given.

    With ``ep`` 1, experts are cut like the MLP. Otherwise whole experts are spread in order over
    each ``ep`` consecutive ranks, a multiple of ``tp``, as a server with expert parallelism does
    over all of its tensor- and data-parallel ranks; if they do not divide evenly, the first ranks
    have one more.

    >>> import ferry
    >>> config = Config(hidden_size=64, n_heads=8, n_kv_heads=2, intermediate_size=96, n_layers=1)
    >>> made = ferry.plan(spec(config, destination_tp=4, destination_ranks=[1, 2, 3, 4]))
    >>> made.shards("destination", 1)["model.layers.0.self_attn.qkv_proj.weight"].shape
    (32, 64)
    """
    from .._plan import Spec

    return Spec(
        spec_dict(
            config,
            source_tp=source_tp,
            destination_tp=destination_tp,
            source_ranks=source_ranks,
            destination_ranks=destination_ranks,
            source_ep=source_ep,
            destination_ep=destination_ep,
        )
    )


def _without_padding(config: Config, tp: int, place: int, state: Any) -> Optional[Dict[str, Any]]:
    """The state dict with the rows of the vocabulary that exist: the padding stays as it is."""
    if state is None:
        return None
    found, rows = dict(state), config.vocab_rows(tp)[place % tp] if config.vocab_size else 0
    for name in _vocabulary(config):
        if name in found and found[name].shape[0] > rows:
            found[name] = found[name][:rows]
    return found


def _sides(
    config: Config, source: Any, destination: Any, rank: int, how: Mapping[str, Any]
) -> Tuple[Optional[Dict[str, Any]], Optional[Dict[str, Any]]]:
    found = []
    for side, state in (("source", source), ("destination", destination)):
        tp = how[side + "_tp"]
        ranks = list(how[side + "_ranks"] or range(max(tp, how[side + "_ep"])))
        place = ranks.index(rank) if rank in ranks else None
        found.append(None if place is None else _without_padding(config, tp, place, state))
    return found[0], found[1]


def _check_written(
    planned: "Refit", destination: Optional[Mapping[str, Any]], rank: int, leave: Sequence[str]
) -> bytes:
    """A server that is half new is worse than none: whatever it has is written, or named here."""
    if destination is None:
        return b""
    written = planned.plans[0].shards("destination", rank)
    places = {_ferry.place_of(destination[name], name) for name in written if name in destination}
    for name, one in destination.items():
        if name in written or not hasattr(one, "shape") or any(fnmatchcase(name, p) for p in leave):
            continue
        if _ferry.place_of(one, name) not in places:  # a head that is the embedding is written
            raise InvalidInput(
                f'destination tensor "{name}" on rank {rank} is written by nothing: the config does '
                "not describe it. Correct the config (biases, norms, layers, prefix), or name it in "
                "leave=[...] to keep what it holds",
                tensor=name,
                ranks=(rank,),
            )
    return b""


def prepare(
    source: Optional[Mapping[str, Any]],
    destination: Optional[Mapping[str, Any]],
    config: Config,
    *,
    source_tp: int = 1,
    destination_tp: int = 1,
    source_ranks: Optional[Sequence[int]] = None,
    destination_ranks: Optional[Sequence[int]] = None,
    source_ep: int = 1,
    destination_ep: int = 1,
    world: Optional["World"] = None,
    leave: Sequence[str] = (),
    **options: Any,
) -> "Refit":
    """Collective: a :class:`ferry.Refit` from a Hugging Face style state dict into a server's,
    which may hold a padded vocabulary.

    If a tensor of the destination is not written, this is an error on all ranks; tensors whose
    names match a pattern of ``leave``, such as ``"*.inv_freq"``, keep their values.
    """
    from .._refit import Refit, agree
    from .._world import world as default

    own = default() if world is None else world
    how: Dict[str, Any] = {
        "source_tp": source_tp, "destination_tp": destination_tp,
        "source_ranks": source_ranks, "destination_ranks": destination_ranks,
        "source_ep": source_ep, "destination_ep": destination_ep,
    }  # fmt: skip
    made = spec(config, **how)
    sides = _sides(config, source, destination, own.rank, how)
    watched = [_given(state, side) for state, side in zip((source, destination), sides)]
    planned = Refit(*sides, made, world=own, watched=watched, **options)
    try:
        agree(own, lambda: _check_written(planned, sides[1], own.rank, leave))
    except Error:
        planned.close()
        raise
    return planned


def _given(state: Any, side: Optional[Mapping[str, Any]]) -> Any:
    """Tensors of which a part is moved, as they were given: see Refit's `watched`."""
    parts = {name for name, one in (side or {}).items() if one is not state[name]}
    given = {name: state[name] for name in parts}
    return lambda: given


def refit(
    source: Optional[Mapping[str, Any]],
    destination: Optional[Mapping[str, Any]],
    config: Config,
    **options: Any,
) -> "RefitResult":
    """Collective: one run of what :func:`prepare` plans."""
    with prepare(source, destination, config, **options) as planned:
        return planned.run()


def register() -> None:
    """Registers the engine "ferry" with vLLM, for workers and for the trainer. vLLM calls it by its
    entry point ``vllm.general_plugins``, in every process, and more than once."""
    import importlib

    factory = importlib.import_module("vllm.distributed.weight_transfer.factory")
    module = "ferry.adapters.vllm_engine"
    for registry, name in (
        (factory.WeightTransferEngineFactory, "FerryWeightTransferEngine"),
        (getattr(factory, "WeightTransferTrainerFactory", None), "FerryTrainer"),
    ):
        if registry is not None and "ferry" not in registry._registry:
            registry.register_engine("ferry", module, name)
