// What waits for a person: plans to approve, a loop that is paused, nodes and services that need somebody.

import * as api from "../api.js";
import { h, show } from "../dom.js";
import { count, moment, usd } from "../format.js";
import { trouble } from "../gpu_figures.js";
import { table } from "../live.js";
import { complain, isOperator } from "../page.js";
import { areStatusesKnown, statusOf } from "../service_status.js";

const MOST_PLANS = 5;
const MOST_NAMES = 4;
const list = h("ul", { class: "plain todo" });
const number = h("strong", {});
let plans = [];
let askedFor = null;

/** The card. */
export const element = h("section", { class: "card waiting", "aria-label": "Waits for you" }, h("div", { class: "controls" }, h("h2", {}, "Waits for you ", number)), list);

/** The header's word that plans wait brings the plans themselves. */
export async function look() {
  const now = table("header").get("now");
  const seen = JSON.stringify([now?.newest_plan, now?.waiting, now?.plan_id]);
  if (!now || seen === askedFor) return draw();
  askedFor = seen;
  try {
    plans = now.waiting ? (await api.get("/plans", { state: "proposed", limit: MOST_PLANS })).items : [];
  } catch (error) {
    complain(error.message);
  }
  draw();
}

export function draw() {
  const items = [...plans.map(planItem), ...policyItems(), ...nodeItems(), ...serviceItems()];
  const seen = JSON.stringify([areStatusesKnown(), items.map((item) => item.words)]);
  if (list.seen === seen) return;
  list.seen = seen;
  number.textContent = items.length ? `(${items.length})` : "";
  show(list, items.length ? items.map((item) => h("li", {}, h("span", { class: `dot ${item.level}` }), item.element())) : h("li", { class: "hint" }, areStatusesKnown() ? "Nothing: no plan is proposed, every node is heard, and no service needs anybody." : "Looking …"));
}

function planItem(plan) {
  const now = table("header").get("now")?.cost_usd_per_hour ?? null;
  const against = now === null ? "" : `, now ${usd(now)}/h`;
  const words = `costs ${usd(plan.cost_usd_per_hour)}/h${against}; proposed ${moment(plan.at)}`;
  const link = h("a", { class: "button primary", href: `/plans/${plan.id}` }, isOperator ? "Look and approve" : "Look");
  return { level: "warn", words: `${plan.id} ${words}`, element: () => [h("span", { class: "grow" }, h("a", { href: `/plans/${plan.id}` }, `Plan ${plan.id}`), ` ${words}`), link] };
}

function policyItems() {
  const now = table("header").get("now");
  if (!now?.paused) return [];
  return [line("warn", "The loop is paused: nodes keep what they have. ", h("a", { href: "/policy" }, "Resume it"))];
}

/** Nodes that are not heard of, and unhealthy GPUs. */
function nodeItems() {
  const found = new Map();
  for (const [id, gpu] of table("fleet")) {
    const wrong = trouble(id, gpu);
    if (wrong === null || wrong === "cordoned") continue;
    if (!found.has(wrong)) found.set(wrong, new Set());
    found.get(wrong).add(wrong === "unhealthy" ? id : gpu.node);
  }
  return [...found].map(([wrong, names]) => line("bad", `${count(names.size, wrong === "unhealthy" ? "GPU" : "node")} ${wrong}: `, ...links([...names], (name) => (wrong === "unhealthy" ? `/gpus/${name}` : `/nodes#${name}`))));
}

/** Services by what keeps them from being as they should: what a missed SLO says stands there already. */
function serviceItems() {
  const found = new Map();
  for (const name of table("services").keys()) {
    const trouble = statusOf(name)?.trouble;
    if (!trouble || trouble.type === "SLOMet") continue;
    found.set(trouble.reason, [...(found.get(trouble.reason) ?? []), name]);
  }
  return [...found].map(([reason, names]) => line("warn", `${WORDS[reason] ?? reason}: `, ...links(names, (name) => `/services/${name}`)));
}

const WORDS = {
  WaitsForApproval: "Wait for the approval of a plan", RollingOut: "Being rolled out", SloOutOfReach: "SLO that no operating point keeps", NoGpuLeft: "Not enough GPUs",
  NoSmLeft: "Not enough room on GPUs", NoMemoryLeft: "Not enough memory", PowerCapReached: "Held back by the power cap", ReplicaLimitReached: "At their limit of replicas",
  SolverOutOfTime: "Not planned in time", LaunchesFail: "Do not start", MetricsMissing: "Not reported by any node", MetricsStale: "Reports are old",
  FitDrifted: "Not as fast as predicted", LossTakesTooMuch: "Would not survive a loss", NodesAhead: "Nodes follow a plan that this control plane never made",
};

function line(level, words, ...rest) {
  const text = [words, ...rest.map((each) => each.textContent ?? each)].join("");
  return { level, words: text, element: () => h("span", { class: "grow" }, words, ...rest) };
}

function links(names, address) {
  const shown = names.slice(0, MOST_NAMES).flatMap((name, at) => [at ? ", " : "", h("a", { href: address(name) }, name)]);
  return names.length > MOST_NAMES ? [...shown, ` and ${names.length - MOST_NAMES} more`] : shown;
}
