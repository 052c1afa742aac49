"""The sentences that report a peeling and its certificates."""

from __future__ import annotations

import math

import torch

from seepage.attacks.reading.peeling.codes import NumberCode, TokenCode
from seepage.attacks.reading.peeling.loop import Peeling
from seepage.attacks.reading.peeling.outcome import Outcome
from seepage.attacks.reading.scale import counts_several_times, scale_note
from seepage.attacks.reading.unmixing.mixture import ROWS_EACH
from seepage.core.types import Exchange, UpdateKind
from seepage.models.layers import LinearLayer
from seepage.models.precision import Precision

_UNEXPLAINED = (
    "What is left was taken apart, but no label's backward signal, under the loss that was told, explains "
    "any of it: clients may train with another loss (label smoothing, class weights), or combinations of "
    "examples pass for examples, as where an activation is linear at all of them."
)


def describe(
    peeling: Peeling,
    outcome: Outcome,
    exchange: Exchange,
    layer: LinearLayer,
    steps: int | None,
    replayed: float | None = None,
    *,
    by_alphabet: bool = False,
) -> tuple[str, ...]:
    """Plain sentences: what was read, how sure it is, where it stalled and why.

    replayed: as `local_steps.Through` has it; None: nothing was.
    by_alphabet: what was read does not rest on signals, and is described elsewhere.
    """
    what = {"input": "the model's input", "embedding": "token embeddings", "features": "inner features"}
    active, rows = int(peeling.active.sum()), len(peeling.active)
    notes = [
        f"Read from layer '{layer.name}', which sees {what[layer.reads]}; {active} of {rows} rows active."
    ]
    if active == 0:
        return (
            *notes,
            "The layer's gradient is zero everywhere: no neuron was activated, so nothing can be read.",
        )
    if by_alphabet:
        moved = f"The update sums {steps} local steps, between which the weights moved."
        return tuple(notes) if steps in (1, None) else (*notes, moved)
    if replayed is not None:
        notes += _replayed(steps, replayed)
    elif steps not in (1, None):
        return (
            *notes,
            f"The update sums {steps} local steps, between which the weights moved: {len(peeling.first)} "
            "plain readings are given as approximations, none is claimed to be exact.",
        )
    if len(peeling.found) == 0:
        return (*notes, *_nothing(peeling, exchange, layer, rows, steps), *_rounding(peeling, exchange))
    return (
        *notes,
        *_progress(peeling),
        *_certificates(peeling, outcome),
        *scale_note(peeling.scale, peeling.expected, exchange.update),
        *_rest(peeling, outcome, exchange, rows),
        *([] if outcome.complete else (*_tangled(peeling), *_rounding(peeling, exchange))),
    )


def _replayed(steps: int | None, replayed: float) -> list[str]:
    """How the update of several steps became that of one."""
    known = (
        f"The update sums {steps} local steps, between which the weights moved. It was read as one step of "
        "the model halfway, corrected by training on what had been read."
    )
    if replayed <= 1:
        return [known, "The same training on the examples that were found ends where the client's ended."]
    return [known, "Training on what was found does not end where the client's ended: none is claimed."]


def _nothing(
    peeling: Peeling, exchange: Exchange, layer: LinearLayer, rows: int, steps: int | None
) -> list[str]:
    notes = [
        f"Nothing was certified: {len(peeling.first)} readings lie in the value range, but for none of them "
        "does any label's backward signal equal what was received."
    ]
    n = exchange.update.num_examples
    if not layer.followed_by_relu and n != 1:
        notes.append("No ReLU follows this layer, so every example reaches every neuron and none is alone.")
        notes += _tangled(peeling)
    elif n is not None and rows < n:
        notes.append(f"That is because {_narrow(rows, n)}.")
    elif steps is None:
        notes.append("The number of local steps is unknown; after more than one, nothing can be certified.")
    else:
        notes.append(
            "Either no neuron is activated by one example alone, or the update was changed on its way "
            "(noise, pruning, batch statistics), or clients train with another loss than was told (label "
            "smoothing, class weights)."
        )
        notes += _tangled(peeling)
    if spoiled := int(peeling.first.spoiled.sum()):
        notes.append(
            f"{spoiled} of the readings lie on a grid but for a few values, as means of examples that are "
            "nearly alike do."
        )
    if peeling.residual.precision.relative > Precision.of_type(torch.float32).relative:
        digits = round(-math.log2(peeling.residual.precision.relative))
        notes.append(
            f"The update's numbers are rounded to {digits} binary digits, too coarsely to certify what is on "
            "no alphabet."
        )
    return notes


