// One service: how it does against its SLO, what it runs on and costs, what was asked for, and what happened to it.

import * as api from "./api.js";
import { h, show } from "./dom.js";
import { eventTable } from "./event_table.js";
import { ms, number, percent, rps, usd } from "./format.js";
import { onChange, table } from "./live.js";
import { begin, complain, content, isOperator, state } from "./page.js";
import { budgetTable, conditionList, historyTable, replicaTable, specList } from "./service_parts.js";
import { latencyBar, promiseText, replicasText } from "./service_figures.js";
import { noteForecast, noteGoal, pastOf } from "./service_charts.js";
import { callBox } from "./service_call.js";
import { logCard } from "./logs.js";
import { makeForm } from "./service_form.js";

const name = state.argument;
const path = `/services/${encodeURIComponent(name)}`;
const topic = `service/${name}`;
const item = (key) => table(topic).get(key);

const place = (title, kind = "") => h("section", { class: `card ${kind}`, "aria-label": title }, h("h2", {}, title), h("p", { class: "hint" }, "loading …"));
const parts = {
  facts: h("div", {}),
  why: h("p", {}),
  conditions: place("Conditions", "tall"),
  budget: place("Error budget", "taller"),
  replicas: h("div", {}),
  today: place("Today, UTC"),
  spec: place("Spec"),
  history: h("div", {}),
  events: h("div", {}),
};
let form = null;

function layOut() {
  show(content, h("section", { class: "card", "aria-label": "Now" }, parts.facts, parts.why), pastOf(path),
    h("div", { class: "columns" }, parts.budget, h("div", {}, parts.conditions, parts.today)),
    callBox(name), parts.replicas, logCard(`${path}/logs`), isOperator ? changeSection() : null, h("div", { class: "columns" }, parts.spec, parts.history), parts.events);
}

/** The form to change it, closed until somebody wants it; what is typed survives what happens meanwhile. */
function changeSection() {
  form = makeForm({ manifest: item("now").manifest, isNew: false, save });
  const section = h("details", { class: "card", id: "change", ontoggle: () => section.open && !form.isTouched() && form.fill(item("now").manifest) },
    h("summary", {}, "Change its SLO, replicas or priority"), form.element);
  return section;
}

async function save(manifest, seen, query) {
  const headers = { "If-Match": `"${seen}"` };
  const saved = await api.send("PUT", `${path}${query}`, manifest, headers).catch(async (error) => {
    if (error.status !== 412) throw error;
    const now = await api.get(path);
    const by = item("now")?.updated_by ?? "somebody";
    throw Object.assign(new Error(`Somebody else changed ${name} since you opened this form (generation ${seen}): it is at generation ${now.metadata.generation}, by ${by}. Nothing was saved; your entries are still here.`), { status: 412, present: now });
  });
  return saved;
}

function drawNow() {
  const now = item("now");
  if (!now) {
    return show(content, h("p", { class: "card" }, `No service is called ${name}, or your token does not reach its project. `, h("a", { href: "/services" }, "All services")));
  }
  if (!parts.facts.isConnected) layOut();
  noteGoal(now);
  showIfNew(parts.facts, { ...now, age_s: null, manifest: null }, () => h("dl", { class: "facts" }, factRows(now)));
  showIfNew(parts.why, table("header").get("now")?.plan_id, (plan) => (plan ? h("a", { href: `/why/${plan}` }, `Why plan ${plan} is in force`) : null));
  showIfNew(parts.spec, now.manifest, () => [h("h2", {}, `Spec (generation ${now.generation})`), specList(now.manifest)]);
  showIfNew(parts.replicas, item("replicas"), (replicas) => replicaTable(replicas));
  showIfNew(parts.history, item("versions"), (versions) => historyTable(versions));
  form?.notePresent(now.manifest);
}

