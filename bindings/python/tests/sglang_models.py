# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Model classes of SGLang on each of its tensor parallel ranks: one loads the checkpoint, one is refit as
it was traced. Prints which parameters differ. Run by test_adapters_sglang.

    python3 sglang_models.py RANKS FAMILY[/ep|/pp]...

With "/ep" ranks have experts of their own, with "/pp" they are pipeline stages.
"""

import multiprocessing
import sys
import tempfile

import sglang_on_cpu as sglang

import ferry


def compare(name, full, folder, rank, n):
    family, _, how = name.partition("/")
    config = sglang.start(folder, rank, n, how)
    loaded, refitted = (sglang.class_of(family)(config.hf_config) for _ in range(2))
    for model in (loaded, refitted):
        for tensor in model.parameters():
            tensor.data.fill_(float("nan"))
    loaded.load_weights(iter(full.items()))
    trace = ferry.trace(refitted, full)
    whole = {"mesh": [], "rules": [{"match": "*"}]}
    base = {"format": "ferry.spec/1", "tensors": trace.tensors, "source": whole}
    spec = ferry.Spec.exchange(base, destination=trace.side())
    ferry.refit(full if rank == 0 else None, trace.memory(refitted), spec)
    theirs = dict(loaded.named_parameters())
    wrong = [name for name, tensor in refitted.named_parameters()
             if sglang.bits(tensor) != sglang.bits(theirs[name]) or tensor.isnan().any()]
    print("%s rank %d of %d: wrong %s\n" % (name, rank, n, wrong or "none"), end="", flush=True)


def main(n, *names):
    fork = multiprocessing.get_context("fork")  # SGLang is imported once
    for name in names:
        family = name.partition("/")[0]
        sglang.class_of(family)
        with tempfile.TemporaryDirectory() as folder:
            full = sglang.save(family, 1, folder)
            ranks = [fork.Process(target=compare, args=(name, full, folder, rank, int(n)))
                     for rank in range(int(n))]
            for one in ranks:
                one.start()
            for one in ranks:
                one.join()
            if any(one.exitcode for one in ranks):
                raise SystemExit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
