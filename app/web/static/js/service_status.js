// How services are, in one sentence: of each its SLO in the last minute, its error budget, and the first of its conditions
// that does not hold.

import { h } from "./dom.js";
import { count, number } from "./format.js";
import { table } from "./live.js";
import { healthOf } from "./service_figures.js";

const MOST_NAMES = 3;
const MOST_CLAUSES = 3;

/** By condition, or by its reason where that tells more: how bad it is, and the words for one service and for several. */
const PHRASES = {
  SLOMet: ["bad", "misses its SLO", "miss their SLOs"],
  Budget: ["bad", "uses up its error budget too fast", "use up their error budgets too fast"],
  Feasible: ["bad", "cannot be served in full", "cannot be served in full"],
  Launches: ["bad", "does not start", "do not start"],
  WaitsForApproval: ["warn", "waits for approval", "wait for approval"],
  RollingOut: ["warn", "is being rolled out", "are being rolled out"],
  Applied: ["warn", "does not run as planned", "do not run as planned"],
  TelemetryAvailable: ["warn", "is not reported", "are not reported"],
  PredictionsHold: ["warn", "is not as fast as predicted", "are not as fast as predicted"],
  Survives: ["warn", "would not survive a loss", "would not survive a loss"],
};
const KEYS = Object.keys(PHRASES);

export const budgetOf = (name) => table("budgets").get(name) ?? null;
export const statusOf = (name) => table("service_status").get(name) ?? null;

/** Whether conditions were loaded already. */
export const areStatusesKnown = () => table("services").size === 0 || table("service_status").size > 0;

/** What is wrong with a service, as keys of PHRASES, the worst first. */
export function problemsOf(name, service) {
  const trouble = statusOf(name)?.trouble ?? null;
  const first = trouble === null || trouble.type === "SLOMet" ? [] : [trouble.reason in PHRASES ? trouble.reason : trouble.type];
  // The minute's figures are newer than the conditions, which are loaded less often.
  const missed = healthOf(service) === "bad" ? ["SLOMet"] : [];
  const burning = budgetOf(name)?.alerts.length ? ["Budget"] : [];
  return [...missed, ...burning, ...first].sort((one, other) => KEYS.indexOf(one) - KEYS.indexOf(other));
}

/** bad, warn, or what its last minute is. */
export function levelOf(name, service) {
  const problems = problemsOf(name, service);
  return problems.length ? PHRASES[problems[0]][0] : healthOf(service);
}

/** One line about one service; empty where nothing is wrong. */
export function troubleText(name) {
  const burns = (budgetOf(name)?.alerts ?? []).map((period) => `${number(budgetOf(name).burn[period], 1)} times too fast over ${period}`);
  const budget = burns.length ? `error budget used up ${burns.join(", ")}` : null;
  return [statusOf(name)?.trouble?.message ?? null, budget].filter(Boolean).join("; ");
}

/** Put that line under a service's name, or take it away; what else is there stays. */
export function showTrouble(place, text, kind) {
  place.querySelector(".trouble")?.remove();
  if (text) place.append(h("div", { class: `trouble ${kind}`, title: text }, text));
}

/** All of these services, [[name, service]], in one sentence, so that praise never stands next to blame. */
export function statusSentence(found) {
  if (found.length === 0) return "";
  const clauses = clausesOf(found);
  // Praise waits for the conditions, which come a moment later than the figures.
  if (clauses.length === 0) return h("span", {}, areStatusesKnown() ? praise(found) : "Looking at every service …");
  const shown = clauses.slice(0, MOST_CLAUSES).map(words);
  const left = clauses.slice(MOST_CLAUSES).reduce((sum, clause) => sum + clause.names.length, 0);
  if (left) shown.push(`${count(left, "more service")} ${left === 1 ? "needs" : "need"} a look`);
  return h("strong", { class: PHRASES[clauses[0].problems[0]][0] }, `${shown.join("; ")}.`);
}

/** Services with the same problems together: [{problems, names}], the worst first. */
function clausesOf(found) {
  const clauses = new Map();
  for (const [name, service] of found) {
    const problems = problemsOf(name, service);
    if (problems.length === 0) continue;
    const key = problems.join(" ");
    if (!clauses.has(key)) clauses.set(key, { problems, names: [] });
    clauses.get(key).names.push(name);
  }
  const rank = (clause) => KEYS.indexOf(clause.problems[0]);
  return [...clauses.values()].sort((one, other) => rank(one) - rank(other) || other.names.length - one.names.length);
}

function words({ problems, names }) {
  const shown = names.length > MOST_NAMES + 1 ? [...names.slice(0, MOST_NAMES), `${number(names.length - MOST_NAMES, 0)} more`] : names;
  const listed = shown.length === 1 ? shown[0] : `${shown.slice(0, -1).join(", ")} and ${shown.at(-1)}`;
  return `${listed} ${problems.map((problem) => PHRASES[problem][names.length === 1 ? 1 : 2]).join(" and ")}`;
}

function praise(found) {
  const silent = found.filter(([, service]) => service.attainment === null).length;
  if (silent === found.length) return "No request finished in the last minute, so no SLO can be judged.";
  if (silent === 0) return "Every service kept its SLO in the last minute.";
  return `No SLO was missed in the last minute (${count(silent, "service")} finished no request).`;
}
