"""R-GAP (Zhu & Blaschko 2021): one example in closed form, layer by layer from the output to the input.

The last layer's gradient shows its input features exactly (Geiping et al. 2020, Prop. 3.1). Undoing the
activation gives the pre-activations of the layer before it, the chain rule their gradient, and then the
layer's own input solves linear equations (see `parts.recursive_solve`); and so on to the picture. There is no
optimisation over a nonlinear objective and nothing random in the answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from seepage.attacks.base import PerUpdateAttack
from seepage.attacks.closed_form.alone import uncounted
from seepage.attacks.closed_form.recursion.chain import Chain, Link, trace_chain
from seepage.attacks.closed_form.recursion.solve import LayerSystem, Solved, solve
from seepage.attacks.closed_form.recursion.steps import undo
from seepage.attacks.inversion.problem import Problem, pose_problem
from seepage.attacks.inversion.simulate import simulated_update
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.types import Exchange, Knowledge, Reconstruction, UpdateKind
from seepage.labels import infer_label_counts
from seepage.models.gradients import one_step_gradient
from seepage.protocol import training_mode

CONSISTENT = 1e-3
"""Largest relative difference between a claimed candidate's gradient and the observed one. Tested:
test_constants_of_closed_forms_lie_on_a_plateau."""
_ONE_EXAMPLE = 1e-2
"""Share of the last weight gradient that may lie outside rank one where the batch size is not known. Tested:
test_constants_of_closed_forms_lie_on_a_plateau."""
_ROUNDING = 16.0
"""Machine epsilons of noise reckoned with in an update. Tested:
test_constants_of_closed_forms_lie_on_a_plateau."""


@dataclass(frozen=True)
class Descent:
    """What going back through the chain found."""

    values: Tensor
    """(1, *shape): the model's input in model units, float64, not yet clamped."""
    solved: tuple[tuple[Link, Solved], ...]
    """From the output to the input, the last layer left out: it needs no equations solved."""

    @property
    def determined(self) -> bool:
        """No other input gives the same update, as far as the equations tell."""
        inner, first = self.solved[:-1], self.solved[-1:]
        return not (any(step.ambiguous for _, step in inner) or any(step.deficient for _, step in first))


