"""Why an attack may have found nothing in a recorded exchange: what can be seen of it without the truth.

Sentences carry no figures of a single exchange, so that thousands of exchanges with the same trouble lead to
one sentence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from seepage.core.types import Exchange, UpdateKind
from seepage.engine.float_grid import is_a_difference
from seepage.protocol import trainable
from seepage.record.exchanges import ExchangeInfo

_HALF = ("float16", "bfloat16")
_NEAR_WEIGHTS = 0.1
"""An update that differs from the model's weights by less than this share of their length is no change of
them: a step of training that moved weights by as much would be one that diverges."""
_MOST_FLOATS_ALIKE = 0.99
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


def diagnosis(exchange: Exchange, info: ExchangeInfo) -> tuple[str, ...]:
    """Plain sentences, the gravest first; none where nothing speaks against the attacks."""
    checks = (_empty, _taken_for_another, _rounded, _frozen, _steps, _modes, _filters)
    return (*(said for check in checks for said in check(exchange, info)), *_on_trust(exchange, info))


def _empty(exchange: Exchange, info: ExchangeInfo) -> Iterator[str]:
    if not any(bool(t.any()) for t in exchange.update.tensors.values()):
        yield (
            "The update is all zeros: the client did not train, its loss is already zero, or what was "
            "recorded as sent is what it had received."
        )


def _taken_for_another(exchange: Exchange, info: ExchangeInfo) -> Iterator[str]:
    """A kind that the tensors contradict."""
    weights = {name: p.detach() for name, p in trainable(exchange.broadcast.model).items()}
    tensors = exchange.update.tensors
    if info.kind == "weights":
        sent = {name: weights[name] + tensors[name] for name in weights}
        if _length(sent) < _NEAR_WEIGHTS * _length(weights) and _length(sent) > 0:
            yield (
                "The update is recorded as new weights, but it is far too small for that: it looks like a "
                "change of them; record it with kind = delta or gradient."
            )
        return
    apart = {name: tensors[name] - weights[name] for name in weights}
    if _length(weights) > 0 and _length(apart) < _NEAR_WEIGHTS * _length(weights):
        yield (
            f"The update is recorded as a {info.kind}, but it is nearly equal to the model's weights: it "
            "looks like the new weights; record it with kind = weights."
        )
    elif exchange.update.kind is not UpdateKind.GRADIENT:
        return
    elif is_a_difference(weights, tensors):
        yield (
            "The update is recorded as a gradient, but its numbers are whole numbers of rounding steps of "
            "their weights, as only new weights minus received ones are: it looks like a delta; record it "
            "with kind = delta."
        )
    elif _moved_against_the_gradient(exchange, info.examples):
        yield (
            "The update is recorded as a gradient, but the output layer's bias moved as a client's weights "
            "move, against the gradient: it looks like a delta; record it with kind = delta."
        )


def _on_trust(exchange: Exchange, info: ExchangeInfo) -> Iterator[str]:
    """A kind that nothing in the tensors bears out or contradicts."""
    weights = {name: p.detach() for name, p in trainable(exchange.broadcast.model).items()}
    if info.kind == "weights" or any(_taken_for_another(exchange, info)):
        return
    if info.kind == "gradient":
        yield (
            "That the update is a gradient was taken on trust: nothing in it contradicts that, but a delta "
            "that was scaled, noised, averaged or sent in 16 bits would look the same; check kind."
        )
    elif not is_a_difference(weights, exchange.update.tensors):
        yield (
            "That the update is a delta was taken on trust: its numbers are not those of new weights minus "
            "received ones, as of a delta that was scaled, noised, averaged, filtered or sent in 16 bits, or "
            "of a gradient; check kind."
        )


def _moved_against_the_gradient(exchange: Exchange, examples: int | None) -> bool:
    """By the output bias, whose gradient is mean(p - y), Zhao et al. 2020, eq. (4). For changes that a filter
    took off the weights' grid.

    An entry is negative only for a class that is there, so a gradient has no more of them than there are
    examples. A delta has them the other way round. Its entries sum to zero, or the loss is another one.
    """
    name = next((n for n in reversed(list(exchange.update.tensors)) if n.endswith("bias")), None)
    if examples is None or name is None or exchange.update.tensors[name].ndim != 1:
        return False
    bias = exchange.update.tensors[name].double()
    sums_to_zero = bool(bias.sum().abs() <= 1e-3 * bias.abs().sum())
    return sums_to_zero and int((bias < 0).sum()) > examples


def _rounded(exchange: Exchange, info: ExchangeInfo) -> Iterator[str]:
    narrow = info.dtype if info.dtype in _HALF else _rounded_to(exchange, info)
    if narrow is None:
        return
    if info.kind == "weights":
        yield (
            f"New weights were sent in {narrow}: their change is hardly larger than the rounding of the "
            "weights themselves, so that what the examples left in it is mostly lost. Larger steps come "
            "through: this is no protection that was measured."
        )
    else:
        yield f"The update was sent in {narrow}: attacks vouch for nothing that its rounding leaves open."


def _rounded_to(exchange: Exchange, info: ExchangeInfo) -> str | None:
    """The 16-bit type that all numbers fit, though they are stored in a wider one."""
    weights = trainable(exchange.broadcast.model)
    tensors = exchange.update.tensors
    sent = {name: weights[name].detach() + t if info.kind == "weights" else t for name, t in tensors.items()}
    for dtype in (torch.bfloat16, torch.float16):  # what fits the first fits the second too
        alike = sum(int((t == t.to(dtype).to(t.dtype)).sum()) for t in sent.values())
        if any(bool(t.any()) for t in sent.values()) and alike >= _MOST_FLOATS_ALIKE * _count(sent):
            return str(dtype).removeprefix("torch.")
    return None


def _frozen(exchange: Exchange, info: ExchangeInfo) -> Iterator[str]:
    model, tensors = exchange.broadcast.model, exchange.update.tensors
    absent = [name for name, _ in model.named_parameters() if name not in tensors]
    if absent:
        yield (
            f"The update lacks parameters of the model ({_first(absent)}): they "
            "were frozen or not sent, and nothing can be read from them."
        )
    still = [name for name, t in tensors.items() if not bool(t.any())]
    if still and len(still) < len(tensors):
        adapters = all(".lora_A." in name for name in still)
        why = (
            "LoRA's other matrix, lora_B, begins at zero, and until it has grown these hardly move"
            if adapters
            else "they are frozen, or no example reached them (dead units)"
        )
        yield f"Some parameters did not change at all ({_first(still)}): {why}."


def _steps(exchange: Exchange, info: ExchangeInfo) -> Iterator[str]:
    if info.kind == "gradient":
        return
    known = info.local
    if known.optimizer not in (None, "sgd"):
        yield (
            f"The clients train with {known.optimizer}, which rescales every entry: reading attacks take "
            "changes of plain SGD, and of Adam the first step where rounding left more of it than signs. "
            "Searches play the steps of adam and adamw; one alone shows them little more than signs. Labels "
            "are read from those signs, most of them rightly."
        )
    steps = known.steps
    if steps is None and known.epochs is not None and info.examples is not None:
        steps = known.epochs * -(-info.examples // (known.batch_size or info.examples))
    if steps is None:
        yield (
            "How many local steps there were is not recorded: after several, an update is no gradient of one "
            "batch any more; give lr and steps (or epochs and batch_size) as --known lr=0.1,steps=1, or as "
            "local in the JSON."
        )
    elif steps > (known.accumulation or 1):  # so many mini-batches make one step
        yield (
            "There were several local steps: examples of later steps were seen by weights that nobody sent, "
            "and reading attacks get mixtures of them."
        )
        if known.shuffle:
            yield (
                "The clients took their examples in an order that the server does not know: a search that "
                "plays their steps takes an order of its own."
            )


def _modes(exchange: Exchange, info: ExchangeInfo) -> Iterator[str]:
    model = exchange.broadcast.model
    if info.local.mixed_precision:
        yield (
            "The clients computed under autocast in bfloat16: their gradients are as coarse as that, and "
            "attacks compute in full."
        )
    drops = any(isinstance(m, _DROPOUTS) and m.p > 0 for m in model.modules())
    if drops and info.local.dropout is not False:
        yield (
            "The model has dropout: where clients train with it, units were switched off that a server "
            "cannot know of, and searches cannot replay the step. Say --known dropout=false where they do "
            "not."
        )
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    said = info.local.batch_norm == "train"
    if norms and (said or _statistics_moved(model, exchange.update.buffers)):
        remedy = "" if said else "; say --known batch_norm=train, and searches replay the whole batch"
        yield (
            "Batch norm was in train mode: every example's gradient depends on the whole batch, and attacks "
            f"that read or replay single examples miss that{remedy}."
        )


def _statistics_moved(model: nn.Module, buffers: Mapping[str, Tensor] | None) -> bool:
    own = dict(model.named_buffers())
    return any(
        name.endswith("running_mean") and not torch.equal(value, own[name])
        for name, value in (buffers or {}).items()
    )


def _filters(exchange: Exchange, info: ExchangeInfo) -> Iterator[str]:
    if info.filters:
        yield (
            f"The update passed {', '.join(info.filters)} before it was recorded; name such filters as "
            "defenses of the audit, and each attack also runs as by a server that knows them."
        )


def _first(names: Sequence[str]) -> str:
    return f"'{names[0]}' and others" if len(names) > 1 else f"'{names[0]}'"


def _length(tensors: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors.values()))


def _count(tensors: Mapping[str, Tensor]) -> int:
    return sum(t.numel() for t in tensors.values())
