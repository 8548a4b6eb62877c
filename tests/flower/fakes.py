"""Nodes in this process, behind a fake link or a fake grid, with a fake clock."""

import json
from dataclasses import dataclass, field

from flwr.app import Context, RecordDict

from alidpfl.flower.config import FlowerOptions, to_run_config
from alidpfl.flower.nodes import Failure
from alidpfl.flower.simulated_node import SimulatedNode
from alidpfl.vault.refusals import VaultRefusedError
from tests.runs import command

CLIENTS = 3
SETTINGS = {
    "data__clients": CLIENTS,
    "privacy__noise_multiplier": 2.0,
    "federation__max_rounds": 4,
    "run__evaluate_every": 2,
    "run__seed": 5,
}
NODE_IDS = [2**63 + 7, 11, 5]  # of partitions 0, 1, 2: not in their order


def config(**changes):
    return command.config(**{**SETTINGS, **changes})


def run_config(out, settings=None, **options) -> dict:
    options = {"out": str(out), "nodes": CLIENTS, "wait_for_nodes": 5.0, "simulation": True, **options}
    return to_run_config(settings or config(), FlowerOptions(**options))


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class StoringNode:
    """A client with its records that, like a vault, keeps its answers."""

    def __init__(self, settings, partition: int) -> None:
        self._node = SimulatedNode(settings, partition)
        self.partition, self.answers, self.trained = partition, {}, []

    def info(self) -> dict:
        return self._node.info()

    def train_bytes(self, content: bytes) -> bytes:
        if content not in self.answers:
            self.answers[content] = self._node.train_bytes(content)
            self.trained.append(content)
        return self.answers[content]


@dataclass
class FakeLink:
    """Nodes by id. `hooks[node]` may change or replace an answer: called with question, content and honest answer."""

    nodes: dict
    hooks: dict = field(default_factory=dict)
    offline: set = field(default_factory=set)
    told: list = field(default_factory=list)
    asked: list = field(default_factory=list)

    def online(self):
        return self.nodes.keys() - self.offline

    def ask(self, question, contents, seconds):
        self.asked.append((question, sorted(contents)))
        return {node: self._answer(question, node, content) for node, content in contents.items()}

    def tell(self, text):
        self.told.append(text)

    def _answer(self, question, node, content):
        records = self.nodes[node]
        try:
            if question == "info":
                honest = json.dumps({"info": records.info(), "partition": records.partition}).encode()
            else:
                honest = records.train_bytes(content)
        except VaultRefusedError as error:
            honest = Failure(code=error.code, reason=str(error))
        hook = self.hooks.get(node)
        return honest if hook is None else hook(question, content, honest)


def fake_link(settings=None, **parts) -> FakeLink:
    settings = settings or config()
    nodes = {node: StoringNode(settings, partition) for partition, node in enumerate(NODE_IDS)}
    return FakeLink(nodes, **parts)


class FakeGrid:
    """Flower's grid with a ClientApp behind every node; `silent` nodes never answer, `lost` ones get no message."""

    def __init__(self, app, node_configs: dict, run_config: dict, clock: Clock) -> None:
        self._app, self._configs, self._run_config, self._clock = app, node_configs, run_config, clock
        self._replies, self.silent, self.lost, self.delay = {}, set(), set(), 1.0
        self.pulls = 0

    def get_node_ids(self):
        return list(self._configs)

    def push_messages(self, messages):
        return [self._push(message) for message in messages]

    def _push(self, message):
        node = message.metadata.dst_node_id
        if node in self.lost:
            return None
        number = f"m{len(self._replies)}"
        message.metadata.__dict__["_message_id"] = number
        message.metadata.__dict__["_src_node_id"] = 1
        context = Context(1, node, self._configs[node], RecordDict(), self._run_config)
        self._replies[number] = (
            self._clock() + self.delay,
            None if node in self.silent else self._app(message, context),
        )
        return number

    def pull_messages(self, message_ids):
        self.pulls += 1
        ready = [self._replies[number] for number in message_ids]
        return [reply for due, reply in ready if reply is not None and due <= self._clock()]
