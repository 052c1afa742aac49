"""Geiping et al. 2020: what the network's shape does to the inversion of one picture."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from torch import nn

from seepage.attacks import ATTACKS
from seepage.papers.extraction import load_present
from seepage.papers.inversion import (
    ABOVE_GREY,
    CIFAR10,
    GREY,
    NO_PUBLISHED_FIGURES,
    SEEDS_ARE_DRAWS,
    UNREADABLE_IS_GREY,
    above_grey,
    draw_victims,
    grey,
    invert,
    pattern,
)
from seepage.papers.rows import RowPlan, compute_rows, fingerprint
from seepage.papers.table import Column, Row, Table
from seepage.types import InputSpec
from seepage.workloads.data import Dataset
from seepage.workloads.models.loading import build_model
from seepage.workloads.models.shapes import image_shape

NAME = "geiping2020/architecture"
SOURCES = (CIFAR10,)

COLUMNS = (
    Column("PSNR", "of 1 - cosine with total variation and signed Adam (inverting_gradients)", unit="dB"),
    GREY,
    ABOVE_GREY,
    Column("seconds", "CPU seconds a picture", unit="seconds"),
)

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "ReLU": nn.ReLU,
    "leaky ReLU": nn.LeakyReLU,
    "ELU": nn.ELU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A plain stack of 3x3 convolutions, all of one width, and a linear layer on all of their outputs."""

    width: int = 16
    depth: int = 4
    strided: int = 2
    """How many of the first convolutions step by 2."""
    activation: str = "ReLU"


BASE = Shape()

TV = 3.0
"""Weight of total variation: without batch norm these networks bear more than the attack's default."""
TV_CHOSEN = (
    f"Total variation weighs {TV:g} in place of the attack's default of 0.1, which is made for batch norm; "
    "chosen, as the number of steps was, on pictures and weights of seeds 100 to 102."
)

VARIED: tuple[tuple[str, Sequence[Shape]], ...] = (
    ("width", [replace(BASE, width=width) for width in (4, 8, 16, 32, 64)]),
    ("depth", [replace(BASE, depth=depth) for depth in (2, 4, 6, 8)]),
    ("strided", [replace(BASE, strided=strided) for strided in (0, 1, 2, 3)]),
    ("activation", [replace(BASE, activation=name) for name in ACTIVATIONS]),
)
"""One property at a time; the others as in `BASE`."""

TITLES = {
    "width": "channels",
    "depth": "convolutions",
    "strided": "convolutions of stride 2",
    "activation": "activation",
}


def plain_convnet(spec: InputSpec, *, shape: Shape = BASE) -> nn.Sequential:
    """The network of a `Shape`, initialised as torch does, or with sigmoids as Zhu et al. do.

    >>> from seepage.types import Modality
    >>> spec = InputSpec(modality=Modality.IMAGE, shape=(3, 32, 32), num_classes=10)
    >>> plain_convnet(spec).head
    Linear(in_features=1024, out_features=10, bias=True)
    """
    channels, height, width = image_shape(spec, "plain_convnet")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for index in range(shape.depth):
        stride = 2 if index < shape.strided else 1
        layers[f"conv{index}"] = nn.Conv2d(channels, shape.width, kernel_size=3, padding=1, stride=stride)
        layers[f"activation{index}"] = ACTIVATIONS[shape.activation]()
        channels = shape.width
        height, width = -(-height // stride), -(-width // stride)
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(channels * height * width, spec.num_classes)
    model = nn.Sequential(layers)
    if shape.activation == "sigmoid":
        # as Zhu et al. do: after torch's small weights the gradient hardly depends on the picture (1 - cos
        # of any two pictures' gradients is 1e-6), and single precision ends there
        for parameter in model.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def run(
    *,
    seeds: int,
    out: Path,
    quiet: bool = False,
    steps: int = 400,
    varied: Sequence[tuple[str, Sequence[Shape]]] = VARIED,
) -> Table:
    """One picture and one untrained network a seed; the same pictures for all shapes."""
    datasets, missing = load_present(SOURCES)
    plans = [
        RowPlan(
            group=_group(name),
            label=str(getattr(shape, name)),
            measure=partial(measure, dataset, shape, steps),
            published={},
            fingerprint=fingerprint(dataset, steps=steps, tv=TV, shape=asdict(shape)),
        )
        for dataset in datasets.values()
        for name, shapes in varied
        for shape in shapes
    ]
    rows = compute_rows(plans, seeds=seeds, out=out, quiet=quiet)
    return Table(
        name=NAME,
        title="Geiping et al. 2020: PSNR of one CIFAR-10 picture by the shape of an untrained network",
        columns=COLUMNS,
        rows=rows,
        notes=(
            *pattern(claims(rows)),
            *(f"{title}: {data.source}." for title, data in datasets.items()),
            *_notes(steps),
        ),
        missing=missing,
    )


def claims(rows: Sequence[Row]) -> dict[str, bool]:
    """What the paper says of each property, and whether the means, in the table's order, have it."""
    psnr: dict[str, list[float]] = {}
    for row in rows:
        psnr.setdefault(row.group, []).append(row.figures["PSNR"].mean)

    def ordered(name: str, *, rising: bool) -> bool:
        values = psnr[_group(name)]
        return values == sorted(values, reverse=not rising)

    found = {
        "wider gives more away": ("width", True),
        "deeper gives less away": ("depth", False),
        "every convolution of stride 2 more gives less away": ("strided", False),
    }
    return {
        claim: ordered(name, rising=rising) for claim, (name, rising) in found.items() if _group(name) in psnr
    }


def _group(name: str) -> str:
    return f"{TITLES[name]} varied"


def measure(dataset: Dataset, shape: Shape, steps: int, seed: int) -> dict[str, float]:
    """One picture from its gradient on a fresh network of this shape."""
    batch, spec = draw_victims(dataset, 1, seed), dataset.spec
    model = build_model(partial(plain_convnet, shape=shape), spec, seed=seed)
    found = invert(ATTACKS["inverting_gradients"](steps=steps, tv=TV), model, batch, spec, seed=seed)
    blank = grey(batch, spec)
    return {
        "PSNR": float(found.psnr),
        "grey": float(blank.psnr),
        "above grey": above_grey(found, blank),
        "seconds": found.seconds,
    }


def _notes(steps: int) -> tuple[str, ...]:
    return (
        f"{NO_PUBLISHED_FIGURES} The paper calls smooth activations and convolutions without stride the "
        "easy case.",
        f"Where not varied: {BASE.width} channels, {BASE.depth} convolutions, the first {BASE.strided} of "
        f"stride 2, {BASE.activation}; no batch norm; a linear layer on all outputs of the last convolution.",
        f"Budget: {steps} steps of signed Adam, one restart; the paper takes thousands and several restarts.",
        TV_CHOSEN,
        "With sigmoids all weights are drawn from U(-0.5, 0.5) as Zhu et al. do: after torch's smaller ones "
        "the gradient hardly depends on the picture.",
        SEEDS_ARE_DRAWS,
        UNREADABLE_IS_GREY,
    )
