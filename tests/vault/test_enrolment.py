"""Enrolment and policy: what the owner fixed, and what happens if it changes."""

import json
import re

import numpy as np
import pytest

from alidpfl.dpsgd import RandomStream
from alidpfl.errors import BudgetExceededError, ConfigError, DataError
from alidpfl.vault.folder import ENROLMENT, POLICY, status
from alidpfl.vault.messages import decode_answer
from alidpfl.vault.policy import make_policy
from alidpfl.vault.service import public_info

from .parts import (
    NUM_CLASSES,
    NUM_RECORDS,
    CountingTrainer,
    body,
    made_records,
    made_vault,
    opened,
    policy_values,
    steps_of,
)

# ------------------------------------------------------------------------------------------- what the owner allows


def test_raw_signals_leave_only_where_the_owner_admits_them_and_everything_says_so(tmp_path):
    folder = made_vault(tmp_path, unsafe=["unaccounted-signals"])
    with opened(folder) as vault:
        plain, _ = decode_answer(vault.answer(body()))
        assert (plain.raw, plain.unsafe) == (None, [])
        answer, _ = decode_answer(vault.answer(body(round=1, signals=["raw"])))
        assert answer.raw is not None
        assert answer.unsafe == ["unaccounted-signals"]
    told = status(folder.path)
    assert told["unsafe"] == ["unaccounted-signals"]
    assert (told["covers_everything"], told["rounds_not_covered"]) == (False, {"unaccounted-signals": 1})


def test_randomness_comes_from_the_system_unless_the_owner_says_otherwise(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(RandomStream, "seeded", lambda *path: pytest.fail(f"seeded {path}"))
    secure = RandomStream.secure
    monkeypatch.setattr(RandomStream, "secure", lambda: made.append(secure()) or made[-1])
    with opened(made_vault(tmp_path)) as vault:
        for k in range(3):
            vault.answer(body(round=k))
    assert len(made) == 3
    assert all(stream.is_secure for stream in made)


@pytest.mark.parametrize("changes", [{"seed": 3}, {"unsafe": ["seeded-noise"]}, {"unsafe": ["no-noise"]}])
def test_a_seed_must_be_admitted_by_name(tmp_path, changes):
    with pytest.raises(ConfigError, match=r"seed|unsafe"):
        made_vault(tmp_path, **changes)


# -------------------------------------------------------------------------------------------------------- the folder


def test_terms_cannot_be_changed_once_the_ledger_has_begun(tmp_path):
    folder = made_vault(tmp_path)
    path = folder.path / POLICY
    before = path.read_text()
    for old, new in (
        ("epsilon = 4.0", "epsilon = 40.0"),
        ("delta = 0.001", "delta = 0.01"),
        ("sample_rate = 0.2", "sample_rate = 0.02"),
        ("min_noise_multiplier = 2.0", "min_noise_multiplier = 1.0"),
        ('kind = "planned"', 'kind = "filter"'),
        ('name = "linear"', 'name = "mlp"'),
        ('release = "step"', 'release = "update"'),
        ('accountant = "rdp"', 'accountant = "pld"'),
        ("hidden = 128", "hidden = 64"),
    ):
        assert before.count(old) == 1
        path.write_text(before.replace(old, new))
        changed = rf"\.{old.split()[0]} was .* is {new.split()[-1].strip(chr(34))}"
        with pytest.raises(ConfigError, match=changed), opened(folder):
            pass
        with pytest.raises(ConfigError, match=changed):
            status(folder.path)
    path.write_text(before.replace("max_steps_per_round = 5", "max_steps_per_round = 1"))
    with opened(folder, CountingTrainer()) as vault:  # limits are the owner's to change
        assert steps_of(vault.answer(body(steps=9))) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epsilon = 4.0\nepsilom = 1", r"policy\.toml: .*epsilom"),
        ("epsilon = -4.0", r"policy\.toml: budget\.epsilon=-4\.0 .*> 0"),
        ("epsilon = nan", r"budget\.epsilon=nan .*> 0"),
        ('epsilon = "4"', r"budget\.epsilon='4' .*> 0"),
        ("epsilon = ", "TOML"),
    ],
)
def test_the_policy_file_is_strict(tmp_path, text, message):
    folder = made_vault(tmp_path)
    path = folder.path / POLICY
    path.write_text(path.read_text().replace("epsilon = 4.0", text))
    with pytest.raises(ConfigError, match=message):
        folder.policy()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": 3}, r"budget=3 .*\[budget\]"),
        ({"unsafe": ["no-noise"]}, r"unsafe\.0='no-noise' .*'unaccounted-signals', 'seeded-noise'"),
        ({"unsafe": 1}, r'unsafe=1 .*"unaccounted-signals", "seeded-noise"'),
        ({"anchor": "/mnt/a"}, r"anchor .*`alidpfl vault anchor`"),
        ({"limits__max_noise_multiplier": 1.5}, r"limits\.max_noise_multiplier=1\.5 .*2\.0"),
        ({"limits__max_rounds": 0}, r"limits\.max_rounds=0 "),
        ({"limits__on_excess": "drop"}, r"limits\.on_excess='drop' .*'cut', 'refuse'"),
        ({"limits__max_steps_per_round": True}, r"limits\.max_steps_per_round=true "),
        ({"terms": {"sample_rate": 0.1}}, r"terms\.min_noise_multiplier "),
    ],
)
def test_a_refused_policy_names_key_and_value(changes, message):
    with pytest.raises(ConfigError, match=f"^here: {message}"):
        make_policy(policy_values(**changes), "here")


