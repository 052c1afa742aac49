"""A site's privacy.json: read as FLARE itself reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seepage.core.errors import SpecError
from seepage.defenses.frameworks.privacy_json import read_privacy_json

SITE: dict[str, Any] = {
    "scopes": [
        {
            "name": "public",
            "properties": {"train_dataset": "/data/public"},
            "task_result_filters": [
                {
                    "path": "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy",
                    "args": {"percentile": 10, "gamma": 0.01},
                },
                {"name": "SVTPrivacy", "args": {"fraction": 0.2}},
                {"path": "nvflare.app_common.filters.ExcludeVars", "disabled": True},
                {"path": "nvflare.app_common.filters.ExcludeVars", "direction": "in"},
            ],
            "task_data_filters": [{"path": "nvflare.app_common.filters.ExcludeVars", "args": {}}],
        },
        {"name": "private", "task_result_filters": [{"path": "hospital.filters.Own"}]},
    ],
    "default_scope": "public",
}


def _written(folder: Path, content: Any) -> Path:
    file = folder / "privacy.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_the_first_result_filter_is_the_innermost(tmp_path: Path) -> None:
    assert read_privacy_json(_written(tmp_path, SITE)) == [
        {"name": "nvflare:SVTPrivacy", "fraction": 0.2},
        {"name": "nvflare:PercentilePrivacy", "percentile": 10, "gamma": 0.01},
        {"name": "nvflare:ExcludeVars", "chain": "task_data"},
    ]


def test_flare_reads_the_same_filters_in_the_same_order(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    from nvflare.apis.workspace import Workspace
    from nvflare.private.fed.app.fl_conf import create_privacy_manager

    for folder in ("local", "startup"):
        (tmp_path / folder).mkdir()
    _written(tmp_path / "local", {**SITE, "scopes": SITE["scopes"][:1]})
    scope = create_privacy_manager(Workspace(str(tmp_path)), names_only=False).get_scope(None)
    theirs = [type(one).__name__ for one in scope.task_result_filters["out"]]
    ours = [
        one["name"].removeprefix("nvflare:") for one in read_privacy_json(tmp_path / "local/privacy.json")
    ]
    assert ours == [*reversed(theirs), *(type(one).__name__ for one in scope.task_data_filters["in"])]


def test_another_scope_may_be_chosen(tmp_path: Path) -> None:
    found = read_privacy_json(_written(tmp_path, SITE), scope="private")
    assert found == [{"name": "nvflare:hospital.filters.Own"}]


@pytest.mark.parametrize(
    ("content", "scope", "said"),
    [
        ("{", None, "not valid JSON"),
        ({}, None, "lists no scopes"),
        (SITE, "publik", "did you mean 'public'"),
        ({"scopes": SITE["scopes"]}, None, "no default_scope"),
        ({"scopes": [{"name": "a", "task_result_filters": [{}]}]}, None, "neither a path nor a name"),
        ({"scopes": [{"name": "a", "task_result_filters": ["x"]}]}, None, "must be a table"),
        ({"scopes": [{"name": "a", "task_result_filters": "x"}]}, None, "must be a list"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, content: Any, scope: str | None, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        read_privacy_json(_written(tmp_path, content), scope=scope)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="does not exist"):
        read_privacy_json(tmp_path / "privacy.json")
