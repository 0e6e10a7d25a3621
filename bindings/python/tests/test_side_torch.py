# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Sides in boxes whose parameters are tensors of torch and numpy."""

import unittest

try:
    import numpy as np
    import torch
except ImportError:
    torch = None

import ferry


@unittest.skipIf(torch is None, "torch and numpy are not installed")
class Tensors(unittest.TestCase):
    def test_a_fused_and_a_transposed_module(self):
        """Numbers, ranks and dtypes may be those of numpy and torch."""
        parts = {name: torch.randn(n, 6).bfloat16() for name, n in (("q", 8), ("k", 4), ("v", 4))}
        parts["up"] = torch.randn(5, 6).bfloat16()
        side = ferry.Side()
        fused = torch.nn.Linear(6, 16, dtype=torch.bfloat16)
        side.add_parameter("qkv.weight", np.int64(0), fused.weight.numel(), dtype=torch.bfloat16)
        for name, row in (("q", 0), ("k", 8), ("v", 12)):
            side.add_box(name, [0, 0], np.array(parts[name].shape), row * fused.weight.stride(0))
        turned = torch.ones(6, 8, dtype=torch.bfloat16)
        side.add_parameter("up.T", [0], turned.numel())
        side.add_box("up", [0, 0], parts["up"].shape, strides=(1, 8))
        side.add_fill(5, [6, 3], [8, 1])
        spec = {"format": "ferry.spec/1", "destination": side,
                "source": {"mesh": [], "rules": [{"match": "*"}]},
                "tensors": [{"name": name, "shape": one.shape, "dtype": one.dtype}
                            for name, one in parts.items()]}
        new = {"qkv.weight": fused.weight, "up.T": turned}
        with ferry.Refit(parts, new, spec) as refit:
            refit.run()
            self.assertTrue(torch.equal(fused.weight, torch.cat([parts[n] for n in "qkv"])))
            self.assertTrue(torch.equal(turned[:, :5], parts["up"].t()))
            self.assertTrue(torch.equal(turned[:, 5:], torch.zeros(6, 3, dtype=torch.bfloat16)))
        with self.assertRaisesRegex(ferry.InvalidInput, '"up.T" on rank 0 is not contiguous'):
            ferry.Refit(parts, dict(new, **{"up.T": torch.zeros(8, 6).bfloat16().t()}), spec)
        rows = np.zeros((6, 8), dtype=np.uint16).view(np.uint8).reshape(-1)  # it has no bf16
        ferry.refit(parts, dict(new, **{"up.T": rows}), spec)
        self.assertEqual(rows.tobytes(), turned.view(torch.uint8).numpy().tobytes())


if __name__ == "__main__":
    unittest.main()
