"""The platform's table: what is read of it, and how a wrong one is refused."""

from pathlib import Path

import pytest

from pilothouse_runner.judge.table import MAX_TABLE_BYTES, TableInvalid, load_models, parse_models

FULL = """
models:
  - name: careful
    model: openai/gpt-4.1-mini
    apiBase: https://models.example/v1
    apiKeySecretRef: {name: judge-key, key: token}
    temperature: 0
    maxOutputTokens: 400
    timeoutSeconds: 20
    answerFormat: JsonObject
  - name: played
    model: scripted
    script: |
      turns: [{text: '{"passed": true, "reason": ""}'}]
      repeat: Last
"""


def test_a_table_is_read_by_name(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(FULL)

    models = load_models(path)

    assert list(models) == ["careful", "played"]
    endpoint = models["careful"].endpoint(seconds=7)
    assert (endpoint.name, endpoint.api_base, endpoint.temperature) == (
        "openai/gpt-4.1-mini",
        "https://models.example/v1",
        0,
    )
    assert (endpoint.max_output_tokens, endpoint.timeout_seconds) == (400, 7)
    assert models["played"].answer_format == "JsonSchema"


def test_a_table_may_be_empty() -> None:
    assert parse_models("models: []") == {}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", "the table: "),
        ("models: {a: b}", "models: "),
        ("models: [{name: a}]", r"models\[0\].model: Field required"),
        ("models: [{name: '', model: openai/x}]", r"models\[0\].name: "),
        ("models: [{name: a, model: openai/x, apiBsae: y}]", r"models\[0\].apiBsae: "),
        ("models: [{name: a, model: openai/x, timeoutSeconds: 601}]", r"models\[0\].timeoutSeconds: "),
        ("models: [{name: a, model: openai/x}, {name: a, model: openai/y}]", "the table: the name a stands twice"),
        ("models: [{name: a, model: scripted}]", r"models\[0\]: model: scripted needs script"),
        ("models: [{name: a, model: openai/x, script: 'turns: []'}]", r"models\[0\]: model: scripted needs script"),
        ("models: [{name: a, model: scripted, script: 'turns: 3'}]", r"models\[0\]: script: line 1: turns"),
        ("models: [", "it is no YAML: "),
        ("models: " + "[" * 5000, "it is no YAML: |the table: |models: "),
    ],
)
def test_a_wrong_table_is_refused_with_its_field(text: str, want: str) -> None:
    with pytest.raises(TableInvalid, match=f"^{want}"):
        parse_models(text)


@pytest.mark.parametrize(
    ("content", "want"),
    [(b"\xff\xfe", "is no UTF-8 text"), (b" " * (MAX_TABLE_BYTES + 1), "has more than"), (None, "cannot be read")],
)
def test_a_file_that_is_no_table_is_named(tmp_path: Path, content: bytes | None, want: str) -> None:
    path = tmp_path / "models.yaml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(TableInvalid, match=f"{path} {want}"):
        load_models(path)


def test_a_refusal_does_not_quote_values_which_may_be_keys() -> None:
    with pytest.raises(TableInvalid) as refused:
        parse_models("models: [{name: a, model: openai/x, apiKeySecretRef: sk-very-secret}]")

    assert "sk-very" not in str(refused.value)
