"""Sentences by linear algebra: DAGER (Petrov et al. 2024) for decoders, links by attention for encoders."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from seepage.attacks.base import PerUpdateAttack
from seepage.attacks.proof import shares, unexplained
from seepage.attacks.text.encoder import read_encoder
from seepage.attacks.text.ends import classes, last_tokens
from seepage.attacks.text.growing import SAMPLE, Reader, grow, reader, tokens_at
from seepage.attacks.text.likely_words import likely_words
from seepage.attacks.text.local_steps import mean_gradient, several_steps
from seepage.attacks.text.span import Span
from seepage.attacks.text.targets import token_targets
from seepage.core.errors import NotApplicable
from seepage.core.types import (
    PADDING,
    Batch,
    Exchange,
    Knowledge,
    Modality,
    Reconstruction,
)
from seepage.models.blocks import attention_of, blocks_of, reading_points
from seepage.models.hugging_face import is_adapted
from seepage.protocol import training_mode
from seepage.protocol.losses import MASKED_TOKEN, NEXT_TOKEN, PER_TOKEN, TOKEN_CLASS

REFINEMENTS = 4
"""Rounds of reading what the loss wanted, after several steps. Cost: time; the last tokens settle in two."""
_TIMES = 10.0
"""How much more than what is left a token's share of the update must be. Derived: `peeling.BEYOND`, ten root
mean squares."""


class ExactText(PerUpdateAttack):
    """Reads which tokens the first block saw, grows sentences that the second block saw, and proves them."""

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
            first, second = (_reader(model, block, tensors, sample, soft=soft) for block in (0, 1))
        except NotApplicable as reason:
            words = likely_words(model, tensors, known.input) if is_adapted(model) else None
            if words is None:
                raise
            return _nothing(
                known, [f"No text is read, for {reason}", _LIKELY.format(int(words.sum()))], words
            )
        said: list[str] = []
        if causal:
            candidates = tokens_at(first, length, vocabulary)
            found = grow(second, candidates, most=exchange.update.num_examples)
            ids = torch.full((len(found), length), PADDING, dtype=torch.long, device=device)
            # of several mini-batches the first was read by the model that is known, and lies nearest
            for row, (_, tokens) in zip(ids, found, strict=True):
                row[: len(tokens)] = torch.tensor(tokens, device=device)
        else:
            ids, said = read_encoder(first, second, tensors, known.input)
        span = first.tests[0].span
        notes = [
            f"Several local steps have no clear rank; {len(ids)} sentences lie nearest to the blocks' spans."
            if soft
            else f"The first block's gradient has rank {span.rank} of "
            f"{span.outside.shape[0]}; {len(ids)} sentences lie in the second block's span.",
            *said,
        ]
        if len(ids):
            return _settled(exchange, known, ids, notes)
        if not soft and second.tests[0].span.rank < span.rank:
            notes.append(
                f"The second block's gradient has rank {second.tests[0].span.rank}, which lacks some tokens: "
                "a classifier's last block is read by one token of each text alone."
            )
        words = likely_words(model, tensors, known.input) if is_adapted(model) else None
        return _nothing(known, notes, words)


def _reader(
    model: nn.Module, block: int, tensors: Mapping[str, Tensor], sample: Tensor, *, soft: bool
) -> Reader:
    points = reading_points(model, block, tensors)
    which = "first" if block == 0 else "second"
    if not points:
        raise NotApplicable(
            f"the update has no gradient of the {which} block's attention, for it is frozen or all zero: "
            "clients that train these blocks, or adapters in them, can be read."
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
    if found is None:
        raise NotApplicable(
            f"the {which} block's gradient has no gap in its spectrum, as of more tokens than the "
            f"{' or '.join(map(str, widths))} features (of LoRA: the rank) that it is read in, or of noise: "
            "attack smaller batches or shorter texts."
        )
    return found


def is_causal(model: nn.Module) -> bool:
    """Whether what comes out at a token depends on no later one."""
    _, blocks = blocks_of(model)
    device = next(model.parameters()).device
    outputs: list[Tensor] = []

    def ended(_module: nn.Module, _args: object, output: object) -> None:
        outputs.append(output if isinstance(output, Tensor) else output[0])  # type: ignore[index]

    hook = blocks[0].register_forward_hook(ended)
    try:
        with torch.no_grad(), training_mode(model, False):
            for last in (1, 2):
                model(torch.tensor([[0, last]], device=device))
    finally:
        hook.remove()
    return torch.equal(outputs[0][0, 0], outputs[1][0, 0])


def _settled(exchange: Exchange, known: Knowledge, ids: Tensor, notes: list[str]) -> Reconstruction:
    """Last tokens or classes, and then the update of these texts beside the one that was sent."""
    rounding = max(torch.finfo(t.dtype).eps for t in exchange.update.tensors.values())
    fed, left, said = _fitted(exchange, known, ids, None)
    notes += said
    if several_steps(exchange.update, known.local):
        for _ in range(REFINEMENTS):
            if left is None or left <= rounding**0.5:
                break
            other, less, _ = _fitted(exchange, known, ids, fed)
            if less is None or less >= left:
                break
            fed, left = other, less
    ids, labels, targets = fed.inputs, fed.labels, fed.targets
    if known.loss == MASKED_TOKEN:
        ids, said = _unmasked(ids, targets, known)
        notes += said
    proven = left is not None and left <= rounding**0.5
    claimed = torch.zeros(len(ids), dtype=torch.bool)
    if left is not None and proven:
        # A wrong token changes as much of the update as its share in it: more than is left, or nobody knows.
        tokens = (ids != PADDING).sum(dim=1).clamp_min(1).double().cpu()
        claimed = shares(exchange, known, fed) / tokens > _TIMES * left
        proven = bool(claimed.all())
    if proven:
        notes.append(f"The update of these texts differs from the one sent by {left:.1g} of it: rounding.")
    elif left is not None:
        notes.append(f"The update of these texts leaves {left:.2g} of the one sent unexplained.")
    return Reconstruction(
        values=ids,
        claimed=claimed.to(ids.device),
        complete=proven,
        label_counts=torch.bincount(labels.cpu(), minlength=known.input.num_classes)
        if proven and known.input.num_classes > 1 and known.loss not in PER_TOKEN
        else None,
        notes=tuple(notes),
    )


def _fitted(
    exchange: Exchange, known: Knowledge, ids: Tensor, guess: Batch | None
) -> tuple[Batch, float | None, list[str]]:
    """The texts with what the loss wants of them (last tokens, targets or classes, by the last layers), and
    what they leave of the update; guess: what they were taken for before."""
    found = mean_gradient(exchange, known, guess)
    labels, targets, notes = torch.zeros(len(ids), dtype=torch.long, device=ids.device), None, []
    if known.loss == NEXT_TOKEN:
        behind = None if found is None else last_tokens(found[0], ids, found[1])
        if behind is None:
            notes.append("The last token of each text, which nothing is predicted from, could not be read.")
        else:
            ids = ids.clone()
            ends = (ids != PADDING).sum(dim=1)
            fits = ends < ids.shape[1]
            ids[fits.nonzero().squeeze(1), ends[fits]] = behind[fits]
    elif known.loss in PER_TOKEN:
        targets = None if found is None else token_targets(found[0], ids, found[1])
        if targets is None:
            notes.append(f"What the loss ({known.loss}) wants of each token could not be read.")
    elif found is not None and (inferred := classes(found[0], ids, found[1])) is not None:
        labels = inferred
    fed = Batch(ids, labels, targets)
    unknown = known.loss in _TARGETED and targets is None
    return fed, None if unknown else unexplained(exchange, known, fed), notes


_TARGETED = (MASKED_TOKEN, TOKEN_CLASS)


def _unmasked(ids: Tensor, targets: Tensor | None, known: Knowledge) -> tuple[Tensor, list[str]]:
    """The texts before words were hidden in them."""
    if targets is None:
        return ids, ["Texts are shown as the model was fed them, with words hidden by the clients."]
    was = targets != PADDING
    return torch.where(was, targets, ids), [
        f"{int(was.sum())} hidden words were read from the head; texts without one leave no trace."
    ]


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
