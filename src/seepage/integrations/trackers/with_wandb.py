"""Weights & Biases: one run in a project; WANDB_MODE=offline keeps it on this machine."""

from __future__ import annotations

from seepage.core.errors import SpecError
from seepage.integrations.trackers.tracked import Tracked


def to_wandb(told: Tracked, project: str) -> str:
    """Returns the folder or address of the run."""
    try:
        import wandb
    except ImportError:
        raise SpecError("Weights & Biases is not installed: pip install 'seepage[wandb]'.") from None
    try:
        run = wandb.init(project=project, name=told.title, config=dict(told.settings), job_type="audit")
    except wandb.errors.UsageError as error:
        raise SpecError(
            f"Weights & Biases refused it ({error}): use WANDB_MODE=offline, or log in."
        ) from None
    run.summary.update({**told.figures, **told.tags})
    if told.page is not None:
        run.log({"report": wandb.Html(told.page.read_text(encoding="utf-8"), inject=False)})
    place = run.url or run.dir
    run.finish()
    return str(place)
