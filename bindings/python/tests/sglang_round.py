# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A server of two workers, each with SGLang's own updater in a process of its own, and a trainer that
updates it. Run by test_adapters_sglang.

    python3 sglang_round.py FAMILY[/ep|/pp|/kept]|refusals|lost|seconds

With "/kept" something outside of the model looks into its embedding. "seconds" is no test: it says how
long updates of a larger model take, with memory of workers that trainers write to and with other memory.
"""

import base64
import http.server
import json
import multiprocessing
import os
import pickle
import signal
import statistics
import sys
import tempfile
import threading
import time
import types

import sglang_on_cpu as sglang
import torch
import torch.distributed as dist

import ferry
from ferry import _ferry
from ferry.adapters import _trainer, _updates
from ferry.adapters.sglang import LOAD_FORMAT, FerryTrainer, FerryTrainerInitInfo, Server

N = 2  # workers, and ranks of the trainer in a round
SECONDS = 60.0
FORK = multiprocessing.get_context("fork")  # SGLang is imported once


# A worker: what SGLang's scheduler has for updates, with nothing else of a scheduler.


def updater_of(model, config, record):
    from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.model_executor.model_runner import ModelRunner

    runner, worker = ModelRunner.__new__(ModelRunner), TpModelWorker.__new__(TpModelWorker)
    runner.model, runner.model_config = model, config
    runner.device, runner.gpu_id = "cpu", 0
    runner.init_weight_updater()
    worker._model_runner = runner
    return SchedulerWeightUpdaterManager(
        tp_worker=worker, draft_worker=None, memory_saver_adapter=None,
        flush_cache=lambda empty_cache: True, is_fully_idle=lambda **named: True,
        scheduler=types.SimpleNamespace(record_weight_version_change=record))


def wrong(model, family, config, full):
    """Parameters that differ from those of a model that loads the checkpoint."""
    loaded = sglang.class_of(family)(config.hf_config)
    loaded.load_weights(iter(full.items()))
    theirs = dict(loaded.named_parameters())
    found = [name for name, one in model.named_parameters() if sglang.bits(one) != sglang.bits(theirs[name])]
    for name, layer in model.named_modules():  # what is computed of weights, beside parameters
        other = loaded.get_submodule(name)
        found += [name + "." + key for key in ("w_kc", "w_vc") if getattr(layer, key, None) is not None
                  and sglang.bits(getattr(layer, key)) != sglang.bits(getattr(other, key))]
    return found


class Onlookers:
    """What else looks into a model's parameters, as a server's other parts may: the objects under other
    names, a buffer that is a view, and, if something is kept, a view that the model does not know."""

    def __init__(self, model, is_kept):
        self.model = model
        self.objects = dict(model.named_parameters())
        self.first = next(iter(self.objects))
        model.register_buffer("rows", self.objects[self.first].data[1:], persistent=False)
        table = model.model.embed_tokens.weight if is_kept else None
        self.kept = None if table is None else table.detach()[:2]

    def wrong(self):
        named = dict(self.model.named_parameters())
        found = [name for name, one in self.objects.items() if one is not named[name]]
        if self.model.rows.data_ptr() != named[self.first].data[1:].data_ptr():
            found.append("rows")
        if self.kept is not None and self.kept.data_ptr() != self.model.model.embed_tokens.weight.data_ptr():
            found.append("kept")
        return found

    def elsewhere(self):
        """Parameters that do not lie where trainers write to."""
        return sorted(name for name, one in self.model.named_parameters(remove_duplicate=False)
                      if not _ferry.has_memory(one.data_ptr(), one.nbytes))


def serve(folder, name, full, rank, pipe):
    from sglang.srt.managers import io_struct
    from sglang.srt.plugins import load_plugins
    from sglang.srt.utils.common import normalize_serialized_named_tensor_payloads

    family, _, how = name.partition("/")
    config = sglang.start(folder, rank, N, how)
    load_plugins()
    model = sglang.class_of(family)(config.hf_config)
    model.load_weights(iter(full.items()))
    onlookers = Onlookers(model, how == "kept")
    versions = []
    updater = updater_of(model, config, lambda new_version: versions.append(new_version))
    requests = {"begin_weight_update": io_struct.BeginWeightUpdateReqInput,
                "end_weight_update": io_struct.EndWeightUpdateReqInput,
                "update_weights_from_tensor": io_struct.UpdateWeightsFromTensorReqInput}
    while True:
        path, said = pipe.recv()
        if path == "compare":
            found = wrong(model, family, config, said) + onlookers.wrong()
            pipe.send((found, versions[-1:], onlookers.elsewhere()))
        elif path == "end":
            os._exit(0)
        else:
            if "serialized_named_tensors" in said:
                said["serialized_named_tensors"] = normalize_serialized_named_tensor_payloads(
                    said["serialized_named_tensors"])
            pipe.send(getattr(updater, path)(requests[path](**said)))


class Client(Server):
    """What SGLang's HTTP server and its tokenizer manager do with requests, for workers of pipes."""

    def __init__(self, folder, name, full):
        super().__init__("pipes")
        self.pipes, self.processes = [], []
        for rank in range(N):
            here, there = FORK.Pipe()
            self.processes.append(FORK.Process(target=serve, args=(folder, name, full, rank, there), daemon=True))
            self.processes[-1].start()
            there.close()
            self.pipes.append(here)

    def ask(self, path, said):
        for pipe in self.pipes:
            pipe.send((path, said))
        return [pipe.recv() for pipe in self.pipes]

    def post(self, path, said):
        from sglang.srt.managers.communicator import FanOutCommunicator

        return FanOutCommunicator.merge_results(self.ask(path, said))

    def end(self):
        for pipe in self.pipes:
            pipe.send(("end", None))
        for process in self.processes:
            process.join()


