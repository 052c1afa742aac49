"""What the client gave: one model that takes its examples, and what these say about themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from seepage.core.errors import DataError
from seepage.core.types import Batch, InputSpec, LocalTraining, Modality
from seepage.models.hugging_face import is_hugging_face
from seepage.models.loading import build_model
from seepage.protocol import loss_name, training_mode
from seepage.protocol.losses import MASKED_TOKEN, NEXT_TOKEN, TOKEN_CLASS


def check_values(batch: Batch) -> None:
    """Refuses what no update could be made of, or one that measures nothing.

    >>> check_values(Batch(torch.tensor([[1.0], [float("nan")]]), torch.tensor([0, 1])))
    Traceback (most recent call last):
        ...
    seepage.core.errors.DataError: example 1 holds NaN or infinite values, ...
    """
    if not len(batch):
        raise DataError(
            "the batch holds no example, so there is nothing to measure: give the private examples."
        )
    for what, values in (("example", batch.inputs), ("the target of example", batch.labels)):
        if not values.is_floating_point() or bool(values.isfinite().all()):
            continue
        broken = (~values.reshape(len(batch), -1).isfinite().all(dim=1)).nonzero().flatten().tolist()
        raise DataError(
            f"{what} {broken[0]} holds NaN or infinite values, of which no update can be measured: fill or "
            f"leave out what is missing, as the training does ({len(broken)} of {len(batch)} do)."
        )


def explained(error: Exception, model: nn.Module, batch: Batch) -> Exception:
    """What the client can do about a pass that broke off; the error itself where that is not known.

    >>> print(explained(IndexError(), nn.Linear(3, 2), Batch(torch.rand(2, 3), torch.tensor([0, 5]))))
    the label of example 1 is 5, and the model has 2 output(s): labels are classes from 0 to 1.
    """
    weights = next((p.dtype for p in model.parameters() if p.is_floating_point()), batch.inputs.dtype)
    if batch.inputs.is_floating_point() and batch.inputs.dtype != weights:
        fed, held = (str(dtype).removeprefix("torch.") for dtype in (batch.inputs.dtype, weights))
        return DataError(
            f"the examples are {fed} and the model's weights {held}, and it cannot take them so ({error}): "
            f"give them as the model is fed them."
        )
    if isinstance(error, IndexError) and not batch.labels.is_floating_point() and batch.targets is None:
        number, _ = outputs(model, batch)
        wrong = ((batch.labels < 0) | (batch.labels >= number)).nonzero().flatten().tolist()
        if wrong:
            label = int(batch.labels[wrong[0]])
            return DataError(
                f"the label of example {wrong[0]} is {label}, and the model has {number} output(s): "
                f"labels are classes from 0 to {number - 1}."
            )
    return error


def spec_of(model: nn.Module, batch: Batch) -> InputSpec:
    """What the examples themselves say: pictures have three dimensions, tokens are whole numbers."""
    sizes = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    return _spec(batch, max(2, outputs(model, batch)[0]), sizes)


def _spec(batch: Batch, classes: int, sizes: list[int]) -> InputSpec:
    shape = tuple(batch.inputs.shape[1:])
    if not batch.inputs.is_floating_point():
        return InputSpec(
            modality=Modality.TEXT,
            shape=shape,
            num_classes=classes,
            value_range=None,
            vocabulary=max([int(batch.inputs.max()) + 1, *sizes]),
        )
    numbers = batch.labels.is_floating_point()
    low, high = float(batch.inputs.min()), float(batch.inputs.max())
    range_ = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
    kind = Modality.IMAGE if len(shape) == 3 else Modality.TABULAR
    return InputSpec(
        modality=kind,
        shape=shape,
        num_classes=1 if numbers else classes,
        num_targets=batch.labels.shape[1] if numbers else 0,
        value_range=range_ if kind is Modality.IMAGE else None,
    )


def plain_model(model: nn.Module, batch: Batch, spec: InputSpec | None) -> nn.Module:
    """The model itself; of Hugging Face's a copy that takes token ids alone and gives logits."""
    if not is_hugging_face(model) or isinstance(_answer(model, batch), Tensor):
        return model
    if spec is None:
        spec = _spec(batch, 2, [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)])
    return build_model(model, spec)


def _answer(model: nn.Module, batch: Batch) -> Any:
    with torch.no_grad(), training_mode(model, False):
        return model(batch.inputs[:1])


def outputs(model: nn.Module, batch: Batch) -> tuple[int, bool]:
    """How many, and whether there are so many at every token."""
    logits = _answer(model, batch)
    if not isinstance(logits, Tensor) or logits.dim() not in (2, 3):
        raise DataError(
            "the model does not return one row of logits for each example: wrap it so that it does."
        )
    return logits.shape[-1], logits.dim() == 3


def loss_of(model: nn.Module, batch: Batch, local: LocalTraining) -> str:
    if batch.labels.is_floating_point():
        return local.loss  # settled
    number, tokens = outputs(model, batch)
    each = MASKED_TOKEN if local.masking is not None else NEXT_TOKEN if batch.targets is None else TOKEN_CLASS
    return loss_name(local.loss, number, per_token=each if tokens else None)
