"""The vault's HTTP service over a Unix socket: sizes, waiting times and status codes. `rounds` decides the rest."""

import asyncio
import grp
import logging
import os
import resource
import signal
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from alidpfl.errors import ConfigError
from alidpfl.federation.tensors import keep_heap
from alidpfl.store.files import disk_errors
from alidpfl.vault.enrolment import Enrolment
from alidpfl.vault.folder import ANSWERS, SOCKET, AnswerStore, VaultFolder
from alidpfl.vault.messages import RoundRequest
from alidpfl.vault.policy import PROMPT_ANSWERS, Policy
from alidpfl.vault.refusals import HTTP_STATUS, RefusalCode, VaultRefusedError, refusal
from alidpfl.vault.rounds import Vault
from alidpfl.vault.slots import Slots, Timetable, storing_seconds
from alidpfl.vault.training import RecordTrainer, load_trainer

_MOST_CONNECTIONS = 32
_SECONDS_TO_SEND = 60.0  # for the head of a request, and again for its body
_SECONDS_TO_FINISH = 30
_LONGEST_PATH = 107  # bytes that the system accepts for a socket
_BACKLOG = 64
_OWNER_ONLY, _OWNER_AND_GROUP = 0o600, 0o660
_PUBLIC = {"vault", "alidpfl", "num_records", "num_classes", "kind", "num_outputs", "input_shape", "parameters"}
_LOG = logging.getLogger(__name__)


def public_info(enrolment: Enrolment, policy: Policy) -> dict[str, Any]:
    """Return what a server needs to plan: sizes, shapes and limits, but not the source or the hash of the records."""
    return {
        "format": "alidpfl-vault-info-1",
        **enrolment.model_dump(include=_PUBLIC),
        "schema_sha256": enrolment.schema_sha256,
        "loss": enrolment.loss(policy),
        "quantile": policy.model.quantile,
        **policy.pinned(),
        "limits": {**policy.limits.model_dump(), "max_noise_multiplier": policy.max_noise_multiplier},
        "unsafe": list(policy.unsafe),
    }


class _Impatient(H11Protocol):
    """Closes connections without a request. Otherwise idle callers could take them all and block the vault."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(_SECONDS_TO_SEND, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.cycle is None:  # no request yet
            self.transport.close()


class Service:
    """A vault behind /v1/info, /v1/train and /v1/release. One thread trains; the event loop only moves bytes.

    A request's own format says what it asks for, so the last two routes lead to the same place.

    There is no route for the status: only the owner may know what other runs spent, and all code that is submitted to
    the node can reach this socket.
    """

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._turn = asyncio.Semaphore(1)
        self._thread = ThreadPoolExecutor(max_workers=1)
        asked = [Route(path, self._train, methods=["POST"]) for path in ("/v1/train", "/v1/release")]
        self.app = Starlette(routes=[Route("/v1/info", self._info), *asked])

    def stop(self) -> None:
        """Wait for the current round, which uses the ledger's file."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def _info(self, request: Request) -> Response:
        return JSONResponse(public_info(self._vault.enrolment, self._vault.policy))

    async def _train(self, request: Request) -> Response:
        try:
            answer = await self._in_turn(await self._body(request))
            return Response(answer, media_type="application/octet-stream")
        except VaultRefusedError as error:
            code, message = error.code, str(error)
        except Exception as error:  # a bug of ours: its text may quote a record
            _LOG.error("failed with %s", type(error).__name__)
            code, message = RefusalCode.FAILED, "the vault failed; the details are withheld"
        return JSONResponse({"code": code.value, "message": message}, HTTP_STATUS[code])

    async def _in_turn(self, content: bytes) -> bytes:
        """Answer once earlier callers are served. Wait no longer than the policy allows."""
        try:
            async with asyncio.timeout(self._vault.policy.service.max_wait_seconds):
                await self._turn.acquire()
        except TimeoutError:
            busy = "another round is being trained; nothing was charged, ask again"
            raise self._refused(RefusalCode.BUSY, busy) from None
        done = asyncio.get_running_loop().run_in_executor(self._thread, self._vault.answer, content)
        # The turn ends with the work and not with the caller: a caller that hangs up must not let a second round begin.
        done.add_done_callback(lambda _: self._turn.release())
        return await asyncio.shield(done)

    async def _body(self, request: Request) -> bytes:
        """Read the request's body. Its size and the waiting time are bounded."""
        most, content = self._vault.most_bytes, bytearray()
        try:
            async with asyncio.timeout(_SECONDS_TO_SEND):
                async for piece in request.stream():
                    content += piece
                    if len(content) > most:
                        raise self._refused(RefusalCode.TOO_LARGE, f"the body has more than {most} bytes")
        except TimeoutError:
            raise self._refused(RefusalCode.MALFORMED, "the body did not arrive in time") from None
        except ClientDisconnect:
            raise self._refused(RefusalCode.MALFORMED, "the caller hung up before the body was whole") from None
        return bytes(content)

    def _refused(self, code: RefusalCode, message: str) -> VaultRefusedError:
        self._vault.refusals.note(code, message)
        return refusal(code, message)


