"""The datasets."""

from __future__ import annotations

from seepage.core.registry import Entry

GROUP = "seepage.data"
"""Entry points under which a package offers more."""
_FOLDER_OR_HUB = "SEEPAGE_DATA or the hub extra"


def _data(where: str, description: str, modality: str = "image", *, needs: str = "nothing") -> Entry:
    """needs: what must be there before it can be loaded."""
    return Entry(where=where, description=description, facts={"modality": modality, "needs": needs})


DATASETS: dict[str, Entry] = {
    "faces": _data("seepage.data.embedded:faces", "200 grey 25x25 patches from LFW: face or not"),
    "photos": _data("seepage.data.embedded:photos", "colour crops of eight photographs, 32x32 or size="),
    "digits": _data("seepage.data.embedded:digits", "1797 handwritten digits, grey 8x8"),
    "breast_cancer": _data(
        "seepage.data.embedded:breast_cancer", "569 tumours in 30 columns, benign or malignant", "tabular"
    ),
    "mnist": _data("seepage.data.named:mnist", "handwritten digits, grey 28x28", needs=_FOLDER_OR_HUB),
    "cifar10": _data("seepage.data.named:cifar10", "colour 32x32, 10 classes", needs=_FOLDER_OR_HUB),
    "cifar100": _data(
        "seepage.data.named:cifar100", "colour 32x32, 100 classes (or 20)", needs=_FOLDER_OR_HUB
    ),
    "imagenet_photos": _data(
        "seepage.data.named:imagenet_photos",
        "photographs in 1000 classes, 224x224 or size=",
        needs=_FOLDER_OR_HUB,
    ),
    "imdb": _data(
        "seepage.data.named:imdb",
        "film reviews as 250 word ids, positive or not",
        "text",
        needs=_FOLDER_OR_HUB,
    ),
}
