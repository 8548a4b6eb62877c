"""`alidpfl vault` on the command line."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from alidpfl.runs import load_config
from alidpfl.runs.prepare import prepare
from alidpfl.vault.folder import HEAD, LEDGER, POLICY, REFUSALS, SLOTS, SOCKET, VaultFolder, status
from alidpfl.vault.heads import Head, state_head
from alidpfl.vault.messages import encode
from alidpfl.vault.policy import check_plan, read_policy
from alidpfl.vault.refusals import PlanRefusedError, RefusalCode, VaultRefusedError, refusal
from alidpfl.vault.slots import SlotLog
from alidpfl.vault.sources import SplitSource
from tests.runs.command import alidpfl, forked

from .parts import body, machine, made_records, made_vault, not_served, opened, request, served, weights

ROOT = Path(__file__).parent.parent.parent
NUMBERS = {
    "--epsilon": 2,
    "--delta": 1e-5,
    "--sample-rate": 0.1,
    "--min-noise-multiplier": 2,
    "--max-clip-norm": 1,
    "--max-steps-per-round": 5,
    "--accountant": "rdp",
    "--model": "linear",
}


def init(folder, *arguments, **changes):
    options = NUMBERS | {f"--{key.replace('_', '-')}": value for key, value in changes.items()}
    given = [str(part) for pair in options.items() if pair[1] is not None for part in pair]
    return alidpfl("vault", "init", "--dir", folder, *given, *arguments)


@pytest.fixture
def records(tmp_path):
    return made_records(tmp_path / "records.npz")


def test_init_status_serve(tmp_path, records):
    folder = tmp_path / "a" / "vault"  # also where the parent does not exist yet
    done = init(folder, data=records, num_classes=3, anchor=tmp_path / "anchor")
    assert done.exit_code == 0, done.stderr
    assert "enrolled 40 records" in done.stdout
    policy = read_policy(folder / POLICY)
    assert (policy.budget.epsilon, policy.limits.max_steps_per_round, policy.unsafe) == (2.0, 5, [])
    assert (policy.limits.max_rounds, policy.max_noise_multiplier) == (10_000, 100.0)
    assert (tmp_path / "anchor").read_bytes() == (folder / HEAD).read_bytes()
    told = alidpfl("vault", "status", "--dir", folder)
    assert told.exit_code == 0
    assert "0.0000 of 2 at δ = 1e-05" in told.stdout
    assert re.search(r"being served +│ no ", told.stdout)
    assert re.search(rf"anchor +│ {tmp_path / 'anchor'} ", told.stdout)
    with served(VaultFolder(path=folder)) as (process, client):
        client.train_bytes(body(sample_rate=0.1))
        with pytest.raises(PlanRefusedError) as caught:
            client.train_bytes(b"nonsense")
        assert caught.value.code is RefusalCode.MALFORMED
        assert str(folder / SOCKET) in process.log.read_text()
        assert "note: " in process.log.read_text()  # the anchor is on the vault's own disk
        told = alidpfl("vault", "status", "--dir", folder)
        assert re.search(rf"being served +│ yes, by process {process.pid} on ", told.stdout)
    told = alidpfl("vault", "status", "--dir", folder)
    assert "1 in 1 runs; at most 9999 more" in told.stdout
    assert re.search(r"time slot +│ [0-9.e-]+ s and [0-9.e-]+ s a step", told.stdout)
    assert re.search(r"slots overrun +│ [0-9]+ ", told.stdout)
    assert "1 malformed" in told.stdout
    assert "nonsense" not in told.stdout
    assert re.search(r"being served +│ no ", told.stdout)  # it was killed, and its lock file still has its name


def test_a_budget_that_hides_next_to_nothing_is_told(tmp_path, records):
    """The ledger keeps the budget for ever, so the warning comes before the first round."""
    weak, strong = (
        init(tmp_path / name, data=records, num_classes=3, epsilon=epsilon, delta=delta, min_noise_multiplier=2)
        for name, epsilon, delta in (("weak", 30, 0.5), ("strong", 2, 1e-5))
    )
    assert (weak.exit_code, strong.exit_code) == (0, 0)
    told = " ".join(weak.stderr.split())
    assert "warning: epsilon=30" in told
    assert re.search(r"delta=0\.5 .*1/40", told)
    assert str(tmp_path / "weak") in told
    assert "warning" not in strong.stderr
    shown = [alidpfl("vault", "status", "--dir", tmp_path / name).stdout for name in ("weak", "strong")]
    assert ["WEAK" in one for one in shown] == [True, False]


def test_what_the_warning_of_a_weak_budget_says_can_be_done(tmp_path, records):
    """A deleted folder leaves its anchor, and then the data set cannot be enrolled again."""
    folder, anchor = tmp_path / "weak", tmp_path / "elsewhere" / "anchor"
    anchor.parent.mkdir()
    options = {"data": records, "num_classes": 3, "anchor": anchor}
    told = " ".join(init(folder, **options, epsilon=30).stderr.split())
    assert f"{folder} and {anchor}" in told
    shutil.rmtree(folder)
    assert init(folder, **options, epsilon=2).exit_code == 2
    anchor.unlink()
    assert init(folder, **options, epsilon=2).exit_code == 0


def test_the_program_in_the_documentation_talks_to_a_vault(tmp_path):
    folder = made_vault(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "how-to" / "vault.md").read_text(), re.DOTALL)
    where = "/var/lib/alidpfl/hospital-a/vault.sock"
    assert where in code
    program = tmp_path / "talk.py"
    program.write_text(
        code.replace(where, str(folder.path / SOCKET)) + '\nassert "torch" not in __import__("sys").modules\n'
    )
    with served(folder):
        done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"2 steps run, \d+ left\n", done.stdout)


def test_the_run_in_the_documentation_fits_its_vault(tmp_path):
    """docs/how-to/deploy.md: the command that enrols and the run.toml beside it, with other paths."""
    text = (ROOT / "docs" / "how-to" / "deploy.md").read_text()
    (command,) = re.findall(r"alidpfl (vault init .*?)\n```", text, re.DOTALL)
    (run,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    places = {"/var/lib/alidpfl/patients.npz": made_records(tmp_path / "p.npz")}
    places |= {
        "/var/lib/alidpfl/hospital-a": tmp_path / "v",
        "/mnt/other-disk/alidpfl/hospital-a.anchor": tmp_path / "a",
    }
    arguments = shlex.split(command.replace("\\\n", " "))
    done = alidpfl(*[places.get(argument, argument) for argument in arguments])
    assert done.exit_code == 0, done.stderr
    policy = read_policy(tmp_path / "v" / POLICY)
    (tmp_path / "run.toml").write_text(run)
    config = load_config(tmp_path / "run.toml")
    asked = request(
        sample_rate=config.privacy.sample_rate,
        noise_multiplier=config.privacy.noise_multiplier,
        clip_norm=config.method.clip_norm,
    )
    check_plan(asked, policy)
    assert config.model.name == policy.model.name
    assert config.privacy.epsilon <= policy.budget.epsilon


@pytest.mark.parametrize(
    "content",
    [b"x,y\n1,2\n", b"PK\x03\x04 cut"],
)
def test_init_names_a_file_that_cannot_be_read(tmp_path, content):
    (tmp_path / "records.npz").write_bytes(content)
    refused = init(tmp_path / "vault", data=tmp_path / "records.npz", num_classes=3)
    assert refused.exit_code == 2
    assert str(tmp_path / "records.npz") in refused.stderr
    assert "unsafe" not in refused.stderr


HOSTILE = ("[/x]", "\x1b[2J\nround 9: all is well", "[bold]\u202e", "\x9b2J\r", "x" * 5000)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_server_cannot_write_on_the_owners_terminal(tmp_path, text):
    """A refusal quotes keys and names of tensors, which the server chooses."""
    folder = made_vault(tmp_path)
    asked = json.dumps({**request().model_dump(), text: 1})
    sent = (
        safetensors.numpy.save(weights(), {"alidpfl": asked}),
        encode(request(), {text: weights()["1.bias"]}),
    )
    with opened(folder, object()) as vault:
        for content in sent:
            with pytest.raises(VaultRefusedError) as caught:
                vault.answer(content)
            assert str(caught.value).isprintable()
            assert len(str(caught.value)) <= 600
    check_status_is_harmless(folder, shown="malformed: [/x]" if text == "[/x]" else "malformed: ")


@pytest.mark.parametrize("text", HOSTILE)
def test_any_refusal_is_one_line_of_bounded_length(text):
    """Also if a caller makes it from the answer of a hostile vault."""
    told = str(refusal(RefusalCode.MODEL, text * 1000))
    assert told.isprintable()
    assert len(told) == 600


@pytest.mark.parametrize("text", HOSTILE)
def test_nor_through_what_an_older_version_has_noted(tmp_path, text):
    folder = made_vault(tmp_path)
    noted = {"counts": {"model": 1}, "last": [{"time": 0, "code": "model", "message": text}]}
    (folder.path / REFUSALS).write_text(json.dumps(noted))
    check_status_is_harmless(folder, shown="model: ")


def check_status_is_harmless(folder, shown):
    told = alidpfl("vault", "status", "--dir", folder.path)
    assert told.exit_code == 0
    assert shown in told.stdout
    assert all(line.isprintable() for line in told.stdout.split("\n"))
    assert not any(line.startswith("round 9") for line in told.stdout.split("\n"))


def test_init_writes_limits_and_status_shows_overruns(tmp_path, records):
    folder = tmp_path / "vault"
    assert init(folder, data=records, num_classes=3, max_noise_multiplier=30, max_rounds=7).exit_code == 0
    limits = read_policy(folder / POLICY).limits
    assert (limits.max_noise_multiplier, limits.max_rounds) == (30.0, 7)
    SlotLog(folder / SLOTS).note_overrun("run-7", 3, 0.25, 0.75)
    told = alidpfl("vault", "status", "--dir", folder)
    assert re.search(r"slots overrun +│ 1 ", told.stdout)
    assert "round 3 of run-7: 0.75 s in a slot of 0.25 s" in told.stdout
    assert "at most 7 more" in told.stdout
    assert json.loads(alidpfl("vault", "status", "--dir", folder, "--json").stdout)["overruns"] == 1


def test_init_refuses_what_it_cannot_keep(tmp_path, records):
    folder = tmp_path / "vault"
    for arguments, message in (
        ({"data": records}, "--num-classes"),
        ({"data": records, "num_classes": 2}, "num_classes=2"),
        ({"data": records, "num_classes": 1}, "--num-classes=1 "),
        ({"data": tmp_path / "none.npz", "num_classes": 3}, "none.npz"),
        ({"data": "strikes"}, "--data strikes: "),
        ({"data": "strokes", "client": -1}, "--client=-1 "),
        ({"data": "strokes", "beta": 0}, "--beta=0.0 "),
        ({"data": "synthetic", "client": 10}, "clients=10"),
        ({"data": records, "num_classes": 3, "epsilon": -1}, "--epsilon=-1.0 "),
        ({"data": records, "num_classes": 3, "epsilon": 0.01}, "epsilon=0.01"),
        ({"data": records, "num_classes": 3, "sample_rate": 32}, "--sample-rate=32.0 "),
        ({"data": records, "num_classes": 3, "min_noise_multiplier": 0}, "--min-noise-multiplier=0.0 "),
        (
            {"data": records, "num_classes": 3, "model": "cnn"},
            "--model linear",
        ),
        ({"data": records, "num_classes": 3, "min_clip_norm": 2}, "min_clip_norm=2.0 "),
        ({"data": records, "num_classes": 3, "max_noise_multiplier": 1}, "max_noise_multiplier=1.0 "),
        ({"data": records, "num_classes": 3, "max_rounds": 0}, "--max-rounds=0 "),
        ({"data": records, "num_classes": 3, "anchor": tmp_path / "no" / "anchor"}, str(tmp_path / "no")),
    ):
        refused = init(folder, **arguments)
        assert refused.exit_code == 2, arguments
        assert message in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == ["records.npz"]
    unknown = init(folder, data=records, num_classes=3, model="resnet")
    assert unknown.exit_code == 2
    assert "'--model': 'resnet' is not one of 'cnn'," in unknown.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["records.npz"]
    assert init(folder, data=records, num_classes=3).exit_code == 0
    again = init(folder, data=records, num_classes=3)
    assert again.exit_code == 2
    assert str(folder) in again.stderr


@pytest.mark.parametrize("command", ["serve", "status"])
def test_a_folder_that_is_no_vault(tmp_path, command):
    refused = alidpfl("vault", command, "--dir", tmp_path)
    assert refused.exit_code == 2
    assert str(tmp_path) in refused.stderr


def test_a_group_needs_a_socket_that_it_can_reach(tmp_path):
    made_vault(tmp_path)
    refused = alidpfl("vault", "serve", "--dir", tmp_path / "vault", "--group", "root")
    assert refused.exit_code == 2
    assert "--socket" in refused.stderr


def test_a_head_noted_down_betrays_a_restored_snapshot(tmp_path):
    """Without an anchor, nothing else detects it if the state folder is restored too. The vault says so."""
    folder = made_vault(tmp_path)
    state = state_head(Head.read(folder.path / HEAD).vault)
    snapshot = {path: path.read_bytes() for path in (folder.path / LEDGER, folder.path / HEAD, state)}
    with opened(folder) as vault:
        vault.answer(body())
    head, newest = status(folder.path)["head"], state.read_bytes()
    for path, content in snapshot.items():
        path.write_bytes(content)
    assert str(folder.path / LEDGER) in not_served(folder, "--head", head)
    with served(folder) as (process, _):
        assert "note: " in process.log.read_text()
        assert status(folder.path)["units_spent"] == 0
    state.write_bytes(newest)
    assert str(state) in not_served(folder)


def test_a_user_who_never_served_a_vault_needs_a_noted_head(tmp_path):
    """Otherwise a copy from before the anchor would be served wherever nobody knows of the anchor."""
    folder = made_vault(tmp_path)
    head = status(folder.path)["head"]
    with machine(tmp_path / "other"):
        assert "--head" in not_served(folder)
        assert status(folder.path)["head"] == head  # it changes nothing, so it needs no voucher
        with served(folder, "--head", head):
            pass
        with served(folder):  # known from now on
            pass


def test_what_the_owner_admitted_is_said_at_every_turn(tmp_path):
    folder = made_vault(tmp_path, unsafe=["unaccounted-signals", "seeded-noise"], seed=1)
    with served(folder) as (process, client):
        assert re.search("warning: .*unaccounted-signals, seeded-noise", process.log.read_text())
        assert client.info()["unsafe"] == ["unaccounted-signals", "seeded-noise"]
        client.train_bytes(body())
        client.train_bytes(body(round=1, signals=["raw"]))
    told = alidpfl("vault", "status", "--dir", folder.path).stdout
    assert re.search("UNSAFE .*unaccounted-signals, seeded-noise", told)
    assert "2 rounds by seeded-noise, 1 rounds by unaccounted-signals" in told


def test_interrupted_by_hand(tmp_path):
    import os
    import signal

    folder = made_vault(tmp_path)
    with served(folder) as (process, _):
        os.kill(process.pid, signal.SIGINT)
        assert process.wait() == 130


def test_a_share_to_try_out_is_the_one_of_a_simulated_run():
    """Otherwise a deployment on one machine could not be compared with `alidpfl run`."""
    overrides = ["data.name=synthetic", "data.clients=4", "model.name=linear", "run.seed=3", "data.validation=0.1"]
    for partition in ("natural", "dirichlet", "iid"):
        prepared = prepare(load_config(overrides=[*overrides, f"data.partition={partition}", "accountant=rdp"]))
        with prepared.federation as federation:
            shared = federation._engine._data.client(2)
        source = SplitSource(name="synthetic", client=2, clients=4, seed=3, validation=0.1, partition=partition)
        found = source.load()
        own = found.trained.records
        assert found.num_outputs == 10
        assert torch.equal(own.inputs, shared.inputs[shared.rows])
        assert torch.equal(own.targets, shared.targets[shared.rows])


def test_pixels_are_scaled_as_in_a_run(tmp_path):
    np.savez(tmp_path / "p.npz", x=np.full((8, 1, 16, 16), 255, np.uint8), y=np.arange(8) % 2)
    done = init(tmp_path / "v", data=tmp_path / "p.npz", num_classes=2, model="compact_cnn")
    assert done.exit_code == 0, done.stderr
    folder = VaultFolder(path=tmp_path / "v")
    enrolment, _, _ = folder.read(folder.policy())
    records = enrolment.source.load().trained.records
    assert float(records.inputs.min()) == 1.0
    process = forked(tmp_path / "log", "vault", "status", "--dir", tmp_path / "v")
    assert process.wait() == 0
