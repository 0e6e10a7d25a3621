#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Checkpoints of other libraries through ferry and back, with the packages of requirements.txt.

    python real_packages.py --ferry PATH [--only TEXT] [--seed 1]

Small models of many architectures, made and saved by transformers with random values in one file or
in parts, are resharded to several short forms, from one form to another, and back to a logical
checkpoint. The safetensors package reads every file that ferry wrote; transformers loads what came
back; all tensors must be equal bit by bit, and ferry must find them equal too. Where transformers
says itself how an architecture is cut (base_model_tp_plan), ferry's shards are compared with
torch.chunk along that dimension. Then files of the safetensors package in odd forms: dtypes,
scalars, empty tensors, names, metadata.

Prints the name of every failing case with its reason and exits 1; 77 where packages are missing.
"""

import argparse
import copy
import filecmp
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import skips  # noqa: E402

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
try:
    import numpy
    import safetensors.numpy
    import safetensors.torch
    import torch
    import transformers
    from safetensors import safe_open
except ImportError as reason:
    sys.exit(skips.whole("packages", f"{reason}; tests/checkpoint/requirements.txt says what is "
                         "needed"))

LIMIT_S = 120
FERRY = ""
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
LAYOUT = "ferry.layout.json"

# ---- the models: type, what differs from COMMON, short forms ----

COMMON = {"vocab_size": 150, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
          "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 64,
          "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
DENSE = ["tp=2", "tp=4,pp=2", "tp=4", "pp=4", "tp=8"]
EXPERTS = ["tp=2", "ep=4", "tp=2,ep=2", "tp=2,pp=2,ep=2"]
FUSED = ["tp=2", "tp=4,pp=2", "tp=4"]
HYBRID = ["tp=2", "pp=2", "tp=2,pp=2"]
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
          "v_head_dim": 16, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
          "moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
          "num_key_value_heads": 8}
STATE = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}
MODELS = {
    "llama": ("llama", {}, DENSE),
    "llama-tied": ("llama", {"tie_word_embeddings": True}, ["tp=2", "tp=4,pp=2"]),
    "llama-few-kv-heads": ("llama", {"num_key_value_heads": 2}, ["tp=4", "tp=8,pp=2", "tp=2,dp=2"]),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1, "attention_bias": True}, ["tp=4"]),
    "mistral": ("mistral", {"head_dim": 16}, DENSE),
    "mixtral": ("mixtral", {"num_local_experts": 4}, EXPERTS),
    "qwen2": ("qwen2", {}, DENSE),
    "qwen3": ("qwen3", {"head_dim": 16}, DENSE),
    "qwen2_moe": ("qwen2_moe", {"num_experts": 4, "num_experts_per_tok": 2,
                                "moe_intermediate_size": 32, "decoder_sparse_step": 1,
                                "shared_expert_intermediate_size": 64}, EXPERTS),
    "qwen3_moe": ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16,
                                "moe_intermediate_size": 32, "decoder_sparse_step": 1}, EXPERTS),
    "gpt_oss": ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16,
                            "intermediate_size": 40}, [*EXPERTS, "tp=4", "ep=3"]),
    "gemma2": ("gemma2", {"head_dim": 16, "tie_word_embeddings": True}, DENSE),
    "gemma3": ("gemma3_text", {"head_dim": 16, "tie_word_embeddings": True}, DENSE),
    "phi3": ("phi3", {}, FUSED),
    "gpt_neox": ("gpt_neox", {"num_key_value_heads": None}, FUSED),
    "deepseek_v2": ("deepseek_v2", {**LATENT, "q_lora_rank": None}, EXPERTS),
    "deepseek_v3": ("deepseek_v3", LATENT, EXPERTS),
    "mamba2": ("mamba2", {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2,
                          "num_attention_heads": None, "num_key_value_heads": None}, HYBRID),
    "jamba": ("jamba", {**STATE, "num_experts": 4, "attn_layer_period": 4, "attn_layer_offset": 2,
                        "mamba_dt_rank": 8, "expert_layer_period": 2, "expert_layer_offset": 1,
                        "use_mamba_kernels": False}, [*HYBRID, "tp=2,ep=2"]),
    "bamba": ("bamba", {**STATE, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2,
                        "attn_layer_indices": [2]}, HYBRID),
}


class Unknown(Exception):
    """This version of transformers lacks the architecture."""


def make_model(kind, differences, seed):
    values = {key: value for key, value in {**COMMON, **differences}.items() if value is not None}
    try:
        config = transformers.AutoConfig.for_model(kind, **values)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    except (ValueError, ImportError) as reason:
        raise Unknown(str(reason).split("\n")[0]) from reason
    torch.manual_seed(seed)
    for tensor in model.state_dict().values():  # zeros and ones would hide what is misplaced
        if tensor.is_floating_point():
            tensor.normal_()
    return model


# ---- what is asked of ferry and of the files ----

def ferry(*words, wanted=0):
    done = subprocess.run([FERRY, *(str(word) for word in words)], capture_output=True, text=True,
                          timeout=LIMIT_S, stdin=subprocess.DEVNULL)
    assert done.returncode == wanted, (
        f"ferry {' '.join(str(word) for word in words)} exited {done.returncode}: "
        f"{done.stderr.strip()[-400:]}")
    return done


def reshard(source, to, out):
    ferry("reshard", source, "--to", to, "--out", out)
    assert out.is_dir(), f"{out} is missing"
    left = [path.name for path in out.parent.iterdir() if path.name.startswith(".")]
    assert not left, f"left beside the result: {left}"


def read_logical(folder):
    """Tensors and metadata, as the safetensors package reads them."""
    paths = [folder / SINGLE]
    if (folder / INDEX).exists():
        index = json.loads((folder / INDEX).read_text())
        paths = sorted({folder / name for name in index["weight_map"].values()})
    tensors, metadata = {}, {}
    for path in paths:
        part = safetensors.torch.load_file(path)
        assert not tensors.keys() & part.keys(), f"{path.name}: a tensor twice"
        if (folder / INDEX).exists():
            wrong = [name for name in part if index["weight_map"].get(name) != path.name]
            assert not wrong, f"{path.name}: the index places {wrong[0]} elsewhere"
        tensors.update(part)
        with safe_open(path, "pt") as file:
            metadata.update(file.metadata() or {})
    if (folder / INDEX).exists():
        assert set(index["weight_map"]) == set(tensors), "the index names other tensors"
        assert index["metadata"]["total_size"] == sum(map(size_of, tensors.values())), "total_size"
    return tensors, metadata


def size_of(tensor):
    return tensor.numel() * tensor.element_size()


def read_ranks(folder):
    """The tensors of each rank file."""
    layout = json.loads((folder / LAYOUT).read_text())
    n_ranks = 1
    for _, extent in layout["mesh"]:
        n_ranks *= extent
    paths = sorted(folder.glob("rank-*.safetensors"))
    assert [path.name for path in paths] == [f"rank-{i:05d}.safetensors" for i in range(n_ranks)], \
        f"the rank files are {[path.name for path in paths]}"
    ranks = []
    for path in paths:
        with safe_open(path, "pt") as file:
            ranks.append({name: file.get_tensor(name) for name in file.keys()})
    return ranks


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else tensor.numel()


def is_same(x, y):
    return (x.dtype == y.dtype and x.shape == y.shape
            and (x.numel() == 0 or torch.equal(bits(x), bits(y))))


def assert_equal(what, wanted, found):
    missing, more = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    assert not missing and not more, f"{what}: missing {missing[:3]}, added {more[:3]}"
    wrong = [name for name in wanted if not is_same(wanted[name], found[name])]
    assert not wrong, (f"{what}: {wrong[0]} differs, as do {len(wrong) - 1} more "
                       f"({wanted[wrong[0]].dtype} {list(wanted[wrong[0]].shape)}, "
                       f"{found[wrong[0]].dtype} {list(found[wrong[0]].shape)})")


def read_layout(folder):
    """Its tensors by name: their order is the source's, which one file or several differ in."""
    layout = json.loads((folder / LAYOUT).read_text())
    layout["tensors"].sort(key=lambda tensor: tensor["name"])
    return layout


