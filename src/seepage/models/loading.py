"""From what a user names (a registry name, a function, a module) to a model that is ready to audit."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seepage.core.errors import ModelError
from seepage.core.registry import Entry, unknown
from seepage.core.types import InputSpec, Modality
from seepage.core.user_code import (
    USER_CODE_ERRORS,
    current_folder_importable,
    reason,
)
from seepage.models import MODELS
from seepage.models.adapting import refuse_unusable, settle, unwrap, unwrap_children
from seepage.models.hugging_face import is_adapted, is_hugging_face, take_plain
from seepage.models.weights import PRETRAINED, load_weights, pretrained_path
from seepage.models.zoo.initialisers import initialise
from seepage.protocol import training_mode
from seepage.protocol.copies import own_copy
from seepage.protocol.widening import model_placement, wide, wide_model

__all__ = ["build_model", "builder_of", "check_forward", "load_weights"]


def build_model(
    reference: str | Callable[..., nn.Module] | nn.Module,
    spec: InputSpec,
    *,
    weights: str | Path | None = None,
    initialiser: str | Mapping[str, str] | None = None,
    seed: int = 0,
    **params: Any,
) -> nn.Module:
    """Build, load weights if given, then initialise if asked to; the same seed gives the same weights.

    initialiser: for the whole model, or by layer ("" is the whole), in this order.

    `reference`: a name from `MODELS`, "package.module:function" (also from the current directory), a
    callable, or a module, which is copied. A callable gets `spec` if it has an argument for it. The
    global random state of torch is left as it was.

    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(4,), num_classes=2)
    >>> build_model("mlp", spec, hidden=(3,)).dense0
    Linear(in_features=4, out_features=3, bias=True)
    """
    label = (
        reference if isinstance(reference, str) else getattr(reference, "__name__", type(reference).__name__)
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            model = _construct(reference, spec, params)
        except USER_CODE_ERRORS as error:
            raise ModelError(
                f"model '{label}' could not be built ({type(error).__name__}: {reason(error)}): "
                "check its hyperparameters and code."
            ) from error
        if not isinstance(model, nn.Module):
            raise ModelError(
                f"model '{label}' gave an object of type {type(model).__name__}; "
                "its function must return a torch.nn.Module."
            )
        if not isinstance(reference, str) or _entry(reference).outside:
            model = _adapted(model, spec)
    if weights is not None:
        load_weights(model, pretrained_path(label) if weights == PRETRAINED else weights)
    wanted = {"": initialiser} if isinstance(initialiser, str) else initialiser or {}
    for layer, name in wanted.items():
        initialise(_part(model, layer, label), name, generator_seed=seed)
    return model


def _part(model: nn.Module, layer: str, label: str) -> nn.Module:
    layers: dict[str, nn.Module] = dict(model.named_modules())
    if layer not in layers:
        raise ModelError(unknown(f"layer of model '{label}'", layer, [name for name in layers if name]))
    return layers[layer]


def _adapted(model: nn.Module, spec: InputSpec) -> nn.Module:
    """A user's own module, made such that the rest can work with it; see `adapting`."""
    model = unwrap(model)
    unwrap_children(model)
    refuse_unusable(model)
    if is_hugging_face(model):
        take_plain(model, texts=spec.modality is Modality.TEXT)
    settle(model, _dummy_examples(model, spec, None))
    return model


def _construct(
    reference: str | Callable[..., nn.Module] | nn.Module, spec: InputSpec, params: dict[str, Any]
) -> nn.Module:
    if isinstance(reference, nn.Module):
        if params:
            raise ModelError(
                f"a module that is already built takes no hyperparameters ({', '.join(params)}); "
                "remove them, or give the function that builds it."
            )
        return own_copy(unwrap(reference))
    if not isinstance(reference, str):
        return _call_with_spec(reference, spec, params)
    build = builder_of(reference)
    if not _entry(reference).outside:
        valid = [p.name for p in inspect.signature(build).parameters.values() if p.kind is p.KEYWORD_ONLY]
        for name in params:
            if name not in valid:
                raise ModelError(unknown(f"hyperparameter of model '{reference}'", name, valid))
        return build(spec, **params)
    with current_folder_importable():
        return _call_with_spec(build, spec, params)


