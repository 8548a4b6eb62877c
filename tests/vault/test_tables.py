"""Tables in a vault: which rows are trained on, what is told about them, and errors for the owner alone."""

import json
import secrets
import stat
import subprocess
import sys
import time
import tomllib
from contextlib import contextmanager

import numpy as np
import polars as pl
import pytest
import torch

from alidpfl.errors import ConfigError, DataError
from alidpfl.releases.queries import EvaluationQuery
from alidpfl.runs.tables import default_clip_norm
from alidpfl.tables import parse_schema, read_schema
from alidpfl.tables.encode import Encoder
from alidpfl.tables.held_out import held_out_rows
from alidpfl.vault.client import VaultClient
from alidpfl.vault.folder import ENROLMENT, SOCKET, VaultFolder, status
from alidpfl.vault.messages import ReleaseRequest, encode
from alidpfl.vault.policy import read_policy
from alidpfl.vault.refusals import PlanRefusedError, RefusalCode
from alidpfl.vault.service import public_info
from tests.runs.command import alidpfl
from tests.tables.parts import COLUMNS, TOML, table

from .parts import CountingTrainer, answers_on, body, made_vault, opened, request, spent
from .tables import KEY, held_out, schema, table_source, table_vault

ROWS = table(60, seed=1)
TERMS = {
    "--epsilon": 2,
    "--delta": 1e-5,
    "--sample-rate": 0.2,
    "--min-noise-multiplier": 2,
    "--max-steps-per-round": 5,
    "--accountant": "rdp",
}


def init(folder, data, *more, schema_text=TOML):
    path = folder.parent / "schema.toml"
    path.write_text(schema_text)
    terms = [str(part) for pair in TERMS.items() for part in pair]
    return alidpfl("vault", "init", "--dir", folder, "--schema", path, "--data", data, *terms, *more)


