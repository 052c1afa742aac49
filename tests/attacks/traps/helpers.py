"""Small worlds for the trap tests: play one round against made-up clients and keep the truth apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from seepage.attacks.base import Attack
from seepage.core.types import Batch, InputSpec, Knowledge, LocalTraining, Modality, Reconstruction
from seepage.protocol import Played, client, custom_threat, knowledge, play


def image_spec(
    shape: tuple[int, int, int] = (1, 6, 6), *, classes: int = 5, normalised: bool = False
) -> InputSpec:
    channels = shape[0]
    statistics = {"mean": (0.4,) * channels, "std": (0.25,) * channels} if normalised else {}
    return InputSpec(modality=Modality.IMAGE, shape=shape, num_classes=classes, **statistics)


def image_batch(spec: InputSpec, count: int, *, seed: int = 0, sparse: bool = False) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    raw = torch.rand(count, *spec.shape, generator=generator)
    if sparse:
        raw = raw * (torch.rand(raw.shape, generator=generator) < 0.3)
    labels = torch.randint(spec.num_classes, (count,), generator=generator)
    return Batch(spec.to_model(raw), labels)


def dense_net(spec: InputSpec, *hidden: int, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    sizes = [int(torch.tensor(spec.shape).prod()), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for inner, outer in pairwise(sizes):
        layers += [nn.Linear(inner, outer), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], spec.num_classes))


def knowing(
    spec: InputSpec,
    *,
    local: LocalTraining | None = None,
    auxiliary: Batch | None = None,
    loss: str = "cross_entropy",
    deny: Sequence[str] = (),
    seed: int = 0,
) -> Knowledge:
    threat = custom_threat("malicious_server", grant=["auxiliary_data"], deny=deny)
    return knowledge(
        threat,
        "per_client",
        spec=spec,
        loss=loss,
        local=local or LocalTraining(),
        auxiliary=auxiliary,
        seed=seed,
    )


def attack_clients(
    attack: Attack,
    model: nn.Module,
    batches: Sequence[Batch],
    known: Knowledge,
    *,
    threat: str = "malicious_server",
    aggregation: str = "per_client",
) -> tuple[Reconstruction, Played]:
    attack.check(model, known)
    played = play(
        lambda current, history: attack.craft(current, history, known),
        model,
        lambda number: batches,
        step=client(known.local or LocalTraining()),
        threat=custom_threat(threat),
        aggregation=aggregation,
        max_rounds=20,
    )
    return attack.run(played.exchanges, known), played


def found_examples(values: Tensor, truth: Tensor, *, tolerance: float = 1e-4) -> Tensor:
    """(n,) bool: which true examples some candidate equals, by brute force."""
    if not len(values):
        return torch.zeros(len(truth), dtype=torch.bool)
    gaps = (truth.flatten(1).unsqueeze(1) - values.flatten(1).unsqueeze(0)).abs().amax(dim=2)  # (n, k)
    return gaps.amin(dim=1) <= tolerance


def activations(model: nn.Module, layer: str, inputs: Tensor) -> Tensor:
    """(n, N) bool: which neurons of `layer` fire, straight from a forward pass."""
    seen: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_hook(lambda m, a, out: seen.append(out.detach() > 0))
    with torch.no_grad():
        model(inputs)
    handle.remove()
    return seen[0]
