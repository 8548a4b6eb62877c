"""A run over nodes that answer in this process. It has the same loop, accounts and directory as a simulated run."""

import json

import numpy as np
import pytest
import safetensors.numpy
import torch

from alidpfl.errors import ConfigError, DataError, NodesMissingError
from alidpfl.flower.config import from_run_config
from alidpfl.flower.engine import VaultEngine
from alidpfl.flower.nodes import Failure, gather
from alidpfl.flower.run import refuse_what_nodes_cannot, run_over_nodes
from alidpfl.methods import make_method
from alidpfl.runs import execute
from alidpfl.store import RunDirectory
from alidpfl.types import RawSignals, SecantSums
from alidpfl.vault.messages import decode_answer, decode_request, encode, request_digest

from .fakes import CLIENTS, NODE_IDS, Clock, config, fake_link, run_config


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Time passes by sleeping only."""
    clock = Clock()
    for function in (VaultEngine.__init__, gather):
        defaults = dict(function.__kwdefaults__)
        monkeypatch.setattr(function, "__kwdefaults__", {**defaults, "clock": clock, "sleep": clock.sleep})
    return clock


def weights_of(out):
    return RunDirectory.open(out).read_model()[0]


def same(first, second) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def taus(out) -> list[int]:
    return [record.local_steps for record in RunDirectory.open(out).records()]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    out = tmp_path_factory.mktemp("simulated") / "out"
    execute(config(), out)
    return out


def forged(change, weights=None):
    """A hook that changes the honest answer's values, and its weights."""

    def hook(question, content, honest):
        if question != "train" or isinstance(honest, Failure):
            return honest
        answer, trained = decode_answer(honest)
        return encode(answer.model_copy(update=change), trained if weights is None else weights(trained))

    return hook


def test_the_run_is_the_simulated_one_bit_for_bit(tmp_path, simulated):
    link = fake_link()
    outcome = run_over_nodes(link, run_config(tmp_path / "out"))
    assert outcome.stop_reason == "max_rounds"
    assert taus(tmp_path / "out") == taus(simulated)
    assert same(weights_of(tmp_path / "out"), weights_of(simulated))
    assert RunDirectory.open(tmp_path / "out").records() == RunDirectory.open(simulated).records()


def test_a_named_run_has_the_noise_of_a_simulation_of_that_name(tmp_path, simulated):
    settings = config(run__name="compare-1")
    execute(settings, tmp_path / "simulated")
    run_over_nodes(fake_link(settings), run_config(tmp_path / "out", settings))
    assert RunDirectory.open(tmp_path / "out").members()["run"] == "compare-1"
    assert same(weights_of(tmp_path / "out"), weights_of(tmp_path / "simulated"))
    assert not same(weights_of(tmp_path / "out"), weights_of(simulated))


@pytest.mark.parametrize("method", ["adap_dpfl", "pe_dpfl"])
def test_other_methods_too(tmp_path, method):
    changes = {"method__name": method, "method__local_steps": 2, "federation__max_rounds": 3}
    if method == "adap_dpfl":
        changes |= {"data__validation": 0.1, "method__options__noise_decay": 0.9}
    settings = config(**changes)
    execute(settings, tmp_path / "simulated")
    run_over_nodes(fake_link(settings), run_config(tmp_path / "out", settings))
    assert same(weights_of(tmp_path / "out"), weights_of(tmp_path / "simulated"))