# The trainer.


def halves(full, mesh):
    from torch.distributed.tensor import Shard, distribute_tensor

    return {name: distribute_tensor(one, mesh, [Shard(0)]) for name, one in full.items()}


def trainer_of(client, source, rank=0, n=1, **options):
    info = FerryTrainerInitInfo(**{"rank": rank, "n_trainers": n, "n_workers": N, "seconds": SECONDS,
                                   **options})
    return FerryTrainer.trainer_init(info, client=client, source=source)


def train(name, versions, rank, meeting, client=None):
    """Two updates, bit for bit, of a trainer whose ranks have a half of each tensor."""
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=N)
    mesh = init_device_mesh("cpu", (N,))
    source = halves(versions[0], mesh)
    trainer = trainer_of(client, source, rank, N, secret="of the test")
    for full in versions[1:]:
        for key, half in halves(full, mesh).items():
            source[key].to_local().copy_(half.to_local())
        result = trainer.send_weights()
        if client is not None:
            for number, (found, version, elsewhere) in enumerate(client.ask("compare", full)):
                print("%s version %s on worker %d: version %s, wrong %s\nin other memory: %s" % (
                    name, result.version, number, *version, found or "none", elsewhere), flush=True)
    print("bytes staged: %d\n" % trainer._link.refit.service.statistics().bytes_staged, end="", flush=True)
    trainer.shutdown()
    dist.destroy_process_group()


def round_of(name):
    family = name.partition("/")[0]
    sglang.class_of(family)
    with tempfile.TemporaryDirectory() as folder:
        versions = [sglang.save(family, seed, folder) for seed in range(3)]
        client = Client(folder, name, versions[0])
        meeting = "file://" + os.path.join(folder, "trainers")
        second = FORK.Process(target=train, args=(name, versions, 1, meeting))
        second.start()
        train(name, versions, 0, meeting, client)
        second.join()
        client.end()
        raise SystemExit(second.exitcode)


# What is refused, after which the server takes what is right.


class Stranger(Client):
    """Tells the workers of another secret."""

    def init_weight_transfer_engine(self, info):
        super().init_weight_transfer_engine(dict(info, secret=self.secret))


def refused(what, client, source, **options):
    try:
        trainer_of(client, source, **options).send_weights()
        print("%s: taken" % what, flush=True)
    except ferry.Error as error:
        print("%s: %s: %s" % (what, type(error).__name__, error), flush=True)


