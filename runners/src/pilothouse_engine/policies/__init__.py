"""Policy: deterministic, fail-closed rules on model and tool calls (api.md).

Given the lists that apply and one question, the strictest verdict. Which question is asked when, and what becomes
of the verdict, does not belong here.
"""
