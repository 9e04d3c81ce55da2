"""Small pictures for reports: SVG in ``data:`` URIs, the one form that both Prefect UIs render inside Markdown."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import Final

from rayorch_flows.orchestration.reporting.summary import CallSummary

_COLORS: Final = ("#2563eb", "#0d9488", "#d97706", "#9333ea", "#dc2626", "#65a30d", "#0891b2", "#be185d")
_WIDTH: Final = 760
_LABEL: Final = 170
_ROW: Final = 26


def timeline(calls: Sequence[CallSummary], elapsed_s: float) -> str:
    """When each Call was at work: a bar from its first start to its last end, filled by how busy it was."""
    span = max([elapsed_s, *(call.last_end_s for call in calls)], default=0.0) or 1.0
    plot = _WIDTH - _LABEL - 120
    parts: list[str] = []
    for row, call in enumerate(calls):
        y = 30 + row * _ROW
        x = _LABEL + plot * call.first_start_s / span
        length = max(2.0, plot * (call.last_end_s - call.first_start_s) / span)
        busy = call.busy_s / max(1e-9, call.last_end_s - call.first_start_s)
        color = _COLORS[row % len(_COLORS)]
        parts.append(_text(_LABEL - 8, y + 13, call.call, anchor="end"))
        if call.batches:
            parts.append(_bar(x, y, length, color, opacity=0.25))
            parts.append(_bar(x, y, length * min(1.0, busy), color))
            parts.append(_text(_WIDTH - 112, y + 13, f"{busy:.1f} actors busy"))
    digits = ".1f" if span >= 2 else ".2f" if span >= 0.2 else ".3f"
    for tick in range(5):
        x = _LABEL + plot * tick / 4
        parts.append(
            f'<line x1="{x:.1f}" y1="24" x2="{x:.1f}" y2="{30 + len(calls) * _ROW}" stroke="#cbd5e1" stroke-width="1"/>'
        )
        parts.append(_text(x, 16, f"{span * tick / 4:{digits}} s", anchor="middle"))
    return _data_uri(40 + len(calls) * _ROW, parts)


def histogram(calls: Sequence[CallSummary]) -> str:
    """How large the dispatch batches of each Call were, between 1 and its limit."""
    shown = [call for call in calls if call.batches]
    plot, high = _WIDTH - _LABEL - 120, 54
    parts: list[str] = []
    for row, call in enumerate(shown):
        top = 16 + row * (high + 26)
        bins = _bins(call)
        most = max(count for _, count in bins)
        width = plot / len(bins)
        color = _COLORS[row % len(_COLORS)]
        parts.append(_text(_LABEL - 8, top + high / 2 + 4, call.call, anchor="end"))
        for index, (_, count) in enumerate(bins):
            tall = max(2.0 if count else 0.0, high * count / most)
            parts.append(
                f'<rect x="{_LABEL + index * width + 1:.1f}" y="{top + high - tall:.1f}" '
                f'width="{max(1.0, width - 2):.1f}" height="{tall:.1f}" fill="{color}"/>'
            )
        base = top + high
        parts.append(
            f'<line x1="{_LABEL}" y1="{base}" x2="{_LABEL + plot}" y2="{base}" stroke="#94a3b8" stroke-width="1"/>'
        )
        parts.append(_text(_LABEL + width / 2, base + 13, bins[0][0], anchor="middle"))
        if len(bins) > 1:
            parts.append(_text(_LABEL + plot - width / 2, base + 13, bins[-1][0], anchor="middle"))
        parts.append(
            _text(_WIDTH - 112, top + high / 2, f"{call.batches} {'batch' if call.batches == 1 else 'batches'}")
        )
        parts.append(_text(_WIDTH - 112, top + high / 2 + 14, f"mean {call.mean_batch:.1f}, fill {call.fill:.0%}"))
    return _data_uri(24 + len(shown) * (high + 26), parts)


def _bins(call: CallSummary, most: int = 16) -> list[tuple[str, int]]:
    limit = max([call.batch_limit, *call.sizes])
    step = -(-limit // most)
    bins: list[tuple[str, int]] = []
    for first in range(1, limit + 1, step):
        last = min(limit, first + step - 1)
        count = sum(number for size, number in call.sizes.items() if first <= size <= last)
        bins.append((str(first) if first == last else f"{first}-{last}", count))
    return bins


def _bar(x: float, y: float, length: float, color: str, *, opacity: float = 1.0) -> str:
    place = f'x="{x:.1f}" y="{y}" width="{length:.1f}" height="18" rx="3"'
    return f'<rect {place} fill="{color}" fill-opacity="{opacity}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    shown = text if len(text) <= 26 else text[:25] + "…"
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(shown)}</text>'


def _data_uri(height: float, parts: Sequence[str]) -> str:
    """On a card of its own, so that it reads on a light and on a dark page."""
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {_WIDTH} {height:.0f}" font-family="Helvetica, Arial, sans-serif" font-size="11" fill="#334155">'
        f'<rect width="100%" height="100%" rx="6" fill="#f8fafc"/>{"".join(parts)}</svg>'
    )
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
