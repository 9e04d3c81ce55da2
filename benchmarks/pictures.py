"""Small SVG pictures, drawn without a library."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

COLOURS = {
    "rayorch_flows": "#2f6f4f",
    "rayorch": "#b07d2b",
    "raydata": "#3a6ea5",
    "daft": "#8a4f7d",
    "floor": "#8c8c8c",
}
STAGE_COLOURS = {"render": "#3a6ea5", "page": "#2f6f4f", "assemble": "#b07d2b", "write": "#8a4f7d"}
_WIDTH, _LEFT, _ROW = 760, 190, 26


def bars(title: str, values: Sequence[tuple[str, str, float, str]], *, mark: float | None = None) -> str:
    """Horizontal bars of (label, system, value, text); ``mark`` draws a line, for an ideal."""
    top = max([value for _, _, value, _ in values] + ([mark] if mark else []))
    scale = (_WIDTH - _LEFT - 150) / top
    height = 40 + _ROW * len(values) + 10
    parts = [_text(10, 22, title, bold=True)]
    for number, (label, system, value, text) in enumerate(values):
        y = 40 + number * _ROW
        colour = COLOURS.get(system, "#555555")
        parts += [
            _text(_LEFT - 8, y + 15, label, anchor="end"),
            _box(_LEFT, y, value * scale, colour),
            _text(_LEFT + value * scale + 6, y + 15, text),
        ]
    if mark:
        x = _LEFT + mark * scale
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="36" y2="{height - 6}" stroke="#c0392b" stroke-width="1.5"/>')
    return _svg(height, parts)


def timelines(title: str, runs: Sequence[tuple[str, float, dict[str, list[float]]]]) -> str:
    """For each (system, wall time, stage windows) one group of bars on a common axis of seconds."""
    scale = (_WIDTH - _LEFT - 40) / max(wall for _, wall, _ in runs)
    parts, y = [_text(10, 22, title, bold=True)], 40
    for system, wall, windows in runs:
        parts.append(_text(10, y + 15, f"{system}, {wall:.1f} s", bold=True))
        for stage, (start, end) in windows.items():
            x, width = _LEFT + start * scale, (end - start) * scale
            colour = STAGE_COLOURS.get(stage, "#555555")
            parts += [
                _text(_LEFT - 8, y + 15, stage, anchor="end"),
                _box(x, y, width, colour),
            ]
            y += _ROW
        x = _LEFT + wall * scale
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - _ROW * len(windows)}" y2="{y}" stroke="#c0392b" '
            'stroke-dasharray="4 3"/>'
        )
        y += 12
    return _svg(y, parts)


def _box(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y + 3}" width="{max(1.0, width):.1f}" height="{_ROW - 8}" fill="{colour}"/>'


def _text(x: float, y: float, content: str, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}"{weight}>{escape(content)}</text>'


def _svg(height: int, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="13" fill="#222222">'
    )
    return "\n".join([head, f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>', *parts, "</svg>"]) + "\n"
