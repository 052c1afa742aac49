"""What each defense costs and what it stops: leakage against accuracy, on one model and dataset."""

from seepage.tradeoff.advice import Advice, advise
from seepage.tradeoff.page import tradeoff_html, write_tradeoff_html
from seepage.tradeoff.result import Row, TradeoffResult, pareto_front
from seepage.tradeoff.robustness import reconstruction_bound
from seepage.tradeoff.run import run_tradeoff
from seepage.tradeoff.spec import TradeoffSpec, TrainingSpec, parse_tradeoff, read_tradeoff
from seepage.tradeoff.terminal import print_tradeoff

__all__ = [
    "Advice",
    "Row",
    "TradeoffResult",
    "TradeoffSpec",
    "TrainingSpec",
    "advise",
    "pareto_front",
    "parse_tradeoff",
    "print_tradeoff",
    "read_tradeoff",
    "reconstruction_bound",
    "run_tradeoff",
    "tradeoff_html",
    "write_tradeoff_html",
]
