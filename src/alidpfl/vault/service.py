"""HTTP over the Unix socket. What decides is in `custody`; here are sizes, waiting times and status codes."""

import asyncio
import grp
import logging
import os
import resource
import signal
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from alidpfl.errors import ConfigError
from alidpfl.federation.tensors import keep_heap
from alidpfl.store.files import disk_errors
from alidpfl.vault.folder import ANSWERS, SOCKET, AnswerStore, VaultFolder
from alidpfl.vault.policy import Policy
from alidpfl.vault.refusals import HTTP_STATUS, RefusalCode, VaultRefusedError, refusal
from alidpfl.vault.rounds import Vault
from alidpfl.vault.status import public_info
from alidpfl.vault.training import load_trainer

_MOST_CONNECTIONS = 32
_SECONDS_TO_SEND = 60.0  # a question's head, and then its body
_SECONDS_TO_FINISH = 30
_LOG = logging.getLogger(__name__)


class _Impatient(H11Protocol):
    """Hangs up on callers that do not ask: idle ones would take all connections, and the vault would answer nobody."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody called."""
        super().connection_made(transport)
        self.loop.call_later(_SECONDS_TO_SEND, self._hang_up_on_silence)

    def _hang_up_on_silence(self) -> None:
        if self.cycle is None:  # no question yet
            self.transport.close()


class Service:
    """A vault behind /v1/info and /v1/train. One thread trains; the event loop only moves bytes.

    No status here: what other runs spent is for the owner, and whoever submits code to the node can ask this socket.
    """

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._turn = asyncio.Semaphore(1)
        self._thread = ThreadPoolExecutor(max_workers=1)
        self.app = Starlette(
            routes=[
                Route("/v1/info", self._info),
                Route("/v1/train", self._trained, methods=["POST"]),
            ]
        )

    def stop(self) -> None:
        """Wait for the round at work: it holds the ledger's file."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def _info(self, request: Request) -> Response:
        return JSONResponse(public_info(self._vault.enrolment, self._vault.policy))

    async def _trained(self, request: Request) -> Response:
        return await self._refusing(self._train(request))

    async def _train(self, request: Request) -> Response:
        content = await self._body(request)
        return await self._in_turn(lambda: Response(self._vault.answer(content), media_type="application/octet-stream"))

    async def _in_turn(self, work: Callable[[], Response]) -> Response:
        """Run when those before are done, within the policy's wait."""
        try:
            async with asyncio.timeout(self._vault.policy.service.max_wait_seconds):
                await self._turn.acquire()
        except TimeoutError:
            raise self._counted(
                RefusalCode.BUSY, "another round is being trained; nothing was charged, ask again"
            ) from None
        done = asyncio.get_running_loop().run_in_executor(self._thread, work)
        # The turn ends with the work, not with the caller: one that hangs up must not let a second round begin.
        done.add_done_callback(lambda _: self._turn.release())
        return await asyncio.shield(done)

    async def _body(self, request: Request) -> bytes:
        """The request's bytes, never more than the enrolled model needs and never waiting for ever."""
        most = self._vault.most_bytes
        content = bytearray()
        try:
            async with asyncio.timeout(_SECONDS_TO_SEND):
                async for piece in request.stream():
                    content += piece
                    if len(content) > most:
                        raise self._counted(RefusalCode.TOO_LARGE, f"the body has more than {most} bytes")
        except TimeoutError:
            raise self._counted(RefusalCode.MALFORMED, "the body did not arrive in time") from None
        except ClientDisconnect:
            raise self._counted(RefusalCode.MALFORMED, "the caller hung up before the body was whole") from None
        return bytes(content)

    def _counted(self, code: RefusalCode, message: str) -> VaultRefusedError:
        self._vault.refusals.note(code, message)
        return refusal(code, message)

    async def _refusing(self, work: Awaitable[Response]) -> Response:
        try:
            return await work
        except VaultRefusedError as error:
            code, message = error.code, str(error)
        except Exception as error:  # a bug of ours: its text may quote a record
            _LOG.error("failed with %s", type(error).__name__)
            code, message = RefusalCode.FAILED, "the vault failed; the details are withheld"
        return JSONResponse({"code": code.value, "message": message}, HTTP_STATUS[code])


def serve(
    path: Path,
    *,
    socket_path: Path | None = None,
    group: str | None = None,
    known_head: str | None = None,
    on_ready: Callable[[Vault, Path], None],
) -> None:
    """Verify, load the data, and serve until SIGTERM or Ctrl-C."""
    folder = VaultFolder(path=path)
    where = path / SOCKET if socket_path is None else socket_path
    policy = folder.policy()
    with folder.lock(policy):
        vault = open_vault(folder, policy, known_head)
        _keep_to_itself()
        with closing(vault.ledger), listening(where, group) as server:
            service = Service(vault)
            on_ready(vault, where)
            try:
                uvicorn.Server(_settings(service.app)).run(sockets=[server])
            finally:
                service.stop()


def open_vault(folder: VaultFolder, policy: Policy, known_head: str | None = None) -> Vault:
    """The vault of a folder, with data and torch loaded. The caller holds the folder's lock."""
    enrolment, ledger = folder.open(policy, known_head)
    keep_heap()
    return Vault(
        policy=policy,
        enrolment=enrolment,
        ledger=ledger,
        answers=AnswerStore(folder.path / ANSWERS),
        refusals=folder.refusals(),
        trainer=load_trainer(enrolment, policy),
    )


def _settings(app: Starlette) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="asyncio",
        http=_Impatient,
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_SECONDS_TO_FINISH,
    )


def _keep_to_itself() -> None:
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold records and the noise's key
    signal.signal(signal.SIGTERM, _stop)


def _stop(number: int, frame: object) -> NoReturn:
    raise SystemExit(0)  # so that the socket is removed on the way out


_LONGEST = 107  # bytes of a path that the system takes
_BACKLOG = 64
_OWNER_ONLY, _OWNER_AND_GROUP = 0o600, 0o660


@contextmanager
def listening(path: Path, group: str | None = None) -> Iterator[socket.socket]:
    """A socket at `path`, mode 0600; with a group, mode 0660 and that group's. Removed at the end."""
    if len(os.fsencode(path)) > _LONGEST:
        raise ConfigError(
            f"--socket {path} is longer than the {_LONGEST} bytes that the system takes; give a shorter one"
        )
    number = -1 if group is None else _group_number(group)
    _remove_stale(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        before = os.umask(0o777 - _OWNER_ONLY)  # at no moment is it open to others
        try:
            with disk_errors("listen on", path):
                server.bind(str(path))
        finally:
            os.umask(before)
        try:
            if group is not None:
                with disk_errors("give to the group", path):
                    os.chown(path, -1, number)
                    path.chmod(_OWNER_AND_GROUP)
            server.listen(_BACKLOG)
            yield server
        finally:
            with suppress(OSError):
                path.unlink()


def _group_number(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(f"--group {group}: there is no such group on this machine") from None


def _remove_stale(path: Path) -> None:
    """A killed vault leaves its socket behind. One that answers, and what is no socket, stays."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"--socket {path} exists and is no socket; give another path")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise ConfigError(f"--socket {path}: another process listens there; stop it, or give another path")
