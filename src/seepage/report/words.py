"""Small grammar and number forms, shared by the page, the terminal and the verdict."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence

from seepage.core.metric import SHARE, MetricFacts
from seepage.record import Estimate, Header

NOUNS = {"image": ("image", "images"), "text": ("text", "texts"), "tabular": ("row", "rows")}
DASH = "–"


_FIGURE = re.compile(r"\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")


def alike(notes: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Each note with the number of later ones that say the same of other figures.

    >>> alike(["Read 8 of 8 rows.", "No bias.", "Read 7 of 8 rows.", "Read 1.5e-7 of 8 rows."])
    (('Read 8 of 8 rows.', 2), ('No bias.', 0))
    """
    groups: dict[str, list[str]] = {}
    for note in notes:
        groups.setdefault(_FIGURE.sub("0", note), []).append(note)
    return tuple((same[0], len(same) - 1) for same in groups.values())


def plural(count: int, singular: str, several: str | None = None) -> str:
    """A count with its noun.

    >>> plural(1, "batch", "batches"), plural(3, "round")
    ('1 batch', '3 rounds')
    """
    return f"{count} {singular if count == 1 else several or singular + 's'}"


def things(header: Header, count: int) -> str:
    """`count` examples in the words of the data: images, texts or rows."""
    return plural(count, *NOUNS[header.input.modality])


def unit(header: Header) -> str:
    """What the cells of an attack differ in: a seed of the simulation, or one of the recorded exchanges."""
    return "exchange" if header.spec.get("recorded") else "seed"


def share(header: Header, part: int, whole: int) -> str:
    """`14 of 20 images`, `1 of 1 image`: the noun follows the whole."""
    return f"{part} of {things(header, whole)}"


def number(value: float, decimals: int, reach: tuple[float, float] = (-math.inf, math.inf)) -> str:
    """Fixed decimals, so that columns align; a dash for what is not a number.

    What is not zero, nor at an end of its reach, never reads as if it were.

    >>> number(3.14159, 2), number(0.0, 2), number(0.0004, 2), number(-0.0004, 2), number(float("nan"), 2)
    ('3.14', '0.00', '< 0.01', '> -0.01', '–')
    >>> number(99.99, 1, (0.0, 100.0)), number(100.0, 1, (0.0, 100.0))
    ('> 99.9', '100.0')
    """
    if not math.isfinite(value):
        return DASH
    shown, step = float(f"{value:.{decimals}f}"), 10.0**-decimals
    for end in {0.0, *reach}:
        if shown == end and not math.isclose(value, end):  # an exact copy's similarity has rounding errors
            return f"< {end + step:.{decimals}f}" if value > end else f"> {end - step:.{decimals}f}"
    return f"{shown + 0.0:.{decimals}f}"


def short_number(value: float) -> str:
    """Six significant digits, for values whose scale is unknown (a user's columns).

    >>> short_number(77516.0), short_number(0.1), short_number(1e-7)
    ('77516', '0.1', '1e-07')
    """
    return f"{value:.6g}" if math.isfinite(value) else DASH


def percent(value: float | Estimate | None) -> str:
    """A share in [0, 1], never rounded up to all nor down to nothing; a dash for what is not known.

    >>> [percent(share) for share in (0.0, 0.0004, 0.5, 1 / 3, 0.9999, 1.0, None)]
    ['0 %', '< 0.1 %', '50 %', '33.3 %', '> 99.9 %', '100 %', '–']
    """
    value = value.value if isinstance(value, Estimate) else value
    if value is None or not math.isfinite(value):
        return DASH
    if 0 < value < 0.001 or 0.999 < value < 1:
        return "< 0.1 %" if value < 0.5 else "> 99.9 %"
    whole = math.isclose(100 * value, round(100 * value))
    return f"{100 * value:.{0 if whole else 1}f} %"


def text(metric: MetricFacts, value: float) -> str:
    """A value as it stands in a column under its metric's heading, with its unit.

    >>> from seepage.names.metrics import METRICS
    >>> text(METRICS["exact"], 0.9999), text(METRICS["psnr"], 31.47), text(METRICS["mse"], 1e-7)
    ('> 99.9 %', '31.5', '< 0.0001')
    """
    return percent(value) if metric.unit == SHARE else number(value, metric.decimals, metric.reach)


def with_unit(metric: MetricFacts, value: float) -> str:
    """A value as it stands in a sentence.

    >>> from seepage.names.metrics import METRICS
    >>> with_unit(METRICS["psnr"], 31.47), with_unit(METRICS["token_accuracy"], 0.25)
    ('31.5 dB', '25 %')
    """
    return f"{text(metric, value)} {metric.suffix}".rstrip()


def interval(estimate: Estimate | None, metric: MetricFacts | None = None) -> str:
    """The 95 % interval without its unit, of a share unless a metric is given; empty for a single value.

    >>> interval(Estimate.of_counts([(0, 60)]))
    '0 to 6.0'
    >>> interval(Estimate.of([[100.0] * 20] * 3, "dB"))  # "100.0 to 100.0" would promise too much
    'all equal'
    """
    if estimate is None or estimate.n < 2 or math.isnan(estimate.low):
        return ""
    if math.isclose(estimate.low, estimate.high, rel_tol=1e-9):
        return "all equal"
    ends = [percent(v) if metric is None else text(metric, v) for v in (estimate.low, estimate.high)]
    low, high = (end.removesuffix(" %") for end in ends)
    if estimate.low >= 0 and (high.startswith("<") or low.startswith(">")):
        return high if high.startswith("<") else low  # the other end lies between it and nothing, or all
    return f"{low} to {high}"


def with_interval(estimate: Estimate | None, metric: MetricFacts | None = None) -> str:
    """A mean with its unit and its interval. Without a metric: a share.

    >>> with_interval(Estimate.of_counts([(10, 20), (30, 60)]))
    '50 % (38.6 to 61.4)'
    """
    if estimate is None:
        return DASH
    ends = interval(estimate, metric)
    mean = percent(estimate) if metric is None else with_unit(metric, estimate.value)
    return f"{mean} ({ends})" if ends else mean


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


def broken(name: str, width: int) -> str:
    """On lines of at most `width`, broken where a reader would: after "_", "(", "," and spaces.

    A part that is longer by itself stays whole.

    >>> broken("gaussian_noise(sigma=0.01) over clipping(norm=1.0)", 16).split(chr(10))
    ['gaussian_noise(', 'sigma=0.01) over', 'clipping(', 'norm=1.0)']
    """
    lines = [""]
    for part in _parts(name):
        if lines[-1] and len((lines[-1] + part).rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def widest_part(names: Iterable[str]) -> int:
    """What a column needs at least, so that `broken` breaks no word.

    >>> widest_part(["exact_extraction", "sign"])
    10
    """
    return max((len(part.rstrip()) for name in names for part in _parts(name)), default=0)


def _parts(name: str) -> list[str]:
    return re.findall(r"[^_(, ]*[_(, ]+|[^_(, ]+", name)


def class_name(header: Header, label: int) -> str:
    """The name of a class, or its number where the log has no names."""
    names = header.input.class_names
    return names[label] if 0 <= label < len(names) else f"class {label}"
