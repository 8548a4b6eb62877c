"""A run to its end: what it leaves behind, what it claims, when it stops."""

import dataclasses
import json
import math
import re

import pytest
import torch

from alidpfl import RunDirectory, execute, resume
from alidpfl.data import load as load_dataset
from alidpfl.errors import AliDpflError, BudgetExceededError, ConfigError
from alidpfl.federation.client import LocalTrainer
from alidpfl.federation.loop import Federation
from alidpfl.models import linear
from alidpfl.privacy import PrivacyBudget, SampledGaussian, epsilon, max_steps, noise_multiplier_for
from alidpfl.runs import data as run_data
from alidpfl.runs.prepare import prepare
from alidpfl.simulation.engine import Simulation
from alidpfl.simulation.runner import Runner

from .command import ADAP, config

_LINEAR_PARAMS = 60 * 10 + 10


def test_a_run_leaves_all_it_should_and_it_fits_together(tmp_path):
    settings = config()
    outcome = execute(settings, tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run")
    records, timings = run.records(), run.timings()
    assert [r.round for r in records] == [t.round for t in timings] == list(range(6))
    assert outcome.rounds == 6
    assert outcome.steps == sum(r.local_steps for r in records) == records[-1].steps
    assert outcome.stop_reason == "max_rounds"
    assert [r.accuracy is not None for r in records] == [False, False, True, False, False, True]
    assert (outcome.accuracy, outcome.loss) == (records[-1].accuracy, records[-1].loss)
    assert outcome.seconds == timings[-1].seconds_total
    assert [r.bytes for r in records] == [2 * 4 * 4 * _LINEAR_PARAMS * (k + 1) for k in range(6)]
    assert run.summary() == dataclasses.asdict(outcome)
    assert run.config() == settings.to_dict()
    assert run.environment()["seed"] == 0
    assert all(r.covers_everything for r in records)
    # The model on the disk has the accuracy that the summary claims.
    tensors, claim = run.read_model()
    assert (float(claim["epsilon_spent"]), float(claim["epsilon"])) == (outcome.epsilon, 2.0)
    assert claim["epsilon_covers_everything"] == "yes"
    data = load_dataset("synthetic", clients=4, seed=0)
    model = linear(data.input_shape, data.num_classes)
    model.load_state_dict(tensors)
    correct = model(data.test.inputs).argmax(1) == data.test.targets
    assert outcome.accuracy == pytest.approx(100 * float(correct.double().mean()))
    assert outcome.accuracy > 20  # it learns: chance is 10 %


@pytest.mark.parametrize("accountant", ["rdp", "pld", "rdp-paper"])
def test_epsilon_is_what_the_accountant_says(tmp_path, accountant):
    changes = {"privacy__accountant": accountant, "method__name": "fedavg_dp", "method__local_steps": 2}
    outcome = execute(config(**changes, federation__max_rounds=3), tmp_path / "run")
    assert outcome.noise_multiplier == noise_multiplier_for(
        PrivacyBudget(epsilon=2.0, delta=1e-5), 0.1, 6, accountant=accountant
    )
    steps = SampledGaussian(sample_rate=0.1, noise_multiplier=outcome.noise_multiplier, steps=6)
    assert outcome.epsilon == epsilon([steps], 1e-5, accountant) <= 2.0
    assert outcome.client_epsilon == dict.fromkeys("0123", outcome.epsilon)


def test_epsilon_of_noise_on_updates_counts_rounds_over_all_records(tmp_path):
    changes = {"method__name": "pe_dpfl", "method__options__variant": "output", "federation__max_rounds": 3}
    outcome = execute(config(**changes), tmp_path / "run")
    rounds = SampledGaussian(sample_rate=1.0, noise_multiplier=outcome.noise_multiplier, steps=3)
    assert outcome.epsilon == epsilon([rounds], 1e-5, "rdp") <= 2.0


def test_a_client_pays_for_its_own_rounds_only(tmp_path):
    changes = {"federation__clients_per_round": 2, "method__policy": "fixed", "privacy__noise_multiplier": 2.0}
    outcome = execute(config(**changes), tmp_path / "run")
    records = RunDirectory.open(tmp_path / "run").records()
    for client in range(4):
        turns = sum(client in r.client_epsilon for r in records)
        spent = SampledGaussian(sample_rate=0.1, noise_multiplier=2.0, steps=turns) if turns else None
        assert outcome.client_epsilon[str(client)] == epsilon([spent] if spent else [], 1e-5, "rdp")
    assert len(set(outcome.client_epsilon.values())) > 1
    assert outcome.epsilon == max(outcome.client_epsilon.values())


_UNSAFE = {"privacy__unsafe": ["unaccounted-signals"]}
_POLICIES = {
    "ali": {},
    "corrected": {},
    "ratio": {},
    "fixed": {"method__local_steps": 4},
    "paper": _UNSAFE,
    "reference": _UNSAFE,
}


@pytest.mark.parametrize("policy", _POLICIES)
def test_no_policy_crosses_the_budget(tmp_path, policy):
    changes = {"method__policy": policy, "privacy__noise_multiplier": 1.5, "federation__max_rounds": 30}
    outcome = execute(config(**changes, **_POLICIES[policy]), tmp_path / "run")
    affordable = max_steps(PrivacyBudget(epsilon=2.0, delta=1e-5), 0.1, 1.5, accountant="rdp")
    records = RunDirectory.open(tmp_path / "run").records()
    assert 0 < sum(r.local_steps for r in records) <= affordable
    assert outcome.epsilon <= 2.0
    assert all(e <= 2.0 for r in records for e in r.client_epsilon.values())
    if outcome.stop_reason == "privacy_budget":
        assert outcome.steps == affordable
    else:
        assert (outcome.stop_reason, outcome.rounds) == ("max_rounds", 30)


def test_the_budget_ends_a_run_that_would_go_on(tmp_path):
    changes = {"method__name": "fedavg_dp", "method__local_steps": 10, "privacy__noise_multiplier": 1.5}
    outcome = execute(config(**changes), tmp_path / "run")
    affordable = max_steps(PrivacyBudget(epsilon=2.0, delta=1e-5), 0.1, 1.5, accountant="rdp")
    assert outcome.stop_reason == "privacy_budget"
    assert outcome.rounds == math.ceil(affordable / 10) < 6
    assert outcome.steps == affordable  # the last round is cut, not left out


def test_the_filter_of_adap_dpfl_ends_it(tmp_path):
    changes = {key.replace(".", "__"): value for key, value in ADAP.items()} | {"method__local_steps": 1}
    changes |= {"method__learning_rate": 0.1, "privacy__noise_multiplier": 2.0, "federation__max_rounds": 200}
    outcome = execute(config(**changes), tmp_path / "run")
    records = RunDirectory.open(tmp_path / "run").records()
    assert outcome.stop_reason == "privacy_budget"
    assert outcome.epsilon <= 2.0
    assert records[-1].noise_multiplier < records[0].noise_multiplier  # it did adapt
    # The steps at the noises that were really used: by composition alone they cost no more than the filter claims.
    spent = [
        SampledGaussian(sample_rate=0.1, noise_multiplier=r.noise_multiplier, steps=r.local_steps) for r in records[:-1]
    ]
    assert epsilon(spent, 1e-5, "rdp") <= outcome.epsilon


def test_a_traffic_limit_is_never_crossed(tmp_path):
    one_round = 2 * 4 * 4 * _LINEAR_PARAMS
    for limit, rounds in ((3 * one_round, 3), (3 * one_round - 1, 2)):
        outcome = execute(config(federation__traffic_limit=limit), tmp_path / str(limit))
        records = RunDirectory.open(tmp_path / str(limit)).records()
        assert (outcome.stop_reason, outcome.rounds) == ("traffic_limit", rounds)
        assert records[-1].bytes <= limit
        assert records[-1].accuracy is not None


def test_a_traffic_limit_below_one_round_is_refused_with_the_least_that_would_do(tmp_path):
    with pytest.raises(ConfigError, match="traffic_limit=100") as caught:
        execute(config(federation__traffic_limit=100), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    least = int(re.search(r"set at least (\d+)", str(caught.value))[1])
    assert execute(config(federation__traffic_limit=least), tmp_path / "run").rounds == 1
    with pytest.raises(ConfigError, match="traffic_limit"):
        prepare(config(federation__traffic_limit=least - 1))


def test_a_time_limit_below_one_round_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Runner, "rehearse", lambda self, params, plan: 5.0)
    told = r"time_limit=4 .* at least (\d+)"
    with pytest.raises(ConfigError, match=told) as caught:
        execute(config(federation__time_limit=4), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    least = re.search(told, str(caught.value))[1]
    assert execute(config(federation__time_limit=f"{least}s"), tmp_path / "run").rounds == 6


def test_a_rehearsal_spends_nothing_and_changes_nothing(tmp_path):
    plain = execute(config(), tmp_path / "plain")
    limited = execute(config(federation__time_limit="1h"), tmp_path / "limited")
    assert limited.client_epsilon == plain.client_epsilon
    models = [RunDirectory.open(tmp_path / name).read_model()[0] for name in ("plain", "limited")]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_a_rehearsal_looks_at_zeros_and_not_at_records(monkeypatch):
    """It is timed before anything was charged."""
    seen, real = [], LocalTrainer.train

    def spy(self, params, data, plan, random):
        seen.append(data)
        return real(self, params, data, plan, random)

    monkeypatch.setattr(LocalTrainer, "train", spy)
    federation = prepare(config(federation__time_limit="1h", run__processes=1)).federation
    federation.check_time_limit()
    assert seen
    for data in seen:
        assert not data.inputs.any()
        assert not data.targets.any()


def test_a_delta_too_large_for_the_largest_client_is_warned_of():
    smallest, *_, largest = sorted(prepare(config()).federation._sizes.values())
    delta = 1.01 / largest
    assert delta < 1 / smallest
    assert re.search(rf"delta=.*1/{largest} ", prepare(config(privacy__delta=delta)).weakness)
    assert prepare(config(privacy__delta=0.99 / largest)).weakness is None
    assert "epsilon=1000" in prepare(config(privacy__epsilon=1000.0)).weakness
    assert prepare(config()).weakness is None


def test_a_weak_budget_is_told_at_the_end_too(tmp_path):
    outcome = execute(config(privacy__epsilon=1000.0), tmp_path / "run")
    assert "epsilon=1000" in outcome.weakness
    assert RunDirectory.open(tmp_path / "run").summary()["weakness"] == outcome.weakness


class _Clock:
    """Every look at it takes so many seconds."""

    def __init__(self, seconds):
        self.now, self.seconds = 0.0, seconds

    def __call__(self):
        self.now += self.seconds
        return self.now


def test_a_time_limit_is_never_crossed(tmp_path, monkeypatch):
    made = Federation.__init__
    monkeypatch.setattr(Federation, "__init__", lambda self, **parts: made(self, **parts, clock=_Clock(10.0)))
    for limit, rounds in (("40", 4), ("39", 3)):
        outcome = execute(config(federation__time_limit=limit), tmp_path / limit)
        assert (outcome.stop_reason, outcome.rounds, outcome.seconds) == ("time_limit", rounds, 10.0 * rounds)


def test_a_time_limit_counts_evaluations(tmp_path, monkeypatch):
    now = [0.0]
    made, train, evaluate = Federation.__init__, Simulation.train, Simulation.evaluate

    def slow(seconds, function):
        def slowed(*arguments):
            now[0] += seconds
            return function(*arguments)

        return slowed

    monkeypatch.setattr(Federation, "__init__", lambda self, **parts: made(self, **parts, clock=lambda: now[0]))
    monkeypatch.setattr(Simulation, "train", slow(1.0, train))
    monkeypatch.setattr(Simulation, "evaluate", slow(10.0, evaluate))
    outcome = execute(config(federation__time_limit=30, run__evaluate_every=1), tmp_path / "run")
    assert outcome.stop_reason == "time_limit"
    assert now[0] <= 30


def test_validation_never_touches_the_test_set(tmp_path, monkeypatch):
    results = []
    for poisoned in (False, True):

        def loaded(*names, _poisoned=poisoned, **options):
            data = load_dataset(*names, **options)
            if _poisoned:
                data.test.targets.copy_((data.test.targets + 1) % 10)
                data.test.inputs.fill_(math.nan)
            return data

        monkeypatch.setattr(run_data, "load", loaded)
        for part in ("validation", "test"):
            out = tmp_path / f"{part}-{poisoned}"
            outcome = execute(config(data__validation=0.2, run__evaluate_on=part), out)
            results.append(((out / "metrics.jsonl").read_bytes(), outcome.accuracy, outcome.loss))
    (validation, on_test), (poisoned_validation, on_poisoned) = results[:2], results[2:]
    assert validation == poisoned_validation
    assert on_test != on_poisoned  # the poison works


def test_held_out_rows_belong_to_no_client(tmp_path):
    data = prepare(config(data__validation=0.3)).federation._engine._data
    held, _ = data.evaluation["validation"]
    private = torch.cat(list(data.clients))
    assert len(held) + len(private) == len(data.inputs)
    assert len(private.unique()) == len(private)
    rows = {tuple(row.tolist()) for row in data.inputs[private]}
    assert not any(tuple(row.tolist()) in rows for row in held)


@pytest.mark.parametrize("policy", ["paper", "reference"])
def test_unnoised_signals_must_be_asked_for_and_are_told_everywhere(tmp_path, policy):
    with pytest.raises(ConfigError, match="unaccounted-signals"):
        execute(config(method__policy=policy), tmp_path / "refused")
    outcome = execute(config(method__policy=policy, **_UNSAFE), tmp_path / "refused")  # the folder is still free
    run = RunDirectory.open(tmp_path / "refused")
    assert not outcome.covers_everything
    assert run.summary()["covers_everything"] is False
    assert not any(r.covers_everything for r in run.records())
    assert run.read_model()[1]["epsilon_covers_everything"].startswith("NO")
    assert prepare(config(method__policy=policy, **_UNSAFE)).uncovered == ("un-noised signals of the clients",)


def test_the_permission_alone_says_nothing_of_a_private_policy(tmp_path):
    assert prepare(config(**_UNSAFE)).warnings == ()
    assert execute(config(**_UNSAFE), tmp_path / "run").covers_everything


@pytest.mark.parametrize("option", ["signals", "release", "adapts_noise", "needs_public_loss", "name", "clip_norm"])
@pytest.mark.parametrize("method", ["fedavg_dp", "ali_dpfl", "pe_dpfl"])
def test_options_cannot_change_what_is_released(option, method):
    """signals = ["raw"] would have had every client send un-noised losses, with covers_everything true."""
    value = ["raw"] if option == "signals" else "update"
    changes = {"method__name": method, f"method__options__{option}": value}
    with pytest.raises(ConfigError, match=f"'{option}'"):
        prepare(config(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method__name": "pe_dpfl", "method__options__drws": 2}, "'draws'"),
        ({"method__policy": "ali", "method__policy_options__pace_limt": 2}, "'pace_limit'"),
        ({"method__policy_options__name": "x"}, "policy_options"),
        ({"method__policy_options__pace_limit": "x"}, "pace_limit"),
        ({"method__local_steps": 3}, "method.local_steps=3"),
        ({"privacy__max_steps": 9, "privacy__noise_multiplier": 2.0}, "privacy.max_steps=9"),
        ({"model__name": "cnn"}, 'model.name="cnn".*60'),
        ({"method__name": "adap_dpfl"}, "data.validation"),
        ({"run__evaluate_on": "validation"}, "data.validation"),
        ({"data__name": "npz"}, "data_dir"),
        ({"data__name": "mnist", "data__data_dir": "/nowhere"}, "data_dir='/nowhere'"),
        ({"data__partition": "dirichlet", "data__min_samples": 10**6}, "min_samples"),
    ],
)
def test_contradictions_are_named(changes, message, tmp_path, monkeypatch):
    monkeypatch.delenv("ALIDPFL_DATA_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(AliDpflError, match=message):
        prepare(config(**changes))


@pytest.mark.parametrize(
    "changes",
    [{"method__name": "pe_dpfl", "method__options__draws": 1.5}, {"method__learning_rate": 1e300}],
)
def test_absurd_numbers_are_refused(changes):
    with pytest.raises(AliDpflError), prepare(config(**changes)).federation as federation:
        federation.step()


def test_a_budget_that_pays_for_nothing_is_refused_before_data_are_loaded(monkeypatch, tmp_path):
    monkeypatch.setattr(run_data, "load", lambda *_names, **_options: pytest.fail("loaded"))
    with pytest.raises(BudgetExceededError, match="epsilon"):
        execute(config(privacy__noise_multiplier=0.1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_clients_with_less_than_a_record_a_batch_are_warned_of():
    assert prepare(config()).warnings == ()
    (warning,) = prepare(config(privacy__sample_rate=0.01)).warnings
    assert "2 of 4" in warning
    assert "clients 0, 1" in warning
    assert "privacy.sample_rate" in warning


def test_a_finished_run_gives_its_outcome_again_and_changes_nothing(tmp_path):
    outcome = execute(config(), tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    assert resume(tmp_path / "run") == outcome
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_the_same_configuration_gives_the_same_bytes(tmp_path):
    for name, processes in (("first", 1), ("second", 2)):
        execute(config(run__processes=processes, federation__dropout_rate=0.3), tmp_path / name)
    for file in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
    execute(config(run__seed=1), tmp_path / "third")
    assert (tmp_path / "first" / "metrics.jsonl").read_bytes() != (tmp_path / "third" / "metrics.jsonl").read_bytes()


def test_secure_randomness_cannot_be_repeated(tmp_path):
    for name in ("first", "second"):
        execute(config(run__randomness="secure", federation__max_rounds=1), tmp_path / name)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "second")]
    assert models[0] != models[1]


def test_what_a_crash_lost_stays_charged_under_secure_randomness(tmp_path, monkeypatch):
    """Three crashes in one round: each may have shown a result with noise of its own, so each is paid for."""
    append = RunDirectory.append_record
    crashes = iter([True, True, True])

    def crash(self, record):
        append(self, record)  # the result has been seen
        if record.round == 2 and next(crashes, False):
            raise KeyboardInterrupt

    monkeypatch.setattr(RunDirectory, "append_record", crash)
    changes = {"run__randomness": "secure", "method__policy": "fixed", "privacy__noise_multiplier": 2.0}
    with pytest.raises(KeyboardInterrupt):
        execute(config(**changes), tmp_path / "run")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            resume(tmp_path / "run")
    outcome = resume(tmp_path / "run")
    assert outcome.rounds == 6
    spent = SampledGaussian(sample_rate=0.1, noise_multiplier=2.0, steps=6 + 3)
    assert outcome.epsilon == epsilon([spent], 1e-5, "rdp")


def test_tensorboard_files_can_be_read(tmp_path):
    pytest.importorskip("tensorboard")
    execute(config(), tmp_path / "run", tensorboard=True)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    records = RunDirectory.open(tmp_path / "run").records()
    found = {event.step: event.value for event in events.Scalars("epsilon")}
    assert found == {r.number: pytest.approx(r.epsilon, rel=1e-6) for r in records}
    assert [e.step for e in events.Scalars("accuracy")] == [3, 6]


def test_records_are_plain_json(tmp_path):
    execute(config(federation__dropout_rate=0.5), tmp_path / "run")
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_the_summary_has_metrics_baselines_and_intervals_of_the_last_round(tmp_path):
    outcome = execute(config(), tmp_path / "run")
    directory = RunDirectory.open(tmp_path / "run")
    summary, last = directory.summary(), directory.records()[-1]
    assert summary["metrics"] == last.metrics
    assert {"accuracy", "auc", "log_loss", "brier", "macro_f1", "calibration"} == set(summary["metrics"])
    assert summary["baselines"].keys() == summary["metrics"].keys()
    low, high = summary["intervals"]["accuracy"]
    assert low < summary["accuracy"] == summary["metrics"]["accuracy"] < high
    assert sum(part["count"] for part in summary["calibration"]) > 0
    assert resume(tmp_path / "run") == outcome
