"""Reports: one HTML page, a terminal summary, a machine form. They read run folders and nothing else."""

from seepage.record.pictures import picture_grid, to_png
from seepage.report.html import render_html, write_html
from seepage.report.judgement import AuditVerdict, verdict
from seepage.report.plan import left_out, plan_text
from seepage.report.terminal import print_summary, to_json

__all__ = [
    "AuditVerdict",
    "left_out",
    "picture_grid",
    "plan_text",
    "print_summary",
    "render_html",
    "to_json",
    "to_png",
    "verdict",
    "write_html",
]