/** Nothing is drawn again that did not change: who is at a link or selects text stays there. */
function showIfNew(place, data, make) {
  const seen = JSON.stringify(data);
  if (place.seen === seen) return;
  place.seen = seen;
  show(place, make(data));
}

function factRows(now) {
  const kind = now.attainment !== null && now.attainment < now.percentile ? "bad" : "";
  const facts = [
    ["SLO", `${percent(now.percentile, 1)} of its requests ${promiseText(now.slo_ms, now.slo_itl_ms)}`],
    [now.slo_itl_ms === null ? "Latency" : "First token", [latencyBar(now), `${ms(now.latency_ms)} at p${number(100 * now.percentile)} in the last minute`]],
    ["Met", h("span", { class: kind }, `${percent(now.attainment)} in the last minute`)],
    ["Rate", `${rps(now.rate_rps)}, planned for ${rps(now.planned_rate_rps)}`],
    ["Runs on", replicasText(now.replicas)],
    ["Costs", `${usd(now.cost_usd_per_hour)} per hour`],
    ["Network", `${now.network} for project ${now.project}`],
  ];
  return facts.map(([title, value]) => [h("dt", {}, title), h("dd", {}, value)]);
}

/** Rows of a report as objects. */
const report = async (view, query) => {
  const { columns, rows } = await api.get(`/reports/${view}`, { service: name, limit: 500, ...query });
  return rows.map((row) => Object.fromEntries(row.map((value, at) => [columns[at], value])));
};

const LOADS = [
  { every_s: 5, load: async () => { const found = await api.get(path); showIfNew(parts.conditions, found.status.conditions, (list) => [h("h2", {}, "Conditions"), conditionList(list)]); } },
  { every_s: 5, load: async () => noteForecast(await api.get(`${path}/forecast`)) },
  { every_s: 20, load: async () => showIfNew(parts.budget, await report("slo_budget", {}), (rows) => [h("h2", {}, "Error budget"), budgetTable(rows)]) },
  { every_s: 60, load: today },
  { every_s: 10, load: events },
];

async function today() {
  const since = `${item("now").today}T00:00:00Z`;
  const costs = await report("cost_by_service_hour", { since });
  const energies = await report("energy_by_service_hour", { since });
  const sum = (rows, column) => rows.reduce((total, row) => total + row[column], 0);
  const facts = [
    ["Cost", `${usd(sum(costs, "cost_usd"), 4)} by SM percent`],
    ["", `${usd(sum(costs, "whole_gpu_cost_usd"), 4)} if idle parts of its GPUs are shared out`],
    ["GPU hours", number(sum(costs, "gpu_hours"), 2)],
    ["Energy", `${number(sum(energies, "energy_wh"), 1)} Wh`],
  ];
  show(parts.today, h("h2", {}, "Today, UTC"), h("dl", { class: "facts" }, facts.map(([title, value]) => [h("dt", {}, title), h("dd", {}, value)])));
}

async function events() {
  const found = await api.get("/events", { subject: `service/${name}`, limit: 20 }).catch((error) => {
    if (error.status === 403) return null; // The audit is for tokens that see every project.
    throw error;
  });
  showIfNew(parts.events, found?.items ?? null, (items) => (items === null ? null : eventTable(items, "Events of this service", "Nothing happened to it yet.")));
}

/** What went wrong, by load: one that succeeds takes back its own complaint only. */
const wrong = new Map();

function refresh(load) {
  if (document.hidden || !item("now")) return;
  load().then(() => wrong.delete(load), (error) => wrong.set(load, error.message))
    .then(() => complain(wrong.size ? [...new Set(wrong.values())].join(" ") : null));
}

onChange(topic, drawNow);
onChange("header", drawNow);
let isBegun = false;
onChange(topic, () => {
  if (isBegun || !item("now")) return;
  isBegun = true;
  for (const { every_s, load } of LOADS) {
    refresh(load);
    window.setInterval(() => refresh(load), 1000 * every_s);
  }
});
begin([topic]);
