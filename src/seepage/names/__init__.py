"""Every name that seepage itself offers, with what can be said of it before it is imported.

Each file is a table of strings: nothing here imports torch or the room that the names belong to.
"""
