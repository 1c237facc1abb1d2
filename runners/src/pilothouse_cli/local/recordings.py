"""What was observed of a local run: all that its journal tells."""

from pilothouse_api import structs
from pilothouse_cli.exits import EXIT_FAILED, CliError
from pilothouse_cli.local.creation import load_plan
from pilothouse_cli.local.runs import LocalRuns
from pilothouse_cli.runs.recordings import Recording, record
from pilothouse_engine.catalog import Catalog
from pilothouse_engine.looks import looks_of_journal
from pilothouse_engine.ports import JournalCorrupt


def record_local(runs: LocalRuns, name: str) -> Recording:
    """Return all that supervision could have seen of a local run, supervised or not; raises CliError."""
    run = runs.get(name)
    plan = load_plan(runs.folder(name))
    catalog = Catalog(structs.Plan.read(plan.to_raw()), lambda endpoint: None, lambda endpoint: None, is_durable=True)
    try:
        looks = list(looks_of_journal(catalog, runs.entries(run)))
    except JournalCorrupt as error:
        raise CliError(f"the journal of run {name} is damaged: {error}", "", EXIT_FAILED) from None
    return record(run, plan, looks)
