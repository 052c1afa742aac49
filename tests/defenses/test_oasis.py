"""OASIS: the copies, their order, and the mean over all of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import nn

from seepage.core.errors import DataError
from seepage.core.types import Batch, Broadcast, LocalTraining, Update, UpdateKind
from seepage.defenses.oasis import MINOR_DEGREES, TRANSFORMS, oasis, with_copies
from seepage.protocol import client, local_update

IMAGES = torch.rand(3, 2, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
BATCH = Batch(IMAGES, torch.tensor([4, 0, 2]))

BY_NUMPY = {
    "rotate90": lambda x: np.rot90(x, 1, (2, 3)),
    "rotate180": lambda x: np.rot90(x, 2, (2, 3)),
    "rotate270": lambda x: np.rot90(x, 3, (2, 3)),
    "flip_horizontal": lambda x: x[:, :, :, ::-1],
    "flip_vertical": lambda x: x[:, :, ::-1],
}


@pytest.mark.parametrize("name", BY_NUMPY)
def test_exact_transforms_against_numpy(name) -> None:
    assert np.array_equal(TRANSFORMS[name](IMAGES).numpy(), BY_NUMPY[name](IMAGES.numpy()))


def smooth_image(height: int, width: int) -> np.ndarray:
    """A spot that has faded before the border, where libraries fill in differently."""
    y, x = np.mgrid[:height, :width]
    return np.exp(-((x - width / 2 - 3) ** 2 / 8 + (y - height / 2 + 2) ** 2 / 12))


SIZES = [(41, 41), (40, 56)]


@pytest.mark.parametrize("size", SIZES)
def test_minor_rotation_against_scipy(size) -> None:
    image = smooth_image(*size)
    ours = TRANSFORMS["rotate_minor"](torch.tensor(image)[None, None])[0, 0].numpy()
    other = ndimage.rotate(image, MINOR_DEGREES, reshape=False, order=1)
    assert np.abs(ours - other).max() < 1e-6
    assert np.abs(ours - image).max() > 0.1


@pytest.mark.parametrize("size", SIZES)
def test_shear_against_scipy(size) -> None:
    image = smooth_image(*size)
    ours = TRANSFORMS["shear"](torch.tensor(image)[None, None])[0, 0].numpy()
    matrix = np.array([[1.0, 0.0], [0.5, 1.0]])  # (row, column): the column moves by half the row
    centre = (np.array(size) - 1) / 2
    other = ndimage.affine_transform(image, matrix, offset=centre - matrix @ centre, order=1)
    assert np.abs(ours - other).max() < 1e-6


def test_the_batch_is_doubled_and_copies_stand_beside_their_original() -> None:
    both = with_copies(BATCH, ["flip_vertical"])
    assert both.labels.tolist() == [4, 4, 0, 0, 2, 2]
    assert torch.equal(both.inputs[::2], IMAGES)
    assert torch.equal(both.inputs[1::2], IMAGES.flip(-2))
    assert len(with_copies(BATCH, list(TRANSFORMS))) == 3 * (1 + len(TRANSFORMS))


def test_the_update_is_the_mean_over_originals_and_copies() -> None:
    received = Broadcast(nn.Sequential(nn.Flatten(), nn.Linear(50, 5)).double())
    sent = client(LocalTraining(), [oasis(transforms=["rotate180", "flip_vertical"])])(received, BATCH)
    parts = [IMAGES, IMAGES.rot90(2, (2, 3)), IMAGES.flip(-2)]
    each = [local_update(received, Batch(x, BATCH.labels), LocalTraining()) for x in parts]
    for name, tensor in sent.tensors.items():
        assert torch.allclose(tensor, sum(u.tensors[name] for u in each) / 3, atol=1e-12)
    assert sent.num_examples == 3


def test_the_next_step_receives_the_copies() -> None:
    seen: list[Batch] = []

    def step(broadcast: Broadcast, batch: Batch) -> Update:
        seen.append(batch)
        return Update(kind=UpdateKind.GRADIENT, tensors={}, num_examples=len(batch))

    oasis()(Broadcast(nn.Identity()), BATCH, step)
    assert len(seen[0]) == 12


def test_other_inputs_are_refused() -> None:
    with pytest.raises(DataError, match="OASIS transforms images"):
        with_copies(Batch(torch.rand(2, 7), torch.zeros(2, dtype=torch.long)), ["shear"])
    with pytest.raises(DataError, match="OASIS transforms images"):
        with_copies(Batch(torch.ones(2, 1, 3, 3, dtype=torch.long), torch.zeros(2)), ["rotate180"])
    wide = Batch(torch.rand(2, 1, 4, 6), torch.zeros(2, dtype=torch.long))
    with pytest.raises(DataError, match="a quarter turn of 4 x 6 images"):
        with_copies(wide, ["rotate90"])
    assert len(with_copies(wide, ["rotate180"])) == 4


@pytest.mark.parametrize("transforms", [[], "rotate90"])
def test_oasis_wants_a_list(transforms) -> None:
    with pytest.raises(ValueError, match="transforms must be a list of at least one name"):
        oasis(transforms=transforms)


def test_oasis_names_the_nearest_transform() -> None:
    with pytest.raises(ValueError, match="unknown transform 'rotate_90': did you mean 'rotate90'"):
        oasis(transforms=["rotate_90"])
