"""Stdio: a child process that gets nothing of the runner's, is bounded while it is read, and ends with the visit."""

import asyncio
import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pilothouse_api.structs import Header, McpServer
from pilothouse_engine.ports import McpFailure, McpListing, McpResult
from pilothouse_runner.adapters.mcp import SdkMcp
from support.mcp_servers import raw_stdio
from support.mcp_servers.clients import MakeClient, is_alive, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MIB = 1_048_576


def raw(mode: str, *more: str, name: str = "raw") -> McpServer:
    command = [sys.executable, "-I", str(Path(raw_stdio.__file__)), mode, *more]
    return McpServer(name=name, transport="Stdio", command=command)


async def call(
    mcp: SdkMcp, server: McpServer, *, timeout: float = 60.0, max_bytes: int = MIB, **arguments: Any
) -> McpResult | McpFailure:
    return await mcp.call_tool(server, "t", arguments, "key-1", timeout, max_bytes)


def failed(got: object, kind: str) -> McpFailure:
    assert isinstance(got, McpFailure), got
    assert got.kind == kind, got
    assert got.message.isprintable()
    return got


async def pid_of(mcp: SdkMcp, server: McpServer) -> int:
    got = await call(mcp, server)
    assert isinstance(got, McpResult), got
    return int(json.loads(got.text)["pid"])


def landlock_version() -> int:
    version: int = ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1)
    return version


async def until_dead(*pids: int) -> None:
    await until(lambda: not any(is_alive(pid) for pid in pids))


@pytest.mark.parametrize("is_confined", [False, True])
async def test_one_process_serves_a_visit_and_ends_with_it(is_confined: bool, a_client: MakeClient) -> None:
    async with a_client(is_confined=is_confined) as mcp:
        assert isinstance(await mcp.list_tools(raw("plain"), 60.0), McpListing)
        pid = await pid_of(mcp, raw("plain"))
        assert await pid_of(mcp, raw("plain")) == pid
        await mcp.end_visit()
        await until_dead(pid)
        assert await pid_of(mcp, raw("plain")) != pid


