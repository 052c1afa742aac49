"""What the tables on fishing share: the trained network and its features, playing the protocol, scores.

Fishing changes nothing but the classification layer, so an example's features are the same in every query.
They are computed once; a client that trains the classification layer on them sends exactly the gradient of
that layer which it would send with the whole network, and the attacks run on it as they are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seepage.attacks.fishing import Fishing
from seepage.attacks.parts.fishing.catch import Fished
from seepage.attacks.parts.fishing.head import find_head, head_features
from seepage.errors import DataError
from seepage.federation import THREATS, Played, client, knowledge, local_update, play
from seepage.metrics import nearest_truth, psnr, registered_psnr
from seepage.papers.extraction import Source, load_present
from seepage.types import Batch, Broadcast, InputSpec, Knowledge, LocalTraining, Modality
from seepage.workloads.data import Dataset
from seepage.workloads.models.efficientnet import LITE0_MEAN, LITE0_STD
from seepage.workloads.models.loading import build_model

NORMALISED = Source("CIFAR10", "cifar10", ({"split": "test", "normalise": True},))
RAW = Source("CIFAR10", "cifar10", ({"split": "test"},))
PHOTOS = Source("photos", "imagenet_photos", ({"size": 128, "limit": 200},))

SETTING = (
    "The paper: ImageNet at 224x224, 1000 classes, pre-trained ResNet-18 (512 features). Here: the CIFAR-10 "
    "test pictures at 32x32, 10 classes, and the published CIFAR ResNet-20 (64 features), batch norm in "
    "eval mode."
)
FEATURES_ONCE = (
    "Features are computed once and clients send the classification layer's gradient on them, which is "
    "exactly that of the whole network (fishing changes no other layer); the rows named 'whole network' "
    "play the same with real updates of all parameters."
)
_CHUNK = 100
REGISTERED = 8
"""Pictures of a batch, those with the best plain PSNR, that are registered where there is one candidate."""


def load_one(source: Source) -> Dataset:
    """The dataset, or DataError with the reason that it is not there."""
    present, _ = load_present([source])
    return present[source.title]


@dataclass(frozen=True, kw_only=True)
class FeatureWorld:
    """A network, its classification layer alone, and what that layer is fed for every example."""

    dataset: Dataset
    model: nn.Module
    layer: nn.Sequential
    features: Tensor
    """(N, m) float32."""
    spec: InputSpec
    """Of one row of features."""

    def users(self, index: Sequence[Tensor]) -> list[Batch]:
        """One client for each index, holding features."""
        return [Batch(self.features[i], self.dataset.labels[i]) for i in index]

    def members(self, label: int) -> Tensor:
        return (self.dataset.labels == label).nonzero().flatten()


def feature_world(dataset: Dataset, model: nn.Module) -> FeatureWorld:
    """Run every example through the network once."""
    head = find_head(model, dataset.spec)
    chunks = torch.arange(len(dataset)).split(_CHUNK)
    features = torch.cat([head_features(model, head, dataset.batch(c).inputs) for c in chunks]).float()
    original = model.get_submodule(head.name)
    alone = nn.Linear(head.features, head.classes, bias=head.bias is not None)
    alone.load_state_dict(original.state_dict())
    return FeatureWorld(
        dataset=dataset,
        model=model,
        layer=nn.Sequential(OrderedDict(classify=alone)),
        features=features,
        spec=InputSpec(
            modality=Modality.TABULAR, shape=(head.features,), num_classes=head.classes, value_range=None
        ),
    )


def trained_world() -> FeatureWorld:
    """CIFAR-10 under the trained ResNet-20."""
    dataset = load_one(NORMALISED)
    return feature_world(dataset, build_model("resnet20", dataset.spec, weights="pretrained"))


def photo_world() -> FeatureWorld:
    """Photographs under the trained EfficientNet-lite0, scaled as it was trained."""
    photos = load_one(PHOTOS)
    dataset = replace(photos, spec=replace(photos.spec, mean=LITE0_MEAN, std=LITE0_STD))
    return feature_world(dataset, build_model("efficientnet_lite0", dataset.spec, weights="pretrained"))


def known_to_server(spec: InputSpec, *, seed: int) -> Knowledge:
    """A dishonest server that sees each client's update."""
    return knowledge(
        THREATS["malicious_server"],
        "per_client",
        spec=spec,
        loss="cross_entropy",
        local=LocalTraining(),
        auxiliary=None,
        seed=seed,
    )


def play_fishing(attack: Fishing, model: nn.Module, batches: Sequence[Batch], known: Knowledge) -> Played:
    """Clients keep their batches, and the attack asks until it wants no more."""
    attack.check(model, known)
    return play(
        lambda current, history: attack.craft(current, history, known),
        model,
        lambda _round: batches,
        step=client(LocalTraining()),
        threat=THREATS["malicious_server"],
        max_rounds=1000,
    )


def draw(pool: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` different members of `pool`."""
    if count > len(pool):
        raise DataError(
            f"{count} different examples of one class are needed, but there are {len(pool)}: take smaller "
            "batches or more data."
        )
    return pool[torch.randperm(len(pool), generator=generator)[:count]]


def own_gradient(fished: Fished, example: Tensor) -> dict[str, Tensor]:
    """An example's true gradient under the model and label that a fished gradient belongs to."""
    alone = Batch(example.unsqueeze(0), torch.tensor([fished.label]))
    return dict(local_update(Broadcast(fished.model), alone, LocalTraining()).tensors)


def gradient_cosine(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    """Over all parameters that `two` names.

    >>> round(gradient_cosine({"a": torch.tensor([3.0, 0.0])}, {"a": torch.tensor([1.0, 1.0])}), 4)
    0.7071
    """
    a = torch.cat([one[name].flatten().double() for name in two])
    b = torch.cat([two[name].flatten().double() for name in two])
    return float(a @ b / (a.norm() * b.norm()).clamp_min(torch.finfo(torch.float64).tiny))


def flat_psnr(truth: Tensor) -> Tensor:
    """(n,) PSNR of each picture's own mean colour, without any detail. Moving a flat picture changes nothing,
    so that its registered PSNR is the same.

    >>> round(flat_psnr(torch.tensor([[[[0.0, 1.0]]]])).item(), 4)  # every pixel is off by a half
    6.0206
    """
    flat = truth.mean(dim=(-2, -1), keepdim=True).expand_as(truth)
    return psnr(flat, truth, data_range=1.0)


def one_against_batch(candidate: Tensor, truth: Tensor) -> tuple[Tensor, float, int]:
    """One picture (1, C, H, W) against a batch of them: plain PSNR of each (n,), the best registered one, and
    the nearest picture's index."""
    plain = psnr(candidate.expand_as(truth).contiguous(), truth, data_range=1.0)
    best = plain.topk(min(REGISTERED, len(truth))).indices
    registered = registered_psnr(candidate.expand_as(truth[best]).contiguous(), truth[best], data_range=1.0)
    (nearest,) = nearest_truth(candidate, truth)[0].tolist()
    return plain, float(registered.max()), int(nearest)
