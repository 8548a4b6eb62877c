"""The repository's files of learned filters, as a configuration names them: "PATH#sha256=HEX"."""

import hashlib
from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "reproduction/filters"


def named_file(path):
    return f"{path}#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}"


LEAVES, GARMENTS = (named_file(_FOLDER / f"{name}.safetensors") for name in ("leaves", "garments"))
