"""Whole databases: made afresh for a demo."""

from sqlalchemy import text

from app.db.engine import make_engine


async def recreate(server_url: str, name: str) -> None:
    """An empty database of that name; one that exists is dropped, whoever is connected to it."""
    engine = make_engine(server_url, pool_size=2, application="plimsoll-create")
    quoted = '"' + name.replace('"', '""') + '"'
    try:
        async with engine.connect() as raw:
            connection = await raw.execution_options(isolation_level="AUTOCOMMIT")
            await connection.execute(text(f"DROP DATABASE IF EXISTS {quoted} WITH (FORCE)"))
            await connection.execute(text(f"CREATE DATABASE {quoted}"))
    finally:
        await engine.dispose()
