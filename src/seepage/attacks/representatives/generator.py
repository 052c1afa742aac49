"""A small generator of pictures for given classes, and the two adversaries that it is trained against.

Hitaj et al. 2017 ("Deep models under the GAN"): the shared model itself is the discriminator; the generator
learns pictures that the model calls the wanted class.

Wang et al. 2019 (mGAN-AI, "Beyond inferring class representatives"): the server's discriminator has several
tasks. Its body is the shared model after a victim's update; beside the model's own classes it learns real or
made (on public examples) and whose (on representatives of each client's update).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from seepage.core.types import InputSpec

LATENT = 32
"""Numbers that a picture is made from, beside its class. Cost: time."""
_WIDTH = 128
"""Neurons of the generator's first layer, and channels that its picture grows from. Cost: time."""
_GRAIN = 0.05
"""Weight of the mean difference of neighbouring pixels: a classifier alone is fooled by noise. No plateau
test yet."""

Judge = Callable[[Tensor, Tensor], Tensor]
"""Pictures (k, *shape) in model units and their classes (k,) to what the generator shall make small."""


class Generator(nn.Module):
    """From (k, LATENT) and classes (k,) to pictures in the raw value range, through smooth upsampling."""

    def __init__(self, spec: InputSpec, *, seed: int) -> None:
        super().__init__()
        self.spec = spec
        channels, height, width = spec.shape
        self.small = (-(-height // 4), -(-width // 4))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.first = nn.Linear(LATENT + spec.num_classes, _WIDTH)
            self.grow = nn.Linear(_WIDTH, 16 * self.small[0] * self.small[1])
            self.mix = nn.Conv2d(16, 16, 3, padding=1)
            self.last = nn.Conv2d(16, channels, 3, padding=1)

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """(k, *shape), raw values."""
        wanted = functional.one_hot(labels, self.spec.num_classes).to(z)
        x = functional.leaky_relu(self.first(torch.cat([z, wanted], dim=1)), 0.2)
        x = functional.leaky_relu(self.grow(x), 0.2).reshape(len(z), 16, *self.small)
        middle = (2 * self.small[0], 2 * self.small[1])
        x = functional.interpolate(x, size=middle, mode="bilinear", align_corners=False)
        x = functional.leaky_relu(self.mix(x), 0.2)
        x = functional.interpolate(x, size=self.spec.shape[1:], mode="bilinear", align_corners=False)
        low, high = self.spec.value_range or (0.0, 1.0)
        return low + (high - low) * torch.sigmoid(self.last(x))


def grain(pictures: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels.

    >>> grain(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]])).item()
    1.0
    """
    down = (pictures[:, :, 1:] - pictures[:, :, :-1]).abs().mean()
    return down + (pictures[:, :, :, 1:] - pictures[:, :, :, :-1]).abs().mean()


def taught(
    generator: Generator, judge: Judge, classes: Tensor, *, steps: int, seed: int, batch: int = 32
) -> Iterator[float]:
    """Trains the generator on the classes (c,) that are wanted; yields the judge's value after each step."""
    own = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(generator.parameters(), 2e-3, betas=(0.5, 0.999))
    like = generator.first.weight
    for _ in range(steps):
        labels = classes[torch.randint(len(classes), (batch,), generator=own)].to(like.device)
        raw = generator(torch.randn(batch, LATENT, generator=own).to(like), labels)
        value = judge(generator.spec.to_model(raw), labels)
        optimiser.zero_grad()
        (value + _GRAIN * grain(raw)).backward()
        optimiser.step()
        yield float(value.detach())
