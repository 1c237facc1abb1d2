"""Letters of a fleet: only what its key sealed counts, once, in time, for its receiver, and lends nobody a name."""

import json
from typing import Any

import pytest

from pilothouse_console.access import Caller
from pilothouse_console.letters import (
    LETTER_SECONDS,
    LONGEST_LETTER_BYTES,
    SKEW_SECONDS,
    DirectiveLetter,
    FleetKey,
    Letter,
    Person,
    Porter,
    WrongKey,
    caller_from,
    is_runner,
    open_letter,
    person_of,
    seal_letter,
)

KEY = FleetKey([b"k" * 32])
NOW = 1_800_000_000.0


def letter(letter_id: str = "0" * 32, sent_at: float = NOW, **more: Any) -> Letter:
    person = Person(user="jo", groups=("staff",))
    content = DirectiveLetter(person=person, namespace="ns", name="r1", what="pause", new_id="api-1")
    return Letter(id=letter_id, sender="a", receiver="b", sent_at=sent_at, content=content, **more)


def test_what_the_key_sealed_is_opened_as_it_was() -> None:
    assert open_letter(KEY, seal_letter(KEY, letter())) == letter()


def _another_user(sealed: bytes) -> bytes:
    return sealed.replace(b'"jo"', b'"al"')


def _another_receiver(sealed: bytes) -> bytes:
    return sealed.replace(b'"receiver":"b"', b'"receiver":"c"')


@pytest.mark.parametrize(
    "forge",
    [
        _another_user,
        _another_receiver,
        lambda sealed: sealed[44:],
        lambda sealed: b"A" * 43 + b"=" + sealed[44:],
        lambda sealed: sealed[:-1],
        lambda sealed: b"",
        lambda sealed: b"\xff" * 10,
        lambda sealed: KEY.seal("row:a/ns/r1", sealed[44:]),
        lambda sealed: FleetKey([b"x" * 32]).seal("letter", sealed[44:]),
        lambda sealed: KEY.seal("letter", b"{}"),
        lambda sealed: KEY.seal("letter", b"[" * 5000),
        lambda sealed: KEY.seal("letter", json.dumps({**json.loads(sealed[44:]), "more": 1}).encode()),
        lambda sealed: KEY.seal("letter", b" " * LONGEST_LETTER_BYTES),
    ],
)
def test_what_the_key_did_not_seal_is_no_letter(forge: Any) -> None:
    assert open_letter(KEY, forge(seal_letter(KEY, letter()))) is None


def test_a_new_key_is_brought_in_beside_the_old() -> None:
    old, new = "o" * 32, "n" * 32
    both = FleetKey.read(f"{new}\n\n {old} \n")
    assert open_letter(both, seal_letter(FleetKey.read(old), letter())) == letter()
    assert open_letter(FleetKey.read(new), seal_letter(both, letter())) == letter()
    assert open_letter(FleetKey.read(old), seal_letter(both, letter())) is None


@pytest.mark.parametrize("text", ["", "\n", "short", f"{'k' * 32}\nshort"])
def test_a_key_that_can_be_guessed_is_refused(text: str) -> None:
    with pytest.raises(WrongKey, match="openssl rand"):
        FleetKey.read(text)


@pytest.mark.parametrize(
    ("sent_at", "want"),
    [
        (NOW, None),
        (NOW - LETTER_SECONDS, None),
        (NOW - LETTER_SECONDS - 1, "Expired"),
        (NOW + SKEW_SECONDS, None),
        (NOW + SKEW_SECONDS + 1, "OfTheFuture"),
    ],
)
def test_a_letter_is_let_in_while_it_is_fresh(sent_at: float, want: str | None) -> None:
    assert Porter(NOW - 1000).refuse(letter(sent_at=sent_at), NOW) == want


def test_a_letter_is_let_in_once_for_as_long_as_it_is_fresh() -> None:
    porter = Porter(NOW - 1000)
    ahead = letter(sent_at=NOW + SKEW_SECONDS)
    assert porter.refuse(ahead, NOW) is None
    for seconds in (0.0, 1.0, LETTER_SECONDS, LETTER_SECONDS + SKEW_SECONDS):
        assert porter.refuse(ahead, NOW + seconds) == "Repeated"
    assert porter.refuse(ahead, NOW + 100) == "Expired"
    assert porter.refuse(letter("1" * 32), NOW) is None


def test_what_was_sent_before_anybody_listened_is_not_let_in() -> None:
    porter = Porter(NOW)
    assert porter.refuse(letter(sent_at=NOW - 1), NOW) == "BeforeListening"
    porter.begin(NOW + 5)
    assert porter.refuse(letter("1" * 32, NOW + 4), NOW + 6) == "BeforeListening"


BOT = "system:serviceaccount:team:bot"


@pytest.mark.parametrize(
    ("person", "user", "groups"),
    [
        (Person(user="jo@example.com", groups=("staff",)), "jo@example.com", ("staff",)),
        (Person(user=BOT, groups=("system:serviceaccounts", "system:authenticated")), f"fleet:a:{BOT}", ()),
        (Person(user="kubernetes-admin", groups=("system:masters",)), "kubernetes-admin", ()),
        (Person(user="kubernetes-admin", groups=("kubeadm:cluster-admins",)), "kubernetes-admin", ()),
        (Person(user="system:admin", groups=("system:masters", "ops")), "fleet:a:system:admin", ("ops",)),
        (Person(user=f"fleet:c:{BOT}", groups=("fleet:c",)), f"fleet:a:fleet:c:{BOT}", ()),
    ],
)
def test_a_name_that_says_something_in_one_cluster_only_lends_nothing_in_another(
    person: Person, user: str, groups: tuple[str, ...]
) -> None:
    caller = caller_from("a", person)
    assert (caller.user, caller.uid, caller.extra) == (user, "", {})
    assert caller.groups == ("system:authenticated", "fleet:a", *groups)


def test_a_runner_stays_one_in_every_cluster() -> None:
    assert is_runner(Person(user="system:serviceaccount:team:prun"))
    assert not is_runner(Person(user=BOT))


def test_who_is_in_more_groups_than_a_letter_holds_is_told_of_with_the_first() -> None:
    person = person_of(Caller("jo", "u1", tuple(f"g{n}" for n in range(1000)), {"scopes": ("x",)}))
    assert (person.user, len(person.groups), person.groups[0]) == ("jo", 256, "g0")
    assert person_of(Caller("jo", "", ("g" * 1025, "g1"))).groups == ("g1",)
