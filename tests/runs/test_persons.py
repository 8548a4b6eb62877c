"""Runs that protect persons, from the command to all files that they leave."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from safetensors import safe_open

from alidpfl.config import load_config
from alidpfl.errors import ConfigError, DataError
from alidpfl.privacy import GaussianFilter, PrivacyBudget, SampledGaussian, group_epsilon
from alidpfl.privacy.gaussian_dp import gaussian_epsilon
from alidpfl.reporting import RunSnapshot
from alidpfl.reporting.report_page import caveats, report_page
from alidpfl.runs.auto_plan import planned
from alidpfl.runs.data import evaluates_privately, load_data, simulation_data
from alidpfl.runs.execute import Outcome
from alidpfl.runs.prepare import prepare
from alidpfl.runs.statistics import table_statistics
from tests.data.test_persons import person_file
from tests.runs.command import alidpfl
from tests.tables.parts import TOML, table

QUICK = ("privacy.accountant=rdp", "federation.max_rounds=3", "run.processes=1", "model.name=linear")


@pytest.fixture
def npz(tmp_path):
    """Two clients of ten persons with four records each, and public test records."""
    folder = tmp_path / "npz"
    folder.mkdir()
    for name in ("a", "b", "test"):
        person_file(folder / f"{name}.npz")
    return ("data.name=npz", f"data.data_dir={folder}", "data.num_classes=2", "sample_rate=0.3", "delta=0.001", *QUICK)


@pytest.fixture
def tables(tmp_path):
    """Two hospitals whose patients have one to five rows."""
    (tmp_path / "schema.toml").write_text('person = "patient"\n' + TOML)
    files = []
    for number, name in enumerate(("north", "south")):
        random = np.random.default_rng(number)
        patients = [f"p{one}" for one in np.repeat(np.arange(60), random.integers(1, 6, 60))]
        files.append(tmp_path / f"{name}.csv")
        rows = table(len(patients), seed=number).with_columns(patient=pl.Series(patients))
        rows.sample(fraction=1.0, shuffle=True, seed=number).write_csv(files[-1])
    own = (f"data.schema_file={tmp_path / 'schema.toml'}", f"data.files={json.dumps([str(path) for path in files])}")
    return ("data.name=table", *own, "run.seed=0", "sample_rate=0.2", "delta=0.001", *QUICK)


def loaded(settings, *changes):
    config = load_config(overrides=[*settings, *changes])
    dataset = load_data(config)
    return config, dataset, simulation_data(config, dataset)


def run(folder, settings, *changes):
    done = alidpfl("run", *(part for one in (*settings, *changes) for part in ("--set", one)), "--out", folder)
    assert done.exit_code == 0, done.stderr
    return done


class TestNumbers:
    def test_sizes_plans_and_divisors_count_persons(self, npz):
        config, _, data = loaded(npz, "unit=person", "max_records=2")
        assert data.sizes == [10, 10]
        assert (data.max_records, config.max_records) == (2, 2)
        assert [len(rows) for rows in data.clients] == [40, 40]
        assert prepare(config).federation._sizes == {0: 10, 1: 10}
        assert loaded(npz)[2].sizes == [40, 40]

    def test_the_planner_plans_for_persons(self, npz):
        settings = [one for one in npz if not one.startswith("sample_rate")]
        persons, records = (
            planned(load_config(overrides=[*settings, *changes]), held_out_key=None)[0].privacy
            for changes in (("unit=person",), ())
        )
        assert persons.noise_multiplier != records.noise_multiplier
        assert persons.unit == "person"

    def test_delta_is_held_against_the_number_of_persons(self, npz):
        assert prepare(load_config(overrides=[*npz, "delta=0.05"])).weakness is not None
        assert prepare(load_config(overrides=[*npz, "delta=0.05", "unit=person"])).weakness is None
        assert "10 persons" in prepare(load_config(overrides=[*npz, "delta=0.1", "unit=person"])).weakness

    def test_validation_takes_whole_persons(self, npz):
        _, _, data = loaded(npz, "unit=person", "data.validation=0.2")
        assert sum(data.sizes) == 16
        assert len(data.evaluation["validation"][0]) == 16
        assert sum(len(rows) for rows in data.clients) == 64
        for groups in data.groups:
            assert groups.offsets.diff().tolist() == [4] * len(groups)

    def test_the_persons_of_a_table_are_those_of_its_column(self, tables):
        _, dataset, data = loaded(tables, "unit=person", "randomness=secure")
        held_out = [len(own.unique()) for own in dataset.held_out_persons]
        assert all(trained + apart == 60 for trained, apart in zip(data.sizes, held_out, strict=True))
        assert [len(part) for part in data.held_out] == held_out
        assert {part.max_records for part in data.held_out} == {4}


class TestRefusals:
    def test_data_without_persons(self, tmp_path, npz):
        path = tmp_path / "npz" / "a.npz"
        for name in ("a", "b", "test"):
            arrays = dict(np.load(path.with_stem(name)))
            np.savez(path.with_stem(name), x=arrays["x"], y=arrays["y"])
        with pytest.raises(ConfigError, match=r'privacy\.unit="person": npz does not say.*array `person`'):
            loaded(npz, "unit=person")

    def test_a_schema_without_persons(self, tmp_path, tables):
        (tmp_path / "schema.toml").write_text('extra_columns = "ignore"\n' + TOML)
        with pytest.raises(ConfigError, match=r'schema\.toml: person = "patient"'):
            loaded(tables, "unit=person")

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            (("unit=person",), "strokes does not say which records"),
            (("max_records=3",), "privacy.max_records=3 must be left out"),
            (("unit=person", "data.name=npz", "model.name=scatter_linear"), "scatter_linear"),
            (("unit=person", "data.name=npz", "data.partition=iid"), "several clients"),
        ],
    )
    def test_settings_that_contradict_each_other_need_no_data(self, changes, told):
        with pytest.raises(ConfigError, match=told):
            load_config(overrides=changes)

    def test_a_run_does_not_go_on_with_another_unit(self, tmp_path, npz):
        run(tmp_path / "run", npz, "unit=person")
        path = tmp_path / "run" / "config.toml"
        (tmp_path / "run" / "summary.json").unlink()
        path.write_text(path.read_text().replace("max_records = 4", "max_records = 5"))
        done = alidpfl("run", "--resume", tmp_path / "run")
        assert done.exit_code == 2
        assert "privacy.max_records was 4 and is 5" in done.stderr

    def test_a_run_does_not_go_on_with_other_persons(self, tmp_path, npz):
        run(tmp_path / "run", npz, "unit=person")
        (tmp_path / "run" / "summary.json").unlink()
        path = tmp_path / "npz" / "a.npz"
        arrays = dict(np.load(path))
        arrays["person"][:2] = arrays["person"][:2][::-1]
        np.savez(path, **arrays)
        done = alidpfl("run", "--resume", tmp_path / "run")
        assert done.exit_code == 2
        assert "clients was" in done.stderr


class TestWhatIsTold:
    def test_of_persons(self, tmp_path, npz):
        done = run(tmp_path / "run", npz, "unit=person", "max_records=3")
        assert "for all records of a person at one client" in done.stdout.splitlines()[-1]
        assert "person: all records at one client, at most 3 in a step" in done.stdout
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert (summary["unit"], summary["max_records"], summary["group_epsilon"]) == ("person", 3, {})
        assert summary["protects"] == "ε holds for all records of a person at one client"
        with safe_open(tmp_path / "run" / "model.safetensors", "np") as file:
            metadata = file.metadata()
        assert (metadata["unit"], metadata["max_records"], metadata["protects"]) == ("person", "3", summary["protects"])
        assert "one person, with all her records" in metadata["neighbouring"]
        snapshot = RunSnapshot.load(tmp_path / "run")
        assert any("For a person at two clients, both ε and both δ add up" in one for one in caveats(snapshot))
        assert summary["protects"] in report_page([snapshot])

    def test_of_records_whose_persons_are_known(self, tmp_path, npz):
        done = run(tmp_path / "run", npz)
        assert 'set privacy.unit="person"' in done.stderr
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert summary["unit"] == "record"
        steps = prepare(load_config(overrides=npz)).federation._ledger.max_steps
        spent = SampledGaussian(sample_rate=0.3, noise_multiplier=summary["noise_multiplier"], steps=steps)
        assert summary["group_epsilon"] == {str(k): group_epsilon([spent], 1e-3, k) for k in (2, 5, 30)}
        assert "ε of 30 records" in done.stdout
        page = caveats(RunSnapshot.load(tmp_path / "run"))
        assert any("30 records of one person have ε = " in caveat for caveat in page)

    def test_of_persons_who_may_be_held_out(self, tables):
        """All rows of a person are in one part. Here those that are held out cost more than those that are trained."""
        config = load_config(overrides=[*tables, "sample_rate=1", "noise_multiplier=2.2", "randomness=secure"])
        prepared = prepare(config)
        of_training = prepared.federation._ledger.group_epsilon(30)
        of_evaluations = GaussianFilter.for_budget(config.budget, config.privacy.accountant).noise_multiplier
        expected = gaussian_epsilon(30 / of_evaluations, config.budget.delta)
        assert prepared.group_epsilon["30"] == pytest.approx(expected, rel=1e-9)
        assert of_training < 0.7 * expected

    def test_of_records_alone(self, tmp_path):
        settings = ("data.name=synthetic", "data.clients=3", *QUICK)
        done = run(tmp_path / "run", settings)
        assert "unit" not in (tmp_path / "run" / "config.toml").read_text()
        assert "ε of 30 records" not in done.stdout  # only where the data have persons
        groups = json.loads((tmp_path / "run" / "summary.json").read_text())["group_epsilon"]
        assert 2 < groups["2"] < groups["5"] < groups["30"]
        told = caveats(RunSnapshot.load(tmp_path / "run"))
        assert any("30 records of one person have ε = " in caveat for caveat in told)

    def test_a_summary_that_is_older_than_units_can_be_read(self, tmp_path):
        run(tmp_path / "run", ("data.name=synthetic", "data.clients=3", *QUICK))
        path = tmp_path / "run" / "summary.json"
        old = json.loads(path.read_text())
        for key in ("unit", "max_records", "protects", "group_epsilon", "has_persons"):
            del old[key]
        assert Outcome.from_json(old, path).unit == "record"
        path.write_text(json.dumps(old))
        assert RunSnapshot.load(tmp_path / "run").facts()["unit"] == "record"


class TestTables:
    def test_a_run_with_noised_evaluations_and_standardised_columns(self, tmp_path, tables):
        changes = ("unit=person", "randomness=secure", "data.standardise=private", "evaluation.releases=1")
        done = run(tmp_path / "run", [one for one in tables if one != "run.seed=0"], *changes)
        assert "for all records of a person at one client" in done.stdout
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert summary["covers_everything"]
        assert summary["held_out"]["releases"] == 1

    def test_standardising_takes_the_means_of_persons(self, tables):
        found = {}
        for unit in ("person", "record"):
            changes = (f"unit={unit}", "data.standardise=private", "privacy.statistics_noise=0.01", "epsilon=1e6")
            config = load_config(overrides=[*tables, *changes, "noise_multiplier=1", "sample_rate=0.01"])
            found[unit] = prepare(config)
        config, dataset, data = loaded(tables, "unit=person", "max_records=5")
        means = [
            dataset.train.inputs[groups.rows[first:last]].mean(0)
            for groups in data.groups
            for first, last in zip(groups.offsets[:-1], groups.offsets[1:], strict=True)
        ]
        expected = np.mean([one.numpy() for one in means], axis=0)
        assert np.abs(found["person"].statistics["mean"].numpy() - expected).max() < 0.03  # k = 4 of at most 5 rows
        assert not np.allclose(found["record"].statistics["mean"].numpy(), expected, atol=1e-3)

    def test_statistics_count_persons(self, tmp_path, tables):
        files = [tmp_path / "north.csv", tmp_path / "south.csv"]
        found = table_statistics(
            tmp_path / "schema.toml", files, budget=PrivacyBudget(epsilon=1.0, delta=1e-5), bins=2, unit="person"
        )
        assert {own.rows for own in found.sums.values()} == {60}
        document = found.to_json()
        assert (document["unit"], document["max_records"], document["persons"]) == ("person", 4, 120)
        assert "one person" in document["neighbouring"]
        assert not any("person" in warning for warning in found.warnings)

    def test_the_command_shows_persons(self, tmp_path, tables):
        given = ("statistics", "--schema", tmp_path / "schema.toml", "--data", tmp_path / "north.csv")
        done = alidpfl(*given, "--unit", "person", "--max-records", 2, "-o", tmp_path / "s.json")
        assert "numbers of all 60 persons" in done.stdout
        assert "numbers of all 60 persons" in alidpfl("statistics", "--show", tmp_path / "s.json").stdout
        assert alidpfl(*given, "--max-records", 2).exit_code == 2
        assert alidpfl(*given, "--unit", "people").exit_code == 2

    def test_held_out_persons_are_needed_for_noised_evaluations(self, tables):
        config, dataset, _ = loaded(tables, "unit=person", "evaluation.private=true")
        assert evaluates_privately(config, dataset)
        with pytest.raises(ConfigError, match="held-out records are a person's"):
            simulation_data(config, replace(dataset, held_out_persons=None))
        with pytest.raises(DataError, match="persons"):
            replace(dataset, persons=dataset.persons[:1])
