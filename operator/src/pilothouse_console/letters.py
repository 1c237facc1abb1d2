"""What the clusters of a fleet tell each other: sealed by the fleet's key, to one receiver, for a moment. Pure.

Whoever can write to the fleet's Redis can put anything there, and could name anybody: what counts is only what the key
has sealed. A seal binds the purpose too, so that a row is no letter and the row of one run none of another.
"""

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from pilothouse_console.access import Caller
from pilothouse_console.answers import DirectiveAnswer
from pilothouse_console.orders import What
from pilothouse_console.problems import ProblemDetails

SHORTEST_KEY_BYTES = 32
LETTER_SECONDS = 30.0
"""How long a letter may be on its way."""
SKEW_SECONDS = 10.0
"""By how much a sender's clock may be ahead."""
LONGEST_LETTER_BYTES = 256 * 1024
MOST_GROUPS = 256
LONGEST_GROUP = 1024
_SEAL_LENGTH = 44
CLUSTER_NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


class WrongKey(Exception):
    """The keys of the fleet cannot be read, or one is too short to be one."""


class FleetKey:
    """Seals and opens. The first key seals and all of them open, so that a new one can be brought in beside the old."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        for key in keys or (b"",):
            if len(key) < SHORTEST_KEY_BYTES:
                what = f"a key of the fleet has {len(key)} bytes; it needs {SHORTEST_KEY_BYTES}"
                raise WrongKey(f"{what}: openssl rand -hex 32")
        self._keys = tuple(keys)

    @staticmethod
    def read(text: str) -> "FleetKey":
        """Return the keys of a file, one a line; raises WrongKey."""
        return FleetKey([line.strip().encode() for line in text.splitlines() if line.strip()])

    def seal(self, purpose: str, body: bytes) -> bytes:
        """Return a body with its seal before it."""
        return _mac(self._keys[0], purpose, body) + body

    def open(self, purpose: str, sealed: bytes) -> bytes | None:
        """Return the body of what was sealed for this purpose, None for all else."""
        seal, body = sealed[:_SEAL_LENGTH], sealed[_SEAL_LENGTH:]
        return body if any(hmac.compare_digest(seal, _mac(key, purpose, body)) for key in self._keys) else None


def _mac(key: bytes, purpose: str, body: bytes) -> bytes:
    text = f"pilothouse-fleet-1:{len(purpose)}:{purpose}:".encode() + body
    return urlsafe_b64encode(hmac.digest(key, text, sha256))


# ---------------------------------------------------------------- letters


class Told(BaseModel):
    """Base of what is told."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class Person(Told):
    """Who asks, as the sender's API server knows them."""

    user: Annotated[str, Field(min_length=1, max_length=4096)]
    """User name."""
    groups: Annotated[tuple[Annotated[str, Field(max_length=LONGEST_GROUP)], ...], Field(max_length=MOST_GROUPS)] = ()
    """Groups."""


class DirectiveLetter(Told):
    """A directive for a run of the receiver."""

    kind: Literal["Directive"] = "Directive"
    person: Person
    """Who gives it."""
    namespace: Annotated[str, Field(max_length=63)]
    """Namespace of the run."""
    name: Annotated[str, Field(max_length=63)]
    """Its name."""
    what: What
    """What is asked: the last part of the call's path."""
    order: dict[str, Any] = {}
    """The call's body."""
    new_id: Annotated[str, Field(max_length=63)]
    """Id of a steer message that names none: made by the sender, so that a letter that comes twice steers once."""
    wait: Annotated[float, Field(ge=0, le=60)] = 0
    """Seconds to wait for the landing."""


class GivenLetter(Told):
    """What became of a directive: one of the two."""

    kind: Literal["Given"] = "Given"
    of: str
    """Id of the letter that it answers."""
    answer: DirectiveAnswer | None = None
    """It was written."""
    refusal: ProblemDetails | None = None
    """It was not."""


class SightLetter(Told):
    """The question, the runs of which namespaces of the receiver somebody may list."""

    kind: Literal["Sight"] = "Sight"
    person: Person
    """Who."""


