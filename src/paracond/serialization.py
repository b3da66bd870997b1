"""Folders of tensors and their description, without pickle: `model.json` beside `weights-<hash>.safetensors`.

The JSON names the weights file and its SHA-256 (or several, where files must not be large). New weights have a new
name, and the JSON is replaced last, in one rename. So a crash at any instant leaves the former folder or the new one,
complete.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from paracond.data import InputError

DESCRIPTION = "model.json"
#: Earlier names of classes, and the modules of classes that may not be imported yet when a description names them.
RENAMED = {"Components": "PCA"}
MODULES = {"PCA": "paracond.initializers.pca"}
OURS = re.compile(r"weights-[0-9a-f]{12}\.safetensors(\.part)?")


def write(
    folder: str | Path, description: Mapping, tensors: Mapping[str, Tensor], max_bytes: int | None = None
) -> None:
    """Write or replace a folder, with weights in files of at most `max_bytes`. The description has a "format"."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # Copies: tied weights share their memory, which the format does not allow.
    copies = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    payloads = [save(part) for part in _parts(copies, max_bytes)]
    digests = [hashlib.sha256(payload).hexdigest() for payload in payloads]
    weights = [f"weights-{digest[:12]}.safetensors" for digest in digests]
    for name, payload in zip(weights, payloads, strict=True):
        replace_file(folder / name, payload)
    one = len(weights) == 1
    named = {"weights": weights[0] if one else weights, "sha256": digests[0] if one else digests}
    replace_file(folder / DESCRIPTION, json.dumps({**description, **named}, indent=1).encode())
    for old in folder.iterdir():  # former weights, and those of a crash; never a user's own files
        if OURS.fullmatch(old.name) and old.name not in weights:
            old.unlink()


def _parts(tensors: Mapping[str, Tensor], max_bytes: int | None) -> list[dict[str, Tensor]]:
    """Divide the tensors into parts, in their order. A tensor that is too large has a part to itself."""
    parts: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        size += tensor.nbytes + 200  # and its entry in the header
        if max_bytes is not None and size > max_bytes and parts[-1]:
            parts.append({})
            size = tensor.nbytes + 200
        parts[-1][name] = tensor
    return parts


def read(folder: str | Path, expected_format: str) -> tuple[dict, dict[str, Tensor]]:
    """Read the description and the tensors of a folder. A wrong or damaged folder is refused."""
    folder = Path(folder)
    description = _description(folder / DESCRIPTION, expected_format)
    tensors: dict[str, Tensor] = {}
    for name, digest in _weights(description):
        tensors |= _read_weights(folder / name, digest)
    return description, tensors


def _weights(description: Mapping) -> list[tuple[str, str]]:
    """List the weights files and their SHA-256."""
    names, digests = description.get("weights"), description.get("sha256")
    if isinstance(names, list) and isinstance(digests, list) and len(names) == len(digests) > 0:
        return list(zip(names, digests, strict=True))
    return [(names, digests)]  # type: ignore[list-item]  # `_description` has checked them


def _read_weights(path: Path, digest: str) -> dict[str, Tensor]:
    if not path.is_file():
        raise InputError(f"{path} is missing, though {DESCRIPTION} names it")
    payload = path.read_bytes()
    if hashlib.sha256(payload).hexdigest() != digest:
        raise InputError(f"{path} is damaged: its SHA-256 is not the one in {DESCRIPTION}")
    try:
        return load(payload)
    except SafetensorError as error:
        raise InputError(f"{path} is not a safetensors file: {error}") from None


def require_format(folder: str | Path, expected_format: str) -> None:
    """Refuse a folder of another format, which `write` would replace."""
    path = Path(folder) / DESCRIPTION
    if path.exists():
        _description(path, expected_format)


def class_named(base: type, name: str) -> type:
    """Return the imported subclass of `base` with this name. Code is never stored in a file or run from one."""
    name = RENAMED.get(name, name)
    if name in MODULES:
        importlib.import_module(MODULES[name])
    known = {kind.__name__: kind for kind in _subclasses(base)}
    if name not in known:
        listed = ", ".join(sorted(known))
        raise InputError(f"unknown {base.__name__} {name!r} (known: {listed}); import the module that defines it")
    return known[name]


def _subclasses(kind: type) -> list[type]:
    direct: list[type] = kind.__subclasses__()
    return [found for sub in direct for found in (sub, *_subclasses(sub))]


def _description(path: Path, expected_format: str) -> dict:
    if not path.is_file():
        raise InputError(f"{path} does not exist: is {path.parent} a saved model?")
    try:
        description = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged: {error}") from None
    found = description.get("format") if isinstance(description, dict) else None
    if found != expected_format:
        raise InputError(f"{path} has format {found!r}, expected {expected_format!r}")
    found = [text for pair in _weights(description) for text in pair]
    if not all(isinstance(text, str) and Path(text).name == text for text in found):
        raise InputError(f"{path} is damaged: it must name a weights file in its folder, and its sha256")
    return description


def replace_file(path: Path, payload: bytes) -> None:
    """Replace a file in one rename, after its bytes have reached the disk."""
    temporary = path.with_name(path.name + ".part")
    with open(temporary, "wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    if hasattr(os, "O_DIRECTORY"):  # where folders can be opened, a rename is safe once its folder is
        folder = os.open(path.parent, os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
