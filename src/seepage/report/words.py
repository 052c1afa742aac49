"""Small grammar and number forms, shared by the page, the terminal and the verdict."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence

from seepage.log import Header

NOUNS = {"image": ("image", "images"), "text": ("text", "texts"), "tabular": ("row", "rows")}
DASH = "–"


def plural(count: int, singular: str, several: str | None = None) -> str:
    """A count with its noun.

    >>> plural(1, "batch", "batches"), plural(3, "round")
    ('1 batch', '3 rounds')
    """
    return f"{count} {singular if count == 1 else several or singular + 's'}"


def things(header: Header, count: int) -> str:
    """`count` examples in the words of the data: images, texts or rows."""
    return plural(count, *NOUNS[header.input.modality])


def share(header: Header, part: int, whole: int) -> str:
    """`14 of 20 images`, `1 of 1 image`: the noun follows the whole."""
    return f"{part} of {things(header, whole)}"


def number(value: float, decimals: int) -> str:
    """Fixed decimals, so that columns align; a dash for what is not a number.

    >>> number(3.14159, 2), number(float("nan"), 2)
    ('3.14', '–')
    """
    if not math.isfinite(value):
        return DASH
    text = f"{value:.{decimals}f}"
    return text.lstrip("-") if float(text) == 0 else text


def short_number(value: float) -> str:
    """Six significant digits, for values whose scale is unknown (a user's columns).

    >>> short_number(77516.0), short_number(0.1), short_number(1e-7)
    ('77516', '0.1', '1e-07')
    """
    return f"{value:.6g}" if math.isfinite(value) else DASH


def percent(value: float) -> str:
    """A share in [0, 1] as whole percents, never rounded up to 100 nor down to 0.

    >>> percent(0.5), percent(0.999), percent(1.0), percent(0.001)
    ('50 %', '99 %', '100 %', '1 %')
    """
    if not math.isfinite(value):
        return DASH
    whole = round(100 * value)
    if 0 < value < 1:
        whole = min(99, max(1, whole))
    return f"{whole} %"


def duration(seconds: float) -> str:
    """Seconds with the precision that still says something.

    >>> duration(0.0421), duration(12.34), duration(3600)
    ('0.04 s', '12.3 s', '3600 s')
    """
    return f"{number(seconds, 2 if seconds < 10 else 1 if seconds < 100 else 0)} s"


def join(words: Sequence[str]) -> str:
    """An English list.

    >>> join(["a"]), join(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def sentence(text: str) -> str:
    """First letter upper case, full stop at the end.

    >>> sentence("the model has no bias")
    'The model has no bias.'
    """
    text = text.strip()
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")


def printable(text: str) -> str:
    r"""Without control characters: a name from a log must not steer the reader's terminal.

    >>> printable("red \x1b[31mtext\n")
    'red [31mtext'
    """
    return "".join(c for c in text if unicodedata.category(c) not in {"Cc", "Cf", "Cs"})


def class_name(header: Header, label: int) -> str:
    """The name of a class, or its number where the log has no names."""
    names = header.input.class_names
    return names[label] if 0 <= label < len(names) else f"class {label}"