def _entry(reference: str) -> Entry:
    hint = 'A model of your own is named "package.module:function".'
    return MODELS.entry(reference, error=ModelError, hint=hint)


def builder_of(reference: str | Callable[..., nn.Module] | nn.Module) -> Callable[..., nn.Module] | nn.Module:
    """The function behind a name; what is no name is itself.

    >>> builder_of("mlp").__name__
    'mlp'
    """
    if not isinstance(reference, str):
        return reference
    _entry(reference)
    return MODELS.find(reference, error=ModelError).build


def _call_with_spec(function: Callable[..., nn.Module], spec: InputSpec, params: dict[str, Any]) -> nn.Module:
    """Call with the spec where there is an argument for it: one named so, or a positional without default."""
    parameters = inspect.signature(function).parameters
    if "spec" in parameters and parameters["spec"].kind is not inspect.Parameter.POSITIONAL_ONLY:
        return function(**{"spec": spec, **params})
    for parameter in parameters.values():
        positional = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        open_place = positional and parameter.default is parameter.empty and parameter.name not in params
        if open_place or parameter.kind is parameter.VAR_POSITIONAL:
            return function(spec, **params)
    return function(**params)


def check_forward(
    model: nn.Module, spec: InputSpec, *, device: torch.device | str | None = None
) -> tuple[int, ...]:
    """Run two dummy examples through the model and return the output's shape, or say what does not fit.

    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(4,), num_classes=3)
    >>> check_forward(build_model("mlp", spec), spec)
    (2, 3)
    """
    examples = _dummy_examples(model, spec, device)
    try:
        with torch.no_grad(), training_mode(model, False):
            output = model(examples)
    except USER_CODE_ERRORS as error:
        raise ModelError(
            f"the model does not take a batch of shape {tuple(examples.shape)}, two examples of shape "
            f"{spec.shape}{_first_layer(model)} ({type(error).__name__}: {reason(error)}): "
            f"{_one_hot(spec)}{_fitting(model, examples)}."
        ) from error
    shape = _checked_output(output, spec)
    _check_wide(model, examples)
    return shape


def _fitting(model: nn.Module, examples: Tensor) -> str:
    """What to do where inputs do not fit: series, which look like grey pictures, can be given as rows."""
    if examples.ndim != 4 or examples.shape[1] != 1:
        return "choose a model and data that fit"
    series = tuple(examples.shape[2:])
    try:
        with torch.no_grad(), training_mode(model, False):
            model(examples[:, 0])
    except USER_CODE_ERRORS:
        return "choose a model and data that fit"
    return (
        f"it takes series of shape {series}, which were taken for grey pictures; give them as rows, "
        f"x.flatten(1), and the model as nn.Sequential(nn.Unflatten(1, {series}), model)"
    )


def _check_wide(model: nn.Module, examples: Tensor) -> None:
    """Attacks reckon in float32 with a half-precision model, which must not fix its type within `forward`.

    Under adapters none is made to find out: Hugging Face's models fix no type, and the base may be large.
    """
    if is_adapted(model) or (server := wide_model(model)) is model:
        return
    try:
        with torch.no_grad(), training_mode(server, False):
            server(wide(examples))
    except USER_CODE_ERRORS as error:
        raise ModelError(
            "the model is in half precision and cannot be run in float32, as a server's attacks run it "
            f"({type(error).__name__}: {reason(error)}): let forward cast to a layer's own type "
            "(`x.to(self.layer.weight.dtype)`), not to a fixed one."
        ) from error


