"""Imports the service once, so that forked vaults start at once."""

import alidpfl.vault.service  # noqa: F401
