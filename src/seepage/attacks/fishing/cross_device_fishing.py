"""Fishing across devices (Wen et al. 2022, Section 3.3): no client is asked twice.

Some clients are class-fished for the mean feature of their examples of one class. From those means the
server estimates how a feature is spread, and cuts it where one of M examples is expected below. Clients
that it has never seen then give away exactly one example in about (1 - 1/M)^(M-1) > 1/e of all cases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from seepage.attacks.fishing.catch import Catch, inner_attack
from seepage.attacks.fishing.cuts import WHOLE
from seepage.attacks.fishing.dying import takes_several_epochs
from seepage.attacks.fishing.dying_cuts import read_dying_cut
from seepage.attacks.fishing.feature_fishing import catch_of_tails
from seepage.attacks.fishing.features import (
    FEATURE_CHOICES,
    FeatureEstimate,
    cut_at_mass,
    estimate_features,
)
from seepage.attacks.fishing.head import (
    Head,
    class_head,
    cut_head,
    read_head,
)
from seepage.attacks.fishing.shared import Cutting, Fishing, Hook, chosen_direction, hooked
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.registry import lookup
from seepage.core.types import Crafted, Exchange, Grant, Knowledge


@dataclass(kw_only=True, eq=False)
class CrossDeviceFishing(Cutting):
    """First rounds estimate, the others attack; with client groups, each client is asked once."""

    choice: str
    images: int | None
    estimate_rounds: int
    attack_rounds: int
    groups: tuple[int, int] | None
    """Clients of the estimate and attacked ones; None: everybody who is selected."""
    alpha: float

    @property
    def needs(self) -> frozenset[Grant]:
        return super().needs | (frozenset() if self.groups is None else {Grant.TARGET_CLIENT})

    def check_steps(self, model: nn.Module, known: Knowledge, head: Head) -> None:
        """One step only: a client of the cutting row's class would diverge, and nobody is asked twice."""
        Fishing.check_steps(self, model, known, head)

    def query_bound(self, examples: int) -> int:
        """Rounds, known before the first; each client answers once where groups are given."""
        return self.estimate_rounds + self.attack_rounds

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge) -> Crafted | None:
        head = self.head(model, known)
        done = len({e.broadcast.round for e in history})
        if done >= self.query_bound(0):
            return None
        if takes_several_epochs(known.local):
            return self._craft_dying(model, history, known, head, estimating=done < self.estimate_rounds)
        if done < self.estimate_rounds:
            crafted = class_head(model, head, self.target_class, alpha=self.alpha)
            return Crafted(crafted, Hook(target=self.target_class), self._group(0))
        found = self.estimate(history, known)
        generator = torch.Generator().manual_seed(known.seed)
        feature = FEATURE_CHOICES[self.choice](found, generator)
        images = self.images or max(1, round(found.images))
        theta = cut_at_mass(found, feature, 1 / images)
        note = (
            f"Feature {feature} of {head.features} was chosen by '{self.choice}' (Kolmogorov-Smirnov "
            f"statistic {float(found.ks[feature]):.3f}) and cut at {theta:.4g}, where one of {images} "
            "examples is expected below."
        )
        direction = chosen_direction(head, feature, seed=known.seed)
        crafted = cut_head(model, head, self.target_class, direction=direction, beta=self.beta, theta=theta)
        hook = Hook(target=self.target_class, theta=theta, direction=direction, notes=(note,))
        return Crafted(crafted, hook, self._group(1))

    def _craft_dying(
        self, model: nn.Module, history: Sequence[Exchange], known: Knowledge, head: Head, *, estimating: bool
    ) -> Crafted:
        """In several local steps: one direction, and examples of all classes but the next (`dying_cuts`)."""
        row = (self.target_class + 1) % head.classes
        everyone, dying = self.everyone(model, history, known, head, row)
        if estimating:
            return Crafted(everyone, Hook(target=row, dying=dying), self._group(0))
        found = self.estimate(history, known)
        images = self.images or max(1, round(found.images))
        theta = cut_at_mass(found, 0, 1 / images)
        note = f"Cut at {theta:.4g}, where one of {images} examples, whatever their class, is expected below."
        sent = self.send_dying(everyone, head, dying, row, theta, notes=(note,))
        return Crafted(sent.model, sent.secret, self._group(1))

    def _group(self, which: int) -> tuple[int, ...] | None:
        """Clients of the estimate, or those behind them in number: nobody is in both."""
        if self.groups is None:
            return None
        first, second = self.groups
        return tuple(range(first)) if which == 0 else tuple(range(first, first + second))

    def estimate(self, exchanges: Sequence[Exchange], known: Knowledge) -> FeatureEstimate:
        """How features of the target class are spread, from the clients that were class-fished."""
        asked = [e for e in exchanges if isinstance(e.secret, Hook) and e.secret.theta is None]
        head = self.head(asked[0].broadcast.model, known)
        means, counts = [], []
        for exchange in asked:
            dying = exchange.secret.dying
            if dying is None:
                reading = read_head(exchange, known, head, self.target_class)
            else:
                reading = read_dying_cut(exchange, known, head).head
            assert reading.weight is not None
            size = abs(reading.weight)
            if size >= 1 - WHOLE and abs(size - round(size)) <= WHOLE:  # otherwise absent, or defended
                mean = reading.features / reading.weight
                means.append(mean if dying is None else -(mean @ dying.u).unsqueeze(0))
                counts.append(round(size))
        rows = torch.stack(means) if means else torch.zeros(0, head.features)
        return estimate_features(rows, torch.tensor(counts, dtype=torch.float64))

    def fish(self, exchanges: Sequence[Exchange], known: Knowledge) -> Catch:
        index = hooked(exchanges)
        attacked = [i for i in index if exchanges[i].secret.theta is not None]
        if not attacked:
            raise NotApplicable(
                f"only {len(index)} answers for the estimate came back and no client was attacked: allow at "
                f"least {self.query_bound(0)} rounds."
            )
        head = self.head(exchanges[attacked[0]].broadcast.model, known)
        return catch_of_tails(index, attacked, exchanges, known, head, beta=self.beta)


