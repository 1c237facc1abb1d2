"""The calls of the operator API: parse, check the caller's rights, look or give, answer."""

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Body, Depends, FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from pilothouse_api import __version__
from pilothouse_console.access import Access, Caller
from pilothouse_console.answers import DirectiveAnswer, Looks, Result, RunList, RunView, Trace, landing_of
from pilothouse_console.event_stream import EventStream, Viewer
from pilothouse_console.fleet import Fleet, Horizon
from pilothouse_console.leaving import while_there
from pilothouse_console.letters import CLUSTER_NAME
from pilothouse_console.listing import DEFAULT_LIMIT, MOST_LIMIT, Filter, WrongToken, build_page
from pilothouse_console.looks import read_looks
from pilothouse_console.metrics import Metrics
from pilothouse_console.orders import (
    MODES,
    ApprovalOrder,
    LimitsOrder,
    Mode,
    ModeOrder,
    Order,
    SteerOrder,
    What,
    plan_order,
)
from pilothouse_console.picture import Entry, Picture
from pilothouse_console.problems import PROBLEM_JSON, TITLES, AnyJson, Problem, ProblemDetails, WrongField, away
from pilothouse_console.redis_store import RedisAway, RedisStore
from pilothouse_console.results import read_result
from pilothouse_console.rights import Guard
from pilothouse_console.steering import Steering
from pilothouse_console.streams import Streams, end_id, trace_of
from pilothouse_console.summaries import RunSummary
from pilothouse_console.traces import merge
from pilothouse_console.watching import Watching
from pilothouse_control.directives import Answer

MOST_WAIT_SECONDS = 60
Call = TypeVar("Call", bound=Callable[..., Any])
RUN_PATH = "/api/agents/runs/{namespace}/{name}"


@dataclass(frozen=True, slots=True)
class Services:
    """What the calls work with."""

    picture: Picture
    watching: Watching
    guard: Guard
    steering: Steering
    metrics: Metrics
    access: Access
    streams: Streams
    store: RedisStore | None
    heartbeat_seconds: float
    fleet: Fleet | None = None


class ListQuery(BaseModel):
    """What a list is asked with."""

    model_config = ConfigDict(extra="forbid")

    namespace: Annotated[str | None, Field(min_length=1, max_length=63)] = None
    """Runs of this namespace; without it those of every namespace whose runs the caller may list."""
    phase: Annotated[str | None, Field(min_length=1, max_length=64)] = None
    """Runs in this phase."""
    workflow: Annotated[str | None, Field(min_length=1, max_length=253)] = None
    """Runs of this Workflow."""
    cluster: Annotated[str | None, Field(pattern=CLUSTER_NAME)] = None
    """Runs of this cluster of the fleet; without it those of all."""
    limit: Annotated[int, Field(ge=1, le=MOST_LIMIT)] = DEFAULT_LIMIT
    """Most runs of the page."""
    token: Annotated[str | None, Field(alias="continue", min_length=1, max_length=1024)] = None
    """`nextToken` of the page before."""


class TraceQuery(BaseModel):
    """How much of a trace is wanted."""

    model_config = ConfigDict(extra="forbid")

    limit: Annotated[int, Field(ge=1, le=1000)] = 200
    """Most frames, the newest ones."""


class WaitQuery(BaseModel):
    """How long a directive is waited for."""

    model_config = ConfigDict(extra="forbid")

    wait: Annotated[float, Field(ge=0, le=MOST_WAIT_SECONDS)] = 0
    """Seconds to wait for the landing; 0: answer as soon as it is written."""
    cluster: Annotated[str | None, Field(pattern=CLUSTER_NAME)] = None
    """Cluster of the run, where it is another one of the fleet."""


class NoQuery(BaseModel):
    """Nothing can be asked besides the path."""

    model_config = ConfigDict(extra="forbid")


def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


