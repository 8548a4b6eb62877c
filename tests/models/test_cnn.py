"""The convolutional networks: sizes, and images that do not fit."""

import pytest
import torch

from alidpfl.errors import ConfigError
from alidpfl.models.cnn import compact_cnn, paper_cnn


@pytest.mark.parametrize(("shape", "params"), [((1, 28, 28), 582_026), ((3, 32, 32), 878_538)])
def test_parameter_counts_of_the_paper(shape, params):
    model = paper_cnn(shape)
    assert sum(p.numel() for p in model.parameters()) == params
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


def test_too_small_images_are_named():
    with pytest.raises(ConfigError, match=r"input_shape=\(1, 12, 28\)"):
        paper_cnn((1, 12, 28))
    assert paper_cnn((1, 16, 16))(torch.zeros(1, 1, 16, 16)).shape == (1, 10)


def test_too_few_classes_are_named():
    with pytest.raises(ConfigError, match="num_classes=0"):
        paper_cnn((1, 28, 28), num_classes=0)


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 17, 30), (1, 28, 28)])
def test_the_compact_network_takes_images_of_any_side(shape):
    assert compact_cnn(shape, num_classes=4)(torch.zeros(2, *shape)).shape == (2, 4)


@pytest.mark.parametrize("build", [compact_cnn, paper_cnn])
def test_vectors_are_refused(build):
    with pytest.raises(ConfigError, match=r"\(60,\)"):
        build((60,))
