"""Requests that are refused, and the rounds that their limits allow."""

import pytest

from alidpfl.errors import ConfigError
from alidpfl.models import linear, mlp
from alidpfl.models.cnn import compact_cnn, paper_cnn
from alidpfl.planner import MODEL_SIZES, PlanRequest, affordable_rounds

ASKED = {"epsilon": 2.0, "delta": 1e-5, "clients": 10, "samples": 60_000, "max_rounds": 158}


def test_the_models_are_as_large_as_they_say():
    image = (1, 28, 28)
    built = {"cnn": paper_cnn(image), "compact_cnn": compact_cnn(image), "linear": linear(image, 10)}
    built["mlp"] = mlp(image, 10, 128)
    assert dict(MODEL_SIZES) == {name: sum(p.numel() for p in model.parameters()) for name, model in built.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"delta": 1.0}, "delta=1"),
        ({"clients": 0}, "clients=0"),
        ({"samples": 9}, "samples=9"),
        ({"max_rounds": 0}, "max_rounds=0 must be between 1"),
        ({"max_rounds": -3}, "max_rounds=-3"),
        ({"sample_rate": 64}, "sample_rate=64"),
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1"),
        ({"num_params": 0}, "num_params=0"),
        ({"smallest_client": 6001}, "smallest_client=6001"),
        ({"heterogeneity": -1.0}, "heterogeneity=-1"),
        ({"min_steps": 0}, "min_steps=0"),
        ({"max_epochs": 0.0}, "max_epochs=0"),
        ({"time_limit": 60.0}, "time_limit=60 .*seconds_per_round"),
        ({"curvature": float("nan")}, "curvature=nan"),
        ({"epsilon": 1e-300}, "epsilon=1e-300"),
        ({"delta": 0.999}, "delta=0.999"),
        ({"sample_rate": 1e-200}, "sample_rate=1e-200"),
        ({"noise_multiplier": 1e200}, "noise_multiplier=1e.200"),
        ({"max_rounds": 10**7}, "max_rounds=10000000"),
        ({"min_steps": 10**7}, "min_steps=10000000"),
    ],
)
def test_nonsense_is_refused_by_name_and_value(change, message):
    with pytest.raises(ConfigError, match=message):
        PlanRequest(**(ASKED | change))


def test_bytes_are_both_directions_of_all_clients():
    assert PlanRequest(**ASKED, num_params=582_026).bytes_per_round == 2 * 10 * 4 * 582_026


@pytest.mark.parametrize(
    ("change", "count", "limited_by"),
    [
        ({}, 158, "max_rounds"),
        ({"time_limit": 1300.0, "seconds_per_round": 13.0}, 100, "time_limit"),
        ({"time_limit": 0.3, "seconds_per_round": 0.1}, 3, "time_limit"),  # 0.3 / 0.1 is 2.99...
        ({"time_limit": 1e9, "seconds_per_round": 13.0}, 158, "max_rounds"),
        ({"time_limit": 1e308, "seconds_per_round": 1e-300}, 158, "max_rounds"),
        ({"traffic_limit": 5 * 10**9, "num_params": 582_026}, 107, "traffic_limit"),
    ],
)
def test_rounds_end_at_the_tightest_limit(change, count, limited_by):
    found = affordable_rounds(PlanRequest(**(ASKED | change)))
    assert (found.count, found.limited_by) == (count, limited_by)


def test_traffic_for_less_than_a_round_says_what_would_do():
    request = PlanRequest(**ASKED, num_params=582_026, traffic_limit=10_000_000)
    with pytest.raises(ConfigError) as error:
        affordable_rounds(request)
    for named in ("traffic_limit=10,000,000", "46,562,080 bytes", "125,000 parameters", "2 of the 10 clients"):
        assert named in str(error.value)
    # And each remedy works:
    assert affordable_rounds(PlanRequest(**ASKED, num_params=582_026, traffic_limit=46_562_080)).count == 1
    assert affordable_rounds(PlanRequest(**ASKED, num_params=125_000, traffic_limit=10_000_000)).count == 1
    few = ASKED | {"clients": 2}
    assert affordable_rounds(PlanRequest(**few, num_params=582_026, traffic_limit=10_000_000)).count == 1


def test_time_for_less_than_a_round_says_what_would_do():
    with pytest.raises(ConfigError, match=r"time_limit=5 .*seconds_per_round=13.* 13 s"):
        affordable_rounds(PlanRequest(**ASKED, time_limit=5.0, seconds_per_round=13.0))
