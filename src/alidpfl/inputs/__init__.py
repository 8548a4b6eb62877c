"""Checks of the numbers and names that users type."""
