"""The frame of every page: one HTML file that holds everything, with nothing loaded from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Characters that a page may not hold, as names and labels do."""
_LISTS = re.compile(r"\[\n[^][{}\"]*\]")
"""Lists of plain numbers, which JSON with an indent writes one a line."""


def _on_one_line(found: re.Match[str]) -> str:
    return " ".join(found[0].split()).replace("[ ", "[").replace(" ]", "]")


def render(template: str, *, spec: Mapping[str, Any], tile: str = "1", **values: Any) -> str:
    """A page from one of our templates; `spec` is shown as JSON. Every text is escaped.

    tile: width over height of one picture, as CSS has it. The page's own style and script are let in by
    their hashes, so that nothing that a user's names or labels might smuggle in is ever run.
    """
    style = f":root {{ --ratio: {tile}; }}\n{_own('style.css')}"
    written = _LISTS.sub(_on_one_line, json.dumps(spec, indent=2, ensure_ascii=False, default=str))
    return fragment(
        template,
        spec=written,
        style=Markup(style),
        script=Markup(_own("page.js")),
        policy=policy(style, _own("page.js")),
        **values,
    )


def fragment(template: str, **values: Any) -> str:
    """What one of our templates makes of these values. Every text is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("seepage.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    environment.filters["when"] = when
    return _CONTROL.sub("\ufffd", environment.get_template(template).render(**values))


@cache
def _own(name: str) -> str:
    return (files("seepage.report") / "templates" / name).read_text(encoding="utf-8")


def policy(style: str, script: str) -> str:
    """What the page may do: show pictures that it holds itself, and use this style and this script.

    >>> policy("", "").partition(";")[0]
    "default-src 'none'"
    """
    allowed = {"img-src": "data:", "style-src": _hash(style), "script-src": _hash(script)}
    parts = ["default-src 'none'", *(f"{kind} {what}" for kind, what in allowed.items())]
    return "; ".join([*parts, "base-uri 'none'", "form-action 'none'"])


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def when(created: str) -> str:
    """A time of a log, to the minute.

    >>> when("2026-11-18T10:13:06+00:00")
    '2026-11-18 10:13 UTC'
    """
    return f"{created[:10]} {created[11:16]} UTC" if len(created) > 16 else created


def breakable(name: str) -> Markup:
    """A name that may break after an underscore, so that long ones stay readable in narrow columns.

    >>> str(breakable("a_<b>"))
    'a_<wbr>&lt;b&gt;'
    """
    return Markup("<wbr>").join(part for part in re.split(r"(?<=[_(])", name))
