#!/bin/sh
# The server image's entry point: gives the solvers the kernels that the image brings, then runs the command.
# numba reads compiled code only from where it may write, and the image may not be written to. Without the copy, or on a
# CPU of another kind than the one that built the image, each start compiles it again: half a minute and more.
set -eu
if [ "${1:-}" = plimsoll ] && [ ! -e "$NUMBA_CACHE_DIR" ]; then
  cp -R /opt/plimsoll/kernels "$NUMBA_CACHE_DIR" || echo "no room for compiled kernels in $NUMBA_CACHE_DIR" >&2
fi
exec "$@"
