"""What `init` writes: a workflow that runs as it is, its scripted model, and a test."""

from collections.abc import Mapping
from pathlib import Path

from pilothouse_cli.exits import EXIT_FAILED, CliError

WORKFLOW = """\
apiVersion: pilothouse.dev/v1alpha1
kind: Workflow
metadata:
  name: hello
spec:
  description: Looks up the weather of a city and says what to wear.
  input:
    schema:
      type: object
      required: [city]
      properties: {city: {type: string}}
    defaults: {city: Utrecht}
  steps:
    - id: advise
      kind: Agent
      agentRef: {name: adviser}
      routes: {advice: reply, unknown_city: give-up, max_iterations: give-up, budget_exceeded: give-up,
               unrecoverable: give-up, error: give-up, aborted: end}
    - id: weather
      kind: Function
      description: Returns the weather of a city.
      toolOnly: true
      effect: ReadOnly
      function:
        callable: weather:look_up
        source: {configMapKeyRef: {name: hello-code, key: weather.py}}
        output: weather
    - id: reply
      kind: Response
      response: {mapping: {advice: advice.text}}
      routes: {default: end}
    - id: give-up
      kind: Response
      response: {mapping: {error: _last_error}}
  limits: {tokenBudget: 20000}
"""

AGENT = """\
apiVersion: pilothouse.dev/v1alpha1
kind: Agent
metadata:
  name: adviser
spec:
  description: Says what to wear.
  mode: Autonomous
  model:
    # A script is played instead of a provider. For a real one: name: openai/gpt-4.1-mini,
    # apiKeySecretRef: {name: llm, key: api-key}, and export PILOTHOUSE_SECRET_LLM_API_KEY.
    name: scripted
    script: {configMapKeyRef: {name: hello-script, key: adviser.yaml}}
    maxOutputTokens: 512
  steering: {inline: "You advise people what to wear. Look up the weather before you answer."}
  tools:
    - name: weather
      step: weather
      parameters:
        type: object
        properties: {city: {type: string}}
        required: [city]
  outcome: {enum: [advice, unknown_city], write: advice}
  limits: {maxIterations: 5, tokenBudget: 10000}
"""

TEXTS = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: hello-code
data:
  weather.py: |
    \"\"\"A stand-in for a weather service.\"\"\"


    def look_up(arguments):
        \"\"\"Return the weather of a city.\"\"\"
        return {"city": arguments["city"], "sky": "rain", "celsius": 11}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: hello-script
data:
  adviser.yaml: |
    turns:
      - text: I look up the weather first.
        toolCalls: [{name: weather, arguments: {city: Utrecht}}]
        usage: {input: 210, output: 24}
        delaySeconds: 0.5
      - text: '{"outcome": "advice", "result": {"text": "Take a coat: it rains at 11 degrees."}}'
        usage: {input: 290, output: 31}
        delaySeconds: 0.5
    repeat: None
"""

TEST = '''\
"""Runs the workflow with its scripted model: no key, no network. `python -m pytest`, or `python test_hello.py`."""

import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def test_hello_ends_with_advice():
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "pilothouse_cli", "run", str(HERE), "-o", "json"],
            cwd=folder, capture_output=True, text=True,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"]["result"] == {"advice": "Take a coat: it rains at 11 degrees."}


if __name__ == "__main__":
    test_hello_ends_with_advice()
    print("passed")
'''

FILES: Mapping[str, str] = {
    "workflow.yaml": WORKFLOW,
    "agent.yaml": AGENT,
    "texts.yaml": TEXTS,
    "test_hello.py": TEST,
}


def write_starter(folder: Path) -> list[Path]:
    """Write the files into a folder that has none of them; return their paths. Raises CliError."""
    taken = [name for name in FILES if (folder / name).exists()]
    if taken:
        raise CliError(f"{folder / taken[0]} exists already", "name another folder: pilothouse init DIR")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in FILES.items():
            (folder / name).write_text(text)
    except OSError as error:
        raise CliError(f"cannot write to {folder}: {error.strerror}", "", EXIT_FAILED) from None
    return [folder / name for name in FILES]
