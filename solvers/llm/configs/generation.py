"""Which networks generate tokens, one after another: the others carry no requests that have answers."""

from solvers.llm.configs.fields import ConfigFields
from solvers.types.errors import InvalidInput

_OTHER_TASKS = (
    "ForMaskedLM",
    "Classification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
    "ForNextSentencePrediction",
    "RewardModel",
    "ForPreTraining",
    "ForRanking",
    "ForRetrieval",
    "ForCTC",
    "ForScore",
    "Detection",
    "Segmentation",
    "ForTextEncoding",
    "EncoderModel",
    "EmbeddingModel",
    "BidirectionalModel",
    "ForEmbedding",
    "BiEncoder",
    "CrossEncoder",
    "ForXVector",
    "ForRegression",
)
"""Parts of names of classes that answer with something else."""
_GENERATING_MODELS = (
    "LMHeadModel",
    "ChatModel",
    "ChatGLMModel",
    "OmniModel",
    "LMModel",
    "UltravoxModel",
    "AudioModel",
    "AquilaModel",
    "VLModel",
)
"""Ends of names of classes that end in Model and generate all the same."""
_OTHER_KINDS = frozenset(
    {
        "albert",
        "bert",
        "camembert",
        "clip",
        "convbert",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "ernie",
        "eurobert",
        "gte",
        "longformer",
        "luke",
        "modernbert",
        "mpnet",
        "new",
        "nomic_bert",
        "roberta",
        "siglip",
        "squeezebert",
        "vit",
        "wav2vec2",
        "xlm-roberta",
        "xlm-roberta-xl",
    }
)
_PAIRS = frozenset(
    {"t5", "mt5", "umt5", "bart", "mbart", "pegasus", "marian", "whisper", "m2m_100"}
)
"""Types with an encoder and a decoder."""
_STATES = ("mamba", "falcon_mamba", "rwkv", "xlstm", "retnet")
"""Types whose layers all have a state of fixed size: names that begin so."""
_SHARING = ("zamba", "zamba2", "recurrent_gemma")
"""Types that use the same weights in several layers, or units of their own: what is stated says too little."""


def refuse_without_generation(config: ConfigFields) -> None:
    """Raise InvalidInput for a network that generates nothing, or in a way that the laws of steps do not know."""
    # A file may name several classes: one that generates is enough.
    names = config.architectures
    document_kind = str(config.document.get("model_type", ""))
    if names and all(_does_other_task(name) for name in names):
        _refuse("architectures", ", ".join(names))
    if document_kind in _OTHER_KINDS or document_kind.endswith("_vision_model"):
        _refuse("model_type", document_kind)
    if document_kind.startswith(_STATES):
        message = (
            f"{document_kind} has no attention, whose cache decides how many requests a replica holds: such networks "
            "cannot be sized; apply a Profile of what was measured"
        )
        raise InvalidInput("config.model_type", message)
    if document_kind in _SHARING:
        message = (
            f"{document_kind} has layers that no law here describes: such networks cannot be sized; apply a Profile of "
            "what was measured"
        )
        raise InvalidInput("config.model_type", message)
    is_pair = (
        config.document.get("is_encoder_decoder") is True or document_kind in _PAIRS
    )
    if is_pair:
        message = (
            f"{', '.join(names) or document_kind} has an encoder and a decoder, whose steps no law here predicts: "
            "apply a Profile of what was measured"
        )
        raise InvalidInput("config.architectures", message)


def _does_other_task(name: str) -> bool:
    # Tasks first: some names of generating classes end like those of others.
    if any(task in name for task in _OTHER_TASKS):
        return True
    return name.endswith("Model") and not name.endswith(_GENERATING_MODELS)


def _refuse(field: str, name: str) -> None:
    message = (
        f"{name} generates no tokens (it embeds, ranks or classifies), so that no time between tokens can be "
        "promised: apply a Profile of what was measured"
    )
    raise InvalidInput(f"config.{field}", message)
