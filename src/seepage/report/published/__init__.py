"""A paper's table: our figures beside the published ones, from the record of a run."""

from seepage.report.published.page import write_table_html
from seepage.report.published.result import Figure, Row, Table
from seepage.report.published.terminal import print_table

__all__ = ["Figure", "Row", "Table", "print_table", "write_table_html"]
