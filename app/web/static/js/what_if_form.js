// The questions of a what-if: demand, GPUs, prices and SLOs as fields, kept in the address so that they can be sent on.

import { h, keyed, show } from "./dom.js";
import { ms, number, rps, usd } from "./format.js";

const MOST_SERVICES = 100;
const MOST_FACTOR = 5;
/** Fields of the API by their prefix in the address. */
const KINDS = { demand: "demand_factor", gpus: "gpus", price: "price_usd_per_hour", slo: "slo_ms" };

const filled = new Map(new URLSearchParams(window.location.search));
let changed = () => {};

/** Call `act` whenever something else is filled in. */
export const onFilled = (act) => { changed = act; };

/** The scenario as the API wants it, without a name; empty where nothing differs. */
export function scenario() {
  const found = {};
  for (const [key, text] of filled) {
    const [kind, ...rest] = key.split(".");
    const value = Number(text);
    if (!(kind in KINDS) || rest.length === 0 || text === "" || Number.isNaN(value)) continue;
    found[KINDS[kind]] = { ...found[KINDS[kind]], [rest.join(".")]: value };
  }
  return found;
}

function fill(key, text) {
  if (text === "") filled.delete(key);
  else filled.set(key, text);
  const query = new URLSearchParams([...filled]).toString();
  window.history.replaceState(null, "", query ? `?${query}` : window.location.pathname);
  changed();
}

/** Everything as it is. */
export function reset() {
  for (const key of [...filled.keys()]) filled.delete(key);
  for (const input of form.querySelectorAll("input")) input.value = input.type === "range" ? "1" : "";
  said.textContent = factor("1");
  fill("", "");
}

const field = (key, label, attributes) => h("input", {
  type: "number", step: "any", inputmode: "decimal", class: "figure", "aria-label": label, value: filled.get(key) ?? null, ...attributes,
  oninput: (event) => event.target.validity.valid && fill(key, event.target.value),
});

const factor = (text) => `× ${number(Number(text), 1)}${Number(text) === 1 ? ": as forecast" : ""}`;
const said = h("output", { class: "factor" }, factor(filled.get("demand.all") ?? "1"));
const slider = h("input", {
  type: "range", min: 0, max: MOST_FACTOR, step: 0.1, value: filled.get("demand.all") ?? 1, id: "demand-all",
  oninput: ({ target }) => { said.textContent = factor(target.value); fill("demand.all", Number(target.value) === 1 ? "" : target.value); },
});

const heads = (names) => h("thead", {}, h("tr", {}, names.map((name, at) => h("th", { scope: "col", class: at ? "number" : null }, name))));
const typeRows = h("tbody", {});
const serviceRows = h("tbody", {});
const left = h("p", { class: "hint", hidden: true });

/** The form. */
export const form = h("section", { class: "card" },
  h("div", { class: "controls" }, h("label", { for: "demand-all" }, "Demand of every service"), slider, said),
  h("div", { class: "columns" },
    h("div", { class: "scroll", tabindex: 0 }, h("table", {}, h("caption", {}, "GPUs"), heads(["Type", "There are", "More or fewer", "Price/h", "Instead"]), typeRows)),
    h("div", {}, h("div", { class: "scroll", tabindex: 0 }, h("table", {}, h("caption", {}, "Services"), heads(["Service", "Comes in", "Demand ×", "SLO", "Instead, ms"]), serviceRows)), left)));

/** Rows for GPU types, [{name, count, price}]. */
export function drawTypes(types) {
  const byName = new Map(types.map((each) => [each.name, each]));
  keyed(typeRows, [...byName.keys()], (name) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "number" }),
    h("td", { class: "number" }, field(`gpus.${name}`, `GPUs of ${name} more, or fewer where negative`, { step: 1, min: -byName.get(name).count, placeholder: "0" })), h("td", { class: "number" }),
    h("td", { class: "number" }, field(`price.${name}`, `Price of one ${name} in dollars per hour`, { min: 0.0001, placeholder: "same" }))), (row, name) => {
    show(row.children[1], number(byName.get(name).count, 0));
    show(row.children[3], usd(byName.get(name).price));
  });
}

/** Rows for services, by name as the topic has them. */
export function drawServices(services) {
  const names = [...services.keys()].sort().slice(0, MOST_SERVICES);
  left.hidden = services.size <= MOST_SERVICES;
  show(left, `${services.size - MOST_SERVICES} more services are left out here; name them in a scenario for plimsoll what-if.`);
  keyed(serviceRows, names, (name) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "number" }),
    h("td", { class: "number" }, field(`demand.${name}`, `Demand of ${name} times`, { min: 0, placeholder: "1" })), h("td", { class: "number" }),
    h("td", { class: "number" }, field(`slo.${name}`, `SLO of ${name} in milliseconds`, { min: 0.1, placeholder: "same" }))), (row, name) => {
    show(row.children[1], rps(services.get(name).rate_rps));
    show(row.children[3], ms(services.get(name).slo_ms));
  });
}
