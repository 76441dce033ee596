#!/usr/bin/env bash
# One NaN among the scores: TopK(1) and ArgMax name different classes.
#
# Versions: onnxruntime 1.32.0 (CPU), onnx 1.23.2, numpy 2.4.6.
# Guess (after a first probe with another row): TopK(1) and ArgMax agree, wherever the NaN stands.
# Seen: for scores 1, NaN, 3, 2, 0 TopK says NaN at place 1; ArgMax says place 2 and ReduceMax 3.0. If NaN comes first,
#   all three say NaN at place 0. So a network that ends with TopK fails openly, and one that ends with ArgMax answers
#   as if nothing were wrong, depending on where the NaN stands. NumPy's argmax takes NaN wherever it is.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6

"$folder/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

nodes = [
    helper.make_node("TopK", ["scores", "one"], ["top", "top_at"]),
    helper.make_node("ArgMax", ["scores"], ["best_at"], axis=1),
    helper.make_node("ReduceMax", ["scores"], ["best"], axes=[1]),
]
outputs = {"top_at": TensorProto.INT64, "best_at": TensorProto.INT64, "best": TensorProto.FLOAT}
graph = helper.make_graph(
    nodes,
    "head",
    [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 5])],
    [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
    [onnx.numpy_helper.from_array(np.array([1]), "one")],
)
network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
session = onnxruntime.InferenceSession(network.SerializeToString(), providers=["CPUExecutionProvider"])

nan, seen = float("nan"), {}
for place in (0, 1, 4):
    scores = np.array([[1, 1, 3, 2, 0]], dtype=np.float32)
    scores[0, place] = nan
    top_at, best_at, best = (each.ravel()[0] for each in session.run(list(outputs), {"scores": scores}))
    print(f"{scores[0].tolist()}: TopK {top_at}, ArgMax {best_at}, ReduceMax {best}, NumPy {scores[0].argmax()}")
    seen[place] = (int(top_at), int(best_at), bool(np.isnan(best)))
expected = {0: (0, 0, True), 1: (1, 2, False), 4: (4, 2, False)}
sys.exit(0 if seen == expected else "changed: the operators treat NaN in another way now")
PYTHON
