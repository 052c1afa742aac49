"""Audits side by side: before and after a change."""

from seepage.report.compared.page import comparison_html, write_comparison_html
from seepage.report.compared.result import Comparison, compare_logs
from seepage.report.compared.terminal import print_comparison

__all__ = ["Comparison", "compare_logs", "comparison_html", "print_comparison", "write_comparison_html"]
