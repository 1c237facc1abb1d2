"""Runs of real processes that a second process pauses, steers, resumes, finishes, aborts, interrupts and kills."""

import json
import os
import pty
import resource
import signal
import subprocess
import sys
from typing import Any

import pytest

from support.terminal import PATIENT, Terminal, finish, read_until, workflow_manifest

pytestmark = pytest.mark.slow


LONG = workflow_manifest(115, delay=0.4)
"""Most of a minute, which is as long as a script may be: a second process begins in it, on a machine that is busy."""


def show(terminal: Terminal, name: str) -> dict[str, Any]:
    run: dict[str, Any] = json.loads(terminal.type("show", name, "-o", "json"))
    return run


def test_a_second_process_pauses_steers_limits_resumes_and_finishes_a_live_run(terminal: Terminal) -> None:
    run = terminal.start("run", terminal.write("w.yaml", LONG), "--name", "r1")
    read_until(run, "turn 2: iteration")

    assert "r1: Pause landed at turn " in terminal.type("pause", "r1", "--reason", "lunch")
    paused = show(terminal, "r1")
    assert paused["status"]["phase"] == "Paused"
    assert paused["spec"]["control"] == {"mode": "Pause", "reason": "lunch"}
    turn = paused["status"]["run"]["turn"]
    assert "r1: steer a1 is kept and lands when" in terminal.type("steer", "r1", "Sleep less.", "--id", "a1")
    assert "limits" in terminal.type("limit", "r1", "maxIterations=450", "--no-wait")
    assert "r1: Run landed at turn " in terminal.type("resume", "r1")
    assert "r1: steer a2 landed at turn " in terminal.type("steer", "r1", "Sleep more.", "--id", "a2")
    assert "r1: Finish landed at turn " in terminal.type("finish", "r1")

    code, out, _ = finish(run)
    assert code == 0
    assert "FinishedEarly" in out
    ended = show(terminal, "r1")
    assert ended["status"]["phase"] == "Succeeded"
    control = ended["status"]["run"]["control"]
    assert {steer: landing["state"] for steer, landing in control["steer"].items()} == {"a1": "Landed", "a2": "Landed"}
    assert control["steer"]["a1"]["turn"] >= turn
    notes = [note for row in json.loads(terminal.type("trace", "r1", "-o", "json")) for note in row["notes"]]
    assert [note for note in notes if note in ("Pause", "Run", "steer a1", "steer a2", "limits", "Finish")][:2] == [
        "Pause",
        "Run",
    ]


def test_a_second_process_aborts_a_live_run_which_can_then_not_be_steered(terminal: Terminal) -> None:
    run = terminal.start("run", terminal.write("w.yaml", LONG), "--name", "r1", "-o", "json")
    while not (terminal.folder / ".pilothouse/runs/r1/journal.jsonl").exists():
        assert run.poll() is None
    assert "r1: Abort landed at turn " in terminal.type("abort", "r1", "--reason", "wrong customer")

    code, out, _ = finish(run)
    assert code == 3
    assert json.loads(out)["status"]["phase"] == "Aborted"
    assert "run r1 has ended (Aborted)" in terminal.type("pause", "r1", code=1)
    assert "run r1 has ended (Aborted)" in terminal.type("resume", "r1", code=1)


ASKING = workflow_manifest(2, delay=0.0, approval="Always")


def pending_call(terminal: Terminal) -> str:
    (pending,) = show(terminal, "r1")["status"]["run"]["pendingApprovals"]
    return str(pending["callId"])


def test_a_second_process_approves_edits_and_denies_calls_of_a_live_run(terminal: Terminal) -> None:
    terminal.program = PATIENT
    run = terminal.start("run", terminal.write("w.yaml", ASKING), "--name", "r1")
    read_until(run, "parked: AwaitingApproval")
    shown = terminal.type("show", "r1")
    call = pending_call(terminal)
    assert f"pilothouse approve r1 {call} (or deny)" in shown
    assert 'nap {"n": 0, "seconds": 0} waits for a person until ' in shown

    no_number = '{"n": "many"}'
    refused = terminal.type("approve", "r1", "--arguments", no_number, code=1)
    assert "was answered NotLanded at turn 1: the arguments do not fit the tool's parameters" in refused
    assert pending_call(terminal) == call
    assert "does not wait for a decision" in terminal.type("approve", "r1", "t9-0-00000000", code=1)
    assert f"r1: approval of {call} landed at turn 1" in terminal.type("approve", "r1", "--arguments", '{"n": 7}')

    read_until(run, "parked: AwaitingApproval")
    second = pending_call(terminal)
    assert f"r1: denial of {second} landed at turn 2" in terminal.type("deny", "r1", second, "--reason", "enough")
    code, _, _ = finish(run)
    assert code == 0
    rows = json.loads(terminal.type("trace", "r1", "-o", "json"))
    assert [row["calls"][0]["code"] for row in rows[:2]] == [None, "tool_approval_denied"]
    assert f"Approve {call}" in rows[0]["notes"]
    assert "run r1 has ended (Succeeded)" in terminal.type("approve", "r1", code=1)


