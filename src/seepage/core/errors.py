"""The errors a user can meet. Each carries one sentence with the reason and the remedy."""

from __future__ import annotations


class SeepageError(Exception):
    """Base of every error that is the user's to fix: printed as one sentence, never as a traceback."""


class SpecError(SeepageError):
    """The audit specification is wrong: an unknown key, an impossible value, a missing file."""


class DataError(SeepageError):
    """The data cannot be used: empty, NaN, labels out of range, a shape the model does not take."""


class ModelError(SeepageError):
    """The model cannot be built or loaded."""


class LogError(SeepageError):
    """A log folder is missing, unreadable, or belongs to another audit."""


class NotApplicable(SeepageError):  # noqa: N818 - a finding about one attack, not a failure of the audit
    """This attack cannot work on this model or protocol. The audit records why and goes on."""


class AttackError(SeepageError):
    """An attack from outside of the package broke or broke a rule. Its cell fails, and the audit goes on."""


def in_words(error: BaseException) -> str:
    """Type and message of an exception on one line.

    >>> in_words(ValueError("first line\\nsecond"))
    'ValueError: first line second.'
    """
    message = " ".join(str(error).split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."


def out_of_memory(error: BaseException) -> bool:
    """Python's, the GPU's, or that of torch's allocator on the CPU, which has no type of its own.

    >>> out_of_memory(MemoryError()), out_of_memory(RuntimeError("mat1 and mat2 do not fit"))
    (True, False)
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
