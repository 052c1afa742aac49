"""Filters of NVIDIA FLARE and mods of Flower as defenses: their own classes, run on what they run on.

One module a framework, each with a `builder`; nothing of theirs is imported before it is asked for.
"""
