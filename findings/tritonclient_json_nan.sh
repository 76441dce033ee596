#!/usr/bin/env bash
# tritonclient writes tensors with NaN as a JSON that strict readers refuse, and reads null as NaN.
#
# Versions: tritonclient 2.73.0, numpy 2.4.6, orjson 3.13.0.
# Guess: without binary data, a tensor with NaN raises InferenceServerException; null in an FP32 answer raises as well.
# Seen: the body has the bare words NaN and Infinity. Python's json reads them, orjson refuses them, so whether a
#   request passes depends on the server. The other way null becomes NaN without a word, though null in an INT32 answer raises
#   TypeError.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'tritonclient[http]==2.73.0' numpy==2.4.6 orjson==3.13.0

"$folder/venv/bin/python" - <<'PYTHON'
import json
import sys

import numpy as np
import orjson
import tritonclient.http as triton


def read(datatype):
    output = {"name": "y", "datatype": datatype, "shape": [2], "data": [1, None]}
    answer = triton.InferResult.from_response_body(json.dumps({"model_name": "m", "outputs": [output]}).encode())
    try:
        return answer.as_numpy("y").tolist()
    except TypeError as error:
        return type(error).__name__


tensor = triton.InferInput("x", [3], "FP32")
tensor.set_data_from_numpy(np.array([1, np.nan, np.inf], dtype=np.float32), binary_data=False)
outputs = [triton.InferRequestedOutput("y", binary_data=False)]
body, _ = triton.InferenceServerClient.generate_request_body([tensor], outputs=outputs)
print(body)
json.loads(body)
try:
    orjson.loads(body)
    strict = "read"
except orjson.JSONDecodeError as error:
    strict = f"refused: {error}"
floats, integers = read("FP32"), read("INT32")
print(f"orjson {strict}; null in FP32 {floats}, in INT32 {integers}")
as_seen = b"[1.0,NaN,Infinity]" in body and strict.startswith("refused") and np.isnan(floats[1])
sys.exit(0 if as_seen and integers == "TypeError" else "changed: NaN and null are treated in another way now")
PYTHON
