#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Of a build without nvcc those mutants are left out that it cannot have tests for, and no others."""

import sys
import types

from run import leave_out_plugins
from table import EQUIVALENT, Mutant, read_tables

DEVICES = ("device/", "cuda", "nvshmem")  # in the names of the tests that such a build lacks


def left_out(mutants, tests, inputs=()):
    build = types.SimpleNamespace(inputs=inputs, tests=tests)
    able = leave_out_plugins(build, mutants)
    return [m for m in mutants if m not in able]


def main():
    every = read_tables()
    names = {m.test for m in every}
    bare = {name for name in names if name == "unit/nvshmem_heap" or not any(w in name for w in DEVICES)}
    out = left_out(every, bare)
    assert any(m.test == "conformance/nvshmem_nodes" for m in out), "one of NVSHMEM's is tried"
    assert any(m.path == "src/transport/mapped/device.c" for m in out), "one of a device's is tried"
    kept = {m.test for m in every if m not in out} - {EQUIVALENT, "open"}
    assert kept <= bare and "unit/nvshmem_heap" in kept, kept - bare
    assert not left_out(every, names, ["libferry_cuda.so"]), "some are left out where nothing is missing"
    bare = {name for name in names if "/ucx_cuda" not in name}
    out = left_out(every, bare, ["libferry_cuda.so"])
    assert out and all(m.test.split("/")[1].startswith("ucx_cuda") for m in out), "only those of a UCX with CUDA"
    assert not left_out([Mutant("src/plan/plan.c", "unit/plann")], bare), "a wrong name is not seen"
    return 0


if __name__ == "__main__":
    sys.exit(main())
