"""Which attacks an audit is going to run: those it names, their adaptive twins, and the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seepage.attacks.adaptive.answers import answer_to
from seepage.core.errors import SpecError
from seepage.defenses import DEFENSES
from seepage.engine.spec import NO_TRUTH, AttackSpec, AuditSpec, DefenseSpec
from seepage.record import ADAPTIVE, BASELINE, AttackRef


def planned_refs(wanted: Sequence[AttackSpec], spec: AuditSpec) -> list[AttackRef]:
    """The baseline, where something is scored; each attack, and its adaptive twin if it has one."""
    refs = [ref for a in wanted for ref in _with_twin(AttackRef(name=a.name, params=a.options), spec)]
    unscored = spec.recorded is not None and spec.data.name == NO_TRUTH
    if all(ref.name != BASELINE for ref in refs) and not unscored:  # a guess is worth its score
        refs.append(AttackRef(name=BASELINE))
    for number, ref in enumerate(refs):
        if ref in refs[:number]:
            raise SpecError(f"attack '{ref.title}' is listed twice: remove one, or change its settings.")
    return sorted(refs, key=lambda ref: ref.name != BASELINE)


def _with_twin(ref: AttackRef, spec: AuditSpec) -> list[AttackRef]:
    """A heuristic is worth what it stops of an attacker who knows of it."""
    knows = [_as_known(one) for one in spec.defenses if answer_to(one.name) is not None]
    if not spec.adaptive or not knows or ref.name in (BASELINE, ADAPTIVE):
        return [ref]
    options = {"options": ref.params} if ref.params else {}
    return [ref, AttackRef(name=ADAPTIVE, params={"attack": ref.name, **options, "knows": knows})]


def _as_known(defense: DefenseSpec) -> dict[str, Any]:
    """With the settings that are public."""
    settings = {**DEFENSES.find(defense.name).settings, **defense.options}
    return {"name": defense.name, **{k: v for k, v in settings.items() if v is not None and k != "seed"}}
