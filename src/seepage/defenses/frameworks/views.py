"""Encryption and masks as what the server sees of them: the sum over the clients. No cryptography is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seepage.defenses.measures import secure_sum


def masked_sum(
    batch_size: int, *, clients: int = 4, fakes: int = 0, minimum_honest: int = 1
) -> dict[str, Any]:
    """SecAgg and SecAgg+: every client masks its update, and the masks cancel in the sum.

    >>> masked_sum(8, clients=3)["clients"]
    3
    """
    return secure_sum(batch_size, clients=clients, fakes=fakes, minimum_honest=minimum_honest)


def encrypted_sum(
    batch_size: int,
    *,
    clients: int = 4,
    tenseal_context_file: str | None = None,
    encrypt_layers: Sequence[str] | str | None = None,
    aggregation_weights: dict[str, float] | None = None,
    weigh_by_local_iter: bool = True,
) -> dict[str, Any]:
    """Homomorphic encryption: the server adds up what it cannot read. Whoever has the key, every client for
    one, sees the sum. All settings but `clients` are FLARE's.

    >>> encrypted_sum(8)["aggregation"]
    'secure_sum'
    """
    if encrypt_layers is not None:
        raise ValueError(
            "encrypt_layers leaves the other layers open to the server, which no view here stands for: audit "
            "those as nvflare:ExcludeVars with exclude_vars = the layers that are encrypted"
        )
    return secure_sum(batch_size, clients=clients)