LIES = {
    "NaN": ({}, lambda w: {name: np.full_like(values, np.nan) for name, values in w.items()}),
    "huge": ({}, lambda w: {name: np.full_like(values, 1e30) for name, values in w.items()}),
    "too long": ({}, lambda w: w | {"more": np.zeros(1_000_000, np.float32)}),
    "wrong shape": ({}, lambda w: {name: values[:1] for name, values in w.items()}),
    "a name is missing": ({}, lambda w: dict(list(w.items())[:1])),
    "more records than enrolled": ({"num_records": 10**9}, None),
    "another request": ({"request": "0" * 64}, None),
    "more steps than asked for": ({"steps": 10**6}, None),
    "no steps": ({"steps": 0}, None),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_liar_is_left_out_and_training_goes_on(tmp_path, lie):
    change, weights = LIES[lie]
    liar = NODE_IDS[1]
    link = fake_link(hooks={liar: forged(change, weights)})
    run_over_nodes(link, run_config(tmp_path / "lied"))
    quiet = fake_link(
        hooks={liar: lambda question, _, honest: honest if question == "info" else Failure(code="x", reason="")}
    )
    run_over_nodes(quiet, run_config(tmp_path / "silent"))
    assert same(weights_of(tmp_path / "lied"), weights_of(tmp_path / "silent"))  # as without its answers
    records = RunDirectory.open(tmp_path / "lied").records()
    assert all(record.aggregated and 1 in {*record.dropped, *record.rejected} for record in records)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1e300, 1e300])
def test_lies_about_curvature_cannot_break_the_plan(tmp_path, number):
    sums = SecantSums(product=abs(number), displacement=1e-3, noise=number, noise_variance=number)
    changed = {"secants": sums, "gradient_norm": number}
    link = fake_link(hooks={NODE_IDS[0]: forged_unchecked(changed)})
    outcome = run_over_nodes(link, run_config(tmp_path / "out"))
    assert outcome.rounds == 4
    assert outcome.epsilon <= 2.0
    assert all(torch.isfinite(values).all() for values in weights_of(tmp_path / "out").values())


def forged_unchecked(change):
    """Like `forged`, for values that our own encoder would not write."""

    def hook(question, content, honest):
        if question != "train":
            return honest
        answer, trained = decode_answer(honest)
        text = json.loads(answer.model_dump_json())
        for key, value in change.items():
            text[key] = vars(value) if isinstance(value, SecantSums) else value
        return safetensors.numpy.save(dict(trained), {"alidpfl": json.dumps(text)})

    return hook


def test_words_in_an_answer_cannot_write_on_the_servers_terminal(tmp_path):
    shouting = {"\x1b[2J\nround 9: all is well" + "x" * 10_000: 1}
    link = fake_link(hooks={NODE_IDS[0]: forged_unchecked(shouting)})
    assert run_over_nodes(link, run_config(tmp_path / "out")).rounds == 4
    assert any("malformed" in line for line in link.told)
    assert all(line.isprintable() and len(line) < 500 for line in link.told)


def test_an_answer_that_is_too_large_is_not_read(tmp_path):
    """It has the right weights, and megabytes of text beside them."""
    link = fake_link(hooks={NODE_IDS[0]: forged_unchecked({"words": "x" * 5_000_000})})
    assert run_over_nodes(link, run_config(tmp_path / "out")).rounds == 4
    assert any("too-large" in line for line in link.told)


def test_garbage_is_no_answer(tmp_path):
    link = fake_link(hooks={NODE_IDS[2]: lambda question, _, honest: honest if question == "info" else b"garbage"})
    assert run_over_nodes(link, run_config(tmp_path / "out")).rounds == 4
    assert any("malformed" in line for line in link.told)


def test_signals_that_nobody_asked_for_are_not_looked_at(tmp_path, simulated, monkeypatch):
    honest, updates = VaultEngine.train, []
    monkeypatch.setattr(VaultEngine, "train", lambda *asked: updates.extend(found := honest(*asked)) or found)
    raw = RawSignals(curvature=1e9, loss_before=1e9, loss_after=0.0)
    link = fake_link(hooks={node: forged({"raw": raw, "gradient_norm": 1e9}) for node in NODE_IDS})
    run_over_nodes(link, run_config(tmp_path / "out"))
    assert same(weights_of(tmp_path / "out"), weights_of(simulated))
    assert len(updates) == CLIENTS * 4
    assert {(update.raw, update.gradient_norm) for update in updates} == {(None, None)}
    assert all(update.secants is not None for update in updates), "what was asked for is there"