def assert_same_files(what, a, b):
    names = [sorted(path.name for path in folder.iterdir()) for folder in (a, b)]
    assert names[0] == names[1], f"{what}: the files are {names[0]} and {names[1]}"
    wrong = [name for name in names[0] if name != LAYOUT
             and not filecmp.cmp(a / name, b / name, shallow=False)]
    assert not wrong, f"{what}: {wrong} differ"
    assert read_layout(a) == read_layout(b), f"{what}: the layouts differ"


def load_model(folder):
    model, about = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", output_loading_info=True)
    wrong = {key: sorted(map(str, about[key])) for key in
             ("missing_keys", "unexpected_keys", "mismatched_keys") if about.get(key)}
    assert not wrong, f"transformers finds in {folder.name}: {wrong}"
    return model


# ---- shards as transformers' own plans cut them ----

def planned_dim(model, name):
    """The dimension that base_model_tp_plan cuts; None where it says nothing that is comparable."""
    plan = getattr(model.config, "base_model_tp_plan", None) or {}
    module, _, kind = name.removeprefix(model.base_model_prefix + ".").rpartition(".")
    expert = re.fullmatch(r"(.*\.experts)\.\d+\.(\w+)", module)
    if expert:  # in memory they are stacked, and so they are in the plan
        module = expert[1].replace("block_sparse_moe", "mlp")
        module += ".down_proj" if expert[2] in ("w2", "down_proj") else ".gate_up_proj"
    style = plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", module), "").removeprefix("packed_")
    if style == "colwise":
        return 0
    return 1 if style == "rowwise" and kind == "weight" else None


