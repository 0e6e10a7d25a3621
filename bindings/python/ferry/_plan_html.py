# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""How a plan looks in a notebook: bytes of ranks, and who sends how much to whom."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Callable, Dict, List, Tuple

if TYPE_CHECKING:
    from ._plan import Plan, RankBytes

MOST_RANKS = 16  # rows and columns of a table

_CELL = "padding:2px 6px;text-align:right;white-space:nowrap"


def plan_html(plan: "Plan") -> str:
    """Two tables, of the busiest ranks where there are too many. Only their moves are made."""
    ranks = {rank: plan.rank_bytes(rank) for rank in range(plan.world_size)}
    parts = [
        "<div>",
        f"<p>{_summary(plan)}</p>",
        _rank_table(ranks),
        _matrix(plan, ranks),
        "</div>",
    ]
    return "\n".join(parts)


def _summary(plan: "Plan") -> str:
    bound = plan.bound
    text = (
        f"ferry.Plan {plan.digest}: {plan.world_size:,} ranks, {plan.n_moves:,} moves, "
        f"{_size(plan.moved_bytes)} between ranks, {_size(plan.local_bytes)} stay."
    )
    if bound.reason != "none":
        limit = "" if bound.seconds is None else f"At least {bound.seconds:.3g} s: "
        text += f" {limit}{bound.reason.replace('_', ' ')} of rank {bound.rank} is the limit."
    return escape(text)


def _busiest(ranks: Dict[int, "RankBytes"], load: Callable[["RankBytes"], int]) -> List[int]:
    """The ranks with the most bytes, ascending; none without any."""
    loaded = [rank for rank, own in ranks.items() if load(own) > 0]
    return sorted(sorted(loaded, key=lambda rank: (-load(ranks[rank]), rank))[:MOST_RANKS])


def _rank_table(ranks: Dict[int, "RankBytes"]) -> str:
    def load(own: "RankBytes") -> int:
        return own.received + own.sent + own.local

    shown = _busiest(ranks, load)
    rows = [
        _row(f"<th style='{_CELL}'>{rank}</th>", [_cell(n) for n in ranks[rank][:3]])
        for rank in shown
    ]
    head = "".join(f"<th style='{_CELL}'>{t}</th>" for t in ("rank", "receives", "sends", "keeps"))
    return _table(f"Bytes of {_which(len(shown), ranks, load, 'ranks')}", f"<tr>{head}</tr>", rows)


def _matrix(plan: "Plan", ranks: Dict[int, "RankBytes"]) -> str:
    senders = _busiest(ranks, lambda own: own.sent + own.local)
    receivers = _busiest(ranks, lambda own: own.received + own.local)
    flows: Dict[Tuple[int, int], int] = {}
    for rank in receivers:
        flows.update(plan.traffic(rank))
    most = max((n for (a, b), n in flows.items() if a != b), default=0)
    head = f"<th style='{_CELL}'>from \\ to</th>"
    head += "".join(f"<th style='{_CELL}'>{rank}</th>" for rank in receivers)
    rows = []
    for a in senders:
        cells = [_heat(flows.get((a, b), 0), most, a == b) for b in receivers]
        rows.append(_row(f"<th style='{_CELL}'>{a}</th>", cells))
    of = _which(len(senders), ranks, lambda own: own.sent + own.local, "senders")
    to = _which(len(receivers), ranks, lambda own: own.received + own.local, "receivers")
    return _table(f"Traffic from {of} to {to}; grey stays on its rank", f"<tr>{head}</tr>", rows)


def _which(
    n: int, ranks: Dict[int, "RankBytes"], load: Callable[["RankBytes"], int], what: str
) -> str:
    of = sum(1 for own in ranks.values() if load(own) > 0)
    return f"all {of:,} {what}" if n == of else f"the {n:,} busiest of {of:,} {what}"


def _heat(n: int, most: int, stays: bool) -> str:
    if n == 0:
        return _cell(0)
    colour = "128,128,128,0.25" if stays else f"255,120,0,{0.1 + 0.8 * n / most:.2f}"
    return _cell(n, f"background:rgba({colour});")


def _cell(n: int, style: str = "") -> str:
    text = "" if n == 0 else escape(_size(n))
    return f"<td style='{style}{_CELL}' title='{n:,} bytes'>{text}</td>"


def _row(head: str, cells: List[str]) -> str:
    return f"<tr>{head}{''.join(cells)}</tr>"


def _table(caption: str, head: str, rows: List[str]) -> str:
    lines = ["<table>", f"<caption>{escape(caption)}</caption>", head, *rows, "</table>"]
    return "\n".join(lines)


def _size(n: int) -> str:
    """With three digits: 999 B, 1.50 MB, 12.3 GB."""
    value, unit = float(n), "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB", "EB"):
        if value < 999.5 or unit == "EB":
            break
        value /= 1000
    return f"{n} B" if unit == "B" else f"{value:.3g} {unit}"