def refusing(code, from_round=0):
    def hook(question, content, honest):
        if question == "info" or decode_request(content)[0].round < from_round:
            return honest
        return Failure(code=code, reason="as the test wants it")

    return hook


def test_a_spent_vault_takes_its_client_out_of_later_rounds(tmp_path):
    link = fake_link(hooks={NODE_IDS[0]: refusing("budget", from_round=1)})
    run_over_nodes(link, run_config(tmp_path / "out"))
    asked = [nodes for question, nodes in link.asked if question == "train"]
    assert [NODE_IDS[0] in nodes for nodes in asked] == [True, True, False, False]


def test_the_run_ends_by_the_budget_when_all_vaults_are_spent(tmp_path):
    link = fake_link(hooks=dict.fromkeys(NODE_IDS, refusing("budget", from_round=2)))
    outcome = run_over_nodes(link, run_config(tmp_path / "out"))
    assert (outcome.stop_reason, outcome.rounds) == ("privacy_budget", 3)


def test_what_a_vault_has_left_bounds_the_next_plan(tmp_path):
    link = fake_link(hooks=dict.fromkeys(NODE_IDS, forged({"steps_left": 1})))
    run_over_nodes(link, run_config(tmp_path / "out"))
    assert taus(tmp_path / "out")[1:] == [1, 1, 1]


def test_no_round_asks_for_more_steps_than_any_vault_runs(tmp_path, simulated):
    """Vaults make their limits public. A vault with a lower limit is cut, and one with a higher limit slows nobody."""

    def limited(steps):
        def hook(question, _content, honest):
            if question != "info":
                return honest
            told = json.loads(honest)
            told["info"]["limits"]["max_steps_per_round"] = steps
            return json.dumps(told).encode()

        return hook

    link = fake_link(hooks=dict(zip(NODE_IDS, map(limited, (1, 3, 2)), strict=True)))
    run_over_nodes(link, run_config(tmp_path / "out"))
    assert max(taus(simulated)) > 3
    assert max(taus(tmp_path / "out")) == 3
    kept = RunDirectory.open(tmp_path / "out").members()["clients"]
    assert sorted(client["most_steps"] for client in kept) == [1, 2, 3]


def test_a_vault_may_run_fewer_steps_than_asked_for(tmp_path):
    def cut(question, content, honest):
        if question == "info":
            return honest
        request, weights = decode_request(content)
        shorter = replace_steps(request, 1)
        answer, trained = decode_answer(link.nodes[NODE_IDS[1]].train_bytes(encode(shorter, weights)))
        return encode(answer.model_copy(update={"steps": 1, "request": request_digest(request, weights)}), trained)

    link = fake_link(hooks={NODE_IDS[1]: cut})
    settings = config(method__policy="fixed", method__local_steps=3)
    run_over_nodes(link, run_config(tmp_path / "out", settings))
    records = RunDirectory.open(tmp_path / "out").records()
    assert all(not record.dropped and not record.rejected for record in records)
    assert [record.cut for record in records] == [{1: 1}] * len(records)  # and the average uses it


def replace_steps(request, steps):
    return request.model_copy(update={"steps": steps, "learning_rates": request.learning_rates[:steps]})


class Killed(BaseException):
    """Stands for kill -9: nothing below catches it."""


