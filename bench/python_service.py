#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What the copy service costs in Python beyond C, on one rank.

    python3 bench/python_service.py [--tensors 100000] [--rounds 7] [--json FILE]

Registering: one call with a list of small contiguous tensors of torch (of bytearrays without it),
beside one look-up of each in a dict; making the list of tuples is timed by itself, with Python's
garbage collector as it is and without. Running: run() in a loop of Python beside ferry_service_run
in a loop of C on the same schedule, which moves eight bytes, in turns. Medians and spreads, which
are (max - min) / median.
"""

import argparse
import gc
import json
import statistics
import sys
import time

import honest

import ferry

try:
    import torch
except ImportError:
    torch = None


def summary(values):
    middle = statistics.median(values)
    return {"median": round(middle, 4), "spread": round((max(values) - min(values)) / middle, 4)}


def seconds_of(call):
    begin = time.perf_counter()
    value = call()
    return time.perf_counter() - begin, value


def register(n_tensors, rounds):
    make = bytearray if torch is None else lambda n: torch.empty(n, dtype=torch.uint8)
    tensors = {"layer.%d.weight" % i: make(64) for i in range(n_tensors)}
    names = list(tensors)
    times = {"lookup": [], "tuples": [], "tuples-no-gc": [], "sends": [], "receives": []}
    with ferry.RemoteCopyService() as service:
        service.init("ERROR")
        for _ in range(rounds):
            times["lookup"].append(seconds_of(lambda: [tensors[name] for name in names])[0])
            seconds, items = seconds_of(
                lambda: [(i, tensors[name], 0, 64, 0) for i, name in enumerate(names)])
            times["tuples"].append(seconds)
            del items
            gc.disable()
            seconds, items = seconds_of(
                lambda: [(i, tensors[name], 0, 64, 0) for i, name in enumerate(names)])
            gc.enable()
            times["tuples-no-gc"].append(seconds)
            times["sends"].append(seconds_of(lambda: service.register_sends(items))[0])
            service.clear_requests()
            times["receives"].append(seconds_of(lambda: service.register_receives(items))[0])
            service.clear_requests()
            del items
    return {"tensors": n_tensors, "of": "bytearray" if torch is None else torch.__version__,
            **{name + "-ns": summary([one / n_tensors * 1e9 for one in values])
               for name, values in times.items()}}


def run(rounds, n_runs=20000):
    source, target = bytearray(8), bytearray(8)
    in_python, in_c, over = [], [], []
    with ferry.RemoteCopyService() as service:
        service.init("ERROR")
        service.register_send(1, source, 0, 8, 0)
        service.register_receive(1, target, 0, 8, 0)
        service.schedule()
        service.run()

        def loop():
            for _ in range(n_runs):
                service.run()

        for _ in range(rounds):
            in_c.append(service._own().time_runs(n_runs) / n_runs * 1e6)
            in_python.append(seconds_of(loop)[0] / n_runs * 1e6)
            over.append(in_python[-1] - in_c[-1])
    return {"runs": n_runs, "python-us": summary(in_python), "c-us": summary(in_c),
            "over-us": summary(over)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tensors", type=int, default=100000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json")
    honest.add_arguments(parser)
    arguments = parser.parse_args()
    result = {**honest.begin(arguments.rounds, arguments.patience),
              "python": sys.version.split()[0],
              "register": register(arguments.tensors, arguments.rounds),
              "run": run(arguments.rounds)}
    honest.end(result)
    print(json.dumps(result, indent=1))
    if arguments.json:
        honest.write(arguments.json, result)


if __name__ == "__main__":
    main()