@contextmanager
def served(folder):
    """Serve a vault in a new process, because polars may hang in a forked one, and connect a client."""
    command = [sys.executable, "-c", "from alidpfl.cli import main; main()", "vault", "serve", "--dir", str(folder)]
    with (folder.parent / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            end = time.monotonic() + 120
            while not answers_on(folder / SOCKET):
                assert process.poll() is None, (folder.parent / "log").read_text()
                assert time.monotonic() < end
                time.sleep(0.05)
            with VaultClient(folder / SOCKET, timeout=60) as client:
                yield client
        finally:
            process.terminate()


def table_body(vault, **changes) -> bytes:
    values = {"schema_sha256": vault.enrolment.schema_sha256, **changes}
    weights = {name: np.zeros(shape, np.float32) for name, shape in vault.enrolment.shapes.items()}
    return encode(request(**values), weights)


# -------------------------------------------------------------------------------------------------- rows and their key


def test_held_out_rows_are_never_trained_on(tmp_path):
    folder, is_held_out = table_vault(tmp_path, ROWS), held_out(ROWS)
    assert 0 < is_held_out.sum() < len(ROWS)
    whole = Encoder(schema()).encode(ROWS, needs_target=True)
    with opened(folder) as vault:
        vault.answer(table_body(vault))
        records = vault.trainer._data
    assert torch.equal(records.inputs, torch.from_numpy(whole.inputs[~is_held_out]))
    assert torch.equal(records.targets, torch.from_numpy(whole.targets[~is_held_out]))
    assert status(folder.path)["num_records"] == int((~is_held_out).sum())


@pytest.mark.parametrize("number", [0, 17, 59])
def test_adding_or_removing_a_row_moves_no_other_row(tmp_path, number):
    without = pl.concat([ROWS[:number], ROWS[number + 1 :]])
    ROWS.write_csv(tmp_path / "with.csv")
    without.write_csv(tmp_path / "without.csv")
    with_it = table_source(tmp_path / "with.csv").load().trained.records
    without_it = table_source(tmp_path / "without.csv").load().trained.records
    place = int((~held_out(ROWS))[:number].sum())  # among the trained rows
    kept = torch.ones(len(with_it), dtype=torch.bool)
    kept[place : place + int(not held_out(ROWS)[number])] = False
    assert torch.equal(with_it.inputs[kept], without_it.inputs)
    assert torch.equal(with_it.targets[kept], without_it.targets)


def test_the_key_is_random_and_only_the_owner_can_read_it(tmp_path):
    ROWS.write_csv(tmp_path / "rows.csv")
    keys = []
    for name in ("a", "b"):
        assert init(tmp_path / name, tmp_path / "rows.csv").exit_code == 0
        path = tmp_path / name / ENROLMENT
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        keys.append(json.loads(path.read_bytes())["source"]["held_out_key"])
        with opened(VaultFolder(path=tmp_path / name)) as vault:
            told = [public_info(vault.enrolment, vault.policy), status(tmp_path / name), vault.enrolment.source]
            assert keys[-1] not in repr(told)
    assert keys[0] != keys[1]
    assert all(len(bytes.fromhex(key)) == len(KEY) for key in keys)


def test_a_changed_schema_file_changes_nothing(tmp_path):
    ROWS.write_csv(tmp_path / "rows.csv")
    assert init(tmp_path / "vault", tmp_path / "rows.csv").exit_code == 0
    enrolled = read_schema(tmp_path / "schema.toml").sha256
    (tmp_path / "schema.toml").write_text(TOML.replace("110", "80"))
    with opened(VaultFolder(path=tmp_path / "vault")) as vault:
        assert public_info(vault.enrolment, vault.policy)["schema_sha256"] == enrolled
        assert vault.answer(table_body(vault))


def test_a_key_or_schema_that_was_changed_is_refused(tmp_path):
    folder = table_vault(tmp_path, ROWS)
    path = folder.path / ENROLMENT
    path.write_text(path.read_text().replace(KEY.hex(), "0" * 64))
    with pytest.raises(DataError, match=ENROLMENT), opened(folder):
        pass


def test_a_file_that_others_can_write_is_refused(tmp_path):
    ROWS.write_csv(tmp_path / "rows.csv")
    (tmp_path / "rows.csv").chmod(0o666)
    with pytest.raises(ConfigError, match="chmod go-w"):
        table_source(tmp_path / "rows.csv").load()


def test_all_rows_held_out_are_refused(tmp_path):
    ROWS[np.flatnonzero(held_out(ROWS))[:2].tolist()].write_csv(tmp_path / "rows.csv")
    with pytest.raises(DataError, match="held out"):
        table_source(tmp_path / "rows.csv").load()


# ---------------------------------------------------------------------------------------------------------- the schema


def test_a_round_of_another_schema_is_refused_and_costs_nothing(tmp_path):
    folder, trainer = table_vault(tmp_path, ROWS), CountingTrainer()
    other = schema(columns=COLUMNS | {"age": {"kind": "number", "low": 0, "high": 100}})
    assert other.width == schema().width
    with opened(folder, trainer) as vault:
        for wrong in (other.sha256, None):
            with pytest.raises(PlanRefusedError) as refused:
                vault.answer(table_body(vault, schema_sha256=wrong))
            assert refused.value.code == RefusalCode.SCHEMA
            assert schema().sha256 in str(refused.value)
        assert (spent(folder), trainer.steps) == (0, 0)
        vault.answer(table_body(vault))
        assert trainer.steps == 2
    assert status(folder.path)["refusals"] == {"schema": 2}


def test_a_vault_without_a_table_refuses_a_schema(tmp_path):
    with opened(made_vault(tmp_path), CountingTrainer()) as vault:
        assert public_info(vault.enrolment, vault.policy)["schema_sha256"] is None
        with pytest.raises(PlanRefusedError) as refused:
            vault.answer(body(schema_sha256="0" * 64))
        assert refused.value.code == RefusalCode.SCHEMA


def test_the_hash_does_not_depend_on_how_the_file_is_written(tmp_path):
    ROWS.write_csv(tmp_path / "rows.csv")
    spelled = TOML.replace("held_out = 0.2\n", "# a comment\nheld_out=0.20\nmissing = 'indicator'\n")
    found = []
    for name, text in (("a", TOML), ("b", spelled), ("c", TOML.replace("0.2\n", "0.3\n"))):
        assert init(tmp_path / name, tmp_path / "rows.csv", schema_text=text).exit_code == 0
        with opened(VaultFolder(path=tmp_path / name), CountingTrainer()) as vault:
            found.append(public_info(vault.enrolment, vault.policy)["schema_sha256"])
    assert found[0] == found[1] != found[2]


# -------------------------------------------------------------------------------------------------------- the commands


def test_init_takes_its_defaults_from_the_schema(tmp_path):
    ROWS.write_parquet(tmp_path / "rows.parquet")
    done = init(tmp_path / "vault", tmp_path / "rows.parquet")
    assert done.exit_code == 0, done.stderr
    policy = read_policy(tmp_path / "vault" / "policy.toml")
    bound = default_clip_norm(read_schema(tmp_path / "schema.toml"), "linear")
    assert (policy.model.name, policy.limits.max_clip_norm) == ("linear", bound)
    with served(tmp_path / "vault") as client:
        info = client.info()
        weights = {name: np.zeros(shape, np.float32) for name, shape in info["parameters"]}
        asked = request(clip_norm=bound, sample_rate=0.2, schema_sha256=info["schema_sha256"])
        assert client.train(asked, weights)


def test_init_warns_that_epsilon_is_for_a_row(tmp_path):
    ROWS.with_row_index("patient").write_csv(tmp_path / "rows.csv")
    done = init(tmp_path / "vault", tmp_path / "rows.csv", schema_text='person = "patient"\n' + TOML)
    assert done.exit_code == 0, done.stderr
    assert "epsilon is for one record" in done.stderr
    assert "--unit person" in done.stderr


def test_init_and_the_start_do_not_depend_on_the_held_out_rows_of_persons(tmp_path, monkeypatch):
    """Neither does an evaluation, but for its noised values and the work within its slot."""
    drawn = secrets.token_hex
    monkeypatch.setattr(secrets, "token_hex", lambda size: KEY.hex() if size == len(KEY) else drawn(size))
    text = 'person = "patient"\n' + TOML
    rows = ROWS.with_columns((pl.int_range(len(ROWS)) // 5).cast(pl.String).alias("patient"))
    is_held_out = held_out_rows(Encoder(parse_schema(tomllib.loads(text))).encode(rows, needs_target=True), 0.2, KEY)
    one = rows.filter(is_held_out)[:1]
    assert 0 < is_held_out.sum() < len(rows)
    told = []
    for name, table_of in (
        ("few", rows),
        ("many", pl.concat([rows, *[one] * 500])),
        ("none", rows.filter(~is_held_out)),
    ):
        (tmp_path / name).mkdir()
        table_of.write_csv(tmp_path / name / "rows.csv")
        done = init(tmp_path / name / "vault", tmp_path / name / "rows.csv", schema_text=text)
        folder = VaultFolder(path=tmp_path / name / "vault")
        monkeypatch.setattr("alidpfl.vault.training._seconds", lambda *_: 1.0)
        with opened(folder) as vault:
            query = EvaluationQuery(task="class", outputs=2)
            asked = ReleaseRequest(run="a", round=0, noise_multiplier=30.0, query=query,
                                   schema_sha256=vault.enrolment.schema_sha256)  # fmt: skip
            weights = {part: np.zeros(shape, np.float32) for part, shape in vault.enrolment.shapes.items()}
            seconds, answer = vault.slots.timetable.seconds(asked, 0), vault.answer(encode(asked, weights))
            info = {**public_info(vault.enrolment, vault.policy), "vault": None}
        texts = [text.replace(str(tmp_path / name), "") for text in (done.stdout, done.stderr)]
        told.append((done.exit_code, texts, info, seconds, len(answer), folder.policy()))
    assert told[0] == told[1] == told[2]
    assert told[0][0] == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--num-classes", 2], "--num-classes 2"),
        (["--data", "rows.npz"], "--data rows.npz"),
        (["--model", "cnn"], "--model linear"),
    ],
)
def test_init_refuses_options_that_do_not_fit_a_table(tmp_path, more, message):
    ROWS.write_csv(tmp_path / "rows.csv")
    done = init(tmp_path / "vault", tmp_path / "rows.csv", *more)
    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "vault").exists()


