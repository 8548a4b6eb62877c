"""Runs on tables: defaults that a schema gives, what is stored with the model, and predictions from raw rows."""

import json
import math
import stat

import numpy as np
import pandas
import polars as pl
import pytest
import torch

import alidpfl
import alidpfl.config
import alidpfl.tables.draft
import alidpfl.tables.encode
from alidpfl.dpsgd.places import GROUPS_IN_A_FAMILY, rounding
from alidpfl.errors import ConfigError, DataError
from alidpfl.runs import execute, load_config
from alidpfl.runs.data import load_data
from alidpfl.runs.prepare import make_parts, prepare
from alidpfl.runs.tables import gradient_bound, plans_itself, smoothness_bound, with_table_defaults
from alidpfl.store import RunDirectory
from alidpfl.tables.held_out import held_out_key
from tests.runs.command import alidpfl as command
from tests.tables.parts import TOML, hospitals, schema, table

QUICK = ("privacy.accountant=rdp", "federation.max_rounds=3", "run.processes=1", "run.seed=0")


def config(folder, *changes):
    files = json.dumps([str(path) for path in sorted(folder.glob("*.csv"))])
    own = ("data.name=table", f"data.schema_file={folder / 'schema.toml'}", f"data.files={files}")
    return load_config(overrides=[*own, *QUICK, *changes])


@pytest.fixture
def folder(tmp_path):
    hospitals(tmp_path)
    return tmp_path


class TestDefaults:
    def test_they_come_from_the_schema(self, folder):
        chosen = with_table_defaults(config(folder))
        assert (chosen.model.name, chosen.policy) == ("linear", "ratio")
        assert chosen.method.clip_norm == pytest.approx(math.sqrt(5 / 2) / (1 - rounding(128, 4)), abs=1e-4)
        assert chosen.method.learning_rate == pytest.approx(4 / 2.5)
        assert with_table_defaults(chosen) == chosen

    def test_noise_is_secure_unless_a_seed_is_set(self, folder):
        assert with_table_defaults(config(folder)).run.randomness == "seeded"
        values = config(folder).model_dump(exclude_unset=True)
        values["run"].pop("seed")
        assert with_table_defaults(alidpfl.config.Config.model_validate(values)).run.randomness == "secure"

    def test_what_is_set_stays(self, folder):
        own = ("method.clip_norm=1.0", "method.learning_rate=0.5", "method.policy=ali", "model.name=mlp")
        chosen = with_table_defaults(config(folder, *own))
        assert (chosen.method.clip_norm, chosen.method.learning_rate, chosen.policy) == (1.0, 0.5, "ali")
        assert chosen.model.name == "mlp"
        assert with_table_defaults(config(folder, "model.name=mlp")).method.clip_norm == 1.0
        assert with_table_defaults(load_config()) == load_config()

    def test_the_planner_is_used_if_nothing_else_is_said(self, folder):
        assert plans_itself(config(folder))
        for change in ("privacy.max_steps=3", "privacy.noise_multiplier=2.0", "federation.clients_per_round=1"):
            assert not plans_itself(config(folder, change))
        assert not plans_itself(load_config())

    def test_no_rows_are_held_out_by_their_numbers(self):
        """A row that is taken out would move all later ones between the parts."""
        with pytest.raises(ConfigError, match=r"data\.validation=0\.1"):
            make_parts(load_config(overrides=["data.name=table", "data.validation=0.1"]))

    def test_no_gradient_is_longer_than_the_bound(self):
        """At random weights, far from zero too, by autograd; and the bound on the curvature holds."""
        torch.manual_seed(0)
        agreed = schema()
        inputs = torch.from_numpy(alidpfl.tables.encode.Encoder(agreed).encode(table(64)).inputs)
        for scale in (0.0, 1.0, 30.0):
            layer = torch.nn.Linear(agreed.width, 2)
            torch.nn.init.normal_(layer.weight, std=scale)
            for row in inputs:
                for target in (0, 1):
                    layer.zero_grad()
                    torch.nn.functional.cross_entropy(layer(row[None]), torch.tensor([target])).backward()
                    norm = math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in layer.parameters()))
                    assert norm <= gradient_bound(agreed) * (1 - rounding(128, GROUPS_IN_A_FAMILY))
        longest = torch.cat([inputs, torch.ones(len(inputs), 1)], 1).norm(dim=1).max()
        assert 0.5 * float(longest) ** 2 <= smoothness_bound(agreed) + 1e-6


