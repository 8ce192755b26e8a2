"""How figures look, and how one becomes a file and a part of a page."""

from __future__ import annotations

import contextlib
import html
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import seaborn as sns
from matplotlib.figure import Figure

INK, GRID, PAPER = "#24292e", "#d9dde2", "#fffffe"
# Okabe and Ito's palette, which stays apart under the common colour blindnesses.
BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
# What the page sets by its own light or dark style, where a figure stands inside it.
INLINE_COLOURS = {
    INK: "currentColor",
    GRID: f"var(--grid, {GRID})",
    PAPER: f"var(--panel, {PAPER})",
    BLUE: f"var(--blue, {BLUE})",
    ORANGE: f"var(--orange, {ORANGE})",
    GREEN: f"var(--green, {GREEN})",
    PURPLE: f"var(--purple, {PURPLE})",
}


@contextlib.contextmanager
def house_style() -> Iterator[None]:
    """The style under which figures are made and saved; matplotlib's own settings come back afterwards."""
    colours = {
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
        **dict.fromkeys(("axes.edgecolor", "grid.color"), GRID),
        **dict.fromkeys(("figure.facecolor", "axes.facecolor"), PAPER),
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
    }
    style: dict[Any, Any] = {
        **sns.axes_style("whitegrid"),
        **colours,
        "font.size": 10.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "specaudit",
        # Names come from data: a dollar sign in one is no mathematics.
        "text.parse_math": False,
    }
    with matplotlib.rc_context(style):
        yield


def save(figure: Figure, path_svg: Path) -> str:
    """Write the figure, the same bytes every time, and return it as SVG for the inside of a page.

    The returned SVG has no declaration, its ids begin with the file's stem so that several can share a page, and its
    colours are the page's own (``currentColor`` and the variables of ``INLINE_COLOURS``).
    """
    path_svg = Path(path_svg)
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with house_style(), warnings.catch_warnings():
        # Text stays text in these files: the reader's fonts draw it, not the one that measures it here.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(path_svg, format="svg", metadata=nothing)
    svg = path_svg.read_text(encoding="utf-8")
    svg = svg[svg.index("<svg") :]
    prefix = re.sub(r"[^\w-]", "-", path_svg.stem) + "-"
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg, count=2).replace("xlink:href", "href")
    svg = (
        svg.replace(' id="', f' id="{prefix}').replace("url(#", f"url(#{prefix}").replace('href="#', f'href="#{prefix}')
    )
    for colour, variable in INLINE_COLOURS.items():
        svg = svg.replace(colour, variable)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(str(figure.get_label()))}" ', 1)
