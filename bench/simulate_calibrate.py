#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What ferry simulate predicts, beside what runs take.

    python3 bench/simulate_calibrate.py --build build/release [--rounds 5] [--only shm,hosts,mixed,mixed-hosts]
            [--mib 256] [--rate 1gbit] [--json FILE]

shm: ranks of this machine, sources apart from destinations. Four numbers of the machine are fitted to
four runs of 4 -> 4: what all CPUs copy together, which one rank may use alone as well, of shards that
stay as they are; the same of rows that become columns; what each piece adds, of many small tensors; and
the latency, of a small run. The other layouts and models are predicted, and each is run between two such
fits: the prediction is the mean of both.

A machine that others use as well may become slower or faster by two from one moment to the next. So what
is measured on one machine counts only where the runs before and after it take the same time, within
ALIKE; else it is measured again, at most TRIES times, and how often that was so stands in the result.

hosts: namespaces with links shaped to --rate (tests/multirank/hosts.py, which needs root). The rate is
the goodput of a plain TCP stream of the same round, and nothing is fitted.

mixed: the mixed collectives by `ferry bench mixed --predict`, on 2, 4 and 8 ranks of this machine: of
sizes that its costs were not fitted to, how many predictions are within 10 and 20 percent.

mixed-hosts: the same of ranks on several such namespaces, with pieces of up to 4 MiB.

