"""Boenisch et al. 2021, Figure 4: what clipping and noise at the user's end do to a recovered example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from seepage.defenses.clipping import clipping
from seepage.defenses.gaussian_noise import gaussian_noise
from seepage.errors import SpecError
from seepage.federation import client
from seepage.log import write_atomically
from seepage.log.pictures import to_png
from seepage.metrics import data_range, psnr
from seepage.papers.boenisch2021_table5 import SOURCES
from seepage.papers.extraction import load_present
from seepage.papers.rows import RowPlan, compute_rows, fingerprint
from seepage.papers.table import Column, Row, Table
from seepage.papers.trapping import draw_batch, fresh_model, named_sources
from seepage.types import Broadcast, Defense, LocalTraining
from seepage.workloads.data import Dataset

NAME = "boenisch2021/figure4"
LAYER = "dense0"


@dataclass(frozen=True)
class Setting:
    """One picture of the figure."""

    group: str
    label: str
    clip: float | None
    noise: float

    def defenses(self, seed: int) -> list[Defense]:
        """Clipped first, then noised: the first of the list is outermost."""
        noised = [gaussian_noise(sigma=self.noise, seed=seed)] if self.noise else []
        return [*noised, *([clipping(norm=self.clip)] if self.clip is not None else [])]


SETTINGS = (
    Setting("clipping alone", "no clipping", None, 0.0),
    *(Setting("clipping alone", f"c = {c:g}", c, 0.0) for c in (10.0, 1.0, 0.1, 0.001)),
    *(Setting("noise, c = 1", f"sigma = {s:g}", 1.0, s) for s in (1e-4, 1e-3, 1e-2, 1e-1, 1.0)),
)

COLUMNS = (
    Column(
        "PSNR", "of the strongest row's quotient, G_w[i] / G_b[i] at the largest |G_b[i]|, in dB", unit="dB"
    ),
    Column(
        "PSNR pooled",
        "of the least-squares estimate over all rows, which averages noise away, in dB",
        unit="dB",
    ),
    Column("prior", "PSNR of the mean picture of the dataset: the guess without any update", unit="dB"),
)

NOTES = (
    "One example, first layer of the FC-NN (1000 neurons), no traps. The paper prints pictures without "
    "figures and does not name its clip norms and noise scales in the text; it calls sigma > 1 adequate.",
    "Noise is added to each coordinate with standard deviation sigma * c. PSNR is capped at 100 dB.",
    "A server that knows of the noise pools all rows: the paper's reading takes one.",
)


def run(
    *, seeds: int, out: Path, quiet: bool = False, settings: Sequence[Setting] = SETTINGS, width: int = 1000
) -> Table:
    """PSNR of one recovered MNIST digit under each setting, and the pictures of seed 0."""
    datasets, missing = load_present([s for s in SOURCES if s.title == "MNIST"])
    rows: list[Row] = []
    paths: list[str] = []
    for title, dataset in datasets.items():
        plans = [_plan(dataset, setting, width) for setting in settings]
        rows += compute_rows(plans, seeds=seeds, out=out, quiet=quiet)
        path = out / f"figure4-{title.lower()}.png"
        _draw(dataset, settings, width, path)
        paths.append(f"Pictures (original, then the settings in order): {path}")
    return Table(
        name=NAME,
        title=f"Boenisch et al. 2021, Figure 4: one example under clipping and noise, N = {width}",
        columns=COLUMNS,
        rows=tuple(rows),
        notes=(*paths, *named_sources(datasets), *NOTES),
        missing=missing,
    )


def _plan(dataset: Dataset, setting: Setting, width: int) -> RowPlan:
    return RowPlan(
        group=setting.group,
        label=setting.label,
        measure=lambda seed: measure(dataset, setting, seed, width),
        published={},
        fingerprint=fingerprint(dataset, clip=setting.clip, noise=setting.noise, width=width),
    )


def measure(dataset: Dataset, setting: Setting, seed: int, width: int) -> Mapping[str, float]:
    """PSNR of both readings and of the prior guess."""
    truth, single, pooled = recover(dataset, setting, seed, width)
    unit = data_range(dataset.spec, truth)
    low, high = dataset.spec.value_range or (0.0, 1.0)
    prior = dataset.inputs.mean(dim=0, keepdim=True)
    shown = {"PSNR": single, "PSNR pooled": pooled, "prior": prior}
    return {name: float(psnr(x.clamp(low, high), truth, data_range=unit)) for name, x in shown.items()}


def recover(dataset: Dataset, setting: Setting, seed: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """(1, C, H, W) each: the example, the strongest row's quotient, and all rows pooled."""
    batch = draw_batch(dataset, 1, seed)
    model = fresh_model(dataset.spec, seed=seed, width=width, hidden=(200,))
    sent = client(LocalTraining(), setting.defenses(seed))(Broadcast(model), batch)
    weight, bias = sent.tensors[f"{LAYER}.weight"], sent.tensors[f"{LAYER}.bias"]
    row = int(bias.abs().argmax())
    single = weight[row] / bias[row]  # eq. 5
    pooled = bias @ weight / bias.square().sum()  # argmin_x sum_i |G_w[i] - G_b[i] x|^2
    shape = (1, *dataset.spec.shape)
    spec = dataset.spec
    return (
        spec.to_raw(batch.inputs),
        spec.to_raw(single.reshape(shape)),
        spec.to_raw(pooled.reshape(shape)),
    )


def _draw(dataset: Dataset, settings: Sequence[Setting], width: int, path: Path) -> None:
    """Two rows of pictures: the strongest row's quotient above, the pooled estimate below."""
    found = [recover(dataset, setting, 0, width) for setting in settings]
    truth = found[0][0][0]
    above = torch.cat([truth, *(single[0] for _, single, _ in found)], dim=-1)
    below = torch.cat([truth, *(pooled[0] for _, _, pooled in found)], dim=-1)
    try:
        write_atomically(path, to_png(torch.cat([above, below], dim=-2).numpy(), dataset.spec.value_range))
    except OSError as error:
        raise SpecError(
            f"pictures cannot be written to '{path.parent}' ({error.strerror}): choose a folder with --out."
        ) from None
