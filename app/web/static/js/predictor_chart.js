// One network on one GPU type: the fit's curves, a line per batch, through what was measured; and the same as a table.

import * as api from "./api.js";
import { axisStyle, chart, colour, SERIES } from "./charts.js";
import { h, show } from "./dom.js";
import { ms, number, signed } from "./format.js";

const HEIGHT = 360;
const curves = chart({ title: "Latency over SM percent", height: HEIGHT });
const caption = curves.element.querySelector("figcaption");
const words = h("div", { class: "hint", role: "status" });
const rows = h("tbody", {});
const cells = ["Batch", "SM percent", "Measured", "Fitted", "Fitted is off by", "Off the curve"];
const shown = h("details", { class: "card", ontoggle: () => drawTable() }, h("summary", {}, "As a table"),
  h("div", { class: "scroll short", tabindex: 0 }, h("table", {}, h("caption", { class: "hidden" }, "What was measured, and what the fit says of it"),
    h("thead", {}, h("tr", {}, cells.map((cell, at) => h("th", { scope: "col", class: at < 5 ? "number" : null }, cell)))), rows)));
const pick = h("select", { id: "predictor", onchange: () => choose(pick.value) });
let groups = new Map();
let chosen = null;
let found = null;

/** Where it is drawn. */
export const predictorChart = h("section", { hidden: true }, h("div", { class: "controls" }, h("label", { for: "predictor" }, "Fitted against measured: "), pick), words, curves.element, shown);

const keyOf = (row) => `${row.network} on ${row.gpu_type}`;
const off = (each) => (each.fitted_ms === null ? null : 100 * (each.fitted_ms / each.latency_ms - 1));

/** Offer these groups, [{network, gpu_type, health}], `health` null where nothing was compared; draw the first, or the one that was chosen. */
export function offer(offered) {
  groups = new Map(offered.map((each) => [keyOf(each), each]));
  predictorChart.hidden = groups.size === 0;
  show(pick, [...groups.keys()].map((key) => h("option", { value: key }, key)));
  if (groups.size === 0) return;
  const kept = groups.has(chosen) ? chosen : fromAddress() ?? groups.keys().next().value;
  pick.value = kept;
  if (kept !== chosen) choose(kept);
}

function fromAddress() {
  const query = new URLSearchParams(window.location.search);
  const key = keyOf({ network: query.get("network"), gpu_type: query.get("gpu_type") });
  return groups.has(key) ? key : null;
}

async function choose(key) {
  chosen = key;
  const { network, gpu_type } = groups.get(key);
  window.history.replaceState(null, "", `?${new URLSearchParams({ network, gpu_type })}`);
  const fresh = await api.get(`/networks/${encodeURIComponent(network)}/fits/curves`, { gpu_type }).catch((error) => error);
  // Somebody may have chosen another one meanwhile.
  if (key !== chosen) return;
  found = fresh instanceof Error ? null : fresh;
  if (found === null) show(words, fresh.message);
  else draw(groups.get(key).health);
}

function draw(health) {
  caption.textContent = `Latency of ${found.network} on ${found.gpu_type} over SM percent: lines as fitted, dots as measured`;
  show(words, h("p", {}, ofFit(found.fit)), h("p", {}, ofDrift(health)), h("p", {}, ofSamples()));
  curves.element.hidden = found.measured.length === 0;
  shown.hidden = found.measured.length === 0;
  curves.set(option);
  drawTable();
}

const share = (ratio) => (ratio === null ? "unknown, too few samples" : `${number(100 * ratio, 1)} %`);
const ofFit = (fit) => (fit === null
  ? "No fit of its latency is in force: operating points are as profiled."
  : `${fit.technique.replaceAll("_", " ")}, version ${fit.version}, from ${fit.sample_count} samples. Error of held-out samples: ${share(fit.cross_validated_error)} on average, 9 in 10 below ${share(fit.cross_validated_error_p90)}; of those it was made from: ${share(fit.training_error)}.`);
