// GPU: what runs on it, how much of it each one was given and uses, and what was read of it.

import * as api from "./api.js";
import { colour, fromZero, timeChart } from "./charts.js";
import { h, keyed, show } from "./dom.js";
import { eventTable } from "./event_table.js";
import { gib, moment, ms, number, rps, watts } from "./format.js";
import { colourOf } from "./gpu_bars.js";
import { historyPicker, stepsOf } from "./history.js";
import { onChange, table } from "./live.js";
import { begin, complain, content, state } from "./page.js";

const TOPIC = `gpu/${state.argument}`;
const MOST_EVENTS = 10;

const facts = h("dl", { class: "facts" });
const bar = h("span", { class: "bar sm" });
const rows = h("tbody", {});
const nothing = h("p", { class: "hint" }, "Nothing runs here and nothing shall. ", h("a", { href: "/plans" }, "Plans"), " say why.");
const events = h("div", {});
const unread = h("p", { class: "hint" });
const COLUMNS = ["State", "Batch", "SM given", "SM used", "Memory given", "Memory used", "Power", "Planned rate", "Served", "Execution"];

const percentOf = (value) => `${number(value, 0)} %`;
const plain = (value) => value;
const CHARTS = {
  power_w: { title: "Power against its cap, W", of: plain, cap: (now) => now.power_cap_w, paint: "power", limit: "cap" },
  memory_used_mib: { title: "Memory in use against the GPU's own, GiB", of: (mib) => mib / 1024, cap: (now) => now.memory_mib, paint: "memory", limit: "the GPU's own" },
  clock_mhz: { title: "Graphics clock against the planned one, MHz", of: plain, cap: (now) => now.planned_clock_mhz, paint: "accent", limit: "planned" },
  busy_percent: { title: "Busy: percent of the time in which anything executed", of: plain, cap: () => 100, paint: "good", limit: "all of it" },
};
const line = (label, style) => ({ label, ...style, value: (_, value) => number(value, 1) });
const charts = Object.fromEntries(Object.entries(CHARTS).map(([name, each]) => [name, timeChart({
  title: each.title, height: 180, zoom: (from_s, to_s) => picker.zoom(from_s, to_s), format: (value) => number(value, 0), range: fromZero,
  series: () => [line("read", { stroke: colour(each.paint), width: 2 }), line(each.limit, { stroke: colour("faint"), dash: [6, 4] })],
})]));

function drawAll() {
  const now = table(TOPIC).get("now");
  content.hidden = !now;
  if (!now) {
    complain(`No GPU is called ${state.argument}: its node was removed, or has not reported it yet.`);
    return;
  }
  drawFacts(now);
  // Replicas and tasks first, then what no one here asked for.
  drawParts([...table(TOPIC)].filter(([key]) => key !== "now").sort(([, one], [, other]) => (one.kind in NAMES) - (other.kind in NAMES)));
  drawCharts();
}

function drawFacts(now) {
  const fact = (name, ...value) => [h("dt", {}, name), h("dd", {}, ...value)];
  const plan = now.plan_id ? [h("a", { href: `/plans/${now.plan_id}` }, `plan ${now.plan_id}`), now.planned_clock_mhz ? ` wants ${number(now.planned_clock_mhz, 0)} MHz and at most ${watts(now.power_cap_w)}` : " does not use it"] : ["no plan is in force"];
  const fresh = JSON.stringify({ ...now, read_at_s: null });
  if (facts.seen === fresh) return;
  facts.seen = fresh;
  show(facts,
    fact("State", h("span", { class: `chip ${trouble(now) ? "warn" : "good"}` }, trouble(now) ?? "in order")),
    fact("Type", now.gpu_type), fact("Node", h("a", { href: `/nodes#${now.node}` }, now.node)), fact("Plan", ...plan),
    fact("Now", `${watts(now.power_w)} of ${watts(now.power_cap_w)} (idle ${watts(now.idle_w)}), ${gib(now.memory_used_mib)} of ${gib(now.memory_mib)}, ${number(now.clock_mhz, 0)} MHz, ${now.busy_percent === null ? "how busy is not told" : `${percentOf(now.busy_percent)} busy`}`));
}

function trouble(now) {
  if (!now.healthy) return "unhealthy: nothing is planned here";
  if (!now.is_heard) return "silent: its agent does not report";
  if (now.node_cordoned) return "its node is cordoned: nothing new starts here";
  return now.cordoned ? "cordoned: nothing new starts here" : null;
}

