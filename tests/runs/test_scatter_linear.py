"""`scatter_linear`: its two releases are made once, charged first, noised, and a part of the claim."""

import math
import shutil

import numpy as np
import pytest
import torch

from alidpfl import RunDirectory, execute, load_model, resume
from alidpfl.data import held_out_rows
from alidpfl.data.dataset import scaled_images
from alidpfl.dpsgd import RandomStream, SoftmaxClipper, noised_total
from alidpfl.dpsgd.softmax import _MARGIN
from alidpfl.errors import BudgetExceededError, ConfigError, DataError
from alidpfl.features import vector_size
from alidpfl.federation import client as client_module
from alidpfl.flower.config import FlowerOptions
from alidpfl.flower.run import prepare_over_nodes
from alidpfl.privacy import GaussianRelease, PrivacyBudget, SampledGaussian, epsilon, noise_multiplier_for
from alidpfl.runs import features as featured
from alidpfl.runs import load_config
from alidpfl.runs.auto_plan import planned
from alidpfl.runs.execute import Listener
from alidpfl.runs.features import map_for
from alidpfl.runs.prepare import make_parts, prepare
from tests.features.filter_files import GARMENTS, LEAVES

SHAPE = (1, 16, 16)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def images(count, seed):
    """Three classes of stripes, with noise."""
    random = np.random.default_rng(seed)
    y = np.arange(count) % 3
    row, column = np.mgrid[:16, :16]
    waves = np.stack([np.sin(row), np.sin(column), np.sin(row + column)])
    return (120 + 80 * waves[y][:, None] + random.integers(0, 50, (count, *SHAPE))).astype(np.uint8), y


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    for seed, name in enumerate(("a", "b", "c", "test")):
        x, y = images(90, seed)
        np.savez(path / f"{name}.npz", x=x, y=y)
    return path


def settings(folder, **changes):
    values = {
        "data.name": "npz",
        "data.data_dir": str(folder),
        "data.num_classes": 3,
        "model.name": "scatter_linear",
        "model.frequencies": 3,
        "privacy.epsilon": 20.0,
        "privacy.sample_rate": 0.5,
        "method.name": "fedavg_dp",
        "method.clip_norm": 0.2,
        "method.learning_rate": 20.0,
        "method.schedule": "constant",
        "federation.max_rounds": 8,
        "run.evaluate_every": 6,
        "run.processes": 1,
    } | {key.replace("__", "."): value for key, value in changes.items()}
    return load_config(overrides=[f"{key}={_toml(value)}" for key, value in values.items()])


def _toml(value):
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else repr(value)


def test_the_releases_are_in_the_account_and_in_the_rounds(folder, tmp_path):
    config = settings(folder)
    outcome = execute(config, tmp_path / "run")
    noise = noise_multiplier_for(
        PrivacyBudget(epsilon=20.0, delta=1e-5),
        0.5,
        6,
        already_spent=[GaussianRelease(noise_multiplier=10.0, count=2)],
    )
    assert outcome.noise_multiplier == noise
    assert outcome.rounds == outcome.steps == 6  # of eight: two were for the statistics
    spent = [
        GaussianRelease(noise_multiplier=10.0, count=2),
        SampledGaussian(sample_rate=0.5, noise_multiplier=noise, steps=6),
    ]
    assert outcome.epsilon == epsilon(spent, 1e-5) <= 20.0
    assert outcome.epsilon > epsilon(spent[1:], 1e-5)
    assert outcome.covers_everything
    assert outcome.accuracy > 90
    records = RunDirectory.open(tmp_path / "run").records()
    assert records[0].epsilon > epsilon([spent[0]], 1e-5)


def test_the_account_is_opened_before_any_image_is_read(folder, monkeypatch):
    """Charge first: a budget that the releases alone overdraw is refused while the data are still closed."""
    monkeypatch.setattr(featured, "load_or_compute", lambda *_: pytest.fail("features before the account"))
    config = settings(folder, privacy__epsilon=0.3, privacy__statistics_noise=1.0)
    with pytest.raises(BudgetExceededError, match="already_spent"):
        prepare(config)


@pytest.mark.parametrize("learned", [[], [LEAVES], [GARMENTS, LEAVES]])
def test_the_model_holds_all_that_a_prediction_needs(folder, tmp_path, learned):
    config = settings(folder, model__learned=learned)
    outcome = execute(config, tmp_path / "run")
    x, y = images(90, 3)
    with torch.no_grad():
        scores = load_model(tmp_path / "run")(scaled_images(x, config.data.pixel_range))
    assert 100 * float((scores.argmax(1).numpy() == y).mean()) == outcome.accuracy


