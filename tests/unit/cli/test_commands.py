"""What commands print, for people and for programs, and how they end."""

import io
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from support.terminal import Inside, Terminal, workflow_manifest

SHORT = workflow_manifest(1, delay=0)
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def test_a_finished_run_is_listed_shown_traced_and_printed_for_programs(inside: Inside) -> None:
    manifest = inside.write("w.yaml", SHORT)
    run = json.loads(inside.type("run", manifest, "--name", "r1", "-o", "json"))
    assert run["kind"] == "AgentRun"
    assert run["status"]["result"] == {"talk_result": "done"}

    assert json.loads(inside.type("show", "r1", "-o", "json")) == run
    assert yaml.safe_load(inside.type("show", "r1", "-o", "yaml")) == run
    assert inside.type("show", "r1", "-o", "name") == "agentrun.pilothouse.dev/r1\n"
    assert inside.type("list", "-o", "name") == "agentrun.pilothouse.dev/r1\n"
    assert [item["metadata"]["name"] for item in json.loads(inside.type("list", "-o", "json"))["items"]] == ["r1"]
    turns = json.loads(inside.type("trace", "r1", "-o", "json"))
    assert [(row["turn"], row["ends"], row["tokens"]) for row in turns] == [
        (1, "", {"input": 10, "output": 5}),
        (2, "default", {"input": 10, "output": 5}),
    ]
    assert [call["tool"] for call in turns[0]["calls"]] == ["nap"]

    assert inside.type("list").split()[:16:8] == ["NAME", "r1"]
    assert "Succeeded  Complete" in inside.type("show", "r1")
    assert "nap" in inside.type("trace", "r1")
    assert "\x1b" not in inside.type("show", "r1")


def test_a_result_is_printed_whole_where_the_status_only_refers_to_it(inside: Inside) -> None:
    text = "All is well. " * 1000
    manifest = inside.write("w.yaml", SHORT.replace("text: done", f"text: '{text.strip()}'"))
    run = json.loads(inside.type("run", manifest, "--name", "r1", "-o", "json"))
    assert run["status"]["result"]["ref"] == "journal/result"

    assert json.loads(inside.type("result", "r1")) == {"talk_result": text.strip()}
    assert yaml.safe_load(inside.type("result", "r1", "-o", "yaml")) == {"talk_result": text.strip()}
    assert "13,0" in inside.type("show", "r1")
    assert "all of it: pilothouse result r1" in inside.type("show", "r1")
    journal = next(inside.folder.glob(".pilothouse/**/journal.jsonl"))
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:2]))
    assert "does not hold the result with the digest" in inside.refuse("result", "r1", code=1)


def test_a_small_result_is_printed_and_a_run_without_one_says_so(inside: Inside) -> None:
    inside.type("run", inside.write("w.yaml", SHORT), "--name", "r1")
    assert json.loads(inside.type("result", "r1")) == {"talk_result": "done"}

    broken = SHORT.replace("text: done", "error: {kind: Refused}")
    inside.type("run", inside.write("w.yaml", broken), "--name", "r2", code=1)
    assert "run r2 has no result; it is Failed" in inside.refuse("result", "r2", code=1)


def test_a_failed_run_exits_one_and_says_why(inside: Inside) -> None:
    broken = SHORT.replace("text: done", "error: {kind: Refused}")
    assert broken != SHORT
    out = inside.type("run", inside.write("w.yaml", broken), "--name", "r1", code=1)

    assert "Failed  Error" in out
    assert "ended with error (Error)" in inside.said
    assert "Failed" in inside.type("show", "r1")


def test_each_wrong_use_exits_two_with_a_sentence_and_a_next_step(inside: Inside) -> None:
    manifest = inside.write("w.yaml", SHORT)
    wrong = {
        ("run", "absent.yaml"): "absent.yaml does not exist",
        ("run", manifest, "--workflow", "other"): "there is no Workflow or Agent other",
        ("run", manifest, "--set", "limits"): "is no path=value",
        ("run", manifest, "--set", "spec.x=1"): "is not a path that can be set",
        ("run", manifest, "--set", "agents.nobody.mode=Completion"): "there is no Agent nobody",
        ("run", manifest, "--set", "limits.tokenBudget=-1"): "tokenBudget",
        ("run", manifest, "--name", "No_Name"): "No_Name",
        ("run", manifest, "--input", "@absent.json"): "absent.json cannot be read",
        ("run", manifest, "--input", "novalue"): "is no path=value\nnext:  --input city=Utrecht",
        ("limit", "r1", "bogus=1"): "'bogus=1' is no limit",
        ("limit", "r1", "maxIterations=few"): "is no whole number",
        ("steer", "r1", "  "): "cannot be blank",
        ("graph", manifest, "--workflow", "other"): "name the Workflow",
        ("bogus",): "No such command",
    }
    for arguments, sentence in wrong.items():
        said = inside.refuse(*arguments, code=2)
        assert sentence in said, f"{arguments}: {said}"
    assert not (inside.folder / ".pilothouse").exists()


