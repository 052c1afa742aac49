"""The certificates of a peeling, and the sentences that report them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.parts.layers import LinearLayer
from seepage.attacks.parts.peeling.codes import NumberCode, TokenCode
from seepage.attacks.parts.peeling.loop import NOISE, Peeling
from seepage.attacks.parts.peeling.sparse import MOST_UNKNOWN
from seepage.types import Exchange, UpdateKind

_STILL_EXPLAINED = 2e-3
"""Share of its contribution that may be left at an example's own row: beyond, the reading is contradicted."""

_MOST_CONTRADICTED = 0.25
"""Share of the readings on no alphabet that may be contradicted: where more are, what was taken away was not
there, and what was read afterwards from the rest is worth nothing."""


@dataclass(frozen=True)
class Outcome:
    """What the residual says after the last round."""

    certified: Tensor
    """(k,) bool: found examples that nothing contradicts."""
    complete: bool
    """No active row holds anything beyond rounding."""
    open_rows: int
    """Active rows that still hold something."""
    residual: float
    """Norm of the layer's residual over that of its gradient."""
    agreement: float
    """Share of the rows in which certified examples fire that are explained."""

    @staticmethod
    def of(peeling: Peeling) -> Outcome:
        rows, found = peeling.remaining(), peeling.found
        nothing = torch.zeros(len(found), dtype=torch.bool, device=found.row.device)
        if rows is None:
            return Outcome(nothing, complete=False, open_rows=0, residual=0.0, agreement=0.0)
        explained = (rows.norm <= NOISE * rows.weight_noise) & (rows.bias.abs() <= NOISE * rows.noise)
        norm = torch.zeros_like(peeling.residual.norm)
        clear = torch.zeros_like(peeling.active)
        norm[rows.index], clear[rows.index] = rows.norm, explained
        own = found.signals.gather(1, found.row.unsqueeze(1)).squeeze(1).abs() * found.features.norm(dim=1)
        certified = clear[found.row] | (norm[found.row] <= _STILL_EXPLAINED * own)
        doubtful = ~found.exact
        if int((doubtful & ~certified).sum()) > _MOST_CONTRADICTED * int(doubtful.sum()):
            certified = certified & found.exact
        total = (peeling.residual.norm * abs(peeling.residual.factor)).double().norm()
        fires = (found.signals != 0).any(0)
        return Outcome(
            certified,
            complete=bool(explained.all()) and bool(certified.all()) and len(found) > 0,
            open_rows=int((~explained).sum()),
            residual=float(norm.double().norm() / total),
            agreement=float(clear[fires].double().mean()) if bool(fires.any()) else 0.0,
        )


def describe(
    peeling: Peeling, outcome: Outcome, exchange: Exchange, layer: LinearLayer, steps: int | None
) -> tuple[str, ...]:
    """Plain sentences: what was read, how sure it is, where it stalled and why."""
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
    if steps not in (1, None):
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
        *_scale(peeling, exchange),
        *_rest(peeling, outcome, exchange, rows),
        *([] if outcome.complete else (*_tangled(peeling), *_rounding(peeling, exchange))),
    )


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
    elif n is not None and rows < n:
        notes.append(f"That is because {_narrow(rows, n)}.")
    elif steps is None:
        notes.append("The number of local steps is unknown; after more than one, nothing can be certified.")
    else:
        notes.append(
            "Either no neuron is activated by one example alone, or the update was changed on its way "
            "(noise, pruning, batch statistics)."
        )
        notes += _tangled(peeling)
    return notes


def _tangled(peeling: Peeling) -> list[str]:
    """Why examples without a neuron of their own were not told apart."""
    if not peeling.tangled:
        return []
    return [
        "What is left could not be unmixed by its column space either: that takes at most "
        f"{MOST_UNKNOWN} unknown examples, fewer than the layer reads values and half as many as it has "
        "active neurons, and signals of which many are zero."
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
    notes = [
        f"{plain} example(s) had a neuron of their own; {len(found) - plain} more were read from what was "
        f"left, in {peeling.rounds} round(s)."
    ]
    if peeling.unmixed:
        notes.append(
            "Some had no neuron of their own: they were told apart as the sparsest backward signals in the "
            "gradient's column space."
        )
    if int(found.exact.sum()):
        if isinstance(peeling.code, NumberCode):
            levels = "/".join(str(level) for level in peeling.code.levels)
            notes.append(
                f"{int(found.exact.sum())} of them lie on a grid of {levels} levels and were rounded to it."
            )
        elif isinstance(peeling.code, TokenCode):
            notes.append(f"{int(found.exact.sum())} of them are exact sequences of the embedding's rows.")
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
    if not bool(good.all()):
        notes.append(
            f"{int((~good).sum())} reading(s) were contradicted by what was read later and are not claimed."
        )
    return notes


def _scale(peeling: Peeling, exchange: Exchange) -> list[str]:
    scale, n = peeling.scale, exchange.update.num_examples
    if scale is None:
        return []
    if n is None:
        if scale.num_examples is not None and exchange.update.kind is UpdateKind.GRADIENT:
            return [f"The number of examples was inferred to be {scale.num_examples}."]
        return [f"The update is the sum over examples divided by {scale.kappa:.6g}."]
    if peeling.expected is not None and scale.kappa != peeling.expected:
        return [f"The update was scaled down as a whole, by {peeling.expected / scale.kappa:.6g} (clipping)."]
    return []


def _rest(peeling: Peeling, outcome: Outcome, exchange: Exchange, rows: int) -> list[str]:
    n = exchange.update.num_examples
    missing = None if n is None else n - len(peeling.found)
    if outcome.complete:
        notes = ["The layer's gradient is explained completely: nothing else is in it."]
        if missing:
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
