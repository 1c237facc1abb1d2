"""The fold, fact by fact: what each fact changes in what is known of a run, and what it leaves (engine.md §10)."""

from typing import Any

import pytest
from msgspec.structs import replace

from pilothouse_engine.account import Hold
from pilothouse_engine.facts import (
    ApprovalAnswered,
    ApprovalRequested,
    AskedCall,
    AttemptStarted,
    CallFinished,
    CallStarted,
    ChildDelivered,
    ChildRequested,
    Fact,
    JudgeAnswered,
    JudgeStarted,
    LimitsLanded,
    ModeAnswered,
    ModelFailed,
    ModelStarted,
    NoteAdded,
    ParkBegan,
    ParkEnded,
    ParkReleased,
    PolicyJudged,
    PromptMessage,
    PromptOpened,
    ReplyReceived,
    ReplyRejected,
    RunEnded,
    RunStarted,
    SteerAnswered,
    StepEntered,
    StepFinished,
    TextJudged,
    ToolSurface,
)
from pilothouse_engine.ports import Message, RequestedCall
from pilothouse_engine.state import (
    MESSAGE_OVERHEAD,
    Answer,
    Counts,
    OpenEffect,
    RunState,
    Visit,
    bytes_of,
    text_bytes,
)


def fold(*facts: Fact, state: RunState | None = None) -> RunState:
    folded = state or RunState()
    for fact in facts:
        folded.apply(fact)
    return folded


BEGUN: tuple[Fact, ...] = (RunStarted(100.0, "digest"), AttemptStarted(100.0, 1))
ENTERED: tuple[Fact, ...] = (
    *BEGUN,
    StepEntered(101.0, "work", 1, "Agent"),
    PromptOpened(101.0, (PromptMessage("system", "be kind"), PromptMessage("user", "hello"))),
)
STARTED = ModelStarted(102.0, 1, 1, "Regular", 0, 1, 40, 10, 7, script="s1")
ASKING: tuple[Fact, ...] = (*ENTERED, STARTED)


def asked(number: int, name: str = "lookup", digest: str = "d", declared: bool = True) -> AskedCall:
    return AskedCall(f"t1-{number}-{digest}", f"p{number}", name, '{"a":1}', digest, declared)


def reply(*calls: AskedCall, text: str = "", **fields: Any) -> ReplyReceived:
    return ReplyReceived(103.0, text, calls, **{"input": 30, "output": 5, "cost": 3} | fields)


def started(call: AskedCall, effect: str = "Once", at: float = 104.0) -> CallStarted:
    return CallStarted(at, call.id, call.name, effect, "key", "digest", 1)


def finished(call: AskedCall, content: str = "ok", **fields: Any) -> CallFinished:
    return CallFinished(105.0, call.id, content, **fields)


def visit_of(state: RunState) -> Visit:
    assert state.visit is not None
    return state.visit


# ---------------------------------------------------------------- time


def test_active_time_counts_between_facts_but_neither_parks_nor_what_lies_between_attempts() -> None:
    state = fold(
        RunStarted(100.0, "d"),
        AttemptStarted(100.0, 1),
        StepEntered(110.0, "work", 1, "Agent"),  # 10 s
        ParkBegan(115.0, "Paused", 1),  # 5 s
        ParkEnded(215.0, "Paused"),
        SteerAnswered(216.0, 1, "s", "NotLanded"),  # 1 s
        AttemptStarted(500.0, 2),
        SteerAnswered(502.0, 1, "t", "NotLanded"),  # 2 s
    )
    assert (state.active_seconds, state.last_at, state.length) == (18.0, 502.0, 8)


def test_a_clock_that_was_set_back_takes_no_time_away() -> None:
    state = fold(*BEGUN, StepEntered(110.0, "work", 1, "Agent"), SteerAnswered(90.0, 1, "s", "NotLanded"))
    assert (state.active_seconds, state.last_at) == (10.0, 110.0)


def test_a_run_begins_with_no_active_time() -> None:
    state = fold(RunStarted(100.0, "d"))
    assert (state.active_seconds, state.started_at, state.last_progress_at, state.plan) == (0.0, 100.0, 100.0, "d")


def test_a_park_that_could_not_be_journaled_takes_its_time_back() -> None:
    assert fold(*BEGUN, ParkEnded(130.0, "JournalLost", 110.0)).active_seconds == 10.0
    assert fold(*BEGUN, ParkEnded(130.0, "JournalLost", 90.0)).active_seconds == 0.0
    assert fold(*BEGUN, ParkEnded(130.0, "JournalLost", 140.0)).active_seconds == 30.0


def test_a_journal_that_was_lost_during_a_park_ends_no_park_and_takes_no_time_back() -> None:
    park = ParkBegan(110.0, "Paused", 1)
    state = fold(*BEGUN, park, ParkEnded(130.0, "JournalLost", 120.0))
    assert (state.active_seconds, state.park) == (10.0, park)


@pytest.mark.parametrize(
    ("facts", "want"),
    [
        ((ENTERED[2],), 100.0),
        ((*ENTERED[2:], STARTED, reply(text="x")), 103.0),
        ((*ENTERED[2:], STARTED, reply(asked(0)), finished(asked(0))), 105.0),
        ((*ENTERED[2:], StepFinished(106.0, "default")), 106.0),
        ((RunEnded(107.0, "default", "Complete"),), 107.0),
    ],
)
def test_progress_is_what_a_model_a_call_or_a_step_gave(facts: tuple[Fact, ...], want: float) -> None:
    assert fold(*BEGUN, *facts).last_progress_at == want


