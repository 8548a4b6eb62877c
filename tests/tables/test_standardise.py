"""`data.standardise = "private"`: one release by every client, made once, charged first, and a part of the model."""

import json
import math
import shutil

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import alidpfl
from alidpfl.data.table_sums import noised_sum_of_rows
from alidpfl.dpsgd import RandomStream
from alidpfl.dpsgd.step import noise_grid
from alidpfl.errors import BudgetExceededError, ConfigError, DataError
from alidpfl.privacy import GaussianRelease, PrivacyBudget, SampledGaussian, epsilon, noise_multiplier_for
from alidpfl.privacy.gaussian_dp import gaussian_parameter
from alidpfl.runs import execute, load_config, resume
from alidpfl.runs import standardise as module
from alidpfl.runs.auto_plan import planned
from alidpfl.runs.data import load_data
from alidpfl.runs.execute import Listener
from alidpfl.runs.prepare import make_parts, prepare
from alidpfl.runs.tables import default_statistics_noise, gradient_bound, with_table_defaults
from alidpfl.store import RunDirectory
from alidpfl.tables.encode import Encoder
from alidpfl.tables.standardise import RowStandardiser, standardising_layout
from tests.tables.parts import hospitals, schema, table

VISITS = """\
held_out = 0.2
target = { column = "visits", kind = "number", low = 0, high = 30 }

[columns]
age = { kind = "number", low = 0, high = 110 }
creatinine = { kind = "number", low = 0.2, high = 15, scale = "log" }
sex = { kind = "category", values = ["f", "m"] }
smoker = { kind = "flag" }
"""
SETTINGS = {
    "privacy.epsilon": "4.0",
    "privacy.sample_rate": "0.5",
    "federation.max_rounds": "8",
    "method.policy": '"fixed"',
    "run.processes": "1",
    "run.seed": "3",
    "run.evaluate_every": "4",
}


@pytest.fixture
def folder(tmp_path):
    """Two hospitals, in which visits depend on age and smoking."""
    (tmp_path / "schema.toml").write_text(VISITS)
    for number, (name, size) in enumerate((("north", 300), ("south", 500))):
        random = np.random.default_rng(number)
        rows = table(size, number).drop("died")
        mean = 2 + rows["age"].to_numpy() / 10 + 4 * (rows["smoker"] == "yes").to_numpy()
        rows = rows.with_columns(pl.Series("visits", random.poisson(mean)))
        rows.write_csv(tmp_path / f"{name}.csv")
    return tmp_path


def settings(folder, **changes):
    files = json.dumps([str(path) for path in sorted(folder.glob("*.csv"))])
    own = {"data.name": '"table"', "data.schema_file": json.dumps(str(folder / "schema.toml")), "data.files": files}
    values = {**own, **SETTINGS, **{key.replace("__", "."): str(value) for key, value in changes.items()}}
    return with_table_defaults(load_config(overrides=[f"{key}={value}" for key, value in values.items()]))


def encoded(rows=400, seed=0):
    return Encoder(schema()).encode(table(rows, seed)).inputs


def standardiser(noise=0.0, inputs=None):
    inputs, layout = encoded() if inputs is None else inputs, standardising_layout(schema())
    total = layout.vectors(inputs).astype(np.float64).sum(0)
    total += np.random.default_rng(5).normal(size=layout.size) * noise
    return RowStandardiser.from_sum(schema(), total, len(inputs), noise)


