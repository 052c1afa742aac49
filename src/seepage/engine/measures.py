"""Defenses that change the protocol: from an audit as it is written to the protocol that is played."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from seepage.core.settings import construct
from seepage.core.types import Grant
from seepage.defenses import DEFENSES, DefenseEntry, MeasureEntry
from seepage.engine.protocol_spec import ProtocolSpec
from seepage.engine.spec import AuditSpec, DefenseSpec
from seepage.engine.written import validated


def with_measures(spec: AuditSpec) -> AuditSpec:
    """The same audit with its measures in the protocol; `defenses` still names them, for the record.

    >>> from seepage.engine.spec import parse_spec
    >>> with_measures(parse_spec({"model": "mlp", "data": "digits", "defenses": ["median"]})).protocol.clients
    4
    """
    protocol = spec.protocol
    for wanted, entry in _measures(spec.defenses):
        what = f"defense '{wanted.name}'"
        changes = construct(partial(entry.change, protocol.batch_size), wanted.options, what)
        changed = {**protocol.model_dump(), **changes}
        protocol = validated(ProtocolSpec, changed, f"{what} does not fit the protocol")
    return spec.model_copy(update={"protocol": protocol})


def hidden_by_measures(defenses: Sequence[DefenseSpec]) -> frozenset[Grant]:
    """What the server is no longer shown."""
    return frozenset(grant for _, entry in _measures(defenses) for grant in entry.hides)


def wrappers(defenses: Sequence[DefenseSpec]) -> list[tuple[DefenseSpec, DefenseEntry]]:
    """The other defenses, in order: those that wrap the client's step."""
    return [(wanted, entry) for wanted, entry in _entries(defenses) if isinstance(entry, DefenseEntry)]


def _measures(defenses: Sequence[DefenseSpec]) -> list[tuple[DefenseSpec, MeasureEntry]]:
    return [(wanted, entry) for wanted, entry in _entries(defenses) if isinstance(entry, MeasureEntry)]


def _entries(defenses: Sequence[DefenseSpec]) -> list[tuple[DefenseSpec, object]]:
    return [(wanted, DEFENSES.find(wanted.name)) for wanted in defenses]
