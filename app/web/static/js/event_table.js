// Lines of the audit as a table: who did what to what, why, and what it changed.

import { h } from "./dom.js";
import { LEVEL_WORDS, levelOf } from "./event_kinds.js";
import { moment } from "./format.js";

export const EVENT_HEADS = ["When", "What", "About", "By", "Why", "Plan"];
const MOST_SUBJECTS = 4;
const PAGES = { service: "/services", node: "/nodes#", plan: "/plans" };
const LONG = 400;
const MOST_DIFFERENCES = 40;

/** A table of events with its caption; `empty` is said where there are none. */
export function eventTable(list, caption, empty) {
  const head = h("thead", {}, h("tr", {}, EVENT_HEADS.map((name) => h("th", { scope: "col" }, name))));
  const body = h("tbody", {}, list.length ? list.map((event) => eventRow(event)) : h("tr", {}, h("td", { colspan: 6, class: "hint" }, empty)));
  return h("div", { class: "scroll", tabindex: 0 }, h("table", { class: "events" }, h("caption", {}, caption), head, body));
}

/** One line; `about` is {group, isOpen, turn} where it stands for several of a kind, of which it is the newest. */
export function eventRow(event, about = null) {
  const found = about ? [] : differences(event.before, event.after);
  return h("tr", { "data-oldest": about ? about.group.at(-1).id : null },
    h("td", { title: event.at }, moment(event.at)), h("td", {}, kind(event.kind), about ? [" ", button(about)] : null),
    h("td", { class: about ? "subjects" : null }, about ? subjects(about.group) : subjectLink(event.subject)), h("td", {}, event.actor),
    h("td", { class: "wrap" }, about ? "" : event.reason, found.length ? diff(found) : null),
    h("td", {}, event.plan_id === null ? "" : h("a", { href: `/plans/${event.plan_id}` }, `${event.plan_id}`)));
}

/** Its level is a colour for those who see it, and a word for others. */
function kind(name) {
  const level = levelOf(name);
  return [h("span", { class: `dot inline ${level}`, title: LEVEL_WORDS[level] }), level === "notice" ? null : h("span", { class: "hidden" }, `${LEVEL_WORDS[level]}: `), name];
}

const button = ({ group, isOpen, turn }) => h("button", { type: "button", class: "count", "aria-expanded": isOpen ? "true" : "false", title: isOpen ? "Show them as one" : "Show each of them", onclick: turn }, `× ${group.length}`);

function subjects(group) {
  const all = [...new Set(group.map((event) => event.subject))];
  const shown = all.slice(0, MOST_SUBJECTS).flatMap((subject, at) => [at ? ", " : "", subjectLink(subject)]);
  return all.length > MOST_SUBJECTS ? [...shown, ` and ${all.length - MOST_SUBJECTS} more`] : shown;
}

/** `node/n1` as a link to where it is shown. */
export function subjectLink(words) {
  const [kind, ...rest] = words.split("/");
  const name = rest.join("/");
  if (!(kind in PAGES) || !name || (kind === "plan" && !/^\d+$/.test(name))) return words;
  return h("a", { href: `${PAGES[kind]}${kind === "node" ? "" : "/"}${name}` }, words);
}

function diff(found) {
  const shown = found.slice(0, MOST_DIFFERENCES);
  return h("details", { class: "diff" }, h("summary", {}, found.length === 1 ? "1 field" : `${found.length} fields`),
    h("dl", {}, shown.map(({ field, before, after }) => [h("dt", {}, field || "all"), h("dd", {},
      before === undefined ? null : h("del", {}, text(before)), before === undefined || after === undefined ? null : " → ",
      after === undefined ? null : h("ins", {}, text(after)))])),
    found.length > shown.length ? h("p", { class: "hint" }, `and ${found.length - shown.length} more: plimsoll get events -o json`) : null);
}

function text(value) {
  const words = typeof value === "string" ? value : JSON.stringify(value);
  return words.length > LONG ? `${words.slice(0, LONG)} …` : words;
}

/** Fields that differ: [{field: "spec.slo.latency_ms", before, after}]; undefined: not there. */
export function differences(before, after, field = "") {
  const [old, fresh] = [before ?? undefined, after ?? undefined];
  if (JSON.stringify(old) === JSON.stringify(fresh)) return [];
  if (!isObject(old ?? fresh) || !isObject(fresh ?? old)) return [{ field, before: old, after: fresh }];
  const names = [...new Set([...Object.keys(old ?? {}), ...Object.keys(fresh ?? {})])];
  return names.flatMap((name) => differences(old?.[name], fresh?.[name], field ? `${field}.${name}` : name));
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
