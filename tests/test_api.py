"""The Python way: your own model, your own clients, your own rule, one round at a time."""

import subprocess
import sys

import numpy as np
import pandas
import polars
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import alidpfl
import alidpfl.data
from alidpfl import Decision, Privacy, federate
from alidpfl.errors import AliDpflError, ConfigError, DataError, UnsupportedModelError
from alidpfl.methods import PeDpfl
from alidpfl.privacy import SampledGaussian, epsilon

PRIVACY = Privacy(epsilon=5.0, delta=1e-3, sample_rate=0.2, noise_multiplier=1.5, accountant="rdp")
NUM_CLIENTS, RECORDS = 4, 80


def _records(seed: int, count: int = RECORDS):
    """Three clouds of points."""
    random = torch.Generator().manual_seed(seed)
    targets = torch.randint(3, (count,), generator=random)
    return torch.randn(count, 6, generator=random) * 0.5 + 2 * nn.functional.one_hot(targets, 6), targets


CLIENTS = [_records(seed) for seed in range(NUM_CLIENTS)]
TEST = _records(99, 300)


class Own(nn.Module):
    """A model as users write them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, inputs):
        return self.head(torch.tanh(self.body(inputs)))


def _federation(model=None, clients=CLIENTS, **settings):
    given = {"privacy": PRIVACY, "max_rounds": 8, "learning_rate": 1.0, "test": TEST, "seed": 0, "processes": 1}
    return federate(model or Own(), clients, **{**given, **settings})


@pytest.mark.parametrize("processes", [1, 2])
def test_an_own_model_learns_within_its_budget(processes):
    with _federation(processes=processes, policy="ratio") as federation:
        before = federation.evaluate().accuracy
        records = list(federation)
        after = federation.evaluate().accuracy
    assert str(federation.stop_reason) == "max_rounds"
    assert len(records) == 8
    assert after > before + 20
    steps = SampledGaussian(sample_rate=0.2, noise_multiplier=1.5, steps=sum(r.local_steps for r in records))
    assert federation.epsilons == dict.fromkeys(range(NUM_CLIENTS), epsilon([steps], 1e-3, "rdp"))
    assert max(federation.epsilons.values()) <= 5.0


def test_the_model_is_there_to_be_used():
    given = Own()
    with _federation(given) as federation:
        list(federation)
        model = federation.model
    assert isinstance(model, Own)
    assert model is not given
    assert not model.training
    found = 100 * float((model(TEST[0]).argmax(1) == TEST[1]).double().mean())
    assert found == pytest.approx(federation.evaluate().accuracy)
    assert set(federation.named_params()) == set(given.state_dict())
    fresh = Own()
    fresh.load_state_dict(dict(federation.named_params()))
    torch.testing.assert_close(fresh(TEST[0]), model(TEST[0]))
    with torch.no_grad():
        model.head.weight.zero_()  # a copy: the federation's own stays
    assert bool(federation.model.head.weight.any())
    assert torch.equal(given.head.weight, Own().head.weight)


def test_clients_may_come_in_any_form():
    forms = {
        "tensors": CLIENTS,
        "arrays": [(inputs.numpy(), targets.numpy().astype(np.int32)) for inputs, targets in CLIENTS],
        "lists": [(inputs.tolist(), targets.tolist()) for inputs, targets in CLIENTS],
        "data sets": [TensorDataset(*client) for client in CLIENTS],
    }
    results = {}
    for name, clients in forms.items():
        with _federation(clients=clients, max_rounds=2) as federation:
            list(federation)
            results[name] = federation.params
    assert all(torch.equal(found, results["tensors"]) for found in results.values())


class Halving:
    """Half of what is left, in ten lines."""

    name = "halving"
    needs_raw_signals = False
    needs_curvature = False

    def decide(self, situation):
        return Decision(local_steps=max(1, situation.steps_left // 2), why="half of what is left")


def test_an_own_policy_in_ten_lines():
    with _federation(policy=Halving(), max_rounds=100) as federation:
        records = list(federation)
    left = alidpfl.max_steps(PRIVACY.budget, 0.2, 1.5, accountant="rdp")
    for record in records:
        assert record.local_steps == max(1, left // 2)
        assert record.why == "half of what is left"
        left -= record.local_steps
    assert left == 0
    assert str(federation.stop_reason) == "privacy_budget"


def test_a_greedy_policy_is_cut_to_the_budget():
    class Greedy(Halving):
        def decide(self, situation):
            return Decision(local_steps=situation.steps_left + 7, why="more than there is")

    with _federation(policy=Greedy()) as federation:
        list(federation)
    assert max(federation.epsilons.values()) <= 5.0
    affordable = alidpfl.max_steps(PRIVACY.budget, 0.2, 1.5, accountant="rdp")
    spent = SampledGaussian(sample_rate=0.2, noise_multiplier=1.5, steps=affordable)
    assert federation.epsilons[0] == epsilon([spent], 1e-3, "rdp")


def test_an_own_policy_that_looks_at_unnoised_signals_is_refused():
    class Nosy(Halving):
        needs_raw_signals = True

    with pytest.raises(ConfigError, match="unaccounted-signals"):
        _federation(policy=Nosy())
    with _federation(policy=Nosy(), unsafe=["unaccounted-signals"], max_rounds=2) as federation:
        assert not any(record.covers_everything for record in federation)


def test_stepping_by_hand():
    with _federation(max_rounds=3) as federation, _federation(max_rounds=3) as at_once:
        assert federation.stop_reason is None
        assert set(federation.epsilons.values()) == {0.0}
        records = []
        while (record := federation.step()) is not None:
            records.append(record)
            assert federation.progress.round == len(records)
            assert max(federation.epsilons.values()) <= record.epsilon * (1 + 1e-12)
        assert records == list(at_once)
        assert federation.step() is None
        assert str(federation.stop_reason) == "max_rounds"


def test_an_own_method_object():
    method = PeDpfl(clip_norm=1.0, noise_multiplier=1.5, variant="output")
    with _federation(method=method, max_rounds=2, privacy=Privacy(epsilon=9.0, **_without_epsilon())) as federation:
        assert len(list(federation)) == 2
    rounds = SampledGaussian(sample_rate=1.0, noise_multiplier=1.5, steps=2)
    assert federation.epsilons[0] == epsilon([rounds], 1e-3, "rdp")


def _without_epsilon():
    return {"delta": 1e-3, "sample_rate": 0.2, "noise_multiplier": 1.5, "accountant": "rdp"}


def test_adap_dpfl_takes_public_data():
    with pytest.raises(ConfigError, match="pass public="):
        _federation(method="adap_dpfl")
    one_class = (TEST[0][:20], torch.zeros(20, dtype=torch.int64))
    with _federation(method="adap_dpfl", public=one_class, max_rounds=2) as federation:
        assert len(list(federation)) == 2
    with pytest.raises(DataError, match=r"\(5,\).*\(6,\)"):
        _federation(method="adap_dpfl", public=(TEST[0][:, :5], TEST[1]))


def test_without_test_data_nothing_is_evaluated():
    with _federation(test=None, max_rounds=2) as federation:
        assert all(record.accuracy is None for record in federation)
        assert federation.evaluate() is None


def test_without_a_seed_no_two_runs_agree():
    found = []
    for _ in range(2):
        with _federation(seed=None, max_rounds=1) as federation:
            list(federation)
            found.append(federation.params)
    assert not torch.allclose(*found)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients_per_rounds": 2}, "'clients_per_rounds' is not known; did you mean 'clients_per_round'"),
        ({"max_round": 2}, "'max_round'.*'max_rounds'"),
        ({"polcy": "ratio"}, "'policy'"),
        ({"sample_rate": 0.1}, "sample_rate"),
        ({"method": "ali_dpfk"}, "'ali_dpfl'"),
        ({"policy": "rato"}, "'ratio'"),
        ({"policy": "paper"}, "unaccounted-signals"),
        ({"unsafe": ["noise"]}, "unaccounted-signals"),
        ({"max_rounds": 0}, "max_rounds=0"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0"),
        ({"clip_norm": -1.0}, "clip_norm=-1.0"),
        ({"seed": -1}, "seed=-1"),
        ({"processes": 0}, "processes=0"),
        ({"schedule": "cosin"}, "'cosine'"),
        ({"clients": []}, "clients"),
        ({"clients": CLIENTS[0]}, r"\[\("),
        ({"clients": [pandas.DataFrame({"a": [1.0]})]}, r"client 0 is one DataFrame.*\[\("),
        ({"clients": [*CLIENTS[:2], torch.zeros(5, 7)]}, r"client 2 is one Tensor.*\[\("),
        ({"privacy": {"epsilon": 2.0}}, r"alidpfl\.Privacy\("),
        ({"model": nn.Linear}, "torch.nn.Module"),
        ({"clients_per_round": NUM_CLIENTS + 1}, "clients_per_round="),
        ({"traffic_limit": 1}, "traffic_limit=1 "),
        ({"time_limit": 1e-9}, "time_limit=1e-09"),
        ({"max_rounds": "8"}, "max_rounds='8'"),
        ({"learning_rate": True}, "learning_rate=True"),
        ({"dropout_rate": "x"}, "dropout_rate='x'"),
        ({"clients": [*CLIENTS, (torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64))]}, "client 4"),
        ({"model": nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))}, "GroupNorm"),
        ({"model": nn.Flatten()}, "train"),
        ({"clients": [(torch.full((5, 6), torch.nan), torch.zeros(5, dtype=torch.int64))]}, "client 0: .*NaN"),
        ({"clients": [CLIENTS[0], (torch.zeros(5, 7), torch.zeros(5, dtype=torch.int64))]}, "7"),
    ],
)
def test_mistakes_are_explained(settings, message):
    with pytest.raises(AliDpflError, match=message), _federation(**settings) as federation:
        federation.step()


@pytest.mark.parametrize("processes", [1, 2])
def test_a_label_that_the_model_has_no_output_for_is_found_at_enrolment(processes):
    """However seldom it would be sampled; the error names the client and no label."""
    inputs, targets = CLIENTS[2]
    wrong = targets.clone()
    wrong[7] = 731
    with pytest.raises(DataError, match="client 2") as caught:
        _federation(clients=[*CLIENTS[:2], (inputs, wrong), *CLIENTS[3:]], processes=processes)
    assert "731" not in str(caught.value)


@pytest.mark.parametrize(
    ("part", "data", "message"),
    [
        ("test", (TEST[0], torch.full_like(TEST[1], 9)), "test .*3"),
        ("public", (TEST[0], torch.full_like(TEST[1], 9)), "public .*3"),
        ("public", (TEST[0][:0], TEST[1][:0]), "public"),
        ("test", (TEST[0][:0], TEST[1][:0]), "test"),
    ],
)
def test_what_is_looked_at_is_checked_before_anything_is_spent(part, data, message):
    """An evaluation that fails after the first round has cost that round's epsilon."""
    with pytest.raises(DataError, match=message):
        _federation(**{part: data})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0}, "epsilon=0"),
        ({"epsilon": "2"}, "epsilon='2'"),
        ({"delta": 1.0}, r"delta=1\.0"),
        ({"sample_rate": 64}, "sample_rate=64"),
        ({"noise_multiplier": 0}, "noise_multiplier=0"),
        ({"noise_multiplier": True}, "noise_multiplier=True"),
        ({"accountant": "rpd"}, "accountant='rpd'.*'rdp'"),
    ],
)
def test_privacy_is_checked_when_it_is_made(change, message):
    given = {"epsilon": 2.0, "delta": 1e-5, "sample_rate": 0.1, "noise_multiplier": 2.0}
    Privacy(**given)
    with pytest.raises(ConfigError, match=message):
        Privacy(**{**given, **change})


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_device_that_torch_cannot_use_is_refused():
    for device in ("cuda", "tpu"):
        with pytest.raises(ConfigError, match=f"device=.{device}"):
            _federation(device=device)


