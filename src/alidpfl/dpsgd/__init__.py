"""DP-SGD: tensors in, tensors out, explicit randomness, no I/O.

`poisson_sample` draws a batch. `PerSampleClipper` clips every record's gradient exactly, or every person's: `Groups`
draws the records of persons. `dp_sgd_step` adds noise and steps. All randomness comes from one `RandomStream`. Small
models are several times as fast after `torch.set_num_threads(1)`. That is a setting of the whole process, so it is left
to the caller.

>>> import torch
>>> from alidpfl.models import paper_cnn
>>> images, labels = torch.rand(600, 1, 28, 28), torch.randint(10, (600,))  # private records
>>> clipper = PerSampleClipper(paper_cnn((1, 28, 28)))
>>> settings = StepSettings(clip_norm=1.0, noise_multiplier=1.1, learning_rate=0.5, expected_batch_size=0.015 * 600)
>>> random = RandomStream.secure()
>>> batch = poisson_sample(600, 0.015, random)
>>> result = dp_sgd_step(clipper, images, labels, settings, random, rows=batch)
"""

from alidpfl.dpsgd.clipping import BatchStatistics, ClippedSum, PerSampleClipper
from alidpfl.dpsgd.grid_noise import Grid
from alidpfl.dpsgd.groups import Groups
from alidpfl.dpsgd.losses import cross_entropy, make_loss
from alidpfl.dpsgd.one_by_one import OneByOneClipper
from alidpfl.dpsgd.randomness import RandomStream
from alidpfl.dpsgd.release import noised_total
from alidpfl.dpsgd.softmax import SoftmaxClipper, is_softmax_regression
from alidpfl.dpsgd.step import Clipper, StepResult, StepSettings, add_noise, dp_sgd_step, noised_sum, poisson_sample

__all__ = [
    "BatchStatistics",
    "ClippedSum",
    "Clipper",
    "Grid",
    "Groups",
    "OneByOneClipper",
    "PerSampleClipper",
    "RandomStream",
]
__all__ += ["SoftmaxClipper", "StepResult", "StepSettings", "add_noise", "cross_entropy", "dp_sgd_step", "make_loss"]
__all__ += ["is_softmax_regression", "noised_sum", "noised_total", "poisson_sample"]
