"""Cron: the newest slot that is due, and the next one."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

_ANY_TIME = datetime(2026, 1, 1, tzinfo=UTC)


def next_slot(cron: str, zone: ZoneInfo, now: datetime) -> datetime:
    """Return the first slot after `now`; raises CronSimError for what is no cron expression."""
    return next(CronSim(cron, now.astimezone(zone))).astimezone(UTC)


def newest_slot(cron: str, zone: ZoneInfo, since: datetime, now: datetime) -> datetime | None:
    """Return the newest slot after `since` and not after `now`, or None."""
    at_now = next_slot(cron, zone, datetime.fromtimestamp(now.timestamp() - 1, UTC))
    slot = at_now if at_now <= now else next(CronSim(cron, now.astimezone(zone), reverse=True)).astimezone(UTC)
    return slot if slot > since else None


def cron_problem(cron: str) -> str | None:
    """Return why a text is no cron expression of five fields, or None."""
    if len(cron.split()) != 5:
        return f"it has {len(cron.split())} fields; it must have five"
    try:
        next(CronSim(cron, _ANY_TIME))
    except (CronSimError, StopIteration) as error:
        return f"it is no cron expression: {error}" if str(error) else "it has no slot in the next 50 years"
    return None


def is_time_zone(name: str) -> bool:
    """Tell whether there is a time zone of this name."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # not found, a path, a folder of the table
        return False
    return True
