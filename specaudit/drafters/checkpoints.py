"""Weights of draft heads as they are published: a folder or hub id with ``config.json`` and one file of tensors."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import load_file
from torch import Tensor

from specaudit.core.errors import InputError
from specaudit.core.zoo import ZOO

PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.json")


def head_folder(name: str, kind: str) -> Path:
    """The folder that ``--draft kind:NAME`` means: in the zoo, on disk, or on the hub.

    Raises
    ------
    InputError
        If there is none.
    """
    shown = f"{kind}:{name}"
    if name.startswith("zoo:"):
        folder = ZOO / name.removeprefix("zoo:") / kind
        if not folder.is_dir():
            remedy = f"train one: specaudit train {kind}, or python -m specaudit.training.zoo"
            raise InputError("--draft", shown, f"the zoo has no {kind} head of that name", remedy)
        return folder
    folder = Path(name)
    if folder.is_dir():
        return folder
    if not name or name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise InputError("--draft", shown, "there is no such folder", "name a folder, or a hub id as ORG/NAME")
    try:
        return Path(snapshot_download(name, allow_patterns=list(PATTERNS)))
    except (OSError, ValueError) as error:
        problem = f"is neither a local folder nor found on the hub or in its cache ({type(error).__name__})"
        raise InputError("--draft", shown, problem, "check the name, or download it") from error


def content_of(folder: Path) -> str:
    """A hash of a head's configuration and weights, for provenance."""
    digest = hashlib.sha256()
    for file in sorted(path for pattern in PATTERNS for path in folder.glob(pattern)):
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return "sha256:" + digest.hexdigest()[:16]


def read_config(folder: Path) -> dict[str, Any]:
    """``config.json`` of a head.

    Raises
    ------
    InputError
        If it is missing or is not JSON.
    """
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError("--draft", folder, f"config.json cannot be read ({error})", "name a head's folder") from None


def read_weights(folder: Path, stems: tuple[str, ...]) -> dict[str, Tensor]:
    """All tensors of a head; pickled files are read with ``weights_only``, which runs no code.

    Parameters
    ----------
    stems : tuple of str
        File names without ending, tried in order; each as safetensors first.

    Raises
    ------
    InputError
        If there is no such file, or it cannot be read.
    """
    for stem in stems:
        for ending in (".safetensors", ".pt", ".bin"):
            file = folder / f"{stem}{ending}"
            if not file.is_file():
                continue
            try:
                if ending == ".safetensors":
                    return load_file(file)
                return torch.load(file, map_location="cpu", weights_only=True)
            except Exception as error:  # torch and safetensors raise several kinds of their own
                raise InputError("--draft", file, f"cannot be read ({error})", "download it again") from error
    wanted = ", ".join(f"{stem}.safetensors" for stem in stems)
    raise InputError("--draft", folder, f"has no weights under the names {wanted} (or .pt, .bin)", "check the folder")


def check_keys(folder: Path, weights: dict[str, Tensor], shapes: dict[str, tuple[int, ...]]) -> None:
    """Raises unless the tensors are exactly those of ``shapes``; names one that is missing, unknown or misshaped."""
    missing = sorted(shapes.keys() - weights.keys())
    unknown = sorted(weights.keys() - shapes.keys())
    if missing:
        raise InputError("--draft", folder, f"the weight {missing[0]!r} is missing ({len(missing)} in all)", "check it")
    if unknown:
        problem = f"the weight {unknown[0]!r} is unknown ({len(unknown)} in all)"
        raise InputError("--draft", folder, problem, "use a published format that docs/drafters names")
    for name, shape in shapes.items():
        if tuple(weights[name].shape) != shape:
            problem = f"the weight {name!r} has shape {list(weights[name].shape)}, not {list(shape)}"
            raise InputError("--draft", folder, problem, "use a head that was made for this target")
