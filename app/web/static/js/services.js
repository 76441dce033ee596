// Services: what each promised, how it does now, what is left of its error budget, and what it costs.

import { h, show } from "./dom.js";
import { count, ms, number, percent, rps, usd } from "./format.js";
import { onChange, table } from "./live.js";
import { begin, content, isOperator, searchBox } from "./page.js";
import { burnCell, latencyBar, leftOf, replicasText, sinceText } from "./service_figures.js";
import { budgetOf, showTrouble, statusOf, statusSentence, troubleText } from "./service_status.js";
import { virtualRows } from "./virtual.js";

const LOW = Number.NEGATIVE_INFINITY;
const replicas = (service) => Object.values(service.replicas).reduce((sum, count) => sum + count, 0);

/** Columns: how to sort by them (largest first where `falls`), and what is in them. */
const COLUMNS = [
  { key: "name", title: "Service", by: (name) => name, cell: nameCell },
  { key: "rate", title: "Rate", falls: true, by: (_, service) => service.rate_rps ?? LOW, cell: rateCell, class: "number" },
  { key: "latency", title: "Latency against SLO", falls: true, by: (_, service) => (service.latency_ms ?? LOW) / service.slo_ms, cell: latencyCell },
  { key: "attainment", title: "Met, last minute", by: (_, service) => service.attainment ?? 2, cell: attainmentCell, class: "number" },
  { key: "left", title: "Budget left", by: (name) => budgetOf(name)?.left_percent ?? 101, cell: leftCell, class: "number" },
  { key: "burn1", title: "Burn 1 h", falls: true, by: (name) => budgetOf(name)?.burn["1 h"] ?? LOW, cell: (name) => burnCell(budgetOf(name), "1 h"), class: "number wide" },
  { key: "burn6", title: "Burn 6 h", falls: true, by: (name) => budgetOf(name)?.burn["6 h"] ?? LOW, cell: (name) => burnCell(budgetOf(name), "6 h"), class: "number wide" },
  { key: "replicas", title: "Replicas", falls: true, by: (_, service) => replicas(service), cell: (_, service) => replicasText(service.replicas), class: "wide" },
  { key: "cost", title: "Cost/h", falls: true, by: (_, service) => service.cost_usd_per_hour, cell: (_, service) => usd(service.cost_usd_per_hour), class: "number" },
];

let sorting = remembered();
const find = searchBox("service, network or GPU type", () => draw());
let project = "";

const summary = h("p", { class: "summary", role: "status" });
const projects = h("select", { onchange: (event) => { project = event.target.value; draw(); } });
const sorter = h("select", { onchange: (event) => sortBy(event.target.value) }, COLUMNS.map(({ key, title }) => h("option", { value: key }, title)));
const body = h("tbody", { role: "rowgroup" });
const rows = virtualRows(body, makeRow, updateRow);
const heads = COLUMNS.map((column) => h("th", { scope: "col", role: "columnheader", class: column.class }, h("button", { class: "quiet sort", onclick: () => sortBy(column.key) }, column.title)));
show(content,
  h("div", { class: "controls" },
    find.element,
    h("label", {}, "Project ", projects), h("label", { class: "narrow" }, "Sort by ", sorter),
    isOperator ? h("a", { class: "button", href: "/new-service" }, "New service") : null),
  summary,
  h("div", { class: "scroll stack long", tabindex: 0, role: "region", "aria-label": "Services" }, h("table", { role: "table" }, h("caption", { class: "hidden" }, "Services"),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)), body)),
  h("p", { class: "hint" }, "Budget left: of the misses that the SLO allows in 30 days, or since requests are counted. Burn: how fast it is used up; at 1 it lasts exactly that long. Too fast is above 14.4 over one hour, 6 over six, or 1 over three days, while it lasts."));

function remembered() {
  const [key, falls] = (localStorage.getItem("services-sort") ?? "name").split(" ");
  return COLUMNS.some((column) => column.key === key) ? { key, falls: falls === "falls" } : { key: "name", falls: false };
}

function sortBy(key) {
  const column = COLUMNS.find((each) => each.key === key);
  sorting = sorting.key === key ? { key, falls: !sorting.falls } : { key, falls: Boolean(column.falls) };
  localStorage.setItem("services-sort", `${key}${sorting.falls ? " falls" : ""}`);
  draw();
}

