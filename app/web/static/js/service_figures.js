// Figures of services as pages show them: latency as a bar to the line, error budget, burn rate.

import { h } from "./dom.js";
import { ms, number } from "./format.js";

/** good, tight, bad or unknown: how a service's SLO is kept in the last minute. */
export function healthOf(service) {
  if (service.attainment === null) return "unknown";
  if (service.attainment < service.percentile) return "bad";
  return service.latency_ms !== null && service.latency_ms > 0.9 * service.slo_ms ? "tight" : "good";
}

/** What is promised; `itl_ms`: of a language model, null of other services. */
export const promiseText = (slo_ms, itl_ms) => (itl_ms === null ? `within ${ms(slo_ms)}` : `with a first token within ${ms(slo_ms)} and further ones within ${ms(itl_ms)}`);

const LINE_PERCENT = 80;

/** A bar that reaches the line where the latency is the SLO's. */
export function latencyBar(service) {
  const share = service.latency_ms === null ? 0 : Math.min(100, (LINE_PERCENT * service.latency_ms) / service.slo_ms);
  const words = service.latency_ms === null ? "no request finished" : `${ms(service.latency_ms)} of ${ms(service.slo_ms)}`;
  return h("span", { class: "toline", role: "img", "aria-label": words },
    h("span", { class: `reach ${healthOf(service)}`, width_percent: share }), h("span", { class: "line", left_percent: LINE_PERCENT }));
}

/** What is left of an error budget, red where it is used up. */
export function leftOf(budget) {
  const left = budget?.left_percent ?? null;
  return h("span", { class: left !== null && left < 0 ? "bad" : "" }, left === null ? "–" : `${number(left, 1)} %`);
}

/** A burn rate, red where a person should look. */
export function burnCell(budget, period) {
  const rate = budget?.burn[period] ?? null;
  return h("span", { class: budget?.alerts.includes(period) ? "bad" : "" }, rate === null ? "–" : number(rate, 2));
}

/** Since when requests are counted, where that is less than 30 days. */
export function sinceText(budget) {
  if (!budget?.counted_since) return "no request yet";
  const at = new Date(budget.counted_since);
  return `since ${at.toLocaleDateString("en-CA")} ${at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })}`;
}

/** `2 × T4, 1 × V100`. */
export const replicasText = (replicas) => Object.entries(replicas).sort().map(([type, count]) => `${count} × ${type}`).join(", ") || "none";
