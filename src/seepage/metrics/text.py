"""How much of a text came back: words in their place, words in their order, words at all.

All take token ids (n, length) of an integer dtype. Positions that hold `PADDING` or, in texts that were
filled up with a token, `padding_id` are not words and do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.core.errors import DataError
from seepage.core.types import PADDING
from seepage.metrics.pairs import are_tokens, check_pair, wide

PADDING_WORDS = ("<pad>", "[PAD]", "<PAD>", "[pad]")


def find_padding(tokens: Sequence[str]) -> int | None:
    """The id of the padding word in a vocabulary, if it has one by a usual name.

    >>> find_padding(("<pad>", "the", "film")), find_padding(("the", "film"))
    (0, None)
    """
    return next((tokens.index(word) for word in PADDING_WORDS if word in tokens), None)


def _words(recon: Tensor, truth: Tensor, padding_id: int | None) -> tuple[Tensor, Tensor]:
    """Checked ids -> (n, length) bool masks of what counts as a word, on either side."""
    check_pair(recon, truth)
    if not are_tokens(truth) or truth.ndim != 2:
        raise DataError(
            f"text is scored on integer token ids of shape (n, length), got {truth.dtype} of shape "
            f"{tuple(truth.shape)}: decode embeddings to token ids first."
        )
    no_words = torch.tensor([PADDING, PADDING if padding_id is None else padding_id], device=truth.device)
    return ~torch.isin(recon, no_words), ~torch.isin(truth, no_words)


def _or_empty(score: Tensor, recon_words: Tensor, truth_words: Tensor) -> Tensor:
    # a text of padding only is fully known by a text of padding only
    empty = ~truth_words.any(1)
    return torch.where(empty, wide(~recon_words.any(1)), score)


def token_accuracy(recon: Tensor, truth: Tensor, *, padding_id: int | None = None) -> Tensor:
    """(n,): fraction of the true words that stand at their very position.

    >>> token_accuracy(torch.tensor([[5, 6, 7, 0]]), torch.tensor([[5, 9, 7, 0]]), padding_id=0)
    tensor([0.6667], dtype=torch.float64)
    """
    recon_words, words = _words(recon, truth, padding_id)
    right = wide((recon == truth) & words).sum(1)
    return _or_empty(right / wide(words).sum(1).clamp(min=1), recon_words, words)


def rouge_l(recon: Tensor, truth: Tensor, *, padding_id: int | None = None) -> Tensor:
    """(n,): ROUGE-L F-measure (Lin 2004): longest common subsequence over the mean of both lengths.

    >>> rouge_l(torch.tensor([[1, 9, 2, 3]]), torch.tensor([[1, 2, 3, 4]])).tolist()
    [0.75]
    """
    recon_words, words = _words(recon, truth, padding_id)
    common = wide(lcs_length(recon, truth, recon_words, words))
    lengths = wide(recon_words).sum(1) + wide(words).sum(1)
    # F1 of precision LCS/r and recall LCS/t is 2 LCS / (r + t)
    return _or_empty(2 * common / lengths.clamp(min=1), recon_words, words)


def rouge_1(recon: Tensor, truth: Tensor, *, padding_id: int | None = None) -> Tensor:
    """(n,): ROUGE-1 F-measure (Lin 2004): common words, each as often as it is in both.

    >>> rouge_1(torch.tensor([[3, 2, 1]]), torch.tensor([[1, 2, 9]])).item()
    0.6666666666666666
    """
    return _rouge_n(recon, truth, padding_id, 1)


def rouge_2(recon: Tensor, truth: Tensor, *, padding_id: int | None = None) -> Tensor:
    """(n,): ROUGE-2 F-measure (Lin 2004): common pairs of neighbouring words.

    >>> rouge_2(torch.tensor([[1, 2, 3]]), torch.tensor([[9, 1, 2]])).item()
    0.5
    """
    return _rouge_n(recon, truth, padding_id, 2)


def _rouge_n(recon: Tensor, truth: Tensor, padding_id: int | None, size: int) -> Tensor:
    recon_words, words = _words(recon, truth, padding_id)
    scores = []
    for made, made_kept, true, true_kept in zip(
        recon.cpu(), recon_words.cpu(), truth.cpu(), words.cpu(), strict=True
    ):
        both = [_grams(ids[kept].tolist(), size) for ids, kept in ((made, made_kept), (true, true_kept))]
        total = both[0].total() + both[1].total()
        scores.append(2 * (both[0] & both[1]).total() / total if total else 0.0)
    found = torch.tensor(scores, dtype=torch.float64, device=truth.device)
    return _or_empty(found, recon_words, words)


def _grams(words: list[int], size: int) -> Counter[tuple[int, ...]]:
    return Counter(zip(*(words[start:] for start in range(size)), strict=False))


def lcs_length(recon: Tensor, truth: Tensor, recon_words: Tensor, truth_words: Tensor) -> Tensor:
    """(n,): length of the longest common subsequence of the words of each pair.

    The usual table, one row per true position and all examples at once: a cell is the largest of the cell
    above, the cell above left plus one for equal words, and the cell to the left, which is a running maximum.

    >>> ids = torch.tensor([[1, 2, 3]])
    >>> lcs_length(ids, ids.flip(1), ids > 0, ids > 0).tolist()
    [1]
    """
    n, length = recon.shape
    row = torch.zeros(n, length + 1, dtype=torch.int64, device=recon.device)
    for position in range(truth.shape[1]):
        equal = (
            (recon == truth[:, position, None]) & recon_words & truth_words[:, position, None]
        )  # (n, length)
        best = torch.maximum(row[:, 1:], row[:, :-1] + equal)
        row = torch.cat([row[:, :1], best.cummax(1).values], 1)
    return row[:, -1]


def bag_of_words_recall(recon: Tensor, truth: Tensor, *, padding_id: int | None = None) -> Tensor:
    """(n,): fraction of the true words found anywhere, each as often as it occurs. Order does not count.

    >>> bag_of_words_recall(torch.tensor([[3, 2, 2, 8]]), torch.tensor([[2, 3, 3, 4]])).tolist()
    [0.5]
    """
    recon_words, words = _words(recon, truth, padding_id)
    found = [
        (Counter(r[r_kept].tolist()) & Counter(t[t_kept].tolist())).total()
        for r, r_kept, t, t_kept in zip(recon.cpu(), recon_words.cpu(), truth.cpu(), words.cpu(), strict=True)
    ]
    right = wide(torch.tensor(found, dtype=torch.int64, device=truth.device))
    return _or_empty(right / wide(words).sum(1).clamp(min=1), recon_words, words)


def words_known(known: Tensor, truth: Tensor) -> float:
    """F-measure of a set of tokens, (vocabulary,) bool, against those of the true texts.

    >>> words_known(torch.tensor([True, True, False]), torch.tensor([[0, 2, PADDING]]))
    0.5
    """
    there = torch.zeros_like(known)
    there[truth[truth != PADDING].unique()] = True
    return 2 * int((known & there).sum()) / max(1, int(known.sum()) + int(there.sum()))
