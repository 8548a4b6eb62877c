"""Numbers and labels in a vault: the loss is a term, and a round of another loss is refused before any charge."""

import hashlib
import json

import numpy as np
import pytest

from alidpfl.errors import ConfigError, DataError
from alidpfl.runs.tables import default_clip_norm
from alidpfl.tables import read_schema
from alidpfl.types import LOSS_KINDS
from alidpfl.vault.enrolment import Enrolment
from alidpfl.vault.folder import ENROLMENT, POLICY, status
from alidpfl.vault.messages import encode, request_digest
from alidpfl.vault.policy import Policy, read_policy
from alidpfl.vault.refusals import PlanRefusedError, RefusalCode
from alidpfl.vault.service import public_info
from tests.runs.command import alidpfl
from tests.tables.parts import task_table, toml

from .parts import NUM_RECORDS, CountingTrainer, body, made_vault, opened, request, spent
from .tables import table_vault
from .test_tables import TERMS

LOSSES = [(name, kind) for name, kind in LOSS_KINDS.items() if kind != "class"]


def save(path, kind, **changes):
    random = np.random.default_rng(0)
    y = {
        "number": random.random(NUM_RECORDS).astype(np.float32),
        "labels": random.integers(2, size=(NUM_RECORDS, 3)),
        "class": random.integers(3, size=NUM_RECORDS),
    }[kind]
    np.savez(path, x=random.normal(size=(NUM_RECORDS, 6)).astype(np.float32), **{"y": y, **changes})
    return path


def task_vault(parent, kind, **changes):
    save(parent / "vault.npz", kind)
    return made_vault(parent, num_classes=3 if kind == "class" else None, **changes)


def asked(vault, **changes) -> bytes:
    values = {"loss": vault.enrolment.loss(vault.policy), "schema_sha256": vault.enrolment.schema_sha256, **changes}
    weights = {name: np.zeros(shape, np.float32) for name, shape in vault.enrolment.shapes.items()}
    return encode(request(**values), weights)


@pytest.mark.parametrize(("loss", "kind"), LOSSES)
def test_files_and_tables_of_every_task_are_served(tmp_path, loss, kind):
    file = task_vault(tmp_path, kind, model__loss=loss)
    rows = table_vault(tmp_path / "table", task_table(kind, 60), kind, model__loss=loss)
    for folder in (file, rows):
        with opened(folder) as vault:
            assert vault.answer(asked(vault))
            info = public_info(vault.enrolment, vault.policy)
        outputs = 3 if kind == "labels" else 1
        assert (info["kind"], info["num_outputs"], info["num_classes"], info["loss"]) == (kind, outputs, 0, loss)
        assert spent(folder) == 2


@pytest.mark.parametrize("kind", ["class", "number", "labels"])
def test_the_loss_follows_from_the_targets(tmp_path, kind):
    folder = task_vault(tmp_path, kind)
    wanted = {"class": "cross_entropy", "number": "squared", "labels": "binary"}[kind]
    with opened(folder) as vault:
        assert public_info(vault.enrolment, vault.policy)["loss"] == wanted
        assert vault.answer(asked(vault))


@pytest.mark.parametrize(
    ("kind", "own", "other"),
    [
        ("number", {}, {"loss": "huber"}),
        ("number", {}, {"loss": "cross_entropy"}),
        ("number", {"model__loss": "quantile", "model__quantile": 0.9}, {"quantile": 0.5}),
        ("labels", {}, {"loss": "squared"}),
        ("class", {}, {"loss": "squared"}),
    ],
)
def test_a_round_of_another_loss_is_refused_and_costs_nothing(tmp_path, kind, own, other):
    folder, trainer = task_vault(tmp_path, kind, **own), CountingTrainer()
    with opened(folder, trainer) as vault:
        with pytest.raises(PlanRefusedError) as refused:
            vault.answer(asked(vault, **{"quantile": vault.policy.model.quantile, **other}))
        assert refused.value.code == RefusalCode.POLICY
        assert (spent(folder), trainer.steps) == (0, 0)
        assert vault.answer(asked(vault, quantile=vault.policy.model.quantile))
        assert trainer.steps == 2
    assert status(folder.path)["refusals"] == {"policy": 1}


@pytest.mark.parametrize(
    ("old", "new"), [('loss = "quantile"', 'loss = "huber"'), ('loss = "quantile"', ""), ("= 0.9", "= 0.8")]
)
def test_the_loss_is_a_term(tmp_path, old, new):
    folder = task_vault(tmp_path, "number", model__loss="quantile", model__quantile=0.9)
    path = folder.path / POLICY
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=r"model\.(loss|quantile) was"), opened(folder):
        pass


