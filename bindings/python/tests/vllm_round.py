# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A whole vLLM on this CPU, and a trainer: it generates, is updated by the engine "ferry", and generates
again. Run by test_adapters_vllm_engine.

    python3 vllm_round.py llama|tied|two|experts

The trainer is in vLLM's process. With "two" it has another rank, each has half of every tensor, and
vLLM has two workers in processes of their own. So with "experts", a Qwen3-MoE of which each worker has
half of every expert.
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
from vllm import LLM, SamplingParams  # noqa: E402
from vllm.config import WeightTransferConfig  # noqa: E402
from vllm.distributed.weight_transfer import base  # noqa: E402

from ferry import Error  # noqa: E402
from ferry.adapters.vllm_engine import FerryTrainer, FerryTrainerInitInfo  # noqa: E402

PROMPT, N_TOKENS = [1, 5, 9], 24


def model_of(seed, kind):
    family, more = "llama", {"tie_word_embeddings": kind == "tied"}
    if kind == "experts":
        family, more = "qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": 32,
                                     "moe_intermediate_size": 64}
    config = transformers.AutoConfig.for_model(
        family, hidden_size=128, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=256, num_hidden_layers=2, vocab_size=200, max_position_embeddings=128, **more)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for tensor in model.parameters():
        torch.nn.init.normal_(tensor, float(tensor.dim() == 1), 0.09)
    return model


def tokens_of(model):
    out = model.generate(torch.tensor([PROMPT]), max_new_tokens=N_TOKENS, do_sample=False,
                         eos_token_id=None, pad_token_id=0)
    return out[0, len(PROMPT):].tolist()


class Client:
    """What the trainer says to a server, said to an LLM of this process."""

    def __init__(self, llm):
        self.llm = llm

    def init_weight_transfer_engine(self, info):
        self.llm.init_weight_transfer_engine(base.WeightTransferInitRequest(init_info=info))

    def start_weight_update(self):
        self.llm.start_weight_update()

    def update_weights(self, info):
        self.llm.update_weights(base.WeightTransferUpdateRequest(update_info=info))

    def finish_weight_update(self):
        self.llm.finish_weight_update()

    def tokens(self):
        how = SamplingParams(max_tokens=N_TOKENS, temperature=0, ignore_eos=True, detokenize=False)
        out = self.llm.generate([{"prompt_token_ids": PROMPT}], how, use_tqdm=False)
        return list(out[0].outputs[0].token_ids)


class Rank:
    """A rank of the trainer; the first has a client."""

    def __init__(self, rank, n, kind, client=None, meeting=None):
        self.rank, self.kind, self.client = rank, kind, client
        self.model = model_of(1, kind)
        self.source, self.mesh = self.model, None
        if n > 1:
            dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=n)
            self.mesh = init_device_mesh("cpu", (n,))
            self.source = self.halves()
        self.info = FerryTrainerInitInfo(rank=rank, n_trainers=n, n_workers=n)
        self.trainer = FerryTrainer.trainer_init(self.info, client=client, source=self.source)

    def halves(self):
        return {name: distribute_tensor(tensor.detach().clone(), self.mesh, [Shard(0)])
                for name, tensor in self.model.named_parameters()}

    def train(self, seed):
        self.model.load_state_dict(model_of(seed, self.kind).state_dict())
        if self.mesh is not None:
            for name, half in self.halves().items():
                self.source[name].to_local().copy_(half.to_local())

    def compare(self):
        """Whether the server generates what the trainer's weights do."""
        if self.client is None:
            return None
        return "equal" if self.client.tokens() == tokens_of(self.model) else "different"

    def say(self, text):
        if self.client is not None:
            print(text, flush=True)

    def refused(self, function):
        try:
            function()
        except Error as error:
            self.say("refused: %s" % error)

    def run(self):
        trainer = self.trainer
        for seed in (2, 3):
            before = self.compare()
            self.train(seed)
            version = trainer.send_weights().version
            self.say("version %d: tokens before, after: %s, %s" % (version, before, self.compare()))
        self.say("bytes staged: %d" % trainer._link.refit.service.statistics().bytes_staged)
        self.refused(lambda: trainer._link.run(2))
        if self.client is not None:
            self.client.start_weight_update()  # and the trainer begins another one
        self.refused(trainer.send_weights)
        trainer.join()
        self.train(4)
        version = trainer.send_weights().version
        self.say("version %d after another meeting: %s" % (version, self.compare()))
        trainer.shutdown()
        self.run_wrongly()

    def run_wrongly(self):
        """Trainers of another model than the server's."""
        have = dict(self.source if self.mesh is not None else self.model.named_parameters())
        wrong = {"wide": {**have, "model.layers.1.self_attn.q_proj.weight": torch.zeros(256, 128)}}
        if self.kind != "tied":
            wrong["no head"] = {name: one for name, one in have.items() if name != "lm_head.weight"}
        if self.kind == "experts":
            wrong["no expert"] = without_an_expert(have)
        for what, source in wrong.items():
            self.say("next: " + what)
            self.refused(lambda source=source: FerryTrainer.trainer_init(
                self.info, client=self.client, source=source))


def without_an_expert(have):
    """Those of a layer one by one, as checkpoints have them, and the third is not there."""
    layer = "model.layers.1.mlp.experts."
    found = {name: one for name, one in have.items() if name != layer + "down_proj"}
    assert len(found) == len(have) - 1
    found.update(("%s%d.down_proj.weight" % (layer, expert), torch.zeros(128, 64)) for expert in (0, 1, 3))
    return found


def main(kind, rank=0, meeting=None):
    n = 2 if kind in ("two", "experts") else 1
    if rank > 0:
        Rank(rank, n, kind, meeting=meeting).run()
        return
    folder = tempfile.mkdtemp(dir=".")
    meeting = "file://" + os.path.abspath(os.path.join(folder, "meeting"))
    model_of(1, kind).save_pretrained(folder)
    second = torch.multiprocessing.get_context("spawn").Process(
        target=main, args=(kind, 1, meeting), daemon=True)  # else what fails here would wait for it
    if n > 1:
        second.start()
    client = Client(LLM(
        folder, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=64,
        tensor_parallel_size=n, weight_transfer_config=WeightTransferConfig(backend="ferry")))
    Rank(0, n, kind, client, meeting).run()
    if n > 1:
        second.join()
        del client.llm  # its workers end with it
    os._exit(second.exitcode or 0)  # vLLM's own end takes long


if __name__ == "__main__":
    main(sys.argv[1])