function drawParts(parts) {
  nothing.hidden = parts.some(([, part]) => part.kind !== "idle");
  show(bar, parts.filter(([, part]) => part.sm_percent > 0 && part.state !== "asleep").map(([, part]) => {
    const element = h("span", { class: "part tinted", width_percent: part.sm_percent, title: `${part.owner}: ${percentOf(part.sm_percent)} SM` }, part.sm_percent >= 12 ? part.owner : "");
    element.style.setProperty("--colour", colourOf(part.owner));
    return element;
  }));
  keyed(rows, parts.map(([key]) => key), makeRow, (element, key) => updateRow(element, table(TOPIC).get(key)));
}

const NAMES = { others: "processes of others", idle: "idle power" };

function makeRow(key) {
  const part = table(TOPIC).get(key);
  const serves = part.kind === "replica";
  const name = serves ? h("a", { href: `/services/${part.owner}` }, part.owner) : (NAMES[part.kind] ?? part.owner);
  const what = part.kind in NAMES ? "" : serves ? part.id : `${part.kind} task`;
  return h("tr", {}, h("th", { scope: "row" }, name, h("div", { class: "hint" }, what)), COLUMNS.map((_, at) => h("td", { class: at ? "number" : null })), h("td", { class: "wrap" }));
}

function updateRow(element, part) {
  const about = part.is_estimated ? "≈ " : "";
  const given = (value, words) => (part.kind in NAMES ? "" : words(value));
  const chip = part.kind in NAMES ? "" : h("span", { class: `chip ${["ready", "running"].includes(part.state) ? "good" : part.state === "failed" ? "bad" : "warn"}` }, part.is_planned ? part.state : `${part.state}, not in the plan`);
  const figures = [
    chip, given(part.batch, (value) => number(value, 0)), given(part.sm_percent, percentOf), part.sm_used_percent === null ? "–" : about + percentOf(part.sm_used_percent),
    given(part.memory_mib, gib), part.memory_used_mib === null ? "–" : gib(part.memory_used_mib), part.power_w === null ? "–" : about + watts(part.power_w),
    given(part.planned_rate_rps, rps), given(part.served_rps, rps), given(part.execution_ms, ms), over(part.overuses),
  ];
  figures.forEach((value, at) => show(element.children[at + 1], value));
}

const UNITS = { memory: gib, sm_percent: percentOf, sm_count: percentOf };
const over = (list) => list.map((each) => h("div", { class: "bad" },
  `uses ${each.is_estimated ? "about " : ""}${(UNITS[each.quantity] ?? number)(each.used)} of ${(UNITS[each.quantity] ?? number)(each.granted)} ${each.quantity === "memory" ? "memory" : "SM"} since ${moment(each.begun_at)}`));

let past = null;

const picker = historyPicker(`/gpus/${state.argument}/readings`, (found) => {
  past = found;
  drawCharts();
});

function drawCharts() {
  const now = table(TOPIC).get("now");
  if (past === null || !now) return;
  const times = stepsOf(past);
  const at = new Map(past.readings.map((each) => [Date.parse(each.at) / 1000, each]));
  const read = (name, of) => times.map((time) => at.get(time)?.[name] ?? null).map((value) => (value === null ? null : of(value)));
  for (const [name, { of, cap }] of Object.entries(CHARTS)) {
    const limit = cap(now);
    charts[name].set([times, read(name, of), times.map(() => (limit === null ? null : of(limit)))]);
  }
  show(unread, past.readings.length ? "" : "Nothing was read in this time: the node's agent did not report.");
}

async function loadEvents() {
  const node = state.argument.split("/")[0];
  const found = await api.get("/events", { subject: `node/${node}`, limit: MOST_EVENTS }).catch(() => null);
  const fresh = JSON.stringify(found?.items);
  if (!found || events.seen === fresh) return; // Details that somebody opened stay open.
  events.seen = fresh;
  show(events, eventTable(found.items, `Newest events of ${node}`, "Nothing was noted of this node yet."));
}

show(content,
  h("section", { class: "card" }, facts),
  h("section", { class: "card" }, h("h2", {}, "SM percent given, up to the line at 100"), bar),
  h("div", { class: "scroll", tabindex: 0 }, h("table", {}, h("caption", {}, "What it carries"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Who"), COLUMNS.map((name, at) => h("th", { scope: "col", class: at ? "number" : null }, name)), h("th", { scope: "col" }, "Overuse"))), rows)),
  nothing, h("h2", {}, "Readings"), picker.element, unread,
  h("div", { class: "columns" }, Object.values(charts).map((each) => each.element)), events);

let seenEvent = null;
onChange("header", () => {
  const newest = table("header").get("now")?.newest_event;
  if (newest !== seenEvent) loadEvents();
  seenEvent = newest;
});
onChange(TOPIC, drawAll);
begin([TOPIC]);
