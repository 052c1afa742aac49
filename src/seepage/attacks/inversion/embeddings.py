"""Text: the search runs over embeddings, which are continuous, and ends with a look-up of the tokens."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from seepage.core.errors import NotApplicable
from seepage.core.types import Exchange, InputSpec
from seepage.models.hooks import hooked, modules_of
from seepage.models.probes import dummy_inputs, run_model
from seepage.models.tokens import nearest_tokens


def embedding_name(model: nn.Module, spec: InputSpec, *, anyhow: bool = False) -> str:
    """The nn.Embedding that is given the model's own tokens; anyhow: filled up, turned or in bags, too.

    >>> from seepage.core.types import Modality
    >>> model = nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(12, 2))
    >>> embedding_name(model, InputSpec(modality=Modality.TEXT, shape=(4,), num_classes=2, vocabulary=9))
    '0'
    """
    tokens = dummy_inputs(spec, 2, like=model)
    found: list[str] = []

    def seen(name: str, _module: nn.Module, args: tuple[Tensor, ...]) -> None:
        # Longformer fills texts up, XLNet turns them
        shown = (args[0][..., : tokens.shape[1]], args[0].T) if anyhow and args[0].ndim == 2 else (args[0],)
        if any(torch.equal(one, tokens) for one in shown):
            found.append(name)

    kinds = (nn.Embedding, nn.EmbeddingBag) if anyhow else (nn.Embedding,)
    with torch.no_grad(), hooked(modules_of(model, *kinds), before=seen):
        run_model(model, tokens)
    if not found:
        raise NotApplicable(
            "no nn.Embedding of the model reads its tokens text by text, so there is no continuous space to "
            "search in: use a model that looks tokens up in an nn.Embedding."
        )
    return found[0]


def forward_from_embeddings(
    model: nn.Module, name: str, tensors: Mapping[str, Tensor], embeddings: Tensor
) -> Tensor:
    """Logits of (n, length, dim) embeddings, put in place of what the module `name` looks up."""
    tokens = torch.zeros(embeddings.shape[:-1], dtype=torch.long, device=embeddings.device)
    with hooked({name: model.get_submodule(name)}, after=lambda *_: embeddings):
        logits: Tensor = functional_call(model, dict(tensors), (tokens,))
    return logits


def tokens_in_question(model: nn.Module, name: str, exchange: Exchange) -> Tensor:
    """(k,) ids of the tokens that the batch can hold, in order.

    Only tokens of the batch move their row of the embedding (Melis et al. 2019), so where that update
    was sent the others are ruled out.
    """
    count = len(model.get_submodule(name).get_parameter("weight"))
    sent = exchange.update.tensors.get(f"{name}.weight")
    if sent is not None:
        moved = sent.detach().abs().amax(dim=1).nonzero().squeeze(1)
        if 0 < len(moved) < count:
            return moved
    return torch.arange(count, device=next(model.parameters()).device)


def look_up(embeddings: Tensor, model: nn.Module, name: str, exchange: Exchange) -> tuple[Tensor, str]:
    """(n, length, dim) to (n, length) token ids, and a sentence on how they were chosen."""
    table = model.get_submodule(name).get_parameter("weight").detach()
    allowed = tokens_in_question(model, name, exchange).to(table.device)
    ids, _ = nearest_tokens(embeddings, table[allowed])
    if len(allowed) < len(table):
        return allowed[ids], (
            f"Tokens were chosen among the {len(allowed)} whose embedding the update moves, of {len(table)}."
        )
    return ids, f"Tokens are the nearest of {len(table)} embeddings."
