"""The models: published sizes, output shapes, and parts against a second way of computing them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from seepage.core.errors import ModelError
from seepage.core.types import InputSpec, Modality
from seepage.models import MODELS
from seepage.models.zoo.resnet import PadShortcut
from seepage.models.zoo.vit import Attention


def image_spec(channels: int = 3, size: int = 32, classes: int = 10) -> InputSpec:
    return InputSpec(modality=Modality.IMAGE, shape=(channels, size, size), num_classes=classes)


SPECS = {
    Modality.IMAGE: image_spec(1, 28, 7),
    Modality.TABULAR: InputSpec(modality=Modality.TABULAR, shape=(14,), num_classes=5),
    Modality.TEXT: InputSpec(modality=Modality.TEXT, shape=(6,), num_classes=2, vocabulary=40),
}
SMALL: dict[str, dict[str, object]] = {
    "fcnn": {"width": 20, "hidden": (12, 8)},
    "vgg_like": {"filters": (3, 4), "width": 10},
    "convnet": {"width": 4},
    "resnet18": {"width": 4},
    "imdb_net": {"dim": 5, "width": 8},
}


def num_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "spec", "params", "published"),
    [
        ("resnet20", image_spec(), {}, 269_722),
        ("resnet32", image_spec(), {}, 464_154),
        ("resnet56", image_spec(), {}, 853_018),
        ("resnet18", image_spec(3, 224, 1000), {}, 11_689_512),  # torchvision
        ("resnet18", image_spec(), {}, 11_173_962),  # kuangliu/pytorch-cifar
        ("vit", image_spec(3, 224, 1000), {"patch_size": 16, "dim": 192, "depth": 12, "heads": 3}, 5_717_416),
        (
            "vit",
            image_spec(3, 224, 1000),
            {"patch_size": 16, "dim": 768, "depth": 12, "heads": 12},
            86_567_656,
        ),
        # Layer by layer from the papers' tables:
        ("fcnn", image_spec(1, 28), {}, 785_000 + 3_003_000 + 9_003_000 + 6_002_000 + 2_001_000 + 10_010),
        ("vgg_like", image_spec(), {}, 3_584 + 295_168 + 1_180_160 + 524_289_000 + 10_010),
        ("efficientnet_lite0", image_spec(3, 224, 1000), {}, 4_652_008),  # the published checkpoint
        ("lenet_zhu", image_spec(classes=100), {}, 912 + 2 * 3_612 + 76_900),
        (
            "convnet",
            image_spec(),
            {},
            9 * 64 * 64 * (0 + 2 + 4 + 8 + 4 * 16) + 27 * 64 + 3 * 64 * (1 + 2 * 2 + 4 * 5) + 23_050,
        ),
        (
            "imdb_net",
            InputSpec(modality=Modality.TEXT, shape=(250,), num_classes=2, vocabulary=10_000),
            {},
            2_500_000 + 62_501_000 + 1_001,
        ),
    ],
)
def test_parameter_counts(name: str, spec: InputSpec, params: dict[str, int], published: int) -> None:
    with torch.device("meta"):  # sizes without memory: vgg_like would take 2 GB
        model = MODELS[name].build(spec, **params)
    assert num_parameters(model) == published


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("modality", Modality)
def test_every_model_takes_its_modalities_and_refuses_the_others(name: str, modality: Modality) -> None:
    entry, spec = MODELS[name], SPECS[modality]
    if modality not in entry.modalities:
        with pytest.raises(ModelError, match=f"model '{name}'"):
            entry.build(spec, **SMALL.get(name, {}))
        return
    model = entry.build(spec, **SMALL.get(name, {})).eval()
    ids = torch.zeros(2, *spec.shape, dtype=torch.long)
    output = model(ids if modality is Modality.TEXT else torch.rand(2, *spec.shape))
    assert output.shape == (2, 1 if name == "imdb_net" else spec.num_classes)


@pytest.mark.parametrize("name", MODELS)
def test_every_relu_is_its_own_module_and_nothing_is_in_place(name: str) -> None:
    entry = MODELS[name]
    modality = sorted(entry.modalities)[0]
    spec = SPECS[modality]
    model = entry.build(spec, **SMALL.get(name, {})).eval()
    calls = {m: 0 for m in model.modules() if isinstance(m, nn.ReLU | nn.ReLU6 | nn.Sigmoid | nn.GELU)}
    assert calls and not any(getattr(m, "inplace", False) for m in calls)
    for module in calls:
        module.register_forward_hook(lambda m, _inputs, _output: calls.__setitem__(m, calls[m] + 1))
    dtype = torch.long if modality is Modality.TEXT else torch.float32
    model(torch.ones(2, *spec.shape, dtype=dtype))
    assert set(calls.values()) == {1}


@pytest.mark.parametrize("name", [n for n in MODELS if Modality.TEXT not in MODELS[n].modalities])
def test_gradient_matching_can_be_differentiated(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name].build(SPECS[Modality.IMAGE], **SMALL.get(name, {})).eval()
    inputs = torch.rand(2, 1, 28, 28, requires_grad=True)
    loss = F.cross_entropy(model(inputs), torch.tensor([0, 1]))
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    (second,) = torch.autograd.grad(sum(g.pow(2).sum() for g in gradients), inputs)
    assert bool(torch.isfinite(second).all())
    assert float(second.abs().max()) > 0


def test_pad_shortcut_is_option_a() -> None:
    x = torch.rand(2, 4, 6, 6)
    out = PadShortcut(new_channels=4, stride=2)(x)
    expected = torch.zeros(2, 8, 3, 3)
    for channel in range(4):
        for row in range(3):
            for column in range(3):
                expected[:, channel + 2, row, column] = x[:, channel, 2 * row, 2 * column]
    assert torch.equal(out, expected)


def test_attention_agrees_with_torchs_multihead_attention() -> None:
    torch.manual_seed(0)
    ours = Attention(dim=12, heads=3)
    theirs = nn.MultiheadAttention(12, 3, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key.weight, ours.value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key.bias, ours.value.bias]))
        theirs.out_proj.weight.copy_(ours.projection.weight)
        theirs.out_proj.bias.copy_(ours.projection.bias)
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(ours(x), theirs(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize(("plain", "holds"), [(True, True), (False, False)])
def test_aprils_linear_system_holds_without_first_norm_and_residual(plain: bool, holds: bool) -> None:
    """(dL/dz)^T z = Wq^T dWq + Wk^T dWk + Wv^T dWv, where dL/dz is the gradient of the positions."""
    torch.manual_seed(0)
    model = (
        MODELS["vit"]
        .build(
            image_spec(1, 8, 3),
            dim=8,
            heads=2,
            norm_first_block=not plain,
            residual_first_block=not plain,
        )
        .double()
    )
    x = torch.rand(1, 1, 8, 8, dtype=torch.float64)
    embedded: list[torch.Tensor] = []
    model.blocks[0].register_forward_pre_hook(lambda _m, inputs: embedded.append(inputs[0][0].detach()))
    F.cross_entropy(model(x), torch.tensor([1])).backward()
    attention = model.blocks[0].attention
    projections = (attention.query, attention.key, attention.value)
    right = sum(layer.weight.T @ layer.weight.grad for layer in projections)
    left = model.position.grad[0].T @ embedded[0]
    assert torch.allclose(left, right.detach(), rtol=1e-9, atol=1e-12) is holds


def test_resnet18_stem_follows_the_image_size() -> None:
    with torch.device("meta"):
        kernel = {
            (size, stem): MODELS["resnet18"].build(image_spec(size=size), stem=stem).conv1.kernel_size[0]
            for size in (64, 65)
            for stem in ("auto", "imagenet", "cifar")
        }
    assert kernel == {
        (64, "auto"): 3,
        (64, "imagenet"): 7,
        (64, "cifar"): 3,
        (65, "auto"): 7,
        (65, "imagenet"): 7,
        (65, "cifar"): 3,
    }


@pytest.mark.parametrize(
    ("name", "spec", "params", "words"),
    [
        ("mlp", image_spec(), {"hidden": (8, -1)}, "hidden must be positive"),
        ("fcnn", image_spec(), {"width": "wide"}, "width must be"),
        ("convnet", image_spec(size=8), {}, "at least 9x9"),
        ("vit", image_spec(size=30), {}, "patch_size that divides"),
        ("vit", image_spec(), {"dim": 10, "heads": 3}, "multiple of heads"),
        ("resnet18", image_spec(), {"stem": "large"}, "stem must be"),
        (
            "imdb_net",
            InputSpec(modality=Modality.TEXT, shape=(4,), num_classes=3, vocabulary=9),
            {},
            "text_classifier",
        ),
        ("text_classifier", InputSpec(modality=Modality.TEXT, shape=(4,), num_classes=3), {}, "vocabulary"),
    ],
)
def test_impossible_sizes_are_refused(
    name: str, spec: InputSpec, params: dict[str, object], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        MODELS[name].build(spec, **params)


def test_embeddings_are_drawn_as_keras_draws_them() -> None:
    spec = InputSpec(modality=Modality.TEXT, shape=(2,), num_classes=2, vocabulary=5000)
    torch.manual_seed(0)
    weight = MODELS["imdb_net"].build(spec, dim=20, width=2).embedding.weight.detach()
    assert float(weight.abs().max()) <= 0.05
    assert float(weight.std()) == pytest.approx(0.1 / 12**0.5, rel=0.01)


def test_lenet_is_drawn_from_half_to_half() -> None:
    torch.manual_seed(0)
    model = MODELS["lenet_zhu"].build(image_spec())
    values = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert float(values.abs().max()) <= 0.5
    assert float(values.std()) == pytest.approx(1 / 12**0.5, rel=0.02)
