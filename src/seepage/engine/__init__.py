"""The engine: a specification becomes a grid of cells, and the cells become a record.

Nothing is imported here: the process of an outside attack is locked in before it imports anything large.
"""
