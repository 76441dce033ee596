"""What people ask to have simulated: checked as on the command line, and small enough to be run next to a cluster."""

import json
from collections.abc import Iterator, Mapping, Sequence

from app.api.decisions.simulation_views import (
    MAX_POLICIES,
    MAX_SEEDS,
    MAX_TEXT,
    ExampleView,
    SimulationRequest,
)
from app.base.errors import InvalidRequest
from app.base.yaml_lines import (
    Document,
    FieldPath,
    dotted,
    line_of_alias,
    read_documents,
)
from app.db.decisions.simulations import NewSimulation
from app.simulate.requests.examples import Example, find_example, load_examples
from app.simulate.scenario.checks import Complaint
from app.simulate.scenario.reading import Complaints, pool_of, scenario_of
from app.simulate.scenario.scenario import ScenarioSpec, SimulationScenario, files_of
from solvers.policies.registry import policies

# A simulation shares the machine with the control plane; these limits keep it at minutes of one core.
MAX_DURATION_S = 21_600.0
MAX_GPUS = 512
MAX_SERVICES = 100
MAX_TASKS = 1000
MAX_STEPS = 2000
"""The maximum number of steps of the time series."""
MAX_COMPLAINTS = 20
"""More are not listed: thousands would not be read."""

_REMEDY = "`plimsoll simulate` takes more"


class ScenarioIntake:
    """Takes orders for simulations."""

    def examples(self) -> Sequence[ExampleView]:
        """Shipped scenarios by name."""
        return [_example_view(example) for example in load_examples()]

    def limits(self) -> dict[str, float]:
        """The most of what may be asked for."""
        return {
            "policies": MAX_POLICIES,
            "seeds": MAX_SEEDS,
            "duration_s": MAX_DURATION_S,
            "gpus": MAX_GPUS,
            "services": MAX_SERVICES,
            "tasks": MAX_TASKS,
            "steps": MAX_STEPS,
        }

    def policies(self) -> Sequence[str]:
        """Every policy by name."""
        return sorted(policies())

    def order(self, wanted: SimulationRequest) -> NewSimulation:
        """What is to be run. Raises InvalidRequest, which names every field that is wrong."""
        document = _document(wanted)
        value = _with_choices(document.value, wanted)
        # The size first: a fleet of a billion nodes would be named node by node to be checked.
        found = tuple(_oversized(value)) or scenario_of(
            value, lambda scenario: _refused(scenario, wanted)
        )
        if not isinstance(found, SimulationScenario):
            raise _refusal(found, document, wanted)
        spec = found.spec
        return NewSimulation(
            name=found.metadata.name,
            example=wanted.example,
            document=found.model_dump(mode="json"),
            policies=tuple(run.label for run in spec.policies),
            seeds=tuple(spec.seeds),
            duration_s=spec.duration_s,
        )


def _document(wanted: SimulationRequest) -> Document:
    """The scenario as it came. Raises InvalidRequest where there is none, or its text is no YAML."""
    # Exactly one of the two: with both, it would be unclear which one is meant.
    if (wanted.example is None) == (wanted.scenario is None):
        raise InvalidRequest("give one of `example` and `scenario`", field="scenario")
    if wanted.example is not None:
        return Document(value=find_example(wanted.example).document, lines={(): 1})
    if isinstance(wanted.scenario, str):
        return _parsed(wanted.scenario)
    if (size := len(json.dumps(wanted.scenario))) > MAX_TEXT:
        problem = f"has {size:,} characters as JSON; at most {MAX_TEXT:,} are read here; {_REMEDY}"
        raise InvalidRequest(problem, field="scenario")
    return Document(value=wanted.scenario, lines={(): 1})


def _parsed(text: str) -> Document:
    if (line := line_of_alias(text)) is not None:
        # A few lines of nested aliases stand for gigabytes.
        problem = f"line {line}: anchors and aliases are not read here; write it out, or use `plimsoll simulate`"
        raise InvalidRequest(problem, field="scenario")
    complaints: list[str] = []

    def complain(line: int, field: str, problem: str) -> None:
        complaints.append(f"line {line}: {field + ': ' if field else ''}{problem}")

    documents = list(read_documents(text, complain))
    if complaints:
        raise InvalidRequest("; ".join(complaints[:MAX_COMPLAINTS]), field="scenario")
    if len(documents) != 1:
        raise InvalidRequest(
            f"holds {len(documents) or 'no'} documents; a scenario is exactly one",
            field="scenario",
        )
    return documents[0]


def _with_choices(value: object, wanted: SimulationRequest) -> object:
    """The document with what the caller wants otherwise; one of a wrong shape is left for who judges shapes."""
    if not isinstance(value, dict) or not isinstance(value.get("spec"), dict):
        return value
    spec = dict(value["spec"])
    if wanted.policies is not None:
        spec["policies"] = _chosen(spec.get("policies"), wanted.policies)
    if wanted.seeds is not None:
        spec["seeds"] = list(wanted.seeds)
    if wanted.duration_s is not None:
        spec["duration_s"] = wanted.duration_s
    return {**value, "spec": spec}