function isWanted([name, service]) {
  if (project !== "" && service.project !== project) return false;
  return [name, service.network, ...Object.keys(service.replicas)].some((text) => text.toLowerCase().includes(find.text()));
}

function ordered(found) {
  const { by } = COLUMNS.find((column) => column.key === sorting.key);
  const sign = sorting.falls ? -1 : 1;
  const compare = (one, other) => (one < other ? -1 : one > other ? 1 : 0);
  return found.map(([name, service]) => [name, by(name, service)])
    .sort((one, other) => sign * compare(one[1], other[1]) || compare(one[0], other[0])).map(([name]) => name);
}

function draw() {
  drawChoices();
  const found = [...table("services")].filter(isWanted);
  rows.show(ordered(found));
  heads.forEach((head, at) => {
    const isSorted = COLUMNS[at].key === sorting.key;
    head.setAttribute("aria-sort", isSorted ? (sorting.falls ? "descending" : "ascending") : "none");
  });
  sorter.value = sorting.key;
  sum(found);
}

function drawChoices() {
  const names = [...new Set([...table("services").values()].map((service) => service.project))].sort();
  const seen = names.join(" ");
  if (projects.dataset.seen === seen) return;
  projects.dataset.seen = seen;
  if (!names.includes(project)) project = "";
  show(projects, h("option", { value: "" }, "all"), names.map((name) => h("option", { value: name, selected: name === project }, name)));
}

function makeRow() {
  return h("tr", { role: "row" }, COLUMNS.map((column, at) =>
    at === 0 ? h("th", { scope: "row", role: "rowheader" }) : h("td", { role: "cell", class: column.class, "data-label": column.title })));
}

function updateRow(row, name) {
  const service = table("services").get(name);
  const seen = JSON.stringify([service, budgetOf(name), statusOf(name)]);
  if (row.seen === seen) return;
  row.seen = seen;
  COLUMNS.forEach((column, at) => {
    // A link that has the focus keeps it: the name is drawn once.
    if (at > 0 || !row.children[0].firstChild) show(row.children[at], column.cell(name, service));
  });
  showTrouble(row.children[0], troubleText(name), "one-line");
}

function nameCell(name, service) {
  return [h("a", { href: `/services/${name}` }, name), h("span", { class: "hint" }, ` ${service.project}`)];
}

function rateCell(name, service) {
  const [low, high] = statusOf(name)?.expected_rps ?? [null, null];
  const expected = low === null ? "" : `, foreseen ${number(low)}–${rps(high)}`;
  return [rps(service.rate_rps), h("div", { class: "hint" }, `planned ${rps(service.planned_rate_rps)}${expected}`)];
}

function latencyCell(_, service) {
  const goal = `p${number(100 * service.percentile)} of ${ms(service.slo_ms)}`;
  return [latencyBar(service), h("div", {}, ms(service.latency_ms), h("span", { class: "hint" }, ` · ${goal}`))];
}

function attainmentCell(_, service) {
  const kind = service.attainment !== null && service.attainment < service.percentile ? "bad" : "";
  return [h("span", { class: kind }, percent(service.attainment)), h("div", { class: "hint" }, `wanted ${percent(service.percentile, 1)}`)];
}

function leftCell(name) {
  const left = leftOf(budgetOf(name));
  left.title = sinceText(budgetOf(name));
  return left;
}

function sum(found) {
  if (table("services").size === 0) {
    const how = isOperator ? [h("a", { href: "/new-service" }, "apply the first one"), " or run "] : ["an operator may run "];
    return show(summary, "There is no service yet: ", how, h("code", {}, "plimsoll apply -f service.yaml"), ".");
  }
  if (found.length === 0) return show(summary, "No service fits what is asked for.");
  const cost = found.reduce((total, [, service]) => total + service.cost_usd_per_hour, 0);
  return show(summary, `${count(found.length, "service")} for ${usd(cost)}/h. `, statusSentence(found));
}

for (const topic of ["services", "service_status", "budgets"]) onChange(topic, draw);
begin(["services", "service_status", "budgets"]);