def test_a_delta_too_large_for_the_largest_client_is_warned_of():
    """δ = 0.05 is below 1/n for clients of 10 records. For one of 60 it would allow publishing three of them."""
    weak = Privacy(epsilon=5.0, delta=0.05, sample_rate=0.2, noise_multiplier=1.5)
    clients = [(inputs[:size], classes[:size]) for (inputs, classes), size in zip(CLIENTS, (10, 60, 10), strict=False)]
    with pytest.warns(UserWarning, match=r"delta=0\.05 .*1/60"), _federation(None, clients, privacy=weak):
        pass


class Squashed(Own):
    """With a softmax that is no layer."""

    def forward(self, inputs):
        return torch.softmax(super().forward(inputs), dim=1)


@pytest.mark.parametrize("model", [nn.Sequential(nn.Linear(6, 3), nn.Softmax(dim=1)), Squashed()])
def test_a_softmax_at_the_end_is_warned_of(model):
    """The loss has its own: with both, gradients are small, and nothing says why."""
    with pytest.warns(UserWarning, match="softmax"), _federation(model):
        pass


def test_clients_may_come_from_a_generator():
    with _federation(clients=(client for client in CLIENTS), max_rounds=1) as federation:
        assert len(federation.epsilons) == NUM_CLIENTS


