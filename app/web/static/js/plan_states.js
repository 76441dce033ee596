// A plan's state, which says what became of it, and its solution, which says how good it is, as pages call them.

import { h } from "./dom.js";

const KINDS = { target: "good", proposed: "warn", approved: "warn", refused: "bad" };
const WORDS = {
  target: "in force", superseded: "was in force", proposed: "waits for approval", approved: "approved", refused: "refused by the checker",
  rejected: "rejected", kept: "changed nothing", lost: "overtaken", withdrawn: "withdrawn",
};

/** Every state, as the API names them. */
export const STATES = Object.keys(WORDS);

/** The state of a plan in words; a withdrawn proposal names the one that took its place. */
export const stateChip = ({ state, replaced_by: newer }) =>
  newer === null || newer === undefined
    ? h("span", { class: `chip ${KINDS[state] ?? ""}` }, WORDS[state] ?? state)
    : h("span", { class: "chip" }, "replaced by ", h("a", { href: `/plans/${newer}` }, `plan ${newer}`));

/** How good the solver says that the plan is; a dash where it solved nothing new. */
export const solutionText = ({ solution }) => solution ?? "–";

/** Whether it is, or was, in force. */
export const wasInForce = (plan) => ["target", "superseded"].includes(plan.state);
