// Events: the audit of every write and every automatic decision, newest first, with what each changed.

import * as api from "./api.js";
import { h, show } from "./dom.js";
import { grouped, isAtLeast, LEVELS } from "./event_kinds.js";
import { eventRow, EVENT_HEADS } from "./event_table.js";
import { onChange, table } from "./live.js";
import { begin, complain, content, state } from "./page.js";
import { virtualRows } from "./virtual.js";

const SHOWN = 50;
const MOST = 2000;
const FIELDS = { kind: "What", subject: "About", actor: "By" };
const HINTS = { kind: "e.g. PlanPushed", subject: "e.g. service/chat", actor: "e.g. controller" };
const SPANS = { "": "any time", 3600: "the last hour", 86400: "the last day", 604800: "the last 7 days" };

const asked = new URLSearchParams(window.location.search);
let events = new Map();
let cursor = null;
let asking = 0;

const summary = h("p", { class: "summary", role: "status" });
const body = h("tbody", {});
const rows = virtualRows(body, makeRow, () => {});
let level = asked.get("level") in LEVELS ? asked.get("level") : "notice";
/** Groups that somebody opened, by their oldest line, which stays when newer ones come. */
const opened = new Set();
let lines = new Map();
const known = Object.fromEntries(Object.keys(FIELDS).map((name) => [name, h("datalist", { id: `known-${name}` })]));
const older = h("button", { type: "button", hidden: true, onclick: () => load(cursor) }, "Older ones");
const form = h("form", { class: "controls", onsubmit: (event) => { event.preventDefault(); apply(); }, onchange: () => apply() },
  Object.entries(FIELDS).map(([name, words]) => h("label", {}, `${words} `, h("input", { name, type: "search", list: `known-${name}`, value: asked.get(name) ?? "", placeholder: HINTS[name], spellcheck: "false", autocomplete: "off" }))),
  h("label", {}, "Since ", h("select", { name: "within_s" }, Object.entries(SPANS).map(([value, words]) => h("option", { value, selected: value === (asked.get("within_s") ?? "") }, words)))),
  h("label", {}, "Level ", h("select", { name: "level" }, Object.entries(LEVELS).map(([value, words]) => h("option", { value: value === "notice" ? "" : value, selected: value === level }, words)))),
  h("button", {}, "Show"), Object.values(known));
// Loaded only for those whom the API shows webhooks.
const webhooks = state.scope === "admin" ? (await import("./webhooks.js")).section : null;
show(content, webhooks, form, summary,
  h("div", { class: "scroll long", tabindex: 0, role: "region", "aria-label": "Events" }, h("table", { class: "events" }, h("caption", { class: "hidden" }, "Events, newest first"),
    h("thead", {}, h("tr", {}, EVENT_HEADS.map((name) => h("th", { scope: "col" }, name)))), body)),
  h("div", { class: "controls" }, older));

/** What is filled in, in the words of the API; the address holds it, so that it can be sent to somebody. */
function filters() {
  const filled = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value));
  const query = new URLSearchParams(filled).toString();
  window.history.replaceState(null, "", query ? `?${query}` : window.location.pathname);
  const { within_s: within, level: asLeast, ...rest } = filled;
  level = asLeast in LEVELS ? asLeast : "notice";
  return within && within in SPANS ? { ...rest, since: new Date(Date.now() - 1000 * Number(within)).toISOString() } : rest;
}

function apply() {
  events = new Map();
  cursor = null;
  load(null);
}

/** A page of lines: the newest where `from` is null, else the next older ones. */
async function load(from) {
  const turn = ++asking;
  try {
    const found = await api.get("/events", { ...filters(), limit: SHOWN, cursor: from });
    if (turn !== asking) return;
    const isFirst = events.size === 0;
    // More came than fit a page: what is between is not known, so begin again.
    if (from === null && !isFirst && found.items.length === SHOWN && !events.has(found.items.at(-1).id)) events = new Map();
    if (from !== null || isFirst || events.size === 0) cursor = found.next_cursor;
    for (const event of found.items) events.set(event.id, event);
    complain(null);
    draw();
  } catch (error) {
    if (turn === asking) complain(error.message);
  }
}

function draw() {
  const list = [...events.values()].sort((one, other) => other.id - one.id).slice(0, MOST);
  const matter = list.filter((event) => isAtLeast(event.kind, level));
  lines = new Map(grouped(matter).flatMap(linesOf));
  rows.show([...lines.keys()]);
  older.hidden = cursor === null || list.length >= MOST;
  for (const [name, place] of Object.entries(known)) show(place, [...new Set(list.map((event) => event[name]))].sort().map((value) => h("option", { value })));
  show(summary, matter.length === 0 ? nothing() : `${matter.length} shown${cursor === null ? ", which are all" : ""}${matter.length < list.length ? `, of ${list.length} that were read` : ""}.`);
}

/** A group is one line until somebody opens it; its key changes with its length, so that it is drawn again. */
function linesOf(group) {
  if (group.length === 1) return [[`${group[0].id}`, { event: group[0] }]];
  const oldest = group.at(-1).id;
  const isOpen = opened.has(oldest);
  const head = [`${oldest} × ${group.length}${isOpen ? " open" : ""}`, { event: group[0], group, isOpen, turn: () => turn(oldest) }];
  return isOpen ? [head, ...group.map((event) => [`${event.id}`, { event }])] : [head];
}

function turn(oldest) {
  if (!opened.delete(oldest)) opened.add(oldest);
  draw();
  body.querySelector(`[data-oldest="${oldest}"] button`)?.focus();
}

function makeRow(key) {
  const { event, group, isOpen, turn: act } = lines.get(key);
  return eventRow(event, group ? { group, isOpen, turn: act } : null);
}

const nothing = () => (form.level.value && events.size ? `None of the ${events.size} that were read is of that level.` : Object.keys(filters()).length ? "Nothing like that was noted. Loosen a field above." : "Nothing was noted yet: every write and every decision will stand here.");

let newest = null;
onChange("header", () => {
  const now = table("header").get("now")?.newest_event ?? null;
  // The very first lines are loaded below, whether the header is seen or not.
  if (newest !== null && now !== newest) load(null);
  newest = now;
});
begin();
apply();
