// The last hour of a service in two charts, and the same as a table: rate with its forecast, latency against the SLO.

import { colour, timeChart, veil } from "./charts.js";
import { h, show } from "./dom.js";
import { moment, ms, number, percent, rps } from "./format.js";

const HOUR_S = 3600;
const WIDE = 8;
const BAND = { low: 0.05, high: 0.95 };
const steps = new Map();
const demands = [];
let coming = null;
let goal_ms = 0;
let horizon_s = 0;

export const rates = timeChart({
  title: "Requests per second, last hour",
  fromZero: true,
  format: (value) => `${number(value)}/s`,
  series: () => [
    { label: "came", stroke: colour("accent"), width: 2, value: (_, value) => rps(value) },
    { label: "plans were made for", stroke: colour("tight"), width: 1.5, dash: [6, 4], spanGaps: true, value: (_, value) => rps(value) },
    { label: "forecast, 95 %", stroke: veil("good", 0.7), width: 1, spanGaps: true, value: (_, value) => rps(value) },
    { label: "forecast, 5 %", stroke: veil("good", 0.7), width: 1, spanGaps: true, value: (_, value) => rps(value) },
  ],
  bands: () => [{ series: [3, 4], fill: veil("good", 0.18) }],
});

export const latencies = timeChart({
  title: "Latency at the SLO's percentile, last hour",
  fromZero: true,
  format: (value) => `${number(value)} ms`,
  // A minute of a queue that grew is hundreds of times the SLO, which must still be seen beside it.
  isWide: ([, values]) => goal_ms > 0 && Math.max(...values.filter((value) => value !== null), 0) > WIDE * goal_ms,
  series: () => [
    { label: "latency", stroke: colour("accent"), width: 2, value: (_, value) => ms(value) },
    { label: "SLO", stroke: colour("bad"), width: 1.5, dash: [6, 4], value: (_, value) => ms(value) },
  ],
});

const rows = h("tbody", {});
const words = h("p", { class: "hint" });
const shown = h("details", { class: "card", ontoggle: () => drawTable() }, h("summary", {}, "The same as a table"),
  h("div", { class: "scroll short", tabindex: 0 }, h("table", {}, h("caption", { class: "hidden" }, "The last hour, newest first"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "From"), ["Rate", "Latency", "Met"].map((title) => h("th", { scope: "col", class: "number" }, title)))), rows)));
/** What is beside the charts, in words and as a table. */
export const stepTable = { element: h("div", {}, words, shown) };

/** Take the steps of a topic; other items of it are passed over. */
export function noteSteps(items) {
  for (const [key, step] of items) if (/^\d+$/.test(key)) steps.set(Number(key), step);
  const oldest = newest() - HOUR_S;
  for (const key of steps.keys()) if (key < oldest) steps.delete(key);
}

const newest = () => Math.max(...steps.keys());

/** The band that the loop expects one plan ahead. */
export function noteForecast(found) {
  const rateAt = (level) => found.quantiles.find((each) => each.level === level)?.rate_rps ?? null;
  const [low, high] = [rateAt(BAND.low), rateAt(BAND.high)];
  horizon_s = found.horizon_s;
  if (low === null || steps.size === 0) {
    show(words, { heard: "", stopped: "Nodes no longer report this service.", never: "No node reported this service yet." }[found.telemetry]);
    return;
  }
  coming = { time: newest() + Math.ceil(horizon_s), low, high };
  show(words, `Expected in ${number(horizon_s, 0)} s: between ${rps(low)} and ${rps(high)} in 9 of 10 cases, by ${found.technique.replaceAll("_", " ")}.`);
}

/** The rates that plans were made for and the forecasts behind them, all of the last hour, then only what is new. */
export async function demandOf(service, get) {
  if (steps.size === 0) return;
  const limit = 500;
  let found = null;
  do {
    const last = demands.at(-1);
    const since = last ? Date.parse(last.at) + 1 : 1000 * (newest() - HOUR_S);
    found = (await get(`/demand/${service}`, { since: new Date(since).toISOString(), limit })).items;
    demands.push(...found);
  } while (found.length === limit);
  const oldest = 1000 * (newest() - HOUR_S);
  while (demands.length > 1 && Date.parse(demands[1].at) < oldest) demands.shift();
}

/** Draw what is known. */
export function drawCharts(slo_ms, percentile) {
  goal_ms = slo_ms;
  latencies.element.querySelector("figcaption").textContent = `Latency at p${number(100 * percentile)} against the SLO of ${ms(goal_ms)}, last hour`;
  if (steps.size === 0) return;
  const own = [...steps.keys()].sort((one, other) => one - other);
  const times = coming !== null && coming.time > own.at(-1) ? [...own, coming.time] : own;
  const planned = heldAt(times, 0, "arrival_rate_rps").map((rate, at) => (times[at] <= newest() ? rate : null));
  rates.set([times, times.map((time) => steps.get(time)?.rate_rps ?? null), planned, forecastAt(times, "high"), forecastAt(times, "low")]);
  latencies.set([own, own.map((time) => steps.get(time).latency_ms), own.map(() => goal_ms)]);
  drawTable();
}

/** What the newest demand says that is at least so old, at each time. */
function heldAt(times, age_s, field) {
  let next = 0;
  let held = null;
  return times.map((time) => {
    while (next < demands.length && Date.parse(demands[next].at) <= 1000 * (time - age_s)) held = demands[next++][field];
    return held;
  });
}

/** One edge of the band: what had been forecast for each time when that was one plan ahead. */
function forecastAt(times, edge) {
  const held = heldAt(times, horizon_s, `${edge}_rps`);
  return times.map((time, at) => (coming !== null && time === coming.time ? coming[edge] : held[at]));
}

function drawTable() {
  if (!shown.open) return;
  const figure = (text) => h("td", { class: "number" }, text);
  show(rows, [...steps].sort(([one], [other]) => other - one).map(([time, step]) => h("tr", {},
    h("th", { scope: "row" }, moment(new Date(1000 * time).toISOString())), figure(rps(step.rate_rps)), figure(ms(step.latency_ms)), figure(percent(step.attainment)))));
}