def check_plan(model, form, tensors, ranks):
    """Of a form that only has tp. KV heads that are fewer than ranks are cut otherwise."""
    axis, _, count = form.partition("=")
    heads = getattr(model.config, "num_key_value_heads", None) or 8
    if axis != "tp" or not count.isdigit() or heads % int(count) != 0:
        return 0
    n_compared = 0
    for name, whole in tensors.items():
        dim = planned_dim(model, name)
        if dim is None:
            continue
        for rank, part in enumerate(whole.chunk(int(count), dim)):
            assert is_same(part, ranks[rank][name]), (
                f"{form}: {name} of rank {rank} is not the part along dimension {dim} that "
                f"transformers' plan cuts: {list(ranks[rank][name].shape)}")
        n_compared += 1
    return n_compared


def check_turns(model, ranks, tensors):
    """Experts of GPT-OSS: transformers' own class computes with each rank's shards, and the sum is what
    it computes with all; of down's bias, which every rank has, one is counted."""
    name, inputs = "model.layers.1.mlp.experts.", torch.randn(5, model.config.hidden_size)
    chosen = torch.tensor([[0, 1], [2, 3], [1, 3], [0, 2], [1, 2]])
    weights = torch.rand(5, 2)

    def outputs(held):
        own = {key.removeprefix(name): value.float() for key, value in held.items() if name in key}
        config = copy.deepcopy(model.config)
        config.intermediate_size, config._experts_implementation = own["down_proj"].shape[1], "eager"
        experts = type(model.model.layers[1].mlp.experts)(config)
        experts.load_state_dict(own)
        return experts(inputs, chosen, weights)

    with torch.no_grad():
        parts = [outputs({key: value if rank == 0 or "down_proj_bias" not in key else value * 0
                          for key, value in held.items()}) for rank, held in enumerate(ranks)]
        difference = (sum(parts) - outputs(tensors)).abs().max()
    assert difference < 1e-3, f"experts of the shards compute something else, by {difference}"


# ---- models ----

def check_sharded(source, form, out, tensors, metadata):
    reshard(source, form, out)
    ferry("verify", source, out)
    ranks = read_ranks(out)
    held = set().union(*ranks)
    assert held == set(tensors), f"{form}: the ranks hold other tensors: {held ^ set(tensors)}"
    with safe_open(out / "rank-00000.safetensors", "pt") as file:
        kept = {key: value for key, value in (file.metadata() or {}).items()
                if not key.startswith("ferry.")}
    assert kept == metadata, f"{form}: the metadata are {kept}, not {metadata}"
    return ranks


def check_back(source, sharded, out, tensors, metadata):
    """To a logical checkpoint again, as safetensors and transformers read it."""
    reshard(sharded, "hf", out)
    back, kept = read_logical(out)
    assert_equal(f"{sharded.name} to hf", tensors, back)
    assert kept == metadata, f"the metadata came back as {kept}, not {metadata}"
    for path in source.iterdir():
        if path.suffix != ".safetensors" and path.name != INDEX:
            assert filecmp.cmp(path, out / path.name, shallow=False), f"{path.name} changed"


