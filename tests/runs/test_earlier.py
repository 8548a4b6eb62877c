"""Statistics before a run: `--after` makes one budget pay for both, for training and for held-out rows."""

import json
import math

import pytest

from alidpfl.config.load import load_config
from alidpfl.errors import BudgetExceededError, ConfigError
from alidpfl.privacy import GaussianFilter, GaussianRelease, PrivacyBudget, SampledGaussian, epsilon
from alidpfl.runs.earlier import with_earlier_releases
from alidpfl.runs.prepare import prepare
from alidpfl.runs.tables import with_table_defaults
from tests.runs.command import alidpfl
from tests.tables.parts import hospitals

DELTA = 1e-5


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    return folder, hospitals(folder, (900, 600))


@pytest.fixture(scope="module")
def statistics(files):
    """Statistics that cost half of ε = 2."""
    folder, paths = files
    out = folder / "statistics.json"
    done = alidpfl(
        "statistics",
        "--schema",
        folder / "schema.toml",
        "--data",
        *paths,
        "--epsilon",
        "1",
        "--delta",
        DELTA,
        "--out",
        out,
    )
    assert done.exit_code == 0, done.output
    return out


def settings(files, *more):
    folder, paths = files
    changes = [
        "data.name=table",
        f"data.schema_file={json.dumps(str(folder / 'schema.toml'))}",
        f"data.files={json.dumps([str(path) for path in paths])}",
        "privacy.sample_rate=0.1",
        "privacy.noise_multiplier=3",
        "federation.max_rounds=4",
        "run.processes=1",
        "run.randomness=secure",
    ]
    return with_table_defaults(load_config(overrides=[*changes, *more]))


def noise_of(statistics):
    return next(iter(json.loads(statistics.read_text())["clients"].values()))["noise_multiplier"]


def test_the_steps_and_the_statistics_fit_one_budget_and_one_step_more_does_not(files, statistics):
    config = with_earlier_releases(settings(files), [statistics])
    release = GaussianRelease(noise_multiplier=noise_of(statistics))
    most = prepare(config).federation._ledger.max_steps
    assert 0 < most < prepare(settings(files)).federation._ledger.max_steps
    step = {"sample_rate": 0.1, "noise_multiplier": 3.0}
    assert epsilon([release, SampledGaussian(steps=most, **step)], DELTA) <= 2
    assert epsilon([release, SampledGaussian(steps=most + 1, **step)], DELTA) > 2


def test_held_out_rows_pay_for_the_statistics_too(files, statistics):
    evaluation = prepare(with_earlier_releases(settings(files), [statistics])).federation.private_evaluation
    release = GaussianRelease(noise_multiplier=noise_of(statistics))
    assert evaluation.epsilon == pytest.approx(1, abs=1e-3)  # before the first evaluation
    noises = [evaluation.plans(rounds, is_last=rounds == 4)[0].noise_multiplier for rounds in (1, 2, 3, 4)]
    spent = epsilon([release, *(GaussianRelease(noise_multiplier=noise) for noise in noises)], DELTA)
    assert 1.7 < spent == pytest.approx(evaluation.epsilon, abs=1e-4)
    assert spent <= 2
    alone = prepare(settings(files)).federation.private_evaluation
    assert alone.plans(4, is_last=True)[0].noise_multiplier < noises[-1]


def test_the_command_counts_them(files, statistics, tmp_path):
    folder, paths = files
    options = (
        "--schema",
        folder / "schema.toml",
        "--data",
        *paths,
        "--epsilon",
        "2",
        "--delta",
        DELTA,
        "--rounds",
        "3",
    )
    done = alidpfl("run", *options, "--after", statistics, "--set", "run.processes=1", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["epsilon"] <= 2
    kept = load_config(tmp_path / "run" / "config.toml")
    assert kept.privacy.earlier_noise == (noise_of(statistics),)
    plain = alidpfl("run", *options, "--set", "run.processes=1", "--out", tmp_path / "plain")
    assert plain.exit_code == 0
    unaware = load_config(tmp_path / "plain" / "config.toml").privacy
    assert unaware.earlier_noise == ()
    assert (kept.privacy.sample_rate, kept.privacy.noise_multiplier) != (unaware.sample_rate, unaware.noise_multiplier)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": "other"}, "no statistics"),
        ({"clients": {}}, "no statistics"),
        ({"schema_sha256": "0" * 64}, "another schema"),
        ({"unit": "person"}, "privacy.unit"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(files, statistics, tmp_path, change, told):
    path = tmp_path / "changed.json"
    path.write_text(json.dumps({**json.loads(statistics.read_text()), **change}))
    with pytest.raises(ConfigError, match=told):
        with_earlier_releases(settings(files), [path])


def test_the_client_with_the_least_noise_counts(files, statistics, tmp_path):
    path, values = tmp_path / "changed.json", json.loads(statistics.read_text())
    next(iter(values["clients"].values()))["noise_multiplier"] = 3.5
    path.write_text(json.dumps(values))
    assert with_earlier_releases(settings(files), [path]).privacy.earlier_noise == (3.5,)


def test_other_misuse_is_refused(files, statistics):
    with pytest.raises(ConfigError, match="twice"):
        with_earlier_releases(settings(files), [statistics, statistics])
    with pytest.raises(ConfigError, match="tables"):
        with_earlier_releases(load_config(), [statistics])
    with pytest.raises(BudgetExceededError):
        prepare(settings(files, "privacy.earlier_noise=[0.5]"))


def test_what_is_left_of_a_filter_composes_to_the_whole():
    whole = GaussianFilter.for_budget(PrivacyBudget(epsilon=2.0, delta=DELTA))
    releases = [GaussianRelease(noise_multiplier=5.0, count=2), GaussianRelease(noise_multiplier=9.0)]
    left = whole.left_after(releases)
    total = 2 / 5.0**2 + 1 / 9.0**2 + left.noise_multiplier**-2
    assert total <= whole.noise_multiplier**-2
    assert math.isclose(total, whole.noise_multiplier**-2, rel_tol=1e-6)
    assert whole.left_after([]) is whole
    with pytest.raises(BudgetExceededError):
        whole.left_after([GaussianRelease(noise_multiplier=whole.noise_multiplier)])
