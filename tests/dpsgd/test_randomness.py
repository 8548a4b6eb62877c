"""Noise and sampling: the right distribution, and tests that would notice a wrong one."""

import copy
import math
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from scipy import stats

from alidpfl.dpsgd import RandomStream, native, poisson_sample
from alidpfl.dpsgd.randomness import _box_muller
from alidpfl.errors import ConfigError

DRAWS = 125_000


def _looks_standard_normal(sample) -> bool:
    """Standard deviation within 5 of its own (1 %), and Kolmogorov-Smirnov at a level of one in a million."""
    sd_of_sd = 1 / math.sqrt(2 * len(sample))
    right_scale = abs(float(sample.std()) - 1) < 5 * sd_of_sd
    return right_scale and bool(stats.kstest(sample.double().numpy(), "norm").pvalue > 1e-6)


@pytest.mark.parametrize("secure", [True, False])
def test_noise_is_standard_normal(path, secure):
    stream = RandomStream.secure() if secure else RandomStream.seeded(5)
    sample = stream.normal(DRAWS)
    assert _looks_standard_normal(sample)
    assert abs(float(sample.mean())) < 5 / math.sqrt(DRAWS)
    assert abs(float(sample.double().pow(4).mean()) - 3) < 5 * math.sqrt(96 / DRAWS)


@pytest.mark.parametrize("factor", [2 / 3, 0.97, 1.03, 1.5])
def test_the_test_of_noise_can_fail(factor):
    assert not _looks_standard_normal(factor * RandomStream.seeded(6).normal(DRAWS))


def test_tails_are_there(path):
    """4 million draws: the share beyond 4 and 4.5 standard deviations is the normal one."""
    sample = RandomStream.seeded(8).normal(1 << 22).abs()
    for bound in (3.0, 4.0, 4.5):
        expected = len(sample) * 2 * stats.norm.sf(bound)
        assert abs(int((sample > bound).sum()) - expected) < 5 * math.sqrt(expected)


def test_the_tail_reaches_nine_standard_deviations(path):
    """The rarest words of the keystream give the farthest numbers, finite ones; the commonest end is 0."""
    transform = native.box_muller if path == "native" else _box_muller
    radius = torch.tensor([0, (1 << 32) - 1, -1, (1 << 63) - 1])
    out = torch.empty(8)
    transform(radius, torch.zeros(4, dtype=torch.int32), out=out)
    assert torch.isfinite(out).all()
    assert 9.2 < float(out[0]) < 9.5
    assert 6.5 < float(out[1]) < 6.7
    assert out[2].abs() < 1e-3
    assert out[3].abs() < 1e-3


def test_noise_is_uncorrelated_across_draws_and_streams(path):
    n = DRAWS
    first, second = RandomStream.seeded(1, 0), RandomStream.seeded(1, 1)
    a, b, c = first.normal(n), first.normal(n), second.normal(n)
    halves = a[: n // 2], a[n // 2 : 2 * (n // 2)]
    for x, y in (
        (a, b),
        (a, c),
        (a[:-1], a[1:]),
        halves,
        (a.square(), b.square()),
        (halves[0].square(), halves[1].square()),
    ):
        assert abs(float(torch.corrcoef(torch.stack((x, y)))[0, 1])) < 5 / math.sqrt(len(x))


@pytest.mark.skipif(not native.is_available(), reason="the native kernels are not built on this machine")
def test_native_and_torch_noise_agree():
    fast = RandomStream.seeded(3, 4).normal(200_001)
    with native.disabled():
        slow = RandomStream.seeded(3, 4).normal(200_001)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=2e-6)


def test_counts_and_order():
    for count in (0, 1, 2, 7, 65_536, 65_537):
        assert RandomStream.seeded(0).normal(count).shape == (count,)
        assert RandomStream.seeded(0).uniform(count).shape == (count,)


def test_seeded_streams_repeat_and_differ_by_every_part_of_the_path():
    draws = {
        path: tuple(RandomStream.seeded(*path).normal(4).tolist())
        for path in [(1,), (1, 0), (0, 1), (1, 0, 0), (-1,), (11,), (1, 1)]
    }
    assert len(set(draws.values())) == len(draws)
    assert tuple(RandomStream.seeded(1, 0).normal(4).tolist()) == draws[1, 0]


