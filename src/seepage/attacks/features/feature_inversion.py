"""From exact features to pictures: behind convolutions, each example is searched for by itself.

`exact_extraction` reads what the first dense layer was given, one vector for each example, exactly. The front
of the network is known, so each vector is a search of its own: for the input whose features they are. Nothing
is mixed any more and no gradient is matched; a step costs a few passes there and back through the front.
"""

from __future__ import annotations

from functools import partial
from pkgutil import resolve_name

from torch import Tensor, nn

from seepage.attacks.base import PerUpdateAttack
from seepage.attacks.features.gauss_newton import Standing, approach
from seepage.attacks.features.spectrum import Spectrum
from seepage.attacks.inversion.problem import Problem, pose_problem
from seepage.attacks.inversion.settings import check_settings
from seepage.core.errors import NotApplicable
from seepage.core.progress import Clock
from seepage.core.types import INPUT_SPACE, Exchange, Knowledge, Modality, Reconstruction
from seepage.models.choice import choose_layer
from seepage.models.hooks import front_of
from seepage.models.layers import LinearLayer
from seepage.protocol import training_mode

READER = "seepage.attacks.reading.exact_extraction:peel"
"""What reads the features, looked up when an update is there, as the crafting attacks look up theirs."""


class FeatureInversion(PerUpdateAttack):
    """Reads features, then searches for the picture of each.

    >>> import torch
    >>> from seepage.protocol import local_update
    >>> from seepage.core.types import Batch, Broadcast, InputSpec, LocalTraining
    >>> _ = torch.manual_seed(0)
    >>> front = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten())
    >>> model = nn.Sequential(front, nn.Linear(144, 60), nn.ReLU(), nn.Linear(60, 3))
    >>> spec = InputSpec(modality=Modality.IMAGE, shape=(1, 6, 6), num_classes=3)
    >>> secret = Batch(torch.rand(2, 1, 6, 6), torch.tensor([2, 0]))
    >>> sent = local_update(Broadcast(model), secret, LocalTraining())
    >>> seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    >>> FeatureInversion(steps=40).run([seen], Knowledge(input=spec)).values.shape
    torch.Size([2, 1, 6, 6])
    """

    def __init__(self, *, steps: int = 40, layer: str | None = None, budget: float | None = None) -> None:
        check_settings(steps=steps, budget=budget)
        self.steps, self.layer, self.budget = steps, layer, budget

    def check(self, model: nn.Module, known: Knowledge) -> None:
        self._choose(model, known)

    def _choose(self, model: nn.Module, known: Knowledge) -> LinearLayer:
        if known.input.modality is not Modality.IMAGE or len(known.input.shape) != 3:
            raise NotApplicable("it searches for pictures, and the inputs are none: use 'exact_extraction'.")
        layer = choose_layer(model, known.input, self.layer)
        if layer.reads != "features":
            raise NotApplicable(
                f"layer '{layer.name}' reads the model's input itself, so there is nothing to search for: "
                "use 'exact_extraction'."
            )
        return layer

    def invert(self, exchange: Exchange, known: Knowledge) -> Reconstruction:
        layer = self._choose(exchange.broadcast.model, known)
        clock = Clock(seconds=self.budget)
        limit = None if self.budget is None else self.budget / 2
        read: Reconstruction = resolve_name(READER)(exchange, known, layer, budget=limit)
        if read.space == INPUT_SPACE:
            return read  # the front can be inverted by itself
        assert read.confidence is not None
        # what may be the mean of near copies has a picture too, which nobody claims
        features = read.values[read.confidence.to(read.values.device) > 0]
        if not len(features):
            raise NotApplicable(
                f"no features could be read for certain from layer '{layer.name}' "
                f"({read.notes[-1].rstrip('.') if read.notes else 'nothing was read'}): use "
                "'inverting_gradients', which searches for all examples at once."
            )
        problem = pose_problem(exchange, known, num_examples=len(features))
        spectrum = Spectrum.of(problem.shape, centre=problem.centre, unit=problem.unit, like=features)
        found, steps = search_pictures(problem, layer, features, spectrum, clock, steps=self.steps)
        note = (
            f"For each of {len(features)} feature vectors that were read its picture was searched for by "
            f"itself, in {steps} steps: features of the pictures differ from those read by "
            f"{float(found.off.sqrt().median()):.1%} (median). Pictures are approximations: none is claimed."
        )
        return Reconstruction(
            values=problem.spec.to_raw(problem.project(found.pictures)),
            model_units=known.normalised,
            label_counts=read.label_counts,
            confidence=(1 - found.off.sqrt()).clamp(0, 1).cpu().double(),
            notes=(*read.notes, note),
        )


def search_pictures(
    problem: Problem, layer: LinearLayer, features: Tensor, spectrum: Spectrum, clock: Clock, *, steps: int
) -> tuple[Standing, int]:
    """The pictures behind features (k, m) that a layer reads, and after how many steps the search ended."""
    front = front_of(problem.model, layer.name)
    with training_mode(problem.model, False):
        search = partial(approach, front, features, spectrum, problem.shape)
        steps = clock.steps_that_fit([(1.0, lambda: list(search(1)))], steps)
        for step, standing in enumerate(search(steps)):
            clock.report(
                step=step,
                steps=steps,
                objective=float(standing.off.median()),
                inputs=standing.pictures.unsqueeze(0),
            )
            if step < steps and clock.expired:
                break
    return standing, step


def feature_inversion(
    *, steps: int = 40, layer: str | None = None, budget: float | None = None
) -> FeatureInversion:
    """Passive: reads the first dense layer's features exactly, then searches for the picture of each one.

    For networks that begin with convolutions. steps: of Gauss and Newton's method for all pictures at once.
    layer: name of the linear layer to read, by default the first; budget: seconds for each update.
    """
    return FeatureInversion(steps=steps, layer=layer, budget=budget)
