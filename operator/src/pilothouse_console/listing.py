"""A page of the list: filtered, newest first, with a token that goes on where the page ended. Pure."""

import base64
import binascii
import json
from collections.abc import Iterable
from dataclasses import dataclass

from pilothouse_console.summaries import RunSummary

DEFAULT_LIMIT = 100
MOST_LIMIT = 500


class WrongToken(Exception):
    """A continue token that was not given out here."""


@dataclass(frozen=True, slots=True)
class Filter:
    """What is asked for; None is everything."""

    namespace: str | None = None
    phase: str | None = None
    workflow: str | None = None


@dataclass(frozen=True, slots=True)
class ListPage:
    """Some runs, and the token for more, None at the end."""

    items: tuple[RunSummary, ...]
    token: str | None


_Place = tuple[str, str, str, str]
"""Where a run stands in the list: when it was made, namespace, name, cluster."""


def build_page(summaries: Iterable[RunSummary], wanted: Filter, limit: int, token: str | None) -> ListPage:
    """Return a page of what the caller may see. Raises WrongToken.

    The token says where the page ended, so a run that is made or ends meanwhile makes no gap and no double.
    """
    after = _read_token(token) if token is not None else None
    meant = [one for one in summaries if _is_meant(one, wanted)]
    meant.sort(key=lambda one: _place(one)[1:])
    meant.sort(key=lambda one: one.created_at, reverse=True)
    rest = [one for one in meant if after is None or _is_after(_place(one), after)]
    items = tuple(rest[:limit])
    return ListPage(items, _make_token(_place(items[-1])) if len(rest) > limit else None)


def _is_meant(one: RunSummary, wanted: Filter) -> bool:
    return (
        wanted.namespace in (None, one.namespace)
        and wanted.phase in (None, one.phase)
        and wanted.workflow in (None, one.workflow)
    )


def _place(one: RunSummary) -> _Place:
    return (one.created_at, one.namespace, one.name, one.cluster or "")


def _is_after(place: _Place, other: _Place) -> bool:
    return place[1:] > other[1:] if place[0] == other[0] else place[0] < other[0]


def _make_token(place: _Place) -> str:
    return base64.urlsafe_b64encode(json.dumps(place, separators=(",", ":")).encode()).decode().rstrip("=")


def _read_token(token: str) -> _Place:
    try:
        place = json.loads(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError) as error:
        raise WrongToken from error
    match place:
        case [str(created), str(namespace), str(name), str(cluster)]:
            return (created, namespace, name, cluster)
        case _:
            raise WrongToken
