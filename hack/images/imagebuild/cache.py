"""The cache folder: finished things under names that say what they were made from."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

KEPT = 4
"""How many finished things of each kind stay; older ones are of code that nobody builds any more."""


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "pilothouse" / "images"


@contextmanager
def exclusive() -> Iterator[None]:
    """Let one build at a time write to the cache."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def make_once(target: Path, make: Callable[[Path], None]) -> bool:
    """Make a folder by way of one beside it, so that it is there whole or not at all. Say whether it was made now."""
    if target.is_dir():
        os.utime(target)  # pruning goes by use
        return False
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    make(partial)
    partial.rename(target)
    return True


def prune(prefix: str) -> list[str]:
    """Remove the longest unused of the folders `<prefix>-<digest>` and return the digests that went."""
    folders = sorted(cache_folder().glob(f"{prefix}-*"), key=lambda folder: folder.stat().st_mtime, reverse=True)
    gone = folders[KEPT:]
    for folder in gone:
        shutil.rmtree(folder)
    return [folder.name.removeprefix(f"{prefix}-") for folder in gone]