# ---------------------------------------------------------------- attempts and turns


def test_a_new_attempt_charges_the_lost_call_whole_and_makes_it_again() -> None:
    state = fold(*ASKING)
    assert (state.account.held, visit_of(state).account.held) == (Hold(40, 10, 7), Hold(40, 10, 7))
    tick = state.tick
    fold(AttemptStarted(200.0, 2), state=state)
    visit = visit_of(state)
    assert (state.attempt, state.tick, state.is_released) == (2, tick + 1, False)
    assert (visit.stage, visit.model, visit.failure, visit.trying_since) == ("Ready", None, None, 200.0)
    for account in (state.account, visit.account):
        assert (account.used, account.cost, account.held) == (50, 7, None)


def test_a_new_attempt_leaves_a_batch_as_it_is() -> None:
    state = fold(*ASKING, reply(asked(0)), AttemptStarted(200.0, 2))
    assert visit_of(state).stage == "Batch"
    assert visit_of(state).trying_since == 102.0


def test_a_turn_opens_with_its_first_fact_and_closes_with_its_last() -> None:
    state = fold(*ENTERED)
    assert (state.turn, state.next_turn) == (0, 1)
    fold(STARTED, state=state)
    assert (state.turn, state.next_turn, state.is_turn_open) == (1, 1, True)
    fold(reply(asked(0)), finished(asked(0)), state=state)
    assert (state.turn, state.next_turn, state.is_turn_open) == (1, 2, False)
    fold(replace(STARTED, turn=2), replace(STARTED, turn=2), state=state)
    assert state.next_turn == 2
    fold(reply(text="cut"), NoteAdded(104.0, "Continue", "go on"), state=state)
    assert state.next_turn == 3


@pytest.mark.parametrize(
    "fact",
    [
        ModeAnswered(102.0, 1, "Pause"),
        SteerAnswered(102.0, 1, "s", text="x"),
        ParkBegan(102.0, "Paused", 1),
        STARTED,
    ],
)
def test_what_lands_between_turns_opens_the_next_one(fact: Fact) -> None:
    assert fold(*ENTERED, fact).next_turn == 1
    assert fold(*ENTERED, fact).is_turn_open


@pytest.mark.parametrize(
    "fact", [ModeAnswered(102.0, 1, "Pause", "NotLanded"), SteerAnswered(102.0, 1, "s", "NotLanded")]
)
def test_what_cannot_land_opens_no_turn(fact: Fact) -> None:
    assert not fold(*ENTERED, fact).is_turn_open


def test_a_step_without_a_model_is_a_turn_of_its_own() -> None:
    state = fold(*BEGUN, StepEntered(101.0, "fetch", 1, "Function", 1))
    assert (state.turn, state.is_turn_open, visit_of(state).is_agent) == (1, True, False)
    fold(StepFinished(102.0, "default"), state=state)
    assert (state.turn, state.next_turn, state.visit) == (1, 2, None)


# ---------------------------------------------------------------- steps


def test_a_finished_visit_is_reported_with_what_it_took() -> None:
    state = fold(*ASKING, reply(text="done"), StepFinished(109.0, "resolved", {"work_result": 1}, turn_ending="Length"))
    (report,) = state.reports
    assert (report.step, report.visit, report.kind, report.started_at) == ("work", 1, "Agent", 101.0)
    assert (report.signal, report.iterations, report.tokens, report.finished_at) == ("resolved", 1, 35, 109.0)
    assert state.context == {"work_result": 1}
    assert (state.turn_ending, state.partial, state.agent_result) == ("Length", None, {"work_result": 1})
    assert (state.last_step_id, state.last_step_was_agent, state.visits) == ("work", True, 1)
    assert state.last_step is not None and state.last_step.signal == "resolved"


def test_an_abnormal_end_leaves_its_cause_in_the_engines_context() -> None:
    end = StepFinished(109.0, "error", None, "ToolTimeout", "lookup took too long", partial="so far")
    state = fold(*ASKING, end)
    assert state.engine_context == {
        "_last_error": "lookup took too long",
        "_last_error_type": "error",
        "_partial_result": "so far",
    }
    assert (state.partial, state.context) == ("so far", {})
    assert (state.account.used, state.account.held) == (50, None)


def test_a_normal_end_leaves_nothing_in_the_engines_context() -> None:
    assert fold(*ASKING, StepFinished(109.0, "resolved")).engine_context == {}


def test_the_result_of_the_run_is_the_newest_that_a_step_gave() -> None:
    state = fold(*BEGUN)
    for number, result in enumerate(({"a": 1}, {"a": 2}, None), start=1):
        fold(
            StepEntered(101.0, "tell", number, "Response", number),
            StepFinished(102.0, "default", result=result),
            state=state,
        )
    assert state.result == {"a": 2}
    assert (state.agent_result, state.last_step_was_agent) == (None, False)
    assert state.visits == 3


def test_the_context_is_encoded_anew_when_it_was_written_to() -> None:
    state = fold(*ENTERED, state=RunState(context={"a": 1}))
    assert state.context_json() == '{"a":1}'
    fold(StepFinished(109.0, "resolved", {"b": 2}), state=state)
    assert state.context_json() == '{"a":1,"b":2}'
    copy = state.seen_context()
    copy["a"] = 5
    assert state.context == {"a": 1, "b": 2}


