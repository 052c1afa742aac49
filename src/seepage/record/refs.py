"""What every record has in common, and the names that an attack and its cells go by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field

BASELINE = "prior_only"
"""The attack that sees no update. Every score stands beside its score on the same examples."""
ADAPTIVE = "adaptive"
"""The attack that stands for another one, by a server that knows the clients' defenses."""
INSIDE = "inside"
"""The setting that combines defenses: `{name = "gaussian_noise", sigma = 0.01, inside = ["clipping"]}`."""
TRAINING = "training"
"""In the place of an attack's name: a short training under the point's defenses, for what they cost."""


STRICT = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


class Record(BaseModel):
    """Frozen, and strict about unknown fields: a log from another version says so instead of misleading.

    JSON has no NaN or infinity: they are written as the strings "NaN", "Infinity" and "-Infinity" and read
    back as the numbers, so that a score that could not be computed stays visible.
    """

    model_config = ConfigDict(**STRICT, frozen=True)


def plain(value: Any) -> Any:
    """As JSON has it: records become dicts, and numbers that are none become words, as in a record's file.

    >>> plain({"psnr": float("nan"), "seeds": (0, 1)})
    {'psnr': 'NaN', 'seeds': [0, 1]}
    """
    return json.loads(pydantic_core.to_json(value, inf_nan_mode="strings"))


class NamedSettings(Record):
    """Something that has a name, with its settings."""

    name: str
    params: dict[str, Any] = Field(default_factory=dict)

    @property
    def key(self) -> str:
        """A short name, unique for these settings; the plain name when there are none.

        >>> NamedSettings(name="prior_only").key
        'prior_only'
        """
        name = self.name.replace(":", ".")  # "package.module:thing" becomes part of a file's name
        if not self.params:
            return name
        written = json.loads(self.model_dump_json(include={"params"}))  # the same before and after a file
        digest = hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()
        return f"{name}-{digest[:6]}"

    @property
    def title(self) -> str:
        """
        >>> NamedSettings(name="clipping", params={"norm": 1.0}).title
        'clipping(norm=1.0)'
        """
        settings = ", ".join(f"{k}={v}" for k, v in self.params.items() if k != INSIDE)
        return f"{self.name}({settings})" if settings else self.name


class DefenseRef(NamedSettings):
    """One defense, maybe with others inside of it: a point of a study."""

    @property
    def title(self) -> str:
        """
        >>> DefenseRef(name="sign", params={"inside": [{"name": "clipping", "norm": 1.0}]}).title
        'sign over clipping(norm=1.0)'
        """
        inside = self.params.get(INSIDE)
        return f"{super().title} over {_named(inside)}" if inside else super().title


class AttackRef(NamedSettings):
    """One attack of the audit."""

    @property
    def title(self) -> str:
        """
        >>> AttackRef(name="adaptive", params={"attack": "tag", "knows": [{"name": "sign"}]}).title
        'tag, knowing sign'
        """
        if self.plain is self:
            return super().title
        return f"{self.plain.title}, knowing {_named(self.params.get('knows') or ())}"

    @property
    def plain(self) -> AttackRef:
        """The attack that an adaptive one adapts; any other one is its own."""
        if self.name != ADAPTIVE or "attack" not in self.params:
            return self
        return AttackRef(name=str(self.params["attack"]), params=self.params.get("options") or {})


def _named(defenses: Any) -> str:
    """Defenses as `knows` and `inside` list them: names, or tables with a name and settings."""
    tables = [one if isinstance(one, dict) else {"name": one} for one in defenses]
    refs = [
        DefenseRef(name=str(t.get("name")), params={k: v for k, v in t.items() if k != "name"})
        for t in tables
    ]
    return " and ".join(ref.title for ref in refs)


def cell_id(attack: AttackRef, seed: int) -> str:
    return f"{attack.key}-seed{seed}"


def origin_key(made_by: Mapping[str, str]) -> str:
    """`Cell.made_by` in short; nothing for nothing.

    >>> origin_key({}), origin_key({"torch": "2.6"}) == origin_key({"torch": "2.7"})
    ('', False)
    """
    if not made_by:
        return ""
    return hashlib.sha256(json.dumps(dict(made_by), sort_keys=True).encode()).hexdigest()
