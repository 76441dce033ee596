"""The fields that classes of transformers (5.24) take where a publisher's file leaves them out.

Files of networks with several senses state of their language part only what differs from these.
"""

from collections.abc import Mapping
from functools import cache

_TABLE = """
afmoe layers=32 hidden=2048 heads=16 head_dim=128 intermediate=6144 vocab=200192 context=16384 window=1024
  experts=64 per_token=6 expert_intermediate=1408 tied=0
aimv2_vision_model layers=24 hidden=1024 heads=8 intermediate=2816 tied=0
apertus layers=32 hidden=4096 heads=32 intermediate=14336 vocab=131072 context=65536 tied=0
arcee layers=32 hidden=2560 heads=32 intermediate=18432 vocab=32000 context=4096 tied=0
aria_text layers=32 hidden=4096 heads=32 intermediate=4096 vocab=32000 context=2048 experts=8 tied=0
bamba layers=32 hidden=4096 heads=32 kv_heads=8 intermediate=14336 vocab=128000 context=262144 tied=0
bitnet layers=30 hidden=2560 heads=20 kv_heads=5 intermediate=6912 vocab=128256 context=2048 tied=0
bloom layers=2 hidden=64 heads=8 vocab=250880 tied=1
clip_vision_model layers=12 hidden=768 heads=12 intermediate=3072 tied=0
codegen layers=28 hidden=4096 heads=16 vocab=50400 context=2048 tied=0
cohere layers=40 hidden=8192 heads=64 intermediate=22528 vocab=256000 context=8192 tied=1
cohere2 layers=40 hidden=8192 heads=64 intermediate=22528 vocab=256000 context=8192 window=4096 tied=1
cohere2_moe layers=40 hidden=8192 heads=64 head_dim=128 intermediate=22528 vocab=256000 context=8192 window=4096
  experts=8 per_token=2 tied=1
dbrx layers=24 hidden=2048 heads=16 vocab=32000 context=2048 tied=0
deepseek_v2 layers=32 hidden=4096 heads=32 intermediate=11008 vocab=102400 context=2048 experts=64
  expert_intermediate=1407 tied=0
deepseek_v3 layers=61 hidden=7168 heads=128 kv_heads=128 intermediate=18432 vocab=129280 context=4096 experts=256
  per_token=8 expert_intermediate=2048 tied=0
deepseek_v32 layers=61 hidden=7168 heads=128 kv_heads=128 intermediate=18432 vocab=129280 context=163840 experts=256
  per_token=8 expert_intermediate=2048 tied=0
dots1 layers=62 hidden=4608 heads=32 kv_heads=32 intermediate=10944 vocab=152064 context=2048 window=4096
  expert_intermediate=1408 tied=0
emu3_text_model layers=32 hidden=4096 heads=32 kv_heads=8 intermediate=14336 vocab=184622 context=9216 tied=0
ernie4_5 layers=18 hidden=1024 heads=16 kv_heads=2 head_dim=128 intermediate=3072 vocab=103424 context=131072 tied=1
ernie4_5_moe layers=28 hidden=2560 heads=20 kv_heads=4 intermediate=12288 vocab=103424 context=131072 experts=64
  per_token=6 expert_intermediate=1536 tied=1
ernie4_5_vl_moe_text layers=28 hidden=2560 heads=20 kv_heads=4 intermediate=12288 vocab=103424 context=131072
  experts=64 per_token=6 tied=1
exaone4 layers=32 hidden=4096 heads=32 kv_heads=32 intermediate=16384 vocab=102400 context=2048 window=4096 tied=0
exaone_moe layers=32 hidden=4096 heads=32 kv_heads=32 intermediate=16384 vocab=102400 context=2048 window=4096
  experts=64 per_token=8 expert_intermediate=1024 tied=0
falcon layers=32 hidden=4544 heads=71 vocab=65024 context=2048 tied=1
falcon_h1 layers=32 hidden=4096 heads=32 kv_heads=8 intermediate=14336 vocab=128000 context=8192 tied=0
flex_olmo layers=32 hidden=4096 heads=32 intermediate=11008 vocab=100352 context=4096 experts=7 per_token=5 tied=0
gemma layers=28 hidden=3072 heads=16 kv_heads=16 head_dim=256 intermediate=24576 vocab=256000 context=8192 tied=1
gemma2 layers=26 hidden=2304 heads=8 kv_heads=4 head_dim=256 intermediate=9216 vocab=256000 context=8192 window=4096
  tied=1
gemma3_text layers=26 hidden=2304 heads=8 kv_heads=4 head_dim=256 intermediate=9216 vocab=262208 context=131072
  window=4096 tied=1
gemma3n_audio hidden=1536 vocab=128 tied=0
gemma3n_text layers=35 hidden=2048 heads=8 kv_heads=2 head_dim=256 vocab=262400 context=32768 window=512 tied=1
gemma4_text layers=30 hidden=2304 heads=8 kv_heads=4 head_dim=256 intermediate=9216 vocab=262144 context=131072
  window=512 tied=1
gemma4_vision layers=16 hidden=768 heads=12 kv_heads=12 head_dim=64 intermediate=3072 context=131072 tied=0
glm layers=40 hidden=4096 heads=32 kv_heads=2 head_dim=128 intermediate=13696 vocab=151552 context=131072 tied=0
glm4 layers=40 hidden=4096 heads=32 kv_heads=2 head_dim=128 intermediate=13696 vocab=151552 context=131072 tied=0
glm4_moe layers=46 hidden=4096 heads=96 kv_heads=8 intermediate=10944 vocab=151552 context=131072 experts=128
  per_token=8 expert_intermediate=1408 tied=0
glm4_moe_lite layers=47 hidden=2048 heads=20 kv_heads=20 intermediate=10240 vocab=154880 context=202752 experts=64
  per_token=4 expert_intermediate=1536 tied=0
glm4v_moe_text layers=46 hidden=4096 heads=96 kv_heads=8 intermediate=10944 vocab=151424 context=65536 experts=128
  per_token=8 expert_intermediate=1408 tied=0
glm4v_moe_vision layers=24 hidden=1536 heads=12 intermediate=13696 tied=0
glm4v_text layers=40 hidden=4096 heads=32 kv_heads=2 intermediate=13696 vocab=151552 context=32768 tied=0
glm4v_vision layers=24 hidden=1536 heads=12 intermediate=13696 tied=0
glm_moe_dsa layers=78 hidden=6144 heads=64 kv_heads=64 intermediate=12288 vocab=154880 context=202752 experts=256
  per_token=8 expert_intermediate=2048 tied=0
gpt2 layers=12 hidden=768 heads=12 vocab=50257 context=1024 tied=1
gpt_bigcode layers=12 hidden=768 heads=12 vocab=50257 context=1024 tied=1
gpt_neo layers=24 hidden=2048 heads=16 vocab=50257 context=2048 tied=1
gpt_neox layers=44 hidden=6144 heads=64 intermediate=24576 vocab=50432 context=2048 tied=0
gpt_oss layers=36 hidden=2880 heads=64 kv_heads=8 head_dim=64 intermediate=2880 vocab=201088 context=131072
  window=128 experts=128 per_token=4 tied=0
gptj layers=28 hidden=4096 heads=16 vocab=50400 context=2048 tied=0
granite layers=32 hidden=4096 heads=32 intermediate=11008 vocab=32000 context=2048 tied=0
granitemoe layers=32 hidden=4096 heads=32 intermediate=11008 vocab=32000 context=2048 experts=8 per_token=2 tied=0
granitemoehybrid layers=32 hidden=4096 heads=32 intermediate=11008 vocab=32000 context=2048 experts=8 per_token=2
  tied=0
granitemoeshared layers=32 hidden=4096 heads=32 intermediate=11008 vocab=32000 context=2048 experts=8 per_token=2
  tied=0
helium layers=24 hidden=2560 heads=20 kv_heads=20 head_dim=128 intermediate=7040 vocab=48000 context=4096 tied=0
hunyuan_v1_dense layers=32 hidden=4096 heads=32 intermediate=11008 vocab=290943 context=2048 tied=0
hunyuan_v1_moe layers=32 hidden=4096 heads=32 intermediate=11008 vocab=290943 context=2048 experts=1 per_token=1
  tied=0
hy_v3 layers=80 hidden=4096 heads=64 kv_heads=8 head_dim=128 intermediate=13312 vocab=120832 context=131072
  experts=192 per_token=8 expert_intermediate=1536 tied=0
idefics3_vision layers=12 hidden=1152 heads=16 intermediate=3072 tied=0
internlm3 layers=48 hidden=4096 heads=32 kv_heads=2 head_dim=128 intermediate=10240 vocab=128512 context=32768
  tied=0
internvl_vision layers=24 hidden=1024 heads=16 intermediate=4096 tied=0
jamba layers=32 hidden=4096 heads=32 kv_heads=8 intermediate=14336 vocab=65536 context=262144 experts=16 per_token=2
  tied=0
jetmoe layers=12 hidden=2048 heads=32 kv_heads=16 intermediate=5632 vocab=32000 context=4096 experts=8 per_token=2
  tied=1
kimi_linear layers=27 hidden=2304 heads=32 kv_heads=32 intermediate=9216 vocab=163840 context=1048576 experts=256
  per_token=8 expert_intermediate=1024 tied=0
laguna layers=40 hidden=2048 heads=48 kv_heads=8 head_dim=128 intermediate=8192 vocab=100352 context=131072
  window=512 experts=256 per_token=8 expert_intermediate=512 tied=0
lfm2 layers=32 hidden=2560 heads=32 kv_heads=8 intermediate=12288 vocab=65536 context=128000 tied=1
lfm2_moe layers=32 hidden=2048 heads=32 kv_heads=8 intermediate=7168 vocab=65536 context=128000 experts=32
  per_token=4 expert_intermediate=1792 tied=1
llama layers=32 hidden=4096 heads=32 intermediate=11008 vocab=32000 context=2048 tied=0
llama4_text layers=48 hidden=5120 heads=40 kv_heads=8 head_dim=128 intermediate=8192 vocab=202048 context=131072
  experts=16 per_token=1 tied=0
llama4_vision_model layers=34 hidden=768 heads=16 intermediate=5632 tied=0
longcat_flash layers=28 hidden=6144 heads=64 intermediate=12288 vocab=131072 context=131072 experts=512 per_token=12
  expert_intermediate=2048 tied=0
minicpm3 layers=62 hidden=2560 heads=40 kv_heads=40 intermediate=6400 vocab=73448 context=32768 tied=1
minimax layers=32 hidden=4096 heads=32 kv_heads=8 intermediate=14336 vocab=32000 context=131072 experts=8
  per_token=2 tied=0
minimax_m2 layers=62 hidden=3072 heads=48 kv_heads=8 head_dim=128 intermediate=1536 vocab=200064 context=196608
  experts=256 per_token=8 tied=0
ministral layers=32 hidden=4096 heads=32 kv_heads=8 intermediate=14336 vocab=32000 context=131072 window=4096 tied=0
ministral3 layers=34 hidden=4096 heads=32 kv_heads=8 head_dim=128 intermediate=14336 vocab=131072 context=262144
  tied=0
mistral layers=32 hidden=4096 heads=32 kv_heads=8 intermediate=14336 vocab=32000 context=131072 window=4096 tied=0
mistral4 layers=36 hidden=4096 heads=32 kv_heads=32 intermediate=12288 vocab=131072 context=1048576 experts=128
  per_token=4 expert_intermediate=2048 tied=0
mixtral layers=32 hidden=4096 heads=32 kv_heads=8 intermediate=14336 vocab=32000 context=131072 experts=8
  per_token=2 tied=0
mllama_text_model layers=40 hidden=4096 heads=32 kv_heads=8 intermediate=14336 vocab=128256 context=131072 tied=0
mllama_vision_model layers=32 hidden=1280 heads=16 intermediate=5120 tied=0
mpt layers=24 hidden=2048 heads=16 vocab=50368 context=2048 tied=1
nanochat layers=12 hidden=768 heads=6 intermediate=8192 vocab=50304 context=2048 tied=0
nemotron layers=32 hidden=6144 heads=48 intermediate=24576 vocab=256000 context=4096 tied=0
nemotron_h hidden=4096 heads=32 kv_heads=8 head_dim=128 intermediate=21504 vocab=131072 context=4096 experts=8
  per_token=2 expert_intermediate=7688 tied=0
olmo layers=32 hidden=4096 heads=32 intermediate=11008 vocab=50304 context=2048 tied=0
olmo2 layers=32 hidden=4096 heads=32 intermediate=11008 vocab=50304 context=2048 tied=0
olmo3 layers=32 hidden=4096 heads=32 intermediate=11008 vocab=50304 context=2048 window=4096 tied=0
olmo_hybrid layers=32 hidden=3840 heads=30 intermediate=11008 vocab=100352 context=65536 tied=0
olmoe layers=16 hidden=2048 heads=16 intermediate=2048 vocab=50304 context=4096 experts=64 per_token=8 tied=0
opt layers=12 hidden=768 heads=12 intermediate=3072 vocab=50272 context=2048 tied=1
persimmon layers=36 hidden=4096 heads=64 intermediate=16384 vocab=262144 context=16384 tied=0
phi layers=24 hidden=2048 heads=32 intermediate=8192 vocab=51200 context=2048 tied=0
phi3 layers=32 hidden=3072 heads=32 intermediate=8192 vocab=32064 context=4096 tied=0
phimoe layers=32 hidden=4096 heads=32 kv_heads=8 intermediate=6400 vocab=32064 context=131072 experts=16 per_token=2
  tied=0
pixtral layers=24 hidden=1024 heads=16 intermediate=4096 tied=0
qwen2 layers=32 hidden=4096 heads=32 kv_heads=32 intermediate=22016 vocab=151936 context=32768 tied=0
qwen2_5_omni_audio_encoder layers=32 hidden=1280 heads=20 intermediate=5120 tied=0
qwen2_5_omni_text layers=28 hidden=3584 heads=28 kv_heads=4 intermediate=18944 vocab=152064 context=32768 tied=1
qwen2_5_omni_vision_encoder layers=32 hidden=3584 heads=16 intermediate=3420 tied=0
qwen2_5_vl_text layers=80 hidden=8192 heads=64 kv_heads=8 intermediate=29568 vocab=152064 context=32768 tied=0
qwen2_5_vl_vision layers=32 hidden=3584 heads=16 intermediate=3420 tied=0
qwen2_audio tied=0
qwen2_audio_encoder layers=32 hidden=1280 heads=20 intermediate=5120 tied=0
qwen2_moe layers=24 hidden=2048 heads=16 kv_heads=16 intermediate=5632 vocab=151936 context=32768 experts=60
  per_token=4 expert_intermediate=1408 tied=0
qwen2_vl_text layers=80 hidden=8192 heads=64 kv_heads=8 intermediate=29568 vocab=152064 context=32768 tied=0
qwen2_vl_vision layers=32 hidden=3584 heads=16 tied=0
qwen3 layers=32 hidden=4096 heads=32 kv_heads=32 head_dim=128 intermediate=22016 vocab=151936 context=32768 tied=0
qwen3_5_moe_text layers=40 hidden=2048 heads=16 kv_heads=2 head_dim=256 vocab=248320 context=32768 experts=256
  per_token=8 expert_intermediate=512 tied=0
qwen3_5_moe_vision layers=27 hidden=1152 heads=16 intermediate=4304 tied=0
qwen3_5_text layers=32 hidden=4096 heads=16 kv_heads=4 head_dim=256 intermediate=12288 vocab=248320 context=32768
  tied=0
qwen3_5_vision layers=27 hidden=1152 heads=16 intermediate=4304 tied=0
qwen3_moe layers=24 hidden=2048 heads=32 kv_heads=4 intermediate=6144 vocab=151936 context=32768 experts=128
  per_token=8 expert_intermediate=768 tied=0
qwen3_next layers=48 hidden=2048 heads=16 kv_heads=2 head_dim=256 intermediate=5632 vocab=151936 context=32768
  experts=512 per_token=10 expert_intermediate=512 tied=0
qwen3_omni_moe_audio_encoder layers=32 hidden=1280 heads=20 intermediate=5120 tied=0
qwen3_omni_moe_text layers=28 hidden=2048 heads=28 kv_heads=4 intermediate=18944 vocab=3584 context=32768
  experts=128 per_token=8 expert_intermediate=768 tied=0
qwen3_omni_moe_vision_encoder layers=27 hidden=1152 heads=16 intermediate=4304 tied=0
qwen3_vl_moe_text layers=24 hidden=2048 heads=16 kv_heads=16 intermediate=5632 vocab=151936 context=128000
  experts=60 per_token=4 expert_intermediate=1408 tied=1
qwen3_vl_moe_vision layers=27 hidden=1152 heads=16 intermediate=4304 tied=0
qwen3_vl_text layers=32 hidden=4096 heads=32 kv_heads=32 head_dim=128 intermediate=22016 vocab=151936 context=128000
  tied=0
qwen3_vl_vision layers=27 hidden=1152 heads=16 intermediate=4304 tied=0
recurrent_gemma layers=26 hidden=2560 heads=10 intermediate=7680 vocab=256000 tied=1
seed_oss layers=64 hidden=4096 heads=80 kv_heads=8 head_dim=128 intermediate=27648 vocab=155136 context=524288
  tied=0
siglip2_vision_model layers=12 hidden=768 heads=12 intermediate=3072 tied=0
siglip_vision_model layers=12 hidden=768 heads=12 intermediate=3072 tied=0
smollm3 layers=36 hidden=2048 heads=16 kv_heads=4 intermediate=11008 vocab=128256 context=32768 tied=1
smolvlm tied=0
smolvlm_vision layers=12 hidden=1152 heads=16 intermediate=3072 tied=0
solar_open layers=48 hidden=4096 heads=64 kv_heads=8 head_dim=128 vocab=196608 context=131072 experts=128
  per_token=8 expert_intermediate=1280 tied=0
stablelm layers=32 hidden=2560 heads=32 kv_heads=32 intermediate=6912 vocab=50304 context=4096 tied=0
starcoder2 layers=30 hidden=3072 heads=24 kv_heads=2 intermediate=12288 vocab=49152 context=4096 tied=1
step3p5 layers=45 hidden=4096 heads=64 kv_heads=8 head_dim=128 intermediate=11264 vocab=128815 context=128000
  experts=288 per_token=8 expert_intermediate=1280 tied=0
t5gemma2_text layers=26 hidden=2304 heads=8 kv_heads=4 head_dim=256 intermediate=9216 vocab=262208 context=131072
  window=4096 tied=1
vaultgemma layers=26 hidden=2304 heads=8 kv_heads=4 head_dim=256 intermediate=9216 vocab=256000 context=8192
  window=4096 tied=1
voxtral_encoder layers=32 hidden=1280 heads=20 intermediate=5120 vocab=51866 tied=0
whisper layers=4 hidden=384 heads=6 intermediate=1536 vocab=51865 tied=1
xglm layers=24 hidden=1024 heads=16 intermediate=4096 vocab=256008 context=2048 tied=1
youtu layers=32 hidden=2048 heads=16 kv_heads=16 intermediate=6144 vocab=128256 context=131072 tied=1
zamba2 layers=54 hidden=2560 heads=32 vocab=32000 context=4096 tied=1
"""
"""A type's name, then its defaults; further lines of a type begin with a blank. `tied`: 1 where embedding and output
are one matrix."""
_SAME = {
    # Types that take another class's fields, or that go by an older name.
    "RefinedWeb": "falcon",
    "RefinedWebModel": "falcon",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "kimi_k2": "deepseek_v3",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
}


def class_defaults(kind: str) -> Mapping[str, int]:
    """The defaults of a type, by what they are of; empty for one that is not known."""
    return _table().get(_SAME.get(kind, kind), {})


@cache
def _table() -> Mapping[str, Mapping[str, int]]:
    found: dict[str, dict[str, int]] = {}
    kind = ""
    for line in _TABLE.strip().splitlines():
        cells = line.split()
        # A line that goes on has no type of its own.
        if not line.startswith(" "):
            kind = cells.pop(0)
            found[kind] = {}
        pairs = (cell.partition("=") for cell in cells)
        found[kind].update({name: int(value) for name, _, value in pairs})
    return found
