"""Files on disk: atomic writes, schema names, and where a result came from."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specaudit.core.errors import InputError

PACKAGES = ("specaudit", "torch", "transformers", "tokenizers", "datasets", "numpy", "scipy", "pandas", "pyarrow")


def schema_name(name: str) -> str:
    """The schema of an artifact, for example ``specaudit.report/1``."""
    return f"specaudit.{name}/1"


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends, and is removed when it raises."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside ``path`` whose files replace those of the same name in ``path`` when the block ends.

    ``path`` itself appears, or changes, only when everything was written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield temporary
        if not path.exists():
            temporary.chmod(0o777 & ~_umask())
            temporary.replace(path)
            return
        for file in sorted(temporary.iterdir()):
            file.replace(path / file.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def check_writable(argument: str, path: Path, *, folder: bool) -> None:
    """Raises InputError unless ``path`` can be written, before any work is spent; leaves nothing behind."""
    path = Path(path)
    remedy = "name a path in a folder that you may write to"
    if folder and path.exists() and not path.is_dir():
        raise InputError(argument, path, "a file of that name exists and a folder is needed", "name another path")
    if not folder and path.is_dir():
        raise InputError(argument, path, "a folder of that name exists and a file is needed", "name a file in it")
    existing = path if folder and path.exists() else path.parent
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise InputError(argument, path, f"{existing} is not a folder", remedy)
    try:
        # access() says yes to root on a read-only or immutable folder, so a real file is tried.
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise InputError(argument, path, f"{existing} cannot be written ({error.strerror})", remedy) from None
    if not folder and path.exists() and not os.access(path, os.W_OK):
        raise InputError(argument, path, "the file exists and is read-only", remedy)


def to_json(payload: Any) -> str:
    """Indented JSON; NaN and infinities become null, since JSON has none."""
    return json.dumps(_finite(payload), indent=2, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if hasattr(value, "tolist"):
        return _finite(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def with_schema(name: str, payload: Mapping[str, Any], provenance: Mapping[str, Any]) -> dict[str, Any]:
    """An artifact as it is written: schema, figures, provenance."""
    return {"schema": schema_name(name), **payload, "provenance": dict(provenance)}


def write_json(path: Path, artifact: Mapping[str, Any]) -> None:
    """Writes an artifact, all of it or nothing."""
    with atomic_path(path) as temporary:
        temporary.write_text(to_json(artifact) + "\n", encoding="utf-8")


def read_json(argument: str, path: Path, name: str) -> dict[str, Any]:
    """Reads an artifact and refuses another schema.

    Raises
    ------
    InputError
        If the file is missing, is not JSON, or does not carry ``specaudit.NAME/1``.
    """
    path = Path(path)
    remedy = f"give the file that specaudit wrote as {schema_name(name)}"
    try:
        artifact = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(argument, path, f"cannot be read ({error.strerror})", remedy) from None
    except ValueError as error:
        raise InputError(argument, path, f"is not JSON ({error})", remedy) from None
    found = artifact.get("schema") if isinstance(artifact, dict) else None
    if found != schema_name(name):
        raise InputError(argument, path, f"has the schema {found!r}, not {schema_name(name)!r}", remedy)
    return artifact


def content_hash(path: Path) -> str:
    """SHA-256 over a file, or over the names and contents of a folder's files, as ``sha256:`` and 16 hex digits."""
    path = Path(path)
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    return "sha256:" + digest.hexdigest()[:16]


def machine() -> dict[str, Any]:
    """What a cost depends on: the processor and how many of it, the operating system and the accelerator."""
    torch = sys.modules.get("torch")
    cuda = torch is not None and torch.cuda.is_available()
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "accelerator": torch.cuda.get_device_name() if torch is not None and cuda else None,
        "threads": torch.get_num_threads() if torch is not None else None,
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def provenance(**facts: Any) -> dict[str, Any]:
    """Versions, machine and command, and the ``facts`` that the caller adds: models, data set, sampling, dtype."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return {"versions": versions, "machine": machine(), "command": command, **facts}
