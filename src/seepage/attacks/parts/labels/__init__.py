"""How many examples of each class are behind an update, without seeing one."""

from seepage.attacks.parts.labels.counts import LABEL_METHODS, LabelEstimate, infer_label_counts

__all__ = ["LABEL_METHODS", "LabelEstimate", "infer_label_counts"]
