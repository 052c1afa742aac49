"""How many examples of each class an update was made from, read from the last layer of a classifier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.core.errors import DataError, NotApplicable
from seepage.core.registry import lookup
from seepage.core.types import Exchange, Knowledge, UpdateKind
from seepage.labels.doubt import largest_movement
from seepage.labels.evidence import gather_evidence
from seepage.labels.gradient import (
    MEAN_LOSSES,
    SUM_LOSSES,
    Evidence,
    Gradient,
    mean_gradient,
    step_sizes,
)
from seepage.labels.methods import (
    Guess,
    bias_counts,
    idlg,
    llg,
    round_counts,
)
from seepage.labels.signs import mini_batch_counts, sign_counts
from seepage.labels.steps import CONSISTENT, settle_counts
from seepage.protocol.optimising import rates
from seepage.protocol.plainly import plainly

ERROR_SCALES = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
"""Errors of the probed mean prediction that the search for the number of examples reckons with. Tested:
test_constants_of_labels_lie_on_a_plateau."""
SHORTLIST = 5
"""Numbers of examples that are refined before the final choice. Cost: each takes one refinement."""


@dataclass(frozen=True, kw_only=True)
class LabelEstimate:
    """The inferred labels of one exchange."""

    counts: Tensor
    """(C,) int64, summing to `num_examples`."""
    num_examples: int
    method: str
    residual: float
    """Largest distance of an unrounded count from the count given: 0 is certain, 0.5 and more a guess."""
    notes: tuple[str, ...] = ()
    certain: bool
    """The update proves these counts, whatever the clients' examples look like; after several local steps, a
    replay of them does."""


def _llg_model(evidence: Evidence, gradient: Gradient) -> Guess:
    return llg(evidence, gradient, use_model=True)


LABEL_METHODS: dict[str, Callable[[Evidence, Gradient], Guess]] = {
    "idlg": idlg,
    "llg": llg,
    "llg_model": _llg_model,
    "bias_counts": bias_counts,
}
"""llg_model is LLG* without auxiliary data and LLG+ with them."""


def infer_label_counts(
    exchange: Exchange, known: Knowledge, *, method: str = "auto", max_examples: int = 256
) -> LabelEstimate:
    """Number of examples of each class behind `exchange`, without any look at the examples.

    auto: labels the threat model grants; else iDLG for one example, else `bias_counts` (which projects
    the weight gradient on the mean feature where the layer has no bias). After several local steps that is
    where replays of local training begin (`settle_counts`): on stand-ins, then on fitted examples.
    Where the update does not say how many examples it was made from, 1..`max_examples` are searched
    (`_search_num_examples`).

    >>> from seepage.core.types import Broadcast, InputSpec, Modality, Update
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Sigmoid(), torch.nn.Linear(8, 3))
    >>> labels = torch.tensor([2, 2, 0, 2])
    >>> torch.nn.functional.cross_entropy(model(torch.rand(4, 6)), labels).backward()
    >>> gradient = {name: p.grad for name, p in model.named_parameters()}
    >>> update = Update(kind=UpdateKind.GRADIENT, tensors=gradient, num_examples=4)
    >>> exchange = Exchange(broadcast=Broadcast(model), update=update, clients=(0,))
    >>> known = Knowledge(input=InputSpec(modality=Modality.TABULAR, shape=(6,), num_classes=3))
    >>> infer_label_counts(exchange, known).counts
    tensor([1, 0, 3])
    """
    if method != "auto":
        lookup(LABEL_METHODS, method, "label method")
    elif exchange.labels is not None:
        return _given(exchange.labels, known.input.num_classes)
    if known.loss not in MEAN_LOSSES | SUM_LOSSES:
        raise NotApplicable(
            f"Labels cannot be read from gradients of the loss '{known.loss}': that needs one of "
            f"{', '.join(sorted(MEAN_LOSSES | SUM_LOSSES))}."
        )
    if known.local is not None and not known.local.plain and exchange.update.kind is UpdateKind.DELTA:
        try:
            (exchange,), known, _ = plainly([exchange], known)
        except NotApplicable:
            return _otherwise(exchange, known, method)
    n = exchange.update.num_examples
    evidence = gather_evidence(exchange, known, by_signs=n == 1 and method in ("auto", "idlg"))
    notes = list(evidence.notes)
    if n is None:
        n = _search_num_examples(evidence, exchange, known, max_examples=max_examples)
        notes.append(f"The number of examples was not sent; {n} fits the gradient best.")
    elif n < 1:
        raise DataError(f"The update says it was made from {n} examples: it needs at least one.")
    gradient = mean_gradient(evidence, exchange, known, n)
    name = ("idlg" if gradient.num_examples == 1 else "bias_counts") if method == "auto" else method
    guess = LABEL_METHODS[name](evidence, gradient)
    counts = round_counts(guess.counts, gradient.num_examples)
    residual = float((guess.counts - counts).abs().max())
    notes += _protocol_notes(exchange, known, n, gradient)
    estimate = LabelEstimate(
        counts=counts,
        num_examples=gradient.num_examples,
        method=name,
        residual=residual,
        notes=tuple(notes),
        certain=False,
    )
    if method == "auto" and gradient.num_examples > 1 and _several_steps(exchange, known, n):
        return _replayed(estimate, evidence, exchange, known)
    doubt = _doubt(name, exchange, known, n, gradient, counts, residual)
    if doubt:
        return replace(estimate, notes=(*notes, f"The label counts are uncertain: {doubt}."))
    return replace(estimate, certain=True)


def _otherwise(exchange: Exchange, known: Knowledge, method: str) -> LabelEstimate:
    """After steps that cannot be read as plain SGD's. Nothing here is proven, but for a single example.

    SGD whose rate falls adds up gradients as one at the mean rate does. Clipping hides the scale too, and
    Adam leaves signs.
    """
    local, examples = known.local, exchange.update.num_examples
    assert local is not None
    if examples is None or len(exchange.clients) > 1:
        raise NotApplicable(
            "Label counts after steps that are no plain SGD's are read for one client that sends how many "
            "examples it has: grant `labels`."
        )
    steps = -(-local.num_steps(examples) // local.accumulation)
    way = sum(rates(local, steps))
    if local.optimizer == "sgd" and local.clip_norm is None and local.accumulation == 1:
        alike = replace(known, local=replace(local, schedule="constant", lr=way / steps))
        found = infer_label_counts(exchange, alike, method=method)
        note = "The label counts are uncertain: the rate falls, and was taken to be the mean one throughout."
        return replace(found, certain=False, notes=(*found.notes, note))
    evidence = gather_evidence(exchange, replace(known, local=None))
    if examples == 1 and evidence.bias is not None:
        return _one_label_by_sign(evidence.bias)
    batch = (local.batch_size or examples) * local.accumulation
    if local.optimizer == "sgd" or batch >= examples:
        exact = sign_counts(evidence, examples)
    else:
        exact = mini_batch_counts(evidence, examples, batch=batch, way=way)
    counts = round_counts(exact, examples)
    note = "The label counts are uncertain: they were read from the signs of what the last layer learnt."
    return LabelEstimate(
        counts=counts,
        num_examples=examples,
        method="signs",
        residual=float((exact - counts).abs().max()),
        notes=(*evidence.notes, note),
        certain=False,
    )


def _one_label_by_sign(rise: Tensor) -> LabelEstimate:
    """The label of a single example: its output's bias alone rises.

    The gradient of that bias is p - y, negative at the own class only (Zhao et al. 2020, eq. 4). Adam keeps
    signs; weight decay and momentum may turn small ones, hence the largest counts.
    """
    counts = torch.zeros(len(rise), dtype=torch.long)
    counts[int(rise.argmax())] = 1
    certain = int((rise > 0).sum()) == 1
    doubt = () if certain else ("The label is uncertain: more than one output's bias rose.",)
    return LabelEstimate(
        counts=counts, num_examples=1, method="sign", residual=0.0, notes=doubt, certain=certain
    )


def _several_steps(exchange: Exchange, known: Knowledge, n: int) -> bool:
    if exchange.update.kind is UpdateKind.GRADIENT or known.local is None:
        return False
    return known.local.num_steps(max(1, round(n / max(1, len(exchange.clients))))) > 1


def _doubt(
    method: str,
    exchange: Exchange,
    known: Knowledge,
    n: int,
    gradient: Gradient,
    counts: Tensor,
    residual: float,
) -> str:
    """Why the counts are not proven; empty where they are."""
    if exchange.update.num_examples is None:
        return "how many examples there are was inferred too"
    if method == "idlg":
        if gradient.bias is not None or len(counts) > 2:
            return ""  # one example's p - y is negative, and largest, for its own class only
        return "the last layer has no bias, so the sign of its two rows rests on the probes"
    if method != "bias_counts":
        return f"'{method}' counts by a rule of thumb"
    moved = max(residual, largest_movement(exchange, known, n, counts))
    if moved <= CONSISTENT:
        return ""
    return (
        f"they change by up to {moved:.1f} of {gradient.num_examples} examples with what the clients' "
        "examples are taken to look like"
    )


def _replayed(
    estimate: LabelEstimate, evidence: Evidence, exchange: Exchange, known: Knowledge
) -> LabelEstimate:
    """The estimate after several local steps, corrected by a replay of them and marked as certain or not."""
    settled = settle_counts(exchange, known, evidence, estimate.counts)
    if isinstance(settled, str):
        note = f"The label counts are uncertain: local training took several steps, and {settled}."
        return replace(estimate, certain=False, notes=(*estimate.notes, note))
    return replace(
        estimate,
        counts=settled.counts,
        method=settled.method,
        residual=settled.residual,
        notes=estimate.notes if settled.note is None else (*estimate.notes, settled.note),
        certain=settled.certain,
    )


def _given(labels: Tensor, num_classes: int) -> LabelEstimate:
    flat = labels.detach().flatten().long()
    if flat.numel() == 0 or int(flat.min()) < 0 or int(flat.max()) >= num_classes:
        raise DataError(
            f"The granted labels are empty or outside 0..{num_classes - 1}: give one class index per example."
        )
    counts = torch.bincount(flat, minlength=num_classes)
    return LabelEstimate(counts=counts, num_examples=len(flat), method="given", residual=0.0, certain=True)


def _protocol_notes(exchange: Exchange, known: Knowledge, n: int, gradient: Gradient) -> list[str]:
    notes = []
    if gradient.bias is None and gradient.num_examples > 1:
        notes.append("The last layer has no bias, so counts rest on the probes' mean feature: less sure.")
    several = len(exchange.clients) > 1
    if several:
        notes.append(f"Counts are those of {len(exchange.clients)} clients together.")
    if several and (known.loss in SUM_LOSSES or exchange.update.kind is UpdateKind.DELTA):
        notes.append("Clients were taken to hold equally many examples.")
    if exchange.update.kind is UpdateKind.GRADIENT:
        return notes
    if known.local is None:
        notes.append("The learning rate is unknown; the scale was fixed from classes that must be absent.")
        return notes
    if gradient.num_examples < n:
        notes.append(f"Local training saw {gradient.num_examples} of {n} examples; only those are counted.")
    sizes = step_sizes(known.local, max(1, round(n / max(1, len(exchange.clients)))))
    uneven = len(set(sizes)) > 1 and known.loss not in SUM_LOSSES
    if uneven or (known.local.momentum and known.local.batch_size and known.local.batch_size < n):
        notes.append(
            "Mini-batches enter the delta with unequal weight (momentum or a smaller last one), so counts "
            "are weighted by when an example was seen."
        )
    return notes


def _search_num_examples(
    evidence: Evidence, exchange: Exchange, known: Knowledge, *, max_examples: int
) -> int:
    """The n for which n (mean_p - grad_b) is most likely a vector of counts.

    An error e of mean_p moves the counts by n e, so distances to integers are normal with deviation n e
    (summed over a few e, as e is unknown). Larger n spread wider and pay for it: of n and 2 n, which fit
    equally well, n wins. The best few by the probes alone are refined before the final choice.
    """
    mean_p = evidence.mean_prediction()
    rough: dict[int, float] = {}
    for n in range(1, max_examples + 1):
        gradient = mean_gradient(evidence, exchange, known, n)
        if gradient.bias is None:
            raise NotApplicable(
                "The number of examples was not sent and the last layer has no bias to infer it from: grant "
                "`batch_size`."
            )
        rough[n] = _log_likelihood(n * (mean_p - gradient.bias), n)
    best = sorted(rough, key=lambda n: -rough[n])[:SHORTLIST]

    def refined(n: int) -> float:
        gradient = mean_gradient(evidence, exchange, known, n)
        return max(rough[n], _log_likelihood(bias_counts(evidence, gradient).counts, n))

    return max(best, key=refined)


def _log_likelihood(counts: Tensor, n: int) -> float:
    """Of real-valued counts, given that the true ones are non-negative integers."""
    distance = counts - counts.round().clamp(min=0)
    deviation = n * torch.tensor(ERROR_SCALES).to(counts)
    squared = (distance[:, None] / deviation).square()
    # capped: beyond half a count every count is near some integer, and n stops being told apart
    per_scale = (-squared / 2 - deviation.clamp(max=0.5).log()).sum(0)
    return float(per_scale.logsumexp(0))
