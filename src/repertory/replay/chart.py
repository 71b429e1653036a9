"""Charts the context of a run by iteration: what the model saw, and what a plain loop would have sent."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import escape

from repertory._cutting import clip
from repertory.errors import ConfigurationError
from repertory.replay.playing import Played

_WIDTH, _HEIGHT = 860, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 60, 50
_PLAIN = "#9aa3ad"
_COLOURS = ("#1f77b4", "#d9730d", "#2e8b57", "#8e44ad", "#b03a2e")
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def check_target(path: Path) -> None:
    """Check that a chart can be written to a file.

    Raises:
        ConfigurationError: The name does not end in ``.svg`` or ``.png``, its folder does not exist or is not
            writable, or a dependency for PNG is not installed.
    """
    if path.suffix not in (".svg", ".png"):
        raise ConfigurationError(f"expected a chart's file to end in .svg or .png, got {str(path)!r}")
    if not os.path.isdir(path.parent):
        raise ConfigurationError(f"{str(path)!r} cannot be written: there is no folder {str(path.parent)!r}")
    if os.path.isdir(path) or not os.access(path if os.path.exists(path) else path.parent, os.W_OK):
        raise ConfigurationError(f"{str(path)!r} cannot be written: it is a folder, or nobody may write there")
    if path.suffix == ".png" and find_spec("resvg_py") is None:
        raise ConfigurationError(f'{str(path)!r} needs resvg: pip install "repertory[plot]", or write an .svg')


def write_chart(path: Path, models: Mapping[str, Played]) -> None:
    """Write the chart of one run.

    Args:
        path: The file to write; ``.svg`` or ``.png``.
        models: The played run, by the name of the model.

    Raises:
        ConfigurationError: See ``check_target``; or the disk is full, say.
    """
    check_target(path)
    run = next(iter(models.values())).run
    plain = max((played.plain for played in models.values()), key=len)
    views = {name: played.view for name, played in models.items()}
    name = "".join(each if each.isprintable() else " " for each in clip(run.id, 60))  # XML has no control characters
    text = svg(title=f"Context of {name}, tokens", plain=plain, views=views)
    data = text.encode()
    if path.suffix == ".png":
        import resvg_py  # type: ignore[import-not-found, import-untyped, unused-ignore]

        data = resvg_py.svg_to_bytes(svg_string=text, zoom=2)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigurationError(f"{str(path)!r} cannot be written: {error.strerror}") from error


def svg(*, title: str, plain: Sequence[int], views: Mapping[str, Sequence[int]]) -> str:
    """Draw the chart as SVG."""
    length = max(len(plain), 2)
    step, top = _scale(max([1, *plain, *(tokens for view in views.values() for tokens in view)]))

    def x(index: int) -> float:
        return _LEFT + index * (_WIDTH - _LEFT - _RIGHT) / (length - 1)

    def y(tokens: float) -> float:
        return _HEIGHT - _BOTTOM - tokens * (_HEIGHT - _TOP - _BOTTOM) / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="15">{escape(title)}</text>',
    ]
    for tokens in range(0, top + 1, step):
        parts.append(f'<path d="M{_LEFT} {y(tokens):.1f}H{_WIDTH - _RIGHT}" stroke="#e4e7ea"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(tokens) + 4:.1f}" text-anchor="end">{_format_tokens(tokens)}</text>')
    every, _ = _scale(length)
    for number in range(every, length + 1, every):
        parts.append(f'<text x="{x(number - 1):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{number}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 10}" text-anchor="middle">iteration</text>')
    at = _LEFT
    lines = [("plain loop", plain, _PLAIN), *((name, view, "") for name, view in views.items())]
    for number, (name, counts, colour) in enumerate(lines):
        stroke = colour or _COLOURS[(number - 1) % len(_COLOURS)]
        points = " ".join(f"{x(index):.1f},{y(count):.1f}" for index, count in enumerate(counts))
        width = 1.6 if number else 5  # wide, so that the plain loop can be seen behind a view that equals it
        parts.append(f'<polyline points="{points}" fill="none" stroke="{stroke}" stroke-width="{width}"/>')
        if len(counts) == 1:  # a line of one point is invisible
            parts.append(f'<circle cx="{x(0):.1f}" cy="{y(counts[0]):.1f}" r="{2 + width}" fill="{stroke}"/>')
        parts.append(f'<path d="M{at} 42h18" stroke="{stroke}" stroke-width="3"/>')
        parts.append(f'<text x="{at + 24}" y="46">{escape(name)}</text>')
        at += 46 + 7 * len(name)
    return "\n".join([*parts, "</svg>\n"])


def _scale(most: int) -> tuple[int, int]:
    """Return a round step for at most six lines, and the top line."""
    step = 1
    while step * 6 < most:
        step = step * 5 // 2 if str(step).startswith("2") else step * 2
    return step, -(-most // step) * step


def _format_tokens(tokens: int) -> str:
    return f"{tokens / 1000:g}k" if tokens >= 1000 else str(tokens)


def bars(plain: Sequence[int], view: Sequence[int], *, width: int, height: int = 8) -> list[str]:
    """Draw the chart in characters: the view in full, and above it in grey what a plain loop adds.

    Args:
        plain: Tokens of each prompt of the plain loop.
        view: Tokens of each prompt that the model saw.
        width: Columns.
        height: Lines.
    """
    columns = min(width, len(plain))
    if not columns:
        return []
    top = max([1, *plain, *view])
    picks = [(index + 1) * len(plain) // columns - 1 for index in range(columns)]
    lines: list[str] = []
    for line in range(height - 1, -1, -1):
        cells = ""
        for pick in picks:
            eighths = round(view[pick] * height * 8 / top) - line * 8
            if eighths >= 8:
                cells += _EIGHTHS[8]
            elif eighths > 0:
                cells += _EIGHTHS[eighths]
            else:
                cells += "░" if plain[pick] * height / top > line + 0.5 else " "
        lines.append(cells.rstrip())
    return lines
