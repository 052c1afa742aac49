"""Honest federated trainings, round by round: what a client that stays sees of a server that plays fair."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from research.guard.honest_models import Setting, examples
from seepage.core.types import Batch, Broadcast, LocalTraining
from seepage.protocol import aggregate, apply_update, client, draw_clients

ROUNDS = 10
_CLIENTS = 4
_EXAMPLES_EACH = 24
_ALPHA = 1.0
"""Dirichlet: the clients' classes differ, so that rounds pull in different directions."""
_INITIALISERS = ("default", "xavier_normal", "gaussian_0.1", "gaussian_0.01")
_STEPS = (1, 4)
"""Local steps, in turn."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """The models that one client received, the oldest first, and its own examples."""

    setting: Setting
    models: tuple[nn.Module, ...]
    own: Batch


def trainings(setting: Setting, *, seed: int) -> list[Training]:
    """Several initialisations, with one local step or with several; runs that diverge are left out."""
    found = [
        federated(setting, initialiser=initialiser, steps=_STEPS[number % len(_STEPS)], seed=seed + number)
        for number, initialiser in enumerate(_INITIALISERS)
    ]
    return [t for t in found if all(bool(torch.isfinite(p).all()) for p in t.models[-1].parameters())]


def federated(setting: Setting, *, initialiser: str, steps: int, seed: int, rounds: int = ROUNDS) -> Training:
    """FedAvg over clients with different classes, all of them in each round."""
    _, pool = examples(setting)
    held = draw_clients(
        pool.labels,
        clients=_CLIENTS,
        examples_each=_EXAMPLES_EACH,
        scheme="dirichlet",
        alpha=_ALPHA,
        seed=seed,
    )
    batches = [pool.select(index) for index in held]
    models = [setting.build(initialiser=initialiser, seed=seed)]
    for number in range(rounds - 1):
        training = LocalTraining(
            algorithm="fedavg",
            batch_size=_EXAMPLES_EACH // 2,
            epochs=steps,
            steps=steps,
            lr=4 * setting.lr,  # without momentum
            shuffle_seed=number,
            batch_norm="train",
            send_buffers=True,
        )
        step = client(training)
        updates = [step(Broadcast(models[-1], number), batch) for batch in batches]
        models.append(apply_update(models[-1], aggregate(updates, "mean"), lr=1.0))
    return Training(setting=setting, models=tuple(m.eval() for m in models), own=batches[0])
