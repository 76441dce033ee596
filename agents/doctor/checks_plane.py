"""What the control plane's answers mean for an agent: readiness, clocks, token and the node's name."""

import re
from collections.abc import Iterator

from agents.base.arguments import NAME_PATTERN
from agents.doctor.types import Asked, ControlPlaneFacts, Level, NodeFinding

GOOD_SKEW_S, MAX_SKEW_S = 2.0, 60.0
"""Dates have whole seconds; from 60 s on the control plane reports a wrong clock."""


def check_control_plane(
    facts: ControlPlaneFacts, asked: Asked
) -> Iterator[NodeFinding]:
    """Name of the node, readiness, clock and token."""
    # Checked here as well, so that an operator reads of it before the agent starts.
    if not re.fullmatch(NAME_PATTERN, asked.node):
        words = f"{asked.node!r} is not a node name: lower-case letters, digits and -, at most 63"
        yield NodeFinding(
            check="node name",
            level="fail",
            words=words,
            remedy="choose another with --node",
        )
    if facts.problem:
        words = f"no answer from {asked.url}: {facts.problem}"
        remedy = "check the address, the network and TLS; the agent continues with its last command"
        yield NodeFinding(
            check="control plane", level="fail", words=words, remedy=remedy
        )
        return
    yield _check_ready(facts, asked)
    yield _check_clock(facts)
    yield _check_token(facts, asked)


def _check_ready(facts: ControlPlaneFacts, asked: Asked) -> NodeFinding:
    if facts.ready_status == 200:
        return NodeFinding(
            check="control plane", level="pass", words=f"{asked.url} is ready"
        )
    # An answer of 503 shows that the address is right, which no other failure does.
    if facts.ready_status == 503:
        words = f"{asked.url} answers but is not ready: {facts.ready_words or 'it gives no reason'}"
        return NodeFinding(
            check="control plane",
            level="warn",
            words=words,
            remedy="`plimsoll doctor` on its machine",
        )
    words = f"{asked.url} answered {facts.ready_status} to /readyz"
    return NodeFinding(
        check="control plane",
        level="fail",
        words=words,
        remedy="is this the address of a Plimsoll API?",
    )


def _check_clock(facts: ControlPlaneFacts) -> NodeFinding:
    if facts.skew_s is None:
        return NodeFinding(
            check="clock", level="skip", words="the control plane's answer has no date"
        )
    if abs(facts.skew_s) <= GOOD_SKEW_S:
        return NodeFinding(
            check="clock",
            level="pass",
            words=f"within {GOOD_SKEW_S:g} s of the control plane's",
        )
    side = "ahead of" if facts.skew_s > 0.0 else "behind"
    level: Level = "fail" if abs(facts.skew_s) > MAX_SKEW_S else "warn"
    words = f"{abs(facts.skew_s):.0f} s {side} the control plane's"
    return NodeFinding(
        check="clock",
        level=level,
        words=words,
        remedy="run chrony or systemd-timesyncd on both machines",
    )


def _check_token(facts: ControlPlaneFacts, asked: Asked) -> NodeFinding:
    make = f"plimsoll token create --scope join --node {asked.node} {asked.node}"
    if not asked.token:
        words = "none was given, so the control plane will refuse this agent"
        return NodeFinding(
            check="token",
            level="fail",
            words=words,
            remedy=f"{make}; pass it with --token-file",
        )
    # Refused for a sync and nothing else: the agent gets the node's own token for it.
    if facts.sync_status == 403 and asked.token.startswith("plim_join_"):
        words = f"a join token, with which node {asked.node} is enrolled"
        return NodeFinding(check="token", level="pass", words=words)
    if facts.sync_status in (401, 403):
        why = (
            "unknown, revoked or expired"
            if facts.sync_status == 401
            else f"not that of node {asked.node}"
        )
        return NodeFinding(
            check="token", level="fail", words=f"refused: {why}", remedy=make
        )
    # The empty report is refused for its content only after the token was accepted.
    if facts.sync_status in (400, 422):
        return NodeFinding(
            check="token", level="pass", words=f"accepted, for node {asked.node}"
        )
    words = f"the control plane answered {facts.sync_status} when it should have checked the token"
    return NodeFinding(
        check="token", level="warn", words=words, remedy="try again when it is ready"
    )
