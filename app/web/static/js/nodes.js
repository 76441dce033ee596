// Nodes: which are heard, whether they follow the plan, what they cannot do, and whether new replicas may start there.

import * as api from "./api.js";
import { h, show } from "./dom.js";
import { moment, number } from "./format.js";
import { onChange, table } from "./live.js";
import { begin, complain, content, isOperator, searchBox } from "./page.js";
import { virtualRows } from "./virtual.js";

const SKEW_S = 5;
const FEW = 3;
const find = searchBox("node, GPU type or problem", () => draw());
let onlyIll = false;

const summary = h("p", { class: "summary", role: "status" });
const body = h("tbody", {});
const rows = virtualRows(body, makeRow, updateRow);
const HEADS = ["Node", "State", "Last heard", "Generation", "GPUs", "Cannot do", "Agent"];
const controls = h("div", { class: "controls" },
  find.element,
  h("label", {}, h("input", { type: "checkbox", onchange: (event) => { onlyIll = event.target.checked; draw(); } }), " only those with trouble"));
show(content, controls, summary,
  h("div", { class: "scroll long", tabindex: 0, role: "region", "aria-label": "Nodes" }, h("table", { class: "nodes" }, h("caption", { class: "hidden" }, "Nodes and their agents"),
    h("thead", {}, h("tr", {}, HEADS.map((name) => h("th", { scope: "col" }, name)), isOperator ? h("th", { scope: "col" }, h("span", { class: "hidden" }, "Actions")) : null)), body)));

/** What is not as it should be: [[kind, words]], worst first. */
function troubles(node) {
  const ill = node.gpus.filter((gpu) => !gpu.healthy).length;
  return [
    !node.is_heard && ["bad", node.last_seen_at ? "silent" : "never heard"],
    ill > 0 && ["bad", `${ill} GPU${ill === 1 ? "" : "s"} unhealthy`],
    ["refused", "failed"].includes(node.said) && ["bad", `${node.said} generation ${node.wanted_generation}`],
    node.generation > (node.wanted_generation ?? 0) && ["bad", `follows generation ${node.generation}, which was never made here`],
    node.cordoned && ["warn", node.is_draining ? "draining" : "cordoned"],
    Math.abs(node.clock_skew_s) > SKEW_S && ["warn", `clock ${number(Math.abs(node.clock_skew_s), 1)} s ${node.clock_skew_s > 0 ? "ahead" : "behind"}`],
  ].filter(Boolean);
}

const isIll = (node) => troubles(node).length > 0 || node.problems.length > 0;

function isWanted([name, node]) {
  if (onlyIll && !isIll(node)) return false;
  return [name, ...node.problems, ...node.gpus.map((gpu) => gpu.gpu_type)].some((text) => text.toLowerCase().includes(find.text()));
}

function draw() {
  const all = [...table("nodes")];
  const found = all.filter(isWanted).sort(([one], [other]) => (one < other ? -1 : 1));
  rows.show(found.map(([name]) => name));
  show(summary, all.length === 0 ? "No node has registered yet: start plimsoll-agent on a GPU node." : words(all.map(([, node]) => node), found.length));
  goTo();
}

function words(nodes, found) {
  const count = (test) => nodes.filter(test).length;
  const behind = count((node) => node.wanted_generation !== null && node.generation !== node.wanted_generation);
  const silent = count((node) => !node.is_heard);
  return `${count((node) => node.is_heard)} of ${nodes.length} nodes are heard${silent ? `, ${silent} silent` : ""}; ${behind === 0 ? "all follow the plan in force" : `${behind} of them not at its generation yet`}.${found === 0 ? " Nothing here fits what you look for." : ""}`;
}

function makeRow(name) {
  const button = isOperator ? h("td", {}, h("button", { type: "button", onclick: (event) => turn(name, event.target) })) : null;
  return h("tr", { id: name, tabindex: -1 }, h("th", { scope: "row" }, name), HEADS.slice(1).map((_, at) => h("td", { class: at === 4 ? "wrap" : null })), button);
}

function updateRow(element, name) {
  const node = table("nodes").get(name);
  const seen = JSON.stringify(node);
  if (element.seen === seen) return;
  element.seen = seen;
  const found = troubles(node);
  const cells = [
    found.length ? found.map(([kind, text]) => h("span", { class: `chip ${kind}` }, text)) : h("span", { class: "chip good" }, "in order"),
    node.is_heard ? "now" : moment(node.last_seen_at),
    generation(node), gpus(node.gpus), node.problems.length ? problems(node.problems) : h("span", { class: "hint" }, "nothing is missing"),
    [node.agent_version || "–", h("div", { class: "hint" }, `clock ${node.clock_skew_s >= 0 ? "+" : "−"}${number(Math.abs(node.clock_skew_s), 1)} s`)],
  ];
  cells.forEach((value, at) => show(element.children[at + 1], value));
  if (isOperator) label(element.lastChild.firstChild, name, node);
}

function label(button, name, node) {
  button.textContent = node.cordoned ? "Uncordon" : "Cordon";
  button.title = node.cordoned ? `Let new replicas start on ${name} again` : `Start nothing new on ${name}; what runs there stays`;
  button.setAttribute("aria-label", `${button.textContent} ${name}`);
}

function generation(node) {
  if (node.wanted_generation === null) return h("span", { class: "hint" }, "nothing was sent");
  const follows = node.generation === node.wanted_generation;
  return [follows ? `${node.generation}` : `${node.generation}, wanted ${node.wanted_generation}`,
    h("div", { class: ["refused", "failed"].includes(node.said) ? "bad detail" : "hint detail" }, follows ? "as wanted" : [node.said ?? "not answered yet", node.detail].filter(Boolean).join(": "))];
}

const gpus = (list) => h("span", { class: "links" }, list.map((gpu) => h("a", { href: `/gpus/${gpu.id}`, class: gpu.healthy ? null : "bad", title: `${gpu.gpu_type}${gpu.healthy ? "" : ", unhealthy"}${gpu.cordoned ? ", cordoned" : ""}` },
  `${gpu.id.split("/").pop()}`)), h("span", { class: "hint" }, [...new Set(list.map((gpu) => gpu.gpu_type))].join(", ")));

function problems(list) {
  const items = h("ul", { class: "plain" }, list.map((each) => h("li", {}, each)));
  return list.length <= FEW ? items : h("details", {}, h("summary", {}, `${list.length} things`), items);
}

async function turn(name, button) {
  const verb = table("nodes").get(name).cordoned ? "uncordon" : "cordon";
  button.disabled = true;
  await api.send("POST", `/nodes/${name}/${verb}`).then(() => complain(null), (error) => complain(error.message));
  button.disabled = false;
}

/** The node that the address names, once. */
let sought = window.location.hash.slice(1);
function goTo() {
  const row = sought && rows.reveal(sought);
  if (!row) return;
  sought = "";
  row.focus({ preventScroll: true });
}

onChange("nodes", draw);
begin(["nodes"]);
