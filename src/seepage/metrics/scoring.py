"""The scores of matched pairs, chosen by what an example is."""

from __future__ import annotations

from torch import Tensor

from seepage.core.errors import DataError
from seepage.core.types import INPUT_SPACE, InputSpec, Modality
from seepage.metrics.features import cosine, relative_error
from seepage.metrics.image import mse, psnr, ssim
from seepage.metrics.pairs import are_tokens, check_comparable, check_pair, wide
from seepage.metrics.scales import column_spread, data_range, exact_rule
from seepage.metrics.tabular import rmse
from seepage.metrics.text import bag_of_words_recall, find_padding, rouge_1, rouge_2, rouge_l, token_accuracy


def score_examples(
    recon: Tensor,
    truth: Tensor,
    spec: InputSpec,
    *,
    space: str,
    exact: Tensor | None = None,
    reference: Tensor | None = None,
) -> dict[str, Tensor]:
    """Scores (n,) of n matched pairs by name, in float64; `exact` is 0 or 1. No pairs give empty scores.

    In the input space both are in raw units (token ids for text). Pictures: mse, psnr, ssim (left out below
    3 x 3 pixels and for flattened pictures). Tables: rmse, in units of each column's spread. Text:
    token_accuracy, rouge_1, rouge_2, rouge_l, bag_of_words_recall, not counting padding if the spec's tokens
    name one. Features of a layer: relative_error, cosine.

    A spec that knows no value range (tables: no spread) is judged by the true values' own, see
    `scales.error_unit`. `reference` holds the true examples it is taken from: give all of them where `truth`
    has only the matched ones, or the unit shifts with every attack. `exact` (n,) bool: which pairs are the
    same example, where their matching has judged it already.

    >>> import torch
    >>> spec = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=2)
    >>> picture = torch.rand(1, 1, 8, 8)
    >>> scores = score_examples(picture, picture, spec, space="input")
    >>> {name: round(float(score), 3) for name, score in scores.items()}
    {'mse': 0.0, 'psnr': 100.0, 'ssim': 1.0, 'exact': 1.0}
    """
    check_pair(recon, truth)
    if space == INPUT_SPACE:
        _check_input(truth, spec)
    if len(truth) == 0:
        blank = truth.new_zeros(1, *truth.shape[1:])
        scores = score_examples(blank, blank, spec, space=space)
        return {name: score[:0] for name, score in scores.items()}
    reference = truth if reference is None else reference
    check_comparable(reference, truth)
    if space == INPUT_SPACE:
        scores = _BY_MODALITY[spec.modality](recon, truth, spec, reference)
    else:
        scores = {"relative_error": relative_error(recon, truth), "cosine": cosine(recon, truth)}
    if exact is None:
        exact = exact_rule(spec, reference, space=space).pairs(recon, truth)
    return scores | {"exact": wide(exact)}


def _check_input(truth: Tensor, spec: InputSpec) -> None:
    if tuple(truth.shape[1:]) != spec.shape:
        raise DataError(
            f"examples have shape {tuple(truth.shape[1:])} but the input spec says {spec.shape}: "
            "reshape them, or name the layer whose features they are as their space."
        )
    if are_tokens(truth) != (spec.modality is Modality.TEXT):
        wanted = "integer token ids" if spec.modality is Modality.TEXT else "floating-point values"
        raise DataError(
            f"{spec.modality} is scored on {wanted}, got {truth.dtype}: convert the examples first."
        )


def _image(recon: Tensor, truth: Tensor, spec: InputSpec, reference: Tensor) -> dict[str, Tensor]:
    width = data_range(spec, reference)
    scores = {"mse": mse(recon, truth), "psnr": psnr(recon, truth, data_range=width)}
    if len(spec.shape) >= 2 and min(spec.shape[-2:]) >= 3:
        scores["ssim"] = ssim(recon, truth, data_range=width)
    return scores


def _tabular(recon: Tensor, truth: Tensor, spec: InputSpec, reference: Tensor) -> dict[str, Tensor]:
    return {"rmse": rmse(recon, truth, scale=column_spread(spec, reference))}


def _text(recon: Tensor, truth: Tensor, spec: InputSpec, _reference: Tensor) -> dict[str, Tensor]:
    padding = find_padding(spec.tokens)
    return {
        "token_accuracy": token_accuracy(recon, truth, padding_id=padding),
        "rouge_1": rouge_1(recon, truth, padding_id=padding),
        "rouge_2": rouge_2(recon, truth, padding_id=padding),
        "rouge_l": rouge_l(recon, truth, padding_id=padding),
        "bag_of_words_recall": bag_of_words_recall(recon, truth, padding_id=padding),
    }


_BY_MODALITY = {Modality.IMAGE: _image, Modality.TABULAR: _tabular, Modality.TEXT: _text}