def test_invalid_manifests_are_not_run_and_each_finding_has_its_place(inside: Inside) -> None:
    manifest = inside.write("w.yaml", SHORT.replace("agentRef:\n      name: talker", "agentRef:\n      name: nobody"))
    said = inside.refuse("run", manifest, code=2)
    assert "w.yaml:" in said
    assert "nobody" in said
    assert "in the manifests" in said

    wrong = inside.write("wrong.yaml", SHORT.replace("kind: Function", "kind: Funktion"))
    findings = json.loads(inside.type("validate", wrong, "-o", "json", code=1))
    first = next(finding for finding in findings if finding["severity"] == "Error")
    assert (first["file"], first["kind"]) == ("wrong.yaml", "Workflow")
    assert first["line"] > 1
    assert "kind" in first["field"]


def test_runs_that_are_not_there_and_clusters_that_are_not_there(inside: Inside) -> None:
    assert "there is no run r9 in .pilothouse" in inside.refuse("show", "r9", code=5)
    assert "there is no run r9 in .pilothouse" in inside.refuse("abort", "r9", code=5)
    assert "there is no run ../x in" in inside.refuse("show", "../x", code=5)
    assert "no cluster can be reached" in inside.refuse("list", "-n", "default", code=1)
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path = inside.write("config", yaml.safe_dump(kubeconfig))
    assert "the cluster does not answer" in inside.refuse("show", "r9", "--kubeconfig", path, code=1)


def test_a_name_that_is_taken_is_refused(inside: Inside) -> None:
    manifest = inside.write("w.yaml", SHORT)
    inside.type("run", manifest, "--name", "r1", "-o", "name")
    assert "there is a local run r1 already" in inside.refuse("run", manifest, "--name", "r1", code=2)


def test_damaged_files_are_a_sentence_each(inside: Inside) -> None:
    folder = inside.folder / ".pilothouse" / "runs" / "r1"
    inside.type("run", inside.write("w.yaml", SHORT), "--name", "r1", "-o", "name")
    journal = folder / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"x" + b"".join(lines))
    assert "the journal" in inside.refuse("trace", "r1", code=1)
    raw = json.loads((folder / "run.json").read_text())
    raw["status"]["phase"] = "Running"
    del raw["status"]["run"]
    (folder / "run.json").write_text(json.dumps(raw))
    assert "the journal of run r1 is damaged" in inside.refuse("resume", "r1", code=1)
    (folder / "plan.json").write_text("{}")
    assert "plan.json cannot be used: the plan's digest is" in inside.refuse("resume", "r1", code=1)
    (folder / "run.json").write_text("{")
    assert "run.json cannot be read" in inside.refuse("show", "r1", code=1)
    (folder / "run.json").write_text("[]")
    assert "is no run" in inside.refuse("show", "r1", code=1)
    (folder / "run.json").write_text(json.dumps({**raw, "status": {**raw["status"], "run": {"turn": "many"}}}))
    for verb in ("show", "trace", "watch", "pause", "resume", "abort"):
        assert "has a status that this version cannot read: turn:" in inside.refuse(verb, "r1", code=1)
    assert inside.type("list") == ""
    assert inside.said.startswith("run r1 is left out: run r1 has a status that this version cannot read: turn:")
    assert "there are no runs" not in inside.said


def test_a_list_tells_of_what_it_leaves_out(inside: Inside) -> None:
    for name in ("r1", "r2"):
        inside.type("run", inside.write("w.yaml", SHORT), "--name", name, "-o", "name")
    (inside.folder / ".pilothouse" / "runs" / "r1" / "run.json").write_text("{")

    for form in ("table", "name", "json"):
        listed = inside.type("list", "-o", form)
        assert "r2" in listed and "r1" not in listed
        assert "run r1 is left out: .pilothouse/runs/r1/run.json cannot be read" in inside.said


