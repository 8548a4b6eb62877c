"""The server trusts nobody, and averages as it should."""

import pytest
import torch

from alidpfl.errors import ConfigError
from alidpfl.federation import server
from alidpfl.federation.server import ServerSettings, ServerState


def test_shares_follow_the_sizes_and_respect_the_cap():
    sizes = {0: 10, 1: 30, 2: 60}
    assert server.shares(sizes, [0, 1, 2], 1.0) == pytest.approx([0.1, 0.3, 0.6])
    assert server.shares(sizes, [0, 2], 1.0) == pytest.approx([1 / 7, 6 / 7])
    assert server.shares(sizes, [0, 1, 2], 0.5) == pytest.approx([0.125, 0.375, 0.5])
    assert server.shares(sizes, [0, 1, 2], 0.4) == pytest.approx([0.2, 0.4, 0.4])  # the second is over it in turn
    assert server.shares(sizes, [2, 0, 1], 0.4) == pytest.approx([0.4, 0.2, 0.4])
    assert server.shares(sizes, [0, 1, 2], 0.3) == pytest.approx([1 / 3] * 3)
    assert server.shares(sizes, [0, 1, 2], 1.0, 2.0) == pytest.approx([1 / 46, 9 / 46, 36 / 46])
    assert server.shares(sizes, [0, 1, 2], 1.0, 0.0) == pytest.approx([1 / 3] * 3)
    assert server.shares(sizes, [0, 1, 2], 0.5, 2.0) == pytest.approx([0.05, 0.45, 0.5])
    huge = {0: 1 << 40, 1: 10, 2: 2000}  # a node that lies about its size
    assert server.shares(huge, [0, 1, 2], 0.5, 2.0) == pytest.approx(
        [0.5, 0.5 * 100 / 4_000_100, 0.5 * 4e6 / 4_000_100]
    )


def test_no_lie_about_its_size_gives_a_client_more_than_the_cap():
    shares = server.shares({0: 65, 1: 1 << 40, 2: 65}, [0, 1, 2], 0.4)
    assert shares == pytest.approx([0.3, 0.4, 0.3])


def test_false_sizes_count_for_at_most_a_multiple_of_the_median():
    honest = {client: 1000 + client for client in range(7)}
    lies = {**honest, 7: 1 << 40, 8: 1 << 41, 9: 1 << 42}
    assert server.counted_sizes(lies, None) == lies
    counted = server.counted_sizes(lies, 3.0)
    assert {client: counted[client] for client in honest} == honest
    assert [counted[client] for client in (7, 8, 9)] == [3 * 1004] * 3
    shares = server.shares(counted, list(lies), 1.0)
    assert sum(shares[7:]) == pytest.approx(9 * 1004 / (9 * 1004 + sum(honest.values())))


def test_plain_steps_momentum_and_average_by_hand():
    plain = ServerSettings()
    state = server.step(ServerState(params=torch.tensor([1.0])), torch.tensor([0.5]), plain)
    assert state.released(plain).tolist() == [1.5]

    heavy = ServerSettings(momentum=0.5)
    state = ServerState(params=torch.tensor([0.0]))
    for _ in range(3):  # velocities 1, 1.5, 1.75
        state = server.step(state, torch.tensor([1.0]), heavy)
    assert state.params.tolist() == [4.25]

    averaged = ServerSettings(averaging=0.5)
    state = ServerState(params=torch.tensor([0.0]))
    state = server.step(state, torch.tensor([2.0]), averaged)
    assert state.released(averaged).tolist() == [2.0]  # one model: its average is itself
    state = server.step(state, torch.tensor([2.0]), averaged)
    assert state.released(averaged).tolist() == pytest.approx([(0.25 * 2 + 0.5 * 4) / 0.75])
    assert state.params.tolist() == [4.0]


@pytest.mark.parametrize(
    "setting",
    [
        {"momentum": 1.0},
        {"averaging": -0.1},
        {"quorum": 0.0},
        {"max_client_weight": 1.5},
        {"weight_exponent": 2.1},
        {"max_size_ratio": 0.5},
        {"signal_limit": 0.9},
        {"trim": 0.5},
        {"aggregation": "'meen'"},
    ],
)
def test_settings_out_of_range_are_named(setting):
    ((name, value),) = setting.items()
    with pytest.raises(ConfigError, match=f"{name}={value}"):
        ServerSettings(**{name: value.strip("'") if isinstance(value, str) else value})


@pytest.mark.parametrize(
    ("quorum", "cap", "clients", "least"),
    [(0.5, 1.0, 10, 5), (0.5, 1.0, 1, 1), (0.5, 0.5, 2, 2), (0.5, 0.5, 3, 2), (0.5, 0.25, 5, 4), (0.5, 0.1, 4, 4)],
)
def test_a_quorum_is_large_enough_for_the_cap(quorum, cap, clients, least):
    settings = ServerSettings(quorum=quorum, max_client_weight=cap)
    assert settings.least_updates(clients) == least
    sizes = {client: 2**40 if client == 0 else 1000 for client in range(clients)}
    found = server.shares(sizes, range(least), cap)
    assert max(found) <= max(cap, 1 / clients) * (1 + 1e-12)
