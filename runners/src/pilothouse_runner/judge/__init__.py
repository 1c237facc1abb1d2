"""The judge of supervisors: its prompt, its call, and the service that the operator asks (supervision.md "Judge").

A process of its own from the runner image: `python -m pilothouse_runner.judge`. `pilothouse run` asks it in its own
process by `judge.local`. What a runner's pod does belongs elsewhere, and its start imports nothing of this package.
"""
