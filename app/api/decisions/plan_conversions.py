"""Plans, explanations and what-ifs → what the API answers."""

from collections.abc import Collection
from dataclasses import replace

from app.answers.explain import Explanation
from app.answers.preview import Preview
from app.api.decisions.explain_views import (
    ExplanationView,
    GpuExplanationView,
    GpuTypeExplanationView,
    LossesView,
    MovesView,
    ReliefView,
    ServiceExplanationView,
)
from app.api.decisions.plan_views import (
    BoundGpuView,
    ChangeView,
    DiffView,
    PlanSummaryView,
    PlanView,
    RateView,
    StepView,
    ViolationView,
)
from app.api.decisions.preview_views import AnswerView, PreviewView
from app.db.decisions.plans import PlanRow, PlanSummary
from solvers.types.outcome import PlanReport
from solvers.types.plan import Plan, diff
from solvers.types.plan_json import plan_document


def summary_view(summary: PlanSummary) -> PlanSummaryView:
    """One line of the list of plans. The policy has its own field: its method comes without the policy's name."""
    method = summary.method.removeprefix(f"{summary.policy} ")
    return PlanSummaryView.model_validate(replace(summary, method=method))


def plan_view(row: PlanRow) -> PlanView:
    """One stored plan."""
    gpus = (
        None
        if row.bound is None
        else [BoundGpuView.model_validate(gpu) for gpu in row.bound.gpus]
    )
    return PlanView.model_validate(
        {
            **summary_view(row.summary).model_dump(),
            "document": plan_document(row.plan, row.report),
            "gpus": gpus,
            "steps": _steps(row.report),
            "violations": [
                ViolationView.model_validate(entry) for entry in row.violations
            ],
            "demands": [RateView.model_validate(entry) for entry in row.demands],
        }
    )


def diff_view(before: PlanRow | None, after: PlanRow) -> DiffView:
    """How two stored plans differ; `before` is None where nothing ran."""
    old = Plan(policy="none") if before is None else before.plan
    return DiffView(
        before=None if before is None else before.summary.id,
        after=after.summary.id,
        cost_before_usd_per_hour=None
        if before is None
        else before.summary.cost_usd_per_hour,
        cost_after_usd_per_hour=after.summary.cost_usd_per_hour,
        changes=[ChangeView.model_validate(change) for change in diff(old, after.plan)],
    )


def explanation_view(
    summary: PlanSummary, explanation: Explanation, visible: Collection[str] | None
) -> ExplanationView:
    """An explanation, cut down to the `visible` services; None = all. What is cut leaves no name behind."""
    whole = ExplanationView(
        plan_id=summary.id,
        state=summary.state,
        summary=explanation.summary,
        steps=_steps(explanation.report),
        messages=list(explanation.report.messages),
        violations=[
            ViolationView.model_validate(entry) for entry in explanation.violations
        ],
        services=[
            ServiceExplanationView.model_validate(entry)
            for entry in explanation.services
        ],
        changes=[ChangeView.model_validate(change) for change in explanation.changes],
        moves=MovesView.model_validate(explanation.moves),
        cost_usd_per_hour=explanation.report.cost_usd_per_hour,
        lower_bound_usd_per_hour=explanation.report.lower_bound_usd_per_hour,
        gap_percent=explanation.report.gap_percent,
        price_unit=explanation.price_unit,
        gpu_types=[
            GpuTypeExplanationView.model_validate(entry)
            for entry in explanation.gpu_types
        ],
        gpus=[GpuExplanationView.model_validate(entry) for entry in explanation.gpus],
        kinds_left_out=explanation.kinds_left_out,
        reliefs=[ReliefView.model_validate(entry) for entry in explanation.reliefs],
        losses=None
        if explanation.losses is None
        else LossesView.model_validate(explanation.losses),
    )
    return whole if visible is None else _cut(whole, visible)


def _cut(whole: ExplanationView, visible: Collection[str]) -> ExplanationView:
    """Only what concerns these services alone."""
    gpus = [
        gpu
        for gpu in whole.gpus
        if all(replica.service in visible for replica in gpu.replicas)
    ]
    return whole.model_copy(
        update={
            "steps": [],
            "messages": [],
            "violations": [],
            "services": [
                _without_neighbours(view, visible)
                for view in whole.services
                if view.service in visible
            ],
            "changes": [
                change for change in whole.changes if change.service in visible
            ],
            "moves": None,
            "losses": None,
            "gpu_types": [],
            "gpus": [gpu.model_copy(update={"alternatives": []}) for gpu in gpus],
            "kinds_left_out": 0,
            "reliefs": [
                relief for relief in whole.reliefs if relief.subject in visible
            ],
        }
    )


def preview_view(preview: Preview) -> PreviewView:
    """A what-if."""
    decision, before = preview.decision, preview.cost_before_usd_per_hour
    cost, answers = decision.report.cost_usd_per_hour, preview.answers
    return PreviewView.model_validate(
        {
            "state": decision.state,
            "reason": decision.reason,
            "status": decision.report.status,
            "cost_usd_per_hour": cost,
            "cost_before_usd_per_hour": before,
            "cost_delta_usd_per_hour": None if before is None else cost - before,
            "document": plan_document(decision.plan, decision.report),
            "demands": [RateView.model_validate(entry) for entry in preview.demands],
            "steps": _steps(decision.report),
            "violations": [
                ViolationView.model_validate(entry) for entry in decision.violations
            ],
            "changes": [
                ChangeView.model_validate(change) for change in preview.changes
            ],
            "today": AnswerView.model_validate(answers[0]) if answers else None,
            "answers": [AnswerView.model_validate(answer) for answer in answers[1:]],
        }
    )


def _steps(report: PlanReport) -> list[StepView]:
    return [StepView.model_validate(step) for step in report.steps]


def _without_neighbours(
    view: ServiceExplanationView, visible: Collection[str]
) -> ServiceExplanationView:
    """Neighbours of other projects stay unnamed."""
    groups = [
        group.model_copy(
            update={
                "neighbours": [
                    name if name in visible else "(another project's)"
                    for name in group.neighbours
                ]
            }
        )
        for group in view.replicas
    ]
    return view.model_copy(update={"replicas": groups})