def test_a_run_that_was_let_go_of_while_it_waits_goes_on_with_the_decision_it_was_given(terminal: Terminal) -> None:
    run = terminal.start(
        "run", terminal.write("w.yaml", workflow_manifest(1, delay=0.0, approval="Always")), "--name", "r1"
    )
    read_until(run, "parked: AwaitingApproval")
    run.send_signal(signal.SIGINT)
    code, _, err = finish(run)
    assert code == 4
    assert "decide with: pilothouse approve r1 (or deny), then go on with: pilothouse resume r1" in err
    assert show(terminal, "r1")["status"]["phase"] == "AwaitingApproval"
    (waiting,) = json.loads(terminal.type("approvals", "-l", "pilothouse.dev/workflow=napping", "-o", "json"))
    assert (waiting["run"], waiting["tool"], waiting["arguments"]) == ("r1", "nap", {"n": 0, "seconds": 0.0})
    assert "nobody can be asked here" in terminal.type("approve", "--tool", "nap", code=2)
    kept = terminal.type("approve", "--tool", "nap", "--yes")
    assert f"r1: approval of {waiting['call']} kept, and lands when the run goes on" in kept
    code, out, _ = finish(terminal.start("resume", "r1"))
    assert code == 0
    assert '"talk_result": "done"' in out


def test_ctrl_c_lets_go_of_a_run_and_resume_goes_on_with_it_in_one_process_only(terminal: Terminal) -> None:
    manifest = terminal.write("w.yaml", workflow_manifest(30, delay=0.15))
    run = terminal.start("run", manifest, "--name", "r1")
    read_until(run, "turn 2: iteration")
    run.send_signal(signal.SIGINT)
    code, _, err = finish(run)
    assert code == 4
    assert "go on with: pilothouse resume r1" in err
    released = show(terminal, "r1")["status"]
    assert (released["phase"], released["run"]["parked"]["released"]) == ("Paused", True)

    assert "lands when the run goes on" in terminal.type("steer", "r1", "Go on.", "--id", "a1")
    first = terminal.start("resume", "r1")
    read_until(first, "turn ")
    first.send_signal(signal.SIGSTOP)  # it stays there until the second one has been refused
    refused = terminal.type("resume", "r1", code=2)
    first.send_signal(signal.SIGCONT)
    assert f"run r1 is live in process {first.pid}: two processes cannot advance one run" in refused

    code, out, _ = finish(first)
    assert code == 0
    assert '"talk_result": "done"' in out
    ended = show(terminal, "r1")["status"]
    assert ended["attempt"] == 2
    assert ended["run"]["control"]["steer"]["a1"]["state"] == "Landed"
    assert ended["run"]["turn"] == 31


def test_sigterm_lets_go_of_a_run_too_and_abort_ends_it_without_a_live_process(terminal: Terminal) -> None:
    run = terminal.start("run", terminal.write("w.yaml", LONG), "--name", "r1")
    read_until(run, "turn 1: iteration")
    run.terminate()
    assert finish(run)[0] == 4

    assert "r1: Abort landed at turn " in terminal.type("abort", "r1")
    assert show(terminal, "r1")["status"]["phase"] == "Aborted"


def test_a_disk_that_fills_in_the_middle_of_a_run_is_told_and_waited_for(terminal: Terminal) -> None:
    run = terminal.start("run", terminal.write("w.yaml", workflow_manifest(4, delay=1.0)), "--name", "r1")
    read_until(run, "turn 1: iteration")
    _, most = resource.prlimit(run.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (0, most))

    said = read_until(run, "parked: JournalLost")
    resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (most, most))

    assert "cannot write .pilothouse/runs/r1/journal.jsonl: File too large" in said
    code, out, err = finish(run)
    assert (code, "goes on after: JournalLost" in err, "Succeeded" in out) == (0, True, True)
    assert show(terminal, "r1")["status"]["run"]["toolCalls"] == {"nap": 4}


def test_a_terminal_that_closes_lets_go_of_the_run(terminal: Terminal) -> None:
    command = terminal.command(("run", terminal.write("w.yaml", LONG), "--name", "r1"))
    pid, ours = pty.fork()
    if pid == 0:  # only exec may follow: the terminal controls this process
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be inherited that it is ignored
        os.chdir(terminal.folder)
        os.execve(command[0], command, {**terminal.environment, "TERM": "xterm-256color"})
    while b"turn 1" not in os.read(ours, 65536):
        continue
    os.close(ours)

    os.waitpid(pid, 0)

    status = show(terminal, "r1")["status"]
    parked = status["run"]["parked"] or {}
    assert (parked.get("released"), parked.get("reason")) == (True, "Stopped"), status


