"""The table of hostile clients counts what was measured, and nothing else."""

import json

import pytest

from reproduction.experiments import hostile


@pytest.fixture
def results(tmp_path, monkeypatch):
    path = tmp_path / "hostile.jsonl"
    monkeypatch.setattr(hostile, "RESULTS", path)

    def write(*rows):
        keys = ("split", "seed", "defence", "attack", "hostile", "accuracy")
        path.write_text("".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows))

    return write


def test_each_seed_has_its_own_figure_and_missing_cells_have_a_dash(results):
    results(
        ("iid", 901, "default", "honest", 0, 98.0),
        ("iid", 902, "default", "honest", 0, 97.0),
        ("iid", 902, "none", "honest", 0, 96.0),
        ("recipe", 901, "default", "honest", 0, 50.0),
    )
    first = hostile.table("iid").splitlines()[2]
    assert first.split(" | ")[1:5] == ["0", "98.0 / 97.0", "– / 96.0", "–"]


def test_a_loss_of_more_than_the_allowed_points_is_named(results):
    results(
        ("iid", 901, "default", "honest", 0, 98.0),
        ("iid", 901, "default", "absent", 3, 96.0),
        ("iid", 901, "default", "scaled", 1, 93.0),
        ("iid", 901, "default", "sign_flip", 3, 92.9),
        ("iid", 901, "default", "largest_signal", 3, 10.0),  # not among those that the default is meant to stop
        ("iid", 902, "default", "honest", 0, 90.0),
        ("iid", 902, "default", "sign_flip", 3, 89.0),
    )
    told = hostile.reached("iid")
    assert "in 2 of 3 runs" in told
    assert "in 1 of 1 runs" in " ".join(told.split())  # absence was measured for one of them
    assert f"- {hostile.ATTACKS['sign_flip']}: 3 of 10, seed 901, 5.1 points lost" in told.splitlines()
    assert "seed 902" not in told


def test_every_defence_meets_every_attack_once():
    cells = hostile.cells(list(hostile.SPLITS), hostile.SEEDS)
    assert len(set(cells)) == len(cells) == 2 * 2 * (6 * (1 + 5 * 2) + 2)
    assert cells[0].defence == "default"