@pytest.mark.parametrize("randomness", ["seeded", "secure"])
def test_every_client_adds_noise_of_its_own_to_clipped_sums(folder, monkeypatch, randomness):
    calls = []

    def watched(vectors, size, *, clip_norm, noise_multiplier, random, noise):
        pieces = list(vectors)
        assert noise == "gaussian"
        assert random.is_secure == (randomness == "secure")
        calls.append((sum(len(p) for p in pieces), clip_norm, noise_multiplier, random.normal(4).tolist()))
        return noised_total(pieces, size, clip_norm=clip_norm, noise_multiplier=noise_multiplier, random=random)

    monkeypatch.setattr(featured, "noised_total", watched)
    changes = {"model__deviation_clip": 0.07, "privacy__statistics_noise": 12.0, "run__randomness": randomness}
    prepare(settings(folder, **changes))
    assert [call[:3] for call in calls] == [(90, 1.0, 12.0)] * 3 + [(90, 0.07, 12.0)] * 3
    assert len({tuple(call[3]) for call in calls}) == 6
    training = {tuple(RandomStream.seeded(0, k, c).normal(4).tolist()) for k in range(8) for c in range(3)}
    assert not training & {tuple(call[3]) for call in calls}


def test_statistics_are_of_the_clients_alone(folder):
    """What no client holds, the test set and the held-out part, does not move them."""
    config = settings(folder, data__validation=0.2)
    before = prepare(config).statistics
    x, y = images(90, 77)
    np.savez(folder / "test.npz", x=255 - x, y=y)
    _, held_out = held_out_rows(270, 0.2, seed=0)
    for number, name in enumerate("abc"):
        x, y = images(90, number)
        own = held_out[(held_out >= 90 * number) & (held_out < 90 * (number + 1))] - 90 * number
        x[own] = 255 - x[own]
        np.savez(folder / f"{name}.npz", x=x, y=y)
    after = prepare(config).statistics
    assert torch.equal(before["mean"], after["mean"])
    assert torch.equal(before["scale"], after["scale"])
    x[:] = 255 - x
    np.savez(folder / "c.npz", x=x, y=y)
    assert not torch.equal(before["mean"], prepare(config).statistics["mean"])


def test_statistics_estimate_what_they_should(folder):
    feature_map = map_for(settings(folder), SHAPE)
    features = feature_map.compute(torch.from_numpy(np.concatenate([images(90, seed)[0] for seed in range(3)])))
    true = torch.cat([values.mean(0) for values in features.values()])
    squares = (features["scattering"] - true[: features["scattering"].shape[1]]).square()
    clip = 1.01 * float(squares.norm(dim=1).max())
    config = settings(folder, privacy__epsilon=1e4, privacy__statistics_noise=0.02, model__deviation_clip=clip)
    found = prepare(config).statistics
    torch.testing.assert_close(found["mean"], true, rtol=0, atol=6 * 0.02 * math.sqrt(3) / 270)
    expected = featured.Standardiser.from_statistics(feature_map, mean=true, variance=squares.mean(0)).scale
    torch.testing.assert_close(found["scale"], expected, rtol=0.1, atol=0)
    assert expected.max() > 1.5 * expected.min()  # else anything would do


@pytest.mark.parametrize("randomness", ["seeded", "secure"])
def test_a_run_that_goes_on_keeps_its_statistics(folder, tmp_path, monkeypatch, randomness):
    config = settings(folder, run__randomness=randomness)
    with pytest.raises(_KilledError):
        execute(config, tmp_path / "run", listener=Listener(on_round=_killer(after=2)))
    kept = RunDirectory.open(tmp_path / "run").statistics()
    monkeypatch.setattr(featured, "noised_total", lambda *_, **__: pytest.fail("released twice"))
    outcome = resume(tmp_path / "run")
    assert outcome.epsilon <= 20.0
    tensors, _ = RunDirectory.open(tmp_path / "run").read_model()
    for name, values in kept.items():
        assert torch.equal(tensors[f"features.{name}"], values)


