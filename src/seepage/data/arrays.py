"""From any pair of arrays to a `Dataset`: guesses what is safe to guess, and asks about the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from seepage.core.errors import DataError
from seepage.core.types import InputSpec, Modality
from seepage.core.user_code import reason
from seepage.data.dataset import LEAST_SHARE, Dataset

INPUT_KEYS = ("inputs", "x", "images", "data")
LABEL_KEYS = ("labels", "y", "targets")
Layout = Literal["auto", "CHW", "HWC"]
_CHANNELS = (1, 3, 4)  # grey, RGB, RGBA


def from_arrays(
    inputs: Any,
    labels: Any,
    *,
    name: str,
    source: str,
    modality: Modality | None = None,
    layout: Layout = "auto",
    vocabulary: int | None = None,
    class_names: Sequence[str] = (),
    column_names: Sequence[str] = (),
    tokens: Sequence[str] = (),
) -> Dataset:
    """A dataset, not yet validated, from two arrays or tensors.

    8-bit pictures become [0, 1]; every other number is kept as it is. The value range is (0, 1) if all
    values lie in it, otherwise what was observed; none for a table, whose columns have no common one.

    >>> import numpy as np
    >>> pictures = np.full((2, 8, 8, 3), 255, dtype=np.uint8)
    >>> data = from_arrays(pictures, [0, 1], name="white", source="by hand")
    >>> tuple(data.inputs.shape), float(data.inputs.max()), str(data.spec.modality)
    ((2, 3, 8, 8), 1.0, 'image')
    """
    if layout not in ("auto", "CHW", "HWC"):
        raise DataError(f"{name}: layout is {layout!r}; give 'CHW', 'HWC' or 'auto'.")
    raw = _tensor(inputs, f"{name}: the inputs")
    targets = _labels(labels, name).to(raw.device)
    kind = modality or _guess_modality(raw, name)
    if kind is Modality.TEXT:
        values = _whole_numbers(raw, f"{name}: the token ids")
        if vocabulary is None:
            vocabulary = len(tokens) or (int(values.max()) + 1 if values.numel() else 1)
        value_range: tuple[float, float] | None = None
    else:
        values = _pictures(raw, name, layout) if kind is Modality.IMAGE else raw.to(torch.float32)
        value_range = observed_range(values)
        if kind is Modality.TABULAR and value_range != (0.0, 1.0):
            value_range = None
    names, numbers = tuple(str(n) for n in class_names), targets.is_floating_point()
    spec = InputSpec(
        modality=kind,
        shape=tuple(values.shape[1:]),
        num_classes=1 if numbers else len(names) or (int(targets.max()) + 1 if targets.numel() else 0),
        num_targets=targets.shape[1] if numbers else 0,
        value_range=value_range,
        vocabulary=vocabulary if kind is Modality.TEXT else None,
        tokens=tuple(tokens),
        class_names=names,
        column_names=tuple(column_names),
    )
    return Dataset(name, values, targets, spec, source)


def from_mapping(
    arrays: Mapping[str, Any], *, name: str, source: str, modality: Modality | None = None, **options: Any
) -> Dataset:
    """A dataset from named arrays: inputs under one of `INPUT_KEYS`, labels under one of `LABEL_KEYS`."""
    inputs = arrays[pick_key(arrays, INPUT_KEYS, name)]
    labels = arrays[pick_key(arrays, LABEL_KEYS, name)]
    if "class_names" in arrays:
        options.setdefault("class_names", [str(n) for n in arrays["class_names"]])
    return from_arrays(inputs, labels, name=name, source=source, modality=modality, **options)


def pick_key(arrays: Mapping[str, Any], wanted: Sequence[str], name: str) -> str:
    """The one of `wanted` that `arrays` has, or a DataError that says which names were looked for."""
    for key in wanted:
        if key in arrays:
            return key
    found = ", ".join(str(k) for k in arrays) or "nothing"
    raise DataError(f"{name}: it holds {found}; name the missing array one of {', '.join(wanted)}.")


def observed_range(values: Tensor) -> tuple[float, float]:
    """(0, 1) if all values lie in it and fill some of it, otherwise the lowest and the highest.

    >>> observed_range(torch.tensor([0.2, 0.7])), observed_range(torch.tensor([-2.0, 0.5]))
    ((0.0, 1.0), (-2.0, 0.5))
    >>> observed_range(torch.tensor([0.0, 0.0009765625]))
    (0.0, 0.0009765625)
    """
    if values.numel() == 0:
        return (0.0, 1.0)
    low, high = float(values.min()), float(values.max())
    fills = high == low or high - low >= LEAST_SHARE
    return (0.0, 1.0) if low >= 0.0 and high <= 1.0 and fills else (low, high)


def _tensor(values: Any, what: str) -> Tensor:
    if isinstance(values, Tensor):
        tensor = values.detach()
    else:
        try:
            array = np.ascontiguousarray(values)
            if array.dtype.kind == "u" and array.dtype.itemsize > 1:
                array = array.astype(np.int64)  # torch lacks most operations on wide unsigned types
            native = array.astype(array.dtype.newbyteorder("="), copy=not array.flags.writeable)
            tensor = torch.from_numpy(native)
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"{what} are not one array of numbers ({reason(error)}); give equal shapes and plain numbers."
            ) from None
    if tensor.is_complex() or tensor.is_sparse:
        raise DataError(f"{what} are complex or sparse ({tensor.dtype}); give dense real numbers.")
    return tensor


def _labels(labels: Any, name: str) -> Tensor:
    """(N,) classes, or (N, targets) floats where they cannot be: broken numbers, or several to an example.

    Rows with a single 1 are classes in one-hot code, which `validate` says how to give.
    """
    given = _tensor(labels, f"{name}: the labels")
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    finite = not given.is_floating_point() or bool(given.isfinite().all())
    broken = given.ndim == 1 and given.is_floating_point() and bool((given != given.round()).any())
    several = given.ndim == 2 and not _one_hot(given)
    if finite and (broken or several):
        return given.to(torch.float32).reshape(len(given), -1)
    return _whole_numbers(given, f"{name}: the labels")


def _one_hot(rows: Tensor) -> bool:
    return bool(((rows == 0) | (rows == 1)).all()) and bool((rows.sum(dim=1) == 1).all())


def _whole_numbers(values: Tensor, what: str) -> Tensor:
    if values.is_floating_point():
        bad = values[values != values.round()]  # NaN is unequal to itself, so it is caught here too
        infinite = values[torch.isinf(values)]
        if bad.numel() or infinite.numel():
            example = float((bad if bad.numel() else infinite).flatten()[0])
            raise DataError(
                f"{what} must be whole numbers, but one is {example:g}; give class or token numbers."
            )
    return values.to(torch.int64)


def _guess_modality(raw: Tensor, name: str) -> Modality:
    if raw.ndim in (3, 4):
        return Modality.IMAGE
    if raw.ndim != 2:
        as_rows = (
            f"give volumes as rows, x.flatten(1), and the model as "
            f"nn.Sequential(nn.Unflatten(1, {tuple(raw.shape[1:])}), model)"
        )
        raise DataError(
            f"{name}: inputs of shape {tuple(raw.shape)} are neither pictures (N, C, H, W), rows (N, D) nor "
            f"token ids (N, L); {'reshape them' if raw.ndim < 2 else as_rows}."
        )
    if raw.is_floating_point():
        return Modality.TABULAR
    if raw.dtype in (torch.uint8, torch.bool):
        raise DataError(
            f"{name}: inputs of shape {tuple(raw.shape)} and type {raw.dtype} could be flattened pictures or "
            "token ids; reshape pictures to (N, C, H, W), or give modality='text' or 'tabular'."
        )
    return Modality.TEXT


def _pictures(raw: Tensor, name: str, layout: Layout) -> Tensor:
    """(N, H, W), (N, H, W, C) or (N, C, H, W) to (N, C, H, W) float32."""
    if raw.ndim == 3:
        raw = raw[:, None]
    elif raw.ndim == 4 and _channels_last(raw, name, layout):
        raw = raw.permute(0, 3, 1, 2).contiguous()
    values = raw.to(torch.float32)
    return values / 255 if raw.dtype == torch.uint8 else values


def _channels_last(raw: Tensor, name: str, layout: Layout) -> bool:
    if layout != "auto":
        return layout == "HWC"
    first, last = raw.shape[1] in _CHANNELS, raw.shape[3] in _CHANNELS
    if first and last:  # tiny pictures, such as (N, 1, 4, 4): take the reading in which they are square
        square_last, square_first = raw.shape[1] == raw.shape[2], raw.shape[2] == raw.shape[3]
        if square_last == square_first:
            raise DataError(
                f"{name}: in shape {tuple(raw.shape)} the colours could come first or last; "
                "give layout='CHW' or layout='HWC'."
            )
        return square_last
    return last
