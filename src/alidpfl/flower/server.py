"""The ServerApp: it reaches nodes over Flower's grid. Every wait has its own end."""

import logging
import time
from collections.abc import Callable, Mapping
from logging import INFO

import httpx
from flwr.app import Context, Message
from flwr.common.logger import FLOWER_LOGGER, log
from flwr.serverapp import Grid, ServerApp

from alidpfl.errors import AliDpflError
from alidpfl.flower.messages import MESSAGE_TYPES, code_of, packed, unpacked
from alidpfl.flower.nodes import Failure, NodeId, Question

_FIRST_POLL, _LONGEST_POLL, _POLL_GROWTH = 0.1, 1.0, 1.3
_SECONDS_BEYOND = 60.0  # how long Flower keeps a message after we stop waiting


class GridLink:
    """Asks nodes over Flower's grid."""

    def __init__(
        self, grid: Grid, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._grid, self._clock, self._sleep = grid, clock, sleep

    def online(self) -> set[NodeId]:
        """Return the nodes that the SuperLink has heard of lately."""
        return set(self._grid.get_node_ids())

    def ask(
        self, question: Question, contents: Mapping[NodeId, bytes], seconds: float
    ) -> dict[NodeId, bytes | Failure]:
        """Send to each node, and collect until all have answered or `seconds` have passed."""
        end, waiting, answers = self._clock() + seconds, dict[str, NodeId](), dict[NodeId, bytes | Failure]()
        kind, ttl = MESSAGE_TYPES[question], seconds + _SECONDS_BEYOND
        for node, content in contents.items():
            message = Message(packed(content), dst_node_id=node, message_type=kind, ttl=ttl)
            # Each message is sent alone: with several, the grid does not say which one it did not take.
            ids = list(self._grid.push_messages([message]))
            if ids and ids[0]:
                waiting[ids[0]] = node
            else:
                answers[node] = Failure(code="unsent", reason="the SuperLink did not take the message")
        pause = _FIRST_POLL
        while waiting and self._clock() < end:
            self._sleep(min(pause, max(0.0, end - self._clock())))
            pause = min(pause * _POLL_GROWTH, _LONGEST_POLL)
            for sent, node in list(waiting.items()):
                if (answer := self._pulled(sent)) is not None:
                    answers[node] = answer
                    del waiting[sent]
        late = Failure(code="timeout", reason=f"no answer within {seconds:g} s")
        return {**answers, **dict.fromkeys(waiting.values(), late)}

    def tell(self, text: str) -> None:
        """Write a line to Flower's log, which `flwr log` shows."""
        log(INFO, "alidpfl: %s", text)

    def _pulled(self, sent: str) -> bytes | Failure | None:
        """Return the answer to the message with this id; None while there is none.

        Messages are pulled one at a time, by the id that was sent. So an answer that Flower cannot open costs no other
        node its answer, and a node cannot answer in another node's name.
        """
        try:
            replies = list(self._grid.pull_messages([sent]))
            if not replies:
                return None
            if replies[0].has_error():
                return Failure(code=code_of(replies[0].error), reason=replies[0].error.reason or "")
            content = unpacked(replies[0])
            return Failure(code="malformed", reason="the answer has no content") if content is None else content
        except httpx.HTTPError:  # the SuperLink's, not the node's
            raise
        except Exception as error:
            return Failure(code="malformed", reason=f"Flower cannot open the answer ({type(error).__name__})")


class _OurErrorsInALine(logging.Filter):
    """Shows errors that a user can repair in one line. Flower would show a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, AliDpflError):
            record.msg, record.args, record.exc_info = "alidpfl: %s", (str(error),), None
        return True


FLOWER_LOGGER.addFilter(_OurErrorsInALine())
server = ServerApp()


@server.main()
def _main(grid: Grid, context: Context) -> None:
    from alidpfl.flower.run import run_over_nodes

    run_over_nodes(GridLink(grid), context.run_config)
