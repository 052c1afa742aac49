"""Where a search for examples begins: made-up inputs, seen through the span of what is still unknown.

An input that merely resembles an example switches most neurons as the example does, and that is near enough
for the search (with 1000 neurons and 128 examples, four of five starts that agree with an example in 83 % of
the neurons end at it). No data are needed for that: images are smooth and their channels much alike, rows of
a table have one category of each kind.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seepage.attacks.reading.unmixing.mixture import Mixture
from seepage.core.types import InputSpec, Modality
from seepage.models.hooks import layer_input
from seepage.models.layers import LinearLayer
from seepage.models.probes import dummy_inputs
from seepage.protocol.widening import model_placement

_CHROMA = 0.3
"""Size of what differs between the channels of an image, over what they share: c for channels that are
correlated by 1 / (1 + c^2). CIFAR-10's (test images 0 to 2999) are by .78 to .91: .53 to .31. Tested:
test_the_colour_of_made_up_pictures_lies_on_a_plateau."""
_EACH = 4
"""Made-up inputs for each unknown example, so that their span is all of it. No plateau test yet."""
_MOST_VALUES = 1 << 24
"""Of made-up inputs at a time. Cost: memory."""


def made_up_inputs(
    model: nn.Module, layer: LinearLayer, spec: InputSpec, *, model_units: bool, seed: int
) -> Callable[[int], Tensor]:
    """For u unknown examples, (t, m) things that the layer might read.

    model_units: clients normalise in a way that the server was not told.
    """

    def draw(unknown: int) -> Tensor:
        count = max(_EACH, min(_EACH * unknown, _MOST_VALUES // max(1, layer.in_features)))
        made = _made_up(spec, count, model_units=model_units, seed=seed)
        if made is None:
            inputs = dummy_inputs(spec, count, like=model, seed=seed, model_units=model_units)
        else:
            device, dtype = model_placement(model)
            inputs = made.to(device, dtype)
        return layer_input(model, layer.name, inputs)

    return draw


def _made_up(spec: InputSpec, count: int, *, model_units: bool, seed: int) -> Tensor | None:
    """(count, *shape) as the model is fed them; None where nothing is known that would help."""
    generator = torch.Generator().manual_seed(seed)
    if spec.modality is Modality.IMAGE and len(spec.shape) == 3:
        fields = smooth_fields(count, spec.shape, generator)
        if model_units or spec.value_range is None:
            return fields
        low, high = spec.value_range
        return spec.to_model((low + (high - low) * (0.5 + 0.25 * fields)).clamp(low, high))
    if spec.modality is Modality.TABULAR and len(spec.shape) == 1:
        return _rows(spec, count, generator, model_units=model_units)
    return None


def smooth_fields(count: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """(count, *shape) random fields with a mean of 0 and a variance of 1, whose power falls as 1/f^2.

    Natural images have that spectrum (Field 1987).

    >>> smooth_fields(2, (3, 8, 8), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 8, 8])
    """
    channels, height, width = shape

    def fields(kinds: int) -> Tensor:
        total = torch.zeros(count, kinds, height, width)
        side = 1
        while side < max(height, width):
            noise = torch.randn(count, kinds, side, side, generator=generator) / side
            total += F.interpolate(noise, size=(height, width), mode="bicubic", align_corners=False)
            side *= 2
        return total

    mixed = fields(1) + _CHROMA * fields(channels)
    return mixed / mixed.std().clamp_min(1e-6)


def _rows(spec: InputSpec, count: int, generator: torch.Generator, *, model_units: bool) -> Tensor:
    """Rows of a table: numbers over their range or around their mean, one category of each group."""
    size = (count, *spec.shape)
    told = spec.mean is not None and spec.std is not None
    if told or model_units or spec.value_range is None:
        rows = torch.randn(size, generator=generator)
        rows = spec.to_raw(rows) if not model_units else rows
    else:
        low, high = spec.value_range
        rows = low + (high - low) * torch.rand(size, generator=generator)
    if model_units:
        return rows
    for group in spec.categories:
        columns = torch.tensor(group)
        often = torch.tensor(spec.mean)[columns].clamp_min(1e-6) if told else torch.ones(len(group))
        picked = torch.multinomial(often.double(), count, replacement=True, generator=generator)
        rows[:, columns] = F.one_hot(picked, len(group)).to(rows)
    return spec.to_model(rows)


def starts_in(mixture: Mixture, span: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(count, u) coefficients of inputs like the made-up ones, in the span (u, d) of the unknown examples.

    Drawn with the made-up inputs' mean and covariance. What they lose by the projection on the span is given
    back to what is left of them, for an example lies in it as a whole.
    """
    made, ones = mixture.made_up, mixture.ones
    mean = made.mean(0)
    mixing = torch.randn(count, len(made), generator=generator, dtype=torch.float64).to(made)
    drawn = mean + mixing @ (made - mean) / max(1, len(made) - 1) ** 0.5
    inside = drawn @ span @ span.T
    towards = span @ (span.T @ ones)
    middle = towards / (towards @ ones).clamp_min(1e-30)  # the smallest a in the span with a ones = 1
    aside = inside - (inside @ ones).unsqueeze(1) * middle
    size = (mixture.reach - middle @ middle).clamp_min(0).sqrt()
    starts: Tensor = middle + aside / aside.norm(dim=1, keepdim=True).clamp_min(1e-30) * size
    return starts
