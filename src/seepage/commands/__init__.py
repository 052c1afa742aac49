"""The commands, by what they are for: `running`, `showing`, the client's `checking`, `starting`.

Each parses, calls and prints. Heavy imports happen inside them.
"""
