"""The tables of Geiping et al. 2020: in small, on data that come with the package."""

import math

import pytest
import torch
from torch import nn

from seepage.attacks import ATTACKS
from seepage.federation import local_update
from seepage.papers import (
    PAPERS,
    geiping2020_architecture,
    geiping2020_batch,
    geiping2020_multi_step,
    geiping2020_single_image,
)
from seepage.papers.extraction import Source
from seepage.papers.geiping2020_architecture import BASE, VARIED, Shape, plain_convnet
from seepage.papers.geiping2020_batch import ranked
from seepage.papers.geiping2020_single_image import longest_gradient
from seepage.papers.inversion import Inverted, above_grey, draw_victims, grey, invert, pattern
from seepage.papers.table import Figure, Row
from seepage.types import Batch, Broadcast, InputSpec, LocalTraining, Modality
from seepage.workloads.data import load_data
from seepage.workloads.models.loading import build_model

PHOTOS = (Source("photos", "photos", ({},)),)
SPEC = InputSpec(modality=Modality.IMAGE, shape=(3, 8, 8), num_classes=4)
TABLES = (
    geiping2020_single_image,
    geiping2020_multi_step,
    geiping2020_batch,
    geiping2020_architecture,
)


def inverted(pictures, truth):
    return Inverted(pictures, truth, SPEC, 0.0)


@pytest.fixture(scope="module")
def photos():
    return load_data("photos")


@pytest.mark.parametrize("module", TABLES, ids=lambda module: module.NAME)
def test_every_table_is_registered(module):
    assert PAPERS[module.NAME].run is module.run
    assert PAPERS[module.NAME].default_seeds >= 5


def test_both_objectives_are_run_on_every_network(tmp_path, monkeypatch, photos):
    monkeypatch.setattr(geiping2020_single_image, "SOURCES", PHOTOS)
    monkeypatch.delenv("SEEPAGE_DATA", raising=False)
    few = {"idlg": {"steps": 5}, "inverting_gradients": {"steps": 3}}
    fewer = {"idlg": {"steps": 1}, "inverting_gradients": {"steps": 2}}
    table = geiping2020_single_image.run(
        seeds=1, out=tmp_path, quiet=True, lenet=few, resnet=fewer, training_steps=2
    )
    assert [(row.group, row.label) for row in table.rows] == [
        ("LeNet (Zhu)", "untrained"),
        ("LeNet (Zhu)", "trained"),
        ("ResNet-20", "untrained"),
    ]
    assert "SEEPAGE_DATA" in table.missing[0]
    figures = table.rows[0].figures
    batch, fresh = draw_victims(photos, 1, 0), build_model("lenet_zhu", photos.spec, seed=0)
    directly = invert(ATTACKS["idlg"](steps=5), fresh, batch, photos.spec, seed=0)
    assert figures["L-BFGS"].mean == pytest.approx(float(directly.psnr), abs=1e-3)
    error = (photos.spec.to_raw(batch.inputs) - 0.5).square().mean()
    assert figures["grey"].mean == pytest.approx(float(-10 * error.log10()), abs=1e-3)
    assert figures["L-BFGS"].paper is None


def test_the_longest_gradient_is_that_of_the_picture_the_network_is_wrong_about():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    inputs = torch.rand(6, 3, 8, 8)
    with torch.no_grad():
        model[1].weight.mul_(50)
        labels = model(inputs).argmax(1)
    labels[4] = (labels[4] + 1) % 4
    chosen = longest_gradient(model, Batch(inputs, labels))
    assert torch.equal(chosen.inputs, inputs[4:5])


def test_a_single_client_is_taken_as_it_is(photos):
    batch = draw_victims(photos, 1, 0)
    assert torch.equal(longest_gradient(nn.Identity(), batch).inputs, batch.inputs)