@pytest.mark.parametrize("after_answers", [False, True])
@pytest.mark.parametrize("at_round", [0, 2])
def test_a_killed_server_goes_on_and_nobody_trains_a_round_twice(tmp_path, simulated, at_round, after_answers):
    link = fake_link()
    honest_ask, state = link.ask, {"killed": False}

    def ask(question, contents, seconds):
        round_number = decode_request(next(iter(contents.values())))[0].round if question == "train" else None
        if round_number == at_round and not state["killed"]:
            state["killed"] = True
            reached = dict(list(contents.items())[:2]) if not after_answers else contents
            honest_ask(question, reached, seconds)  # vaults train, the server never sees it
            raise Killed
        return honest_ask(question, contents, seconds)

    link.ask = ask
    with pytest.raises(Killed):
        run_over_nodes(link, run_config(tmp_path / "out"))
    run_over_nodes(link, run_config(tmp_path / "out"))
    assert same(weights_of(tmp_path / "out"), weights_of(simulated))
    assert all(len(node.trained) == 4 for node in link.nodes.values())  # asked again with the same bytes


def test_a_lost_round_costs_that_client_its_update_and_no_more(tmp_path):
    def lost_at_round_one(question, content, honest):
        is_it = question == "train" and decode_request(content)[0].round == 1
        return Failure(code="lost", reason="killed in training") if is_it else honest

    link = fake_link(hooks={NODE_IDS[0]: lost_at_round_one})
    run_over_nodes(link, run_config(tmp_path / "out"))
    assert [record.dropped for record in RunDirectory.open(tmp_path / "out").records()] == [(), (0,), (), ()]


def test_a_run_that_is_over_is_not_run_again(tmp_path):
    link = fake_link()
    first = run_over_nodes(link, run_config(tmp_path / "out"))
    asked = len(link.asked)
    assert run_over_nodes(link, run_config(tmp_path / "out")) == first
    assert len(link.asked) == asked


def test_a_run_does_not_go_on_with_other_settings(tmp_path):
    link = fake_link(hooks=dict.fromkeys(NODE_IDS, refusing("failed", from_round=1)))
    with pytest.raises(NodesMissingError, match=r"^3 "):
        run_over_nodes(link, run_config(tmp_path / "out"))
    with pytest.raises(ConfigError, match=r"privacy\.epsilon=2\.0, not 3\.0"):
        run_over_nodes(link, run_config(tmp_path / "out", config(privacy__epsilon=3.0)))


def test_without_a_quorum_of_nodes_nothing_is_asked_and_the_run_goes_on_later(tmp_path, simulated):
    link = fake_link()
    honest_ask = link.ask

    def leaving(question, contents, seconds):
        answers = honest_ask(question, contents, seconds)
        if question == "train":
            link.offline = set(NODE_IDS[:2])
        return answers

    link.ask = leaving
    with pytest.raises(NodesMissingError, match=r"^1 of 3 .*\b2\b"):
        run_over_nodes(link, run_config(tmp_path / "out"))
    assert [len(node.trained) for node in link.nodes.values()] == [1, 1, 1]
    link.offline, link.ask = set(), honest_ask
    run_over_nodes(link, run_config(tmp_path / "out"))
    assert same(weights_of(tmp_path / "out"), weights_of(simulated))


def test_a_node_that_is_away_is_not_waited_for_longer_than_the_grace(tmp_path, no_waiting):
    link = fake_link()
    honest_ask = link.ask

    def leaving(question, contents, seconds):
        if question == "train":
            link.offline = {NODE_IDS[2]}
        return honest_ask(question, contents, seconds)

    link.ask = leaving
    run_over_nodes(link, run_config(tmp_path / "out"))
    assert [record.dropped for record in RunDirectory.open(tmp_path / "out").records()] == [(), (2,), (2,), (2,)]
    assert no_waiting.now < 60


def test_too_few_nodes_is_an_error_in_time(tmp_path, no_waiting):
    link = fake_link(offline={NODE_IDS[0]})
    with pytest.raises(NodesMissingError, match=rf"^2 .*\b{CLIENTS}\b"):
        run_over_nodes(link, run_config(tmp_path / "out"))
    assert no_waiting.now < 10
    assert not (tmp_path / "out").exists()