def check_model(folder, name, seed):
    kind, differences, forms = MODELS[name]
    model = make_model(kind, differences, seed)
    sources = [folder / "single", folder / "parts"]
    model.save_pretrained(sources[0])
    model.save_pretrained(sources[1], max_shard_size="60KB")
    assert (sources[0] / SINGLE).exists() and (sources[1] / INDEX).exists(), "how it is saved"
    tensors, metadata = read_logical(sources[0])
    assert_equal("the parts that transformers saved", tensors, read_logical(sources[1])[0])
    ferry("verify", *sources)
    n_planned, last = 0, None
    for i, form in enumerate(forms):
        source, sharded = sources[i % 2], folder / f"to-{form}"
        ranks = check_sharded(source, form, sharded, tensors, metadata)
        n_planned += check_plan(model, form, tensors, ranks)
        if kind == "gpt_oss" and form.startswith("tp=") and form.count("=") == 1:
            check_turns(model, ranks, tensors)
        check_back(source, sharded, folder / f"back-{form}", tensors, metadata)
        if last is not None:
            reshard(last, form, folder / f"again-{form}")
            assert_same_files(f"{last.name} to {form}, and straight to it", sharded,
                              folder / f"again-{form}")
        last = sharded
    check_loading(folder, sources[0], folder / f"back-{forms[-1]}")
    return f"{len(tensors)} tensors, {len(forms)} forms, {n_planned} compared with a plan"


def check_loading(folder, source, back):
    """transformers loads what came back, and ferry reads what transformers then saves."""
    wanted, model = load_model(source), load_model(back)
    assert_equal("the loaded model", wanted.state_dict(), model.state_dict())
    saved, other = folder / "saved", folder / "saved-parts"  # it may load some as another dtype
    wanted.save_pretrained(saved)
    model.save_pretrained(other, max_shard_size="100KB")
    ferry("verify", saved, other)
    tensor = model.state_dict()[next(iter(wanted.state_dict()))].reshape(-1)
    with torch.no_grad():
        tensor[-1] = 3 if tensor[-1] != 3 else 5
    model.save_pretrained(folder / "changed")
    done = ferry("verify", saved, folder / "changed", wanted=1)
    assert len(done.stderr.strip().splitlines()) == 1, f"not one sentence: {done.stderr!r}"


# ---- files in odd forms ----

def odd_tensors():
    """Every dtype that torch and the safetensors package both have, some without elements."""
    names = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
             "float8_e8m0fnu", "int64", "uint64", "int32", "uint32", "int16", "uint16", "int8",
             "uint8", "bool", "complex64"]
    tensors = {}
    for i, name in enumerate(names):
        dtype = getattr(torch, name)
        n = 2 * 6 * dtype.itemsize
        values = torch.arange(i, i + n, dtype=torch.uint8) * 37
        values = values % 2 if name == "bool" else values
        tensors[f"odd.{name}"] = values.view(dtype).reshape(2, 6)
        tensors[f"odd.{name}.scalar"] = values.view(dtype)[0].clone()
        tensors[f"odd.{name}.empty"] = values.view(dtype)[:0].reshape(3, 0, 2).clone()
    tensors["odd.deep"] = torch.arange(48, dtype=torch.float32).reshape(2, 1, 3, 2, 1, 4)
    return tensors


def replicate_layout(folder, mesh):
    path = folder / "layout.json"
    path.write_text(json.dumps({"format": "ferry.layout/1", "mesh": mesh,
                                "rules": [{"match": "*"}]}))
    return path


def round_trip(folder, source):
    """Through ranks that hold all of it, and back."""
    wanted, metadata = safetensors.torch.load_file(source), {}
    with safe_open(source, "pt") as file:
        metadata = file.metadata() or {}
    layout = replicate_layout(folder, [["dp", 2]])
    reshard(source, layout, folder / "ranks")
    ferry("verify", source, folder / "ranks")
    for i, rank in enumerate(read_ranks(folder / "ranks")):
        assert_equal(f"rank {i}", wanted, rank)
    reshard(folder / "ranks", "hf", folder / "back")
    back, kept = read_logical(folder / "back")
    assert_equal("what came back", wanted, back)
    assert kept == metadata, f"the metadata came back as {kept}, not {metadata}"
    return wanted


def inspect(path):
    return json.loads(ferry("inspect", path, "--json").stdout)


def check_dtypes(folder):
    source = folder / SINGLE
    safetensors.torch.save_file(odd_tensors(), source)
    wanted = round_trip(folder, source)
    listed = {row["name"]: row for row in inspect(source)["tensors"]}
    assert listed.keys() == wanted.keys(), "inspect lists other tensors"
    for name, tensor in wanted.items():
        row = listed[name]
        assert row["shape"] == list(tensor.shape) and row["bytes"] == size_of(tensor), row
    return f"{len(wanted)} tensors"


