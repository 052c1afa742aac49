"""Seeds of what an attack must not be able to draw again: who holds which example, and the clients' noise.

An attack is told the audit's seed (`Knowledge.seed`), and the audit's code is public. So what clients draw is
seeded by the private data as well: whoever lacks the data cannot compute these seeds, and the same audit on
the same data still draws the same.
"""

from __future__ import annotations

import hashlib

_BYTES = 8


def private_seed(data_digest: bytes, purpose: str, seed: int) -> int:
    """A seed for one purpose of a run (63 bits), from a digest of the whole private data set.

    >>> private_seed(b"a data set", "clients", 0) == private_seed(b"a data set", "clients", 0)
    True
    >>> len({private_seed(d, p, s) for d in (b"1", b"2") for p in ("clients", "defense 0") for s in (0, 1)})
    8
    """
    content = f"{purpose} {seed}".encode()
    digest = hashlib.blake2b(content, key=data_digest[: hashlib.blake2b.MAX_KEY_SIZE], digest_size=_BYTES)
    return int.from_bytes(digest.digest(), "little") >> 1  # generators take signed 64-bit numbers
