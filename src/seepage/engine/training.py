"""The price: how well a model trained under a defense does on examples that no client had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from seepage.core.errors import DataError, SeepageError, SpecError
from seepage.core.types import Batch, Broadcast, LocalStep, Update
from seepage.defenses.canaries import Canaries
from seepage.defenses.empirical import Empirical
from seepage.engine.grid import TrainingSpec
from seepage.engine.planted import Claim, claim_of, contradiction, of_canaries, of_clients, plant
from seepage.engine.planted import scores as canary_scores
from seepage.engine.prepared import Prepared
from seepage.engine.tuning import TRIAL, Plateau, best_rate
from seepage.protocol import aggregate, apply_update, client, training_mode
from seepage.protocol.rounds import ClientData
from seepage.record import TRAINING, AttackRef, Cell


def train_cell(prepared: Prepared, seed: int, rounds: int, training: TrainingSpec | None = None) -> Cell:
    """One training under one point's defenses and one seed; what goes wrong is recorded with its reason.

    training: how it is tuned, and how many canaries it has; None: not at all, and none.
    """
    cell = Cell(attack=AttackRef(name=TRAINING), seed=seed, status="done")
    planned, wanted = prepared.planned, training or TrainingSpec()
    batches, held_out = (
        prepared.draw_sampled(seed, planned.sampling_rate) if planned.poisson else prepared.draw(seed)
    )
    try:
        if held_out is None or len(held_out) < prepared.spec.public_examples:
            raise DataError(
                f"only {0 if held_out is None else len(held_out)} examples are left for testing, "
                f"not {prepared.spec.public_examples}: lower training.test_examples, clients or examples."
            )
        tested = held_out.select(slice(wanted.validated, None))
        plateau, scores = None, {}
        if wanted.tuned:
            validation = held_out.select(slice(wanted.validated))
            prepared = _at_its_rate(prepared, batches, validation, seed=seed, rounds=rounds)
            judge = partial(accuracy, batch=validation, loss=prepared.loss)
            plateau = Plateau(judge, examples=len(validation), rounds=rounds)
            scores["lr"] = prepared.local.lr
        promise = _Promise.of(prepared, batches, seed, wanted.canaries)
        held_back = HeldBack()
        model, taken = train(
            prepared,
            batches,
            seed=seed,
            rounds=rounds,
            canaries=promise.canaries,
            enough=plateau,
            held_back=held_back,
        )
        scores |= {
            "accuracy": accuracy(model, tested, loss=prepared.loss),
            "tested": float(len(tested)),
            "rounds": float(taken),
        }
        scores["chance"] = _chance(tested, prepared.loss)
        if held_back.share > 0:
            scores["held_back"] = held_back.share
        if plateau is not None:
            scores["plateau"] = float(plateau.reached)
        found, broken = promise.kept(model)
    except SeepageError as reason:
        return cell.model_copy(update={"status": "failed", "reason": str(reason)})
    finite = all(bool(p.isfinite().all()) for p in model.parameters())
    diverged = "" if finite else "the training diverged: weights are no longer finite."
    return cell.model_copy(update={"batch_scores": {**scores, **found}, "reason": diverged or broken})


def _at_its_rate(
    prepared: Prepared, batches: ClientData, validation: Batch, *, seed: int, rounds: int
) -> Prepared:
    """With the learning rate that does best under this point's defenses, in short trainings."""

    def at(rate: float) -> Prepared:
        return replace(prepared, local=replace(prepared.local, lr=rate))

    def reached(rate: float) -> float:
        model, _ = train(at(rate), batches, seed=seed, rounds=max(1, round(TRIAL * rounds)))
        return accuracy(model, validation, loss=prepared.loss)

    return at(best_rate(reached, prepared.local.lr))


@dataclass
class HeldBack:
    """Examples that clients drew for a round, and those of them that their updates name."""

    drawn: int = 0
    named: int = 0

    def count(self, batch: Batch, update: Update) -> None:
        self.drawn += len(batch)
        self.named += len(batch) if update.num_examples is None else min(len(batch), update.num_examples)

    @property
    def share(self) -> float:
        return 1 - self.named / max(1, self.drawn)


