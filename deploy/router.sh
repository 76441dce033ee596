#!/bin/sh
# Runs HAProxy with the configuration in FOLDER, as soon as the node's agent has written one. It ends when HAProxy does,
# and what started it starts it again.
#   plimsoll-router FOLDER
set -eu
until [ -s "$1/haproxy.cfg" ]; do sleep 0.2; done
# A socket that a dead HAProxy left would keep this one from binding it.
rm -f "$1/haproxy.sock"
exec haproxy -db -f "$1/haproxy.cfg"
