# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""MegatronSource: real models of Megatron-Core on two ranks of a trainer, whose shards go to two workers
under the names of Hugging Face. What each shard is made of is said here once more, row by row."""

import os
import random
import tempfile
import unittest

import support

try:
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
except ImportError:
    torch = None

import ferry

SECONDS = 100.0
LAYERS, HIDDEN, HEADS, GROUPS, HEAD, INNER, VOCAB, PADDED, EXPERTS = 2, 24, 6, 2, 4, 20, 100, 128, 4
BASE = {"num_hidden_layers": LAYERS, "hidden_size": HIDDEN, "vocab_size": VOCAB, "head_dim": HEAD,
        "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "intermediate_size": INNER}
MOE = {"num_experts": EXPERTS, "moe_intermediate_size": INNER}
GPT = {"num_moe_experts": EXPERTS, "moe_ffn_hidden_size": INNER, "add_bias_linear": True,
       "softmax_type": "learnable"}

# model, Hugging Face's config, Megatron-Core's, tensor, pipeline and expert parallel ranks, and how many cut
# an expert: one where experts have biases, for Megatron-Core cuts none of those
CASES = {
    "tp": ("llama", {}, {}, (2, 1, 1, 2)),
    "tied pp": ("qwen3", {"tie_word_embeddings": True}, {"qk_layernorm": True}, (1, 2, 1, 1)),
    "bias dp": ("qwen2", {}, {"add_qkv_bias": True}, (1, 1, 1, 1)),
    "ep": ("qwen3_moe", MOE, {"qk_layernorm": True, "num_moe_experts": EXPERTS,
                              "moe_ffn_hidden_size": INNER}, (1, 1, 2, 1)),
    "etp": ("qwen3_moe", MOE, {"qk_layernorm": True, "num_moe_experts": EXPERTS,
                               "moe_ffn_hidden_size": INNER}, (2, 1, 1, 2)),
    "whole experts": ("qwen3_moe", MOE, {"qk_layernorm": True, "num_moe_experts": EXPERTS,
                                         "moe_ffn_hidden_size": INNER}, (2, 1, 1, 1)),
    "gpt ep": ("gpt_oss", {"num_local_experts": EXPERTS}, GPT, (1, 1, 2, 1)),
    "gpt tp": ("gpt_oss", {"num_local_experts": EXPERTS}, GPT, (2, 1, 2, 1)),
    "gpt whole experts": ("gpt_oss", {"num_local_experts": EXPERTS}, GPT, (2, 1, 1, 1)),
}


def config_of(case):
    return {"model_type": CASES[case][0], **BASE, **CASES[case][1]}


def values(case, step):
    """A model's tensors under the names of Hugging Face, with the type that the trainer has."""
    names = ferry.Names(config_of(case), dtype="f32")
    found = {}
    for number, one in enumerate(names.tensors("hf")):
        generator = torch.Generator().manual_seed(1000 * step + number)
        found[one.name] = torch.randn(one.shape, generator=generator)
        if "norm" in one.name:
            found[one.name] = found[one.name].bfloat16()
    return found


class Place:
    def __init__(self):
        self.tp, self.part = (parallel_state.get_tensor_model_parallel_world_size(),
                              parallel_state.get_tensor_model_parallel_rank())
        self.ep, self.expert_part = (parallel_state.get_expert_model_parallel_world_size(),
                                     parallel_state.get_expert_model_parallel_rank())
        self.etp = parallel_state.get_expert_tensor_parallel_world_size()
        self.cut = parallel_state.get_expert_tensor_parallel_rank()
        self.stage = parallel_state.get_pipeline_model_parallel_rank()
        self.stages = parallel_state.get_pipeline_model_parallel_world_size()