CallerOf = Annotated[Caller, Depends(_caller)]


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    content = {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
    return {status: {"description": TITLES[status], "content": content} for status in (401, 503, *statuses)}


def build_app(services: Services) -> FastAPI:
    """Return the application without its gate: `request.state.caller` is who calls."""
    app = FastAPI(
        title="Pilothouse operator API",
        version=__version__,
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
    )
    app.add_exception_handler(Problem, _answer_problem)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)
    _add_reads(app, services)
    _add_story(app, services)
    _add_directives(app, services)
    _describe(app)
    return app


def _add_reads(app: FastAPI, services: Services) -> None:
    @app.get("/api/agents/runs", responses=_refusals(400, 403, 404, 422, 429), response_model_exclude_none=True)
    async def list_runs(caller: CallerOf, query: Annotated[ListQuery, Query()]) -> RunList:
        """List runs, newest first: of this cluster out of its API server's watch, of others as their clusters say."""
        if not services.watching.is_synced:
            raise away("runs have not been listed yet")
        return await _list(services, caller, query)

    @app.get(RUN_PATH, response_model=RunView, responses=_refusals(404, 422))
    async def get_run(caller: CallerOf, namespace: str, name: str, query: Annotated[NoQuery, Query()]) -> Response:
        """Show one run."""
        entry = await services.guard.seen(caller, namespace, name)
        may = await services.guard.rights(caller, entry.key)
        view = RunView(summary=entry.summary, object=entry.read(), may=may, is_live=services.watching.is_live)
        return _any_json(view)


def _add_story(app: FastAPI, services: Services) -> None:
    @app.get(f"{RUN_PATH}/trace", response_model=Trace, responses=_refusals(404, 422))
    async def get_trace(caller: CallerOf, namespace: str, name: str, query: Annotated[TraceQuery, Query()]) -> Response:
        """Show what happened: the runner's frames and what supervision did, by time."""
        entry = await services.guard.seen(caller, namespace, name)
        frames, origin = await _read_frames(services, entry, query.limit)
        status = entry.read().get("status") or {}
        return _any_json(Trace(items=merge(frames, status.get("supervision")), origin=origin))

    @app.get(f"{RUN_PATH}/observations", response_model=Looks, responses=_refusals(404, 422))
    async def get_observations(
        caller: CallerOf, namespace: str, name: str, query: Annotated[NoQuery, Query()]
    ) -> Response:
        """Show what supervision saw of a run, for a replay with another supervisor."""
        return _any_json(await read_looks(await services.guard.seen(caller, namespace, name), services.store))

    @app.get(f"{RUN_PATH}/results/{{result_id}}", response_model=Result, responses=_refusals(404, 410, 413, 422))
    async def get_result(
        caller: CallerOf, namespace: str, name: str, result_id: str, query: Annotated[NoQuery, Query()]
    ) -> Response:
        """Show the result of a run, a large one too."""
        entry = await services.guard.seen(caller, namespace, name)
        return _any_json(await read_result(entry, result_id, services.store))

    events: dict[int | str, dict[str, Any]] = {
        200: {"description": "Server-sent events", "content": {"text/event-stream": {"schema": _EVENT}}},
        204: {"description": "There is no more"},
    }
    refusals = _refusals(404, 422, 429)

    @app.get(f"{RUN_PATH}/events", responses=events | refusals, response_class=Response)
    async def get_events(
        request: Request,
        caller: CallerOf,
        namespace: str,
        name: str,
        query: Annotated[NoQuery, Query()],
        last_event_id: Annotated[str | None, Header(max_length=128)] = None,
    ) -> Response:
        """Follow a run: `run` (its line in a list), `frame`, `gap` (frames are lost), `end`.

        Who comes back with the id of the last event goes on behind it; 204 after `end`.
        """
        entry = await services.guard.seen(caller, namespace, name)
        if last_event_id == end_id(entry.uid):
            return Response(status_code=204)
        viewer = Viewer(services.access, request.state.token, caller, entry.key)
        return EventStream(services.streams, viewer, entry, last_event_id, services.metrics, services.heartbeat_seconds)


_EVENT = {
    "type": "object",
    "properties": {
        "event": {"enum": ["run", "frame", "gap", "end"]},
        "data": {"type": "string", "description": "JSON: of run a RunSummary, of frame the frame."},
        "id": {"type": "string", "description": "Send the last one as Last-Event-ID to go on behind it."},
    },
}


