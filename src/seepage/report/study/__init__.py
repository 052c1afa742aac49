"""What each defense costs and what it stops: leakage against accuracy, as a study's log has them."""

from seepage.report.study.advice import Advice, advise
from seepage.report.study.page import study_html, write_study_html
from seepage.report.study.result import DefenseRow, StudyResult, pareto_front
from seepage.report.study.robustness import reconstruction_bound
from seepage.report.study.terminal import print_study

__all__ = [
    "Advice",
    "DefenseRow",
    "StudyResult",
    "advise",
    "pareto_front",
    "print_study",
    "reconstruction_bound",
    "study_html",
    "write_study_html",
]
