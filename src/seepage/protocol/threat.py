"""Who the server is: what it may know, see and do. Checked against every attack before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from seepage.core.errors import SpecError
from seepage.core.registry import Entry, Registry, unknown
from seepage.core.types import Batch, Grant, InputSpec, Knowledge, LocalTraining
from seepage.names import threats as names


@dataclass(frozen=True, kw_only=True)
class ThreatModel:
    """A named set of grants. `rounds` bounds how often a dishonest server may query a client."""

    name: str
    description: str
    grants: frozenset[Grant]
    rounds: int = 1


def _threat(name: str, entry: Entry, thing: Any) -> ThreatModel:
    """Our own are made of what their list says; a package has a ThreatModel, or a function that makes one."""
    if not entry.outside:
        grants = frozenset(Grant(grant) for grant in entry.facts["grants"])
        return ThreatModel(
            name=name, description=entry.description, grants=grants, rounds=entry.facts["rounds"]
        )
    threat = thing() if callable(thing) else thing
    if not isinstance(threat, ThreatModel):
        raise SpecError(f"threat model '{name}' is a {type(threat).__name__}: make it a seepage ThreatModel.")
    return threat


THREATS: Registry[ThreatModel] = Registry(
    "threat model", group=names.GROUP, entries=names.THREATS, make=_threat
)


def custom_threat(
    base: str,
    *,
    grant: Sequence[str] = (),
    deny: Sequence[str] = (),
    rounds: int | None = None,
) -> ThreatModel:
    """A named threat model with some grants added or taken away.

    >>> Grant.LABELS in custom_threat("honest_but_curious", grant=["labels"]).grants
    True
    """
    start = THREATS.find(base)
    for name in (*grant, *deny):
        if name not in set(Grant):
            raise SpecError(unknown("grant", name, Grant))
    added, removed = {Grant(g) for g in grant}, {Grant(d) for d in deny}
    if both := added & removed:
        raise SpecError(
            f"the threat model both grants and denies {', '.join(sorted(both))}: keep one of the two."
        )
    changed = [*(f"+{g}" for g in sorted(added)), *(f"-{d}" for d in sorted(removed))]
    grants = (start.grants | added) - removed
    return replace(
        start,
        name=" ".join([base, *changed]),
        grants=grants,
        rounds=_rounds(base, grants, rounds),
    )


def _rounds(base: str, grants: frozenset[Grant], wanted: int | None) -> int:
    """The bound follows the grant: one round without `several_rounds`."""
    several = Grant.SEVERAL_ROUNDS in grants
    if wanted is None:
        return names.MANY_ROUNDS if several else 1
    if wanted > 1 and not several:
        raise SpecError(
            f"the threat model '{base}' is given rounds = {wanted} but not the grant that allows them: "
            "add grant = ['several_rounds'], or leave rounds out."
        )
    return wanted


def effective_grants(threat: ThreatModel, aggregation: str) -> frozenset[Grant]:
    """Grants that the protocol leaves standing: a secure sum hides single updates from everybody.

    Whoever is given the labels can count them, so they imply the batch size.
    """
    implied = {Grant.BATCH_SIZE} if Grant.LABELS in threat.grants else set()
    return (threat.grants | implied) - _hidden(aggregation)


def _hidden(aggregation: str) -> frozenset[Grant]:
    secure = aggregation == "secure_sum"
    return frozenset({Grant.INDIVIDUAL_UPDATES, Grant.TARGET_CLIENT}) if secure else frozenset()


def missing_grants(requires: frozenset[Grant], threat: ThreatModel, aggregation: str) -> str:
    """Empty if the attack may run; otherwise one sentence that says what is missing."""
    lacking = requires - effective_grants(threat, aggregation)
    hidden = sorted(lacking & _hidden(aggregation))
    denied = sorted(lacking - _hidden(aggregation))
    why, remedy = [], []
    if hidden:
        why.append(f"{', '.join(hidden)}, which aggregation = '{aggregation}' hides")
        remedy.append("choose another aggregation")
    # Without the secure sum, what it hides must still be granted: name it in the remedy.
    if grant := sorted(lacking - threat.grants):
        names = ", ".join(repr(str(g)) for g in grant)
        remedy.append(f"choose another threat model, or grant = [{names}] in a custom one")
    if denied:
        why.append(f"{', '.join(denied)}, which the threat model '{threat.name}' does not grant")
    return f"needs {' and '.join(why)}: {', and '.join(remedy)}." if why else ""


def sees_each_update(threat: ThreatModel, aggregation: str) -> bool:
    """Single updates are seen unless only an aggregate reaches this server."""
    return aggregation == "per_client" or Grant.INDIVIDUAL_UPDATES in effective_grants(threat, aggregation)


def server_sees(
    threat: ThreatModel, aggregation: str, clients: int, *, fakes: int = 0, minimum_honest: int = 1
) -> str:
    """One sentence for the report."""
    if aggregation == "secure_sum" and fakes:
        return (
            f"secure sums of {minimum_honest} of the {clients} client(s) at a time with {fakes} all-zero "
            "fake(s) of its own, which it takes out again (Boenisch et al., Section 10.4)"
        )
    if aggregation == "secure_sum":
        return f"only the secure sum of {clients} client(s)"
    if sees_each_update(threat, aggregation):
        return "each client's update"
    return f"only the {aggregation} over {clients} client(s)"


def knowledge(
    threat: ThreatModel,
    aggregation: str,
    *,
    spec: InputSpec,
    loss: str,
    local: LocalTraining | None,
    auxiliary: Batch | None,
    seed: int,
) -> Knowledge:
    """What this server knows besides the exchanges: everything that was not granted is blanked out."""
    grants = effective_grants(threat, aggregation)
    shown = replace(
        spec,
        value_range=spec.value_range if Grant.VALUE_RANGE in grants else None,
        categories=spec.categories if Grant.VALUE_RANGE in grants else (),
        integer=spec.integer if Grant.VALUE_RANGE in grants else (),
        spread=None,  # taken from the clients' rows too
        mean=spec.mean if Grant.NORMALISATION in grants else None,
        std=spec.std if Grant.NORMALISATION in grants else None,
    )
    return Knowledge(
        input=shown,
        loss=loss,
        local=_in_an_order_of_its_own(local) if Grant.LOCAL_TRAINING in grants else None,
        auxiliary=auxiliary if Grant.AUXILIARY in grants else None,
        normalised=spec.mean is not None and shown.mean is None,
        seed=seed,
    )


def _in_an_order_of_its_own(local: LocalTraining | None) -> LocalTraining | None:
    """Clients that shuffle tell nobody how: a server that plays their training again draws another order."""
    if local is None or local.shuffle_seed is None:
        return local
    return replace(local, shuffle_seed=local.shuffle_seed + 1)


def describe_knowledge(threat: ThreatModel, aggregation: str, known: Knowledge) -> list[str]:
    """What the server was assumed to know, one plain sentence each, for the report."""
    grants = effective_grants(threat, aggregation)
    spec = known.input

    def told(grant: Grant, yes: str, no: str) -> str:
        return yes if grant in grants else no

    sentences = [
        f"The model that was sent, the loss ({known.loss}) and the shape of one example {spec.shape}.",
        told(
            Grant.BATCH_SIZE,
            "How many examples are behind an update.",
            "Not how many examples are behind an update.",
        ),
        told(Grant.LABELS, "The labels.", "Not the labels."),
        told(
            Grant.LOCAL_TRAINING,
            "The local training settings (learning rate, steps, order).",
            "Not the local training settings.",
        ),
    ]
    if Grant.VALUE_RANGE not in grants:
        sentences.append("Not the range of raw values.")
    elif spec.value_range is not None:
        sentences.append(f"That raw values lie in [{spec.value_range[0]:g}, {spec.value_range[1]:g}].")
    if spec.categories:
        sentences.append("Which columns are categories in one-hot code.")
    if spec.integer:
        sentences.append("Which columns hold whole numbers.")
    if spec.mean is not None:
        sentences.append("How inputs are normalised.")
    elif known.normalised:
        sentences.append("Not how inputs are normalised: its values stay in the model's units.")
    if known.auxiliary is not None:
        sentences.append(f"{len(known.auxiliary)} other examples of the same kind, none of them a client's.")
    return sentences
