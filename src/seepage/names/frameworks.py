"""The filters that come with NVIDIA FLARE and the mods that come with Flower, as defenses.

A filter or mod of one's own is named by its path, as in "nvflare:package.module.MyFilter".
"""

from __future__ import annotations

from typing import Any

from seepage.core.registry import Entry, Family

GENERAL = (
    "Not known here, so it was not attacked adaptively: only what rank, the entries that arrived and their "
    "signs say was tried."
)
"""Of a filter or mod that this version has no answer to."""
_CLIPPED = "One factor cancels in every quotient of two entries; it is found and undone for labels."
_LOGS = "None needed: it changes nothing that is sent."


def _flare(module: str, name: str, description: str, adaptive: str, **facts: Any) -> Entry:
    facts = {"family": "nvflare", "adaptive": adaptive, **facts}
    return Entry(where=f"nvflare.{module}:{name}", description=description, facts=facts)


def _flower(name: str, description: str, adaptive: str, **facts: Any) -> Entry:
    facts = {"family": "flower", "adaptive": adaptive, **facts}
    return Entry(where=f"flwr.clientapp.mod:{name}", description=description, facts=facts)


def _view(function: str, description: str, trusts: str, adaptive: str) -> Entry:
    """What the server sees of it is what counts here: no cryptography is run."""
    facts = {"runs_at": "protocol", "trusts": trusts, "adaptive": adaptive}
    return Entry(where=f"seepage.defenses.frameworks.views:{function}", description=description, facts=facts)


_SUMMED = "The sum is one large batch to the attacks here; a server that adds fakes singles a victim out."

NVFLARE: dict[str, Entry] = {
    "PercentilePrivacy": _flare(
        "app_common.filters.percentile_privacy",
        "PercentilePrivacy",
        "FLARE: send no entry below a percentile of all, and none above gamma.",
        "Entries that arrived between the two are exact; the rank says what the others were.",
    ),
    "SVTPrivacy": _flare(
        "app_common.filters.svt_privacy",
        "SVTPrivacy",
        "FLARE: send a random part of the entries, cut off at gamma, with Laplace noise.",
        "Filter what arrived by the rank; the noise and the cut are public.",
    ),
    "ExcludeVars": _flare(
        "app_common.filters.exclude_vars",
        "ExcludeVars",
        "FLARE: keep the named variables at home.",
        "Match what was sent only; features read there can be inverted.",
    ),
    "DXOBlocker": _flare(
        "app_common.filters.dxo_blocker",
        "DXOBlocker",
        "FLARE: send nothing of the named kinds.",
        "None needed: what is blocked is not sent, and the rest is not changed.",
    ),
    "ModelQuantizer": _flare(
        "app_opt.pt.quantization.quantizer",
        "ModelQuantizer",
        "FLARE: send every entry in fewer bits (needs the package bitsandbytes).",
        GENERAL,
    ),
    "HEModelEncryptor": _view(
        "encrypted_sum",
        "FLARE: homomorphic encryption; the server adds up what it cannot read, and clients read the sum.",
        "every client: to keep the key and the sum from the server",
        _SUMMED,
    ),
}
FLOWER: dict[str, Entry] = {
    "LocalDpMod": _flower(
        "LocalDpMod",
        "Flower: clip the update, add Gaussian noise for the sensitivity and epsilon that are given.",
        "Noise is filtered by the rank, then the clipping is undone; the bound of the epsilon that the noise "
        "really gives holds against every attacker.",
        guarantee="formal (DP)",
    ),
    "fixedclipping_mod": _flower(
        "fixedclipping_mod",
        "Flower: clip the update to a norm that the server sends; the server is trusted with the noise.",
        _CLIPPED,
        config={"clipping_norm": None},
        trusts="the server: to add the noise",
    ),
    "adaptiveclipping_mod": _flower(
        "adaptiveclipping_mod",
        "Flower: clip the update to a norm that the server adapts (this one: where it starts).",
        _CLIPPED,
        config={"clipping_norm": 0.1},
        trusts="the server: to add the noise",
    ),
    "arrays_size_mod": _flower("arrays_size_mod", "Flower: log how large the arrays are.", _LOGS),
    "message_size_mod": _flower("message_size_mod", "Flower: log how large messages are.", _LOGS),
    "secaggplus_mod": _view(
        "masked_sum",
        "Flower: SecAgg+; masks cancel in the sum, which is all that the server sees.",
        "that the other contributors are real: a server may fill the sum up with fakes",
        _SUMMED,
    ),
    "secagg_mod": _view(
        "masked_sum",
        "Flower: SecAgg; masks cancel in the sum, which is all that the server sees.",
        "that the other contributors are real: a server may fill the sum up with fakes",
        _SUMMED,
    ),
}

FAMILIES: dict[str, Family] = {
    "nvflare": Family(
        title="NVIDIA FLARE",
        package="nvflare",
        install="pip install 'seepage[nvflare]'",
        entries=NVFLARE,
        facts={"family": "nvflare", "adaptive": GENERAL},
        own="a filter of your own is nvflare:package.module.MyFilter",
    ),
    "flower": Family(
        title="Flower",
        package="flwr",
        install="pip install 'seepage[flower]'",
        entries=FLOWER,
        facts={"family": "flower", "adaptive": GENERAL},
        own="a mod of your own is flower:package.module.my_mod",
    ),
}
"""By what stands before the colon."""


def unanswered(name: str) -> bool:
    """Is this a filter or mod that only the general answer is given to?

    >>> unanswered("nvflare:my.package.Filter"), unanswered("nvflare:SVTPrivacy"), unanswered("clipping")
    (True, False, False)
    """
    family, _, thing = name.partition(":")
    if family not in FAMILIES:
        return False
    entry = FAMILIES[family].entries.get(thing)
    return entry is None or entry.facts["adaptive"] == GENERAL
