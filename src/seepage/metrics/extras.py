"""Metrics that need more than seepage's own requirements say so in one sentence."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

EXTRA = "wen"
"""The optional extra that brings kornia and pytorch-wavelets (Wen et al. 2022, Appendix B)."""


def extras_available(metric: str, modules: Mapping[str, str]) -> tuple[bool, str]:
    """Whether these modules (by name, with the package that brings each) are installed, and what is missing.

    Nothing is imported: the answer stands in the catalogue, and kornia takes long to import.

    >>> extras_available("R-PSNR", {"no_such_module": "no-such-package"})
    (False, "R-PSNR needs no-such-package, which is not installed: pip install 'seepage[wen]'.")
    """
    missing = [package for name, package in modules.items() if importlib.util.find_spec(name) is None]
    if not missing:
        return True, ""
    needed = " and ".join(missing)
    verb = "is" if len(missing) == 1 else "are"
    return False, f"{metric} needs {needed}, which {verb} not installed: pip install 'seepage[{EXTRA}]'."