def test_a_wrong_shape_is_explained():
    with pytest.raises(DataError, match=r"\(6,\)"), _federation(nn.Linear(5, 3)) as federation:
        federation.step()


def test_an_error_quotes_no_data():
    with pytest.raises(DataError) as caught:
        _federation(clients=[[(torch.zeros(6), "leukaemia")] * 5])
    assert "leukaemia" not in str(caught.value)


def test_unsupported_models_are_refused_at_once():
    with pytest.raises(UnsupportedModelError, match="BatchNorm"):
        _federation(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)))


@pytest.mark.parametrize("name", alidpfl.__all__)
def test_public_names_are_there(name):
    assert getattr(alidpfl, name) is not None
    assert name in dir(alidpfl)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"no attribute 'federat'.*federate"):
        _ = alidpfl.federat
    assert not hasattr(alidpfl, "torch")


def test_importing_the_package_waits_for_nothing_heavy():
    program = "import sys, alidpfl; assert not {'torch', 'numpy', 'pydantic', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


class _Bare:
    name = "bare"


class _Says:
    name, needs_raw_signals, needs_curvature = "says", False, False

    def __init__(self, decided):
        self._decided = decided

    def decide(self, _situation):
        return self._decided


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (_Bare(), "_Bare.*needs_raw_signals, needs_curvature, decide"),
        (_Says(3), r"'says' .* 3.*alidpfl\.Decision"),
        (_Says(Decision(local_steps=0, why="nothing")), "'says'=0"),
    ],
)
def test_mistakes_of_ones_own_policy_are_told_in_words(policy, message):
    with pytest.raises(ConfigError, match=message), _federation(policy=policy) as federation:
        list(federation)


