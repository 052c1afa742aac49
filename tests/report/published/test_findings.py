"""What a paper says of its figures, judged by means made by hand."""

import pytest

from seepage.record import Finding
from seepage.report.published.findings import findings_in_words
from seepage.report.published.result import Figure, Row
from seepage.tables.definition import TABLES


def row(group, label, **figures):
    return Row(group, label, {name: Figure(values=(value,)) for name, value in figures.items()})


def test_what_the_published_pattern_is_and_where_it_fails():
    rows = (
        row("LeNet (Zhu)", "untrained", **{"L-BFGS": 40, "cosine": 16, "grey": 12}),
        row("LeNet (Zhu)", "trained", **{"L-BFGS": 14, "cosine": 17, "grey": 12}),
        row("ResNet-20", "untrained", **{"L-BFGS": 9, "cosine": 14, "grey": 12}),
        row("ResNet-20", "trained", **{"L-BFGS": 8, "cosine": 12.5, "grey": 12}),
    )
    shows, does_not = findings_in_words(TABLES["geiping2020/single-image"].findings, rows)
    assert shows.startswith(
        "Shows here: L-BFGS wins on the untrained LeNet; L-BFGS collapses on ResNet-20, untr"
    )
    assert shows.count(";") + does_not.count(";") + 2 == 1 + 4 + 2 + 2 * 2
    assert does_not == (
        "Does not show here: cosine works on ResNet-20, trained; and for cosine on LeNet (Zhu)."
    )


@pytest.mark.parametrize(("middle", "heading"), [(12, "Shows here"), (16, "Does not show here")])
def test_a_property_shows_only_if_every_row_follows_it(middle, heading):
    rows = [row("channels varied", str(n), PSNR=value) for n, value in ((4, 10), (8, middle), (16, 15))]
    found = findings_in_words(TABLES["geiping2020/architecture"].findings, rows)
    assert found == (f"{heading}: wider gives more away.",)


def test_a_batch_is_uneven_where_its_best_tenth_is_above_its_median():
    rows = (
        row("g", "8", **{"recovered": 0.9, "upper tenth": 14, "median": 13}),
        row("g", "100", **{"recovered": 1, "upper tenth": 13.9, "median": 13}),
    )
    shows, does_not = findings_in_words(TABLES["geiping2020/batch"].findings, rows)
    assert shows == "Shows here: some of 100 are recovered (g); distortion is not uniform over 8 (g)."
    assert does_not.startswith("Does not show here: some of 8 are recovered (g);")


LUCK = [Finding(within="R", between=("R 5 %", "R 95 %"))]


@pytest.mark.parametrize(("paper", "inside"), [(0.399, 0), (0.4, 1), (0.6, 1), (0.601, 0)])
def test_a_published_value_at_the_rounded_edge_is_inside(paper, inside):
    figures = {"R": Figure(values=(0.5,), paper=paper)}
    figures |= {"R 5 %": Figure(values=(0.4004,)), "R 95 %": Figure(values=(0.5996,))}
    (said,) = findings_in_words(LUCK, [Row("G", "r", figures)])
    assert said == f"G: {inside} of 1 published R lie between R 5 % and R 95 %."


def test_rows_without_a_published_value_or_a_column_are_not_judged():
    assert findings_in_words(LUCK, [row("G", "r", **{"R": 0.5, "R 5 %": 0.4, "R 95 %": 0.6})]) == ()
    assert findings_in_words([Finding(claim="x", more="P", than="R")], [row("G", "r", R=1.0)]) == ()


def test_a_claim_is_text_and_never_a_template():
    """A log may come from anywhere."""
    claim = Finding(claim="{group.__class__} {0} {row}", more="R")
    assert findings_in_words([claim], [row("G", "r", R=1.0)]) == ("Shows here: {group.__class__} {0} r.",)
