"""The frame of every page: one HTML file that holds everything, with nothing loaded from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import jinja2
from markupsafe import Markup


def render(template: str, *, spec: Mapping[str, Any], **values: Any) -> str:
    """A page from one of our templates; `spec` is shown as JSON. Every text is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("seepage.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    written = json.dumps(spec, indent=2, ensure_ascii=False, default=str)
    return environment.get_template(template).render(spec=written, **values)


def breakable(name: str) -> Markup:
    """A name that may break after an underscore, so that long ones stay readable in narrow columns.

    >>> str(breakable("a_<b>"))
    'a_<wbr>&lt;b&gt;'
    """
    return Markup("<wbr>").join(part for part in re.split(r"(?<=[_(])", name))
