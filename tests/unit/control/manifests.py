"""Manifests that are valid as they are; a test changes the one thing that it is about."""

from typing import Any

API = "pilothouse.dev/v1alpha1"
Raw = dict[str, Any]


def an_object(kind: str, name: str, spec: Raw, **metadata: Any) -> Raw:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def a_model(**changes: Any) -> Raw:
    return {"name": "scripted", "script": {"inline": "turns: []"}, "maxOutputTokens": 512, **changes}


def a_call(**changes: Any) -> Raw:
    return {"url": "https://crm.example/api/{{ customer }}", **changes}


def a_tool(**changes: Any) -> Raw:
    tool = {"name": "lookup", "description": "Looks up.", "inlineStep": {"kind": "APICall", "apiCall": a_call()}}
    return {key: value for key, value in {**tool, **changes}.items() if value is not None}


def an_mcp_server(**changes: Any) -> Raw:
    server = {"name": "gh", "transport": "StreamableHTTP", "url": "https://gh.example/mcp", **changes}
    return {key: value for key, value in server.items() if value is not None}


def a_stdio_server(**changes: Any) -> Raw:
    return an_mcp_server(transport="Stdio", url=None, **{"command": ["serve"], **changes})


def an_mcp_artifact(text: str, name: str = "gh-server") -> Raw:
    return a_config_map(name, "mcp", **{"1": text})


def with_mcp(*servers: Raw, allow: list[str] | None = None, server: str = "gh", **tool: Any) -> Raw:
    """Return an agent with a tool entry for a server."""
    entry = a_tool(name="github", inlineStep=None, mcp={"server": server, "allow": allow or ["*"]}, **tool)
    return an_agent(tools=[entry], mcpServers=list(servers))


def autonomous(**changes: Any) -> Raw:
    return {
        "mode": "Autonomous",
        "model": a_model(),
        "steering": {"inline": "Be brief."},
        "tools": [a_tool()],
        **changes,
    }


def completion(**changes: Any) -> Raw:
    return {"mode": "Completion", "model": a_model(), "prompt": {"inline": "Say hello."}, **changes}


ROUTES = {"max_iterations": "end", "budget_exceeded": "end", "aborted": "end", "unrecoverable": "end"}


def an_agent(name: str = "helper", **changes: Any) -> Raw:
    return an_object("Agent", name, autonomous(**changes))


def agent_step(step_id: str = "work", routes: Raw | None = None, **agent: Any) -> Raw:
    return {"id": step_id, "kind": "Agent", "agent": autonomous(**agent), "routes": {**ROUTES, **(routes or {})}}


def ref_step(name: str, step_id: str = "work", **routes: str) -> Raw:
    return {"id": step_id, "kind": "Agent", "agentRef": {"name": name}, "routes": {**ROUTES, **routes}}


def call_step(step_id: str = "fetch", routes: Raw | None = None, **call: Any) -> Raw:
    return {"id": step_id, "kind": "APICall", "apiCall": a_call(**call), "routes": routes or {}}


def response_step(step_id: str = "reply", path: str = "work_result", **changes: Any) -> Raw:
    return {"id": step_id, "kind": "Response", "response": {"mapping": {"answer": path}}, **changes}


def a_workflow(*steps: Raw, name: str = "triage", **spec: Any) -> Raw:
    return an_object("Workflow", name, {"steps": list(steps) or [agent_step(), response_step()], **spec})


def a_run(name: str = "triage-1", **changes: Any) -> Raw:
    spec = {"workflowRef": {"name": "triage"}, **changes}
    return an_object("AgentRun", name, {key: value for key, value in spec.items() if value is not None})


def a_config_map(name: str, artifact: str | None = None, **data: str) -> Raw:
    labels = {"pilothouse.dev/artifact": artifact} if artifact else {}
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def a_supervisor(**changes: Any) -> Raw:
    rules = [{"name": "often", "when": "ToolRepeated", "toolRepeated": {"count": 3}}]
    return an_object("Supervisor", "careful", {"rules": rules, **changes})


def a_policy_rule(name: str, **changes: Any) -> Raw:
    return {"name": name, "at": "ToolCall", "cel": "false", "verdict": "Deny", **changes}


def properties(*keys: str, **schema: Any) -> Raw:
    return {"schema": {"type": "object", "properties": {key: {} for key in keys}, **schema}}
