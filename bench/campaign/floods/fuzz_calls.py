"""A flood of fuzzed calls of the whole API: `python -m bench.campaign.floods.fuzz_calls SPEC RESULT`.

Schemathesis draws calls of every operation, right ones and wrong ones, with names that exist and others; and sequences
of calls by which one makes what the next one asks for. All its checks look at every answer.
"""

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from schemathesis import GenerationMode
from schemathesis.core.failures import Failure
from schemathesis.core.transport import Response
from schemathesis.specs.openapi import checks as openapi_checks

from bench.campaign.floods.flood import FloodResult, FloodSpec, read_spec, write_result

FIRST_EXAMPLES, EXAMPLES = 2, 30
"""Of an operation, a way of drawing and a round. Preparing takes as long as drawing some ten, but a short flood should
have been everywhere, too."""
STEPS, SEQUENCES = 12, 40
"""Calls of a sequence, sequences after each round of all operations."""
LATE_S = 20.0
"""After its seconds the flood ends in the middle of a call; its start counts, too."""
TIMEOUT_S = 60.0
"""A preview may wait half a minute for its turn."""
COSTLY = ("/plans/preview", "/plans/compare")
"""Each call plans: fewer of them, or nothing else is done."""

MUST = (
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
)
"""What the document says of answers holds, whatever was asked."""
OF_SEQUENCES = (
    openapi_checks.use_after_free,
    openapi_checks.ensure_resource_availability,
)
"""What was made is there, and what was deleted is not; these look at the calls before, too."""
COUNTED = (
    openapi_checks.negative_data_rejection,
    openapi_checks.positive_data_acceptance,
    openapi_checks.missing_required_header,
    openapi_checks.unsupported_method,
)
"""What a schema cannot say for sure: a right body may name a network that is not there, and is refused.

`ignored_auth` alone is left out: tests/integration/test_api_auth.py calls every operation without a valid token.
"""
KNOWN = ("s00", "n000", "resnet50", "T4", "default", "cost_by_service_hour", 1)
"""Values of path parameters that name something, of some operation."""


class Over(BaseException):
    """The seconds or the count are over; no part of Hypothesis takes it for a failure."""


@dataclass(slots=True, kw_only=True)
class CallFuzzer:
    """Sends what was drawn."""

    spec: FloodSpec
    ends_s: float
    session: requests.Session = field(default_factory=requests.Session)
    result: FloodResult = field(default_factory=FloodResult)

    def send(self, case: schemathesis.Case, recorder: Any = None) -> Response | None:
        """The answer, which was counted and checked; None where nothing may be sent or nothing came.

        `recorder`: Schemathesis' notes of the sequence that the call belongs to.
        """
        if time.monotonic() > self.ends_s or self.result.sent >= self.spec.count:
            raise Over
        what = f"{case.method} {case.formatted_path}"
        if any(name in unquote(what) for name in self.spec.kept):
            return None
        # In place of drawn credentials, whatever their letters' case; without If-Match no object could be replaced.
        drawn = {
            name: value
            for name, value in (case.headers or {}).items()
            if name.lower() != "authorization"
        }
        case.headers = {
            "If-Match": "*",
            **drawn,
            "Authorization": f"Bearer {self.spec.secrets['admin']}",
        }
        try:
            answer = case.call(
                base_url=self.spec.url,
                session=self.session,
                timeout=TIMEOUT_S,
            )
        except requests.RequestException as error:
            self.result.note(None, f"{what}: {error!r}", None)
            return None
        retry_after = answer.headers.get("retry-after", [None])[0]
        self.result.note(answer.status_code, what, retry_after)
        self._check(case, answer, what, recorder)
        return answer

    def _check(
        self, case: schemathesis.Case, answer: Response, what: str, recorder: Any
    ) -> None:
        # A status of 500 is counted already; of others nothing is documented that could be compared.
        if answer.status_code >= 500:
            return
        for check in (*MUST, *OF_SEQUENCES) if recorder else MUST:
            failure = _failure(case, answer, check, recorder)
            if failure is not None:
                self.result.note_broken(
                    f"{what}: {check.__name__}: {str(failure)[:300]}"
                )
        for check in COUNTED:
            if _failure(case, answer, check, recorder) is not None:
                counted = self.result.failed_checks
                counted[check.__name__] = counted.get(check.__name__, 0) + 1