def model_of(case):
    kind, changes, more, (tp, pp, ep, etp) = CASES[case]
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp,
        expert_model_parallel_size=ep, expert_tensor_parallel_size=etp)
    made = TransformerConfig(**{"add_bias_linear": False, **more},
        num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, num_query_groups=GROUPS,
        kv_channels=HEAD, ffn_hidden_size=INNER, gated_linear_unit=True, normalization="RMSNorm", use_cpu_initialization=True, tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp, expert_model_parallel_size=ep, pipeline_dtype=torch.float32,
        expert_tensor_parallel_size=etp)
    layers = get_gpt_decoder_block_spec(made, use_transformer_engine=False, normalization="RMSNorm")
    place = Place()
    model = GPTModel(
        config=made, transformer_layer_spec=layers, vocab_size=PADDED, max_sequence_length=16,
        position_embedding_type="rope", pre_process=place.stage == 0,
        post_process=place.stage == place.stages - 1,
        share_embeddings_and_output_weights=bool(changes.get("tie_word_embeddings")))
    for name, one in model.named_parameters():
        if "norm" in name:
            one.data = one.data.bfloat16()
    return model, place


def qkv(full, layer, kind):
    """Head by head: of each group its queries, its key, its value."""
    q, k, v = (full["%s.self_attn.%s_proj.%s" % (layer, one, kind)] for one in "qkv")
    rows = []
    for group in range(GROUPS):
        for head in range(HEADS // GROUPS):
            first = (group * (HEADS // GROUPS) + head) * HEAD
            rows += [q[first + at] for at in range(HEAD)]
        rows += [k[group * HEAD + at] for at in range(HEAD)]
        rows += [v[group * HEAD + at] for at in range(HEAD)]
    return torch.stack(rows)


def rows_of(tensor, n, part):
    return tensor[tensor.shape[0] // n * part : tensor.shape[0] // n * (part + 1)]


def mlp(full, prefix, which, n, part):
    if which == "fc1":
        return torch.cat([rows_of(full[prefix + "gate_proj.weight"], n, part),
                          rows_of(full[prefix + "up_proj.weight"], n, part)])
    return rows_of(full[prefix + "down_proj.weight"].t(), n, part).t()


CASES_OF_GPT = "model.layers.0.self_attn.sinks"


def local_of_gpt(full, layer, rest, place):
    """What GPT-OSS has otherwise; experts are transposed, and have gate and up in turns."""
    same = {"self_attention.linear_proj.bias": "self_attn.o_proj.bias",
            "mlp.router.weight": "mlp.router.weight", "mlp.router.bias": "mlp.router.bias"}
    if rest in same:
        return full["%s.%s" % (layer, same[rest])]
    if "softmax_offset" in rest:
        return rows_of(full[layer + ".self_attn.sinks"], place.tp, place.part)
    if "local_experts" not in rest:
        return None
    parts = rest.split(".")
    expert = int(parts[3]) + place.expert_part * EXPERTS // place.ep
    which, end = parts[4][-3:], "" if parts[5] == "weight" else "_bias"
    one = full["%s.mlp.experts.%s_proj%s" % (layer, "gate_up" if which == "fc1" else "down", end)][expert]
    own = one if end else one.t()
    return own if which == "fc2" else torch.cat([own[0::2], own[1::2]])


def local(full, name, place):
    """What a parameter of this rank is."""
    top = {"embedding.word_embeddings.weight": "model.embed_tokens.weight",
           "output_layer.weight": "lm_head.weight", "decoder.final_layernorm.weight": "model.norm.weight"}
    if name in top:
        tensor = full.get(top[name], full["model.embed_tokens.weight"])
        if "norm" in name:
            return tensor
        padded = torch.cat([tensor, torch.full((PADDED - VOCAB, HIDDEN), 7.0)])
        return rows_of(padded, place.tp, place.part)
    _, _, number, rest = name.split(".", 3)
    layer = "model.layers.%d" % (int(number) + place.stage * LAYERS // place.stages)
    if "linear_qkv" in rest:
        return rows_of(qkv(full, layer, rest.rpartition(".")[2]), place.tp, place.part)
    if CASES_OF_GPT in full:
        given = local_of_gpt(full, layer, rest, place)
        if given is not None:
            return given
    if "linear_proj" in rest:
        columns = full[layer + ".self_attn.o_proj.weight"].t()
        return rows_of(columns, place.tp, place.part).t()
    if "local_experts" in rest:
        expert = int(rest.split(".")[3]) + place.expert_part * EXPERTS // place.ep
        return mlp(full, "%s.mlp.experts.%d." % (layer, expert), rest.split(".")[4][-3:], place.etp, place.cut)
    if "linear_fc" in rest:
        return mlp(full, layer + ".mlp.", rest.split(".")[1][-3:], place.tp, place.part)
    same = {"input_layernorm.weight": "input_layernorm.weight",
            "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
            "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
            "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
            "mlp.router.weight": "mlp.gate.weight"}
    return full["%s.%s" % (layer, same[rest])]


def fill(model, place, full):
    for name, one in model.named_parameters():
        given = local(full, name, place)
        assert one.shape == given.shape, (name, one.shape, given.shape)
        one.data.copy_(given)


class Client:
    """A server that does its part by itself."""

    def init_weight_transfer_engine(self, info):
        pass

    def start_weight_update(self):
        pass

    update_weights = init_weight_transfer_engine

    def finish_weight_update(self):
        pass


def begin_megatron(rank, folder):
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.Tensor.cuda = lambda self: self  # which the package calls on the way to a CPU, too
    torch.distributed.init_process_group(
        "gloo", init_method="file://" + os.path.join(folder, "meet"), rank=rank, world_size=2)


def trainer_of(model, config, info, client):
    """On each rank of the trainer, with its model and the config.json of Hugging Face."""
    from ferry.adapters.megatron import MegatronSource
    from ferry.adapters.vllm_engine import FerryTrainer

    source = MegatronSource(model, config)
    return FerryTrainer.trainer_init(info, client=client, source=source)


def refits(rank, size, folder, ports):
    """All cases: what :func:`train` and :func:`serve` return of each."""
    if rank < 2:
        begin_megatron(rank, folder)
    return [(train if rank < 2 else serve)(rank, case, port) for case, port in zip(CASES, ports)]


def train(rank, case, port):
    """Two updates; the bytes that each moved."""
    from ferry.adapters.vllm_engine import FerryTrainerInitInfo

    model, place = model_of(case)
    wrapped = torch.nn.Module()  # as mixed precision and data parallelism wrap it
    wrapped.module = model
    info = FerryTrainerInitInfo(rank=rank, n_trainers=2, n_workers=2, port=port, seconds=SECONDS)
    trainer = trainer_of(wrapped, config_of(case), info, Client() if rank == 0 else None)
    sent = []
    for step in (1, 2):
        fill(model, place, values(case, step))
        result = trainer.send_weights()
        sent.append(result.bytes_moved)
        support.meet(rank, 4, "%s updated %d" % (case, step))
    trainer.shutdown()
    return sent


def serve(rank, case, port):
    """A worker: the first takes all, the second halves of what has two dimensions. What was wrong."""
    from ferry.adapters._updates import Half, Link, StoreExchange, open_store

    exchange = StoreExchange(open_store("127.0.0.1", port, False, SECONDS), rank, 4, SECONDS)
    link = Link(exchange, SECONDS, None, "worker %d of the server" % (rank - 2), 0)
    memory = {}

    def half(tensors):
        side = ferry.Side()
        for one in tensors:
            shape = list(one["shape"])
            begin = [0] * len(shape)
            if rank == 3 and len(shape) == 2:
                shape[1] //= 2
                begin[1] = shape[1]
            dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[one["dtype"]]
            memory[one["name"]] = torch.zeros(shape, dtype=dtype)
            side.add_parameter(one["name"], None, memory[one["name"]].numel())
            side.add_box(one["name"], begin, shape)
        return Half(side, memory)

    link.prepare(None, destination=half)
    link.check_use(None)
    wrong = []
    for step in (1, 2):
        link.run(step)
        full = values(case, step)
        assert set(full) == set(memory)
        for name, tensor in full.items():
            wanted = tensor
            if rank == 3 and tensor.dim() == 2:
                wanted = tensor[:, tensor.shape[1] // 2 :]
            if wanted.dtype != memory[name].dtype or not torch.equal(wanted, memory[name]):
                wrong.append((step, name))
        support.meet(rank, 4, "%s updated %d" % (case, step))
    link.close()
    return wrong


def misuse(rank, size, folder):
    """Configs that are another model's, a type that ranks disagree on, memory that is not in a row."""
    from ferry.adapters.megatron import MegatronSource

    begin_megatron(rank, folder)
    model, _ = model_of("tp")
    found = []
    other = {**config_of("tp"), "intermediate_size": INNER * 2}
    deep = {**config_of("tp"), "num_hidden_layers": 1}
    for config in (other, deep):
        found.append(said_of(lambda: MegatronSource(model, config).local_half()))
    fc1 = model.decoder.layers[0].mlp.linear_fc1.weight
    fc1.data = fc1.data.t().contiguous().t()
    found.append(said_of(lambda: MegatronSource(model, config_of("tp")).local_half()))
    if rank == 1:
        fc1.data = fc1.data.double()
    fc1.data = fc1.data.contiguous()
    found.append(said_of(lambda: MegatronSource(model, config_of("tp")).local_half()))
    return found


def said_of(function):
    try:
        function()
    except ferry.Error as error:
        return type(error).__name__, str(error), error.tensor
    return None


@unittest.skipIf(torch is None, "Megatron-Core is not installed")
class Refits(unittest.TestCase):
    def test_all_cases(self):
        ports = [support.free_port() for _ in CASES]
        with tempfile.TemporaryDirectory() as folder:
            ranks = support.run_ranks(refits, 4, folder, ports)
        for case, *of_ranks in zip(CASES, *ranks):
            with self.subTest(case):
                self.assertEqual(of_ranks[2:], [[], []])
                full = values(case, 1).values()
                wanted = sum(one.nbytes + one.nbytes // (2 if one.dim() == 2 else 1) for one in full)
                self.assertEqual(of_ranks[:2], [[wanted] * 2] * 2)  # nothing is gathered before


class Runs(unittest.TestCase):
    """What a shard has of its cut dimension, against rows that are dealt out one by one."""

    def test_packed_and_strided(self):
        from ferry.adapters._megatron_source import runs_of
        from ferry.resharding import ParameterMetadata

        random.seed(2)
        for _ in range(200):
            n, is_strided = random.randint(1, 4), random.random() < 0.5
            packed = [random.randint(1, 5)] * random.randint(1, 3)
            if not is_strided:
                packed = [random.randint(1, 5) for _ in packed]
            whole, shards = 0, [[] for _ in range(n)]
            for length in packed:
                for shard in shards:
                    shard += range(whole, whole + length)
                    whole += length
            how = ({"partition_stride": len(packed)} if is_strided else {"partition_sizes": packed})
            for rank, shard in enumerate(shards):
                meta = ParameterMetadata(
                    "w", (2, len(shard)), "f32", 4, is_tp=True, partition_dim=1, owner_rank=rank + 3,
                    tensor_parallel_group_ranks=list(range(3, 3 + n)), **how)
                found = [None] * len(shard)
                for first, length, here in runs_of(meta, False):
                    found[here : here + length] = range(first, first + length)
                self.assertEqual(found, shard)


class Parts(unittest.TestCase):
    """What a run has of boxes, element by element."""

    def test_random_boxes(self):
        from ferry.adapters._cut import parts_of, strides_of

        random.seed(3)
        n_found = n_repeated = 0
        for _ in range(2000):
            whole, box = self.box()
            cut = random.randrange(len(whole))
            first = random.randrange(whole[cut])
            length = random.randint(1, whole[cut] - first)
            here = random.randint(0, 2)
            local = list(whole)
            local[cut] = here + length + random.randint(0, 2)
            found, theirs = {}, strides_of(local)
            for part in parts_of(box, whole, cut, (first, length, here), local):
                own = elements_of(part._asdict(), part.begin, part.shape, part.offset, part.strides,
                                  [dict(zip(("count", "begin", "offset"), loop)) for loop in part.repeat])
                self.assertEqual(len(own), part.elements)
                self.assertFalse(set(own) & set(found))
                found.update(own)
                n_repeated += bool(part.repeat)
            wanted = {}
            strides = strides_of(whole)
            for source, offset in elements_of(box, box["begin"], box["shape"], box["offset"],
                                              box["strides"], box["repeat"]).items():
                at = [offset // step % extent for step, extent in zip(strides, whole)]
                if first <= at[cut] < first + length:
                    at[cut] += here - first
                    wanted[source] = sum(n * step for n, step in zip(at, theirs))
            self.assertEqual(found, wanted, (whole, box, cut, first, length, here, local))
            n_found += len(found)
        self.assertGreater(n_found, 2000)
        self.assertGreater(n_repeated, 200)

    def box(self):
        """A box whose dimensions change places, in turns along some of them; of a stack now and then."""
        from ferry.adapters._cut import strides_of

        whole = [random.randint(1, 7) for _ in range(random.randint(1, 3))]
        ours, order = strides_of(whole), list(range(len(whole)))
        random.shuffle(order)
        shape, strides, begin, offset, repeat = [], [], [], 0, []
        loops = []
        for k in order:
            width = random.randint(1, whole[k])
            turns = random.randint(1, whole[k] // width)
            step = random.randint(width, max(width, whole[k] // turns))
            turns = min(turns, (whole[k] - width) // step + 1)
            at = random.randint(0, whole[k] - width - (turns - 1) * step)
            shape.append(width)
            strides.append(ours[k])
            begin.append(random.randint(0, 3))
            offset += at * ours[k]
            if turns > 1:
                loops.append((turns, len(shape) - 1, step, ours[k]))
        lead = random.random() < 0.3
        for turns, dim, step, stride in loops:
            moves = [0] * len(shape)
            moves[dim] = random.randint(shape[dim], shape[dim] + 2)
            repeat.append({"count": turns, "begin": [0] * lead + moves, "offset": step * stride})
        if lead:
            shape, strides, begin = [1, *shape], [1, *strides], [5, *begin]
        return whole, {"tensor": "w", "begin": begin, "shape": shape, "offset": offset,
                       "strides": strides, "repeat": repeat}


def elements_of(box, begin, shape, offset, strides, repeat):
    """By place in the source, where each element of a box lies."""
    import itertools

    found = {}
    for turns in itertools.product(*(range(loop["count"]) for loop in repeat)):
        first, at = list(begin), offset
        for turn, loop in zip(turns, repeat):
            first = [b + turn * step for b, step in zip(first, loop["begin"])]
            at += turn * loop["offset"]
        for place in itertools.product(*map(range, shape)):
            source = tuple(b + i for b, i in zip(first, place))
            assert source not in found
            found[source] = at + sum(i * step for i, step in zip(place, strides))
    return found


@unittest.skipIf(torch is None, "Megatron-Core is not installed")
class Misuse(unittest.TestCase):
    def test_what_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks = support.run_ranks(misuse, 2, folder)
        fc1 = "decoder.layers.0.mlp.linear_fc1.weight"
        for rank, (other, deep, gaps, types) in enumerate(ranks):
            self.assertEqual(other[::2], ("InvalidInput", fc1))
            self.assertIn(f'"{fc1}" on rank {rank} is a shard of [40, 24], and the config makes it '
                          "[80, 24]: give the config of this model", other[1])
            self.assertEqual(deep[0], "InvalidInput")
            self.assertRegex(deep[1], r'parameter "decoder.layers.1[^"]*" on rank \d is none of the model')
            self.assertEqual(gaps[::2], ("Unsupported", fc1))
        self.assertIn(f'"{fc1}" is of f32 on rank 0, and of f64 on another one', ranks[0][3][1])
        self.assertIsNone(ranks[1][3])  # it hears of it when all meet


if __name__ == "__main__":
    unittest.main()
