#!/bin/sh
# Brings the testbed's database to the newest schema, fills in the catalogue, and makes the two tokens.
set -eu
umask 077
plimsoll db upgrade
plimsoll db catalogue
if [ ! -s /run/plimsoll-admin/token ]; then
  plimsoll token create --local --scope admin testbed > /run/plimsoll-admin/token.new
  mv /run/plimsoll-admin/token.new /run/plimsoll-admin/token
fi
# A new one with each start, since it lasts a day: nodes that are enrolled have tokens of their own and need it no more.
plimsoll token create --local --scope join --uses 8 testbed-nodes > /run/plimsoll-agent/token.new
mv /run/plimsoll-agent/token.new /run/plimsoll-agent/token
