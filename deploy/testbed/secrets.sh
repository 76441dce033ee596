#!/bin/sh
# Draws the testbed's database password, once. No image and no file of the repository holds one.
set -eu
umask 077
password=/run/plimsoll-database/password
[ -s "$password" ] && exit 0
python -c 'import secrets; print(secrets.token_urlsafe(32), end="")' > "$password.new"
# PostgreSQL's image reads it as its own user; nothing else mounts this volume.
chmod 0755 /run/plimsoll-database
chmod 0444 "$password.new"
# libpq takes passwords from a file that only its reader may read.
printf 'postgres:5432:plimsoll:plimsoll:%s\n' "$(cat "$password.new")" > /run/plimsoll-admin/pgpass
mv "$password.new" "$password"
