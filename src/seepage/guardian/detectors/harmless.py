"""Inputs that belong to nobody, on which a received model may be run before private data is touched."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.core.errors import DataError, ModelError, NotApplicable
from seepage.core.types import Broadcast, Detector, Finding, InputSpec, Modality
from seepage.guardian.detectors.calibrated import Reading, judge, thresholds
from seepage.guardian.detectors.layers import fresh_generator, tensors_of
from seepage.models.hooks import hooked, modules_of
from seepage.protocol import training_mode

Behaviour = Callable[[nn.Module, "Probe"], Reading]

_GRAIN = 4
"""Pixels a side for each random value of smooth noise. Tested:
test_constants_of_behaviour_detectors_lie_on_a_plateau."""


class Probe:
    """Where harmless inputs come from: public examples if there are some, noise in the value range if not."""

    def __init__(self, spec: InputSpec, sample: Tensor | None = None) -> None:
        self.spec, self.sample = spec, sample
        if sample is not None and (len(sample) < 8 or tuple(sample.shape[1:]) != spec.shape):
            raise DataError(
                f"the sample has shape {tuple(sample.shape)}: give at least 8 public examples of shape "
                f"{spec.shape}, as the model is fed them."
            )

    def inputs(self, count: int, *, like: nn.Module, white: bool = False) -> Tensor:
        """(count, *shape) as the model is fed them. `white`: independent values, never public examples."""
        parameter = next((p for p in like.parameters() if p.is_floating_point()), torch.zeros(1))
        generator = fresh_generator()  # fixed inputs could be avoided by a server that knows them
        if self.spec.modality is Modality.TEXT:
            if self.spec.vocabulary is None:
                raise DataError("the input specification of text has no vocabulary size: set `vocabulary`.")
            tokens = torch.randint(self.spec.vocabulary, (count, *self.spec.shape), generator=generator)
            return tokens.to(parameter.device)
        if self.sample is not None and not white:
            index = torch.randperm(len(self.sample), generator=generator)
            return self.sample[index[torch.arange(count) % len(index)]].to(parameter)
        return noise(self.spec, count, white=white, generator=generator).to(parameter)


def noise(spec: InputSpec, count: int, *, white: bool, generator: torch.Generator) -> Tensor:
    """Noise in the value range: white, or with shapes, contrast and brightness as pictures have them.

    >>> spec = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=2)
    >>> drawn = noise(spec, 3, white=False, generator=torch.Generator().manual_seed(0))
    >>> tuple(drawn.shape), bool((drawn >= 0).all() and (drawn <= 1).all())
    ((3, 1, 8, 8), True)
    """
    shape = (count, *spec.shape)
    if spec.modality is not Modality.IMAGE or white:
        unit = torch.rand(shape, generator=generator)
    else:
        _, height, width = spec.shape
        coarse = (count, spec.shape[0], max(2, height // _GRAIN), max(2, width // _GRAIN))
        grain = torch.randn(coarse, generator=generator)
        smooth = F.interpolate(grain, size=(height, width), mode="bilinear", align_corners=False)
        brightness = torch.randn(count, 1, 1, 1, generator=generator)
        unit = torch.sigmoid(2 * smooth + brightness)
    if spec.value_range is None:
        return 4 * unit - 2  # as wide as normalised values usually are
    low, high = spec.value_range
    return spec.to_model(low + (high - low) * unit)


def behaviour_detector(
    name: str, behaviour: Behaviour, spec: InputSpec | None, sample: Tensor | None
) -> Detector:
    """A detector that runs the model on harmless inputs, with batch statistics and dropout off."""

    def detect(broadcast: Broadcast) -> Finding:
        if spec is None:
            raise NotApplicable(
                "the shape of the inputs is not known, so the model could not be run: give its "
                "InputSpec (on the command line: --model and --sample)."
            )
        tensors_of(broadcast.model)
        with training_mode(broadcast.model, False):
            return judge(behaviour(broadcast.model, Probe(spec, sample)), thresholds(name))

    return detect


def run(model: nn.Module, inputs: Tensor) -> Tensor:
    """The logits, or a ModelError in one sentence."""
    try:
        output = model(inputs)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError) as error:
        raise ModelError(
            f"the model cannot be run on a batch of shape {tuple(inputs.shape)}: check that the input "
            "specification is the model's."
        ) from error
    if not isinstance(output, Tensor) or output.dim() != 2:
        raise ModelError(
            "the model does not return one row of logits for each example: wrap it so that it does."
        )
    return output


def recorded(model: nn.Module, inputs: Tensor, *kinds: type[nn.Module]) -> list[tuple[str, Tensor, Tensor]]:
    """(name, input, output) of each call of a module of these kinds, in the order of execution."""
    calls: list[tuple[str, Tensor, Tensor]] = []

    def record(name: str, _module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        calls.append((name, args[0].detach().clone(), output.detach()))

    with torch.no_grad(), hooked(modules_of(model, *kinds), after=record):
        run(model, inputs)
    return calls
