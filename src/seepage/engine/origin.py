"""What a result comes from: code, weights and packages. A kept one with another origin is computed again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from seepage.attacks import ATTACKS
from seepage.core.errors import LogError
from seepage.core.registry import REFERENCE, import_thing, offered
from seepage.core.user_code import current_folder_importable
from seepage.defenses import DEFENSES, DefenseEntry, MeasureEntry
from seepage.engine.given import contents
from seepage.engine.identity import behaviour, digest, state, versions
from seepage.engine.isolation.attack import MAY_READ, IsolatedAttack
from seepage.engine.measures import hidden_by_measures
from seepage.metrics import METRICS
from seepage.record import ADAPTIVE, AttackRef, Cell, RunFolder
from seepage.record.sealing import file_checksum

if TYPE_CHECKING:
    from seepage.data import Dataset
    from seepage.engine.prepared import Prepared
    from seepage.engine.spec import AuditSpec

ENGINE = "seepage.engine.cell"
"""With all that it imports: how a round is played, matched and scored."""
_ANSWERS = "seepage.attacks.adaptive.answers"
_WORKER = "seepage.engine.isolation.worker"
DAMAGED = "a file that was damaged or belongs to another run"
_WEIGHTS = "the model's weights"
NOT_NUMBERS = {"title", "fail_on"}
"""Settings that no figure depends on."""


def identity_of(dataset: Dataset, model: nn.Module) -> str:
    """What is audited: the data and the model. `model` is the first seed's, and is spent here."""
    return digest(
        {f.name: getattr(dataset, f.name) for f in fields(dataset) if f.name not in ("name", "source")},
        state(model),
        behaviour(model.cpu(), dataset.spec),
    )


def run_key(identity: str, spec: AuditSpec) -> str:
    """Which audit this is: what is audited, and how."""
    return digest(identity, spec.model_dump_json(exclude=NOT_NUMBERS))


def made_by(prepared: Prepared, ref: AttackRef, seed: int) -> dict[str, str]:
    """The origin of one attack on one seed, by what it is in words."""
    return _kept_origin(prepared, ref.key, seed, lambda: _made_by(prepared, ref))


def _made_by(prepared: Prepared, ref: AttackRef) -> dict[str, str]:
    roots = [type(prepared.attacks[ref.key]), *_attack_code(ref)]
    if ref.name == ADAPTIVE:
        roots.append(_ANSWERS)
    if isinstance(prepared.attacks[ref.key], IsolatedAttack):
        roots.append(_WORKER)
    plays = [ENGINE, *_user_functions(prepared.spec), *(metric.compute for metric in prepared.metrics)]
    found = origin(prepared, {"the attack's code": roots, "the code that plays and measures": plays})
    granted = _texts(ref.params.get(MAY_READ, ()))
    for key, registry, names in (
        ("the attack's settings", ATTACKS, (ref.name, *_texts(ref.params))),
        ("the metrics' settings", METRICS, prepared.spec.metrics),
    ):
        if held := [contents(registry.held[name]) for name in names if name in registry.held]:
            found[key] = digest(held)
    return {**found, **{f"the file {name}": str(file_checksum(Path(name))) for name in granted}}


def _user_functions(spec: AuditSpec) -> list[Any]:
    """What a user wrote to say who holds what, and to measure."""
    names = [spec.protocol.partition, *(probe.name for probe in spec.probes)]
    return [import_thing(name, function=True) for name in names if ":" in name]


def origin(prepared: Prepared, roots: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """Of any result: the code behind `roots`, the defenses and the model; packages."""
    with current_folder_importable():
        codes = {name: prepared.code.read(*things) for name, things in roots.items()}
    defenses = _defense_code(prepared.spec)
    codes["the defenses' code"] = prepared.code.read(*defenses)
    codes["the model's code"] = prepared.model_code
    hidden = hidden_by_measures(prepared.spec.defenses)
    packages = {name for code in codes.values() for name in code.packages}
    return {
        **{name: code.digest for name, code in codes.items()},
        "the defenses' settings": digest(*(contents(one) for one in defenses), sorted(hidden)),
        "device": prepared.device.type,
        **versions(packages),
    }


def trained_by(prepared: Prepared, root: str, seed: int) -> dict[str, str]:
    """The origin of a training by the module `root`."""
    return _kept_origin(prepared, root, seed, lambda: origin(prepared, {"the code that trains": [root]}))


def _kept_origin(
    prepared: Prepared, key: str, seed: int, find: Callable[[], dict[str, str]]
) -> dict[str, str]:
    """All but the weights is the same for every seed: read once, for it is many files."""
    if (prepared.run_key, key) not in prepared.origins:
        prepared.origins[prepared.run_key, key] = find()
    return {**prepared.origins[prepared.run_key, key], _WEIGHTS: prepared.state(seed)}


def kept(folder: RunFolder, cell: str, run: str, wanted: Mapping[str, str]) -> tuple[Cell | None, str]:
    """The finished cell, if it may be served; else why it is run again (nothing: it never ran)."""
    if not folder.has_cell(cell):
        return None, ""
    try:
        found = folder.read_cell(cell, run)
    except LogError:
        return None, DAMAGED
    if found.status == "failed":  # no result: it is tried again
        return None, ""
    changes = differences(found.made_by, wanted)
    return (None, ", ".join(changes)) if changes else (found, "")


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What is not as it was, in words.

    >>> differences({"torch": "2.6.0", "the attack's code": "a"}, {"torch": "2.7", "the attack's code": "b"})
    ["the attack's code", 'torch (2.6.0 -> 2.7)']
    """
    changed = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    return [
        name if name.startswith("the ") else f"{name} ({before.get(name, 'none')} -> {now.get(name, 'none')})"
        for name in changed
    ]


def again_in_words(reasons: Iterable[str]) -> str:
    """One sentence on finished results that are not served; empty where all are.

    >>> again_in_words(["", "the attack's code"])
    "1 finished cell is run again, for these changed since: the attack's code."
    >>> again_in_words(["the model", "the attack's code, the model"])
    "2 finished cells are run again, for these changed since: the model, the attack's code."
    """
    told = [reason for reason in reasons if reason]
    if not told:
        return ""
    several = f"{len(told)} finished cells are" if len(told) > 1 else "1 finished cell is"
    each = dict.fromkeys(part for reason in told for part in reason.split(", "))
    return f"{several} run again, for these changed since: {', '.join(each)}."


def _defense_code(spec: AuditSpec) -> list[Any]:
    entries = [DEFENSES.find(one.name) for one in spec.defenses]
    wraps = [(entry.build, entry.code) for entry in entries if isinstance(entry, DefenseEntry)]
    code = [one for pair in wraps for one in pair if one is not None]
    return [*code, *(entry.change for entry in entries if isinstance(entry, MeasureEntry))]


def _attack_code(ref: AttackRef) -> list[Any]:
    """The attack and those that its settings name, as one inside of it: by their defaults too.

    Attacks from outside are named by their module, which is read and not loaded.
    """
    found: dict[str, Any] = {}
    waiting = [ref.name, *_texts(ref.params)]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        if name in ATTACKS:
            found[name] = ATTACKS[name]
            defaults = inspect.signature(ATTACKS[name]).parameters.values()
            waiting += [p.default for p in defaults if isinstance(p.default, str)]
        elif name in ATTACKS.held:
            found[name] = ATTACKS.held[name]
        elif REFERENCE.fullmatch(name) or name in offered(ATTACKS.group):
            found[name] = ATTACKS.entry(name).where.partition(":")[0]
    return [found[name] for name in sorted(found)]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(each)
