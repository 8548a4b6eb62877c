"""Complete names in shells at a press of Tab. Names come from the registry and the schema, without importing torch.

Completion refuses nothing: a wrong value gets an error from the command, with the nearest name.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

Completion: TypeAlias = Callable[[str], list[str]]
Names: TypeAlias = Iterable[str] | Callable[[], Iterable[str]]
"""Names, or a function that returns them at a press of Tab."""


def one_of(names: Names) -> Completion:
    """Return a completion of one name. If no name fits, shells offer files."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in (names() if callable(names) else names) if name.startswith(incomplete)]

    return complete


def several_of(names: Names) -> Completion:
    """Return a completion of a list such as mnist,cifar10. It keeps the names that are there, and adds another."""

    def complete(incomplete: str) -> list[str]:
        *given, last = incomplete.split(",")
        return [",".join([*given, name]) for name in one_of(names)(last) if name not in given]

    return complete


def _settings() -> list[str]:
    from alidpfl.config.load import keys

    return [f"{section}.{key}=" for section, names in keys().items() for key in names]


complete_setting = one_of(_settings)
complete_partition = one_of(("iid", "dirichlet", "natural"))
