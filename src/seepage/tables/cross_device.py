"""Wen et al. 2022, Sections 3.3 and 4.2: which feature to cut when every client is seen once.

A run has over a thousand clients, of whom a table needs a few counts: a probe that plays them on the features
of the audited model and data, and keeps those counts alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from seepage.attacks.fishing.cross_device_fishing import CrossDeviceFishing, cross_device_fishing
from seepage.attacks.fishing.features import ks_statistic
from seepage.attacks.fishing.head import cut_head, find_head
from seepage.core.types import Batch, Broadcast, Knowledge, LocalTraining
from seepage.data import Dataset
from seepage.engine.probes import Seen
from seepage.protocol import THREATS, Played, client, knowledge, local_update, play
from seepage.tables.draws import draw
from seepage.tables.features import Features, features_under
from seepage.tables.fished import gradient_cosine

BATCH = 10
BETA = 1e6
SIMILAR = 0.95
"""Section 4.2: cosine from which on a gradient counts as that of n data points."""


@dataclass(frozen=True)
class Users:
    """Indices of each user's pictures: those of the estimate, then the attacked ones."""

    estimate: list[Tensor]
    attacked: list[Tensor]


def cross_device(
    seen: Seen,
    *,
    choice: str = "ks",
    estimate_users: int = 225,
    attacked_users: int = 1000,
    counts: Sequence[int] = (4,),
    whole_network: bool = False,
) -> dict[str, float]:
    """A probe: one target class; estimate, choose, cut, attack.

    counts: pictures of the target class among the 10 of a user of the estimate; an attacked user holds 10.
    whole_network: count the caught by the paper's rule, on real updates of all parameters.
    """
    target = seen.seed % seen.data.spec.num_classes
    model = seen.played.exchanges[0].broadcast.model
    users = draw_users(seen.data.labels, target, (estimate_users, attacked_users), counts, seed=seen.seed)
    world = features_under(model, seen.data)
    attack = cross_device_fishing(
        target_class=target,
        choice=choice,
        images=BATCH,
        estimate_clients=estimate_users,
        attacked_clients=attacked_users,
    )
    run = _Run(attack, world, users, seed=seen.seed)
    caught = run.below & (run.scores != 0)  # a feature of exactly 0 sends no gradient
    number = caught.sum(dim=1)
    if whole_network:
        rule = partial(recovered, model, seen.data, target, run.theta, run.direction)
        number = torch.tensor([rule(mine, run.along(mine)) for mine in users.attacked])
    return {
        **{str(n): float((number == n).double().mean()) for n in range(3)},
        ">=3": float((number >= 3).double().mean()),
        **run.claims(),
        **run.estimate_errors(),
    }


def draw_users(
    labels: Tensor, target: int, numbers: tuple[int, int], counts: Sequence[int], *, seed: int
) -> Users:
    """Pictures of the estimate and of the attack come from different halves of the class."""
    generator = torch.Generator().manual_seed(seed)
    members = (labels == target).nonzero().flatten()
    members = members[torch.randperm(len(members), generator=generator)]
    first, second = members.tensor_split(2)
    others = (labels != target).nonzero().flatten()
    estimate = []
    for user in range(numbers[0]):
        own = counts[user % len(counts)]
        estimate.append(torch.cat([draw(first, own, generator), draw(others, BATCH - own, generator)]))
    return Users(estimate, [draw(second, BATCH, generator) for _ in range(numbers[1])])


class _Run:
    """The attack played on features, and what the truth says of its cut."""

    def __init__(self, attack: CrossDeviceFishing, world: Features, users: Users, *, seed: int) -> None:
        self.attack, self.users, self.features = attack, users, world.dataset.inputs
        labels = world.dataset.labels
        batches = [Batch(self.features[i], labels[i]) for i in [*users.estimate, *users.attacked]]
        self.known = _known_to_server(world.dataset, seed=seed)
        self.played = _play(attack, world.layer, batches, self.known)
        hook = self.played.exchanges[-1].secret
        self.theta: float = hook.theta
        self.direction: Tensor = hook.direction
        self.scores = torch.stack([self.along(mine) for mine in users.attacked])  # (users, BATCH)
        self.below = self.scores <= self.theta

    def along(self, mine: Tensor) -> Tensor:
        return self.features[mine].double() @ self.direction

    def claims(self) -> dict[str, float]:
        """How often the server says that it holds one picture alone, and how often that is wrong."""
        catch = self.attack.fish(self.played.exchanges, self.known)
        claimed = [f.source - len(self.users.estimate) for f in catch.fished if f.isolated]
        total, below = len(self.users.attacked), self.below.sum(dim=1)
        return {
            "claimed": len(claimed) / total,
            "false": sum(int(below[user]) != 1 for user in claimed) / total,
        }

    def estimate_errors(self) -> dict[str, float]:
        """How normal the chosen feature looked to the server, and how far off its normal distribution is.

        Figure 4(a). The truth is taken over the attacked users' pictures, which the estimate has not seen.
        """
        found = self.attack.estimate(self.played.exchanges, self.known)
        feature = int(self.direction.argmax())
        values = self.features[torch.cat(self.users.attacked).unique(), feature]
        spread = found.std[feature].clamp_min(torch.finfo(torch.float64).tiny)
        standard = ((values - found.mean[feature]) / spread).double().unsqueeze(1)
        return {"KS": float(found.ks[feature]), "off": float(ks_statistic(standard))}


def _known_to_server(data: Dataset, *, seed: int) -> Knowledge:
    """A dishonest server that sees each client's update."""
    return knowledge(
        THREATS["malicious_server"],
        "per_client",
        spec=data.spec,
        loss="cross_entropy",
        local=LocalTraining(),
        auxiliary=None,
        seed=seed,
    )


def _play(attack: CrossDeviceFishing, model: nn.Module, batches: Sequence[Batch], known: Knowledge) -> Played:
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


def recovered(
    model: nn.Module,
    data: Dataset,
    target: int,
    theta: float,
    direction: Tensor,
    mine: Tensor,
    scores: Tensor,
) -> int:
    """Section 4.2's rule on the real update of a whole network: the n whose gradients add up to it.

    The n lowest along the feature are tried, since a cut catches from below, and the n that fits best is
    taken: gradients along one feature are so alike that several n may reach .95. The classification layer is
    left out: Sim compares gradients of the feature extractor, phi.
    """
    head = find_head(model, data.spec)
    crafted = cut_head(model, head, target, direction=direction, beta=BETA, theta=theta)
    batch = data.batch(mine)
    sent = dict(local_update(Broadcast(crafted), batch, LocalTraining()).tensors)
    body = [name for name in sent if name not in (head.weight, head.bias)]
    if not any(bool(sent[name].any()) for name in body):
        return 0
    alone = cut_head(model, head, target, direction=direction, beta=BETA, theta=torch.inf)
    order = scores.argsort()
    similar = []
    for n in range(1, len(mine) + 1):
        gradient = dict(local_update(Broadcast(alone), batch.select(order[:n]), LocalTraining()).tensors)
        similar.append(gradient_cosine(sent, {name: gradient[name] for name in body}))
    best = max(range(len(mine)), key=similar.__getitem__)
    return best + 1 if similar[best] >= SIMILAR else 0
