"""The recipes have the budget that they claim, and reach their accuracy on real data."""

from pathlib import Path

import pytest

from alidpfl import execute
from alidpfl.config import load_config
from alidpfl.runs.prepare import make_parts

RECIPES = sorted((Path(__file__).parents[2] / "reproduction" / "recipes").glob("best-*.toml"))
LEAST = {"best-cifar10": 64.0, "best-fashion-mnist": 88.0, "best-mnist": 98.2}


def test_every_data_set_has_a_recipe():
    assert [path.stem for path in RECIPES] == list(LEAST)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_terms_are_those_of_the_paper(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # filters are found from the recipe's folder
    config = load_config(path, ["seed=7"])
    assert config.run.seed == 7
    assert config.privacy.epsilon <= 2.0
    assert config.privacy.delta <= 1e-5
    assert config.federation.max_rounds <= 158
    assert (config.partition, config.data.dirichlet_beta, config.data.clients) == ("dirichlet", 0.05, 10)
    assert config.data.name.replace("_", "-") == path.stem.removeprefix("best-")
    assert config.has_statistics
    assert not config.privacy.unsafe
    ledger = make_parts(config).ledger
    assert ledger.max_steps == config.training_rounds  # σ is the smallest that pays for them


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_real_data(path, tmp_path, data_dir):
    outcome = execute(load_config(path, [f'data.data_dir="{data_dir}"', "seed=3"]), tmp_path / "run")
    assert outcome.epsilon <= 2.0
    assert outcome.covers_everything
    assert outcome.accuracy > LEAST[path.stem]
