// How much each kind of event matters to a person, and lines of the same kind as one.

const BAD = new Set(["NodeSilent", "GpuFailed", "LaunchesFail", "TaskFailed", "TaskStarved", "TaskRefused", "PlanRefused", "PlanLost", "CommandRefused",
  "ObservationRefused", "NodeNameShared", "WebhookFailed", "WebhookFull", "TokenGuessed"]);
const WARN = new Set(["LoopHeld", "NodeDraining", "NodeCordoned", "NodeClockSkewed", "OveruseBegan", "AvoidedGpus", "AccessDenied", "PolicyPaused",
  "PlanRejected", "PlanWithdrawn", "NodeEventsLeftOut", "ControlPlaneRestored", "TokenRevoked"]);

/** From which level on events are shown. */
export const LEVELS = { notice: "everything", warn: "warnings and errors", bad: "errors" };
const ORDER = Object.keys(LEVELS);

/** bad, warn or notice. */
export const levelOf = (kind) => (BAD.has(kind) ? "bad" : WARN.has(kind) ? "warn" : "notice");

/** In a word, for those who do not see colours. */
export const LEVEL_WORDS = { bad: "error", warn: "warning", notice: "notice" };

/** Whether a kind matters at least so much. */
export const isAtLeast = (kind, level) => ORDER.indexOf(levelOf(kind)) >= ORDER.indexOf(level);

/** Neighbours of the same kind and actor together: [[event, …], …], each newest first, as the list is. */
export function grouped(events) {
  const groups = [];
  for (const event of events) {
    const last = groups.at(-1)?.[0];
    // A plan's line is one of a kind: what it changed is its own.
    const isSame = last && last.kind === event.kind && last.actor === event.actor && event.plan_id === null && last.plan_id === null;
    if (isSame) groups.at(-1).push(event);
    else groups.push([event]);
  }
  return groups;
}