def check_half_bytes(folder):
    """Two elements a byte, where torch and safetensors have that."""
    if not hasattr(torch, "float4_e2m1fn_x2"):
        raise Unknown("torch has no float4_e2m1fn_x2")
    source = folder / SINGLE
    tensor = torch.arange(24, dtype=torch.uint8).reshape(4, 6).view(torch.float4_e2m1fn_x2)
    safetensors.torch.save_file({"half": tensor, "whole": torch.ones(3)}, source)
    wanted = safetensors.torch.load_file(source)["half"].view(torch.uint8)
    reshard(source, replicate_layout(folder, [["dp", 2]]), folder / "ranks")
    reshard(folder / "ranks", "hf", folder / "back")
    back = safetensors.torch.load_file(folder / "back" / SINGLE)["half"].view(torch.uint8)
    assert torch.equal(wanted, back), "f4 came back otherwise"


def check_names(folder):
    """Names and metadata that JSON escapes, and metadata that a writer kept."""
    names = ["plain", "a/b c", 'quote"d', "back\\slash", "tab\tnew\nline", "größe.重み.😀",
             "x" * 500]
    tensors = {name: torch.full((i + 1,), i, dtype=torch.int16) for i, name in enumerate(names)}
    metadata = {"format": "pt", "note": 'a "note"\nof ünits 😀', "": "empty key", "empty": ""}
    source = folder / SINGLE
    safetensors.torch.save_file(tensors, source, metadata=metadata)
    assert round_trip(folder, source).keys() == set(names)


def check_numpy(folder):
    generator = numpy.random.default_rng(1)
    tensors = {"f32": generator.random((5, 3), dtype=numpy.float32), "zero": numpy.zeros((0, 4)),
               "scalar": numpy.array(7, dtype=numpy.int64), "flags": numpy.array([True, False]),
               "cut": numpy.ascontiguousarray(generator.random((8, 4)).astype(numpy.float16))}
    source = folder / SINGLE
    safetensors.numpy.save_file(tensors, source)
    round_trip(folder, source)
    layout = folder / "cut.json"
    layout.write_text(json.dumps({"mesh": [["tp", 3]], "rules": [
        {"match": "cut", "shard": [{"dim": 0, "axis": "tp"}]}, {"match": "*"}]}))
    reshard(source, layout, folder / "cut")
    parts = [safetensors.numpy.load_file(folder / "cut" / f"rank-{i:05d}.safetensors")["cut"]
             for i in range(3)]
    assert [len(part) for part in parts] == [3, 3, 2], [part.shape for part in parts]
    assert numpy.array_equal(numpy.concatenate(parts), tensors["cut"]), "the parts differ"


def check_nothing(folder):
    """No tensors at all, and only one without elements."""
    for i, tensors in enumerate(({}, {"empty": torch.empty(0, 3)})):
        part = folder / str(i)
        part.mkdir()
        safetensors.torch.save_file(tensors, part / SINGLE)
        round_trip(part, part / SINGLE)


def check_large_parts(folder):
    """Parts that ferry cuts itself, with an index that transformers and safetensors can follow."""
    model = make_model("llama", {}, 1)
    model.save_pretrained(folder / "source")
    tensors, _ = read_logical(folder / "source")
    ferry("reshard", folder / "source", "--to", "hf", "--out", folder / "parts", "--part-bytes",
          60000)
    assert (folder / "parts" / INDEX).exists(), "there is no index"
    assert_equal("the parts", tensors, read_logical(folder / "parts")[0])
    assert_equal("the loaded model", model.state_dict(), load_model(folder / "parts").state_dict())


# ---- quantized weights ----

# Models, and short forms that their blocks of 16 x 16 and 8 x 8 allow.
QUANTIZED = {"llama": ("tp=2", "f8e4m3:16x16"), "qwen3_moe": ("tp=2,ep=2", "f8e4m3:16x16"),
             "deepseek_v3": ("tp=2,pp=2", "f8e4m3:8x8"), "gemma2": ("tp=4", "f8e4m3:16x16")}


