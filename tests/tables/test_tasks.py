"""Tables whose target is a number or several labels: defaults, training, metrics and predictions in the own unit."""

import json
import math

import numpy as np
import polars as pl
import pytest
import torch

import alidpfl
from alidpfl.data.table import load_public_table
from alidpfl.dpsgd import make_loss
from alidpfl.dpsgd.places import GROUPS_IN_A_FAMILY, rounding
from alidpfl.errors import ConfigError, DataError
from alidpfl.metrics import measure
from alidpfl.runs import execute, load_config
from alidpfl.runs.data import load_data, simulation_data
from alidpfl.runs.tables import gradient_bound, smoothness_bound, with_table_defaults
from alidpfl.store import RunDirectory
from alidpfl.tables.encode import Encoder
from alidpfl.types import LOSS_KINDS
from tests.runs.command import alidpfl as command
from tests.tables.parts import TARGETS, hospitals, schema, task_table, toml

LOSSES = [(name, kind) for name, kind in LOSS_KINDS.items() if kind != "class"]
MARGIN = 1 - rounding(128, GROUPS_IN_A_FAMILY)
QUICK = ("privacy.accountant=rdp", "run.processes=1", "run.seed=0")
LEARNS = ("privacy.epsilon=50", "privacy.noise_multiplier=0.6", "privacy.sample_rate=0.3", "federation.max_rounds=30")


def config(folder, *changes):
    files = json.dumps([str(path) for path in sorted(folder.glob("*.csv"))])
    own = ("data.name=table", f"data.schema_file={folder / 'schema.toml'}", f"data.files={files}")
    return with_table_defaults(load_config(overrides=[*own, *QUICK, *changes]))


class TestDefaults:
    @pytest.mark.parametrize(
        ("kind", "changes", "longest", "curvature"),
        [
            ("number", (), 1.0, 1.0),
            ("number", ("model.loss=huber",), 1.0, 1.0),
            ("number", ("model.loss=poisson",), 1.0, 1.0),
            ("number", ("model.loss=quantile", "model.quantile=0.9"), 0.9, 1.0),
            ("labels", (), 0.5 / math.sqrt(3), 1 / 12),
        ],
    )
    def test_they_come_from_the_schema(self, tmp_path, kind, changes, longest, curvature):
        hospitals(tmp_path, kind=kind)
        chosen = config(tmp_path, *changes)
        assert (chosen.model.name, chosen.policy) == ("linear", "ratio")
        assert chosen.method.clip_norm == pytest.approx(longest * math.sqrt(5) / MARGIN, abs=2e-4)
        loss = chosen.model.loss or {"number": "squared", "labels": "binary"}[kind]
        assert smoothness_bound(schema(target=TARGETS[kind]), loss) == pytest.approx(5 * curvature)
        assert config(tmp_path, *changes, "method.clip_norm=7.0").method.clip_norm == 7.0

    @pytest.mark.parametrize(("loss", "kind"), LOSSES)
    def test_no_gradient_is_longer_than_the_bound(self, loss, kind):
        """By autograd: of any output; with squared and poisson of errors up to half of the range."""
        agreed = schema(target=TARGETS[kind])
        rows = torch.from_numpy(Encoder(agreed).encode(task_table(kind, 40)).inputs)
        compute, limit = make_loss(loss, level=0.8), gradient_bound(agreed, loss, 0.8) * MARGIN
        random, longest = torch.Generator().manual_seed(0), 0.0
        for scale in (0.0, 0.1, 1.0, 30.0):
            layer = torch.nn.Linear(agreed.width, agreed.num_outputs)
            torch.nn.init.normal_(layer.weight, std=scale, generator=random)
            for row in rows:
                predicted = float(layer(row[None])[0, 0].detach())
                predicted = math.exp(min(predicted, 80)) - 1 if loss == "poisson" else predicted
                shape = (1, 3) if kind == "labels" else (1,)
                for value in (0.0, 1.0) if kind == "labels" else (-1.0, 0.3, 1.0):
                    if loss in ("squared", "poisson") and abs(predicted - value) > 1:
                        continue
                    layer.zero_grad()
                    compute(layer(row[None]), torch.full(shape, value + (loss == "poisson"))).sum().backward()
                    norm = math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in layer.parameters()))
                    longest = max(longest, norm)
        room = 2.0 if loss in ("squared", "poisson") else 1.0  # the bound is for errors of the whole range
        assert 0.4 * limit < room * longest <= limit

    def test_a_loss_of_another_task_is_refused(self, tmp_path):
        hospitals(tmp_path, kind="number")
        with pytest.raises(ConfigError, match='"binary"'):
            config(tmp_path, "model.loss=binary")

    def test_a_quantile_without_its_loss_is_refused(self, tmp_path):
        hospitals(tmp_path, kind="number")
        with pytest.raises(ConfigError, match=r"model\.quantile=0\.9"):
            execute(config(tmp_path, "model.quantile=0.9"), tmp_path / "run")

    def test_counts_begin_at_0(self, tmp_path):
        hospitals(tmp_path, kind="number")
        (tmp_path / "schema.toml").write_text(toml("number").replace("low = 0, high = 30", "low = 1, high = 30"))
        with pytest.raises(ConfigError, match=r"target\.low=1"):
            load_data(config(tmp_path, "model.loss=poisson"))