def refusals():
    family = "qwen3_moe"
    for one in (family, "wide_mixtral"):
        sglang.class_of(one)
    with tempfile.TemporaryDirectory() as folder:
        full = sglang.save(family, 1, folder)
        client = Stranger(folder, family, {name: torch.zeros_like(one) for name, one in full.items()})
        client.secret = "s"
        expert = next(name for name in full if "experts" in name)

        def without(name):
            return {key: one for key, one in full.items() if key != name}

        known = {"secret": "s"}
        refused("other model", client, dict(full, **{"model.embed_tokens.weight": torch.zeros(200, 64)}), **known)
        refused("no norm", client, without("model.norm.weight"), **known)
        refused("no expert", client, without(expert), **known)
        refused("never comes", client, full, n_workers=3, seconds=3.0, **known)
        print("stray: %s, %s" % by_hand(client, "w", LOAD_FORMAT), flush=True)
        print("by itself: %s, %s" % by_hand(client, "model.norm.weight", None), flush=True)
        refused("too few", client, full, n_workers=1, seconds=3.0, **known)
        client.secret = "another"
        refused("wrong secret", client, full, seconds=5.0, **known)
        client.secret = "s"
        extra = dict(full, **{"model.layers.0.self_attn.extra.weight": torch.zeros(3)})
        trainer = trainer_of(client, extra, **known)
        print("unused: %s" % trainer.unused, flush=True)
        print("version %d, wrong %s" % (trainer.send_weights().version, [
            found for found, _, _ in client.ask("compare", full)]), flush=True)
        client.start_weight_update()
        print("in an update: %s" % error_of(trainer.send_weights), flush=True)
        trainer.info.seconds = 3.0
        print("not ended: %s" % error_of(trainer.join), flush=True)  # it is of somebody else
        trainer.info.seconds = SECONDS
        client.finish_weight_update()
        trainer.join()
        print("again: version %d" % trainer.send_weights().version, flush=True)
        print("back: %s" % error_of(lambda: trainer._link.run(1)), flush=True)
        trainer.shutdown()
        client.end()
    with tempfile.TemporaryDirectory() as folder:
        full = sglang.save("wide_mixtral", 1, folder)
        client = Client(folder, "wide_mixtral", full)
        refused("wide heads", client, full)
        client.end()


def by_hand(client, name, load_format):
    """What a server answers to somebody else's tensor."""
    letter = base64.b64encode(pickle.dumps([(name, torch.ones(128))])).decode()
    client.start_weight_update()
    answer = client.post("update_weights_from_tensor", {
        "serialized_named_tensors": [letter] * N, "load_format": load_format, "selector": "target"})
    client.finish_weight_update()
    return answer


def error_of(function):
    try:
        return function()
    except ferry.Error as error:
        return "%s: %s" % (type(error).__name__, error)


# Trainers that are lost, each at another point, and the next one that comes.


class Front(http.server.ThreadingHTTPServer):
    """SGLang's HTTP before workers of pipes: one request at a time, in their order. A request that is
    ``deadly`` is the last that its trainer makes: that is killed when all workers have it."""

    def __init__(self, client):
        super().__init__(("127.0.0.1", 0), Requests)
        self.client, self.lock = client, threading.Lock()
        self.deadly, self.victim = None, None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def answer(self, path, said):
        from sglang.srt.managers.communicator import FanOutCommunicator

        with self.lock:
            for pipe in self.client.pipes:
                pipe.send((path, said))
            if self.victim is not None and (path, "weight_version" in said) == self.deadly:
                self.kill()
            return FanOutCommunicator.merge_results([pipe.recv() for pipe in self.client.pipes])

    def kill(self):
        os.kill(self.victim, signal.SIGKILL)
        os.waitpid(self.victim, 0)
        self.victim = None

    def handle_error(self, request, address):
        """An answer that nobody is there to take."""


