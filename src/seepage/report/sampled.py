"""What clients that were drawn at random say about those that nobody looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seepage.record import Cell, Estimate, Header
from seepage.report.vantage import looked_at
from seepage.report.words import NOUNS, percent


def beyond_the_sample(header: Header, cells: Sequence[Cell]) -> Iterator[str]:
    """One sentence where the spec has fewer clients `audited` than there are; cells: of one attack, finished.

    A client counts as hit where one of its examples at least came out exactly. Clients, not examples, were
    drawn, so the share of clients gets the interval: Clopper and Pearson's for one run, never narrower for
    several.
    """
    audited, clients = looked_at(header)
    if audited is None or not cells:
        return
    drawn = f"{audited:,} of {clients:,} clients were looked at, drawn at random"
    if any(cell.space != "input" for cell in cells):
        yield f"{drawn}; how many of the others leak was not estimated."
        return
    hit = Estimate.of_counts([_hit(cell) for cell in cells])
    anew = " anew in each run" if len(cells) > 1 else ""
    found = f"{round(hit.value * hit.n)} of {hit.n} gave away {_one(header)} exactly"
    ends = f"{percent(hit.low)} to {percent(hit.high)}"
    yield (
        f"{drawn}{anew}: {found}, so that with 95 % confidence {ends} of all clients do under these attacks."
    )


def _hit(cell: Cell) -> tuple[int, int]:
    """Clients that gave away an example, and clients."""
    exact = {example.client for example in cell.examples if example.scores.get("exact") == 1.0}
    return len(exact), len({example.client for example in cell.examples})


def _one(header: Header) -> str:
    noun = NOUNS[header.input.modality][0]
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
