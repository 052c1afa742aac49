"""One cell of a run: an attack, or a training, on one seed at one point of the grid."""

from __future__ import annotations

import sys
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic.dataclasses import dataclass

from seepage.record.refs import STRICT, AttackRef, Record, cell_id, origin_key

TIME_UP = "The time budget ended or shortened this search."
"""A note of a cell whose attack would have gone on."""
Common = Annotated[str, AfterValidator(sys.intern)]
"""A text that most cells of a run share: ten thousand of them hold it once."""


# A cell has tens of thousands: without the dict and the set of a model each takes half the memory.
@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Example:
    """What became of one private example."""

    index: int
    """Row in the cell's tensors."""
    client: int
    label: int
    recovered: bool
    """A candidate was assigned to it. If not, its scores are those of a mid-grey guess."""
    scores: dict[str, float]
    """exact is 0 or 1; the rest by metric name."""
    baseline: dict[str, float] = Field(default_factory=dict)
    """The same metrics for the best guess that used no update (in a layer's space: the mean feature)."""
    claimed: bool = False
    traits: dict[str, float] = Field(default_factory=dict)
    """What sets it apart: its loss under the honest model, its distance from the mean of its class."""
    truth_text: str | None = None
    reconstruction_text: str | None = None
    known_words: tuple[int, ...] = ()
    """Places of words of `truth_text` that the attack knows to be in some text, wherever."""


class ColumnRecord(Record):
    """How much of one column of a table came out. The one-hot columns of a category are one."""

    name: str
    kind: Literal["real", "integer", "categorical"]
    right: int
    """Values that are right: equal after rounding, or (real) within the tolerance of the column's spread."""
    guessed: int
    """Values that the best guess without any update has right."""
    examples: int

    @property
    def excess(self) -> float:
        """Share of the values that came out beyond the guess."""
        return (self.right - self.guessed) / max(1, self.examples)


class Cost(Record):
    """What the cell took."""

    seconds: float
    """Of the attack alone. The client's own training is not counted, unless it is played while it attacks."""
    rounds: int
    """Rounds of the protocol, i.e. queries to each client addressed."""
    peak_memory_mb: float
    """Highest additional resident memory of the whole cell: playing, attacking, matching and scoring."""


class Cell(Record):
    """One attack on one seed."""

    attack: AttackRef
    seed: int
    status: Literal["done", "not_applicable", "failed"]
    reason: str = ""
    space: str = "input"
    """`input`, or the layer whose input features were rebuilt."""
    examples: tuple[Example, ...] = ()
    columns: tuple[ColumnRecord, ...] = ()
    """Of a table, in the input space: which columns came out."""
    batch_scores: dict[str, float] = Field(default_factory=dict)
    """Scores of the batch as a whole: extraction_recall, label_accuracy, ..."""
    candidates: int = 0
    claims: int = 0
    """Candidates the attack itself vouches for ..."""
    claims_right: int | None = 0
    """... and how many of those are an example behind the exchange that they were read from (None: there was
    no truth to hold them against) ..."""
    claimed_examples: int = 0
    """... and how many different examples these are: never more than those rebuilt exactly. Without truth:
    how many of the claims differ from each other."""
    complete: bool | None = None
    """The attack certifies that the update holds nothing else; None where it cannot tell."""
    claims_if_declared: bool = False
    """Claims that hold only if the clients declared the right number of their examples are among them."""
    label_counts: tuple[int, ...] | None = None
    true_label_counts: tuple[int, ...] | None = None
    knowledge: tuple[Common, ...] = ()
    """What the server was allowed to know, one plain sentence each."""
    notes: tuple[Common, ...] = ()
    hindrances: tuple[Common, ...] = ()
    """What about a recorded exchange keeps attacks from it, where this one has no example for sure."""
    crafted: bool | None = None
    """Whether the server chose the weights it sent; None where the log does not say."""
    cost: Cost | None = None
    run_key: Common = ""
    """The header's."""
    made_by: dict[Common, Common] = Field(default_factory=dict)
    """Digests of the code and weights, and versions of the packages, that this result comes from."""
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of the tensors and of the picture."""

    @property
    def id(self) -> str:
        return cell_id(self.attack, self.seed)

    @property
    def key(self) -> str:
        return origin_key(self.made_by)

    @model_validator(mode="after")
    def _claims_agree_with_what_came_out(self) -> Self:
        """A claim is right only about an example that came out exactly, so it cannot be missing there."""
        if self.claims_right is None:
            if self.examples or self.claimed_examples > self.claims:
                raise ValueError("claims that were not held against the truth stand beside scores.")
            return self
        exact = sum(e.scores.get("exact", 0.0) == 1.0 for e in self.examples)
        if not (self.claimed_examples <= self.claims_right <= self.claims and self.claimed_examples <= exact):
            raise ValueError(
                f"of {self.claims} claims {self.claims_right} are right, about {self.claimed_examples} "
                f"examples, yet {exact} examples came out exactly: these counts contradict each other."
            )
        return self
