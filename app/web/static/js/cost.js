// Cost: what was spent over time, on whom, what was idle, what is allowed, and what it would have been unshared.

import * as api from "./api.js";
import { axisStyle, chart, colour, SERIES } from "./charts.js";
import { h, show } from "./dom.js";
import { moment, number, percent, usd } from "./format.js";
import { begin, complain, content } from "./page.js";

const LAYERS = { service: "service", project: "project", gpu_type: "GPU type" };
const TITLES = { service: "Service", project: "Project", gpu_type: "GPU type" };
const PERIODS = { "24h": "the last 24 hours", "7d": "the last 7 days", "30d": "the last 30 days", month: "this month" };
const IDLE = "(idle)";
const OTHERS = "(others)";
const MOST_LAYERS = 10;
const MOST_NAMES = 10;
const REFRESH_MS = 60000;

const chosen = { by: remembered("by", LAYERS, "service"), period: remembered("period", PERIODS, "24h") };
const summary = h("p", { class: "summary", role: "status" }, "Adding up …");
const facts = h("section", { class: "card cost-facts" });
const layers = chart({ title: "Cost over time", height: 340 });
const heading = layers.element.firstChild;
const rows = h("tbody", {});
const sums = h("tfoot", {});
const first = h("th", { scope: "col" }, "");
const limits = h("div", {});
const files = h("p", { class: "controls" });
const figure = (text) => h("td", { class: "number" }, text);
const head = (text) => h("th", { scope: "col", class: "number" }, text);

show(content,
  h("div", { class: "controls" }, choice("Period", "period", PERIODS), choice("By", "by", LAYERS)),
  summary, layers.element, facts,
  h("div", { class: "scroll", tabindex: 0 }, h("table", {}, h("caption", {}, "Sums of the period ", h("span", { class: "hint" }, "(whole-GPU cost: with the idle parts of GPUs divided over who uses them)")),
    h("thead", {}, h("tr", {}, first, head("GPU hours"), head("Cost"), head("Share"), head("Whole-GPU cost"))), rows, sums)),
  limits, files);

/** What the address says, so that a link shows the same; else what was chosen last. */
function remembered(name, known, otherwise) {
  const asked = new URL(window.location).searchParams.get(name);
  return [asked, localStorage.getItem(`cost-${name}`)].find((value) => value in known) ?? otherwise;
}

function choice(words, name, known) {
  const choose = (event) => {
    chosen[name] = event.target.value;
    localStorage.setItem(`cost-${name}`, chosen[name]);
    window.history.replaceState(null, "", `?${new URLSearchParams(chosen)}`);
    load();
  };
  return h("label", {}, `${words} `, h("select", { id: `cost-${name}`, onchange: choose },
    Object.entries(known).map(([value, text]) => h("option", { value, selected: value === chosen[name] }, text))));
}

let asked = 0;

/** The newest question's answer is drawn; one that comes late is not. */
async function load() {
  const mine = (asked += 1);
  try {
    const [found, budgets] = await Promise.all([api.get("/costs", chosen), api.list("/budgets", {}, 500)]);
    if (mine !== asked) return;
    complain(null);
    draw(found, budgets);
  } catch (error) {
    if (mine === asked) complain(error.message);
  }
}

function draw(found, budgets) {
  const isEmpty = found.totals.length === 0;
  heading.textContent = `Cost per ${found.step} by ${LAYERS[found.by]}, USD (${found.step}s of UTC)`;
  first.textContent = TITLES[found.by];
  show(summary, isEmpty ? "Nothing was spent in this period: cost begins with the first plan in force. Register a node and apply a service, or look further back." : [
    h("strong", {}, usd(found.cost_usd)), ` in ${PERIODS[chosen.period]}, `, h("strong", {}, usd(found.idle_cost_usd)),
    ` (${percent(found.idle_cost_usd / found.cost_usd, 1)}) of it idle. ${moment(found.since)} to ${moment(found.until)}; the hour that runs counts up to now.`]);
  layers.element.hidden = isEmpty;
  layers.set(() => stacked(found, budgets));
  show(facts, isEmpty ? "No savings to show yet." : savings(found));
  table(found);
  show(limits, budgets.length === 0 ? null : allowed(budgets));
  links(found);
}

/** Dearest first, the rest as one, idle on top. */
function namesOf(found) {
  const names = found.totals.map((total) => total.name).filter((name) => name !== IDLE);
  const shown = names.length > MOST_LAYERS ? [...names.slice(0, MOST_LAYERS - 1), OTHERS] : names;
  return { shown: found.totals.some((total) => total.name === IDLE) ? [...shown, IDLE] : shown, known: new Set(shown) };
}

function stacked(found, budgets) {
  const { shown, known } = namesOf(found);
  const steps = stepsOf(found);
  const amounts = new Map(shown.map((name) => [name, new Map(steps.map((at) => [at, 0]))]));
  for (const point of found.points) {
    const layer = amounts.get(point.name === IDLE || known.has(point.name) ? point.name : OTHERS);
    const at = Date.parse(point.at);
    if (layer?.has(at)) layer.set(at, layer.get(at) + point.cost_usd);
  }
  const lines = linesOf(found, budgets);
  return {
    xAxis: { type: "category", data: steps.map((at) => stepName(at, found.step)), ...axisStyle() },
    yAxis: { type: "value", min: 0, ...axisStyle(), axisLabel: { formatter: (value) => usd(value), color: colour("faint") },
      max: lines.length ? (range) => Math.max(range.max, ...lines.map((line) => line.yAxis)) * 1.05 : null },
    tooltip: { trigger: "axis", renderMode: "richText", confine: true, valueFormatter: (value) => usd(value, 4), backgroundColor: colour("paper"), borderColor: colour("edge"), textStyle: { color: colour("ink") } },
    series: shown.map((name, place) => ({
      name, type: "bar", stack: "cost", barCategoryGap: "12%", data: [...amounts.get(name).values()].map((value) => value || null),
      itemStyle: name === IDLE ? { color: colour("shade"), borderColor: colour("unknown"), borderWidth: 1, borderType: "dashed" } : { color: SERIES[place % SERIES.length] },
      markLine: place === 0 && lines.length ? { symbol: "none", silent: true, data: lines, lineStyle: { color: colour("bad"), type: "dashed" }, label: { color: colour("ink"), position: "insideStartTop", formatter: (line) => line.data.name } } : undefined,
    })),
  };
}