def test_resumed_is_as_if_never_stopped(folder, tmp_path):
    execute(settings(folder), tmp_path / "whole")
    with pytest.raises(_KilledError):
        execute(settings(folder), tmp_path / "run", listener=Listener(on_round=_killer(after=3)))
    resume(tmp_path / "run")
    for name in ("metrics.jsonl", "model.safetensors", "statistics.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_lost_or_exchanged_statistics_are_refused(folder, tmp_path):
    with pytest.raises(_KilledError):
        execute(settings(folder), tmp_path / "run", listener=Listener(on_round=_killer(after=1)))
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    (tmp_path / "run" / "statistics.safetensors").unlink()
    with pytest.raises(DataError, match=r"statistics\.safetensors"):
        resume(tmp_path / "run")
    directory = RunDirectory.open(tmp_path / "other")
    true = directory.statistics()
    for false in (
        {name: values + 1 for name, values in true.items()},
        {name: values[None] for name, values in true.items()},
        {name: values.bfloat16() for name, values in true.items()},
        {"mean": true["mean"]},
        {**true, "more": true["mean"]},
    ):
        directory.write_statistics(false)
        with pytest.raises(DataError, match=r"statistics\.safetensors"):
            resume(tmp_path / "other")
    directory.write_statistics({name: values * math.nan for name, values in true.items()})
    with pytest.raises(DataError, match=r"statistics\.safetensors"):
        resume(tmp_path / "other")


def test_what_a_killed_start_left_is_not_taken_over(folder, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    execute(settings(folder, run__seed=5), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "statistics.safetensors", out)
    execute(settings(folder), out)
    execute(settings(folder), tmp_path / "fresh")
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "fresh" / "model.safetensors").read_bytes()


def test_a_killed_start_with_secure_noise_has_released(folder, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    execute(settings(folder, run__randomness="secure"), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "statistics.safetensors", out)
    with pytest.raises(DataError, match=r"statistics\.safetensors"):
        execute(settings(folder, run__randomness="secure"), out)
    assert (out / "statistics.safetensors").exists()


def test_statistics_are_in_the_traffic(folder, tmp_path):
    execute(settings(folder), tmp_path / "run")
    feature_map = map_for(settings(folder), SHAPE)
    sizes = [block.size for block in feature_map.blocks]
    vector = vector_size(feature_map)
    low = vector - 1 - sum(sizes[1:])
    a_client = 4 * (sum(sizes) + sizes[0] + sum(sizes) + low)
    assert RunDirectory.open(tmp_path / "run").records()[0].bytes == 3 * (a_client + 2 * 4 * 3 * vector)


def test_a_budget_that_pays_for_nothing_else_is_refused(folder):
    changes = {"method__name": "adap_dpfl", "data__validation": 0.1, "privacy__epsilon": 0.6}
    with pytest.raises(BudgetExceededError, match="epsilon"):
        make_parts(settings(folder, privacy__noise_multiplier=10.0, **changes))


def test_two_processes_give_the_same_bits(folder, tmp_path):
    for processes in (1, 2):
        execute(settings(folder, run__processes=processes), tmp_path / str(processes))
    assert (tmp_path / "1" / "metrics.jsonl").read_bytes() == (tmp_path / "2" / "metrics.jsonl").read_bytes()


def test_steps_take_the_closed_form_and_are_the_same_without(folder, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(client_module, "SoftmaxClipper", lambda model: made.append(model) or SoftmaxClipper(model))
    execute(settings(folder), tmp_path / "closed")
    assert len(made) == 1
    monkeypatch.setattr(client_module, "is_softmax_regression", lambda _: False)
    monkeypatch.setattr("alidpfl.dpsgd.clipping.rounding", lambda *_: 1 - _MARGIN)  # clip both at the same norm
    execute(settings(folder), tmp_path / "general")
    assert len(made) == 1
    closed, general = (RunDirectory.open(tmp_path / name).read_model()[0]["weight"] for name in ("closed", "general"))
    torch.testing.assert_close(closed, general, rtol=1e-3, atol=1e-3 * float(closed.abs().max()))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"federation__max_rounds": 2}, "federation.max_rounds=2"),
        ({"model__name": "linear"}, "model.frequencies"),
        ({"model__name": "linear", "model__frequencies": 6, "model__upright": True}, "model.upright"),
        ({"model__name": "mlp", "model__frequencies": 6, "privacy__statistics_noise": 9.0}, "privacy.statistics_noise"),
    ],
)
def test_settings_that_cannot_be(folder, changes, words):
    with pytest.raises(ConfigError, match=words):
        make_parts(settings(folder, **changes))


def test_other_models_do_not_know_its_settings(folder):
    written = settings(folder, model__name="linear", model__frequencies=6).to_dict()
    assert "frequencies" not in written["model"]
    assert "statistics_noise" not in written["privacy"]
    assert settings(folder).to_dict()["model"]["frequencies"] == 3


def test_a_plan_pays_for_the_releases_too(folder):
    """q and σ by the planner: all training rounds are paid for beside the two releases, with nothing to spare."""
    config = load_config(
        overrides=[
            "data.name=npz",
            f"data.data_dir={_toml(str(folder))}",
            "data.num_classes=3",
            "privacy.epsilon=4.0",
            "model.name=scatter_linear",
            "method.name=fedavg_dp",
            "federation.max_rounds=8",
        ]
    )
    found, setting = planned(config, held_out_key=None, max_epochs=2)
    assert setting.steps >= 6
    ledger = make_parts(found).ledger
    assert ledger.max_steps == setting.steps
    assert found.privacy.noise_multiplier > noise_multiplier_for(
        PrivacyBudget(epsilon=4.0, delta=1e-5), found.privacy.sample_rate, setting.steps
    )


def test_inputs_that_are_no_images_are_refused(folder, tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    for name in ("a", "test"):
        np.savez(
            flat / f"{name}.npz", x=np.random.default_rng(0).normal(size=(9, 5)).astype("float32"), y=np.arange(9) % 3
        )
    with pytest.raises(ConfigError, match=r"model\.name"):
        prepare(settings(flat))
    for name in ("a", "test"):
        np.savez(flat / f"{name}.npz", x=np.full((9, *SHAPE), math.pi, "float32"), y=np.arange(9) % 3)
    with pytest.raises(DataError, match="not bytes"):
        prepare(settings(flat))


def test_nodes_with_vaults_refuse_it(folder):
    with pytest.raises(ConfigError, match=r"model\.name"):
        prepare_over_nodes(settings(folder), FlowerOptions(out="x", nodes=3), None, None)


class _KilledError(Exception):
    pass


def _killer(*, after):
    def on_round(record, _seconds):
        if record.round == after:
            raise _KilledError

    return on_round
