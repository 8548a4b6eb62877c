"""The built-in grids, and the paper's figures."""

import dataclasses
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from alidpfl.cli.account import PAPER_STEPS
from alidpfl.errors import ConfigError
from alidpfl.privacy import PrivacyBudget, max_steps
from reproduction.grid import NAMES, SEARCH, cells, load_grid
from reproduction.paper import ITERATIONS, published
from reproduction.results import RESULTS, known_in
from reproduction.tuned import chosen

from .made import made_result

TABLES = [name for name in NAMES if name != SEARCH]
ROOT = Path(__file__).parents[2]
SHARED = Path(__file__).parents[3] / "shared" / "design" / "paper_tables.json"


@pytest.mark.skipif(not SHARED.exists(), reason="the design folder is not there")
def test_the_figures_are_those_of_the_paper():
    for cell in json.loads(SHARED.read_text()):
        match = {key: cell[key] for key in ("rounds_over_steps", "partition") if key in cell}
        assert published(cell["table"], cell["dataset"], match, cell["method"]) == cell["accuracy"]


def test_the_command_account_has_the_papers_steps():
    assert PAPER_STEPS == ITERATIONS


@pytest.mark.parametrize("name", TABLES)
def test_every_published_cell_is_in_a_grid_once(name):
    grid = load_grid(name)
    found = Counter()
    for dataset in grid.datasets:
        for column in grid.columns:
            for method in grid.methods:
                found[published(name, dataset, column.match, method.name) is not None] += 1
    assert found[True] == (32 if name == "heterogeneity" else 96)
    ours = {method.name for method in grid.methods if method.name.startswith("ours:")}
    assert ours == {"ours:ratio", "ours:ali", "ours:corrected"}
    assert found[False] == len(ours) * len(grid.datasets) * len(grid.columns)


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_is_a_valid_configuration_of_its_own(name):
    grid = load_grid(name)
    listed = list(cells(grid, datasets=grid.datasets[:1], columns=[grid.columns[2].name]))
    assert len(listed) == 10 * 2 + 1  # adap_dpfl has one accountant
    assert len({cell.key for cell in listed}) == len(listed)
    for cell in listed:
        config = cell.config
        assert config.data.name == cell.dataset
        assert config.privacy.accountant == cell.accountant
        assert (config.privacy.sample_rate, config.privacy.noise_multiplier) == (0.015, 1.1)
        assert bool(config.privacy.unsafe) == (cell.method == "ali_dpfl")
    steps = {cell.method: cell.config.local_steps for cell in listed if cell.method.startswith("fedavg_dp")}
    assert steps == {f"fedavg_dp:tau={tau}": tau for tau in (1, 2, 3, 5, 10)}


@pytest.mark.parametrize(
    ("name", "max_rounds", "expected"),
    [
        ("small", 158, [2, 1, 0.5, 0.2]),
        # The paper's own q, σ and accountant contradict its names of these columns: docs/how-to/reproduce.md
        ("medium", 231, [1.33, 0.74, 0.39, 0.15]),
        ("large", 317, [1.01, 0.53, 0.28, 0.105]),
    ],
)
def test_rounds_over_steps_of_the_columns(name, max_rounds, expected):
    """R_s over the steps that the paper's accountant pays for is about the column's name in Table I only."""
    grid = load_grid(name)
    ratios = []
    for cell in cells(grid, datasets=["mnist"], methods=["fedavg_dp:tau=1"], accountants=["rdp-paper"]):
        assert cell.config.federation.max_rounds == max_rounds
        privacy, rounds = cell.config.privacy, cell.config.federation.max_rounds
        budget = PrivacyBudget(epsilon=privacy.epsilon, delta=privacy.delta)
        ratios.append(rounds / max_steps(budget, privacy.sample_rate, 1.1, accountant="rdp-paper"))
    assert ratios == pytest.approx(expected, rel=0.1 if name == "small" else 0.02)


def test_seeds_come_one_after_the_other():
    listed = list(cells(load_grid("small"), seeds=2, datasets=["mnist"]))
    assert [cell.seed for cell in listed] == sorted(cell.seed for cell in listed)
    assert len({cell.key for cell in listed}) == len(listed)


def test_what_does_not_matter_does_not_change_the_key():
    cell = next(cells(load_grid("small")))
    changed = dataclasses.replace(cell, settings=(*cell.settings, ("run.processes", 1), ("data.data_dir", "/x")))
    other = dataclasses.replace(cell, settings=(*cell.settings, ("method.learning_rate", 0.123)))
    assert changed.key == cell.key != other.key


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"datasets": ["mnst"]}, "did you mean 'mnist'"),
        ({"methods": ["ours:ratioo"]}, "did you mean 'ours:ratio'"),
        ({"columns": ["R_s = R_c/3"]}, "column"),
        ({"accountants": ["pdl"]}, "pld"),
    ],
)
def test_the_nearest_choice_is_named(choice, says):
    with pytest.raises(ConfigError, match=says):
        list(cells(load_grid("small"), **choice))


