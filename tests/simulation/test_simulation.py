"""A simulation gives the same whatever the number of processes, and leaves nothing behind."""

import dataclasses
import multiprocessing

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from alidpfl.dpsgd import make_loss
from alidpfl.errors import ConfigError
from alidpfl.federation.tensors import flatten, steady_arithmetic, trained
from alidpfl.metrics import measure
from alidpfl.simulation.engine import default_processes

from .parts import METHODS, MODELS, cnn, federation, linear, made_data, open_files, plan, simulation, zeros


def _trained(name: str, **options):
    """Records and final weights."""
    with federation(name, **options) as found:
        return list(found), found.params


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", METHODS)
def test_the_number_of_processes_changes_not_one_bit(name, model):
    data = made_data()
    alone, params = _trained(name, model=MODELS[model](), data=data)
    assert len(alone) == 3
    assert not torch.equal(params, flatten(trained(MODELS[model]())))
    for processes in (2, 3):
        together, same = _trained(name, model=MODELS[model](), data=data, processes=processes)
        assert together == alone
        assert torch.equal(same, params)


@pytest.mark.parametrize("name", METHODS)
def test_another_seed_gives_another_result(name):
    data = made_data()
    _, first = _trained(name, data=data, rounds=1)
    _, second = _trained(name, data=data, rounds=1, seed=1)
    assert not torch.allclose(first, second)


def test_secure_randomness_differs_from_run_to_run():
    data = made_data()
    results = [
        _trained("fedavg_dp", data=data, rounds=1, seed=None, processes=processes)[1] for processes in (1, 1, 2, 2)
    ]
    assert all(not torch.allclose(a, b) for i, a in enumerate(results) for b in results[:i])


def test_secure_workers_do_not_share_their_noise():
    """Forked processes inherit the state of every generator: with one seeded before the fork, noises would be equal."""
    data = made_data(clients=2)
    with simulation(2, data=data) as seeded:
        seeded._runner._seed = None
        first, second = seeded.train(zeros(), [plan(0), plan(1)])
        assert not torch.allclose(first.params, second.params)
        again = first.params.clone(), second.params.clone()
        seeded.close()  # new workers, forked from the same parent
        fresh = seeded.train(zeros(), [plan(0), plan(1)])
        assert all(not torch.allclose(a, b.params) for a, b in zip(again, fresh, strict=True))


def test_clients_and_rounds_draw_different_noise():
    data = made_data(clients=1)
    data = dataclasses.replace(data, clients=[data.clients[0]] * 2)
    with simulation(1, data=data) as engine:
        same_data = [*engine.train(zeros(), [plan(0), plan(1)]), *engine.train(zeros(), [plan(0, round_number=1)])]
    noises = [update.params for update in same_data]
    assert all(not torch.allclose(a, b) for i, a in enumerate(noises) for b in noises[:i])


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_updates_come_in_the_order_of_the_plans(processes):
    """The first takes a hundred times as long as the others, and is finished last."""
    plans = [plan(3, steps=300), *(plan(client) for client in (4, 0, 2, 1))]
    with simulation(processes) as engine:
        updates = engine.train(zeros(), plans)
        assert [u.client for u in updates] == [3, 4, 0, 2, 1]
        params = [u.params.clone() for u in updates]
    with simulation(1) as engine:
        for one, expected in zip(plans, params, strict=True):
            assert torch.equal(engine.train(zeros(), [one])[0].params, expected)


@pytest.mark.parametrize("processes", [1, 2])
def test_the_share_of_a_round_grows_with_the_work_done(processes):
    told = []
    with simulation(processes, on_share=told.append) as engine:
        engine.train(zeros(), [plan(0), plan(1, steps=30), plan(2)])
        first_round = list(told)
        engine.train(zeros(), [plan(0, round_number=1), plan(1, round_number=1)])
    assert len(first_round) == 3
    assert first_round == sorted(set(first_round))
    assert first_round[-1] == pytest.approx(1.0)
    assert max(np.diff([0.0, *first_round])) > 0.9  # thirty of thirty-two steps are one client's
    assert told[3] == pytest.approx(0.5, abs=0.1)  # each round from the start