class RecursiveInversion(PerUpdateAttack):
    """Go back through a chain of linear layers and invertible activations.

    >>> from seepage.protocol import local_update
    >>> from seepage.core.types import Batch, Broadcast, InputSpec, LocalTraining, Modality
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))
    >>> spec = InputSpec(modality=Modality.IMAGE, shape=(1, 4, 4), num_classes=3)
    >>> secret = Batch(torch.rand(1, 1, 4, 4), torch.tensor([2]))
    >>> sent = local_update(Broadcast(model), secret, LocalTraining())
    >>> seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    >>> found = RecursiveInversion().run([seen], Knowledge(input=spec))
    >>> torch.allclose(found.values, secret.inputs, atol=1e-4), found.label_counts.tolist()
    (True, [0, 0, 1])
    """

    def __init__(self, *, tolerance: float = 1e-9, max_iterations: int = 4000) -> None:
        if not 0 < tolerance < 1 or max_iterations < 1:
            raise SpecError(
                f"recursive_inversion cannot solve with tolerance = {tolerance:g} and max_iterations = "
                f"{max_iterations}: give a tolerance between 0 and 1 and at least one iteration."
            )
        self.tolerance, self.max_iterations = tolerance, max_iterations

    def check(self, model: nn.Module, known: Knowledge) -> None:
        _check_mode(model, known)
        trace_chain(model, known.input)

    def invert(self, exchange: Exchange, known: Knowledge) -> Reconstruction:
        model = exchange.broadcast.model
        _check_mode(model, known)
        chain = trace_chain(model, known.input)
        gradients = one_step_gradient(exchange, known)
        _check_one_example(exchange, chain, gradients)
        found = self.descend(model, chain, gradients, precision=_precision(exchange), seed=known.seed)

        problem = pose_problem(exchange, known, num_examples=1)
        candidate = problem.project(found.values.to(problem.observed[0].dtype))
        labels = infer_label_counts(exchange, known).counts
        mismatch, cosine = _mismatch(problem, candidate, labels.argmax().reshape(1))
        doubt = uncounted(exchange)
        claimed = found.determined and mismatch <= CONSISTENT and not doubt
        return Reconstruction(
            values=known.input.to_raw(candidate),
            model_units=known.normalised,
            claimed=torch.tensor([claimed]),
            if_declared=claimed,
            confidence=torch.tensor([_share_determined(found) / (1.0 + mismatch / CONSISTENT)]),
            label_counts=labels,
            notes=(*_layer_notes(found), _consistency_note(mismatch, cosine, found.determined), *doubt),
        )

    def descend(
        self,
        model: nn.Module,
        chain: Chain,
        gradients: Mapping[str, Tensor],
        *,
        precision: float,
        seed: int = 0,
    ) -> Descent:
        """From the last layer's gradient to the model's input."""
        head = chain.links[-1]
        assert head.bias is not None
        delta = gradients[head.bias]  # (classes,): p - y for cross-entropy
        # every row is delta_i * features: their least-squares quotient
        features = (delta @ gradients[head.weight] / delta.square().sum()).unsqueeze(0)
        signal = (delta @ _weight(model, head.weight)).unsqueeze(0)  # gradient at the features

        solved: list[tuple[Link, Solved]] = []
        seen = torch.ones_like(features, dtype=torch.bool)
        for link in reversed(chain.links[:-1]):
            outputs = features.reshape(1, *link.output_shape)
            pre_activation, slope = undo(link.steps, outputs)
            delta = signal.reshape_as(outputs) * slope
            weight, gradient = _weight(model, link.weight), gradients.get(link.weight)
            # a value that the layer above never saw says nothing: its forward equation gets no weight
            trust = slope * seen.reshape_as(outputs)
            system = LayerSystem(link, weight, delta, trust, use_gradient=gradient is not None)
            right = system.right_side(
                pre_activation,
                0.0 if link.bias is None else _weight(model, link.bias).unsqueeze(1),
                torch.zeros_like(weight) if gradient is None else gradient,
            )
            step = solve(
                system,
                right,
                tolerance=self.tolerance,
                precision=precision,
                max_iterations=self.max_iterations,
                seed=seed,
            )
            solved.append((link, step))
            features, signal, seen = step.values, system.signal_below(), step.seen
        values, _ = undo(chain.steps, features.reshape(1, *chain.input_shape))
        return Descent(values, tuple(solved))


def recursive_inversion(*, tolerance: float = 1e-9, max_iterations: int = 4000) -> RecursiveInversion:
    """Passive, closed form (R-GAP): one example through a chain of layers with invertible activations.

    tolerance: residual of each layer's normal equations, relative to the start, at which its solver stops.
    max_iterations: most steps of one layer's solver.
    """
    return RecursiveInversion(tolerance=tolerance, max_iterations=max_iterations)


def _check_mode(model: nn.Module, known: Knowledge) -> None:
    if known.local is None or known.local.batch_norm == "eval":
        return
    random = [name for name, m in model.named_modules() if isinstance(m, _BatchNorm | _DropoutNd)]
    if random:
        raise NotApplicable(
            f"clients run '{random[0]}' ({type(model.get_submodule(random[0])).__name__}) in train mode, so "
            "the server does not know what the layer did to the example: use 'inverting_gradients'."
        )


