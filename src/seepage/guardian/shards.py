"""Weights that are spread over several files, as Hugging Face stores large models."""

from __future__ import annotations

import json
import re
from pathlib import Path

from torch import Tensor

from seepage.core.errors import ModelError
from seepage.models.weights import read_state_dict

_INDEX = ".index.json"
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.")


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file of weights, or of all files that an index (`*.index.json`) names.

    One of several parts alone is refused: the rest could hold anything.
    """
    file = Path(path)
    if file.name.endswith(_INDEX):
        return _joined(file)
    part = _PART.search(file.name)
    if part is not None and int(part[2]) > 1:
        raise ModelError(
            f"{file} is one of {int(part[2])} parts of a model: give the index beside it "
            f"(*{_INDEX}), which names all of them."
        )
    return read_state_dict(file)


def _joined(index: Path) -> dict[str, Tensor]:
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(places.values()))
        plain = all(name == Path(name).name and name not in {"", ".", ".."} for name in names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{index} is no index of weights: it has no `weight_map`; export it again."
        ) from error
    if not names or not plain:
        raise ModelError(f"{index} names no files beside it: export the model again.")
    state: dict[str, Tensor] = {}
    for name in names:
        state |= read_state_dict(index.with_name(name))
    if set(state) != set(places):
        raise ModelError(
            f"the files that {index} names do not hold the tensors that it lists: copy or export them again."
        )
    return state
