"""Writes docs/*.schema.json from the records: python docs/schemas.py. A test says when they are old."""

from __future__ import annotations

import json
from pathlib import Path

from seepage.record.exchanges import ExchangeInfo
from seepage.report.schemas import schemas

if __name__ == "__main__":
    recorded = {"recorded-exchange": ExchangeInfo.model_json_schema(mode="validation")}
    for name, schema in {**schemas(), **recorded}.items():
        file = Path(__file__).parent / f"{name}.schema.json"
        file.write_text(json.dumps(schema, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"Wrote {file.name}")