@pytest.mark.parametrize(
    ("shape", "features"),
    [
        (BASE, 16 * 8 * 8),
        (Shape(width=4, depth=3, strided=0), 4 * 32 * 32),
        (Shape(width=5, depth=6, strided=3), 5 * 4 * 4),
    ],
)
def test_the_plain_network_has_the_shape_it_says(shape, features):
    spec = InputSpec(modality=Modality.IMAGE, shape=(3, 32, 32), num_classes=10)
    model = plain_convnet(spec, shape=shape)
    assert sum(isinstance(layer, nn.Conv2d) for layer in model) == shape.depth
    assert model.head.in_features == features
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)


def test_one_property_is_varied_at_a_time():
    for name, shapes in VARIED:
        assert BASE in shapes
        for shape in shapes:
            assert all(
                getattr(shape, other) == getattr(BASE, other)
                for other in ("width", "depth", "strided", "activation")
                if other != name
            )


def test_architecture_has_a_row_for_each_shape(tmp_path, monkeypatch, photos):
    monkeypatch.setattr(geiping2020_architecture, "SOURCES", PHOTOS)
    small = Shape(width=2, depth=1, strided=1)
    smooth = Shape(width=2, depth=1, strided=1, activation="sigmoid")
    varied = (("width", [small]), ("activation", [small, smooth]))
    table = geiping2020_architecture.run(seeds=2, out=tmp_path, quiet=True, steps=3, varied=varied)
    assert [(row.group, row.label) for row in table.rows] == [
        ("channels varied", "2"),
        ("activation varied", "ReLU"),
        ("activation varied", "sigmoid"),
    ]
    width, relu, sigmoid = (row.figures for row in table.rows)
    assert width["PSNR"] == relu["PSNR"] != sigmoid["PSNR"]
    assert width["PSNR"].n == 2
    expected = [float(grey(draw_victims(photos, 1, seed), photos.spec).psnr) for seed in range(2)]
    assert width["grey"].mean == pytest.approx(sum(expected) / 2, rel=1e-6)


def test_one_local_step_is_a_gradient_and_more_are_replayed(tmp_path, monkeypatch, photos):
    monkeypatch.setattr(geiping2020_multi_step, "SOURCES", PHOTOS)
    table = geiping2020_multi_step.run(
        seeds=1, out=tmp_path, quiet=True, local_steps={1e-3: (1, 3)}, images=(1, 2), steps=3
    )
    assert [(row.group, row.label) for row in table.rows] == [
        ("learning rate 0.001, 1 picture", "1 local step"),
        ("learning rate 0.001, 1 picture", "3 local steps"),
        ("learning rate 0.001, 2 pictures", "1 local step"),
        ("learning rate 0.001, 2 pictures", "3 local steps"),
    ]
    for row in table.rows:
        assert row.figures["best"].mean >= row.figures["PSNR"].mean
    one = geiping2020_multi_step._training(1, 1e-3)
    three = geiping2020_multi_step._training(3, 1e-3)
    assert (one.num_steps(8), three.num_steps(8)) == (1, 3)
    model, batch = build_model("lenet_zhu", photos.spec), draw_victims(photos, 2, 0)
    gradient = local_update(Broadcast(model), batch, LocalTraining()).tensors["head.bias"]
    delta = local_update(Broadcast(model), batch, one).tensors["head.bias"]
    assert torch.allclose(delta, -1e-3 * gradient, atol=1e-6)


def test_pictures_above_grey_are_counted():
    truth = torch.full((3, 3, 8, 8), 0.3)  # grey is off by 0.2: 14 dB
    pictures = torch.stack([truth[0], truth[1] + 0.19, truth[2] + 0.3])  # exact; 14.4 dB; 10.5 dB
    assert above_grey(
        inverted(pictures, truth), inverted(torch.full_like(truth, 0.5), truth)
    ) == pytest.approx(1 / 3)


