from __future__ import annotations

import json
from pathlib import Path

from seepage.record.exchanges import ExchangeInfo

PUBLISHED = Path(__file__).parents[3] / "docs" / "recorded-exchange.schema.json"


def test_the_published_schema_is_that_of_the_code() -> None:
    """To publish a change: `python docs/schemas.py`, and a new format version if needed."""
    assert json.loads(PUBLISHED.read_text()) == ExchangeInfo.model_json_schema(mode="validation")
