"""The gate between training and sending: pass, alter or withhold. Flower's and FLARE's filters use it."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from seepage.core.errors import SeepageError, SpecError
from seepage.core.types import (
    Batch,
    Broadcast,
    Defense,
    LocalStep,
    LocalTraining,
    Update,
    UpdateKind,
)
from seepage.defenses import Deployment
from seepage.gating.advice import TIMES, noised
from seepage.gating.measuring import gate, site_of
from seepage.gating.noise import needed_noise
from seepage.gating.report import GateReport
from seepage.protocol import client

Action = Literal["withhold", "drop", "noise"]
_ACTIONS = ("withhold", "drop", "noise")
_Change = Callable[[int, GateReport, Batch], tuple[Update, Batch, float] | None]
"""From the number of the try, the report and the batch to another update, its batch and its noise."""
_logger = logging.getLogger("seepage.gate")


@dataclass
class Gatekeeper:
    """Measures each update and does what was chosen with one that is above the threshold.

    action: "withhold" sends nothing; "drop" leaves the exposed examples out and recomputes; "noise" clips and
    adds noise until the same attacks recover nothing. What cannot be measured is withheld.
    options: of `gate`. log: what was said of each update; it holds counts, never data.
    train: what recomputes an update without the exposed examples; None: the `local` training of options.
    """

    action: Action = "withhold"
    options: dict[str, Any] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    train: LocalStep | None = None

    def __post_init__(self) -> None:
        if self.action not in _ACTIONS:
            raise SpecError(f"action must be one of {', '.join(_ACTIONS)}, not '{self.action}'.")

    def decide(self, model: nn.Module, update: Update, batch: Batch) -> Update | None:
        """The update to send, altered where it has to be; None: send nothing."""
        report = self._measured(model, update, batch)
        if report is None or report.answer == "not measured":
            self._say("withheld: not measured")
            return None
        self._say(report.log_line())
        if report.answer == "pass":
            return update
        altered = self._altered(model, update, batch, report)
        self._say("withheld" if altered is None else f"altered: {self.action}")
        return altered

    def weights(
        self, model: nn.Module, received: Mapping[str, Tensor], trained: Mapping[str, Tensor], batch: Batch
    ) -> dict[str, Tensor] | None:
        """The same for a client that sends its new weights: what to send in place of them, or None.

        Weights and buffers that are no parameters go as they are while anything goes.
        """
        own = copy.deepcopy(model)
        own.load_state_dict(dict(received), strict=False)
        change = {n: trained[n].to(p) - p.detach() for n, p in own.named_parameters() if n in trained}
        update = Update(kind=UpdateKind.DELTA, tensors=change, num_examples=len(batch))
        sent = self.decide(own, update, batch)
        if sent is None:
            return None
        if sent is update:
            return dict(trained)
        step = sent.tensors
        if sent.kind is UpdateKind.GRADIENT:  # a recomputed one
            lr = (self.options.get("local") or LocalTraining()).lr
            step = {name: -lr * tensor for name, tensor in sent.tensors.items()}
        return {n: received[n] + step[n].to(received[n]) if n in step else t for n, t in trained.items()}

    def _altered(self, model: nn.Module, update: Update, batch: Batch, report: GateReport) -> Update | None:
        change: _Change = _nothing
        if self.action == "drop":
            change = self._dropped(model)
        elif self.action == "noise":
            change = self._noised(model, update, batch)
        for number in range(len(TIMES)):
            changed = change(number, report, batch)
            if changed is None:
                return None
            update, batch, sigma = changed
            again = self._measured(model, update, batch, noise=sigma)
            if again is None or again.answer == "not measured":
                return None
            if again.answer == "pass":
                return update
            report = again
        return None

    def _dropped(
        self, model: nn.Module
    ) -> Callable[[int, GateReport, Batch], tuple[Update, Batch, float] | None]:
        def drop(_number: int, report: GateReport, batch: Batch) -> tuple[Update, Batch, float] | None:
            kept = [i for i in range(len(batch)) if i not in set(report.exposed)]
            if not kept:
                return None
            fewer = batch.select(torch.tensor(kept))
            train = self.train or client(self.options.get("local") or LocalTraining())
            return train(Broadcast(model), fewer), fewer, 0.0

        return drop

    def _noised(self, model: nn.Module, update: Update, batch: Batch) -> _Change:
        site = site_of(model, batch, spec=self.options.get("spec"), local=self.options.get("local"))
        needed = max(needed_noise(site), needed_noise(site, update))

        def add(number: int, _report: GateReport, batch: Batch) -> tuple[Update, Batch, float]:
            sigma = TIMES[number] * needed
            return noised(update, sigma), batch, sigma

        return add

    def _measured(
        self, model: nn.Module, update: Update, batch: Batch, *, noise: float = 0.0
    ) -> GateReport | None:
        try:
            return gate(model, update, batch, **{"advice": False, "noise": noise, **self.options})
        except SeepageError as error:
            self._say(f"could not be measured ({type(error).__name__})")
            return None

    def _say(self, line: str) -> None:
        self.log.append(line)
        _logger.info(line)


def gate_in_audit(
    *,
    action: Action = "drop",
    quick: bool = True,
    threshold: float = 0.0,
    deployment: Deployment | None = None,
) -> Defense:
    """Client: measure each update before it leaves, and leave out the examples that it would give away.

    The update names the examples that are left. Where none is, or nothing could be measured, no change is
    sent, of no example.
    action, quick, threshold: as `Gatekeeper` and `gate` take them. Without quick every update is attacked,
    which takes seconds.
    """
    local = LocalTraining() if deployment is None else deployment.training
    options = {"quick": quick, "threshold": threshold, "local": local}

    def send_what_passes(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        keeper = Gatekeeper(action, options, train=lambda _sent, fewer: next_step(broadcast, fewer))
        update = next_step(broadcast, batch)
        allowed = keeper.decide(copy.deepcopy(broadcast.model), update, batch)
        if allowed is not None:
            return allowed
        nothing = {name: torch.zeros_like(tensor) for name, tensor in update.tensors.items()}
        return replace(update, tensors=nothing, num_examples=0)

    return send_what_passes


def _nothing(_number: int, _report: GateReport, _batch: Batch) -> None:
    return None
