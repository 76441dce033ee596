// Plans: what was decided when, for how much, how near to the proven bound; and what waits for a person.

import * as api from "./api.js";
import { axisStyle, chart, colour } from "./charts.js";
import { h, show } from "./dom.js";
import { moment, number, usd } from "./format.js";
import { onChange, table } from "./live.js";
import { begin, complain, content } from "./page.js";

const SHOWN = 100;
const STATES = { target: "good", superseded: "", proposed: "warn", approved: "warn", refused: "bad", rejected: "", kept: "", lost: "" };
const WORDS = {
  target: "in force", superseded: "was in force", proposed: "waits for approval", approved: "approved", refused: "refused by the checker",
  rejected: "rejected", kept: "changed nothing", lost: "overtaken",
};

let withKept = false;
let shownFor = null;
const waiting = h("div", {});
const rows = h("tbody", {});
const costs = chart({ title: "Cost per hour of plans that were in force, and the proven bound", height: 240 });
const kept = h("label", {}, h("input", { type: "checkbox", onchange: (event) => { withKept = event.target.checked; load(); } }), " also those that changed nothing");
show(content, waiting, costs.element, h("div", { class: "controls" }, kept),
  h("div", { class: "scroll" }, h("table", {}, h("caption", { class: "hidden" }, "Plans, newest first"),
    h("thead", {}, h("tr", {}, ["Plan", "Made", "State"].map((name) => h("th", { scope: "col" }, name)),
      ["Cost/h", "Bound/h", "Gap", "Took"].map((name) => h("th", { scope: "col", class: "number" }, name)),
      ["Policy", "By", "Why"].map((name) => h("th", { scope: "col" }, name)))), rows)));

/** Ask again when there is a newer plan, or another one in force or waiting. */
function look() {
  const now = table("pulse").get("now");
  const seen = JSON.stringify([now?.newest_plan, now?.plan_id, now?.waiting]);
  if (!now || seen === shownFor) return;
  shownFor = seen;
  load();
}

async function load() {
  try {
    const state = withKept ? [] : Object.keys(STATES).filter((each) => each !== "kept");
    const plans = (await api.get("/plans", { limit: SHOWN, state })).items;
    complain(null);
    draw(plans);
  } catch (error) {
    complain(error.message);
  }
}

function draw(plans) {
  const proposed = plans.filter((plan) => plan.state === "proposed");
  show(waiting, proposed.length === 0 ? null : h("p", { class: "card" }, h("strong", { class: "warn" }, "Waits for you: "),
    proposed.map((plan) => h("a", { href: `/plans/${plan.id}` }, `plan ${plan.id} (${usd(plan.cost_usd_per_hour)}/h) `))));
  show(rows, plans.map(row), plans.length === 0 ? h("tr", {}, h("td", { colspan: 10 }, "No plan was made yet: there must be a node and a service.")) : null);
  const inForce = plans.filter((plan) => plan.state === "target" || plan.state === "superseded").reverse();
  costs.set(() => timeline(inForce));
}

function row(plan) {
  return h("tr", {},
    h("td", {}, h("a", { href: `/plans/${plan.id}` }, `${plan.id}`)),
    h("td", {}, moment(plan.at)),
    h("td", {}, h("span", { class: `chip ${STATES[plan.state]}` }, WORDS[plan.state] ?? plan.state)),
    h("td", { class: "number" }, usd(plan.cost_usd_per_hour)),
    h("td", { class: "number" }, usd(plan.lower_bound_usd_per_hour)),
    h("td", { class: "number" }, plan.gap_percent === null ? "–" : `${number(plan.gap_percent, 1)} %`),
    h("td", { class: "number" }, `${number(plan.seconds)} s`),
    h("td", {}, plan.policy),
    h("td", {}, plan.method),
    h("td", { class: "wrap" }, plan.reason));
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

onChange("pulse", look);
begin();
