"""What a process was told about precision does not reach private steps: bounds are for float32."""

import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

from alidpfl.dpsgd import OneByOneClipper, PerSampleClipper, RandomStream, SoftmaxClipper, add_noise, native
from alidpfl.dpsgd.guards import full_precision
from alidpfl.errors import ConfigError

CPU = torch.device("cpu")
KERNELS = Path(native.__file__).parent / "_native.c"


def _told(what):
    """A process that was told to take fewer digits."""
    if what == "autocast":
        return torch.autocast("cpu")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")

    class Restored(nullcontext):
        def __exit__(self, *error):
            torch.set_float32_matmul_precision(before)

    return Restored()


def _sums(clipper, x, y):
    if isinstance(clipper, OneByOneClipper):
        return torch.stack([sample.vector for sample in clipper.gradients(x, y, seed=0)])
    gradients = clipper.clipped_sum(x, y, clip_norm=1.0, seed=0).gradients
    assert all(gradient.dtype in (torch.float32, torch.float64) for gradient in gradients.values())
    return torch.cat([gradient.double().flatten() for gradient in gradients.values()])


def _network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 10))


CLIPPERS = {
    "network": lambda: PerSampleClipper(_network()),
    "one by one": lambda: OneByOneClipper(_network()),
    "softmax": lambda: SoftmaxClipper(nn.Linear(100, 10, bias=False)),
}


@pytest.mark.parametrize("what", ["autocast", "medium"])
@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("name", CLIPPERS)
def test_steps_are_the_same_to_the_last_bit(name, is_native, what):
    x, y = torch.randn(128, 100, generator=torch.Generator().manual_seed(0)), torch.zeros(128).long()
    with nullcontext() if is_native else native.disabled():
        torch.manual_seed(1)
        clipper = CLIPPERS[name]()
        expected = _sums(clipper, x, y)
        with _told(what):
            assert torch.equal(_sums(clipper, x, y), expected)


def test_fewer_digits_would_show():
    """Else the test above shows nothing."""
    x, weight = torch.randn(128, 100), torch.randn(64, 100)
    with torch.autocast("cpu"):
        assert not torch.equal((x @ weight.t()).float(), x.double().matmul(weight.double().t()).float())
        assert (x @ weight.t()).dtype is torch.bfloat16


@pytest.mark.parametrize("switch", [torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv])
def test_the_switches_are_as_they_were_afterwards(switch):
    before = switch.fp32_precision
    switch.fp32_precision = "bf16"
    try:
        with full_precision(CPU):
            assert switch.fp32_precision == "ieee"
        assert switch.fp32_precision == "bf16"
        with pytest.raises(RuntimeError), full_precision(CPU):
            raise RuntimeError
        assert switch.fp32_precision == "bf16"
    finally:
        switch.fp32_precision = before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_noise_goes_on_no_sum_with_fewer_digits(dtype):
    with pytest.raises(ConfigError, match="float32 or float64"):
        add_noise({"w": torch.zeros(3, dtype=dtype)}, 1.0, RandomStream.seeded(0))


@pytest.mark.parametrize("is_native", [True, False])
def test_noise_is_float32_whatever_the_default_is(is_native):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        with nullcontext() if is_native else native.disabled():
            assert RandomStream.seeded(0).normal(8).dtype is torch.float32
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(("flags", "builds"), [((), True), (("-ffast-math",), False), (("-Ofast",), False)])
def test_the_kernels_are_not_built_without_nan(flags, builds, tmp_path):
    compiler = subprocess.run(["which", "gcc"], capture_output=True, text=True, check=False).stdout.strip()
    if not compiler:
        pytest.skip("no C compiler")
    command = [compiler, *flags, "-fsyntax-only", str(KERNELS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode == 0) == builds, done.stderr
    assert builds or "fast math" in done.stderr


def test_the_build_turns_fast_math_off_after_the_environment_turned_it_on():
    """The order of the two is setuptools' own: CFLAGS first."""
    assert '"-O3", "-fno-fast-math"' in (KERNELS.parents[3] / "setup.py").read_text()
