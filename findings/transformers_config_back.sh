#!/usr/bin/env bash
# A config.json that transformers 5 has saved is read by transformers 4 without its RoPE settings, silently.
#
# Versions: transformers 5.24.0 writes, 4.57.6 reads (neither needs PyTorch for this).
# Guess before writing: version 5 keeps the keys it read. Before reading: version 4 takes rope_theta's default, 10000.
# Seen: version 5 moves rope_theta and rope_scaling into "rope_parameters" and torch_dtype to "dtype". Version 4.57
#   reads the file without a word: rope_theta 10000.0 in place of 500000.0, and no scaling, while
#   max_position_embeddings still says 131072. The second guess was right; the first made it a surprise.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for release in 5.24.0 4.57.6; do
    python3 -m venv "$folder/$release"
    "$folder/$release/bin/pip" install --quiet transformers==$release
done
mkdir "$folder/old"
cat >"$folder/old/config.json" <<'JSON'
{"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
 "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
 "rope_theta": 500000.0, "torch_dtype": "bfloat16",
 "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 8192}}
JSON

export HF_HUB_OFFLINE=1
"$folder/5.24.0/bin/python" - "$folder" 2>/dev/null <<'PYTHON'
import sys

from transformers import AutoConfig

AutoConfig.from_pretrained(f"{sys.argv[1]}/old").save_pretrained(f"{sys.argv[1]}/new")
PYTHON
"$folder/4.57.6/bin/python" - "$folder" 2>"$folder/words" <<'PYTHON'
import json
import sys

from transformers import AutoConfig

with open(f"{sys.argv[1]}/new/config.json") as file:
    saved = json.load(file)
moved = {"rope_theta", "rope_scaling", "torch_dtype"} - set(saved)
old, new = (AutoConfig.from_pretrained(f"{sys.argv[1]}/{name}") for name in ("old", "new"))
print(f"gone from the file: {sorted(moved)}; there instead: rope_parameters {saved.get('rope_parameters')}")
for name, config in (("old", old), ("new", new)):
    print(f"{name}: theta {config.rope_theta}, scaling {config.rope_scaling}, {config.max_position_embeddings}")
as_seen = len(moved) == 3 and (old.rope_theta, new.rope_theta, new.rope_scaling) == (500000.0, 10000.0, None)
sys.exit(0 if as_seen else "changed: version 4 reads what version 5 wrote")
PYTHON
! grep -i rope "$folder/words" || { echo "changed: version 4 warns of it"; exit 1; }
