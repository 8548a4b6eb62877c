"""Checkpoints: tensors and JSON state in one safetensors file with a checksum. No pickle: reading runs no code."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from alidpfl.errors import DataError
from alidpfl.store.files import parse_json

if TYPE_CHECKING:
    from torch import Tensor

_FORMAT = "alidpfl-checkpoint-1"
_KEY = "alidpfl"
_LENGTH_BYTES = 8  # the header is also padded to a multiple of it


class Checkpoint(NamedTuple):
    """The tensors and the JSON state that a run resumes from."""

    tensors: dict[str, "Tensor"]
    state: dict[str, Any]


def encode_checkpoint(tensors: Mapping[str, "Tensor"], state: Mapping[str, Any]) -> bytes:
    """Return the bytes of a checkpoint file. Equal input gives equal bytes."""
    _check_keys(state, "state")
    text = json.dumps(state, ensure_ascii=False)
    seal = json.dumps({"format": _FORMAT, "sha256": _checksum(_plain(tensors), text), "state": text})
    return encode_tensors(tensors, {_KEY: seal})


def decode_checkpoint(content: bytes, source: Path) -> Checkpoint:
    """Return the checkpoint that `encode_checkpoint` wrote. Any change of its bytes is a DataError."""
    tensors, metadata = decode_tensors(content, source)
    try:
        seal = parse_json(metadata[_KEY])
        written_as, checksum, text = seal["format"], seal["sha256"], str(seal["state"])
    except (KeyError, TypeError, ValueError):
        raise _damaged(source) from None
    if written_as != _FORMAT:
        raise DataError(f"{source} has the format {written_as!r}, not {_FORMAT!r}: use the alidpfl that wrote it")
    if checksum != _checksum(tensors, text):
        raise _damaged(source)
    return Checkpoint(tensors, json.loads(text))


def encode_tensors(tensors: Mapping[str, "Tensor"], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a safetensors file. Unlike the library's own, equal input gives equal bytes."""
    import safetensors.torch

    content: bytes = safetensors.torch.save(_plain(tensors), dict(metadata) or None)
    header, data = _split(content)
    if "__metadata__" in header:  # the library writes these keys in random order
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text + data


def decode_tensors(content: bytes, source: Path) -> tuple[dict[str, "Tensor"], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file."""
    import safetensors
    import safetensors.torch

    try:
        tensors = safetensors.torch.load(content)
        header, _ = _split(content)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError):
        raise _damaged(source) from None
    return dict(tensors), dict(header.get("__metadata__") or {})


def _split(content: bytes) -> tuple[dict[str, Any], bytes]:
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    header: dict[str, Any] = parse_json(content[_LENGTH_BYTES:start])
    return header, content[start:]


def _plain(tensors: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
    # Copies, because safetensors refuses tensors that share memory, such as views of one flat parameter vector.
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _checksum(tensors: Mapping[str, "Tensor"], state: str) -> str:
    import torch

    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        # JSON, so that different names, types and shapes never give the same bytes.
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    digest.update(state.encode())
    return digest.hexdigest()


def _check_keys(value: object, where: str) -> None:
    """Refuse keys that are not strings: JSON would silently turn a key 3 into "3"."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"checkpoint {where} has the key {key!r}: JSON keys are strings; convert it first")
            _check_keys(inner, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _check_keys(inner, f"{where}[{index}]")


def _damaged(source: Path) -> DataError:
    return DataError(
        f"{source} is damaged: its content does not match its checksum. Restore it from a copy, "
        "or start the run again with another --out"
    )
