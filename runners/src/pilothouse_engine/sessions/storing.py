"""Keeping what a run has said for the next one of its session (engine.md §11).

It follows from the journal of the run that has ended, so that doing it again, after a crash or beside another attempt,
gives the same; and a run that is in the record is not added to it twice.
"""

from collections.abc import Sequence

from pilothouse_engine.catalog import Catalog
from pilothouse_engine.ports import RawEntry, SessionCorrupt, SessionKey, Sessions, SessionsUnavailable
from pilothouse_engine.sessions.loading import key_of
from pilothouse_engine.sessions.records import Said, add_run, decode_conversation, encode_conversation
from pilothouse_engine.sessions.transcripts import read_said

MAX_RACES = 16
"""How often others may be faster; of a session one run goes on at a time, so that there are hardly any."""


async def keep_said(catalog: Catalog, entries: Sequence[RawEntry], sessions: Sessions | None, most: int) -> str | None:
    """Keep what the agent steps of a journal have said; None once all of it is kept, else why not.

    A record that cannot be read is no reason to lose what comes after it: it is told and waited for, like a store that
    is away.
    """
    if sessions is None:
        return None  # nothing was loaded either: the step has ended with that
    uid = catalog.plan.run.uid
    try:
        for step, said in read_said(catalog, entries).items():
            await keep_run(sessions, key_of(catalog, step), uid, said, most)
    except (SessionsUnavailable, SessionCorrupt) as error:
        return str(error)
    return None


async def keep_run(sessions: Sessions, key: SessionKey, uid: str, said: Said, most: int) -> None:
    """Add a run to a conversation, once; raises SessionsUnavailable, SessionCorrupt."""
    for _ in range(MAX_RACES):
        stored = await sessions.load(key)
        added = add_run(decode_conversation(stored.content), uid, said, most)
        if added is None or await sessions.replace(key, stored.version, encode_conversation(added)):
            return
    raise SessionsUnavailable(f"{MAX_RACES} other runs have stored to this session meanwhile")