def test_the_end_of_the_run_ends_its_park_and_charges_what_is_held() -> None:
    state = fold(*ASKING, ParkBegan(104.0, "Paused", 1), RunEnded(105.0, "error", "Error"))
    assert (state.park, state.account.used, visit_of(state).account.used) == (None, 50, 50)
    assert state.ended == RunEnded(105.0, "error", "Error")


# ---------------------------------------------------------------- control


def test_a_mode_that_landed_is_in_force_and_forgets_what_was_refused() -> None:
    state = fold(*ENTERED, ModeAnswered(102.0, 1, "Pause", "NotLanded"))
    assert (state.mode, state.refused_mode, state.refused_state) == ("Run", "Pause", "NotLanded")
    fold(ModeAnswered(103.0, 1, "Finish", reason="enough", by="ada"), state=state)
    assert (state.mode, state.mode_reason, state.mode_answer) == ("Finish", "enough", Answer("Landed", 1, 103.0))
    assert (state.refused_mode, state.refused_state, state.abort) == (None, None, None)


def test_an_abort_remembers_the_visit_that_it_met() -> None:
    abort = ModeAnswered(103.0, 1, "Abort")
    assert (fold(*ENTERED, abort).abort, fold(*ENTERED, abort).abort_visit) == (abort, 1)
    assert (fold(*BEGUN, abort).abort, fold(*BEGUN, abort).abort_visit) == (abort, None)


def test_a_steer_message_that_landed_joins_the_prompt() -> None:
    state = fold(*ENTERED, SteerAnswered(102.0, 1, "s", text="slow down"), SteerAnswered(103.0, 1, "t", "NotLanded"))
    assert visit_of(state).messages[2:] == [Message("system", "slow down")]
    assert state.steers == {"s": Answer("Landed", 1, 102.0), "t": Answer("NotLanded", 1, 103.0)}


def test_changed_limits_are_kept_with_where_they_landed() -> None:
    landed = LimitsLanded(102.0, 1, 7, {"maxIterations": 3})
    state = fold(*ENTERED, landed)
    assert state.limits_landed is landed
    assert state.limits is not None and state.limits.max_iterations == 3


def test_a_park_is_held_until_it_is_released_and_over_when_it_ends() -> None:
    park = ParkBegan(104.0, "Paused", 1)
    state = fold(*ENTERED, park)
    assert (state.park, state.is_released) == (park, False)
    fold(ParkReleased(105.0), state=state)
    assert state.is_released
    tick = state.tick
    fold(ParkEnded(109.0, "Paused"), state=state)
    assert (state.park, state.is_released, state.tick) == (None, False, tick + 1)
    assert visit_of(state).trying_since == 109.0
    assert not fold(ParkReleased(110.0), ParkBegan(111.0, "Paused", 2), state=state).is_released


def test_an_attempt_that_takes_over_a_released_park_holds_it_again() -> None:
    state = fold(*BEGUN, ParkBegan(104.0, "Paused", 1), ParkReleased(105.0), AttemptStarted(200.0, 2))
    assert (state.is_released, state.park is not None) == (False, True)


# ---------------------------------------------------------------- the model


def test_an_opened_prompt_is_ready_with_its_messages_and_their_size() -> None:
    visit = visit_of(fold(*ENTERED))
    assert visit.messages == [Message("system", "be kind"), Message("user", "hello")]
    assert (visit.stage, visit.prompt_bytes) == ("Ready", len("be kind") + len("hello") + 2 * MESSAGE_OVERHEAD)


def test_what_a_prompt_takes_at_most_is_bounded_by_its_bytes() -> None:
    calls = (RequestedCall("p", "lookup", '{"é":1}'), RequestedCall("q", "ü", "{}"))
    assert bytes_of(Message("user", "né")) == 3 + MESSAGE_OVERHEAD
    assert bytes_of(Message("assistant", "", calls)) == 6 + 8 + 2 + 2 + 3 * MESSAGE_OVERHEAD
    assert [text_bytes(text) for text in ("ab", "é", "😀", "\ud800")] == [2, 2, 4, 3]


def test_a_call_that_is_tried_again_keeps_when_trying_began() -> None:
    state = fold(*ASKING, ModelFailed(103.0, "ServerError", "no"), replace(STARTED, at=110.0, attempt=2))
    visit = visit_of(state)
    assert (visit.trying_since, visit.stage, visit.failure) == (102.0, "Calling", None)
    assert visit.model is not None and visit.model.attempt == 2


def test_a_failed_call_is_charged_what_it_says_and_asks_for_control_to_be_read() -> None:
    tick = fold(*ASKING).tick
    failed = ModelFailed(103.0, "Timeout", "no", 40, 10, 7, mark=4)
    state = fold(*ASKING, failed)
    visit = visit_of(state)
    assert (state.tick, visit.failure, visit.stage) == (tick + 1, failed, "Calling")
    for account in (state.account, visit.account):
        assert (account.input, account.output, account.cost, account.held) == (40, 10, 7, None)
    assert state.marks == {"s1": [4]}


def test_the_places_of_a_script_that_were_played_are_kept_for_each_script() -> None:
    state = fold(*ASKING, reply(asked(0), mark=0), finished(asked(0)), replace(STARTED, script="s2"))
    fold(reply(text="x", mark=3), NoteAdded(104.0, "Repair", "again"), STARTED, reply(text="y", mark=1), state=state)
    assert state.marks == {"s1": [0, 1], "s2": [3]}
    unscripted = fold(*ENTERED, replace(STARTED, script=None), reply(text="x", mark=3))
    assert unscripted.marks == {}


