"""Statistics over nodes with real vaults: before the first round, alone, and who is left out."""

import json

import numpy as np
import pytest

from alidpfl import load_model
from alidpfl.errors import ConfigError, NodesMissingError
from alidpfl.flower.run import run_over_nodes
from alidpfl.runs import execute
from alidpfl.store import RunDirectory
from alidpfl.tables import read_schema
from alidpfl.tables.estimates import ColumnStatistics
from alidpfl.vault.folder import status
from alidpfl.vault.messages import decode_request, encode_released, request_digest
from tests.runs.command import alidpfl
from tests.tables.parts import hospitals

from .fakes import NODE_IDS, FakeLink, run_config
from .test_tables import PERSONS, SIZES, VaultNode, enrolled, no_waiting, same_model, settings_of  # noqa: F401

pytestmark = pytest.mark.usefixtures("no_waiting")
PRIVATE = ('data.standardise="private"', "privacy.statistics_noise=12.0")


@pytest.fixture
def hospital_files(tmp_path):
    return hospitals(tmp_path, SIZES)


@pytest.fixture
def link(tmp_path, hospital_files):
    """Return a function that returns the link to three vaults, each with terms of statistics."""
    opened, schema = [], read_schema(tmp_path / "schema.toml")

    def make(terms=(10.0, 10.0, 10.0), settings=None):
        nodes = {}
        for number, (path, noise) in enumerate(zip(hospital_files, terms, strict=True)):
            changes = {} if noise is None else {"statistics": {"noise_multiplier": noise}}
            service = {"seconds_per_round": 0.005, "seconds_per_step": 0.001, "seconds_per_query": 0.005}
            run = settings or settings_of(tmp_path)
            folder = enrolled(tmp_path / f"vault-{number}", path, run, schema, service=service, **changes)
            nodes[NODE_IDS[number]] = VaultNode(folder, number)
            opened.append(nodes[NODE_IDS[number]].vault)
        return FakeLink(nodes)

    yield make
    for vault in opened:
        vault.ledger.close()


def questions(nodes):
    return [question for question, _ in nodes.asked]


class TestStandardise:
    def test_the_run_is_the_simulated_one(self, tmp_path, link, hospital_files):
        """Sums, mean and scale, every round and the model: bit for bit."""
        execute(settings_of(tmp_path, *PRIVATE, files=hospital_files), tmp_path / "simulated")
        nodes, out = link(), tmp_path / "out"
        outcome = run_over_nodes(nodes, run_config(out, settings_of(tmp_path, *PRIVATE), simulation=False))
        assert outcome.rounds == 2  # of three: one was for the statistics
        assert same_model(out, tmp_path / "simulated")
        assert {"features.mean", "features.scale"} <= RunDirectory.open(out).read_model()[0].keys()
        found, expected = (load_model(run).predict(hospital_files[0]) for run in (out, tmp_path / "simulated"))
        assert (found == expected).all()
        assert questions(nodes).count("release") == 1
        for number in range(3):
            told = status(tmp_path / f"vault-{number}")
            assert told["rounds_released"] >= 2
            assert told["statistics"]["answered"] == 1

    def test_a_continued_run_does_not_ask_again(self, tmp_path, link):
        nodes, settings = link(), settings_of(tmp_path, *PRIVATE, "federation.max_rounds=5")

        def killed(question, content, honest):
            if question == "train" and decode_request(content)[0].round == 2:
                raise KeyboardInterrupt
            return honest

        nodes.hooks[NODE_IDS[0]] = killed
        with pytest.raises(KeyboardInterrupt):
            run_over_nodes(nodes, run_config(tmp_path / "out", settings, simulation=False))
        kept = RunDirectory.open(tmp_path / "out").statistics()
        del nodes.hooks[NODE_IDS[0]]
        outcome = run_over_nodes(nodes, run_config(tmp_path / "out", settings, simulation=False))
        assert outcome.rounds == 4
        assert questions(nodes).count("release") == 1
        tensors = RunDirectory.open(tmp_path / "out").read_model()[0]
        assert all((tensors[f"features.{name}"] == values).all() for name, values in kept.items())

    @pytest.mark.parametrize("terms", [None, 12.0, 13.0])
    def test_a_vault_that_would_refuse_is_left_out_before_any_charge(self, tmp_path, link, terms):
        nodes = link((10.0, terms, 10.0))
        with pytest.raises(NodesMissingError):
            run_over_nodes(nodes, run_config(tmp_path / "out", settings_of(tmp_path, *PRIVATE), simulation=False))
        assert set(questions(nodes)) == {"info"}
        assert any("statistics" in line for line in nodes.told)
        assert all(status(tmp_path / f"vault-{number}")["rounds_charged"] == 0 for number in range(3))

    def test_without_a_quorum_nothing_is_trained(self, tmp_path, link):
        nodes = link()
        for node in NODE_IDS[:2]:
            nodes.hooks[node] = lambda question, _content, honest: b"nonsense" if question == "release" else honest
        with pytest.raises(NodesMissingError, match=r"run\.name"):
            run_over_nodes(nodes, run_config(tmp_path / "out", settings_of(tmp_path, *PRIVATE), simulation=False))
        assert "train" not in questions(nodes)
        nodes.hooks.clear()  # the same vaults send the same answers again
        outcome = run_over_nodes(nodes, run_config(tmp_path / "out", settings_of(tmp_path, *PRIVATE), simulation=False))
        assert outcome.rounds == 2
        assert status(tmp_path / "vault-0")["statistics"]["answered"] == 1

    def test_a_lie_cannot_move_a_mean_far(self, tmp_path, link):
        nodes = link()

        def lying(question, content, honest):
            if question != "release":
                return honest
            request, weights = decode_request(content)
            values = np.full(request.query.layout.size, 1e30, np.float32)
            return encode_released(values, request, digest=request_digest(request, weights), unsafe=())

        nodes.hooks[NODE_IDS[2]] = lying
        run_over_nodes(nodes, run_config(tmp_path / "out", settings_of(tmp_path, *PRIVATE), simulation=False))
        assert RunDirectory.open(tmp_path / "out").statistics()["mean"].abs().max() < 3