def _checked_output(output: object, spec: InputSpec) -> tuple[int, ...]:
    wanted = "(2, 2) or (2, 1)" if spec.num_classes == 2 else f"(2, {spec.num_classes})"
    if not isinstance(output, Tensor):
        raise ModelError(
            f"the model returned a {type(output).__name__} instead of a tensor of shape {wanted}; "
            "wrap it so that it returns its logits only."
        )
    shape = tuple(output.shape)
    if spec.num_targets:
        if shape != (2, spec.num_targets):
            raise ModelError(
                f"the model returned shape {shape} for two examples, whose labels are {spec.num_targets} "
                f"number(s) each, not classes: let it return {(2, spec.num_targets)}, or give whole numbers "
                "as labels of a classifier."
            )
    elif spec.modality is Modality.TEXT and (output.ndim == 3 or spec.token_labels):
        _check_each_token(shape, spec)
    elif spec.num_classes < 2:
        raise ModelError(
            f"the model returned shape {shape} for two texts, and the texts have no classes: give labels for "
            "a classifier, or a model with logits at every token."
        )
    elif shape == (2, 1) and spec.num_classes > 2:
        raise ModelError(
            f"the model returned one number for an example, but the data have {spec.num_classes} classes; "
            "give the numbers themselves as targets for a regression, or one logit for each class."
        )
    elif shape != (2, spec.num_classes) and not (spec.num_classes == 2 and shape == (2, 1)):
        raise ModelError(
            f"the model returned shape {shape} for two examples, but data of {spec.num_classes} classes "
            f"need {wanted}; let it return one logit for each class and nothing else"
            f"{_more_classes(shape, spec)}."
        )
    if bool((output.isnan() | (output == torch.inf)).any()):
        raise ModelError(
            "the model returned NaN or infinite values for two plain examples; check its weights and its "
            "normalisation."
        )
    return shape


def _more_classes(shape: tuple[int, ...], spec: InputSpec) -> str:
    """What to do with a head for more classes than the data show, as of a network trained on others."""
    many = len(shape) == 2 and shape[0] == 2 and shape[1] > spec.num_classes
    return f", or give num_classes = {shape[1]} with the data if it knows so many classes" if many else ""


def _check_each_token(shape: tuple[int, ...], spec: InputSpec) -> None:
    """Logits of classes where tokens have some, else of the vocabulary; behind a prompt of one place more."""
    places = spec.shape[0]
    if spec.token_labels:
        if shape != (2, places, spec.num_classes):
            raise ModelError(
                f"the model returned shape {shape} for two texts of {places} tokens, whose tokens have "
                f"{spec.num_classes} classes: give a model for token classification with so many labels."
            )
    elif shape[:2] not in ((2, places), (2, places + 1)) or shape[2] < (spec.vocabulary or 0):
        raise ModelError(
            f"the model returned shape {shape} for two texts of {places} tokens; a language model gives "
            f"{(2, places)} and at least {spec.vocabulary} logits each, one for every token of the data's "
            "tokenizer, and a model that gives tokens classes needs data with a class for each token."
        )


def _dummy_examples(model: nn.Module, spec: InputSpec, device: torch.device | str | None) -> Tensor:
    placed, dtype = model_placement(model)
    target = placed if device is None else torch.device(device)
    if spec.modality is Modality.TEXT:
        return torch.zeros(2, *spec.shape, dtype=torch.long, device=target)
    low, high = spec.value_range or (0.0, 1.0)
    # A ramp, not noise: reproducible without a random state, and not so uniform that it hides a NaN.
    ramp = torch.linspace(low, high, 2 * math.prod(spec.shape), device=target).reshape(2, *spec.shape)
    return spec.to_model(ramp).to(dtype)


def _one_hot(spec: InputSpec) -> str:
    """Where a table's categories make it wider than its file, which a model for the file's columns misses."""
    if not spec.categories:
        return ""
    columns = spec.shape[0] - sum(len(group) - 1 for group in spec.categories)
    return (
        f"each category has a column of its own, so that the table's {columns} columns are {spec.shape[0]} "
        "values; write the function as build(spec) and size the first layer by spec.shape[0], or "
    )


def _first_layer(model: nn.Module) -> str:
    """What the first layer wants, where its kind tells."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            return f" (its first layer {name} takes {module.in_features} values)"
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            return f" (its first layer {name} takes {module.in_channels} channels)"
        if isinstance(module, nn.Embedding):
            return f" (its first layer {name} takes token ids below {module.num_embeddings})"
    return ""
