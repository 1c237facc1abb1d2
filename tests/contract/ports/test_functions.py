"""The Functions port, tried with real child processes."""

import asyncio
import logging
import os
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pilothouse_engine.ports import FunctionFailure, FunctionReply, FunctionRequest
from pilothouse_runner.adapters import function_child
from pilothouse_runner.adapters.functions import ProcessFunctions

pytestmark = pytest.mark.anyio


async def run(source: str, *, functions: ProcessFunctions | None = None, name: str = "report:build", **fields):
    request = FunctionRequest(name, {"n": 1, "text": "grüße"}, textwrap.dedent(source), **{"timeout": 60.0, **fields})
    return await (functions or ProcessFunctions()).run(request)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def becomes(condition: Callable[[], bool]) -> bool:
    ends = time.monotonic() + 60
    while not condition():
        if time.monotonic() > ends:
            return False
        await asyncio.sleep(0.01)
    return True


async def gone(pid: int) -> bool:
    return await becomes(lambda: not is_alive(pid))


# ---------------------------------------------------------------- what it returns


@pytest.mark.parametrize(
    ("returns", "want"),
    [
        ("arguments", FunctionReply({"n": 1, "text": "grüße"})),
        ("'late'", FunctionReply(None, "late")),
        ("{'a': [1.5, None, True]}, 'late'", FunctionReply({"a": [1.5, None, True]}, "late")),
        ("'late', {'a': 1}", FunctionReply({"a": 1}, "late")),
        ("{1: (2, 3)}", FunctionReply({"1": [2, 3]})),
        ("{}", FunctionReply({})),
    ],
)
async def test_a_dict_a_signal_or_both_are_returned(returns: str, want: FunctionReply) -> None:
    assert await run(f"def build(arguments): return {returns}") == want


@pytest.mark.parametrize(
    ("returns", "want"),
    [
        ("None", "it returned NoneType"),
        ("[1]", "it returned list"),
        ("()", "it returned an empty tuple"),
        ("('a', 'b')", "it returned str and str"),
        ("({}, {}, 'a')", "it returned dict and dict and str"),
        ("{'a': float('nan')}", "no JSON"),
        ("{'a': object()}", "no JSON"),
        ("{'a': {1, 2}}", "no JSON"),
        ("{'a': '\\ud800'}", "surrogate"),
        ("{'a': 10 ** 400}", "out of range"),
    ],
)
async def test_anything_else_is_invalid(returns: str, want: str) -> None:
    got = await run(f"def build(arguments): return {returns}")

    assert isinstance(got, FunctionFailure)
    assert got.kind == "Invalid"
    assert want in got.message


async def test_a_value_that_holds_itself_or_is_too_deep_is_invalid() -> None:
    circle = "def build(a):\n  a['a'] = a\n  return a"
    deep = "def build(a):\n  for _ in range(100): a = {'a': a}\n  return a"
    deeper = "def build(a):\n  for _ in range(100_000): a = {'a': a}\n  return a"

    for source in (circle, deep, deeper):
        got = await run(source)
        assert isinstance(got, FunctionFailure)
        assert got.kind == "Invalid"


@pytest.mark.parametrize(
    ("source", "want"),
    [
        ("def build(a): raise ValueError('no such invoice')", "ValueError: no such invoice"),
        ("def build(a): 1 / 0", "ZeroDivisionError: division by zero"),
        ("import sys\ndef build(a): sys.exit(3)", "SystemExit: 3"),
        ("def build(a): raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def build(: pass", "SyntaxError"),
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("class E(Exception):\n  def __str__(self): 1 / 0\ndef build(a): raise E", "E"),
        ("def build(a): raise ValueError('x' * 10_000_000)", "ValueError: xxx"),
        ("def build(): pass", "TypeError"),
        ("def build(a): return {'a': bytearray(10 ** 10)}", "MemoryError"),
        ("def build(a): return build(a)", "RecursionError"),
    ],
)
async def test_what_it_raises_is_told_by_type_and_text(source: str, want: str) -> None:
    got = await run(source)

    assert isinstance(got, FunctionFailure)
    assert got.kind == "Raised"
    assert got.message.startswith(want) and len(got.message) <= 500
    assert "Traceback" not in got.message


