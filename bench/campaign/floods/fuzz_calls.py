"""A flood of fuzzed calls of the whole API: `python -m bench.campaign.floods.fuzz_calls SPEC RESULT`.

Schemathesis draws calls of every operation, right ones and wrong ones, with names that exist and others; calls at the
edges of what the document says; and sequences of calls by which one makes what the next one asks for. Most come with an
admin's token, the others with one of another kind, or none. The checks below look at every answer.
"""

import contextlib
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
from hypothesis.errors import FlakyStrategyDefinition
from hypothesis.stateful import run_state_machine_as_test
from requests.structures import CaseInsensitiveDict
from schemathesis import GenerationMode
from schemathesis.core.failures import Failure
from schemathesis.core.parameters import ParameterLocation
from schemathesis.core.transport import Response
from schemathesis.generation.meta import CoverageScenario, coverage_scenario
from schemathesis.specs.openapi import checks as openapi_checks

from bench.campaign.floods.callers import Rules, api_rules, is_let_in
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
ADMIN_SHARE = 0.8
"""Of calls and of sequences; the other kinds of tokens share the rest evenly. A refusal tries the door alone, behind
which lies nearly all of the code, and costs a call as well."""

MUST = (
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.missing_required_header,
    openapi_checks.unsupported_method,
    openapi_checks.allow_header_conformance,
)
"""What the document says of answers holds, whatever was asked, and of refusals what HTTP says.

Left out: `not_a_server_error` and `max_response_time`, since `FloodResult` and the stopwatch of the event loop judge
more strictly; `ignored_auth` and `object_level_authorization`, which repeat each call with other tokens: `is_let_in`
judges the tokens that are drawn, tests/integration/test_api_auth.py and test_api_access.py ask every operation.
"""
OF_SEQUENCES = (
    openapi_checks.use_after_free,
    openapi_checks.ensure_resource_availability,
)
"""What was made is there, and what was deleted is not; these look at the calls before, too."""
WRONG_TAKEN = openapi_checks.negative_data_rejection
"""Judged but where the query alone is wrong, which is counted: FastAPI reads it generously, `until=0` as a time."""
RIGHT_REFUSED = openapi_checks.positive_data_acceptance
"""Counted, of an admin's calls: a schema cannot say for sure, since a right body may name a network that is not there;
other callers are refused for their token."""
KNOWN = ("s00", "n000", "resnet50", "T4", "default", "cost_by_service_hour", 1)
"""Values of path parameters that name something, of some operation."""


class Over(BaseException):
    """The seconds or the count are over; no part of Hypothesis takes it for a failure."""


@dataclass(slots=True, kw_only=True)
class CallFuzzer:
    """Sends what was drawn."""

    spec: FloodSpec
    ends_s: float
    draw: random.Random
    """Whose token a call comes with."""
    rules: Rules = field(default_factory=api_rules)
    """Who may call what."""
    session: requests.Session = field(default_factory=requests.Session)
    result: FloodResult = field(default_factory=FloodResult)
    who: str = ""
    """The kind of token that sequences come with: what one caller made another one may not see."""

    def caller(self) -> str:
        """The kind of token of the next call."""
        return "admin" if self.draw.random() < ADMIN_SHARE else self.other()

    def other(self) -> str:
        """Any kind but the admin's."""
        return self.draw.choice(sorted(self.spec.secrets.keys() - {"admin"}))

    def send(self, case: schemathesis.Case, recorder: Any = None) -> Response | None:
        """The answer, which was counted and checked; None where nothing may be sent or nothing came.

        `recorder`: Schemathesis' notes of the sequence that the call belongs to.
        """
        if time.monotonic() > self.ends_s or self.result.sent >= self.spec.count:
            raise Over
        what = f"{case.method} {case.formatted_path}"
        if any(name in unquote(what) for name in self.spec.kept):
            return None
        who = self.who if recorder else self.caller()
        # Whose point is that there is no token.
        who = "drawn" if _lacks_token(case) else who
        self._sign(case, who)
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
        self.result.sent_by[who] = self.result.sent_by.get(who, 0) + 1
        self._check(case, answer, who, recorder)
        return answer

    def _sign(self, case: schemathesis.Case, who: str) -> None:
        """Send that token in place of drawn credentials; one whose secret is empty leaves what was drawn."""
        drawn = dict(case.headers or {})
        if secret := self.spec.secrets.get(who):
            # Whatever their letters' case.
            for name in [each for each in drawn if each.lower() == "authorization"]:
                del drawn[name]
            drawn["Authorization"] = f"Bearer {secret}"
        # Without If-Match no object could be replaced.
        case.headers = CaseInsensitiveDict({"If-Match": "*", **drawn})

    def _check(
        self, case: schemathesis.Case, answer: Response, who: str, recorder: Any
    ) -> None:
        # A status of 500 is counted already; of others nothing is documented that could be compared.
        if answer.status_code >= 500:
            return
        what = f"{case.method} {case.formatted_path} by {who}"
        is_taken = answer.status_code < 300
        if is_taken and not is_let_in(who, case.method, case.path, self.rules):
            self.result.note_broken(f"{what}: {answer.status_code}")
        judged = (*MUST, *OF_SEQUENCES) if recorder else MUST
        if _is_wrong_beyond_query(case):
            judged = (*judged, WRONG_TAKEN)
        elif _failure(case, answer, WRONG_TAKEN, recorder) is not None:
            self.result.wrong_queries_taken += 1
        for check in judged:
            failure = _failure(case, answer, check, recorder)
            if failure is not None:
                self.result.note_broken(
                    f"{what}: {check.__name__}: {str(failure)[:300]}"
                )
        if who == "admin" and _failure(case, answer, RIGHT_REFUSED, recorder):
            self.result.right_refused += 1