def test_a_reply_settles_its_hold_and_counts() -> None:
    tick = fold(*ASKING).tick
    received = reply(text="so", counted=True)
    state = fold(*ASKING, received)
    visit = visit_of(state)
    assert (state.tick, visit.replies, visit.reply, visit.failure) == (tick + 1, 1, received, None)
    for account in (state.account, visit.account):
        assert (account.input, account.output, account.cost, account.held) == (30, 5, 3, None)
    assert (visit.stage, visit.parts, visit.newest_text) == ("Replied", ["so"], "so")
    assert visit.messages[-1] == Message("assistant", "so")
    counted = visit.counted
    assert counted is not None
    assert (counted.endpoint, counted.tokens, counted.prompt_bytes, counted.had_tools) == (
        0,
        35,
        visit.prompt_bytes,
        True,
    )
    assert visit_of(fold(*ASKING, reply(text="so"))).counted is None


def test_a_reply_with_calls_opens_a_batch() -> None:
    raw = {"content": "thinking"}
    state = fold(*ASKING, reply(asked(0), asked(1, digest="e"), text="let me look", raw=raw))
    visit = visit_of(state)
    assert (visit.stage, visit.next_call, visit.parts, list(visit.call_ids)) == ("Batch", 0, [], ["t1-0-d", "t1-1-e"])
    assert [call.asked for call in visit.calls] == [asked(0), asked(1, digest="e")]
    requested = (RequestedCall("p0", "lookup", '{"a":1}'), RequestedCall("p1", "lookup", '{"a":1}'))
    assert visit.messages[-1] == Message("assistant", "let me look", requested, raw=raw)
    assert visit.raw_from == {2: 0}
    assert visit.newest_text == "let me look"


@pytest.mark.parametrize("purpose", ["WrapUp", "BudgetWrapUp", "Finish", "Completion"])
def test_calls_of_a_turn_without_tools_are_dropped_with_the_providers_form_of_them(purpose: Any) -> None:
    state = fold(
        *ENTERED, replace(STARTED, purpose=purpose), reply(asked(0), text="the end", raw={"x": 1}, counted=True)
    )
    visit = visit_of(state)
    assert (visit.stage, visit.calls, visit.parts) == ("Replied", [], ["the end"])
    assert visit.messages[-1] == Message("assistant", "the end")
    assert visit.raw_from == {}
    assert visit.counted is not None and not visit.counted.had_tools


def test_replies_are_added_up() -> None:
    state = fold(*ASKING, reply(text="a"), NoteAdded(104.0, "Repair", "again"), STARTED, reply(text="b"))
    assert visit_of(state).replies == 2


def test_a_transcript_that_was_too_long_stays_too_long_and_tighter_levels_may_fit_again() -> None:
    refused = ModelFailed(103.0, "ContextWindowExceeded", "too long")
    state = fold(*ENTERED, replace(STARTED, level="aggressive"), refused)
    assert visit_of(state).refused == {0: "aggressive"}
    fold(replace(STARTED, level="minimal"), reply(text="so"), state=state)
    assert visit_of(state).refused == {0: "full"}


def test_an_empty_reply_adds_no_message() -> None:
    visit = visit_of(fold(*ASKING, reply()))
    assert (len(visit.messages), visit.stage, visit.parts, visit.newest_text) == (2, "Replied", [""], "")


def test_a_cut_reply_is_continued_and_a_wrong_one_repaired() -> None:
    state = fold(*ASKING, reply(text="half "), NoteAdded(104.0, "Continue", "go on"))
    visit = visit_of(state)
    assert (visit.continuations, visit.repairs, visit.parts, visit.stage) == (1, 0, ["half "], "Ready")
    assert visit.messages[-1] == Message("user", "go on")
    fold(STARTED, reply(text="done"), state=state)
    assert visit.parts == ["half ", "done"]
    fold(
        NoteAdded(105.0, "Continue", "go on"),
        STARTED,
        reply(text="."),
        NoteAdded(106.0, "Repair", "wrong"),
        state=state,
    )
    assert (visit.continuations, visit.repairs, visit.parts) == (0, 1, [])
    fold(STARTED, reply(text="."), NoteAdded(106.0, "Repair", "wrong"), state=state)
    assert visit.repairs == 2


def test_a_batch_ends_a_row_of_continuations() -> None:
    state = fold(*ASKING, reply(text="half "), NoteAdded(104.0, "Continue", "go on"), STARTED, reply(asked(0)))
    assert (visit_of(state).continuations, visit_of(state).parts) == (0, [])


def test_an_answer_that_is_asked_for_again_leaves_the_prompt() -> None:
    before = visit_of(fold(*ENTERED))
    ask = replace(STARTED, purpose="Completion")
    state = fold(*ENTERED, ask, reply(text="no", raw={"x": 1}, counted=True), ReplyRejected(104.0, "no json", 0, 2))
    visit = visit_of(state)
    assert visit.next_attempt == (0, 2)
    assert (visit.messages, visit.prompt_bytes) == (before.messages, before.prompt_bytes)
    assert (visit.stage, visit.parts, visit.counted, visit.raw_from) == ("Ready", [], None, {})


# ---------------------------------------------------------------- calls