def _tangled(peeling: Peeling) -> list[str]:
    """Why examples without a neuron of their own were not told apart."""
    if not peeling.tangled or peeling.unexplained:
        return [_UNEXPLAINED] if peeling.tangled else []
    if peeling.unmixer is None:
        return [_not_by_next(peeling), *_not_by_signals(peeling)]
    search = peeling.unmixer.search
    if search is None:
        return [
            "What is left could not be unmixed by its column space either: that takes fewer unknown examples "
            f"than the layer reads values, {ROWS_EACH} active neurons for each of them, and no noise beyond "
            "rounding."
        ]
    found, unknown = len(search.ledger), search.mixture.unknown
    if search.alike:
        return [
            f"What is left could not be unmixed: of {unknown} unknown examples the backward signals of "
            f"{found} were told apart; of the others at least two seem to switch the same neurons, so that "
            "only their span can be told."
        ]
    if not search.ledger.left:
        return [
            f"What is left could not be unmixed: {unknown} backward signals were told apart, but they are no "
            "examples together."
        ]
    why = (
        f"the time was up after {search.rounds} round(s): a larger budget may find more"
        if search.expired
        else f"the last of {search.rounds} rounds found nothing new"
    )
    rough = (
        ""
        if not found
        else (
            " Those are known up to a combination of the others: rough pictures of them are given, none is "
            "claimed."
        )
    )
    return [
        f"What is left could not be unmixed: of {unknown} unknown examples the backward signals of {found} "
        f"were told apart, and {why}.{rough}"
    ]


def _not_by_next(peeling: Peeling) -> str:
    """Why the next layer's gradient did not tell examples apart behind an activation that silences nobody."""
    unknown = None if peeling.by_next is None else peeling.by_next.unknown
    if unknown is None:
        return (
            "What is left could not be taken apart by what the next layer reads: that takes fewer unknown "
            "examples than either layer reads values, two neurons for each of them, and no noise beyond "
            "rounding."
        )
    return (
        f"What is left could not be taken apart: no point of the span of the {unknown} unknown examples was "
        "found of which the next layer reads what its gradient holds."
    )


def _not_by_signals(peeling: Peeling) -> list[str]:
    """Why the signals that the network computes did not do it either."""
    if peeling.by_signals is None:
        return []
    if peeling.by_signals.unknown is None:
        return [
            "Nor were backward signals searched for in the layer's own column space: that takes two neurons "
            "for each unknown example, no noise beyond rounding, and a network behind the layer that is "
            "not too large and has second derivatives."
        ]
    return [
        "Nor was any found whose backward signal, as the network computes it for some label, lies in the "
        "layer's own column space; behind piecewise linear activations such points are not searched well."
    ]


def _rounding(peeling: Peeling, exchange: Exchange) -> list[str]:
    """Of weight deltas, where it is what stops the peeling."""
    if exchange.update.kind is not UpdateKind.DELTA or not peeling.noisy:
        return []
    return [
        f"The update is a difference of weights, rounded to their last digit: in {peeling.noisy} of "
        f"{int(peeling.active.sum())} active rows that is more than 1% of the gradient, too much to read. "
        "Smaller weights or a larger learning rate would leave less."
    ]


def _narrow(rows: int, n: int) -> str:
    return f"the layer has fewer neurons ({rows}) than the batch has examples ({n})"


def _progress(peeling: Peeling) -> list[str]:
    found = peeling.found
    plain = int((found.round == 0).sum())
    peeled = len(found) - plain - peeling.unmixed
    notes = [
        f"{plain} example(s) had a neuron of their own; {peeled} more were read from what was left, in "
        f"{peeling.rounds} round(s)."
    ]
    notes += _unmixed(peeling)
    if int(found.exact.sum()):
        if isinstance(peeling.code, NumberCode):
            levels = "/".join(str(level) for level in peeling.code.levels)
            notes.append(
                f"{int(found.exact.sum())} of them lie on a grid of {levels} levels and were rounded to it."
            )
        elif isinstance(peeling.code, TokenCode):
            notes.append(f"{int(found.exact.sum())} of them are exact sequences of the embedding's rows.")
    return notes


