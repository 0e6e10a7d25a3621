# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What ferry makes of a checkpoint of Hugging Face in another naming, for each tensor parallel rank:
tests hold it against what others make of it."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from typing import Any, Dict, List

import torch
from safetensors.torch import load_file, save_file

import ferry
from ferry import _ferry


def named_shards(config: Dict[str, Any], full: Dict[str, Any], naming: str, n: int) -> List[Any]:
    """Of each of n ranks its tensors, by their names."""
    if n == 1:  # a side in boxes says also what is transposed on the way
        return [named(config, full, naming)]
    if config["model_type"] == "gpt_oss":  # test_names_torch writes its files
        spec = ferry.Names(config, dtype="f32").spec("hf:" + naming, None, "tp=%d" % n)
        return spread(spec, [full], n)
    with tempfile.TemporaryDirectory() as folder:
        source, to = os.path.join(folder, "hf"), os.path.join(folder, "to")
        os.mkdir(source)
        with open(os.path.join(source, "config.json"), "w") as file:
            json.dump(config, file)
        save_file(full, os.path.join(source, "model.safetensors"))
        ferry.reshard(source, "tp=%d" % n, to, names=naming)
        return [load_file(os.path.join(to, "rank-%05d.safetensors" % rank)) for rank in range(n)]


def named_stages(config: Dict[str, Any], full: Dict[str, Any], first: str, n: int) -> List[Any]:
    """What two pipeline stages of n ranks have at vLLM, of a checkpoint or of Megatron-Core's two stages."""
    names, form = ferry.Names(config, dtype="f32"), "pp=2,tp=%d" % n
    names.check("hf", full)  # which layers for prediction it lacks
    source, sources = (None, [full]) if first == "hf" else (form, [])
    if not sources:
        sources = spread(names.spec("hf:" + first, None, form), [full], 2 * n)
    return spread(names.spec(first + ":vllm", source, form), sources, 2 * n)


def spread(spec: ferry.Spec, sources: List[Any], n: int) -> List[Any]:
    """What each rank of the destination, which begins at 0, has after a refit: ranks are threads."""
    plan = ferry.plan(spec)
    worlds = _ferry.world_of_threads(max(n, len(sources)))
    made: List[Any] = [{} for _ in worlds]
    failed: List[BaseException] = []
    empty = torch.zeros(0)  # of which a side in boxes has no parameter

    def run(rank: int) -> None:
        try:
            for name, shard in plan.shards("destination", rank).items() if rank < n else ():
                made[rank][name] = torch.full(tuple(shard.shape), float("nan"))
            source = None
            if rank < len(sources):  # what was a parameter in boxes has one dimension here
                source = {name: sources[rank].get(name, empty).reshape(tuple(shard.shape))
                          for name, shard in plan.shards("source", rank).items()}
            ferry.refit(source, made[rank] if rank < n else None, spec, world=worlds[rank])
        except BaseException as error:
            failed.append(error)
            worlds[rank].abort(str(error))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(worlds))]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    if failed:
        raise failed[0]
    return made[:n]


def named(config: Dict[str, Any], full: Dict[str, Any], naming: str) -> Dict[str, Any]:
    names = ferry.Names(config, dtype="f32")
    made = {one.name: torch.zeros(one.shape) for one in names.tensors(naming)}
    ferry.refit(full, made, {
        "format": "ferry.spec/1", "destination": names.side("hf", naming),
        "source": {"mesh": [], "rules": [{"match": "*"}]},
        "tensors": [{"name": name, "shape": list(one.shape), "dtype": "f32"}
                    for name, one in full.items()]})
    return made
