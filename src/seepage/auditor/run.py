"""Running an audit: cell by cell, each written to disk as soon as it is done."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from seepage.attacks import Attack
from seepage.attacks.parts.checkpoint import keeping
from seepage.attacks.prior_only import PriorOnly
from seepage.auditor.auto import line_up
from seepage.auditor.cost import measure
from seepage.auditor.header import audit_title, make_header
from seepage.auditor.live import OnStep, watching
from seepage.auditor.measures import wrappers
from seepage.auditor.origin import again_in_words, kept, made_by
from seepage.auditor.partial import PartialStates
from seepage.auditor.prepare import Prepared, prepare
from seepage.auditor.promise import defense_records
from seepage.auditor.scoring import Scored, score
from seepage.auditor.spec import AuditSpec
from seepage.errors import NotApplicable, SeepageError, in_words, out_of_memory
from seepage.federation import (
    Played,
    client,
    describe_knowledge,
    knowledge,
    missing_grants,
    play,
)
from seepage.federation.widening import wide_batch, wide_model
from seepage.log import (
    ADAPTIVE,
    BASELINE,
    AttackRef,
    AuditLog,
    Cell,
    Cost,
    Header,
    RunFolder,
    cell_id,
    origin_key,
    write_atomically,
)
from seepage.log.pictures import picture_grid
from seepage.types import (
    INPUT_SPACE,
    Batch,
    Crafted,
    Exchange,
    InputSpec,
    Knowledge,
    Modality,
    Reconstruction,
)

_KEEP_EVERY = 30.0
"""Seconds between two kept states of a search."""

OnPlan = Callable[[Header], None]
"""Called once before the first cell, with what will run, what will not, and what it is expected to take."""
OnCell = Callable[[str, int, int], None]
"""Called before each cell with its id, its number and how many there are; at the end with an empty id."""


def run_audit(
    spec: AuditSpec,
    *,
    model: Any = None,
    data: Any = None,
    out: Path | str | None = None,
    on_plan: OnPlan | None = None,
    on_cell: OnCell | None = None,
    on_step: OnStep | None = None,
    on_note: Callable[[str], None] | None = None,
    fresh: bool = False,
) -> AuditLog:
    """Run what is not already in the run's folder and return the log. Ctrl-C leaves what is finished.

    Cells that failed are no results: they are run again.

    on_note: is told in one sentence which finished cells are run again, and why.
    fresh: start anew, whatever is in the folder.
    """
    prepared = prepare(spec, model=model, data=data)
    folder = RunFolder(Path(out) if out is not None else default_folder(prepared))
    folder.claim(fresh=fresh)
    prepared = line_up(prepared, folder, run_cell)
    header = folder.open(make_header(prepared))
    if on_plan is not None:
        on_plan(header)
    planned = header.planned()
    looked_up = {
        cell: kept(folder, cell, header.run_key, made_by(prepared, ref, seed)) for ref, seed, cell in planned
    }
    if on_note is not None and (note := again_in_words(why for _, why in looked_up.values())):
        on_note(note)
    for number, (ref, seed, cell) in enumerate(planned):
        if on_cell is not None:
            on_cell(cell, number, len(planned))
        if looked_up[cell][0] is None:
            with watching(folder.picture_file(f"{cell}.live"), prepared.dataset.spec, on_step):
                complete_cell(folder, prepared, ref, seed)
    if on_cell is not None:
        on_cell("", len(planned), len(planned))
    return AuditLog.read(folder.path)


def complete_cell(folder: RunFolder, prepared: Prepared, ref: AttackRef, seed: int) -> None:
    """Run one cell, from where an interrupted run left its searches, and write it."""
    origin = made_by(prepared, ref, seed)
    partial = PartialStates(folder, cell_id(ref, seed))
    key = f"{prepared.run_key} {origin_key(origin)}"
    with keeping(partial, every=_KEEP_EVERY, key=key) as states:
        cell, scored = run_safely(folder, prepared, ref, seed)
    cell = cell.model_copy(update={"run_key": prepared.run_key, "made_by": origin})
    if cell.cost is not None and states.seconds_resumed:
        seconds = cell.cost.seconds + states.seconds_resumed
        cell = cell.model_copy(update={"cost": cell.cost.model_copy(update={"seconds": seconds})})
    write_result(folder, cell, scored, prepared.dataset.spec)
    partial.remove()


def run_safely(
    folder: RunFolder, prepared: Prepared, ref: AttackRef, seed: int
) -> tuple[Cell, Scored | None]:
    """Like `run_cell`, but an exception that nobody foresaw fails this cell and not the audit.

    Its traceback is kept beside the cell, until a later run has a result.
    """
    kept = folder.cell_file(cell_id(ref, seed), ".traceback.txt")
    try:
        result = run_cell(prepared, ref, seed)
    except Exception as error:
        if out_of_memory(error):
            reason = "there was not enough memory: lower protocol.batch_size or protocol.clients."
        else:
            write_atomically(kept, "".join(traceback.format_exception(error)).encode())
            reason = f"{in_words(error)} The traceback is in {kept.parent.name}/{kept.name}."
        return Cell(attack=ref, seed=seed, status="failed", reason=reason), None
    kept.unlink(missing_ok=True)
    return result


def write_result(folder: RunFolder, cell: Cell, scored: Scored | None, spec: InputSpec) -> None:
    """What `run_cell` returned, with its tensors and its picture."""
    if scored is None:
        folder.write_cell(cell, {}, None)
        return
    arrays = {"truth": scored.truth.numpy(), "reconstruction": scored.matched.numpy()}
    picture = None
    if cell.space == INPUT_SPACE and spec.modality is Modality.IMAGE:
        recovered = [example.recovered for example in cell.examples]
        picture = picture_grid(arrays["truth"], arrays["reconstruction"], recovered, spec.value_range)
    folder.write_cell(cell, arrays, picture)


def default_folder(prepared: Prepared) -> Path:
    """The same spec, model and data lead to the same folder, so that the same command resumes."""
    words = re.findall(r"[a-z0-9]+", audit_title(prepared.spec).lower())
    return Path("seepage-runs") / f"{'-'.join(words)[:40].strip('-')}-{prepared.run_key[:8]}"


def run_cell(prepared: Prepared, ref: AttackRef, seed: int) -> tuple[Cell, Scored | None]:
    """One attack on one seed. What goes wrong here is recorded, and the audit goes on with the rest."""
    attack = prepared.attacks[ref.key]
    batches, public = prepared.draw(seed)
    known = _knowledge(prepared, seed, public, baseline=ref.name == BASELINE)
    aggregation = prepared.spec.protocol.aggregation
    try:
        if why := missing_grants(attack.requires, prepared.threat, aggregation):
            raise NotApplicable(f"it {why}")
        model = prepared.model(seed)
        attack.check(wide_model(model), known)
        torch.manual_seed(prepared.private_seed("local training", seed))  # dropout, for one
        played = play(
            _crafter(attack, known),
            model,
            batches,
            step=client(prepared.local, prepared.defenses(seed)),
            threat=prepared.threat,
            aggregation=aggregation,
            fakes=prepared.spec.protocol.fakes,
            minimum_honest=prepared.spec.protocol.minimum_honest,
            max_rounds=prepared.threat.rounds if attack.active else prepared.spec.protocol.rounds,
            server_lr=prepared.local.lr,
        )
        torch.manual_seed(seed)
        with measure(prepared.device) as cost:
            result = attack.run(played.exchanges, known)
        scored = _score(prepared, played, result, public, seed)
    except NotApplicable as reason:
        return Cell(attack=ref, seed=seed, status="not_applicable", reason=str(reason)), None
    except SeepageError as reason:
        return Cell(attack=ref, seed=seed, status="failed", reason=str(reason)), None
    counts = result.label_counts
    cell = Cell(
        attack=ref,
        seed=seed,
        status="done",
        space=result.space,
        examples=scored.examples,
        columns=scored.columns,
        batch_scores=scored.batch_scores,
        candidates=len(result),
        claims=scored.claims,
        claims_right=scored.claims_right,
        claimed_examples=scored.claimed_examples,
        complete=result.complete,
        label_counts=None if counts is None else tuple(int(c) for c in counts),
        true_label_counts=tuple(int(c) for c in scored.true_label_counts),
        knowledge=_knowledge_in_words(prepared, ref, known),
        notes=(*result.notes, *_promises(prepared, played.rounds)),
        crafted=attack.active,
        cost=Cost(seconds=cost.seconds, rounds=played.rounds, peak_memory_mb=cost.peak_memory_mb),
    )
    return cell, scored


def _knowledge(prepared: Prepared, seed: int, public: Batch | None, *, baseline: bool) -> Knowledge:
    """The baseline may use public examples under every threat model: it measures, it does not attack."""
    public = None if public is None else wide_batch(public)
    spec = prepared.data(seed).spec
    known = knowledge(
        prepared.threat,
        prepared.spec.protocol.aggregation,
        spec=spec,
        loss=prepared.loss,
        local=prepared.local,
        auxiliary=public,
        seed=seed,
    )
    if not baseline:
        return known
    return Knowledge(input=replace(spec, spread=None), loss=prepared.loss, auxiliary=public, seed=seed)


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


def _promises(prepared: Prepared, rounds: int) -> tuple[str, ...]:
    """A server that asks again and again spends more of the budget than the protocol's rounds."""
    records = defense_records(prepared.spec, prepared.local, rounds=rounds)
    return tuple(f"{one.title} after what this attack saw: {one.promise}." for one in records if one.formal)


def _crafter(
    attack: Attack, known: Knowledge
) -> Callable[[torch.nn.Module, Sequence[Exchange]], Crafted | None] | None:
    """A passive attack leaves the server honest."""
    return (lambda model, history: attack.next_model(model, history, known)) if attack.active else None


def _score(
    prepared: Prepared, played: Played, result: Reconstruction, public: Batch | None, seed: int
) -> Scored:
    guesses = PriorOnly().run(played.exchanges, _knowledge(prepared, seed, public, baseline=True))
    return score(
        result,
        played,
        prepared.data(seed).spec,
        guesses=guesses,
        public=public,
        honest=prepared.model(seed),
        tolerance=prepared.spec.exact_tolerance,
    )
