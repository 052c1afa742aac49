"""Class representatives by generative models (Hitaj et al. 2017; Wang et al. 2019, mGAN-AI).

What comes out is what a class looks like to the model, not an example of anybody's: nothing is claimed. It is
shown beside the examples that it comes nearest to and beside the guess, as every attack is, by the scoring
side alone. Where all of a class look alike (one face a class), a class's likeness is private by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from seepage.attacks.base import Attack
from seepage.attacks.representatives.generator import LATENT, Generator, Judge, taught
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.progress import Clock
from seepage.core.registry import lookup
from seepage.core.settings import check_budget
from seepage.core.types import Batch, Exchange, Grant, Knowledge, Modality, Reconstruction
from seepage.labels import counts_if_inferred
from seepage.models.hooks import layer_input, watching
from seepage.models.layers import output_layer, trace_linear_layers
from seepage.models.probes import run_model
from seepage.protocol import apply_update, trainable, training_mode

METHODS = {
    "mgan_ai": "a discriminator of several tasks on each client's updated model; needs public examples",
    "hitaj": "the newest model is the discriminator; for all clients together",
}
_KNOWS = 2.0
"""Times the accuracy of guessing below which a model has not learnt its classes. Derived: a likeness that is
right by chance half of the time shows nothing."""
_MOST = 64
"""Pictures for an update. Cost: memory, of which an assignment needs the square."""
_FITTED = 30
"""Steps of the search for a client's representatives. Cost: time."""
_PUBLIC = 64
"""Public examples in a step of the discriminator. Cost: time."""


@dataclass(frozen=True)
class Likeness:
    """Pictures (k, *shape) in raw values and the classes (k,) that they shall look like."""

    pictures: Tensor
    classes: Tensor


@dataclass(kw_only=True, eq=False)
class ClassRepresentatives(Attack):
    """Trains a generator; passive."""

    method: str
    steps: int
    budget: float | None

    any_training = True

    def __post_init__(self) -> None:
        self.requires = frozenset({Grant.AUXILIARY}) if self.method == "mgan_ai" else frozenset()

    def check(self, model: nn.Module, known: Knowledge) -> None:
        spec = known.input
        if spec.modality is not Modality.IMAGE or len(spec.shape) != 3:
            raise NotApplicable("its generator makes pictures, and the inputs are none: use another attack.")
        if spec.num_classes < 2 or "cross_entropy" not in known.loss or known.loss.startswith("binary"):
            raise NotApplicable("representatives of classes need a model with an output for each class.")
        if known.normalised:
            raise NotApplicable(
                "clients normalise their inputs in a way the server was not told, so no picture can be fed "
                "to the model as they feed theirs: grant 'normalisation'."
            )
        if self.method == "mgan_ai" and (known.auxiliary is None or len(known.auxiliary) < 8):
            raise NotApplicable(
                "mgan_ai tells real pictures from made ones on public examples: grant = ['auxiliary_data'], "
                "or use method = 'hitaj'."
            )
        _learnt(model, known)

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        clock = Clock(seconds=self.budget)
        if self.method == "hitaj":
            every = torch.arange(known.input.num_classes)
            found = represent(_after(exchanges[-1:], known), known, every, clock, steps=self.steps)
            return Reconstruction(values=found.pictures, shared=True, notes=(_told("hitaj", self.steps),))
        parts, sources = [], []
        for number, exchange in enumerate(exchanges):
            share = clock.share(len(exchanges) - number)
            wanted = _wanted(exchange, known)
            body = _after([exchange], known)
            judge = _Multitask(body, exchange, known, wanted.unique()).judge
            parts.append(represent(body, known, wanted, share, steps=self.steps, judge=judge).pictures)
            sources.append(torch.full((len(wanted),), number))
        return Reconstruction(
            values=torch.cat(parts), source=torch.cat(sources), notes=(_told("mgan_ai", self.steps),)
        )


def _told(method: str, steps: int) -> str:
    return (
        f"A generator was trained for {steps} steps ({METHODS[method]}). Its pictures are what classes look "
        "like to the model: likenesses of classes, no examples, and none is claimed."
    )


