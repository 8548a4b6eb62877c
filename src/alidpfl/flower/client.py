"""The ClientApp: it relays bytes between the server and the vault on this machine. It loads no torch.

The organiser of a run submits this code, so a limit here would bind only honest organisers. The vault behind the
socket binds everyone: the owner of the data installed it. So only the node's own configuration says where the vault is.
From the run's configuration, this module reads only whether the run is a simulation.
"""

import json
import time
from collections.abc import Callable, Mapping
from logging import WARNING
from typing import TYPE_CHECKING, Any, TypeVar

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.logger import log

from alidpfl.errors import AliDpflError
from alidpfl.flower.messages import packed, refused, unpacked
from alidpfl.vault.client import VaultClient
from alidpfl.vault.refusals import RefusalCode, VaultBusyError, VaultRefusedError, VaultUnreachableError

if TYPE_CHECKING:
    from alidpfl.flower.simulated_node import SimulatedNode

_Answer = TypeVar("_Answer")

SOCKET, PARTITION, WAIT, TIMEOUT = "vault-socket", "partition-id", "vault-wait", "vault-timeout"
_DEFAULT_WAIT, _DEFAULT_TIMEOUT = 60.0, 600.0
_PAUSE = 0.5

client = ClientApp()


class _Relay:
    """A vault that may be restarting or busy. Sending the same bytes again is always safe."""

    def __init__(self, settings: Mapping[str, bool | int | float | str]) -> None:
        self._socket, self._timeout = str(settings[SOCKET]), float(settings.get(TIMEOUT, _DEFAULT_TIMEOUT))
        self._wait = float(settings.get(WAIT, _DEFAULT_WAIT))

    def info(self) -> dict[str, Any]:
        return self._patiently(lambda vault: vault.info())

    def train_bytes(self, content: bytes) -> bytes:
        return self._patiently(lambda vault: vault.train_bytes(content))

    def release_bytes(self, content: bytes) -> bytes:
        return self._patiently(lambda vault: vault.release_bytes(content))

    def _patiently(self, ask: Callable[[VaultClient], _Answer]) -> _Answer:
        end = time.monotonic() + self._wait
        with VaultClient(self._socket, timeout=self._timeout) as vault:
            while True:
                try:
                    return ask(vault)
                except (VaultUnreachableError, VaultBusyError):
                    if time.monotonic() >= end:
                        raise
                time.sleep(_PAUSE)


@client.query()
def _info(message: Message, context: Context) -> Message:
    def introduced() -> bytes:
        told = {"info": _records(context).info(), "partition": context.node_config.get(PARTITION)}
        return json.dumps(told).encode()

    return _answered(message, introduced)


@client.train()
def _train(message: Message, context: Context) -> Message:
    return _answered(message, lambda: _records(context).train_bytes(unpacked(message) or b""))


@client.evaluate()
def _release(message: Message, context: Context) -> Message:
    return _answered(message, lambda: _records(context).release_bytes(unpacked(message) or b""))


def _records(context: Context) -> "_Relay | SimulatedNode":
    """Return what answers for this node: its vault, or a share of the run's data set in a simulation."""
    if SOCKET in context.node_config:
        return _Relay(context.node_config)
    if context.run_config.get("simulation") is True:
        from alidpfl.flower.config import from_run_config
        from alidpfl.flower.simulated_node import SimulatedNode

        return SimulatedNode(from_run_config(context.run_config)[0], int(context.node_config[PARTITION]))
    raise _NoVaultError(f"this node has no vault: start its SuperNode with --node-config '{SOCKET}=\"/path\"'")


class _NoVaultError(AliDpflError):
    pass


def _answered(message: Message, work: Callable[[], bytes]) -> Message:
    """Return the answer, or the reason why there is none. No reason depends on a record."""
    try:
        return Message(packed(work()), reply_to=message)
    except VaultRefusedError as error:
        failed = refused(error.code, str(error))
    except VaultUnreachableError as error:
        log(WARNING, "%s", error)  # for the owner only: the socket's path is private
        failed = refused("unreachable", "the node's vault does not answer; see the node's log")
    except _NoVaultError as error:
        failed = refused("no-vault", str(error))
    except Exception as error:  # a bug: its text may quote a record
        failed = refused(RefusalCode.FAILED, f"the node failed with {type(error).__name__}")
    return Message(failed, reply_to=message)