/** Every step of the period, also those in which nothing was spent; on pages hours and days are UTC's, as in the views. */
function stepsOf(found) {
  const length = found.step === "hour" ? 3600000 : 86400000;
  const steps = [];
  for (let at = Math.floor(Date.parse(found.since) / length) * length; at < Date.parse(found.until); at += length) steps.push(at);
  return steps;
}

const stepName = (at, step) => (step === "hour" ? `${new Date(at).toISOString().slice(5, 16).replace("T", " ")}` : new Date(at).toISOString().slice(0, 10));

/** What the whole cluster's budgets allow per step, as if spent evenly. */
function linesOf(found, budgets) {
  const hours = found.step === "hour" ? 1 : 24;
  return budgets.filter((budget) => budget.spec.project === null && budget.status?.since).map((budget) => {
    const length = (Date.parse(budget.status.until) - Date.parse(budget.status.since)) / 3600000;
    return { yAxis: (Number(budget.spec.usd) * hours) / length, name: `budget ${budget.metadata.name}` };
  });
}

function savings(found) {
  const saved = found.without_sharing_usd - found.cost_usd;
  const ratio = saved / found.without_sharing_usd;
  return [h("h2", {}, saved >= 0 ? `Sharing saved ${usd(saved)} (${percent(ratio, 1)})` : `Sharing saved nothing: ${usd(-saved)} more than whole GPUs`),
    h("p", {}, `Without it: ${usd(found.without_sharing_usd)}. That is each service alone on the fewest whole GPUs of the same types that hold the SM percents it had, hour by hour. Such a fleet would be packed perfectly and start for nothing, so a real one costs more.`)];
}

function table(found) {
  show(rows, found.totals.map((total) => h("tr", {}, h("th", { scope: "row" }, nameOf(total.name, found.by)), figure(number(total.gpu_hours, 2)),
    figure(usd(total.cost_usd)), figure(percent(total.cost_usd / found.cost_usd, 1)), figure(usd(total.whole_gpu_cost_usd)))),
  found.totals.length ? null : h("tr", {}, h("td", { colspan: 5, class: "hint" }, "Nothing yet.")));
  const sum = (field) => found.totals.reduce((all, total) => all + total[field], 0);
  show(sums, h("tr", {}, h("th", { scope: "row" }, "Bill"), figure(number(sum("gpu_hours"), 2)), figure(usd(found.cost_usd)), figure(found.cost_usd ? percent(1, 1) : "–"), figure(usd(sum("whole_gpu_cost_usd")))));
}

const nameOf = (name, by) => (by === "service" && !name.startsWith("(") ? h("a", { href: `/services/${name}` }, name) : name);

function allowed(budgets) {
  return h("div", { class: "scroll", tabindex: 0 }, h("table", {}, h("caption", {}, "Budgets"),
    h("thead", {}, h("tr", {}, ["Budget", "Of", "Until"].map((text) => h("th", { scope: "col" }, text)), ["Limit", "Spent", "Used", "At the present plan"].map(head), h("th", { scope: "col" }, "When spent"))),
    h("tbody", {}, budgets.map((budget) => h("tr", {}, h("th", { scope: "row" }, budget.metadata.name), h("td", {}, budget.spec.project ?? "whole cluster"),
      h("td", {}, moment(budget.status.until)), figure(`${usd(Number(budget.spec.usd))}/${budget.spec.period}`), figure(usd(budget.status.spent_usd)),
      h("td", { class: "number" }, h("span", { class: `chip ${budget.status.spent_percent >= 100 ? "bad" : budget.status.spent_percent >= 80 ? "warn" : "good"}` }, percent(budget.status.spent_percent / 100, 1))),
      figure(usd(budget.status.projected_usd)), h("td", { class: "wrap" }, ACTIONS[budget.spec.action], degraded(budget.status)))))));
}

const ACTIONS = { warn: "warns", block_new: "nothing new is admitted", degrade: "services of low priority are planned for less" };

/** Who is planned for less at this moment. */
function degraded(status) {
  if (!status.degraded_services) return null;
  const named = status.degraded.slice(0, MOST_NAMES).map((each) => `${each.service} for ${number(each.demand_percent)} %`);
  const more = status.degraded_services > named.length ? `, and ${number(status.degraded_services - named.length, 0)} more` : "";
  return h("div", { class: "warn" }, `Now, of their demand: ${named.join(", ")}${more}`);
}

function links(found) {
  const query = `since=${encodeURIComponent(found.since)}&until=${encodeURIComponent(found.until)}`;
  const link = (format) => h("a", { href: `/api/v1/reports/cost_by_${found.by}_hour/export?format=${format}&${query}` }, format === "csv" ? "CSV" : "Parquet");
  show(files, h("span", {}, "The hours of this table as a file: ", link("csv"), " · ", link("parquet")),
    h("span", { class: "hint" }, "The same figures are in SQL (docs/sql.md) and in ", h("code", {}, "plimsoll cost"), "."));
}

load();
window.setInterval(() => { if (!document.hidden) load(); }, REFRESH_MS);
begin();