const ofDrift = (health) => (health === null
  ? "Drift: nothing of what is served was compared with it yet."
  : `Drift: served batches take ${number(Math.abs(health.correction_percent), 1)} % ${health.correction_percent < 0 ? "less" : "more"} time than predicted${health.is_alarmed ? ", and an alarm is raised: more room is planned there" : ", no alarm"}.`);

function ofSamples() {
  if (found.measured.length === 0) return "Nothing was measured of it: plimsoll samples send brings measurements, plimsoll samples fit fits them.";
  const { clock_mhz, time_quota_percent, power_limit_w } = found.setting;
  const at = [clock_mhz && `${number(clock_mhz, 0)} MHz`, time_quota_percent < 100 && `${number(time_quota_percent, 0)} % of the time`, power_limit_w && `${number(power_limit_w, 0)} W`].filter(Boolean);
  const newest = found.samples > found.measured.length ? `; the newest ${found.measured.length} of ${number(found.samples, 0)} samples are shown` : "";
  return `Lines are${at.length ? ` at ${at.join(", ")}, and` : ""} without neighbours; rings were measured next to neighbours or at other settings${newest}.`;
}

function option() {
  const batches = [...new Set(found.measured.map((each) => each.batch))].sort((one, other) => one - other);
  // A batch without a curve of its own has the colour of the last one below it that has.
  const drawn = found.curves.length ? found.curves.map((each) => each.batch) : batches.slice(0, SERIES.length);
  const hue = (batch) => SERIES[Math.max(0, drawn.filter((each) => each <= batch).length - 1) % SERIES.length];
  const line = new Map(found.curves.map((each) => [each.batch, each.points]));
  const one = (batch) => ({ name: `batch ${number(batch)}`, itemStyle: { color: hue(batch), borderColor: hue(batch) }, color: hue(batch) });
  const dots = (batch, is_on_curve) => found.measured.filter((each) => each.batch === batch && each.is_on_curve === is_on_curve).map((each) => ({ value: [each.sm_percent, each.latency_ms], each }));
  const axis = { nameLocation: "middle", ...axisStyle() };
  return {
    grid: { left: 72, right: 24, top: 16, bottom: 78 },
    legend: { type: "scroll", bottom: 0, textStyle: { color: colour("ink") }, data: drawn.map((batch) => one(batch).name) },
    tooltip: { trigger: "item", renderMode: "richText", confine: true, backgroundColor: colour("paper"), borderColor: colour("edge"), textStyle: { color: colour("ink") }, formatter: told },
    xAxis: { type: "value", min: 0, max: 100, name: "SM percent", nameGap: 28, ...axis },
    yAxis: { type: "log", logBase: 2, name: "latency, ms", nameGap: 48, ...axis, axisLabel: { color: colour("faint"), formatter: (value) => number(value) } },
    series: batches.flatMap((batch) => [
      { ...one(batch), type: "line", symbol: "none", data: line.get(batch) ?? [], lineStyle: { color: hue(batch), width: 2 }, silent: true },
      { ...one(batch), type: "scatter", symbolSize: 8, symbol: "circle", data: dots(batch, true) },
      { ...one(batch), type: "scatter", symbolSize: 8, symbol: "circle", itemStyle: { color: "transparent", borderColor: hue(batch), borderWidth: 2 }, data: dots(batch, false) },
    ]),
  };
}

const told = ({ seriesName, data: { each } }) =>
  `${seriesName} at ${number(each.sm_percent)} % SM\nmeasured ${ms(each.latency_ms)}\nfitted ${ms(each.fitted_ms)} (${signed(off(each))})`;

function drawTable() {
  if (!shown.open || found === null) return;
  const figure = (text) => h("td", { class: "number" }, text);
  const ordered = [...found.measured].sort((one, other) => one.batch - other.batch || one.sm_percent - other.sm_percent);
  show(rows, ordered.map((each) => h("tr", {}, h("th", { scope: "row", class: "number" }, number(each.batch)), figure(`${number(each.sm_percent)} %`), figure(ms(each.latency_ms)),
    figure(ms(each.fitted_ms)), figure(signed(off(each))), h("td", {}, each.is_on_curve ? "no" : each.fitted_ms === null && found.fit ? "next to neighbours" : "at other settings"))));
}
