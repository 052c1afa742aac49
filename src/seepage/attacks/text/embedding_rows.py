"""Which tokens are in a batch: only theirs are the rows of the embedding that move (Melis et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.base import PerUpdateAttack
from seepage.attacks.inversion.embeddings import embedding_name
from seepage.core.errors import NotApplicable
from seepage.core.types import PADDING, Exchange, InputSpec, Knowledge, Modality, Reconstruction
from seepage.models.hooks import hooked, modules_of
from seepage.models.hugging_face import MASKS
from seepage.models.probes import dummy_inputs, run_model
from seepage.protocol.losses import MASKED_TOKEN, NEXT_TOKEN

TIED_GAP = 2.0
"""Of a tied head: row norms of tokens in the batch over those of others, at least. Derived: what others get
is a probability's share, 1 / vocabulary at random weights; what targets get is 1 / tokens."""
SURE = 0.1
"""How far from 0 and 1 a place's share in a token's row may be. Derived: rounding leaves 1e-5, a second text
0.5."""


HIDDEN = (
    "Words that clients put in the place of others at random, 1.5 %, are among them; hidden ones may not be."
)


@dataclass(frozen=True)
class _Embeddings:
    """Weights of the embeddings of tokens and, where they are trained, of positions."""

    tokens: str
    positions: str | None
    tied: bool
    """The head has the same weight, so that all of its rows move."""
    begin: int = 0
    """The row of the first place: RoBERTa counts from 2."""


class EmbeddingRows(PerUpdateAttack):
    """Reads the tokens of a batch, and of a single text with trained positions the text itself."""

    any_training = True

    def check(self, model: nn.Module, known: Knowledge) -> None:
        """An embedding that clients train."""
        if known.input.modality is not Modality.TEXT:
            raise NotApplicable("this attack reads texts: use another one for pictures and tables.")
        name = embeddings_of(model, known.input).tokens
        if not model.get_parameter(name).requires_grad and _adapter(model, name) is None:
            raise NotApplicable(
                f"'{name}' is frozen, so clients send no gradient of it: 'exact_text' reads the blocks."
            )

    def invert(self, exchange: Exchange, known: Knowledge) -> Reconstruction:
        """The set of tokens, and the text where there is but one."""
        model, tensors = exchange.broadcast.model, exchange.update.tensors
        self.check(model, known)
        found = embeddings_of(model, known.input)
        adapter = _adapter(model, found.tokens)
        rows = tensors[found.tokens].detach() if adapter is None else tensors[adapter].detach().T
        tied = found.tied and adapter is None
        most = (exchange.update.num_examples or 1) * known.input.shape[0]
        moved = moved_rows(rows, tied=tied, most=most)[: known.input.vocabulary]
        moved[[i for i, word in enumerate(known.input.tokens) if word in MASKS]] = False  # no word of a text
        ids = moved.nonzero().squeeze(1)
        targets = _targets(model, exchange, known) & ~moved
        more = targets.nonzero().squeeze(1)
        text = None
        if found.positions is not None and not tied:
            text = _one_text(rows[ids], tensors[found.positions].detach(), ids, known.input.shape[0])
        values = torch.zeros(0, *known.input.shape, dtype=torch.long) if text is None else text[None]
        how = "stand out by their norm, as the head is tied" if tied else "move, and no others"
        return Reconstruction(
            values=values,
            claimed=torch.ones(len(values), dtype=torch.bool),
            words=(moved | targets).cpu(),
            notes=(
                f"The embeddings of {len(ids)} tokens of {len(rows)} {how}: {_listed(ids, known.input)}.",
                *([f"The head's rows add {_listed(more, known.input)}."] if len(more) else []),
                *([HIDDEN] if known.loss == MASKED_TOKEN else []),
                *(["The only text's places were read from the positions' embedding."] if len(values) else []),
            ),
        )


def _adapter(model: nn.Module, embedding: str) -> str | None:
    """LoRA's matrix (rank, vocabulary) beside a frozen embedding: what it looks up are columns of that."""
    name = embedding.removesuffix("base_layer.weight") + "lora_embedding_A."
    return next(
        (key for key, p in model.named_parameters() if key.startswith(name) and p.requires_grad), None
    )