class TestLoad:
    @pytest.mark.parametrize(("loss", "low"), [(None, -1.0), ("poisson", 0.0)])
    def test_numbers_are_scaled_by_their_public_bounds(self, tmp_path, loss, low):
        hospitals(tmp_path, kind="number")
        settings = config(tmp_path, *([f"model.loss={loss}"] if loss else []))
        dataset = load_data(settings)
        assert (dataset.kind, dataset.num_outputs, dataset.num_classes) == ("number", 1, 0)
        targets = dataset.train.targets
        assert (targets.dtype, targets.shape) == (torch.float32, (len(dataset.train),))
        assert float(targets.min()) >= low
        assert float(targets.max()) == low + 2  # clamped
        unit = simulation_data(settings, dataset).unit
        days = np.concatenate([pl.read_csv(path)["days"].to_numpy() for path in sorted(tmp_path.glob("*.csv"))])
        found = np.concatenate([dataset.train.targets, dataset.test.targets]) - low
        np.testing.assert_allclose(np.sort(found) * unit, np.sort(days.clip(0, 30)), atol=1e-4)

    def test_labels_are_0_and_1(self, tmp_path):
        hospitals(tmp_path, kind="labels")
        dataset = load_data(config(tmp_path))
        assert (dataset.kind, dataset.num_outputs) == ("labels", 3)
        assert set(dataset.train.targets.unique().tolist()) == {0.0, 1.0}
        assert dataset.train.targets.shape == (len(dataset.train), 3)

    @pytest.mark.parametrize("kind", ["number", "labels"])
    def test_public_rows_of_a_server(self, tmp_path, kind):
        task_table(kind, 20).write_csv(tmp_path / "test.csv")
        found = load_public_table(Encoder(schema(target=TARGETS[kind])), [tmp_path / "test.csv"], None)
        assert (found.kind, len(found.test)) == (kind, 20)

    @pytest.mark.parametrize(("kind", "column"), [("number", "days"), ("labels", "stroke")])
    @pytest.mark.parametrize("value", ["inf", "nan", "", "much"])
    def test_targets_that_are_no_numbers_are_refused_without_their_value(self, tmp_path, kind, column, value):
        hospitals(tmp_path, kind=kind)
        rows = pl.read_csv(tmp_path / "south.csv", infer_schema=False)
        is_bad = pl.Series(range(len(rows))) == 3
        rows.with_columns(pl.when(is_bad).then(pl.lit(value)).otherwise(pl.col(column)).alias(column)).write_csv(
            tmp_path / "south.csv"
        )
        with pytest.raises(DataError, match=f"{column}.*row 4") as error:
            load_data(config(tmp_path))
        assert "much" not in str(error.value)

    def test_a_huge_target_is_clamped(self, tmp_path):
        hospitals(tmp_path, kind="number")
        rows = pl.read_csv(tmp_path / "south.csv").with_columns(days=pl.lit(3e38))
        rows.write_csv(tmp_path / "south.csv")
        assert float(load_data(config(tmp_path)).train.targets.max()) == 1.0


