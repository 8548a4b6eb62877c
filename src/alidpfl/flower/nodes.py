"""Who takes part in a deployment: nodes, each with a vault behind it. What they say of themselves is not trusted."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from alidpfl.errors import NodesMissingError, printable
from alidpfl.types import Release

NodeId: TypeAlias = int
Question: TypeAlias = Literal["info", "train"]

MOST_RECORDS = 1 << 40
_POLL_SECONDS = 0.5
_LONGEST_REASON = 300
_LONGEST_INTRODUCTION = 1 << 20  # bytes: 10,000 parameters with long names
_SECONDS_TO_INTRODUCE = 90.0  # the node's process starts, and its vault may still be loading


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A node that was asked and gave no answer."""

    code: str
    """A vault's `RefusalCode`, or what went wrong on the way."""
    reason: str
    """For a log and a terminal, and maybe by a node that lies: cut short, printable characters only."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", printable(self.reason, _LONGEST_REASON))


class Link(Protocol):
    """How questions reach nodes."""

    def online(self) -> set[NodeId]:
        """The nodes that are there now."""

    def ask(
        self, question: Question, contents: Mapping[NodeId, bytes], seconds: float
    ) -> dict[NodeId, bytes | Failure]:
        """Ask all at once; every node has an answer or a failure when `seconds` have passed, or earlier."""

    def tell(self, text: str) -> None:
        """A line for the log."""


class _Told(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class _Terms(_Told):
    sample_rate: float
    min_noise_multiplier: float
    release: Release


class _Limits(_Told):
    min_clip_norm: float
    max_clip_norm: float
    max_steps_per_round: int = Field(ge=1, le=1_000_000)


class VaultInfo(_Told):
    """What a vault makes public. Checked for form only: it may be a lie."""

    vault: str = Field(min_length=1, max_length=64)
    num_records: int = Field(ge=1, le=MOST_RECORDS)
    num_classes: int = Field(ge=2, le=1_000_000)
    input_shape: tuple[int, ...] = Field(max_length=8)
    parameters: tuple[tuple[str, tuple[int, ...]], ...] = Field(max_length=10_000)
    terms: _Terms
    limits: _Limits
    unsafe: tuple[str, ...] = Field((), max_length=8)


class Introduction(_Told):
    """A node's answer to the question "info"."""

    info: VaultInfo
    partition: int | None = Field(None, ge=0)
    """By the node's own configuration: how the owner wants it numbered."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node that has introduced itself."""

    node: NodeId
    partition: int | None
    info: VaultInfo


@dataclass(frozen=True, kw_only=True)
class Member:
    """A client of a run. Fixed when the run begins: whatever the node says later, its number and size stay."""

    node: NodeId
    vault: str
    num_records: int
    most_steps: int
    """That its vault runs in a round."""

    def to_json(self) -> dict[str, Any]:
        """For the run's directory. Node ids have 64 bits, more than some JSON readers keep."""
        return {**asdict(self), "node": str(self.node)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Member":
        """Back from what `to_json` gave."""
        return cls(**{**values, "node": int(values["node"])})


def gather(
    link: Link,
    is_enough: Callable[[Mapping[NodeId, Node]], bool],
    *,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[NodeId, Node]:
    """Ask every node that turns up to introduce itself, until `is_enough` or `seconds` have passed."""
    end, found, failed = clock() + seconds, dict[NodeId, Node](), Counter[NodeId]()
    while True:
        new = sorted(link.online() - found.keys() - {node for node, times in failed.items() if times > 1})
        patience = min(_SECONDS_TO_INTRODUCE, max(1.0, end - clock()))
        answers = link.ask("info", dict.fromkeys(new, b""), patience) if new else {}
        for node, answer in answers.items():
            introduced = _introduced(node, answer)
            if isinstance(introduced, Node):
                found[node] = introduced
            else:  # once more: its vault may have been starting
                failed[node] += 1
                link.tell(f"node {node} is left out: {introduced.code}: {introduced.reason}")
        if is_enough(found) or clock() >= end:
            return found
        sleep(_POLL_SECONDS)


def _introduced(node: NodeId, answer: bytes | Failure) -> Node | Failure:
    if isinstance(answer, Failure):
        return answer
    if len(answer) > _LONGEST_INTRODUCTION:
        return Failure(code="too-large", reason=f"it introduced itself in {len(answer)} bytes")
    try:
        told = Introduction.model_validate_json(answer)
    except ValidationError as error:
        problem = error.errors()[0]
        return Failure(code="malformed", reason=f"{'.'.join(map(str, problem['loc']))[:60]}: {problem['msg']}"[:200])
    return Node(node=node, partition=told.partition, info=told.info)


def numbered(nodes: Sequence[Node], tell: Callable[[str], None]) -> list[Node]:
    """In the order of the clients: by partition where the owner gave one, else by node id.

    A vault's name is its node's word: where several say that they have the same, nobody knows whose it is, and all are
    left out.
    """
    ordered = sorted(nodes, key=lambda node: (node.partition is None, node.partition or 0, node.node))
    having: dict[str, list[NodeId]] = {}
    for node in ordered:
        having.setdefault(node.info.vault, []).append(node.node)
    for vault, several in having.items():
        if len(several) > 1:
            told = ", ".join(map(str, several))
            tell(f"nodes {told} are left out: they say that they have the same vault, {vault!r}; stop all but its own")
    return [node for node in ordered if len(having[node.info.vault]) == 1]


def found_again(members: Sequence[Member], nodes: Mapping[NodeId, Node]) -> list[Member]:
    """The same clients for a run that goes on: by node id, and a node with a new id by the name of its vault.

    Of several new nodes with one name, none: see `numbered`.
    """
    taken = {member.node for member in members} & nodes.keys()
    new = [node for node in nodes.values() if node.node not in taken]
    names = Counter(node.info.vault for node in new)
    by_vault = {node.info.vault: node.node for node in new if names[node.info.vault] == 1}
    return [
        member if member.node in taken else replace(member, node=by_vault.get(member.vault, member.node))
        for member in members
    ]


def most_common_task(nodes: Sequence[Node]) -> tuple[tuple[int, ...], int]:
    """Shape of an input and number of classes as most nodes have them; NodesMissingError if they are divided."""
    counted = Counter((node.info.input_shape, node.info.num_classes) for node in nodes).most_common(2)
    if not counted:
        raise NodesMissingError("no node has introduced itself; start SuperNodes with a vault-socket and submit again")
    if len(counted) > 1 and counted[0][1] == counted[1][1]:
        raise NodesMissingError(
            f"the nodes are divided over what an input is: {counted[0][0]} or {counted[1][0]}; set evaluate=true, so "
            "that the run's own data set decides"
        )
    return counted[0][0]
