"""One cell: one attack on one seed, from the draw of the clients to what is scored."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from seepage.attacks import Attack
from seepage.core.errors import NotApplicable, SeepageError
from seepage.core.progress import on_time_up
from seepage.core.types import Knowledge, Reconstruction
from seepage.engine.blocks import goes_in_blocks, run_in_blocks
from seepage.engine.cost import measure
from seepage.engine.diagnosis import diagnosis
from seepage.engine.measures import wrappers
from seepage.engine.prepared import Prepared
from seepage.engine.probes import Seen, run_probes
from seepage.engine.promise import defense_records
from seepage.engine.rating import Rated
from seepage.engine.recording import Recording
from seepage.engine.scoring import Scored, score
from seepage.engine.shared import Shared
from seepage.engine.source import handed_out
from seepage.engine.unscored import Unscored, unscored
from seepage.protocol import Played, describe_knowledge, missing_grants
from seepage.protocol.copies import own_copy
from seepage.record import ADAPTIVE, BASELINE, TIME_UP, AttackRef, Cell, Cost


def run_cell(
    prepared: Prepared, ref: AttackRef, seed: int, shared: Shared | None = None
) -> tuple[Cell, Scored | Unscored | None]:
    """One attack on one seed. What goes wrong here is recorded, and the audit goes on with the rest.

    shared: what the other cells of this point and seed have computed already, and will use after this one.
    """
    shared = Shared(prepared, seed) if shared is None else shared
    before = shared.kept_bytes
    source, attack = shared.source, prepared.attacks[ref.key]
    known = shared.known_to_baseline if ref.name == BASELINE else shared.known_to_server()
    if why := missing_grants(attack.requires, prepared.threat, prepared.spec.protocol.aggregation):
        return Cell(attack=ref, seed=seed, status="not_applicable", reason=f"it {why}"), None
    try:
        with measure(prepared.device) as whole:
            model = own_copy(source.model)
            attack.check(attack.held_as(model), known)
            if attack.active:
                played = source.play(lambda sent, history: attack.next_model(sent, history, known))
            else:
                played = shared.honest
            torch.manual_seed(prepared.server_seed(seed))
            began = time.perf_counter()
            ends: list[str] = []
            with on_time_up(lambda: ends.append(TIME_UP)):
                result, rated = _attacked(shared, attack, ref, known, played, model)
            seconds = time.perf_counter() - began
            found, said = _compared(shared, played, attack, known, result, rated)
    except NotApplicable as reason:
        against = _why_little(shared, ref, None)
        refused = Cell(attack=ref, seed=seed, status="not_applicable", reason=str(reason), hindrances=against)
        return refused, None
    except SeepageError as reason:
        return Cell(attack=ref, seed=seed, status="failed", reason=str(reason)), None
    counts = result.label_counts
    cell = Cell(
        attack=ref,
        seed=seed,
        status="done",
        space=result.space,
        candidates=len(result),
        complete=result.complete,
        claims_if_declared=result.if_declared,
        label_counts=None if counts is None else tuple(int(c) for c in counts),
        knowledge=_knowledge_in_words(prepared, ref, known),
        notes=(*result.notes, *ends[:1], *_promises(prepared, played.rounds), *_partly(played)),
        hindrances=_why_little(shared, ref, found),
        crafted=attack.active,
        cost=Cost(
            seconds=seconds, rounds=played.rounds, peak_memory_mb=whole.peak_memory_mb + before / 2**20
        ),
        **said,
    )
    return cell, found


def _compared(
    shared: Shared,
    played: Played,
    attack: Attack,
    known: Knowledge,
    result: Reconstruction,
    rated: Rated | None,
) -> tuple[Scored | Unscored, dict[str, Any]]:
    """The result beside the truth, where somebody has it, and what the cell says about that."""
    source, prepared = shared.source, shared.prepared
    if not source.scored:
        alone = unscored(result, source.data.spec, tolerance=prepared.spec.exact_tolerance)
        return alone, {
            "claims": alone.claims,
            "claims_right": None,
            "claimed_examples": alone.distinct,
        }
    scored = _score(shared, played, result, rated)
    seen = Seen(source.data, played, attack, known, result, scored, shared.seed)
    return scored, {
        "examples": scored.examples,
        "columns": scored.columns,
        "batch_scores": {**scored.batch_scores, **run_probes(prepared.spec.probes, seen)},
        "claims": scored.claims,
        "claims_right": scored.claims_right,
        "claimed_examples": scored.claimed_examples,
        "true_label_counts": None
        if scored.true_label_counts is None
        else tuple(int(c) for c in scored.true_label_counts),
    }


def _why_little(shared: Shared, ref: AttackRef, found: Scored | Unscored | None) -> tuple[str, ...]:
    """What about a recorded exchange keeps attacks from it, where this one has no example for sure.

    found: None where the attack refused.
    """
    source = shared.source
    if not isinstance(source, Recording) or ref.name == BASELINE:
        return ()
    if isinstance(found, Unscored):
        exact = found.claims > 0
    else:
        exact = found is not None and any(e.scores.get("exact") == 1.0 for e in found.examples)
    return () if exact else (*source.truth_in_doubt, *diagnosis(source.whole, source.kept.info))


def _attacked(
    shared: Shared, attack: Attack, ref: AttackRef, known: Knowledge, played: Played, model: nn.Module
) -> tuple[Reconstruction, Rated | None]:
    """What the attack finds, and its scores where they had to be taken at once. model: its own copy."""
    if ref == AttackRef(name=BASELINE):
        return shared.guesses, None
    if attack.active:
        return attack.run(played.exchanges, known), None
    exchanges = handed_out(played.exchanges, {shared.source.model: model})
    if not goes_in_blocks(attack, played):
        return attack.run(exchanges, known), None
    return run_in_blocks(
        attack,
        exchanges,
        known,
        played=played,
        spec=shared.source.data.spec,
        tolerance=shared.prepared.spec.exact_tolerance,
        metrics=shared.prepared.metrics,
    )


def _knowledge_in_words(prepared: Prepared, ref: AttackRef, known: Knowledge) -> tuple[str, ...]:
    if ref.name == BASELINE:
        return ("No update at all.", "Public examples that no client holds.")
    said = describe_knowledge(prepared.threat, prepared.spec.protocol.aggregation, known)
    if wrappers(prepared.spec.defenses):
        adapted = ref.name == ADAPTIVE
        said.append(
            f"Which defense the clients use: {ref.title.partition(', knowing ')[2]}."
            if adapted
            else "Not that the clients use a defense."
        )
    if where := prepared.attacks[ref.key].confinement:
        said.append(where)
    return tuple(said)


def _partly(played: Played) -> tuple[str, ...]:
    if not played.partly:
        return ()
    return (
        "The client stopped before it had seen all of the truth, and which of it is not recorded: labels are "
        "not scored, and examples that it never saw count as not recovered. Give `rows` in the JSON, or say "
        "--known shuffle=false where clients take their examples in order.",
    )


def _promises(prepared: Prepared, rounds: int) -> tuple[str, ...]:
    """A server that asks again and again spends more of the budget than the protocol's rounds."""
    records = defense_records(prepared.spec, prepared.local, rounds=rounds, planned=prepared.planned)
    return tuple(f"{one.title} after what this attack saw: {one.promise}." for one in records if one.promise)


def _score(shared: Shared, played: Played, result: Reconstruction, rated: Rated | None) -> Scored:
    prepared, source, honest = shared.prepared, shared.source, played is shared.honest
    return score(
        result,
        played,
        source.data.spec,
        guesses=shared.guesses if honest else shared.guesses_about(played),
        public=source.public,
        honest=source.model,
        loss=prepared.loss,
        tolerance=prepared.spec.exact_tolerance,
        metrics=prepared.metrics,
        beside=shared.beside if honest else None,
        own=rated,
    )
