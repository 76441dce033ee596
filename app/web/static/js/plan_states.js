// The states of a plan as pages call them.

import { h } from "./dom.js";

const KINDS = { target: "good", proposed: "warn", approved: "warn", refused: "bad" };
const WORDS = {
  target: "in force", superseded: "was in force", proposed: "waits for approval", approved: "approved", refused: "refused by the checker",
  rejected: "rejected", kept: "changed nothing", lost: "overtaken",
};

/** Every state, as the API names them. */
export const STATES = Object.keys(WORDS);

/** A state in words. */
export const stateChip = (state) => h("span", { class: `chip ${KINDS[state] ?? ""}` }, WORDS[state] ?? state);
