"""Locks of `holdfast serve` for Python 3.9 and later, with the standard library alone.

    client = Client("http://127.0.0.1:7345", token=os.environ["HOLDFAST_CLIENT_TOKEN"])
    with client.lock("invoices/2026", wait=60) as lock:
        for order in orders:
            lock.check()              # raises Lost
            bill(order, lock.token)   # the resource compares tokens

A lock is held as long as its connection. A thread reads what the server reports about it. The lock counts as lost when
the server says so, when the connection ends, and when its validity is over, which counts from when the request was
sent, by a clock that runs while the machine sleeps. `with` raises Lost at its end if the lock was lost meanwhile;
on_lost is called at once.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
import urllib.parse
from typing import Any, Callable, Dict, List, Optional

__all__ = ["Busy", "Client", "Error", "Lock", "Lost"]


# After how many seconds without a line a wait fails. The server sends one at least every 7 s.
_SILENCE = 30


def _now() -> float:
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)  # on Linux, monotonic stands while the machine sleeps
    return time.monotonic()


class Error(Exception):
    """An error of the server, or of the connection to it. code is one of the API's codes: "unavailable", "refused",
    "invalid" and so on; see docs/serve.md."""

    def __init__(self, code: str, message: str, details: Optional[Dict[str, Any]] = None):
        super().__init__(message)
        self.code = code
        self.details = details or {}


class Busy(Error):
    """The lock was not granted in time. details["holders"] has its holders as far as the store names them."""


class Lost(Error):
    """The lock was lost. details["cause"] is why."""


def _error(p: Dict[str, Any]) -> Error:
    kind = {"busy": Busy, "lost": Lost}.get(p.get("code", ""), Error)
    return kind(p.get("code", "unavailable"), p.get("message", "no message"), p)


class Client:
    """A server of locks. url may have a path below which a service has mounted the handler. timeout, in seconds, is for
    connecting and for requests other than waits. context is that of TLS, for example with a client certificate. A Client
    may be used by several threads."""

    def __init__(self, url: str, token: Optional[str] = None, store: Optional[str] = None, timeout: float = 10,
                 context: Optional[ssl.SSLContext] = None):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url {url!r}: http://HOST:PORT or https://HOST is allowed")
        self._tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._path, self._token, self._store = parts.path.rstrip("/"), token, store
        self._timeout, self._context = timeout, context

    def lock(self, name: str, ttl: Optional[float] = None, wait: Optional[float] = None, limit: Optional[int] = None,
             shared: bool = False, min_hold: Optional[float] = None, reason: str = "",
             on_lost: Optional[Callable[[Lost], None]] = None) -> Lock:
        """Waits for the lock, for at most wait seconds, 0 for not at all, and returns it. Raises Busy.

        ttl is how long a dead server blocks others; limit makes a semaphore; shared a lock of readers; min_hold keeps the
        lock for at least that long. on_lost is called on a thread of the client's."""
        body = {"ttl_seconds": ttl, "wait_seconds": wait, "limit": limit, "shared": shared or None,
                "min_hold_seconds": min_hold, "reason": reason or None}
        sent = _now()
        connection = self._connect()
        try:
            answer = self._send(connection, "POST", "locks/" + _quote(name), body, wait=True)
            (connection.sock or _socket(answer)).settimeout(_SILENCE)
            event = _line(answer)
            while event["event"] == "queued":
                event = _line(answer)
            if event["event"] != "granted":
                raise _error(event.get("error", {}))
            return Lock(self, name, connection, answer, sent, event, on_lost)
        except (OSError, http.client.HTTPException, ValueError) as e:
            connection.close()
            raise Error("unavailable", f"the wait for {name!r}: {e}") from e
        except BaseException:
            connection.close()
            raise

    def locks(self, prefix: str = "") -> List[Dict[str, Any]]:
        """The locks that are held or awaited, as `holdfast ls --json` prints them."""
        return self._call("GET", "locks?prefix=" + _quote(prefix))["locks"]

    def show(self, name: str) -> Dict[str, Any]:
        """One lock, as `holdfast show --json` prints it."""
        return self._call("GET", "locks/" + _quote(name))

    def break_lock(self, name: str, token: int, reason: str) -> None:
        """Takes the lock from the holder with that token."""
        self._call("POST", "break", {"name": name, "token": str(token), "reason": reason})

    def guard(self, name: str, token: int) -> None:
        """Checks and records the token for a resource of that name. Raises Error with code "stale" if a larger token
        was there."""
        self._call("POST", "guards/" + _quote(name), {"token": str(token)})

    def next(self, name: str) -> int:
        """An id that no other call gets."""
        return int(self._call("POST", "sequences/" + _quote(name))["id"])

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls:
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._context)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)

    def _call(self, method: str, path: str, body: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        connection = self._connect()
        try:
            answer = self._send(connection, method, path, body)
            return json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as e:
            raise Error("unavailable", f"{method} {path}: {e}") from e
        finally:
            connection.close()

    def _send(self, connection: http.client.HTTPConnection, method: str, path: str,
              body: Optional[Dict[str, Any]], wait: bool = False) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = "Bearer " + self._token
        if self._store:
            path += ("&" if "?" in path else "?") + "store=" + _quote(self._store)
        raw = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            raw = json.dumps({k: v for k, v in body.items() if v is not None})
        try:
            connection.request(method, f"{self._path}/v1/{path}", raw, headers)
            if wait and connection.sock:
                connection.sock.settimeout(None)  # a refusal comes when the wait is over
            answer = connection.getresponse()
            if answer.status >= 300:
                try:
                    problem = json.loads(answer.read())["error"]
                except (ValueError, KeyError, TypeError):
                    problem = {"code": "unavailable", "message": f"{method} {path}: status {answer.status}"}
                raise _error(problem)
            return answer
        except (OSError, http.client.HTTPException) as e:
            raise Error("unavailable", f"{method} {path}: {e}") from e


class Lock:
    """A held lock. token is its fencing token, slot the number of its permit or None. Its methods may be called from any
    thread. Call release, or use it in a with statement."""

    def __init__(self, client: Client, name: str, connection: http.client.HTTPConnection,
                 answer: http.client.HTTPResponse, sent: float, granted: Dict[str, Any],
                 on_lost: Optional[Callable[[Lost], None]]):
        self.name, self.token, self.slot = name, int(granted["token"]), granted["slot"]
        self._client, self._id, self._sent, self._on_lost = client, granted["id"], sent, on_lost
        self._socket, self._answer = connection.sock or _socket(answer), answer
        self._mutex = threading.Lock()
        self._lost: Optional[Lost] = None
        self._released = False
        self._until = self._deadline(granted)
        self._reader = threading.Thread(target=self._read, name=f"holdfast {name}", daemon=True)
        self._reader.start()

    def remaining(self) -> float:
        """For how many seconds the lock is certainly held if the server does not report again; 0 after its end."""
        with self._mutex:
            ended = self._lost is not None or self._released
            return 0 if ended else max(self._until - _now(), 0)

    def check(self) -> None:
        """Raises Lost if the lock is lost. It reads the clock itself, because a process that was paused runs on before
        its threads notice anything."""
        with self._mutex:
            if self._released:
                raise Error("not_held", f"{self.name!r} was released")
            if self._lost is None and _now() < self._until:
                return
        self._lose("expired", "its validity is over")
        raise self._lost  # type: ignore[misc]

    def release(self) -> None:
        """Releases the lock. Raises Lost if it was lost before, and Error if the server does not confirm the release:
        the end of the connection releases the lock as well. Further calls do nothing."""
        with self._mutex:
            if self._released:
                return
            lost, self._released = self._lost, True
        try:
            if lost is not None:
                raise lost
            self._client._call("POST", f"release/{self._id}")
        finally:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            self._socket.close()
            if threading.current_thread() is not self._reader:
                self._reader.join()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        try:
            self.release()
        except Lost:
            if value is None:
                raise  # an error of the work comes first
        except Error:
            pass  # the work is done, and the end of the connection releases the lock

    def _deadline(self, event: Dict[str, Any]) -> float:
        return self._sent + float(event["valid_seconds"])

    def _read(self) -> None:
        try:
            while True:
                with self._mutex:
                    left = self._until - _now()
                if left <= 0:
                    return self._lose("expired", "no answer came in its validity")
                self._socket.settimeout(left)
                event = _line(self._answer)
                if event["event"] == "valid":
                    with self._mutex:
                        self._until = self._deadline(event)
                elif event["event"] == "lost":
                    problem = event.get("error", {})
                    return self._lose(problem.get("cause", ""), problem.get("message", ""))
                else:
                    return self._lose("released", "it was released by another call")
        except socket.timeout:
            self._lose("expired", "no answer came in its validity")
        except (OSError, http.client.HTTPException, ValueError, AttributeError, Error) as e:
            self._lose("closed", f"the connection ended: {e}")

    def _lose(self, cause: str, message: str) -> None:
        with self._mutex:
            if self._released or self._lost is not None:
                return
            lost = self._lost = Lost("lost", f"{self.name!r} is lost ({cause}): {message}", {"cause": cause})
        if self._on_lost:
            self._on_lost(lost)


def _line(answer: http.client.HTTPResponse) -> Dict[str, Any]:
    raw = answer.readline()
    if not raw.endswith(b"\n"):
        raise Error("unavailable", "the server has ended the answer")
    return json.loads(raw)


def _socket(answer: http.client.HTTPResponse) -> socket.socket:
    return answer.fp.raw._sock  # type: ignore[union-attr] # the connection gives it away with "Connection: close"


def _quote(text: str) -> str:
    return urllib.parse.quote(text, safe="")