def test_a_run_under_nohup_outlives_its_terminal(terminal: Terminal) -> None:
    manifest = terminal.write("w.yaml", workflow_manifest(3, delay=0.2))
    shell = f"trap '' HUP; exec {' '.join(terminal.command(('run', manifest, '--name', 'r1')))}"
    with subprocess.Popen(
        ["sh", "-c", shell], cwd=terminal.folder, env=terminal.environment, stderr=subprocess.PIPE, text=True
    ) as run:
        read_until(run, "turn 1: iteration")
        run.send_signal(signal.SIGHUP)
        assert finish(run)[0] == 0

    assert show(terminal, "r1")["status"]["phase"] == "Succeeded"


def test_a_killed_process_is_seen_and_the_run_goes_on_at_the_last_fact(terminal: Terminal) -> None:
    manifest = terminal.write("w.yaml", workflow_manifest(8, delay=0.2, nap=0.4))
    run = terminal.start("run", manifest, "--name", "r1")
    read_until(run, "turn 2: nap ok")
    run.kill()
    run.wait()

    assert show(terminal, "r1")["status"]["phase"] == "Pending"
    assert "no process advances the run: pilothouse resume r1" in terminal.type("show", "r1")
    code, out, _ = finish(terminal.start("resume", "r1", "-o", "json"))
    assert code == 0
    status = json.loads(out)["status"]
    assert (status["phase"], status["attempt"], status["run"]["turn"]) == ("Succeeded", 2, 9)
    # The call that was under way when the process died is listed, and was not made again.
    assert len(status["run"]["effects"]["unknown"]) <= 1
    assert status["run"]["toolCalls"] == {"nap": 8}


def test_a_watcher_sees_the_turns_and_the_end_and_leaves_the_run_alone(terminal: Terminal) -> None:
    run = terminal.start("run", terminal.write("w.yaml", workflow_manifest(12, delay=0.15)), "--name", "r1")
    read_until(run, "turn 1: iteration")

    code, out, _ = finish(terminal.start("watch", "r1"))

    assert code == 0
    assert "turn 13: step talk finished with default" in out
    assert finish(run)[0] == 0


TWICE = """
import os, signal, sys
from pathlib import Path
from pilothouse_cli.local.host import advance
from pilothouse_cli.local.state import RunFolder
class Impatient:
    def emit(self, frame):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
advance(RunFolder(Path(sys.argv[1])), Impatient())
"""


def test_a_second_ctrl_c_kills_and_the_run_can_still_go_on(terminal: Terminal) -> None:
    manifest = terminal.write("w.yaml", workflow_manifest(10, delay=0.3))
    run = terminal.start("run", manifest, "--name", "r1")
    read_until(run, "turn 1: iteration")
    run.send_signal(signal.SIGINT)
    assert finish(run)[0] == 4

    folder = str(terminal.folder / ".pilothouse" / "runs" / "r1")
    killed = subprocess.run([sys.executable, "-c", TWICE, folder], capture_output=True, text=True, check=False)

    assert killed.returncode == 130
    assert killed.stderr == "\nkilled; the journal has what is done\n"
    assert "Succeeded" in terminal.type("resume", "r1")


def on_a_terminal(terminal: Terminal, *arguments: str, **environment: str) -> str:
    """Run a command on a pseudo-terminal; return everything that it wrote there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        terminal.command(arguments),
        cwd=terminal.folder,
        env={**terminal.environment, "TERM": "xterm-256color", **environment},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    written = b""
    try:
        while piece := os.read(ours, 65536):
            written += piece
    except OSError:  # Linux says so when the other side has closed
        pass
    os.close(ours)
    assert process.wait() == 0, written.decode()
    return written.decode()


def test_a_terminal_gets_a_live_view_in_colours_unless_it_wants_none(terminal: Terminal) -> None:
    manifest = terminal.write("w.yaml", workflow_manifest(4, delay=0.2))
    shown = on_a_terminal(terminal, "run", manifest, "--name", "r1")
    assert "from another terminal: pilothouse pause │ steer │ limit │ finish │ abort r1" in shown
    assert "\x1b[36mRunning" in shown
    assert "\x1b[32mSucceeded" in shown

    plain = on_a_terminal(terminal, "run", manifest, "--name", "r2", "--no-live", NO_COLOR="1")
    assert "turn 1: iteration 1" in plain
    assert "\x1b[3" not in plain


def test_a_pause_that_lasts_lets_go_of_the_process_and_resume_and_finish_go_on_without_it(terminal: Terminal) -> None:
    manifest = terminal.write("w.yaml", LONG)
    run = terminal.start("run", manifest, "--name", "r1", "--set", "limits.pauseSeconds=1")
    read_until(run, "turn 1: iteration")
    assert "Pause landed" in terminal.type("pause", "r1")

    code, _, err = finish(run)
    assert code == 4
    assert "let go of run r1 at turn " in err
    assert show(terminal, "r1")["status"]["phase"] == "Paused"
    resumed = terminal.start("resume", "r1")
    read_until(resumed, "iteration")
    assert show(terminal, "r1")["spec"]["control"]["mode"] == "Run"
    resumed.send_signal(signal.SIGINT)
    assert finish(resumed)[0] == 4
    assert "Finish landed at turn " in terminal.type("finish", "r1")
    assert show(terminal, "r1")["status"]["exit"]["reason"] == "FinishedEarly"