def test_secure_streams_never_repeat():
    assert not torch.equal(RandomStream.secure().normal(8), RandomStream.secure().normal(8))
    assert RandomStream.secure().is_secure
    assert not RandomStream.seeded(0).is_secure


def _fresh() -> RandomStream:
    return RandomStream.secure()


def _after_a_fork() -> RandomStream:
    stream = RandomStream.secure()
    stream._generation = object()  # as a forked process finds it
    return stream


@pytest.mark.parametrize("make", [_fresh, _after_a_fork])
def test_many_secure_streams_are_all_different(make):
    """20,000 keys out of fewer than 2^27 would collide almost surely."""
    assert len({make()._words(4).numpy().tobytes() for _ in range(20_000)}) == 20_000


@pytest.mark.parametrize("make", [_fresh, _after_a_fork])
def test_all_256_bits_of_a_secure_key_come_from_the_system(make, monkeypatch):
    """No collision shows how few of a large number of keys are used; each bit of entropy must change the stream."""
    asked = []

    def stream_from(entropy: bytes) -> bytes:
        monkeypatch.setattr(os, "urandom", lambda count: asked.append(count) or entropy[:count])
        return make()._words(4).numpy().tobytes()

    zero = bytes(32)
    changed = {stream_from((1 << bit).to_bytes(32, "little")) for bit in range(256)}
    assert len(changed | {stream_from(zero)}) == 257
    assert set(asked) == {32}


def test_a_result_is_not_overwritten_by_the_next_draw():
    stream = RandomStream.seeded(2)
    first = stream.uniform(10)
    kept = first.clone()
    stream.uniform(10)
    stream.normal(10)
    assert torch.equal(first, kept)


def test_uniform_numbers():
    sample = RandomStream.seeded(4).uniform(DRAWS)
    assert sample.dtype == torch.float64
    assert float(sample.min()) >= 0
    assert float(sample.max()) < 1
    assert stats.kstest(sample.numpy(), "uniform").pvalue > 1e-6


@pytest.mark.parametrize("act", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_stream_cannot_be_copied_or_stored(act):
    with pytest.raises(TypeError, match="RandomStream"):
        act(RandomStream.secure())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_does_not_repeat_the_noise():
    stream = RandomStream.secure()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write_end, stream._words(4).numpy().tobytes())
        os._exit(0)
    os.waitpid(pid, 0)
    child = os.read(read_end, 16)
    assert len(child) == 16
    assert child != stream._words(4).numpy().tobytes()