def _frames():
    """The first client's records as frames of pandas and of polars, with an index that does not begin at 0."""
    inputs, targets = (part.numpy() for part in CLIENTS[0])
    names = [f"x{number}" for number in range(inputs.shape[1])]
    table = pandas.DataFrame(inputs, columns=names, index=range(5, 5 + len(inputs)))
    yield table, pandas.Series(targets, index=table.index)
    yield polars.DataFrame(inputs, schema=names), polars.Series(targets)
    yield inputs, polars.Series(targets)
    yield table.astype("Float64"), pandas.Series(targets).astype("Int64")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("client", list(_frames()), ids=["pandas", "polars", "mixed", "nullable"])
def test_frames_train_as_tensors_do(client):
    federations = [_federation(clients=[first, *CLIENTS[1:]], max_rounds=1) for first in (CLIENTS[0], client)]
    for federation in federations:
        federation.step()
    one, other = (federation.named_params() for federation in federations)
    assert all(torch.equal(one[name], other[name]) for name in one)
    model = nn.Linear(6, 3)
    plans = [Privacy.plan(model, [first], epsilon=2, delta=1e-5, max_rounds=5) for first in (CLIENTS[0], client)]
    assert plans[0] == plans[1]


@pytest.mark.parametrize("kind", [list, np.asarray, torch.as_tensor, pandas.Series, polars.Series])
def test_flags_are_the_classes_0_and_1(kind):
    flags = [bool(label) for label in CLIENTS[0][1]]
    data = alidpfl.data.from_clients([(CLIENTS[0][0], kind(flags))], test=TEST)
    assert data.train.targets.tolist() == [int(flag) for flag in flags]


@pytest.mark.parametrize(
    "kind", [list, np.asarray, pandas.Series, polars.Series, lambda x: pandas.Series(x, dtype=object)]
)
def test_texts_as_classes_are_refused_with_a_remedy(kind):
    with pytest.raises(DataError, match=r"client 0: targets .*\{'no': 0, 'yes': 1\}") as caught:
        _federation(clients=[(CLIENTS[0][0], kind(["secret"] * len(CLIENTS[0][0])))])
    assert "secret" not in str(caught.value)


