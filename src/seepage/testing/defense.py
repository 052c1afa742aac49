"""`check_defense`: what every defense of this package is held to."""

from __future__ import annotations

from typing import Any

import torch

from seepage.core.registry import Entry
from seepage.core.types import Broadcast, Defense, LocalTraining, Update
from seepage.defenses import DEFENSES, DefenseEntry, Deployment, MeasureEntry
from seepage.defenses.entry import described
from seepage.protocol import client
from seepage.testing.failed import check_settings, copied, in_words, must, same
from seepage.testing.setting import Setting


def check_defense(
    defense: Any, *, model: Any = None, data: Any = None, batch_size: int = 4, **settings: Any
) -> None:
    """Check a defense of your own, for FedSGD and FedAvg.

    What it sends has the names, shapes and types of the update and is finite; the model and the batch stay as
    they are; the same seed gives the same update.

    defense: a function of a broadcast, a batch and the next step, what builds one from `settings`, or a name.
    model, data, batch_size: as in `seepage.audit`; by default a small dense network and random pictures.

    >>> check_defense("clipping", norm=0.1)
    """
    named = isinstance(defense, str)
    with in_words("the defense"):
        entry = DEFENSES.find(defense) if named else described("checked", Entry(where=""), defense)
    must(
        not isinstance(entry, MeasureEntry),
        "this changes the protocol and wraps no client's step: check what it returns by hand.",
    )
    assert isinstance(entry, DefenseEntry)
    if entry.code is None:
        check_settings(entry.build, "the defense")
    setting = Setting.of(model, data, batch_size)
    for algorithm in ("fedsgd", "fedavg"):
        training = LocalTraining(algorithm=algorithm, batch_size=max(1, batch_size // 2), lr=0.1)
        deployment = Deployment(training=training, clients=1, input=setting.dataset.spec)
        _check(entry, settings, training, deployment, setting)


def _check(
    entry: DefenseEntry,
    settings: dict[str, Any],
    training: LocalTraining,
    deployment: Deployment,
    setting: Setting,
) -> None:
    where = f"the defense, with {training.algorithm},"
    model, batch = setting.model, setting.batches[0]
    before, examples = copied(model.state_dict()), batch.clone()
    plain = client(training)(Broadcast(model), batch)
    sent = []
    for _ in range(2):
        with in_words(where):
            built: Defense = entry.build(**entry.bound(seed=1, deployment=deployment), **settings)
            must(
                callable(built),
                f"{where} builds a {type(built).__name__}: return a function of a broadcast, a "
                "batch and the next step.",
            )
            torch.manual_seed(0)
            sent.append(client(training, [built])(Broadcast(model), batch))
    must(
        same(before, dict(model.state_dict())),
        f"{where} changes the received model: work on a copy, for the server's next step starts from it.",
    )
    must(
        torch.equal(batch.inputs, examples.inputs) and torch.equal(batch.labels, examples.labels),
        f"{where} changes the client's batch in place: work on a copy.",
    )
    _check_sent(sent[0], plain, where)
    must(
        same(dict(sent[0].tensors), dict(sent[1].tensors)),
        f"{where} sends another update under the same seed: take a keyword `seed` and draw from a generator "
        "that is seeded with it.",
    )


def _check_sent(sent: Any, plain: Update, where: str) -> None:
    must(isinstance(sent, Update), f"{where} returns a {type(sent).__name__}: return an Update.")
    wrong = sent.tensors.keys() ^ plain.tensors.keys()
    must(
        not wrong,
        f"{where} sends other names than the model's ({', '.join(sorted(wrong))}): send zeros for what is "
        "held back.",
    )
    for name, tensor in plain.tensors.items():
        own = sent.tensors[name]
        must(
            own.shape == tensor.shape and own.dtype is tensor.dtype,
            f"{where} sends '{name}' as {own.dtype} {tuple(own.shape)} where the update has {tensor.dtype} "
            f"{tuple(tensor.shape)}: keep shape and type.",
        )
        must(
            bool(own.isfinite().all()),
            f"{where} sends NaN or infinite values in '{name}': guard divisions by 0.",
        )
        must(
            not own.requires_grad, f"{where} sends '{name}' with its graph, which holds the data: detach it."
        )
    must(sent.kind is plain.kind, f"{where} sends a {sent.kind} where the update is a {plain.kind}: keep it.")
