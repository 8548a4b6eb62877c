"""`python -m alidpfl` is the `alidpfl` command."""

from alidpfl.cli import main

main()
