"""Heads that single out one example, and reading what comes back."""
