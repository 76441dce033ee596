// What a simulation came to: policies side by side, in the figures that `plimsoll simulate` prints, and as bars.

import { axisStyle, chart, colour, SERIES } from "./charts.js";
import { h, show } from "./dom.js";

const FIGURES = [
  ["Cost, USD", "cost_usd"], ["GPU hours", "gpu_hours"], ["Energy, kWh", "energy_kwh"], ["Late, %", "violations"],
  ["Worst service in SLO, %", "worst_attainment"], ["Replicas started", "replicas_started"],
];
const head = (words, isNumber = true) => h("th", { scope: "col", class: isNumber ? "number" : null }, words);
const words = (figure) => h("td", { class: "number" }, figure?.words ?? "–");

/** {element, show(simulation)}: hidden until something is shown. */
export function makeResults() {
  const title = h("h2", {});
  const says = h("p", { class: "headline" });
  const links = h("p", { class: "links" });
  const cost = chart({ title: "Cost of the used GPUs, USD", height: 240 });
  const late = chart({ title: "Late or rejected requests, %", height: 240 });
  const tables = h("div", {});
  const notes = h("div", {});
  const element = h("section", { hidden: true, "aria-label": "Results" }, title, says, links, notes, h("div", { class: "columns" }, cost.element, late.element), tables);

  function draw(found) {
    const { summary } = found;
    element.hidden = false;
    show(title, `Simulation ${found.id}: ${found.name}`);
    show(says, summary.headline);
    const address = `/api/v1/simulations/${found.id}/report`;
    show(links, h("a", { href: address, target: "_blank", rel: "noopener" }, "Open the report"),
      found.has_json ? h("a", { href: `${address}.json`, download: `simulation-${found.id}.json` }, "Every figure as JSON") : null);
    show(notes, list("Known before the runs", summary.notes), list("Runs that failed; the figures are of the others", summary.failed));
    cost.set(() => bars(summary.policies, (each) => each.cost_usd.mean, (each) => `$${each.cost_usd.words}`));
    late.set(() => bars(summary.policies, (each) => 100 * each.violations.mean, (each) => `${each.violations.words} %`));
    show(tables, policies(summary.policies), found.seeds.length < 2 ? h("p", { class: "hint" }, "One seed: nothing tells how much of a difference is chance. Ask for three.") : h("p", { class: "hint" }, "Means over the seeds; ± is the 95 % confidence interval."), services(summary.policies));
  }
  return { element, show: draw, hide: () => { element.hidden = true; } };
}

const list = (title, texts) => (texts.length ? h("div", { class: "problem" }, h("strong", {}, `${title}:`), h("ul", {}, texts.map((text) => h("li", {}, text)))) : null);

function policies(all) {
  return h("div", { class: "scroll", tabindex: 0 }, h("table", {}, h("caption", {}, "Policies side by side"),
    h("thead", {}, h("tr", {}, head("Policy", false), FIGURES.map(([name]) => head(name)), head("SLOs", false))),
    h("tbody", {}, all.map((each) => h("tr", {}, h("th", { scope: "row" }, each.note ? `${each.policy} (${each.note})` : each.policy),
      FIGURES.map(([, name]) => words(each[name])),
      h("td", {}, each.misses.length ? h("span", { class: "chip bad" }, `missed: ${each.misses.join(", ")}`) : h("span", { class: "chip good" }, "all kept")))))));
}

function services(all) {
  const names = all[0].services.map((each) => each.service);
  const rows = names.flatMap((name, at) => all.map((each) => [name, each.policy, each.services[at]]));
  return h("details", { class: "by-service" }, h("summary", {}, "By service"), h("div", { class: "scroll", tabindex: 0 }, h("table", {}, h("caption", { class: "hidden" }, "Services under every policy"),
    h("thead", {}, h("tr", {}, head("Service", false), head("Policy", false), head("Cost, USD"), head("In SLO, %"), head("p99, ms"))),
    h("tbody", {}, rows.map(([name, policy, each]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, policy), words(each.cost_usd), words(each.attainment), words(each.p99_ms)))))));
}

/** Bars that lie, one for each policy, in its colour; at their ends the figures of the table. */
function bars(all, value, worded) {
  const data = all.map((each, at) => ({ value: value(each), itemStyle: { color: SERIES[at % SERIES.length] } }));
  return {
    grid: { left: 120, right: 120, top: 8, bottom: 32 }, legend: { show: false },
    tooltip: { show: false },
    xAxis: { type: "value", min: 0, ...axisStyle(), axisLabel: { color: colour("faint"), formatter: (each) => String(Number(each.toPrecision(3))), hideOverlap: true } },
    yAxis: { type: "category", inverse: true, data: all.map((each) => each.policy), ...axisStyle(), axisLabel: { color: colour("ink"), width: 100, overflow: "truncate" } },
    series: [{ type: "bar", data, barMaxWidth: 34, label: { show: true, position: "right", color: colour("ink"), formatter: ({ dataIndex }) => worded(all[dataIndex]) } }],
  };
}
