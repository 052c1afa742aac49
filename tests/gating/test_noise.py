"""How much noise the gate asks for, against derivatives and estimates that are computed another way."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev

from seepage.core.types import Batch, Broadcast, InputSpec, LocalTraining, Modality, Update
from seepage.gating import Gatekeeper, gate
from seepage.gating.attacked import PICTURE, Site
from seepage.gating.measuring import site_of
from seepage.gating.noise import HIDDEN, _largest, needed_noise
from seepage.protocol import client

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 4, 4), num_classes=3)


def net() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 30), nn.Tanh(), nn.Linear(30, 3))


def private(count: int) -> Batch:
    generator = torch.Generator().manual_seed(5)
    return Batch(torch.rand(count, 1, 4, 4, generator=generator), torch.arange(count) % 3)


def update_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of one example, as a function of it, by torch.func alone."""
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(values: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(functional_call(model, values, (x[None],)), y[None])

    return torch.cat([g.flatten() for g in grad(loss)(weights).values()])


def test_sensitivity_is_the_norm_of_the_jacobian() -> None:
    model, batch = net(), private(3)
    exact = []
    for x, y in zip(batch.inputs, batch.labels, strict=True):
        jacobian = jacrev(lambda v, y=y: update_of(model, v, y))(x)
        exact.append(float(jacobian.flatten(1).square().sum()) / 9)  # the mean over three examples
    found = _largest(site_of(model, batch, spec=SPEC))
    assert 0.6 * max(exact) < found < 1.7 * max(exact)
    steps = LocalTraining(algorithm="fedavg", lr=1.0)  # one step of rate 1: the same update
    together = _largest(site_of(model, batch, spec=SPEC, local=steps))
    assert 0.6 * sum(exact) < together < 1.7 * sum(exact)


def test_no_estimate_that_knows_all_else_is_better_than_the_bound() -> None:
    """Least squares from the truth on, the best there is: its error is no smaller than what was asked for."""
    model, batch = net(), private(3)
    site = site_of(model, batch, spec=SPEC)
    sigma = needed_noise(site)
    x, y = batch.inputs[0], batch.labels[0]
    jacobian = jacrev(lambda v: update_of(model, v, y))(x).flatten(1) / 3  # (P, d)
    factor = 1 / max(1.0, float(_norm(site)))
    noise = torch.randn(200, len(jacobian), generator=torch.Generator().manual_seed(6)) * sigma / factor
    errors = noise @ torch.linalg.pinv(jacobian).T  # (200, d)
    psnr = -10 * math.log10(float(errors.square().mean()))
    assert psnr < HIDDEN
    assert needed_noise(site, _twice(site)) <= sigma * 1.0001  # clipping takes a longer update back


def _norm(site: Site) -> Tensor:
    tensors = client(site.local)(Broadcast(site.model), site.batch).tensors
    return torch.cat([t.flatten() for t in tensors.values()]).norm()


def _twice(site: Site) -> Update:
    sent = client(site.local)(Broadcast(site.model), site.batch)
    return Update(
        kind=sent.kind, tensors={n: 1e3 * t for n, t in sent.tensors.items()}, num_examples=len(site.batch)
    )


def test_rows_of_an_altered_update_are_no_pictures() -> None:
    """Each example fires neurons of its own, so plain division reads all; it needs no search at all."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 200), nn.ReLU(), nn.Linear(200, 3))
    batch = private(4)
    sent = client(LocalTraining())(Broadcast(model), batch)
    for update, expected in (
        (sent, True),
        (Gatekeeper("noise", {"spec": SPEC, "budget": 0.2}).decide(model, sent, batch), False),
    ):
        assert update is not None
        bias = update.tensors["1.bias"]
        rows = (update.tensors["1.weight"] / bias[:, None])[bias != 0]
        error = torch.cdist(rows, batch.inputs.flatten(1)).square().amin(dim=0) / 16
        assert bool((-10 * error.log10() > PICTURE).any()) == expected


def test_noise_that_hides_by_the_bound_clears_what_the_pass_shows() -> None:
    """Alone in the batch, an example is isolated whatever is sent; under enough noise that says nothing."""
    model, batch = net(), private(1)
    sigma = needed_noise(site_of(model, batch, spec=SPEC))
    drowned = {n: torch.randn_like(p) * sigma for n, p in model.named_parameters()}
    options = {"spec": SPEC, "advice": False, "budget": 0.2}
    assert gate(model, drowned, batch, noise=sigma, **options).exposed == []
    assert gate(model, None, batch, **options).exposed == [0]


def test_tokens_get_noise_as_large_as_their_share() -> None:
    torch.manual_seed(8)
    model = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(12, 2))
    batch = Batch(torch.randint(20, (2, 3)), torch.tensor([0, 1]))
    site = site_of(model, batch)
    shares = []
    for i in range(2):
        own = client(LocalTraining())(Broadcast(model), batch.select(torch.tensor([i]))).tensors
        shares.append(float(torch.cat([t.flatten() for t in own.values()]).norm()) / 2)
    assert abs(needed_noise(site) * max(1.0, float(_norm(site))) - max(shares)) < 1e-4
    kept = Gatekeeper("noise").decide(model, client(LocalTraining())(Broadcast(model), batch), batch)
    assert kept is not None  # no attack on texts begins under so much noise, and the bound says enough