Of each case the predicted seconds, the measured ones (the median of each round's), and their ratio.
"""

import argparse
import importlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import honest
import refit_hosts

MIB = 1 << 20
WIDTH = 4096  # columns, of bf16
SHM = {"4 -> 2": (4, 2, 1), "2 -> 4": (2, 4, 1), "4 -> 2 x 2": (4, 2, 2), "2 -> 4 x 2": (2, 4, 2),
       "1 -> 4": (1, 4, 1), "4 -> 1": (4, 1, 1), "8 -> 4": (8, 4, 1)}
FITTED, N_SMALL = (4, 4, 1), 16384
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 8,
         "hidden_size": 1024, "vocab_size": 32000, "num_attention_heads": 16, "num_key_value_heads": 8,
         "intermediate_size": 2816}
EXPERTS = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 8,
           "hidden_size": 512, "vocab_size": 32000, "num_attention_heads": 16, "num_key_value_heads": 4,
           "head_dim": 64, "moe_intermediate_size": 384, "num_experts": 16, "num_experts_per_tok": 2}
# Of a source and a destination behind it; "same": on the source's ranks.
MODELS = {"Llama, TP4 -> TP2": (LLAMA, "tp=4", "tp=2", 4),
          "Llama, PP4 -> TP2 x DP2": (LLAMA, "pp=4", "tp=2,dp=2", 4),
          "Llama, TP4 -> TP2 x DP2, same ranks": (LLAMA, "tp=4", "tp=2,dp=2", 0),
          "experts, TP4 -> EP4": (EXPERTS, "tp=4", "ep=4", 4),
          "experts, EP4 -> TP2": (EXPERTS, "ep=4", "tp=2", 4)}
ALIKE, TRIES = 0.05, 12
HOSTS = ((4, 4), (4, 2), (2, 4))


def side(axis, n, copies=1, first=0, dim=0):
    return {"mesh": [["dp", copies], [axis, n]], "first_rank": first,
            "rules": [{"match": "*", "shard": [{"dim": dim, "axis": axis}]}]}


def spec_of(case, n_bytes, dim=1, n_tensors=1):
    n_from, n_to, copies = case
    n_elements = n_bytes // 2 // n_tensors
    width = min(WIDTH, n_elements // 4)
    return {"format": "ferry.spec/1", "source": side("tp", n_from),
            "destination": side("tp", n_to, copies, first=n_from, dim=dim),
            "tensors": [{"name": f"w{i}", "shape": [n_elements // width, width], "dtype": "bf16"}
                        for i in range(n_tensors)]}


def cluster_of(ranks_per_node, rank, node, latency_s, **more):
    return {"format": "ferry.cluster/1", "name": "here", "ranks_per_node": ranks_per_node,
            "rank_gbytes_per_s": rank / 1e9, "node_gbytes_per_s": node / 1e9,
            "latency_us": latency_s * 1e6, **more}


def ask(command, *words):
    done = subprocess.run([str(word) for word in (command, *words)], capture_output=True, text=True,
                          check=True)
    return json.loads(done.stdout)


class Ferry:
    def __init__(self, build, folder):
        self.command, self.folder = build / "ferry", pathlib.Path(folder)

    def file(self, name, value):
        path = self.folder / name
        path.write_text(json.dumps(value))
        return path

    def run(self, spec):
        """Seconds of the median run."""
        return ask(self.command, "run", self.file("spec.json", spec), "--json", "--verify", "none",
                   "--iterations", "7")["seconds"]["median"]

    def predict(self, spec, cluster):
        cases = ask(self.command, "simulate", self.file("spec.json", spec), "--cluster",
                    self.file("cluster.json", cluster), "--json")["cases"]
        return cases[0]["seconds"]


def row(name, predicted, measured):
    ratios = [p / m for p, m in zip(predicted, measured)]
    found = {"case": name, "predicted": predicted, "measured": measured, "ratios": ratios,
             "ratio": statistics.median(ratios)}
    found["met"] = abs(found["ratio"] - 1) <= 0.1
    print(f"{name:22} predicted {statistics.median(predicted) * 1e3:9.2f} ms, measured "
          f"{statistics.median(measured) * 1e3:9.2f} ms, ratio {found['ratio']:.3f} "
          f"({min(ratios):.3f} .. {max(ratios):.3f})", flush=True)
    return found


def fit(ferry, n_bytes):
    """A cluster of one node, which is this machine, and how long the large runs took."""
    whole, rows, small = (ferry.run(spec_of(FITTED, n, dim))
                          for n, dim in ((n_bytes, 0), (n_bytes, 1), (n_bytes // 256, 1)))
    pieces = ferry.run(spec_of(FITTED, n_bytes, 0, N_SMALL))
    n_pieces = FITTED[1] * N_SMALL
    latency = max(0.0, (small - rows / 256) / max(FITTED))  # for each batch of a rank: one to each
    rate = n_bytes / whole
    return cluster_of(64, rate, rate, latency, copy_all_gbytes_per_s=rate / 1e9,
                      copy_rows_gbytes_per_s=min(rate, n_bytes / rows) / 1e9,
                      copy_piece_ns=max(0.0, (pieces - whole) / n_pieces * 1e9)), (whole, rows)


class Between:
    """Measures between two looks at the machine that agree."""

    def __init__(self, look):
        """look() gives what a caller wants to know of the machine, and seconds that are to agree."""
        self.look, self.last, self.discarded = look, None, 0

    def measure(self, work):
        """What work gives, and what was known before and after it. A look serves two measurements."""
        for _ in range(TRIES):
            before = self.last or self.look()
            found = work()
            after = self.last = self.look()
            if all(abs(a / b - 1) <= ALIKE for a, b in zip(before[1], after[1])):
                return found, before[0], after[0]
            self.discarded += 1
        raise SystemExit(f"the machine has changed its speed {TRIES} times in a row")


def model_specs(build):
    sys.path.insert(0, str(build / "bindings" / "python"))
    package = importlib.import_module("ferry")
    return {name: json.loads(package.Spec.of(config, source, destination, first_rank=first).to_json())
            for name, (config, source, destination, first) in MODELS.items()}


def shm(arguments, ferry):
    n_bytes = arguments.mib * MIB
    predicted, measured, fits = {}, {}, []
    specs = {name: spec_of(case, n_bytes) for name, case in SHM.items()}
    specs.update(model_specs(arguments.build))
    specs["20,000 tensors of 8 KiB, 4 -> 2"] = spec_of((4, 2, 1), 20000 << 13, 0, 20000)
    names = list(specs)
    between = Between(lambda: fit(ferry, n_bytes))
    for turn in range(arguments.rounds):
        for name in names[turn % len(names):] + names[:turn % len(names)]:
            spec = specs[name]
            seconds, *clusters = between.measure(lambda: ferry.run(spec))
            fits += [{key: cluster[key] for key in cluster if "_" in key} for cluster in clusters]
            predicted.setdefault(name, []).append(
                statistics.mean(ferry.predict(spec, cluster) for cluster in clusters))
            measured.setdefault(name, []).append(seconds)
    print(f"shm: {between.discarded} runs were measured again, for the machine had changed its speed",
          flush=True)
    return {"fits": fits, "discarded": between.discarded,
            "cases": [row(f"shm {name}", predicted[name], measured[name]) for name in names]}


def hosts(arguments, ferry):
    predicted, measured = {}, {}
    rows, columns = refit_hosts.ROWS, refit_hosts.COLUMNS
    with refit_hosts.namespaces.Hosts(4) as all_hosts:
        all_hosts.limit(arguments.rate)
        network = refit_hosts.Network(all_hosts, arguments.build)
        for turn in range(arguments.rounds):
            for n_from, n_to in HOSTS[turn % 3:] + HOSTS[:turn % 3]:
                goodput = network.streams([(0, 1)])[0]
                spec = {"format": "ferry.spec/1", "source": side("tp", n_from),
                        "destination": side("tp", n_to, dim=1),
                        "tensors": [{"name": "w", "shape": [rows, columns], "dtype": "bf16"}]}
                cluster = cluster_of(1, goodput, goodput, 100e-6)
                done = network.refit(f"matrix:{n_from}:{n_to}:{rows}:{columns}", max(n_from, n_to), 3)
                name = f"hosts {n_from} -> {n_to}"
                predicted.setdefault(name, []).append(ferry.predict(spec, cluster))
                measured.setdefault(name, []).append(
                    statistics.median(done["series"]["run"]["seconds"]))
    return {"rate": arguments.rate, "cases": [row(name, predicted[name], measured[name])
                                              for name in predicted]}


MIXED = {"2 sum": ("--ranks", "2"), "2 gather": ("--local-dp", "2"),
         "2 x 2": ("--local-tp", "2", "--local-dp", "2"), "4 sum": ("--ranks", "4"),
         "4 x 2": ("--local-tp", "4", "--local-dp", "2")}


MIXED_HOSTS = {"2 hosts": (2, 1, ()), "3 hosts": (3, 1, ()),
               "2 hosts x 2": (2, 2, ("--local-dp", "2", "--inter-tp", "2"))}


def off_of(said):
    return [one["predicted_us"] / one["median_us"] for one in said["results"] if not one["fitted"]]


def mixed_rows(found):
    """Of a line the median of its rounds: a round in which somebody else was busy is one of them."""
    cases = []
    for name, rounds in found.items():
        ratios = [statistics.median(of_line) for of_line in zip(*rounds)]
        off = [abs(ratio - 1) for ratio in ratios]
        cases.append({"case": f"mixed {name}", "lines": len(ratios), "ratios": ratios,
                      "within_10": sum(one <= 0.1 for one in off),
                      "within_20": sum(one <= 0.2 for one in off),
                      "median_off": statistics.median(off)})
        print("mixed {0:11} {lines} lines: {within_10} within 10%, {within_20} within 20%, half "
              "within {1:.0f}%".format(name, 100 * cases[-1]["median_off"], **cases[-1]), flush=True)
    return cases


def mixed(arguments, ferry):
    found = {name: [] for name in MIXED}
    names = list(MIXED)
    whole = spec_of(FITTED, arguments.mib * MIB, 0)
    between = Between(lambda: (None, [ferry.run(whole)]))
    for turn in range(arguments.rounds):
        for name in names[turn % len(names):] + names[:turn % len(names)]:
            said, *_ = between.measure(lambda: ask(
                ferry.command, "bench", "mixed", "--json", "--predict", *MIXED[name],
                "-b", "8K", "-e", "16M", "--seconds", "0.02"))
            found[name].append(off_of(said))
    print(f"mixed: {between.discarded} programs were run again, for the machine had changed its speed",
          flush=True)
    return {"discarded": between.discarded, "cases": mixed_rows(found)}


def mixed_on(network, n_hosts, n_local, words):
    """What rank 0 says: its host's ranks come first."""
    n, port, processes = n_hosts * n_local, network.next_port(), []
    words = words or ("--inter-tp", n_hosts)
    try:
        for r in range(n):
            processes.append(refit_hosts.start(
                network.hosts.all[r // n_local].command(
                    network.build / "ferry", "bench", "mixed", "--json", "--predict", *words,
                    "-b", "8K", "-e", "4M", "--seconds", "0.05"),
                RANK=r, WORLD_SIZE=n, MASTER_ADDR=network.hosts.address(0), MASTER_PORT=port,
                FERRY_SECRET="a secret", FERRY_PLUGINS=network.build, **refit_hosts.UCX))
        return json.loads([refit_hosts.outcome(one, f"rank {r}")
                           for r, one in enumerate(processes)][0])
    finally:
        refit_hosts.end_all(processes)


def mixed_hosts(arguments, ferry):
    found = {name: [] for name in MIXED_HOSTS}
    with refit_hosts.namespaces.Hosts(3) as all_hosts:
        all_hosts.limit(arguments.rate)
        network = refit_hosts.Network(all_hosts, arguments.build.resolve())
        for _ in range(arguments.rounds):
            for name, case in MIXED_HOSTS.items():
                found[name].append(off_of(mixed_on(network, *case)))
    return {"rate": arguments.rate, "cases": mixed_rows(found)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="shm,hosts,mixed,mixed-hosts")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rate", default="1gbit", help="of every link, each way, for tc")
    parser.add_argument("--json")
    honest.add_arguments(parser)
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    result = {**honest.begin(arguments.rounds, arguments.patience), "mib": arguments.mib}
    with tempfile.TemporaryDirectory() as folder:
        ferry = Ferry(arguments.build, folder)
        for name, work in (("shm", shm), ("hosts", hosts), ("mixed", mixed),
                           ("mixed-hosts", mixed_hosts)):
            if name in arguments.only.split(","):
                result[name] = work(arguments, ferry)
                honest.end(result)
                if arguments.json:
                    honest.write(arguments.json, result)


if __name__ == "__main__":
    main()