def test_a_table_needs_a_schema(tmp_path):
    ROWS.write_csv(tmp_path / "rows.csv")
    terms = [str(part) for pair in TERMS.items() for part in pair]
    done = alidpfl(
        "vault", "init", "--dir", tmp_path / "v", "--data", tmp_path / "rows.csv", "--max-clip-norm", 1, *terms
    )
    assert done.exit_code == 2
    assert "--schema" in done.stderr


VALUE = "seventeen-9431"
BAD = {
    "an unknown column": (lambda rows: rows.with_columns(pl.lit(VALUE).alias("note")), ["'note'"]),
    "a text in a number column": (lambda rows: _with(rows, "age", VALUE), ["'age'", "row 4"]),
    "an undeclared class": (lambda rows: _with(rows, "died", VALUE), ["'died'", "row 4"]),
    "an undeclared category": (lambda rows: _with(rows, "sex", VALUE), ["'sex'", "row 4"]),
    "a missing target": (lambda rows: _with(rows, "died", None), ["'died'", "row 4"]),
    "no target column": (lambda rows: rows.drop("died"), ["'died'"]),
    "no rows": (lambda rows: rows[:0], ["no rows"]),
}
CLOSED = TOML.replace('values = ["f", "m"] }', 'values = ["f", "m", "x"], other = false }')


