"""What an operator changes in the protocol itself: defenses that are no wrapper round the client's step."""

from __future__ import annotations

from typing import Any


def larger_batches(batch_size: int, *, factor: int = 4) -> dict[str, Any]:
    """`factor` times as many examples behind every update.

    >>> larger_batches(8, factor=4)
    {'batch_size': 32}
    """
    return {"batch_size": batch_size * _at_least(factor, 2, "factor")}


def local_averaging(batch_size: int, *, batches: int = 4, epochs: int = 1) -> dict[str, Any]:
    """Clients train on several mini-batches, perhaps several times, and send the change of the weights.

    >>> local_averaging(8, batches=4)
    {'algorithm': 'fedavg', 'batch_size': 32, 'local_batch_size': 8, 'local_epochs': 1}
    """
    return {
        "algorithm": "fedavg",
        "batch_size": batch_size * _at_least(batches, 1, "batches"),
        "local_batch_size": batch_size,
        "local_epochs": _at_least(epochs, 1, "epochs"),
    }


def secure_sum(
    batch_size: int, *, clients: int = 4, fakes: int = 0, minimum_honest: int = 1
) -> dict[str, Any]:
    """Nobody sees more than the sum over the clients; `fakes` and `minimum_honest` as in the protocol.

    >>> secure_sum(8, clients=4)["aggregation"]
    'secure_sum'
    """
    return {
        "aggregation": "secure_sum",
        "clients": _at_least(clients, 2, "clients"),
        "fakes": fakes,
        "minimum_honest": minimum_honest,
    }


def median(batch_size: int, *, clients: int = 4) -> dict[str, Any]:
    """The coordinate-wise median of the clients' updates is all that reaches the server.

    >>> median(8, clients=5)
    {'aggregation': 'median', 'clients': 5}
    """
    return {"aggregation": "median", "clients": _at_least(clients, 3, "clients")}


def same_model(batch_size: int) -> dict[str, Any]:
    """Clients compare fingerprints (`seepage.guardian.fingerprint`), so that all get one model.

    >>> same_model(8)
    {}
    """
    return {}


def _at_least(value: int, smallest: int, name: str) -> int:
    if not isinstance(value, int) or value < smallest:
        raise ValueError(f"{name} must be a whole number of at least {smallest}")
    return value
