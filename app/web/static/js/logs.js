// What a replica or a task has written: its end, and with "Follow" what comes. It is asked of the node, which answers
// with its next report, so that nothing is asked before somebody looks.

import * as api from "./api.js";
import { h, show } from "./dom.js";

const FOLLOW_MS = 1000;
const MOST_CHARACTERS = 512 * 1024;
const LINES = [["200", "200 lines"], ["2000", "2,000 lines"], ["", "64 KiB"]];

/** A card for a service's page, closed until somebody wants it. */
export function logCard(path) {
  const view = logView(path, true);
  return h("details", { class: "card", id: "logs", ontoggle: (event) => (event.target.open ? view.start() : view.stop()) }, h("summary", {}, "Logs"), view.element);
}

/** The log of one task, above the page until it is closed. */
export function openLog(title, path) {
  const view = logView(path, false);
  const close = h("button", { type: "button", onclick: () => dialog.close() }, "Close");
  const dialog = h("dialog", { class: "log", "aria-label": title, onclose: () => { view.stop(); dialog.remove(); } }, h("div", { class: "controls" }, h("h2", {}, title), close), view.element);
  document.body.append(dialog);
  dialog.showModal();
  view.start();
}

function logView(path, hasReplicas) {
  const replica = h("select", { onchange: () => reload() });
  const lines = h("select", { onchange: () => reload() }, LINES.map(([value, words]) => h("option", { value }, words)));
  const follow = h("input", { type: "checkbox", onchange: () => (follow.checked ? next() : window.clearTimeout(timer)) });
  const said = h("p", { class: "hint", role: "status" });
  const page = h("pre", { tabindex: 0, role: "region", "aria-label": "Log" });
  const element = h("div", {},
    h("div", { class: "controls" },
      hasReplicas ? h("label", {}, "Replica ", replica) : null, h("label", {}, "Last ", lines), h("label", {}, follow, " Follow"),
      h("button", { type: "button", onclick: () => reload() }, "Refresh")),
    said, page);
  let end = null; // Up to where it was read; null: not yet.
  let turn = 0; // Only the answer to the newest question is shown: two with one beginning would be shown twice.
  let timer = 0;

  async function load() {
    const asked = (turn += 1);
    const query = { replica: replica.value || null, ...(end === null ? { tail: lines.value || null } : { after: end }) };
    if (end === null) show(said, "Asking the node …");
    const part = await api.get(path, query).catch((error) => ({ problem: error.message }));
    if (asked !== turn) return;
    if (part.replicas) offer(part);
    if (part.problem) show(said, h("span", { class: "bad" }, part.problem));
    else draw(part);
    if (follow.checked) timer = window.setTimeout(next, FOLLOW_MS);
  }

  function draw(part) {
    const isAtEnd = page.scrollHeight - page.scrollTop - page.clientHeight < 40;
    const before = end === null ? "" : page.textContent;
    const gap = end !== null && part.start > end ? "\n… what came here was too much …\n" : "";
    page.textContent = (before + gap + plain(part.text)).slice(-MOST_CHARACTERS);
    end = part.end;
    show(said, page.textContent ? `On node ${part.node}.` : `Nothing is written yet on node ${part.node}.`);
    if (isAtEnd || before === "") page.scrollTop = page.scrollHeight;
  }

  /** The replicas that there are now; one that was chosen stays chosen. */
  function offer({ replica: chosen, replicas }) {
    const names = replicas.some((each) => each.replica === chosen) ? replicas : [{ replica: chosen }, ...replicas];
    const words = names.map((each) => [each.replica, `${each.replica} (${each.state ?? (each.is_planned ? "planned" : "ended")})`]);
    if (replica.seen === JSON.stringify(words)) return;
    replica.seen = JSON.stringify(words);
    show(replica, words.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
  }

  function next() {
    window.clearTimeout(timer);
    if (document.hidden) timer = window.setTimeout(next, FOLLOW_MS);
    else load();
  }

  function reload() {
    window.clearTimeout(timer);
    end = null;
    load();
  }

  function stop() {
    window.clearTimeout(timer);
    turn += 1;
  }

  return { element, start: reload, stop };
}

const COLOURS = /\u001b\[[0-9;:]*m/g;
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Without a terminal's colours, and with whatever else would move or hide text spelt out. */
function plain(text) {
  const lines = text.replace(/\r\n?/g, "\n").replace(COLOURS, "");
  return lines.replace(CONTROLS, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);
}
