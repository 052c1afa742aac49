"""APRIL's equations against brute force, and the models it must refuse."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from seepage.attacks.closed_form.april import april
from seepage.attacks.closed_form.transformer.solve import solve_bilinear
from seepage.attacks.closed_form.transformer.tokens import trace_tokens
from seepage.core.errors import NotApplicable
from seepage.core.types import InputSpec, Knowledge, LocalTraining, Modality
from seepage.models import MODELS

from ..setting import GREY, attack, plain_vit, psnr, random_batch, seen

SHAPES = [(3, 6, 7, 4), (5, 5, 4, 4), (6, 4, 5, 3), (3, 5, 4, 6)]
"""N, d, e, D: more equations than unknowns, in both factors, in one, in the other."""


def kronecker(left: Tensor, kernel: Tensor) -> Tensor:
    """The matrix of P -> left^T P kernel^T on flattened P."""
    return torch.kron(left.T.contiguous(), kernel)


@pytest.mark.parametrize(("n", "d", "e", "wide"), SHAPES)
def test_exact_equations_are_solved_as_by_the_pseudo_inverse(n: int, d: int, e: int, wide: int) -> None:
    torch.manual_seed(n)
    left, kernel = torch.randn(n, d).double(), torch.randn(e, wide).double()
    right = left.T @ torch.randn(n, wide).double() @ kernel.T
    found = solve_bilinear(left, kernel, right, rounding=1e-16)
    brute = torch.linalg.pinv(kronecker(left, kernel)) @ right.flatten()
    torch.testing.assert_close(found.values.flatten(), brute, rtol=1e-7, atol=1e-9)
    assert found.residual < 1e-13
    assert found.token_condition == pytest.approx(float(torch.linalg.cond(left)) if n <= d else math.inf)
    assert found.embedding_condition == pytest.approx(
        float(torch.linalg.cond(kernel)) if wide <= e else math.inf
    )


def test_noise_is_measured_and_shrinks_as_ridge_regression_does() -> None:
    torch.manual_seed(0)
    left, kernel = torch.randn(6, 20).double(), torch.randn(18, 5).double()
    left[0] = left[1] + 1e-3 * torch.randn(20).double()  # nearly alike: one direction is lost in noise
    truth, sigma = torch.randn(6, 5).double(), 0.05
    right = left.T @ truth @ kernel.T + sigma * torch.randn(20, 18).double()
    found = solve_bilinear(left, kernel, right, rounding=1e-16)
    matrix = kronecker(left, kernel)
    best = torch.linalg.lstsq(matrix, right.flatten().unsqueeze(1)).solution.squeeze(1)
    beyond = right.flatten() - matrix @ best
    noise = beyond.square().sum() / (len(beyond) - len(best))
    assert math.sqrt(float(noise)) == pytest.approx(sigma, rel=0.1)
    covariance = torch.linalg.inv(matrix.T @ matrix / noise + torch.eye(30).double())
    ridge = covariance @ matrix.T @ right.flatten() / noise
    torch.testing.assert_close(found.values.flatten(), ridge, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(found.deviation.flatten(), covariance.diagonal().sqrt(), rtol=1e-7, atol=1e-9)
    assert found.residual == pytest.approx(float(beyond.norm() / right.norm()))
    assert 0.1 < found.deviation.max() < 1  # two patches are told apart only in their sum


def test_without_redundancy_the_residual_tells_nothing() -> None:
    torch.manual_seed(0)
    found = solve_bilinear(
        torch.randn(4, 4).double(), torch.randn(4, 4).double(), torch.randn(4, 4).double(), rounding=1e-16
    )
    assert not found.redundant and found.residual == 0.0


def test_the_traced_layout_gives_the_tokens_the_model_computes() -> None:
    model, data = plain_vit(dtype=torch.float32), random_batch()
    layout = trace_tokens(model, GREY)
    tokens: list[Tensor] = []
    model.get_submodule("blocks.0").register_forward_pre_hook(lambda _m, args: tokens.append(args[0][0]))
    model(data.inputs.float())
    made = layout.constant.clone()
    made[layout.first :] += layout.to_patches(data.inputs) @ layout.kernel.T
    torch.testing.assert_close(made.float(), tokens[0].detach(), rtol=1e-4, atol=1e-5)
    assert (layout.position, layout.first, layout.grid, layout.patch) == ("position", 1, (2, 3), (4, 4))
    assert layout.projections == tuple(f"blocks.0.attention.{n}.weight" for n in ("query", "key", "value"))
    assert torch.equal(layout.to_picture(layout.to_patches(data.inputs)), data.inputs)
    assert {p.dtype for p in model.parameters()} == {torch.float32}  # the model itself is left alone


class Fused(nn.Module):
    """Another transformer: one layer for query, key and value, positions (T, dim), no class token."""

    def __init__(
        self, *, frozen: str = "", dropout: float = 0.0, positions: bool = True, scaled: bool = False
    ) -> None:
        super().__init__()
        self.cut = nn.Conv2d(1, 20, 4, stride=4, bias=False)
        self.where = nn.Parameter(torch.randn(6, 20)) if positions else None
        self.drop = nn.Dropout(dropout)
        self.qkv = nn.Linear(20, 60, bias=False)
        self.head = nn.Linear(20, 4)
        self.scaled = scaled
        if frozen:
            self.get_parameter(frozen).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        z = self.cut(x).flatten(2).transpose(1, 2)
        z = z * z.abs() if self.scaled else z
        z = self.drop(z if self.where is None else z + self.where)
        q, k, v = self.qkv(z).chunk(3, dim=-1)
        mixed: Tensor = (q @ k.mT / 20**0.5).softmax(-1) @ v
        return self.head(mixed.tanh().mean(dim=1))  # type: ignore[no-any-return]


def test_a_transformer_of_other_make_is_found_by_its_behaviour() -> None:
    torch.manual_seed(0)
    model, data = Fused().double(), random_batch()
    assert psnr(attack(seen(model, data)).values, data.inputs) > 100


TEXT = InputSpec(modality=Modality.TEXT, shape=(5,), num_classes=2, vocabulary=9)


@pytest.mark.parametrize(
    ("model", "spec", "reason"),
    [
        (plain_vit(norm=True, residual=True), GREY, "layer norm"),
        (plain_vit(norm=True), GREY, "layer norm"),
        (plain_vit(residual=True), GREY, "residual connection"),
        (MODELS["mlp"].build(GREY), GREY, "no vision transformer"),
        (MODELS["lenet_zhu"].build(GREY), GREY, "no vision transformer"),
        (
            nn.Sequential(nn.Conv2d(1, 8, 4, stride=4), nn.Flatten(), nn.Linear(48, 4)),
            GREY,
            "no linear layer reads tokens",
        ),
        (MODELS["text_classifier"].build(TEXT), TEXT, "no pictures"),
        (Fused(frozen="where"), GREY, "no position embedding"),
        (Fused(frozen="qkv.weight"), GREY, "is frozen"),
        (Fused(positions=False), GREY, "no position embedding"),
        (Fused(scaled=True), GREY, "plus something known"),
    ],
)
def test_other_models_are_refused_in_one_sentence(model: nn.Module, spec: InputSpec, reason: str) -> None:
    with pytest.raises(NotApplicable, match=reason) as refusal:
        april().check(model, Knowledge(input=spec))
    assert str(refusal.value).count(". ") == 0 and str(refusal.value).endswith(".")


def test_dropout_on_the_tokens_matters_in_train_mode_only() -> None:
    model = Fused(dropout=0.5)
    april().check(model, Knowledge(input=GREY, local=LocalTraining()))
    with pytest.raises(NotApplicable, match="dropout"):
        april().check(model, Knowledge(input=GREY, local=LocalTraining(batch_norm="train")))


def test_an_update_without_gradient_at_the_tokens_is_refused() -> None:
    torch.manual_seed(0)
    model = Fused().double()
    exchange = seen(model, random_batch())
    tensors = {name: torch.zeros_like(t) for name, t in exchange.update.tensors.items()}
    with pytest.raises(NotApplicable, match="is zero at every patch"):
        attack(replace(exchange, update=replace(exchange.update, tensors=tensors)))
    nn.init.zeros_(model.head.weight)
    with pytest.raises(NotApplicable, match="does not depend on its tokens"):
        attack(exchange)
