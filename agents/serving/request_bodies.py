"""Bodies of requests: what is compressed is decompressed here, bounded and in a thread.

    app[IS_RAW] = True          where the server runs with `auto_decompress=False`, as it should
    body = await read_body(request, limit)

aiohttp's own decompression would do 64 MiB in one turn of the event loop, and answers what it does not know with a
traceback in the log.
"""

import asyncio
import zlib

from aiohttp import web

IS_RAW = web.AppKey("is_raw", bool)
"""Whether bodies come as they were sent."""
ENCODINGS = ("gzip", "deflate")
_ANY_HEADER = zlib.MAX_WBITS + 32
"""For zlib: a header of gzip or of zlib, whichever comes."""


def is_compressed(request: web.Request) -> bool:
    """Whether the body says that it is, in whatever way."""
    return _encoding(request) not in ("", "identity")


async def read_body(request: web.Request, limit: int) -> bytes:
    """The whole body, decompressed.

    Raises HTTPUnsupportedMediaType, HTTPRequestEntityTooLarge, or RequestPayloadError where it is not as it says."""
    if not is_compressed(request):
        return await request.read()
    if (encoding := _encoding(request)) not in ENCODINGS:
        raise web.HTTPUnsupportedMediaType(
            text=f"Content-Encoding {encoding[:40]} is not supported; send the body as it is, or by "
            f"{' or '.join(ENCODINGS)}",
            headers={"Accept-Encoding": ", ".join(ENCODINGS)},
        )
    body = await request.read()
    if not body or not request.app.get(IS_RAW):
        return body
    # In a thread, for which zlib lets go of the interpreter: everything else on this node goes on meanwhile.
    found = await asyncio.to_thread(_decompressed, body, limit)
    if len(found) > limit:
        raise web.HTTPRequestEntityTooLarge(max_size=limit, actual_size=len(found))
    return found


def _encoding(request: web.Request) -> str:
    return request.headers.get("Content-Encoding", "").strip().lower()


def _decompressed(body: bytes, limit: int) -> bytes:
    """At most one byte more than the limit. Raises RequestPayloadError."""
    # Some send deflate's bytes without the header that RFC 9110 asks for.
    for window in (_ANY_HEADER, -zlib.MAX_WBITS):
        unpacking = zlib.decompressobj(window)
        try:
            found = unpacking.decompress(body, limit + 1)
        except zlib.error:
            continue
        if unpacking.eof or len(found) > limit:
            return found
    raise web.RequestPayloadError("it does not match its Content-Encoding")
