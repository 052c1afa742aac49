"""A small world for the fishing tests: a client that counts its queries, and the truth kept apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from seepage.attacks.fishing.catch import Catch, Fished
from seepage.attacks.fishing.shared import Fishing
from seepage.core.types import Batch, Broadcast, InputSpec, Knowledge, LocalTraining, Modality
from seepage.protocol import THREATS, Played, client, knowledge, local_update, play

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=10)


def dense_net(*, seed: int = 0, bias: bool = True, classes: int = 10) -> nn.Sequential:
    torch.manual_seed(seed)
    return _spread(
        nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 48),
            nn.ReLU(),
            nn.Linear(48, 32),
            nn.ReLU(),
            nn.Linear(32, classes, bias=bias),
        ),
        3,
    )


def _spread(model: nn.Sequential, layer: int) -> nn.Sequential:
    """Features as far apart as a trained network's; those of an untrained one hardly depend on the image."""
    with torch.no_grad():
        for parameter in model[layer].parameters():
            parameter.mul_(20.0)
    return model


def conv_net(*, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return _spread(
        nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 24, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(24, 10),
        ),
        3,
    )


def images(count: int, *, seed: int = 0, labels: Sequence[int] | int | None = 0) -> Batch:
    """Random images of one class, of the classes given, or (None) of random ones."""
    generator = torch.Generator().manual_seed(seed)
    # every image at its own brightness, so that features are spread
    brightness = 0.3 + 0.7 * torch.rand(count, 1, 1, 1, generator=generator)
    values = brightness * torch.rand(count, 1, 8, 8, generator=generator)
    if labels is None:
        return Batch(values, torch.randint(10, (count,), generator=generator))
    return Batch(values, torch.tensor([labels] * count if isinstance(labels, int) else list(labels)))


def known_to(
    *,
    local: LocalTraining | None = None,
    auxiliary: Batch | None = None,
    seed: int = 0,
    aggregation: str = "per_client",
) -> Knowledge:
    known = knowledge(
        THREATS["malicious_server"],
        aggregation,
        spec=SPEC,
        loss="cross_entropy",
        local=local or LocalTraining(),
        auxiliary=None,
        seed=seed,
    )
    return Knowledge(
        input=known.input, loss=known.loss, local=known.local, auxiliary=auxiliary, seed=known.seed
    )


def fish(
    attack: Fishing,
    model: nn.Module,
    batches: Sequence[Batch] | Sequence[Sequence[Batch]],
    known: Knowledge,
    *,
    aggregation: str = "per_client",
    max_rounds: int = 3000,
) -> tuple[Catch, Played]:
    """Play until the attack wants no more. A list of lists: each round has its own batches."""
    secure = aggregation == "secure_sum"
    rounds = batches if isinstance(batches[0], list) else [batches]
    attack.check(model, known)
    played = play(
        lambda current, history: attack.craft(current, history, known),
        model,
        lambda number: rounds[number % len(rounds)],  # type: ignore[return-value]
        step=client(known.local or LocalTraining()),
        threat=THREATS["malicious_server_secure_aggregation" if secure else "malicious_server"],
        aggregation=aggregation,
        max_rounds=max_rounds,
    )
    return attack.fish(played.exchanges, known), played


def cosine(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> float:
    a = torch.cat([one[name].flatten().double() for name in two])
    b = torch.cat([two[name].flatten().double() for name in two])
    return float(a @ b / (a.norm() * b.norm()))


def lowest_cosine(fished: Fished, batch: Batch) -> float:
    """Of all layers one by one, with the gradient of the batch under the model that the fished one is of."""
    truth = local_update(Broadcast(fished.model), batch, LocalTraining()).tensors
    return min(cosine({name: fished.tensors[name]}, {name: value}) for name, value in truth.items())


def true_gradients(fished: Fished, batch: Batch) -> list[Mapping[str, Tensor]]:
    """Each example's own gradient under the model and the label that the fished gradient belongs to."""
    label = torch.tensor([fished.label])
    return [
        local_update(Broadcast(fished.model), Batch(batch.inputs[i : i + 1], label), LocalTraining()).tensors
        for i in range(len(batch))
    ]


def nearest(fished: Fished, batch: Batch) -> tuple[int, float]:
    """The example that a fished gradient is nearest to, and the cosine."""
    return all_nearest([fished], batch)[0]


def all_nearest(fished: Sequence[Fished], batch: Batch) -> list[tuple[int, float]]:
    """The same for several that belong to one model and label."""
    if not fished:
        return []
    assert all(f.model is fished[0].model and f.label == fished[0].label for f in fished)
    names = list(fished[0].tensors)

    def rows(gradients: Sequence[Mapping[str, Tensor]]) -> Tensor:
        flat = [torch.cat([g[name].flatten() for name in names]).double() for g in gradients]
        return nn.functional.normalize(torch.stack(flat), dim=1)

    best = (rows([f.tensors for f in fished]) @ rows(true_gradients(fished[0], batch)).T).max(dim=1)
    return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