class Requests(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_done, message = self.server.answer(self.path[1:], said)
        self.send_response(200 if is_done else 400)
        self.end_headers()
        self.wfile.write(json.dumps({"success": is_done, "message": message}).encode())

    def log_message(self, *about):
        pass


def waits(*given):
    """In place of what the trainer would do of itself until it is killed."""
    time.sleep(SECONDS)
    os._exit(1)


def dies(*given):
    os.kill(os.getpid(), signal.SIGKILL)


LOAD = "update_weights_from_tensor"
POINTS = {  # a name: the deadly request, whether that is of an update, and what is done otherwise
    "begin": (("begin_weight_update", False), {}),
    "address": ((LOAD, False), {(_updates.StoreExchange, "all_gather"): waits}),
    "meeting": (None, {(_updates.StoreExchange, "all_gather"): dies}),
    "plan": (None, {(_updates.Link, "plan"): dies}),
    "update": ((LOAD, True), {(_updates.Link, "run"): waits}),
    "bytes": ((LOAD, True), {}),
    "end": (None, {(_trainer, "_finish"): dies}),
}


def lost():
    sglang.class_of("llama")
    with tempfile.TemporaryDirectory() as folder:
        versions = [sglang.save("llama", seed, folder) for seed in range(2)]
        client = Client(folder, "llama", versions[0])
        front = Front(client)
        url = "http://127.0.0.1:%d" % front.server_port
        for number, (name, (deadly, otherwise)) in enumerate(POINTS.items(), 1):
            lose(front, url, versions[0], deadly, otherwise)
            full = versions[number % 2]
            if name == "begin":  # of whom no worker has heard
                client.ask("compare", full)  # all are ready
                print("not ended in begin: %s" % error_of(
                    lambda: trainer_of(Server(url), full, seconds=3.0)), flush=True)
                Server(url).finish_weight_update()
            begin = time.perf_counter()
            trainer = trainer_of(Server(url), full)
            result = trainer.send_weights()
            told = client.ask("compare", full)
            print("lost in %s: version %d, of the server %s, wrong %s, in time: %s" % (
                name, result.version, [version for _, version, _ in told], [wrong for wrong, _, _ in told],
                time.perf_counter() - begin < SECONDS / 2), flush=True)
            trainer.shutdown()
        client.end()


def lose(front, url, full, deadly, otherwise):
    """A trainer lives until its deadly request, or until it dies of itself."""
    here, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(here, 1)
        for (owner, name), function in otherwise.items():
            setattr(owner, name, function)
        try:
            trainer_of(Server(url), full).send_weights()
            waits()
        finally:
            os._exit(1)
    front.deadly, front.victim = deadly, pid
    os.write(there, b"!")
    os.close(here)
    os.close(there)
    if deadly is None:
        front.victim = os.waitpid(pid, 0) and None
    while front.victim is not None:
        time.sleep(0.01)


# What memory does to seconds.


def seconds(n_rounds=3, n_updates=7):
    """In turns with each kind of memory: of the meeting, and the median of updates but for the first."""
    from ferry import _memory

    sglang.class_of("large")
    share = _memory.share_what_can
    with tempfile.TemporaryDirectory() as folder:
        full = sglang.save("large", 1, folder)
        print("%.2f GiB" % (sum(one.nbytes for one in full.values()) / 2**30), flush=True)
        for number in range(n_rounds):
            for kind in ("other", "shared"):
                _memory.share_what_can = share if kind == "shared" else lambda wanted, others: {}
                client = Client(folder, "large", full)
                client.ask("compare", full)  # all are ready
                begin = time.perf_counter()
                trainer = trainer_of(client, full)
                met = time.perf_counter() - begin
                taken = []
                for _ in range(n_updates):
                    begin = time.perf_counter()
                    trainer.send_weights()
                    taken.append(time.perf_counter() - begin)
                print("round %d, %s memory: %.2f s to meet, %.3f s an update (%.3f to %.3f)" % (
                    number, kind, met, statistics.median(taken[1:]), min(taken[1:]), max(taken[1:])), flush=True)
                trainer.shutdown()
                client.end()
                os.remove(os.path.join(folder, "meeting"))  # of the workers


if __name__ == "__main__":
    {"refusals": refusals, "lost": lost, "seconds": seconds}.get(sys.argv[1], lambda: round_of(sys.argv[1]))()
