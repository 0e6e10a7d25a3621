# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A loop of reinforcement learning: two ranks of torch train, a vLLM of two workers generates, and
ferry sends the weights after each step. All on this machine's CPU; see run.sh.

python3 examples/rl/loop.py [--share fsdp|tp] [--steps N] [--kill-worker]
"""

import argparse
import os
import signal
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from policy import (
    N_SAMPLES, N_TOKENS, PROMPTS, greedy, make_model, rewards_of, share_by_fsdp, share_by_tp,
    train, whole,
)  # fmt: skip
from server import Server, free_port

N_TRAINERS, N_WORKERS = 2, 2


class Loop:
    """What a rank of the trainer does. Rank 0 speaks to the server."""

    def __init__(self, rank, options, folder):
        self.rank, self.options, self.folder = rank, options, folder
        self.server, self.n_servers = None, 0
        self.model = make_model()
        if rank == 0:
            self.model.save_pretrained(folder)
            self.start_server()
        share = share_by_tp if options.share == "tp" else share_by_fsdp
        self.model = share(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3, foreach=False)

    def say(self, text):
        if self.rank == 0:
            print(text, flush=True)

    def start_server(self):
        self.n_servers += 1
        log = os.path.join(self.folder, "server-%d.log" % self.n_servers)
        self.server = Server(self.folder, N_WORKERS, log)

    def client(self):
        """How the trainer reaches the server, once that serves."""
        if self.rank != 0:
            return None
        from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient

        self.server.wait()
        return HTTPVLLMWeightSyncClient(self.server.url)

    def meet(self):
        from ferry.adapters.vllm_engine import FerryTrainer, FerryTrainerInitInfo

        info = FerryTrainerInitInfo(rank=self.rank, n_trainers=N_TRAINERS, n_workers=N_WORKERS)
        self.trainer = FerryTrainer.trainer_init(info, client=self.client(), source=self.model)

    def send(self):
        """The new weights, whatever happens to the server meanwhile."""
        import ferry

        try:
            return self.trainer.send_weights()
        except (ferry.PeerLost, ferry.Timeout, ferry.Aborted) as error:
            self.say("lost: %s" % error)
        if self.rank == 0:
            self.server.stop()
            self.start_server()
        self.trainer.join(client=self.client())
        self.say("another server has joined, with workers %s"
                 % [worker.pid for worker in self.trainer.workers])
        return self.trainer.send_weights()

    def answers(self, step):
        """What the server generates, on all ranks."""
        told = [None]
        if self.rank == 0:
            told = [[self.server.generate(prompt, N_TOKENS, N_SAMPLES, 1.0, step)
                     for prompt in PROMPTS]]
        dist.broadcast_object_list(told, src=0)
        return [torch.tensor(one) for one in told[0]]

    def step(self, number):
        answers = self.answers(number)
        reward = torch.stack([rewards_of(one).mean() for one in answers]).mean().item()
        mine = answers
        if self.options.share == "fsdp":
            half = N_SAMPLES // N_TRAINERS
            mine = [one[self.rank * half : (self.rank + 1) * half] for one in answers]
        train(self.model, self.optimizer, PROMPTS, mine)
        if self.options.kill_worker and self.rank == 0 and number == self.options.steps // 2:
            os.kill(self.trainer.workers[1].pid, signal.SIGKILL)
        begin = time.monotonic()
        result = self.send()
        self.say("%4d  %6.3f  %7d  %8.3f  %8.4f  %9d" % (
            number, reward, self.trainer.version, time.monotonic() - begin, result.seconds,
            result.bytes_moved))
        return reward

    def run(self):
        begin = time.monotonic()
        self.meet()
        self.say("the server and its workers have joined after %.1f s" % (time.monotonic() - begin))
        self.say("step  reward  version  update s  refit s       bytes")
        rewards = [self.step(number) for number in range(1, self.options.steps + 1)]
        self.check(rewards)
        self.trainer.shutdown()

    def check(self, rewards):
        model = whole(self.model)
        if self.rank != 0:
            return
        wanted = [greedy(model, prompt) for prompt in PROMPTS]
        found = [self.server.generate(prompt, N_TOKENS)[0] for prompt in PROMPTS]
        n_equal = sum(a == b for x, y in zip(wanted, found) for a, b in zip(x, y))
        n = N_TOKENS * len(PROMPTS)
        version = self.server.version()
        print("reward %.3f -> %.3f; the server has version %d; %d of %d tokens equal those of "
              "transformers with the trainer's weights"
              % (rewards[0], rewards[-1], version, n_equal, n), flush=True)
        if rewards[-1] <= rewards[0] or n_equal != n or version != len(rewards):
            raise SystemExit("the loop did not do what it should")


def main_of_rank(rank, options, port, folder):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server ends, too
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % port, rank=rank,
                            world_size=N_TRAINERS)
    loop = Loop(rank, options, folder)
    try:
        loop.run()
        dist.barrier()
    finally:
        if loop.server is not None:
            loop.server.stop()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--share", choices=["fsdp", "tp"], default="fsdp",
                        help="how the trainer's ranks share the model")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--kill-worker", action="store_true",
                        help="kill a worker of the server half way, and start another server")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main_of_rank, (options, free_port(), folder), nprocs=N_TRAINERS)


if __name__ == "__main__":
    main()
