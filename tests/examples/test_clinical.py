"""Two real tables, trained by the commands of docs/tutorials/clinical.md: three tasks, each beside a pooled model."""

import pytest

from benchmarks.clinical import BAR, SCHEMAS, TABLES, compare, differences
from examples.clinical.write_tables import write

TRIVIAL = {"auc": 0.5, "r2": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("hospitals")
    write(found)
    return found


def test_every_schema_has_a_comparison():
    assert {path.stem for path in SCHEMAS.glob("*.toml")} == set(TABLES)


# The commands of the tutorial train all three in CI, for two rounds.
@pytest.mark.parametrize(
    "schema", ["flchain", *(pytest.param(name, marks=pytest.mark.slow) for name in ("visits", "care"))]
)
def test_private_training_learns_from_a_real_table(schema, folder):
    """Use a seed that no bar names. One seed has room for its noise: two bars, and a third of the pooled gain."""
    row, metric = compare(schema, folder, seed=100), TABLES[schema][1]
    gained, possible = (row[which][metric] - TRIVIAL[metric] for which in ("private", "pooled"))
    assert possible > 0.05
    assert gained > possible - min(2 * BAR, possible / 3)
    assert row["epsilon"] <= 2


@pytest.mark.slow
@pytest.mark.parametrize("schema", TABLES)
def test_private_training_is_within_the_bar_of_pooled_training(schema, folder):
    found = differences([compare(schema, folder, seed) for seed in range(5)])
    assert sum(found) / len(found) >= -BAR