@pytest.mark.parametrize("is_confined", [False, True])
async def test_the_environment_is_what_the_author_named_and_nothing_of_the_runners(
    is_confined: bool, a_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOTHOUSE_RUN_UID", "u")
    monkeypatch.setenv("OPENAI_API_KEY", "secret-value")
    environment = {"TZ": "UTC", "PILOTHOUSE_ATTEMPT": "1"}
    async with a_client(environment=environment, is_confined=is_confined) as mcp:
        got = await call(mcp, raw("environment"))
        assert isinstance(got, McpResult)
        assert json.loads(got.text) == ["HOME", "LANG", "PATH", "TZ"]


@pytest.mark.parametrize("mode", ["chatty", "deep"])
async def test_lines_that_are_no_messages_are_passed_over(mode: str, a_client: MakeClient) -> None:
    async with a_client() as mcp:
        assert isinstance(await call(mcp, raw(mode)), McpResult)


async def test_a_server_that_asks_for_samples_and_roots_is_told_no(a_client: MakeClient) -> None:
    async with a_client() as mcp:
        assert await call(mcp, raw("asks_back")) == McpResult("[true, true]")


# ---------------------------------------------------------------- programs that do not start, or die


async def test_a_confined_program_cannot_read_what_is_the_runners(a_client: MakeClient) -> None:
    assert landlock_version() >= 1, "this kernel cannot keep programs from the runner's files; Linux 5.13 can"
    secret = Path("/var/tmp/pilothouse-test-secret-mcp")
    secret.write_text("hunter2")
    ours = [str(secret), f"/proc/{{parent}}/root{secret}", "/proc/{parent}/environ"]
    theirs = ["/etc/passwd", "/proc/self/status", "/proc/cpuinfo", "/dev/urandom", str(Path(raw_stdio.__file__))]
    try:
        async with a_client(is_confined=True) as mcp:
            got = await call(mcp, raw("opens"), paths=[*ours, *theirs])
        async with a_client() as mcp:
            everything = await call(mcp, raw("opens"), paths=[*ours, *theirs])
    finally:
        secret.unlink()
    assert isinstance(got, McpResult)
    assert json.loads(got.text) == theirs
    assert isinstance(everything, McpResult)
    assert json.loads(everything.text) == [*ours, *theirs]


async def test_a_program_starts_in_the_folder_that_its_host_says(a_client: MakeClient, tmp_path: Path) -> None:
    (tmp_path / "near").write_text("")
    async with a_client(folder=str(tmp_path)) as mcp:
        assert await call(mcp, raw("opens"), paths=["near", "far"]) == McpResult('["near"]')


@pytest.mark.parametrize("is_confined", [False, True])
async def test_a_program_that_is_not_there_is_said_so(is_confined: bool, a_client: MakeClient) -> None:
    async with a_client(is_confined=is_confined) as mcp:
        server = McpServer(name="none", transport="Stdio", command=["/no/such/program"])
        got = failed(await mcp.list_tools(server, 60.0), "Unavailable")
        assert got.message == "its program '/no/such/program' cannot be started: No such file or directory"
        odd = McpServer(name="none", transport="Stdio", command=["a\x00b"])
        failed(await mcp.list_tools(odd, 60.0), "Unavailable")


async def test_headers_do_not_go_with_stdio(a_client: MakeClient) -> None:
    async with a_client() as mcp:
        server = replace(raw("plain"), headers=[Header(name="A", value="b")])
        assert "StreamableHTTP" in failed(await mcp.list_tools(server, 60.0), "Unavailable").message


async def test_a_program_that_ends_at_once_is_said_so_with_its_exit_code(
    a_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with a_client() as mcp:
        got = failed(await mcp.list_tools(raw("dies_at_once"), 60.0), "Connection")
        assert got.message == "its process ended with exit code 7"
    assert "MCP server raw printed: no licence" in caplog.text


async def test_a_program_that_dies_in_a_call_leaves_its_effect_unknown_and_is_started_for_the_next(
    a_client: MakeClient,
) -> None:
    async with a_client() as mcp:
        for _ in range(2):
            got = failed(await call(mcp, raw("dies")), "Connection")
            assert got == McpFailure("Connection", "its process ended with exit code 3", sent=True)


async def test_a_program_that_died_between_two_calls_is_started_again(a_client: MakeClient) -> None:
    async with a_client() as mcp:
        pid = await pid_of(mcp, raw("plain"))
        os.kill(pid, signal.SIGKILL)
        await until_dead(pid)
        assert await pid_of(mcp, raw("plain")) != pid


async def test_what_a_program_answered_before_it_ended_is_its_answer(a_client: MakeClient) -> None:
    async with a_client() as mcp:
        assert await call(mcp, raw("dies_after")) == McpResult("last words")


async def test_what_a_program_has_started_ends_with_it(a_client: MakeClient, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with a_client() as mcp:
        assert await call(mcp, raw("grandchild", str(notes))) == McpResult("last words")
        await until_dead(int(notes.read_text()))


async def test_a_program_that_ends_for_nobody_is_killed_with_its_group(a_client: MakeClient) -> None:
    async with a_client() as mcp:
        assert isinstance(await mcp.list_tools(raw("stubborn"), 60.0), McpListing)
        began = time.monotonic()
        await mcp.end_visit()
        assert time.monotonic() - began < 30.0


# ---------------------------------------------------------------- bounds


async def test_a_line_without_end_is_cut_off_and_its_program_killed(a_client: MakeClient) -> None:
    async with a_client() as mcp:
        got = failed(await call(mcp, raw("endless_line"), max_bytes=100_000), "TooLarge")
        assert got == McpFailure("TooLarge", "the answer is larger than 100,000 bytes", sent=True)


async def test_lines_without_end_are_cut_off(a_client: MakeClient) -> None:
    async with a_client() as mcp:
        failed(await call(mcp, raw("endless_lines"), max_bytes=100_000), "TooLarge")


async def test_a_server_that_talks_to_nobody_is_not_read(a_client: MakeClient, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with a_client() as mcp:
        assert isinstance(await mcp.list_tools(raw("floods_idle", str(notes)), 60.0), McpListing)
        lines: list[str] = []
        async with asyncio.timeout(60.0):
            while not lines or len(lines) != len(notes.read_text().split()):
                lines = notes.read_text().split() if notes.exists() else []
                await asyncio.sleep(0.2)
        assert len(lines) < 1_000, "each line has 1,000 bytes: the pipe, and 64 lines, are all that is taken"


async def test_a_result_of_the_wrong_shape_is_said_so(a_client: MakeClient) -> None:
    async with a_client() as mcp:
        failed(await call(mcp, raw("no_result")), "Protocol")


async def test_a_server_of_an_unknown_version_is_not_spoken_to(a_client: MakeClient) -> None:
    async with a_client() as mcp:
        got = failed(await mcp.list_tools(raw("wrong_version"), 60.0), "Protocol")
        assert got.message == "it speaks no version of MCP that is spoken here"


# ---------------------------------------------------------------- hangs and aborts


@pytest.mark.parametrize("mode", ["silent", "hangs", "stubborn"])
async def test_a_server_that_hangs_costs_its_deadline_and_no_more(mode: str, a_client: MakeClient) -> None:
    async with a_client() as mcp:
        if mode != "silent":  # its program has started: the second that follows is the call's
            assert isinstance(await mcp.list_tools(raw(mode), 60.0), McpListing)
        began = time.monotonic()
        got = failed(await call(mcp, raw(mode), timeout=1.0), "Timeout")
        assert got.message.endswith("within 1 s")
        assert got.sent == (mode != "silent")
        assert time.monotonic() - began < 30.0


async def test_a_server_that_does_not_read_is_given_up_at_the_deadline(a_client: MakeClient) -> None:
    async with a_client() as mcp:
        assert isinstance(await mcp.list_tools(raw("deaf"), 60.0), McpListing)
        big = "x" * 1_000_000
        got = await asyncio.gather(*(call(mcp, raw("deaf"), timeout=1.0, text=big) for _ in range(2)))
        assert [failed(one, "Timeout").sent for one in got] == [True, True]


async def test_an_abort_tells_the_server(a_client: MakeClient, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with a_client() as mcp:
        server = raw("hangs", str(notes))
        assert isinstance(await mcp.list_tools(server, 60.0), McpListing)
        work = asyncio.create_task(call(mcp, server))
        await until(notes.exists)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await until(lambda: notes.read_text() == "called\ncancelled\n")  # before its process is ended
