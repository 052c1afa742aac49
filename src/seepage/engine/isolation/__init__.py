"""Attacks in a process of their own, which never held a private example.

`attack.IsolatedAttack` is an attack like any other: what it is asked, it asks an attack that lives in another
process (`worker`), which may touch nothing but code (`confine`). Attacks from outside of the package always
run like this; the tests run every attack like this. Nothing is imported here: a process is locked in before
it imports anything large.
"""
