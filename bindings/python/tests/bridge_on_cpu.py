# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Megatron-Bridge's mappings without a GPU. Its packages import all that it can train; here only the
families that are asked for are, and what their mappings do not use has stand-ins: Transformer Engine,
omegaconf, and its own LoRA. Groups of ranks are stood in for, too: the first rank of ``n`` cuts."""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import types
import unittest.mock

import megatron
import torch

STAND_INS = ("transformer_engine", "omegaconf", "megatron.bridge.peft")


class StandIn(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in STAND_INS or name.startswith(tuple(one + "." for one in STAND_INS)):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def without_its_init(name):
    """A package of which nothing is run but the modules that are asked for."""
    module = types.ModuleType(name)
    module.__path__ = [os.path.join(one, *name.split(".")[1:]) for one in megatron.__path__]
    sys.modules[name] = module


def has_bridge():
    return any(os.path.isdir(os.path.join(one, "bridge")) for one in megatron.__path__)


def start(families):
    importlib.import_module("megatron.core.models.gpt.gpt_model")  # with no Transformer Engine, in truth
    if not any(isinstance(one, Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, Finder())
    for name in ("", ".models", *(".models." + one for one in ("conversion", *families))):
        without_its_init("megatron.bridge" + name)


def class_of(module, name):
    return getattr(importlib.import_module("megatron.bridge.models." + module), name)


@contextlib.contextmanager
def ranks(n):
    """What the first of n tensor parallel ranks would send to each is what it returns: a list."""
    mapping = class_of("conversion.param_mapping", "MegatronParamMapping")
    with unittest.mock.patch.multiple(
        mapping, tp_size=n, tp_rank=0,
        scatter_to_tp_ranks=lambda self, splits, *about: list(splits),
        broadcast_tensor_to_tp_ranks=lambda self, tensor, **about: tensor,
    ), unittest.mock.patch.object(torch.cuda, "current_device", lambda: None):
        yield
