"""The errors that alidpfl raises on purpose.

A message names what is wrong, the value, and the remedy. The command line prints it as one line on standard error and
exits with status 2. Any other exception is a bug in alidpfl.
"""


class AliDpflError(Exception):
    """Base class of all errors that a user can cause and fix. Its text is always one printable line."""

    def __str__(self) -> str:
        return printable(super().__str__())


def printable(text: str, longest: int = 2000) -> str:
    r"""Return `text` as one line of at most `longest` characters, with "?" for control characters.

    >>> printable("a\x1b[2J\nb")
    'a?[2J?b'
    """
    return "".join(character if character.isprintable() else "?" for character in text[:longest])


class ConfigError(AliDpflError, ValueError):
    """A parameter is outside its valid range, or parameters contradict each other."""


class BudgetExceededError(AliDpflError):
    """The privacy budget is too small for the request. Nothing was spent."""


class UnsupportedModelError(AliDpflError):
    """The model has no exact per-sample gradient, or this engine cannot compute it."""


class DataError(AliDpflError):
    """The data do not have the form that the model or the loader needs. The message never quotes a data value."""


class NodesMissingError(AliDpflError):
    """Too few nodes of a deployment are online or answer. The run can be resumed once they do."""
