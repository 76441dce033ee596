"""Plans, explanations and what-ifs → what the API answers."""

from collections.abc import Collection
from dataclasses import fields, replace

from app.answers.explain import Explanation
from app.answers.preview import Preview
from app.api.decisions.explain_views import ExplanationView, ServiceExplanationView
from app.api.decisions.plan_views import (
    ChangeView,
    DiffView,
    PlanSummaryView,
    PlanView,
)
from app.api.decisions.preview_views import PreviewView
from app.db.decisions.plans import PlanRow, PlanSummary
from solvers.types.documents.plan_json import plan_document
from solvers.types.plan import Plan, diff


def summary_view(summary: PlanSummary) -> PlanSummaryView:
    """One line of the list of plans. The policy has its own field: its method comes without the policy's name."""
    method = summary.method.removeprefix(f"{summary.policy} ")
    return PlanSummaryView.model_validate(replace(summary, method=method))


def plan_view(row: PlanRow) -> PlanView:
    """One stored plan."""
    # The parts are read by attribute, as every `View` reads what it is made of.
    return PlanView.model_validate(
        {
            **summary_view(row.summary).model_dump(),
            "document": plan_document(row.plan, row.report),
            "gpus": None if row.bound is None else row.bound.gpus,
            "steps": row.report.steps,
            "violations": row.violations,
            "demands": row.demands,
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


_SHARED = [
    field for field in fields(Explanation) if field.name in ExplanationView.model_fields
]
"""What an explanation and the API's answer call alike."""


def explanation_view(
    summary: PlanSummary, explanation: Explanation, visible: Collection[str] | None
) -> ExplanationView:
    """An explanation, cut down to the `visible` services; None = all. What is cut leaves no name behind."""
    report = explanation.report
    complete = ExplanationView.model_validate(
        {
            **{field.name: getattr(explanation, field.name) for field in _SHARED},
            "plan_id": summary.id,
            "state": summary.state,
            "steps": report.steps,
            "messages": report.messages,
            "cost_usd_per_hour": report.cost_usd_per_hour,
            "lower_bound_usd_per_hour": report.lower_bound_usd_per_hour,
            "gap_percent": report.gap_percent,
        }
    )
    return complete if visible is None else _cut(complete, visible)


def _cut(complete: ExplanationView, visible: Collection[str]) -> ExplanationView:
    """Only what concerns these services alone."""
    # A GPU that another project shares would show that project's load.
    gpus = [
        gpu.model_copy(update={"alternatives": []})
        for gpu in complete.gpus
        if all(replica.service in visible for replica in gpu.replicas)
    ]
    services = [
        _without_neighbours(view, visible)
        for view in complete.services
        if view.service in visible
    ]
    return complete.model_copy(
        update={
            "services": services,
            "gpus": gpus,
            "changes": [each for each in complete.changes if each.service in visible],
            "reliefs": [each for each in complete.reliefs if each.subject in visible],
            # What all services cost together is for those who see all of them.
            "summary": "the part of the plan that concerns the projects of this token",
            "cost_usd_per_hour": None,
            "lower_bound_usd_per_hour": None,
            "gap_percent": None,
            # Messages, steps and the like are texts about the entire plan, in which any service may be named.
            "steps": [],
            "messages": [],
            "violations": [],
            "gpu_types": [],
            "moves": None,
            "losses": None,
            "kinds_left_out": 0,
        }
    )


def preview_view(preview: Preview) -> PreviewView:
    """A what-if."""
    decision = preview.decision
    before = preview.cost_before_usd_per_hour
    report = decision.report
    answers = preview.answers
    cost = report.cost_usd_per_hour
    return PreviewView.model_validate(
        {
            "state": decision.state,
            "reason": decision.reason,
            "solution": report.solution,
            "cost_usd_per_hour": cost,
            "cost_before_usd_per_hour": before,
            "cost_delta_usd_per_hour": None if before is None else cost - before,
            "document": plan_document(decision.plan, report),
            "demands": preview.demands,
            "steps": report.steps,
            "violations": decision.violations,
            "changes": preview.changes,
            # The first answer is that of today, with which the others are compared.
            "today": answers[0] if answers else None,
            "answers": answers[1:],
        }
    )


def _without_neighbours(
    view: ServiceExplanationView, visible: Collection[str]
) -> ServiceExplanationView:
    """Neighbours of other projects stay unnamed."""
    groups = []
    for group in view.replicas:
        names = [
            name if name in visible else "(another project's)"
            for name in group.neighbours
        ]
        groups.append(group.model_copy(update={"neighbours": names}))
    return view.model_copy(update={"replicas": groups})