def _lacks_token(case: schemathesis.Case) -> bool:
    """Whether Schemathesis left out the header with the token, and nothing else."""
    is_missing = coverage_scenario(case) is CoverageScenario.MISSING_PARAMETER
    drawn = case.meta.phase.data if case.meta is not None else None
    return is_missing and getattr(drawn, "parameter", None) == "Authorization"


def _is_wrong_beyond_query(case: schemathesis.Case) -> bool:
    """Whether its path, headers or body are wrong on purpose."""
    return case.meta is not None and any(
        part.mode.is_negative and place is not ParameterLocation.QUERY
        for place, part in case.meta.components.items()
    )


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
    fuzzer = CallFuzzer(spec=spec, ends_s=time.monotonic() + spec.seconds, draw=draw)
    try:
        url = f"{spec.url}/openapi.json"
        document = requests.get(url, timeout=TIMEOUT_S).json()
        schema = schemathesis.openapi.from_dict(document)
        # Any refusal will do, such as 412; what is 500 is told by itself.
        wrong_taken = schema.config.checks.negative_data_rejection
        wrong_taken.expected_statuses = ["4xx", "5xx"]
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
    # Schemathesis would else try each method that a path does not have once, and not once a round.
    schema.coverage_unexpected_methods_seen.clear()
    for operation in operations:
        count = 1 if operation.path.endswith(COSTLY) else examples
        for mode in GenerationMode:
            # What takes no input cannot get a wrong one.
            takes_input = operation.body or any(operation.iter_parameters())
            if mode is GenerationMode.POSITIVE or takes_input:
                _call(operation, mode, count, fuzzer, draw)
        _call_at_edges(operation, count, fuzzer, draw)


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


def _call_at_edges(
    operation: Any, count: int, fuzzer: CallFuzzer, draw: random.Random
) -> None:
    """Methods that the path does not have, parameters that are missing or twice, values at their bounds.

    Only such calls are judged by the checks of methods and of missing headers.
    """
    cases = operation.schema.iter_coverage_cases(
        operation,
        generation_modes=list(GenerationMode),
        generation_config=operation.schema.config.generation_for(operation=operation),
    )
    found = list(cases)
    for case in draw.sample(found, min(count, len(found))):
        fuzzer.send(case)


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
    # One after the other: Hypothesis wants the same calls to lead to the same ones.
    of_admin = round(ADMIN_SHARE * SEQUENCES)
    for who, count in (("admin", of_admin), (fuzzer.other(), SEQUENCES - of_admin)):
        fuzzer.who = who
        limits = _limits(max_examples=count, stateful_step_count=STEPS)
        # The server keeps what earlier sequences made, and syncs arrive at the same time. Where equal calls are
        # answered differently, Hypothesis gives up; the next round begins with another seed.
        with contextlib.suppress(FlakyStrategyDefinition):
            run_state_machine_as_test(Sequences, settings=limits)


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