_IN_A_NAMESPACE = """
import ctypes, os, sys
from alidpfl.dpsgd import RandomStream, randomness

NEW_PID, NEW_USER, NO_NAMESPACE = 0x20000000, 0x10000000, 77
libc = ctypes.PyDLL(None)  # keeps Python's lock, as a fork inside an extension does

def fork_as_process_1(fork):
    if libc.unshare(NEW_PID) != 0 and libc.unshare(NEW_USER | NEW_PID) != 0:
        os._exit(NO_NAMESPACE)
    return fork()

def end_with(child):
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status))

if "no-page" in sys.argv:  # as on another system or an older Linux
    randomness._FORKS._page = None
if child := fork_as_process_1(os.fork):
    end_with(child)
stream = RandomStream.secure()  # in process 1 of a namespace
read_end, write_end = os.pipe()
fork = libc.fork if "c-fork" in sys.argv else os.fork
grandchild = fork() if "same-namespace" in sys.argv else fork_as_process_1(fork)
if grandchild == 0:
    assert (os.getpid() == 1) == ("same-namespace" not in sys.argv)
    os.write(write_end, stream.words(2).tobytes())
    os._exit(0)
_, status = os.waitpid(grandchild, 0)
if status == 0:
    os._exit(3 if os.read(read_end, 16) == stream.words(2).tobytes() else 0)
os._exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("how", ["c-fork", "no-page", "c-fork no-page same-namespace"])
def test_each_sign_of_a_fork_is_enough(how):
    """In a new PID namespace, parent and child are both process 1: their numbers do not tell them apart."""
    done = subprocess.run(
        [sys.executable, "-c", _IN_A_NAMESPACE, *how.split()], capture_output=True, text=True, check=False
    )
    if done.returncode == 77:
        pytest.skip("this system does not let us make PID namespaces")
    assert done.returncode == 0, done.stderr


def test_threads_that_share_a_stream_never_get_the_same_noise():
    stream = RandomStream.seeded(3)
    with ThreadPoolExecutor(4) as pool:
        draws = list(pool.map(lambda _: tuple(stream.normal(64).tolist()), range(400)))
    assert len(set(draws)) == 400
    assert len({number for draw in draws for number in draw[:4]}) == 1600


def test_seeds_must_be_integers():
    for bad in (1.5, "1", None, True):
        with pytest.raises(ConfigError, match="seed and path"):
            RandomStream.seeded(bad)


# ---- Poisson sampling

RECORDS, RATE, BATCHES = 1000, 0.015, 20_000


def _inclusion_counts(batches) -> tuple[torch.Tensor, torch.Tensor]:
    counts, sizes = torch.zeros(RECORDS), []
    for batch in batches:
        counts[batch] += 1
        sizes.append(len(batch))
    return counts, torch.tensor(sizes, dtype=torch.float64)


def _size_variance_is_binomial(sizes) -> bool:
    expected = RECORDS * RATE * (1 - RATE)
    return abs(float(sizes.var()) - expected) < 5 * expected * math.sqrt(2 / len(sizes))


def test_poisson_sampling_includes_every_record_at_the_rate():
    stream = RandomStream.secure()
    counts, sizes = _inclusion_counts(poisson_sample(RECORDS, RATE, stream) for _ in range(BATCHES))
    sd = math.sqrt(BATCHES * RATE * (1 - RATE))
    assert float((counts - BATCHES * RATE).abs().max()) < 5 * sd
    assert _size_variance_is_binomial(sizes)


def test_the_test_of_sampling_refuses_shuffled_batches():
    generator = torch.Generator().manual_seed(0)
    size = int(RECORDS * RATE)
    _, sizes = _inclusion_counts(torch.randperm(RECORDS, generator=generator)[:size] for _ in range(200))
    assert not _size_variance_is_binomial(sizes)


def test_inclusions_are_independent():
    """Pairs of neighbouring records and neighbouring batches: as often together as the rate says."""
    stream = RandomStream.seeded(9)
    hits = torch.zeros(4000, RECORDS, dtype=torch.bool)
    for i in range(4000):
        hits[i, poisson_sample(RECORDS, RATE, stream)] = True
    for together in ((hits[:, 1:] & hits[:, :-1]).sum(), (hits[1:] & hits[:-1]).sum()):
        expected = hits.numel() * RATE**2
        assert abs(int(together) - expected) < 5 * math.sqrt(expected)


def test_sampling_edges():
    stream = RandomStream.seeded(0)
    assert poisson_sample(0, 0.5, stream).tolist() == []
    assert poisson_sample(3, 1.0, stream).tolist() == [0, 1, 2]
    assert poisson_sample(1000, 1e-12, stream).tolist() == []


@pytest.mark.parametrize("rate", [0, -0.1, 1.4, math.nan, math.inf])
def test_a_bad_rate_is_named(rate):
    with pytest.raises(ConfigError, match=rf"sample_rate={rate}.*\(0, 1\]"):
        poisson_sample(10, rate, RandomStream.seeded(0))


def test_a_negative_number_of_records_is_named():
    with pytest.raises(ConfigError, match="num_records=-1"):
        poisson_sample(-1, 0.5, RandomStream.seeded(0))


def test_a_record_s_chance_is_never_above_the_rate():
    """Coins are multiples of 2^-53, and 0.1 is none: the largest one below it must lose, or the chance exceeds 0.1."""
    largest = math.floor(0.1 * 2**53) / 2**53
    assert largest < 0.1

    class Coins(RandomStream):
        def uniform(self, count):
            return torch.tensor([largest, largest - 2**-53], dtype=torch.float64)

    assert poisson_sample(2, 0.1, Coins(bytes(32), secure=False)).tolist() == [1]