def serve(
    path: Path,
    *,
    socket_path: Path | None = None,
    group: str | None = None,
    known_head: str | None = None,
    anchor: Path | None = None,
    on_ready: Callable[[Vault, Path], None],
) -> None:
    """Verify the ledger, load the data, and serve until SIGTERM or Ctrl-C. Raise AliDpflError if they do not fit.

    Args:
        path: the vault's folder.
        socket_path: where to listen; by default in the folder.
        group: a group that may connect too.
        known_head: a head that the owner noted; a ledger without it is refused.
        anchor: the anchor that the owner expects. Any other is refused, and so is a ledger that names none.
        on_ready: called with the vault and the socket's path once the vault listens.
    """
    folder = VaultFolder(path=path)
    where = path / SOCKET if socket_path is None else socket_path
    policy = folder.policy()
    with folder.lock():
        enrolment, ledger = folder.open(policy, known_head, anchor)
        keep_heap()
        trainer = load_trainer(enrolment, policy)
        vault = Vault(
            policy=policy,
            enrolment=enrolment,
            ledger=ledger,
            answers=AnswerStore(path / ANSWERS),
            refusals=folder.refusals(),
            trainer=trainer,
            slots=_measured_slots(folder, enrolment, policy, trainer),
        )
        os.umask(0o077)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold records and the noise's key
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the socket is removed on the way out
        with closing(vault.ledger), listening(where, group) as server:
            service = Service(vault)
            on_ready(vault, where)
            try:
                uvicorn.Server(_settings(service.app)).run(sockets=[server])
            finally:
                service.stop()


def _measured_slots(folder: VaultFolder, enrolment: Enrolment, policy: Policy, trainer: RecordTrainer) -> Slots:
    """Measure what a usual round at the largest q costs, and note it for the owner. Other rounds are measured later."""
    files = [folder.path / ANSWERS / "trial", *folder.heads()]
    storing = storing_seconds(files, 4 * enrolment.num_params)
    timetable, log, terms = Timetable(policy, trainer.cost, storing=storing), folder.slots(), policy.terms
    output = {"method": "pe_dpfl", "options": {"variant": "output"}} if terms.release == "update" else {}
    usual = RoundRequest.model_validate(
        {
            "run": "trial",
            "round": 0,
            "steps": 1,
            "learning_rates": [1.0],
            "sample_rate": terms.sample_rate,
            "noise_multiplier": terms.min_noise_multiplier,
            "clip_norm": policy.limits.max_clip_norm,
            **output,
        }
    )
    log.note_cost(None if PROMPT_ANSWERS in policy.unsafe else timetable.cost(usual))
    return Slots(timetable=timetable, log=log)


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


@contextmanager
def listening(path: Path, group: str | None = None) -> Iterator[socket.socket]:
    """Listen on a socket at `path` and remove it at the end. Its mode is 0600, or 0660 if a group is given."""
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise ConfigError(f"--socket {path} must not be longer than {_LONGEST_PATH} bytes; give a shorter path")
    try:
        number = -1 if group is None else grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(f"--group {group}: there is no such group on this machine") from None
    _remove_stale(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        before = os.umask(0o777 - _OWNER_ONLY)  # so that it is never open to others
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


def _remove_stale(path: Path) -> None:
    """Remove the socket of a killed vault. Refuse a path that is in use or is not a socket."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"--socket {path} exists and is not a socket; give another path")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise ConfigError(f"--socket {path}: another process listens there; stop it, or give another path")