def test_fewer_nodes_will_do_where_that_was_said(tmp_path):
    link = fake_link(offline={NODE_IDS[0]})
    run_over_nodes(link, run_config(tmp_path / "out", min_nodes=2))
    assert len(RunDirectory.open(tmp_path / "out").members()["clients"]) == 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"terms": {"sample_rate": 0.01, "min_noise_multiplier": 1.0, "release": "step"}}, "sample_rate=0.01"),
        ({"terms": {"sample_rate": 1.0, "min_noise_multiplier": 9.0, "release": "step"}}, "noise_multiplier=9"),
        ({"terms": {"sample_rate": 1.0, "min_noise_multiplier": 1.0, "release": "update"}}, "noise on the update"),
        (
            {"limits": {"min_clip_norm": 2.0, "max_clip_norm": 3.0, "max_steps_per_round": 9}},
            "method.clip_norm",
        ),
        (
            {"limits": {"min_clip_norm": 0, "max_clip_norm": 9, "max_steps_per_round": 9, "max_noise_multiplier": 0.5}},
            "noise_multiplier=0.5 or less",
        ),
        ({"num_records": 1}, "num_records=1"),
        ({"parameters": [["w", [2, 2]]]}, "model.name"),
        ({"num_records": 0}, "num_records"),
        ({"num_records": 10**15}, "num_records"),
    ],
)
def test_a_vault_that_does_not_fit_is_left_out_before_it_is_charged(tmp_path, change, why):
    def hook(question, _content, honest):
        told = json.loads(honest) if question == "info" else None
        return honest if told is None else json.dumps({**told, "info": {**told["info"], **change}}).encode()

    link = fake_link(hooks={NODE_IDS[2]: hook})
    run_over_nodes(link, run_config(tmp_path / "out", min_nodes=2))
    assert any(why in line for line in link.told), link.told
    assert not link.nodes[NODE_IDS[2]].trained


def test_of_two_nodes_with_one_vault_neither_is_believed(tmp_path):
    """Otherwise a node that gives an honest node's name, and is numbered before it, would take its place."""

    def twin(question, _content, honest):
        told = json.loads(honest) if question == "info" else None
        return (
            honest if told is None else json.dumps({**told, "info": {**told["info"], "vault": "simulated-0"}}).encode()
        )

    link = fake_link(hooks={NODE_IDS[1]: twin})
    run_over_nodes(link, run_config(tmp_path / "out", min_nodes=1))
    assert [bool(link.nodes[node].trained) for node in NODE_IDS] == [False, False, True]
    assert any(f"nodes {NODE_IDS[0]}, {NODE_IDS[1]} are left out" in line for line in link.told)


def test_a_node_with_a_new_id_is_known_by_its_vault(tmp_path, simulated):
    link = fake_link(hooks=dict.fromkeys(NODE_IDS[:2], refusing("failed", from_round=1)))
    with pytest.raises(NodesMissingError):
        run_over_nodes(link, run_config(tmp_path / "out"))
    link.hooks = {}
    link.nodes = {99: link.nodes.pop(NODE_IDS[0]), **link.nodes}
    run_over_nodes(link, run_config(tmp_path / "out"))
    assert len(link.nodes[99].trained) == 4


def test_without_partitions_clients_are_numbered_by_node_id(tmp_path):
    link = fake_link()
    for node in link.nodes.values():
        node.partition = None
    run_over_nodes(link, run_config(tmp_path / "out"))
    members = RunDirectory.open(tmp_path / "out").members()["clients"]
    assert [int(member["node"]) for member in members] == sorted(NODE_IDS)


def test_the_server_needs_no_data_of_its_own(tmp_path, simulated):
    run_over_nodes(fake_link(), run_config(tmp_path / "out", evaluate=False))
    assert same(weights_of(tmp_path / "out"), weights_of(simulated))
    assert all(record.accuracy is None for record in RunDirectory.open(tmp_path / "out").records())


