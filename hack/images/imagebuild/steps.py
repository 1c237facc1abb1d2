"""The four things that are made, each from the one before it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .builders import Builder, BuildError, find_builder
from .cache import cache_folder, make_once, prune
from .inputs import (
    CHECKOUT,
    DEBIAN,
    DEPENDENCIES,
    HERE,
    PYTHON_BASE,
    REDIS,
    REDIS_BASE,
    REDIS_CONTAINERFILE,
    Base,
    ImageKind,
    digest_of,
    source_files,
)

PYTHON = "3.11"


@dataclass(frozen=True)
class BuiltImage:
    name: str
    archive: Path


@contextmanager
def _progress(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{what:<44} {time.monotonic() - began:.0f} s", file=sys.stderr)


def choose_base(base: Base) -> str:
    """The base image: the one asked for, else the public one where it can be pulled, else a Debian of our own.

    The choice is kept, because asking a registry that is out of reach takes long.
    """
    if asked := os.environ.get(base.variable):
        return asked
    choice = cache_folder() / base.name
    if not choice.exists():
        is_public = find_builder(cache_folder()).pull(base.public)
        choice.write_text(base.public if is_public else base.own)
    return choice.read_text().strip()


def build_redis() -> BuiltImage:
    """The Redis image: its base, with the user that the chart runs it as."""
    base = choose_base(REDIS_BASE)
    digest = digest_of(base, REDIS_CONTAINERFILE)
    image = _image(REDIS, digest)

    def make(folder: Path) -> None:
        builder = find_builder(cache_folder())
        _ensure_base(builder, REDIS_BASE, base)
        (folder / "context").mkdir()
        with _progress(image.name):
            builder.build(image.name, REDIS_CONTAINERFILE, folder / "context", BASE=base)
            builder.save(image.name, folder / "image.tar")
        shutil.rmtree(folder / "context")

    if make_once(image.archive.parent, make):
        builder = find_builder(cache_folder())
        for gone in prune(REDIS):
            builder.remove(_image(REDIS, gone).name)
    return image


def _image(name: str, digest: str) -> BuiltImage:
    return BuiltImage(f"localhost/pilothouse-{name}:dev-{digest}", cache_folder() / f"{name}-{digest}" / "image.tar")


def build_image(kind: ImageKind) -> BuiltImage:
    """The image of this checkout, from the cache if nothing it is made from has changed."""
    base = choose_base(PYTHON_BASE)
    files = source_files(kind.package_folders)
    dependencies = digest_of(base, PYTHON, DEPENDENCIES, kind.lock_file)
    digest = digest_of(dependencies, kind.containerfile, *files)
    image = _image(kind.name, digest)

    def make(folder: Path) -> None:
        builder = find_builder(cache_folder())
        _ensure_base(builder, PYTHON_BASE, base)
        below = _ensure_dependencies(builder, kind, base, dependencies)
        for file in files:
            folder_of_file = _place(kind, file, folder / "context" / "app").parent
            folder_of_file.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, folder_of_file)
        with _progress(image.name):
            builder.build(image.name, kind.containerfile, folder / "context", DEPENDENCIES=below)
            builder.save(image.name, folder / "image.tar")
        shutil.rmtree(folder / "context")

    if make_once(image.archive.parent, make):
        _forget_old(kind)
    return image


def _place(kind: ImageKind, file: Path, app: Path) -> Path:
    folder = next(folder for folder in kind.package_folders if file.is_relative_to(folder))
    return app / file.relative_to(folder.parent)


def _ensure_base(builder: Builder, base: Base, chosen: str) -> None:
    if chosen != base.own or builder.has(chosen):
        return
    if shutil.which("mmdebstrap") is None:
        raise BuildError(f"cannot pull {base.public} and mmdebstrap is missing: run hack/cluster/install-deps")
    folder = cache_folder() / f"{base.name}-{base.recipe}"

    def make(partial: Path) -> None:
        trims = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "info", "locale")]
        words = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={base.packages}", *trims, DEBIAN]
        with _progress(f"Debian {DEBIAN} with {base.packages}"):
            _run([*words, str(partial / "rootfs.tar")])

    make_once(folder, make)
    with _progress(chosen):
        builder.build(chosen, HERE / "debian.Containerfile", folder)


def _ensure_dependencies(builder: Builder, kind: ImageKind, base: str, digest: str) -> str:
    image = f"localhost/pilothouse-{kind.name}-dependencies:{digest}"
    if builder.has(image):
        return image
    folder = cache_folder() / f"site-{kind.name}-{digest}"

    def make(partial: Path) -> None:
        pip = [_python(), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-compile"]
        exact = ["--require-hashes", f"--python-version={PYTHON}", "--only-binary=:all:"]
        with _progress(f"dependencies of the {kind.name}"):
            _run([*pip, *exact, f"--target={partial / 'site'}", f"--requirement={kind.lock_file}"])
        shutil.rmtree(partial / "site" / "bin", ignore_errors=True)  # their interpreter line is this machine's

    make_once(folder, make)
    with _progress(image):
        builder.build(image, DEPENDENCIES, folder, BASE=base)
    return image


def _forget_old(kind: ImageKind) -> None:
    builder = find_builder(cache_folder())
    for digest in prune(kind.name):
        builder.remove(_image(kind.name, digest).name)
    for digest in prune(f"site-{kind.name}"):
        builder.remove(f"localhost/pilothouse-{kind.name}-dependencies:{digest}")


def _python() -> str:
    """A Python that has pip: the checkout's own environment if there is one."""
    own = CHECKOUT / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def _run(command: list[str]) -> None:
    if subprocess.run(command, stdout=2, check=False).returncode != 0:
        raise BuildError(f"{command[0]} failed; what it said is above")