def _any_json(answer: RunView | Trace | Result | Looks) -> Response:
    """Return the answer with what runs wrote, whatever that is."""
    return AnyJson(_plain(answer))


def _plain(value: Any) -> Any:
    """Return models as dictionaries and all else as it is: pydantic writes nothing that is nested 255 deep."""
    if isinstance(value, BaseModel):
        return {type(value).model_fields[name].alias or name: _plain(one) for name, one in value if one is not None}
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


async def _read_frames(
    services: Services, entry: Entry, limit: int
) -> tuple[list[dict[str, Any]], Literal["Stream", "Status"]]:
    """Return the newest frames: of the stream in Redis, else, as while it is away, those in the run's status."""
    if services.store is not None:
        try:
            frames = await services.store.newest_frames(entry.key.namespace, entry.uid, limit)
        except RedisAway:
            frames = []
        if frames:
            return [json.loads(frame.text) for frame in frames], "Stream"
    return trace_of(entry)[-limit:], "Status"


async def _list(services: Services, caller: Caller, query: ListQuery) -> RunList:
    fleet = services.fleet
    name = fleet.cluster if fleet is not None else None
    if query.cluster is not None and fleet is None:
        raise _no_fleet(query.cluster)
    is_own_meant = query.cluster in (None, name)
    own, refusal = await _list_own(services, caller, query.namespace) if is_own_meant else ([], None)
    is_other_meant = fleet is not None and (query.cluster is None or not is_own_meant)
    if refusal is not None and not is_other_meant:
        raise refusal
    horizon = await fleet.horizon(caller, query.cluster) if fleet is not None else Horizon()
    wanted = Filter(query.namespace, query.phase, query.workflow)
    try:
        page = build_page([*own, *(horizon.rows if is_other_meant else ())], wanted, query.limit, query.token)
    except WrongToken:
        raise Problem(400, "continue is no token of this list", "send nextToken as it was given") from None
    if refusal is not None and not page.items:
        raise refusal  # neither here nor elsewhere may the caller list that namespace, or nothing is there
    items = tuple(one if one.cluster else one.model_copy(update={"cluster": name}) for one in page.items)
    return RunList(
        items=items,
        next_token=page.token,
        is_live=services.watching.is_live,
        degraded=None if fleet is None else horizon.is_degraded,
        clusters=None if fleet is None else horizon.clusters,
    )


async def _list_own(
    services: Services, caller: Caller, namespace: str | None
) -> tuple[list[RunSummary], Problem | None]:
    """Return the runs of this cluster that the caller may list, and the refusal of a namespace that they may not."""
    try:
        allowed = await services.guard.visible_namespaces(caller, namespace)
    except Problem as problem:
        if problem.status != 404:
            raise
        return [], problem
    seen = (entry.summary for entry in services.picture.entries())
    return [one for one in seen if allowed is None or one.namespace in allowed], None


def _no_fleet(cluster: str) -> Problem:
    what = f"there is no cluster {cluster!r}: this operator API is of no fleet"
    return Problem(404, what, "leave cluster out, or set the chart's fleet.redisUrl")


