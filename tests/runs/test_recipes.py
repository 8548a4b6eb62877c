"""The recipes: on the terms that they claim, with settings that exist, and on real data as good as they say."""

from pathlib import Path

import pytest

from alidpfl import execute
from alidpfl.runs import load_config
from alidpfl.runs.prepare import make_parts

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("best-*.toml"))


def test_there_is_one_for_each_data_set():
    assert [path.stem for path in RECIPES] == ["best-cifar10", "best-fashion-mnist", "best-mnist"]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_terms_are_those_of_the_paper(path):
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
    assert ledger.max_steps == config.training_rounds  # σ is the least that pays for them


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.parametrize(
    ("path", "least"), list(zip(RECIPES, (64.0, 88.0, 98.2), strict=True)), ids=lambda x: str(x)[-12:]
)
def test_real_data(path, least, tmp_path, data_dir):
    outcome = execute(load_config(path, [f'data.data_dir="{data_dir}"', "seed=3"]), tmp_path / "run")
    assert outcome.epsilon <= 2.0
    assert outcome.covers_everything
    assert outcome.accuracy > least