def _failure(
    case: schemathesis.Case, answer: Response, check: Any, recorder: Any
) -> Failure | None:
    try:
        case.validate_response(answer, checks=[check], recorder=recorder)
    except Failure as failure:
        return failure
    except BaseExceptionGroup as group:
        return next(each for each in group.exceptions if isinstance(each, Failure))
    return None


def main() -> None:
    """Round after round until the seconds or the count are over."""
    spec = read_spec()
    # Drawing a large body takes seconds, planning half a minute: the end does not wait for what is under way.
    signal.signal(signal.SIGALRM, _end)
    signal.setitimer(signal.ITIMER_REAL, spec.seconds + LATE_S)
    draw = random.Random(spec.seed)
    fuzzer = CallFuzzer(spec=spec, ends_s=time.monotonic() + spec.seconds)
    try:
        url = f"{spec.url}/openapi.json"
        document = requests.get(url, timeout=TIMEOUT_S).json()
        schema = schemathesis.openapi.from_dict(document)
        fuzzer.ends_s = time.monotonic() + spec.seconds
        _round(schema, fuzzer, draw, FIRST_EXAMPLES)
        while True:
            _sequences(schema, fuzzer, draw)
            _round(schema, fuzzer, draw, EXAMPLES)
    except Over:
        pass
    # An alarm while Python ends would kill the process.
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    write_result(fuzzer.result)


def _end(*_: object) -> None:
    raise Over


def _round(schema: Any, fuzzer: CallFuzzer, draw: random.Random, examples: int) -> None:
    """Some calls of every operation, in another order each time: not all rounds come to their end."""
    operations = [each.ok() for each in schema.get_all_operations()]
    draw.shuffle(operations)
    for operation in operations:
        count = 1 if operation.path.endswith(COSTLY) else examples
        for mode in GenerationMode:
            # What takes no input cannot get a wrong one.
            takes_input = operation.body or any(operation.iter_parameters())
            if mode is GenerationMode.POSITIVE or takes_input:
                _call(operation, mode, count, fuzzer, draw)


def _call(
    operation: Any,
    mode: GenerationMode,
    count: int,
    fuzzer: CallFuzzer,
    draw: random.Random,
) -> None:
    strategy = operation.as_strategy(generation_mode=mode)
    if names := [each.name for each in operation.path_parameters]:
        known = {name: draw.choice(KNOWN) for name in names}
        strategy |= operation.as_strategy(generation_mode=mode, path_parameters=known)

    @seed(draw.getrandbits(32))
    @_limits(max_examples=count)
    @given(case=strategy)
    def call(case: schemathesis.Case) -> None:
        fuzzer.send(case)

    call()


def _sequences(schema: Any, fuzzer: CallFuzzer, draw: random.Random) -> None:
    """Calls that use what earlier ones were answered, by the document's links and those that follow from it."""

    class Sequences(schema.as_state_machine()):  # type: ignore[misc]
        def setup(self) -> None:
            fuzzer.result.sequences += 1

        def call(self, case: schemathesis.Case, **_: Any) -> Response:
            # Where nothing was sent the sequence goes on as after a refusal.
            return fuzzer.send(case, self.recorder) or _no_answer(case)

        def validate_response(self, *_: Any, **__: Any) -> None:
            """`send` did."""

    random.seed(draw.getrandbits(32))
    run_state_machine_as_test(
        Sequences, settings=_limits(max_examples=SEQUENCES, stateful_step_count=STEPS)
    )


def _limits(**settled: Any) -> Any:
    chosen: Callable[..., Any] = settings
    return chosen(
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        **settled,
    )


def _no_answer(case: schemathesis.Case) -> Response:
    prepared = requests.Request(case.method, "http://localhost").prepare()
    return Response(
        status_code=404,
        headers={},
        content=b"",
        request=prepared,
        elapsed=0.0,
        verify=True,
    )


if __name__ == "__main__":
    main()
