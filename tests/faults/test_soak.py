"""Rounds enough to see a leak; `make soak` runs two thousand."""

import pytest

from . import soak


@pytest.mark.slow
def test_a_run_of_many_rounds_takes_no_more_at_its_end(tmp_path):
    for one in soak.simulated(300, 100, tmp_path / "run"):
        assert one.most_files - one.fewest_files <= 1, one
        assert one.last_megabytes - one.first_megabytes < 2, one


@pytest.mark.slow
def test_a_vault_of_many_rounds(tmp_path):
    (found,) = soak.through_a_vault(300, tmp_path)
    assert found.most_files - found.fewest_files <= 1
    assert found.last_megabytes - found.first_megabytes < 2


def test_a_leak_would_be_seen():
    def samples(megabytes, files):
        return [soak.Sample(round=k, process="p", megabytes=megabytes(k), files=files(k)) for k in range(0, 2000, 20)]

    (flat,) = soak.growth(samples(lambda k: 30 + (k % 40) / 400, lambda k: 9))
    assert flat.is_flat
    for leak in (samples(lambda k: 30 + k / 500, lambda k: 9), samples(lambda k: 30, lambda k: 9 + k // 100)):
        (found,) = soak.growth(leak)
        assert not found.is_flat