def test_a_frame_with_texts_names_the_column():
    table = pandas.DataFrame(CLIENTS[0][0].numpy()).rename(columns=str)
    for frame in (
        table.assign(sex="secret"),
        polars.from_dict(table.to_dict("list")).with_columns(sex=polars.lit("secret")),
    ):
        with pytest.raises(DataError, match="client 0: column 'sex'") as caught:
            _federation(clients=[(frame, CLIENTS[0][1])])
        assert "secret" not in str(caught.value)
    with pytest.raises(DataError, match=r"\[\("):
        _federation(clients=(table, CLIENTS[0][1]))


def test_clients_may_have_names():
    names = ("north", "south", "east", "west")
    clients = dict(zip(names, CLIENTS, strict=True))
    federation = _federation(clients=clients, max_rounds=1)
    record = federation.step()
    assert federation.client_names == names
    assert list(federation.epsilons) == [0, 1, 2, 3]
    assert record == _federation(max_rounds=1).step()
    assert _federation().client_names == ()
    plans = [Privacy.plan(nn.Linear(6, 3), given, epsilon=2, delta=1e-5, max_rounds=5) for given in (clients, CLIENTS)]
    assert plans[0] == plans[1]
    with pytest.raises(DataError, match=r"client 1 \('south'\): .*NaN"):
        _federation(clients={**clients, "south": (torch.full((5, 6), torch.nan), torch.zeros(5, dtype=torch.int64))})
    with pytest.raises(ConfigError, match="test"):
        _federation(clients=clients, test=CLIENTS[2])


def test_a_plan_with_a_weak_signal_is_warned_of():
    with pytest.warns(UserWarning, match="signal-to-noise"):
        Privacy.plan(nn.Linear(6, 3), CLIENTS[:1], epsilon=0.05, delta=1e-3, max_rounds=2)


# ----------------------------------------------------------------------------------------------------- numbers, labels


def _targets(kind, inputs):
    if kind == "number":
        return inputs[:, 0] - 0.5 * inputs[:, 1]
    return (inputs[:, :2] > 0.5).float()


def _of_task(kind):
    return [(inputs, _targets(kind, inputs)) for inputs, _ in CLIENTS], (TEST[0], _targets(kind, TEST[0]))


@pytest.mark.parametrize(
    ("kind", "loss", "metric"),
    [
        ("number", None, "r2"),
        ("number", "huber", "r2"),
        ("number", "quantile", "mae"),
        ("number", lambda outputs, targets: (outputs[:, 0] - targets).square(), "r2"),
        ("labels", None, "auc"),
    ],
)
def test_the_task_follows_from_the_targets(kind, loss, metric):
    clients, test = _of_task(kind)
    model = nn.Linear(6, 1 if kind == "number" else 2)
    nn.init.zeros_(model.weight)
    with _federation(model, clients, test=test, loss=loss, learning_rate=0.1, policy="ratio", max_rounds=20) as made:
        before = made.evaluate()
        list(made)
        after = made.evaluate()
    assert after.accuracy is None
    better = after.measures.values[metric] - before.measures.values[metric]
    assert (-better if metric == "mae" else better) > 0.1


@pytest.mark.parametrize("kind", ["number", "labels"])
def test_every_container_of_targets_gives_the_same_run(kind):
    clients, test = _of_task(kind)
    model = nn.Linear(6, 1 if kind == "number" else 2)  # federate copies it

    def trained(made):
        with _federation(model, made, test=test, policy="ratio", max_rounds=2, learning_rate=0.1) as federation:
            list(federation)
            return federation.named_params()["weight"]

    names = ["a", "b"]
    wanted = trained(clients)
    kinds = [lambda y: y.double().numpy(), lambda y: y.tolist()]
    if kind == "number":
        kinds += [lambda y: pandas.Series(y.numpy()), lambda y: polars.Series(y.numpy())]
    else:
        kinds += [lambda y: pandas.DataFrame(y.numpy(), columns=names), lambda y: polars.DataFrame(y.numpy(), names)]
        kinds += [lambda y: y.numpy().astype(bool), lambda y: y.long()]
    for convert in kinds:
        assert torch.equal(trained([(inputs, convert(targets)) for inputs, targets in clients]), wanted)
    assert torch.equal(trained([TensorDataset(*client) for client in clients]), wanted)


def test_a_plan_needs_no_classes():
    clients, _ = _of_task("number")
    found = Privacy.plan(nn.Linear(6, 1), clients, epsilon=4, delta=1e-3, max_rounds=10, accountant="rdp")
    assert found.noise_multiplier > 0


