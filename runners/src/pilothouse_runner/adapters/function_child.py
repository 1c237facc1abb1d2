"""The child process of a Function step: run as a script by `ProcessFunctions`, alone, with the standard library only.

One JSON request comes on stdin; one line of JSON goes to the stdout that the process began with. Whatever the
author's code prints goes to stderr instead, so that it cannot be taken for the reply.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import types

TYPE_CHECKING = False  # a call waits for what is imported here, and typing alone is an eighth of it
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, NoReturn

MAX_TEXT_CHARS = 500
MAX_OPEN_FILES = 256
MAX_FILE_BYTES = 64 << 20

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_SIGKILL = 9


class Failed(Exception):
    """The callable gave nothing that can be used; carries the kind of failure."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def main() -> NoReturn:
    """Answer one request and end, whatever threads and exit handlers the author's code leaves behind."""
    reply_fd = os.dup(1)  # not inherited by what the author starts
    os.dup2(2, 1)
    request = json.loads(sys.stdin.buffer.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    limit_resources(request["timeout"], request["max_memory_bytes"])
    python = {sys.prefix, sys.base_prefix, *(entry for entry in sys.path if entry)}
    restrict_files((*_READ_ONLY, *sorted(python)))
    reply = answer(request)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # the author closed it
            pass
    write_all(reply_fd, reply)
    os._exit(0)


def answer(request: dict[str, Any]) -> bytes:
    """Return the reply to a request, as one line."""
    try:
        line = encode(call(request))
        if len(line) > request["max_bytes"]:
            raise Failed("TooLarge", f"it returned {len(line):,} bytes; the limit is {request['max_bytes']:,}")
    except Failed as failure:
        line = encode({"failure": failure.kind, "message": str(failure)[:MAX_TEXT_CHARS]})
    except BaseException as error:
        # SystemExit and KeyboardInterrupt too: a callable that exits has returned nothing.
        line = encode({"failure": "Raised", "message": describe(error)})
    return line + b"\n"


def call(request: dict[str, Any]) -> dict[str, Any]:
    """Return what the callable returns, as output and signal."""
    module_name, function_name = request["callable"].split(":")
    module = load(module_name, request["source"])
    function = getattr(module, function_name, None)
    if not callable(function):
        raise Failed("Invalid", f"module {module_name} has no function {function_name}")
    return shape(function(request["arguments"]))


def load(name: str, source: str | None) -> types.ModuleType:
    """Return the module, from its text where there is one."""
    if source is None:
        __import__(name)
        return sys.modules[name]
    module = types.ModuleType(name)
    sys.modules[name] = module  # dataclasses, pickle and typing look their module up
    exec(compile(source, f"<{name}>", "exec"), module.__dict__)
    return module


def shape(returned: Any) -> dict[str, Any]:
    """Return output and signal of what a callable returned: a dict, a signal, or both in either order."""
    parts = list(returned) if isinstance(returned, tuple) else [returned]
    kinds = sorted("dict" if isinstance(part, dict) else type(part).__name__ for part in parts)
    if kinds not in (["dict"], ["str"], ["dict", "str"]):
        raise Failed(
            "Invalid",
            f"it returned {' and '.join(kinds) or 'an empty tuple'}; it must return a dict, a signal (str), or both",
        )
    reply: dict[str, Any] = {}
    for part in parts:
        reply["output" if isinstance(part, dict) else "signal"] = part
    return reply


def encode(value: dict[str, Any]) -> bytes:
    """Return a reply as JSON without a line break; raises Failed for what is no JSON."""
    try:
        return json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Failed("Invalid", f"it returned what is no JSON: {error}") from None


def describe(error: BaseException) -> str:
    """Return the type and the text of an exception, never a traceback."""
    try:
        text = str(error)
    except BaseException:  # an author's __str__
        text = ""
    name = type(error).__name__
    return (f"{name}: {text}" if text else name)[:MAX_TEXT_CHARS]


def write_all(fd: int, data: bytes) -> None:
    """Write all of the data; a parent that is gone is no error."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        pass


# ---------------------------------------------------------------- limits


def limit_resources(timeout: float, max_memory_bytes: int) -> None:
    """Bound memory, processor time, files and core dumps, and die with the runner."""
    import resource

    bounds = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: int(timeout) + 2,
        resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
        resource.RLIMIT_FSIZE: MAX_FILE_BYTES,
        resource.RLIMIT_DATA: max_memory_bytes,
    }
    for which, bound in bounds.items():
        hard = resource.getrlimit(which)[1]
        value = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(which, (value, value))
    os.umask(0o077)
    die_with_parent()


def die_with_parent() -> None:
    """Be killed when the runner is, where the kernel can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)


# Landlock (Linux 5.13): files outside of these trees do not exist for the author's code. The token, the secrets and
# the journal lie in the same file system and belong to the same user; file modes cannot keep them apart.
_READ_ONLY = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/etc", "/proc/self", "/run/systemd/resolve")
_WRITABLE = ("/tmp", "/dev/shm")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_RULE_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_SCOPES = 0b11  # abstract sockets, and signals: the author's code cannot signal the runner


class _RulesetAttr(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def restrict_files(readable: Iterable[str]) -> None:
    """Leave only these trees and temporary files visible, where the kernel can do that; children inherit it."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    abi = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if abi < 1:
        return
    handled = (1 << (13 if abi < 2 else 14 if abi < 3 else 15)) - 1
    attr = _RulesetAttr(fs=handled, net=0, scoped=_SCOPES if abi >= 6 else 0)
    size = ctypes.sizeof(attr) if abi >= 6 else 8
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(attr), ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return
    read_only = (_EXECUTE | _READ_FILE | _READ_DIR) & handled
    for path in readable:
        _allow(libc, ruleset, path, read_only)
    for path in _WRITABLE:
        _allow(libc, ruleset, path, handled)
    for path in _DEVICES:
        _allow(libc, ruleset, path, (_READ_FILE | _WRITE_FILE | _TRUNCATE) & handled)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.syscall(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not os.path.isdir(path):  # noqa: PTH112  pathlib costs the child's start
        access &= _EXECUTE | _READ_FILE | _WRITE_FILE | _TRUNCATE
    rule = _PathBeneathAttr(access=access, parent_fd=fd)
    libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    os.close(fd)


if __name__ == "__main__":
    main()
