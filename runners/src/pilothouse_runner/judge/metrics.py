"""What the judge counts: by model of the table, nothing that names a run."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pilothouse_api.judging import JudgeAnswer, Verdict

PREFIX = "pilothouse_judge"
SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)


class Metrics:
    """All metrics of the process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        gauge = partial(Gauge, namespace=PREFIX, registry=self.registry)
        counter = partial(Counter, namespace=PREFIX, registry=self.registry)
        histogram = partial(Histogram, namespace=PREFIX, registry=self.registry)
        self.under_way = gauge("under_way", "Questions that are being answered.")
        self.table_refused = gauge("table_refused", "1 while the newest table of models cannot be used.")
        self.refused = counter("refused_requests", "Requests that were not asked as questions.", ["status"])
        self._answers = counter("answers", "Answers: Passed, Violated, or the type of a failure.", ["model", "answer"])
        self._tokens = counter("tokens", "Tokens, bounded from above where the endpoint did not count.", ["model"])
        self._seconds = histogram("answer_seconds", "Time of one answer.", ["model"], buckets=SECONDS)

    def count(self, model: str, answer: JudgeAnswer, seconds: float) -> str:
        """Count an answer and return what it is called; `model` must be of the table."""
        called = outcome_of(answer)
        self._answers.labels(model, called).inc()
        self._tokens.labels(model).inc(answer.tokens)
        self._seconds.labels(model).observe(seconds)
        return called


def outcome_of(answer: JudgeAnswer) -> str:
    """Return Passed, Violated, or the type of a failure."""
    if isinstance(answer, Verdict):
        return "Passed" if answer.passed else "Violated"
    return answer.type