def test_a_server_with_public_test_records_alone_evaluates_on_them(tmp_path, simulated):
    """Its folder has `test.npz` and no client's file. A file that is not public is not even opened."""
    settings = config(data__name="npz", data__data_dir=str(tmp_path), data__num_classes=10)
    settings = settings.model_copy(update={"data": settings.data.model_copy(update={"clients": 3})})
    with pytest.raises(DataError, match=r"test\.npz"):
        run_over_nodes(fake_link(), run_config(tmp_path / "none", settings))
    x = np.random.default_rng(0).normal(size=(40, 60)).astype("float32")
    np.savez(tmp_path / "test.npz", x=x, y=np.arange(40) % 9)
    (tmp_path / "private.npz").write_bytes(b"never read")
    run_over_nodes(fake_link(), run_config(tmp_path / "out", settings))
    records = RunDirectory.open(tmp_path / "out").records()
    assert [record.accuracy is None for record in records] == [True, False, True, False]
    weights = weights_of(tmp_path / "out")
    assert same(weights, weights_of(simulated))
    weight, bias = sorted(weights.values(), key=lambda values: -values.ndim)
    scores = torch.from_numpy(x) @ weight.T + bias
    assert records[-1].accuracy == pytest.approx(100 * (scores.argmax(1) == torch.arange(40) % 9).float().mean().item())


def secure(question, content, honest):
    """Makes a node look like a vault with secure noise."""
    if question != "info":
        return honest
    told = json.loads(honest)
    assert told["info"]["unsafe"], "these nodes are seeded"
    told["info"]["unsafe"] = []
    return json.dumps(told).encode()


