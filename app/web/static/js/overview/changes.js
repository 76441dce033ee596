// What changed: the newest events, neighbours of a kind as one line, with the plans that they are about.

import * as api from "../api.js";
import { h, show } from "../dom.js";
import { grouped, LEVEL_WORDS, levelOf } from "../event_kinds.js";
import { subjectLink } from "../event_table.js";
import { moment } from "../format.js";
import { table } from "../live.js";
import { complain } from "../page.js";

const ASKED = 40;
const SHOWN = 7;
const list = h("ul", { class: "plain news" });
// Who came to look changed nothing.
const PASSED_OVER = new Set(["LoggedIn", "LoggedOut", "Read"]);
let askedFor = null;
let isAsking = false;

/** The card. */
export const element = h("section", { class: "card", "aria-label": "What changed" },
  h("div", { class: "controls" }, h("h2", {}, "What changed"), h("a", { href: "/plans" }, "Plans"), h("a", { href: "/events" }, "Events")), list);

/** Ask again when something was noted; while an answer is under way the next header asks. */
export async function look() {
  const newest = table("header").get("now")?.newest_event ?? null;
  if (isAsking || newest === askedFor) return;
  isAsking = true;
  askedFor = newest;
  try {
    const found = await api.get("/events", { limit: ASKED });
    const groups = grouped(found.items.filter((event) => !PASSED_OVER.has(event.kind))).slice(0, SHOWN);
    show(list, groups.length ? groups.map(item) : h("li", { class: "hint" }, "No events yet."));
  } catch (error) {
    complain(error.message);
  }
  isAsking = false;
}

function item(group) {
  const [event] = group;
  const level = levelOf(event.kind);
  const plan = event.plan_id === null ? null : [" ", h("a", { href: `/plans/${event.plan_id}` }, `plan ${event.plan_id}`)];
  const about = group.length > 1 ? ` × ${group.length}` : [" ", event.plan_id === null ? subjectLink(event.subject) : ""];
  return h("li", {}, h("span", { class: `dot ${level}`, title: LEVEL_WORDS[level] }),
    h("span", { class: "grow" }, h("strong", {}, event.kind), about, plan, event.reason ? h("span", { class: "hint one-line", title: event.reason }, event.reason) : null),
    h("time", { class: "hint", datetime: event.at }, moment(event.at)));
}