class TestRows:
    @given(seed=st.integers(0, 10_000), noise=st.sampled_from([0.0, 5.0, 1e4]), scale=st.sampled_from([1.0, 1e3, 1e30]))
    def test_no_row_is_longer_than_the_bound(self, seed, noise, scale):
        """Whatever was released, and also for inputs that no encoder writes. So C clips nothing."""
        inputs = np.random.default_rng(seed).uniform(-1, 1, (50, schema().width)).astype(np.float32) * np.float32(scale)
        found = standardiser(noise).rows(np.concatenate([inputs, encoded(50, seed)]))
        norms = np.linalg.norm(found.astype(np.float64), axis=1)
        assert norms.max() <= schema().norm_bound * (1 + 1e-6)
        longest = math.sqrt(2) * math.sqrt(norms.max() ** 2 + 1)
        assert longest <= gradient_bound(schema())

    @given(some=st.lists(st.integers(0, 399), min_size=1, max_size=50, unique=True))
    def test_a_row_depends_on_that_row_alone(self, some):
        """To the last bit, wherever it stands: also if another row is added, removed, or not a number."""
        inputs, made = encoded(), standardiser(3.0)
        whole = made.rows(inputs)
        assert whole[some].tobytes() == made.rows(inputs[some]).tobytes()
        hostile = inputs.copy()
        hostile[some] = np.float32(math.inf)
        others = np.setdiff1d(np.arange(len(inputs)), some)
        with np.errstate(invalid="ignore"):
            assert made.rows(hostile)[others].tobytes() == whole[others].tobytes()

    def test_they_are_centred_and_of_like_scale(self):
        inputs, made = encoded(2000), standardiser(inputs=encoded(2000))
        np.testing.assert_allclose(made.mean, inputs.mean(0), atol=1e-6)
        found = made.rows(inputs)
        assert np.abs(found.mean(0)).max() < 0.05  # a few rows are shortened
        assert math.sqrt(np.square(found).sum(1).mean()) == pytest.approx(0.6 * schema().norm_bound, rel=0.05)
        spread = inputs.std(0)
        varied = spread > 0.05
        before, after = spread[varied], found.std(0)[varied]
        assert after.max() / after.min() < 0.8 * before.max() / before.min()

    def test_many_rows_at_once_are_the_same_rows(self, monkeypatch):
        inputs, made = encoded(), standardiser()
        whole = made.rows(inputs)
        monkeypatch.setattr("alidpfl.tables.standardise._ROWS_AT_A_TIME", 7)
        assert made.rows(inputs).tobytes() == whole.tobytes()


class TestReplay:
    def test_neighbouring_tables(self):
        """With frozen noise, the release of a table and of one without a row differ by at most C."""
        layout, random = standardising_layout(schema()), np.random.default_rng(0)
        slack = noise_grid(0.3 * layout.sensitivity) * math.sqrt(layout.size)
        longest = 0.0
        for pair in range(200):
            inputs = encoded(int(random.integers(1, 80)), pair)
            if pair % 4 == 3:
                inputs[0] = random.choice([math.nan, math.inf, -1e30, 1e30], inputs.shape[1])
            gone = int(random.integers(len(inputs))) if pair % 4 < 3 else 0
            first, second = (
                noised_sum_of_rows(rows, None, layout, noise_multiplier=0.3, random=RandomStream.seeded(pair)).double()
                for rows in (inputs, np.delete(inputs, gone, axis=0))
            )
            longest = max(longest, float((first - second).norm()))
        assert 0.8 * layout.sensitivity < longest <= layout.sensitivity * (1 + 1e-6) + slack


