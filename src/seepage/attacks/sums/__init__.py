"""Secure sums: attacks that get single clients out of them."""