def _with(rows, column, value):
    texts = rows.with_columns(pl.all().cast(pl.String))
    places = pl.Series(range(len(rows))) == 3
    return texts.with_columns(pl.when(~places).then(pl.col(column)).otherwise(pl.lit(value)).alias(column))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("bad", BAD)
def test_bad_input_at_init_and_serve_is_an_error_for_the_owner_without_values(tmp_path, monkeypatch, bad, suffix):
    change, words = BAD[bad]
    path = tmp_path / f"rows.{suffix}"
    write = (lambda rows: rows.write_csv(path)) if suffix == "csv" else (lambda rows: rows.write_parquet(path))
    write(change(ROWS))
    done = init(tmp_path / "bad", path, schema_text=CLOSED)
    _check(done.exit_code, done.stderr, path, words)
    assert not (tmp_path / "bad").exists()
    write(ROWS)
    assert init(tmp_path / "vault", path, schema_text=CLOSED).exit_code == 0
    write(change(ROWS))
    done = not_served(tmp_path / "vault", monkeypatch)
    _check(done.exit_code, done.stderr, path, words)
    assert not (tmp_path / "vault" / SOCKET).exists()  # nobody can ask


@pytest.mark.parametrize("content", [b"", b"PAR1", None])
def test_damaged_files_are_refused_at_init_and_serve(tmp_path, monkeypatch, content):
    path = tmp_path / "rows.parquet"
    ROWS.write_parquet(path)
    whole = path.read_bytes()
    assert init(tmp_path / "vault", path).exit_code == 0
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    done = init(tmp_path / "bad", path)
    _check(done.exit_code, done.stderr, path, [])
    done = not_served(tmp_path / "vault", monkeypatch)
    _check(done.exit_code, done.stderr, path, [])


def not_served(folder, monkeypatch):
    """Return how `alidpfl vault serve` ends. It runs in this process: polars may hang in a forked one."""

    def never(*_arguments):
        raise ConfigError("it would have listened")

    monkeypatch.setattr("alidpfl.vault.service.listening", never)
    return alidpfl("vault", "serve", "--dir", folder)


def _check(exit_code, told, path, words):
    assert exit_code == 2, told
    assert len(told.strip().splitlines()) == 1, told
    assert str(path) in told
    assert all(word in told for word in words), told
    assert VALUE not in told


def test_changed_rows_are_refused(tmp_path):
    folder = table_vault(tmp_path, ROWS)
    ROWS[::-1].write_csv(tmp_path / "rows.csv")
    with pytest.raises(DataError, match="not the enrolled ones"), opened(folder):
        pass
