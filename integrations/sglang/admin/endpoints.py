"""The routes below /agentspec in the server's HTTP process. All need the admin key. README.md lists them."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from agentspec.errors import ManagementError
from agentspec.integrations.sglang import arguments, compat
from agentspec.integrations.sglang.admin import access, uploads
from agentspec.integrations.sglang.admin.orders import chosen_namespace, corpus_head, file_below
from agentspec.integrations.sglang.admin.wire import JsonObject
from agentspec.integrations.sglang.sglang_types import HttpApplication, TokenizerManager

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

logger = logging.getLogger("agentspec")

Ask = Callable[[JsonObject], Awaitable[list[JsonObject]]]
"""Sends a command to all schedulers and returns their answers."""
_PREFIX = "/agentspec"
_MOST_UPLOADS = 2
"""The most uploads at a time, because each takes disk space."""
_NAMESPACES_SHOWN = 100
_MOST_NAMESPACES_SHOWN = 10_000


class Endpoints:
    """Checks requests and sends them on as commands."""

    def __init__(self, ask: Ask, *, key: str, upload_bytes: int, folder: str) -> None:
        """
        Args:
            ask: Sends a command to the schedulers.
            key: The key that requests must carry; if it is empty, all requests are refused.
            upload_bytes: The most bytes of a request.
            folder: Requests may name files of this machine below this folder; if it is empty, none.
        """
        self._ask = ask
        self._key = key
        self._upload_bytes = upload_bytes
        self._folder = folder
        self._uploads = asyncio.Semaphore(_MOST_UPLOADS)

    def install(self, app: HttpApplication) -> None:
        """Adds the routes to a Starlette application."""
        for path, methods in self._routes().items():
            for method, handler in methods.items():
                app.add_route(_PREFIX + path, self._guarded(handler), methods=[method], include_in_schema=False)

    def _routes(self) -> dict[str, dict[str, Callable[[Request], Awaitable[Response]]]]:
        return {
            "/stats": {"GET": self._simple("stats")},
            "/corpora": {"GET": self._simple("corpora"), "POST": self._add_corpus},
            # A corpus of the start goes by its path, if another one's file has the same name.
            "/corpora/{name:path}": {"GET": self._simple("corpus"), "DELETE": self._simple("remove_corpus")},
            "/namespaces": {"GET": self._list_namespaces},
            "/namespaces/stats": {"POST": self._namespace("namespace")},
            "/namespaces/forget": {"POST": self._namespace("forget_namespace")},
            "/namespaces/{namespace}": {"GET": self._simple("namespace"), "DELETE": self._simple("forget_namespace")},
            "/jobs": {"GET": self._simple("jobs")},
            "/jobs/{id}": {"GET": self._simple("job"), "DELETE": self._simple("cancel_job")},
        }

    def _guarded(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            refused = access.refusal(request.headers.get("authorization"), self._key)
            if refused is not None:
                return _response(refused[0], {"error": refused[1]})
            try:
                return await handler(request)
            except ManagementError as error:
                return _response(error.status, {"error": str(error)})

        compat.mark_admin_endpoint(endpoint)
        return endpoint

    def _simple(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        """A handler for a command whose arguments are in the path."""

        async def handler(request: Request) -> Response:
            new_job = {"id": uuid.uuid4().hex} if name == "forget_namespace" else {}
            return await self._send({"do": name, **new_job, **request.path_params})

        return handler

    def _namespace(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        """A handler for a command about a namespace that the body names. The path, which is logged, must not name
        it."""

        async def handler(request: Request) -> Response:
            return await self._send(
                {"do": name, "id": uuid.uuid4().hex, **chosen_namespace(await uploads.read_json(request))}
            )

        return handler

    async def _list_namespaces(self, request: Request) -> Response:
        text = request.query_params.get("limit", str(_NAMESPACES_SHOWN))
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= _MOST_NAMESPACES_SHOWN):
            raise ManagementError(f"`limit` must be 1 to {_MOST_NAMESPACES_SHOWN}, got {text[:20]!r}")
        return await self._send({"do": "namespaces", "most": int(text)})

    async def _add_corpus(self, request: Request) -> Response:
        if self._uploads.locked():
            raise ManagementError(
                f"{_MOST_UPLOADS} corpora are being uploaded already; try again when an upload has ended", 429
            )
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        async with self._uploads:
            with uploads.spool() as stream:
                if kind in ("application/x-ndjson", "application/jsonl"):
                    head = corpus_head(await uploads.read_lines(request, stream, self._upload_bytes))
                    return await self._send_corpus(head, str(uploads.spooled(stream)), is_upload=True)
                if kind != "application/json":
                    raise ManagementError(
                        f"Content-Type must be application/json or application/x-ndjson, got {kind[:80]!r}", 415
                    )
                most = min(self._upload_bytes, uploads.MOST_JSON_BYTES)
                body = await uploads.read_json(request, most)
                head = corpus_head(body, "documents", "file")
                if ("documents" in body) == ("file" in body):
                    raise ManagementError("give either `documents` or `file`")
                if "file" in body:
                    path = file_below(self._folder, body["file"])
                    return await self._send_corpus(head, str(path), is_upload=False)
                uploads.write_documents(body["documents"], stream)
                return await self._send_corpus(head, str(uploads.spooled(stream)), is_upload=True)

    async def _send_corpus(self, head: JsonObject, path: str, *, is_upload: bool) -> Response:
        return await self._send({"do": "add_corpus", "id": uuid.uuid4().hex, **head, "path": path, "upload": is_upload})

    async def _send(self, command: JsonObject) -> Response:
        answers = await self._ask(command)
        if len(answers) == 1:
            return _response(answers[0]["status"], answers[0]["body"])
        # Each data-parallel rank drafts on its own and so answers on its own.
        worst = max(answer["status"] for answer in answers)
        return _response(worst, {"ranks": [answer["body"] for answer in answers]})


def serve(manager: TokenizerManager) -> None:
    """Adds the routes to the HTTP server of this process, if it has one."""
    import functools

    from agentspec.integrations.sglang.admin import wire
    from agentspec.integrations.sglang.setting_sources import resolve_for_process

    app = compat.http_application()
    if app is None:
        return
    settings = resolve_for_process(arguments.marked_settings(manager.server_args))
    Endpoints(
        functools.partial(wire.ask, manager),
        key=arguments.admin_key(manager.server_args),
        upload_bytes=uploads.MOST_BYTES,
        folder=settings.admin_folder,
    ).install(app)


def _response(status: int, body: JsonObject) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(body, status_code=status)
