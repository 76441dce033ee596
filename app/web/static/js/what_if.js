// What-if: other demand, GPUs, prices or SLOs, planned next to today's; nothing of it is put in force.

import * as api from "./api.js";
import { axisStyle, chart, colour } from "./charts.js";
import { h, show } from "./dom.js";
import { number, usd } from "./format.js";
import { colourOf } from "./gpu_bars.js";
import { onChange, table } from "./live.js";
import { begin, complain, content, isOperator } from "./page.js";
import { drawMixes, mixes } from "./what_if_mix.js";
import { drawServices, drawTypes, form, onFilled, reset, scenario } from "./what_if_form.js";

const SECONDS = 30;
const status = h("p", { class: "summary", role: "status" });
const plan = h("button", { type: "button", class: "primary", disabled: !isOperator, onclick: () => ask(false) }, "Plan it");
const usual = h("button", { type: "button", disabled: !isOperator, onclick: () => ask(true) }, "Ask the usual questions");
const again = h("button", { type: "button", hidden: true, onclick: () => ask(last) }, "Try again");
const results = h("div", {});
const costs = chart({ title: "Planned cost per hour", height: 280 });
const mix = chart({ title: "GPUs in use by type", height: 280 });
const charts = h("div", { class: "columns", hidden: true }, costs.element, mix.element);
let last = false;

show(content,
  h("p", {}, "Say what should be different; the planner answers what the fleet would cost and carry. ", h("strong", {}, "Nothing is changed by it"), ": no plan is put in force, no node hears of it."),
  form, h("div", { class: "controls" }, plan, usual, h("button", { type: "button", onclick: reset }, "Clear the fields"), again), status, charts, results, mixes);

const WAITING = "Fields that are left empty stay as they are.";
function sayIdle() {
  if (!isOperator) return show(status, "Your token may look, but only an operator's may plan.");
  if (table("services").size === 0) return show(status, "There is nothing to plan yet: apply a service first, on the page Services.");
  return show(status, Object.keys(scenario()).length ? "Filled in; not planned yet." : WAITING);
}

async function ask(suggest) {
  last = suggest;
  const wanted = scenario();
  const isAsked = Object.keys(wanted).length > 0;
  if (!isAsked && !suggest) return show(status, "Nothing differs yet: move the slider or fill in a field, or ask the usual questions.");
  for (const button of [plan, usual]) button.disabled = true;
  again.hidden = true;
  show(status, `Planning, for at most ${SECONDS} s …`);
  try {
    const found = await api.send("POST", "/plans/preview", { scenarios: isAsked ? [wanted] : [], suggest, time_limit_s: SECONDS });
    complain(null);
    draw(found);
  } catch (error) {
    // One preview at a time: somebody else's is no error of this person.
    const isBusy = error.status === 429 || error.status === 503;
    again.hidden = !isBusy;
    if (!isBusy) complain(error.message);
    show(status, isBusy ? "Somebody else's question is being planned, or the control plane is busy; only one is at a time." : "Not planned; see above.");
  }
  for (const button of [plan, usual]) button.disabled = false;
}

function draw({ today, answers }) {
  const best = answers[0];
  show(status, best
    ? `Today's demand planned again costs ${usd(today.cost_usd_per_hour)}/h; ${answers.length === 1 ? best.question : `the best of ${answers.length} answers (${best.question})`} ${comes(best)}.`
    : "No usual question fits this cluster.");
  const all = [today, ...answers];
  charts.hidden = false;
  costs.set(() => bars(all, [{ name: "cost per hour", type: "bar", data: all.map((each) => ({ value: each.cost_usd_per_hour, itemStyle: { color: colour(each === today ? "unknown" : "accent") } })), barMaxWidth: 40 }], (value) => usd(value)));
  const types = [...new Set(all.flatMap((each) => Object.keys(each.gpus)))].sort();
  mix.set(() => bars(all, types.map((name) => ({ name, type: "bar", stack: "gpus", barMaxWidth: 40, itemStyle: { color: colourOf(name) }, data: all.map((each) => each.gpus[name] ?? 0) })), (value) => number(value, 0), 1));
  drawMixes(today, answers);
  show(results, answerTable(today, answers), unmeasured(answers), h("p", { class: "hint" }, "Ranked: what leaves least unserved first; of those the added GPUs that save most per dollar of their price; then what costs least. All are planned from nothing, so that what runs now does not favour one."));
}

function comes(answer) {
  const off = answer.difference_usd_per_hour;
  const cost = Math.abs(off) < 0.005 ? "costs as much" : `costs ${usd(Math.abs(off))}/h ${off > 0 ? "more" : "less"}`;
  return answer.unserved_percent > 0 ? `${cost} and leaves ${number(answer.unserved_percent, 1)} % unserved` : cost;
}

