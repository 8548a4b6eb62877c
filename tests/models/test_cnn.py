import pytest
import torch

from alidpfl.errors import ConfigError
from alidpfl.models.cnn import paper_cnn


@pytest.mark.parametrize(("shape", "params"), [((1, 28, 28), 582_026), ((3, 32, 32), 878_538)])
def test_parameter_counts_of_the_paper(shape, params):
    model = paper_cnn(shape)
    assert sum(p.numel() for p in model.parameters()) == params
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


def test_too_small_images_are_named():
    with pytest.raises(ConfigError, match=r"input_shape=\(1, 12, 28\) is too small .* at least 16"):
        paper_cnn((1, 12, 28))
    assert paper_cnn((1, 16, 16))(torch.zeros(1, 1, 16, 16)).shape == (1, 10)


def test_too_few_classes_are_named():
    with pytest.raises(ConfigError, match="num_classes=1"):
        paper_cnn((1, 28, 28), num_classes=1)
