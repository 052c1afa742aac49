"""Tables as data: what the files say, what is refused in one sentence, and tables from outside."""

import sys
from pathlib import Path

import pytest

from seepage.core.errors import SpecError
from seepage.core.registry import Entry
from seepage.engine.spec import parse_spec
from seepage.names.tables import own_tables, table_file
from seepage.record import RANGES
from seepage.tables import definition
from seepage.tables.definition import TABLES, find_table, merge, parse_table, rows_of

SMALL = {
    "title": "A table",
    "about": "one of ours",
    "needs": "nothing",
    "columns": [{"name": "R", "meaning": "recall", "score": "extraction_recall"}],
    "published": ["R"],
    "model": {"name": "mlp"},
    "data": "digits",
    "groups": [{"title": "digits", "paper": [[0.5], [0.4]]}],
    "vary": {"protocol.batch_size": [1, 2]},
    "label": "B = {}",
}


@pytest.mark.parametrize("name", sorted(own_tables()))
def test_every_file_is_whole(name):
    """Units are known, columns and labels are told apart, and every row is an audit that could be written."""
    table = TABLES[name]
    assert all(column.unit in RANGES for column in table.columns)
    names = [column.name for column in table.columns]
    assert len(set(names)) == len(names) and table.seeds >= 1
    for group in table.groups:
        rows = rows_of(table, group)
        assert len({row.label for row in rows}) == len(rows)
        for row in rows:
            values = merge(merge(table.audit, group.audit), row.audit)
            values.pop("training", None)
            parse_spec({"model": "mlp", **values, "data": "digits"}, source=f"{name}, {row.label}")
            assert len(row.paper) <= len(table.published)


def test_a_row_for_every_combination_the_last_varies_fastest():
    table = find_table("boenisch2021/table6")
    rows = rows_of(table, table.groups[0])
    assert [row.label for row in rows[:5]] == [
        "N = 200, B = 20",
        "N = 200, B = 50",
        "N = 200, B = 100",
        "N = 200, B = 200",
        "N = 500, B = 20",
    ]
    assert rows[4].audit == {"model": {"width": 500}, "protocol": {"batch_size": 20}}


def test_photographs_get_the_scale_of_their_size():
    """(1 - s) sqrt(d) is what counts: 64 pixels in place of 224."""
    for row in find_table("boenisch2021/table5").groups[2].rows:
        paper = float(row.label.split()[2])
        assert row.audit["attacks"]["scale"] == pytest.approx(1 - (1 - paper) * 224 / 64)


def test_another_name_brings_no_settings_along():
    general = {"model": {"name": "mlp", "hidden": [3]}, "threat": "outsider"}
    assert merge(general, {"model": {"name": "fcnn"}})["model"] == {"name": "fcnn"}
    assert merge(general, {"threat": {"base": "outsider"}})["threat"] == {"base": "outsider"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"published": ["P"]}, "'P' is published but no column"),
        ({"groups": [{"title": "g", "paper": [[0.1]]}]}, "1 lines for 2 rows"),
        ({"vary": {}}, "group 'digits' has no rows"),
        ({"columns": [{"name": "R", "meaning": "x"}]}, "'columns.0.score' is missing: add it."),
        ({"columns": ["@abve_grey"]}, "did you mean 'above_grey'"),
        ({"columns": [{"name": "R", "meaning": "x", "score": "s", "unitt": "dB"}]}, "unitt"),
        ({"seeds": 0}, "'seeds' is wrong"),
        ({"refused": "maybe"}, "'refused' is wrong"),
    ],
)
def test_a_broken_table_gets_one_sentence(changes, sentence):
    with pytest.raises(SpecError) as told:
        parse_table({**SMALL, **changes}, source="'mine.toml'")
    assert sentence in str(told.value) and "\n" not in str(told.value)


def test_a_file_that_is_no_toml_or_not_there(tmp_path):
    (tmp_path / "mine.toml").write_text("title = ")
    with pytest.raises(SpecError, match="not valid TOML"):
        find_table(str(tmp_path / "mine.toml"))
    with pytest.raises(SpecError, match="does not exist"):
        find_table(str(tmp_path / "gone.toml"))


def test_an_unknown_name_gets_the_nearest_valid_one():
    with pytest.raises(SpecError, match="did you mean 'boenisch2021/table2'"):
        find_table("boenisch2021/tabel2")


@pytest.mark.parametrize("kind", ["dict", "function", "path"])
def test_a_table_from_outside_by_module_and_by_entry_point(kind, tmp_path, monkeypatch):
    values = {
        "dict": repr(SMALL),
        "function": f"lambda: {SMALL!r}",
        "path": repr(str(table_file("boenisch2021/table9"))),
    }
    (tmp_path / "my_tables.py").write_text(f"mine = {values[kind]}\nnothing = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_tables", raising=False)
    found = find_table("my_tables:mine")
    assert found.title == ("A table" if kind != "path" else TABLES["boenisch2021/table9"].title)
    with pytest.raises(SpecError, match="is a int: offer the path of a TOML file"):
        find_table("my_tables:nothing")
    offers = {"mine/table": (Entry(where="my_tables:mine", package="mine 1.0"),)}
    monkeypatch.setattr("seepage.core.registry.offered", lambda group: offers)
    assert find_table("mine/table") == found


def test_names_are_those_of_the_files():
    files = {f"{f.parent.name}/{f.stem}" for f in Path(definition.__file__).parent.glob("*/*.toml")}
    assert set(TABLES) == files and len(files) == 23
