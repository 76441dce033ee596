"""Random messages of the wire contract, drawn from what its types allow, their bounds more often than all between."""

from typing import Any

from hypothesis import strategies as st
from msgspec import inspect


def values(kind: inspect.Type, names: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """What JSON may hold for a type. `names` are drawn where a text may be one, besides any other text."""
    match kind:
        case inspect.StructType():
            return _struct(kind, names)
        case inspect.UnionType():
            return st.one_of(values(each, names) for each in kind.types)
        case inspect.TupleType():
            return st.tuples(*(values(each, names) for each in kind.item_types))
        case inspect.NamedTupleType():
            return st.tuples(*(values(each.type, names) for each in kind.fields))
        case inspect.VarTupleType():
            # A few: how many there may be at most is a test of its own.
            most = 4 if kind.max_length is None else min(4, kind.max_length)
            return st.lists(values(kind.item_type, names), max_size=most)
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.IntType():
            return _integers(kind)
        case inspect.FloatType():
            return _floats(kind)
        case inspect.StrType():
            return _texts(kind, names)
    raise TypeError(f"no values for {kind}")


def _struct(
    kind: inspect.StructType, names: st.SearchStrategy[str]
) -> st.SearchStrategy[dict[str, Any]]:
    fields = {each.name: values(each.type, names) for each in kind.fields}
    required = {each.name for each in kind.fields if each.required}
    return st.fixed_dictionaries(
        {name: drawn for name, drawn in fields.items() if name in required},
        optional={
            name: drawn for name, drawn in fields.items() if name not in required
        },
    )


def _integers(kind: inspect.IntType) -> st.SearchStrategy[int]:
    assert kind.ge is not None and kind.le is not None
    least, most = int(kind.ge), int(kind.le)
    return st.sampled_from([least, most]) | st.integers(least, most)


def _floats(kind: inspect.FloatType) -> st.SearchStrategy[float]:
    least, most = kind.gt if kind.ge is None else kind.ge, kind.le
    assert least is not None and most is not None
    bounds = [float(most)] if kind.ge is None else [float(least), float(most)]
    between = st.floats(float(least), float(most), exclude_min=kind.ge is None)
    return st.sampled_from(bounds) | between


def _texts(
    kind: inspect.StrType, names: st.SearchStrategy[str]
) -> st.SearchStrategy[str]:
    assert kind.max_length is not None
    any_text = st.text(min_size=kind.min_length or 0, max_size=20)
    return names | any_text | st.just("é" * kind.max_length)
