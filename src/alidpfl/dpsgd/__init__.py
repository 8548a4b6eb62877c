"""DP-SGD: tensors in, tensors out, explicit randomness, no I/O.

Sample a batch (`poisson_sample`), clip every sample's gradient exactly (`PerSampleClipper`), add noise and step
(`dp_sgd_step`), with all randomness from one `RandomStream`. Small models are several times as fast after
`torch.set_num_threads(1)`; it is left to the caller, whose process it is.

>>> import torch
>>> from alidpfl.models import paper_cnn
>>> images, labels = torch.rand(600, 1, 28, 28), torch.randint(10, (600,))  # a client's private data
>>> clipper = PerSampleClipper(paper_cnn((1, 28, 28)))
>>> settings = StepSettings(clip_norm=1.0, noise_multiplier=1.1, learning_rate=0.5, expected_batch_size=0.015 * 600)
>>> random = RandomStream.secure()
>>> batch = poisson_sample(600, 0.015, random)
>>> result = dp_sgd_step(clipper, images[batch], labels[batch], settings, random)
"""

from alidpfl.dpsgd.clipping import BatchStatistics, ClippedSum, Clipper, PerSampleClipper, cross_entropy
from alidpfl.dpsgd.grid_noise import Grid
from alidpfl.dpsgd.one_by_one import OneByOneClipper
from alidpfl.dpsgd.randomness import RandomStream
from alidpfl.dpsgd.release import noised_total
from alidpfl.dpsgd.softmax import SoftmaxClipper, is_softmax_regression
from alidpfl.dpsgd.step import StepResult, StepSettings, add_noise, dp_sgd_step, noised_sum, poisson_sample

__all__ = [
    "BatchStatistics",
    "ClippedSum",
    "Clipper",
    "Grid",
    "OneByOneClipper",
    "PerSampleClipper",
    "RandomStream",
    "SoftmaxClipper",
    "StepResult",
    "StepSettings",
    "add_noise",
    "cross_entropy",
    "dp_sgd_step",
    "is_softmax_regression",
    "noised_sum",
    "noised_total",
    "poisson_sample",
]