def test_a_started_call_counts_once_however_often_it_is_started() -> None:
    call = asked(0)
    state = fold(*ASKING, reply(call), started(call), started(call, at=110.0))
    visit = visit_of(state)
    assert (visit.tool_calls, state.total_tool_calls, state.tool_calls) == (1, 1, {"lookup": 1})
    assert (visit.runs_by_tool, visit.identities) == ({"lookup": 1}, {"dlookup": 1})
    newest = visit.calls[0].started
    assert newest is not None and newest.at == 110.0


def test_runs_of_a_tool_are_added_up() -> None:
    calls = [asked(0), asked(1, digest="e"), asked(2, name="other", digest="f")]
    state = fold(*ASKING, reply(*calls), *(started(call) for call in calls))
    assert visit_of(state).runs_by_tool == {"lookup": 2, "other": 1}
    assert (state.tool_calls, state.total_tool_calls) == ({"lookup": 2, "other": 1}, 3)


def test_a_call_that_was_answered_without_running_counts_but_not_as_a_run() -> None:
    call = asked(0)
    state = fold(*ASKING, reply(call), finished(call, code="tool_max_calls"))
    assert (visit_of(state).tool_calls, visit_of(state).runs_by_tool, state.tool_errors) == (1, {}, 1)


def test_a_call_that_was_not_run_because_the_batch_ended_counts_nowhere() -> None:
    call = asked(0)
    state = fold(*ASKING, reply(call), finished(call, code="tool_call_unresolved"))
    assert (visit_of(state).tool_calls, state.total_tool_calls, state.tool_errors) == (0, 0, 0)


def test_a_tool_that_does_not_exist_is_counted_without_its_name() -> None:
    call = asked(0, name="sudo", declared=False)
    state = fold(*ASKING, reply(call), finished(call, code="tool_unknown"))
    assert (state.tool_calls, state.undeclared_tool_calls, state.total_tool_calls) == ({}, 1, 1)
    fold(STARTED, reply(call), finished(call, code="tool_unknown"), state=state)
    assert (state.undeclared_tool_calls, state.total_tool_calls) == (2, 2)


def test_identical_calls_are_counted_in_the_visit_and_in_a_row() -> None:
    calls = [asked(0), asked(1), asked(2, digest="e"), asked(3)]
    state = fold(*ASKING, reply(*calls), *(finished(call) for call in calls))
    visit = visit_of(state)
    assert (visit.identities, visit.streak, state.identical_calls) == ({"dlookup": 3, "elookup": 1}, 1, 2)


def test_the_calls_of_a_visit_are_counted_for_it_alone() -> None:
    calls = [asked(0), asked(1), asked(2, name="sudo", declared=False)]
    ends = [finished(calls[0]), finished(calls[1], code="tool_error"), finished(calls[2], code="tool_unknown")]
    state = fold(*ASKING, reply(*calls), *ends)
    assert visit_of(state).counts == Counts({"lookup": 2}, 1, 2, 2)
    again = [StepFinished(105.0, "resolved"), StepEntered(106.0, "work", 2, "Agent")]
    fold(*again, ENTERED[-1], STARTED, reply(asked(0)), finished(asked(0)), state=state)
    assert visit_of(state).counts == Counts({"lookup": 1}, 0, 0, 1)
    assert (state.tool_calls, state.undeclared_tool_calls, state.tool_errors, state.identical_calls) == (
        {"lookup": 3},
        1,
        2,
        2,
    )


@pytest.mark.parametrize(
    ("effect", "fields", "settled", "unknown"),
    [
        ("ReadOnly", {}, 0, []),
        ("ReadOnly", {"is_unknown": True}, 0, []),
        ("Idempotent", {}, 1, []),
        ("Once", {}, 1, []),
        ("Once", {"is_unknown": True}, 0, [OpenEffect("t1-0-d", "lookup", 104.0)]),
    ],
)
def test_the_effect_of_a_call_that_ran_is_settled_or_unknown(
    effect: str, fields: Any, settled: int, unknown: list[OpenEffect]
) -> None:
    call = asked(0)
    running = fold(*ASKING, reply(call), started(call, effect))
    tick = running.tick
    state = fold(finished(call, **fields), state=running)
    assert (state.effects_settled, state.effects_unknown, state.tick) == (settled, unknown, tick + 1)


def test_effects_and_errors_are_added_up() -> None:
    calls = [asked(0), asked(1, digest="e")]
    facts = [fact for call in calls for fact in (started(call), finished(call, code="tool_error"))]
    state = fold(*ASKING, reply(*calls), *facts)
    assert (state.effects_settled, state.tool_errors) == (2, 2)


def test_a_visit_knows_when_it_began() -> None:
    assert visit_of(fold(*ENTERED)).started_at == 101.0


def test_a_call_that_never_ran_has_no_effect_and_moves_no_tick() -> None:
    call = asked(0)
    state = fold(*ASKING, reply(call))
    tick = state.tick
    fold(finished(call, code="tool_unknown"), state=state)
    assert (state.effects_settled, state.tick) == (0, tick)


def test_results_are_shown_in_the_order_of_the_calls_and_the_last_one_ends_the_turn() -> None:
    first, second = asked(0), asked(1, digest="e")
    state = fold(*ASKING, reply(first, second), finished(second, "two"))
    visit = visit_of(state)
    assert (visit.next_call, len(visit.messages), visit.stage) == (0, 3, "Batch")
    fold(finished(first, "one"), state=state)
    assert visit.messages[3:] == [
        Message("tool", "one", provider_id="p0", name="lookup"),
        Message("tool", "two", provider_id="p1", name="lookup"),
    ]
    assert (visit.next_call, visit.stage, state.is_turn_open) == (2, "Ready", False)
    assert visit.results == {first.id: "one", second.id: "two"}