def represent(
    body: nn.Module,
    known: Knowledge,
    wanted: Tensor,
    clock: Clock,
    *,
    steps: int,
    judge: Judge | None = None,
) -> Likeness:
    """One picture for each class of `wanted` (k,), from a generator taught by the model `body` or a judge."""
    generator = Generator(known.input, seed=known.seed).to(next(body.parameters()))
    classes = wanted.unique()

    def by_the_model(pictures: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(run_model(body, pictures), labels)

    values = taught(generator, judge or by_the_model, classes, steps=steps, seed=known.seed)
    with training_mode(body, False), torch.enable_grad():
        for step, value in enumerate(values):
            clock.report(step=step, steps=steps, objective=value, inputs=Tensor())
            if step + 1 < steps and clock.expired:
                break
    z = torch.randn(len(wanted), LATENT, generator=torch.Generator().manual_seed(known.seed + 1))
    with torch.no_grad():
        made: Tensor = generator(z.to(generator.first.weight), wanted.to(generator.first.weight.device))
    return Likeness(made, wanted)


class _Multitask:
    """The discriminator: classes by the model's own head, real or made and whose by two more."""

    def __init__(self, body: nn.Module, exchange: Exchange, known: Knowledge, classes: Tensor) -> None:
        self.body, self.known = body, known
        layers = trace_linear_layers(body, known.input)
        self.head = output_layer(layers, num_classes=known.input.num_classes)
        like = body.get_parameter(self.head.weight)
        with torch.random.fork_rng():
            torch.manual_seed(known.seed)
            self.more = nn.Linear(self.head.in_features, 2).to(like)  # real, this client's
        self.optimiser = torch.optim.Adam(self.more.parameters(), 2e-3)
        self.own = torch.Generator().manual_seed(known.seed)
        assert known.auxiliary is not None
        self.public = known.auxiliary.inputs.to(like)
        self.theirs = _fitted(exchange, known, classes)

    def _seen(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (k, C), and real and whose (k, 2)."""
        with watching(self.body, self.head.name) as features:
            logits = run_model(self.body, pictures)
        return logits, self.more(features[0].flatten(1))

    def judge(self, pictures: Tensor, labels: Tensor) -> Tensor:
        """Teach the discriminator one step, then judge the pictures by all three tasks."""
        chosen = torch.randint(len(self.public), (min(_PUBLIC, len(self.public)),), generator=self.own)
        public = self.public[chosen.to(self.public.device)]
        made = self._seen(pictures.detach())[1][:, 0]
        real, fitted = self._seen(public)[1], self._seen(self.theirs)[1][:, 1]
        loss = functional.softplus(made).mean() + functional.softplus(-real[:, 0]).mean()
        loss = loss + functional.softplus(-fitted).mean() + functional.softplus(real[:, 1]).mean()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        logits, more = self._seen(pictures)
        by_class = functional.cross_entropy(logits, labels)
        return (
            by_class + functional.softplus(-more[:, 0]).mean() + 0.5 * functional.softplus(-more[:, 1]).mean()
        )


def _fitted(exchange: Exchange, known: Knowledge, classes: Tensor) -> Tensor:
    """(c, *shape) one picture a class whose gradient points where the client's update does (Wang et al.,
    eq. 5): its representatives, in model units."""
    model = exchange.broadcast.model
    names = list(trainable(model))
    weights = [model.get_parameter(name) for name in names]
    sign = 1.0 if exchange.update.kind == "gradient" else -1.0
    sent = torch.cat([sign * exchange.update.tensors[name].detach().flatten() for name in names])
    assert known.auxiliary is not None
    start = known.auxiliary.inputs.mean(dim=0).to(weights[0])
    x = start.expand(len(classes), *start.shape).clone().requires_grad_()
    optimiser = torch.optim.Adam([x], 0.05)
    labels = classes.to(x.device)
    with training_mode(model, False), torch.enable_grad():
        for _ in range(_FITTED):
            loss = functional.cross_entropy(run_model(model, x), labels)
            found = torch.autograd.grad(loss, weights, create_graph=True, materialize_grads=True)
            own = torch.cat([g.flatten() for g in found])
            away = 1 - functional.cosine_similarity(own, sent.to(own), dim=0)
            optimiser.zero_grad()
            (x.grad,) = torch.autograd.grad(away, [x])
            optimiser.step()
    return x.detach()


def _after(exchanges: Sequence[Exchange], known: Knowledge) -> nn.Module:
    """The model as the update leaves it, which is what the client's data made of it."""
    last = exchanges[-1]
    lr = 0.1 if known.local is None else known.local.lr
    moved = apply_update(last.broadcast.model, last.update, lr=lr)
    return copy.deepcopy(moved).requires_grad_(False).eval()


def _wanted(exchange: Exchange, known: Knowledge) -> Tensor:
    """(k,) a class for each example, as far as the update tells; else each class once."""
    counts, _ = counts_if_inferred(exchange, known)
    if counts is None or not bool(counts.any()):
        return torch.arange(known.input.num_classes)
    return torch.arange(len(counts)).repeat_interleave(counts.cpu())[:_MOST]


def _learnt(model: nn.Module, known: Knowledge) -> None:
    """NotApplicable where public examples show that the model does not tell its classes apart."""
    public = known.auxiliary
    if public is None or not len(public):
        return
    head = output_layer(trace_linear_layers(model, known.input), num_classes=known.input.num_classes)
    right = _accuracy(model, public, head.name)
    if right * known.input.num_classes < _KNOWS:
        raise NotApplicable(
            f"the model tells {right:.0%} of public examples right, hardly more than guessing would: what it "
            "takes for a class shows nothing. Audit a model that was trained."
        )


def _accuracy(model: nn.Module, public: Batch, head: str) -> float:
    features = layer_input(model, head, public.inputs.to(next(model.parameters())))
    with torch.no_grad():
        logits = model.get_submodule(head)(features.to(next(model.parameters())))
    return float((logits.argmax(dim=1).cpu() == public.labels.cpu()).double().mean())


def class_representatives(
    *, method: str = "mgan_ai", steps: int = 300, budget: float | None = None
) -> ClassRepresentatives:
    """Passive: pictures that classes look like, by a generator trained against the model (mGAN-AI, Wang et
    al. 2019; Hitaj et al. 2017). Likenesses of classes, no examples: nothing is claimed.

    method: "mgan_ai", for each client by itself, needs public examples; "hitaj" takes the newest model alone.
    steps: of the generator's training. budget: seconds for all updates.
    """
    lookup(METHODS, method, "method")
    if steps < 1:
        raise SpecError(f"steps must be at least 1, not {steps}.")
    check_budget(budget)
    return ClassRepresentatives(method=method, steps=steps, budget=budget)
