"""Texts as people read them, with what came out of each: in its place, somewhere, or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Literal

from seepage.record import AuditLog, Cell, Example

Mark = Literal["place", "elsewhere", ""]
Words = tuple[tuple[str, Mark], ...]
"""Each word, and whether it came out: at its place, known but not where it stands, or not."""
SHOWN = 3
"""Texts on a terminal."""


def marked_words(truth: str, rebuilt: str, *, known: Collection[int] = ()) -> tuple[Words, Words]:
    """The words of both texts. known: the places of true words that are known to be in some text.

    >>> marked_words("the cat sat", "a cat the")[0]
    (('the', 'elsewhere'), ('cat', 'place'), ('sat', ''))
    >>> marked_words("the cat", "", known=[1])[0]
    (('the', ''), ('cat', 'elsewhere'))
    """
    left, right = truth.split(), rebuilt.split()
    placed = {i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a == b}

    def marks(words: list[str], others: list[str]) -> list[Mark]:
        # what stands in its place is no word that may stand elsewhere as well
        free = Counter(word for i, word in enumerate(others) if i not in placed)
        found: list[Mark] = []
        for i, word in enumerate(words):
            free[word] -= i not in placed
            found.append("place" if i in placed else "elsewhere" if free[word] >= 0 else "")
        return found

    own: list[Mark] = [
        "elsewhere" if not mark and i in known else mark for i, mark in enumerate(marks(left, right))
    ]
    return tuple(zip(left, own, strict=True)), tuple(zip(right, marks(right, left), strict=True))


def read_by_server(example: Example) -> str:
    """One line for a terminal or a pipe: ~word where the place is not known, ___ for what did not come out.

    >>> whole = {"index": 0, "client": 0, "label": 0, "recovered": True, "scores": {}}
    >>> read_by_server(Example(**whole, truth_text="the cat sat", reconstruction_text="a cat the"))
    '~the cat ___'
    """
    shown = {"place": "{}", "elsewhere": "~{}", "": "___"}
    return " ".join(shown[mark].format(word) for word, mark in _marks(example))


def server_s_view(log: AuditLog, cells: Collection[Cell]) -> list[str]:
    """Of an audit of texts: the ones that came out best, as the server reads them; nothing where none did."""
    if log.header.input.modality != "text":
        return []
    texts = [
        (sum(mark == "place" for _, mark in truth) / len(truth), example, cell)
        for cell in cells
        for example in cell.examples
        for truth in [_marks(example)]
        if any(mark for _, mark in truth)
    ]
    best = sorted(texts, key=lambda one: one[0], reverse=True)[:SHOWN]
    if not best:
        return []
    lines = ["What the server reads (~word: known, but not its place; ___: not recovered):"]
    return [*lines, *(f"  {cell.attack.title}: {read_by_server(example)}" for _, example, cell in best)]


def _marks(example: Example) -> Words:
    known = example.known_words
    return marked_words(example.truth_text or "", example.reconstruction_text or "", known=known)[0]
