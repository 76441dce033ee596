// SLOs: how many are kept, and those that are not, worst first.

import { h, keyed, show } from "../dom.js";
import { count, ms, number, percent, rps } from "../format.js";
import { table } from "../live.js";
import { latencyBar, leftOf } from "../service_figures.js";
import { budgetOf, levelOf, showTrouble, troubleText } from "../service_status.js";

const SHOWN = 7;
const WORDS = { bad: "missed, or at risk", warn: "need a look", tight: "near the limit", good: "kept", unknown: "without requests" };
const RANKS = Object.keys(WORDS);

const bar = h("div", { class: "bar shares" });
const legend = h("p", { class: "legend" });
const rows = h("tbody", {});
const all = h("a", { href: "/services" }, "All services");

/** The card. */
export const element = h("section", { class: "card slos", "aria-label": "SLOs" },
  h("div", { class: "controls" }, h("h2", {}, "SLOs, worst first"), all), bar, legend,
  h("div", { class: "scroll plain", tabindex: 0, role: "region", "aria-label": "Services, worst first" },
    h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Service"), h("th", { scope: "col" }, "Latency against SLO"),
      ["Met", "Budget left", "Rate"].map((title, at) => h("th", { scope: "col", class: at ? "number wide" : "number" }, title)))), rows)));

export function draw() {
  const found = [...table("services")].map(([name, service]) => ({ name, service, level: levelOf(name, service) }));
  const counts = Object.fromEntries(RANKS.map((level) => [level, found.filter((each) => each.level === level).length]));
  const present = RANKS.filter((level) => counts[level] > 0);
  const seen = JSON.stringify(counts);
  if (bar.seen !== seen) {
    bar.seen = seen;
    show(bar, present.map((level) => h("span", { class: `part ${level}`, width_percent: (100 * counts[level]) / found.length })));
    show(legend, present.map((level) => h("span", { class: `key ${level}` }, `${number(counts[level], 0)} ${WORDS[level]}`)));
    show(all, `All ${count(found.length, "service")}`);
  }
  const worst = found.sort(worseFirst).slice(0, SHOWN);
  keyed(rows, worst.map((each) => each.name), makeRow, updateRow);
}

function worseFirst(one, other) {
  const rank = RANKS.indexOf(one.level) - RANKS.indexOf(other.level);
  return rank || shortOf(other.service) - shortOf(one.service) || (one.name < other.name ? -1 : 1);
}

/** How far a service is from its SLO: requests that it misses, then the time that it takes of it. */
const shortOf = ({ attainment, percentile, latency_ms, slo_ms }) => (attainment === null ? -1 : Math.max(0, percentile - attainment) * 1000 + (latency_ms ?? 0) / slo_ms);

const makeRow = () => h("tr", {}, h("th", { scope: "row" }), h("td", {}), ...["", " wide", " wide"].map((kind) => h("td", { class: `number${kind}` })));

function updateRow(row, name) {
  const service = table("services").get(name);
  const trouble = troubleText(name);
  const seen = JSON.stringify([service, budgetOf(name), trouble]);
  if (row.seen === seen) return;
  row.seen = seen;
  const [title, latency, met, left, rate] = row.children;
  // A link that has the focus keeps it: the name is drawn once.
  if (!title.firstChild) show(title, h("a", { href: `/services/${name}` }, name));
  showTrouble(title, trouble, "two-lines");
  show(latency, h("span", { class: "beside" }, latencyBar(service), h("span", { class: "hint" }, `${ms(service.latency_ms)} of ${ms(service.slo_ms)}`)));
  show(met, h("span", { class: service.attainment !== null && service.attainment < service.percentile ? "bad" : "" }, percent(service.attainment)));
  show(left, leftOf(budgetOf(name)));
  show(rate, rps(service.rate_rps));
}
