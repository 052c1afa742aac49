"""What differs between the deployments of several runs, and what besides."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from seepage.record import Header

Rows = tuple[tuple[str, tuple[str, ...]], ...]
"""By setting: its value in each run."""
_MEASURING = ("seeds", "attacks", "budget", "device", "fail_on", "metrics", "probes", "adaptive")
_NOT_THE_DEPLOYMENT = ("title", "defenses", *_MEASURING)


def changed(headers: Sequence[Header]) -> Rows:
    """Settings of the deployment that are not the same in all runs."""
    own = [flat({k: v for k, v in h.spec.items() if k not in _NOT_THE_DEPLOYMENT}) for h in headers]
    facts = [
        {
            "defenses": ", ".join(one.title for one in h.defenses) or "none",
            "model parameters": f"{h.model_parameters:,}",
            "server sees": h.threat.server_sees,
        }
        for h in headers
    ]
    return _unlike([{**one, **more} for one, more in zip(own, facts, strict=True)])


def circumstances(headers: Sequence[Header]) -> Rows:
    """What differs in how it was measured: figures may differ by it too."""
    own = [flat({k: v for k, v in h.spec.items() if k in _MEASURING}) for h in headers]
    facts = [
        {
            "ran on": h.device,
            "Python": h.python,
            "code revision": h.git_revision or "not recorded",
            **{f"package {name}": version for name, version in h.packages.items()},
        }
        for h in headers
    ]
    return _unlike([{**one, **more} for one, more in zip(own, facts, strict=True)])


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Tables inside of tables by dotted names, values as JSON has them.

    >>> flat({"protocol": {"batch_size": 8, "audited": None}, "defenses": []})
    {'protocol.batch_size': '8', 'protocol.audited': 'none', 'defenses': 'none'}
    """
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = _plain(value)
    return found


def _plain(value: Any) -> str:
    if value is None or value in ([], {}, ()):
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _unlike(runs: Sequence[Mapping[str, str]]) -> Rows:
    names = dict.fromkeys(name for run in runs for name in run)
    rows = [(name, tuple(run.get(name, "none") for run in runs)) for name in names]
    return tuple((name, values) for name, values in rows if len(set(values)) > 1)
