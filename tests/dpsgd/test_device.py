"""No GPU is here, but code that would mix devices can be found: make every tensor that does not say where it lives live
on "meta", where nothing has a value. Whatever does not follow the model's device then fails.
"""

import pytest
import torch

from alidpfl.dpsgd import PerSampleClipper, RandomStream, StepSettings, dp_sgd_step, native

from .zoo import CASES

SETTINGS = StepSettings(clip_norm=0.5, noise_multiplier=1.0, learning_rate=0.1, expected_batch_size=4.0)


@pytest.mark.parametrize("keep", ["stored", "recomputed"])
@pytest.mark.parametrize("name", CASES)
def test_a_step_makes_no_tensor_without_naming_its_device(name, keep):
    model, (x, y) = CASES[name].model(), CASES[name].batch(5)
    random = RandomStream.seeded(1)
    with native.disabled():
        clipper = PerSampleClipper(model, max_gradient_bytes=32 << 20 if keep == "stored" else 0)
        with torch.device("meta"):
            dp_sgd_step(clipper, x, y, SETTINGS, random)
            dp_sgd_step(clipper, x[:0], y[:0], SETTINGS, random)
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_the_trick_works():
    with torch.device("meta"), pytest.raises(RuntimeError):
        _ = torch.ones(3) + torch.zeros(3, device="cpu")
