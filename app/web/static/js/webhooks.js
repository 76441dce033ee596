// Webhooks, which only admins may see: where events are sent, how that goes, a new one, and the end of one.

import * as api from "./api.js";
import { h, keyed, show } from "./dom.js";
import { count, moment, number } from "./format.js";

const MOST = 500;
const LOOK_MS = 5000;
const HEADS = ["Webhook", "State", "Is sent", "Waiting", "Last delivered", "Last failure"];

let webhooks = new Map();
let isLost = false;

const problem = h("div", { class: "problem", role: "alert", hidden: true });
const title = h("summary", {}, "Webhooks");
const words = h("p", { class: "hint" });
const rows = h("tbody", {});
const list = h("div", { class: "scroll", hidden: true }, h("table", { class: "webhooks" }, h("caption", { class: "hidden" }, "Webhooks"),
  h("thead", {}, h("tr", {}, HEADS.map((name) => h("th", { scope: "col", class: name === "Waiting" ? "number" : null }, name)), h("th", { scope: "col" }, h("span", { class: "hidden" }, "Actions")))), rows));
const secret = h("div", { role: "status" });
const form = h("form", { class: "form", "aria-label": "New webhook", onsubmit: create }, h("h2", {}, "New webhook"),
  h("div", { class: "fields" },
    field("name", "Name", "lower-case letters, digits and -", { required: true }),
    field("url", "URL", "where events are posted to, http or https", { required: true, type: "url", placeholder: "https://" }),
    field("kinds", "Kinds of events", "e.g. BudgetSpent, PlanPushed; empty: all")),
  h("div", { class: "controls" }, h("button", { class: "primary" }, "Create")));

/** The section, closed unless the address asks for it; while it is open it looks every few seconds how it goes. */
export const section = h("details", { class: "card", id: "webhooks", open: window.location.hash === "#webhooks", ontoggle: () => load() }, title, problem, words, list, secret, form);

function field(name, title, hint, attributes = {}) {
  return h("div", { class: "field" }, h("label", { for: `webhook-${name}` }, title),
    h("input", { id: `webhook-${name}`, name, autocomplete: "off", spellcheck: "false", "aria-describedby": `webhook-${name}-hint`, ...attributes }),
    h("span", { class: "hint", id: `webhook-${name}-hint` }, hint));
}

async function load() {
  try {
    webhooks = new Map((await api.list("/webhooks", {}, MOST)).map((each) => [each.metadata.name, each]));
    if (isLost) complain(null);
    isLost = false;
    draw();
  } catch (error) {
    isLost = true;
    complain(error.message);
  }
}

function complain(said) {
  problem.hidden = said === null;
  show(problem, said ?? "");
}

function draw() {
  const all = [...webhooks.values()];
  const ill = all.filter(({ spec, status }) => spec.enabled && status.last_error !== null).length;
  show(title, `Webhooks (${number(all.length, 0)}) `, ill ? h("span", { class: "chip bad" }, `${ill} failing`) : null);
  show(words, all.length ? "Each event is posted to these addresses, signed. A failed one is tried again for a day." : "Events are sent nowhere yet. A webhook posts each one, signed, to an address of yours, such as a chat's.");
  list.hidden = all.length === 0;
  keyed(rows, [...webhooks.keys()], makeRow, updateRow);
}

function makeRow(name) {
  return h("tr", {}, h("th", { scope: "row" }, h("a", { href: `/events?subject=webhook/${name}#webhooks`, title: "What the audit says of it" }, name)),
    HEADS.slice(1).map((head) => h("td", { class: head === "Waiting" ? "number" : head === "Is sent" || head === "Last failure" ? "wrap" : null })), h("td", {}, deleting(name)));
}

function updateRow(row, name) {
  const { spec, status } = webhooks.get(name);
  const [kind, said] = state(spec, status);
  const cells = [
    h("span", { class: `chip ${kind}` }, said),
    [spec.kinds.length ? spec.kinds.join(", ") : "all events", h("div", { class: "hint" }, spec.url)],
    number(status.waiting, 0),
    status.last_delivered_at ? moment(status.last_delivered_at) : "never",
    failure(status),
  ];
  cells.forEach((value, at) => show(row.children[at + 1], value));
}

function state(spec, status) {
  if (!spec.enabled) return ["", "off"];
  if (status.failed_at) return ["bad", "gave up an event"];
  if (status.last_error !== null) return ["warn", "tries again"];
  return status.last_delivered_at ? ["good", "delivers"] : ["", "nothing sent yet"];
}

function failure(status) {
  if (status.last_error === null && !status.failed_at) return h("span", { class: "hint" }, "none");
  return [status.last_error, status.failed_at ? h("div", { class: "bad detail" }, `given up ${moment(status.failed_at)}`) : null];
}

/** Once asked, once confirmed: what waits is lost with it. */
function deleting(name) {
  const place = h("div", { class: "controls" });
  const offer = () => show(place, h("button", { type: "button", class: "danger", "aria-label": `Delete ${name}`, onclick: ask }, "Delete"));
  const ask = () => {
    const no = h("button", { type: "button", onclick: offer }, "No");
    show(place, h("span", {}, `What waits for it is dropped: ${count(webhooks.get(name).status.waiting, "event")}.`), h("button", { type: "button", class: "danger", onclick: go }, `Yes, delete ${name}`), no);
    no.focus();
  };
  const go = async () => {
    await api.send("DELETE", `/webhooks/${name}`, undefined, { "If-Match": "*" }).then(() => complain(null), (error) => { complain(error.message); offer(); });
    await load();
  };
  offer();
  return place;
}

async function create(event) {
  event.preventDefault();
  const { name, url, kinds } = Object.fromEntries([...new FormData(form)].map(([key, value]) => [key, value.trim()]));
  const manifest = { kind: "Webhook", metadata: { name }, spec: { url, kinds: kinds.split(/[\s,]+/).filter(Boolean) } };
  try {
    const made = await api.send("PUT", `/webhooks/${encodeURIComponent(name)}`, manifest, { "If-None-Match": "*" });
    complain(null);
    form.reset();
    tell(name, made.status.secret);
  } catch (error) {
    complain(error.status === 412 ? `There is a webhook called ${name} already: delete it first, or change it by plimsoll apply.` : error.message);
  }
  await load();
}

/** The secret is in this one answer only. */
function tell(name, value) {
  const input = h("input", { id: "webhook-secret", class: "secret", readonly: true, value, onfocus: (event) => event.target.select() });
  show(secret, h("div", { class: "card" }, h("label", { for: "webhook-secret" }, `Secret of ${name}, by which its receiver knows what is ours. It is shown this once: copy it now.`), input,
    h("button", { type: "button", onclick: () => show(secret) }, "I have it")));
  input.focus();
}

setInterval(() => { if (section.open && !document.hidden) load(); }, LOOK_MS);
load();