def embeddings_of(model: nn.Module, spec: InputSpec) -> _Embeddings:
    """By running the model: which embedding is given the tokens, and which one is given 0, 1, 2, ..."""
    name = embedding_name(model, spec, anyhow=True)
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    counted: list[tuple[str, int]] = []

    def seen(key: str, _module: nn.Module, args: tuple[Tensor, ...]) -> None:
        steps = args[0].diff(dim=-1) if args and not args[0].is_floating_point() else torch.zeros(1)
        if key != name and args[0].shape[-1] == spec.shape[0] and bool((steps == 1).all()):
            counted.append((key, int(args[0].reshape(-1)[0])))

    with torch.no_grad(), hooked(modules_of(model, nn.Embedding), before=seen):
        # one token everywhere, and not an early one, which may mean padding and get no place
        run_model(model, torch.full_like(dummy_inputs(spec, 1, like=model), (spec.vocabulary or 1) - 1))
    weight = model.get_submodule(name).get_parameter("weight")
    places = None if not counted else model.get_submodule(counted[0][0]).get_parameter("weight")
    uses = sum(
        p is weight for module in model.modules() for p in module._parameters.values() if p is not None
    )
    positions = None if places is None or not places.requires_grad else names[id(places)]
    begin = counted[0][1] if counted else 0
    return _Embeddings(names[id(weight)], positions, tied=uses > 1, begin=begin)


def moved_rows(rows: Tensor, *, tied: bool, most: int) -> Tensor:
    """(vocabulary,) bool: the rows of the batch's tokens; `most`: how many they can be."""
    norms = rows.double().norm(dim=1)
    moved: Tensor = norms > 0
    if not tied and bool(moved.any()) and not bool(moved.all()):
        return moved
    if tied:
        ordered, order = norms.sort(descending=True)
        ratios = ordered[:-1] / ordered[1:].clamp_min(torch.finfo(torch.float64).tiny)
        last = int(ratios[:most].argmax())
        if float(ratios[last]) >= TIED_GAP:
            return torch.zeros_like(moved).index_fill(0, order[: last + 1], True)
    why = "as with a tied head whose guesses are sharp" if tied else "as noise or weight decay have it"
    raise NotApplicable(
        f"{'no row' if not bool(moved.any()) else 'every row'} of the embedding moves, {why}: "
        "'exact_text' reads the blocks instead."
    )


def _targets(model: nn.Module, exchange: Exchange, known: Knowledge) -> Tensor:
    """(vocabulary,) bool: tokens that stand out in a language model's own head: the last one of each text is
    only there."""
    tokens = torch.zeros(known.input.vocabulary or 0, dtype=torch.bool)
    head = (
        getattr(model, "get_output_embeddings", lambda: None)()
        if known.loss in (NEXT_TOKEN, MASKED_TOKEN)
        else None
    )
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    sent = None if head is None else exchange.update.tensors.get(names[id(head.weight)])
    if sent is None:
        return tokens
    most = (exchange.update.num_examples or 1) * known.input.shape[0]
    try:
        return moved_rows(sent.detach(), tied=True, most=most)[: len(tokens)]
    except NotApplicable:
        return tokens


def _one_text(rows: Tensor, places: Tensor, ids: Tensor, length: int) -> Tensor | None:
    """(length,) the text, where there is one: a token's row is then the sum of the rows of its places.

    So rows = M @ places with M of zeros and ones, one 1 for each place; with two texts M is nothing like it.
    """
    there = (places.abs().amax(dim=1) > 0).nonzero().squeeze(1)
    seen = places[there].double()
    if not 0 < len(there) <= min(length, places.shape[1]) or places.shape[1] != rows.shape[1]:
        return None
    share = torch.linalg.lstsq(seen.T, rows.double().T).solution  # (places, tokens)
    ones = share.round()
    binary = bool(((share - ones).abs() < SURE).all()) and bool(((ones == 0) | (ones == 1)).all())
    again = ones.T @ seen
    whole = float((again - rows.double()).norm()) <= SURE * float(rows.double().norm())
    if not binary or not whole or not bool((ones.sum(dim=1) == 1).all()):
        return None
    text = torch.full((length,), PADDING, dtype=torch.long)
    text[: len(there)] = ids[ones.argmax(dim=1)].cpu()
    return text


def _listed(ids: Tensor, spec: InputSpec, most: int = 60) -> str:
    words = [spec.tokens[i] if i < len(spec.tokens) else f"#{i}" for i in ids[:most].tolist()]
    return ", ".join(words) + (f" and {len(ids) - most} more" if len(ids) > most else "")


def embedding_rows() -> EmbeddingRows:
    """Passive: which tokens are in the batch, from the embedding's rows that move; a lone text as a whole."""
    return EmbeddingRows()
