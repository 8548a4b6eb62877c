"""The core on real images: private training of the paper's CNN learns MNIST, within a budget that is accounted."""

import gzip

import numpy as np
import pytest
import torch

from alidpfl.dpsgd import PerSampleClipper, RandomStream, StepSettings, dp_sgd_step, poisson_sample
from alidpfl.models.cnn import paper_cnn
from alidpfl.privacy import PrivacyBudget, max_steps


def _read_idx(path) -> torch.Tensor:
    with gzip.open(path) as file:
        raw = file.read()
    dims = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(raw[3])]
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=4 + 4 * len(dims)).reshape(dims).copy())


@pytest.mark.real_data
def test_private_training_learns_mnist(data_dir):
    """One client with 6,000 images, the paper's q and σ, ε = 2: far above the 10 % of guessing."""
    raw = data_dir / "MNIST" / "raw"
    images = _read_idx(raw / "train-images-idx3-ubyte.gz")[:6000].unsqueeze(1).float() / 127.5 - 1
    labels = _read_idx(raw / "train-labels-idx1-ubyte.gz")[:6000].long()
    test_images = _read_idx(raw / "t10k-images-idx3-ubyte.gz")[:2000].unsqueeze(1).float() / 127.5 - 1
    test_labels = _read_idx(raw / "t10k-labels-idx1-ubyte.gz")[:2000].long()

    steps = max_steps(
        PrivacyBudget(epsilon=2, delta=1e-5), sample_rate=0.015, noise_multiplier=1.1, accountant="rdp-paper"
    )
    torch.manual_seed(0)
    model = paper_cnn((1, 28, 28))
    clipper, random = PerSampleClipper(model), RandomStream.seeded(0)
    settings = StepSettings(clip_norm=1.0, noise_multiplier=1.1, learning_rate=0.5, expected_batch_size=90)
    for _ in range(min(steps, 150)):
        batch = poisson_sample(len(images), 0.015, random)
        dp_sgd_step(clipper, images[batch], labels[batch], settings, random)
    with torch.no_grad():
        accuracy = float((model(test_images).argmax(1) == test_labels).float().mean())
    assert accuracy > 0.6
