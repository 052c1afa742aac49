"""Building from names, functions and modules, and the check of a forward pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from seepage.core.errors import ModelError
from seepage.core.types import InputSpec, Modality
from seepage.models.loading import build_model, check_forward

ROWS = InputSpec(modality=Modality.TABULAR, shape=(4,), num_classes=3)
IMAGES = InputSpec(modality=Modality.IMAGE, shape=(3, 32, 32), num_classes=10)
TEXT = InputSpec(modality=Modality.TEXT, shape=(6,), num_classes=2, vocabulary=30)


def states_equal(a: nn.Module, b: nn.Module) -> bool:
    return all(
        torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("initialiser", [None, "gaussian_0.1"])
def test_same_seed_same_weights_and_the_global_state_stays(initialiser: str | None) -> None:
    before = torch.get_rng_state()
    first = build_model("resnet20", IMAGES, seed=3, initialiser=initialiser)
    second = build_model("resnet20", IMAGES, seed=3, initialiser=initialiser)
    other = build_model("resnet20", IMAGES, seed=4, initialiser=initialiser)
    assert states_equal(first, second)
    assert not torch.equal(first.conv1.weight, other.conv1.weight)
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_are_loaded_and_then_the_initialiser_runs(tmp_path: Path) -> None:
    source = build_model("mlp", ROWS, seed=1)
    torch.save(source.state_dict(), tmp_path / "w.pt")
    assert states_equal(build_model("mlp", ROWS, seed=2, weights=tmp_path / "w.pt"), source)
    redrawn = build_model("mlp", ROWS, seed=2, weights=tmp_path / "w.pt", initialiser="gaussian_1")
    assert not torch.equal(redrawn.dense0.weight, source.dense0.weight)
    assert not bool(redrawn.dense0.bias.any())


def test_a_module_is_copied_and_frozen_parameters_stay_frozen() -> None:
    original = nn.Sequential(nn.Linear(4, 3)).requires_grad_(False)
    built = build_model(original, ROWS)
    assert states_equal(built, original)
    assert built[0].weight is not original[0].weight
    assert not any(p.requires_grad for p in built.parameters())
    assert not original[0].weight.requires_grad
    with pytest.raises(ModelError, match="takes no hyperparameters"):
        build_model(original, ROWS, width=3)


def takes_spec(spec: InputSpec, *, width: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(spec.shape[0], width), nn.ReLU(), nn.Linear(width, spec.num_classes))


def takes_spec_by_keyword(*, spec: InputSpec, width: int = 5) -> nn.Module:
    return takes_spec(spec, width=width)


def takes_it_under_another_name(data: InputSpec, width: int = 5) -> nn.Module:
    return takes_spec(data, width=width)


def takes_only_a_width(width: int = 5) -> nn.Module:
    return takes_spec(ROWS, width=width)


@pytest.mark.parametrize(
    "function", [takes_spec, takes_spec_by_keyword, takes_it_under_another_name, takes_only_a_width]
)
def test_a_callable_gets_the_spec_where_it_has_a_place_for_it(function) -> None:  # type: ignore[no-untyped-def]
    assert build_model(function, ROWS, seed=2)[0].out_features == 5
    assert build_model(function, ROWS, seed=2, width=7)[0].out_features == 7


def test_a_function_is_imported_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "own_models_for_seepage"
    folder.mkdir()
    (folder / "nets.py").write_text(
        "from torch import nn\n"
        "def make(spec, width=6):\n"
        "    return nn.Sequential(nn.Linear(spec.shape[0], width), nn.Linear(width, spec.num_classes))\n"
        "def number():\n    return 3\n"
        "def fails():\n    raise ValueError('no such thing')\n"
    )
    (folder / "broken.py").write_text("def make(:\n")
    monkeypatch.chdir(tmp_path)
    model = build_model("own_models_for_seepage.nets:make", ROWS, width=9)
    assert model[0].out_features == 9
    assert check_forward(model, ROWS) == (2, 3)
    for reference, words in [
        ("own_models_for_seepage.nets:mak", "did you mean 'make'"),
        ("own_models_for_seepage.nets:number", "gave an object of type int"),
        ("own_models_for_seepage.nets:fails", "ValueError: no such thing"),
        ("own_models_for_seepage.broken:make", "SyntaxError"),
        ("own_models_for_seepage.absent:make", "cannot be imported"),
        ("own_models_for_seepage.nets:", "names no function"),
    ]:
        with pytest.raises(ModelError, match=words):
            build_model(reference, ROWS)


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(ModelError, match=r"did you mean 'resnet20'\?.*package.module:function"):
        build_model("resnet_20", IMAGES)
    with pytest.raises(
        ModelError, match="unknown hyperparameter of model 'mlp' 'hiden': did you mean 'hidden'"
    ):
        build_model("mlp", ROWS, hiden=(3,))


def test_named_weights_say_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="no trained weights for 'mlp', only for resnet20"):
        build_model("mlp", IMAGES, weights="pretrained")
    monkeypatch.delenv("SEEPAGE_DATA", raising=False)
    with pytest.raises(ModelError, match="SEEPAGE_DATA is not set"):
        build_model("resnet20", IMAGES, weights="pretrained")
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path))
    with pytest.raises(ModelError, match="are not at"):
        build_model("resnet20", IMAGES, weights="pretrained")
    (tmp_path / "weights").mkdir()
    source = build_model("resnet20", IMAGES, seed=8)
    torch.save(source.state_dict(), tmp_path / "weights" / "cifar10_resnet20.pt")
    assert states_equal(build_model("resnet20", IMAGES, weights="pretrained"), source)


def test_check_forward_accepts_what_fits() -> None:
    assert check_forward(build_model("resnet20", IMAGES), IMAGES, device="cpu") == (2, 10)
    assert check_forward(build_model("imdb_net", TEXT, dim=3, width=4), TEXT) == (2, 1)
    assert check_forward(build_model("text_classifier", TEXT), TEXT) == (2, 2)
    assert check_forward(build_model("mlp", ROWS).double(), ROWS) == (2, 3)


def test_check_forward_leaves_the_model_as_it_was() -> None:
    model = build_model("resnet20", IMAGES)
    model.layer1.eval()  # a mixed state, as when part of a model is frozen
    modes = [m.training for m in model.modules()]
    state = {k: v.clone() for k, v in model.state_dict().items()}
    check_forward(model, IMAGES)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


class GivesDict(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return {"logits": x}  # type: ignore[return-value]


class GivesNan(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :3] / 0 * 0


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Linear(5, 3), r"batch of shape \(2, 4\).*takes 5 values"),
        (nn.Conv2d(3, 3, 1), r"shape \(4,\).*takes 3 channels"),
        (nn.Linear(4, 2), r"returned shape \(2, 2\).*3 classes need \(2, 3\)"),
        (nn.Linear(4, 7), r"or give num_classes = 7 with the data"),
        (nn.Linear(4, 1), r"one number for an example.*3 classes"),  # one output is for two classes only
        (nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)), r"returned shape \(6,\)"),
        (GivesDict(), "returned a dict"),
        (GivesNan(), "returned NaN"),
        (nn.Sequential(nn.Linear(4, 3), nn.Threshold(1e9, float("inf"))), "infinite values"),
    ],
)
def test_check_forward_says_what_does_not_fit(model: nn.Module, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        check_forward(model, ROWS)


def test_a_table_that_is_wider_than_its_file_says_why() -> None:
    spec = InputSpec(modality=Modality.TABULAR, shape=(9,), num_classes=2, categories=((3, 4), (5, 6, 7, 8)))
    said = "the table's 5 columns are 9 values; write the function as build"
    with pytest.raises(ModelError, match=said):
        check_forward(nn.Linear(5, 2), spec)