/** Bars that lie: their names are whole sentences. */
function bars(all, series, words, minInterval = 0) {
  const names = all.map((each, at) => (at === 0 ? "today" : each.question));
  return {
    grid: { left: 170, right: 24, top: 8, bottom: 56 }, series,
    tooltip: { trigger: "axis", renderMode: "richText", confine: true, backgroundColor: colour("paper"), borderColor: colour("edge"), textStyle: { color: colour("ink") }, valueFormatter: words },
    legend: { show: series.length > 1, type: "scroll", bottom: 0, textStyle: { color: colour("ink") } },
    xAxis: { type: "value", min: 0, minInterval, ...axisStyle(), axisLabel: { color: colour("faint"), formatter: words, hideOverlap: true } },
    yAxis: { type: "category", inverse: true, data: names, ...axisStyle(), axisLabel: { color: colour("ink"), width: 150, overflow: "truncate" } },
  };
}

function answerTable(today, answers) {
  const heads = [["Question"], ["Cost/h", 1], ["Against today", 1], ["GPUs"], ["Unserved", 1], ["Left out"], ["Added GPUs/h", 1], ["Saves per $", 1], ["Proven bound/h", 1], ["Gap", 1]];
  return h("div", { class: "scroll", tabindex: 0 }, h("table", {}, h("caption", {}, "Answers"),
    h("thead", {}, h("tr", {}, heads.map(([name, right]) => h("th", { scope: "col", class: right ? "number" : null }, name)))),
    h("tbody", {}, answerRow(today, today, "Today"), answers.map((each) => answerRow(each, today, each.question)))));
}

function answerRow(each, today, name) {
  const off = each.difference_usd_per_hour;
  const sign = Math.abs(off) < 0.005 ? "" : off > 0 ? "+" : "−";
  const note = each.planned_for && each.planned_for !== each.question ? h("div", { class: "hint" }, `as planned for: ${each.planned_for}`) : null;
  return h("tr", {}, h("th", { scope: "row", class: "wrap" }, name, note),
    h("td", { class: "number" }, usd(each.cost_usd_per_hour)),
    h("td", { class: `number ${sign && (off > 0 ? "warn" : "good")}` }, each === today ? "–" : `${sign}${usd(Math.abs(off))}`),
    h("td", { class: "wrap" }, gpus(each.gpus, today.gpus)),
    h("td", { class: `number ${each.unserved_percent > 0 ? "bad" : ""}` }, `${number(each.unserved_percent, 1)} %`),
    h("td", { class: "wrap" }, each.unserved.map((part) => `${part.service}: ${number(part.rate_rps)}/s (${part.reason.replaceAll("_", " ")})`).join("; ") || "nothing"),
    h("td", { class: "number" }, usd(each.added_usd_per_hour)), h("td", { class: `number ${each.saving_per_usd >= CENT ? "good" : ""}` }, saved(each.saving_per_usd)),
    h("td", { class: "number" }, usd(each.lower_bound_usd_per_hour)), h("td", { class: "number" }, each.gap_percent === null ? "–" : `${number(each.gap_percent, 1)} %`));
}

const CENT = 0.005;
const saved = (saving) => (saving === null ? "–" : Math.abs(saving) < CENT ? "nothing" : `${saving < 0 ? "−" : ""}${usd(Math.abs(saving))}`);

/** What was not measured on the added GPUs, so that no plan can use them for it. */
function unmeasured(answers) {
  const lines = new Set(answers.flatMap((each) => each.unmeasured.map((one) =>
    `${one.service} is not planned on ${one.gpu_type}: ${one.network} was never measured there. Run plimsoll profile run --network ${one.network} --gpu-type ${one.gpu_type} on such a GPU, or apply a Profile.`)));
  return [...lines].map((line) => h("p", { class: "hint" }, line));
}

/** "3 × T4 (+1)": how many, and how many more than today. */
function gpus(mine, theirs) {
  const names = [...new Set([...Object.keys(mine), ...Object.keys(theirs)])].sort();
  const words = names.map((name) => {
    const off = (mine[name] ?? 0) - (theirs[name] ?? 0);
    return `${mine[name] ?? 0} × ${name}${off === 0 ? "" : ` (${off > 0 ? "+" : "−"}${Math.abs(off)})`}`;
  });
  return words.join(", ") || "none";
}

async function loadTypes() {
  try {
    const types = await api.list("/gpu-types");
    const counts = new Map();
    for (const [, gpu] of table("fleet")) counts.set(gpu.gpu_type, (counts.get(gpu.gpu_type) ?? 0) + 1);
    const listed = types.map((each) => ({ name: each.metadata.name, count: counts.get(each.metadata.name) ?? 0, price: Number(each.spec.price_usd_per_hour) }));
    drawTypes(listed.sort((one, other) => (other.count > 0) - (one.count > 0) || (one.name < other.name ? -1 : 1)));
  } catch (error) {
    complain(error.message);
  }
}

onFilled(sayIdle);
onChange("services", () => drawServices(table("services")));
let types = null;
onChange("fleet", () => {
  const fresh = table("fleet").size;
  if (types !== fresh) loadTypes();
  types = fresh;
});
let known = null;
onChange("services", () => {
  if (known !== table("services").size) sayIdle();
  known = table("services").size;
});
begin(["services", "fleet"]);