@contextmanager
def full_disk() -> Iterator[None]:
    """No file takes a byte any more."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_a_sentence_and_the_run_goes_on_once_there_is_room(inside: Inside) -> None:
    paused = ("--set", "control.mode=Pause", "--set", "limits.pauseSeconds=0")
    inside.type("run", inside.write("w.yaml", SHORT), *paused, "--name", "r1", "--no-live", code=4)
    files = sorted((inside.folder / ".pilothouse" / "runs" / "r1").iterdir())
    with full_disk():
        for verb in (("resume", "r1"), ("steer", "r1", "Sleep."), ("pause", "r1", "--reason", "x"), ("abort", "r1")):
            said = inside.refuse(*verb, code=1)
            assert "cannot write .pilothouse/runs/r1/run.json: File too large" in said
            assert "next:  make room" in said
    assert sorted((inside.folder / ".pilothouse" / "runs" / "r1").iterdir()) == files
    inside.type("steer", "r1", "Sleep.", "--no-wait")
    with full_disk():
        said = inside.refuse("finish", "r1", code=1)
    assert "cannot write .pilothouse/runs/r1/" in said
    inside.type("resume", "r1", "--no-live")


def test_a_directive_that_the_cluster_would_refuse_is_refused_here(inside: Inside) -> None:
    paused = ("--set", "control.mode=Pause", "--set", "limits.pauseSeconds=0")
    inside.type("run", inside.write("w.yaml", SHORT), *paused, "--name", "r1", "--no-live", code=4)
    before = (inside.folder / ".pilothouse/runs/r1/run.json").read_bytes()
    assert "the id of a steer message has at most 63" in inside.refuse("steer", "r1", "Sleep.", "--id", "Bad Id")
    assert "the id of a steer message has at most 63" in inside.refuse("steer", "r1", "Sleep.", "--id", "a" * 64)
    assert "cannot be blank" in inside.refuse("steer", "r1", "\u2003")
    assert (inside.folder / ".pilothouse/runs/r1/run.json").read_bytes() == before
    inside.type("steer", "r1", "Sleep.", "--id", "a" * 63, "--no-wait")


@pytest.mark.parametrize(("lock", "verb"), [("edit.lock", "steer"), ("lock", "finish")])
def test_a_lock_that_cannot_be_taken_is_a_sentence(inside: Inside, lock: str, verb: str) -> None:
    paused = ("--set", "control.mode=Pause", "--set", "limits.pauseSeconds=0")
    inside.type("run", inside.write("w.yaml", SHORT), *paused, "--name", "r1", "--no-live", code=4)
    path = inside.folder / ".pilothouse" / "runs" / "r1" / lock
    path.unlink()
    path.mkdir()
    arguments = (verb, "r1", "Sleep.") if verb == "steer" else (verb, "r1")
    assert f"cannot write .pilothouse/runs/r1/{lock}: Is a directory" in inside.refuse(*arguments, code=1)


def test_inputs_and_settings_reach_the_run(inside: Inside) -> None:
    inside.write("in.yaml", "ticket: {text: hello, customer: c-1}\n")
    manifest = inside.write("w.yaml", SHORT)
    options = ("--input", "@in.yaml", "--input", "ticket.customer=c-2", "--input", "n=3", "--input", "word=yes")
    settings = ("--set", "limits.tokenBudget=900", "--set", "agents.talker.limits.maxIterations=7")
    run = json.loads(inside.type("run", manifest, *options, *settings, "-o", "json"))

    assert run["spec"]["input"] == {"ticket": {"text": "hello", "customer": "c-2"}, "n": 3, "word": "yes"}
    assert run["spec"]["limits"] == {"tokenBudget": 900}
    plan = json.loads((inside.folder / ".pilothouse/runs" / run["metadata"]["name"] / "plan.json").read_text())
    assert plan["agents"]["talker"]["spec"]["limits"]["maxIterations"] == 7
    assert run["status"]["run"]["tokens"]["budget"] == 900


@pytest.mark.slow
def test_what_init_writes_is_valid_runs_and_passes_its_own_test(inside: Inside) -> None:
    inside.type("init", "hello")
    assert inside.type("validate", "hello", "--strict") == ""
    assert "no errors, no warnings" in inside.said
    assert "Take a coat" in inside.type("run", "hello")
    passed = subprocess.run(
        [sys.executable, "hello/test_hello.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert passed.stdout == "passed\n", passed.stderr
    assert "workflow.yaml exists already" in inside.refuse("init", "hello", code=2)


@pytest.mark.parametrize("form", ["text", "mermaid", "svg"])
def test_a_graph_names_every_step(inside: Inside, form: str) -> None:
    graph = inside.type("graph", str(EXAMPLES / "support-triage"), "-o", form)
    for step in ("classify", "investigate", "reply", "give-up"):
        assert step in graph


@pytest.mark.parametrize("from_where", ["several paths", "standard input", "both"])
def test_a_graph_is_made_of_all_that_validate_takes(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, from_where: str
) -> None:
    desk = EXAMPLES / "supervised"
    texts = {name: (desk / name).read_text() for name in ("workflow.yaml", "supervisor.yaml")}
    whole = inside.type("graph", str(desk), "-o", "mermaid")
    files = [inside.write(name, text) for name, text in texts.items()]
    given, typed = {
        "several paths": (files, ""),
        "standard input": (["-"], "\n---\n".join(texts.values())),
        "both": ([files[0], "-"], texts["supervisor.yaml"]),
    }[from_where]
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert inside.type("graph", *given, "-o", "mermaid") == whole


def test_a_graph_says_who_watches_the_runs(inside: Inside) -> None:
    assert "watched by no-loops (Sync): asks-often" in inside.type("graph", str(EXAMPLES / "supervised"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirect", "settings", "code", "printed", "said"),
    [
        ("> /dev/full", {}, 1, "", "the system refuses: [Errno 28] No space left on device"),
        (">&-", {}, 0, "", ""),
        ("2> /dev/full", {}, 0, "talk  (Agent talker)", ""),
        ("", {"PYTHONIOENCODING": "ascii"}, 0, "default         \\u21e2 end", ""),
        ("", {"COLUMNS": "many"}, 0, "default         ⇢ end", ""),
        ("", {"COLUMNS": "-3"}, 0, "default         ⇢ end", ""),
        ("", {"COLUMNS": "0"}, 0, "default         ⇢ end", ""),
    ],
)
def test_streams_of_any_kind_end_in_no_internal_fault(
    terminal: Terminal, redirect: str, settings: dict[str, str], code: int, printed: str, said: str
) -> None:
    terminal.write("w.yaml", SHORT)
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m pilothouse_cli graph w.yaml {redirect}"],
        cwd=terminal.folder,
        env={**terminal.environment, **settings},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr, "internal" in done.stderr) == (code, False, False)
    assert printed in done.stdout
    assert said in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("progress", ["2>&1 | head -1", "2> /dev/full", "2>&-"])
def test_a_run_goes_on_when_nobody_reads_its_progress(terminal: Terminal, progress: str) -> None:
    terminal.write("w.yaml", SHORT)
    subprocess.run(
        ["sh", "-c", f"{sys.executable} -m pilothouse_cli run w.yaml --name r1 {progress}"],
        cwd=terminal.folder,
        env=terminal.environment,
        capture_output=True,
        timeout=200,
        check=False,
    )
    assert json.loads(terminal.type("show", "r1", "-o", "json"))["status"]["phase"] == "Succeeded"


def ageless(table: str) -> str:
    """Return a table without its ages: a second may pass between two of them."""
    return re.sub(r"\b\d+s\b", "0s", table)


@pytest.mark.parametrize("columns", ["many", "-3", "0", "9" * 9, "８"])
def test_a_width_that_is_none_does_not_change_what_a_pipe_gets(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    inside.type("run", inside.write("w.yaml", SHORT), "--name", "r1", "-o", "name")
    want = ageless(inside.type("list"))
    monkeypatch.setenv("COLUMNS", columns)
    assert ageless(inside.type("list")) == want
    assert "r1" in want


def test_help_is_quick_because_it_imports_little() -> None:
    code = "import sys, pilothouse_cli.main\nprint(*{'pydantic', 'kubernetes', 'httpx', 'yaml'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


@pytest.mark.slow
def test_completion_knows_the_commands_and_the_runs(inside: Inside) -> None:
    inside.type("run", inside.write("w.yaml", SHORT), "--name", "r1", "-o", "name")
    for words, want in (("pilothouse pa", "pause"), ("pilothouse pause r", "r1")):
        done = subprocess.run(
            [str(Path(sys.executable).with_name("pilothouse"))],
            env={
                **os.environ,
                "_PILOTHOUSE_COMPLETE": "complete_bash",
                "COMP_WORDS": words,
                "COMP_CWORD": str(len(words.split()) - 1),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert want in done.stdout.split()


def test_a_folder_with_things_that_are_no_files_does_not_hang_anything(inside: Inside) -> None:
    (inside.folder / "manifests").mkdir()
    os.mkfifo(inside.folder / "manifests" / "pipe.yaml")
    (inside.folder / "manifests" / "folder.yaml").mkdir()
    assert "there is no manifest in manifests" in inside.refuse("validate", "manifests")
