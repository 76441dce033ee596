// Plans: what was decided when, for how much, how near to the proven bound; and what waits for a person.

import * as api from "./api.js";
import { axisStyle, chart, colour } from "./charts.js";
import { h, keyed, show } from "./dom.js";
import { moment, number, seconds, usd } from "./format.js";
import { onChange, table } from "./live.js";
import { begin, complain, content } from "./page.js";
import { solutionText, stateChip, STATES, wasInForce } from "./plan_states.js";

const SHOWN = 100;
const NONE = "none";

let withKept = false;
let shownFor = null;
const waiting = h("div", {});
const rows = h("tbody", {});
const costs = chart({ title: "Cost in USD per hour of plans that were in force, and the proven bound", height: 240 });
const kept = h("label", {}, h("input", { type: "checkbox", onchange: (event) => { withKept = event.target.checked; load(); } }), " show plans that changed nothing");
show(content, waiting, costs.element, h("div", { class: "controls" }, kept),
  h("div", { class: "scroll", tabindex: 0 }, h("table", {}, h("caption", { class: "hidden" }, "Plans, newest first"),
    h("thead", {}, h("tr", {}, ["Plan", "Made", "State", "Solution"].map((name) => h("th", { scope: "col" }, name)),
      ["Cost/h", "Bound/h", "Gap", "Took"].map((name) => h("th", { scope: "col", class: "number" }, name)),
      ["Policy and method", "What it changed, or why it did not"].map((name) => h("th", { scope: "col" }, name)))), rows)));

/** Ask again when there is a newer plan, or another one in force or waiting. */
function look() {
  const now = table("header").get("now");
  const seen = JSON.stringify([now?.newest_plan, now?.plan_id, now?.waiting]);
  if (!now || seen === shownFor) return;
  shownFor = seen;
  load();
}

async function load() {
  try {
    const state = withKept ? [] : STATES.filter((each) => each !== "kept");
    const [plans, pushed] = await Promise.all([api.get("/plans", { limit: SHOWN, state }), changesOf()]);
    complain(null);
    draw(plans.items, pushed);
  } catch (error) {
    complain(error.message);
  }
}

/** What plans changed when they came into force, by plan; the audit is for tokens that see every project. */
async function changesOf() {
  const found = await api.get("/events", { kind: "PlanPushed", limit: SHOWN }).catch((error) => {
    if (error.status === 403) return { items: [] };
    throw error;
  });
  return new Map(found.items.map((event) => [event.plan_id, event.reason]));
}

function draw(plans, pushed) {
  const proposed = plans.filter((plan) => plan.state === "proposed");
  show(waiting, proposed.length === 0 ? null : h("p", { class: "card" }, h("strong", { class: "warn" }, "Waits for you: "),
    proposed.map((plan) => h("a", { href: `/plans/${plan.id}` }, `plan ${plan.id} (${usd(plan.cost_usd_per_hour)}/h) `))));
  const byId = new Map(plans.map((plan) => [String(plan.id), plan]));
  keyed(rows, byId.size ? [...byId.keys()] : [NONE], () => h("tr", {}), (element, id) => fillRow(element, byId.get(id), pushed));
  const inForce = plans.filter(wasInForce).reverse();
  costs.set(() => timeline(inForce));
}

/** Only where something changed: a link that has the focus keeps it. */
function fillRow(element, plan, pushed) {
  const seen = JSON.stringify([plan, pushed.get(plan?.id)]);
  if (element.seen === seen) return;
  element.seen = seen;
  show(element, plan ? cells(plan, pushed) : h("td", { colspan: 10 }, "No plan was made yet: there must be a node and a service."));
}

function cells(plan, pushed) {
  return [
    h("td", {}, h("a", { href: `/plans/${plan.id}` }, `${plan.id}`)),
    h("td", {}, moment(plan.at)),
    h("td", {}, stateChip(plan)),
    h("td", {}, solutionText(plan)),
    h("td", { class: "number" }, usd(plan.cost_usd_per_hour)),
    h("td", { class: "number" }, usd(plan.lower_bound_usd_per_hour)),
    h("td", { class: "number" }, plan.gap_percent === null ? "–" : `${number(plan.gap_percent, 1)} %`),
    h("td", { class: "number" }, seconds(plan.seconds)),
    h("td", {}, plan.method === plan.policy ? plan.policy : `${plan.policy}: ${plan.method}`),
    h("td", { class: "wrap" }, plan.reason || pushed.get(plan.id) || ""),
  ];
}

function timeline(plans) {
  const points = (field) => plans.map((plan) => [plan.at, plan[field]]);
  return {
    xAxis: { type: "time", ...axisStyle() },
    yAxis: { type: "value", min: 0, axisLabel: { formatter: "${value}", color: colour("faint") }, splitLine: axisStyle().splitLine },
    series: [
      { name: "cost", type: "line", step: "end", symbolSize: 5, data: points("cost_usd_per_hour"), itemStyle: { color: colour("accent") } },
      { name: "proven bound", type: "line", step: "end", showSymbol: false, lineStyle: { type: "dashed" }, data: points("lower_bound_usd_per_hour"), itemStyle: { color: colour("good") } },
    ],
  };
}

onChange("header", look);
begin();
