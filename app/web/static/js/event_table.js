// Lines of the audit as a table: who did what to what, why, and what it changed.

import { h } from "./dom.js";
import { moment } from "./format.js";

const PAGES = { service: "/services", node: "/nodes#", plan: "/plans" };
const LONG = 400;
const MOST_DIFFERENCES = 40;

/** A table of events with its caption; `empty` is said where there are none. */
export function eventTable(list, caption, empty) {
  const head = h("thead", {}, h("tr", {}, ["When", "What", "About", "By", "Why", "Plan"].map((name) => h("th", { scope: "col" }, name))));
  const body = h("tbody", {}, list.length ? list.map(eventRow) : h("tr", {}, h("td", { colspan: 6, class: "hint" }, empty)));
  return h("div", { class: "scroll" }, h("table", { class: "events" }, h("caption", {}, caption), head, body));
}

/** One line. */
export function eventRow(event) {
  const found = differences(event.before, event.after);
  return h("tr", {},
    h("td", { title: event.at }, moment(event.at)), h("td", {}, event.kind), h("td", {}, subjectLink(event.subject)), h("td", {}, event.actor),
    h("td", { class: "wrap" }, event.reason, found.length ? diff(found) : null),
    h("td", {}, event.plan_id === null ? "" : h("a", { href: `/plans/${event.plan_id}` }, `${event.plan_id}`)));
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
