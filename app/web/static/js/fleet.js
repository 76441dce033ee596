// Fleet: each GPU a bar that its replicas' SM percents fill up to the line at 100; below it memory and power.

import { h, keyed, show } from "./dom.js";
import { count, number, percent } from "./format.js";
import { gaugesOf, givenOn, inOrder, isRead, linesOf, trouble } from "./gpu_figures.js";
import { onChange, table } from "./live.js";
import { begin, content, searchBox } from "./page.js";
import { healthOf } from "./service_figures.js";
import { statusSentence } from "./service_status.js";

const LEGEND = { good: "SLO kept", tight: "near its limit", bad: "SLO missed", unknown: "no requests", task: "task" };
const GROUPS = { node: "node", gpu_type: "GPU type" };
let grouping = localStorage.getItem("fleet-group") in GROUPS ? localStorage.getItem("fleet-group") : "node";
const find = searchBox("service, node or type", () => draw());

const summary = h("p", { class: "summary", role: "status" });
const board = h("div", { class: "board" });
const chooser = h(
  "div",
  { class: "controls" },
  h("label", {}, "Group by ", h("select", { onchange: (event) => regroup(event.target.value) },
    ...Object.entries(GROUPS).map(([value, words]) => h("option", { value, selected: value === grouping }, words)))),
  find.element,
  h("span", { class: "legend" }, ...["good", "tight", "bad", "unknown", "task"].map((kind) => h("span", { class: `key ${kind}` }, LEGEND[kind]))),
);
show(content, chooser, summary, board);

/** The colour of a part: task, or how the SLO of its service is kept now. */
function colourOf(part) {
  if (part.kind !== "replica") return "task";
  const service = table("services").get(part.owner);
  return service ? healthOf(service) : "unknown";
}

function regroup(value) {
  grouping = value;
  localStorage.setItem("fleet-group", value);
  draw();
}

const isWanted = (id, gpu) =>
  [id, gpu.gpu_type, ...gpu.parts.map((part) => part.owner)].some((text) => text.toLowerCase().includes(find.text()));

function draw() {
  const fleet = [...table("fleet")].filter(([id, gpu]) => isWanted(id, gpu));
  const groups = new Map();
  for (const [id, gpu] of fleet) groups.set(gpu[grouping], [...(groups.get(gpu[grouping]) ?? []), id]);
  keyed(board, [...groups.keys()].sort(), makeGroup, (element, name) => {
    const ids = groups.get(name);
    const heading = `${name} · ${count(ids.length, "GPU")}`;
    if (element.firstChild.textContent !== heading) element.firstChild.textContent = heading;
    element.style.setProperty("--gpus", Math.min(ids.length, 8));
    keyed(element.lastChild, ids, makeGpu, updateGpu);
  });
  sum(fleet);
}

const makeGroup = () => h("section", { class: "group" }, h("h2", {}), h("div", { class: "gpus" }));

const elements = new Map();

function makeGpu(id) {
  const element = h("a", { class: "gpu", href: `/gpus/${id}` }, h("span", { class: "name" }), h("span", { class: "bar sm" }),
    h("span", { class: "bar thin" }, h("span", { class: "fill memory" })), h("span", { class: "bar thin" }, h("span", { class: "fill power" })));
  elements.set(id, element);
  return element;
}

function updateGpu(element, id) {
  updateGauges(element, id);
  const gpu = table("fleet").get(id);
  const wrong = trouble(id, gpu);
  element.isRead = isRead(id);
  const seen = JSON.stringify([gpu, wrong, gpu.parts.map(colourOf)]);
  if (element.seen === seen) return;
  element.seen = seen;
  const [name, bar] = element.children;
  show(name, grouping === "node" ? `gpu-${gpu.index} ` : `${id} `, h("span", { class: "hint" }, wrong ?? (grouping === "node" ? gpu.gpu_type : "")));
  element.classList.toggle("ill", wrong !== null);
  show(bar, inOrder(gpu.parts).map((part) =>
    h("span", { class: `part ${colourOf(part)} ${part.state}`, width_percent: part.sm_percent }, part.sm_percent >= 20 ? part.owner : "")));
}

function updateGauges(element, id) {
  const gpu = table("fleet").get(id);
  const gauges = gaugesOf(id);
  const [, , memory, power] = element.children;
  memory.firstChild.style.width = share(gauges.memory_used_mib, gpu.memory_mib);
  power.firstChild.style.width = share(gauges.power_w, gpu.power_cap_w);
  element.title = linesOf(id, gpu).join("\n");
}

/** Only the thin bars of GPUs that changed: a thousand report in the same second. */
function drawGauges(changed) {
  const shown = (changed ?? []).map((id) => elements.get(id)).filter((element) => element?.isConnected);
  // A reading that came or went changes what is said of the GPU and of the fleet.
  if (changed === null || shown.some((element) => !element.isRead)) return draw();
  return shown.forEach((element) => updateGauges(element, element.dataset.key));
}

const share = (part, whole) => `${Math.min(100, (100 * (part ?? 0)) / whole)}%`;

function sum(fleet) {
  if (fleet.length === 0) {
    show(summary, table("fleet").size === 0 ? "No node has registered yet: start plimsoll-agent on a GPU node." : "No service, node or GPU type is called so.");
    return;
  }
  const used = fleet.filter(([, gpu]) => gpu.parts.length > 0);
  const given = fleet.reduce((sum, [, gpu]) => sum + givenOn(gpu), 0);
  const ill = fleet.filter(([id, gpu]) => trouble(id, gpu) !== null).length;
  show(summary,
    `${number(used.length, 0)} of ${number(fleet.length, 0)} GPUs in use${used.length ? `, ${percent(given / (100 * used.length), 0)} of their SMs given` : ""}. `,
    statusSentence([...table("services")]), " ",
    ill ? h("strong", { class: "warn" }, `${count(ill, "GPU")} silent, without a reading, cordoned or unhealthy.`) : "");
}

onChange("fleet", draw);
onChange("gauges", drawGauges);
for (const topic of ["services", "service_status", "budgets"]) onChange(topic, draw);
begin(["fleet", "gauges", "services", "service_status", "budgets"]);