class SeenLetter(Told):
    """The answer to it."""

    kind: Literal["Seen"] = "Seen"
    of: str
    """Id of the letter that it answers."""
    namespaces: tuple[str, ...] | None
    """Namespaces; None: all."""


Content = Annotated[DirectiveLetter | GivenLetter | SightLetter | SeenLetter, Field(discriminator="kind")]


class Letter(Told):
    """One letter."""

    id: Annotated[str, Field(min_length=16, max_length=64)]
    """Tells it from every other."""
    sender: Annotated[str, Field(pattern=CLUSTER_NAME)]
    """Cluster that sends it."""
    receiver: Annotated[str, Field(pattern=CLUSTER_NAME)]
    """Cluster that it is for."""
    sent_at: float
    """When, seconds since the epoch."""
    content: Content
    """What it says."""


_LETTER = TypeAdapter(Letter)
_PURPOSE = "letter"


def seal_letter(key: FleetKey, letter: Letter) -> bytes:
    """Return a letter as it goes over the channel."""
    return key.seal(_PURPOSE, letter.model_dump_json(by_alias=True).encode())


def open_letter(key: FleetKey, sealed: bytes) -> Letter | None:
    """Return the letter, None for what is none or was not sealed by the fleet's key."""
    if len(sealed) > LONGEST_LETTER_BYTES:
        return None
    body = key.open(_PURPOSE, sealed)
    try:
        return _LETTER.validate_json(body) if body is not None else None
    except ValidationError:
        return None  # of a version that says more than this one understands


class Porter:
    """Lets each letter in once, and only while it is fresh.

    What came before this process listened is refused: it cannot know whether another one has done it.
    """

    def __init__(self, since: float) -> None:
        self._since = since
        self._seen: dict[str, float] = {}

    def begin(self, since: float) -> None:
        """Listen from now on (again)."""
        self._since = since

    def refuse(self, letter: Letter, now: float) -> str | None:
        """Return why a letter is not let in, None where it is, which happens once."""
        for known in [known for known, ends in self._seen.items() if ends < now]:
            del self._seen[known]
        if letter.id in self._seen:
            return "Repeated"
        if letter.sent_at > now + SKEW_SECONDS:
            return "OfTheFuture"  # the clocks of the clusters differ
        if now > letter.sent_at + LETTER_SECONDS:
            return "Expired"
        if letter.sent_at < self._since:
            return "BeforeListening"
        self._seen[letter.id] = letter.sent_at + LETTER_SECONDS + SKEW_SECONDS
        return None


# ---------------------------------------------------------------- who somebody of another cluster is here


def person_of(caller: Caller) -> Person:
    """Return a caller as other clusters are told of them."""
    groups = [group for group in caller.groups if len(group) <= LONGEST_GROUP]
    return Person(user=caller.user, groups=tuple(groups[:MOST_GROUPS]))


_OF_ONE_CLUSTER = ("system:", "kubeadm:", "fleet:")
"""Names that say something in one cluster only: its ServiceAccounts, its nodes, its administrators."""


def caller_from(sender: str, person: Person) -> Caller:
    """Return who a person of another cluster is here.

    The clusters of a fleet share their people: a name of the identity provider means the same everywhere. What a
    cluster has made itself does not: `system:serviceaccount:team:bot` of cluster a is the user
    `fleet:a:system:serviceaccount:team:bot` here, and its own groups are left behind. All are in group `fleet:a`.
    """
    user = person.user
    if user.startswith(_OF_ONE_CLUSTER):
        user = f"fleet:{sender}:{user}"
    groups = [group for group in person.groups if not group.startswith(_OF_ONE_CLUSTER)]
    return Caller(user=user, groups=("system:authenticated", f"fleet:{sender}", *groups))


def is_runner(person: Person) -> bool:
    """Tell whether this is the account of a runner of the other cluster: an agent steers no run, and none elsewhere."""
    return Caller(user=person.user).is_runner
