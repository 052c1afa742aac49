"""What to do about a leak: changes that were measured on the audited deployment, ranked."""

from seepage.report.actions.listing import ADVICE, Action, Actions, read_actions

__all__ = ["ADVICE", "Action", "Actions", "read_actions"]