def quantize(values, block):
    """As one writes it in torch: the codes and the scales of whole blocks."""
    rows, columns = values.shape
    blocks = torch.nn.functional.pad(values.float(), (0, -columns % block[1], 0, -rows % block[0]))
    blocks = blocks.view(-(-rows // block[0]), block[0], -(-columns // block[1]), block[1])
    largest = blocks.abs().amax(dim=(1, 3), keepdim=True)
    scales = torch.where(largest == 0, torch.ones_like(largest), largest / 448)
    codes = (blocks / scales).to(torch.float8_e4m3fn)
    codes = codes.view(blocks.shape[0] * block[0], blocks.shape[2] * block[1])
    return codes[:rows, :columns].contiguous(), scales[:, 0, :, 0].contiguous()


def dequantize(codes, scales, block):
    """transformers' own way where it has one for such a shape, and in torch."""
    rows, columns = codes.shape
    wide = scales.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]
    values = (codes.float() * wide).to(torch.bfloat16)
    try:
        from transformers.integrations.finegrained_fp8 import Fp8Dequantize
        theirs = Fp8Dequantize(None)._dequantize_one(codes, scales, torch.bfloat16)
    except (ImportError, AttributeError, TypeError, ValueError):
        return values
    assert torch.equal(theirs, values), "transformers dequantizes otherwise"
    return values


def same_bits(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(
        one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def check_quantized(folder, name):
    form, text = QUANTIZED[name]
    block = [int(size) for size in text.split(":")[1].split("x")]
    kind, extra, _ = MODELS[name]
    make_model(kind, extra, 1).to(torch.bfloat16).save_pretrained(folder / "source")
    before, _ = read_logical(folder / "source")
    ferry("reshard", folder / "source", "--to", form, "--out", folder / "cut", "--quantize", text)
    ferry("verify", folder / "source", folder / "cut", "--quantize", text)
    reshard(folder / "cut", "hf", folder / "codes")
    ferry("reshard", folder / "cut", "--to", "hf", "--out", folder / "values", "--dequantize")
    codes, _ = read_logical(folder / "codes")
    values, _ = read_logical(folder / "values")
    assert values.keys() == before.keys(), "other tensors came back"
    n_quantized = 0
    for key, tensor in before.items():
        if key + "_scale_inv" not in codes:
            assert same_bits(codes[key], tensor) and same_bits(values[key], tensor), key
            continue
        n_quantized += 1
        matrices = tensor.reshape(-1, *tensor.shape[-2:])
        made = [quantize(matrix, block) for matrix in matrices]
        found = codes[key].reshape(matrices.shape), codes[key + "_scale_inv"]
        found_scales = found[1].reshape(-1, *found[1].shape[-2:])
        for i, (code, scale) in enumerate(made):
            assert same_bits(found[0][i], code), f"codes of {key}"
            assert same_bits(found_scales[i], scale), f"scales of {key}"
            back = values[key].reshape(matrices.shape)[i]
            assert same_bits(back, dequantize(code, scale, block)), f"values of {key}"
    assert n_quantized > 0, "nothing was quantized"
    config = json.loads((folder / "codes" / "config.json").read_text())
    assert config["quantization_config"]["weight_block_size"] == block, config
    back = json.loads((folder / "values" / "config.json").read_text())
    assert back == json.loads((folder / "source" / "config.json").read_text()), "config.json"
    load_model(folder / "values")
    return f"{n_quantized} weights"


ODD = {"dtypes": check_dtypes, "half-bytes": check_half_bytes, "names": check_names,
       "numpy": check_numpy, "nothing": check_nothing, "large-parts": check_large_parts}


def run_case(name, check, *arguments):
    """True: passed; None: this version of a package lacks it."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ferry-real-"))
    try:
        print(f"{name}: ok {check(folder, *arguments) or ''}".rstrip(), flush=True)
        return True
    except Unknown as reason:
        print(f"{name}: left out: {reason}")
        return None
    except (AssertionError, Exception) as reason:  # a package's own error is a failing case too
        print(f"{name}: FAILED: {type(reason).__name__}: {str(reason)[:1500]}", flush=True)
        return False
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    global FERRY
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ferry", required=True)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    FERRY = os.path.abspath(arguments.ferry)
    transformers.utils.logging.disable_progress_bar()
    cases = [(name, check_model, name, arguments.seed) for name in MODELS]
    cases += [("quantized-" + name, check_quantized, name) for name in QUANTIZED]
    cases += [("odd-" + name, check) for name, check in ODD.items()]
    results = [run_case(*case) for case in cases if arguments.only in case[0]]
    print(f"{results.count(True)} passed, {results.count(False)} failed, {results.count(None)} "
          f"skipped (transformers {transformers.__version__}, safetensors "
          f"{safetensors.__version__}, torch {torch.__version__})")
    sys.exit(1 if False in results or True not in results else 0)


if __name__ == "__main__":
    main()
