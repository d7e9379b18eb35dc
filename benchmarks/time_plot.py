"""Draw a figure over time as SVG, for the page of reports."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ("time_plot",)

_WIDTH: Final = 760
_HEIGHT: Final = 120
_LEFT: Final = 120
_BOTTOM: Final = 20


def time_plot(caption: str, seconds: Sequence[float], figures: Sequence[float]) -> str:
    """Return a line from zero up to the largest figure.

    Args:
        caption: What the figure is.
        seconds: When each was taken, in order.
        figures: The figures, as many.
    """
    top, begin, end = max(*figures, 1.0), seconds[0], seconds[-1]
    wide, high = _WIDTH - _LEFT - 8, _HEIGHT - _BOTTOM - 8
    across = [_LEFT + (at - begin) / ((end - begin) or 1.0) * wide for at in seconds]
    down = [8 + high - figure / top * high for figure in figures]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True))
    label, base = escape(caption, quote=True), _HEIGHT - _BOTTOM
    return (
        f"<figure><figcaption>{label}</figcaption>"
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{label}">'
        f'<text x="{_LEFT - 8}" y="14" text-anchor="end">{top:,.0f}</text>'
        f'<text x="{_LEFT - 8}" y="{base}" text-anchor="end">0</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 4}">{begin / 60:.0f} min</text>'
        f'<text x="{_WIDTH - 8}" y="{_HEIGHT - 4}" text-anchor="end">{end / 60:.0f} min</text>'
        f'<polyline points="{points}"/></svg></figure>'
    )
