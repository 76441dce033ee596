"""Fields of a `config.json` by any of the names that publishers give them, wherever the language part is kept.

Where a publisher left a field out, the default of its class in transformers (5.24) holds, as it does for engines.
"""

from collections.abc import Mapping, Sequence

from solvers.llm.configs.defaults import class_defaults
from solvers.types.documents.strict_json import describe
from solvers.types.errors import InvalidInput

MAX_COUNT = 100_000_000
"""No field that is read here is larger; a bigger one is no count of anything in a network."""
NAMES: Mapping[str, tuple[str, ...]] = {
    "layers": (
        "num_hidden_layers",
        "n_layer",
        "n_layers",
        "num_layers",
        "decoder_layers",
    ),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim", "n_embed", "model_dim"),
    "heads": (
        "num_attention_heads",
        "n_head",
        "n_heads",
        "num_heads",
        "decoder_attention_heads",
    ),
    "kv_heads": (
        "n_head_kv",
        "num_kv_heads",
        "num_key_value_heads",
        "n_kv_heads",
        "kv_n_heads",
        "num_attention_groups",
        "num_query_groups",
    ),
    "head_dim": (
        "head_dim",
        "attention_head_dim",
        "hidden_size_per_head",
        "kv_channels",
    ),
    "intermediate": (
        "intermediate_size",
        "ffn_dim",
        "ffn_hidden_size",
        "n_inner",
        "hidden_dim",
        "inner_hidden_size",
        "decoder_ffn_dim",
        "ff_intermediate_size",
    ),
    "vocab": ("vocab_size", "padded_vocab_size"),
}
"""What is read, by every name that it has in published files."""
_LANGUAGE = (
    "thinker_config",
    "text_config",
    "llm_config",
    "language_config",
    "language_model_config",
    "language_model",
    "llm",
    "model_config",
    "decoder_config",
)
_OTHER_SENSES = ("vision", "visual", "audio", "speech", "image", "talker", "encoder")
"""Parts of these names are towers, even where they have layers of their own."""
_INNER = ("attn_config", "ffn_config", "moe")
"""Objects that some publishers keep the fields of one kind of layer in (MPT, DBRX, Mistral's params.json)."""
_MAX_DEPTH = 3

Fields = Mapping[str, object]


class ConfigFields:
    """The language part of a configuration, and notes of what had to be assumed."""

    def __init__(self, document: object) -> None:
        if not isinstance(document, Mapping):
            message = f"must be an object, not {describe(document)}"
            raise InvalidInput("config", message)
        self.document: Fields = document
        self.part: Fields = _language_part(document)
        self.notes: list[str] = []
        self._defaults = class_defaults(self.kind)

    @property
    def kind(self) -> str:
        """The type that the language part states of itself; empty where it states none."""
        for fields in (self.part, self.document):
            kind = fields.get("model_type")
            if isinstance(kind, str):
                return kind
        return ""

    @property
    def architectures(self) -> tuple[str, ...]:
        """Names of the classes that run the network."""
        # The outer class runs the network, whatever the inner one is called.
        for fields in (self.document, self.part):
            named = fields.get("architectures")
            if isinstance(named, Sequence) and not isinstance(named, str):
                return tuple(name for name in named if isinstance(name, str))
        return ()

    # Null and absent are the same to engines, but for the few fields that ask for more.
    def value(self, *names: str) -> object:
        """The first of these fields that is there and not null, in the language part and its objects."""
        for fields in (self.part, *self._inner()):
            for name in names:
                if fields.get(name) is not None:
                    return fields[name]
        return None

    def _inner(self) -> list[Fields]:
        found = (self.part.get(name) for name in _INNER)
        return [each for each in found if isinstance(each, Mapping)]

    def has(self, *names: str) -> bool:
        """Whether one of the fields is there, and says something."""
        return self.value(*names) not in (None, 0, False, [], "")

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A field that is true or false."""
        value = self.value(name)
        return value if isinstance(value, bool) else default

    def text(self, *names: str) -> str:
        """A text; empty where there is none."""
        value = self.value(*names)
        return value if isinstance(value, str) else ""

    def number(self, name: str, *, default: float) -> float:
        """A number of any kind."""
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return default
        # JSON of Python knows infinity, which is no ratio.
        return float(value) if 0 <= value <= MAX_COUNT else default

    def items(self, *names: str) -> list[object]:
        """A list; empty where there is none."""
        value = self.value(*names)
        return value if isinstance(value, list) else []

    def part_of(self, *names: str) -> Fields:
        """An object; empty where there is none."""
        value = self.value(*names)
        return value if isinstance(value, Mapping) else {}

    def count(self, *names: str, default: int | None = None) -> int:
        """A number of at least 0, by the first of these names that is there. Raises InvalidInput."""
        for name in names:
            value = self.value(name)
            # Networks whose layers differ list one figure per layer, the largest of which decides.
            if isinstance(value, list) and value:
                value = max(
                    (each for each in value if isinstance(each, int)), default=None
                )
            if value is not None:
                return checked_count(name, value)
        if default is None:
            message = (
                "is missing, in the file and in its parts for language "
                f"({', '.join(_LANGUAGE[1:4])}): give the config.json of the network itself"
            )
            raise InvalidInput(f"config.{names[0]}", message)
        return default

    def known(self, what: str, *, default: int | None = None) -> int:
        """One of `NAMES`, else the default of the publisher's class, with a note. Raises InvalidInput."""
        names = NAMES[what]
        if self.value(*names) is None and what in self._defaults:
            value = self._defaults[what]
            self.notes.append(
                f"{names[0]} is not stated: taken as {value}, the default of {self.kind}"
            )
            return value
        return self.count(*names, default=default)

    def assumed(self, what: str) -> int | None:
        """The default of the publisher's class, without a note; None where there is none."""
        return self._defaults.get(what)


def checked_count(name: str, value: object) -> int:
    """The value as a count. Raises InvalidInput, which names the field."""
    # Some writers of JSON make 32.0 of 32.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        message = f"must be a whole number, not {describe(value)}"
        raise InvalidInput(f"config.{name}", message)
    if not 0 <= value <= MAX_COUNT:
        message = f"must be between 0 and {MAX_COUNT}, not {describe(value)}"
        raise InvalidInput(f"config.{name}", message)
    return value


def _language_part(document: Fields, depth: int = 0) -> Fields:
    """The object that describes the language network: the document itself, or one that it holds."""
    for name in _LANGUAGE:
        nested = document.get(name)
        if isinstance(nested, Mapping) and nested and depth < _MAX_DEPTH:
            return _language_part(nested, depth + 1)
    # Old files have no parts: the document itself is the network.
    if _has_layers(document) or depth == _MAX_DEPTH:
        return document
    # Publishers invent names of their own: the part that has layers and a vocabulary is the one.
    for name, nested in document.items():
        is_tower = any(sense in name for sense in _OTHER_SENSES)
        if isinstance(nested, Mapping) and _has_layers(nested) and not is_tower:
            return _language_part(nested, depth + 1)
    return document


def _has_layers(fields: Fields) -> bool:
    return any(fields.get(name) is not None for name in NAMES["layers"])