def test_what_a_call_writes_goes_to_the_context_and_what_the_engine_notes_to_its_own() -> None:
    call = asked(0)
    state = fold(*ASKING, reply(call), started(call), finished(call, writes={"a": 1}, engine_writes={"_status": 200}))
    assert (state.context, state.engine_context) == ({"a": 1}, {"_status": 200})


def test_the_first_fatal_call_of_a_batch_is_why_the_step_ends() -> None:
    first, second = asked(0), asked(1, digest="e")
    ends = [finished(call, code="tool_error", fatal="ToolTimeout", message=call.id) for call in (first, second)]
    assert visit_of(fold(*ASKING, reply(first, second), *ends)).fatal == ends[0]


def test_a_batch_with_counted_errors_is_a_failing_one_and_each_error_counts_once_in_it() -> None:
    calls = [asked(0), asked(1, digest="e"), asked(2, name="other", digest="f")]
    codes = ("tool_error", "tool_error", "tool_call_loop_guard")
    ends = [finished(call, code=code, message="no") for call, code in zip(calls, codes, strict=True)]
    state = fold(*ASKING, reply(*calls), *ends)
    visit = visit_of(state)
    assert (visit.failing_batches, visit.same_errors) == (1, {("lookup", "tool_error", "no"): 1})
    again = asked(3, digest="g")
    fold(STARTED, reply(again), finished(again, code="tool_error", message="no"), state=state)
    assert (visit.failing_batches, visit.same_errors) == (2, {("lookup", "tool_error", "no"): 2})
    assert visit.error_types == {}
    typed = asked(5, digest="i")
    fold(STARTED, reply(typed), finished(typed, code="tool_error", message="no", error_type="Raised"), state=state)
    assert visit.error_types == {("lookup", "tool_error", "no"): "Raised"}
    assert (visit.failing_batches, visit.same_errors) == (3, {("lookup", "tool_error", "no"): 3})
    good = asked(4, digest="h")
    fold(STARTED, reply(good), finished(good), state=state)
    assert visit.failing_batches == 3


def test_the_one_call_of_a_step_of_the_graph_is_known_by_the_fact_that_names_it() -> None:
    call = CallStarted(102.0, "t1-0-d", "fetch", "Once", "key", "d", 1)
    end = CallFinished(103.0, "t1-0-d", "", signal="default", writes={"a": 1})
    state = fold(*BEGUN, StepEntered(101.0, "fetch", 1, "Function", 1), call, end)
    visit = visit_of(state)
    assert [one.asked.name for one in visit.calls] == ["fetch"]
    assert (visit.calls[0].started, visit.calls[0].finished) == (call, end)
    assert (visit.tool_calls, state.tool_calls, state.context, state.effects_settled) == (0, {}, {}, 1)
    assert visit.messages == []


# ---------------------------------------------------------------- policy and approvals


def judged(call: str = "", **fields: Any) -> PolicyJudged:
    return PolicyJudged(104.0, call, 1, "ToolCall" if call else "ModelCall", "Allow", **fields)


def test_a_policy_that_judged_the_turn_opens_it_and_is_not_asked_again() -> None:
    verdict = judged()
    state = fold(*ENTERED, verdict)
    visit = visit_of(state)
    assert (visit.verdict, visit.judged_turn, state.next_turn, state.is_turn_open) == (verdict, 1, 1, True)
    assert visit_of(fold(*ASKING)).judged_turn == 1


def test_control_is_read_again_after_a_policy_that_was_asked_outside() -> None:
    call = asked(0)
    before = fold(*ASKING, reply(call)).tick
    assert fold(*ASKING, reply(call), judged(call.id)).tick == before
    assert fold(*ASKING, reply(call), judged(call.id, is_asked=True)).tick == before + 1


def test_a_verdict_on_a_call_is_of_its_arguments_or_of_the_edited_ones() -> None:
    call = asked(0)
    request = ApprovalRequested(104.5, call.id, 1, "lookup", {}, 900.0)
    answer = ApprovalAnswered(105.0, 1, call.id, "Landed", "Approve", {"a": 2})
    first, second = judged(call.id), judged(call.id, rule="again")
    state = fold(*ASKING, reply(call), first, request, answer, second)
    (one,) = visit_of(state).calls
    assert (one.verdict, one.edit_verdict, one.approval, one.answer) == (first, second, request, answer)


def test_a_call_that_waits_for_a_person_waits_until_it_is_answered() -> None:
    call = asked(0)
    state = fold(*ASKING, reply(call), ApprovalRequested(104.5, call.id, 1, "lookup", {}, 900.0))
    visit = visit_of(state)
    assert (visit.waiting, state.requested) == (visit.calls[0], {call.id})
    fold(ApprovalAnswered(105.0, 1, call.id, "NotLanded", digest="x", message="wait"), state=state)
    assert (visit.waiting, visit.calls[0].answer) == (visit.calls[0], None)
    assert state.approvals == {call.id: Answer("NotLanded", 1, 105.0, "x", "wait")}
    fold(ApprovalAnswered(105.5, 1, call.id, "Withdrawn"), state=state)
    fold(ApprovalAnswered(105.5, 1, "other", "Withdrawn"), state=state)
    assert state.approvals == {}
    expired = ApprovalAnswered(106.0, 1, call.id, "Expired")
    fold(expired, state=state)
    assert (visit.waiting, visit.calls[0].answer) == (None, expired)


