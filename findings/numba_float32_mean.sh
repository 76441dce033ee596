#!/usr/bin/env bash
# The mean of float32 values compiled by Numba is 5 % off, where NumPy's is right.
#
# Versions: numba 0.68.1, numpy 2.4.6.
# Guess: the compiled sum runs through the values one by one in float32, and is wrong in the third digit.
# Seen: the mean of twenty million values of 0.1 is 0.10000000 in NumPy, which adds in pairs, and 0.10485760 in compiled
#   code: the sum stands still at 2^21, where adding 0.1 changes nothing any more. The mean is a float64, so its type
#   hides that float32 was added up. float64 values give 0.1.
# Why it matters here: a day of latencies is that long, and float32 is what one keeps such a thing in.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numba==0.68.1 numpy==2.4.6

"$folder/venv/bin/python" - <<'PYTHON'
import sys

import numba
import numpy as np


@numba.njit
def compiled_mean(values):
    return np.mean(values)


values = np.full(20_000_000, 0.1, dtype=np.float32)
plain, compiled, wide = float(np.mean(values)), compiled_mean(values), compiled_mean(values.astype(np.float64))
print(f"NumPy {plain:.8f}, compiled {compiled:.8f} ({type(compiled).__name__}), compiled of float64 {wide:.8f}")
as_seen = abs(plain - 0.1) < 1e-6 and 0.104 < compiled < 0.106 and abs(wide - 0.1) < 1e-6
sys.exit(0 if as_seen else "changed: the compiled mean adds up in another way now")
PYTHON
