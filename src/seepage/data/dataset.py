"""What every loader returns: raw values, labels, and a description of one example."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from seepage.core.errors import DataError
from seepage.core.types import PADDING, Batch, InputSpec, Modality

DIMENSIONS = {Modality.IMAGE: 4, Modality.TABULAR: 2, Modality.TEXT: 2}
"""Number of dimensions of `Dataset.inputs`: (N, C, H, W), (N, D), (N, L)."""

MOST_CLASSES = 1_000_000
"""More are taken for identifiers: an output layer of that size would exhaust memory, not classify."""
LARGEST = 1e18
"""Derived: the square of what is ten times as large is beyond float32, and with it every gradient."""
LEAST_SHARE = 0.01
"""Of the value range that values fill. Derived: ten times the tolerance of an exact copy, below which an
exact value says less than a digit."""


@dataclass(frozen=True)
class Dataset:
    """Labelled examples in raw units; `batch` gives them in the units the model is fed.

    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(1,), num_classes=2, mean=(0.5,), std=(0.5,))
    >>> data = Dataset("tiny", torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1]), spec, "by hand")
    >>> data.batch(torch.tensor([1, 0])).inputs.flatten().tolist()
    [1.0, -1.0]
    """

    name: str
    inputs: Tensor
    """(N, C, H, W) or (N, D) float32 raw values; (N, L) int64 token ids, `PADDING` among them."""
    labels: Tensor
    """(N,) int64, or (N, targets) float32 where a model is to say numbers."""
    spec: InputSpec
    source: str
    """One plain line on where the data came from, fit for a report: never a path of this machine."""
    standardise: bool = False
    """Tables: a model is to be fed standardised columns, by rows that nobody hides: see `standardised`."""

    days: tuple[int, ...] = ()
    """Tables: columns that were dates in the file, now days since 1970-01-01; they are shown as dates."""
    owners: Tensor | None = None
    """(N,) the client that holds each example, where the data say it."""
    targets: Tensor | None = None
    """(N, L) int64, of texts with `spec.token_labels`: the class of each token, `PADDING` for none."""

    def __len__(self) -> int:
        return len(self.labels)

    def owned_by(self, owners: Tensor) -> Dataset:
        """The same examples, and whose each is."""
        return replace(self, owners=owners)

    def batch(self, index: Tensor) -> Batch:
        """The examples at `index`, in model units, laid out as a loader stacks them: models call `view`."""
        if self.standardise:
            raise DataError(
                f"{self.name} is to be fed standardised: say by which public rows, standardised(data, rows)."
            )
        index = index.to(self.inputs.device)
        targets = None if self.targets is None else self.targets[index]
        return Batch(self.spec.to_model(self.inputs[index].contiguous()), self.labels[index], targets)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of every value and label: nobody can compute it without the data."""
        digest = hashlib.sha256()
        for tensor in (self.inputs, self.labels, *(() if self.targets is None else (self.targets,))):
            digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return digest.digest()


def as_numbers(dataset: Dataset) -> Dataset:
    """The same examples with their class as a number that a model is to say: whole numbers of a regression.

    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(1,), num_classes=3)
    >>> as_numbers(Dataset("ages", torch.rand(2, 1), torch.tensor([2, 0]), spec, "by hand")).labels.tolist()
    [[2.0], [0.0]]
    """
    if dataset.spec.num_targets:
        return dataset
    names = dataset.spec.class_names
    try:
        values = torch.tensor([float(name) for name in names])[dataset.labels] if names else dataset.labels
    except ValueError:
        raise DataError(
            f"{dataset.name}: the labels are words ({names[0]}), and this loss wants numbers; name a column "
            "of numbers, or use loss = 'auto'."
        ) from None
    spec = replace(dataset.spec, num_classes=1, num_targets=1, class_names=())
    return replace(dataset, labels=values.to(torch.float32).unsqueeze(1), spec=spec)


def validate(dataset: Dataset) -> Dataset:
    """The same dataset, or a DataError that names the first thing that is wrong with it and the remedy.

    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(1,), num_classes=2)
    >>> validate(Dataset("tiny", torch.tensor([[0.5], [7.0]]), torch.tensor([0, 1]), spec, "by hand"))
    Traceback (most recent call last):
    ...
    seepage.core.errors.DataError: tiny: values reach from 0.5 to 7, outside the value range 0 to 1; give \
value_range=(0.5, 7) or rescale the data.
    """
    fault = (
        _wrong_shape(dataset)
        or _wrong_targets(dataset)
        or (_wrong_numbers(dataset) if dataset.spec.num_targets else _wrong_classes(dataset))
        or _wrong_statistics(dataset.spec)
        or (_wrong_tokens(dataset) if dataset.spec.modality is Modality.TEXT else _wrong_values(dataset))
        or _wrong_categories(dataset)
    )
    if fault:
        raise DataError(f"{dataset.name}: {fault}")
    return dataset