class TestAlone:
    def test_statistics_of_vaults_of_persons_count_persons(self, tmp_path):
        files, schema = hospitals(tmp_path, SIZES, has_persons=True), read_schema(tmp_path / "schema.toml")
        settings = settings_of(tmp_path, *PRIVATE, *PERSONS)
        service = {"seconds_per_round": 0.005, "seconds_per_step": 0.001, "seconds_per_query": 0.005}
        folders = [
            enrolled(tmp_path / f"vault-{k}", path, unit, schema, service=service)
            for k, (path, unit) in enumerate(zip(files, (settings, settings, settings_of(tmp_path)), strict=True))
        ]
        numbered = zip(NODE_IDS, range(3), folders, strict=True)
        nodes = FakeLink({node: VaultNode(folder, number) for node, number, folder in numbered})
        out = tmp_path / "out"
        try:
            given = run_config(out, settings, simulation=False, statistics=True, bins=4, min_nodes=2)
            run_over_nodes(nodes, given)
        finally:
            for node in nodes.nodes.values():
                node.vault.ledger.close()
        told = json.loads((out / "statistics.json").read_text())
        assert (told["unit"], told["max_records"]) == ("person", 2)
        persons = [node.vault.enrolment.num_records for node in nodes.nodes.values()]
        assert told["persons"] == persons[0] + persons[1]
        left_out = nodes.nodes[NODE_IDS[2]].vault.enrolment.vault
        assert any(left_out in line and 'unit="record"' in line for line in nodes.told)

    def test_they_are_written_and_can_be_shown(self, tmp_path, link):
        nodes, out = link(), tmp_path / "out"
        given = run_config(out, settings_of(tmp_path, *PRIVATE), simulation=False, statistics=True, bins=4)
        assert run_over_nodes(nodes, given) is None
        assert set(questions(nodes)) == {"info", "release"}
        values = json.loads((out / "statistics.json").read_text())
        assert len(values["clients"]) == 3
        assert values["epsilon"] is None  # the owners' accounts say
        age = ColumnStatistics.from_json("age", values["columns"]["age"])
        assert age.mean.low < 59 < age.mean.high
        assert len(age.edges) == 5
        assert all(client["noise_multiplier"] == 12.0 for client in values["clients"].values())
        shown = alidpfl("statistics", "--show", out / "statistics.json")
        assert shown.exit_code == 0, shown.stderr
        assert "smoker" in shown.stdout
        with pytest.raises(ConfigError, match=r"statistics\.json"):
            run_over_nodes(nodes, given)
        assert questions(nodes).count("release") == 1

    def test_another_release_must_be_paid_for(self, tmp_path, link):
        nodes = link()
        for name in ("first", "second"):
            settings = settings_of(tmp_path, *PRIVATE, f"run.name={name}")
            given = run_config(tmp_path / name, settings, simulation=False, statistics=True)
            if name == "first":
                run_over_nodes(nodes, given)
            else:  # 2/144 is more than 1/100
                with pytest.raises(NodesMissingError, match="no vault"):
                    run_over_nodes(nodes, given)

    def test_they_are_for_tables(self, tmp_path):
        from .fakes import config

        with pytest.raises(ConfigError, match="tables"):
            run_over_nodes(FakeLink({}), run_config(tmp_path / "out", config(), simulation=False, statistics=True))


def test_show_refuses_other_files(tmp_path):
    for content in ("", "{}", '{"format": "alidpfl-statistics-1"}', "[]"):
        (tmp_path / "other.json").write_text(content)
        shown = alidpfl("statistics", "--show", tmp_path / "other.json")
        assert shown.exit_code == 2
        assert "--show" in shown.stderr
    assert alidpfl("statistics").exit_code == 2