@pytest.mark.parametrize("model", [linear, cnn])
def test_evaluation_is_the_direct_computation_whatever_the_processes(model):
    data = made_data(test=2347)
    inputs, targets = data.evaluation["test"]
    module = model().eval()
    with torch.no_grad():
        outputs = module(inputs)
    found = []
    for processes in (1, 2):
        with simulation(processes, data=data, model=model()) as engine:
            found.append(engine.evaluate(flatten(trained(module)), "test"))
            assert engine.evaluate(flatten(trained(module)), "validation") == found[-1]
    assert found[0] == found[1]
    assert found[0].accuracy == pytest.approx(100 * float((outputs.argmax(1) == targets).double().mean()))
    assert found[0].loss == pytest.approx(float(F.cross_entropy(outputs, targets)), rel=1e-5)
    expected = measure("class", outputs.numpy(), targets.numpy())
    assert found[0].measures.values == pytest.approx(expected.values, rel=1e-5)
    assert found[0].measures.values["accuracy"] == found[0].accuracy
    assert set(found[0].measures.values) == {"accuracy", "auc", "log_loss", "brier", "macro_f1", "calibration"}


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("squared", {"rmse", "mae", "r2"}),
        ("poisson", {"rmse", "mae", "r2"}),
        ("quantile", {"rmse", "mae", "r2", "pinball"}),
    ],
)
def test_numbers_are_measured_in_their_own_unit(name, names, processes):
    data = made_data(test=1500)
    inputs, classes = data.evaluation["test"]
    numbers = data.targets.float()
    data = dataclasses.replace(data, targets=numbers, evaluation={"test": (inputs, classes.float())}, unit=10.0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 1))
    with simulation(processes, data=data, model=model, loss=make_loss(name, level=0.8)) as engine:
        found = engine.evaluate(flatten(trained(model)), "test")
    with torch.no_grad():
        outputs = model(inputs)[:, 0].double()
    errors = 10 * (classes - (outputs.exp() if name == "poisson" else outputs))
    assert found.accuracy is None
    assert set(found.measures.values) == names
    assert found.measures.values["rmse"] == pytest.approx(float(errors.square().mean().sqrt()), rel=1e-5)
    if name == "quantile":
        pinball = torch.maximum(0.8 * errors, -0.2 * errors).mean()
        assert found.measures.values["pinball"] == pytest.approx(float(pinball), rel=1e-5)


def test_labels_have_an_auc_and_no_accuracy():
    data = made_data(test=1500)
    inputs, classes = data.evaluation["test"]
    flags = F.one_hot(classes, 3).float()
    data = dataclasses.replace(data, targets=F.one_hot(data.targets, 3).float(), evaluation={"test": (inputs, flags)})
    model = linear()
    with simulation(1, data=data, model=model, loss=make_loss("binary")) as engine:
        found = engine.evaluate(flatten(trained(model)), "test")
    assert found.accuracy is None
    assert set(found.measures.values) == {"auc", "log_loss", "brier", "macro_f1", "calibration"}
    assert found.measures.values["log_loss"] == pytest.approx(found.loss, rel=1e-5)


def test_evaluation_is_of_the_weights_given_and_in_eval_mode():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.9), torch.nn.Linear(36, 3))
    with simulation(1, model=model) as engine:
        params = flatten(trained(model))
        assert engine.evaluate(params, "test") == engine.evaluate(params, "test")
        assert engine.evaluate(params, "test") != engine.evaluate(-params, "test")
        chance = engine.evaluate(torch.zeros_like(params), "test")
        assert chance is not None
        assert chance.loss == pytest.approx(1.0986, abs=1e-3)


def test_without_data_there_is_no_evaluation():
    data = dataclasses.replace(made_data(), evaluation={})
    with simulation(1, data=data) as engine:
        assert engine.evaluate(zeros(), "test") is None


def test_the_model_that_was_passed_stays_as_it_was():
    model = linear()
    before = flatten(trained(model))
    with federation(model=model, processes=2) as found:
        list(found)
        assert not torch.equal(found.params, before)
        assert torch.equal(flatten(trained(found.model)), found.params)
    assert torch.equal(flatten(trained(model)), before)


def test_nothing_is_left_after_training():
    list(federation(processes=2))  # imports and caches of a first time
    files, children = open_files(), multiprocessing.active_children()
    assert len(list(federation("ali_dpfl", processes=3))) == 3  # to the end, without `with`
    assert open_files() == files
    assert multiprocessing.active_children() == children
    with federation(processes=2) as left_early:
        left_early.step()
        assert len(multiprocessing.active_children()) == len(children) + 2
    assert open_files() == files
    assert multiprocessing.active_children() == children


def test_no_denormal_is_ever_computed_with():
    """They take a hundred times as long: with weights of a hostile server, time would tell which records were drawn."""

    def product():
        return float(torch.full((1,), 1e-30) * torch.full((1,), 1e-10))

    assert product() > 0
    with steady_arithmetic():
        with steady_arithmetic():
            assert product() == 0
        assert product() == 0  # the inner one leaves the outer one as it was
    assert product() > 0
    for processes in (1, 2):
        with simulation(processes) as found:
            found._runner.evaluate = lambda *_: (product(), 0.0, np.zeros((1, 3), np.float32))
            assert found.evaluate(zeros(), "test").accuracy == 0


def test_one_thread_is_for_a_while_only():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with steady_arithmetic():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with pytest.raises(RuntimeError), steady_arithmetic():
            raise RuntimeError
        assert torch.get_num_threads() == 2
        for processes in (1, 2):
            _trained("adap_dpfl", processes=processes, rounds=1)
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_round_with_more_clients_than_before_gets_room():
    with simulation(2) as engine:
        assert engine.evaluate(zeros(), "test") is not None  # room for one client
        one = engine.train(zeros(), [plan(0)])[0].params.clone()
        many = engine.train(zeros(), [plan(client) for client in range(5)])
        assert torch.equal(many[0].params, one)


@pytest.mark.parametrize("processes", [0, -1])
def test_no_processes_are_refused(processes):
    with pytest.raises(ConfigError, match=f"processes={processes}"):
        simulation(processes)


def test_by_default_a_process_a_core(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 3, 5})
    assert default_processes() == 3
    monkeypatch.setattr("sys.platform", "darwin")
    assert default_processes() == 1
    with pytest.raises(ConfigError, match="processes=2"):
        simulation(2)
