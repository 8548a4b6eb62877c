"""The two apps on a fake grid: what a ClientApp relays and refuses, and how the link handles silence."""

import json
import subprocess
import sys

import httpx
import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.common.logger import FLOWER_LOGGER
from flwr.supercore.task_identity import TaskIdentity

from alidpfl.errors import NodesMissingError
from alidpfl.flower.apps import client
from alidpfl.flower.messages import _CODES, code_of, packed, refused, unpacked
from alidpfl.flower.nodes import Failure
from alidpfl.flower.server import GridLink
from alidpfl.vault.folder import SOCKET
from alidpfl.vault.messages import decode_answer
from alidpfl.vault.refusals import RefusalCode
from tests.vault.parts import body, made_vault, served

from .fakes import Clock, FakeGrid, run_config

NODE = 7


@pytest.fixture(autouse=True)
def a_task(monkeypatch):
    """Flower's runtime sets these names before it runs an app."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def grid_of(node_config, run_settings=None, nodes=(NODE,)):
    clock = Clock()
    grid = FakeGrid(client, dict.fromkeys(nodes, node_config), run_settings or {}, clock)
    return grid, GridLink(grid, clock=clock, sleep=clock.sleep), clock


def asked(node_config, question="info", content=b"", run_settings=None):
    return grid_of(node_config, run_settings)[1].ask(question, {NODE: content}, 30.0)[NODE]


@pytest.fixture(scope="module")
def vault(tmp_path_factory):
    folder = made_vault(tmp_path_factory.mktemp("served"))
    with served(folder):
        yield folder


def test_a_node_introduces_its_vault(vault):
    told = json.loads(asked({"vault-socket": str(vault.path / SOCKET), "partition-id": 4}))
    assert (told["partition"], told["info"]["num_records"]) == (4, 40)
    assert not {"source", "data_sha256"} & told["info"].keys()


def test_bytes_go_to_the_vault_and_back(vault):
    settings = {"vault-socket": str(vault.path / SOCKET)}
    first, again = (asked(settings, "train", body(run="relayed")) for _ in range(2))
    answer, weights = decode_answer(first)
    assert (answer.run, answer.steps, first) == ("relayed", 2, again)
    assert all(np.isfinite(values).all() for values in weights.values())


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"garbage", "malformed"),
        (body(run="r", sample_rate=0.9), "policy"),
        (body(run="r", noise_multiplier=0.1), "policy"),
        (body(float("nan"), run="r"), "weights"),
    ],
)
def test_a_refusal_comes_back_with_its_code(vault, content, code):
    failure = asked({"vault-socket": str(vault.path / SOCKET)}, "train", content)
    assert isinstance(failure, Failure)
    assert failure.code == code


def test_limits_in_the_run_config_change_nothing(vault):
    settings = {"vault-socket": str(vault.path / SOCKET)}
    hostile = {"vault-socket": "/elsewhere", "simulation": True, "vault-wait": 0.1, "privacy.epsilon": 100.0}
    assert asked(settings, "train", body(run="x", sample_rate=0.9), hostile).code == "policy"


def test_a_vault_that_is_not_there_is_waited_for_and_its_place_not_told(tmp_path):
    failure = asked({"vault-socket": str(tmp_path / "gone.sock"), "vault-wait": 0.6})
    assert failure.code == "unreachable"
    assert str(tmp_path) not in failure.reason


def test_a_node_without_a_vault_trains_only_in_a_simulation(tmp_path):
    assert asked({"partition-id": 0}).code == "no-vault"
    assert asked({"partition-id": 0}, run_settings={"simulation": "true"}).code == "no-vault"
    told = json.loads(asked({"partition-id": 0, "num-partitions": 3}, run_settings=run_config(tmp_path / "out")))
    assert told["info"]["vault"] == "simulated-0"


def test_a_bug_on_the_node_tells_nothing_but_its_type():
    failure = asked({"partition-id": 0}, run_settings={"simulation": True})  # no run config at all
    assert failure.code == "failed"
    assert failure.reason.endswith("ConfigError")
    quoting = asked({"partition-id": 0}, run_settings={"simulation": True, "data.name": "secret-4711"})
    assert quoting.code == "failed"
    assert "secret-4711" not in quoting.reason


def test_silence_ends_with_the_deadline_and_the_others_answers_are_kept(vault):
    grid, link, clock = grid_of({"vault-socket": str(vault.path / SOCKET)}, nodes=(1, 2, 3))
    grid.silent, grid.lost = {2}, {3}
    answers = link.ask("info", {1: b"", 2: b"", 3: b""}, 12.0)
    assert isinstance(answers[1], bytes)
    assert (answers[2].code, answers[3].code) == ("timeout", "unsent")
    assert 12.0 <= clock.now < 13.5


def test_waiting_ends_with_the_last_answer(vault):
    _, link, clock = grid_of({"vault-socket": str(vault.path / SOCKET)})
    link.ask("info", {NODE: b""}, 600.0)
    assert clock.now < 2.5  # the fake grid's delay is 1


def test_codes_are_there_and_back_and_flowers_own_are_told():
    for name in (*(code.value for code in RefusalCode), "unreachable", "no-vault"):
        assert code_of(refused(name, "x")) == name
        assert refused(name, "x").code > 1000
    assert len(set(_CODES.values())) == len(_CODES)
    assert code_of(Error(code=5)) == "flower-5"


def test_what_a_node_says_cannot_write_on_the_servers_terminal():
    clock = Clock()

    def shouting(message, _context):
        return Message(Error(code=1006, reason="\x1b[2J\nround 9: all is well" + "x" * 10_000), reply_to=message)

    grid = FakeGrid(shouting, {NODE: {}}, {}, clock)
    failure = GridLink(grid, clock=clock, sleep=clock.sleep).ask("train", {NODE: b""}, 5.0)[NODE]
    assert failure.code == "budget"
    assert failure.reason.isprintable()
    assert len(failure.reason) <= 300


def test_an_error_that_a_user_can_mend_is_a_line_in_flowers_log(caplog):
    for error in (NodesMissingError("start more nodes"), RuntimeError("a bug")):
        try:
            raise error
        except Exception as raised:
            FLOWER_LOGGER.error("ServerApp raised an exception", exc_info=raised)
    ours, theirs = caplog.records
    assert ours.getMessage() == "alidpfl: start more nodes"
    assert ours.exc_info is None
    assert theirs.exc_info is not None  # a bug keeps its traceback


def test_what_is_packed_is_unpacked():
    message = Message(packed(b"\x00bytes"), dst_node_id=1, message_type="train")
    assert unpacked(message) == b"\x00bytes"


def test_a_client_app_loads_no_torch():
    found = "import sys, alidpfl.flower.apps; sys.exit('torch' in sys.modules or 'alidpfl.runs' in sys.modules)"
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", found], check=False).returncode == 0


def test_an_answer_that_flower_cannot_open_costs_its_own_node_only():
    clock = Clock()
    grid = FakeGrid(lambda message, _context: Message(packed(b"honest"), reply_to=message), {1: {}, 2: {}}, {}, clock)
    whole = grid.pull_messages

    def pull_messages(message_ids):
        if "m0" in message_ids and any(grid._replies[number][0] <= clock() for number in message_ids):
            raise ValueError("what node 1 made is no protobuf: secret")
        return whole(message_ids)

    grid.pull_messages = pull_messages
    answers = GridLink(grid, clock=clock, sleep=clock.sleep).ask("train", {1: b"", 2: b""}, 5.0)
    assert answers[2] == b"honest"
    assert answers[1].code == "malformed"
    assert "ValueError" in answers[1].reason
    assert "secret" not in answers[1].reason


def test_a_superlink_that_is_gone_is_not_taken_for_a_node_that_lies():
    clock = Clock()
    grid = FakeGrid(lambda message, _context: Message(packed(b"x"), reply_to=message), {1: {}}, {}, clock)

    def pull_messages(_message_ids):
        raise httpx.ConnectError("refused")

    grid.pull_messages = pull_messages
    with pytest.raises(httpx.ConnectError):
        GridLink(grid, clock=clock, sleep=clock.sleep).ask("train", {1: b""}, 5.0)


def test_an_answer_belongs_to_the_node_that_was_asked_whatever_it_says():
    clock = Clock()

    def lying(message, context):
        reply = Message(packed(b"by %d" % context.node_id), reply_to=message)
        if context.node_id == 1:
            reply.metadata.__dict__["_reply_to_message_id"] = "m1"
        return reply

    grid = FakeGrid(lying, {1: {}, 2: {}}, {}, clock)
    answers = GridLink(grid, clock=clock, sleep=clock.sleep).ask("train", {1: b"", 2: b""}, 5.0)
    assert answers == {1: b"by 1", 2: b"by 2"}


def test_nobody_can_guess_the_name_of_a_message():
    """Flower accepts an answer by the hash of the question, so equal questions must have different hashes."""
    assert packed(b"same").object_id != packed(b"same").object_id