async def test_a_module_without_the_function_is_invalid() -> None:
    got = await run("build = 3")

    assert got == FunctionFailure("Invalid", "module report has no function build")


async def test_without_a_source_the_module_is_imported() -> None:
    got = await ProcessFunctions().run(FunctionRequest("string:capwords", {"n": 1}, timeout=200.0))

    assert isinstance(got, FunctionFailure)
    assert got.kind == "Raised" and got.message.startswith("AttributeError")  # it was called, with a dict


async def test_dataclasses_and_relative_names_work_in_a_source() -> None:
    source = """
        from dataclasses import dataclass, asdict
        @dataclass
        class Line:
            amount: "int"
        def build(arguments): return asdict(Line(arguments["n"]))
    """

    assert await run(source, name="pkg.report:build") == FunctionReply({"amount": 1})


# ---------------------------------------------------------------- what it prints and closes


async def test_what_it_prints_is_logged_in_part_and_never_taken_for_the_reply(caplog) -> None:
    caplog.set_level(logging.INFO)
    source = """
        import os, sys, subprocess
        def build(a):
            print('{"output": {"forged": true}}', flush=True)
            os.write(1, b'\\xff\\xfe garbage\\n')
            subprocess.run(["echo", "from a grandchild"])
            sys.stderr.write("y" * 5_000_000)
            return {"real": True}
    """

    assert await run(source) == FunctionReply({"real": True})
    (record,) = [record for record in caplog.records if record.name.endswith("functions")]
    assert "forged" in record.getMessage() and "from a grandchild" in record.getMessage()
    assert len(record.getMessage()) < 5000


@pytest.mark.parametrize("close", ["sys.stdout.close(); sys.stderr.close()", "os.close(1); os.close(2)"])
async def test_a_function_that_closes_its_output_still_returns(close: str) -> None:
    assert await run(f"import os, sys\ndef build(a):\n  {close}\n  return 'done'") == FunctionReply(None, "done")


async def test_a_function_that_closes_everything_has_died() -> None:
    got = await run("import os\ndef build(a):\n  os.closerange(0, 250)\n  return 'done'")

    assert got == FunctionFailure("Died", "its process ended with exit code 0 before it returned")


async def test_a_reply_that_author_code_forges_is_judged_like_any_other() -> None:
    source = """
        import os
        def build(a):
            for fd in range(3, 20):
                try: os.write(fd, LINE)
                except OSError: pass
            os._exit(0)
    """
    for line, want in [
        (b"garbage\n", "no JSON"),
        (b"\xff\n", "no JSON"),
        (b"[1]\n", "neither output nor signal"),
        (b'{"output": 1}\n', "neither output nor signal"),
        (b'{"failure": "Nothing", "message": "x"}\n', "neither output nor signal"),
    ]:
        got = await run(f"LINE = {line!r}\n" + textwrap.dedent(source))
        assert isinstance(got, FunctionFailure)
        assert got.kind == "Invalid" and want in got.message


# ---------------------------------------------------------------- how it ends


@pytest.mark.parametrize(
    ("source", "want"),
    [
        ("os._exit(7)", "its process ended with exit code 7 before it returned"),
        ("os.kill(os.getpid(), 9)", "its process was killed by signal 9 before it returned"),
        ("os.abort()", "its process was killed by signal 6 before it returned"),
    ],
)
async def test_a_process_that_ends_without_a_reply_has_died(source: str, want: str) -> None:
    got = await run(f"import os\ndef build(a): {source}")

    assert got == FunctionFailure("Died", want)


