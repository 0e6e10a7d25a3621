# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""How a plan looks in a notebook: a sentence, and the plan's report in a frame."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._plan import Plan


def plan_html(plan: "Plan") -> str:
    """The frame may run the report's scripts and reach nothing else. In a notebook whose outputs
    are not trusted there is the sentence alone."""
    page = plan.to_html().replace("&", "&amp;").replace("'", "&#39;")
    frame = "width='100%' height='640' style='border:0' sandbox='allow-scripts'"
    return (
        f"<div><p>{_summary(plan)}</p>\n"
        f"<iframe title='Report of the plan' {frame} srcdoc='{page}'></iframe></div>"
    )


def _summary(plan: "Plan") -> str:
    bound = plan.bound
    text = (
        f"ferry.Plan {plan.digest}: {plan.world_size:,} ranks, {plan.n_moves:,} moves, "
        f"{plan.moved_bytes:,} bytes between ranks, {plan.local_bytes:,} stay."
    )
    if bound.reason != "none":
        limit = "" if bound.seconds is None else f"At least {bound.seconds:.3g} s: "
        text += f" {limit}{bound.reason.replace('_', ' ')} of rank {bound.rank} is the limit."
    return escape(text)