def test_a_grid_that_does_not_exist(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'small'"):
        load_grid("smal")
    with pytest.raises(ConfigError, match=r"own\.toml"):
        load_grid(str(tmp_path / "own.toml"))
    (tmp_path / "own.toml").write_text("datasets = ['mnist']")
    with pytest.raises(ConfigError, match="title"):
        load_grid(str(tmp_path / "own.toml"))
    for content in ("title = ", "title = 'x'", "[[columns]]\nnme = 'x'"):
        (tmp_path / "own.toml").write_text(content)
        with pytest.raises(ConfigError, match=r"own\.toml"):
            load_grid(str(tmp_path / "own.toml"))


def test_a_built_in_grid_can_be_loaded_by_its_file():
    assert load_grid(str(ROOT / "reproduction" / "grids" / "small.toml")) == load_grid("small")


def test_no_other_grid_can_have_the_name_of_a_built_in_grid(tmp_path):
    """It would be shown next to the paper's figures, and write to the results of that table."""
    own = (ROOT / "reproduction" / "grids" / "small.toml").read_text().replace("0.015", "0.02")
    (tmp_path / "small.toml").write_text(own)
    with pytest.raises(ConfigError, match=r"small\.toml.*rename"):
        load_grid(str(tmp_path / "small.toml"))


def test_the_grid_in_the_docs_is_one(tmp_path):
    (content,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/how-to/reproduce.md").read_text(), re.DOTALL)
    (tmp_path / "mine.toml").write_text(content)
    listed = list(cells(load_grid(str(tmp_path / "mine.toml"))))
    assert [(cell.method, cell.accountant) for cell in listed] == [("ratio", "pld"), ("ali", "rdp")] * 2
    assert [cell.config.privacy.sample_rate for cell in listed] == [0.02, 0.02, 0.08, 0.08]
    assert [cell.config.method.learning_rate for cell in listed[:2]] == [2.0, 4.0]
    (tmp_path / "mine.toml").write_text(content.replace('"q = 0.02"', '"q = 0.02, small"'))
    with pytest.raises(ConfigError, match="name"):
        load_grid(str(tmp_path / "mine.toml"))


# ------------------------------------------------------------------------------------------------------------- tuning


def test_the_search_never_sees_the_test_set_nor_a_seed_of_the_tables():
    for cell in cells(load_grid(SEARCH), seeds=1):
        config = cell.config
        assert config.run.evaluate_on == "validation"
        assert config.data.validation == 0.1
        assert config.run.seed == 100


def test_the_search_is_the_same_for_every_method_of_every_table():
    search = load_grid(SEARCH)
    for name in TABLES:
        rows = [method.name for method in search.methods if method.variant_of is None]
        assert [method.name for method in load_grid(name).methods] == rows
        assert {method.variant_of for method in search.methods} - {None} <= set(rows)
        searched = {method.name: method for method in search.methods}
        for method in load_grid(name).methods:  # Adap DP-FL computes its public loss on the held-out part
            expected = method.settings | {"data.validation": 0.1} if method.name == "adap_dpfl" else method.settings
            assert searched[method.name].settings == expected
            assert searched[method.name].accountants == method.accountants
        for row in search.methods:
            if row.variant_of is not None:
                assert row.settings == searched[row.variant_of].settings
                assert row.own.keys() == searched[row.variant_of].own.keys() or not searched[row.variant_of].own
        assert set(load_grid(name).datasets) <= set(search.datasets)


def test_the_tables_use_what_the_search_found():
    found = chosen(load_grid(SEARCH), known_in(RESULTS, [SEARCH]))
    for name in TABLES:
        grid = load_grid(name)
        assert grid.tuned == found
        for cell in cells(grid):
            for key, value in found.get(cell.dataset, {}).get(cell.method, {}).items():
                assert dict(cell.settings)[key] == value


def test_the_best_is_chosen_only_if_all_were_tried():
    search = load_grid(SEARCH)
    tried = list(cells(search, datasets=["mnist"], methods=["ours:ratio", "ours:ali"]))
    known = {cell.key: made_result(cell, 90.0 - abs(number - 2)) for number, cell in enumerate(tried[:-1])}
    (one,) = chosen(search, known)["mnist"].items()
    best = max(tried[:-1], key=lambda cell: (cell.method == "ours:ratio", known[cell.key].accuracy))
    assert one == ("ours:ratio", {key: dict(best.settings)[key] for key in search.columns[0].settings})


def test_a_variant_of_a_method_competes_with_it():
    search = load_grid(SEARCH)
    rows = [method for method in search.methods if "adap_dpfl" in (method.name, method.variant_of)]
    tried = list(cells(search, datasets=["mnist"], methods=[method.name for method in rows]))
    known = {cell.key: made_result(cell, 90.0 - abs(number - 4)) for number, cell in enumerate(tried[:-1])}
    assert "mnist" not in chosen(search, known)
    known[tried[-1].key] = made_result(tried[-1], 10.0)
    best = tried[4]
    (own,) = [method.own for method in rows if method.name == best.method]
    assert own
    for key, value in chosen(search, known)["mnist"]["adap_dpfl"].items():
        assert dict(best.settings)[key] == value
    assert own.items() <= chosen(search, known)["mnist"]["adap_dpfl"].items()
