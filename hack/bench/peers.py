"""The peers' environment: made once for each state of the lock, outside of the checkout."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pilothouse"


def ensure_peers() -> Path:
    """Return the Python of the peers' environment; makes it where it is missing."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = cache_folder() / f"bench-venv-{digest}"
    python = folder / "bin" / "python"
    if python.exists():
        return python
    print(f"installing the peers into {folder}", file=sys.stderr)
    # Made under another name first: an installation that was interrupted is never taken for a whole one.
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    uv = Path(sys.executable).with_name("uv")
    try:
        subprocess.run([uv, "venv", "-q", "--relocatable", "--python", sys.executable, partial], check=True)
        install = [uv, "pip", "install", "-q", "--require-hashes", "--compile-bytecode"]
        subprocess.run([*install, "--python", partial / "bin" / "python", "-r", REQUIREMENTS], check=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return python