class TestRun:
    def test_it_is_the_default_for_numbers_alone(self, folder, tmp_path):
        assert settings(folder).data.standardise == "private"
        assert settings(folder, data__standardise='"none"').data.standardise == "none"
        assert settings(folder, model__name='"mlp"').data.standardise == "none"
        (tmp_path / "classes").mkdir()
        hospitals(tmp_path / "classes")
        assert settings(tmp_path / "classes").data.standardise == "none"
        chosen = settings(folder)
        assert with_table_defaults(chosen) == chosen

    def test_its_noise_takes_a_hundredth_of_the_budget(self, folder):
        """In the square of the parameter of Gaussian privacy. So the training needs 0.5 % more noise, or a bit more."""
        for value in (0.5, 4.0):
            budget = PrivacyBudget(epsilon=value, delta=1e-5)
            sigma = default_statistics_noise(budget)
            assert (1 / sigma / gaussian_parameter(budget)) ** 2 == pytest.approx(0.01, rel=0.01)
            spent = [GaussianRelease(noise_multiplier=sigma)]
            alone, beside = (
                noise_multiplier_for(budget, 0.5, 100, accountant="rdp", already_spent=s) for s in ((), spent)
            )
            assert 1 < beside / alone < 1.01
        assert settings(folder).privacy.statistics_noise == default_statistics_noise(settings(folder).budget)
        assert settings(folder, privacy__statistics_noise="7.5").privacy.statistics_noise == 7.5

    def test_the_release_is_in_the_account_and_in_the_rounds(self, folder):
        config = settings(folder)
        outcome = execute(config, folder / "run")
        release = GaussianRelease(noise_multiplier=config.privacy.statistics_noise)
        noise = noise_multiplier_for(config.budget, 0.5, 7, already_spent=[release])
        assert outcome.noise_multiplier == noise
        assert outcome.rounds == outcome.steps == 7  # of eight: one was for the statistics
        steps = SampledGaussian(sample_rate=0.5, noise_multiplier=noise, steps=7)
        assert epsilon([steps], 1e-5) < outcome.epsilon == epsilon([release, steps], 1e-5) <= 4.0
        schema_, records = Encoder(load_data(config).encoder.schema).schema, RunDirectory.open(folder / "run").records()
        width, params = schema_.width, schema_.width + 1
        assert records[0].bytes == 2 * 4 * (standardising_layout(schema_).size + 2 * width + 2 * params)

    def test_a_plan_pays_for_the_release_too(self, folder):
        config = settings(folder, privacy__accountant='"rdp"')
        free = config.model_copy(
            update={"privacy": config.privacy.model_copy(update={"noise_multiplier": None, "max_steps": None})}
        )
        found, setting = planned(free, held_out_key=None)
        assert make_parts(found).ledger.max_steps == setting.steps
        assert found.privacy.noise_multiplier > noise_multiplier_for(
            config.budget, found.privacy.sample_rate, setting.steps, accountant="rdp"
        )

    def test_the_account_is_opened_before_any_row_is_read(self, folder, monkeypatch):
        monkeypatch.setattr(Encoder, "encode", lambda *_, **__: pytest.fail("rows before the account"))
        with pytest.raises(BudgetExceededError, match="already_spent"):
            prepare(settings(folder, privacy__epsilon="0.3", privacy__statistics_noise="1.0"))

    def test_the_model_takes_raw_rows(self, folder):
        config = settings(folder)
        outcome = execute(config, folder / "run")
        model = alidpfl.load_model(folder / "run")
        test = load_data(config).test
        target = model.encoder.schema.target
        truth = target.low + (test.targets.numpy() + 1) / 2 * (target.high - target.low)
        errors = target.low + (model(test.inputs)[:, 0].numpy(force=True) + 1) / 2 * (target.high - target.low) - truth
        assert math.sqrt((errors**2).mean()) == pytest.approx(outcome.metrics["rmse"], rel=1e-4)
        assert outcome.metrics["r2"] > 0.1
        rows = pl.read_csv(folder / "north.csv")
        whole = model.predict(rows)
        np.testing.assert_allclose(whole[5:6], model.predict(rows[5]), rtol=1e-5)
        inputs = model.standardiser.rows(model.encoder.encode(rows).inputs)
        wanted = model.model(torch.from_numpy(inputs))[:, 0].numpy(force=True).astype(np.float64)
        np.testing.assert_allclose(whole, model.encoder.decode_numbers(wanted), rtol=1e-5)

    @pytest.mark.parametrize("randomness", ["seeded", "secure"])
    def test_every_client_adds_noise_of_its_own(self, folder, monkeypatch, randomness):
        calls, release = [], noised_sum_of_rows

        def watched(inputs, targets, layout, *, noise_multiplier, random, noise, groups, max_records):
            assert (targets, noise, random.is_secure) == (None, "grid", randomness == "secure")
            assert (groups, max_records) == (None, 1)
            calls.append((len(inputs), layout.sensitivity, noise_multiplier, random.normal(4).tolist()))
            return release(inputs, targets, layout, noise_multiplier=noise_multiplier, random=random, noise=noise)

        monkeypatch.setattr(module, "noised_sum_of_rows", watched)
        changes = {
            "run__randomness": f'"{randomness}"',
            "privacy__noise": '"grid"',
            "privacy__statistics_noise": "12.0",
        }
        config = settings(folder, **changes)
        prepare(config, held_out_key=bytes(32))
        sizes = map(len, load_data(config, key=bytes(32)).natural_clients)
        sensitivity = math.sqrt(2 * 2 + 2)
        assert [call[:3] for call in calls] == [(size, pytest.approx(sensitivity), 12.0) for size in sizes]
        assert calls[0][3] != calls[1][3]
        training = {tuple(RandomStream.seeded(3, k, c).normal(4).tolist()) for k in range(8) for c in range(2)}
        assert not training & {tuple(call[3]) for call in calls}

    def test_held_out_rows_are_not_in_the_statistics(self, folder, monkeypatch):
        """What reaches the release are the rows that are trained on, all of them and no others."""
        seen, release = [], noised_sum_of_rows

        def watched(inputs, *rest, **more):
            seen.append(inputs)
            return release(inputs, *rest, **more)

        monkeypatch.setattr(module, "noised_sum_of_rows", watched)
        config = settings(folder)
        prepare(config)
        assert np.concatenate(seen).tobytes() == load_data(config).train.inputs.numpy().tobytes()


