"""Fits as JSON, version 1: what `plimsoll fit` writes and a row of table `fit` holds. Strict in reading.

Without `sampled`, which older fits do not have, nothing counts as outside.
"""

import json
import math
import sys
from typing import cast, get_args

import numpy as np

from solvers.predict.data.fit import LEVELS, Coefficients, Fit, Fits, Quality, Quantity
from solvers.predict.data.sampled_range import (
    ANYWHERE,
    CONDITIONS,
    SampledRange,
    SampledSpan,
)
from solvers.predict.data.samples import Group, Reals
from solvers.predict.data.techniques import technique_names
from solvers.types.documents.strict_json import (
    Fields,
    describe,
    parse_json,
    read_integer,
    read_number,
    read_text,
)
from solvers.types.errors import InvalidInput
from solvers.types.state import Json

VERSION = 1


def fits_to_json(fits: Fits) -> str:
    """One line per fit, so that two files can be compared."""
    lines = ",\n".join(
        json.dumps(fit_to_document(fit), allow_nan=False) for fit in fits.fits
    )
    return f'{{"version": {VERSION}, "fits": [\n{lines}\n]}}\n'


def fits_from_json(text: str | bytes) -> Fits:
    """Read what `fits_to_json` wrote. Raises InvalidInput, which names the field."""
    fields = Fields(parse_json(text), "")
    if fields.integer("version") != VERSION:
        raise InvalidInput(
            "version", f"must be {VERSION}; make the file again with `plimsoll fit`"
        )
    fits = fields.each("fits", fit_from_document)
    fields.done()
    # `Fits` finds a fit by this key, and would silently take the last of two.
    seen: set[tuple[Quantity, Group]] = set()
    for index, fit in enumerate(fits):
        if (fit.quantity, fit.group) in seen:
            problem = (
                f"a second fit of {fit.quantity} for {' on '.join(fit.group)}; keep one"
            )
            raise InvalidInput(f"fits[{index}]", problem)
        seen.add((fit.quantity, fit.group))
    return Fits(fits=fits)


def fit_to_document(fit: Fit) -> dict[str, Json]:
    """One fit as JSON values."""
    return {
        "quantity": fit.quantity,
        "network": fit.group.network,
        "gpu_type": fit.group.gpu_type,
        "technique": fit.technique,
        "source": fit.source,
        "quality": _quality_document(fit.quality),
        "sampled": {
            name: _span_document(getattr(fit.sampled, name)) for name in CONDITIONS
        },
        "rejected": [
            {"technique": name, "cross_validated_error": _or_null(error)}
            for name, error in fit.rejected
        ],
        "coefficients": _coefficients_document(fit.coefficients),
    }


def _quality_document(quality: Quality) -> dict[str, Json]:
    # Infinite errors are null: JSON has no infinity.
    return {
        "training_error": _or_null(quality.training_error),
        "cross_validated_error": _or_null(quality.cross_validated_error),
        "cross_validated_error_p90": _or_null(quality.cross_validated_error_p90),
        "sample_count": quality.sample_count,
        "ratio_quantiles": list(quality.ratio_quantiles),
    }


def _coefficients_document(coefficients: Coefficients) -> dict[str, Json]:
    arrays = coefficients.arrays.items()
    labels = coefficients.labels.items()
    return {
        "arrays": {name: _array_document(array) for name, array in arrays},
        "labels": {name: list(names) for name, names in labels},
    }


def fit_from_document(document: object, path: str = "fit") -> Fit:
    """Read what `fit_to_document` made. Raises InvalidInput, which names the field below `path`."""
    fields = Fields(document, path)
    quantity = cast(Quantity, fields.choice("quantity", get_args(Quantity)))
    fit = Fit(
        quantity=quantity,
        group=Group(
            network=_maybe_empty(fields, "network"), gpu_type=fields.text("gpu_type")
        ),
        technique=fields.choice("technique", technique_names(quantity)),
        # Fits of earlier versions do not say where their samples lay.
        sampled=fields.read("sampled", _sampled)
        if fields.given("sampled")
        else ANYWHERE,
        source=fields.read("source", _source),
        quality=fields.read("quality", _quality),
        rejected=fields.each("rejected", _rejected),
        coefficients=fields.read("coefficients", _coefficients),
    )
    fields.done()
    return fit