def _unmixed(peeling: Peeling) -> list[str]:
    """How those without a neuron of their own were told apart."""
    notes = []
    if by_next := peeling.by_next_layer:
        notes.append(
            f"{by_next} had no neuron of their own: they are the points of the gradient's row space of which "
            "the next layer reads what lies in its own gradient's row space."
        )
    if by_own := peeling.by_own_signals:
        notes.append(
            f"{by_own} had no neuron of their own: they are the points of the gradient's row space whose "
            "backward signal, as the network computes it for some label, lies in its column space."
        )
    if sparse := peeling.unmixed - by_next - by_own:
        followed = 0 if peeling.unmixer is None else peeling.unmixer.followed
        last = f" {followed} of them followed from the others by linear algebra." if followed else ""
        notes.append(
            f"{sparse} had no neuron of their own: they were told apart as the sparsest backward "
            "signals in the gradient's column space whose supports are activation patterns of the network."
            f"{last}"
        )
    if notes:
        notes.append("The certificate below is one for all.")
    return notes


def _certificates(peeling: Peeling, outcome: Outcome) -> list[str]:
    good = outcome.certified
    notes = []
    if bool(good.any()):
        worst = float(peeling.found.mismatch[good].max())
        notes.append(
            f"{int(good.sum())} example(s) are certified: the bias gradient that each must have caused "
            f"differs from the one received by at most {worst:.1e} of its size; taking them away leaves "
            f"{outcome.residual:.1e} of the layer's gradient, and nothing in {outcome.agreement:.1%} of the "
            "rows in which they fire."
        )
    if outcome.contradicted:
        notes.append(
            f"{outcome.contradicted} reading(s) were contradicted by what was read later and are not claimed."
        )
    if outcome.alike:
        notes.append(
            f"{outcome.alike} reading(s) are not claimed: nothing in the update says that each is one "
            "example, so each may be the mean of examples that are nearly alike."
        )
    if outcome.coarse:
        notes.append(
            f"{outcome.coarse} reading(s) are not claimed: the update's numbers are rounded too coarsely to "
            "tell every value to a thousandth of its range."
        )
    if outcome.cut:
        notes.append(
            f"{outcome.cut} reading(s) are not claimed: small numbers of the update were cut to 0, so that "
            "small values may be missing in them."
        )
    return notes


def _number_holds(peeling: Peeling) -> bool:
    """Whether what was read agrees with the number of examples that was declared, or leaves it open."""
    if peeling.scale is None or peeling.expected is None:
        return True
    whole = peeling.scale.num_examples is not None
    return not counts_several_times(peeling.scale, peeling.expected) and not (
        whole and peeling.scale.kappa != peeling.expected
    )


def _rest(peeling: Peeling, outcome: Outcome, exchange: Exchange, rows: int) -> list[str]:
    n = exchange.update.num_examples if _number_holds(peeling) else None
    missing = None if n is None else n - len(peeling.found)
    if outcome.complete:
        notes = ["The layer's gradient is explained completely: nothing else is in it."]
        if missing is not None and missing > 0:
            notes.append(
                f"{missing} further example(s) leave no trace in this layer: they activate none of its "
                "neurons, or the model predicts their label with certainty already."
            )
        return notes
    left = (
        f"{outcome.open_rows} row(s) still hold something: two or more unknown examples each, or noise that "
        "is no rounding"
    )
    if missing == 0:
        return [
            f"All {n} examples were found; {outcome.open_rows} row(s) differ from the model's prediction by "
            "more than rounding."
        ]
    if missing is None:
        return [f"Peeling stalled: {left}."]
    narrow = f"; {_narrow(rows, n)}" if n is not None and rows < n else ""
    return [f"Peeling stalled: {left}; {missing} example(s) are missing{narrow}."]
