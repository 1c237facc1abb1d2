"""The engine: how a run advances (design: engine.md).

It decides; it opens no socket, reads no wall clock and knows no Kubernetes. Everything outside reaches it through
the ports of `pilothouse_engine.ports`. Adapters live in `pilothouse_runner.adapters`, fakes in
`pilothouse_engine.testing`.
"""
