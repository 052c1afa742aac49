"""Was this model sent to me only? Clients that may talk to each other compare fingerprints.

A server can send a crafted model to its victim and an honest one to everybody else (Boenisch et al. 2021,
Section 10.2). No client can see that by itself.
"""

from __future__ import annotations

import hashlib

from torch import nn

from seepage.guardian.detectors.layers import tensors_of


def fingerprint(model: nn.Module) -> str:
    """SHA-256 over names, shapes, types and values of all floating-point weights, wherever they lie.

    >>> net = nn.Linear(2, 2)
    >>> fingerprint(net) == fingerprint(net), len(fingerprint(net))
    (True, 64)
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors_of(model).items()):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {tuple(values.shape)} {values.dtype}\n".encode())
        digest.update(values.double().numpy().tobytes())
    return digest.hexdigest()
