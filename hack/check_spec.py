"""Fail when a normative sentence of the engine has no test, or names one that does not exist; print the coverage."""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from codegen.sentences import SCRIPTS, SOURCE, Section, Sentence, TableError, read_table

ROOT = Path(__file__).resolve().parents[1]
SHORTEST_REASON = 20


@cache
def tests_of(path: Path) -> frozenset[str]:
    """Return the names of the tests of a module; none where there is no such module."""
    if not path.is_file():
        return frozenset()
    nodes = ast.walk(ast.parse(path.read_text()))
    functions = (node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(name for name in functions if name.startswith("test_"))


def faults_of(section: Section, sentence: Sentence, root: Path) -> Iterator[str]:
    """Yield what is wrong with a sentence."""
    if not re.fullmatch(rf"E{section.section}\.[1-9][0-9]*", sentence.id):
        yield f"its id is not of the form E{section.section}.<number>"
    if sentence.later:
        if sentence.tests or sentence.golden:
            yield "it has tests: leave `later` out"
        if len(sentence.why) < SHORTEST_REASON:
            yield "it belongs to later work: say why"
    elif not sentence.tests and not sentence.golden:
        yield "no test shows it: name one, or write it"
    for test in sentence.tests:
        module, _, name = test.partition("::")
        if name not in tests_of(root / module):
            yield f"there is no test {test}"
    for name in sentence.golden:
        if not (root / SCRIPTS / f"{name}.yaml").is_file():
            yield f"there is no golden run {name}"
    for name, count in Counter([*sentence.tests, *sentence.golden]).items():
        if count > 1:
            yield f"{name} stands twice"


def check(sections: list[Section], root: Path) -> list[str]:
    """Return what is wrong with the table, a line each."""
    sentences = [sentence for section in sections for sentence in section.sentences]
    wrong = [f"{name} stands {count} times" for name, count in Counter(s.id for s in sentences).items() if count > 1]
    for section in sections:
        for sentence in section.sentences:
            wrong += [f"{sentence.id}: {fault}" for fault in faults_of(section, sentence, root)]
    return wrong


def coverage(sections: list[Section]) -> str:
    """Return how many sentences are shown, in one line."""
    sentences = [sentence for section in sections for sentence in section.sentences]
    shown = [sentence for sentence in sentences if not sentence.later]
    tests = {test for sentence in shown for test in sentence.tests}
    runs = {name for sentence in shown for name in sentence.golden}
    later = Counter(sentence.later for sentence in sentences if sentence.later)
    said = ", ".join(f"{count} with {topic}" for topic, count in later.items())
    return (
        f"{len(shown)} of {len(sentences)} normative sentences are shown, by {len(tests)} tests and {len(runs)} golden"
        f" runs; {later.total()} come later ({said})"
    )


def main() -> int:
    """Check the table of this checkout."""
    try:
        sections = read_table(ROOT)
    except TableError as error:
        print(error)
        return 1
    wrong = check(sections, ROOT)
    print("\n".join([*wrong, f"look at {SOURCE}"]) if wrong else coverage(sections))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
