// The past of a service in three charts, and the same as a table: rate with its forecast, latency and requests against the SLO.

import { colour, fromZero, timeChart, veil } from "./charts.js";
import { h, show } from "./dom.js";
import { historyPicker, stepsOf } from "./history.js";
import { moment, ms, number, percent, rps } from "./format.js";
import { promiseText } from "./service_figures.js";

const WIDE = 8;
const BAND = { low: 0.05, high: 0.95 };
const OLD = "Latencies are kept for 6 hours; before that, what met the SLO is known by the hour.";
let found = null;
let isLive = false;
let forecast = null;
let goal = { slo_ms: 0, slo_itl_ms: null, percentile: 0 };
let picker = null;
const zoom = (from_s, to_s) => picker.zoom(from_s, to_s);

const rates = timeChart({
  title: "Requests per second",
  range: fromZero,
  zoom,
  format: (value) => `${number(value)}/s`,
  series: () => [
    { label: "arrived", stroke: colour("accent"), width: 2, value: (_, value) => rps(value) },
    { label: "planned for", stroke: colour("tight"), width: 1.5, dash: [6, 4], spanGaps: true, value: (_, value) => rps(value) },
    { label: "forecast, 95 %", stroke: veil("good", 0.7), width: 1, spanGaps: true, value: (_, value) => rps(value) },
    { label: "forecast, 5 %", stroke: veil("good", 0.7), width: 1, spanGaps: true, value: (_, value) => rps(value) },
  ],
  bands: () => [{ series: [3, 4], fill: veil("good", 0.18) }],
});

const latencies = timeChart({
  title: "Latency at the SLO's percentile",
  range: fromZero,
  zoom,
  format: (value) => `${number(value)} ms`,
  // A minute of a queue that grew is hundreds of times the SLO, which must still be seen next to it.
  isWide: ([, values]) => goal.slo_ms > 0 && Math.max(...values.filter((value) => value !== null), 0) > WIDE * goal.slo_ms,
  series: () => [
    { label: "latency", stroke: colour("accent"), width: 2, value: (_, value) => ms(value) },
    { label: "SLO", stroke: colour("bad"), width: 1.5, dash: [6, 4], value: (_, value) => ms(value) },
  ],
});

const shares = timeChart({
  title: "Requests that met the SLO",
  zoom,
  // All of them at the top; at the bottom the worst that is shown, with some room below it.
  range: (_, least) => [Math.max(0, 1.2 * Math.min(least ?? 1, 0.999) - 0.2), 1],
  format: (value) => percent(value, 1),
  series: () => [
    { label: "met", stroke: colour("accent"), width: 2, value: (_, value) => percent(value) },
    { label: "SLO", stroke: colour("bad"), width: 1.5, dash: [6, 4], value: (_, value) => percent(value) },
  ],
});

const rows = h("tbody", {});
const words = h("p", { class: "hint" });
const table = h("details", { class: "card", ontoggle: () => drawTable() }, h("summary", {}, "As a table"),
  h("div", { class: "scroll short", tabindex: 0 }, h("table", {}, h("caption", { class: "hidden" }, "The same time, newest first"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "From"), ["Rate", "Latency", "Met"].map((title) => h("th", { scope: "col", class: "number" }, title)))), rows)));

/** The charts of one service, with the choice of their time range. */
export function pastOf(path) {
  picker = historyPicker(`${path}/history`, (answer, endsNow) => {
    [found, isLive] = [answer, endsNow];
    draw();
  });
  return [picker.element, h("div", { class: "columns" }, [rates, latencies, shares].map((each) => each.element)), words, table];
}

/** What the SLO is now. */
export function noteGoal({ slo_ms, slo_itl_ms, percentile }) {
  if (goal.slo_ms === slo_ms && goal.slo_itl_ms === slo_itl_ms && goal.percentile === percentile) return;
  goal = { slo_ms, slo_itl_ms, percentile };
  const measured = slo_itl_ms === null ? "Latency" : "Time to first token";
  latencies.element.querySelector("figcaption").textContent = `${measured} at p${number(100 * percentile)} against the SLO of ${ms(slo_ms)}`;
  shares.element.querySelector("figcaption").textContent = `Requests ${promiseText(slo_ms, slo_itl_ms)}`;
  draw();
}

/** The band that the loop expects one plan ahead. */
export function noteForecast(fresh) {
  forecast = fresh;
  draw();
}

function draw() {
  if (found === null) return;
  const times = stepsOf(found);
  const at = new Map(found.points.map((point) => [Date.parse(point.at) / 1000, point]));
  const of = (field) => times.map((time) => at.get(time)?.[field] ?? null);
  const [coming, more] = [isLive ? expected() : null, (value) => (coming === null ? [] : [value])];
  rates.set([[...times, ...more(coming?.time)], [...of("rate_rps"), ...more(null)], [...of("planned_rps"), ...more(null)], [...of("high_rps"), ...more(coming?.high)], [...of("low_rps"), ...more(coming?.low)]]);
  latencies.set([times, of("latency_ms"), times.map(() => goal.slo_ms)]);
  shares.set([times, of("attainment"), times.map(() => goal.percentile)]);
  show(words, coming ? `Expected in ${number(forecast.horizon_s, 0)} s: between ${rps(coming.low)} and ${rps(coming.high)} in 9 of 10 cases, by ${forecast.technique.replaceAll("_", " ")}. ` : isLive ? UNHEARD[forecast?.telemetry] ?? "" : "",
    found.points.some((point) => point.rate_rps !== null && point.latency_ms === null && point.attainment !== null) ? OLD : "");
  drawTable();
}

const UNHEARD = { stopped: "Nodes no longer report this service. ", never: "No node reported this service yet. " };

function expected() {
  const rateAt = (level) => forecast?.quantiles.find((each) => each.level === level)?.rate_rps ?? null;
  const [low, high] = [rateAt(BAND.low), rateAt(BAND.high)];
  return low === null ? null : { time: Date.parse(found.until) / 1000 + Math.ceil(forecast.horizon_s), low, high };
}

function drawTable() {
  if (!table.open || found === null) return;
  const figure = (text) => h("td", { class: "number" }, text);
  show(rows, found.points.toReversed().map((point) => h("tr", {},
    h("th", { scope: "row" }, moment(point.at)), figure(rps(point.rate_rps)), figure(ms(point.latency_ms)), figure(percent(point.attainment)))));
}
