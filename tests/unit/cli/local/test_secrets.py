"""Secrets and variables on a laptop."""

import sys
from pathlib import Path

import pytest

from pilothouse_api.plan import Plan
from pilothouse_cli.local.host import LocalSecrets, local_mcp_host, secret_variable
from pilothouse_engine.ports import SecretUnavailable
from pilothouse_runner.assembly import named_environment


def test_a_secret_is_a_variable_or_a_file_and_the_message_names_both(tmp_path: Path) -> None:
    (tmp_path / "llm").mkdir()
    (tmp_path / "llm" / "api-key").write_text("from a file\n")
    assert secret_variable("my.llm", "api-key") == "PILOTHOUSE_SECRET_MY_LLM_API_KEY"
    assert LocalSecrets(tmp_path, {"PILOTHOUSE_SECRET_LLM_API_KEY": "from a variable"}).read("llm", "api-key") == (
        "from a variable"
    )
    assert LocalSecrets(tmp_path, {}).read("llm", "api-key") == "from a file"
    with pytest.raises(SecretUnavailable, match=r"set PILOTHOUSE_SECRET_LLM_OTHER, or write .*/llm/other"):
        LocalSecrets(tmp_path, {}).read("llm", "other")


def test_functions_get_the_variables_that_the_template_names_and_no_others() -> None:
    plan = Plan.model_validate(
        {
            "run": {"namespace": "default", "name": "r1", "uid": "u-1"},
            "workflow": {"name": "w", "digest": "0"},
            "spec": {"steps": [{"id": "s", "kind": "Response", "response": {"mapping": {"a": "b"}}}]},
            "pod": {"env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {}}, {"name": "C"}]},
        }
    )
    assert named_environment(plan, {"B": "2", "D": "3"}) == {"A": "1", "B": "2"}


def test_programs_of_mcp_servers_get_the_means_to_run_and_no_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = {"PATH": "/opt/bin", "HOME": "/home/me", "OPENAI_API_KEY": "secret", "PILOTHOUSE_SECRET_A_B": "secret"}
    host = local_mcp_host({"REGION": "eu"}, mine)
    assert host.environment == {
        "PATH": f"{Path(sys.executable).parent}:/opt/bin",
        "HOME": "/home/me",
        "REGION": "eu",
    }
    assert (host.folder, host.is_confined, host.tokens) == (str(tmp_path), False, None)
