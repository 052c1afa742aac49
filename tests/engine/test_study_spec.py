"""The specification: strengths become points, mistakes become one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from seepage.core.errors import SpecError
from seepage.engine.header import make_header
from seepage.engine.points import Points
from seepage.engine.study import parse_study, read_study

BASE = {"model": "mlp", "data": "digits"}


def titles(*defenses: object) -> list[str]:
    return [point.title for point in parse_study({**BASE, "defenses": list(defenses)}).points()]


def test_a_toml_file_expands_to_one_point_for_each_strength(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(
        'model = "mlp"\ndata = "digits"\nseeds = [4]\n'
        'defenses = [{name="clipping", norm=[1.0, 0.1]}, {name="dp_sgd", sigma=[0.1, 1.0]}]\n'
        "[training]\nrounds = 3\nclients = 2\nexamples = 16\n"
    )
    spec = read_study(file)
    assert [point.title for point in spec.points()] == [
        "none",
        "clipping(norm=1.0)",
        "clipping(norm=0.1)",
        "dp_sgd(sigma=0.1)",
        "dp_sgd(sigma=1.0)",
    ]
    assert len({point.key for point in spec.points()}) == 5
    assert (spec.training.rounds, spec.training.test_examples) == (3, 256)
    assert all(point.training_seeds == (4,) for point in spec.grid().points)
    audit = spec.grid().points[2].spec
    assert audit.defenses[0].options == {"norm": 0.1} and audit.seeds == (4,)
    assert spec.grid().points[0].spec.defenses == ()


def test_none_is_there_once_and_two_lists_give_their_product() -> None:
    assert titles() == titles("none") == ["none"]
    assert titles({"name": "dp_sgd", "clip": [1.0, 2.0], "sigma": [3.0, 4.0]})[1:] == [
        f"dp_sgd(clip={c}, sigma={s})" for c in (1.0, 2.0) for s in (3.0, 4.0)
    ]


def test_a_setting_that_is_itself_a_list_stays_one_unless_it_is_a_list_of_lists() -> None:
    assert len(titles({"name": "share_layers", "only": ["a", "b"]})) == 2
    assert len(titles({"name": "share_layers", "only": [["a"], ["b"]]})) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"trainin": {}}, "did you mean 'training'"),
        ({"training": {"round": 3}}, "did you mean 'training.rounds'"),
        ({"training": {"examples": 12}}, "must be a multiple of protocol.batch_size"),
        ({"training": {"seeds": [1, 1]}}, "'training.seeds' is wrong: value error, a seed is given twice"),
        ({"fail_on": {"exact": 0.1}}, "fail_on belongs to an audit"),
    ],
)
def test_mistakes_are_named(change: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError) as error:
        parse_study({**BASE, **change})
    assert said in str(error.value) and "\n" not in str(error.value)


def test_wrong_defenses_are_named() -> None:
    for wanted, said in (
        ({"name": "cliping"}, "did you mean 'clipping'"),
        ({"name": "clipping", "norm": []}, "is empty"),
        ({"name": "clipping", "norm": [1.0, 1.0]}, "listed twice"),
    ):
        with pytest.raises(SpecError, match=said):
            titles(wanted)


def test_a_point_may_combine_defenses() -> None:
    noise = {"name": "gaussian_noise", "sigma": [0.1, 0.2], "inside": [{"name": "clipping", "norm": 1.0}]}
    private = {"name": "pruning", "share": 0.5, "inside": [{"name": "dp_sgd", "sigma": 2.0}]}
    spec = parse_study({"model": "mlp", "data": "digits", "defenses": [noise, private]})
    second = spec.points()[2]
    assert second.title == "gaussian_noise(sigma=0.2) over clipping(norm=1.0)"
    assert [(d.name, d.options) for d in spec.grid().points[2].spec.defenses] == [
        ("gaussian_noise", {"sigma": 0.2}),
        ("clipping", {"norm": 1.0}),
    ]
    records = [header.point for header in make_header(Points(spec.grid())).points]
    assert all(record is not None for record in records)
    assert [one.formal for one in records] == [False, False, False, True]
    assert (records[3].sigma, records[3].title) == (2.0, "pruning(share=0.5) over dp_sgd(sigma=2.0)")
    wrong = {**noise, "inside": ["cliping"]}
    with pytest.raises(SpecError, match="did you mean 'clipping'"):
        Points(parse_study({"model": "mlp", "data": "digits", "defenses": [wrong]}).grid()).check()
