# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""From the names of Hugging Face to the fused, sharded weights of a server such as vLLM.

A server fuses ``q_proj``, ``k_proj`` and ``v_proj`` into ``qkv_proj``, ``gate_proj`` and
``up_proj`` into ``gate_up_proj``, and cuts each component by itself. With fewer heads of keys and
values than ranks, neighbours hold the same head. :func:`spec` says all that in a ferry.spec/1, with
the source whole on its ranks, or sharded over a tensor-parallel group of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .. import _ferry
from .._errors import Error, InvalidInput, Unsupported

if TYPE_CHECKING:
    from .._ferry import World
    from .._plan import Spec
    from .._refit import Refit, RefitResult

__all__ = ["Config", "prepare", "refit", "spec", "spec_dict"]


@dataclass
class Config:
    """A decoder with grouped-query attention and a gated MLP: Llama, Qwen, Mistral and their kin.

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

    def __post_init__(self) -> None:
        self.n_kv_heads = self.n_kv_heads or self.n_heads
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
        """Of a configuration of transformers, or of the dict of a ``config.json``.

        Biases and norms of heads are those of ``attention_bias``, ``mlp_bias`` and the model's
        type: Qwen2 has biases of queries, keys and values, Qwen3 has norms of queries and keys.
        ``others`` are fields of this class that count instead.
        """

        def get(name: str, default: Any = None) -> Any:
            if isinstance(config, Mapping):
                return config.get(name, default)
            return getattr(config, name, default)

        for name in ("num_experts", "num_local_experts", "n_routed_experts"):
            if (get(name) or 0) > 1:
                raise Unsupported(
                    f"the configuration has {name}={get(name)}: this adapter knows dense decoders, "
                    "and a mixture of experts needs a spec of its own"
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
            "qkv_bias": bias or kind == "qwen2",
            "o_bias": bias and kind != "qwen2",
            "mlp_bias": bool(get("mlp_bias")),
            "qk_norm": kind == "qwen3",
            "tied": bool(get("tie_word_embeddings", False)),
        }
        return cls(**{**fields, **others})

    @property
    def q_rows(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def kv_rows(self) -> int:
        return self.n_kv_heads * self.head_dim

    @property
    def padded_vocab_size(self) -> int:
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    def vocab_rows(self, tp: int) -> List[int]:
        """The rows of the vocabulary on each of ``tp`` ranks, without padding."""
        each = self.padded_vocab_size // tp
        ends = [min(self.vocab_size, each * rank) for rank in range(tp + 1)]
        return [last - first for first, last in zip(ends, ends[1:])]


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
    for kind in ("weight", "bias") if config.mlp_bias else ("weight",):
        shape = [config.intermediate_size, hidden][: 2 if kind == "weight" else 1]
        gate_up = [
            _plain(_layer(config, f"mlp.{one}_proj.{kind}"), shape, config) for one in ("gate", "up")
        ]
        found += [*gate_up, _fused(_layer(config, f"mlp.gate_up_proj.{kind}"), gate_up, config)]
    shapes = {
        attention + "o_proj.weight": [hidden, config.q_rows],
        "mlp.down_proj.weight": [hidden, config.intermediate_size],
        "input_layernorm.weight": [hidden],
        "post_attention_layernorm.weight": [hidden],
    }
    if config.o_bias:
        shapes[attention + "o_proj.bias"] = [hidden]
    if config.mlp_bias:
        shapes["mlp.down_proj.bias"] = [hidden]
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


def _check_tp(config: Config, tp: int, side: str) -> None:
    numbers = {
        "heads": config.n_heads,
        "rows of the MLP": config.intermediate_size,
    }
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


def _rules(config: Config, tp: int) -> List[Dict[str, Any]]:
    """Of both sides: a rule for a name that a side does not have hurts nobody."""
    heads = min(config.n_kv_heads, tp)  # parts of keys and values; neighbours hold the same

    def cut(dim: int, **how: Any) -> List[Dict[str, Any]]:
        return [{"dim": dim, "axis": "tp", **how}]

    kv = cut(0, unit=config.head_dim, parts=heads)
    blocks = [config.q_rows, [config.kv_rows, heads], [config.kv_rows, heads]]
    rules = [
        {"match": "*.qkv_proj.*", "shard": cut(0, unit=config.head_dim, blocks=blocks)},
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


def _side(config: Config, tp: int, ranks: Optional[Sequence[int]], side: str) -> Dict[str, Any]:
    _check_tp(config, tp, side)
    ranks = list(range(tp) if ranks is None else ranks)
    if len(ranks) == 0 or len(ranks) % tp != 0:
        raise InvalidInput(f"{len(ranks)} ranks of the {side} are no multiple of {tp}")
    mesh = [["replica", len(ranks) // tp], ["tp", tp]]
    return {"mesh": mesh, "ranks": ranks, "rules": _rules(config, tp)}


def spec_dict(
    config: Config,
    *,
    source_tp: int = 1,
    destination_tp: int = 1,
    source_ranks: Optional[Sequence[int]] = None,
    destination_ranks: Optional[Sequence[int]] = None,
) -> Dict[str, Any]:
    """The ferry.spec/1 as a dict, to be read or changed. See :func:`spec`."""
    return {
        "format": "ferry.spec/1",
        "tensors": _tensors(config),
        "source": _side(config, source_tp, source_ranks, "source"),
        "destination": _destination(config, destination_tp, destination_ranks),
    }


def _destination(config: Config, tp: int, ranks: Optional[Sequence[int]]) -> Dict[str, Any]:
    """The components are not there by themselves: the fused tensors hold them."""
    side = _side(config, tp, ranks, "destination")
    gone = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    skipped = [{"match": f"*.{part}.*", "skip": True} for part in gone]
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
) -> "Spec":
    """The :class:`ferry.Spec` from a Hugging Face style model to a server's.

    Each side's ranks are as many as its ``tp``, or a multiple of it: then each ``tp`` ranks in a
    row are a replica. They are 0, 1, ... unless given.

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
        ranks = list(how[side + "_ranks"] or range(tp))
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
    world: Optional["World"] = None,
    leave: Sequence[str] = (),
    **options: Any,
) -> "Refit":
    """Collective: a :class:`ferry.Refit` from a Hugging Face style state dict into a server's,
    which may hold a padded vocabulary.

    Every tensor of the destination is written, or this is an error on all ranks; names that fit a
    pattern of ``leave``, such as ``"*.inv_freq"``, keep what they hold.
    """
    from .._refit import Refit, agree
    from .._world import world as default

    own = default() if world is None else world
    how: Dict[str, Any] = {
        "source_tp": source_tp, "destination_tp": destination_tp,
        "source_ranks": source_ranks, "destination_ranks": destination_ranks,
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
