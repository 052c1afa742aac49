"""Sentences by linear algebra: DAGER (Petrov et al. 2024) for decoders, links by attention for encoders."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from seepage.attacks.base import PerUpdateAttack
from seepage.attacks.text.encoder import read_encoder
from seepage.attacks.text.growing import SAMPLE, Reader, grow, reader, tokens_at
from seepage.attacks.text.likely_words import likely_words
from seepage.attacks.text.local_steps import several_steps
from seepage.attacks.text.proving import settled
from seepage.attacks.text.span import Span
from seepage.core.errors import NotApplicable
from seepage.core.types import PADDING, Exchange, Knowledge, Modality, Reconstruction
from seepage.models.blocks import attention_of, blocks_of, is_causal, reading_points
from seepage.models.hugging_face import is_adapted


class ExactText(PerUpdateAttack):
    """Reads which tokens the first block saw, grows sentences that the second block saw, and proves them."""

    def held_as(self, model: nn.Module) -> nn.Module:
        """Under adapters as clients hold it: what a half-precision base hands to an adapter in float32 is
        then the very features that the adapter's gradient is made of, and the base is not copied."""
        return model if is_adapted(model) else super().held_as(model)

    def check(self, model: nn.Module, known: Knowledge) -> None:
        """A decoder of Hugging Face's, or an encoder of BERT's kin, with two blocks."""
        if known.input.modality is not Modality.TEXT or known.input.vocabulary is None:
            raise NotApplicable("this attack reads texts: use another one for pictures and tables.")
        blocks_of(model)
        if not is_causal(model):
            if is_adapted(model):
                raise NotApplicable(
                    "an encoder's sentences are put together by the gradients of its own queries and keys, "
                    "which clients that train adapters do not send: 'tag' searches."
                )
            attention_of(model, 0)

    def invert(self, exchange: Exchange, known: Knowledge) -> Reconstruction:
        """Tokens, sentences, what gradients of blocks leave open, and the proof."""
        self.check(exchange.broadcast.model, known)
        model, tensors = exchange.broadcast.model, exchange.update.tensors
        generator = torch.Generator().manual_seed(known.seed)
        device = next(model.parameters()).device
        vocabulary, length = int(known.input.vocabulary or 0), known.input.shape[0]
        sample = torch.randint(vocabulary, (min(SAMPLE, vocabulary),), generator=generator).to(device)
        soft, causal = several_steps(exchange.update, known.local), is_causal(model)
        if soft and not causal:
            raise NotApplicable(
                "an encoder's sentences are put together from one step's gradient, and clients take several "
                "local steps: 'embedding_rows' reads their tokens. That nothing was read here does not mean "
                "that nothing leaks."
            )
        try:
            first = _first_reader(model, tensors, sample, soft=soft)
            second = _reader(model, 1, tensors, sample, soft=soft)
        except NotApplicable as reason:
            words = likely_words(model, tensors, known.input) if is_adapted(model) else None
            if words is None:
                raise
            return _nothing(
                known, [f"No text is read, for {reason}", _LIKELY.format(int(words.sum()))], words
            )
        said: list[str] = []
        if causal:
            every = torch.arange(vocabulary, device=device)
            candidates = [every] * length if first is None else tokens_at(first, length, vocabulary)
            found = grow(second, candidates, most=exchange.update.num_examples)
            ids = torch.full((len(found), length), PADDING, dtype=torch.long, device=device)
            # of several mini-batches the first was read by the model that is known, and lies nearest
            for row, (_, tokens) in zip(ids, found, strict=True):
                row[: len(tokens)] = torch.tensor(tokens, device=device)
        elif first is None:
            raise NotApplicable(_ALL_INSIDE)
        else:
            ids, said = read_encoder(first, second, tensors, known.input)
        span = (first or second).tests[0].span
        notes = [
            f"Several local steps have no clear rank; {len(ids)} sentences lie nearest to the blocks' spans."
            if soft
            else f"The {'second' if first is None else 'first'} block's gradient has rank {span.rank} of "
            f"{span.outside.shape[0]}; {len(ids)} sentences lie in the second block's span.",
            *([] if first is not None else ["Every token lies in the first block's span: all were tried."]),
            *said,
        ]
        if len(ids):
            return settled(exchange, known, ids, notes)
        if first is not None and not soft and second.tests[0].span.rank < span.rank:
            notes.append(
                f"The second block's gradient has rank {second.tests[0].span.rank}, which lacks some tokens: "
                "a classifier's last block is read by one token of each text alone."
            )
        words = likely_words(model, tensors, known.input) if is_adapted(model) else None
        return _nothing(known, notes, words)


