// All GPUs at a glance: a cell each, shaded by one figure, and framed where something is wrong. Each cell leads to its GPU.

import { h, keyed, show } from "../dom.js";
import { count, number } from "../format.js";
import { gaugesOf, givenOn, linesOf, trouble } from "../gpu_figures.js";
import { table } from "../live.js";
import { levelOf } from "../service_status.js";

const STEPS = 5;
const MOST = 4000;
const MOVE_S = 10;

/** What cells may be shaded by: a ratio, or null where it is unknown. */
const SHADES = {
  given: { title: "SMs given", of: (_, gpu) => givenOn(gpu) / 100 },
  busy: { title: "Busy", of: (id) => ratio(gaugesOf(id).busy_percent, 100) },
  memory: { title: "Memory in use", of: (id, gpu) => ratio(gaugesOf(id).memory_used_mib, gpu.memory_mib) },
  power: { title: "Power", of: (id, gpu) => ratio(gaugesOf(id).power_w, gpu.power_cap_w) },
  problem: { title: "Problems", of: () => null },
};
const ORDERS = { node: "by node", worst: "worst first" };
const RANKS = { bad: 0, warn: 1, tight: 2, unknown: 3, good: 4 };
const ratio = (part, whole) => (part === null ? null : part / whole);

let shade = remembered("heatmap-shade", SHADES, "given");
let order = remembered("heatmap-order", ORDERS, "node");
const cells = new Map();
const levels = new Map();
let sorted = [];
let sortedAt = 0;

const summary = h("span", { class: "hint" });
const grid = h("div", { class: "heatmap", role: "group", "aria-label": "GPUs. Arrow keys move from one to the next." });
const legend = h("span", { class: "legend" });
const tip = h("div", { class: "tip", role: "tooltip", id: "gpu-tip", hidden: true });
const choice = (words, known, chosen, choose) => h("label", {}, `${words} `, h("select", { onchange: (event) => choose(event.target.value) },
  Object.entries(known).map(([value, each]) => h("option", { value, selected: value === chosen }, each.title ?? each))));

/** The card with the grid in it. */
export const element = h("section", { class: "card", "aria-label": "GPUs" },
  h("div", { class: "controls" }, h("h2", {}, "GPUs"), summary,
    choice("Colour", SHADES, shade, (value) => choose("shade", value)), choice("Order", ORDERS, order, (value) => choose("order", value)),
    legend, h("a", { href: "/fleet" }, "As bars")),
  grid, tip);

function remembered(key, known, otherwise) {
  const value = localStorage.getItem(key);
  return value in known ? value : otherwise;
}

function choose(what, value) {
  localStorage.setItem(`heatmap-${what}`, value);
  if (what === "shade") shade = value;
  else order = value;
  draw();
}

/** Everything again: GPUs came, went or carry something else. */
export function draw() {
  const fleet = [...table("fleet")];
  levels.clear();
  for (const [id, gpu] of fleet) levels.set(id, gpuLevel(id, gpu));
  sort(fleet);
  if (order === "node") drawRacks(fleet);
  else keyed(grid, sorted.slice(0, MOST), makeCell, paint);
  grid.dataset.order = order;
  for (const id of cells.keys()) if (!levels.has(id)) cells.delete(id);
  keepOneInTabOrder();
  drawLegend();
  const unhealthy = fleet.filter(([id, gpu]) => trouble(id, gpu) !== null).length;
  const cut = fleet.length > MOST ? `, ${number(MOST, 0)} of them shown` : "";
  show(summary, `${count(fleet.length, "GPU")}${cut}${unhealthy ? "; " : ""}`, unhealthy ? h("strong", { class: "warn" }, `${number(unhealthy, 0)} with a problem`) : "");
}

/** Only the shades of GPUs that reported. */
export function drawGauges(changed) {
  if (changed === null || changed.some((id) => cells.has(id) && levels.get(id) !== gpuLevel(id, table("fleet").get(id)))) return draw();
  for (const id of changed) if (cells.has(id)) paint(cells.get(id), id);
  if (!tip.hidden) fillTip(tip.dataset.gpu);
}

/** How the worst of what a GPU carries is, or what is wrong with the GPU itself. */
function gpuLevel(id, gpu) {
  const wrong = trouble(id, gpu);
  if (wrong !== null) return wrong === "cordoned" ? "warn" : "bad";
  const services = gpu.parts.filter((part) => part.kind === "replica").map((part) => [part.owner, table("services").get(part.owner)]);
  const found = services.filter(([, service]) => service).map(([name, service]) => levelOf(name, service));
  return found.sort((one, other) => RANKS[one] - RANKS[other])[0] ?? "unknown";
}

/** Worst first, but not all the time: a cell must not move away from under a pointer. */
function sort(fleet) {
  if (order !== "worst") return;
  const isSame = sorted.length === fleet.length && sorted.every((id) => levels.has(id));
  if (isSame && (Date.now() - sortedAt < 1000 * MOVE_S || grid.matches(":hover, :focus-within"))) return;
  sortedAt = Date.now();
  const measure = new Map(fleet.map(([id, gpu]) => [id, SHADES[shade].of(id, gpu) ?? -1]));
  sorted = fleet.map(([id]) => id).sort((one, other) =>
    (RANKS[levels.get(one)] - RANKS[levels.get(other)]) || measure.get(other) - measure.get(one) || (one < other ? -1 : 1));
}

