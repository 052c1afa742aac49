"""The client's examples themselves, fitted until a replay on them ends where the client ended in every layer.

Stand-ins that bear all classes alike miss that a network learns the examples of a class along with their
class: on a wide network that moves mean predictions by more than one example in 64. Here there is one example
for each of the client's, with a label of its own, and the *whole* delta is matched, by descent through the
steps of local training. The examples need not come out right; what they share with the client's does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from seepage.labels.fit import Fit, gauss_newton
from seepage.labels.gradient import Evidence
from seepage.labels.methods import round_counts
from seepage.labels.replay import Stage, replay, two_logits
from seepage.protocol import trainable, training_mode
from seepage.protocol.optimising import local_step
from seepage.protocol.replay import Replay

ROUNDS = 10
"""Rounds of the search. Cost: time."""
DESCENTS = 25
"""Steps of Adam in a round; after each round the counts are read and labels changed to agree. Cost: time."""
FEWEST_ROUNDS = 2
"""Rounds below which no search is begun. Derived: counts of two rounds are compared."""
FITTED, SETTLED = 0.02, 0.05
"""Misfit of the last layer, and examples by which counts moved in a round, that end the search. Cost: going
on changes counts by less than they are rounded by."""
REACH, SPAN_REACH = 0.04, 0.2
"""Length of a first step of Adam, against the deviation of the noise that the examples begin as; pictures
deviate from noise in few directions, so that in their span it takes longer steps. No plateau test yet."""
OPERATIONS = 300_000_000_000
"""Floating-point operations that the descents of one search may take. Cost: some 10 s on one core."""
PASSES = 9
"""Forward passes that one differentiated step takes. Cost: forward and back, differentiated once more."""
SPAN_OPERATIONS = 20_000_000_000
"""Multiplications that finding the span of the inputs may take. Cost: seconds on one core."""
KEPT_NUMBERS = 50_000_000
"""Weights of all local steps that are kept for the way back; more are played again. Cost: 200 MB in
float32."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Local training in the coordinates in which examples are searched."""

    stage: Stage
    names: tuple[str, ...]
    received: tuple[Tensor, ...]
    sent: tuple[Tensor, ...]
    basis: Tensor | None
    """(r, D) orthonormal: what a first dense layer learnt is a sum of its inputs, which lie in this span."""

    def coordinates(self, inputs: Tensor) -> Tensor:
        return inputs if self.basis is None else inputs.flatten(1) @ self.basis.T

    def inputs(self, coordinates: Tensor) -> Tensor:
        if self.basis is None:
            return coordinates
        return (coordinates @ self.basis).reshape(len(coordinates), *self.stage.inputs.shape[1:])

    @property
    def reach(self) -> float:
        """First step of Adam in one coordinate."""
        deviation = float(self.stage.inputs.std())
        if self.basis is None:
            return REACH * deviation
        directions, values = self.basis.shape
        return SPAN_REACH * deviation * math.sqrt(values / directions)

    def gradient(
        self, weights: Sequence[Tensor], x: Tensor, targets: Tensor, differentiable: bool
    ) -> tuple[Tensor, ...]:
        buffers = {name: b.detach().clone() for name, b in self.stage.model.named_buffers()}
        logits = functional_call(
            self.stage.model, {**dict(zip(self.names, weights, strict=True)), **buffers}, (x,)
        )
        logits = two_logits(logits) if self.stage.layer.out_features == 1 else logits
        loss = -(targets * logits.log_softmax(1)).sum()
        grads = torch.autograd.grad(loss, list(weights), create_graph=differentiable, allow_unused=True)
        return tuple(torch.zeros_like(w) if g is None else g for w, g in zip(weights, grads, strict=True))

    def mismatch(self, coordinates: Tensor, targets: Tensor) -> Tensor:
        """Squared distance from the client's delta, relative to it, summed over the parameters."""
        everyone = [torch.arange(len(targets))] * len(self.stage.scales)
        step = local_step(
            self.gradient, self.stage.local, len(self.received), [[index] for index in everyone]
        )
        end = tuple(weight.detach().requires_grad_() for weight in self.received)
        if len(everyone) * sum(weight.numel() for weight in end) > KEPT_NUMBERS:
            end = Replay(step, everyone, end).final_state(coordinates, targets)
        else:
            for number in range(len(everyone)):
                end = step(number, coordinates, targets, *end)
        # the last bias says how far the counts are off: examples fitted to it would agree with any counts
        gaps = zip(self.names, end, self.received, self.sent, strict=False)  # velocities come last
        parts = [
            (w - r - d).square().sum() / d.square().sum().clamp(min=1e-30)
            for name, w, r, d in gaps
            if name != self.stage.layer.bias
        ]
        return torch.stack(parts).sum()

    def affordable(self, coordinates: Tensor) -> int:
        """Descents that keep within the cost allowed for all of them."""
        model = self.stage.model
        # in eval mode: batch norm would move the broadcast model's buffers
        with FlopCounterMode(display=False) as counter, torch.no_grad(), training_mode(model, False):
            state = dict(zip(self.names, self.received, strict=True))
            functional_call(model, state, (coordinates[:1].detach(),))
        once = counter.get_total_flops() * len(coordinates) * len(self.stage.scales)
        return int(OPERATIONS // max(1, PASSES * once))


def fit_examples(scene: Scene, evidence: Evidence, counts: Tensor) -> list[Fit]:
    """Counts after each round, read from replays on ever better fitted examples.

    counts: (C,) int64 to begin with; `stage.inputs`: where the examples begin, one for each of the client's.
    Empty at too high a cost, or where there is more to find than the update has numbers: then some examples
    agree with any counts.
    """
    stage = scene.stage
    found = scene.coordinates(stage.inputs).clone().requires_grad_()
    rounds = min(ROUNDS, scene.affordable(found) // DESCENTS)
    if rounds < FEWEST_ROUNDS or found.numel() > sum(t.numel() for t in scene.sent):
        return []
    optimiser = torch.optim.Adam([found])
    labels = torch.arange(len(counts)).repeat_interleave(counts.cpu()).to(found.device)
    fits: list[Fit] = []
    with training_mode(stage.model, stage.local.batch_norm == "train"):
        for number in range(rounds):
            for group in optimiser.param_groups:
                group["lr"] = (1 - number / rounds) * scene.reach
            _descend(scene, optimiser, found, labels, len(counts))
            now = replace(stage, inputs=scene.inputs(found.detach()), labels=labels)
            fit = _read(now, evidence, fits)
            if fit is None:
                break
            fits.append(fit)
            if fit.misfit < FITTED and fit.movement < SETTLED:
                break
            labels = _relabelled(labels, round_counts(fit.counts, len(labels)))
    return fits


def pose_scene(stage: Stage, evidence: Evidence) -> Scene | None:
    """In the span of the inputs where a dense layer is the only one to read them, else in the inputs' own.

    None where steps take different mini-batches, and where the last layer has no bias.
    """
    if evidence.bias is None or max(stage.rows) > 0 or stage.sent.keys() != trainable(stage.model).keys():
        return None
    inputs, entry = stage.inputs, stage.entry
    received = {name: p.detach() for name, p in trainable(stage.model).items()}
    sent = {name: stage.sent[name].detach().to(p) for name, p in received.items()}
    names = tuple(received)
    plain = Scene(
        stage=stage, names=names, received=tuple(received.values()), sent=tuple(sent.values()), basis=None
    )
    if entry is None or stage.local.weight_decay or inputs[0].numel() <= len(inputs):
        return plain
    learnt = sent[entry.weight].double()
    if min(learnt.shape) ** 2 * max(learnt.shape) > SPAN_OPERATIONS:
        return plain
    basis = torch.linalg.svd(learnt, full_matrices=False).Vh[: len(inputs)].to(inputs)
    short = {name: t @ basis.T if name == entry.weight else t for name, t in received.items()}
    scene = replace(
        plain,
        received=tuple(short.values()),
        sent=tuple(t @ basis.T if name == entry.weight else t for name, t in sent.items()),
        basis=basis,
    )
    return scene if _agrees(scene, received, inputs) else plain


def _agrees(scene: Scene, received: dict[str, Tensor], inputs: Tensor) -> bool:
    """Whether the model gives the same in both coordinates: not where it reads its input a second time."""
    few = scene.coordinates(inputs[:2])
    model = scene.stage.model
    with torch.no_grad(), training_mode(model, False):
        full = functional_call(model, received, (scene.inputs(few),))
        try:
            short = functional_call(model, dict(zip(scene.names, scene.received, strict=True)), (few,))
        except RuntimeError:  # the model asks for the input's own shape
            return False
    return short.shape == full.shape and torch.allclose(short, full, rtol=1e-3, atol=1e-4)


def _descend(scene: Scene, optimiser: torch.optim.Adam, found: Tensor, labels: Tensor, classes: int) -> None:
    """One round of Adam."""
    targets = torch.nn.functional.one_hot(labels, classes).to(found) * (scene.stage.scales[0] / len(labels))
    for _ in range(DESCENTS):
        found.grad = torch.autograd.grad(scene.mismatch(found, targets), found)[0]
        optimiser.step()


def _read(stage: Stage, evidence: Evidence, before: list[Fit]) -> Fit | None:
    """The counts that a replay on these examples asks for."""
    assert stage.labels is not None
    total, classes = len(stage.labels), evidence.num_classes
    shares = torch.bincount(stage.labels, minlength=classes).to(evidence.weight) / total
    replayed = replay(stage, shares[None])
    if not all(torch.isfinite(t).all() for t in (replayed.weight, replayed.slopes, replayed.features)):
        return None
    fitted, covariance = gauss_newton(stage, evidence, replayed, shares[None], torch.ones(1).to(shares), 1)
    counts = total * fitted[0]
    last = before[-1].counts if before else total * shares
    return Fit(
        counts=counts,
        movement=float((counts - last).abs().max()),
        deviation=float(total * covariance.diagonal().clamp(min=0).sqrt().max()),
        misfit=float((evidence.weight - replayed.weight).norm() / evidence.weight.norm()),
        swing=replayed.swing,
    )


def _relabelled(labels: Tensor, counts: Tensor) -> Tensor:
    """As few labels changed as it takes to have these counts.

    >>> _relabelled(torch.tensor([0, 0, 1, 1]), torch.tensor([1, 2, 1]))
    tensor([2, 0, 1, 1])
    """
    labels, surplus = labels.clone(), torch.bincount(labels, minlength=len(counts)) - counts.to(labels.device)
    over = surplus.clamp(min=0).tolist()
    spare = torch.cat([torch.nonzero(labels == c)[:k, 0] for c, k in enumerate(over)])
    labels[spare] = torch.arange(len(counts)).to(labels).repeat_interleave((-surplus).clamp(min=0))
    return labels
