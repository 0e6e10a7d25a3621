# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What the mixed collectives must give, worked out plainly from everybody's inputs in float64.

Arrays are of numpy or torch: only slices, sums and the `concat` that is given are used.
"""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple

# The numbers of the page, written down here once more.
ALLREDUCE, ALLGATHER, REDUCESCATTER, ALLREDUCE_ALLGATHER, REDUCESCATTER_ALLREDUCE = range(5)
SCATTERS = (REDUCESCATTER, REDUCESCATTER_ALLREDUCE)


class Topology(NamedTuple):
    """Sizes of the two levels; the tensor-parallel coordinate runs fastest on each."""

    local_tp: int
    local_dp: int
    inter_tp: int
    inter_dp: int

    @property
    def size(self) -> int:
        return self.local_tp * self.local_dp * self.inter_tp * self.inter_dp

    @property
    def dp(self) -> int:
        return self.local_dp * self.inter_dp

    def dp_rank(self, rank: int) -> int:
        local_size = self.local_tp * self.local_dp
        local_rank, inter_rank = rank % local_size, rank // local_size
        return local_rank // self.local_tp + inter_rank // self.inter_tp * self.local_dp

    def arguments(self, rank: int) -> tuple:
        """The first ten of a MixedCommHandler."""
        local, inter = self.local_tp * self.local_dp, self.inter_tp * self.inter_dp
        return (rank, self.size, rank % local, local, rank // local, inter, self.local_tp,
                self.local_dp, self.inter_tp, self.inter_dp)

    def ops(self) -> List[int]:
        tp = self.local_tp * self.inter_tp
        if tp > 1 and self.dp > 1:
            return [ALLREDUCE_ALLGATHER, REDUCESCATTER_ALLREDUCE]
        return [ALLGATHER, REDUCESCATTER] if self.dp > 1 else [ALLREDUCE]

    def modes(self) -> List[int]:
        modes = [0, 1]
        modes += [2, 3] if self.local_tp > 1 else []
        modes += [4, 5] if self.inter_tp > 1 else []
        modes += [6]
        return modes + ([7] if self.local_tp * self.inter_tp > 1 and self.dp > 1 else [])


def expected(
    op: int, inputs: List[Any], topology: Topology, rank: int, concat: Callable[[List[Any]], Any]
) -> Any:
    def group(number: int) -> List[Any]:
        return [x for r, x in enumerate(inputs) if topology.dp_rank(r) == number]

    if op in (ALLGATHER, ALLREDUCE_ALLGATHER):
        return concat([sum(group(k)) for k in range(topology.dp)])
    total = sum(inputs)
    if op == ALLREDUCE:
        return total
    rows = len(total) // topology.dp
    mine = topology.dp_rank(rank)
    return total[mine * rows:(mine + 1) * rows]
