# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What a model's tensors are called, and how they are cut and joined, in several namings.

The rules of a family of models are data (``ferry.names/1``): :func:`families` has those that ferry
brings. :class:`Names` makes of them, and of a model's ``config.json``, the tensors of each naming:
``"hf"`` (files of Hugging Face), ``"transformers"`` (its models in memory), ``"megatron"``,
``"megatron-sequential"`` and ``"megatron-local"`` (Megatron-Core with Transformer Engine, with
experts one by one, and without it), ``"vllm"``.
"""

from __future__ import annotations

import json
import os
from typing import (
    TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union,
)  # fmt: skip

from . import _ferry, _publish
from ._errors import InvalidInput, of_file, text
from ._given import name_of, named_tensors
from ._repr import fields, never_raises

if TYPE_CHECKING:
    from ._map import Map
    from ._plan import Spec
    from ._side import Side

__all__ = ["NamedTensor", "Names", "families"]

Config = Union[Mapping[str, Any], str, "os.PathLike[str]", Any]


@fields(
    name="Its name.",
    dtype="As ferry names it.",
    shape="Of the whole tensor.",
)
class NamedTensor(NamedTuple):
    """A tensor of a model in one naming."""

    name: str
    dtype: str
    shape: Tuple[int, ...]


def families() -> Dict[str, Dict[str, Any]]:
    """The families of models that ferry has names for: the data of each, by its name.

    >>> from ferry import names
    >>> "qwen3-moe" in names.families()
    True
    """
    return {name: json.loads(text) for name, text in _ferry.names_families()}


def _read(path: Union[str, "os.PathLike[str]"]) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise of_file(path, error) from None
    except ValueError as error:  # a zero byte in the path, or bytes that are no text
        raise InvalidInput(f"{os.fspath(path)!r}: cannot be read: {error}") from None


def _config_text(config: Config) -> Tuple[str, str]:
    """The text of a config.json, and what sentences call the model."""
    if isinstance(config, (str, os.PathLike)):
        path = os.fspath(config)
        return _read(os.path.join(path, "config.json") if os.path.isdir(path) else path), path
    if hasattr(config, "to_dict"):  # of transformers
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise InvalidInput(
            f"a config is of type {type(config).__name__}: give a dict, a config of transformers, or "
            "the path of a config.json or of its folder"
        )
    return json.dumps(config, default=str), "the model"


def _family_text(family: Union[None, str, Mapping[str, Any], "os.PathLike[str]"]) -> Optional[str]:
    if family is None:
        return None
    if isinstance(family, Mapping):
        return json.dumps(family)
    known = dict(_ferry.names_families())
    if isinstance(family, str) and family in known:
        return known[family]
    return _read(family)


def two_namings(names: object) -> Tuple[str, str]:
    """Of "megatron:vllm"; the second is empty where there is one."""
    if not isinstance(names, str):
        raise InvalidInput(f'names are {names!r}: give a naming, or two such as "megatron:vllm"')
    before, _, after = names.partition(":")
    return before, after


def _form(what: str, form: Optional[str]) -> Optional[str]:
    """A short form, or None; an empty one is more often a variable that is not set."""
    if form is None or (isinstance(form, str) and form):
        return text(what, form)
    raise InvalidInput(f'{what} is {form!r}: give a short form such as "tp=4,pp=2", or None for one rank')


def _described(name: object, tensor: Any) -> Tuple[Any, Tuple[int, ...]]:
    try:
        shape, dtype = tensor if isinstance(tensor, tuple) else (tensor.shape, tensor.dtype)
        return dtype, tuple(shape)
    except (AttributeError, TypeError, ValueError):
        raise InvalidInput(
            f'tensor "{name}" is of type {type(tensor).__name__}: give a tensor, or (shape, dtype)'
        ) from None


class Names:
    """The tensors of a model in each naming.

    ``config`` is a dict, a config of transformers, or the path of a ``config.json`` or its folder.
    ``family`` is that of the config's ``model_type``, or the name of another, a dict, or a file.
    ``dtype`` is that of the tensors where nothing says another; else it is the config's, or bf16.

    >>> import ferry
    >>> names = ferry.Names({
    ...     "model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 32,
    ...     "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 16,
    ... })
    >>> to_hf = names.map("megatron", "hf")
    >>> to_hf["model.layers.1.self_attn.k_proj.bias"].boxes[1]
    MapBox(source='decoder.layers.1.self_attention.linear_qkv.bias', begin=(12,), shape=(2,), at=(2,))
    """

    def __init__(
        self,
        config: Config,
        *,
        family: Union[None, str, Mapping[str, Any], "os.PathLike[str]"] = None,
        dtype: Any = None,
    ) -> None:
        text, source_name = _config_text(config)
        self._handle = _ferry.names_make(text, source_name, _family_text(family), dtype)

    @property
    def namings(self) -> List[str]:
        """The names of its namings."""
        return self._handle.namings

    def tensors(self, naming: str) -> List[NamedTensor]:
        """What the model has in a naming."""
        return [NamedTensor(*one) for one in self._handle.tensors(naming)]

    def find(self, tensors: Iterable[str]) -> str:
        """The naming that has the most of these tensors."""
        return self._handle.find_naming([name_of(name).encode() for name in tensors])

    def check(self, naming: str, tensors: Mapping[str, Any]) -> None:
        """That these are the model's tensors in a naming: a dict of names to tensors, or to pairs of
        a shape and a dtype.

        :class:`ferry.InvalidInput` names one that no rule covers, one that the model must have and
        that is not there, or one of another shape. Maps that are made afterwards have the dtypes
        of these tensors, and lack what they lack.
        """
        for name, tensor in named_tensors(tensors):
            self._handle.see(naming, name, *_described(name, tensor))
        self._handle.check_seen(naming)

    def left_out(self, source: str, target: str) -> List[str]:
        """The tensors of ``source`` of which ``target`` has nothing, or not all: maps, sides and specs
        leave them out. Of DeepSeek-V3 these are, for ``"vllm"``, the layer that predicts further tokens."""
        return self._handle.left_out(source, target)

    def map(self, source: str, target: str) -> "Map":
        """How the tensors of one naming are made of those of another.

        Where a tensor is transposed, as experts of GPT-OSS are, :class:`ferry.Unsupported`: then
        :meth:`side` says it.
        """
        from ._map import Map

        return Map(self._handle.map(source, target))

    def side(self, source: str, target: str, ranks: Union[int, Sequence[int]] = 0) -> "Side":
        """The tensors of ``target`` as parameters of each of these ranks, made of those of
        ``source``: a side in boxes."""
        from ._side import Side

        listed = [ranks] if isinstance(ranks, int) else list(ranks)
        return Side.from_json(self._handle.side(source, target, listed))

    def spec(
        self,
        names: str = "hf",
        source: Optional[str] = None,
        destination: Optional[str] = None,
        *,
        first_rank: int = 0,
    ) -> "Spec":
        """The spec of this model on its way from one layout to another.

        ``names`` is a naming, or two such as ``"megatron:vllm"``. ``source`` and ``destination`` are
        short forms such as ``"tp=4,pp=2"``; None: one rank has all, as it must on one side where
        tensors are transposed on the way. Ranks of the destination begin at ``first_rank``.
        """
        from ._plan import Spec

        before, after = two_namings(names)
        forms = _form("source", source), _form("destination", destination)
        made = Spec.__new__(Spec)
        made._handle = self._handle.spec(before, forms[0], after or before, forms[1], first_rank)
        return made

    @never_raises
    def __repr__(self) -> str:
        return f"<ferry.Names in {', '.join(self.namings)}>"


_publish("names", globals())
