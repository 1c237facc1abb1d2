"""Signals: what a step ends with (engine.md §1, api.md "Signals and routes")."""

DEFAULT = "default"
END = "end"
ERROR = "error"
MAX_ITERATIONS = "max_iterations"
BUDGET_EXCEEDED = "budget_exceeded"
ABORTED = "aborted"
GUARDRAIL_VIOLATION = "guardrail_violation"
POLICY_DENIED = "policy_denied"
UNRECOVERABLE = "unrecoverable"

RESERVED_EXITS = frozenset(
    {MAX_ITERATIONS, BUDGET_EXCEEDED, ERROR, ABORTED, GUARDRAIL_VIOLATION, POLICY_DENIED, UNRECOVERABLE}
)
UNROUTED_REASON = {
    ERROR: "Error",
    ABORTED: "Aborted",
    MAX_ITERATIONS: "MaxIterations",
    BUDGET_EXCEEDED: "BudgetExceeded",
    GUARDRAIL_VIOLATION: "GuardrailViolation",
    POLICY_DENIED: "PolicyDenied",
    UNRECOVERABLE: "Unrecoverable",
}
"""Reason of a run that fails because a reserved exit is not routed; any other signal is `UnroutedSignal`."""

YAML_BOOLEANS = frozenset({"on", "off", "yes", "no", "y", "n", "true", "false"})
"""Words that YAML 1.1 turns into booleans; refused as signals."""