async def test_results_are_bounded_on_both_sides_of_the_pipe() -> None:
    got = await run("def build(a): return {'a': 'x' * 50_000_000}", max_bytes=100_000)
    assert isinstance(got, FunctionFailure)
    assert got.kind == "TooLarge" and "the limit is 100,000" in got.message

    flood = "import os\ndef build(a):\n  while True:\n    for fd in (3, 4, 5):\n      try: os.write(fd, b'x' * 65536)\n"
    got = await run(flood + "      except OSError: pass", max_bytes=100_000)
    assert got == FunctionFailure("TooLarge", "it sent more than 100,000 bytes")


@pytest.mark.slow
async def test_a_timeout_kills_the_child_and_what_it_started(tmp_path: Path) -> None:
    source = """
        import os, subprocess, time
        def build(a):
            child = subprocess.Popen(["sleep", "300"])
            forked = os.fork()
            if forked:
                with open(PIDS, "w") as file: file.write(f"{os.getpid()} {child.pid} {forked}\\n")
            time.sleep(300)
    """
    pids = tmp_path / "pids"
    started = time.monotonic()

    got = await run(f"PIDS = {str(pids)!r}\n" + textwrap.dedent(source), timeout=4.0)

    assert got == FunctionFailure("Timeout", "it took longer than 4 s and was killed")
    assert time.monotonic() - started < 60
    numbers = [int(pid) for pid in pids.read_text().split()]
    assert len(numbers) == 3
    assert [await gone(pid) for pid in numbers] == [True, True, True]


