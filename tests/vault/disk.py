"""A disk that fails at a chosen moment."""

import os


class Disk:
    """Stands for `os` in the module: one call fails, or writes only a part."""

    def __init__(self, name: str, call: int, error: int | None = None, most: int = 0) -> None:
        self.name, self.call, self.error, self.most, self.calls = name, call, error, most, 0

    def __getattr__(self, name):
        real = getattr(os, name)
        if name != self.name:
            return real

        def maybe(*arguments):
            self.calls += 1
            if self.calls != self.call:
                return real(*arguments)
            if self.error is not None:
                raise OSError(self.error, os.strerror(self.error))
            return real(arguments[0], arguments[1][: self.most])

        return maybe