class TestRun:
    def test_the_model_carries_its_schema_and_takes_raw_rows(self, folder):
        settings = config(folder)
        outcome = execute(settings, folder / "run")
        assert not outcome.covers_everything
        assert "held" in " ".join(outcome.uncovered) or "holds out" in " ".join(outcome.uncovered)
        _, metadata = RunDirectory.open(folder / "run").read_model()
        assert metadata["schema_sha256"] == schema(held_out=0.2).sha256
        model = alidpfl.load_model(folder / "run")
        assert model.classes == ("no", "yes")
        dataset = load_data(with_table_defaults(settings))
        right = model(dataset.test.inputs).argmax(1) == dataset.test.targets
        assert 100 * float(right.float().mean()) == pytest.approx(outcome.accuracy, abs=1e-4)
        rows = pl.read_csv(folder / "north.csv", infer_schema=False)
        scores = model.predict(rows)
        assert (scores.shape, scores.dtype) == ((150, 2), np.float32)
        np.testing.assert_allclose(scores.sum(1), 1, atol=1e-6)
        wanted = model(torch.from_numpy(model.encoder.encode(rows).inputs)).softmax(1)
        np.testing.assert_allclose(scores, wanted.detach().numpy(), atol=1e-6)
        for same in (folder / "north.csv", rows.drop("died"), pandas.DataFrame(rows.to_dict(as_series=False))):
            assert model.predict(same).tobytes() == scores.tobytes()
        np.testing.assert_allclose(model.predict(rows.row(3, named=True)), scores[3:4], atol=1e-6)

    @pytest.mark.parametrize("targets", [None, "", "not yet known", 3.5])
    def test_predictions_ignore_targets_and_persons(self, folder, targets):
        """New rows have no outcome yet, and often an empty column for it."""
        rows = pl.read_csv(folder / "north.csv", infer_schema=False)
        made = rows.with_columns(patient=pl.int_range(pl.len()).cast(pl.String))
        for path in folder.glob("*.csv"):
            made.write_csv(path)
        (folder / "schema.toml").write_text('person = "patient"\n' + TOML)
        execute(config(folder), folder / "run")
        model = alidpfl.load_model(folder / "run")
        wanted = model.predict(rows.drop("died"))
        for column in ("died", "patient"):
            new = made.with_columns(pl.lit(targets).alias(column))
            new.write_csv(folder / "new.csv")
            new.write_parquet(folder / "new.parquet")
            for same in (new, new.to_dicts(), folder / "new.csv", folder / "new.parquet"):
                assert model.predict(same).tobytes() == wanted.tobytes()

    def test_the_names_of_clients_are_kept(self, folder):
        execute(config(folder), folder / "run")
        assert RunDirectory.open(folder / "run").environment()["clients"] == {"0": "north", "1": "south"}

    def test_a_run_cannot_go_on_with_another_schema(self, folder):
        """Not even with one that encodes these rows alike."""
        settings = with_table_defaults(config(folder))
        execute(settings, folder / "run")
        RunDirectory.open(folder / "run").summary_path.unlink()
        (folder / "schema.toml").write_text('extra_columns = "ignore"\n' + TOML)
        with pytest.raises(ConfigError, match=r"data\.schema"):
            alidpfl.resume(folder / "run")
        (folder / "schema.toml").write_text(TOML)
        assert alidpfl.resume(folder / "run").rounds == 3

    def test_the_key_of_a_secure_run_is_random_and_survives_a_resume(self, folder):
        """A seed that anybody may know must not tell which rows were held out."""
        settings, keys = with_table_defaults(config(folder, "run.randomness=secure")), []
        for name in ("a", "b"):
            execute(settings, folder / name)
            directory = RunDirectory.open(folder / name)
            assert stat.S_IMODE((folder / name / "held-out.key").stat().st_mode) == 0o600
            keys.append(directory.held_out_key())
        assert len({*keys, held_out_key(0)}) == 3
        assert {len(key) for key in keys} == {32}
        directory.summary_path.unlink()
        assert alidpfl.resume(folder / "b").rounds == 3  # on the same rows, or it would be refused
        assert directory.held_out_key() == keys[1]
        directory.summary_path.unlink()
        directory.write_held_out_key(keys[0])
        with pytest.raises(ConfigError, match="clients"):
            alidpfl.resume(folder / "b")
        (folder / "b" / "held-out.key").unlink()
        with pytest.raises(DataError, match=r"held-out\.key"):
            alidpfl.resume(folder / "b")

    def test_a_seeded_run_has_no_secret_key(self, folder):
        execute(config(folder), folder / "run")
        assert RunDirectory.open(folder / "run").held_out_key() is None

    def test_a_person_column_warns_that_epsilon_is_for_a_row(self, folder):
        for path in folder.glob("*.csv"):
            made = pl.read_csv(path, infer_schema=False)
            made.with_columns(patient=pl.int_range(len(made)) // 3).write_csv(path)
        (folder / "schema.toml").write_text('person = "patient"\n' + TOML)
        assert any("person" in warning for warning in prepare(with_table_defaults(config(folder))).warnings)

    def test_settings_of_tables_are_for_tables(self):
        with pytest.raises(ConfigError, match=r"data\.schema_file"):
            execute(load_config(overrides=["data.schema_file=schema.toml"]), "nowhere")

    def test_a_damaged_schema_in_a_model_is_named(self, folder):
        execute(config(folder), folder / "run")
        run = RunDirectory.open(folder / "run")
        tensors, metadata = run.read_model()
        run.write_model(tensors, {**metadata, "schema": "{}"})
        with pytest.raises(ConfigError, match=r"model\.safetensors"):
            alidpfl.load_model(folder / "run")


class TestCommands:
    def test_run_and_predict(self, folder, monkeypatch):
        monkeypatch.chdir(folder)
        words = ("--epsilon", 2, "--delta", "1e-5", "--rounds", 2, "--set", "privacy.accountant=rdp", "--out", "run")
        done = command("run", "--schema", "schema.toml", "--data", "north.csv", "south.csv", *words)
        assert done.exit_code == 0, done.stderr
        kept = RunDirectory.open("run").config()
        assert (kept["data"]["name"], kept["privacy"]["epsilon"], kept["federation"]["max_rounds"]) == ("table", 2.0, 2)
        assert kept["data"]["files"] == [str(folder / name) for name in ("north.csv", "south.csv")]
        assert kept["run"]["randomness"] == "secure"
        assert kept["privacy"]["noise_multiplier"] > 0
        table(20, seed=5).drop("died").write_csv("new.csv")
        assert command("predict", "run", "new.csv", "-o", "scores.csv").exit_code == 0
        scores = pl.read_csv("scores.csv")
        assert scores.columns == ["predicted", "probability_no", "probability_yes"]
        wanted = alidpfl.load_model("run").predict("new.csv")
        np.testing.assert_allclose(scores.select(scores.columns[1:]).to_numpy(), wanted, atol=1e-6)
        assert scores["predicted"].to_list() == [("no", "yes")[best] for best in wanted.argmax(1)]
        assert command("predict", "run", "new.csv").stdout == (folder / "scores.csv").read_text()
        assert command("predict", "run", "new.csv", "-o", "scores.PARQUET").exit_code == 0
        assert pl.read_parquet("scores.PARQUET").equals(scores.with_columns(pl.col(pl.Float64).cast(pl.Float32)))
        for name in ("scores.xlsx", "scores"):
            refused = command("predict", "run", "new.csv", "-o", name)
            assert (refused.exit_code, (folder / name).exists()) == (2, False)
            assert f"--out {name}" in refused.stderr

    @pytest.mark.parametrize(
        ("words", "option"), [(["--data", "north.csv"], "--schema"), (["--schema", "schema.toml"], "--data")]
    )
    def test_errors_name_the_option_that_is_missing(self, folder, monkeypatch, words, option):
        monkeypatch.chdir(folder)
        done = command("run", *words, "--out", "run")
        assert done.exit_code == 2
        assert f"needs {option} " in done.stderr

    def test_a_configuration_beside_data_files(self, folder, monkeypatch):
        monkeypatch.chdir(folder)
        (folder / "run.toml").write_text('[privacy]\naccountant = "rdp"\nmax_steps = 3\n[run]\nprocesses = 1\n')
        words = ["run.toml", "--schema", "schema.toml", "--data", "north.csv", "south.csv", "--rounds", 2]
        assert command("run", *words, "--out", "a").exit_code == 0
        assert RunDirectory.open("a").config()["privacy"]["accountant"] == "rdp"
        two = command("run", "run.toml", "schema.toml", "--out", "b")
        assert two.exit_code == 2
        assert "schema.toml" in two.stderr
        assert command("run", "--resume", "a", "--rounds", 3).exit_code == 2

    @pytest.mark.parametrize("words", [["predict", "none", "new.csv"], ["predict", "run", "none.csv"]])
    def test_predict_says_what_is_missing(self, folder, monkeypatch, words):
        monkeypatch.chdir(folder)
        execute(config(folder), "run")
        done = command(*words)
        assert done.exit_code == 2
        assert "none" in done.stderr

    def test_predict_needs_a_run_on_tables(self, tmp_path):
        execute(load_config(overrides=["data.name=synthetic", "model.name=linear", *QUICK]), tmp_path / "run")
        done = command("predict", tmp_path / "run", "x.csv")
        assert done.exit_code == 2
        assert "load_model" in done.stderr

    def test_check_counts_for_the_owner(self, folder, monkeypatch):
        monkeypatch.chdir(folder)
        made = table(50).with_columns(age=pl.Series([150, -3, *range(20, 68)]))
        made.write_csv("east.csv")
        told = json.loads(command("schema", "check", "schema.toml", "east.csv", "north.csv", "--json").stdout)
        assert (told["width"], told["sha256"]) == (10, schema(held_out=0.2).sha256)
        counts = told["files"]["east.csv"]["columns"]
        assert counts["age"] == {"clamped": 2, "other": 0, "missing": 0}
        assert counts["sex"]["other"] == (made["sex"] == "x").sum()
        assert counts["creatinine"]["missing"] == made["creatinine"].null_count()
        shown = command("schema", "check", "schema.toml", "east.csv")
        assert shown.exit_code == 0
        assert told["sha256"] in shown.stdout
        assert command("schema", "check", "schema.toml").exit_code == 0

    def test_show_counts_classes_of_each_client(self, folder):
        done = command("data", "show", "table", "--schema", folder / "schema.toml", "--data-dir", folder, "--json")
        told = json.loads(done.stdout)
        assert (told["client_names"], told["num_train"] + told["num_test"]) == (["north", "south"], 400)
        assert command("data", "show", "table", "--data-dir", folder).exit_code == 2

    def test_an_audit_takes_the_same_defaults(self, folder, monkeypatch):
        asked = []
        monkeypatch.setattr("alidpfl.audit.audit_config", lambda settings, **_: asked.append(settings) or 1 / 0)
        words = [f"data.schema_file={folder / 'schema.toml'}", f"data.data_dir={folder}", "data.name=table"]
        with pytest.raises(AssertionError, match="ZeroDivision"):
            command("audit", *(part for word in words for part in ("--set", word)))
        assert (asked[0].model.name, asked[0].policy) == ("linear", "ratio")

    def test_check_ends_with_2_on_a_bad_table(self, folder, monkeypatch):
        monkeypatch.chdir(folder)
        (folder / "east.csv").write_text("age,creatinine,sex,smoker,died\n4711x,1,f,no,no\n")
        done = command("schema", "check", "schema.toml", "north.csv", "east.csv")
        assert done.exit_code == 2
        assert "east.csv: column 'age', row 1" in done.stderr
        assert "4711" not in done.stderr + done.stdout
        (folder / "schema.toml").write_text("held_out = 7\n" + TOML.partition("\n")[2])
        assert command("schema", "check", "schema.toml", "north.csv").exit_code == 2


class TestDraft:
    def test_a_draft_is_a_schema_that_its_rows_fit(self, folder, monkeypatch):
        monkeypatch.chdir(folder)
        extra = pl.Series("note of the ward", [f"text {number}" for number in range(150)])
        pl.read_csv("north.csv", infer_schema=False).insert_column(0, extra).write_csv("public.csv")
        done = command("schema", "draft", "public.csv", "-o", "draft.toml")
        assert done.exit_code == 0
        assert "note of the ward" in done.stderr
        assert "no ε covers" in done.stderr
        drafted = alidpfl.tables.read_schema("draft.toml")
        kinds = {name: column.kind for name, column in drafted.columns.items()}
        assert kinds == {"age": "number", "creatinine": "number", "sex": "category", "smoker": "flag"}
        assert (drafted.target.column, drafted.target.values) == ("died", ("no", "yes"))
        assert drafted.extra_columns == "ignore"
        checked = json.loads(command("schema", "check", "draft.toml", "public.csv", "--json").stdout)
        assert all(part["clamped"] == 0 for part in checked["files"]["public.csv"]["columns"].values())
        assert command("schema", "draft", "public.csv", "-o", "draft.toml").exit_code == 2

    def test_names_that_toml_must_quote(self, tmp_path):
        path = tmp_path / "public.csv"
        odd = 'a "b"\n=é'
        pl.DataFrame({odd: ["x  y", 'q"', "\\"], "los": [1.5, 2.25, 1e7], "died": ["a", "b", "a"]}).write_csv(path)
        made = command("schema", "draft", path, "-o", tmp_path / "s.toml", "--target", "los", "--person", "died")
        drafted = alidpfl.tables.read_schema(tmp_path / "s.toml")
        assert set(drafted.columns[odd].values) == {'q"', "\\", "x  y"}
        assert (drafted.person, made.exit_code) == ("died", 0)
        assert set(drafted.target.values) == {"1.5", "2.25", "10000000.0"}

    def test_many_numbers_are_a_number(self, tmp_path):
        pl.DataFrame({"age": range(50), "days": range(50)}).write_csv(tmp_path / "p.csv")
        assert command("schema", "draft", tmp_path / "p.csv", "-o", tmp_path / "s.toml").exit_code == 0
        target = alidpfl.tables.read_schema(tmp_path / "s.toml").target
        assert (target.kind, target.low, target.high) == ("number", 0, 50)

    @pytest.mark.parametrize("words", [["--target", "dead"], ["--person", "who"], ["--target", "note"]])
    def test_columns_that_do_not_exist_or_do_not_fit(self, tmp_path, words):
        pl.DataFrame({"age": range(50), "note": [f"n{i}" for i in range(50)]}).write_csv(tmp_path / "p.csv")
        done = command("schema", "draft", tmp_path / "p.csv", "-o", tmp_path / "s.toml", *words)
        assert done.exit_code == 2
        assert words[1] in done.stderr

    def test_a_target_with_one_value_is_refused(self, tmp_path):
        """A number without a range would be a target of width zero, or nearly so."""
        for value in (7.5, 0, "no"):
            pl.DataFrame({"age": range(50), "days": [value] * 50}).write_csv(tmp_path / "p.csv")
            done = command("schema", "draft", tmp_path / "p.csv", "-o", tmp_path / "s.toml")
            assert done.exit_code == 2
            assert "'days'" in done.stderr
            assert "same value" in done.stderr
            assert not (tmp_path / "s.toml").exists()

    def test_several_targets_are_labels(self, tmp_path):
        days = {"age": range(50), "days": range(50)}
        pl.DataFrame({**days, "pain": ["yes", "no"] * 25, "fever": [0, 1] * 25}).write_csv(tmp_path / "p.csv")
        words = ("schema", "draft", tmp_path / "p.csv", "-o", tmp_path / "s.toml")
        refused = command(*words, "--target", "fever", "--target", "days")
        assert refused.exit_code == 2
        assert "'days' is no flag" in refused.stderr
        assert command(*words, "--target", "fever", "--target", "fever").exit_code == 2
        done = command(*words, "--target", "fever", "--target", "pain")
        assert (done.exit_code, "'fever', 'pain'" in done.stdout) == (0, True)
        drafted = alidpfl.tables.read_schema(tmp_path / "s.toml")
        assert (drafted.target.kind, drafted.target.columns) == ("labels", ("fever", "pain"))
        assert list(drafted.columns) == ["age", "days"]
        assert command("schema", "check", tmp_path / "s.toml", tmp_path / "p.csv").exit_code == 0

    @pytest.mark.parametrize(("values", "is_noted"), [([0, 1, 2], True), ([0, 1, 0], False), (["a", "b", "1"], False)])
    def test_classes_that_are_numbers_are_noted(self, tmp_path, values, is_noted):
        pl.DataFrame({"age": range(3), "days": list(map(str, values))}).write_csv(tmp_path / "p.csv")
        done = command("schema", "draft", tmp_path / "p.csv", "-o", tmp_path / "s.toml")
        assert done.exit_code == 0
        assert ('kind = "number"' in done.stderr) == is_noted

    def test_an_unreadable_table(self, tmp_path):
        with pytest.raises(DataError, match=r"none\.csv"):
            alidpfl.tables.draft.draft_schema(tmp_path / "none.csv")
