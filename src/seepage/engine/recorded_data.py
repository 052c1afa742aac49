"""The truth behind recorded exchanges or, where nobody has it, what one example is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from seepage.core.errors import ModelError, SpecError
from seepage.core.registry import REFERENCE, import_thing
from seepage.core.types import InputSpec, Modality
from seepage.core.user_code import USER_CODE_ERRORS
from seepage.data import Dataset, load_data
from seepage.engine.recorded import by_client, chosen
from seepage.engine.spec import NO_TRUTH, AuditSpec
from seepage.protocol import training_mode
from seepage.record.exchanges import InputInfo

Build = Callable[[InputSpec], nn.Module]
"""From what one example is to the model."""
SIZES = (8, 16, 20, 24, 28, 32, 48, 64, 96, 128, 160, 192, 224, 256, 299)
"""Heights and widths of images that are tried where nothing else is known."""


def recorded_data(spec: AuditSpec, data: Any, build: Build) -> Dataset:
    """What the specification names as the truth, or `data` in its place; without either, no example."""
    assert spec.recorded is not None
    exchanges = chosen(spec.recorded)
    wanted = spec.data.name if data is None else data
    if isinstance(wanted, str) and wanted == NO_TRUTH:
        described = spec.recorded.input or next((said for e in exchanges if (said := e.info.input)), None)
        return _nothing(_looked_up(described) if described else _guessed(build, spec.recorded.shape))
    load = import_thing(wanted, function=True) if _is_reference(wanted) else wanted
    if callable(load):
        parameters = inspect.signature(load).parameters
        if "client" in parameters:
            held = by_client(load, exchanges, partial(load_data, **spec.data.options))
            return _as_the_model_says(held, build, spec.data.options)
        _check_called_alone(load, parameters, spec.data.options)
    return load_data(wanted, **spec.data.options)


def _as_the_model_says(held: Dataset, build: Build, said: Mapping[str, Any]) -> Dataset:
    """A few clients may hold none of the last class, or of the last words: the model has all of them.

    Taken from what clients hold, the largest word would also tell attacks something of the truth.
    """
    described = held.spec
    if described.modality is Modality.TEXT and "vocabulary" not in said and not described.tokens:
        described = replace(described, vocabulary=_words(build, described) or described.vocabulary)
    outputs = _outputs(build, described) or ()
    if len(outputs) == 1 and not described.num_targets and "num_classes" not in said:
        described = replace(described, num_classes=max(described.num_classes, *outputs))
    return replace(held, spec=described)


def _check_called_alone(
    load: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], given: Mapping[str, Any]
) -> None:
    """Flower's own load_data(partition_id, num_partitions) is not called by guessing what it wants."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    wants = [p.name for p in parameters.values() if p.kind in named and p.default is p.empty]
    if missing := [name for name in wants if name not in given]:
        raise SpecError(
            f"the truth's function {getattr(load, '__name__', load)} takes {' and '.join(missing)}, which an "
            "audit does not know: give one with an argument `client` (the partition's number) that returns "
            "that client's inputs and labels, as in def truth(client): return x, y."
        )


def _is_reference(wanted: Any) -> bool:
    return isinstance(wanted, str) and bool(REFERENCE.fullmatch(wanted))


def _nothing(spec: InputSpec) -> Dataset:
    dtype = torch.long if spec.modality is Modality.TEXT else torch.float32
    none = torch.empty(0, *spec.shape, dtype=dtype)
    return Dataset(NO_TRUTH, none, torch.empty(0, dtype=torch.long), spec, "nobody gave the truth")


def _looked_up(described: InputInfo) -> InputSpec:
    return InputSpec(**{**dict(described), "modality": Modality(described.modality)})


def _guessed(build: Build, known: tuple[int, ...] | None) -> InputSpec:
    """By what the model takes: its first layer says the number of values or of channels, or the tokens."""
    found = []
    for shape in _shapes(build) if known is None else [known]:
        modality = Modality.IMAGE if len(shape) == 3 else Modality.TABULAR
        tried = InputSpec(modality=modality, shape=shape, num_classes=2, value_range=None)
        if (outputs := _outputs(build, tried)) is not None and len(outputs) == 1:
            found.append(replace(tried, num_classes=max(2, outputs[0])))
    if not found and known is not None and (text := _text(build, known)) is not None:
        found.append(text)
    if len(found) == 1:
        return found[0]
    several = f" It takes {' and '.join(str(spec.shape) for spec in found[:4])}." if found else ""
    raise SpecError(
        "the model does not tell what one example is: say it, as in --input 3x32x32 (channels, height, "
        f"width), --input 64 (columns of a table) or --input 128 (tokens of a text).{several}"
    )


def _text(build: Build, shape: tuple[int, ...]) -> InputSpec | None:
    """Of a model that looks tokens up; one output for every token is a next token, or else its class."""
    tried = InputSpec(modality=Modality.TEXT, shape=shape, num_classes=2, value_range=None)
    words = _words(build, tried)
    outputs = _outputs(build, tried) if words else None
    if outputs is None or len(outputs) > 2:
        return None
    tried = replace(tried, vocabulary=words)
    if len(outputs) == 1:
        return replace(tried, num_classes=max(2, outputs[0]))
    return (
        replace(tried, num_classes=1)
        if outputs[1] == words
        else replace(tried, num_classes=outputs[1], token_labels=True)
    )


def _words(build: Build, spec: InputSpec) -> int:
    """Token ids that the model looks up; 0 where it looks none up."""
    try:
        layers = [module for module in build(spec).modules() if isinstance(module, nn.Embedding)]
    except ModelError:
        return 0
    return max((layer.num_embeddings for layer in layers), default=0)  # positions and kinds are fewer


def _shapes(build: Build) -> list[tuple[int, ...]]:
    try:
        model = build(InputSpec(modality=Modality.TABULAR, shape=(1,), num_classes=2, value_range=None))
    except ModelError:
        return []  # it is made for a shape, so it cannot say one
    for module in model.modules():
        if isinstance(module, nn.Linear):
            return [(module.in_features,)]
        if isinstance(module, nn.Conv2d):
            return [(module.in_channels, size, size) for size in SIZES]
    return []


def _outputs(build: Build, spec: InputSpec) -> tuple[int, ...] | None:
    """The shape of the model's answer to one such example; None where it does not take them."""
    dtype = torch.long if spec.modality is Modality.TEXT else torch.float32
    try:
        model = build(spec)
        with torch.no_grad(), training_mode(model, False):
            output = model(torch.zeros(2, *spec.shape, dtype=dtype))
    except (*USER_CODE_ERRORS, ModelError):
        return None
    output = getattr(output, "logits", output)
    return tuple(output.shape[1:]) if isinstance(output, torch.Tensor) and output.ndim > 1 else None
