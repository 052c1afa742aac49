"""The price: how well a model trained under a defense does on examples that no client had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from seepage.core.errors import DataError, SeepageError, SpecError
from seepage.core.types import Batch, Broadcast, LocalStep, Update
from seepage.defenses.canaries import Canaries
from seepage.defenses.empirical import Empirical
from seepage.engine.grid import TrainingSpec
from seepage.engine.planted import Claim, claim_of, contradiction, of_canaries, of_clients, plant
from seepage.engine.planted import scores as canary_scores
from seepage.engine.prepare import Prepared
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
            judge = partial(accuracy, batch=validation)
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
        scores |= {"accuracy": accuracy(model, tested), "tested": float(len(tested)), "rounds": float(taken)}
        scores["chance"] = float(tested.labels.bincount().max()) / len(tested)
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
        return accuracy(model, validation)

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


def accuracy(model: nn.Module, batch: Batch, *, chunk: int = 256) -> float:
    """Share of the examples whose class the model finds; one output means two classes.

    >>> accuracy(nn.Identity(), Batch(torch.eye(3), torch.tensor([0, 1, 0])))  # doctest: +ELLIPSIS
    0.666...
    """
    right = 0
    with torch.no_grad(), training_mode(model, False):
        for part in torch.arange(len(batch)).split(chunk):
            some = batch.select(part.to(batch.labels.device))
            logits = model(some.inputs)
            guess = (logits.flatten() > 0).long() if logits.shape[-1] == 1 else logits.argmax(dim=-1)
            right += int((guess == some.labels).sum())
    return right / len(batch)
