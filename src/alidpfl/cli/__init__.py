"""The `alidpfl` command: parse, call, print. One module a command; heavy imports wait until a command needs them."""

from alidpfl.cli.app import app, commands, help_of, main

__all__ = ["app", "commands", "help_of", "main"]