def _check_one_example(exchange: Exchange, chain: Chain, gradients: Mapping[str, Tensor]) -> None:
    count, head = exchange.update.num_examples, chain.links[-1]
    if (count is not None and count != 1) or len(exchange.clients) > 1:
        raise NotApplicable(
            f"the update was made from {count or 'several'} examples, but a layer's equations hold for one: "
            "attack a client with a single example, or use 'inverting_gradients'."
        )
    if head.bias is None or head.bias not in gradients or head.weight not in gradients:
        raise NotApplicable(
            f"the last layer '{head.name}' is frozen, so its gradient is not sent and there is nothing to "
            "start from: use 'inverting_gradients'."
        )
    delta, weight = gradients[head.bias], gradients[head.weight]
    if not bool(delta.any()):
        raise NotApplicable(
            "the gradient of the last bias is zero: the model is certain of the example, so there is nothing "
            "to divide by; attack an earlier round."
        )
    features = delta @ weight / delta.square().sum()
    outside = float((weight - torch.outer(delta, features)).norm() / weight.norm().clamp_min(1e-300))
    if count is None and outside > _ONE_EXAMPLE:
        raise NotApplicable(
            f"{outside:.0%} of the last layer's gradient does not fit a single example, so the update was "
            "made from several: attack a client with a single example, or use 'inverting_gradients'."
        )


def _precision(exchange: Exchange) -> float:
    """Relative rounding of the update; a difference of weights is rounded like the weights."""
    update, model = exchange.update, exchange.broadcast.model
    noise = _ROUNDING * max(torch.finfo(t.dtype).eps for t in update.tensors.values())
    if update.kind is UpdateKind.GRADIENT:
        return noise
    moved = math.sqrt(sum(float(t.double().square().sum()) for t in update.tensors.values()))
    weights = math.sqrt(sum(float(_weight(model, name).square().sum()) for name in update.tensors))
    return min(noise * max(1.0, weights / moved if moved else math.inf), 1e-2)


def _mismatch(problem: Problem, candidate: Tensor, labels: Tensor) -> tuple[float, float]:
    """Relative difference, and cosine, of the update the candidate leads to and the observed one.

    Up to a common factor, which clipping and an unknown learning rate leave open.
    """
    with torch.enable_grad(), training_mode(problem.model, problem.training.batch_norm == "train"):
        made = simulated_update(problem, candidate, labels.to(candidate.device))
    ours = torch.cat([t.detach().double().flatten() for t in made])
    seen = torch.cat([t.double().flatten() for t in problem.observed])
    length, overlap = float(ours.norm()), float(ours @ seen)
    if not math.isfinite(length) or length == 0:
        return math.inf, 0.0
    factor = max(0.0, overlap / length**2)
    return float((seen - factor * ours).norm() / seen.norm()), overlap / (length * float(seen.norm()))


def _share_determined(found: Descent) -> float:
    wanted = [int(step.seen.sum()) for _, step in found.solved[:-1]]
    wanted += [step.unknowns for _, step in found.solved[-1:]]
    shares = [step.rank / max(1, size) for (_, step), size in zip(found.solved, wanted, strict=True)]
    return math.prod(min(1.0, share) for share in shares)


def _layer_notes(found: Descent) -> list[str]:
    notes = []
    for link, step in found.solved:
        text = (
            f"Layer '{link.name}': {step.unknowns} unknowns, {step.equations} equations, numerical rank "
            f"{step.rank:.0f}, relative residual {step.residual:.1e}"
        )
        lost = step.unknowns - step.rank
        notes.append(
            f"{text}; it loses information: {max(1, round(lost))} of its inputs' dimensions cannot be told "
            "from the update, and the shortest solution was taken."
            if step.deficient
            else f"{text}."
        )
    return notes


def _consistency_note(mismatch: float, cosine: float, determined: bool) -> str:
    text = (
        f"The candidate's own gradient has cosine {cosine:.6f} to the observed one and differs by "
        f"{mismatch:.1e} of its length"
    )
    if mismatch > CONSISTENT:
        return (
            f"{text}: it does not explain the update, so it is not claimed; rounding or a defense's noise "
            "grew on the way down, or a layer loses information."
        )
    if not determined:
        return f"{text}, but other inputs explain the update as well, so it is not claimed."
    return f"{text}: it explains the update."


def _weight(model: nn.Module, name: str) -> Tensor:
    return model.get_parameter(name).detach().double()