@pytest.mark.parametrize(("seeded", "says"), [(3, "SEEDED"), (1, "SEEDED"), (0, "secure")])
def test_the_model_says_if_the_noise_of_any_node_was_seeded(tmp_path, seeded, says):
    run_over_nodes(fake_link(hooks=dict.fromkeys(NODE_IDS[seeded:], secure)), run_config(tmp_path / "out"))
    assert RunDirectory.open(tmp_path / "out").read_model()[1]["noise"].startswith(says)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out": "relative"}, "out="),
        ({"nodes": 0}, "nodes"),
        ({"federation.dropout_rate": 0.5}, "dropout_rate"),
        ({"privacy.epsilon": -1.0}, "epsilon"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_bad_settings_are_refused_before_anybody_is_asked(tmp_path, change, message):
    link = fake_link()
    with pytest.raises(ConfigError, match=message):
        run_over_nodes(link, {**run_config(tmp_path / "out"), **change})
    assert not link.asked


def test_a_method_that_needs_public_data_is_refused_without_any(tmp_path):
    settings = config(method__name="adap_dpfl", data__validation=0.1)
    with pytest.raises(ConfigError, match="evaluate"):
        run_over_nodes(fake_link(settings), run_config(tmp_path / "out", settings, evaluate=False))


@pytest.mark.parametrize(("section", "key"), [("method", "name"), ("model", "loss")])
def test_plug_ins_that_vaults_do_not_have_are_refused(tmp_path, section, key):
    settings = config()
    plugged = getattr(settings, section).model_copy(update={key: "from_another_package"})
    options = from_run_config(run_config(tmp_path / "out"))[1]
    method = make_method("fedavg_dp", clip_norm=1.0, noise_multiplier=1.0)
    refuse_what_nodes_cannot(settings, options, method)
    with pytest.raises(ConfigError, match=rf"{section}\.{key}"):
        refuse_what_nodes_cannot(settings.model_copy(update={section: plugged}), options, method)


def test_a_lists_way_through_flowers_flat_table(tmp_path):
    settings = config(method__options__noise_decay=0.5, method__name="adap_dpfl", data__validation=0.1)
    found, _ = from_run_config(run_config(tmp_path / "out", settings))
    assert found.to_dict() == settings.to_dict()


def _says(**change):
    def hook(question, _content, honest):
        told = json.loads(honest) if question == "info" else None
        return honest if told is None else json.dumps({**told, "info": {**told["info"], **change}}).encode()

    return hook


def _limits(most_steps):
    return {"min_clip_norm": 0.0, "max_clip_norm": 1e6, "max_steps_per_round": most_steps}


def test_nobody_is_asked_for_more_than_its_own_limit(tmp_path):
    """Also if another node allows many more steps."""
    link = fake_link(hooks={NODE_IDS[0]: _says(limits=_limits(1)), NODE_IDS[1]: _says(limits=_limits(1_000_000))})
    run_over_nodes(link, run_config(tmp_path / "out"))
    asked = {node: {decode_request(content)[0].steps for content in link.nodes[node].trained} for node in NODE_IDS}
    assert asked[NODE_IDS[0]] == {1}
    assert max(asked[NODE_IDS[1]]) == max(taus(tmp_path / "out")) > 1


def test_a_limit_beyond_all_measure_is_left_out_and_not_written(tmp_path):
    link = fake_link(hooks={NODE_IDS[2]: _says(limits=_limits(10**30))})
    run_over_nodes(link, run_config(tmp_path / "out", min_nodes=2))
    assert any("max_steps_per_round" in line for line in link.told)
    assert RunDirectory.open(tmp_path / "out").members()


def test_an_introduction_has_a_size(tmp_path):
    link = fake_link(hooks={NODE_IDS[2]: lambda question, _content, honest: b" " * (2 << 20) + honest})
    run_over_nodes(link, run_config(tmp_path / "out", min_nodes=2))
    assert any("too-large" in line for line in link.told)


def test_a_node_that_does_not_fit_is_not_one_of_those_waited_for(tmp_path, no_waiting):
    """The third owner's node comes after ten seconds. Until then there are three nodes, but one does not fit."""
    link = fake_link(offline={NODE_IDS[2]})
    link.nodes[99] = type(link.nodes[NODE_IDS[0]])(config(), 0)
    link.hooks[99] = _says(num_records=1)
    link.online = lambda: (link.nodes.keys() - link.offline) | ({NODE_IDS[2]} if no_waiting.now >= 10 else set())
    run_over_nodes(link, run_config(tmp_path / "out", wait_for_nodes=60.0))
    assert {int(one["node"]) for one in RunDirectory.open(tmp_path / "out").members()["clients"]} == set(NODE_IDS)


def test_a_delta_too_large_for_the_largest_client_is_warned_of(tmp_path):
    sizes = [node.info()["num_records"] for node in fake_link().nodes.values()]
    delta = 1.01 / max(sizes)
    assert delta < 1 / min(sizes)
    settings = config(privacy__delta=delta, federation__max_rounds=1)
    outcome = run_over_nodes(fake_link(settings), run_config(tmp_path / "out", settings))
    assert f"1/{max(sizes)}" in outcome.weakness


def test_who_takes_over_a_client_is_told(tmp_path):
    link = fake_link(hooks=dict.fromkeys(NODE_IDS[:2], refusing("failed", from_round=1)))
    with pytest.raises(NodesMissingError):
        run_over_nodes(link, run_config(tmp_path / "out"))
    link.hooks, link.told = {}, []
    link.nodes = {99: link.nodes.pop(NODE_IDS[0]), **link.nodes}
    run_over_nodes(link, run_config(tmp_path / "out"))
    assert f"client 0 was node {NODE_IDS[0]} and is node 99, which says it has 'simulated-0'" in link.told


def test_what_a_killed_start_left_binds_nobody(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    stale = {"node": "1", "vault": "gone", "num_records": 5, "most_steps": 1}
    RunDirectory(out).write_members({"run": "stale", "clients": [stale]})
    run_over_nodes(fake_link(), run_config(out))
    members = RunDirectory.open(out).members()
    assert members["run"] != "stale"
    assert len(members["clients"]) == CLIENTS
