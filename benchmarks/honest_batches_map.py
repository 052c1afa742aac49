"""Batch size against width: what exact_extraction reads of an honest network's update, drawn as docs/ shows it.

    SEEPAGE_DATA=... python benchmarks/honest_batches_map.py --results benchmarks/honest_batches.json
    python benchmarks/honest_batches_map.py --results benchmarks/honest_batches.json --draw docs/honest_batches.svg

Without --draw the map is measured, as `honest_batches.py` measures a line, and kept in the file. Networks of
six layers, CIFAR-10's test images from 6100 on. Of one width and kind of input, larger batches are left out
once two sizes in a row gave nothing that could be claimed.
"""

# ruff: noqa: E501 (SVG written out)
from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from honest_batches import Result, Setting, keep, measured

WIDTHS, SIZES = (100, 200, 500, 1000), (8, 16, 24, 32, 48, 64, 96, 128, 192)
_BASE = Setting(width=0, examples=0)
PANELS = {
    "mean and std, untrained": _BASE,
    "mean and std, trained": replace(_BASE, epochs=10),
    "[0, 1], untrained": replace(_BASE, kind="raw"),
    "[0, 1], trained": replace(_BASE, kind="raw", epochs=10),
}
COLOURS = {"complete": "#1b7837", "partly": "#a6dba0", "none": "#eeeeee"}
CELL, LEFT, TOP = 46, 44, 40


def measure(path: Path, first_seed: int, batches: int) -> None:
    """Small widths first; what the file has already is not measured again."""
    had = json.loads(path.read_text()).get("map", {}) if path.exists() else {}
    for width in WIDTHS:
        for panel, base in PANELS.items():
            vain = 0
            for size in SIZES:
                if vain == 2:
                    break
                name = f"{panel}, {width} wide, B = {size}"
                if name in had:
                    results = [Result(**one) for one in had[name]]
                else:
                    results = measured(name, replace(base, width=width, examples=size), batches, first_seed)
                    keep(path, "map", name, results)
                vain = 0 if any(r.claimed for r in results) else vain + 1


def verdict(results: list[dict[str, Any]]) -> str:
    """complete: every batch; partly: something was claimed in one."""
    if all(r["complete"] for r in results):
        return "complete"
    return "partly" if any(r["claimed"] for r in results) else "none"


def draw(cells: dict[str, list[dict[str, Any]]]) -> str:
    """A panel for each kind of input and network, a square for each width and batch size."""
    width, height = LEFT + CELL * len(WIDTHS) + 16, TOP + CELL * len(SIZES) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width * len(PANELS)} {height + 34}" font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, panel in enumerate(PANELS):
        x0 = number * width
        parts.append(f'<text x="{x0 + LEFT}" y="22" font-size="13">{panel}</text>')
        for j, size in enumerate(SIZES):
            y = TOP + (len(SIZES) - 1 - j) * CELL
            parts.append(f'<text x="{x0 + LEFT - 8}" y="{y + 27}" text-anchor="end">{size}</text>')
            for i, neurons in enumerate(WIDTHS):
                parts.append(
                    _square(x0 + LEFT + i * CELL, y, cells.get(f"{panel}, {neurons} wide, B = {size}"))
                )
        for i, neurons in enumerate(WIDTHS):
            x = x0 + LEFT + i * CELL + CELL / 2
            parts.append(f'<text x="{x}" y="{height - 8}" text-anchor="middle">{neurons}</text>')
    parts.append(
        f'<text x="{LEFT}" y="{height + 18}">across: neurons of the layer; upwards: examples in the batch; in the squares: CPU seconds, one thread (median)</text>'
    )
    x = LEFT + 620
    for word, colour in COLOURS.items():
        parts.append(f'<rect x="{x}" y="{height + 7}" width="14" height="14" fill="{colour}"/>')
        parts.append(f'<text x="{x + 20}" y="{height + 18}">{word}</text>')
        x += 90
    return "\n".join([*parts, "</svg>\n"])


def _square(x: float, y: float, results: list[dict[str, Any]] | None) -> str:
    """With the seconds; one that was not tried is an outline."""
    box = f'<rect x="{x}" y="{y}" width="{CELL - 2}" height="{CELL - 2}"'
    if not results:
        return f'{box} fill="none" stroke="#dddddd"/>'
    kind = verdict(results)
    seconds = statistics.median(r["seconds"] for r in results)
    words = f"{seconds:.1f}" if seconds < 10 else f"{seconds:.0f}"
    ink = "white" if kind == "complete" else "black"
    return (
        f'{box} fill="{COLOURS[kind]}"/><text x="{x + CELL / 2 - 1}" y="{y + 27}" text-anchor="middle" '
        f'fill="{ink}">{words}</text>'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--draw", type=Path, default=None, help="draw what was measured, into this file")
    parser.add_argument("--first-seed", type=int, default=75_000)
    parser.add_argument("--batches", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.draw is None:
        measure(options.results, options.first_seed, options.batches)
    cells = json.loads(options.results.read_text())["map"]
    false = sum(r["false"] for results in cells.values() for r in results)
    print(f"map of {sum(map(len, cells.values()))} batches, false claims in all: {false}")
    if options.draw is not None:
        options.draw.write_text(draw(cells))


if __name__ == "__main__":
    main()
