"""Mutants: deliberate bugs, each of which must turn a test red. Run them with `make mutants`."""