def _add_directives(app: FastAPI, services: Services) -> None:
    def post(path: str) -> Callable[[Call], Call]:
        refusals = _refusals(400, 403, 404, 409, 413, 422)
        accepted: dict[int | str, dict[str, Any]] = {202: {"description": "Written", "model": DirectiveAnswer}}
        return app.post(f"{RUN_PATH}/{path}", responses=accepted | refusals, response_model_exclude_none=True)

    def add_mode(path: What, mode: Mode) -> None:
        @post(path)
        async def set_mode(
            request: Request,
            caller: CallerOf,
            namespace: str,
            name: str,
            query: Annotated[WaitQuery, Query()],
            response: Response,
            order: Annotated[ModeOrder | None, Body()] = None,
        ) -> DirectiveAnswer:
            post = _Post(request, caller, namespace, name, path, order or ModeOrder(), query)
            return await _give(services, post, response)

        set_mode.__doc__ = f"Ask the run for mode {mode}."

    for path, mode in MODES.items():
        add_mode(path, mode)

    @post("steer")
    async def steer(
        request: Request,
        caller: CallerOf,
        namespace: str,
        name: str,
        query: Annotated[WaitQuery, Query()],
        order: SteerOrder,
        response: Response,
    ) -> DirectiveAnswer:
        """Hand the model a message at the next turn boundary."""
        return await _give(services, _Post(request, caller, namespace, name, "steer", order, query), response)

    @post("approve")
    async def approve(
        request: Request,
        caller: CallerOf,
        namespace: str,
        name: str,
        query: Annotated[WaitQuery, Query()],
        order: ApprovalOrder,
        response: Response,
    ) -> DirectiveAnswer:
        """Approve or deny a call that waits for a person."""
        return await _give(services, _Post(request, caller, namespace, name, "approve", order, query), response)

    @post("limits")
    async def limits(
        request: Request,
        caller: CallerOf,
        namespace: str,
        name: str,
        query: Annotated[WaitQuery, Query()],
        order: LimitsOrder,
        response: Response,
    ) -> DirectiveAnswer:
        """Change limits of the run."""
        return await _give(services, _Post(request, caller, namespace, name, "limits", order, query), response)


@dataclass(frozen=True, slots=True)
class _Post:
    request: Request
    caller: Caller
    namespace: str
    name: str
    what: What
    order: Order | LimitsOrder
    query: WaitQuery


async def _give(services: Services, post: _Post, response: Response) -> DirectiveAnswer:
    fleet, cluster = services.fleet, post.query.cluster
    if cluster is None or (fleet is not None and cluster == fleet.cluster):
        answer = await _give_here(services, post)
    elif fleet is None:
        raise _no_fleet(cluster)
    else:
        order = post.order.model_dump(mode="json", by_alias=True, exclude_unset=True)
        run = (post.namespace, post.name)
        giving = fleet.give(post.caller, cluster, run, post.what, order, post.query.wait)
        given = await while_there(post.request.receive, giving, None)
        if given is None:
            raise away("the caller has left")  # nobody reads it; what was sent to the other cluster stands
        answer = given
    landing = answer.landing
    response.status_code = 200 if landing is not None and landing.state not in ("Waiting", "Kept") else 202
    return answer


async def _give_here(services: Services, post: _Post) -> DirectiveAnswer:
    by, wait = post.caller.user, post.query.wait
    key = await services.guard.steerable(post.caller, post.namespace, post.name, post.what)
    plan = partial(plan_order, post.what, post.order, f"api-{secrets.token_hex(4)}", by=by)
    given = await services.steering.give(key, plan)
    services.metrics.directives.labels(post.what).inc()
    landing = None
    if wait:
        waiting = services.steering.wait(given, wait)
        landing = landing_of(await while_there(post.request.receive, waiting, Answer("Waiting")))
    return DirectiveAnswer(id=given.id, generation=given.generation, by=by, landing=landing)


# ------------------------------------------------------------ refusals


async def _answer_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


async def _answer_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [
        WrongField(field=".".join(str(part) for part in one["loc"])[:200], problem=str(one["msg"])[:300])
        for one in error.errors()[:20]
    ]
    first = errors[0]
    return Problem(422, f"{first.field}: {first.problem}", "see /openapi.json", errors=errors).response()


async def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code if error.status_code in TITLES else 400
    what = {404: "there is nothing at this path", 405: f"this path takes no {request.method[:20]}"}
    headers = dict(error.headers or {})
    return Problem(status, what.get(status, str(error.detail)[:300]), "see /openapi.json", headers=headers).response()


def _describe(app: FastAPI) -> None:
    """Name the bearer token and the refusals in the OpenAPI document, and no call that needs neither."""
    build = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = build()
            schemas = document["components"]["schemas"]
            refusal = ProblemDetails.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= refusal.pop("$defs", {}) | {"ProblemDetails": refusal}
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"token": []}]
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