def test_changed_data_are_refused_without_quoting_them(tmp_path):
    folder = made_vault(tmp_path)
    made_records(tmp_path / "vault.npz", seed=1)
    with pytest.raises(DataError, match="enrolled") as caught, opened(folder):
        pass
    with np.load(tmp_path / "vault.npz") as arrays:
        assert not [value for value in arrays["x"].flat if str(value)[:5] in str(caught.value)]
    assert re.search("[0-9a-f]{32}", str(caught.value)) is None  # nor a hash of them


def test_changed_classes_are_other_data_too(tmp_path):
    folder = made_vault(tmp_path)
    with np.load(tmp_path / "vault.npz") as arrays:
        inputs, classes = arrays["x"], arrays["y"]
    np.savez(tmp_path / "vault.npz", x=inputs, y=(classes + 1) % NUM_CLASSES)
    with pytest.raises(DataError, match="enrolled"), opened(folder):
        pass


def test_a_changed_enrolment_is_refused(tmp_path):
    folder = made_vault(tmp_path)
    path = folder.path / ENROLMENT
    path.write_text(path.read_text().replace(f'"num_records": {NUM_RECORDS}', '"num_records": 4000'))
    with pytest.raises(DataError, match=ENROLMENT), opened(folder):
        pass


def test_an_anchor_in_the_vaults_own_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=str(tmp_path / "inside" / "anchor")):
        made_vault(tmp_path, "inside", anchor=str(tmp_path / "inside" / "anchor"))
    assert not (tmp_path / "inside").exists()


def test_a_data_set_is_enrolled_once(tmp_path):
    made_vault(tmp_path)
    with pytest.raises(ConfigError, match=str(tmp_path / "vault")):
        made_vault(tmp_path)
    anchor = tmp_path / "anchor"
    made_vault(tmp_path, "other", anchor=str(anchor))
    with pytest.raises(ConfigError, match=str(anchor)):
        made_vault(tmp_path, "third", anchor=str(anchor))
    assert not (tmp_path / "third").exists()


def test_terms_that_pay_for_nothing_are_refused_before_anything_is_made(tmp_path):
    for kind in ("planned", "filter"):
        with pytest.raises(BudgetExceededError):
            made_vault(tmp_path, budget__epsilon=0.01, accounting__kind=kind, anchor=str(tmp_path / "anchor"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vault.npz"]


def test_nothing_public_tells_of_the_records(tmp_path):
    with opened(made_vault(tmp_path)) as vault:
        vault.answer(body())
        told = json.dumps(public_info(vault.enrolment, vault.policy))
        assert vault.enrolment.data_sha256 not in told
    told += json.dumps(status(tmp_path / "vault"))
    assert vault.enrolment.data_sha256 not in told
    assert "vault.npz" not in told
