"""`alidpfl flower demo`, and so `make demo-flower`: real processes, TLS, and no process left."""

import json
import re
from pathlib import Path

import pytest

from alidpfl.flower import demo
from alidpfl.flower.demo import loopback
from alidpfl.vault.folder import VaultFolder
from tests.runs.command import alidpfl
from tests.tables.parts import hospitals, table


@pytest.mark.slow  # tests/flower/test_deployment.py checks the same of nodes that it starts itself
def test_the_demo_trains_books_what_it_spent_and_leaves_no_process(tmp_path):
    folder = tmp_path / "kept"
    done = alidpfl("flower", "demo", "--nodes", 1, "--rounds", 1, "--keep", folder)
    assert done.exit_code == 0, done.stdout + done.stderr
    assert "TLS" in done.stdout
    asked = re.search(r"round 1: (\d+) steps .*, epsilon ([\d.]+) asked for, accuracy ([\d.]+) %", done.stdout)
    spent = re.search(r"│ 0 +│ (\d+) +│ ([\d.]+) +│ 2.0 │ 1e-05 │ 1 +│ 0 +│", done.stdout)
    assert asked, done.stdout
    assert spent, done.stdout
    assert float(spent[2]) == float(asked[2])  # the vault's own account agrees with the server's
    assert 0 < float(spent[2]) <= 2
    assert float(asked[3]) > 30  # of ten classes
    assert json.loads((folder / "run" / "summary.json").read_text())["rounds"] == 1
    assert not _processes_of(folder)


@pytest.mark.slow  # tests/flower/test_tables.py deploys tables too
def test_the_demo_trains_on_tables(tmp_path):
    files = hospitals(tmp_path, (150, 250))
    table(60, seed=9).write_csv(tmp_path / "test.csv")
    folder = tmp_path / "kept"
    where = ["--schema", tmp_path / "schema.toml", "--data", tmp_path / "test.csv", *files]
    done = alidpfl("flower", "demo", *where, "--rounds", 1, "--keep", folder, "--insecure")
    assert done.exit_code == 0, done.stdout + done.stderr
    assert re.search(r"round 1: .* accuracy [\d.]+ %", done.stdout), done.stdout
    assert alidpfl("predict", folder / "run", files[0], "-o", tmp_path / "scores.csv").exit_code == 0
    assert (tmp_path / "scores.csv").read_text().count("\n") == 151
    assert not _processes_of(folder)


@pytest.mark.slow
def test_the_demo_protects_persons(tmp_path):
    files = hospitals(tmp_path, (150, 250), has_persons=True)
    folder, unit = tmp_path / "kept", ["--set", "privacy.unit=person", "--set", "privacy.max_records=3"]
    where = ["--schema", tmp_path / "schema.toml", "--data", *files, "--keep", folder, "--insecure", "--rounds", 1]
    done = alidpfl("flower", "demo", *where, *unit, "--set", 'data.standardise="none"')
    assert done.exit_code == 0, done.stdout + done.stderr
    assert "persons" in done.stdout
    told = json.loads((folder / "run" / "summary.json").read_text())
    assert (told["unit"], told["rounds"]) == ("person", 1)
    for vault in ("0", "1"):
        (path,) = folder.rglob(f"vault-{vault}/policy.toml")
        assert 'unit = "person"\nmax_records = 3\n' in path.read_text()
    assert alidpfl("predict", folder / "run", files[0], "-o", tmp_path / "scores.csv").exit_code == 0
    assert not _processes_of(folder)


class Enrolling:
    """A deployment that enrols vaults in this process, and ends before it starts one."""

    def __init__(self, folder, *, nodes, **_):
        self.folder, self.nodes = folder, nodes

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def vault_folder(self, client):
        return self.folder / f"vault-{client}"

    def start_vault(self, client):
        pass

    def start_superlink(self):
        raise loopback.LoopbackError("nothing starts in this test")

    def alidpfl(self, *arguments):
        done = alidpfl(*arguments)
        assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize("kind", ["class", "number", None])
def test_vaults_are_enrolled_on_terms_that_fit_the_run(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(loopback, "Loopback", Enrolling)
    overrides, tables = ["method.clip_norm=3.76"], None
    if kind is not None:
        files = hospitals(tmp_path, (150, 250), kind=kind)
        tables = demo.Tables(schema=tmp_path / "schema.toml", clients=tuple(files))
        overrides += ['data.standardise="private"', "privacy.statistics_noise=31.0"]
    with pytest.raises(loopback.LoopbackError, match="nothing starts"):
        demo.run_demo(
            tmp_path, nodes=2, rounds=1, insecure=True, say=lambda _: None, tables=tables, overrides=overrides
        )
    for client in (0, 1):
        policy = VaultFolder(path=tmp_path / f"vault-{client}").policy()
        assert policy.limits.max_clip_norm == 3.76
        assert kind is None or 30 < policy.statistics.noise_multiplier < 31


def test_a_wrong_setting_ends_the_demo_before_it_enrols_anything(tmp_path):
    done = alidpfl("flower", "demo", "--set", "privacy.unit=person", "--keep", tmp_path / "kept")
    assert done.exit_code == 2
    assert "privacy.unit" in done.stderr
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("more", [["--schema", "schema.toml"], ["--data", "north.csv"]])
def test_the_demo_needs_schema_and_tables_together(tmp_path, more):
    done = alidpfl("flower", "demo", *more, "--keep", tmp_path / "kept")
    assert done.exit_code == 2
    assert "--schema and --data" in done.stderr


def test_the_demo_has_one_node_for_each_table(tmp_path):
    files = hospitals(tmp_path)
    where = ["--schema", tmp_path / "schema.toml", "--data", *files]
    done = alidpfl("flower", "demo", *where, "--nodes", 3, "--keep", tmp_path / "kept")
    assert done.exit_code == 2
    assert "--nodes 3" in done.stderr


def test_the_demo_does_not_write_into_a_folder_that_exists(tmp_path):
    done = alidpfl("flower", "demo", "--keep", tmp_path)
    assert done.exit_code == 2
    assert str(tmp_path) in done.stderr


def test_without_flower_the_demo_says_so_before_it_enrols_anything(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda _name: None)
    done = alidpfl("flower", "demo", "--keep", tmp_path / "kept")
    assert (done.exit_code, done.stdout) == (2, "")
    assert ".[flower]" in done.stderr
    assert not (tmp_path / "kept").exists()


def _processes_of(folder: Path) -> list[str]:
    """Processes that name the folder in their command, or like Flower's own in their environment (FLWR_HOME)."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:  # gone in the meantime
            continue
        if str(folder).encode() in told:
            found.append(told.replace(b"\0", b" ").decode(errors="replace"))
    return found
