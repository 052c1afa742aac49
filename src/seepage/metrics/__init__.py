"""Matching candidates with the truth, and scoring them. Pure functions; the only code that sees the truth.

METRICS names every score; `score_examples` computes those of matched pairs; `extraction_scores` and
`label_multiset_accuracy` those of a whole batch.
"""

from seepage.core.metric import PSNR_CAP, Metric
from seepage.metrics.catalogue import METRICS, requested
from seepage.metrics.exact import EXACT_TOLERANCE, ExactRule, exact_match
from seepage.metrics.features import cosine, relative_error
from seepage.metrics.image import lpips, lpips_available, mse, psnr, ssim
from seepage.metrics.labels import label_multiset_accuracy
from seepage.metrics.leakage import ExtractionScores, extraction_from_hits, extraction_scores
from seepage.metrics.matching import assign, nearest_truth, pair_errors
from seepage.metrics.on_request import check_requested, score_requested
from seepage.metrics.registered import registered_psnr, registered_psnr_available
from seepage.metrics.scales import column_spread, data_range, error_unit, exact_rule
from seepage.metrics.scoring import score_examples
from seepage.metrics.tabular import rmse
from seepage.metrics.text import bag_of_words_recall, rouge_1, rouge_2, rouge_l, token_accuracy
from seepage.metrics.wavelet import cw_ssim, cw_ssim_available, wavelet_scales

__all__ = [
    "EXACT_TOLERANCE",
    "METRICS",
    "PSNR_CAP",
    "ExactRule",
    "ExtractionScores",
    "Metric",
    "assign",
    "bag_of_words_recall",
    "check_requested",
    "column_spread",
    "cosine",
    "cw_ssim",
    "cw_ssim_available",
    "data_range",
    "error_unit",
    "exact_match",
    "exact_rule",
    "extraction_from_hits",
    "extraction_scores",
    "label_multiset_accuracy",
    "lpips",
    "lpips_available",
    "mse",
    "nearest_truth",
    "pair_errors",
    "psnr",
    "registered_psnr",
    "registered_psnr_available",
    "relative_error",
    "requested",
    "rmse",
    "rouge_1",
    "rouge_2",
    "rouge_l",
    "score_examples",
    "score_requested",
    "ssim",
    "token_accuracy",
    "wavelet_scales",
]
