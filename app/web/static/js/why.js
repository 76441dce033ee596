// Why: what binds, what one more request costs, which uses of GPUs were rejected, and what relief would be cheapest.

import * as api from "./api.js";
import { h, show } from "./dom.js";
import { count, number, percent, usd } from "./format.js";
import { begin, complain, content, isOperator, state } from "./page.js";

const UNITS = { usd_per_hour: (value) => (value === 0 ? "nothing" : `${usd(value, Math.abs(value) < 0.01 ? 5 : 3)}/h`) };
let unit = null;

/** A price in the explanation's unit. */
function price(value) {
  if (value === null || value === undefined) return "–";
  return unit in UNITS ? UNITS[unit](value) : `${number(value)} ${(unit ?? "").replaceAll("_", " ")}`;
}

async function load(thorough) {
  try {
    const found = await api.get(`/plans/${state.argument}/explain`, thorough ? { thorough: true } : {});
    unit = found.price_unit;
    complain(null);
    draw(found, thorough);
  } catch (error) {
    complain(error.message);
  }
}

function draw(found, thorough) {
  show(content,
    h("p", { class: "card summary" }, found.summary),
    h("div", { class: "controls" }, h("a", { href: `/plans/${found.plan_id}` }, `Plan ${found.plan_id}`),
      isOperator && !thorough ? h("button", { onclick: thoroughly }, "Look further: alternatives and tested reliefs (10 s)") : null),
    h("div", { class: "columns" }, reliefs(found), stock(found)),
    services(found), gpus(found), losses(found.losses), remarks(found));
}

async function thoroughly(event) {
  event.target.disabled = true;
  event.target.textContent = "looking …";
  await load(true);
}

const heads = (names, figures = []) => h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name)), figures.map((name) => h("th", { scope: "col", class: "number" }, name))));
const figure = (text) => h("td", { class: "number" }, text);
const listed = (caption, head, rows, empty) => h("div", { class: "scroll", tabindex: 0 }, h("table", {}, h("caption", {}, caption), head, h("tbody", {}, rows.length ? rows : h("tr", {}, h("td", { colspan: 9, class: "hint" }, empty)))));

const reliefs = (found) => listed("What would save most if it were looser", heads(["Limit", "Estimated from"], ["Saves"]),
  found.reliefs.map((each) => h("tr", {}, h("td", { class: "wrap" }, each.words), h("td", {}, BASES[each.basis] ?? each.basis), figure(price(each.saving)))), "No limit that could be loosened costs anything.");
/** As `plimsoll explain` says it. */
const BASES = { price: "price of the limit; at most", first_order: "extra load that these replicas could carry", relaxation: "solved again with fractional GPUs" };

const stock = (found) => listed("GPUs", heads(["Type"], ["Used", "There are", "Price", "One more is worth"]),
  found.gpu_types.map((each) => h("tr", {}, h("td", {}, each.gpu_type), figure(each.used), figure(each.count ?? "any"), figure(`${usd(each.price_usd_per_hour)}/h`), figure(price(each.worth_of_one_more)))), "None.");

function services(found) {
  return listed("Services: what decides, and what one more request per second costs",
    heads(["Service", "What decides", "Replicas"], ["Demand", "Planned", "Could carry", "One more/s costs"]),
    found.services.map((each) => h("tr", {},
      h("th", { scope: "row" }, h("a", { href: `/services/${each.service}` }, each.service)),
      h("td", { class: "wrap" }, each.limit, each.bindings.length ? h("div", { class: "hint" }, each.bindings.map((binding) => binding.detail).join("; ")) : null,
        each.unserved.length ? h("div", { class: "bad" }, each.unserved.map((left) => `${number(left.rate_rps)}/s are left out: ${left.reason}`).join("; ")) : null),
      h("td", { class: "wrap" }, each.replicas.map((group) => `${group.count} × ${group.gpu_type} at ${number(group.sm_percent, 0)} % SM, batch ${group.batch}`).join("; ")),
      figure(number(each.demand_rps)), figure(number(each.planned_rps)), figure(number(each.capacity_rps)), figure(price(each.price_per_rps)))), "No service is planned.");
}

function gpus(found) {
  const left = found.kinds_left_out ? h("p", { class: "hint" }, `${found.kinds_left_out} more kinds of GPUs cost less and are left out.`) : null;
  return [found.gpus.map((gpu) => h("details", { class: "card" },
    h("summary", {}, `${gpu.count} × ${gpu.gpu_type} at ${number(gpu.clock_mhz, 0)} MHz: ${gpu.replicas.map((each) => `${each.service} ${number(each.sm_percent, 0)} %`).join(" + ")}`),
    h("p", {}, gpu.uses.map((use) => `${use.rule}: ${number(use.used)} of ${number(use.limit)}${use.is_full ? " (full)" : ""}`).join(" · ")),
    listed("What its replicas earn", heads(["Service"], ["SM", "Batch", "Carries", "Could carry", "Earns"]), gpu.replicas.map((each) => h("tr", {}, h("td", {}, each.service), figure(`${number(each.sm_percent, 0)} %`), figure(each.batch), figure(`${number(each.arrival_rate_rps)}/s`), figure(`${number(each.capacity_rps)}/s`), figure(price(each.earns)))), ""),
    gpu.alternatives.length ? listed("Rejected alternatives, least loss first", heads(["Instead", "With"], ["Dearer by"]), gpu.alternatives.map((each) => h("tr", {}, h("td", {}, each.change), h("td", { class: "wrap" }, each.replicas.map((one) => `${one.service} ${number(one.sm_percent, 0)} %`).join(" + ") || "nothing"), figure(price(each.loss)))), "") : null)), left];
}

function losses(found) {
  if (!found) return null;
  const lines = found.worst.map((each) => h("li", {}, `${each.words}: ${each.shortfalls.map((one) => `${one.service} lacks ${number(one.rate_rps)}/s (${percent(one.share, 0)})`).join(", ")}`));
  return h("section", { class: "card" }, h("h2", {}, "If one GPU or node is lost"),
    h("p", {}, `${found.harmful_gpus} of the ${count(found.gpus, "GPU")} in use and ${found.harmful_nodes} of the ${count(found.nodes, "node")} would, if lost, leave requests unserved until the next plan.`), h("ul", {}, lines));
}

const remarks = (found) => found.messages.length ? h("section", { class: "card" }, h("h2", {}, "Remarks of the planner"), h("ul", {}, found.messages.map((each) => h("li", {}, each)))) : null;

load(false);
begin();
