// Tasks: training and offline jobs, how far each has come, when it will be done, and whether that is in time.

import * as api from "./api.js";
import { h, show } from "./dom.js";
import { count, moment, number, percent, span } from "./format.js";
import { openLog } from "./logs.js";
import { begin, complain, complainOfReading, content, isOperator, searchBox } from "./page.js";
import { virtualRows } from "./virtual.js";

const REFRESH_MS = 5000;
const KINDS = { running: "good", starting: "good", finished: "", failed: "bad", cancelled: "", queued: "warn", swapping: "warn", swapped: "warn" };
const OVER = new Set(["finished", "cancelled"]);
const HEADS = ["Task", "State", "Progress", "Done", "Runs on", "Deadline", "Waited"];

let tasks = new Map();
const find = searchBox("task, project or network", () => draw());
let withOver = false;
const summary = h("p", { class: "summary", role: "status" }, "Loading …");
const body = h("tbody", { role: "rowgroup" });
const rows = virtualRows(body, makeRow, updateRow);
show(content,
  h("div", { class: "controls" },
    find.element,
    h("label", {}, h("input", { type: "checkbox", onchange: (event) => { withOver = event.target.checked; draw(); } }), " show finished tasks")),
  summary,
  h("div", { class: "scroll stack long", tabindex: 0, role: "region", "aria-label": "Tasks" }, h("table", { role: "table" }, h("caption", { class: "hidden" }, "Tasks"),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, HEADS.map((title) => h("th", { scope: "col", role: "columnheader" }, title)), h("th", { scope: "col", role: "columnheader" }, h("span", { class: "hidden" }, "Actions")))), body)));

async function load() {
  try {
    tasks = new Map((await api.list("/tasks")).map((task) => [task.metadata.name, task]));
    complainOfReading(null);
    draw();
  } catch (error) {
    complainOfReading(error.message);
  }
}

function isWanted({ metadata, spec, status }) {
  if (!withOver && OVER.has(status.state)) return false;
  return [metadata.name, metadata.project, spec.network ?? ""].some((text) => text.toLowerCase().includes(find.text()));
}

function draw() {
  const found = [...tasks.values()].filter(isWanted);
  // What is late comes first, then what is due first, then what has none.
  const due = (task) => Date.parse(task.status.deadline_at ?? "9999-12-31");
  found.sort((one, other) => isLate(other) - isLate(one) || due(one) - due(other) || (one.metadata.name < other.metadata.name ? -1 : 1));
  rows.show(found.map((task) => task.metadata.name));
  const late = found.filter(isLate).length;
  const running = found.filter((task) => task.status.state === "running").length;
  show(summary, found.length === 0 ? nothing() : [`${count(found.length, "task")}, ${running} running. `, late ? h("strong", { class: "bad" }, `${count(late, "task")} will miss the deadline.`) : ""]);
}

function nothing() {
  if (find.text()) return "No task fits what is asked for.";
  return tasks.size ? "Every task is over." : ["There is no task: ", h("code", {}, "plimsoll apply -f task.yaml"), " submits training or an offline job, which runs next to services."];
}

/** Whether it ends after its deadline, at its present pace, or is past it already. */
function isLate({ status }) {
  if (status.deadline_at === null || OVER.has(status.state)) return false;
  return status.ends_at !== null && Date.parse(status.ends_at) > Date.parse(status.deadline_at);
}

function makeRow(name) {
  const cells = HEADS.slice(1).map((title) => h("td", { role: "cell", "data-label": title }));
  return h("tr", { role: "row" }, h("th", { scope: "row", role: "rowheader" }, name), cells, h("td", { role: "cell" }, h("span", {}, h("span", {}), " ", h("span", {}))));
}

function updateRow(element, name) {
  const task = tasks.get(name);
  const seen = JSON.stringify(task);
  if (element.seen === seen) return;
  element.seen = seen;
  const { metadata, spec, status } = task;
  const done = status.done_iterations / status.iterations;
  show(element.children[0], name, h("div", { class: "hint" }, `${spec.kind}, ${spec.network ?? "by layers"}, ${metadata.project}`));
  const cells = [
    h("span", { class: `chip ${KINDS[status.state] ?? ""}` }, status.state),
    h("span", { class: "progress short-bar", role: "img", "aria-label": percent(done, 0) }, h("span", { width_percent: 100 * Math.min(1, done) })),
    [percent(done, 1), h("div", { class: "hint" }, status.iterations_per_s ? `${number(status.iterations_per_s)} iterations/s` : "no pace yet")],
    status.gpu ? [h("a", { href: `/gpus/${status.gpu}` }, status.gpu), h("div", { class: "hint" }, `${number(status.sm_percent, 0)} % of its SMs`)] : "–",
    [h("span", { class: isLate(task) ? "bad" : "" }, moment(status.deadline_at)), h("div", { class: "hint" }, status.ends_at ? `done ${moment(status.ends_at)}` : "")],
    span(status.waited_s),
  ];
  cells.forEach((value, at) => show(element.children[at + 1], value));
  const [log, cancels] = element.lastChild.firstChild.children;
  show(log, status.starts > 0 ? logButton(name) : null);
  if (isOperator) show(cancels, OVER.has(status.state) ? null : cancelButton(name));
}

const logButton = (name) => h("button", { type: "button", "aria-label": `Log of ${name}`, onclick: () => openLog(`Log of ${name}`, `/tasks/${encodeURIComponent(name)}/logs`) }, "Log");

/** Asked twice, since what was computed is lost. */
function cancelButton(name) {
  const ask = (event) => {
    const yes = h("button", { type: "button", class: "danger", onclick: () => cancel(name, yes) }, `Yes, cancel ${name}`);
    show(event.target.parentElement, yes);
    yes.focus();
  };
  return h("button", { type: "button", "aria-label": `Cancel ${name}`, onclick: ask }, "Cancel");
}

async function cancel(name, button) {
  button.disabled = true;
  await api.send("POST", `/tasks/${encodeURIComponent(name)}/cancel`).then(() => { complain(null); return load(); }, (error) => { button.disabled = false; complain(error.message); });
}

load();
window.setInterval(() => { if (!document.hidden) load(); }, REFRESH_MS);
begin();
