"""A proxy in front of a server: it passes every request on unchanged and records the calls of the model.

Each task has a base URL of its own, `http://HOST:PORT/task/NAME/v1`, so calls of concurrent tasks are told apart
without help from their clients. Answers are passed on piece by piece as they arrive.

Of a streamed answer the proxy also wants to know the number of tokens, and of an SGLang server's answer the number of
steps. It asks for both where the client did not, and keeps the additional event from the client.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, unquote

from agentspec.ab.calls import (
    CUT_STREAM,
    RESPONSE_ENDS,
    UNDERSTOOD,
    AnswerReader,
    Call,
    is_greedy,
    request_digest,
    without_echo,
)
from agentspec.errors import ConfigError, ServerError

if TYPE_CHECKING:
    from aiohttp import ClientSession, web

# Headers that belong to one connection and are not passed on. Answers are asked for uncompressed.
_OWN_HEADERS = {
    "connection", "content-encoding", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding",
    "upgrade", "accept-encoding",
}  # fmt: skip
_START_SECONDS = 10.0
# Longer than any answer takes.
_ANSWER_SECONDS = 3600.0
_MAX_BODY = 256 << 20
# A client has the last bytes of an answer before its call is noted, and one that was killed leaves calls to be given up.
_NOTING_SECONDS = 5.0


class RecordingProxy:
    """A proxy in a thread of its own, as a context manager. Raises ConfigError on entering, where aiohttp is not
    installed.

    Args:
        upstream: The server's URL without `/v1`.
        api_key: Sent as the bearer token where it is not empty; else the client's own header is passed on.
        asks_for_steps: Whether the server understands SGLang's field `return_spec_tokens_details`.
        host: The address of this machine at which clients reach the proxy. Everybody who reaches it reaches the server.
    """

    def __init__(
        self, upstream: str, *, api_key: str = "", asks_for_steps: bool = False, host: str = "127.0.0.1"
    ) -> None:
        self.upstream, self._host = upstream.rstrip("/"), host
        self._api_key, self._asks_for_steps = api_key, asks_for_steps
        self._calls: list[Call] = []
        self._num_open = 0
        self._changed = threading.Condition()  # guards the two above
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._stop: asyncio.Event | None = None
        self._port = 0
        self._thread = threading.Thread(target=self._run, name="agentspec-ab-proxy", daemon=True)

    def __enter__(self) -> Self:
        try:
            import aiohttp  # noqa: F401
        except ImportError:
            raise ConfigError("agentspec ab needs aiohttp; run pip install 'sglang-agentspec[ab]'") from None
        self._thread.start()
        if not self._ready.wait(_START_SECONDS) or self._failure is not None:
            raise ServerError(
                f"the recording proxy cannot listen at {self._host}: {self._failure}; --proxy-host must be an address of "
                "this machine"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_SECONDS)

    def base_url(self, task: str) -> str:
        """The OpenAI base URL for the calls of a task; "" for calls that no task claims."""
        place = f"/task/{quote(task, safe='')}" if task else ""
        return f"http://{self._host}:{self._port}{place}/v1"

    def take(self) -> list[Call]:
        """The calls that ended since the last time, in the order of their beginning. Waits a little for those that are still
        in progress."""
        with self._changed:
            self._changed.wait_for(lambda: not self._num_open, _NOTING_SECONDS)
            calls, self._calls = self._calls, []
        return sorted(calls, key=lambda call: call.began)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except Exception as failure:  # noqa: BLE001 - told to the thread that waits.
            self._failure = failure
            self._ready.set()
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        import aiohttp
        from aiohttp import web

        self._stop = asyncio.Event()
        timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
        # Room for an event of any length on one line.
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=timeout,
            read_bufsize=1 << 22,
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as session:

            async def handle(request: web.Request) -> web.StreamResponse:
                self._count(1)
                try:
                    return await self._pass_on(session, request)
                finally:
                    self._count(-1)

            app = web.Application(client_max_size=_MAX_BODY)
            app.router.add_route("*", "/{path:.*}", handle)
            # Without the access log, and a stopped run does not wait for its clients. A request that its client gives up is
            # given up towards the server too, which would go on writing to nobody.
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, handler_cancellation=True)
            await runner.setup()
            site = web.TCPSite(runner, self._host, 0)
            await site.start()
            self._port = runner.addresses[0][1]
            self._ready.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _pass_on(self, session: ClientSession, request: web.Request) -> web.StreamResponse:
        import aiohttp
        from aiohttp import web

        began = time.monotonic()
        rest, task = request.rel_url.raw_path.lstrip("/"), ""
        if rest.startswith("task/"):
            _, task, rest = rest.split("/", 2) if rest.count("/") > 1 else ("", rest.removeprefix("task/"), "")
        data = await request.read()
        watched = _Watched(rest.removeprefix("v1/"), data, unquote(task), began, self._asks_for_steps)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OWN_HEADERS}
        headers["Accept-Encoding"] = "identity"
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        url = f"{self.upstream}/{rest}" + (f"?{request.rel_url.raw_query_string}" if request.query_string else "")
        response: web.StreamResponse | None = None
        try:
            async with session.request(
                request.method, url, data=watched.data, headers=headers, allow_redirects=False
            ) as answer:
                passed = answer.headers.copy()
                for key in _OWN_HEADERS & {key.lower() for key in passed}:
                    passed.popall(key)
                # Some servers answer in one piece although a stream was asked for.
                is_stream = "event-stream" in answer.headers.get("Content-Type", "")
                if not is_stream or answer.status != 200 or not watched.may_stream:
                    body = await answer.read()
                    watched.read_body(body, answer.status)
                    return web.Response(body=body, status=answer.status, headers=passed)
                response = web.StreamResponse(status=answer.status, headers=passed)
                await response.prepare(request)
                async for line in answer.content:
                    if watched.read_line(line):
                        await response.write(line)
                await response.write_eof()
                watched.ended()
                return response
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            # Clients close a connection as soon as they have read the last event, before the stream's last bytes.
            if not watched.is_complete:
                watched.error = f"{type(error).__name__}: {error}"[:300]
            if response is not None:
                # A regular end would make the client take a part of an answer for the whole.
                if request.transport is not None:
                    request.transport.abort()
                return response
            return web.json_response({"error": {"message": watched.error, "type": "proxy"}}, status=502)
        except asyncio.CancelledError:
            if not watched.is_complete:
                watched.error = "the client went away"
            raise
        finally:
            self._keep(watched)

    def _count(self, more: int) -> None:
        with self._changed:
            self._num_open += more
            self._changed.notify_all()

    def _keep(self, watched: _Watched) -> None:
        call = watched.call()
        if call is not None:
            with self._changed:
                self._calls.append(call)


class _Watched:
    """One request on its way."""

    def __init__(self, path: str, data: bytes, task: str, began: float, asks_for_steps: bool) -> None:
        self.data = data
        self.error = ""
        self.is_stream = False
        self.is_complete = False
        """Whether the last event of a stream was read."""
        self._path, self._task, self._began = path, task, began
        self._first: float | None = None
        self._hides_usage = self._is_hidden = False
        body = _json_object(data) if path in UNDERSTOOD else None
        self._body = body
        self._reader = AnswerReader(path)
        self._request, self._is_greedy = "", False
        if body is None:
            return
        self._request, self._is_greedy = request_digest(path, body), is_greedy(path, body)
        self.is_stream = bool(body.get("stream"))
        more: dict[str, Any] = {}
        if self.is_stream and path in ("chat/completions", "completions"):
            options = body.get("stream_options") or {}
            self._hides_usage = not options.get("include_usage")
            more["stream_options"] = {**options, "include_usage": True}
        if asks_for_steps and path in ("chat/completions", "completions"):
            more["return_spec_tokens_details"] = True
        if more:
            self.data = json.dumps({**body, **more}).encode()

    @property
    def may_stream(self) -> bool:
        """Whether the answer may be a stream: the client asked for one, or nothing is known of the call."""
        return self.is_stream or self._body is None

    def read_body(self, data: bytes, status: int) -> None:
        body = _json_object(data)
        if self._body is None:
            return
        if status != 200:
            self.error = f"{status}: {without_echo(data.decode(errors='replace'))}"
        elif body is None:
            self.error = "the answer is not a JSON object"
        else:
            self._understand(self._reader.read, body)

    def read_line(self, line: bytes) -> bool:
        """Takes in a line of a stream; False if the client must not see it."""
        if not line.startswith(b"data:"):
            # The blank line after an event that was kept from the client is kept, too.
            shown = not (self._is_hidden and not line.strip())
            self._is_hidden = False
            return shown
        data = line[len(b"data:") :].strip()
        event = _json_object(data)
        self._is_hidden = False
        self.is_complete |= data == b"[DONE]"
        if event is None:
            return True
        self.is_complete |= event.get("type") in RESPONSE_ENDS
        self._understand(self._reader.read_event, event)
        if self._first is None and self._reader.has_text():
            self._first = time.monotonic()
        # An event without choices is there for the counts alone; clients that did not ask may not expect it.
        self._is_hidden = self._hides_usage and event.get("choices") == [] and not event.get("error")
        return not self._is_hidden

    def ended(self) -> None:
        """Called at the regular end of a stream. A router ends it so, too, where its server has died."""
        if not self.is_complete and not self._reader.is_finished():
            self.error = self.error or self._reader.error or CUT_STREAM

    def _understand(self, read: Callable[[Mapping[str, Any]], None], value: Mapping[str, Any]) -> None:
        """Reads what is passed on in any case, whatever its form."""
        try:
            read(value)
        except (AttributeError, TypeError, ValueError) as fault:
            self.error = f"the answer has another form than {self._path} has: {type(fault).__name__}"

    def call(self) -> Call | None:
        """The recorded call; None for requests that ask no model."""
        if self._body is None:
            return None
        return Call(
            task=self._task,
            path=self._path,
            began=self._began,
            first=self._first,
            ended=time.monotonic(),
            **self._reader.tokens(),
            verify_steps=self._reader.verify_steps,
            is_greedy=self._is_greedy,
            request=self._request,
            answer="" if self.error else self._reader.digest(),
            error=self.error or self._reader.error,
        )


def _json_object(data: bytes) -> Mapping[str, Any] | None:
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