def test_a_call_that_is_answered_otherwise_waits_no_more() -> None:
    call, other = asked(0), asked(1, digest="e")
    request = ApprovalRequested(104.5, other.id, 1, "lookup", {}, 900.0)
    state = fold(*ASKING, reply(call, other), request, finished(call))
    assert visit_of(state).waiting is visit_of(state).calls[1]
    assert visit_of(fold(finished(other), state=state)).waiting is None


# ---------------------------------------------------------------- guardrails and servers


JUDGING = JudgeStarted(104.0, "output", "r1", 20, 5, 2, script="judge")


def test_a_judge_is_paid_from_the_run_and_the_visit() -> None:
    state = fold(*ASKING, reply(text="so"), JUDGING)
    visit = visit_of(state)
    assert (state.account.held, visit.account.held, visit.judge) == (Hold(20, 5, 2), Hold(20, 5, 2), JUDGING)
    tick = state.tick
    said = JudgeAnswered(105.0, "Holds", input=9, output=1, cost=1, mark=4)
    fold(said, state=state)
    for account in (state.account, visit.account):
        assert (account.used, account.cost, account.held, account.is_unpriced) == (45, 4, None, False)
    assert (visit.judge_answers, state.marks, state.tick) == ({("output", "r1"): [said]}, {"judge": [4]}, tick + 1)
    fold(JUDGING, replace(said, mark=5), state=state)
    assert state.marks == {"judge": [4, 5]}
    assert len(visit.judge_answers["output", "r1"]) == 2


@pytest.mark.parametrize(("script", "mark"), [(None, 4), ("judge", None)])
def test_a_judge_that_plays_no_script_leaves_no_mark(script: str | None, mark: int | None) -> None:
    said = JudgeAnswered(105.0, "Holds", mark=mark)
    assert fold(*ASKING, reply(text="so"), replace(JUDGING, script=script), said).marks == {}


def test_a_judge_that_was_lost_with_its_attempt_is_charged_whole() -> None:
    state = fold(*ASKING, reply(text="so"), JUDGING, AttemptStarted(200.0, 2))
    assert (state.account.used, state.account.cost, visit_of(state).stage) == (60, 5, "Replied")


def test_a_text_that_goes_on_instead_takes_the_place_of_all_that_was_judged_together() -> None:
    opened = PromptOpened(
        101.0,
        (PromptMessage("system", "be kind"), PromptMessage("user", "hello"), PromptMessage("user", "mail: a@b.c")),
    )
    state = fold(*BEGUN, ENTERED[2], replace(opened, is_gated=True))
    fold(SteerAnswered(102.0, 1, "s", text="slow down"), state=state)
    visit = visit_of(state)
    assert (visit.opening, visit.user_text, visit.is_input_judged) == (3, range(1, 3), False)
    fold(TextJudged(103.0, "input", "", "Passed", "hello, mail: [Email]"), state=state)
    want = [Message("system", "be kind"), Message("user", "hello, mail: [Email]"), Message("system", "slow down")]
    assert (visit.messages, visit.prompt_bytes) == (want, sum(bytes_of(message) for message in want))
    assert (visit.opening, visit.user_text, visit.is_input_judged) == (2, range(1, 2), True)


def test_a_text_that_passes_as_it_is_stays() -> None:
    state = fold(*ENTERED, TextJudged(103.0, "input", "", "Passed"))
    assert visit_of(state).messages == visit_of(fold(*ENTERED)).messages
    assert visit_of(state).is_input_judged


def test_a_text_that_is_refused_is_why_the_step_ends() -> None:
    refused = TextJudged(103.0, "input", "", "Refused")
    visit = visit_of(fold(*ENTERED, refused))
    assert (visit.violation, visit.is_input_judged) == (refused, False)


def test_an_answer_that_was_judged_is_that_of_its_reply_only() -> None:
    passed = TextJudged(104.0, "output", "r1", "Passed")
    state = fold(*ASKING, reply(text="so"), passed)
    assert visit_of(state).judged_answer is passed
    fold(NoteAdded(105.0, "Repair", "wrong"), replace(STARTED, turn=2), reply(text="again"), state=state)
    assert visit_of(state).judged_answer is None


@pytest.mark.parametrize(
    ("verdict", "shown", "context"),
    [
        ({}, "full", {"a": 1}),
        ({"text": "masked"}, "masked", {"a": 1}),
        ({"text": "masked", "writes": {"a": 0}}, "masked", {"a": 0}),
        ({"writes": {}}, "full", {}),
    ],
)
def test_a_gated_result_is_shown_and_written_when_it_was_judged(
    verdict: dict[str, Any], shown: str, context: dict[str, Any]
) -> None:
    call = asked(0)
    gated = replace(ENTERED[3], is_gated=True)  # type: ignore[type-var]
    state = fold(*ENTERED[:3], gated, STARTED, reply(call), finished(call, "full", writes={"a": 1}))
    visit = visit_of(state)
    assert (visit.stage, state.context, len(visit.messages)) == ("Batch", {}, 3)
    fold(TextJudged(106.0, "tools", call.id, "Passed", **verdict), state=state)
    assert (visit.messages[-1].text, state.context, visit.stage) == (shown, context, "Ready")


