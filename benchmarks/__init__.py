"""Benchmarks: measured, never asserted."""
