"""A client of a vault on this machine. It imports no torch, so a ClientApp that relays to a vault starts at once."""

from pathlib import Path
from typing import Any

import httpx

from alidpfl.vault.messages import ReleaseRequest, RoundRequest, Weights, encode
from alidpfl.vault.refusals import RefusalCode, VaultRefusedError, VaultUnreachableError, refusal

_SECONDS_TO_CONNECT = 5.0


class VaultClient:
    """A connection to one vault, closed by leaving its `with` block. `timeout` is the time for a round, in seconds."""

    def __init__(self, socket: str | Path, *, timeout: float = 600.0) -> None:
        self._socket = Path(socket)
        self._http = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(socket)),
            base_url="http://vault",
            timeout=httpx.Timeout(timeout, connect=_SECONDS_TO_CONNECT),
            trust_env=False,
        )

    def __enter__(self) -> "VaultClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def info(self) -> dict[str, Any]:
        """Return the public facts about the data set, and the owner's limits."""
        values: dict[str, Any] = self._asked("GET", "/v1/info").json()
        return values

    def train(self, request: RoundRequest, weights: Weights) -> bytes:
        """Return the answer to a round; `messages.decode_answer` reads it. Repeating the same call is safe.

        Raise VaultRefusedError if the vault refuses, and VaultUnreachableError if no vault answers in time.
        """
        return self.train_bytes(encode(request, weights))

    def release(self, request: ReleaseRequest, weights: Weights) -> bytes:
        """Return the answer to a query; `messages.decode_released` reads it. Otherwise like `train`."""
        return self.release_bytes(encode(request, weights))

    def release_bytes(self, content: bytes) -> bytes:
        """Return the answer to an encoded query; otherwise like `train`."""
        return self._asked("POST", "/v1/release", content).content

    def train_bytes(self, content: bytes) -> bytes:
        """Return the answer to an encoded request; otherwise like `train`."""
        return self._asked("POST", "/v1/train", content).content

    def _asked(self, method: str, path: str, content: bytes | None = None) -> httpx.Response:
        if not self._socket.is_socket():
            raise VaultUnreachableError(f"there is no socket {self._socket}; start `alidpfl vault serve` first")
        try:
            response = self._http.request(method, path, content=content)
        except httpx.HTTPError as error:
            raise VaultUnreachableError(
                f"no vault answers on {self._socket} ({type(error).__name__}); check that `alidpfl vault serve` runs "
                "and that this user may open the socket"
            ) from error
        if response.status_code == httpx.codes.OK:
            return response
        raise _refused(response)


def _refused(response: httpx.Response) -> VaultRefusedError:
    try:
        values = response.json()
        return refusal(RefusalCode(values["code"]), str(values["message"]))
    except (ValueError, KeyError, TypeError):
        if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:  # uvicorn's own answer to too many connections
            return refusal(RefusalCode.BUSY, "the vault has too many callers; ask again")
        return refusal(RefusalCode.FAILED, f"the vault answered with status {response.status_code}")
