"""The HTTP interface of the page; `docs/page.md` describes it for people and scripts.

Routes parse and answer; what they do is in `viewed`, `knobs`, `desk`. Work on arrays runs in a
thread, so that a slow preview does not hold up another window.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pyarrow as pa
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from thresher.app import arrow, bundle, sprites
from thresher.app.desk import Desk
from thresher.app.events import Hub
from thresher.app.knobs import Settings
from thresher.app.neighbours import feature_neighbours, has_features
from thresher.app.security import BodyTooLarge, Guard, too_large
from thresher.app.viewed import UnknownSample, Viewed
from thresher.errors import ThresherError

Handler = Callable[[Request], Awaitable[Response]]
NEIGHBOURS_LIMIT = 64
REMEMBER = {"Cache-Control": "private, max-age=3600"}


def build(desk: Desk, token: str, hosts: set[str], embed: bool = False) -> ASGIApp:
    """The ASGI application over the selections on `desk`."""
    hub = Hub(desk)
    api = Api(desk, hub)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        watcher = asyncio.create_task(hub.watch())
        yield
        hub.close()
        await watcher

    routes = [
        Route("/", api.page),
        Route("/assets/{name:path}", api.asset),
        Route("/api/info", api.info),
        Route("/api/points", api.points),
        Route("/api/places", api.places),
        Route("/api/state", api.state),
        Route("/api/log", api.log),
        Route("/api/sample/{id:path}", api.sample),
        Route("/api/image/{id:path}", api.image),
        Route("/api/sprite", api.sprite),
        Route("/api/knobs", api.knobs),
        Route("/api/compare", api.compare),
        Route("/api/events", api.events),
        Route("/api/preview", api.preview, methods=["POST"]),
        Route("/api/overrides", api.override, methods=["POST"]),
        Route("/api/undo", api.undo, methods=["POST"]),
        Route("/api/redo", api.redo, methods=["POST"]),
        Route("/api/use", api.use, methods=["POST"]),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={
            UnknownSample: _problem(404),
            ThresherError: _problem(400),
            ClientDisconnect: _problem(400),
            BodyTooLarge: lambda _, __: too_large(),
        },
    )
    app.state.hub = hub
    return Guard(app, token, hosts, embed)


class Api:
    """A method per route. `?s=NAME` names the selection; without it, the first."""

    def __init__(self, desk: Desk, hub: Hub) -> None:
        self.desk, self.hub = desk, hub

    async def page(self, request: Request) -> Response:
        return HTMLResponse(bundle.files()["index.html"].data)

    async def asset(self, request: Request) -> Response:
        file = bundle.files().get(request.url.path.lstrip("/"))
        if file is None:
            return JSONResponse({"error": "there is no such file"}, 404)
        return Response(file.data, media_type=file.media_type, headers=REMEMBER)

    async def info(self, request: Request) -> Response:
        name = self._name(request)

        def gather() -> dict[str, Any]:
            viewed = self.desk.viewed(name)
            return {
                **viewed.info(),
                "name": name,
                "selections": self.desk.names,
                "thumb": sprites.thumb_size(viewed.pack),
                "sprite_columns": sprites.COLUMNS,
                "sprite_limit": sprites.SPRITE_LIMIT,
                "features": has_features(viewed),
            }

        return JSONResponse(await run_in_threadpool(gather))

    async def points(self, request: Request) -> Response:
        name = self._name(request)
        return _arrow(await run_in_threadpool(lambda: self.desk.viewed(name).points))

    async def places(self, request: Request) -> Response:
        name = self._name(request)
        place = await run_in_threadpool(lambda: self.desk.viewed(name).places)
        return _arrow(arrow.encode({"place": place}))

    async def state(self, request: Request) -> Response:
        name = self._name(request)
        return _arrow(await run_in_threadpool(lambda: self.desk.viewed(name).state_bytes()))

    async def log(self, request: Request) -> Response:
        return JSONResponse({"entries": self._viewed(request).history()})

    async def sample(self, request: Request) -> Response:
        viewed, id = self._viewed(request), request.path_params["id"]
        found = viewed.sample(id)
        k = _query_int(request, "neighbours", 0, 0, NEIGHBOURS_LIMIT)
        if k and has_features(viewed):
            found["neighbours"] = await run_in_threadpool(feature_neighbours, viewed, id, k)
        return JSONResponse(found)

    async def image(self, request: Request) -> Response:
        data, kind = await run_in_threadpool(self._viewed(request).image, request.path_params["id"])
        return Response(data, media_type=kind, headers=REMEMBER)

    async def sprite(self, request: Request) -> Response:
        viewed = self._viewed(request)
        rows = _rows(request.query_params.get("rows", ""), len(viewed))
        picture = await run_in_threadpool(sprites.sprite, viewed.pack, viewed.positions[rows])
        return Response(picture, media_type="image/png", headers=REMEMBER)

    async def knobs(self, request: Request) -> Response:
        knobs = self.desk.knobs(self._name(request))
        at = request.query_params.get("min_samples")
        k = None if at is None else _query_int(request, "min_samples", 5, 1, 200)
        return JSONResponse(await run_in_threadpool(knobs.describe, k))

    async def preview(self, request: Request) -> Response:
        body = await _json(request)
        clusters = bool(body.pop("clusters", False))
        settings = Settings.parse(body)
        knobs = self.desk.knobs(self._name(request))
        found = await run_in_threadpool(knobs.preview, settings, clusters)
        columns = {"keep": pa.array(found.keep)}
        if found.clusters is not None:
            columns["cluster"] = pa.array(found.clusters)
        return _arrow(arrow.encode(columns, found.numbers))

    async def use(self, request: Request) -> Response:
        """Write what the knobs show as a new selection beside the viewed one."""
        body = await _json(request)
        name = body.pop("name", "")
        settings = Settings.parse(body)
        knobs = self.desk.knobs(self._name(request))
        path = await run_in_threadpool(knobs.write, settings, name)
        laid = self.desk.add(path)
        self.hub.tell({"type": "selections", "selections": self.desk.names})
        return JSONResponse({"selection": laid, "path": str(path)}, 201)

    async def compare(self, request: Request) -> Response:
        name, other = self._name(request), request.query_params.get("with", "")
        numbers, masks = await run_in_threadpool(self.desk.compare, name, other)
        return _arrow(arrow.encode({key: pa.array(mask) for key, mask in masks.items()}, numbers))

    async def override(self, request: Request) -> Response:
        ids, keep, reason = await _decision(request)
        viewed = self._viewed(request)
        await run_in_threadpool(viewed.decide, ids, keep, reason)
        return await self._decided(request, viewed)

    async def undo(self, request: Request) -> Response:
        viewed = self._viewed(request)
        entry = await run_in_threadpool(viewed.undo)
        return await self._decided(request, viewed, entry is not None)

    async def redo(self, request: Request) -> Response:
        viewed = self._viewed(request)
        entry = await run_in_threadpool(viewed.redo)
        return await self._decided(request, viewed, entry is not None)

    async def events(self, request: Request) -> Response:
        if self.hub.full:
            return JSONResponse({"error": "too many windows are open"}, 503)
        self._viewed(request)
        return StreamingResponse(self.hub.stream(), media_type="text/event-stream")

    async def _decided(self, request: Request, viewed: Viewed, changed: bool = True) -> Response:
        if changed:
            self.hub.changed(self._name(request))
        return _arrow(await run_in_threadpool(viewed.state_bytes))

    def _name(self, request: Request) -> str:
        return request.query_params.get("s") or self.desk.first

    def _viewed(self, request: Request) -> Viewed:
        return self.desk.viewed(self._name(request))


def _problem(status: int) -> Callable[[Request, Exception], Response]:
    return lambda _, error: JSONResponse({"error": str(error)}, status)


def _arrow(data: bytes) -> Response:
    return Response(data, media_type=arrow.MEDIA_TYPE)


async def _json(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise ThresherError("the body is not JSON") from None
    if not isinstance(body, dict):
        raise ThresherError("the body is not a JSON object")
    return body


async def _decision(request: Request) -> tuple[list[str], bool, str]:
    """ids, keep and reason from JSON, or from an Arrow stream with a column `id` (many ids)."""
    if request.headers.get("content-type", "").partition(";")[0] == arrow.MEDIA_TYPE:
        table, given = await run_in_threadpool(arrow.decode, await request.body())
        if "id" not in table.column_names:
            raise ThresherError("the stream has no column id")
        ids = table.column("id").to_pylist()
    else:
        given = await _json(request)
        ids = given.get("ids")
    keep, reason = given.get("keep"), given.get("reason", "")
    if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
        raise ThresherError("ids is not a list of texts")
    if not isinstance(keep, bool) or not isinstance(reason, str):
        raise ThresherError("keep is not true or false, or reason is not a text")
    return ids, keep, reason


def _query_int(request: Request, name: str, otherwise: int, low: int, high: int) -> int:
    text = request.query_params.get(name, str(otherwise))
    if not (text.isascii() and text.isdigit()) or not low <= int(text[:10]) <= high:
        raise ThresherError(f"{name} is not a whole number from {low} to {high}")
    return int(text)


def _rows(text: str, n: int) -> np.ndarray:
    parts = text.split(",", sprites.SPRITE_LIMIT)
    if len(parts) > sprites.SPRITE_LIMIT or not all(p.isascii() and p.isdigit() for p in parts):
        raise ThresherError(f"rows is not a list of at most {sprites.SPRITE_LIMIT} row numbers")
    rows = [int(part[:12]) for part in parts]
    if max(rows) >= n:
        raise ThresherError(f"rows names a row beyond the last, {n - 1}")
    return np.array(rows, np.int64)