class _AllInsideError(NotApplicable):
    """The gradient has a gap in its spectrum, and its span tells no token from another."""


_ALL_INSIDE = (
    "the first block's gradient tells no tokens apart, for its span holds nearly all of the vocabulary, as "
    "of a small one whose every word is in the batch: attack smaller batches or shorter texts."
)


def _first_reader(
    model: nn.Module, tensors: Mapping[str, Tensor], sample: Tensor, *, soft: bool
) -> Reader | None:
    """None where the span holds all tokens at all places: sums of a word's and a place's embedding, if
    nearly every word and every place is among those that were read. The second block mixes, and tells."""
    try:
        return _reader(model, 0, tensors, sample, soft=soft)
    except _AllInsideError:
        return None


def _reader(
    model: nn.Module, block: int, tensors: Mapping[str, Tensor], sample: Tensor, *, soft: bool
) -> Reader:
    points = reading_points(model, block, tensors)
    which = "first" if block == 0 else "second"
    if not points:
        raise NotApplicable(
            f"the update has no gradient of the {which} block's attention, for it is frozen or all zero (or, "
            "of adapters, not LoRA's): clients that train these blocks, or LoRA in them, can be read."
        )
    rounding = max(torch.finfo(tensors[name].dtype).eps for point in points for name in point.weights)
    gradients = [point.gradient(tensors) for point in points]
    # adapters have fewer rows than features, and what the first ones read stays as it is
    spans = [
        Span.softened(g) if soft and len(g) >= g.shape[1] else Span.of(g, rounding=rounding)
        for g in gradients
    ]
    # Adapters of queries never see a text's first token: softmax over one key has no gradient.
    most = max((span.rank for span in spans if span is not None), default=0)
    clear = [
        (point, span)
        for point, span in zip(points, spans, strict=True)
        if span is not None and not span.full and span.rank == most
    ]
    widths = sorted({len(gradient.T) for gradient in gradients})
    found = reader(model, [p for p, _ in clear], [s for _, s in clear], sample) if clear else None
    if clear and found is None and block == 0:
        raise _AllInsideError
    if found is None:
        raise NotApplicable(
            f"the {which} block's gradient has no gap in its spectrum, as of more tokens than the "
            f"{' or '.join(map(str, widths))} features (of LoRA: the rank) that it is read in, or of noise: "
            "attack smaller batches or shorter texts."
        )
    return found


def _nothing(known: Knowledge, notes: list[str], words: Tensor | None = None) -> Reconstruction:
    empty = torch.zeros(0, *known.input.shape, dtype=torch.long)
    claimed = empty.new_zeros(0, dtype=torch.bool)
    if words is not None:
        notes.append(_LIKELY.format(int(words.sum())))
    return Reconstruction(values=empty, claimed=claimed, words=words, notes=tuple(notes))


_LIKELY = (
    "{} tokens stand out from the vocabulary, as those do that the adapters read: they are likely to be in "
    "the texts, without a proof and without their places."
)


def exact_text() -> ExactText:
    """Passive: whole sentences of a decoder (DAGER) or an encoder, exactly, from two blocks' gradients."""
    return ExactText()