@dataclass(frozen=True, kw_only=True)
class _Promise:
    """What a training claims, and the canaries that it is held against."""

    prepared: Prepared
    claim: Claim | None
    canaries: Canaries | None = None
    found: Empirical | None = None

    @classmethod
    def of(cls, prepared: Prepared, batches: ClientData, seed: int, count: int) -> _Promise:
        claim = claim_of(prepared)
        if claim is None or count == 0:
            return cls(prepared=prepared, claim=claim)
        model = prepared.model(seed)
        try:
            canaries = plant(prepared, claim, seed, model, count)
        except ValueError as error:
            raise SpecError(f"training.canaries: {error}.") from None
        found = of_clients(prepared, claim, seed, model, batches(0)[0], count)
        return cls(prepared=prepared, claim=claim, canaries=canaries, found=found)

    def kept(self, model: nn.Module) -> tuple[dict[str, float], str]:
        """What the record of the training says of it, and a sentence where it is contradicted."""
        if self.claim is None:
            return {}, ""
        stated = {"epsilon": self.claim.record.epsilon or 0.0}
        found = self.found
        if self.canaries is not None:
            found = of_canaries(self.canaries, self.prepared.spec.delta)
        if found is None:
            return stated, ""
        return {**stated, **canary_scores(found, self.claim)}, contradiction(found, self.claim)


def train(
    prepared: Prepared,
    batches: ClientData,
    *,
    seed: int,
    rounds: int,
    canaries: Canaries | None = None,
    enough: Plateau | None = None,
    held_back: HeldBack | None = None,
) -> tuple[nn.Module, int]:
    """The model after `rounds` rounds with an honest server, or after `enough` of them; how many they were.

    held_back: is told of every update.

    As `protocol.play` does it, but without its record of every round's model and updates, which would
    fill the memory in a longer training.
    """
    model = prepared.model(seed)
    torch.manual_seed(prepared.private_seed("training", seed))  # dropout: the same, whatever ran before
    step = client(prepared.local, prepared.defenses(seed, canaries))
    aggregation = prepared.spec.protocol.aggregation
    rule = "mean" if aggregation == "per_client" else aggregation
    for number in range(rounds):
        sent, held = Broadcast(model, number), batches(number)
        # How many a Poisson sample holds is nobody's business: all weigh the same.
        sizes = [None if prepared.planned.poisson else len(batch) for batch in held]
        mean = aggregate(_sent(step, sent, held, canaries, held_back or HeldBack()), rule, sizes=sizes)
        model = apply_update(model, mean, lr=prepared.local.lr)
        if enough is not None and enough(model, number + 1):
            return model, number + 1
    return model, rounds


def _sent(
    step: LocalStep,
    sent: Broadcast,
    held: Sequence[Batch],
    canaries: Canaries | None,
    held_back: HeldBack,
) -> Iterator[Update]:
    for number, batch in enumerate(held):
        if canaries is not None:
            canaries.active = number == 0
        update = step(sent, batch)
        held_back.count(batch, update)
        yield update


def accuracy(model: nn.Module, batch: Batch, *, loss: str = "auto", chunk: int = 256) -> float:
    """Share of the examples whose class the model finds; one output means two classes.

    Of flags (the loss `multi_label`) the share that it has right; of the numbers of a regression the share of
    their variance that it explains, 0 at least.

    >>> accuracy(nn.Identity(), Batch(torch.eye(3), torch.tensor([0, 1, 0])))  # doctest: +ELLIPSIS
    0.666...
    >>> accuracy(nn.Identity(), Batch(torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [4.0]])))
    0.777...
    """
    with torch.no_grad(), training_mode(model, False):
        parts = torch.arange(len(batch), device=batch.labels.device).split(chunk)
        outputs = torch.cat([model(batch.inputs[part]) for part in parts])
    if batch.labels.is_floating_point():
        return _agreement(outputs, batch.labels, flags=loss == "multi_label")
    guess = (outputs.flatten() > 0).long() if outputs.shape[-1] == 1 else outputs.argmax(dim=-1)
    return float((guess == batch.labels).double().mean())


def _agreement(outputs: Tensor, numbers: Tensor, *, flags: bool) -> float:
    if flags:
        return float(((outputs > 0) == (numbers > 0.5)).double().mean())
    missed = (outputs.double() - numbers.double()).square().sum()
    spread = (numbers.double() - numbers.double().mean(dim=0)).square().sum()
    return max(0.0, 1.0 - float(missed / spread)) if float(spread) > 0 else 0.0


def _chance(batch: Batch, loss: str) -> float:
    """What whoever does not look at the inputs reaches."""
    if not batch.labels.is_floating_point():
        return float(batch.labels.bincount().max()) / len(batch)
    share = batch.labels.double().mean(dim=0)
    return float(torch.maximum(share, 1 - share).mean()) if loss == "multi_label" else 0.0
