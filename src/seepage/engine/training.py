"""The price: how well a model trained under a defense does on examples that no client had."""

from __future__ import annotations

import torch
from torch import nn

from seepage.core.errors import DataError, SeepageError
from seepage.core.types import Batch, Broadcast
from seepage.engine.prepare import Prepared
from seepage.protocol import aggregate, apply_update, client, training_mode
from seepage.protocol.rounds import ClientData
from seepage.record import TRAINING, AttackRef, Cell


def train_cell(prepared: Prepared, seed: int, rounds: int) -> Cell:
    """One training under one point's defenses and one seed; what goes wrong is recorded with its reason."""
    cell = Cell(attack=AttackRef(name=TRAINING), seed=seed, status="done")
    planned = prepared.planned
    sampled = planned.poisson
    batches, held_out = prepared.draw_sampled(seed, planned.sampling_rate) if sampled else prepared.draw(seed)
    try:
        if held_out is None or len(held_out) < prepared.spec.public_examples:
            raise DataError(
                f"only {0 if held_out is None else len(held_out)} examples are left for testing, "
                f"not {prepared.spec.public_examples}: lower training.test_examples, clients or examples."
            )
        model = train(prepared, batches, seed=seed, rounds=rounds)
        reached = accuracy(model, held_out)
    except SeepageError as reason:
        return cell.model_copy(update={"status": "failed", "reason": str(reason)})
    finite = all(bool(p.isfinite().all()) for p in model.parameters())
    return cell.model_copy(
        update={
            "batch_scores": {"accuracy": reached, "tested": float(len(held_out))},
            "reason": "" if finite else "the training diverged: weights are no longer finite.",
        }
    )


def train(prepared: Prepared, batches: ClientData, *, seed: int, rounds: int) -> nn.Module:
    """The model after `rounds` rounds with an honest server.

    As `protocol.play` does it, but without its record of every round's model and updates, which would
    fill the memory in a longer training.
    """
    model = prepared.model(seed)
    torch.manual_seed(prepared.private_seed("training", seed))  # dropout: the same, whatever ran before
    step = client(prepared.local, prepared.defenses(seed))
    aggregation = prepared.spec.protocol.aggregation
    rule = "mean" if aggregation == "per_client" else aggregation
    for number in range(rounds):
        sent, held = Broadcast(model, number), batches(number)
        updates = (step(sent, batch) for batch in held)
        # How many a Poisson sample holds is nobody's business: all weigh the same.
        sizes = [None if prepared.planned.poisson else len(batch) for batch in held]
        mean = aggregate(updates, rule, sizes=sizes)
        model = apply_update(model, mean, lr=prepared.local.lr)
    return model


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
