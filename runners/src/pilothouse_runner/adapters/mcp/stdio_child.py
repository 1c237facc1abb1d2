"""What stands before an MCP server's program in a pod: `python stdio_child.py PROGRAM ARGUMENT…`, alone, with the
standard library only.

The program belongs to the same user as the runner, whose token, secrets, tokens for others and journal lie in the same
file system: it is kept from them as author code is, and what it starts too.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

_HIDDEN = frozenset({"dev", "proc", "run", "sys", "tmp", "var"})
"""What stands at the top of a file system and is no program's; the runner's own files lie in run, var and proc."""

_OURS = "pilothouse"
_OF_THE_KERNEL = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/sys", "/run/systemd/resolve")


def main() -> NoReturn:
    """Become the program, confined."""
    confine = _load()
    confine.die_with_parent()
    confine.restrict_files(readable())
    program, *arguments = sys.argv[1:]
    os.execvp(program, [program, *arguments])


def readable() -> tuple[str, ...]:
    """Return what a program may read and run: its image may hold it anywhere, but in the runner's places."""
    top = (str(path) for path in Path("/").iterdir() if path.name not in _HIDDEN | {"etc"})
    etc = (str(path) for path in Path("/etc").iterdir() if path.name != _OURS)
    return (*sorted(top), *sorted(etc), *_OF_THE_KERNEL)


def _load() -> Any:
    """Return the module beside this one's package: an isolated interpreter finds it by its file alone."""
    file = Path(__file__).parents[1] / "function_child.py"
    spec = importlib.util.spec_from_file_location("function_child", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
