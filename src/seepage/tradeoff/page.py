"""One HTML file that holds everything: no script, no font, no picture from elsewhere."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import jinja2
from markupsafe import Markup

from seepage.log import write_atomically
from seepage.tradeoff import words
from seepage.tradeoff.advice import RULE, advise
from seepage.tradeoff.plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, build_plot
from seepage.tradeoff.result import TradeoffResult


def tradeoff_html(result: TradeoffResult) -> str:
    """The whole study as one self-contained page; an unfinished one gives a page that says so."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("seepage.tradeoff", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = files("seepage").joinpath("report/templates/style.css").read_text(encoding="utf-8")
    return environment.get_template("tradeoff.html.j2").render(
        header=result.header,
        rows=result.rows,
        advice=advise(result),
        rule=RULE,
        plot=build_plot(result.rows),
        frame={"w": WIDTH, "h": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM},
        words=words,
        style=Markup(style),  # our own file
        spec=json.dumps(result.header.spec, indent=2, ensure_ascii=False, default=str),
    )


def write_tradeoff_html(result: TradeoffResult, path: Path | None = None) -> Path:
    """Write the page into the study's folder, or to `path`; returns where it is."""
    target = result.folder.page_file if path is None else path
    write_atomically(target, tradeoff_html(result).encode())
    return target