def test_pictures_are_ranked_from_the_best_to_the_worst():
    truth = torch.full((3, 3, 8, 8), 0.3)
    pictures = torch.stack([truth[0] + 0.2, truth[1] + 0.1, truth[2] + 0.4])
    found = ranked(inverted(pictures, truth))
    assert torch.equal(found.values, pictures[[1, 0, 2]])
    assert found.recall == 1


def test_a_batch_is_recovered_unevenly_and_drawn(tmp_path, monkeypatch, photos):
    monkeypatch.setattr(geiping2020_batch, "SOURCES", PHOTOS)
    tiny = Shape(width=2, depth=1, strided=1)
    table = geiping2020_batch.run(seeds=1, out=tmp_path, quiet=True, budgets={2: 2, 3: 2}, networks=[tiny])
    assert [row.label for row in table.rows] == ["2 pictures", "3 pictures"]
    for row in table.rows:
        means = [row.figures[name].mean for name in ("best", "upper tenth", "median", "worst")]
        assert means == sorted(means, reverse=True)
        assert all(math.isfinite(mean) for mean in means)
    three = table.rows[1].figures
    assert three["recovered"].mean == pytest.approx(3 * three["above grey"].mean)
    for size in (2, 3):
        path = tmp_path / f"batch-of-{size}-depth-1-width-2.png"
        assert path.read_bytes()[:4] == b"\x89PNG"
        assert any(str(path) in note for note in table.notes)


def row(group, label, **figures):
    return Row(group, label, {name: Figure.over([value]) for name, value in figures.items()})


def test_what_the_published_pattern_is_and_where_it_fails():
    rows = (
        row("LeNet (Zhu)", "untrained", **{"L-BFGS": 40, "cosine": 16, "grey": 12}),
        row("LeNet (Zhu)", "trained", **{"L-BFGS": 14, "cosine": 17, "grey": 12}),
        row("ResNet-20", "untrained", **{"L-BFGS": 9, "cosine": 14, "grey": 12}),
        row("ResNet-20", "trained", **{"L-BFGS": 8, "cosine": 12.5, "grey": 12}),
    )
    found = geiping2020_single_image.claims(rows)
    assert [claim for claim, holds in found.items() if not holds] == [
        "cosine works on ResNet-20, trained",
        "and for cosine on LeNet (Zhu)",
    ]
    assert len(found) == 1 + 4 + 2 + 2 * 2
    shows, does_not = pattern(found)
    assert "L-BFGS collapses on ResNet-20, untrained" in shows
    assert does_not.startswith("Does not show here: cosine works on ResNet-20, trained;")


def test_a_property_shows_only_if_every_row_follows_it():
    rows = [row("channels varied", str(n), PSNR=value) for n, value in ((4, 10), (8, 12), (16, 15))]
    assert geiping2020_architecture.claims(rows) == {"wider gives more away": True}
    rows[1] = row("channels varied", "8", PSNR=16)
    assert geiping2020_architecture.claims(rows) == {"wider gives more away": False}


def test_local_steps_protect_where_nothing_is_above_grey():
    rows = (
        row("g", "1 local step", PSNR=20, grey=12),
        row("g", "5 local steps", PSNR=13, grey=12),
        row("g", "10 local steps", PSNR=12.9, grey=12),
    )
    assert geiping2020_multi_step.claims(rows) == {
        "several local steps do not protect": True,
        "nor with g, 10 local steps": False,
    }
    assert geiping2020_multi_step.claims(rows[:2]) == {"several local steps do not protect": True}


def test_a_batch_is_uneven_where_its_best_tenth_is_above_its_median():
    names = ("recovered", "upper tenth", "median")
    rows = (
        row("g", "8", **dict(zip(names, (0.9, 14, 13), strict=True))),
        row("g", "100", **dict(zip(names, (1, 13.9, 13), strict=True))),
    )
    assert list(geiping2020_batch.claims(rows).values()) == [False, True, True, False]
