"""Texts read out of a transformer's gradients."""
