// Tables and lists of one service.

import { h } from "./dom.js";
import { gib, moment, number, percent, rps, usd } from "./format.js";
import { promiseText } from "./service_figures.js";

const MOST_REPLICAS = 200;
const heads = (names, figures = []) => h("thead", {}, h("tr", {}, names.map((title) => h("th", { scope: "col" }, title)), figures.map((title) => h("th", { scope: "col", class: "number" }, title))));
const figure = (text, kind = "") => h("td", { class: `number ${kind}` }, text);
const listed = (caption, head, rows, empty) => h("div", { class: "scroll", tabindex: 0 }, h("table", {}, h("caption", {}, caption), head,
  h("tbody", {}, rows.length ? rows : h("tr", {}, h("td", { colspan: 10, class: "hint" }, empty)))));

/** Where it runs: replicas of the plan in force, and those that leave. */
export function replicaTable(replicas) {
  const row = (each) => h("tr", {},
    h("th", { scope: "row" }, h("a", { href: `/gpus/${each.gpu}` }, each.gpu)), h("td", {}, each.gpu_type ?? "–"), h("td", {}, stateChip(each)),
    figure(`${number(each.sm_percent, 0)} %`), figure(each.batch), figure(each.clock_mhz === null ? "–" : `${number(each.clock_mhz, 0)} MHz`),
    figure(gib(each.memory_mib)), figure(rps(each.arrival_rate_rps)), figure(each.cost_usd_per_hour === null ? "–" : `${usd(each.cost_usd_per_hour)}/h`));
  const left = replicas.length > MOST_REPLICAS ? ` (the first ${MOST_REPLICAS} of ${replicas.length})` : "";
  return listed(`Replicas${left}`, heads(["GPU", "Type", "State"], ["SM", "Batch", "Clock", "Memory", "Planned rate", "Cost"]),
    replicas.slice(0, MOST_REPLICAS).map(row), "No replica runs and none is planned: no request is expected, or there is no plan yet.");
}

function stateChip(each) {
  const kind = { ready: "good", failed: "bad" }[each.state] ?? "warn";
  if (each.state === null) return h("span", { class: "chip warn" }, "planned, not seen yet");
  return h("span", { class: `chip ${kind}` }, each.is_planned ? each.state : `${each.state}, leaves`);
}

/** Error budget by period: rows of report.slo_budget. */
export function budgetTable(rows) {
  const whole = rows.find((row) => row.period === "30 d");
  const used = whole?.budget_used_percent ?? null;
  const lines = rows.map((row) => h("tr", {},
    h("th", { scope: "row" }, row.period), figure(number(row.finished, 0)), figure(number(row.misses, 0)), figure(number(row.allowed_misses, 1)),
    figure(row.budget_used_percent === null ? "–" : `${number(row.budget_used_percent, 2)} %`),
    figure(row.burn_rate === null ? "–" : number(row.burn_rate, 2), row.is_alerting ? "bad" : ""),
    figure(row.alert_burn_rate === null ? "" : number(row.alert_burn_rate, 1))));
  return [
    h("p", {}, used === null ? "No request finished yet: nothing of the budget is used." : [
      used > 100 ? h("strong", { class: "bad" }, `The error budget is used up: ${number(used, 2)} % of it`) : h("strong", {}, `${number(100 - used, 2)} % of the error budget is left`),
      `, over 30 days (requests are counted since ${moment(whole.counted_since)}).`]),
    h("div", { class: "scroll", tabindex: 0 }, h("table", { id: "budget" }, h("caption", { class: "hidden" }, "Error budget by period"),
      heads(["Last"], ["Requests", "Missed", "May miss", "Used", "Burn rate", "Alert above"]), h("tbody", {}, lines))),
    h("p", { class: "hint" }, "Used: of the budget of 30 days. At a burn rate of 1 the budget lasts exactly as long as the period. An alert needs a shorter period, too: 5 min for 1 h, 30 min for 6 h, 6 h for 3 d."),
  ];
}

const CONDITIONS = { Ready: "Ready", TelemetryAvailable: "Reported by nodes", Feasible: "Demand can be served", Applied: "Nodes follow the plan", PredictionsHold: "Times are as predicted", SLOMet: "SLO met", Launches: "Replicas start", Survives: "Survives a loss" };
const TRUTHS = { True: ["good", "yes"], False: ["bad", "no"], Unknown: ["warn", "not known"] };

/** What can be said of it now. */
export const conditionList = (conditions) => h("dl", { class: "facts" }, conditions.map((each) => [
  h("dt", {}, CONDITIONS[each.type] ?? each.type),
  h("dd", {}, h("span", { class: `chip ${TRUTHS[each.status][0]}` }, TRUTHS[each.status][1]), ` ${each.message}`)]));

/** The manifest's specification, in words where they help. */
export function specList({ metadata, spec }) {
  const { scaling } = spec;
  const labels = Object.entries(metadata.labels).map(([key, value]) => `${key}=${value}`).join(", ");
  const rows = [
    ["Network", spec.variants.length ? `${spec.network}, or ${spec.variants.map((each) => `${each.network} (accuracy ${each.accuracy})`).join(", ")}; at least ${spec.accuracy_floor}` : spec.network],
    ["SLO", `${percent(spec.slo.percentile, 1)} ${promiseText(spec.slo.latency_ms ?? spec.slo.ttft_ms, spec.slo.itl_ms)}${spec.slo.budget === "keep" ? ", its error budget kept" : ""}`],
    ["Replicas", `${scaling.min_replicas} to ${scaling.max_replicas ?? "any number"}, ${scaling.buffer_replicas} as a buffer`],
    ["Delays", `${number(scaling.upscale_delay_s)} s before more, ${number(scaling.downscale_delay_s)} s before fewer`],
    ["Priority", number(spec.priority)],
    ["GPU types", `${spec.gpu_types.allowed?.join(", ") ?? "all"}${spec.gpu_types.excluded.length ? ` but ${spec.gpu_types.excluded.join(", ")}` : ""}`],
    ...(spec.anti_affinity.length ? [["Never next to", `services with the label ${spec.anti_affinity.join(" or ")}`]] : []),
    ["Mode", spec.mode],
    ...(labels ? [["Labels", labels]] : []),
  ];
  return h("dl", { class: "facts" }, rows.map(([title, value]) => [h("dt", {}, title), h("dd", {}, value)]));
}

/** Generations, newest first, each with what it changed. */
export function historyTable(versions) {
  const rows = versions.map((version, at) => h("tr", {}, h("td", { class: "number" }, version.generation), h("td", {}, moment(version.at)), h("td", {}, version.by),
    h("td", { class: "wrap" }, changes(versions[at + 1]?.spec, version.spec) ?? (version.generation === 1 ? "created" : "…"))));
  return listed("History", h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "number" }, "Generation"), ["When", "Who", "What changed"].map((title) => h("th", { scope: "col" }, title)))), rows, "");
}

function changes(before, after) {
  if (!before) return null;
  const words = (value) => (value === null ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value));
  const found = Object.keys(after).filter((key) => JSON.stringify(before[key]) !== JSON.stringify(after[key]));
  return found.map((key) => `${key}: ${words(before[key])} → ${words(after[key])}`).join("; ") || "created again";
}