function drawRacks(fleet) {
  const racks = new Map();
  for (const [id, gpu] of fleet.slice(0, MOST)) racks.set(gpu.node, [...(racks.get(gpu.node) ?? []), id]);
  keyed(grid, [...racks.keys()], makeRack, (rack, node) => keyed(rack.lastChild, racks.get(node), makeCell, paint));
}

const makeRack = (node) => h("div", { class: "rack" }, h("a", { class: "node", href: `/nodes#${node}`, tabindex: -1, "aria-hidden": "true" }, node), h("div", { class: "cells" }));

function makeCell(id) {
  const cell = h("a", { class: "cell", href: `/gpus/${id}`, "aria-label": id, tabindex: -1 });
  cells.set(id, cell);
  return cell;
}

function paint(cell, id) {
  const gpu = table("fleet").get(id);
  const value = SHADES[shade].of(id, gpu);
  const step = shade === "problem" ? levels.get(id) : value === null ? "none" : Math.min(STEPS, Math.ceil(STEPS * value));
  const wrong = trouble(id, gpu) ?? "";
  // Written only where it differs: a thousand cells are asked every second.
  if (cell.dataset.step !== `${step}`) cell.dataset.step = step;
  if ((cell.dataset.wrong ?? "") !== wrong) cell.dataset.wrong = wrong;
}

function drawLegend() {
  if (legend.dataset.shade === shade) return;
  legend.dataset.shade = shade;
  const key = (step, words) => h("span", { class: "shade" }, h("span", { class: "cell", "data-step": step }), words);
  const frame = h("span", { class: "shade" }, h("span", { class: "cell", "data-step": 0, "data-wrong": "silent" }), "GPU with a problem");
  if (shade === "problem") return show(legend, key("good", "SLOs kept"), key("tight", "near the limit"), key("warn", "needs a look"), key("bad", "SLO missed"), key("unknown", "no request"), frame);
  return show(legend, key("none", "not read"), key(0, "0 %"), ...[1, 2, 3, 4].map((step) => key(step, "")), key(STEPS, "100 %"), frame);
}

/** One cell is reached by Tab, the others from it by arrows: no one tabs through a thousand. */
function keepOneInTabOrder() {
  const all = [...grid.querySelectorAll(".cell")];
  if (all.length && !all.some((cell) => cell.tabIndex === 0)) all[0].tabIndex = 0;
}

function moveTo(cell) {
  for (const other of grid.querySelectorAll('.cell[tabindex="0"]')) other.tabIndex = -1;
  cell.tabIndex = 0;
  cell.focus();
}

const SIDES = { ArrowLeft: -1, ArrowRight: 1 };
const LINES = { ArrowUp: -1, ArrowDown: 1 };

grid.addEventListener("keydown", (event) => {
  const all = [...grid.querySelectorAll(".cell")];
  const at = all.indexOf(event.target);
  if (at < 0) return;
  if (event.key === "Escape") return hideTip();
  const next = event.key in SIDES ? all[at + SIDES[event.key]] : event.key in LINES ? beyond(all, at, LINES[event.key])
    : event.key === "Home" ? all[0] : event.key === "End" ? all.at(-1) : null;
  if (!next) return;
  event.preventDefault();
  moveTo(next);
});

/** The nearest cell in the next line above or below. */
function beyond(all, at, side) {
  const here = all[at].getBoundingClientRect();
  const found = all.map((cell) => [cell, cell.getBoundingClientRect()]).filter(([, there]) => side * (there.top - here.top) > here.height / 2);
  const distance = (there) => 100 * Math.abs(there.top - here.top) + Math.abs(there.left - here.left);
  return found.reduce((best, each) => (best === null || distance(each[1]) < distance(best[1]) ? each : best), null)?.[0] ?? null;
}

function fillTip(id) {
  const gpu = table("fleet").get(id);
  if (!gpu) return hideTip();
  tip.dataset.gpu = id;
  const [first, ...rest] = linesOf(id, gpu);
  show(tip, h("strong", {}, first), rest.map((line) => h("div", {}, line)));
}

function showTip(event) {
  const cell = event.target.closest?.(".cell");
  if (!cell || !grid.contains(cell)) return;
  fillTip(cell.getAttribute("aria-label"));
  tip.hidden = false;
  cell.setAttribute("aria-describedby", tip.id);
  const box = cell.getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8));
  const below = box.bottom + 6 + tip.offsetHeight < window.innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? box.bottom + 6 : box.top - 6 - tip.offsetHeight}px`;
}

function hideTip() {
  tip.hidden = true;
}

for (const kind of ["pointerover", "focusin"]) grid.addEventListener(kind, showTip);
grid.addEventListener("focusout", hideTip);
// A person who is there by keys keeps the text, wherever the pointer lies.
grid.addEventListener("pointerleave", () => grid.matches(":focus-within") || hideTip());
