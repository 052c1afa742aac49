"""A site's filters join an audit's defenses."""

from __future__ import annotations

import json
from pathlib import Path

from seepage.engine.site import with_site_filters
from seepage.engine.spec import parse_spec


def test_a_sites_filters_stand_inside_of_the_jobs(tmp_path: Path) -> None:
    filters = [{"path": "nvflare.app_common.filters.ExcludeVars", "args": {"exclude_vars": ["a"]}}]
    file = tmp_path / "privacy.json"
    file.write_text(json.dumps({"scopes": [{"name": "s", "task_result_filters": filters}]}))
    spec = with_site_filters(parse_spec({"model": "mlp", "data": "digits", "defenses": "sign"}), file)
    assert [one.name for one in spec.defenses] == ["sign", "nvflare:ExcludeVars"]
    assert spec.defenses[1].options == {"exclude_vars": ["a"]}
    assert (spec.protocol.algorithm, spec.protocol.local_steps) == ("fedavg", 1)
