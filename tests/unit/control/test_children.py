"""What is done about the children of a run: one table of situations, one decision each."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pilothouse_api import names
from pilothouse_api.plan import Plan
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import ChildReport, ChildRequest, Snapshot
from pilothouse_control.children import GRACE, ChildrenPlan, Family, ended_calls, plan_children
from pilothouse_control.lineage import lineage_of
from unit.control.manifests import Raw, a_policy_rule, a_run, a_tool, a_workflow, agent_step, an_agent
from unit.control.test_resolution import plan_of

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
CALL = "t1-0-0a1b2c3d"
NAME = f"triage-1-{CALL}"
HELPER = {"kind": "Agent", "name": "helper"}
DELEGATE = a_tool(inlineStep=None, agentRef={"name": "helper"})


def a_plan(**spec: Any) -> Plan:
    return plan_of(a_run(), a_workflow(agent_step(tools=[DELEGATE]), **spec), an_agent())


def a_request(state: str = "Awaited", **changes: Any) -> Raw:
    return {"callId": CALL, "ref": HELPER, "input": {"topic": "invoices"}, "hold": {}, "state": state, **changes}


def a_parent(*reports: Raw, labels: dict[str, str] | None = None, **spec: Any) -> AgentRun:
    raw = a_run(**spec)
    raw["metadata"] |= {"namespace": "ns", "uid": "u1", "labels": labels or {}}
    return AgentRun.model_validate({**raw, "status": {"children": list(reports)}})


def a_child(
    status: Raw | None = None, owner: str = "u1", labels: dict[str, str] | None = None, **spec: Any
) -> AgentRun:
    raw = a_run(NAME, workflowRef=None, agentRef={"name": "helper"}, **spec)
    reference = {"apiVersion": names.API_VERSION, "kind": "AgentRun", "name": "triage-1", "controller": True}
    raw["metadata"] |= {
        "uid": "c1",
        "ownerReferences": [reference | {"uid": owner}],
        "labels": {names.LABEL_PARENT_CALL: CALL, **(labels or {})},
    }
    return AgentRun.model_validate({**raw, "status": status or {}})


def a_condition(kind: str, reason: str = "Because", message: str = "m") -> Raw:
    return {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-03-01T11:00:00Z",
    }


def an_end(reason: str = "Complete", signal: str = "default", **run: Any) -> Raw:
    end = {"signal": signal, "reason": reason, "message": "done"}
    snapshot = {
        "attempt": 1,
        "exit": end,
        "tokens": {"used": 100, "input": 70, "output": 30},
        "cost": {"usedUSD": "0.01"},
        **run,
    }
    return {"conditions": [a_condition("Finished")], "exit": end, "attempt": 1, "result": {"found": 3}, "run": snapshot}


ENDED = {"callId": CALL, "name": NAME, "exit": {"signal": "default", "reason": "Complete", "message": "done"}}


def family(
    *requests: Raw,
    parent: AgentRun | None = None,
    child: AgentRun | None = None,
    plan: Plan | None = None,
    **changes: Any,
) -> Family:
    made = Family(
        parent=parent or a_parent(),
        snapshot=Snapshot.model_validate({"attempt": 1, "children": list(requests)}),
        plan=plan or a_plan(),
        is_ending=False,
        now=NOW,
        found={CALL: child},
        targets=frozenset({("Agent", "helper")}),
    )
    return replace(made, **changes)


def decide(*requests: Raw, **changes: Any) -> ChildrenPlan:
    return plan_children(family(*requests, **changes))


def only_report(plan: ChildrenPlan) -> Raw:
    [report] = plan.reports
    return report.to_raw()


# ---------------------------------------------------------------- making one


@pytest.mark.parametrize("state", ["Awaited", "Background"])
def test_a_child_that_is_asked_for_is_made_once_and_reported(state: str) -> None:
    plan = decide(a_request(state), parent=a_parent(labels={"team": "pay", names.LABEL_TRIGGER: "OnChange"}))
    [new] = plan.creates
    assert new.raw["metadata"] == {
        "name": NAME,
        "namespace": "ns",
        "labels": {
            "team": "pay",
            names.LABEL_MANAGED_BY: "pilothouse",
            names.LABEL_PARENT: "triage-1",
            names.LABEL_PARENT_CALL: CALL,
        },
        "ownerReferences": [
            {
                "apiVersion": names.API_VERSION,
                "kind": "AgentRun",
                "name": "triage-1",
                "uid": "u1",
                "controller": True,
            }
        ],
    }
    assert new.raw["spec"] == {"agentRef": {"name": "helper"}, "input": {"topic": "invoices"}}
    assert only_report(plan) == {"callId": CALL, "name": NAME}
    assert plan.open == (NAME,)
    AgentRun.model_validate(new.raw)


def test_one_that_was_made_before_a_crash_is_reported_and_not_made_again() -> None:
    plan = decide(a_request(), child=a_child())
    assert (plan.creates, only_report(plan), plan.open) == ((), {"callId": CALL, "name": NAME}, (NAME,))


def test_names_stay_within_their_bound_and_apart() -> None:
    long = "a" * 58
    one, two = (names.child_run_name(long, f"t1-{index}-00000000") for index in (0, 1))
    assert len(one) == len(two) == 58
    assert one != two


@pytest.mark.parametrize(
    ("request_", "plan", "says"),
    [
        (a_request(ref={"kind": "Agent", "name": "other"}), None, "Agent other is no delegate of this run's plan"),
        (a_request(ref={"kind": "Workflow", "name": "helper"}), None, "Workflow helper is no delegate"),
        (a_request(input={"a": "x" * 8192}), None, "bytes; the limit is 8,192"),
        (a_request(), a_plan().model_copy(update={"ancestors": ["a", "b", "c"]}), "4 runs deep; the limit is 3"),
        (a_request(), a_plan(limits={"tokenBudget": 5000}), "all tokens of a tokenBudget of 5000"),
        (a_request(hold={"tokens": 6000}), a_plan(limits={"tokenBudget": 5000}), "6000 tokens of a tokenBudget"),
    ],
)
def test_what_the_plan_does_not_allow_is_refused_as_an_end(request_: Raw, plan: Plan | None, says: str) -> None:
    decided = decide(request_, plan=plan)
    report = only_report(decided)
    assert decided.creates == ()
    assert (report["exit"]["signal"], report["exit"]["reason"]) == ("error", "ChildRefused")
    assert says in report["exit"]["message"]
    assert (report["inputTokens"], report["outputTokens"], report["costUSD"]) == (0, 0, "0")
    assert ended_calls(decided.reports) == {CALL}


def test_more_than_64_are_refused() -> None:
    requests = [a_request("Background", callId=f"t{n}-0-00000000") for n in range(66)]
    plan = decide(*requests)
    assert len(plan.creates) == 64
    assert [report.exit.reason for report in plan.reports if report.exit] == ["ChildRefused"] * 2


def test_three_deep_is_not_too_deep() -> None:
    plan = a_plan().model_copy(update={"ancestors": ["a", "b"]})
    assert len(decide(a_request(), plan=plan).creates) == 1


@pytest.mark.parametrize(
    ("changes", "reason", "says"),
    [
        ({"targets": frozenset()}, "AgentNotFound", "there is no Agent helper"),
        ({"child": a_child(owner="another")}, "ChildNameTaken", f"a run {NAME} exists"),
        ({"child": a_child(labels={names.LABEL_PARENT_CALL: "t9-0-1"})}, "ChildNameTaken", f"a run {NAME} exists"),
        ({"refusals": {CALL: "exceeded quota"}}, "ChildRefused", "exceeded quota"),
    ],
)
def test_what_may_come_right_is_waited_for_and_then_refused(changes: dict[str, Any], reason: str, says: str) -> None:
    waiting = decide(a_request(), **changes)
    assert says in waiting.waiting[CALL]
    assert ended_calls(waiting.reports) == frozenset()
    patient = decide(a_request(), since={CALL: NOW - GRACE + timedelta(seconds=1)}, **changes)
    assert ended_calls(patient.reports) == frozenset()
    over = decide(a_request(), since={CALL: NOW - GRACE}, **changes)
    report = only_report(over)
    assert (report["exit"]["reason"], over.creates, over.waiting) == (reason, (), {})
    assert says in report["exit"]["message"]


def test_what_the_api_server_refused_is_tried_again_meanwhile() -> None:
    assert len(decide(a_request(), refusals={CALL: "exceeded quota"}).creates) == 1


def test_nothing_is_made_without_a_plan() -> None:
    plan = plan_children(replace(family(a_request()), plan=None))
    assert (plan.creates, list(plan.waiting)) == ((), [CALL])


@pytest.mark.parametrize(("state", "is_ending"), [("Abandoned", False), ("Awaited", True)])
def test_what_was_wanted_no_more_before_it_was_made_is_never_made(state: str, is_ending: bool) -> None:
    plan = decide(a_request(state), is_ending=is_ending)
    assert (plan.creates, plan.open) == ((), ())
    assert only_report(plan)["exit"]["message"] == "it was wanted no more before it was made"


def test_one_that_was_read_needs_nothing() -> None:
    assert decide(a_request("Delivered")) == ChildrenPlan()


# ---------------------------------------------------------------- one that is there


def test_the_end_of_a_child_is_reported_with_its_result_and_what_it_took() -> None:
    plan = decide(a_request(), child=a_child(an_end()), parent=a_parent({"callId": CALL, "name": NAME}))
    assert only_report(plan) == ENDED | {
        "inputTokens": 70,
        "outputTokens": 30,
        "costUSD": "0.01",
        "result": {"found": 3},
    }
    assert (plan.open, plan.patches) == ((), ())


@pytest.mark.parametrize(
    ("status", "want"),
    [
        (an_end(cost={"usedUSD": "0", "unknown": True}), {"inputTokens": 70, "outputTokens": 30}),
        (an_end(exit=None), {}),
        (an_end() | {"run": None}, {}),
        (an_end() | {"run": {"attempt": "?"}}, {}),
        ({**an_end(), "run": None, "attempt": None}, {"inputTokens": 0, "outputTokens": 0, "costUSD": "0"}),
    ],
)
def test_what_nobody_knows_of_what_it_took_is_not_made_up(status: Raw, want: Raw) -> None:
    report = only_report(decide(a_request(), child=a_child(status)))
    assert {name: report[name] for name in ("inputTokens", "outputTokens", "costUSD") if name in report} == want


def test_an_end_that_was_reported_stays_and_its_result_goes_once_it_was_read() -> None:
    reported = a_parent(ENDED | {"result": {"found": 3}})
    assert only_report(decide(a_request(), parent=reported)) == ENDED | {"result": {"found": 3}}
    for request in ([a_request("Delivered")], [a_request("Abandoned")], []):
        assert only_report(decide(*request, parent=reported)) == ENDED


def test_a_child_that_was_deleted_is_an_end() -> None:
    report = only_report(decide(a_request(), parent=a_parent({"callId": CALL, "name": NAME})))
    assert report["exit"]["reason"] == "ChildDeleted"
    assert "inputTokens" not in report  # its hold is charged whole


def test_a_child_of_which_no_plan_can_be_made_is_an_end_and_is_aborted() -> None:
    stalled = {"conditions": [a_condition("Stalled", "InputInvalid", "spec.input: no topic")]}
    plan = decide(a_request(), child=a_child(stalled))
    assert only_report(plan)["exit"] == {"signal": "error", "reason": "InputInvalid", "message": "spec.input: no topic"}
    assert [patch.raw["spec"]["control"]["mode"] for patch in plan.patches] == ["Abort"]
    assert plan.open == (NAME,)
    again = decide(a_request(), child=a_child(stalled, control={"mode": "Abort"}), parent=a_parent(only_report(plan)))
    assert (again.patches, again.open) == ((), (NAME,))


def test_a_child_that_has_a_plan_and_stalls_is_waited_for() -> None:
    stalled = {"conditions": [a_condition("Stalled")], "plan": {"name": "p", "digest": "d"}}
    assert ended_calls(decide(a_request(), child=a_child(stalled)).reports) == frozenset()


def test_what_a_child_and_its_own_children_ask_of_people_is_shown() -> None:
    waiting = {"callId": "t2-0-11111111", "tool": "refund", "arguments": {"iban": "x"}, "requestedAt": "…"}
    below = {"callId": "t1-0-2", "name": "g", "pendingApprovals": [{"run": "g", "callId": "t9-0-3", "tool": "pay"}]}
    child = a_child({"run": {"attempt": 1, "pendingApprovals": [waiting]}, "children": [below]})
    assert only_report(decide(a_request(), child=child))["pendingApprovals"] == [
        {"run": NAME, "callId": "t2-0-11111111", "tool": "refund"},
        {"run": "g", "callId": "t9-0-3", "tool": "pay"},
    ]


# ---------------------------------------------------------------- directives

PAUSED = {names.LABEL_COPIED_MODE: "Pause"}


@pytest.mark.parametrize(
    ("asked", "has", "labels", "want", "want_labels"),
    [
        (None, None, {}, None, None),
        ("Pause", None, {}, "Pause", PAUSED),
        ("Pause", "Pause", PAUSED, None, None),
        ("Pause", "Run", PAUSED, None, None),  # somebody resumed the child alone
        ("Pause", "Pause", {}, None, None),  # somebody paused it before
        ("Pause", "Finish", {}, None, None),
        ("Run", "Pause", PAUSED, "Run", {names.LABEL_COPIED_MODE: None}),
        (None, "Pause", PAUSED, "Run", {names.LABEL_COPIED_MODE: None}),
        ("Run", "Pause", {}, None, None),  # that pause is the child's own
        ("Run", "Finish", PAUSED, None, {names.LABEL_COPIED_MODE: None}),
        ("Finish", "Pause", PAUSED, "Finish", None),
        ("Finish", "Finish", {}, None, None),
        ("Finish", "Abort", {}, None, None),
        ("Abort", "Finish", {}, "Abort", None),
        ("Abort", "Abort", {}, None, None),
    ],
)
def test_the_parents_mode_is_copied_down(
    asked: str | None, has: str | None, labels: dict[str, str], want: str | None, want_labels: Raw | None
) -> None:
    parent = a_parent(control={"mode": asked, "reason": "lunch", "by": "ann"} if asked else None)
    plan = decide(a_request(), parent=parent, child=a_child(labels=labels, control={"mode": has} if has else None))
    if want is None and want_labels is None:
        assert plan.patches == ()
        return
    [patch] = plan.patches
    assert patch.name == NAME
    assert patch.raw["metadata"] == {"uid": "c1"} | ({"labels": want_labels} if want_labels else {})
    assert patch.raw.get("spec", {}).get("control", {}).get("mode") == want
    if want is not None and asked is not None:
        assert patch.raw["spec"]["control"]["reason"] == "copied from triage-1: lunch"
        assert patch.raw["spec"]["control"]["by"] == "ann"


@pytest.mark.parametrize(
    ("requests", "changes"),
    [([a_request("Abandoned")], {}), ([a_request()], {"is_ending": True}), ([], {"is_ending": True})],
)
def test_a_child_that_nobody_waits_for_is_aborted_and_holds_its_parents_end(
    requests: list[Raw], changes: dict[str, Any]
) -> None:
    parent = a_parent({"callId": CALL, "name": NAME})
    plan = decide(*requests, parent=parent, child=a_child(), **changes)
    [patch] = plan.patches
    assert patch.raw["spec"]["control"]["mode"] == "Abort"
    assert plan.open == (NAME,)
    over = decide(*requests, parent=parent, child=a_child(an_end("Aborted", "aborted")), **changes)
    assert (over.patches, over.open) == ((), ())


def test_a_snapshot_that_names_no_child_any_more_aborts_none() -> None:
    plan = decide(parent=a_parent({"callId": CALL, "name": NAME}), child=a_child())
    assert (plan.patches, plan.open) == ((), (NAME,))


def test_the_run_of_somebody_else_is_neither_told_nor_reported() -> None:
    for is_ending in (False, True):
        plan = decide(a_request(), child=a_child(an_end(), owner="another"), is_ending=is_ending)
        assert (plan.patches, plan.reports, plan.open) == ((), (), ())


def test_a_decision_repeated_on_what_it_reported_changes_nothing() -> None:
    child = a_child(an_end())
    first = decide(a_request(), child=child)
    again = decide(a_request(), child=child, parent=a_parent(*(report.to_raw() for report in first.reports)))
    assert again.reports == first.reports == tuple(ChildReport.model_validate(r.to_raw()) for r in first.reports)


def test_policies_are_not_escaped_by_delegating() -> None:
    step = agent_step(tools=[DELEGATE], policy=[a_policy_rule("agents-own")])
    other = agent_step("other", policy=[a_policy_rule("of-another")])
    plan = plan_of(a_run(), a_workflow(step, other, policy=[a_policy_rule("workflows")]), an_agent())
    lineage = lineage_of(plan, ChildRequest.model_validate(a_request(hold={"tokens": 4096})))
    assert [(one.owner, one.rules[0].name) for one in lineage.policies] == [
        ("workflow triage", "workflows"),
        ("agent of step work", "agents-own"),
    ]
    assert lineage.ancestors == ("triage-1",)
    assert lineage.limits is not None
    assert lineage.limits.token_budget == 4096


# ---------------------------------------------------------------- tasks that outlive their run


def test_a_task_that_outlives_its_run_is_neither_aborted_nor_waited_for() -> None:
    plan = decide(a_request("HandedOn"), child=a_child(), is_ending=True)

    assert (plan.patches, plan.open, plan.handed_on) == ((), (), (NAME,))
    assert only_report(plan) == {"callId": CALL, "name": NAME}


def test_one_that_is_not_made_yet_is_made_before_the_end_of_its_run_is_told() -> None:
    plan = decide(a_request("HandedOn"), is_ending=True)
    missing = decide(a_request("HandedOn"), is_ending=True, targets=frozenset())

    assert [new.raw["metadata"]["name"] for new in plan.creates] == [NAME]
    assert plan.open == missing.open == (NAME,)


def a_past(state: str = "Background") -> Raw:
    return a_request(state, callId=NAME, input={}, owner="triage-1")


def decide_past(
    child: AgentRun | None, owner: AgentRun | None, *, session: str = "c-17", report: Raw | None = None, state: str = ""
) -> ChildrenPlan:
    """What the next run of the session does about a task of the run triage-1."""
    parent = a_parent(*([report] if report is not None else []), session=session)
    second = parent.metadata.model_copy(update={"name": "triage-2", "uid": "u2"})
    parent = parent.model_copy(update={"metadata": second})
    past = a_past(state) if state else a_past()
    return decide(past, parent=parent, found={NAME: child}, owners={"triage-1": owner})


def test_the_next_run_of_a_session_reports_on_a_task_and_does_nothing_else_about_it() -> None:
    owner = a_parent(session="c-17")
    live = decide_past(a_child(), owner)
    over = decide_past(a_child(an_end()), owner)

    assert (live.creates, live.patches, live.open, live.handed_on) == ((), (), (), (NAME,))
    assert only_report(live) == {"callId": NAME, "name": NAME}
    assert over.handed_on == () and only_report(over)["result"] == {"found": 3}


@pytest.mark.parametrize(
    ("child", "owner", "reason"),
    [
        (None, a_parent(session="c-17"), "ChildDeleted"),
        (a_child(), None, "ChildDeleted"),
        (a_child(), a_parent(session="c-18"), "ChildRefused"),
        (a_child(owner="u9"), a_parent(session="c-17"), "ChildRefused"),
    ],
    ids=["deleted", "deleted with its run", "of another session", "of another run"],
)
def test_a_task_that_is_none_of_the_session_is_an_end(child: Any, owner: Any, reason: str) -> None:
    plan = decide_past(child, owner)

    assert only_report(plan)["exit"]["reason"] == reason and plan.patches == ()


def test_the_end_of_a_task_is_kept_until_it_was_told() -> None:
    report = {**ENDED, "callId": NAME, "result": {"found": 3}}
    owner = a_parent(session="c-17")

    assert only_report(decide_past(None, owner, report=report)) == report
    assert "result" not in only_report(decide_past(None, owner, report=report, state="Delivered"))
