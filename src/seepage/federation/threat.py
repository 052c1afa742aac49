"""Who the server is: what it may know, see and do. Checked against every attack before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from seepage.errors import SpecError
from seepage.registry import lookup, unknown
from seepage.types import Batch, Grant, InputSpec, Knowledge, LocalTraining

_TOLD = frozenset(
    {Grant.BATCH_SIZE, Grant.LOCAL_TRAINING, Grant.BUFFERS, Grant.VALUE_RANGE, Grant.NORMALISATION}
)
"""What a server that runs the protocol knows anyway: it wrote the training configuration."""


@dataclass(frozen=True, kw_only=True)
class ThreatModel:
    """A named set of grants. `rounds` bounds how often a dishonest server may query a client."""

    name: str
    description: str
    grants: frozenset[Grant]
    rounds: int = 1


THREATS: dict[str, ThreatModel] = {
    t.name: t
    for t in (
        ThreatModel(
            name="honest_but_curious",
            description="The server follows the protocol and studies every update that it receives.",
            grants=_TOLD | {Grant.INDIVIDUAL_UPDATES},
        ),
        ThreatModel(
            name="honest_but_curious_aggregate",
            description="Somebody who follows the protocol and sees only the aggregate of each round.",
            grants=_TOLD,
        ),
        ThreatModel(
            name="outsider",
            description="Somebody who taps one client's updates and knows the model, nothing else.",
            grants=frozenset({Grant.INDIVIDUAL_UPDATES}),
        ),
        ThreatModel(
            name="malicious_server",
            description="The server chooses the weights it sends, to whom it likes, round after round.",
            grants=_TOLD
            | {Grant.INDIVIDUAL_UPDATES, Grant.CRAFT_WEIGHTS, Grant.TARGET_CLIENT, Grant.SEVERAL_ROUNDS},
            rounds=1000,
        ),
        ThreatModel(
            name="malicious_server_secure_aggregation",
            description="The server chooses the weights, the same for all, and sees only the secure sum.",
            grants=_TOLD | {Grant.CRAFT_WEIGHTS, Grant.SEVERAL_ROUNDS},
            rounds=1000,
        ),
    )
}


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
    start = lookup(THREATS, base, "threat model")
    for name in (*grant, *deny):
        if name not in set(Grant):
            raise SpecError(unknown("grant", name, Grant))
    added, removed = {Grant(g) for g in grant}, {Grant(d) for d in deny}
    if both := added & removed:
        raise SpecError(
            f"the threat model both grants and denies {', '.join(sorted(both))}: keep one of the two."
        )
    changed = [*(f"+{g}" for g in sorted(added)), *(f"-{d}" for d in sorted(removed))]
    return replace(
        start,
        name=" ".join([base, *changed]),
        grants=(start.grants | added) - removed,
        rounds=start.rounds if rounds is None else rounds,
    )


def effective_grants(threat: ThreatModel, aggregation: str) -> frozenset[Grant]:
    """Grants that the protocol leaves standing: a secure sum hides single updates from everybody."""
    hidden = {Grant.INDIVIDUAL_UPDATES, Grant.TARGET_CLIENT} if aggregation == "secure_sum" else set()
    return threat.grants - hidden


def missing_grants(requires: frozenset[Grant], threat: ThreatModel, aggregation: str) -> str:
    """Empty if the attack may run; otherwise one sentence that says what is missing."""
    lacking = sorted(requires - effective_grants(threat, aggregation))
    if not lacking:
        return ""
    names = ", ".join(lacking)
    if set(lacking) <= set(threat.grants):
        return f"needs {names}, which aggregation = '{aggregation}' hides: choose another aggregation."
    return (
        f"needs {names}, which the threat model '{threat.name}' does not grant: choose another threat model, "
        f"or grant = [{', '.join(repr(str(g)) for g in lacking)}] in a custom one."
    )


def sees_each_update(threat: ThreatModel, aggregation: str) -> bool:
    """Single updates are seen unless only an aggregate reaches this server."""
    return aggregation == "per_client" or Grant.INDIVIDUAL_UPDATES in effective_grants(threat, aggregation)


def server_sees(threat: ThreatModel, aggregation: str, clients: int) -> str:
    """One sentence for the report."""
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
    local: LocalTraining,
    auxiliary: Batch | None,
    seed: int,
) -> Knowledge:
    """What this server knows besides the exchanges: everything that was not granted is blanked out."""
    grants = effective_grants(threat, aggregation)
    shown = replace(
        spec,
        value_range=spec.value_range if Grant.VALUE_RANGE in grants else None,
        mean=spec.mean if Grant.NORMALISATION in grants else None,
        std=spec.std if Grant.NORMALISATION in grants else None,
    )
    return Knowledge(
        input=shown,
        loss=loss,
        local=local if Grant.LOCAL_TRAINING in grants else None,
        auxiliary=auxiliary if Grant.AUXILIARY in grants else None,
        normalised=spec.mean is not None and shown.mean is None,
        seed=seed,
    )


def describe_knowledge(threat: ThreatModel, aggregation: str, known: Knowledge) -> list[str]:
    """What the server was assumed to know, one plain sentence each, for the report."""
    grants = effective_grants(threat, aggregation)
    spec = known.input

    def told(grant: Grant, yes: str, no: str) -> str:
        return yes if grant in grants else no

    sentences = [
        f"The model it sent, the loss ({known.loss}) and the shape of one example {spec.shape}.",
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
    if spec.value_range is not None:
        sentences.append(f"That raw values lie in [{spec.value_range[0]:g}, {spec.value_range[1]:g}].")
    if spec.mean is not None:
        sentences.append("How inputs are normalised.")
    elif known.normalised:
        sentences.append("Not how inputs are normalised: its values stay in the model's units.")
    if known.auxiliary is not None:
        sentences.append(f"{len(known.auxiliary)} other examples of the same kind, none of them a client's.")
    return sentences