def _wrong_shape(dataset: Dataset) -> str | None:
    inputs, labels, spec = dataset.inputs, dataset.labels, dataset.spec
    wanted = DIMENSIONS[spec.modality]
    if inputs.ndim != wanted:
        layout = {4: "(N, C, H, W)", 2: "(N, L)" if spec.modality is Modality.TEXT else "(N, D)"}[wanted]
        return (
            f"{spec.modality} inputs must be {layout}, these have shape {tuple(inputs.shape)}; reshape them."
        )
    if len(inputs) != len(labels):
        return f"{len(inputs)} inputs but {len(labels)} labels; give one label per input, in the same order."
    if inputs.numel() == 0:
        return f"there are no values (inputs have shape {tuple(inputs.shape)}); give at least one example."
    if tuple(inputs.shape[1:]) != spec.shape:
        return (
            f"inputs have shape {tuple(inputs.shape[1:])} per example but the spec says {spec.shape}; "
            "make the spec agree with the inputs."
        )
    return None


def _wrong_numbers(dataset: Dataset) -> str | None:
    numbers, wanted = dataset.labels, (len(dataset.inputs), dataset.spec.num_targets)
    if tuple(numbers.shape) != wanted or not numbers.is_floating_point():
        return f"targets must be floats of shape {wanted}, these are {tuple(numbers.shape)}; reshape them."
    if not bool(numbers.isfinite().all()):
        return "a target is no finite number; leave those examples out."
    return None


def _wrong_classes(dataset: Dataset) -> str | None:
    labels = dataset.labels
    if labels.ndim == 1:
        return _wrong_labels(dataset)
    remedy = "turn one-hot rows into indices with argmax(1)."
    if labels.ndim > 2:
        remedy = "models that say something of every pixel or step are not audited yet."
    return f"labels must be one class index per example, these have shape {tuple(labels.shape)}; {remedy}"