async def test_a_cancelled_call_kills_the_child(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    source = (
        f"import os, time\ndef build(a):\n  open({str(pids)!r}, 'w').write(f'{{os.getpid()}}\\n')\n  time.sleep(300)"
    )
    task = asyncio.create_task(run(source))
    assert await becomes(lambda: pids.exists() and pids.read_text().endswith("\n"))

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert not is_alive(int(pids.read_text()))


async def test_a_grandchild_that_outlives_the_reply_is_killed_and_holds_nothing_up(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    source = f"""
        import os, time
        def build(a):
            forked = os.fork()
            if not forked: time.sleep(300)
            open({str(pids)!r}, "w").write(str(forked))
            return "done"
    """
    started = time.monotonic()

    assert await run(source) == FunctionReply(None, "done")
    assert time.monotonic() - started < 60
    assert await gone(int(pids.read_text()))


async def test_a_grandchild_that_escapes_the_process_group_holds_nothing_up(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    source = f"""
        import os, time
        def build(a):
            forked = os.fork()
            if not forked:
                os.setsid()
                time.sleep(300)
            time.sleep(0.2)
            open({str(pids)!r}, "w").write(str(forked))
            return "done"
    """
    started = time.monotonic()

    try:
        assert await run(source) == FunctionReply(None, "done")
        assert time.monotonic() - started < 60
    finally:
        os.kill(int(pids.read_text()), 9)


async def test_threads_and_exit_handlers_hold_nothing_up() -> None:
    source = """
        import atexit, threading, time
        def build(a):
            atexit.register(time.sleep, 300)
            threading.Thread(target=time.sleep, args=(300,)).start()
            return "done"
    """

    assert await run(source) == FunctionReply(None, "done")


async def test_arguments_that_are_not_read_hold_nothing_up() -> None:
    request = FunctionRequest("report:build", {"a": "x" * 5_000_000}, "raise SystemExit", timeout=200.0)

    got = await ProcessFunctions().run(request)

    assert got == FunctionFailure("Raised", "SystemExit")


# ---------------------------------------------------------------- what it can reach


async def test_only_the_named_environment_reaches_it(monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hunter2")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    functions = ProcessFunctions({"REGION": "eu", "PILOTHOUSE_JOURNAL": "redis://…", "PYTHONSTARTUP": "/x"})

    got = await run("import os\ndef build(a): return dict(os.environ)", functions=functions)

    assert isinstance(got, FunctionReply)
    assert got.output is not None
    assert set(got.output) <= {"PATH", "LANG", "HOME", "REGION", "PYTHONSTARTUP", "LC_CTYPE"}
    assert got.output["REGION"] == "eu"


async def test_it_inherits_no_open_file(tmp_path: Path) -> None:
    secret = (tmp_path / "secret").open("w")
    os.set_inheritable(secret.fileno(), True)

    got = await run("import os\ndef build(a): return {'fds': sorted(os.listdir('/proc/self/fd'))}")

    secret.close()
    assert isinstance(got, FunctionReply)
    assert got.output is not None
    assert len(got.output["fds"]) <= 6  # 0, 1, 2, the reply's, /dev/null, and the listing's own


def landlock_version() -> int:
    import ctypes

    version: int = ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1)
    return version


@pytest.mark.parametrize(
    "attempt",
    [
        "open(SECRET)",
        "open('/proc/%d/root' % os.getppid() + SECRET)",
        "open('/proc/%d/environ' % os.getppid())",
        "open('/proc/%d/mem' % os.getppid(), 'rb')",
        "open('/etc/hostname', 'w')",
        "open('/usr/planted', 'w')",
        "subprocess.run(['cat', SECRET], check=True)",
    ],
)
async def test_the_runners_files_and_memory_are_out_of_reach(attempt: str) -> None:
    assert landlock_version() >= 1, "this kernel cannot keep author code from the runner's files; Linux 5.13 can"
    secret = Path("/var/tmp/pilothouse-test-secret")
    secret.write_text("hunter2")
    try:
        got = await run(
            f"import os, subprocess\nSECRET = {str(secret)!r}\ndef build(a):\n  {attempt}\n  return 'reached'"
        )
    finally:
        secret.unlink()

    assert isinstance(got, FunctionFailure)
    assert got.kind == "Raised"
    assert any(word in got.message for word in ("Permission", "not permitted", "CalledProcessError"))


@pytest.mark.skipif(landlock_version() < 6, reason="Landlock keeps signals in since Linux 6.12")
async def test_the_runner_cannot_be_signalled() -> None:
    got = await run("import os\ndef build(a): os.kill(os.getppid(), 0)")

    assert got == FunctionFailure("Raised", "PermissionError: [Errno 1] Operation not permitted")


async def test_temporary_files_the_network_and_installed_packages_work() -> None:
    source = """
        import socket, ssl, tempfile, zoneinfo, pydantic, multiprocessing
        def build(a):
            with tempfile.NamedTemporaryFile() as file: file.write(b"x")
            ssl.create_default_context()
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                listener.listen()
                socket.create_connection(listener.getsockname()).close()
            with multiprocessing.get_context("fork").Pool(1) as pool: doubled = pool.map(str.upper, ["a"])
            return {"zone": str(zoneinfo.ZoneInfo("Europe/Berlin")), "doubled": doubled}
    """

    assert await run(source) == FunctionReply({"zone": "Europe/Berlin", "doubled": ["A"]})


@pytest.mark.slow
async def test_memory_processor_time_and_files_are_bounded() -> None:
    got = await run("def build(a): return {'n': len(bytearray(200_000_000))}")
    assert got == FunctionReply({"n": 200_000_000})

    small = ProcessFunctions(max_memory_bytes=100_000_000)
    got = await run("def build(a): return {'n': len(bytearray(200_000_000))}", functions=small)
    assert got == FunctionFailure("Raised", "MemoryError")

    got = await run("def build(a):\n  while True: pass", timeout=0.5)
    assert isinstance(got, FunctionFailure)
    assert got.kind == "Timeout"


async def test_a_child_that_cannot_be_started_is_said_so(monkeypatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")

    got = await run("def build(a): return 'done'")

    assert isinstance(got, FunctionFailure)
    assert got.kind == "NotStarted" and "cannot be started" in got.message


def test_the_childs_script_needs_nothing_but_the_standard_library() -> None:
    text = Path(function_child.__file__).read_text()

    assert "pilothouse" not in text.split('"""', 2)[2]
