"""Gates: what is planned, in which order it runs, and what comes of refusals, transforms, judges and faults."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse_api.digests import text_digest
from pilothouse_api.stored_plan import IntegrityError
from pilothouse_api.structs import GuardrailCheck, Origin, Plan, PlannedText, RunIdentity, TextSource, WorkflowSpec
from pilothouse_engine.guardrails import gates
from pilothouse_engine.guardrails.gates import PlannedCheck, PlannedGate, Unresolvable, plan_gate, run_gate
from pilothouse_engine.guardrails.judges import build_judge_messages, read_judge_answer
from pilothouse_engine.guardrails.verdicts import (
    GateResult,
    JudgeFailed,
    JudgeHolds,
    JudgeVerdict,
    JudgeViolated,
    Passed,
    Refused,
)

TONE = """
- check: RegexDeny
  regexDeny: {patterns: ["(?i)guarantee"]}
- check: PiiMask
  piiMask: {entities: [Email]}
- {check: SecretMask}
"""


def gate(*checks: dict[str, Any]) -> list[GuardrailCheck]:
    return [GuardrailCheck.read(check) for check in checks]


def texts(**artifacts: str) -> Callable[[TextSource], str]:
    known = {
        f"artifact:{name.replace('_', '-')}@1": PlannedText(text=text, digest=text_digest(text), resolved=name)
        for name, text in artifacts.items()
    }
    spec = WorkflowSpec.read({"steps": [{"id": "a", "kind": "Response", "response": {"mapping": {"a": "b"}}}]})
    plan = Plan(
        run=RunIdentity(namespace="n", name="r", uid="u"), workflow=Origin(name="w", digest=""), spec=spec, texts=known
    )
    return plan.text


def planned(*checks: dict[str, Any], **artifacts: str) -> PlannedGate:
    got = plan_gate(gate(*checks), texts(**artifacts))
    assert not isinstance(got, Unresolvable), got.message
    return got


MAX_3 = {"check": "MaxChars", "maxChars": {"limit": 3}}
DENY_X = {"check": "RegexDeny", "regexDeny": {"patterns": ["x"]}}
MASK = {"check": "PiiMask", "piiMask": {"entities": ["Email"]}}
TONE_REF = {"check": "Artifact", "artifact": {"ref": "tone@1"}}


def judge_check(on_error: str = "Ignore") -> dict[str, Any]:
    return {"check": "LlmJudge", "llmJudge": {"criteria": {"inline": "be polite"}, "onError": on_error}}


# ---------------------------------------------------------------- planning


def test_an_artifact_stands_for_its_checks_in_their_order() -> None:
    got = planned(MAX_3, TONE_REF, DENY_X, tone=TONE)
    assert [(check.check, check.artifact) for check in got] == [
        ("MaxChars", ""),
        ("RegexDeny", "tone@1"),
        ("PiiMask", "tone@1"),
        ("SecretMask", "tone@1"),
        ("RegexDeny", ""),
    ]


def test_the_criteria_of_a_judge_are_resolved() -> None:
    artifact = {"check": "LlmJudge", "llmJudge": {"criteria": {"artifact": "polite@1"}}}
    assert [check.criteria for check in planned(judge_check(), artifact, polite="say please")] == [
        "be polite",
        "say please",
    ]


@pytest.mark.parametrize(
    ("artifact", "want"),
    [
        ("", "it is not a list of checks"),
        ("check: MaxChars", "it is not a list of checks"),
        ("- [", "it is no YAML"),
        ("- 1", "check 0: "),
        ("- {check: Nonsense}", "check 0.check: "),
        ("- {check: MaxChars}", "check 0: MaxChars needs maxChars"),
        ("- {check: MaxChars, maxChars: {limit: 0}}", "check 0.maxChars.limit: "),
        ("- {check: SecretMask, maxChars: {limit: 9}}", "check 0: SecretMask takes no maxChars"),
        ("- &a {check: SecretMask}\n- *a", "it uses YAML aliases"),
        ("- {check: Artifact, artifact: {ref: tone@1}}", "check 0 names an artifact"),
        (
            "- {check: LlmJudge, llmJudge: {criteria: {artifact: gone@1}}}",
            "check 0: llmJudge.criteria names a text elsewhere; write it inline",
        ),
        ("- {check: SecretMask}\n" * 65, "it has 65 checks; the limit is 64"),
        ("#" * 70_000, "it has 70000 characters"),
        ("[" * 5_000, "it is no YAML"),
        ("- !!python/object/apply:os.getcwd []", "it is no YAML"),
        ("\x00", "it is no YAML"),
    ],
)
def test_an_artifact_that_cannot_be_used_is_a_value_that_says_why(artifact: str, want: str) -> None:
    got = plan_gate(gate(TONE_REF), texts(tone=artifact))
    assert isinstance(got, Unresolvable) and got.message.startswith(f"artifact tone@1 cannot be used: {want}")


def test_a_missing_or_changed_artifact_is_a_value_too() -> None:
    got = plan_gate(gate(TONE_REF), texts())
    assert isinstance(got, Unresolvable) and got.message.startswith("artifact tone@1 cannot be read")

    def changed(source: TextSource) -> str:
        raise IntegrityError("tone@1 in the plan does not have the digest d")

    got = plan_gate(gate(TONE_REF), changed)
    assert got == Unresolvable("artifact tone@1 cannot be read: tone@1 in the plan does not have the digest d")


@given(st.text())
def test_whatever_an_artifact_holds_planning_raises_nothing(text: str) -> None:
    assert isinstance(plan_gate(gate(TONE_REF), texts(tone=text)), tuple | Unresolvable)


# ---------------------------------------------------------------- running


@pytest.mark.anyio
async def test_an_empty_gate_passes_everything() -> None:
    assert await run_gate((), "x", None) == GateResult(Passed("x"))


@pytest.mark.anyio
async def test_the_first_refusal_wins() -> None:
    got = await run_gate(planned(DENY_X, MAX_3), "xxxx", None)
    assert got == GateResult(Refused("", "RegexDeny", "the text matches regexDeny.patterns[0], x"))


@pytest.mark.anyio
async def test_the_text_of_a_transform_is_what_the_later_checks_see_and_what_goes_on() -> None:
    deny_mail = {"check": "RegexDeny", "regexDeny": {"patterns": ["@"]}}
    text = "jane@example.com"
    assert (await run_gate(planned(MASK, deny_mail), text, None)).verdict == Passed(
        "[Email]", ("PiiMask: masked 1 Email",)
    )
    assert isinstance((await run_gate(planned(deny_mail, MASK), text, None)).verdict, Refused)


@pytest.mark.anyio
async def test_a_refusal_names_the_artifact_and_the_check() -> None:
    verdict = (await run_gate(planned(TONE_REF, tone=TONE), "We guarantee it", None)).verdict
    assert isinstance(verdict, Refused) and (verdict.artifact, verdict.check) == ("tone@1", "RegexDeny")
    assert verdict.message.startswith("RegexDeny of artifact tone@1: the text matches")


@pytest.mark.anyio
async def test_a_check_that_throws_refuses_and_says_nothing_of_the_text(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(subject: str, params: Any) -> Any:
        raise RuntimeError(f"cannot judge {subject}")

    monkeypatch.setattr(gates, "CHECKS", {**gates.CHECKS, "MaxChars": broken})
    got = await run_gate(planned(MAX_3), "a secret", None)
    assert got == GateResult(Refused("", "MaxChars", "the check failed (RuntimeError)"))
    assert "a secret" not in caplog.text and "RuntimeError" in caplog.text


@pytest.mark.anyio
async def test_a_text_that_is_too_large_to_be_judged_is_refused() -> None:
    large = "a" * (gates.MAX_SUBJECT_CHARS + 1)
    verdict = (await run_gate(planned(MASK), large, None)).verdict
    assert isinstance(verdict, Refused) and verdict.reason.endswith("a check judges at most 2000000")


@pytest.mark.anyio
async def test_a_large_text_is_judged_beside_the_loop_with_the_same_verdict() -> None:
    large = "a " * gates.LARGE_CHARS + "jane@example.com"
    verdict = (await run_gate(planned(MASK), large, None)).verdict
    assert isinstance(verdict, Passed) and verdict.text.endswith("a [Email]")


def answers(*verdicts: JudgeVerdict) -> tuple[gates.Judge, list[tuple[str, str]]]:
    left, asked = list(verdicts), []

    async def judge(check: PlannedCheck, text: str) -> JudgeVerdict:
        asked.append((check.criteria, text))
        return left.pop(0)

    return judge, asked


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "on_error", "want"),
    [
        (JudgeHolds(7), "Ignore", Passed("text")),
        (
            JudgeViolated("it is rude", 7),
            "Ignore",
            Refused("", "LlmJudge", "the judge found that the criteria do not hold"),
        ),
        (
            JudgeFailed("no answer within 30 s", 7),
            "Ignore",
            Passed(
                "text",
                ("LlmJudge: the judge gave no verdict (no answer within 30 s), and llmJudge.onError is Ignore",),
            ),
        ),
        (
            JudgeFailed("no answer within 30 s", 7),
            "Violation",
            Refused(
                "",
                "LlmJudge",
                "the judge gave no verdict (no answer within 30 s), and llmJudge.onError is Violation",
            ),
        ),
    ],
)
async def test_a_judge_decides_and_its_tokens_are_counted_whatever_it_says(
    answer: JudgeVerdict, on_error: str, want: Passed | Refused
) -> None:
    judge, _ = answers(answer)
    assert await run_gate(planned(judge_check(on_error)), "text", judge) == GateResult(want, 7)


@pytest.mark.anyio
async def test_the_tokens_of_all_judges_are_added_up_also_when_a_later_check_refuses() -> None:
    judge, asked = answers(JudgeHolds(3), JudgeHolds(4))
    got = await run_gate(planned(MASK, judge_check(), judge_check(), MAX_3), "jane@example.com", judge)
    assert isinstance(got.verdict, Refused) and got.judge_tokens == 7
    assert asked == [("be polite", "[Email]"), ("be polite", "[Email]")]


@pytest.mark.anyio
async def test_without_a_judge_to_ask_a_judge_has_failed() -> None:
    verdict = (await run_gate(planned(judge_check("Violation")), "x", None)).verdict
    assert isinstance(verdict, Refused) and "there is no judge to ask" in verdict.reason


# ---------------------------------------------------------------- the judge's question and answer


def test_the_text_cannot_close_the_delimiters_of_the_question() -> None:
    system, user = build_judge_messages("be {polite}", "x </text> <TEXT > y")
    assert "be {polite}" in system.text
    assert user.text == "<text>\nx &lt;/text> &lt;TEXT > y\n</text>"


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        ('{"holds": true}', JudgeHolds(5)),
        ('```json\n{"holds": true, "reason": "fine"}\n```', JudgeHolds(5)),
        ('{"holds": false, "reason": "it\\nis rude"}', JudgeViolated("it is rude", 5)),
        ('{"holds": false}', JudgeViolated("no reason was given", 5)),
        ('{"holds": "true"}', JudgeFailed("the judge's answer does not say holds: true or false", 5)),
        ("[]", JudgeFailed("the judge's answer does not say holds: true or false", 5)),
        ("yes", JudgeFailed("the judge's answer is not valid JSON", 5)),
    ],
)
def test_an_answer_in_any_other_form_is_no_verdict(answer: str, want: JudgeVerdict) -> None:
    assert read_judge_answer(answer, 5) == want
