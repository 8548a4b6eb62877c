"""Reproduce the tables of the ALI-DPFL paper (arXiv 2308.10457): grids, runs, results and pages.

Run `python -m reproduction --help` in the root of a clone. The installed package does not contain this folder.
"""