@pytest.mark.parametrize(
    ("outputs", "kind", "changes", "value"),
    [
        (2, "number", {}, "one output"),
        (1, "labels", {}, "one output for each"),
        (1, "number", {"loss": "cross_entropy"}, '"cross_entropy"'),
        (1, "number", {"loss": "binary"}, '"binary"'),
        (2, "labels", {"loss": "squared"}, '"squared"'),
        (1, "number", {"loss": "poisson"}, "poisson"),
    ],
)
def test_a_task_that_does_not_fit_is_refused_before_the_first_round(outputs, kind, changes, value):
    clients, test = _of_task(kind)
    with pytest.raises(AliDpflError, match=value):
        _federation(nn.Linear(6, outputs), clients, test=test, **changes)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_targets_that_are_no_numbers_are_refused_without_their_value(value):
    clients, test = _of_task("number")
    clients[1][1][7] = value
    with pytest.raises(DataError, match="client 1: targets"):
        _federation(nn.Linear(6, 1), clients, test=test)


@pytest.mark.parametrize("value", [3e38, -3e38, 1e-42])
def test_an_extreme_target_does_not_stop_a_run(value):
    clients, test = _of_task("number")
    clients[1][1][7] = value
    with _federation(nn.Linear(6, 1), clients, test=test, max_rounds=2, learning_rate=0.1) as federation:
        list(federation)
        assert all(bool(torch.isfinite(values).all()) for values in federation.named_params().values())


class TestPersons:
    GROUPS = tuple(np.arange(RECORDS) // 4 for _ in range(NUM_CLIENTS))
    PRIVACY = Privacy(
        epsilon=5.0, delta=1e-3, sample_rate=0.2, noise_multiplier=1.5, accountant="rdp", unit="person", max_records=3
    )

    def test_a_federation_counts_persons(self):
        with _federation(privacy=self.PRIVACY, groups=self.GROUPS) as federation:
            records = list(federation)
        assert federation._sizes == dict.fromkeys(range(NUM_CLIENTS), RECORDS // 4)
        assert records[-1].accuracy > 60

    def test_max_records_has_a_default(self):
        assert Privacy(epsilon=1, delta=1e-3, sample_rate=0.2, noise_multiplier=2, unit="person").max_records == 4

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"max_records": 3}, "max_records=3 is for"),
            ({"unit": "person", "max_records": 0}, "max_records"),
            ({"unit": "people"}, "unit"),
        ],
    )
    def test_settings_that_contradict_each_other_are_refused(self, changes, told):
        with pytest.raises(ConfigError, match=told):
            Privacy(epsilon=1.0, delta=1e-3, sample_rate=0.2, noise_multiplier=2.0, **changes)

    def test_groups_and_unit_belong_together(self):
        with pytest.raises(ConfigError, match=r'groups are given.*unit="person"'):
            _federation(groups=self.GROUPS)
        with pytest.raises(ConfigError, match=r'unit="person", and no groups'):
            _federation(privacy=self.PRIVACY)
        with pytest.raises(DataError, match="client 0"):
            _federation(privacy=self.PRIVACY, groups=[one[1:] for one in self.GROUPS])

    def test_the_plan_is_for_as_many_persons(self):
        terms = {"epsilon": 2.0, "delta": 1e-5, "max_rounds": 5}
        model, groups = nn.Linear(6, 3), self.GROUPS
        persons = Privacy.plan(model, CLIENTS, **terms, unit="person", max_records=2, groups=groups)
        records = Privacy.plan(model, [_records(seed, RECORDS // 4) for seed in range(NUM_CLIENTS)], **terms)
        assert (persons.unit, persons.max_records) == ("person", 2)
        assert (persons.sample_rate, persons.noise_multiplier) == (records.sample_rate, records.noise_multiplier)
        with pytest.raises(ConfigError, match="groups"):
            Privacy.plan(model, CLIENTS, **terms, unit="person")

    def test_the_weakness_of_a_budget_is_told_of_persons(self):
        with pytest.warns(UserWarning, match="20 persons"):
            _federation(
                privacy=Privacy(epsilon=5.0, delta=0.1, sample_rate=0.2, noise_multiplier=1.5, unit="person"),
                groups=self.GROUPS,
            )