class TestRun:
    @pytest.mark.parametrize(("loss", "kind"), LOSSES)
    def test_it_learns_and_predicts_raw_rows(self, tmp_path, loss, kind):
        hospitals(tmp_path, sizes=(600, 800), kind=kind)
        level = ("model.quantile=0.75",) if loss == "quantile" else ()
        settings = config(tmp_path, f"model.loss={loss}", *LEARNS, *level)
        outcome = execute(settings, tmp_path / "run")
        assert outcome.accuracy is None
        name = {"labels": "auc", "number": "pinball" if loss == "quantile" else "r2"}[kind]
        better = outcome.metrics[name] - outcome.baselines[name]
        assert (-better if name == "pinball" else better) > 0.1
        model = alidpfl.load_model(tmp_path / "run")
        rows = task_table(kind, 300, seed=7)
        found = model.predict(rows)
        assert (found.dtype, found.shape) == (np.float32, (300,) if kind == "number" else (300, 3))
        if kind == "labels":
            assert (model.labels, model.classes) == (("sepsis", "stroke", "pain"), ())
            assert 0 <= float(found.min()) < float(found.max()) <= 1
            truth = (rows.select("sepsis", "stroke", "pain").to_numpy() == "yes").astype(float)
            assert measure("labels", np.log(found / (1 - found)), truth).values["auc"] > 0.6
        else:
            assert (model.labels, model.classes) == ((), ())
            assert 0 <= float(found.min()) < float(found.max()) <= 30
            days = rows["days"].to_numpy().clip(0, 30)
            if loss == "quantile":
                assert np.mean(days <= found) == pytest.approx(0.75, abs=0.12)
            else:
                assert np.abs(found - days).mean() < 0.7 * np.abs(days - np.median(days)).mean()
        assert model.predict(rows.drop(TARGETS[kind].get("columns") or TARGETS[kind]["column"])).tobytes() == (
            found.tobytes()
        )

    @pytest.mark.parametrize("loss", ["squared", "poisson"])
    def test_errors_are_in_the_unit_of_the_table(self, tmp_path, loss):
        hospitals(tmp_path, sizes=(300, 300), kind="number")
        task_table("number", 200, seed=9).write_csv(tmp_path / "test.csv")
        outcome = execute(config(tmp_path, f"model.loss={loss}", *LEARNS), tmp_path / "run")
        found = alidpfl.load_model(tmp_path / "run").predict(tmp_path / "test.csv")
        days = pl.read_csv(tmp_path / "test.csv")["days"].to_numpy().clip(0, 30)
        predicted = math.sqrt(float(np.mean((found - days) ** 2)))
        assert outcome.metrics["rmse"] == pytest.approx(predicted, rel=1e-4)
        assert outcome.baselines["rmse"] == pytest.approx(float(days.std()), rel=1e-3)

    @pytest.mark.parametrize("kind", ["number", "labels"])
    def test_another_network_takes_the_target_too(self, tmp_path, kind):
        hospitals(tmp_path, kind=kind)
        outcome = execute(
            config(tmp_path, "model.name=mlp", "model.hidden=4", "federation.max_rounds=2"), tmp_path / "r"
        )
        assert math.isfinite(outcome.loss)
        assert len(alidpfl.load_model(tmp_path / "r").predict(tmp_path / "north.csv")) == 150


class TestCommands:
    @pytest.mark.parametrize(
        ("kind", "columns"),
        [
            ("number", ["predicted"]),
            ("labels", ["probability_sepsis", "probability_stroke", "probability_pain"]),
        ],
    )
    def test_run_and_predict(self, tmp_path, monkeypatch, kind, columns):
        hospitals(tmp_path, kind=kind)
        monkeypatch.chdir(tmp_path)
        words = ("--epsilon", 50, "--delta", "1e-5", "--rounds", 2, "--set", "privacy.accountant=rdp", "--out", "run")
        done = command("run", "--schema", "schema.toml", "--data", "north.csv", "south.csv", *words)
        assert done.exit_code == 0, done.stderr
        assert ("metric r2" if kind == "number" else "log_loss") in done.stdout
        task_table(kind, 20, seed=5).select("age", "creatinine", "sex", "smoker").write_csv("new.csv")
        assert command("predict", "run", "new.csv", "-o", "scores.csv").exit_code == 0
        scores = pl.read_csv("scores.csv")
        assert scores.columns == columns
        wanted = alidpfl.load_model("run").predict("new.csv").reshape(20, -1)
        np.testing.assert_allclose(scores.to_numpy(), wanted, rtol=1e-5)
        _, metadata = RunDirectory.open("run").read_model()
        assert metadata["num_classes"] == str(len(columns))

    def test_a_loss_that_does_not_fit_is_one_line(self, tmp_path):
        hospitals(tmp_path, kind="labels")
        words = ("--schema", tmp_path / "schema.toml", "--data", tmp_path / "north.csv", "--set", "model.loss=huber")
        done = command("run", *words, "--out", tmp_path / "run")
        assert done.exit_code == 2
        assert len(done.stderr.strip().splitlines()) == 1
        assert '"huber"' in done.stderr
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("kind", ["number", "labels"])
    def test_show_counts_records_of_each_client(self, tmp_path, kind):
        hospitals(tmp_path, kind=kind)
        words = ("--schema", tmp_path / "schema.toml", "--data-dir", tmp_path, "--json")
        told = json.loads(command("data", "show", "table", *words).stdout)
        assert sum(sum(row) for row in told["counts"]) == told["num_train"]
