"""A small deployment to check things on: three clients with random pictures that nobody can draw again."""

from __future__ import annotations

import copy
import secrets
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from seepage.attacks import Attack
from seepage.core.types import Batch, Grant, Knowledge, LocalTraining, Reconstruction
from seepage.data import Dataset, load_data
from seepage.models.loading import build_model, check_forward
from seepage.protocol import THREATS, Played, ThreatModel, client, knowledge, loss_name, play
from seepage.protocol.losses import NEXT_TOKEN

CLIENTS = 3
PUBLIC = 16
_MOST_ROUNDS = 8


@dataclass(frozen=True)
class Setting:
    """What an attack, a defense or a detector is checked on."""

    dataset: Dataset
    model: nn.Module
    batch_size: int

    @classmethod
    def of(cls, model: Any, data: Any, batch_size: int) -> Setting:
        """model, data: as in `seepage.audit`; None: a small dense network, and random pictures."""
        if data is None:
            # An attack that knew the seed could draw the examples again.
            generator = torch.Generator().manual_seed(secrets.randbits(62))
            count = CLIENTS * batch_size + PUBLIC + 40
            data = (torch.rand(count, 1, 6, 6, generator=generator), torch.arange(count) % 3)
        dataset = load_data(data)
        built = build_model("mlp" if model is None else model, dataset.spec)
        return cls(dataset, built, batch_size)

    @cached_property
    def batches(self) -> list[Batch]:
        """Each client's."""
        index = torch.arange(CLIENTS * self.batch_size)
        return [self.dataset.batch(part) for part in index.split(self.batch_size)]

    def threat(self, attack: Attack) -> ThreatModel:
        """A server that may do all that the attack requires."""
        base = THREATS["malicious_server" if attack.active else "honest_but_curious"]
        return replace(base, grants=base.grants | attack.requires)

    def known(self, attack: Attack) -> Knowledge:
        outputs = check_forward(self.model, self.dataset.spec)[1:]
        after = torch.arange(CLIENTS * self.batch_size, CLIENTS * self.batch_size + PUBLIC)
        return knowledge(
            self.threat(attack),
            "per_client",
            spec=self.dataset.spec,
            loss=loss_name("auto", outputs[-1], per_token=NEXT_TOKEN if len(outputs) > 1 else None),
            local=LocalTraining(),
            auxiliary=self.dataset.batch(after),
            seed=0,
        )

    def played(self, attack: Attack, known: Knowledge) -> Played:
        """The rounds against this attack, on copies of the model and the batches."""
        torch.manual_seed(known.seed)
        model = copy.deepcopy(self.model)
        batches = [one.clone() for one in self.batches]
        attack.check(model, known)
        return play(
            (lambda sent, history: attack.next_model(sent, history, known)) if attack.active else None,
            model,
            lambda _round: batches,
            step=client(LocalTraining()),
            threat=self.threat(attack),
            max_rounds=_MOST_ROUNDS if attack.active else 1,
        )


def answered(attack: Attack, played: Played, known: Knowledge) -> Reconstruction:
    """The attack's answer, its randomness begun anew."""
    torch.manual_seed(known.seed)
    return attack.run(played.exchanges, known)


def grants(attack: Attack) -> list[str]:
    """What a threat model must grant by name, for a spec."""
    return sorted(str(grant) for grant in attack.requires if grant in set(Grant))