def _wrong_labels(dataset: Dataset) -> str | None:
    labels, spec = dataset.labels, dataset.spec
    if labels.dtype != torch.int64:
        return f"labels must be int64 class indices, these are {labels.dtype}; convert them with .long()."
    if spec.num_classes < 2 and not (spec.modality is Modality.TEXT and spec.num_classes == 1):
        return (
            "all labels are class 0, and a classifier needs two classes; "
            "give num_classes=2 or more, or add examples of another class."
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= spec.num_classes:
        return (
            f"labels reach from {low} to {high}, but with {spec.num_classes} classes they must lie in "
            f"0..{spec.num_classes - 1}; renumber them or give num_classes."
        )
    if spec.num_classes > MOST_CLASSES:
        return (
            f"labels reach {high}, which makes {spec.num_classes} classes; the labels are more likely "
            "identifiers than classes: choose another label column or renumber them."
        )
    if spec.class_names and len(spec.class_names) != spec.num_classes:
        return (
            f"{len(spec.class_names)} class names for {spec.num_classes} classes; "
            "give one name per class or none."
        )
    return None


def _wrong_targets(dataset: Dataset) -> str | None:
    targets, spec = dataset.targets, dataset.spec
    if targets is None:
        return (
            "there are no classes of tokens; give targets, one for each token." if spec.token_labels else None
        )
    if not spec.token_labels or targets.shape != dataset.inputs.shape or targets.dtype != torch.int64:
        return (
            f"classes of tokens must be int64 of the inputs' shape {tuple(dataset.inputs.shape)}, these are "
            f"{targets.dtype} of shape {tuple(targets.shape)}; give one for each token of a text."
        )
    there = targets[targets != PADDING]
    if there.numel() == 0:
        return f"no token has a class: every one is {PADDING}, which means none."
    if int(there.min()) < 0 or int(there.max()) >= spec.num_classes:
        return (
            f"classes of tokens reach from {int(there.min())} to {int(there.max())}, but there are "
            f"{spec.num_classes}; renumber them or give num_classes ({PADDING} means none)."
        )
    return None


def _wrong_statistics(spec: InputSpec) -> str | None:
    if (spec.mean is None) != (spec.std is None):
        return "only one of mean and std is given; give both, or neither."
    if spec.mean is None or spec.std is None:
        return None
    if spec.modality is Modality.TEXT:
        return "token ids cannot be normalised; leave out mean and std."
    if len(spec.mean) != spec.shape[0] or len(spec.std) != spec.shape[0]:
        unit = "channel" if spec.modality is Modality.IMAGE else "column"
        return (
            f"mean and std have {len(spec.mean)} and {len(spec.std)} numbers for {spec.shape[0]} {unit}s; "
            f"give one number per {unit}."
        )
    if not all(math.isfinite(v) for v in (*spec.mean, *spec.std)) or min(spec.std) <= 0:
        return "mean must be finite and std finite and above zero; leave out columns that never change."
    return None


def _wrong_values(dataset: Dataset) -> str | None:
    inputs, spec = dataset.inputs, dataset.spec
    if inputs.dtype != torch.float32:
        return (
            f"{spec.modality} inputs must be float32, these are {inputs.dtype}; convert them with .float()."
        )
    # aminmax passes NaN on and needs no mask of the size of the data
    ends = tuple(map(float, torch.aminmax(inputs)))
    if not all(map(math.isfinite, ends)):
        first = int((~torch.isfinite(inputs).flatten(1).all(1)).nonzero()[0])
        return f"example {first} holds NaN or infinite values; remove it or fill in the missing values."
    if max(map(abs, ends)) > LARGEST:
        return f"values reach {max(ends, key=abs):g}, whose squares overflow float32; rescale them."
    if spec.column_names and len(spec.column_names) != spec.shape[0]:
        return (
            f"{len(spec.column_names)} column names for {spec.shape[0]} columns; give one per column or none."
        )
    return None if spec.value_range is None else _wrong_range(inputs, *spec.value_range)


def _wrong_range(inputs: Tensor, low: float, high: float) -> str | None:
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        return (
            f"the value range {low:g} to {high:g} is empty or infinite; "
            "give value_range=(lowest, highest) with lowest < highest."
        )
    least, most = float(inputs.min()), float(inputs.max())
    if least < low or most > high:
        return (
            f"values reach from {least:g} to {most:g}, outside the value range {low:g} to {high:g}; "
            f"give value_range=({least:g}, {most:g}) or rescale the data."
        )
    if 0 < most - least < LEAST_SHARE * (high - low):
        return (
            f"values reach from {least:g} to {most:g} only, of a value range {low:g} to {high:g}, so that "
            f"everything would count as nearly exact; give value_range=({least:g}, {most:g})."
        )
    return None


def _wrong_tokens(dataset: Dataset) -> str | None:
    inputs, spec = dataset.inputs, dataset.spec
    if inputs.dtype != torch.int64:
        return f"token ids must be int64, these are {inputs.dtype}; convert them with .long()."
    if spec.value_range is not None:
        return "token ids have no value range; leave value_range out."
    if spec.vocabulary is None:
        return "the number of token ids is not known; give vocabulary."
    there = inputs[inputs != PADDING]
    low, high = (int(there.min()), int(there.max())) if there.numel() else (PADDING, PADDING)
    if low < 0 or high >= spec.vocabulary:
        return (
            f"token ids reach from {low} to {high}, but with a vocabulary of {spec.vocabulary} they must "
            f"lie in 0..{spec.vocabulary - 1}; give a larger vocabulary or other ids."
        )
    if spec.tokens and len(spec.tokens) != spec.vocabulary:
        return f"{len(spec.tokens)} words for a vocabulary of {spec.vocabulary}; give one per id or none."
    return None


def _wrong_categories(dataset: Dataset) -> str | None:
    spec = dataset.spec
    if not spec.categories:
        return None
    if spec.modality is not Modality.TABULAR:
        return f"only columns of a table can be categories, not {spec.modality} inputs; leave out categories."
    columns = [column for group in spec.categories for column in group]
    if len(set(columns)) < len(columns) or min(map(len, spec.categories)) < 2:
        return "categories need at least two columns each and no column twice; give groups of column numbers."
    if min(columns) < 0 or max(columns) >= spec.shape[0]:
        return (
            f"categories name a column outside of 0..{spec.shape[0] - 1}; give numbers of columns, counted "
            "from 0."
        )
    for group in spec.categories:
        values = dataset.inputs[:, list(group)]
        one_hot = ((values == 0) | (values == 1)).all(dim=1) & (values.sum(dim=1) == 1)
        if not bool(one_hot.all()):
            row = int((~one_hot).nonzero()[0])
            return (
                f"columns {', '.join(map(str, group))} are declared one category, but row {row} does not "
                "hold zeros and a single 1; correct categories or the encoding."
            )
    return None
