"""Closed-form recovery from a vision transformer's first attention."""