def test_a_folder_from_before_there_were_tasks_is_served(tmp_path, monkeypatch):
    """Its enrolment, its terms and the hashes of its rounds have none of the new keys."""
    dump, pinned = Enrolment.model_dump_json, Policy.pinned

    def older(self, **options):
        values = json.loads(dump(self, **options))
        values.pop("kind"), values.pop("num_outputs")
        return json.dumps(values)

    def older_terms(self):
        found = pinned(self)
        found["model"] = {key: value for key, value in found["model"].items() if key in ("name", "hidden")}
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Enrolment, "model_dump_json", older)
        patch.setattr(Policy, "pinned", older_terms)
        folder = made_vault(tmp_path)
    assert "num_outputs" not in (folder.path / ENROLMENT).read_text()
    path = folder.path / POLICY
    path.write_text(path.read_text().replace("quantile = 0.5\n", ""))
    with opened(folder) as vault:
        assert vault.answer(body())
        info = public_info(vault.enrolment, vault.policy)
        assert (info["kind"], info["num_outputs"], info["num_classes"], info["loss"]) == (
            "class",
            3,
            3,
            "cross_entropy",
        )
    path.write_text(path.read_text().replace('name = "linear"', 'name = "linear"\nquantile = 0.9'))
    with pytest.raises(ConfigError, match=r"model\.quantile was 0\.5"), opened(folder):
        pass


def test_rounds_keep_the_hash_that_they_had_before_there_were_tasks():
    later = ("loss", "quantile", "standardised")
    plain = {key: value for key, value in request().model_dump().items() if key not in later}
    known = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    assert known == request_digest(request(), {})
    assert known == request_digest(request(loss="cross_entropy", quantile=0.5), {})
    others = [request(loss="huber"), request(loss="quantile", quantile=0.5), request(loss="quantile", quantile=0.9)]
    assert len({known, *(request_digest(other, {}) for other in others)}) == 4


@pytest.mark.parametrize(
    ("kind", "arrays", "enrolled", "message"),
    [
        ("class", {}, {"num_classes": None}, "--num-classes"),
        ("number", {}, {"num_classes": 3}, "--num-classes 3"),
        ("labels", {}, {"num_classes": 3}, "--num-classes 3"),
        ("number", {}, {"num_classes": None, "model__loss": "binary"}, '"binary"'),
        ("class", {}, {"num_classes": 3, "model__loss": "squared"}, '"squared"'),
        ("number", {"y": np.full(NUM_RECORDS, -1.0)}, {"num_classes": None, "model__loss": "poisson"}, "poisson"),
        ("number", {"y": np.full(NUM_RECORDS, np.nan)}, {"num_classes": None}, "NaN"),
        ("number", {"y": np.full(NUM_RECORDS, np.inf)}, {"num_classes": None}, "infinite"),
        ("number", {"y": np.full(NUM_RECORDS, 1e300)}, {"num_classes": None}, "infinite"),
        ("labels", {"y": np.full((NUM_RECORDS, 3), 2)}, {"num_classes": None}, "0 or 1"),
        ("labels", {"y": np.full((NUM_RECORDS, 3), "yes")}, {"num_classes": None}, "array y"),
    ],
)
def test_what_does_not_fit_is_refused_at_enrolment(tmp_path, kind, arrays, enrolled, message):
    save(tmp_path / "vault.npz", kind, **arrays)
    with pytest.raises((ConfigError, DataError), match=message):
        made_vault(tmp_path, **enrolled)
    assert not (tmp_path / "vault").exists()


@pytest.mark.parametrize(
    ("kind", "more", "loss"),
    [("number", (), "squared"), ("number", ("--loss", "huber"), "huber"), ("labels", (), "binary")],
)
def test_init_takes_its_defaults_from_the_schema(tmp_path, kind, more, loss):
    task_table(kind, 60).write_csv(tmp_path / "rows.csv")
    (tmp_path / "schema.toml").write_text(toml(kind))
    terms = [str(part) for pair in TERMS.items() for part in pair]
    where = ["--dir", tmp_path / "vault", "--schema", tmp_path / "schema.toml", "--data", tmp_path / "rows.csv"]
    done = alidpfl("vault", "init", *where, *terms, *more)
    assert done.exit_code == 0, done.stderr
    policy = read_policy(tmp_path / "vault" / "policy.toml")
    assert policy.limits.max_clip_norm == default_clip_norm(read_schema(tmp_path / "schema.toml"), "linear", loss)
    enrolment = Enrolment.model_validate_json((tmp_path / "vault" / ENROLMENT).read_text())
    assert (enrolment.kind, enrolment.loss(policy)) == (kind, loss)


def test_init_takes_a_file_of_numbers(tmp_path):
    save(tmp_path / "rows.npz", "number")
    terms = [str(part) for pair in TERMS.items() for part in pair]
    where = ["--dir", tmp_path / "vault", "--data", tmp_path / "rows.npz", "--model", "linear", "--max-clip-norm", 1]
    done = alidpfl("vault", "init", *where, *terms, "--loss", "quantile", "--quantile", 0.9)
    assert done.exit_code == 0, done.stderr
    model = read_policy(tmp_path / "vault" / "policy.toml").model
    assert (model.loss, model.quantile) == ("quantile", 0.9)
    assert alidpfl("vault", "init", *where, *terms, "--loss", "none").exit_code == 2
