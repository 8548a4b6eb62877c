"""Benchmarks of the package. They measure and report; no test depends on them."""