def test_the_tools_of_servers_are_kept_and_control_is_read_again() -> None:
    tick = fold(*ENTERED).tick
    surface = ToolSurface(102.0, ())
    state = fold(*ENTERED, surface)
    assert (visit_of(state).surface, state.tick) == (surface, tick + 1)


# ---------------------------------------------------------------- children


def child(call: str = "t1-0-d", **fields: Any) -> ChildRequested:
    return ChildRequested(104.0, call, 1, "Agent", "helper", {}, **{"hold_tokens": 100, "hold_cost": 9} | fields)


def test_a_child_is_lent_of_the_run_and_the_visit_and_gives_back_what_it_did_not_take() -> None:
    call = asked(0)
    request = child()
    state = fold(*ASKING, reply(call), request)
    visit = visit_of(state)
    for account in (state.account, visit.account):
        assert (account.lent_tokens, account.lent_cost, account.used) == (100, 9, 35)
    one = state.children[call.id]
    assert (one.request, one.visit, one.state, one.is_open, state.tasks) == (request, 1, "Awaited", True, {})
    fold(ChildDelivered(120.0, call.id, 1, "resolved", 20, 10, 4), state=state)
    for account in (state.account, visit.account):
        assert (account.lent_tokens, account.lent_cost) == (0, 0)
        assert (account.input, account.output, account.cost, account.is_unpriced) == (50, 15, 7, False)
    assert (one.state, one.is_open, state.last_progress_at) == ("Delivered", False, 120.0)
    assert len(visit.messages) == 3


def test_a_child_of_which_nobody_knows_the_cost_makes_the_cost_unknown() -> None:
    call = asked(0)
    unbounded = child(hold_tokens=None, hold_cost=None)
    state = fold(*ASKING, reply(call), unbounded, ChildDelivered(120.0, call.id, 1, "resolved", 1, 1, None))
    assert (state.account.lent_tokens, state.account.cost, state.account.is_unpriced) == (0, 3, True)


def test_a_task_in_the_background_is_told_once_by_a_note_that_opens_a_turn() -> None:
    call = asked(0)
    state = fold(*ASKING, reply(call), child(is_background=True), finished(call, "begun"))
    visit = visit_of(state)
    assert (list(state.tasks), state.children[call.id].state) == ([call.id], "Background")
    fold(ChildDelivered(120.0, call.id, 2, "resolved", 20, 10, 4, "all of it", "it has ended"), state=state)
    assert (state.tasks, state.is_turn_open, state.turn) == ({}, True, 2)
    assert visit.messages[-1] == Message("user", "it has ended")
    assert visit.results == {call.id: "begun", f"{call.id}-end": "all of it"}


@pytest.mark.parametrize("end", [StepFinished(110.0, "resolved"), RunEnded(110.0, "error", "Error")])
def test_tasks_that_outlive_their_step_are_charged_whole_and_listed(end: Fact) -> None:
    call = asked(0)
    state = fold(*ASKING, reply(call), child(is_background=True), finished(call), end)
    assert (state.children[call.id].state, state.tasks) == ("Abandoned", {})
    assert (state.account.input, state.account.output, state.account.cost) == (130, 5, 12)
    assert (state.account.lent_tokens, state.account.lent_cost) == (0, 0)
    assert state.effects_unknown == [OpenEffect(call.id, "helper", 104.0)]


def test_a_visit_that_began_later_pays_nothing_for_a_child_of_another() -> None:
    call = asked(0)
    state = fold(*ASKING, reply(call), child(), StepEntered(111.0, "work", 2, "Agent"))
    fold(ChildDelivered(120.0, call.id, 2, "resolved", 20, 10, 4), state=state)
    assert (visit_of(state).account.used, visit_of(state).account.lent_tokens) == (0, 0)
    assert state.account.used == 65


def test_a_call_that_ends_before_its_child_does_not_wait_for_it() -> None:
    call = asked(0)
    state = fold(*ASKING, reply(call), child(hold_tokens=None), finished(call, code="tool_call_unresolved"))
    assert (state.children[call.id].state, state.children[call.id].is_open) == ("Abandoned", False)
    assert (state.account.used, state.account.cost, state.effects_unknown) == (35, 12, [])


def test_a_call_that_ends_after_its_child_takes_nothing_more() -> None:
    call = asked(0)
    delivered = ChildDelivered(120.0, call.id, 1, "resolved", 20, 10, 4)
    state = fold(*ASKING, reply(call), child(), delivered, finished(call))
    assert (state.children[call.id].state, state.account.used) == ("Delivered", 65)


@pytest.mark.parametrize(
    ("facts", "want"),
    [
        ([ParkBegan(110.0, "Paused", 1), ParkEnded(170.0, "Paused")], 160.0),
        ([ParkEnded(170.0, "JournalLost", 110.0)], 160.0),
        ([ParkBegan(110.0, "Paused", 1), ParkEnded(150.0, "JournalLost", 120.0), ParkEnded(170.0, "Paused")], 160.0),
        ([ParkEnded(170.0, "JournalLost", 90.0)], 170.0),
    ],
    ids=["parked", "journal away", "journal away while parked", "journal away since before the progress"],
)
def test_parked_time_is_not_without_progress(facts: list[Fact], want: float) -> None:
    state = RunState(last_progress_at=100.0)
    for fact in facts:
        state.apply(fact)
    assert state.last_progress_at == want