def _quality(document: object, path: str) -> Quality:
    fields = Fields(document, path)
    quality = Quality(
        training_error=_number_or_infinite(fields, "training_error"),
        cross_validated_error=_number_or_infinite(fields, "cross_validated_error"),
        cross_validated_error_p90=_number_or_infinite(
            fields, "cross_validated_error_p90"
        ),
        sample_count=fields.integer("sample_count"),
        ratio_quantiles=fields.each("ratio_quantiles", _positive),
    )
    quantiles = quality.ratio_quantiles
    # They are interpolated between LEVELS, so that each must have its own and none may cross another.
    if len(quantiles) != len(LEVELS) or list(quantiles) != sorted(quantiles):
        raise InvalidInput(
            fields.at("ratio_quantiles"),
            f"must be {len(LEVELS)} numbers that never fall",
        )
    fields.done()
    return quality


def _positive(value: object, path: str) -> float:
    return read_number(value, path, above=0.0)


def _sampled(document: object, path: str) -> SampledRange:
    fields = Fields(document, path)
    sampled = SampledRange(**{name: _span(fields, name) for name in CONDITIONS})
    fields.done()
    return sampled


def _span(fields: Fields, name: str) -> SampledSpan | None:
    if fields.value(name) is None:
        return None
    ends = fields.each(name, _positive)
    if len(ends) != 2 or ends[0] > ends[1]:
        raise InvalidInput(fields.at(name), "must be the least and the greatest number")
    return SampledSpan(*ends)


def _span_document(span: SampledSpan | None) -> Json:
    return None if span is None else list(span)


def _rejected(document: object, path: str) -> tuple[str, float]:
    fields = Fields(document, path)
    entry = (
        fields.text("technique"),
        _number_or_infinite(fields, "cross_validated_error"),
    )
    fields.done()
    return entry


def _coefficients(document: object, path: str) -> Coefficients:
    fields = Fields(document, path)
    arrays = fields.read("arrays", Fields)
    labels = fields.read("labels", Fields)
    coefficients = Coefficients(
        arrays={name: arrays.read(name, _array) for name in arrays.names()},
        labels={name: labels.each(name, read_text) for name in labels.names()},
    )
    fields.done()
    return coefficients


def _array(document: object, path: str) -> Reals:
    fields = Fields(document, path)
    shape = fields.each("shape", read_integer)
    values = fields.each("values", _coefficient)
    if math.prod(shape) != len(values):
        problem = f"must be {math.prod(shape)} numbers for shape {list(shape)}"
        raise InvalidInput(fields.at("values"), problem)
    fields.done()
    return np.array(values, dtype=np.float64).reshape(shape)


def _coefficient(document: object, path: str) -> float:
    """A number of any size, for coefficients have units of their own; null = NaN, a fact that is not known."""
    if document is None:
        return math.nan
    largest = sys.float_info.max
    return read_number(document, path, at_least=-largest, at_most=largest)


def _array_document(array: Reals) -> dict[str, Json]:
    values = array.ravel().tolist()
    return {
        "shape": list(array.shape),
        "values": [None if math.isnan(value) else value for value in values],
    }


def _maybe_empty(fields: Fields, name: str) -> str:
    # An interference fit is about all networks of a GPU type: its network is "", which no other text field may be.
    return "" if fields.value(name) == "" else fields.text(name)


def _source(document: object, path: str) -> str:
    """A text of any length, for it may name many files."""
    if not isinstance(document, str):
        raise InvalidInput(path, f"must be a string, not {describe(document)}")
    return document


def _number_or_infinite(fields: Fields, name: str) -> float:
    """An error; of any size, for one of a technique that fails can be absurd. null = infinite."""
    if fields.value(name) is None:
        return math.inf
    return fields.number(name, at_most=sys.float_info.max)


def _or_null(error: float) -> float | None:
    return error if math.isfinite(error) else None
