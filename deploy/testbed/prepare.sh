#!/bin/sh
# Brings the testbed's database to the newest schema, fills in the catalogue, and makes the two tokens, once.
set -eu
umask 077
plimsoll db upgrade
plimsoll db catalogue
if [ ! -s /run/plimsoll-admin/token ]; then
  plimsoll token create --local --scope admin testbed > /run/plimsoll-admin/token.new
  mv /run/plimsoll-admin/token.new /run/plimsoll-admin/token
fi
if [ ! -s /run/plimsoll-agent/token ]; then
  plimsoll token create --local --scope agent testbed-agents > /run/plimsoll-agent/token.new
  mv /run/plimsoll-agent/token.new /run/plimsoll-agent/token
fi