def _chosen(own: object, labels: Sequence[str]) -> list[object]:
    """Entries by what the report calls them; those that the scenario has keep their settings."""
    entries = own if isinstance(own, list) else []
    known = {_label(entry): entry for entry in entries}
    return [known.get(label, label) for label in labels]


def _label(entry: object) -> object:
    if not isinstance(entry, dict):
        return entry if isinstance(entry, str) else None
    label = entry.get("name") or entry.get("policy")
    return label if isinstance(label, str) else None


def _oversized(value: object) -> Iterator[tuple[FieldPath, str]]:
    """A fleet that would take long only to check: every node gets a name."""
    spec = value.get("spec") if isinstance(value, dict) else None
    fleet = spec.get("fleet") if isinstance(spec, dict) else None
    gpus = sum(map(_gpus, fleet)) if isinstance(fleet, list) else 0
    if gpus > MAX_GPUS:
        yield (
            ("spec", "fleet"),
            f"has {gpus:,} GPUs; at most {MAX_GPUS} are simulated here; {_REMEDY}",
        )


def _gpus(pool: object) -> int:
    """How many GPUs a pool has; 0 for a wrong one: it is refused, and its nodes get no names."""
    found = pool_of(pool)
    return 0 if found is None else found.nodes * found.gpus_per_node


def _refused(
    scenario: SimulationScenario, wanted: SimulationRequest
) -> Iterator[Complaint]:
    """What `plimsoll simulate` would do, and this does not."""
    spec = scenario.spec
    tasks = len(spec.tasks) + sum(each.most for each in spec.task_lists)
    steps = spec.duration_s / spec.step_s
    for field, unit, amount, limit in (
        ("policies", "policies", len(spec.policies), MAX_POLICIES),
        ("seeds", "seeds", len(spec.seeds), MAX_SEEDS),
        ("duration_s", "seconds", spec.duration_s, MAX_DURATION_S),
        ("services", "services", len(spec.services), MAX_SERVICES),
        ("tasks", "tasks", tasks, MAX_TASKS),
        ("step_s", "steps of the time series", steps, MAX_STEPS),
    ):
        if amount > limit:
            yield (
                (field,),
                f"come to {amount:,.0f} {unit}; at most {limit:,.0f} are simulated here; {_REMEDY}",
            )
    # Shipped examples name files next to them; those of a caller would be looked for on the server.
    if wanted.example is None and any(files_of(spec)):
        yield from _files(spec)


def _files(spec: ScenarioSpec) -> Iterator[Complaint]:
    """Names of files mean something next to the caller's scenario only; here they would be the server's."""
    problem = "names a file, which cannot be sent along; `plimsoll simulate` reads it"
    if spec.grid_intensity is not None:
        yield ("grid_intensity",), problem
    for place, service in enumerate(spec.services):
        for field in ("trace", "requests"):
            if getattr(service.load, field) is not None:
                yield ("services", place, "load", field), problem
    for place, _ in enumerate(spec.task_lists):
        yield ("task_lists", place, "file"), problem


def _refusal(
    found: Complaints,
    document: Document,
    wanted: SimulationRequest,
) -> InvalidRequest:
    """All that is wrong, each with its field in the request, and its line where the scenario came as text."""
    is_text = isinstance(wanted.scenario, str)
    # A dictionary, as a set that keeps its order: several fields of a scenario may be one field of the request.
    complaints: dict[tuple[str, str], None] = {}
    for path, problem in found:
        field = _own_field(path, wanted)
        is_inside = field is None and is_text
        detail = f"line {document.line(path)}: {problem}" if is_inside else problem
        complaints[field or f"scenario.{dotted(path)}", detail] = None
    (first, detail), *others = list(complaints)[:MAX_COMPLAINTS]
    return InvalidRequest(detail, field=first, others=others)


def _own_field(path: FieldPath, wanted: SimulationRequest) -> str | None:
    """The request's own field that a complaint is about; None: the scenario's."""
    names: Mapping[str, object] = {
        name: getattr(wanted, name) for name in ("policies", "seeds", "duration_s")
    }
    if len(path) > 1 and path[0] == "spec" and names.get(str(path[1])) is not None:
        is_entry = len(path) > 2 and isinstance(path[2], int)
        return f"{path[1]}[{path[2]}]" if is_entry else str(path[1])
    return None if wanted.example is None else "example"


def _example_view(example: Example) -> ExampleView:
    spec = example.scenario.spec
    return ExampleView(
        name=example.name,
        title=example.title,
        policies=[run.label for run in spec.policies],
        seeds=spec.seeds,
        duration_s=spec.duration_s,
        warm_up_s=spec.warm_up_s,
        step_s=spec.step_s,
        services=len(spec.services),
        gpus=sum(pool.nodes * pool.gpus_per_node for pool in spec.fleet),
    )
