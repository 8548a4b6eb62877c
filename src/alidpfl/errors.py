"""Every error that alidpfl raises on purpose.

A message says what is wrong, with which value, and what to do about it. The command line turns these errors into one
line on standard error and exit status 2; anything else is a bug of ours.
"""

_LONGEST_TEXT = 2000


class AliDpflError(Exception):
    """Base of all errors that a user can cause and mend. Its text is one line, whatever a damaged file put into it."""

    def __str__(self) -> str:
        return printable(super().__str__())


def printable(text: str, longest: int = _LONGEST_TEXT) -> str:
    r"""One line without control characters, of bounded length.

    >>> printable("a\x1b[2J\nb")
    'a?[2J?b'
    """
    return "".join(character if character.isprintable() else "?" for character in text[:longest])


class ConfigError(AliDpflError, ValueError):
    """A parameter is outside its valid range, or parameters contradict one another."""


class BudgetExceededError(AliDpflError):
    """The privacy budget does not pay for what was asked; nothing was spent."""


class UnsupportedModelError(AliDpflError):
    """The model has no exact per-sample gradient, or this engine cannot compute it."""


class DataError(AliDpflError):
    """Data do not have the form that the model or the loader needs. The message never quotes a data value."""


class NodesMissingError(AliDpflError):
    """Too few nodes of a deployment are there or answer; the run can go on once they do."""