def cross_device_fishing(
    *,
    target_class: int = 0,
    choice: str = "ks",
    images: int | None = None,
    estimate_rounds: int = 1,
    attack_rounds: int = 1,
    estimate_clients: int | None = None,
    attacked_clients: int | None = None,
    alpha: float = 1000.0,
    beta: float = 1e6,
    layer: str | None = None,
    inner: str = "analytic_extraction",
    inner_options: Mapping[str, Any] | None = None,
) -> CrossDeviceFishing:
    """Dishonest server, clients seen once: estimates a feature's spread from some clients, then fishes one
    example from each of many others (Wen et al. 2022).

    choice: how the feature is chosen: ks, highest_ks, lowest_mean, highest_mean, lowest_std, highest_std or
    random (Table 1).
    images: examples of the target class at an attacked client; by default as at the clients of the estimate.
    estimate_rounds, attack_rounds: rounds of each kind.
    estimate_clients, attacked_clients: sizes of two groups of clients, so that nobody is asked twice; by
    default everybody selected in a round is asked (which is the same where each round selects others).
    alpha, beta: of class and feature fishing.
    layer, inner, inner_options: as in class_fishing.
    """
    lookup(FEATURE_CHOICES, choice, "feature choice")
    if (estimate_clients is None) != (attacked_clients is None):
        raise SpecError("give both estimate_clients and attacked_clients, or neither.")
    groups = None
    if estimate_clients is not None and attacked_clients is not None:
        groups = (estimate_clients, attacked_clients)
    if min(estimate_rounds, attack_rounds, 1 if images is None else images, *(groups or (1,))) < 1:
        raise SpecError("rounds, images and numbers of clients must all be at least 1.")
    return CrossDeviceFishing(
        layer=layer,
        inner=inner_attack(inner, inner_options),
        target_class=target_class,
        choice=choice,
        images=images,
        estimate_rounds=estimate_rounds,
        attack_rounds=attack_rounds,
        groups=groups,
        alpha=alpha,
        beta=beta,
    )
