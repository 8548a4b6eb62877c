"""Noised releases: what is asked of records, what a record adds, and what the noised sums tell.

Only `compute` imports torch.

A release is the sum of one vector for each record, with Gaussian noise. `queries` says what may be asked, by public
numbers alone. Its layout scales the parts of a record's vector so that the norm is at most 1. So every release has
sensitivity 1, and noise of σ on each of its coordinates. `noised_total` clips each vector to norm 1 once more.
"""
