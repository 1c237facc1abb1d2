"""What an image is made from, and the digest of it that names the image."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
CHECKOUT = HERE.parents[1]
DIGEST_LENGTH = 12


@dataclass(frozen=True)
class ImageKind:
    """One image of the project. Its packages are all it may contain: the operator has no engine, the runner no kopf."""

    name: str
    packages: Sequence[str]

    @property
    def lock_file(self) -> Path:
        return CHECKOUT / "requirements" / f"{self.name}.txt"

    @property
    def containerfile(self) -> Path:
        return HERE / f"{self.name}.Containerfile"

    @property
    def package_folders(self) -> list[Path]:
        return [CHECKOUT / package for package in self.packages]


KINDS: Sequence[ImageKind] = (
    ImageKind(
        "operator",
        (
            "crds/src/pilothouse_api",
            "operator/src/pilothouse_kubernetes",
            "operator/src/pilothouse_control",
            "operator/src/pilothouse_operator",
            "operator/src/pilothouse_console",
        ),
    ),
    ImageKind(
        "runner",
        ("crds/src/pilothouse_api", "runners/src/pilothouse_engine", "runners/src/pilothouse_runner"),
    ),
)


@dataclass(frozen=True)
class Base:
    """What an image is built upon: the one that `variable` asks for, a public one, or a Debian with some packages."""

    name: str
    variable: str
    public: str
    packages: str

    @property
    def recipe(self) -> str:
        return digest_of(DEBIAN, self.packages, HERE / "debian.Containerfile")

    @property
    def own(self) -> str:
        """The name of the Debian."""
        return f"localhost/pilothouse-{self.name}:{self.recipe}"


DEBIAN = "bookworm"
PYTHON_BASE = Base("base", "PILOTHOUSE_BASE_IMAGE", "docker.io/library/python:3.11-slim", "python3,ca-certificates")
REDIS_BASE = Base("redis-base", "PILOTHOUSE_REDIS_BASE_IMAGE", "docker.io/library/redis:7.2-bookworm", "redis-server")
REDIS = "redis"
REDIS_CONTAINERFILE = HERE / "redis.Containerfile"
DEPENDENCIES = HERE / "dependencies.Containerfile"


def digest_of(*parts: str | Path) -> str:
    """A short digest of texts, and of files with their names."""
    total = hashlib.sha256()
    for part in parts:
        content = part.read_bytes() if isinstance(part, Path) else part.encode()
        label = str(part.relative_to(CHECKOUT)) if isinstance(part, Path) else ""
        total.update(f"{label}\0{len(content)}\0".encode() + content)
    return total.hexdigest()[:DIGEST_LENGTH]


def source_files(folders: Iterable[Path]) -> list[Path]:
    """Every file of the packages that belongs into an image, in a stable order."""
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in files if "__pycache__" not in path.parts and path.suffix != ".pyc")