class _KilledError(Exception):
    pass


def killer(after):
    def on_round(record, _seconds):
        if record.number == after:
            raise _KilledError

    return Listener(on_round=on_round)


class TestResume:
    @pytest.mark.parametrize("randomness", ["seeded", "secure"])
    def test_the_stored_release_is_used_again(self, folder, monkeypatch, randomness):
        config = settings(folder, run__randomness=f'"{randomness}"')
        with pytest.raises(_KilledError):
            execute(config, folder / "run", listener=killer(after=2))
        kept = RunDirectory.open(folder / "run").statistics()
        monkeypatch.setattr(module, "noised_sum_of_rows", lambda *_, **__: pytest.fail("released twice"))
        assert resume(folder / "run").epsilon <= 4.0
        tensors, _ = RunDirectory.open(folder / "run").read_model()
        assert kept.keys() == {"mean", "scale"}
        for name, values in kept.items():
            assert torch.equal(tensors[f"features.{name}"], values)

    def test_resumed_is_as_if_never_stopped(self, folder):
        execute(settings(folder), folder / "whole")
        with pytest.raises(_KilledError):
            execute(settings(folder), folder / "run", listener=killer(after=3))
        resume(folder / "run")
        for name in ("metrics.jsonl", "model.safetensors", "statistics.safetensors"):
            assert (folder / "run" / name).read_bytes() == (folder / "whole" / name).read_bytes(), name

    def test_lost_or_exchanged_statistics_are_refused(self, folder):
        with pytest.raises(_KilledError):
            execute(settings(folder), folder / "run", listener=killer(after=1))
        shutil.copytree(folder / "run", folder / "other")
        (folder / "run" / "statistics.safetensors").unlink()
        with pytest.raises(DataError, match=r"statistics\.safetensors"):
            resume(folder / "run")
        directory = RunDirectory.open(folder / "other")
        true = directory.statistics()
        for false in ({name: values + 1 for name, values in true.items()}, {"mean": true["mean"]}):
            directory.write_statistics(false)
            with pytest.raises(DataError, match=r"statistics\.safetensors"):
                resume(folder / "other")

    def test_a_model_without_its_statistics_is_refused(self, folder):
        execute(settings(folder), folder / "run")
        directory = RunDirectory.open(folder / "run")
        tensors, metadata = directory.read_model()
        tensors["features.mean"] = tensors["features.mean"][:3]
        directory.write_model(tensors, metadata)
        with pytest.raises(DataError, match="mean and scale"):
            alidpfl.load_model(folder / "run")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"federation__max_rounds": "1"}, "federation.max_rounds=1"),
        ({"data__standardise": '"none"', "privacy__statistics_noise": "9.0"}, "privacy.statistics_noise"),
        ({"data__standardise": '"public"'}, "data.standardise"),
    ],
)
def test_settings_that_cannot_be(folder, changes, words):
    with pytest.raises(ConfigError, match=words):
        make_parts(settings(folder, **changes))


def test_other_data_know_no_rows():
    with pytest.raises(ConfigError, match=r"data\.standardise"):
        make_parts(load_config(overrides=['data.standardise="private"']))
