"""The HTTP interface of the page, described in `docs/page.md`.

Routes parse requests and encode answers. Work on arrays runs in a thread, so that a slow preview
does not delay other windows.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict

import numpy as np
import pyarrow as pa
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from thresher.app import arrow, static_files, thumbnails
from thresher.app.events import EventHub
from thresher.app.filter_preview import PreviewSettings, known_values
from thresher.app.guard import BodyRefusedError, Guard, SafeJSONResponse
from thresher.app.selection_view import SelectionView, UnknownSampleError
from thresher.app.workspace import ChangedSelectionError
from thresher.data.overrides import Override
from thresher.errors import InvalidValueError, ThresherError
from thresher.options import LARGEST_INT, from_mapping

NEIGHBOURS_LIMIT = 64
CACHED = {"Cache-Control": "private, max-age=3600"}


class _IdConvertor(PathConvertor):
    regex = r"[\s\S]*"  # names of files may hold line breaks


register_url_convertor("id", _IdConvertor())


def build_app(hub: EventHub, token: str, hosts: set[str], embed: bool = False) -> ASGIApp:
    """Return the ASGI application that serves the selections of the workspace of `hub`."""
    api = Api(hub)

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
        Route("/api/sample/{id:id}", api.sample),
        Route("/api/image/{id:id}", api.image),
        Route("/api/sprite", api.sprite),
        Route("/api/knobs", api.knobs),
        Route("/api/compare", api.compare),
        Route("/api/copies", api.copies),
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
            UnknownSampleError: _error_handler(404),
            ChangedSelectionError: _error_handler(409),
            ThresherError: _error_handler(400),
            ClientDisconnect: _error_handler(400),
            BodyRefusedError: lambda _, error: error.response,
        },
    )
    return Guard(app, token, hosts, embed)


class Api:
    """A method per route. `?s=NAME` selects one of several selections, default the first."""

    def __init__(self, hub: EventHub) -> None:
        self.workspace, self.hub = hub.workspace, hub

    async def page(self, request: Request) -> Response:
        return HTMLResponse(static_files.static_files()["index.html"])

    async def asset(self, request: Request) -> Response:
        name = request.url.path.lstrip("/")
        data = static_files.static_files().get(name)
        if data is None:
            return SafeJSONResponse({"error": "no such file"}, 404)
        return Response(data, media_type=static_files.media_type(name), headers=CACHED)

    async def info(self, request: Request) -> Response:
        name = self._name(request)

        def gather() -> dict[str, object]:
            features = self.workspace.view(name).has_features
            return {**self.workspace.info(name), "features": features}

        return SafeJSONResponse(await run_in_threadpool(gather))

    async def points(self, request: Request) -> Response:
        return await self._stream(request, lambda view: view.points)

    async def places(self, request: Request) -> Response:
        return await self._stream(
            request, lambda view: arrow.encode({"place": view.neighbourhood_labels})
        )

    async def state(self, request: Request) -> Response:
        return await self._stream(request, SelectionView.state_stream)

    async def log(self, request: Request) -> Response:
        entries = [asdict(entry) for entry in self._view(request).history()]
        return SafeJSONResponse({"entries": entries})

    async def sample(self, request: Request) -> Response:
        view = self._view(request)
        detail = view.sample(request.path_params["id"])
        answer: dict[str, object] = asdict(detail)
        k = _query_int(request, "neighbours", 0, 0, NEIGHBOURS_LIMIT)
        index = await run_in_threadpool(lambda: view.features) if k else None
        if index is not None:
            nearest = await run_in_threadpool(index.nearest, detail.row, k)
            answer["neighbours"] = [asdict(neighbour) for neighbour in nearest]
        return SafeJSONResponse(answer)

    async def image(self, request: Request) -> Response:
        data, kind = await run_in_threadpool(self._view(request).image, request.path_params["id"])
        return Response(data, media_type=kind, headers=CACHED)

    async def sprite(self, request: Request) -> Response:
        view = self._view(request)
        positions = view.image_positions
        positions = positions[_query_rows(request, len(positions))]
        sheet = await run_in_threadpool(thumbnails.thumbnail_sheet, view.pack, positions)
        # Another server may have had this address before, with other samples and another token.
        return Response(sheet, media_type="image/png", headers={**CACHED, "Vary": "Authorization"})

    async def knobs(self, request: Request) -> Response:
        previewer = self.workspace.previewer(self._name(request))
        given = "min_samples" in request.query_params
        k = _query_int(request, "min_samples", 1, 1, LARGEST_INT) if given else None
        info = await run_in_threadpool(previewer.describe, k)
        return SafeJSONResponse(known_values(info))

    async def preview(self, request: Request) -> Response:
        body = await _json_body(request)
        clusters = bool(body.pop("clusters", False))
        settings = from_mapping(PreviewSettings, body)
        previewer = self.workspace.previewer(self._name(request))
        preview = await run_in_threadpool(previewer.preview, settings, clusters)
        columns = {"keep": pa.array(preview.keep)}
        if preview.clusters is not None:
            columns["cluster"] = pa.array(preview.clusters)
        return _arrow(arrow.encode(columns, known_values(preview.numbers)))

    async def use(self, request: Request) -> Response:
        """Write the previewed decisions as a new selection."""
        body = await _json_body(request)
        name = body.pop("name", "")
        settings = from_mapping(PreviewSettings, body)
        self._current(request)
        previewer = self.workspace.previewer(self._name(request))
        path = await run_in_threadpool(previewer.write, settings, name)
        added = self.workspace.add(path)
        self.hub.send({"type": "selections", "selections": self.workspace.names})
        return SafeJSONResponse({"selection": added, "path": str(path)}, 201)

    async def compare(self, request: Request) -> Response:
        name, other = self._name(request), request.query_params.get("with", "")
        comparison = await run_in_threadpool(self.workspace.compare, name, other)
        return _arrow(comparison.stream())

    async def copies(self, request: Request) -> Response:
        return await self._stream(request, lambda view: view.copies.stream())

    async def override(self, request: Request) -> Response:
        await run_in_threadpool(self._current(request).decide, *await _decision(request))
        return await self._new_state(request)

    async def undo(self, request: Request) -> Response:
        view = self._current(request)
        return await self._moved(request, await run_in_threadpool(view.log.undo, view))

    async def redo(self, request: Request) -> Response:
        view = self._current(request)
        return await self._moved(request, await run_in_threadpool(view.log.redo, view))

    async def events(self, request: Request) -> Response:
        if self.hub.full:
            return SafeJSONResponse({"error": "too many windows are open"}, 503)
        self._view(request)
        return StreamingResponse(self.hub.stream(), media_type="text/event-stream")

    async def _new_state(self, request: Request) -> Response:
        self.hub.send_changed(self._name(request))
        return await self.state(request)

    async def _moved(self, request: Request, entry: Override | None) -> Response:
        """Answer an undo or redo; `entry` is None if there was nothing to undo."""
        if entry is not None:
            self.hub.send_changed(self._name(request))
        return await self._stream(request, lambda view: view.state_stream(entry))

    async def _stream(self, request: Request, make: Callable[[SelectionView], bytes]) -> Response:
        """Open the selection and make an Arrow stream of it, both in a thread."""
        return _arrow(await run_in_threadpool(lambda: make(self._current(request))))

    def _name(self, request: Request) -> str:
        return request.query_params.get("s") or self.workspace.first

    def _view(self, request: Request) -> SelectionView:
        return self.workspace.view(self._name(request))

    def _current(self, request: Request) -> SelectionView:
        return self.workspace.current(self._name(request))


def _error_handler(status: int) -> Callable[[Request, Exception], Response]:
    return lambda _, error: SafeJSONResponse({"error": str(error)}, status)


def _arrow(data: bytes) -> Response:
    return Response(data, media_type=arrow.MEDIA_TYPE)


async def _json_body(request: Request) -> dict[str, object]:
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise InvalidValueError("the body is not JSON") from None
    if not isinstance(body, dict):
        raise InvalidValueError("the body is not a JSON object")
    return body


async def _decision(request: Request) -> tuple[list[str], bool, str, int | None]:
    """Read ids, keep, reason and label from JSON, or from an Arrow stream with a column `id`."""
    ids: object
    if request.headers.get("content-type", "").partition(";")[0] == arrow.MEDIA_TYPE:
        table, given = await run_in_threadpool(arrow.decode, await request.body())
        if "id" not in table.column_names:
            raise InvalidValueError("the stream has no column id")
        ids = table.column("id").to_pylist()
    else:
        given = await _json_body(request)
        ids = given.get("ids")
    keep, reason, label = given.get("keep"), given.get("reason", ""), given.get("label")
    if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
        raise InvalidValueError("ids must be a list of strings")
    if not isinstance(keep, bool):
        raise InvalidValueError("keep must be true or false")
    if not isinstance(reason, str):
        raise InvalidValueError("reason must be a string")
    if label is not None and (isinstance(label, bool) or not isinstance(label, int)):
        raise InvalidValueError("label must be the number of a class")
    return ids, keep, reason, label


def _query_int(request: Request, name: str, default: int, low: int, high: int) -> int:
    value = _natural(request.query_params.get(name, str(default)))
    if value is None or not low <= value <= high:
        raise InvalidValueError(f"{name} must be an integer in [{low}, {high}]")
    return value


def _query_rows(request: Request, n: int) -> np.ndarray:
    limit = thumbnails.SHEET_LIMIT
    rows = [_natural(part) for part in request.query_params.get("rows", "").split(",", limit)]
    if len(rows) > limit or any(row is None or row >= n for row in rows):
        raise InvalidValueError(f"rows must be at most {limit} row numbers below {n}")
    return np.array(rows, np.int64)


def _natural(text: str) -> int | None:
    """The value of ASCII digits; None for other text and for values beyond 64 bits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None
